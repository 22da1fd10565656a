//! `tc -j` and `tc -j -p`: the same answers for programs.
//!
//! Problem: programs find what they want by key, and compare files by byte.
//! Source: spec §11.8, `cli/tests/data/tc_show.json` and `tc_options.json`.
//! Law: keys, their order, their units and the blanks between them are those of `tc`; rates are in bytes per second,
//! times in microseconds, sizes in bytes. What only ucake knows is under one key, `ucake`, with `-d`.
//! Left out: what is shown of which port, and in which order.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value};
use ucake::io::lateness::LatenessStats;
use ucake::qdisc::{AckFilter, Config, LinkLayer, SplitGso, Stats, TinStats};
use ucake::time::Span;
use ucake::units::MemSize;

use crate::protocol::{PortCounts, Supervision};
use crate::show::{self, Format, Place};

/// One object of `tc -j qdisc show`; with `-s` its statistics, with `-d` what only ucake knows.
pub fn qdisc(place: &Place<'_>, config: &Config, stats: &Stats, format: Format) -> Value {
    value(&Qdisc {
        head: Head::of("cake", place),
        options: Options::of(config),
        statistics: format.statistics.then(|| Statistics::of(stats)),
        ucake: format.details.then(|| Ours::of(config, stats)),
    })
}

/// Adds what became of the processes that handled the frames to what only ucake knows, under `process`.
pub fn add_supervision(object: &mut Value, supervision: &Supervision) {
    add_ours(object, "process", value(supervision));
}

/// Adds what the port counted to what only ucake knows, under `port`.
pub fn add_port(object: &mut Value, counts: &PortCounts) {
    add_ours(object, "port", value(&Port::of(counts)));
}

fn add_ours(object: &mut Value, key: &str, content: Value) {
    let Some(keys) = object.as_object_mut() else { return };
    let ours = keys.entry("ucake").or_insert_with(|| Value::Object(Map::new()));
    if let Some(ours) = ours.as_object_mut() {
        ours.insert(key.to_owned(), content);
    }
}

/// The `options` of [`qdisc`] alone: a configuration.
pub fn options(config: &Config) -> Value {
    value(&Options::of(config))
}

/// A whole answer as `tc -j` prints it, with `pretty` as `tc -j -p` does; a line feed at its end.
///
/// ```
/// use serde_json::json;
/// use ucake_cli::json::print;
/// assert_eq!(print(&[json!({"kind": "cake"})], false), "[{\"kind\":\"cake\"}]\n");
/// assert_eq!(print(&[], true), "[ ]\n");
/// ```
pub fn print(objects: &[Value], pretty: bool) -> String {
    let mut bytes = Vec::new();
    let written = if pretty {
        objects.serialize(&mut Serializer::with_formatter(&mut bytes, Pretty::default()))
    } else {
        objects.serialize(&mut Serializer::new(&mut bytes))
    };
    written.expect("memory takes what is written, and keys are strings");
    String::from_utf8(bytes).expect("JSON is text") + "\n"
}

pub(crate) fn value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("keys are strings and numbers are finite")
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The first keys of any discipline.
#[derive(Serialize)]
pub(crate) struct Head<'a> {
    kind: &'static str,
    handle: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dev: Option<&'a str>,
    root: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    refcnt: Option<u32>,
}

impl<'a> Head<'a> {
    pub(crate) fn of(kind: &'static str, place: &Place<'a>) -> Self {
        Self {
            kind,
            handle: format!("{:x}:", place.handle),
            dev: place.dev,
            root: true,
            refcnt: (place.refcnt != 1).then_some(place.refcnt),
        }
    }
}

#[derive(Serialize)]
struct Qdisc<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    options: Options,
    #[serde(flatten)]
    statistics: Option<Statistics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ucake: Option<Ours>,
}

/// A number, or a word where there is none.
#[derive(Serialize)]
#[serde(untagged)]
enum Bandwidth {
    BytesPerSecond(u64),
    Unlimited(&'static str),
}

#[derive(Serialize)]
struct Options {
    bandwidth: Bandwidth,
    #[serde(skip_serializing_if = "Option::is_none")]
    autorate: Option<&'static str>,
    diffserv: &'static str,
    flowmode: &'static str,
    nat: bool,
    wash: bool,
    ingress: bool,
    #[serde(rename = "ack-filter")]
    ack_filter: &'static str,
    split_gso: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt: Option<i64>,
    raw: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    atm: Option<&'static str>,
    overhead: i16,
    #[serde(skip_serializing_if = "is_zero")]
    mpu: u64,
    #[serde(skip_serializing_if = "is_zero")]
    memlimit: u64,
    fwmark: String,
}

impl Options {
    fn of(config: &Config) -> Self {
        let rate = config.shaped_rate();
        let raw = config.overhead.raw;
        Self {
            bandwidth: rate.map_or(Bandwidth::Unlimited("unlimited"), |rate| {
                Bandwidth::BytesPerSecond(rate.bytes())
            }),
            autorate: config.autorate_ingress.then_some("autorate-ingress"),
            diffserv: config.diffserv.name(),
            flowmode: config.isolation.name(),
            nat: config.nat,
            wash: config.wash,
            ingress: config.ingress,
            ack_filter: match config.ack_filter {
                AckFilter::Off => "disabled",
                AckFilter::Conservative => "enabled",
                AckFilter::Aggressive => "aggressive",
            },
            split_gso: config.split_gso.divides(),
            rtt: Some(config.interval.micros()).filter(|&micros| micros != 0),
            raw,
            atm: match config.overhead.link_layer {
                LinkLayer::Atm => Some("atm"),
                LinkLayer::Ptm => Some("ptm"),
                LinkLayer::Noatm => (!raw).then_some("noatm"),
            },
            overhead: config.overhead.bytes,
            mpu: config.overhead.mpu.into(),
            memlimit: config.memory_limit.map_or(0, MemSize::bytes),
            // C's `%#x`, which writes no prefix before a zero.
            fwmark: if config.fwmark == 0 { "0".into() } else { format!("{:#x}", config.fwmark) },
        }
    }
}

/// What every discipline counts.
#[derive(Serialize)]
pub(crate) struct Totals {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    pub(crate) drops: u64,
    pub(crate) overlimits: u64,
    pub(crate) requeues: u32,
    pub(crate) backlog: u32,
    pub(crate) qlen: u32,
}

#[derive(Serialize)]
struct Statistics {
    #[serde(flatten)]
    totals: Totals,
    memory_used: u64,
    memory_limit: u64,
    capacity_estimate: u64,
    min_network_size: u16,
    max_network_size: u16,
    min_adj_size: u16,
    max_adj_size: u16,
    active_queues: u32,
    avg_hdr_offset: u16,
    tins: Vec<Tin>,
}

impl Statistics {
    fn of(stats: &Stats) -> Self {
        Self {
            totals: Totals {
                bytes: stats.sent_bytes,
                packets: stats.sent_packets,
                drops: stats.dropped,
                overlimits: stats.overlimits,
                requeues: 0,
                backlog: stats.backlog.bytes(),
                qlen: stats.queued_packets,
            },
            memory_used: stats.memory_used.bytes(),
            memory_limit: stats.memory_limit.bytes(),
            capacity_estimate: stats.capacity_estimate.bytes(),
            min_network_size: stats.network_size.min,
            max_network_size: stats.network_size.max,
            min_adj_size: stats.adjusted_size.min,
            max_adj_size: stats.adjusted_size.max,
            active_queues: show::ACTIVE_QUEUES,
            avg_hdr_offset: stats.average_network_offset,
            tins: stats.tins.iter().map(Tin::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct Tin {
    threshold_rate: u64,
    sent_bytes: u64,
    backlog_bytes: u32,
    target_us: i64,
    interval_us: i64,
    peak_delay_us: i64,
    avg_delay_us: i64,
    base_delay_us: i64,
    sent_packets: u64,
    way_indirect_hits: u64,
    way_misses: u64,
    way_collisions: u64,
    drops: u64,
    ecn_mark: u64,
    ack_drops: u64,
    sparse_flows: u32,
    bulk_flows: u32,
    unresponsive_flows: u32,
    max_pkt_len: u32,
    flow_quantum: u16,
}

impl Tin {
    fn of(tin: &TinStats) -> Self {
        Self {
            threshold_rate: tin.threshold.bytes(),
            sent_bytes: tin.bytes,
            backlog_bytes: tin.backlog.bytes(),
            target_us: tin.target.micros(),
            interval_us: tin.interval.micros(),
            peak_delay_us: tin.peak_delay.micros(),
            avg_delay_us: tin.average_delay.micros(),
            base_delay_us: tin.base_delay.micros(),
            sent_packets: tin.packets,
            way_indirect_hits: tin.way_indirect_hits,
            way_misses: tin.way_misses,
            way_collisions: tin.way_collisions,
            drops: tin.drops,
            ecn_mark: tin.marks,
            ack_drops: tin.ack_drops,
            sparse_flows: tin.sparse_flows,
            bulk_flows: tin.bulk_flows,
            unresponsive_flows: tin.unresponsive_flows,
            max_pkt_len: tin.max_packet_len.bytes(),
            flow_quantum: tin.flow_quantum,
        }
    }
}

/// What `tc` has no key for.
#[derive(Serialize)]
struct Ours {
    split_gso: &'static str,
    burst_us: i64,
    rtt_step_us: i64,
    target_us: i64,
    runs: u64,
    mean_run: f64,
    largest_burst: u32,
    /// Measured only where a budget needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    lateness_us: Option<i64>,
    catch_up_capped: u64,
    given_up_us: i64,
    clock_went_back: u64,
}

impl Ours {
    fn of(config: &Config, stats: &Stats) -> Self {
        Self {
            split_gso: show::split_gso(config.split_gso),
            burst_us: config.burst.micros(),
            rtt_step_us: config.rtt_step.micros(),
            target_us: config.target.micros(),
            runs: stats.runs,
            mean_run: stats.mean_run(),
            largest_burst: stats.largest_burst.bytes(),
            lateness_us: (config.split_gso == SplitGso::Auto)
                .then_some(Span::micros(stats.lateness)),
            catch_up_capped: stats.catch_up_capped,
            given_up_us: stats.given_up.micros(),
            clock_went_back: stats.clock_went_back,
        }
    }
}

/// What a port counted.
#[derive(Serialize)]
struct Port {
    read_bytes: u64,
    read_frames: u64,
    refused: u64,
    /// `null` where it is not known.
    lost_before_reading: Option<u64>,
    written_bytes: u64,
    written_frames: u64,
    written_segments: u64,
    failed: u64,
    too_long: u64,
    doorbell: u64,
    runs_refused: u64,
    times_down: u64,
    byte_limit: u64,
    in_flight: u64,
    stopped: u64,
    stopped_us: i64,
    late: Late,
}

#[derive(Serialize)]
struct Late {
    wake_ups: u64,
    p50_us: i64,
    p99_us: i64,
    max_us: i64,
}

impl Port {
    fn of(counts: &PortCounts) -> Self {
        let PortCounts { counters, lost_before_reading, byte_limit, rings, late } = counts;
        let LatenessStats { wake_ups, p50, p99, max } = *late;
        Self {
            read_bytes: counters.bytes_in,
            read_frames: counters.frames_in,
            refused: show::refused(counters),
            lost_before_reading: *lost_before_reading,
            written_bytes: counters.bytes_out,
            written_frames: counters.frames_out,
            written_segments: counters.segments_out,
            failed: counters.write_errors.total() - counters.write_errors.too_long,
            too_long: counters.write_errors.too_long,
            doorbell: *rings,
            runs_refused: counters.runs_refused,
            times_down: counters.times_down,
            byte_limit: byte_limit.limit,
            in_flight: byte_limit.in_flight,
            stopped: byte_limit.stops,
            stopped_us: byte_limit.stopped.micros(),
            late: Late {
                wake_ups,
                p50_us: p50.micros(),
                p99_us: p99.micros(),
                max_us: max.micros(),
            },
        }
    }
}

/// `tc`'s own way to break lines: keys on lines of their own, four blanks for each array and object around them;
/// what is in an array follows its bracket or comma.
#[derive(Default)]
struct Pretty {
    depth: usize,
    /// Whether the array or object written last, or being written, has anything in it.
    filled: bool,
}

impl Pretty {
    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        write!(writer, "\n{:width$}", "", width = self.depth * 4)
    }
}

impl Formatter for Pretty {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(b"[ ")
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(if self.filled { b" ]" } else { b"]" })
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(b"{")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b"," })?;
        self.line(writer)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        writer.write_all(b"}")
    }
}

#[cfg(test)]
mod tests {
    use ucake::qdisc::{Cake, Diffserv, Entropy};
    use ucake::sim::SimFrame;
    use ucake::units::FrameLen;

    use super::*;
    use crate::recorded::{DIFFERENT, config, golden, objects, shown};

    fn place(dev: Option<&str>) -> Place<'_> {
        Place { handle: 0x8001, dev, refcnt: 2 }
    }

    #[test]
    fn options_are_those_of_tc_in_every_golden_case_and_in_its_order() {
        let mut compared = 0;
        for case in golden() {
            let words = case["words"].as_str().expect("words");
            if case["options"].is_null() || DIFFERENT.contains(&words) {
                continue;
            }
            assert_eq!(options(&config(words)).to_string(), case["options"].to_string(), "{words}");
            compared += 1;
        }
        assert_eq!(compared, 58);
    }

    #[test]
    fn answers_are_those_of_tc_to_the_byte() {
        let mut compared = 0;
        for case in shown().iter().filter(|case| case.has("-j") && case.has("qdisc")) {
            let dev = (!case.has("dev")).then_some("d0");
            let ours = qdisc(&place(dev), &case.config(), &case.stats(), case.format());
            // Devices without a CAKE are shown as they came.
            let mut all = objects(&case.stdout);
            *all.last_mut().expect("the device is there") = ours;
            assert_eq!(print(&all, case.has("-p")), case.stdout, "{} {}", case.words, case.command);
            compared += 1;
        }
        assert!(compared > 60, "{compared}");
    }

    #[test]
    fn a_reference_of_one_and_a_device_asked_for_by_name_are_not_mentioned() {
        let alone = Place { handle: 0xa, dev: None, refcnt: 1 };
        let text = qdisc(&alone, &config(""), &Stats::default(), Format::default()).to_string();
        assert!(
            text.starts_with("{\"kind\":\"cake\",\"handle\":\"a:\",\"root\":true,\"options\":"),
            "{text}"
        );
    }

    #[test]
    fn every_layout_has_as_many_elements_as_tins() {
        for diffserv in Diffserv::ALL {
            let config = Config { diffserv, ..Config::default() };
            let cake: Cake<SimFrame> = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
            let format = Format { statistics: true, ..Format::default() };
            let object = qdisc(&place(None), &config, &cake.stats(), format);
            let count = usize::from(diffserv.tin_count());
            assert_eq!(object["tins"].as_array().map(Vec::len), Some(count));
        }
    }

    #[test]
    fn what_only_ucake_knows_is_under_its_own_key_and_asked_for() {
        let config = config("auto-split-gso burst 1ms");
        let stats = Stats {
            runs: 4,
            sent_packets: 30,
            catch_up_capped: 2,
            given_up: Span::from_millis(3),
            ..Stats::default()
        };
        let plain = qdisc(&place(None), &config, &stats, Format::default());
        assert!(plain.get("ucake").is_none());
        assert_eq!(plain["options"]["split_gso"], true);
        let details = Format { details: true, ..Format::default() };
        let mut full = qdisc(&place(None), &config, &stats, details);
        let ours = full.as_object_mut().expect("an object").remove("ucake").expect("asked for");
        assert_eq!(full, plain);
        assert_eq!(ours["split_gso"], "auto-split-gso");
        assert_eq!((&ours["burst_us"], &ours["rtt_step_us"]), (&1_000.into(), &512.into()));
        assert_eq!((&ours["runs"], &ours["mean_run"]), (&4.into(), &7.5.into()));
        assert_eq!(ours["catch_up_capped"], 2);
        assert_eq!(ours["given_up_us"], 3000);
        assert_eq!(ours["lateness_us"], 0);
    }

    #[test]
    fn what_a_port_counted_stands_under_a_key_of_its_own_whatever_leaves_through_it() {
        let counts = PortCounts { rings: 4, ..PortCounts::default() };
        let details = Format { details: true, ..Format::default() };
        let cake = qdisc(&place(None), &config(""), &Stats::default(), details);
        for object in [cake, serde_json::json!({"kind": "pfifo"})] {
            let mut object = object;
            add_port(&mut object, &counts);
            add_supervision(&mut object, &Supervision::default());
            let port = &object["ucake"]["port"];
            assert_eq!(
                (&port["doorbell"], &port["lost_before_reading"]),
                (&4.into(), &Value::Null)
            );
            assert_eq!(port["late"]["p99_us"], 0);
            assert!(object["ucake"]["process"].is_object());
        }
    }
}
