//! The memory limit (spec §9).
//!
//! The kernel charges what its buffers take, and ucake the same (`packet::memory`). The first group asks what a
//! frame of each length costs.

use super::{Case, Group, Phase, Rule};
use crate::frames::{UDP, V4, host, udp4};

/// Lengths of frames whose cost is known.
pub const LENGTHS: [usize; 12] = [60, 66, 100, 200, 300, 500, 576, 700, 1000, 1200, 1400, 1514];

fn flow(number: u16, len: usize) -> Vec<u8> {
    udp4(&[], V4 { source: host(number), ..V4::new(UDP) }, (number, 7), len)
}

/// What one frame costs.
pub fn truesize() -> Group {
    let case =
        |len: usize| Case::new(format!("truesize/{len}"), "bandwidth 64bit").frame(flow(1, len));
    Group {
        name: "truesize",
        about: "memory charged for a frame",
        fields: &["memory_used"],
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Exact,
        cases: LENGTHS.map(case).into(),
    }
}

/// Who loses what when memory runs out.
pub fn overflow() -> Group {
    let plug = || flow(999, 1514);
    let frozen =
        |name: &str, words: &str| Case::new(name, format!("bandwidth 64bit {words}")).frame(plug());
    let cases = vec![
        frozen("nothing-dropped", "").frames((0..200).map(|i| flow(i % 7, 1514))),
        frozen("one-flow", "memlimit 20000b").frames((0..64).map(|_| flow(1, 1514))),
        frozen("two-flows", "memlimit 20000b")
            .frames((0..64).map(|i| flow(i % 2, 1514 - 514 * usize::from(i % 2)))),
        frozen("a-sparse-flow-under-a-flood", "memlimit 30000b")
            .frames((0..64).map(|_| flow(1, 1000)))
            .frame(flow(2, 200))
            .frames((0..64).map(|_| flow(1, 1000)))
            .frame(flow(2, 200)),
        frozen("by-bytes-not-packets", "memlimit 60000b")
            .frames((0..40).map(|_| flow(1, 60)))
            .frames((0..40).map(|_| flow(2, 1514))),
        // Which of two equal queues loses is a matter of the hash, so there are none.
        frozen("five-sizes", "memlimit 40000b")
            .frames((0..300).map(|i| flow(i % 5, [1514, 1200, 700, 300, 66][usize::from(i % 5)]))),
        frozen("over-tins", "diffserv4 memlimit 40000b").frames((0..120).map(|i: u16| {
            let tos = [0x20, 0, 0x80, 0xb8][usize::from(i % 4)];
            let len = [1514, 1200, 300, 100][usize::from(i % 4)];
            udp4(&[], V4 { tos, ..V4::new(UDP) }, (i % 4, 7), len)
        })),
        frozen("less-than-one-frame", "memlimit 1b").frames((0..10).map(|i| flow(i % 3, 576))),
        frozen("exactly-one-frame", "memlimit 2304b").frames((0..10).map(|_| flow(1, 1514))),
        frozen("ingress", "ingress memlimit 20000b").frames((0..64).map(|_| flow(1, 1514))),
        frozen("flowblind", "flowblind memlimit 20000b").frames((0..64).map(|i| flow(i, 700))),
    ];
    Group {
        name: "overflow",
        about: "memory used and who is dropped at the memory limit, charging what the kernel charges",
        fields: &[
            "sent_bytes",
            "sent_packets",
            "dropped",
            "backlog_bytes",
            "backlog_packets",
            "memory_used",
            "memory_limit",
            "packets",
            "bytes",
            "drops",
            "backlog",
            "max_len",
        ],
        phase: Phase::Queued,
        egress: false,
        rule: Rule::Exact,
        cases,
    }
}
