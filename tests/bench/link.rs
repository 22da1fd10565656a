//! The bridge on real taps with real TCP: is the rate that is set the rate that leaves, and how late do
//! wake-ups run? What it costs is measured by `superpackets.rs`.
//!
//! `cargo bench --bench link [-- --json FILE]`, as root, on a machine that does little else.

use std::error::Error;
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant as Wall};

use serde_json::{Value, json};
use ucake::io::namespace::Namespace;
use ucake::io::pool::FrameBuf;
use ucake::io::tap::{Tap, TapOptions};
use ucake::packet::Meta;
use ucake::qdisc::{Cake, Config, Dequeue, Discipline, Enqueued};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, Rate};

use lab::{Family, Lab, cake};

#[path = "../netns/lab.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod lab;

/// TCP connections from client to server.
const FLOWS: usize = 4;
const RATES_MBIT: [u64; 4] = [1, 20, 100, 1000];
/// How long each rate is measured, once its queue stands.
const SHAPED: Duration = Duration::from_secs(5);
/// How long TCP may take to fill the link.
const SHAPED_WARM_UP: Duration = Duration::from_secs(2);
/// How far the rate may be off.
const TOLERANCE: f64 = 0.01;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word == "--bench") {
        println!("run by: cargo bench --bench link");
        return Ok(ExitCode::SUCCESS);
    }
    let json = match words.iter().filter(|word| *word != "--bench").collect::<Vec<_>>()[..] {
        [] => None,
        [option, path] if option == "--json" => Some(path),
        _ => return Err("the only option is --json FILE".into()),
    };
    Namespace::new("probe")?.run(|| Tap::open("probe0", &TapOptions::default()).map(drop))?;
    let shaped = measured_shaping();
    if let Some(path) = json {
        let shaped: Vec<_> = shaped.iter().map(Shaped::json).collect();
        let report = json!({ "flows": FLOWS, "shaped": shaped });
        writeln!(std::fs::File::create(path)?, "{report:#}")?;
    }
    let off = shaped.iter().filter(|shaped| (shaped.of_the_rate() - 1.0).abs() > TOLERANCE).count();
    if off > 0 {
        println!("{off} of the rates are off by more than {} %", TOLERANCE * 100.0);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// A rate, and how it was kept.
struct Shaped {
    rate: Rate,
    wire_bytes: u64,
    span: Span,
    /// Times the queue ran dry.
    dry: u64,
    /// Nanoseconds that wake-ups of the shaper ran late, in order.
    lateness: Vec<i64>,
}

impl Shaped {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    fn bits_per_second(&self) -> f64 {
        self.wire_bytes as f64 * 8.0 / self.span.secs_f64()
    }

    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    fn of_the_rate(&self) -> f64 {
        self.bits_per_second() / self.rate.bits() as f64
    }

    /// Microseconds.
    fn late(&self, per_mille: usize) -> Option<i64> {
        let last = self.lateness.len().checked_sub(1)?;
        Some(self.lateness[last * per_mille / 1000] / 1000)
    }

    fn json(&self) -> Value {
        json!({
            "rate_bit": self.rate.bits(),
            "wire_bit": self.bits_per_second().round(),
            "of_the_rate": self.of_the_rate(),
            "ran_dry": self.dry,
            "wakeups": self.lateness.len(),
            "late_us": { "p50": self.late(500), "p99": self.late(990), "max": self.late(1000) },
        })
    }

    fn print(&self) {
        let micros = |at| self.late(at).map_or("-".to_owned(), |late| late.to_string());
        println!(
            "{:15} {:13.3} {:13.4} {:9} {:10} {:>14}",
            self.rate.bits() / 1_000_000,
            self.bits_per_second() / 1e6,
            self.of_the_rate(),
            self.dry,
            self.lateness.len(),
            format!("{} / {}", micros(500), micros(990)),
        );
    }
}

fn measured_shaping() -> Vec<Shaped> {
    println!("CAKE both ways, split-gso, {FLOWS} TCP uploads and some UDP, {SHAPED:?} each");
    println!(
        "{:>15} {:>13} {:>13} {:>9} {:>10} {:>14}",
        "rate set Mbit/s", "wire Mbit/s", "of the rate", "ran dry", "wake-ups", "late p50/p99 µs",
    );
    let rates = RATES_MBIT.map(|mbit| Rate::from_bits(mbit * 1_000_000));
    rates
        .into_iter()
        .map(|rate| {
            let shaped = shaped_to(rate);
            shaped.print();
            shaped
        })
        .collect()
}

fn shaped_to(rate: Rate) -> Shaped {
    let lab = Lab::new();
    let config = Config { bandwidth: Some(rate), ..Config::default() };
    let bridge = lab.bridge_of(move || Metered::new(cake(config)));
    // TCP alone lets a slow link run dry now and then.
    let load = (lab.load(FLOWS), Datagrams::start(&lab, rate));
    thread::sleep(SHAPED_WARM_UP);
    bridge.ask(|bridge| bridge.up().begin());
    thread::sleep(SHAPED);
    let mut shaped = bridge.ask(move |bridge| bridge.up().end(rate));
    drop(load);
    bridge.stop().expect("a clean stop");
    shaped.lateness.sort_unstable();
    shaped
}

/// UDP from client to server, until dropped: a little more than the rate, if that is not much.
struct Datagrams {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Datagrams {
    fn start(lab: &Lab, rate: Rate) -> Self {
        const PAYLOAD: usize = 1400;
        const MOST_PER_SECOND: u64 = 4_000;
        let [client, server] = [Family::V4.client(), Family::V4.server()];
        let source = lab.client.run(move || UdpSocket::bind((client, 0))).expect("our address");
        // It need not read: what it holds is soon full, and the kernel drops the rest.
        let sink = lab.server.run(move || UdpSocket::bind((server, 0))).expect("our address");
        source.connect(sink.local_addr().expect("bound")).expect("there is a way");
        let per_second = (rate.bytes() / 1_100).clamp(1, MOST_PER_SECOND);
        let gap = Duration::from_nanos(1_000_000_000 / per_second);
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        let work = move || {
            let mut next = Wall::now();
            while !told.load(Ordering::Relaxed) && source.send(&[7; PAYLOAD]).is_ok() {
                next += gap;
                thread::sleep(next.saturating_duration_since(Wall::now()));
            }
            drop(sink);
        };
        Self { stop, thread: Some(thread::spawn(work)) }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of it was printed already.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// CAKE, and a look at what leaves it and when, for as long as there is something to leave.
struct Metered {
    cake: Cake<FrameBuf>,
    /// First and last departure since the queue last ran dry.
    busy: Option<(Instant, Instant)>,
    /// Bytes that left in all such times, and those of the last departure.
    wire_bytes: u64,
    last_wire_bytes: u64,
    span: Span,
    dry: u64,
    wake_at: Option<Instant>,
    lateness: Vec<i64>,
}

impl Metered {
    fn new(cake: Cake<FrameBuf>) -> Self {
        Self {
            cake,
            busy: None,
            wire_bytes: 0,
            last_wire_bytes: 0,
            span: Span::ZERO,
            dry: 0,
            wake_at: None,
            lateness: Vec::with_capacity(1 << 20),
        }
    }

    fn begin(&mut self) {
        (self.busy, self.span) = (None, Span::ZERO);
        (self.wire_bytes, self.last_wire_bytes, self.dry) = (0, 0, 0);
        self.lateness.clear();
    }

    fn end(&mut self, rate: Rate) -> Shaped {
        self.pause();
        Shaped {
            rate,
            wire_bytes: self.wire_bytes,
            span: self.span,
            dry: self.dry,
            lateness: std::mem::take(&mut self.lateness),
        }
    }

    /// Nothing to send. The last one's time on the wire began where the busy time ended.
    fn pause(&mut self) {
        let Some((first, last)) = self.busy.take() else { return };
        self.span += last - first;
        self.wire_bytes -= self.last_wire_bytes;
    }
}

impl Discipline<FrameBuf> for Metered {
    fn enqueue(&mut self, frame: FrameBuf, meta: &Meta, now: Instant) -> Enqueued {
        self.cake.enqueue(frame, meta, now)
    }

    fn dequeue(&mut self, now: Instant) -> Dequeue<FrameBuf> {
        if let Some(at) = self.wake_at.take_if(|at| *at <= now) {
            self.lateness.push((now - at).nanos());
        }
        let answer = self.cake.dequeue(now);
        match &answer {
            Dequeue::Send(departure) => {
                let (first, _) = self.busy.unwrap_or((now, now));
                self.busy = Some((first, now));
                self.last_wire_bytes = u64::from(departure.wire_len.bytes());
                self.wire_bytes += self.last_wire_bytes;
            }
            Dequeue::Wait(wake) => self.wake_at = Some(wake.at),
            Dequeue::Idle => {
                self.wake_at = None;
                self.dry += u64::from(self.busy.is_some());
                self.pause();
            }
        }
        answer
    }

    fn backlog(&self) -> FrameLen {
        self.cake.backlog()
    }
}
