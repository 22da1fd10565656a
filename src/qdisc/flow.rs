//! A queue: packets in order, an AQM; and its account.
//!
//! Problem: a superpacket must be decided on segment by segment without being copied.
//! Source: spec §1 (state), design §3.1 (trains). Law: packets wait in a list of nodes shared by the whole
//! instance; a train is one node with a cursor, and each segment leaves as if it had been queued alone.
//! Left out: which queue is served when (`drr`), which packet is dropped (`cobalt`, `overflow`).

use super::auto_split::Near;
use super::cobalt::Cobalt;
use crate::packet::tcp::TcpFlags;
use crate::packet::{Frame, Meta, Segments, TcpHeader, truesize};
use crate::time::Instant;
use crate::units::{FrameLen, MemSize, WireLen};
use slab::Slab;

/// No node.
const NONE: u32 = u32::MAX;

/// Memory that a frame is taken to hold at least. A caller who says less, or nothing, would have its frames
/// queued without limit.
pub const LEAST_TRUESIZE: MemSize = MemSize(256);
/// And at most, so that the sum of what is queued can be told exactly.
pub const MOST_TRUESIZE: MemSize = MemSize(1 << 40);

/// What is queued: a frame, or a train with a cursor.
#[derive(Debug)]
pub struct Packet<F> {
    frame: F,
    enqueued_at: Instant,
    next: u32,
    /// The segment that leaves next, and how many there are; 0 of 1 for what leaves whole.
    segment: u16,
    segments: u16,
    /// Whether units are segments of the frame rather than the frame.
    divided: bool,
    /// Whether this could be an ACK that is not needed any more; true as long as nobody has looked.
    may_be_ack: bool,
    /// What the extra of its flow is.
    near: Near,
    /// What each segment but the last is charged, and the last one.
    each: Charge,
    last: Charge,
    /// Packets that one unit counts as when it is sent.
    counts_as: u16,
}

/// What one unit weighs on each of the three accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Bytes that count.
    pub len: FrameLen,
    /// Bytes on the wire.
    pub wire_len: WireLen,
    /// Bytes of memory.
    pub truesize: MemSize,
}

/// What comes out of a queue: one frame or one segment.
#[derive(Debug)]
pub struct Unit<F> {
    /// The frame, or a handle to one segment.
    pub frame: F,
    /// What it weighs.
    pub charge: Charge,
    /// When it was queued.
    pub enqueued_at: Instant,
    /// Packets it counts as.
    pub counts_as: u16,
}

impl<F: Frame> Packet<F> {
    /// A frame that leaves whole; a superpacket then counts as its segments.
    pub fn whole(frame: F, meta: &Meta, wire_len: WireLen, now: Instant) -> Self {
        let truesize = meta.truesize.clamp(LEAST_TRUESIZE, MOST_TRUESIZE);
        let charge = Charge { len: meta.counted_len(), wire_len, truesize };
        Self {
            frame,
            enqueued_at: now,
            next: NONE,
            segment: 0,
            segments: 1,
            divided: false,
            may_be_ack: true,
            near: Near::UNKNOWN,
            each: charge,
            last: charge,
            counts_as: meta.segments.count.max(1),
        }
    }

    /// A train of which the first `segments` segments leave one at a time. `wire_len` gives the length on
    /// the wire of a segment. Each is charged the memory that a frame of its length is charged by Linux, which
    /// queues nothing but segments.
    pub fn train(
        frame: F,
        meta: &Meta,
        segments: u16,
        mut wire_len: impl FnMut(FrameLen) -> WireLen,
        now: Instant,
    ) -> Self {
        let segments = segments.max(1);
        // Together at least what the frame is said to hold.
        let held = meta.truesize.clamp(LEAST_TRUESIZE, MOST_TRUESIZE);
        let share = MemSize(held.0.div_ceil(u64::from(segments)));
        let mut charge = |index| {
            let len = meta.segment_len(index);
            Charge { len, wire_len: wire_len(len), truesize: truesize(len).max(share) }
        };
        let each = charge(0);
        let last = charge(segments - 1);
        Self {
            frame,
            enqueued_at: now,
            next: NONE,
            segment: 0,
            segments,
            divided: true,
            may_be_ack: false,
            near: Near::UNKNOWN,
            each,
            last,
            counts_as: 1,
        }
    }

    /// Sum of what is still to leave.
    pub fn total(&self) -> Charge {
        let others = u32::from(self.segments - 1 - self.segment);
        Charge {
            len: FrameLen(self.each.len.0.saturating_mul(others)) + self.last.len,
            wire_len: WireLen(self.each.wire_len.0.saturating_mul(others)) + self.last.wire_len,
            truesize: MemSize(self.each.truesize.0 * u64::from(others)) + self.last.truesize,
        }
    }

    /// The frame, and when it was queued.
    pub fn into_frame(self) -> (F, Instant) {
        (self.frame, self.enqueued_at)
    }

    /// Units still to leave.
    pub fn units(&self) -> u16 {
        self.segments - self.segment
    }

    /// Whether units are segments of the frame.
    pub fn is_divided(&self) -> bool {
        self.divided
    }

    /// Whether this could be an ACK that is not needed any more.
    pub fn may_be_ack(&self) -> bool {
        self.may_be_ack
    }

    /// Somebody has looked, before the packet was queued.
    pub fn set_may_be_ack(&mut self, may_be_ack: bool) {
        self.may_be_ack = may_be_ack;
    }

    /// How near the ends of its flow are to each other, where that counts.
    pub fn set_near(&mut self, near: Near) {
        self.near = near;
    }

    /// What [`Self::set_near`] said.
    pub fn near(&self) -> Near {
        self.near
    }

    /// Length on the wire of the unit that leaves next.
    pub fn next_wire_len(&self) -> WireLen {
        if self.units() == 1 { self.last.wire_len } else { self.each.wire_len }
    }

    /// The frame's TCP header.
    pub fn tcp(&self) -> Option<TcpHeader> {
        self.frame.tcp()
    }

    /// ECE and CWR of the unit that leaves next and of those behind it; `tcp` is the frame's header.
    pub fn ecn_echoes(&self, tcp: &TcpHeader) -> [TcpFlags; 2] {
        let later = tcp.of_later_segment().flags.ecn_echo();
        let next = if self.segment == 0 { tcp.flags.ecn_echo() } else { later };
        [next, if self.units() > 1 { later } else { next }]
    }
}

/// Packets in order of arrival, linked through the instance's nodes.
#[derive(Clone, Copy, Debug)]
pub struct PacketQueue {
    head: u32,
    tail: u32,
    /// How many of them could be ACKs that are not needed any more.
    acks: u32,
}

/// Where in a queue a packet stands; stale once the queue has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    node: u32,
    /// The node before it.
    previous: u32,
}

/// A train some segments of which have left.
pub struct Begun<'a, F> {
    /// The train.
    pub train: &'a Packet<F>,
    /// What it is known by as long as it is queued.
    pub node: u32,
}

impl PacketQueue {
    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Appends a packet.
    #[expect(clippy::expect_used, reason = "the memory limit bounds the number of packets")]
    pub fn push<F>(&mut self, nodes: &mut Slab<Packet<F>>, packet: Packet<F>) {
        // Each node was charged `LEAST_TRUESIZE` at least, and no limit allows for 2^32 of those.
        self.acks += u32::from(packet.may_be_ack);
        let node = u32::try_from(nodes.insert(packet)).expect("fewer than 2^32 packets are queued");
        match nodes.get_mut(self.tail as usize) {
            Some(tail) if !self.is_empty() => tail.next = node,
            _ => self.head = node,
        }
        self.tail = node;
    }

    /// Appends all packets of another queue, in their order.
    pub fn join<F>(&mut self, nodes: &mut Slab<Packet<F>>, other: Self) {
        if other.is_empty() {
            return;
        }
        match nodes.get_mut(self.tail as usize) {
            Some(tail) if !self.is_empty() => tail.next = other.head,
            _ => self.head = other.head,
        }
        self.tail = other.tail;
        self.acks += other.acks;
    }

    /// Takes the oldest frame or segment.
    #[inline]
    pub fn pop<F: Frame>(&mut self, nodes: &mut Slab<Packet<F>>) -> Option<Unit<F>> {
        let packet = nodes.get_mut(self.head as usize)?;
        let Packet { enqueued_at, counts_as, segment, segments, .. } = *packet;
        if segment + 1 < segments {
            packet.segment += 1;
            let frame = packet.frame.segment(segment);
            return Some(Unit { frame, charge: packet.each, enqueued_at, counts_as });
        }
        let packet = nodes.remove(self.head as usize);
        self.head = packet.next;
        self.acks -= u32::from(packet.may_be_ack);
        let frame = if packet.divided { packet.frame.segment(segment) } else { packet.frame };
        Some(Unit { frame, charge: packet.last, enqueued_at, counts_as })
    }

    /// The train at the head of the queue, if a segment of it has left already.
    pub fn begun<'a, F>(&self, nodes: &'a Slab<Packet<F>>) -> Option<Begun<'a, F>> {
        let train = nodes.get(self.head as usize).filter(|packet| packet.segment > 0)?;
        Some(Begun { train, node: self.head })
    }

    /// Takes out a packet wherever it stands; the others keep their order. `None`, with nothing
    /// changed, if `place` is stale.
    pub fn remove<F>(&mut self, nodes: &mut Slab<Packet<F>>, place: Place) -> Option<Packet<F>> {
        let next = nodes.get(place.node as usize)?.next;
        let link = match nodes.get_mut(place.previous as usize) {
            Some(previous) => &mut previous.next,
            None => &mut self.head,
        };
        if *link != place.node {
            return None;
        }
        *link = next;
        if self.tail == place.node {
            self.tail = place.previous;
        }
        let packet = nodes.remove(place.node as usize);
        self.acks -= u32::from(packet.may_be_ack);
        Some(packet)
    }

    /// The packets and where they stand, oldest first.
    pub fn walk<'a, F>(
        &self,
        nodes: &'a Slab<Packet<F>>,
    ) -> impl Iterator<Item = (Place, &'a Packet<F>)> {
        let mut place = Place { node: self.head, previous: NONE };
        std::iter::from_fn(move || {
            let packet = nodes.get(place.node as usize)?;
            let here = place;
            place = Place { node: packet.next, previous: here.node };
            Some((here, packet))
        })
    }

    /// Whether it is the youngest packet that stands there.
    pub fn is_last(&self, place: Place) -> bool {
        self.tail == place.node
    }

    /// How many packets could be ACKs that are not needed any more.
    pub fn acks(&self) -> u32 {
        self.acks
    }

    /// Units queued, counted by walking.
    pub fn count_units<F: Frame>(&self, nodes: &Slab<Packet<F>>) -> u32 {
        let units = self.walk(nodes).map(|(_, packet)| u32::from(packet.units()));
        units.fold(0, u32::saturating_add)
    }
}

impl Default for PacketQueue {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, acks: 0 }
    }
}

/// One of a tin's queues. Aligned so that it lies in one line of the processor's cache.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub struct Flow {
    /// What is queued.
    pub packets: PacketQueue,
    /// Bytes queued.
    pub backlog: FrameLen,
    /// Its AQM.
    pub cobalt: Cobalt,
    /// Packets dropped from it.
    pub drops: u64,
}

/// What a queue's turns are reckoned by. Of old flows the deficit is with their turns (`turns`), not here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Bytes on the wire the flow may still send in this round.
    pub deficit: i32,
    /// Its hosts.
    pub hosts: Hosts,
}

/// A flow's entries in the tin's host tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Of the source; 0 if nobody is fair by it.
    pub source: u16,
    /// Of the destination; 0 if nobody is fair by it.
    pub destination: u16,
}

impl Hosts {
    /// No entries: not those of its hosts after the isolation mode changed.
    pub const UNKNOWN: Self = Self { source: u16::MAX, destination: u16::MAX };
}

impl Default for Hosts {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// Whether a frame can be divided at all.
pub fn is_superpacket(segments: Segments) -> bool {
    segments.count > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_of_the_largest_segments_stops_at_the_largest_length() {
        let segments = Segments { count: u16::MAX, mss: u16::MAX, header_len: u16::MAX };
        let meta = Meta { len: FrameLen(u32::MAX), segments, ..Meta::default() };
        let train = Packet::train(Piece(0), &meta, u16::MAX, |len| WireLen(len.0), Instant::ZERO);
        assert_eq!(train.total().len, FrameLen(u32::MAX));
        let charged = truesize(meta.segment_len(0)).0 * 65_534 + truesize(FrameLen(196_605)).0;
        assert_eq!(train.total().truesize, MemSize(charged));
        assert_eq!(meta.segment_len(u16::MAX), FrameLen(196_605));
    }

    /// A frame that knows which segment it is.
    #[derive(Debug, PartialEq)]
    struct Piece(u16);

    impl Frame for Piece {
        fn mark_ce(&mut self) -> bool {
            false
        }
        fn wash(&mut self) -> bool {
            false
        }
        fn segment(&self, index: u16) -> Self {
            Self(index)
        }
    }

    #[test]
    fn a_train_leaves_segment_by_segment_and_its_charges_add_up() {
        let meta = Meta {
            len: FrameLen(66 + 2 * 1448 + 100),
            segments: Segments { count: 3, mss: 1448, header_len: 66 },
            truesize: MemSize(2000),
            ..Meta::default()
        };
        let mut nodes = Slab::new();
        let mut queue = PacketQueue::default();
        let packet = Packet::train(Piece(99), &meta, 3, |len| WireLen(len.0 + 38), Instant::ZERO);
        let total = packet.total();
        assert_eq!(total.len, meta.counted_len());
        assert_eq!(total.truesize, MemSize(2 * 2304 + 896));
        queue.push(&mut nodes, packet);
        assert_eq!(queue.count_units(&nodes), 3);
        let mut sum = Charge::default();
        for index in 0..3 {
            let unit = queue.pop(&mut nodes).expect("three segments");
            assert_eq!(unit.frame, Piece(index));
            sum.len += unit.charge.len;
            sum.wire_len += unit.charge.wire_len;
            sum.truesize += unit.charge.truesize;
        }
        assert_eq!(sum, total);
        assert!(queue.is_empty() && nodes.is_empty());
    }

    #[test]
    fn packets_leave_in_the_order_they_came() {
        let mut nodes = Slab::new();
        let mut queue = PacketQueue::default();
        for i in 0..5 {
            let packet = Packet::whole(Piece(i), &Meta::default(), WireLen(1), Instant::ZERO);
            queue.push(&mut nodes, packet);
        }
        for i in 0..5 {
            assert_eq!(queue.pop(&mut nodes).expect("five").frame, Piece(i));
        }
        assert!(queue.pop(&mut nodes).is_none());
    }

    /// What is queued, oldest first.
    fn queued(queue: &PacketQueue, nodes: &Slab<Packet<Piece>>) -> Vec<u16> {
        queue.walk(nodes).map(|(_, packet)| packet.frame.0).collect()
    }

    #[test]
    fn a_packet_can_be_taken_from_anywhere_and_the_others_keep_their_order() {
        for taken in 0..5 {
            let mut nodes = Slab::new();
            let mut queue = PacketQueue::default();
            let push = |queue: &mut PacketQueue, nodes: &mut _, i| {
                queue.push(
                    nodes,
                    Packet::whole(Piece(i), &Meta::default(), WireLen(1), Instant::ZERO),
                );
            };
            (0..5).for_each(|i| push(&mut queue, &mut nodes, i));
            let (place, _) = queue.walk(&nodes).nth(taken).expect("one of five");
            assert_eq!(queue.is_last(place), taken == 4);
            let packet = queue.remove(&mut nodes, place).expect("it is there");
            assert_eq!(usize::from(packet.frame.0), taken);
            push(&mut queue, &mut nodes, 5);
            let expected: Vec<_> = (0..6).filter(|&i| usize::from(i) != taken).collect();
            assert_eq!(queued(&queue, &nodes), expected);
            assert_eq!(queue.acks(), 5);
            assert!(queue.remove(&mut nodes, Place { node: 77, previous: NONE }).is_none());
            for i in expected {
                assert_eq!(queue.pop(&mut nodes).expect("five").frame, Piece(i));
            }
            assert_eq!(queue.acks(), 0);
        }
    }

    #[test]
    fn the_only_packet_can_be_taken() {
        let (mut nodes, mut queue) = (Slab::new(), PacketQueue::default());
        queue
            .push(&mut nodes, Packet::whole(Piece(0), &Meta::default(), WireLen(1), Instant::ZERO));
        let (place, _) = queue.walk(&nodes).next().expect("one");
        assert!(queue.remove(&mut nodes, place).is_some());
        assert!(queue.is_empty() && nodes.is_empty());
        queue
            .push(&mut nodes, Packet::whole(Piece(1), &Meta::default(), WireLen(1), Instant::ZERO));
        assert_eq!(queued(&queue, &nodes), [1]);
    }
}
