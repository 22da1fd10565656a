//! The `ucake` command.
//!
//! Words and their meaning are in `words`, numbers in `value`, what is printed in `show`; `run` and
//! `lab` are what there is to do.

mod args;
mod interrupt;
mod lab;
mod run;
mod show;
mod value;
mod words;

use std::hash::BuildHasher as _;
use std::hash::RandomState;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use ucake::qdisc::Entropy;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    log_to_stderr();
    let outcome = match &args.command {
        Command::Run(run) if run.lan.device() == run.wan.device() => {
            let message = format!("LAN and WAN are both {}; give two different ports", run.lan);
            Args::command().error(ErrorKind::ArgumentConflict, message).exit()
        }
        Command::Run(args) => run::run(args),
        Command::Lab(args) => lab::lab(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ucake: {error:#}");
        ExitCode::FAILURE
    })
}

fn log_to_stderr() {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// Randomness that strangers cannot guess: the standard library seeds its hash keys with the system's.
fn secret() -> Entropy {
    let number = || RandomState::new().hash_one(0_u8);
    Entropy { hash_key: (number(), number()), seed: number() }
}
