//! Ping and throughput over time, and the distribution of ping, as one SVG.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::report::Run;
use super::series::{Quantity, sum};

const WIDTH: u32 = 1000;
/// Of one panel.
const HEIGHT: u32 = 400;
/// Told apart by those who do not see all colours, too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// One line: whose it is, its colour, its points.
type Line = (String, RGBColor, Vec<(f64, f64)>);
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What is written at the axes.
struct Labels {
    title: &'static str,
    x: &'static str,
    y: &'static str,
}

/// The picture of all runs. Runs of the same discipline have the same colour.
pub(super) fn draw(runs: &[Run], scenario: &str) -> anyhow::Result<String> {
    let mut svg = String::new();
    panels(&mut svg, runs, scenario).map_err(|error| anyhow!("cannot draw: {error}"))?;
    Ok(svg)
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn panels(svg: &mut String, runs: &[Run], scenario: &str) -> Outcome {
    let calls = lines(runs, |run| points(run, Quantity::Delay));
    let has_calls = calls.iter().any(|line| !line.2.is_empty());
    let count = if has_calls { 4 } else { 3 };
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT * count)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("ucake lab --scenario {scenario}");
    let panels =
        root.titled(&title, ("sans-serif", 24))?.split_evenly((3 + usize::from(has_calls), 1));
    let [time, rate, spread, call @ ..] = &panels[..] else {
        return Err("no room".into());
    };
    let pings = lines(runs, |run| points(run, Quantity::Ping));
    let top = largest(&pings, |point| point.1).max(1.0);
    let low = pings.iter().flat_map(|line| &line.2).map(|point| point.1).fold(top, f64::min);
    // Whole decades, or the logarithmic axis has no label at its ends.
    let low = 10_f64.powf(low.max(0.01).log10().floor());
    let end = largest(&pings, |point| point.0).max(0.1);
    let labels = Labels { title: "Ping over time", x: "time (s)", y: "ping (ms)" };
    panel(time, &labels, 0.0..end, (low..top * 1.5).log_scale(), &pings)?;
    let rates = lines(runs, |run| {
        let all = run.series.iter().filter(|one| one.quantity.is_goodput());
        sum(all)
    });
    let fastest = largest(&rates, |point| point.1).max(0.1);
    let labels = Labels { title: "Goodput over time", x: "time (s)", y: "goodput (Mbit/s)" };
    panel(rate, &labels, 0.0..end, 0.0..fastest * 1.1, &rates)?;
    let shares = lines(runs, distribution);
    let labels = Labels {
        title: "Distribution of ping under load",
        x: "ping (ms)",
        y: "share of pings that were faster (%)",
    };
    panel(spread, &labels, (low..top * 1.1).log_scale(), 0.0..100.0, &shares)?;
    if let [area] = call {
        let top = largest(&calls, |point| point.1).max(1.0);
        let title = "The call over time";
        let labels = Labels { title, x: "time (s)", y: "one-way delay (ms)" };
        panel(area, &labels, 0.0..end, 0.0..top * 1.1, &calls)?;
    }
    root.present()?;
    Ok(())
}

fn lines(runs: &[Run], points: impl Fn(&Run) -> Vec<(f64, f64)>) -> Vec<Line> {
    let mut names: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for run in runs {
        let known = names.iter().position(|name| *name == run.discipline);
        let index = known.unwrap_or_else(|| {
            names.push(&run.discipline);
            names.len() - 1
        });
        // A name once: the legend has a line per discipline.
        let name = if known.is_none() { run.discipline.clone() } else { String::new() };
        found.push((name, COLOURS[index % COLOURS.len()], points(run)));
    }
    found
}

fn points(run: &Run, quantity: Quantity) -> Vec<(f64, f64)> {
    let first = run.series.iter().find(|one| one.quantity == quantity);
    first.map(|one| one.points.clone()).unwrap_or_default()
}

/// The share of pings under load that were faster than each.
fn distribution(run: &Run) -> Vec<(f64, f64)> {
    let pings = points(run, Quantity::Ping);
    let loaded = pings.iter().filter(|(at, _)| *at >= run.loaded_from);
    let mut times: Vec<f64> = loaded.map(|point| point.1).collect();
    times.sort_by(f64::total_cmp);
    let step = 100.0 / f64::from(u32::try_from(times.len()).unwrap_or(u32::MAX).max(1));
    (1_u32..).zip(times).map(|(rank, time)| (time, f64::from(rank) * step)).collect()
}

fn largest(lines: &[Line], of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    lines.iter().flat_map(|line| &line.2).map(of).fold(0.0, f64::max)
}

fn panel<X, Y>(area: &Area<'_>, labels: &Labels, x: X, y: Y, lines: &[Line]) -> Outcome
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(labels.title, ("sans-serif", 18))
        .margin(12)
        .margin_right(40)
        .set_label_area_size(LabelAreaPosition::Left, 70)
        .set_label_area_size(LabelAreaPosition::Bottom, 45)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.05))
        .x_desc(labels.x)
        .y_desc(labels.y)
        .label_style(("sans-serif", 14))
        .draw()?;
    for (name, colour, points) in lines {
        let colour = *colour;
        let drawn = chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        if !name.is_empty() {
            drawn.label(name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3))
            });
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(())
}
