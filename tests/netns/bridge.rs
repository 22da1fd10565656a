//! How a bridge between two taps ends, waits and goes on.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use ucake::io::netlink::{self, LinkOptions};
use ucake::io::port::Port;
use ucake::io::tap::{Tap, TapOptions, TapPort};
use ucake::qdisc::Config;

use crate::lab::{Family, Lab, PATIENCE};
use crate::require_netns;

#[test]
fn a_device_removed_under_way_stops_the_bridge_by_name() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Config::default());
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
    for (device, shaped) in [("lan0", None), ("wan0", Some(crate::mbit(50)))] {
        let lab = Lab::new();
        let bridge = lab.bridge(Config { bandwidth: shaped, ..Config::default() });
        let load = lab.load(2);
        load.wait_for(500_000);
        let namespace = if device == "lan0" { &lab.client } else { &lab.server };
        namespace.run(move || netlink::delete(device).expect("it can be removed"));
        let outcome = bridge.outcome().expect("the bridge notices");
        let error = outcome.expect_err("without it there is no bridge");
        assert_eq!(error.to_string(), format!("{device} is gone: the device was removed"));
    }
}

#[test]
fn frames_for_a_link_that_is_down_are_counted_and_the_bridge_goes_on() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Config::default());
    let set = |up| {
        let options = LinkOptions { up: Some(up), ..LinkOptions::default() };
        lab.server.run(move || netlink::configure("wan0", &options).expect("it obeys"));
    };
    set(false);
    let socket = lab.client.run(|| UdpSocket::bind((Family::V4.client(), 0)).expect("our address"));
    let end = Instant::now() + PATIENCE;
    while bridge.snapshot().ports[1].counters.write_errors.down == 0 {
        // Nobody answers the address resolution; asking is what we are after.
        drop(socket.send_to(b"anyone?", (Family::V4.server(), 9)));
        std::thread::sleep(Duration::from_millis(5));
        assert!(Instant::now() < end, "{:?}", bridge.snapshot());
    }
    set(true);
    lab.load(1).wait_for(100_000);
    bridge.stop().expect("a clean stop");
}

#[test]
fn an_idle_bridge_sleeps() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Config { bandwidth: Some(crate::mbit(10)), ..Config::default() });
    std::thread::sleep(Duration::from_millis(200));
    let before = bridge.snapshot().bridge.turns;
    std::thread::sleep(Duration::from_millis(400));
    let turns = bridge.snapshot().bridge.turns - before;
    bridge.stop().expect("a clean stop");
    assert!(turns < 30, "{turns} turns in less than half a second of nothing");
}

#[test]
fn four_tcp_senders_lose_nothing_before_a_shaper_of_20_megabits() {
    if require_netns().is_none() {
        return;
    }
    let lab = Lab::new();
    let bridge = lab.bridge(Config { bandwidth: Some(crate::mbit(20)), ..Config::default() });
    let load = lab.load(4);
    load.wait_for(4_000_000);
    let snapshot = bridge.snapshot();
    let dropped = bridge.ask(|bridge| bridge.up().stats().dropped);
    drop(load);
    bridge.stop().expect("a clean stop");
    assert!(dropped > 0, "the queue stands here");
    for port in snapshot.ports {
        assert_eq!(port.lost_before_reading, Some(0), "{}", port.name);
    }
}

#[test]
fn what_a_tap_loses_unread_is_known_wherever_the_device_is() {
    let Some(namespace) = require_netns() else { return };
    let tap = namespace.run(|| {
        let tap = Tap::open("ucake0", &TapOptions { queue_len: Some(5), mtu: None });
        let addresses = vec![(Family::V4.client(), 24)];
        let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
        netlink::configure("ucake0", &options).expect("the tap is set up");
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_broadcast(true).expect("an option");
        for _ in 0..50 {
            // The device takes what it has no room for too: it drops it.
            socket.send_to(&[0; 100], "10.77.0.255:9").expect("it is sent");
        }
        tap.expect("a tap opens")
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.expect("a runtime").block_on(async {
        // Asked from another namespace than the one the device is in.
        let port = TapPort::new(tap).expect("a port");
        let lost = port.lost_before_reading().expect("it is to be had");
        assert!((45..60).contains(&lost), "{lost}");
    });
}
