//! The set-associative flow table.
//!
//! Problem: with one slot per hash value two of a few dozen flows already share a queue; with eight ways
//! to go, hundreds do not.
//! Source: spec §4.3. Law: a flow looks for its tag in the eight slots of its set, then for a slot nobody
//! uses, and only then shares one.
//! Left out: hosts (`host`) and what is in the queues (`flow`).

use core::ops::{Index, IndexMut};

/// Queues per tin.
pub const SLOTS: u16 = 1024;
/// Slots in a set.
pub const WAYS: u16 = 8;

/// One `T` for each slot. A slot number beyond the end means the one it is congruent to, so that
/// indexing needs no check and cannot fail.
#[derive(Clone, Debug)]
pub struct PerSlot<T>(Box<[T; SLOTS as usize]>);

impl<T: Default> PerSlot<T> {
    /// The default everywhere.
    pub fn new() -> Self {
        Self(Box::new(core::array::from_fn(|_| T::default())))
    }
}

impl<T> PerSlot<T> {
    /// Those of the set of `hash`, of which the first has the number of a slot.
    #[expect(clippy::indexing_slicing, reason = "the remainder is below the number of sets")]
    pub fn set_of(&self, hash: u32) -> &[T; WAYS as usize] {
        let (sets, _) = self.0.as_chunks();
        &sets[usize::from(slot_of(hash) / WAYS) % (SLOTS / WAYS) as usize]
    }

    /// Each slot with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        (0..).zip(self.0.iter())
    }
}

#[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
impl<T> Index<u16> for PerSlot<T> {
    type Output = T;
    fn index(&self, slot: u16) -> &T {
        &self.0[usize::from(slot % SLOTS)]
    }
}

#[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
impl<T> IndexMut<u16> for PerSlot<T> {
    fn index_mut(&mut self, slot: u16) -> &mut T {
        &mut self.0[usize::from(slot % SLOTS)]
    }
}

/// Where a packet's flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The queue.
    pub slot: u16,
    /// How it was found.
    pub found: Found,
}

/// How a flow's queue was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// An active queue carries this tag: nothing to do for hosts.
    Active,
    /// A queue carries this tag or took it, and was inactive: hosts are to be assigned.
    Inactive,
    /// The set is full of other flows; one has to share.
    Collision,
}

/// Tags and what looking for them came to.
#[derive(Clone, Debug)]
pub struct FlowTable {
    tags: PerSlot<u32>,
    /// Packets found in a displaced slot.
    pub indirect_hits: u64,
    /// Flows that were new.
    pub misses: u64,
    /// Flows that had to share.
    pub collisions: u64,
}

impl FlowTable {
    /// A table without flows.
    #[must_use]
    pub fn new() -> Self {
        Self { tags: PerSlot::new(), indirect_hits: 0, misses: 0, collisions: 0 }
    }

    /// Finds or makes a place for the flow with `hash`; `is_active` tells of a slot whether its queue is
    /// in some list.
    pub fn place(&mut self, hash: u32, is_active: impl Fn(u16) -> bool) -> Place {
        let place = self.find(hash, is_active);
        self.tags[place.slot] = hash;
        place
    }

    /// The hash of the flow that had `slot` last.
    pub fn tag(&self, slot: u16) -> u32 {
        self.tags[slot]
    }

    fn find(&mut self, hash: u32, is_active: impl Fn(u16) -> bool) -> Place {
        let found = |active| if active { Found::Active } else { Found::Inactive };
        let own = slot_of(hash);
        if self.tags[own] == hash {
            return Place { slot: own, found: found(is_active(own)) };
        }
        if let Some(slot) = first_way(hash, self.tags.set_of(hash).map(|tag| tag == hash)) {
            self.indirect_hits += 1;
            return Place { slot, found: found(is_active(slot)) };
        }
        let base = own / WAYS * WAYS;
        let idle = [0, 1, 2, 3, 4, 5, 6, 7].map(|way| !is_active(base + way));
        if let Some(slot) = first_way(hash, idle) {
            self.misses += 1;
            return Place { slot, found: Found::Inactive };
        }
        self.collisions += 1;
        Place { slot: own, found: Found::Collision }
    }
}

/// The first slot of the set of `hash` that is `wanted`, beginning with its own and going round. All of them
/// are looked at, for where the first is nobody can foresee, processors least of all.
pub fn first_way(hash: u32, wanted: [bool; WAYS as usize]) -> Option<u16> {
    let ways = (0..).zip(wanted).fold(0_u8, |ways, (way, wanted)| ways | u8::from(wanted) << way);
    let slot = slot_of(hash);
    let (inner, base) = (u32::from(slot % WAYS), slot - slot % WAYS);
    let first = ways.rotate_right(inner).trailing_zeros();
    (ways != 0).then(|| base + ((inner + first) & 7) as u16)
}

/// The slot a hash points at.
pub fn slot_of(hash: u32) -> u16 {
    (hash & 0xffff) as u16 % SLOTS
}

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS.is_multiple_of(WAYS) && WAYS == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Places flows that stay active.
    fn fill(hashes: impl IntoIterator<Item = u32>) -> (FlowTable, HashSet<u16>) {
        let mut table = FlowTable::new();
        let mut active = HashSet::new();
        for hash in hashes {
            let place = table.place(hash, |slot| active.contains(&slot));
            active.insert(place.slot);
        }
        (table, active)
    }

    #[test]
    fn the_ways_of_a_hash_go_round_its_set() {
        let mut wanted = [true; WAYS as usize];
        for slot in [13, 14, 15, 8, 9, 10, 11, 12] {
            assert_eq!(first_way(1024 + 13, wanted), Some(slot));
            wanted[usize::from(slot - 8)] = false;
        }
        assert_eq!(first_way(1024 + 13, wanted), None);
    }

    #[test]
    fn eight_flows_with_one_hash_slot_get_eight_queues_and_the_ninth_shares() {
        let (mut table, mut active) = fill((0..8).map(|i| 5 + i * 1024));
        assert_eq!((table.misses, table.collisions, active.len()), (8, 0, 8));
        let ninth = table.place(5 + 8 * 1024, |slot| active.contains(&slot));
        assert_eq!(ninth, Place { slot: 5, found: Found::Collision });
        active.insert(ninth.slot);
        let first = table.place(5, |slot| active.contains(&slot));
        assert_eq!(first.found, Found::Collision, "the sharer owns the tag now");
        assert_eq!(table.collisions, 2);
    }

    #[test]
    fn a_displaced_flow_counts_an_indirect_hit_per_packet() {
        let (mut table, active) = fill([9, 9 + 1024]);
        for _ in 0..3 {
            let place = table.place(9 + 1024, |slot| active.contains(&slot));
            assert_eq!(place, Place { slot: 10, found: Found::Active });
        }
        assert_eq!((table.indirect_hits, table.misses), (3, 2));
    }

    #[test]
    fn an_inactive_queue_with_the_tag_wants_its_hosts_assigned_again() {
        let mut table = FlowTable::new();
        table.place(7, |_| false);
        let again = table.place(7, |_| false);
        assert_eq!(again.found, Found::Inactive);
        assert_eq!(table.misses, 1, "known is not missed");
    }

    #[test]
    fn a_hash_of_zero_matches_a_tag_never_used_and_is_no_miss() {
        let mut table = FlowTable::new();
        table.place(0, |_| false);
        assert_eq!(table.misses, 0);
    }

    #[test]
    fn flows_share_as_seldom_as_the_specification_says() {
        use rand_core::{Rng, SeedableRng};
        let mut random = rand_pcg::Pcg32::seed_from_u64(1);
        // Spec §4.3: mean number of colliding flows among so many.
        for (flows, least, most) in
            [(100, 0.0, 0.1), (256, 0.0, 0.2), (500, 2.5, 5.0), (1024, 130.0, 153.0)]
        {
            let rounds = 40;
            let collisions: u64 =
                (0..rounds).map(|_| fill((0..flows).map(|_| random.next_u32())).0.collisions).sum();
            #[expect(clippy::cast_precision_loss, reason = "small counts")]
            let mean = collisions as f64 / f64::from(rounds);
            assert!((least..=most).contains(&mean), "{flows} flows: {mean} collide");
        }
    }
}
