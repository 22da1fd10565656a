//! Two namespaces joined by two taps, a bridge between them, and TCP through it. The tests and
//! `tests/bench/link.rs` share it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use ucake::io::batch::Coalescing;
use ucake::io::driver::{Bridge, BridgeError, Command, Snapshot, run};
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};
use ucake::io::pool::FrameBuf;
use ucake::io::port::Port;
use ucake::io::tap::{Tap, TapOptions, TapPort};
use ucake::io::timer::Timer;
use ucake::qdisc::{Cake, Config, Discipline, Entropy};
use ucake::units::FrameLen;

/// Largest frame of the taps, Ethernet header included.
pub(crate) const MTU_FRAME: u32 = 1514;
/// How long anything may take that takes no time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How soon senders and receivers notice that they shall stop.
const ATTENTION: Duration = Duration::from_millis(20);
const PORT: u16 = 5001;

/// The version of IP that a test uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const fn client(self) -> IpAddr {
        self.host(1)
    }

    pub(crate) const fn server(self) -> IpAddr {
        self.host(2)
    }

    pub(crate) const fn host(self, number: u8) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::new(10, 77, 0, number)),
            Self::V6 => IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number as u16)),
        }
    }
}

/// "client" and "server", each with a tap whose other side is ours: `lan0` and `wan0`.
pub(crate) struct Lab {
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
}

/// A bridge on a thread of its own.
pub(crate) struct Running<D> {
    commands: mpsc::Sender<Command<D>>,
    thread: JoinHandle<Result<(), BridgeError>>,
}

/// TCP from client to server, until dropped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let [client, server] =
            ["client", "server"].map(|label| Namespace::new(label).expect("namespaces are there"));
        let lab = Self { client, server };
        // Addresses are ours: nobody else could have them, and asking takes two seconds.
        lab.set("ipv6/conf/default/accept_dad", "0");
        lab
    }

    /// Writes a sysctl under `net` in both namespaces.
    pub(crate) fn set(&self, sysctl: &'static str, value: &'static str) {
        for namespace in [&self.client, &self.server] {
            let file = format!("/proc/sys/net/{sysctl}");
            namespace.run(move || {
                std::fs::write(&file, value).unwrap_or_else(|e| panic!("{file}: {e}"));
            });
        }
    }

    /// Opens both taps and gives them addresses.
    pub(crate) fn taps(&self) -> [Tap; 2] {
        [(&self.client, "lan0", 1), (&self.server, "wan0", 2)].map(|(namespace, name, host)| {
            namespace.run(move || {
                let tap = Tap::open(name, &TapOptions::default()).expect("a tap opens");
                let addresses = vec![(Family::V4.host(host), 24), (Family::V6.host(host), 64)];
                let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
                netlink::configure(name, &options).expect("the tap is set up");
                await_address(Family::V6.host(host));
                tap
            })
        })
    }

    /// A bridge between the two taps with `config` both ways.
    pub(crate) fn bridge(&self, config: Config) -> Running<Cake<FrameBuf>> {
        self.bridge_of(move || cake(config))
    }

    /// A bridge between the two taps with some discipline both ways.
    pub(crate) fn bridge_of<D: Discipline<FrameBuf> + 'static>(
        &self,
        discipline: impl Fn() -> D + Send + 'static,
    ) -> Running<D> {
        self.bridge_with(Coalescing::default(), discipline)
    }

    /// The same, and what it joins on the way out.
    pub(crate) fn bridge_with<D: Discipline<FrameBuf> + 'static>(
        &self,
        coalescing: Coalescing,
        discipline: impl Fn() -> D + Send + 'static,
    ) -> Running<D> {
        let taps = self.taps();
        let ports = move || {
            taps.map(|tap| -> Box<dyn Port> { Box::new(TapPort::new(tap).expect("tap at work")) })
        };
        Running::start(ports, coalescing, discipline)
    }

    /// Starts `flows` TCP connections that carry as much as they can.
    pub(crate) fn load(&self, flows: usize) -> Load {
        self.load_with(flows, 256 * 1024, None)
    }

    /// Starts connections that send writes of `bytes`, without Nagle's algorithm: so many each millisecond, or as
    /// many as they can.
    pub(crate) fn load_with(
        &self,
        flows: usize,
        bytes: usize,
        per_millisecond: Option<usize>,
    ) -> Load {
        let to = SocketAddr::from((Family::V4.server(), PORT));
        let listener = self.server.run(move || TcpListener::bind(to)).expect("the address is ours");
        let mut load = Load {
            stop: Arc::default(),
            received: Arc::default(),
            threads: Vec::with_capacity(2 * flows),
        };
        for _ in 0..flows {
            let source = self.client.run(move || TcpStream::connect_timeout(&to, PATIENCE));
            let (sink, _) = listener.accept().expect("a connection");
            load.carry(source.expect("a connection"), sink, bytes, per_millisecond);
        }
        load
    }
}

/// An IPv6 address is not ours at once: the kernel sees to it when it has time.
pub(crate) fn await_address(address: IpAddr) {
    let end = Instant::now() + PATIENCE;
    while UdpSocket::bind((address, 0)).is_err() {
        assert!(Instant::now() < end, "{address} does not become ours");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn cake(config: Config) -> Cake<FrameBuf> {
    Cake::new(config, FrameLen(MTU_FRAME), Entropy::from_seed(1))
}

impl Load {
    /// Bytes that arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Waits until so many bytes arrived.
    pub(crate) fn wait_for(&self, bytes: u64) {
        let end = Instant::now() + PATIENCE;
        while self.received() < bytes {
            assert!(Instant::now() < end, "{} of {bytes} bytes arrived", self.received());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn carry(
        &mut self,
        mut source: TcpStream,
        mut sink: TcpStream,
        bytes: usize,
        per_millisecond: Option<usize>,
    ) {
        source.set_nodelay(true).expect("TCP can");
        source.set_write_timeout(Some(ATTENTION)).expect("more than nothing");
        sink.set_read_timeout(Some(ATTENTION)).expect("more than nothing");
        let stop = Arc::clone(&self.stop);
        let chunk = vec![7; bytes];
        self.spawn("source", move || {
            let (mut written, mut next) = (0, Instant::now());
            while !stop.load(Ordering::Relaxed) && goes_on(source.write(&chunk)).is_some() {
                written += 1;
                if per_millisecond.is_some_and(|most| written % most == 0) {
                    next += Duration::from_millis(1);
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
        });
        let (stop, received) = (Arc::clone(&self.stop), Arc::clone(&self.received));
        let mut buffer = vec![0; 256 * 1024];
        self.spawn("sink", move || {
            while !stop.load(Ordering::Relaxed) {
                let Some(len) = goes_on(sink.read(&mut buffer)) else { return };
                received.fetch_add(u64::try_from(len).expect("lengths fit"), Ordering::Relaxed);
            }
        });
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        self.threads.push(thread.expect("a thread"));
    }
}

/// Bytes carried, none if it took too long; `None` if there is no connection any more.
fn goes_on(outcome: io::Result<usize>) -> Option<usize> {
    match outcome {
        Ok(len) => Some(len),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(0),
        Err(_) => None,
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of one was printed already.
            let _ = thread.join();
        }
    }
}

impl<D: Discipline<FrameBuf> + 'static> Running<D> {
    /// A bridge between two ports, which are made where it runs.
    pub(crate) fn start(
        ports: impl FnOnce() -> [Box<dyn Port>; 2] + Send + 'static,
        coalescing: Coalescing,
        discipline: impl Fn() -> D + Send + 'static,
    ) -> Self {
        let (commands, mut inbox) = mpsc::channel(4);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            runtime.expect("a runtime").block_on(async {
                let [lan, wan] = ports();
                let mut bridge =
                    Bridge::new(lan, wan, discipline(), discipline()).with_coalescing(coalescing);
                let mut timer = Timer::new().expect("a timer");
                run(&mut bridge, &mut timer, &mut inbox).await
            })
        };
        let thread = std::thread::Builder::new().name("bridge".into()).spawn(work);
        Self { commands, thread: thread.expect("a thread") }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let (reply, answer) = oneshot::channel();
        let asked = self.commands.blocking_send(Command::Snapshot(reply));
        assert!(asked.is_ok(), "the bridge listens");
        answer.blocking_recv().expect("the bridge answers")
    }

    /// Asks the bridge itself, between two turns.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Bridge<D>) -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = std_mpsc::channel();
        let action = move |bridge: &mut Bridge<D>| {
            reply.send(question(bridge)).expect("somebody waits");
        };
        let asked = self.commands.blocking_send(Command::With(Box::new(action)));
        assert!(asked.is_ok(), "the bridge listens");
        answer.recv().expect("the bridge answers")
    }

    pub(crate) fn stop(self) -> Result<(), BridgeError> {
        // If it stopped by itself, that is what the caller wants to see.
        drop(self.commands.blocking_send(Command::Stop));
        self.thread.join().expect("the bridge does not panic")
    }

    /// Waits until it stops by itself.
    pub(crate) fn outcome(self) -> Option<Result<(), BridgeError>> {
        let end = Instant::now() + PATIENCE;
        while !self.thread.is_finished() {
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(self.thread.join().expect("the bridge does not panic"))
    }
}
