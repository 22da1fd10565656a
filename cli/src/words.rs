//! The words of `tc qdisc … cake`: one table, and the parser that runs on it.
//!
//! Problem: parser, help and manual drift apart when each has a list of its own, and the words have
//! effects that depend on their order.
//! Source: spec §2.3 (words), §2.4 (what a command asks for), §2.5 (order effects).
//! Law: words are taken left to right, whole and case-sensitive; a later one wins, but link presets
//! *add* to the overhead gathered so far.
//! Left out: how numbers are read (`value`) and what a change does to a configuration
//! ([`ucake::qdisc::Config::changed_by`]).
//!
//! Deliberate differences from `tc`: a `bandwidth` that comes to nothing is refused instead of
//! meaning unlimited; `bandwidth unlimited` is taken, since that is what `show` prints, and so is `memlimit 4gb`, as
//! the largest limits are shown; `mpu 0`,
//! `memlimit 0` and `fwmark 0` reset; an overhead that presets carry out of range is refused, and so is
//! a time of more than 32 bits of microseconds, which `tc` wraps around.

mod parse;
pub mod table;

pub use parse::{Problem, WordError, parse_line};
pub use table::help;
