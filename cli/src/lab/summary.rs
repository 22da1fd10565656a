//! Several rounds in one number: medians, and from where to where they went.

use serde::Serialize;

use super::report::{PingTimes, Run};
use super::voice::Voice;

/// The runs of each discipline, in the order in which disciplines first ran.
pub(super) fn by_discipline(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        let same = |group: &&mut Vec<&Run>| {
            // Words may be given twice; then they are two disciplines.
            group.iter().all(|other| other.discipline == run.discipline && other.round != run.round)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

/// The middle and the ends of what repetitions gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Spread {
    pub(super) median: u64,
    pub(super) min: u64,
    pub(super) max: u64,
}

/// One discipline over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) discipline: String,
    pub(super) rounds: usize,
    pub(super) goodput_bit: Spread,
    pub(super) ping_p50_us: Spread,
    pub(super) ping_p99_us: Spread,
}

impl Summary {
    pub(super) fn of(runs: &[&Run]) -> Option<Self> {
        let first = runs.first()?;
        let spread = |of: fn(&Run) -> u64| {
            let values = || runs.iter().map(|run| of(run));
            let (min, max) = (values().min()?, values().max()?);
            Some(Spread { median: middle(values())?, min, max })
        };
        Some(Self {
            discipline: first.discipline.clone(),
            rounds: runs.len(),
            goodput_bit: spread(|run| run.goodput_bit)?,
            ping_p50_us: spread(|run| run.ping_us.p50)?,
            ping_p99_us: spread(|run| run.ping_us.p99)?,
        })
    }
}

/// The median; of an even number of values the mean of the two in the middle, rounded down.
fn middle(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = values.collect();
    sorted.sort_unstable();
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(lower.midpoint(upper))
}

/// A run that has the median of each number of `runs`.
pub(super) fn median(runs: &[&Run]) -> Option<Run> {
    let middle = |of: &dyn Fn(&Run) -> u64| middle(runs.iter().map(|run| of(run))).unwrap_or(0);
    let times = |of: &dyn Fn(&Run) -> PingTimes| PingTimes {
        count: middle(&|run| of(run).count),
        lost: middle(&|run| of(run).lost),
        p50: middle(&|run| of(run).p50),
        p95: middle(&|run| of(run).p95),
        p99: middle(&|run| of(run).p99),
        max: middle(&|run| of(run).max),
    };
    let mut run = Run::clone(runs.first()?);
    run.goodput_bit = middle(&|run| run.goodput_bit);
    run.ping_us = times(&|run| run.ping_us);
    run.idle_ping_us = times(&|run| run.idle_ping_us);
    run.drops = middle(&|run| run.drops);
    run.marks = middle(&|run| run.marks);
    run.cpu_us = middle(&|run| run.cpu_us);
    for (index, class) in run.classes.iter_mut().enumerate() {
        class.goodput_bit =
            middle(&|run| run.classes.get(index).map_or(0, |class| class.goodput_bit));
    }
    for (index, ping) in run.pings.iter_mut().enumerate() {
        ping.ping_us =
            times(&|run| run.pings.get(index).map_or_else(PingTimes::default, |p| p.ping_us));
    }
    if run.voice.is_some() {
        let of = |field: fn(&Voice) -> u64| middle(&|run| run.voice.as_ref().map_or(0, field));
        run.voice = Some(Voice {
            sent: of(|voice| voice.sent),
            lost: of(|voice| voice.lost),
            p50_us: of(|voice| voice.p50_us),
            p99_us: of(|voice| voice.p99_us),
            jitter_us: of(|voice| voice.jitter_us),
        });
    }
    run.interrupted = runs.iter().any(|run| run.interrupted);
    Some(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::tests::report;

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle() {
        assert_eq!(middle([9, 1, 4].into_iter()), Some(4));
        assert_eq!(middle([40, 10, 20, 1].into_iter()), Some(15));
        assert_eq!(middle([u64::MAX, u64::MAX].into_iter()), Some(u64::MAX));
        assert_eq!(middle(std::iter::empty()), None);
    }

    #[test]
    fn table_and_json_have_the_same_median() {
        let first = report().runs.remove(0);
        let second = Run { round: 2, goodput_bit: 10_000_001, ..first.clone() };
        let runs = [&first, &second];
        let expected = (first.goodput_bit + 10_000_001) / 2;
        assert_eq!(Summary::of(&runs).map(|summary| summary.goodput_bit.median), Some(expected));
        assert_eq!(median(&runs).map(|run| run.goodput_bit), Some(expected));
    }
}
