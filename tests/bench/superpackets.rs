//! What a program between two taps costs: the bridge beside the shortest relay there is, superpackets split,
//! joined again and kept whole, small writes and small datagrams.
//!
//! `cargo bench --bench superpackets [-- GROUP…] [--row ROW] [--json FILE] [--rounds N] [--seconds S]`, as root, on a
//! machine that does little else. Read the numbers as ratios: what is compared is measured in turns, in one
//! run, and the first row of a group is what the others are compared with.

use std::error::Error;
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant as Wall};

use serde_json::{Value, json};
use ucake::io::batch::Coalescing;
use ucake::io::driver::Doorbell;
use ucake::io::namespace::Namespace;
use ucake::io::netlink;
use ucake::io::pool::FrameBuf;
use ucake::io::tap::{Tap, TapOptions};
use ucake::packet::coalesce::Push;
use ucake::qdisc::{Config, Discipline, Fifo, FifoConfig, SplitGso};
use ucake::time::Span;
use ucake::units::Rate;

use lab::{Family, Lab, Running, cake};
use measure::{Relay, Scatter, cpu_nanos, task};
use wires::Wires;

#[path = "../netns/lab.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod lab;
#[allow(dead_code, reason = "other benchmarks use more of it")]
mod measure;
#[path = "../../examples/relay.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod relay;
#[path = "../netns/wires.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod wires;

const WARM_UP: Duration = Duration::from_millis(400);

/// What is sent.
#[derive(Clone, Copy)]
enum Traffic {
    /// So many TCP uploads.
    Tcp(usize),
    /// TCP without Nagle's algorithm in writes of 200 bytes, the same number of them each millisecond.
    SmallWrites,
    /// UDP in frames of 64 bytes.
    Datagrams,
}

/// What stands between the taps.
#[derive(Clone, Copy)]
enum Between {
    Relay,
    /// The bridge with a drop-tail queue: what everything but CAKE costs.
    Fifo,
    Cake(SplitGso, Option<Rate>, Coalescing),
    /// CAKE at a rate with `auto-split-gso` and this `rtt-step`; zero takes every flow for a far one.
    Auto(Rate, Span),
    /// CAKE without a rate between packet sockets on veth, nothing joined.
    Packet(Doorbell),
}

/// What is measured in turns.
struct Group {
    name: &'static str,
    what: &'static str,
    traffic: Traffic,
    rows: Vec<(&'static str, Between)>,
}

fn groups() -> Vec<Group> {
    let joined = Coalescing::On(Push::Keep);
    let unlimited = |split, coalescing| Between::Cake(split, None, coalescing);
    let fast =
        |split, coalescing| Between::Cake(split, Some(Rate::from_bits(5_000_000_000)), coalescing);
    let bulk = || {
        vec![
            ("relay", Between::Relay),
            ("drop-tail", Between::Fifo),
            ("no-split-gso", unlimited(SplitGso::Whole, joined)),
            ("auto-split-gso", unlimited(SplitGso::Auto, joined)),
            ("split-gso", unlimited(SplitGso::Split, joined)),
            ("split-gso, single writes", unlimited(SplitGso::Split, Coalescing::Off)),
        ]
    };
    vec![
        Group {
            name: "one",
            what: "1 TCP upload, no rate",
            traffic: Traffic::Tcp(1),
            rows: bulk(),
        },
        Group {
            name: "four",
            what: "4 TCP uploads, no rate",
            traffic: Traffic::Tcp(4),
            rows: bulk(),
        },
        Group {
            name: "shaped",
            what: "4 TCP uploads at 5 Gbit/s",
            traffic: Traffic::Tcp(4),
            rows: vec![
                ("split-gso, single writes", fast(SplitGso::Split, Coalescing::Off)),
                ("split-gso", fast(SplitGso::Split, joined)),
                ("auto-split-gso", fast(SplitGso::Auto, joined)),
                ("no-split-gso", fast(SplitGso::Whole, joined)),
            ],
        },
        Group {
            name: "near",
            what: "4 TCP uploads at 500 Mbit/s, their ends near each other, or taken for far",
            traffic: Traffic::Tcp(4),
            rows: vec![
                (
                    "split-gso",
                    Between::Cake(SplitGso::Split, Some(Rate::from_bits(500_000_000)), joined),
                ),
                ("auto-split-gso, far", Between::Auto(Rate::from_bits(500_000_000), Span::ZERO)),
                (
                    "auto-split-gso, near",
                    Between::Auto(Rate::from_bits(500_000_000), Config::DEFAULT_RTT_STEP),
                ),
            ],
        },
        Group {
            name: "small",
            what: "TCP_NODELAY, 100 writes of 200 bytes each millisecond, no rate",
            traffic: Traffic::SmallWrites,
            rows: vec![
                ("not joined", unlimited(SplitGso::Split, Coalescing::Off)),
                ("joined", unlimited(SplitGso::Split, joined)),
                ("joined behind PSH", unlimited(SplitGso::Split, Coalescing::On(Push::Last))),
            ],
        },
        Group {
            name: "datagrams",
            what: "UDP in frames of 64 bytes, no rate",
            traffic: Traffic::Datagrams,
            rows: vec![
                ("relay", Between::Relay),
                ("drop-tail", Between::Fifo),
                ("split-gso", unlimited(SplitGso::Split, joined)),
                ("split-gso, single writes", unlimited(SplitGso::Split, Coalescing::Off)),
            ],
        },
        Group {
            name: "doorbell",
            what: "UDP in frames of 64 bytes, packet sockets on veth, no rate, nothing joined",
            traffic: Traffic::Datagrams,
            rows: vec![
                ("doorbell packet", Between::Packet(Doorbell::Packet)),
                ("doorbell batch", Between::Packet(Doorbell::Batch)),
            ],
        },
    ]
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let Some(args) = Args::parse()? else {
        println!("run by: cargo bench --bench superpackets");
        return Ok(ExitCode::SUCCESS);
    };
    Namespace::new("probe")?.run(|| Tap::open("probe0", &TapOptions::default()).map(drop))?;
    let asked =
        |group: &Group| args.groups.is_empty() || args.groups.iter().any(|a| a == group.name);
    let mut groups: Vec<_> = groups().into_iter().filter(asked).collect();
    for group in &mut groups {
        group.rows.retain(|(name, _)| args.row.as_deref().is_none_or(|row| row == *name));
    }
    groups.retain(|group| !group.rows.is_empty());
    let report: Vec<_> = groups.iter().map(|group| group.measure(&args)).collect();
    if let Some(path) = &args.json {
        writeln!(std::fs::File::create(path)?, "{:#}", Value::from(report))?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Args {
    json: Option<String>,
    rounds: usize,
    length: Duration,
    groups: Vec<String>,
    /// The one row to measure, to look at with a profiler; the first else.
    row: Option<String>,
}

impl Args {
    /// `None` if this is not `cargo bench`: other commands only want to see it start.
    fn parse() -> Result<Option<Self>, Box<dyn Error>> {
        let length = Duration::from_millis(1500);
        let mut found = Self { json: None, rounds: 9, length, groups: Vec::new(), row: None };
        let (mut words, mut asked) = (std::env::args().skip(1), false);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match &*word {
                "--bench" => asked = true,
                "--json" => found.json = Some(value()?),
                "--rounds" => found.rounds = value()?.parse::<usize>()?.max(1),
                "--row" => found.row = Some(value()?),
                "--seconds" => found.length = Duration::try_from_secs_f64(value()?.parse()?)?,
                group if groups().iter().any(|known| known.name == group) => {
                    found.groups.push(word);
                }
                _ => {
                    let known: Vec<_> = groups().iter().map(|group| group.name).collect();
                    let known = known.join(", ");
                    return Err(format!("{word}? --json, --rounds, --seconds, or {known}").into());
                }
            }
        }
        Ok(asked.then_some(found))
    }
}

/// What came of one measurement.
#[derive(Clone, Copy)]
struct Outcome {
    /// Of payload that arrived.
    mbit: f64,
    /// Nanoseconds of the thread between per kilobyte of it.
    cost: f64,
    /// Thousands of frames read per second, a superpacket counting as one.
    kfps: f64,
    /// Segments per write; 0 of the relay, which does not count them.
    run: f64,
    /// Frames that came back (of TCP: ACKs) for each that the bridge sent, segments counted; 0 of the relay.
    back: f64,
}

impl Group {
    fn measure(&self, args: &Args) -> Value {
        let mut found: Vec<Vec<Outcome>> = self.rows.iter().map(|_| Vec::new()).collect();
        for _ in 0..args.rounds {
            for ((_, between), found) in self.rows.iter().zip(&mut found) {
                found.push(between.measure(self.traffic, args.length));
            }
        }
        println!(
            "\n{}: {} × {:?} in turns; medians (min … max)",
            self.what, args.rounds, args.length
        );
        println!(
            "{:>25} {:>22} {:>22} {:>10} {:>22} {:>9} {:>22} {:>8} {:>7}",
            "", "Mbit/s", "ratio", "ns per kB", "ratio", "kframe/s", "ratio", "segments", "back"
        );
        let rows = self.rows.iter().zip(&found).map(|((name, _), ours)| row(name, ours, &found[0]));
        json!({ "group": self.name, "what": self.what, "rows": rows.collect::<Vec<_>>() })
    }
}

fn row(name: &str, ours: &[Outcome], first: &[Outcome]) -> Value {
    let of = |field: fn(&Outcome) -> f64| Scatter::of(ours.iter().map(field));
    let ratio = |field: fn(&Outcome) -> f64| {
        Scatter::of(ours.iter().zip(first).map(|(ours, first)| field(ours) / field(first)))
    };
    let fields: [fn(&Outcome) -> f64; 3] = [|o| o.mbit, |o| o.cost, |o| o.kfps];
    let [mbit, cost, kfps] = fields.map(of);
    let ratios = fields.map(ratio);
    let (run, back) = (of(|o| o.run), of(|o| o.back));
    println!(
        "{name:>25} {:>22} {:>22} {:>10.0} {:>22} {:>9.0} {:>22} {:>8.1} {:>7.3}",
        mbit.text(0),
        ratios[0].text(3),
        cost.median,
        ratios[1].text(3),
        kfps.median,
        ratios[2].text(3),
        run.median,
        back.median,
    );
    json!({
        "row": name,
        "mbit": mbit.json(), "mbit_ratio": ratios[0].json(),
        "ns_per_kb": cost.json(), "ns_per_kb_ratio": ratios[1].json(),
        "kfps": kfps.json(), "kfps_ratio": ratios[2].json(),
        "segments_per_write": run.json(), "back": back.json(),
    })
}

impl Between {
    fn measure(self, traffic: Traffic, length: Duration) -> Outcome {
        match self {
            Self::Relay => {
                let lab = Lab::new();
                let relay = Relay::start(&lab);
                // A tap transmits what we read.
                let link = || netlink::link("lan0").expect("it is there").stats.tx_packets;
                let found = observed(&lab, traffic, relay.task, length, || lab.client.run(link));
                relay.stop(&lab);
                found
            }
            Self::Fifo => {
                let lab = Lab::new();
                let config = FifoConfig { rate: None, limit: 10_000, split: false };
                through(&lab, lab.bridge_of(move || Fifo::new(config)), traffic, length)
            }
            Self::Cake(split_gso, bandwidth, coalescing) => {
                let lab = Lab::new();
                let config = Config { split_gso, bandwidth, ..Config::default() };
                through(&lab, lab.bridge_with(coalescing, move || cake(config)), traffic, length)
            }
            Self::Auto(rate, rtt_step) => {
                let lab = Lab::new();
                let bandwidth = Some(rate);
                let config =
                    Config { split_gso: SplitGso::Auto, bandwidth, rtt_step, ..Config::default() };
                let joined = Coalescing::On(Push::Keep);
                through(&lab, lab.bridge_with(joined, move || cake(config)), traffic, length)
            }
            Self::Packet(doorbell) => {
                let wires = Wires::new(&[]).expect("no tags are asked for");
                let bridge = wires.bridge(Coalescing::Off, Config::default());
                bridge.ask(move |bridge| bridge.set_doorbell(doorbell));
                through(&wires.lab, bridge, traffic, length)
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn through<D>(lab: &Lab, bridge: Running<D>, traffic: Traffic, length: Duration) -> Outcome
where
    D: Discipline<FrameBuf> + 'static,
{
    let task = bridge.ask(|_| task());
    let read = || bridge.snapshot().ports[0].counters.frames_in;
    let found = observed(lab, traffic, task, length, read);
    let counters = &bridge.snapshot().ports[1].counters;
    let run = counters.segments_out as f64 / counters.frames_out.max(1) as f64;
    let back = counters.frames_in as f64 / counters.segments_out.max(1) as f64;
    bridge.stop().expect("a clean stop");
    Outcome { run, back, ..found }
}

/// `read` tells how many frames were read so far.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn observed(
    lab: &Lab,
    traffic: Traffic,
    task: i32,
    length: Duration,
    read: impl Fn() -> u64,
) -> Outcome {
    let load = Sent::start(lab, traffic);
    thread::sleep(WARM_UP);
    let sample = || (Wall::now(), load.received(), read(), cpu_nanos(task));
    let (start, bytes, frames, cpu) = sample();
    thread::sleep(length);
    let (end, more_bytes, more_frames, more_cpu) = sample();
    let seconds = (end - start).as_secs_f64();
    let bytes = (more_bytes - bytes) as f64;
    Outcome {
        mbit: bytes * 8e-6 / seconds,
        cost: (more_cpu - cpu) as f64 * 1000.0 / bytes,
        kfps: (more_frames - frames) as f64 / 1000.0 / seconds,
        run: 0.0,
        back: 0.0,
    }
}

/// Traffic from client to server, until dropped.
enum Sent {
    Tcp(lab::Load),
    Udp(Datagrams),
}

impl Sent {
    fn start(lab: &Lab, traffic: Traffic) -> Self {
        match traffic {
            Traffic::Tcp(flows) => Self::Tcp(lab.load(flows)),
            Traffic::SmallWrites => {
                // Else the kernel itself collects small writes.
                lab.set("ipv4/tcp_autocorking", "0");
                Self::Tcp(lab.load_with(1, SMALL_WRITE, Some(SMALL_WRITES)))
            }
            Traffic::Datagrams => Self::Udp(Datagrams::start(lab)),
        }
    }

    fn received(&self) -> u64 {
        match self {
            Self::Tcp(load) => load.received(),
            Self::Udp(datagrams) => datagrams.received.load(Ordering::Relaxed),
        }
    }
}

/// Bytes of a small write, and how many there are in a millisecond: as much as one sender can do.
const SMALL_WRITE: usize = 200;
const SMALL_WRITES: usize = 100;

/// Small datagrams as fast as they can be sent.
struct Datagrams {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Datagrams {
    /// Payload of a frame of 64 bytes.
    const PAYLOAD: usize = 22;

    fn start(lab: &Lab) -> Self {
        let [client, server] = [Family::V4.client(), Family::V4.server()];
        let source = lab.client.run(move || UdpSocket::bind((client, 0))).expect("our address");
        let sink = lab.server.run(move || UdpSocket::bind((server, 0))).expect("our address");
        source.connect(sink.local_addr().expect("bound")).expect("there is a way");
        sink.set_read_timeout(Some(Duration::from_millis(20))).expect("more than nothing");
        let (stop, received) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let told = Arc::clone(&stop);
        let send = move || {
            while !told.load(Ordering::Relaxed) && source.send(&[7; Self::PAYLOAD]).is_ok() {}
        };
        let (told, count) = (Arc::clone(&stop), Arc::clone(&received));
        let receive = move || {
            let mut buffer = [0; 2048];
            while !told.load(Ordering::Relaxed) {
                let bytes = sink.recv(&mut buffer).unwrap_or(0);
                count.fetch_add(u64::try_from(bytes).expect("few"), Ordering::Relaxed);
            }
        };
        let threads = vec![thread::spawn(send), thread::spawn(receive)];
        Self { stop, received, threads }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of theirs was printed already.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
