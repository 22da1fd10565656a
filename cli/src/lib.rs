//! What the `ucake` command says and understands, apart from what it does.
//!
//! Problem: text from people is the one input that no port checks first, so it must be possible to test
//! and fuzz what reads it without starting anything.
//! Law: pure functions from text to configurations and back; nothing here opens, prints or waits, but for [`doctor`],
//! which is there to look at the machine, and [`sandbox`], which only gives away.
//! Left out: the command itself (`main.rs` and what it names).

pub mod capture;
pub mod class;
pub mod config;
pub mod doctor;
pub mod egress;
pub mod json;
pub mod manual;
pub mod nearest;
pub mod pass_through;
pub mod plan;
pub mod protocol;
#[cfg(test)]
mod recorded;
pub mod sandbox;
pub mod show;
pub mod tc;
pub mod value;
pub mod words;
