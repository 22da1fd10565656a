//! The published argument for splitting superpackets, repeated: CAKE without a rate in front of a device of
//! 1 Gbit/s (or another rate), four uploads. How much does the device hold, and how long does everybody else wait for it?
//!
//! `cargo bench --bench byte_limit [-- --mbit N] [--only WORD] [--json FILE] [--rounds N] [--seconds S]`, as root, on a machine that
//! does little else. The device is a veth slowed by the kernel's `tbf`, behind a packet socket.

use std::error::Error;
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant as Wall};

use serde_json::{Value, json};
use ucake::io::batch::Coalescing;
use ucake::io::netlink;
use ucake::io::offload::{self, Offload};
use ucake::qdisc::{Config, SplitGso};
use ucake::units::Rate;

use lab::{Family, Lab};
use measure::Scatter;
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

/// Room in the slow device: more than the byte limit ever allows.
const ROOM: u32 = 16 << 20;
/// How long limit and TCP take to settle.
const SETTLE: Duration = Duration::from_secs(4);
const FLOWS: usize = 4;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (mut words, mut asked) = (std::env::args().skip(1), false);
    let (mut json, mut rounds, mut length, mut mbit) = (None, 3, Duration::from_secs(8), 1000);
    let mut only = None;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match &*word {
            "--bench" => asked = true,
            "--mbit" => mbit = value()?.parse::<u64>()?,
            "--only" => only = Some(value()?),
            "--json" => json = Some(value()?),
            "--rounds" => rounds = value()?.parse::<usize>()?.max(1),
            "--seconds" => length = Duration::try_from_secs_f64(value()?.parse()?)?,
            _ => return Err(format!("{word}? --mbit, --only, --json, --rounds, --seconds").into()),
        }
    }
    if !asked {
        println!("run by: cargo bench --bench byte_limit");
        return Ok(ExitCode::SUCCESS);
    }
    let kinds = [
        ("split-gso", SplitGso::Split),
        ("auto-split-gso", SplitGso::Auto),
        ("no-split-gso", SplitGso::Whole),
    ];
    let kinds: Vec<_> = kinds
        .into_iter()
        .filter(|(name, _)| only.as_ref().is_none_or(|only| only == name))
        .collect();
    let mut found = vec![Vec::new(); kinds.len()];
    for _ in 0..rounds {
        for ((_, kind), found) in kinds.iter().zip(&mut found) {
            found.push(measured(*kind, mbit, length));
        }
    }
    println!(
        "CAKE without a rate, a device of {mbit} Mbit/s, {FLOWS} uploads; {rounds} × {length:?} in turns"
    );
    println!(
        "{:>15} {:>24} {:>24} {:>22} {:>22} {:>22} {:>9}",
        "",
        "limit kB (min … max)",
        "in flight kB",
        "ping p50 ms",
        "ping p99 ms",
        "Mbit/s",
        "segments"
    );
    let rows: Vec<_> = kinds.iter().zip(&found).map(|((name, _), runs)| row(name, runs)).collect();
    if let Some(path) = json {
        writeln!(std::fs::File::create(path)?, "{:#}", Value::from(rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What one run came to.
#[derive(Clone)]
struct Found {
    /// Kilobytes, on average over the run.
    limit: f64,
    in_flight: f64,
    /// Milliseconds.
    p50: f64,
    p99: f64,
    mbit: f64,
    segments: f64,
}

fn row(name: &str, runs: &[Found]) -> Value {
    let of = |field: fn(&Found) -> f64| Scatter::of(runs.iter().map(field));
    let (limit, in_flight) = (of(|run| run.limit), of(|run| run.in_flight));
    let (p50, p99) = (of(|run| run.p50), of(|run| run.p99));
    let (mbit, segments) = (of(|run| run.mbit), of(|run| run.segments));
    println!(
        "{name:>15} {:>24} {:>24} {:>22} {:>22} {:>22} {:>9.1}",
        limit.text(1),
        in_flight.text(1),
        p50.text(2),
        p99.text(2),
        mbit.text(0),
        segments.median,
    );
    json!({
        "split": name, "limit_kb": limit.json(), "in_flight_kb": in_flight.json(),
        "ping_p50_ms": p50.json(), "ping_p99_ms": p99.json(), "mbit": mbit.json(),
        "segments_per_write": segments.json(),
    })
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn measured(split_gso: SplitGso, device_mbit: u64, length: Duration) -> Found {
    let wires = Wires::new(&[]).expect("no tags are asked for");
    let rate = Rate::from_bits(device_mbit * 1_000_000);
    wires.middle.run(move || netlink::slow_down("wan0", rate, ROOM).expect("this kernel has tbf"));
    // As a real network card's driver does; without it the machine is busy with single frames.
    for end in [&wires.lab.client, &wires.lab.server] {
        let join = || offload::set("eth0", Offload::ReceiveJoining, true);
        end.run(move || join().expect("veth can"));
    }
    for end in [&wires.lab.client, &wires.lab.server] {
        end.run(receive_elsewhere);
    }
    let config = Config { split_gso, ..Config::default() };
    let bridge = wires.bridge(Coalescing::default(), config);
    bridge.ask(|_| keep_to(BRIDGE)).expect("it is there");
    let load = wires.lab.load(FLOWS);
    let echo = Echo::start(&wires.lab);
    thread::sleep(SETTLE);
    let (start, bytes) = (Wall::now(), load.received());
    let (mut limits, mut flights, mut pings) = (Vec::new(), Vec::new(), Vec::new());
    while start.elapsed() < length {
        pings.extend(echo.ping());
        let dql = bridge.snapshot().ports[1].dql;
        limits.push(dql.limit as f64 / 1000.0);
        flights.push(dql.in_flight as f64 / 1000.0);
        thread::sleep(Duration::from_millis(10));
    }
    let mbit = (load.received() - bytes) as f64 * 8e-6 / start.elapsed().as_secs_f64();
    let counters = &bridge.snapshot().ports[1].counters;
    let segments = counters.segments_out as f64 / counters.frames_out.max(1) as f64;
    drop((load, echo));
    bridge.stop().expect("a clean stop");
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    pings.sort_unstable();
    let ping = |per_cent: usize| {
        pings.get(pings.len() * per_cent / 100).map_or(f64::NAN, |span| span.as_secs_f64() * 1000.0)
    };
    let (limit, in_flight) = (mean(&limits), mean(&flights));
    Found { limit, in_flight, p50: ping(50), p99: ping(99), mbit, segments }
}

/// The processor that the bridge has, and the bit of the one on which hosts receive.
const BRIDGE: usize = 0;
const HOSTS: &str = "2";

/// Has `eth0` receive where the bridge does not work, as hosts on wires do: otherwise the bridge, in whose time a
/// frame arrives at the other end of a veth, would do all the work of their TCP as well.
fn receive_elsewhere() {
    let order = format!(
        "mount -t sysfs sysfs /sys && echo {HOSTS} > /sys/class/net/eth0/queues/rx-0/rps_cpus"
    );
    let done = Command::new("unshare").args(["--mount", "sh", "-c", &order]).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("hosts receive in the time of the bridge: no RPS here");
    }
}

fn keep_to(processor: usize) -> rustix::io::Result<()> {
    let mut only = rustix::thread::CpuSet::new();
    only.set(processor);
    rustix::thread::sched_setaffinity(None, &only)
}

/// A datagram there and back, beside the load.
struct Echo {
    socket: UdpSocket,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Echo {
    fn start(lab: &Lab) -> Self {
        let [client, server] = [Family::V4.client(), Family::V4.server()];
        let socket = lab.client.run(move || UdpSocket::bind((client, 0))).expect("our address");
        let far = lab.server.run(move || UdpSocket::bind((server, 0))).expect("our address");
        socket.connect(far.local_addr().expect("bound")).expect("there is a way");
        for socket in [&socket, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(500))).expect("more than nothing");
        }
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 64];
            while !told.load(Ordering::Relaxed) {
                if let Ok((len, from)) = far.recv_from(&mut buffer) {
                    // Whoever asked hears nothing, and counts that.
                    let _ = far.send_to(&buffer[..len], from);
                }
            }
        });
        Self { socket, stop, thread: Some(thread) }
    }

    fn ping(&self) -> Option<Duration> {
        let start = Wall::now();
        self.socket.send(&[1; 32]).ok()?;
        self.socket.recv(&mut [0; 64]).ok()?;
        Some(start.elapsed())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of it was printed already.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}
