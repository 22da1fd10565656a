//! `nat`: hosts behind a router that masquerades get equal shares, whatever number of flows they have.
//!
//! Needs nft and a kernel with nftables, beside namespaces and taps. Where these are not to be had the tests say
//! SKIPPED; with `UCAKE_REQUIRE_NETNS=1` they fail.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, SocketType, socket};
use ucake::io::namespace::Namespace;
use ucake::io::netlink::{self, LinkOptions};

use world::{PATIENCE, await_that, directory, stage, text};

mod world;

/// Addresses of the two hosts and of the router on their wires, of the router outside, and of the server.
const HOSTS: [[Ipv4Addr; 2]; 2] = [
    [Ipv4Addr::new(192, 168, 1, 2), Ipv4Addr::new(192, 168, 1, 1)],
    [Ipv4Addr::new(192, 168, 2, 2), Ipv4Addr::new(192, 168, 2, 1)],
];
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 80, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 80, 2);

const MASQUERADE: &str = "add table ip nat
add chain ip nat post { type nat hook postrouting priority 100 ; }
add rule ip nat post oifname wan0 masquerade
";

/// Two hosts, a router that masquerades and shapes, and a server:
/// `host ─ veth ─ router ─ wan0 ═ ucake ═ line0 ─ server`. ucake runs in the router.
struct World {
    hosts: [Namespace; 2],
    router: Namespace,
    server: Namespace,
    directory: std::path::PathBuf,
    ucake: Child,
}

impl World {
    /// `None`, aloud, where there can be none.
    fn new(up: &str, down: &str) -> Option<Self> {
        let (router, directory) = (stage().filter(|_| has_nft())?, directory());
        let mut command = Command::new(cargo_bin("ucake"));
        command.args(["run", "tap:wan0", "tap:line0", "--up", up, "--down", down, "--control"]);
        command.arg(directory.join("control.sock"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut ucake = router.run(move || command.spawn()).expect("a program");
        await_that("an answer", || {
            assert!(ucake.try_wait().expect("our child").is_none(), "it ended");
            std::os::unix::net::UnixStream::connect(directory.join("control.sock")).is_ok()
        });
        let end = |name: &'static str| Namespace::new(name).expect("as before");
        let (hosts, server) = ([end("one"), end("two")], end("server"));
        let file = server.file().expect("it lives");
        router.run(move || netlink::move_to("line0", &file)).expect("it is there");
        give(&server, "line0", SERVER, 24);
        give(&router, "wan0", OUTSIDE, 24);
        for (number, (host, [own, gate])) in hosts.iter().zip(HOSTS).enumerate() {
            let [inner, outer] = [["lan0", "host0"], ["lan1", "host1"]][number];
            let file = host.file().expect("it lives");
            router.run(move || {
                netlink::add_veth(inner, outer).expect("veth");
                netlink::move_to(outer, &file).expect("it is there");
            });
            give(&router, inner, gate, 24);
            // A host takes all for its neighbours, and the router answers for them.
            give(host, outer, own, 16);
            let [answers, delay] =
                ["conf", "neigh"].map(|of| format!("/proc/sys/net/ipv4/{of}/{inner}/proxy_"));
            router.run(move || {
                fs::write(answers + "arp", "1").expect("root may");
                fs::write(delay + "delay", "0").expect("root may");
            });
        }
        router.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1")).expect("root may");
        masquerade(&router);
        for end in hosts.iter().chain([&server]) {
            // Marks rather than losses: shares are those of the queue, not of who waits for whom.
            end.run(|| fs::write("/proc/sys/net/ipv4/tcp_ecn", "1")).expect("root may");
        }
        Some(Self { hosts, router, server, directory, ucake })
    }

    fn tc(&self, line: &str) -> std::process::Output {
        let mut command = Command::new(cargo_bin("ucake"));
        command.arg("--control").arg(self.directory.join("control.sock"));
        command.args(line.split_whitespace()).output().expect("the binary was built")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.ucake.kill();
        let _ = self.ucake.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn give(namespace: &Namespace, device: &'static str, address: Ipv4Addr, prefix: u8) {
    let addresses = vec![(IpAddr::V4(address), prefix)];
    let options = LinkOptions { up: Some(true), addresses, ..LinkOptions::default() };
    namespace.run(move || netlink::configure(device, &options)).expect("it obeys");
}

/// Whether there is nft; a word about it if not.
fn has_nft() -> bool {
    let found = Command::new("nft").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        let required = std::env::var_os("UCAKE_REQUIRE_NETNS").is_some_and(|v| v == "1");
        assert!(!required, "UCAKE_REQUIRE_NETNS=1, but there is no nft; install nftables");
        eprintln!("SKIPPED, nothing was tested: there is no nft");
    }
    found
}

fn masquerade(router: &Namespace) {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = router.run(move || command.spawn()).expect("it was there a moment ago");
    let rules = child.stdin.take().expect("piped").write_all(MASQUERADE.as_bytes());
    rules.expect("it reads");
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success(), "nft: {}", text(&output.stderr));
}

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    Down,
}

/// Connections of a host, and what came through them.
struct Flows {
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

fn flows(world: &World, host: usize, count: usize, way: Way, stop: &Arc<AtomicBool>) -> Flows {
    let port = [5001, 5002][host];
    let to = SocketAddr::from((SERVER, port));
    let listener = world.server.run(move || TcpListener::bind(to)).expect("its address");
    let received = Arc::<AtomicU64>::default();
    let mut threads = Vec::new();
    for _ in 0..count {
        let near = world.hosts[host].run(move || TcpStream::connect_timeout(&to, PATIENCE));
        let near = near.expect("a connection through the router");
        let (far, peer) = listener.accept().expect("a connection");
        assert_eq!(peer.ip(), IpAddr::V4(OUTSIDE), "masqueraded");
        let (mut source, mut sink) = if way == Way::Up { (near, far) } else { (far, near) };
        let moment = Some(Duration::from_millis(50));
        source.set_write_timeout(moment).expect("more than nothing");
        sink.set_read_timeout(moment).expect("more than nothing");
        let (told, heard, count) = (Arc::clone(stop), Arc::clone(stop), Arc::clone(&received));
        threads.push(thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let _ = source.write(&[7; 16_384]);
            }
        }));
        threads.push(thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while !heard.load(Ordering::Relaxed) {
                let read = sink.read(&mut buffer).unwrap_or(0);
                count.fetch_add(u64::try_from(read).expect("lengths fit"), Ordering::Relaxed);
            }
        }));
    }
    Flows { received, threads }
}

/// What the host with eight flows gets, of what the one with one flow gets.
fn ratio(world: &World, way: Way) -> f64 {
    let stop = Arc::<AtomicBool>::default();
    let both = [flows(world, 0, 1, way, &stop), flows(world, 1, 8, way, &stop)];
    thread::sleep(Duration::from_millis(1500));
    let read = || both.each_ref().map(|flows| flows.received.load(Ordering::Relaxed));
    let before = read();
    thread::sleep(Duration::from_secs(3));
    let after = read();
    stop.store(true, Ordering::Relaxed);
    for thread in both.into_iter().flat_map(|flows| flows.threads) {
        thread.join().expect("it only talks");
    }
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    let [one, eight] = [0, 1].map(|host| (after[host] - before[host]) as f64);
    eprintln!("one flow {one}, eight flows {eight}");
    eight / one
}

#[test]
fn hosts_behind_a_router_share_alike_both_ways_if_told_to_look_through() {
    let Some(world) = World::new(
        "bandwidth 20mbit dual-srchost nat",
        "bandwidth 20mbit dual-dsthost nat ingress",
    ) else {
        return;
    };
    for way in [Way::Up, Way::Down] {
        let ratio = ratio(&world, way);
        assert!((0.8..1.25).contains(&ratio), "eight flows get {ratio} times as much as one");
    }
    for device in ["line0", "wan0"] {
        let output = world.tc(&format!("qdisc change dev {device} cake nonat"));
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let ratio = ratio(&world, Way::Up);
    assert!(ratio > 4.0, "without nat eight flows get {ratio} times as much as one");
    let output = world.tc("qdisc change dev line0 cake nat");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&world.tc("qdisc show dev line0").stdout).contains(" nat "));
    let _ = &world.router;
}

#[test]
fn pings_and_short_flows_of_thousands_of_ports_go_through_a_router() {
    let Some(world) = World::new("bandwidth 20mbit nat", "bandwidth 20mbit nat") else { return };
    let (sent, to) = (3000, SocketAddr::from((SERVER, 5003)));
    let sink = world.server.run(move || UdpSocket::bind(to)).expect("its address");
    sink.set_read_timeout(Some(Duration::from_millis(500))).expect("more than nothing");
    set_socket_recv_buffer_size_force(&sink, 4 << 20).expect("root of these namespaces may");
    let feed = world.hosts[0].spawn("ports", move || {
        for _ in 0..sent {
            let socket = UdpSocket::bind((HOSTS[0][0], 0)).expect("a port");
            socket.send_to(&[7; 100], to).expect("it is taken");
            thread::sleep(Duration::from_micros(300));
        }
    });
    let mut arrived = 0;
    while sink.recv(&mut [0; 200]).is_ok() {
        arrived += 1;
    }
    feed.expect("a thread").join().expect("it only sends");
    let shown = text(&world.tc("-s -d qdisc show dev line0").stdout);
    assert!(arrived > sent * 9 / 10, "{arrived} of {sent} arrived: {shown}");
    assert!(world.hosts[1].run(ping).is_ok(), "no echo came");
}

/// One echo to the server and back.
fn ping() -> std::io::Result<()> {
    let icmp = Some(rustix::net::ipproto::ICMP);
    let socket = socket(AddressFamily::INET, SocketType::RAW, icmp)?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((SERVER, 0))?;
    // Type 8, code 0, checksum, identifier and sequence number.
    socket.send(&[8, 0, 0xf7, 0xfe, 0, 0, 0, 1])?;
    loop {
        let mut packet = [0; 100];
        let len = socket.recv(&mut packet)?;
        if packet.get(20) == Some(&0) && len == 28 {
            return Ok(());
        }
    }
}
