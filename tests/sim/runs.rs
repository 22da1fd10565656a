//! `auto-split-gso`: another order within a budget, the same rate and the same shares.

use super::*;
use ucake::packet::Ecn;
use ucake::qdisc::{Diffserv, Isolation, SplitGso};
use ucake::sim::{Constant, Reno, Source as _, flow};

/// A superpacket of 40 full-sized segments.
fn train(meta: Meta) -> Meta {
    meta.superpacket(40, 1448)
}

/// The same, told that its ends are a tenth of a millisecond apart.
fn near(meta: Meta) -> Meta {
    Meta { min_rtt: Some(Span::from_micros(100)), ..meta }
}

/// Shares under either policy, and the statistics under `auto-split-gso`.
fn compared(config: Config, metas: &[Meta]) -> ([Vec<f64>; 2], Stats) {
    // So many packets at any rate.
    let rate = config.bandwidth.map_or(1, Rate::bits);
    let span = Span::from_micros(i64::try_from(3_000_000_000_000_000 / rate).unwrap_or(0));
    let of = |split_gso| share(Config { split_gso, ..config }, metas, span);
    let (split, _) = of(SplitGso::Split);
    let (auto, stats) = of(SplitGso::Auto);
    ([shares(&split), shares(&auto)], stats)
}

fn assert_alike(config: Config, metas: &[Meta], what: &str) {
    let ([split, auto], stats) = compared(config, metas);
    for (number, (split, auto)) in split.into_iter().zip(auto).enumerate() {
        assert_near(auto, split, split * 0.01, &format!("{what}, source {number}"));
    }
    assert!(stats.mean_run() > 1.1, "{what}: {} in a run", stats.mean_run());
}

#[test]
fn the_rate_is_kept_as_exactly_as_segment_by_segment() {
    for (mbits, seconds) in [(1, 60), (20, 20), (100, 10), (1_000, 2), (10_000, 1)] {
        for meta in [train(flow(1)), near(train(flow(1)))] {
            let span = Span::from_secs(seconds);
            let config = Config { split_gso: SplitGso::Auto, ..mbit(mbits) };
            let (report, _) = share(config, &[meta, train(flow(2))], span);
            let got: f64 = report.sources.iter().map(|source| source.bits_per_second(span)).sum();
            let what = format!("{mbits} Mbit/s");
            assert_near(got / (mbits * 1_000_000) as f64, 1.0, 0.001, &what);
        }
    }
}

#[test]
fn flows_have_the_same_shares_whether_they_send_superpackets_or_not_and_near_or_far() {
    let single = full(flow(3));
    let metas = [near(train(flow(1))), train(flow(2)), single, flow(4).with_len(FrameLen(300))];
    assert_alike(mbit(100), &metas, "100 Mbit/s");
    assert_alike(mbit(1_000), &metas, "1 Gbit/s");
}

#[test]
fn hosts_have_the_same_shares() {
    let mut metas = vec![train(flow(0).between(1, 100))];
    metas.extend((1..9).map(|i| near(train(flow(i).between(2, 100 + u32::from(i))))));
    let config = Config { isolation: Isolation::DualSrchost, ..mbit(200) };
    assert_alike(config, &metas, "one flow against eight");
}

#[test]
fn tins_have_the_same_shares_although_a_run_is_ahead_of_its_time() {
    for (diffserv, points) in [
        (Diffserv::Diffserv3, &[0, 8, 46][..]),
        (Diffserv::Diffserv4, &[0, 8, 34, 46]),
        (Diffserv::Diffserv8, &[1, 8, 0, 34, 18, 16, 46, 48]),
    ] {
        let metas: Vec<Meta> =
            points.iter().map(|&dscp| near(train(flow(1).with_dscp(dscp)))).collect();
        for mbits in [100, 1_000] {
            let config = Config { diffserv, ..mbit(mbits) };
            assert_alike(config, &metas, &format!("{} at {mbits} Mbit/s", diffserv.name()));
        }
    }
}

#[test]
fn a_sparse_flow_waits_for_one_run_and_no_longer() {
    for (meta, most) in [(train(flow(1)), 250), (near(train(flow(1))), 1_000)] {
        let config = without_aqm(Config { split_gso: SplitGso::Auto, ..mbit(100) });
        let mut world = World::new(cake(config));
        world.add("bulk", Backlogged::new(meta, 4));
        let voice = Constant::new(flow(99), FrameLen(214), Span::from_micros(19_300))
            .during(Span::from_secs(1), Span::from_secs(11));
        let voice = world.add("voice", voice);
        let (report, cake) = world.run(Span::from_secs(12));
        let waited = report.sources[voice].sojourn(100);
        // A run ends with the last segment that fits, each of which takes 121 us.
        let most = Span::from_micros(most);
        assert!((most - Span::from_micros(122)..=most).contains(&waited), "{waited:?}");
        assert_eq!(report.sources[voice].lost, 0);
        assert!(cake.stats().mean_run() > 1.9);
    }
}

#[test]
fn responsive_senders_are_told_segment_by_segment_and_nothing_is_reordered() {
    let delivered = [SplitGso::Split, SplitGso::Auto].map(|split_gso| {
        let mut world = World::new(cake(Config { split_gso, ..mbit(200) }));
        for number in 0..16 {
            let meta = flow(number).superpacket(10, 1448).with_ecn(Ecn::Ect0);
            world.add("sender", Reno::new(meta, Span::from_millis(20)));
        }
        let (report, cake) = world.run(Span::from_secs(10));
        assert!(report.sources.iter().all(|source| !source.reordered), "{report}");
        assert!(cake.stats().tins[1].marks > 0);
        report.sources.iter().map(|source| source.bytes).sum::<u64>()
    });
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    let ratio = delivered[1] as f64 / delivered[0] as f64;
    assert_near(ratio, 1.0, 0.01, "goodput");
}
