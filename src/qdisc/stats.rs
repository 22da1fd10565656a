//! What an instance tells about itself.
//!
//! Source: spec §11.1 (instance), §11.2 (tins) and §11.3 (queues). Units are those of the core; whoever prints them
//! converts (`tc` shows bits per second and microseconds).
//! Left out: the text and JSON forms, which the command line owns.

use super::overflow::QueueId;
use crate::time::{Instant, Span};
use crate::units::{FrameLen, MemSize, Rate};

/// A snapshot of a CAKE instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stats {
    /// Bytes delivered by dequeue.
    pub sent_bytes: u64,
    /// Packets delivered by dequeue; an undivided superpacket counts its segments.
    pub sent_packets: u64,
    /// Packets dropped by the AQM, the memory limit or the ACK filter.
    pub dropped: u64,
    /// Times the shaper said "not yet".
    pub overlimits: u64,
    /// Bytes queued now.
    pub backlog: FrameLen,
    /// Packets queued now.
    pub queued_packets: u32,
    /// Largest memory use since creation.
    pub memory_used: MemSize,
    /// Effective memory limit.
    pub memory_limit: MemSize,
    /// Estimate of autorate, or the rate given at creation; zero if unlimited.
    pub capacity_estimate: Rate,
    /// Sizes before overhead.
    pub network_size: MinMax,
    /// Sizes after overhead.
    pub adjusted_size: MinMax,
    /// Mean distance from the start of a frame to its network header, in bytes, rounded.
    pub average_network_offset: u16,
    /// Times the shaper was called so late that it let part of its rate go (`CATCH_UP`).
    pub catch_up_capped: u64,
    /// The time that it let go by so. What was sent and what the rate gives in this time are together what the rate
    /// gives in all the time that something was queued.
    pub given_up: Span,
    /// Times `now` was earlier than before; such a call is answered as if no time had passed.
    pub clock_went_back: u64,
    /// Runs delivered: packets that left one queue back to back at one instant.
    pub runs: u64,
    /// Bytes of the largest run.
    pub largest_burst: FrameLen,
    /// By how much wake-ups are late, as a moving average; measured under `auto-split-gso` only.
    pub lateness: Span,
    /// The tins in use, in display order (spec §3.2).
    pub tins: Vec<TinStats>,
}

impl Stats {
    /// Packets in a run, on average; 0 before the first.
    ///
    /// ```
    /// use ucake::qdisc::Stats;
    /// let stats = Stats { sent_packets: 30, runs: 4, ..Stats::default() };
    /// assert_eq!(stats.mean_run(), 7.5);
    /// ```
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    pub fn mean_run(&self) -> f64 {
        self.sent_packets as f64 / self.runs.max(1) as f64
    }

    /// These statistics, going on from those of an instance whose place this one took: what is counted is added,
    /// extremes are the more extreme, and what describes the moment stays. Tins go by their place, so that
    /// counts are for others after a change of `diffserv` in between.
    ///
    /// ```
    /// use ucake::qdisc::Stats;
    /// let before = Stats { sent_packets: 30, queued_packets: 7, ..Stats::default() };
    /// let now = Stats { sent_packets: 2, queued_packets: 1, ..Stats::default() };
    /// let both = now.going_on_from(&before);
    /// assert_eq!((both.sent_packets, both.queued_packets), (32, 1));
    /// ```
    #[must_use]
    pub fn going_on_from(mut self, before: &Self) -> Self {
        add(&mut self.sent_bytes, before.sent_bytes);
        add(&mut self.sent_packets, before.sent_packets);
        add(&mut self.dropped, before.dropped);
        add(&mut self.overlimits, before.overlimits);
        self.memory_used = self.memory_used.max(before.memory_used);
        self.network_size = self.network_size.with(before.network_size);
        self.adjusted_size = self.adjusted_size.with(before.adjusted_size);
        if self.average_network_offset == 0 {
            self.average_network_offset = before.average_network_offset;
        }
        add(&mut self.catch_up_capped, before.catch_up_capped);
        self.given_up += before.given_up;
        add(&mut self.clock_went_back, before.clock_went_back);
        add(&mut self.runs, before.runs);
        self.largest_burst = self.largest_burst.max(before.largest_burst);
        for (tin, before) in self.tins.iter_mut().zip(&before.tins) {
            tin.go_on_from(before);
        }
        self
    }
}

/// What left back to back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bursts {
    runs: u64,
    largest: FrameLen,
    /// The last run: where it came from, when, and how long it is so far.
    last: Option<(QueueId, Instant)>,
    len: FrameLen,
}

impl Bursts {
    /// Counts a packet of `len` that leaves `queue`.
    pub fn observe(&mut self, queue: QueueId, len: FrameLen, now: Instant) {
        if self.last != Some((queue, now)) {
            self.largest = self.largest();
            self.last = Some((queue, now));
            self.len = FrameLen::ZERO;
            self.runs += 1;
        }
        self.len += len;
    }

    /// How many runs there were.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Bytes of the largest one.
    #[must_use]
    pub fn largest(&self) -> FrameLen {
        self.largest.max(self.len)
    }
}

/// Smallest and largest of a size, as 16-bit numbers (spec §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MinMax {
    /// Smallest; 65535 before the first packet.
    pub min: u16,
    /// Largest; 0 before the first packet.
    pub max: u16,
}

impl MinMax {
    /// Takes one more size into account.
    pub fn observe(&mut self, size: u32) {
        // As in the kernel the fields are 16 bits wide and larger sizes lose their upper half.
        let size = (size & 0xffff) as u16;
        self.min = self.min.min(size);
        self.max = self.max.max(size);
    }

    /// The smallest and the largest of both.
    fn with(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

impl Default for MinMax {
    fn default() -> Self {
        Self { min: u16::MAX, max: 0 }
    }
}

/// A snapshot of one tin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TinStats {
    /// Threshold rate; zero if unlimited.
    pub threshold: Rate,
    /// CoDel's target in this tin.
    pub target: Span,
    /// CoDel's interval in this tin.
    pub interval: Span,
    /// Moving average of the larger delays.
    pub peak_delay: Span,
    /// Moving average of all delays.
    pub average_delay: Span,
    /// Moving average of the smaller delays; what `tc` calls `sp_delay`.
    pub base_delay: Span,
    /// Bytes queued now.
    pub backlog: FrameLen,
    /// Packets enqueued, dropped ones included.
    pub packets: u64,
    /// Bytes enqueued, dropped ones included.
    pub bytes: u64,
    /// Packets that found their flow in a displaced slot.
    pub way_indirect_hits: u64,
    /// Flows that were new.
    pub way_misses: u64,
    /// Flows that found every way of their set taken.
    pub way_collisions: u64,
    /// Packets dropped by the AQM and the memory limit.
    pub drops: u64,
    /// Delivered packets that were CE-marked here.
    pub marks: u64,
    /// Packets removed by the ACK filter.
    pub ack_drops: u64,
    /// Sparse and decaying flows.
    pub sparse_flows: u32,
    /// Bulk flows.
    pub bulk_flows: u32,
    /// Flows that BLUE is dropping from.
    pub unresponsive_flows: u32,
    /// Largest packet seen, before it was divided.
    pub max_packet_len: FrameLen,
    /// Flow quantum in bytes.
    pub flow_quantum: u16,
}

/// Counts that come from elsewhere may be any number.
fn add(count: &mut u64, before: u64) {
    *count = count.saturating_add(before);
}

impl TinStats {
    fn go_on_from(&mut self, before: &Self) {
        add(&mut self.packets, before.packets);
        add(&mut self.bytes, before.bytes);
        add(&mut self.way_indirect_hits, before.way_indirect_hits);
        add(&mut self.way_misses, before.way_misses);
        add(&mut self.way_collisions, before.way_collisions);
        add(&mut self.drops, before.drops);
        add(&mut self.marks, before.marks);
        add(&mut self.ack_drops, before.ack_drops);
        self.max_packet_len = self.max_packet_len.max(before.max_packet_len);
    }
}

/// A snapshot of one queue that is in some list: what `tc -s class show` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueStats {
    /// Minor number of its class: display column × 1024 + queue + 1.
    pub class: u16,
    /// Packets dropped from it by the AQM and the memory limit.
    pub drops: u64,
    /// Bytes queued.
    pub backlog: FrameLen,
    /// Packets queued.
    pub packets: u32,
    /// Bytes on the wire it may still send in this round.
    pub deficit: i32,
    /// Signals its AQM has given on the present schedule.
    pub count: u32,
    /// While it is in the drop state: how long ago the next signal was due; negative lies ahead.
    pub drop_next: Option<Span>,
    /// BLUE's drop probability, as a fraction of 2^32.
    pub blue_probability: u32,
    /// How long ago BLUE moved; only while it drops.
    pub blue_timer: Option<Span>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_goes_on_and_what_is_of_the_moment_does_not() {
        let tin = TinStats {
            packets: 5,
            drops: 1,
            backlog: FrameLen(9),
            max_packet_len: FrameLen(1514),
            sparse_flows: 2,
            ..TinStats::default()
        };
        let before = Stats {
            sent_bytes: u64::MAX,
            sent_packets: 10,
            backlog: FrameLen(9),
            memory_used: MemSize(100),
            network_size: MinMax { min: 40, max: 1400 },
            largest_burst: FrameLen(3000),
            tins: vec![tin; 3],
            ..Stats::default()
        };
        let fresh = Stats { tins: vec![TinStats::default(); 3], ..Stats::default() };
        let network_size = MinMax { min: 60, max: 1500 };
        let now = Stats { sent_bytes: 7, sent_packets: 1, network_size, ..fresh.clone() };
        let both = now.going_on_from(&before);
        assert_eq!((both.sent_bytes, both.sent_packets), (u64::MAX, 11), "it does not run over");
        assert_eq!((both.backlog, both.memory_used), (FrameLen::ZERO, MemSize(100)));
        assert_eq!(both.network_size, MinMax { min: 40, max: 1500 });
        assert_eq!(both.largest_burst, FrameLen(3000));
        let TinStats { packets, drops, backlog, max_packet_len, sparse_flows, .. } = both.tins[2];
        assert_eq!((packets, drops, backlog), (5, 1, FrameLen::ZERO));
        assert_eq!((max_packet_len, sparse_flows), (FrameLen(1514), 0));
        assert_eq!(fresh.clone().going_on_from(&Stats::default()), fresh);
    }
}
