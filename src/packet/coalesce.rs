//! Frames to superpackets: neighbours of one flow joined to a run.
//!
//! Problem: a kernel takes a superpacket at a tenth of the price of its segments, and CAKE has just decided
//! about each segment by itself.
//! Source: what Linux's GRO joins and its segmentation takes apart again; RFC 9293 §3.1, RFC 6864 §4,
//! RFC 768. Split, `split.rs`, is the inverse.
//! Law: a run, split by whoever receives it, is byte for byte the frames it was made of. So frames join if
//! they differ in nothing but what splitting counts up by itself (TCP sequence, IPv4 id, lengths) and what
//! it keeps for the last one (FIN, PSH); if all but the last are of one size; and if every checksum is
//! right, for splitting makes new ones, and one that was broken would be healed. No payload is copied.
//! Left out: IPv4 options, SYN, RST, URG and CWR, fragments, UDP without checksum, what is within a tunnel of IP or
//! behind an authentication header: they leave as they came. [`Push::Keep`] or not is the one liberty; and of
//! the two zeros that a checksum to be finished may come to, the kernel writes one into a frame and the
//! other into a segment.

use core::ops::Range;

use super::bytes::{double_word, put_word, word};
use super::split::MAX_HEADERS;
use super::{Layout, Network, Segments, Transport, VnetHeader, checksum};

/// Most segments of a UDP run: what a kernel of any age takes (`UDP_MAX_SEGMENTS`).
const MOST_DATAGRAMS: u16 = 64;
/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;
/// What a length field can say.
const MOST_BYTES: u32 = u16::MAX as u32;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

/// What PSH does to a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Push {
    /// PSH is kept where it is, so that a run ends with it: what arrives is what was sent, to the bit.
    #[default]
    Keep,
    /// A run goes on behind PSH, and only its last segment keeps it. Small writes without Nagle's
    /// algorithm set PSH on every segment; receivers make nothing of it.
    Last,
}

/// A frame, or neighbouring segments of a superpacket, as it is about to leave.
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    /// The whole frame.
    pub frame: &'a [u8],
    /// The header it came with.
    pub vnet: &'a VnetHeader,
    /// Where in it things stand, as [`dissect()`](super::dissect()) gave it.
    pub layout: &'a Layout,
    /// Which segments of it leave; `0..1` of what is no train.
    pub run: Range<u16>,
    /// Whether they leave with CE that is not in `frame` yet.
    pub ce: bool,
    /// Whether they leave without the DSCP that is in `frame` still.
    pub washed: bool,
}

/// A run that is being made: what its first piece says, and what its next one has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joint {
    push: Push,
    shape: Shape,
    /// Of all pieces together.
    payload: u32,
    segments: u16,
    /// FIN and PSH of the last segment.
    last_flags: u8,
    closed: bool,
}

impl Joint {
    /// A run of `first` alone, or `None` if nothing can ever join it.
    #[must_use]
    pub fn begin(first: &Piece<'_>, push: Push) -> Option<Self> {
        let (shape, tail) = Shape::of(first)?;
        let mut run = Self { push, shape, payload: 0, segments: 0, last_flags: 0, closed: false };
        run.append(&tail);
        (!run.closed && run.shape.checksum_is_right(first)).then_some(run)
    }

    /// Takes `next` in, if it continues the run that `first` began. Returns whether it did; if not,
    /// nothing has changed.
    pub fn accept(&mut self, first: &Piece<'_>, next: &Piece<'_>) -> bool {
        if self.closed {
            return false;
        }
        let Some((shape, tail)) = Shape::of(next) else { return false };
        let joins = self.shape.is_continued_by(&shape, self.payload, self.segments)
            && self.has_room_for(&tail)
            && self.shape.same_headers(first.frame, next.frame)
            && shape.checksum_is_right(next);
        if joins {
            self.append(&tail);
        }
        joins
    }

    /// Number of segments.
    #[must_use]
    pub const fn segments(&self) -> u16 {
        self.segments
    }

    /// Length of the run as one frame.
    #[must_use]
    pub const fn frame_len(&self) -> usize {
        self.shape.header_len + self.payload as usize
    }

    /// Bytes of headers, the same in every piece.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.shape.header_len
    }

    /// Makes the headers of the run's first piece, as it would be written by itself, those of the run.
    /// Returns what to write in front; `None` if `headers` is too short for them.
    #[must_use]
    pub fn write(&self, headers: &mut [u8]) -> Option<VnetHeader> {
        let Shape { network, network_at, transport, transport_at, .. } = self.shape;
        let length = |from: usize| u16::try_from(self.frame_len().checked_sub(from)?).ok();
        match network {
            Network::Ipv4 => {
                let check = network_at + 10;
                checksum::rewrite(headers, network_at + 2, length(network_at)?, check)?;
            }
            _ => put_word(headers, network_at + 4, length(network_at + IPV6_LEN)?)?,
        }
        let from_transport = length(transport_at)?;
        match transport {
            Transport::Tcp => {
                let flags = headers.get_mut(transport_at + 13)?;
                *flags = *flags & !(FIN | PSH) | self.last_flags;
            }
            Transport::Udp => put_word(headers, transport_at + 4, from_transport)?,
        }
        let field = transport_at + usize::from(transport.checksum_offset());
        put_word(headers, field, checksum::add(self.shape.pseudo, from_transport))?;
        self.vnet()
    }

    fn vnet(&self) -> Option<VnetHeader> {
        let Shape { network, transport, transport_at, header_len, mss, .. } = self.shape;
        Some(VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: match (transport, network) {
                (Transport::Udp, _) => VnetHeader::GSO_UDP_L4,
                (Transport::Tcp, Network::Ipv4) => VnetHeader::GSO_TCPV4,
                (Transport::Tcp, _) => VnetHeader::GSO_TCPV6,
            },
            hdr_len: u16::try_from(header_len).ok()?,
            gso_size: u16::try_from(mss).ok()?,
            csum_start: u16::try_from(transport_at).ok()?,
            csum_offset: transport.checksum_offset(),
        })
    }

    fn has_room_for(&self, tail: &Tail) -> bool {
        let headers = u32::try_from(self.shape.header_len - self.shape.network_at);
        let bytes = headers.unwrap_or(MOST_BYTES) + self.payload + tail.payload;
        let most = match self.shape.transport {
            Transport::Tcp => u16::MAX,
            Transport::Udp => MOST_DATAGRAMS,
        };
        let segments = self.segments.saturating_add(tail.segments);
        bytes <= MOST_BYTES
            && segments <= most
            && tail.largest <= self.shape.mss
            && (tail.segments == 1 || tail.largest == self.shape.mss)
    }

    fn append(&mut self, tail: &Tail) {
        self.payload += tail.payload;
        self.segments += tail.segments;
        let ends = match self.push {
            Push::Keep => FIN | PSH,
            Push::Last => FIN,
        };
        // Behind a PSH that is not kept, the one of the last segment stands for it.
        self.last_flags = self.last_flags & !ends | tail.flags;
        self.closed = tail.last < self.shape.mss || tail.flags & ends != 0;
    }
}

/// What a piece has in common with those that may stand beside it in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    network: Network,
    network_at: usize,
    transport: Transport,
    transport_at: usize,
    header_len: usize,
    /// TOS or traffic class as it leaves.
    tos: u8,
    /// IPv4 id of its first segment; 0 in IPv6.
    id: u16,
    /// TCP sequence number of its first segment; 0 of UDP.
    sequence: u32,
    /// TCP flags but for FIN and PSH.
    flags: u8,
    /// Payload bytes of its first segment.
    mss: u32,
    /// The sum of the pseudo header without the length.
    pseudo: u16,
}

/// What a piece adds to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    segments: u16,
    payload: u32,
    /// Payload bytes of its first segment, than which none is larger.
    largest: u32,
    /// Payload bytes of its last segment.
    last: u32,
    /// FIN and PSH as its last segment has them.
    flags: u8,
}

impl Shape {
    /// Reads a piece; `None` if it can be part of no run.
    fn of(piece: &Piece<'_>) -> Option<(Self, Tail)> {
        let Piece { frame, layout, run, .. } = piece;
        // A superpacket that cannot be split is no single frame either.
        if layout.train.is_none() && piece.vnet.gso_type != VnetHeader::GSO_NONE {
            return None;
        }
        let (transport, transport_at) = layout.transport?;
        let (network_at, at) = (usize::from(layout.network_offset), usize::from(transport_at));
        let header_len = at + transport_header_len(frame, transport, at)?;
        let whole = u32::try_from(frame.len().checked_sub(header_len)?).ok()?;
        if header_len > MAX_HEADERS || whole == 0 {
            return None;
        }
        let (id, tos) = network_header(frame, layout.network, network_at, at)?;
        let segments = layout.train.map_or(Segments::ONE, |train| train.segments);
        let (sequence, flags) = sequence_and_flags(frame, transport, at)?;
        let mss = if segments.count == 1 { whole } else { u32::from(segments.mss) };
        let skipped = u32::from(run.start) * mss;
        let tail = tail(piece.run.clone(), segments.count, mss, whole, flags)?;
        // CWR stays with the first segment of a train.
        let flags = flags & !(FIN | PSH) & if run.start == 0 { 0xff } else { !CWR };
        if flags & (SYN | RST | URG | CWR) != 0 {
            return None;
        }
        let shape = Self {
            network: layout.network,
            network_at,
            transport,
            transport_at: at,
            header_len,
            tos: leaving_tos(tos, piece),
            id: if layout.network == Network::Ipv4 { id.wrapping_add(run.start) } else { 0 },
            sequence: sequence.wrapping_add(skipped),
            flags,
            mss: tail.largest,
            pseudo: pseudo(piece, transport, network_at, at)?,
        };
        Some((shape, tail))
    }

    /// Whether a piece like `next` may follow `payload` bytes in `segments` of this one.
    fn is_continued_by(&self, next: &Self, payload: u32, segments: u16) -> bool {
        let (sequence, id) = match (self.transport, self.network) {
            (Transport::Udp, Network::Ipv4) => (0, self.id.wrapping_add(segments)),
            (Transport::Udp, _) => (0, 0),
            (Transport::Tcp, Network::Ipv4) => {
                (self.sequence.wrapping_add(payload), self.id.wrapping_add(segments))
            }
            (Transport::Tcp, _) => (self.sequence.wrapping_add(payload), 0),
        };
        // Size and checksum are looked at by themselves.
        *next == Self { sequence, id, mss: next.mss, ..*self }
    }

    /// Whether all else in the headers is equal. What `Shape` holds and what splitting counts up is not
    /// compared.
    fn same_headers(&self, a: &[u8], b: &[u8]) -> bool {
        let same = |range: Range<usize>| match (a.get(range.clone()), b.get(range)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        };
        let (n, t) = (self.network_at, self.transport_at);
        let network = match self.network {
            Network::Ipv4 => same(n + 6..n + 10) && same(n + 12..n + IPV4_LEN),
            _ => flow_label(a, n) == flow_label(b, n) && same(n + 6..t),
        };
        let transport = match self.transport {
            // The checksum stands at 16.
            Transport::Tcp => {
                same(t..t + 4)
                    && same(t + 8..t + 13)
                    && same(t + 14..t + 16)
                    && same(t + 18..self.header_len)
            }
            Transport::Udp => same(t..t + 4),
        };
        network && transport && same(0..n)
    }

    /// Whether a finished checksum fits; one that is still to be finished was compared by its pseudo
    /// header. The two zeros of ones' complement are left alone: splitting may write the other.
    fn checksum_is_right(&self, piece: &Piece<'_>) -> bool {
        if piece.vnet.needs_csum() {
            return true;
        }
        let (frame, at) = (piece.frame, self.transport_at);
        let field = word(frame, at + usize::from(self.transport.checksum_offset()));
        let Some(covered) = frame.get(at..) else { return false };
        let Ok(len) = u16::try_from(covered.len()) else { return false };
        let pseudo = checksum::add(self.pseudo, len);
        !matches!(field, None | Some(0 | 0xffff))
            && checksum::add(pseudo, checksum::sum(covered)) == 0xffff
    }
}

/// Bytes of a transport header that is all there.
fn transport_header_len(frame: &[u8], transport: Transport, at: usize) -> Option<usize> {
    match transport {
        Transport::Udp => Some(8),
        Transport::Tcp => {
            let len = usize::from(frame.get(at + 12)? >> 4) * 4;
            (len >= 20).then_some(len)
        }
    }
}

/// IPv4 id and TOS (traffic class) of a header without options that states the length it has and whose
/// checksum is right.
fn network_header(frame: &[u8], network: Network, at: usize, end: usize) -> Option<(u16, u8)> {
    let header = frame.get(at..end)?;
    let stated = |at, more: usize| Some(usize::from(word(header, at)?) + more);
    let first = word(header, 0)?;
    match network {
        Network::Ipv4 => {
            let plain = header.len() == IPV4_LEN && first >> 8 == 0x45;
            // Of the two zeros, splitting writes the other one.
            let sound = plain && word(header, 10)? != 0xffff && checksum::sum(header) == 0xffff;
            let [_, tos] = first.to_be_bytes();
            (sound && stated(2, at)? == frame.len()).then_some((word(header, 4)?, tos))
        }
        Network::Ipv6 => {
            let [_, tos] = (first >> 4).to_be_bytes();
            (first >> 12 == 6 && stated(4, at + IPV6_LEN)? == frame.len()).then_some((0, tos))
        }
        Network::Other => None,
    }
}

fn sequence_and_flags(frame: &[u8], transport: Transport, at: usize) -> Option<(u32, u8)> {
    match transport {
        Transport::Tcp => Some((double_word(frame, at + 4)?, *frame.get(at + 13)?)),
        Transport::Udp => Some((0, 0)),
    }
}

/// Version and flow label: the traffic class is compared as it leaves.
fn flow_label(frame: &[u8], at: usize) -> Option<u32> {
    Some(double_word(frame, at)? & 0xf00f_ffff)
}

/// TOS once what is to be done on writing is done.
fn leaving_tos(tos: u8, piece: &Piece<'_>) -> u8 {
    let tos = if piece.ce && super::Ecn::from_tos(tos).takes_ce() { tos | 3 } else { tos };
    if piece.washed { tos & 3 } else { tos }
}

/// `whole` bytes of payload in `count` segments of `mss`, of which `run` leaves.
fn tail(run: Range<u16>, count: u16, mss: u32, whole: u32, flags: u8) -> Option<Tail> {
    if run.is_empty() || run.end > count {
        return None;
    }
    let ends = run.end == count;
    let before_last = mss.checked_mul(u32::from(run.end) - 1)?;
    let last = if ends { whole.checked_sub(before_last)? } else { mss };
    let segments = run.end - run.start;
    Some(Tail {
        segments,
        payload: mss.checked_mul(u32::from(segments) - 1)?.checked_add(last)?,
        largest: if segments == 1 { last } else { mss },
        last,
        flags: if ends { flags & (FIN | PSH) } else { 0 },
    })
}

/// The sum of the pseudo header without the length: as the checksum field has it if that is still to be
/// finished, else from the addresses. `None` for UDP without a checksum, and for a field that is not the
/// transport's own.
fn pseudo(piece: &Piece<'_>, transport: Transport, network_at: usize, at: usize) -> Option<u16> {
    let Piece { frame, vnet, layout, .. } = piece;
    let field = word(frame, at + usize::from(transport.checksum_offset()))?;
    let len = u16::try_from(frame.len() - at).ok()?;
    if transport == Transport::Udp && (word(frame, at + 4)? != len || field == 0) {
        return None;
    }
    if vnet.needs_csum() {
        let own =
            usize::from(vnet.csum_start) == at && vnet.csum_offset == transport.checksum_offset();
        return own.then(|| checksum::replace(field, len, 0));
    }
    let addresses = match layout.network {
        Network::Ipv4 => frame.get(network_at + 12..network_at + IPV4_LEN)?,
        _ => frame.get(network_at + 8..network_at + IPV6_LEN)?,
    };
    let number = match transport {
        Transport::Tcp => 6,
        Transport::Udp => 17,
    };
    Some(checksum::add(checksum::sum(addresses), number))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::packet::split::tests::Written;
    use crate::packet::testing::{Ip, Layer4, Packet};
    use crate::packet::{Checksums, ecn, write_run};
    use proptest::prelude::*;

    /// Segments of one frame that leave together, and how.
    #[derive(Clone, Debug)]
    struct Leaving {
        frame: Written,
        run: Range<u16>,
        ce: bool,
    }

    impl Leaving {
        fn plain(frame: Written) -> Self {
            Self { frame, run: 0..1, ce: false }
        }

        /// As it is written by itself.
        fn alone(&self) -> Written {
            if self.frame.dissect().layout.train.is_some() {
                return self.frame.run(self.run.clone(), self.ce, Checksums::Partial);
            }
            let mut frame = self.frame.clone();
            if self.ce {
                ecn::set_ce(&mut frame.bytes, &self.frame.dissect().layout);
            }
            frame
        }

        fn with<T>(&self, work: impl FnOnce(&Piece<'_>) -> T) -> T {
            let layout = self.frame.dissect().layout;
            work(&Piece {
                frame: &self.frame.bytes,
                vnet: &self.frame.vnet,
                layout: &layout,
                run: self.run.clone(),
                ce: self.ce,
                washed: false,
            })
        }

        fn payload(&self) -> Vec<u8> {
            let Written { bytes, .. } = &self.frame;
            let layout = self.frame.dissect().layout;
            match write_run(
                bytes,
                &self.frame.vnet,
                &layout,
                self.run.clone(),
                false,
                Checksums::Partial,
                &mut [0; MAX_HEADERS],
            ) {
                Some(run) => bytes[run.payload].to_vec(),
                None => bytes[self.header_len()..].to_vec(),
            }
        }

        fn header_len(&self) -> usize {
            let (transport, at) = self.frame.dissect().layout.transport.unwrap();
            usize::from(at) + transport_header_len(&self.frame.bytes, transport, at.into()).unwrap()
        }
    }

    /// What a batch does: each piece joins the run before it or begins one.
    fn joined(pieces: &[Leaving], push: Push) -> Vec<Written> {
        let mut runs: Vec<(Option<Joint>, Vec<&Leaving>)> = Vec::new();
        for piece in pieces {
            if let Some((Some(joint), members)) = runs.last_mut() {
                let first = members[0];
                if first.with(|first| piece.with(|piece| joint.accept(first, piece))) {
                    members.push(piece);
                    continue;
                }
            }
            runs.push((piece.with(|piece| Joint::begin(piece, push)), vec![piece]));
        }
        runs.into_iter().map(|(joint, members)| written(joint, &members)).collect()
    }

    fn written(joint: Option<Joint>, members: &[&Leaving]) -> Written {
        let alone = members[0].alone();
        let (Some(joint), 2..) = (joint, members.len()) else { return alone };
        let mut bytes = alone.bytes;
        bytes.truncate(joint.header_len());
        let vnet = joint.write(&mut bytes).unwrap();
        bytes.extend(members.iter().flat_map(|member| member.payload()));
        assert_eq!(bytes.len(), joint.frame_len());
        Written { vnet, bytes }
    }

    /// The frames on the wire in the end.
    fn on_the_wire(runs: &[Written]) -> Vec<Vec<u8>> {
        let singles = runs.iter().flat_map(|run| run.singles(Checksums::Complete));
        singles.map(|single| single.bytes).collect()
    }

    fn plain(packet: &Packet) -> Written {
        Written { vnet: VnetHeader::PLAIN, bytes: packet.bytes() }
    }

    /// The frame with its checksum left to whoever gets it.
    fn unfinished(packet: &Packet) -> Written {
        let (bytes, train) = packet.train(1);
        Written { vnet: train.without_gso(), bytes }
    }

    fn long(packet: Packet, len: usize) -> Packet {
        Packet { payload: (0..=255).cycle().take(len).collect(), ..packet }
    }

    fn kinds() -> Vec<Packet> {
        let tags = vec![(0x88a8, 9), (0x8100, 7)];
        let kinds = [
            Packet { id: 0xfffe, ..Packet::tcp() },
            Packet { ip: Ip::v6(), tos: 0xb8, ..Packet::tcp() },
            Packet { ip: Ip::v6_extended(), ..Packet::tcp() },
            Packet { tags: vec![(0x8100, 7)], ..Packet::tcp() },
            Packet { tags, ip: Ip::v6(), ..Packet::tcp() },
            Packet::udp(),
            Packet { ip: Ip::v6_extended(), ..Packet::udp() },
            Packet { tags: vec![(0x8100, 7)], ..Packet::udp() },
        ];
        kinds.into_iter().map(|packet| long(packet, 4321)).collect()
    }

    fn segments(packet: &Packet, mss: u16, as_read: fn(&Packet) -> Written) -> Vec<Leaving> {
        packet.segments(mss).iter().map(|one| Leaving::plain(as_read(one))).collect()
    }

    #[test]
    fn neighbours_become_the_superpacket_their_sender_would_have_built() {
        for packet in kinds() {
            for mss in [1000, 1440, 2160, 200] {
                for as_read in [plain, unfinished] {
                    let runs = joined(&segments(&packet, mss, as_read), Push::Keep);
                    let (bytes, vnet) = packet.train(mss);
                    let [run] = &runs[..] else { panic!("{} runs of {packet:?}", runs.len()) };
                    assert_eq!(run.bytes, bytes, "{packet:?} by {mss}");
                    assert_eq!(VnetHeader { hdr_len: vnet.hdr_len, ..run.vnet }, vnet);
                    assert_eq!(usize::from(run.vnet.hdr_len), packet.header_len());
                }
            }
        }
    }

    #[test]
    fn trains_of_one_flow_join_at_their_ends() {
        for packet in kinds() {
            let whole = packet.segments(500);
            let halves = [&packet.payload[..2500], &packet.payload[2500..]];
            let trains = [0, 5].map(|at| {
                let half = Packet { payload: halves[at / 5].to_vec(), ..whole[at].clone() };
                let (bytes, vnet) = half.train(500);
                let frame = Written { vnet, bytes };
                let run = 0..frame.dissect().layout.train.unwrap().segments.count;
                Leaving { frame, run, ce: false }
            });
            let runs = joined(&trains, Push::Keep);
            assert_eq!(runs.len(), 1, "{packet:?}");
            assert_eq!(runs[0].bytes, packet.train(500).0);
        }
    }

    /// `change` to the second of three segments: how many runs there are.
    fn runs_after(packet: &Packet, change: impl FnOnce(&mut Packet)) -> usize {
        let mut three = packet.segments(1441);
        change(&mut three[1]);
        let pieces: Vec<_> = three.iter().map(|one| Leaving::plain(plain(one))).collect();
        joined(&pieces, Push::Keep).len()
    }

    fn set_flags(flag: u8) -> impl Fn(&mut Packet) {
        move |packet| {
            let Layer4::Tcp { flags, .. } = &mut packet.transport else { return };
            *flags |= flag;
        }
    }

    #[test]
    fn what_differs_does_not_join() {
        let [v4, v6] = [Ip::v4(), Ip::v6()].map(|ip| long(Packet { ip, ..Packet::tcp() }, 4321));
        assert_eq!((runs_after(&v4, |_| ()), runs_after(&v6, |_| ())), (1, 1));
        assert_eq!(runs_after(&v4, |packet| packet.id = 7), 3, "another id");
        for packet in [v4, v6] {
            assert_eq!(runs_after(&packet, |packet| packet.tos = 3), 3, "another ECN field");
            assert_eq!(runs_after(&packet, |packet| packet.tags = vec![(0x8100, 1)]), 3);
            let missing = |packet: &mut Packet| packet.payload.truncate(1440);
            assert_eq!(runs_after(&packet, missing), 2, "a shorter one ends a run");
            let other = |packet: &mut Packet| {
                let Layer4::Tcp { options, .. } = &mut packet.transport else { return };
                options[5] ^= 1;
            };
            assert_eq!(runs_after(&packet, other), 3, "another timestamp");
            for flag in [SYN, RST, URG, CWR] {
                assert_eq!(runs_after(&packet, set_flags(flag)), 3, "flag {flag:#x}");
            }
            for flag in [FIN, PSH] {
                assert_eq!(runs_after(&packet, set_flags(flag)), 2, "flag {flag:#x} ends a run");
            }
            assert_eq!(runs_after(&packet, set_flags(0x40)), 3, "ECE in one only");
        }
    }

    #[test]
    fn a_broken_checksum_is_not_healed() {
        for packet in kinds() {
            let field = packet.checksum_field().unwrap();
            let network = packet.network_offset();
            let places = match packet.ip {
                Ip::V4 { .. } => vec![field, network + 10, network + 16],
                Ip::V6 { .. } => vec![field, network + 24],
            };
            for broken in 0..3 {
                for &place in &places {
                    for as_read in [plain, unfinished] {
                        let mut pieces = segments(&packet, 1441, as_read);
                        pieces[broken].frame.bytes[place] ^= 0x10;
                        let runs = joined(&pieces, Push::Keep);
                        assert!(runs.len() > 1, "{broken} {place} {packet:?}");
                        let alone: Vec<_> = pieces.iter().map(Leaving::alone).collect();
                        assert_eq!(on_the_wire(&runs), on_the_wire(&alone));
                    }
                }
            }
        }
    }

    #[test]
    fn a_superpacket_that_cannot_be_split_stays_alone() {
        let packet = long(Packet::tcp(), 4000);
        let (_, vnet) = packet.train(1000);
        let mut pieces = segments(&packet, 2000, plain);
        for piece in &mut pieces {
            piece.frame.vnet = VnetHeader { flags: 0, ..vnet };
        }
        assert_eq!(joined(&pieces, Push::Keep).len(), 2);
    }

    #[test]
    fn a_run_goes_on_behind_push_only_if_told_to() {
        let packet = long(Packet::tcp(), 1000);
        let mut packets = packet.segments(200);
        packets.iter_mut().for_each(set_flags(PSH));
        let pieces: Vec<_> = packets.iter().map(|one| Leaving::plain(plain(one))).collect();
        assert_eq!(joined(&pieces, Push::Keep).len(), 5);
        let runs = joined(&pieces, Push::Last);
        assert_eq!(runs.len(), 1);
        packets[..4].iter_mut().for_each(|packet| {
            let Layer4::Tcp { flags, .. } = &mut packet.transport else { return };
            *flags &= !PSH;
        });
        let expected: Vec<_> = packets.iter().map(Packet::bytes).collect();
        assert_eq!(on_the_wire(&runs), expected, "the last one keeps it");
    }

    #[test]
    fn a_run_is_no_longer_than_a_length_field_can_say() {
        for (packet, most) in [(Packet::tcp(), 45), (Packet::udp(), 45)] {
            let packets = long(packet, 1448 * 60).segments(1448);
            let pieces: Vec<_> = packets.iter().map(|one| Leaving::plain(plain(one))).collect();
            let runs = joined(&pieces, Push::Keep);
            assert_eq!(runs.len(), 2);
            assert_eq!(runs[0].dissect().layout.train.unwrap().segments.count, most);
        }
        let packets = long(Packet::udp(), 100 * 100).segments(100);
        let pieces: Vec<_> = packets.iter().map(|one| Leaving::plain(plain(one))).collect();
        let counts = joined(&pieces, Push::Keep);
        let counts = counts.iter().map(|run| run.dissect().meta.segments.count);
        assert_eq!(counts.collect::<Vec<_>>(), [64, 36]);
    }

    prop_compose! {
        fn any_packet()(
            tcp: bool, v6 in 0..3_u8, sequence: u32, id: u16, tos: u8, flags in 0..4_u8,
            tagged: bool, len in 2..700_usize,
        ) -> Packet {
            let flags = [0x10, 0x18, 0x11, 0x50][usize::from(flags)];
            let transport = match tcp {
                true => Layer4::Tcp { sequence, flags, options: vec![1, 1, 1, 0] },
                false => Layer4::Udp,
            };
            let ip = [Ip::v4(), Ip::v6(), Ip::v6_extended()][usize::from(v6)].clone();
            let tags = if tagged { vec![(0x8100, 7)] } else { Vec::new() };
            long(Packet { tags, tos, id, ip, transport, ..Packet::tcp() }, len)
        }
    }

    prop_compose! {
        /// A packet's segments, some of them still in trains, with marks and damage here and there.
        fn any_pieces()(
            packet in any_packet(), mss in 1..300_u16,
            shapes in prop::collection::vec((0..3_u8, 1..5_u16), 1..400),
            marks in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
            damage in prop::collection::vec((any::<prop::sample::Index>(), 0..90_usize, any::<u8>()), 0..3),
            swap: Option<(prop::sample::Index, prop::sample::Index)>,
        ) -> Vec<Leaving> {
            let packets = packet.segments(mss);
            let mut pieces = Vec::new();
            let mut at = 0;
            for (shape, len) in shapes.iter().cycle() {
                let Some(one) = packets.get(at) else { break };
                match shape {
                    0 => pieces.push(Leaving::plain(plain(one))),
                    1 => pieces.push(Leaving::plain(unfinished(one))),
                    _ => {
                        let end = packets.len().min(at + usize::from(*len));
                        pieces.extend(train_of(&packets[at..end], mss));
                        at = end - 1;
                    }
                }
                at += 1;
            }
            for mark in marks {
                let at = mark.index(pieces.len());
                pieces[at].ce = true;
            }
            for (piece, at, byte) in damage {
                let piece = piece.index(pieces.len());
                if let Some(place) = pieces[piece].frame.bytes.get_mut(at + 12) {
                    *place = byte;
                }
            }
            if let Some((a, b)) = swap {
                let (a, b) = (a.index(pieces.len()), b.index(pieces.len()));
                pieces.swap(a, b);
            }
            pieces
        }
    }

    /// The packets as one train, each segment by itself.
    fn train_of(packets: &[Packet], mss: u16) -> Vec<Leaving> {
        let last = packets.last().unwrap();
        let payload = packets.iter().flat_map(|packet| packet.payload.clone()).collect();
        let mut first = packets[0].clone();
        if let (Layer4::Tcp { flags, .. }, Layer4::Tcp { flags: ending, .. }) =
            (&mut first.transport, &last.transport)
        {
            *flags |= ending & (FIN | PSH);
        }
        let (bytes, vnet) = Packet { payload, ..first }.train(mss);
        let frame = Written { vnet, bytes };
        let count = frame.dissect().meta.segments.count;
        (0..count).map(|at| Leaving { frame: frame.clone(), run: at..at + 1, ce: false }).collect()
    }

    proptest! {
        #[test]
        fn runs_split_again_are_the_frames_they_were_made_of(pieces in any_pieces()) {
            let sane = pieces.iter().all(|piece| {
                let Written { bytes, vnet } = &piece.frame;
                crate::packet::dissect(bytes, vnet, crate::units::MemSize(0))
                    .is_ok_and(|found| piece.run.end <= found.meta.segments.count)
            });
            if !sane {
                return Ok(());
            }
            let alone: Vec<_> = pieces.iter().map(Leaving::alone).collect();
            let runs = joined(&pieces, Push::Keep);
            prop_assert_eq!(on_the_wire(&runs), on_the_wire(&alone));
        }
    }
}
