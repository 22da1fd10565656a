//! Where frames live between being read and being written.
//!
//! Problem: a 64 kB superpacket must not be copied, a 60-byte one must not hold 64 kB of memory
//! while it is queued, and neither may cost an allocation.
//! Source: our own; slabs in size classes are what kernels do for socket buffers.
//! Law: a frame is read into the largest slot and moved to the smallest class that holds it; a slot
//! whose last handle goes returns to its class, of which a bounded number is kept.
//! Left out: threads. A pool belongs to one.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::{Rc, Weak};

use super::batch::RunKind;
use crate::packet::coalesce::Piece;
use crate::packet::dissect::{Dissected, Refused, dissect};
use crate::packet::memory::LONGEST;
use crate::packet::nat::Passing;
use crate::packet::split::{Checksums, MAX_HEADERS, write_run};
use crate::packet::vnet::VnetHeader;
use crate::packet::{
    Frame, Layout, Meta, Network, Sighting, TcpHeader, Transport, checksum, ecn, truesize,
};
use crate::units::FrameLen;

/// Slot sizes, and how many idle slots of each are kept (10 MiB in all). A frame is charged for as if it lay
/// in a buffer of Linux's ([`truesize()`]); slots are no larger than those, so that what is charged is at
/// least what is held.
const CLASSES: [Class; 8] = [
    Class { size: VnetHeader::LEN + LONGEST[0], keep: 1024 },
    Class { size: VnetHeader::LEN + LONGEST[1], keep: 512 },
    Class { size: VnetHeader::LEN + LONGEST[2], keep: 1024 },
    Class { size: VnetHeader::LEN + 4 * 1024, keep: 128 },
    Class { size: VnetHeader::LEN + 8 * 1024, keep: 128 },
    Class { size: VnetHeader::LEN + 16 * 1024, keep: 32 },
    Class { size: VnetHeader::LEN + 32 * 1024, keep: 32 },
    // The largest superpacket a tap gives (65536, and a link-layer header with two VLAN tags), its
    // vnet header, and room to tell "just fits" from "was cut short".
    Class { size: 65_536 + 22 + VnetHeader::LEN + 96, keep: 64 },
];
const LARGEST: usize = CLASSES.len() - 1;

/// Vnet header and Ethernet header: what is shorter is no frame.
const SHORTEST: usize = VnetHeader::LEN + 14;

struct Class {
    size: usize,
    keep: usize,
}

/// A store of recycled buffers. Clones are handles to the same store.
#[derive(Clone)]
pub struct Pool {
    shelves: Rc<Shelves>,
}

struct Shelves {
    idle: RefCell<[Vec<Rc<Slot>>; CLASSES.len()]>,
    allocated: Cell<u64>,
}

/// `[vnet header | frame]` in one piece, so that an unchanged frame is one write.
struct Slot {
    home: Weak<Shelves>,
    class: usize,
    frame_len: usize,
    vnet: VnetHeader,
    layout: Layout,
    /// Whether its IPv4 header's checksum is right: whoever splits it makes a right one.
    sound: bool,
    bytes: Box<[u8]>,
}

/// What became of one read.
pub enum Fill {
    /// A frame.
    Frame(Received),
    /// A frame larger than any slot; what was read of it is gone.
    Truncated,
    /// Less than an Ethernet header.
    Runt,
    /// Bytes that no discipline can take.
    Refused(Refused),
}

/// A frame and what the discipline needs to know of it.
pub struct Received {
    /// The frame.
    pub frame: FrameBuf,
    /// What it is.
    pub meta: Meta,
}

/// A frame in a pool, or neighbouring segments of it: a handle, cheap to make and to move.
#[derive(Clone)]
pub struct FrameBuf {
    slot: Rc<Slot>,
    part: Part,
    /// Changes that could not be made in place because other handles share the bytes; made on
    /// writing.
    ce: bool,
    washed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// Of a train, from the first up to but without the second.
    Segments(u16, u16),
}

/// Room to rewrite headers in; a port has one and uses it for every frame.
pub struct Scratch(pub(super) [u8; VnetHeader::LEN + MAX_HEADERS]);

/// A frame as the bytes to write, vnet header first: `head`, then `payload`.
#[derive(Clone, Copy, Debug)]
pub struct Wire<'a> {
    /// Vnet header and headers, or all of it.
    pub head: &'a [u8],
    /// What follows; empty where `head` is all.
    pub payload: &'a [u8],
}

impl Pool {
    /// An empty pool: it grows with what is queued.
    #[must_use]
    pub fn new() -> Self {
        let idle = CLASSES.map(|class| Vec::with_capacity(class.keep));
        Self { shelves: Rc::new(Shelves { idle: RefCell::new(idle), allocated: Cell::new(0) }) }
    }

    /// Reads one frame, vnet header first, with `read`, and dissects it.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill(&self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<Fill> {
        self.fill_slot(LARGEST, read)
    }

    /// The same for a frame of which it is known that it has `len` bytes, the vnet header not counted: it is not moved
    /// from a larger slot to the one it fits.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill_with(
        &self,
        len: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Fill> {
        // One byte is to be left, or it seems to have been cut short.
        let fits = CLASSES.iter().position(|class| VnetHeader::LEN + len < class.size);
        self.fill_slot(fits.unwrap_or(LARGEST), read)
    }

    fn fill_slot(
        &self,
        class: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Fill> {
        let mut slot = self.take(class);
        let bytes = &mut sole(&mut slot).bytes;
        let outcome = read(bytes);
        let room = bytes.len();
        let len = match outcome {
            Ok(len) => len,
            Err(error) => {
                self.shelves.put(slot);
                return Err(error);
            }
        };
        if len >= room || len < SHORTEST {
            self.shelves.put(slot);
            return Ok(if len < SHORTEST { Fill::Runt } else { Fill::Truncated });
        }
        let mut frame =
            FrameBuf { slot: self.fitted(slot, len), part: Part::Whole, ce: false, washed: false };
        Ok(match frame.examine(len) {
            Ok(meta) => Fill::Frame(Received { frame, meta }),
            Err(reason) => Fill::Refused(reason),
        })
    }

    /// Slots made since the pool began; it stands still once the pool is warm.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.shelves.allocated.get()
    }

    /// Bytes held by idle slots.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        let idle = self.shelves.idle.borrow();
        idle.iter().zip(&CLASSES).map(|(shelf, class)| shelf.len() * class.size).sum()
    }

    /// A slot nobody else has.
    fn take(&self, class: usize) -> Rc<Slot> {
        if let Some(slot) = self.shelves.idle.borrow_mut()[class].pop() {
            return slot;
        }
        self.shelves.allocated.set(self.shelves.allocated.get() + 1);
        Rc::new(Slot {
            home: Rc::downgrade(&self.shelves),
            class,
            frame_len: 0,
            vnet: VnetHeader::PLAIN,
            layout: Layout::default(),
            sound: true,
            bytes: vec![0; CLASSES[class].size].into_boxed_slice(),
        })
    }

    /// The first `len` bytes of `slot`, in the smallest class that holds them.
    fn fitted(&self, slot: Rc<Slot>, len: usize) -> Rc<Slot> {
        let fits = CLASSES.iter().position(|class| len <= class.size).unwrap_or(LARGEST);
        if fits >= slot.class {
            return slot;
        }
        let mut smaller = self.take(fits);
        sole(&mut smaller).bytes[..len].copy_from_slice(&slot.bytes[..len]);
        self.shelves.put(slot);
        smaller
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Shelves {
    fn put(&self, slot: Rc<Slot>) {
        let class = slot.class;
        let shelf = &mut self.idle.borrow_mut()[class];
        if shelf.len() < CLASSES[class].keep {
            shelf.push(slot);
        }
    }
}

fn sole(slot: &mut Rc<Slot>) -> &mut Slot {
    Rc::get_mut(slot).expect("a slot off the shelf has one handle")
}

impl Slot {
    fn frame(&self) -> &[u8] {
        &self.bytes[VnetHeader::LEN..][..self.frame_len]
    }
}

impl FrameBuf {
    /// The bytes of the frame, without vnet header; of the whole superpacket for a segment of one,
    /// and without what is only made on writing. For tests and captures; ports use
    /// [`FrameBuf::wire`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.slot.frame()
    }

    /// Its length as one frame, vnet header not counted.
    #[must_use]
    pub fn frame_len(&self) -> FrameLen {
        let whole = self.slot.frame_len;
        let bytes = match (self.part, &self.slot.layout.train) {
            (Part::Segments(first, end), Some(train)) => {
                let (mss, headers) =
                    (usize::from(train.segments.mss), usize::from(train.segments.header_len));
                let rest = whole.saturating_sub(mss * usize::from(first));
                rest.min(mss * usize::from(end - first) + headers)
            }
            _ => whole,
        };
        FrameLen(u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Length of its longest segment by itself; also of a superpacket that only the kernel can split.
    #[must_use]
    pub(super) fn longest_segment(&self) -> usize {
        let Slot { vnet, layout, .. } = &*self.slot;
        let one = match layout.train {
            Some(train) => train.segments.header_len.saturating_add(train.segments.mss),
            None if vnet.gso_type != VnetHeader::GSO_NONE => {
                vnet.hdr_len.saturating_add(vnet.gso_size)
            }
            None => u16::MAX,
        };
        usize::from(one).min(self.frame_len().bytes() as usize)
    }

    /// Whether it is a superpacket that is not ours to split, and of use only to ports with a vnet header.
    pub(super) fn is_sealed(&self) -> bool {
        self.slot.layout.train.is_none() && self.slot.vnet.gso_type != VnetHeader::GSO_NONE
    }

    /// How many segments leave with it; 1 for what is no train.
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.run().len().try_into().unwrap_or(u16::MAX)
    }

    /// Each of its segments by itself.
    pub fn singles(&self) -> impl Iterator<Item = Self> {
        self.run().map(|index| self.segment(index))
    }

    /// Makes `next` part of this one, if it is the segments right behind these and to leave like them.
    /// Returns whether it was.
    #[must_use]
    pub fn extend(&mut self, next: &Self) -> bool {
        let (Part::Segments(_, end), Part::Segments(start, _)) = (&mut self.part, next.part) else {
            return false;
        };
        let continues = *end == start
            && self.slot.sound
            && Rc::ptr_eq(&self.slot, &next.slot)
            && (self.ce, self.washed) == (next.ce, next.washed);
        if continues {
            let Part::Segments(_, next_end) = next.part else { return false };
            *end = next_end;
        }
        continues
    }

    /// What a port must be able to do to take more than one segment of it.
    pub(super) fn run_kind(&self) -> Option<RunKind> {
        let (transport, _) = self.slot.layout.transport?;
        Some(match (transport, self.slot.layout.network) {
            (Transport::Udp, _) => RunKind::Udp,
            (Transport::Tcp, Network::Ipv4) => RunKind::Tcp4,
            (Transport::Tcp, _) => RunKind::Tcp6,
        })
    }

    /// What its TCP header tells of time, if it has one.
    pub(super) fn sighting(&self) -> Option<Sighting> {
        Sighting::read(self.slot.frame(), &self.slot.layout)
    }

    /// What conntrack knows its connection by.
    pub(super) fn passing(&self, outward: bool) -> Option<Passing> {
        Passing::read(self.slot.frame(), &self.slot.layout, outward)
    }

    /// What coalescing looks at.
    #[must_use]
    pub fn piece(&self) -> Piece<'_> {
        Piece {
            frame: self.slot.frame(),
            vnet: &self.slot.vnet,
            layout: &self.slot.layout,
            run: self.run(),
            ce: self.ce,
            washed: self.washed,
        }
    }

    /// The segments that leave.
    fn run(&self) -> Range<u16> {
        match (self.part, self.slot.layout.train) {
            (Part::Segments(first, end), _) => first..end,
            (Part::Whole, Some(train)) => 0..train.segments.count,
            (Part::Whole, None) => 0..1,
        }
    }

    /// The bytes to write. With [`Checksums::Complete`], of a single segment only: what is more stays
    /// unfinished. `None` for a segment that its superpacket does not have, and if the checksum to be
    /// finished stands too far from the beginning.
    #[must_use]
    pub fn wire<'a>(&'a self, checksums: Checksums, scratch: &'a mut Scratch) -> Option<Wire<'a>> {
        let changed = self.ce || self.washed;
        let Slot { vnet, layout, .. } = &*self.slot;
        match (self.part, layout.train) {
            (_, Some(train)) if !changed && self.run() == (0..train.segments.count) => {
                Some(self.unchanged())
            }
            (_, Some(_)) => self.cut(checksums, scratch),
            _ if checksums == Checksums::Complete && vnet.needs_csum() => self.finished(scratch),
            (Part::Whole, None) if !changed => Some(self.unchanged()),
            _ => Some(self.rewritten(MAX_HEADERS, scratch)),
        }
    }

    /// The first bytes to write, in `scratch`, headers and more as they would be if this were written by
    /// itself; and where its payload stands, headers being `header_len` long.
    pub(super) fn opening<'a>(
        &'a self,
        header_len: usize,
        scratch: &mut Scratch,
    ) -> Option<&'a [u8]> {
        match self.slot.layout.train {
            Some(_) => drop(self.cut(Checksums::Partial, scratch)?),
            None => drop(self.rewritten(header_len, scratch)),
        }
        self.payload(header_len)
    }

    /// What follows the headers, they being `header_len` long.
    pub(super) fn payload(&self, header_len: usize) -> Option<&[u8]> {
        let frame = self.slot.frame();
        let Some(train) = self.slot.layout.train else { return frame.get(header_len..) };
        let at = |index: u16| header_len + usize::from(train.segments.mss) * usize::from(index);
        let Range { start, end } = self.run();
        frame.get(at(start)..at(end).min(frame.len()))
    }

    fn unchanged(&self) -> Wire<'_> {
        let len = VnetHeader::LEN + self.slot.frame_len;
        Wire { head: &self.slot.bytes[..len], payload: &[] }
    }

    /// Neighbouring segments of a superpacket.
    fn cut<'a>(&'a self, checksums: Checksums, scratch: &'a mut Scratch) -> Option<Wire<'a>> {
        let Slot { vnet, layout, .. } = &*self.slot;
        let frame = self.slot.frame();
        let (head, headers) = scratch.0.split_at_mut(VnetHeader::LEN);
        let run = write_run(frame, vnet, layout, self.run(), self.ce, checksums, headers)?;
        if self.washed {
            ecn::wash(&mut headers[..run.header_len], layout);
        }
        head.copy_from_slice(&run.vnet.encode());
        let head = &scratch.0[..VnetHeader::LEN + run.header_len];
        Some(Wire { head, payload: &frame[run.payload] })
    }

    /// An ordinary frame whose bytes are shared: its first bytes, up to `most` behind the vnet header,
    /// changed, then the rest as it is.
    fn rewritten<'a>(&'a self, most: usize, scratch: &'a mut Scratch) -> Wire<'a> {
        let bytes = self.unchanged().head;
        let (first, rest) =
            bytes.split_at(bytes.len().min(VnetHeader::LEN + most.min(MAX_HEADERS)));
        let head = &mut scratch.0[..first.len()];
        head.copy_from_slice(first);
        let (headers, layout) = (&mut head[VnetHeader::LEN..], &self.slot.layout);
        if self.ce {
            ecn::set_ce(headers, layout);
        }
        if self.washed {
            ecn::wash(headers, layout);
        }
        Wire { head, payload: rest }
    }

    /// An ordinary frame whose checksum is finished on writing.
    fn finished<'a>(&'a self, scratch: &'a mut Scratch) -> Option<Wire<'a>> {
        let vnet = self.slot.vnet;
        // The sum is made of two halves, of which the first has to be even in length.
        let most = MAX_HEADERS - (MAX_HEADERS - usize::from(vnet.csum_start).min(MAX_HEADERS)) % 2;
        let len = self.rewritten(most, scratch).head.len();
        let (head, headers) = scratch.0[..len].split_at_mut(VnetHeader::LEN);
        let rest = &self.slot.frame()[headers.len()..];
        checksum::complete_over(headers, rest, vnet.csum_start, vnet.csum_offset).then_some(())?;
        head.copy_from_slice(&vnet.with_finished_csum().encode());
        Some(Wire { head: &scratch.0[..len], payload: rest })
    }

    /// Reads vnet header and headers of a slot just filled with `len` bytes, and writes the vnet
    /// header anew as the frame is to leave.
    fn examine(&mut self, len: usize) -> Result<Meta, Refused> {
        let slot = sole(&mut self.slot);
        let (head, frame) = slot.bytes[..len].split_first_chunk_mut().expect("no runt");
        let charged = truesize(FrameLen(u32::try_from(frame.len()).unwrap_or(u32::MAX)));
        let Dissected { meta, layout, vnet } = dissect(frame, &VnetHeader::decode(head), charged)?;
        *head = vnet.encode();
        slot.sound = layout.train.is_none() || has_sound_header(frame, &layout);
        (slot.frame_len, slot.vnet, slot.layout) = (frame.len(), vnet, layout);
        Ok(meta)
    }

    /// The bytes of a frame that may be changed in place: a whole one that nobody else holds.
    fn own(&mut self) -> Option<&mut Slot> {
        match self.part {
            Part::Whole => Rc::get_mut(&mut self.slot),
            Part::Segments(..) => None,
        }
    }
}

/// Whether there is no IPv4 header, or one whose checksum is right.
fn has_sound_header(frame: &[u8], layout: &Layout) -> bool {
    let header = layout
        .transport
        .and_then(|(_, end)| frame.get(usize::from(layout.network_offset)..usize::from(end)));
    layout.network != Network::Ipv4 || header.is_some_and(|header| checksum::sum(header) == 0xffff)
}

impl Frame for FrameBuf {
    fn mark_ce(&mut self) -> bool {
        if let Some(Slot { bytes, frame_len, layout, .. }) = self.own() {
            return ecn::set_ce(&mut bytes[VnetHeader::LEN..][..*frame_len], layout);
        }
        self.ce = self.slot.layout.ecn.takes_ce();
        self.ce
    }

    fn wash(&mut self) -> bool {
        if let Some(Slot { bytes, frame_len, layout, .. }) = self.own() {
            return ecn::wash(&mut bytes[VnetHeader::LEN..][..*frame_len], layout);
        }
        self.washed = self.slot.layout.network != Network::Other;
        self.washed
    }

    fn segment(&self, index: u16) -> Self {
        let segments = Part::Segments(index, index.saturating_add(1));
        let part = self.slot.layout.train.map_or(Part::Whole, |_| segments);
        Self { slot: Rc::clone(&self.slot), part, ce: self.ce, washed: self.washed }
    }

    fn tcp(&self) -> Option<TcpHeader> {
        let header = TcpHeader::read(self.slot.frame(), &self.slot.layout)?;
        Some(match self.part {
            Part::Whole | Part::Segments(0, _) => header,
            Part::Segments(..) => header.of_later_segment(),
        })
    }
}

impl Drop for FrameBuf {
    fn drop(&mut self) {
        if Rc::strong_count(&self.slot) > 1 {
            return;
        }
        if let Some(home) = self.slot.home.upgrade() {
            home.put(Rc::clone(&self.slot));
        }
    }
}

impl Scratch {
    /// Fresh scratch.
    #[must_use]
    pub const fn new() -> Self {
        Self([0; VnetHeader::LEN + MAX_HEADERS])
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Wire<'_> {
    /// Length of the frame, vnet header not counted.
    #[must_use]
    pub const fn frame_len(&self) -> usize {
        (self.head.len() + self.payload.len()).saturating_sub(VnetHeader::LEN)
    }
}

#[cfg(test)]
pub(in crate::io) mod tests {
    use super::*;
    use crate::packet::Ecn;
    use crate::units::MemSize;

    /// Payload of each segment of [`train`].
    pub(in crate::io) const TRAIN_PAYLOAD: usize = 1000;

    /// An Ethernet frame of no protocol anyone knows.
    pub(in crate::io) fn plain_frame(len: usize) -> Vec<u8> {
        let mut frame = vec![0xa5; len];
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame
    }

    /// A TCP superpacket over IPv4, ECT(0); the payload of each segment is its number.
    pub(in crate::io) fn train(segments: u8) -> (VnetHeader, Vec<u8>) {
        let payload = (0..segments).flat_map(|number| [number; TRAIN_PAYLOAD]);
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00]);
        let len = 40 + u16::from(segments) * 1000;
        frame.extend([0x45, 0x02]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum: u32 = frame[14..].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = u16::try_from(!folded & 0xffff).expect("16 bits").to_be_bytes();
        frame[24..26].copy_from_slice(&checksum);
        frame
            .extend([0x13, 0x89, 0x13, 0x88, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        let vnet = VnetHeader {
            flags: 1,
            gso_type: 1,
            hdr_len: 54,
            gso_size: 1000,
            csum_start: 34,
            csum_offset: 16,
        };
        (vnet, frame)
    }

    /// A frame as if it had been read.
    pub(in crate::io) fn received(pool: &Pool, vnet: &VnetHeader, frame: &[u8]) -> Received {
        let bytes = [&vnet.encode(), frame].concat();
        let fill = pool.fill(|buffer| {
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        match fill.expect("reading memory works") {
            Fill::Frame(received) => received,
            _ => panic!("a good frame"),
        }
    }

    fn written(frame: &FrameBuf) -> Vec<u8> {
        let mut scratch = Scratch::new();
        let wire = frame.wire(Checksums::Partial, &mut scratch).expect("it has bytes");
        [&wire.head[VnetHeader::LEN..], wire.payload].concat()
    }

    fn ecn_of(bytes: &[u8]) -> Ecn {
        Ecn::from_tos(bytes[15])
    }

    #[test]
    fn a_frame_of_known_length_is_as_one_that_is_read() {
        let pool = Pool::new();
        for len in [14, 60, 200, 1514, 9000, 65_000] {
            let mut frame = vec![0xaa; len];
            frame[12..14].copy_from_slice(&[0x12, 0x34]);
            let read = |room: &mut [u8]| {
                let (head, rest) = room.split_at_mut(VnetHeader::LEN);
                head.copy_from_slice(&VnetHeader::PLAIN.encode());
                rest[..len].copy_from_slice(&frame);
                Ok(VnetHeader::LEN + len)
            };
            let [known, unknown] = [pool.fill_with(len, read), pool.fill(read)].map(|fill| {
                match fill.expect("it reads") {
                    Fill::Frame(Received { frame, meta }) => (frame.bytes().to_vec(), meta),
                    _ => panic!("{len} bytes are a frame"),
                }
            });
            assert_eq!(known, unknown);
            assert_eq!(known.0, frame);
        }
    }

    #[test]
    fn a_frame_is_charged_what_linux_charges_and_keeps_its_bytes() {
        let pool = Pool::new();
        for (len, charged) in [(60, 896), (304, 896), (305, 1280), (1514, 2304), (9014, 17_280)] {
            let Received { frame, meta } = received(&pool, &VnetHeader::PLAIN, &plain_frame(len));
            assert_eq!(meta.truesize, MemSize(charged), "{len} bytes");
            assert_eq!(frame.bytes(), plain_frame(len));
        }
        let (vnet, bytes) = train(40);
        let large = received(&pool, &vnet, &bytes);
        assert_eq!(large.meta.truesize, MemSize(896 + 65_536));
        assert_eq!((large.frame.bytes(), written(&large.frame)), (&*bytes, bytes.clone()));
    }

    #[test]
    fn what_is_charged_is_at_least_what_is_held() {
        // The queue's node, two counters of the handle, and what the allocator adds to two pieces.
        const BESIDES: usize = 112 + 16 + 2 * 16;
        for len in 14..=65_536 + 22 {
            let bytes = VnetHeader::LEN + len;
            let class = CLASSES.iter().find(|class| bytes <= class.size).expect("the largest");
            let held = class.size + size_of::<Slot>() + BESIDES;
            let charged = truesize(FrameLen(u32::try_from(len).expect("small")));
            assert!(charged.0 >= held as u64, "{len} bytes hold {held}, charged {charged:?}");
        }
    }

    #[test]
    fn a_warm_pool_allocates_nothing() {
        let pool = Pool::new();
        let (vnet, bytes) = train(40);
        let mut warm = 0;
        for round in 0..10 {
            let held: Vec<_> = (0..20)
                .map(|i| match i % 2 {
                    0 => received(&pool, &vnet, &bytes).frame.segment(3),
                    _ => received(&pool, &VnetHeader::PLAIN, &plain_frame(60)).frame,
                })
                .collect();
            if round == 0 {
                warm = pool.allocated();
            }
            assert_eq!(pool.allocated(), warm, "round {round}");
            drop(held);
        }
    }

    #[test]
    fn idle_memory_is_bounded() {
        let pool = Pool::new();
        let (vnet, bytes) = train(40);
        let held: Vec<_> = (0..300).map(|_| received(&pool, &vnet, &bytes)).collect();
        drop(held);
        assert!(pool.idle_bytes() < 64 * 66_000, "{} bytes idle", pool.idle_bytes());
    }

    #[test]
    fn marking_one_segment_leaves_the_others_as_they_are() {
        let pool = Pool::new();
        let (vnet, bytes) = train(3);
        let whole = received(&pool, &vnet, &bytes).frame;
        let [first, mut second, third] = [0, 1, 2].map(|index| whole.segment(index));
        assert!(second.mark_ce());
        let marks = [first, second, third].map(|segment| ecn_of(&written(&segment)));
        assert_eq!(marks, [Ecn::Ect0, Ecn::Ce, Ecn::Ect0]);
    }

    #[test]
    fn a_shared_frame_is_changed_on_writing_only() {
        let pool = Pool::new();
        let (_, mut bytes) = train(1);
        bytes[15] = 0xba;
        let whole = received(&pool, &VnetHeader::PLAIN, &bytes).frame;
        let mut other = whole.segment(0);
        assert!(other.mark_ce() && other.wash());
        assert_eq!((written(&whole)[15], written(&other)[15]), (0xba, 0x03));
    }

    #[test]
    fn a_frame_of_our_own_is_changed_in_place() {
        let pool = Pool::new();
        let (vnet, bytes) = train(2);
        let mut whole = received(&pool, &vnet, &bytes).frame;
        assert!(whole.mark_ce());
        assert_eq!(ecn_of(whole.bytes()), Ecn::Ce);
        assert!(!received(&pool, &VnetHeader::PLAIN, &plain_frame(60)).frame.mark_ce());
    }

    #[test]
    fn each_frame_tells_its_own_tcp_header() {
        let pool = Pool::new();
        let (vnet, mut bytes) = train(3);
        bytes[47] |= 0x80;
        let whole = received(&pool, &vnet, &bytes).frame;
        let flags = |frame: &FrameBuf| frame.tcp().expect("it is TCP").flags.bits();
        assert_eq!(flags(&whole), 0x90);
        assert_eq!([0, 1, 2].map(|index| flags(&whole.segment(index))), [0x90, 0x10, 0x10]);
        assert_eq!(received(&pool, &VnetHeader::PLAIN, &plain_frame(60)).frame.tcp(), None);
        // The byte before the frame is the vnet header's, those behind it another frame's.
        let cut = received(&pool, &VnetHeader::PLAIN, &bytes[..53]).frame;
        assert_eq!(cut.tcp(), None);
    }

    #[test]
    fn frames_that_are_too_long_or_too_short_are_told_apart() {
        let pool = Pool::new();
        let fill = pool.fill(|buffer| Ok(buffer.len()));
        assert!(matches!(fill, Ok(Fill::Truncated)));
        for len in [0, 9, 23] {
            assert!(matches!(pool.fill(|_| Ok(len)), Ok(Fill::Runt)), "{len} bytes");
        }
    }
}
