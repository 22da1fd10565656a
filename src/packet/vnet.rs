//! The header in front of a frame that says what is still to be done to it.
//!
//! Problem: a kernel hands out superpackets and unfinished checksums only to those who can read,
//! and write, the ten bytes that describe them.
//! Source: `virtio_net_hdr` of the virtio specification, "Network Device", as taps (`IFF_VNET_HDR`)
//! and packet sockets (`PACKET_VNET_HDR`) use it: native byte order, offsets counted from the first
//! byte of the Ethernet header.
//! Law: the header is a claim by whoever wrote it. [`dissect()`](super::dissect()) checks the
//! claim; `hdr_len` is not believed at all, because forwarded superpackets come with more than the
//! headers in it.
//! Left out: the longer forms (`num_buffers`, hash reports) and tunnel offloads. Ports ask for ten
//! bytes and do not offer the rest.

/// Offload information of one frame.
///
/// ```
/// use ucake::packet::VnetHeader;
/// assert_eq!(VnetHeader::decode(&VnetHeader::PLAIN.encode()), VnetHeader::PLAIN);
/// assert!(!VnetHeader::PLAIN.needs_csum());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`Self::NEEDS_CSUM`], [`Self::DATA_VALID`].
    pub flags: u8,
    /// One of the `GSO_*` constants, with [`Self::GSO_ECN`] as an additional bit.
    pub gso_type: u8,
    /// Bytes of headers; a hint that is written but never believed.
    pub hdr_len: u16,
    /// Payload bytes of every segment but the last.
    pub gso_size: u16,
    /// Offset of the first byte the checksum covers.
    pub csum_start: u16,
    /// Offset of the checksum field, counted from `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Bytes of the header.
    pub const LEN: usize = 10;

    /// Nothing is left to be done: an ordinary frame with finished checksums.
    pub const PLAIN: Self =
        Self { flags: 0, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0 };

    /// Flag: the checksum field holds the sum of the pseudo header only.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: the checksum was verified by the device.
    pub const DATA_VALID: u8 = 2;

    /// Type: not a superpacket.
    pub const GSO_NONE: u8 = 0;
    /// Type: TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// Type: one UDP datagram to be fragmented (UFO), which Linux gave up in 4.14.
    pub const GSO_UDP: u8 = 3;
    /// Type: TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// Type: a row of UDP datagrams (USO).
    pub const GSO_UDP_L4: u8 = 5;
    /// Additional bit: the first TCP segment carries CWR.
    pub const GSO_ECN: u8 = 0x80;

    /// Reads the header.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let &[flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = bytes;
        Self {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let [h0, h1] = self.hdr_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// Whether the checksum is unfinished.
    #[must_use]
    pub const fn needs_csum(&self) -> bool {
        self.flags & Self::NEEDS_CSUM != 0
    }

    /// The type without [`Self::GSO_ECN`].
    #[must_use]
    pub const fn gso_kind(&self) -> u8 {
        self.gso_type & !Self::GSO_ECN
    }

    /// The same for a frame that is a single segment. `hdr_len` becomes 0, as the kernel refuses
    /// one that exceeds the frame and asks for none here.
    #[must_use]
    pub const fn without_gso(self) -> Self {
        Self { gso_type: Self::GSO_NONE, hdr_len: 0, gso_size: 0, ..self }
    }

    /// The same once the checksum is finished.
    #[must_use]
    pub const fn with_finished_csum(self) -> Self {
        Self { flags: self.flags & !Self::NEEDS_CSUM, csum_start: 0, csum_offset: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_virtio_puts_them() {
        let header = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: VnetHeader::GSO_TCPV6 | VnetHeader::GSO_ECN,
            hdr_len: 0x0102,
            gso_size: 0x0304,
            csum_start: 0x0506,
            csum_offset: 0x0708,
        };
        let bytes = header.encode();
        assert_eq!(bytes[..2], [1, 0x84]);
        assert_eq!(bytes[2..4], 0x0102_u16.to_ne_bytes());
        assert_eq!(bytes[4..6], 0x0304_u16.to_ne_bytes());
        assert_eq!(bytes[6..8], 0x0506_u16.to_ne_bytes());
        assert_eq!(bytes[8..], 0x0708_u16.to_ne_bytes());
        assert_eq!(VnetHeader::decode(&bytes), header);
        assert_eq!(header.gso_kind(), VnetHeader::GSO_TCPV6);
    }

    #[test]
    fn a_single_segment_keeps_its_unfinished_checksum() {
        let train = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: VnetHeader::GSO_TCPV4,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        let single = train.without_gso();
        assert!(single.needs_csum());
        assert_eq!((single.gso_type, single.gso_size, single.hdr_len), (0, 0, 0));
        assert_eq!((single.csum_start, single.csum_offset), (34, 16));
        assert_eq!(single.with_finished_csum(), VnetHeader::PLAIN);
    }
}
