//! Bytes to meaning: what the discipline decides by, and where a rewriter finds things.
//!
//! Problem: a frame comes from anyone. It must be sorted the way `sch_cake` sorts it, and no byte
//! of it may be believed before it was looked at.
//! Source: spec §3.5 (DSCP), §4.2 (what the kernel's flow dissector puts into the hash), §7.2
//! (lengths of superpackets); the header formats are `etherparse`'s business.
//! Law: an ordinary frame is always queued; what cannot be read of it is 0. A superpacket is either
//! understood to its last header or refused and counted, for it cannot be passed on as it is if
//! what it says of itself is wrong.
//! Left out: PPPoE and MPLS, which CAKE in Linux does not look through for a DSCP either, and
//! MACsec; all three are told apart by EtherType alone.
//!
//! ```text
//! | Ethernet 14 | tags 0…3 × 4 | IP, extension headers | TCP or UDP | payload, mss, mss, … |
//!               ^              ^ network_offset        ^ transport_offset
//! '----------------------- Segments::header_len ------------------'
//! ```
//!
//! Decisions worth knowing:
//!
//! * Fragments have no ports, first ones and IPv6 "atomic" ones included, so that all of a datagram
//!   stays in one queue.
//! * A non-zero IPv6 flow label takes the place of the ports, and tunnels behind it are not
//!   entered.
//! * Tunnels (IP in IP, 6in4, GRE) are told apart by the inner addresses and ports, up to
//!   [`MAX_TUNNELS`] deep. DSCP, ECN and [`Layout`] are always those of the outer header.
//! * The key of an authenticated packet is the one behind the AH; ESP is told apart by its SPI,
//!   which stands where others have ports.
//! * A superpacket without `NEEDS_CSUM` is kept whole, as a single unit: its segments' checksums
//!   cannot be had without healing whatever may have been wrong with the one checksum it carries.
//! * TCP flags do not matter to splitting. SYN, RST and URG are copied to every segment and the
//!   urgent pointer is left as it is, as Linux does.

use etherparse::{LaxIpv4Slice, LaxIpv6Slice, LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket};
use etherparse::{LinkSlice, ip_number as proto};

use super::bytes::word;
use super::split::MAX_HEADERS;
use super::{Dscp, Ecn, FlowKey, Layout, Meta, Network, Segments, Train, Transport, VnetHeader};
use super::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::units::{FrameLen, MemSize};

/// How many tunnels deep inner headers are looked for. Two are seen in practice (6in4 within GRE);
/// the bound keeps the work per frame bounded.
pub const MAX_TUNNELS: usize = 4;

/// Bytes of an Ethernet header without tags.
const ETHERNET_LEN: usize = 14;
/// Values below are lengths, not EtherTypes (IEEE 802.3).
const SMALLEST_ETHERTYPE: u16 = 0x0600;
/// What Linux takes an 802.3 frame with an LLC header for, whatever its length (`ETH_P_802_2`).
const ETHERTYPE_LLC: u16 = 0x0004;
/// An Ethernet frame inside GRE.
const ETHERTYPE_TEB: u16 = 0x6558;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;

/// A frame that may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dissected {
    /// What the discipline decides by.
    pub meta: Meta,
    /// Where in the frame things stand.
    pub layout: Layout,
    /// What to write in front of the frame if it leaves whole: the header it came with, except that
    /// a "superpacket" of no more than one segment is an ordinary frame.
    pub vnet: VnetHeader,
}

/// Why a frame is dropped before it is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// The checksum field that is to be completed is not in the frame.
    #[error("checksum field lies outside the frame")]
    ChecksumOutside,
    /// A superpacket wants a checksum completed that is not its transport's.
    #[error("checksum field of the superpacket is not that of its TCP or UDP header")]
    ChecksumElsewhere,
    /// A fragment that claims to be a superpacket.
    #[error("superpacket is a fragment")]
    Fragment,
    /// The headers are not what the offload type says.
    #[error("offload type does not fit the headers")]
    GsoMismatch,
    /// An offload type that is not known, or UFO.
    #[error("offload type is not supported")]
    GsoUnknown,
    /// A superpacket that ends before its headers do.
    #[error("superpacket ends within its headers")]
    HeadersCut,
    /// Headers of a superpacket longer than [`MAX_HEADERS`].
    #[error("headers of the superpacket are longer than {MAX_HEADERS} bytes")]
    HeadersTooLong,
    /// A superpacket with more than 65535 bytes from the IP header on (BIG TCP).
    #[error("superpacket is longer than 65535 bytes")]
    TooLong,
    /// A superpacket of segments without payload.
    #[error("superpacket has a segment size of 0")]
    ZeroSegment,
}

impl Refused {
    /// Every reason, each at its [`Self::index`].
    pub const ALL: [Self; 9] = [
        Self::ChecksumOutside,
        Self::ChecksumElsewhere,
        Self::Fragment,
        Self::GsoMismatch,
        Self::GsoUnknown,
        Self::HeadersCut,
        Self::HeadersTooLong,
        Self::TooLong,
        Self::ZeroSegment,
    ];

    /// Where the reason stands in [`Self::ALL`]: an index for a table of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Reads a frame. `vnet` is the header it came with, [`VnetHeader::PLAIN`] from ports without;
/// `truesize` is what it will hold of memory, and is passed through.
///
/// ```
/// use ucake::packet::{Dscp, VnetHeader, dissect};
/// use ucake::units::MemSize;
///
/// let mut arp = [0; 42];
/// arp[12..14].copy_from_slice(&[0x08, 0x06]);
/// let frame = dissect(&arp, &VnetHeader::PLAIN, MemSize(64)).expect("an ordinary frame");
/// assert_eq!(frame.meta.dscp, Dscp::CS7);
/// assert!(!frame.meta.flow.is_ip());
/// ```
pub fn dissect(frame: &[u8], vnet: &VnetHeader, truesize: MemSize) -> Result<Dissected, Refused> {
    let outer = Outer::read(frame);
    check_checksum_field(frame, vnet)?;
    let (vnet, train) = superpacket(frame, vnet, &outer)?;
    let layout = Layout {
        network: outer.ip.as_ref().map_or(Network::Other, |ip| ip.network),
        network_offset: small(outer.network_offset),
        ecn: outer.ip.as_ref().map_or(Ecn::NotEct, |ip| Ecn::from_tos(ip.tos)),
        train,
    };
    let meta = Meta {
        len: FrameLen(u32::try_from(frame.len()).unwrap_or(u32::MAX)),
        network_offset: layout.network_offset,
        dscp: outer.dscp(),
        ecn: layout.ecn,
        flow: outer.flow(),
        segments: train.map_or(Segments::ONE, |train| train.segments),
        truesize,
        mark: 0,
        priority: 0,
    };
    Ok(Dissected { meta, layout, vnet })
}

/// An offset known to be small: the network header stands at 26 at most.
fn small(offset: usize) -> u16 {
    u16::try_from(offset).unwrap_or(u16::MAX)
}

/// The kernel refuses to complete a checksum outside the frame; so do we, and earlier.
fn check_checksum_field(frame: &[u8], vnet: &VnetHeader) -> Result<(), Refused> {
    let field = usize::from(vnet.csum_start) + usize::from(vnet.csum_offset);
    if vnet.needs_csum() && word(frame, field).is_none() {
        return Err(Refused::ChecksumOutside);
    }
    Ok(())
}

// Superpackets.

/// Checks what the header says of a superpacket. Returns the header to go on with and, if the frame
/// can be split, how.
fn superpacket(
    frame: &[u8],
    vnet: &VnetHeader,
    outer: &Outer<'_>,
) -> Result<(VnetHeader, Option<Train>), Refused> {
    if vnet.gso_type == VnetHeader::GSO_NONE {
        return Ok((vnet.without_gso(), None));
    }
    let (transport, ip) = claimed(vnet, outer)?;
    let header_len = header_len(frame, transport, ip)?;
    if frame.len() - outer.network_offset > usize::from(u16::MAX) {
        return Err(Refused::TooLong);
    }
    check_transport_checksum(vnet, transport, ip)?;
    if vnet.gso_size == 0 {
        return Err(Refused::ZeroSegment);
    }
    let count = (frame.len() - header_len).div_ceil(usize::from(vnet.gso_size));
    if count <= 1 {
        return Ok((vnet.without_gso(), None));
    }
    let whole = VnetHeader { hdr_len: small(header_len), ..*vnet };
    if !vnet.needs_csum() {
        return Ok((whole, None));
    }
    // The frame is at most 65535 bytes from the network header on, hence so is the count.
    let segments = Segments { count: small(count), mss: vnet.gso_size, header_len: whole.hdr_len };
    let transport_offset = small(ip.transport_offset);
    Ok((whole, Some(Train { transport, segments, transport_offset })))
}

/// The transport that the offload type claims, with the IP header that bears the claim out.
fn claimed<'a, 'b>(
    vnet: &VnetHeader,
    outer: &'b Outer<'a>,
) -> Result<(Transport, &'b Ip<'a>), Refused> {
    let (transport, number, network) = match vnet.gso_kind() {
        VnetHeader::GSO_TCPV4 => (Transport::Tcp, proto::TCP, Some(Network::Ipv4)),
        VnetHeader::GSO_TCPV6 => (Transport::Tcp, proto::TCP, Some(Network::Ipv6)),
        VnetHeader::GSO_UDP_L4 => (Transport::Udp, proto::UDP, None),
        _ => return Err(Refused::GsoUnknown),
    };
    let ip = outer.ip.as_ref().ok_or(Refused::GsoMismatch)?;
    if ip.fragment {
        return Err(Refused::Fragment);
    }
    // Behind an AH nothing may be rewritten, and no kernel splits there.
    let fits = network.is_none_or(|network| network == ip.network);
    if !fits || ip.authenticated || ip.proto != number.0 {
        return Err(Refused::GsoMismatch);
    }
    Ok((transport, ip))
}

/// Bytes of all headers, counted from the packet itself.
fn header_len(frame: &[u8], transport: Transport, ip: &Ip<'_>) -> Result<usize, Refused> {
    let own = match transport {
        Transport::Udp => UDP_LEN,
        // The data offset counts 32-bit words, in the upper four bits.
        Transport::Tcp => match frame.get(ip.transport_offset + 12) {
            Some(byte) if byte >> 4 >= 5 => usize::from(byte >> 4) * 4,
            Some(_) => return Err(Refused::GsoMismatch),
            None => return Err(Refused::HeadersCut),
        },
    };
    let len = ip.transport_offset + own;
    if len > frame.len() {
        return Err(Refused::HeadersCut);
    }
    if len > MAX_HEADERS { Err(Refused::HeadersTooLong) } else { Ok(len) }
}

/// Splitting updates the TCP or UDP checksum; the one to be completed must be that.
fn check_transport_checksum(
    vnet: &VnetHeader,
    transport: Transport,
    ip: &Ip<'_>,
) -> Result<(), Refused> {
    let here = usize::from(vnet.csum_start) == ip.transport_offset
        && vnet.csum_offset == transport.checksum_offset();
    if vnet.needs_csum() && !here { Err(Refused::ChecksumElsewhere) } else { Ok(()) }
}

impl Transport {
    /// Bytes from the start of the transport header to its checksum.
    #[must_use]
    pub const fn checksum_offset(self) -> u16 {
        match self {
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }
}

// Headers.

/// What stands before the payload of the link layer, and the IP header behind it if it can be read.
struct Outer<'a> {
    ethertype: u16,
    vlan: u16,
    network_offset: usize,
    ip: Option<Ip<'a>>,
}

impl<'a> Outer<'a> {
    fn read(frame: &'a [u8]) -> Self {
        let Ok(packet) = LaxSlicedPacket::from_ethernet(frame) else {
            // Shorter than an Ethernet header. It is still somebody's frame.
            return Self { ethertype: 0, vlan: 0, network_offset: frame.len(), ip: None };
        };
        let mut outer = Self::link(&packet);
        outer.ip = Ip::read(&packet, outer.ethertype, outer.network_offset);
        if outer.ethertype < SMALLEST_ETHERTYPE {
            outer.ethertype = ETHERTYPE_LLC;
        }
        outer
    }

    /// Walks the VLAN tags. MACsec, which the kernel does not look into, ends the walk.
    fn link(packet: &LaxSlicedPacket<'_>) -> Self {
        let ethertype = match &packet.link {
            Some(LinkSlice::Ethernet2(ethernet)) => ethernet.ether_type().0,
            _ => 0,
        };
        let mut outer = Self { ethertype, vlan: 0, network_offset: ETHERNET_LEN, ip: None };
        for extension in &packet.link_exts {
            let LaxLinkExtSlice::Vlan(tag) = extension else { break };
            if outer.network_offset == ETHERNET_LEN {
                outer.vlan = tag.vlan_identifier().value();
            }
            outer.ethertype = tag.ether_type().0;
            outer.network_offset += 4;
        }
        outer
    }

    /// Spec §3.5: ARP is urgent, anything else that is not readable IP is not.
    fn dscp(&self) -> Dscp {
        match &self.ip {
            Some(ip) => Dscp::from_tos(ip.tos),
            None if self.ethertype == ETHERTYPE_ARP => Dscp::CS7,
            None => Dscp::default(),
        }
    }

    fn flow(&self) -> FlowKey {
        let Some(outer) = &self.ip else {
            return FlowKey { ethertype: self.ethertype, vlan: self.vlan, ..FlowKey::default() };
        };
        let mut innermost = *outer;
        for _ in 0..MAX_TUNNELS {
            match innermost.inner() {
                Some(inner) => innermost = inner,
                None => break,
            }
        }
        FlowKey { vlan: self.vlan, ..innermost.flow() }
    }
}

/// An IP header that could be read, extension headers included as far as they could be.
#[derive(Clone, Copy)]
struct Ip<'a> {
    network: Network,
    tos: u8,
    flow_label: u32,
    source: u128,
    destination: u128,
    /// What `payload` is.
    proto: u8,
    /// Part of a datagram, or a whole one that says it is a part.
    fragment: bool,
    /// An authentication header stands before the payload.
    authenticated: bool,
    /// Offset of `payload` from what the header was read from.
    transport_offset: usize,
    payload: &'a [u8],
}

impl<'a> Ip<'a> {
    /// The header at `offset`, provided it is of the family that `ethertype` announces.
    fn read(packet: &LaxSlicedPacket<'a>, ethertype: u16, offset: usize) -> Option<Self> {
        match (&packet.net, ethertype) {
            (Some(LaxNetSlice::Ipv4(ip)), ETHERTYPE_IPV4) => Some(Self::read_v4(ip, offset)),
            (Some(LaxNetSlice::Ipv6(ip)), ETHERTYPE_IPV6) => Some(Self::read_v6(ip, offset)),
            _ => None,
        }
    }

    fn read_v4(ip: &LaxIpv4Slice<'a>, offset: usize) -> Self {
        let header = ip.header();
        let authentication = ip.extensions().auth.map_or(0, |auth| auth.slice().len());
        Self {
            network: Network::Ipv4,
            tos: header.slice().get(1).copied().unwrap_or(0),
            flow_label: 0,
            source: u32::from_be_bytes(header.source()).into(),
            destination: u32::from_be_bytes(header.destination()).into(),
            proto: ip.payload_ip_number().0,
            fragment: ip.is_payload_fragmented(),
            authenticated: authentication != 0,
            transport_offset: offset + header.slice().len() + authentication,
            payload: ip.payload().payload,
        }
    }

    fn read_v6(ip: &LaxIpv6Slice<'a>, offset: usize) -> Self {
        let header = ip.header();
        let extensions = ip.extensions().slice();
        let (fragment, authenticated) = notable(header.next_header().0, extensions);
        Self {
            network: Network::Ipv6,
            tos: header.traffic_class(),
            flow_label: header.flow_label().value(),
            source: u128::from_be_bytes(header.source()),
            destination: u128::from_be_bytes(header.destination()),
            proto: ip.payload().ip_number.0,
            fragment,
            authenticated,
            transport_offset: offset + header.slice().len() + extensions.len(),
            payload: ip.payload().payload,
        }
    }

    fn ethertype(&self) -> u16 {
        if self.network == Network::Ipv4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }
    }

    fn flow(&self) -> FlowKey {
        let (source_port, destination_port) = self.ports().unwrap_or_default();
        FlowKey {
            ethertype: self.ethertype(),
            vlan: 0,
            ip_proto: self.proto,
            flow_label: self.flow_label,
            source: self.source,
            destination: self.destination,
            source_port,
            destination_port,
        }
    }

    /// The first four bytes of every transport that has ports; of ESP, the SPI.
    fn ports(&self) -> Option<(u16, u16)> {
        const DCCP: u8 = proto::DCCP.0;
        const ESP: u8 = proto::ENCAP_SEC.0;
        const SCTP: u8 = proto::SCTP.0;
        const TCP: u8 = proto::TCP.0;
        const UDP: u8 = proto::UDP.0;
        const UDP_LITE: u8 = proto::UDP_LITE.0;
        if self.is_opaque() || !matches!(self.proto, DCCP | ESP | SCTP | TCP | UDP | UDP_LITE) {
            return None;
        }
        Some((word(self.payload, 0)?, word(self.payload, 2)?))
    }

    /// The header that a tunnel carries, if this is one and it can be read.
    fn inner(&self) -> Option<Self> {
        const IPV4: u8 = proto::IPV4.0;
        const IPV6: u8 = proto::IPV6.0;
        const GRE: u8 = proto::GRE.0;
        if self.is_opaque() {
            return None;
        }
        match self.proto {
            IPV4 => Self::behind(ETHERTYPE_IPV4, self.payload),
            IPV6 => Self::behind(ETHERTYPE_IPV6, self.payload),
            GRE => gre(self.payload).and_then(|(ethertype, rest)| Self::behind(ethertype, rest)),
            _ => None,
        }
    }

    /// The header in `payload`, which `ethertype` announces.
    fn behind(ethertype: u16, payload: &'a [u8]) -> Option<Self> {
        match ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {
                let packet = LaxSlicedPacket::from_ether_type(ethertype.into(), payload);
                Self::read(&packet, ethertype, 0)
            }
            ETHERTYPE_TEB => Outer::read(payload).ip,
            _ => None,
        }
    }

    /// Whether the flow is known by addresses (and label) alone.
    fn is_opaque(&self) -> bool {
        self.fragment || self.flow_label != 0
    }
}

/// Whether there is a fragment header, and an authentication header, among the extension headers.
///
/// Walked by hand: `etherparse` calls a fragment header that fragments nothing no fragmentation,
/// which is not what the kernel thinks, and its iterator expects headers that were parsed strictly.
fn notable(first: u8, extensions: &[u8]) -> (bool, bool) {
    const FRAGMENT: u8 = proto::IPV6_FRAG.0;
    const AUTHENTICATION: u8 = proto::AUTH.0;
    let (mut kind, mut rest) = (first, extensions);
    let (mut fragment, mut authenticated) = (false, false);
    while let &[next, len, ..] = rest {
        fragment |= kind == FRAGMENT;
        authenticated |= kind == AUTHENTICATION;
        let len = match kind {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        kind = next;
        rest = rest.get(len..).unwrap_or_default();
    }
    (fragment, authenticated)
}

/// The EtherType and payload of a GRE header (RFC 2784, RFC 2890). Version 0 without source routes
/// only: what came before is obsolete, and PPTP carries PPP.
fn gre(bytes: &[u8]) -> Option<(u16, &[u8])> {
    const CHECKSUM_KEY_SEQUENCE: [u16; 3] = [0x8000, 0x2000, 0x1000];
    const ROUTING_OR_VERSION: u16 = 0x4007;
    let flags = word(bytes, 0)?;
    if flags & ROUTING_OR_VERSION != 0 {
        return None;
    }
    let options = CHECKSUM_KEY_SEQUENCE.iter().filter(|&&bit| flags & bit != 0).count();
    Some((word(bytes, 2)?, bytes.get(4 + 4 * options..)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::packet::testing::{Ip as TestIp, Layer4, Packet};

    const V4_SOURCE: u128 = 0x0a00_0001;
    const V4_DESTINATION: u128 = 0x0a00_0002;
    const V6_SOURCE: u128 = 0xfd00_0000_0000_0000_0000_0000_0000_0001;
    const V6_DESTINATION: u128 = 0xfd00_0000_0000_0000_0000_0000_0000_0002;
    const PORTS: (u16, u16) = (Packet::SOURCE_PORT, Packet::DESTINATION_PORT);

    fn plain(frame: &[u8]) -> Dissected {
        dissect(frame, &VnetHeader::PLAIN, MemSize(768)).unwrap()
    }

    fn flow(packet: &Packet) -> FlowKey {
        plain(&packet.bytes()).meta.flow
    }

    fn ports(key: FlowKey) -> (u16, u16) {
        (key.source_port, key.destination_port)
    }

    fn raw(proto: u8, payload: Vec<u8>) -> Packet {
        Packet { transport: Layer4::Raw(proto), payload, ..Packet::tcp() }
    }

    /// What is behind the Ethernet header of a packet.
    fn inner(packet: &Packet) -> Vec<u8> {
        packet.bytes()[14..].to_vec()
    }

    /// An Ethernet header and nothing to speak of behind it.
    fn ethernet(types: &[u16]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for (index, ethertype) in types.iter().enumerate() {
            if index > 0 {
                frame.extend([0, 42]);
            }
            frame.extend(ethertype.to_be_bytes());
        }
        frame.extend([0; 46]);
        frame
    }

    #[test]
    fn ipv4_tcp_is_read_in_full() {
        let frame = Packet { tos: 0xb9, ..Packet::tcp() }.bytes();
        let Dissected { meta, layout, vnet } = plain(&frame);
        let expected = FlowKey {
            ethertype: ETHERTYPE_IPV4,
            vlan: 0,
            ip_proto: 6,
            flow_label: 0,
            source: V4_SOURCE,
            destination: V4_DESTINATION,
            source_port: PORTS.0,
            destination_port: PORTS.1,
        };
        assert_eq!(meta.flow, expected);
        assert_eq!(meta.len, FrameLen(u32::try_from(frame.len()).unwrap()));
        assert_eq!((meta.dscp, meta.ecn), (Dscp::new(46), Ecn::Ect1));
        assert_eq!((meta.network_offset, meta.truesize), (14, MemSize(768)));
        assert_eq!((meta.segments, meta.mark, meta.priority), (Segments::ONE, 0, 0));
        let expected =
            Layout { network: Network::Ipv4, network_offset: 14, ecn: Ecn::Ect1, train: None };
        assert_eq!(layout, expected);
        assert_eq!(vnet, VnetHeader::PLAIN);
    }

    #[test]
    fn ipv6_is_read_behind_its_extension_headers() {
        let packet = Packet { tos: 0x2a, ip: TestIp::v6_extended(), ..Packet::udp() };
        let Dissected { meta, layout, .. } = plain(&packet.bytes());
        assert_eq!((meta.dscp, meta.ecn), (Dscp::new(10), Ecn::Ect0));
        assert_eq!((meta.flow.source, meta.flow.destination), (V6_SOURCE, V6_DESTINATION));
        assert_eq!((meta.flow.ethertype, meta.flow.ip_proto), (ETHERTYPE_IPV6, 17));
        assert_eq!(ports(meta.flow), PORTS);
        assert_eq!(layout.network, Network::Ipv6);
    }

    #[test]
    fn tags_are_looked_through_and_the_outermost_counts() {
        for (tags, offset) in [
            (vec![(0x8100, 0x2007)], 18),
            (vec![(0x88a8, 7), (0x8100, 9)], 22),
            (vec![(0x88a8, 7), (0x8100, 9), (0x8100, 5)], 26),
        ] {
            let meta = plain(&Packet { tags, tos: 0xb8, ..Packet::tcp() }.bytes()).meta;
            assert_eq!((meta.network_offset, meta.flow.vlan), (offset, 7));
            assert_eq!((meta.dscp.value(), ports(meta.flow)), (46, PORTS));
        }
        let priority_tag = Packet { tags: vec![(0x8100, 0xe000)], ..Packet::tcp() };
        assert_eq!(flow(&priority_tag), flow(&Packet::tcp()));
    }

    #[test]
    fn behind_a_fourth_tag_nothing_is_read() {
        let tags = vec![(0x8100, 1); 4];
        let Dissected { meta, layout, .. } =
            plain(&Packet { tags, tos: 0xb8, ..Packet::tcp() }.bytes());
        assert_eq!((meta.network_offset, meta.flow.ethertype, meta.flow.vlan), (26, 0x8100, 1));
        assert_eq!((meta.dscp, layout.network), (Dscp::default(), Network::Other));
    }

    #[test]
    fn arp_is_urgent_and_not_ip() {
        for types in [&[ETHERTYPE_ARP][..], &[0x8100, ETHERTYPE_ARP]] {
            let Dissected { meta, layout, .. } = plain(&ethernet(types));
            assert_eq!((meta.dscp, meta.ecn), (Dscp::CS7, Ecn::NotEct));
            assert_eq!((meta.flow.ethertype, meta.flow.is_ip()), (ETHERTYPE_ARP, false));
            assert_eq!(layout.network, Network::Other);
        }
    }

    #[test]
    fn other_protocols_are_told_apart_by_ethertype() {
        // PPPoE, MPLS, MACsec, and one nobody knows.
        for ethertype in [0x8864, 0x8847, 0x88e5, 0x9999] {
            let meta = plain(&ethernet(&[ethertype])).meta;
            assert_eq!(meta.flow, FlowKey { ethertype, ..FlowKey::default() });
            assert_eq!((meta.dscp, meta.network_offset), (Dscp::default(), 14));
        }
    }

    #[test]
    fn llc_frames_of_all_lengths_are_one_flow() {
        let expected = FlowKey { ethertype: ETHERTYPE_LLC, ..FlowKey::default() };
        for length in [3, 38, 1500] {
            assert_eq!(plain(&ethernet(&[length])).meta.flow, expected);
        }
    }

    #[test]
    fn a_family_that_the_ethertype_does_not_announce_is_not_read() {
        for (byte, packet) in
            [(0x60, Packet::tcp()), (0x45, Packet { ip: TestIp::v6(), ..Packet::tcp() })]
        {
            let mut frame = packet.bytes();
            frame[14] = byte;
            assert_eq!(plain(&frame).layout.network, Network::Other);
        }
    }

    #[test]
    fn a_frame_cut_anywhere_is_still_a_frame() {
        for ip in [TestIp::v4(), TestIp::v6_extended()] {
            let packet = Packet { tags: vec![(0x8100, 7)], tos: 0xb9, ip, ..Packet::tcp() };
            let frame = packet.bytes();
            let ip_end =
                packet.network_offset() + if packet.transport_offset() == 38 { 20 } else { 40 };
            for len in 0..frame.len() {
                let Dissected { meta, layout, .. } = plain(&frame[..len]);
                assert_eq!(layout.network != Network::Other, len >= ip_end, "cut to {len}");
                assert_eq!(meta.dscp.value(), if len >= ip_end { 46 } else { 0 }, "cut to {len}");
                let has_ports = len >= packet.transport_offset() + 4;
                let expected = if has_ports { PORTS } else { (0, 0) };
                assert_eq!(ports(meta.flow), expected, "cut to {len}");
                assert!(usize::from(meta.network_offset) <= len, "cut to {len}");
            }
        }
    }

    #[test]
    fn fragments_have_no_ports_first_ones_included() {
        for fragment in [0x2000, 0x2010, 0x0010] {
            let ip = TestIp::V4 { options: Vec::new(), fragment };
            let key = flow(&Packet { ip, ..Packet::udp() });
            assert_eq!((ports(key), key.ip_proto, key.source), ((0, 0), 17, V4_SOURCE));
        }
        // More fragments, a later one, and one that is no fragment but says so.
        for (high, low) in [(0, 1), (1, 0), (0, 0)] {
            let extensions = vec![
                // Padding that leads astray whoever miscounts.
                (0, vec![0, 0, 1, 4, 99, 99, 99, 99]),
                (60, vec![0, 0, 1, 4, 99, 99, 99, 99]),
                (44, vec![0, 0, high, low, 0, 0, 0, 9]),
            ];
            let ip = TestIp::V6 { label: 0, extensions };
            let key = flow(&Packet { ip, ..Packet::udp() });
            assert_eq!((ports(key), key.ip_proto, key.source), ((0, 0), 17, V6_SOURCE));
        }
    }

    #[test]
    fn a_flow_label_takes_the_place_of_ports() {
        let ip = TestIp::V6 { label: 0xabcde, extensions: Vec::new() };
        let key = flow(&Packet { ip, ..Packet::tcp() });
        assert_eq!((key.flow_label, ports(key)), (0xabcde, (0, 0)));
    }

    #[test]
    fn transports_with_ports_have_them_and_others_do_not() {
        let payload = vec![0x01, 0xbb, 0xc3, 0x50, 1, 2, 3, 4];
        for proto in [6, 17, 33, 50, 132, 136] {
            assert_eq!(ports(flow(&raw(proto, payload.clone()))), PORTS, "protocol {proto}");
        }
        for proto in [1, 2, 58, 89, 255] {
            assert_eq!(ports(flow(&raw(proto, payload.clone()))), (0, 0), "protocol {proto}");
        }
    }

    #[test]
    fn echoes_with_different_ids_are_one_flow() {
        let ping = |id| flow(&raw(1, vec![8, 0, 0, 0, 0, id, 0, 1]));
        assert_eq!(ping(1), ping(2));
    }

    #[test]
    fn tunnels_are_told_apart_by_what_is_inside() {
        let six = Packet { ip: TestIp::v6(), tos: 0xb8, ..Packet::tcp() };
        let four = Packet { tos: 0xb8, ..Packet::tcp() };
        let gre = |header: &[u8], inner: Vec<u8>| raw(47, [header, &inner].concat());
        for (outer, inner) in [
            (raw(41, inner(&six)), &six),
            (raw(4, inner(&four)), &four),
            (gre(&[0, 0, 0x08, 0x00], inner(&four)), &four),
            (gre(&[0xb0, 0, 0x86, 0xdd, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 1], inner(&six)), &six),
            (gre(&[0x20, 0, 0x65, 0x58, 0, 0, 0, 9], six.bytes()), &six),
        ] {
            let Dissected { meta, layout, .. } = plain(&outer.bytes());
            assert_eq!(meta.flow, flow(inner));
            assert_eq!((meta.dscp, layout.network), (Dscp::default(), Network::Ipv4));
            assert_eq!(meta.network_offset, 14);
        }
    }

    #[test]
    fn what_cannot_be_read_inside_a_tunnel_leaves_the_outer_addresses() {
        for outer in [
            raw(41, vec![0x60; 39]),
            raw(4, inner(&Packet { ip: TestIp::v6(), ..Packet::tcp() })),
            raw(47, vec![0x40, 0, 8, 0]),
            raw(47, vec![0x00, 1, 8, 0]),
            raw(47, vec![0xb0, 0, 8, 0, 1]),
            raw(47, vec![0x00]),
        ] {
            let key = flow(&outer);
            assert_eq!((key.source, key.ethertype), (V4_SOURCE, ETHERTYPE_IPV4));
            assert_eq!(ports(key), (0, 0));
        }
    }

    #[test]
    fn endless_tunnels_end() {
        let mut packet = Packet::tcp();
        for _ in 0..MAX_TUNNELS {
            packet = raw(4, inner(&packet));
        }
        assert_eq!(ports(flow(&packet)), PORTS);
        assert_eq!(ports(flow(&raw(4, inner(&packet)))), (0, 0));
    }

    #[test]
    fn a_superpacket_divides_by_its_own_headers() {
        let packet = Packet { payload: vec![1; 4344], ..Packet::tcp() };
        let (frame, vnet) = packet.train(1448);
        let found = dissect(&frame, &vnet, MemSize(0)).unwrap();
        let segments = Segments { count: 3, mss: 1448, header_len: 66 };
        let expected = Train { transport: Transport::Tcp, segments, transport_offset: 34 };
        assert_eq!(found.layout.train, Some(expected));
        assert_eq!(found.meta.segments, segments);
        assert_eq!((found.vnet.hdr_len, found.vnet.gso_size), (66, 1448));
    }

    #[test]
    fn no_more_than_one_segment_is_an_ordinary_frame() {
        for (payload, mss) in [(1448, 1448), (0, 1448), (1, 65535)] {
            for packet in [Packet::tcp(), Packet::udp()] {
                let (frame, vnet) = Packet { payload: vec![1; payload], ..packet }.train(mss);
                let found = dissect(&frame, &vnet, MemSize(0)).unwrap();
                assert_eq!((found.meta.segments, found.layout.train), (Segments::ONE, None));
                assert_eq!(found.vnet, vnet.without_gso());
            }
        }
    }

    #[test]
    fn a_superpacket_with_nothing_to_complete_stays_whole() {
        let (frame, vnet) = Packet { payload: vec![1; 4000], ..Packet::tcp() }.train(1000);
        let vnet = VnetHeader { flags: VnetHeader::DATA_VALID, ..vnet };
        let found = dissect(&frame, &vnet, MemSize(0)).unwrap();
        assert_eq!((found.meta.segments, found.layout.train), (Segments::ONE, None));
        assert_eq!(found.vnet, VnetHeader { hdr_len: 66, ..vnet });
    }

    /// A superpacket, changed in one respect, and what becomes of it.
    fn refused(packet: &Packet, change: impl FnOnce(&mut Vec<u8>, &mut VnetHeader)) -> Refused {
        let (mut frame, mut vnet) = packet.train(1000);
        change(&mut frame, &mut vnet);
        dissect(&frame, &vnet, MemSize(0)).unwrap_err()
    }

    #[test]
    fn a_superpacket_that_is_not_what_it_says_is_refused() {
        let tcp = Packet { payload: vec![1; 4000], ..Packet::tcp() };
        let udp = Packet { payload: vec![1; 4000], ..Packet::udp() };
        let with = |ip: TestIp| Packet { ip, ..tcp.clone() };
        let authenticated = with(TestIp::V6 {
            label: 0,
            extensions: vec![(51, vec![0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0])],
        });
        let atomic = with(TestIp::V6 { label: 0, extensions: vec![(44, vec![0; 8])] });
        let padded = with(TestIp::V6 {
            label: 0,
            extensions: vec![(60, [&[0, 25][..], &[0; 206]].concat())],
        });
        assert_eq!(refused(&tcp, |_, vnet| vnet.gso_size = 0), Refused::ZeroSegment);
        for gso_type in [0x80, VnetHeader::GSO_UDP, 2, 6, 0x21, 0x41] {
            assert_eq!(refused(&tcp, |_, vnet| vnet.gso_type = gso_type), Refused::GsoUnknown);
        }
        for gso_type in [VnetHeader::GSO_TCPV6, VnetHeader::GSO_UDP_L4] {
            assert_eq!(refused(&tcp, |_, vnet| vnet.gso_type = gso_type), Refused::GsoMismatch);
        }
        assert_eq!(refused(&udp, |_, vnet| vnet.gso_type = 1), Refused::GsoMismatch);
        assert_eq!(refused(&tcp, |frame, _| frame[12] = 0), Refused::GsoMismatch, "not IP");
        assert_eq!(refused(&tcp, |frame, _| frame[34 + 12] = 0x40), Refused::GsoMismatch);
        assert_eq!(refused(&authenticated, |_, _| {}), Refused::GsoMismatch);
        assert_eq!(refused(&tcp, |frame, _| frame[20] = 0x20), Refused::Fragment);
        assert_eq!(refused(&atomic, |_, _| {}), Refused::Fragment);
        assert_eq!(refused(&padded, |_, _| {}), Refused::HeadersTooLong);
        assert_eq!(refused(&tcp, |_, vnet| vnet.csum_start = 14), Refused::ChecksumElsewhere);
        assert_eq!(refused(&tcp, |_, vnet| vnet.csum_offset = 6), Refused::ChecksumElsewhere);
        assert_eq!(refused(&tcp, |_, vnet| vnet.csum_start = 5000), Refused::ChecksumOutside);
        assert_eq!(refused(&tcp, |frame, _| frame.resize(65_550, 0)), Refused::TooLong);
    }

    #[test]
    fn headers_cut_short_are_refused_where_they_claim_to_be_a_superpackets() {
        for packet in [Packet::tcp(), Packet::udp()] {
            let headers = packet.header_len();
            for len in packet.transport_offset()..headers {
                let change = |frame: &mut Vec<u8>, vnet: &mut VnetHeader| {
                    frame.truncate(len);
                    vnet.flags = 0;
                };
                assert_eq!(refused(&packet, change), Refused::HeadersCut, "cut to {len}");
            }
        }
    }

    #[test]
    fn an_ordinary_frame_is_refused_for_a_checksum_outside_of_it() {
        let frame = Packet::tcp().bytes();
        let len = u16::try_from(frame.len()).unwrap();
        let vnet = |csum_start, csum_offset| VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            csum_start,
            csum_offset,
            ..VnetHeader::PLAIN
        };
        assert!(dissect(&frame, &vnet(len - 18, 16), MemSize(0)).is_ok());
        for (start, offset) in [(len - 17, 16), (u16::MAX, u16::MAX), (0, len - 1)] {
            let result = dissect(&frame, &vnet(start, offset), MemSize(0));
            assert_eq!(result, Err(Refused::ChecksumOutside));
        }
    }

    #[test]
    fn every_reason_stands_at_its_index() {
        for (index, reason) in Refused::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }
}
