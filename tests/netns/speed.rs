//! What the bridge costs, beside the shortest relay there is. By hand:
//! `cargo build --release --example relay && cargo test --release --test netns -- --ignored
//! --nocapture`

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ucake::io::netlink::Netlink;

use crate::fifo::Fifo;
use crate::lab::{CLIENT, Lab, SERVER, configure};
use crate::require_netns;

const STREAMS: u16 = 4;
const LENGTH: Duration = Duration::from_secs(3);

#[test]
#[ignore = "measures: run it by hand, on a quiet machine"]
fn bridge_beside_relay() {
    if require_netns().is_none() {
        return;
    }
    for _ in 0..3 {
        let lab = Lab::new();
        let bridge = lab.bridge(Fifo::default);
        report("bridge", bridge.task, || lab.upload(STREAMS, LENGTH));
        let [lan, _] = bridge.snapshot().ports;
        println!("        mean read {}", lan.counters.bytes_in / lan.counters.frames_in);
        bridge.stop().expect("a clean stop");

        let lab = Lab::new();
        let mut relay = relay(&lab);
        let task = i32::try_from(relay.id()).expect("process numbers fit");
        report("relay", task, || lab.upload(STREAMS, LENGTH));
        relay.kill().expect("it runs");
        relay.wait().expect("it ends");
    }
}

fn report(what: &str, task: i32, upload: impl FnOnce() -> u64) {
    let (start, cpu) = (Instant::now(), cpu_nanos(task));
    let bytes = upload();
    let (wall, cpu) = (start.elapsed().as_nanos(), u128::from(cpu_nanos(task) - cpu));
    let rate = u128::from(bytes) * 8 * 1000 / wall;
    let per_kilobyte = cpu * 1000 / u128::from(bytes);
    println!("{what:7} {rate} Mbit/s, {per_kilobyte} ns of its thread per kB");
}

/// Time a thread has spent on a processor.
fn cpu_nanos(task: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{task}/schedstat")).expect("/proc");
    let nanos = stat.split(' ').next().and_then(|field| field.parse().ok());
    nanos.expect("schedstat begins with nanoseconds")
}

/// The example, with one tap in each namespace.
fn relay(lab: &Lab) -> std::process::Child {
    let far = lab.server.file().expect("/proc");
    let relay = lab.client.run(move || {
        let mut relay = Command::new(relay_path())
            .args(["lan0", "wan0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example is built");
        let mut line = String::new();
        let output = relay.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("it says ready");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.expect("a runtime").block_on(async {
            let netlink = Netlink::connect().expect("netlink");
            netlink.move_to("wan0", &far).await.expect("it moves");
        });
        configure("lan0", CLIENT);
        relay
    });
    lab.server.run(|| configure("wan0", SERVER));
    relay
}

/// `target/PROFILE/deps/netns-…` → `target/PROFILE/examples/relay`.
fn relay_path() -> PathBuf {
    let test = std::env::current_exe().expect("we run");
    test.ancestors().nth(2).expect("two levels up").join("examples/relay")
}
