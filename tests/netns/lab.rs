//! Two namespaces joined by two taps, a bridge between them, and TCP through it.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use ucake::io::driver::{Bridge, BridgeError, Command, Snapshot, run};
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};
use ucake::io::tap::{Tap, TapOptions, TapPort};
use ucake::io::timer::Timer;

use crate::fifo::Fifo;

pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// "client" and "server", each with a tap whose other side is ours.
pub(crate) struct Lab {
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
}

/// A bridge on a thread of its own.
pub(crate) struct Running {
    commands: mpsc::Sender<Command<Fifo>>,
    /// Its thread, as the kernel numbers them.
    pub(crate) task: i32,
    thread: JoinHandle<Result<(), BridgeError>>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let [client, server] =
            ["client", "server"].map(|label| Namespace::new(label).expect("namespaces are there"));
        Self { client, server }
    }

    /// Opens both taps, gives them addresses and puts a bridge between them.
    pub(crate) fn bridge(&self, discipline: fn() -> Fifo) -> Running {
        let lan = open(&self.client, "lan0", CLIENT);
        let wan = open(&self.server, "wan0", SERVER);
        let (commands, mut inbox) = mpsc::channel(4);
        let (report, number) = std_mpsc::channel();
        let work = move || {
            report.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("somebody waits");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            runtime.expect("a runtime").block_on(async {
                let [lan, wan] =
                    [lan, wan].map(|tap| Box::new(TapPort::new(tap).expect("a tap at work")));
                let mut bridge = Bridge::new(lan, wan, discipline(), discipline());
                let mut timer = Timer::new().expect("a timer");
                run(&mut bridge, &mut timer, &mut inbox).await
            })
        };
        let thread = std::thread::Builder::new().name("bridge".into()).spawn(work);
        let thread = thread.expect("a thread");
        Running { commands, task: number.recv().expect("the thread starts"), thread }
    }

    /// Sends `bytes` from client to server; what arrived.
    pub(crate) fn deliver(&self, bytes: Vec<u8>) -> Vec<u8> {
        let (ready, listening) = std_mpsc::channel();
        let sink = self.server.spawn("sink", move || {
            let listener = TcpListener::bind((SERVER, 5001)).expect("the address is ours");
            ready.send(()).expect("somebody waits");
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut arrived = Vec::new();
            stream.read_to_end(&mut arrived).expect("a whole stream");
            arrived
        });
        listening.recv().expect("the sink listens");
        self.client.run(move || {
            let to = SocketAddr::from((SERVER, 5001));
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5));
            stream.expect("a connection").write_all(&bytes).expect("the stream takes it");
        });
        sink.expect("a thread").join().expect("the sink finishes")
    }

    /// Sends from client to server on `streams` connections for `length`. Returns bytes received.
    pub(crate) fn upload(&self, streams: u16, length: Duration) -> u64 {
        let (ready, listening) = std_mpsc::channel();
        let sink = self.server.spawn("sink", move || sink(streams, &ready)).expect("a thread");
        listening.recv().expect("the sink listens");
        let sources = (0..streams)
            .map(|_| self.client.spawn("source", move || source(length)).expect("a thread"));
        for source in sources.collect::<Vec<_>>() {
            source.join().expect("the source finishes");
        }
        sink.join().expect("the sink finishes")
    }
}

impl Running {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (reply, answer) = oneshot::channel();
        let asked = self.commands.blocking_send(Command::Snapshot(reply));
        assert!(asked.is_ok(), "the bridge listens");
        answer.blocking_recv().expect("the bridge answers")
    }

    pub(crate) fn stop(self) -> Result<(), BridgeError> {
        // If it stopped by itself, that is what the caller wants to see.
        drop(self.commands.blocking_send(Command::Stop));
        self.thread.join().expect("the bridge does not panic")
    }

    /// Waits until it stops by itself, for at most two seconds.
    pub(crate) fn outcome(self) -> Option<Result<(), BridgeError>> {
        let end = Instant::now() + Duration::from_secs(2);
        while !self.thread.is_finished() {
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(self.thread.join().expect("the bridge does not panic"))
    }
}

fn open(namespace: &Namespace, name: &'static str, address: Ipv4Addr) -> Tap {
    namespace.run(move || {
        let tap = Tap::open(name, &TapOptions::default()).expect("a tap opens");
        configure(name, address);
        tap
    })
}

/// Up, with an address, in the calling thread's namespace.
pub(crate) fn configure(name: &str, address: Ipv4Addr) {
    let addresses = vec![(IpAddr::V4(address), 24)];
    let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
    netlink::configure(name, &options).expect("the tap is set up");
}

fn sink(streams: u16, ready: &std_mpsc::Sender<()>) -> u64 {
    let listener = TcpListener::bind((SERVER, 5001)).expect("the address is ours");
    ready.send(()).expect("somebody waits");
    let readers: Vec<_> = (0..streams)
        .map(|_| {
            let (mut stream, _) = listener.accept().expect("a connection");
            std::thread::spawn(move || {
                let mut buffer = vec![0; 256 * 1024];
                let mut total = 0;
                loop {
                    match stream.read(&mut buffer).expect("a whole stream") {
                        0 => return total,
                        len => total += u64::try_from(len).expect("lengths fit"),
                    }
                }
            })
        })
        .collect();
    readers.into_iter().map(|reader| reader.join().expect("the reader finishes")).sum()
}

fn source(length: Duration) {
    let to = SocketAddr::from((SERVER, 5001));
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).expect("a connection");
    let chunk = vec![7; 256 * 1024];
    let end = Instant::now() + length;
    while Instant::now() < end {
        stream.write_all(&chunk).expect("the stream takes it");
    }
}
