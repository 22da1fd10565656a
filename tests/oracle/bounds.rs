//! When two measurements under load count as the same.
//!
//! Shared by the live comparison (`load.rs`) and by the test that reads what it recorded
//! (`recorded_load.rs`), so that both judge alike.

use std::collections::BTreeMap;
use std::num::ParseFloatError;

/// One number of one scenario, as both sides measured it: a value for each round.
pub struct Row<'a> {
    pub scenario: &'a str,
    pub key: &'a str,
    pub kernel: Vec<f64>,
    pub ucake: Vec<f64>,
}

impl Row<'_> {
    /// What counts of several rounds, the kernel's first: the median, since a stall of the machine
    /// spoils a round.
    pub fn medians(&self) -> (f64, f64) {
        (median(&self.kernel), median(&self.ucake))
    }

    /// Whether both sides have as many rounds, and medians as close as [`allowed`].
    pub fn agrees(&self) -> bool {
        let (kernel, ucake) = self.medians();
        self.kernel.len() == self.ucake.len()
            && (kernel - ucake).abs() <= allowed(self.scenario, self.key, kernel)
    }
}

/// The numbers in lines of `SCENARIO SIDE KEY VALUE`; other lines say nothing here.
pub fn rows(text: &str) -> Result<Vec<Row<'_>>, ParseFloatError> {
    let mut table: BTreeMap<(&str, &str), [Vec<f64>; 2]> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let [scenario, side, key, value] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            continue;
        };
        table.entry((scenario, key)).or_default()[usize::from(side == "ucake")]
            .push(value.parse()?);
    }
    let rows = table.into_iter().map(|(named, values)| {
        let ((scenario, key), [kernel, ucake]) = (named, values);
        Row { scenario, key, kernel, ucake }
    });
    Ok(rows.collect())
}

/// How far apart two numbers may be.
pub fn allowed(scenario: &str, key: &str, kernel: f64) -> f64 {
    match key {
        // Three points of the rate, which is 10 Mbit/s.
        "goodput_mbit" if scenario.starts_with("flood-ingress") => 0.3,
        "goodput_mbit" => kernel * 0.02,
        "ping_mean_ms" => (kernel * 0.25).max(0.3),
        // A handful is a matter of chance: the spread of a count is its root.
        "drops" | "marks" => (kernel * 0.25).max(3.0 * kernel.sqrt()).max(5.0),
        _ if key.starts_with("share_") => 3.0,
        _ => f64::INFINITY,
    }
}

/// Not a number, which agrees with nothing, if there are no values.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values[..] {
        [] => f64::NAN,
        _ if values.len() % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}
