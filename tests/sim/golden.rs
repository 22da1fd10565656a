//! Whole runs as tables.

use super::*;
use std::fmt::Write as _;
use ucake::packet::Ecn;
use ucake::qdisc::{Dequeue, Diffserv, Discipline};
use ucake::sim::{BEGIN, Constant, Reno, flow};

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
pub(super) fn assert_golden(name: &str, got: &str) {
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

/// Which tin each packet of a saturated instance comes from, and what that adds up to.
fn tins_in_turn(config: Config, points: &[u8]) -> String {
    const DEPARTURES: usize = 4000;
    let mut cake = cake(without_aqm(config));
    let mut now = BEGIN;
    let meta = |dscp: u8| full(flow(1).with_dscp(dscp));
    let send = |cake: &mut Cake<SimFrame>, index: usize, now| {
        let meta = meta(points[index]);
        cake.enqueue(SimFrame { source: index, ..SimFrame::new(&meta) }, &meta, now);
    };
    for index in 0..points.len() {
        (0..4).for_each(|_| send(&mut cake, index, now));
    }
    let mut tins = Vec::new();
    while tins.len() < DEPARTURES {
        match cake.dequeue(now) {
            Dequeue::Send(departure) => {
                tins.push(departure.queue.0);
                send(&mut cake, departure.frame.source, now);
            }
            Dequeue::Wait(wake) => now = wake.at,
            Dequeue::Idle => panic!("it is saturated"),
        }
    }
    let mut table = format!("{} {:?}\n", config.diffserv.name(), config.bandwidth.map(Rate::bits));
    for line in tins[..160].chunks(80) {
        let line: String = line.iter().map(u8::to_string).collect();
        let _ = writeln!(table, "  {line}");
    }
    for tin in 0..8 {
        let count = tins.iter().filter(|&&other| other == tin).count();
        if count > 0 {
            let _ = writeln!(table, "  tin {tin}: {count} of {DEPARTURES}");
        }
    }
    table
}

#[test]
fn saturated_tins_take_their_turns() {
    use Diffserv::{Besteffort, Diffserv3, Diffserv4, Diffserv8, Precedence};
    let rows: [(Diffserv, &[u8]); 6] = [
        (Besteffort, &[0, 46]),
        (Diffserv3, &[0, 8, 46]),
        (Diffserv4, &[0, 8, 34, 46]),
        (Diffserv4, &[8, 34, 46]),
        (Diffserv8, &[1, 8, 0, 34, 18, 16, 46, 48]),
        (Precedence, &[0, 8, 16, 24, 32, 40, 48, 56]),
    ];
    let mut table = String::new();
    for bandwidth in [None, Some(Rate::from_bits(100_000_000))] {
        for (diffserv, points) in rows {
            table += &tins_in_turn(Config { diffserv, bandwidth, ..Config::default() }, points);
        }
    }
    assert_golden("tins", &table);
}
