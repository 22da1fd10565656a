//! What was handed to a packet socket and may not have left the device.
//!
//! Problem: the kernel tells how much memory is still charged to the socket, not for which frames.
//! Source: `SIOCOUTQ`; what a frame is charged was measured ([`charge`]).
//! Law: frames leave in order, so what is charged is charged for the last ones. An error of [`charge`] shifts
//! the answer by no more than its share, and is gone when everything has left.
//! Left out: which frame left when.

use std::collections::VecDeque;

/// What a kernel keeps in one piece of any Ethernet frame.
const LEAST_HEADERS: usize = 14;

/// What was handed over and may not have left, in order.
pub(super) struct Handed {
    messages: VecDeque<Message>,
    charge: u64,
    bytes: u64,
}

/// One message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    /// Bytes of memory.
    pub(super) charge: u64,
    /// Bytes of frames.
    pub(super) bytes: u64,
}

impl Handed {
    /// More small frames than a packet socket has room for.
    const MOST: usize = 2048;

    pub(super) fn new() -> Self {
        Self { messages: VecDeque::with_capacity(Self::MOST), charge: 0, bytes: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= Self::MOST
    }

    pub(super) fn push(&mut self, message: Message) {
        if self.is_full() {
            self.pop();
        }
        self.charge += message.charge;
        self.bytes += message.bytes;
        self.messages.push_back(message);
    }

    /// Forgets what has left when `held` bytes of memory are charged; bytes of frames that have not.
    pub(super) fn settle(&mut self, held: u64) -> u64 {
        while let Some(first) = self.messages.front() {
            if held > 0 && self.charge - first.charge < held {
                break;
            }
            self.pop();
        }
        self.bytes
    }

    fn pop(&mut self) {
        if let Some(Message { charge, bytes }) = self.messages.pop_front() {
            self.charge -= charge;
            self.bytes -= bytes;
        }
    }
}

/// Bytes of memory that the kernel charges a packet socket for a frame of `len` bytes, `header_len` being what
/// its vnet header says of headers.
///
/// Below a page the frame is in one piece, of a size that the kernel's allocator has, with 320 bytes of
/// its own in it, 16 for the device, and 256 beside it. Above, the headers are such a piece and the rest is
/// whole pages. So it was measured on 1 December 2026 with Linux 6.18 on x86-64: frames were sent one by
/// one through a veth with a `tbf` that held them, and `SIOCOUTQ` was read before and after each.
///
/// | bytes | 60–220 | 250–640 | 700–1514 | 2000–3700 | 4000 | 4200–8000 | 14534 | 29014 | 65000 |
/// |---|---|---|---|---|---|---|---|---|---|
/// | charge | 832 | 1280 | 2304 | 4352 | 8448 | 9024 | 17216 | 33600 | 66368 |
pub(super) fn charge(len: usize, header_len: usize) -> u64 {
    const PAGE: usize = 4096;
    const BESIDE: usize = 256;
    const FOR_DEVICE: usize = 16;
    let linear = if len + FOR_DEVICE < PAGE { len } else { header_len.clamp(LEAST_HEADERS, len) };
    let pages = (len - linear).div_ceil(PAGE) * PAGE;
    let charge = piece_size(linear + FOR_DEVICE + 320) + BESIDE + pages;
    u64::try_from(charge).unwrap_or(u64::MAX)
}

/// The size that the allocator has for a piece of `len` bytes.
const fn piece_size(len: usize) -> usize {
    // The smallest is one that network buffers alone have.
    const SMALLEST: usize = 576;
    if len <= SMALLEST { SMALLEST } else { len.next_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As measured: length, bytes of headers in the vnet header, charge.
    const MEASURED: [(usize, usize, u64); 20] = [
        (60, 0, 832),
        (220, 0, 832),
        (250, 0, 1280),
        (640, 0, 1280),
        (700, 0, 2304),
        (1514, 0, 2304),
        (2000, 0, 4352),
        (1600, 54, 2304),
        (3700, 54, 4352),
        (3800, 54, 8448),
        (4050, 54, 8448),
        (4096, 54, 4928),
        (4200, 54, 9024),
        (8000, 54, 9024),
        (9000, 54, 13120),
        (14534, 54, 17216),
        (29014, 54, 33600),
        (50000, 54, 54080),
        (65000, 54, 66368),
        (65500, 54, 66368),
    ];

    #[test]
    fn the_charge_is_the_one_that_was_measured() {
        for (len, header_len, measured) in MEASURED {
            assert_eq!(charge(len, header_len), measured, "{len} bytes");
        }
        // What cannot be is no reason to stop.
        assert!(charge(0, 0) > 0 && charge(5000, 70_000) > 0 && charge(10, 70_000) > 0);
    }

    fn handed(messages: u32) -> Handed {
        let mut handed = Handed::new();
        (0..messages).for_each(|_| handed.push(Message { charge: 2304, bytes: 1514 }));
        handed
    }

    #[test]
    fn what_has_left_is_known_by_the_memory_that_is_left() {
        let mut handed = handed(10);
        assert_eq!(handed.settle(23_040), 15_140);
        assert_eq!(handed.settle(4 * 2304), 4 * 1514);
        assert_eq!(handed.settle(4 * 2304 - 1), 4 * 1514, "one that has left in part has not left");
        assert_eq!(handed.settle(0), 0);
        assert_eq!((handed.charge, handed.bytes), (0, 0));
    }

    #[test]
    fn a_wrong_charge_shifts_the_estimate_and_does_not_add_up() {
        for wrong in [1152, 4608] {
            let mut handed = Handed::new();
            for _ in 0..100_000 {
                handed.push(Message { charge: wrong, bytes: 1514 });
                // Ten are in flight, always.
                let estimate = handed.settle(10 * 2304);
                assert!((4 * 1514..=20 * 1514).contains(&estimate) || estimate < 20 * 1514);
            }
            assert!(handed.messages.len() <= 20, "{}", handed.messages.len());
            assert_eq!(handed.settle(0), 0);
        }
    }

    #[test]
    fn a_store_that_nobody_asks_stays_as_it_is() {
        let handed = handed(10_000);
        assert_eq!(handed.messages.len(), Handed::MOST);
        assert_eq!(handed.messages.capacity(), Handed::new().messages.capacity());
        assert_eq!(handed.bytes, 2048 * 1514);
    }
}
