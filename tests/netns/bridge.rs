//! The bridge between two taps.

use std::time::Duration;

use ucake::io::netlink;

use crate::fifo::Fifo;
use crate::lab::Lab;
use crate::require_netns;

#[test]
fn tcp_crosses_in_superpackets() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Fifo::default);
    let received = lab.upload(1, Duration::from_millis(500));
    let [lan, wan] = bridge.snapshot().ports;
    bridge.stop().expect("a clean stop");
    assert!(received > 1_000_000, "{received} bytes in half a second");
    let data = lan.counters;
    let mean = data.bytes_in / data.frames_in;
    assert!(mean > 10_000, "reads of {mean} bytes are no superpackets: {data:?}");
    assert!(wan.counters.bytes_out >= received, "{:?}", wan.counters);
    assert_eq!(wan.counters.write_errors.total(), 0, "{:?}", wan.counters);
    assert!(data.largest_read > 40_000, "{data:?}");
}

#[test]
fn superpackets_split_by_us_are_frames_the_kernel_takes() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Fifo::splitting);
    let bytes: Vec<u8> = (0..8_000_000_u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
    let arrived = lab.deliver(bytes.clone());
    let [lan, wan] = bridge.snapshot().ports;
    bridge.stop().expect("a clean stop");
    assert!(arrived == bytes, "{} of {} bytes, or others", arrived.len(), bytes.len());
    assert!(lan.counters.largest_read > 10_000, "{:?}", lan.counters);
    assert!(wan.counters.frames_out > 8_000_000 / 1460, "{:?}", wan.counters);
    assert_eq!(wan.counters.write_errors.total(), 0, "{:?}", wan.counters);
}

#[test]
fn a_device_removed_under_way_stops_the_bridge_by_name() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Fifo::default);
    // Or the kernel's own IPv6 frames would wake the bridge and hide that the removal did not.
    for (namespace, port) in [(&lab.client, "lan0"), (&lab.server, "wan0")] {
        let switch = format!("/proc/sys/net/ipv6/conf/{port}/disable_ipv6");
        namespace.run(|| std::fs::write(switch, "1").expect("a sysctl of the namespace"));
    }
    std::thread::sleep(Duration::from_millis(50));
    bridge.snapshot();
    lab.server.run(|| netlink::delete("wan0").expect("it can be removed"));
    let outcome = bridge.outcome().expect("the bridge notices, although nothing is sent");
    let error = outcome.expect_err("without wan0 there is no bridge");
    assert_eq!(error.to_string(), "wan0 is gone: the device was removed");
}

#[test]
fn a_device_removed_under_load_stops_the_bridge_by_name() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Fifo::default);
    let (ready, listening) = std::sync::mpsc::channel();
    let flood = lab.client.spawn("flood", move || {
        let socket = std::net::UdpSocket::bind((crate::lab::CLIENT, 0)).expect("our address");
        for round in 0..200_000_u32 {
            // Refused once the device is gone: that is the end of the flood.
            if socket.send_to(&[0; 1000], (crate::lab::SERVER, 9)).is_err() {
                return;
            }
            if round == 1000 {
                ready.send(()).expect("somebody waits");
            }
        }
    });
    listening.recv().expect("the flood starts");
    lab.client.run(|| netlink::delete("lan0").expect("it can be removed"));
    let outcome = bridge.outcome().expect("the bridge notices");
    let error = outcome.expect_err("without lan0 there is no bridge");
    assert_eq!(error.to_string(), "lan0 is gone: the device was removed");
    flood.expect("a thread").join().expect("the flood ends");
}

#[test]
fn frames_for_a_link_that_is_down_are_counted_and_the_bridge_goes_on() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Fifo::default);
    let down = netlink::LinkOptions { up: Some(false), ..Default::default() };
    lab.server.run(move || netlink::configure("wan0", &down).expect("it is taken down"));
    lab.client.run(|| {
        let socket = std::net::UdpSocket::bind((crate::lab::CLIENT, 0)).expect("our address");
        // Nobody answers the address resolution; asking is what we are after.
        drop(socket.send_to(b"anyone?", (crate::lab::SERVER, 9)));
        std::thread::sleep(Duration::from_millis(50));
    });
    let [_, wan] = bridge.snapshot().ports;
    assert!(wan.counters.write_errors.down >= 1, "{:?}", wan.counters);
    bridge.stop().expect("a clean stop");
}

#[test]
fn an_idle_bridge_sleeps() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Fifo::default);
    std::thread::sleep(Duration::from_millis(300));
    let before = bridge.snapshot().bridge.turns;
    std::thread::sleep(Duration::from_millis(500));
    let turns = bridge.snapshot().bridge.turns - before;
    bridge.stop().expect("a clean stop");
    assert!(turns < 30, "{turns} turns in half a second of nothing");
}
