//! Data files that flent opens and plots.
//!
//! Source: flent's data format, version 4: JSON in gzip; series over common x values, and raw values.
//! Law: series have the names that flent's own tests give them, so that their plots work.
//! Left out: series that the laboratory does not measure; flent leaves them out of its plots.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::report::{Run, Setup};
use super::series::{Quantity, STEP, Series, sum};

const VERSION: u32 = 4;

/// Name of the file of one run: `x.flent.gz` and `x` become `x-1-fifo.flent.gz`.
pub(super) fn path(base: &Path, number: usize, discipline: &str) -> PathBuf {
    let name = base.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.strip_suffix(".flent.gz").unwrap_or(&name);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let slug: String = discipline.chars().map(plain).take(60).collect();
    base.with_file_name(format!("{stem}-{number}-{slug}.flent.gz"))
}

/// The data file of `run`, whose name will be `path`.
pub(super) fn data_file(path: &Path, run: &Run, setup: &Setup) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(data(path, run, setup).to_string().as_bytes())?;
    gzip.finish()
}

fn data(path: &Path, run: &Run, setup: &Setup) -> Value {
    let step = STEP.as_secs_f64();
    // Runs are told apart by the time they began.
    let since = run.began.duration_since(UNIX_EPOCH).unwrap_or_default();
    let all: Vec<Series> = run.series.iter().cloned().chain(totals(&run.series)).collect();
    let end = all.iter().flat_map(|one| &one.points).map(|point| point.0).fold(0.0, f64::max);
    let steps = (1_u32..).take_while(|&step_of| f64::from(step_of) * step <= end);
    let x_values: Vec<f64> = steps.map(|number| f64::from(number) * step).collect();
    let mut results = Map::new();
    let mut raw = Map::new();
    let mut meta = Map::new();
    for one in &all {
        results.insert(one.name.clone(), means(&one.points, &x_values, step));
        let points = one.points.iter();
        let points: Vec<Value> =
            points.map(|(t, val)| json!({"t": since.as_secs_f64() + t, "val": val})).collect();
        raw.insert(one.name.clone(), points.into());
        meta.insert(one.name.clone(), json!({"UNITS": one.quantity.unit()}));
    }
    json!({
        "version": VERSION,
        "x_values": x_values,
        "results": results,
        "raw_values": raw,
        "metadata": metadata(path, run, setup, (since, end), meta),
    })
}

fn metadata(
    path: &Path,
    run: &Run,
    setup: &Setup,
    (since, end): (Duration, f64),
    series: Map<String, Value>,
) -> Value {
    let time = timestamp(since);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let flows = setup.flows.to_string();
    json!({
        "NAME": test(&setup.scenario),
        "TITLE": run.discipline,
        "NOTE": format!("ucake lab --scenario {}", setup.scenario),
        "TIME": time,
        "T0": time,
        "DATA_FILENAME": name.unwrap_or_default(),
        "HOST": "server",
        "HOSTS": ["server"],
        "LOCAL_HOST": "client",
        "LENGTH": end.round(),
        "TOTAL_LENGTH": end.round(),
        "STEP_SIZE": STEP.as_secs_f64(),
        "IP_VERSION": 4,
        "FLENT_VERSION": "2.1.1",
        "TEST_PARAMETERS": {"upload_streams": flows, "download_streams": flows},
        "SERIES_META": series,
        "FAILED_RUNNERS": 0,
        "HTTP_GETTER_URLLIST": null,
    })
}

/// The test of flent's that measures most alike.
fn test(scenario: &str) -> &'static str {
    match scenario {
        "download" | "asym" => "tcp_ndown",
        "both" => "rrul_be",
        "rrul" => "rrul",
        "voip" => "voip-rrul",
        _ => "tcp_nup",
    }
}

/// Sums and averages under flent's names.
fn totals(series: &[Series]) -> Vec<Series> {
    let mut found = Vec::new();
    let kinds = [
        (Quantity::Upload, "TCP upload"),
        (Quantity::Download, "TCP download"),
        (Quantity::Ping, "Ping (ms)"),
    ];
    for (quantity, name) in kinds {
        let of_kind: Vec<&Series> = series.iter().filter(|one| one.quantity == quantity).collect();
        let count = f64::from(u32::try_from(of_kind.len()).unwrap_or(u32::MAX));
        if of_kind.is_empty() {
            continue;
        }
        if quantity == Quantity::Ping {
            let mut points: Vec<_> = of_kind.iter().flat_map(|one| one.points.clone()).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            found.push(Series { name: format!("{name} avg"), quantity, points });
            continue;
        }
        let points = sum(of_kind);
        let average = points.iter().map(|&(at, value)| (at, value / count)).collect();
        found.push(Series { name: format!("{name} avg"), quantity, points: average });
        found.push(Series { name: format!("{name} sum"), quantity, points });
    }
    let sums: Vec<Series> =
        found.iter().filter(|one| one.name.ends_with(" sum")).cloned().collect();
    if let [up, _] = sums.as_slice() {
        let (name, quantity) = ("TCP totals".to_owned(), up.quantity);
        found.push(Series { name, quantity, points: sum(&sums) });
    }
    found
}

/// The mean of what lies in the step that ends at each x; null where nothing does.
fn means(points: &[(f64, f64)], x_values: &[f64], step: f64) -> Value {
    let mut rest = points.iter().peekable();
    let mut mean = |x: &f64| {
        let (mut total, mut count) = (0.0, 0.0);
        // Half a step of tolerance: samples are taken at the ends of steps, or a little after.
        while let Some((_, value)) = rest.next_if(|(at, _)| *at <= x + step / 2.0) {
            total += value;
            count += 1.0;
        }
        if count > 0.0 { Value::from(total / count) } else { Value::Null }
    };
    x_values.iter().map(&mut mean).collect::<Vec<_>>().into()
}

/// Date and time, UTC, as flent writes it; empty after the year 9999.
fn timestamp(since: Duration) -> String {
    let at = SignedDuration::try_from(since).ok();
    let at = at.and_then(|since| Timestamp::from_duration(since).ok());
    at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(timestamp(Duration::ZERO), "1970-01-01T00:00:00.000000Z");
        assert_eq!(timestamp(Duration::from_secs(951_782_400)), "2000-02-29T00:00:00.000000Z");
        assert_eq!(timestamp(Duration::from_secs(1_798_761_599)), "2026-12-31T23:59:59.000000Z");
    }

    #[test]
    fn each_run_has_a_file_of_its_own() {
        let named = |base: &str| path(Path::new(base), 2, "cake ack-filter rtt 20ms");
        let expected = Path::new("/tmp/x-2-cake-ack-filter-rtt-20ms.flent.gz");
        assert_eq!(named("/tmp/x"), expected);
        assert_eq!(named("/tmp/x.flent.gz"), expected);
    }

    #[test]
    fn a_step_without_a_value_is_null() {
        let points = [(0.1, 2.0), (0.2, 4.0), (0.61, 7.0)];
        assert_eq!(means(&points, &[0.2, 0.4, 0.6], 0.2), json!([3.0, null, 7.0]));
    }
}
