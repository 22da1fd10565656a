//! Lines in a picture.

use std::error::Error;

use plotters::prelude::{
    ChartBuilder, IntoDrawingArea as _, LineSeries, PathElement, SVGBackend, SeriesLabelPosition,
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
