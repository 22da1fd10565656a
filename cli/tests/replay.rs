//! `ucake replay`: from capture to capture, table and trace.

mod world;

use std::fs;
use std::path::{Path, PathBuf};
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

/// TCP or UDP over IPv6, or UDP over IPv4, with payload; checksums as they were when it was captured, which is unfinished.
fn unfinished(is_v6: bool, is_tcp: bool, payload: usize) -> Captured {
    let mut transport = [1000_u16.to_be_bytes(), 443_u16.to_be_bytes()].concat();
    let header_len = if is_tcp { 20 } else { 8 };
    let len = u16::try_from(header_len + payload).expect("short enough");
    if is_tcp {
        transport.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    } else {
        transport.extend([len.to_be_bytes(), [0, 0]].concat());
    }
    let protocol = if is_tcp { 6 } else { 17 };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if is_v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([[0xfd; 16], [0xfe; 16]].concat());
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + len).to_be_bytes());
        frame.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = checksum::finish(checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame.extend(transport);
    frame.extend((0..payload).map(|byte| byte.to_le_bytes()[0]));
    Captured { at: START, len: u32::try_from(frame.len()).expect("short enough"), bytes: frame }
}

/// The sum over pseudo header and what follows; 0xffff of what is right.
fn transport_sum(frame: &[u8]) -> u16 {
    let is_v4 = frame[12..14] == [8, 0];
    let (protocol, addresses, start) =
        if is_v4 { (frame[23], 26..34, 34) } else { (frame[20], 22..54, 54) };
    let len = u16::try_from(frame.len() - start).expect("short enough");
    let sum = checksum::add(checksum::sum(&frame[addresses]), u16::from(protocol));
    checksum::add(checksum::add(sum, len), checksum::sum(&frame[start..]))
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
        self.line(&format!("{input} out.pcap --trace trace {words}"))
    }

    /// `ucake replay` and these words, in this directory.
    fn line(&self, words: &str) -> Command {
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("replay").args(words.split_whitespace());
        command.current_dir(&self.0).stdin(Stdio::null());
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

/// An interface of a pcapng capture: its link type, and how many ticks a second has.
type Interface = (u16, Ticks);

#[derive(Clone, Copy)]
enum Ticks {
    /// Nothing is said, which means microseconds.
    Unsaid,
    /// So many decimal places of a second.
    Decimal(u8),
    /// So many binary ones.
    Binary(u8),
}

impl Ticks {
    fn per_second(self) -> u64 {
        match self {
            Self::Unsaid => 1_000_000,
            Self::Decimal(places) => 10_u64.pow(places.into()),
            Self::Binary(places) => 1 << places,
        }
    }
}

/// A pcapng capture; frames come by one interface after the other.
fn pcapng(frames: &[Captured], big: bool, interfaces: &[Interface]) -> Vec<u8> {
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
    let mut bytes = block(0x0a0d_0d0a, &section);
    for (link_type, ticks) in interfaces {
        let resolution = |byte| [&short(9)[..], &short(1), &[byte, 0, 0, 0], &[0; 4]].concat();
        let options = match ticks {
            Ticks::Unsaid => Vec::new(),
            Ticks::Decimal(places) => resolution(*places),
            Ticks::Binary(places) => resolution(places | 0x80),
        };
        bytes.extend(block(1, &[&short(*link_type)[..], &short(0), &word(0), &options].concat()));
    }
    for (frame, (interface, (_, ticks))) in frames.iter().zip((0..).zip(interfaces).cycle()) {
        let captured = u32::try_from(frame.bytes.len()).expect("short enough");
        let at = u128::from(frame.at) * u128::from(ticks.per_second()) / 1_000_000_000;
        let high = u32::try_from(at >> 32).expect("32 bits");
        let low = u32::try_from(at & 0xffff_ffff).expect("32 bits");
        let fields = [interface, high, low, captured, frame.len].map(word).concat();
        bytes.extend(block(6, &[fields, frame.bytes.clone()].concat()));
    }
    bytes
}

/// Ethernet and nanoseconds.
const PLAIN: Interface = (1, Ticks::Decimal(9));

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
        pcapng(&frames, false, &[PLAIN]),
        pcapng(&frames, true, &[PLAIN]),
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
    for bytes in [native(&frames), pcapng(&frames, false, &[PLAIN])] {
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
    std::os::unix::fs::symlink("in", place.path("same")).expect("a directory");
    for (words, message) in [
        ("in in cake", "in: this is the capture that is read"),
        ("in out --trace same cake", "same: this is the capture that is read"),
        ("in out --trace ./out cake", "./out: capture and trace cannot be one file"),
    ] {
        let output = place.line(words).output().expect("the binary was built");
        assert_fails(&output, message);
    }
    assert_eq!(fs::read(&input).expect("it is there"), bytes);
}

/// It ended with status 1 and one line that says why.
fn assert_fails(output: &Output, message: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(message), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn standard_input_and_output_will_do() {
    let place = Place::new();
    let capture = native(&flood(2, 500));
    place.write("in", &capture);
    let expected = place.outcome("in", "cake bandwidth 10mbit");
    let trace = fs::read(place.path("trace")).expect("a trace");
    let table = place.replay("in", "cake bandwidth 10mbit").stdout;
    for (words, stdout) in [
        ("- - cake bandwidth 10mbit", &expected.out),
        ("/dev/stdin - cake bandwidth 10mbit", &expected.out),
        ("- /dev/null --trace - cake bandwidth 10mbit", &trace),
    ] {
        let mut command = place.line(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary was built");
        let mut stdin = child.stdin.take().expect("a pipe");
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::io::Write::write_all(&mut stdin, &capture).expect("it is read");
                drop(stdin);
            });
            child.wait_with_output().expect("it is our child")
        });
        assert!(output.status.success());
        assert!(output.stdout == *stdout, "{words}");
        assert_eq!(output.stderr, table);
    }
}

#[test]
fn where_nothing_can_be_written_it_ends_and_says_where() {
    let place = Place::new();
    place.write("in", &native(&flood(0, 3000)));
    let full = "/dev/full: No space left on device";
    for words in ["in /dev/full cake", "in /dev/null --trace /dev/full cake bandwidth 10mbit"] {
        assert_fails(&place.line(words).output().expect("the binary was built"), full);
    }
    for words in ["in - cake", "in /dev/null --trace - cake bandwidth 10mbit"] {
        let mut command = place.line(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary was built");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it is our child");
        assert_fails(&output, "-: Broken pipe");
    }
}

#[test]
fn progress_of_what_has_no_size_is_told_without_one() {
    let place = Place::new();
    place.make_fifo("fifo");
    let capture = native(&flood(0, 5000));
    let ucake = cargo_bin("ucake");
    let line = format!("{} replay fifo out.pcap cake", ucake.display());
    // A terminal of its own.
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]).current_dir(&place.0);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let Ok(child) = child else {
        eprintln!("SKIPPED: no script(1) to make a terminal with");
        return;
    };
    fs::write(place.path("fifo"), &capture).expect("it is read");
    let output = child.wait_with_output().expect("it is our child");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("KiB read") || shown.contains("MiB read"), "{shown}");
    assert!(!shown.contains(" of 0"), "{shown}");
}

#[test]
fn interfaces_tell_time_in_their_own_ways_and_those_without_ethernet_are_left_out() {
    let place = Place::new();
    // A time that every one of them can tell.
    let frames: Vec<_> = (0..10)
        .map(|i| Captured { at: START + i * 1_000_000_000 / 64, ..Tcp::default().at(0) })
        .collect();
    let interfaces =
        [(1, Ticks::Unsaid), (101, PLAIN.1), (1, Ticks::Binary(10)), PLAIN, (113, Ticks::Unsaid)];
    for big in [false, true] {
        place.write("in", &pcapng(&frames, big, &interfaces));
        let outcome = place.outcome("in", "cake");
        outcome.check();
        let times: Vec<_> = outcome.frames().iter().map(|frame| frame.at).collect();
        let expected: Vec<_> = [0, 2, 3, 5, 7, 8].map(|i: usize| frames[i].at).into();
        assert_eq!(times, expected);
        for message in ["2 frames left out: link type 101", "2 frames left out: link type 113"] {
            assert!(outcome.errors.contains(message), "{}", outcome.errors);
        }
        assert!(!outcome.errors.contains("came before"), "{}", outcome.errors);
    }
}

#[test]
fn trains_of_every_protocol_become_frames_with_right_checksums() {
    let place = Place::new();
    for (is_v6, is_tcp) in [(false, false), (true, true), (true, false)] {
        let start = if is_v6 { 54 } else { 34 };
        let headers = start + if is_tcp { 20 } else { 8 };
        let mss = 1514 - headers;
        let train = unfinished(is_v6, is_tcp, 3 * mss + 100);
        place.write("in", &native(std::slice::from_ref(&train)));
        let outcome = place.outcome("in", "cake bandwidth 10mbit");
        outcome.check();
        let frames = outcome.frames();
        let lens: Vec<_> = frames.iter().map(|frame| frame.bytes.len()).collect();
        assert_eq!(lens, [1514, 1514, 1514, headers + 100]);
        for frame in &frames {
            assert_eq!(transport_sum(&frame.bytes), 0xffff);
        }
        let payload: Vec<_> =
            frames.iter().flat_map(|frame| frame.bytes[headers..].to_vec()).collect();
        assert_eq!(payload, train.bytes[headers..]);
        assert_eq!(outcome.number("packets"), 4);
    }
}

#[test]
fn of_a_train_that_was_captured_in_part_the_rest_is_length_alone() {
    let place = Place::new();
    let mut train = Tcp { payload: 2 * 1460 + 500, ..Tcp::default() }.at(0);
    train.bytes.truncate(96);
    place.write("in", &native(&[train]));
    let outcome = place.outcome("in", "cake bandwidth 1mbit");
    outcome.check();
    let frames = outcome.frames();
    let lens: Vec<_> = frames.iter().map(|frame| (frame.len, frame.bytes.len())).collect();
    // Headers are made for each; of the payload, what was captured is in the first.
    assert_eq!(lens, [(1514, 96), (1514, 54), (554, 54)]);
    assert_eq!(frames[1].at - frames[0].at, 12_112_000);
    for (index, frame) in (0_u32..).zip(&frames) {
        assert_eq!(frame.bytes[38..42], (1 + 1460 * index).to_be_bytes());
    }
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

/// The capture that docs/REPLAY.md is about: three uploads that together want a fifth more than 20 Mbit/s, a call, and now and then a
/// request; 0.3 s of them, the headers alone.
fn example() -> Vec<Captured> {
    let uploads = (0..600_u32).map(|i| {
        let port = 5001 + u16::try_from(i % 3).expect("small");
        Tcp { port, sequence: 1 + i / 3 * 1460, ..Tcp::default() }.at(u64::from(i) * 500)
    });
    let call = (0..15).map(|i| {
        let mut frame = unfinished(false, false, 172);
        frame.at += 3_100_000 + i * 20_000_000;
        frame.bytes[15] = 0xb8;
        frame.bytes[24..26].fill(0);
        let sum = checksum::finish(checksum::sum(&frame.bytes[14..34]));
        frame.bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    });
    let requests = (0..3).map(|i| {
        Tcp { port: 7000, payload: 300, flags: 0x18, ..Tcp::default() }.at(50_200 + i * 100_000)
    });
    let mut frames: Vec<_> = uploads.chain(call).chain(requests).collect();
    frames.sort_by_key(|frame| frame.at);
    frames.iter_mut().for_each(|frame| frame.bytes.truncate(54));
    frames
}

/// Whether what is kept in docs/ is to be written anew.
fn updates_docs() -> bool {
    std::env::var_os("UCAKE_UPDATE_DOCS").is_some_and(|value| value == "1")
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

#[test]
fn the_example_capture_is_what_is_said_of_it() {
    let made = native(&example());
    if updates_docs() {
        fs::write(docs("example.pcap"), &made).expect("docs is ours");
    }
    let kept = fs::read(docs("example.pcap")).expect("it is part of the repository");
    assert!(kept == made, "UCAKE_UPDATE_DOCS=1 writes docs/example.pcap anew");
}

/// Runs what stands behind a `$` on the page, in one directory, and puts what it prints in place of what the page says it does.
fn followed(page: &str) -> String {
    let place = Place::new();
    place.write("example.pcap", &native(&example()));
    let ucake = cargo_bin("ucake");
    let own = ucake.parent().expect("it lies in a directory").display().to_string();
    let path = format!("{own}:{}", std::env::var("PATH").unwrap_or_default());
    let (mut followed, mut lines) = (String::new(), page.lines().peekable());
    while let Some(line) = lines.next() {
        followed += &format!("{line}\n");
        let Some(command) = line.strip_prefix("    $ ") else { continue };
        while lines
            .next_if(|line| line.starts_with("    ") && !line.starts_with("    $ "))
            .is_some()
        {}
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(&place.0).env("PATH", &path);
        let output = shell.stdin(Stdio::null()).output().expect("there is a shell");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let printed = [output.stderr, output.stdout].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        followed.extend(printed.lines().map(|line| format!("    {line}\n")));
    }
    followed
}

#[test]
fn the_page_shows_what_its_commands_print() {
    if Command::new("jq").arg("--version").stdout(Stdio::null()).status().is_err() {
        let required = std::env::var_os("UCAKE_REQUIRE_NETNS").is_some_and(|value| value == "1");
        assert!(!required, "jq is not installed");
        eprintln!("SKIPPED: jq is not installed");
        return;
    }
    let page = fs::read_to_string(docs("REPLAY.md")).expect("it is part of the repository");
    let followed = followed(&page);
    assert!(followed.matches("    $ ").count() > 3);
    if updates_docs() {
        fs::write(docs("REPLAY.md"), &followed).expect("docs is ours");
        return;
    }
    assert_eq!(page, followed, "UCAKE_UPDATE_DOCS=1 writes docs/REPLAY.md anew");
}
