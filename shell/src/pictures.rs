//! How pictures are drawn: curves, panels side by side, and what every drawing is made of.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::PathBuf;

/// From dark to light, so that they differ in grey too.
pub const SERIES: [RGBColor; 4] =
    [RGBColor(150, 40, 10), RGBColor(30, 110, 190), RGBColor(60, 170, 90), RGBColor(215, 175, 225)];
/// Labels of an axis of whole numbers.
const WHOLE_LABELS: usize = 11;
/// The colour of letters.
pub const INK: RGBColor = RGBColor(40, 40, 40);
/// The colour of frames.
pub const FRAME: RGBColor = RGBColor(225, 225, 225);

/// What is drawn on.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A file for a picture, which is drawn in no other format.
pub fn svg_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("svg"));
    if is_svg { Ok(path) } else { Err("pictures are drawn as SVG: write FILE.svg".into()) }
}

/// Writes a text whose upper left corner is given.
pub fn text(canvas: &Canvas<'_>, at: (i32, i32), size: i32, words: &str) -> anyhow::Result<()> {
    let style = ("sans-serif", size).into_font().color(&INK);
    canvas
        .draw(&Text::new(words.to_owned(), at, style))
        .map_err(|error| anyhow!("picture: {error}"))
}

/// Fills a rectangle between two corners.
pub fn rectangle(
    canvas: &Canvas<'_>,
    from: (i32, i32),
    to: (i32, i32),
    colour: RGBColor,
) -> anyhow::Result<()> {
    canvas
        .draw(&Rectangle::new([from, to], colour.filled()))
        .map_err(|error| anyhow!("picture: {error}"))
}

/// When each job of a simulation was complete.
pub fn finish_times(scheme: &str, finish: &[f64]) -> anyhow::Result<String> {
    let done = |(job, at): (usize, &f64)| at.is_finite().then_some((job as f64 + 1.0, *at));
    let curve = finish.iter().enumerate().filter_map(done).collect();
    let series = [(scheme.to_owned(), curve)];
    curves(
        "Jobs completed over time",
        ("job", "complete after (s)"),
        &series,
        SeriesLabelPosition::UpperLeft,
    )
}

/// A name and its points.
pub type Curve = (String, Vec<(f64, f64)>);

/// Curves over one number, with a legend.
pub fn curves(
    title: &str,
    axes: (&str, &str),
    series: &[Curve],
    legend: SeriesLabelPosition,
) -> anyhow::Result<String> {
    let points = || series.iter().flat_map(|curve| &curve.1).copied();
    let end = points().map(|point| point.0).fold(1e-9, f64::max);
    let (low, high) = points()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, y)| (low.min(y), high.max(y)));
    let (low, high) = if low < high {
        (low, high)
    } else if low.is_finite() {
        (low - 0.5, low + 0.5)
    } else {
        (0.0, 1.0)
    };
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (760, 420)).into_drawing_area();
        let fail = |error: &dyn std::fmt::Display| anyhow!("picture: {error}");
        canvas.fill(&WHITE).map_err(|error| fail(&error))?;
        let margin = 0.05 * (high - low);
        let mut chart = ChartBuilder::on(&canvas)
            .caption(title, ("sans-serif", 17).into_font().color(&INK))
            .margin(14)
            .x_label_area_size(40)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..end * 1.02, low - margin..high + margin)
            .map_err(|error| fail(&error))?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(axes.0).y_desc(axes.1).light_line_style(WHITE).bold_line_style(FRAME);
        let whole = |x: &f64| format!("{x:.0}");
        if points().all(|point| point.0.fract() == 0.0) {
            mesh.x_label_formatter(&whole).x_labels(WHOLE_LABELS.min(end as usize + 1));
        }
        mesh.draw().map_err(|error| fail(&error))?;
        for ((name, curve), colour) in series.iter().zip(SERIES.iter().cycle()) {
            let colour = *colour;
            let line = chart
                .draw_series(LineSeries::new(curve.iter().copied(), colour.stroke_width(2)))
                .map_err(|error| fail(&error))?;
            line.label(name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
            });
        }
        let mut labels = chart.configure_series_labels();
        labels
            .position(legend)
            .background_style(WHITE)
            .border_style(FRAME)
            .label_font(("sans-serif", 13));
        labels.draw().map_err(|error| fail(&error))?;
        canvas.present().map_err(|error| fail(&error))?;
    }
    Ok(svg)
}
