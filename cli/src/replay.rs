//! `ucake replay`: a capture through CAKE, from file to file.
//!
//! Law: what is read is never written over; whatever ends it, what was written is whole.
//! Left out: the replaying ([`ucake_cli::capture`]).

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ucake::qdisc::{Config, Stats};
use ucake::units::FrameLen;
use ucake_cli::capture::play::{Player, Terms};
use ucake_cli::capture::read::{Capture, Counted, Findings};
use ucake_cli::capture::trace::{Trace, Tracer};
use ucake_cli::show::{Format, Place};
use ucake_cli::{json, show, words};

use crate::args::ReplayArgs;
use crate::interrupt::{self, Interrupt};

/// Bytes gathered before they are written.
const BUFFER: usize = 256 << 10;
/// Frames between two looks at signals and terminal.
const LOOK: u64 = 1024;
/// The handle of the discipline in the table.
const HANDLE: u16 = 0x8001;

type Sink = BufWriter<Named>;

/// Replays a capture.
pub(crate) fn replay(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let terms = Terms { config: config(args), mtu: FrameLen(args.mtu), seed: args.seed };
    let interrupt = Interrupt::watch()?;
    let input = open(&args.input).with_context(|| name(&args.input))?;
    for output in [Some(&args.output), args.trace.as_ref()].into_iter().flatten() {
        if is_same(input.metadata(), output.metadata()) {
            bail!("{}: this is the capture that is read", name(output));
        }
    }
    let size = input.metadata().map_or(0, |metadata| metadata.len());
    let (reader, position) = Counted::new(input);
    let progress = Progress::new(size, position, args.quiet);
    let capture = Capture::new(reader).with_context(|| name(&args.input))?;
    let run = Run { args, terms, interrupt, progress };
    match &args.trace {
        Some(path) => {
            let config = &run.terms.config;
            let sink = create(path)?;
            if path == &args.output || is_same(path.metadata(), args.output.metadata()) {
                bail!("{}: capture and trace cannot be one file", name(path));
            }
            let trace = Trace::new(sink, config.diffserv, config.ingress);
            run.through(capture, trace)
        }
        None => run.through(capture, ()),
    }
}

/// What the words ask for; ends the process if they cannot be followed.
fn config(args: &ReplayArgs) -> Config {
    let line = match args.words.split_first() {
        Some((kind, rest)) if kind == "cake" => rest.join(" "),
        _ => crate::bad_usage("replay", "say \"cake\" and its words behind the files"),
    };
    let change = words::parse_line(&line)
        .unwrap_or_else(|error| crate::bad_usage("replay", &error.to_string()));
    let config = Config::default().changed_by(&change);
    if config.nat {
        crate::bad_usage("replay", "nat: a capture does not say what was translated");
    }
    config
}

/// One replay.
struct Run<'a> {
    args: &'a ReplayArgs,
    terms: Terms,
    interrupt: Interrupt,
    progress: Progress,
}

impl Run<'_> {
    fn through<T: Tracer>(self, capture: Capture<'_>, trace: T) -> anyhow::Result<ExitCode> {
        let output = &self.args.output;
        let mut player =
            Player::new(&self.terms, create(output)?, trace).with_context(|| name(output))?;
        let mut count = 0_u64;
        let outcome = capture.read(|record| {
            count += 1;
            if count.is_multiple_of(LOOK) {
                self.progress.show();
                if self.interrupt.is_set() {
                    return ControlFlow::Break(Ok(()));
                }
            }
            match player.play(&record) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(Err(error)),
            }
        });
        self.progress.finish();
        // What was written is to be whole, whatever was wrong with the capture.
        let (broken, findings) = outcome.or_else(|error| {
            player.abandon();
            player.finish()?;
            Err(anyhow::Error::from(error).context(name(&self.args.input)))
        })?;
        let interrupted = matches!(broken, Some(Ok(())));
        if let Some(Err(error)) = broken {
            return Err(error.into());
        }
        let stats = if interrupted {
            let stats = player.stats();
            player.abandon();
            stats
        } else {
            player.drain()?;
            player.stats()
        };
        player.finish()?;
        self.report(&player, &stats, &findings);
        Ok(if interrupted { interrupt::EXIT_STATUS.into() } else { ExitCode::SUCCESS })
    }

    /// The table, on standard output unless that is the capture; what was odd, on standard error.
    fn report<T: Tracer>(&self, player: &Player<Sink, T>, stats: &Stats, findings: &Findings) {
        for line in findings.complaints().iter().chain(&player.oddities().remarks()) {
            eprintln!("ucake: {}: {line}", name(&self.args.input));
        }
        let place = Place { handle: HANDLE, dev: None, refcnt: 1 };
        let format = Format { statistics: true, details: self.args.details, ..Format::default() };
        let config = player.config();
        let text = if self.args.json {
            json::print(&[json::qdisc(&place, config, stats, format)], false)
        } else {
            show::qdisc(&place, config, stats, format)
        };
        if is_stream(&self.args.output) || self.args.trace.as_deref().is_some_and(is_stream) {
            eprint!("{text}");
        } else {
            crate::print(&text);
        }
    }
}

fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn open(path: &Path) -> io::Result<File> {
    if is_stream(path) {
        return Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    }
    File::open(path)
}

/// Whether both are one regular file, by whatever names.
fn is_same(one: io::Result<Metadata>, other: io::Result<Metadata>) -> bool {
    let (Ok(one), Ok(other)) = (one, other) else { return false };
    one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn create(path: &Path) -> anyhow::Result<Sink> {
    let sink: Box<dyn Write> = if is_stream(path) {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            bail!("a capture is nothing for a terminal; name a file");
        }
        Box::new(stdout)
    } else {
        Box::new(File::create(path).with_context(|| name(path))?)
    };
    Ok(BufWriter::with_capacity(BUFFER, Named { name: name(path), sink }))
}

/// A file whose errors say which it is.
struct Named {
    name: String,
    sink: Box<dyn Write>,
}

impl Named {
    fn blame(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.name))
    }
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sink.write(bytes).map_err(|error| self.blame(&error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush().map_err(|error| self.blame(&error))
    }
}

/// How much of the file is read, on a terminal.
struct Progress {
    bar: ProgressBar,
    position: Arc<AtomicU64>,
}

impl Progress {
    fn new(size: u64, position: Arc<AtomicU64>, quiet: bool) -> Self {
        let shown = io::stderr().is_terminal() && !quiet;
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        // What comes through a pipe has no size.
        let (size, template) = match size {
            0 => (None, "{spinner} {bytes} read"),
            size => (Some(size), "{bar:40} {bytes} of {total_bytes}, {eta} left"),
        };
        let bar = ProgressBar::with_draw_target(size, target);
        let style = ProgressStyle::with_template(template);
        // A template that does not parse is a line that looks plainer.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, position }
    }

    fn show(&self) {
        self.bar.set_position(self.position.load(Ordering::Relaxed));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
