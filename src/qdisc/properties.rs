//! What must hold whatever happens (design §8): random sequences of operations, all invariants checked
//! after each.

use super::drr::Set;
use super::flow::Hosts;
use super::*;
use crate::packet::tcp::{SackBlock, TcpFlags, TcpHeader, Timestamps};
use crate::packet::{Dscp, FlowKey, Overrides};
use crate::sim::{BEGIN, SimFrame, flow};
use crate::units::Rate;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Op {
    Enqueue {
        flow: u16,
        hosts: (u8, u8),
        dscp: u8,
        segments: u16,
        len: u32,
        ect: bool,
        class: u32,
        rtt: Option<i64>,
    },
    Ack {
        flow: u16,
        segments: u16,
        tcp: TcpHeader,
    },
    Dequeue {
        most: u8,
    },
    Advance {
        nanos: i64,
    },
    Rate {
        bits: Option<u64>,
    },
    Memory {
        bytes: u64,
    },
    Rtt {
        micros: i64,
    },
    Split {
        split_gso: SplitGso,
    },
    Runs {
        burst: i64,
        rtt_step: i64,
    },
    Ingress {
        ingress: bool,
    },
    Acks {
        ack_filter: AckFilter,
    },
    Tins {
        diffserv: Diffserv,
    },
    Isolate {
        isolation: Isolation,
        nat: bool,
    },
    Autorate {
        on: bool,
    },
    Overhead {
        bytes: i16,
    },
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

fn split_gso() -> impl Strategy<Value = SplitGso> {
    prop::sample::select(&SplitGso::ALL[..])
}

fn op() -> impl Strategy<Value = Op> {
    let class =
        prop_oneof![9 => Just(0), 1 => (0..3_u32, 0..1100_u32).prop_map(|(h, f)| h << 16 | f)];
    let rtt = prop::option::of(0..5_000_i64);
    let whose = (0..4000_u16, (0..9_u8, 0..9_u8), 0..64_u8, class);
    let enqueue = (whose, 1..20_u16, 1..1600_u32, any::<bool>(), rtt).prop_map(
        |((flow, hosts, dscp, class), segments, len, ect, rtt)| Op::Enqueue {
            class,
            flow: if flow < 3000 { flow % 8 } else { flow },
            hosts,
            dscp: if dscp < 40 { 0 } else { dscp },
            segments: if segments < 15 { 1 } else { segments },
            len,
            ect,
            rtt,
        },
    );
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
        1 => split_gso().prop_map(|split_gso| Op::Split { split_gso }),
        1 => (0..2_000_i64, 0..2_000_i64)
            .prop_map(|(burst, rtt_step)| Op::Runs { burst, rtt_step }),
        1 => any::<bool>().prop_map(|ingress| Op::Ingress { ingress }),
        1 => prop_oneof![Just(AckFilter::Off), Just(AckFilter::Conservative), Just(AckFilter::Aggressive)]
            .prop_map(|ack_filter| Op::Acks { ack_filter }),
        1 => (0..5_usize).prop_map(|mode| Op::Tins { diffserv: Diffserv::ALL[mode] }),
        1 => (0..8_usize, prop::bool::weighted(0.2))
            .prop_map(|(mode, nat)| Op::Isolate { isolation: Isolation::ALL[mode], nat }),
        1 => any::<bool>().prop_map(|on| Op::Autorate { on }),
        1 => (-64..=256_i16).prop_map(|bytes| Op::Overhead { bytes }),
    ]
}

/// A world that keeps its own books beside the instance's.
struct Books {
    cake: Cake<SimFrame>,
    now: Instant,
    /// The latest time the instance has been told; it answers as of then.
    seen: Instant,
    units_in: u64,
    sequence: u64,
    /// By queue of departure and flow: the sequence that left last.
    left: HashMap<(u8, usize), u64>,
    wake: Option<Instant>,
    /// Of what leaves in one go: its queue, when it began, its length so far and what it must not exceed.
    run: Option<((u8, u16), Instant, WireLen, WireLen)>,
    /// Whether packets of one flow may be in several queues, since a change of configuration moved some.
    mixed: bool,
}

impl Books {
    fn new(config: Config) -> Self {
        Self {
            cake: Cake::new(config, FrameLen(1514), Entropy::from_seed(7)),
            now: BEGIN,
            seen: Instant::ZERO,
            units_in: 0,
            sequence: 0,
            left: HashMap::new(),
            wake: None,
            run: None,
            mixed: false,
        }
    }

    fn apply(&mut self, op: &Op) {
        let change = |change: Change, cake: &mut Cake<SimFrame>| cake.change(&change);
        match *op {
            Op::Enqueue { flow: number, hosts, dscp, segments, len, ect, class, rtt } => {
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
                let (overrides, min_rtt) =
                    (Overrides::from_class(class), rtt.map(Span::from_micros));
                let meta = Meta { overrides, min_rtt, ..meta };
                let source = usize::from(number) * 81 + usize::from(hosts.0 * 9 + hosts.1);
                self.enqueue(source << 32 | class as usize, &meta);
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
            Op::Split { split_gso } => {
                let split_gso = Some(split_gso);
                change(Change { split_gso, ..Change::default() }, &mut self.cake);
            }
            Op::Runs { burst, rtt_step } => {
                let [burst, rtt_step] = [burst, rtt_step].map(Span::from_micros).map(Some);
                change(Change { burst, rtt_step, ..Change::default() }, &mut self.cake);
            }
            Op::Ingress { ingress } => {
                change(Change { ingress: Some(ingress), ..Change::default() }, &mut self.cake);
            }
            Op::Acks { ack_filter } => {
                let ack_filter = Some(ack_filter);
                change(Change { ack_filter, ..Change::default() }, &mut self.cake);
            }
            Op::Tins { diffserv } => {
                let (queued, memory) = (self.cake.queued, self.cake.memory);
                let diffserv = Some(diffserv);
                change(Change { diffserv, ..Change::default() }, &mut self.cake);
                assert_eq!((self.cake.queued, self.cake.memory), (queued, memory));
                self.mixed = true;
            }
            Op::Isolate { isolation, nat } => {
                let (isolation, nat) = (Some(isolation), Some(nat));
                change(Change { isolation, nat, ..Change::default() }, &mut self.cake);
                self.mixed = true;
            }
            Op::Autorate { on } => {
                let autorate_ingress = Some(on);
                change(Change { autorate_ingress, ..Change::default() }, &mut self.cake);
                self.wake = None;
            }
            Op::Overhead { bytes } => {
                change(Change { overhead: Some(bytes), ..Change::default() }, &mut self.cake);
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
        let divides = self.cake.config.split_gso.divides();
        let units = if divides { u64::from(meta.segments.count) } else { 1 };
        self.cake.enqueue(frame, meta, self.now);
        self.units_in += units;
        let lost = self.cake.counters.dropped - dropped;
        assert_eq!(self.cake.queued, before + units - lost);
        // What is over the limit after as many drops as one call makes goes with the next frames.
        let bound = u64::from(DROP_BOUND.max(meta.segments.count.into()));
        assert!(
            self.cake.memory <= self.cake.memory_limit || self.cake.queued == 0 || lost >= bound,
            "memory {:?} over {:?}",
            self.cake.memory,
            self.cake.memory_limit
        );
        self.wake = None;
    }

    fn dequeue(&mut self, most: usize) {
        for _ in 0..most {
            self.seen = self.seen.max(self.now);
            let closed = self.cake.shaper.clone().gate(self.seen).is_some();
            match self.cake.dequeue(self.now) {
                Dequeue::Send(departure) => {
                    self.observe_run(&departure, closed);
                    if let Some(at) = self.wake {
                        assert!(self.seen >= at, "left at {:?}, not before {at:?}", self.seen);
                    }
                    let frame = &departure.frame;
                    let key = (departure.queue.0, frame.source);
                    let sequence = frame.sequence + u64::from(frame.segment) + 1;
                    let last = self.left.insert(key, sequence).unwrap_or(0);
                    assert!(self.mixed || sequence > last, "{sequence} left after {last}");
                }
                Dequeue::Wait(wake) if wake.why == Why::WorkBound => {}
                Dequeue::Wait(wake) => {
                    assert!(wake.at > self.seen);
                    self.wake = Some(wake.at);
                    return;
                }
                Dequeue::Idle => {
                    assert_eq!(self.cake.queued, 0);
                    self.mixed = false;
                    self.left.clear();
                    return;
                }
            }
        }
    }

    /// What leaves while the gate is `closed` belongs to a run, which has begun while it was open.
    fn observe_run(&mut self, departure: &Departure<SimFrame>, closed: bool) {
        let Departure { wire_len, queue, .. } = *departure;
        if !closed {
            let most = self.cake.auto.budget(Near::NEAREST).max(wire_len);
            self.run = Some((queue, self.seen, wire_len, most));
            return;
        }
        assert_eq!(self.cake.config.split_gso, SplitGso::Auto);
        let (of, at, len, most) = self.run.expect("it has begun");
        assert_eq!((of, at), (queue, self.seen), "another queue, or another time");
        assert!(len + wire_len <= most, "{len} and {wire_len} are over {most}");
        self.run = Some((of, at, len + wire_len, most));
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
            tin.check_counts();
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
        // Tins that are in use no more keep what they counted.
        let tins: Vec<TinStats> = self.cake.tins.iter().map(Tin::stats).collect();
        let left: u64 = tins.iter().map(left).sum();
        assert_eq!(self.units_in, tins.iter().map(|tin| tin.packets).sum::<u64>());
        assert_eq!(left + stats.dropped, self.units_in);
        assert_eq!((stats.queued_packets, stats.backlog), (0, FrameLen::ZERO));
        assert_eq!(self.cake.memory, MemSize::ZERO);
        self.check();
    }
}

impl Tin {
    /// Recounts what is counted as it goes along.
    fn check_counts(&self) {
        let slots = || 0..SLOTS;
        let count = |sets: &[Set]| slots().filter(|&s| sets.contains(&self.set(s))).count();
        assert_eq!(self.stats().bulk_flows as usize, count(&[Set::Bulk]));
        let quiet = count(&[Set::Sparse, Set::SparseWait, Set::Decaying]);
        assert_eq!(self.stats().sparse_flows as usize, quiet);
        for slot in slots() {
            if !self.flow(slot).packets.is_empty() {
                assert!(matches!(self.set(slot), Set::Sparse | Set::Bulk), "queue {slot}");
            }
        }
        self.check_host_loads();
        let unresponsive =
            slots().filter(|&slot| self.flow(slot).cobalt.drop_probability() != 0).count();
        assert_eq!(self.stats().unresponsive_flows as usize, unresponsive);
    }

    /// Counts each host's bulk flows anew.
    fn check_host_loads(&self) {
        let (mut sources, mut destinations) = ([0; 1024], [0; 1024]);
        let bulk = (0..SLOTS).filter(|&slot| self.set(slot) == Set::Bulk);
        for hosts in
            bulk.map(|slot| self.account(slot).hosts).filter(|&hosts| hosts != Hosts::UNKNOWN)
        {
            // A side that nobody is fair by counts nobody.
            let [by_source, by_destination] = self.fair_by();
            sources[usize::from(hosts.source)] += u16::from(by_source);
            destinations[usize::from(hosts.destination)] += u16::from(by_destination);
        }
        for slot in 0..SLOTS {
            let hosts = self.account(slot).hosts;
            if hosts == Hosts::UNKNOWN {
                assert_eq!(self.host_loads(hosts), (0, 0), "hosts of queue {slot}");
                continue;
            }
            let expected =
                (sources[usize::from(hosts.source)], destinations[usize::from(hosts.destination)]);
            assert_eq!(self.host_loads(hosts), expected, "hosts of queue {slot}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn all_invariants_hold_after_every_operation(
        ops in proptest::collection::vec(op(), 1..160),
        diffserv in 0..5_usize,
        mbit in prop_oneof![Just(None), Just(Some(20)), Just(Some(1000))],
        split_gso in split_gso(),
    ) {
        let bandwidth = mbit.map(|mbit| Rate::from_bits(mbit * 1_000_000));
        let diffserv = Diffserv::ALL[diffserv];
        let mut books = Books::new(Config { bandwidth, diffserv, split_gso, ..Config::default() });
        for op in &ops {
            books.apply(op);
        }
        books.close();
    }

    #[test]
    fn without_burst_and_step_runs_are_single_segments_and_everything_is_as_under_split_gso(
        ops in proptest::collection::vec(op(), 1..160),
        bits in prop_oneof![Just(None), (20..34_u32).prop_map(|power| Some(1_u64 << power))],
    ) {
        let bandwidth = bits.map(Rate::from_bits);
        let none = Span::ZERO;
        let auto = Config {
            bandwidth, split_gso: SplitGso::Auto, burst: none, rtt_step: none, ..Config::default()
        };
        let mut auto = Books::new(auto);
        let mut split = Books::new(Config { bandwidth, ..Config::default() });
        for op in ops.iter().filter(|op| !matches!(op, Op::Split { .. } | Op::Runs { .. })) {
            auto.apply(op);
            split.apply(op);
            prop_assert_eq!(&auto.left, &split.left);
            let stats = Stats { lateness: none, ..auto.cake.stats() };
            prop_assert_eq!(stats, split.cake.stats());
        }
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
        split_gso in split_gso(),
        limit in prop_oneof![Just(1), Just(100_000), Just(u64::MAX)],
        bits in prop_oneof![Just(0), Just(8_u64), Just(u64::MAX)],
        nanos in prop_oneof![Just(i64::MIN), Just(0), Just(i64::MAX - 5), Just(i64::MAX)],
    ) {
        let config = Config {
            bandwidth: Some(Rate::from_bits(bits)),
            memory_limit: Some(MemSize(limit)),
            split_gso,
            ..Config::default()
        };
        let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(7));
        let now = Instant::from_nanos(nanos);
        let (mut taken, mut left) = (0, 0);
        for meta in &metas {
            taken += if split_gso.divides() { u64::from(meta.segments.count.max(1)) } else { 1 };
            let before = cake.counters.dropped;
            cake.enqueue(SimFrame::new(meta), meta, now);
            let fits = cake.memory <= cake.memory_limit || cake.queued == 0;
            let most = u64::from(DROP_BOUND.max(meta.segments.count.into()));
            prop_assert!(fits || cake.counters.dropped - before >= most);
            for _ in 0..2 {
                left += u64::from(matches!(cake.dequeue(now), Dequeue::Send(_)));
            }
            let _ = (meta.segment_len(u16::MAX), cake.stats(), cake.queue_stats(now));
            prop_assert_eq!(taken, left + cake.counters.dropped + cake.queued);
        }
        // Everything goes as soon as there is no room any more.
        cake.change(&Change { memory_limit: Some(Some(MemSize(1))), ..Change::default() });
        for _ in 0..=cake.queued / u64::from(DROP_BOUND - 1) {
            cake.enqueue(SimFrame::new(&flow(1)), &flow(1), now);
        }
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
        books.enqueue(0, &Meta { len: FrameLen(60), truesize: MemSize(0), ..flow(1) });
    }
    assert_eq!(books.cake.queued, 10_000 / flow::LEAST_TRUESIZE.0);
}

#[test]
fn each_segment_of_a_train_that_says_it_holds_no_memory_is_charged_some() {
    let memory_limit = MemSize(64 << 20);
    let mut books = Books::new(Config { memory_limit: Some(memory_limit), ..Config::default() });
    let train = Meta { truesize: MemSize(0), ..flow(1).superpacket(u16::MAX, 0) };
    for _ in 0..3 {
        books.enqueue(0, &train);
        let fit = memory_limit.0 / crate::packet::truesize(FrameLen(66)).0;
        assert_eq!(books.cake.queued, fit.min(books.units_in));
    }
}

#[test]
fn what_a_lower_memory_limit_leaves_no_room_for_goes_with_the_next_frames() {
    let mut books = Books::new(Config::default());
    for _ in 0..3000 {
        books.enqueue(0, &flow(1).with_len(FrameLen(100)));
    }
    let memory_limit = Some(Some(MemSize(1)));
    books.cake.change(&Change { memory_limit, ..Change::default() });
    let bound = u64::from(DROP_BOUND);
    for left in [3001 - bound, 3002 - 2 * bound, 0, 0] {
        books.enqueue(0, &flow(1).with_len(FrameLen(100)));
        assert_eq!(books.cake.queued, left);
    }
    // A train has as many of them dropped as it has segments.
    let mut books = Books::new(Config::default());
    for _ in 0..3000 {
        books.enqueue(0, &flow(1).with_len(FrameLen(100)));
    }
    books.cake.change(&Change { memory_limit, ..Change::default() });
    books.enqueue(0, &flow(1).superpacket(2000, 100));
    assert_eq!(books.cake.queued, 3000);
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

/// As [`Books::enqueue`], with a code point.
fn enqueue_classed(books: &mut Books, number: u16, len: u32, dscp: u8) {
    let meta = flow(number).with_len(FrameLen(len)).with_dscp(dscp);
    books.enqueue(usize::from(number) << 8 | usize::from(dscp), &meta);
}

#[test]
fn packets_of_a_tin_that_is_no_longer_used_move_to_best_effort_in_their_order() {
    let config = Config { diffserv: Diffserv::Diffserv8, ..Config::default() };
    let mut books = Books::new(config);
    for dscp in [48, 0, 46, 48] {
        enqueue_classed(&mut books, 1, 100, dscp);
    }
    let memory = books.cake.memory;
    let diffserv = Some(Diffserv::Besteffort);
    books.cake.change(&Change { diffserv, ..Change::default() });
    books.check();
    let stats = books.cake.stats();
    assert_eq!((stats.queued_packets, stats.dropped), (4, 0));
    assert_eq!((stats.tins[0].packets, stats.tins[0].bytes), (4, 400), "counted where they are");
    assert_eq!((books.cake.memory, books.cake.queue_stats(BEGIN).len()), (memory, 1));
    let mut left = Vec::new();
    while let Dequeue::Send(departure) = books.cake.dequeue(BEGIN) {
        left.push((departure.frame.source & 0xff, departure.frame.sequence));
    }
    // One flow, from several tins: tin by tin, and in order within each.
    assert_eq!(left, [(0, 100), (46, 200), (48, 0), (48, 300)]);
    assert_eq!(books.cake.stats().backlog, FrameLen::ZERO);
    assert_eq!(books.cake.memory, MemSize::ZERO);
}

#[test]
fn empty_queues_left_in_a_tin_that_comes_back_do_not_hold_up_the_others() {
    let mut books = Books::new(Config { diffserv: Diffserv::Diffserv8, ..Config::default() });
    (0..50).for_each(|number| enqueue_classed(&mut books, number, 100, 48));
    for diffserv in [Diffserv::Diffserv3, Diffserv::Diffserv8] {
        books.cake.change(&Change { diffserv: Some(diffserv), ..Change::default() });
        books.check();
    }
    enqueue_classed(&mut books, 99, 100, 0);
    books.dequeue(60);
    assert_eq!((books.cake.queued, books.cake.stats().sent_packets), (0, 51));
}

/// Ten flows of one host and one of another, all backlogged to become bulk.
fn eleven_bulk_flows(isolation: Isolation) -> Books {
    let mut books = Books::new(Config { isolation, ..Config::default() });
    fill(&mut books);
    books.dequeue(40);
    books
}

fn fill(books: &mut Books) {
    for number in 0..11_u16 {
        let meta = flow(number).between(u32::from(number / 10), 7).with_len(FrameLen(1514));
        (0..8).for_each(|_| books.enqueue(usize::from(number), &meta));
    }
}

#[test]
fn a_change_of_isolation_under_load_counts_each_host_anew_with_its_flows_next_packets() {
    let mut books = eleven_bulk_flows(Isolation::Flows);
    assert_eq!(books.cake.stats().tins[1].bulk_flows, 11);
    let isolation = Some(Isolation::DualSrchost);
    books.cake.change(&Change { isolation, ..Change::default() });
    books.check();
    fill(&mut books);
    books.check();
    let tin = &books.cake.tins[0];
    let mut loads: Vec<u16> = (0..SLOTS)
        .filter(|&slot| tin.set(slot) == Set::Bulk)
        .map(|slot| tin.host_loads(tin.account(slot).hosts).0)
        .collect();
    loads.sort_unstable();
    // The old queues have no hosts yet where the new hash put the flow elsewhere; it did not.
    assert_eq!(loads, [vec![1], vec![10; 10]].concat());
}

#[test]
fn a_direct_hit_does_no_work_on_hosts() {
    let mut books = eleven_bulk_flows(Isolation::TripleIsolate);
    let loads = |books: &Books| {
        let tin = &books.cake.tins[0];
        let loads = |slot| tin.host_loads(tin.account(slot).hosts);
        (0..SLOTS).map(loads).collect::<Vec<_>>()
    };
    let before = loads(&books);
    fill(&mut books);
    assert_eq!(loads(&books), before);
}

#[test]
fn a_change_of_bandwidth_under_load_keeps_queues_counters_and_clocks() {
    let bandwidth = Some(Rate::from_bits(10_000_000));
    let mut books = Books::new(Config { bandwidth, ..Config::default() });
    fill(&mut books);
    books.dequeue(2);
    let next = books.cake.dequeue(books.now);
    let before = (books.cake.stats(), books.cake.queue_stats(BEGIN));
    let bandwidth = Some(Some(Rate::from_bits(1_000_000)));
    books.cake.change(&Change { bandwidth, ..Change::default() });
    let (mut stats, queues) = (books.cake.stats(), books.cake.queue_stats(BEGIN));
    for (now, then) in stats.tins.iter_mut().zip(&before.0.tins) {
        // What is derived from the rate does change.
        now.threshold = then.threshold;
        (now.target, now.interval) = (then.target, then.interval);
        now.flow_quantum = then.flow_quantum;
    }
    stats.overlimits = before.0.overlimits;
    assert_eq!((stats, queues), before);
    let Dequeue::Wait(expected) = next else { panic!("{next:?}") };
    let again = books.cake.dequeue(books.now);
    assert!(matches!(again, Dequeue::Wait(wake) if wake == expected), "pending time stands");
}

#[test]
fn a_change_to_diffserv3_is_a_change() {
    let mut books = Books::new(Config { diffserv: Diffserv::Diffserv8, ..Config::default() });
    let diffserv = Some(Diffserv::Diffserv3);
    books.cake.change(&Change { diffserv, ..Change::default() });
    assert_eq!(books.cake.stats().tins.len(), 3);
}

#[test]
fn size_statistics_start_anew_after_overhead_or_raw_only() {
    let mut books = Books::new(Config::default());
    enqueue_classed(&mut books, 1, 100, 0);
    let seen = |books: &Books| books.cake.stats().adjusted_size.max;
    books.cake.change(&Change { mpu: Some(64), ..Change::default() });
    assert_eq!(seen(&books), 100);
    books.cake.change(&Change { overhead: Some(0), ..Change::default() });
    assert_eq!(books.cake.stats().adjusted_size, MinMax::default());
    enqueue_classed(&mut books, 1, 100, 0);
    assert_eq!(seen(&books), 86, "and the header is taken off");
    books.cake.change(&Change { raw: true, ..Change::default() });
    assert_eq!(books.cake.stats().adjusted_size, MinMax::default());
}

#[test]
fn the_memory_limit_is_four_round_trips_within_bounds_or_what_was_set() {
    // Spec §2.6: megabits per second, what was set, limit.
    let vectors = [
        (Some(1), None, 4_194_304),
        (Some(20), None, 4_194_304),
        (Some(100), None, 5_000_000),
        (Some(1000), None, 15_503_360),
        (None, None, 15_503_360),
        (Some(1), Some(1), 1),
        (None, Some(40_000_000), 40_000_000),
    ];
    for (mbit, set, expected) in vectors {
        let bandwidth = mbit.map(|mbit| Rate::from_bits(mbit * 1_000_000));
        let config = Config { bandwidth, memory_limit: set.map(MemSize), ..Config::default() };
        assert_eq!(memory_limit(&config, FrameLen(1514)), MemSize(expected), "{mbit:?} {set:?}");
    }
}

#[test]
fn rates_and_counters_are_64_bits_wide() {
    let bandwidth = Some(Rate::from_bits(100_000_000_000));
    let mut books = Books::new(Config { bandwidth, ..Config::default() });
    assert_eq!(books.cake.stats().tins[1].threshold, Rate::from_bytes(12_500_000_000));
    books.cake.counters.sent_bytes = u64::from(u32::MAX);
    books.cake.counters.dropped = u64::from(u32::MAX);
    let memory_limit = Some(Some(MemSize(2_000)));
    books.cake.change(&Change { memory_limit, ..Change::default() });
    (0..2).for_each(|_| enqueue_classed(&mut books, 1, 1514, 0));
    books.dequeue(2);
    let stats = books.cake.stats();
    assert_eq!((stats.sent_bytes, stats.dropped), ((1 << 32) + 1513, 1 << 32));
}

#[test]
fn the_oldest_packet_of_the_queue_with_most_bytes_goes_and_its_own_sender_is_told() {
    let memory_limit = Some(MemSize(6 * (1514 + 256)));
    let mut books = Books::new(Config { memory_limit, ..Config::default() });
    // Many small packets in one queue, fewer bytes than a few large ones in another.
    (0..20).for_each(|_| enqueue_classed(&mut books, 1, 60, 0));
    (0..2).for_each(|_| enqueue_classed(&mut books, 2, 1514, 0));
    let verdict = |books: &mut Books, number, len| {
        let meta = flow(number).with_len(FrameLen(len));
        let frame = SimFrame { sequence: 77, ..SimFrame::new(&meta) };
        books.cake.enqueue(frame, &meta, BEGIN)
    };
    assert_eq!(verdict(&mut books, 1, 1000), Enqueued::Queued, "flow 2 pays");
    let drops = |books: &Books| {
        let queues = books.cake.queue_stats(BEGIN);
        queues.iter().map(|queue| (queue.packets, queue.drops)).collect::<Vec<_>>()
    };
    let mut seen = drops(&books);
    seen.sort_unstable();
    assert_eq!(seen, [(1, 1), (21, 0)]);
    assert_eq!(verdict(&mut books, 1, 1514), Enqueued::Congested, "flow 1 pays itself");
    assert_eq!(books.cake.stats().dropped, 3, "two small ones for it");
    let mut left = Vec::new();
    while let Dequeue::Send(departure) = books.cake.dequeue(BEGIN) {
        left.push(departure.len.0);
    }
    assert_eq!(left.iter().filter(|&&len| len == 60).count(), 18, "the oldest went");
    assert_eq!(left.iter().filter(|&&len| len >= 1000).count(), 3, "what arrived stayed");
}

/// Two queues of old packets; BLUE drops whatever it may from the first.
fn beside_an_unresponsive_flow(ingress: bool) -> Books {
    let mut books = Books::new(Config { ingress, ..Config::default() });
    (0..3).for_each(|_| enqueue_classed(&mut books, 1, 1514, 0));
    enqueue_classed(&mut books, 2, 1514, 0);
    let slot = (0..SLOTS).find(|&slot| books.cake.tins[0].flow(slot).backlog == FrameLen(3 * 1514));
    let flow = books.cake.tins[0].flow_mut(slot.expect("three packets are queued"));
    flow.cobalt.drop_with_probability(u32::MAX);
    books
}

#[test]
fn a_drop_is_charged_to_the_flow_and_another_is_picked_in_ingress_mode_only() {
    for (ingress, expected) in [(false, [200, 300]), (true, [300, 200])] {
        let mut books = beside_an_unresponsive_flow(ingress);
        let mut left = Vec::new();
        while let Dequeue::Send(departure) = books.cake.dequeue(BEGIN) {
            left.push(departure.frame.sequence);
        }
        assert_eq!(left, expected, "ingress {ingress}");
        assert_eq!(books.cake.stats().dropped, 2);
    }
}

#[test]
fn the_last_packet_of_a_queue_is_spared_by_blue_too_and_its_mark_counts() {
    let mut books = Books::new(Config::default());
    let meta = flow(1).with_len(FrameLen(1514)).with_ecn(crate::packet::Ecn::Ect0);
    let mut seen = Vec::new();
    for _ in 0..3 {
        books.enqueue(0, &meta);
        let slot = books.cake.queue_stats(BEGIN)[0].class - SLOTS - 1;
        books.cake.tins[0].flow_mut(slot).cobalt.drop_with_probability(u32::MAX);
        books.now += Span::from_millis(100);
        let Dequeue::Send(departure) = books.cake.dequeue(books.now) else {
            panic!("one is queued")
        };
        seen.push(departure.frame.ce);
        assert_eq!(books.cake.stats().dropped, 0);
    }
    let marked = seen.iter().filter(|&&ce| ce).count() as u64;
    assert!(marked > 0, "the schedule goes on");
    assert_eq!(books.cake.stats().tins[1].marks, marked);
}

#[test]
fn a_mark_on_a_packet_that_blue_then_drops_does_not_count() {
    let mut books = Books::new(Config::default());
    let meta = flow(1).with_len(FrameLen(1514)).with_ecn(crate::packet::Ecn::Ect0);
    (0..20).for_each(|_| books.enqueue(0, &meta));
    let slot = books.cake.queue_stats(BEGIN)[0].class - SLOTS - 1;
    books.cake.tins[0].flow_mut(slot).cobalt.drop_with_probability(u32::MAX);
    books.now += Span::from_secs(1);
    let Dequeue::Send(departure) = books.cake.dequeue(books.now) else { panic!("one is left") };
    let stats = books.cake.stats();
    assert_eq!((stats.dropped, stats.tins[1].drops), (19, 19));
    assert_eq!(stats.tins[1].marks, u64::from(departure.frame.ce));
}

#[test]
fn the_next_signal_is_told_as_time_past_and_so_is_negative_while_it_lies_ahead() {
    let mut books = Books::new(Config::default());
    (0..5).for_each(|_| enqueue_classed(&mut books, 1, 1514, 0));
    books.dequeue(1);
    books.now += Span::from_millis(20);
    books.dequeue(2);
    let queue = books.cake.queue_stats(books.now)[0];
    assert!(queue.drop_next.expect("it is in the drop state").is_negative());
    let later = books.now + Span::from_secs(1);
    let queue = books.cake.queue_stats(later)[0];
    assert!(!queue.drop_next.expect("it is in the drop state").is_negative());
}

#[test]
fn an_undivided_superpacket_weighs_what_its_segments_weigh() {
    let overhead = Overhead { bytes: 38, mpu: 84, raw: false, ..Overhead::default() };
    let config = Config { overhead, split_gso: SplitGso::Whole, ..Config::default() };
    let mut books = Books::new(config);
    books.enqueue(0, &flow(1).superpacket(3, 1448));
    let Dequeue::Send(departure) = books.cake.dequeue(BEGIN) else { panic!("it may leave") };
    // Spec §7.2: three frames of 1514 bytes.
    assert_eq!(departure.wire_len, WireLen(4614));
    assert_eq!(books.cake.stats().sent_packets, 3);
}

#[test]
fn autorate_follows_arrivals_stores_its_rate_and_loses_nothing() {
    let bandwidth = Some(Rate::from_bits(50_000_000));
    let config = Config { bandwidth, autorate_ingress: true, ..Config::default() };
    let mut books = Books::new(config);
    let (mut changes, mut rate) = (Vec::new(), books.cake.config.bandwidth);
    let full = flow(1).with_len(FrameLen(1514));
    // Bursts of ten full packets at 20 Mbit/s, a pause after each.
    for burst in 0..1500 {
        for _ in 0..10 {
            books.now += Span::from_nanos(605_600);
            let meta = full.with_ecn(crate::packet::Ecn::Ect0);
            let meta = Meta { flow: flow(burst % 7).flow, ..meta };
            books.enqueue(usize::from(burst % 7), &meta);
            books.dequeue(5);
            if books.cake.config.bandwidth != rate {
                rate = books.cake.config.bandwidth;
                changes.push(books.now);
            }
        }
        books.now += Span::from_millis(2);
    }
    assert!(changes.len() > 20, "{changes:?}");
    assert!(changes.windows(2).all(|pair| pair[1] - pair[0] > AUTORATE_SPACING));
    let stats = books.cake.stats();
    assert_eq!(stats.dropped, 0);
    let rate = rate.expect("it shapes");
    // The estimate has moved on a little since.
    let share = rate.bytes() * 1000 / stats.capacity_estimate.bytes();
    assert!((928..=948).contains(&share), "{share} thousandths, expected 937");
    assert_eq!(stats.tins[1].threshold, rate, "everything is derived from it");
    // Ten packets in eight milliseconds and a bit: 15 Mbit/s arrive.
    assert!((13_000_000..20_000_000).contains(&rate.bits()), "{}", rate.bits());
}

#[test]
fn autorate_that_knows_nothing_yet_does_not_shape_and_an_estimate_outlives_it() {
    let mut books = Books::new(Config { autorate_ingress: true, ..Config::default() });
    enqueue_classed(&mut books, 1, 100, 0);
    let bandwidth = Some(Some(Rate::from_bits(8_000_000)));
    let autorate_ingress = Some(false);
    books.cake.change(&Change { bandwidth, autorate_ingress, ..Change::default() });
    let estimate = books.cake.stats().capacity_estimate;
    for _ in 0..100 {
        books.now += Span::from_millis(10);
        enqueue_classed(&mut books, 1, 1000, 0);
    }
    assert_eq!(books.cake.stats().capacity_estimate, estimate);
    assert_eq!(books.cake.config.bandwidth, Some(Rate::from_bits(8_000_000)));
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
