//! Any bytes are a capture that is replayed to its end, or one that is refused; and every frame is accounted for.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::Deserialize;
use ucake::qdisc::{Config, Stats};
use ucake::units::FrameLen;
use ucake_cli::capture::play::{Player, Terms};
use ucake_cli::capture::read::{Capture, CaptureError, Findings};
use ucake_cli::capture::trace::{Trace, Tracer};
use ucake_cli::words;

use super::bytes::Bytes;

/// What the first byte chooses from.
const WORDS: [&str; 10] = [
    "",
    "bandwidth 1mbit",
    "bandwidth 10mbit diffserv4 ack-filter",
    "bandwidth 20kbit memlimit 1kb",
    "bandwidth 1mbit no-split-gso",
    "bandwidth 5mbit auto-split-gso burst 1ms",
    "autorate-ingress ingress wash",
    "bandwidth 1gbit atm overhead 18 diffserv8 ack-filter-aggressive",
    "bandwidth 100kbit ptm mpu 64 rtt 1ms precedence ingress memlimit 8kb",
    "bandwidth 8bit flowblind besteffort",
];
/// What the second byte chooses from.
const MTUS: [u32; 4] = [1514, 300, 9014, 65_535];

/// Which words, which MTU, which seed, after how many frames a signal comes (0: never); then the capture.
pub fn replay(data: &[u8]) {
    let mut bytes = Bytes(data);
    let change = words::parse_line(bytes.one_of(&WORDS)).expect("they are words");
    let config = Config::default().changed_by(&change);
    let mtu = FrameLen(bytes.one_of(&MTUS));
    let terms = Terms { config, mtu, seed: bytes.u8().into() };
    let stop_after = match bytes.u8() {
        0 => u64::MAX,
        count => count.into(),
    };
    let file = bytes.rest();
    let (mut trace, mut out, mut untold) = (Vec::new(), Vec::new(), Vec::new());
    let traced = Trace::new(&mut trace, config.diffserv, config.ingress);
    let outcome = play(file, &terms, stop_after, &mut out, traced);
    let again = play(file, &terms, stop_after, &mut untold, ());
    match (outcome, again) {
        (Ok(replayed), Ok(_)) => {
            assert_eq!(out, untold, "whether somebody watches changes nothing");
            replayed.check(&trace, &out);
        }
        (Err(error), Err(same)) => {
            assert_eq!(error, same);
            assert!(error != CaptureError::Read, "memory can be read");
            assert!(trace.is_empty());
        }
        _ => panic!("the same file is a capture, and none"),
    }
}

/// What the player said.
struct Replayed {
    /// Numbers of the frames that CAKE was given.
    taken: Vec<u64>,
    /// Those that the player left out.
    left_out: u64,
    findings: Findings,
    /// As they were when a signal came, or in the end.
    stats: Stats,
    stopped: bool,
}

fn play(
    file: &[u8],
    terms: &Terms,
    stop_after: u64,
    out: &mut Vec<u8>,
    trace: impl Tracer,
) -> Result<Replayed, CaptureError> {
    let capture = Capture::new(file)?;
    let mut player = Player::new(terms, out, trace).expect("memory takes it");
    let (mut taken, mut left_out, mut played) = (Vec::new(), 0, 0);
    let (broken, findings) = capture.read(|record| {
        player.play(&record).expect("memory takes it");
        played += 1;
        let odd = player.oddities();
        let now_left_out = odd.runts + odd.too_long + odd.refused;
        if now_left_out == left_out {
            taken.push(record.number);
        }
        left_out = now_left_out;
        if played >= stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let stopped = broken.is_some();
    if !stopped {
        player.drain().expect("memory takes it");
    }
    let stats = player.stats();
    player.abandon();
    player.finish().expect("memory takes it");
    Ok(Replayed { taken, left_out, findings, stats, stopped })
}

/// A line of the trace, as far as it is looked at.
#[derive(Deserialize)]
struct Line {
    packet: u64,
    segment: Option<u16>,
    packets: u64,
    sojourn_ns: i64,
    decision: String,
}

impl Replayed {
    fn check(&self, trace: &[u8], out: &[u8]) {
        let Findings { frames, ref link_types, timeless, .. } = self.findings;
        let unread = link_types.values().sum::<u64>() + timeless;
        assert_eq!(frames, unread + self.left_out + self.taken.len() as u64);
        let lines: Vec<Line> = serde_json::Deserializer::from_slice(trace)
            .into_iter()
            .collect::<Result<_, _>>()
            .expect("JSON");
        self.check_lines(&lines);
        let sent = |line: &&Line| line.decision == "sent" || line.decision == "marked";
        check_capture(out, lines.iter().filter(sent).count());
    }

    /// Each frame that was taken has one line, or one for each of its segments; their sums are the table's.
    fn check_lines(&self, lines: &[Line]) {
        let mut segments = BTreeMap::<u64, Vec<Option<u16>>>::new();
        let mut packets = BTreeMap::<&str, u64>::new();
        for line in lines {
            assert!(line.sojourn_ns >= 0);
            segments.entry(line.packet).or_default().push(line.segment);
            *packets.entry(&line.decision).or_default() += line.packets;
        }
        assert!(segments.keys().eq(&self.taken), "every frame that was taken is told of");
        for of_frame in segments.values_mut() {
            of_frame.sort_unstable();
            let whole = of_frame.len() == 1;
            let each_once = (0..).map(Some).zip(&*of_frame).all(|(index, found)| index == *found);
            assert!(whole || each_once, "{of_frame:?}");
        }
        let count = |decision: &str| packets.get(decision).copied().unwrap_or(0);
        assert_eq!(count("sent") + count("marked"), self.stats.sent_packets);
        // What is queued undivided is one packet until it leaves.
        let queued = lines.iter().filter(|line| line.decision == "queued").count();
        assert_eq!(queued, self.stats.queued_packets as usize);
        assert!(self.stopped || queued == 0, "it is played to its end");
    }
}

/// What was written is a capture of so many frames, in the order of their times.
fn check_capture(out: &[u8], frames: usize) {
    let (mut count, mut last) = (0, 0);
    let capture = Capture::new(out).expect("it has a header");
    let outcome = capture.read(|record| {
        count += 1;
        assert!(record.at >= last, "a frame left before the one before it");
        assert!(record.bytes.len() <= record.original_len as usize);
        last = record.at;
        ControlFlow::<()>::Continue(())
    });
    let (_, findings) = outcome.expect("it was written by us");
    assert_eq!(
        (count, findings),
        (frames, Findings { frames: frames as u64, ..Findings::default() })
    );
}
