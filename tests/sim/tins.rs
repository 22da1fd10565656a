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
fn a_mark_is_shifted_by_the_zeros_below_its_mask() {
    let config = Config { fwmark: 0xff00, diffserv: Diffserv::Diffserv4, ..Config::default() };
    for (mark, expected) in [(0x0300, 2), (0x03ff, 2), (0x0003, 1), (0x0500, 1), (0x0_0400, 3)] {
        let meta = Meta { mark, ..full(flow(1)) };
        assert_eq!(column(&mut cake(config), &meta), Some(expected), "mark {mark:#x}");
    }
}

#[test]
fn a_mark_counts_columns_not_priorities() {
    let config = Config { fwmark: 0xf, ..Config::default() };
    for (mark, expected) in [(1, 0), (2, 1), (3, 2), (4, 1), (0, 1)] {
        let meta = Meta { mark, ..full(flow(1)) };
        assert_eq!(column(&mut cake(config), &meta), Some(expected), "mark {mark}");
    }
}

#[test]
fn a_priority_counts_only_with_the_major_number_of_this_instance() {
    for (handle, expected) in [(0x8001, 2), (0x8002, 1), (0, 1)] {
        let mut cake = cake(Config::default()).with_handle(handle);
        let meta = Meta { priority: 0x8001_0003, ..full(flow(1)) };
        assert_eq!(column(&mut cake, &meta), Some(expected), "handle {handle:x}:");
    }
}

#[test]
fn a_mark_goes_before_a_priority_and_besteffort_before_both() {
    let meta = Meta { mark: 1, priority: 0x8001_0003, ..full(flow(1)) };
    let config = Config { fwmark: 0xff, ..Config::default() };
    assert_eq!(column(&mut cake(config).with_handle(0x8001), &meta), Some(0));
    let config = Config { diffserv: Diffserv::Besteffort, ..config };
    assert_eq!(column(&mut cake(config).with_handle(0x8001), &meta), Some(0));
    assert_eq!(cake(config).stats().tins.len(), 1);
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
