//! The simplest discipline: whatever comes leaves at once, in order.

use std::collections::VecDeque;

use ucake::io::pool::FrameBuf;
use ucake::packet::Meta;
use ucake::qdisc::{Departure, Dequeue, Discipline, Enqueued};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, WireLen};

#[derive(Default)]
pub(crate) struct Fifo {
    queue: VecDeque<(FrameBuf, FrameLen)>,
}

impl Discipline<FrameBuf> for Fifo {
    fn enqueue(&mut self, frame: FrameBuf, meta: &Meta, _now: Instant) -> Enqueued {
        self.queue.push_back((frame, meta.counted_len()));
        Enqueued::Queued
    }

    fn dequeue(&mut self, _now: Instant) -> Dequeue<FrameBuf> {
        let Some((frame, len)) = self.queue.pop_front() else { return Dequeue::Idle };
        let wire_len = WireLen(len.bytes());
        Dequeue::Send(Departure { frame, len, wire_len, sojourn: Span::ZERO, queue: (0, 0) })
    }

    fn backlog(&self) -> FrameLen {
        self.queue.iter().map(|(_, len)| *len).sum()
    }
}
