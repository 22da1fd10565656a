//! Being told what is decided about each packet.
//!
//! Problem: statistics say how many packets were dropped; who asks why one of them was has to see it happen.
//! Source: our own. Law: the discipline tells an observer of every decision where it is taken, and nobody by default:
//! what `()` does about it is nothing, and costs nothing.
//! Left out: what is made of it.

use crate::time::{Instant, Span};
use crate::units::{FrameLen, WireLen};

/// Who is told of decisions. Each packet is told of once when it is queued, and each frame or segment once more when it
/// departs or is dropped.
pub trait Observer<F> {
    /// A frame is about to be queued in `queue`, which is `(tin, queue)` as in
    /// [`Departure`](super::Departure); it may lose an ACK by it, and be dropped itself for want of memory.
    fn queued(&mut self, frame: &mut F, queue: (u8, u16)) {
        let _ = (frame, queue);
    }

    /// A frame or segment departs.
    fn departs(&mut self, frame: &mut F, departing: Departing) {
        let _ = (frame, departing);
    }

    /// A frame or segment was dropped.
    fn dropped(&mut self, frame: F, loss: Loss) {
        let _ = (frame, loss);
    }
}

impl<F> Observer<F> for () {}

/// What departs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departing {
    /// From which queue.
    pub queue: (u8, u16),
    /// Whether COBALT marked it with CE.
    pub marked: bool,
    /// Its length as it counts.
    pub len: FrameLen,
    /// Its length as the shaper is charged.
    pub wire_len: WireLen,
    /// Time it spent queued.
    pub sojourn: Span,
    /// When.
    pub at: Instant,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// From which queue.
    pub queue: (u8, u16),
    /// Why.
    pub cause: Cause,
    /// Its length as it counts.
    pub len: FrameLen,
    /// Its length as the shaper would have been charged, and is in ingress mode.
    pub wire_len: WireLen,
    /// Time it spent queued.
    pub sojourn: Span,
    /// When.
    pub at: Instant,
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// CoDel's schedule was due, and the packet could not be marked (spec §5.5).
    Codel,
    /// BLUE's dice (spec §5.5).
    Blue,
    /// Memory was over its limit, and its queue the longest (spec §9).
    Memory,
    /// A later ACK says all that this one did (spec §8).
    AckFilter,
}
