//! COBALT: CoDel and BLUE on every queue.
//!
//! Problem: a queue that stands longer than it must adds delay and nothing else; a sender that does not
//! listen must not take the queue over.
//! Source: spec §5 (CoDel: Nichols and Jacobson, RFC 8289; BLUE: Feng et al. 1999; joined in CAKE).
//! Law: CoDel signals ever faster, at intervals that shrink as 1/√count, while packets stay longer than
//! the target; BLUE drops with a probability that overflows raise and empty queues lower.
//! Deliberately different from Linux: the decay of `count` along its schedule is done at most
//! [`DECAY_STEPS`] at a time, so that one call stays short after hours of overload; the rest follows with
//! the next packets.
//! Left out: which packets are exempt (the caller never drops the last one of a queue).

use crate::time::{Instant, Span};

/// Added to the drop probability by an overflow: 1/256.
const BLUE_INCREMENT: u32 = 1 << 24;
/// Taken off it by an empty queue: 1/4096.
const BLUE_DECREMENT: u32 = 1 << 20;
/// Steps of decay in one call.
const DECAY_STEPS: u32 = 4096;

/// 1/√count as a fraction of 2^32, for counts 0…15 (spec §5.3).
const INVERSE_SQRT: [u32; 16] = [
    4_294_967_295,
    4_294_967_295,
    3_037_000_500,
    2_479_700_525,
    2_147_483_647,
    1_920_767_767,
    1_753_413_056,
    1_623_345_051,
    1_518_500_250,
    1_431_655_765,
    1_358_187_914,
    1_294_981_364,
    1_239_850_263,
    1_191_209_601,
    1_147_878_294,
    1_108_955_788,
];

/// What a tin tells its queues (spec §5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// Delay that is acceptable to stand.
    pub target: Span,
    /// Time a sender needs to react.
    pub interval: Span,
    /// Time one full-sized packet takes; zero if unlimited.
    pub mtu_time: Span,
}

/// What is to become of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Drop it (unless it is the last of its queue).
    pub drop: bool,
    /// It was CE-marked by this call.
    pub marked: bool,
    /// That it is to be dropped BLUE decided, not CoDel.
    pub by_blue: bool,
}

/// What BLUE turned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blue {
    /// As before.
    Unchanged,
    /// It began to drop: the flow is unresponsive.
    Rose,
    /// It is at rest again.
    Rested,
}

/// The state of one queue (spec §5.2). All zero at first, and kept when the queue changes hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cobalt {
    count: u32,
    inverse_sqrt: u32,
    drop_next: Instant,
    blue_timer: Instant,
    drop_probability: u32,
    dropping: bool,
}

impl Cobalt {
    /// Decides on the packet that is about to leave, in the order of spec §5.5.
    ///
    /// `bulk_flows` is the tin's number of bulk flows in ingress mode, 0 in egress mode. `mark` sets CE
    /// and says whether it could; `random` draws 32 uniform bits. Either is called at most once.
    #[inline(always)]
    pub fn should_drop(
        &mut self,
        params: &Params,
        enqueued_at: Instant,
        bulk_flows: u32,
        mark: impl FnOnce() -> bool,
        random: impl FnOnce() -> u32,
        now: Instant,
    ) -> Verdict {
        let over = is_over(params, now - enqueued_at, bulk_flows);
        // Both from before the schedule is touched below (trap A3): a packet that enters the drop state
        // is not yet due, and a queue that had rested past its time is judged by that in step 7.
        let mut behind = now - self.drop_next;
        let due = self.count != 0 && !behind.is_negative();
        self.enter_or_leave(params, over, now);

        let mut verdict = Verdict::default();
        let mut decay_unfinished = false;
        if due && self.dropping {
            verdict.marked = mark();
            verdict.drop = !verdict.marked;
            self.step_up(params);
            behind = now - self.drop_next;
        } else if due {
            decay_unfinished = self.decay(params, now);
            behind = now - self.drop_next;
        }
        if self.drop_probability != 0 && !verdict.drop && random() < self.drop_probability {
            (verdict.drop, verdict.by_blue) = (true, true);
        }
        // A queue at rest times its rest. A schedule that is behind starts afresh, but not while it is
        // catching up on drops (trap A2).
        if self.count == 0 {
            self.drop_next = now + params.interval;
        } else if behind > Span::ZERO && !verdict.drop && !decay_unfinished {
            self.drop_next = now;
        }
        verdict
    }

    /// The memory limit took a packet from this queue (spec §5.4).
    pub fn queue_full(&mut self, params: &Params, now: Instant) -> Blue {
        let mut blue = Blue::Unchanged;
        if now - self.blue_timer > params.target {
            if self.drop_probability == 0 {
                blue = Blue::Rose;
            }
            self.drop_probability = self.drop_probability.saturating_add(BLUE_INCREMENT);
            self.blue_timer = now;
        }
        self.dropping = true;
        self.drop_next = now;
        self.count = self.count.max(1);
        blue
    }

    /// The scheduler found this queue empty (spec §5.4).
    pub fn queue_empty(&mut self, params: &Params, now: Instant) -> Blue {
        let mut blue = Blue::Unchanged;
        if self.drop_probability != 0 && now - self.blue_timer > params.target {
            self.drop_probability = self.drop_probability.saturating_sub(BLUE_DECREMENT);
            self.blue_timer = now;
            if self.drop_probability == 0 {
                blue = Blue::Rested;
            }
        }
        self.dropping = false;
        if self.count != 0 && now >= self.drop_next {
            self.step_down(params);
        }
        blue
    }

    /// Whether nothing is left to forget: an empty queue may then be given away (spec §1.2 step 6).
    #[must_use]
    pub fn is_at_rest(&self, now: Instant) -> bool {
        self.drop_probability == 0 && self.count == 0 && now >= self.drop_next
    }

    /// As if overflows had brought BLUE there.
    #[cfg(test)]
    pub fn drop_with_probability(&mut self, probability: u32) {
        self.drop_probability = probability;
    }

    fn enter_or_leave(&mut self, params: &Params, over: bool, now: Instant) {
        if over {
            if !self.dropping {
                self.dropping = true;
                self.drop_next = self.after(params, now);
            }
            self.count = self.count.max(1);
        } else {
            self.dropping = false;
        }
    }

    fn step_up(&mut self, params: &Params) {
        self.count = self.count.saturating_add(1);
        self.update_inverse_sqrt();
        self.drop_next = self.after(params, self.drop_next);
    }

    fn step_down(&mut self, params: &Params) {
        self.count -= 1;
        self.update_inverse_sqrt();
        self.drop_next = self.after(params, self.drop_next);
    }

    /// Lets `count` fall to where its schedule has got to; returns whether there is more to do.
    fn decay(&mut self, params: &Params, now: Instant) -> bool {
        for _ in 0..DECAY_STEPS {
            if self.count == 0 || now < self.drop_next {
                return false;
            }
            self.step_down(params);
        }
        true
    }

    /// The control law (spec §5.3): `interval`/√count after `t`, with the interval cut to 32 bits of
    /// nanoseconds as Linux does.
    fn after(&self, params: &Params, t: Instant) -> Instant {
        let interval = params.interval.nanos_or_zero() & u64::from(u32::MAX);
        let step = (interval * u64::from(self.inverse_sqrt)) >> 32;
        t + Span::from_nanos(i64::try_from(step).unwrap_or(i64::MAX))
    }

    fn update_inverse_sqrt(&mut self) {
        self.inverse_sqrt = match INVERSE_SQRT.get(self.count as usize) {
            Some(&exact) => exact,
            None => newton_step(self.inverse_sqrt, self.count),
        };
    }
}

/// The state as `tc -s class show` reports it (spec §11.3).
impl Cobalt {
    /// Signals given on the present schedule.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the queue is in the drop state.
    #[must_use]
    pub fn is_dropping(&self) -> bool {
        self.dropping
    }

    /// When the next signal is due.
    #[must_use]
    pub fn drop_next(&self) -> Instant {
        self.drop_next
    }

    /// BLUE's drop probability as a fraction of 2^32.
    #[must_use]
    pub fn drop_probability(&self) -> u32 {
        self.drop_probability
    }

    /// When BLUE moved last.
    #[must_use]
    pub fn blue_timer(&self) -> Instant {
        self.blue_timer
    }
}

/// Whether a packet stayed too long: longer than the target, and than a few full packets take.
fn is_over(params: &Params, sojourn: Span, bulk_flows: u32) -> bool {
    sojourn > params.target
        && sojourn > params.mtu_time * 2 * i64::from(bulk_flows)
        && sojourn > params.mtu_time * 4
}

/// One step of Newton's method from the value before (spec §5.3): lags a little, as in Linux.
fn newton_step(inverse_sqrt: u32, count: u32) -> u32 {
    let inverse = u64::from(inverse_sqrt);
    let square = (inverse * inverse) >> 32;
    let value = (3_u64 << 32).wrapping_sub(u64::from(count).wrapping_mul(square)) >> 2;
    // The kernel stores the low 32 bits; for values on the schedule nothing is lost.
    ((value.wrapping_mul(inverse) >> 31) & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn params() -> Params {
        Params {
            target: Span::from_millis(5),
            interval: Span::from_millis(100),
            mtu_time: Span::ZERO,
        }
    }

    /// Far from the origin, as a machine that has been up for a while.
    fn ms(t: i64) -> Instant {
        Instant::from_nanos(1_000_000 * MS + t * MS)
    }

    /// Offers one packet at `t` ms that has waited `sojourn` ms; `Some` if it was signalled.
    fn offer(queue: &mut Cobalt, t: i64, sojourn: i64, ect: bool) -> Option<Verdict> {
        let waited = Span::from_millis(sojourn);
        let verdict = queue.should_drop(&params(), ms(t) - waited, 0, || ect, || u32::MAX, ms(t));
        (verdict.drop || verdict.marked).then_some(verdict)
    }

    fn rested() -> Cobalt {
        Cobalt { inverse_sqrt: u32::MAX, drop_next: ms(0), ..Cobalt::default() }
    }

    #[test]
    fn inverse_square_roots_go_up_by_one_newton_step_each() {
        let mut queue = Cobalt { count: 15, inverse_sqrt: INVERSE_SQRT[15], ..Cobalt::default() };
        let expected = [
            1_071_990_595,
            1_040_347_021,
            1_011_159_980,
            984_308_765,
            959_482_442,
            936_440_562,
            914_979_438,
            894_926_556,
            876_134_612,
        ];
        for value in expected {
            queue.count += 1;
            queue.update_inverse_sqrt();
            assert_eq!(queue.inverse_sqrt, value, "count {}", queue.count);
        }
    }

    #[test]
    fn the_control_law_gives_the_intervals_of_the_specification() {
        for (count, nanos) in [
            (1, 99_999_999),
            (2, 70_710_678),
            (3, 57_735_026),
            (4, 49_999_999),
            (10, 31_622_776),
            (15, 25_819_888),
        ] {
            let mut queue = Cobalt { count, ..Cobalt::default() };
            queue.update_inverse_sqrt();
            assert_eq!(queue.after(&params(), Instant::ZERO), Instant::from_nanos(nanos));
        }
    }

    #[test]
    fn an_interval_above_32_bits_of_nanoseconds_wraps_in_the_control_law_only() {
        let params = Params { interval: Span::from_secs(1000), ..params() };
        let mut queue = rested();
        assert_eq!(queue.after(&params, Instant::ZERO).nanos(), 3_567_587_327);
        queue.should_drop(&params, ms(0), 0, || false, || u32::MAX, ms(0));
        assert_eq!(queue.drop_next, ms(0) + Span::from_secs(1000));
    }

    #[test]
    fn a_rested_queue_signals_after_one_interval_then_ever_faster() {
        let mut queue = rested();
        let signals: Vec<i64> =
            (0..480).filter(|&t| offer(&mut queue, t, 20, false).is_some()).collect();
        assert_eq!(signals, [100, 171, 229, 279, 324, 364, 402, 438, 471]);
    }

    #[test]
    fn a_queue_never_used_signals_the_second_packet_over_target() {
        let mut queue = Cobalt::default();
        assert!(offer(&mut queue, 0, 0, false).is_none());
        let mut signals = Vec::new();
        let mut counts = Vec::new();
        for t in 1..=500 {
            if offer(&mut queue, t, 20, false).is_some() {
                signals.push(t);
                counts.push(queue.count);
            }
        }
        assert_eq!(signals, [2, 72, 130, 180, 225, 265, 303, 339, 372, 404, 434, 463, 490]);
        assert_eq!(counts, (2..=14).collect::<Vec<u32>>());
    }

    #[test]
    fn count_decays_along_its_schedule_once_packets_are_under_target() {
        let mut queue = Cobalt::default();
        offer(&mut queue, 0, 0, false);
        for t in 1..=500 {
            offer(&mut queue, t, 20, false);
        }
        let mut falls = Vec::new();
        for t in 501..1200 {
            let before = queue.count;
            offer(&mut queue, t, 0, false);
            if queue.count != before {
                falls.push((queue.count, t - 501));
            }
        }
        let expected = [
            (13, 16),
            (12, 44),
            (11, 73),
            (10, 103),
            (9, 134),
            (8, 168),
            (7, 203),
            (6, 241),
            (5, 282),
            (4, 326),
            (3, 376),
            (2, 434),
            (1, 505),
            (0, 605),
        ];
        assert_eq!(falls, expected);
    }

    #[test]
    fn drops_may_catch_up_but_marks_may_not() {
        let run = |ect: bool| {
            let mut queue = Cobalt::default();
            for i in 0..20 {
                offer(&mut queue, i * 60, 20, ect);
            }
            (0..60).map(|i| offer(&mut queue, 1141 + i, 20, ect).is_some()).collect::<Vec<_>>()
        };
        let dropped = run(false);
        assert!(dropped[..30].iter().all(|&signal| signal), "thirty in a row");
        assert_eq!(dropped.iter().filter(|&&signal| signal).count(), 32);
        assert_eq!(run(true).iter().filter(|&&signal| signal).count(), 3);
    }

    #[test]
    fn whether_a_signal_is_due_is_judged_by_the_schedule_before_this_packet() {
        // Signals up to a count of 4, then calm: the drop state is left, the count is kept.
        let calm_from = |t| {
            let mut queue = Cobalt::default();
            offer(&mut queue, 0, 0, false);
            for t in 1..=180 {
                offer(&mut queue, t, 20, false);
            }
            assert_eq!(queue.count, 5);
            offer(&mut queue, t, 0, false);
            queue
        };
        // The next one would have been due at 225 ms. Back over target before that, it comes one step of
        // the count later; the step is taken from now.
        let mut early = calm_from(181);
        let signals: Vec<i64> =
            (190..300).filter(|&t| offer(&mut early, t, 20, false).is_some()).collect();
        assert_eq!(signals[0], 190 + 45);
        // Back after it has passed, the first packet is signalled, and the next signal is two steps off.
        let mut late = calm_from(181);
        let signals: Vec<i64> =
            (226..400).filter(|&t| offer(&mut late, t, 20, false).is_some()).collect();
        assert_eq!(signals[..2], [226, 226 + 45 + 41]);
    }

    #[test]
    fn delay_does_not_move_blue() {
        let mut queue = Cobalt::default();
        for t in 0..5_000 {
            offer(&mut queue, t, 1_000, false);
        }
        assert!(queue.count > 100);
        assert_eq!(queue.drop_probability, 0);
    }

    #[test]
    fn count_saturates() {
        let mut queue = Cobalt { count: u32::MAX, inverse_sqrt: 1 << 16, ..Cobalt::default() };
        queue.dropping = true;
        offer(&mut queue, 0, 20, false);
        assert_eq!(queue.count, u32::MAX);
    }

    #[test]
    fn blue_drops_even_what_could_be_marked() {
        let mut queue = Cobalt { drop_probability: u32::MAX, ..Cobalt::default() };
        let verdict = queue.should_drop(&params(), ms(0), 0, || true, || 0, ms(0));
        assert!(verdict.drop);
    }

    #[test]
    fn blue_moves_at_most_once_in_a_target_time() {
        let mut queue = Cobalt::default();
        assert_eq!(queue.queue_full(&params(), ms(0)), Blue::Rose);
        assert_eq!(queue.queue_full(&params(), ms(5)), Blue::Unchanged);
        assert_eq!(queue.drop_probability, BLUE_INCREMENT);
        assert_eq!(queue.queue_full(&params(), ms(6)), Blue::Unchanged);
        assert_eq!(queue.drop_probability, 2 * BLUE_INCREMENT);
        let mut t = 6;
        let mut falls = 0;
        while queue.drop_probability != 0 {
            t += 6;
            falls += 1;
            let blue = queue.queue_empty(&params(), ms(t));
            assert_eq!(blue == Blue::Rested, queue.drop_probability == 0);
        }
        assert_eq!(falls, 32);
    }

    #[test]
    fn the_sojourn_floor_grows_with_bulk_flows_and_slow_links() {
        let params = Params { mtu_time: Span::from_millis(12), ..params() };
        assert!(!is_over(&params, Span::from_millis(48), 0));
        assert!(is_over(&params, Span::from_millis(49), 0));
        assert!(!is_over(&params, Span::from_millis(1200), 50));
        assert!(is_over(&params, Span::from_millis(1201), 50));
    }

    #[test]
    fn a_count_from_hours_of_overload_is_forgotten_in_bounded_steps() {
        let mut queue = Cobalt { count: 100_000, inverse_sqrt: 1 << 20, ..Cobalt::default() };
        for _ in 0..30 {
            offer(&mut queue, 3_600_000, 0, false);
        }
        assert_eq!(queue.count, 0);
    }

    /// What happens to a queue in a trace.
    enum Event {
        /// A packet that has waited so many milliseconds is about to leave; whether it is ECN-capable.
        Leaves(i64, bool),
        Full,
        Empty,
    }

    /// Times in ms and what happens then: the story of a queue.
    fn story() -> Vec<(i64, Event)> {
        let standing = |from: i64, to: i64, step: usize, waited, ect| {
            (from..to).step_by(step).map(move |t| (t, Event::Leaves(waited, ect)))
        };
        let mut story = Vec::new();
        story.extend(standing(0, 10, 1, 1, false));
        story.extend(standing(10, 500, 1, 20, false)); // the queue stands
        story.extend(standing(500, 640, 1, 1, false)); // calm, not for long enough to forget
        story.extend(standing(640, 800, 1, 20, true)); // it stands again, with senders that take marks
        story.extend((800..830).step_by(4).map(|t| (t, Event::Full))); // memory runs out
        story.extend((830..900).step_by(10).map(|t| (t, Event::Empty)));
        story.extend(standing(900, 2100, 60, 20, false)); // few packets, each of them late
        story.extend(standing(2100, 2160, 1, 20, false)); // then many
        story.extend(standing(2160, 4000, 5, 1, false)); // calm for long
        story
    }

    #[test]
    fn the_trace_of_a_queues_story_is_the_one_that_is_kept() {
        use std::fmt::Write as _;
        let mut queue = Cobalt::default();
        let mut trace = "   ms  what    signal  count  next in us  blue\n".to_owned();
        let mut last = queue;
        for (t, event) in story() {
            let (what, signal) = match event {
                Event::Leaves(waited, ect) => {
                    let verdict = offer(&mut queue, t, waited, ect).unwrap_or_default();
                    let marked = if verdict.marked { "mark" } else { "-" };
                    ("leaves", if verdict.drop { "drop" } else { marked })
                }
                Event::Full => {
                    queue.queue_full(&params(), ms(t));
                    ("full", "-")
                }
                Event::Empty => {
                    queue.queue_empty(&params(), ms(t));
                    ("empty", "-")
                }
            };
            let changed = |of: fn(&Cobalt) -> u32| of(&queue) != of(&last);
            if signal != "-" || changed(Cobalt::count) || changed(Cobalt::drop_probability) {
                let next = (queue.drop_next - ms(t)).micros();
                let blue = queue.drop_probability;
                let _ = writeln!(
                    trace,
                    "{t:>5}  {what:<7} {signal:<6}  {:>5}  {next:>10}  {blue}",
                    queue.count
                );
            }
            last = queue;
        }
        // The core reads no files, not even in its tests: a changed trace is copied from the message.
        let kept = include_str!("../../tests/sim/golden/cobalt.txt");
        assert!(kept == trace, "the trace changed\nkept:\n{kept}\ngot:\n{trace}");
    }
}
