//! What those who watch cost those who send: TCP through a running ucake, with and without 64 clients that ask for all
//! statistics ten times a second.
//!
//! `cargo bench -p ucake-cli --bench clients [-- --words WORDS] [--rounds N] [--seconds S]`, as root, on a machine that
//! does little else. Turns alternate: nobody, the clients, nobody, nobody for the clients, and so on. A ratio is that
//! of a turn to the mean of its neighbours; the control is the same ratio where nobody asks, and tells what the
//! machine itself makes of it. The clients are one thread that reads answers and does not look into them, so that
//! what is measured is what answering costs.

#![allow(clippy::cast_precision_loss, reason = "far below 2^53")]

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ucake_cli::protocol::{self, Request};
use world::{Curious, Load, World};

#[path = "../../cli/tests/world/mod.rs"]
mod world;

/// How often each client asks.
const PERIOD: Duration = Duration::from_millis(100);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (mut args, mut asked) = (std::env::args().skip(1), false);
    let (mut words, mut rounds, mut length) =
        ("bandwidth 500mbit".to_owned(), 7, Duration::from_secs(2));
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match &*arg {
            "--bench" => asked = true,
            "--words" => words = value()?,
            "--rounds" => rounds = value()?.parse::<usize>()?.max(1),
            "--seconds" => length = Duration::try_from_secs_f64(value()?.parse()?)?,
            _ => return Err(format!("{arg}? --words, --rounds, --seconds").into()),
        }
    }
    if !asked {
        println!("run by: cargo bench -p ucake-cli --bench clients");
        return Ok(ExitCode::SUCCESS);
    }
    let world = World::running(words.clone().leak()).ok_or("no namespaces here")?;
    let ends = world.ends();
    let load = Load::start(&ends);
    thread::sleep(Duration::from_secs(2));
    let (mut alone, mut watched, mut control, mut answers) = (vec![], vec![], vec![], 0);
    let mut before = mbit(&load, length);
    for round in 0..2 * rounds {
        let clients = (round % 2 == 0).then(|| Clients::start(&world));
        let during = mbit(&load, length);
        let kept = if clients.is_some() { &mut watched } else { &mut control };
        answers += clients.map_or(0, Clients::stop);
        let after = mbit(&load, length);
        let mean = f64::midpoint(before, after);
        kept.push(during / mean);
        alone.push(mean);
        before = after;
    }
    let asked_for = rounds as f64 * length.as_secs_f64() / PERIOD.as_secs_f64();
    println!(
        "{words}: {:.0} Mbit/s alone; of it with {} clients {}, without them {}; {:.2} of the answers wanted",
        spread(&mut alone)[1],
        Curious::CLIENTS,
        told(&mut watched),
        told(&mut control),
        answers as f64 / (asked_for * Curious::CLIENTS as f64),
    );
    Ok(ExitCode::SUCCESS)
}

/// Smallest, median and largest.
fn spread(values: &mut [f64]) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

fn told(ratios: &mut [f64]) -> String {
    let [least, median, most] = spread(ratios);
    format!("{median:.3} ({least:.3} … {most:.3})")
}

fn mbit(load: &Load, length: Duration) -> f64 {
    let (start, bytes) = (Instant::now(), load.received.load(Ordering::Relaxed));
    thread::sleep(length);
    let more = load.received.load(Ordering::Relaxed) - bytes;
    more as f64 * 8e-6 / start.elapsed().as_secs_f64()
}

/// As many connections as there may be, over each of which one thread asks.
struct Clients {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Clients {
    fn start(world: &World) -> Self {
        let connect = |_| UnixStream::connect(world.socket()).expect("somebody listens");
        let mut streams: Vec<_> = (0..Curious::CLIENTS).map(connect).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut answers, mut next) = (0, Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                for stream in &mut streams {
                    ask(stream);
                    answers += 1;
                    // Each at a time of its own, as they would come by themselves.
                    next += PERIOD / 64;
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
            answers
        });
        Self { stop, thread }
    }

    /// How many answers they got.
    fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("they were answered")
    }
}

/// Asks and reads a line.
fn ask(stream: &mut UnixStream) {
    let request = protocol::write_request(&Request::Show { port: None, queues: false });
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut chunk = [0; 32_768];
    loop {
        let count = stream.read(&mut chunk).expect("it answers");
        assert!(count > 0, "it goes on");
        if chunk[..count].last() == Some(&b'\n') {
            return;
        }
    }
}
