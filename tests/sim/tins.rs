//! Classes of service get their shares and no more.

use super::*;
use ucake::packet::{Dscp, ETHERTYPE_ARP, Ecn, FlowKey, Frame, Overrides};
use ucake::qdisc::{Dequeue, Diffserv, Discipline};
use ucake::sim::{BEGIN, flow};

/// A code point of each tin, in internal order.
fn code_points(diffserv: Diffserv) -> &'static [u8] {
    match diffserv {
        Diffserv::Besteffort => &[0],
        Diffserv::Diffserv3 => &[0, 8, 46],
        Diffserv::Diffserv4 => &[0, 8, 34, 46],
        Diffserv::Diffserv8 => &[1, 8, 0, 34, 18, 16, 46, 48],
        Diffserv::Precedence => &[0, 8, 16, 24, 32, 40, 48, 56],
    }
}

/// Shares of the named tins (internal order) when each always has packets.
fn saturated(config: Config, tins: &[usize]) -> Vec<f64> {
    let points = code_points(config.diffserv);
    let metas: Vec<Meta> = tins.iter().map(|&tin| full(flow(1).with_dscp(points[tin]))).collect();
    let (report, _) = share(config, &metas, Span::from_secs(30));
    shares(&report)
}

#[test]
fn every_code_point_goes_where_linux_puts_it() {
    let golden = std::fs::read_to_string("tests/data/dscp_tins.json").expect("the file is kept");
    let golden: serde_json::Value = serde_json::from_str(&golden).expect("it is JSON");
    for diffserv in Diffserv::ALL {
        let columns = golden["modes"][diffserv.name()].as_array().expect("the mode is there");
        assert_eq!(columns.len(), 64);
        for (dscp, column) in (0..).zip(columns) {
            let mut cake = cake(Config { diffserv, ..Config::default() });
            let meta = full(flow(1).with_dscp(dscp));
            cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
            let got = cake.stats().tins.iter().position(|tin| tin.packets == 1);
            let expected = column.as_u64().and_then(|column| usize::try_from(column).ok());
            assert_eq!(got, expected, "{} DSCP {dscp}", diffserv.name());
        }
    }
}

#[test]
fn arp_travels_with_network_control() {
    for (diffserv, column) in
        [(Diffserv::Diffserv3, 2), (Diffserv::Diffserv4, 3), (Diffserv::Diffserv8, 7)]
    {
        let mut cake = cake(Config { diffserv, ..Config::default() });
        let key = FlowKey { ethertype: ETHERTYPE_ARP, ..FlowKey::default() };
        let meta = Meta { dscp: Dscp::CS7, flow: key, ..flow(1).with_len(FrameLen(60)) };
        cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
        assert_eq!(cake.stats().tins[column].packets, 1, "{}", diffserv.name());
    }
}

#[test]
fn saturated_tins_share_as_the_specification_says() {
    use Diffserv::{Diffserv3, Diffserv4, Diffserv8, Precedence};
    // Spec §6.3.
    let eight: &[f64] = &[0.0, 0.0, 0.0, 0.0, 0.0, 15.85, 44.88, 39.27];
    let all = &[0, 1, 2, 3, 4, 5, 6, 7];
    let rows: [(Diffserv, &[usize], &[f64]); 6] = [
        (Diffserv3, &[0, 1, 2], &[68.75, 6.25, 25.0]),
        (Diffserv4, &[0, 1, 2, 3], &[18.75, 6.25, 50.0, 25.0]),
        (Diffserv4, &[0, 1, 3], &[68.75, 6.25, 25.0]),
        (Diffserv4, &[1, 2, 3], &[6.25, 62.5, 31.25]),
        (Diffserv8, all, eight),
        (Precedence, all, eight),
    ];
    for (diffserv, tins, expected) in rows {
        let got = saturated(Config { diffserv, ..mbit(100) }, tins);
        for ((got, expected), tin) in got.into_iter().zip(expected).zip(tins) {
            assert_near(got, *expected, 0.3, &format!("{} tin {tin}", diffserv.name()));
        }
    }
}

#[test]
fn a_tin_alone_gets_the_whole_rate_whatever_its_threshold() {
    let span = Span::from_secs(10);
    let (report, _) = share(mbit(10), &[full(flow(1).with_dscp(8))], span);
    assert_near(report.sources[0].bits_per_second(span) / 1e7, 1.0, 0.001, "Bulk alone");
}

/// The column that counts a packet.
fn column(cake: &mut Cake<SimFrame>, meta: &Meta) -> Option<usize> {
    cake.enqueue(SimFrame::new(meta), meta, BEGIN);
    cake.stats().tins.iter().position(|tin| tin.packets == 1)
}

#[test]
fn a_class_id_chooses_flow_and_host_and_no_tin() {
    let mut cake = cake(Config::default());
    for (number, class) in [(1, 0x0001_0007), (2, 0x0001_0007), (3, 0xffff_ffff), (3, 0)] {
        let meta = Meta { overrides: Overrides::from_class(class), ..full(flow(number)) };
        cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
    }
    let stats = cake.stats();
    assert_eq!(stats.tins[1].packets, 4, "all of them in Best Effort");
    let mut queues: Vec<_> =
        cake.queue_stats(BEGIN).iter().map(|queue| (queue.class, queue.packets)).collect();
    queues.sort_unstable_by_key(|&(_, packets)| packets);
    assert_eq!(queues.len(), 2, "two flows that were called one, and one that was called nothing");
    assert_eq!(queues[0].1, 2);
    assert!(queues.contains(&(1024 + 6 + 1, 2)), "{queues:?}: minor number 7 is queue 6");
}

#[test]
fn washing_comes_after_the_choice_of_a_tin_and_in_every_mode() {
    for (diffserv, expected) in [(Diffserv::Diffserv3, 2), (Diffserv::Besteffort, 0)] {
        let mut cake = cake(Config { wash: true, diffserv, ..Config::default() });
        let meta = full(flow(1).with_dscp(46)).with_ecn(Ecn::Ect0);
        assert_eq!(column(&mut cake, &meta), Some(expected));
        let Dequeue::Send(departure) = cake.dequeue(BEGIN) else { panic!("it may leave") };
        assert!(departure.frame.washed && departure.frame.ecn_capable);
    }
}

/// A frame whose header nobody may write to.
struct Sealed;

impl Frame for Sealed {
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

#[test]
fn what_cannot_be_washed_counts_as_best_effort() {
    let config = Config { wash: true, ..Config::default() };
    let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(42));
    let meta = full(flow(1).with_dscp(46));
    cake.enqueue(Sealed, &meta, BEGIN);
    assert_eq!(cake.stats().tins[1].packets, 1);
}

#[test]
fn without_a_rate_flows_and_tins_are_counted_all_the_same() {
    let mut cake = cake(Config::default());
    let meta = full(flow(1).with_dscp(46));
    cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
    assert_eq!(cake.stats().tins[2].sparse_flows, 1);
    assert!(matches!(cake.dequeue(BEGIN), Dequeue::Send(_)));
    assert_eq!(cake.stats().tins[2].way_misses, 1);
}

/// The tin that took a frame with this mark and priority, in display order.
fn tin_of(config: Config, mark: u32, priority: u32) -> Option<usize> {
    let mut cake = cake(config).with_handle(0x8001);
    let meta = Meta { mark, priority, ..full(flow(1).with_dscp(46)) };
    cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
    cake.stats().tins.iter().position(|tin| tin.packets == 1)
}

#[test]
fn a_mark_chooses_the_tin_by_its_displayed_number() {
    let config = |diffserv| Config { diffserv, fwmark: 0xff00, ..Config::default() };
    assert_eq!(tin_of(config(Diffserv::Diffserv3), 0x0100, 0), Some(0), "1 is Bulk");
    assert_eq!(tin_of(config(Diffserv::Diffserv3), 0x0200, 0), Some(1), "2 is Best Effort");
    assert_eq!(tin_of(config(Diffserv::Diffserv8), 0x0301, 0), Some(2), "the mask counts");
    assert_eq!(
        tin_of(config(Diffserv::Diffserv3), 0x0400, 0),
        Some(2),
        "there is no tin 4: by DSCP"
    );
    assert_eq!(
        tin_of(config(Diffserv::Diffserv3), 0x0001, 0),
        Some(2),
        "outside the mask: by DSCP"
    );
}

#[test]
fn a_priority_chooses_the_tin_if_it_names_this_instance_and_no_mark_does() {
    let config = Config { fwmark: 0xff, ..Config::default() };
    assert_eq!(tin_of(config, 0, 0x8001_0001), Some(0));
    assert_eq!(tin_of(config, 0, 0x8002_0001), Some(2), "another's handle: by DSCP");
    assert_eq!(tin_of(config, 0, 0x8001_0004), Some(2), "there is no tin 4: by DSCP");
    assert_eq!(tin_of(config, 2, 0x8001_0001), Some(1), "a mark comes first");
}

#[test]
fn an_undivided_superpacket_is_one_sample_of_the_header_offset() {
    use ucake::qdisc::SplitGso;
    let offset_after_one = |split_gso| {
        let mut cake = cake(Config { split_gso, ..Config::default() });
        let meta = flow(1).superpacket(40, 1448);
        cake.enqueue(SimFrame::new(&meta), &meta, BEGIN);
        cake.stats().average_network_offset
    };
    assert_eq!(offset_after_one(SplitGso::Whole), 0, "14/256");
    assert_eq!(offset_after_one(SplitGso::Split), 2, "40 steps of 14/256");
}

#[test]
fn in_besteffort_neither_mark_nor_priority_counts() {
    let config = Config { fwmark: 0xff, diffserv: Diffserv::Besteffort, ..Config::default() };
    assert_eq!(tin_of(config, 1, 0x8001_0001), Some(0));
    assert_eq!(tin_of(config, 2, 0x8001_0002), Some(0));
}
