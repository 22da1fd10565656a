//! Cost of the core: first a table of whole ways, from bytes to dequeue, with allocations and memory
//! ([`packets`]), then enqueue and dequeue alone.
//!
//! `cargo bench --bench core [-- --json FILE] [-- --only SCENARIO [--rounds N]]`; with one of these words
//! only the table. Read the numbers as ratios; for small differences count instructions:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*turn_over*' BENCH --bench --only SCENARIO --rounds 5
//! ```

use std::process::ExitCode;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use ucake::packet::{
    Direction, Frame, Layout, Meta, Network, RttTable, Sighting, TcpHeader, Transport,
};
use ucake::qdisc::{AckFilter, Cake, Config, Dequeue, Discipline, Entropy, SplitGso};
use ucake::sim::{SimFrame, flow};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, Rate};

mod packets;

const PACKETS: usize = 1024;

fn main() -> ExitCode {
    match packets::Args::parse() {
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
        Ok(Some(args)) => {
            if let Err(error) = packets::run(&args) {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            if args.asks_for_the_table_only() {
                return ExitCode::SUCCESS;
            }
        }
        Ok(None) => {}
    }
    divan::main();
    ExitCode::SUCCESS
}

fn metas(flows: u16, len: u32) -> Vec<Meta> {
    (0..PACKETS)
        .map(|i| flow(u16::try_from(i).unwrap_or(0) % flows).with_len(FrameLen(len)))
        .collect()
}

/// Queues a thousand packets, then takes them out; the cost is that of one of them.
fn round(bencher: Bencher<'_, '_>, config: Config, flows: u16, len: u32) {
    rounds(bencher, config, metas(flows, len));
}

fn rounds(bencher: Bencher<'_, '_>, config: Config, metas: Vec<Meta>) {
    let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
    let mut now = Instant::from_nanos(1_000_000_000);
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(move || {
        for meta in &metas {
            cake.enqueue(SimFrame::new(meta), meta, now);
        }
        loop {
            match cake.dequeue(now) {
                Dequeue::Send(departure) => {
                    black_box(departure);
                }
                Dequeue::Wait(wake) => now = wake.at,
                Dequeue::Idle => break,
            }
        }
        now += Span::from_millis(1);
    });
}

#[divan::bench(args = [1, 32, 1024])]
fn unlimited(bencher: Bencher<'_, '_>, flows: u16) {
    round(bencher, Config::default(), flows, 1514);
}

/// Each flow between hosts of its own: nobody shares a host's quantum.
#[divan::bench(args = [1, 32, 1024])]
fn each_flow_its_own_hosts(bencher: Bencher<'_, '_>, flows: u16) {
    let metas: Vec<Meta> = (0..PACKETS)
        .map(|i| u16::try_from(i).unwrap_or(0) % flows)
        .map(|number| flow(number).between(1000 + u32::from(number), 9000 + u32::from(number)))
        .map(|meta| meta.with_len(FrameLen(1514)))
        .collect();
    rounds(bencher, Config::default(), metas);
}

#[divan::bench(args = [1, 32, 1024])]
fn shaped_to_10_gbit(bencher: Bencher<'_, '_>, flows: u16) {
    let bandwidth = Some(Rate::from_bits(10_000_000_000));
    round(bencher, Config { bandwidth, ..Config::default() }, flows, 1514);
}

#[divan::bench(args = [64, 1514])]
fn by_length(bencher: Bencher<'_, '_>, len: u32) {
    round(bencher, Config::default(), 32, len);
}

#[divan::bench(args = [SplitGso::Split, SplitGso::Auto])]
fn superpackets_of_45_segments(bencher: Bencher<'_, '_>, split_gso: SplitGso) {
    let meta = flow(1).superpacket(45, 1448);
    let config = Config { split_gso, ..Config::default() };
    let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
    let mut now = Instant::from_nanos(1_000_000_000);
    bencher.counter(ItemsCount::new(45_usize)).bench_local(move || {
        cake.enqueue(SimFrame::new(&meta), &meta, now);
        while let Dequeue::Send(departure) = cake.dequeue(now) {
            black_box(departure);
        }
        now += Span::from_millis(1);
    });
}

/// A frame that is read anew each time it is asked for its TCP header, as those of a port are.
struct Bytes(Vec<u8>);

impl Bytes {
    /// TCP over IPv4 with timestamps, and what else is behind the headers.
    fn new(ack: u32, payload: usize) -> Self {
        let mut bytes = vec![0; 66 + payload];
        bytes[14] = 0x45;
        bytes[16..18].copy_from_slice(&u16::try_from(52 + payload).unwrap_or(0).to_be_bytes());
        bytes[23] = 6;
        bytes[42..46].copy_from_slice(&ack.to_be_bytes());
        bytes[46..48].copy_from_slice(&[0x80, 0x10]);
        bytes[54..58].copy_from_slice(&[1, 1, 8, 10]);
        Self(bytes)
    }

    /// The same, of another connection.
    fn of(mut self, number: u16) -> Self {
        self.0[29] = 1;
        self.0[34..36].copy_from_slice(&number.to_be_bytes());
        self
    }

    /// The answer to it, by a clock that reads so.
    fn turn(&mut self, clock: u32) -> Direction {
        let (source, destination) = self.0[26..34].split_at_mut(4);
        source.swap_with_slice(destination);
        self.0[34..38].rotate_left(2);
        let [value, echo] = [clock.to_be_bytes(), [self.0[58], self.0[59], self.0[60], self.0[61]]];
        self.0[58..62].copy_from_slice(&value);
        self.0[62..66].copy_from_slice(&echo);
        if self.0[29] == 1 { Direction::Up } else { Direction::Down }
    }
}

impl Frame for Bytes {
    fn mark_ce(&mut self) -> bool {
        false
    }
    fn wash(&mut self) -> bool {
        false
    }
    fn segment(&self, _index: u16) -> Self {
        Self(self.0.clone())
    }
    fn tcp(&self) -> Option<TcpHeader> {
        let layout = Layout { network: Network::Ipv4, network_offset: 14, ..Layout::default() };
        TcpHeader::read(&self.0, &layout)
    }
}

/// A frame of one of so many connections is read, and its round-trip time looked up; frames take turns in
/// their direction, their clocks tick and are echoed.
#[divan::bench(args = [1, 32, 1024])]
fn a_round_trip_time(bencher: Bencher<'_, '_>, connections: u16) {
    let mut table = RttTable::new((1, 2));
    let mut frames: Vec<_> = (0..connections).map(|number| Bytes::new(1, 0).of(number)).collect();
    let transport = Some((Transport::Tcp, 34));
    let layout =
        Layout { network: Network::Ipv4, network_offset: 14, transport, ..Layout::default() };
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut clock = 1_u32;
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(move || {
        for turn in 0..PACKETS {
            let frame = &mut frames[turn % usize::from(connections)];
            let direction = frame.turn(clock);
            clock += 1;
            let seen = Sighting::read(&frame.0, &layout);
            black_box(seen.and_then(|seen| table.observe(direction, &seen, now)));
            now += Span::from_micros(1);
        }
    });
}

/// One packet more for a queue that holds `queued` ones of its connection; what is looked at for it is all
/// of them if the oldest is an ACK, and nothing if none is.
#[divan::bench(args = [64, 1000, 4000], consts = [true, false])]
fn a_trigger_behind<const ACK: bool>(bencher: Bencher<'_, '_>, queued: u32) {
    const TRIGGERS: usize = 16;
    let config = Config { ack_filter: AckFilter::Conservative, ..Config::default() };
    let now = Instant::from_nanos(1_000_000_000);
    let meta = flow(1).with_len(FrameLen(1514));
    let full =
        |cake: &mut Cake<Bytes>, ack, payload| cake.enqueue(Bytes::new(ack, payload), &meta, now);
    let filled = || {
        let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
        full(&mut cake, 1, if ACK { 0 } else { 1000 });
        (1..queued).for_each(|ack| {
            full(&mut cake, ack, 1000);
        });
        let triggers: Vec<_> = (0..TRIGGERS).map(|_| Bytes::new(queued, 1000)).collect();
        (cake, triggers)
    };
    bencher.counter(ItemsCount::new(TRIGGERS)).with_inputs(filled).bench_local_values(
        |(mut cake, triggers)| {
            for trigger in triggers {
                cake.enqueue(trigger, &meta, now);
            }
            cake
        },
    );
}
