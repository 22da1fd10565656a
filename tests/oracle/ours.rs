//! The same cases through ucake: bytes as the program reads them, on virtual time.

use ucake::io::pool::{Fill, FrameBuf, Pool, Received, Scratch};
use ucake::packet::{Checksums, VnetHeader};
use ucake::qdisc::{Cake, Config, Dequeue, Discipline, Entropy, Stats, TinStats};
use ucake::time::{Instant, Span};
use ucake::units::FrameLen;

use crate::answer::{Answer, INSTANCE, TIN, describe};
use crate::cases::{Case, Group, HANDLE, Input, Phase, Step};
use crate::wire;
use crate::words::parse_line;

/// What hangs on chance in the kernel, and is chosen here.
#[derive(Clone, Copy)]
pub struct World {
    /// Of hashes and dice.
    pub seed: u64,
    /// Between one frame and the next.
    pub gap: Span,
    /// How late the timer is.
    pub late: Span,
}

impl World {
    /// A world in which timers are never late.
    pub fn punctual(seed: u64) -> Self {
        Self { seed, gap: Span::from_micros(10), late: Span::ZERO }
    }
}

/// A case in progress.
struct Run {
    cake: Cake<FrameBuf>,
    pool: Pool,
    now: Instant,
    late: Span,
    outputs: Vec<Vec<u8>>,
}

/// What ucake answers.
pub fn answer(case: &Case, group: &Group, world: World) -> Result<Answer, String> {
    let config = Config::default().changed_by(&change(&case.words)?);
    let mtu = FrameLen(case.mtu + 14);
    let mut run = Run {
        cake: Cake::new(config, mtu, Entropy::from_seed(world.seed)).with_handle(HANDLE),
        pool: Pool::new(),
        now: Instant::from_nanos(1_000_000_000_000),
        late: world.late,
        outputs: Vec::new(),
    };
    for step in &case.steps {
        match step {
            Step::Change(words) => run.cake.change(&change(words)?),
            Step::Send(input) => run.send(input)?,
        }
        run.now += world.gap;
    }
    if let Phase::Empty(_) = group.phase {
        run.drain(true);
    }
    let mut answer = numbers(&run.cake.stats(), group.fields);
    if group.egress {
        let inputs: Vec<&[u8]> = case.inputs().map(|input| &input.bytes[..]).collect();
        answer.left = Some(describe(&inputs, &run.outputs));
    }
    Ok(answer)
}

fn change(words: &str) -> Result<ucake::qdisc::Change, String> {
    parse_line(words).map_err(|error| error.to_string())
}

impl Run {
    fn send(&mut self, input: &Input) -> Result<(), String> {
        let vnet = input.vnet.unwrap_or(VnetHeader::PLAIN);
        let (addresses, rest) = input.bytes.split_at(12);
        let tag = input.tag.map_or(Vec::new(), |(protocol, control)| {
            [protocol.to_be_bytes(), control.to_be_bytes()].concat()
        });
        let bytes = [&vnet.encode(), addresses, &tag, rest].concat();
        let fill = self.pool.fill(|buffer| {
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        let Received { frame, mut meta } = match fill {
            Ok(Fill::Frame(received)) => received,
            Ok(Fill::Refused(reason)) => return Err(format!("refused: {reason}")),
            _ => return Err("not taken as a frame".to_owned()),
        };
        (meta.mark, meta.priority) = (input.mark, input.priority);
        self.cake.enqueue(frame, &meta, self.now);
        self.drain(false);
        Ok(())
    }

    /// Lets go what may go now, or everything.
    fn drain(&mut self, all: bool) {
        let mut scratch = Scratch::new();
        loop {
            match self.cake.dequeue(self.now) {
                Dequeue::Send(departure) => {
                    let wire = departure
                        .frame
                        .wire(Checksums::Partial, &mut scratch)
                        .expect("a frame has bytes");
                    let bytes = [wire.head, wire.payload].concat();
                    self.outputs.push(wire::finished(&bytes).expect("a vnet header and a frame"));
                }
                Dequeue::Wait(wake) if all => self.now = wake.at + self.late,
                Dequeue::Wait(_) | Dequeue::Idle => return,
            }
        }
    }
}

fn numbers(stats: &Stats, fields: &[&str]) -> Answer {
    let mut answer = Answer::default();
    for (name, _) in INSTANCE.iter().filter(|(name, _)| fields.contains(name)) {
        answer.set(name, vec![of_instance(stats, name)]);
    }
    for (name, _) in TIN.iter().filter(|(name, _)| fields.contains(name)) {
        answer.set(name, stats.tins.iter().map(|tin| of_tin(tin, name)).collect());
    }
    answer
}

fn of_instance(stats: &Stats, name: &str) -> u64 {
    match name {
        "sent_bytes" => stats.sent_bytes,
        "sent_packets" => stats.sent_packets,
        "dropped" => stats.dropped,
        "backlog_bytes" => stats.backlog.0.into(),
        "backlog_packets" => stats.queued_packets.into(),
        "memory_used" => stats.memory_used.0,
        "memory_limit" => stats.memory_limit.0,
        "capacity" => stats.capacity_estimate.bytes(),
        "min_network" => stats.network_size.min.into(),
        "max_network" => stats.network_size.max.into(),
        "min_adjusted" => stats.adjusted_size.min.into(),
        "max_adjusted" => stats.adjusted_size.max.into(),
        "header_offset" => stats.average_network_offset.into(),
        _ => unreachable!("{name} is not a number of an instance"),
    }
}

fn of_tin(tin: &TinStats, name: &str) -> u64 {
    match name {
        "threshold" => tin.threshold.bytes(),
        "target_us" => tin.target.micros().unsigned_abs(),
        "interval_us" => tin.interval.micros().unsigned_abs(),
        "quantum" => tin.flow_quantum.into(),
        "packets" => tin.packets,
        "bytes" => tin.bytes,
        "way_indirect" => tin.way_indirect_hits,
        "way_misses" => tin.way_misses,
        "way_collisions" => tin.way_collisions,
        "drops" => tin.drops,
        "marks" => tin.marks,
        "ack_drops" => tin.ack_drops,
        "backlog" => tin.backlog.0.into(),
        "sparse" => tin.sparse_flows.into(),
        "bulk" => tin.bulk_flows.into(),
        "unresponsive" => tin.unresponsive_flows.into(),
        "max_len" => tin.max_packet_len.0.into(),
        _ => unreachable!("{name} is not a number of a tin"),
    }
}
