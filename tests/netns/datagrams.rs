//! UDP, one datagram at a time and in superpackets (`UDP_SEGMENT`).

use std::net::UdpSocket;

use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use ucake::io::batch::Coalescing;
use ucake::io::tap::{Tap, TapOptions};
use ucake::qdisc::{Config, SplitGso};

use crate::lab::{Family, Lab, PATIENCE, cake};
use crate::require_netns;

const PAYLOAD: usize = 1000;
const ROUNDS: u8 = 20;
/// Datagrams in a superpacket; the last is shorter. So few that the receiver's socket holds them all.
const TRAIN: u8 = 32;
/// Ethernet, IPv6 and UDP.
const MOST_HEADERS: u32 = 14 + 40 + 8;

#[test]
fn single_datagrams_cross_both_ways() {
    if require_netns().is_none() {
        return;
    }
    for family in [Family::V4, Family::V6] {
        let lab = Lab::new();
        let bridge = lab.bridge(Config::default());
        let [client, server] = sockets(&lab, family);
        for len in [0, 1, 17, 18, 19, 1000, 1452, 1472, 4000] {
            let sent = payload(1, 0, len);
            client.send(&sent).expect("it leaves");
            assert_eq!(received(&server), sent, "{family:?}, {len} bytes, there");
            server.send(&sent).expect("it leaves");
            assert_eq!(received(&client), sent, "{family:?}, {len} bytes, back");
        }
        bridge.stop().expect("a clean stop");
    }
}

#[test]
fn rows_of_datagrams_are_read_whole_and_leave_singly() {
    let Some([read, written]) = send_trains(SplitGso::Split, Coalescing::Off) else { return };
    assert!(read > 30_000, "the largest frame read has {read} bytes");
    let most = u32::try_from(PAYLOAD).expect("small") + MOST_HEADERS;
    assert!(written <= most, "the largest frame written has {written} bytes");
}

#[test]
fn rows_of_datagrams_are_split_and_joined_again() {
    let joined = Coalescing::default();
    let Some([read, written]) = send_trains(SplitGso::Split, joined) else { return };
    assert!(read > 30_000, "the largest frame read has {read} bytes");
    assert!(written > 30_000, "the largest frame written has {written} bytes");
}

#[test]
fn rows_of_datagrams_are_read_whole_and_leave_whole() {
    let joined = Coalescing::default();
    let Some([read, written]) = send_trains(SplitGso::Whole, joined) else { return };
    assert!(read > 30_000, "the largest frame read has {read} bytes");
    assert!(written > 30_000, "the largest frame written has {written} bytes");
}

/// Sends superpackets of both families; the largest frames read and written. `None` where taps give
/// no UDP superpackets.
fn send_trains(split_gso: SplitGso, coalescing: Coalescing) -> Option<[u32; 2]> {
    const USO: u32 = 0x60;
    let namespace = require_netns()?;
    let tap = namespace.run(|| Tap::open("uso0", &TapOptions::default()).expect("a tap opens"));
    if tap.offloads() & USO == 0 {
        eprintln!("SKIPPED, nothing was tested: this kernel's taps give no UDP superpackets");
        return None;
    }
    let lab = Lab::new();
    let config = Config { split_gso, ..Config::default() };
    let bridge = lab.bridge_with(coalescing, move || cake(config));
    for family in [Family::V4, Family::V6] {
        let [client, server] = sockets(&lab, family);
        let size = i32::try_from(PAYLOAD).expect("small");
        setsockopt(&client, UdpGsoSegment, &size).expect("this kernel sends superpackets");
        for round in 0..ROUNDS {
            let mut sent: Vec<_> = (0..TRAIN).map(|at| payload(round, at, PAYLOAD)).collect();
            sent.last_mut().expect("many").truncate(300);
            client.send(&sent.concat()).expect("it leaves");
            for (at, datagram) in sent.iter().enumerate() {
                assert_eq!(&received(&server), datagram, "{family:?}, {at} of round {round}");
            }
        }
    }
    let [lan, wan] = bridge.snapshot().ports.map(|port| port.counters);
    bridge.stop().expect("a clean stop");
    assert_eq!(wan.write_errors.total(), 0, "{wan:?}");
    Some([lan.largest_read, wan.largest_write])
}

/// Client and server, connected to each other.
fn sockets(lab: &Lab, family: Family) -> [UdpSocket; 2] {
    let ends = [(&lab.client, family.client()), (&lab.server, family.server())];
    let sockets = ends.map(|(namespace, address)| {
        let socket = namespace.run(move || UdpSocket::bind((address, 0)).expect("our address"));
        socket.set_read_timeout(Some(PATIENCE)).expect("more than nothing");
        socket
    });
    let [client, server] = &sockets;
    client.connect(server.local_addr().expect("bound")).expect("there is a way");
    server.connect(client.local_addr().expect("bound")).expect("there is a way");
    sockets
}

fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let len = socket.recv(&mut buffer).expect("a datagram arrives");
    buffer.truncate(len);
    buffer
}

/// Different in every datagram, and within it.
fn payload(round: u8, at: u8, len: usize) -> Vec<u8> {
    let bytes = (0_u8..=250).cycle().map(|byte| byte.wrapping_mul(round | 1).wrapping_add(at));
    bytes.take(len).collect()
}
