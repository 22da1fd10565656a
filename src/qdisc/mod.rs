//! CAKE, and the seam between a discipline and whoever drives it.
//!
//! Problem: keep a link's queue where it can be managed, give every flow and host its share of it, and
//! tell senders early when it stands.
//! Source: spec §1.1 (enqueue) and §1.2 (dequeue), step by step.
//! Law: classify, place, append; then, as fast as the clocks allow, pick a tin, pick a flow, ask its AQM.
//! Each mechanism has a file of its own; this one is their order.
//! Deliberately different from Linux: one call does a bounded amount of work ([`WORK_BOUND`], [`DROP_BOUND`])
//! and says so or leaves the rest to the next.
//! Packets of a tin that a change of configuration gives up move to Best Effort; Linux discards them.
//! Left out: looking through NAT (`packet::nat`, spec §4.7), which is done before a frame is handed in.

mod ack_filter;
mod auto_split;
mod autorate;
mod cobalt;
mod config;
mod diffserv;
mod drr;
mod fifo;
mod flow;
mod flow_table;
mod hash;
mod host;
mod observer;
mod overflow;
mod overhead;
#[cfg(test)]
mod properties;
mod shaper;
mod stats;
mod tin;
mod turns;

pub use autorate::SPACING as AUTORATE_SPACING;
pub use config::{AckFilter, Change, Config, Diffserv, Isolation, LinkLayer, Overhead, SplitGso};
pub use diffserv::{MAX_TINS, Share};
pub use fifo::{Fifo, FifoConfig, FifoStats};
pub use flow_table::SLOTS;
pub use observer::{Cause, Departing, Loss, Observer};
pub use shaper::{ByteTime, CATCH_UP};
pub use stats::{MinMax, QueueStats, Stats, TinStats};

use crate::packet::{Frame, Meta};
use crate::time::{Instant, Span};
use crate::units::{FrameLen, MemSize, WireLen};
use auto_split::{AutoSplit, Near};
use autorate::Estimator;
use flow::{Account, Charge, Flow, Packet, PacketQueue, Unit};
use hash::FlowHasher;
use overflow::{Overflow, QueueId};
use overhead::Compensator;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use shaper::{Fate, Shaper};
use slab::Slab;
use stats::Bursts;
use tin::Tin;

/// Steps (a flow turned to the back, a packet dropped, an empty queue put away) in one call of
/// `dequeue`; a step takes some ten nanoseconds, so that a call stays under a millisecond.
pub const WORK_BOUND: u32 = 16_384;

/// Packets that one call of `enqueue` drops for want of memory, or as many as the frame that came has
/// segments if those are more, so that no more is queued than before. A drop takes some hundred nanoseconds;
/// more than a few in one call are due only once the memory limit was lowered.
pub const DROP_BOUND: u32 = 1024;

/// Packets that the automatic memory limit is capped at (spec §2.6).
const PACKET_LIMIT: u32 = 10_240;
/// Most memory that can be allowed for: less than 2^32 packets, which is what their numbers have room for.
const MOST_MEMORY: u64 = (u32::MAX as u64 - 1) * flow::LEAST_TRUESIZE.0;
/// Least automatic memory limit while shaped.
const LEAST_MEMORY: u64 = 4 << 20;

/// What queues frames and says when they may leave.
///
/// The driver's contract is on the crate page: feed, then drain, then sleep.
pub trait Discipline<F> {
    /// Takes a frame in at `now`. The frame may be dropped, now or later; the statistics say so.
    fn enqueue(&mut self, frame: F, meta: &Meta, now: Instant) -> Enqueued;

    /// Asks what is to be done at `now`. The work of one call is bounded; calling too early is harmless.
    fn dequeue(&mut self, now: Instant) -> Dequeue<F>;

    /// Bytes queued.
    fn backlog(&self) -> FrameLen;

    /// What is due can not be taken just now: the driver will ask later than it was told to, and not for being
    /// late.
    fn held_up(&mut self) {}

    /// Whether it makes anything of [`Meta::min_rtt`], which is not to be had for nothing.
    fn wants_min_rtt(&self) -> bool {
        false
    }

    /// Whether addresses and ports in [`Meta::flow`] are to be those from before address translation (spec §4.7).
    fn wants_nat(&self) -> bool {
        false
    }
}

/// What became of a frame that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued.
    Queued,
    /// It is queued, and its own queue lost a frame for it, or it was dropped itself.
    Congested,
}

/// The answer to "what now?".
#[derive(Debug)]
pub enum Dequeue<F> {
    /// Send this frame, then ask again.
    Send(Departure<F>),
    /// Sleep until `Wake::at` or the next arrival, then ask again.
    Wait(Wake),
    /// Nothing is queued: sleep until the next arrival.
    Idle,
}

/// A frame, or one segment of a superpacket, on its way out.
#[derive(Debug)]
pub struct Departure<F> {
    /// The frame.
    pub frame: F,
    /// Its length as it counts.
    pub len: FrameLen,
    /// Its length as the shaper was charged.
    pub wire_len: WireLen,
    /// Time it spent queued.
    pub sojourn: Span,
    /// The queue it came from, `(tin, queue)`; equal for neighbouring frames of one flow.
    pub queue: (u8, u16),
}

/// When to ask again, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The instant at which asking again is worthwhile.
    pub at: Instant,
    /// What happens then.
    pub why: Why,
}

/// Why a wake-up exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The shaper's clock reaches the present.
    Shaper,
    /// The failsafe clock lets a frame go before the shaper's does (spec §6.5).
    Failsafe,
    /// This call did its share of work; ask again at once.
    WorkBound,
}

/// What an instance must not find out for itself: everything random in it follows from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entropy {
    /// Key of the flow and host hashes; secret where strangers choose the flows.
    pub hash_key: (u64, u64),
    /// Seed of the generator that dithers quanta and rolls BLUE's dice.
    pub seed: u64,
}

impl Entropy {
    /// Everything from one number: the same number, the same run.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut generator = Pcg32::seed_from_u64(seed);
        Self { hash_key: (generator.next_u64(), generator.next_u64()), seed: generator.next_u64() }
    }
}

/// One CAKE instance.
///
/// ```
/// use ucake::packet::Meta;
/// use ucake::qdisc::{Cake, Config, Dequeue, Discipline, Entropy};
/// use ucake::sim::SimFrame;
/// use ucake::time::Instant;
/// use ucake::units::FrameLen;
///
/// let mut cake = Cake::new(Config::default(), FrameLen(1514), Entropy::from_seed(1));
/// let now = Instant::from_nanos(1_000_000_000);
/// let meta = Meta { len: FrameLen(1514), ..Meta::default() };
/// cake.enqueue(SimFrame::new(&meta), &meta, now);
/// assert!(matches!(cake.dequeue(now), Dequeue::Send(_)));
/// assert!(matches!(cake.dequeue(now), Dequeue::Idle));
/// ```
#[derive(Debug)]
pub struct Cake<F, O = ()> {
    config: Config,
    handle: u16,
    mtu: FrameLen,
    hasher: FlowHasher,
    random: Pcg32,
    shaper: Shaper,
    lengths: Compensator,
    /// Every tin that was ever in use; the first `tin_count` are.
    tins: Vec<Tin>,
    tin_count: u8,
    current_tin: u8,
    packets: Slab<Packet<F>>,
    overflow: Overflow,
    estimator: Estimator,
    auto: AutoSplit,
    memory_limit: MemSize,
    memory: MemSize,
    backlog: FrameLen,
    /// Units queued; 64 bits, for a train may have 65535 of them.
    queued: u64,
    last_now: Instant,
    counters: Counters,
    bursts: Bursts,
    observer: O,
}

/// What an instance counts.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    sent_bytes: u64,
    sent_packets: u64,
    dropped: u64,
    overlimits: u64,
    memory_used: MemSize,
    clock_went_back: u64,
}

/// What one look into a tin came to.
enum Served<F> {
    /// A packet leaves.
    Departed(Departure<F>),
    /// Gate and tin are to be looked at again.
    Again,
    /// Another flow is to be picked from this tin.
    Retry,
}

impl<F: Frame> Cake<F> {
    /// An instance without traffic. `mtu` is the largest frame of an undivided packet, link-layer header
    /// included: 1514 on Ethernet.
    #[must_use]
    pub fn new(config: Config, mtu: FrameLen, entropy: Entropy) -> Self {
        Self::observed(config, mtu, entropy, ())
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "a tin's number comes from the layout in force, whose tins all exist"
)]
impl<F: Frame, O: Observer<F>> Cake<F, O> {
    /// The same, with somebody who is told of each decision.
    #[must_use]
    pub fn observed(config: Config, mtu: FrameLen, entropy: Entropy, observer: O) -> Self {
        let mut cake = Self {
            config,
            handle: 0,
            mtu,
            hasher: FlowHasher::new(entropy.hash_key),
            random: Pcg32::seed_from_u64(entropy.seed),
            shaper: Shaper::new(config.shaped_rate()),
            lengths: Compensator::default(),
            tins: Vec::new(),
            tin_count: 0,
            current_tin: 0,
            packets: Slab::new(),
            overflow: Overflow::new(),
            estimator: Estimator::new(config.shaped_rate()),
            auto: AutoSplit::default(),
            memory_limit: MemSize::ZERO,
            memory: MemSize::ZERO,
            backlog: FrameLen::ZERO,
            queued: 0,
            last_now: Instant::ZERO,
            counters: Counters::default(),
            bursts: Bursts::default(),
            observer,
        };
        cake.configure(config);
        cake
    }

    /// The major number that packet priorities call this instance by; without one, no priority chooses a
    /// tin.
    #[must_use]
    pub fn with_handle(mut self, handle: u16) -> Self {
        self.handle = handle;
        self
    }

    /// Changes what `change` mentions and leaves the rest, as `tc qdisc change` does (spec §2.7): queued
    /// packets, flows, AQM state, clocks and counters stay. Packets of tins that are given up move to Best
    /// Effort.
    pub fn change(&mut self, change: &Change) {
        self.configure(self.config.changed_by(change));
        if change.resets_size_statistics() {
            self.lengths.reset_sizes();
        }
    }

    /// The next packet as it comes, of whichever queue holds most: no clock is asked and no AQM, and nothing is
    /// lost. Each flow keeps its order. For an instance that is to be emptied because something else takes
    /// its place.
    ///
    /// ```
    /// use ucake::packet::Meta;
    /// use ucake::qdisc::{Cake, Config, Discipline, Entropy};
    /// use ucake::sim::SimFrame;
    /// use ucake::time::Instant;
    /// use ucake::units::{FrameLen, Rate};
    ///
    /// let config = Config { bandwidth: Some(Rate::from_bits(8_000)), ..Config::default() };
    /// let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
    /// let meta = Meta { len: FrameLen(1514), ..Meta::default() };
    /// for _ in 0..3 {
    ///     cake.enqueue(SimFrame::new(&meta), &meta, Instant::ZERO);
    /// }
    /// let released = std::iter::from_fn(|| cake.release(Instant::ZERO)).count();
    /// assert_eq!((released, cake.backlog()), (3, FrameLen::ZERO));
    /// ```
    pub fn release(&mut self, now: Instant) -> Option<Departure<F>> {
        let now = self.forward(now);
        while self.queued > 0 {
            let fattest = self.overflow.fattest(backlog_of(&self.tins));
            match self.pop(fattest) {
                Some(unit) => return Some(self.deliver(fattest, unit, false, now)),
                None => self.overflow.distrust(),
            }
        }
        None
    }

    /// Who is told of each decision.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// Memory that queued frames hold now.
    #[must_use]
    pub fn memory(&self) -> MemSize {
        self.memory
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A snapshot of every statistic (spec §11).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Counters { sent_bytes, sent_packets, dropped, overlimits, .. } = self.counters;
        let displayed = (0..self.tin_count).map(|column| self.config.diffserv.displayed(column));
        Stats {
            sent_bytes,
            sent_packets,
            dropped,
            overlimits,
            backlog: self.backlog,
            queued_packets: u32::try_from(self.queued).unwrap_or(u32::MAX),
            memory_used: self.counters.memory_used,
            memory_limit: self.memory_limit,
            capacity_estimate: self.estimator.estimate(),
            network_size: self.lengths.network_size(),
            adjusted_size: self.lengths.adjusted_size(),
            average_network_offset: self.lengths.average_network_offset(),
            catch_up_capped: self.shaper.catch_up_capped(),
            given_up: self.shaper.given_up(),
            clock_went_back: self.counters.clock_went_back,
            runs: self.bursts.runs(),
            largest_burst: self.bursts.largest(),
            lateness: self.auto.lateness(),
            tins: displayed.map(|index| self.tins[usize::from(index)].stats()).collect(),
        }
    }

    /// A snapshot of every queue that is in some list (spec §11.3), in the order of their classes.
    #[must_use]
    pub fn queue_stats(&self, now: Instant) -> Vec<QueueStats> {
        let column = |column: u8| {
            let tin = &self.tins[usize::from(self.config.diffserv.displayed(column))];
            tin.active_queues().map(move |(slot, flow)| {
                let class = u16::from(column) * SLOTS + slot + 1;
                queue_stats(class, (flow, tin.account(slot)), &self.packets, now)
            })
        };
        (0..self.tin_count).flat_map(column).collect()
    }

    /// The device sends frames up to `mtu` from now on, as for [`Cake::new`].
    pub fn set_mtu(&mut self, mtu: FrameLen) {
        if self.mtu != mtu {
            self.mtu = mtu;
            self.configure(self.config);
        }
    }

    fn configure(&mut self, config: Config) {
        let rate = config.shaped_rate();
        self.config = config;
        self.shaper.set_rate(rate);
        self.auto.configure(&config);
        self.lengths.set(config.overhead);
        self.memory_limit = memory_limit(&config, self.mtu);
        let before = self.tin_count;
        self.tin_count = config.diffserv.tin_count();
        self.current_tin = self.current_tin.min(self.tin_count - 1);
        while self.tins.len() < usize::from(self.tin_count) {
            self.tins.push(Tin::new());
        }
        for (index, tin) in (0..self.tin_count).zip(&mut self.tins) {
            tin.configure(&config, config.diffserv.share(index, rate), self.mtu);
        }
        for index in self.tin_count..before {
            self.give_up(index);
        }
    }

    /// Moves what is queued in a tin that is no longer in use to Best Effort, flow by flow: a change of
    /// configuration loses no packet. (Linux discards them, spec §2.7.) All layouts that have fewer tins
    /// than another have Best Effort as tin 0.
    fn give_up(&mut self, tin: u8) {
        for slot in 0..SLOTS {
            let units = |queue: &PacketQueue| queue.count_units(&self.packets);
            let vacated = self.tins[usize::from(tin)].vacate(slot, units);
            let Some(vacated) = vacated else { continue };
            self.overflow.shrank(QueueId { tin, slot }, backlog_of(&self.tins));
            let best_effort = &mut self.tins[0];
            let slot = best_effort.take_in(vacated, &mut self.packets, self.last_now);
            best_effort.activate(slot, dither(&mut self.random));
            self.overflow.grew(QueueId { tin: 0, slot }, backlog_of(&self.tins));
        }
    }

    /// Spec §1.1 step 9: what the arrival of a packet says of the link before us.
    fn estimate(&mut self, now: Instant) {
        if !self.config.autorate_ingress {
            self.estimator.ignore(now);
        } else if let Some(rate) = self.estimator.observe(now) {
            self.configure(Config { bandwidth: Some(rate), ..self.config });
        }
    }

    /// `now`, or the latest time seen if the clock went back.
    fn forward(&mut self, now: Instant) -> Instant {
        if now < self.last_now {
            self.counters.clock_went_back += 1;
        } else {
            self.last_now = now;
        }
        self.last_now
    }

    /// Spec §3.1: the tin a frame belongs to, washed if that is asked for.
    fn classify(&mut self, frame: &mut F, meta: &Meta) -> u8 {
        let mut dscp = meta.dscp;
        if self.config.wash && dscp.value() != 0 && meta.flow.is_ip() && !frame.wash() {
            dscp = crate::packet::Dscp::default();
        }
        self.overridden(meta).unwrap_or_else(|| self.config.diffserv.tin(dscp))
    }

    /// Spec §3.1 steps 3 and 4: the tin that a mark or, if there is none, a priority asks for.
    fn overridden(&self, meta: &Meta) -> Option<u8> {
        let Config { fwmark, diffserv, .. } = self.config;
        if diffserv == Diffserv::Besteffort {
            return None;
        }
        let mark = (meta.mark & fwmark).checked_shr(fwmark.trailing_zeros()).unwrap_or(0);
        let named = meta.priority >> 16 == u32::from(self.handle) && self.handle != 0;
        let minor = if named { meta.priority & 0xffff } else { 0 };
        let in_use = 1..=u32::from(diffserv.tin_count());
        let number = [mark, minor].into_iter().find(|number| in_use.contains(number))?;
        Some(diffserv.displayed(u8::try_from(number - 1).ok()?))
    }

    /// Spec §1.1 step 4: clocks that idle time left behind come to `now`.
    fn wake_clocks(&mut self, tin: u8, now: Instant) {
        let tin = &mut self.tins[usize::from(tin)];
        if tin.backlog() != FrameLen::ZERO {
            return;
        }
        tin.wake(now);
        if self.queued == 0 && self.shaper.wake(now) {
            self.counters.overlimits += 1;
        }
    }

    /// Spec §1.1 steps 6 and 7: appends a frame whole or as a train, and counts it.
    fn append(&mut self, queue: QueueId, frame: F, meta: &Meta, now: Instant) {
        let mut packet = self.packet(frame, meta, now);
        self.estimator.arrived(packet.total().len);
        if self.config.ack_filter != AckFilter::Off && !packet.is_divided() {
            self.filter_acks(queue, &mut packet, now);
        }
        let total = packet.total();
        let units = packet.units();
        let tin = &mut self.tins[usize::from(queue.tin)];
        tin.flow_mut(queue.slot).packets.push(&mut self.packets, packet);
        tin.admit(queue.slot, units, total);
        self.backlog += total.len;
        self.memory += total.truesize;
        self.queued += u64::from(units);
        self.overflow.grew(queue, backlog_of(&self.tins));
    }

    fn packet(&mut self, frame: F, meta: &Meta, now: Instant) -> Packet<F> {
        let lengths = &mut self.lengths;
        let count = meta.segments.count.max(1);
        let offset = meta.network_offset;
        let divides = self.config.split_gso.divides();
        lengths.observe_offset(offset, if divides { count } else { 1 });
        if !flow::is_superpacket(meta.segments) {
            let wire_len = lengths.adjust(meta.len, offset);
            return Packet::whole(frame, meta, wire_len, now);
        }
        if divides {
            let wire_len = |len| lengths.adjust(len, offset);
            let mut train = Packet::train(frame, meta, count, wire_len, now);
            if self.config.split_gso == SplitGso::Auto {
                train.set_near(Near::new(meta.min_rtt, self.config.rtt_step));
            }
            return train;
        }
        // Spec §7.2: whole, yet with the overhead of each segment.
        let each = lengths.adjust(meta.segment_len(0), offset);
        let last = lengths.adjust(meta.segment_len(count - 1), offset);
        let wire_len = WireLen(each.0.saturating_mul(u32::from(count - 1))) + last;
        Packet::whole(frame, meta, wire_len, now)
    }

    /// Spec §8: the queue that `packet` is about to join may lose an ACK by it. The heap learns of the
    /// difference once `packet` is in (spec §1.1 step 8).
    fn filter_acks(&mut self, queue: QueueId, packet: &mut Packet<F>, now: Instant) {
        let tcp = packet.tcp();
        packet.set_may_be_ack(tcp.as_ref().is_some_and(ack_filter::is_pure_ack));
        let Some(trigger) = tcp else { return };
        let tin = &mut self.tins[usize::from(queue.tin)];
        let packets = &mut tin.flow_mut(queue.slot).packets;
        let mode = self.config.ack_filter;
        let victim = ack_filter::victim(packets, &self.packets, &trigger, mode)
            .and_then(|place| packets.remove(&mut self.packets, place));
        let Some(victim) = victim else { return };
        let Charge { len, wire_len, truesize } = victim.total();
        tin.drop_ack(queue.slot, len);
        self.estimator.withdrawn(len);
        self.backlog -= len;
        self.memory -= truesize;
        self.queued -= 1;
        self.counters.dropped += 1;
        if self.config.ingress {
            self.charge(queue.tin, wire_len, Fate::Dropped, now);
        }
        let sojourn = now - victim.enqueued_at();
        let (queue, cause) = ((queue.tin, queue.slot), Cause::AckFilter);
        let loss = Loss { queue, cause, len, wire_len, sojourn, at: now };
        self.observer.dropped(victim.into_frame(), loss);
    }

    /// Takes the oldest unit of a queue (spec §1.2 step 6), off every account.
    fn pop(&mut self, queue: QueueId) -> Option<Unit<F>> {
        let tin = &mut self.tins[usize::from(queue.tin)];
        let unit = tin.flow_mut(queue.slot).packets.pop(&mut self.packets)?;
        tin.release(queue.slot, unit.charge.len);
        self.backlog -= unit.charge.len;
        self.memory -= unit.charge.truesize;
        self.queued -= 1;
        self.overflow.shrank(queue, backlog_of(&self.tins));
        Some(unit)
    }

    /// Spec §9: while memory is over its limit, the oldest packet of the fattest queue goes, `most` of
    /// them at the most. Returns whether `arrived` lost one.
    fn drop_overflow(&mut self, arrived: QueueId, mut most: u32, now: Instant) -> bool {
        let mut lost = false;
        while most > 0 && self.memory > self.memory_limit && self.queued > 0 {
            let fattest = self.overflow.fattest(backlog_of(&self.tins));
            let Some(unit) = self.pop(fattest) else {
                self.overflow.distrust();
                continue;
            };
            self.tins[usize::from(fattest.tin)].queue_full(fattest.slot, now);
            self.lose(fattest, unit, Cause::Memory, now);
            lost |= fattest == arrived;
            most -= 1;
        }
        lost
    }

    /// Drops a unit that was taken out of `queue`.
    #[inline(always)]
    fn lose(&mut self, queue: QueueId, unit: Unit<F>, cause: Cause, now: Instant) {
        let Unit { frame, charge: Charge { len, wire_len, .. }, enqueued_at, .. } = unit;
        self.counters.dropped += 1;
        self.tins[usize::from(queue.tin)].count_drop(queue.slot);
        if self.config.ingress {
            self.charge(queue.tin, wire_len, Fate::Dropped, now);
        }
        let (queue, sojourn) = ((queue.tin, queue.slot), now - enqueued_at);
        self.observer.dropped(frame, Loss { queue, cause, len, wire_len, sojourn, at: now });
    }

    /// Charges the clocks (spec §6.2); nothing while unlimited.
    fn charge(&mut self, tin: u8, wire_len: WireLen, fate: Fate, now: Instant) {
        if self.shaper.is_shaped() {
            self.tins[usize::from(tin)].charge(wire_len, self.auto.before(), now);
            self.shaper.charge(wire_len, fate);
        }
    }

    /// Spec §1.2: as fast as the clocks allow, a tin, a flow, a packet. `steps` have been done in this call
    /// before.
    // Inlined, as what it calls: the way of each packet, which `auto_split` goes too, is worth two copies.
    #[inline(always)]
    fn schedule(&mut self, mut steps: u32, now: Instant) -> Dequeue<F> {
        let mut first_pass = true;
        while self.queued > 0 {
            if let Some(wake) = self.shaper.gate(now) {
                self.counters.overlimits += 1;
                return Dequeue::Wait(wake);
            }
            let Some(tin) = self.choose_tin(now) else { break };
            self.current_tin = tin;
            loop {
                steps += 1;
                if steps >= WORK_BOUND {
                    return Dequeue::Wait(Wake { at: now, why: Why::WorkBound });
                }
                match self.serve(tin, first_pass, &mut steps, now) {
                    Served::Departed(departure) => return Dequeue::Send(departure),
                    Served::Retry => first_pass = false,
                    Served::Again => {
                        first_pass = false;
                        break;
                    }
                }
            }
        }
        Dequeue::Idle
    }

    fn choose_tin(&mut self, now: Instant) -> Option<u8> {
        let tins = &mut self.tins[..usize::from(self.tin_count)];
        if self.shaper.is_shaped() {
            tin::choose_shaped(tins, now)
        } else {
            tin::choose_unlimited(tins, self.current_tin)
        }
    }

    /// Spec §1.2 steps 4 and 5: a flow of this tin, if one may send.
    #[inline(always)]
    fn serve(&mut self, tin: u8, first_pass: bool, steps: &mut u32, now: Instant) -> Served<F> {
        let random = &mut self.random;
        let flows = &mut self.tins[usize::from(tin)];
        let Some(slot) = flows.next_flow(first_pass) else { return Served::Again };
        if !flows.may_send(slot, || dither(random)) {
            *steps += flows.turn(WORK_BOUND.saturating_sub(*steps + 1), || dither(random));
            return Served::Retry;
        }
        self.pull(QueueId { tin, slot }, steps, now)
    }

    /// Spec §1.2 step 6: the oldest packet of this queue that its AQM lets live.
    #[inline(always)]
    fn pull(&mut self, queue: QueueId, steps: &mut u32, now: Instant) -> Served<F> {
        loop {
            let Some(mut unit) = self.pop(queue) else {
                self.tins[usize::from(queue.tin)].found_empty(queue.slot, now);
                return Served::Again;
            };
            let verdict = self.judge(queue, &mut unit, now);
            let was_last = self.tins[usize::from(queue.tin)].flow(queue.slot).packets.is_empty();
            if !verdict.drop || was_last {
                return Served::Departed(self.deliver(queue, unit, verdict.marked, now));
            }
            let wire_len = unit.charge.wire_len;
            let cause = if verdict.by_blue { Cause::Blue } else { Cause::Codel };
            self.lose(queue, unit, cause, now);
            if self.config.ingress {
                self.tins[usize::from(queue.tin)].spend(queue.slot, wire_len);
                return Served::Retry;
            }
            *steps += 1;
            if *steps >= WORK_BOUND {
                return Served::Again;
            }
        }
    }

    #[inline(always)]
    fn judge(&mut self, queue: QueueId, unit: &mut Unit<F>, now: Instant) -> cobalt::Verdict {
        let random = &mut self.random;
        let tin = &mut self.tins[usize::from(queue.tin)];
        let params = tin.params();
        let bulk_flows = if self.config.ingress { tin.bulk_flows() } else { 0 };
        let frame = &mut unit.frame;
        tin.flow_mut(queue.slot).cobalt.should_drop(
            &params,
            unit.enqueued_at,
            bulk_flows,
            || frame.mark_ce(),
            || random.next_u32(),
            now,
        )
    }

    /// Spec §1.2 step 7.
    #[inline(always)]
    fn deliver(
        &mut self,
        queue: QueueId,
        unit: Unit<F>,
        marked: bool,
        now: Instant,
    ) -> Departure<F> {
        let Unit { mut frame, charge, enqueued_at, counts_as } = unit;
        let sojourn = now - enqueued_at;
        let index = usize::from(queue.tin);
        self.counters.sent_bytes += u64::from(charge.len.0);
        self.counters.sent_packets += u64::from(counts_as);
        self.bursts.observe(queue, charge.len, now);
        self.tins[index].deliver(marked, sojourn);
        self.charge(queue.tin, charge.wire_len, Fate::Delivered, now);
        self.tins[index].spend(queue.slot, charge.wire_len);
        self.overflow.delivered();
        let Charge { len, wire_len, .. } = charge;
        let from = (queue.tin, queue.slot);
        let departing = Departing { queue: from, marked, len, wire_len, sojourn, at: now };
        self.observer.departs(&mut frame, departing);
        Departure {
            frame,
            len: charge.len,
            wire_len: charge.wire_len,
            sojourn,
            queue: (queue.tin, queue.slot),
        }
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "a tin's number comes from the layout in force, whose tins all exist"
)]
impl<F: Frame, O: Observer<F>> Discipline<F> for Cake<F, O> {
    fn enqueue(&mut self, mut frame: F, meta: &Meta, now: Instant) -> Enqueued {
        let now = self.forward(now);
        let tin = self.classify(&mut frame, meta);
        let index = usize::from(tin);
        let slot = self.tins[index].locate(&self.hasher, &meta.flow, meta.overrides);
        let queue = QueueId { tin, slot };
        self.wake_clocks(tin, now);
        self.tins[index].observe_len(meta.counted_len());
        self.observer.queued(&mut frame, (tin, slot));
        self.append(queue, frame, meta, now);
        self.estimate(now);
        self.tins[index].activate(slot, dither(&mut self.random));
        self.counters.memory_used = self.counters.memory_used.max(self.memory);
        let most = DROP_BOUND.max(meta.segments.count.into());
        if self.drop_overflow(queue, most, now) { Enqueued::Congested } else { Enqueued::Queued }
    }

    fn dequeue(&mut self, now: Instant) -> Dequeue<F> {
        let now = self.forward(now);
        if self.config.split_gso != SplitGso::Auto {
            return self.schedule(0, now);
        }
        self.dequeue_in_runs(now)
    }

    fn backlog(&self) -> FrameLen {
        self.backlog
    }

    fn held_up(&mut self) {
        self.auto.held_up();
    }

    fn wants_min_rtt(&self) -> bool {
        self.config.split_gso == SplitGso::Auto && self.config.rtt_step != Span::ZERO
    }

    fn wants_nat(&self) -> bool {
        self.config.nat
    }
}

/// What the fattest queue is found by; 0 for none but empty ones, so that a drop finds a packet whenever
/// there is one.
fn backlog_of(tins: &[Tin]) -> impl Fn(QueueId) -> u32 {
    |queue| {
        let flow = tins.get(usize::from(queue.tin)).map(|tin| tin.flow(queue.slot));
        // Frames without length have to be found too.
        flow.filter(|flow| !flow.packets.is_empty()).map_or(0, |flow| flow.backlog.0.max(1))
    }
}

fn queue_stats<F: Frame>(
    class: u16,
    (flow, account): (&Flow, Account),
    packets: &Slab<Packet<F>>,
    now: Instant,
) -> QueueStats {
    let cobalt = &flow.cobalt;
    let blue_probability = cobalt.drop_probability();
    QueueStats {
        class,
        drops: flow.drops,
        backlog: flow.backlog,
        packets: flow.packets.count_units(packets),
        deficit: account.deficit,
        count: cobalt.count(),
        drop_next: cobalt.is_dropping().then(|| now - cobalt.drop_next()),
        blue_probability,
        blue_timer: (blue_probability != 0).then(|| now - cobalt.blue_timer()),
    }
}

/// Sixteen uniform bits for a quantum.
fn dither(random: &mut Pcg32) -> u16 {
    (random.next_u32() >> 16) as u16
}

/// Spec §2.6: what was set, else four bandwidth-delay products, and at most 10240 full packets or what
/// was set.
#[must_use]
pub fn memory_limit(config: &Config, mtu: FrameLen) -> MemSize {
    let derived = match (config.memory_limit, config.shaped_rate()) {
        (Some(limit), _) => limit.0,
        (None, Some(rate)) => {
            let micros = config.interval.micros().unsigned_abs();
            let bytes = rate.bytes().wrapping_mul(micros) / 250_000;
            // Cut to 32 bits as the kernel's counter is.
            (bytes & u64::from(u32::MAX)).max(LEAST_MEMORY)
        }
        (None, None) => u64::from(u32::MAX),
    };
    let cap = u64::from(PACKET_LIMIT.wrapping_mul(mtu.0));
    let limit = derived.min(cap.max(config.memory_limit.map_or(0, |limit| limit.0)));
    MemSize(limit.min(MOST_MEMORY))
}
