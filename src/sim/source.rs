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
///
/// ```
/// use ucake::packet::Meta;
/// use ucake::qdisc::{Cake, Config, Entropy};
/// use ucake::sim::{Source, World, flow};
/// use ucake::time::{Instant, Span};
/// use ucake::units::FrameLen;
///
/// /// A page of 20 packets every second.
/// struct Pages(Meta);
///
/// impl Source for Pages {
///     fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant> {
///         outbox.extend([self.0; 20]);
///         Some(now + Span::from_secs(1))
///     }
/// }
///
/// let cake = Cake::new(Config::default(), FrameLen(1514), Entropy::from_seed(1));
/// let mut world = World::new(cake);
/// let pages = world.add("pages", Pages(flow(1)));
/// let (report, _) = world.run(Span::from_secs(10));
/// assert_eq!(report[pages].delivered, 200);
/// ```
pub trait Source {
    /// Hands over what is to be sent at `now`; returns when to be asked again, if ever. It may be asked
    /// earlier than that.
    fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant>;

    /// One of its packets left the discipline; returns when to be asked because of that, if at all.
    fn delivered(&mut self, _departure: &Departure<SimFrame>, _now: Instant) -> Option<Instant> {
        None
    }

    /// The same, but it sends only from `from` to `until` after the beginning.
    ///
    /// ```
    /// use ucake::sim::{Reno, Source, flow};
    /// use ucake::time::Span;
    /// let late = Reno::new(flow(1), Span::from_millis(20))
    ///     .during(Span::from_secs(20), Span::from_secs(40));
    /// ```
    #[must_use]
    fn during(self, from: Span, until: Span) -> During<Self>
    where
        Self: Sized,
    {
        During { source: self, from: BEGIN + from, until: BEGIN + until }
    }
}

/// A source that comes later or goes earlier than the world; made by [`Source::during`].
#[derive(Clone, Debug)]
pub struct During<S> {
    source: S,
    from: Instant,
    until: Instant,
}

impl<S: Source> Source for During<S> {
    fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant> {
        if now < self.from {
            return Some(self.from);
        }
        if now >= self.until {
            return None;
        }
        self.source.due(outbox, now)
    }

    fn delivered(&mut self, departure: &Departure<SimFrame>, now: Instant) -> Option<Instant> {
        self.source.delivered(departure, now)
    }
}

/// A flow like any other, told apart by `number`: full-sized packets (1514 bytes) of TCP over IPv4 from host
/// 1 to host 2, best effort, not ECN-capable. What is to be different is put in.
///
/// ```
/// use ucake::packet::Ecn;
/// use ucake::sim::flow;
/// use ucake::units::FrameLen;
/// let voice = flow(7).with_dscp(46).with_len(FrameLen(214)).between(3, 4).with_ecn(Ecn::Ect0);
/// assert_eq!((voice.dscp.value(), voice.len), (46, FrameLen(214)));
/// ```
#[must_use]
pub fn flow(number: u16) -> Meta {
    let meta = Meta {
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
    };
    meta.with_len(FrameLen(1514))
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
///
/// ```
/// use ucake::sim::{Constant, flow};
/// use ucake::time::Span;
/// use ucake::units::FrameLen;
/// // A call: 214 bytes every 20 ms, Expedited Forwarding.
/// let call = Constant::new(flow(1).with_dscp(46), FrameLen(214), Span::from_millis(20));
/// ```
#[derive(Clone, Debug)]
pub struct Constant {
    meta: Meta,
    every: Span,
}

impl Constant {
    /// A packet of `len` (a superpacket: of the length it has) every `every`, at least a nanosecond apart.
    #[must_use]
    pub fn new(meta: Meta, len: FrameLen, every: Span) -> Self {
        let meta = if meta.segments.count > 1 { meta } else { meta.with_len(len) };
        Self { meta, every: every.max(Span::from_nanos(1)) }
    }
}

impl Source for Constant {
    fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant> {
        outbox.push(self.meta);
        Some(now + self.every)
    }
}

/// Always has packets queued: one more for each that was delivered.
///
/// ```
/// use ucake::sim::{Backlogged, flow};
/// let bulk = Backlogged::new(flow(1), 4);
/// ```
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
///
/// It finds out by the next packet that is delivered, so that a sender whose packets are all lost stops.
///
/// ```
/// use ucake::sim::{Reno, flow};
/// use ucake::time::Span;
/// let upload = Reno::new(flow(1), Span::from_millis(20));
/// ```
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
            self.in_flight += u64::from(self.meta.segments.count.max(1));
        }
        // Each acknowledgement announced itself when its packet was delivered.
        None
    }

    fn delivered(&mut self, departure: &Departure<SimFrame>, now: Instant) -> Option<Instant> {
        let (sequence, next) = departure.frame.sequences();
        let lost = sequence.saturating_sub(self.next_sequence);
        let seen = next.saturating_sub(self.next_sequence);
        self.next_sequence = next;
        let at = now + self.round_trip;
        self.acks.push_back((at, seen, lost > 0 || departure.frame.ce));
        Some(at)
    }
}
