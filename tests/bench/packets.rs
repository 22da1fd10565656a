//! What a packet costs on its way through the core, in time, allocations and memory.
//!
//! Each scenario is a thousand frames that are queued and taken out again. `burst` queues all of them,
//! then takes all of them out; `standing` keeps a queue of a thousand and puts one in for each it takes
//! out, so that most flows are bulk flows. `whole` begins with the bytes of the frame, `core` with what
//! dissection made of them.

use std::error::Error;
use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant as Wall;

use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use ucake::io::pool::{Fill, FrameBuf, Pool};
use ucake::packet::{Frame, Meta, VnetHeader, dissect};
use ucake::qdisc::{Cake, Config, Dequeue, Diffserv, Discipline, Entropy};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, MemSize};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Packets per round.
const PACKETS: u16 = 1024;
/// Rounds that are timed, unless said otherwise.
const ROUNDS: usize = 100;
/// Rounds before, for tables and stores to grow.
const WARM_UP: usize = 5;
/// Of the memory measured: flows, and packets of each.
const HELD: (u16, usize) = (1000, 1000);

/// What the command line asks for.
pub struct Args {
    json: Option<String>,
    only: Option<String>,
    rounds: Option<usize>,
}

impl Args {
    /// `None` if this is not `cargo bench`, or if the words are divan's.
    pub fn parse() -> Result<Option<Self>, Box<dyn Error>> {
        let mut found = Self { json: None, only: None, rounds: None };
        let (mut words, mut asked) = (std::env::args().skip(1), false);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match &*word {
                "--bench" => asked = true,
                "--json" => found.json = Some(value()?),
                "--only" => found.only = Some(value()?),
                "--rounds" => found.rounds = Some(value()?.parse::<usize>()?.max(1)),
                _ => return Ok(None),
            }
        }
        Ok(asked.then_some(found))
    }

    /// Whether divan is left out.
    pub fn asks_for_the_table_only(&self) -> bool {
        self.json.is_some() || self.only.is_some() || self.rounds.is_some()
    }
}

/// Measures and prints; writes what was measured where it is asked to.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let asked_for =
        |scenario: &Scenario| args.only.as_ref().is_none_or(|only| *only == scenario.name());
    let scenarios: Vec<_> = Scenario::all().into_iter().filter(asked_for).collect();
    if scenarios.is_empty() {
        let names: Vec<_> = Scenario::all().iter().map(Scenario::name).collect();
        return Err(format!("no such scenario; there are {}", names.join(" ")).into());
    }
    println!("{:40} {:>8} {:>18}", "", "ns", "allocations");
    let rounds = args.rounds.unwrap_or(ROUNDS);
    let cost = |scenario: &Scenario| -> Value {
        let Cost { nanos, allocations } = scenario.measure(rounds);
        println!("{:40} {nanos:8.0} {allocations:18.4}", scenario.name());
        json!({ "scenario": scenario.name(), "nanos": nanos, "allocations": allocations })
    };
    let costs: Vec<_> = scenarios.iter().map(cost).collect();
    let memory = if args.only.is_none() { memory() } else { Value::Null };
    if let Some(path) = &args.json {
        let report = json!({ "per_packet": costs, "memory": memory });
        writeln!(std::fs::File::create(path)?, "{report:#}")?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Scenario {
    whole: bool,
    standing: bool,
    flows: u16,
    many_hosts: bool,
    len: usize,
}

/// Of one packet: nanoseconds, median of the rounds, and allocations, mean.
struct Cost {
    nanos: f64,
    allocations: f64,
}

impl Scenario {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (whole, len) in [(true, 1514), (true, 64), (false, 1514)] {
            for standing in [false, true] {
                for many_hosts in [false, true] {
                    let flows = if whole { [1, 256, 1024] } else { [1, 32, 1024] };
                    let scenario = |flows| Self { whole, standing, flows, many_hosts, len };
                    all.extend(flows.map(scenario));
                }
            }
        }
        all
    }

    fn name(&self) -> String {
        let part = if self.whole { "whole" } else { "core" };
        let pattern = if self.standing { "standing" } else { "burst" };
        let hosts = if self.many_hosts { "many-hosts" } else { "one-pair" };
        format!("{part}/{pattern}/{hosts}/{}/{}", self.len, self.flows)
    }

    fn frame(&self, number: u16) -> Vec<u8> {
        let flow = number % self.flows;
        let host = if self.many_hosts { flow } else { 0 };
        tcp(host, flow, self.len)
    }

    fn measure(&self, rounds: usize) -> Cost {
        let mut cake = Cake::new(Config::default(), FrameLen(1514), Entropy::from_seed(1));
        let frames: Vec<_> = (0..PACKETS).map(|number| self.frame(number)).collect();
        let metas: Vec<_> = frames.iter().map(|frame| examined(frame)).collect();
        let mut now = Instant::from_nanos(1_000_000_000);
        let mut round = || match (self.whole, self.standing) {
            (true, false) => turn_over(&mut cake, &frames, |frame| examined(frame), &mut now),
            (false, false) => turn_over(&mut cake, &metas, |meta| *meta, &mut now),
            (true, true) => {
                turn_over_standing(&mut cake, &frames, |frame| examined(frame), &mut now);
            }
            (false, true) => turn_over_standing(&mut cake, &metas, |meta| *meta, &mut now),
        };
        (0..WARM_UP).for_each(|_| round());
        let region = Region::new(ALLOCATOR);
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let began = Wall::now();
            round();
            times.push(began.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS));
        }
        // One of them made the list of times.
        let allocations = region.change().allocations.saturating_sub(1);
        times.sort_by(f64::total_cmp);
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let allocations = allocations as f64 / (rounds as f64 * f64::from(PACKETS));
        Cost { nanos: times[rounds / 2], allocations }
    }
}

/// What is queued: nothing.
struct Stub;

impl Frame for Stub {
    fn mark_ce(&mut self) -> bool {
        false
    }
    fn wash(&mut self) -> bool {
        false
    }
    fn segment(&self, _index: u16) -> Self {
        Self
    }
}

fn examined(frame: &[u8]) -> Meta {
    let found = dissect(frame, &VnetHeader::PLAIN, MemSize(2304));
    found.map(|found| found.meta).unwrap_or_default()
}

#[inline(never)]
fn turn_over<T>(
    cake: &mut Cake<Stub>,
    packets: &[T],
    meta: impl Fn(&T) -> Meta,
    now: &mut Instant,
) {
    for packet in packets {
        cake.enqueue(Stub, &meta(packet), *now);
    }
    while sent(cake, *now) {}
    *now += Span::from_millis(1);
}

#[inline(never)]
fn turn_over_standing<T>(
    cake: &mut Cake<Stub>,
    packets: &[T],
    meta: impl Fn(&T) -> Meta,
    now: &mut Instant,
) {
    if cake.backlog() == FrameLen::ZERO {
        for packet in packets {
            cake.enqueue(Stub, &meta(packet), *now);
        }
    }
    for packet in packets {
        cake.enqueue(Stub, &meta(packet), *now);
        sent(cake, *now);
        *now += Span::from_micros(1);
    }
}

/// Takes out a packet; whether there was one.
fn sent(cake: &mut Cake<Stub>, now: Instant) -> bool {
    loop {
        match cake.dequeue(now) {
            Dequeue::Send(departure) => {
                black_box(&departure);
                return true;
            }
            // Without a rate only its share of work ends a call.
            Dequeue::Wait(_) => {}
            Dequeue::Idle => return false,
        }
    }
}

/// An Ethernet frame with TCP over IPv4, from a client to a server, with a timestamp option if it fits.
fn tcp(host: u16, port: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..16].copy_from_slice(&[0x45, 0]);
    frame[16..18].copy_from_slice(&u16::try_from(len - 14).unwrap_or(u16::MAX).to_be_bytes());
    frame[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    frame[26..28].copy_from_slice(&[10, 1]);
    frame[28..30].copy_from_slice(&host.to_be_bytes());
    frame[30..32].copy_from_slice(&[10, 2]);
    frame[32..34].copy_from_slice(&host.to_be_bytes());
    frame[34..36].copy_from_slice(&port.wrapping_add(1024).to_be_bytes());
    frame[36..38].copy_from_slice(&443_u16.to_be_bytes());
    frame[46..48].copy_from_slice(&[if len < 66 { 0x50 } else { 0x80 }, 0x10]);
    frame
}

/// Prints what an instance holds, idle and full.
fn memory() -> Value {
    let held = |what: &str, bytes: usize| {
        println!("{what:40} {bytes:12} bytes");
        bytes
    };
    let idle = |diffserv| {
        let config = Config { diffserv, ..Config::default() };
        let region = Region::new(ALLOCATOR);
        let cake: Cake<FrameBuf> = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
        let bytes = size_of_val(&cake) + net(&region);
        drop(black_box(cake));
        bytes
    };
    println!();
    let three = held("idle, diffserv3", idle(Diffserv::Diffserv3));
    let eight = held("idle, diffserv8", idle(Diffserv::Diffserv8));
    let (queued, bytes) = full();
    held("1000 flows with 1000 packets each", bytes);
    #[expect(clippy::cast_precision_loss, reason = "gigabytes at the most")]
    let ratio = bytes as f64 / queued as f64;
    println!("{:40} {ratio:12.3}", "of the bytes queued");
    json!({ "idle_diffserv3": three, "idle_diffserv8": eight, "full": bytes, "queued": queued })
}

/// Bytes queued and bytes held by an instance with many flows and its pool.
fn full() -> (usize, usize) {
    let region = Region::new(ALLOCATOR);
    let config = Config { memory_limit: Some(MemSize(1 << 40)), ..Config::default() };
    let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
    let pool = Pool::new();
    let now = Instant::from_nanos(1_000_000_000);
    let (flows, each) = HELD;
    for _ in 0..each {
        for flow in 0..flows {
            let bytes = [&VnetHeader::PLAIN.encode()[..], &tcp(flow, flow, 1514)].concat();
            let fill = pool.fill(|buffer| {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            });
            if let Ok(Fill::Frame(received)) = fill {
                cake.enqueue(received.frame, &received.meta, now);
            }
        }
    }
    let queued = usize::try_from(cake.backlog().0).unwrap_or(usize::MAX);
    (queued, net(&region))
}

/// Bytes allocated and not given back since the region began.
fn net(region: &Region<'_, std::alloc::System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}
