//! The ACK filter on an instance: what it does to the books, and when it keeps out.

use super::*;
use ucake::packet::TcpHeader;
use ucake::packet::tcp::TcpFlags;
use ucake::qdisc::{AckFilter, Change, Dequeue, Discipline, SplitGso, Wake, Why};
use ucake::sim::{BEGIN, flow};
use ucake::units::MemSize;

const TRUESIZE: MemSize = MemSize(1000);

/// An instance with the filter on and everything in one queue.
fn filtering(config: Config) -> Cake<SimFrame> {
    cake(Config { ack_filter: AckFilter::Conservative, ..config })
}

fn ack(number: u32) -> TcpHeader {
    TcpHeader { flow: flow(1).flow, ack: number, flags: TcpFlags::ACK, ..TcpHeader::default() }
}

fn data(number: u32) -> TcpHeader {
    TcpHeader { has_payload: true, ..ack(number) }
}

fn send(cake: &mut Cake<SimFrame>, tcp: TcpHeader, meta: &Meta) {
    let frame =
        SimFrame { sequence: u64::from(tcp.ack), tcp: Some(Box::new(tcp)), ..SimFrame::new(meta) };
    cake.enqueue(frame, meta, BEGIN);
}

/// An ACK of this length.
fn send_ack(cake: &mut Cake<SimFrame>, number: u32, len: u32) {
    let truesize = MemSize(TRUESIZE.0 + u64::from(number));
    send(cake, ack(number), &Meta { truesize, ..flow(1).with_len(FrameLen(len)) });
}

fn ack_drops(cake: &Cake<SimFrame>) -> u64 {
    cake.stats().tins.iter().map(|tin| tin.ack_drops).sum()
}

/// Acknowledgment numbers of what leaves, in order.
fn left(cake: &mut Cake<SimFrame>) -> Vec<u64> {
    let mut left = Vec::new();
    let mut now = BEGIN;
    loop {
        match cake.dequeue(now) {
            Dequeue::Send(departure) => left.push(departure.frame.sequence),
            Dequeue::Wait(wake) => now = wake.at,
            Dequeue::Idle => return left,
        }
    }
}

#[test]
fn without_the_filter_every_ack_passes() {
    let mut cake = cake(Config::default());
    (1..=20).for_each(|number| send_ack(&mut cake, number, 66));
    assert_eq!(ack_drops(&cake), 0);
    assert_eq!(left(&mut cake), (1..=20).collect::<Vec<_>>());
}

#[test]
fn one_ack_stays_before_the_newest_or_none_in_aggressive_mode() {
    for (ack_filter, expected) in
        [(AckFilter::Conservative, vec![19, 20]), (AckFilter::Aggressive, vec![20])]
    {
        let mut cake = cake(Config { ack_filter, ..Config::default() });
        (1..=20).for_each(|number| send_ack(&mut cake, number, 66));
        assert_eq!(left(&mut cake), expected, "{ack_filter:?}");
    }
}

#[test]
fn a_dropped_ack_is_on_every_account_once() {
    let mut cake = filtering(Config::default());
    for (number, len) in [(1, 54), (2, 66), (3, 74)] {
        send_ack(&mut cake, number, len);
    }
    let stats = cake.stats();
    let tin = stats.tins[1];
    assert_eq!((tin.ack_drops, tin.drops, stats.dropped), (1, 0, 1));
    assert_eq!((tin.packets, tin.bytes), (3, 54 + 66 + 74), "enqueued ones count");
    assert_eq!((stats.queued_packets, stats.backlog), (2, FrameLen(66 + 74)));
    assert_eq!(tin.backlog, FrameLen(66 + 74));
    let queue = cake.queue_stats(BEGIN)[0];
    assert_eq!((queue.packets, queue.backlog, queue.drops), (2, FrameLen(66 + 74), 0));
    assert_eq!(left(&mut cake), [2, 3]);
    let stats = cake.stats();
    assert_eq!((stats.sent_packets, stats.sent_bytes), (2, 66 + 74));
}

#[test]
fn memory_is_that_of_what_is_queued() {
    let mut cake = filtering(Config::default());
    (1..=3).for_each(|number| send_ack(&mut cake, number, 66));
    assert_eq!(cake.memory(), MemSize(2 * TRUESIZE.0 + 2 + 3));
    // The highest it stood was with two ACKs queued, not three.
    assert_eq!(cake.stats().memory_used, cake.memory());
    left(&mut cake);
    assert_eq!(cake.memory(), MemSize::ZERO);
}

#[test]
fn a_dropped_ack_is_charged_in_ingress_mode_only() {
    // 125 bytes take 1 ms at 1 Mbit/s. Charged, the dropped one and the first delivered are at 2 ms, so
    // that the failsafe clock, which has not heard of the drop, lets the next one go at 1.5 ms.
    for (ingress, micros, why) in [(false, 1000, Why::Shaper), (true, 1500, Why::Failsafe)] {
        let mut cake = filtering(Config { ingress, ..mbit(1) });
        (1..=3).for_each(|number| send_ack(&mut cake, number, 125));
        assert!(matches!(cake.dequeue(BEGIN), Dequeue::Send(_)));
        let Dequeue::Wait(wake) = cake.dequeue(BEGIN) else { panic!("one is still queued") };
        assert_eq!(wake, Wake { at: BEGIN + Span::from_micros(micros), why }, "ingress {ingress}");
    }
}

#[test]
fn segments_of_a_superpacket_neither_trigger_nor_go() {
    let mut cake = filtering(Config::default());
    for number in 1..=2 {
        send_ack(&mut cake, number, 66);
    }
    for number in 3..=9 {
        send(&mut cake, data(number), &flow(1).superpacket(3, 1000));
    }
    assert_eq!(ack_drops(&cake), 0);
    send_ack(&mut cake, 10, 66);
    assert_eq!(ack_drops(&cake), 1, "an ACK behind them triggers");
    let left = left(&mut cake);
    assert_eq!((left.len(), left[0]), (2 + 7 * 3, 2));
}

#[test]
fn a_superpacket_that_is_not_divided_triggers_as_data_does() {
    let mut cake = filtering(Config { split_gso: SplitGso::Whole, ..Config::default() });
    for number in 1..=2 {
        send_ack(&mut cake, number, 66);
    }
    for number in 3..=9 {
        send(&mut cake, data(number), &flow(1).superpacket(3, 1000));
    }
    assert_eq!(ack_drops(&cake), 1);
    assert_eq!(left(&mut cake), [2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn what_was_queued_before_the_filter_was_switched_on_is_filtered_too() {
    let mut cake = cake(Config::default());
    (1..=5).for_each(|number| send_ack(&mut cake, number, 66));
    let ack_filter = Some(AckFilter::Aggressive);
    cake.change(&Change { ack_filter, ..Change::default() });
    for number in 6..=20 {
        send_ack(&mut cake, number, 66);
    }
    // One goes for each that comes.
    assert_eq!(left(&mut cake), [16, 17, 18, 19, 20]);
}

#[test]
fn an_ack_may_be_the_head_the_middle_or_all_that_is_queued() {
    let mut cake = cake(Config { ack_filter: AckFilter::Aggressive, ..Config::default() });
    let full = full(flow(1));
    send_ack(&mut cake, 1, 66);
    send_ack(&mut cake, 2, 66);
    send(&mut cake, data(3), &full);
    send_ack(&mut cake, 4, 66);
    send_ack(&mut cake, 5, 66);
    assert_eq!(left(&mut cake), [3, 5]);
    send_ack(&mut cake, 6, 66);
    send(&mut cake, data(7), &full);
    send(&mut cake, data(8), &full);
    assert_eq!(left(&mut cake), [7, 8]);
}

#[test]
fn acks_of_other_queues_and_tins_are_not_looked_at() {
    let mut cake = filtering(Config::default());
    let meta = flow(1).with_len(FrameLen(66));
    for (number, meta) in (1..).zip([meta, meta.with_dscp(46), meta, meta.with_dscp(46)]) {
        send(&mut cake, ack(number), &meta);
    }
    assert_eq!(ack_drops(&cake), 0);
}
