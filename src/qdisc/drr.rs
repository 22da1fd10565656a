//! DRR++: sparse flows first, bulk flows in turn, empty flows remembered for a while.
//!
//! Problem: a packet now and then (DNS, voice, the first of a page) should not wait behind downloads, and
//! should not be able to cheat by being many.
//! Source: spec §1.3 (states), §1.1 step 10 and §1.2 steps 4–6 (transitions); after DRR++ (MacGregor and
//! Shi 2000) and FQ-CoDel (RFC 8290).
//! Law: a flow is sparse until it has used up one quantum; three lists, new before old before decaying;
//! each state is counted as it is entered and left, at one place.
//! Left out: deficits (`flow`), the queue of old flows (`turns`), host loads (`host`), when a flow changes state (`tin`).

use super::flow::Account;
use super::flow_table::PerSlot;
use super::turns::Turns;

const NONE: u16 = u16::MAX;

/// The state of a flow's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Set {
    /// In no list.
    #[default]
    None,
    /// Has not yet used up its first quantum.
    Sparse,
    /// Used it up with its last packet; becomes bulk if more come at once.
    SparseWait,
    /// Uses what it can get.
    Bulk,
    /// Empty; its AQM still remembers.
    Decaying,
}

/// The lists of a tin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Flows that just began to send.
    New,
    /// Flows in their turns.
    Old,
    /// Flows to be forgotten.
    Decaying,
}

/// States, lists and counts of a tin's flows.
#[derive(Clone, Debug)]
pub struct FlowSets {
    places: PerSlot<Place>,
    /// Of each list that is linked; the old flows' is not.
    ends: [Ends; 3],
    old: Turns,
    sparse: u32,
    bulk: u32,
    decaying: u32,
}

/// A flow's state, and its neighbours in the list it is in.
#[derive(Clone, Copy, Debug)]
struct Place {
    previous: u16,
    next: u16,
    list: Option<List>,
    set: Set,
}

impl Default for Place {
    fn default() -> Self {
        Self { previous: NONE, next: NONE, list: None, set: Set::None }
    }
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u16,
    tail: u16,
}

impl Ends {
    const NONE: Self = Self { head: NONE, tail: NONE };

    fn first(self) -> Option<u16> {
        (self.head != NONE).then_some(self.head)
    }
}

#[expect(clippy::indexing_slicing, reason = "there are as many ends as lists")]
impl FlowSets {
    /// No flow in any list.
    pub fn new() -> Self {
        Self {
            places: PerSlot::new(),
            ends: [Ends::NONE; 3],
            old: Turns::new(),
            sparse: 0,
            bulk: 0,
            decaying: 0,
        }
    }

    /// Changes the state of a flow, and with it the counts.
    pub fn change(&mut self, slot: u16, to: Set) {
        let from = core::mem::replace(&mut self.places[slot].set, to);
        if let Some(count) = self.count_of(from) {
            *count -= 1;
        }
        if let Some(count) = self.count_of(to) {
            *count += 1;
        }
    }

    /// Appends a flow that is in no list to `list`.
    #[inline]
    pub fn append(&mut self, slot: u16, list: List, account: Account) {
        self.places[slot].list = Some(list);
        if list == List::Old {
            return self.old.push(slot, account);
        }
        let tail = core::mem::replace(&mut self.ends[list as usize].tail, slot);
        let place = &mut self.places[slot];
        (place.previous, place.next) = (tail, NONE);
        if tail == NONE {
            self.ends[list as usize].head = slot;
        } else {
            self.places[tail].next = slot;
        }
    }

    /// Takes a flow out of the list it is in; its deficit, if that was with the old ones.
    #[inline]
    pub fn remove(&mut self, slot: u16) -> Option<i32> {
        let Place { previous, next, list, .. } = self.places[slot];
        let list = list?;
        self.places[slot].list = None;
        if list == List::Old {
            return self.old.remove(slot);
        }
        if previous == NONE {
            self.ends[list as usize].head = next;
        } else {
            self.places[previous].next = next;
        }
        if next == NONE {
            self.ends[list as usize].tail = previous;
        } else {
            self.places[next].previous = previous;
        }
        None
    }

    /// The old flows.
    pub fn old(&self) -> &Turns {
        &self.old
    }

    /// The old flows, to take their turns.
    pub fn old_mut(&mut self) -> &mut Turns {
        &mut self.old
    }

    /// Whether a flow is an old one.
    pub fn is_old(&self, slot: u16) -> bool {
        self.places[slot].list == Some(List::Old)
    }

    /// The old flow that comes next once the decaying ones had their look-in, if it may not send.
    pub fn turning(&self) -> Option<u16> {
        self.old
            .first()
            .filter(|_| self.ends[List::New as usize].head == NONE && self.old.first_is_in_debt())
    }

    /// The flow to look at: new before old before decaying; on the first pass of a dequeue the decaying
    /// ones have a look-in first, so that they get forgotten (spec §1.2 step 4).
    pub fn next(&self, first_pass: bool) -> Option<u16> {
        let decaying = self.ends[List::Decaying as usize].first();
        decaying
            .filter(|_| first_pass)
            .or_else(|| self.ends[List::New as usize].first())
            .or_else(|| self.old.first())
            .or(decaying)
    }

    /// The state of a flow.
    pub fn set(&self, slot: u16) -> Set {
        self.places[slot].set
    }

    /// Whether a flow is in some list.
    pub fn is_active(&self, slot: u16) -> bool {
        self.set(slot) != Set::None
    }

    /// Flows that are sparse, waiting ones included.
    pub fn sparse(&self) -> u32 {
        self.sparse
    }

    /// Flows that are bulk.
    pub fn bulk(&self) -> u32 {
        self.bulk
    }

    /// Flows that are decaying.
    pub fn decaying(&self) -> u32 {
        self.decaying
    }

    fn count_of(&mut self, set: Set) -> Option<&mut u32> {
        match set {
            Set::None => None,
            Set::Sparse | Set::SparseWait => Some(&mut self.sparse),
            Set::Bulk => Some(&mut self.bulk),
            Set::Decaying => Some(&mut self.decaying),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(sets: &mut FlowSets) -> Vec<u16> {
        std::iter::from_fn(|| {
            let slot = sets.next(false)?;
            sets.remove(slot);
            Some(slot)
        })
        .collect()
    }

    #[test]
    fn new_flows_go_before_old_ones_and_old_ones_before_decaying() {
        let mut sets = FlowSets::new();
        sets.append(1, List::Decaying, Account::default());
        sets.append(2, List::Old, Account::default());
        sets.append(3, List::New, Account::default());
        sets.append(4, List::New, Account::default());
        assert_eq!(sets.next(true), Some(1), "decaying ones have the first look-in");
        assert_eq!(drain(&mut sets), [3, 4, 2, 1]);
    }

    #[test]
    fn a_flow_is_taken_from_the_middle_of_a_list() {
        for list in [List::New, List::Old, List::Decaying] {
            let mut sets = FlowSets::new();
            for slot in 5..9 {
                sets.append(slot, list, Account { deficit: slot.into(), ..Account::default() });
            }
            assert_eq!(sets.remove(7), (list == List::Old).then_some(7));
            sets.remove(5);
            sets.append(5, List::New, Account::default());
            assert_eq!(drain(&mut sets), if list == List::New { [6, 8, 5] } else { [5, 6, 8] });
        }
    }

    #[test]
    fn counts_follow_the_states() {
        let mut sets = FlowSets::new();
        sets.change(0, Set::Sparse);
        sets.change(1, Set::SparseWait);
        sets.change(2, Set::Bulk);
        assert_eq!((sets.sparse(), sets.bulk(), sets.decaying()), (2, 1, 0));
        sets.change(2, Set::Decaying);
        sets.change(0, Set::None);
        assert_eq!((sets.sparse(), sets.bulk(), sets.decaying()), (1, 0, 1));
    }
}
