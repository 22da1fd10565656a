//! What to do after a data process has ended: the next one shapes, or does no more than pass frames on.
//!
//! Problem: what ended one process may end the next, and a line that is dead every few milliseconds is dead.
//! Law: each end is followed by a new start at once. Several ends in a short time, and less is tried: first a
//! data process without CAKE, then no data process at all, the supervisor passing frames on itself. After a while
//! everything is tried again, after a longer one if it did not help.
//! Left out: clocks; `now` is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many ends …
const MOST_ENDS: usize = 5;
/// … within this time are too many.
const WINDOW: Duration = Duration::from_secs(10);
/// How long less is done before everything is tried again, at first; it doubles each time …
const PAUSE: Duration = Duration::from_secs(60);
/// … up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A data process with CAKE.
    Shape,
    /// A data process without.
    PassThrough,
    /// The supervisor itself, without any.
    Relay,
}

/// The recent past.
#[derive(Debug)]
pub(crate) struct Health {
    mode: Mode,
    ends: VecDeque<Instant>,
    /// The last end or new try.
    last: Option<Instant>,
    /// When everything is to be tried again.
    retry_at: Option<Instant>,
    pause: Duration,
}

impl Health {
    pub(crate) fn new() -> Self {
        let (ends, last, retry_at) = (VecDeque::new(), None, None);
        Self { mode: Mode::Shape, ends, last, retry_at, pause: PAUSE }
    }

    /// What is tried now.
    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// When [`Self::retry`] is to be called.
    pub(crate) const fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// One has ended unasked. What to try next.
    pub(crate) fn ended(&mut self, now: Instant) -> Mode {
        // It went well for long: what comes now is another matter.
        let well = |last| now.saturating_duration_since(last) > 2 * self.pause;
        if self.mode == Mode::Shape && self.last.is_some_and(well) {
            self.pause = PAUSE;
        }
        self.last = Some(now);
        self.ends.push_back(now);
        self.ends.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        if self.ends.len() >= MOST_ENDS {
            self.do_less(now);
        }
        self.mode
    }

    fn do_less(&mut self, now: Instant) {
        self.mode = match self.mode {
            Mode::Shape => Mode::PassThrough,
            Mode::PassThrough | Mode::Relay => Mode::Relay,
        };
        self.ends.clear();
        self.retry_at = Some(now + self.pause);
    }

    /// Everything is tried again.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.mode = Mode::Shape;
        self.last = Some(now);
        self.retry_at = None;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many ends, so far apart; what was tried after the last.
    fn ends(health: &mut Health, now: &mut Instant, count: usize, apart: Duration) -> Mode {
        for _ in 0..count {
            *now += apart;
            health.ended(*now);
        }
        health.mode()
    }

    #[test]
    fn ends_that_are_rare_change_nothing() {
        let (mut health, mut now) = (Health::new(), Instant::now());
        assert_eq!(ends(&mut health, &mut now, 100, Duration::from_secs(3)), Mode::Shape);
        assert_eq!(health.retry_at(), None);
    }

    #[test]
    fn ends_that_are_not_lead_down_step_by_step_and_up_again_after_a_pause_that_grows() {
        let (mut health, mut now) = (Health::new(), Instant::now());
        let short = Duration::from_millis(10);
        let mut pause = PAUSE;
        for _ in 0..10 {
            assert_eq!(ends(&mut health, &mut now, MOST_ENDS - 1, short), Mode::Shape);
            assert_eq!(ends(&mut health, &mut now, 1, short), Mode::PassThrough);
            assert_eq!(health.retry_at(), Some(now + pause));
            assert_eq!(ends(&mut health, &mut now, MOST_ENDS, short), Mode::Relay);
            now = health.retry_at().expect("it is tried again");
            health.retry(now);
            assert_eq!((health.mode(), health.retry_at()), (Mode::Shape, None));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        // Long after, all is as in the beginning.
        now += 3 * LONGEST_PAUSE;
        ends(&mut health, &mut now, MOST_ENDS, short);
        assert_eq!(health.retry_at(), Some(now + PAUSE));
    }
}
