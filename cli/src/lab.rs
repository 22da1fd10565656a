//! `ucake lab`: a bottleneck on the table, to see what a queue does to a ping.
//!
//! Problem: what bufferbloat is and what CAKE does about it is best seen, and few have a bottleneck, two
//! hosts and the tools at hand.
//! Law: two network namespaces, "client" and "server", joined by two taps with the discipline under test
//! between them and half of the path's delay behind it each way. Real kernel TCP fills it; an ICMP echo
//! every 20 ms feels it. One run per discipline, each in namespaces of its own.
//! Invariant: nothing has a name outside this process, so nothing is left behind however it ends.
//! Left out: more than one bottleneck, loss, traces.

mod bottleneck;
mod flent;
mod load;
mod output;
mod picture;
mod ping;
mod progress;
mod report;
mod scenario;
mod series;
mod summary;
mod table;
mod voice;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
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
use output::OutputFile;
use ping::{Phase, PhaseCell, Ping, Pings};
use progress::Progress;
use report::{ClassRate, MarkedPing, PingTimes, Report, Run, Setup};
use scenario::Class;
use series::{Quantity, Sampler, Series};
use ucake_cli::plan::Words;
use voice::{Call, Heard};

/// Each side has two hosts, of which one device is; the second ones are for `hosts`.
const CLIENTS: [Ipv4Addr; 2] = [CLIENT, Ipv4Addr::new(10, 77, 0, 3)];
const SERVERS: [Ipv4Addr; 2] = [SERVER, Ipv4Addr::new(10, 77, 0, 4)];
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PREFIX: u8 = 24;
const PORT: u16 = 5001;
const VOICE_PORT: u16 = 5000;
/// Rate of the bottleneck, or of its fast side, if nobody says.
const RATE: Rate = Rate::from_bits(20_000_000);
const FAST_RATE: Rate = Rate::from_bits(50_000_000);
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
    let recipes = recipes(args);
    let rounds = 1..=usize::from(args.repeat);
    let order: Vec<&Recipe> = rounds.flat_map(|_| &recipes).collect();
    if !rustix::process::geteuid().is_root() {
        namespace::become_root_in_user_namespace()?;
    }
    load::check_congestion(&args.cc)?;
    let interrupt = Interrupt::watch().context("cannot watch for signals")?;
    // From here on a signal does not end the process, so that files without contents are removed.
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let files = flent_files(args, &order)?;
    let picture = args.svg.as_deref().map(OutputFile::open).transpose()?;
    let progress = Progress::new(order.len());
    let mut report = Report { runs: Vec::new(), setup: setup(args) };
    for (number, recipe) in order.iter().enumerate() {
        if interrupt.is_set() {
            break;
        }
        progress.start(&recipe.name());
        let round = number / recipes.len() + 1;
        let run = run(args, recipe, &interrupt, &progress)?;
        report.runs.extend(run.map(|run| Run { round, ..run }));
    }
    progress.finish();
    if report.runs.is_empty() {
        eprintln!("stopped before anything was measured");
    } else if matches!(json, Some(Output::Stdout)) {
        eprint!("{}", report.text());
    } else {
        crate::print(&report.text());
    }
    write(&report, json, files, picture)?;
    Ok(if interrupt.is_set() { interrupt::EXIT_STATUS.into() } else { ExitCode::SUCCESS })
}

/// One file per run, opened before anything runs.
fn flent_files(args: &LabArgs, order: &[&Recipe]) -> anyhow::Result<Vec<OutputFile>> {
    let Some(base) = &args.flent else { return Ok(Vec::new()) };
    let path = |(number, recipe): (usize, &&Recipe)| flent::path(base, number + 1, &recipe.name());
    order.iter().enumerate().map(path).map(|path| OutputFile::open(&path)).collect()
}

/// Writes all there is to write; what cannot be written does not keep the rest from it.
fn write(
    report: &Report,
    json: Option<Output>,
    flent: Vec<OutputFile>,
    picture: Option<OutputFile>,
) -> anyhow::Result<()> {
    let json = json.map_or(Ok(()), |output| output.write(report));
    let flent = flent.into_iter().zip(&report.runs).map(|(file, run)| {
        let path = file.path().to_owned();
        file.write(&flent::data_file(&path, run, &report.setup)?)
    });
    let flent: Vec<_> = flent.collect();
    let picture = match picture {
        Some(file) if !report.runs.is_empty() => {
            picture::draw(&report.runs, &report.setup.scenario)
                .and_then(|svg| file.write(svg.as_bytes()))
        }
        _ => Ok(()),
    };
    flent.into_iter().chain([json, picture]).collect()
}

/// Where the JSON goes.
enum Output {
    Stdout,
    File(OutputFile),
}

impl Output {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        Ok(Self::File(OutputFile::open(path)?))
    }

    fn write(self, report: &Report) -> anyhow::Result<()> {
        let json = report.json();
        match self {
            Self::Stdout => match std::io::stdout().write_all(json.as_bytes()) {
                // Whoever reads has read enough.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                written => written.context("cannot write to standard output"),
            },
            Self::File(file) => file.write(json.as_bytes()),
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
    let fallback = if args.scenario == Scenario::Asym { FAST_RATE } else { RATE };
    let rate = args.rate.map_or(Some(fallback), |rate| rate.0);
    let fifo = FifoConfig { rate, limit: FIFO_LIMIT, split: true };
    let own = scenario::words(args.scenario);
    let cakes = if args.cake.is_empty() { &own } else { &args.cake };
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
    let client = Host::new("client", CLIENTS, args.ecn)?;
    let server = Host::new("server", SERVERS, args.ecn)?;
    let slow = if args.scenario == Scenario::Asym { recipe.slowed() } else { recipe.clone() };
    let taps = (client.plug_in()?, server.plug_in()?);
    let mut bottleneck = Bottleneck::start(taps.0, taps.1, [&slow, recipe], args.rtt)?;
    client.address()?;
    server.address()?;
    let (origin, began) = (Instant::now(), std::time::SystemTime::now());
    let sensors = Sensors::start(args, &client, &server)?;
    let idle_ends = Instant::now() + IDLE;
    if progress.watch(interrupt, idle_ends, "idle", || 0) {
        return Ok(None);
    }
    sensors.set(Phase::WarmUp);
    let loads = start_loads(args, &client, &server)?;
    let counters: Vec<_> = loads.iter().flat_map(|(_, load)| load.counters()).collect();
    let count = counters.len();
    let sampler = Sampler::start(counters).context("cannot start a thread")?;
    let seconds = Duration::from_secs(args.seconds);
    let started = Instant::now();
    let warm_up = LONGEST_WARM_UP.min(seconds / 5);
    let received = || loads.iter().map(|(_, load)| load.received()).sum();
    if progress.watch(interrupt, started + warm_up, "warming up", received) {
        return Ok(None);
    }
    let before = Reading::take(&mut bottleneck, &loads, [&client, &server])?;
    sensors.set(Phase::Loaded);
    let interrupted = progress.watch(interrupt, started + seconds, "measuring", received);
    let after = Reading::take(&mut bottleneck, &loads, [&client, &server])?;
    sensors.set(if interrupted { Phase::Over } else { Phase::Ending });
    let rates = sampler.rates(count, origin);
    let flows = flow_series(args.scenario, &loads, rates);
    progress.say("waiting for the last pings");
    drop(loads);
    let (pings, heard) = sensors.finish(interrupt)?;
    let call = heard.iter().flat_map(|heard| heard.series(origin));
    let series = pings.iter().map(|(label, pings)| ping_series(label, pings, origin));
    let marked = pings
        .iter()
        .skip(1)
        .map(|(label, pings)| MarkedPing { label, ping_us: PingTimes::from(&pings.loaded) });
    let Some((_, plain)) = pings.first() else { bail!("the ping stopped unexpectedly") };
    Ok(Some(Run {
        interrupted,
        voice: heard.as_ref().map(|heard| heard.voice),
        pings: marked.collect(),
        series: series.chain(flows).chain(call).collect(),
        began,
        loaded_from: series::seconds(before.at, origin),
        ..outcome(recipe, &before, &after, plain)
    }))
}

/// What lies between two readings.
fn outcome(recipe: &Recipe, before: &Reading, after: &Reading, pings: &Pings) -> Run {
    let span = after.at.saturating_duration_since(before.at);
    let bits = |direction| {
        let bytes = |reading: &Reading| reading.received(direction);
        let arrived = bytes(after)?.saturating_sub(bytes(before)?);
        Some(bit_rate(arrived, span))
    };
    let class = |((class, after), (_, before)): (&(Class, u64), &(Class, u64))| ClassRate {
        label: class.label,
        direction: class.direction.name(),
        flows: class.flows,
        goodput_bit: bit_rate(after.saturating_sub(*before), span),
    };
    let classes = after.received.iter().zip(&before.received).map(class).collect();
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
        round: 1,
        classes,
        pings: Vec::new(),
        voice: None,
        series: Vec::new(),
        began: std::time::SystemTime::UNIX_EPOCH,
        loaded_from: 0.0,
    }
}

fn ping_series(label: &str, pings: &Pings, origin: Instant) -> Series {
    let name = match label {
        "" => "Ping (ms) ICMP".to_owned(),
        mark => format!("Ping (ms) UDP {mark}"),
    };
    let points = pings.points.iter().map(|&(at, rtt)| (series::seconds(at, origin), rtt));
    let mut points: Vec<_> = points.collect();
    // Answers may overtake each other.
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Series { name, quantity: Quantity::Ping, points }
}

/// Every flow's rate under the name that flent has for it.
fn flow_series(
    scenario: Scenario,
    loads: &[(Class, Load)],
    rates: Vec<Vec<(f64, f64)>>,
) -> Vec<Series> {
    let mut numbers = [0, 0];
    let flows = loads.iter().flat_map(|(class, load)| vec![*class; load.counters().len()]);
    let named = |(class, points): (Class, Vec<(f64, f64)>)| {
        let (quantity, number) = match class.direction {
            Direction::Upload => (Quantity::Upload, &mut numbers[0]),
            Direction::Download => (Quantity::Download, &mut numbers[1]),
        };
        *number += 1;
        let way = class.direction.name();
        let name = match scenario {
            Scenario::Rrul if class.flows == 1 => format!("TCP {way} {}", class.label),
            Scenario::Rrul => format!("TCP {way} {} {number}", class.label),
            Scenario::Both if *number == 1 => format!("TCP {way} BE"),
            Scenario::Both => format!("TCP {way} BE{number}"),
            _ => format!("TCP {way}::{number}"),
        };
        Series { name, quantity, points }
    };
    flows.zip(rates).map(named).collect()
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
    received: Vec<(Class, u64)>,
    sample: Sample,
    ring_drops: u64,
}

impl Reading {
    fn take(
        bottleneck: &mut Bottleneck,
        loads: &[(Class, Load)],
        hosts: [&Host; 2],
    ) -> anyhow::Result<Self> {
        let at = Instant::now();
        let received = loads.iter().map(|(class, load)| (*class, load.received())).collect();
        let sample = bottleneck.sample()?;
        let mut ring_drops = 0;
        for host in hosts {
            ring_drops += host.ring_drops()?;
        }
        Ok(Self { at, received, sample, ring_drops })
    }

    fn received(&self, direction: Direction) -> Option<u64> {
        let of_direction = self.received.iter().filter(|(class, _)| class.direction == direction);
        of_direction.map(|(_, bytes)| *bytes).reduce(|sum, bytes| sum + bytes)
    }
}

fn start_loads(args: &LabArgs, client: &Host, server: &Host) -> anyhow::Result<Vec<(Class, Load)>> {
    let mut established = Vec::new();
    for (class, port) in scenario::classes(args).into_iter().zip(PORT..) {
        let address = SocketAddr::from((SERVERS[class.host], port));
        let listener = server.namespace.run(move || TcpListener::bind(address));
        let listener = listener.context("the server cannot listen")?;
        let from = CLIENTS[class.host];
        let connect =
            || client.namespace.run(move || load::connect(from, address, class.manner.dscp));
        established.push((class, Flows::establish(class.flows, &listener, connect)?));
    }
    let start = |(class, flows): (Class, Flows)| {
        Ok::<_, LoadError>((class, flows.start(class.direction, &args.cc, class.manner)?))
    };
    Ok(established.into_iter().map(start).collect::<Result<_, _>>()?)
}

/// A network namespace with one device, whose wire we hold.
struct Host {
    namespace: Namespace,
    addresses: [Ipv4Addr; 2],
}

impl Host {
    fn new(name: &str, addresses: [Ipv4Addr; 2], ecn: bool) -> anyhow::Result<Self> {
        let namespace = Namespace::new(name)?;
        if ecn {
            let ask = || std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1");
            namespace.run(ask).context("cannot switch ECN on (/proc/sys/net/ipv4/tcp_ecn)")?;
        }
        Ok(Self { namespace, addresses })
    }

    fn plug_in(&self) -> anyhow::Result<Tap> {
        let options = TapOptions { mtu: Some(1500), queue_len: Some(TAP_QUEUE) };
        Ok(self.namespace.run(move || Tap::open(DEVICE, &options))?)
    }

    fn address(&self) -> anyhow::Result<()> {
        let options = LinkOptions {
            up: Some(true),
            addresses: self.addresses.map(|address| (address.into(), PREFIX)).into(),
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

/// What feels the load.
struct Sensors {
    /// The one without a mark comes first.
    pings: Vec<(&'static str, Pinging)>,
    call: Option<Call>,
}

/// Pings by their mark, and what a call was like.
type Felt = (Vec<(&'static str, Pings)>, Option<Heard>);

impl Sensors {
    fn start(args: &LabArgs, client: &Host, server: &Host) -> anyhow::Result<Self> {
        let mut pings = vec![("", Pinging::start(client, 0)?)];
        for (label, dscp) in scenario::marked_pings(args.scenario) {
            pings.push((label, Pinging::start(client, *dscp)?));
        }
        let voip = args.scenario == Scenario::Voip;
        let call = voip.then(|| call(client, server)).transpose().context("cannot call")?;
        Ok(Self { pings, call })
    }

    fn set(&self, phase: Phase) {
        for (_, ping) in &self.pings {
            ping.phase.set(phase);
        }
        if let Some(call) = &self.call {
            call.set(phase);
        }
    }

    fn finish(self, interrupt: &Interrupt) -> anyhow::Result<Felt> {
        let heard = self.call.map(Call::finish);
        let pings = self.pings.into_iter();
        let pings = pings.map(|(label, ping)| Ok((label, ping.finish(interrupt)?)));
        Ok((pings.collect::<anyhow::Result<_>>()?, heard))
    }
}

fn call(client: &Host, server: &Host) -> std::io::Result<Call> {
    let to = server.namespace.run(|| UdpSocket::bind((SERVER, VOICE_PORT)))?;
    let from = client.namespace.run(|| UdpSocket::bind((CLIENT, 0)))?;
    rustix::net::sockopt::set_ip_tos(&from, scenario::VOICE << 2)?;
    from.connect((SERVER, VOICE_PORT))?;
    Call::start(from, to)
}

/// A ping on a thread of its own; it stops when dropped.
struct Pinging {
    phase: Arc<PhaseCell>,
    thread: Option<thread::JoinHandle<std::io::Result<Pings>>>,
}

impl Pinging {
    /// Starts once a first echo came back.
    fn start(client: &Host, dscp: u8) -> anyhow::Result<Self> {
        let mut ping = client
            .namespace
            .run(move || Ping::open(SERVER)?.marked(dscp))
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
