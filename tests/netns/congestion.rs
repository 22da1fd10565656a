//! What real TCP is told when the queue stands, and that it listens.

use ucake::qdisc::{Config, SplitGso, Stats};

use crate::lab::Lab;
use crate::{mbit, require_netns};

/// Enough for slow start to end, and for a few signals after it.
const ENOUGH: u64 = 3_000_000;

#[test]
fn senders_that_speak_ecn_are_marked_instead_of_dropped_from() {
    for split_gso in [SplitGso::Split, SplitGso::Whole] {
        let Some((stats, heard)) = congested("1", split_gso) else { return };
        let marks: u64 = stats.tins.iter().map(|tin| tin.marks).sum();
        assert!(marks > 0, "{split_gso:?}: {stats:?}");
        assert!(stats.dropped * 10 <= marks, "{split_gso:?}: {} drops, {marks}", stats.dropped);
        assert!(heard > 0, "{split_gso:?}: {marks} marks were set, and none arrived");
    }
}

#[test]
fn senders_that_do_not_are_dropped_from() {
    let Some((stats, heard)) = congested("0", SplitGso::Split) else { return };
    let marks: u64 = stats.tins.iter().map(|tin| tin.marks).sum();
    assert!(stats.dropped > 0, "{stats:?}");
    assert_eq!((marks, heard), (0, 0), "{stats:?}");
}

/// Two uploads through 20 Mbit/s. Statistics of the queue, and CE marks that the server saw.
fn congested(tcp_ecn: &'static str, split_gso: SplitGso) -> Option<(Stats, u64)> {
    require_netns()?;
    let lab = Lab::new();
    lab.set("ipv4/tcp_ecn", tcp_ecn);
    let bridge = lab.bridge(Config { bandwidth: Some(mbit(20)), split_gso, ..Config::default() });
    let load = lab.load(2);
    load.wait_for(ENOUGH);
    drop(load);
    let stats = bridge.ask(|bridge| bridge.up().stats());
    bridge.stop().expect("a clean stop");
    let counters = lab.server.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"));
    Some((stats, counter(&counters.expect("/proc"), "IpExt:", "InCEPkts")))
}

/// A counter out of a line of names and a line of numbers.
fn counter(table: &str, group: &str, name: &str) -> u64 {
    let mut lines = table.lines().filter(|line| line.starts_with(group)).map(str::split_whitespace);
    let (names, numbers) = (lines.next().expect("names"), lines.next().expect("numbers"));
    let found = names.zip(numbers).find(|(found, _)| *found == name);
    found.and_then(|(_, number)| number.parse().ok()).expect("the kernel counts it")
}
