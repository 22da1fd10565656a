//! Any text is a line of words, or an error that points into it.

use ucake::qdisc::Config;
use ucake_cli::{show, value, words};

/// Text; what is not UTF-8 is replaced.
pub fn words(data: &[u8]) {
    let line = String::from_utf8_lossy(data);
    numbers(&line);
    match words::parse_line(&line) {
        Ok(change) => {
            let config = Config::default().changed_by(&change);
            let shown = show::options(&config);
            let again =
                words::parse_line(&shown).unwrap_or_else(|error| panic!("{shown}: {error}"));
            let again = Config::default().changed_by(&again);
            assert_eq!(show::options(&again), shown, "what is shown means what it was shown for");
            // Times are shown with three digits and rates in whole units; all else comes back.
            let rounded = Config {
                bandwidth: config.bandwidth,
                interval: config.interval,
                target: config.target,
                burst: config.burst,
                rtt_step: config.rtt_step,
                memory_limit: config.memory_limit,
                ..again
            };
            assert_eq!(rounded, config);
        }
        Err(error) => {
            let width = line.chars().count();
            assert!((1..=width).contains(&error.column()), "{} of {width}", error.column());
            assert!(!error.to_string().is_empty());
        }
    }
}

/// Numbers are read and written without a word around them too.
fn numbers(text: &str) {
    if let Some(rate) = value::parse_rate(text) {
        let shown = value::rate(rate);
        let again = value::parse_rate(&shown).unwrap_or_else(|| panic!("{shown} from {text}"));
        assert_eq!(value::rate(again), shown);
        assert!(again <= rate, "only what lies below a unit is cut off");
    }
    if let Some(time) = value::parse_time(text) {
        let shown = value::time(time);
        assert!(value::parse_time(&shown).is_some(), "{shown} from {text}");
    }
    if let Some(size) = value::parse_size(text) {
        let shown = value::size(size.bytes());
        assert!(value::parse_size(&shown).is_some(), "{shown} from {text}");
    }
    let _ = (value::parse_integer(text), value::parse_mask(text));
}
