//! What the laboratory found: for people a table, for programs JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::FIFO_LIMIT;
use super::ping::Rtts;

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
    /// `upload`, `download` or `both`.
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
        serde_json::to_string_pretty(self).expect("numbers and strings serialise") + "\n"
    }

    /// The report as text.
    pub(crate) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_BORDERS_ONLY_CONDENSED);
        table.set_header([
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
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for run in &self.runs {
            table.add_row(run.row());
        }
        format!("{table}\n\n{}", self.explanation())
    }

    fn explanation(&self) -> String {
        let Setup { scenario, flows, congestion_control, rtt_us, .. } = &self.setup;
        let load = match scenario.as_str() {
            "upload" => format!("{flows} TCP uploads"),
            "download" => format!("{flows} TCP downloads"),
            _ => format!("{flows} TCP uploads and {flows} downloads"),
        };
        let mut text = format!(
            "{load} ({congestion_control}) through one bottleneck, path delay {}.\n\
             ping p50 … max: round-trip times under that load; what exceeds \"ping idle\" is\n\
             time spent in queues. goodput: TCP payload that arrived. lost: pings unanswered.\n\
             fifo: a drop-tail queue of {FIFO_LIMIT} packets, what most links have.\n\n",
            millis(u64::try_from(*rtt_us).unwrap_or(0)),
        );
        for run in &self.runs {
            text.push_str(&run.sentence());
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
    fn numbers_are_short() {
        assert_eq!(millis(420), "0.42 ms");
        assert_eq!(millis(20_340), "20.3 ms");
        assert_eq!(millis(612_999), "612 ms");
        assert_eq!(rate(128_000), "128 kbit/s");
        assert_eq!(rate(18_912_345), "18.91 Mbit/s");
        assert_eq!(rate(17_500_000_000), "17.50 Gbit/s");
    }
}
