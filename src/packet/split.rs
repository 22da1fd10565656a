//! Superpackets to frames: a run of segments with headers of its own.
//!
//! Problem: CAKE decides segment by segment, but one write of a superpacket costs a tenth of the writes of
//! its segments. So a superpacket is queued whole, and what leaves together is written together.
//! Source: RFC 9293 §3.1 (sequence numbers, flags), RFC 3168 §6.1.2 (CWR), RFC 6864 §4 and Linux's habit for
//! the IPv4 id, virtio for the header in front.
//! Law: a *run* is neighbouring segments `first..end`. Splitting a train into runs, and those into runs
//! again, gives the same bytes as splitting it at once. Nothing in a header is computed afresh that was
//! not computed afresh by the sender's own device: checksums are updated by what changed, so that a broken one
//! stays broken.
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

/// The most bytes of headers a superpacket may have: Ethernet with three tags, IP, and the longest TCP
/// header need 146 with IPv4; the rest is room for IPv6 extension headers, which Linux itself does not
/// put on superpackets in any number.
pub const MAX_HEADERS: usize = 256;

/// How a port wants transport checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// As they come: the port takes `NEEDS_CSUM`.
    Partial,
    /// Finished: the port takes plain frames only. A run of more than one segment is not a plain frame and
    /// stays unfinished all the same; such a port is to be given runs of one.
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
/// `frame`, `vnet` and `layout` belong together as [`dissect()`](super::dissect()) gave them. The headers
/// go to the start of `headers`, of which [`MAX_HEADERS`] bytes always suffice; the frame itself is not
/// touched. `None` if the frame is no train or has no such segments.
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
/// checksum if the port wants that. `vnet` is [`Dissected::vnet`](super::Dissected::vnet); returned is what
/// to write in front.
///
/// A superpacket's checksum cannot be finished. It is left alone here, for ports that take superpackets.
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
