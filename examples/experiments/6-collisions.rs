//! Experiment 6: how many flows have to share a queue, in CAKE's set-associative table and in a direct one.
//!
//! `cargo run --release --example experiment-6-collisions [-- --rounds N] [--svg FILE]`; docs/EXPERIMENTS.md has the
//! table beside the published figures. Everything follows from the numbers of the rounds.
//!
//! So many flows come, a packet each, and stay. CAKE itself says how many found every way of their set
//! taken (`way_collisions`); for the direct table, each flow's hash is the number of its queue, and whoever
//! finds it taken collides.

use std::error::Error;

use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;
use ucake::qdisc::{Cake, Config, Diffserv, Discipline as _, Entropy};
use ucake::sim::{BEGIN, SimFrame, flow};
use ucake::units::{FrameLen, MemSize};

#[allow(dead_code, clippy::duplicate_mod, reason = "experiments use what they need of it")]
mod chart;

/// Queues of either table.
const QUEUES: usize = 1024;
/// What the published table has.
const TABLE: [u16; 10] = [38, 100, 200, 256, 300, 400, 500, 600, 800, 1024];

/// What came of so many flows.
struct Row {
    flows: u16,
    /// Share of the rounds in which any two shared a queue: set-associative, direct.
    any: [f64; 2],
    /// Flows that found their place taken, on average.
    mean: [f64; 2],
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut rounds, mut svg) = (2000, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (&*word, words.next()) {
            ("--rounds", Some(number)) => rounds = number.parse()?,
            ("--svg", Some(file)) => svg = Some(file),
            _ => return Err("usage: experiment-6-collisions [--rounds N] [--svg FILE]".into()),
        }
    }
    print!("{}", table(rounds));
    match svg {
        Some(file) => draw(&file, rounds),
        None => Ok(()),
    }
}

/// The table, in Markdown.
pub(crate) fn table(rounds: u32) -> String {
    let head = "| flows | any collision, 8-way | flows that share, 8-way | any collision, direct | flows that share, direct |\n\
                |---|---|---|---|---|\n";
    let row = |flows| {
        let Row { flows, any, mean } = measure(flows, rounds);
        let columns = format!("{:.4} | {:.2} | {:.4} | {:.1}", any[0], mean[0], any[1], mean[1]);
        format!("| {flows} | {columns} |\n")
    };
    head.to_owned() + &TABLE.map(row).concat()
}

fn measure(flows: u16, rounds: u32) -> Row {
    let mut any = [0_u32; 2];
    let mut sum = [0_u64; 2];
    for round in 0..rounds {
        let shared = [set_associative(flows, round.into()), direct(flows, round.into())];
        for (table, shared) in shared.into_iter().enumerate() {
            any[table] += u32::from(shared > 0);
            sum[table] += shared;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    let mean = sum.map(|sum| sum as f64 / f64::from(rounds));
    Row { flows, any: any.map(|any| f64::from(any) / f64::from(rounds)), mean }
}

/// Flows that CAKE finds no queue of their own for.
fn set_associative(flows: u16, seed: u64) -> u64 {
    let memory_limit = Some(MemSize(64 << 20));
    let config = Config { diffserv: Diffserv::Besteffort, memory_limit, ..Config::default() };
    let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(seed));
    for number in 0..flows {
        let meta = flow(number);
        cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
    }
    cake.stats().tins.iter().map(|tin| tin.way_collisions).sum()
}

/// Flows that find the queue of their hash taken.
fn direct(flows: u16, seed: u64) -> u64 {
    let mut taken = [false; QUEUES];
    let mut shared = 0;
    for number in 0..flows {
        let mut hasher = SipHasher13::new_with_keys(seed, 0);
        hasher.write_u16(number);
        let queue = usize::try_from(hasher.finish() % QUEUES as u64).unwrap_or(0);
        shared += u64::from(taken[queue]);
        taken[queue] = true;
    }
    shared
}

fn draw(file: &str, rounds: u32) -> Result<(), Box<dyn Error>> {
    let rows: Vec<Row> = (1..=40).map(|step| measure(step * 15, rounds.min(500))).collect();
    let points = |table: usize| {
        rows.iter().map(|row| (f64::from(row.flows), row.any[table])).collect::<Vec<_>>()
    };
    let lines = [("direct", points(1)), ("8-way set-associative", points(0))];
    chart::lines(file, "Probability that any two flows share a queue", ["flows", ""], &lines)
}
