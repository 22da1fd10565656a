//! One line of JSON for each packet: what was decided about it, and why it waited.
//!
//! Problem: "dropped 17" does not say which, and "8 ms" does not say behind whom.
//! Law: on a virtual clock all waiting is for the shaper; what tells packets apart is whose bytes it carried meanwhile. So
//! bytes sent are counted in all, by tin and by queue; the differences between a packet's arrival and its end are what
//! it waited behind.
//! Left out: how the AQM came to its verdict (`tc class show` of a live queue has its state).

use std::io::{self, Write};

use serde::Serialize;
use ucake::qdisc::{Cause, Departing, Diffserv, Loss, MAX_TINS, Observer, SLOTS};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, WireLen};

use super::play::{BEGIN, Traveller};

/// Queues in a tin.
const QUEUES: usize = SLOTS as usize;
/// The most tins there are.
const TINS: usize = MAX_TINS as usize;

/// A line of the trace.
#[derive(Serialize)]
struct Line {
    packet: u64,
    segment: Option<u16>,
    packets: u16,
    arrival_ns: i64,
    tin: u8,
    queue: u16,
    len: u32,
    wire_len: u32,
    sojourn_ns: i64,
    decision: &'static str,
    reason: Option<&'static str>,
    waited: Option<&'static str>,
    behind: Behind,
}

/// Bytes on the wire that left between a packet's arrival and its end.
#[derive(Clone, Copy, Serialize)]
struct Behind {
    queue: u64,
    flows: u64,
    tins: u64,
}

/// Bytes that had left when a packet came: in all, from its tin, from its queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead([u64; 3]);

/// Writes the trace.
pub struct Trace<W> {
    out: W,
    diffserv: Diffserv,
    /// Whether what is dropped has used the link too.
    ingress: bool,
    /// Whether what departs is only taken out, and stays where it is by what the trace tells.
    ended: bool,
    total: u64,
    tins: [u64; TINS],
    queues: Vec<u64>,
    error: Option<io::Error>,
}

impl<W: Write> Trace<W> {
    /// A trace without lines.
    pub fn new(out: W, diffserv: Diffserv, ingress: bool) -> Self {
        let queues = vec![0; TINS * QUEUES];
        let tins = [0; TINS];
        Self { out, diffserv, ingress, ended: false, total: 0, tins, queues, error: None }
    }

    fn ahead(&self, (tin, slot): (u8, u16)) -> Ahead {
        let of_tin = self.tins.get(usize::from(tin)).copied().unwrap_or(0);
        let of_queue = self.queues.get(place((tin, slot))).copied().unwrap_or(0);
        Ahead([self.total, of_tin, of_queue])
    }

    fn count(&mut self, queue: (u8, u16), wire_len: WireLen) {
        let bytes = u64::from(wire_len.0);
        self.total += bytes;
        let tin = self.tins.get_mut(usize::from(queue.0));
        for counter in tin.into_iter().chain(self.queues.get_mut(place(queue))) {
            *counter += bytes;
        }
    }

    fn write(&mut self, frame: &Traveller, end: &End) {
        if self.error.is_some() {
            return;
        }
        let (Ahead([all, tin, queue]), Ahead([all_then, tin_then, queue_then])) =
            (self.ahead(end.queue), frame.ahead);
        let (all, tin, queue) = (all - all_then, tin - tin_then, queue - queue_then);
        let behind = Behind { queue, flows: tin - queue, tins: all - tin };
        let line = Line {
            packet: frame.number,
            segment: frame.is_of_train().then_some(frame.segment),
            packets: frame.segments(),
            arrival_ns: (end.at - end.sojourn - BEGIN).nanos(),
            tin: column(self.diffserv, end.queue.0),
            queue: end.queue.1,
            len: end.len.0,
            wire_len: end.wire_len.0,
            sojourn_ns: end.sojourn.nanos(),
            decision: end.decision,
            reason: end.reason,
            waited: behind.most(end.sojourn),
            behind,
        };
        let written = serde_json::to_writer(&mut self.out, &line).map_err(io::Error::from);
        self.error = written.and_then(|()| self.out.write_all(b"\n")).err();
    }
}

/// A trace that may fail, as the player sees it.
pub trait Tracer: Observer<Traveller> {
    /// The replay ends here: what departs from now on is only taken out, to be told of as still queued.
    fn end(&mut self) {}

    /// Has everything written; fails if anything before did.
    ///
    /// # Errors
    /// Those of the file.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether writing has failed.
    fn has_failed(&self) -> bool {
        false
    }
}

impl Tracer for () {}

impl<W: Write> Tracer for Trace<W> {
    fn end(&mut self) {
        self.ended = true;
    }

    fn finish(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)?;
        self.out.flush()
    }

    fn has_failed(&self) -> bool {
        self.error.is_some()
    }
}

/// How a packet ended.
struct End {
    queue: (u8, u16),
    len: FrameLen,
    wire_len: WireLen,
    sojourn: Span,
    at: Instant,
    decision: &'static str,
    reason: Option<&'static str>,
}

impl<W: Write> Observer<Traveller> for Trace<W> {
    fn queued(&mut self, frame: &mut Traveller, queue: (u8, u16)) {
        frame.ahead = self.ahead(queue);
    }

    fn departs(&mut self, frame: &mut Traveller, departing: Departing) {
        let Departing { queue, marked, len, wire_len, sojourn, at } = departing;
        let (decision, reason) = match (self.ended, marked) {
            (true, _) => ("queued", None),
            (false, true) => ("marked", Some("codel")),
            (false, false) => ("sent", None),
        };
        self.write(frame, &End { queue, len, wire_len, sojourn, at, decision, reason });
        if !self.ended {
            self.count(queue, wire_len);
        }
    }

    fn dropped(&mut self, frame: Traveller, loss: Loss) {
        let Loss { queue, cause, len, wire_len, sojourn, at } = loss;
        let (decision, reason) = ("dropped", Some(name(cause)));
        self.write(&frame, &End { queue, len, wire_len, sojourn, at, decision, reason });
        if self.ingress {
            self.count(queue, wire_len);
        }
    }
}

impl Behind {
    /// What it waited for most; `None` if it did not wait.
    fn most(self, sojourn: Span) -> Option<&'static str> {
        let Self { queue, flows, tins } = self;
        Some(match queue.max(flows).max(tins) {
            _ if sojourn <= Span::ZERO => return None,
            0 => "rate",
            most if most == queue => "queue",
            most if most == flows => "flows",
            _ => "tins",
        })
    }
}

fn place((tin, slot): (u8, u16)) -> usize {
    usize::from(tin) * QUEUES + usize::from(slot)
}

/// The column of `tc`'s table in which a tin is shown.
fn column(diffserv: Diffserv, tin: u8) -> u8 {
    (0..8).find(|&column| diffserv.displayed(column) == tin).unwrap_or(tin)
}

const fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::Codel => "codel",
        Cause::Blue => "blue",
        Cause::Memory => "memory",
        Cause::AckFilter => "ack-filter",
    }
}
