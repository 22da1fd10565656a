//! What may not grow while a line is used for a year: descriptors, memory, tables; and what many bridges take.
//!
//! `UCAKE_SOAK=600 cargo test --release -p ucake-cli --test soak -- --nocapture` is the long run, with seconds to run for; without it,
//! everything is done for a few seconds. Where namespaces or taps are not to be had the tests say SKIPPED.
#![allow(clippy::cast_precision_loss, reason = "figures to look at")]

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};

use world::{CLIENT, Load, SERVER, World, await_that, stage, text};

mod world;

const FLOWS_PER_SECOND: u32 = 2000;
const PACKETS_PER_FLOW: u32 = 3;
const BRIDGES: usize = 35;

/// How long each part runs.
fn length() -> Duration {
    let given = std::env::var("UCAKE_SOAK").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(6))
}

/// What a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    resident_kb: u64,
}

impl Held {
    /// Whether there are as many descriptors, but for one or two with which the supervisor looks at its devices.
    fn is_like(self, other: &Self) -> bool {
        self.descriptors.abs_diff(other.descriptors) <= 2
    }

    fn of(pid: u64) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
        let number = line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok());
        Self { descriptors, resident_kb: number.expect("a number") }
    }
}

/// Flows of a few packets, each from a port of its own, until dropped.
struct Arrivals {
    stop: Arc<AtomicBool>,
    begun: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Arrivals {
    fn start([client, server]: &[Namespace; 2]) -> Self {
        let to = SocketAddr::from((SERVER, 5002));
        // Nobody reads it: what the host makes of the packets is not of interest.
        let sink = server.run(move || UdpSocket::bind(to)).expect("the address is ours");
        let (stop, begun) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (told, count) = (Arc::clone(&stop), Arc::clone(&begun));
        let job = move || {
            let _sink = sink;
            let started = Instant::now();
            let mut flows = 0;
            while !told.load(Ordering::Relaxed) {
                let due = u64::from(FLOWS_PER_SECOND) * millis(started.elapsed()) / 1000;
                while flows < due {
                    flow(to);
                    flows += 1;
                }
                count.store(flows, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
        };
        let thread = client.spawn("arrivals", job).expect("there is room for a thread");
        Self { stop, begun, thread: Some(thread) }
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A few packets from a port that nobody had before, or not for a while.
fn flow(to: SocketAddr) {
    let Ok(socket) = UdpSocket::bind((CLIENT, 0)) else { return };
    for _ in 0..PACKETS_PER_FLOW {
        let _ = socket.send_to(&[7; 500], to);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn shown(world: &World, device: &str) -> Value {
    let text = world.done(&format!("-s -d -j qdisc show dev {device}"));
    serde_json::from_str::<Value>(&text).expect("it is JSON")[0].take()
}

#[test]
fn thousands_of_new_flows_a_second_leave_nothing_behind() {
    let Some(world) = World::running("bandwidth 20mbit") else { return };
    let ends = world.ends();
    let pids = [
        u64::from(world.ucake.as_ref().expect("it runs").id()),
        shown(&world, "wan0")["ucake"]["process"]["pid"].as_u64().expect("a number"),
    ];
    let arrivals = Arrivals::start(&ends);
    let load = Load::start(&ends);
    thread::sleep(length() / 6);
    let early = pids.map(Held::of);
    let mut most = early;
    let begun = Instant::now();
    while begun.elapsed() < length() {
        load.goes_on_for(10_000);
        thread::sleep(Duration::from_millis(500));
        for (most, now) in most.iter_mut().zip(pids.map(Held::of)) {
            assert!(now.is_like(most), "descriptors come and stay: {now:?}, {most:?}");
            most.resident_kb = most.resident_kb.max(now.resident_kb);
        }
    }
    let flows = arrivals.begun.load(Ordering::Relaxed);
    drop((arrivals, load));
    await_that("an empty queue", || {
        let now = shown(&world, "wan0");
        now["backlog"] == 0 && now["qlen"] == 0
    });
    let last = shown(&world, "wan0");
    eprintln!("{flows} flows in {:?}: early {early:?}, most {most:?}", begun.elapsed());
    eprintln!("sent {}, dropped {}", last["packets"], last["drops"]);
    for (early, most) in early.iter().zip(most) {
        assert!(most.resident_kb < early.resident_kb + 2048, "memory grows: {early:?}, {most:?}");
    }
}

/// One process with many bridges, with as many clients and servers.
struct Many {
    _middle: Namespace,
    client: Namespace,
    server: Namespace,
    directory: std::path::PathBuf,
    ucake: Child,
}

impl Many {
    fn new() -> Option<Self> {
        let (middle, directory) = (stage()?, world::directory());
        let mut file = format!(
            "[control]\nsocket = {:?}\n[limits]\nmemory = \"24mb\"\n",
            directory.join("control.sock")
        );
        for i in 0..BRIDGES {
            let words = "bandwidth 100mbit";
            let ports = format!("lan = \"tap:lan{i}\"\nwan = \"tap:wan{i}\"");
            writeln!(file, "[[bridge]]\n{ports}\nup = \"{words}\"\ndown = \"{words}\"")
                .expect("memory");
        }
        fs::write(directory.join("ucake.toml"), file).expect("a file");
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("run").arg("--config").arg(directory.join("ucake.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut ucake = middle.run(move || command.spawn()).expect("a program");
        await_that("an answer", || {
            assert!(ucake.try_wait().expect("our child").is_none(), "it ended");
            std::os::unix::net::UnixStream::connect(directory.join("control.sock")).is_ok()
        });
        let end = |side: &'static str, last| {
            let end = Namespace::new(side).expect("as before");
            let file = end.file().expect("it lives");
            for i in 0..BRIDGES {
                let device = format!("{side}{i}");
                let (name, file) = (device.clone(), file.try_clone().expect("a descriptor"));
                middle.run(move || netlink::move_to(&name, &file)).expect("it is there");
                let addresses = vec![(address(i, last), 24)];
                let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
                end.run(move || netlink::configure(&device, &options)).expect("it obeys");
            }
            end
        };
        let (client, server) = (end("lan", 1), end("wan", 2));
        Some(Self { _middle: middle, client, server, directory, ucake })
    }

    fn shown(&self) -> Vec<Value> {
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("--control").arg(self.directory.join("control.sock"));
        let output = command.args(["-s", "-d", "-j", "qdisc", "show"]).output().expect("built");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let _ = self.ucake.kill();
        let _ = self.ucake.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn address(bridge: usize, last: u8) -> IpAddr {
    let bridge = u8::try_from(bridge).expect("few");
    IpAddr::V4(Ipv4Addr::new(10, 79, bridge, last))
}

/// TCP from client to server through one of the bridges until told to stop; the bytes that arrived.
fn upload(
    many: &Many,
    bridge: usize,
    stop: &Arc<AtomicBool>,
) -> (Arc<AtomicU64>, [JoinHandle<()>; 2]) {
    let to = SocketAddr::from((address(bridge, 2), 5001));
    let listener = many.server.run(move || TcpListener::bind(to)).expect("the address is ours");
    let source = many.client.run(move || TcpStream::connect_timeout(&to, world::PATIENCE));
    let mut source = source.expect("a connection");
    let (mut sink, _) = listener.accept().expect("a connection");
    let moment = Some(Duration::from_millis(100));
    source.set_write_timeout(moment).expect("more than nothing");
    sink.set_read_timeout(moment).expect("more than nothing");
    let received = Arc::<AtomicU64>::default();
    let (told, heard, count) = (Arc::clone(stop), Arc::clone(stop), Arc::clone(&received));
    let feed = thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            let _ = source.write(&[7; 65_536]);
        }
    });
    let drain = thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while !heard.load(Ordering::Relaxed) {
            let read = sink.read(&mut buffer).unwrap_or(0);
            count.fetch_add(u64::try_from(read).expect("lengths fit"), Ordering::Relaxed);
        }
    });
    (received, [feed, drain])
}

#[test]
fn thirty_five_lines_fit_into_64_mib() {
    let Some(many) = Many::new() else { return };
    let data = many.shown()[0]["ucake"]["process"]["pid"].as_u64().expect("a number");
    let pids = [u64::from(many.ucake.id()), data];
    let idle = pids.map(Held::of);
    let stop = Arc::<AtomicBool>::default();
    let loads: Vec<_> = (0..BRIDGES).map(|bridge| upload(&many, bridge, &stop)).collect();
    thread::sleep(Duration::from_secs(2));
    let sample =
        || loads.iter().map(|(count, _)| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (before, begun) = (sample(), Instant::now());
    let mut most = pids.map(Held::of);
    while begun.elapsed() < length() {
        thread::sleep(Duration::from_millis(500));
        for (most, now) in most.iter_mut().zip(pids.map(Held::of)) {
            assert!(now.is_like(most), "descriptors come and stay: {now:?}, {most:?}");
            most.resident_kb = most.resident_kb.max(now.resident_kb);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rate = |after: u64, before: &u64| (after - before) as f64 * 8e-6 / seconds;
    let rates: Vec<f64> = sample().into_iter().zip(&before).map(|(a, b)| rate(a, b)).collect();
    stop.store(true, Ordering::Relaxed);
    for (_, threads) in loads {
        for thread in threads {
            thread.join().expect("it only talks");
        }
    }
    let (least, all) = (rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().sum::<f64>());
    eprintln!(
        "{BRIDGES} uploads: {all:.0} Mbit/s together, the slowest {least:.1}; idle {idle:?}, most {most:?}"
    );
    assert!(most.iter().map(|held| held.resident_kb).sum::<u64>() <= 64 * 1024, "{most:?}");
    assert!(least > 1.0, "a line that is dead: {rates:?}");
}
