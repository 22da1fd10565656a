//! A running ucake whose parts are ended, stopped, exchanged and looked at from outside.
//!
//! Where namespaces or taps are not to be had the tests say SKIPPED; with `UCAKE_REQUIRE_NETNS=1` they fail.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};
use ucake_cli::protocol::{self, Reply, Request, State, Supervision};

mod world;

use world::{
    CLIENT, Load, PATIENCE, SERVER, await_that, directory, ends_of, pid, signal, stage, text,
};

/// Traffic has to be back in this time after a data process was killed.
const BACK: Duration = Duration::from_millis(200);

/// A running ucake between two ends that talk.
struct World {
    ends: [Namespace; 2],
    /// Keeps the namespace in which the taps were made.
    _middle: Namespace,
    directory: PathBuf,
    program: PathBuf,
    ucake: Option<Child>,
}

/// What the ports are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Taps,
    PacketSockets,
}

impl World {
    /// `None`, aloud, where there can be none.
    fn new(words: &str) -> Option<Self> {
        Self::with(Kind::Taps, words, &[])
    }

    fn with(kind: Kind, words: &str, more: &[&str]) -> Option<Self> {
        let (middle, directory) = (stage()?, directory());
        // A copy of its own, to be exchanged.
        let program = directory.join("ucake");
        copy(&cargo_bin("ucake"), &program);
        let mut command = Command::new(&program);
        let ports = match kind {
            Kind::Taps => ["tap:lan0", "tap:wan0"],
            Kind::PacketSockets => {
                middle.run(|| ["lan0", "wan0"].map(plug_in));
                ["packet:lan0", "packet:wan0"]
            }
        };
        command.arg("run").args(ports).args(["--up", words]).args(more);
        command.arg("--control").arg(directory.join("control.sock"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ucake = Some(middle.run(move || command.spawn()).expect("a program"));
        await_that("an answer", || UnixStream::connect(directory.join("control.sock")).is_ok());
        let far = if kind == Kind::Taps { ["lan0", "wan0"] } else { ["lan0-far", "wan0-far"] };
        let ends = ends_of(&middle, far);
        Some(Self { ends, _middle: middle, directory, program, ucake })
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    fn child(&self) -> &Child {
        self.ucake.as_ref().expect("it runs")
    }

    /// Has `ucake` do something to the one that runs.
    fn ucake(&self, line: &str) -> Output {
        let mut command = Command::new(cargo_bin("ucake"));
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let socket = self.socket();
        let socket = socket.to_str().expect("a path of ours");
        // Verbs of tc have their options before them.
        let place = if words.first() == Some(&"upgrade") { words.len() } else { 0 };
        words.splice(place..place, ["--control", socket]);
        command.args(words).output().expect("the binary was built")
    }

    fn done(&self, line: &str) -> String {
        let output = self.ucake(line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Asks once; `None` if there is no answer just now.
    fn ask(&self, request: &Request) -> Option<Reply> {
        let stream = UnixStream::connect(self.socket()).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).expect("more than nothing");
        (&stream).write_all(protocol::write_request(request).as_bytes()).ok()?;
        let mut line = Vec::new();
        BufReader::new(&stream).read_until(b'\n', &mut line).ok()?;
        protocol::read_reply(&line).ok()
    }

    /// What became of the data processes, and the supervisor's number.
    fn supervision(&self) -> Option<(Supervision, u32)> {
        match self.ask(&Request::Hello)? {
            Reply::Hello { supervision, pid, .. } => Some((supervision?, pid)),
            other => panic!("no answer to that: {other:?}"),
        }
    }

    /// The data process that answers now.
    fn data(&self) -> Pid {
        let mut found = None;
        await_that("a data process", || {
            found = self.supervision();
            found.is_some()
        });
        pid(found.expect("awaited").0.pid)
    }

    /// Waits for things to be so.
    fn await_supervision(&self, what: &str, so: impl Fn(&Supervision) -> bool) -> Supervision {
        let mut last = None;
        await_that(what, || {
            last = self.supervision();
            last.as_ref().is_some_and(|(supervision, _)| so(supervision))
        });
        last.expect("awaited").0
    }

    /// Packets that left through WAN.
    fn sent(&self) -> u64 {
        let shown = self.ask(&Request::Show { port: Some("wan0".into()), queues: false });
        match shown {
            Some(Reply::Shown { disciplines }) => match &disciplines[0].state {
                State::Cake { stats, .. } => stats.sent_packets,
                State::Pfifo { stats, .. } => stats.sent_packets,
            },
            other => panic!("not shown: {other:?}"),
        }
    }

    /// Stops ucake; what it said on both streams.
    fn stop(&mut self) -> (String, String) {
        let child = self.ucake.take().expect("it runs");
        signal(&child, Signal::TERM);
        let output = child.wait_with_output().expect("our child");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(!self.socket().exists());
        (text(&output.stdout), text(&output.stderr))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut child) = self.ucake.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Copies a program that is to be run. Not in this process: while others are started the descriptor that it is written
/// through would be theirs as well for a moment, and nothing that somebody may write is run.
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status();
    assert!(done.is_ok_and(|status| status.success()), "{} is copied", to.display());
}

/// A device with a wire to another one.
fn plug_in(name: &str) {
    netlink::add_veth(name, &format!("{name}-far")).expect("as before");
    let up = LinkOptions { up: Some(true), ..LinkOptions::default() };
    netlink::configure(name, &up).expect("it obeys");
}

/// A datagram every millisecond from client to server until dropped: a clock that shows when nothing passes.
struct Ticks {
    stop: Arc<AtomicBool>,
    /// The longest time between two arrivals, in microseconds, since it was last taken.
    gap: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Ticks {
    fn start([client, server]: &[Namespace; 2]) -> Self {
        let sink = server.run(|| UdpSocket::bind((SERVER, 9))).expect("the address is ours");
        let source = client.run(|| UdpSocket::bind((CLIENT, 0))).expect("the address is ours");
        sink.set_read_timeout(Some(Duration::from_millis(5))).expect("more than nothing");
        let (stop, gap) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let stopped = Arc::clone(&stop);
        let feed = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let _ = source.send_to(&[0; 64], (SERVER, 9));
                thread::sleep(Duration::from_millis(1));
            }
        });
        let (stopped, longest) = (Arc::clone(&stop), Arc::clone(&gap));
        let watch = thread::spawn(move || {
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let arrived = sink.recv(&mut [0; 64]).is_ok();
                let micros = u64::try_from(last.elapsed().as_micros()).expect("it fits");
                longest.fetch_max(micros, Ordering::Relaxed);
                if arrived {
                    last = Instant::now();
                }
            }
        });
        Self { stop, gap, threads: vec![feed, watch] }
    }

    fn take_gap(&self) -> Duration {
        Duration::from_micros(self.gap.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A field of `/proc/PID/status`.
fn status(process: Pid, field: &str) -> String {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = fs::read_to_string(path).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.expect("the kernel tells").trim().to_owned()
}

#[test]
fn a_data_process_killed_under_load_is_replaced_before_anybody_notices() {
    killed_under_load(Kind::Taps);
}

#[test]
fn so_it_is_between_packet_sockets() {
    killed_under_load(Kind::PacketSockets);
}

fn killed_under_load(kind: Kind) {
    let Some(mut world) = World::with(kind, "bandwidth 20mbit", &[]) else { return };
    let (load, ticks) = (Load::start(&world.ends), Ticks::start(&world.ends));
    load.goes_on_for(500_000);
    world.done("qdisc change dev wan0 root cake bandwidth 18mbit overhead 38");
    load.goes_on_for(1_000_000);
    ticks.take_gap();
    load.goes_on_for(1_000_000);
    let undisturbed = ticks.take_gap();
    // What was said to be done is done, however soon afterwards.
    world.done("qdisc change dev wan0 root cake mpu 84");
    let mut gaps = Vec::new();
    for killed in 1..=3 {
        let before = world.sent();
        kill_process(world.data(), Signal::KILL).expect("it runs");
        world.await_supervision("the next one", |all| all.died == killed);
        load.goes_on_for(1_000_000);
        gaps.push(ticks.take_gap());
        let after = world.sent();
        assert!(after > before, "{after} after {before}");
        let line = world.done("qdisc show dev wan0");
        assert!(
            line.contains(" bandwidth 18Mbit ") && line.contains(" overhead 38 mpu 84"),
            "{line}"
        );
        // Rare enough to be no series.
        thread::sleep(Duration::from_millis(300));
    }
    println!("longest silence: undisturbed {undisturbed:?}, around each kill {gaps:?}");
    assert!(gaps.iter().all(|gap| *gap < BACK), "{gaps:?}");
    let details = world.done("-s -d qdisc show dev wan0");
    assert!(details.contains(" after 3 died, 0 hung, 0 upgraded (0 failed), "), "{details}");
    let json = world.done("-j -d qdisc show dev wan0");
    assert!(json.contains("\"died\":3,\"hung\":0"), "{json}");
    let port = &serde_json::from_str::<serde_json::Value>(&json).expect("JSON")[0]["ucake"]["port"];
    assert!(port["written_bytes"].as_u64() > Some(3_000_000), "{port}");
    // 3 MB at 18 Mbit/s is a wait for each of 2000 frames, whoever waited.
    assert!(port["late"]["wake_ups"].as_u64() > Some(1_000), "{port}");
    drop((load, ticks));
    let (table, log) = world.stop();
    assert_eq!(
        log.lines().filter(|line| line.contains("died; another one goes on")).count(),
        3,
        "{log}"
    );
    // 3.5 MB went through in all, whoever counted them.
    let line =
        table.lines().find(|line| line.starts_with("port wan0: ")).expect("the table has it");
    let wrote = line.split("wrote ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(wrote.expect("bytes").parse::<u64>().expect("bytes") > 3_500_000, "{line}");
    assert!(line.contains("lost before reading 0)"), "{line}");
}

#[test]
fn a_data_process_that_hangs_is_replaced_within_two_seconds() {
    let Some(world) = World::new("bandwidth 20mbit") else { return };
    let load = Load::start(&world.ends);
    load.goes_on_for(500_000);
    let (hanging, begun) = (world.data(), Instant::now());
    kill_process(hanging, Signal::STOP).expect("it runs");
    // The one that hangs has the socket too, and answers nobody: the number of the next one tells.
    await_that("its end", || test_kill_process(hanging).is_err());
    let ended = begun.elapsed();
    let supervision = world.await_supervision("the next one", |all| all.hung == 1);
    let replaced = begun.elapsed();
    println!("a process that hangs was ended after {ended:?} and replaced after {replaced:?}");
    assert!(replaced < Duration::from_secs(2) && supervision.died == 0, "{replaced:?}");
    load.goes_on_for(1_000_000);
    // Both stopped, as a machine may be: nobody hangs.
    let (data, supervisor) = (world.data(), pid(world.child().id()));
    for signal in [Signal::STOP, Signal::CONT] {
        for process in [supervisor, data] {
            kill_process(process, signal).expect("it runs");
        }
        thread::sleep(Duration::from_secs(3));
    }
    assert_eq!(world.await_supervision("an answer", |_| true).hung, 1);
    load.goes_on_for(500_000);
}

#[test]
fn an_upgrade_keeps_the_supervisors_number_the_connections_the_words_and_the_counts() {
    let Some(mut world) = World::new("bandwidth 20mbit") else { return };
    let (load, ticks) = (Load::start(&world.ends), Ticks::start(&world.ends));
    load.goes_on_for(500_000);
    world.done("qdisc change dev wan0 root cake bandwidth 18mbit");
    load.goes_on_for(1_000_000);
    let (before, old) = (world.sent(), world.data());
    let newer = world.directory.join("newer");
    copy(&cargo_bin("ucake"), &newer);
    fs::rename(&newer, &world.program).expect("ours");
    ticks.take_gap();
    assert_eq!(world.done("upgrade"), "");
    load.goes_on_for(500_000);
    println!("longest silence around an upgrade: {:?}", ticks.take_gap());
    let (supervision, supervisor) = world.supervision().expect("it answers");
    assert_eq!((supervisor, supervision.upgraded), (world.child().id(), 1));
    assert!(pid(supervision.pid) != old && supervision.died == 0, "{supervision:?}");
    assert!(world.sent() > before);
    assert!(world.done("qdisc show dev wan0").contains(" bandwidth 18Mbit "));
    let exe = fs::read_link(format!("/proc/{supervisor}/exe")).expect("it runs");
    assert_eq!(exe, world.program, "not a file that is gone");

    // What is no program, or none that could go on, changes nothing.
    for (bad, said) in [("#!/bin/sh\necho too old >&2; exit 1\n", "too old"), ("\0\0", "ucake")] {
        fs::write(world.directory.join("bad"), bad).expect("a file");
        copy(&world.directory.join("bad"), &newer);
        fs::set_permissions(&newer, fs::metadata(&world.program).expect("ours").permissions())
            .expect("ours");
        fs::rename(&newer, &world.program).expect("ours");
        let refused = world.ucake("upgrade");
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(text(&refused.stderr).contains("the old one goes on"), "{}", text(&refused.stderr));
        load.goes_on_for(300_000);
    }
    // What ended one that was exchanged starts one of the same kind, whatever stands there now.
    kill_process(world.data(), Signal::KILL).expect("it runs");
    let supervision = world.await_supervision("the next one", |all| all.died == 1);
    assert_eq!((supervision.upgraded, supervision.upgrades_failed), (1, 2));
    load.goes_on_for(300_000);
    drop((load, ticks));
    let (_, log) = world.stop();
    assert!(log.contains("too old"), "{log}");
}

#[test]
fn only_root_and_its_own_user_may_upgrade() {
    let Some(world) = World::new("") else { return };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Whoever may use the socket, but is somebody else.
    fs::set_permissions(world.socket(), std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .expect("ours");
    let strange = Path::new("/tmp").join(format!("ucake-stranger-{}", std::process::id()));
    copy(&cargo_bin("ucake"), &strange);
    let mut stranger = Command::new(&strange);
    std::os::unix::process::CommandExt::uid(&mut stranger, 65_533);
    let output = stranger.args(["upgrade", "--control"]).arg(world.socket()).output();
    fs::remove_file(&strange).expect("ours");
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not permitted"), "{}", text(&output.stderr));
    assert_eq!(world.supervision().expect("it answers").0.upgraded, 0);
}

#[test]
fn a_series_of_deaths_ends_in_a_pass_through_and_the_words_are_not_forgotten() {
    let Some(mut world) = World::new("bandwidth 20mbit") else { return };
    let (load, ticks) = (Load::start(&world.ends), Ticks::start(&world.ends));
    load.goes_on_for(500_000);
    let kill = |died| {
        let data = world.data();
        kill_process(data, Signal::KILL).expect("it runs");
        world.await_supervision("the next one", |all| all.died == died)
    };
    for died in 1..5 {
        assert!(!kill(died).passing_through);
    }
    assert!(kill(5).passing_through);
    let line = world.done("-d qdisc show dev wan0");
    assert!(line.starts_with("qdisc pfifo 0: ") && line.contains("passing through"), "{line}");
    ticks.take_gap();
    load.goes_on_for(5_000_000);
    assert!(ticks.take_gap() < BACK);
    // Not even that goes well.
    for died in 6..10 {
        assert!(kill(died).passing_through);
    }
    let supervisor = world.child().id();
    let last = kill(10);
    assert_eq!(last.pid, supervisor, "it passes frames on itself");
    assert!(last.passing_through);
    load.goes_on_for(5_000_000);
    drop((load, ticks));
    let (table, log) = world.stop();
    assert!(table.contains("qdisc pfifo 0: dev wan0"), "{table}");
    assert!(
        log.contains("without CAKE for a while") && log.contains("the supervisor passes"),
        "{log}"
    );
}

#[test]
fn a_data_process_does_not_outlive_its_supervisor() {
    let Some(mut world) = World::new("") else { return };
    let data = world.data();
    let mut supervisor = world.ucake.take().expect("it runs");
    supervisor.kill().expect("our child");
    supervisor.wait().expect("our child");
    await_that("the end of the data process", || test_kill_process(data).is_err());
    let end = &world.ends[0];
    let gone = end.run(|| netlink::link("lan0").is_err());
    assert!(gone, "nobody holds the tap");
}

#[test]
fn a_data_process_has_no_rights_and_holds_nothing_but_what_it_needs() {
    let Some(world) = World::new("bandwidth 20mbit") else { return };
    let data = world.data();
    let root = rustix::process::geteuid().is_root();
    if root {
        let nobody = User::nobody();
        assert_eq!(status(data, "Uid").split('\t').collect::<Vec<_>>(), [nobody.uid.as_str(); 4]);
        assert_eq!(status(data, "Gid").split('\t').collect::<Vec<_>>(), [nobody.gid.as_str(); 4]);
        assert_eq!(status(data, "Groups"), "");
        assert_eq!(status(data, "CapBnd"), "0000000000000000");
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(data, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(data, "NoNewPrivs"), "1");
    let filtered = ["x86_64", "aarch64", "riscv64"].contains(&std::env::consts::ARCH);
    if filtered && Path::new("/proc/sys/kernel/seccomp").exists() {
        assert_eq!(status(data, "Seccomp"), "2");
    }
    let folder = format!("/proc/{}/fd", data.as_raw_nonzero());
    let mut kinds: Vec<String> = fs::read_dir(folder)
        .expect("root may look")
        .map(|entry| fs::read_link(entry.expect("it runs").path()).expect("it runs"))
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| !target.starts_with("pipe:"))
        .collect();
    kinds.sort();
    let files = kinds.iter().filter(|kind| kind.starts_with('/')).collect::<Vec<_>>();
    assert_eq!(files, ["/dev/net/tun"; 2], "{kinds:?}");
}

#[test]
fn in_a_user_namespace_it_gives_up_what_it_can_and_says_what_it_cannot() {
    let Some(world) = World::new("") else { return };
    let socket = world.directory.join("other.sock");
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--net"]).arg(cargo_bin("ucake"));
    unshare.args(["run", "tap:lan0", "tap:wan0", "--control"]).arg(&socket);
    let spawned =
        unshare.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else { return eprintln!("SKIPPED: there is no unshare") };
    await_that("an answer or an end", || {
        UnixStream::connect(&socket).is_ok() || child.try_wait().expect("our child").is_some()
    });
    if child.try_wait().expect("our child").is_some() {
        let output = child.wait_with_output().expect("our child");
        return eprintln!("SKIPPED: {}", text(&output.stderr));
    }
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let data = fs::read_to_string(children).expect("it runs");
    let data = pid(data.trim().parse().expect("one"));
    await_that("the end of its rights", || status(data, "NoNewPrivs") == "1");
    for set in ["CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(data, set), "0000000000000000", "{set}");
    }
    signal(&child, Signal::TERM);
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success());
    let log = text(&output.stderr);
    assert!(log.contains("could not give this up") && log.contains("user: "), "{log}");
}

/// The user that data processes are.
struct User {
    uid: String,
    gid: String,
}

impl User {
    fn nobody() -> Self {
        let user = ucake_cli::sandbox::User::find("nobody").expect("everybody has one");
        Self { uid: user.uid.to_string(), gid: user.gid.to_string() }
    }
}

#[test]
fn without_a_supervisor_there_is_one_process_and_no_upgrade() {
    let Some(mut world) = World::with(Kind::Taps, "bandwidth 20mbit", &["--no-supervisor"]) else {
        return;
    };
    let load = Load::start(&world.ends);
    load.goes_on_for(500_000);
    match world.ask(&Request::Hello) {
        Some(Reply::Hello { supervision, pid, .. }) => {
            assert_eq!((supervision, pid), (None, world.child().id()));
        }
        other => panic!("no answer: {other:?}"),
    }
    let refused = world.ucake("upgrade");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("without a supervisor"), "{}", text(&refused.stderr));
    kill_process(pid(world.child().id()), Signal::USR2).expect("our child");
    load.goes_on_for(500_000);
    drop(load);
    let (table, log) = world.stop();
    assert!(table.contains("lost before reading 0)") && log.contains("no upgrade"), "{log}");
}
