//! The shaper holds its rate.

use super::*;
use ucake::qdisc::{LinkLayer, Overhead};
use ucake::sim::flow;

#[test]
#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn the_rate_is_kept_within_a_thousandth_from_a_modem_to_a_data_centre() {
    for (bits, seconds) in
        [(64_000, 600), (1_000_000, 60), (20_000_000, 10), (1_000_000_000, 2), (10_000_000_000, 1)]
    {
        let config = Config { bandwidth: Some(Rate::from_bits(bits)), ..Config::default() };
        let span = Span::from_secs(seconds);
        let (report, _) = share(config, &[full(flow(1)), full(flow(2))], span);
        let got: f64 = report.sources.iter().map(|source| source.bits_per_second(span)).sum();
        assert_near(got / bits as f64, 1.0, 0.001, &format!("{bits} bit/s"));
    }
}

#[test]
fn the_rate_is_that_of_the_wire_not_of_the_frames() {
    let overhead = Overhead { bytes: 48, mpu: 0, link_layer: LinkLayer::Atm, raw: false };
    let config = Config { overhead, ..mbit(10) };
    let span = Span::from_secs(10);
    let (report, _) = share(config, &[full(flow(1))], span);
    let frames = report.sources[0].bits_per_second(span);
    assert_near(frames * 1749.0 / 1514.0, 10_000_000.0, 10_000.0, "bits on the wire");
}

#[test]
fn superpackets_are_shaped_segment_by_segment_and_whole_ones_as_a_whole() {
    use ucake::qdisc::SplitGso;
    for split_gso in [SplitGso::Split, SplitGso::Whole] {
        let config = Config { split_gso, ..mbit(100) };
        let span = Span::from_secs(5);
        let (report, stats) = share(config, &[flow(1).superpacket(40, 1448)], span);
        assert_near(report.sources[0].bits_per_second(span) / 1e8, 1.0, 0.002, "rate");
        let segments = report.sources[0].bytes / 1514;
        assert_eq!(stats.sent_packets, segments, "{split_gso:?} counts segments");
        assert_eq!(stats.adjusted_size.max, 1514, "{split_gso:?} has the overhead of each segment");
    }
}
