//! Pictures: of a run (loss over time, who answered when), of simulations and of sweeps.

use super::observer::{Line, stragglers};
use crate::ids::Worker;
use crate::train::RoundRecord;
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Rounds drawn side by side; of a longer run, the first ones.
const ROUNDS_MAX: usize = 160;

pub(super) const SERIES: [RGBColor; 4] =
    [RGBColor(200, 80, 30), RGBColor(30, 100, 180), RGBColor(40, 140, 70), RGBColor(130, 60, 160)];
pub(super) const INK: RGBColor = RGBColor(40, 40, 40);
pub(super) const FRAME: RGBColor = RGBColor(225, 225, 225);

/// What became of one worker in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Used,
    WaitedFor,
    NotNeeded,
    Late,
    Erased,
}

impl Fate {
    const ALL: [Self; 5] = [Self::Used, Self::WaitedFor, Self::NotNeeded, Self::Late, Self::Erased];

    fn of(line: &Line, round: &RoundRecord, worker: Worker, late: bool) -> Self {
        let in_time = round.arrivals[worker.index()].is_some();
        let weight =
            line.record.weights.get(worker.index()).filter(|_| line.record.rounds.len() == 1);
        match (weight.map_or(in_time, |weight| *weight != 0.0), late) {
            _ if round.erased.contains(&worker) => Self::Erased,
            (true, true) => Self::WaitedFor,
            (true, false) => Self::Used,
            (false, true) if !in_time => Self::Late,
            (false, _) => Self::NotNeeded,
        }
    }

    fn colour(self) -> RGBColor {
        match self {
            Self::Used => RGBColor(60, 130, 200),
            Self::WaitedFor => RGBColor(240, 140, 20),
            Self::NotNeeded => RGBColor(185, 210, 235),
            Self::Late => RGBColor(200, 45, 45),
            Self::Erased => RGBColor(130, 60, 160),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::WaitedFor => "straggler, waited for",
            Self::NotNeeded => "not needed",
            Self::Late => "straggler, not waited for",
            Self::Erased => "not finite: erased",
        }
    }
}

pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) fn text(
    canvas: &Canvas<'_>,
    at: (i32, i32),
    size: i32,
    words: &str,
) -> anyhow::Result<()> {
    let style = ("sans-serif", size).into_font().color(&INK);
    canvas
        .draw(&Text::new(words.to_owned(), at, style))
        .map_err(|error| anyhow!("picture: {error}"))
}

pub(super) fn rectangle(
    canvas: &Canvas<'_>,
    from: (i32, i32),
    to: (i32, i32),
    colour: RGBColor,
) -> anyhow::Result<()> {
    canvas
        .draw(&Rectangle::new([from, to], colour.filled()))
        .map_err(|error| anyhow!("picture: {error}"))
}

/// Round x worker: the fate of every answer, and under it how long each round took.
pub(super) fn steps(runs: &[Vec<Line>], workers: usize) -> anyhow::Result<String> {
    let shown = runs.iter().map(|lines| rounds(lines).take(ROUNDS_MAX).count()).max().unwrap_or(0);
    let (cell, left, bars) = (7, 80, 46);
    let panel = 44 + workers as i32 * cell + 10 + bars;
    let size = (
        (left + shown as i32 * cell + 24).max(760) as u32,
        (52 + panel * runs.len() as i32) as u32,
    );
    let longest = runs
        .iter()
        .flat_map(|lines| rounds(lines).take(ROUNDS_MAX))
        .map(|(_, round)| round.seconds)
        .fold(0.0, f64::max);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(|error| anyhow!("picture: {error}"))?;
        text(
            &canvas,
            (12, 8),
            15,
            "Who answered, round by round (one row per worker), and how long each round took",
        )?;
        let mut x = 12;
        for fate in Fate::ALL {
            rectangle(&canvas, (x, 33), (x + 9, 42), fate.colour())?;
            text(&canvas, (x + 14, 31), 12, fate.name())?;
            x += 40 + 7 * fate.name().len() as i32;
        }
        for (run, lines) in runs.iter().enumerate() {
            let top = 52 + panel * run as i32;
            steps_panel(&canvas, lines, workers, (left, top, cell, bars), longest)?;
        }
        canvas.present().map_err(|error| anyhow!("picture: {error}"))?;
    }
    Ok(svg)
}

/// The rounds of a run, each with the step whose line holds it.
fn rounds(lines: &[Line]) -> impl Iterator<Item = (&Line, &RoundRecord)> {
    lines.iter().flat_map(|line| line.record.rounds.iter().map(move |round| (line, round)))
}

fn steps_panel(
    canvas: &Canvas<'_>,
    lines: &[Line],
    workers: usize,
    place: (i32, i32, i32, i32),
    longest: f64,
) -> anyhow::Result<()> {
    let (left, top, cell, bars) = place;
    let Some(first) = lines.first() else { return Ok(()) };
    let all = rounds(lines).count();
    let count = if all > ROUNDS_MAX {
        format!("first {ROUNDS_MAX} of {all} rounds")
    } else {
        format!("{all} rounds")
    };
    let mean = lines.iter().map(|line| line.record.seconds).sum::<f64>() / lines.len() as f64;
    text(canvas, (12, top + 10), 14, &format!("{}: {count}, {mean:.3} s per step", first.scheme))?;
    let grid = top + 34;
    let (floor, width) =
        (grid + workers as i32 * cell + 6 + bars, all.min(ROUNDS_MAX) as i32 * cell);
    text(canvas, (12, grid - 1), 11, "worker 0")?;
    if workers > 2 {
        text(
            canvas,
            (12, grid + (workers as i32 - 1) * cell - 4),
            11,
            &format!("worker {}", workers - 1),
        )?;
    }
    text(canvas, (12, floor - bars), 11, &format!("{longest:.2} s"))?;
    text(canvas, (12, floor - 11), 11, "0 s")?;
    rectangle(canvas, (left, floor), (left + width, floor + 1), FRAME)?;
    for (number, (line, round)) in rounds(lines).take(ROUNDS_MAX).enumerate() {
        let x = left + number as i32 * cell;
        let late = stragglers(round);
        for worker in Worker::all(workers) {
            let y = grid + worker.0 as i32 * cell;
            rectangle(
                canvas,
                (x, y),
                (x + cell - 1, y + cell - 1),
                Fate::of(line, round, worker, late.contains(&worker)).colour(),
            )?;
        }
        let height =
            (round.seconds / longest.max(f64::MIN_POSITIVE) * f64::from(bars)).round() as i32;
        let colour = if line.record.refused.is_empty() {
            RGBColor(120, 120, 120)
        } else {
            Fate::Erased.colour()
        };
        rectangle(canvas, (x, floor - height), (x + cell - 1, floor), colour)?;
    }
    Ok(())
}

/// Training loss over the run's own time, one curve per run.
pub(super) fn loss(runs: &[Vec<Line>]) -> anyhow::Result<String> {
    let curve = |lines: &Vec<Line>| {
        let mut time = 0.0;
        let point = |line: &Line| {
            time += line.record.seconds;
            line.loss.map(|loss| (time, loss))
        };
        lines.iter().filter_map(point).collect::<Vec<(f64, f64)>>()
    };
    let name = |lines: &Vec<Line>| lines.first().map_or(String::new(), |line| line.scheme.clone());
    let series: Vec<Curve> = runs.iter().map(|lines| (name(lines), curve(lines))).collect();
    let legend = SeriesLabelPosition::UpperRight;
    curves(
        "Training loss over time",
        ("seconds of the run", "loss per token (nats)"),
        &series,
        legend,
    )
}

/// When each job of a simulation was complete.
pub(super) fn finish_times(scheme: &str, finish: &[f64]) -> anyhow::Result<String> {
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
pub(super) type Curve = (String, Vec<(f64, f64)>);

fn curves(
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

/// One of several plots side by side: a logarithmic error over some number.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) axis: &'static str,
    /// Whether that number is on a logarithmic axis too.
    pub(super) logarithmic: bool,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::StepRecord;

    fn line(
        run: usize,
        step: u64,
        arrivals: [Option<f64>; 3],
        weights: [f64; 3],
        seconds: f64,
    ) -> Line {
        let erased = if step == 2 { vec![Worker(0)] } else { Vec::new() };
        let record = StepRecord {
            step,
            committed: seconds,
            seconds,
            rounds: vec![RoundRecord {
                round: step,
                opened: 0.0,
                seconds,
                arrivals: arrivals.to_vec(),
                delays: Vec::new(),
                erased,
                work: 1.0,
            }],
            survivors: Vec::new(),
            weights: weights.to_vec(),
            residual: 0.0,
            error: 0.0,
            amplification: 1.0,
            coverage: 1.0,
            work: 1.0,
            unverified: false,
            refused: Vec::new(),
            refused_because: None,
            wrong: Vec::new(),
            tail: Vec::new(),
            digest: String::new(),
        };
        Line {
            run,
            scheme: ["uncoded", "groups:s=1"][run].into(),
            loss: Some(3.0 - step as f64),
            gradient_difference: None,
            gradient_error: None,
            caught: None,
            using: None,
            record,
        }
    }

    #[test]
    fn pictures_are_as_they_were() {
        let uncoded = vec![
            line(0, 0, [Some(1.0), Some(1.0), Some(4.0)], [1.0; 3], 4.0),
            line(0, 1, [Some(1.0), Some(1.1), Some(1.0)], [1.0; 3], 1.1),
        ];
        let coded = vec![
            line(1, 0, [Some(2.0), Some(2.1), None], [1.0, 0.0, 0.0], 2.1),
            line(1, 1, [Some(2.0), None, Some(2.2)], [1.0, 0.0, 1.0], 2.2),
            line(1, 2, [None, Some(2.0), Some(2.1)], [0.0, 1.0, 1.0], 2.1),
        ];
        let runs = [uncoded, coded];
        insta::assert_snapshot!("steps", steps(&runs, 3).unwrap());
        insta::assert_snapshot!("loss", loss(&runs).unwrap());
        assert!(loss(&[Vec::new()]).is_ok() && steps(&[Vec::new()], 3).is_ok());
    }
}
