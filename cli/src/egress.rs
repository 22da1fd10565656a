//! What queues to leave through a port: CAKE or a plain pass-through, changed while traffic flows.
//!
//! Problem: one takes the place of the other under full load, and no frame may be lost or overtaken.
//! Source: spec §2.7; the order of checks and the messages are those a kernel gives `tc`.
//! Law: what was queued before leaves first, as fast as the device takes it, and only then what came after.
//! Left out: where commands come from (`protocol`).

use std::collections::VecDeque;

use ucake::packet::{Frame, Meta};
use ucake::qdisc::{
    Cake, Change, Config, Dequeue, Discipline, Enqueued, Entropy, Fifo, FifoConfig, FifoStats,
    Stats,
};
use ucake::time::Instant;
use ucake::units::FrameLen;

use crate::protocol::{Event, Kind, State, Verb};

/// Most packets in a pass-through: the length Linux gives the queue of an Ethernet device.
const PASS_THROUGH_LIMIT: u32 = 1000;

/// What queues to leave through a port.
pub struct Egress<F> {
    /// Takes what comes.
    current: Standing<F>,
    /// What stood here before and still holds frames, the oldest first.
    leaving: VecDeque<Standing<F>>,
    handle: u16,
    mtu: FrameLen,
    /// What one in another process had counted whose place `current` took.
    before: Before,
}

/// Counters to go on from.
enum Before {
    Nothing,
    Cake(Box<Stats>),
    PassThrough(FifoStats),
}

enum Standing<F> {
    Cake(Box<Cake<F>>),
    PassThrough(Box<Fifo<F>>),
}

/// What is to be done, understood.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// What.
    pub verb: Verb,
    /// The handle that was named.
    pub handle: Option<u16>,
    /// The handle to give where none was named.
    pub next_handle: u16,
    /// What the words ask for.
    pub change: Change,
    /// Randomness for a new instance.
    pub entropy: Entropy,
}

/// Why it cannot be done as things stand, in the words that a kernel has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// `add` where there is one.
    #[error(
        "Error: Exclusivity flag on, cannot modify.\n  there is one already; type change or replace"
    )]
    Exists,
    /// Another handle than that of the one that is there.
    #[error(
        "Error: NLM_F_REPLACE needed to override.\n  there is one with handle {0:x}: already; type replace, or leave the handle out"
    )]
    OtherHandle(u16),
    /// `change` where there is none.
    #[error(
        "Error: Qdisc not found. To create specify NLM_F_CREATE flag.\n  there is none to change; type add or replace"
    )]
    Missing,
    /// `del` where there is none.
    #[error("Error: Cannot delete qdisc with handle of zero.\n  there is none to delete")]
    NothingToDelete,
    /// `del` of a handle where there is none.
    #[error("Error: Invalid handle.\n  there is none to delete")]
    NothingByThatHandle,
    /// `del` of another handle than that of the one that is there.
    #[error("Error: Invalid handle.\n  the one that is there has handle {0:x}:")]
    WrongHandle(u16),
    /// `nat` where nothing can be known about connections.
    #[error(
        "Error: No conntrack support in kernel.\n  leave \"nat\" out; it takes the module nf_conntrack_netlink, and root or CAP_NET_ADMIN"
    )]
    NoConntrack,
}

impl<F: Frame> Egress<F> {
    /// CAKE with this handle; `mtu` as for [`Cake::new`].
    pub fn cake(config: Config, handle: u16, mtu: FrameLen, entropy: Entropy) -> Self {
        let cake = Cake::new(config, mtu, entropy).with_handle(handle);
        Self::new(Standing::Cake(Box::new(cake)), handle, mtu)
    }

    /// A plain pass-through.
    pub fn pass_through(mtu: FrameLen) -> Self {
        Self::new(Standing::pass_through(), 0, mtu)
    }

    /// One like that which `state` was said of, without its frames; counters go on where they stood.
    pub fn going_on_from(handle: u16, state: &State, mtu: FrameLen, entropy: Entropy) -> Self {
        match state {
            State::Cake { config, stats, .. } => {
                let before = Before::Cake(stats.clone());
                Self { before, ..Self::cake(*config, handle, mtu, entropy) }
            }
            State::Pfifo { stats, .. } => {
                Self { before: Before::PassThrough(*stats), ..Self::pass_through(mtu) }
            }
        }
    }

    fn new(current: Standing<F>, handle: u16, mtu: FrameLen) -> Self {
        Self { current, leaving: VecDeque::new(), handle, mtu, before: Before::Nothing }
    }

    /// What takes the frames that come.
    pub fn kind(&self) -> Kind {
        match self.current {
            Standing::Cake(_) => Kind::Cake,
            Standing::PassThrough(_) => Kind::Pfifo,
        }
    }

    /// Major number of the handle; 0 of a pass-through.
    pub fn handle(&self) -> u16 {
        self.handle
    }

    /// Everything about what takes the frames that come; of each queue only if `queues`.
    pub fn state(&self, queues: bool, now: Instant) -> State {
        match &self.current {
            Standing::Cake(cake) => State::Cake {
                config: *cake.config(),
                stats: Box::new(match &self.before {
                    Before::Cake(before) => cake.stats().going_on_from(before),
                    _ => cake.stats(),
                }),
                queues: queues.then(|| cake.queue_stats(now)),
            },
            Standing::PassThrough(fifo) => State::Pfifo {
                limit: PASS_THROUGH_LIMIT,
                backlog: fifo.backlog().bytes(),
                stats: match &self.before {
                    Before::PassThrough(before) => fifo.stats().going_on_from(before),
                    _ => fifo.stats(),
                },
            },
        }
    }

    /// Obeys, or says why not and changes nothing.
    ///
    /// # Errors
    /// What is there is not what the command is for.
    pub fn apply(&mut self, command: &Command) -> Result<Event, StateError> {
        let Command { verb, handle, change, .. } = command;
        let same = handle.is_none_or(|handle| handle == self.handle);
        match (&mut self.current, verb) {
            (Standing::PassThrough(_), Verb::Change) => Err(StateError::Missing),
            (Standing::PassThrough(_), Verb::Del) if handle.is_some() => {
                Err(StateError::NothingByThatHandle)
            }
            (Standing::PassThrough(_), Verb::Del) => Err(StateError::NothingToDelete),
            (Standing::PassThrough(_), Verb::Add | Verb::Replace) => {
                self.install(command);
                Ok(Event::Added)
            }
            (Standing::Cake(_), Verb::Add) if same => Err(StateError::Exists),
            (Standing::Cake(_), Verb::Add | Verb::Change) if !same => {
                Err(StateError::OtherHandle(self.handle))
            }
            (Standing::Cake(_), Verb::Replace) if !same => {
                self.install(command);
                Ok(Event::Added)
            }
            (Standing::Cake(_), Verb::Del) if !same => Err(StateError::WrongHandle(self.handle)),
            (Standing::Cake(_), Verb::Del) => {
                self.remove();
                Ok(Event::Deleted)
            }
            (Standing::Cake(cake), Verb::Add | Verb::Change | Verb::Replace) => {
                cake.change(change);
                Ok(Event::Changed)
            }
        }
    }

    /// Makes it CAKE of exactly this kind: the one that is there is changed, what is queued in it stays; where there is
    /// none, one is made with `handle`.
    pub fn configure(&mut self, config: Config, handle: u16, entropy: Entropy) -> Event {
        match &mut self.current {
            Standing::Cake(cake) => {
                let change = difference(cake.config(), &config);
                cake.change(&change);
                Event::Changed
            }
            Standing::PassThrough(_) => {
                self.handle = handle;
                let cake = Cake::new(config, self.mtu, entropy).with_handle(handle);
                self.succeed(Standing::Cake(Box::new(cake)));
                Event::Added
            }
        }
    }

    /// What is queued leaves as fast as the device takes it, and what comes passes through behind it.
    pub fn let_go(&mut self) {
        if matches!(self.current, Standing::Cake(_)) {
            self.remove();
        }
    }

    fn install(&mut self, command: &Command) {
        self.handle = command.handle.unwrap_or(command.next_handle);
        let config = Config::default().changed_by(&command.change);
        let cake = Cake::new(config, self.mtu, command.entropy).with_handle(self.handle);
        self.succeed(Standing::Cake(Box::new(cake)));
    }

    fn remove(&mut self) {
        self.handle = 0;
        self.succeed(Standing::pass_through());
    }

    fn succeed(&mut self, next: Standing<F>) {
        self.before = Before::Nothing;
        let before = std::mem::replace(&mut self.current, next);
        if before.backlog() != FrameLen::ZERO {
            self.leaving.push_back(before);
        }
    }
}

/// What makes `to` out of `from`, and no more: statistics of sizes begin anew only if sizes are reckoned otherwise.
fn difference(from: &Config, to: &Config) -> Change {
    let &Config {
        bandwidth,
        autorate_ingress,
        diffserv,
        isolation,
        nat,
        wash,
        ingress,
        ack_filter,
        split_gso,
        burst,
        rtt_step,
        interval,
        target,
        overhead,
        memory_limit,
        fwmark,
    } = to;
    let sizes = (from.overhead.bytes, from.overhead.raw) != (overhead.bytes, overhead.raw);
    Change {
        bandwidth: Some(bandwidth),
        autorate_ingress: Some(autorate_ingress),
        diffserv: Some(diffserv),
        isolation: Some(isolation),
        nat: Some(nat),
        wash: Some(wash),
        ingress: Some(ingress),
        ack_filter: Some(ack_filter),
        split_gso: Some(split_gso),
        burst: Some(burst),
        rtt_step: Some(rtt_step),
        interval: Some(interval),
        target: Some(target),
        // It takes `raw` away, which comes back if it is asked for.
        overhead: sizes.then_some(overhead.bytes),
        raw: sizes && overhead.raw,
        mpu: Some(overhead.mpu),
        link_layer: Some(overhead.link_layer),
        memory_limit: Some(memory_limit),
        fwmark: Some(fwmark),
    }
}

impl<F: Frame> Standing<F> {
    fn pass_through() -> Self {
        let config = FifoConfig { rate: None, limit: PASS_THROUGH_LIMIT, split: false };
        Self::PassThrough(Box::new(Fifo::new(config)))
    }

    fn backlog(&self) -> FrameLen {
        match self {
            Self::Cake(cake) => cake.backlog(),
            Self::PassThrough(fifo) => fifo.backlog(),
        }
    }

    /// What has lost its place lets go of everything, one frame per call.
    fn release(&mut self, now: Instant) -> Dequeue<F> {
        match self {
            Self::Cake(cake) => cake.release(now).map_or(Dequeue::Idle, Dequeue::Send),
            Self::PassThrough(fifo) => fifo.dequeue(now),
        }
    }
}

impl<F: Frame> Discipline<F> for Egress<F> {
    fn enqueue(&mut self, frame: F, meta: &Meta, now: Instant) -> Enqueued {
        match &mut self.current {
            Standing::Cake(cake) => cake.enqueue(frame, meta, now),
            Standing::PassThrough(fifo) => fifo.enqueue(frame, meta, now),
        }
    }

    fn dequeue(&mut self, now: Instant) -> Dequeue<F> {
        while let Some(first) = self.leaving.front_mut() {
            match first.release(now) {
                Dequeue::Idle => drop(self.leaving.pop_front()),
                answer => return answer,
            }
        }
        match &mut self.current {
            Standing::Cake(cake) => cake.dequeue(now),
            Standing::PassThrough(fifo) => fifo.dequeue(now),
        }
    }

    fn backlog(&self) -> FrameLen {
        self.current.backlog() + self.leaving.iter().map(Standing::backlog).sum()
    }

    fn wants_min_rtt(&self) -> bool {
        match &self.current {
            Standing::Cake(cake) => cake.wants_min_rtt(),
            Standing::PassThrough(_) => false,
        }
    }

    fn wants_nat(&self) -> bool {
        match &self.current {
            Standing::Cake(cake) => cake.wants_nat(),
            Standing::PassThrough(_) => false,
        }
    }

    fn held_up(&mut self) {
        if let Standing::Cake(cake) = &mut self.current {
            cake.held_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ucake::packet::Segments;
    use ucake::sim::{BEGIN, SimFrame, flow};
    use ucake::time::Span;
    use ucake::units::{MemSize, Rate};

    use super::*;

    fn egress(bandwidth: Option<Rate>) -> Egress<SimFrame> {
        let config = Config { bandwidth, ..patient() };
        Egress::cake(config, 0x8001, FrameLen(1514), Entropy::from_seed(1))
    }

    /// No packet is too old, and there is room for all.
    fn patient() -> Config {
        let (interval, target) = (Span::from_secs(1000), Span::from_secs(50));
        let memory_limit = Some(MemSize(1 << 31));
        Config { interval, target, memory_limit, ..Config::default() }
    }

    fn command(verb: Verb) -> Command {
        let Config { bandwidth: _, interval, target, memory_limit, .. } = patient();
        let change = Change {
            interval: Some(interval),
            target: Some(target),
            memory_limit: Some(memory_limit),
            bandwidth: Some(Some(Rate::from_bits(1_000_000))),
            ..Change::default()
        };
        Command { verb, handle: None, next_handle: 0x8003, change, entropy: Entropy::from_seed(2) }
    }

    fn with_handle(verb: Verb, handle: u16) -> Command {
        Command { handle: Some(handle), ..command(verb) }
    }

    #[test]
    fn each_verb_is_for_what_is_there() {
        let mut egress = egress(None);
        let table = [
            (command(Verb::Add), Err(StateError::Exists)),
            (with_handle(Verb::Add, 7), Err(StateError::OtherHandle(0x8001))),
            (with_handle(Verb::Change, 7), Err(StateError::OtherHandle(0x8001))),
            (with_handle(Verb::Del, 7), Err(StateError::WrongHandle(0x8001))),
            (with_handle(Verb::Change, 0x8001), Ok(Event::Changed)),
            (command(Verb::Change), Ok(Event::Changed)),
            (command(Verb::Replace), Ok(Event::Changed)),
            (with_handle(Verb::Replace, 7), Ok(Event::Added)),
            (command(Verb::Del), Ok(Event::Deleted)),
            (command(Verb::Del), Err(StateError::NothingToDelete)),
            (command(Verb::Change), Err(StateError::Missing)),
            (command(Verb::Replace), Ok(Event::Added)),
            (with_handle(Verb::Del, 0x8003), Ok(Event::Deleted)),
            (with_handle(Verb::Add, 9), Ok(Event::Added)),
        ];
        for (command, expected) in table {
            assert_eq!(egress.apply(&command), expected, "{command:?}");
        }
        assert_eq!((egress.kind(), egress.handle()), (Kind::Cake, 9));
    }

    #[test]
    fn what_is_configured_is_exactly_that_whatever_was_before() {
        let change =
            |line: &str| Config::default().changed_by(&crate::words::parse_line(line).expect(line));
        let lines = [
            "",
            "docsis bandwidth 5mbit",
            "raw memlimit 3mb besteffort",
            "atm overhead 8 rtt 5ms",
            "ingress wash ack-filter",
        ];
        let mut egress = egress(None);
        for line in lines.iter().chain(lines.iter().rev()) {
            egress.configure(change(line), 9, Entropy::from_seed(1));
            let State::Cake { config, .. } = egress.state(false, BEGIN) else {
                panic!("it is CAKE")
            };
            assert_eq!((config, egress.handle()), (change(line), 0x8001), "{line}");
        }
        egress.let_go();
        assert_eq!((egress.kind(), egress.handle()), (Kind::Pfifo, 0));
        egress.configure(change(""), 9, Entropy::from_seed(1));
        assert_eq!((egress.kind(), egress.handle()), (Kind::Cake, 9));
    }

    #[test]
    fn replace_keeps_what_is_not_mentioned_and_another_handle_starts_anew() {
        let mut egress = egress(None);
        let change = |overhead, mpu| Change { overhead, mpu, ..Change::default() };
        let overhead = |egress: &Egress<SimFrame>| match egress.state(false, BEGIN) {
            State::Cake { config, .. } => (config.overhead.bytes, config.overhead.mpu),
            State::Pfifo { .. } => panic!("it is CAKE"),
        };
        let replace = command(Verb::Replace);
        for (handle, change, expected) in [
            (None, change(Some(128), Some(256)), (128, 256)),
            (None, change(None, Some(128)), (128, 128)),
            (Some(0x8001), change(Some(10), None), (10, 128)),
            (Some(5), change(None, Some(64)), (0, 64)),
        ] {
            egress.apply(&Command { handle, change, ..replace }).expect("it may be replaced");
            assert_eq!(overhead(&egress), expected);
        }
    }

    #[test]
    fn one_that_goes_on_from_another_has_its_words_handle_and_counts() {
        let packet = |egress: &mut Egress<SimFrame>| {
            let meta = Meta { len: FrameLen(1054), ..flow(1) };
            egress.enqueue(SimFrame::new(&meta), &meta, BEGIN);
            assert!(matches!(egress.dequeue(BEGIN), Dequeue::Send(_)));
        };
        let sent = |egress: &Egress<SimFrame>| match egress.state(false, BEGIN) {
            State::Cake { stats, .. } => stats.sent_packets,
            State::Pfifo { stats, .. } => stats.sent_packets,
        };
        for first in
            [egress(Some(Rate::from_bits(7_000_000))), Egress::pass_through(FrameLen(1514))]
        {
            let mut first = first;
            packet(&mut first);
            let state = first.state(false, BEGIN);
            let entropy = Entropy::from_seed(2);
            let mut next = Egress::going_on_from(first.handle(), &state, FrameLen(1514), entropy);
            assert_eq!((next.kind(), next.handle()), (first.kind(), first.handle()));
            packet(&mut next);
            assert_eq!(sent(&next), 2);
            if let (State::Cake { config, .. }, State::Cake { config: now, .. }) =
                (&state, next.state(false, BEGIN))
            {
                assert_eq!(config, &now);
            }
            next.apply(&with_handle(Verb::Replace, 9)).expect("it may be replaced");
            assert_eq!(sent(&next), 0, "another instance counts for itself");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Feed { flow: u16, segments: u16 },
        Drain(u8),
        Wait(u16),
        Apply(Verb, Option<u16>),
    }

    fn op() -> impl Strategy<Value = Op> {
        let verb = prop_oneof![Just(Verb::Add), Just(Verb::Replace), Just(Verb::Del)];
        prop_oneof![
            4 => (0..4_u16, 1..5_u16).prop_map(|(flow, segments)| Op::Feed { flow, segments }),
            2 => (0..8_u8).prop_map(Op::Drain),
            1 => (0..20_000_u16).prop_map(Op::Wait),
            1 => (verb, proptest::option::of(1..4_u16)).prop_map(|(verb, handle)| Op::Apply(verb, handle)),
        ]
    }

    /// Numbers of the frames and segments of each flow, in the order they left.
    #[derive(Default)]
    struct Sink(Vec<(usize, u64, u16)>);

    impl Sink {
        fn drain(&mut self, egress: &mut Egress<SimFrame>, most: usize, now: Instant) {
            for _ in 0..most {
                let Dequeue::Send(departure) = egress.dequeue(now) else { return };
                let SimFrame { source, sequence, segment, .. } = departure.frame;
                self.0.push((source, sequence, segment));
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_reordered_whatever_takes_the_place_of_what(
            ops in proptest::collection::vec(op(), 1..200)
        ) {
            let mut egress = egress(Some(Rate::from_bits(1_000_000)));
            let (mut now, mut sequence, mut fed) = (BEGIN, 0, 0);
            let mut sink = Sink::default();
            for op in ops {
                match op {
                    Op::Feed { flow: number, segments } => {
                        let len = FrameLen(54 + 1000 * u32::from(segments));
                        let meta = Meta {
                            len,
                            segments: Segments { count: segments, mss: 1000, header_len: 54 },
                            ..flow(number)
                        };
                        sequence += 1;
                        let frame = SimFrame { source: number.into(), sequence, ..SimFrame::new(&meta) };
                        egress.enqueue(frame, &meta, now);
                        fed += 1;
                    }
                    Op::Drain(most) => sink.drain(&mut egress, most.into(), now),
                    Op::Wait(micros) => now += Span::from_micros(micros.into()),
                    Op::Apply(verb, handle) => {
                        let _ = egress.apply(&Command { handle, ..command(verb) });
                    }
                }
            }
            let _ = egress.apply(&command(Verb::Del));
            sink.drain(&mut egress, usize::MAX, now);
            prop_assert_eq!(egress.backlog(), FrameLen::ZERO);
            let mut frames: Vec<u64> = sink.0.iter().map(|&(_, sequence, _)| sequence).collect();
            frames.sort_unstable();
            frames.dedup();
            prop_assert_eq!(frames.len(), fed);
            for source in 0..4 {
                let mine = sink.0.iter().filter(|left| left.0 == source);
                prop_assert!(mine.is_sorted(), "{:?}", sink.0);
            }
        }
    }
}
