//! A discipline of one's own: a queue that drops at its head what has waited too long; beside drop-tail and CAKE.
//!
//! `cargo run --example custom_discipline`. It would shape real ports as well: `ucake::io::driver::Bridge` takes any
//! `Discipline`.

use std::collections::VecDeque;
use ucake::packet::{Frame, Meta};
use ucake::qdisc::{
    ByteTime, Cake, Config, Departure, Dequeue, Discipline, Enqueued, Entropy, Fifo, FifoConfig,
    Wake, Why,
};
use ucake::sim::{Constant, Reno, SimFrame, World, flow};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, Rate, WireLen};

/// Sends at a rate, first come first served, but nothing that has waited longer than `patience`.
struct Impatient<F> {
    byte_time: ByteTime,
    patience: Span,
    queue: VecDeque<(F, Meta, Instant)>,
    backlog: FrameLen,
    /// When the link is done with what was sent last.
    free_at: Instant,
}

impl<F: Frame> Impatient<F> {
    fn new(rate: Rate, patience: Span) -> Self {
        let byte_time = ByteTime::new(Some(rate));
        let (queue, backlog, free_at) = (VecDeque::new(), FrameLen::ZERO, Instant::ZERO);
        Self { byte_time, patience, queue, backlog, free_at }
    }
}

impl<F: Frame> Discipline<F> for Impatient<F> {
    fn enqueue(&mut self, frame: F, meta: &Meta, now: Instant) -> Enqueued {
        self.backlog += meta.counted_len();
        self.queue.push_back((frame, *meta, now));
        Enqueued::Queued
    }

    fn dequeue(&mut self, now: Instant) -> Dequeue<F> {
        if now < self.free_at && !self.queue.is_empty() {
            return Dequeue::Wait(Wake { at: self.free_at, why: Why::Shaper });
        }
        while let Some((frame, meta, since)) = self.queue.pop_front() {
            let (len, sojourn) = (meta.counted_len(), now - since);
            self.backlog -= len;
            // The last packet may be as old as it likes: nobody waits behind it.
            if sojourn <= self.patience || self.queue.is_empty() {
                let wire_len = WireLen(len.0);
                self.free_at = now + self.byte_time.duration(wire_len);
                return Dequeue::Send(Departure { frame, len, wire_len, sojourn, queue: (0, 0) });
            }
        }
        Dequeue::Idle
    }

    fn backlog(&self) -> FrameLen {
        self.backlog
    }
}

fn main() {
    print!("{}", comparison());
}

pub(crate) fn comparison() -> String {
    let rate = Rate::from_bits(20_000_000);
    let config = Config { bandwidth: Some(rate), ..Config::default() };
    let fifo = Fifo::new(FifoConfig { rate: Some(rate), limit: 1000, split: true });
    let impatient = Impatient::new(rate, Span::from_millis(20));
    let cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
    [under("drop-tail", fifo), under("impatient", impatient), under("CAKE", cake)].concat()
}

/// Two uploads and a call through `discipline`.
fn under(name: &str, discipline: impl Discipline<SimFrame>) -> String {
    let mut world = World::new(discipline);
    world.add("upload near", Reno::new(flow(1), Span::from_millis(20)));
    world.add("upload far", Reno::new(flow(2), Span::from_millis(80)));
    world.add("call", Constant::new(flow(3), FrameLen(214), Span::from_millis(20)));
    format!("{name}\n{}", world.run(Span::from_secs(60)).0)
}
