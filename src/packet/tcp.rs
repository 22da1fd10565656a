//! TCP headers: what the ACK filter compares.
//!
//! Problem: an ACK may be dropped only if a later one says all that it says, and what they say stands
//! in bytes that anyone may have sent.
//! Source: spec §8.2 (where the header is looked for) and §8.4 (which options matter); RFC 9293 §3.1
//! (the header), RFC 7323 §3 (timestamps), RFC 2018 §3 (SACK).
//! Law: no byte is read outside the frame and no option outside the header. An option that breaks off
//! ends the walk; one that is not known is vital, so that its ACK is kept.
//! Left out, as in Linux: IPv6 extension headers and tunnels other than 6in4, behind which no TCP is
//! seen; and fragments, of which later ones are read as if a header stood at their beginning.

use super::bytes::{double_word, word};
use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FlowKey, Layout, Network};

/// Protocol numbers.
const TCP: u8 = 6;
const IPV6_IN_IPV4: u8 = 41;

/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;
/// Bytes of a TCP header without options.
pub(super) const TCP_LEN: usize = 20;

/// Kinds of options.
pub(super) const END: u8 = 0;
pub(super) const NOP: u8 = 1;
const SACK: u8 = 5;
pub(super) const TIMESTAMPS: u8 = 8;
const MD5: u8 = 19;

/// What a TCP header says, as far as an ACK filter asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// Family, addresses and ports: of the innermost header in 6in4. What else a key has is not
    /// filled in.
    pub flow: FlowKey,
    /// Acknowledgment number.
    pub ack: u32,
    /// Flags, reserved ones included.
    pub flags: TcpFlags,
    /// Whether the IP header says that something follows this one (or that not even this one fits).
    pub has_payload: bool,
    /// What is among the options.
    pub options: TcpOptions,
}

/// The twelve bits beside the data offset: four reserved ones, then CWR to FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(u16);

/// What is among the options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Whether an option is there that must not be lost: any but NOP, MD5 signature, SACK and
    /// timestamps, or one of the latter two with a length it cannot have.
    pub vital: bool,
    /// Every timestamps option in order; zeros stand for one of a wrong length.
    pub timestamps: Few<Timestamps>,
    /// Blocks of the first SACK option, if there is one; it may be without any.
    pub sack: Option<Few<SackBlock>>,
}

/// A timestamps option (RFC 7323 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock, TSval.
    pub value: u32,
    /// The clock it heard last, TSecr.
    pub echo: u32,
}

/// What was received out of order: from `start` up to but without `end` (RFC 2018 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// First sequence number.
    pub start: u32,
    /// The one behind the last.
    pub end: u32,
}

/// Up to four of something: more SACK blocks or timestamps do not fit into a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Few<T> {
    items: [T; 4],
    len: u8,
}

impl TcpHeader {
    /// The TCP header of a frame, if it has one that is complete. `layout` belongs to `frame`, as
    /// [`dissect()`](super::dissect()) gave it.
    ///
    /// ```
    /// use ucake::packet::{Layout, TcpHeader};
    ///
    /// assert_eq!(TcpHeader::read(&[0; 60], &Layout::default()), None);
    /// ```
    #[must_use]
    pub fn read(frame: &[u8], layout: &Layout) -> Option<Self> {
        let packet = frame.get(usize::from(layout.network_offset)..)?;
        match layout.network {
            Network::Ipv4 => Self::within_ipv4(packet),
            Network::Ipv6 => Self::within_ipv6(packet),
            Network::Other => None,
        }
    }

    /// The header of a segment of a superpacket other than the first: CWR tells of one reduction and
    /// stays with the first (RFC 3168 §6.1.2).
    #[must_use]
    pub fn of_later_segment(self) -> Self {
        Self { flags: self.flags.without(TcpFlags::CWR), ..self }
    }

    fn within_ipv4(packet: &[u8]) -> Option<Self> {
        let header_len = usize::from(packet.first()? & 15) * 4;
        let inner = packet.get(header_len..)?;
        match *packet.get(9)? {
            TCP => {}
            IPV6_IN_IPV4 => return Self::within_ipv6(inner),
            _ => return None,
        }
        let flow = FlowKey {
            ethertype: ETHERTYPE_IPV4,
            source: double_word(packet, 12)?.into(),
            destination: double_word(packet, 16)?.into(),
            ..FlowKey::default()
        };
        let stated = usize::from(word(packet, 2)?).checked_sub(header_len);
        Self::parse(inner, stated, flow)
    }

    fn within_ipv6(packet: &[u8]) -> Option<Self> {
        if packet.first()? >> 4 != 6 || *packet.get(6)? != TCP {
            return None;
        }
        let flow = FlowKey {
            ethertype: ETHERTYPE_IPV6,
            source: ipv6_address(packet, 8)?,
            destination: ipv6_address(packet, 24)?,
            ..FlowKey::default()
        };
        let stated = usize::from(word(packet, 4)?);
        Self::parse(packet.get(IPV6_LEN..)?, Some(stated), flow)
    }

    /// The header at the beginning of `bytes`; `stated` is the length of header and payload that the
    /// IP header tells, which Ethernet's padding does not count towards.
    fn parse(bytes: &[u8], stated: Option<usize>, flow: FlowKey) -> Option<Self> {
        let offset_and_flags = word(bytes, 12)?;
        let header_len = usize::from(offset_and_flags >> 12) * 4;
        let header = bytes.get(..header_len)?;
        let options = header.get(TCP_LEN..)?;
        Some(Self {
            flow: FlowKey {
                source_port: word(header, 0)?,
                destination_port: word(header, 2)?,
                ..flow
            },
            ack: double_word(header, 8)?,
            flags: TcpFlags::new(offset_and_flags),
            has_payload: stated != Some(header_len),
            options: TcpOptions::read(options),
        })
    }
}

impl TcpFlags {
    /// The acknowledgment number counts.
    pub const ACK: Self = Self(0x010);
    /// Opens a connection.
    pub const SYN: Self = Self(0x002);
    /// Ends a connection that is broken.
    pub const RST: Self = Self(0x004);
    /// Tells the sender that congestion was experienced.
    pub const ECE: Self = Self(0x040);
    /// Tells the receiver that it was heard.
    pub const CWR: Self = Self(0x080);

    /// The lower twelve of `bits`.
    #[must_use]
    pub const fn new(bits: u16) -> Self {
        Self(bits & 0x0fff)
    }

    /// As a number.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These and `flags`.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// These but for `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// ECE and CWR alone: what the two ends tell each other of congestion.
    #[must_use]
    pub const fn ecn_echo(self) -> Self {
        Self(self.0 & (Self::ECE.0 | Self::CWR.0))
    }
}

impl TcpOptions {
    /// What older ACKs are measured by: the first timestamps option, else zeros.
    #[must_use]
    pub fn timestamp(&self) -> Timestamps {
        self.timestamps.as_slice().first().copied().unwrap_or_default()
    }

    /// Blocks of the first SACK option.
    #[must_use]
    pub fn sack_blocks(&self) -> &[SackBlock] {
        self.sack.as_ref().map_or(&[], Few::as_slice)
    }

    fn read(mut area: &[u8]) -> Self {
        let mut options = Self::default();
        while let &[kind, ref rest @ ..] = area {
            if kind == END {
                break;
            }
            if kind == NOP {
                area = rest;
                continue;
            }
            let len = rest.first().map_or(0, |&len| usize::from(len));
            let (Some(body), Some(behind)) = (area.get(2..len), area.get(len..)) else { break };
            options.note(kind, body);
            area = behind;
        }
        options
    }

    fn note(&mut self, kind: u8, body: &[u8]) {
        let (pairs, rest) = body.as_chunks();
        match kind {
            MD5 => {}
            SACK => {
                self.vital |= !rest.is_empty();
                self.sack.get_or_insert_with(|| pairs.iter().map(SackBlock::read).collect());
            }
            TIMESTAMPS => {
                let right = (pairs.len(), rest.len()) == (1, 0);
                self.vital |= !right;
                let found = pairs.first().filter(|_| right).map(Timestamps::read);
                self.timestamps.push(found.unwrap_or_default());
            }
            _ => self.vital = true,
        }
    }
}

impl Timestamps {
    pub(super) fn read(bytes: &[u8; 8]) -> Self {
        let (value, echo) = pair(*bytes);
        Self { value, echo }
    }
}

impl SackBlock {
    fn read(bytes: &[u8; 8]) -> Self {
        let (start, end) = pair(*bytes);
        Self { start, end }
    }

    /// Sequence numbers in it.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.end.wrapping_sub(self.start)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl<T> Few<T> {
    /// Those that there are.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        self.items.get(..usize::from(self.len)).unwrap_or(&self.items)
    }

    /// Adds one; a fifth is left out.
    pub fn push(&mut self, item: T) {
        if let Some(place) = self.items.get_mut(usize::from(self.len)) {
            *place = item;
            self.len += 1;
        }
    }
}

impl<T: Default + Copy> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut few = Self { items: [T::default(); 4], len: 0 };
        items.into_iter().take(few.items.len()).for_each(|item| few.push(item));
        few
    }
}

fn pair([a, b, c, d, e, f, g, h]: [u8; 8]) -> (u32, u32) {
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}

pub(super) fn ipv6_address(packet: &[u8], at: usize) -> Option<u128> {
    let bytes = packet.get(at..)?.first_chunk()?;
    Some(u128::from_be_bytes(*bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::packet::testing::{Ip, Layer4, Packet};
    use crate::packet::{VnetHeader, dissect};
    use crate::units::MemSize;
    use proptest::prelude::*;

    /// What stands in every header that [`Packet`] builds.
    const ACK: u32 = 0x0908_0706;

    fn read(frame: &[u8]) -> Option<TcpHeader> {
        let layout = dissect(frame, &VnetHeader::PLAIN, MemSize(0)).unwrap().layout;
        TcpHeader::read(frame, &layout)
    }

    /// An ACK with these options, which need not be whole words.
    fn ack(ip: Ip, mut options: Vec<u8>) -> Packet {
        options.resize(options.len().next_multiple_of(4), END);
        let transport = Layer4::Tcp { sequence: 1, flags: 0x10, options };
        Packet { ip, transport, payload: Vec::new(), ..Packet::tcp() }
    }

    fn options(options: Vec<u8>) -> TcpOptions {
        read(&ack(Ip::v4(), options).bytes()).unwrap().options
    }

    /// `inner` in 6in4, behind IPv4 options.
    fn six_in_four(inner: &Packet) -> Packet {
        let ip = Ip::V4 { options: vec![1; 8], fragment: 0 };
        let payload = inner.bytes()[inner.network_offset()..].to_vec();
        Packet { ip, transport: Layer4::Raw(41), payload, ..Packet::tcp() }
    }

    fn flow(ethertype: u16, source: u128, destination: u128) -> FlowKey {
        let (source_port, destination_port) = (Packet::SOURCE_PORT, Packet::DESTINATION_PORT);
        FlowKey {
            ethertype,
            source,
            destination,
            source_port,
            destination_port,
            ..FlowKey::default()
        }
    }

    fn v4_flow() -> FlowKey {
        flow(ETHERTYPE_IPV4, 0x0a00_0001, 0x0a00_0002)
    }

    fn v6_flow() -> FlowKey {
        flow(ETHERTYPE_IPV6, (0xfd << 120) | 1, (0xfd << 120) | 2)
    }

    #[test]
    fn a_pure_ack_is_read_in_full() {
        for (ip, flow) in [
            (Ip::v4(), v4_flow()),
            (Ip::V4 { options: vec![1; 12], fragment: 0 }, v4_flow()),
            (Ip::v6(), v6_flow()),
            (Ip::V6 { label: 0xabcde, extensions: Vec::new() }, v6_flow()),
        ] {
            for tags in [vec![], vec![(0x8100, 7)], vec![(0x88a8, 7), (0x8100, 9)]] {
                let packet = Packet { tags, ..ack(ip.clone(), Vec::new()) };
                let expected =
                    TcpHeader { flow, ack: ACK, flags: TcpFlags::ACK, ..TcpHeader::default() };
                assert_eq!(read(&packet.bytes()), Some(expected));
            }
        }
    }

    #[test]
    fn in_6in4_the_inner_header_counts() {
        let packet = six_in_four(&ack(Ip::v6(), Vec::new()));
        let header = read(&packet.bytes()).unwrap();
        assert_eq!((header.flow, header.ack, header.has_payload), (v6_flow(), ACK, false));
        let data = six_in_four(&Packet { ip: Ip::v6(), ..Packet::tcp() });
        assert!(read(&data.bytes()).unwrap().has_payload);
    }

    #[test]
    fn no_tcp_is_seen_where_linux_sees_none() {
        let extended = ack(Ip::v6_extended(), Vec::new());
        let udp = Packet { ip: Ip::v6(), ..Packet::udp() };
        let four_in_four = Packet { transport: Layer4::Raw(4), ..six_in_four(&Packet::tcp()) };
        let inner_is_not_six = six_in_four(&ack(Ip::v4(), vec![1; 40]));
        for packet in [
            &extended,
            &udp,
            &Packet::udp(),
            &six_in_four(&extended),
            &six_in_four(&udp),
            &four_in_four,
            &inner_is_not_six,
        ] {
            assert_eq!(read(&packet.bytes()), None, "{packet:?}");
        }
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(read(&arp), None);
    }

    #[test]
    fn a_header_cut_anywhere_is_no_header() {
        let timestamps = Packet::tcp().transport;
        for packet in [
            Packet { payload: Vec::new(), ..Packet::tcp() },
            ack(Ip::V4 { options: vec![1; 40], fragment: 0 }, vec![1; 40]),
            ack(Ip::v6(), vec![1; 40]),
            six_in_four(&ack(Ip::v6(), vec![1; 40])),
            Packet { ip: Ip::v6(), transport: timestamps, payload: Vec::new(), ..Packet::tcp() },
        ] {
            let frame = packet.bytes();
            assert!(read(&frame).is_some());
            for len in 0..frame.len() {
                assert_eq!(read(&frame[..len]), None, "cut to {len} of {}", frame.len());
            }
        }
    }

    #[test]
    fn a_data_offset_below_five_words_is_no_header() {
        let packet = ack(Ip::v4(), Vec::new());
        for words in 0..16_u8 {
            let mut frame = packet.bytes();
            frame[packet.transport_offset() + 12] = words << 4;
            assert_eq!(read(&frame).is_some(), words == 5, "{words}");
        }
    }

    #[test]
    fn padding_is_not_payload_and_a_length_too_small_is_as_good_as_payload() {
        for packet in [ack(Ip::v4(), Vec::new()), ack(Ip::v6(), Vec::new())] {
            let mut frame = packet.bytes();
            frame.extend([0; 6]);
            assert!(!read(&frame).unwrap().has_payload);
            let length =
                packet.network_offset() + if packet.transport_offset() == 34 { 2 } else { 4 };
            for stated in [0_u16, 19, 39, 41, 1000] {
                frame[length..length + 2].copy_from_slice(&stated.to_be_bytes());
                if let Some(header) = read(&frame) {
                    assert!(header.has_payload, "{stated}");
                }
            }
        }
        let one = Packet { payload: vec![0], ..ack(Ip::v4(), Vec::new()) };
        assert!(read(&one.bytes()).unwrap().has_payload);
    }

    #[test]
    fn all_twelve_flags_are_seen() {
        let packet = ack(Ip::v4(), Vec::new());
        for bit in 0..12 {
            let flags = 1_u16 << bit;
            let mut frame = packet.bytes();
            let at = packet.transport_offset() + 12;
            frame[at..at + 2].copy_from_slice(&(0x5000 | flags).to_be_bytes());
            assert_eq!(read(&frame).unwrap().flags, TcpFlags::new(flags));
        }
    }

    #[test]
    fn later_segments_do_not_repeat_that_the_window_was_reduced() {
        let both = TcpFlags::ECE.with(TcpFlags::CWR);
        let first = TcpHeader { flags: TcpFlags::ACK.with(both), ..TcpHeader::default() };
        assert_eq!(first.of_later_segment().flags, TcpFlags::ACK.with(TcpFlags::ECE));
        assert_eq!(first.flags.ecn_echo(), both);
    }

    #[test]
    fn every_kind_of_option_but_four_is_vital() {
        for kind in 2..=255 {
            let harmless = [SACK, TIMESTAMPS, MD5].contains(&kind);
            let found = options(vec![NOP, kind, 10, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(found.vital, !harmless, "kind {kind}");
        }
        assert!(!options(vec![NOP; 40]).vital);
        assert!(!options(vec![END, 2, 4, 5, 0xb4]).vital, "behind the end nothing is read");
        assert!(!options([vec![MD5, 18], vec![7; 16]].concat()).vital);
        assert!(!options(vec![MD5, 2]).vital);
    }

    #[test]
    fn timestamps_have_one_length_and_sack_blocks_one_size() {
        for len in 2..=38 {
            let body = vec![9; usize::from(len) - 2];
            let of = |kind| options([vec![kind, len], body.clone()].concat());
            let found = of(TIMESTAMPS);
            assert_eq!(found.vital, len != 10, "timestamps of {len}");
            assert_eq!(found.timestamp().value, if len == 10 { 0x0909_0909 } else { 0 });
            let found = of(SACK);
            assert_eq!(found.vital, len % 8 != 2, "SACK of {len}");
            assert_eq!(found.sack_blocks().len(), usize::from(len - 2) / 8, "SACK of {len}");
        }
    }

    #[test]
    fn timestamps_and_sack_are_read_in_order() {
        let timestamps = [TIMESTAMPS, 10, 0, 0, 0, 7, 0xff, 0, 0, 1];
        let sack = [SACK, 18, 0, 0, 0, 1, 0, 0, 0, 3, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 2];
        let found = options([&[NOP, NOP][..], &timestamps, &[NOP, NOP], &sack].concat());
        assert_eq!(found.timestamp(), Timestamps { value: 7, echo: 0xff00_0001 });
        let blocks = [SackBlock { start: 1, end: 3 }, SackBlock { start: u32::MAX, end: 2 }];
        assert_eq!(found.sack_blocks(), blocks);
        assert_eq!(blocks.map(SackBlock::len), [2, 3]);
        assert!(!found.vital && !blocks[0].is_empty());
    }

    #[test]
    fn the_first_sack_option_and_the_first_timestamps_count_among_several() {
        let block = [SACK, 10, 0, 0, 0, 1, 0, 0, 0, 3];
        let empty_first = options([&[SACK, 2][..], &block].concat());
        assert_eq!(empty_first.sack, Some(Few::default()));
        let clock = [TIMESTAMPS, 10, 0, 0, 0, 7, 0, 0, 0, 8];
        let wrong_first = options([&[TIMESTAMPS, 3, 9][..], &clock].concat());
        assert_eq!(wrong_first.timestamp(), Timestamps::default());
        assert_eq!(options(clock.repeat(4)).timestamps.as_slice().len(), 4);
    }

    #[test]
    fn an_option_that_breaks_off_ends_the_walk_and_is_not_vital() {
        for broken in [
            vec![NOP, NOP, NOP, 99],
            vec![NOP, NOP, 99, 0],
            vec![NOP, NOP, 99, 1],
            vec![NOP, NOP, 99, 3],
            vec![TIMESTAMPS, 10, 0, 0],
            vec![SACK, 255, 0, 0, 0, 0, 0, 0],
            vec![99, 0, 99, 4],
        ] {
            assert_eq!(options(broken.clone()), TcpOptions::default(), "{broken:?}");
        }
    }

    #[test]
    fn a_fifth_of_few_is_left_out() {
        let few: Few<u32> = (0..9).collect();
        assert_eq!(few.as_slice(), [0, 1, 2, 3]);
        let mut pushed = few;
        pushed.push(7);
        assert_eq!(pushed, few);
    }

    /// Bytes that are likely to mean something as options.
    fn option_area() -> impl Strategy<Value = Vec<u8>> {
        let telling = prop_oneof![0..11_u8, Just(19), Just(18), any::<u8>()];
        prop::collection::vec(telling, 0..=40)
    }

    proptest! {
        #[test]
        fn no_bytes_and_no_layout_cause_a_panic(
            frame in prop::collection::vec(any::<u8>(), 0..120), near in 0..60_u16, far: u16,
        ) {
            for network in [Network::Ipv4, Network::Ipv6, Network::Other] {
                for network_offset in [near, far] {
                    let layout = Layout { network, network_offset, ..Layout::default() };
                    let _ = TcpHeader::read(&frame, &layout);
                }
            }
        }

        #[test]
        fn no_header_with_odd_bytes_in_it_causes_a_panic(
            area in option_area(), at in 0..140_usize, byte: u8, cut in 0..140_usize, six: bool,
        ) {
            let inner = ack(Ip::v6(), area.clone());
            let packet = if six { six_in_four(&inner) } else { ack(Ip::v4(), area) };
            let mut frame = packet.bytes();
            prop_assert!(read(&frame).is_some());
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
            read(&frame);
            frame.truncate(cut);
            read(&frame);
        }
    }
}
