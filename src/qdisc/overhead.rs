//! Overhead compensation: what a packet weighs on the link that is modelled.
//!
//! Problem: a modem adds headers, cells or a line code that the shaper cannot see; a rate kept without
//! them is exceeded on the link.
//! Source: spec §7. Law: strip the link layer if asked, add the overhead, raise to the smallest packet,
//! then count cells or line code.
//! Deliberately different from Linux: the sum is signed, so that a negative overhead on a short packet
//! gives 0, not four gigabytes.
//! Left out: dividing a superpacket; the caller asks once per segment.

use super::config::{LinkLayer, Overhead};
use super::stats::MinMax;
use crate::units::{FrameLen, WireLen};

/// A cell carries 48 bytes and takes 53.
const CELL_PAYLOAD: u32 = 48;
const CELL: u32 = 53;

/// Computes lengths on the wire and keeps their statistics.
#[derive(Clone, Debug, Default)]
pub struct Compensator {
    overhead: Overhead,
    network_size: MinMax,
    adjusted_size: MinMax,
    /// Running mean of the network offset, in 1/65536 bytes.
    network_offset: u64,
}

impl Compensator {
    /// Uses `overhead` from the next packet on.
    pub fn set(&mut self, overhead: Overhead) {
        self.overhead = overhead;
    }

    /// Forgets the sizes seen (spec §2.7).
    pub fn reset_sizes(&mut self) {
        self.network_size = MinMax::default();
        self.adjusted_size = MinMax::default();
    }

    /// Length on the wire of one packet of `len` bytes whose network header starts at `network_offset`.
    pub fn adjust(&mut self, len: FrameLen, network_offset: u16) -> WireLen {
        let network = network_len(&self.overhead, len, network_offset);
        let wire = wire_len(&self.overhead, network);
        self.network_size.observe(network);
        self.adjusted_size.observe(wire.0);
        wire
    }

    /// Takes the network offset of `packets` packets into the running mean.
    pub fn observe_offset(&mut self, network_offset: u16, packets: u16) {
        let sample = u64::from(network_offset) << 16;
        for _ in 0..packets {
            let next = self.network_offset - (self.network_offset >> 8) + (sample >> 8);
            if next == self.network_offset {
                break;
            }
            self.network_offset = next;
        }
    }

    /// Smallest and largest size before overhead.
    #[must_use]
    pub fn network_size(&self) -> MinMax {
        self.network_size
    }

    /// Smallest and largest size after overhead.
    #[must_use]
    pub fn adjusted_size(&self) -> MinMax {
        self.adjusted_size
    }

    /// Mean distance to the network header, rounded.
    #[must_use]
    pub fn average_network_offset(&self) -> u16 {
        u16::try_from((self.network_offset + 0x8000) >> 16).unwrap_or(u16::MAX)
    }
}

fn network_len(overhead: &Overhead, len: FrameLen, network_offset: u16) -> u32 {
    if overhead.raw { len.0 } else { len.0.saturating_sub(u32::from(network_offset)) }
}

fn wire_len(overhead: &Overhead, network: u32) -> WireLen {
    let size = network.saturating_add_signed(i32::from(overhead.bytes));
    let size = size.max(u32::from(overhead.mpu));
    WireLen(match overhead.link_layer {
        LinkLayer::Noatm => size,
        LinkLayer::Atm => size.div_ceil(CELL_PAYLOAD).saturating_mul(CELL),
        LinkLayer::Ptm => size.saturating_add(size.div_ceil(64)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(bytes: i16, mpu: u16, link_layer: LinkLayer) -> Overhead {
        Overhead { bytes, mpu, link_layer, raw: false }
    }

    #[test]
    fn lengths_are_those_of_the_specification() {
        use LinkLayer::{Atm, Noatm, Ptm};
        // Spec §7.3: frame, setting, network size, adjusted.
        let raw_atm = Overhead { bytes: 10, mpu: 0, link_layer: Atm, raw: true };
        let vectors = [
            (1514, Overhead::default(), 1514, 1514),
            (1514, raw_atm, 1514, 1696),
            (1514, stripped(10, 0, Atm), 1500, 1696),
            (1514, stripped(38, 84, Noatm), 1500, 1538),
            (60, stripped(38, 84, Noatm), 46, 84),
            (1514, stripped(18, 64, Noatm), 1500, 1518),
            (60, stripped(18, 64, Noatm), 46, 64),
            (1514, stripped(48, 0, Atm), 1500, 1749),
            (54, stripped(48, 0, Atm), 40, 106),
            (66, stripped(40, 0, Atm), 52, 106),
            (1506, stripped(40, 0, Atm), 1492, 1696),
            (1514, stripped(30, 0, Ptm), 1500, 1554),
            (1514, stripped(22, 0, Ptm), 1500, 1546),
        ];
        for (frame, overhead, network, adjusted) in vectors {
            let got = network_len(&overhead, FrameLen(frame), 14);
            assert_eq!(got, network, "{frame} with {overhead:?}");
            assert_eq!(wire_len(&overhead, got), WireLen(adjusted), "{frame} with {overhead:?}");
        }
    }

    #[test]
    fn the_header_taken_off_is_the_one_that_is_there() {
        let mut tagged = Compensator::default();
        tagged.set(stripped(0, 0, LinkLayer::Noatm));
        assert_eq!(tagged.adjust(FrameLen(1518), 18), WireLen(1500));
    }

    #[test]
    fn the_smallest_packet_is_applied_before_cells_are_counted() {
        assert_eq!(wire_len(&stripped(0, 64, LinkLayer::Atm), 20), WireLen(106));
    }

    #[test]
    fn ptm_rounds_each_started_64_up() {
        let ptm = stripped(0, 0, LinkLayer::Ptm);
        assert_eq!(wire_len(&ptm, 64), WireLen(65));
        assert_eq!(wire_len(&ptm, 65), WireLen(67));
    }

    #[test]
    fn a_negative_overhead_on_a_short_packet_gives_nothing_not_gigabytes() {
        assert_eq!(wire_len(&stripped(-64, 0, LinkLayer::Noatm), 46), WireLen(0));
        assert_eq!(wire_len(&stripped(-64, 84, LinkLayer::Noatm), 46), WireLen(84));
    }

    #[test]
    fn minima_start_at_all_ones_and_the_mean_offset_rounds() {
        let mut fresh = Compensator::default();
        assert_eq!(fresh.network_size(), MinMax { min: 65535, max: 0 });
        for _ in 0..10_000 {
            fresh.observe_offset(14, 1);
        }
        assert_eq!(fresh.average_network_offset(), 14);
    }
}
