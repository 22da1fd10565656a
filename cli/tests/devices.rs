//! Devices of a running ucake that are taken down, renamed, resized, moved, removed and made again.
//!
//! Where namespaces or taps are not to be had the tests say SKIPPED; with `UCAKE_REQUIRE_NETNS=1` they fail.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Signal, kill_process};
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};
use ucake::io::offload::{self, Offload};
use ucake_cli::protocol::{DeviceEvents, Reply, Request, State, Supervision};

mod world;

use world::{CLIENT, SERVER, Talker, await_that, directory, ends_of, pid, stage, text};

/// What a process may work in a second of idleness, in hundredths of it: one that spins has 100.
const IDLE: u64 = 30;

/// A running ucake between two ends that talk.
struct World {
    ends: [Namespace; 2],
    middle: Namespace,
    directory: PathBuf,
    ucake: Child,
}

impl World {
    /// Between two taps; `None`, aloud, where there can be none.
    fn between_taps() -> Option<Self> {
        Some(Self::between(stage()?, "tap", ["lan0", "wan0"]))
    }

    /// Between two devices with a wire to the ends.
    fn between_devices() -> Option<Self> {
        let middle = stage()?;
        middle.run(|| ["lan0", "wan0"].map(plug_in));
        Some(Self::between(middle, "packet", ["lan0-far", "wan0-far"]))
    }

    fn between(middle: Namespace, kind: &str, far: [&'static str; 2]) -> Self {
        let directory = directory();
        let log = File::create(directory.join("log")).expect("a file");
        let mut command = Command::new(cargo_bin("ucake"));
        command.args(["run", &format!("{kind}:lan0"), &format!("{kind}:wan0")]);
        command.args(["--up", "bandwidth 50mbit"]);
        command.arg("--control").arg(directory.join("control.sock"));
        command.env("RUST_LOG", "info").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let ucake = middle.run(move || command.spawn()).expect("a program");
        await_that("an answer", || UnixStream::connect(directory.join("control.sock")).is_ok());
        let ends = ends_of(&middle, far);
        let world = Self { ends, middle, directory, ucake };
        world.await_traffic();
        // Only what was seen up can be seen to go down.
        await_that("both to be up", || world.logged("the device is up") >= 2);
        world
    }

    /// A frame of this size each way, if it arrives.
    fn exchange(&self, size: usize) -> [bool; 2] {
        let [client, server] = &self.ends;
        let cross = |from: &Namespace, source: IpAddr, to: &Namespace, sink: IpAddr| {
            let bind = |address| move || UdpSocket::bind(SocketAddr::new(address, 7000));
            // An address is gone with its device.
            let (Ok(from), Ok(to)) = (from.run(bind(source)), to.run(bind(sink))) else {
                return false;
            };
            to.set_read_timeout(Some(Duration::from_millis(100))).expect("more than nothing");
            let _ = from.send_to(&vec![0; size], SocketAddr::new(sink, 7000));
            to.recv(&mut [0; 2000]).is_ok_and(|len| len == size)
        };
        [cross(client, CLIENT, server, SERVER), cross(server, SERVER, client, CLIENT)]
    }

    fn await_traffic(&self) {
        await_that("traffic", || self.exchange(100) == [true, true]);
    }

    /// Moves a device from the middle to an end, with the address of that.
    fn place(&self, device: &'static str, end: usize) {
        let file = self.ends[end].file().expect("it lives");
        self.middle.run(move || netlink::move_to(device, &file)).expect("it is there");
        let addresses = vec![([CLIENT, SERVER][end], 24)];
        let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
        self.ends[end].run(move || netlink::configure(device, &options)).expect("it obeys");
    }

    /// Takes a device of the middle up or down.
    fn set_up(&self, device: &'static str, up: bool) {
        let options = LinkOptions { up: Some(up), ..LinkOptions::default() };
        self.middle.run(move || netlink::configure(device, &options)).expect("it obeys");
    }

    fn resize(&self, device: &'static str, mtu: u32) {
        let options = LinkOptions { mtu: Some(mtu), ..LinkOptions::default() };
        self.middle.run(move || netlink::configure(device, &options)).expect("it obeys");
    }

    fn ask(&self, request: &Request) -> Option<Reply> {
        let stream = UnixStream::connect(self.directory.join("control.sock")).ok()?;
        let mut talker = Talker::new(stream);
        talker.say(ucake_cli::protocol::write_request(request).as_bytes()).then_some(())?;
        talker.hear()
    }

    fn supervision(&self) -> Option<Supervision> {
        match self.ask(&Request::Hello)? {
            Reply::Hello { supervision, .. } => supervision,
            other => panic!("no answer to that: {other:?}"),
        }
    }

    /// Waits until that has happened to devices.
    fn await_events(&self, what: &str, so: impl Fn(&DeviceEvents) -> bool) {
        await_that(what, || self.supervision().is_some_and(|it| so(&it.devices)));
    }

    /// What left through a port, by one of its names.
    fn sent(&self, port: &str) -> u64 {
        match self.ask(&Request::Show { port: Some(port.into()), queues: false }) {
            Some(Reply::Shown { disciplines }) => match &disciplines[..] {
                [one] => match &one.state {
                    State::Cake { stats, .. } => stats.sent_packets,
                    State::Pfifo { .. } => panic!("that is no CAKE"),
                },
                other => panic!("one was asked for: {other:?}"),
            },
            other => panic!("no answer to that: {other:?}"),
        }
    }

    fn shown(&self, line: &str) -> String {
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("--control").arg(self.directory.join("control.sock"));
        let output = command.args(line.split_whitespace()).output().expect("the binary was built");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).expect("our file")
    }

    /// Lines of the log with this in them.
    fn logged(&self, what: &str) -> usize {
        self.log().lines().filter(|line| line.contains(what)).count()
    }

    /// The supervisor and the data process.
    fn processes(&self) -> [u32; 2] {
        let mut data = None;
        await_that("a data process", || {
            data = self.supervision().map(|it| it.pid);
            data.is_some()
        });
        [self.ucake.id(), data.expect("awaited")]
    }

    /// Descriptors of both processes, once no client of ours is among them.
    fn descriptors(&self) -> [usize; 2] {
        let processes = self.processes();
        let count =
            |process| fs::read_dir(format!("/proc/{process}/fd")).expect("root may").count();
        let mut counts = processes.map(count);
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(20));
            let now = processes.map(count);
            counts = [counts[0].min(now[0]), counts[1].min(now[1])];
        }
        counts
    }

    /// Neither process does much for a second.
    fn assert_idle(&self) {
        let processes = self.processes();
        let before = processes.map(ticks);
        thread::sleep(Duration::from_secs(1));
        let after = processes.map(ticks);
        for (before, after) in before.into_iter().zip(after) {
            assert!(after - before <= IDLE, "{} of 100 in a second", after - before);
        }
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

/// A device with a wire to another one.
fn plug_in(name: &str) {
    netlink::add_veth(name, &format!("{name}-far")).expect("as before");
    let up = LinkOptions { up: Some(true), ..LinkOptions::default() };
    netlink::configure(name, &up).expect("it obeys");
}

/// Hundredths of a second that a process has worked so far.
fn ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = rest.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_link_that_goes_down_and_up_is_counted_and_told_once_and_traffic_is_back() {
    let Some(world) = World::between_devices() else { return };
    let before = world.processes();
    world.set_up("wan0", false);
    world.await_events("a word of it", |it| it.down == 1);
    assert_eq!(world.exchange(100), [false, false]);
    world.assert_idle();
    world.set_up("wan0", true);
    world.await_traffic();
    assert_eq!((world.processes(), world.logged("is down")), (before, 1));
}

#[test]
fn a_device_that_is_removed_is_waited_for_and_its_cake_goes_on() {
    let Some(world) = World::between_devices() else { return };
    let (processes, descriptors) = (world.processes(), world.descriptors());
    let sent = world.sent("wan0");
    assert!(sent > 0);
    world.middle.run(|| netlink::delete("wan0")).expect("it is there");
    world.await_events("a word of it", |it| it.gone == 1);
    assert!(world.shown("qdisc show dev wan0").contains("bandwidth 50Mbit"));
    assert!(world.sent("wan0") >= sent);
    world.assert_idle();
    world.middle.run(|| plug_in("wan0"));
    let begun = Instant::now();
    world.await_events("the device", |it| it.back == 1);
    eprintln!("at work again after {:?}", begun.elapsed());
    world.place("wan0-far", 1);
    world.await_traffic();
    assert!(world.sent("wan0") > sent);
    assert!(world.shown("-d qdisc show dev wan0").contains("devices 1 gone, 1 back, "));
    assert_eq!(world.processes(), processes);
    assert_eq!(world.descriptors(), descriptors);
    assert_eq!((world.logged("is gone"), world.logged("is back")), (1, 1));
}

#[test]
fn a_tap_that_somebody_deletes_is_made_again() {
    let Some(world) = World::between_taps() else { return };
    let (processes, descriptors) = (world.processes(), world.descriptors());
    let sent = world.sent("wan0");
    for round in 1..=3 {
        world.ends[1].run(|| netlink::delete("wan0")).expect("it is there");
        let begun = Instant::now();
        world.await_events("another one", |it| (it.gone, it.back) == (round, round));
        eprintln!("made again after {:?}", begun.elapsed());
        world.place("wan0", 1);
        world.await_traffic();
    }
    world.assert_idle();
    assert!(world.sent("wan0") > sent);
    assert_eq!(world.processes(), processes);
    assert_eq!(world.descriptors(), descriptors);
}

#[test]
fn a_renamed_device_goes_on_and_is_found_by_either_name() {
    let Some(world) = World::between_devices() else { return };
    let processes = world.processes();
    world.set_up("wan0", false);
    world.middle.run(|| netlink::rename("wan0", "uplink")).expect("it is down");
    world.set_up("uplink", true);
    world.await_events("a word of it", |it| it.renamed == 1);
    world.await_traffic();
    for name in ["wan0", "uplink", "packet:wan0"] {
        assert!(world.shown(&format!("qdisc show dev {name}")).contains("bandwidth 50Mbit"));
    }
    assert!(world.shown("qdisc show").contains(" dev uplink "));
    assert_eq!((world.processes(), world.logged("was renamed")), (processes, 1));
    // Whoever starts next knows as well.
    kill_process(pid(processes[1]), Signal::KILL).expect("its child");
    await_that("the next one", || world.supervision().is_some_and(|it| it.died == 1));
    assert!(world.shown("qdisc show").contains(" dev uplink "));
    world.await_traffic();
}

#[test]
fn frames_longer_than_a_changed_mtu_are_dropped_and_after_the_next_change_they_pass() {
    let Some(world) = World::between_devices() else { return };
    await_that("long frames", || world.exchange(1400) == [true, true]);
    world.resize("wan0", 1000);
    world.await_events("a word of it", |it| it.resized == 1);
    assert!(!world.exchange(1400)[0]);
    world.await_traffic();
    world.resize("wan0", 1500);
    world.await_events("another word", |it| it.resized == 2);
    await_that("long frames", || world.exchange(1400) == [true, true]);
    assert_eq!(world.logged("another mtu"), 2);
}

#[test]
fn a_device_that_is_moved_away_and_back_is_at_work_again() {
    let Some(world) = World::between_devices() else { return };
    let (processes, descriptors) = (world.processes(), world.descriptors());
    let elsewhere = Namespace::new("elsewhere").expect("as before");
    for round in 1..=2 {
        let file = elsewhere.file().expect("it lives");
        world.middle.run(move || netlink::move_to("wan0", &file)).expect("it is there");
        world.await_events("a word of it", |it| it.gone == round);
        assert_eq!(world.exchange(100), [false, false]);
        let file = world.middle.file().expect("it lives");
        elsewhere.run(move || netlink::move_to("wan0", &file)).expect("it is there");
        world.set_up("wan0", true);
        world.await_events("the device", |it| it.back == round);
        world.await_traffic();
    }
    assert_eq!(world.processes(), processes);
    assert_eq!(world.descriptors(), descriptors);
}

#[test]
fn a_tap_that_is_moved_goes_on_where_it_is() {
    let Some(world) = World::between_taps() else { return };
    // Both went to their ends, before they were first looked at or after.
    let before = world.logged("moved to another network namespace") as u64;
    world.await_events("a word of it", |it| it.moved == before);
    let file = world.middle.file().expect("it lives");
    world.ends[1].run(move || netlink::move_to("wan0", &file)).expect("it is there");
    world.await_events("another word", |it| it.moved == before + 1);
    world.place("wan0", 1);
    world.await_events("a third word", |it| it.moved == before + 2);
    world.await_traffic();
    let seen = world.supervision().expect("it answers").devices;
    assert_eq!((seen.gone, seen.back), (0, 0));
}

#[test]
fn offloads_that_somebody_changes_are_told_once_and_nothing_breaks() {
    let Some(world) = World::between_devices() else { return };
    let changes = [
        (Offload::ReceiveJoining, true, "generic-receive-offload on"),
        (Offload::TcpSegmentation, false, "tcp-segmentation-offload off"),
        (Offload::ReceiveJoining, false, "generic-receive-offload off"),
        (Offload::TcpSegmentation, true, "tcp-segmentation-offload on"),
    ];
    for ((offload, on, words), count) in changes.into_iter().zip(1..) {
        world.middle.run(move || offload::set("wan0", offload, on)).expect("it can");
        world.await_events("a word of it", |it| it.offloads == count);
        assert_eq!(world.logged(words), 1, "{words}");
        world.await_traffic();
    }
}

#[test]
fn a_link_that_flaps_a_hundred_times_is_borne() {
    let Some(world) = World::between_devices() else { return };
    let (processes, descriptors) = (world.processes(), world.descriptors());
    for _ in 0..100 {
        world.set_up("wan0", false);
        world.set_up("wan0", true);
    }
    world.await_traffic();
    world.assert_idle();
    assert_eq!(world.processes(), processes);
    assert_eq!(world.descriptors(), descriptors);
    assert!(world.log().lines().count() < 150, "that is too much");
}

#[test]
fn a_data_process_that_starts_while_a_device_is_away_waits_for_it_too() {
    for world in [World::between_devices(), World::between_taps()].into_iter().flatten() {
        let [_, data] = world.processes();
        let is_tap = world.middle.run(|| netlink::link("wan0").is_err());
        let holder = if is_tap { &world.ends[1] } else { &world.middle };
        holder.run(|| netlink::delete("wan0")).expect("it is there");
        if !is_tap {
            world.await_events("a word of it", |it| it.gone == 1);
        }
        kill_process(pid(data), Signal::KILL).expect("its child");
        await_that("the next one", || world.supervision().is_some_and(|it| it.died == 1));
        if is_tap {
            world.await_events("another one", |it| it.back == 1);
            world.place("wan0", 1);
        } else {
            world.middle.run(|| plug_in("wan0"));
            world.place("wan0-far", 1);
        }
        world.await_traffic();
        assert_eq!(world.supervision().expect("it answers").died, 1);
    }
}
