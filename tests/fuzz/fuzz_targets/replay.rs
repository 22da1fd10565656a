//! Fuzzes `targets::replay`, which says what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ucake_fuzz::targets::replay(data));
