//! `ucake lab`: a bottleneck on the table, to see what a queue does to a ping.
//!
//! Problem: what bufferbloat is and what CAKE does about it is best seen, and few have a bottleneck, two
//! hosts and the tools at hand.
//! Law: two network namespaces, "client" and "server", joined by two taps with the discipline under test
//! between them and half of the path's delay behind it each way. Real kernel TCP fills it; an ICMP echo
//! every 20 ms feels it. One run per discipline, each in namespaces of its own.
//! Invariant: nothing has a name outside this process, so nothing is left behind however it ends.
//! Left out: other topologies, loss, traces.

mod bottleneck;
mod load;
mod ping;
mod progress;
mod report;

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use ucake::io::namespace::{self, Namespace};
use ucake::io::netlink::{self, LinkOptions};
use ucake::io::tap::{Tap, TapOptions};
use ucake::qdisc::{Config, FifoConfig};
use ucake::units::Rate;

use crate::args::{LabArgs, Scenario};
use crate::interrupt::{self, Interrupt};
use bottleneck::{Bottleneck, Recipe, Sample};
use load::{Direction, Flows, Load, LoadError};
use ping::{Phase, PhaseCell, Ping, Pings};
use progress::Progress;
use report::{PingTimes, Report, Run, Setup};
use ucake_cli::plan::Words;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PREFIX: u8 = 24;
const PORT: u16 = 5001;
/// What the taps are called, each in its own namespace.
const DEVICE: &str = "eth0";
/// Packets in the drop-tail queue: the Linux default, and a home router's.
const FIFO_LIMIT: u32 = 1000;
/// Superpackets that wait in a tap for us.
const TAP_QUEUE: u32 = 1000;
/// How long the ping runs alone.
const IDLE: Duration = Duration::from_secs(1);
/// Most of a run that is not counted because TCP is still growing.
const LONGEST_WARM_UP: Duration = Duration::from_secs(2);
/// How long the first echo may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs the laboratory.
pub(crate) fn lab(args: &LabArgs) -> anyhow::Result<ExitCode> {
    if args.cake.iter().any(|words| words.change.nat == Some(true)) {
        crate::bad_usage("lab", "nobody translates addresses in the laboratory; leave \"nat\" out");
    }
    let mut output = args.json.as_deref().map(Output::open).transpose()?;
    if !rustix::process::geteuid().is_root() {
        namespace::become_root_in_user_namespace()?;
    }
    load::check_congestion(&args.cc)?;
    let interrupt = Interrupt::watch().context("cannot watch for signals")?;
    let recipes = recipes(args);
    let progress = Progress::new(recipes.len());
    let mut report = Report { runs: Vec::new(), setup: setup(args) };
    for recipe in &recipes {
        if interrupt.is_set() {
            break;
        }
        progress.start(&recipe.name());
        report.runs.extend(run(args, recipe, &interrupt, &progress)?);
    }
    progress.finish();
    let to_stdout = matches!(output, Some(Output::Stdout));
    if report.runs.is_empty() {
        eprintln!("stopped before anything was measured");
    } else if to_stdout {
        eprint!("{}", report.text());
    } else {
        crate::print(&report.text());
    }
    if let Some(output) = &mut output {
        output.write(&report)?;
    }
    Ok(if interrupt.is_set() { interrupt::EXIT_STATUS.into() } else { ExitCode::SUCCESS })
}

/// Where the JSON goes; opened before anything runs, so that a bad path costs no time.
enum Output {
    Stdout,
    File(File, String),
}

impl Output {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let name = path.display().to_string();
        let file = File::create(path).with_context(|| format!("cannot write {name}"))?;
        Ok(Self::File(file, name))
    }

    fn write(&mut self, report: &Report) -> anyhow::Result<()> {
        let json = report.json();
        match self {
            Self::Stdout => std::io::stdout().write_all(json.as_bytes()).context("cannot write"),
            Self::File(file, name) => {
                file.write_all(json.as_bytes()).with_context(|| format!("cannot write {name}"))
            }
        }
    }
}

fn setup(args: &LabArgs) -> Setup {
    Setup {
        scenario: args.scenario.name().to_owned(),
        flows: args.flows,
        congestion_control: args.cc.clone(),
        rtt_us: args.rtt.micros(),
        ecn: args.ecn,
    }
}

/// What to run: the disease first.
fn recipes(args: &LabArgs) -> Vec<Recipe> {
    let rate = args.rate.0;
    let fifo = FifoConfig { rate, limit: FIFO_LIMIT, split: true };
    let cakes = if args.cake.is_empty() { &[Words::default()][..] } else { &args.cake };
    let cakes = cakes.iter().map(|words| cake(words, rate));
    std::iter::once(Recipe::Fifo(fifo)).chain(cakes).collect()
}

/// CAKE with `words`, at `rate` unless they say otherwise.
fn cake(words: &Words, rate: Option<Rate>) -> Recipe {
    let defaults = Config { bandwidth: rate, ..Config::default() };
    Recipe::Cake(Box::new(defaults.changed_by(&words.change)), words.line.trim().to_owned())
}

/// One run; `None` if it was interrupted before anything was measured.
fn run(
    args: &LabArgs,
    recipe: &Recipe,
    interrupt: &Interrupt,
    progress: &Progress,
) -> anyhow::Result<Option<Run>> {
    let client = Host::new("client", CLIENT, args.ecn)?;
    let server = Host::new("server", SERVER, args.ecn)?;
    let mut bottleneck = Bottleneck::start(client.plug_in()?, server.plug_in()?, recipe, args.rtt)?;
    client.address()?;
    server.address()?;
    let pinging = Pinging::start(&client)?;
    let idle_ends = Instant::now() + IDLE;
    if progress.watch(interrupt, idle_ends, "idle", || 0) {
        return Ok(None);
    }
    pinging.phase.set(Phase::WarmUp);
    let loads = start_loads(args, &client, &server)?;
    let seconds = Duration::from_secs(args.seconds);
    let started = Instant::now();
    let warm_up = LONGEST_WARM_UP.min(seconds / 5);
    let received = || loads.iter().map(|(_, load)| load.received()).sum();
    if progress.watch(interrupt, started + warm_up, "warming up", received) {
        return Ok(None);
    }
    let before = Reading::take(&mut bottleneck, &loads, [&client, &server])?;
    pinging.phase.set(Phase::Loaded);
    let interrupted = progress.watch(interrupt, started + seconds, "measuring", received);
    let after = Reading::take(&mut bottleneck, &loads, [&client, &server])?;
    pinging.phase.set(if interrupted { Phase::Over } else { Phase::Ending });
    progress.say("waiting for the last pings");
    drop(loads);
    let pings = pinging.finish(interrupt)?;
    Ok(Some(Run { interrupted, ..outcome(recipe, &before, &after, &pings) }))
}

/// What lies between two readings.
fn outcome(recipe: &Recipe, before: &Reading, after: &Reading, pings: &Pings) -> Run {
    let span = after.at.saturating_duration_since(before.at);
    let bits = |direction| {
        let bytes = |reading: &Reading| reading.received(direction);
        let arrived = bytes(after)?.saturating_sub(bytes(before)?);
        Some(bit_rate(arrived, span))
    };
    let [upload_bit, download_bit] = [Direction::Upload, Direction::Download].map(bits);
    Run {
        discipline: recipe.name(),
        rate_bit: recipe.rate().map(Rate::bits),
        goodput_bit: upload_bit.unwrap_or(0) + download_bit.unwrap_or(0),
        upload_bit,
        download_bit,
        ping_us: PingTimes::from(&pings.loaded),
        idle_ping_us: PingTimes::from(&pings.idle),
        drops: after.sample.drops - before.sample.drops,
        marks: after.sample.marks - before.sample.marks,
        ring_drops: after.ring_drops.saturating_sub(before.ring_drops),
        cpu_us: micros(after.sample.cpu.saturating_sub(before.sample.cpu)),
        largest_burst_bytes: after.sample.largest_burst,
        measured_us: micros(span),
        interrupted: false,
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn bit_rate(bytes: u64, span: Duration) -> u64 {
    let bits = u128::from(bytes) * 8 * 1_000_000_000 / span.as_nanos().max(1);
    u64::try_from(bits).unwrap_or(u64::MAX)
}

/// All counters at one moment.
struct Reading {
    at: Instant,
    received: Vec<(Direction, u64)>,
    sample: Sample,
    ring_drops: u64,
}

impl Reading {
    fn take(
        bottleneck: &mut Bottleneck,
        loads: &[(Direction, Load)],
        hosts: [&Host; 2],
    ) -> anyhow::Result<Self> {
        let at = Instant::now();
        let received = loads.iter().map(|(way, load)| (*way, load.received())).collect();
        let sample = bottleneck.sample()?;
        let mut ring_drops = 0;
        for host in hosts {
            ring_drops += host.ring_drops()?;
        }
        Ok(Self { at, received, sample, ring_drops })
    }

    fn received(&self, direction: Direction) -> Option<u64> {
        let of_direction = self.received.iter().find(|(way, _)| *way == direction);
        of_direction.map(|(_, bytes)| *bytes)
    }
}

fn start_loads(
    args: &LabArgs,
    client: &Host,
    server: &Host,
) -> anyhow::Result<Vec<(Direction, Load)>> {
    let directions: &[Direction] = match args.scenario {
        Scenario::Upload => &[Direction::Upload],
        Scenario::Download => &[Direction::Download],
        Scenario::Both => &[Direction::Upload, Direction::Download],
    };
    let mut established = Vec::new();
    for (direction, port) in directions.iter().zip(PORT..) {
        let address = SocketAddr::from((SERVER, port));
        let listener = server.namespace.run(move || TcpListener::bind(address));
        let listener = listener.context("the server cannot listen")?;
        let connect = || client.namespace.run(move || load::connect(address));
        established.push((*direction, Flows::establish(args.flows, &listener, connect)?));
    }
    let start = |(direction, flows): (Direction, Flows)| {
        Ok::<_, LoadError>((direction, flows.start(direction, &args.cc)?))
    };
    Ok(established.into_iter().map(start).collect::<Result<_, _>>()?)
}

/// A network namespace with one device, whose wire we hold.
struct Host {
    namespace: Namespace,
    address: Ipv4Addr,
}

impl Host {
    fn new(name: &str, address: Ipv4Addr, ecn: bool) -> anyhow::Result<Self> {
        let namespace = Namespace::new(name)?;
        if ecn {
            let ask = || std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1");
            namespace.run(ask).context("cannot switch ECN on (/proc/sys/net/ipv4/tcp_ecn)")?;
        }
        Ok(Self { namespace, address })
    }

    fn plug_in(&self) -> anyhow::Result<Tap> {
        let options = TapOptions { mtu: Some(1500), queue_len: Some(TAP_QUEUE) };
        Ok(self.namespace.run(move || Tap::open(DEVICE, &options))?)
    }

    fn address(&self) -> anyhow::Result<()> {
        let options = LinkOptions {
            up: Some(true),
            addresses: vec![(self.address.into(), PREFIX)],
            ..LinkOptions::default()
        };
        Ok(self.namespace.run(move || netlink::configure(DEVICE, &options))?)
    }

    /// Frames that were lost in the tap's queue.
    fn ring_drops(&self) -> anyhow::Result<u64> {
        let link = self.namespace.run(|| netlink::link(DEVICE))?;
        Ok(link.stats.tx_dropped)
    }
}

/// A ping on a thread of its own; it stops when dropped.
struct Pinging {
    phase: Arc<PhaseCell>,
    thread: Option<thread::JoinHandle<std::io::Result<Pings>>>,
}

impl Pinging {
    /// Starts once a first echo came back.
    fn start(client: &Host) -> anyhow::Result<Self> {
        let mut ping = client
            .namespace
            .run(|| Ping::open(SERVER))
            .context("cannot open a raw socket to ping with")?;
        if !ping.reaches(PATIENCE).context("cannot ping")? {
            bail!("no ping came back through the bottleneck; is its rate too low for this?");
        }
        let phase = Arc::new(PhaseCell::default());
        let told = Arc::clone(&phase);
        let thread = thread::Builder::new()
            .name("ping".to_owned())
            .spawn(move || ping.run(&told))
            .context("cannot start a thread")?;
        Ok(Self { phase, thread: Some(thread) })
    }

    /// Waits for the last answers, unless interrupted.
    fn finish(mut self, interrupt: &Interrupt) -> anyhow::Result<Pings> {
        let thread = self.thread.take().expect("present until finished or dropped");
        while !thread.is_finished() {
            if interrupt.sleep(Duration::from_millis(20)) {
                self.phase.set(Phase::Over);
                break;
            }
        }
        let pings = thread.join().map_err(|_| anyhow!("the ping stopped unexpectedly"))?;
        pings.context("the ping failed")
    }
}

impl Drop for Pinging {
    fn drop(&mut self) {
        self.phase.set(Phase::Over);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
