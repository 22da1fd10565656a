//! Flow and host hashes.
//!
//! Problem: flows must spread over queues so that nobody outside can aim two of them at one, and both
//! directions of a connection should look alike.
//! Source: spec §4.2; SipHash-1-3 (Aumasson and Bernstein 2012) with a key given from outside, since its
//! output is fixed and does not depend on the processor.
//! Law: addresses and ports are sorted, each pair by itself, then everything is hashed; 0 becomes 1.
//! Left out: looking through NAT, which whoever makes the keys has done (`packet::nat`); hashes that come with the packet.

use super::config::Isolation;
use crate::packet::{ETHERTYPE_IPV4, FlowKey, Overrides};
use core::hash::Hasher as _;
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
    key: (u64, u64),
}

impl FlowHasher {
    /// A hasher with this key.
    #[must_use]
    pub fn new(key: (u64, u64)) -> Self {
        Self { key }
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
        let of = |wanted: bool, address| if wanted { self.host(key, address) } else { 0 };
        HostHashes {
            source: of(isolation.by_source(), key.source),
            destination: of(isolation.by_destination(), key.destination),
        }
    }

    /// The hash of everything a key says, the same for both directions. What is hashed is as short as it can
    /// be, since most of the work is in its length: of the four messages here each has a length of its own, and
    /// so the hash of no other kind of key.
    fn hash(&self, key: &FlowKey) -> u32 {
        let (low_port, high_port) = sorted(key.source_port, key.destination_port);
        let ports = tag(key) << 32 | u64::from(join(low_port, high_port));
        let mut message = self.message();
        let ends = [key.source, key.destination].map(|address| short(key, address));
        if let ([Some(source), Some(destination)], 0) = (ends, key.flow_label) {
            let (low, high) = sorted(source, destination);
            message.write_u64((u64::from(high) << 32 | u64::from(low)).to_le());
            message.write_u64(ports.to_le());
            message.write_u32(key.key_id.to_le());
            message.write_u8(key.ip_proto);
            return folded(message);
        }
        let (low, high) = sorted(key.source, key.destination);
        write_address(&mut message, low);
        write_address(&mut message, high);
        message.write_u64(ports.to_le());
        message.write_u64((u64::from(key.key_id) << 32 | u64::from(key.flow_label)).to_le());
        message.write_u16(key.ethertype.to_le());
        message.write_u8(key.ip_proto);
        folded(message)
    }

    /// The hash of a host with this address on the network that `key` tells of.
    fn host(&self, key: &FlowKey, address: u128) -> u32 {
        let mut message = self.message();
        if let Some(address) = short(key, address) {
            message.write_u64((tag(key) << 32 | u64::from(address)).to_le());
            return folded(message);
        }
        write_address(&mut message, address);
        message.write_u64((tag(key) << 32 | u64::from(key.ethertype)).to_le());
        folded(message)
    }

    fn message(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key.0, self.key.1)
    }
}

/// An IPv4 address; `None` for any other, and for what only claims to be one.
fn short(key: &FlowKey, address: u128) -> Option<u32> {
    if key.ethertype == ETHERTYPE_IPV4 { u32::try_from(address).ok() } else { None }
}

/// The VLAN tag.
fn tag(key: &FlowKey) -> u64 {
    join(key.vlan, key.vlan_kind).into()
}

fn join(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

/// In two words, in the same order on every processor (as `to_le` does elsewhere).
fn write_address(message: &mut SipHasher13, address: u128) {
    message.write_u64(((address & 0xffff_ffff_ffff_ffff) as u64).to_le());
    message.write_u64(((address >> 64) as u64).to_le());
}

/// The upper half is as good as the lower; queues are chosen by the low bits of either.
fn folded(message: SipHasher13) -> u32 {
    ((message.finish() >> 32) as u32).max(1)
}

fn sorted<T: Ord>(a: T, b: T) -> (T, T) {
    if a <= b { (a, b) } else { (b, a) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ETHERTYPE_IPV6;
    use std::collections::HashSet;

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
    fn every_part_of_a_key_makes_another_flow() {
        let v4 = key(1, 2, 3, 4);
        let v6 = FlowKey { ethertype: ETHERTYPE_IPV6, ..v4 };
        let wide = key(1 << 32, 2, 3, 4);
        let mut hashes = HashSet::new();
        for plain in [v4, v6, wide, FlowKey { ethertype: 0x0806, ..v4 }] {
            let others = [
                plain,
                FlowKey { source: 1 << 64, ..plain },
                FlowKey { destination: 5, ..plain },
                FlowKey { source_port: 5, ..plain },
                FlowKey { destination_port: 5, ..plain },
                FlowKey { vlan: 5, ..plain },
                FlowKey { vlan_kind: 5, ..plain },
                FlowKey { flow_label: 5, ..plain },
                FlowKey { key_id: 5, ..plain },
                FlowKey { ip_proto: 5, ..plain },
            ];
            for other in others {
                hashes.insert(hasher().queue(&other, Overrides::NONE, Isolation::Flows));
            }
        }
        // With that long source `v4` and `wide` are the same key.
        assert_eq!(hashes.len(), 40 - 1);
    }

    #[test]
    fn a_host_is_another_in_another_family_or_vlan() {
        let v4 = key(1, 2, 3, 4);
        let others = [
            v4,
            key(3, 2, 3, 4),
            key(1 << 32, 2, 3, 4),
            FlowKey { ethertype: ETHERTYPE_IPV6, ..v4 },
            FlowKey { vlan: 5, ..v4 },
            FlowKey { vlan_kind: 5, ..v4 },
        ];
        let source = |key| hasher().hosts(key, Overrides::NONE, Isolation::TripleIsolate).source;
        assert_eq!(others.iter().map(source).collect::<HashSet<_>>().len(), others.len());
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
