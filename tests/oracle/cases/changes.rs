//! What a change of configuration keeps and what it resets (spec §2.7).

use super::{Case, Group, Phase, Rule};
use crate::frames::{UDP, V4, plug, udp4};

fn tos(number: u8) -> Vec<u8> {
    let tos = [0x20, 0, 0x40, 0x80, 0xb8, 0xc0, 0x04, 0x48][usize::from(number % 8)];
    udp4(&[], V4 { tos, ..V4::new(UDP) }, (number.into(), 7), 300 + usize::from(number))
}

/// Traffic, a change, more traffic.
pub fn group() -> Group {
    let pairs = [
        ("", "bandwidth 1mbit"),
        ("", "diffserv8"),
        ("diffserv8", "diffserv3"),
        ("diffserv8", "besteffort"),
        ("diffserv4", "precedence"),
        ("besteffort", "diffserv4 wash"),
        ("overhead 128 mpu 256", "mpu 128"),
        ("ethernet", "mpu 0"),
        ("ethernet", "raw"),
        ("ethernet", "overhead 38"),
        ("ethernet", "atm"),
        ("raw", "docsis"),
        ("conservative", "overhead 0"),
        ("", "rtt 10ms"),
        ("metro", "internet"),
        ("", "memlimit 1mb"),
        ("memlimit 1mb", "rtt 50ms"),
        ("memlimit 1mb", "memlimit 0"),
        ("flowblind", "flows"),
        ("triple-isolate", "flowblind"),
        ("fwmark 0xff", "fwmark 0"),
        ("ingress", "egress"),
        ("", "unlimited"),
        ("", "autorate-ingress"),
    ];
    let mut cases = Vec::new();
    for (before, after) in pairs {
        let name = format!("{} > {after}", if before.is_empty() { "default" } else { before });
        let case = Case::new(name, format!("bandwidth 64bit {before}"))
            .frame(plug())
            .frames((0..16).map(tos))
            .change(after)
            .frames((8..20).map(tos));
        cases.push(case);
    }
    Group {
        name: "changes",
        about: "queues and counters over a change of configuration",
        fields: &[
            "sent_bytes",
            "sent_packets",
            "dropped",
            "backlog_bytes",
            "backlog_packets",
            "memory_limit",
            "min_network",
            "max_network",
            "min_adjusted",
            "max_adjusted",
            "header_offset",
            "capacity",
            "threshold",
            "target_us",
            "interval_us",
            "quantum",
            "packets",
            "bytes",
            "way_misses",
            "drops",
            "backlog",
            "sparse",
            "bulk",
            "max_len",
        ],
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}
