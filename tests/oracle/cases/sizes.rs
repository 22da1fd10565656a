//! Lengths before and after overhead compensation (spec §7).

use super::{Case, Group, Phase, Rule};
use crate::frames::{ARP, CTAG, STAG, UDP, V4, V6, ethernet, udp4, udp6};

const SETTINGS: [&str; 33] = [
    "",
    "raw",
    "conservative",
    "ipoa-vcmux",
    "ipoa-llcsnap",
    "bridged-vcmux",
    "bridged-llcsnap",
    "pppoa-vcmux",
    "pppoa-llc",
    "pppoe-vcmux",
    "pppoe-llcsnap",
    "pppoe-ptm",
    "bridged-ptm",
    "docsis",
    "ethernet",
    "ether-vlan",
    "ethernet ether-vlan",
    "ethernet ether-vlan ether-vlan",
    "pppoe-ptm ether-vlan",
    "overhead 0",
    "overhead 1 mpu 256",
    "overhead 256 mpu 256 atm",
    "overhead -10",
    "overhead -28 mpu 20",
    "overhead -64",
    "overhead -64 mpu 64 ptm",
    "raw overhead 10 atm",
    "raw pppoe-ptm",
    "raw mpu 100",
    "atm",
    "ptm",
    "conservative docsis",
    "docsis conservative",
];
/// Around cell, code and MPU boundaries, and the ends.
const LENGTHS: [usize; 21] = [
    42, 43, 54, 60, 61, 62, 63, 64, 66, 78, 100, 101, 110, 128, 142, 143, 576, 1000, 1506, 1513,
    1514,
];
const FIELDS: &[&str] =
    &["min_network", "max_network", "min_adjusted", "max_adjusted", "header_offset", "max_len"];

/// Every preset with every length, one frame each and all together.
pub fn sizes() -> Group {
    let frame = |len| udp4(&[], V4::new(UDP), (1, 2), len);
    let mut cases = Vec::new();
    for words in SETTINGS {
        let setting = if words.is_empty() { "default" } else { words };
        for len in LENGTHS {
            cases.push(Case::new(format!("{setting}/{len}"), words).frame(frame(len)));
        }
        cases.push(Case::new(format!("{setting}/all"), words).frames(LENGTHS.map(frame)));
    }
    Group {
        name: "sizes",
        about: "sizes with every overhead setting and frame length",
        fields: FIELDS,
        phase: Phase::Empty(20),
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}

/// The header that is taken off, and its running mean.
pub fn offsets() -> Group {
    let plain = || udp4(&[], V4::new(UDP), (1, 2), 600);
    let tagged = || udp6(&[(CTAG, 7)], V6::new(UDP), (1, 2), 600);
    let stacked = || udp4(&[(STAG, 9), (CTAG, 7)], V4::new(UDP), (1, 2), 600);
    let triple = || udp4(&[(CTAG, 7); 3], V4::new(UDP), (1, 2), 600);
    let kinds: [(&str, Vec<u8>); 7] = [
        ("plain", plain()),
        ("vlan", tagged()),
        ("qinq", stacked()),
        ("3-tags", triple()),
        ("arp", ethernet(&[], ARP, &[0; 46])),
        ("unknown", ethernet(&[], 0x88b5, &[0; 46])),
        ("unknown-vlan", ethernet(&[(CTAG, 7)], 0x88b5, &[0; 46])),
    ];
    let mut cases = Vec::new();
    for words in ["ethernet", "raw"] {
        for (kind, frame) in &kinds {
            for count in [1, 2, 10, 100, 300, 1200] {
                let frames = std::iter::repeat_n(frame.clone(), count);
                cases.push(Case::new(format!("{words}/{kind}/{count}"), words).frames(frames));
            }
        }
        let mixed = (0..400).map(|i| match i % 5 {
            0 | 1 => plain(),
            2 => tagged(),
            _ => stacked(),
        });
        cases.push(Case::new(format!("{words}/mixed"), words).frames(mixed));
    }
    Group {
        name: "offsets",
        about: "header offset, its mean and what is taken off behind VLAN tags",
        fields: FIELDS,
        phase: Phase::Empty(20),
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}
