//! What a frame is charged against the memory limit.
//!
//! Problem: `memlimit 4mb` has to hold as many frames here as in Linux, or a configuration that is carried
//! over means something else.
//! Source: the running kernel's charges for frames of 60 to 1514 bytes (`tests/oracle/data/truesize.json`).
//! Law: 576 bytes of bookkeeping, and the buffer that the frame and 16 bytes before it fit into: 320, 704 or
//! 1728 bytes. Longer frames lie in pages behind the smallest of these: 4 KiB, 8 KiB, 16 KiB …
//! Left out: the exact number of pages of long frames, which in Linux depends on who made them; that law is
//! not recorded but reckoned.

use crate::units::{FrameLen, MemSize};

/// What Linux keeps of a frame besides its bytes, in all buffers.
const BOOKKEEPING: u64 = 576;
/// Room before the frame.
const HEADROOM: u64 = 16;
/// Buffers that are in one piece.
const BUFFERS: [u64; 3] = [320, 704, 1728];
/// The least that is taken in pages.
const PAGE: u64 = 4096;

/// The longest frame in each of the buffers that are in one piece.
pub const LONGEST: [usize; 3] = [304, 688, 1712];

/// What Linux charges for a frame of `len` bytes, link-layer header included.
///
/// ```
/// use ucake::packet::truesize;
/// use ucake::units::{FrameLen, MemSize};
/// assert_eq!(truesize(FrameLen(60)), MemSize(896));
/// assert_eq!(truesize(FrameLen(1514)), MemSize(2304));
/// ```
#[must_use]
pub fn truesize(len: FrameLen) -> MemSize {
    let len = u64::from(len.0);
    let whole = BUFFERS.into_iter().find(|&buffer| len + HEADROOM <= buffer);
    let paged = || BUFFERS[0] + len.next_power_of_two().max(PAGE);
    MemSize(BOOKKEEPING + whole.unwrap_or_else(paged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_frames_of_each_buffer_are_those() {
        for (longest, buffer) in LONGEST.into_iter().zip(BUFFERS) {
            assert_eq!(longest as u64 + HEADROOM, buffer);
        }
        assert!(truesize(FrameLen(1713)) > truesize(FrameLen(1712)));
    }

    #[test]
    fn a_longer_frame_is_never_charged_less() {
        let charges: Vec<_> = (0..200_000).map(|len| truesize(FrameLen(len))).collect();
        assert!(charges.is_sorted());
        assert_eq!(truesize(FrameLen(u32::MAX)), MemSize(896 + (1 << 32)));
    }
}
