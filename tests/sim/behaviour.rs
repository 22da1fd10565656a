//! Queues that stand are told, floods do not hurt others, and drop-tail shows the disease.

use super::*;
use ucake::packet::Ecn;
use ucake::qdisc::{Dequeue, Discipline, Fifo, FifoConfig};
use ucake::sim::{BEGIN, Constant, Reno, flow};
use ucake::units::MemSize;

#[test]
fn responsive_senders_fill_the_link_with_little_delay() {
    let mut world = World::new(cake(mbit(20)));
    for number in 0..4 {
        world.add("reno", Reno::new(full(flow(number)), Span::from_millis(20)));
    }
    let span = Span::from_secs(30);
    let (report, _) = world.run(span);
    let total: f64 = report.sources.iter().map(|source| source.bits_per_second(span)).sum();
    assert!(total > 19_000_000.0, "{total}\n{report}");
    assert!(report.sources[0].sojourn(50) < Span::from_millis(12), "{report}");
}

#[test]
fn ecn_capable_senders_are_marked_and_lose_nothing() {
    let mut world = World::new(cake(mbit(20)));
    let meta = full(flow(1)).with_ecn(Ecn::Ect0);
    world.add("reno", Reno::new(meta, Span::from_millis(20)));
    let (report, cake) = world.run(Span::from_secs(20));
    assert!(report.sources[0].marked > 3, "{report}");
    assert_eq!(report.sources[0].lost, 0, "{report}");
    assert_eq!(cake.stats().tins[1].marks, report.sources[0].marked);
}

#[test]
fn a_flood_does_not_take_a_sparse_flows_packets() {
    let config = Config { memory_limit: Some(MemSize(200_000)), ..mbit(10) };
    let mut world = World::new(cake(config));
    let flood = Constant::new(flow(1), FrameLen(1514), Span::from_micros(100));
    let flood = world.add("flood", flood);
    let sparse = Constant::new(flow(2), FrameLen(200), Span::from_millis(30));
    let sparse = world.add("sparse", sparse);
    let (report, cake) = world.run(Span::from_secs(10));
    assert_eq!(report.sources[sparse].lost, 0, "{report}");
    assert!(report.sources[flood].lost > 80_000, "{report}");
    let stats = cake.stats();
    assert_eq!(stats.tins[1].unresponsive_flows, 1, "BLUE has found the flood");
    assert!(stats.memory_used.0 <= 200_000 + 1514 + 256, "one packet over at the most");
}

#[test]
fn a_bulk_flood_pays_with_packets_of_its_own_tin() {
    let config = Config { memory_limit: Some(MemSize(100_000)), ..mbit(10) };
    let mut world = World::new(cake(config));
    let flood = flow(1).with_dscp(8);
    world.add("flood", Constant::new(flood, FrameLen(1514), Span::from_micros(100)));
    world.add("web", Constant::new(flow(2), FrameLen(1514), Span::from_millis(5)));
    let (_, cake) = world.run(Span::from_secs(5));
    let stats = cake.stats();
    assert!(stats.tins[0].drops > 0);
    assert_eq!(stats.tins[1].drops, 0);
}

#[test]
fn in_ingress_mode_a_flood_at_twice_the_rate_is_cut_to_two_thirds() {
    let run = |ingress: bool| {
        let config = Config { ingress, memory_limit: Some(MemSize(500_000)), ..mbit(10) };
        let mut world = World::new(cake(config));
        world.add("flood", Constant::new(flow(1), FrameLen(1514), Span::from_nanos(605_600)));
        let span = Span::from_secs(60);
        let (report, _) = world.run(span);
        report.sources[0].bits_per_second(span)
    };
    assert_near(run(false) / 1e7, 1.0, 0.01, "egress");
    assert_near(run(true) / 1e7, 2.0 / 3.0, 0.02, "ingress");
}

#[test]
fn the_last_packet_of_a_queue_is_delivered_however_old() {
    let mut cake = cake(mbit(10));
    let meta = full(flow(1));
    let mut now = BEGIN;
    for _ in 0..50 {
        cake.enqueue(SimFrame::new(&meta), &meta, now);
        now += Span::from_secs(1);
        assert!(matches!(cake.dequeue(now), Dequeue::Send(_)));
        assert!(matches!(cake.dequeue(now), Dequeue::Idle | Dequeue::Wait(_)));
    }
    assert_eq!(cake.stats().dropped, 0);
}

#[test]
fn delay_statistics_follow_what_is_delivered() {
    let mut world = World::new(cake(without_aqm(mbit(10))));
    world.add("bulk", Backlogged::new(full(flow(1)), 10));
    let (_, cake) = world.run(Span::from_secs(5));
    let tin = cake.stats().tins[1];
    let standing = Span::from_nanos(10 * 1_211_200);
    for delay in [tin.average_delay, tin.peak_delay, tin.base_delay] {
        assert!((delay - standing).nanos().abs() < 200_000, "{delay:?}, expected {standing:?}");
    }
}

#[test]
fn drop_tail_stands_at_its_limit() {
    let rate = Some(Rate::from_bits(20_000_000));
    let fifo = Fifo::new(FifoConfig { rate, limit: 1000, split: true });
    let mut world = World::new(fifo);
    for number in 0..4 {
        world.add("reno", Reno::new(full(flow(number)), Span::from_millis(20)));
    }
    let ping = Constant::new(flow(9), FrameLen(98), Span::from_millis(50));
    let ping = world.add("ping", ping);
    let (report, fifo) = world.run(Span::from_secs(60));
    assert!(report.sources[ping].sojourn(50) > Span::from_millis(200), "{report}");
    assert!(fifo.stats().dropped > 0);
    assert!(report.sources.iter().all(|source| !source.reordered));
}

#[test]
fn drop_tail_cuts_a_train_where_it_is_full() {
    let mut fifo = Fifo::new(FifoConfig { rate: None, limit: 10, split: true });
    let meta = flow(1).superpacket(16, 1000);
    fifo.enqueue(SimFrame::new(&meta), &meta, BEGIN);
    assert_eq!((fifo.stats().queued_packets, fifo.stats().dropped), (10, 6));
    let mut left = Vec::new();
    while let Dequeue::Send(departure) = fifo.dequeue(BEGIN) {
        left.push((departure.frame.segment, departure.len.0));
    }
    assert_eq!(left, (0..10).map(|segment| (segment, 1066)).collect::<Vec<_>>());
}

#[test]
fn the_sojourn_floor_scales_with_bulk_flows_in_ingress_mode_only() {
    // A hundred packets of 8 ms stand in fifty queues: each waits 0.8 s, below twice fifty full packets.
    let drops = |ingress: bool| {
        let mut world = World::new(cake(Config { ingress, ..mbit(1) }));
        for number in 0..50 {
            world.add("bulk", Backlogged::new(flow(number).with_len(FrameLen(1000)), 2));
        }
        world.run(Span::from_secs(20)).1.stats().dropped
    };
    let (egress, ingress) = (drops(false), drops(true));
    assert!(egress > 40, "{egress}");
    assert!(ingress * 5 < egress, "{ingress} in ingress mode, {egress} in egress mode");
}

#[test]
fn an_empty_queue_is_remembered_until_its_aqm_has_come_to_rest() {
    let mut cake = cake(Config::default());
    let mut now = BEGIN;
    let send = |cake: &mut Cake<SimFrame>, number, now| {
        let meta = full(flow(number));
        cake.enqueue(SimFrame::new(&meta), &meta, now);
        while let Dequeue::Send(_) = cake.dequeue(now) {}
        let tin = cake.stats().tins[1];
        tin.sparse_flows + tin.bulk_flows
    };
    assert_eq!(send(&mut cake, 1, now), 1);
    now += Span::from_millis(50);
    assert_eq!(send(&mut cake, 2, now), 2, "the first one is still decaying");
    now += Span::from_millis(99);
    // Flow 1 has rested for an interval and is forgotten; flow 2 lacks a millisecond.
    send(&mut cake, 3, now);
    assert_eq!(send(&mut cake, 3, now), 2);
}
