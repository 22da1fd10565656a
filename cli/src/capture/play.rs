//! A capture through CAKE, on a virtual clock.
//!
//! Law: time jumps from event to event, which are frames that come and wake-ups of the shaper. Frames of one instant
//! come together, before any of them may leave. A frame that is earlier than the one before it comes with that.
//! Frames longer than the link's are trains: their segment size is taken to be what the link's frames hold, since a
//! capture does not say it. Where less was captured than there was, the frame has its original length
//! for CAKE, and as many bytes as exist in the capture that is written.
//! Left out: round-trip times (a capture is one direction here, and `auto-split-gso` gives no flow an extra) and
//! address translation.

use std::io::{self, Write};

use ucake::io::pool::{Fill, FrameBuf, Pool, Received, Scratch};
use ucake::packet::{
    Checksums, Frame, Network, Refused, TcpHeader, Transport, VnetHeader, checksum, dissect,
};
use ucake::qdisc::{Cake, Config, Dequeue, Discipline as _, Entropy, SplitGso, Stats};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, MemSize};

use super::read::Record;
use super::trace::{Ahead, Tracer};
use super::write::Writer;

/// The virtual time of the first frame.
pub const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
/// The longest frame there is: a superpacket with two VLAN tags.
const LONGEST: usize = 65_536 + 22;
/// Bytes of an Ethernet header.
const ETHERNET_LEN: u32 = 14;

/// A frame on its way through.
pub struct Traveller {
    buffer: FrameBuf,
    /// Its number in the capture.
    pub(super) number: u64,
    /// Of a train, which segment.
    pub(super) segment: u16,
    /// Bytes of the whole frame that were captured.
    captured: u32,
    /// What had left when it came.
    pub(super) ahead: Ahead,
}

impl Traveller {
    pub(super) fn is_of_train(&self) -> bool {
        self.buffer.piece().layout.train.is_some()
    }

    pub(super) fn segments(&self) -> u16 {
        self.buffer.segments()
    }

    /// How many of its `len` bytes were captured.
    fn exists(&self, len: usize) -> usize {
        let captured = self.captured as usize;
        let train = self.buffer.piece().layout.train;
        let Some(train) = train.filter(|_| self.buffer.segments() == 1) else {
            return captured.min(len);
        };
        let headers = usize::from(train.segments.header_len);
        let before = usize::from(train.segments.mss) * usize::from(self.segment);
        match captured.checked_sub(headers) {
            Some(payload) => len.min(headers + payload.saturating_sub(before)),
            None => captured,
        }
    }
}

impl Frame for Traveller {
    fn mark_ce(&mut self) -> bool {
        self.buffer.mark_ce()
    }

    fn wash(&mut self) -> bool {
        self.buffer.wash()
    }

    fn segment(&self, index: u16) -> Self {
        Self { buffer: self.buffer.segment(index), segment: index, ..*self }
    }

    fn tcp(&self) -> Option<TcpHeader> {
        self.buffer.tcp()
    }
}

/// What is to be played, apart from the capture.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// CAKE.
    pub config: Config,
    /// The longest frame of the link, Ethernet header included.
    pub mtu: FrameLen,
    /// What everything random follows from.
    pub seed: u64,
}

/// Frames that did not come as they were captured, or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Earlier than the frame before.
    pub went_back: u64,
    /// Less captured than there was.
    pub snapped: u64,
    /// Trains, by their length.
    pub trains: u64,
    /// Left out: shorter than an Ethernet header.
    pub runts: u64,
    /// Left out: longer than any frame.
    pub too_long: u64,
    /// Left out: a train that is not what it seems.
    pub refused: u64,
}

impl Oddities {
    /// One line for each kind of frame that was not taken as it is.
    pub fn remarks(&self) -> Vec<String> {
        let Self { went_back, snapped, trains, runts, too_long, refused } = *self;
        [
            (went_back, "came before the frame in front of them: taken to come with it"),
            (snapped, "were captured in part: shaped by their whole length"),
            (trains, "are longer than the link's: taken for trains"),
            (runts, "left out: shorter than an Ethernet header"),
            (too_long, "left out: longer than any frame"),
            (refused, "left out: longer than the link's, and headers do not fit"),
        ]
        .iter()
        .filter(|&&(count, _)| count > 0)
        .map(|(count, what)| format!("{count} frames {what}"))
        .collect()
    }
}

/// Plays a capture.
pub struct Player<W, T> {
    cake: Cake<Traveller, T>,
    divides: bool,
    mtu: FrameLen,
    pool: Pool,
    scratch: Scratch,
    out: Writer<W>,
    now: Instant,
    /// The captured time of the first frame.
    first: Option<i64>,
    oddities: Oddities,
}

impl<W: Write, T: Tracer> Player<W, T> {
    /// Nothing played yet.
    ///
    /// # Errors
    /// Those of `out`, which gets the header of a capture.
    pub fn new(terms: &Terms, out: W, trace: T) -> io::Result<Self> {
        let entropy = Entropy::from_seed(terms.seed);
        Ok(Self {
            cake: Cake::observed(terms.config, terms.mtu, entropy, trace),
            divides: terms.config.split_gso != SplitGso::Whole,
            mtu: terms.mtu,
            pool: Pool::new(),
            scratch: Scratch::new(),
            out: Writer::new(out)?,
            now: BEGIN,
            first: None,
            oddities: Oddities::default(),
        })
    }

    /// A frame comes.
    ///
    /// # Errors
    /// What left before it cannot be written.
    pub fn play(&mut self, record: &Record<'_>) -> io::Result<()> {
        let first = *self.first.get_or_insert(record.at);
        let at = BEGIN + Span::from_nanos(record.at.saturating_sub(first));
        if at > self.now {
            self.pass_until(at)?;
            self.now = at;
        } else if at < self.now {
            self.oddities.went_back += 1;
        }
        let Some((buffer, mut meta)) = self.take_in(record)? else { return Ok(()) };
        let captured = u32::try_from(record.bytes.len()).unwrap_or(u32::MAX);
        self.oddities.snapped += u64::from(captured < meta.len.0);
        self.oddities.trains += u64::from(meta.segments.count > 1);
        meta.min_rtt = None;
        let ahead = Ahead::default();
        let frame = Traveller { buffer, number: record.number, segment: 0, captured, ahead };
        self.cake.enqueue(frame, &meta, self.now);
        Ok(())
    }

    /// Lets all that is queued leave.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn drain(&mut self) -> io::Result<()> {
        self.pass_until(Instant::MAX)
    }

    /// Leaves off: what is queued goes nowhere, and the trace says so of each packet. Afterwards nothing is queued, and
    /// [`stats`](Self::stats) have counted it as if it had left; who wants them asks before.
    pub fn abandon(&mut self) {
        self.cake.observer_mut().end();
        while self.cake.release(self.now).is_some() {}
    }

    /// Has everything written.
    ///
    /// # Errors
    /// Anything could not be written, now or before.
    pub fn finish(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.cake.observer_mut().finish()
    }

    /// What it has come to.
    pub fn stats(&self) -> Stats {
        self.cake.stats()
    }

    /// The configuration as autorate left it.
    pub fn config(&self) -> &Config {
        self.cake.config()
    }

    /// Frames that were not taken as they are.
    pub fn oddities(&self) -> &Oddities {
        &self.oddities
    }

    /// Lets leave what may before `end`.
    fn pass_until(&mut self, end: Instant) -> io::Result<()> {
        loop {
            match self.cake.dequeue(self.now) {
                Dequeue::Send(departure) => self.write(&departure.frame)?,
                Dequeue::Wait(wake) if wake.at >= end => return self.trace_written(),
                Dequeue::Wait(wake) => self.now = self.now.max(wake.at),
                Dequeue::Idle => return self.trace_written(),
            }
        }
    }

    fn trace_written(&mut self) -> io::Result<()> {
        let trace = self.cake.observer_mut();
        if trace.has_failed() { trace.finish() } else { Ok(()) }
    }

    fn write(&mut self, frame: &Traveller) -> io::Result<()> {
        let first = self.first.unwrap_or_default();
        let at = first.saturating_add((self.now - BEGIN).nanos());
        let Some(wire) = frame.buffer.wire(Checksums::Complete, &mut self.scratch) else {
            return Ok(());
        };
        let len = wire.frame_len();
        let exists = frame.exists(len);
        let head = wire.head.get(VnetHeader::LEN..).unwrap_or_default();
        let head = head.get(..exists).unwrap_or(head);
        let payload = wire.payload.get(..exists - head.len()).unwrap_or(wire.payload);
        self.out.frame(at, u32::try_from(len).unwrap_or(u32::MAX), [head, payload])
    }

    /// A frame in a buffer; `None` of what is left out.
    fn take_in(
        &mut self,
        record: &Record<'_>,
    ) -> io::Result<Option<(FrameBuf, ucake::packet::Meta)>> {
        let bytes = record.bytes;
        let len = bytes.len().max(record.original_len as usize);
        if len > LONGEST {
            self.oddities.too_long += 1;
            return Ok(None);
        }
        let train = if len > self.mtu.0 as usize { self.train(bytes, len) } else { Ok(None) };
        let Ok(train) = train else {
            self.oddities.refused += 1;
            return Ok(None);
        };
        let divides = self.divides;
        let fill = self.pool.fill_with(len, |room| {
            let end = VnetHeader::LEN + len;
            let (head, rest) = room.split_at_mut(VnetHeader::LEN);
            let (frame, missing) = rest[..len].split_at_mut(bytes.len());
            frame.copy_from_slice(bytes);
            missing.fill(0);
            let vnet = train.as_ref().map_or(VnetHeader::PLAIN, |train| train.vnet);
            head.copy_from_slice(&vnet.encode());
            if let Some(train) = train.filter(|_| divides)
                && let Some(field) = rest.get_mut(train.checksum_at..train.checksum_at + 2)
            {
                field.copy_from_slice(&train.pseudo_sum.to_be_bytes());
            }
            Ok(end)
        })?;
        Ok(match fill {
            Fill::Frame(Received { frame, meta }) => Some((frame, meta)),
            Fill::Runt => {
                self.oddities.runts += 1;
                None
            }
            Fill::Truncated => {
                self.oddities.too_long += 1;
                None
            }
            Fill::Refused(_) => {
                self.oddities.refused += 1;
                None
            }
        })
    }

    /// What a frame longer than the link's says of itself, as a tap would say it; `None` for what has to stay whole.
    fn train(&self, bytes: &[u8], len: usize) -> Result<Option<Superpacket>, Refused> {
        let found = dissect(bytes, &VnetHeader::PLAIN, MemSize(len as u64))?;
        let layout = found.layout;
        let network = usize::from(layout.network_offset);
        let room = self.mtu.0.saturating_sub(ETHERNET_LEN) as usize;
        let Some((transport, at)) = layout.transport.filter(|_| len - network.min(len) > room)
        else {
            return Ok(None);
        };
        let start = usize::from(at);
        let header = match transport {
            Transport::Tcp => {
                let Some(byte) = bytes.get(start + 12) else { return Err(Refused::HeadersCut) };
                usize::from(byte >> 4) * 4
            }
            Transport::Udp => 8,
        };
        let Some(mss) = room.checked_sub(start + header - network).filter(|&mss| mss > 0) else {
            return Err(Refused::ZeroSegment);
        };
        let (addresses, protocol) = match layout.network {
            Network::Ipv4 => (network + 12..network + 20, VnetHeader::GSO_TCPV4),
            Network::Ipv6 => (network + 8..network + 40, VnetHeader::GSO_TCPV6),
            Network::Other => return Ok(None),
        };
        let addresses = bytes.get(addresses).ok_or(Refused::HeadersCut)?;
        let (gso_type, number, csum_offset) = match transport {
            Transport::Tcp => (protocol, 6, 16),
            Transport::Udp => (VnetHeader::GSO_UDP_L4, 17, 6),
        };
        let of_transport = u16::try_from(len - start).map_err(|_| Refused::TooLong)?;
        let vnet = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type,
            hdr_len: u16::try_from(start + header).map_err(|_| Refused::HeadersTooLong)?,
            gso_size: u16::try_from(mss).map_err(|_| Refused::TooLong)?,
            csum_start: at,
            csum_offset,
        };
        let sum = checksum::add(checksum::sum(addresses), number);
        Ok(Some(Superpacket {
            vnet,
            checksum_at: start + usize::from(csum_offset),
            pseudo_sum: checksum::add(sum, of_transport),
        }))
    }
}

/// What has to be said in front of a superpacket, and put into its checksum field.
#[derive(Clone, Copy)]
struct Superpacket {
    vnet: VnetHeader,
    checksum_at: usize,
    pseudo_sum: u16,
}
