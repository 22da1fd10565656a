//! How late wake-ups are: a histogram of fixed size.
//!
//! Problem: an average hides the one wake-up in a hundred that is felt, and what is counted at every wake-up must not
//! allocate.
//! Source: the buckets of HDR histograms, whose width grows with what they are for.
//! Law: eight buckets to an octave, from 1 µs up to 1 s. What is told is never less than what was, above 1 µs at most
//! an eighth more, and never more than the worst.
//! Left out: the crate `hdrhistogram`. This is told to another process five times a second and goes on from there,
//! which takes a form that serde can write; one of 161 numbers is that form already.

use crate::time::Span;

/// 2 to the power of this many nanoseconds is where buckets begin to be told apart.
const FIRST_OCTAVE: u32 = 10;
/// Octaves that are told apart; what is later than the last of them is counted in its last bucket.
const OCTAVES: u32 = 20;
/// Buckets of an octave are 2 to the power of this.
const SUB_BITS: u32 = 3;
const BUCKETS: usize = 1 + ((OCTAVES as usize) << SUB_BITS);

/// By how much wake-ups were late.
///
/// ```
/// use ucake::io::lateness::Lateness;
/// use ucake::time::Span;
/// let mut late = Lateness::default();
/// (1..=100).for_each(|n| late.record(Span::from_micros(n)));
/// let stats = late.stats();
/// assert_eq!((stats.wake_ups, stats.max), (100, Span::from_micros(100)));
/// assert!((50..=57).contains(&stats.p50.micros()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lateness {
    /// How many wake-ups each bucket has.
    buckets: Vec<u64>,
    worst: Span,
}

/// What [`Lateness`] comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LatenessStats {
    /// Wake-ups that were measured.
    pub wake_ups: u64,
    /// Half of them were no later.
    pub p50: Span,
    /// 99 of 100 were no later.
    pub p99: Span,
    /// None was later.
    pub max: Span,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], worst: Span::ZERO }
    }
}

impl Lateness {
    /// Counts a wake-up that was so late.
    pub fn record(&mut self, late: Span) {
        // One that came in another form may have fewer.
        if let Some(count) = self.buckets.get_mut(bucket(late.nanos_or_zero())) {
            *count += 1;
        }
        self.worst = self.worst.max(late);
    }

    /// What it comes to; all zero before the first.
    #[must_use]
    pub fn stats(&self) -> LatenessStats {
        let wake_ups = self.buckets.iter().fold(0_u64, |sum, &count| sum.saturating_add(count));
        LatenessStats {
            wake_ups,
            p50: self.rank(wake_ups.div_ceil(2)),
            p99: self.rank(wake_ups - wake_ups / 100),
            max: self.worst,
        }
    }

    /// How late the `rank`th wake-up was at most, the first being the most punctual.
    fn rank(&self, rank: u64) -> Span {
        if rank == 0 {
            return Span::ZERO;
        }
        let mut seen = 0_u64;
        let reaches = |&count: &u64| {
            seen = seen.saturating_add(count);
            seen >= rank
        };
        match self.buckets.iter().position(reaches) {
            Some(index) if index + 1 < BUCKETS => upper_end(index).min(self.worst),
            _ => self.worst,
        }
    }

    /// These wake-ups, and those that were counted before in another process.
    #[must_use]
    pub fn going_on_from(mut self, before: &Self) -> Self {
        for (count, before) in self.buckets.iter_mut().zip(&before.buckets) {
            *count = count.saturating_add(*before);
        }
        self.worst = self.worst.max(before.worst);
        self
    }
}

/// The bucket for so many nanoseconds.
fn bucket(nanos: u64) -> usize {
    let Some(octave) = nanos.checked_ilog2().filter(|&octave| octave >= FIRST_OCTAVE) else {
        return 0;
    };
    // The bits behind the highest.
    let sub = (nanos >> (octave - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    let index = u64::from((octave - FIRST_OCTAVE) << SUB_BITS) + sub + 1;
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The longest span that is counted in a bucket; not of the last one, which has no end.
fn upper_end(index: usize) -> Span {
    let Some(index) = index.checked_sub(1) else {
        return Span::from_nanos((1 << FIRST_OCTAVE) - 1);
    };
    let octave = FIRST_OCTAVE as usize + (index >> SUB_BITS);
    let sub = index & ((1 << SUB_BITS) - 1);
    let parts = i64::try_from((1 << SUB_BITS) + sub + 1).unwrap_or(i64::MAX);
    Span::from_nanos((parts << (octave - SUB_BITS as usize)) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_late_before_the_first_wake_up() {
        assert_eq!(Lateness::default().stats(), LatenessStats::default());
    }

    #[test]
    fn one_late_wake_up_in_fifty_is_seen_where_an_average_hides_it() {
        let mut late = Lateness::default();
        for number in 0..1_000 {
            let millis = if number % 50 == 0 { 3 } else { 0 };
            late.record(Span::from_millis(millis) + Span::from_micros(20));
        }
        let LatenessStats { wake_ups, p50, p99, max } = late.stats();
        assert_eq!((wake_ups, max), (1_000, Span::from_micros(3_020)));
        assert!((20..=22).contains(&p50.micros()), "{p50:?}");
        assert!((3_020..=3_020 * 9 / 8).contains(&p99.micros()) || p99 == max, "{p99:?}");
    }

    #[test]
    fn ages_are_counted_in_the_last_bucket_and_told_as_the_worst() {
        let mut late = Lateness::default();
        let (age, ages) = (Span::from_secs(40), Span::MAX);
        late.record(age);
        late.record(ages);
        assert_eq!(late.stats(), LatenessStats { wake_ups: 2, p50: ages, p99: ages, max: ages });
        late.record(Span::from_nanos(-5));
        assert_eq!(late.stats().wake_ups, 3);
    }

    #[test]
    fn those_of_before_are_counted_on() {
        let of = |micros: i64| {
            let mut late = Lateness::default();
            late.record(Span::from_micros(micros));
            late
        };
        let both = of(5).going_on_from(&of(900)).stats();
        assert_eq!((both.wake_ups, both.max), (2, Span::from_micros(900)));
        assert!((5..=6).contains(&both.p50.micros()), "{both:?}");
    }

    proptest! {
        #[test]
        fn what_is_told_is_never_less_and_at_most_an_eighth_more(nanos in 0..3_000_000_000_i64) {
            let index = bucket(nanos.unsigned_abs());
            prop_assert!(index < BUCKETS);
            if index + 1 < BUCKETS {
                let told = upper_end(index).nanos();
                prop_assert!(told >= nanos, "{} is told as {}", nanos, told);
                prop_assert!(told <= (nanos + nanos / 8).max(1_023), "{} is told as {}", nanos, told);
                prop_assert_eq!(bucket(told.unsigned_abs()), index);
            }
        }
    }
}
