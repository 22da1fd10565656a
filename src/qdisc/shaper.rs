//! The shaper: virtual clocks, no bucket, no burst.
//!
//! Problem: keep a rate exactly, without a knob that trades burst against accuracy.
//! Source: spec §6.1 (rate arithmetic), §6.2 (charging), §6.5 (gate and failsafe), §6.6 (idle).
//! Law: a clock is the earliest time at which the next packet may start; a packet moves it on by the
//! time its bytes take. Idle time earns no credit.
//! Deliberately different from Linux: a shaper that is called late catches up on at most
//! [`CATCH_UP`] of its rate, since a process can be held up far longer than a kernel's soft interrupt.
//! Left out: which tin is served (`qdisc::mod`), what a packet's length on the wire is (`overhead`).

use super::{Wake, Why};
use crate::time::{Instant, Span};
use crate::units::{Rate, WireLen};

/// Most time a late shaper makes up for. 25 ms is far above the lateness of a timer on a loaded machine
/// (single milliseconds) and, as a burst, half of what a 50 ms line has in flight anyway.
pub const CATCH_UP: Span = Span::from_millis(25);

/// Rates below this are shaped as this (spec §6.1).
const SLOWEST: Rate = Rate::from_bytes(64);

/// Time per byte, as a scaled integer (spec §6.1).
///
/// ```
/// use ucake::qdisc::ByteTime;
/// use ucake::time::Span;
/// use ucake::units::{Rate, WireLen};
/// let rate = ByteTime::new(Some(Rate::from_bits(20_000_000)));
/// assert_eq!(rate.duration(WireLen(1538)), Span::from_nanos(615_200));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteTime {
    rate_ns: u64,
    shift: u8,
}

impl ByteTime {
    /// No time at all.
    pub const UNLIMITED: Self = Self { rate_ns: 0, shift: 0 };

    /// Time per byte at `rate`; [`Self::UNLIMITED`] for `None`.
    #[must_use]
    pub fn new(rate: Option<Rate>) -> Self {
        let Some(rate) = rate else { return Self::UNLIMITED };
        let mut rate_ns = (1_000_000_000_u64 << 34) / rate.max(SLOWEST).bytes();
        let mut shift = 34;
        while rate_ns >> 34 != 0 {
            rate_ns >>= 1;
            shift -= 1;
        }
        // Above 2^34 bytes per nanosecond nothing would be left, and no time at all means no limit.
        Self { rate_ns: rate_ns.max(1), shift }
    }

    /// Time that `len` takes.
    #[must_use]
    pub fn duration(self, len: WireLen) -> Span {
        // `rate_ns` < 2^34; lengths stay below 2^29, and where they do not the product is cut, not wrapped.
        let nanos = u64::from(len.0).saturating_mul(self.rate_ns) >> self.shift;
        Span::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX))
    }

    /// Whether bytes take no time.
    #[must_use]
    pub fn is_unlimited(self) -> bool {
        self.rate_ns == 0
    }

    #[cfg(test)]
    fn parts(self) -> (u64, u8) {
        (self.rate_ns, self.shift)
    }
}

/// What a charged packet became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It left.
    Delivered,
    /// It crossed the bottleneck before it was dropped here (ingress mode only).
    Dropped,
}

/// The clocks of a whole instance: the shaper's own and the failsafe.
#[derive(Clone, Debug, Default)]
pub struct Shaper {
    rate: ByteTime,
    next_at: Instant,
    failsafe_at: Instant,
    catch_up_capped: u64,
    given_up: Span,
}

impl Shaper {
    /// A shaper at `rate`, with both clocks at the origin.
    #[must_use]
    pub fn new(rate: Option<Rate>) -> Self {
        Self { rate: ByteTime::new(rate), ..Self::default() }
    }

    /// Shapes to `rate` from the next charge on; pending time stands (spec §6.7).
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        self.rate = ByteTime::new(rate);
    }

    /// Whether there is a rate to hold.
    #[must_use]
    pub fn is_shaped(&self) -> bool {
        !self.rate.is_unlimited()
    }

    /// Brings clocks that idle time left behind to `now` (spec §1.1 step 4); to be called when a packet
    /// arrives and none is queued. Returns whether both clocks are still ahead, which is an overlimit.
    pub fn wake(&mut self, now: Instant) -> bool {
        if self.next_at < now {
            self.next_at = now;
            self.failsafe_at = now;
            return false;
        }
        self.next_at > now && self.failsafe_at > now
    }

    /// The gate (spec §6.5): `None` if a packet may leave at `now`, otherwise when one may.
    pub fn gate(&mut self, now: Instant) -> Option<Wake> {
        self.cap_catch_up(now);
        if self.next_at <= now || self.failsafe_at <= now {
            return None;
        }
        Some(if self.failsafe_at < self.next_at {
            Wake { at: self.failsafe_at, why: Why::Failsafe }
        } else {
            Wake { at: self.next_at, why: Why::Shaper }
        })
    }

    /// Charges a packet (spec §6.2). Free while unlimited.
    pub fn charge(&mut self, len: WireLen, fate: Fate) {
        let duration = self.rate.duration(len);
        self.next_at += duration;
        if fate == Fate::Delivered {
            self.failsafe_at += duration + Span::from_nanos(duration.nanos() >> 1);
        }
    }

    /// How often catching up was cut short.
    #[must_use]
    pub fn catch_up_capped(&self) -> u64 {
        self.catch_up_capped
    }

    /// The time that was let go by so: at the rate, what might have been sent in it is what is missing.
    #[must_use]
    pub fn given_up(&self) -> Span {
        self.given_up
    }

    fn cap_catch_up(&mut self, now: Instant) {
        if self.is_shaped() && now - self.next_at > CATCH_UP {
            let earliest = now - CATCH_UP;
            self.given_up += earliest - self.next_at;
            self.next_at = earliest;
            self.failsafe_at = self.failsafe_at.max(self.next_at);
            self.catch_up_capped += 1;
        }
    }
}

/// The clock of one tin: behind `now` while the tin is within its threshold.
#[derive(Clone, Debug, Default)]
pub struct TinClock {
    rate: ByteTime,
    next_at: Instant,
}

impl TinClock {
    /// Counts at `rate` from the next charge on.
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        self.rate = ByteTime::new(rate);
    }

    /// Brings a clock that idle time left behind to `now`.
    pub fn wake(&mut self, now: Instant) {
        self.next_at = self.next_at.max(now);
    }

    /// How far the clock is ahead of `now`; zero or negative means on schedule.
    #[must_use]
    pub fn ahead(&self, now: Instant) -> Span {
        self.next_at - now
    }

    /// Charges a packet: at most one packet ahead of `now`, any time behind (spec §6.2). If it leaves in one
    /// go with those `before` it, they are charged as one packet of all their bytes would be.
    pub fn charge(&mut self, len: WireLen, before: WireLen, now: Instant) {
        let now = now + self.rate.duration(before);
        let duration = self.rate.duration(len);
        if self.next_at < now {
            self.next_at += duration;
        } else if self.next_at < now + duration {
            self.next_at = now + duration;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: i64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn time_per_byte_is_that_of_the_specification() {
        // Spec §6.1: bytes per second, rate_ns, shift, nanoseconds for 1538 bytes.
        let vectors = [
            (125, 16_384_000_000, 11, 12_304_000_000),
            (16_000, 16_384_000_000, 18, 96_125_000),
            (125_000, 16_777_216_000, 21, 12_304_000),
            (1_250_000, 13_421_772_800, 24, 1_230_400),
            (2_500_000, 13_421_772_800, 25, 615_200),
            (12_500_000, 10_737_418_240, 27, 123_040),
            (125_000_000, 8_589_934_592, 30, 12_304),
            (1_250_000_000, 13_743_895_347, 34, 1_230),
        ];
        for (bytes, rate_ns, shift, nanos) in vectors {
            let rate = ByteTime::new(Some(Rate::from_bytes(bytes)));
            assert_eq!(rate.parts(), (rate_ns, shift), "{bytes} bytes/s");
            assert_eq!(rate.duration(WireLen(1538)), Span::from_nanos(nanos), "{bytes} bytes/s");
        }
    }

    #[test]
    fn rates_below_64_bytes_per_second_are_shaped_as_64() {
        let slowest = ByteTime::new(Some(Rate::from_bytes(64)));
        assert_eq!(ByteTime::new(Some(Rate::from_bytes(1))), slowest);
    }

    #[test]
    fn no_rate_is_so_fast_that_it_is_none() {
        let fastest = ByteTime::new(Some(Rate::from_bytes(u64::MAX)));
        assert!(!fastest.is_unlimited());
        assert_eq!(fastest.duration(WireLen(1514)), Span::ZERO);
    }

    #[test]
    fn neither_the_slowest_rate_nor_the_largest_packet_overflows() {
        let slowest = ByteTime::new(Some(Rate::from_bytes(1)));
        assert!(slowest.duration(WireLen(u32::MAX)) > Span::ZERO);
        let fast = ByteTime::new(Some(Rate::from_bits(100_000_000_000)));
        assert_eq!(fast.duration(WireLen(1538)).nanos(), 123);
    }

    #[test]
    fn idle_time_earns_no_credit() {
        let mut shaper = Shaper::new(Some(Rate::from_bytes(1_000_000)));
        let now = at(10_000_000_000);
        assert!(!shaper.wake(now));
        assert_eq!(shaper.gate(now), None);
        shaper.charge(WireLen(1000), Fate::Delivered);
        let wake = shaper.gate(now).expect("the second packet waits");
        assert_eq!(wake, Wake { at: now + Span::from_millis(1), why: Why::Shaper });
    }

    #[test]
    fn a_clock_that_is_ahead_is_not_pulled_back_by_an_empty_queue() {
        let mut shaper = Shaper::new(Some(Rate::from_bytes(1_000_000)));
        let now = at(1_000_000_000);
        shaper.wake(now);
        shaper.charge(WireLen(1000), Fate::Delivered);
        assert!(shaper.wake(now + Span::from_nanos(1)), "an overlimit is reported");
        assert!(shaper.gate(now + Span::from_micros(999)).is_some());
        assert!(shaper.gate(now + Span::from_millis(1)).is_none());
    }

    #[test]
    fn drops_do_not_move_the_failsafe() {
        let mut shaper = Shaper::new(Some(Rate::from_bytes(1_000_000)));
        let now = at(1_000_000_000);
        shaper.wake(now);
        shaper.charge(WireLen(1000), Fate::Delivered);
        for _ in 0..10 {
            shaper.charge(WireLen(1000), Fate::Dropped);
        }
        let wake = shaper.gate(now).expect("closed");
        assert_eq!(wake, Wake { at: now + Span::from_micros(1500), why: Why::Failsafe });
    }

    #[test]
    fn a_late_shaper_makes_up_for_25_milliseconds_at_most() {
        let mut shaper = Shaper::new(Some(Rate::from_bytes(1_000_000)));
        shaper.wake(at(1_000_000_000));
        let late = at(3_000_000_000);
        let mut sent = 0;
        while shaper.gate(late).is_none() {
            shaper.charge(WireLen(1000), Fate::Delivered);
            sent += 1;
        }
        assert_eq!(sent, 26, "25 ms at one packet per millisecond, and the one that is due");
        assert_eq!(shaper.catch_up_capped(), 1);
        assert_eq!(shaper.given_up(), Span::from_millis(2000 - 25));
    }

    #[test]
    fn a_tin_clock_lags_without_bound_but_leads_by_one_packet() {
        let mut clock = TinClock::default();
        clock.set_rate(Some(Rate::from_bytes(1_000_000)));
        let now = at(5_000_000_000);
        clock.wake(now);
        clock.charge(WireLen(1000), WireLen::ZERO, now);
        clock.charge(WireLen(1000), WireLen::ZERO, now);
        assert_eq!(clock.ahead(now), Span::from_millis(1), "never two packets ahead");
        let later = now + Span::from_secs(1);
        clock.charge(WireLen(1000), WireLen::ZERO, later);
        assert_eq!(clock.ahead(later), Span::from_millis(-998), "a lag shrinks packet by packet");
    }

    #[test]
    fn packets_that_leave_in_one_go_are_charged_to_a_tin_as_one_of_their_size() {
        let now = at(5_000_000_000);
        for ahead in -4000..8000 {
            let mut together = TinClock::default();
            together.set_rate(Some(Rate::from_bytes(1_000_000)));
            together.next_at = now + Span::from_micros(ahead);
            let mut singly = together.clone();
            together.charge(WireLen(5000), WireLen::ZERO, now);
            for before in 0..5 {
                singly.charge(WireLen(1000), WireLen(before * 1000), now);
            }
            assert_eq!(singly.next_at, together.next_at, "{ahead} us ahead before");
        }
    }
}
