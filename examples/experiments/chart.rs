//! Lines and bars in a picture.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, DrawingArea, IntoDrawingArea as _, LineSeries, PathElement, Rectangle,
    SVGBackend, SeriesLabelPosition, Text,
};
use plotters::style::{BLACK, Color as _, RGBColor, WHITE};

/// Told apart by people who do not see all colours (Okabe and Ito), and in grey.
const COLOURS: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(0, 114, 178), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Draws `series`, each with its name, over axes that begin at zero, into the SVG `file`.
pub(crate) fn lines(
    file: &str,
    title: &str,
    [x_label, y_label]: [&str; 2],
    series: &[(&str, Vec<(f64, f64)>)],
) -> Result<(), Box<dyn Error>> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let right = points().map(|point| point.0).fold(0.0, f64::max);
    let top = points().map(|point| point.1).fold(0.0, f64::max);
    let area = SVGBackend::new(file, (640, 360)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..right, 0.0..top * 1.05)?;
    chart.configure_mesh().light_line_style(WHITE).x_desc(x_label).y_desc(y_label).draw()?;
    for ((name, points), colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
        let key = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
        chart.draw_series(line)?.label(*name).legend(key);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleMiddle)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

/// What is compared in one pair of axes.
pub(crate) struct Panel {
    /// With the unit.
    pub(crate) title: String,
    /// From left to right.
    pub(crate) bars: Vec<Bar>,
}

/// What was published of a thing, and what was measured.
pub(crate) struct Bar {
    /// What it is.
    pub(crate) name: String,
    /// In the panel's unit.
    pub(crate) published: Option<f64>,
    /// Of Linux's own sch_cake, today.
    pub(crate) linux: Option<Spread>,
    /// Of ucake.
    pub(crate) here: Option<Spread>,
}

/// Median and ends of what the rounds gave.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median, min, max })
    }
}

/// What was published, Linux's own, ucake.
const SIDES: [(&str, RGBColor); 3] = [
    ("published", RGBColor(190, 190, 190)),
    ("sch_cake in today's kernel", RGBColor(230, 159, 0)),
    ("ucake", RGBColor(0, 114, 178)),
];
/// Half of the room that a thing has, of 1.
const HALF: f64 = 0.38;

/// Draws `panels`, so many beside each other, into the SVG `file`.
pub(crate) fn bars(
    file: &str,
    title: &str,
    panels: &[Panel],
    columns: usize,
) -> Result<(), Box<dyn Error>> {
    let rows = panels.len().div_ceil(columns);
    let size = (960, 70 + 210 * u32::try_from(rows)?);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    let bars = || panels.iter().flat_map(|panel| &panel.bars);
    let has = |&side: &usize| bars().any(|bar| bar.side(side).is_some());
    let sides: Vec<usize> = (0..SIDES.len()).filter(has).collect();
    let (head, inner) = area.titled(title, ("sans-serif", 18))?.split_vertically(24);
    for (place, &side) in (0..).zip(&sides) {
        let (name, colour) = SIDES[side];
        let left = 54 + 230 * place;
        head.draw(&Rectangle::new([(left, 4), (left + 14, 18)], colour.filled()))?;
        head.draw(&Text::new(name, (left + 20, 5), ("sans-serif", 14)))?;
    }
    for (panel, area) in panels.iter().zip(inner.split_evenly((rows, columns))) {
        draw(panel, &area, &sides)?;
    }
    area.present()?;
    Ok(())
}

impl Bar {
    fn side(&self, side: usize) -> Option<Spread> {
        let exact = |value| Spread { median: value, min: value, max: value };
        [self.published.map(exact), self.linux, self.here][side]
    }
}

fn draw(
    Panel { title, bars }: &Panel,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    sides: &[usize],
) -> Result<(), Box<dyn Error>> {
    let all = bars.iter().flat_map(|bar| sides.iter().filter_map(|&side| bar.side(side)));
    let top = all.map(|found| found.max).fold(f64::MIN_POSITIVE, f64::max) * 1.08;
    let places = u32::try_from(bars.len())?;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 14))
        .margin(10)
        .x_label_area_size(24)
        .y_label_area_size(44)
        .build_cartesian_2d(-0.5..f64::from(places) - 0.5, 0.0..top)?;
    // The axis is of numbers, and has the name of each where its bars stand.
    let name = |at: &f64| {
        let mut named = (0..places).map(f64::from).zip(bars);
        named.find(|(place, _)| (place - at).abs() < 0.01).map(|(_, bar)| bar.name.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(bars.len() + 1)
        .x_label_formatter(&|at| name(at).unwrap_or_default())
        .y_labels(6)
        .draw()?;
    let width = 2.0 * HALF / f64::from(u32::try_from(sides.len())?);
    for (place, bar) in (0..places).map(f64::from).zip(bars) {
        for (step, &side) in (0_u32..).zip(sides) {
            let Some(Spread { median, min, max }) = bar.side(side) else { continue };
            let left = place - HALF + width * f64::from(step);
            let block = [(left, 0.0), (left + width, median)];
            chart.draw_series([Rectangle::new(block, SIDES[side].1.filled())])?;
            let middle = left + width / 2.0;
            let ends = (min < max).then(|| PathElement::new([(middle, min), (middle, max)], BLACK));
            chart.draw_series(ends)?;
        }
    }
    Ok(())
}
