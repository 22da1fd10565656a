//! Whole runs as tables.

use super::*;
use ucake::packet::Ecn;
use ucake::sim::{Constant, Reno, flow};

/// A household: uploads, an ECN-capable one, a call, a backup in the background.
fn household(config: Config, seed: u64) -> String {
    let cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(seed));
    let mut world = World::new(cake);
    let rtt = Span::from_millis(20);
    world.add("upload", Reno::new(full(flow(1)), rtt));
    world.add("upload far", Reno::new(full(flow(2)), rtt * 4));
    world.add("upload ecn", Reno::new(full(flow(3)).with_ecn(Ecn::Ect0), rtt));
    world.add("backup", Reno::new(full(flow(4)).with_dscp(8), rtt));
    let call = flow(5).with_dscp(46);
    world.add("call", Constant::new(call, FrameLen(214), Span::from_millis(20)));
    world.add("ping", Constant::new(flow(6), FrameLen(98), Span::from_millis(50)));
    let (report, cake) = world.run(Span::from_secs(20));
    let stats = cake.stats();
    format!("{report}dropped {} overlimits {}\n", stats.dropped, stats.overlimits)
}

/// Compares with the table kept under `name`.
#[track_caller]
fn assert_golden(name: &str, got: &str) {
    let path = format!("{}/tests/sim/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UCAKE_BLESS").is_some() {
        std::fs::write(&path, got).expect("the golden directory can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == got, "{name} changed\nkept:\n{kept}\ngot:\n{got}");
}

#[test]
fn a_household_on_20_mbit() {
    assert_golden("household_20mbit", &household(mbit(20), 1));
}

#[test]
fn a_household_on_1_mbit() {
    assert_golden("household_1mbit", &household(mbit(1), 1));
}

#[test]
fn two_runs_with_one_seed_are_equal_and_with_another_are_not() {
    assert_eq!(household(mbit(20), 7), household(mbit(20), 7));
    assert_ne!(household(mbit(20), 7), household(mbit(20), 8));
}
