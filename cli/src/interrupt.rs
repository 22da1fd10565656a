//! Being told to stop while blocked.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit status of a program that a signal asked to stop, as shells have it for SIGINT.
pub(crate) const EXIT_STATUS: u8 = 130;

/// Whether SIGINT or SIGTERM has come. A second one ends the process at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    shared: Arc<(Mutex<bool>, Condvar)>,
}

impl Interrupt {
    /// Watches for signals on a thread of its own.
    pub(crate) fn watch() -> io::Result<Self> {
        let interrupt = Self { shared: Arc::default() };
        let watched = interrupt.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Handlers are in place when this returns, not some time later.
        let signals = {
            let _context = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(watched.take_signals(signals)))?;
        Ok(interrupt)
    }

    async fn take_signals(&self, (mut interrupt, mut terminate): (Signal, Signal)) {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if self.is_set() {
                std::process::exit(EXIT_STATUS.into());
            }
            self.set();
        }
    }

    fn set(&self) {
        let (flag, changed) = &*self.shared;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Whether it has come.
    pub(crate) fn is_set(&self) -> bool {
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until `deadline` or until it comes, and says whether it has come.
    pub(crate) fn sleep_until(&self, deadline: Instant) -> bool {
        let (flag, changed) = &*self.shared;
        let guard = flag.lock().unwrap_or_else(PoisonError::into_inner);
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = changed.wait_timeout_while(guard, left, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sleeps for `span` or until it comes, and says whether it has come.
    pub(crate) fn sleep(&self, span: Duration) -> bool {
        self.sleep_until(Instant::now() + span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken() {
        let interrupt = Interrupt { shared: Arc::default() };
        assert!(!interrupt.sleep(Duration::from_millis(1)));
        let setter = interrupt.clone();
        let thread = thread::spawn(move || setter.set());
        assert!(interrupt.sleep(Duration::from_secs(60)));
        assert!(interrupt.is_set());
        thread.join().expect("it only sets a flag");
    }
}
