//! `ucake replay`: from capture to capture, table and trace.

mod world;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use ucake::packet::checksum;

/// A second, in nanoseconds, from which captures begin.
const START: u64 = 1_700_000_000_000_000_000;

/// A frame that was captured.
#[derive(Clone)]
struct Captured {
    at: u64,
    len: u32,
    bytes: Vec<u8>,
}

/// TCP over IPv4 with payload, checksums right.
struct Tcp {
    port: u16,
    tos: u8,
    sequence: u32,
    ack: u32,
    flags: u8,
    payload: usize,
}

impl Default for Tcp {
    fn default() -> Self {
        Self { port: 1000, tos: 0, sequence: 1, ack: 1, flags: 0x10, payload: 1460 }
    }
}

impl Tcp {
    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let len = u16::try_from(40 + self.payload).expect("short enough");
        frame.extend([0x45, self.tos]);
        frame.extend(len.to_be_bytes());
        frame.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = checksum::finish(checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend(self.port.to_be_bytes());
        frame.extend(443_u16.to_be_bytes());
        frame.extend(self.sequence.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend((0..self.payload).map(|byte| byte.to_le_bytes()[0]));
        let sum = transport_sum(&frame);
        frame[50..52].copy_from_slice(&checksum::finish(sum).to_be_bytes());
        frame
    }

    fn at(&self, micros: u64) -> Captured {
        let bytes = self.frame();
        let len = u32::try_from(bytes.len()).expect("short enough");
        Captured { at: START + micros * 1000, len, bytes }
    }
}

/// The sum over pseudo header and TCP; 0xffff of what is right.
fn transport_sum(frame: &[u8]) -> u16 {
    let len = u16::try_from(frame.len() - 34).expect("short enough");
    let pseudo = checksum::add(checksum::sum(&frame[26..34]), checksum::add(6, len));
    checksum::add(pseudo, checksum::sum(&frame[34..]))
}

/// A directory that goes when the test does.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Place {
    fn new() -> Self {
        Self(world::directory())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).expect("there is room");
    }

    fn make_fifo(&self, name: &str) {
        let mode = rustix::fs::Mode::from_bits_truncate(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(name), fifo, mode, 0).expect("a directory");
    }

    fn command(&self, input: &str, words: &str) -> Command {
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("replay").arg(self.path(input)).arg(self.path("out.pcap"));
        command.arg("--trace").arg(self.path("trace")).args(words.split_whitespace());
        command.stdin(Stdio::null());
        command
    }

    fn replay(&self, input: &str, words: &str) -> Output {
        self.command(input, words).output().expect("the binary was built")
    }

    /// What came of it, if it must go well.
    fn outcome(&self, input: &str, words: &str) -> Outcome {
        let output = self.replay(input, &format!("-j {words}"));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        self.made(&output)
    }

    /// What the files and standard output say.
    fn made(&self, output: &Output) -> Outcome {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let table: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let trace = fs::read_to_string(self.path("trace")).expect("a trace");
        let lines = trace.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let out = fs::read(self.path("out.pcap")).expect("a capture");
        Outcome { table: table[0].clone(), trace: lines.collect(), out, errors }
    }
}

struct Outcome {
    table: Value,
    trace: Vec<Value>,
    out: Vec<u8>,
    errors: String,
}

impl Outcome {
    fn count(&self, decision: &str, reason: Option<&str>) -> u64 {
        let is = |line: &&Value| line["decision"] == decision && line["reason"].as_str() == reason;
        self.trace.iter().filter(is).count() as u64
    }

    fn number(&self, key: &str) -> u64 {
        self.table[key].as_u64().unwrap_or_else(|| panic!("{key} in {}", self.table))
    }

    fn in_tins(&self, key: &str) -> u64 {
        let tins = self.table["tins"].as_array().expect("tins");
        tins.iter().map(|tin| tin[key].as_u64().expect("a number")).sum()
    }

    /// Trace, table and capture tell the same.
    fn check(&self) {
        let codel = self.count("dropped", Some("codel"));
        let others = self.count("dropped", Some("blue")) + self.count("dropped", Some("memory"));
        let acks = self.count("dropped", Some("ack-filter"));
        let marked = self.count("marked", Some("codel"));
        let sent = self.count("sent", None) + marked;
        assert_eq!(self.number("drops"), codel + others + acks);
        assert_eq!(self.number("packets"), sent);
        assert_eq!(self.in_tins("drops"), codel + others);
        assert_eq!(self.in_tins("ack_drops"), acks);
        assert_eq!(self.in_tins("ecn_mark"), marked);
        assert_eq!(self.frames().len() as u64, sent);
        let queued = self.count("queued", None);
        assert_eq!(self.trace.len() as u64, sent + codel + others + acks + queued);
    }

    fn frames(&self) -> Vec<Captured> {
        let word =
            |at: usize| u32::from_le_bytes(self.out[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(word(0), 0xa1b2_3c4d);
        let (mut at, mut frames) = (24, Vec::new());
        while at < self.out.len() {
            let captured = word(at + 8) as usize;
            let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
            let bytes = self.out[at + 16..at + 16 + captured].to_vec();
            frames.push(Captured { at: time, len: word(at + 12), bytes });
            at += 16 + captured;
        }
        frames
    }
}

/// A classic capture.
fn pcap(frames: &[Captured], nanos: bool, big: bool, link_type: u32) -> Vec<u8> {
    let word = |word: u32| if big { word.to_be_bytes() } else { word.to_le_bytes() };
    let short = |word: u16| if big { word.to_be_bytes() } else { word.to_le_bytes() };
    let mut bytes = word(if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
    bytes.extend([short(2), short(4)].concat());
    bytes.extend([0, 0, 262_144, link_type].map(word).concat());
    for frame in frames {
        let fraction = frame.at % 1_000_000_000 / if nanos { 1 } else { 1000 };
        let second = u32::try_from(frame.at / 1_000_000_000).expect("before 2106");
        let fraction = u32::try_from(fraction).expect("less than a second");
        let captured = u32::try_from(frame.bytes.len()).expect("short enough");
        bytes.extend([second, fraction, captured, frame.len].map(word).concat());
        bytes.extend(&frame.bytes);
    }
    bytes
}

/// A pcapng capture with times in nanoseconds.
fn pcapng(frames: &[Captured], big: bool) -> Vec<u8> {
    let word = |word: u32| if big { word.to_be_bytes() } else { word.to_le_bytes() };
    let short = |word: u16| if big { word.to_be_bytes() } else { word.to_le_bytes() };
    let block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let len = word(u32::try_from(padded + 12).expect("short enough"));
        let mut block = [&word(kind)[..], &len, body].concat();
        block.resize(padded + 8, 0);
        block.extend(len);
        block
    };
    let section = [&word(0x1a2b_3c4d)[..], &short(1), &short(0), &[0xff; 8]].concat();
    let resolution = [&short(9)[..], &short(1), &[9, 0, 0, 0], &[0; 4]].concat();
    let interface = [&short(1)[..], &short(0), &word(0), &resolution].concat();
    let mut bytes = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for frame in frames {
        let captured = u32::try_from(frame.bytes.len()).expect("short enough");
        let high = u32::try_from(frame.at >> 32).expect("32 bits");
        let low = u32::try_from(frame.at & 0xffff_ffff).expect("32 bits");
        let fields = [0, high, low, captured, frame.len].map(word).concat();
        bytes.extend(block(6, &[fields, frame.bytes.clone()].concat()));
    }
    bytes
}

fn native(frames: &[Captured]) -> Vec<u8> {
    pcap(frames, true, false, 1)
}

/// A flow faster than 10 Mbit/s.
fn flood(tos: u8, count: u64) -> Vec<Captured> {
    (0..count).map(|i| Tcp { tos, ..Tcp::default() }.at(i * 600)).collect()
}

#[test]
fn the_same_capture_gives_the_same_bytes_and_another_seed_may_not() {
    let place = Place::new();
    place.write("in", &native(&flood(0, 3000)));
    let words = "cake bandwidth 10mbit";
    let (first, second) = (place.outcome("in", words), place.outcome("in", words));
    assert_eq!((first.out, first.trace), (second.out, second.trace));
    place.outcome("in", &format!("--seed 7 {words}")).check();
}

#[test]
fn a_flow_that_does_not_listen_is_dropped_by_codel_or_marked() {
    let place = Place::new();
    place.write("in", &native(&flood(0, 3000)));
    let outcome = place.outcome("in", "cake bandwidth 10mbit");
    outcome.check();
    assert!(outcome.count("dropped", Some("codel")) > 0);
    place.write("in", &native(&flood(2, 3000)));
    let outcome = place.outcome("in", "cake bandwidth 10mbit");
    outcome.check();
    assert!(outcome.count("marked", Some("codel")) > 0);
    let marked = outcome.frames().iter().filter(|frame| frame.bytes[15] & 3 == 3).count() as u64;
    assert_eq!(marked, outcome.count("marked", Some("codel")));
    for frame in outcome.frames() {
        assert_eq!(checksum::sum(&frame.bytes[14..34]), 0xffff);
    }
}

#[test]
fn memory_and_then_blue_take_what_does_not_fit() {
    let place = Place::new();
    place.write("in", &native(&flood(0, 20_000)));
    let outcome = place.outcome("in", "cake bandwidth 1mbit memlimit 64kb rtt 10ms");
    outcome.check();
    assert!(outcome.count("dropped", Some("memory")) > 0);
    assert!(outcome.count("dropped", Some("blue")) > 0);
}

#[test]
fn the_ack_filter_is_named() {
    let place = Place::new();
    let acks = (1..200).map(|i| {
        let ack = 1 + u32::try_from(i).expect("small") * 3000;
        Tcp { ack, payload: 0, ..Tcp::default() }.at(i * 10)
    });
    place.write("in", &native(&acks.collect::<Vec<_>>()));
    let outcome = place.outcome("in", "cake bandwidth 1mbit ack-filter");
    outcome.check();
    assert!(outcome.count("dropped", Some("ack-filter")) > 0);
}

#[test]
fn what_a_packet_waited_for_is_told() {
    let place = Place::new();
    let tcp = |port, tos| Tcp { port, tos, ..Tcp::default() };
    // One is on the link; behind it, its own flow and another one; in Voice, one that came last.
    let mut frames = vec![tcp(1, 0).at(0), tcp(1, 0).at(10), tcp(1, 0).at(10), tcp(2, 0).at(10)];
    frames.push(tcp(3, 0xb8).at(20));
    place.write("in", &native(&frames));
    let outcome = place.outcome("in", "cake bandwidth 1mbit");
    outcome.check();
    let line = |packet: u64| {
        outcome.trace.iter().find(|line| line["packet"] == packet).expect("each has one")
    };
    assert_eq!(line(1)["waited"], Value::Null);
    assert_eq!(line(1)["sojourn_ns"], 0);
    // 1514 bytes at 1 Mbit/s are 12.112 ms, of which 20 µs had passed.
    assert_eq!(line(5)["waited"], "rate");
    assert_eq!(line(5)["sojourn_ns"], 12_112_000 - 20_000);
    assert_eq!(line(5)["tin"], 2);
    let last = line(3);
    assert!(last["behind"]["queue"].as_u64() > Some(0), "{last}");
    let waited: Vec<_> = outcome.trace.iter().map(|line| line["waited"].clone()).collect();
    assert!(waited.iter().any(|why| why == "tins" || why == "flows" || why == "queue"));
}

#[test]
fn every_kind_of_capture_gives_the_same() {
    let place = Place::new();
    let frames = flood(2, 500);
    place.write("in", &native(&frames));
    let words = "cake bandwidth 10mbit";
    let expected = place.outcome("in", words);
    let same = [
        pcap(&frames, false, false, 1),
        pcap(&frames, false, true, 1),
        pcap(&frames, true, true, 1),
        pcapng(&frames, false),
        pcapng(&frames, true),
    ];
    for bytes in same {
        place.write("in", &bytes);
        let outcome = place.outcome("in", words);
        assert_eq!((&outcome.out, &outcome.trace), (&expected.out, &expected.trace));
    }
}

#[test]
fn a_capture_that_is_cut_short_is_replayed_as_far_as_it_goes() {
    let place = Place::new();
    let frames = flood(0, 10);
    for bytes in [native(&frames), pcapng(&frames, false)] {
        place.write("in", &bytes[..bytes.len() - 700]);
        let outcome = place.outcome("in", "cake");
        outcome.check();
        assert_eq!(outcome.trace.len(), 9);
        assert!(outcome.errors.contains("cut short after 9 frames"), "{}", outcome.errors);
    }
}

#[test]
fn what_is_no_capture_is_refused_by_name() {
    let place = Place::new();
    for (bytes, message) in [
        (Vec::new(), "the file is empty"),
        (b"#!/bin/sh\nexit 0 # and so on, for as long as a header".to_vec(), "neither a pcap"),
        (pcap(&flood(0, 2), true, false, 101), "link type 101 RAW"),
        (pcap(&flood(0, 2), true, false, 113), "link type 113 LINUX_SLL"),
        (pcap(&flood(0, 2), true, false, 147), "link type 147"),
    ] {
        place.write("in", &bytes);
        let output = place.replay("in", "cake");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(message), "{errors}");
    }
}

#[test]
fn a_capture_without_frames_gives_one_without_frames() {
    let place = Place::new();
    place.write("in", &native(&[]));
    let outcome = place.outcome("in", "cake");
    outcome.check();
    assert_eq!(outcome.out.len(), 24);
}

#[test]
fn frames_that_go_back_in_time_come_with_the_one_before() {
    let place = Place::new();
    let tcp = Tcp::default();
    place.write("in", &native(&[tcp.at(500), tcp.at(100), tcp.at(600)]));
    let outcome = place.outcome("in", "cake");
    outcome.check();
    assert!(outcome.errors.contains("1 frames came before"), "{}", outcome.errors);
    let times: Vec<_> = outcome.frames().iter().map(|frame| frame.at - START).collect();
    assert_eq!(times, [500_000, 500_000, 600_000]);
}

#[test]
fn what_was_captured_in_part_is_shaped_by_its_whole_length() {
    let place = Place::new();
    let mut frames = vec![Tcp::default().at(0), Tcp::default().at(0)];
    frames.iter_mut().for_each(|frame| frame.bytes.truncate(96));
    place.write("in", &native(&frames));
    let outcome = place.outcome("in", "cake bandwidth 1mbit");
    outcome.check();
    let out = outcome.frames();
    assert_eq!(out[1].at - out[0].at, 12_112_000);
    assert!(out.iter().all(|frame| frame.len == 1514 && frame.bytes.len() == 96));
    assert_eq!(out[0].bytes, frames[0].bytes);
}

#[test]
fn frames_longer_than_those_of_the_link_are_trains() {
    let place = Place::new();
    let train = Tcp { payload: 4 * 1460, flags: 0x18, ..Tcp::default() };
    place.write("in", &native(&[train.at(0)]));
    let outcome = place.outcome("in", "cake bandwidth 10mbit");
    outcome.check();
    let frames = outcome.frames();
    assert_eq!(frames.len(), 4);
    for (index, frame) in (0_u32..).zip(&frames) {
        assert_eq!(frame.bytes.len(), 1514);
        assert_eq!(frame.bytes[38..42], (1 + 1460 * index).to_be_bytes());
        assert_eq!(checksum::sum(&frame.bytes[14..34]), 0xffff);
        assert_eq!(transport_sum(&frame.bytes), 0xffff);
        assert_eq!(outcome.trace[index as usize]["segment"], index);
    }
    let payload: Vec<_> = frames.iter().flat_map(|frame| frame.bytes[54..].to_vec()).collect();
    assert_eq!(payload, train.frame()[54..]);
    let whole = place.outcome("in", "cake no-split-gso");
    assert_eq!(whole.frames()[0].bytes, train.frame());
    assert_eq!(whole.trace[0]["packets"], 4);
    assert_eq!(whole.number("packets"), 4);
}

#[test]
fn words_that_cannot_be_followed_are_bad_usage() {
    let place = Place::new();
    place.write("in", &native(&[]));
    for (words, message) in [
        ("cake bestefort", "besteffort"),
        ("bandwidth 1mbit", "cake"),
        ("cake nat", "translated"),
        ("", "WORDS"),
    ] {
        let output = place.replay("in", words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(message), "{errors}");
    }
    for words in ["cake autorate-ingress ingress wash", "cake overhead -4 mpu 64 atm"] {
        place.outcome("in", words).check();
    }
}

#[test]
fn what_is_read_is_not_written_over() {
    let place = Place::new();
    let bytes = native(&flood(0, 3));
    place.write("in", &bytes);
    let input = place.path("in");
    let mut command = Command::new(cargo_bin("ucake"));
    let output = command.arg("replay").args([&input, &input]).arg("cake").output();
    assert_eq!(output.expect("the binary was built").status.code(), Some(1));
    assert_eq!(fs::read(&input).expect("it is there"), bytes);
}

#[test]
fn an_interrupt_leaves_whole_files() {
    let place = Place::new();
    place.make_fifo("in");
    let mut command = place.command("in", "-j cake bandwidth 10mbit memlimit 2mb");
    let child = command.stdout(Stdio::piped()).spawn().expect("built");
    let mut pipe = fs::OpenOptions::new().write(true).open(place.path("in")).expect("a pipe");
    let frames = flood(0, 2048);
    std::io::Write::write_all(&mut pipe, &native(&frames)).expect("somebody reads");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    // It looks up every thousand frames, and nobody knows when the signal has come.
    let more = &native(&frames)[24..];
    let written = (0..100_000).take_while(|_| std::io::Write::write_all(&mut pipe, more).is_ok());
    assert!(written.count() < 100_000, "it ends before that");
    drop(pipe);
    let output = child.wait_with_output().expect("it is our child");
    assert_eq!(output.status.code(), Some(130));
    assert!(fs::read(place.path("trace")).expect("a trace").ends_with(b"\n"));
    let outcome = place.made(&output);
    outcome.check();
    assert!(!outcome.frames().is_empty());
    // Every frame has its line, up to the one at which it was found that a signal had come.
    let queued = outcome.count("queued", None);
    assert!(queued > 0);
    assert_eq!(outcome.number("qlen"), queued);
    assert_eq!(outcome.trace.len() % 1024, 1023);
    let mut numbers: Vec<_> =
        outcome.trace.iter().map(|line| line["packet"].as_u64().expect("a number")).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=outcome.trace.len() as u64));
}
