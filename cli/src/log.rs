//! What is logged, on standard error.
//!
//! Problem: a configuration file says how much, and it is read after the first words are due, and again later.
//! Source: `RUST_LOG`, which says it in more detail and therefore wins.
//! Law: warnings and what is worse, unless somebody says otherwise. Who says the same again and again is cut short.
//! Colours are for terminals, and the journal knows the time itself.
//! Left out: where it goes from there.

mod limit;

use std::io::{IsTerminal as _, stderr};

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};
use ucake_cli::plan::LogLevel;

use limit::Limit;

/// What turns it up and down while we run; nothing where the environment has a say.
static LEVEL: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();

/// From now on.
pub(crate) fn to_stderr() {
    let filter = filter(LevelFilter::WARN);
    let (filter, handle) = reload::Layer::new(filter);
    let layer =
        tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    let layer = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => layer.event_format(Limited::new(Format::default().without_time())).boxed(),
        None => layer.event_format(Limited::new(Format::default())).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(layer).init();
    if std::env::var_os(EnvFilter::DEFAULT_ENV).is_none() {
        // Once is all it is called.
        let _ = LEVEL.set(handle);
    }
}

/// As a file says, unless the environment says otherwise.
pub(crate) fn set_level(level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    if let Some(handle) = LEVEL.get() {
        // Nobody takes the subscriber away.
        let _ = handle.reload(filter(level));
    }
}

fn filter(level: LevelFilter) -> EnvFilter {
    EnvFilter::builder().with_default_directive(level.into()).from_env_lossy()
}

/// Lines as ever, but not too many.
struct Limited<F> {
    limit: Mutex<Limit<Identifier>>,
    format: F,
}

impl<F> Limited<F> {
    fn new(format: F) -> Self {
        Self { limit: Mutex::new(Limit::new()), format }
    }
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    F: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        match limit.admit(event.metadata().callsite(), Instant::now()) {
            // Nothing is written then.
            None => return Ok(()),
            Some(0) => {}
            Some(more) => writeln!(writer, "({more} lines like the next one were left out)")?,
        }
        drop(limit);
        self.format.format_event(context, writer, event)
    }
}
