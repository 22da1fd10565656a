//! A timer that fires at an absolute time, to the microsecond.
//!
//! tokio's own timers tick in milliseconds, which is seven full-size frames at 100 Mbit/s.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::sys;
use crate::time::Instant;

/// A timerfd on the clock of [`clock::now`](super::clock::now).
pub struct Timer {
    fd: AsyncFd<OwnedFd>,
    set_to: Option<Instant>,
}

impl Timer {
    /// A timer that is not set. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { fd: sys::register(fd)?, set_to: None })
    }

    /// Sets it to fire once at `at`, at once if that is past; `None` unsets it. Setting it to what
    /// it is set to costs nothing.
    ///
    /// # Errors
    /// Only if the descriptor is broken.
    pub fn set(&mut self, at: Option<Instant>) -> io::Result<()> {
        if at == self.set_to {
            return Ok(());
        }
        // All zeros would unset it, hence at least 1 ns.
        let nanos = at.map_or(0, |at| at.nanos().max(1));
        let value = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
        self.set_to = at;
        Ok(())
    }

    /// Ready once when the timer has fired; it is then no longer set.
    ///
    /// # Errors
    /// Only if the descriptor is broken.
    pub fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let mut count = [0; 8];
            match rustix::io::read(guard.get_inner(), &mut count) {
                Ok(_) => {
                    self.set_to = None;
                    return Poll::Ready(Ok(()));
                }
                // Fired, and was set anew before anyone looked.
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::io::clock;
    use crate::time::Span;

    fn on_a_runtime(test: impl Future<Output = io::Result<()>>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.and_then(|runtime| runtime.block_on(test)).expect("timers work here");
    }

    #[test]
    fn it_never_fires_before_its_time() {
        on_a_runtime(async {
            let mut timer = Timer::new()?;
            for micros in [0, 100, 700] {
                let at = clock::now() + Span::from_micros(micros);
                timer.set(Some(at))?;
                poll_fn(|cx| timer.poll_fired(cx)).await?;
                assert!(clock::now() >= at);
            }
            Ok(())
        });
    }

    #[test]
    fn a_time_set_anew_replaces_one_that_has_fired_unseen() {
        on_a_runtime(async {
            let mut timer = Timer::new()?;
            timer.set(Some(clock::now()))?;
            let at = clock::now() + Span::from_millis(2);
            timer.set(Some(at))?;
            poll_fn(|cx| timer.poll_fired(cx)).await?;
            assert!(clock::now() >= at);
            Ok(())
        });
    }
}
