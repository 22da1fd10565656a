//! The `ucake` command.

fn main() {}
