//! The byte limit: how much a device may hold that it has not sent yet.
//!
//! Problem: what a device holds is a queue without fairness and without AQM, so it should be short; but a
//! device that has nothing to send while we have is a waste of the line.
//! Source: design §4, after the published goal of the kernel's byte queue limits (BQL): the smallest limit
//! that keeps the device busy.
//! Law: at each completion, with the device dry although the limit had held bytes back, the limit rises by
//! what was missing: all that was handed over since the completion before and is gone as well. What is
//! still there, and what was never made use of, is surplus; the limit falls by the smallest surplus of each
//! hold time. One byte in a thousand may be missing without any of that: it is for want of a processor.
//! Left out: how completions are found out (`io::port`), and a rate: the limit follows from what happens.

use crate::time::{Instant, Span};

/// For so long a surplus has to last before the limit falls by it.
const HOLD: Span = Span::from_secs(1);
/// The least limit: one full-size frame.
const LEAST: u64 = 1514;
/// The largest limit.
const MOST: u64 = 16 << 20;
/// One byte in so many may be missing, for want of a processor rather than of a limit, before the limit rises: a
/// shared machine takes a millisecond away now and then, and a limit that rides that out is a queue all the
/// rest of the time.
const SPARED: u64 = 1024;
/// What was not missing is remembered up to so many times the limit: that many droughts may come together.
const DROUGHTS: u64 = 4;
/// The limit to begin with; if it is too small it doubles each time that the device is found dry.
const FIRST: u64 = 16 << 10;

/// The byte limit of one device. All numbers are bytes of frames.
///
/// ```
/// use ucake::dql::Dql;
/// use ucake::time::Instant;
///
/// let mut dql = Dql::new();
/// let before = dql.limit();
/// dql.sent(before);
/// assert_eq!(dql.available(), 0);
/// dql.hold_back(Instant::ZERO);
/// dql.complete(0, Instant::from_nanos(1_000));
/// assert_eq!(dql.limit(), 2 * before, "dry although the limit held bytes back");
/// ```
#[derive(Clone, Debug)]
pub struct Dql {
    limit: u64,
    in_flight: u64,
    /// In flight when the completion before was noticed, and the most there was since.
    left: u64,
    peak: u64,
    /// Whether the limit has held bytes back since then.
    held: bool,
    /// Bytes that were sent in time since the last that were missing, as far as they excuse any.
    in_time: u64,
    stopped_at: Option<Instant>,
    smallest_surplus: Option<u64>,
    surplus_since: Instant,
    stopped: Span,
    stops: u64,
}

/// What a limit has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DqlStats {
    /// Bytes that may be in flight.
    pub limit: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// How often the limit held bytes back, …
    pub stops: u64,
    /// … and for how long in all.
    pub stopped: Span,
}

impl Dql {
    /// A limit that has yet to find its size.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limit: FIRST,
            in_flight: 0,
            left: 0,
            peak: 0,
            held: false,
            in_time: 0,
            stopped_at: None,
            smallest_surplus: None,
            surplus_since: Instant::ZERO,
            stopped: Span::ZERO,
            stops: 0,
        }
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in flight, as far as is known.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Bytes that may be handed over now. As with any packet on any link, the last one may exceed it.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.limit.saturating_sub(self.in_flight)
    }

    /// So many bytes were handed to the device.
    pub const fn sent(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_add(bytes);
        if self.in_flight > self.peak {
            self.peak = self.in_flight;
        }
    }

    /// There was something to send, and no room for it.
    pub fn hold_back(&mut self, now: Instant) {
        self.held = true;
        if self.stopped_at.is_none() {
            self.stopped_at = Some(now);
            self.stops += 1;
        }
    }

    /// Some of what was to be sent was lost: whether the device runs dry says nothing about the limit.
    pub const fn forget_hold(&mut self) {
        self.held = false;
    }

    /// The device is not done with so many bytes; with all others it is.
    pub fn complete(&mut self, in_flight: u64, now: Instant) {
        if in_flight >= self.in_flight {
            return;
        }
        if in_flight == 0 && self.held {
            if !self.is_excused() {
                self.rise();
            }
        } else {
            let done = self.in_flight - in_flight;
            self.in_time = (self.in_time + done).min(self.limit * SPARED * DROUGHTS);
            self.note_surplus(in_flight, now);
        }
        self.in_flight = in_flight;
        (self.left, self.peak, self.held) = (in_flight, in_flight, false);
        if self.available() > 0 {
            self.resume(now);
        }
    }

    /// The device had no room although the limit said so: no more than it holds now.
    pub fn shrink(&mut self) {
        self.limit = self.limit.min(self.in_flight).max(LEAST);
        self.smallest_surplus = None;
    }

    /// What the limit has come to.
    #[must_use]
    pub const fn stats(&self) -> DqlStats {
        let Self { limit, in_flight, stops, stopped, .. } = *self;
        DqlStats { limit, in_flight, stops, stopped }
    }

    /// What was missing, or what can be known of it: the device may have been dry for longer.
    const fn missing(&self) -> u64 {
        self.in_flight.saturating_sub(self.left)
    }

    /// Whether so little is missing once in a while that the limit is not to blame.
    const fn is_excused(&mut self) -> bool {
        let missed = self.missing().saturating_mul(SPARED);
        let excused = missed <= self.in_time;
        self.in_time = self.in_time.saturating_sub(missed);
        excused
    }

    fn rise(&mut self) {
        let missing = self.missing();
        self.limit = self.limit.saturating_add(missing).min(MOST);
        self.smallest_surplus = None;
    }

    fn note_surplus(&mut self, in_flight: u64, now: Instant) {
        let surplus = (self.limit + in_flight).saturating_sub(self.peak);
        if self.smallest_surplus.is_none() {
            self.surplus_since = now;
        }
        let smallest = self.smallest_surplus.map_or(surplus, |smallest| smallest.min(surplus));
        self.smallest_surplus = Some(smallest);
        if now - self.surplus_since >= HOLD {
            self.limit = self.limit.saturating_sub(smallest).max(LEAST);
            self.smallest_surplus = None;
        }
    }

    fn resume(&mut self, now: Instant) {
        if let Some(at) = self.stopped_at.take() {
            self.stopped += now - at;
        }
    }
}

impl Default for Dql {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A device that sends at a rate, in whole frames, and is looked at now and then.
    struct Device {
        bytes_per_ms: u64,
        frame: u64,
        queue: u64,
        /// Bytes of the front frame that are out already.
        partly: u64,
        dry: u64,
    }

    impl Device {
        fn new(mbit: u64, frame: u64) -> Self {
            Self { bytes_per_ms: mbit * 125, frame, queue: 0, partly: 0, dry: 0 }
        }

        fn run(&mut self, micros: u64) {
            self.partly += self.bytes_per_ms * micros / 1000;
            let done = (self.partly / self.frame * self.frame).min(self.queue);
            self.queue -= done;
            self.partly -= done;
            if self.queue == 0 {
                self.dry += self.partly;
                self.partly = 0;
            }
        }
    }

    /// There is always something to send; returns the limit and the mean in flight after `seconds`.
    fn settle(device: &mut Device, gaps: &[u64], seconds: i64) -> (u64, u64) {
        let mut dql = Dql::new();
        let mut now = Instant::from_nanos(1);
        let (mut sum, mut count) = (0, 0);
        for &gap in gaps.iter().cycle() {
            while dql.available() > 0 {
                dql.sent(device.frame);
                device.queue += device.frame;
            }
            dql.hold_back(now);
            device.run(gap);
            now += Span::from_micros(gap.try_into().expect("short"));
            dql.complete(device.queue, now);
            if now > Instant::ZERO + Span::from_secs(seconds - 1) {
                sum += dql.in_flight();
                count += 1;
            }
            if now > Instant::ZERO + Span::from_secs(seconds) {
                break;
            }
        }
        (dql.limit(), sum / count)
    }

    #[test]
    fn it_settles_at_what_the_device_sends_between_two_looks() {
        for (mbit, gap) in [(1000, 100), (1000, 200), (100, 100), (10_000, 100)] {
            let mut device = Device::new(mbit, 1514);
            let (limit, _) = settle(&mut device, &[gap], 30);
            let needed = mbit * 125 * gap / 1000;
            assert!(limit >= needed, "{limit} of {needed} at {mbit} Mbit/s");
            assert!(limit <= 3 * needed + 2 * 1514, "{limit} of {needed} at {mbit} Mbit/s");
        }
    }

    #[test]
    fn whole_superpackets_need_a_higher_limit_than_their_segments() {
        let (whole, segment) = (64_000, 1514);
        let [(high, _), (low, _)] =
            [whole, segment].map(|frame| settle(&mut Device::new(1000, frame), &[100], 30));
        assert!(high * 2 >= low * 5, "{high} and {low}");
    }

    #[test]
    fn the_device_is_kept_busy_once_the_limit_has_settled() {
        let mut device = Device::new(1000, 1514);
        let gaps = [100, 90, 130, 100, 250, 80];
        settle(&mut device, &gaps, 20);
        let sent = device.bytes_per_ms * 20_000;
        assert!(device.dry * 100 < sent, "{} of {sent} bytes missed", device.dry);
    }

    #[test]
    fn a_millisecond_without_a_processor_now_and_then_is_ridden_out_by_no_limit() {
        let with_one_in = |looks: usize| {
            let mut gaps = vec![100; looks];
            gaps.push(1000);
            settle(&mut Device::new(1000, 1514), &gaps, 30).0
        };
        let (never, _) = settle(&mut Device::new(1000, 1514), &[100], 30);
        let (rarely, often) = (with_one_in(4000), with_one_in(40));
        assert!(rarely <= never + 2 * 1514, "{rarely} and {never}");
        assert!(often > 100_000, "{often}");
    }

    #[test]
    fn a_limit_that_is_too_high_falls() {
        let mut dql = Dql { limit: 1 << 20, ..Dql::new() };
        let mut now = Instant::ZERO;
        for _ in 0..50_000 {
            dql.sent(dql.available());
            dql.hold_back(now);
            now += Span::from_micros(100);
            dql.complete(dql.in_flight().saturating_sub(12_500), now);
        }
        assert!(dql.limit() < 40_000, "{}", dql.limit());
    }

    #[test]
    fn what_was_not_made_use_of_for_a_second_is_surplus_and_comes_back_by_doubling() {
        let mut dql = Dql::new();
        let mut now = Instant::ZERO;
        for millis in 0..1500 {
            now = Instant::ZERO + Span::from_millis(millis);
            dql.sent(if millis % 500 == 0 { 9000 } else { 66 });
            dql.complete(0, now);
        }
        assert_eq!(dql.limit(), 9000, "the most that there was at once");
        let mut looks = 0;
        while dql.limit() < 1 << 20 {
            dql.sent(dql.available());
            dql.hold_back(now);
            dql.complete(0, now);
            looks += 1;
        }
        assert!(looks < 20, "{looks}");
    }

    #[test]
    fn time_stopped_is_counted_from_the_first_refusal_to_the_first_room() {
        let mut dql = Dql::new();
        dql.sent(dql.limit());
        dql.hold_back(Instant::from_nanos(10));
        dql.hold_back(Instant::from_nanos(20));
        dql.complete(1, Instant::from_nanos(110));
        let DqlStats { stops, stopped, in_flight, .. } = dql.stats();
        assert_eq!((stops, stopped, in_flight), (1, Span::from_nanos(100), 1));
    }

    #[test]
    fn a_device_without_room_lowers_the_limit_to_what_it_holds() {
        let mut dql = Dql::new();
        dql.sent(9000);
        dql.shrink();
        assert_eq!((dql.limit(), dql.available()), (9000, 0));
        dql.complete(0, Instant::ZERO);
        dql.shrink();
        assert_eq!(dql.limit(), LEAST, "never to nothing");
    }

    proptest! {
        #[test]
        fn the_limit_stays_within_its_bounds(
            steps in prop::collection::vec((0..4_u8, any::<u64>(), any::<i64>()), 0..200),
        ) {
            let mut dql = Dql::new();
            for (what, bytes, at) in steps {
                let now = Instant::from_nanos(at);
                match what {
                    0 => dql.sent(bytes),
                    1 => dql.hold_back(now),
                    2 => dql.complete(bytes, now),
                    _ => dql.shrink(),
                }
                prop_assert!((LEAST..=MOST).contains(&dql.limit()));
            }
        }
    }
}
