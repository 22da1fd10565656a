//! A port behind a long wire: what is sent through it arrives later.
//!
//! Law: each frame leaves `delay` after it was sent, in order; frames beyond `cap` bytes are
//! dropped and counted, as a wire drops nothing but a program must not grow without end.
//! Left out: loss, jitter, a rate. Reading is not delayed: delay one port of each path.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use super::batch::{Batch, Coalescing};
use super::pool::{FrameBuf, Pool};
use super::port::{Counters, Port, PortError, Recv, Sent};
use crate::packet::coalesce::Push;
use crate::time::{Instant, Span};
use crate::units::FrameLen;

/// A port whose frames take their time.
pub struct Delayed<P> {
    inner: P,
    delay: Span,
    cap: FrameLen,
    now: Instant,
    held: VecDeque<Held>,
    held_bytes: FrameLen,
    due: Batch,
    dropped: u64,
}

/// When a port that had no room is offered again what is due.
const RETRY: Span = Span::from_micros(100);

/// On a wire, whatever is next to each other may leave together.
const ANY_QUEUE: (u8, u16) = (0, 0);

struct Held {
    due_at: Instant,
    frame: FrameBuf,
}

impl<P: Port> Delayed<P> {
    /// `inner`, at the end of a wire of length `delay` that holds up to `cap` bytes.
    #[must_use]
    pub const fn new(inner: P, delay: Span, cap: FrameLen) -> Self {
        Self {
            inner,
            delay,
            cap,
            now: Instant::ZERO,
            held: VecDeque::new(),
            held_bytes: FrameLen::ZERO,
            due: Batch::new(Coalescing::On(Push::Keep)),
            dropped: 0,
        }
    }
}

impl<P> Delayed<P> {
    fn hold(&mut self, frame: &FrameBuf) {
        let len = frame.frame_len();
        if self.held_bytes + len > self.cap {
            self.dropped += u64::from(frame.segments());
            return;
        }
        self.held_bytes += len;
        self.held.push_back(Held { due_at: self.now + self.delay, frame: frame.clone() });
    }
}

impl<P: Port> Port for Delayed<P> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
        self.inner.try_recv(pool)
    }

    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
        let mut runs = 0;
        for run in batch.runs() {
            runs += 1;
            run.frames().iter().for_each(|frame| self.hold(frame));
        }
        Ok(Sent { runs, ..Sent::default() })
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        self.inner.poll_readable(cx)
    }

    fn lost_before_reading(&self) -> Option<u64> {
        self.inner.lost_before_reading()
    }

    fn in_flight(&mut self) -> Result<u64, PortError> {
        self.inner.in_flight()
    }

    fn next_due(&self) -> Option<Instant> {
        let front = match self.due.is_empty() {
            true => self.held.front().map(|held| held.due_at),
            // The port had no room for them.
            false => Some(self.now + RETRY),
        };
        [front, self.inner.next_due()].into_iter().flatten().min()
    }

    fn advance(&mut self, now: Instant) -> Result<(), PortError> {
        self.now = now;
        self.inner.advance(now)?;
        // What the port has no room for stays on the wire, where it is counted.
        let room = self.due.is_empty();
        while room && let Some(held) = self.held.pop_front_if(|held| held.due_at <= now) {
            self.held_bytes -= held.frame.frame_len();
            self.due.push(held.frame, ANY_QUEUE);
        }
        if !self.due.is_empty() {
            let sent = self.inner.send(self.due.offer(usize::MAX))?;
            self.due.forget(sent.runs);
        }
        Ok(())
    }

    /// The inner port's, with what found the wire full among its write errors.
    fn counters(&self) -> Counters {
        let mut counters = self.inner.counters();
        counters.write_errors.full += self.dropped;
        counters
    }
}
