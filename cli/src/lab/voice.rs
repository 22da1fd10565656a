//! A call: one datagram each 20 ms, and how late each arrives.
//!
//! Law: sender and receiver are threads of this process, so one clock measures the one-way delay.
//! Source: RFC 3550 §6.4.1 (jitter). 172 bytes are 20 ms of G.711 and an RTP header: a frame of 214 bytes.
//! Left out: silence, codecs, scores.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::ping::{Phase, PhaseCell};

const GAP: Duration = Duration::from_millis(20);
const PAYLOAD: usize = 172;
/// How long the last datagrams are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a call went while the load was on; times one way, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Voice {
    /// Datagrams sent.
    pub(crate) sent: u64,
    /// Those that did not arrive within a second of the end.
    pub(crate) lost: u64,
    /// Half arrived sooner.
    pub(crate) p50_us: u64,
    /// 99 of 100 arrived sooner.
    pub(crate) p99_us: u64,
    /// Interarrival jitter at the end.
    pub(crate) jitter_us: u64,
}

/// A call that goes on until its phase is over.
pub(super) struct Call {
    phase: Arc<PhaseCell>,
    sender: Option<JoinHandle<u64>>,
    receiver: Option<JoinHandle<Voice>>,
}

impl Call {
    /// Starts between two sockets, `from` being connected to `to`.
    pub(super) fn start(from: UdpSocket, to: UdpSocket) -> io::Result<Self> {
        let phase = Arc::<PhaseCell>::default();
        let origin = Instant::now();
        to.set_read_timeout(Some(GAP))?;
        let told = Arc::clone(&phase);
        let sender = thread::Builder::new().spawn(move || send(&from, &told, origin))?;
        let told = Arc::clone(&phase);
        let receiver = thread::Builder::new().spawn(move || receive(&to, &told, origin));
        let mut call = Self { phase, sender: Some(sender), receiver: None };
        call.receiver = Some(receiver?);
        Ok(call)
    }

    pub(super) fn set(&self, phase: Phase) {
        self.phase.set(phase);
    }

    /// Ends it and tells how it went.
    pub(super) fn finish(mut self) -> Voice {
        self.phase.set(Phase::Ending);
        let sent = self.sender.take().and_then(|thread| thread.join().ok()).unwrap_or(0);
        let voice = self.receiver.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        // The receiver has put what arrived into `sent`.
        Voice { sent, lost: sent.saturating_sub(voice.sent), ..voice }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.phase.set(Phase::Over);
        let _ = self.sender.take().map(JoinHandle::join);
        let _ = self.receiver.take().map(JoinHandle::join);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Sends until the end; the count of what belongs to the load.
fn send(socket: &UdpSocket, phase: &PhaseCell, origin: Instant) -> u64 {
    let mut sent = 0;
    let mut due = Instant::now();
    loop {
        let counts = match phase.phase() {
            Phase::Ending | Phase::Over => return sent,
            phase => phase == Phase::Loaded,
        };
        let mut bytes = [0; PAYLOAD];
        bytes[..8].copy_from_slice(&micros(origin.elapsed()).to_be_bytes());
        bytes[8] = u8::from(counts);
        // Lost before it left is lost all the same.
        let _ = socket.send(&bytes);
        sent += u64::from(counts);
        due = (due + GAP).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn receive(socket: &UdpSocket, phase: &PhaseCell, origin: Instant) -> Voice {
    let mut delays = Histogram::<u32>::new_with_bounds(1, 60_000_000, 3).expect("constant bounds");
    let mut jitter = 0_i64;
    let mut last: Option<i64> = None;
    let mut ending: Option<Instant> = None;
    let mut bytes = [0; PAYLOAD + 1];
    loop {
        match phase.phase() {
            Phase::Over => break,
            Phase::Ending if ending.get_or_insert_with(Instant::now).elapsed() > PATIENCE => break,
            _ => {}
        }
        let Ok(PAYLOAD) = socket.recv(&mut bytes) else { continue };
        let Some((stamp, rest)) = bytes.split_first_chunk::<8>() else { continue };
        if rest[0] == 0 {
            continue;
        }
        let delay = micros(origin.elapsed()).saturating_sub(u64::from_be_bytes(*stamp));
        delays.saturating_record(delay.max(1));
        let transit = i64::try_from(delay).unwrap_or(i64::MAX);
        // In sixteenths, so that small steps are not rounded away.
        jitter += (transit - last.unwrap_or(transit)).abs() - (jitter + 8) / 16;
        last = Some(transit);
    }
    Voice {
        sent: delays.len(),
        lost: 0,
        p50_us: delays.value_at_quantile(0.5),
        p99_us: delays.value_at_quantile(0.99),
        jitter_us: u64::try_from(jitter / 16).unwrap_or(0),
    }
}
