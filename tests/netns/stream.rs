//! Fifty megabytes over real TCP, whole and in order, however superpackets are treated.

use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use ucake::io::batch::Coalescing;
use ucake::io::driver::PortSnapshot;
use ucake::packet::coalesce::Push;
use ucake::qdisc::{Config, SplitGso};

use crate::lab::{Family, Lab, MTU_FRAME, PATIENCE, cake};
use crate::require_netns;

const BLOCK: usize = 62_500;
const BLOCKS: usize = 800;
const BYTES: u64 = 50_000_000;
const JOINED: Coalescing = Coalescing::On(Push::Keep);
/// Payload of a full frame; with TCP timestamps it is twelve bytes less.
const MOST_PAYLOAD: u64 = 1460;

#[test]
fn fifty_megabytes_split_arrive_over_ipv4() {
    let Some([lan, wan]) = deliver(Family::V4, SplitGso::Split, Coalescing::Off) else { return };
    superpackets_were_read(&lan);
    only_frames_were_written(&wan);
}

#[test]
fn fifty_megabytes_split_and_joined_again_arrive_over_ipv4() {
    let Some([lan, wan]) = deliver(Family::V4, SplitGso::Split, JOINED) else { return };
    superpackets_were_read(&lan);
    superpackets_were_written(&wan);
}

#[test]
fn fifty_megabytes_split_and_joined_again_arrive_over_ipv6() {
    let Some([lan, wan]) = deliver(Family::V6, SplitGso::Split, JOINED) else { return };
    superpackets_were_read(&lan);
    superpackets_were_written(&wan);
}

#[test]
fn fifty_megabytes_split_arrive_over_ipv6() {
    let Some([lan, wan]) = deliver(Family::V6, SplitGso::Split, Coalescing::Off) else { return };
    superpackets_were_read(&lan);
    only_frames_were_written(&wan);
}

#[test]
fn fifty_megabytes_whole_arrive_over_ipv4() {
    let Some([lan, wan]) = deliver(Family::V4, SplitGso::Whole, JOINED) else { return };
    superpackets_were_read(&lan);
    superpackets_were_written(&wan);
}

#[test]
fn fifty_megabytes_whole_arrive_over_ipv6() {
    let Some([lan, wan]) = deliver(Family::V6, SplitGso::Whole, JOINED) else { return };
    superpackets_were_read(&lan);
    superpackets_were_written(&wan);
}

pub(crate) fn superpackets_were_read(lan: &PortSnapshot) {
    let counters = &lan.counters;
    let mean = counters.bytes_in / counters.frames_in;
    assert!(mean > 10_000, "reads of {mean} bytes: {counters:?}");
}

pub(crate) fn superpackets_were_written(wan: &PortSnapshot) {
    let counters = &wan.counters;
    let mean = counters.bytes_out / counters.frames_out;
    assert!(mean > 10_000, "writes of {mean} bytes: {counters:?}");
}

fn only_frames_were_written(wan: &PortSnapshot) {
    let counters = &wan.counters;
    assert_eq!(counters.largest_write, MTU_FRAME, "{counters:?}");
    assert!(counters.frames_out > BYTES / MOST_PAYLOAD, "{counters:?}");
}

/// Sends fifty megabytes from client to server and compares what arrived; statistics of both ports.
fn deliver(
    family: Family,
    split_gso: SplitGso,
    coalescing: Coalescing,
) -> Option<[PortSnapshot; 2]> {
    require_netns()?;
    let lab = Lab::new();
    let config = Config { split_gso, ..Config::default() };
    let bridge = lab.bridge_with(coalescing, move || cake(config));
    carry(&lab, SocketAddr::from((family.server(), 5001)));
    let ports = bridge.snapshot().ports;
    bridge.stop().expect("a clean stop");
    nothing_was_lost(&ports);
    Some(ports)
}

pub(crate) fn nothing_was_lost(ports: &[PortSnapshot; 2]) {
    for port in ports {
        assert_eq!(port.counters.write_errors.total(), 0, "{port:?}");
        assert_eq!((port.counters.truncated, port.counters.runts), (0, 0), "{port:?}");
        assert!(port.counters.refused.is_empty(), "{port:?}");
    }
}

/// Sends fifty megabytes from client to server and compares what arrived.
pub(crate) fn carry(lab: &Lab, to: SocketAddr) {
    let listener = lab.server.run(move || TcpListener::bind(to)).expect("the address is ours");
    let sink = lab.server.spawn("sink", move || receive(&listener)).expect("a thread");
    let sent = lab.client.run(move || send(to));
    assert_eq!(sink.join().expect("the sink finishes"), (BYTES, sent), "bytes and their hash");
}

/// Sends, and returns the hash of it.
fn send(to: SocketAddr) -> u64 {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
    stream.set_write_timeout(Some(PATIENCE)).expect("more than nothing");
    let mut hash = DefaultHasher::new();
    let mut state = 1_u64;
    let mut block = vec![0; BLOCK];
    for _ in 0..BLOCKS {
        // Bytes without a period, so that none may change places with others.
        for byte in &mut block {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = state.to_be_bytes()[0];
        }
        hash.write(&block);
        stream.write_all(&block).expect("the stream takes it");
    }
    hash.finish()
}

/// Receives block by block, so that both sides hash alike; bytes and their hash.
fn receive(listener: &TcpListener) -> (u64, u64) {
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("more than nothing");
    let (mut total, mut hash) = (0, DefaultHasher::new());
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        let most = u64::try_from(BLOCK).expect("small");
        let len = (&mut stream).take(most).read_to_end(&mut block).expect("a whole stream");
        if len == 0 {
            return (total, hash.finish());
        }
        total += u64::try_from(len).expect("small");
        hash.write(&block);
    }
}
