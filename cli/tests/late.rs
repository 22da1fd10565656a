//! A machine that is busy with other things: wake-ups come late, the rate stays.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ucake::io::namespace::Namespace;

use world::{CLIENT, SERVER, World};

mod world;

const PAYLOAD: usize = 1400;
/// What each datagram has around it on the wire that is shaped: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;
const LENGTH: Duration = Duration::from_secs(4);

/// Threads that do nothing, as fast as they can: two for each processor.
struct Burners {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Burners {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = 2 * thread::available_parallelism().map_or(2, usize::from);
        let burn = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..count).map(burn).collect();
        Self { stop, threads }
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Datagrams from client to server at twice the rate, for a while; what arrived, in bit/s of frames, between the first
/// one and the last, and how many seconds these are apart.
fn through([client, server]: &[Namespace; 2], rate: u64) -> (f64, f64) {
    let to = SocketAddr::from((SERVER, 5001));
    let sink = server.run(move || UdpSocket::bind(to)).expect("the address is ours");
    sink.set_read_timeout(Some(Duration::from_millis(800))).expect("more than nothing");
    // Whoever receives is late as well.
    set_socket_recv_buffer_size_force(&sink, 16 << 20).expect("root of these namespaces may");
    let source = client.run(|| UdpSocket::bind((CLIENT, 0))).expect("the address is ours");
    let feed = thread::spawn(move || {
        let begun = Instant::now();
        let mut sent = 0.0;
        while begun.elapsed() < LENGTH {
            let due = begun.elapsed().as_secs_f64() * rate as f64 * 2.0 / 8.0;
            while sent < due {
                // A full device is what it is about.
                let _ = source.send_to(&[7; PAYLOAD], to);
                sent += PAYLOAD as f64;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let (mut buffer, mut count, mut first, mut last) = ([0; 2048], 0_u32, None, Instant::now());
    while sink.recv(&mut buffer).is_ok() {
        last = Instant::now();
        first.get_or_insert(last);
        count += 1;
    }
    feed.join().expect("it only sends");
    let span = (last - first.expect("something arrived")).as_secs_f64();
    (f64::from(count - 1) * (PAYLOAD + HEADERS) as f64 * 8.0 / span, span)
}

/// Time that the shaper says it gave up so far, in seconds.
fn given_up(world: &World) -> f64 {
    shown(world)["ucake"]["given_up_us"].as_f64().expect("a number") / 1e6
}

fn shown(world: &World) -> Value {
    let text = world.done("-s -d -j qdisc show dev wan0");
    serde_json::from_str::<Value>(&text).expect("it is JSON")[0].take()
}

/// What arrives of `rate`, once of three times, is within 2 % of it; each time what the shaper says to have given up
/// explains what is missing.
fn holds(words: &'static str, rate: u64) {
    let Some(world) = World::running(words) else { return };
    let ends = world.ends();
    let _busy = Burners::start();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (share, lost) = explained(&world, &ends, rate);
        seen.push((share, lost));
        if (share - 1.0).abs() < 0.02 {
            return;
        }
    }
    panic!("of {rate} bit/s (arrived, given up): {seen:?}");
}

/// Which part of `rate` arrived, and how many seconds of it the shaper says to have given up.
fn explained(world: &World, ends: &[Namespace; 2], rate: u64) -> (f64, f64) {
    let before = given_up(world);
    let (arrived, span) = through(ends, rate);
    let share = arrived / rate as f64;
    let lost = (given_up(world) - before) / span;
    eprintln!("of {rate} bit/s {share:.4} arrived, {lost:.4} were given up");
    assert!((share + lost - 1.0).abs() < 0.02, "the two are not one");
    (share, lost * span)
}

#[test]
fn the_rate_is_held_on_a_machine_that_is_busy() {
    holds("bandwidth 20mbit", 20_000_000);
    holds("bandwidth 100mbit", 100_000_000);
}

#[test]
fn what_a_process_that_was_stopped_did_not_send_is_told_as_given_up() {
    const STOPPED: Duration = Duration::from_millis(500);
    let Some(world) = World::running("bandwidth 20mbit") else { return };
    let ends = world.ends();
    let data =
        shown(&world)["ucake"]["process"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let data = data.and_then(Pid::from_raw).expect("the number of a process");
    let stop = thread::spawn(move || {
        thread::sleep(LENGTH / 4);
        kill_process(data, Signal::STOP).expect("it is ours");
        thread::sleep(STOPPED);
        kill_process(data, Signal::CONT).expect("it is ours");
    });
    let (_, lost) = explained(&world, &ends, 20_000_000);
    stop.join().expect("it only sends signals");
    // All but what may be made up for.
    let expected = STOPPED.as_secs_f64() - 0.025;
    assert!((lost - expected).abs() < 0.06, "{lost} s and not {expected} s");
}
