//! What the laboratory found: for people a table, for programs JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::FIFO_LIMIT;
use super::ping::Rtts;
use super::series::Series;
use super::voice::Voice;

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// One entry per discipline, in the order they ran.
    pub(crate) runs: Vec<Run>,
    /// How it was measured.
    pub(crate) setup: Setup,
}

/// How it was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Setup {
    /// As typed: `upload`, `rrul`, …
    pub(crate) scenario: String,
    /// TCP flows in each loaded direction.
    pub(crate) flows: usize,
    /// Their congestion control.
    pub(crate) congestion_control: String,
    /// Delay that was added to the round trip, in microseconds.
    pub(crate) rtt_us: i64,
    /// Whether endpoints asked for ECN.
    pub(crate) ecn: bool,
}

/// One discipline under load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Run {
    /// `fifo`, or `cake` and the words it was given.
    pub(crate) discipline: String,
    /// The rate it shaped to; null if it did not.
    pub(crate) rate_bit: Option<u64>,
    /// TCP payload that arrived, in bits per second, all loaded directions together.
    pub(crate) goodput_bit: u64,
    /// What each direction contributed; null if it was not loaded.
    pub(crate) upload_bit: Option<u64>,
    /// As `upload_bit`.
    pub(crate) download_bit: Option<u64>,
    /// Round-trip times while the load was on.
    pub(crate) ping_us: PingTimes,
    /// Round-trip times before it.
    pub(crate) idle_ping_us: PingTimes,
    /// Packets the disciplines dropped.
    pub(crate) drops: u64,
    /// Packets the disciplines marked.
    pub(crate) marks: u64,
    /// Frames lost in the taps' own queues, before any discipline saw them.
    pub(crate) ring_drops: u64,
    /// Processor time of the thread that shapes.
    pub(crate) cpu_us: u64,
    /// Most bytes that left in one direction at one instant.
    pub(crate) largest_burst_bytes: u64,
    /// How long was measured.
    pub(crate) measured_us: u64,
    /// Whether it was cut short.
    pub(crate) interrupted: bool,
    /// Which repetition, from 1.
    pub(crate) round: usize,
    /// What each class of flows contributed.
    pub(crate) classes: Vec<ClassRate>,
    /// Pings with other marks than the usual.
    pub(crate) pings: Vec<MarkedPing>,
    /// How the call went, where there was one.
    pub(crate) voice: Option<Voice>,
    /// All over time; goes to other files.
    #[serde(skip)]
    pub(super) series: Vec<Series>,
    /// When time was 0 in `series`.
    #[serde(skip)]
    pub(super) began: std::time::SystemTime,
    /// When the load counted, in the time of `series`.
    #[serde(skip)]
    pub(super) loaded_from: f64,
}

/// Flows that were counted together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ClassRate {
    /// A mark or a host; empty if there is one class only.
    pub(crate) label: &'static str,
    /// `upload` or `download`.
    pub(crate) direction: &'static str,
    /// TCP flows.
    pub(crate) flows: usize,
    /// TCP payload that arrived, in bits per second.
    pub(crate) goodput_bit: u64,
}

/// Round-trip times of echoes with a mark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MarkedPing {
    /// The mark's name.
    pub(crate) label: &'static str,
    /// As in `Run`.
    pub(crate) ping_us: PingTimes,
}

/// The middle and the ends of what repetitions gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Spread {
    median: u64,
    min: u64,
    max: u64,
}

/// One discipline over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Summary {
    discipline: String,
    rounds: usize,
    goodput_bit: Spread,
    ping_p50_us: Spread,
    ping_p99_us: Spread,
}

impl Summary {
    fn of(runs: &[&Run]) -> Option<Self> {
        let first = runs.first()?;
        let spread = |of: fn(&Run) -> u64| {
            let mut values: Vec<u64> = runs.iter().map(|run| of(run)).collect();
            values.sort_unstable();
            let (min, max) = (values.first().copied()?, values.last().copied()?);
            Some(Spread { median: values[values.len() / 2], min, max })
        };
        Some(Self {
            discipline: first.discipline.clone(),
            rounds: runs.len(),
            goodput_bit: spread(|run| run.goodput_bit)?,
            ping_p50_us: spread(|run| run.ping_us.p50)?,
            ping_p99_us: spread(|run| run.ping_us.p99)?,
        })
    }

    fn sentence(&self) -> String {
        let Self { discipline, rounds, goodput_bit: got, ping_p50_us: p50, .. } = self;
        format!(
            "{discipline}: {rounds} rounds, goodput {} to {}, median ping {} to {}\n",
            rate(got.min),
            rate(got.max),
            millis(p50.min),
            millis(p50.max)
        )
    }
}

/// A run that has the median of each number of `runs`.
fn median(runs: &[&Run]) -> Option<Run> {
    let middle = |of: &dyn Fn(&Run) -> u64| {
        let mut values: Vec<u64> = runs.iter().map(|run| of(run)).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
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

/// Percentiles of round-trip times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PingTimes {
    /// Echoes that were answered.
    pub(crate) count: u64,
    /// Echoes that were not.
    pub(crate) lost: u64,
    /// Half were faster.
    pub(crate) p50: u64,
    /// 95 of 100 were faster.
    pub(crate) p95: u64,
    /// 99 of 100 were faster.
    pub(crate) p99: u64,
    /// The slowest.
    pub(crate) max: u64,
}

impl From<&Rtts> for PingTimes {
    fn from(rtts: &Rtts) -> Self {
        let at = |quantile| rtts.times.value_at_quantile(quantile);
        Self {
            count: rtts.times.len(),
            lost: rtts.lost(),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            max: rtts.times.max(),
        }
    }
}

impl Report {
    /// The report as JSON, with a line feed at its end.
    pub(crate) fn json(&self) -> String {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            report: &'a Report,
            medians: Vec<Summary>,
        }
        let medians = self.by_discipline().iter().filter_map(|runs| Summary::of(runs)).collect();
        let whole = Whole { report: self, medians };
        serde_json::to_string_pretty(&whole).expect("numbers and strings serialise") + "\n"
    }

    /// The runs of each discipline, in the order in which disciplines first ran.
    fn by_discipline(&self) -> Vec<Vec<&Run>> {
        let mut groups: Vec<Vec<&Run>> = Vec::new();
        for run in &self.runs {
            let same = |group: &&mut Vec<&Run>| {
                // Words may be given twice; then they are two disciplines.
                group
                    .iter()
                    .all(|other| other.discipline == run.discipline && other.round != run.round)
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.push(run),
                None => groups.push(vec![run]),
            }
        }
        groups
    }

    /// The report as text.
    pub(crate) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_BORDERS_ONLY_CONDENSED);
        let groups = self.by_discipline();
        let rows: Vec<Run> = groups.iter().filter_map(|runs| median(runs)).collect();
        let usual = [
            "discipline",
            "goodput",
            "ping idle",
            "ping p50",
            "p95",
            "p99",
            "max",
            "lost",
            "drops",
            "marks",
        ];
        let extra = rows.first().map(|run| run.extra(&self.setup.scenario)).unwrap_or_default();
        let extra = extra.into_iter().map(|(title, _)| title);
        table.set_header(usual.map(str::to_owned).into_iter().chain(extra));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for run in &rows {
            let extra = run.extra(&self.setup.scenario);
            table.add_row(run.row().into_iter().chain(extra.into_iter().map(|(_, cell)| cell)));
        }
        format!("{table}\n\n{}", self.explanation(&rows))
    }

    fn explanation(&self, rows: &[Run]) -> String {
        let Setup { scenario, flows, congestion_control, rtt_us, .. } = &self.setup;
        let load = match scenario.as_str() {
            "upload" => format!("{flows} TCP uploads"),
            "download" | "asym" => format!("{flows} TCP downloads"),
            "small" => format!("{flows} TCP uploads in writes of 200 bytes"),
            "voip" => format!("A call and {flows} TCP uploads"),
            "hosts" => format!("Uploads of two hosts, 1 flow against {flows},"),
            "rrul" => {
                let each = flows.div_ceil(4);
                format!("{each} TCP uploads and {each} downloads in each of four marks")
            }
            _ => format!("{flows} TCP uploads and {flows} downloads"),
        };
        let mut text = format!(
            "{load} ({congestion_control}) through one bottleneck, path delay {}.\n\
             ping p50 … max: round-trip times under that load; what exceeds \"ping idle\" is\n\
             time spent in queues. goodput: TCP payload that arrived. lost: pings unanswered.\n\
             fifo: a drop-tail queue of {FIFO_LIMIT} packets, what most links have.\n\n",
            millis(u64::try_from(*rtt_us).unwrap_or(0)),
        );
        for run in rows {
            text.push_str(&run.sentence());
        }
        if self.runs.len() > rows.len() {
            text.push_str("\nThe table shows medians.\n");
            for summary in self.by_discipline().iter().filter_map(|runs| Summary::of(runs)) {
                text.push_str(&summary.sentence());
            }
        }
        text
    }
}

impl Run {
    fn row(&self) -> Vec<String> {
        let ping = |micros| if self.ping_us.count == 0 { "-".to_owned() } else { millis(micros) };
        let idle = match self.idle_ping_us.count {
            0 => "-".to_owned(),
            _ => millis(self.idle_ping_us.p50),
        };
        let cut = if self.interrupted { " (cut short)" } else { "" };
        vec![
            format!("{}{cut}", self.discipline),
            rate(self.goodput_bit),
            idle,
            ping(self.ping_us.p50),
            ping(self.ping_us.p95),
            ping(self.ping_us.p99),
            ping(self.ping_us.max),
            self.ping_us.lost.to_string(),
            self.drops.to_string(),
            self.marks.to_string(),
        ]
    }

    /// What matters in this scenario alone: title and value.
    fn extra(&self, scenario: &str) -> Vec<(String, String)> {
        let mut cells = Vec::new();
        let arrow = |direction| if direction == "upload" { "up" } else { "down" };
        match scenario {
            "hosts" => cells.extend(self.classes.iter().map(|class| {
                let flows = if class.flows == 1 { "flow" } else { "flows" };
                (format!("{}, {} {flows}", class.label, class.flows), rate(class.goodput_bit))
            })),
            "rrul" => {
                cells.extend(self.classes.iter().map(|class| {
                    let title = format!("{} {}", class.label, arrow(class.direction));
                    (title, rate(class.goodput_bit))
                }));
                cells.extend(
                    self.pings
                        .iter()
                        .map(|ping| (format!("{} ping p50", ping.label), millis(ping.ping_us.p50))),
                );
            }
            "small" => cells.push(("cpu".to_owned(), millis(self.cpu_us))),
            _ => {}
        }
        if let Some(voice) = &self.voice {
            cells.extend([
                ("call p50".to_owned(), millis(voice.p50_us)),
                ("call p99".to_owned(), millis(voice.p99_us)),
                ("jitter".to_owned(), millis(voice.jitter_us)),
                ("call lost".to_owned(), voice.lost.to_string()),
            ]);
        }
        cells
    }

    /// The finding in words.
    fn sentence(&self) -> String {
        if self.ping_us.count == 0 || self.idle_ping_us.count == 0 {
            return format!(
                "{}: not enough pings were answered to say anything\n",
                self.discipline
            );
        }
        let added = self.ping_us.p50.saturating_sub(self.idle_ping_us.p50);
        let share = match self.rate_bit {
            Some(rate)
                if rate > 0 && (self.upload_bit.is_none() || self.download_bit.is_none()) =>
            {
                format!(", TCP gets {} % of the rate", self.goodput_bit * 100 / rate)
            }
            _ => String::new(),
        };
        format!("{}: the queue adds {} to the median ping{share}\n", self.discipline, millis(added))
    }
}

/// Milliseconds with as many digits as matter.
fn millis(micros: u64) -> String {
    match micros {
        0..10_000 => format!("{}.{:02} ms", micros / 1_000, micros % 1_000 / 10),
        10_000..100_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{} ms", micros / 1_000),
    }
}

/// A rate with two places, in megabits or what fits.
pub(crate) fn rate(bits: u64) -> String {
    match bits {
        0..1_000_000 => format!("{} kbit/s", bits / 1_000),
        1_000_000..10_000_000_000 => {
            format!("{}.{:02} Mbit/s", bits / 1_000_000, bits % 1_000_000 / 10_000)
        }
        _ => format!("{}.{:02} Gbit/s", bits / 1_000_000_000, bits % 1_000_000_000 / 10_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let idle =
            PingTimes { count: 50, lost: 0, p50: 20_300, p95: 20_400, p99: 20_500, max: 21_000 };
        let loaded = PingTimes { count: 400, lost: 1, p50: 612_345, ..idle };
        let run = Run {
            discipline: "fifo".to_owned(),
            rate_bit: Some(20_000_000),
            goodput_bit: 18_912_345,
            upload_bit: Some(18_912_345),
            download_bit: None,
            ping_us: loaded,
            idle_ping_us: idle,
            drops: 123,
            marks: 0,
            ring_drops: 0,
            cpu_us: 1_000,
            largest_burst_bytes: 3_028,
            measured_us: 8_000_000,
            interrupted: false,
            round: 1,
            classes: Vec::new(),
            pings: Vec::new(),
            voice: None,
            series: Vec::new(),
            began: std::time::SystemTime::UNIX_EPOCH,
            loaded_from: 0.0,
        };
        Report {
            runs: vec![run],
            setup: Setup {
                scenario: "upload".to_owned(),
                flows: 4,
                congestion_control: "cubic".to_owned(),
                rtt_us: 20_000,
                ecn: false,
            },
        }
    }

    #[test]
    fn the_json_has_the_promised_keys() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).expect("valid JSON");
        let run = &json["runs"][0];
        for key in [
            "rate_bit",
            "goodput_bit",
            "drops",
            "marks",
            "ring_drops",
            "cpu_us",
            "largest_burst_bytes",
        ] {
            assert!(run[key].is_u64(), "{key}");
        }
        assert_eq!(run["discipline"], "fifo");
        for key in ["count", "lost", "p50", "p95", "p99", "max"] {
            assert!(run["ping_us"][key].is_u64(), "{key}");
            assert!(run["idle_ping_us"][key].is_u64(), "{key}");
        }
    }

    #[test]
    fn the_table_says_what_was_found() {
        let text = report().text();
        for part in [
            "fifo",
            "18.91 Mbit/s",
            "20.3 ms",
            "612 ms",
            "adds 592 ms",
            "TCP gets 94 % of the rate",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_run_without_answers_says_so() {
        let mut report = report();
        report.runs[0].ping_us = PingTimes { lost: 9, ..PingTimes::default() };
        report.runs[0].interrupted = true;
        let text = report.text();
        assert!(text.contains("not enough pings") && text.contains("(cut short)"), "{text}");
    }

    #[test]
    fn repetitions_are_shown_as_medians() {
        let mut report = report();
        for (round, goodput_bit) in [(2, 10_000_000), (3, 12_000_000)] {
            let run = Run { round, goodput_bit, ..report.runs[0].clone() };
            report.runs.push(run);
        }
        let text = report.text();
        assert!(text.contains("12.00 Mbit/s"), "{text}");
        assert!(text.contains("3 rounds, goodput 10.00 Mbit/s to 18.91 Mbit/s"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("valid JSON");
        assert_eq!(json["medians"][0]["goodput_bit"]["median"], 12_000_000);
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(millis(420), "0.42 ms");
        assert_eq!(millis(20_340), "20.3 ms");
        assert_eq!(millis(612_999), "612 ms");
        assert_eq!(rate(128_000), "128 kbit/s");
        assert_eq!(rate(18_912_345), "18.91 Mbit/s");
        assert_eq!(rate(17_500_000_000), "17.50 Gbit/s");
    }
}
