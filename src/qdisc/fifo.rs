//! A drop-tail queue with a rate: what most of the world has, for comparison.
//!
//! Problem: to show what CAKE cures, something must have the disease: one queue, first come first
//! served, the last to come dropped when it is full.
//! Source: Linux `pfifo` behind a shaper; the shaper is CAKE's own, so that only the queue differs.
//! Law: at most so many packets, whatever they are. A train is counted and cut segment by segment.
//! Left out: everything else.

use super::flow::{Packet, PacketQueue};
use super::shaper::{Fate, Shaper};
use super::{Departure, Dequeue, Discipline, Enqueued};
use crate::packet::{Frame, Meta};
use crate::time::Instant;
use crate::units::{FrameLen, Rate, WireLen};
use slab::Slab;

/// What can be set on a [`Fifo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FifoConfig {
    /// The rate; `None` is unlimited.
    pub rate: Option<Rate>,
    /// Most packets queued.
    pub limit: u32,
    /// Whether superpackets leave segment by segment.
    pub split: bool,
}

/// A snapshot of a [`Fifo`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FifoStats {
    /// Bytes that left.
    pub sent_bytes: u64,
    /// Packets that left.
    pub sent_packets: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Packets queued now.
    pub queued_packets: u32,
}

impl FifoStats {
    /// These statistics, going on from those of a queue whose place this one took.
    #[must_use]
    pub fn going_on_from(self, before: &Self) -> Self {
        Self {
            sent_bytes: self.sent_bytes.saturating_add(before.sent_bytes),
            sent_packets: self.sent_packets.saturating_add(before.sent_packets),
            dropped: self.dropped.saturating_add(before.dropped),
            queued_packets: self.queued_packets,
        }
    }
}

/// A drop-tail queue with a rate.
#[derive(Debug)]
pub struct Fifo<F> {
    config: FifoConfig,
    shaper: Shaper,
    queue: PacketQueue,
    packets: Slab<Packet<F>>,
    backlog: FrameLen,
    stats: FifoStats,
    last_now: Instant,
}

impl<F: Frame> Fifo<F> {
    /// An empty queue.
    #[must_use]
    pub fn new(config: FifoConfig) -> Self {
        Self {
            config,
            shaper: Shaper::new(config.rate),
            queue: PacketQueue::default(),
            packets: Slab::new(),
            backlog: FrameLen::ZERO,
            stats: FifoStats::default(),
            last_now: Instant::ZERO,
        }
    }

    /// A snapshot of its counters.
    #[must_use]
    pub fn stats(&self) -> FifoStats {
        self.stats
    }

    fn packet(&self, frame: F, meta: &Meta, room: u32, now: Instant) -> Packet<F> {
        let segments = u32::from(meta.segments.count).min(room);
        if self.config.split && meta.segments.count > 1 {
            let segments = u16::try_from(segments).unwrap_or(u16::MAX);
            return Packet::train(frame, meta, segments, |len| WireLen(len.0), now);
        }
        Packet::whole(frame, meta, WireLen(meta.counted_len().0), now)
    }
}

impl<F: Frame> Discipline<F> for Fifo<F> {
    fn enqueue(&mut self, frame: F, meta: &Meta, now: Instant) -> Enqueued {
        let now = now.max(self.last_now);
        let offered = if self.config.split { u32::from(meta.segments.count) } else { 1 };
        let room = self.config.limit.saturating_sub(self.stats.queued_packets);
        let refused = offered.saturating_sub(room);
        self.stats.dropped += u64::from(refused);
        if room == 0 {
            return Enqueued::Congested;
        }
        if self.stats.queued_packets == 0 {
            self.shaper.wake(now);
        }
        let packet = self.packet(frame, meta, room, now);
        self.backlog += packet.total().len;
        self.stats.queued_packets += u32::from(packet.units());
        self.queue.push(&mut self.packets, packet);
        if refused > 0 { Enqueued::Congested } else { Enqueued::Queued }
    }

    fn dequeue(&mut self, now: Instant) -> Dequeue<F> {
        self.last_now = self.last_now.max(now);
        let now = self.last_now;
        if self.queue.is_empty() {
            return Dequeue::Idle;
        }
        if let Some(wake) = self.shaper.gate(now) {
            return Dequeue::Wait(wake);
        }
        let Some(unit) = self.queue.pop(&mut self.packets) else { return Dequeue::Idle };
        self.shaper.charge(unit.charge.wire_len, Fate::Delivered);
        self.backlog -= unit.charge.len;
        self.stats.queued_packets -= 1;
        self.stats.sent_bytes += u64::from(unit.charge.len.0);
        self.stats.sent_packets += u64::from(unit.counts_as);
        Dequeue::Send(Departure {
            frame: unit.frame,
            len: unit.charge.len,
            wire_len: unit.charge.wire_len,
            sojourn: now - unit.enqueued_at,
            queue: (0, 0),
        })
    }

    fn backlog(&self) -> FrameLen {
        self.backlog
    }
}
