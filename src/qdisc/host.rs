//! Hosts: how many bulk flows each one has.
//!
//! Problem: a host that opens many connections must not get many shares.
//! Source: spec §4.4 (tables), §4.5 (counters), §4.6 (quantum).
//! Law: a flow's quantum is divided by the number of bulk flows of its busier end; the remainder is paid
//! out at random, so that nothing is lost to rounding.
//! Left out: who counts as bulk; the tin changes a flow's state at one place and tells this file there.

use super::flow_table::{PerSlot, first_way, slot_of};

/// Counts stop here, so that no sequence of changes can run past the table of quotients.
const MOST_BULK: u16 = 1024;

/// 65535 divided by each load; nobody's load is 0, but where it is, it counts as 1.
#[expect(clippy::indexing_slicing, reason = "worked out by the compiler")]
const SHARES: [u16; MOST_BULK as usize + 1] = {
    let mut shares = [u16::MAX; MOST_BULK as usize + 1];
    let mut load = 1;
    while load <= MOST_BULK {
        shares[load as usize] = u16::MAX / load;
        load += 1;
    }
    shares
};

/// One side, sources or destinations, of a tin's hosts.
#[derive(Clone, Debug)]
pub struct HostTable {
    tags: PerSlot<u32>,
    bulk_flows: PerSlot<u16>,
}

impl HostTable {
    /// A table without hosts.
    #[must_use]
    pub fn new() -> Self {
        Self { tags: PerSlot::new(), bulk_flows: PerSlot::new() }
    }

    /// The entry of the host with `hash`: its own, else one that no bulk flow uses, else a shared one
    /// (spec §4.4).
    pub fn assign(&mut self, hash: u32) -> u16 {
        let own = self.tags.set_of(hash).map(|tag| tag == hash);
        if let Some(slot) = first_way(hash, own) {
            return slot;
        }
        let free = self.bulk_flows.set_of(hash).map(|flows| flows == 0);
        let slot = first_way(hash, free).unwrap_or_else(|| slot_of(hash));
        self.tags[slot] = hash;
        slot
    }

    /// A flow of this host became bulk.
    pub fn join(&mut self, slot: u16) {
        let count = &mut self.bulk_flows[slot];
        *count = (*count + 1).min(MOST_BULK);
    }

    /// A flow of this host is bulk no more.
    pub fn leave(&mut self, slot: u16) {
        let count = &mut self.bulk_flows[slot];
        *count = count.saturating_sub(1);
    }

    /// The hash of the host at `slot`.
    #[must_use]
    pub fn tag(&self, slot: u16) -> u32 {
        self.tags[slot]
    }

    /// Nobody's flows count any more.
    pub fn forget_loads(&mut self) {
        self.bulk_flows = PerSlot::new();
    }

    /// Bulk flows of this host.
    #[must_use]
    pub fn bulk_flows(&self, slot: u16) -> u16 {
        self.bulk_flows[slot]
    }
}

/// The deficit a flow is given for one round (spec §4.6), `flow_quantum`/`load`, in 65536ths of a byte.
#[expect(clippy::indexing_slicing, reason = "the load is at most `MOST_BULK`")]
#[must_use]
pub fn share(flow_quantum: u16, load: u16) -> u32 {
    u32::from(flow_quantum) * u32::from(SHARES[usize::from(load.min(MOST_BULK))])
}

/// A share in whole bytes, the remainder paid out by `dither`, 16 uniform bits.
#[must_use]
pub fn dithered(share: u32, dither: u16) -> i32 {
    // At most 65535 × 65535 + 65535, which 32 bits just hold.
    ((share + u32::from(dither)) >> 16).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_entry() {
        let mut hosts = HostTable::new();
        let slot = hosts.assign(77);
        hosts.join(slot);
        assert_eq!(hosts.assign(77), slot);
    }

    #[test]
    fn an_entry_without_bulk_flows_is_taken_over() {
        let mut hosts = HostTable::new();
        let first = hosts.assign(8);
        assert_eq!(hosts.assign(8 + 1024), first, "nobody counted on it");
        hosts.join(first);
        assert_ne!(hosts.assign(8), first);
    }

    #[test]
    fn a_full_set_is_shared() {
        let mut hosts = HostTable::new();
        for i in 0..8 {
            let slot = hosts.assign(16 + i * 1024);
            hosts.join(slot);
        }
        let slot = hosts.assign(16 + 8 * 1024);
        assert_eq!(slot, 16);
        assert_eq!(hosts.bulk_flows(slot), 1);
    }

    #[test]
    fn counts_stop_at_both_ends() {
        let mut hosts = HostTable::new();
        hosts.leave(3);
        assert_eq!(hosts.bulk_flows(3), 0);
        for _ in 0..2000 {
            hosts.join(3);
        }
        assert_eq!(hosts.bulk_flows(3), 1024);
    }

    #[test]
    fn the_quantum_is_divided_by_the_load_and_dithered() {
        let quantum = |flow_quantum, load, dither| dithered(share(flow_quantum, load), dither);
        assert_eq!(quantum(1514, 1, 0), 1513);
        assert_eq!(quantum(1514, 1, 1514), 1514);
        assert_eq!(quantum(300, 3, 0), 99);
        let ones = (0..=u16::MAX).filter(|&dither| quantum(300, 1024, dither) == 1).count();
        assert!((18_000..20_000).contains(&ones), "about 29 in 100: {ones} of 65536");
    }
}
