//! A ping of our own: ICMP echo, often, with every answer's time kept.
//!
//! Problem: the machine may have no `ping`, and its summary tells nothing of the tail.
//! Source: RFC 792 (echo), RFC 1071 (checksum).
//! Law: each echo belongs to the phase it was sent in; the answer is waited for as long as answers take.
//! Left out: IPv6, other sizes.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with,
};

/// Time between two echoes.
const GAP: Duration = Duration::from_millis(20);
/// Bytes of payload: as much as `ping` sends.
const PAYLOAD: usize = 56;
const HEADER: usize = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
/// Most we wait for answers at the end; a second where they come fast.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// Largest time that is told apart, in microseconds.
const LONGEST_RTT: u64 = 60_000_000;

/// What is going on while an echo is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing else is sent.
    Idle,
    /// The load grows; not counted.
    WarmUp,
    /// The load is on.
    Loaded,
    /// No more echoes; late answers are awaited.
    Ending,
    /// Stop at once.
    Over,
}

/// The phase, as told to a running ping.
#[derive(Debug, Default)]
pub(crate) struct PhaseCell(AtomicU8);

impl PhaseCell {
    /// Tells of a new phase.
    pub(crate) fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    pub(super) fn phase(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::WarmUp,
            2 => Phase::Loaded,
            3 => Phase::Ending,
            _ => Phase::Over,
        }
    }
}

/// Round-trip times of one phase.
#[derive(Clone, Debug)]
pub(crate) struct Rtts {
    /// Echoes sent.
    pub(crate) sent: u64,
    /// Times of those that were answered, in microseconds.
    pub(crate) times: Histogram<u32>,
}

impl Rtts {
    fn new() -> Self {
        let times =
            Histogram::new_with_bounds(1, LONGEST_RTT, 3).expect("the bounds are constants");
        Self { sent: 0, times }
    }

    /// Echoes that were not answered.
    pub(crate) fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.times.len())
    }
}

/// What a ping found.
#[derive(Clone, Debug)]
pub(crate) struct Pings {
    /// While nothing else was sent.
    pub(crate) idle: Rtts,
    /// While the load was on.
    pub(crate) loaded: Rtts,
    /// When each answered echo of any phase was sent, and its time in milliseconds.
    pub(crate) points: Vec<(Instant, f64)>,
}

/// An echo on its way.
#[derive(Clone, Copy, Debug)]
struct Echo {
    sent_at: Instant,
    phase: Phase,
}

/// A ping that has a socket and a target.
#[derive(Debug)]
pub(crate) struct Ping {
    socket: OwnedFd,
    target: SocketAddr,
    id: u16,
    /// Echoes not answered yet, by number.
    pending: BTreeMap<u64, Echo>,
    next: u64,
    found: Pings,
    slowest: Duration,
}

impl Ping {
    /// Opens a raw socket in the network namespace of the calling thread.
    pub(crate) fn open(target: Ipv4Addr) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(ipproto::ICMP),
        )?;
        let id = rustix::process::getpid().as_raw_nonzero().get() & 0xffff;
        Ok(Self {
            socket,
            target: SocketAddr::V4(SocketAddrV4::new(target, 0)),
            id: u16::try_from(id).unwrap_or(1),
            pending: BTreeMap::new(),
            next: 0,
            found: Pings { idle: Rtts::new(), loaded: Rtts::new(), points: Vec::new() },
            slowest: Duration::ZERO,
        })
    }

    /// The same with another DSCP (RFC 2474), told apart from others of this process by it.
    pub(crate) fn marked(mut self, dscp: u8) -> io::Result<Self> {
        rustix::net::sockopt::set_ip_tos(&self.socket, dscp << 2)?;
        self.id ^= u16::from(dscp) << 8;
        Ok(self)
    }

    /// Sends one echo and waits for its answer; an answer of any earlier one will do.
    pub(crate) fn reaches(&mut self, patience: Duration) -> io::Result<bool> {
        self.send(Phase::WarmUp, Instant::now())?;
        let deadline = Instant::now() + patience;
        while !self.pending.is_empty() && Instant::now() < deadline {
            self.receive_until(deadline.min(Instant::now() + GAP))?;
        }
        // The first one also waits for ARP.
        self.found.points.clear();
        Ok(self.pending.is_empty())
    }

    /// Pings until it is told to end, and tells what it found.
    pub(crate) fn run(mut self, phase: &PhaseCell) -> io::Result<Pings> {
        let mut due = Instant::now();
        loop {
            match phase.phase() {
                Phase::Over => return Ok(self.without_pending()),
                Phase::Ending => break,
                phase => self.send(phase, Instant::now())?,
            }
            // After a long interruption the echoes missed are not caught up with.
            due = (due + GAP).max(Instant::now());
            self.receive_until(due)?;
        }
        let patience = (self.slowest * 3 / 2).clamp(SHORTEST_WAIT, LONGEST_WAIT);
        let deadline = Instant::now() + patience;
        while self.is_awaited() && Instant::now() < deadline {
            if phase.phase() == Phase::Over {
                return Ok(self.without_pending());
            }
            self.receive_until(Instant::now() + GAP)?;
        }
        Ok(self.found)
    }

    /// What was found when there is no time to wait: what is on its way is not lost.
    fn without_pending(mut self) -> Pings {
        for echo in std::mem::take(&mut self.pending).into_values() {
            if let Some(rtts) = self.rtts(echo.phase) {
                rtts.sent -= 1;
            }
        }
        self.found
    }

    /// Whether an answer is missing that would be counted.
    fn is_awaited(&self) -> bool {
        self.pending.values().any(|echo| echo.phase == Phase::Loaded)
    }

    fn rtts(&mut self, phase: Phase) -> Option<&mut Rtts> {
        match phase {
            Phase::Idle => Some(&mut self.found.idle),
            Phase::Loaded => Some(&mut self.found.loaded),
            Phase::WarmUp | Phase::Ending | Phase::Over => None,
        }
    }

    fn send(&mut self, phase: Phase, now: Instant) -> io::Result<()> {
        let number = self.next;
        let packet = request(self.id, number);
        match sendto(&self.socket, &packet, SendFlags::empty(), &self.target) {
            // Lost before it left is lost all the same.
            Ok(_) | Err(Errno::NOBUFS | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.next += 1;
        self.pending.insert(number, Echo { sent_at: now, phase });
        if let Some(rtts) = self.rtts(phase) {
            rtts.sent += 1;
        }
        Ok(())
    }

    /// Takes answers until `deadline`.
    fn receive_until(&mut self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let timeout = Timespec::try_from(left).unwrap_or_default();
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut ready, Some(&timeout)) {
                Ok(0) => return Ok(()),
                Ok(_) => self.take_answers()?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn take_answers(&mut self) -> io::Result<()> {
        let mut packet = [0; 256];
        loop {
            match recv(&self.socket, &mut packet, RecvFlags::empty()) {
                Ok((length, _)) => self.take_answer(&packet[..length], Instant::now()),
                Err(Errno::AGAIN) => return Ok(()),
                // An ICMP error that some other packet caused.
                Err(Errno::INTR | Errno::HOSTUNREACH | Errno::NETUNREACH) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn take_answer(&mut self, packet: &[u8], now: Instant) {
        let Some(number) = answered(packet, self.id) else { return };
        let Some(echo) = self.pending.remove(&number) else { return };
        let rtt = now.saturating_duration_since(echo.sent_at);
        self.slowest = self.slowest.max(rtt);
        self.found.points.push((echo.sent_at, rtt.as_secs_f64() * 1e3));
        let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).clamp(1, LONGEST_RTT);
        if let Some(rtts) = self.rtts(echo.phase) {
            rtts.times.saturating_record(micros);
        }
    }
}

/// An echo request that carries its number in full.
fn request(id: u16, number: u64) -> [u8; HEADER + PAYLOAD] {
    let mut packet = [0; HEADER + PAYLOAD];
    packet[0] = ECHO_REQUEST;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&number.to_be_bytes()[6..]);
    packet[8..16].copy_from_slice(&number.to_be_bytes());
    let checksum = checksum(&packet);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// The number of the request that this IPv4 packet answers, if it does.
fn answered(packet: &[u8], id: u16) -> Option<u64> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let icmp = packet.get(header..)?;
    let is_ours = *icmp.first()? == ECHO_REPLY && icmp.get(4..6)? == id.to_be_bytes();
    let number = icmp.get(8..16)?.try_into().ok()?;
    (is_ours && checksum(icmp) == 0).then(|| u64::from_be_bytes(number))
}

/// The ones' complement of the ones' complement sum (RFC 1071); 0 over what has a right one in it.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    };
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).map_or(0, |sum| !sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_right_checksum() {
        // RFC 1071 §3, its example.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&request(0x1234, 70_000)), 0);
        assert_eq!(checksum(&[0xff]), !0xff00);
    }

    #[test]
    fn only_answers_to_our_own_requests_count() {
        let reply = |id, number| {
            let mut icmp = request(id, number);
            icmp[0] = ECHO_REPLY;
            icmp[2..4].copy_from_slice(&[0, 0]);
            let sum = checksum(&icmp);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut packet = vec![0; 20];
            packet[0] = 0x45;
            packet.extend(icmp);
            packet
        };
        assert_eq!(answered(&reply(7, 70_000), 7), Some(70_000));
        assert_eq!(answered(&reply(8, 70_000), 7), None);
        let mut damaged = reply(7, 1);
        damaged[40] ^= 1;
        assert_eq!(answered(&damaged, 7), None);
        for length in 0..reply(7, 1).len() - PAYLOAD + 8 {
            assert_eq!(answered(&reply(7, 1)[..length], 7), None, "{length}");
        }
    }

    #[test]
    fn what_is_sent_in_a_phase_is_counted_there() {
        let Ok(mut ping) = Ping::open(Ipv4Addr::LOCALHOST) else {
            eprintln!("SKIPPED: raw sockets are not permitted here");
            return;
        };
        assert!(ping.reaches(Duration::from_secs(2)).expect("loopback works"));
        let phase = PhaseCell::default();
        let found = std::thread::scope(|scope| {
            let pings = scope.spawn(|| ping.run(&phase));
            for next in [Phase::WarmUp, Phase::Loaded, Phase::Ending] {
                std::thread::sleep(Duration::from_millis(110));
                phase.set(next);
            }
            pings.join().expect("the ping does not panic").expect("loopback works")
        });
        for rtts in [&found.idle, &found.loaded] {
            assert!((2..=8).contains(&rtts.sent), "sent {}", rtts.sent);
            assert_eq!(rtts.lost(), 0);
        }
    }
}
