//! The ACK filter: which queued ACK a new one makes needless.
//!
//! Problem: on a link with a thin way back, ACKs that queue there say the same thing again and again and
//! hold up the download they acknowledge.
//! Source: spec §8, trap list §14.7; RFC 9293 §3.4 (sequence numbers), RFC 2018 (SACK), RFC 2883 (D-SACK),
//! RFC 7323 (timestamps), RFC 3168 §6.1 (ECE and CWR).
//! Law: a pure ACK goes only if a later packet of the same connection, the *trigger*, acknowledges all that
//! it does, and more; and if no change of ECE or CWR would be lost with it. The conservative mode leaves one
//! such ACK before the trigger, the aggressive mode none where they are neighbours.
//! Invariants: at most one ACK goes for each packet that comes; the trigger never does.
//! Left out: superpackets. One that is queued as a train neither triggers nor goes, though its segments
//! count as what they are, segments with ECN bits; one that is queued whole is data like any other.
//!
//! Deliberately different from Linux: no more than [`SCAN_BOUND`] packets of a queue are looked at. And a
//! queue remembers how many packets in it could go at all, so that data does not pay for the scan; this
//! changes no decision.

use super::config::AckFilter;
use super::flow::{Packet, PacketQueue, Place};
use crate::packet::Frame;
use crate::packet::tcp::{SackBlock, TcpFlags, TcpHeader};
use slab::Slab;

/// Packets of a queue, from its head, that are looked at for one trigger. A look takes some 50 ns (bench
/// `a_trigger_behind`), so that an enqueue stays well under a millisecond; only a queue that no AQM has
/// tamed is longer than this.
pub const SCAN_BOUND: usize = 4096;

/// Whether a segment with this header could go, if a trigger came that said more (spec §8.4 step 3, what
/// does not depend on the trigger).
pub fn is_pure_ack(tcp: &TcpHeader) -> bool {
    let echo = tcp.flags.ecn_echo();
    tcp.flags.without(echo) == TcpFlags::ACK && !tcp.has_payload && !tcp.options.vital
}

/// The ACK in `queue` that goes now that a packet with the header `trigger` comes (spec §8.4), which is not
/// in the queue yet: the one nearest the head that may, if another one stands behind it (or, in aggressive
/// mode, the trigger itself does).
pub fn victim<F: Frame>(
    queue: &PacketQueue,
    nodes: &Slab<Packet<F>>,
    trigger: &TcpHeader,
    mode: AckFilter,
) -> Option<Place> {
    if queue.acks() == 0 || !may_trigger(trigger) {
        return None;
    }
    let mut remembered: Option<(Place, TcpFlags)> = None;
    for (place, packet) in queue.walk(nodes).take(SCAN_BOUND) {
        if remembered.is_none() && !packet.may_be_ack() {
            continue;
        }
        let Some(tcp) = packet.tcp().filter(|tcp| tcp.flow == trigger.flow) else { continue };
        // Whatever this segment is: if it tells something else of congestion, the ACK before it was the
        // last to tell what it told.
        remembered = remembered.filter(|&(_, echo)| packet.ecn_echoes(&tcp) == [echo; 2]);
        if !packet.may_be_ack() || !is_superseded(&tcp, trigger) {
            continue;
        }
        match remembered {
            Some((earliest, _)) => return Some(earliest),
            None => remembered = Some((place, tcp.flags.ecn_echo())),
        }
    }
    let (only, echo) = remembered?;
    let neighbours = queue.is_last(only) && echo == trigger.flags.ecn_echo();
    (mode == AckFilter::Aggressive && neighbours).then_some(only)
}

/// Spec §8.3.
fn may_trigger(tcp: &TcpHeader) -> bool {
    tcp.flags.contains(TcpFlags::ACK) && !tcp.flags.contains(TcpFlags::SYN)
}

/// Spec §8.4 step 3: whether `tcp` may go because `trigger` says all that it says, and more.
fn is_superseded(tcp: &TcpHeader, trigger: &TcpHeader) -> bool {
    let clock = trigger.options.timestamp();
    let timestamps = tcp.options.timestamps.as_slice();
    let news = timestamps
        .iter()
        .any(|stamp| is_after(stamp.value, clock.value) || is_after(stamp.echo, clock.echo));
    if !is_pure_ack(tcp) || news || is_after(tcp.ack, trigger.ack) {
        return false;
    }
    match sack(tcp, trigger) {
        Sack::More => true,
        // A duplicate is a message of its own: three of them are a loss (RFC 5681 §3.2).
        Sack::Same => tcp.ack != trigger.ack,
        Sack::Lost => false,
    }
}

/// What a trigger tells by SACK, beside an older ACK.
enum Sack {
    /// Not all that the older one tells.
    Lost,
    /// Not more than that.
    Same,
    /// That and more.
    More,
}

/// Spec §8.5.
fn sack(tcp: &TcpHeader, trigger: &TcpHeader) -> Sack {
    let (old, new) = (tcp.options.sack_blocks(), trigger.options.sack_blocks());
    // A block from before the acknowledgment number reports a duplicate (RFC 2883 §4), and just once.
    let repeated = |block: &SackBlock| {
        !is_before(block.start, tcp.ack) && new.iter().any(|other| covers(*other, *block))
    };
    let size =
        |blocks: &[SackBlock]| blocks.iter().map(|block| block.len()).fold(0, u32::wrapping_add);
    match (old.is_empty(), new.is_empty()) {
        (true, true) => Sack::Same,
        (true, false) => Sack::More,
        _ if !old.iter().all(repeated) => Sack::Lost,
        _ if size(new) > size(old) => Sack::More,
        _ => Sack::Same,
    }
}

fn covers(outer: SackBlock, inner: SackBlock) -> bool {
    !is_after(outer.start, inner.start) && !is_before(outer.end, inner.end)
}

/// Whether sequence number `a` lies before `b`: by less than half of all numbers, or by just that half, in
/// which case each lies before the other.
fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

fn is_after(a: u32, b: u32) -> bool {
    is_before(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tcp::{Few, Timestamps};
    use crate::packet::testing::{Ip, Layer4, Packet as TestPacket};
    use crate::packet::{Layout, Meta, VnetHeader, dissect};
    use crate::sim::{SimFrame, flow};
    use crate::time::Instant;
    use crate::units::{MemSize, WireLen};
    use AckFilter::{Aggressive, Conservative};
    use proptest::prelude::*;

    const ECE: TcpFlags = TcpFlags::ECE;
    const CWR: TcpFlags = TcpFlags::CWR;
    const FIN: u16 = 0x001;
    const PSH: u16 = 0x008;

    /// A pure ACK without options.
    fn ack(number: u32) -> TcpHeader {
        TcpHeader { flow: flow(7).flow, ack: number, flags: TcpFlags::ACK, ..TcpHeader::default() }
    }

    fn echoing(number: u32, echo: TcpFlags) -> TcpHeader {
        TcpHeader { flags: TcpFlags::ACK.with(echo), ..ack(number) }
    }

    fn flagged(number: u32, bits: u16) -> TcpHeader {
        echoing(number, TcpFlags::new(bits))
    }

    fn data(number: u32) -> TcpHeader {
        TcpHeader { has_payload: true, ..ack(number) }
    }

    fn sacking(number: u32, blocks: &[(u32, u32)]) -> TcpHeader {
        let mut header = ack(number);
        let blocks = blocks.iter().map(|&(start, end)| SackBlock { start, end });
        header.options.sack = Some(blocks.collect());
        header
    }

    fn stamped(number: u32, value: u32, echo: u32) -> TcpHeader {
        let mut header = ack(number);
        header.options.timestamps = std::iter::once(Timestamps { value, echo }).collect();
        header
    }

    fn vital(number: u32) -> TcpHeader {
        let mut header = ack(number);
        header.options.vital = true;
        header
    }

    fn whole<F: Frame>(frame: F) -> Packet<F> {
        Packet::whole(frame, &Meta::default(), WireLen(1), Instant::ZERO)
    }

    fn frame(tcp: Option<TcpHeader>) -> SimFrame {
        SimFrame { tcp: tcp.map(Box::new), ..SimFrame::new(&Meta::default()) }
    }

    /// Which packet of the queue goes, counted from the head.
    fn place<F: Frame>(
        queue: Vec<Packet<F>>,
        trigger: &TcpHeader,
        mode: AckFilter,
    ) -> Option<usize> {
        let (mut nodes, mut packets) = (Slab::new(), PacketQueue::default());
        for packet in queue {
            packets.push(&mut nodes, packet);
        }
        let victim = victim(&packets, &nodes, trigger, mode)?;
        packets.walk(&nodes).position(|(place, _)| place == victim)
    }

    /// Which packet goes in conservative and in aggressive mode; the last one is the trigger. Whether a
    /// queued packet was looked at before makes no difference.
    fn goes(packets: &[Option<TcpHeader>]) -> [Option<usize>; 2] {
        let (trigger, queued) = packets.split_last().expect("a trigger");
        let trigger = trigger.expect("it is TCP");
        [Conservative, Aggressive].map(|mode| {
            let [unseen, seen] = [false, true].map(|seen| {
                let packet = |tcp: &Option<TcpHeader>| {
                    let mut packet = whole(frame(*tcp));
                    if seen {
                        packet.set_may_be_ack(tcp.as_ref().is_some_and(is_pure_ack));
                    }
                    packet
                };
                place(queued.iter().map(packet).collect(), &trigger, mode)
            });
            assert_eq!(unseen, seen);
            seen
        })
    }

    /// The same for packets that are all TCP.
    fn goes_of(packets: &[TcpHeader]) -> [Option<usize>; 2] {
        goes(&packets.iter().copied().map(Some).collect::<Vec<_>>())
    }

    const NONE_GOES: [Option<usize>; 2] = [None, None];
    const FIRST_GOES: [Option<usize>; 2] = [Some(0), Some(0)];
    const FIRST_GOES_IF_AGGRESSIVE: [Option<usize>; 2] = [None, Some(0)];

    #[test]
    fn the_vectors_of_the_specification() {
        let twice = [(500, 600), (700, 800)];
        // Spec §8.6, row by row.
        let vectors: [(&[TcpHeader], [Option<usize>; 2]); 12] = [
            (&[ack(100), ack(200)], FIRST_GOES_IF_AGGRESSIVE),
            (&[ack(100), ack(200), ack(300)], FIRST_GOES),
            (&[ack(100), ack(100)], NONE_GOES),
            (&[ack(100), ack(100), ack(200)], FIRST_GOES),
            (&[ack(100), echoing(200, ECE), ack(300)], NONE_GOES),
            (&[echoing(100, ECE), echoing(200, ECE), echoing(300, ECE)], FIRST_GOES),
            (&[ack(100), echoing(200, ECE), echoing(300, ECE)], [None, Some(1)]),
            (&[ack(100), data(150), ack(300)], NONE_GOES),
            (&[ack(300), ack(200)], NONE_GOES),
            (
                &[sacking(100, &twice[..1]), sacking(100, &twice), sacking(200, &[(500, 800)])],
                FIRST_GOES,
            ),
            (&[stamped(100, 10, 0), stamped(200, 9, 0)], NONE_GOES),
            (&[ack(4_294_967_200), ack(50), ack(300)], FIRST_GOES),
        ];
        for (packets, expected) in vectors {
            assert_eq!(goes_of(packets), expected, "{packets:?}");
        }
        assert_eq!(goes(&[Some(ack(100)), None, Some(ack(300))]), NONE_GOES, "UDP between");
    }

    #[test]
    fn a_queue_without_others_loses_nothing() {
        assert_eq!(goes_of(&[ack(100)]), NONE_GOES);
        assert_eq!(goes(&[None, Some(ack(100))]), NONE_GOES);
    }

    #[test]
    fn a_trigger_needs_ack_and_must_not_have_syn_and_may_be_anything_else() {
        let queued = [ack(100), ack(200)];
        let goes = |trigger| goes_of(&[queued[0], queued[1], trigger]);
        for bits in [FIN, PSH, 0x004, 0x020, 0x040, 0x0c0, 0x100, 0xe00, 0xffd] {
            assert_eq!(goes(flagged(300, bits)), FIRST_GOES, "{bits:#x}");
        }
        assert_eq!(goes(data(300)), FIRST_GOES);
        assert_eq!(goes(vital(300)), FIRST_GOES);
        assert_eq!(goes(flagged(300, 0x002)), NONE_GOES);
        assert_eq!(goes(TcpHeader { flags: TcpFlags::new(FIN), ..ack(300) }), NONE_GOES);
    }

    #[test]
    fn only_pure_acks_go() {
        for bit in [0, 1, 2, 3, 5, 8, 9, 10, 11] {
            let kept = flagged(100, 1 << bit);
            assert_eq!(goes_of(&[kept, kept, ack(300)]), NONE_GOES, "bit {bit}");
        }
        let not_even_ack = TcpHeader { flags: TcpFlags::new(0), ..ack(100) };
        for kept in [data(100), vital(100), not_even_ack] {
            assert_eq!(goes_of(&[kept, kept, ack(300)]), NONE_GOES);
        }
    }

    #[test]
    fn a_reserved_flag_protects_an_ack() {
        // Bit 8 is what NS was, and AccECN counts with.
        assert_eq!(goes_of(&[flagged(100, 0x100), flagged(200, 0x100), ack(300)]), NONE_GOES);
        let both = [flagged(100, 0x100), ack(200), ack(300)];
        assert_eq!(goes_of(&both), [None, Some(1)]);
    }

    #[test]
    fn other_connections_are_passed_over() {
        let other = |change: fn(&mut TcpHeader)| {
            let mut header = ack(150);
            change(&mut header);
            header
        };
        for stranger in [
            other(|header| header.flow.source ^= 1),
            other(|header| header.flow.destination ^= 1),
            other(|header| header.flow.source_port ^= 1),
            other(|header| header.flow.destination_port ^= 1),
            other(|header| header.flow.ethertype = 0x86dd),
        ] {
            assert_eq!(goes_of(&[stranger, stranger, ack(300)]), NONE_GOES);
            assert_eq!(goes_of(&[stranger, ack(100), stranger, ack(200), ack(300)]), [Some(1); 2]);
            assert_eq!(goes_of(&[ack(100), stranger, ack(300)]), NONE_GOES, "no neighbours");
            let echoing = TcpHeader { flags: TcpFlags::ACK.with(ECE), ..stranger };
            assert_eq!(goes_of(&[ack(100), echoing, ack(200), ack(300)]), FIRST_GOES);
        }
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert_eq!(goes_of(&[ack(u32::MAX - 5), ack(u32::MAX), ack(5)]), FIRST_GOES);
        assert_eq!(goes_of(&[ack(5), ack(6), ack(u32::MAX)]), NONE_GOES);
        let (old, new) =
            (sacking(u32::MAX, &[(u32::MAX, 9)]), sacking(u32::MAX, &[(u32::MAX, 10)]));
        assert_eq!(goes_of(&[old, old, new]), FIRST_GOES);
        assert_eq!(goes_of(&[stamped(1, u32::MAX, 1), stamped(2, 3, 1)]), FIRST_GOES_IF_AGGRESSIVE);
    }

    #[test]
    fn what_is_half_of_all_numbers_away_is_later_and_stays() {
        assert_eq!(goes_of(&[ack(1 << 31), ack(0)]), NONE_GOES);
        assert_eq!(goes_of(&[ack((1 << 31) + 1), ack(0)]), FIRST_GOES_IF_AGGRESSIVE);
    }

    #[test]
    fn a_report_of_a_duplicate_is_kept() {
        let report = sacking(1000, &[(900, 950), (2000, 3000)]);
        let later = sacking(1000, &[(900, 950), (2000, 4000)]);
        assert_eq!(goes_of(&[report, report, later]), NONE_GOES);
        let new = sacking(1000, &[(2000, 3000)]);
        assert_eq!(goes_of(&[new, new, later]), FIRST_GOES);
    }

    #[test]
    fn duplicates_are_kept() {
        assert_eq!(goes_of(&[ack(100); 5]), NONE_GOES);
        let same = sacking(100, &[(500, 600)]);
        assert_eq!(goes_of(&[same; 5]), NONE_GOES);
        let elsewhere = sacking(100, &[(700, 800), (500, 600)]);
        assert_eq!(goes_of(&[same, same, elsewhere]), FIRST_GOES);
    }

    #[test]
    fn nothing_that_was_received_is_told_less_of() {
        let old = sacking(100, &[(500, 600), (700, 800)]);
        for (blocks, goes) in [
            (&[(500, 800)][..], true),
            (&[(700, 800), (500, 600)], true),
            (&[(499, 601), (700, 800)], true),
            (&[(500, 600)], false),
            (&[(500, 600), (701, 900)], false),
            (&[(500, 599), (700, 900)], false),
            (&[(500, 700), (701, 900)], false),
            (&[], false),
        ] {
            let expected = if goes { FIRST_GOES } else { NONE_GOES };
            assert_eq!(goes_of(&[old, old, sacking(200, blocks)]), expected, "{blocks:?}");
        }
        assert_eq!(goes_of(&[old, old, ack(900)]), NONE_GOES, "even where it is acknowledged");
        let none = sacking(100, &[]);
        assert_eq!(goes_of(&[none, none, ack(100)]), NONE_GOES);
        assert_eq!(goes_of(&[ack(100), none, sacking(100, &[(500, 600)])]), FIRST_GOES);
    }

    #[test]
    fn a_later_clock_is_kept() {
        let old = stamped(100, 10, 20);
        for (value, echo, goes) in
            [(10, 20, true), (11, 21, true), (9, 20, false), (10, 19, false), (0, 0, false)]
        {
            let expected = if goes { FIRST_GOES } else { NONE_GOES };
            assert_eq!(goes_of(&[old, old, stamped(200, value, echo)]), expected);
        }
        assert_eq!(goes_of(&[old, old, ack(200)]), NONE_GOES, "no clock counts as zeros");
        assert_eq!(goes_of(&[ack(100), ack(150), stamped(200, 5, 5)]), FIRST_GOES);
        let negative = stamped(100, 0u32.wrapping_sub(5), 0);
        assert_eq!(goes_of(&[negative, negative, ack(200)]), FIRST_GOES, "from before zero");
    }

    #[test]
    fn of_several_clocks_every_one_must_be_older() {
        let mut old = stamped(100, 10, 20);
        old.options.timestamps.push(Timestamps { value: 12, echo: 20 });
        assert_eq!(goes_of(&[old, old, stamped(200, 11, 20)]), NONE_GOES);
        assert_eq!(goes_of(&[old, old, stamped(200, 12, 20)]), FIRST_GOES);
    }

    #[test]
    fn no_change_of_the_ecn_echo_is_lost() {
        for echo in [ECE, CWR, ECE.with(CWR)] {
            let other = |number| echoing(number, echo);
            assert_eq!(goes_of(&[ack(1), other(2), ack(3), other(4), ack(5)]), NONE_GOES);
            assert_eq!(goes_of(&[ack(1), ack(2), other(3)]), FIRST_GOES);
            assert_eq!(goes_of(&[ack(1), other(2)]), NONE_GOES);
            assert_eq!(goes_of(&[ack(1), other(2), other(3), other(4)]), [Some(1); 2]);
        }
    }

    #[test]
    fn data_with_another_ecn_echo_protects_the_ack_before_it() {
        let between = TcpHeader { has_payload: true, ..echoing(150, ECE) };
        assert_eq!(
            goes_of(&[ack(100), between, ack(200), ack(300)]),
            FIRST_GOES_IF_AGGRESSIVE.map(|goes| goes.map(|_| 2))
        );
        assert_eq!(goes_of(&[ack(100), data(150), ack(200), ack(300)]), FIRST_GOES);
    }

    #[test]
    fn the_victim_is_the_one_nearest_the_head() {
        let numbers: Vec<_> = (1..40).map(|number| ack(number * 100)).collect();
        assert_eq!(goes_of(&numbers), FIRST_GOES);
        let behind = [data(1), vital(2), ack(50), ack(60), ack(70), ack(80)];
        assert_eq!(goes_of(&behind), [Some(2); 2]);
    }

    /// A train of two segments, of which `sent` have left, between two ACKs and the trigger.
    fn around_a_train(tcp: TcpHeader, sent: usize, acks: TcpFlags) -> Option<usize> {
        let meta = flow(7).superpacket(3, 100);
        let train = Packet::train(frame(Some(tcp)), &meta, 3, |len| WireLen(len.0), Instant::ZERO);
        let (mut nodes, mut queue) = (Slab::new(), PacketQueue::default());
        queue.push(&mut nodes, train);
        for _ in 0..sent {
            queue.pop(&mut nodes).expect("a segment");
        }
        let (at, _) = queue.walk(&nodes).next().expect("the rest");
        let train = queue.remove(&mut nodes, at).expect("it is there");
        let ack = |number| whole(frame(Some(echoing(number, acks))));
        place(vec![ack(1), train, ack(2)], &echoing(9, acks), Conservative)
    }

    #[test]
    fn a_train_is_data_with_the_ecn_bits_of_its_segments() {
        let plain = TcpFlags::new(0);
        // All segments repeat ECE; the first alone has CWR.
        assert_eq!(around_a_train(data(1), 0, plain), Some(0));
        assert_eq!(
            around_a_train(TcpHeader { has_payload: true, ..echoing(1, ECE) }, 0, plain),
            None
        );
        let reduced = TcpHeader { has_payload: true, ..echoing(1, CWR) };
        assert_eq!(around_a_train(reduced, 0, plain), None);
        assert_eq!(around_a_train(reduced, 0, CWR), None);
        for sent in [1, 2] {
            assert_eq!(around_a_train(reduced, sent, plain), Some(0), "{sent} sent");
            assert_eq!(around_a_train(reduced, sent, CWR), None, "{sent} sent");
        }
    }

    #[test]
    fn no_more_of_a_queue_than_the_bound_is_looked_at() {
        let queue = |between: usize| {
            let strangers = std::iter::repeat_n(None, between);
            let acks = |number| std::iter::once(Some(ack(number)));
            acks(1).chain(strangers).chain(acks(2)).chain(acks(3)).collect::<Vec<_>>()
        };
        assert_eq!(goes(&queue(SCAN_BOUND - 2)), FIRST_GOES);
        assert_eq!(goes(&queue(SCAN_BOUND - 1)), NONE_GOES);
    }

    /// A frame that has nothing but its bytes.
    struct Bytes(Vec<u8>, Layout);

    impl Frame for Bytes {
        fn mark_ce(&mut self) -> bool {
            false
        }
        fn wash(&mut self) -> bool {
            false
        }
        fn segment(&self, _index: u16) -> Self {
            Self(self.0.clone(), self.1)
        }
        fn tcp(&self) -> Option<TcpHeader> {
            TcpHeader::read(&self.0, &self.1)
        }
    }

    /// An ACK as bytes, in 6in4 between other outer addresses if `tunnel` says which.
    fn bytes(ip: Ip, number: u32, options: Vec<u8>, tunnel: Option<u8>) -> Bytes {
        let transport = Layer4::Tcp { sequence: 1, flags: 0x10, options };
        let packet = TestPacket { ip, transport, payload: Vec::new(), ..TestPacket::tcp() };
        let mut frame = packet.bytes();
        let at = packet.transport_offset() + 8;
        frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
        if let Some(host) = tunnel {
            let payload = frame[packet.network_offset()..].to_vec();
            let outer = TestPacket { ip: Ip::v4(), transport: Layer4::Raw(41), payload, ..packet };
            frame = outer.bytes();
            frame[14 + 15] = host;
        }
        let dissected = dissect(&frame, &VnetHeader::PLAIN, MemSize(0)).expect("a frame");
        Bytes(frame, dissected.layout)
    }

    fn goes_of_bytes(frames: [Bytes; 3]) -> Option<usize> {
        let [first, second, trigger] = frames;
        let trigger = trigger.tcp().expect("it is TCP");
        place(vec![whole(first), whole(second)], &trigger, Conservative)
    }

    #[test]
    fn acks_go_by_their_bytes_over_either_family_and_by_the_inner_addresses_in_6in4() {
        let stamps = |value| vec![1, 1, 8, 10, 0, 0, 0, value, 0, 0, 0, 1];
        let syn_only = vec![2, 4, 5, 0xb4];
        for ip in [Ip::v4(), Ip::v6()] {
            let ack = |number, options| bytes(ip.clone(), number, options, None);
            let same = [ack(1, stamps(1)), ack(2, stamps(2)), ack(3, stamps(3))];
            assert_eq!(goes_of_bytes(same), Some(0));
            let clock = [ack(1, stamps(4)), ack(2, stamps(2)), ack(3, stamps(3))];
            assert_eq!(goes_of_bytes(clock), None);
            let option = [ack(1, syn_only.clone()), ack(2, Vec::new()), ack(3, Vec::new())];
            assert_eq!(goes_of_bytes(option), None);
        }
        let tunnelled = |number, host| bytes(Ip::v6(), number, Vec::new(), Some(host));
        assert_eq!(goes_of_bytes([tunnelled(1, 7), tunnelled(2, 8), tunnelled(3, 9)]), Some(0));
        let native = |number| bytes(Ip::v6(), number, Vec::new(), None);
        assert_eq!(goes_of_bytes([tunnelled(1, 7), native(2), tunnelled(3, 7)]), Some(0));
        let v4 = |number| bytes(Ip::v4(), number, Vec::new(), None);
        assert_eq!(goes_of_bytes([v4(1), v4(2), tunnelled(3, 7)]), None);
    }

    /// Headers that are near enough to each other to matter.
    fn header() -> impl Strategy<Value = TcpHeader> {
        let number = || prop_oneof![0..6_u32, Just(u32::MAX), any::<u32>()];
        let blocks = prop::collection::vec((number(), number()), 0..5);
        let stamps = prop::collection::vec((number(), number()), 0..3);
        let flags = prop_oneof![Just(0x010), Just(0x050), Just(0x090), 0..0x1000_u16];
        (number(), flags, 0..4_u8, blocks, stamps).prop_map(
            |(number, flags, odd, blocks, stamps)| {
                let mut header =
                    TcpHeader { flags: TcpFlags::new(flags), ..sacking(number, &blocks) };
                header.has_payload = odd == 1;
                header.options.vital = odd == 2;
                header.flow.source_port ^= u16::from(odd == 3);
                let stamps = stamps.into_iter().map(|(value, echo)| Timestamps { value, echo });
                header.options.timestamps = stamps.collect::<Few<_>>();
                header
            },
        )
    }

    proptest! {
        #[test]
        fn what_goes_is_a_pure_ack_of_the_connection_and_aggressive_drops_no_less(
            headers in prop::collection::vec(header(), 1..12),
        ) {
            let [conservative, aggressive] = goes_of(&headers);
            let trigger = headers.last().expect("one at least");
            for place in conservative.iter().chain(&aggressive) {
                let tcp = &headers[*place];
                prop_assert!(*place + 1 < headers.len());
                prop_assert!(is_pure_ack(tcp) && tcp.flow == trigger.flow);
                prop_assert!(!is_after(tcp.ack, trigger.ack));
            }
            prop_assert!(conservative.is_none() || conservative == aggressive);
        }
    }
}
