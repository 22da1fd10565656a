//! What hosts on a link say to each other before and beside any transport: ARP, neighbour
//! discovery, echo.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with,
};
use ucake::qdisc::Config;
use ucake::time::Span;

use crate::lab::{Family, Lab, PATIENCE};
use crate::require_netns;

/// Tin of network control and whatever else is urgent, in diffserv3.
const VOICE: usize = 2;
const IDENTIFIER: [u8; 2] = [0x5a, 0xa5];

#[test]
fn arp_finds_the_neighbour_by_way_of_the_tin_of_network_control() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Config::default());
    lab.client.run(|| ping(Family::V4, 1, 56));
    let table = lab.client.run(|| std::fs::read_to_string("/proc/thread-self/net/arp"));
    let table = table.expect("/proc");
    let server = Family::V4.server().to_string();
    let entry = table.lines().find(|line| line.starts_with(&server)).expect("it was asked for");
    let fields: Vec<_> = entry.split_whitespace().collect();
    assert_eq!(fields[2], "0x2", "a complete entry: {entry}");
    assert_ne!(fields[3], "00:00:00:00:00:00", "{entry}");
    let [up, down] = bridge.ask(|bridge| [bridge.up().stats(), bridge.down().stats()]);
    bridge.stop().expect("a clean stop");
    for (direction, stats) in [("request", up), ("reply", down)] {
        assert!(stats.tins[VOICE].packets > 0, "the {direction}: {:?}", stats.tins);
    }
}

#[test]
fn echoes_come_back_in_one_piece_and_in_fragments() {
    if require_netns().is_none() {
        return;
    }
    for bandwidth in [None, Some(crate::mbit(20))] {
        let lab = Lab::new();
        // A machine that lets the bridge wait for a tenth of a second must not lose a fragment to the AQM.
        let (interval, target) = (Span::from_secs(100), Span::from_secs(10));
        let bridge = lab.bridge(Config { bandwidth, interval, target, ..Config::default() });
        for family in [Family::V4, Family::V6] {
            for (sequence, len) in [(1, 0), (2, 56), (3, 1452), (4, 1453), (5, 5000)] {
                lab.client.run(move || ping(family, sequence, len));
            }
        }
        let dropped =
            bridge.ask(|bridge| [bridge.up().stats().dropped, bridge.down().stats().dropped]);
        assert_eq!(dropped, [0, 0]);
        bridge.stop().expect("a clean stop");
    }
}

/// Sends an echo request with `len` bytes of payload to the server and waits for the answer.
fn ping(family: Family, sequence: u8, len: usize) {
    let (domain, protocol, request, reply) = match family {
        Family::V4 => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        Family::V6 => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let socket = socket_with(domain, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol));
    let socket = socket.expect("we are root here");
    let payload: Vec<u8> = (0_u8..=250).cycle().take(len).collect();
    let echo = |kind| [&[kind, 0, 0, 0][..], &IDENTIFIER, &[0, sequence], &payload].concat();
    let mut packet = echo(request);
    if family == Family::V4 {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum);
    }
    let to = SocketAddr::from((family.server(), 0));
    sendto(&socket, &packet, SendFlags::empty(), &to).expect("it leaves");
    let mut expected = echo(reply);
    loop {
        let mut found = receive(&socket, family, sequence, len);
        if found.len() == expected.len() {
            // The kernel verified it.
            found[2..4].copy_from_slice(&[0, 0]);
        }
        // Neighbour discovery is heard here too.
        if found.first() == Some(&reply) && found.get(4..8) == Some(&expected[4..8]) {
            expected[2..4].copy_from_slice(&[0, 0]);
            assert!(found == expected, "{family:?}, {len} bytes: another echo came back");
            return;
        }
    }
}

/// The next ICMP message.
fn receive(socket: &OwnedFd, family: Family, sequence: u8, len: usize) -> Vec<u8> {
    let patience = Timespec::try_from(PATIENCE).expect("short");
    let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&patience)).expect("poll");
    assert_eq!(ready, 1, "{family:?}: no answer to echo {sequence} of {len} bytes");
    let mut buffer = vec![0; 65_536];
    let (len, _) = recv(socket, &mut buffer, RecvFlags::empty()).expect("there is one");
    // With IPv4 its header comes along.
    let header = if family == Family::V4 { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
    buffer[header..len].to_vec()
}

/// RFC 1071.
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(!sum & 0xffff).expect("16 bits").to_be_bytes()
}
