//! Flow and host hashes.
//!
//! Problem: flows must spread over queues so that nobody outside can aim two of them at one, and both
//! directions of a connection should look alike.
//! Source: spec §4.2; SipHash-1-3 (Aumasson and Bernstein 2012) with a key given from outside, since its
//! output is fixed and does not depend on the processor.
//! Law: addresses and ports are sorted, each pair by itself, then everything is hashed; 0 becomes 1.
//! Left out: looking through NAT, hashes that come with the packet.

use super::config::Isolation;
use crate::packet::{FlowKey, Overrides};
use siphasher::sip::SipHasher13;

/// The hashes of one packet. Host hashes are 0 for what is not IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostHashes {
    /// Of the source host.
    pub source: u32,
    /// Of the destination host.
    pub destination: u32,
}

/// Hashes flow keys under one secret.
#[derive(Clone, Debug)]
pub struct FlowHasher {
    sip: SipHasher13,
}

impl FlowHasher {
    /// A hasher with this key.
    #[must_use]
    pub fn new(key: (u64, u64)) -> Self {
        Self { sip: SipHasher13::new_with_keys(key.0, key.1) }
    }

    /// The hash that chooses the queue in `isolation` mode (spec §4.2 steps 5 and 6).
    #[must_use]
    pub fn queue(&self, key: &FlowKey, overrides: Overrides, isolation: Isolation) -> u32 {
        let flow = overrides.flow().map(|flow| u32::from(flow - 1));
        if isolation.by_flow() {
            return flow.unwrap_or_else(|| self.hash(key));
        }
        // In `hosts` mode a host given from outside cancels itself, as in Linux.
        let hosts = self.hosts(key, overrides, isolation);
        flow.unwrap_or(0) ^ hosts.source ^ hosts.destination
    }

    /// The host hashes that `isolation` asks for, 0 for a side it does not look at (spec §4.2 steps 4
    /// and 6).
    #[must_use]
    pub fn hosts(&self, key: &FlowKey, overrides: Overrides, isolation: Isolation) -> HostHashes {
        if let Some(host) = overrides.host() {
            let of = |wanted: bool| if wanted { u32::from(host - 1) } else { 0 };
            return HostHashes {
                source: of(isolation.by_source()),
                destination: of(isolation.by_destination()),
            };
        }
        let unread = key.source == 0 && key.destination == 0;
        if !key.is_ip() || unread {
            return HostHashes::default();
        }
        let bare = FlowKey {
            ip_proto: 0,
            flow_label: 0,
            source_port: 0,
            destination_port: 0,
            key_id: 0,
            ..*key
        };
        let of = |wanted: bool, host: FlowKey| if wanted { self.hash(&host) } else { 0 };
        HostHashes {
            source: of(isolation.by_source(), FlowKey { destination: 0, ..bare }),
            destination: of(isolation.by_destination(), FlowKey { source: 0, ..bare }),
        }
    }

    fn hash(&self, key: &FlowKey) -> u32 {
        let bytes = sorted_bytes(key);
        // The upper half is as good as the lower; queues are chosen by the low bits of either.
        let hash = (self.sip.hash(&bytes) >> 32) as u32;
        hash.max(1)
    }
}

/// The key as bytes, the same for both directions.
fn sorted_bytes(key: &FlowKey) -> [u8; 56] {
    let (low, high) = sorted(key.source, key.destination);
    let (low_port, high_port) = sorted(key.source_port, key.destination_port);
    let mut bytes = [0; 56];
    bytes[..16].copy_from_slice(&low.to_le_bytes());
    bytes[16..32].copy_from_slice(&high.to_le_bytes());
    bytes[32..34].copy_from_slice(&low_port.to_le_bytes());
    bytes[34..36].copy_from_slice(&high_port.to_le_bytes());
    bytes[36..38].copy_from_slice(&key.ethertype.to_le_bytes());
    bytes[38..40].copy_from_slice(&key.vlan.to_le_bytes());
    bytes[40..44].copy_from_slice(&key.flow_label.to_le_bytes());
    bytes[44..48].copy_from_slice(&key.key_id.to_le_bytes());
    bytes[48..50].copy_from_slice(&key.vlan_kind.to_le_bytes());
    bytes[50] = key.ip_proto;
    bytes
}

fn sorted<T: Ord>(a: T, b: T) -> (T, T) {
    if a <= b { (a, b) } else { (b, a) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ETHERTYPE_IPV4;

    fn key(source: u128, destination: u128, source_port: u16, destination_port: u16) -> FlowKey {
        FlowKey {
            ethertype: ETHERTYPE_IPV4,
            ip_proto: 6,
            source,
            destination,
            source_port,
            destination_port,
            ..FlowKey::default()
        }
    }

    fn hasher() -> FlowHasher {
        FlowHasher::new((1, 2))
    }

    #[test]
    fn both_directions_of_a_connection_hash_alike() {
        let there = hasher().queue(&key(1, 2, 1000, 80), Overrides::NONE, Isolation::Flows);
        let back = hasher().queue(&key(2, 1, 80, 1000), Overrides::NONE, Isolation::Flows);
        assert_eq!(there, back);
    }

    #[test]
    fn a_host_hashes_alike_as_source_and_as_destination() {
        let sends = hasher().hosts(&key(7, 9, 1, 2), Overrides::NONE, Isolation::TripleIsolate);
        let receives = hasher().hosts(&key(8, 7, 3, 4), Overrides::NONE, Isolation::TripleIsolate);
        assert_eq!(sends.source, receives.destination);
        assert_ne!(sends.destination, receives.source);
    }

    #[test]
    fn ports_protocol_and_flow_label_do_not_change_a_host() {
        let one = key(7, 9, 1, 2);
        let other = FlowKey { ip_proto: 17, flow_label: 5, source_port: 9, ..one };
        let mode = Isolation::TripleIsolate;
        assert_eq!(
            hasher().hosts(&one, Overrides::NONE, mode),
            hasher().hosts(&other, Overrides::NONE, mode)
        );
    }

    #[test]
    fn what_is_not_ip_has_no_hosts_but_a_flow() {
        let arp = FlowKey { ethertype: 0x0806, ..FlowKey::default() };
        assert_eq!(
            hasher().hosts(&arp, Overrides::NONE, Isolation::TripleIsolate),
            HostHashes::default()
        );
        assert_ne!(hasher().queue(&arp, Overrides::NONE, Isolation::TripleIsolate), 0);
        assert_eq!(hasher().queue(&arp, Overrides::NONE, Isolation::Hosts), 0);
    }

    #[test]
    fn another_key_gives_other_queues() {
        let flow = key(1, 2, 3, 4);
        let other = FlowHasher::new((3, 4));
        assert_ne!(
            hasher().queue(&flow, Overrides::NONE, Isolation::Flows),
            other.queue(&flow, Overrides::NONE, Isolation::Flows)
        );
    }

    #[test]
    fn hosts_mode_joins_both_sides_and_srchost_looks_at_one() {
        let mode = Isolation::Hosts;
        let hosts = hasher().hosts(&key(1, 2, 3, 4), Overrides::NONE, mode);
        assert_eq!(
            hasher().queue(&key(1, 2, 9, 9), Overrides::NONE, mode),
            hosts.source ^ hosts.destination
        );
        assert_eq!(
            hasher().queue(&key(1, 2, 3, 4), Overrides::NONE, Isolation::Srchost),
            hasher().queue(&key(1, 99, 5, 6), Overrides::NONE, Isolation::Srchost)
        );
    }

    #[test]
    fn what_is_given_from_outside_takes_the_place_of_what_would_be_hashed() {
        let packet = key(1, 2, 3, 4);
        let class = Overrides::from_class(0x0005_0007);
        assert_eq!(hasher().queue(&packet, class, Isolation::TripleIsolate), 6);
        let hosts = hasher().hosts(&packet, class, Isolation::TripleIsolate);
        assert_eq!(hosts, HostHashes { source: 4, destination: 4 });
        let by_source = hasher().hosts(&packet, Overrides::NONE, Isolation::Srchost).source;
        let flow_only = Overrides::from_class(7);
        assert_eq!(hasher().queue(&packet, flow_only, Isolation::Srchost), 6 ^ by_source);
        assert_eq!(hasher().queue(&packet, class, Isolation::Srchost), 6 ^ 4);
    }

    #[test]
    fn in_hosts_mode_a_host_given_from_outside_cancels_itself() {
        let class = Overrides::from_class(0x0005_0000);
        assert_eq!(hasher().queue(&key(1, 2, 3, 4), class, Isolation::Hosts), 0);
    }
}
