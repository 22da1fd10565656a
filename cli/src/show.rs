//! The text of `tc qdisc show` and `tc -s qdisc show`, to the byte.
//!
//! Problem: people know these lines by heart and scripts take them apart by column.
//! Source: spec §11.5 (first line) and §11.6 (statistics), `cli/tests/data/tc_show.json`.
//! Law: what is printed can be typed again: the words of the first line are words of `words`.
//! Left out: JSON (`json`), classes (`class`). What only ucake counts stands below `tc`'s lines, with `-d` only, but
//! for the line of [`runs`], which also stands there where `tc` has no word for what is configured.

use std::fmt::Write as _;

use ucake::dql::DqlStats;
use ucake::io::lateness::LatenessStats;
use ucake::io::port::Counters;
use ucake::qdisc::{AckFilter, Config, LinkLayer, MinMax, Overhead, SplitGso, Stats, TinStats};
use ucake::units::{MemSize, Rate};

use crate::protocol::{PortCounts, Supervision};
use crate::value;

/// Queues of other instances on the same device (`cake_mq`), of which there are none.
pub(crate) const ACTIVE_QUEUES: u32 = 0;

/// Where an instance hangs, as the first line says it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Major number of the handle.
    pub handle: u16,
    /// The device, unless the reader asked for it by name.
    pub dev: Option<&'a str>,
    /// References the device holds; 1 is not printed.
    pub refcnt: u32,
}

/// What `tc`'s options change about its answers; none of them by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// `-s`: with statistics.
    pub statistics: bool,
    /// `-d`: with what only ucake counts. For `tc` it changes nothing about a CAKE.
    pub details: bool,
    /// `-iec`: rates in units of 1024. Sizes have them anyway, and JSON has no units.
    pub iec: bool,
    /// `-r`: with the handle in hexadecimal digits besides.
    pub raw: bool,
}

impl Format {
    /// Writes a rate as asked for.
    pub(crate) fn rate(self, rate: Rate) -> String {
        if self.iec { value::rate_iec(rate) } else { value::rate(rate) }
    }
}

/// `tc qdisc show`, whole: the first line, the statistics with `-s`, what only ucake counts with `-d`.
pub fn qdisc(place: &Place<'_>, config: &Config, stats: &Stats, format: Format) -> String {
    let mut text = first_line_as(place, config, format) + "\n";
    if format.statistics {
        text.push_str(&statistics_as(stats, format));
    }
    if format.details {
        text.push_str(&details(config, stats));
    }
    text
}

/// [`first_line_as`] without any of `tc`'s options.
pub fn first_line(place: &Place<'_>, config: &Config) -> String {
    first_line_as(place, config, Format::default())
}

/// `tc qdisc show`: one line, with the blank at its end and without a line feed.
pub fn first_line_as(place: &Place<'_>, config: &Config, format: Format) -> String {
    head("cake", place, format) + &options_as(config, format)
}

/// How the first line of any discipline starts, up to the blank before its options.
pub(crate) fn head(kind: &str, place: &Place<'_>, format: Format) -> String {
    let mut line = format!("qdisc {kind} {:x}:", place.handle);
    if format.raw {
        // As `tc` does, without a blank between.
        let _ = write!(line, "[{:04x}0000]", place.handle);
    }
    line.push(' ');
    if let Some(dev) = place.dev {
        let _ = write!(line, "dev {dev} ");
    }
    line.push_str("root ");
    if place.refcnt != 1 {
        let _ = write!(line, "refcnt {} ", place.refcnt);
    }
    line
}

/// [`options_as`] without any of `tc`'s options.
pub fn options(config: &Config) -> String {
    options_as(config, Format::default())
}

/// The words that make `config` out of the defaults, with a blank after each.
pub fn options_as(config: &Config, format: Format) -> String {
    let mut words = vec!["bandwidth".to_owned()];
    let rate = config.shaped_rate().map(|rate| format.rate(rate));
    words.push(rate.unwrap_or_else(|| "unlimited".to_owned()));
    if config.autorate_ingress {
        words.push("autorate-ingress".to_owned());
    }
    words.push(config.diffserv.name().to_owned());
    words.push(config.isolation.name().to_owned());
    words.push(if config.nat { "nat" } else { "nonat" }.to_owned());
    words.push(if config.wash { "wash" } else { "nowash" }.to_owned());
    if config.ingress {
        words.push("ingress".to_owned());
    }
    words.push(ack_filter(config.ack_filter).to_owned());
    words.push(split_gso(config.split_gso).to_owned());
    if config.burst != Config::DEFAULT_BURST {
        words.push(format!("burst {}", value::time(config.burst)));
    }
    if config.rtt_step != Config::DEFAULT_RTT_STEP {
        words.push(format!("rtt-step {}", value::time(config.rtt_step)));
    }
    if config.interval.micros() != 0 {
        words.push(format!("rtt {}", value::time(config.interval)));
    }
    words.extend(overhead(&config.overhead));
    if let Some(limit) = config.memory_limit.map(MemSize::bytes).filter(|&bytes| bytes != 0) {
        words.push(format!("memlimit {}", value::size(limit)));
    }
    if config.fwmark != 0 {
        words.push(format!("fwmark {:#x}", config.fwmark));
    }
    words.join(" ") + " "
}

const fn ack_filter(mode: AckFilter) -> &'static str {
    match mode {
        AckFilter::Off => "no-ack-filter",
        AckFilter::Conservative => "ack-filter",
        AckFilter::Aggressive => "ack-filter-aggressive",
    }
}

pub(crate) const fn split_gso(policy: SplitGso) -> &'static str {
    match policy {
        SplitGso::Split => "split-gso",
        SplitGso::Whole => "no-split-gso",
        SplitGso::Auto => "auto-split-gso",
    }
}

fn overhead(overhead: &Overhead) -> Vec<String> {
    let mut words = Vec::new();
    if overhead.raw {
        words.push("raw".to_owned());
    }
    match overhead.link_layer {
        LinkLayer::Atm => words.push("atm".to_owned()),
        LinkLayer::Ptm => words.push("ptm".to_owned()),
        LinkLayer::Noatm if !overhead.raw => words.push("noatm".to_owned()),
        LinkLayer::Noatm => {}
    }
    words.push(format!("overhead {}", overhead.bytes));
    if overhead.mpu != 0 {
        words.push(format!("mpu {}", overhead.mpu));
    }
    words
}

/// [`statistics_as`] without any more of `tc`'s options.
pub fn statistics(stats: &Stats) -> String {
    statistics_as(stats, Format::default())
}

/// What `tc -s qdisc show` prints after the first line.
pub fn statistics_as(stats: &Stats, format: Format) -> String {
    let mut text = format!(
        " Sent {} bytes {} pkt (dropped {}, overlimits {} requeues 0) \n",
        stats.sent_bytes, stats.sent_packets, stats.dropped, stats.overlimits
    );
    let backlog = value::size(stats.backlog.bytes().into());
    let used = value::size(stats.memory_used.bytes());
    let limit = value::size(stats.memory_limit.bytes());
    let MinMax { min, max } = stats.network_size;
    let adjusted = stats.adjusted_size;
    let rows = [
        format!(" backlog {backlog} {}p requeues 0", stats.queued_packets),
        format!(" memory used: {used} of {limit}"),
        format!(" capacity estimate: {}", format.rate(stats.capacity_estimate)),
        format!(" min/max network layer size: {min:12} /{max:8}"),
        format!(" min/max overhead-adjusted size: {:8} /{:8}", adjusted.min, adjusted.max),
        format!(" active queues: {ACTIVE_QUEUES:25}"),
        format!(" average network hdr offset: {:12}", stats.average_network_offset),
    ];
    for row in rows {
        text.push_str(&row);
        text.push('\n');
    }
    text.push('\n');
    tins(&mut text, &stats.tins, format);
    text.push('\n');
    text
}

/// What only ucake counts, of an instance under `auto-split-gso`; nothing of others, so that what `tc`
/// can configure looks as `tc` shows it.
pub fn runs(config: &Config, stats: &Stats) -> String {
    if config.split_gso == SplitGso::Auto { runs_line(config, stats) } else { String::new() }
}

/// What only ucake counts: the line of [`runs`] whatever the configuration, and what the clock did.
pub fn details(config: &Config, stats: &Stats) -> String {
    let Stats { catch_up_capped, given_up, clock_went_back, .. } = stats;
    let given_up = value::time(*given_up);
    let clock = format!(
        " catch-up capped {catch_up_capped} ({given_up} given up), clock went back {clock_went_back}\n"
    );
    runs_line(config, stats) + &clock
}

/// What the port of this name counted: three lines, of which the first one is to stand wherever it is put.
pub fn port(name: &str, counts: &PortCounts) -> String {
    let PortCounts { counters, lost_before_reading, byte_limit, rings, late } = counts;
    let Counters { frames_in, bytes_in, frames_out, bytes_out, write_errors, .. } = counters;
    let lost = lost_before_reading.map_or_else(|| "?".to_owned(), |lost| lost.to_string());
    let DqlStats { limit, in_flight, stops, stopped } = byte_limit;
    format!(
        "port {name}: read {bytes_in} bytes {frames_in} frames (refused {}, lost before reading {lost}), \
         wrote {bytes_out} bytes {frames_out} frames (failed {}, too long {})\n \
         segments {} doorbell {rings} runs_refused {} byte_limit {limit} in_flight {in_flight} \
         stopped {stops} times {}\n {}\n",
        refused(counters),
        write_errors.total() - write_errors.too_long,
        write_errors.too_long,
        counters.segments_out,
        counters.runs_refused,
        value::time(*stopped),
        lateness(late),
    )
}

/// Frames that were read and could not be taken.
pub(crate) fn refused(counters: &Counters) -> u64 {
    let undissected: u64 = counters.refused.iter().map(|(_, count)| count).sum();
    undissected + counters.truncated
}

/// How late wake-ups were, as a part of a sentence.
pub(crate) fn lateness(late: &LatenessStats) -> String {
    let LatenessStats { wake_ups, p50, p99, max } = late;
    let [p50, p99, max] = [p50, p99, max].map(|span| value::time(*span));
    format!("wake-ups {wake_ups}, late by {p50} (median), {p99} (99 %), {max} (worst)")
}

/// What became of the processes that handled the frames: one line below the others with `-d`.
pub fn supervision(supervision: &Supervision) -> String {
    let Supervision { pid, died, hung, upgraded, upgrades_failed, packets_lost, passing_through } =
        supervision;
    let now = if *passing_through { ", passing through without CAKE for a while" } else { "" };
    format!(
        " process {pid} after {died} died, {hung} hung, {upgraded} upgraded ({upgrades_failed} failed), \
         {packets_lost} packets lost with them{now}\n"
    )
}

fn runs_line(config: &Config, stats: &Stats) -> String {
    // Measured only where a budget needs it.
    let late = match config.split_gso {
        SplitGso::Auto => format!(", wake-ups late by {}", value::time(stats.lateness)),
        SplitGso::Split | SplitGso::Whole => String::new(),
    };
    format!(
        " runs {} (mean {:.1} packets, largest {}){late}\n",
        stats.runs,
        stats.mean_run(),
        value::size(stats.largest_burst.bytes().into()),
    )
}

/// One row of the table of tins: its label and how a tin's value is printed.
type Row = (&'static str, fn(&TinStats, Format) -> String);

/// The rows in order (spec §11.6).
const ROWS: [Row; 20] = [
    ("thresh", |tin, format| format.rate(tin.threshold)),
    ("target", |tin, _| value::time(tin.target)),
    ("interval", |tin, _| value::time(tin.interval)),
    ("pk_delay", |tin, _| value::time(tin.peak_delay)),
    ("av_delay", |tin, _| value::time(tin.average_delay)),
    ("sp_delay", |tin, _| value::time(tin.base_delay)),
    ("backlog", |tin, _| value::size(tin.backlog.bytes().into())),
    ("pkts", |tin, _| tin.packets.to_string()),
    ("bytes", |tin, _| tin.bytes.to_string()),
    ("way_inds", |tin, _| tin.way_indirect_hits.to_string()),
    ("way_miss", |tin, _| tin.way_misses.to_string()),
    ("way_cols", |tin, _| tin.way_collisions.to_string()),
    ("drops", |tin, _| tin.drops.to_string()),
    ("marks", |tin, _| tin.marks.to_string()),
    ("ack_drop", |tin, _| tin.ack_drops.to_string()),
    ("sp_flows", |tin, _| tin.sparse_flows.to_string()),
    ("bk_flows", |tin, _| tin.bulk_flows.to_string()),
    ("un_flows", |tin, _| tin.unresponsive_flows.to_string()),
    ("max_len", |tin, _| tin.max_packet_len.to_string()),
    ("quantum", |tin, _| tin.flow_quantum.to_string()),
];

fn tins(text: &mut String, tins: &[TinStats], format: Format) {
    let row = |label: &str, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:>12}")).collect();
        format!("{label:<10}{cells}\n")
    };
    text.push_str(&row("", titles(tins.len())));
    for (label, cell) in ROWS {
        let cells = tins.iter().map(|tin| cell(tin, format)).collect();
        text.push_str(&row(&format!("  {label}"), cells));
    }
}

/// Names of the tins, in display order; three and four tins have names of their own.
fn titles(count: usize) -> Vec<String> {
    let names: &[&str] = match count {
        3 => &["Bulk", "Best Effort", "Voice"],
        4 => &["Bulk", "Best Effort", "Video", "Voice"],
        _ => return (0..count).map(|tin| format!("Tin {tin}")).collect(),
    };
    names.iter().map(|&name| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Json;
    use ucake::io::port::WriteErrors;
    use ucake::packet::Refused;
    use ucake::qdisc::{Cake, Diffserv, Entropy, Isolation};
    use ucake::sim::SimFrame;
    use ucake::time::Span;
    use ucake::units::FrameLen;

    use super::*;
    use crate::recorded::{self, DIFFERENT, config, golden};
    use crate::words::parse_line;
    use crate::words::table::{self, Value};

    /// The cells of one row of the text of `-s`.
    fn cells(text: &str, label: &str) -> Vec<String> {
        let row = text.lines().find(|row| row.trim_start().starts_with(label));
        let row = row.unwrap_or_else(|| panic!("no row {label} in {text}"));
        row.split_whitespace().skip(1).map(str::to_owned).collect()
    }

    /// Compares the rows that follow from the configuration alone with those `tc` printed.
    fn assert_derived(words: &str, golden: &Json, stats: &Stats) {
        let text = statistics(stats);
        let limit = format!(" of {}\n", golden["memory_limit"].as_str().expect("a size"));
        assert!(text.contains(&limit), "{words}: expected{limit}got {text}");
        for label in ["thresh", "target", "interval", "quantum"] {
            let expected: Vec<&str> =
                golden[label].as_array().expect(label).iter().filter_map(Json::as_str).collect();
            assert_eq!(cells(&text, label), expected, "{words}: {label}");
        }
    }

    #[test]
    fn the_first_line_is_that_of_tc_in_every_golden_case() {
        let place = Place { handle: 0x8001, dev: None, refcnt: 2 };
        let mut compared = 0;
        for case in golden() {
            let words = case["words"].as_str().expect("words");
            let Some(expected) = case["show"].as_str() else { continue };
            if DIFFERENT.contains(&words) {
                continue;
            }
            let expected = expected.replacen("cake H:", "cake 8001:", 1);
            assert_eq!(first_line(&place, &config(words)), expected, "{words}");
            compared += 1;
        }
        assert_eq!(compared, 58);
    }

    #[test]
    fn what_tc_refuses_is_refused_with_its_message() {
        let mut refused = 0;
        for case in golden().iter().filter(|case| case["exit"] != 0) {
            let words = case["words"].as_str().expect("words");
            let error = parse_line(words).expect_err(words);
            let message = case["stderr"].as_str().expect("a message");
            // `tc` prints a backslash and an n where it means a line feed.
            let message = message.trim_end_matches("\\n");
            if words != "help" {
                assert_eq!(error.problem.to_string(), message, "{words}");
            }
            refused += 1;
        }
        assert_eq!(refused, 10);
        for words in DIFFERENT {
            assert!(parse_line(words).is_err(), "{words}");
        }
    }

    #[test]
    fn device_and_references_are_printed_where_tc_prints_them() {
        let place = Place { handle: 0xa, dev: Some("eth0"), refcnt: 1 };
        let expected = "qdisc cake a: dev eth0 root bandwidth unlimited diffserv3 triple-isolate \
                        nonat nowash no-ack-filter split-gso rtt 100ms raw overhead 0 ";
        assert_eq!(first_line(&place, &Config::default()), expected);
    }

    /// The example of spec §11.6.
    fn example() -> Stats {
        let bits = Rate::from_bits;
        let micros = Span::from_micros;
        let tin = |threshold, target, interval, flow_quantum| TinStats {
            threshold: bits(threshold),
            target: micros(target),
            interval: micros(interval),
            flow_quantum,
            ..TinStats::default()
        };
        let bulk = tin(1_250_000, 14_534, 109_534, 300);
        let best_effort = TinStats {
            peak_delay: micros(1_520),
            average_delay: micros(611),
            base_delay: micros(14),
            backlog: FrameLen(3_028),
            packets: 41_211,
            bytes: 58_230_144,
            way_misses: 97,
            drops: 118,
            marks: 12,
            sparse_flows: 2,
            bulk_flows: 1,
            max_packet_len: FrameLen(1_514),
            ..tin(20_000_000, 5_000, 100_000, 610)
        };
        let voice = TinStats {
            peak_delay: micros(75),
            average_delay: micros(33),
            base_delay: micros(5),
            packets: 803,
            bytes: 96_360,
            way_misses: 9,
            sparse_flows: 1,
            max_packet_len: FrameLen(214),
            ..tin(5_000_000, 5_000, 100_000, 300)
        };
        Stats {
            sent_bytes: 58_144_824,
            sent_packets: 41_894,
            dropped: 118,
            overlimits: 71_480,
            backlog: FrameLen(3_028),
            queued_packets: 2,
            memory_used: MemSize(161_280),
            memory_limit: MemSize(4 << 20),
            capacity_estimate: bits(20_000_000),
            network_size: MinMax { min: 28, max: 1_500 },
            adjusted_size: MinMax { min: 84, max: 1_538 },
            average_network_offset: 14,
            tins: vec![bulk, best_effort, voice],
            ..Stats::default()
        }
    }

    #[test]
    fn statistics_are_those_of_the_specification() {
        let place = Place { handle: 0x8001, dev: Some("eth0"), refcnt: 2 };
        let text = first_line(&place, &config("bandwidth 20mbit ethernet"))
            + "\n"
            + &statistics(&example());
        assert_eq!(text, include_str!("../tests/data/tc_show_statistics.txt"));
    }

    #[test]
    fn text_is_that_of_tc_to_the_byte_with_each_of_its_options() {
        let mut compared = 0;
        for case in recorded::shown().iter().filter(|case| case.has("qdisc") && !case.has("-j")) {
            let dev = (!case.has("dev")).then_some("d0");
            let place = Place { handle: 0x8001, dev, refcnt: 2 };
            let ours = qdisc(&place, &case.config(), &case.stats(), case.format());
            // Before it may stand a device without a CAKE.
            let at = case.stdout.find("qdisc cake").expect("it has one");
            assert_eq!(ours, case.stdout[at..], "{} {}", case.words, case.command);
            compared += 1;
        }
        assert!(compared > 50, "{compared}");
    }

    #[test]
    fn details_follow_what_tc_prints() {
        let place = Place { handle: 0x8001, dev: None, refcnt: 2 };
        let stats =
            Stats { runs: 2_000, catch_up_capped: 3, given_up: Span::from_millis(41), ..example() };
        let format = Format { statistics: true, ..Format::default() };
        let plain = qdisc(&place, &config(""), &stats, format);
        let full = qdisc(&place, &config(""), &stats, Format { details: true, ..format });
        let expected = " runs 2000 (mean 20.9 packets, largest 0b)\n \
                        catch-up capped 3 (41ms given up), clock went back 0\n";
        assert_eq!(full, plain + expected);
    }

    #[test]
    fn what_a_port_counted_is_told_in_three_lines() {
        let write_errors = WriteErrors { too_long: 3, down: 4, ..WriteErrors::default() };
        let counters = Counters {
            frames_in: 10,
            bytes_in: 9_000,
            truncated: 1,
            refused: vec![(Refused::ChecksumOutside, 2)],
            frames_out: 5,
            segments_out: 50,
            bytes_out: 70_000,
            runs_refused: 6,
            write_errors,
            ..Counters::default()
        };
        let (stopped, micros) = (Span::from_micros(1_400), Span::from_micros);
        let byte_limit = DqlStats { limit: 42_000, in_flight: 1_514, stops: 7, stopped };
        let late =
            LatenessStats { wake_ups: 99, p50: micros(9), p99: micros(80), max: micros(2_500) };
        let counts =
            PortCounts { counters, lost_before_reading: Some(8), byte_limit, rings: 4, late };
        let expected = "port wan0: read 9000 bytes 10 frames (refused 3, lost before reading 8), \
                        wrote 70000 bytes 5 frames (failed 4, too long 3)\n \
                        segments 50 doorbell 4 runs_refused 6 byte_limit 42000 in_flight 1514 \
                        stopped 7 times 1.4ms\n \
                        wake-ups 99, late by 9us (median), 80us (99 %), 2.5ms (worst)\n";
        assert_eq!(port("wan0", &counts), expected);
        let unknown = port("wan0", &PortCounts { lost_before_reading: None, ..counts });
        assert!(unknown.contains("(refused 3, lost before reading ?)"), "{unknown}");
    }

    #[test]
    fn what_became_of_processes_is_told_in_a_line() {
        let first = Supervision { pid: 7, ..Supervision::default() };
        let line =
            " process 7 after 0 died, 0 hung, 0 upgraded (0 failed), 0 packets lost with them";
        assert_eq!(supervision(&first), line.to_owned() + "\n");
        let later = Supervision { passing_through: true, ..first };
        assert!(supervision(&later).ends_with("them, passing through without CAKE for a while\n"));
    }

    #[test]
    fn our_words_and_our_line_are_shown_where_they_were_used_only() {
        assert!(options(&config("auto-split-gso")).contains(" auto-split-gso rtt 100ms "));
        let words = "auto-split-gso burst 1ms rtt-step 0us ";
        assert!(options(&config(words)).contains(words));
        let stats = Stats { runs: 2_000, largest_burst: FrameLen(66_240), ..example() };
        let stats = Stats { lateness: Span::from_micros(53), ..stats };
        assert_eq!(runs(&config(""), &stats), "");
        let expected = " runs 2000 (mean 20.9 packets, largest 66240b), wake-ups late by 53us\n";
        assert_eq!(runs(&config("auto-split-gso"), &stats), expected);
    }

    #[test]
    fn derived_rows_are_those_of_tc_in_every_golden_case() {
        for case in golden().iter().filter(|case| case["derived"].is_object()) {
            let words = case["words"].as_str().expect("words");
            if DIFFERENT.contains(&words) {
                continue;
            }
            let cake: Cake<SimFrame> =
                Cake::new(config(words), FrameLen(1514), Entropy::from_seed(1));
            assert_derived(words, &case["derived"], &cake.stats());
        }
    }

    #[test]
    fn layouts_without_names_number_their_tins() {
        for diffserv in Diffserv::ALL {
            let count = usize::from(diffserv.tin_count());
            let stats = Stats { tins: vec![TinStats::default(); count], ..Stats::default() };
            let text = statistics(&stats);
            let heading = text.lines().nth(9).expect("a row of titles");
            assert_eq!(heading.len(), 10 + 13 * count, "{}", diffserv.name());
            assert_eq!(heading.contains("Tin 0"), !matches!(count, 3 | 4));
        }
        assert!(statistics(&Stats::default()).contains("size:        65535 /       0\n"));
    }

    /// Configurations that the three digits of times and the units of rates and sizes can express.
    fn any_config() -> impl Strategy<Value = Config> {
        let choices = (
            prop::option::of((1_u64..1_000, 0_u32..4)),
            any::<[bool; 5]>(),
            prop::sample::select(&Diffserv::ALL[..]),
            prop::sample::select(&Isolation::ALL[..]),
            0_u8..3,
            (1_i64..1_000, 0_u32..3),
            (-64_i16..=256, 0_u16..=256, 0_u8..3),
            prop::option::of(1_u64..4_096),
            any::<u32>(),
            (0_u8..3, 0_i64..1_000, 0_i64..1_000),
        );
        choices.prop_map(|(rate, on, diffserv, isolation, ack, rtt, link, memory, fwmark, runs)| {
            let interval = Span::from_micros(rtt.0 * 1_000_i64.pow(rtt.1));
            Config {
                bandwidth: rate.map(|(n, power)| Rate::from_bits(n * 8 * 1_000_u64.pow(power))),
                autorate_ingress: on[0],
                diffserv,
                isolation,
                nat: on[1],
                wash: on[2],
                ingress: on[3],
                ack_filter: [AckFilter::Off, AckFilter::Conservative, AckFilter::Aggressive]
                    [usize::from(ack)],
                split_gso: SplitGso::ALL[usize::from(runs.0)],
                burst: Span::from_micros(runs.1),
                rtt_step: Span::from_micros(runs.2),
                interval,
                target: Span::from_micros((interval.micros() / 20).max(1)),
                overhead: Overhead {
                    bytes: link.0,
                    mpu: link.1,
                    link_layer: [LinkLayer::Noatm, LinkLayer::Atm, LinkLayer::Ptm]
                        [usize::from(link.2)],
                    raw: on[4],
                },
                memory_limit: memory.map(|pages| MemSize(pages << 10)),
                fwmark,
            }
        })
    }

    /// Any word, with a value that the digits of `show` can express.
    fn any_word() -> impl Strategy<Value = String> {
        let words: Vec<_> = table::words().collect();
        let choices = (prop::sample::select(words), 1_u32..1_000, 0_usize..3, any::<u32>());
        choices.prop_map(|(word, number, unit, any)| {
            let value = match word.value {
                Value::Nothing => return word.name.to_owned(),
                Value::Rate => format!("{number}{}", ["kbit", "mbit", "gbit"][unit]),
                Value::Time => format!("{number}{}", ["us", "ms", "s"][unit]),
                Value::Size => format!("{}{}", number - 1, ["k", "kb", "mb"][unit]),
                Value::Integer { min, max } => {
                    let span = u32::from(max.abs_diff(min)) + 1;
                    (i64::from(min) + i64::from(any % span)).to_string()
                }
                Value::Mask => format!("{:#x}", if unit == 0 { 0 } else { any }),
            };
            format!("{} {value}", word.name)
        })
    }

    /// Any words in any order.
    fn any_line() -> impl Strategy<Value = String> {
        prop::collection::vec(any_word(), 0..12).prop_map(|words| words.join(" "))
    }

    proptest! {
        #[test]
        fn the_words_shown_make_the_same_configuration_again(config in any_config()) {
            let shown = options(&config);
            let change = parse_line(&shown).expect(&shown);
            prop_assert_eq!(Config::default().changed_by(&change), config, "{}", shown);
        }

        #[test]
        fn the_words_that_any_words_show_make_the_same_configuration(line in any_line()) {
            let Ok(change) = parse_line(&line) else { return Ok(()) };
            let config = Config::default().changed_by(&change);
            for format in [Format::default(), Format { iec: true, ..Format::default() }] {
                // Units of 1024 do not express every rate, but what they express they express again.
                let shown = options_as(&config, format);
                let again = recorded::config(&shown);
                if !format.iec {
                    prop_assert_eq!(again, config, "{}", shown);
                }
                prop_assert_eq!(options_as(&again, format), shown);
            }
        }

        #[test]
        fn no_words_whatever_make_the_parser_panic(line in "\\PC{0,40}") {
            if let Err(error) = parse_line(&line) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn rates_in_units_of_1024_are_written_as_tc_does() {
        for (bits, expected) in recorded::iec_rates() {
            assert_eq!(value::rate_iec(Rate::from_bits(bits)), expected, "{bits}");
        }
    }
}
