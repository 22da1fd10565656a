//! Frames for tests, built the long way round.
//!
//! Law: nothing here shares code with what it tests. Sums are added word by word, headers are
//! pushed byte by byte, and what the segments of a train must look like is said by building each of
//! them anew.

use super::VnetHeader;

/// The sum of `bytes`, one word after the other.
pub(crate) fn plain_sum(bytes: &[u8]) -> u16 {
    let mut total = 0_u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        total = (total & 0xffff) + (total >> 16);
    }
    u16::try_from(total).expect("folded in every round")
}

/// A packet by its fields.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// TPID and VLAN id of each tag, outermost first.
    pub(crate) tags: Vec<(u16, u16)>,
    pub(crate) tos: u8,
    pub(crate) id: u16,
    pub(crate) ip: Ip,
    pub(crate) transport: Layer4,
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Ip {
    /// Options, a multiple of four bytes; flags and fragment offset.
    V4 { options: Vec<u8>, fragment: u16 },
    /// Flow label; extension headers with their numbers, each complete but for its next header.
    V6 { label: u32, extensions: Vec<(u8, Vec<u8>)> },
}

#[derive(Clone, Debug)]
pub(crate) enum Layer4 {
    Tcp {
        sequence: u32,
        flags: u8,
        options: Vec<u8>,
    },
    Udp,
    /// Anything else: the payload is all there is.
    Raw(u8),
}

impl Ip {
    pub(crate) fn v4() -> Self {
        Self::V4 { options: Vec::new(), fragment: 0x4000 }
    }

    pub(crate) fn v6() -> Self {
        Self::V6 { label: 0, extensions: Vec::new() }
    }

    /// Hop-by-hop and destination options.
    pub(crate) fn v6_extended() -> Self {
        let hop_by_hop = vec![0, 0, 1, 4, 0, 0, 0, 0];
        let destination = vec![0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        Self::V6 { label: 0, extensions: vec![(0, hop_by_hop), (60, destination)] }
    }
}

impl Packet {
    pub(crate) const SOURCE_PORT: u16 = 443;
    pub(crate) const DESTINATION_PORT: u16 = 50_000;

    /// TCP over IPv4 with a timestamp option.
    pub(crate) fn tcp() -> Self {
        let options = vec![1, 1, 8, 10, 0, 1, 2, 3, 4, 5, 6, 7];
        Self {
            tags: Vec::new(),
            tos: 0,
            id: 0x1234,
            ip: Ip::v4(),
            transport: Layer4::Tcp { sequence: 0x0102_0304, flags: 0x10, options },
            payload: vec![0x5a; 33],
        }
    }

    /// UDP over IPv4.
    pub(crate) fn udp() -> Self {
        Self { transport: Layer4::Udp, ..Self::tcp() }
    }

    pub(crate) fn network_offset(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    pub(crate) fn transport_offset(&self) -> usize {
        self.network_offset()
            + match &self.ip {
                Ip::V4 { options, .. } => 20 + options.len(),
                Ip::V6 { extensions, .. } => {
                    40 + extensions.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
                }
            }
    }

    pub(crate) fn header_len(&self) -> usize {
        self.bytes().len() - self.payload.len()
    }

    /// The frame, all checksums valid.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut frame = self.partial();
        if let Some(field) = self.checksum_field() {
            let sum = plain_sum(&frame[self.transport_offset()..]);
            let checksum = if !sum == 0 { 0xffff } else { !sum };
            frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        frame
    }

    /// The frame as a superpacket of segments of `mss` bytes, with what stands before it.
    pub(crate) fn train(&self, mss: u16) -> (Vec<u8>, VnetHeader) {
        let udp = matches!(self.transport, Layer4::Udp);
        let gso_type = match (&self.ip, &self.transport) {
            (_, Layer4::Udp) => VnetHeader::GSO_UDP_L4,
            (Ip::V4 { .. }, _) => VnetHeader::GSO_TCPV4,
            (Ip::V6 { .. }, _) => VnetHeader::GSO_TCPV6,
        };
        let vnet = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type,
            hdr_len: 7, // as wrong as one gets to see it
            gso_size: mss,
            csum_start: u16::try_from(self.transport_offset()).expect("short headers"),
            csum_offset: if udp { 6 } else { 16 },
        };
        (self.partial(), vnet)
    }

    /// The frames that a superpacket of `mss` must become, each of them built from its own fields.
    pub(crate) fn segments(&self, mss: u16) -> Vec<Self> {
        let pieces: Vec<_> = self.payload.chunks(mss.into()).collect();
        let count = u16::try_from(pieces.len()).expect("short payloads");
        let segment = |(index, piece): (u16, &&[u8])| {
            let mut transport = self.transport.clone();
            if let Layer4::Tcp { sequence, flags, .. } = &mut transport {
                *sequence = sequence.wrapping_add(u32::from(index) * u32::from(mss));
                *flags &= if index + 1 == count { 0xff } else { 0xf6 };
                *flags &= if index == 0 { 0xff } else { 0x7f };
            }
            let id = self.id.wrapping_add(index);
            Self { id, transport, payload: piece.to_vec(), ..self.clone() }
        };
        (0..count).zip(&pieces).map(segment).collect()
    }

    pub(crate) fn ip_checksum_verifies(&self, frame: &[u8]) -> bool {
        let header = &frame[self.network_offset()..self.transport_offset()];
        matches!(self.ip, Ip::V6 { .. }) || plain_sum(header) == 0xffff
    }

    /// Adds the pseudo header that the frame itself states, and everything behind it.
    pub(crate) fn transport_checksum_verifies(&self, frame: &[u8]) -> bool {
        let network = self.network_offset();
        let addresses = match self.ip {
            Ip::V4 { .. } => &frame[network + 12..network + 20],
            Ip::V6 { .. } => &frame[network + 8..network + 40],
        };
        let mut covered = self.pseudo(addresses, frame.len() - self.transport_offset());
        covered.extend(&frame[self.transport_offset()..]);
        plain_sum(&covered) == 0xffff
    }

    /// Where the transport's checksum stands.
    pub(crate) fn checksum_field(&self) -> Option<usize> {
        match self.transport {
            Layer4::Tcp { .. } => Some(self.transport_offset() + 16),
            Layer4::Udp => Some(self.transport_offset() + 6),
            Layer4::Raw(_) => None,
        }
    }

    fn proto(&self) -> u8 {
        match self.transport {
            Layer4::Tcp { .. } => 6,
            Layer4::Udp => 17,
            Layer4::Raw(proto) => proto,
        }
    }

    fn pseudo(&self, addresses: &[u8], len: usize) -> Vec<u8> {
        let len = u16::try_from(len).expect("short packets");
        let mut pseudo = addresses.to_vec();
        pseudo.extend(len.to_be_bytes());
        pseudo.extend([0, self.proto()]);
        pseudo
    }

    /// The frame with the sum of the pseudo header where the transport's checksum goes.
    fn partial(&self) -> Vec<u8> {
        let transport = self.transport_bytes();
        let (network, addresses) = self.network_bytes(transport.len());
        let mut frame = self.link_bytes();
        frame.extend(network);
        frame.extend(&transport);
        if let Some(field) = self.checksum_field() {
            let sum = plain_sum(&self.pseudo(&addresses, transport.len()));
            frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    }

    fn link_bytes(&self) -> Vec<u8> {
        let mut link = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for (tpid, vlan) in &self.tags {
            link.extend(tpid.to_be_bytes());
            link.extend(vlan.to_be_bytes());
        }
        link.extend(match self.ip {
            Ip::V4 { .. } => [0x08, 0x00],
            Ip::V6 { .. } => [0x86, 0xdd],
        });
        link
    }

    fn network_bytes(&self, rest: usize) -> (Vec<u8>, Vec<u8>) {
        match &self.ip {
            Ip::V4 { options, fragment } => self.v4_bytes(options, *fragment, rest),
            Ip::V6 { label, extensions } => self.v6_bytes(*label, extensions, rest),
        }
    }

    fn v4_bytes(&self, options: &[u8], fragment: u16, rest: usize) -> (Vec<u8>, Vec<u8>) {
        let words = u8::try_from(5 + options.len() / 4).expect("at most 15");
        let len = u16::try_from(20 + options.len() + rest).expect("short packets");
        let addresses = vec![10, 0, 0, 1, 10, 0, 0, 2];
        let mut header = vec![0x40 | words, self.tos];
        header.extend(len.to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(fragment.to_be_bytes());
        header.extend([64, self.proto(), 0, 0]);
        header.extend(&addresses);
        header.extend(options);
        let checksum = !plain_sum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        (header, addresses)
    }

    fn v6_bytes(
        &self,
        label: u32,
        extensions: &[(u8, Vec<u8>)],
        rest: usize,
    ) -> (Vec<u8>, Vec<u8>) {
        let own: usize = extensions.iter().map(|(_, bytes)| bytes.len()).sum();
        let len = u16::try_from(own + rest).expect("short packets");
        let mut addresses = vec![0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        addresses.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        let mut header = (6 << 28 | u32::from(self.tos) << 20 | label).to_be_bytes().to_vec();
        header.extend(len.to_be_bytes());
        header.extend([extensions.first().map_or(self.proto(), |(number, _)| *number), 64]);
        header.extend(&addresses);
        for (index, (_, bytes)) in extensions.iter().enumerate() {
            header.push(extensions.get(index + 1).map_or(self.proto(), |(number, _)| *number));
            header.extend(&bytes[1..]);
        }
        (header, addresses)
    }

    fn transport_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !matches!(self.transport, Layer4::Raw(_)) {
            bytes.extend(Self::SOURCE_PORT.to_be_bytes());
            bytes.extend(Self::DESTINATION_PORT.to_be_bytes());
        }
        match &self.transport {
            Layer4::Tcp { sequence, flags, options } => {
                bytes.extend(sequence.to_be_bytes());
                bytes.extend([9, 8, 7, 6]);
                let words = u8::try_from(5 + options.len() / 4).expect("at most 15");
                bytes.extend([words << 4, *flags, 1, 0, 0, 0, 0, 0]);
                bytes.extend(options);
            }
            Layer4::Udp => {
                let len = u16::try_from(8 + self.payload.len()).expect("short packets");
                bytes.extend(len.to_be_bytes());
                bytes.extend([0, 0]);
            }
            Layer4::Raw(_) => {}
        }
        bytes.extend(&self.payload);
        bytes
    }
}
