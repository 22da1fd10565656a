//! Points in time and spans of time, in whole nanoseconds.
//!
//! Problem: the algorithm subtracts instants and looks at the sign (a drop that is due, a clock that
//! is ahead), which `std::time` cannot express, and a library that is to be replayed must not be able
//! to ask for the time at all.
//! Source: `sch_cake` keeps signed 64-bit nanoseconds of a monotonic clock; so do we.
//! Law: `Instant − Instant = Span`, signed; nothing here saturates silently but at ±292 years.
//! Left out: calendars, time zones, reading a clock (`io::clock` does).

use core::fmt;
use core::ops::{Add, AddAssign, Mul, Neg, Sub};

/// A point on a monotonic clock whose origin is of no interest, in nanoseconds.
///
/// Times come in as arguments everywhere; this type cannot be asked for the present.
///
/// ```
/// use ucake::time::{Instant, Span};
/// let start = Instant::from_nanos(1_000);
/// assert_eq!(start + Span::from_nanos(5) - start, Span::from_nanos(5));
/// assert!((start - (start + Span::from_millis(1))).is_negative());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(i64);

/// A signed span of time in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Span(i64);

impl Instant {
    /// The origin: what every clock of a fresh instance reads.
    pub const ZERO: Self = Self(0);
    /// Later than any other instant: a wake-up that never comes.
    pub const MAX: Self = Self(i64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.0
    }
}

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// The longest span there is.
    pub const MAX: Self = Self(i64::MAX);

    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// A span of `micros` microseconds, at most [`Span::MAX`].
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A span of `millis` milliseconds, at most [`Span::MAX`].
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of `secs` seconds, at most [`Span::MAX`].
    #[must_use]
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// The span in nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// The span in nanoseconds; 0 if it is negative.
    #[must_use]
    pub const fn nanos_or_zero(self) -> u64 {
        if self.0 < 0 { 0 } else { self.0.unsigned_abs() }
    }

    /// The span in whole microseconds, truncated towards zero.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0 / 1_000
    }

    /// The span in seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people and plots, not for decisions")]
    pub fn secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Whether the span points into the past.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

impl Add<Span> for Instant {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Instant {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub<Span> for Instant {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Sub for Instant {
    type Output = Span;
    fn sub(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Mul<i64> for Span {
    type Output = Self;
    fn mul(self, factor: i64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Neg for Span {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl From<core::time::Duration> for Span {
    fn from(duration: core::time::Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl From<Span> for core::time::Duration {
    /// Negative spans become zero.
    fn from(span: Span) -> Self {
        Self::from_nanos(span.nanos_or_zero())
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_instant_minus_a_later_one_is_negative() {
        let early = Instant::from_nanos(10);
        let late = Instant::from_nanos(25);
        assert_eq!(early - late, Span::from_nanos(-15));
        assert_eq!((early - late).nanos_or_zero(), 0);
    }

    #[test]
    fn arithmetic_stops_at_the_ends_instead_of_wrapping() {
        assert_eq!(Instant::MAX + Span::from_secs(1), Instant::MAX);
        assert_eq!(Span::MAX * 2, Span::MAX);
    }
}
