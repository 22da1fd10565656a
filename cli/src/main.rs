//! The `ucake` command.
//!
//! Words and their meaning, numbers, and what is printed are in the library of this package, `ucake_cli`;
//! `run` and `lab` are what there is to do, and what `tc` does (`verbs`) to a `run` that runs.

mod args;
mod client;
mod control;
mod interrupt;
mod lab;
mod log;
mod run;
mod signals;
mod supervise;
mod translation;
mod verbs;
mod work;

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use ucake::io::{packet_socket, tap};
use ucake::qdisc::Entropy;

use args::{Args, Command, DoctorArgs};
use ucake_cli::doctor::Patient;
use ucake_cli::{manual, tc};

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let (program, words) = words.split_first().map_or(("", &[][..]), |(name, rest)| (name, rest));
    let by_its_name = Path::new(program).file_name().is_some_and(|name| name == "tc");
    if by_its_name || tc::is_tc(words) {
        return verbs::main(words, by_its_name);
    }
    let args = Args::parse();
    log::to_stderr();
    let outcome = match &args.command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => run::check(args),
        Command::Lab(args) => lab::lab(args),
        Command::Upgrade(args) => supervise::ask_to_upgrade(args),
        Command::Data => supervise::data().map(|()| ExitCode::SUCCESS),
        Command::Resume(args) => supervise::resume(args),
        Command::Doctor(args) => Ok(doctor(args)),
        Command::Completions { shell } => {
            print(&manual::completions(&Args::command(), *shell));
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ucake: {}", explain(&error));
        if is_bad_usage(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
    })
}

fn doctor(args: &DoctorArgs) -> ExitCode {
    let mut patients = running(args.control.as_deref());
    for port in &args.ports {
        if patients.iter().all(|patient| patient.port != *port) {
            patients.push(Patient { port: port.clone(), is_running: false });
        }
    }
    let (report, ok) = ucake_cli::doctor::doctor(args.json, &patients);
    print(&report);
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The ports of those that run and tell us.
fn running(control: Option<&Path>) -> Vec<Patient> {
    let clients = client::Client::all(control).unwrap_or_default();
    let ports = clients.into_iter().flat_map(|mut client| client.ports().unwrap_or_default());
    let patient = |port: String| Some(Patient { port: port.parse().ok()?, is_running: true });
    ports.filter_map(|line| patient(line.port)).collect()
}

/// Whether a port was given a name that no device can have, or a file says nothing that could be run.
fn is_bad_usage(error: &anyhow::Error) -> bool {
    error.is::<run::PlanError>()
        || matches!(error.downcast_ref(), Some(tap::OpenError::Name { .. }))
        || matches!(error.downcast_ref(), Some(packet_socket::OpenError::Name { .. }))
}

/// Ends the process as `clap` does when it finds fault itself.
fn bad_usage(subcommand: &str, message: &str) -> ! {
    let mut command = Args::command();
    command.build();
    let command = command.find_subcommand_mut(subcommand).expect("the caller names one of ours");
    command.error(ErrorKind::ArgumentConflict, message).exit()
}

/// An error and its causes in one line; a cause that the message already tells is not told again.
fn explain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |line, cause| {
        if line.is_empty() {
            cause
        } else if line.contains(&cause) {
            line
        } else {
            format!("{line}: {cause}")
        }
    })
}

/// Prints to standard output. If nobody reads it any more, that is no reason to stop.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Randomness that strangers cannot guess: the standard library seeds its hash keys with the system's.
fn secret() -> Entropy {
    let number = || RandomState::new().hash_one(0_u8);
    Entropy { hash_key: (number(), number()), seed: number() }
}
