//! Any sequence of operations on an instance, with books kept beside it.

use super::ack_filter::header;
use super::bytes::Bytes;
use std::collections::HashMap;
use ucake::packet::{Dscp, ETHERTYPE_IPV4, Ecn, FlowKey, Frame, Meta, Segments, TcpHeader};
use ucake::qdisc::{
    AckFilter, Cake, Change, Config, DROP_BOUND, Dequeue, Diffserv, Discipline, Entropy, Isolation,
    LinkLayer, SplitGso, Why,
};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, MemSize, Rate};

/// Operations taken from one input.
const MOST_OPERATIONS: u32 = 200;

/// How the input tells an instance and what befalls it: entropy, size of packets, configuration, then
/// one byte and its arguments for each operation.
pub fn ops(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut books = Books::new(&mut bytes);
    for number in 1..MOST_OPERATIONS {
        if bytes.is_empty() {
            break;
        }
        books.apply(&mut bytes);
        books.check(number % 128 == 0);
    }
    books.close();
}

/// A frame that knows when it came.
#[derive(Clone, Debug, Default)]
pub struct Item {
    pub sequence: u64,
    pub segment: u16,
    pub ecn_capable: bool,
    pub washable: bool,
    pub tcp: Option<TcpHeader>,
}

impl Frame for Item {
    fn mark_ce(&mut self) -> bool {
        self.ecn_capable
    }
    fn wash(&mut self) -> bool {
        self.washable
    }
    fn segment(&self, index: u16) -> Self {
        Self { segment: index, ..self.clone() }
    }
    fn tcp(&self) -> Option<TcpHeader> {
        self.tcp
    }
}

struct Books {
    cake: Cake<Item>,
    now: Instant,
    /// The latest time the instance has been told; it answers as of then.
    seen: Instant,
    sequence: u64,
    taken: u64,
    left: u64,
    mixed: bool,
    /// By queue: what left it last.
    last: HashMap<(u8, u16), (u64, u16)>,
    wake: Option<Instant>,
    /// Whether a frame of up to 4 GB came. Sums of lengths then stop at the largest that there is, and to pay
    /// for it takes a flow millions of turns, which would be all that an input does.
    giant: bool,
}

impl Books {
    fn new(bytes: &mut Bytes<'_>) -> Self {
        let entropy = Entropy::from_seed(bytes.u8().into());
        let mtu = FrameLen(match bytes.u8() {
            0 => bytes.u32(),
            small => 64 * u32::from(small),
        });
        let start = Config { diffserv: Diffserv::Besteffort, ..Config::default() };
        let config = start.changed_by(&change(bytes));
        Self {
            cake: Cake::new(config, mtu, entropy),
            now: Instant::from_nanos(1_000_000_000),
            seen: Instant::ZERO,
            sequence: 0,
            taken: 0,
            left: 0,
            mixed: false,
            last: HashMap::new(),
            wake: None,
            giant: false,
        }
    }

    fn apply(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() {
            0..100 => self.small(bytes),
            100..130 => self.ack(bytes),
            130..150 => self.train(bytes),
            150..155 => self.anything(bytes),
            155..200 => self.dequeue(bytes.u8()),
            200..225 => self.now += Span::from_nanos(bytes.u32().cast_signed().into()),
            225..230 => self.now = Instant::from_nanos(bytes.u64().cast_signed()),
            230..233 => self.now = bytes.one_of(&[Instant::MAX, Instant::from_nanos(i64::MIN)]),
            _ => self.change(&change(bytes)),
        }
    }

    fn small(&mut self, bytes: &mut Bytes<'_>) {
        let meta = meta(bytes);
        let len = u32::from(bytes.u16() % 1600);
        let truesize = MemSize(u64::from(len) + 256);
        self.enqueue(&Meta { len: FrameLen(len), truesize, ..meta }, None);
    }

    fn ack(&mut self, bytes: &mut Bytes<'_>) {
        let tcp = header(bytes);
        let len = FrameLen(if tcp.has_payload { 1400 } else { 66 });
        let meta = Meta { len, flow: tcp.flow, truesize: MemSize(768), ..Meta::default() };
        self.enqueue(&meta, Some(tcp));
    }

    fn train(&mut self, bytes: &mut Bytes<'_>) {
        let meta = meta(bytes);
        let count = u16::from(bytes.u8() % 64);
        let segments = Segments { count, mss: bytes.u16() % 1600, header_len: 66 };
        let len = u32::from(count) * u32::from(segments.mss) + 66;
        let truesize = MemSize(u64::from(len) + 768);
        let tcp = (bytes.u8() & 1 != 0).then(|| TcpHeader { has_payload: true, ..header(bytes) });
        self.enqueue(&Meta { len: FrameLen(len), segments, truesize, ..meta }, tcp);
    }

    /// What no port would say of a frame, but a caller of the library can.
    fn anything(&mut self, bytes: &mut Bytes<'_>) {
        let mut segments =
            Segments { count: bytes.u16(), mss: bytes.u16(), header_len: bytes.u16() };
        let mut len = FrameLen(bytes.u32());
        if bytes.u8() == 0 && !self.giant {
            self.giant = true;
        } else {
            segments.count %= 16;
            len.0 %= 1 << 18;
        }
        let truesize = MemSize(bytes.number());
        let network_offset = bytes.u16();
        self.enqueue(&Meta { len, segments, truesize, network_offset, ..meta(bytes) }, None);
    }

    fn enqueue(&mut self, meta: &Meta, tcp: Option<TcpHeader>) {
        let before = self.cake.stats();
        let frame = Item {
            sequence: self.sequence,
            segment: 0,
            ecn_capable: meta.ecn.takes_ce(),
            washable: meta.mark & 1 == 0,
            tcp,
        };
        self.sequence += 1;
        let units = match self.cake.config().split_gso {
            SplitGso::Split | SplitGso::Auto => u64::from(meta.segments.count.max(1)),
            SplitGso::Whole => 1,
        };
        let now = self.tell();
        self.cake.enqueue(frame, meta, now);
        let after = self.cake.stats();
        self.taken += units;
        let lost = after.dropped - before.dropped;
        assert_eq!(
            u64::from(after.queued_packets) + lost,
            u64::from(before.queued_packets) + units
        );
        let fits = self.cake.memory() <= after.memory_limit;
        let most = u64::from(DROP_BOUND.max(meta.segments.count.into()));
        let done = fits || after.queued_packets == 0 || lost >= most;
        assert!(done, "{:?} is over", self.cake.memory());
        self.wake = None;
    }

    fn dequeue(&mut self, most: u8) {
        for _ in 0..if self.giant { most.min(4) } else { most } {
            let now = self.tell();
            match self.cake.dequeue(now) {
                Dequeue::Send(departure) => {
                    self.left += 1;
                    if let Some(at) = self.wake {
                        assert!(self.seen >= at, "left at {:?}, before {at:?}", self.seen);
                    }
                    let what = (departure.frame.sequence, departure.frame.segment);
                    if let Some(last) = self.last.insert(departure.queue, what) {
                        assert!(self.mixed || last < what, "{what:?} left after {last:?}");
                    }
                }
                Dequeue::Wait(wake) if wake.why == Why::WorkBound => {}
                Dequeue::Wait(wake) => {
                    assert!(wake.at > self.seen);
                    self.wake = Some(wake.at);
                    return;
                }
                Dequeue::Idle => {
                    assert_eq!(self.cake.stats().queued_packets, 0);
                    return;
                }
            }
        }
    }

    fn change(&mut self, change: &Change) {
        let before = self.cake.stats();
        self.cake.change(change);
        let after = self.cake.stats();
        assert_eq!(before.dropped, after.dropped, "a change drops nothing that counts");
        assert_eq!(before.queued_packets, after.queued_packets, "nor anything that does not");
        // What was queued in a tin that went stands behind what its flow had in another.
        self.mixed |= after.tins.len() < before.tins.len();
        assert_eq!(*self.cake.config(), self.cake.config().changed_by(&Change::default()));
        self.wake = None;
    }

    /// The time to say now.
    fn tell(&mut self) -> Instant {
        self.seen = self.seen.max(self.now);
        self.now
    }

    fn check(&self, thoroughly: bool) {
        let stats = self.cake.stats();
        let queued = u64::from(stats.queued_packets);
        assert_eq!(self.taken, self.left + stats.dropped + queued);
        assert!(stats.memory_used >= self.cake.memory());
        if !self.giant {
            assert_eq!(stats.backlog, self.cake.backlog());
            assert_eq!(stats.backlog, stats.tins.iter().map(|tin| tin.backlog).sum());
        }
        if stats.queued_packets == 0 {
            assert_eq!((stats.backlog, self.cake.memory()), (FrameLen::ZERO, MemSize::ZERO));
        }
        if thoroughly {
            let queues = self.cake.queue_stats(self.now);
            let packets = queues.iter().map(|queue| u64::from(queue.packets)).sum::<u64>();
            assert_eq!(packets, queued);
            if !self.giant {
                assert_eq!(stats.backlog, queues.iter().map(|queue| queue.backlog).sum());
            }
        }
    }

    /// Everything that can leave leaves; the books then close.
    fn close(mut self) {
        self.check(true);
        self.wake = None;
        self.now = self.seen;
        for _ in 0..if self.giant { 4 } else { 1_000_000 } {
            self.dequeue(u8::MAX);
            if self.cake.stats().queued_packets == 0 {
                self.check(false);
                return;
            }
            self.now = self.wake.take().unwrap_or(self.now).max(self.now);
        }
        assert!(self.giant, "{} packets never leave", self.cake.stats().queued_packets);
    }
}

/// Whose frame it is and how it asks to be treated; few choices, so that they meet again.
fn meta(bytes: &mut Bytes<'_>) -> Meta {
    let [number, hosts, dscp, what] = bytes.array();
    let number = u16::from(number);
    // A few flows of many packets, or one of up to 4000.
    let port = if what & 0x80 == 0 { number % 8 } else { number * 16 + u16::from(hosts & 15) };
    let flow = FlowKey {
        ethertype: if what & 0x40 == 0 { ETHERTYPE_IPV4 } else { bytes.u16() },
        ip_proto: 6,
        source: u128::from(hosts & 15),
        destination: u128::from(hosts >> 4),
        source_port: port % 4000,
        ..FlowKey::default()
    };
    Meta {
        network_offset: 14,
        dscp: Dscp::new(if dscp < 128 { 0 } else { dscp }),
        ecn: Ecn::from_tos(what),
        flow,
        mark: u32::from(what >> 2 & 7),
        min_rtt: (what & 4 != 0).then(|| Span::from_micros(i64::from(hosts) * 32)),
        priority: u32::from(what >> 5 & 1),
        ..Meta::default()
    }
}

/// A change of up to everything.
fn change(bytes: &mut Bytes<'_>) -> Change {
    let asked = bytes.u32();
    let said = |bit: u32| asked >> bit & 1 != 0;
    let on = |bit: u32| said(bit).then(|| said(bit + 16));
    let mut change = Change {
        nat: on(0),
        autorate_ingress: on(1),
        wash: on(2),
        ingress: on(3),
        raw: said(4),
        ..Change::default()
    };
    if said(5) {
        change.bandwidth = Some(said(21).then(|| Rate::from_bytes(bytes.number())));
    }
    if said(6) {
        change.diffserv = Some(bytes.one_of(&Diffserv::ALL));
    }
    if said(7) {
        change.isolation = Some(bytes.one_of(&Isolation::ALL));
    }
    if said(8) {
        let modes = [AckFilter::Off, AckFilter::Conservative, AckFilter::Aggressive];
        change.ack_filter = Some(bytes.one_of(&modes));
    }
    if said(9) {
        change.split_gso = Some(bytes.one_of(&SplitGso::ALL));
    }
    if said(14) {
        change.burst = Some(Span::from_nanos(bytes.number().cast_signed()));
        change.rtt_step = Some(Span::from_nanos(bytes.number().cast_signed()));
    }
    if said(10) {
        change.interval = Some(Span::from_nanos(bytes.number().cast_signed()));
        change.target = Some(Span::from_nanos(bytes.number().cast_signed()));
    }
    if said(11) {
        change.overhead = Some(bytes.u16().cast_signed());
        change.mpu = Some(bytes.u16());
        change.link_layer = Some(bytes.one_of(&[LinkLayer::Noatm, LinkLayer::Atm, LinkLayer::Ptm]));
    }
    if said(12) {
        change.memory_limit = Some(said(28).then(|| MemSize(bytes.number().max(1))));
    }
    if said(13) {
        change.fwmark = Some(bytes.u32());
    }
    change
}
