//! What the laboratory found: numbers, and JSON for programs.

use serde::Serialize;

use super::ping::Rtts;
use super::series::Series;
use super::summary::{Summary, by_discipline};
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
        let medians =
            by_discipline(&self.runs).iter().filter_map(|runs| Summary::of(runs)).collect();
        let whole = Whole { report: self, medians };
        serde_json::to_string_pretty(&whole).expect("numbers and strings serialise") + "\n"
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::lab) fn report() -> Report {
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
}
