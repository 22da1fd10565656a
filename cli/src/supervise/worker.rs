//! What does the work for the supervisor: a process, or in the last resort a thread.
//!
//! Law: it is done with when its end of the link is closed; then it is waited for, but not for ever: a process that
//! hangs in a driver cannot be ended even by the system.
//! Left out: why it is needed ([`super::health`]).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::data::{self, Rights};

/// The program that runs, even if its file was removed or exchanged.
const SELF: &str = "/proc/self/exe";
/// How long to wait for one that was ended.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);

/// What does the work.
#[derive(Debug)]
pub(super) enum Worker {
    Process(Child),
    Thread(JoinHandle<()>),
}

impl Worker {
    /// A process of its own, which reads what is handed over from `end`.
    pub(super) fn process(program: &Path, end: OwnedFd) -> io::Result<Self> {
        // What runs is what was tried, whatever stands in its place by now.
        let program = if Path::new(SELF).exists() { Path::new(SELF) } else { program };
        let mut command = Command::new(program);
        command.arg0("ucake").arg("data").stdin(Stdio::from(end)).spawn().map(Self::Process)
    }

    /// A thread, which has all the rights we have.
    pub(super) fn thread(end: OwnedFd) -> io::Result<Self> {
        let work = move || {
            if let Err(error) = data::serve(end, Rights::Keep) {
                tracing::warn!(error = %crate::explain(&error), "the relay ended");
            }
        };
        thread::Builder::new().name("relay".to_owned()).spawn(work).map(Self::Thread)
    }

    /// The process, ours if it is a thread.
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Process(child) => child.id(),
            Self::Thread(_) => std::process::id(),
        }
    }

    /// Ends it, whatever it does; a thread only ends by itself.
    pub(super) fn kill(&mut self) {
        if let Self::Process(child) = self {
            // It may have ended.
            let _ = child.kill();
        }
    }

    /// What became of it, if it has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self {
            Self::Process(child) => match child.try_wait() {
                Ok(status) => status.map(|status| fate(&status)),
                Err(error) => Some(error.to_string()),
            },
            Self::Thread(thread) => thread.is_finished().then(|| "the thread ended".to_owned()),
        }
    }

    /// Waits for the end of one that is ending. Itself if it will not.
    pub(super) async fn end(mut self) -> Result<String, Self> {
        let begun = tokio::time::Instant::now();
        loop {
            if let Some(fate) = self.ended() {
                return Ok(fate);
            }
            if begun.elapsed() >= PATIENCE {
                return Err(self);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What became of a process, in words.
fn fate(status: &ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended".to_owned(),
    }
}
