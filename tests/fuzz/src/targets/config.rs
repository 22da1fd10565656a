//! Any bytes are a configuration file that can be written again, or an error that points into it.

use ucake_cli::config;

/// The bytes of a file.
pub fn config(data: &[u8]) {
    match config::parse(data) {
        Ok(plan) => {
            let written = config::write(&plan);
            let again = config::parse(written.as_bytes());
            assert_eq!(again.as_ref(), Ok(&plan), "{written}");
            assert_eq!(plan.configs().len(), plan.bridges.len());
        }
        Err(error) => {
            let lines = 1 + data.iter().filter(|byte| **byte == b'\n').count();
            assert!((1..=lines).contains(&error.line), "{} of {lines}", error.line);
            assert!(error.column >= 1 && !error.to_string().is_empty());
        }
    }
}
