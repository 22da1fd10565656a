//! Wires between namespaces, and probes at their ends: what packet sockets are tested with.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use ucake::io::batch::{Batch, Coalescing};
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions, VlanTag};
use ucake::io::packet_socket::{PacketPort, PacketSocket};
use ucake::io::pool::{Fill, FrameBuf, Pool, Scratch};
use ucake::io::port::{Counters, Port, PortError, Recv, Sent};
use ucake::packet::split::Checksums;
use ucake::packet::{Frame as _, VnetHeader};
use ucake::qdisc::{Cake, Config, Fifo, FifoConfig};

use crate::lab::{Family, Lab, PATIENCE, Running, await_address, cake};

/// Client and server with an `eth0` each, whose other ends are `lan0` and `wan0` of a third namespace.
pub(crate) struct Wires {
    pub(crate) lab: Lab,
    pub(crate) middle: Namespace,
    /// Bridges on the way that put tags on and take them off.
    hops: Vec<Running<Fifo<FrameBuf>>>,
}

impl Wires {
    /// With addresses on `eth0`, or on devices with these tags on top of it, the outer one first.
    /// `None` where there are no VLANs.
    pub(crate) fn new(tags: &'static [VlanTag]) -> Option<Self> {
        if !tags.is_empty() && !has_vlans() {
            eprintln!("SKIPPED, nothing was tested: this kernel has no devices for VLANs");
            return None;
        }
        let middle = Namespace::new("middle").expect("namespaces are there");
        let wires = Self { lab: Lab::new(), middle, hops: Vec::new() };
        silence(&wires.middle);
        let ends = [(&wires.lab.client, "lan0", 1), (&wires.lab.server, "wan0", 2)];
        for (namespace, far, host) in ends {
            let middle = wires.middle.file().expect("/proc");
            namespace.run(move || {
                netlink::add_veth("eth0", far).expect("this kernel has veth");
                netlink::move_to(far, middle).expect("it can be moved");
                let mut device = "eth0";
                for (tag, name) in tags.iter().zip(["vlan0", "vlan1"]) {
                    up(device);
                    netlink::add_vlan(name, device, *tag).expect("this kernel has VLANs");
                    device = name;
                }
                give_addresses(device, host);
            });
            wires.middle.run(move || up(far));
        }
        for (namespace, _, host) in ends {
            namespace.run(move || await_address(Family::V6.host(host)));
        }
        Some(wires)
    }

    /// With addresses on `eth0`, and on each side a hop between there and here that puts `tags` on.
    pub(crate) fn with_hops(tags: &'static [u8]) -> Self {
        let middle = Namespace::new("middle").expect("namespaces are there");
        let mut wires = Self { lab: Lab::new(), middle, hops: Vec::new() };
        silence(&wires.middle);
        let ends = [(&wires.lab.client, "lan0", 1), (&wires.lab.server, "wan0", 2)];
        for (namespace, far, host) in ends {
            let hop = Namespace::new("hop").expect("namespaces are there");
            silence(&hop);
            let (to_hop, to_middle) = (hop.file().expect("/proc"), wires.middle.file());
            namespace.run(move || {
                netlink::add_veth("eth0", "edge").expect("this kernel has veth");
                netlink::move_to("edge", to_hop).expect("it can be moved");
                give_addresses("eth0", host);
            });
            let sockets = hop.run(move || {
                netlink::add_veth("core", far).expect("this kernel has veth");
                netlink::move_to(far, to_middle.expect("/proc")).expect("it can be moved");
                // More than one tag needs more room than a device has.
                [("edge", 1500), ("core", 1508)].into_iter().for_each(up_with_mtu);
                ["edge", "core"].map(open)
            });
            wires.middle.run(move || up_with_mtu((far, 1508)));
            let ports = move || {
                let [edge, core] = sockets.map(at_work);
                let edge: Box<dyn Port> = Box::new(Tagging { inner: edge, tags, puts_on: true });
                [edge, Box::new(Tagging { inner: core, tags, puts_on: false })]
            };
            let fifo = || Fifo::new(FifoConfig { rate: None, limit: 10_000, split: false });
            wires.hops.push(Running::start(ports, Coalescing::Off, fifo));
        }
        for (namespace, _, host) in ends {
            namespace.run(move || await_address(Family::V6.host(host)));
        }
        wires
    }

    /// A bridge between `lan0` and `wan0`.
    pub(crate) fn bridge(&self, coalescing: Coalescing, config: Config) -> Running<Cake<FrameBuf>> {
        let sockets = self.middle.run(|| ["lan0", "wan0"].map(open));
        let ports = move || sockets.map(|socket| -> Box<dyn Port> { Box::new(at_work(socket)) });
        Running::start(ports, coalescing, move || cake(config))
    }
}

fn has_vlans() -> bool {
    let namespace = Namespace::new("probe").expect("namespaces are there");
    namespace.run(|| {
        netlink::add_veth("left", "right").expect("this kernel has veth");
        netlink::add_vlan("vlan0", "left", VlanTag::Customer(7)).is_ok()
    })
}

/// Makes devices that will be say nothing by themselves.
fn silence(namespace: &Namespace) {
    let switch = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    namespace.run(move || std::fs::write(switch, "1").expect("a sysctl of the namespace"));
}

pub(crate) fn up(name: &str) {
    set_up(name, true);
}

fn up_with_mtu((name, mtu): (&str, u32)) {
    let options = LinkOptions { up: Some(true), mtu: Some(mtu), ..LinkOptions::default() };
    netlink::configure(name, &options).expect("it obeys");
}

pub(crate) fn set_up(name: &str, up: bool) {
    let options = LinkOptions { up: Some(up), ..LinkOptions::default() };
    netlink::configure(name, &options).expect("it obeys");
}

fn open(name: &str) -> PacketSocket {
    PacketSocket::open(name).expect("it opens")
}

fn at_work(socket: PacketSocket) -> PacketPort {
    PacketPort::new(socket).expect("at work")
}

fn give_addresses(device: &str, host: u8) {
    let addresses = vec![(Family::V4.host(host), 24), (Family::V6.host(host), 64)];
    let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
    netlink::configure(device, &options).expect("the device is set up");
}

/// A port whose frames get VLAN tags when they are read, or lose them.
struct Tagging {
    inner: PacketPort,
    tags: &'static [u8],
    puts_on: bool,
}

impl Tagging {
    fn changed(&self, frame: &FrameBuf, pool: &Pool) -> Recv {
        let mut scratch = Scratch::new();
        let wire = frame.wire(Checksums::Partial, &mut scratch).expect("it has bytes");
        let bytes = [wire.head, wire.payload].concat();
        let (head, frame) = bytes.split_first_chunk().expect("a header");
        let (macs, rest) = frame.split_at(12);
        let mut vnet = VnetHeader::decode(head);
        let len = u16::try_from(self.tags.len()).expect("few");
        let (tags, rest) = match (self.puts_on, rest.strip_prefix(self.tags)) {
            (true, _) => (self.tags, rest),
            (false, Some(rest)) => (&[][..], rest),
            (false, None) => return Recv::Skipped,
        };
        if vnet.needs_csum() {
            let start = vnet.csum_start;
            vnet.csum_start = if self.puts_on { start + len } else { start - len };
        }
        let bytes = [&vnet.encode(), macs, tags, rest].concat();
        match pool.fill(|buffer| {
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        }) {
            Ok(Fill::Frame(received)) => Recv::Frame(received),
            _ => panic!("a good frame"),
        }
    }
}

impl Port for Tagging {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
        Ok(match self.inner.try_recv(pool)? {
            Recv::Frame(received) => self.changed(&received.frame, pool),
            other => other,
        })
    }

    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
        self.inner.send(batch)
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        self.inner.poll_readable(cx)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

/// A packet port that is told by hand what to do.
pub(crate) struct Probe {
    runtime: Runtime,
    pub(crate) port: PacketPort,
    pub(crate) pool: Pool,
    scratch: Scratch,
}

impl Probe {
    pub(crate) fn new(namespace: &Namespace, device: &'static str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let socket = namespace.run(move || open(device));
        let port = runtime.block_on(async { at_work(socket) });
        Self { runtime, port, pool: Pool::new(), scratch: Scratch::new() }
    }

    /// The two ends of a wire in a namespace: `left` and `right`.
    pub(crate) fn pair(namespace: &Namespace) -> [Self; 2] {
        silence(namespace);
        namespace.run(|| {
            netlink::add_veth("left", "right").expect("this kernel has veth");
            ["left", "right"].into_iter().for_each(up);
        });
        let ends = || ["left", "right"].map(|device| Self::new(namespace, device));
        let [mut left, mut right] = ends();
        left.await_carrier(&mut right);
        right.await_carrier(&mut left);
        ends()
    }

    /// A device drops what it is given until it has heard of the other side.
    fn await_carrier(&mut self, other: &mut Self) {
        let end = Instant::now() + PATIENCE;
        let mut hello = vec![0xff; 60];
        hello[12..14].copy_from_slice(&[0x88, 0xb5]);
        let hello = [(VnetHeader::PLAIN, hello)];
        while other.receive_within(Duration::from_millis(5)).is_none() {
            assert!(Instant::now() < end, "nothing passes");
            self.send(&hello);
        }
        while other.receive_within(Duration::from_millis(50)).is_some() {}
    }

    /// The frame as a bridge would have read it.
    pub(crate) fn frame(&self, (vnet, bytes): &(VnetHeader, Vec<u8>)) -> FrameBuf {
        let bytes = [&vnet.encode(), &bytes[..]].concat();
        let fill = self.pool.fill(|buffer| {
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        match fill.expect("memory can be read") {
            Fill::Frame(received) => received.frame,
            _ => panic!("a good frame"),
        }
    }

    /// Sends frames as they are.
    pub(crate) fn send(&mut self, frames: &[(VnetHeader, Vec<u8>)]) -> Sent {
        let mut batch = Batch::new(Coalescing::Off);
        for (number, frame) in (0..).zip(frames) {
            batch.push(self.frame(frame), (0, number));
        }
        self.offer(&mut batch).expect("the port works")
    }

    /// Sends the segments of frames, joined or not.
    pub(crate) fn send_segments(
        &mut self,
        coalescing: Coalescing,
        frames: &[(VnetHeader, Vec<u8>)],
    ) -> Sent {
        let mut batch = Batch::new(coalescing);
        for frame in frames {
            let frame = self.frame(frame);
            (0..frame.segments()).for_each(|index| batch.push(frame.segment(index), (0, 0)));
        }
        self.offer(&mut batch).expect("the port works")
    }

    pub(crate) fn offer(&mut self, batch: &mut Batch) -> Result<Sent, PortError> {
        self.port.send(batch.offer(usize::MAX))
    }

    /// The next frame; panics if none comes.
    pub(crate) fn receive(&mut self) -> (VnetHeader, Vec<u8>) {
        self.receive_within(PATIENCE).expect("a frame arrives")
    }

    /// The next frame that comes soon.
    pub(crate) fn receive_within(&mut self, patience: Duration) -> Option<(VnetHeader, Vec<u8>)> {
        let end = Instant::now() + patience;
        loop {
            match self.port.try_recv(&self.pool).expect("the port works") {
                Recv::Frame(received) => return Some(self.opened(&received.frame)),
                Recv::Skipped => {}
                Recv::Empty if !self.await_readable(end) => return None,
                Recv::Empty => {}
            }
        }
    }

    /// Waits until the port says that it can be read; false if it did not in time.
    fn await_readable(&self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        let readable = poll_fn(|cx| self.port.poll_readable(cx));
        self.runtime.block_on(async {
            let outcome = tokio::time::timeout(left, readable).await;
            outcome.is_ok_and(|outcome| outcome.map(|()| true).expect("the port works"))
        })
    }

    /// What a frame is on a wire: its segments, each with its checksum finished.
    pub(crate) fn on_the_wire(&mut self, frame: &(VnetHeader, Vec<u8>)) -> Vec<Vec<u8>> {
        let singles = self.frame(frame).singles().collect::<Vec<_>>();
        let finished = |single: &FrameBuf| {
            let wire = single.wire(Checksums::Complete, &mut self.scratch).expect("it has bytes");
            [&wire.head[VnetHeader::LEN..], wire.payload].concat()
        };
        singles.iter().map(finished).collect()
    }

    fn opened(&mut self, frame: &FrameBuf) -> (VnetHeader, Vec<u8>) {
        let wire = frame.wire(Checksums::Partial, &mut self.scratch).expect("it has bytes");
        let bytes = [wire.head, wire.payload].concat();
        let vnet = VnetHeader::decode(bytes.first_chunk().expect("a header"));
        (vnet, bytes[VnetHeader::LEN..].to_vec())
    }
}
