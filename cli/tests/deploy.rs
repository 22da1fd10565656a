//! The pages of docs/ on where to put ucake, followed to the letter in namespaces.
//!
//! Where namespaces or taps are not to be had the tests say SKIPPED; with `UCAKE_REQUIRE_NETNS=1` they fail.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions, Route};
use ucake::io::tap::{Tap, TapOptions};

mod world;

use world::{PATIENCE, await_that, directory, stage};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Bytes of a vnet header.
const VNET: usize = 10;

/// The blocks of a page in ```` ```sh ```` fences whose words after `sh` are `words`, in their order.
fn blocks(page: &str, words: &str) -> Vec<String> {
    let page = fs::read_to_string(format!("{ROOT}/docs/{page}")).expect("the page is there");
    let fences: Vec<&str> = page.split("```").collect();
    assert_eq!(fences.len() % 2, 1, "a fence is open");
    let inside = fences.into_iter().skip(1).step_by(2).filter_map(|fence| fence.split_once('\n'));
    let ours = inside.filter(|(tag, _)| tag.trim_end() == format!("sh {words}").trim_end());
    let blocks: Vec<_> = ours.map(|(_, block)| block.to_owned()).collect();
    assert!(!blocks.is_empty(), "nothing in {page} for \"{words}\"");
    blocks
}

/// What `systemctl` does for these pages where systemd is not the first process: starts what the unit says.
const SYSTEMCTL: &str = r#"#!/bin/bash
set -eu
case "$*" in
"enable --now ucake")
  [ ! -e /run/ucake.pid ]
  $(sed -n 's|^ExecStart=/usr/bin/||p' /run/ucake.service) >/run/ucake.log 2>&1 </dev/null &
  echo $! >/run/ucake.pid
  for _ in $(seq 400); do
    ucake qdisc >/dev/null 2>&1 && exit
    kill -0 "$(cat /run/ucake.pid)" || break
    sleep 0.02
  done
  cat /run/ucake.log >&2
  exit 1
  ;;
"disable --now ucake")
  pid=$(cat /run/ucake.pid)
  kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
  rm /run/ucake.pid
  ;;
"reload ucake") kill -HUP "$(cat /run/ucake.pid)" ;;
*) echo "systemctl $*: not in these pages" >&2; exit 1 ;;
esac
"#;

/// What the shell of a reader finds: /etc and /run of its own, ucake in the path, and devices of the namespace in /sys.
const PRELUDE: &str = r#"
mount --make-rprivate /
mount -t sysfs sysfs /sys
mkdir "$D/etc" && cp -a /etc/. "$D/etc/" && mount --bind "$D/etc" /etc
mount -t tmpfs tmpfs /run
cp "$D/ucake.service" /run/
trap 'kill -9 $(cat /run/ucake.pid 2>/dev/null) 2>/dev/null' EXIT
"#;

/// Somebody who types what a page says.
struct Reader {
    shell: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    directory: PathBuf,
}

impl Reader {
    fn new(namespace: &Namespace) -> Self {
        let directory = directory();
        let bin = directory.join("bin");
        fs::create_dir(&bin).expect("a directory");
        fs::write(bin.join("systemctl"), SYSTEMCTL).expect("a file");
        std::os::unix::fs::symlink(cargo_bin("ucake"), bin.join("ucake")).expect("a link");
        let unit = directory.join("ucake.service");
        fs::copy(format!("{ROOT}/contrib/ucake.service"), unit).expect("a file");
        let path = std::env::var("PATH").expect("there is one");
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-eu"]).env("D", &directory);
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", bin.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut shell = namespace.run(move || command.spawn()).expect("util-linux and bash");
        let (sender, lines) = channel();
        let stdout = BufReader::new(shell.stdout.take().expect("piped"));
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let stdin = shell.stdin.take();
        let mut reader = Self { shell, stdin, lines, directory };
        reader.types(&format!("chmod +x \"$D/bin/systemctl\"\n{PRELUDE}"));
        reader
    }

    /// Types a block; what it printed. Panics if it fails.
    fn types(&mut self, block: &str) -> String {
        let stdin = self.stdin.as_mut().expect("open until the end");
        writeln!(stdin, "{block}\necho '# done'").expect("the shell reads");
        let mut printed = String::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line == "# done" => return printed,
                Ok(line) => printed += &(line + "\n"),
                Err(_) => panic!("this failed, or does not end:\n{block}\nIt printed:\n{printed}"),
            }
        }
    }

    fn types_all(&mut self, blocks: &[String]) -> String {
        blocks.iter().map(|block| self.types(block)).collect()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It runs its trap.
        drop(self.stdin.take());
        let _ = self.shell.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A wire from `device` of `namespace` to `eth0` of a host with these addresses, the first family's router known.
fn host(
    namespace: &Namespace,
    device: &'static str,
    addresses: Vec<(IpAddr, u8)>,
    router: Option<IpAddr>,
) -> Namespace {
    let host = Namespace::new(device).expect("as before");
    let there = namespace.file().expect("it lives");
    host.run(move || {
        // No time for anybody to ask whether the address is taken.
        fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").expect("a sysctl");
        netlink::add_veth("eth0", device).expect("this kernel has veth");
        netlink::move_to(device, &there).expect("it can be moved");
        let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
        netlink::configure("eth0", &options).expect("it obeys");
    });
    if let Some(gateway) = router {
        host.run(move || add_route("eth0", gateway));
    }
    host
}

fn add_route(device: &'static str, gateway: IpAddr) {
    let everywhere = match gateway {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let routes = vec![Route { destination: (everywhere, 0), gateway: Some(gateway) }];
    let options = LinkOptions { up: Some(true), routes, ..LinkOptions::default() };
    netlink::configure(device, &options).expect("it obeys");
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

/// What a load was like.
#[derive(Debug)]
struct Load {
    /// Bytes of frames that arrived in a second, in Mbit.
    mbit: f64,
    /// Delay of a datagram there and back meanwhile: the middle one, in milliseconds.
    ping: f64,
    /// Whom the server took the client for.
    seen: IpAddr,
}

/// Somebody on the line, and the device by which.
type End<'a> = (&'a Namespace, &'static str);

/// Has a client fill the line to a server, or the server to the client, by four connections.
fn load(client: End<'_>, server: End<'_>, to: IpAddr, way: Way) -> Load {
    const FLOWS: usize = 4;
    static PORT: AtomicU16 = AtomicU16::new(5001);
    // Those of the load before may still be in use.
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let to = SocketAddr::new(to, port);
    let listener = server.0.run(move || TcpListener::bind(to)).expect("the address is its own");
    let echo = server.0.run(move || UdpSocket::bind(to)).expect("the address is its own");
    let stop = Arc::new(AtomicBool::new(false));
    let mut seen = None;
    for _ in 0..FLOWS {
        let near = client.0.run(move || TcpStream::connect_timeout(&to, PATIENCE));
        let near = near.expect("a connection");
        let (far, peer) = listener.accept().expect("a connection");
        seen = Some(peer.ip());
        let (source, sink) = if let Way::Up = way { (near, far) } else { (far, near) };
        pour(source, sink, &stop);
    }
    echo_until(echo, &stop);
    // Slow start is over by then, and what it lost is sent again.
    thread::sleep(Duration::from_millis(1000));
    let (receiver, device) = if let Way::Up = way { server } else { client };
    let bytes = || receiver.run(move || netlink::link(device)).expect("it is there").stats.rx_bytes;
    let (begun, before) = (Instant::now(), bytes());
    let ping = ping(client.0, to, Duration::from_millis(1500));
    #[allow(clippy::cast_precision_loss, reason = "some millions")]
    let mbit = 8e-6 * (bytes() - before) as f64 / begun.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    Load { mbit, ping, seen: seen.expect("there are flows") }
}

/// Writes and reads until stopped.
fn pour(mut source: TcpStream, mut sink: TcpStream, stop: &Arc<AtomicBool>) {
    let moment = Some(Duration::from_millis(50));
    source.set_write_timeout(moment).expect("more than nothing");
    sink.set_read_timeout(moment).expect("more than nothing");
    let stopped = Arc::clone(stop);
    thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let _ = source.write(&[7; 65_536]);
        }
    });
    let stopped = Arc::clone(stop);
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while !stopped.load(Ordering::Relaxed) {
            let _ = sink.read(&mut buffer);
        }
    });
}

fn echo_until(socket: UdpSocket, stop: &Arc<AtomicBool>) {
    let stopped = Arc::clone(stop);
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("more than nothing");
    thread::spawn(move || {
        let mut datagram = [0; 64];
        while !stopped.load(Ordering::Relaxed) {
            if let Ok((len, from)) = socket.recv_from(&mut datagram) {
                let _ = socket.send_to(&datagram[..len], from);
            }
        }
    });
}

/// The middle one of the delays to somebody who echoes, in milliseconds.
fn ping(client: &Namespace, to: SocketAddr, during: Duration) -> f64 {
    let any = match to {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let socket = client.run(move || UdpSocket::bind(any)).expect("a socket");
    socket.connect(to).expect("a route");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("more than nothing");
    let (begun, mut delays) = (Instant::now(), Vec::new());
    while begun.elapsed() < during {
        let sent = Instant::now();
        socket.send(&[0; 32]).expect("a route");
        let lost = socket.recv(&mut [0; 64]).is_err();
        delays.push(if lost { 500.0 } else { 1e3 * sent.elapsed().as_secs_f64() });
        thread::sleep(Duration::from_millis(20));
    }
    delays.sort_by(f64::total_cmp);
    delays[delays.len() / 2]
}

/// What the lines of the pages add to a frame is 2 % of it.
fn assert_shaped(load: &Load, rate: f64) {
    let share = load.mbit / rate;
    assert!((0.8..=1.01).contains(&share), "at {rate} Mbit/s: {load:?}");
    assert!(load.ping < 25.0, "at {rate} Mbit/s: {load:?}");
}

/// What a sysctl of a device says in a namespace.
fn sysctl(namespace: &Namespace, path: &'static str) -> String {
    namespace.run(move || {
        let read = fs::read_to_string(format!("/proc/sys/net/{path}"));
        read.expect("this kernel has it").trim().to_owned()
    })
}

#[test]
fn a_bump_in_the_wire_shapes_both_directions_and_can_be_changed_and_taken_out() {
    let Some(middle) = stage() else { return };
    let of = |host| vec![(IpAddr::from([10, 9, 0, host]), 24)];
    let client = host(&middle, "lan0", of(1), None);
    let server = host(&middle, "wan0", of(2), None);
    let mut reader = Reader::new(&middle);
    let pages = blocks("DEPLOY-BUMP.md", "");
    let (set_up, change) = pages.split_at(pages.len() - 1);
    let printed = reader.types_all(set_up);
    assert!(
        printed.contains("packet:lan0    up, MTU 1500; the host will stand aside"),
        "{printed}"
    );
    assert!(printed.contains("packet:wan0    up, MTU 1500; the host stands aside"), "{printed}");
    assert!(printed.contains("dev wan0 root refcnt 2 bandwidth 19Mbit"), "{printed}");
    let to = address("10.9.0.2");
    assert_shaped(&load((&client, "eth0"), (&server, "eth0"), to, Way::Up), 19.0);
    assert_shaped(&load((&client, "eth0"), (&server, "eth0"), to, Way::Down), 45.0);
    reader.types_all(change);
    await_that("the new rate", || reader.types("ucake qdisc").contains("bandwidth 18Mbit"));
    assert_eq!(sysctl(&middle, "ipv6/conf/lan0/disable_ipv6"), "1");
    reader.types_all(&blocks("DEPLOY-BUMP.md", "undo"));
    assert_eq!(sysctl(&middle, "ipv6/conf/lan0/disable_ipv6"), "0");
    assert_eq!(sysctl(&middle, "ipv4/conf/wan0/arp_ignore"), "0");
}

/// A device whose other side is ours: frames come out as they were given to it, and go in as they are.
struct Wire(File);

impl Wire {
    fn new(namespace: &Namespace, name: &'static str) -> Self {
        let tap = namespace.run(|| Tap::open(name, &TapOptions::default())).expect("a tap");
        let file = File::from(tap.as_fd().try_clone_to_owned().expect("a descriptor"));
        Self(file)
    }

    fn send(&mut self, frame: &[u8]) {
        let bytes = [&[0; VNET][..], frame].concat();
        self.0.write_all(&bytes).expect("the device is up");
    }

    /// The next frame; none if none comes in time.
    fn receive(&mut self, patience: Duration) -> Option<Vec<u8>> {
        let (mut buffer, deadline) = (vec![0; 2000], Instant::now() + patience);
        while Instant::now() < deadline {
            match self.0.read(&mut buffer) {
                Ok(len) => return Some(buffer[VNET..len].to_vec()),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }
}

/// A frame of `len` bytes to `to`, what stands behind its addresses beginning with `rest`.
fn frame(to: [u8; 6], rest: &[u8], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 9], rest].concat();
    let filler = (0..=255).cycle().take(len.saturating_sub(frame.len()));
    frame.extend(filler);
    frame
}

/// Frames of all kinds that a line carries, by name.
fn all_kinds() -> Vec<(&'static str, Vec<u8>)> {
    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 8];
    const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
    // Version 6, 16 bytes of ICMPv6, hop limit 255, from fe80::9 to ff02::1; a router advertisement that offers
    // addresses for half an hour. Its checksum is none of ours.
    let mut advertisement = vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 48, 58, 255, 0xfe, 0x80];
    advertisement.extend([0; 13]);
    advertisement.extend([9, 0xff, 2]);
    advertisement.extend([0; 13]);
    advertisement.extend([1, 134, 0, 0, 0, 64, 0, 7, 8]);
    let ipv4 = |protocol, to: [u8; 4]| {
        let header = [0x45, 0, 0, 46, 0, 1, 0, 0, 1, protocol, 0, 0, 10, 9, 0, 1];
        [&[0x08, 0x00][..], &header, &to].concat()
    };
    let ppp = |protocol: [u8; 2]| [&[0x88, 0x64, 0x11, 0, 0, 7, 0, 48][..], &protocol].concat();
    vec![
        ("PPPoE discovery", frame([0xff; 6], &[0x88, 0x63, 0x11, 9, 0, 0, 0, 4, 1, 1, 0, 0], 60)),
        ("PPPoE session, LCP", frame(HOST, &ppp([0xc0, 0x21]), 68)),
        (
            "PPPoE session, IPv4",
            frame(HOST, &[&ppp([0, 0x21])[..], &ipv4(17, [10, 9, 0, 2])[2..]].concat(), 68),
        ),
        (
            "802.1Q",
            frame(HOST, &[&[0x81, 0, 0x20, 7][..], &ipv4(17, [10, 9, 0, 2])].concat(), 1518),
        ),
        (
            "802.1Q, PPPoE within",
            frame(HOST, &[&[0x81, 0, 0, 7][..], &ppp([0, 0x57])].concat(), 80),
        ),
        ("802.1Q of priority alone", frame(HOST, &[0x81, 0, 0xa0, 0, 0x88, 0xb5], 60)),
        ("QinQ", frame(HOST, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7, 0x08, 0], 100)),
        ("router advertisement", frame(ALL_NODES, &advertisement, 102)),
        ("multicast of IPv4", frame([1, 0, 0x5e, 0, 0, 0xfb], &ipv4(17, [224, 0, 0, 251]), 60)),
        ("IGMP", frame([1, 0, 0x5e, 0, 0, 1], &ipv4(2, [224, 0, 0, 1]), 60)),
        ("ARP", frame([0xff; 6], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], 60)),
        ("spanning tree", frame([1, 0x80, 0xc2, 0, 0, 0], &[0, 38, 0x42, 0x42, 3], 60)),
        ("LLDP", frame([1, 0x80, 0xc2, 0, 0, 0x0e], &[0x88, 0xcc], 60)),
        ("what nobody knows", frame(HOST, &[0x99, 0x99], 1514)),
    ]
}

#[test]
fn a_bump_in_the_wire_passes_frames_of_all_kinds_and_the_host_takes_no_part() {
    let Some(middle) = stage() else { return };
    let mut wires = ["lan0", "wan0"].map(|name| Wire::new(&middle, name));
    // An address that the host has elsewhere, and would speak for everywhere.
    let third = middle.run(|| Tap::open("third", &TapOptions::default())).expect("a tap");
    middle.run(|| {
        let addresses = vec![(address("10.9.0.77"), 24)];
        let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
        netlink::configure("third", &options).expect("it obeys");
    });
    let mut reader = Reader::new(&middle);
    let pages = blocks("DEPLOY-BUMP.md", "");
    reader.types_all(&pages[..pages.len() - 1]);
    let silence = Duration::from_millis(300);
    // What the host said before it was told to stand aside.
    for wire in &mut wires {
        while wire.receive(silence).is_some() {}
    }
    for (from, to) in [(0, 1), (1, 0)] {
        for (name, frame) in all_kinds() {
            wires[from].send(&frame);
            let passed = wires[to].receive(PATIENCE);
            assert_eq!(passed.as_deref(), Some(&frame[..]), "{name}, from {from} to {to}");
        }
    }
    // Somebody asks who has the address of the third device.
    let mut request = frame([0xff; 6], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], 22);
    request.extend([2, 0, 0, 0, 0, 9, 10, 9, 0, 9, 0, 0, 0, 0, 0, 0, 10, 9, 0, 77]);
    wires[0].send(&request);
    assert_eq!(wires[1].receive(PATIENCE), Some(request), "it goes on");
    for wire in &mut wires {
        assert_eq!(wire.receive(silence), None, "the host says something");
    }
    let addresses = middle.run(|| fs::read_to_string("/proc/thread-self/net/if_inet6"));
    let addresses = addresses.expect("this kernel has IPv6");
    assert!(!addresses.contains("lan0") && !addresses.contains("wan0"), "{addresses}");
    drop(third);
}

#[test]
fn a_router_shapes_both_directions_behind_its_translation_of_addresses() {
    let Some(middle) = stage() else { return };
    let (lan, wan) = ([192, 168, 1], [203, 0, 113]);
    let v4 = |[a, b, c]: [u8; 3], host| (IpAddr::from([a, b, c, host]), 24);
    let v6 = |text: &str| (address(text), 64);
    let router = Some(v4(lan, 1).0);
    let client = host(&middle, "lan0", vec![v4(lan, 10), v6("2001:db8:1::10")], router);
    client.run(|| add_route("eth0", address("2001:db8:1::1")));
    let server = host(&middle, "wan0", vec![v4(wan, 1), v6("2001:db8::1")], None);
    server.run(|| {
        let to_the_lan = (address("2001:db8:1::"), 64);
        let gateway = Some(address("2001:db8::2"));
        let routes = vec![Route { destination: to_the_lan, gateway }];
        let options = LinkOptions { routes, ..LinkOptions::default() };
        netlink::configure("eth0", &options).expect("it obeys");
    });
    middle.run(move || {
        fs::write("/proc/sys/net/ipv6/conf/lan0/accept_dad", "0").expect("a sysctl");
        let addresses = vec![v4(lan, 1), v6("2001:db8:1::1")];
        let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
        netlink::configure("lan0", &options).expect("it obeys");
    });
    let mut reader = Reader::new(&middle);
    let printed = reader.types_all(&blocks("DEPLOY-ROUTER.md", ""));
    assert!(printed.contains("tap:inet0      up, MTU 1500"), "{printed}");
    assert!(printed.contains("packet:wan0    up, MTU 1500; the host stands aside"), "{printed}");
    let up = load((&client, "eth0"), (&server, "eth0"), v4(wan, 1).0, Way::Up);
    assert_shaped(&up, 19.0);
    assert_eq!(up.seen, v4(wan, 2).0, "it is translated");
    assert_shaped(&load((&client, "eth0"), (&server, "eth0"), v4(wan, 1).0, Way::Down), 45.0);
    let six = load((&client, "eth0"), (&server, "eth0"), address("2001:db8::1"), Way::Down);
    assert_shaped(&six, 45.0);
    assert_eq!(six.seen, address("2001:db8:1::10"), "it is not translated");
    // The tap keeps its address without ucake.
    reader.types("systemctl disable --now ucake\nsystemctl enable --now ucake");
    assert_shaped(&load((&client, "eth0"), (&server, "eth0"), v4(wan, 1).0, Way::Up), 19.0);
    reader.types_all(&blocks("DEPLOY-ROUTER.md", "undo"));
    assert!(middle.run(|| netlink::link("inet0")).is_err(), "it is gone");
}

/// The namespace that a page calls `box`.
fn join_box(reader: &Reader) -> Namespace {
    let guest = Namespace::new("guest").expect("as before");
    // Its name is known to the shell's mounts only.
    let path = format!("/proc/{}/root/run/netns/box", reader.shell.id());
    let file = File::open(Path::new(&path)).expect("it was made");
    guest.run(move || {
        rustix::thread::move_into_link_name_space(
            file.as_fd(),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )
        .expect("root may");
    });
    guest
}

#[test]
fn a_container_has_its_one_link_shaped() {
    let Some(middle) = stage() else { return };
    let mut reader = Reader::new(&middle);
    let printed = reader.types_all(&blocks("DEPLOY-CONTAINER.md", ""));
    assert!(printed.contains("dev host0 root refcnt 2 bandwidth 10Mbit"), "{printed}");
    let guest = join_box(&reader);
    let to = address("10.0.3.1");
    assert_shaped(&load((&guest, "eth0"), (&middle, "host0"), to, Way::Up), 10.0);
    // The last command of the page made it 20.
    assert_shaped(&load((&guest, "eth0"), (&middle, "host0"), to, Way::Down), 20.0);
    drop(guest);
    reader.types_all(&blocks("DEPLOY-CONTAINER.md", "undo"));
}

#[test]
fn a_virtual_machine_has_its_tap_shaped() {
    let Some(middle) = stage() else { return };
    // The part of QEMU and guest: whoever holds the tap passes on what comes in at a device of somebody else.
    let directory = directory();
    let mut machine = Command::new(cargo_bin("ucake"));
    machine.args(["run", "tap:vm0", "tap:guest0", "--control"]).arg(directory.join("socket"));
    machine.stdin(Stdio::null()).stdout(Stdio::null());
    let mut machine = middle.run(move || machine.spawn()).expect("the binary was built");
    await_that("the machine", || directory.join("socket").exists());
    let guest = Namespace::new("guest").expect("as before");
    let there = guest.file().expect("it lives");
    middle.run(move || netlink::move_to("guest0", &there)).expect("it can be moved");
    guest.run(|| {
        let addresses = vec![(address("10.0.3.2"), 24)];
        let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
        netlink::configure("guest0", &options).expect("it obeys");
    });
    let mut reader = Reader::new(&middle);
    let printed = reader.types_all(&blocks("DEPLOY-CONTAINER.md", "vm"));
    assert!(printed.contains("dev host0 root refcnt 2 bandwidth 10Mbit"), "{printed}");
    let to = address("10.0.3.1");
    assert_shaped(&load((&guest, "guest0"), (&middle, "host0"), to, Way::Up), 10.0);
    assert_shaped(&load((&guest, "guest0"), (&middle, "host0"), to, Way::Down), 30.0);
    reader.types_all(&blocks("DEPLOY-CONTAINER.md", "vm undo"));
    let _ = machine.kill();
    let _ = machine.wait();
    let _ = fs::remove_dir_all(directory);
}

#[test]
fn a_device_with_an_address_is_left_as_it_is_and_doctor_tells_who_else_is_there() {
    let Some(middle) = stage() else { return };
    let _far = host(&middle, "lan0", Vec::new(), None);
    let _farther = host(&middle, "wan0", Vec::new(), None);
    middle.run(|| {
        let addresses = vec![(address("10.9.0.1"), 24)];
        let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
        netlink::configure("lan0", &options).expect("it obeys");
        netlink::slow_down("wan0", ucake::units::Rate::from_bits(1_000_000), 100_000)
            .expect("this kernel has tbf");
        netlink::add_bridge("br0", &["wan0"]).expect("this kernel has bridges");
    });
    let mut reader = Reader::new(&middle);
    reader.types("ip link set wan0 up\nucake run packet:lan0 packet:wan0 >/run/out 2>&1 & echo $! >/run/ucake.pid");
    await_that("an answer", || reader.types("ucake qdisc 2>/dev/null || true").contains("wan0"));
    let told = reader.types("ucake doctor");
    for (port, what) in [
        ("packet:lan0", "has the address 10.9.0.1/24"),
        ("packet:wan0", "has a tbf on it"),
        ("packet:wan0", "a port of br0"),
    ] {
        assert!(told.lines().any(|line| line.contains(port) && line.contains(what)), "{told}");
    }
    assert_eq!(sysctl(&middle, "ipv6/conf/lan0/disable_ipv6"), "0");
    assert_eq!(sysctl(&middle, "ipv6/conf/wan0/disable_ipv6"), "1");
    let log = reader.types("cat /run/out");
    assert!(log.contains("lan0 has the address 10.9.0.1"), "{log}");
}

/// What the host gives up on both devices: `disable_ipv6` of `lan0`, `arp_ignore` of `wan0`.
fn given_up(middle: &Namespace) -> [String; 2] {
    ["ipv6/conf/lan0/disable_ipv6", "ipv4/conf/wan0/arp_ignore"].map(|path| sysctl(middle, path))
}

#[test]
fn what_the_host_gave_up_outlives_deaths_and_upgrades_and_comes_back_at_the_end() {
    let Some(middle) = stage() else { return };
    let _far = ["lan0", "wan0", "lan1"].map(|device| host(&middle, device, Vec::new(), None));
    middle.run(|| {
        for device in ["lan0", "wan0", "lan1"] {
            let options = LinkOptions { up: Some(true), ..LinkOptions::default() };
            netlink::configure(device, &options).expect("it obeys");
        }
        fs::write("/proc/sys/net/ipv4/conf/wan0/arp_ignore", "2").expect("a sysctl");
    });
    let mut reader = Reader::new(&middle);
    let file = |lan: &str| {
        format!(
            "printf '[[bridge]]\nlan = \"packet:{lan}\"\nwan = \"packet:wan0\"\n' >/etc/ucake.toml"
        )
    };
    reader.types(&file("lan0"));
    reader.types("systemctl enable --now ucake");
    assert_eq!(given_up(&middle), ["1", "8"]);
    reader.types("kill -9 $(pgrep -P $(cat /run/ucake.pid))");
    await_that("another", || reader.types("ucake -d qdisc 2>&1 || true").contains("after 1 died"));
    reader.types("ucake upgrade");
    await_that("an upgrade", || reader.types("ucake -d qdisc 2>&1 || true").contains("1 upgraded"));
    assert_eq!(given_up(&middle), ["1", "8"]);
    reader.types(&file("lan1"));
    reader.types("systemctl reload ucake");
    await_that("the other port", || reader.types("ucake qdisc 2>&1 || true").contains("lan1"));
    assert_eq!(given_up(&middle), ["0", "8"], "lan0 is nobody's any more");
    assert_eq!(sysctl(&middle, "ipv6/conf/lan1/disable_ipv6"), "1");
    reader.types("systemctl disable --now ucake");
    assert_eq!(given_up(&middle), ["0", "2"], "as it was");
    assert_eq!(sysctl(&middle, "ipv6/conf/lan1/disable_ipv6"), "0");
    reader.types("ucake run --no-supervisor packet:lan0 packet:wan0 >/run/out 2>&1 & echo $! >/run/ucake.pid");
    await_that("it runs", || given_up(&middle) == ["1", "8"]);
    reader.types("systemctl disable --now ucake");
    assert_eq!(given_up(&middle), ["0", "2"], "as it was");
}
