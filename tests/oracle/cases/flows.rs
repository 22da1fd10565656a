//! Which frames share a queue (spec §4).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Case, Group, Input, Phase, Rule};
use crate::frames::{
    ARP, CTAG, IPV4, IPV6, STAG, TCP, Tcp, UDP, V4, V6, ethernet, host, plug, udp, udp4, udp6,
};

/// Two frames each, and the question whether they are one flow.
fn pairs() -> Vec<(&'static str, [Vec<u8>; 2])> {
    let v4 = V4::new(UDP);
    let v6 = V6::new(UDP);
    let swapped = V4 { source: v4.destination, destination: v4.source, ..v4 };
    let other = V4 { source: Ipv4Addr::new(10, 0, 0, 77), ..v4 };
    let other6 = V6 { source: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x77), ..v6 };
    let plain = |ip: V4, ports| udp4(&[], ip, ports, 100);
    let plain6 = |ip: V6, ports| udp6(&[], ip, ports, 120);
    let of = |protocol: u8, body: &[u8]| ethernet(&[], IPV4, &V4::new(protocol).packet(body));
    let of6 = |next: u8, body: &[u8]| ethernet(&[], IPV6, &V6::new(next).packet(body));
    let inner = |source: Ipv4Addr, port| V4 { source, ..v4 }.packet(&udp(port, 2, &[0; 30]));
    let inner6 = |last: u16, port| {
        V6 { source: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last), ..v6 }
            .packet(&udp(port, 2, &[0; 30]))
    };
    let gre = |proto: u16, body: &[u8]| [&[0, 0][..], &proto.to_be_bytes(), body].concat();
    let keyed = |key: u8, body: &[u8]| [&[0x20, 0, 8, 0, 0, 0, 0, key][..], body].concat();
    let tcp = |flags, sequence| Tcp { flags, sequence, ..Tcp::ack(1) }.segment(&[]);
    let fragment = |fragment, body: &[u8]| ethernet(&[], IPV4, &V4 { fragment, ..v4 }.packet(body));
    let ports = |source: u16| [&source.to_be_bytes()[..], &[0, 2], &[0; 28]].concat();
    let hop = |port| [&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &udp(port, 2, &[0; 20])].concat();
    let frag6 = |offset: u16, port| {
        [&[UDP, 0][..], &offset.to_be_bytes(), &[0, 0, 0, 9], &udp(port, 2, &[0; 24])].concat()
    };
    let routing = |port| [&[UDP, 0, 4, 0, 0, 0, 0, 0][..], &udp(port, 2, &[0; 20])].concat();
    let ah = |spi: u8, port| {
        [&[UDP, 4, 0, 0, 0, 0, 0, spi, 0, 0, 0, 1][..], &[0; 12], &udp(port, 2, &[0; 20])].concat()
    };
    let spi = |spi: u8| [&[0, 0, 0, spi, 0, 0, 0, 1][..], &[7; 40]].concat();
    let mpls = |label: u8, body: &[u8]| [&[0, 0, label << 4 | 1, 64][..], body].concat();
    let pppoe =
        |session: u8, body: &[u8]| [&[0x11, 0, 0, session, 0, 60, 0, 0x21][..], body].concat();
    let arp = |last: u8| {
        [
            &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, last][..],
            &[0; 6],
            &[10, 0, 0, 1],
            &[0; 18],
        ]
        .concat()
    };
    let (a, b) = (Ipv4Addr::new(172, 16, 0, 1), Ipv4Addr::new(172, 16, 0, 2));
    vec![
        ("same", [plain(v4, (1, 2)), plain(v4, (1, 2))]),
        ("source-port", [plain(v4, (1, 2)), plain(v4, (3, 2))]),
        ("destination-port", [plain(v4, (1, 2)), plain(v4, (1, 3))]),
        ("ports-swapped", [plain(v4, (1, 2)), plain(v4, (2, 1))]),
        ("addresses-swapped", [plain(v4, (1, 2)), plain(swapped, (1, 2))]),
        ("reversed", [plain(v4, (1, 2)), plain(swapped, (2, 1))]),
        ("source", [plain(v4, (1, 2)), plain(other, (1, 2))]),
        ("dscp", [plain(v4, (1, 2)), plain(V4 { tos: 0x28, ..v4 }, (1, 2))]),
        (
            "protocol",
            [
                plain(v4, (1, 2)),
                of(TCP, &Tcp { source: 1, destination: 2, ..Tcp::ack(1) }.segment(&[])),
            ],
        ),
        ("length", [plain(v4, (1, 2)), udp4(&[], v4, (1, 2), 700)]),
        ("tcp-flags", [of(TCP, &tcp(Tcp::ACK, 1)), of(TCP, &tcp(Tcp::SYN, 99))]),
        (
            "tcp-port",
            [of(TCP, &tcp(Tcp::ACK, 1)), of(TCP, &Tcp { source: 3, ..Tcp::ack(1) }.segment(&[]))],
        ),
        ("sctp-port", [of(132, &ports(1)), of(132, &ports(3))]),
        ("dccp-port", [of(33, &ports(1)), of(33, &ports(3))]),
        ("udplite-port", [of(136, &ports(1)), of(136, &ports(3))]),
        ("unknown-protocol", [of(253, &ports(1)), of(253, &ports(3))]),
        ("unknown-protocols", [of(253, &ports(1)), of(254, &ports(1))]),
        ("icmp-id", [of(1, &[8, 0, 0, 0, 0, 1, 0, 1]), of(1, &[8, 0, 0, 0, 0, 2, 0, 1])]),
        ("icmp-type", [of(1, &[8, 0, 0, 0, 0, 1, 0, 1]), of(1, &[3, 0, 0, 0, 0, 1, 0, 1])]),
        ("icmp6-id", [of6(58, &[128, 0, 0, 0, 0, 1, 0, 1]), of6(58, &[128, 0, 0, 0, 0, 2, 0, 1])]),
        (
            "igmp-group",
            [of(2, &[0x16, 0, 0, 0, 224, 0, 0, 5]), of(2, &[0x16, 0, 0, 0, 224, 0, 0, 6])],
        ),
        ("esp-spi", [of(50, &spi(1)), of(50, &spi(2))]),
        ("ah-spi", [of(51, &ah(1, 5)), of(51, &ah(2, 5))]),
        ("ah-port", [of(51, &ah(1, 5)), of(51, &ah(1, 6))]),
        ("ah-or-plain", [of(51, &ah(1, 1)), plain(v4, (1, 2))]),
        ("esp6-spi", [of6(50, &spi(1)), of6(50, &spi(2))]),
        ("ah6-port", [of6(51, &ah(1, 5)), of6(51, &ah(1, 6))]),
        ("first-fragments", [fragment(0x2000, &ports(1)), fragment(0x2000, &ports(3))]),
        ("first-and-later-fragment", [fragment(0x2000, &ports(1)), fragment(0x0003, &ports(9))]),
        ("fragment-or-whole", [fragment(0x2000, &ports(1)), plain(v4, (1, 2))]),
        ("later-fragments", [fragment(0x0003, &ports(1)), fragment(0x0006, &ports(9))]),
        ("reserved-flag", [fragment(0x8000, &ports(1)), fragment(0x8000, &ports(3))]),
        ("ipv6-source", [plain6(v6, (1, 2)), plain6(other6, (1, 2))]),
        ("ipv6-port", [plain6(v6, (1, 2)), plain6(v6, (3, 2))]),
        ("ipv6-or-ipv4", [plain6(v6, (1, 2)), plain(v4, (1, 2))]),
        ("label-or-none", [plain6(V6 { label: 7, ..v6 }, (1, 2)), plain6(v6, (1, 2))]),
        ("labels", [plain6(V6 { label: 7, ..v6 }, (1, 2)), plain6(V6 { label: 8, ..v6 }, (1, 2))]),
        (
            "label-and-ports",
            [plain6(V6 { label: 7, ..v6 }, (1, 2)), plain6(V6 { label: 7, ..v6 }, (3, 2))],
        ),
        (
            "label-and-protocol",
            [
                plain6(V6 { label: 7, ..v6 }, (1, 2)),
                ethernet(&[], IPV6, &V6 { label: 7, ..V6::new(TCP) }.packet(&tcp(16, 1))),
            ],
        ),
        ("hop-by-hop-port", [of6(0, &hop(1)), of6(0, &hop(3))]),
        ("hop-by-hop-or-plain", [of6(0, &hop(1)), plain6(v6, (1, 2))]),
        ("destination-options-port", [of6(60, &hop(1)), of6(60, &hop(3))]),
        ("routing-port", [of6(43, &routing(1)), of6(43, &routing(3))]),
        ("ipv6-first-fragments", [of6(44, &frag6(1, 1)), of6(44, &frag6(1, 3))]),
        ("ipv6-later-fragments", [of6(44, &frag6(0x51, 1)), of6(44, &frag6(0xa1, 3))]),
        ("ipv6-atomic-fragments", [of6(44, &frag6(0, 1)), of6(44, &frag6(0, 3))]),
        ("ipv6-fragment-or-whole", [of6(44, &frag6(1, 1)), plain6(v6, (1, 2))]),
        ("ipip-inner-source", [of(4, &inner(a, 1)), of(4, &inner(b, 1))]),
        ("ipip-inner-port", [of(4, &inner(a, 1)), of(4, &inner(a, 3))]),
        ("ipip-or-inner", [of(4, &inner(a, 1)), ethernet(&[], IPV4, &inner(a, 1))]),
        (
            "ipip-outer",
            [
                of(4, &inner(a, 1)),
                ethernet(&[], IPV4, &V4 { protocol: 4, ..other }.packet(&inner(a, 1))),
            ],
        ),
        ("6in4-inner-source", [of(41, &inner6(1, 1)), of(41, &inner6(2, 1))]),
        ("6in4-inner-port", [of(41, &inner6(1, 1)), of(41, &inner6(1, 3))]),
        ("4in6-inner-port", [of6(4, &inner(a, 1)), of6(4, &inner(a, 3))]),
        ("6in6-inner-port", [of6(41, &inner6(1, 1)), of6(41, &inner6(1, 3))]),
        ("gre-inner-port", [of(47, &gre(IPV4, &inner(a, 1))), of(47, &gre(IPV4, &inner(a, 3)))]),
        ("gre-inner-source", [of(47, &gre(IPV4, &inner(a, 1))), of(47, &gre(IPV4, &inner(b, 1)))]),
        (
            "gre-6-inner-port",
            [of(47, &gre(IPV6, &inner6(1, 1))), of(47, &gre(IPV6, &inner6(1, 3)))],
        ),
        ("gre-key", [of(47, &keyed(1, &inner(a, 1))), of(47, &keyed(2, &inner(a, 1)))]),
        (
            "gre-keyed-inner-port",
            [of(47, &keyed(1, &inner(a, 1))), of(47, &keyed(1, &inner(a, 3)))],
        ),
        (
            "gre-teb-inner-port",
            [
                of(47, &gre(0x6558, &ethernet(&[], IPV4, &inner(a, 1)))),
                of(47, &gre(0x6558, &ethernet(&[], IPV4, &inner(a, 3)))),
            ],
        ),
        ("gre-unknown", [of(47, &gre(0x88b5, &[1; 40])), of(47, &gre(0x88b5, &[2; 40]))]),
        ("gre-or-inner", [of(47, &gre(IPV4, &inner(a, 1))), ethernet(&[], IPV4, &inner(a, 1))]),
        ("vxlan-inner", [plain(v4, (1, 4789)), udp4(&[], v4, (1, 4789), 300)]),
        (
            "mpls-label",
            [
                ethernet(&[], 0x8847, &mpls(1, &inner(a, 1))),
                ethernet(&[], 0x8847, &mpls(2, &inner(a, 1))),
            ],
        ),
        (
            "mpls-inner",
            [
                ethernet(&[], 0x8847, &mpls(1, &inner(a, 1))),
                ethernet(&[], 0x8847, &mpls(1, &inner(b, 1))),
            ],
        ),
        (
            "pppoe-inner",
            [
                ethernet(&[], 0x8864, &pppoe(1, &inner(a, 1))),
                ethernet(&[], 0x8864, &pppoe(1, &inner(b, 1))),
            ],
        ),
        (
            "pppoe-port",
            [
                ethernet(&[], 0x8864, &pppoe(1, &inner(a, 1))),
                ethernet(&[], 0x8864, &pppoe(1, &inner(a, 3))),
            ],
        ),
        (
            "pppoe-session",
            [
                ethernet(&[], 0x8864, &pppoe(1, &inner(a, 1))),
                ethernet(&[], 0x8864, &pppoe(2, &inner(a, 1))),
            ],
        ),
        (
            "pppoe-or-inner",
            [ethernet(&[], 0x8864, &pppoe(1, &inner(a, 1))), ethernet(&[], IPV4, &inner(a, 1))],
        ),
        ("vlan", [udp4(&[(CTAG, 7)], v4, (1, 2), 100), udp4(&[(CTAG, 8)], v4, (1, 2), 100)]),
        ("vlan-or-none", [udp4(&[(CTAG, 7)], v4, (1, 2), 100), plain(v4, (1, 2))]),
        (
            "vlan-priority",
            [udp4(&[(CTAG, 7)], v4, (1, 2), 100), udp4(&[(CTAG, 0xe007)], v4, (1, 2), 100)],
        ),
        ("vlan-kind", [udp4(&[(CTAG, 7)], v4, (1, 2), 100), udp4(&[(STAG, 7)], v4, (1, 2), 100)]),
        ("vlan-port", [udp4(&[(CTAG, 7)], v4, (1, 2), 100), udp4(&[(CTAG, 7)], v4, (3, 2), 100)]),
        ("vlan-zero-or-none", [udp4(&[(CTAG, 0)], v4, (1, 2), 100), plain(v4, (1, 2))]),
        (
            "qinq-inner-vlan",
            [
                udp4(&[(STAG, 9), (CTAG, 7)], v4, (1, 2), 100),
                udp4(&[(STAG, 9), (CTAG, 8)], v4, (1, 2), 100),
            ],
        ),
        (
            "qinq-outer-vlan",
            [
                udp4(&[(STAG, 9), (CTAG, 7)], v4, (1, 2), 100),
                udp4(&[(STAG, 8), (CTAG, 7)], v4, (1, 2), 100),
            ],
        ),
        (
            "qinq-port",
            [
                udp4(&[(STAG, 9), (CTAG, 7)], v4, (1, 2), 100),
                udp4(&[(STAG, 9), (CTAG, 7)], v4, (3, 2), 100),
            ],
        ),
        (
            "3-tags-port",
            [udp4(&[(CTAG, 7); 3], v4, (1, 2), 100), udp4(&[(CTAG, 7); 3], v4, (3, 2), 100)],
        ),
        ("arp-sender", [ethernet(&[], ARP, &arp(1)), ethernet(&[], ARP, &arp(2))]),
        ("arp-or-unknown", [ethernet(&[], ARP, &arp(1)), ethernet(&[], 0x88b5, &[0; 46])]),
        ("arp-vlan", [ethernet(&[(CTAG, 7)], ARP, &arp(1)), ethernet(&[(CTAG, 8)], ARP, &arp(1))]),
        ("unknown-types", [ethernet(&[], 0x88b5, &[0; 46]), ethernet(&[], 0x88b6, &[0; 46])]),
        ("unknown-bodies", [ethernet(&[], 0x88b5, &[0; 46]), ethernet(&[], 0x88b5, &[1; 46])]),
        ("llc-lengths", [ethernet(&[], 38, &[0x42; 46]), ethernet(&[], 39, &[0x42; 46])]),
        ("llc-or-unknown", [ethernet(&[], 38, &[0x42; 46]), ethernet(&[], 0x88b5, &[0; 46])]),
        (
            "cut-ipv4",
            [
                ethernet(&[], IPV4, &plain(v4, (1, 2))[14..30]),
                ethernet(&[], IPV4, &plain(other, (1, 2))[14..30]),
            ],
        ),
        (
            "cut-udp",
            [
                ethernet(&[], IPV4, &plain(v4, (1, 2))[14..36]),
                ethernet(&[], IPV4, &plain(v4, (3, 2))[14..36]),
            ],
        ),
        (
            "cut-udp-after-ports",
            [
                ethernet(&[], IPV4, &plain(v4, (1, 2))[14..38]),
                ethernet(&[], IPV4, &plain(v4, (3, 2))[14..38]),
            ],
        ),
    ]
}

const PLACES: &[&str] = &["way_misses", "way_collisions", "packets", "bytes"];

/// One flow or two?
pub fn keys() -> Group {
    let mut cases = Vec::new();
    for mode in ["flows", "srchost", "dsthost", "hosts", "flowblind"] {
        for (name, frames) in pairs() {
            let words = format!("bandwidth 64bit besteffort {mode}");
            cases.push(Case::new(format!("{mode}/{name}"), words).frame(plug()).frames(frames));
        }
    }
    Group {
        name: "keys",
        about: "what makes two frames one flow or one host: 90 pairs in five modes",
        fields: PLACES,
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}

/// Frames whose tags stand beside them in the kernel, as those of forwarded ones do. To ucake they are in
/// the frame, as a tap hands them over.
pub fn beside() -> Group {
    let v4 = V4 { tos: 0xb8, ..V4::new(UDP) };
    let other = V4 { source: Ipv4Addr::new(10, 0, 0, 77), ..v4 };
    let plain = |ip, port| udp4(&[], ip, (port, 2), 100);
    let six = |port| udp6(&[], V6 { tos: 0x20, ..V6::new(UDP) }, (port, 2), 120);
    let (a, b) = (Some((CTAG, 7)), Some((CTAG, 8)));
    let arp = || ethernet(&[], ARP, &[0; 46]);
    let inner = |port| udp4(&[(CTAG, 5)], v4, (port, 2), 100);
    let pairs = [
        ("same", (plain(v4, 1), a), (plain(v4, 1), a)),
        ("port", (plain(v4, 1), a), (plain(v4, 3), a)),
        ("source", (plain(v4, 1), a), (plain(other, 1), a)),
        ("vlan", (plain(v4, 1), a), (plain(v4, 1), b)),
        ("priority", (plain(v4, 1), a), (plain(v4, 1), Some((CTAG, 0xa007)))),
        ("vlan-or-none", (plain(v4, 1), a), (plain(v4, 1), None)),
        ("vlan-zero-or-none", (plain(v4, 1), Some((CTAG, 0))), (plain(v4, 1), None)),
        ("kind", (plain(v4, 1), a), (plain(v4, 1), Some((STAG, 7)))),
        ("kinds-and-ports", (plain(v4, 1), Some((STAG, 7))), (plain(v4, 3), Some((STAG, 7)))),
        ("ipv6", (six(1), a), (six(1), a)),
        ("ipv6-port", (six(1), a), (six(3), a)),
        ("arp", (arp(), a), (arp(), a)),
        ("arp-vlan", (arp(), a), (arp(), b)),
        ("inner-tag", (inner(1), Some((STAG, 9))), (inner(1), Some((STAG, 9)))),
        ("inner-tag-port", (inner(1), Some((STAG, 9))), (inner(3), Some((STAG, 9)))),
        ("inner-tag-outer-vlan", (inner(1), Some((STAG, 9))), (inner(1), Some((STAG, 7)))),
    ];
    let mut cases = Vec::new();
    for mode in ["flows", "srchost", "dsthost", "hosts"] {
        for (name, first, second) in &pairs {
            let words = format!("bandwidth 64bit diffserv4 {mode}");
            let mut case = Case::new(format!("{mode}/{name}"), words).frame(plug());
            for (bytes, tag) in [first, second] {
                case = case.input(Input { tag: *tag, ..Input::plain(bytes.clone()) });
            }
            cases.push(case);
        }
    }
    Group {
        name: "beside",
        about: "flows, hosts and tins of frames that have their VLAN tag beside them",
        fields: &["way_misses", "way_collisions", "packets"],
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}

/// Hosts and flows in every isolation mode, few enough for no set to fill up.
pub fn modes() -> Group {
    const MODES: [&str; 8] = [
        "flowblind",
        "srchost",
        "dsthost",
        "hosts",
        "flows",
        "dual-srchost",
        "dual-dsthost",
        "triple-isolate",
    ];
    let frame = |source: u16, destination: u16, port: u16| {
        let ip =
            V4 { source: host(source), destination: host(0x100 + destination), ..V4::new(UDP) };
        udp4(&[], ip, (1000 + port, 7), 200)
    };
    let mut cases = Vec::new();
    for mode in MODES {
        for (sources, destinations, ports) in
            [(1, 1, 1), (1, 1, 8), (4, 1, 1), (1, 4, 1), (3, 3, 1), (2, 3, 4)]
        {
            let name =
                format!("{mode}/{sources}-sources-{destinations}-destinations-{ports}-ports");
            let words = format!("bandwidth 64bit besteffort {mode}");
            let mut case = Case::new(name, words).frame(plug());
            for _ in 0..2 {
                for source in 0..sources {
                    for destination in 0..destinations {
                        case = case.frames((0..ports).map(|port| frame(source, destination, port)));
                    }
                }
            }
            cases.push(case);
        }
    }
    Group {
        name: "modes",
        about: "new flows, sparse and bulk flows in every isolation mode",
        fields: &["way_misses", "way_collisions", "packets", "bytes", "sparse", "bulk", "backlog"],
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}

/// Numbers of flows for which the hash decides how many collide.
pub const CROWDS: [u16; 10] = [38, 100, 200, 256, 300, 400, 500, 600, 800, 1024];
/// Runs of each.
const RUNS: u16 = 24;

/// Random flows, each sending twice.
pub fn ways() -> Group {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 32).unwrap_or(0)
    };
    let mut cases = Vec::new();
    for crowd in CROWDS {
        for run in 0..RUNS {
            let flows: Vec<Vec<u8>> = (0..crowd)
                .map(|_| {
                    let ip = V4 {
                        source: random().into(),
                        destination: random().into(),
                        ..V4::new(UDP)
                    };
                    let ports = random().to_be_bytes();
                    let [a, b, c, d] = ports;
                    udp4(&[], ip, (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])), 60)
                })
                .collect();
            let case = Case::new(format!("{crowd}/{run}"), "bandwidth 64bit besteffort flows")
                .frame(plug())
                .frames(flows.iter().cloned())
                .frames(flows.iter().cloned());
            cases.push(case);
        }
    }
    Group {
        name: "ways",
        about: "new flows, displaced hits and collisions of 38 to 1024 random flows (means)",
        fields: &["way_misses", "way_indirect", "way_collisions"],
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Means,
        cases,
    }
}
