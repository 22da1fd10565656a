//! The one place that asks what time it is.

use rustix::time::{ClockId, clock_gettime};

use crate::time::Instant;

/// The present, on the monotonic clock that [`Timer`](super::timer::Timer) runs on too.
#[must_use]
pub fn now() -> Instant {
    let present = clock_gettime(ClockId::Monotonic);
    Instant::from_nanos(
        present.tv_sec.saturating_mul(1_000_000_000).saturating_add(present.tv_nsec),
    )
}
