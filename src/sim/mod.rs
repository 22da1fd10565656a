//! A virtual world: sources, a discipline, and a clock that jumps from event to event.
//!
//! Problem: what a discipline does must be seen without a machine's noise, and be the same tomorrow.
//! Law: everything follows from the sources, the discipline and its seed; no clock is read.
//! Left out: links after the discipline (the receiver is at its end; responsive sources keep their own
//! round-trip time), real packets (`io`).
//!
//! # A scenario
//!
//! A [`World`] is a discipline with sources in front of it: [`Reno`] answers to loss and marks, [`Constant`]
//! does not, [`Backlogged`] always has packets. Each sends what a [`flow`] of its own looks like, told
//! apart by number, with DSCP, ECN, length and hosts put in by `with_dscp` and its like; [`Source::during`] lets
//! it come later or go earlier. [`World::run`] gives the [`Report`], which prints as a table, and the discipline with its
//! statistics. `examples/virtual_minute.rs` is a household in twenty lines.
//!
//! ```
//! use ucake::qdisc::{Cake, Config, Entropy};
//! use ucake::sim::{Constant, Reno, World, flow};
//! use ucake::time::Span;
//! use ucake::units::{FrameLen, Rate};
//!
//! let config = Config { bandwidth: Some(Rate::from_bits(10_000_000)), ..Config::default() };
//! let cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
//! let mut world = World::new(cake);
//! let upload = world.add("upload", Reno::new(flow(1), Span::from_millis(20)));
//! let voice = world.add("voice", Constant::new(flow(2), FrameLen(214), Span::from_millis(20)));
//! let (report, cake) = world.run(Span::from_secs(10));
//! assert_eq!((report[voice].delivered, report[voice].lost), (500, 0));
//! assert!(report[voice].sojourn(100) < Span::from_millis(3));
//! assert!(report[upload].bits_per_second(report.span) > 9_500_000.0);
//! assert_eq!(cake.stats().dropped, report[upload].lost);
//! ```
//!
//! # A discipline of one's own
//!
//! Whatever implements [`Discipline`] can stand in a world, and behind real ports as well. Three methods are
//! enough: take a frame, say what is to be done now, and how much is queued. `examples/custom_discipline.rs`
//! is one in forty lines, compared with drop-tail and CAKE.

mod source;

pub use source::{Backlogged, Constant, During, Reno, Source, flow};

use crate::packet::{Ecn, Frame, Meta, TcpHeader};
use crate::qdisc::{Dequeue, Discipline};
use crate::time::{Instant, Span};
use core::fmt;
use core::ops::Index;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// When virtual time begins. Not zero: an instance's clocks start at zero and must find themselves in
/// the past, as on a machine that has been up for a while.
pub const BEGIN: Instant = Instant::from_nanos(1_000_000_000_000);

/// A frame without bytes.
///
/// ```
/// use ucake::packet::{Ecn, Frame};
/// use ucake::sim::{SimFrame, flow};
/// let mut frame = SimFrame::new(&flow(1).with_ecn(Ecn::Ect0));
/// assert!(frame.mark_ce() && frame.ce);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFrame {
    /// Which source sent it.
    pub source: usize,
    /// How many its source had sent before it.
    pub sequence: u64,
    /// Segment of a superpacket; 0 otherwise.
    pub segment: u16,
    /// Segments that it still is; 1 unless it is a superpacket that was not divided.
    pub segments: u16,
    /// Whether CE can be set.
    pub ecn_capable: bool,
    /// Whether CE is set.
    pub ce: bool,
    /// Whether the DSCP was cleared.
    pub washed: bool,
    /// What an ACK filter gets to see; boxed, for few frames have it.
    pub tcp: Option<Box<TcpHeader>>,
}

impl SimFrame {
    /// A frame that can be marked if `meta` says so.
    #[must_use]
    pub fn new(meta: &Meta) -> Self {
        let ce = meta.ecn == Ecn::Ce;
        let ecn_capable = meta.ecn.takes_ce();
        Self {
            source: 0,
            sequence: 0,
            segment: 0,
            segments: meta.segments.count,
            ecn_capable,
            ce,
            washed: false,
            tcp: None,
        }
    }

    /// Its number, and that of the packet after it, among all that its source sent.
    fn sequences(&self) -> (u64, u64) {
        let first = self.sequence.saturating_add(u64::from(self.segment));
        (first, first.saturating_add(u64::from(self.segments)))
    }
}

impl Frame for SimFrame {
    fn mark_ce(&mut self) -> bool {
        self.ce |= self.ecn_capable;
        self.ecn_capable
    }

    fn wash(&mut self) -> bool {
        self.washed = true;
        true
    }

    fn segment(&self, index: u16) -> Self {
        Self { segment: index, segments: 1, ..self.clone() }
    }

    fn tcp(&self) -> Option<TcpHeader> {
        self.tcp.as_deref().copied()
    }
}

/// Sources in front of a discipline.
///
/// ```
/// use ucake::qdisc::{Fifo, FifoConfig};
/// use ucake::sim::{Reno, World, flow};
/// use ucake::time::Span;
/// use ucake::units::Rate;
///
/// let rate = Some(Rate::from_bits(20_000_000));
/// let mut world = World::new(Fifo::new(FifoConfig { rate, limit: 1000, split: true }));
/// let upload = world.add("upload", Reno::new(flow(1), Span::from_millis(20)));
/// let (report, fifo) = world.run(Span::from_secs(30));
/// assert!(report[upload].sojourn(50) > Span::from_millis(100), "drop-tail stands");
/// assert_eq!(fifo.stats().dropped, report[upload].lost);
/// ```
pub struct World<D> {
    discipline: D,
    sources: Vec<Box<dyn Source>>,
    names: Vec<String>,
}

impl<D: Discipline<SimFrame>> World<D> {
    /// A world without sources.
    #[must_use]
    pub fn new(discipline: D) -> Self {
        Self { discipline, sources: Vec::new(), names: Vec::new() }
    }

    /// Adds a source; its number is its place in the report. Names may be anything, also the same.
    pub fn add(&mut self, name: &str, source: impl Source + 'static) -> usize {
        self.sources.push(Box::new(source));
        self.names.push(name.to_owned());
        self.sources.len() - 1
    }

    /// Lets `span` of virtual time pass, from [`BEGIN`]; gives what was seen and the discipline as it
    /// then stands.
    #[must_use]
    pub fn run(self, span: Span) -> (Report, D) {
        let count = self.sources.len();
        let mut run = Run {
            discipline: self.discipline,
            sources: self.sources,
            events: (0..count).map(|source| Reverse((BEGIN, source))).collect(),
            sent: vec![0; count],
            report: Report {
                span,
                sources: self.names.into_iter().map(SourceReport::new).collect(),
            },
            outbox: Vec::new(),
        };
        run.until(BEGIN + span);
        (run.report, run.discipline)
    }
}

/// A world under way.
struct Run<D> {
    discipline: D,
    sources: Vec<Box<dyn Source>>,
    /// When to ask which source.
    events: BinaryHeap<Reverse<(Instant, usize)>>,
    sent: Vec<u64>,
    report: Report,
    outbox: Vec<Meta>,
}

impl<D: Discipline<SimFrame>> Run<D> {
    fn until(&mut self, end: Instant) {
        let mut wake = Instant::MAX;
        loop {
            let arrival = self.events.peek().map_or(Instant::MAX, |&Reverse((at, _))| at);
            let now = arrival.min(wake);
            if now >= end {
                return;
            }
            while let Some(&Reverse((at, source))) = self.events.peek()
                && at <= now
            {
                self.events.pop();
                self.ask(source, now);
            }
            wake = self.drain(now);
        }
    }

    fn ask(&mut self, source: usize, now: Instant) {
        self.outbox.clear();
        let (Some(asked), Some(sent)) = (self.sources.get_mut(source), self.sent.get_mut(source))
        else {
            return;
        };
        let next = asked.due(&mut self.outbox, now);
        for meta in self.outbox.drain(..) {
            let sequence = *sent;
            *sent += u64::from(meta.segments.count);
            let frame = SimFrame { source, sequence, ..SimFrame::new(&meta) };
            self.discipline.enqueue(frame, &meta, now);
        }
        if let Some(at) = next {
            self.events.push(Reverse((at.max(now), source)));
        }
    }

    /// Takes out all that may leave at `now`; says when more may.
    fn drain(&mut self, now: Instant) -> Instant {
        loop {
            match self.discipline.dequeue(now) {
                Dequeue::Send(departure) => {
                    let source = departure.frame.source;
                    if let Some(report) = self.report.sources.get_mut(source) {
                        report.observe(&departure);
                    }
                    let sender = self.sources.get_mut(source);
                    let next = sender.and_then(|sender| sender.delivered(&departure, now));
                    if let Some(at) = next {
                        self.events.push(Reverse((at.max(now), source)));
                    }
                }
                Dequeue::Wait(wake) if wake.at <= now => {}
                Dequeue::Wait(wake) => return wake.at,
                Dequeue::Idle => return Instant::MAX,
            }
            // What a delivery let a source send takes part in the next decision.
            while let Some(&Reverse((at, source))) = self.events.peek()
                && at <= now
            {
                self.events.pop();
                self.ask(source, now);
            }
        }
    }
}

/// What a run came to; prints as a table. Indexed by the number that [`World::add`] gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How long it ran.
    pub span: Span,
    /// Each source, in the order they were added.
    pub sources: Vec<SourceReport>,
}

impl Report {
    /// Bits delivered per second, of all sources together.
    #[must_use]
    pub fn bits_per_second(&self) -> f64 {
        self.sources.iter().map(|source| source.bits_per_second(self.span)).sum()
    }
}

impl Index<usize> for Report {
    type Output = SourceReport;

    /// The report of a source.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    #[expect(clippy::indexing_slicing, reason = "as an index is understood")]
    fn index(&self, source: usize) -> &SourceReport {
        &self.sources[source]
    }
}

/// What became of one source's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceReport {
    /// Its name.
    pub name: String,
    /// Packets delivered; an undivided superpacket counts its segments.
    pub delivered: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Those of them that had CE.
    pub marked: u64,
    /// Packets missing between those that were delivered.
    pub lost: u64,
    /// Whether any packet overtook an earlier one.
    pub reordered: bool,
    next_sequence: u64,
    sojourns: Vec<Span>,
}

impl SourceReport {
    fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    fn observe(&mut self, departure: &crate::qdisc::Departure<SimFrame>) {
        let frame = &departure.frame;
        let (sequence, next) = frame.sequences();
        self.delivered += u64::from(frame.segments);
        self.bytes += u64::from(departure.len.0);
        self.marked += if frame.ce { u64::from(frame.segments) } else { 0 };
        self.lost = self.lost.saturating_add(sequence.saturating_sub(self.next_sequence));
        self.reordered |= sequence < self.next_sequence;
        self.next_sequence = next;
        self.sojourns.push(departure.sojourn);
    }

    /// Bits delivered per second over `span`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    pub fn bits_per_second(&self, span: Span) -> f64 {
        self.bytes as f64 * 8.0 / span.secs_f64()
    }

    /// The sojourn time that `percent` of the departures did not exceed; zero without any.
    #[must_use]
    pub fn sojourn(&self, percent: usize) -> Span {
        let mut sorted = self.sojourns.clone();
        sorted.sort_unstable();
        let at = (sorted.len().saturating_mul(percent) / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or(Span::ZERO)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "source           packets      kbit/s   lost  marked    p50 us    p99 us    max us"
        )?;
        for source in &self.sources {
            writeln!(
                f,
                "{:<14} {:>9} {:>11.0} {:>6} {:>7} {:>9} {:>9} {:>9}",
                source.name,
                source.delivered,
                source.bits_per_second(self.span) / 1000.0,
                source.lost,
                source.marked,
                source.sojourn(50).micros(),
                source.sojourn(99).micros(),
                source.sojourn(100).micros(),
            )?;
        }
        Ok(())
    }
}
