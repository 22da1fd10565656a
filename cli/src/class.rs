//! `tc class show`: the queues of an instance, as text and as JSON.
//!
//! Problem: which flow is held back, and how hard, is to be seen in its queue alone.
//! Source: spec §11.3 and §11.7, `cli/tests/data/tc_options.json`.
//! Law: one class for each queue that is in some list; what is not true of it is not mentioned.
//! Left out: which queues there are ([`ucake::qdisc::Cake::queue_stats`]).

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use ucake::qdisc::QueueStats;
use ucake::time::Span;

use crate::json;
use crate::show::{Format, Place};
use crate::value;

/// `tc class show`, with `-s` its statistics: the lines of every queue.
pub fn text(place: &Place<'_>, queues: &[QueueStats], format: Format) -> String {
    queues.iter().map(|queue| one(place, queue, format)).collect()
}

fn one(place: &Place<'_>, queue: &QueueStats, format: Format) -> String {
    let Place { handle, dev, .. } = place;
    let dev = dev.map_or_else(String::new, |dev| format!("dev {dev} "));
    let mut text = format!("class cake {handle:x}:{:x} {dev}parent {handle:x}: \n", queue.class);
    if format.statistics {
        statistics(&mut text, queue);
    }
    text
}

fn statistics(text: &mut String, queue: &QueueStats) {
    let backlog = value::size(queue.backlog.bytes().into());
    let _ = writeln!(text, " (dropped {}, overlimits 0 requeues 0) ", queue.drops);
    let _ = writeln!(text, " backlog {backlog} {}p requeues 0", queue.packets);
    let _ = write!(text, "  deficit {} count {}", queue.deficit, queue.count);
    if let Some(since) = queue.drop_next {
        let _ = write!(text, " dropping drop_next {}", signed_time(since));
    }
    let _ = write!(text, " blue_prob {}", queue.blue_probability);
    if let Some(since) = blue_timer(queue) {
        let _ = write!(text, " blue_timer {}", signed_time(since));
    }
    text.push('\n');
}

/// What lies ahead has a minus.
fn signed_time(span: Span) -> String {
    let micros = span.micros();
    let sign = if micros < 0 { "-" } else { "" };
    format!("{sign}{}", value::time(Span::from_micros(micros.saturating_abs())))
}

/// `tc` says nothing of the timer where BLUE drops nothing.
fn blue_timer(queue: &QueueStats) -> Option<Span> {
    queue.blue_timer.filter(|_| queue.blue_probability != 0)
}

/// The objects of `tc -j class show`, with `-s` their statistics.
pub fn json(place: &Place<'_>, queues: &[QueueStats], format: Format) -> Vec<Value> {
    let object = |queue: &QueueStats| {
        json::value(&Class {
            class: "cake",
            handle: format!("{:x}:{:x}", place.handle, queue.class),
            dev: place.dev,
            parent: format!("{:x}:", place.handle),
            stats: format.statistics.then(|| Statistics::of(queue)),
        })
    };
    queues.iter().map(object).collect()
}

#[derive(Serialize)]
struct Class<'a> {
    class: &'static str,
    handle: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dev: Option<&'a str>,
    parent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Statistics>,
}

#[derive(Serialize)]
struct Statistics {
    drops: u64,
    overlimits: u32,
    requeues: u32,
    backlog: u32,
    qlen: u32,
    deficit: i32,
    count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropping: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drop_next: Option<i64>,
    blue_prob: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    blue_timer: Option<i64>,
}

impl Statistics {
    fn of(queue: &QueueStats) -> Self {
        Self {
            drops: queue.drops,
            overlimits: 0,
            requeues: 0,
            backlog: queue.backlog.bytes(),
            qlen: queue.packets,
            deficit: queue.deficit,
            count: queue.count,
            dropping: queue.drop_next.map(|_| true),
            drop_next: queue.drop_next.and_then(not_ahead),
            blue_prob: queue.blue_probability,
            blue_timer: blue_timer(queue).and_then(not_ahead),
        }
    }
}

/// In JSON `tc` leaves out what lies ahead.
fn not_ahead(span: Span) -> Option<i64> {
    Some(span.micros()).filter(|&micros| micros >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::{queues_in_json, queues_in_text, shown};

    const PLACE: Place<'_> = Place { handle: 0x8001, dev: None, refcnt: 2 };

    #[test]
    fn lines_are_those_of_tc_to_the_byte() {
        let (mut compared, mut ahead) = (0, 0);
        for case in shown().iter().filter(|case| case.has("class") && !case.has("-j")) {
            let queues = queues_in_text(&case.stdout);
            let ours = text(&PLACE, &queues, case.format());
            assert_eq!(ours, case.stdout, "{} {}", case.words, case.command);
            compared += 1;
            ahead += usize::from(case.stdout.contains("drop_next -"));
        }
        assert!(compared > 20 && ahead > 0, "{compared}, {ahead} with a drop that lies ahead");
    }

    #[test]
    fn objects_are_those_of_tc_to_the_byte() {
        let mut compared = 0;
        for case in shown().iter().filter(|case| case.has("class") && case.has("-j")) {
            let queues = queues_in_json(&case.stdout);
            let ours = json::print(&json(&PLACE, &queues, case.format()), case.has("-p"));
            assert_eq!(ours, case.stdout, "{} {}", case.words, case.command);
            compared += 1;
        }
        assert!(compared > 20, "{compared}");
    }

    #[test]
    fn without_queues_there_is_nothing_and_an_empty_array() {
        assert_eq!(text(&PLACE, &[], Format::default()), "");
        assert_eq!(json::print(&json(&PLACE, &[], Format::default()), false), "[]\n");
        assert_eq!(json::print(&json(&PLACE, &[], Format::default()), true), "[ ]\n");
    }

    #[test]
    fn the_device_stands_before_the_parent_where_it_was_not_asked_for() {
        let queues = queues_in_text("class cake 1:401 parent 1: \n");
        let place = Place { handle: 1, dev: Some("wan0"), refcnt: 2 };
        let line = "class cake 1:401 dev wan0 parent 1: \n";
        assert_eq!(text(&place, &queues, Format::default()), line);
        assert_eq!(json(&place, &queues, Format::default())[0]["dev"], "wan0");
    }
}
