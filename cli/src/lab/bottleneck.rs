//! What stands between client and server: two disciplines alike on a thread of their own.

use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc as tokio_mpsc;
use ucake::io::delayed::Delayed;
use ucake::io::driver::{self, Bridge, Command};
use ucake::io::pool::FrameBuf;
use ucake::io::port::Port;
use ucake::io::tap::{Tap, TapPort};
use ucake::io::timer::Timer;
use ucake::packet::Meta;
use ucake::qdisc::{Cake, Config, Dequeue, Discipline, Enqueued, Fifo, FifoConfig};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, Rate};

/// Largest frame of an ordinary packet, Ethernet header included.
const MTU_FRAME: FrameLen = FrameLen(1514);
/// Bytes on the wire behind a bottleneck without a rate.
const UNLIMITED_WIRE: u32 = 256 << 20;

/// What may stand in the bottleneck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// A drop-tail queue.
    Fifo(FifoConfig),
    /// CAKE, and the words that were typed for it.
    Cake(Box<Config>, String),
}

impl Recipe {
    /// How reports call it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Fifo(_) => "fifo".to_owned(),
            Self::Cake(_, words) if words.is_empty() => "cake".to_owned(),
            Self::Cake(_, words) => format!("cake {words}"),
        }
    }

    /// The same at a rate 50 times as low, as the slow side of a line.
    pub(super) fn slowed(&self) -> Self {
        let slow = |rate: Option<Rate>| rate.map(|rate| Rate::from_bits((rate.bits() / 50).max(8)));
        match self {
            Self::Fifo(config) => Self::Fifo(FifoConfig { rate: slow(config.rate), ..*config }),
            Self::Cake(config, words) => {
                let bandwidth = slow(config.bandwidth);
                Self::Cake(Box::new(Config { bandwidth, ..**config }), words.clone())
            }
        }
    }

    /// The rate it shapes to.
    pub(super) fn rate(&self) -> Option<Rate> {
        match self {
            Self::Fifo(config) => config.rate,
            Self::Cake(config, _) => config.shaped_rate(),
        }
    }
}

/// One direction's discipline, and what it let go at once.
struct Queue {
    kind: Kind,
    burst_at: Instant,
    burst: u64,
    largest_burst: u64,
}

enum Kind {
    Fifo(Box<Fifo<FrameBuf>>),
    Cake(Box<Cake<FrameBuf>>),
}

impl Queue {
    fn new(recipe: &Recipe) -> Self {
        let kind = match recipe {
            Recipe::Fifo(config) => Kind::Fifo(Box::new(Fifo::new(*config))),
            Recipe::Cake(config, _) => {
                let cake = Cake::new(**config, MTU_FRAME, crate::secret());
                Kind::Cake(Box::new(cake))
            }
        };
        Self { kind, burst_at: Instant::ZERO, burst: 0, largest_burst: 0 }
    }

    /// Packets dropped and marked.
    fn counts(&self) -> (u64, u64) {
        match &self.kind {
            Kind::Fifo(fifo) => (fifo.stats().dropped, 0),
            Kind::Cake(cake) => {
                let stats = cake.stats();
                (stats.dropped, stats.tins.iter().map(|tin| tin.marks).sum())
            }
        }
    }

    fn count_burst(&mut self, len: FrameLen, now: Instant) {
        if now != self.burst_at {
            self.burst_at = now;
            self.burst = 0;
        }
        self.burst += u64::from(len.bytes());
        self.largest_burst = self.largest_burst.max(self.burst);
    }
}

impl Discipline<FrameBuf> for Queue {
    fn enqueue(&mut self, frame: FrameBuf, meta: &Meta, now: Instant) -> Enqueued {
        match &mut self.kind {
            Kind::Fifo(fifo) => fifo.enqueue(frame, meta, now),
            Kind::Cake(cake) => cake.enqueue(frame, meta, now),
        }
    }

    fn dequeue(&mut self, now: Instant) -> Dequeue<FrameBuf> {
        let answer = match &mut self.kind {
            Kind::Fifo(fifo) => fifo.dequeue(now),
            Kind::Cake(cake) => cake.dequeue(now),
        };
        if let Dequeue::Send(departure) = &answer {
            self.count_burst(departure.len, now);
        }
        answer
    }

    fn backlog(&self) -> FrameLen {
        match &self.kind {
            Kind::Fifo(fifo) => fifo.backlog(),
            Kind::Cake(cake) => cake.backlog(),
        }
    }

    fn wants_min_rtt(&self) -> bool {
        match &self.kind {
            Kind::Fifo(_) => false,
            Kind::Cake(cake) => cake.wants_min_rtt(),
        }
    }

    fn held_up(&mut self) {
        if let Kind::Cake(cake) = &mut self.kind {
            cake.held_up();
        }
    }
}

/// Counters of both directions at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Packets dropped by the disciplines.
    pub(super) drops: u64,
    /// Packets marked by them.
    pub(super) marks: u64,
    /// Processor time of the thread so far.
    pub(super) cpu: Duration,
    /// Largest burst since the sample before.
    pub(super) largest_burst: u64,
}

/// A bottleneck at work; it stops when dropped.
pub(super) struct Bottleneck {
    commands: tokio_mpsc::Sender<Command<Queue>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Bottleneck {
    /// Puts `up` and `down` between two taps, with half of `rtt` behind it each way.
    pub(super) fn start(
        lan: Tap,
        wan: Tap,
        [up, down]: [&Recipe; 2],
        rtt: Span,
    ) -> anyhow::Result<Self> {
        let (commands, mut inbox) = tokio_mpsc::channel(4);
        let (report, ready) = mpsc::channel();
        let (up, down) = (up.clone(), down.clone());
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (mut bridge, mut timer) = bridge(lan, wan, [&up, &down], rtt)?;
                // Whoever asked may have given up.
                let _ = report.send(());
                driver::run(&mut bridge, &mut timer, &mut inbox).await?;
                Ok(())
            })
        };
        let thread = thread::Builder::new()
            .name("bottleneck".to_owned())
            .spawn(work)
            .context("cannot start a thread")?;
        let mut bottleneck = Self { commands, thread: Some(thread) };
        match ready.recv() {
            Ok(()) => Ok(bottleneck),
            Err(_) => Err(bottleneck.failure()),
        }
    }

    /// Counters now.
    pub(super) fn sample(&mut self) -> anyhow::Result<Sample> {
        let (reply, answer) = mpsc::channel();
        let action = move |bridge: &mut Bridge<Queue>| {
            // Whoever asked may have given up.
            let _ = reply.send(sample(bridge));
        };
        let sent = self.commands.blocking_send(Command::With(Box::new(action)));
        match sent.ok().and_then(|()| answer.recv().ok()) {
            Some(sample) => Ok(sample),
            None => Err(self.failure()),
        }
    }

    /// Why the thread ended, now that it has.
    fn failure(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => anyhow!("the bottleneck stopped unexpectedly"),
        }
    }
}

impl Drop for Bottleneck {
    fn drop(&mut self) {
        // It may have stopped by itself.
        let _ = self.commands.blocking_send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bridge(
    lan: Tap,
    wan: Tap,
    [up, down]: [&Recipe; 2],
    rtt: Span,
) -> anyhow::Result<(Bridge<Queue>, Timer)> {
    let timer = Timer::new().context("cannot make a timer")?;
    let half = Span::from_nanos(rtt.nanos() / 2);
    let lan = behind(lan, up.rate(), half)?;
    let wan = behind(wan, down.rate(), half)?;
    let bridge = Bridge::new(lan, wan, Queue::new(up), Queue::new(down));
    Ok((bridge.with_hash_key(crate::secret().hash_key), timer))
}

/// A tap at the end of a wire that is `delay` long.
fn behind(tap: Tap, rate: Option<Rate>, delay: Span) -> io::Result<Box<dyn Port>> {
    let port = TapPort::new(tap).map_err(io::Error::other)?;
    if delay == Span::ZERO {
        return Ok(Box::new(port));
    }
    Ok(Box::new(Delayed::new(port, delay, FrameLen(wire_capacity(rate, delay)))))
}

/// Twice what can be on the wire, and room for a few superpackets.
fn wire_capacity(rate: Option<Rate>, delay: Span) -> u32 {
    let Some(rate) = rate else { return UNLIMITED_WIRE };
    let micros = delay.nanos_or_zero() / 1_000;
    let bytes = u128::from(rate.bytes()) * u128::from(micros) / 1_000_000;
    u32::try_from(2 * bytes + (1 << 20)).unwrap_or(u32::MAX)
}

fn sample(bridge: &mut Bridge<Queue>) -> Sample {
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    let mut sample =
        Sample { cpu: Duration::try_from(cpu).unwrap_or_default(), ..Sample::default() };
    for queue in [Bridge::up, Bridge::down].map(|side| {
        let queue = side(bridge);
        let burst = std::mem::take(&mut queue.largest_burst);
        (queue.counts(), burst)
    }) {
        let ((drops, marks), burst) = queue;
        sample.drops += drops;
        sample.marks += marks;
        sample.largest_burst = sample.largest_burst.max(burst);
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_holds_twice_what_can_be_on_it() {
        let rate = Some(Rate::from_bits(80_000_000));
        assert_eq!(wire_capacity(rate, Span::from_millis(100)), 2_000_000 + (1 << 20));
        assert_eq!(wire_capacity(None, Span::from_millis(1)), UNLIMITED_WIRE);
        let huge = Some(Rate::from_bytes(u64::MAX / 8));
        assert_eq!(wire_capacity(huge, Span::from_secs(10)), u32::MAX);
    }
}
