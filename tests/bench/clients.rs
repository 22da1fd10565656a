//! What those who watch cost those who send: TCP through a running ucake, with and without 64 clients that ask for all
//! statistics ten times a second.
//!
//! `cargo bench -p ucake-cli --bench clients [-- --words WORDS] [--rounds N] [--seconds S]`, as root, on a machine that does little
//! else. Rounds alternate; the ratio is that of neighbours.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread::{self};
use std::time::{Duration, Instant};

use world::{Curious, Load, World};

#[path = "../../cli/tests/world/mod.rs"]
mod world;

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
    let load = Load::start(&world.ends());
    thread::sleep(Duration::from_secs(2));
    let (mut alone, mut ratios, mut answers) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        let before = mbit(&load, length);
        let curious = Curious::start(&world);
        let watched = mbit(&load, length);
        answers += curious.stop().iter().sum::<u32>();
        let after = mbit(&load, length);
        let mean = f64::midpoint(before, after);
        alone.push(mean);
        ratios.push(watched / mean);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (rate, ratio) = (median(&mut alone), median(&mut ratios));
    println!(
        "{words}: {rate:.0} Mbit/s alone; of it with {} clients {ratio:.3} ({:.3} … {:.3}), {answers} answers",
        Curious::CLIENTS,
        ratios[0],
        ratios[ratios.len() - 1]
    );
    Ok(ExitCode::SUCCESS)
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn mbit(load: &Load, length: Duration) -> f64 {
    let (start, bytes) = (Instant::now(), load.received.load(Ordering::Relaxed));
    thread::sleep(length);
    let more = load.received.load(Ordering::Relaxed) - bytes;
    more as f64 * 8e-6 / start.elapsed().as_secs_f64()
}
