//! Bytes to meaning: what the discipline decides by, and where a rewriter finds things.
//!
//! Problem: a frame comes from anyone. It must be sorted the way `sch_cake` sorts it, and no byte
//! of it may be believed before it was looked at.
//! Source: spec §3.5 (DSCP), §4.2 (what the kernel's flow dissector puts into the hash), §7.2
//! (lengths of superpackets); the header formats are `etherparse`'s business.
//! Law: an ordinary frame is always queued; what cannot be read of it is 0. A superpacket is either
//! understood to its last header or refused and counted, for it cannot be passed on as it is if
//! what it says of itself is wrong.
//! Left out: what is inside MPLS and MACsec, told apart by EtherType alone.
//!
//! ```text
//! | Ethernet 14 | tags 0…7 × 4 | IP, extension headers | TCP or UDP | payload, mss, mss, … |
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
//! * AH and ESP are told apart by their SPI, which stands where others have ports; what is behind an
//!   AH is not looked at.
//! * A DSCP is read by EtherType, whatever version and header length a packet claims to have, as CAKE in
//!   Linux does. That of a packet in a PPPoE session is out of reach; its flow is not.
//! * A superpacket without `NEEDS_CSUM` is kept whole, as a single unit: its segments' checksums
//!   cannot be had without healing whatever may have been wrong with the one checksum it carries.
//! * TCP and UDP right behind an IP header that is in order are read by hand (`dissect/plain.rs`), in a
//!   fraction of the time; what is found is what the parser would find.
//! * TCP flags do not matter to splitting. SYN, RST and URG are copied to every segment and the
//!   urgent pointer is left as it is, as Linux does.

mod plain;

use etherparse::{LaxIpv4Slice, LaxIpv6Slice, LaxNetSlice, LaxSlicedPacket, ip_number as proto};

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
/// VLAN tags: customer's and service provider's.
const ETHERTYPE_CTAG: u16 = 0x8100;
const ETHERTYPE_STAG: u16 = 0x88a8;
/// VLAN tags that are looked behind, as many as Linux does.
const MAX_TAGS: usize = 7;
/// PPPoE session data, and the protocols in it that have flows.
const ETHERTYPE_PPPOE: u16 = 0x8864;
const PPP_IPV4: u16 = 0x0021;
const PPP_IPV6: u16 = 0x0057;
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    let link = Link::read(frame);
    match link.plain() {
        Some(ip) => found(frame, vnet, truesize, link, Some(&ip)),
        None => dissect_closely(frame, vnet, truesize, link),
    }
}

#[inline(never)]
fn dissect_closely(
    frame: &[u8],
    vnet: &VnetHeader,
    truesize: MemSize,
    link: Link<'_>,
) -> Result<Dissected, Refused> {
    let ip = link.closely();
    found(frame, vnet, truesize, link, ip.as_ref())
}

/// What all that was read comes to.
// Once for each kind of packet, so that of an ordinary one nothing is written to memory but the answer: it
// is large, and so is an IP header.
#[inline(always)]
fn found(
    frame: &[u8],
    vnet: &VnetHeader,
    truesize: MemSize,
    link: Link<'_>,
    ip: Option<&Ip<'_>>,
) -> Result<Dissected, Refused> {
    check_checksum_field(frame, vnet)?;
    let (vnet, train) = superpacket(frame, vnet, link.network_offset, ip)?;
    let (tos, network) = link.network();
    let layout = Layout {
        network,
        network_offset: small(link.network_offset),
        ecn: match network {
            Network::Other => Ecn::NotEct,
            Network::Ipv4 | Network::Ipv6 => Ecn::from_tos(tos),
        },
        transport: ip.and_then(Ip::transport),
        train,
    };
    let meta = Meta {
        len: FrameLen(u32::try_from(frame.len()).unwrap_or(u32::MAX)),
        network_offset: layout.network_offset,
        dscp: link.dscp(tos),
        ecn: layout.ecn,
        flow: link.flow(ip),
        segments: train.map_or(Segments::ONE, |train| train.segments),
        truesize,
        mark: 0,
        priority: 0,
        overrides: super::Overrides::NONE,
        min_rtt: None,
    };
    Ok(Dissected { meta, layout, vnet })
}

/// An offset known to be small: the network header stands at 42 at most.
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
#[inline(always)]
fn superpacket(
    frame: &[u8],
    vnet: &VnetHeader,
    network_offset: usize,
    ip: Option<&Ip<'_>>,
) -> Result<(VnetHeader, Option<Train>), Refused> {
    if vnet.gso_type == VnetHeader::GSO_NONE {
        return Ok((vnet.without_gso(), None));
    }
    let (transport, ip) = claimed(vnet, ip)?;
    let header_len = header_len(frame, transport, ip)?;
    if frame.len() - network_offset > usize::from(u16::MAX) {
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
#[inline(always)]
fn claimed<'a, 'b>(
    vnet: &VnetHeader,
    ip: Option<&'b Ip<'a>>,
) -> Result<(Transport, &'b Ip<'a>), Refused> {
    let (transport, number, network) = match vnet.gso_kind() {
        VnetHeader::GSO_TCPV4 => (Transport::Tcp, proto::TCP, Some(Network::Ipv4)),
        VnetHeader::GSO_TCPV6 => (Transport::Tcp, proto::TCP, Some(Network::Ipv6)),
        VnetHeader::GSO_UDP_L4 => (Transport::Udp, proto::UDP, None),
        _ => return Err(Refused::GsoUnknown),
    };
    let ip = ip.ok_or(Refused::GsoMismatch)?;
    if ip.fragment {
        return Err(Refused::Fragment);
    }
    // Behind an AH nothing may be rewritten, and no kernel splits there.
    let fits = network.is_none_or(|network| network == ip.network);
    if !fits || ip.authentication.is_some() || ip.proto != number.0 {
        return Err(Refused::GsoMismatch);
    }
    Ok((transport, ip))
}

/// Bytes of all headers, counted from the packet itself.
#[inline(always)]
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
#[inline(always)]
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

/// What stands before the payload of the link layer.
#[derive(Clone, Copy)]
struct Link<'a> {
    ethertype: u16,
    vlan: u16,
    vlan_kind: u16,
    network_offset: usize,
    payload: &'a [u8],
}

impl<'a> Link<'a> {
    #[inline(always)]
    fn read(frame: &'a [u8]) -> Self {
        let untagged =
            Self { ethertype: 0, vlan: 0, vlan_kind: 0, network_offset: 0, payload: &[] };
        match word(frame, ETHERNET_LEN - 2) {
            Some(ethertype @ (ETHERTYPE_CTAG | ETHERTYPE_STAG)) => {
                Self { ethertype, network_offset: ETHERNET_LEN, ..untagged }.behind_tags(frame)
            }
            Some(ethertype) => {
                let payload = frame.get(ETHERNET_LEN..).unwrap_or_default();
                let ethertype = named(ethertype);
                Self { ethertype, network_offset: ETHERNET_LEN, payload, ..untagged }
            }
            // Shorter than an Ethernet header. It is still somebody's frame.
            None => Self { network_offset: frame.len(), ..untagged },
        }
    }

    #[inline(never)]
    fn behind_tags(mut self, frame: &'a [u8]) -> Self {
        self.skip_tags(frame);
        self.payload = frame.get(self.network_offset..).unwrap_or_default();
        self.ethertype = named(self.ethertype);
        self
    }

    /// Walks the VLAN tags, [`MAX_TAGS`] at most: what is behind more is not looked at, nor is what is
    /// behind half a tag.
    fn skip_tags(&mut self, frame: &[u8]) {
        let untagged = self.ethertype;
        for tag in 0.. {
            if !matches!(self.ethertype, ETHERTYPE_CTAG | ETHERTYPE_STAG) {
                return;
            }
            let at = self.network_offset;
            let (Some(control), Some(ethertype)) = (word(frame, at), word(frame, at + 2)) else {
                return;
            };
            if tag == MAX_TAGS {
                (self.ethertype, self.network_offset) = (untagged, ETHERNET_LEN);
                return;
            }
            if tag == 0 {
                (self.vlan, self.vlan_kind) = (control & 0xefff, self.ethertype);
            }
            self.ethertype = ethertype;
            self.network_offset += 4;
        }
    }

    /// What the kernel reads by EtherType alone: TOS or traffic class (0 where there is none) from the first
    /// two bytes, and whether a header to mark and wash is all there, whatever version and length it claims.
    fn network(&self) -> (u8, Network) {
        let [first, second] = word(self.payload, 0).unwrap_or(0).to_be_bytes();
        let class = first << 4 | second >> 4;
        match self.ethertype {
            ETHERTYPE_IPV4 if self.payload.len() >= 20 => (second, Network::Ipv4),
            ETHERTYPE_IPV4 => (second, Network::Other),
            ETHERTYPE_IPV6 if self.payload.len() >= 40 => (class, Network::Ipv6),
            ETHERTYPE_IPV6 => (class, Network::Other),
            _ => (0, Network::Other),
        }
    }

    /// The IP header, if it is an ordinary one.
    #[inline(always)]
    fn plain(&self) -> Option<Ip<'a>> {
        Ip::plain(self.ethertype, self.payload, self.network_offset)
    }

    /// The IP header, if there is one that is in order.
    fn closely(&self) -> Option<Ip<'a>> {
        match self.ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {
                Ip::closely(self.ethertype, self.payload, self.network_offset)
            }
            _ => None,
        }
    }

    /// The header in a PPPoE session, whose flow is that of the packet in it; DSCP and ECN are out of reach.
    fn in_session(&self) -> Option<Ip<'a>> {
        const VERSION_1_TYPE_1_DATA: u16 = 0x1100;
        let bytes = self.payload;
        if self.ethertype != ETHERTYPE_PPPOE || word(bytes, 0) != Some(VERSION_1_TYPE_1_DATA) {
            return None;
        }
        let inner = match word(bytes, 6)? {
            PPP_IPV4 => ETHERTYPE_IPV4,
            PPP_IPV6 => ETHERTYPE_IPV6,
            _ => return None,
        };
        Ip::behind(inner, bytes.get(8..).unwrap_or_default())
    }

    /// Spec §3.5: ARP is urgent, anything else that is not IP is not.
    fn dscp(&self, tos: u8) -> Dscp {
        if self.ethertype == ETHERTYPE_ARP { Dscp::CS7 } else { Dscp::from_tos(tos) }
    }

    #[inline(always)]
    fn flow(self, ip: Option<&Ip<'_>>) -> FlowKey {
        let Self { vlan, vlan_kind, .. } = self;
        let flow = match ip {
            Some(ip) => ip.innermost_flow(),
            None => self.flow_without_ip(),
        };
        FlowKey { vlan, vlan_kind, ..flow }
    }

    fn flow_without_ip(self) -> FlowKey {
        let unknown = FlowKey { ethertype: self.ethertype, ..FlowKey::default() };
        self.in_session().map_or(unknown, |ip| ip.innermost_flow())
    }
}

/// The EtherType that Linux makes of the field.
fn named(ethertype: u16) -> u16 {
    if ethertype < SMALLEST_ETHERTYPE { ETHERTYPE_LLC } else { ethertype }
}

/// An IP header that could be read, extension headers included as far as they could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ip<'a> {
    network: Network,
    flow_label: u32,
    source: u128,
    destination: u128,
    /// What `payload` is.
    proto: u8,
    /// Part of a datagram, or a whole one that says it is a part.
    fragment: bool,
    /// The SPI of an authentication header that stands before the payload, in two halves.
    authentication: Option<(u16, u16)>,
    /// Offset of `payload` from what the header was read from.
    transport_offset: usize,
    payload: &'a [u8],
}

impl<'a> Ip<'a> {
    /// TCP or UDP and where it begins, if that is what directly follows.
    fn transport(&self) -> Option<(Transport, u16)> {
        let transport = match self.proto {
            number if number == proto::TCP.0 => Transport::Tcp,
            number if number == proto::UDP.0 => Transport::Udp,
            _ => return None,
        };
        let plain = !self.fragment && self.authentication.is_none();
        plain.then_some((transport, small(self.transport_offset)))
    }

    /// Whatever header there is, read by a parser.
    #[inline(never)]
    fn closely(ethertype: u16, bytes: &'a [u8], offset: usize) -> Option<Self> {
        Self::read(&LaxSlicedPacket::from_ether_type(ethertype.into(), bytes), ethertype, offset)
    }

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
        let authentication = ip.extensions().auth.as_ref().map_or(&[][..], |auth| auth.slice());
        Self {
            network: Network::Ipv4,
            flow_label: 0,
            source: u32::from_be_bytes(header.source()).into(),
            destination: u32::from_be_bytes(header.destination()).into(),
            proto: ip.payload_ip_number().0,
            fragment: ip.is_payload_fragmented(),
            authentication: spi(authentication),
            transport_offset: offset + header.slice().len() + authentication.len(),
            payload: ip.payload().payload,
        }
    }

    fn read_v6(ip: &LaxIpv6Slice<'a>, offset: usize) -> Self {
        let header = ip.header();
        let extensions = ip.extensions().slice();
        let (fragment, authentication) = notable(header.next_header().0, extensions);
        Self {
            network: Network::Ipv6,
            flow_label: header.flow_label().value(),
            source: u128::from_be_bytes(header.source()),
            destination: u128::from_be_bytes(header.destination()),
            proto: ip.payload().ip_number.0,
            fragment,
            authentication,
            transport_offset: offset + header.slice().len() + extensions.len(),
            payload: ip.payload().payload,
        }
    }

    /// The flow behind all tunnels, [`MAX_TUNNELS`] of them at most.
    #[inline(always)]
    fn innermost_flow(&self) -> FlowKey {
        if self.is_transport() { self.flow() } else { self.tunnelled_flow() }
    }

    #[inline(never)]
    fn tunnelled_flow(self) -> FlowKey {
        let mut innermost = self;
        let mut key_id = 0;
        for _ in 0..MAX_TUNNELS {
            key_id = innermost.gre_key().unwrap_or(key_id);
            match innermost.inner() {
                Some(inner) => innermost = inner,
                None => break,
            }
        }
        FlowKey { key_id, ..innermost.flow() }
    }

    /// Whether TCP or UDP follows, whatever there is of it; it is no tunnel then.
    fn is_transport(&self) -> bool {
        self.proto == proto::TCP.0 || self.proto == proto::UDP.0
    }

    fn ethertype(&self) -> u16 {
        if self.network == Network::Ipv4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }
    }

    fn flow(&self) -> FlowKey {
        let (source_port, destination_port) = self.ports().unwrap_or_default();
        FlowKey {
            ethertype: self.ethertype(),
            vlan: 0,
            vlan_kind: 0,
            ip_proto: if self.authentication.is_some() { proto::AUTH.0 } else { self.proto },
            flow_label: self.flow_label,
            source: self.source,
            destination: self.destination,
            source_port,
            destination_port,
            key_id: 0,
        }
    }

    /// The first four bytes of every transport that has ports; of AH and ESP, the SPI.
    fn ports(&self) -> Option<(u16, u16)> {
        const DCCP: u8 = proto::DCCP.0;
        const ESP: u8 = proto::ENCAP_SEC.0;
        const SCTP: u8 = proto::SCTP.0;
        const TCP: u8 = proto::TCP.0;
        const UDP: u8 = proto::UDP.0;
        const UDP_LITE: u8 = proto::UDP_LITE.0;
        if self.authentication.is_some() && !self.is_opaque() {
            return self.authentication;
        }
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
        if self.is_opaque() || self.authentication.is_some() {
            return None;
        }
        match self.proto {
            IPV4 => Self::behind(ETHERTYPE_IPV4, self.payload),
            IPV6 => Self::behind(ETHERTYPE_IPV6, self.payload),
            GRE => gre(self.payload).and_then(|(ethertype, rest)| Self::behind(ethertype, rest)),
            _ => None,
        }
    }

    /// The key of a GRE header, if this is before one that has it.
    fn gre_key(&self) -> Option<u32> {
        const CHECKSUM: u16 = 0x8000;
        const KEY: u16 = 0x2000;
        if self.is_opaque() || self.authentication.is_some() || self.proto != proto::GRE.0 {
            return None;
        }
        gre(self.payload)?;
        let flags = word(self.payload, 0)?;
        let at = if flags & CHECKSUM != 0 { 8 } else { 4 };
        let half = |at| word(self.payload, at).map(u32::from);
        if flags & KEY != 0 { Some(half(at)? << 16 | half(at + 2)?) } else { None }
    }

    /// The header in `payload`, which `ethertype` announces.
    #[inline(never)]
    fn behind(ethertype: u16, payload: &'a [u8]) -> Option<Self> {
        match ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Self::closely(ethertype, payload, 0),
            ETHERTYPE_TEB => Link::read(payload).closely(),
            _ => None,
        }
    }

    /// Whether the flow is known by addresses (and label) alone.
    fn is_opaque(&self) -> bool {
        self.fragment || self.flow_label != 0
    }
}

/// Whether there is a fragment header among the extension headers, and the SPI of an authentication header.
///
/// Walked by hand: `etherparse` calls a fragment header that fragments nothing no fragmentation,
/// which is not what the kernel thinks, and its iterator expects headers that were parsed strictly.
fn notable(first: u8, extensions: &[u8]) -> (bool, Option<(u16, u16)>) {
    const FRAGMENT: u8 = proto::IPV6_FRAG.0;
    const AUTHENTICATION: u8 = proto::AUTH.0;
    let (mut kind, mut rest) = (first, extensions);
    let (mut fragment, mut authentication) = (false, None);
    while let &[next, len, ..] = rest {
        fragment |= kind == FRAGMENT;
        if kind == AUTHENTICATION {
            authentication = authentication.or_else(|| spi(rest));
        }
        let len = match kind {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        kind = next;
        rest = rest.get(len..).unwrap_or_default();
    }
    (fragment, authentication)
}

/// The SPI of an authentication header, in two halves as it stands where others have ports.
fn spi(authentication: &[u8]) -> Option<(u16, u16)> {
    Some((word(authentication, 4)?, word(authentication, 6)?))
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
            vlan_kind: 0,
            ip_proto: 6,
            flow_label: 0,
            source: V4_SOURCE,
            destination: V4_DESTINATION,
            source_port: PORTS.0,
            destination_port: PORTS.1,
            key_id: 0,
        };
        assert_eq!(meta.flow, expected);
        assert_eq!(meta.len, FrameLen(u32::try_from(frame.len()).unwrap()));
        assert_eq!((meta.dscp, meta.ecn), (Dscp::new(46), Ecn::Ect1));
        assert_eq!((meta.network_offset, meta.truesize), (14, MemSize(768)));
        assert_eq!((meta.segments, meta.mark, meta.priority), (Segments::ONE, 0, 0));
        let expected = Layout {
            network: Network::Ipv4,
            network_offset: 14,
            ecn: Ecn::Ect1,
            transport: Some((Transport::Tcp, 34)),
            train: None,
        };
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
        for (tags, offset, vlan) in [
            // Priority, drop eligibility, id; the second does not make a flow.
            (vec![(0x8100, 0x3007)], 18, 0x2007),
            (vec![(0x88a8, 7), (0x8100, 9)], 22, 7),
            (vec![(0x88a8, 7), (0x8100, 9), (0x8100, 5)], 26, 7),
        ] {
            let kind = tags[0].0;
            let meta = plain(&Packet { tags, tos: 0xb8, ..Packet::tcp() }.bytes()).meta;
            assert_eq!(
                (meta.network_offset, meta.flow.vlan, meta.flow.vlan_kind),
                (offset, vlan, kind)
            );
            assert_eq!((meta.dscp.value(), ports(meta.flow)), (46, PORTS));
        }
        let priority_tag = Packet { tags: vec![(0x8100, 0xe000)], ..Packet::tcp() };
        assert_eq!(
            flow(&priority_tag),
            FlowKey { vlan: 0xe000, vlan_kind: 0x8100, ..flow(&Packet::tcp()) }
        );
    }

    #[test]
    fn behind_an_eighth_tag_nothing_is_read() {
        let tagged = |count| Packet { tags: vec![(0x8100, 1); count], tos: 0xb8, ..Packet::tcp() };
        assert_eq!(plain(&tagged(MAX_TAGS).bytes()).meta.dscp.value(), 46);
        let Dissected { meta, layout, .. } = plain(&tagged(MAX_TAGS + 1).bytes());
        assert_eq!((meta.network_offset, meta.flow.ethertype, meta.flow.vlan), (14, 0x8100, 1));
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
    fn a_dscp_is_read_by_ethertype_whatever_version_the_packet_claims() {
        for (byte, packet) in
            [(0x60, Packet::tcp()), (0x4b, Packet { ip: TestIp::v6(), ..Packet::tcp() })]
        {
            let mut frame = Packet { tos: 0xb9, ..packet }.bytes();
            let expected = plain(&frame);
            frame[14] = byte;
            let Dissected { meta, layout, .. } = plain(&frame);
            let known = Layout { transport: None, ..expected.layout };
            assert_eq!((meta.dscp, layout), (expected.meta.dscp, known));
            // Whose packet it is, it does not say.
            assert_eq!((meta.flow.source, meta.flow.destination), (0, 0));
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
                let has_dscp = len >= packet.network_offset() + 2;
                assert_eq!(meta.dscp.value(), if has_dscp { 46 } else { 0 }, "cut to {len}");
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
            let key_id = meta.flow.key_id;
            assert_eq!(meta.flow, FlowKey { key_id, ..flow(inner) });
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
    fn tunnels_are_told_apart_by_their_keys() {
        let key = |header: &[u8]| flow(&raw(47, [header, &inner(&Packet::tcp())].concat())).key_id;
        assert_eq!(key(&[0, 0, 8, 0]), 0);
        assert_eq!(key(&[0x20, 0, 8, 0, 0, 0, 1, 2]), 0x102);
        assert_eq!(key(&[0xb0, 0, 8, 0, 9, 9, 9, 9, 0, 0, 1, 2, 7, 7, 7, 7]), 0x102);
    }

    #[test]
    fn a_pppoe_session_has_the_flows_of_what_is_inside() {
        for (protocol, packet) in
            [(0x21, Packet::tcp()), (0x57, Packet { ip: TestIp::v6(), ..Packet::tcp() })]
        {
            let mut frame = vec![2; 12];
            frame.extend([0x88, 0x64, 0x11, 0, 0, 1, 0, 0, 0, protocol]);
            frame.extend(inner(&Packet { tos: 0xb8, ..packet.clone() }));
            let Dissected { meta, layout, .. } = plain(&frame);
            assert_eq!(meta.flow, flow(&packet));
            assert_eq!((meta.dscp, layout.network), (Dscp::default(), Network::Other));
            assert_eq!(meta.network_offset, 14);
        }
    }

    #[test]
    fn what_is_authenticated_is_told_apart_by_its_spi() {
        let header = |spi: u8| {
            [&[6, 4, 0, 0, 0, 0, 0, spi, 0, 0, 0, 1][..], &[0; 12], &inner(&Packet::tcp())[20..]]
                .concat()
        };
        let key = flow(&raw(51, header(7)));
        assert_eq!((key.ip_proto, ports(key)), (51, (0, 7)));
        assert_ne!(key, flow(&raw(51, header(8))));
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
