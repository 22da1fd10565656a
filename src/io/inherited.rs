//! Descriptors that whoever started us left open.
//!
//! Problem: a process that is to have no rights must not get hold of a file by accident.
//! Source: close_range(2). Law: what is not passed on by intention is closed when a program is started.
//! Left out: descriptors opened later, which are closed then anyway.

use std::io;

use super::sys;

/// From now on no descriptor but standard input, output and error is passed on to programs that this one starts.
///
/// # Errors
/// The kernel is older than 5.11, and nothing has changed.
pub fn keep_from_children() -> io::Result<()> {
    sys::close_others_on_exec()
}
