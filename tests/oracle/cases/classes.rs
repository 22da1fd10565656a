//! Which tin a frame belongs to, and what washing leaves of it (spec §3).

use super::{Case, Group, HANDLE, Input, Phase, Rule};
use crate::frames::{ARP, CTAG, IPV4, IPV6, STAG, UDP, V4, V6, ethernet, udp, udp4, udp6};

const MODES: [&str; 5] = ["besteffort", "precedence", "diffserv3", "diffserv4", "diffserv8"];
const TAG: (u16, u16) = (CTAG, 0x6007);
const SERVICE_TAG: (u16, u16) = (STAG, 0x0009);
/// Expedited forwarding, ECT(0).
const EF: u8 = 46 << 2 | 2;

/// Ways to wrap an IP packet with this TOS.
fn families(tos: u8) -> Vec<(&'static str, Vec<u8>)> {
    let (v4, v6) = (V4 { tos, ..V4::new(UDP) }, V6 { tos, ..V6::new(UDP) });
    vec![
        ("ipv4", udp4(&[], v4, (1, 2), 60)),
        ("ipv6", udp6(&[], v6, (1, 2), 80)),
        ("vlan-ipv4", udp4(&[TAG], v4, (1, 2), 64)),
        ("vlan-ipv6", udp6(&[TAG], v6, (1, 2), 84)),
        ("qinq-ipv4", udp4(&[SERVICE_TAG, TAG], v4, (1, 2), 68)),
        ("qinq-ipv6", udp6(&[SERVICE_TAG, TAG], v6, (1, 2), 88)),
    ]
}

/// Frames that have no DSCP, or hide it well.
fn oddities() -> Vec<(&'static str, Vec<u8>)> {
    let ef4 = V4 { tos: EF, ..V4::new(UDP) }.packet(&udp(1, 2, &[0; 20]));
    let ef6 = V6 { tos: EF, ..V6::new(UDP) }.packet(&udp(1, 2, &[0; 20]));
    let edited = |mut packet: Vec<u8>, at: usize, byte: u8| {
        packet[at] = byte;
        packet
    };
    let stack = |count| vec![TAG; count];
    let mut list = vec![
        ("arp", ethernet(&[], ARP, &[0; 46])),
        ("arp-vlan", ethernet(&[TAG], ARP, &[0; 46])),
        ("arp-qinq", ethernet(&[SERVICE_TAG, TAG], ARP, &[0; 46])),
        ("arp-short", ethernet(&[], ARP, &[])),
        ("unknown", ethernet(&[], 0x88b5, &ef4)),
        ("llc", ethernet(&[], 38, &[0x42; 46])),
        ("mpls", ethernet(&[], 0x8847, &[&[0, 1, 0x01, 64][..], &ef4].concat())),
        ("pppoe", ethernet(&[], 0x8864, &[&[0x11, 0, 0, 1, 0, 50, 0, 0x21][..], &ef4].concat())),
        ("ipv4-empty", ethernet(&[], IPV4, &[])),
        ("ipv4-cut-at-1", ethernet(&[], IPV4, &ef4[..1])),
        ("ipv4-cut-at-19", ethernet(&[], IPV4, &ef4[..19])),
        ("ipv4-header-only", ethernet(&[], IPV4, &ef4[..20])),
        ("ipv4-version-6", ethernet(&[], IPV4, &edited(ef4.clone(), 0, 0x65))),
        ("ipv4-ihl-4", ethernet(&[], IPV4, &edited(ef4.clone(), 0, 0x44))),
        ("ipv4-ihl-15", ethernet(&[], IPV4, &edited(ef4.clone(), 0, 0x4f))),
        ("ipv4-length-0", ethernet(&[], IPV4, &edited(edited(ef4.clone(), 2, 0), 3, 0))),
        ("ipv6-empty", ethernet(&[], IPV6, &[])),
        ("ipv6-cut-at-39", ethernet(&[], IPV6, &ef6[..39])),
        ("ipv6-header-only", ethernet(&[], IPV6, &ef6[..40])),
        ("ipv6-version-4", ethernet(&[], IPV6, &edited(ef6.clone(), 0, 0x4b))),
        ("6in4", ethernet(&[], IPV4, &V4::new(41).packet(&ef6))),
        ("vlan-cut", ethernet(&[], CTAG, &[0x60])),
        ("vlan-of-nothing", ethernet(&[TAG], 0x88b5, &[0; 46])),
    ];
    let deep = ["3-tags", "4-tags", "7-tags", "8-tags", "9-tags"];
    for (name, count) in deep.into_iter().zip([3, 4, 7, 8, 9]) {
        list.push((name, ethernet(&stack(count), IPV4, &ef4)));
    }
    list
}

const COUNTERS: &[&str] = &[
    "sent_bytes",
    "sent_packets",
    "dropped",
    "backlog_bytes",
    "backlog_packets",
    "packets",
    "bytes",
    "drops",
    "marks",
    "ack_drops",
    "backlog",
    "max_len",
];

/// Every code point in every mode and wrapping, and frames without one.
pub fn dscp() -> Group {
    let mut cases = Vec::new();
    for mode in MODES {
        for dscp in 0..64_u8 {
            for (family, frame) in families(dscp << 2 | dscp & 3) {
                cases.push(Case::new(format!("{mode}/{family}/{dscp}"), mode).frame(frame));
            }
        }
        for (name, frame) in oddities() {
            cases.push(Case::new(format!("{mode}/{name}"), mode).frame(frame));
        }
    }
    Group {
        name: "dscp",
        about: "tin and counters of every code point, mode and wrapping",
        fields: COUNTERS,
        phase: Phase::Empty(20),
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}

/// Packet marks and priorities.
pub fn overrides() -> Group {
    let frame = || udp4(&[], V4 { tos: EF, ..V4::new(UDP) }, (1, 2), 60);
    let input = |mark, priority| Input { mark, priority, ..Input::plain(frame()) };
    let mut cases = Vec::new();
    for mode in MODES {
        for mask in [0x0000_000f_u32, 0x0000_ff00, 0xf000_0000, 0xffff_ffff, 0x0000_0005] {
            for mark in [0, 1, 2, 3, 4, 5, 8, 9, 0x0100, 0x0300, 0x0801, 0x3000_0000, 0xffff_ffff] {
                let words = format!("{mode} fwmark {mask:#x}");
                let name = format!("{mode}/mask-{mask:x}/mark-{mark:x}");
                cases.push(Case::new(name, words).input(input(mark, 0)));
            }
        }
        for minor in [0, 1, 2, 3, 4, 5, 8, 9, 0xffff] {
            for major in [0, HANDLE, HANDLE + 1] {
                let name = format!("{mode}/priority-{major:x}:{minor:x}");
                let priority = u32::from(major) << 16 | minor;
                cases.push(Case::new(name, mode).input(input(0, priority)));
                let words = format!("{mode} fwmark 0xff");
                let name = format!("{mode}/mark-1/priority-{major:x}:{minor:x}");
                cases.push(Case::new(name, words).input(input(1, priority)));
            }
        }
    }
    Group {
        name: "overrides",
        about: "tin by packet mark and by packet priority",
        fields: COUNTERS,
        phase: Phase::Empty(20),
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}

/// What washing leaves.
pub fn wash() -> Group {
    let mut cases = Vec::new();
    for words in ["besteffort wash", "diffserv4 wash", "diffserv4 nowash"] {
        for tos in [0, 1, 2, 3, 4, 0xb8, 0xb9, 0xba, 0xbb, 0x20, 0x21, 0xff, 0xfc] {
            for (family, frame) in families(tos) {
                cases.push(Case::new(format!("{words}/{family}/{tos:02x}"), words).frame(frame));
            }
        }
        for (name, frame) in oddities() {
            cases.push(Case::new(format!("{words}/{name}"), words).frame(frame));
        }
    }
    Group {
        name: "wash",
        about: "bytes that leave, and the tin, with and without wash",
        fields: COUNTERS,
        phase: Phase::Empty(20),
        egress: true,
        rule: Rule::Exact,
        cases,
    }
}
