//! Sources: who sends what, when.
//!
//! Problem: a discipline is judged by what it does to senders that behave in known ways.
//! Law: a source is asked when it is due, hands over what it sends then, and says when to be asked again;
//! it is told of each of its packets that was delivered.
//! Left out: real TCP. [`Reno`] is additive increase, multiplicative decrease and nothing else.

use super::{BEGIN, SimFrame};
use crate::packet::{Dscp, ETHERTYPE_IPV4, Ecn, FlowKey, Meta, Segments};
use crate::qdisc::Departure;
use crate::time::{Instant, Span};
use crate::units::{FrameLen, MemSize};

/// Something that sends.
pub trait Source {
    /// Hands over what is to be sent at `now`; returns when to be asked again, if ever.
    fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant>;

    /// One of its packets left the discipline; returns when to be asked because of that, if at all.
    fn delivered(&mut self, _departure: &Departure<SimFrame>, _now: Instant) -> Option<Instant> {
        None
    }
}

/// A flow like any other, told apart by `number`: TCP over IPv4 from host 1 to host 2.
#[must_use]
pub fn flow(number: u16) -> Meta {
    Meta {
        network_offset: 14,
        flow: FlowKey {
            ethertype: ETHERTYPE_IPV4,
            ip_proto: 6,
            source: 1,
            destination: 2,
            source_port: number,
            destination_port: 443,
            ..FlowKey::default()
        },
        ..Meta::default()
    }
}

impl Meta {
    /// The same with `len` bytes of frame; its memory is that and a little more.
    #[must_use]
    pub fn with_len(self, len: FrameLen) -> Self {
        Self { len, truesize: MemSize(u64::from(len.0) + 256), ..self }
    }

    /// The same between other hosts.
    #[must_use]
    pub fn between(mut self, source: u32, destination: u32) -> Self {
        self.flow.source = u128::from(source);
        self.flow.destination = u128::from(destination);
        self
    }

    /// The same with another code point.
    #[must_use]
    pub fn with_dscp(self, dscp: u8) -> Self {
        Self { dscp: Dscp::new(dscp), ..self }
    }

    /// The same with another ECN field.
    #[must_use]
    pub fn with_ecn(self, ecn: Ecn) -> Self {
        Self { ecn, ..self }
    }

    /// A superpacket of `count` segments of `mss` bytes each behind 66 bytes of headers.
    #[must_use]
    pub fn superpacket(self, count: u16, mss: u16) -> Self {
        let len = FrameLen(66 + u32::from(count) * u32::from(mss));
        Self { segments: Segments { count, mss, header_len: 66 }, ..self.with_len(len) }
    }
}

/// Sends one packet every so often, whatever becomes of it.
#[derive(Clone, Debug)]
pub struct Constant {
    meta: Meta,
    every: Span,
    from: Instant,
    until: Instant,
}

impl Constant {
    /// A packet of `len` every `every`, from the beginning, for ever.
    #[must_use]
    pub fn new(meta: Meta, len: FrameLen, every: Span) -> Self {
        let meta = if meta.segments.count > 1 { meta } else { meta.with_len(len) };
        Self { meta, every: every.max(Span::from_nanos(1)), from: BEGIN, until: Instant::MAX }
    }

    /// The same, but only from `from` to `until` after the beginning.
    #[must_use]
    pub fn during(self, from: Span, until: Span) -> Self {
        Self { from: BEGIN + from, until: BEGIN + until, ..self }
    }
}

impl Source for Constant {
    fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant> {
        if now < self.from {
            return Some(self.from);
        }
        if now >= self.until {
            return None;
        }
        outbox.push(self.meta);
        Some(now + self.every)
    }
}

/// Always has packets queued: one more for each that was delivered.
#[derive(Clone, Debug)]
pub struct Backlogged {
    meta: Meta,
    depth: u32,
    missing: u32,
}

impl Backlogged {
    /// Keeps `depth` packets of `meta`'s length queued, as long as none is dropped.
    #[must_use]
    pub fn new(meta: Meta, depth: u32) -> Self {
        Self { meta, depth, missing: 0 }
    }
}

impl Source for Backlogged {
    fn due(&mut self, outbox: &mut Vec<Meta>, _now: Instant) -> Option<Instant> {
        let first = std::mem::take(&mut self.depth);
        let sending = first.saturating_add(std::mem::take(&mut self.missing));
        outbox.extend((0..sending).map(|_| self.meta));
        None
    }

    fn delivered(&mut self, departure: &Departure<SimFrame>, now: Instant) -> Option<Instant> {
        // A train counts as one packet: the next is sent when its last segment has left.
        let whole = departure.len == self.meta.counted_len();
        if !whole && departure.frame.segment.saturating_add(1) < self.meta.segments.count {
            return None;
        }
        self.missing = self.missing.saturating_add(1);
        Some(now)
    }
}

/// A responsive sender: a window that doubles each round trip until packets are first lost or marked, then
/// grows by one packet per round trip and halves, at most once per round trip, when that happens again.
#[derive(Clone, Debug)]
pub struct Reno {
    meta: Meta,
    round_trip: Span,
    /// In 1/1000 packets.
    window: u64,
    in_flight: u64,
    next_sequence: u64,
    acks: std::collections::VecDeque<(Instant, u64, bool)>,
    calm_until: Instant,
    slow_start: bool,
}

impl Reno {
    /// A sender of packets of `meta`'s length whose acknowledgements come `round_trip` after delivery.
    #[must_use]
    pub fn new(meta: Meta, round_trip: Span) -> Self {
        Self {
            meta,
            round_trip,
            window: 10_000,
            in_flight: 0,
            next_sequence: 0,
            acks: std::collections::VecDeque::new(),
            calm_until: BEGIN,
            slow_start: true,
        }
    }

    fn acknowledge(&mut self, packets: u64, congested: bool, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(packets);
        if congested && now >= self.calm_until {
            self.window = (self.window / 2).max(2_000);
            self.calm_until = now + self.round_trip;
            self.slow_start = false;
        } else if self.slow_start {
            self.window = self.window.saturating_add(packets.saturating_mul(1000));
        } else if !congested {
            self.window += 1_000_000 / self.window.max(1);
        }
    }
}

impl Source for Reno {
    fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant> {
        while let Some(&(at, packets, congested)) = self.acks.front()
            && at <= now
        {
            self.acks.pop_front();
            self.acknowledge(packets, congested, now);
        }
        while self.in_flight < self.window / 1000 {
            outbox.push(self.meta);
            self.in_flight += 1;
        }
        // Each acknowledgement announced itself when its packet was delivered.
        None
    }

    fn delivered(&mut self, departure: &Departure<SimFrame>, now: Instant) -> Option<Instant> {
        let lost = departure.frame.sequence.saturating_sub(self.next_sequence);
        self.next_sequence = departure.frame.sequence.saturating_add(1);
        let at = now + self.round_trip;
        self.acks.push_back((at, lost.saturating_add(1), lost > 0 || departure.frame.ce));
        Some(at)
    }
}
