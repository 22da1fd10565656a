//! Real taps, real kernel TCP, in network namespaces of our own: nothing outside them is touched.
//!
//! Where namespaces or taps are not to be had the tests say so and pass; with
//! `UCAKE_REQUIRE_NETNS=1` they fail instead.

mod bridge;
mod congestion;
mod datagrams;
mod lab;
mod neighbours;
mod packet;
mod stream;
mod taps;
mod wires;

use std::net::IpAddr;
use std::os::fd::AsFd;

use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions, Route};
use ucake::io::tap::{OpenError, Tap, TapOptions};
use ucake::units::Rate;

/// A namespace, or `None` after saying why there is none.
fn require_netns() -> Option<Namespace> {
    let reason = match Namespace::new("probe") {
        Ok(namespace) => {
            match namespace.run(|| Tap::open("probe0", &TapOptions::default()).map(drop)) {
                Ok(()) => return Some(namespace),
                Err(error) => error.to_string(),
            }
        }
        Err(error) => error.to_string(),
    };
    assert!(
        std::env::var_os("UCAKE_REQUIRE_NETNS").is_none_or(|value| value != "1"),
        "UCAKE_REQUIRE_NETNS=1, but: {reason}"
    );
    eprintln!("SKIPPED, nothing was tested: {reason}");
    None
}

const fn mbit(megabits: u64) -> Rate {
    Rate::from_bits(megabits * 1_000_000)
}

#[test]
fn a_tap_is_created_with_what_was_asked_of_it_and_goes_with_its_handle() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let options = TapOptions { mtu: Some(1400), queue_len: Some(77) };
        let tap = Tap::open("ucake0", &options).expect("a tap opens");
        assert_eq!(tap.name(), "ucake0");
        assert_ne!(tap.offloads() & 0x07, 0, "no superpackets: offloads {:#x}", tap.offloads());
        let link = netlink::link("ucake0").expect("it is there");
        assert_eq!((link.mtu, link.queue_len), (1400, 77));
        drop(tap);
        let error = netlink::link("ucake0").expect_err("it went with its handle");
        assert_eq!(error.to_string(), "there is no device ucake0");
    });
}

#[test]
fn a_percent_d_is_replaced_by_a_free_number() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let open = || Tap::open("lan%d", &TapOptions::default()).expect("a tap opens");
        let taps = [open(), open()];
        assert_eq!(taps.each_ref().map(Tap::name), ["lan0", "lan1"]);
    });
}

#[test]
fn names_that_cannot_be_are_refused_before_the_kernel_sees_them() {
    for name in ["", "sixteen-bytes-xx", "a/b", "a b", "a:b", ".", ".."] {
        let error = Tap::open(name, &TapOptions::default()).expect_err(name);
        assert!(matches!(error, OpenError::Name { .. }), "{name}: {error}");
        assert!(error.to_string().starts_with(&format!("\"{name}\" cannot name a tap")), "{error}");
    }
}

#[test]
fn a_tap_that_is_open_already_is_busy() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let _tap = Tap::open("ucake0", &TapOptions::default()).expect("a tap opens");
        let error = Tap::open("ucake0", &TapOptions::default()).expect_err("it is held");
        assert!(matches!(error, OpenError::Busy { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "cannot open ucake0: another program holds it; stop that one, or choose another name"
        );
    });
}

#[test]
fn a_device_of_another_kind_is_not_a_tap() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let error = Tap::open("lo", &TapOptions::default()).expect_err("lo is loopback");
        assert!(matches!(error, OpenError::NotATap { .. }), "{error:?}");
        assert!(error.to_string().starts_with("cannot open lo: there is a device of that name"));
    });
}

#[test]
fn a_persistent_tap_is_attached_to_and_left_behind() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let open = || Tap::open("keep0", &TapOptions::default()).expect("a tap opens");
        open().keep(true).expect("it stays");
        let index = netlink::link("keep0").expect("it is still there").index;
        let tap = open();
        assert_eq!(netlink::link("keep0").expect("the same").index, index);
        assert_ne!(tap.offloads(), 0);
        tap.keep(false).expect("it goes");
        drop(tap);
        assert!(netlink::link("keep0").is_err(), "it went");
    });
}

#[test]
fn refusals_of_the_kernel_name_the_device_and_the_wish() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let none = netlink::configure("ucake9", &LinkOptions::default()).expect_err("no device");
        assert_eq!(none.to_string(), "there is no device ucake9");
        let options = TapOptions { mtu: Some(70_000), queue_len: None };
        let error = Tap::open("ucake0", &options).expect_err("too large");
        let text = error.to_string();
        assert!(text.starts_with("cannot set up ucake0: cannot set the mtu of ucake0: "), "{text}");
    });
}

#[test]
fn a_device_takes_addresses_and_routes_of_both_families() {
    let Some(namespace) = require_netns() else { return };
    namespace.run(|| {
        let _tap = Tap::open("ucake0", &TapOptions::default()).expect("a tap opens");
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let route = |to, gateway| Route { destination: (ip(to), 0), gateway };
        let mut options = LinkOptions {
            up: Some(true),
            addresses: vec![(ip("10.9.0.1"), 24), (ip("fd00:9::1"), 64)],
            routes: vec![route("0.0.0.0", Some(ip("10.9.0.2"))), route("::", None)],
            ..LinkOptions::default()
        };
        netlink::configure("ucake0", &options).expect("all of it is taken");
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.connect("192.0.2.1:9").expect("there is a way");
        assert_eq!(socket.local_addr().expect("an address").ip(), ip("10.9.0.1"));

        options =
            LinkOptions { routes: vec![route("::", Some(ip("10.9.0.2")))], ..Default::default() };
        let error = netlink::configure("ucake0", &options).expect_err("families differ");
        assert!(error.to_string().starts_with("cannot add a route by ucake0: "), "{error}");
    });
}

#[test]
fn a_namespace_goes_with_its_handle_and_its_panics_come_out() {
    let Some(namespace) = require_netns() else { return };
    let inode = |file: &std::fs::File| rustix::fs::fstat(file.as_fd()).expect("fstat").st_ino;
    let ours = std::fs::File::open("/proc/thread-self/ns/net").expect("/proc");
    assert_ne!(inode(&ours), inode(&namespace.file().expect("/proc")));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        namespace.run(|| panic!("inside"));
    }));
    assert!(panic.is_err(), "the panic came out");
    assert_eq!(namespace.run(|| 7), 7, "and the namespace lives");
}
