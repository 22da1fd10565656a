//! The simplest discipline: whatever comes leaves at once, in order, whole or in segments.

use std::collections::VecDeque;

use ucake::io::pool::FrameBuf;
use ucake::packet::{Frame, Meta};
use ucake::qdisc::{Departure, Dequeue, Discipline, Enqueued};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, WireLen};

#[derive(Default)]
pub(crate) struct Fifo {
    queue: VecDeque<(FrameBuf, FrameLen)>,
    split: bool,
}

impl Fifo {
    /// One that lets superpackets out segment by segment, every third one marked CE if it may be.
    pub(crate) fn splitting() -> Self {
        Self { split: true, ..Self::default() }
    }
}

impl Discipline<FrameBuf> for Fifo {
    fn enqueue(&mut self, frame: FrameBuf, meta: &Meta, _now: Instant) -> Enqueued {
        if !self.split {
            self.queue.push_back((frame, meta.counted_len()));
            return Enqueued::Queued;
        }
        for index in 0..meta.segments.count {
            let mut segment = frame.segment(index);
            if index % 3 == 0 {
                segment.mark_ce();
            }
            self.queue.push_back((segment, meta.segment_len(index)));
        }
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
