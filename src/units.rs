//! Lengths, memory and rates as types of their own.
//!
//! Problem: a shaper charges one packet to three accounts (bytes that count, bytes on the wire, bytes
//! of memory); as bare integers they are mixed up sooner or later.
//! Source: `sch_cake` keeps all three as `u32`; the split is spec §7.3 "what uses which length".
//! Law: [`FrameLen`] → backlog and byte counters; [`WireLen`] → clocks and deficits; [`MemSize`] → the
//! memory limit. None converts into another by itself.
//! Left out: how a rate becomes time per byte; that is the shaper's law (`qdisc::shaper`).

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub, SubAssign};

macro_rules! byte_unit {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $inner);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);

            /// The number of bytes.
            #[must_use]
            pub const fn bytes(self) -> $inner {
                self.0
            }
        }

        impl Add for $name {
            type Output = Self;
            /// Stops at the largest value.
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $name {
            type Output = Self;
            /// Stops at zero.
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, |total, one| total + one)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

byte_unit! {
    /// Bytes of a frame as the port handed it over: link-layer header included, checksum trailer and
    /// preamble not. Counts in backlogs and byte counters.
    ///
    /// ```
    /// use ucake::units::FrameLen;
    /// assert_eq!(FrameLen(1514) + FrameLen(60), FrameLen(1574));
    /// ```
    FrameLen, u32
}
byte_unit! {
    /// Bytes a frame occupies on the link that is being modelled, after overhead compensation
    /// (spec §7). Counts in clocks and deficits.
    WireLen, u32
}
byte_unit! {
    /// Bytes of memory a queued frame holds, bookkeeping included (the kernel's `truesize`). Counts
    /// against the memory limit only.
    MemSize, u64
}

/// A rate in bytes per second, as CAKE counts it; people and `tc` speak of bits.
///
/// ```
/// use ucake::units::Rate;
/// assert_eq!(Rate::from_bits(20_000_000), Rate::from_bytes(2_500_000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rate(u64);

impl Rate {
    /// A rate of `bytes` bytes per second.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A rate of `bits` bits per second, truncated to whole bytes as `tc` does.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits / 8)
    }

    /// Bytes per second.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Bits per second, at most `u64::MAX`.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0.saturating_mul(8)
    }

    /// Whether the rate is zero, which configuration never lets through as a shaped rate.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}
