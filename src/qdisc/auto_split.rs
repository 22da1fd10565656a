//! Runs: how much of a superpacket may leave in one go (`auto-split-gso`).
//!
//! Problem: a segment written alone costs ten times what it costs within a superpacket, and a program that
//! wakes up late cannot pace as finely as the kernel does; but what leaves in one go stands in the next
//! queue, in front of everybody.
//! Source: design §3, which is ours; for near flows the way in which Linux's TCP sizes what it sends.
//! Law: once a segment of a train was sent, those behind it may follow at once while they fit the *budget*
//!
//! ```text
//! rate × (burst + lateness) + (64 KiB >> min_rtt / rtt_step)      at least one segment, at most a superpacket
//! ```
//!
//! in bytes on the wire, for those are what the rate is of. The second part is only for flows whose
//! round-trip time is known, and does not lift the whole above what the rate sends in [`NEAR_TIME`]: at
//! 20 Mbit/s, 64 KiB would be 26 ms of everybody else's delay. *Lateness* is a moving average of how long
//! after the time it had been given the caller asked again; it is small where nothing is amiss, and there is
//! no second mode to fall into. Without a rate the budget is a superpacket.
//!
//! What stays: a segment is judged, marked, dropped, charged and counted by itself, and rate and shares are
//! those of `split-gso`. The shaper's clock and the flow's deficit pay for a run as they pay for its
//! segments, the flow with its next turns. A tin's clock is charged as for one packet of a run's size,
//! for it forgives whoever is more than a packet ahead, and would forgive all but the first.
//!
//! Left out: runs of whole frames, even of one flow. Those that would gain least from it, bare ACKs, are
//! those that would do most harm in clumps; and what sends much sends superpackets.

use super::config::Config;
use super::flow::Begun;
use super::overflow::QueueId;
use super::shaper::CATCH_UP;
use super::{Cake, Departure, Dequeue, Observer, Served, WORK_BOUND, Wake, Why};
use crate::packet::Frame;
use crate::time::{Instant, Span};
use crate::units::{Rate, WireLen};

/// Bytes of the extra of the nearest flow: about as much as a superpacket holds.
const EXTRA: u64 = 64 << 10;
/// Bytes of the largest run: a superpacket of 64 KiB, each of its segments with headers and overhead of its
/// own. A few bytes less, and two segments of each superpacket would be left for another run.
pub const MOST: WireLen = WireLen(80 << 10);

/// What a near flow's extra may lift the budget to, as time of the rate. Others wait for it, and they need
/// not be near; a millisecond is what a game or a call does not notice.
pub const NEAR_TIME: Span = Span::from_millis(1);

/// Wake-ups that the average remembers: long enough for one late one not to count for much, short enough
/// to follow a machine that gets busy within some milliseconds.
const MEMORY: i64 = 16;

/// How near the ends of a flow are to each other: how often its extra is halved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near(u8);

impl Near {
    /// So far, or so unknown, that there is no extra.
    pub const UNKNOWN: Self = Self(u8::MAX);
    /// So near that the whole extra is its.
    #[cfg(test)]
    pub const NEAREST: Self = Self(0);

    /// Of a flow with this smallest round-trip time; [`Self::UNKNOWN`] if `step` is zero.
    pub fn new(min_rtt: Option<Span>, step: Span) -> Self {
        let min_rtt = min_rtt.filter(|span| !span.is_negative());
        let steps = min_rtt.and_then(|span| span.nanos().checked_div(step.nanos()));
        steps.map_or(Self::UNKNOWN, |steps| Self(u8::try_from(steps).unwrap_or(u8::MAX)))
    }

    /// Bytes.
    fn extra(self) -> u64 {
        EXTRA.checked_shr(self.0.into()).unwrap_or(0)
    }
}

/// The budget, and the run under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct AutoSplit {
    rate: Option<Rate>,
    burst: Span,
    lateness: Span,
    /// When the caller was told to ask again.
    told: Option<Instant>,
    run: Option<Run>,
    /// What the run had sent before, while more of it is being served.
    before: WireLen,
}

/// A train part of which has left.
#[derive(Clone, Copy, Debug)]
struct Run {
    queue: QueueId,
    node: u32,
    /// The instant at which it leaves.
    at: Instant,
    /// What it may send in all.
    budget: WireLen,
    /// What it has sent.
    sent: WireLen,
}

impl AutoSplit {
    /// Takes up a new configuration. A run under way ends; what is known of the caller stays.
    pub fn configure(&mut self, config: &Config) {
        self.rate = config.shaped_rate();
        self.burst = config.burst;
        self.told = None;
        self.run = None;
    }

    /// The caller is held up by something else: when it next asks says nothing about its lateness.
    pub fn held_up(&mut self) {
        self.told = None;
    }

    /// Bytes that have left in one go with what is being served just now.
    pub fn before(&self) -> WireLen {
        self.before
    }

    /// By how much wake-ups are late, as a moving average.
    pub fn lateness(&self) -> Span {
        self.lateness
    }

    /// Bytes on the wire that a flow may send in one go.
    pub fn budget(&self, near: Near) -> WireLen {
        let timed = self.within(if self.burst == Span::ZERO {
            Span::ZERO
        } else {
            self.burst + self.lateness
        });
        let lifted = timed.saturating_add(near.extra()).min(self.within(NEAR_TIME));
        let bytes = timed.max(lifted).min(MOST.0.into());
        WireLen(u32::try_from(bytes).unwrap_or(MOST.0))
    }

    /// Bytes that the rate sends in `span`.
    fn within(&self, span: Span) -> u64 {
        let nanos = span.nanos_or_zero();
        match self.rate {
            // Where this product is cut it is above all that matters.
            Some(rate) => rate.bytes().saturating_mul(nanos) / 1_000_000_000,
            None if nanos == 0 => 0,
            None => u64::MAX,
        }
    }

    /// The caller was told to ask again then.
    fn tell(&mut self, at: Instant) {
        self.told = Some(at);
    }

    /// The caller asks. If it is because of the time it was told, that was so late; asking before, because
    /// something arrived, says nothing of how it wakes up.
    fn asked(&mut self, now: Instant) {
        let Some(at) = self.told.filter(|&at| at <= now) else { return };
        self.told = None;
        // A process that was stopped altogether was not woken late.
        let late = (now - at).min(CATCH_UP);
        let step = (late - self.lateness).nanos() / MEMORY;
        self.lateness += Span::from_nanos(step);
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "a run's tin served it, and tins that were in use stay"
)]
impl<F: Frame, O: Observer<F>> Cake<F, O> {
    /// As [`Cake::schedule`], but that runs go on.
    #[inline(never)]
    pub(super) fn dequeue_in_runs(&mut self, now: Instant) -> Dequeue<F> {
        self.auto.asked(now);
        let mut steps = 0;
        if let Some(departure) = self.go_on(&mut steps, now) {
            return Dequeue::Send(departure);
        }
        let answer = self.schedule(steps, now);
        match &answer {
            Dequeue::Send(departure) => self.begin(departure, now),
            Dequeue::Wait(Wake { why: Why::WorkBound, .. }) | Dequeue::Idle => {}
            Dequeue::Wait(wake) => self.auto.tell(wake.at),
        }
        answer
    }

    /// Notes what else of a train may follow `first`, which has just left.
    fn begin(&mut self, first: &Departure<F>, now: Instant) {
        let (tin, slot) = first.queue;
        let packets = &self.tins[usize::from(tin)].flow(slot).packets;
        // Of a train at the head, what was taken last is what left.
        let Some(Begun { train, node }) = packets.begun(&self.packets) else { return };
        let (budget, sent) = (self.auto.budget(train.near()), first.wire_len);
        self.auto.run = Some(Run { queue: QueueId { tin, slot }, node, at: now, budget, sent });
    }

    /// The next segment of the run under way, if it may leave; otherwise there is no such run any more.
    #[inline(never)]
    fn go_on(&mut self, steps: &mut u32, now: Instant) -> Option<Departure<F>> {
        let run = self.auto.run.take()?;
        while *steps < WORK_BOUND && self.may_go_on(&run, now) {
            *steps += 1;
            self.auto.before = run.sent;
            // Back after one packet: what stands behind one that is dropped need not be of this train.
            let served = self.pull(run.queue, &mut (WORK_BOUND - 1), now);
            self.auto.before = WireLen::ZERO;
            if let Served::Departed(departure) = served {
                self.auto.run = Some(Run { sent: run.sent + departure.wire_len, ..run });
                return Some(departure);
            }
        }
        None
    }

    /// Whether the head of the queue is of the same train and fits what is left. Anything may have happened
    /// to it since: the memory limit drops from the head.
    fn may_go_on(&self, run: &Run, now: Instant) -> bool {
        let packets = &self.tins[usize::from(run.queue.tin)].flow(run.queue.slot).packets;
        let same = packets.begun(&self.packets).filter(|begun| begun.node == run.node);
        let fits = |begun: Begun<'_, F>| run.sent + begun.train.next_wire_len() <= run.budget;
        run.at == now && same.is_some_and(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Ecn, Meta};
    use crate::qdisc::{Change, Discipline, Entropy, SplitGso};
    use crate::sim::{BEGIN, SimFrame, flow};
    use crate::units::{FrameLen, MemSize};
    use proptest::prelude::*;

    const MICROSECOND: Span = Span::from_micros(1);

    fn mbit(rate: u64) -> Config {
        let bandwidth = Some(Rate::from_bits(rate * 1_000_000));
        Config { bandwidth, split_gso: SplitGso::Auto, ..Config::default() }
    }

    fn auto(config: &Config) -> AutoSplit {
        let mut auto = AutoSplit::default();
        auto.configure(config);
        auto
    }

    fn cake(config: Config) -> Cake<SimFrame> {
        Cake::new(config, FrameLen(1514), Entropy::from_seed(7))
    }

    fn enqueue(cake: &mut Cake<SimFrame>, meta: &Meta, now: Instant) {
        cake.enqueue(SimFrame::new(meta), meta, now);
    }

    /// Segments (and which of them are marked) that leave at `now`, and what comes then.
    fn drain(cake: &mut Cake<SimFrame>, now: Instant) -> (Vec<(u16, bool)>, Option<Wake>) {
        let mut left = Vec::new();
        loop {
            match cake.dequeue(now) {
                Dequeue::Send(departure) => {
                    left.push((departure.frame.segment, departure.frame.ce));
                }
                Dequeue::Wait(wake) => return (left, Some(wake)),
                Dequeue::Idle => return (left, None),
            }
        }
    }

    #[test]
    fn the_budget_is_what_the_rate_sends_within_the_burst_and_more_for_near_flows() {
        // Megabits per second; smallest round-trip time in microseconds; bytes.
        let vectors = [
            (20, None, 625),
            (20, Some(100), 2_500),
            (20, Some(100_000), 625),
            (100, None, 3_125),
            (100, Some(0), 12_500),
            (100, Some(511), 12_500),
            // Halved four times, eight times, seventeen times.
            (100, Some(4 * 512), 3_125 + 4_096),
            (100, Some(8 * 512), 3_125 + 256),
            (100, Some(17 * 512), 3_125),
            (1_000, None, 31_250),
            (1_000, Some(600), 31_250 + 32_768),
            (1_000, Some(100), 81_920),
            (1_000, Some(i64::MAX), 31_250),
            (1_000, Some(-1), 31_250),
            (10_000, None, 81_920),
            (u64::MAX / 1_000_000, Some(0), 81_920),
        ];
        for (rate, micros, bytes) in vectors {
            let config = mbit(rate);
            let near = Near::new(micros.map(Span::from_micros), config.rtt_step);
            assert_eq!(auto(&config).budget(near), WireLen(bytes), "{rate} Mbit/s, {micros:?} us");
        }
    }

    #[test]
    fn burst_0_and_step_0_take_their_part_away_each() {
        let late = |mut auto: AutoSplit| {
            auto.lateness = Span::from_micros(100);
            auto
        };
        let nearest = |config: &Config| Near::new(Some(Span::ZERO), config.rtt_step);
        let budget = |config: Config| late(auto(&config)).budget(nearest(&config)).0;
        let (burst, rtt_step) = (Span::ZERO, Span::ZERO);
        assert_eq!(budget(mbit(100)), 12_500);
        assert_eq!(budget(Config { rtt_step, ..mbit(100) }), 4_375, "350 us");
        assert_eq!(budget(Config { burst, ..mbit(100) }), 12_500, "what 1 ms allows of 64 KiB");
        assert_eq!(budget(Config { burst, rtt_step, ..mbit(100) }), 0);
        let unlimited = Config { bandwidth: None, ..mbit(1) };
        assert_eq!(budget(unlimited), MOST.0);
        assert_eq!(budget(Config { rtt_step, ..unlimited }), MOST.0);
        assert_eq!(budget(Config { burst, rtt_step, ..unlimited }), 0);
    }

    #[test]
    fn lateness_moves_the_budget_smoothly_both_ways() {
        let mut auto = auto(&mbit(200));
        let budget = |auto: &AutoSplit| auto.budget(Near::UNKNOWN).0;
        let mut wake = |late: Span| {
            auto.tell(BEGIN);
            auto.asked(BEGIN + late);
            (auto.lateness(), budget(&auto))
        };
        assert_eq!(wake(Span::ZERO), (Span::ZERO, 6_250));
        let mut last = 6_250;
        for _ in 0..200 {
            let (_, now) = wake(Span::from_micros(400));
            // A sixteenth of 400 us are 25 us: 625 bytes.
            assert!((last..=last + 625).contains(&now), "{now} after {last}");
            last = now;
        }
        assert!((16_245..=16_250).contains(&last), "{last}: 650 us");
        for _ in 0..200 {
            let (_, now) = wake(Span::ZERO);
            assert!((last - 625..=last).contains(&now), "{now} after {last}");
            last = now;
        }
        assert_eq!(last, 6_250);
    }

    #[test]
    fn asking_early_is_no_sample_and_a_process_that_stood_still_counts_for_25_ms() {
        let mut auto = auto(&mbit(20));
        auto.tell(BEGIN + MICROSECOND * 100);
        auto.asked(BEGIN);
        assert!(auto.told.is_some(), "an arrival; the time has not come");
        auto.asked(BEGIN + MICROSECOND * 116);
        assert_eq!(auto.lateness(), MICROSECOND);
        auto.asked(BEGIN + Span::from_secs(1));
        assert_eq!(auto.lateness(), MICROSECOND, "once for each time");
        auto.tell(BEGIN);
        auto.asked(BEGIN + Span::from_secs(3600));
        assert!(auto.lateness() < Span::from_micros(1_600), "{:?}", auto.lateness());
    }

    #[test]
    fn on_time_a_discipline_measures_no_lateness_and_half_a_millisecond_is_seen() {
        for late in [Span::ZERO, MICROSECOND * 500] {
            let mut cake = cake(mbit(20));
            let mut now = BEGIN;
            for _ in 0..20 {
                enqueue(&mut cake, &flow(1).superpacket(40, 1448), now);
            }
            while let (_, Some(wake)) = drain(&mut cake, now) {
                now = wake.at + late;
            }
            let lateness = cake.stats().lateness;
            assert!((late - MICROSECOND..=late).contains(&lateness), "{lateness:?} of {late:?}");
        }
    }

    #[test]
    fn segments_of_a_train_leave_together_within_the_budget_and_then_the_rate_is_waited_for() {
        let mut cake = cake(mbit(1_000));
        enqueue(&mut cake, &flow(1).superpacket(45, 1448), BEGIN);
        let (left, wake) = drain(&mut cake, BEGIN);
        assert_eq!(left.len(), 20, "30280 of 31250 bytes");
        let at = BEGIN + Span::from_nanos(20 * 12_112);
        assert_eq!(wake.map(|wake| wake.at), Some(at), "when the last of them would have ended");
        let (left, _) = drain(&mut cake, at);
        assert_eq!((left[0].0, left.len()), (20, 20));
        let stats = cake.stats();
        assert_eq!((stats.runs, stats.largest_burst), (2, FrameLen(20 * 1514)));
        assert_eq!(stats.mean_run(), 20.0);
    }

    #[test]
    fn a_near_flow_sends_more_in_one_go_than_a_far_one() {
        for (rtt, expected) in [(None, 2), (Some(2_048), 4), (Some(100), 8), (Some(50_000), 2)] {
            let mut cake = cake(mbit(100));
            let min_rtt = rtt.map(Span::from_micros);
            let meta = Meta { min_rtt, ..flow(1).superpacket(45, 1448) };
            enqueue(&mut cake, &meta, BEGIN);
            assert_eq!(drain(&mut cake, BEGIN).0.len(), expected, "{rtt:?}");
        }
    }

    #[test]
    fn in_split_gso_a_segment_leaves_at_a_time_whatever_is_known() {
        let mut cake = cake(Config { split_gso: SplitGso::Split, ..mbit(1_000) });
        let meta = Meta { min_rtt: Some(Span::ZERO), ..flow(1).superpacket(45, 1448) };
        enqueue(&mut cake, &meta, BEGIN);
        assert_eq!(drain(&mut cake, BEGIN).0.len(), 1);
        let stats = cake.stats();
        assert_eq!((stats.runs, stats.largest_burst), (1, FrameLen(1514)));
    }

    #[test]
    fn whole_frames_and_undivided_superpackets_are_no_runs() {
        let mut cake = cake(mbit(1_000));
        for _ in 0..10 {
            enqueue(&mut cake, &flow(1).with_len(FrameLen(66)), BEGIN);
        }
        assert_eq!(drain(&mut cake, BEGIN).0.len(), 1);
    }

    #[test]
    fn a_run_does_not_go_beyond_its_train() {
        let mut cake = cake(mbit(1_000));
        for _ in 0..3 {
            enqueue(&mut cake, &flow(1).superpacket(5, 1448), BEGIN);
        }
        assert_eq!(drain(&mut cake, BEGIN).0.len(), 5);
    }

    #[test]
    fn another_flow_waits_for_a_run_and_not_for_the_train() {
        let mut cake = cake(mbit(1_000));
        enqueue(&mut cake, &flow(1).superpacket(45, 1448), BEGIN);
        let (first, wake) = drain(&mut cake, BEGIN);
        enqueue(&mut cake, &flow(2).with_len(FrameLen(100)), BEGIN);
        let Dequeue::Send(next) = cake.dequeue(wake.expect("it is shaped").at) else {
            panic!("it is time")
        };
        assert_eq!((first.len(), next.len), (20, FrameLen(100)));
    }

    /// A run under way: the first segment of a train has left.
    fn under_way() -> Cake<SimFrame> {
        let mut cake = cake(mbit(1_000));
        enqueue(&mut cake, &flow(1).superpacket(20, 1448), BEGIN);
        assert!(matches!(cake.dequeue(BEGIN), Dequeue::Send(_)));
        assert!(cake.auto.run.is_some());
        cake
    }

    #[test]
    fn a_run_ends_with_its_time_with_a_change_and_with_its_train() {
        let gone_on = |cake: &mut Cake<SimFrame>, now| drain(cake, now).0.len();
        assert_eq!(gone_on(&mut under_way(), BEGIN), 19);
        assert_eq!(gone_on(&mut under_way(), BEGIN + Span::from_nanos(1)), 0, "another instant");
        for change in [
            Change { diffserv: Some(crate::qdisc::Diffserv::Besteffort), ..Change::default() },
            Change { split_gso: Some(SplitGso::Split), ..Change::default() },
            Change { burst: Some(Span::ZERO), ..Change::default() },
        ] {
            let mut cake = under_way();
            cake.change(&change);
            assert_eq!(gone_on(&mut cake, BEGIN), 0, "{change:?}");
        }
        let mut cake = under_way();
        cake.change(&Change { memory_limit: Some(Some(MemSize(1))), ..Change::default() });
        enqueue(&mut cake, &flow(1).superpacket(20, 1448), BEGIN);
        assert_eq!(gone_on(&mut cake, BEGIN), 0, "nothing is left of it");
    }

    #[test]
    fn what_the_memory_limit_takes_of_a_train_is_no_longer_in_its_run() {
        let mut cake = under_way();
        let memory = Some(Some(MemSize(cake.memory().0 / 2)));
        cake.change(&Change { memory_limit: memory, ..Change::default() });
        // The change ended the run: another one begins once it is due.
        let at = BEGIN + MICROSECOND * 13;
        assert!(matches!(cake.dequeue(at), Dequeue::Send(_)));
        enqueue(&mut cake, &flow(2).with_len(FrameLen(60)), at);
        let (left, _) = drain(&mut cake, at);
        let dropped = u16::try_from(cake.stats().dropped).expect("few");
        assert!(dropped > 5);
        assert_eq!(left.first(), Some(&(2 + dropped, false)), "on from where it stands");
    }

    #[test]
    fn each_segment_of_a_run_is_marked_or_dropped_by_itself() {
        for ecn in [Ecn::Ect0, Ecn::NotEct] {
            let (interval, target) = (Span::from_millis(1), MICROSECOND * 50);
            let mut cake = cake(Config { interval, target, ..mbit(1_000) });
            let train = flow(1).superpacket(45, 1448).with_ecn(ecn);
            (0..6).for_each(|_| enqueue(&mut cake, &train, BEGIN));
            let (mut marks, mut left, mut now) = (0, 0, BEGIN);
            loop {
                let (segments, wake) = drain(&mut cake, now);
                let marked = segments.iter().filter(|(_, ce)| *ce).count();
                assert!(marked <= 1 && segments.len() > 3, "{marked} of {}", segments.len());
                (marks, left) = (marks + marked, left + segments.len());
                let Some(wake) = wake else { break };
                now = wake.at;
            }
            let stats = cake.stats();
            assert_eq!(left as u64 + stats.dropped, 6 * 45);
            let signals = if ecn == Ecn::Ect0 { marks as u64 } else { stats.dropped };
            assert!((3..10).contains(&signals), "{ecn:?}: {signals} signals");
            assert_eq!(stats.tins[1].marks, marks as u64);
        }
    }

    #[test]
    fn a_run_goes_on_behind_a_segment_that_is_dropped_in_ingress_mode_too() {
        for ingress in [false, true] {
            let mut cake = cake(Config { ingress, ..mbit(1_000) });
            let train = flow(1).superpacket(45, 1448);
            enqueue(&mut cake, &train, BEGIN);
            let slot = cake.queue_stats(BEGIN)[0].class - 1024 - 1;
            let Dequeue::Send(_) = cake.dequeue(BEGIN) else { panic!("it is time") };
            cake.tins[0].flow_mut(slot).cobalt.drop_with_probability(u32::MAX / 2);
            let (left, _) = drain(&mut cake, BEGIN);
            let gaps = left.windows(2).filter(|pair| pair[1].0 > pair[0].0 + 1).count();
            assert!(gaps > 3, "ingress {ingress}: {left:?}");
            assert_eq!(left.len(), 19, "what is dropped is not sent: {left:?}");
        }
    }

    proptest! {
        #[test]
        fn no_budget_is_above_64_kib_and_nothing_overflows(
            bits: u64, burst: i64, lateness in 0..=CATCH_UP.nanos(), rtt: Option<i64>, step: i64,
        ) {
            let [burst, rtt_step] = [burst, step].map(Span::from_nanos);
            let bandwidth = Some(Rate::from_bits(bits));
            let mut auto = auto(&Config { bandwidth, burst, rtt_step, ..Config::default() });
            auto.lateness = Span::from_nanos(lateness);
            let near = Near::new(rtt.map(Span::from_nanos), rtt_step);
            prop_assert!(auto.budget(near) <= MOST);
            prop_assert!(auto.budget(near) >= auto.budget(Near::UNKNOWN));
        }
    }
}
