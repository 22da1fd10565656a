//! Word lists for `tests/oracle/tc`, and what a running ucake makes of them beside what Linux and `tc` make.
//!
//! `oracle-words lists COUNT SEED` prints random lists, one a line; `oracle-words compare THEIRS OURS` reads what was answered
//! (blocks of lines as `tests/oracle/ask.sh` writes them) and prints each difference. Exit status 1: there are some.

use std::process::ExitCode;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as RunnerConfig, RngAlgorithm, TestRng, TestRunner};
use ucake_cli::words::table::{self, Value};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["lists", count, seed] => {
            let number = |text: &str| text.parse::<u32>().expect("a number");
            lists(number(count), number(seed));
            ExitCode::SUCCESS
        }
        ["compare", theirs, ours] => {
            let read = |file| std::fs::read_to_string(file).expect("a readable file");
            compare(&read(theirs), &read(ours))
        }
        _ => {
            eprintln!("usage: oracle-words lists COUNT SEED | compare THEIRS OURS");
            ExitCode::from(2)
        }
    }
}

fn lists(count: u32, seed: u32) {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(RunnerConfig::default(), rng);
    let list = prop::collection::vec(word(), 0..7).prop_map(|words| words.join(" "));
    for _ in 0..count {
        println!("{}", list.new_tree(&mut runner).expect("nothing is rejected").current());
    }
}

/// A word with a value; one in twenty is not meant to be understood.
fn word() -> impl Strategy<Value = String> {
    // `nat` is refused here; see docs/CLI.md.
    // What `nat` needs the two may have or not.
    let known: Vec<_> = table::words().filter(|word| word.name != "nat").collect();
    let fine = (prop::sample::select(known), 0_u32..2_000, 0_usize..8, any::<u32>()).prop_map(
        |(word, number, unit, any)| {
            let spelling = word.synonym.filter(|_| any % 2 == 0).unwrap_or(word.name);
            let value = match word.value {
                Value::Nothing => return spelling.to_owned(),
                Value::Rate => {
                    let units = ["bps", "kbit", "kbps", "mbit", "Mibit", "kibit", "gbit", "MBps"];
                    format!("{}.{}{}", number + 1, any % 100, units[unit])
                }
                Value::Time => {
                    let units = ["", "us", "ms", "s", "usecs", "msec", "sec", "usec"];
                    format!("{number}.{}{}", any % 100, units[unit])
                }
                Value::Size => {
                    let units = ["", "b", "k", "kb", "mb", "m", "kbit", "mbit"];
                    format!("{}{}", number + 1, units[unit])
                }
                Value::Integer { min, max } => {
                    let span = u32::from(max.abs_diff(min)) + 1;
                    (i64::from(min) + i64::from(any % span)).to_string()
                }
                Value::Mask if unit < 4 => format!("{any:#x}"),
                Value::Mask => any.to_string(),
            };
            format!("{spelling} {value}")
        },
    );
    let odd = prop::sample::select(vec![
        "bestefort",
        "bandwidth 5M",
        "bandwidth -5mbit",
        "rtt 5x",
        "overhead 257",
        "overhead -65",
        "mpu 257",
        "mpu -1",
        "memlimit 5g",
        "memlimit x",
        "fwmark zz",
        "Ethernet",
        "5mbit",
        "rtt",
        "bandwidth",
        "overhead 0x10",
    ]);
    // Words that are ours alone `tc` does not know, and would call so.
    let ours = ["auto-split-gso", "burst", "rtt-step"];
    prop_oneof![19 => fine, 1 => odd.prop_map(str::to_owned)].prop_map(move |word| {
        if ours.iter().any(|ours| word.starts_with(ours)) { "lan".into() } else { word }
    })
}

/// What was answered about one list.
#[derive(Default)]
struct Answer<'a> {
    words: &'a str,
    /// Whether it made an instance or changed the one that was there.
    verb: &'a str,
    done: bool,
    stderr: &'a str,
    text: Vec<&'a str>,
    json: &'a str,
}

fn compare(theirs: &str, ours: &str) -> ExitCode {
    let (theirs, ours) = (answers(theirs), answers(ours));
    let (mut equal, mut different, mut done) = (0_u32, 0_u32, 0_u32);
    // After a list that one of them refused on purpose they are not the same until the next instance is made.
    let mut apart = false;
    for (theirs, ours) in theirs.iter().zip(&ours) {
        if theirs.verb == "change" && apart {
            continue;
        }
        done += u32::from(theirs.done);
        apart = theirs.done != ours.done;
        match difference(theirs, ours) {
            None => equal += 1,
            Some(text) => {
                different += 1;
                println!("{} {}\n{text}", theirs.verb, theirs.words);
            }
        }
    }
    let missing = theirs.len().abs_diff(ours.len());
    println!(
        "{equal} equal ({done} accepted in all), {different} different, {missing} not answered"
    );
    ExitCode::from(u8::from(different > 0 || equal == 0 || missing > 0))
}

/// Blocks of lines: `words`, `verb`, `exit` and `stderr` with their values, `json` with the one line that was
/// printed, `text` with the lines that follow it up to `end`.
fn answers(file: &str) -> Vec<Answer<'_>> {
    let mut answers = Vec::new();
    let mut lines = file.lines();
    while let Some(line) = lines.next() {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        if key == "words" {
            answers.push(Answer { words: value, ..Answer::default() });
            continue;
        }
        let answer = answers.last_mut().expect("a block starts with its words");
        match key {
            "verb" => answer.verb = value,
            "exit" => answer.done = value == "0",
            "stderr" => answer.stderr = value,
            "json" => answer.json = value,
            "text" => answer.text = lines.by_ref().take_while(|line| *line != "end").collect(),
            _ => panic!("what is {line}?"),
        }
    }
    answers
}

/// How ucake differs, in words and lines; nothing where it does not, or says in docs/CLI.md that it does.
fn difference(theirs: &Answer<'_>, ours: &Answer<'_>) -> Option<String> {
    match (theirs.done, ours.done) {
        (true, false) if refused_on_purpose(ours.stderr) => return None,
        (true, false) => return Some(format!("  tc accepts it, ucake says: {}", ours.stderr)),
        (false, true) => return Some(format!("  ucake accepts it, tc says: {}", theirs.stderr)),
        // `tc` prints a backslash and an n where it means a line feed.
        (false, false) if theirs.stderr.trim_end_matches("\\n") != ours.stderr => {
            return Some(format!("  ucake: {}\n  tc:    {}", ours.stderr, theirs.stderr));
        }
        _ => {}
    }
    let pairs = || (ours.text.iter().zip(&theirs.text)).chain([(&ours.json, &theirs.json)]);
    let lines: String = pairs()
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("  ucake: {ours}\n  tc:    {theirs}\n"))
        .collect();
    let whole = ours.text.len() == theirs.text.len();
    (!lines.is_empty() || !whole).then_some(lines)
}

/// What docs/CLI.md says we refuse and `tc` takes.
fn refused_on_purpose(message: &str) -> bool {
    message.contains("valid range is -64 to 256")
        || message == "Illegal \"rtt\""
        || message == "Illegal \"bandwidth\""
}
