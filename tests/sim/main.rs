//! The core on virtual time: what a user would notice, without privilege and without noise.
//!
//! Every run has a fixed seed. Whole tables are kept in `golden/`; `UCAKE_BLESS=1 cargo test` rewrites
//! them, and a changed table is a commit of its own with its reason.

mod acks;
mod behaviour;
mod documents;
mod examples;
mod fairness;
mod golden;
mod rate;
mod runs;
mod tins;

use ucake::packet::Meta;
use ucake::qdisc::{Cake, Config, Entropy, Stats};
use ucake::sim::{Backlogged, Report, SimFrame, World};
use ucake::time::Span;
use ucake::units::{FrameLen, Rate};

/// So long an interval that the AQM keeps out of the way.
const NO_AQM: Span = Span::from_secs(3);

fn mbit(rate: u64) -> Config {
    Config { bandwidth: Some(Rate::from_bits(rate * 1_000_000)), ..Config::default() }
}

/// The same, with the AQM out of the way.
fn without_aqm(config: Config) -> Config {
    Config { interval: NO_AQM, target: NO_AQM, ..config }
}

fn cake(config: Config) -> Cake<SimFrame> {
    Cake::new(config, FrameLen(1514), Entropy::from_seed(42))
}

/// Full-sized packets.
fn full(meta: Meta) -> Meta {
    meta.with_len(FrameLen(1514))
}

/// Lets sources that always have packets share `config` for `span`.
fn share(config: Config, metas: &[Meta], span: Span) -> (Report, Stats) {
    let mut world = World::new(cake(without_aqm(config)));
    for (number, meta) in metas.iter().enumerate() {
        world.add(&format!("source {number}"), Backlogged::new(*meta, 4));
    }
    let (report, cake) = world.run(span);
    (report, cake.stats())
}

/// Shares of the bytes delivered, in percent.
#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn shares(report: &Report) -> Vec<f64> {
    let total: u64 = report.sources.iter().map(|source| source.bytes).sum();
    report.sources.iter().map(|source| source.bytes as f64 * 100.0 / total as f64).collect()
}

#[track_caller]
fn assert_near(got: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((got - expected).abs() <= tolerance, "{what}: got {got:.3}, expected {expected:.3}");
}
