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
use super::series::{self, Quantity, STEP, Series};

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

/// What was heard of a call: the numbers, and the datagrams of all phases for who draws them.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) voice: Voice,
    /// When each was sent.
    pub(super) sent: Vec<Instant>,
    /// Those that arrived, in the order of arrival.
    pub(super) arrived: Vec<Arrival>,
}

/// A datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Index into what was sent.
    pub(super) number: usize,
    pub(super) at: Instant,
    /// One way, in microseconds.
    pub(super) delay_us: u64,
    /// Interarrival jitter so far, in microseconds.
    pub(super) jitter_us: u64,
}

/// A call that goes on until its phase is over.
pub(super) struct Call {
    phase: Arc<PhaseCell>,
    sender: Option<JoinHandle<Sent>>,
    receiver: Option<JoinHandle<Heard>>,
}

/// When each datagram was sent, and how many belong to the load.
type Sent = (Vec<Instant>, u64);

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
    pub(super) fn finish(mut self) -> Heard {
        self.phase.set(Phase::Ending);
        let (sent, counted) =
            self.sender.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let heard = self.receiver.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        // The receiver has put what arrived into `sent`.
        let lost = counted.saturating_sub(heard.voice.sent);
        Heard { voice: Voice { sent: counted, lost, ..heard.voice }, sent, ..heard }
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

/// Interarrival jitter (RFC 3550 §6.4.1), in sixteenths of a microsecond so that small steps are not rounded away.
#[derive(Clone, Copy, Debug, Default)]
struct Jitter {
    sixteenths: i64,
    last: Option<i64>,
}

impl Jitter {
    fn take(&mut self, delay: u64) {
        let transit = i64::try_from(delay).unwrap_or(i64::MAX);
        let step = (transit - self.last.unwrap_or(transit)).abs();
        self.sixteenths += step - (self.sixteenths + 8) / 16;
        self.last = Some(transit);
    }

    fn micros(self) -> u64 {
        u64::try_from(self.sixteenths / 16).unwrap_or(0)
    }
}

/// Sends until the end.
fn send(socket: &UdpSocket, phase: &PhaseCell, origin: Instant) -> Sent {
    let (mut sent, mut counted) = (Vec::new(), 0);
    let mut due = Instant::now();
    loop {
        let counts = match phase.phase() {
            Phase::Ending | Phase::Over => return (sent, counted),
            phase => phase == Phase::Loaded,
        };
        let mut bytes = [0; PAYLOAD];
        let now = Instant::now();
        let stamp = micros(now.saturating_duration_since(origin));
        let number = u64::try_from(sent.len()).unwrap_or(u64::MAX);
        bytes[..8].copy_from_slice(&stamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&number.to_be_bytes());
        bytes[16] = u8::from(counts);
        // Lost before it left is lost all the same.
        let _ = socket.send(&bytes);
        sent.push(now);
        counted += u64::from(counts);
        due = (due + GAP).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn receive(socket: &UdpSocket, phase: &PhaseCell, origin: Instant) -> Heard {
    let mut delays = Histogram::<u32>::new_with_bounds(1, 60_000_000, 3).expect("constant bounds");
    let (mut loaded, mut whole) = (Jitter::default(), Jitter::default());
    let mut arrived = Vec::new();
    let mut ending: Option<Instant> = None;
    let mut bytes = [0; PAYLOAD + 1];
    loop {
        match phase.phase() {
            Phase::Over => break,
            Phase::Ending if ending.get_or_insert_with(Instant::now).elapsed() > PATIENCE => break,
            _ => {}
        }
        let Ok(PAYLOAD) = socket.recv(&mut bytes) else { continue };
        let at = Instant::now();
        let Some((stamp, rest)) = bytes.split_first_chunk::<8>() else { continue };
        let Some((number, rest)) = rest.split_first_chunk::<8>() else { continue };
        let now = micros(at.saturating_duration_since(origin));
        let delay_us = now.saturating_sub(u64::from_be_bytes(*stamp));
        whole.take(delay_us);
        if let Ok(number) = usize::try_from(u64::from_be_bytes(*number)) {
            arrived.push(Arrival { number, at, delay_us, jitter_us: whole.micros() });
        }
        if rest[0] != 0 {
            delays.saturating_record(delay_us.max(1));
            loaded.take(delay_us);
        }
    }
    let voice = Voice {
        sent: delays.len(),
        lost: 0,
        p50_us: delays.value_at_quantile(0.5),
        p99_us: delays.value_at_quantile(0.99),
        jitter_us: loaded.micros(),
    };
    Heard { voice, sent: Vec::new(), arrived }
}

impl Heard {
    /// What flent's tests of calls have: delay, jitter and loss; loss counts at the time of sending.
    pub(super) fn series(&self, origin: Instant) -> Vec<Series> {
        let series = |name: &str, quantity, points| Series {
            name: format!("VoIP::{name}"),
            quantity,
            points,
        };
        let over_time = |of: fn(&Arrival) -> u64| {
            let point = |one: &Arrival| {
                let millis = Duration::from_micros(of(one)).as_secs_f64() * 1e3;
                (series::seconds(one.at, origin), millis)
            };
            self.arrived.iter().map(point).collect::<Vec<_>>()
        };
        let delay = over_time(|one| one.delay_us);
        let least = delay.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let induced = delay.iter().map(|&(at, delay)| (at, delay - least)).collect();
        vec![
            series("delay", Quantity::Delay, delay),
            series("induced_delay", Quantity::InducedDelay, induced),
            series("jitter", Quantity::Jitter, over_time(|one| one.jitter_us)),
            series("loss", Quantity::Loss, self.losses(origin)),
        ]
    }

    /// Datagrams per [`STEP`] that were sent then and never arrived.
    fn losses(&self, origin: Instant) -> Vec<(f64, f64)> {
        let mut missing = vec![true; self.sent.len()];
        for one in &self.arrived {
            if let Some(missing) = missing.get_mut(one.number) {
                *missing = false;
            }
        }
        let step = STEP.as_secs_f64();
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (at, missing) in self.sent.iter().zip(missing) {
            let ends = ((series::seconds(*at, origin) / step).floor() + 1.0) * step;
            if points.last().is_none_or(|last| ends > last.0 + step / 2.0) {
                points.push((ends, 0.0));
            }
            if let Some(last) = points.last_mut() {
                last.1 += f64::from(u8::from(missing));
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_arrived_is_lost_when_it_was_sent() {
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let arrival = |number, sent: u64, delay_us: u64| Arrival {
            number,
            at: at(sent) + Duration::from_micros(delay_us),
            delay_us,
            jitter_us: 0,
        };
        let heard = Heard {
            sent: vec![at(10), at(110), at(210), at(310), at(410)],
            arrived: vec![arrival(0, 10, 10_000), arrival(4, 410, 30_000)],
            ..Heard::default()
        };
        let series = heard.series(origin);
        let named = |name: &str| {
            let found = series.iter().find(|one| one.name == format!("VoIP::{name}"));
            found.map(|one| one.points.iter().map(|point| point.1).collect::<Vec<_>>())
        };
        assert_eq!(named("loss"), Some(vec![1.0, 2.0, 0.0]));
        assert_eq!(named("delay"), Some(vec![10.0, 30.0]));
        assert_eq!(named("induced_delay"), Some(vec![0.0, 20.0]));
    }

    #[test]
    fn jitter_of_a_steady_delay_is_none_and_of_steps_a_sixteenth_of_each() {
        let mut jitter = Jitter::default();
        jitter.take(5_000);
        jitter.take(5_000);
        assert_eq!(jitter.micros(), 0);
        jitter.take(6_600);
        assert_eq!(jitter.micros(), 100);
    }
}
