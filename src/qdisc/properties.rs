//! What must hold whatever happens (design §8): random sequences of operations, all invariants checked
//! after each.

use super::drr::Set;
use super::*;
use crate::packet::tcp::{SackBlock, TcpFlags, TcpHeader, Timestamps};
use crate::packet::{Dscp, FlowKey};
use crate::sim::{BEGIN, SimFrame, flow};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Op {
    Enqueue { flow: u16, hosts: (u8, u8), dscp: u8, segments: u16, len: u32, ect: bool },
    Ack { flow: u16, segments: u16, tcp: TcpHeader },
    Dequeue { most: u8 },
    Advance { nanos: i64 },
    Rate { bits: Option<u64> },
    Memory { bytes: u64 },
    Rtt { micros: i64 },
    Split { split: bool },
    Ingress { ingress: bool },
    Acks { ack_filter: AckFilter },
    Tins { diffserv: Diffserv },
    Isolate { isolation: Isolation },
}

/// A packet of one of three connections that says something about few numbers.
fn ack() -> impl Strategy<Value = Op> {
    let flags =
        prop_oneof![8 => Just(0x010), 1 => Just(0x050), 1 => Just(0x090), 1 => 0..0x1000_u16];
    let options = (any::<bool>(), 0..20_u32, 0..3_u32, prop::bool::weighted(0.1));
    let segments = prop_oneof![6 => Just(1_u16), 1 => 2..5_u16];
    (0..3_u16, segments, flags, 0..20_u32, prop::bool::weighted(0.2), options).prop_map(
        |(number, segments, flags, ack, data, (stamped, clock, blocks, vital))| {
            let blocks = (0..blocks).map(|i| SackBlock { start: 100 + 20 * i, end: 110 + 20 * i });
            let mut tcp = TcpHeader {
                flow: FlowKey { source_port: number, ..flow(number).flow },
                ack,
                flags: TcpFlags::new(flags),
                has_payload: data || segments > 1,
                ..TcpHeader::default()
            };
            tcp.options.vital = vital;
            tcp.options.sack = Some(blocks.collect());
            if stamped {
                tcp.options.timestamps.push(Timestamps { value: clock, echo: 0 });
            }
            Op::Ack { flow: number, segments, tcp }
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let enqueue =
        (0..4000_u16, (0..9_u8, 0..9_u8), 0..64_u8, 1..20_u16, 1..1600_u32, any::<bool>())
            .prop_map(|(flow, hosts, dscp, segments, len, ect)| Op::Enqueue {
                flow: if flow < 3000 { flow % 8 } else { flow },
                hosts,
                dscp: if dscp < 40 { 0 } else { dscp },
                segments: if segments < 15 { 1 } else { segments },
                len,
                ect,
            });
    prop_oneof![
        12 => enqueue,
        8 => ack(),
        6 => (0..40_u8).prop_map(|most| Op::Dequeue { most }),
        4 => (-2_000_000..20_000_000_i64).prop_map(|nanos| Op::Advance { nanos }),
        1 => Just(Op::Advance { nanos: 3_600_000_000_000 }),
        1 => prop_oneof![Just(None), (1..60_u32).prop_map(|power| Some(1_u64 << power))]
            .prop_map(|bits| Op::Rate { bits }),
        1 => prop_oneof![Just(1_u64), 1..100_000_u64, Just(u64::from(u32::MAX))]
            .prop_map(|bytes| Op::Memory { bytes }),
        1 => (0..2_000_000_000_i64).prop_map(|micros| Op::Rtt { micros }),
        1 => any::<bool>().prop_map(|split| Op::Split { split }),
        1 => any::<bool>().prop_map(|ingress| Op::Ingress { ingress }),
        1 => prop_oneof![Just(AckFilter::Off), Just(AckFilter::Conservative), Just(AckFilter::Aggressive)]
            .prop_map(|ack_filter| Op::Acks { ack_filter }),
        1 => prop::sample::select(&Diffserv::ALL[..]).prop_map(|diffserv| Op::Tins { diffserv }),
        1 => prop::sample::select(&Isolation::ALL[..]).prop_map(|isolation| Op::Isolate { isolation }),
    ]
}

/// A world that keeps its own books beside the instance's.
struct Books {
    cake: Cake<SimFrame>,
    now: Instant,
    /// The latest time the instance has been told; it answers as of then.
    seen: Instant,
    units_in: u64,
    /// Units in tins that went out of use.
    discarded: u64,
    /// Whether flows were moved to other queues on the way, which need not keep their order.
    isolated: bool,
    sequence: u64,
    /// By queue of departure and flow: the sequence that left last.
    left: HashMap<(u8, usize), u64>,
    wake: Option<Instant>,
}

impl Books {
    fn new(config: Config) -> Self {
        Self {
            cake: Cake::new(config, FrameLen(1514), Entropy::from_seed(7)),
            now: BEGIN,
            seen: Instant::ZERO,
            units_in: 0,
            discarded: 0,
            isolated: false,
            sequence: 0,
            left: HashMap::new(),
            wake: None,
        }
    }

    fn apply(&mut self, op: &Op) {
        let change = |change: Change, cake: &mut Cake<SimFrame>| cake.change(&change);
        match *op {
            Op::Enqueue { flow: number, hosts, dscp, segments, len, ect } => {
                let meta = flow(number)
                    .between(u32::from(hosts.0), u32::from(hosts.1))
                    .with_dscp(dscp)
                    .with_ecn(if ect { crate::packet::Ecn::Ect0 } else { Default::default() });
                let mss = u16::try_from(len).unwrap_or(1);
                let meta = if segments > 1 {
                    meta.superpacket(segments, mss)
                } else {
                    meta.with_len(FrameLen(len))
                };
                let source = usize::from(number) * 81 + usize::from(hosts.0 * 9 + hosts.1);
                self.enqueue(source, &meta);
            }
            Op::Ack { flow: number, segments, tcp } => {
                let meta = flow(number);
                let meta = match segments {
                    1 => meta.with_len(FrameLen(if tcp.has_payload { 1400 } else { 66 })),
                    _ => meta.superpacket(segments, 1000),
                };
                self.enqueue_tcp(1_000_000 + usize::from(number), &meta, Some(Box::new(tcp)));
            }
            Op::Dequeue { most } => self.dequeue(usize::from(most)),
            Op::Advance { nanos } => self.now += Span::from_nanos(nanos),
            Op::Rate { bits } => {
                let bandwidth = Some(bits.map(Rate::from_bits));
                change(Change { bandwidth, ..Change::default() }, &mut self.cake);
                self.wake = None;
            }
            Op::Memory { bytes } => {
                let memory_limit = Some(Some(MemSize(bytes)));
                change(Change { memory_limit, ..Change::default() }, &mut self.cake);
            }
            Op::Rtt { micros } => {
                let interval = Some(Span::from_micros(micros));
                let target = Some(Span::from_micros(micros / 20));
                change(Change { interval, target, ..Change::default() }, &mut self.cake);
            }
            Op::Split { split } => {
                let split_gso = Some(if split { SplitGso::Split } else { SplitGso::Whole });
                change(Change { split_gso, ..Change::default() }, &mut self.cake);
            }
            Op::Ingress { ingress } => {
                change(Change { ingress: Some(ingress), ..Change::default() }, &mut self.cake);
            }
            Op::Acks { ack_filter } => {
                let ack_filter = Some(ack_filter);
                change(Change { ack_filter, ..Change::default() }, &mut self.cake);
            }
            Op::Tins { diffserv } => {
                let before = self.cake.queued;
                let diffserv = Some(diffserv);
                change(Change { diffserv, ..Change::default() }, &mut self.cake);
                self.discarded += before - self.cake.queued;
            }
            Op::Isolate { isolation } => {
                let isolation = Some(isolation);
                change(Change { isolation, ..Change::default() }, &mut self.cake);
                // A flow may wait in its old queue and in its new one.
                self.left.clear();
                self.isolated = true;
            }
        }
        self.check();
    }

    fn enqueue(&mut self, source: usize, meta: &Meta) {
        self.enqueue_tcp(source, meta, None);
    }

    fn enqueue_tcp(&mut self, source: usize, meta: &Meta, tcp: Option<Box<TcpHeader>>) {
        let before = self.cake.queued;
        let dropped = self.cake.counters.dropped;
        let frame = SimFrame { source, sequence: self.sequence, tcp, ..SimFrame::new(meta) };
        self.sequence += 100;
        self.seen = self.seen.max(self.now);
        let units = match self.cake.config.split_gso {
            SplitGso::Split => u64::from(meta.segments.count),
            SplitGso::Whole => 1,
        };
        self.cake.enqueue(frame, meta, self.now);
        self.units_in += units;
        let lost = self.cake.counters.dropped - dropped;
        assert_eq!(self.cake.queued, before + units - lost);
        assert!(
            self.cake.memory <= self.cake.memory_limit || self.cake.queued == 0,
            "memory {:?} over {:?}",
            self.cake.memory,
            self.cake.memory_limit
        );
        self.wake = None;
    }

    fn dequeue(&mut self, most: usize) {
        for _ in 0..most {
            self.seen = self.seen.max(self.now);
            match self.cake.dequeue(self.now) {
                Dequeue::Send(departure) => {
                    if let Some(at) = self.wake {
                        assert!(self.seen >= at, "left at {:?}, not before {at:?}", self.seen);
                    }
                    let frame = &departure.frame;
                    let key = (departure.queue.0, frame.source);
                    let sequence = frame.sequence + u64::from(frame.segment) + 1;
                    let last = self.left.insert(key, sequence).unwrap_or(0);
                    assert!(sequence > last || self.isolated, "{sequence} left after {last}");
                }
                Dequeue::Wait(wake) if wake.why == Why::WorkBound => {}
                Dequeue::Wait(wake) => {
                    assert!(wake.at > self.seen);
                    self.wake = Some(wake.at);
                    return;
                }
                Dequeue::Idle => {
                    assert_eq!(self.cake.queued, 0);
                    return;
                }
            }
        }
    }

    fn check(&self) {
        let cake = &self.cake;
        let stats = cake.stats();
        let tins = &cake.tins[..usize::from(cake.tin_count)];
        assert_eq!(stats.backlog, tins.iter().map(Tin::backlog).sum());
        let queues = cake.queue_stats(self.now);
        assert_eq!(stats.backlog, queues.iter().map(|queue| queue.backlog).sum());
        assert_eq!(stats.queued_packets, queues.iter().map(|queue| queue.packets).sum::<u32>());
        let queued = || cake.packets.iter().map(|(_, packet)| packet);
        assert_eq!(cake.memory, queued().map(|packet| packet.total().truesize).sum());
        let acks =
            |tin: &Tin| tin.active_queues().map(|(_, flow)| flow.packets.acks()).sum::<u32>();
        let recount = queued().filter(|packet| packet.may_be_ack()).count();
        assert_eq!(tins.iter().map(acks).sum::<u32>() as usize, recount);
        if stats.queued_packets == 0 {
            assert_eq!(cake.memory, MemSize::ZERO);
            assert!(cake.packets.is_empty());
        }
        for tin in tins {
            tin.check_counts(cake.config.isolation);
        }
    }

    /// Everything that can leave leaves; the books then close.
    fn close(mut self) {
        self.now = self.seen;
        let mut calls = 0;
        loop {
            match self.cake.dequeue(self.now) {
                Dequeue::Send(_) => {}
                Dequeue::Wait(wake) => self.now = self.now.max(wake.at),
                Dequeue::Idle => break,
            }
            calls += 1;
            assert!(calls < 10_000_000, "nothing may starve");
        }
        let stats = self.cake.stats();
        let left = |tin: &TinStats| tin.packets - tin.drops - tin.ack_drops;
        // Counters of tins that are in use no more are not shown.
        let counters = self.cake.tins.iter().map(Tin::stats);
        let left: u64 = counters.clone().map(|tin| left(&tin)).sum();
        assert_eq!(self.units_in, counters.map(|tin| tin.packets).sum::<u64>());
        assert_eq!(left + stats.dropped, self.units_in);
        assert_eq!((stats.queued_packets, stats.backlog), (0, FrameLen::ZERO));
        assert_eq!(self.cake.memory, MemSize::ZERO);
        self.check();
    }
}

impl Tin {
    /// Recounts what is counted as it goes along.
    fn check_counts(&self, isolation: Isolation) {
        let slots = || 0..flow_table::SLOTS;
        let count = |sets: &[Set]| slots().filter(|&s| sets.contains(&self.set(s))).count();
        assert_eq!(self.stats().bulk_flows as usize, count(&[Set::Bulk]));
        let quiet = count(&[Set::Sparse, Set::SparseWait, Set::Decaying]);
        assert_eq!(self.stats().sparse_flows as usize, quiet);
        for slot in slots() {
            if !self.flow(slot).packets.is_empty() {
                assert!(matches!(self.set(slot), Set::Sparse | Set::Bulk), "queue {slot}");
            }
        }
        self.check_host_loads(isolation);
        let unresponsive =
            slots().filter(|&slot| self.flow(slot).cobalt.drop_probability() != 0).count();
        assert_eq!(self.stats().unresponsive_flows as usize, unresponsive);
    }

    /// Counts each host's bulk flows anew.
    fn check_host_loads(&self, isolation: Isolation) {
        let (mut sources, mut destinations) = ([0; 1024], [0; 1024]);
        let bulk = (0..flow_table::SLOTS).filter(|&slot| self.set(slot) == Set::Bulk);
        for flow in bulk.map(|slot| self.flow(slot)) {
            sources[usize::from(flow.source_host)] += 1;
            destinations[usize::from(flow.destination_host)] += 1;
        }
        for slot in 0..flow_table::SLOTS {
            let flow = self.flow(slot);
            let counted = |fair: bool, count: u16| if fair { count } else { 0 };
            let expected = (
                counted(isolation.fair_by_source(), sources[usize::from(flow.source_host)]),
                counted(
                    isolation.fair_by_destination(),
                    destinations[usize::from(flow.destination_host)],
                ),
            );
            assert_eq!(self.host_loads(slot), expected, "hosts of queue {slot}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn all_invariants_hold_after_every_operation(
        ops in proptest::collection::vec(op(), 1..160),
        diffserv in 0..5_usize,
        shaped in any::<bool>(),
    ) {
        let bandwidth = shaped.then(|| Rate::from_bits(20_000_000));
        let diffserv = Diffserv::ALL[diffserv];
        let mut books = Books::new(Config { bandwidth, diffserv, ..Config::default() });
        for op in &ops {
            books.apply(op);
        }
        books.close();
    }
}

/// What a caller of the library may say of a frame, sensible or not.
fn any_meta() -> impl Strategy<Value = Meta> {
    let odd16 = || prop_oneof![Just(0_u16), Just(1), Just(u16::MAX), any::<u16>()];
    let odd32 = || prop_oneof![3 => 0..2000_u32, 1 => Just(u32::MAX), 1 => any::<u32>()];
    let truesize = prop_oneof![Just(0), 0..4000_u64, Just(u64::MAX)];
    (odd16(), odd16(), odd16(), odd16(), odd32(), truesize, 0..3_u16).prop_map(
        |(count, mss, header_len, network_offset, len, truesize, number)| Meta {
            len: FrameLen(len),
            network_offset,
            segments: crate::packet::Segments { count, mss, header_len },
            truesize: MemSize(truesize),
            ..flow(number)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_said_of_a_frame_stops_an_instance(
        metas in proptest::collection::vec(any_meta(), 1..8),
        split in any::<bool>(),
        limit in prop_oneof![Just(1), Just(100_000), Just(u64::MAX)],
        bits in prop_oneof![Just(0), Just(8_u64), Just(u64::MAX)],
        nanos in prop_oneof![Just(i64::MIN), Just(0), Just(i64::MAX - 5), Just(i64::MAX)],
    ) {
        let config = Config {
            bandwidth: Some(Rate::from_bits(bits)),
            memory_limit: Some(MemSize(limit)),
            split_gso: if split { SplitGso::Split } else { SplitGso::Whole },
            ..Config::default()
        };
        let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(7));
        let now = Instant::from_nanos(nanos);
        let (mut taken, mut left) = (0, 0);
        for meta in &metas {
            taken += if split { u64::from(meta.segments.count.max(1)) } else { 1 };
            cake.enqueue(SimFrame::new(meta), meta, now);
            prop_assert!(cake.memory <= cake.memory_limit || cake.queued == 0);
            for _ in 0..2 {
                left += u64::from(matches!(cake.dequeue(now), Dequeue::Send(_)));
            }
            let _ = (meta.segment_len(u16::MAX), cake.stats(), cake.queue_stats(now));
            prop_assert_eq!(taken, left + cake.counters.dropped + cake.queued);
        }
        // Everything goes as soon as there is no room any more.
        cake.change(&Change { memory_limit: Some(Some(MemSize(1))), ..Change::default() });
        cake.enqueue(SimFrame::new(&flow(1)), &flow(1), now);
        prop_assert_eq!((cake.queued, cake.memory, cake.backlog), (0, MemSize::ZERO, FrameLen::ZERO));
    }
}

#[test]
fn frames_without_length_are_found_when_memory_runs_out() {
    let memory_limit = Some(MemSize(1000));
    let mut books = Books::new(Config { memory_limit, ..Config::default() });
    for number in 0..20 {
        books.enqueue(0, &flow(number).with_len(FrameLen(0)));
    }
    books.close();
}

#[test]
fn a_frame_that_says_it_holds_no_memory_is_charged_some() {
    let memory_limit = Some(MemSize(10_000));
    let mut books = Books::new(Config { memory_limit, ..Config::default() });
    for _ in 0..100 {
        books.enqueue(0, &Meta { len: FrameLen(60), ..flow(1) });
    }
    assert_eq!(books.cake.queued, 10_000 / flow::LEAST_TRUESIZE.0);
}

#[test]
fn more_segments_than_32_bits_can_count_are_queued_and_leave() {
    let memory_limit = Some(MemSize(64 << 20));
    let mut cake = Cake::new(
        Config { memory_limit, ..Config::default() },
        FrameLen(1514),
        Entropy::from_seed(7),
    );
    let meta = flow(1).superpacket(u16::MAX, 0);
    for _ in 0..=65_537 {
        let meta = Meta { truesize: MemSize(0), ..meta };
        cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
    }
    assert_eq!(cake.queued, 65_538 * 65_535);
    assert_eq!(cake.stats().queued_packets, u32::MAX);
    assert_eq!(cake.queue_stats(BEGIN)[0].packets, u32::MAX);
    assert!(matches!(cake.dequeue(BEGIN), Dequeue::Send(_)));
}

#[test]
fn a_limit_of_one_byte_drops_everything_and_ends() {
    let memory_limit = Some(MemSize(1));
    let mut books = Books::new(Config { memory_limit, ..Config::default() });
    for number in 0..100 {
        books.enqueue(0, &flow(number).with_len(FrameLen(1514)).with_dscp(Dscp::CS7.value()));
        assert_eq!(books.cake.queued, 0);
    }
    books.close();
}

#[test]
fn twenty_thousand_tiny_packets_are_queued_if_memory_allows() {
    let mut books = Books::new(Config::default());
    for _ in 0..20_000 {
        books.enqueue(0, &flow(1).with_len(FrameLen(60)));
    }
    assert_eq!(books.cake.stats().queued_packets, 20_000);
    assert_eq!(books.cake.stats().dropped, 0);
}

#[test]
fn a_tin_that_is_no_longer_used_lets_its_packets_go_uncounted() {
    let mut books = Books::new(Config::default());
    books.enqueue(0, &flow(1).with_len(FrameLen(100)).with_dscp(46));
    books.enqueue(0, &flow(1).with_len(FrameLen(100)));
    let diffserv = Some(Diffserv::Besteffort);
    books.cake.change(&Change { diffserv, ..Change::default() });
    let stats = books.cake.stats();
    assert_eq!((stats.queued_packets, stats.dropped), (1, 0));
    assert_eq!(books.cake.memory, MemSize(356));
}

#[test]
fn a_clock_that_goes_back_is_counted_and_answered_as_if_it_had_stood() {
    let bandwidth = Some(Rate::from_bits(1_000_000));
    let mut books = Books::new(Config { bandwidth, ..Config::default() });
    for _ in 0..3 {
        books.enqueue(0, &flow(1).with_len(FrameLen(1514)));
    }
    books.dequeue(2);
    books.now = BEGIN - Span::from_secs(5);
    assert!(matches!(books.cake.dequeue(books.now), Dequeue::Wait(wake) if wake.at > BEGIN));
    assert_eq!(books.cake.stats().clock_went_back, 1);
}

#[test]
fn long_shaped_operation_does_not_burden_the_tins_once_unlimited() {
    let bandwidth = Some(Rate::from_bits(1_000_000_000));
    let mut books = Books::new(Config { bandwidth, ..Config::default() });
    for _ in 0..1000 {
        for _ in 0..100 {
            books.enqueue(0, &flow(1).with_len(FrameLen(1514)));
        }
        books.now += Span::from_millis(2);
        books.dequeue(200);
    }
    books.cake.change(&Change { bandwidth: Some(None), ..Change::default() });
    books.enqueue(0, &flow(1).with_len(FrameLen(1514)));
    let dequeued = books.cake.dequeue(books.now);
    assert!(matches!(dequeued, Dequeue::Send(_)), "at once, not after a million turns");
}
