//! Cost of the core: enqueue and dequeue of one packet, dissection excluded.
//!
//! `cargo bench --bench core`. Read the numbers as ratios; for small differences count instructions
//! (`valgrind --tool=callgrind`).

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use ucake::packet::Meta;
use ucake::qdisc::{Cake, Config, Dequeue, Discipline, Entropy};
use ucake::sim::{SimFrame, flow};
use ucake::time::{Instant, Span};
use ucake::units::{FrameLen, Rate};

const PACKETS: usize = 1024;

fn main() {
    divan::main();
}

fn metas(flows: u16, len: u32) -> Vec<Meta> {
    (0..PACKETS)
        .map(|i| flow(u16::try_from(i).unwrap_or(0) % flows).with_len(FrameLen(len)))
        .collect()
}

/// Queues a thousand packets, then takes them out; the cost is that of one of them.
fn round(bencher: Bencher<'_, '_>, config: Config, flows: u16, len: u32) {
    let metas = metas(flows, len);
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

#[divan::bench(args = [1, 32, 1024])]
fn shaped_to_10_gbit(bencher: Bencher<'_, '_>, flows: u16) {
    let bandwidth = Some(Rate::from_bits(10_000_000_000));
    round(bencher, Config { bandwidth, ..Config::default() }, flows, 1514);
}

#[divan::bench(args = [64, 1514])]
fn by_length(bencher: Bencher<'_, '_>, len: u32) {
    round(bencher, Config::default(), 32, len);
}

#[divan::bench]
fn superpackets_of_45_segments_split(bencher: Bencher<'_, '_>) {
    let meta = flow(1).superpacket(45, 1448);
    let mut cake = Cake::new(Config::default(), FrameLen(1514), Entropy::from_seed(1));
    let mut now = Instant::from_nanos(1_000_000_000);
    bencher.counter(ItemsCount::new(45_usize)).bench_local(move || {
        cake.enqueue(SimFrame::new(&meta), &meta, now);
        while let Dequeue::Send(departure) = cake.dequeue(now) {
            black_box(departure);
        }
        now += Span::from_millis(1);
    });
}
