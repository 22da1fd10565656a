//! What is printed about disciplines: the seam to the forms of `tc`.
//!
//! Problem: the same discipline is shown as text, as JSON, at once and when it changes.
//! Law: everything that chooses between the forms is here; the forms themselves are in `ucake_cli`.

use ucake_cli::protocol::{Event, Shown, State};
use ucake_cli::show::{self, Place};
use ucake_cli::tc::Options;
use ucake_cli::value;

use super::Failure;

/// References that a device holds to its discipline, as a device with one queue does.
const REFERENCES: u32 = 2;

/// `qdisc show`; `named` if whoever reads it named the port.
pub(super) fn qdiscs(shown: &[Shown], named: bool, options: &Options) -> Result<String, Failure> {
    not_yet(options.json, "-j")?;
    not_yet(options.iec, "-iec")?;
    Ok(shown.iter().map(|shown| qdisc(shown, named, options)).collect())
}

/// `class show`.
pub(super) fn classes(_shown: &[Shown], _options: &Options) -> Result<String, Failure> {
    Err(Failure::usage("ucake: class show is not supported yet"))
}

/// A line of `monitor`.
pub(super) fn change(event: Event, shown: &Shown, options: &Options) -> Result<String, Failure> {
    not_yet(options.json, "-j")?;
    let prefix = match event {
        Event::Added => "added ",
        Event::Replaced => "replaced ",
        Event::Changed => "",
        Event::Deleted => "deleted ",
    };
    Ok(format!("{prefix}{}\n", first_line(shown, false)))
}

fn not_yet(asked: bool, option: &str) -> Result<(), Failure> {
    if asked {
        return Err(Failure::usage(format!("ucake: {option} is not supported here yet")));
    }
    Ok(())
}

fn qdisc(shown: &Shown, named: bool, options: &Options) -> String {
    let mut text = first_line(shown, named) + "\n";
    if options.statistics {
        text += &statistics(shown);
    }
    if let (State::Cake { config, stats, .. }, true) = (&shown.state, options.details) {
        text += &show::runs(config, stats);
    }
    text
}

/// The first line, with the blank at its end and without a line feed.
fn first_line(shown: &Shown, named: bool) -> String {
    let dev = (!named).then_some(shown.device.as_str());
    match &shown.state {
        State::Cake { config, .. } => {
            show::first_line(&Place { handle: shown.handle, dev, refcnt: REFERENCES }, config)
        }
        State::Pfifo { limit, .. } => {
            let dev = dev.map_or_else(String::new, |dev| format!("dev {dev} "));
            format!("qdisc pfifo {:x}: {dev}root refcnt {REFERENCES} limit {limit}p", shown.handle)
        }
    }
}

fn statistics(shown: &Shown) -> String {
    match &shown.state {
        State::Cake { stats, .. } => show::statistics(stats),
        State::Pfifo { stats, backlog, .. } => format!(
            " Sent {} bytes {} pkt (dropped {}, overlimits 0 requeues 0) \n backlog {} {}p requeues 0\n",
            stats.sent_bytes,
            stats.sent_packets,
            stats.dropped,
            value::size(u64::from(*backlog)),
            stats.queued_packets,
        ),
    }
}

/// Text of `-s`, and below it what only ucake counts.
pub(crate) fn everything(shown: &Shown) -> String {
    let options = Options { statistics: true, details: true, ..Options::default() };
    qdisc(shown, false, &options)
}
