//! What was found, for people: a table and sentences.

use comfy_table::{CellAlignment, Table, presets};

use super::FIFO_LIMIT;
use super::report::{Report, Run, Setup};
use super::summary::{Summary, by_discipline, median};

impl Report {
    /// The report as text.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_BORDERS_ONLY_CONDENSED);
        let groups = by_discipline(&self.runs);
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
            for summary in by_discipline(&self.runs).iter().filter_map(|runs| Summary::of(runs)) {
                text.push_str(&summary.sentence());
            }
        }
        text
    }
}

impl Summary {
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
pub(super) fn rate(bits: u64) -> String {
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
    use crate::lab::report::PingTimes;
    use crate::lab::report::tests::report;

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
