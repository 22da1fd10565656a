//! Which tin is served next.
//!
//! Problem: tins share the link by their thresholds and quanta, and what one leaves goes to the others.
//! Source: spec §6.3 (shaped), §6.4 (unlimited).
//! Law: shaped, the highest tin on schedule goes, else the one that is due first; unlimited, deficit round robin. Only
//! tins with flows that are not just decaying count.
//! Left out: the clocks and deficits themselves, which move as tins are charged ([`Tin::charge`]).

use super::Tin;
use crate::time::{Instant, Span};

/// The tin to serve while shaped (spec §6.3): the highest one on schedule, else the one that is due first.
pub fn choose_shaped(tins: &[Tin], now: Instant) -> Option<u8> {
    let mut best = None;
    let mut best_ahead = Span::MAX;
    for (index, tin) in (0..).zip(tins).filter(|(_, tin)| tin.has_flows()) {
        let ahead = tin.clock.ahead(now);
        if ahead <= Span::ZERO || ahead <= best_ahead {
            best_ahead = ahead;
            best = Some(index);
        }
    }
    best
}

/// The tin to serve while unlimited (spec §6.4): deficit round robin from the one served last. The rounds
/// are reckoned, not walked: after a superpacket of 64 kB some hundred of them would pass by.
pub fn choose_unlimited(tins: &mut [Tin], current: u8) -> Option<u8> {
    let tin = tins.get(usize::from(current))?;
    if tin.deficit >= 0 && tin.has_flows() {
        return Some(current);
    }
    let (rounds, chosen) = served_first(tins, current)?;
    if rounds > 0 {
        tins.iter_mut().for_each(|tin| tin.pass_by(rounds));
    }
    // Those between the two are visited once more.
    if chosen > current {
        between(tins, current, chosen).for_each(|tin| tin.pass_by(1));
    } else if chosen < current {
        between(tins, 0, chosen).for_each(|tin| tin.pass_by(1));
        between(tins, current, u8::MAX).for_each(|tin| tin.pass_by(1));
    }
    Some(chosen)
}

/// The tins from one up to another, exclusive.
fn between(tins: &mut [Tin], from: u8, to: u8) -> impl Iterator<Item = &mut Tin> {
    tins.iter_mut().take(to.into()).skip(from.into())
}

/// The tin that is served after the fewest rounds, and those; of several, the first in turn.
fn served_first(tins: &[Tin], current: u8) -> Option<(u32, u8)> {
    let mut first: Option<(u32, u8)> = None;
    for (index, tin) in (0..).zip(tins).filter(|(_, tin)| tin.has_flows()) {
        let rounds = tin.rounds_until_served();
        // Its turn comes before that of all with lower numbers, but for those which come before `current`.
        let earlier = |(fewest, best): (u32, u8)| {
            rounds < fewest || rounds == fewest && best < current && index >= current
        };
        if first.is_none_or(earlier) {
            first = Some((rounds, index));
        }
    }
    first
}

impl Tin {
    /// Visits that end with a fresh quantum before one finds no debt.
    fn rounds_until_served(&self) -> u32 {
        let debt = self.deficit.min(0).unsigned_abs();
        let quantum = u32::from(self.share.quantum.max(1));
        // Of a packet, one or two.
        match debt {
            0 => 0,
            _ if debt <= quantum => 1,
            _ if debt <= 2 * quantum => 2,
            _ => debt.div_ceil(quantum),
        }
    }

    /// So many visits without being served: each gives a quantum, while there is nothing in hand.
    fn pass_by(&mut self, visits: u32) {
        if self.deficit > 0 {
            return;
        }
        let (debt, quantum) = (self.deficit.unsigned_abs(), u32::from(self.share.quantum));
        // Mostly each visit finds it in debt.
        let worth = visits.saturating_mul(quantum);
        let given = if debt >= worth.saturating_sub(quantum) {
            worth
        } else {
            visits.min(debt / quantum.max(1) + 1) * quantum
        };
        self.deficit = self.deficit.saturating_add_unsigned(given);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Set;
    use super::*;
    use proptest::prelude::*;

    /// Spec §6.4 to the letter.
    fn walked(tins: &mut [Tin], current: u8) -> Option<u8> {
        if !tins.iter().any(Tin::has_flows) {
            return None;
        }
        let mut index = usize::from(current);
        loop {
            let tin = &mut tins[index];
            if tin.deficit >= 0 && tin.has_flows() {
                return u8::try_from(index).ok();
            }
            if tin.deficit <= 0 {
                tin.deficit += i32::from(tin.share.quantum);
            }
            index = (index + 1) % tins.len();
        }
    }

    proptest! {
        #[test]
        fn reckoned_rounds_are_those_walked(
            tins in prop::collection::vec((-70_000..3_000_i32, 1..2_000_u16, any::<bool>()), 1..=8),
            current in any::<prop::sample::Index>(),
        ) {
            let current = u8::try_from(current.index(tins.len())).expect("eight at most");
            let mut walked_over: Vec<Tin> = tins
                .into_iter()
                .map(|(deficit, quantum, has_flows)| {
                    let mut tin = Tin::new();
                    (tin.deficit, tin.share.quantum) = (deficit, quantum);
                    if has_flows {
                        tin.sets.change(0, Set::Sparse);
                    }
                    tin
                })
                .collect();
            let mut reckoned = walked_over.clone();
            let chosen = walked(&mut walked_over, current);
            prop_assert_eq!(choose_unlimited(&mut reckoned, current), chosen);
            let deficits = |tins: &[Tin]| tins.iter().map(|tin| tin.deficit).collect::<Vec<_>>();
            prop_assert_eq!(deficits(&reckoned), deficits(&walked_over));
        }
    }

    /// Tins that are shaped to 1 MB/s each, with a sparse flow and a clock so many microseconds ahead.
    fn tins_ahead(ahead: &[i64], now: Instant) -> Vec<Tin> {
        let tin = |&micros| {
            let mut tin = Tin::new();
            tin.clock.wake(now + Span::from_micros(micros));
            tin.sets.change(0, Set::Sparse);
            tin
        };
        ahead.iter().map(tin).collect()
    }

    #[test]
    fn the_highest_tin_on_schedule_goes_else_the_one_that_is_due_first() {
        let now = Instant::from_nanos(1_000_000_000);
        let chosen = |ahead: &[i64]| choose_shaped(&tins_ahead(ahead, now), now);
        assert_eq!(chosen(&[-50, -10, 30]), Some(1), "behind by more is no merit");
        assert_eq!(chosen(&[20, 10, 30]), Some(1));
        assert_eq!(chosen(&[-5, 10, 30]), Some(0), "a low tin on schedule, higher ones ahead");
    }

    #[test]
    fn of_equal_clocks_the_higher_tin_goes() {
        let now = Instant::from_nanos(1_000_000_000);
        let chosen = |ahead: &[i64]| choose_shaped(&tins_ahead(ahead, now), now);
        assert_eq!(chosen(&[10, 10, 10]), Some(2));
        assert_eq!(chosen(&[-10, -10, 0]), Some(2));
    }

    #[test]
    fn decaying_flows_do_not_make_a_tin_eligible() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut tins = tins_ahead(&[0, 0], now);
        tins[1].sets.change(0, Set::Decaying);
        assert_eq!(choose_shaped(&tins, now), Some(0));
        assert_eq!(choose_unlimited(&mut tins, 1), Some(0));
        tins[0].sets.change(0, Set::Decaying);
        assert_eq!(choose_shaped(&tins, now), None);
        assert_eq!(choose_unlimited(&mut tins, 0), None);
    }
}
