//! `nat`: who asks the kernel about connections.
//!
//! Problem: the kernel tells about connections only those that may change them as well, and whoever reads frames has no
//! rights.
//! Law: a thread of the process that has rights asks, one tuple at a time ([`ucake::io::conntrack`]); whoever handles
//! frames holds the other end of its socket. Without conntrack `nat` is refused, as a kernel without it would.
//! Left out: what is made of the answers (`ucake::packet::nat`).

use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use anyhow::Context as _;
use tracing::debug;
use ucake::io::conntrack::{self, Conntrack};
use ucake::qdisc::Config;
use ucake_cli::egress::StateError;

/// Begins to answer. Where to ask; nowhere if this kernel tracks no connections, or tells us nothing about them.
pub(crate) fn start() -> Option<OwnedFd> {
    let started = || -> io::Result<OwnedFd> {
        let conntrack = Conntrack::open()?;
        let (ours, theirs) = conntrack::pair()?;
        let answer = move || conntrack::serve(&conntrack, &ours);
        thread::Builder::new().name("conntrack".to_owned()).spawn(answer)?;
        Ok(theirs)
    };
    started().inspect_err(|error| debug!(%error, "nothing is known about connections")).ok()
}

/// Sees to it that what is asked for can be had.
///
/// # Errors
/// One of `configs` has `nat`, and there is no conntrack.
pub(crate) fn check<'a>(configs: impl IntoIterator<Item = &'a Config>) -> anyhow::Result<()> {
    if !configs.into_iter().any(|config| config.nat) {
        return Ok(());
    }
    Conntrack::open().map(drop).with_context(|| StateError::NoConntrack.to_string())
}
