//! Experiment 5, hosts: who gets what when one host has one flow and another has many, in each isolation mode.
//!
//! `cargo run --release --example experiment-5-hosts [-- --svg FILE]`: in virtual time, the same everywhere. Senders are additive
//! increase, multiplicative decrease ([`Reno`]) at 50 ms; 10 Mbit/s; docs/EXPERIMENTS.md has the tables.

use std::error::Error;
use std::fmt::Write as _;

use ucake::packet::Meta;
use ucake::qdisc::{Cake, Config, Entropy, Isolation};
use ucake::sim::{Reno, Report, World, flow};
use ucake::time::Span;
use ucake::units::{FrameLen, Rate};

use chart::{Bar, Panel, Spread};

#[allow(dead_code, clippy::duplicate_mod, reason = "experiments use what they need of it")]
mod chart;

/// Flows of the second host.
const MANY: u16 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    print!("{}", tables());
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        ["--svg", file] => draw(file),
        _ => Err("usage: experiment-5-hosts [--svg FILE]".into()),
    }
}

pub(crate) fn tables() -> String {
    one_against(MANY) + "\n" + &w()
}

/// Through one instance for two minutes.
fn run(isolation: Isolation, metas: impl IntoIterator<Item = Meta>) -> Report {
    let bandwidth = Some(Rate::from_bits(10_000_000));
    let config = Config { bandwidth, isolation, ..Config::default() };
    let mut world = World::new(Cake::new(config, FrameLen(1514), Entropy::from_seed(1)));
    for meta in metas {
        world.add("flow", Reno::new(meta, Span::from_millis(50)));
    }
    world.run(Span::from_secs(120)).0
}

/// Host 1 has a flow, host 2 has `many`, each to a server of its own: Mbit/s of the hosts.
fn hosts(isolation: Isolation, many: u16) -> [f64; 2] {
    let pairs = (0..=many).map(|i| flow(i).between(1 + u32::from(i > 0), 100 + u32::from(i)));
    let report = run(isolation, pairs);
    let one = mbit(&report, 0);
    [one, report.bits_per_second() / 1e6 - one]
}

fn draw(file: &str) -> Result<(), Box<dyn Error>> {
    let shares = Isolation::ALL.map(|isolation| (isolation, hosts(isolation, MANY)));
    let panel = |title: String, host: usize| Panel {
        title,
        bars: shares.iter().map(|(isolation, shares)| bar(*isolation, shares[host])).collect(),
    };
    let panels = [
        panel("the host with 1 flow, Mbit/s".to_owned(), 0),
        panel(format!("the host with {MANY}, Mbit/s"), 1),
    ];
    chart::bars(file, "Two hosts, 10 Mbit/s, 50 ms", &panels, 1)
}

fn bar(isolation: Isolation, mbit: f64) -> Bar {
    let here = Spread::of(vec![mbit]);
    Bar { name: isolation.name().to_owned(), published: None, linux: None, here }
}

fn one_against(many: u16) -> String {
    let mut table = format!("| isolation | host with 1 flow | host with {many} |\n|---|---|---|\n");
    for isolation in Isolation::ALL {
        let [one, rest] = hosts(isolation, many);
        let _ = writeln!(table, "| {} | {one:.2} | {rest:.2} |", isolation.name());
    }
    table
}

/// Two local hosts, three servers, four flows in a W: Mbit/s of each flow.
fn w() -> String {
    let mut table = "| isolation | 1–A | 1–B | 2–B | 2–C |\n|---|---|---|---|---|\n".to_owned();
    for isolation in [Isolation::Flows, Isolation::DualSrchost, Isolation::TripleIsolate] {
        let legs = [(1, 101), (1, 102), (2, 102), (2, 103)];
        let metas = (0..).zip(legs).map(|(i, (here, there))| flow(i).between(here, there));
        let report = run(isolation, metas);
        let flows = (0..4).map(|leg| format!(" {:.2} |", mbit(&report, leg))).collect::<String>();
        let _ = writeln!(table, "| {} |{flows}", isolation.name());
    }
    table
}

fn mbit(report: &Report, source: usize) -> f64 {
    report[source].bits_per_second(report.span) / 1e6
}
