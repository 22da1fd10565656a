//! Reading a capture, frame by frame.
//!
//! Law: nothing in a file is believed; what cannot be replayed is counted by its reason, and damage ends the reading
//! where it is.
//! Left out: link types other than Ethernet, whose frames have no place in an Ethernet capture.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, PcapHeader, create_reader};

/// Bytes read at once: little enough to stay in the processor's cache.
const CHUNK: usize = 256 << 10;
/// The largest block that is read.
const LARGEST_BLOCK: usize = 64 << 20;
/// Of a block of pcapng: its type, and twice its length (draft-ietf-opsawg-pcapng, section 3.1).
const LEAST_BLOCK: u32 = 12;
/// Ethernet, in the registry of link types.
pub const ETHERNET: u32 = 1;
/// The latest time that a classic capture can tell, in nanoseconds.
const LATEST: i64 = u32::MAX as i64 * 1_000_000_000;

/// A frame of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its number among all frames of the file, from 1.
    pub number: u64,
    /// When it was captured, in nanoseconds since 1970.
    pub at: i64,
    /// Its length on the link, of which less may have been captured.
    pub original_len: u32,
    /// What was captured.
    pub bytes: &'a [u8],
}

/// Why a capture cannot be replayed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// Another kind of file, or less of one than its header.
    #[error("this is neither a pcap nor a pcapng file")]
    Unknown,
    /// Reading failed.
    #[error("the file cannot be read")]
    Read,
    /// All of it is of a link type that cannot be replayed.
    #[error("link type {} cannot be replayed, only Ethernet can", LinkType(*.0))]
    LinkType(u32),
}

/// What was met on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Frames in the file, replayed or not.
    pub frames: u64,
    /// Frames of link types that cannot be replayed.
    pub link_types: BTreeMap<u32, u64>,
    /// Frames without a time, or of an interface that the file does not describe.
    pub timeless: u64,
    /// Whether the file ends in the middle of something.
    pub cut_short: bool,
    /// Whether something in the middle of it is not as the format says.
    pub damaged: bool,
}

/// A link type by name and number.
struct LinkType(u32);

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "NULL",
            12 | 101 => "RAW (IP without Ethernet)",
            105 => "IEEE802_11",
            113 => "LINUX_SLL (the device \"any\")",
            127 => "IEEE802_11_RADIOTAP",
            228 => "IPV4",
            229 => "IPV6",
            276 => "LINUX_SLL2 (the device \"any\")",
            other => return write!(f, "{other}"),
        };
        write!(f, "{} {name}", self.0)
    }
}

impl Findings {
    /// One line for each kind of thing that was not replayed.
    pub fn complaints(&self) -> Vec<String> {
        let mut lines: Vec<_> = self
            .link_types
            .iter()
            .map(|(&kind, count)| format!("{count} frames left out: link type {}", LinkType(kind)))
            .collect();
        if self.timeless > 0 {
            lines.push(format!("{} frames left out: without a time", self.timeless));
        }
        if self.cut_short {
            lines.push(format!("the capture is cut short after {} frames", self.frames));
        }
        if self.damaged {
            lines.push(format!("the capture is damaged after {} frames", self.frames));
        }
        lines
    }
}

/// How an interface of a pcapng section tells time, and what its frames are.
#[derive(Clone, Copy)]
struct Interface {
    link_type: u32,
    ticks_per_second: Option<u64>,
    offset: i64,
    snaplen: u32,
}

/// A capture that is being read.
pub struct Capture<'r> {
    reader: Box<dyn PcapReaderIterator + Send + 'r>,
    state: State,
}

#[derive(Default)]
struct State {
    header: Option<PcapHeader>,
    /// Whether the pcapng section is big-endian; `None` in a pcap file.
    is_big: Option<bool>,
    /// Those of the section.
    interfaces: Vec<Interface>,
    findings: Findings,
}

impl<'r> Capture<'r> {
    /// Looks at the beginning of a file.
    ///
    /// # Errors
    /// It is no capture.
    pub fn new(file: impl Read + Send + 'r) -> Result<Self, CaptureError> {
        let reader = create_reader(CHUNK, Filled(file)).map_err(|error| match error {
            PcapError::Eof => CaptureError::Empty,
            PcapError::ReadError => CaptureError::Read,
            _ => CaptureError::Unknown,
        })?;
        Ok(Self { reader, state: State::default() })
    }

    /// Hands each frame to `each` until that breaks or the capture ends.
    ///
    /// # Errors
    /// It cannot be read, or all of it is of a link type that cannot be replayed. Damage is no error but a finding.
    pub fn read<B>(
        mut self,
        mut each: impl FnMut(Record<'_>) -> ControlFlow<B>,
    ) -> Result<(Option<B>, Findings), CaptureError> {
        let mut broken = None;
        while broken.is_none() {
            if self.state.is_too_short(self.reader.data()) {
                self.state.findings.damaged = true;
                break;
            }
            match self.reader.next() {
                Ok((offset, block)) => {
                    if let Some(record) = self.state.record(&block)?
                        && let ControlFlow::Break(value) = each(record)
                    {
                        broken = Some(value);
                    }
                    self.reader.consume_noshift(offset);
                }
                Err(PcapError::Eof) => break,
                Err(PcapError::ReadError) => return Err(CaptureError::Read),
                Err(PcapError::Incomplete(_) | PcapError::BufferTooSmall) => {
                    if !self.more()? {
                        break;
                    }
                }
                Err(PcapError::UnexpectedEof) => {
                    self.state.findings.cut_short = !self.reader.data().is_empty();
                    break;
                }
                Err(_) => {
                    self.state.findings.damaged = true;
                    break;
                }
            }
        }
        let findings = self.state.findings;
        let left_out: u64 = findings.link_types.values().sum();
        match findings.link_types.first_key_value() {
            Some((&kind, _)) if left_out == findings.frames => Err(CaptureError::LinkType(kind)),
            _ => Ok((broken, findings)),
        }
    }

    /// Reads on; false if there is no use in it.
    fn more(&mut self) -> Result<bool, CaptureError> {
        let before = self.reader.data().len();
        if self.reader.refill().is_err() {
            return Err(CaptureError::Read);
        }
        let after = self.reader.data().len();
        if after > before || self.reader.reader_exhausted() {
            return Ok(true);
        }
        // Full, and still not a whole block.
        if after < LARGEST_BLOCK && self.reader.grow(after.max(CHUNK) * 2) {
            return Ok(true);
        }
        self.state.findings.damaged = true;
        Ok(false)
    }
}

impl State {
    /// Whether the block of pcapng at the beginning of `data` says it is shorter than any: `pcap_parser` would calculate with less than
    /// nothing.
    fn is_too_short(&self, data: &[u8]) -> bool {
        let said = data.get(4..).and_then(|rest| rest.first_chunk::<4>());
        match (said, self.is_big) {
            (Some(said), Some(true)) => u32::from_be_bytes(*said) < LEAST_BLOCK,
            (Some(said), Some(false)) => u32::from_le_bytes(*said) < LEAST_BLOCK,
            _ => false,
        }
    }

    /// The frame in a block, if it has one that can be replayed.
    fn record<'a>(
        &mut self,
        block: &'a PcapBlockOwned<'a>,
    ) -> Result<Option<Record<'a>>, CaptureError> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let kind = link_type(header.network);
                if kind != ETHERNET {
                    return Err(CaptureError::LinkType(kind));
                }
                self.header = Some(header.clone());
                Ok(None)
            }
            PcapBlockOwned::Legacy(frame) => {
                self.findings.frames += 1;
                let nanos = self.header.as_ref().is_some_and(PcapHeader::is_nanosecond_precision);
                let fraction = i64::from(frame.ts_usec) * if nanos { 1 } else { 1000 };
                let at = i64::from(frame.ts_sec) * 1_000_000_000 + fraction;
                Ok(Some(self.found(at.min(LATEST), frame.origlen, frame.data, frame.caplen)))
            }
            PcapBlockOwned::NG(block) => Ok(self.of_section(block)),
        }
    }

    fn of_section<'a>(&mut self, block: &'a Block<'a>) -> Option<Record<'a>> {
        match block {
            Block::SectionHeader(section) => {
                self.is_big = Some(section.big_endian());
                self.interfaces.clear();
            }
            Block::InterfaceDescription(interface) => self.interfaces.push(Interface {
                link_type: link_type(interface.linktype),
                ticks_per_second: ticks_per_second(interface.if_tsresol),
                // `pcap_parser` takes it for little-endian always.
                offset: match self.is_big {
                    Some(true) => interface.if_tsoffset.swap_bytes(),
                    _ => interface.if_tsoffset,
                },
                snaplen: interface.snaplen,
            }),
            Block::EnhancedPacket(frame) => {
                self.findings.frames += 1;
                let interface = self.interfaces.get(frame.if_id as usize).copied();
                let interface = self.replayable(interface)?;
                let ticks = u64::from(frame.ts_high) << 32 | u64::from(frame.ts_low);
                let at = self.timed(ticks, &interface)?;
                return Some(self.found(at, frame.origlen, frame.data, frame.caplen));
            }
            Block::SimplePacket(_) => {
                self.findings.frames += 1;
                let first = self.interfaces.first().copied();
                if self.replayable(first).is_some_and(|interface| interface.snaplen < u32::MAX) {
                    self.findings.timeless += 1;
                }
            }
            _ => {}
        }
        None
    }

    fn replayable(&mut self, interface: Option<Interface>) -> Option<Interface> {
        match interface {
            Some(interface) if interface.link_type == ETHERNET => return Some(interface),
            Some(interface) => {
                *self.findings.link_types.entry(interface.link_type).or_default() += 1;
            }
            None => self.findings.timeless += 1,
        }
        None
    }

    /// Nanoseconds since 1970.
    fn timed(&mut self, ticks: u64, interface: &Interface) -> Option<i64> {
        let Some(per_second) = interface.ticks_per_second else {
            self.findings.timeless += 1;
            return None;
        };
        let nanos = i128::from(ticks) * 1_000_000_000 / i128::from(per_second)
            + i128::from(interface.offset) * 1_000_000_000;
        i64::try_from(nanos.clamp(0, i128::from(LATEST))).ok()
    }

    fn found<'a>(&self, at: i64, original_len: u32, data: &'a [u8], captured: u32) -> Record<'a> {
        // Blocks are padded.
        let bytes = data.get(..captured as usize).unwrap_or(data);
        Record { number: self.findings.frames, at, original_len, bytes }
    }
}

/// By the option `if_tsresol`: places of a second after the point, decimal ones or, with the upper bit set, binary ones. `None`
/// if that is more than can be counted. (`pcap_parser` does not know the binary ones.)
fn ticks_per_second(resolution: u8) -> Option<u64> {
    let places = u32::from(resolution & 0x7f);
    let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(places)
}

/// Without the bits that tell of checksums behind frames.
fn link_type(kind: Linktype) -> u32 {
    u32::try_from(kind.0 & 0xffff).unwrap_or(u32::MAX)
}

/// Reads as much as there is room for, as the first look at a file asks for its header in one piece.
struct Filled<R>(R);

impl<R: Read> Read for Filled<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.0.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Counts what is read, for who shows how far it has come.
pub struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R> Counted<R> {
    /// A reader, and the number of bytes read so far.
    pub fn new(inner: R) -> (Self, Arc<AtomicU64>) {
        let bytes = Arc::<AtomicU64>::default();
        (Self { inner, bytes: Arc::clone(&bytes) }, bytes)
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(room)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section with an interface whose times are in units of `resolution` after 1000 s, and an empty frame at `ticks`.
    fn section(is_big: bool, resolution: u8, ticks: u32) -> Vec<u8> {
        let word = |word: u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        let short = |word: u16| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        let offset = if is_big { 1000_i64.to_be_bytes() } else { 1000_i64.to_le_bytes() };
        let block = |kind: u32, body: &[u8]| {
            let len = word(u32::try_from(body.len() + 12).expect("short enough"));
            [&word(kind), &len, body, &len].concat()
        };
        let header = [&word(0x1a2b_3c4d)[..], &short(1), &short(0), &[0xff; 8]].concat();
        let ticks_option = [&short(9)[..], &short(1), &[resolution, 0, 0, 0]].concat();
        let offset_option = [&short(14)[..], &short(8), &offset].concat();
        let options = [&ticks_option, &offset_option, &[0; 4][..]].concat();
        let interface = [&short(1)[..], &short(0), &word(0), &options].concat();
        let frame = [0, 0, ticks, 0, 60].map(word).concat();
        [block(0x0a0d_0d0a, &header), block(1, &interface), block(6, &frame)].concat()
    }

    #[test]
    fn each_interface_tells_time_by_its_resolution_and_its_offset() {
        for is_big in [false, true] {
            for (resolution, ticks, nanos) in [
                (0, 3, 3_000_000_000),
                (3, 7, 7_000_000),
                (0x81, 3, 1_500_000_000),
                (0x80, 2, 2_000_000_000),
            ] {
                let file = section(is_big, resolution, ticks);
                let mut times = Vec::new();
                let capture = Capture::new(file.as_slice()).expect("a capture");
                let outcome = capture.read(|record| {
                    times.push(record.at);
                    ControlFlow::<()>::Continue(())
                });
                assert!(outcome.is_ok());
                assert_eq!(times, [1_000_000_000_000 + nanos], "{resolution:#x}");
            }
        }
    }

    #[test]
    fn a_block_that_is_shorter_than_any_is_damage() {
        for is_big in [false, true] {
            let word = |word: u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
            let kinds = (1..=10).chain([0x8000_0001, 0x0a0d_0d0a, 0xbad]);
            for (kind, len) in kinds.flat_map(|kind| (0..LEAST_BLOCK).map(move |len| (kind, len))) {
                let block = [word(kind), word(len), [0; 4], [0; 4]].concat();
                let file = [section(is_big, 6, 5), block].concat();
                let capture = Capture::new(file.as_slice()).expect("a capture");
                let outcome = capture.read(|_| ControlFlow::<()>::Continue(()));
                let findings = outcome.map(|(_, findings)| (findings.frames, findings.damaged));
                assert_eq!(findings, Ok((1, true)), "{kind:#x} of {len}");
            }
        }
    }

    #[test]
    fn units_of_time_beyond_counting_are_none() {
        assert_eq!(ticks_per_second(19), Some(10_000_000_000_000_000_000));
        assert_eq!(ticks_per_second(0x80 | 63), Some(1 << 63));
        assert_eq!([20, 0x7f, 0x80 | 64, 0xff].map(ticks_per_second), [None; 4]);
    }
}
