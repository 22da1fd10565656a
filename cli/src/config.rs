//! The file that says what is to be run: `/etc/ucake.toml`.
//!
//! Problem: a file that is read while a line is in use must be understood whole or not at all, and whoever wrote it
//! must be shown the very character that is wrong.
//! Source: TOML 1.0 for the form; docs/CONFIG.md for the keys; the words are those of `tc`, read as [`crate::words`]
//! reads them everywhere.
//! Law: a pure function from bytes to a [`Plan`] or to an error with line and column. A key that is not known is an
//! error: what was meant by it would not happen.
//! Left out: whether the devices are there, who reads the file and when.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use ucake::units::MemSize;

use crate::nearest::nearest;
use crate::plan::{Bell, BridgePlan, Coalesce, ControlPlan, LogLevel, Plan, PortName, Words};
use crate::value;

/// Where the file is when nobody says where.
pub const DEFAULT_PATH: &str = "/etc/ucake.toml";
/// Longest file that is read; a thousand bridges have a tenth of it.
pub const LONGEST: usize = 1 << 20;
/// The least memory that each direction of a bridge must have: three superpackets, so that CAKE has a choice.
const LEAST_SHARE: MemSize = MemSize(256 << 10);

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Counted from 1.
    pub line: usize,
    /// Counted in characters from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do about it; may be empty.
    pub hint: String,
    /// The line, for people to see.
    text: String,
    /// Characters of it that are at fault.
    width: usize,
}

impl std::error::Error for FileError {}

impl fmt::Display for FileError {
    /// `LINE:COLUMN: what is wrong`, to put a file's name before; then the line with the culprit marked, and a hint.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, message, hint, text, width } = self;
        writeln!(f, "{line}:{column}: {message}")?;
        writeln!(f, "  {text}")?;
        let mark = format!("  {:pad$}{} {hint}", "", "^".repeat(*width), pad = column - 1);
        f.write_str(mark.trim_end())
    }
}

impl FileError {
    fn at(file: &str, span: Range<usize>, message: impl Into<String>, hint: &str) -> Self {
        let start = floor(file, span.start);
        let end = floor(file, span.end).max(start);
        let line_start = file[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = file[start..].find('\n').map_or(file.len(), |at| start + at);
        let shown = |text: &str| -> String {
            let text = text.trim_end_matches('\r');
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
        };
        Self {
            line: file[..start].matches('\n').count() + 1,
            column: file[line_start..start].chars().count() + 1,
            message: message.into(),
            hint: hint.to_owned(),
            text: shown(&file[line_start..line_end]),
            width: file[start..end.min(line_end)].chars().count().max(1),
        }
    }

    /// What the reader of TOML found.
    fn syntax(file: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or(0..0);
        let told = error.message();
        let mut quoted = told.split('`').skip(1).step_by(2);
        let kind =
            ["unknown field", "unknown variant"].into_iter().find(|kind| told.starts_with(kind));
        let (Some(kind), Some(culprit)) = (kind, quoted.next()) else {
            let (message, hint) = told.split_once('\n').unwrap_or((told, ""));
            return Self::at(file, span, message, hint);
        };
        let known: Vec<&str> = quoted.collect();
        let what = if kind == "unknown field" { "key" } else { "choice" };
        let list = known.join(", ");
        let hint = match nearest(culprit, known.iter().copied()) {
            Some(meant) => format!("did you mean \"{meant}\"? There are {list}"),
            None => format!("there are {list}"),
        };
        Self::at(file, span, format!("there is no {what} \"{culprit}\" here"), &hint)
    }
}

/// The last boundary of characters at `index` or before.
fn floor(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    control: RawControl,
    #[serde(default)]
    log: RawLog,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    bridge: Vec<RawBridge>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawControl {
    socket: Option<Spanned<PathBuf>>,
    group: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLog {
    level: Option<LogLevel>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    memory: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBridge {
    lan: Spanned<String>,
    wan: Spanned<String>,
    up: Option<Spanned<String>>,
    down: Option<Spanned<String>>,
    #[serde(default)]
    coalesce: Coalesce,
    #[serde(default)]
    doorbell: Bell,
}

/// Reads a file.
///
/// # Errors
/// It is no TOML, has keys that are not known or values that mean nothing, or asks for what cannot be.
pub fn parse(bytes: &[u8]) -> Result<Plan, FileError> {
    if bytes.len() > LONGEST {
        return Err(FileError::at("", 0..0, format!("more than {LONGEST} bytes"), ""));
    }
    let file = std::str::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        FileError::at(
            &good,
            good.len()..good.len(),
            "this is not UTF-8",
            "remove the character here",
        )
    })?;
    let raw: RawFile = toml::from_str(file).map_err(|error| FileError::syntax(file, &error))?;
    Reader { file }.plan(raw)
}

struct Reader<'a> {
    file: &'a str,
}

impl Reader<'_> {
    fn error<T>(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        hint: &str,
    ) -> Result<T, FileError> {
        Err(FileError::at(self.file, span, message, hint))
    }

    fn plan(&self, raw: RawFile) -> Result<Plan, FileError> {
        let RawFile { control, log, limits, bridge } = raw;
        if bridge.is_empty() {
            let hint = "begin one with [[bridge]], and give it lan and wan";
            return self.error(0..0, "there is no bridge in this file", hint);
        }
        let mut taken = HashMap::new();
        let mut bridges = Vec::with_capacity(bridge.len());
        for raw in bridge {
            bridges.push(self.bridge(raw, &mut taken)?);
        }
        Ok(Plan {
            memory: self.memory(limits, bridges.len())?,
            control: self.control(control)?,
            log: log.level,
            bridges,
        })
    }

    fn control(&self, RawControl { socket, group }: RawControl) -> Result<ControlPlan, FileError> {
        if let Some(socket) = socket.as_ref().filter(|socket| !socket.get_ref().is_absolute()) {
            let hint = "type the whole path, such as \"/run/ucake/control.sock\"";
            return self.error(socket.span(), "the path of the socket does not begin with /", hint);
        }
        if let Some(group) = group.as_ref().filter(|group| group.get_ref().is_empty()) {
            return self.error(group.span(), "the group has no name", "leave the key out for none");
        }
        let path = socket.map(Spanned::into_inner);
        Ok(ControlPlan { path, group: group.map(Spanned::into_inner) })
    }

    fn memory(
        &self,
        RawLimits { memory }: RawLimits,
        bridges: usize,
    ) -> Result<Option<MemSize>, FileError> {
        let Some(memory) = memory else { return Ok(None) };
        let Some(size) = value::parse_size(memory.get_ref()) else {
            let hint = "expected a size such as \"64mb\" (below 4gb)";
            return self.error(memory.span(), "this is no size", hint);
        };
        let least = MemSize(LEAST_SHARE.0 * 2 * bridges as u64);
        if size < least {
            let message = format!("too little memory for {bridges} bridges");
            let hint = format!("each direction needs 256kb: \"{}kb\" at least", least.0 >> 10);
            return self.error(memory.span(), message, &hint);
        }
        Ok(Some(size))
    }

    /// `taken` are the devices of all bridges so far, and the line each was named in.
    fn bridge(
        &self,
        raw: RawBridge,
        taken: &mut HashMap<String, usize>,
    ) -> Result<BridgePlan, FileError> {
        let RawBridge { lan, wan, up, down, coalesce, doorbell } = raw;
        let mut port = |name: &Spanned<String>| self.port(name, taken);
        Ok(BridgePlan {
            lan: port(&lan)?,
            wan: port(&wan)?,
            up: self.words(up)?,
            down: self.words(down)?,
            coalesce,
            doorbell,
        })
    }

    fn port(
        &self,
        name: &Spanned<String>,
        taken: &mut HashMap<String, usize>,
    ) -> Result<PortName, FileError> {
        let port = match PortName::from_str(name.get_ref()) {
            Ok(port) => port,
            Err(hint) => {
                let message = format!("\"{}\" is no port", name.get_ref());
                return self.error(name.span(), message, &hint);
            }
        };
        if port.device().contains('%') {
            let hint = "a file that is read again must name the same device";
            return self.error(name.span(), "a pattern instead of a name", hint);
        }
        let here = FileError::at(self.file, name.span(), "", "").line;
        match taken.insert(port.device().to_owned(), here) {
            None => Ok(port),
            Some(line) => {
                let message = format!("the device {} is used twice", port.device());
                let hint =
                    format!("line {line} has it already; a device is one port of one bridge");
                self.error(name.span(), message, &hint)
            }
        }
    }

    fn words(&self, words: Option<Spanned<String>>) -> Result<Words, FileError> {
        let Some(words) = words else { return Ok(Words::default()) };
        Words::from_str(words.get_ref()).map_err(|error| {
            let span = self.inside(&words, error.span());
            FileError::at(self.file, span, error.problem.to_string(), &error.hint())
        })
    }

    /// Where a part of a string stands in the file; the whole string if it is written with escapes.
    fn inside(&self, string: &Spanned<String>, part: Range<usize>) -> Range<usize> {
        let written = self.file.get(string.span()).unwrap_or_default();
        match written.find(string.get_ref().as_str()) {
            Some(offset) => {
                let start = string.span().start + offset;
                start + part.start..start + part.end
            }
            None => string.span(),
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<WrittenControl<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<WrittenLog>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<WrittenLimits>,
    bridge: Vec<WrittenBridge<'a>>,
}

#[derive(Serialize)]
struct WrittenControl<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<&'a PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a String>,
}

#[derive(Serialize)]
struct WrittenLog {
    level: LogLevel,
}

#[derive(Serialize)]
struct WrittenLimits {
    memory: String,
}

#[derive(Serialize)]
struct WrittenBridge<'a> {
    lan: String,
    wan: String,
    up: &'a str,
    down: &'a str,
    coalesce: Coalesce,
    doorbell: Bell,
}

/// A file that asks for `plan`.
#[must_use]
pub fn write(plan: &Plan) -> String {
    let ControlPlan { path, group } = &plan.control;
    let control = (path.is_some() || group.is_some())
        .then_some(WrittenControl { socket: path.as_ref(), group: group.as_ref() });
    let bridge = plan.bridges.iter().map(|bridge| WrittenBridge {
        lan: bridge.lan.to_string(),
        wan: bridge.wan.to_string(),
        up: &bridge.up.line,
        down: &bridge.down.line,
        coalesce: bridge.coalesce,
        doorbell: bridge.doorbell,
    });
    let written = Written {
        control,
        log: plan.log.map(|level| WrittenLog { level }),
        limits: plan.memory.map(|memory| WrittenLimits { memory: format!("{}b", memory.0) }),
        bridge: bridge.collect(),
    };
    toml::to_string(&written).expect("strings and tables of strings can be written")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = r#"
[control]
socket = "/run/ucake/home.sock"
group = "netdev"
[log]
level = "info"
[limits]
memory = "64MB"
[[bridge]]
lan = "packet:lan0"
wan = "packet:wan0"
up = "bandwidth 20mbit docsis ack-filter"
down = """
  bandwidth 100mbit
  ingress
"""
[[bridge]]
lan = "tap:a"
wan = "tap:b"
coalesce = "off"
doorbell = "packet"
"#;

    #[test]
    fn a_file_says_what_is_to_be_run() {
        let plan = parse(GOOD.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.control.group.as_deref(), Some("netdev"));
        assert_eq!((plan.log, plan.memory), (Some(LogLevel::Info), Some(MemSize(64 << 20))));
        let [first, second] = &plan.bridges[..] else { panic!("{plan:?}") };
        assert_eq!(first.up, "bandwidth 20mbit docsis ack-filter".parse().expect("words"));
        assert_eq!(first.down.change.ingress, Some(true));
        assert_eq!(second.lan, PortName::Tap("a".to_owned()));
        assert_eq!((second.coalesce, second.doorbell), (Coalesce::Off, Bell::Packet));
        assert_eq!(second.up, Words::default());
        assert_eq!(parse(write(&plan).as_bytes()), Ok(plan));
    }

    #[test]
    fn every_mistake_is_shown_where_it_is_with_what_to_type_instead() {
        let change = |old: &str, new: &str| {
            assert!(GOOD.contains(old), "{old}");
            GOOD.replacen(old, new, 1)
        };
        let table = [
            (String::new(), "1:1: there is no bridge", "[[bridge]]"),
            (
                change("socket", "sokcet"),
                "3:1: there is no key \"sokcet\"",
                "did you mean \"socket\"?",
            ),
            (
                change("[log]", "[loging]"),
                "5:2: there is no key \"loging\"",
                "control, log, limits, bridge",
            ),
            (change("\"info\"", "\"imfo\""), "6:9: there is no choice \"imfo\"", "\"info\"?"),
            (change("64MB", "64XB"), "8:10: this is no size", "64mb"),
            (change("64MB", "4kb"), "8:10: too little memory for 2 bridges", "1024kb"),
            (change("packet:lan0", "eth0"), "10:7: \"eth0\" is no port", "packet:eth0"),
            (change("packet:lan0", "tap:lan%d"), "10:7: a pattern", "same device"),
            (change("tap:b", "packet:lan0"), "19:7: the device lan0 is used twice", "line 10"),
            (change("20mbit", "20mbot"), "12:17: Illegal \"bandwidth\"", "got \"20mbot\""),
            (change("docsis", "dosis"), "12:24: What is \"dosis\"?", "docsis"),
            (change("  ingress", "  inGress"), "15:3: What is \"inGress\"?", "ingress"),
            (
                change("\nup = \"", "\nup = \"\\u0062esteffort besst "),
                "12:6: What is \"besst\"?",
                "",
            ),
            (
                change("/run/ucake/home.sock", "home.sock"),
                "3:10: the path",
                "/run/ucake/control.sock",
            ),
            (change("\"netdev\"", "\"\""), "4:9: the group has no name", ""),
            (change("lan = \"tap:a\"", "#"), "17:1: missing field `lan`", ""),
            (change("= \"tap:b\"", "="), "19:6: ", ""),
            (change("\"netdev\"", "7"), "4:9: invalid type: integer `7`", ""),
        ];
        for (file, place, hint) in table {
            let error = parse(file.as_bytes()).expect_err(place);
            let text = error.to_string();
            assert!(text.starts_with(place) && text.contains(hint), "{place} {hint}\n{text}");
        }
        let error = parse(b"a = 1\nb\xff").expect_err("no text");
        assert!(error.to_string().starts_with("2:2: this is not UTF-8"), "{error}");
        assert!(parse(&vec![b'#'; LONGEST + 1]).is_err());
    }

    #[test]
    fn a_mistake_is_marked_in_its_line() {
        let file = GOOD.replacen("docsis", "dosis", 1);
        let error = parse(file.as_bytes()).expect_err("no such word");
        let text = error.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "  up = \"bandwidth 20mbit dosis ack-filter\"");
        assert!(lines[2].starts_with(&format!("{}^^^^^ ", " ".repeat(25))), "{text}");
    }

    fn name() -> impl Strategy<Value = PortName> {
        ("[a-z][a-z0-9.]{0,10}", any::<bool>()).prop_map(|(device, tap)| {
            if tap { PortName::Tap(device) } else { PortName::Packet(device) }
        })
    }

    fn words() -> impl Strategy<Value = Words> {
        let word = prop_oneof![
            Just("besteffort"),
            Just("wash"),
            Just("bandwidth 5mbit"),
            Just("ingress"),
            Just("\tatm\n")
        ];
        proptest::collection::vec(word, 0..4)
            .prop_map(|words| words.join(" ").parse().unwrap_or_default())
    }

    fn plan() -> impl Strategy<Value = Plan> {
        let bridge = (name(), name(), words(), words(), any::<bool>()).prop_map(
            |(lan, wan, up, down, odd)| {
                let coalesce = if odd { Coalesce::Push } else { Coalesce::Exact };
                BridgePlan { lan, wan, up, down, coalesce, doorbell: Bell::Batch }
            },
        );
        let bridges = proptest::collection::vec(bridge, 1..4);
        let memory = proptest::option::of((4_u64 << 20..1 << 31).prop_map(MemSize));
        let group = proptest::option::of("\\PC{1,8}");
        (bridges, memory, group).prop_map(|(bridges, memory, group)| {
            let control = ControlPlan { path: Some("/a \"b\\".into()), group };
            Plan { bridges, memory, control, log: Some(LogLevel::Warn) }
        })
    }

    proptest! {
        #[test]
        fn a_plan_that_is_written_is_read_as_it_was(plan in plan()) {
            let mut devices: Vec<_> =
                plan.bridges.iter().flat_map(|bridge| [bridge.lan.device(), bridge.wan.device()]).collect();
            devices.sort_unstable();
            devices.dedup();
            prop_assume!(devices.len() == 2 * plan.bridges.len());
            let text = write(&plan);
            prop_assert_eq!(parse(text.as_bytes()), Ok(plan), "{}", text);
        }

        #[test]
        fn any_bytes_are_a_file_or_are_refused_at_a_place_in_it(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            place in 0..GOOD.len(),
            cut in 0..GOOD.len(),
            byte in any::<u8>(),
        ) {
            let mut file = GOOD.as_bytes().to_vec();
            file[place] = byte;
            let cut_off = &GOOD.as_bytes()[..cut];
            for file in [&bytes[..], &file, cut_off] {
                if let Err(error) = parse(file) {
                    let lines = 1 + file.iter().filter(|byte| **byte == b'\n').count();
                    prop_assert!((1..=lines).contains(&error.line) && error.column >= 1);
                }
            }
        }
    }
}
