//! What is due, on its way to a port: frames in the order in which they leave, joined to runs.
//!
//! Problem: a write costs a thousand nanoseconds whether it carries one segment or forty.
//! Source: design §3 and §4; which frames join is `packet::coalesce`.
//! Law: what leaves in one batch and stands next to each other is one run if that changes nothing on the
//! wire. A batch is handed to its port as a whole, so that a port can send all of it with one call; what
//! the port has no room for stays in it.
//! Left out: changing the order. Whoever wants longer runs asks the discipline for them.

use std::io::IoSlice;

use arrayvec::ArrayVec;

use super::pool::{FrameBuf, Scratch};
use crate::packet::coalesce::{Joint, Push};
use crate::packet::split::Checksums;
use crate::packet::vnet::VnetHeader;

/// Most frames, runs of one train's segments counting as one, in a run.
const MOST_PIECES: usize = 64;

/// Which frames are joined on their way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalescing {
    /// None: every segment is a write of its own.
    Off,
    /// Those that leave the same bytes.
    On(Push),
}

impl Default for Coalescing {
    fn default() -> Self {
        Self::On(Push::Keep)
    }
}

/// Frames that are due, in order.
pub struct Batch {
    coalescing: Coalescing,
    frames: Vec<FrameBuf>,
    runs: Vec<Entry>,
    bytes: u64,
    /// How many of the runs are to be sent now.
    offered: usize,
}

/// A run: some of the frames.
struct Entry {
    first: usize,
    end: usize,
    queue: (u8, u16),
    state: State,
    /// Of its frames, each with headers of its own.
    bytes: u64,
}

/// How a run grows.
enum State {
    /// It is a single piece, and nobody has asked yet.
    Single,
    /// It is a single piece and stays one.
    Alone,
    /// It may have several pieces.
    Joint(Joint),
}

/// Neighbouring frames that leave as one.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    frames: &'a [FrameBuf],
    joint: Option<&'a Joint>,
    bytes: u64,
}

/// What kind of offload a run needs of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP.
    Udp,
}

/// A run as the bytes to write, vnet header first.
pub struct Slices<'a> {
    /// In order. The first one has the vnet header and at least an Ethernet header.
    pub parts: ArrayVec<IoSlice<'a>, { MOST_PIECES + 1 }>,
    /// Length of the frame, vnet header not counted.
    pub frame_len: usize,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub const fn new(coalescing: Coalescing) -> Self {
        Self { coalescing, frames: Vec::new(), runs: Vec::new(), bytes: 0, offered: 0 }
    }

    /// Adds a frame, or neighbouring segments of one, behind all others. `queue` is where it comes from:
    /// only frames of one queue are joined.
    pub fn push(&mut self, frame: FrameBuf, queue: (u8, u16)) {
        let bytes = u64::from(frame.frame_len().bytes());
        self.bytes += bytes;
        let joins = match self.coalescing {
            Coalescing::Off => false,
            Coalescing::On(push) => self.join(&frame, queue, push),
        };
        if joins {
            self.runs.last_mut().into_iter().for_each(|run| run.bytes += bytes);
            return;
        }
        let first = self.frames.len();
        self.frames.push(frame);
        self.runs.push(Entry { first, end: first + 1, queue, state: State::Single, bytes });
    }

    /// Offers the first `most` runs to whoever is to send them.
    pub fn offer(&mut self, most: usize) -> &Self {
        self.offered = most.min(self.runs.len());
        self
    }

    /// The runs that are offered, in the order in which they are to be sent.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.runs.iter().take(self.offered).map(|entry| Run {
            frames: self.frames.get(entry.first..entry.end).unwrap_or_default(),
            joint: entry.joint(),
            bytes: entry.bytes,
        })
    }

    /// Bytes of all frames, each with headers of its own.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of runs, offered or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Forgets the first `count` runs: they were sent. Returns the bytes of their frames.
    pub fn forget(&mut self, count: usize) -> u64 {
        self.offered = 0;
        if count >= self.runs.len() {
            self.frames.clear();
            self.runs.clear();
            return std::mem::take(&mut self.bytes);
        }
        let (mut gone, mut bytes) = (0, 0);
        for run in self.runs.drain(..count) {
            gone = run.end;
            bytes += run.bytes;
        }
        for run in &mut self.runs {
            run.first -= gone;
            run.end -= gone;
        }
        self.frames.drain(..gone);
        self.bytes -= bytes;
        bytes
    }

    /// Makes `frame` part of the last run, if that can be.
    fn join(&mut self, frame: &FrameBuf, queue: (u8, u16), push: Push) -> bool {
        let Some(entry) = self.runs.last_mut().filter(|entry| entry.queue == queue) else {
            return false;
        };
        let Some(pieces) = self.frames.get_mut(entry.first..entry.end) else { return false };
        let [first, rest @ ..] = pieces else { return false };
        if rest.is_empty() && first.extend(frame) {
            entry.state = State::Single;
            return true;
        }
        if !entry.accepts(first, frame, push) {
            return false;
        }
        if !rest.last_mut().is_some_and(|last| last.extend(frame)) {
            self.frames.push(frame.clone());
            entry.end += 1;
        }
        true
    }
}

impl Entry {
    fn accepts(&mut self, first: &FrameBuf, next: &FrameBuf, push: Push) -> bool {
        if let State::Single = self.state {
            self.state = Joint::begin(&first.piece(), push).map_or(State::Alone, State::Joint);
        }
        match &mut self.state {
            State::Joint(joint) if self.end - self.first < MOST_PIECES => {
                joint.accept(&first.piece(), &next.piece())
            }
            _ => false,
        }
    }

    fn joint(&self) -> Option<&Joint> {
        match &self.state {
            State::Joint(joint) if self.end - self.first > 1 => Some(joint),
            _ => None,
        }
    }
}

impl<'a> Run<'a> {
    /// A frame by itself.
    #[must_use]
    pub fn of(frame: &'a FrameBuf) -> Self {
        let bytes = u64::from(frame.frame_len().bytes());
        Self { frames: std::slice::from_ref(frame), joint: None, bytes }
    }

    /// Bytes of its frames, each with headers of its own: what a byte limit counts.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of segments.
    #[must_use]
    pub fn segments(&self) -> u16 {
        match (self.joint, self.frames) {
            (Some(joint), _) => joint.segments(),
            (None, [frame, ..]) => frame.segments(),
            (None, []) => 0,
        }
    }

    /// Length as one frame, vnet header not counted.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        match (self.joint, self.frames) {
            (Some(joint), _) => joint.frame_len(),
            (None, [frame, ..]) => frame.frame_len().bytes() as usize,
            (None, []) => 0,
        }
    }

    /// Length of its longest segment by itself.
    #[must_use]
    pub fn longest_segment(&self) -> usize {
        // All are of one size but for the last, which is no longer.
        self.frames.first().map_or(0, FrameBuf::longest_segment)
    }

    /// What the port must be able to do; `None` for a single segment.
    #[must_use]
    pub fn kind(&self) -> Option<RunKind> {
        if self.segments() < 2 {
            return None;
        }
        self.frames.first()?.run_kind()
    }

    /// Each segment by itself.
    pub fn singles(&self) -> impl Iterator<Item = FrameBuf> + use<'a> {
        self.frames.iter().flat_map(FrameBuf::singles)
    }

    /// The frames it is made of: handles to keep while it is being sent.
    #[must_use]
    pub const fn frames(&self) -> &'a [FrameBuf] {
        self.frames
    }

    /// The bytes to write; headers are made in `scratch`. With [`Checksums::Complete`], of a single
    /// segment only. `None` if it has no bytes ([`FrameBuf::wire`]).
    #[must_use]
    pub fn slices<'b>(&self, checksums: Checksums, scratch: &'b mut Scratch) -> Option<Slices<'b>>
    where
        'a: 'b,
    {
        let mut parts = ArrayVec::new();
        let Some(joint) = self.joint else {
            let wire = self.frames.first()?.wire(checksums, scratch)?;
            let frame_len = wire.frame_len();
            parts.push(IoSlice::new(wire.head));
            if !wire.payload.is_empty() {
                parts.push(IoSlice::new(wire.payload));
            }
            return Some(Slices { parts, frame_len });
        };
        let (first, rest) = self.frames.split_first()?;
        let header_len = joint.header_len();
        let payload = first.opening(header_len, scratch)?;
        let (head, headers) = scratch.0.split_at_mut(VnetHeader::LEN);
        let vnet = joint.write(headers.get_mut(..header_len)?)?;
        head.copy_from_slice(&vnet.encode());
        parts.push(IoSlice::new(&scratch.0[..VnetHeader::LEN + header_len]));
        parts.push(IoSlice::new(payload));
        for frame in rest {
            parts.try_push(IoSlice::new(frame.payload(header_len)?)).ok()?;
        }
        Some(Slices { parts, frame_len: joint.frame_len() })
    }
}

impl Slices<'_> {
    /// The same without the vnet header.
    #[must_use]
    pub fn without_vnet(mut self) -> Self {
        if let Some(first) = self.parts.first_mut() {
            first.advance(VnetHeader::LEN.min(first.len()));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::pool::tests::{plain_frame, received, train};
    use crate::io::pool::{Pool, Received};
    use crate::packet::Frame as _;

    const QUEUE: (u8, u16) = (0, 7);

    fn segments(pool: &Pool, count: u8) -> Vec<FrameBuf> {
        let (vnet, bytes) = train(count);
        let Received { frame, .. } = received(pool, &vnet, &bytes);
        (0..count.into()).map(|index| frame.segment(index)).collect()
    }

    fn lengths(batch: &mut Batch) -> Vec<u16> {
        batch.offer(usize::MAX).runs().map(|run| run.segments()).collect()
    }

    #[test]
    fn segments_in_order_are_one_run_and_a_gap_ends_it() {
        let pool = Pool::new();
        let mut batch = Batch::new(Coalescing::default());
        for (index, segment) in segments(&pool, 9).into_iter().enumerate() {
            if index != 4 {
                batch.push(segment, QUEUE);
            }
        }
        assert_eq!(lengths(&mut batch), [4, 4]);
    }

    #[test]
    fn a_marked_segment_is_a_run_of_its_own() {
        let pool = Pool::new();
        let mut batch = Batch::new(Coalescing::default());
        for (index, mut segment) in segments(&pool, 5).into_iter().enumerate() {
            if index == 2 {
                assert!(segment.mark_ce());
            }
            batch.push(segment, QUEUE);
        }
        assert_eq!(lengths(&mut batch), [2, 1, 2]);
    }

    #[test]
    fn queues_are_not_mixed() {
        let pool = Pool::new();
        let mut batch = Batch::new(Coalescing::default());
        for (index, segment) in (0..).zip(segments(&pool, 4)) {
            batch.push(segment, (0, index / 2));
        }
        assert_eq!(lengths(&mut batch), [2, 2]);
    }

    #[test]
    fn a_train_whose_ip_checksum_is_broken_is_not_joined_lest_it_be_healed() {
        let pool = Pool::new();
        let (vnet, mut bytes) = train(4);
        bytes[24] ^= 1;
        let Received { frame, .. } = received(&pool, &vnet, &bytes);
        let mut batch = Batch::new(Coalescing::default());
        (0..4).for_each(|index| batch.push(frame.segment(index), QUEUE));
        assert_eq!(lengths(&mut batch), [1, 1, 1, 1]);
    }

    #[test]
    fn a_run_counts_the_bytes_of_each_of_its_frames() {
        let pool = Pool::new();
        let mut batch = Batch::new(Coalescing::default());
        segments(&pool, 3).into_iter().for_each(|segment| batch.push(segment, QUEUE));
        let bytes: Vec<_> =
            batch.offer(1).runs().map(|run| (run.bytes(), run.frame_len())).collect();
        assert_eq!(bytes, [(3 * 1054, 3054)]);
        assert_eq!(batch.forget(1), 3 * 1054);
    }

    #[test]
    fn nothing_is_joined_if_that_is_off() {
        let pool = Pool::new();
        let mut batch = Batch::new(Coalescing::Off);
        segments(&pool, 3).into_iter().for_each(|segment| batch.push(segment, QUEUE));
        assert_eq!(lengths(&mut batch), [1, 1, 1]);
    }

    #[test]
    fn what_was_not_taken_stays_in_order_and_is_counted() {
        let pool = Pool::new();
        let mut batch = Batch::new(Coalescing::default());
        let lens = [60, 61, 62, 63];
        for len in lens {
            batch.push(received(&pool, &VnetHeader::PLAIN, &plain_frame(len)).frame, QUEUE);
        }
        segments(&pool, 3).into_iter().for_each(|segment| batch.push(segment, QUEUE));
        let total = batch.bytes();
        assert_eq!(batch.forget(3), 60 + 61 + 62);
        assert_eq!(batch.bytes(), total - 183);
        assert_eq!(lengths(&mut batch), [1, 3]);
        assert_eq!(batch.offer(1).runs().map(|run| run.frame_len()).collect::<Vec<_>>(), [63]);
        assert_eq!(batch.forget(usize::MAX), total - 183);
        assert!(batch.is_empty() && batch.bytes() == 0);
    }
}
