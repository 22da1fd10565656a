//! Which ACKs the filter takes out (spec §8).

use super::{Case, Group, Phase, Rule};
use crate::frames::{CTAG, IPV4, IPV6, TCP, Tcp, UDP, V4, V6, ethernet, plug, udp};

const E: u16 = Tcp::ACK | Tcp::ECE;
const C: u16 = Tcp::ACK | Tcp::CWR;

fn segment(tcp: &Tcp, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::new(TCP).packet(&tcp.segment(payload)))
}

fn ack(number: u32) -> Vec<u8> {
    segment(&Tcp::ack(number), &[])
}

fn flagged(number: u32, flags: u16) -> Vec<u8> {
    segment(&Tcp { flags, ..Tcp::ack(number) }, &[])
}

fn with(number: u32, options: &[u8]) -> Vec<u8> {
    segment(&Tcp { options: options.to_vec(), ..Tcp::ack(number) }, &[])
}

/// A timestamp option.
fn stamp(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}

/// A SACK option.
fn sack(blocks: &[(u32, u32)]) -> Vec<u8> {
    let len = u8::try_from(2 + 8 * blocks.len()).expect("at most four blocks");
    let mut option = vec![1, 1, 5, len];
    for (start, end) in blocks {
        option.extend(start.to_be_bytes());
        option.extend(end.to_be_bytes());
    }
    option
}

fn v6(tcp: &Tcp) -> Vec<u8> {
    ethernet(&[], IPV6, &V6::new(TCP).packet(&tcp.segment(&[])))
}

fn tunnelled(number: u32, outer: u8, inner: u16) -> Vec<u8> {
    let mut ip = V6::new(TCP);
    ip.source = std::net::Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, inner);
    let mut v4 = V4::new(41);
    v4.source = std::net::Ipv4Addr::new(10, 0, 0, outer);
    ethernet(&[], IPV4, &v4.packet(&ip.packet(&Tcp::ack(number).segment(&[]))))
}

/// The vectors of spec §8.6, then variations.
fn queues() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let data = |number| segment(&Tcp { flags: Tcp::ACK, ..Tcp::ack(number) }, &[7; 100]);
    let datagram = || ethernet(&[], IPV4, &V4::new(UDP).packet(&udp(50_000, 443, &[0; 30])));
    let other = |number| segment(&Tcp { source: 50_001, ..Tcp::ack(number) }, &[]);
    let seq = |number, sequence| segment(&Tcp { sequence, ..Tcp::ack(number) }, &[]);
    let window = |number, window| segment(&Tcp { window, ..Tcp::ack(number) }, &[]);
    let padded = |number| [ack(number), vec![0; 6]].concat();
    let vlan =
        |number| ethernet(&[(CTAG, 7)], IPV4, &V4::new(TCP).packet(&Tcp::ack(number).segment(&[])));
    let tos = |number, tos| {
        ethernet(&[], IPV4, &V4 { tos, ..V4::new(TCP) }.packet(&Tcp::ack(number).segment(&[])))
    };
    let fragment = |number, fragment| {
        ethernet(&[], IPV4, &V4 { fragment, ..V4::new(TCP) }.packet(&Tcp::ack(number).segment(&[])))
    };
    let six = |number| v6(&Tcp::ack(number));
    vec![
        ("two", vec![ack(100), ack(200)]),
        ("three", vec![ack(100), ack(200), ack(300)]),
        ("duplicates", vec![ack(100), ack(100)]),
        ("duplicates-then-new", vec![ack(100), ack(100), ack(200)]),
        ("ece-between", vec![ack(100), flagged(200, E), ack(300)]),
        ("all-ece", vec![flagged(100, E), flagged(200, E), flagged(300, E)]),
        ("ece-from-second", vec![ack(100), flagged(200, E), flagged(300, E)]),
        ("data-between", vec![ack(100), data(150), ack(300)]),
        ("datagram-between", vec![ack(100), datagram(), ack(300)]),
        ("reordered", vec![ack(300), ack(200)]),
        (
            "sack-grows",
            vec![
                with(100, &sack(&[(500, 600)])),
                with(100, &sack(&[(500, 600), (700, 800)])),
                with(200, &sack(&[(500, 800)])),
            ],
        ),
        ("older-timestamp", vec![with(100, &stamp(10, 1)), with(200, &stamp(9, 1))]),
        ("wrap", vec![ack(4_294_967_200), ack(50), ack(300)]),
        ("one", vec![ack(100)]),
        ("four", vec![ack(100), ack(200), ack(300), ack(400)]),
        ("ten", (1..=10).map(|i| ack(i * 100)).collect()),
        ("three-duplicates", vec![ack(100), ack(100), ack(100)]),
        ("duplicates-of-four", vec![ack(100), ack(200), ack(200), ack(200), ack(300)]),
        ("other-connection-between", vec![ack(100), other(900), ack(200), other(950), ack(300)]),
        ("two-connections", vec![ack(100), other(100), ack(200), other(200), ack(300), other(300)]),
        ("reordered-three", vec![ack(300), ack(100), ack(200), ack(400)]),
        ("cwr-between", vec![ack(100), flagged(200, C), ack(300)]),
        ("all-cwr", vec![flagged(100, C), flagged(200, C), flagged(300, C)]),
        (
            "alternating-ece",
            vec![ack(100), flagged(200, E), ack(300), flagged(400, E), ack(500), ack(600)],
        ),
        ("ece-runs", vec![flagged(100, E), flagged(200, E), ack(300), ack(400), ack(500)]),
        ("trigger-ece", vec![ack(100), ack(200), flagged(300, E)]),
        ("psh", vec![flagged(100, Tcp::ACK | Tcp::PSH), ack(200), ack(300)]),
        ("psh-trigger", vec![ack(100), ack(200), flagged(300, Tcp::ACK | Tcp::PSH)]),
        ("fin", vec![flagged(100, Tcp::ACK | Tcp::FIN), ack(200), ack(300)]),
        ("fin-trigger", vec![ack(100), ack(200), flagged(300, Tcp::ACK | Tcp::FIN)]),
        ("syn-trigger", vec![ack(100), ack(200), flagged(300, Tcp::ACK | Tcp::SYN)]),
        ("syn", vec![flagged(100, Tcp::ACK | Tcp::SYN), ack(200), ack(300)]),
        ("rst", vec![flagged(100, Tcp::RST | Tcp::ACK), ack(200), ack(300)]),
        ("rst-trigger", vec![ack(100), ack(200), flagged(300, Tcp::RST | Tcp::ACK)]),
        ("urg", vec![flagged(100, Tcp::URG | Tcp::ACK), ack(200), ack(300)]),
        ("accecn", vec![flagged(100, Tcp::AE | Tcp::ACK), ack(200), ack(300)]),
        (
            "accecn-all",
            vec![
                flagged(100, Tcp::AE | Tcp::ACK),
                flagged(200, Tcp::AE | Tcp::ACK),
                flagged(300, Tcp::AE | Tcp::ACK),
            ],
        ),
        ("accecn-trigger", vec![ack(100), ack(200), flagged(300, Tcp::AE | Tcp::ACK)]),
        ("reserved-bit", vec![flagged(100, 0x800 | Tcp::ACK), ack(200), ack(300)]),
        ("no-ack-trigger", vec![ack(100), ack(200), flagged(300, Tcp::PSH)]),
        ("data-trigger", vec![ack(100), ack(200), data(300)]),
        ("data-then-acks", vec![data(100), ack(200), ack(300), ack(400)]),
        ("data-same-ack", vec![ack(100), ack(200), data(200), ack(300)]),
        ("sequence-differs", vec![seq(100, 5), seq(200, 1), seq(300, 9)]),
        ("window-differs", vec![window(100, 10), window(200, 20), window(300, 30)]),
        (
            "timestamps",
            vec![with(100, &stamp(10, 1)), with(200, &stamp(11, 1)), with(300, &stamp(12, 2))],
        ),
        (
            "timestamps-equal",
            vec![with(100, &stamp(10, 1)), with(200, &stamp(10, 1)), with(300, &stamp(10, 1))],
        ),
        (
            "timestamp-echo-back",
            vec![with(100, &stamp(10, 5)), with(200, &stamp(11, 4)), with(300, &stamp(12, 4))],
        ),
        (
            "timestamp-wrap",
            vec![with(100, &stamp(u32::MAX, 1)), with(200, &stamp(0, 1)), with(300, &stamp(1, 1))],
        ),
        (
            "timestamp-missing-on-trigger",
            vec![with(100, &stamp(10, 1)), with(200, &stamp(11, 1)), ack(300)],
        ),
        ("timestamp-on-trigger-only", vec![ack(100), ack(200), with(300, &stamp(10, 1))]),
        (
            "timestamp-high",
            vec![with(100, &stamp(0x9000_0000, 1)), with(200, &stamp(0x9000_0001, 1)), ack(300)],
        ),
        (
            "sack-same",
            vec![
                with(100, &sack(&[(500, 600)])),
                with(100, &sack(&[(500, 600)])),
                with(100, &sack(&[(500, 600)])),
            ],
        ),
        (
            "sack-grows-one-ack",
            vec![
                with(100, &sack(&[(500, 600)])),
                with(100, &sack(&[(500, 700)])),
                with(100, &sack(&[(500, 800)])),
            ],
        ),
        (
            "sack-shrinks",
            vec![
                with(100, &sack(&[(500, 800)])),
                with(100, &sack(&[(500, 700)])),
                with(200, &sack(&[(500, 600)])),
            ],
        ),
        (
            "sack-gone",
            vec![with(100, &sack(&[(500, 600)])), with(100, &sack(&[(500, 600)])), ack(700)],
        ),
        ("sack-comes", vec![ack(100), ack(100), with(100, &sack(&[(500, 600)]))]),
        ("dsack", vec![with(100, &sack(&[(50, 60)])), ack(200), ack(300)]),
        (
            "dsack-with-sack",
            vec![
                with(100, &sack(&[(50, 60), (500, 600)])),
                with(100, &sack(&[(500, 600)])),
                with(200, &sack(&[(50, 60), (500, 600)])),
            ],
        ),
        (
            "sack-uncovered",
            vec![
                with(100, &sack(&[(500, 600), (900, 950)])),
                with(200, &sack(&[(500, 600)])),
                with(300, &sack(&[(500, 800)])),
            ],
        ),
        (
            "sack-three-blocks",
            vec![
                with(100, &sack(&[(500, 600), (700, 800), (900, 1000)])),
                with(100, &sack(&[(500, 650), (700, 800), (900, 1000)])),
                with(100, &sack(&[(500, 850), (900, 1000), (1100, 1200)])),
            ],
        ),
        (
            "sack-wrap",
            vec![
                with(4_294_967_000, &sack(&[(4_294_967_200, 20)])),
                with(4_294_967_000, &sack(&[(4_294_967_200, 40)])),
                with(60, &sack(&[(100, 200)])),
            ],
        ),
        (
            "sack-bad-length",
            vec![with(100, &[1, 1, 5, 9, 0, 0, 0, 1, 0, 0, 0, 0]), ack(200), ack(300)],
        ),
        ("mss-option", vec![with(100, &[2, 4, 5, 0xb4]), ack(200), ack(300)]),
        ("mss-on-trigger", vec![ack(100), ack(200), with(300, &[2, 4, 5, 0xb4])]),
        ("window-scale-option", vec![with(100, &[1, 3, 3, 7]), ack(200), ack(300)]),
        ("sack-permitted-option", vec![with(100, &[1, 1, 4, 2]), ack(200), ack(300)]),
        ("unknown-option", vec![with(100, &[200, 4, 0, 0]), ack(200), ack(300)]),
        ("fast-open-option", vec![with(100, &[34, 4, 0, 0]), ack(200), ack(300)]),
        (
            "md5-option",
            vec![with(100, &[&[1, 1, 19, 18][..], &[9; 16]].concat()), ack(200), ack(300)],
        ),
        ("mptcp-option", vec![with(100, &[30, 8, 0x20, 0, 0, 0, 0, 1]), ack(200), ack(300)]),
        ("nops", vec![with(100, &[1, 1, 1, 1]), ack(200), ack(300)]),
        ("end-of-options", vec![with(100, &[0, 2, 4, 5]), ack(200), ack(300)]),
        ("timestamp-bad-length", vec![with(100, &[8, 8, 0, 0, 0, 0, 0, 0]), ack(200), ack(300)]),
        ("option-of-length-0", vec![with(100, &[200, 0, 0, 0]), ack(200), ack(300)]),
        ("option-of-length-1", vec![with(100, &[200, 1, 0, 0]), ack(200), ack(300)]),
        ("option-too-long", vec![with(100, &[200, 9, 0, 0]), ack(200), ack(300)]),
        ("option-without-length", vec![with(100, &[1, 1, 1, 200]), ack(200), ack(300)]),
        ("padded-to-60", vec![padded(100), padded(200), padded(300)]),
        ("vlan", vec![vlan(100), vlan(200), vlan(300)]),
        ("dscp-differs", vec![tos(100, 0), tos(200, 0x28), tos(300, 0)]),
        ("ip-ecn-differs", vec![tos(100, 2), tos(200, 0), tos(300, 1)]),
        ("ip-ce", vec![tos(100, 3), tos(200, 3), tos(300, 3)]),
        (
            "first-fragment",
            vec![fragment(100, 0x2000), fragment(200, 0x2000), fragment(300, 0x2000)],
        ),
        (
            "later-fragment",
            vec![fragment(100, 0x0010), fragment(200, 0x0010), fragment(300, 0x0010)],
        ),
        ("ipv6", vec![six(100), six(200), six(300)]),
        ("ipv6-duplicates", vec![six(100), six(100), six(200), six(300)]),
        ("ipv6-ece", vec![six(100), v6(&Tcp { flags: E, ..Tcp::ack(200) }), six(300)]),
        ("6in4", vec![tunnelled(100, 1, 1), tunnelled(200, 1, 1), tunnelled(300, 1, 1)]),
        (
            "6in4-outer-differs",
            vec![tunnelled(100, 1, 1), tunnelled(200, 2, 1), tunnelled(300, 1, 1)],
        ),
        (
            "6in4-inner-differs",
            vec![tunnelled(100, 1, 1), tunnelled(200, 1, 2), tunnelled(300, 1, 1)],
        ),
        ("ack-far-ahead", vec![ack(100), ack(200), ack(0x8000_0063), ack(0x8000_0100)]),
    ]
}

/// Each queue in both modes, and off.
pub fn group() -> Group {
    let mut cases = Vec::new();
    for mode in ["ack-filter", "ack-filter-aggressive", "no-ack-filter"] {
        for isolation in ["triple-isolate", "flowblind"] {
            for (name, frames) in queues() {
                let words = format!("bandwidth 128kbit besteffort {isolation} {mode}");
                let name = format!("{mode}/{isolation}/{name}");
                cases.push(Case::new(name, words).frame(plug()).frames(frames));
            }
        }
    }
    for mode in ["ack-filter", "ack-filter-aggressive"] {
        for (name, frames) in queues().into_iter().take(16) {
            let words = format!("bandwidth 128kbit besteffort ingress {mode}");
            cases.push(
                Case::new(format!("{mode}/ingress/{name}"), words).frame(plug()).frames(frames),
            );
        }
    }
    Group {
        name: "acks",
        about: "which ACKs leave under both filter modes",
        fields: &[
            "sent_bytes",
            "sent_packets",
            "dropped",
            "packets",
            "bytes",
            "drops",
            "ack_drops",
            "backlog_packets",
        ],
        phase: Phase::Empty(700),
        egress: true,
        rule: Rule::Exact,
        cases,
    }
}
