//! What Linux and `tc` answered, for tests: read from `cli/tests/data`, and read back into what was asked about.

use serde_json::Value as Json;
use ucake::qdisc::{Config, MinMax, QueueStats, Stats, TinStats};
use ucake::time::Span;
use ucake::units::{FrameLen, MemSize, Rate};

use crate::show::Format;
use crate::value;
use crate::words::parse_line;

/// The words whose meaning differs from `tc`'s on purpose.
pub const DIFFERENT: [&str; 1] = ["bandwidth 7bit"];

/// One word list per case, with what `tc` said of it.
pub fn golden() -> Vec<Json> {
    cases(include_str!("../tests/data/tc_show.json"))
}

fn cases(text: &str) -> Vec<Json> {
    let file: Json = serde_json::from_str(text).expect("the golden file is JSON");
    file["cases"].as_array().expect("the golden file has cases").clone()
}

/// What a line of words makes out of the defaults.
pub fn config(line: &str) -> Config {
    Config::default().changed_by(&parse_line(line).expect(line))
}

/// One answer of `tc … show`.
#[derive(Clone, Debug)]
pub struct Shown {
    pub words: String,
    pub command: String,
    pub stdout: String,
}

impl Shown {
    pub fn has(&self, option: &str) -> bool {
        self.command.split_whitespace().any(|word| word == option)
    }

    /// The options among the words of the command.
    pub fn format(&self) -> Format {
        Format {
            statistics: self.has("-s"),
            details: false,
            iec: self.has("-iec"),
            raw: self.has("-r"),
        }
    }

    /// The configuration when it was asked for: where there was traffic, the rate was then all but taken away.
    pub fn config(&self) -> Config {
        let traffic = shown().iter().any(|other| other.words == self.words && other.has("class"));
        let mut config = config(&self.words);
        if traffic {
            config.bandwidth = Some(Rate::from_bits(8));
        }
        config
    }

    /// The statistics of the instance, from the answer in JSON.
    pub fn stats(&self) -> Stats {
        let command = "tc -s -j qdisc show dev d0";
        let all = shown();
        let json = all.iter().find(|other| other.words == self.words && other.command == command);
        stats(&objects(&json.expect(command).stdout)[0])
    }
}

pub fn objects(text: &str) -> Vec<Json> {
    serde_json::from_str(text).expect("tc prints JSON")
}

/// Every recorded answer.
pub fn shown() -> Vec<Shown> {
    let text = |case: &Json, key: &str| case[key].as_str().expect(key).to_owned();
    let shown = |case: &Json| Shown {
        words: text(case, "words"),
        command: text(case, "command"),
        stdout: text(case, "stdout"),
    };
    cases(include_str!("../tests/data/tc_options.json")).iter().map(shown).collect()
}

/// Rates in bits per second, and how `tc -iec` writes them.
pub fn iec_rates() -> Vec<(u64, String)> {
    let text = include_str!("../tests/data/tc_options.json");
    let file: Json = serde_json::from_str(text).expect("the golden file is JSON");
    serde_json::from_value(file["iec"].clone()).expect("pairs")
}

fn number<T: TryFrom<u64>>(object: &Json, key: &str) -> T {
    let number = object[key].as_u64().unwrap_or_else(|| panic!("no {key} in {object}"));
    T::try_from(number).unwrap_or_else(|_| panic!("{key} is too large: {number}"))
}

fn micros(object: &Json, key: &str) -> Span {
    Span::from_micros(i64::from(number::<u32>(object, key)))
}

fn stats(object: &Json) -> Stats {
    Stats {
        sent_bytes: number(object, "bytes"),
        sent_packets: number(object, "packets"),
        dropped: number(object, "drops"),
        overlimits: number(object, "overlimits"),
        backlog: FrameLen(number(object, "backlog")),
        queued_packets: number(object, "qlen"),
        memory_used: MemSize(number(object, "memory_used")),
        memory_limit: MemSize(number(object, "memory_limit")),
        capacity_estimate: Rate::from_bytes(number(object, "capacity_estimate")),
        network_size: MinMax {
            min: number(object, "min_network_size"),
            max: number(object, "max_network_size"),
        },
        adjusted_size: MinMax {
            min: number(object, "min_adj_size"),
            max: number(object, "max_adj_size"),
        },
        average_network_offset: number(object, "avg_hdr_offset"),
        tins: object["tins"].as_array().expect("tins").iter().map(tin).collect(),
        ..Stats::default()
    }
}

fn tin(object: &Json) -> TinStats {
    TinStats {
        threshold: Rate::from_bytes(number(object, "threshold_rate")),
        target: micros(object, "target_us"),
        interval: micros(object, "interval_us"),
        peak_delay: micros(object, "peak_delay_us"),
        average_delay: micros(object, "avg_delay_us"),
        base_delay: micros(object, "base_delay_us"),
        backlog: FrameLen(number(object, "backlog_bytes")),
        packets: number(object, "sent_packets"),
        bytes: number(object, "sent_bytes"),
        way_indirect_hits: number(object, "way_indirect_hits"),
        way_misses: number(object, "way_misses"),
        way_collisions: number(object, "way_collisions"),
        drops: number(object, "drops"),
        marks: number(object, "ecn_mark"),
        ack_drops: number(object, "ack_drops"),
        sparse_flows: number(object, "sparse_flows"),
        bulk_flows: number(object, "bulk_flows"),
        unresponsive_flows: number(object, "unresponsive_flows"),
        max_packet_len: FrameLen(number(object, "max_pkt_len")),
        flow_quantum: number(object, "flow_quantum"),
    }
}

/// The queues of `tc -j class show`. What lies ahead is not in it; it is a microsecond ahead here.
pub fn queues_in_json(text: &str) -> Vec<QueueStats> {
    objects(text).iter().map(queue_in_json).collect()
}

fn queue_in_json(object: &Json) -> QueueStats {
    let (_, class) = object["handle"].as_str().and_then(|id| id.split_once(':')).expect("an id");
    let stats = &object["stats"];
    let since = |key: &str| stats.get(key).map(|_| micros(stats, key));
    let none = QueueStats { class: u16::from_str_radix(class, 16).expect("a number"), ..EMPTY };
    if stats.is_null() {
        return none;
    }
    let dropping = stats.get("dropping").is_some();
    QueueStats {
        drops: number(stats, "drops"),
        backlog: FrameLen(number(stats, "backlog")),
        packets: number(stats, "qlen"),
        deficit: i32::try_from(stats["deficit"].as_i64().expect("deficit")).expect("32 bits"),
        count: number(stats, "count"),
        drop_next: since("drop_next").or(dropping.then_some(Span::from_micros(-1))),
        blue_probability: number(stats, "blue_prob"),
        blue_timer: since("blue_timer"),
        ..none
    }
}

const EMPTY: QueueStats = QueueStats {
    class: 0,
    drops: 0,
    backlog: FrameLen::ZERO,
    packets: 0,
    deficit: 0,
    count: 0,
    drop_next: None,
    blue_probability: 0,
    blue_timer: None,
};

/// The queues of `tc class show`, to the three digits of its times.
pub fn queues_in_text(text: &str) -> Vec<QueueStats> {
    let mut queues: Vec<QueueStats> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(|c: char| " (),".contains(c)).collect();
        let after = |key: &str| {
            let at = words.iter().position(|&word| word == key)?;
            words.get(at + 1).copied()
        };
        let since = |key: &str| {
            let text = after(key)?;
            let magnitude = value::parse_time(text.trim_start_matches('-')).expect(text);
            let sign = if text.starts_with('-') { -1 } else { 1 };
            Some(Span::from_micros(sign * magnitude.micros()))
        };
        if let Some(class) = after("cake").and_then(|id| id.split_once(':')) {
            let class = u16::from_str_radix(class.1, 16).expect(line);
            queues.push(QueueStats { class, ..EMPTY });
        }
        let queue = queues.last_mut().expect("a class comes first");
        if let Some(drops) = after("dropped") {
            queue.drops = drops.parse().expect(line);
        }
        if let Some(size) = after("backlog") {
            let bytes = value::parse_size(size).expect(line).bytes();
            queue.backlog = FrameLen(u32::try_from(bytes).expect(line));
            let packets = words.iter().find_map(|word| word.strip_suffix('p'));
            queue.packets = packets.and_then(|count| count.parse().ok()).expect(line);
        }
        if let Some(deficit) = after("deficit") {
            queue.deficit = deficit.parse().expect(line);
            queue.count = after("count").and_then(|count| count.parse().ok()).expect(line);
            queue.drop_next = since("drop_next");
            queue.blue_probability = after("blue_prob").and_then(|p| p.parse().ok()).expect(line);
            queue.blue_timer = since("blue_timer");
        }
    }
    queues
}
