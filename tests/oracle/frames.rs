//! Frames as bytes, from the link layer to the payload, valid unless a test wants otherwise.

use std::net::{Ipv4Addr, Ipv6Addr};

use ucake::packet::checksum;

/// EtherTypes.
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const ARP: u16 = 0x0806;
/// Tag protocol identifiers: customer and service tag.
pub const CTAG: u16 = 0x8100;
pub const STAG: u16 = 0x88a8;
/// Protocol numbers.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// An Ethernet frame with the VLAN tags `(identifier, control)`, outermost first.
pub fn ethernet(tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (identifier, control) in tags {
        frame.extend(identifier.to_be_bytes());
        frame.extend(control.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 header.
#[derive(Clone, Copy)]
pub struct V4 {
    pub tos: u8,
    pub protocol: u8,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// Flags and offset.
    pub fragment: u16,
}

impl V4 {
    pub const fn new(protocol: u8) -> Self {
        Self {
            tos: 0,
            protocol,
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 1, 1),
            fragment: 0x4000,
        }
    }

    /// The header and `payload` behind it.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, self.tos];
        packet.extend(len16(20 + payload.len()).to_be_bytes());
        packet.extend([0x12, 0x34]);
        packet.extend(self.fragment.to_be_bytes());
        packet.extend([64, self.protocol, 0, 0]);
        packet.extend(self.source.octets());
        packet.extend(self.destination.octets());
        let sum = checksum::finish(checksum::sum(&packet));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(payload);
        packet
    }

    /// Sum of the pseudo header.
    pub fn pseudo_sum(&self, len: usize) -> u16 {
        let mut bytes = Vec::new();
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend([0, self.protocol]);
        bytes.extend(len16(len).to_be_bytes());
        checksum::sum(&bytes)
    }
}

/// An IPv6 header.
#[derive(Clone, Copy)]
pub struct V6 {
    pub tos: u8,
    pub label: u32,
    pub next: u8,
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
}

impl V6 {
    pub const fn new(next: u8) -> Self {
        Self {
            tos: 0,
            label: 0,
            next,
            source: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
            destination: Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 1),
        }
    }

    /// The header and `payload` behind it.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.label;
        let mut packet = word.to_be_bytes().to_vec();
        packet.extend(len16(payload.len()).to_be_bytes());
        packet.extend([self.next, 64]);
        packet.extend(self.source.octets());
        packet.extend(self.destination.octets());
        packet.extend(payload);
        packet
    }

    /// Sum of the pseudo header.
    pub fn pseudo_sum(&self, len: usize) -> u16 {
        let mut bytes = Vec::new();
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend(u32::from(len16(len)).to_be_bytes());
        bytes.extend([0, 0, 0, self.next]);
        checksum::sum(&bytes)
    }
}

/// A UDP datagram without checksum.
pub fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    datagram.extend(source.to_be_bytes());
    datagram.extend(destination.to_be_bytes());
    datagram.extend(len16(8 + payload.len()).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// A TCP header.
#[derive(Clone)]
pub struct Tcp {
    pub source: u16,
    pub destination: u16,
    pub sequence: u32,
    pub ack: u32,
    /// The lower twelve bits: reserved ones and flags.
    pub flags: u16,
    pub window: u16,
    /// Options, a multiple of four bytes.
    pub options: Vec<u8>,
}

impl Tcp {
    pub const FIN: u16 = 1;
    pub const SYN: u16 = 2;
    pub const RST: u16 = 4;
    pub const PSH: u16 = 8;
    pub const ACK: u16 = 16;
    pub const URG: u16 = 32;
    pub const ECE: u16 = 64;
    pub const CWR: u16 = 128;
    pub const AE: u16 = 256;

    /// A bare ACK.
    pub fn ack(ack: u32) -> Self {
        Self {
            source: 50_000,
            destination: 443,
            sequence: 1,
            ack,
            flags: Self::ACK,
            window: 1000,
            options: Vec::new(),
        }
    }

    /// The segment, checksum field 0.
    pub fn segment(&self, payload: &[u8]) -> Vec<u8> {
        let words = u16::try_from(5 + self.options.len() / 4).expect("at most 15 words");
        let mut segment = Vec::new();
        segment.extend(self.source.to_be_bytes());
        segment.extend(self.destination.to_be_bytes());
        segment.extend(self.sequence.to_be_bytes());
        segment.extend(self.ack.to_be_bytes());
        segment.extend((words << 12 | self.flags).to_be_bytes());
        segment.extend(self.window.to_be_bytes());
        segment.extend([0, 0, 0, 0]);
        segment.extend(&self.options);
        segment.extend(payload);
        segment
    }
}

/// A UDP datagram over IPv4 in a frame of `len` bytes, tags included.
pub fn udp4(tags: &[(u16, u16)], ip: V4, ports: (u16, u16), len: usize) -> Vec<u8> {
    let payload = len.checked_sub(14 + 4 * tags.len() + 28).expect("room for the headers");
    ethernet(tags, IPV4, &ip.packet(&udp(ports.0, ports.1, &vec![0x5a; payload])))
}

/// A UDP datagram over IPv6 in a frame of `len` bytes, tags included.
pub fn udp6(tags: &[(u16, u16)], ip: V6, ports: (u16, u16), len: usize) -> Vec<u8> {
    let payload = len.checked_sub(14 + 4 * tags.len() + 48).expect("room for the headers");
    ethernet(tags, IPV6, &ip.packet(&udp(ports.0, ports.1, &vec![0x5a; payload])))
}

/// The largest frame of an ordinary device, of a flow that nothing else belongs to. It goes first and
/// keeps the shaper busy for a while.
pub fn plug() -> Vec<u8> {
    let ip = V4 { source: Ipv4Addr::new(192, 0, 2, 9), ..V4::new(UDP) };
    udp4(&[], V4 { destination: Ipv4Addr::new(198, 51, 100, 9), ..ip }, (9, 9), 1514)
}

/// An address from a number.
pub fn host(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 9, high, low)
}

fn len16(len: usize) -> u16 {
    u16::try_from(len).expect("a length of 16 bits")
}
