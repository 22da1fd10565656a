//! Turns: old flows one behind another, with what their turns are reckoned by.
//!
//! Problem: where hundreds of bulk flows share a host, each gets a few bytes a round, so that for every packet
//! hundreds of flows are looked at, given their share and sent to the back, in Linux as well.
//! Source: spec §1.2 step 5; that in deficit round robin flows leave and turn at the head only and join at
//! the tail. Law: a ring of dense columns in the order of the turns; a turn is an entry copied from the head
//! to the tail. [`CHUNK`] of them are one loop that the compiler makes vectors of, as long as they have the same
//! hosts and none may send.
//! The dithers of the turns taken by one call are a Weyl sequence from a random start: each is uniform, hence
//! the mean that of independent ones, and their sum is spread less.
//! Left out: new and decaying flows (`drr`), whose deficits stand in their accounts (`flow`).

use super::flow::{Account, Hosts};
use super::flow_table::SLOTS;
use super::host;

/// Turns taken at once. More pay less the more flows may send; fewer, the more vectors there are to fill.
const TAKEN: u16 = 16;
const CHUNK: usize = TAKEN as usize;
/// Places of the ring: one for each flow there can be. A chunk is read before it is written, so that it may
/// be written to where it was.
const PLACES: usize = SLOTS as usize;
/// From one dither to the next: odd, so that all 65536 come once, and 65536 times the golden section, so that
/// those next to each other lie far apart.
const STEP: u16 = 40_503;

/// The next dither.
pub fn next_dither(dither: u16) -> u16 {
    dither.wrapping_add(STEP)
}

/// Multiples of [`STEP`].
#[expect(clippy::indexing_slicing, reason = "worked out by the compiler")]
const STEPS: [u32; CHUNK] = {
    let mut steps = [0; CHUNK];
    let mut turn = 1;
    while turn < CHUNK {
        steps[turn] = steps[turn - 1] + STEP as u32;
        turn += 1;
    }
    steps
};

/// One `T` for each place.
type Column<T> = Box<[T; PLACES]>;

/// The old flows of a tin, in the order of their turns. Each slot is among them once at the most.
#[derive(Clone, Debug)]
pub struct Turns {
    head: usize,
    len: usize,
    slots: Column<u16>,
    hosts: Column<u32>,
    deficits: Column<i32>,
    /// How many of the first may have other hosts by now than they had when they joined or turned.
    stale: usize,
}

#[expect(clippy::indexing_slicing, reason = "places are numbers below `PLACES`")]
impl Turns {
    /// No flows.
    pub fn new() -> Self {
        Self {
            head: 0,
            len: 0,
            slots: Box::new([0; PLACES]),
            hosts: Box::new([0; PLACES]),
            deficits: Box::new([0; PLACES]),
            stale: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The flow whose turn it is.
    pub fn first(&self) -> Option<u16> {
        (self.len > 0).then(|| self.slots[self.head])
    }

    /// Whether the flow whose turn it is has nothing to send with.
    pub fn first_is_in_debt(&self) -> bool {
        self.len > 0 && self.deficits[self.head] <= 0
    }

    /// The flow whose turn comes after so many others, and its deficit.
    pub fn nth(&self, turn: usize) -> (u16, i32) {
        let place = (self.head + turn) % PLACES;
        (self.slots[place], self.deficits[place])
    }

    /// Adds to the deficit of that flow.
    pub fn give(&mut self, turn: usize, bytes: u32) {
        let deficit = &mut self.deficits[(self.head + turn) % PLACES];
        *deficit = deficit.saturating_add_unsigned(bytes);
    }

    /// Where a flow stands.
    #[inline(always)]
    fn place_of(&self, slot: u16) -> Option<usize> {
        // Nearly always it is the first.
        if self.first() == Some(slot) { Some(self.head) } else { self.search(slot) }
    }

    #[cold]
    #[inline(never)]
    fn search(&self, slot: u16) -> Option<usize> {
        (0..self.len).map(|turn| (self.head + turn) % PLACES).find(|&at| self.slots[at] == slot)
    }

    /// The deficit of a flow, provided its turn is the first.
    #[inline]
    pub fn first_deficit(&self, slot: u16) -> Option<i32> {
        (self.first() == Some(slot)).then(|| self.deficits[self.head])
    }

    /// The deficit of a flow; `None` if it is not here.
    pub fn deficit(&self, slot: u16) -> Option<i32> {
        self.place_of(slot).map(|place| self.deficits[place])
    }

    /// The same, to be changed.
    pub fn deficit_mut(&mut self, slot: u16) -> Option<&mut i32> {
        self.place_of(slot).map(|place| &mut self.deficits[place])
    }

    /// Some flows have other hosts. Which ones is not worth looking for: until they have had their turns, none
    /// are taken at once.
    pub fn hosts_changed(&mut self) {
        self.stale = self.len;
    }

    /// A flow joins, behind all others.
    pub fn push(&mut self, slot: u16, account: Account) {
        let tail = (self.head + self.len) % PLACES;
        self.slots[tail] = slot;
        self.hosts[tail] = packed(account.hosts);
        self.deficits[tail] = account.deficit;
        self.len += 1;
    }

    /// A flow leaves, mostly the first; what its deficit was.
    pub fn remove(&mut self, slot: u16) -> Option<i32> {
        let place = self.place_of(slot)?;
        let deficit = self.deficits[place];
        if place != self.head {
            self.move_up_to(place);
            // Not counted below.
            self.stale += 1;
        }
        self.head = (self.head + 1) % PLACES;
        self.len -= 1;
        self.stale = self.stale.saturating_sub(1);
        Some(deficit)
    }

    /// Those before a place move up, over it.
    #[cold]
    #[inline(never)]
    fn move_up_to(&mut self, place: usize) {
        let mut to = place;
        while to != self.head {
            let from = (to + PLACES - 1) % PLACES;
            self.slots[to] = self.slots[from];
            self.hosts[to] = self.hosts[from];
            self.deficits[to] = self.deficits[from];
            to = from;
        }
    }

    /// The first flow, which is in debt and has these hosts, is given `quantum` and goes to the back.
    #[inline]
    pub fn turn_first(&mut self, hosts: Hosts, quantum: i32) {
        let (head, tail) = (self.head, (self.head + self.len) % PLACES);
        self.slots[tail] = self.slots[head];
        self.hosts[tail] = packed(hosts);
        // Not above zero before, so that it cannot overflow.
        self.deficits[tail] = self.deficits[head] + quantum;
        self.head = (head + 1) % PLACES;
        self.stale = self.stale.saturating_sub(1);
    }

    /// Whether [`Self::turn`] may be asked, and is likely to take many turns: a look at one flow some way
    /// behind the first tells where hosts are many.
    pub fn are_alike(&self) -> bool {
        let last = (self.head + CHUNK - 1) % PLACES;
        self.stale == 0
            && self.len >= CHUNK
            && self.hosts[last] == self.hosts[self.head]
            && self.deficits[last] <= 0
    }

    /// Gives the flows in turn a share each, dithered, as long as they have the hosts of the first and may not
    /// send, and for at most `most` turns; how many it took. All hosts are as they were: see [`Self::are_alike`].
    pub fn turn(&mut self, share: u32, dither: &mut u16, most: u32) -> u32 {
        let hosts = self.hosts[self.head];
        let mut turned = 0;
        loop {
            let enough = |turned| most - turned >= u32::from(TAKEN);
            while enough(turned) && self.turn_chunk(hosts, share, *dither).is_some() {
                *dither = dither.wrapping_add(STEP.wrapping_mul(TAKEN));
                turned += u32::from(TAKEN);
            }
            for _ in 0..CHUNK {
                let in_debt = self.deficits[self.head] <= 0;
                if turned == most || !in_debt || self.hosts[self.head] != hosts {
                    return turned;
                }
                self.turn_first(unpacked(hosts), host::dithered(share, *dither));
                *dither = next_dither(*dither);
                turned += 1;
            }
        }
    }

    /// As many turns as a chunk has; `None`, with nothing changed, if not all of them can be taken, or if the
    /// ring's end is in the way.
    #[inline(always)]
    fn turn_chunk(&mut self, hosts: u32, share: u32, dither: u16) -> Option<()> {
        let (head, tail) = (self.head, (self.head + self.len) % PLACES);
        let mut deficits: [i32; CHUNK] = *self.deficits.get(head..)?.first_chunk()?;
        let of: &[u32; CHUNK] = self.hosts.get(head..)?.first_chunk()?;
        // Not `all`, which would look at one after another.
        let may_send = deficits.iter().fold(false, |some, &deficit| some | (deficit > 0));
        let others = of.iter().fold(0, |some, of| some | (of ^ hosts));
        if may_send || others != 0 || self.len < CHUNK {
            return None;
        }
        let slots: [u16; CHUNK] = *self.slots.get(head..)?.first_chunk()?;
        for (deficit, step) in deficits.iter_mut().zip(STEPS) {
            let dither = (u32::from(dither) + step) & 0xffff;
            *deficit += ((share + dither) >> 16).cast_signed();
        }
        *self.deficits.get_mut(tail..)?.first_chunk_mut()? = deficits;
        *self.slots.get_mut(tail..)?.first_chunk_mut()? = slots;
        *self.hosts.get_mut(tail..)?.first_chunk_mut()? = [hosts; CHUNK];
        self.head = (head + CHUNK) % PLACES;
        Some(())
    }
}

fn packed(hosts: Hosts) -> u32 {
    u32::from(hosts.source) << 16 | u32::from(hosts.destination)
}

fn unpacked(hosts: u32) -> Hosts {
    Hosts { source: (hosts >> 16) as u16, destination: (hosts & 0xffff) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashSet, VecDeque};

    fn account(number: u16) -> Account {
        let hosts = Hosts { source: number % 7, destination: number % 3 };
        Account { deficit: i32::from(number) - 500, hosts }
    }

    #[test]
    fn every_slot_has_a_place() {
        let mut turns = Turns::new();
        (0..SLOTS).for_each(|slot| turns.push(slot, account(slot)));
        for slot in 0..SLOTS {
            assert_eq!(turns.nth(slot.into()), (slot, account(slot).deficit));
            assert_eq!(turns.deficit(slot), Some(account(slot).deficit));
        }
    }

    #[test]
    fn dithers_are_uniform_and_neighbours_fill_each_others_gaps() {
        let dithers = std::iter::successors(Some(7), |&dither| Some(next_dither(dither)));
        assert_eq!(dithers.clone().take(65_536).collect::<HashSet<u16>>().len(), 65_536);
        let mut eight: Vec<u16> = dithers.take(8).collect();
        eight.sort_unstable();
        let gaps = eight.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.clone().min() > Some(4_000) && gaps.max() < Some(13_000), "{eight:?}");
    }

    proptest! {
        #[test]
        fn flows_come_and_go_as_in_a_queue(
            changes in prop::collection::vec((0..40_u16, 0..4_u8), 0..3_000),
        ) {
            let mut turns = Turns::new();
            let mut queue: VecDeque<(u16, i32)> = VecDeque::new();
            for (slot, change) in changes {
                let at = queue.iter().position(|&(other, _)| other == slot);
                match (change, at) {
                    (0 | 1, None) => {
                        turns.push(slot, account(slot));
                        queue.push_back((slot, account(slot).deficit));
                    }
                    (2, Some(at)) => {
                        let (_, deficit) = queue.remove(at).expect("it is there");
                        prop_assert_eq!(turns.remove(slot), Some(deficit));
                    }
                    (_, Some(at)) => {
                        queue[at].1 += 9;
                        *turns.deficit_mut(slot).expect("it is there") += 9;
                    }
                    (_, None) => prop_assert_eq!(turns.remove(slot), None),
                }
                prop_assert_eq!(turns.first(), queue.front().map(|&(slot, _)| slot));
                prop_assert_eq!(turns.len(), queue.len());
            }
            for (turn, entry) in queue.iter().enumerate() {
                prop_assert_eq!(turns.nth(turn), *entry);
            }
        }
    }
}
