//! In which order queued frames leave (spec §1.2, §4.6, §6.3).
//!
//! All are queued behind a plug, then leave as the shaper lets them. Lengths are such that neither the
//! kernel's random byte of quantum nor how late its timer was decides (equal lengths in tins whose rates
//! are in simple ratios make ties), and the AQM is kept out of the way.

use super::{Case, Group, Phase, Rule};
use crate::frames::{UDP, V4, host, plug, udp4};

/// A frame of a flow; `number` makes it unlike the others.
fn frame(source: u16, destination: u16, port: u16, tos: u8, len: usize, number: u16) -> Vec<u8> {
    let ip =
        V4 { tos, source: host(source), destination: host(0x100 + destination), ..V4::new(UDP) };
    let mut bytes = udp4(&[], ip, (1000 + port, 7), len);
    bytes[50..52].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Frames of several flows, `(source, destination, port, tos, len)`, in turn.
fn turns(flows: &[(u16, u16, u16, u8, usize)], rounds: u16) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for round in 0..rounds {
        for (s, d, p, tos, len) in flows {
            frames.push(frame(*s, *d, *p, *tos, *len, round));
        }
    }
    frames
}

/// Everything of one flow, then everything of the next.
fn blocks(flows: &[(u16, u16, u16, u8, usize)], each: u16) -> Vec<Vec<u8>> {
    flows.iter().flat_map(|flow| turns(&[*flow], each)).collect()
}

/// Queues and the order they empty in.
pub fn group() -> Group {
    let be = |source, destination, port, len| (source, destination, port, 0, len);
    let mut cases = Vec::new();
    let mut ask = |name: &str, words: &str, frames: Vec<Vec<u8>>| {
        let words = format!("bandwidth 256kbit rtt 100s {words}");
        cases.push(Case::new(name, words).frame(plug()).frame(plug()).frames(frames));
    };
    ask("one-flow", "besteffort", blocks(&[be(1, 1, 1, 500)], 8));
    ask("two-flows", "besteffort flows", blocks(&[be(1, 1, 1, 500), be(1, 1, 2, 500)], 8));
    ask("small-and-large", "besteffort flows", blocks(&[be(1, 1, 1, 1400), be(1, 1, 2, 160)], 10));
    ask(
        "overhead-counts",
        "besteffort flows conservative",
        blocks(&[be(1, 1, 1, 1400), be(1, 1, 2, 100)], 12),
    );
    ask(
        "sparse-first",
        "besteffort flows",
        [blocks(&[be(1, 1, 1, 500)], 6), blocks(&[be(1, 1, 2, 90)], 1)].concat(),
    );
    ask("flowblind", "besteffort flowblind", turns(&[be(1, 1, 1, 500), be(1, 1, 2, 100)], 6));
    ask(
        "srchost",
        "besteffort srchost",
        blocks(&[be(1, 1, 1, 500), be(1, 2, 2, 500), be(2, 1, 1, 500)], 6),
    );
    let hosts = [be(1, 1, 1, 290), be(1, 2, 2, 290), be(1, 3, 3, 290), be(2, 4, 4, 290)];
    for mode in ["flows", "dual-srchost", "dual-dsthost", "triple-isolate"] {
        ask(
            &format!("one-host-of-three-flows/{mode}"),
            &format!("besteffort {mode}"),
            blocks(&hosts, 12),
        );
    }
    let w = [be(1, 1, 1, 290), be(1, 2, 2, 290), be(2, 2, 3, 290), be(2, 3, 4, 290)];
    ask("w", "besteffort triple-isolate", blocks(&w, 10));
    let tins = [(1, 1, 1, 0x20, 311), (1, 1, 2, 0x00, 293), (1, 1, 3, 0xb8, 271)];
    for mode in ["diffserv3", "diffserv4"] {
        ask(&format!("bulk-besteffort-voice/{mode}"), mode, blocks(&tins, 10));
    }
    ask("besteffort-voice", "diffserv3", blocks(&tins[1..], 12));
    ask("four-tins", "diffserv4", blocks(&[tins[0], tins[1], (1, 1, 4, 0x40, 257), tins[2]], 10));
    let eight = [0x04, 0x28, 0, 0x60, 0x48, 0x40, 0xb8, 0xc0]
        .map(|tos| (1, 1, u16::from(tos), tos, 251 + usize::from(tos) / 2));
    ask("eight-tins", "diffserv8", blocks(&eight, 6));
    Group {
        name: "order",
        about: "order in which queued frames leave: flows, hosts, tins",
        fields: &["sent_bytes", "sent_packets", "dropped", "packets", "bytes", "backlog_packets"],
        phase: Phase::Empty(1500),
        egress: true,
        rule: Rule::Exact,
        cases,
    }
}
