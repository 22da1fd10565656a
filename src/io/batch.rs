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
}

/// A run: some of the frames.
struct Entry {
    first: usize,
    end: usize,
    queue: (u8, u16),
    state: State,
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
        Self { coalescing, frames: Vec::new(), runs: Vec::new(), bytes: 0 }
    }

    /// Adds a frame, or neighbouring segments of one, behind all others. `queue` is where it comes from:
    /// only frames of one queue are joined.
    pub fn push(&mut self, frame: FrameBuf, queue: (u8, u16)) {
        self.bytes += u64::from(frame.frame_len().bytes());
        let joins = match self.coalescing {
            Coalescing::Off => false,
            Coalescing::On(push) => self.join(&frame, queue, push),
        };
        if !joins {
            let first = self.frames.len();
            self.frames.push(frame);
            self.runs.push(Entry { first, end: first + 1, queue, state: State::Single });
        }
    }

    /// The runs, in the order in which they are to be sent.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.runs.iter().map(|entry| Run {
            frames: self.frames.get(entry.first..entry.end).unwrap_or_default(),
            joint: entry.joint(),
        })
    }

    /// Bytes of all frames, each with headers of its own.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Forgets the first `count` runs: they were sent.
    pub fn forget(&mut self, count: usize) {
        if count >= self.runs.len() {
            self.frames.clear();
            self.runs.clear();
            self.bytes = 0;
            return;
        }
        let gone = self.runs.drain(..count).next_back().map_or(0, |entry| entry.end);
        for entry in &mut self.runs {
            entry.first -= gone;
            entry.end -= gone;
        }
        let bytes = |frame: FrameBuf| u64::from(frame.frame_len().bytes());
        self.bytes -= self.frames.drain(..gone).map(bytes).sum::<u64>();
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
    pub const fn of(frame: &'a FrameBuf) -> Self {
        Self { frames: std::slice::from_ref(frame), joint: None }
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
