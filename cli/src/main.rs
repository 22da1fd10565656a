//! The `ucake` command.
#![allow(dead_code, unused_imports, reason = "the commands that use these come next")]

mod show;
mod value;
mod words;

fn main() {}
