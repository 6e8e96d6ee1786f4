//! Pictures of several panels, each with curves over an axis of its own.

use anyhow::anyhow;
use codedgrad_shell::pictures::{Canvas, Curve, FRAME, INK, SERIES, text};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// One of several plots side by side: a logarithmic error over some number.
pub(super) struct Panel {
    /// Above it.
    pub(super) title: String,
    /// What its horizontal axis is.
    pub(super) axis: &'static str,
    /// Whether that number is on a logarithmic axis too.
    pub(super) logarithmic: bool,
    /// Its curves.
    pub(super) series: Vec<Curve>,
}

/// Width and height of a panel.
const PANEL: (u32, u32) = (430, 400);

/// Errors over something, in panels side by side.
pub(super) fn panels(title: &str, panels: &[Panel]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let size = (PANEL.0 * panels.len().max(1) as u32, PANEL.1 + 34);
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(|error| anyhow!("picture: {error}"))?;
        text(&canvas, (14, 8), 17, title)?;
        let (_, below) = canvas.split_vertically(34);
        for (area, panel) in below.split_evenly((1, panels.len().max(1))).iter().zip(panels) {
            if panel.logarithmic {
                let (low, high) = span(
                    panel
                        .series
                        .iter()
                        .flat_map(|curve| &curve.1)
                        .map(|point| point.0)
                        .filter(|x| *x > 0.0),
                );
                draw_panel(area, panel, (low..high).log_scale())?;
            } else {
                let (low, high) =
                    span(panel.series.iter().flat_map(|curve| &curve.1).map(|point| point.0));
                draw_panel(area, panel, low..high)?;
            }
        }
        canvas.present().map_err(|error| anyhow!("picture: {error}"))?;
    }
    Ok(svg)
}

/// The least and the largest, apart from each other.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    match (low.is_finite(), low < high) {
        (true, true) => (low, high),
        (true, false) => (low, low + 1.0),
        (false, _) => (0.1, 1.0),
    }
}

fn draw_panel<X>(area: &Canvas<'_>, panel: &Panel, axis: X) -> anyhow::Result<()>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let fail = |error: &dyn std::fmt::Display| anyhow!("picture: {error}");
    let points =
        || panel.series.iter().flat_map(|curve| &curve.1).map(|point| point.1).filter(|y| *y > 0.0);
    let (low, high) = span(points());
    // Room for the legend above the curves.
    let room = (high / low).powf(0.3).max(2.0);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 14).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(axis, (low / 1.5..high * room).log_scale())
        .map_err(|error| fail(&error))?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(panel.axis).light_line_style(WHITE).bold_line_style(FRAME);
    mesh.y_label_formatter(&|y| format!("{y:.0e}"))
        .x_label_formatter(&|x| if *x >= 1e4 { format!("{x:.0e}") } else { format!("{x}") });
    mesh.x_labels(7).y_labels(8).draw().map_err(|error| fail(&error))?;
    for ((name, curve), colour) in panel.series.iter().zip(SERIES.iter().cycle()) {
        let colour = *colour;
        let above: Vec<(f64, f64)> = curve.iter().copied().filter(|(_, y)| *y > 0.0).collect();
        let line = chart
            .draw_series(LineSeries::new(above, colour.stroke_width(2)).point_size(2))
            .map_err(|error| fail(&error))?;
        line.label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let mut labels = chart.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .border_style(FRAME)
        .label_font(("sans-serif", 12));
    labels.draw().map_err(|error| fail(&error))
}
