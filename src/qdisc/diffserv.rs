//! Diffserv: which tin a packet belongs to, and what the tins may claim.
//!
//! Problem: some traffic must not wait behind the rest, and nobody should gain by claiming it is that
//! traffic.
//! Source: spec §3.3 (code points), §3.4 (rates and quanta), §3.2 (numbering); code points from RFC 2474,
//! 2597, 3246, 5865, 8622.
//! Law: a table maps each of 64 code points to a tin; a tin has priority while it keeps below its
//! threshold rate and none beyond it.
//! Left out: reading and clearing the DSCP (`packet`), serving tins (`qdisc::mod`).

use super::config::Diffserv;
use crate::packet::Dscp;
use crate::units::Rate;

/// Most tins any layout has.
pub const MAX_TINS: u16 = 8;

/// Best Effort, Bulk, Video and Voice as tin indices of diffserv4; diffserv3 has no Video.
const BE: u8 = 0;
const BK: u8 = 1;
const VI: u8 = 2;
const VO4: u8 = 3;
const VO3: u8 = 2;

/// What a tin may claim (spec §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Rate up to which the tin has priority; `None` while unlimited.
    pub threshold: Option<Rate>,
    /// Bytes per round among tins while unlimited.
    pub quantum: u16,
}

impl Diffserv {
    /// Number of tins.
    #[must_use]
    pub const fn tin_count(self) -> u8 {
        match self {
            Self::Besteffort => 1,
            Self::Diffserv3 => 3,
            Self::Diffserv4 => 4,
            Self::Diffserv8 | Self::Precedence => 8,
        }
    }

    /// The tin a code point belongs to, as an internal index (priority order, spec §3.2).
    #[must_use]
    pub const fn tin(self, dscp: Dscp) -> u8 {
        let value = dscp.value();
        match self {
            Self::Besteffort => 0,
            Self::Precedence => value >> 3,
            Self::Diffserv3 => diffserv3(value),
            Self::Diffserv4 => diffserv4(value),
            Self::Diffserv8 => diffserv8(value),
        }
    }

    /// The internal index of the tin shown in column `display` (spec §3.2), which packet marks and
    /// priorities number as `display + 1`.
    #[must_use]
    pub const fn displayed(self, display: u8) -> u8 {
        match (self, display) {
            (Self::Diffserv3 | Self::Diffserv4, 0) => 1,
            (Self::Diffserv3 | Self::Diffserv4, 1) => 0,
            _ => display,
        }
    }

    /// The share of tin `index` of an instance with `rate`.
    #[must_use]
    pub fn share(self, index: u8, rate: Option<Rate>) -> Share {
        match self {
            Self::Besteffort => Share { threshold: rate, quantum: 65535 },
            Self::Diffserv3 => three_or_four(rate, &[0, 4, 2], index),
            Self::Diffserv4 => three_or_four(rate, &[0, 4, 1, 2], index),
            Self::Diffserv8 | Self::Precedence => eight(rate, index),
        }
    }
}

/// A tin whose threshold is the rate shifted right, and whose quantum is 1024 shifted as far.
fn three_or_four(rate: Option<Rate>, shifts: &[u8], index: u8) -> Share {
    let shift = shifts.get(usize::from(index)).copied().unwrap_or(0);
    Share {
        threshold: rate.map(|rate| Rate::from_bytes(rate.bytes() >> shift)),
        quantum: 1024 >> shift,
    }
}

/// Each of eight tins may claim 7/8 of what the one before may.
fn eight(rate: Option<Rate>, index: u8) -> Share {
    let mut threshold = rate.map(Rate::bytes);
    let mut quantum = 256_u16;
    for _ in 0..index {
        // Seven eighths in parts: a rate near 2^64 must not wrap on its way down.
        threshold = threshold.map(|bytes| (bytes >> 3) * 7 + (((bytes & 7) * 7) >> 3));
        quantum = ((quantum * 7) >> 3).max(1);
    }
    Share { threshold: threshold.map(Rate::from_bytes), quantum }
}

const fn diffserv3(dscp: u8) -> u8 {
    match dscp {
        1 | 8 => BK,
        4 | 44 | 46 | 48 | 56 => VO3,
        _ => BE,
    }
}

const fn diffserv4(dscp: u8) -> u8 {
    match dscp {
        1 | 8 => BK,
        4 | 16 | 18 | 20 | 22 | 24 | 26 | 28 | 30 | 34 | 36 | 38 => VI,
        32 | 40 | 44 | 46 | 48 | 56 => VO4,
        _ => BE,
    }
}

const fn diffserv8(dscp: u8) -> u8 {
    match dscp {
        1 => 0,
        2 | 8 | 10 | 12 | 14 => 1,
        24 | 26 | 28 | 30 | 34 | 36 | 38 => 3,
        4 | 18 | 20 | 22 => 4,
        16 => 5,
        32 | 40 | 44 | 46 => 6,
        48 | 56 => 7,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_tins_claim_seven_eighths_of_the_one_before() {
        let rate = Some(Rate::from_bits(100_000_000));
        let shares: Vec<Share> = (0..8).map(|i| Diffserv::Diffserv8.share(i, rate)).collect();
        let thresholds: Vec<u64> =
            shares.iter().filter_map(|share| share.threshold).map(Rate::bytes).collect();
        assert_eq!(
            thresholds,
            [
                12_500_000, 10_937_500, 9_570_312, 8_374_023, 7_327_270, 6_411_361, 5_609_940,
                4_908_697
            ]
        );
        let quanta: Vec<u16> = shares.iter().map(|share| share.quantum).collect();
        assert_eq!(quanta, [256, 224, 196, 171, 149, 130, 113, 98]);
    }

    #[test]
    fn three_and_four_tins_claim_fractions_of_the_rate() {
        let rate = Some(Rate::from_bytes(1600));
        let share = |mode: Diffserv, index| {
            let share = mode.share(index, rate);
            (share.threshold.map_or(0, Rate::bytes), share.quantum)
        };
        assert_eq!(share(Diffserv::Besteffort, 0), (1600, 65535));
        assert_eq!(share(Diffserv::Diffserv3, 0), (1600, 1024));
        assert_eq!(share(Diffserv::Diffserv3, 1), (100, 64));
        assert_eq!(share(Diffserv::Diffserv3, 2), (400, 256));
        assert_eq!(share(Diffserv::Diffserv4, 2), (800, 512));
        assert_eq!(share(Diffserv::Diffserv4, 3), (400, 256));
    }
}
