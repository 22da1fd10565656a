//! What must hold for any bytes whatever.
//!
//! Problem: a fuzzer finds inputs; what it found has to stay found on machines that have no fuzzer.
//! Law: each target is a plain function of bytes that panics if something does not hold. The fuzzer calls
//! it with new bytes, `cargo test` (`cli/tests/corpus.rs`) with those that were kept.
//! Left out: what only the inside can see, such as the hosts' counters; `qdisc::properties` recounts those.

mod ack_filter;
mod bytes;
mod config;
mod dissect;
mod ops;
mod protocol;
mod replay;
mod split;
mod words;

pub use ack_filter::ack_filter;
pub use config::config;
pub use dissect::dissect;
pub use ops::ops;
pub use protocol::protocol;
pub use replay::replay;
pub use split::split;
pub use words::words;

/// What holds for any bytes, or panics.
pub type Target = fn(&[u8]);

/// Every target by its name, which is that of its corpus too.
#[allow(dead_code, reason = "the fuzzer calls them one by one")]
pub const ALL: [(&str, Target); 8] = [
    ("ack_filter", ack_filter),
    ("config", config),
    ("dissect", dissect),
    ("ops", ops),
    ("protocol", protocol),
    ("replay", replay),
    ("split", split),
    ("words", words),
];
