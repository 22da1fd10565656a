//! The command as its users meet it: exit status, what goes to which stream, signals, taps.
//!
//! Tests that need root and a tap say SKIPPED where they may not have them.

use std::io::Read as _;
use std::net::{IpAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rustix::process::Signal;
use serde_json::Value as Json;
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};
use ucake::io::tap::{Tap, TapOptions};

mod world;

use world::{signal, stage, text};

fn ucake(args: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin("ucake"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finished(args: &[&str]) -> Output {
    ucake(args).output().expect("the binary was built")
}

fn stdout(output: &Output) -> String {
    text(&output.stdout)
}

fn stderr(output: &Output) -> String {
    text(&output.stderr)
}

/// Starts the command inside.
fn started(namespace: &Namespace, args: &[&str]) -> Child {
    let mut command = ucake(args);
    namespace.run(move || command.spawn()).expect("the binary was built")
}

/// Waits until there is such a device.
fn await_device(namespace: &Namespace, name: &'static str) {
    await_that("the device", || namespace.run(move || netlink::link(name)).is_ok());
}

fn await_that(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the end and takes what was printed.
fn ended(mut child: Child) -> Output {
    let deadline = Instant::now() + Duration::from_secs(10);
    while child.try_wait().expect("it is our child").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it does not end");
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("it is our child")
}

#[test]
fn bad_usage_is_told_from_refusal() {
    let bad = [
        &["run", "lan0", "tap:wan0"][..],
        &["run", "tap:a", "tap:a"],
        &["run", "tap:a", "tap:b", "--up", "bestefort"],
        &["run", "tap:a", "tap:b", "--up", "bandwidth"],
        &["lab", "--cake", "nat"],
        &["run", "tap:a-name-that-is-too-long", "tap:b"],
        &["run", "pcap:file", "tap:b"],
        &["run", "packet:", "tap:b"],
        &["run", "packet:a-name-that-is-too-long", "tap:b"],
        &["lab", "--rate", "5m"],
        &["lab", "--scenario", "sideways"],
        &["lab", "--repeat", "0"],
        &["lab", "--cake", "bestefort"],
        &["shape"],
        &[],
    ];
    for args in bad {
        let output = finished(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let refused = [
        &["lab", "--cc", "nosuch"][..],
        &["lab", "--json", "/nonexistent/file"],
        &["lab", "--svg", "/nonexistent/file"],
        &["lab", "--flent", "/nonexistent/file"],
    ];
    for args in refused {
        let output = finished(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_file_is_checked_and_shown_as_what_would_be_run() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let example = format!("{root}/contrib/ucake.toml");
    let output = finished(&["check", &example]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("lan = \"packet:lan0\""), "{}", stdout(&output));
    let path = std::env::temp_dir().join(format!("ucake-check-{}.toml", std::process::id()));
    let file = path.to_str().expect("a path of ours");
    let document = std::fs::read_to_string(format!("{root}/docs/CONFIG.md")).expect("it is there");
    let good = document.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let good = good.expect("it has an example");
    std::fs::write(&path, good).expect("a file");
    assert_eq!(finished(&["check", file]).status.code(), Some(0));
    std::fs::write(&path, good.replacen("docsis", "dosis", 1)).expect("a file");
    let output = finished(&["check", file]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    let shown = document.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown = shown.expect("it shows a mistake").replace("/etc/ucake.toml", file);
    assert_eq!(stderr(&output), format!("ucake: {shown}"));
    assert_eq!(finished(&["run", "--config", file]).status.code(), Some(2));
    std::fs::remove_file(&path).expect("our file");
    assert_eq!(finished(&["check", file]).status.code(), Some(2), "it is gone");
    let both = finished(&["run", "tap:a", "tap:b", "--config", file]);
    assert!(stderr(&both).contains("cannot be used with"), "{}", stderr(&both));
}

#[test]
fn help_goes_to_standard_output() {
    for args in [&["--help"][..], &["run", "--help"], &["lab", "-h"], &["--version"]] {
        let output = finished(args);
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn the_laboratory_shows_the_disease_and_the_cure() {
    let Some(namespace) = stage() else { return };
    let args = &["lab", "--rate", "10mbit", "--seconds", "3", "--json", "-"];
    let output = ended_within(Duration::from_secs(60), started(&namespace, args));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("discipline"), "the table is on standard error");
    let report: Json = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    let [fifo, cake] = [&report["runs"][0], &report["runs"][1]];
    assert_eq!((&fifo["discipline"], &cake["discipline"]), (&"fifo".into(), &"cake".into()));
    for run in [fifo, cake] {
        assert_eq!(run["rate_bit"], 10_000_000);
        let goodput = run["goodput_bit"].as_u64().expect("a number");
        // A busy machine delivers less, none delivers more.
        assert!((5_000_000..=10_000_000).contains(&goodput), "{run}");
        assert!(run["ping_us"]["p50"].as_u64() >= Some(20_000), "{run}");
    }
    let p50 = |run: &Json| run["ping_us"]["p50"].as_u64();
    assert!(p50(fifo) > p50(cake), "{report}");
}

/// What `ucake lab --scenario` finds in two seconds for each discipline, `more` being said, too.
fn scenario(namespace: &Namespace, name: &str, more: &[&str]) -> Json {
    let mut args = vec!["lab", "--scenario", name, "--seconds", "2", "--json", "-"];
    args.extend(more);
    let output = ended_within(Duration::from_secs(60), started(namespace, &args));
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
}

#[test]
fn scenarios_measure_what_they_are_for() {
    let Some(namespace) = stage() else { return };
    let report = scenario(&namespace, "hosts", &["--cake", "dual-srchost"]);
    let share = |run: usize, class: usize| {
        report["runs"][run]["classes"][class]["goodput_bit"].as_f64().expect("a number")
    };
    assert!((0.6..1.6).contains(&(share(1, 0) / share(1, 1))), "{report}");
    let report = scenario(&namespace, "rrul", &["--cake", "diffserv4"]);
    let run = &report["runs"][1];
    assert_eq!(run["classes"].as_array().map(Vec::len), Some(8), "{run}");
    assert_eq!(run["pings"].as_array().map(Vec::len), Some(3), "{run}");
    let report = scenario(&namespace, "voip", &[]);
    let call = &report["runs"][1]["voice"];
    assert!(call["sent"].as_u64() > Some(50) && call["lost"].as_u64() < Some(10), "{call}");
    assert!(call["p50_us"].as_u64() >= Some(10_000), "half of the path: {call}");
    let report = scenario(&namespace, "small", &[]);
    assert!(report["runs"][1]["goodput_bit"].as_u64() > Some(1_000_000), "{report}");
}

#[test]
fn a_run_is_drawn_and_written_for_flent() {
    let Some(namespace) = stage() else { return };
    let directory = std::env::temp_dir().join(format!("ucake-lab-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = |name: &str| directory.join(name).to_str().expect("a path of ours").to_owned();
    let [svg, flent] = [file("x.svg"), file("x.flent.gz")];
    let more = ["--repeat", "2", "--svg", &svg, "--flent", &flent];
    let report = scenario(&namespace, "asym", &more);
    let order: Vec<_> = report["runs"].as_array().into_iter().flatten().collect();
    let order: Vec<_> = order.iter().filter_map(|run| run["discipline"].as_str()).collect();
    assert_eq!(order, ["fifo", "cake", "cake ack-filter"].repeat(2));
    assert_eq!(report["medians"][2]["rounds"], 2);
    let packed = std::fs::File::open(file("x-5-cake.flent.gz")).expect("it is written");
    let data: Json =
        serde_json::from_reader(flate2::read::GzDecoder::new(packed)).expect("JSON in gzip");
    assert_eq!((&data["version"], &data["metadata"]["NAME"]), (&4.into(), &"tcp_ndown".into()));
    let steps = data["x_values"].as_array().map(Vec::len);
    for name in ["Ping (ms) ICMP", "TCP download::1", "TCP download sum"] {
        assert_eq!(data["results"][name].as_array().map(Vec::len), steps, "{name}");
    }
    let picture = std::fs::read_to_string(&svg).expect("it is written");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for part in ["ping (ms)", "goodput (Mbit/s)", "cake ack-filter"] {
        assert!(picture.contains(part), "{part}");
    }
    std::fs::remove_dir_all(directory).expect("our directory");
}

#[test]
fn the_call_is_drawn_and_written_for_flent() {
    let Some(namespace) = stage() else { return };
    let directory = std::env::temp_dir().join(format!("ucake-call-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = |name: &str| directory.join(name).to_str().expect("a path of ours").to_owned();
    let [svg, flent] = [file("x.svg"), file("x")];
    scenario(&namespace, "voip", &["--svg", &svg, "--flent", &flent]);
    let packed = std::fs::File::open(file("x-2-cake.flent.gz")).expect("it is written");
    let data: Json =
        serde_json::from_reader(flate2::read::GzDecoder::new(packed)).expect("JSON in gzip");
    assert_eq!(data["metadata"]["NAME"], "voip-rrul");
    for (name, unit) in [("VoIP::delay", "ms"), ("VoIP::jitter", "ms"), ("VoIP::loss", "count")] {
        let values = data["results"][name].as_array().into_iter().flatten();
        assert!(values.filter(|value| value.is_number()).count() > 5, "{name}: {data}");
        assert_eq!(data["metadata"]["SERIES_META"][name]["UNITS"], unit);
    }
    let picture = std::fs::read_to_string(&svg).expect("it is written");
    assert!(picture.contains("one-way delay (ms)"));
    std::fs::remove_dir_all(directory).expect("our directory");
}

#[test]
fn a_laboratory_told_to_stop_at_once_leaves_nothing_empty() {
    let Some(namespace) = stage() else { return };
    let directory = std::env::temp_dir().join(format!("ucake-stop-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = |name: &str| directory.join(name).to_str().expect("a path of ours").to_owned();
    let [svg, flent, json] = [file("x.svg"), file("x"), file("x.json")];
    std::fs::write(&svg, "yesterday's").expect("a file");
    let args = ["lab", "--seconds", "60", "--svg", &svg, "--flent", &flent, "--json", &json];
    let child = started(&namespace, &args);
    let deadline = Instant::now() + Duration::from_secs(10);
    let second = file("x-2-cake.flent.gz");
    while !std::path::Path::new(&second).exists() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    // The ping runs alone for a second, so nothing is measured yet.
    thread::sleep(Duration::from_millis(100));
    signal(&child, Signal::INT);
    let output = ended_within(Duration::from_secs(10), child);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let mut left: Vec<_> = std::fs::read_dir(&directory)
        .expect("our directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["x.json", "x.svg"]);
    assert_eq!(std::fs::read_to_string(&svg).expect("it is there"), "yesterday's");
    let report: Json = serde_json::from_slice(&std::fs::read(&json).expect("it is written"))
        .expect("JSON though nothing was measured");
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(0));
    std::fs::remove_dir_all(directory).expect("our directory");
}

#[test]
fn a_reader_that_leaves_does_not_keep_the_laboratory_from_its_files() {
    let Some(namespace) = stage() else { return };
    let svg = std::env::temp_dir().join(format!("ucake-pipe-{}.svg", std::process::id()));
    let path = svg.to_str().expect("a path of ours");
    let args = ["lab", "--seconds", "1", "--json", "-", "--svg", path];
    let mut child = started(&namespace, &args);
    drop(child.stdout.take());
    let output = ended_within(Duration::from_secs(60), child);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(std::fs::read_to_string(&svg).is_ok_and(|svg| svg.starts_with("<svg")));
    std::fs::remove_file(&svg).expect("our file");
}

fn ended_within(patience: Duration, child: Child) -> Output {
    let (done, outcome) = std::sync::mpsc::channel();
    let pid = child.id();
    thread::spawn(move || done.send(child.wait_with_output()));
    match outcome.recv_timeout(patience) {
        Ok(output) => output.expect("it is our child"),
        Err(_) => panic!("process {pid} does not end within {patience:?}"),
    }
}

#[test]
fn the_laboratory_stops_when_told_with_what_it_has() {
    let Some(namespace) = stage() else { return };
    let child = started(&namespace, &["lab", "--seconds", "3600", "--json", "-"]);
    // Idle, warm-up, and a second to measure in.
    thread::sleep(Duration::from_secs(6));
    signal(&child, Signal::INT);
    let output = ended_within(Duration::from_secs(5), child);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let report: Json = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(report["runs"][0]["interrupted"], true, "{report}");
}

#[test]
fn run_shapes_prints_and_stops_as_told() {
    let Some(namespace) = stage() else { return };
    let args = &["run", "tap:lan0", "tap:wan0", "--up", "bandwidth 20mbit", "--down", "lan"];
    let mut child = started(&namespace, args);
    await_device(&namespace, "wan0");
    // The handlers are in place soon after the device is; where another ucake has the usual socket, that is tried for
    // 300 ms first.
    thread::sleep(Duration::from_millis(800));
    signal(&child, Signal::USR1);
    let mut first = [0; 24];
    child.stdout.as_mut().expect("piped").read_exact(&mut first).expect("the table comes");
    assert_eq!(&first, b"qdisc cake 8001: dev wan");
    signal(&child, Signal::TERM);
    let output = ended(child);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for line in ["qdisc cake 8001: dev wan0 root refcnt 2 bandwidth 20Mbit diffserv3", "rtt 1ms"] {
        assert!(text.contains(line), "{text}");
    }
    let devices = ["lan0", "wan0"].map(|name| namespace.run(move || netlink::link(name)));
    assert!(devices.iter().all(Result::is_err), "{devices:?}");
}

#[test]
fn a_device_removed_while_nobody_supervises_is_named() {
    let Some(namespace) = stage() else { return };
    let child = started(&namespace, &["run", "tap:lan0", "tap:wan0", "--no-supervisor"]);
    await_device(&namespace, "wan0");
    thread::sleep(Duration::from_millis(300));
    namespace.run(|| netlink::delete("wan0")).expect("it is there");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("wan0 is gone"), "{}", stderr(&output));
}

#[test]
fn a_tap_that_somebody_holds_is_named_and_nothing_is_left() {
    let Some(namespace) = stage() else { return };
    let held = namespace.run(|| Tap::open("wan0", &TapOptions::default())).expect("root may");
    let output = ended(started(&namespace, &["run", "tap:lan0", "tap:wan0"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("wan0"), "{}", stderr(&output));
    assert!(namespace.run(|| netlink::link("lan0")).is_err());
    drop(held);
}

#[test]
fn a_device_that_cannot_be_bridged_is_refused_in_one_line() {
    let Some(namespace) = stage() else { return };
    for (device, reason) in [
        ("packet:eth9", "cannot open eth9: there is no network device of that name here"),
        ("packet:lo", "cannot open lo: it is loopback"),
    ] {
        let args = [String::from("run"), device.into(), "tap:wan0".into()];
        let child = namespace.run(move || ucake(&args.each_ref().map(|arg| &**arg)).spawn());
        let output = ended(child.expect("the binary was built"));
        assert_eq!(output.status.code(), Some(1), "{device}");
        let text = stderr(&output);
        assert!(text.contains(reason) && text.lines().count() == 1, "{device}: {text}");
    }
}

#[test]
fn a_flood_of_small_packets_both_ways_leaves_descriptors_and_memory_bounded() {
    /// Kibibytes: buffers of 8 MiB in each of two sockets do not count as the process's own, its pool does.
    const MOST_GROWTH: u64 = 64 * 1024;
    let Some(namespace) = stage() else { return };
    namespace.run(|| {
        for (near, far, host) in [("left", "lan0", 1), ("right", "wan0", 2)] {
            netlink::add_veth(near, far).expect("this kernel has veth");
            let addresses = vec![(IpAddr::from([10, 77, host, 1]), 24)];
            let up = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
            netlink::configure(near, &up).expect("it obeys");
            let up = LinkOptions { up: Some(true), ..LinkOptions::default() };
            netlink::configure(far, &up).expect("it obeys");
        }
    });
    let child = started(&namespace, &["run", "packet:lan0", "packet:wan0"]);
    let id = child.id();
    let descriptors = || std::fs::read_dir(format!("/proc/{id}/fd")).expect("it runs").count();
    let before = (await_quiet(descriptors), resident(id));
    let floods = [1, 2].map(|host| {
        let flood = move || {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            socket.set_broadcast(true).expect("an option");
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                // Sixty-four bytes on the wire; what finds no room is dropped, as in any flood.
                drop(socket.send_to(&[0; 18], (IpAddr::from([10, 77, host, 255]), 9)));
            }
        };
        namespace.spawn("flood", flood).expect("a thread")
    });
    while floods.iter().any(|flood| !flood.is_finished()) {
        thread::sleep(Duration::from_millis(100));
        assert_eq!(descriptors(), before.0);
    }
    let grown = resident(id).saturating_sub(before.1);
    assert!(grown < MOST_GROWTH, "it grew by {grown} KiB");
    signal(&child, Signal::TERM);
    let output = ended(child);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for port in ["port lan0: read ", "port wan0: read "] {
        let read = text.split_once(port).and_then(|(_, rest)| rest.split(' ').nth(2));
        let frames: u64 = read.and_then(|word| word.parse().ok()).expect("the table has it");
        assert!(frames > 10_000, "{text}");
    }
}

/// The number that `count` settles on.
fn await_quiet(count: impl Fn() -> usize) -> usize {
    let (mut before, mut same) = (count(), 0);
    while same < 20 {
        thread::sleep(Duration::from_millis(20));
        let now = count();
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    before
}

/// Kibibytes of memory that a process has.
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn the_doctor_says_what_there_is_in_words_and_as_json() {
    let text = ucake(&["doctor"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&text.stdout).contains("tun"), "{text:?}");
    let json = ucake(&["doctor", "-j"]).output().expect("it runs");
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert_eq!(found["ok"].as_bool(), Some(json.status.success()));
    assert!(found["findings"].as_array().is_some_and(|findings| findings.len() > 3), "{found}");
}

#[test]
fn completions_know_the_words_of_cake() {
    let script = ucake(&["completions", "bash"]).output().expect("it runs");
    let script = String::from_utf8_lossy(&script.stdout).into_owned();
    assert!(script.contains("triple-isolate") && script.contains("complete"), "{script}");
}
