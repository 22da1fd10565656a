//! What was measured, over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two samples of what was received.
pub(super) const STEP: Duration = Duration::from_millis(200);

/// What a series tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Milliseconds, one point per echo.
    Ping,
    /// Megabits of payload per second, one point per [`STEP`].
    Upload,
    /// As `Upload`.
    Download,
    /// Milliseconds one way, one point per datagram that arrived.
    Delay,
    /// `Delay` without its least.
    InducedDelay,
    /// Milliseconds, one point per datagram that arrived.
    Jitter,
    /// Datagrams, one point per [`STEP`].
    Loss,
}

impl Quantity {
    /// As flent writes it.
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Upload | Self::Download => "Mbits/s",
            Self::Ping | Self::Delay | Self::InducedDelay | Self::Jitter => "ms",
            Self::Loss => "count",
        }
    }

    /// Whether it is a rate of TCP payload.
    pub(super) const fn is_goodput(self) -> bool {
        matches!(self, Self::Upload | Self::Download)
    }
}

/// Values and when they were taken, in seconds since the run began.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// As flent calls it, such as `Ping (ms) ICMP` or `TCP upload::1`.
    pub(super) name: String,
    pub(super) quantity: Quantity,
    pub(super) points: Vec<(f64, f64)>,
}

/// What all counters were, and when.
type Look = (Instant, Vec<u64>);

/// Looks at counters of bytes until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Look>>>,
}

impl Sampler {
    pub(super) fn start(counters: Vec<Arc<AtomicU64>>) -> std::io::Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        let work = move || {
            let mut rows = Vec::new();
            let mut due = Instant::now();
            while !told.load(Ordering::Relaxed) {
                let now = Instant::now();
                let counts = counters.iter().map(|count| count.load(Ordering::Relaxed));
                rows.push((now, counts.collect()));
                due = (due + STEP).max(now);
                thread::sleep(due.saturating_duration_since(now));
            }
            rows
        };
        let thread = thread::Builder::new().name("sampler".to_owned()).spawn(work)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Per counter the rate between samples, in Mbit/s.
    pub(super) fn rates(mut self, counters: usize, origin: Instant) -> Vec<Vec<(f64, f64)>> {
        let rows = self.end();
        let rate = |index: usize| {
            let steps = rows.windows(2).filter_map(|pair| {
                let [(from, before), (to, after)] = pair else { return None };
                let bytes = after.get(index)?.saturating_sub(*before.get(index)?);
                let span = to.saturating_duration_since(*from).as_secs_f64();
                let bits = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) * 8.0;
                Some((seconds(*to, origin), bits / span.max(1e-6) / 1e6))
            });
            steps.collect()
        };
        (0..counters).map(rate).collect()
    }

    fn end(&mut self) -> Vec<Look> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

/// Seconds from `origin` to `at`.
pub(super) fn seconds(at: Instant, origin: Instant) -> f64 {
    at.saturating_duration_since(origin).as_secs_f64()
}

/// The sum, step by step, of series that were sampled together.
pub(super) fn sum<'a>(series: impl IntoIterator<Item = &'a Series>) -> Vec<(f64, f64)> {
    let mut total: Vec<(f64, f64)> = Vec::new();
    for one in series {
        if total.is_empty() {
            total.clone_from(&one.points);
        } else {
            for (sum, point) in total.iter_mut().zip(&one.points) {
                sum.1 += point.1;
            }
        }
    }
    total
}
