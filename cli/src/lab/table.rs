//! What was found, for people: a table and sentences.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::FIFO_LIMIT;
use super::report::{ClassRate, Report, Run, Setup};
use super::summary::{Summary, by_discipline, median};
use super::voice::Voice;

/// Columns of every scenario's table. With [`NAME_WIDTH`] it fits 80 columns.
const COMMON: [&str; 10] = [
    "discipline",
    "goodput",
    "ping\nidle",
    "ping\np50",
    "ping\np95",
    "ping\np99",
    "ping\nmax",
    "pings\nlost",
    "drops",
    "marks",
];
/// Most that the name of a discipline is wide, padding included; what is longer goes on below.
const NAME_WIDTH: u16 = 21;

impl Report {
    /// The report as text.
    pub(super) fn text(&self) -> String {
        let groups = by_discipline(&self.runs);
        let rows: Vec<Run> = groups.iter().filter_map(|runs| median(runs)).collect();
        let mut common = table(&COMMON, 0);
        for run in &rows {
            common.add_row(run.row());
        }
        let mut text = format!("{common}\n");
        if let Some(own) = self.own_table(&rows) {
            text.push_str(&format!("\n{own}\n"));
        }
        format!("{text}\n{}", self.explanation(&rows))
    }

    /// What matters in this scenario alone.
    fn own_table(&self, rows: &[Run]) -> Option<Table> {
        type Cells = fn(&Run) -> Vec<Vec<String>>;
        let (header, cells): (&[&str], Cells) = match self.setup.scenario.as_str() {
            "rrul" => (&["discipline", "mark", "up", "down", "ping p50", "ping p99"], Run::marks),
            "hosts" => (&["discipline", "host", "flows", "up"], Run::hosts),
            "voip" => (&["discipline", "call p50", "p99", "jitter", "sent", "lost"], Run::call),
            "small" => (&["discipline", "shaper's processor time"], Run::cpu),
            _ => return None,
        };
        let mut own = table(header, 1);
        for run in rows {
            // The discipline's name stands in the first of its rows alone.
            let names = std::iter::once(run.name()).chain(std::iter::repeat(String::new()));
            for (name, row) in names.zip(cells(run)) {
                own.add_row(std::iter::once(name).chain(row));
            }
        }
        Some(own)
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
             ping: round-trip times in ms; p50 … max: under that load. What exceeds \"idle\" is\n\
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
    fn name(&self) -> String {
        let cut = if self.interrupted { " (cut short)" } else { "" };
        format!("{}{cut}", self.discipline)
    }

    fn row(&self) -> Vec<String> {
        let times = self.ping_us;
        vec![
            self.name(),
            rate(self.goodput_bit),
            bare_millis(self.idle_ping_us.count, self.idle_ping_us.p50),
            bare_millis(times.count, times.p50),
            bare_millis(times.count, times.p95),
            bare_millis(times.count, times.p99),
            bare_millis(times.count, times.max),
            times.lost.to_string(),
            self.drops.to_string(),
            self.marks.to_string(),
        ]
    }

    /// A row per mark: goodput each way, and ping.
    fn marks(&self) -> Vec<Vec<String>> {
        let got = |label: &str, direction| {
            let mut classes = self.classes.iter();
            let class = classes.find(|one| one.label == label && one.direction == direction);
            class.map_or_else(|| "-".to_owned(), |class| rate(class.goodput_bit))
        };
        let row = |label: &str| {
            let marked = self.pings.iter().find(|ping| ping.label == label);
            let times = marked.map_or(self.ping_us, |ping| ping.ping_us);
            let ping = |micros| if times.count == 0 { "-".to_owned() } else { millis(micros) };
            let (up, down) = (got(label, "upload"), got(label, "download"));
            vec![label.to_owned(), up, down, ping(times.p50), ping(times.p99)]
        };
        let uploads = self.classes.iter().filter(|class| class.direction == "upload");
        uploads.map(|class| row(class.label)).collect()
    }

    fn hosts(&self) -> Vec<Vec<String>> {
        let row = |class: &ClassRate| {
            vec![class.label.to_owned(), class.flows.to_string(), rate(class.goodput_bit)]
        };
        self.classes.iter().map(row).collect()
    }

    fn call(&self) -> Vec<Vec<String>> {
        let row = |voice: &Voice| {
            let [p50, p99, jitter] = [voice.p50_us, voice.p99_us, voice.jitter_us].map(millis);
            vec![p50, p99, jitter, voice.sent.to_string(), voice.lost.to_string()]
        };
        self.voice.iter().map(row).collect()
    }

    fn cpu(&self) -> Vec<Vec<String>> {
        vec![vec![millis(self.cpu_us)]]
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

/// An empty table. Names of disciplines are broken into lines, numbers are not. Between
/// columns there is a space, and `gap` more.
fn table(header: &[&str], gap: u16) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_BORDERS_ONLY_CONDENSED);
    // Columns are broken only where the whole width is known; this one is never reached.
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(1000);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
        column.set_padding((gap, 0));
    }
    if let Some(last) = table.column_mut(header.len().saturating_sub(1)) {
        last.set_padding((gap, 1));
    }
    if let Some(names) = table.column_mut(0) {
        names.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(NAME_WIDTH)));
    }
    table
}

/// Without the unit; nothing was measured if nothing was counted.
fn bare_millis(count: u64, micros: u64) -> String {
    match count {
        0 => "-".to_owned(),
        _ => millis(micros).trim_end_matches(" ms").to_owned(),
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
        for part in
            ["fifo", "18.91 Mbit/s", " 20.3 ", " 612 ", "adds 592 ms", "TCP gets 94 % of the rate"]
        {
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
    fn every_table_fits_a_terminal_however_long_the_words_are() {
        let mut report = report();
        let words =
            "cake besteffort dual-srchost nat wash overhead 44 mpu 84 ack-filter-aggressive";
        report.runs[0].discipline = words.to_owned();
        report.runs[0].voice = Some(Voice::default());
        for label in ["BE", "BK", "CS5", "EF"] {
            for direction in ["upload", "download"] {
                let class = ClassRate { label, direction, flows: 1, goodput_bit: 12_345_678 };
                report.runs[0].classes.push(class);
            }
        }
        for scenario in ["upload", "rrul", "hosts", "voip", "small"] {
            scenario.clone_into(&mut report.setup.scenario);
            let text = report.text();
            let table = text.lines().take_while(|line| !line.contains("bottleneck"));
            for line in table {
                assert!(line.chars().count() <= 80, "{text}");
            }
        }
        "rrul".clone_into(&mut report.setup.scenario);
        let text = report.text();
        let row = text.lines().find(|line| line.contains("CS5")).unwrap_or_default();
        assert_eq!(row.matches("12.34 Mbit/s").count(), 2, "{text}");
        assert!(row.contains("612 ms"), "{text}");
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
