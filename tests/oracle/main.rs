//! ucake beside Linux's own `sch_cake`: the same configurations, the same frames, the same answers?
//!
//! The kernel's answers are recorded in `data/`, so this runs anywhere. `tests/oracle/run` asks the kernel
//! itself. Words are parsed by the command's own parser, so that `tc` and ucake get the same ones.

#[path = "../../cli/src/nearest.rs"]
mod nearest;
#[path = "../../cli/src/value.rs"]
#[allow(dead_code, reason = "only words are read here")]
mod value;
#[allow(dead_code, reason = "only lines of words are read here")]
mod words;

mod answer;
mod bounds;
mod cases;
mod differences;
mod frames;
mod ours;
mod recorded_load;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use answer::{Answer, Recording};
use cases::{Case, Group, Rule};
use differences::DIFFERENCES;
use ours::World;
use ucake::time::Span;

/// Where the kernel's answers are.
fn answers() -> PathBuf {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/data");
    std::env::var_os("UCAKE_ORACLE_ANSWERS").map_or(recorded, PathBuf::from)
}

fn recording(name: &str) -> Recording {
    Recording::load(&answers().join(format!("{name}.json"))).expect("answers of the kernel")
}

/// What came of a group.
#[derive(Default)]
struct Tally {
    equal: usize,
    /// Cases that differ as stated, by index into [`DIFFERENCES`].
    stated: BTreeMap<usize, usize>,
    wrong: Vec<String>,
}

fn check(name: &str) {
    let group = cases::all().into_iter().find(|group| group.name == name).expect("a group");
    let recording = recording(name);
    let tally = match group.rule {
        Rule::Exact => exact(&group, &recording),
        Rule::Means => means(&group, &recording),
    };
    report(&group, &recording, &tally);
    let shown = tally.wrong.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(tally.wrong.is_empty(), "{name}: {} differences\n{shown}", tally.wrong.len());
}

fn exact(group: &Group, recording: &Recording) -> Tally {
    let mut tally = Tally::default();
    for case in &group.cases {
        let Some((digest, kernel)) = recording.answers.get(&case.name) else {
            tally.wrong.push(format!("{}: not recorded", case.name));
            continue;
        };
        if *digest != case.digest() {
            tally.wrong.push(format!("{}: the recorded case was another one", case.name));
            continue;
        }
        let found = disagreement(case, group, kernel);
        let stated = DIFFERENCES.iter().position(|known| known.covers(group.name, &case.name));
        match (found.is_empty(), stated) {
            (true, _) => tally.equal += 1,
            (false, Some(index)) => *tally.stated.entry(index).or_default() += 1,
            (false, None) => tally.wrong.push(format!("{}: {}", case.name, found.join("; "))),
        }
    }
    for (index, known) in DIFFERENCES.iter().enumerate() {
        if known.group == group.name && !tally.stated.contains_key(&index) {
            tally.wrong.push(format!("stated and not seen: {}: {}", known.cases, known.reason));
        }
    }
    tally
}

/// How fast frames went into the kernel, and how late its timers are, is not known, and decides between tins
/// whose clocks are close: an order is the kernel's if it is ucake's at one of these.
const GAPS: [i64; 6] = [5, 10, 20, 40, 80, 160];
const LATE: [i64; 6] = [0, 30, 60, 100, 160, 250];

/// What differs; where order is asked for, in the world that fits best.
fn disagreement(case: &Case, group: &Group, kernel: &Answer) -> Vec<String> {
    let within = |world: World| match ours::answer(case, group, world) {
        Ok(ours) => compare(&ours, kernel),
        Err(problem) => vec![problem],
    };
    let found = within(World::punctual(1));
    if group.name != "order" || found.is_empty() {
        return found;
    }
    let worlds = GAPS.iter().flat_map(|gap| LATE.iter().map(move |late| (*gap, *late)));
    let fits = |(gap, late)| {
        let (gap, late) = (Span::from_micros(gap), Span::from_micros(late));
        within(World { gap, late, ..World::punctual(1) }).is_empty()
    };
    if worlds.into_iter().any(fits) { Vec::new() } else { found }
}

fn compare(ours: &Answer, kernel: &Answer) -> Vec<String> {
    let mut names: Vec<&String> = ours.numbers.keys().chain(kernel.numbers.keys()).collect();
    names.sort();
    names.dedup();
    let differs = names.into_iter().filter(|name| ours.show(name) != kernel.show(name));
    let mut found: Vec<String> = differs
        .map(|name| format!("{name}: kernel {}, ucake {}", kernel.show(name), ours.show(name)))
        .collect();
    if ours.left != kernel.left {
        let list = |answer: &Answer| answer.left.as_deref().unwrap_or_default().join(" ");
        found.push(format!("left: kernel [{}], ucake [{}]", list(kernel), list(ours)));
    }
    found
}

/// Compares means: a difference counts beyond four standard errors and a quarter.
fn means(group: &Group, recording: &Recording) -> Tally {
    let mut samples: BTreeMap<(String, &str), [Vec<f64>; 2]> = BTreeMap::new();
    let mut tally = Tally::default();
    for (case, seed) in group.cases.iter().zip(1..) {
        let Some((digest, kernel)) = recording.answers.get(&case.name) else {
            tally.wrong.push(format!("{}: not recorded", case.name));
            continue;
        };
        assert_eq!(*digest, case.digest(), "{}: the recorded case was another one", case.name);
        let ours = ours::answer(case, group, World::punctual(seed)).expect("words and frames");
        let crowd = case.name.rsplit_once('/').map_or("", |(crowd, _)| crowd);
        for field in group.fields {
            let value = |answer: &Answer| answer.show(field).parse::<f64>().expect("one tin");
            let pair = samples.entry((crowd.to_owned(), field)).or_default();
            pair[0].push(value(kernel));
            pair[1].push(value(&ours));
        }
    }
    for ((crowd, field), [kernel, ours]) in &samples {
        let ((a, error_a), (b, error_b)) = (mean(kernel), mean(ours));
        let allowed = 4.0 * (error_a + error_b).sqrt() + 0.25;
        note(
            group.name,
            &format!("{crowd} flows: {field}: kernel {a:.2}, ucake {b:.2} (±{allowed:.2})"),
        );
        if (a - b).abs() > allowed {
            tally.wrong.push(format!(
                "{crowd} flows: {field}: kernel {a:.2}, ucake {b:.2}, allowed {allowed:.2}"
            ));
        } else {
            tally.equal += 1;
        }
    }
    tally
}

/// Mean, and the square of its standard error.
#[expect(clippy::cast_precision_loss, reason = "a handful of runs")]
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance / count)
}

/// A row of the table that `tests/oracle/run` prints.
fn report(group: &Group, recording: &Recording, tally: &Tally) {
    let stated: usize = tally.stated.values().sum();
    let row = format!(
        "{}|{}|{}|{stated}|{}|{}|{} ({})",
        group.name,
        tally.equal + stated + tally.wrong.len(),
        tally.equal,
        tally.wrong.len(),
        group.about,
        recording.by,
        recording.date,
    );
    write_report(&format!("{}.row", group.name), &row);
    let reasons = tally.stated.iter().map(|(index, count)| {
        let known = &DIFFERENCES[*index];
        format!("{}|{}|{count}|{}", group.name, known.cases, known.reason)
    });
    write_report(&format!("{}.stated", group.name), &reasons.collect::<Vec<_>>().join("\n"));
    write_report(&format!("{}.wrong", group.name), &tally.wrong.join("\n"));
}

fn note(group: &str, line: &str) {
    println!("{group}: {line}");
}

fn write_report(file: &str, text: &str) {
    if let Some(folder) = std::env::var_os("UCAKE_ORACLE_REPORT")
        && !text.is_empty()
    {
        std::fs::write(Path::new(&folder).join(file), format!("{text}\n"))
            .expect("a place for the report");
    }
}

#[test]
fn thresholds_targets_intervals_quanta_and_memory_limits_are_the_kernels() {
    check("derived");
}

#[test]
fn every_code_point_goes_to_the_kernels_tin() {
    check("dscp");
}

#[test]
fn marks_and_priorities_choose_the_kernels_tin() {
    check("overrides");
}

#[test]
fn washing_leaves_the_kernels_bytes() {
    check("wash");
}

#[test]
fn sizes_are_the_kernels_with_every_overhead() {
    check("sizes");
}

#[test]
fn header_offsets_are_the_kernels() {
    check("offsets");
}

#[test]
fn frames_are_one_flow_where_the_kernel_says_so() {
    check("keys");
}

#[test]
fn frames_are_one_flow_where_the_kernel_says_so_behind_a_tag_too() {
    check("beside");
}

#[test]
fn isolation_modes_count_the_kernels_flows() {
    check("modes");
}

#[test]
fn crowds_of_flows_collide_as_often_as_in_the_kernel() {
    check("ways");
}

#[test]
fn the_memory_limit_drops_what_the_kernel_drops() {
    check("overflow");
}

#[test]
fn superpackets_are_divided_and_counted_as_by_the_kernel() {
    check("gso");
}

#[test]
fn the_ack_filter_takes_the_kernels_victims() {
    check("acks");
}

#[test]
fn queued_frames_leave_in_the_kernels_order() {
    check("order");
}

#[test]
fn a_change_keeps_and_resets_what_the_kernel_does() {
    check("changes");
}

#[test]
fn a_frame_is_charged_the_memory_that_the_kernel_charges() {
    check("truesize");
}
