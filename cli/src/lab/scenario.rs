//! What each scenario sends, marks and compares.

use ucake_cli::plan::Words;

use super::load::{Direction, Manner};
use crate::args::{LabArgs, Scenario};

/// The marks of flent's rrul: name and DSCP (RFC 2474, RFC 3246).
const MARKS: [(&str, u8); 4] = [("BE", 0), ("BK", 8), ("CS5", 40), ("EF", 46)];
/// DSCP of a call.
pub(super) const VOICE: u8 = 46;
/// Bytes of a small write.
const SMALL_WRITE: usize = 200;

/// Flows that are counted together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// What reports call it; empty if there is one class only.
    pub(super) label: &'static str,
    pub(super) direction: Direction,
    /// Which of the hosts on either side: 0 or 1.
    pub(super) host: usize,
    pub(super) flows: usize,
    pub(super) manner: Manner,
}

/// What is sent.
pub(super) fn classes(args: &LabArgs) -> Vec<Class> {
    use Direction::{Download, Upload};
    let flows = args.flows;
    let plain =
        |direction| Class { label: "", direction, host: 0, flows, manner: Manner::default() };
    match args.scenario {
        Scenario::Upload | Scenario::Voip => vec![plain(Upload)],
        Scenario::Download | Scenario::Asym => vec![plain(Download)],
        Scenario::Both => vec![plain(Upload), plain(Download)],
        Scenario::Small => {
            let manner = Manner { write: SMALL_WRITE, ..Manner::default() };
            vec![Class { manner, ..plain(Upload) }]
        }
        Scenario::Hosts => vec![
            Class { label: "host 1", flows: 1, ..plain(Upload) },
            Class { label: "host 2", host: 1, ..plain(Upload) },
        ],
        Scenario::Rrul => {
            let marked = |direction| {
                MARKS.map(|(label, dscp)| Class {
                    label,
                    flows: flows.div_ceil(MARKS.len()),
                    manner: Manner { dscp, ..Manner::default() },
                    ..plain(direction)
                })
            };
            marked(Upload).into_iter().chain(marked(Download)).collect()
        }
    }
}

/// Pings besides the one without a mark.
pub(super) fn marked_pings(scenario: Scenario) -> &'static [(&'static str, u8)] {
    match scenario {
        Scenario::Rrul => &MARKS[1..],
        _ => &[],
    }
}

/// What is compared if nobody says.
pub(super) fn words(scenario: Scenario) -> Vec<Words> {
    let lines: &[&str] = match scenario {
        Scenario::Rrul => &["besteffort", "diffserv4"],
        Scenario::Hosts => &["flows", "triple-isolate"],
        Scenario::Asym => &["", "ack-filter"],
        _ => &[""],
    };
    lines.iter().map(|line| line.parse().expect("these words are constants")).collect()
}
