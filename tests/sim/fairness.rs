//! Flows and hosts get what is theirs.

use super::*;
use ucake::packet::Overrides;
use ucake::qdisc::{Discipline, Isolation};
use ucake::sim::{BEGIN, Constant, Source as _, flow};

/// One flow of host 1 against eight of host 2, each to a server of its own.
fn one_against_eight(isolation: Isolation) -> f64 {
    let mut metas = vec![full(flow(0).between(1, 100))];
    metas.extend((1..9).map(|i| full(flow(i).between(2, 100 + u32::from(i)))));
    let config = Config { isolation, ..mbit(50) };
    let (report, _) = share(config, &metas, Span::from_secs(20));
    shares(&report)[0]
}

#[test]
fn flows_share_equally_whatever_the_size_of_their_packets() {
    let metas: Vec<Meta> = [1514, 1514, 700, 300, 120, 64]
        .into_iter()
        .zip(0..)
        .map(|(len, number)| flow(number).with_len(FrameLen(len)))
        .collect();
    let (report, stats) = share(mbit(20), &metas, Span::from_secs(20));
    for (share, source) in shares(&report).into_iter().zip(&report.sources) {
        assert_near(share, 100.0 / 6.0, 0.2, &source.name);
    }
    assert_eq!(stats.tins[1].way_collisions, 0);
}

#[test]
fn a_host_with_one_flow_gets_as_much_as_a_host_with_eight() {
    assert_near(one_against_eight(Isolation::TripleIsolate), 50.0, 0.5, "triple-isolate");
    assert_near(one_against_eight(Isolation::DualSrchost), 50.0, 0.5, "dual-srchost");
    assert_near(one_against_eight(Isolation::Srchost), 50.0, 0.5, "srchost");
    assert_near(one_against_eight(Isolation::Flows), 100.0 / 9.0, 0.2, "flows");
    assert_near(one_against_eight(Isolation::DualDsthost), 100.0 / 9.0, 0.2, "dual-dsthost");
}

#[test]
fn in_the_w_every_flow_has_a_busier_end_of_two_and_all_are_equal() {
    let pairs = [(1, 101), (1, 102), (2, 102), (2, 103)];
    let metas: Vec<Meta> =
        (0..).zip(pairs).map(|(i, (here, there))| full(flow(i).between(here, there))).collect();
    let (report, _) = share(mbit(50), &metas, Span::from_secs(20));
    for share in shares(&report) {
        assert_near(share, 25.0, 0.5, "a leg of the W");
    }
}

#[test]
fn five_hundred_flows_of_one_host_get_no_more_than_one_of_another() {
    let mut metas = vec![full(flow(0).between(1, 100))];
    metas.extend((1..=500).map(|i| full(flow(i).between(2, 1000 + u32::from(i)))));
    // At 10 Mbit/s the flow quantum is near its floor: a share of less than one byte per round.
    let config = Config { isolation: Isolation::DualSrchost, ..mbit(10) };
    let (report, _) = share(config, &metas, Span::from_secs(60));
    assert_near(shares(&report)[0], 50.0, 3.0, "the host with one flow");
}

#[test]
fn flows_share_by_bytes_on_the_wire() {
    use ucake::qdisc::{LinkLayer, Overhead};
    let overhead = Overhead { bytes: 40, mpu: 0, link_layer: LinkLayer::Atm, raw: false };
    let metas = [full(flow(1)), flow(2).with_len(FrameLen(66))];
    let (report, _) = share(Config { overhead, ..mbit(10) }, &metas, Span::from_secs(20));
    let (large, small) = (&report.sources[0], &report.sources[1]);
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    let ratio = (large.delivered * 1749) as f64 / (small.delivered * 106) as f64;
    assert_near(ratio, 1.0, 0.02, "bytes in cells, large packets against small");
}

#[test]
fn a_sparse_flow_overtakes_bulk_flows() {
    let mut world = World::new(cake(without_aqm(mbit(20))));
    for number in 0..16 {
        world.add("bulk", Backlogged::new(full(flow(number)), 50));
    }
    // Later than the others, who all begin as sparse flows.
    let voice = Constant::new(flow(99), FrameLen(214), Span::from_millis(20))
        .during(Span::from_secs(1), Span::from_secs(11));
    let voice = world.add("voice", voice);
    let (report, _) = world.run(Span::from_secs(12));
    let packet_time = Span::from_nanos(605_600);
    let voice = &report.sources[voice];
    assert_eq!((voice.delivered, voice.lost), (500, 0));
    assert!(
        voice.sojourn(100) <= packet_time * 2,
        "waits for the packet on the wire and no more: {:?}",
        voice.sojourn(100)
    );
    assert!(report.sources[0].sojourn(50) > Span::from_millis(300), "the bulk flows stand");
}

#[test]
fn the_same_flow_in_two_tins_has_two_queues() {
    let metas = [full(flow(1)), full(flow(1).with_dscp(46))];
    let (_, stats) = share(mbit(10), &metas, Span::from_secs(1));
    assert_eq!((stats.tins[1].way_misses, stats.tins[2].way_misses), (1, 1));
}

#[test]
fn flowblind_has_one_queue_for_all() {
    let config = Config { isolation: Isolation::Flowblind, ..mbit(10) };
    let metas: Vec<Meta> = (0..20).map(|number| full(flow(number))).collect();
    let (_, stats) = share(config, &metas, Span::from_secs(1));
    let tin = &stats.tins[1];
    assert_eq!((tin.way_misses, tin.way_collisions), (0, 0));
    assert_eq!(tin.sparse_flows + tin.bulk_flows, 1);
}

/// Queues that these packets come to stand in.
fn queues(config: Config, metas: &[Meta]) -> usize {
    let mut cake = cake(config);
    for meta in metas {
        cake.enqueue(SimFrame::new(meta), meta, BEGIN);
    }
    cake.queue_stats(BEGIN).len()
}

#[test]
fn two_flows_of_one_host_share_a_queue_where_only_hosts_are_told_apart() {
    use Isolation::{Dsthost, Flows, Hosts, Srchost};
    let metas = [full(flow(1).between(1, 100)), full(flow(2).between(1, 101))];
    for (isolation, expected) in [(Srchost, 1), (Dsthost, 2), (Hosts, 2), (Flows, 2)] {
        let config = Config { isolation, ..Config::default() };
        assert_eq!(queues(config, &metas), expected, "{}", isolation.name());
    }
}

#[test]
fn the_source_is_the_source_whichever_address_is_lower() {
    let mut metas = vec![full(flow(0).between(100, 5))];
    metas.extend((1..5).map(|i| full(flow(i).between(200, u32::from(i)))));
    let config = Config { isolation: Isolation::DualSrchost, ..mbit(50) };
    let (report, _) = share(config, &metas, Span::from_secs(20));
    assert_near(shares(&report)[0], 50.0, 0.5, "the host with one flow");
}

#[test]
fn sparse_flows_are_no_load_on_their_host() {
    let config = without_aqm(Config { isolation: Isolation::DualSrchost, ..mbit(50) });
    let mut world = World::new(cake(config));
    world.add("beside sparse", Backlogged::new(full(flow(0).between(1, 100)), 4));
    world.add("alone", Backlogged::new(full(flow(1).between(2, 100)), 4));
    for number in 2..52 {
        let meta = flow(number).between(1, 100);
        world.add("sparse", Constant::new(meta, FrameLen(100), Span::from_millis(200)));
    }
    let (report, _) = world.run(Span::from_secs(20));
    let ratio = report.sources[0].bits_per_second(report.span)
        / report.sources[1].bits_per_second(report.span);
    assert_near(ratio, 1.0, 0.01, "bulk flow against bulk flow");
}

#[test]
fn a_thousand_flows_of_one_host_all_get_through_on_shares_below_a_byte() {
    let metas: Vec<Meta> = (0..1000)
        .map(|i| flow(i).between(1, 1000 + u32::from(i)).with_len(FrameLen(300)))
        .collect();
    let (report, stats) = share(mbit(10), &metas, Span::from_secs(20));
    assert!(stats.tins[1].bulk_flows > 800, "{}", stats.tins[1].bulk_flows);
    // Some hundred of them have to share a queue.
    assert!(report.sources.iter().all(|source| source.delivered > 10), "nobody starves");
}

#[test]
fn flowblind_with_nat_has_one_queue_too_but_heeds_what_it_is_told() {
    let told = |class| Meta { overrides: Overrides::from_class(class), ..full(flow(1)) };
    let metas = [full(flow(1)), full(flow(2)), told(7)];
    for (nat, expected) in [(false, 1), (true, 2)] {
        let config = Config { isolation: Isolation::Flowblind, nat, ..Config::default() };
        assert_eq!(queues(config, &metas[..2]), 1, "nat {nat}");
        assert_eq!(queues(config, &metas), expected, "nat {nat}");
    }
}

#[test]
fn a_host_that_is_told_counts_as_one_host() {
    // Nine flows of as many hosts; eight of them are said to be one.
    let mut metas = vec![full(flow(0).between(1, 100))];
    metas.extend((1..9).map(|i| Meta {
        overrides: Overrides::from_class(0x0003_0000),
        ..full(flow(i).between(10 + u32::from(i), 100 + u32::from(i)))
    }));
    let config = Config { isolation: Isolation::DualSrchost, ..mbit(50) };
    let (report, _) = share(config, &metas, Span::from_secs(20));
    assert_near(shares(&report)[0], 50.0, 0.5, "the flow of a host of its own");
}
