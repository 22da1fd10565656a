//! The memory limit: whose packet has to go.
//!
//! Problem: when memory runs out, dropping the packet that just came punishes whoever happens to send;
//! the queue that filled the memory should pay.
//! Source: spec §9. Law: a heap over all queues, keyed by bytes queued, gives the fattest one; its oldest
//! packet goes.
//! The heap is lazy: until the first overflow, and again some 65 000 packets after the last, nothing is
//! kept in order.
//! Left out: the dropping itself, which touches everything (`qdisc::mod`).

use super::diffserv::MAX_TINS;
use super::flow_table::SLOTS;

/// Deliveries for which the heap is kept in order after an overflow.
const FRESH: u32 = 65535;
/// All queues an instance can have.
const QUEUES: u16 = MAX_TINS * SLOTS;

/// A queue of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueId {
    /// Internal tin index.
    pub tin: u8,
    /// Queue in the tin.
    pub slot: u16,
}

impl QueueId {
    fn index(self) -> usize {
        usize::from(u16::from(self.tin) * SLOTS + self.slot)
    }

    fn from_index(index: u16) -> Self {
        Self { tin: ((index / SLOTS) & 0xff) as u8, slot: index % SLOTS }
    }
}

/// A binary heap of queues with the fattest on top.
#[derive(Clone, Debug)]
pub struct Overflow {
    heap: Vec<u16>,
    position: Vec<u16>,
    fresh: u32,
}

#[expect(
    clippy::indexing_slicing,
    reason = "places and queues are numbers below `QUEUES`, which both tables have"
)]
impl Overflow {
    /// A heap that is not in order yet; it starts with queue `j` of tin `i` at `8j + i`.
    pub fn new() -> Self {
        let heap: Vec<u16> =
            (0..QUEUES).map(|at| (at % MAX_TINS) * SLOTS + at / MAX_TINS).collect();
        let mut position = vec![0; usize::from(QUEUES)];
        for (at, &queue) in (0..).zip(&heap) {
            position[usize::from(queue)] = at;
        }
        Self { heap, position, fresh: 0 }
    }

    /// The fattest queue, after putting everything in order if that was let slip.
    pub fn fattest(&mut self, backlog: impl Fn(QueueId) -> u32) -> QueueId {
        if self.fresh == 0 {
            for at in (0..QUEUES / 2).rev() {
                self.sift_down(at, &backlog);
            }
        }
        self.fresh = FRESH;
        QueueId::from_index(self.heap[0])
    }

    /// A queue grew.
    pub fn grew(&mut self, queue: QueueId, backlog: impl Fn(QueueId) -> u32) {
        if self.fresh != 0 {
            self.sift_up(self.position[queue.index()], &backlog);
        }
    }

    /// A queue shrank.
    pub fn shrank(&mut self, queue: QueueId, backlog: impl Fn(QueueId) -> u32) {
        if self.fresh != 0 {
            self.sift_down(self.position[queue.index()], &backlog);
        }
    }

    /// A packet was delivered: one less until the order is let slip.
    pub fn delivered(&mut self) {
        self.fresh = self.fresh.saturating_sub(1);
    }

    /// The order cannot be trusted; it is made anew when it is needed.
    pub fn distrust(&mut self) {
        self.fresh = 0;
    }

    fn sift_up(&mut self, mut at: u16, backlog: impl Fn(QueueId) -> u32) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.key(at, &backlog) <= self.key(parent, &backlog) {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn sift_down(&mut self, mut at: u16, backlog: impl Fn(QueueId) -> u32) {
        loop {
            let mut largest = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < QUEUES && self.key(child, &backlog) > self.key(largest, &backlog) {
                    largest = child;
                }
            }
            if largest == at {
                return;
            }
            self.swap(at, largest);
            at = largest;
        }
    }

    fn key(&self, at: u16, backlog: impl Fn(QueueId) -> u32) -> u32 {
        backlog(QueueId::from_index(self.heap[usize::from(at)]))
    }

    fn swap(&mut self, a: u16, b: u16) {
        self.heap.swap(usize::from(a), usize::from(b));
        for at in [a, b] {
            self.position[usize::from(self.heap[usize::from(at)])] = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn the_fattest_queue_of_all_tins_is_found_and_stays_found() {
        let mut backlogs: HashMap<usize, u32> = HashMap::new();
        let mut overflow = Overflow::new();
        let id = |tin, slot| QueueId { tin, slot };
        backlogs.insert(id(0, 5).index(), 900);
        backlogs.insert(id(7, 1023).index(), 1000);
        let key = |map: &HashMap<usize, u32>, queue: QueueId| {
            map.get(&queue.index()).copied().unwrap_or(0)
        };
        assert_eq!(overflow.fattest(|q| key(&backlogs, q)), id(7, 1023));
        backlogs.insert(id(7, 1023).index(), 10);
        overflow.shrank(id(7, 1023), |q| key(&backlogs, q));
        assert_eq!(overflow.fattest(|q| key(&backlogs, q)), id(0, 5));
        backlogs.insert(id(3, 3).index(), 901);
        overflow.grew(id(3, 3), |q| key(&backlogs, q));
        assert_eq!(overflow.fattest(|q| key(&backlogs, q)), id(3, 3));
    }

    #[test]
    fn order_is_let_slip_some_time_after_the_last_overflow() {
        let mut overflow = Overflow::new();
        overflow.fattest(|_| 0);
        for _ in 0..FRESH {
            overflow.delivered();
        }
        assert_eq!(overflow.fresh, 0);
    }

    proptest::proptest! {
        #[test]
        fn the_fattest_queue_is_on_top_after_every_change(
            changes in proptest::collection::vec((0..8_u8, 0..40_u16, 0..5000_u32), 1..200),
        ) {
            let mut backlogs = vec![0_u32; usize::from(QUEUES)];
            let mut overflow = Overflow::new();
            overflow.fattest(|queue| backlogs[queue.index()]);
            for (tin, slot, backlog) in changes {
                let queue = QueueId { tin, slot };
                let before = std::mem::replace(&mut backlogs[queue.index()], backlog);
                if backlog > before {
                    overflow.grew(queue, |queue| backlogs[queue.index()]);
                } else {
                    overflow.shrank(queue, |queue| backlogs[queue.index()]);
                }
                let top = overflow.fattest(|queue| backlogs[queue.index()]);
                let most = backlogs.iter().max().copied();
                proptest::prop_assert_eq!(Some(backlogs[top.index()]), most);
            }
        }
    }
}
