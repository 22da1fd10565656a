//! What tests of the running command share: namespaces, hosts that talk, a running ucake between two taps, and what
//! talks to its control socket.
#![allow(dead_code, reason = "each of those who share it uses a part")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Pid, Signal, kill_process};
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};
use ucake::io::tap::{Tap, TapOptions};
use ucake_cli::protocol::{self, Reply, Request};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 78, 0, 1));
pub(crate) const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 78, 0, 2));

/// A running ucake between `lan0` and `wan0`, and its control socket in a directory of its own.
pub(crate) struct World {
    pub(crate) middle: Namespace,
    pub(crate) directory: PathBuf,
    pub(crate) ucake: Option<Child>,
}

/// A namespace in which there can be taps; none, and a word about it, where that is not to be had. With
/// `UCAKE_REQUIRE_NETNS=1` it must be.
pub(crate) fn stage() -> Option<Namespace> {
    let namespace = Namespace::new("middle").map_err(|error| error.to_string());
    let usable = namespace.and_then(|namespace| {
        let probe = namespace.run(|| Tap::open("probe", &TapOptions::default()).map(drop));
        probe.map(|()| namespace).map_err(|error| error.to_string())
    });
    usable
        .inspect_err(|reason| {
            let required = std::env::var_os("UCAKE_REQUIRE_NETNS").is_some_and(|v| v == "1");
            assert!(!required, "UCAKE_REQUIRE_NETNS=1, but: {reason}");
            eprintln!("SKIPPED, nothing was tested: {reason}");
        })
        .ok()
}

/// A directory of its own for each who asks.
pub(crate) fn directory() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("ucake-test-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// Moves client's and server's device out of `middle` into namespaces of their own, with addresses.
pub(crate) fn ends_of(middle: &Namespace, devices: [&'static str; 2]) -> [Namespace; 2] {
    let [client, server] = devices;
    [(client, CLIENT), (server, SERVER)].map(|(device, address)| {
        let end = Namespace::new(device).expect("as before");
        let file = end.file().expect("it lives");
        middle.run(move || netlink::move_to(device, &file)).expect("it is there");
        end.run(move || {
            let addresses = vec![(address, 24)];
            let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
            netlink::configure(device, &options).expect("it obeys");
        });
        end
    })
}

impl World {
    pub(crate) fn new() -> Option<Self> {
        Some(Self { middle: stage()?, directory: directory(), ucake: None })
    }

    /// A world with ucake at work in it.
    pub(crate) fn running(words: &'static str) -> Option<Self> {
        let mut world = Self::new()?;
        world.ucake = Some(world.run("lan0", "wan0", words));
        Some(world)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Starts a ucake with the socket of this world, and waits until it answers or ends.
    pub(crate) fn run(&self, lan: &str, wan: &str, words: &str) -> Child {
        let mut command = Command::new(cargo_bin("ucake"));
        command.args(["run", &format!("tap:{lan}"), &format!("tap:{wan}"), "--up", words]);
        command.arg("--control").arg(self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.middle.run(move || command.spawn()).expect("the binary was built");
        await_that("an answer or an end", || {
            UnixStream::connect(self.socket()).is_ok()
                || child.try_wait().expect("it is our child").is_some()
        });
        child
    }

    /// Has `ucake` do something to the one that runs.
    pub(crate) fn tc(&self, line: &str) -> Output {
        self.command(cargo_bin("ucake").as_ref(), line).output().expect("the binary was built")
    }

    pub(crate) fn command(&self, program: &Path, line: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("--control").arg(self.socket()).args(line.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The same, if it must succeed; what it printed.
    pub(crate) fn done(&self, line: &str) -> String {
        let output = self.tc(line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    pub(crate) fn connect(&self) -> Talker {
        Talker::new(UnixStream::connect(self.socket()).expect("somebody listens"))
    }

    /// Stops ucake; its last table.
    pub(crate) fn stop(&mut self) -> String {
        let child = self.ucake.take().expect("it runs");
        signal(&child, Signal::TERM);
        let output = child.wait_with_output().expect("it is our child");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The hosts at both taps.
    pub(crate) fn ends(&self) -> [Namespace; 2] {
        ends_of(&self.middle, ["lan0", "wan0"])
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

/// A client that can say anything.
pub(crate) struct Talker(BufReader<UnixStream>);

impl Talker {
    pub(crate) fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("more than nothing");
        Self(BufReader::new(stream))
    }

    /// Whether all of it was taken.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).is_ok()
    }

    /// The next reply; `None` if there is none any more.
    pub(crate) fn hear(&mut self) -> Option<Reply> {
        let mut line = Vec::new();
        match self.0.read_until(b'\n', &mut line) {
            Ok(1..) => Some(protocol::read_reply(&line).expect("it is a reply")),
            Ok(_) => None,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("neither an answer nor an end: {error}"),
        }
    }

    /// What there is to hear just now: nothing, an end, or a reply.
    pub(crate) fn poll(&mut self) -> Option<Option<Reply>> {
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).expect("an option");
        let is_quiet = self.0.buffer().is_empty()
            && self.0.fill_buf().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        self.0.get_ref().set_nonblocking(false).expect("an option");
        (!is_quiet).then(|| self.hear())
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Reply {
        assert!(self.say(protocol::write_request(request).as_bytes()), "it listens");
        self.hear().expect("it answers")
    }

    pub(crate) fn is_answered(&mut self) -> bool {
        matches!(self.ask(&Request::Hello), Reply::Hello { .. })
    }
}

/// TCP from client to server over one connection until dropped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    pub(crate) received: Arc<AtomicU64>,
    broken: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start([client, server]: &[Namespace; 2]) -> Self {
        let to = SocketAddr::from((SERVER, 5001));
        let listener = server.run(move || TcpListener::bind(to)).expect("the address is ours");
        let source = client.run(move || TcpStream::connect_timeout(&to, PATIENCE));
        let mut source = source.expect("a connection");
        let (mut sink, _) = listener.accept().expect("a connection");
        let flag = || Arc::new(AtomicBool::new(false));
        let (stop, broken, received) = (flag(), flag(), Arc::new(AtomicU64::new(0)));
        let moment = Some(Duration::from_millis(20));
        source.set_write_timeout(moment).expect("more than nothing");
        sink.set_read_timeout(moment).expect("more than nothing");
        let (stopped, breaks) = (Arc::clone(&stop), Arc::clone(&broken));
        let feed = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // What is not taken in time is offered again.
                note(&breaks, source.write(&[7; 65_536]));
            }
        });
        let (stopped, breaks, count) =
            (Arc::clone(&stop), Arc::clone(&broken), Arc::clone(&received));
        let drain = thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                let read = note(&breaks, sink.read(&mut buffer));
                count.fetch_add(u64::try_from(read).expect("lengths fit"), Ordering::Relaxed);
            }
        });
        Self { stop, received, broken, threads: vec![feed, drain] }
    }

    /// Waits until so many more bytes arrived.
    pub(crate) fn goes_on_for(&self, bytes: u64) {
        let goal = self.received.load(Ordering::Relaxed) + bytes;
        await_that("traffic", || self.received.load(Ordering::Relaxed) >= goal);
        assert!(!self.broken.load(Ordering::Relaxed), "the connection broke");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// How much; 0 if there was no time, which is no fault.
fn note(broken: &AtomicBool, outcome: std::io::Result<usize>) -> usize {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    outcome.unwrap_or_else(|error| {
        if ![Interrupted, TimedOut, WouldBlock].contains(&error.kind()) {
            broken.store(true, Ordering::Relaxed);
        }
        0
    })
}

/// Clients that want all statistics ten times a second, as many as there may be.
pub(crate) struct Curious {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u32>>,
}

impl Curious {
    pub(crate) const CLIENTS: usize = 64;

    pub(crate) fn start(world: &World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |_| {
            let (mut talker, stop) = (world.connect(), Arc::clone(&stop));
            thread::spawn(move || {
                let mut answers = 0;
                while !stop.load(Ordering::Relaxed) {
                    let reply = talker.ask(&Request::Show { port: None, queues: false });
                    answers += u32::from(matches!(reply, Reply::Shown { .. }));
                    thread::sleep(Duration::from_millis(100));
                }
                answers
            })
        };
        let threads = (0..Self::CLIENTS).map(client).collect();
        Self { stop, threads }
    }

    /// How many answers each of them got.
    pub(crate) fn stop(self) -> Vec<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let answers = |thread: JoinHandle<u32>| thread.join().expect("it was answered");
        self.threads.into_iter().map(answers).collect()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(pid(child.id()), signal).expect("it is our child");
}

pub(crate) fn pid(number: u32) -> Pid {
    i32::try_from(number).ok().and_then(Pid::from_raw).expect("the number of a process")
}

pub(crate) fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        thread::sleep(Duration::from_millis(5));
    }
}
