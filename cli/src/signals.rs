//! Signals that ask `ucake run` for something.
//!
//! Problem: a supervisor, a process without one and a data process, which is asked by its supervisor alone, are sent
//! the same signals.
//! Law: one list of them, and one meaning.
//! Left out: what is done about each.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGUSR1: the statistics.
    Show,
    /// SIGINT, SIGTERM: the end.
    Stop,
    /// SIGUSR2: a newer program.
    Upgrade,
    /// SIGHUP: that the file is read again.
    Reload,
}

/// Handlers for all of them; they stay when this is dropped.
pub(crate) struct Signals {
    show: Signal,
    upgrade: Signal,
    reload: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Puts the handlers in place. Within a tokio runtime.
    ///
    /// # Errors
    /// The system is out of resources.
    pub(crate) fn watch() -> std::io::Result<Self> {
        Ok(Self {
            show: signal(SignalKind::user_defined1())?,
            upgrade: signal(SignalKind::user_defined2())?,
            reload: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.show.recv() => Asked::Show,
            _ = self.upgrade.recv() => Asked::Upgrade,
            _ = self.reload.recv() => Asked::Reload,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.terminate.recv() => Asked::Stop,
        }
    }
}
