//! TCP flows that send as much as they can.
//!
//! Problem: to fill a bottleneck with the kernel's own TCP and to know how much arrived, when.
//! Law: sockets are made where the caller says; from then on threads may run anywhere. What counts is
//! what receivers read.
//! Left out: flows that come and go, think times, rates.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{
    Timeout, set_ip_tos, set_socket_linger, set_socket_timeout, set_tcp_congestion,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Bytes of one write: enough for the kernel to make full superpackets.
const WRITE: usize = 256 * 1024;
/// Bytes of one read.
const READ: usize = 256 * 1024;
/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client, who connected, to the server.
    Upload,
    /// From the server to the client.
    Download,
}

/// How a sender sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The mark of what it sends (RFC 2474).
    pub(crate) dscp: u8,
    /// Bytes of one write.
    pub(crate) write: usize,
}

impl Default for Manner {
    fn default() -> Self {
        Self { dscp: 0, write: WRITE }
    }
}

impl Manner {
    /// Small writes are of use only if they leave at once.
    fn apply(self, sender: &TcpStream) -> io::Result<()> {
        set_ip_tos(sender, self.dscp << 2)?;
        sender.set_nodelay(self.write < WRITE)
    }
}

impl Direction {
    /// In a word.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
        }
    }
}

/// Connections that are there and silent.
#[derive(Debug)]
pub(crate) struct Flows {
    clients: Vec<TcpStream>,
    servers: Vec<TcpStream>,
}

/// Why there is no load.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// No connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The server side failed.
    #[error("cannot accept connections")]
    Accept(#[source] io::Error),
    /// The kernel does not have this congestion control, or not for us.
    #[error(
        "cannot use the congestion control \"{name}\"; this kernel offers: {offered} \
         (as root, \"modprobe tcp_{name}\" may add it)"
    )]
    Congestion {
        /// Its name.
        name: String,
        /// What there is.
        offered: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

impl Flows {
    /// Makes `count` connections. `connect` is called on threads of its own and has to make the socket
    /// in the right network namespace; so has whoever made `listener`.
    pub(crate) fn establish(
        count: usize,
        listener: &TcpListener,
        connect: impl Fn() -> io::Result<TcpStream> + Sync,
    ) -> Result<Self, LoadError> {
        let address = listener.local_addr().map_err(LoadError::Accept)?;
        let connected: io::Result<Vec<_>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(&connect)).collect();
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|outcome| outcome.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
                .collect()
        });
        let clients = connected.map_err(|source| LoadError::Connect { address, source })?;
        let servers = accept(count, listener).map_err(LoadError::Accept)?;
        Ok(Self { clients, servers })
    }

    /// Opens the throttle: as many threads send and receive as there are connections.
    pub(crate) fn start(
        self,
        direction: Direction,
        congestion: &str,
        manner: Manner,
    ) -> Result<Load, LoadError> {
        let (senders, receivers) = match direction {
            Direction::Upload => (self.clients, self.servers),
            Direction::Download => (self.servers, self.clients),
        };
        for sender in &senders {
            use_congestion(sender, congestion)?;
            manner.apply(sender).map_err(LoadError::Accept)?;
        }
        let mut load = Load { received: Vec::new(), sockets: Vec::new(), threads: Vec::new() };
        for receiver in receivers {
            let received = Arc::<AtomicU64>::default();
            load.received.push(Arc::clone(&received));
            load.work(receiver, "receiver", move |socket| receive(socket, &received))?;
        }
        for sender in senders {
            load.work(sender, "sender", move |socket| send(socket, manner.write))?;
        }
        Ok(load)
    }
}

/// Connects within [`PATIENCE`], from an address of its own choice.
pub(crate) fn connect(from: Ipv4Addr, to: SocketAddr, dscp: u8) -> io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_ip_tos(&socket, dscp << 2)?;
    // The kernel takes it for the time that connecting may take, too.
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    rustix::net::bind(&socket, &SocketAddr::from((from, 0)))?;
    rustix::net::connect(&socket, &to)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

fn accept(count: usize, listener: &TcpListener) -> io::Result<Vec<TcpStream>> {
    // The client side is connected already; only the last ACKs may be on their way.
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    let mut accepted = Vec::with_capacity(count);
    while accepted.len() < count {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                accepted.push(socket);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() > deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(accepted)
}

/// Whether senders will be able to use this congestion control.
pub(crate) fn check_congestion(name: &str) -> Result<(), LoadError> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    use_congestion(&socket.map_err(|errno| LoadError::Accept(errno.into()))?, name)
}

fn use_congestion(socket: impl AsFd, name: &str) -> Result<(), LoadError> {
    set_tcp_congestion(socket, name).map_err(|errno| {
        let offered =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let offered = offered.map_or_else(|_| "unknown".to_owned(), |list| list.trim().to_owned());
        LoadError::Congestion { name: name.to_owned(), offered, source: errno.into() }
    })
}

/// A load that is on until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct Load {
    received: Vec<Arc<AtomicU64>>,
    sockets: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Bytes that receivers have read so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// The same per flow, to be read while it goes on.
    pub(crate) fn counters(&self) -> Vec<Arc<AtomicU64>> {
        self.received.clone()
    }

    fn work(
        &mut self,
        socket: TcpStream,
        name: &str,
        work: impl FnOnce(TcpStream) + Send + 'static,
    ) -> Result<(), LoadError> {
        // Nothing may linger when the laboratory is torn down: closing resets the connection.
        let reset = set_socket_linger(&socket, Some(Duration::ZERO)).map_err(io::Error::from);
        let handle = reset.and_then(|()| socket.try_clone()).map_err(LoadError::Thread)?;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(socket));
        self.sockets.push(handle);
        self.threads.push(thread.map_err(LoadError::Thread)?);
        Ok(())
    }
}

impl Drop for Load {
    /// Whoever waits in a read or a write is woken by the shutdown, so this does not take long.
    fn drop(&mut self) {
        for socket in &self.sockets {
            // It may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Writes until the connection ends.
fn send(mut socket: TcpStream, write: usize) {
    let bytes = vec![0x5a; write];
    while socket.write_all(&bytes).is_ok() {}
}

/// Reads and counts until the connection ends.
fn receive(mut socket: TcpStream, received: &AtomicU64) {
    let mut bytes = vec![0; READ];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => {
                received.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(count: usize) -> Flows {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        Flows::establish(count, &listener, || connect(Ipv4Addr::LOCALHOST, address, 0))
            .expect("loopback works")
    }

    #[test]
    fn bytes_flow_either_way_and_stop_at_once() {
        for direction in [Direction::Upload, Direction::Download] {
            let load = flows(3)
                .start(direction, "reno", Manner::default())
                .expect("every kernel has reno");
            let deadline = Instant::now() + Duration::from_secs(10);
            while load.received() < 10_000_000 && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            assert!(load.received() >= 10_000_000, "{direction:?}: {}", load.received());
            let stopping = Instant::now();
            drop(load);
            assert!(stopping.elapsed() < Duration::from_secs(2), "{:?}", stopping.elapsed());
        }
    }

    #[test]
    fn an_unknown_congestion_control_is_named_with_those_there_are() {
        assert!(check_congestion("reno").is_ok());
        assert!(check_congestion("nosuch").is_err());
        let error = flows(1)
            .start(Direction::Upload, "nosuch", Manner::default())
            .expect_err("there is none");
        let message = error.to_string();
        assert!(message.contains("\"nosuch\"") && message.contains("reno"), "{message}");
    }

    #[test]
    fn nobody_listening_is_an_error_and_not_a_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let refused = || Err(io::ErrorKind::ConnectionRefused.into());
        let error = Flows::establish(2, &listener, refused).expect_err("refused");
        assert!(matches!(error, LoadError::Connect { .. }), "{error}");
    }
}
