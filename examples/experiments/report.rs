//! Experiments 1 to 5: what was measured beside what was published, as a table and as a picture.
//!
//! `experiment-report NAME RESULTS [--most-stolen PERCENT] [--svg FILE]`: the scripts beside this file run it, and docs/EXPERIMENTS.md has what it
//! prints. NAME says which experiment; RESULTS is what its benchmark (`--json`) or `tests/flent/run --json` wrote. Bars are
//! medians of the rounds, with lines from the least to the most. Rounds of which others on the same hardware took more than
//! PERCENT of the processors' time are left out: they measure the others.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;

use serde_json::Value;

use chart::{Bar, Panel, Spread};

#[allow(dead_code, clippy::duplicate_mod, reason = "experiments use what they need of it")]
mod chart;

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: experiment-report split|near|doorbell|small|shares-10|shares-1|voip|acks \
                     RESULTS [--most-stolen PERCENT] [--svg FILE]";
/// Flows of flent's rrul, as flent names their marks.
const FLOWS: [&str; 4] = ["BE", "BK", "CS5", "EF"];
/// Its pings.
const PINGS: [&str; 4] = ["ICMP", "UDP BE", "UDP BK", "UDP EF"];

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let (name, results) = words.next().zip(words.next()).ok_or(USAGE)?;
    let (mut svg, mut most_stolen) = (None, f64::MAX);
    while let Some(option) = words.next() {
        match (&*option, words.next()) {
            ("--svg", Some(file)) => svg = Some(file),
            ("--most-stolen", Some(percent)) => most_stolen = percent.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    let text = fs::read_to_string(&results).map_err(|error| format!("{results}: {error}"))?;
    let rounds = || Rounds::read(&text, most_stolen);
    let (title, columns, panels) = match &*name {
        "split" => ("CAKE without a rate, a device of 1 Gbit/s, 4 uploads", 2, split(&text)?),
        "near" => ("4 uploads at 500 Mbit/s, both ends near", 2, near(&text)?),
        "doorbell" => ("UDP in frames of 64 bytes", 2, doorbell(&text)?),
        "small" => ("Small writes with TCP_NODELAY", 2, small(&text)?),
        "shares-10" => ("rrul, 10 Mbit/s up and down, 50 ms", 3, even(&rounds()?)),
        "shares-1" => ("rrul, 1 Mbit/s up, 10 down, 50 ms", 3, uneven(&rounds()?)),
        "voip" => ("32 uploads and a stream, 10 Mbit/s, 50 ms", 2, voip(&rounds()?)),
        "acks" => ("rrul_be with and without ACK filter", 3, acks(&rounds()?)),
        _ => return Err(USAGE.into()),
    };
    print!("{}", if name.starts_with("shares") { joined(&panels) } else { one_by_one(&panels) });
    svg.map_or(Ok(()), |file| chart::bars(&file, title, &panels, columns))
}

/// A line for each bar.
fn one_by_one(panels: &[Panel]) -> String {
    let mut table = "| | | published | ucake |\n|---|---|---|---|\n".to_owned();
    for panel in panels {
        for bar in &panel.bars {
            let published = bar.published.map(short).unwrap_or_default();
            let here = bar.here.map(spread).unwrap_or_default();
            table += &format!("| {} | {} | {published} | {here} |\n", panel.title, bar.name);
        }
    }
    table
}

/// A line for each panel.
fn joined(panels: &[Panel]) -> String {
    let mut table =
        "| | | published | sch_cake | ucake | of published |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for panel in panels {
        let cells = |cell: fn(&Bar) -> String| {
            let cells: Vec<_> = panel.bars.iter().map(cell).collect();
            cells.join(" / ")
        };
        let names = cells(|bar| bar.name.clone());
        let published = cells(|bar| bar.published.map_or("·".to_owned(), short));
        let linux = cells(|bar| bar.linux.map_or("·".to_owned(), |linux| short(linux.median)));
        let here = cells(|bar| bar.here.map_or("·".to_owned(), |here| short(here.median)));
        let of_it = cells(|bar| match (bar.published, bar.here) {
            (Some(published), Some(here)) => format!("{:.2}", here.median / published),
            _ => "·".to_owned(),
        });
        let title = &panel.title;
        table += &format!("| {title} | {names} | {published} | {linux} | {here} | {of_it} |\n");
    }
    table
}

fn spread(Spread { median, min, max }: Spread) -> String {
    if min < max {
        format!("{} ({} … {})", short(median), short(min), short(max))
    } else {
        short(median)
    }
}

/// Three digits.
fn short(value: f64) -> String {
    let places = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.places$}")
}

/// What a benchmark wrote about one of its rows.
struct Row(Value);

impl Row {
    /// All rows of a benchmark's file.
    fn all(text: &str) -> Outcome<Vec<Self>> {
        let all: Value = serde_json::from_str(text)?;
        // Either rows, or a group that has them.
        let rows = all.get(0).and_then(|group| group.get("rows")).unwrap_or(&all);
        Ok(rows.as_array().ok_or("no rows")?.iter().cloned().map(Self).collect())
    }

    fn field(&self, name: &str) -> Option<Spread> {
        let number = |part: &str| self.0.get(name)?.get(part)?.as_f64();
        Some(Spread { median: number("median")?, min: number("min")?, max: number("max")? })
    }

    fn name(&self) -> &str {
        let name = self.0.get("row").or(self.0.get("split"));
        name.and_then(Value::as_str).unwrap_or_default()
    }
}

/// One field of all rows, with what was published of the first of them.
fn panel(title: &str, rows: &[Row], field: &str, published: &[Option<f64>]) -> Panel {
    let published = published.iter().copied().chain(std::iter::repeat(None));
    let bars = rows.iter().zip(published).map(|(row, published)| Bar {
        name: row.name().to_owned(),
        published,
        linux: None,
        here: row.field(field),
    });
    Panel { title: title.to_owned(), bars: bars.collect() }
}

/// As multiples of the first bar's median.
fn relative(mut panel: Panel) -> Panel {
    let first = panel.bars.first().and_then(|bar| bar.here).map_or(1.0, |here| here.median);
    for here in panel.bars.iter_mut().filter_map(|bar| bar.here.as_mut()) {
        *here =
            Spread { median: here.median / first, min: here.min / first, max: here.max / first };
    }
    panel
}

/// Published: CAKE list and dtaht/sch_cake #103, 2018.
fn split(text: &str) -> Outcome<Vec<Panel>> {
    let rows = Row::all(text)?;
    Ok(vec![
        panel("byte limit, kB", &rows, "limit_kb", &[Some(43.5), None, Some(132.0)]),
        panel("in flight, kB", &rows, "in_flight_kb", &[]),
        panel("ping, ms", &rows, "ping_p50_ms", &[Some(0.83), None, Some(1.67)]),
        panel("goodput, Mbit/s", &rows, "mbit", &[Some(942.0), None, Some(938.0)]),
    ])
}

/// Published: TCP's sizing of superpackets by round-trip time, Linux, 2022.
fn near(text: &str) -> Outcome<Vec<Panel>> {
    let rows = Row::all(text)?;
    let published = |before, after| [Some(before), None, Some(after)];
    let back = panel("ACKs a segment, first = 1", &rows, "back", &published(1.0, 0.1));
    Ok(vec![
        panel("segments in a write", &rows, "segments_per_write", &published(3.74, 40.7)),
        relative(back),
        panel("processor time, first = 1", &rows, "ns_per_kb_ratio", &published(1.0, 0.25)),
        panel("goodput, first = 1", &rows, "mbit_ratio", &[]),
    ])
}

/// Published: FreeBSD's iflib.
fn doorbell(text: &str) -> Outcome<Vec<Panel>> {
    let rows = Row::all(text)?;
    Ok(vec![
        panel("frames a second, first = 1", &rows, "mbit_ratio", &[Some(1.0), Some(1.35 / 1.10)]),
        panel("processor time, first = 1", &rows, "ns_per_kb_ratio", &[]),
    ])
}

/// Published: TCP autocorking, 2018.
fn small(text: &str) -> Outcome<Vec<Panel>> {
    let rows = Row::all(text)?;
    let third = [Some(1.0), None, Some(1.0 / 3.0)];
    Ok(vec![
        panel("processor time, first = 1", &rows, "ns_per_kb_ratio", &third),
        panel("segments in a write", &rows, "segments_per_write", &[]),
    ])
}

/// What flent measured, by title and round.
struct Rounds(BTreeMap<String, Vec<Value>>);

impl Rounds {
    fn read(text: &str, most_stolen: f64) -> Outcome<Self> {
        let mut all = BTreeMap::<_, Vec<Value>>::new();
        for line in text.lines() {
            let mut line: Value = serde_json::from_str(line)?;
            if line["stolen"].as_f64().is_some_and(|stolen| stolen > most_stolen) {
                continue;
            }
            let title = line["title"].as_str().unwrap_or_default().to_owned();
            all.entry(title).or_default().push(line["series"].take());
        }
        Ok(Self(all))
    }

    /// The sum of the means of `series` in each round.
    fn mean(&self, title: &str, series: &[String]) -> Option<Spread> {
        let one = |round: &Value, name: &String| round.get(name)?.get("mean")?.as_f64();
        let sum = |round| series.iter().map(|name| one(round, name)).sum::<Option<f64>>();
        let sums: Option<Vec<_>> = self.0.get(title)?.iter().map(sum).collect();
        Spread::of(sums?)
    }

    /// A bar for each of rrul's flows of a direction, or one for all.
    fn flows(&self, run: &str, way: &str, published: &[f64]) -> Panel {
        let name = |mark: &&str| format!("TCP {way}load {mark}");
        let bar = |name: &str, published: f64, series: &[String]| Bar {
            name: name.to_owned(),
            published: Some(published),
            linux: self.mean(&sch_cake(run), series),
            here: self.mean(run, series),
        };
        let bars = match published {
            [all] => vec![bar("all", *all, &FLOWS.iter().map(name).collect::<Vec<_>>())],
            each => {
                let each = FLOWS.iter().zip(each);
                each.map(|(mark, published)| bar(mark, *published, &[name(mark)])).collect()
            }
        };
        Panel { title: format!("{}, {way}, Mbit/s", tins(run)), bars }
    }

    fn pings(&self, run: &str, published: &[f64]) -> Panel {
        let bars = PINGS.iter().zip(published).map(|(name, published)| Bar {
            name: name.trim_start_matches("UDP ").to_owned(),
            published: Some(*published),
            linux: self.mean(&sch_cake(run), &[format!("Ping (ms) {name}")]),
            here: self.mean(run, &[format!("Ping (ms) {name}")]),
        });
        Panel { title: format!("{}, ping, ms", tins(run)), bars: bars.collect() }
    }
}

/// The same run with Linux's own discipline.
fn sch_cake(run: &str) -> String {
    format!("kernel-{run}")
}

fn tins(run: &str) -> &str {
    run.split('-').next().unwrap_or(run)
}

/// Published: spec §15.1, 10/10 Mbit/s.
fn even(rounds: &Rounds) -> Vec<Panel> {
    let (one, three, four) = ("besteffort-10up", "diffserv3-10up", "diffserv4-10up");
    vec![
        rounds.flows(one, "down", &[2.32; 4]),
        rounds.flows(one, "up", &[2.32; 4]),
        rounds.pings(one, &[51.7]),
        rounds.flows(three, "down", &[3.16, 0.606, 3.18, 2.35]),
        rounds.flows(three, "up", &[3.18, 0.612, 3.15, 2.35]),
        rounds.pings(three, &[52.7, 53.0, 69.5, 55.1]),
        rounds.flows(four, "down", &[5.56, 0.664, 1.526, 1.521]),
        rounds.flows(four, "up", &[5.55, 0.674, 1.524, 1.530]),
        rounds.pings(four, &[52.4, 52.8, 68.3, 54.6]),
    ]
}

/// Published: spec §15.1, 1 Mbit/s up and 10 down.
fn uneven(rounds: &Rounds) -> Vec<Panel> {
    let (one, three, four) = ("besteffort-1up", "diffserv3-1up", "diffserv4-1up");
    vec![
        rounds.flows(one, "down", &[9.49]),
        rounds.flows(one, "up", &[0.729]),
        rounds.pings(one, &[58.0]),
        rounds.flows(three, "down", &[3.22, 0.556, 3.20, 2.50]),
        rounds.flows(three, "up", &[0.271, 0.041, 0.271, 0.190]),
        rounds.pings(three, &[63.3, 64.4, 216.5, 69.0]),
        rounds.flows(four, "down", &[5.78, 0.560, 1.53, 1.52]),
        rounds.flows(four, "up", &[0.508, 0.0421, 0.0796, 0.0796]),
        rounds.pings(four, &[62.3, 64.7, 214.7, 73.3]),
    ]
}

/// Bars of several runs on the same line, for the same series.
fn runs(
    rounds: &Rounds,
    line: &str,
    title: &str,
    series: &[String],
    published: &[(&str, Option<f64>)],
) -> Panel {
    let bars = published.iter().map(|&(run, published)| Bar {
        name: run.trim_start_matches("ack-filter-").to_owned(),
        published,
        linux: None,
        here: rounds.mean(&format!("{line}{run}"), series),
    });
    Panel { title: title.to_owned(), bars: bars.collect() }
}

/// Published: spec §15.1, one repetition.
fn voip(rounds: &Rounds) -> Vec<Panel> {
    let uploads: Vec<_> = (1..=32).map(|number| format!("TCP upload::{number}")).collect();
    let (one, four) = ("besteffort", "diffserv4");
    vec![
        runs(rounds, "", "uploads, Mbit/s", &uploads, &[(one, Some(9.49)), (four, Some(8.19))]),
        runs(
            rounds,
            "",
            "ICMP ping, ms",
            &["Ping (ms) ICMP".to_owned()],
            &[(one, Some(51.0)), (four, Some(51.3))],
        ),
    ]
}

/// Published: D. Täht, November 2017, 1000 down, 20 up and 100 ms, as multiples of what it is without a filter, after ten
/// seconds; beside the line here that is most like it.
fn acks(rounds: &Rounds) -> Vec<Panel> {
    let lines = [
        ("50ms-100-2-", "50 ms, 100/2", None),
        ("100ms-200-4-", "100 ms, 200/4", Some([1.4, 2.0])),
        ("50ms-100-1-", "50 ms, 100/1", None),
    ];
    lines
        .iter()
        .flat_map(|(line, title, published)| asymmetric(rounds, line, title, *published))
        .collect()
}

/// What filters do on one line, and what was published of the first of them, down and up.
fn asymmetric(rounds: &Rounds, line: &str, title: &str, published: Option<[f64; 2]>) -> [Panel; 3] {
    let flows = |way: &str| ["BE", "BE2", "BE3", "BE4"].map(|mark| format!("TCP {way}load {mark}"));
    let bars = |what: &str, series: &[String], published: Option<f64>| {
        let filters = [
            ("no-ack-filter", published.and(Some(1.0))),
            ("ack-filter", published),
            ("ack-filter-aggressive", None),
        ];
        runs(rounds, line, &format!("{title}: {what}"), series, &filters)
    };
    let [down, up] = published.map_or([None; 2], |ways| ways.map(Some));
    [
        relative(bars("down, first = 1", &flows("down"), down)),
        relative(bars("up, first = 1", &flows("up"), up)),
        bars("ICMP ping, ms", &["Ping (ms) ICMP".to_owned()], None),
    ]
}
