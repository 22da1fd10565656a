//! Bridges between devices as they stand, by packet sockets.

use std::iter::from_fn;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant as Wall};

use ucake::io::batch::{Batch, Coalescing};
use ucake::io::netlink::{self, LinkOptions, VlanTag};
use ucake::io::offload::{self, Offload};
use ucake::io::packet_socket::{OpenError, PacketSocket};
use ucake::io::port::{Port, Sent};
use ucake::io::tap::{Tap, TapOptions};
use ucake::packet::VnetHeader;
use ucake::packet::coalesce::Push;
use ucake::qdisc::{Config, SplitGso};
use ucake::time::Instant;

use crate::lab::{Family, PATIENCE};
use crate::neighbours::checksum;
use crate::stream::{carry, nothing_was_lost, superpackets_were_read, superpackets_were_written};
use crate::wires::{Probe, Wires, set_up};
use crate::{mbit, require_netns};

const JOINED: Coalescing = Coalescing::On(Push::Keep);
const NO_TAGS: &[VlanTag] = &[];
/// Longer than anything takes that is on its way already.
const SOON: Duration = Duration::from_millis(200);
const MSS: usize = 1448;
/// Ethernet, IPv4 and TCP.
const HEADERS: usize = 14 + 20 + 20;

#[test]
fn fifty_megabytes_split_and_joined_again_cross_over_ipv4() {
    fifty_megabytes_cross_untagged(Family::V4, SplitGso::Split);
}

#[test]
fn fifty_megabytes_split_and_joined_again_cross_over_ipv6() {
    fifty_megabytes_cross_untagged(Family::V6, SplitGso::Split);
}

#[test]
fn fifty_megabytes_whole_cross_over_ipv4() {
    fifty_megabytes_cross_untagged(Family::V4, SplitGso::Whole);
}

#[test]
fn fifty_megabytes_whole_cross_over_ipv6() {
    fifty_megabytes_cross_untagged(Family::V6, SplitGso::Whole);
}

#[test]
fn fifty_megabytes_cross_in_a_vlan_of_the_kernel() {
    let within = [&[VlanTag::Customer(7)][..], &[VlanTag::Service(100), VlanTag::Customer(7)]];
    for (tags, family) in within.into_iter().zip([Family::V4, Family::V6]) {
        if require_netns().is_none() {
            return;
        }
        let Some(wires) = Wires::new(tags) else { return };
        fifty_megabytes_cross(&wires, family, SplitGso::Split);
    }
}

#[test]
fn fifty_megabytes_with_a_tag_cross() {
    if require_netns().is_none() {
        return;
    }
    let wires = Wires::with_hops(&[0x81, 0x00, 0x20, 0x07]);
    fifty_megabytes_cross(&wires, Family::V4, SplitGso::Split);
}

#[test]
fn fifty_megabytes_with_two_tags_cross() {
    if require_netns().is_none() {
        return;
    }
    let wires = Wires::with_hops(&[0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x20, 0x07]);
    fifty_megabytes_cross(&wires, Family::V6, SplitGso::Whole);
}

fn fifty_megabytes_cross_untagged(family: Family, split_gso: SplitGso) {
    if require_netns().is_some() {
        let wires = Wires::new(NO_TAGS).expect("no VLANs are needed");
        fifty_megabytes_cross(&wires, family, split_gso);
    }
}

fn fifty_megabytes_cross(wires: &Wires, family: Family, split_gso: SplitGso) {
    let bridge = wires.bridge(JOINED, Config { split_gso, ..Config::default() });
    carry(&wires.lab, SocketAddr::from((family.server(), 5001)));
    let ports = bridge.snapshot().ports;
    bridge.stop().expect("a clean stop");
    nothing_was_lost(&ports);
    let [lan, wan] = &ports;
    superpackets_were_read(lan);
    superpackets_were_written(wan);
    assert_eq!((lan.lost_before_reading, wan.lost_before_reading), (Some(0), Some(0)));
}

#[test]
fn a_frame_comes_with_the_tags_that_it_has_on_the_wire() {
    if require_netns().is_none() {
        return;
    }
    for (tags, bytes) in [
        (&[VlanTag::Customer(7)][..], &[0x81, 0, 0, 7][..]),
        (&[VlanTag::Service(100), VlanTag::Customer(7)], &[0x88, 0xa8, 0, 100, 0x81, 0, 0, 7]),
    ] {
        let Some(wires) = Wires::new(tags) else { return };
        let mut lan = Probe::new(&wires.middle, "lan0");
        let socket = wires.lab.client.run(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
        socket.set_broadcast(true).expect("an option");
        socket.send_to(b"to all of you", "10.77.0.255:9").expect("it leaves");
        let (vnet, frame) = received(&mut lan, |frame| frame.ends_with(b"to all of you"));
        let at = 12 + bytes.len();
        assert_eq!(frame[12..at], *bytes, "{frame:x?}");
        assert_eq!(frame[at..at + 2], [8, 0], "{frame:x?}");
        if vnet.needs_csum() {
            assert_eq!(
                usize::from(vnet.csum_start),
                at + 2 + 20,
                "the UDP header, behind the tags"
            );
        }
    }
}

#[test]
fn a_frame_that_is_sent_with_tags_arrives_with_them() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    let tags = [0x88, 0xa8, 0, 100, 0x81, 0, 0x20, 7];
    for tags in [&tags[4..], &tags] {
        let frames = [tagged(tags, &plain(100)), tagged(tags, &train(5)), tagged(&[], &plain(60))];
        assert_eq!(left.send(&frames), Sent { runs: 3, ..Sent::default() });
        for (vnet, frame) in &frames {
            let (found_vnet, found) = right.receive();
            assert_eq!(found, *frame);
            assert_eq!(found_vnet.csum_start, vnet.csum_start);
            assert_eq!((found_vnet.gso_type, found_vnet.gso_size), (vnet.gso_type, vnet.gso_size));
        }
    }
}

#[test]
fn checksums_are_finished_on_the_wire_where_the_device_does_not() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    namespace.run(|| offload::set("left", Offload::TransmitChecksum, false)).expect("veth can");
    left.send(&[train(20), train(1)]);
    for number in 0..21 {
        let (vnet, frame) = right.receive();
        assert!(!vnet.needs_csum() && vnet.gso_type == 0, "{number}: {vnet:?}");
        assert_eq!(frame.len(), HEADERS + MSS);
        checksums_are_right(&frame);
    }
}

#[test]
fn what_was_unfinished_arrives_unfinished_where_nothing_has_to_be_done() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    left.send(&[train(20)]);
    let (vnet, frame) = right.receive();
    assert_eq!((vnet, frame), train(20));
}

#[test]
fn what_this_machine_sends_is_not_read_back() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    let mut other = Probe::new(&namespace, "left");
    left.send(&[plain(60), train(3)]);
    other.send(&[plain(61)]);
    for _ in 0..3 {
        right.receive();
    }
    assert!(left.receive_within(SOON).is_none() && other.receive_within(SOON).is_none());
    assert_eq!(left.port.counters().reads, 0);
}

#[test]
fn frames_above_the_mtu_are_counted_and_superpackets_of_shorter_segments_pass() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    let mtu = |mtu| {
        let options = LinkOptions { mtu: Some(mtu), ..LinkOptions::default() };
        namespace.run(move || netlink::configure("left", &options).expect("veth can"));
    };
    let (tag, tags) = ([0x81, 0, 0, 7], [0x88, 0xa8, 0, 7, 0x81, 0, 0, 7]);
    let too_long = |left: &Probe| left.port.counters().write_errors.too_long;
    left.send(&[plain(1514), plain(1515), tagged(&tag, &plain(1514)), train(40)]);
    let lens = [(); 3].map(|()| right.receive().1.len());
    assert_eq!(lens, [1514, 1518, HEADERS + 40 * MSS]);
    assert_eq!(too_long(&left), 1);
    // The kernel has room for one tag on top, and asks that of single frames only.
    left.send(&[tagged(&tags, &plain(1500)), tagged(&tags, &train(2)), tagged(&tag, &train(2))]);
    let (one, segment) = (HEADERS + 4 + 2 * MSS, HEADERS + 8 + MSS);
    assert!(segment <= 1514, "its segments are no longer than it");
    let lens = [(); 3].map(|()| right.receive().1.len());
    assert_eq!(lens, [1508, one + 4, one]);
    left.send(&[tagged(&tags, &plain(1514))]);
    assert!(right.receive_within(SOON).is_none());
    assert_eq!(too_long(&left), 2);

    mtu(1400);
    // What was read at opening lets this through, and the kernel does not.
    left.send(&[plain(1500), plain(1414)]);
    assert_eq!((right.receive().1.len(), too_long(&left)), (1414, 3));
    // No such question is asked of a superpacket by the kernel.
    left.send(&[train(40)]);
    assert!(right.receive_within(SOON).is_none());
    assert_eq!(too_long(&left), 43);

    mtu(1500);
    left.send(&[train(40)]);
    assert_eq!(right.receive().1.len(), HEADERS + 40 * MSS);
    assert_eq!(left.port.counters().write_errors.total(), 43);
}

#[test]
fn what_finds_no_room_below_is_counted() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    namespace.run(|| netlink::slow_down("left", mbit(1), 20_000)).expect("this kernel has tbf");
    let frames = vec![plain(1000); 200];
    // Seventy thousand bytes pass at once, then twenty wait, and the kernel has no room for the rest.
    let Sent { runs, congested, .. } = left.send(&frames);
    assert_eq!((runs, congested), (200, true));
    let counters = left.port.counters();
    let lost = counters.write_errors.no_buffers;
    assert!((80..=130).contains(&lost), "{counters:?}");
    assert_eq!(counters.frames_out + lost, 200);
    assert_eq!(counters.write_errors.total(), lost);
    right.receive();
}

#[test]
fn what_finds_no_room_in_the_socket_is_not_taken() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, _right] = Probe::pair(&namespace);
    namespace
        .run(|| netlink::slow_down("left", mbit(1), 100_000_000))
        .expect("this kernel has tbf");
    let mut batch = Batch::new(Coalescing::Off);
    for number in 0..300 {
        batch.push(left.frame(&train(40)), (0, number));
    }
    let Sent { runs, congested, .. } = left.offer(&mut batch).expect("the port works");
    assert!(congested && (10..40).contains(&runs), "{runs} of 300 were taken");
    assert_eq!(left.port.counters().write_errors.total(), 0);
    batch.forget(runs);
    assert_eq!(left.offer(&mut batch).expect("the port works").runs, 0);
    assert_eq!(batch.len(), 300 - runs);
}

#[test]
fn what_is_in_flight_falls_as_the_device_sends() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, _right] = Probe::pair(&namespace);
    namespace
        .run(|| netlink::slow_down("left", mbit(20), 10_000_000))
        .expect("this kernel has tbf");
    // Uses up what passes at once.
    left.send(&[train(40), plain(1514)]);
    let frames = [vec![plain(1514); 40], vec![plain(200); 40], vec![train(20); 3]].concat();
    let sent: usize = frames.iter().map(|(_, frame)| frame.len()).sum();
    left.send(&frames);
    let mut before = left.port.in_flight().expect("it is known");
    let sent = u64::try_from(sent).expect("few");
    assert!((sent * 8 / 10..=sent + 60_000).contains(&before), "{before} of {sent} bytes");
    let (end, mut steps) = (Wall::now() + PATIENCE, 0);
    while before > 0 {
        let now = left.port.in_flight().expect("it is known");
        assert!(now <= before, "{now} after {before}");
        steps += u32::from(now < before);
        before = now;
        assert!(Wall::now() < end, "{now} bytes are never done");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(steps >= 10, "it fell in {steps} steps");
}

#[test]
fn a_device_that_was_down_carries_on_once_it_is_up() {
    if require_netns().is_none() {
        return;
    }
    let wires = Wires::new(NO_TAGS).expect("no VLANs are needed");
    let bridge = wires.bridge(JOINED, Config::default());
    wires.lab.load(1).wait_for(100_000);
    for device in ["lan0", "wan0"] {
        wires.middle.run(move || set_up(device, false));
        let end = Wall::now() + PATIENCE;
        while bridge.snapshot().ports.iter().all(|port| port.counters.times_down == 0) {
            assert!(Wall::now() < end, "{:?}", bridge.snapshot());
            std::thread::sleep(Duration::from_millis(5));
        }
        let before = bridge.snapshot().bridge.turns;
        std::thread::sleep(SOON);
        let turns = bridge.snapshot().bridge.turns - before;
        assert!(turns < 60, "{turns} turns while {device} is down");
        wires.middle.run(move || set_up(device, true));
        wires.lab.load(1).wait_for(100_000);
    }
    bridge.stop().expect("a clean stop");
}

#[test]
fn frames_for_a_device_that_is_down_are_counted() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    namespace.run(|| set_up("left", false));
    // It has been told of, or the sending is what is told.
    assert!(left.receive_within(SOON).is_none());
    left.send(&[plain(60), train(3), plain(61)]);
    let counters = left.port.counters();
    assert_eq!((counters.write_errors.down, counters.times_down), (5, 1), "{counters:?}");
    namespace.run(|| set_up("left", true));
    left.send(&[plain(62)]);
    while right.receive().1.len() != 62 {}
    assert!(left.port.next_due().is_some(), "it is looked at again");
    left.port.advance(Instant::from_nanos(1)).expect("it is up");
    assert_eq!(left.port.next_due(), None);
}

#[test]
fn a_device_that_is_removed_stops_the_bridge_by_name() {
    if require_netns().is_none() {
        return;
    }
    for loaded in [false, true] {
        let wires = Wires::new(NO_TAGS).expect("no VLANs are needed");
        let bridge = wires.bridge(JOINED, Config::default());
        let load = loaded.then(|| wires.lab.load(2));
        if let Some(load) = &load {
            load.wait_for(500_000);
        }
        wires.middle.run(|| netlink::delete("wan0").expect("it can be removed"));
        let outcome = bridge.outcome().expect("the bridge notices");
        let error = outcome.expect_err("without wan0 there is no bridge");
        assert_eq!(error.to_string(), "wan0 is gone: the device was removed");
    }
}

#[test]
fn what_leaves_joined_arrives_as_what_leaves_singly() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    // Whoever receives a superpacket takes it apart; here it is the kernel, before it leaves.
    namespace.run(|| offload::set("left", Offload::TransmitChecksum, false)).expect("veth can");
    let mut frames = vec![train(7)];
    for segments in [1, 1, 3, 12, 1] {
        let sequence: usize = frames.iter().map(|(_, frame)| frame.len() - HEADERS).sum();
        let packets: usize = sequence / MSS;
        frames.push(train_at(segments, sequence, packets));
    }
    let segments = 25;
    let mut arrived = |coalescing| {
        let before = left.port.counters().frames_out;
        left.send_segments(coalescing, &frames);
        let written = left.port.counters().frames_out - before;
        let arrived: Vec<_> = from_fn(|| right.receive_within(SOON)).collect();
        assert_eq!(arrived.len(), segments, "{:?}", left.port.counters());
        (written, arrived)
    };
    let (single, singly) = arrived(Coalescing::Off);
    let (joined, jointly) = arrived(JOINED);
    assert_eq!((single, joined), (25, 1));
    assert_eq!(singly, jointly);
    singly.iter().for_each(|(_, frame)| checksums_are_right(frame));
}

#[test]
fn a_call_takes_as_many_runs_as_there_are() {
    let Some(namespace) = require_netns() else { return };
    let [mut left, mut right] = Probe::pair(&namespace);
    let frames: Vec<_> = (0..300).map(|number| plain(60 + number)).collect();
    assert_eq!(left.send(&frames), Sent { runs: 300, ..Sent::default() });
    for (_, frame) in &frames {
        assert_eq!(right.receive().1, *frame);
    }
}

#[test]
fn a_device_that_cannot_be_is_refused_with_the_reason() {
    let Some(namespace) = require_netns() else { return };
    let refusal = |name: &'static str| {
        namespace.run(move || PacketSocket::open(name).expect_err("it is refused"))
    };
    assert_eq!(
        refusal("eth9").to_string(),
        "cannot open eth9: there is no network device of that name here"
    );
    let error = refusal("lo");
    assert!(matches!(error, OpenError::Loopback { .. }), "{error}");
    assert!(error.to_string().starts_with("cannot open lo: it is loopback"), "{error}");
}

#[test]
fn a_tap_is_an_ethernet_device_too() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let _tap = Tap::open("tap0", &TapOptions::default()).expect("a tap opens");
        assert_eq!(PacketSocket::open("tap0").expect("it opens").name(), "tap0");
    });
}

/// The next frame of which `wanted` is true.
fn received(probe: &mut Probe, wanted: impl Fn(&[u8]) -> bool) -> (VnetHeader, Vec<u8>) {
    loop {
        let (vnet, frame) = probe.receive();
        if wanted(&frame) {
            return (vnet, frame);
        }
    }
}

/// A frame of no protocol anyone knows.
fn plain(len: usize) -> (VnetHeader, Vec<u8>) {
    let mut frame = vec![0xa5; len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5]);
    (VnetHeader::PLAIN, frame)
}

/// The same frame with tags.
fn tagged(tags: &[u8], (vnet, frame): &(VnetHeader, Vec<u8>)) -> (VnetHeader, Vec<u8>) {
    let mut vnet = *vnet;
    let len = u16::try_from(tags.len()).expect("few");
    if vnet.needs_csum() {
        vnet.csum_start += len;
        vnet.hdr_len += len;
    }
    (vnet, [&frame[..12], tags, &frame[12..]].concat())
}

/// A TCP superpacket over IPv4, its checksum unfinished.
fn train(segments: usize) -> (VnetHeader, Vec<u8>) {
    train_at(segments, 0, 0)
}

/// The same, behind so many bytes and packets of its connection.
fn train_at(segments: usize, sequence: usize, packets: usize) -> (VnetHeader, Vec<u8>) {
    let small = |number: usize| u16::try_from(number).expect("small").to_be_bytes();
    let payload = (0_u8..=250).cycle().skip(sequence % 251).take(segments * MSS);
    let tcp_len = 20 + segments * MSS;
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0];
    frame.extend(small(20 + tcp_len));
    frame.extend(small(0x1000 + packets));
    frame.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum);
    frame.extend([0x13, 0x89, 0x13, 0x88]);
    frame.extend(u32::try_from(sequence).expect("small").to_be_bytes());
    frame.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0]);
    // The sum of the pseudo header, not its complement.
    let pseudo = [&frame[26..34], &[0, 6], &small(tcp_len)].concat();
    frame.extend(checksum(&pseudo).map(|byte| !byte));
    frame.extend([0, 0]);
    frame.extend(payload);
    let gso = segments > 1;
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: if gso { VnetHeader::GSO_TCPV4 } else { 0 },
        hdr_len: if gso { 54 } else { 0 },
        gso_size: if gso { 1448 } else { 0 },
        csum_start: 34,
        csum_offset: 16,
    };
    (vnet, frame)
}

/// Of a TCP segment over IPv4.
fn checksums_are_right(frame: &[u8]) {
    assert_eq!(checksum(&frame[14..34]), [0, 0], "of the IPv4 header");
    let len = u16::try_from(frame.len() - 34).expect("small").to_be_bytes();
    let covered = [&frame[26..34], &[0, 6], &len, &frame[34..]].concat();
    assert_eq!(checksum(&covered), [0, 0], "of TCP");
}
