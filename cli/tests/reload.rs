//! A configuration file that is changed while frames go through.
//!
//! Where namespaces or taps are not to be had the tests say SKIPPED; with `UCAKE_REQUIRE_NETNS=1` they fail.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Signal, kill_process};
use ucake::io::namespace::Namespace;
use ucake::io::netlink;

mod world;

use world::{CLIENT, PATIENCE, SERVER, await_that, directory, ends_of, pid, signal, stage, text};

const FIRST: &str = "[[bridge]]\nlan = \"tap:lan0\"\nwan = \"tap:wan0\"\n";
const SECOND: &str = "[[bridge]]\nlan = \"tap:lan1\"\nwan = \"tap:wan1\"\n";

/// A running ucake with a file, between two ends that talk.
struct World {
    ends: [Namespace; 2],
    middle: Namespace,
    directory: PathBuf,
    /// What the service manager hears.
    told: Arc<Mutex<Vec<String>>>,
    ucake: Child,
}

impl World {
    /// `None`, aloud, where there can be none.
    fn new(file: &str) -> Option<Self> {
        let (middle, directory) = (stage()?, directory());
        let manager = UnixDatagram::bind(directory.join("notify")).expect("there is nothing");
        let log = File::create(directory.join("log")).expect("a file");
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("run").arg("--config").arg(directory.join("ucake.toml"));
        command.env("WATCHDOG_USEC", "10000000");
        command.env("NOTIFY_SOCKET", directory.join("notify")).env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        fs::write(directory.join("ucake.toml"), with_socket(&directory, file)).expect("a file");
        let ucake = middle.run(move || command.spawn()).expect("a program");
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        thread::spawn(move || {
            let mut message = [0; 1000];
            while let Ok(len) = manager.recv(&mut message) {
                let told = text(&message[..len]).trim().to_owned();
                hears.lock().expect("nobody panics").push(told);
            }
        });
        Self::await_told(&told, "READY=1");
        let ends = ends_of(&middle, ["lan0", "wan0"]);
        Some(Self { ends, middle, directory, told, ucake })
    }

    /// Waits for the service manager to be told something, and forgets all before it.
    fn await_told(told: &Mutex<Vec<String>>, what: &str) {
        await_that(what, || {
            let mut told = told.lock().expect("nobody panics");
            let place = told.iter().position(|text| text.contains(what));
            place.map(|place| told.drain(..=place).count()).is_some()
        });
    }

    /// Has another file read.
    fn reload(&self, file: &str) {
        // As editors do it: whole.
        let new = self.directory.join("new");
        fs::write(&new, with_socket(&self.directory, file)).expect("a file");
        fs::rename(&new, self.directory.join("ucake.toml")).expect("a file");
        signal(&self.ucake, Signal::HUP);
    }

    fn shown(&self) -> String {
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("--control").arg(self.directory.join("control.sock"));
        let output = command.args(["qdisc", "show"]).output().expect("the binary was built");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn await_shown(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let mut shown = self.shown();
        let begun = Instant::now();
        while !so(&shown) {
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}: {shown}");
            shown = self.shown();
        }
        shown
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).expect("our file")
    }

    /// The number of a device, wherever it is.
    fn index_of(&self, device: &'static str) -> Option<u32> {
        let index = |namespace: &Namespace| {
            namespace.run(move || netlink::link(device).ok().map(|link| link.index))
        };
        [&self.middle, &self.ends[0], &self.ends[1]].into_iter().find_map(index)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.ucake.kill();
        let _ = self.ucake.wait();
        if thread::panicking() {
            eprintln!("its log:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn with_socket(directory: &std::path::Path, file: &str) -> String {
    format!("[control]\nsocket = \"{}/control.sock\"\n{file}", directory.display())
}

/// Numbered datagrams from client to server until stopped.
struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u32>,
    receiver: JoinHandle<Vec<u32>>,
}

impl Stream {
    fn start([client, server]: &[Namespace; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let bind = |address| move || UdpSocket::bind(SocketAddr::new(address, 7000));
        let to = server.run(bind(SERVER)).expect("a socket");
        let from = client.run(bind(CLIENT)).expect("a socket");
        to.set_read_timeout(Some(Duration::from_secs(2))).expect("more than nothing");
        let receiver = thread::spawn(move || {
            let (mut seen, mut datagram) = (Vec::new(), [0; 1000]);
            while let Ok(len) = to.recv(&mut datagram) {
                let number = datagram[..len].first_chunk().expect("four bytes");
                match u32::from_be_bytes(*number) {
                    u32::MAX => break,
                    number => seen.push(number),
                }
            }
            seen
        });
        let stopped = Arc::clone(&stop);
        let sender = thread::spawn(move || {
            let mut number = 0_u32;
            let send = |number: u32| {
                let mut datagram = [0; 1000];
                datagram[..4].copy_from_slice(&number.to_be_bytes());
                let _ = from.send_to(&datagram, SocketAddr::new(SERVER, 7000));
            };
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..4 {
                    send(number);
                    number += 1;
                }
                thread::sleep(Duration::from_millis(4));
            }
            send(u32::MAX);
            number
        });
        Self { stop, sender, receiver }
    }

    /// All that was sent has arrived, in order; how much that was.
    fn arrived(self) -> usize {
        let (sent, seen) = self.stop();
        let first_wrong = seen.iter().zip(0..).find(|(seen, number)| **seen != *number);
        assert_eq!((first_wrong, seen.len()), (None, sent as usize), "lost or reordered");
        seen.len()
    }

    /// All that was sent has arrived, whatever overtook what; how much that was.
    fn arrived_in_any_order(self) -> usize {
        let (sent, mut seen) = self.stop();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..sent), "{} of {sent} arrived", seen.len());
        seen.len()
    }

    /// How many were sent, and what arrived.
    fn stop(self) -> (u32, Vec<u32>) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("it only sends");
        (sent, self.receiver.join().expect("it only receives"))
    }
}

/// Has one list of words after another read, these tins among them, while numbered datagrams go through; `arrived` says
/// how many did.
fn reload_again_and_again(tins: &str, arrived: fn(Stream) -> usize) {
    // Nothing is ever too old for these: what is missing at the end was lost by us.
    let begin = format!("{FIRST}up = \"bandwidth 50mbit interplanetary\"\n");
    let Some(world) = World::new(&begin) else { return };
    let stream = Stream::start(&world.ends);
    for round in 0..10 {
        for (words, mark) in [
            (format!("bandwidth 40mbit {tins} interplanetary"), format!("bandwidth 40Mbit {tins}")),
            ("besteffort rtt 500s overhead 18".into(), "bandwidth unlimited besteffort".into()),
            (
                "bandwidth 9mbit docsis ingress interplanetary".into(),
                "bandwidth 9Mbit diffserv3".into(),
            ),
        ] {
            // What comes meanwhile crosses under these words.
            thread::sleep(Duration::from_millis(20));
            world.reload(&format!("{FIRST}up = \"{words}\"\n"));
            let shown = world.await_shown(&mark, |shown| shown.contains(&mark));
            let overhead = shown.contains("overhead 18");
            assert_eq!(overhead, !words.contains("40mbit"), "{round}: nothing else stays: {shown}");
        }
    }
    // Handles tell that it is the same discipline as ever.
    assert!(world.shown().contains("qdisc cake 8001:"), "{}", world.shown());
    assert!(arrived(stream) > 500, "that was no traffic");
}

#[test]
fn other_words_count_at_once_and_no_packet_is_lost_or_overtaken() {
    reload_again_and_again("diffserv4", Stream::arrived);
}

#[test]
fn no_packet_is_lost_either_where_best_effort_becomes_another_tin() {
    // There what comes may overtake what is queued, in Linux as well.
    reload_again_and_again("diffserv8", Stream::arrived_in_any_order);
}

#[test]
fn a_file_that_is_wrong_changes_nothing_and_the_log_says_where() {
    let good = format!("{FIRST}up = \"bandwidth 50mbit\"\n");
    let Some(world) = World::new(&good) else { return };
    let stream = Stream::start(&world.ends);
    let before = world.shown();
    for (file, reason) in [
        (
            format!("{FIRST}up = \"bandwidth 5mbit\"\ndwon = \"\"\n"),
            "ucake.toml:7:1: there is no key",
        ),
        (format!("{FIRST}up = \"bandwidth 5mbot\"\n"), "ucake.toml:6:17: Illegal"),
        (
            format!("{FIRST}up = \"bandwidth 5mbit\"\n{SECOND}").replace("tap:wan1", "packet:none"),
            "none",
        ),
        (String::new(), "there is no bridge"),
    ] {
        world.reload(&file);
        await_that(reason, || {
            world.log().lines().any(|line| line.contains("nothing is changed"))
                && world.log().contains(reason)
        });
        assert_eq!(world.shown(), before);
    }
    assert_eq!(world.index_of("lan1"), None, "what was opened in vain is closed");
    stream.arrived();
}

#[test]
fn bridges_come_and_go_and_others_do_not_notice() {
    let Some(world) = World::new(FIRST) else { return };
    let stream = Stream::start(&world.ends);
    let lan0 = world.index_of("lan0");
    let has = |device: &'static str| move |shown: &str| shown.contains(device);
    for _ in 0..3 {
        world.reload(&format!("{SECOND}down = \"bandwidth 7mbit\"\n{FIRST}"));
        let shown = world.await_shown("the second", has("lan1"));
        assert!(shown.contains("bandwidth 7Mbit") && shown.contains("wan0"), "{shown}");
        // One port of it stays what it is.
        let lan1 = world.index_of("lan1");
        world.reload(&format!("{FIRST}{}", SECOND.replace("wan1", "wan2")));
        world.await_shown("the third", |shown| shown.contains("wan2") && shown.contains("lan1"));
        await_that("the end of a port", || world.index_of("wan1").is_none());
        assert_eq!(world.index_of("lan1"), lan1);
        world.reload(FIRST);
        world.await_shown("the end of the second", |shown| !shown.contains("lan1"));
        await_that("the end of its ports", || world.index_of("lan1").is_none());
    }
    assert_eq!(world.index_of("lan0"), lan0);
    assert!(stream.arrived() > 100);
}

#[test]
fn who_watches_is_told_what_a_file_changed_as_of_any_other_change() {
    let Some(world) = World::new(FIRST) else { return };
    let socket = world.directory.join("control.sock");
    let mut command = Command::new(cargo_bin("ucake"));
    command.arg("--control").arg(&socket).arg("monitor");
    let mut monitor = command.stdout(Stdio::piped()).spawn().expect("the binary was built");
    let mut lines = BufReader::new(monitor.stdout.take().expect("piped")).lines();
    let mut next = move || lines.next().expect("it watches").expect("text");
    // It may not watch yet: until it does, changes go unseen.
    let up = |rate: u32| format!("{FIRST}up = \"bandwidth {rate}mbit\"\n");
    let (sender, first) = std::sync::mpsc::channel();
    let listener = thread::spawn(move || {
        sender.send(next()).expect("somebody waits");
        next
    });
    let (mut rate, mut seen) = (0, None);
    await_that("a change", || {
        rate += 1;
        world.reload(&up(rate));
        thread::sleep(Duration::from_millis(100));
        seen = first.try_recv().ok();
        seen.is_some()
    });
    let is_up = |line: &str, rate: u32| {
        line.starts_with(&format!("qdisc cake 8001: dev wan0 root refcnt 2 bandwidth {rate}Mbit "))
    };
    let mut line = seen.expect("awaited");
    let mut next = listener.join().expect("it listens");
    while !is_up(&line, rate) {
        line = next();
    }
    world.reload(&up(900));
    assert!(is_up(&next(), 900));
    world.reload(&format!("{}{SECOND}", up(900)));
    for start in ["qdisc cake 8004: dev lan1 root", "qdisc cake 8003: dev wan1 root"] {
        let line = next();
        assert!(line.starts_with(start), "{line}");
    }
    world.reload(&up(900));
    for start in ["deleted qdisc cake 8004: dev lan1 root", "deleted qdisc cake 8003: dev wan1"] {
        let line = next();
        assert!(line.starts_with(start), "{line}");
    }
    // What somebody deleted, and the file wants again.
    let mut command = Command::new(cargo_bin("ucake"));
    command.arg("--control").arg(&socket).args(["qdisc", "del", "dev", "wan0", "root"]);
    assert!(command.status().expect("the binary was built").success());
    world.reload(&up(901));
    for start in ["deleted qdisc cake 8001: ", "deleted qdisc pfifo 0: dev wan0", "qdisc cake "] {
        let line = next();
        assert!(line.starts_with(start), "{line}");
    }
    let _ = monitor.kill();
    let _ = monitor.wait();
}

#[test]
fn a_bridge_that_loses_a_device_ends_and_the_others_go_on() {
    let Some(world) = World::new(&format!("{FIRST}{SECOND}")) else { return };
    let stream = Stream::start(&world.ends);
    world.await_shown("both", |shown| shown.contains("wan1") && shown.contains("wan0"));
    world.middle.run(|| netlink::delete("wan1")).expect("it is there");
    world.await_shown("the end of one", |shown| !shown.contains("wan1"));
    assert!(world.log().contains("a bridge ended"), "{}", world.log());
    // Nobody else did.
    assert!(!world.log().contains("another one goes on"), "{}", world.log());
    assert!(world.shown().contains("wan0"));
    assert!(stream.arrived() > 0);
}

#[test]
fn what_was_read_last_counts_after_the_data_process_was_killed() {
    let Some(world) = World::new(FIRST) else { return };
    world.reload(&format!("{FIRST}up = \"bandwidth 6mbit\"\n{SECOND}"));
    let so = |shown: &str| shown.contains("bandwidth 6Mbit") && shown.contains("wan1");
    world.await_shown("both", so);
    let children = format!("/proc/{0}/task/{0}/children", world.ucake.id());
    let data = fs::read_to_string(children).expect("it runs");
    kill_process(pid(data.trim().parse().expect("one")), Signal::KILL).expect("its child");
    await_that("a word of it", || world.log().contains("another one goes on"));
    world.await_shown("both", so);
}

#[test]
fn a_service_manager_is_told_how_it_goes() {
    let Some(world) = World::new(FIRST) else { return };
    let await_told = |what: &str| World::await_told(&world.told, what);
    await_told("WATCHDOG=1");
    world.reload(&format!("{FIRST}up = \"bandwidth 6mbit\"\n"));
    await_told("RELOADING=1");
    await_told("READY=1");
    signal(&world.ucake, Signal::TERM);
    await_told("STOPPING=1");
}
