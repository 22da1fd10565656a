//! From words to a [`Change`], or to an error that shows where and says what to type instead.

use std::fmt;

use ucake::qdisc::{Change, LinkLayer};
use ucake::time::Span;

use super::table::{self, Effect, LinkPreset, Value, Word};
use crate::nearest::nearest;
use crate::value;

/// Parses one line of words, as given to `--up`.
pub fn parse_line(line: &str) -> Result<Change, WordError> {
    Parser::new(line).run()
}

/// Parses words that come one by one, as from a command line.
#[cfg(test)]
pub fn parse(words: &[&str]) -> Result<Change, WordError> {
    parse_line(&words.join(" "))
}

/// Why a line of words was refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordError {
    /// What is wrong.
    pub problem: Problem,
    /// The whole line.
    line: String,
    /// Where the culprit starts, in bytes from the start of the line.
    start: usize,
    /// Where it ends.
    end: usize,
}

/// What can be wrong with a line of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no such word.
    Unknown {
        /// The word.
        word: String,
        /// What to do instead.
        hint: String,
    },
    /// The line ends where a value is due.
    Incomplete {
        /// The last word.
        word: &'static Word,
    },
    /// The value cannot be read, or means nothing.
    Illegal {
        /// The word before it.
        word: &'static Word,
        /// The value.
        value: String,
        /// What was expected, or why this is not allowed.
        hint: String,
    },
    /// Presets took the overhead where it must not be.
    OverheadSum {
        /// What it came to.
        sum: i64,
    },
    /// A second preset of the round-trip time.
    Duplicate {
        /// The second one.
        word: &'static str,
        /// The first one.
        first: &'static str,
    },
    /// Help was asked for.
    Help,
}

impl WordError {
    /// The same error of the line that begins with `before`, the words that were typed before these.
    #[must_use]
    pub fn behind(mut self, before: &str) -> Self {
        self.line = format!("{before} {}", self.line);
        self.start += before.len() + 1;
        self.end += before.len() + 1;
        self
    }

    /// Where the culprit stands, counted in characters from 1.
    pub fn column(&self) -> usize {
        self.line[..self.start].chars().count() + 1
    }
}

impl WordError {
    /// Where the culprit stands, in bytes of the line.
    pub fn span(&self) -> std::ops::Range<usize> {
        self.start..self.end
    }

    /// What to type instead.
    pub fn hint(&self) -> String {
        fmt::from_fn(|f| self.problem.write_hint(f)).to_string()
    }
}

impl std::error::Error for WordError {}

impl fmt::Display for WordError {
    /// First `tc`'s message where it has one, then the line with the culprit marked and a hint.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.problem == Problem::Help {
            return write!(f, "the words of cake\n\n{}", table::help());
        }
        let column = self.column();
        let width = self.line[self.start..self.end].chars().count().max(1);
        writeln!(f, "{}", self.problem)?;
        writeln!(f, "  {}", self.line)?;
        write!(f, "  {:pad$}{} column {column}: ", "", "^".repeat(width), pad = column - 1)?;
        self.problem.write_hint(f)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { word, .. } => write!(f, "What is \"{word}\"?"),
            Self::Incomplete { .. } => {
                write!(f, "Command line is not complete. Try option \"help\"")
            }
            Self::Illegal { word, value, .. } => match word.value {
                Value::Size | Value::Mask => {
                    write!(f, "Illegal value for \"{}\": \"{value}\"", word.name)
                }
                Value::Integer { min, max } => {
                    write!(f, "Illegal \"{}\", valid range is {min} to {max}", word.name)
                }
                _ => write!(f, "Illegal \"{}\"", word.name),
            },
            Self::OverheadSum { .. } => {
                write!(f, "Illegal \"overhead\", valid range is {MIN_OVERHEAD} to {MAX_OVERHEAD}")
            }
            Self::Duplicate { word, first } => {
                write!(f, "Error: duplicate \"{word}\": \"{first}\" is the second value.")
            }
            Self::Help => write!(f, "help"),
        }
    }
}

impl Problem {
    fn write_hint(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { hint, .. } => write!(f, "{hint}"),
            Self::Incomplete { word } => {
                write!(f, "\"{}\" needs {}", word.name, expected(word.value))
            }
            Self::Illegal { value, hint, .. } => write!(f, "got \"{value}\", {hint}"),
            Self::OverheadSum { sum } => {
                write!(f, "the overheads add up to {sum}; presets add to what stands before them")
            }
            Self::Duplicate { first, .. } => {
                write!(f, "\"{first}\" stands before it; keep one of the two")
            }
            Self::Help => Ok(()),
        }
    }
}

const MIN_OVERHEAD: i16 = -64;
const MAX_OVERHEAD: i16 = 256;

/// What a value has to look like.
fn expected(value: Value) -> &'static str {
    match value {
        Value::Nothing => "nothing",
        Value::Rate => "a rate such as 20mbit, 2.5mbit or 128kbit",
        Value::Time => "a time such as 100ms, 20ms or 0.5s (at most 4294s)",
        Value::Size => "a size such as 4mb, 64kb or 1500000 (below 4gb)",
        Value::Integer { .. } => "a whole decimal number",
        Value::Mask => "a 32-bit number such as 0xff or 255",
    }
}

/// Where a token stands in the line.
#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    start: usize,
}

impl Token<'_> {
    const fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// The words of a line with their places.
fn tokens(line: &str) -> Vec<Token<'_>> {
    let offset = |text: &str| text.as_ptr().addr() - line.as_ptr().addr();
    line.split_whitespace().map(|text| Token { text, start: offset(text) }).collect()
}

struct Parser<'a> {
    line: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    change: Change,
    /// The rate given last, if it was less than a byte per second.
    no_rate: Option<(&'static Word, Token<'a>)>,
    /// Overhead gathered so far, and the last token that had a say in it.
    overhead: i64,
    overhead_at: Option<Token<'a>>,
    /// The preset of the round-trip time given before.
    preset: Option<&'static str>,
}

impl<'a> Parser<'a> {
    fn new(line: &'a str) -> Self {
        Self {
            line,
            tokens: tokens(line),
            next: 0,
            change: Change::default(),
            no_rate: None,
            overhead: 0,
            overhead_at: None,
            preset: None,
        }
    }

    fn run(mut self) -> Result<Change, WordError> {
        while let Some(token) = self.take() {
            let word = self.lookup(token)?;
            self.apply(word, token)?;
        }
        self.refuse_no_rate()?;
        self.finish_overhead()?;
        Ok(self.change)
    }

    fn take(&mut self) -> Option<Token<'a>> {
        let token = self.tokens.get(self.next).copied();
        self.next += usize::from(token.is_some());
        token
    }

    fn error(&self, at: Token<'_>, problem: Problem) -> WordError {
        WordError { problem, line: self.line.to_owned(), start: at.start, end: at.end() }
    }

    fn lookup(&self, token: Token<'a>) -> Result<&'static Word, WordError> {
        if token.text == "help" {
            return Err(self.error(token, Problem::Help));
        }
        table::find(token.text).ok_or_else(|| {
            let previous = self.next.checked_sub(2).and_then(|index| self.tokens.get(index));
            let next = self.tokens.get(self.next);
            let hint = hint(token.text, previous.map(|t| t.text), next.map(|t| t.text));
            self.error(token, Problem::Unknown { word: token.text.to_owned(), hint })
        })
    }

    /// The value behind `word`, read by `read`.
    fn value<T>(
        &mut self,
        word: &'static Word,
        at: Token<'a>,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<(T, Token<'a>), WordError> {
        let Some(token) = self.take() else {
            return Err(self.error(at, Problem::Incomplete { word }));
        };
        match read(token.text) {
            Some(value) => Ok((value, token)),
            None => Err(self.illegal(word, token, illegal_hint(word.value, token.text))),
        }
    }

    fn illegal(&self, word: &'static Word, token: Token<'_>, hint: String) -> WordError {
        self.error(token, Problem::Illegal { word, value: token.text.to_owned(), hint })
    }

    /// One arm per kind of word: this is the table of effects, and splitting it would hide that.
    fn apply(&mut self, word: &'static Word, token: Token<'a>) -> Result<(), WordError> {
        match word.effect {
            Effect::Bandwidth => self.bandwidth(word, token)?,
            Effect::Unlimited => self.unlimited(),
            Effect::AutorateIngress => self.change.autorate_ingress = Some(true),
            Effect::Rtt => {
                let (span, _) = self.value(word, token, value::parse_time)?;
                self.rtt(span);
            }
            Effect::RttPreset(micros) => self.rtt_preset(word, token, micros)?,
            Effect::Diffserv(mode) => self.change.diffserv = Some(mode),
            Effect::Isolation(mode) => self.change.isolation = Some(mode),
            Effect::Nat(on) => self.change.nat = Some(on),
            Effect::Wash(on) => self.change.wash = Some(on),
            Effect::SplitGso(policy) => self.change.split_gso = Some(policy),
            Effect::Burst => {
                self.change.burst = Some(self.value(word, token, value::parse_time)?.0);
            }
            Effect::RttStep => {
                self.change.rtt_step = Some(self.value(word, token, value::parse_time)?.0);
            }
            Effect::AckFilter(mode) => self.change.ack_filter = Some(mode),
            Effect::Ingress(on) => self.change.ingress = Some(on),
            Effect::MemoryLimit => {
                let (size, _) = self.value(word, token, value::parse_size)?;
                self.change.memory_limit = Some((size.bytes() != 0).then_some(size));
            }
            Effect::Fwmark => {
                let (mask, _) = self.value(word, token, value::parse_mask)?;
                self.change.fwmark = Some(mask);
            }
            Effect::Overhead => {
                let (bytes, at) = self.integer(word, token)?;
                self.overhead(at, bytes);
            }
            Effect::Mpu => {
                let (bytes, at) = self.integer(word, token)?;
                let mpu = u16::try_from(bytes);
                let mpu = mpu.map_err(|_| self.illegal(word, at, "too large".to_owned()))?;
                self.change.mpu = Some(mpu);
            }
            Effect::LinkLayer(link_layer) => self.change.link_layer = Some(link_layer),
            Effect::Raw => {
                self.change.link_layer = Some(LinkLayer::Noatm);
                self.change.raw = true;
                self.overhead(token, 0);
            }
            Effect::Conservative => {
                self.change.link_layer = Some(LinkLayer::Atm);
                self.overhead(token, 48);
            }
            Effect::LinkPreset(preset) => self.link_preset(token, preset),
            Effect::Ignored => {}
        }
        Ok(())
    }

    fn bandwidth(&mut self, word: &'static Word, token: Token<'a>) -> Result<(), WordError> {
        // `show` prints "bandwidth unlimited"; what it prints can be typed.
        if self.tokens.get(self.next).is_some_and(|token| token.text == "unlimited") {
            self.next += 1;
            self.unlimited();
            return Ok(());
        }
        let (rate, at) = self.value(word, token, value::parse_rate)?;
        self.no_rate = rate.is_zero().then_some((word, at));
        self.change.bandwidth = Some(Some(rate));
        self.change.autorate_ingress = Some(false);
        Ok(())
    }

    fn unlimited(&mut self) {
        self.no_rate = None;
        self.change.bandwidth = Some(None);
        self.change.autorate_ingress = Some(false);
    }

    /// A rate of nothing counts only if it is the last word on the matter; then `tc` would keep the
    /// old rate or mean unlimited, and nobody can have meant that.
    fn refuse_no_rate(&self) -> Result<(), WordError> {
        let Some((word, at)) = self.no_rate else { return Ok(()) };
        let hint = "which is less than a byte per second; for no limit type \"unlimited\"";
        Err(self.illegal(word, at, hint.to_owned()))
    }

    /// A time of 0 asks for no interval, but for a target all the same (spec §2.4).
    fn rtt(&mut self, interval: Span) {
        let target = Span::from_micros((interval.micros() / 20).max(1));
        self.change.interval = (interval != Span::ZERO).then_some(interval);
        self.change.target = Some(target);
    }

    fn rtt_preset(
        &mut self,
        word: &'static Word,
        token: Token<'_>,
        micros: u32,
    ) -> Result<(), WordError> {
        if let Some(first) = self.preset.replace(word.name) {
            return Err(self.error(token, Problem::Duplicate { word: word.name, first }));
        }
        self.rtt(Span::from_micros(micros.into()));
        Ok(())
    }

    fn integer(
        &mut self,
        word: &'static Word,
        token: Token<'a>,
    ) -> Result<(i64, Token<'a>), WordError> {
        let Value::Integer { min, max } = word.value else {
            unreachable!("only words that take an integer come here");
        };
        let range = i64::from(min)..=i64::from(max);
        self.value(word, token, |text| {
            value::parse_integer(text).filter(|number| range.contains(number))
        })
    }

    fn overhead(&mut self, at: Token<'a>, bytes: i64) {
        self.overhead = bytes;
        self.overhead_at = Some(at);
    }

    fn link_preset(&mut self, token: Token<'a>, preset: LinkPreset) {
        self.overhead(token, self.overhead + i64::from(preset.adds));
        self.change.mpu = preset.mpu.or(self.change.mpu);
        self.change.link_layer = preset.link_layer.or(self.change.link_layer);
    }

    fn finish_overhead(&mut self) -> Result<(), WordError> {
        let Some(at) = self.overhead_at else { return Ok(()) };
        let sum = self.overhead;
        let fits = i16::try_from(sum).ok();
        let fits = fits.filter(|bytes| (MIN_OVERHEAD..=MAX_OVERHEAD).contains(bytes));
        match fits {
            Some(bytes) => self.change.overhead = Some(bytes),
            None => return Err(self.error(at, Problem::OverheadSum { sum })),
        }
        Ok(())
    }
}

/// What to say of a value that cannot be read.
fn illegal_hint(kind: Value, text: &str) -> String {
    let expected = expected(kind);
    if kind == Value::Rate && text.ends_with('%') {
        return format!("a share of the device's speed is not known; expected {expected}");
    }
    let letters = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let unit = letters.to_ascii_lowercase();
    if kind == Value::Rate && matches!(unit.as_str(), "k" | "m" | "g" | "kb" | "mb" | "gb") {
        let number = &text[..text.len() - letters.len()];
        return format!("which could be bits or bytes; did you mean {number}{}bit?", &unit[..1]);
    }
    match kind {
        Value::Integer { min, max } => format!("expected {expected} from {min} to {max}"),
        _ => format!("expected {expected}"),
    }
}

/// What to say of a word that is not known.
fn hint(word: &str, previous: Option<&str>, next: Option<&str>) -> String {
    let numeric = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if let Some(number) = previous.filter(|text| numeric(text))
        && value::parse_rate(&format!("{number}{word}")).is_some()
    {
        return format!("a unit follows its number without a space: {number}{word}");
    }
    let joined = |glue: &str| next.map(|next| format!("{word}{glue}{next}"));
    for whole in [joined(""), joined("-")].into_iter().flatten() {
        if table::find(&whole).is_some() {
            return format!("did you mean \"{whole}\"?");
        }
    }
    let spellings = table::words().flat_map(|word| [Some(word.name), word.synonym]).flatten();
    match nearest(word, spellings) {
        Some(known) => format!("did you mean \"{known}\"?"),
        None => "not a word of cake; \"help\" lists them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ucake::qdisc::{Config, Diffserv, Isolation, Overhead};
    use ucake::units::{MemSize, Rate};

    use super::*;

    fn all(line: &str) -> Change {
        parse_line(line).expect(line)
    }

    fn config(line: &str) -> Config {
        Config::default().changed_by(&all(line))
    }

    fn refused(line: &str) -> WordError {
        parse_line(line).expect_err(line)
    }

    #[test]
    fn nothing_asked_for_changes_nothing() {
        assert_eq!(parse(&[]), Ok(Change::default()));
        assert_eq!(parse_line("  \t "), Ok(Change::default()));
    }

    #[test]
    fn the_defaults_of_the_table_are_the_default_configuration() {
        let defaults: Vec<&str> =
            table::words().filter(|word| word.default).map(|word| word.name).collect();
        assert_eq!(config(&defaults.join(" ")), Config::default());
    }

    #[test]
    fn every_word_is_spelled_once() {
        let mut spellings: Vec<&str> =
            table::words().flat_map(|word| [Some(word.name), word.synonym]).flatten().collect();
        let count = spellings.len();
        spellings.sort_unstable();
        spellings.dedup();
        assert_eq!(spellings.len(), count);
    }

    #[test]
    fn the_order_of_words_has_the_effects_it_has_in_tc() {
        let overhead = |line: &str| config(line).overhead;
        let plain = |bytes, mpu, link_layer| Overhead { bytes, mpu, link_layer, raw: false };
        use LinkLayer::{Atm, Noatm, Ptm};
        assert_eq!(overhead("ethernet overhead 10"), plain(10, 84, Noatm));
        assert_eq!(overhead("overhead 10 ethernet"), plain(48, 84, Noatm));
        assert_eq!(overhead("ethernet ether-vlan ether-vlan"), plain(46, 84, Noatm));
        assert_eq!(overhead("conservative docsis"), plain(66, 64, Noatm));
        assert_eq!(overhead("docsis conservative"), plain(48, 64, Atm));
        assert_eq!(overhead("atm ethernet"), plain(38, 84, Atm));
        let raw = |bytes, link_layer| Overhead { bytes, mpu: 0, link_layer, raw: true };
        assert_eq!(overhead("pppoe-ptm raw"), raw(0, Noatm));
        assert_eq!(overhead("raw pppoe-ptm"), raw(30, Ptm));
        assert_eq!(overhead("raw overhead 10"), raw(10, Noatm));
    }

    #[test]
    fn rates_and_autorate_override_each_other_one_way() {
        let rate = Some(Rate::from_bits(10_000_000));
        let both = config("bandwidth 10mbit autorate-ingress");
        assert_eq!((both.bandwidth, both.autorate_ingress), (rate, true));
        let fixed = config("autorate-ingress bandwidth 10mbit");
        assert_eq!((fixed.bandwidth, fixed.autorate_ingress), (rate, false));
        assert_eq!(all("bandwidth 10mbit unlimited").bandwidth, Some(None));
        assert_eq!(all("bandwidth unlimited").bandwidth, Some(None));
        assert_eq!(all("unlimited bandwidth 10mbit").bandwidth, Some(rate));
        assert_eq!(all("bandwidth 0 bandwidth 10mbit").bandwidth, Some(rate));
        assert_eq!(all("bandwidth 0 unlimited").bandwidth, Some(None));
    }

    #[test]
    fn the_last_word_on_the_round_trip_time_wins() {
        let micros = |line: &str| {
            let config = config(line);
            (config.interval.micros(), config.target.micros())
        };
        assert_eq!(micros("rtt 20ms metro"), (10_000, 500));
        assert_eq!(micros("metro rtt 20ms"), (20_000, 1_000));
        assert_eq!(micros("datacentre"), (100, 5));
        assert_eq!(micros("interplanetary"), (1_000_000_000, 50_000_000));
        assert_eq!(micros("rtt 1"), (1, 1));
        assert_eq!(micros("rtt 0"), (100_000, 1));
        assert_eq!(micros("metro rtt 0"), (100_000, 1));
    }

    #[test]
    fn the_last_word_on_superpackets_wins_and_times_of_runs_are_set_apart_from_it() {
        use ucake::qdisc::SplitGso::{Auto, Split, Whole};
        let of = |line: &str| {
            let Config { split_gso, burst, rtt_step, .. } = config(line);
            (split_gso, burst.micros(), rtt_step.micros())
        };
        assert_eq!(of(""), (Split, 250, 512));
        assert_eq!(of("auto-split-gso"), (Auto, 250, 512));
        assert_eq!(of("auto-split-gso no-split-gso"), (Whole, 250, 512));
        assert_eq!(of("burst 1ms auto-split-gso rtt-step 256"), (Auto, 1000, 256));
        assert_eq!(of("auto-split-gso burst 0 rtt-step 0"), (Auto, 0, 0));
        assert_eq!(refused("burst 20mbit").problem.to_string(), "Illegal \"burst\"");
    }

    #[test]
    fn zero_takes_settings_back() {
        let change = all("mpu 0 memlimit 0 fwmark 0");
        assert_eq!(change.mpu, Some(0));
        assert_eq!(change.memory_limit, Some(None));
        assert_eq!(change.fwmark, Some(0));
        assert_eq!(all("memlimit 8mb").memory_limit, Some(Some(MemSize(8 << 20))));
    }

    #[test]
    fn only_what_was_said_is_asked_for() {
        let expected = Change {
            diffserv: Some(Diffserv::Diffserv4),
            isolation: Some(Isolation::DualSrchost),
            ..Change::default()
        };
        assert_eq!(parse(&["diffserv", "dual-srchost"]), Ok(expected));
    }

    #[test]
    fn messages_are_those_of_tc() {
        let table = [
            ("bandwidth -5mbit", "Illegal \"bandwidth\""),
            ("bandwidth 50%", "Illegal \"bandwidth\""),
            ("bandwidth 0", "Illegal \"bandwidth\""),
            ("bandwidth 7bit", "Illegal \"bandwidth\""),
            ("bandwidth 5 mbit", "What is \"mbit\"?"),
            ("rtt 5x", "Illegal \"rtt\""),
            ("overhead -65", "Illegal \"overhead\", valid range is -64 to 256"),
            ("overhead 257", "Illegal \"overhead\", valid range is -64 to 256"),
            ("overhead 10x", "Illegal \"overhead\", valid range is -64 to 256"),
            ("mpu -1", "Illegal \"mpu\", valid range is 0 to 256"),
            ("memlimit 5g", "Illegal value for \"memlimit\": \"5g\""),
            ("fwmark zz", "Illegal value for \"fwmark\": \"zz\""),
            ("bandwidth", "Command line is not complete. Try option \"help\""),
            ("metro lan", "Error: duplicate \"lan\": \"metro\" is the second value."),
            ("metro metro", "Error: duplicate \"metro\": \"metro\" is the second value."),
            ("metro rtt 5ms lan", "Error: duplicate \"lan\": \"metro\" is the second value."),
            ("overhead 256 ethernet", "Illegal \"overhead\", valid range is -64 to 256"),
        ];
        for (line, message) in table {
            assert_eq!(refused(line).problem.to_string(), message, "{line}");
        }
    }

    #[test]
    fn errors_show_where_and_say_what_to_type_instead() {
        let table = [
            ("bandwidth 20mbit bestefort", 18, "did you mean \"besteffort\"?"),
            ("BESTEFFORT", 1, "did you mean \"besteffort\"?"),
            ("  trippel-isolate", 3, "did you mean \"triple-isolate\"?"),
            ("band width 5mbit", 1, "did you mean \"bandwidth\"?"),
            ("ack filter", 1, "did you mean \"ack-filter\"?"),
            ("bandwith 5mbit", 1, "did you mean \"bandwidth\"?"),
            ("bandwidth 5 mbit", 13, "a unit follows its number without a space: 5mbit"),
            ("qwertyuiop", 1, "not a word of cake; \"help\" lists them"),
            ("bandwidth 5M", 11, "did you mean 5mbit?"),
            ("bandwidth 50%", 11, "a share of the device's speed is not known"),
            ("bandwidth 0", 11, "type \"unlimited\""),
            ("diffserv4 rtt", 11, "\"rtt\" needs a time"),
            ("mpu 257", 5, "expected a whole decimal number from 0 to 256"),
            ("overhead 256 ethernet", 14, "add up to 294"),
            ("lan diffserv4 metro", 15, "\"lan\" stands before it"),
        ];
        for (line, column, hint) in table {
            let error = refused(line);
            assert_eq!(error.column(), column, "{line}");
            assert!(error.to_string().contains(hint), "{line}: {error}");
        }
    }

    #[test]
    fn the_culprit_is_underlined() {
        let expected = "What is \"bestefort\"?\n  bandwidth 20mbit bestefort\n  \
                        \u{20}                ^^^^^^^^^ column 18: did you mean \"besteffort\"?";
        assert_eq!(refused("bandwidth 20mbit bestefort").to_string(), expected);
    }

    #[test]
    fn odd_letters_do_not_confuse_columns() {
        assert_eq!(refused("ünïcödé").column(), 1);
        assert_eq!(refused("lan bandwidth 5µbit").column(), 15);
        assert_eq!(refused("lan\u{a0}ünïcödé").column(), 5);
    }

    #[test]
    fn help_is_an_answer_of_its_own() {
        let error = refused("bandwidth 5mbit help");
        assert_eq!(error.problem, Problem::Help);
        for word in table::words() {
            assert!(error.to_string().contains(word.name));
        }
    }
}
