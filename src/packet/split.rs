//! Superpackets to frames: a run of segments with headers of its own.
//!
//! Problem: CAKE decides segment by segment, but one write of a superpacket costs a tenth of the
//! writes of its segments. So a superpacket is queued whole, and what leaves together is written
//! together.
//! Source: RFC 9293 §3.1 (sequence numbers, flags), RFC 3168 §6.1.2 (CWR), RFC 6864 §4 and Linux's
//! habit for the IPv4 id, virtio for the header in front.
//! Law: a *run* is neighbouring segments `first..end`. Splitting a train into runs, and those into
//! runs again, gives the same bytes as splitting it at once. Lengths are stated anew; checksums are
//! updated by what changed, so that a broken one stays broken.
//! Left out: joining (that is another mechanism's work) and fragmenting UDP datagrams (UFO).
//!
//! | field | in a run of segments `first..end` of `count` |
//! |---|---|
//! | IPv4 total length, IPv6 payload length | of the run, extension headers counted in |
//! | IPv4 id | + `first`, wrapping |
//! | IPv4 header checksum | updated for the two above |
//! | TCP sequence | + `first` × mss, wrapping |
//! | FIN, PSH | cleared unless `end == count` |
//! | CWR, and the ECN bit of the offload type | cleared unless `first == 0` |
//! | UDP length | of the run |
//! | TCP, UDP checksum | pseudo-header sum updated for the length; finished if asked to |
//! | CE | set if asked to |

use core::ops::Range;

use super::bytes::{double_word, put_double_word, put_word, word};
use super::{Layout, Network, Train, Transport, VnetHeader, checksum, ecn};

/// The most bytes of headers a superpacket may have: Ethernet with three tags, IP, and the longest
/// TCP header need 146 with IPv4; the rest is room for IPv6 extension headers, which Linux itself
/// does not put on superpackets in any number.
pub const MAX_HEADERS: usize = 256;

/// How a port wants transport checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// As they come: the port takes `NEEDS_CSUM`.
    Partial,
    /// Finished: the port takes plain frames only. A run of more than one segment is not a plain
    /// frame and stays unfinished all the same; such a port is to be given runs of one.
    Complete,
}

/// A run, ready to be written: virtio header, then headers, then payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What to write first, where the port takes it.
    pub vnet: VnetHeader,
    /// How much of the scratch is headers now.
    pub header_len: usize,
    /// Where in the train's own bytes the payload stands.
    pub payload: Range<usize>,
}

/// Prepares segments `run` of a train to leave as one write, with CE if `ce`.
///
/// `frame`, `vnet` and `layout` belong together as [`dissect()`](super::dissect()) gave them. The
/// headers go to the start of `headers`, of which [`MAX_HEADERS`] bytes always suffice; the frame
/// itself is not touched. `None` if the frame is no train or has no such segments.
///
/// CE is not set on a train that is not ECN-capable; nothing else changes in that case.
pub fn write_run(
    frame: &[u8],
    vnet: &VnetHeader,
    layout: &Layout,
    run: Range<u16>,
    ce: bool,
    checksums: Checksums,
    headers: &mut [u8],
) -> Option<Run> {
    let train = layout.train?;
    let cut = Cut::new(frame, &train, run)?;
    let header_len = usize::from(train.segments.header_len);
    let headers = headers.get_mut(..header_len)?;
    headers.copy_from_slice(frame.get(..header_len)?);
    let packet_len = header_len + cut.payload.len();
    rewrite_network(headers, layout, &cut, packet_len)?;
    rewrite_transport(headers, &train, &cut, frame.len(), packet_len)?;
    if ce {
        ecn::set_ce(headers, layout);
    }
    let payload = frame.get(cut.payload.clone())?;
    let vnet = match checksums {
        Checksums::Complete if cut.is_single() => {
            let offset = train.transport.checksum_offset();
            checksum::complete_over(headers, payload, train.transport_offset, offset);
            vnet.without_gso().with_finished_csum()
        }
        _ => cut.vnet(vnet, train.segments.header_len),
    };
    Some(Run { vnet, header_len, payload: cut.payload })
}

/// Prepares a frame that leaves as it came, superpacket or not: sets CE if `ce` and finishes the
/// checksum if the port wants that. `vnet` is [`Dissected::vnet`](super::Dissected::vnet); returned
/// is what to write in front.
///
/// A superpacket's checksum cannot be finished. It is left alone here, for ports that take
/// superpackets.
pub fn whole(
    frame: &mut [u8],
    vnet: &VnetHeader,
    layout: &Layout,
    ce: bool,
    checksums: Checksums,
) -> VnetHeader {
    if ce {
        ecn::set_ce(frame, layout);
    }
    let plain = vnet.gso_type == VnetHeader::GSO_NONE;
    let finish = checksums == Checksums::Complete && plain && vnet.needs_csum();
    if finish && checksum::complete(frame, vnet.csum_start, vnet.csum_offset) {
        return vnet.with_finished_csum();
    }
    *vnet
}

/// Which part of a train a run is.
struct Cut {
    first: u16,
    segments: u16,
    mss: u16,
    /// Whether the train's last segment is in the run.
    last: bool,
    payload: Range<usize>,
}

impl Cut {
    fn new(frame: &[u8], train: &Train, run: Range<u16>) -> Option<Self> {
        let segments = train.segments;
        if run.is_empty() || run.end > segments.count {
            return None;
        }
        let at = |index| {
            usize::from(segments.header_len) + usize::from(segments.mss) * usize::from(index)
        };
        let last = run.end == segments.count;
        let end = if last { frame.len() } else { at(run.end) };
        Some(Self {
            first: run.start,
            segments: run.end - run.start,
            mss: segments.mss,
            last,
            payload: at(run.start)..end,
        })
    }

    fn is_single(&self) -> bool {
        self.segments == 1
    }

    /// The virtio header of the run, its checksum unfinished.
    fn vnet(&self, vnet: &VnetHeader, header_len: u16) -> VnetHeader {
        if self.is_single() {
            return vnet.without_gso();
        }
        let gso_type = if self.first == 0 { vnet.gso_type } else { vnet.gso_kind() };
        VnetHeader { gso_type, hdr_len: header_len, gso_size: self.mss, ..*vnet }
    }
}

/// Lengths, id and header checksum of the IP header.
fn rewrite_network(
    headers: &mut [u8],
    layout: &Layout,
    cut: &Cut,
    packet_len: usize,
) -> Option<()> {
    let at = usize::from(layout.network_offset);
    let from_network = packet_len.checked_sub(at)?;
    match layout.network {
        Network::Ipv4 => {
            let id = word(headers, at + 4)?.wrapping_add(cut.first);
            checksum::rewrite(headers, at + 2, length(from_network)?, at + 10)?;
            checksum::rewrite(headers, at + 4, id, at + 10)
        }
        Network::Ipv6 => put_word(headers, at + 4, length(from_network.checked_sub(40)?)?),
        Network::Other => None,
    }
}

/// Sequence, flags, length and pseudo-header sum of the TCP or UDP header.
fn rewrite_transport(
    headers: &mut [u8],
    train: &Train,
    cut: &Cut,
    train_len: usize,
    packet_len: usize,
) -> Option<()> {
    let at = usize::from(train.transport_offset);
    let new = length(packet_len.checked_sub(at)?)?;
    let old = match train.transport {
        Transport::Tcp => {
            rewrite_sequence(headers, at, cut)?;
            length(train_len.checked_sub(at)?)?
        }
        Transport::Udp => {
            let old = word(headers, at + 4)?;
            put_word(headers, at + 4, new)?;
            old
        }
    };
    let field = at + usize::from(train.transport.checksum_offset());
    let pseudo = checksum::replace(word(headers, field)?, old, new);
    put_word(headers, field, pseudo)
}

/// Moves the sequence number on and takes away the flags that belong to other segments.
fn rewrite_sequence(headers: &mut [u8], at: usize, cut: &Cut) -> Option<()> {
    const FIN: u8 = 0x01;
    const PSH: u8 = 0x08;
    const CWR: u8 = 0x80;
    let skipped = u32::from(cut.mss) * u32::from(cut.first);
    let sequence = double_word(headers, at + 4)?.wrapping_add(skipped);
    put_double_word(headers, at + 4, sequence)?;
    let flags = headers.get_mut(at + 13)?;
    if !cut.last {
        *flags &= !(FIN | PSH);
    }
    if cut.first != 0 {
        *flags &= !CWR;
    }
    Some(())
}

/// A length field. Trains are at most 65535 bytes from the network header on, or were refused.
fn length(bytes: usize) -> Option<u16> {
    u16::try_from(bytes).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(in crate::packet) mod tests {
    use super::*;
    use crate::packet::testing::{Ip, Layer4, Packet};
    use crate::packet::{Dissected, dissect};
    use crate::units::MemSize;
    use proptest::prelude::*;

    const ALL_FLAGS: u8 = 0xff;

    /// A frame as a port would see it.
    #[derive(Clone, Debug, PartialEq)]
    pub(in crate::packet) struct Written {
        pub(in crate::packet) vnet: VnetHeader,
        pub(in crate::packet) bytes: Vec<u8>,
    }

    impl Written {
        pub(in crate::packet) fn dissect(&self) -> Dissected {
            dissect(&self.bytes, &self.vnet, MemSize(0)).unwrap()
        }

        pub(in crate::packet) fn run(
            &self,
            run: Range<u16>,
            ce: bool,
            checksums: Checksums,
        ) -> Self {
            let layout = self.dissect().layout;
            let mut scratch = [0xee; MAX_HEADERS];
            let run = write_run(&self.bytes, &self.vnet, &layout, run, ce, checksums, &mut scratch)
                .unwrap();
            let mut bytes = scratch[..run.header_len].to_vec();
            bytes.extend(&self.bytes[run.payload]);
            Self { vnet: run.vnet, bytes }
        }

        /// Every segment on its own; a frame that is a segment already, as it is.
        pub(in crate::packet) fn singles(&self, checksums: Checksums) -> Vec<Self> {
            match self.dissect().layout.train {
                Some(train) => (0..train.segments.count)
                    .map(|index| self.run(index..index + 1, false, checksums))
                    .collect(),
                None => vec![self.left_whole(checksums)],
            }
        }

        fn left_whole(&self, checksums: Checksums) -> Self {
            let Dissected { layout, vnet, .. } = self.dissect();
            let mut bytes = self.bytes.clone();
            let vnet = whole(&mut bytes, &vnet, &layout, false, checksums);
            Self { vnet, bytes }
        }
    }

    fn train(packet: &Packet, mss: u16) -> Written {
        let (bytes, vnet) = packet.train(mss);
        Written { vnet, bytes }
    }

    fn long(packet: Packet) -> Packet {
        let payload = (0..=255).cycle().take(4321).collect();
        Packet { payload, ..packet }
    }

    fn tcp(sequence: u32, flags: u8) -> Layer4 {
        Layer4::Tcp { sequence, flags, options: vec![1, 1, 1, 0] }
    }

    fn kinds() -> Vec<Packet> {
        let tcp = Packet { transport: tcp(0xffff_ff00, ALL_FLAGS), id: 0xfffe, ..Packet::tcp() };
        let options = Ip::V4 { options: vec![1; 8], fragment: 0 };
        let kinds = [
            tcp.clone(),
            Packet { ip: options, ..tcp.clone() },
            Packet { ip: Ip::v6(), ..tcp.clone() },
            Packet { ip: Ip::v6_extended(), tos: 0xba, ..tcp.clone() },
            Packet { tags: vec![(0x8100, 7)], ..tcp.clone() },
            Packet { tags: vec![(0x88a8, 9), (0x8100, 7)], ip: Ip::v6(), ..tcp.clone() },
            Packet { tags: vec![(0x88a8, 9), (0x8100, 7), (0x8100, 5)], ..tcp },
            Packet { id: 0xffff, ..Packet::udp() },
            Packet { ip: Ip::v6_extended(), ..Packet::udp() },
        ];
        kinds.into_iter().map(long).collect()
    }

    #[test]
    fn each_segment_is_the_frame_its_sender_would_have_built() {
        for packet in kinds() {
            for mss in [1448, 1440, 4320, 333] {
                let expected = packet.segments(mss);
                let singles = train(&packet, mss).singles(Checksums::Complete);
                assert_eq!(singles.len(), expected.len());
                for (got, expected) in singles.iter().zip(&expected) {
                    assert_eq!(got.bytes, expected.bytes(), "{packet:?} by {mss}");
                    assert_eq!(got.vnet, VnetHeader::PLAIN);
                    assert!(expected.ip_checksum_verifies(&got.bytes));
                    assert!(expected.transport_checksum_verifies(&got.bytes));
                }
            }
        }
    }

    #[test]
    fn the_payload_is_what_it_was() {
        for packet in kinds() {
            let singles = train(&packet, 700).singles(Checksums::Partial);
            let joined: Vec<u8> =
                singles.iter().flat_map(|one| one.bytes[packet.header_len()..].to_vec()).collect();
            assert_eq!(joined, packet.payload);
        }
    }

    #[test]
    fn partial_checksums_finish_as_the_complete_ones() {
        for packet in kinds() {
            let train = train(&packet, 999);
            let finished: Vec<_> = train
                .singles(Checksums::Partial)
                .iter()
                .inspect(|one| assert!(one.vnet.needs_csum()))
                .map(|one| one.left_whole(Checksums::Complete))
                .collect();
            assert_eq!(finished, train.singles(Checksums::Complete));
        }
    }

    #[test]
    fn a_run_of_everything_is_the_train() {
        for packet in kinds() {
            let train = train(&packet, 1000);
            let mut run = train.run(0..5, false, Checksums::Complete);
            assert_eq!(run.vnet.hdr_len, train.dissect().meta.segments.header_len);
            run.vnet.hdr_len = train.vnet.hdr_len;
            assert_eq!(run, train);
        }
    }

    #[test]
    fn only_the_first_run_carries_cwr_and_says_so() {
        let packet = long(Packet { transport: tcp(1, 0x90), ..Packet::tcp() });
        let mut train = train(&packet, 1000);
        train.vnet.gso_type |= VnetHeader::GSO_ECN;
        let runs = [0..2, 2..4, 4..5].map(|run| train.run(run, false, Checksums::Partial));
        assert_eq!(runs.each_ref().map(|run| run.bytes[34 + 13]), [0x90, 0x10, 0x10]);
        let types = runs.each_ref().map(|run| run.vnet.gso_type);
        assert_eq!(types, [VnetHeader::GSO_TCPV4 | VnetHeader::GSO_ECN, VnetHeader::GSO_TCPV4, 0]);
    }

    #[test]
    fn only_the_last_run_carries_fin_and_psh() {
        let packet = long(Packet { transport: tcp(1, 0x19), ..Packet::tcp() });
        let train = train(&packet, 1000);
        let flags =
            [0..2, 2..4, 4..5].map(|run| train.run(run, false, Checksums::Partial).bytes[34 + 13]);
        assert_eq!(flags, [0x10, 0x10, 0x19]);
    }

    #[test]
    fn a_longer_run_of_datagrams_is_one_long_datagram() {
        let train = train(&long(Packet::udp()), 1000);
        let run = train.run(1..4, false, Checksums::Partial);
        assert_eq!(word(&run.bytes, 34 + 4), Some(8 + 3000));
        assert_eq!(word(&run.bytes, 14 + 2), Some(20 + 8 + 3000));
        assert_eq!((run.vnet.gso_type, run.vnet.gso_size), (VnetHeader::GSO_UDP_L4, 1000));
    }

    #[test]
    fn ce_on_one_segment_leaves_its_neighbours_alone() {
        for packet in kinds() {
            let packet = Packet { tos: 0xb9, ..packet };
            let train = train(&packet, 1500);
            let before = train.clone();
            for (index, expected) in (0_u16..).zip(packet.segments(1500)) {
                let got = train.run(index..index + 1, index == 1, Checksums::Complete);
                let tos = if index == 1 { 0xbb } else { 0xb9 };
                assert_eq!(got.bytes, Packet { tos, ..expected }.bytes());
            }
            assert_eq!(train, before);
        }
    }

    #[test]
    fn a_train_that_is_not_ecn_capable_is_not_marked() {
        let train = train(&long(Packet::tcp()), 1000);
        let marked = train.run(0..1, true, Checksums::Complete);
        assert_eq!(marked, train.run(0..1, false, Checksums::Complete));
    }

    #[test]
    fn a_broken_transport_checksum_stays_broken() {
        for packet in kinds() {
            let mut train = train(&packet, 1000);
            train.bytes[packet.checksum_field().unwrap() + 1] ^= 0x10;
            for one in train.singles(Checksums::Complete) {
                assert!(!packet.transport_checksum_verifies(&one.bytes));
            }
        }
    }

    #[test]
    fn a_broken_header_checksum_stays_broken() {
        let packet = long(Packet { tos: 2, ..Packet::tcp() });
        let mut train = train(&packet, 1000);
        train.bytes[24] ^= 0x10;
        for index in 0..5 {
            let one = train.run(index..index + 1, true, Checksums::Complete);
            assert!(!packet.ip_checksum_verifies(&one.bytes));
            assert!(packet.transport_checksum_verifies(&one.bytes));
        }
    }

    #[test]
    fn a_plain_frame_is_finished_in_place() {
        for packet in kinds() {
            // A "superpacket" of one segment.
            let one = train(&packet, 5000).left_whole(Checksums::Complete);
            assert_eq!(one.bytes, packet.bytes());
            assert_eq!(one.vnet, VnetHeader::PLAIN);
            let untouched = train(&packet, 5000).left_whole(Checksums::Partial);
            assert_eq!(untouched.bytes, packet.train(5000).0);
            assert!(untouched.vnet.needs_csum());
        }
    }

    #[test]
    fn a_train_left_whole_is_marked_whole_and_not_finished() {
        let packet = long(Packet { tos: 1, ..Packet::tcp() });
        let Written { mut bytes, vnet } = train(&packet, 1000);
        let found = dissect(&bytes, &vnet, MemSize(0)).unwrap();
        let left = whole(&mut bytes, &found.vnet, &found.layout, true, Checksums::Complete);
        assert_eq!(bytes, Packet { tos: 3, ..packet }.train(1000).0);
        assert_eq!(left, found.vnet);
    }

    #[test]
    fn runs_that_do_not_exist_are_not_written() {
        let train = train(&long(Packet::tcp()), 1000);
        let layout = train.dissect().layout;
        let mut scratch = [0; MAX_HEADERS];
        let mut write = |layout: &Layout, run, len: usize| {
            let scratch = &mut scratch[..len];
            write_run(&train.bytes, &train.vnet, layout, run, false, Checksums::Partial, scratch)
                .is_some()
        };
        assert!(write(&layout, 0..5, MAX_HEADERS));
        assert!(!write(&layout, 0..6, MAX_HEADERS), "past the end");
        assert!(!write(&layout, 2..2, MAX_HEADERS), "empty");
        assert!(!write(&layout, 0..1, 20), "no room");
        assert!(!write(&Layout { train: None, ..layout }, 0..1, MAX_HEADERS), "no train");
    }

    fn any_ip() -> impl Strategy<Value = Ip> {
        prop_oneof![
            (0..6_usize).prop_map(|words| Ip::V4 { options: vec![1; 4 * words], fragment: 0 }),
            (0..2_u32).prop_map(|label| Ip::V6 { label, extensions: Vec::new() }),
            Just(Ip::v6_extended()),
        ]
    }

    fn any_transport() -> impl Strategy<Value = Layer4> {
        let tcp = (any::<u32>(), any::<u8>(), 0..11_usize).prop_map(|(sequence, flags, words)| {
            Layer4::Tcp { sequence, flags, options: vec![1; 4 * words] }
        });
        prop_oneof![tcp, Just(Layer4::Udp)]
    }

    prop_compose! {
        fn any_packet()(
            ip in any_ip(), transport in any_transport(), tags in 0..4_usize, tos: u8, id: u16,
            payload in prop::collection::vec(any::<u8>(), 2..600),
        ) -> Packet {
            let tags = vec![(0x88a8, 5), (0x8100, 6), (0x8100, 7)][..tags].to_vec();
            Packet { tags, tos, id, ip, transport, payload }
        }
    }

    /// Often one of those that make the two zeros of ones' complement.
    fn damaged_byte() -> impl Strategy<Value = u8> {
        prop_oneof![any::<u8>(), Just(0), Just(0xff)]
    }

    /// Neighbouring ranges that cover `0..count`, cut at some of `cuts`.
    fn partition(count: u16, cuts: &[u16]) -> Vec<Range<u16>> {
        let mut ends: Vec<u16> = cuts.iter().map(|cut| 1 + cut % count).chain([count]).collect();
        ends.sort_unstable();
        ends.dedup();
        let starts = std::iter::once(0).chain(ends.clone());
        starts.zip(ends).map(|(start, end)| start..end).collect()
    }

    proptest! {
        #[test]
        fn splitting_twice_is_splitting_once(
            packet in any_packet(), mss in 1..300_u16, cuts in prop::collection::vec(any::<u16>(), 0..6),
            damage in prop::collection::vec((14..90_usize, damaged_byte()), 0..4), ecn: bool,
        ) {
            let mut train = train(&packet, mss);
            if ecn {
                train.vnet.gso_type |= VnetHeader::GSO_ECN;
            }
            for (at, byte) in damage {
                if let Some(place) = train.bytes.get_mut(at) {
                    *place = byte;
                }
            }
            let Ok(found) = dissect(&train.bytes, &train.vnet, MemSize(0)) else { return Ok(()) };
            let Some(split) = found.layout.train else { return Ok(()) };
            for checksums in [Checksums::Partial, Checksums::Complete] {
                let directly = train.singles(checksums);
                let by_runs: Vec<_> = partition(split.segments.count, &cuts)
                    .into_iter()
                    .map(|run| train.run(run, false, checksums))
                    .flat_map(|run| run.singles(checksums))
                    .collect();
                prop_assert_eq!(&by_runs, &directly);
            }
        }

        #[test]
        fn random_trains_become_the_frames_built_singly(packet in any_packet(), mss in 1..300_u16) {
            let singles = train(&packet, mss).singles(Checksums::Complete);
            let expected: Vec<_> = packet.segments(mss).iter().map(Packet::bytes).collect();
            prop_assert_eq!(singles.into_iter().map(|one| one.bytes).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn lengths_told_to_the_discipline_are_those_written(packet in any_packet(), mss in 1..300_u16) {
            let train = train(&packet, mss);
            let meta = train.dissect().meta;
            let singles = train.singles(Checksums::Complete);
            let mut total = 0;
            for (index, one) in (0_u16..).zip(&singles) {
                let len = u32::try_from(one.bytes.len()).unwrap();
                prop_assert_eq!(meta.segment_len(index).0, len);
                total += len;
            }
            prop_assert_eq!(meta.counted_len().0, total);
        }

        #[test]
        fn no_bytes_cause_a_panic(
            packet in any_packet(), mss: u16, vnet: [u8; 10], believe: bool, run: Range<u16>,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut: prop::sample::Index, cut_it: bool, noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let (mut bytes, honest) = packet.train(mss);
            for (at, byte) in damage {
                let at = at.index(bytes.len().min(120));
                bytes[at] = byte;
            }
            if cut_it {
                bytes.truncate(cut.index(bytes.len()));
            }
            let vnet = if believe { honest } else { VnetHeader::decode(&vnet) };
            let layout = dissect(&bytes, &vnet, MemSize(0)).map(|found| found.layout);
            let layout = layout.unwrap_or_default();
            let mut scratch = [0; MAX_HEADERS];
            // Also with a layout that belongs to another frame.
            for mut frame in [bytes, noise] {
                let _ = dissect(&frame, &vnet, MemSize(0));
                for run in [run.clone(), 0..1, 0..2] {
                    write_run(&frame, &vnet, &layout, run, true, Checksums::Complete, &mut scratch);
                }
                whole(&mut frame, &vnet, &layout, true, Checksums::Complete);
            }
        }
    }
}
