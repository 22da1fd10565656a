//! Writing a capture: classic pcap, nanoseconds, Ethernet.

use std::io::{self, Write};

/// `pcap` with times in nanoseconds, written little-endian.
const MAGIC: u32 = 0xa1b2_3c4d;
/// The most bytes of a frame that readers must expect.
const SNAPLEN: u32 = 262_144;

/// A capture that is being written.
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header of the file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<Self> {
        // Version 2.4; no time zone, no accuracy.
        for word in [MAGIC, 4 << 16 | 2, 0, 0, SNAPLEN, super::read::ETHERNET] {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(Self { out })
    }

    /// Writes a frame of `len` bytes, of which only those in `parts` exist. `at` is in nanoseconds since 1970.
    ///
    /// # Errors
    /// Those of the file.
    pub fn frame(&mut self, at: i64, len: u32, parts: [&[u8]; 2]) -> io::Result<()> {
        let at = at.max(0);
        let exists = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; 16];
        let second = u32::try_from(at / 1_000_000_000).unwrap_or(u32::MAX);
        let fraction = u32::try_from(at % 1_000_000_000).unwrap_or(0);
        let fields = [second, fraction, u32::try_from(exists).unwrap_or(u32::MAX), len];
        for (room, field) in header.chunks_exact_mut(4).zip(fields) {
            room.copy_from_slice(&field.to_le_bytes());
        }
        self.out.write_all(&header)?;
        parts.iter().try_for_each(|part| self.out.write_all(part))
    }

    /// Has everything written.
    ///
    /// # Errors
    /// Those of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
