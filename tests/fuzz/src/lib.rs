//! The logic of the fuzz targets, free of the fuzzer.

pub mod targets;
