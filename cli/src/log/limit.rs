//! How often the same place in the program may say something.
//!
//! Problem: what goes wrong a hundred times a second fills a disk, and hides everything else.
//! Source: the kernel's own limit of its messages (`printk_ratelimit`): a bucket for each place that speaks.
//! Law: a place has [`BURST`] lines, and one more every [`REFILL`]. What is left out is counted, and told with the next
//! line of that place.
//! Left out: clocks; `now` is an argument. What is said by many places at once, of which there are some hundred.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Lines that a place may write at once: each of thirty-odd bridges may lose a device.
const BURST: u32 = 40;
/// After which it may write one more.
const REFILL: Duration = Duration::from_secs(1);

/// The places that have spoken.
#[derive(Debug)]
pub(super) struct Limit<K>(HashMap<K, Place>);

#[derive(Debug)]
struct Place {
    left: u32,
    filled: Instant,
    left_out: u64,
}

impl<K: Eq + Hash> Limit<K> {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Whether `place` may write a line at `now`; if so, how many before it were left out.
    pub(super) fn admit(&mut self, place: K, now: Instant) -> Option<u64> {
        let fresh = Place { left: BURST, filled: now, left_out: 0 };
        let place = self.0.entry(place).or_insert(fresh);
        let elapsed = now.saturating_duration_since(place.filled);
        let drops = elapsed.as_secs() / REFILL.as_secs();
        if drops > 0 {
            place.left =
                u32::try_from(drops).unwrap_or(BURST).saturating_add(place.left).min(BURST);
            place.filled = now;
        }
        if place.left == 0 {
            place.left_out += 1;
            return None;
        }
        place.left -= 1;
        Some(std::mem::take(&mut place.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_talks_too_much_is_cut_short_and_what_was_left_out_is_told() {
        let (mut limit, mut now) = (Limit::new(), Instant::now());
        let said = (0..1000).filter(|_| limit.admit("here", now).is_some()).count();
        assert_eq!(said, BURST as usize);
        assert_eq!(limit.admit("there", now), Some(0), "another place does not suffer");
        now += REFILL;
        assert_eq!(limit.admit("here", now), Some(1000 - u64::from(BURST)));
        assert_eq!(limit.admit("here", now), None);
        now += 1000 * REFILL;
        assert_eq!(limit.admit("here", now), Some(1));
        let said = (0..1000).filter(|_| limit.admit("here", now).is_some()).count();
        assert_eq!(said, BURST as usize - 1, "silence is not saved up");
    }
}
