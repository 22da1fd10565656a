//! What is printed about disciplines: which of `tc`'s forms.
//!
//! Problem: the same discipline is shown as text, as JSON, at once and when it changes.
//! Law: everything that chooses between the forms is here; the forms themselves are in `ucake_cli`.

use serde_json::Value;
use ucake::qdisc::FifoStats;
use ucake::units::FrameLen;
use ucake_cli::pass_through::PassThrough;
use ucake_cli::protocol::{Event, Shown, State};
use ucake_cli::show::{self, Format, Place};
use ucake_cli::tc::Options;
use ucake_cli::{class, json, pass_through};

/// References that a device holds to its discipline, as a device with one queue does.
const REFERENCES: u32 = 2;

/// `qdisc show`; `named` if whoever reads it named the port.
pub(super) fn qdiscs(shown: &[Shown], named: bool, options: &Options) -> String {
    let format = format_of(options);
    if options.json {
        let objects: Vec<_> = shown.iter().map(|shown| object(shown, named, format)).collect();
        return json::print(&objects, options.pretty);
    }
    shown.iter().map(|shown| text(shown, named, format)).collect()
}

/// `class show` of a port that was named; a pass-through has no classes.
pub(super) fn classes(shown: &[Shown], options: &Options) -> String {
    let format = format_of(options);
    let queues = shown.iter().filter_map(|shown| match &shown.state {
        State::Cake { queues, .. } => Some((place(shown, true), queues.as_deref()?)),
        State::Pfifo { .. } => None,
    });
    if options.json {
        let objects = queues.flat_map(|(place, queues)| class::json(&place, queues, format));
        return json::print(&objects.collect::<Vec<_>>(), options.pretty);
    }
    queues.map(|(place, queues)| class::text(&place, queues, format)).collect()
}

/// What `monitor` prints of a change: text, even under `-j`, as of `tc`.
pub(super) fn change(event: Event, shown: &Shown, options: &Options) -> String {
    let format = format_of(options);
    match event {
        Event::Added | Event::Changed => text(shown, false, format),
        // No device refers to it any more.
        Event::Deleted => {
            let place = Place { refcnt: 1, ..place(shown, false) };
            "deleted ".to_owned() + &text_at(&place, shown, format)
        }
    }
}

/// What is said under `-s`, and below it what only ucake counts where `tc` has no word for what is configured.
pub(crate) fn everything(shown: &Shown) -> String {
    let ours = match &shown.state {
        State::Cake { config, stats, .. } => show::runs(config, stats),
        State::Pfifo { .. } => String::new(),
    };
    text(shown, false, Format { statistics: true, ..Format::default() }) + &ours
}

fn format_of(options: &Options) -> Format {
    let Options { statistics, details, raw, iec, .. } = *options;
    Format { statistics, details, iec, raw }
}

fn place(shown: &Shown, named: bool) -> Place<'_> {
    let dev = (!named).then_some(shown.device.as_str());
    Place { handle: shown.handle, dev, refcnt: REFERENCES }
}

fn text(shown: &Shown, named: bool, format: Format) -> String {
    text_at(&place(shown, named), shown, format)
}

fn text_at(place: &Place<'_>, shown: &Shown, format: Format) -> String {
    let discipline = match &shown.state {
        State::Cake { config, stats, .. } => show::qdisc(place, config, stats, format),
        State::Pfifo { limit, backlog, stats } => {
            pass_through::text(place, &queue(*limit, *backlog, *stats), format)
        }
    };
    if !format.details {
        return discipline;
    }
    let port = shown.counts.iter().map(|counts| format!(" {}", show::port(&shown.device, counts)));
    discipline + &port.chain(shown.supervision.iter().map(show::supervision)).collect::<String>()
}

fn object(shown: &Shown, named: bool, format: Format) -> Value {
    let place = place(shown, named);
    let mut object = match &shown.state {
        State::Cake { config, stats, .. } => json::qdisc(&place, config, stats, format),
        State::Pfifo { limit, backlog, stats } => {
            pass_through::json(&place, &queue(*limit, *backlog, *stats), format)
        }
    };
    if let Some(counts) = shown.counts.as_ref().filter(|_| format.details) {
        json::add_port(&mut object, counts);
    }
    if let Some(supervision) = shown.supervision.filter(|_| format.details) {
        json::add_supervision(&mut object, &supervision);
    }
    object
}

fn queue(limit: u32, backlog: u32, stats: FifoStats) -> PassThrough {
    PassThrough { limit, backlog: FrameLen(backlog), stats }
}
