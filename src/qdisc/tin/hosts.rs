//! Whose flow it is, and what its hosts leave it.
//!
//! Problem: a host with many flows is to have no more than one with few.
//! Source: spec §4.5 and §4.6.
//! Law: each bulk flow, and no other, counts as a load on its source and its destination, as far as the isolation is fair by
//! them; a flow's quantum is divided by the load of its busier end.
//! Left out: the tables of hosts ([`host`]), and when a flow becomes bulk ([`Tin::set_state`]).

use super::super::flow::Hosts;
use super::super::hash::HostHashes;
use super::super::host;
use super::{Set, Tin};

impl Tin {
    /// Gives a flow the hosts with these hashes, or none for the time being.
    pub(super) fn assign_hosts(&mut self, slot: u16, hashes: Option<HostHashes>) {
        // A shared queue may be bulk: its account moves from the hosts it had to those it gets.
        let bulk = self.set(slot) == Set::Bulk;
        if bulk {
            self.leave_hosts(slot);
        }
        let hosts = hashes.map_or(Hosts::UNKNOWN, |hashes| self.hosts_with(hashes));
        if self.accounts[slot].hosts != hosts {
            self.accounts[slot].hosts = hosts;
            if self.sets.is_old(slot) {
                self.sets.old_mut().hosts_changed();
            }
        }
        if bulk {
            self.join_hosts(slot);
        }
    }

    /// The entries of the hosts with these hashes.
    fn hosts_with(&mut self, hashes: HostHashes) -> Hosts {
        let mut hosts = Hosts { source: 0, destination: 0 };
        if self.isolation.fair_by_source() {
            hosts.source = self.sources.assign(hashes.source);
        }
        if self.isolation.fair_by_destination() {
            hosts.destination = self.destinations.assign(hashes.destination);
        }
        hosts
    }

    pub(super) fn join_hosts(&mut self, slot: u16) {
        let hosts = self.accounts[slot].hosts;
        if hosts == Hosts::UNKNOWN {
            return;
        }
        if self.isolation.fair_by_source() {
            self.sources.join(hosts.source);
        }
        if self.isolation.fair_by_destination() {
            self.destinations.join(hosts.destination);
        }
    }

    pub(super) fn leave_hosts(&mut self, slot: u16) {
        let hosts = self.accounts[slot].hosts;
        if hosts == Hosts::UNKNOWN {
            return;
        }
        if self.isolation.fair_by_source() {
            self.sources.leave(hosts.source);
        }
        if self.isolation.fair_by_destination() {
            self.destinations.leave(hosts.destination);
        }
    }

    /// Bulk flows of a flow's source and destination host; 0 for a side that nobody is fair by.
    pub(in crate::qdisc) fn host_loads(&self, hosts: Hosts) -> (u16, u16) {
        let (mut sources, mut destinations) = (0, 0);
        if hosts == Hosts::UNKNOWN {
            return (0, 0);
        }
        if self.isolation.fair_by_source() {
            sources = self.sources.bulk_flows(hosts.source);
        }
        if self.isolation.fair_by_destination() {
            destinations = self.destinations.bulk_flows(hosts.destination);
        }
        (sources, destinations)
    }

    /// Whether flows share by source host, by destination host.
    #[cfg(test)]
    pub(in crate::qdisc) fn fair_by(&self) -> [bool; 2] {
        [self.isolation.fair_by_source(), self.isolation.fair_by_destination()]
    }

    /// The quantum of a flow, divided by the load of its busier end (spec §4.6).
    pub(super) fn quantum(&self, slot: u16, dither: u16) -> i32 {
        host::dithered(self.share_of(self.accounts[slot].hosts), dither)
    }

    /// The same before it is dithered, of a flow with these hosts.
    pub(super) fn share_of(&self, hosts: Hosts) -> u32 {
        let (sources, destinations) = self.host_loads(hosts);
        host::share(self.flow_quantum, sources.max(destinations))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{arrive, bulk};
    use super::*;

    #[test]
    fn a_collision_moves_the_queues_account_to_the_newcomers_hosts() {
        let mut tin = Tin::new();
        let slots: Vec<u16> = (0..8).map(|i| bulk(&mut tin, 16 + i * 1024, 100)).collect();
        assert_eq!(tin.host_loads(tin.account(slots[0]).hosts), (8, 8));
        let shared = arrive(&mut tin, 16 + 8 * 1024, 200);
        assert_eq!(shared, slots[0]);
        assert_eq!(
            tin.host_loads(tin.account(shared).hosts),
            (1, 8),
            "another source, the same destination"
        );
        assert_eq!(tin.host_loads(tin.account(slots[1]).hosts), (7, 8));
    }

    #[test]
    fn a_flow_that_resumes_gets_its_hosts_again() {
        let mut tin = Tin::new();
        let slot = arrive(&mut tin, 5, 100);
        let entry = tin.account(slot).hosts.source;
        // Nobody counts on the entry, so that another host may take it over.
        let other = bulk(&mut tin, 6, 100 + 1024);
        assert_eq!(tin.account(other).hosts.source, entry);
        assert_eq!(arrive(&mut tin, 5, 100), slot, "the same queue, its tag still there");
        assert_ne!(tin.account(slot).hosts.source, entry, "and its host is not the other one");
    }
}
