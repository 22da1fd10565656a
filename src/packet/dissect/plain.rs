//! The headers that nearly all packets have, read without a parser.
//!
//! Problem: a general parser takes longer for a packet than the discipline does, and nearly all packets are
//! TCP or UDP right behind an IP header that is in order.
//! Law: what is read here is what `etherparse` reads; where that is not certain at a glance (fragments,
//! extension headers, tunnels, other transports, a length or a version that lies), nothing is read here.
//! A property test compares the two.
//! Left out: everything else, which is [`super`]'s.

use etherparse::ip_number as proto;

use super::Ip;
use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Network};

/// The one bit of an IPv4 header's flags and fragment offset that a whole datagram may have.
const DONT_FRAGMENT: u16 = 0x4000;

impl<'a> Ip<'a> {
    /// The header that `ethertype` announces, with TCP or UDP behind it. `None` says nothing about the
    /// packet but that it has to be looked at more closely.
    #[inline(always)]
    pub(super) fn plain(ethertype: u16, bytes: &'a [u8], offset: usize) -> Option<Self> {
        match ethertype {
            ETHERTYPE_IPV4 => Self::plain_v4(bytes, offset),
            ETHERTYPE_IPV6 => Self::plain_v6(bytes, offset),
            _ => None,
        }
    }

    fn plain_v4(bytes: &'a [u8], offset: usize) -> Option<Self> {
        let [first, _, l0, l1, _, _, f0, f1, _, proto, _, _, addresses @ ..] =
            bytes.first_chunk::<20>()?;
        let &[s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        let header_len = usize::from(first & 15) * 4;
        let fragment = u16::from_be_bytes([*f0, *f1]) & !DONT_FRAGMENT;
        if first >> 4 != 4 || header_len < 20 || fragment != 0 || !is_plain(*proto) {
            return None;
        }
        Some(Self {
            network: Network::Ipv4,
            flow_label: 0,
            source: u32::from_be_bytes([s0, s1, s2, s3]).into(),
            destination: u32::from_be_bytes([d0, d1, d2, d3]).into(),
            proto: *proto,
            fragment: false,
            authentication: None,
            transport_offset: offset + header_len,
            payload: bytes.get(header_len..usize::from(u16::from_be_bytes([*l0, *l1])))?,
        })
    }

    fn plain_v6(bytes: &'a [u8], offset: usize) -> Option<Self> {
        let ([a, b, c, d, l0, l1, proto, _], rest) = bytes.split_first_chunk()?;
        let (source, rest) = rest.split_first_chunk()?;
        let (destination, rest) = rest.split_first_chunk()?;
        let len = usize::from(u16::from_be_bytes([*l0, *l1]));
        // A length of 0 stands for one that is told elsewhere.
        if a >> 4 != 6 || len == 0 || !is_plain(*proto) {
            return None;
        }
        Some(Self {
            network: Network::Ipv6,
            flow_label: u32::from_be_bytes([*a, *b, *c, *d]) & 0x000f_ffff,
            source: u128::from_be_bytes(*source),
            destination: u128::from_be_bytes(*destination),
            proto: *proto,
            fragment: false,
            authentication: None,
            transport_offset: offset + 40,
            payload: rest.get(..len)?,
        })
    }
}

fn is_plain(number: u8) -> bool {
    number == proto::TCP.0 || number == proto::UDP.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::testing::{Ip as TestIp, Layer4, Packet};
    use proptest::prelude::*;

    /// A packet as they are, then damaged: a byte here and there overwritten, the end cut off or added to.
    fn damaged() -> impl Strategy<Value = (u16, Vec<u8>)> {
        let ip = prop_oneof![
            (0..=10_usize, prop_oneof![Just(0x4000), Just(0), any::<u16>()])
                .prop_map(|(words, fragment)| TestIp::V4 { options: vec![1; words * 4], fragment }),
            prop_oneof![Just(0), 0..1_u32 << 20]
                .prop_map(|label| TestIp::V6 { label, extensions: Vec::new() }),
            Just(TestIp::v6_extended()),
        ];
        let transport = prop_oneof![
            Just(Packet::tcp().transport),
            Just(Layer4::Udp),
            any::<u8>().prop_map(Layer4::Raw)
        ];
        let payload = prop::collection::vec(any::<u8>(), 0..40);
        let packet = (ip, transport, payload, any::<u8>());
        let hits = prop::collection::vec((0..60_usize, any::<u8>()), 0..3);
        (packet, hits, -70..20_isize).prop_map(|((ip, transport, payload, tos), hits, more)| {
            let ethertype = match ip {
                TestIp::V4 { .. } => ETHERTYPE_IPV4,
                TestIp::V6 { .. } => ETHERTYPE_IPV6,
            };
            let frame = Packet { ip, transport, payload, tos, ..Packet::tcp() }.bytes();
            let mut bytes = frame[14..].to_vec();
            for (at, value) in hits {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes.resize(bytes.len().saturating_add_signed(more), 0);
            (ethertype, bytes)
        })
    }

    fn agree(ethertype: u16, bytes: &[u8]) -> Result<(), TestCaseError> {
        let Some(plain) = Ip::plain(ethertype, bytes, 14) else { return Ok(()) };
        prop_assert_eq!(Some(plain), Ip::closely(ethertype, bytes, 14));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn what_is_read_at_a_glance_is_what_a_closer_look_finds((ethertype, bytes) in damaged()) {
            agree(ethertype, &bytes)?;
        }

        #[test]
        fn any_bytes_are_read_alike_or_left_to_a_closer_look(
            first in prop_oneof![Just(0x45), Just(0x60), any::<u8>()],
            proto in prop_oneof![Just(6), Just(17), any::<u8>()],
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
            len in 0..90_u8,
        ) {
            for (at, value) in [(0, first), (2, 0), (3, len), (4, 0), (5, len), (6, proto), (9, proto)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            for ethertype in [ETHERTYPE_IPV4, ETHERTYPE_IPV6] {
                agree(ethertype, &bytes)?;
            }
        }
    }

    #[test]
    fn ordinary_packets_need_no_closer_look() {
        let labelled = TestIp::V6 { label: 0xabcde, extensions: Vec::new() };
        let optional = TestIp::V4 { options: vec![1; 40], fragment: 0 };
        for ip in [TestIp::v4(), optional, TestIp::v6(), labelled] {
            let v4 = matches!(ip, TestIp::V4 { .. });
            for packet in [Packet::tcp(), Packet::udp()] {
                let bytes = Packet { ip: ip.clone(), ..packet }.bytes();
                let ethertype = if v4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
                assert!(Ip::plain(ethertype, &bytes[14..], 14).is_some());
            }
        }
    }
}
