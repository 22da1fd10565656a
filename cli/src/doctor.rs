//! `ucake doctor`: what this machine can do for a shaper, and what to do about what it cannot.
//!
//! Problem: a missing device file, a capability or a sleepy processor look alike from the outside: it does not work.
//! Law: each check looks at one thing and says what it found; where something is wanting it says what to type. Devices
//! are made in a namespace of our own only, and are gone afterwards.
//! Left out: changing anything.

mod checks;
mod ports;

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;

use crate::plan::PortName;

/// How well one thing serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Good,
    /// It works, with less speed or less comfort.
    Limited,
    /// `ucake run` cannot work without it.
    Missing,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: Cow<'static, str>,
    /// How well it serves.
    pub state: State,
    /// What there is.
    pub found: String,
    /// What to do about it; nothing where it is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    fn good(check: impl Into<Cow<'static, str>>, found: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Good, found: found.into(), advice: None }
    }

    fn limited(
        check: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            check: check.into(),
            state: State::Limited,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }

    fn missing(
        check: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            check: check.into(),
            state: State::Missing,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }
}

/// A port to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patient {
    /// Which.
    pub port: PortName,
    /// Whether a ucake has it.
    pub is_running: bool,
}

/// Looks at the machine and these ports and says what it found, as text or as one line of JSON, and whether `ucake run`
/// can work.
/// Takes about a third of a second, for the timer. Call outside of a tokio runtime.
///
/// The JSON is `{"ok":…,"findings":[{"check","state":"good"|"limited"|"missing","found","advice"?}]}`.
pub fn doctor(json: bool, patients: &[Patient]) -> (String, bool) {
    let mut findings = examine();
    findings.extend(patients.iter().flat_map(ports::examine));
    let ok = is_ok(&findings);
    (if json { to_json(&findings) } else { to_text(&findings) }, ok)
}

/// Every check of the machine, in the order they are told.
pub fn examine() -> Vec<Finding> {
    let mut findings = vec![checks::privileges(), checks::namespaces()];
    findings.extend(checks::taps());
    findings.extend([
        checks::packet_sockets(),
        checks::timer(),
        checks::governor(),
        checks::sch_cake(),
        checks::sandbox(),
    ]);
    findings
}

/// Whether nothing is missing.
pub fn is_ok(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.state != State::Missing)
}

/// One line for each finding, and one below it where there is something to do.
pub fn to_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, state, found, advice } in findings {
        let mark = match state {
            State::Good => "ok",
            State::Limited => "limited",
            State::Missing => "MISSING",
        };
        let _ = writeln!(text, "{mark:<8} {check:<14} {found}");
        if let Some(advice) = advice {
            let _ = writeln!(text, "{:<23} -> {advice}", "");
        }
    }
    text
}

/// One line.
pub fn to_json(findings: &[Finding]) -> String {
    #[derive(Serialize)]
    struct Report<'a> {
        ok: bool,
        findings: &'a [Finding],
    }
    let report = Report { ok: is_ok(findings), findings };
    serde_json::to_string(&report).expect("keys are strings") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_examined_and_each_thing_told_once() {
        let findings = examine();
        let checks: Vec<&str> = findings.iter().map(|finding| &*finding.check).collect();
        let mut once = checks.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), checks.len(), "{checks:?}");
        for check in
            ["privileges", "namespaces", "tun", "timer", "processor", "sch_cake", "sandbox"]
        {
            assert!(checks.contains(&check), "{checks:?}");
        }
        for Finding { check, state, found, advice } in findings {
            assert!(!found.is_empty() && !found.contains('\n'), "{check}: {found}");
            assert_eq!(state == State::Good, advice.is_none(), "{check}");
        }
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do_in_both_forms() {
        let findings =
            [Finding::good("timer", "fine"), Finding::missing("tun", "none", "modprobe tun")];
        let text = "ok       timer          fine\nMISSING  tun            none\n                        -> modprobe tun\n";
        assert_eq!(to_text(&findings), text);
        let json = "{\"ok\":false,\"findings\":[{\"check\":\"timer\",\"state\":\"good\",\"found\":\"fine\"},\
                    {\"check\":\"tun\",\"state\":\"missing\",\"found\":\"none\",\"advice\":\"modprobe tun\"}]}\n";
        assert_eq!(to_json(&findings), json);
    }

    #[test]
    fn what_is_limited_still_works() {
        assert!(is_ok(&[Finding::limited("processor", "slow", "hurry")]));
        assert!(!is_ok(&[Finding::missing("tun", "none", "modprobe tun")]));
    }
}
