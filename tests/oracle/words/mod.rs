//! The parser of the command line, so that `tc` and ucake are given the same words.

#[path = "../../../cli/src/words/parse.rs"]
mod parse;
#[path = "../../../cli/src/words/table.rs"]
mod table;

pub(crate) use parse::parse_line;
