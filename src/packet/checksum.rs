//! The internet checksum: computed, updated, finished.
//!
//! Problem: whoever changes a header word must mend the checksum over it, and whoever cuts a
//! superpacket must finish the one its segments carry.
//! Source: RFC 1071 (the sum, and why byte order does not matter to it), RFC 1624 §3 (the update).
//! Law: a checksum that is found is only ever *updated* by what was changed. One that was broken
//! stays broken, so that the receiver sees the damage and not we hide it.
//! Left out: CRC32c (SCTP), which no port hands out unfinished.
//!
//! A *sum* here is the folded ones' complement sum; a *checksum* is its complement. Both have two
//! zeros, 0 and 0xffff. Sums that contain at least one non-zero word fold to 0xffff, never to 0;
//! the updates below rely on that to give the same bytes no matter in how many steps they are made.

use super::bytes::{put_word, word};

/// The sum of `bytes` taken as 16-bit words in network order, an odd last byte padded with zero.
///
/// ```
/// // The header of RFC 1071's era: a valid one sums to 0xffff, checksum included.
/// assert_eq!(ucake::packet::checksum::sum(&[0x45, 0x00, 0xba, 0xff]), 0xffff);
/// ```
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    // Eight bytes at a time, as two halves into one wide sum: no carry is lost before 2^31 chunks (16 GiB).
    let (chunks, rest) = bytes.as_chunks();
    let mut total = chunks.iter().fold(0, |total, chunk| total + halves(*chunk));
    let mut tail = [0; 8];
    tail.iter_mut().zip(rest).for_each(|(byte, from)| *byte = *from);
    total += halves(tail);
    // Words were read in native order; swapping the sum is as good as swapping each (RFC 1071 §2B).
    u16::from_be(fold(total))
}

/// The sum of two sums.
#[must_use]
pub fn add(a: u16, b: u16) -> u16 {
    let (total, carry) = a.overflowing_add(b);
    total + u16::from(carry)
}

/// A sum after one of its words changed from `old` to `new`.
#[must_use]
pub fn replace(sum: u16, old: u16, new: u16) -> u16 {
    add(add(sum, !old), new)
}

/// A checksum after one of the words under it changed from `old` to `new` (RFC 1624 §3).
///
/// ```
/// // The example of RFC 1624 §4.
/// assert_eq!(ucake::packet::checksum::update(0xdd2f, 0x5555, 0x3285), 0x0000);
/// ```
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !replace(!checksum, old, new)
}

/// The checksum for a sum. Of the two zeros the one that is not 0: to UDP 0 means "no checksum",
/// and to everyone else both mean the same.
#[must_use]
pub fn finish(sum: u16) -> u16 {
    match !sum {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Finishes the checksum at `start + offset` over everything from `start` on. The field holds the
/// sum of the pseudo header, as `NEEDS_CSUM` promises. Returns false if the field is not in the
/// frame.
pub fn complete(frame: &mut [u8], start: u16, offset: u16) -> bool {
    complete_over(frame, &[], start, offset)
}

/// [`complete`] for a frame in two pieces. What `head` has from `start` on must be even in length,
/// which TCP and UDP headers are.
pub(crate) fn complete_over(head: &mut [u8], payload: &[u8], start: u16, offset: u16) -> bool {
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    let (Some(covered), Some(_)) = (head.get(start..), word(head, field)) else {
        return false;
    };
    let checksum = finish(add(sum(covered), sum(payload)));
    put_word(head, field, checksum).is_some()
}

/// Changes the word at `at` and mends the checksum at `check` for it; `None`, with nothing written,
/// if either is not there.
pub(super) fn rewrite(bytes: &mut [u8], at: usize, new: u16, check: usize) -> Option<()> {
    let old = word(bytes, at)?;
    let mended = update(word(bytes, check)?, old, new);
    put_word(bytes, at, new)?;
    put_word(bytes, check, mended)
}

/// The two 32-bit halves of eight bytes, added.
fn halves(chunk: [u8; 8]) -> u64 {
    let value = u64::from_ne_bytes(chunk);
    (value & 0xffff_ffff) + (value >> 32)
}

/// Adds carries back in until sixteen bits are left. Each round keeps the value modulo 0xffff, and
/// turns nothing but 0 into 0.
fn fold(mut total: u64) -> u16 {
    loop {
        match u16::try_from(total) {
            Ok(folded) => return folded,
            Err(_) => total = (total & 0xffff) + (total >> 16),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::packet::testing::plain_sum;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_fast_sum_is_the_plain_one(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(sum(&bytes), plain_sum(&bytes));
        }

        #[test]
        fn an_updated_checksum_is_a_recomputed_one(
            mut bytes in prop::collection::vec(any::<u8>(), 4..64), new: u16, at: prop::sample::Index,
        ) {
            bytes[0] |= 1; // not all zero, so that there is one way to write the sum
            let at = 2 + (at.index(bytes.len() - 3) & !1);
            let before = !plain_sum(&bytes);
            let old = word(&bytes, at).unwrap();
            put_word(&mut bytes, at, new).unwrap();
            prop_assert_eq!(update(before, old, new), !plain_sum(&bytes));
        }

        #[test]
        fn a_wrong_checksum_is_wrong_by_as_much_after_an_update(
            checksum: u16, error in 1..0xffff_u16, old: u16, new in 1..=0xffff_u16,
        ) {
            let (right, wrong) = (update(checksum, old, new), update(add(checksum, error), old, new));
            prop_assert_ne!(replace(right, 0, 0), replace(wrong, 0, 0));
        }
    }

    #[test]
    fn a_finished_checksum_is_never_zero() {
        assert_eq!(finish(0xffff), 0xffff);
        assert_eq!(finish(0), 0xffff);
        assert_eq!(finish(1), 0xfffe);
    }

    #[test]
    fn a_field_outside_the_frame_is_left_alone() {
        let mut frame = [7; 9];
        assert!(!complete(&mut frame, 4, 4));
        assert!(!complete(&mut frame, 10, 0));
        assert!(!complete(&mut frame, u16::MAX, u16::MAX));
        assert_eq!(frame, [7; 9]);
        assert!(complete(&mut frame, 3, 4));
    }
}
