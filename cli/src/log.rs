//! What is logged, on standard error.
//!
//! Problem: a configuration file says how much, and it is read after the first words are due, and again later.
//! Source: `RUST_LOG`, which says it in more detail and therefore wins.
//! Law: warnings and what is worse, unless somebody says otherwise. Colours are for terminals, and the journal knows the
//! time itself.
//! Left out: where it goes from there.

use std::io::{IsTerminal as _, stderr};
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt};
use ucake_cli::plan::LogLevel;

/// What turns it up and down while we run; nothing where the environment has a say.
static LEVEL: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();

/// From now on.
pub(crate) fn to_stderr() {
    let filter = filter(LevelFilter::WARN);
    let (filter, handle) = reload::Layer::new(filter);
    let layer = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    let layer = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => layer.without_time().boxed(),
        None => layer.boxed(),
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
