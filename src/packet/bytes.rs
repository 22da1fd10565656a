//! Sixteen-bit words at an offset, in network order.
//!
//! Problem: a frame is untrusted, and every offset into it may lie; indexing would panic.
//! Law: every access says whether the bytes are there. Nothing here knows what a header is.

/// The word at `at`, if it lies within `bytes`.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*pair))
}

/// Replaces the word at `at`; `None`, with nothing written, if it does not lie within `bytes`.
pub(super) fn put_word(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    let pair = bytes.get_mut(at..at.checked_add(2)?)?;
    pair.copy_from_slice(&value.to_be_bytes());
    Some(())
}

/// The double word at `at`, if it lies within `bytes`.
pub(super) fn double_word(bytes: &[u8], at: usize) -> Option<u32> {
    let high = word(bytes, at)?;
    let low = word(bytes, at.checked_add(2)?)?;
    Some((u32::from(high) << 16) | u32::from(low))
}

/// Replaces the double word at `at`; `None` if it does not lie within `bytes`.
pub(super) fn put_double_word(bytes: &mut [u8], at: usize, value: u32) -> Option<()> {
    let four = bytes.get_mut(at..at.checked_add(4)?)?;
    four.copy_from_slice(&value.to_be_bytes());
    Some(())
}
