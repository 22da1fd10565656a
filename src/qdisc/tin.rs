//! A tin: one class of service with queues, hosts and a clock of its own.
//!
//! Problem: each class needs fairness, an AQM and a share, without knowing of the others.
//! Source: spec §1.2 and §1.3 (rounds, states of flows), §2.6 (derived parameters), §11.2 (averages).
//! Law: a flow changes state only through [`Tin::set_state`], which keeps lists, counts and the hosts'
//! bulk flows in step.
//! Left out: which tin is served (`choice`), whose flow it is (`hosts`); memory, lengths and the instance's own clock
//! (`qdisc::mod`).

use super::cobalt::{self, Blue};
use super::config::{Config, Isolation};
use super::diffserv::Share;
use super::drr::{FlowSets, List, Set};
use super::flow::{Account, Charge, Flow, Hosts, Packet, PacketQueue};
use super::flow_table::{FlowTable, Found, PerSlot, SLOTS};
use super::hash::{FlowHasher, HostHashes};
use super::host::{self, HostTable};
use super::shaper::{ByteTime, TinClock};
use super::stats::TinStats;
use super::turns;
use crate::packet::{FlowKey, Overrides};
use crate::time::{Instant, Span};
use crate::units::{FrameLen, Rate, WireLen};
use slab::Slab;

pub use choice::{choose_shaped, choose_unlimited};

mod choice;
mod hosts;

/// Rounds below which granting them one by one is as quick, …
const WORTH_GRANTING: u32 = 16;
/// … and the most flows for which they are looked for.
const MOST_GRANTED: u32 = 64;

/// A flow's quantum lies between these (spec §2.6).
const QUANTUM_RANGE: (u16, u16) = (300, 1514);

/// One class of service.
#[derive(Clone, Debug)]
pub struct Tin {
    share: Share,
    isolation: Isolation,
    /// Everything goes to queue 0 and nothing is looked at (spec §4.1: only without `nat`).
    blind: bool,
    params: cobalt::Params,
    flow_quantum: u16,
    clock: TinClock,
    deficit: i32,
    table: FlowTable,
    flows: PerSlot<Flow>,
    accounts: PerSlot<Account>,
    sets: FlowSets,
    sources: HostTable,
    destinations: HostTable,
    unresponsive: u32,
    counters: Counters,
}

/// What a queue of a tin that is given up held, and who it was.
#[derive(Debug)]
pub struct Vacated {
    packets: PacketQueue,
    units: u32,
    len: FrameLen,
    hash: u32,
    /// As far as they were known.
    hosts: Option<HostHashes>,
    /// What the hashes were made for.
    isolation: Isolation,
}

/// What a tin counts.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    backlog: FrameLen,
    packets: u64,
    bytes: u64,
    drops: u64,
    marks: u64,
    ack_drops: u64,
    max_packet_len: FrameLen,
    delays: Delays,
}

/// Moving averages of sojourn times (spec §11.2).
#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    average: u64,
    peak: u64,
    base: u64,
}

impl Tin {
    /// A tin without traffic; [`Tin::configure`] gives it its parameters.
    pub fn new() -> Self {
        Self {
            share: Share { threshold: None, quantum: 0 },
            isolation: Isolation::TripleIsolate,
            blind: false,
            params: cobalt::Params::default(),
            flow_quantum: 0,
            clock: TinClock::default(),
            deficit: 0,
            table: FlowTable::new(),
            flows: PerSlot::new(),
            accounts: PerSlot::new(),
            sets: FlowSets::new(),
            sources: HostTable::new(),
            destinations: HostTable::new(),
            unresponsive: 0,
            counters: Counters::default(),
        }
    }

    /// Derives everything from `config` (spec §2.6); what is queued stays.
    pub fn configure(&mut self, config: &Config, share: Share, mtu: FrameLen) {
        self.share = share;
        self.isolate(config.isolation);
        self.blind = config.isolation == Isolation::Flowblind && !config.nat;
        // So slow a rate that nothing of it is left for this tin does not bind it.
        let binding = share.threshold.filter(|rate| !rate.is_zero());
        self.flow_quantum = flow_quantum(binding);
        self.params = cobalt_params(config, binding, mtu);
        self.clock.set_rate(binding);
        if share.threshold.is_none() {
            return;
        }
        // Deficits among tins count only while unlimited (spec §6.4, the hazard).
        self.deficit = 0;
    }

    /// Changes what hosts are told apart by. Each flow's hosts are made out anew when its next packet
    /// comes; until then the flow counts on no host.
    fn isolate(&mut self, isolation: Isolation) {
        if isolation == self.isolation {
            return;
        }
        self.isolation = isolation;
        self.sources.forget_loads();
        self.destinations.forget_loads();
        for slot in 0..SLOTS {
            self.accounts[slot].hosts = Hosts::UNKNOWN;
        }
        self.sets.old_mut().hosts_changed();
    }

    /// The queue for a packet with this key (spec §4.3), its hosts assigned (spec §4.4).
    pub fn locate(&mut self, hasher: &FlowHasher, key: &FlowKey, overrides: Overrides) -> u16 {
        let isolation = self.isolation;
        let hash = || hasher.queue(key, overrides, isolation);
        self.settle(hash, || Some(hasher.hosts(key, overrides, isolation)))
    }

    /// The queue for what has `hash`, and its hosts assigned if they need to be.
    fn settle(
        &mut self,
        hash: impl FnOnce() -> u32,
        hosts: impl FnOnce() -> Option<HostHashes>,
    ) -> u16 {
        if self.blind {
            return 0;
        }
        let place = self.table.place(hash(), |slot| self.sets.is_active(slot));
        if place.found != Found::Active || self.accounts[place.slot].hosts == Hosts::UNKNOWN {
            self.assign_hosts(place.slot, hosts());
        }
        place.slot
    }

    /// Empties a queue, off this tin's books; `None` if nothing is queued. `units` counts what is queued.
    pub fn vacate(
        &mut self,
        slot: u16,
        units: impl FnOnce(&PacketQueue) -> u32,
    ) -> Option<Vacated> {
        let flow = &mut self.flows[slot];
        if flow.packets.is_empty() {
            return None;
        }
        let units = units(&flow.packets);
        let packets = core::mem::take(&mut flow.packets);
        let len = core::mem::take(&mut flow.backlog);
        self.counters.backlog -= len;
        self.counters.packets -= u64::from(units);
        self.counters.bytes -= u64::from(len.0);
        let Hosts { source, destination } = self.accounts[slot].hosts;
        let hosts = (self.accounts[slot].hosts != Hosts::UNKNOWN).then(|| HostHashes {
            source: self.sources.tag(source),
            destination: self.destinations.tag(destination),
        });
        let (hash, isolation) = (self.table.tag(slot), self.isolation);
        Some(Vacated { packets, units, len, hash, hosts, isolation })
    }

    /// Takes in what another tin vacated, behind what the same flow has queued here; says where.
    pub fn take_in<F>(
        &mut self,
        vacated: Vacated,
        nodes: &mut Slab<Packet<F>>,
        now: Instant,
    ) -> u16 {
        let Vacated { packets, units, len, hash, hosts, isolation } = vacated;
        if self.counters.backlog == FrameLen::ZERO {
            self.wake(now);
        }
        // Hashes of hosts that another mode left out mean nothing here.
        let hosts = hosts.filter(|_| isolation == self.isolation);
        let slot = self.settle(|| hash, || hosts);
        let flow = &mut self.flows[slot];
        flow.packets.join(nodes, packets);
        flow.backlog += len;
        self.counters.backlog += len;
        self.counters.packets += u64::from(units);
        self.counters.bytes += u64::from(len.0);
        slot
    }

    /// Brings a clock that idle time left behind to `now`.
    pub fn wake(&mut self, now: Instant) {
        self.clock.wake(now);
    }

    /// Counts what was appended to a queue, `packets` units of `total` together.
    pub fn admit(&mut self, slot: u16, packets: u16, total: Charge) {
        self.flows[slot].backlog += total.len;
        self.counters.backlog += total.len;
        self.counters.packets += u64::from(packets);
        self.counters.bytes += u64::from(total.len.0);
    }

    /// Notes the length of a packet as it came.
    pub fn observe_len(&mut self, len: FrameLen) {
        self.counters.max_packet_len = self.counters.max_packet_len.max(len);
    }

    /// A packet was appended to this queue (spec §1.1 step 10).
    pub fn activate(&mut self, slot: u16, dither: u16) {
        match self.set(slot) {
            Set::None | Set::Decaying => {
                self.move_to(slot, List::New);
                self.set_state(slot, Set::Sparse);
                self.accounts[slot].deficit = self.quantum(slot, dither);
            }
            Set::SparseWait => self.set_state(slot, Set::Bulk),
            Set::Sparse | Set::Bulk => {}
        }
    }

    /// Whether this queue may send in this round; otherwise it goes to the back with a fresh quantum
    /// (spec §1.2 step 5).
    #[inline(always)]
    pub fn may_send(&mut self, slot: u16, dither: impl FnOnce() -> u16) -> bool {
        if self.deficit(slot) > 0 {
            return true;
        }
        if self.set(slot) == Set::Sparse {
            let empty = self.flows[slot].packets.is_empty();
            let next = if empty { Set::SparseWait } else { Set::Bulk };
            self.set_state(slot, next);
        }
        // After the change of state: the flow itself counts towards its hosts' load.
        let quantum = self.quantum(slot, dither());
        if self.sets.old().first() == Some(slot) {
            let hosts = self.accounts[slot].hosts;
            self.sets.old_mut().turn_first(hosts, quantum);
        } else {
            self.accounts[slot].deficit = self.accounts[slot].deficit.saturating_add(quantum);
            self.move_to(slot, List::Old);
        }
        false
    }

    /// Gives old flows their quanta, in turn, up to the first that may send and for at most `most`
    /// steps; how many it took. Nothing that [`Self::next_flow`] and [`Self::may_send`] would not do, but for
    /// the dithers, which are made of one (`turns`), and those of rounds that are granted at once: after a
    /// superpacket of 64 kB they do it fifty times for each flow.
    pub fn turn(&mut self, most: u32, dither: impl FnOnce() -> u16) -> u32 {
        // Mostly the first of them may send.
        match self.sets.turning() {
            Some(_) => self.turn_until_one_may_send(most, dither()),
            None => 0,
        }
    }

    #[inline(never)]
    fn turn_until_one_may_send(&mut self, most: u32, mut dither: u16) -> u32 {
        let enough = most >= 2 * MOST_GRANTED;
        let mut steps = if enough { self.grant_rounds(&mut dither) } else { 0 };
        while let Some(slot) = self.sets.turning().filter(|_| steps < most) {
            let hosts = self.accounts[slot].hosts;
            let share = self.share_of(hosts);
            let old = self.sets.old_mut();
            // Where there are many turns, it is because many flows have the same hosts.
            if old.are_alike() {
                steps += old.turn(share, &mut dither, most - steps);
            } else {
                old.turn_first(hosts, host::dithered(share, dither));
                dither = turns::next_dither(dither);
                steps += 1;
            }
        }
        steps
    }

    /// Gives all old flows at once what they would get in the rounds after which none of them may send yet,
    /// if those are many and the flows few, as behind superpackets that leave whole; how many steps it took.
    /// The rounds are dithered together: the mean is that of single rounds, the spread is less.
    fn grant_rounds(&mut self, dither: &mut u16) -> u32 {
        let flows = self.sets.old().len();
        let steps = u32::try_from(2 * flows).unwrap_or(u32::MAX);
        if steps > 2 * MOST_GRANTED {
            return 0;
        }
        let mut rounds = u32::MAX;
        for turn in 0..flows {
            let (slot, deficit) = self.sets.old().nth(turn);
            let most = (self.share_of(self.accounts[slot].hosts) >> 16) + 1;
            // What is above zero may send as it is.
            let debt = deficit.min(0).unsigned_abs();
            if debt / WORTH_GRANTING < most {
                return 0;
            }
            rounds = rounds.min(debt / most);
        }
        for turn in 0..flows {
            let (slot, _) = self.sets.old().nth(turn);
            let share = u64::from(self.share_of(self.accounts[slot].hosts));
            let given = (u64::from(rounds) * share + u64::from(*dither)) >> 16;
            self.sets.old_mut().give(turn, given.try_into().unwrap_or(u32::MAX));
            *dither = turns::next_dither(*dither);
        }
        steps
    }

    /// The scheduler found this queue empty (spec §1.2 step 6).
    pub fn found_empty(&mut self, slot: u16, now: Instant) {
        let cobalt = &mut self.flows[slot].cobalt;
        let blue = cobalt.queue_empty(&self.params, now);
        let at_rest = cobalt.is_at_rest(now);
        self.count_unresponsive(blue);
        if at_rest {
            self.leave_list(slot);
            self.set_state(slot, Set::None);
        } else {
            self.move_to(slot, List::Decaying);
            self.set_state(slot, Set::Decaying);
        }
    }

    /// A unit was taken out of a queue.
    pub fn release(&mut self, slot: u16, len: FrameLen) {
        self.flows[slot].backlog -= len;
        self.counters.backlog -= len;
    }

    /// The AQM or the memory limit dropped a unit.
    pub fn count_drop(&mut self, slot: u16) {
        self.flows[slot].drops += 1;
        self.counters.drops += 1;
    }

    /// The ACK filter took a packet out of a queue, which is no loss to the flow (spec §11.2).
    pub fn drop_ack(&mut self, slot: u16, len: FrameLen) {
        self.release(slot, len);
        self.counters.ack_drops += 1;
    }

    /// The memory limit took a packet from this queue.
    pub fn queue_full(&mut self, slot: u16, now: Instant) {
        let blue = self.flows[slot].cobalt.queue_full(&self.params, now);
        self.count_unresponsive(blue);
    }

    /// A unit leaves (spec §1.2 step 7).
    pub fn deliver(&mut self, marked: bool, sojourn: Span) {
        self.counters.marks += u64::from(marked);
        self.counters.delays.observe(sojourn);
    }

    /// Takes `wire_len` off a flow's deficit, and off the tin's own while that counts.
    #[inline(always)]
    pub fn spend(&mut self, slot: u16, wire_len: WireLen) {
        let bytes = i32::try_from(wire_len.0).unwrap_or(i32::MAX);
        let deficit = self.deficit_mut(slot);
        *deficit = deficit.saturating_sub(bytes);
        if self.share.threshold.is_none() {
            self.deficit = self.deficit.saturating_sub(bytes);
        }
    }

    /// Charges the tin's clock with a packet that leaves in one go with `before` bytes.
    pub fn charge(&mut self, wire_len: WireLen, before: WireLen, now: Instant) {
        self.clock.charge(wire_len, before, now);
    }

    /// The flow to serve (spec §1.2 step 4).
    pub fn next_flow(&self, first_pass: bool) -> Option<u16> {
        self.sets.next(first_pass)
    }

    /// A queue.
    pub fn flow(&self, slot: u16) -> &Flow {
        &self.flows[slot]
    }

    /// A queue's account.
    pub fn account(&self, slot: u16) -> Account {
        Account { deficit: self.deficit(slot), ..self.accounts[slot] }
    }

    /// A queue, to be changed.
    pub fn flow_mut(&mut self, slot: u16) -> &mut Flow {
        &mut self.flows[slot]
    }

    /// A queue's AQM is judged by these.
    pub fn params(&self) -> cobalt::Params {
        self.params
    }

    /// Bytes queued.
    pub fn backlog(&self) -> FrameLen {
        self.counters.backlog
    }

    /// Bulk flows.
    pub fn bulk_flows(&self) -> u32 {
        self.sets.bulk()
    }

    /// The queues that are in some list.
    pub fn active_queues(&self) -> impl Iterator<Item = (u16, &Flow)> {
        self.flows.iter().filter(|&(slot, _)| self.sets.is_active(slot))
    }

    /// Whether there is a flow to serve; decaying ones do not count.
    pub fn has_flows(&self) -> bool {
        self.sets.sparse() + self.sets.bulk() > 0
    }

    /// A snapshot (spec §11.2).
    pub fn stats(&self) -> TinStats {
        let Counters { backlog, packets, bytes, drops, marks, ack_drops, max_packet_len, delays } =
            self.counters;
        TinStats {
            threshold: self.share.threshold.unwrap_or_default(),
            target: self.params.target,
            interval: self.params.interval,
            peak_delay: as_span(delays.peak),
            average_delay: as_span(delays.average),
            base_delay: as_span(delays.base),
            backlog,
            packets,
            bytes,
            way_indirect_hits: self.table.indirect_hits,
            way_misses: self.table.misses,
            way_collisions: self.table.collisions,
            drops,
            marks,
            ack_drops,
            sparse_flows: self.sets.sparse() + self.sets.decaying(),
            bulk_flows: self.sets.bulk(),
            unresponsive_flows: self.unresponsive,
            max_packet_len,
            flow_quantum: self.flow_quantum,
        }
    }

    /// The state of a flow.
    pub(super) fn set(&self, slot: u16) -> Set {
        self.sets.set(slot)
    }

    /// The one place where a flow changes state: counts and host loads follow (spec §4.5).
    fn set_state(&mut self, slot: u16, to: Set) {
        let from = self.set(slot);
        self.sets.change(slot, to);
        match (from == Set::Bulk, to == Set::Bulk) {
            (false, true) => self.join_hosts(slot),
            (true, false) => self.leave_hosts(slot),
            _ => {}
        }
    }

    /// Bytes a flow may still send; that of an old one is with its turn.
    #[inline(always)]
    fn deficit(&self, slot: u16) -> i32 {
        let old = self.sets.old();
        old.first_deficit(slot).unwrap_or_else(|| {
            let turn = if self.sets.is_old(slot) { old.deficit(slot) } else { None };
            turn.unwrap_or(self.accounts[slot].deficit)
        })
    }

    #[inline(always)]
    fn deficit_mut(&mut self, slot: u16) -> &mut i32 {
        let old = self.sets.is_old(slot);
        let turn = if old { self.sets.old_mut().deficit_mut(slot) } else { None };
        turn.unwrap_or(&mut self.accounts[slot].deficit)
    }

    /// Takes a flow out of the list it is in.
    #[inline(always)]
    fn leave_list(&mut self, slot: u16) {
        if let Some(deficit) = self.sets.remove(slot) {
            self.accounts[slot].deficit = deficit;
        }
    }

    /// Takes a flow out of the list it is in, if any, and appends it to this one.
    #[inline(always)]
    fn move_to(&mut self, slot: u16, list: List) {
        self.leave_list(slot);
        self.sets.append(slot, list, self.accounts[slot]);
    }

    fn count_unresponsive(&mut self, blue: Blue) {
        match blue {
            Blue::Unchanged => {}
            Blue::Rose => self.unresponsive += 1,
            Blue::Rested => self.unresponsive = self.unresponsive.saturating_sub(1),
        }
    }
}

impl Delays {
    fn observe(&mut self, sojourn: Span) {
        let sample = sojourn.nanos_or_zero();
        let ewma = |average: u64, shift: u32| average - (average >> shift) + (sample >> shift);
        self.average = ewma(self.average, 8);
        self.peak = ewma(self.peak, if sample > self.peak { 2 } else { 8 });
        self.base = ewma(self.base, if sample < self.base { 2 } else { 8 });
    }
}

fn flow_quantum(threshold: Option<Rate>) -> u16 {
    let (least, most) = QUANTUM_RANGE;
    let quantum = |rate: Rate| u16::try_from(rate.bytes() >> 12).unwrap_or(most);
    threshold.map_or(most, |rate| quantum(rate).clamp(least, most))
}

fn cobalt_params(config: &Config, threshold: Option<Rate>, mtu: FrameLen) -> cobalt::Params {
    let mtu_time = ByteTime::new(threshold).duration(WireLen(mtu.0));
    let slowest_target = Span::from_nanos(mtu_time.nanos().saturating_mul(3) / 2);
    let target = slowest_target.max(config.target);
    let interval = (config.interval + target - config.target).max(target * 2);
    cobalt::Params { target, interval, mtu_time }
}

fn as_span(nanos: u64) -> Span {
    Span::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bulk flows that wait their turn with these deficits.
    fn with_old_flows(deficits: &[i32]) -> Tin {
        let mut tin = Tin::new();
        tin.flow_quantum = 300;
        for (slot, deficit) in (0..).zip(deficits) {
            tin.accounts[slot].deficit = *deficit;
            tin.sets.change(slot, Set::Bulk);
            tin.move_to(slot, List::Old);
        }
        tin
    }

    proptest! {
        #[test]
        fn turning_is_looking_at_one_flow_after_another(
            deficits in prop::collection::vec(-400..2_i32, 1..200),
            hosts in prop::sample::select(vec![1_u16, 2, 50]),
            most in 0..10_000_u32,
            moved in 0..3_000_u16,
            changed in prop::collection::vec((0..200_u16, 1..4_u16), 0..3),
        ) {
            let mut stepwise = with_old_flows(&[]);
            // Begins anywhere in the ring.
            for _ in 0..moved {
                stepwise.move_to(0, List::Old);
                stepwise.leave_list(0);
            }
            for (slot, deficit) in (0..).zip(&deficits) {
                // Flows of a host are neighbours.
                let source = slot * hosts / 200;
                let hosts = Hosts { source, destination: 9 };
                stepwise.accounts[slot] = Account { deficit: *deficit, hosts };
                stepwise.set_state(slot, Set::Bulk);
                stepwise.move_to(slot, List::Old);
            }
            // Some change hosts while they wait.
            for (slot, source) in changed {
                let hosts = HostHashes { source: source.into(), destination: 9 };
                stepwise.assign_hosts(slot, Some(hosts));
            }
            // Not so many that rounds are granted to few flows.
            let most = if deficits.len() > MOST_GRANTED as usize { most } else { most % 128 };
            let mut at_once = stepwise.clone();
            let mut dithers =
                core::iter::successors(Some(40_503_u16), |last| Some(last.wrapping_add(40_503)));
            let mut steps = 0;
            while steps < most {
                let slot = stepwise.next_flow(false).expect("they are in the list");
                if stepwise.may_send(slot, || dithers.next().expect("more")) {
                    break;
                }
                steps += 1;
            }
            prop_assert_eq!(at_once.turn(most, || 40_503), steps);
            for slot in (0..).take(deficits.len()) {
                let deficits = [&stepwise, &at_once].map(|tin| tin.account(slot).deficit);
                prop_assert_eq!(deficits[0], deficits[1]);
            }
            // The order is the same too.
            for _ in 0..deficits.len() {
                let [one, other] = [&mut stepwise, &mut at_once].map(|tin| {
                    let slot = tin.next_flow(false);
                    slot.inspect(|&slot| tin.leave_list(slot))
                });
                prop_assert_eq!(one, other);
                let [one, other] = [&stepwise, &at_once].map(|tin| {
                    one.map(|slot| tin.account(slot).deficit)
                });
                prop_assert_eq!(one, other);
            }
        }

        #[test]
        fn rounds_granted_at_once_are_single_rounds_but_for_the_dithers(
            deficits in prop::collection::vec(-90_000..0_i32, 1..70), seed: u16,
        ) {
            let mut stepwise = with_old_flows(&deficits);
            let mut at_once = stepwise.clone();
            let flows = u32::try_from(deficits.len()).expect("few");
            at_once.grant_rounds(&mut seed.clone());
            // As often round as the first flow was.
            let given = i64::from(at_once.account(0).deficit - deficits[0]);
            let rounds = u32::try_from((given + 299) / 300).expect("not that many");
            let mut dithers = (seed..=u16::MAX).chain(0..=u16::MAX).cycle();
            for _ in 0..rounds * flows {
                let slot = stepwise.next_flow(false).expect("they are in the list");
                prop_assert!(!stepwise.may_send(slot, || dithers.next().expect("more")));
            }
            for slot in (0..).take(deficits.len()) {
                let [one, other] = [&stepwise, &at_once].map(|tin| tin.account(slot).deficit);
                prop_assert!(one.abs_diff(other) <= rounds.max(1), "{} {}", one, other);
                prop_assert!(rounds == 0 || other <= 0);
            }
            prop_assert!(rounds == 0 || rounds >= WORTH_GRANTING - 1);
        }
    }

    #[test]
    fn derived_parameters_are_those_of_the_specification() {
        // Spec §2.6: bytes per second, quantum, then mtu_time, target and interval in ns.
        let vectors = [
            (16_000, 300, 94_625_000, 141_937_500, 283_875_000),
            (125_000, 300, 12_112_000, 18_168_000, 113_168_000),
            (156_250, 300, 9_689_600, 14_534_400, 109_534_400),
            (1_250_000, 305, 1_211_200, 5_000_000, 100_000_000),
            (2_500_000, 610, 605_600, 5_000_000, 100_000_000),
            (3_125_000, 762, 484_480, 5_000_000, 100_000_000),
            (12_500_000, 1514, 121_120, 5_000_000, 100_000_000),
            (125_000_000, 1514, 12_112, 5_000_000, 100_000_000),
        ];
        for (bytes, quantum, mtu_time, target, interval) in vectors {
            let rate = Some(Rate::from_bytes(bytes));
            let params = cobalt_params(&Config::default(), rate, FrameLen(1514));
            assert_eq!(flow_quantum(rate), quantum, "{bytes}");
            assert_eq!(params.mtu_time.nanos(), mtu_time, "{bytes}");
            assert_eq!(params.target.nanos(), target, "{bytes}");
            assert_eq!(params.interval.nanos(), interval, "{bytes}");
        }
        assert_eq!(flow_quantum(None), 1514);
    }

    #[test]
    fn delays_move_fast_towards_what_they_stand_for() {
        let mut delays = Delays::default();
        delays.observe(Span::from_millis(10));
        assert_eq!(delays.peak, 2_500_000);
        assert_eq!(delays.average, 39_062);
        assert_eq!(delays.base, 39_062);
        delays.observe(Span::ZERO);
        assert_eq!(delays.base, 39_062 - (39_062 >> 2));
        assert_eq!(delays.peak, 2_500_000 - (2_500_000 >> 8));
    }

    /// A flow with `hash` of source `host` sends and becomes bulk.
    pub(super) fn bulk(tin: &mut Tin, hash: u32, host: u32) -> u16 {
        let slot = arrive(tin, hash, host);
        tin.move_to(slot, List::Old);
        tin.set_state(slot, Set::Bulk);
        slot
    }

    pub(super) fn arrive(tin: &mut Tin, hash: u32, host: u32) -> u16 {
        tin.settle(|| hash, || Some(HostHashes { source: host, destination: 9 }))
    }

    #[test]
    fn a_flow_that_spent_its_quantum_on_its_last_packet_waits_before_it_decays() {
        let mut tin = Tin::new();
        tin.flow_quantum = 1514;
        let slot = arrive(&mut tin, 5, 100);
        tin.activate(slot, u16::MAX);
        tin.spend(slot, WireLen(1514));
        assert!(!tin.may_send(slot, || u16::MAX));
        assert_eq!(tin.set(slot), Set::SparseWait);
        assert!(tin.sets.is_old(slot) && tin.sets.sparse() == 1, "among the old flows");
        tin.activate(slot, 0);
        assert_eq!(tin.set(slot), Set::Bulk, "more came at once: it is no sparse flow");
    }

    #[test]
    fn a_queue_found_empty_decays_until_its_aqm_is_at_rest() {
        let mut tin = Tin::new();
        tin.params = cobalt_params(&Config::default(), None, FrameLen(1514));
        let now = Instant::from_nanos(1_000_000_000);
        let slot = bulk(&mut tin, 5, 100);
        let params = tin.params();
        let cobalt = &mut tin.flows[slot].cobalt;
        cobalt.should_drop(&params, now, 0, || false, || 0, now);
        tin.found_empty(slot, now);
        assert_eq!(tin.set(slot), Set::Decaying);
        assert_eq!(tin.host_loads(tin.account(slot).hosts), (0, 0), "no load on its host any more");
        tin.found_empty(slot, now + Span::from_millis(99));
        assert_eq!(tin.set(slot), Set::Decaying);
        tin.found_empty(slot, now + Span::from_millis(100));
        assert_eq!(tin.set(slot), Set::None);
    }
}
