//! The command line of `tc`, as far as it is ours: options, objects, verbs, and the words before those of CAKE.
//!
//! Problem: fingers and scripts know `tc -s qdisc sh dev wan0`, its abbreviations and its exit status.
//! Source: the manual pages tc(8) and tc-cake(8), and what `tc` answers.
//! Law: pure functions from words to a [`Command`]; an abbreviation means the first name, in `tc`'s order, that
//! starts with it.
//! Left out: obeying.

use std::path::PathBuf;

use crate::protocol::Verb;
use crate::words::{self, Problem};

/// What stands before the object, or is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-s`.
    pub statistics: bool,
    /// `-d`: what only ucake counts, too.
    pub details: bool,
    /// `-r`.
    pub raw: bool,
    /// `-j`.
    pub json: bool,
    /// `-p`.
    pub pretty: bool,
    /// `-iec`.
    pub iec: bool,
    /// `-force`: a batch goes on behind what failed.
    pub force: bool,
    /// `-V`.
    pub version: bool,
    /// `-batch FILE`.
    pub batch: Option<String>,
    /// `--control PATH`, before or after the verb.
    pub control: Option<PathBuf>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `qdisc show`.
    Qdiscs {
        /// Of this port only.
        dev: Option<String>,
        /// Of this handle only.
        handle: Option<u16>,
    },
    /// `qdisc add` and its kin.
    Modify(Modify),
    /// `class show`.
    Classes {
        /// Of this port.
        dev: String,
    },
    /// `monitor`.
    Monitor,
    /// `help`.
    Help,
}

/// What is to be done to which discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modify {
    /// What.
    pub verb: Verb,
    /// The port that frames leave through.
    pub dev: String,
    /// The handle.
    pub handle: Option<u16>,
    /// Words of CAKE, understood already.
    pub words: String,
}

/// Why a command line was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TcError {
    /// For people.
    pub message: String,
    /// Exit status `tc` has for it.
    pub exit: u8,
}

impl TcError {
    /// Exit status of a command that cannot be understood.
    pub const USAGE: u8 = 1;
    /// Exit status of one that the other side refused.
    pub const REFUSED: u8 = 2;
    /// Exit status of one that ends too soon, or has a value that cannot be.
    pub const INCOMPLETE: u8 = 255;

    fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit: Self::USAGE }
    }

    fn refused(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit: Self::REFUSED }
    }

    fn incomplete() -> Self {
        let message = "Command line is not complete. Try option \"help\"".into();
        Self { message, exit: Self::INCOMPLETE }
    }
}

/// What `help` prints.
pub const HELP: &str = "\
Usage: ucake [ OPTIONS ] OBJECT COMMAND
  qdisc show [ dev PORT ] [ handle H: ]
  qdisc { add | replace | change | del } dev PORT [ root ] [ handle H: ] [ cake WORDS ]
  class show dev PORT
  monitor
OPTIONS: -s[tatistics] -d[etails] -j[son] -p[retty] -iec -r[aw] -b[atch] FILE -force --control PATH
PORT is a port of a running ucake, such as wan0 or tap:wan0. WORDS: ucake qdisc add dev PORT cake help
";

/// Options of `tc` in its order, which decides what an abbreviation means; those without a place in
/// [`Options`] are taken and mean nothing here.
const OPTIONS: [&str; 15] = [
    "statistics",
    "stats",
    "details",
    "raw",
    "pretty",
    "graph",
    "iec",
    "force",
    "batch",
    "timestamp",
    "tshort",
    "oneline",
    "json",
    "Numeric",
    "Version",
];
const OBJECTS: [&str; 7] = ["qdisc", "class", "filter", "actions", "monitor", "exec", "help"];
const QDISC_VERBS: [&str; 10] =
    ["add", "change", "replace", "link", "delete", "list", "show", "lst", "help", ""];
const CLASS_VERBS: [&str; 9] =
    ["add", "change", "replace", "delete", "list", "show", "lst", "help", ""];

/// The name that `word` is short for.
fn resolve<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    names.iter().copied().find(|name| !word.is_empty() && name.starts_with(word))
}

fn option(word: &str) -> Option<&'static str> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    resolve(name, &OPTIONS)
}

/// Whether a command line is one of `tc`'s rather than one of ucake's own.
pub fn is_tc(args: &[String]) -> bool {
    for arg in args {
        match arg.as_str() {
            // Nothing else has it before the verb.
            arg if arg == "--control" || arg.starts_with("--control=") => return true,
            arg if option(arg) == Some("batch") => return true,
            // Of ucake, who is asked by that name.
            arg if option(arg) == Some("Version") => return false,
            arg if option(arg).is_some() => {}
            arg => return matches!(resolve(arg, &OBJECTS), Some("qdisc" | "class" | "monitor")),
        }
    }
    false
}

/// Splits a command line into its options and the rest.
///
/// # Errors
/// There is no such option, or its value is missing.
pub fn options(args: &[String]) -> Result<(Options, Vec<String>), TcError> {
    let mut options = Options::default();
    let mut rest = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--control" {
            options.control = Some(args.next().ok_or_else(TcError::incomplete)?.into());
        } else if let Some(path) = arg.strip_prefix("--control=") {
            options.control = Some(path.into());
        } else if !rest.is_empty() || !arg.starts_with('-') {
            rest.push(arg.clone());
        } else {
            options.set(arg, &mut args)?;
        }
    }
    Ok((options, rest))
}

impl Options {
    fn set<'a>(
        &mut self,
        arg: &str,
        args: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), TcError> {
        match option(arg) {
            Some("statistics" | "stats") => self.statistics = true,
            Some("details") => self.details = true,
            Some("raw") => self.raw = true,
            Some("pretty") => self.pretty = true,
            Some("json") => self.json = true,
            Some("iec") => self.iec = true,
            Some("force") => self.force = true,
            Some("Version") => self.version = true,
            Some("batch") => {
                self.batch = Some(args.next().ok_or_else(TcError::incomplete)?.clone());
            }
            Some(_) => {}
            None => {
                let message = format!("Option \"{arg}\" is unknown, try \"ucake -help\".");
                return Err(TcError { message, exit: TcError::INCOMPLETE });
            }
        }
        Ok(())
    }
}

/// Understands what stands behind the options.
///
/// # Errors
/// It is no command of ours; a value cannot be read; a word of CAKE was not understood.
pub fn command(words: &[String]) -> Result<Command, TcError> {
    let mut words = words.iter().map(String::as_str);
    let Some(object) = words.next() else { return Ok(Command::Help) };
    let verb = words.next().unwrap_or("show");
    match resolve(object, &OBJECTS) {
        Some("qdisc") => qdisc(object, verb, words),
        Some("class") => class(verb, words),
        Some("monitor") => Ok(Command::Monitor),
        Some("help") => Ok(Command::Help),
        _ => Err(TcError::usage(format!(
            "Object \"{object}\" is unknown, try \"ucake help\".\n  ucake knows qdisc, class and monitor"
        ))),
    }
}

fn qdisc<'a>(
    object: &str,
    typed: &str,
    words: impl Iterator<Item = &'a str>,
) -> Result<Command, TcError> {
    let verb = match resolve(typed, &QDISC_VERBS) {
        Some("add") => Verb::Add,
        Some("change") => Verb::Change,
        Some("replace") => Verb::Replace,
        Some("delete") => Verb::Del,
        Some("list" | "show" | "lst") => return qdiscs(words),
        Some("help") => return Ok(Command::Help),
        _ => return Err(unknown_verb(typed, "qdisc", "show, add, replace, change and del")),
    };
    modify(verb, &format!("{object} {typed}"), words).map(Command::Modify)
}

fn class<'a>(verb: &str, mut words: impl Iterator<Item = &'a str>) -> Result<Command, TcError> {
    match resolve(verb, &CLASS_VERBS) {
        Some("list" | "show" | "lst") => {}
        Some("help") => return Ok(Command::Help),
        _ => return Err(unknown_verb(verb, "class", "show; classes of cake are read-only")),
    }
    let mut dev = None;
    while let Some(word) = words.next() {
        match word {
            "dev" => dev = Some(words.next().ok_or_else(TcError::incomplete)?.to_owned()),
            "root" => {}
            other => return Err(garbage(other, "dev PORT")),
        }
    }
    let dev = dev.ok_or_else(|| TcError::usage("class show: type dev PORT"))?;
    Ok(Command::Classes { dev })
}

fn unknown_verb(verb: &str, object: &str, known: &str) -> TcError {
    TcError::usage(format!(
        "Command \"{verb}\" is unknown, try \"ucake {object} help\".\n  {object} knows {known}"
    ))
}

fn garbage(word: &str, expected: &str) -> TcError {
    TcError::usage(format!("What is \"{word}\"? Try \"ucake qdisc help\".\n  expected {expected}"))
}

fn qdiscs<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Command, TcError> {
    let (mut dev, mut handle) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "dev" => dev = Some(words.next().ok_or_else(TcError::incomplete)?.to_owned()),
            "handle" => handle = parse_handle(words.next().ok_or_else(TcError::incomplete)?)?,
            "root" | "invisible" => {}
            "help" => return Ok(Command::Help),
            other => return Err(garbage(other, "dev PORT, handle H: or root")),
        }
    }
    Ok(Command::Qdiscs { dev, handle })
}

/// `typed`: the words before `words`, for whoever is told where in the line something is wrong.
fn modify<'a>(
    verb: Verb,
    typed: &str,
    words: impl Iterator<Item = &'a str>,
) -> Result<Modify, TcError> {
    let all: Vec<_> = words.collect();
    let mut words = all.iter().copied();
    let (mut dev, mut handle, mut kind) = (None, None, false);
    while let Some(word) = words.next() {
        match word {
            "dev" => dev = Some(words.next().ok_or_else(TcError::incomplete)?.to_owned()),
            "handle" => handle = parse_handle(words.next().ok_or_else(TcError::incomplete)?)?,
            "root" => {}
            "cake" => {
                kind = true;
                break;
            }
            "help" => {
                return Err(TcError::usage(HELP.trim_end()));
            }
            other => return Err(foreign(other)),
        }
    }
    let (before, of_cake) = all.split_at(all.len() - words.len());
    let words = understood(verb, &format!("{typed} {}", before.join(" ")), &of_cake.join(" "))?;
    let Some(dev) = dev else {
        return Err(TcError::refused(
            "RTNETLINK answers: No such device\n  type dev PORT before cake",
        ));
    };
    if !kind && verb != Verb::Del {
        let message = "Error: Qdisc kind must be specified.\n  type cake behind the port";
        return Err(TcError::refused(message));
    }
    Ok(Modify { verb, dev, handle, words })
}

/// Words that are CAKE's; `del` needs none and takes none seriously, as in `tc`, but they must be words.
fn understood(verb: Verb, before: &str, line: &str) -> Result<String, TcError> {
    words::parse_line(line).map_err(|error| {
        let incomplete = matches!(error.problem, Problem::Incomplete { .. });
        let exit = if incomplete { TcError::INCOMPLETE } else { TcError::USAGE };
        TcError { message: error.behind(before).to_string(), exit }
    })?;
    Ok(if verb == Verb::Del { String::new() } else { line.to_owned() })
}

/// What the kernel would say, for want of what is not here.
fn foreign(word: &str) -> TcError {
    let (first, why) = match word {
        "parent" => {
            ("Failed to find specified qdisc.", "disciplines of ucake are at the root of a port")
        }
        "ingress" | "clsact" => (
            "Specified qdisc kind is unknown.",
            "what comes in through a port leaves through the other: shape it there",
        ),
        _ => (
            "Specified qdisc kind is unknown.",
            "ucake has cake; before it dev PORT, root and handle H:",
        ),
    };
    TcError::refused(format!("Error: {first}\n  \"{word}\": {why}"))
}

/// A handle as `tc` writes it: hexadecimal, a colon behind it or not; `None` leaves the choice to ucake.
fn parse_handle(word: &str) -> Result<Option<u16>, TcError> {
    if word == "none" {
        return Ok(None);
    }
    let digits = word.strip_suffix(':').unwrap_or(word);
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u16::from_str_radix(digits, 16) {
        Ok(0) => Ok(None),
        Ok(handle) if hexadecimal => Ok(Some(handle)),
        _ => {
            let message = format!(
                "Error: argument \"{word}\" is wrong: invalid qdisc ID\n  expected a hexadecimal number \
                 up to ffff, such as 8001:"
            );
            Err(TcError { message, exit: TcError::INCOMPLETE })
        }
    }
}

/// The commands of a batch, each with the number of its first line. Behind `#` is a comment; a backslash at
/// the end joins a line with the next; words may be quoted.
pub fn batch(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut commands = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let mut joined = line.to_owned();
        while let Some(part) = joined.strip_suffix('\\') {
            let next = lines.next().map_or("", |(_, line)| line);
            joined = format!("{part} {next}");
        }
        let words = batch_words(&joined);
        if !words.is_empty() {
            commands.push((number, words));
        }
    }
    commands
}

fn batch_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut begun) = (String::new(), None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '#') => break,
            (None, '"' | '\'') => (quote, begun) = (Some(c), true),
            (None, c) if c.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (None, c) => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn parse(line: &str) -> Result<Command, TcError> {
        command(&options(&split(line))?.1)
    }

    fn modify(verb: Verb, handle: Option<u16>, words: &str) -> Command {
        Command::Modify(Modify { verb, dev: "wan0".into(), handle, words: words.into() })
    }

    #[test]
    fn abbreviations_mean_what_they_mean_in_tc() {
        let show =
            |dev: Option<&str>| Command::Qdiscs { dev: dev.map(str::to_owned), handle: None };
        let table = [
            ("qdisc", show(None)),
            ("q", show(None)),
            ("qd sh dev wan0", show(Some("wan0"))),
            ("qdisc ls", show(None)),
            ("qdisc list dev tap:wan0 root", show(Some("tap:wan0"))),
            ("-s qdisc lst dev wan0", show(Some("wan0"))),
            (
                "qdisc sh handle 8001: dev a",
                Command::Qdiscs { dev: Some("a".into()), handle: Some(0x8001) },
            ),
            ("q a dev wan0 root cake bandwidth 5mbit", modify(Verb::Add, None, "bandwidth 5mbit")),
            ("qdisc add root dev wan0 handle 1: cake", modify(Verb::Add, Some(1), "")),
            ("qdisc add dev wan0 handle ffff cake lan", modify(Verb::Add, Some(0xffff), "lan")),
            ("q c dev wan0 root cake", modify(Verb::Change, None, "")),
            ("q chan dev wan0 cake wash", modify(Verb::Change, None, "wash")),
            ("q repl dev wan0 handle none root cake", modify(Verb::Replace, None, "")),
            ("qdisc d dev wan0 root", modify(Verb::Del, None, "")),
            ("qdisc del dev wan0 root cake lan", modify(Verb::Del, None, "")),
            ("class show dev wan0", Command::Classes { dev: "wan0".into() }),
            ("c ls dev wan0 root", Command::Classes { dev: "wan0".into() }),
            ("monitor", Command::Monitor),
            ("m", Command::Monitor),
            ("qdisc help", Command::Help),
            ("", Command::Help),
        ];
        for (line, expected) in table {
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn what_tc_would_not_take_is_refused_with_its_exit_status() {
        let table = [
            ("qdisc add dev wan0 cake bestefort", 1, "\"besteffort\""),
            ("qdisc add dev wan0 cake bandwidth", 255, "not complete"),
            ("qdisc add dev", 255, "not complete"),
            ("qdisc add dev wan0 handle xyz cake", 255, "invalid qdisc ID"),
            ("qdisc add dev wan0 handle 10000: cake", 255, "invalid qdisc ID"),
            ("qdisc add dev wan0 root", 2, "kind must be specified"),
            ("qdisc add dev wan0 root fq_codel", 2, "kind is unknown.\n  \"fq_codel\""),
            ("qdisc add dev wan0 ingress", 2, "shape it there"),
            ("qdisc add dev wan0 parent 1:1 cake", 2, "root of a port"),
            ("qdisc add root cake", 2, "dev PORT"),
            ("qdisc link dev wan0", 1, "is unknown"),
            ("qdisc show wan0", 1, "What is \"wan0\"?"),
            ("class add dev wan0", 1, "read-only"),
            ("class show", 1, "dev PORT"),
            ("filter show dev wan0", 1, "Object \"filter\" is unknown"),
            ("-x qdisc show", 255, "Option \"-x\" is unknown"),
            ("-batch", 255, "not complete"),
            ("qdisc add dev wan0 cake help", 1, "besteffort"),
            ("q add dev wan0 cake lan bestefort", 1, "column 25: did you mean"),
        ];
        for (line, exit, message) in table {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit, exit, "{line}: {error}");
            assert!(error.message.contains(message), "{line}: {error}");
        }
    }

    #[test]
    fn options_stand_before_the_object_and_the_socket_anywhere() {
        let line = "-s -d -j -p -iec -r -force -batch - --control /a/b";
        let (all, rest) = options(&split(line)).expect("all are known");
        let expected = Options {
            statistics: true,
            details: true,
            raw: true,
            json: true,
            pretty: true,
            iec: true,
            force: true,
            version: false,
            batch: Some("-".into()),
            control: Some("/a/b".into()),
        };
        assert_eq!((all, rest.len()), (expected, 0));
        for line in
            ["--control /x qdisc show", "qdisc show --control /x", "qdisc --control=/x show"]
        {
            let (options, rest) = options(&split(line)).expect(line);
            assert_eq!(options.control, Some("/x".into()), "{line}");
            assert_eq!(rest, ["qdisc", "show"], "{line}");
        }
    }

    #[test]
    fn commands_of_our_own_are_told_from_those_of_tc() {
        for line in
            ["qdisc", "-s q", "-j -s class show", "monitor", "-batch -", "--control x qdisc"]
        {
            assert!(is_tc(&split(line)), "{line}");
        }
        for line in ["run tap:a tap:b", "lab", "--help", "-h", "--version", "-V", "", "help", "-s"]
        {
            assert!(!is_tc(&split(line)), "{line}");
        }
    }

    #[test]
    fn a_batch_has_comments_continued_lines_and_quotes() {
        let text =
            "# first\n\nqdisc show # all\nqdisc add \\\n dev wan0 \\\n cake\n\"qdisc\" 'sh'\n";
        let expected = [(3, "qdisc show"), (4, "qdisc add dev wan0 cake"), (7, "qdisc sh")];
        assert_eq!(batch(text), expected.map(|(number, line)| (number, split(line))));
        assert!(batch("\\").is_empty());
    }

    proptest! {
        #[test]
        fn any_words_are_a_command_or_are_refused(
            words in proptest::collection::vec(
                prop_oneof![
                    "[ -~]{0,6}", Just("qdisc".to_owned()), Just("add".to_owned()), Just("dev".to_owned()),
                    Just("handle".to_owned()), Just("cake".to_owned()), Just("-s".to_owned()), "\\PC{0,4}",
                ],
                0..8
            )
        ) {
            let _ = is_tc(&words);
            if let Ok((_, rest)) = options(&words)
                && let Err(error) = command(&rest)
            {
                prop_assert!(!error.message.is_empty() && error.exit != 0);
            }
            let _ = batch(&words.join("\n"));
        }
    }
}
