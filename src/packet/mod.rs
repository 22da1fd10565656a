//! Frames: what the core needs to know of them, and what it may ask of them.
//!
//! The core never parses a header. [`dissect()`] turns bytes into a [`Meta`] (what the discipline decides
//! by) and a [`Layout`] (where in the bytes things stand, for whoever rewrites them). What is queued is
//! anything that implements [`Frame`].

mod bytes;
pub mod checksum;
pub mod coalesce;
pub mod dissect;
pub mod ecn;
pub mod memory;
pub mod nat;
pub mod rtt;
pub mod split;
pub mod tcp;
#[cfg(test)]
pub(crate) mod testing;
pub mod vnet;

pub use dissect::{Dissected, Refused, dissect};
pub use memory::truesize;
pub use rtt::{Direction, RttTable, Sighting};
pub use split::{Checksums, MAX_HEADERS, Run, whole, write_run};
pub use tcp::TcpHeader;
pub use vnet::VnetHeader;

use crate::time::{Instant, Span};
use crate::units::{FrameLen, MemSize};

/// An EtherType: IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// An EtherType: IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// An EtherType: ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;

/// What a discipline needs to know of a frame; everything it decides by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Length of the frame as it was read. For a superpacket, of the whole of it with its one set of
    /// headers; see [`Meta::counted_len`].
    pub len: FrameLen,
    /// Bytes from the start of the frame to the IP header (spec §7.1); 14 on plain Ethernet.
    pub network_offset: u16,
    /// Differentiated services code point; 0x38 for ARP, 0 where there is none (spec §3.5).
    pub dscp: Dscp,
    /// What the frame says of congestion.
    pub ecn: Ecn,
    /// Who talks to whom.
    pub flow: FlowKey,
    /// How the frame divides; [`Segments::ONE`] unless it is a superpacket.
    pub segments: Segments,
    /// Memory that the frame is charged for while it is queued whole, normally [`truesize()`] of its length
    /// and never less than it holds. Segments of a train are charged by their own lengths.
    pub truesize: MemSize,
    /// The packet mark (`SO_MARK`, nftables); 0 from ports that carry none.
    pub mark: u32,
    /// The packet priority, `major:minor`; 0 from ports that carry none.
    pub priority: u32,
    /// What somebody who classified the frame before says of its flow and hosts; nothing from ports.
    pub overrides: Overrides,
    /// The smallest round-trip time known of the frame's flow; `None` from whoever does not know. See
    /// [`RttTable`].
    pub min_rtt: Option<Span>,
}

/// A verdict on flow and hosts from outside (spec §4.6): in Linux the class id a filter gives.
///
/// Only the numbers 1…1024 say anything. A verdict that a frame is to be dropped is not among them: whoever
/// comes to it does not hand the frame in.
///
/// ```
/// use ucake::packet::Overrides;
/// let overrides = Overrides::from_class(0x0003_0007);
/// assert_eq!((overrides.host(), overrides.flow()), (Some(3), Some(7)));
/// assert_eq!(Overrides::from_class(0xffff_0000), Overrides::NONE);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    host: u16,
    flow: u16,
}

impl Overrides {
    /// Addresses and ports speak for themselves.
    pub const NONE: Self = Self { host: 0, flow: 0 };
    /// The largest number that says anything.
    const MOST: u16 = 1024;

    /// What a class id `major:minor` says: the minor number names the flow, the major one the host.
    #[must_use]
    pub const fn from_class(class: u32) -> Self {
        const fn checked(number: u32) -> u16 {
            let number = (number & 0xffff) as u16;
            if number <= Overrides::MOST { number } else { 0 }
        }
        Self { host: checked(class >> 16), flow: checked(class) }
    }

    /// The flow's number, 1…1024, if one was given.
    #[must_use]
    pub const fn flow(self) -> Option<u16> {
        if self.flow == 0 { None } else { Some(self.flow) }
    }

    /// The number of the host, source and destination alike, 1…1024, if one was given.
    #[must_use]
    pub const fn host(self) -> Option<u16> {
        if self.host == 0 { None } else { Some(self.host) }
    }
}

impl Meta {
    /// The length that counts: each segment with headers of its own, as if the superpacket had been
    /// split (the kernel's `qdisc_pkt_len`).
    #[must_use]
    pub fn counted_len(&self) -> FrameLen {
        let extra = u32::from(self.segments.count.saturating_sub(1));
        FrameLen(self.len.0.saturating_add(extra * u32::from(self.segments.header_len)))
    }

    /// Length on its own of segment number `index` (from 0), headers included.
    #[must_use]
    pub fn segment_len(&self, index: u16) -> FrameLen {
        let Segments { count, mss, header_len } = self.segments;
        if count <= 1 {
            return self.len;
        }
        if index < count - 1 {
            return FrameLen(u32::from(mss) + u32::from(header_len));
        }
        FrameLen(self.len.0.saturating_sub(u32::from(mss) * u32::from(count - 1)))
    }
}

/// How a superpacket divides. Every segment but the last carries `mss` bytes behind its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Number of segments, at least 1.
    pub count: u16,
    /// Payload bytes of every segment but the last; 0 if there is one.
    pub mss: u16,
    /// Bytes of headers before the payload, link layer included; 0 if there is one segment.
    pub header_len: u16,
}

impl Segments {
    /// An ordinary frame.
    pub const ONE: Self = Self { count: 1, mss: 0, header_len: 0 };
}

impl Default for Segments {
    fn default() -> Self {
        Self::ONE
    }
}

/// A differentiated services code point, 0…63 (RFC 2474).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// Class selector 7; what ARP is treated as (spec §3.5).
    pub const CS7: Self = Self(0x38);

    /// The code point in the upper six bits of a TOS or traffic class byte.
    #[must_use]
    pub const fn from_tos(tos: u8) -> Self {
        Self(tos >> 2)
    }

    /// The code point `value & 63`.
    #[must_use]
    pub const fn new(value: u8) -> Self {
        Self(value & 63)
    }

    /// The code point, 0…63.
    #[must_use]
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// The ECN field (RFC 3168 §5); [`Ecn::NotEct`] for what is not IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The sender does not speak ECN: congestion is told by dropping.
    #[default]
    NotEct,
    /// ECN-capable, code point 01.
    Ect1,
    /// ECN-capable, code point 10.
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// The field in the lower two bits of a TOS or traffic class byte.
    #[must_use]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Whether CE can be set, or is already (spec, kernel notions: ECN "set CE").
    #[must_use]
    pub const fn takes_ce(self) -> bool {
        !matches!(self, Self::NotEct)
    }
}

/// Who talks to whom (spec §4.2): the keys the flow and host hashes are made of.
///
/// Addresses are numbers: an IPv4 address in the low 32 bits, with `ethertype` to tell the families
/// apart. Fields that do not apply are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// EtherType behind all VLAN tags that were read.
    pub ethertype: u16,
    /// VLAN id of the outermost tag, its priority in the upper three bits; 0 without one.
    pub vlan: u16,
    /// Protocol identifier of that tag (0x8100, 0x88a8), 0 without one.
    pub vlan_kind: u16,
    /// IP protocol or last IPv6 next header.
    pub ip_proto: u8,
    /// IPv6 flow label; where it is not 0, ports are not looked at.
    pub flow_label: u32,
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
    /// Source port; 0 in fragments, first ones included.
    pub source_port: u16,
    /// Destination port; 0 in fragments, first ones included.
    pub destination_port: u16,
    /// Key of the innermost GRE header that has one.
    pub key_id: u32,
}

impl FlowKey {
    /// Whether the frame has addresses to be fair by.
    #[must_use]
    pub const fn is_ip(&self) -> bool {
        matches!(self.ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6)
    }
}

/// What can be queued.
///
/// The discipline decides; the frame does as it is told. Implemented by the pooled buffers of `io`, by
/// the frames of `sim`, and by whatever a user of the library wants to queue.
pub trait Frame: Sized {
    /// Tells the receiver of congestion: sets CE. Returns false if the frame cannot say so (not
    /// ECN-capable, not IP); true if it can or already did.
    fn mark_ce(&mut self) -> bool;

    /// Clears the DSCP, keeping ECN (spec §3.5). Returns false if the header cannot be written, and
    /// then nothing was changed.
    fn wash(&mut self) -> bool;

    /// A handle to segment number `index` (from 0) of a superpacket, independent of the others: marking
    /// it marks that segment alone. Called once for each index, in order; nothing is copied.
    #[must_use]
    fn segment(&self, index: u16) -> Self;

    /// The TCP header, if there is one; of a superpacket, that of its first segment. Asked for only
    /// while ACKs are filtered, again and again, so that it need not be kept. A frame that answers
    /// `None`, as all do that do not know better, is neither filtered nor has others filtered.
    #[must_use]
    fn tcp(&self) -> Option<TcpHeader> {
        None
    }

    /// Is told why it will not leave; what is dropped by a discipline goes through here. For frames that keep a
    /// record of themselves; others just go.
    fn lost(self, _loss: Loss) {}
}

/// Why and where a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Who decided so.
    pub by: DroppedBy,
    /// Its queue, `(tin, queue)`, as in `Departure::queue`.
    pub queue: (u8, u16),
    /// When it was queued.
    pub enqueued_at: Instant,
}

/// Who drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedBy {
    /// CoDel: its queue stands, and its sender is told (spec §5.5).
    Codel,
    /// BLUE: its sender does not react to CoDel (spec §5.5 step 6).
    Blue,
    /// The memory limit: its queue is the one that holds most (spec §9).
    Memory,
    /// The ACK filter: a later ACK says as much (spec §8).
    AckFilter,
}

/// Where in a frame's bytes things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The network layer found.
    pub network: Network,
    /// Bytes from the start of the frame to the network header.
    pub network_offset: u16,
    /// What the frame says of congestion.
    pub ecn: Ecn,
    /// The TCP or UDP header of the outermost packet: which, and bytes from the start of the frame to it.
    /// Not behind an authentication header and not in fragments; the header may be cut short.
    pub transport: Option<(Transport, u16)>,
    /// Set if the frame is a superpacket that can be split.
    pub train: Option<Train>,
}

/// The network layer of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Neither, or cut short before the end of the header.
    #[default]
    Other,
}

/// A superpacket, ready to be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// TCP or UDP segments.
    pub transport: Transport,
    /// How it divides; `segments.count` ≥ 2.
    pub segments: Segments,
    /// Bytes from the start of the frame to the TCP or UDP header.
    pub transport_offset: u16,
}

/// The transport of a superpacket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP segmentation offload.
    Tcp,
    /// UDP segmentation offload (USO).
    Udp,
}
