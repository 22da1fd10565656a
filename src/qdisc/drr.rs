//! DRR++: sparse flows first, bulk flows in turn, empty flows remembered for a while.
//!
//! Problem: a packet now and then (DNS, voice, the first of a page) should not wait behind downloads, and
//! should not be able to cheat by being many.
//! Source: spec §1.3 (states), §1.1 step 10 and §1.2 steps 4–6 (transitions); after DRR++ (MacGregor and
//! Shi 2000) and FQ-CoDel (RFC 8290).
//! Law: a flow is sparse until it has used up one quantum; three lists, new before old before decaying;
//! each state is counted as it is entered and left, at one place.
//! Left out: deficits (`flow`), host loads (`host`), when a flow changes state (`tin`).

use super::flow_table::{PerSlot, SLOTS};

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
    ends: [Ends; 3],
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

/// Whose turn it is among the old flows.
pub struct Turns<'a> {
    places: &'a [Place; SLOTS as usize],
    first: u16,
    slot: u16,
}

#[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
impl Turns<'_> {
    /// The flow whose turn it is.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// It is the next one's turn; after the last, the first one's.
    pub fn go_on(&mut self) {
        let next = self.places[usize::from(self.slot % SLOTS)].next;
        self.slot = if next == NONE { self.first } else { next };
    }
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u16,
    tail: u16,
}

#[expect(clippy::indexing_slicing, reason = "there are as many ends as lists")]
impl FlowSets {
    /// No flow in any list.
    pub fn new() -> Self {
        Self {
            places: PerSlot::new(),
            ends: [Ends { head: NONE, tail: NONE }; 3],
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

    /// Takes a flow out of the list it is in, if any, and appends it to `list`.
    pub fn append(&mut self, slot: u16, list: List) {
        self.remove(slot);
        let tail = core::mem::replace(&mut self.ends[list as usize].tail, slot);
        let place = &mut self.places[slot];
        (place.previous, place.next, place.list) = (tail, NONE, Some(list));
        if tail == NONE {
            self.ends[list as usize].head = slot;
        } else {
            self.places[tail].next = slot;
        }
    }

    /// Takes a flow out of the list it is in.
    pub fn remove(&mut self, slot: u16) {
        let Place { previous, next, list, .. } = self.places[slot];
        let Some(list) = list else { return };
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
        self.places[slot].list = None;
    }

    /// The first of the old flows, if they are what comes next once the decaying ones had their look-in.
    pub fn turning(&self) -> Option<u16> {
        let [new, old] = [List::New, List::Old].map(|list| self.ends[list as usize].head);
        (new == NONE && old != NONE).then_some(old)
    }

    /// The turns of the old flows, round and round, beginning with that of `slot`.
    pub fn turns_from(&self, slot: u16) -> Turns<'_> {
        Turns { places: self.places.all(), first: self.ends[List::Old as usize].head, slot }
    }

    /// The old flow whose turn comes after that of this one.
    pub fn behind(&self, slot: u16) -> u16 {
        match self.places[slot].next {
            NONE => self.ends[List::Old as usize].head,
            next => next,
        }
    }

    /// Moves all old flows before this one to the back, in order.
    pub fn turn_to(&mut self, slot: u16) {
        let before = self.places[slot].previous;
        if before == NONE {
            return;
        }
        let Ends { head, tail } = self.ends[List::Old as usize];
        self.places[tail].next = head;
        self.places[head].previous = tail;
        self.places[before].next = NONE;
        self.places[slot].previous = NONE;
        self.ends[List::Old as usize] = Ends { head: slot, tail: before };
    }

    /// The flow to look at: new before old before decaying; on the first pass of a dequeue the decaying
    /// ones have a look-in first, so that they get forgotten (spec §1.2 step 4).
    pub fn next(&self, first_pass: bool) -> Option<u16> {
        let head = |list: List| {
            let head = self.ends[list as usize].head;
            (head != NONE).then_some(head)
        };
        let decaying = head(List::Decaying);
        decaying
            .filter(|_| first_pass)
            .or_else(|| head(List::New))
            .or_else(|| head(List::Old))
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
        sets.append(1, List::Decaying);
        sets.append(2, List::Old);
        sets.append(3, List::New);
        sets.append(4, List::New);
        assert_eq!(sets.next(true), Some(1), "decaying ones have the first look-in");
        assert_eq!(drain(&mut sets), [3, 4, 2, 1]);
    }

    #[test]
    fn a_flow_is_taken_from_the_middle_of_a_list() {
        let mut sets = FlowSets::new();
        for slot in [5, 6, 7] {
            sets.append(slot, List::Old);
        }
        sets.remove(6);
        sets.append(5, List::New);
        assert_eq!(drain(&mut sets), [5, 7]);
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
