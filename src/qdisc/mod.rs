//! Queue disciplines.

mod config;
mod stats;

pub use config::{AckFilter, Change, Config, Diffserv, Isolation, LinkLayer, Overhead, SplitGso};
pub use stats::{MinMax, Stats, TinStats};

use crate::packet::Meta;
use crate::time::{Instant, Span};
use crate::units::{FrameLen, WireLen};

/// What queues frames and says when they may leave.
///
/// The driver's contract is on the crate page: feed, then drain, then sleep.
pub trait Discipline<F> {
    /// Takes a frame in at `now`. The frame may be dropped, now or later; the statistics say so.
    fn enqueue(&mut self, frame: F, meta: &Meta, now: Instant) -> Enqueued;

    /// Asks what is to be done at `now`. The work of one call is bounded; calling too early is harmless.
    fn dequeue(&mut self, now: Instant) -> Dequeue<F>;

    /// Bytes queued.
    fn backlog(&self) -> FrameLen;
}

/// What became of a frame that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued.
    Queued,
    /// It is queued, and its own queue lost a frame for it, or it was dropped itself.
    Congested,
}

/// The answer to "what now?".
#[derive(Debug)]
pub enum Dequeue<F> {
    /// Send this frame, then ask again.
    Send(Departure<F>),
    /// Sleep until `Wake::at` or the next arrival, then ask again.
    Wait(Wake),
    /// Nothing is queued: sleep until the next arrival.
    Idle,
}

/// A frame, or one segment of a superpacket, on its way out.
#[derive(Debug)]
pub struct Departure<F> {
    /// The frame.
    pub frame: F,
    /// Its length as it counts.
    pub len: FrameLen,
    /// Its length as the shaper was charged.
    pub wire_len: WireLen,
    /// Time it spent queued.
    pub sojourn: Span,
    /// The queue it came from, `(tin, queue)`; equal for neighbouring frames of one flow.
    pub queue: (u8, u16),
}

/// When to ask again, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The instant at which asking again is worthwhile.
    pub at: Instant,
    /// What happens then.
    pub why: Why,
}

/// Why a wake-up exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The shaper's clock reaches the present.
    Shaper,
    /// The failsafe clock lets a frame go before the shaper's does (spec §6.5).
    Failsafe,
    /// This call did its share of work; ask again at once.
    WorkBound,
}
