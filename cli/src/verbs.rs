//! `qdisc`, `class`, `monitor` and `-batch`: what `tc` does, against a running ucake.
//!
//! Problem: one command line may concern any of several running bridges.
//! Law: find who has the port, ask, print; the exit status is that of `tc`.
//! Left out: words before those of CAKE (`ucake_cli::tc`), what is printed ([`format`]).

mod format;

use std::io::Read as _;
use std::process::ExitCode;
use std::thread;

use ucake_cli::protocol::{Class, Order, Refusal, Reply, Request, Shown};
use ucake_cli::tc::{self, Command, Modify, Options, TcError};

use crate::client::{Client, ClientError};
pub(crate) use format::everything;

/// Obeys a command line of `tc`'s; `by_its_name` if the program was called so.
pub(crate) fn main(args: &[String], by_its_name: bool) -> ExitCode {
    let outcome = tc::options(args).map_err(Failure::from).and_then(|(options, words)| {
        match &options.batch {
            _ if options.version => {
                crate::print(concat!("tc utility, ucake-", env!("CARGO_PKG_VERSION"), "\n"));
                Ok(())
            }
            Some(file) => batch(file, &options, by_its_name),
            None => tc::command(&words)
                .map_err(Failure::from)
                .and_then(|command| obey(&command, &options, by_its_name)),
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let Failure { message, exit } = failure;
            // Who typed tc is to type tc again.
            let try_again = if by_its_name { "try \"tc " } else { "try \"ucake " };
            eprintln!("{}", message.replace("try \"ucake ", try_again));
            ExitCode::from(exit)
        }
    }
}

/// What went wrong, and the exit status for it.
#[derive(Debug)]
struct Failure {
    message: String,
    exit: u8,
}

impl Failure {
    fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit: TcError::USAGE }
    }

    fn tell(&self) {
        eprintln!("{}", self.message);
    }
}

impl From<TcError> for Failure {
    fn from(TcError { message, exit }: TcError) -> Self {
        Self { message, exit }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::usage(format!("ucake: {error}"))
    }
}

impl From<Refusal> for Failure {
    fn from(Refusal { class, message }: Refusal) -> Self {
        let exit = if class == Class::State { TcError::REFUSED } else { TcError::USAGE };
        Self { message, exit }
    }
}

fn obey(command: &Command, options: &Options, by_its_name: bool) -> Result<(), Failure> {
    match command {
        Command::Help => crate::print(tc::HELP),
        Command::Monitor => return monitor(options),
        Command::Qdiscs { dev, handle } => {
            let mut shown = show(dev.as_deref(), options, by_its_name, false)?;
            shown.retain(|shown| handle.is_none_or(|handle| shown.handle == handle));
            crate::print(&format::qdiscs(&shown, dev.is_some(), options));
        }
        Command::Classes { dev } => {
            let shown = show(Some(dev), options, by_its_name, true)?;
            crate::print(&format::classes(&shown, options));
        }
        Command::Modify(Modify { verb, dev, handle, words }) => {
            let mut client = owner(dev, options, by_its_name)?;
            let order =
                Order { verb: *verb, port: dev.clone(), handle: *handle, words: words.clone() };
            match client.ask(&Request::Apply(order))? {
                Reply::Done => {}
                Reply::Refused(refusal) => return Err(refusal.into()),
                other => return Err(client.strange(&other).into()),
            }
        }
    }
    Ok(())
}

/// The disciplines of one port, or of all ports there are.
fn show(
    dev: Option<&str>,
    options: &Options,
    by_its_name: bool,
    queues: bool,
) -> Result<Vec<Shown>, Failure> {
    let clients = match dev {
        Some(dev) => vec![owner(dev, options, by_its_name)?],
        None => Client::all(options.control.as_deref())?,
    };
    let (mut all, mut failed) = (Vec::new(), None);
    for mut client in clients {
        let port = dev.map(str::to_owned);
        let answer = client.ask(&Request::Show { port, queues }).map_err(Failure::from);
        match answer {
            Ok(Reply::Shown { disciplines }) => all.extend(disciplines),
            Ok(Reply::Refused(refusal)) => failed = Some(refusal.into()),
            Ok(other) => failed = Some(client.strange(&other).into()),
            Err(failure) => failed = Some(failure),
        }
    }
    // One that is in trouble does not hide the others.
    if all.is_empty() { failed.map_or(Ok(all), Err) } else { Ok(all) }
}

/// Whoever has this port.
fn owner(dev: &str, options: &Options, by_its_name: bool) -> Result<Client, Failure> {
    let (mut known, mut failed) = (Vec::new(), None);
    for mut client in Client::all(options.control.as_deref())? {
        let ports = match client.ports() {
            Ok(ports) => ports,
            // One that is in trouble does not hide the others.
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        if ports.iter().any(|line| line.is(dev)) {
            return Ok(client);
        }
        known.extend(ports.into_iter().map(|line| line.port));
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    let elsewhere =
        if by_its_name { "; this is ucake: for other devices call the system's tc" } else { "" };
    Err(Failure::usage(format!(
        "Cannot find device \"{dev}\"\n  ucake's ports are {}{elsewhere}",
        known.join(", ")
    )))
}

/// Command by command; the first that fails is the last, unless forced.
fn batch(file: &str, options: &Options, by_its_name: bool) -> Result<(), Failure> {
    let text = if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|error| {
        Failure::usage(format!("Cannot open file \"{file}\" for reading: {error}"))
    })?;
    let mut failed = None;
    for (number, words) in tc::batch(&text) {
        let outcome = tc::command(&words)
            .map_err(Failure::from)
            .and_then(|command| obey(&command, options, by_its_name));
        let Err(failure) = outcome else { continue };
        failure.tell();
        let last = Failure::usage(format!("Command failed {file}:{number}"));
        if !options.force {
            return Err(last);
        }
        if let Some(before) = failed.replace(last) {
            before.tell();
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Prints what changes until everybody whom it could come from is gone.
fn monitor(options: &Options) -> Result<(), Failure> {
    let watchers = Client::all(options.control.as_deref())?.into_iter().map(|client| {
        let options = options.clone();
        thread::spawn(move || watch(client, &options))
    });
    let watchers: Vec<_> = watchers.collect();
    for watcher in watchers {
        watcher.join().map_err(|_| Failure::usage("ucake: a watcher failed"))??;
    }
    Ok(())
}

fn watch(mut client: Client, options: &Options) -> Result<(), Failure> {
    match client.ask(&Request::Watch)? {
        Reply::Watching => client.wait_forever()?,
        Reply::Refused(refusal) => return Err(refusal.into()),
        other => return Err(client.strange(&other).into()),
    }
    while let Some(reply) = client.next()? {
        match reply {
            Reply::Changed { event, discipline } => {
                crate::print(&format::change(event, &discipline, options));
            }
            other => return Err(client.strange(&other).into()),
        }
    }
    Ok(())
}
