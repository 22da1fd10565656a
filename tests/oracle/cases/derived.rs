//! What follows from a configuration alone (spec §2.6, §3.4).

use super::{Case, Group, Phase, Rule};

const RATES: [&str; 22] = [
    "64bit", "512bit", "1kbit", "8kbit", "64kbit", "128kbit", "250kbit", "1mbit", "1250kbit",
    "2mbit", "5mbit", "10mbit", "16mbit", "20mbit", "50mbit", "100mbit", "333mbit", "1gbit",
    "2500mbit", "10gbit", "40gbit", "100gbit",
];
const MODES: [&str; 5] = ["besteffort", "precedence", "diffserv3", "diffserv4", "diffserv8"];
const RTTS: [&str; 8] = [
    "datacentre",
    "lan",
    "metro",
    "regional",
    "internet",
    "oceanic",
    "satellite",
    "interplanetary",
];

/// Thresholds, targets, intervals, quanta and memory limits.
pub fn group() -> Group {
    let mut cases = Vec::new();
    let mut ask = |words: String, mtu| {
        let name = if mtu == 1500 { words.clone() } else { format!("{words} mtu {mtu}") };
        cases.push(Case { mtu, ..Case::new(name, words) });
    };
    for mode in MODES {
        for rtt in RTTS {
            for rate in RATES {
                ask(format!("bandwidth {rate} {mode} {rtt}"), 1500);
            }
            ask(format!("unlimited {mode} {rtt}"), 1500);
        }
        for mtu in [576, 1280, 9000] {
            for rate in ["64bit", "250kbit", "1mbit", "10mbit", "1gbit", "100gbit"] {
                ask(format!("bandwidth {rate} {mode}"), mtu);
            }
            ask(format!("unlimited {mode}"), mtu);
        }
    }
    for rate in ["1mbit", "777mbit"] {
        for rtt in ["1us", "19us", "20us", "1ms", "123456us", "4s", "4294s"] {
            ask(format!("bandwidth {rate} diffserv4 rtt {rtt}"), 1500);
        }
        for limit in ["1b", "1000b", "64k", "15140k", "16mb", "1gb", "4294967295b"] {
            ask(format!("bandwidth {rate} memlimit {limit}"), 1500);
        }
    }
    Group {
        name: "derived",
        about: "thresholds, targets, intervals, quanta, memory limits",
        fields: &["threshold", "target_us", "interval_us", "quantum", "memory_limit", "capacity"],
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}
