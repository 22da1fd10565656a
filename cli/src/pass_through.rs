//! A port without CAKE, as `tc` shows the queue of a device without one: `pfifo`.
//!
//! Problem: after `del` there is still something to show.
//! Source: what Linux 7.2 and iproute2 7.3.0 answer about a `pfifo`.
//! Law: text and JSON are those of `tc`, to the byte.
//! Left out: what the queue does ([`ucake::qdisc::Fifo`]).

use serde::Serialize;
use serde_json::Value;
use ucake::qdisc::FifoStats;
use ucake::units::FrameLen;

use crate::json::{self, Head, Totals};
use crate::show::{self, Format, Place};
use crate::value;

/// A pass-through as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassThrough {
    /// Most packets queued.
    pub limit: u32,
    /// Bytes queued.
    pub backlog: FrameLen,
    /// What it counted.
    pub stats: FifoStats,
}

/// `tc qdisc show`, with `-s` its statistics.
pub fn text(place: &Place<'_>, queue: &PassThrough, format: Format) -> String {
    let PassThrough { limit, backlog, stats } = queue;
    let first_line = format!("{}limit {limit}p\n", show::head("pfifo", place, format));
    if !format.statistics {
        return first_line;
    }
    format!(
        "{first_line} Sent {} bytes {} pkt (dropped {}, overlimits 0 requeues 0) \n \
         backlog {} {}p requeues 0\n",
        stats.sent_bytes,
        stats.sent_packets,
        stats.dropped,
        value::size(backlog.bytes().into()),
        stats.queued_packets
    )
}

/// The object of `tc -j qdisc show`, with `-s` its statistics.
pub fn json(place: &Place<'_>, queue: &PassThrough, format: Format) -> Value {
    json::value(&Qdisc {
        head: Head::of("pfifo", place),
        options: Options { limit: queue.limit },
        statistics: format.statistics.then(|| totals(queue)),
    })
}

#[derive(Serialize)]
struct Qdisc<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    options: Options,
    #[serde(flatten)]
    statistics: Option<Totals>,
}

#[derive(Serialize)]
struct Options {
    limit: u32,
}

/// It counts nothing that other disciplines do not.
fn totals(PassThrough { backlog, stats, .. }: &PassThrough) -> Totals {
    Totals {
        bytes: stats.sent_bytes,
        packets: stats.sent_packets,
        drops: stats.dropped,
        overlimits: 0,
        requeues: 0,
        backlog: backlog.bytes(),
        qlen: stats.queued_packets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place<'_> = Place { handle: 5, dev: None, refcnt: 2 };

    fn empty() -> PassThrough {
        PassThrough { limit: 1000, ..PassThrough::default() }
    }

    // What `tc` printed of `pfifo limit 1000`.

    #[test]
    fn text_is_that_of_tc_to_the_byte() {
        let plain = Format::default();
        let line = "qdisc pfifo 5: root refcnt 2 limit 1000p\n";
        assert_eq!(text(&PLACE, &empty(), plain), line);
        let raw = "qdisc pfifo 5:[00050000] root refcnt 2 limit 1000p\n";
        assert_eq!(text(&PLACE, &empty(), Format { raw: true, ..plain }), raw);
        let statistics = " Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0) \n backlog 0b 0p requeues 0\n";
        let shown = text(&PLACE, &empty(), Format { statistics: true, ..plain });
        assert_eq!(shown, line.to_owned() + statistics);
        let elsewhere = Place { dev: Some("d0"), ..PLACE };
        let line = "qdisc pfifo 5: dev d0 root refcnt 2 limit 1000p\n";
        assert_eq!(text(&elsewhere, &empty(), plain), line);
    }

    #[test]
    fn objects_are_those_of_tc_to_the_byte() {
        let head = "[{\"kind\":\"pfifo\",\"handle\":\"5:\",\"root\":true,\"refcnt\":2,\"options\":{\"limit\":1000}";
        let print = |statistics| {
            let format = Format { statistics, ..Format::default() };
            json::print(&[json(&PLACE, &empty(), format)], false)
        };
        assert_eq!(print(false), head.to_owned() + "}]\n");
        let statistics = ",\"bytes\":0,\"packets\":0,\"drops\":0,\"overlimits\":0,\"requeues\":0,\"backlog\":0,\"qlen\":0";
        assert_eq!(print(true), head.to_owned() + statistics + "}]\n");
    }
}
