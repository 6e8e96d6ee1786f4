//! The pictures of a plan: time against work, and time per job by scheme.

use anyhow::anyhow;
use codedgrad::sim::planner::{Plan, Point};
use codedgrad_shell::pictures::{Canvas, FRAME, INK, SERIES, rectangle, text};
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Exact schemes are full and others hollow, so that they differ without colours too.
const TRIED: RGBColor = RGBColor(190, 200, 210);
const INEXACT: RGBColor = RGBColor(150, 95, 70);
/// More work than that is drawn only where it is recommended.
const WORK_SHOWN: f64 = 8.0;
/// A time below that part of the longest has no room for a name under it.
const LOW: f64 = 0.15;
/// Points drawn at most, evenly chosen.
const POINTS_MAX: usize = 1500;
/// Where the marks of the legend of times against work are, from the top.
const LEGEND: i32 = 45;

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("picture: {error}")
}

/// Everything tried, work to the right and time upwards; the front is what nothing beats in both.
pub(crate) fn time_against_work(plan: &Plan) -> anyhow::Result<String> {
    let (least, work) = work_shown(plan);
    let top = top(plan);
    let shown = |point: &&Point| point.work <= work && point.time_per_job <= top;
    let skip = plan.tried.len().div_ceil(POINTS_MAX);
    let at = |point: &Point| (point.work, point.time_per_job);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (760, 460)).into_drawing_area();
        canvas.fill(&WHITE).map_err(failed)?;
        let title = format!("Time against work: {} workers, {} jobs", plan.workers, plan.jobs);
        text(&canvas, (14, 10), 17, &title)?;
        legend(&canvas)?;
        let mut chart = ChartBuilder::on(&canvas)
            .margin(14)
            .margin_top(62)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(least..work, 0.0..top)
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("work (uncoded batches per job)")
            .y_desc("seconds per job")
            .light_line_style(WHITE)
            .bold_line_style(FRAME);
        mesh.draw().map_err(failed)?;
        let dot = |point: &Point| {
            let style = if point.exact { TRIED.filled() } else { INEXACT.stroke_width(1) };
            Circle::new(at(point), 2, style)
        };
        chart
            .draw_series(plan.tried.iter().step_by(skip.max(1)).filter(shown).map(dot))
            .map_err(failed)?;
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for point in plan.front.iter().filter(shown) {
            steps.extend(steps.last().map(|last| (point.work, last.1)));
            steps.push(at(point));
        }
        steps.extend(steps.last().map(|last| (work, last.1)));
        chart.draw_series(LineSeries::new(steps, SERIES[1].stroke_width(2))).map_err(failed)?;
        let corner = |point: &Point| Circle::new(at(point), 3, SERIES[1].filled());
        chart.draw_series(plan.front.iter().filter(shown).map(corner)).map_err(failed)?;
        let choice = plan.choice();
        let here = (choice.work, choice.time_per_job);
        // Nothing exact is below the front, so a name has room there, to the side where it fits.
        let (side, aside) =
            if here.0 > f64::midpoint(least, work) { (HPos::Right, -9) } else { (HPos::Left, 9) };
        let (edge, beside) = if here.1 < LOW * top { (VPos::Bottom, -6) } else { (VPos::Top, 6) };
        let style = ("sans-serif", 14).into_font().color(&INK).pos(Pos::new(side, edge));
        let name = EmptyElement::at(here)
            + Circle::new((0, 0), 6, SERIES[0].stroke_width(2))
            + Text::new(choice.scheme.to_string(), (aside, beside), style);
        chart.draw_series([name]).map_err(failed)?;
        canvas.present().map_err(failed)?;
    }
    Ok(svg)
}

/// What the marks mean, in a line of its own above the points.
fn legend(canvas: &Canvas<'_>) -> anyhow::Result<()> {
    let legend = [
        (14, 2, TRIED.filled(), "tried, exact"),
        (124, 2, INEXACT.stroke_width(1), "tried, not exact"),
        (260, 3, SERIES[1].filled(), "no exact one beats it in both"),
        (480, 6, SERIES[0].stroke_width(2), "recommended"),
    ];
    for (left, size, style, words) in legend {
        canvas.draw(&Circle::new((left + 5, LEGEND), size, style)).map_err(failed)?;
        text(canvas, (left + 18, LEGEND - 7), 13, words)?;
    }
    Ok(())
}

/// The longest time that is drawn.
fn top(plan: &Plan) -> f64 {
    1.15 * plan.baseline.max(f64::MIN_POSITIVE)
}

/// From which work to which there is anything to draw, and a little more on both sides.
fn work_shown(plan: &Plan) -> (f64, f64) {
    let most = WORK_SHOWN.max(1.2 * plan.choice().work);
    let drawn = plan.tried.iter().filter(|point| point.time_per_job <= top(plan));
    let drawn = drawn.map(|point| point.work).chain([plan.choice().work, 1.0]);
    let (least, greatest) = drawn
        .filter(|work| *work <= most)
        .fold((f64::INFINITY, 0.0_f64), |(least, most), work| (least.min(work), most.max(work)));
    let margin = (0.04 * (greatest - least)).max(0.05);
    (least - margin, greatest + margin)
}

/// A bar per candidate over an axis of seconds per job: full where a scheme is exact, hollow where
/// it is not.
pub(crate) fn by_scheme(plan: &Plan) -> anyhow::Result<String> {
    let left = 300;
    let right = 700;
    let line = 26;
    let times = plan.candidates.iter().map(|candidate| candidate.time_per_job);
    let longest = times.fold(f64::MIN_POSITIVE, f64::max);
    let at = |seconds: f64| left + (seconds / longest * f64::from(right - left)).round() as i32;
    let mut svg = String::new();
    {
        let end = 66 + line * plan.candidates.len() as i32;
        let size = (790, (end + 50) as u32);
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(failed)?;
        text(&canvas, (12, 10), 16, "Time per job, by scheme (its work in brackets)")?;
        let legend = [
            (12, SERIES[0].filled(), "recommended"),
            (130, SERIES[1].filled(), "exact"),
            (210, INEXACT.stroke_width(1), "not exact"),
        ];
        for (at, style, words) in legend {
            canvas.draw(&Rectangle::new([(at, 40), (at + 10, 50)], style)).map_err(failed)?;
            text(&canvas, (at + 16, 38), 13, words)?;
        }
        for (number, candidate) in (0..).zip(&plan.candidates) {
            let top = 66 + line * number;
            let style = match (candidate.scheme.text() == plan.recommended, candidate.exact) {
                (true, _) => SERIES[0].filled(),
                (false, true) => SERIES[1].filled(),
                (false, false) => INEXACT.stroke_width(1),
            };
            let name = format!("{} ({:.2})", candidate.scheme, candidate.work);
            text(&canvas, (12, top + 2), 13, &name)?;
            let right = at(candidate.time_per_job);
            let bar = Rectangle::new([(left, top), (right, top + 16)], style);
            canvas.draw(&bar).map_err(failed)?;
            text(&canvas, (right + 8, top + 2), 13, &format!("{:.4}", candidate.time_per_job))?;
        }
        rectangle(&canvas, (left, end), (right, end + 1), INK)?;
        let axis: RangedCoordf64 = (0.0..longest).into();
        let centred = Pos::new(HPos::Center, VPos::Top);
        let centred = ("sans-serif", 12).into_font().color(&INK).pos(centred);
        for seconds in axis.key_points(6) {
            let place = at(seconds);
            rectangle(&canvas, (place, end), (place + 1, end + 5), INK)?;
            let number = Text::new(axis.format_ext(&seconds), (place, end + 8), centred.clone());
            canvas.draw(&number).map_err(failed)?;
        }
        text(&canvas, (left, end + 26), 13, "seconds per job")?;
        canvas.present().map_err(failed)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests;
