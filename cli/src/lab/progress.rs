//! A line that shows that something happens.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::table::rate;
use crate::interrupt::Interrupt;

/// Time between two looks at what was received.
const TICK: Duration = Duration::from_millis(200);

/// One line on a terminal, rewritten; elsewhere one line per run.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    plain: bool,
    runs: usize,
}

impl Progress {
    pub(super) fn new(runs: usize) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let target =
            if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{pos:.dim} {prefix}: {wide_msg}");
        // A template that does not parse is a line that looks plainer.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { bar, plain, runs }
    }

    /// Another run begins.
    pub(super) fn start(&self, name: &str) {
        self.bar.inc(1);
        self.bar.set_prefix(format!("of {}: {name}", self.runs));
        if self.plain {
            eprintln!("run {} of {}: {name}", self.bar.position(), self.runs);
        }
    }

    /// Says what is going on.
    pub(super) fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Waits until `deadline` and shows at what rate `received` grows. True if interrupted.
    pub(super) fn watch(
        &self,
        interrupt: &Interrupt,
        deadline: Instant,
        what: &str,
        received: impl Fn() -> u64,
    ) -> bool {
        let (mut bytes, mut at) = (received(), Instant::now());
        while Instant::now() < deadline {
            if interrupt.sleep_until(deadline.min(Instant::now() + TICK)) {
                return true;
            }
            let now = Instant::now();
            let bits = super::bit_rate(received().saturating_sub(bytes), now - at);
            (bytes, at) = (received(), now);
            let left = deadline.saturating_duration_since(now).as_secs_f32();
            let shown = if bytes == 0 { String::new() } else { format!(", {}", rate(bits)) };
            self.say(&format!("{what}{shown}, {left:.0} s left"));
        }
        false
    }

    /// Removes the line.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
