//! What leaves through a tap, captured on its other side: joined or not, with a vnet header or without, the
//! same frames arrive.

use std::iter::from_fn;
use std::time::Duration;

use ucake::io::batch::{Batch, Coalescing};
use ucake::io::driver::Bridge;
use ucake::io::namespace::Namespace;
use ucake::io::netlink;
use ucake::io::offload::{self, Offload};
use ucake::io::pair::{PairPort, pair};
use ucake::io::plain_tap::{AnyTap, PlainTap};
use ucake::io::port::Port;
use ucake::io::tap::{Tap, TapOptions};
use ucake::packet::VnetHeader;
use ucake::qdisc::{Config, SplitGso, Stats};
use ucake::time::{Instant, Span};

use crate::lab::{PATIENCE, cake};
use crate::wires::{Probe, up};
use crate::{mbit, require_netns};

/// Payload of a segment.
const MSS: usize = 1000;
/// Whose frames are counted.
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 8];
/// How long nothing has to arrive for there to be nothing more.
const SOON: Duration = Duration::from_millis(200);
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

#[test]
fn what_a_tap_is_given_joined_arrives_as_what_it_is_given_singly() {
    if require_netns().is_none() {
        return;
    }
    let [joined, single] =
        [Coalescing::default(), Coalescing::Off].map(|coalescing| Run::through(vnet, coalescing));
    assert!(joined.written * 2 < single.written, "{} and {}", joined.written, single.written);
    assert_eq!(joined.stats, single.stats, "the decisions are the same");
    assert_eq!(joined.arrived.len(), single.arrived.len());
    for (number, (joined, single)) in joined.arrived.iter().zip(&single.arrived).enumerate() {
        assert_eq!(joined, single, "frame {number}");
    }
}

#[test]
fn what_is_joined_is_taken_apart_by_the_kernel_into_what_is_single() {
    if require_netns().is_none() {
        return;
    }
    let [joined, single] = [Coalescing::default(), Coalescing::Off]
        .map(|coalescing| Run::through(through_the_kernel, coalescing));
    assert!(joined.written * 2 < single.written, "{} and {}", joined.written, single.written);
    assert_eq!(joined.arrived.len(), single.arrived.len());
    for (number, (joined, single)) in joined.arrived.iter().zip(&single.arrived).enumerate() {
        assert_eq!(joined, single, "frame {number}");
    }
}

#[test]
fn a_tap_without_vnet_header_gives_the_same_frames_and_decisions() {
    if require_netns().is_none() {
        return;
    }
    let joined = Run::through(vnet, Coalescing::default());
    let plainly = Run::through(plain, Coalescing::default());
    assert_eq!(joined.stats, plainly.stats, "the decisions are the same");
    assert_eq!(joined.arrived, plainly.arrived);
}

#[test]
fn frames_are_read_of_a_tap_without_vnet_header() {
    let Some(namespace) = require_netns() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.expect("a runtime");
    let guard = runtime.enter();
    let (tap, mut probe) = opened(&namespace, plain);
    drop(guard);
    let (mut client, lan) = pair("client", "lan");
    let discipline = || cake(Config::default());
    let mut bridge = Bridge::new(Box::new(lan), tap, discipline(), discipline());
    let frames: Vec<_> = [60, 61, 600, 1514].map(opaque).to_vec();
    probe.send(&frames);
    runtime.block_on(async {
        for turn in 0..100 {
            bridge.turn(Instant::from_nanos(turn)).expect("a turn");
            std::thread::sleep(Duration::from_millis(1));
            // Descriptors become readable while the runtime has its turn.
            tokio::task::yield_now().await;
        }
    });
    let arrived: Vec<_> = from_fn(|| client.eject()).collect();
    assert!(arrived == frames, "{} of {} frames", arrived.len(), frames.len());
}

/// What came of sending everything through a bridge.
struct Run {
    /// Frames on the wire, each with its checksum finished.
    arrived: Vec<Vec<u8>>,
    stats: Stats,
    /// Writes.
    written: u64,
}

/// Opens a tap; and says which device to listen on for what it is given.
type Opener = fn() -> (AnyTap, &'static str);

fn vnet() -> (AnyTap, &'static str) {
    (AnyTap::Vnet(Tap::open("tap0", &TapOptions::default()).expect("a tap opens")), "tap0")
}

fn plain() -> (AnyTap, &'static str) {
    (AnyTap::Plain(PlainTap::open("tap0", &TapOptions::default()).expect("a tap opens")), "tap0")
}

/// With a bridge of the kernel behind it that leads to a device without any offload: the kernel itself
/// splits superpackets and finishes checksums.
fn through_the_kernel() -> (AnyTap, &'static str) {
    let (tap, device) = vnet();
    netlink::add_veth("near", "far").expect("this kernel has veth");
    offload::set("near", Offload::TransmitChecksum, false).expect("veth can");
    netlink::add_bridge("bridge0", &[device, "near"]).expect("this kernel has bridges");
    ["near", "far"].into_iter().for_each(up);
    (tap, "far")
}

/// A tap in a silent namespace, and somebody who listens on its other side.
fn opened(namespace: &Namespace, open: Opener) -> (Box<dyn Port>, Probe) {
    namespace.run(|| {
        let switch = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
        std::fs::write(switch, "1").expect("a sysctl of the namespace");
    });
    let (tap, listened_to) = namespace.run(move || {
        let opened = open();
        up("tap0");
        opened
    });
    let (mut tap, mut probe) =
        (tap.into_port().expect("at work"), Probe::new(namespace, listened_to));
    // Bridges and wires pass nothing until they have seen to each other.
    let end = std::time::Instant::now() + PATIENCE;
    while probe.receive_within(Duration::from_millis(20)).is_none() {
        assert!(std::time::Instant::now() < end, "nothing passes");
        let mut hello = Batch::new(Coalescing::Off);
        hello.push(probe.frame(&opaque(60)), (0, 0));
        tap.send(hello.offer(1)).expect("the port works");
    }
    while probe.receive_within(Duration::from_millis(50)).is_some() {}
    (tap, probe)
}

fn on_a_runtime<T>(work: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.expect("a runtime");
    let _guard = runtime.enter();
    work()
}

impl Run {
    /// Sends everything through a CAKE of 200 Mbit/s, on a clock of its own.
    fn through(open: Opener, coalescing: Coalescing) -> Self {
        let namespace = Namespace::new("far").expect("namespaces are there");
        on_a_runtime(|| {
            let (tap, mut probe) = opened(&namespace, open);
            let (mut client, lan) = pair("client", "lan");
            let split_gso = SplitGso::Auto;
            let config = Config { bandwidth: Some(mbit(200)), split_gso, ..Config::default() };
            let [up, down] = [(); 2].map(|()| cake(config));
            let mut bridge = Bridge::new(Box::new(lan), tap, up, down).with_coalescing(coalescing);
            let written = bridge.snapshot().ports[1].counters.frames_out;
            let mut arrived = Vec::new();
            send_everything(&mut client);
            for turn in 0..400 {
                let now = Instant::ZERO + Span::from_micros(1_000 + 250 * turn);
                bridge.turn(now).expect("a turn");
                arrived.extend(from_fn(|| probe.receive_within(Duration::ZERO)));
            }
            arrived.extend(from_fn(|| probe.receive_within(SOON)));
            // A bridge has something to say of its own.
            arrived.retain(|(_, frame)| frame[6..12] == SENDER);
            let arrived = arrived.iter().flat_map(|frame| probe.on_the_wire(frame)).collect();
            let counters = bridge.snapshot().ports[1].counters.clone();
            assert_eq!(counters.write_errors.total(), 0, "{counters:?}");
            Self { arrived, stats: bridge.up().stats(), written: counters.frames_out - written }
        })
    }
}

/// Superpackets and frames of many kinds, flow by flow and mixed, some of them damaged.
fn send_everything(client: &mut PairPort) {
    let tag = &[0x81, 0, 0, 7][..];
    let tags = &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7][..];
    let kind = |v6, udp, extended, tags| Kind { v6, udp, extended, tags, port: 1000 };
    let kinds = [
        kind(false, false, false, &[]),
        kind(true, false, false, &[]),
        kind(true, false, true, &[]),
        kind(false, true, false, &[]),
        kind(true, true, false, &[]),
        kind(false, false, false, tag),
        kind(true, true, false, tag),
        kind(true, false, false, tags),
    ];
    for (port, kind) in (1000..).zip(kinds) {
        let kind = Kind { port, ..kind };
        for (at, segments) in [(0, 7), (7, 1), (8, 1), (9, 20), (29, 1)] {
            let (vnet, frame) = kind.train(segments, at);
            assert!(client.inject(&vnet, &frame));
        }
        // One whose checksum is wrong, among others.
        for at in 30..35 {
            let (vnet, mut frame) = kind.train(1, at);
            if at == 32 {
                let field = usize::from(vnet.csum_start + vnet.csum_offset);
                frame[field] ^= 0x40;
            }
            assert!(client.inject(&vnet, &frame));
        }
        assert!(client.inject(&VnetHeader::PLAIN, &opaque(60 + usize::from(port % 100)).1));
    }
}

/// A frame of no protocol anyone knows.
fn opaque(len: usize) -> (VnetHeader, Vec<u8>) {
    let mut frame = vec![0xa5; len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5]);
    (VnetHeader::PLAIN, frame)
}

/// What a flow is made of.
#[derive(Clone, Copy)]
struct Kind {
    v6: bool,
    udp: bool,
    /// With a hop-by-hop header.
    extended: bool,
    tags: &'static [u8],
    port: u16,
}

impl Kind {
    /// So many segments of the flow, behind `at` others, as one frame whose checksum is unfinished.
    fn train(&self, segments: usize, at: usize) -> (VnetHeader, Vec<u8>) {
        let transport = self.transport(segments, at);
        let network = self.network(transport.len(), at);
        let link = [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8], self.tags, self.ethertype()].concat();
        let start = link.len() + network.len();
        let (header, offset) = if self.udp { (8, 6) } else { (20, 16) };
        let gso_type = match (segments, self.udp, self.v6) {
            (1, ..) => VnetHeader::GSO_NONE,
            (_, true, _) => VnetHeader::GSO_UDP_L4,
            (_, false, false) => VnetHeader::GSO_TCPV4,
            (_, false, true) => VnetHeader::GSO_TCPV6,
        };
        let vnet = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type,
            hdr_len: if segments == 1 { 0 } else { small(start + header) },
            gso_size: if segments == 1 { 0 } else { small(MSS) },
            csum_start: small(start),
            csum_offset: offset,
        };
        (vnet, [link, network, transport].concat())
    }

    fn ethertype(&self) -> &'static [u8] {
        if self.v6 { &ETHERTYPE_IPV6 } else { &ETHERTYPE_IPV4 }
    }

    fn addresses(&self) -> Vec<u8> {
        if self.v6 {
            [[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfd; 16]].concat()
        } else {
            vec![10, 0, 0, 1, 10, 0, 0, 2]
        }
    }

    fn proto(&self) -> u8 {
        if self.udp { 17 } else { 6 }
    }

    fn network(&self, rest: usize, at: usize) -> Vec<u8> {
        if !self.v6 {
            let mut header = vec![0x45, 0];
            header.extend(small(20 + rest).to_be_bytes());
            header.extend(small(0x1000 + at).to_be_bytes());
            header.extend([0x40, 0, 64, self.proto(), 0, 0]);
            header.extend(self.addresses());
            let sum = sum(&header);
            header[10..12].copy_from_slice(&(!sum).to_be_bytes());
            return header;
        }
        let extension: &[u8] =
            if self.extended { &[self.proto(), 0, 1, 4, 0, 0, 0, 0] } else { &[] };
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(small(extension.len() + rest).to_be_bytes());
        header.extend([if self.extended { 0 } else { self.proto() }, 64]);
        header.extend(self.addresses());
        header.extend(extension);
        header
    }

    fn transport(&self, segments: usize, at: usize) -> Vec<u8> {
        let payload = segments * MSS;
        let mut bytes = [self.port.to_be_bytes(), 2000_u16.to_be_bytes()].concat();
        let field = if self.udp {
            bytes.extend(small(8 + payload).to_be_bytes());
            6
        } else {
            bytes.extend(u32::try_from(at * MSS).expect("small").to_be_bytes());
            bytes.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0]);
            16
        };
        bytes.extend([0, 0]);
        if !self.udp {
            bytes.truncate(20);
        }
        bytes.extend((0_u8..=250).cycle().skip(at * MSS % 251).take(payload));
        let len = small(bytes.len());
        let pseudo = [&self.addresses()[..], &[0, self.proto()], &len.to_be_bytes()].concat();
        bytes[field..field + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        bytes
    }
}

fn small(number: usize) -> u16 {
    number.try_into().expect("small")
}

/// The ones' complement sum of words.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let total: u32 = words.sum();
    small(usize::try_from((total & 0xffff) + (total >> 16)).expect("small"))
}
