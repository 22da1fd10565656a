//! Values taken off the front of the input; zeros once it is used up.

/// The input, as far as it has not been read.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        array[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// One of `choices`.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.u8()) % choices.len()]
    }

    /// A number whose size is as likely to be small as large.
    pub fn number(&mut self) -> u64 {
        let bits = u32::from(self.u8() % 65);
        match bits {
            0 => 0,
            _ => self.u64() >> (64 - bits),
        }
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
