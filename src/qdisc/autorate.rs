//! Autorate: an estimate of the link before the shaper, from when packets arrive.
//!
//! Problem: behind a link whose rate changes (radio, a shared cable) any rate that is set by hand is wrong
//! most of the time.
//! Source: spec §10. Law: packets that come close together came at the rate of the bottleneck; when such a
//! burst ends, its bytes over its time is a sample, samples above the estimate weigh sixty-four times as
//! much as those below, and 15/16 of the estimate is the rate to shape to, at most every [`SPACING`].
//! Deliberately different from Linux: an ACK that the filter takes out of an earlier window takes nothing
//! from this one below zero; a window without time is no sample; an estimate of nothing leaves the rate as
//! it was, where Linux would stop shaping.
//! Left out: deriving everything from the new rate (`qdisc::mod`), forgetting: an estimate stays when
//! autorate is switched off.

use crate::time::{Instant, Span};
use crate::units::{FrameLen, Rate};

/// Least time between two changes of the rate.
pub const SPACING: Span = Span::from_millis(250);
/// Gaps count as this at most.
const LONGEST_GAP: u64 = NANOS_PER_SECOND;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// What is known of the link before the shaper. All zero at first but the estimate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimator {
    last_packet_at: Instant,
    /// Moving average of the time between packets, in nanoseconds.
    mean_gap: u64,
    window_from: Instant,
    window_bytes: u64,
    /// Bytes per second.
    estimate: u64,
    changed_at: Instant,
}

impl Estimator {
    /// An estimate to begin with: the rate that was set, or nothing.
    pub fn new(rate: Option<Rate>) -> Self {
        Self { estimate: rate.map_or(0, Rate::bytes), ..Self::default() }
    }

    /// The estimate as it stands.
    pub fn estimate(&self) -> Rate {
        Rate::from_bytes(self.estimate)
    }

    /// Bytes arrived.
    pub fn arrived(&mut self, len: FrameLen) {
        self.window_bytes = self.window_bytes.saturating_add(u64::from(len.0));
    }

    /// Bytes that had arrived were taken out again by the ACK filter.
    pub fn withdrawn(&mut self, len: FrameLen) {
        self.window_bytes = self.window_bytes.saturating_sub(u64::from(len.0));
    }

    /// A packet came while nobody wants to know.
    pub fn ignore(&mut self, now: Instant) {
        self.window_bytes = 0;
        self.last_packet_at = now;
    }

    /// A packet came, its bytes told already. `Some` if the rate is to change now.
    pub fn observe(&mut self, now: Instant) -> Option<Rate> {
        let gap = (now - self.last_packet_at).nanos_or_zero().min(LONGEST_GAP);
        self.mean_gap = ewma(self.mean_gap, gap, if gap > self.mean_gap { 2 } else { 8 });
        self.last_packet_at = now;
        if gap <= self.mean_gap {
            return None;
        }
        self.end_burst(now);
        let due = now > self.changed_at + SPACING;
        let rate = due.then(|| self.shaped_rate()).filter(|rate| !rate.is_zero())?;
        self.changed_at = now;
        Some(rate)
    }

    /// Takes the burst that has ended, with the packet that ended it, as a sample.
    fn end_burst(&mut self, now: Instant) {
        let span = u128::from((now - self.window_from).nanos_or_zero());
        let scaled = u128::from(self.window_bytes) * u128::from(NANOS_PER_SECOND);
        let sample = scaled.checked_div(span).map(|rate| u64::try_from(rate).unwrap_or(u64::MAX));
        if let Some(sample) = sample {
            let shift = if sample > self.estimate { 2 } else { 8 };
            self.estimate = ewma(self.estimate, sample, shift);
        }
        self.window_bytes = 0;
        self.window_from = now;
    }

    /// Fifteen sixteenths of the estimate.
    fn shaped_rate(&self) -> Rate {
        let scaled = (u128::from(self.estimate) * 15) >> 4;
        Rate::from_bytes(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

fn ewma(average: u64, sample: u64, shift: u32) -> u64 {
    (average - (average >> shift)).saturating_add(sample >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: FrameLen = FrameLen(1250);

    /// Bursts of ten packets, `gap` apart in the burst and 20 ms from one to the next, for `bursts`.
    fn bursts(estimator: &mut Estimator, gap: Span, bursts: u32, from: Instant) -> Vec<Instant> {
        let mut changes = Vec::new();
        let mut now = from;
        for _ in 0..bursts {
            for _ in 0..10 {
                estimator.arrived(LEN);
                changes.extend(estimator.observe(now).map(|_| now));
                now += gap;
            }
            now += Span::from_millis(20);
        }
        changes
    }

    fn at(nanos: i64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + nanos)
    }

    #[test]
    fn the_estimate_rises_fast_and_falls_slowly() {
        let mut estimator = Estimator { window_from: at(0), ..Estimator::default() };
        estimator.last_packet_at = at(0);
        estimator.estimate = 1_000;
        estimator.window_bytes = 5_000;
        estimator.end_burst(at(1_000_000_000));
        assert_eq!(estimator.estimate, 1_000 - 250 + 1_250);
        estimator.end_burst(at(2_000_000_000));
        assert_eq!(estimator.estimate, 2_000 - 7);
    }

    #[test]
    fn the_rate_changes_at_most_every_quarter_of_a_second() {
        let mut estimator = Estimator::new(Some(Rate::from_bytes(1_000_000)));
        let changes = bursts(&mut estimator, Span::from_micros(100), 500, at(0));
        assert!(changes.len() > 20, "{}", changes.len());
        for pair in changes.windows(2) {
            assert!(pair[1] - pair[0] > SPACING, "{pair:?}");
        }
    }

    #[test]
    fn a_window_of_many_seconds_is_divided_in_64_bits() {
        let mut estimator = Estimator { window_from: at(0), ..Estimator::default() };
        estimator.window_bytes = 40_000_000_000;
        // More than 2^32 ns, and bytes times 10^9 beyond 2^64.
        estimator.end_burst(at(8_000_000_000));
        assert_eq!(estimator.estimate, 5_000_000_000 / 4);
    }

    #[test]
    fn a_window_without_time_is_no_sample() {
        let mut estimator = Estimator { window_from: at(0), ..Estimator::default() };
        estimator.estimate = 77;
        estimator.arrived(LEN);
        estimator.end_burst(at(0));
        assert_eq!(estimator.estimate(), Rate::from_bytes(77));
    }

    #[test]
    fn an_estimate_of_nothing_asks_for_no_rate() {
        let mut estimator = Estimator::new(None);
        for i in 0..10 {
            assert_eq!(estimator.observe(at(i * 1_000_000_000)), None);
        }
        assert!(estimator.estimate().is_zero());
    }

    #[test]
    fn gaps_of_hours_count_as_a_second() {
        let mut estimator = Estimator::new(None);
        estimator.observe(at(3_600_000_000_000));
        assert_eq!(estimator.mean_gap, NANOS_PER_SECOND / 4);
    }

    #[test]
    fn while_off_nothing_is_gathered_and_the_estimate_stays() {
        let mut estimator = Estimator::new(Some(Rate::from_bytes(1_000)));
        for i in 0..100 {
            estimator.arrived(LEN);
            estimator.ignore(at(i * 1_000_000));
        }
        assert_eq!((estimator.window_bytes, estimator.estimate), (0, 1_000));
        assert_eq!(estimator.last_packet_at, at(99_000_000));
    }

    #[test]
    fn ewma_moves_by_the_truncated_parts() {
        assert_eq!(ewma(1_000, 2_000, 2), 1_000 - 250 + 500);
        assert_eq!(ewma(255, 0, 8), 255, "what is below the shift stays");
        assert_eq!(ewma(u64::MAX, u64::MAX, 2), u64::MAX);
    }
}
