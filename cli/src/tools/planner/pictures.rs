//! The pictures of a plan: time against work, and time per job by scheme.

use crate::pictures::{FRAME, INK, SERIES, rectangle, text};
use anyhow::anyhow;
use codedgrad::sim::planner::{Plan, Point};
use plotters::prelude::*;

const TRIED: RGBColor = RGBColor(190, 200, 210);
const INEXACT: RGBColor = RGBColor(235, 190, 170);
/// More work than that is drawn only where it is recommended.
const WORK_SHOWN: f64 = 8.0;
/// Points drawn at most, evenly chosen.
const POINTS_MAX: usize = 1500;

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("picture: {error}")
}

/// Everything tried, work to the right and time upwards; the front is what nothing beats in both.
pub(crate) fn time_against_work(plan: &Plan) -> anyhow::Result<String> {
    let work = WORK_SHOWN.max(1.2 * plan.choice().work);
    let top = 1.15 * plan.baseline.max(f64::MIN_POSITIVE);
    let shown = |point: &&Point| point.work <= work && point.time_per_job <= top;
    let skip = plan.tried.len().div_ceil(POINTS_MAX);
    let at = |point: &Point| (point.work, point.time_per_job);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (760, 460)).into_drawing_area();
        canvas.fill(&WHITE).map_err(failed)?;
        let title = format!("Time against work: {} workers, {} jobs", plan.workers, plan.jobs);
        let mut chart = ChartBuilder::on(&canvas)
            .caption(title, ("sans-serif", 17).into_font().color(&INK))
            .margin(14)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.8..work, 0.0..top)
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("work (uncoded batches per job)")
            .y_desc("seconds per job")
            .light_line_style(WHITE)
            .bold_line_style(FRAME);
        mesh.draw().map_err(failed)?;
        let dot = |point: &Point| {
            Circle::new(at(point), 2, if point.exact { TRIED } else { INEXACT }.filled())
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
        let name = EmptyElement::at(here)
            + Circle::new((0, 0), 6, SERIES[0].stroke_width(2))
            + Text::new(
                choice.scheme.clone(),
                (9, -16),
                ("sans-serif", 14).into_font().color(&INK),
            );
        chart.draw_series([name]).map_err(failed)?;
        let legend = [
            (TRIED, "tried"),
            (INEXACT, "tried, not exact"),
            (SERIES[1], "nothing beats it in both"),
            (SERIES[0], "recommended"),
        ];
        for (line, (colour, words)) in (0..).zip(legend) {
            rectangle(&canvas, (560, 50 + 18 * line), (570, 60 + 18 * line), colour)?;
            text(&canvas, (578, 48 + 18 * line), 13, words)?;
        }
        canvas.present().map_err(failed)?;
    }
    Ok(svg)
}

/// A bar per candidate, and where 95 % of the traces drawn anew would put its end.
pub(crate) fn by_scheme(plan: &Plan) -> anyhow::Result<String> {
    let (left, right, line) = (300, 700, 26);
    let longest = plan
        .candidates
        .iter()
        .map(|candidate| candidate.high.max(candidate.time_per_job))
        .fold(f64::MIN_POSITIVE, f64::max);
    let at = |seconds: f64| left + (seconds / longest * f64::from(right - left)).round() as i32;
    let mut svg = String::new();
    {
        let size = (790, (70 + line * plan.candidates.len() as i32) as u32);
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(failed)?;
        text(
            &canvas,
            (12, 10),
            16,
            "Seconds per job (bars), 95 % intervals (lines), work in brackets",
        )?;
        for (number, candidate) in (0..).zip(&plan.candidates) {
            let top = 44 + line * number;
            let colour = match (candidate.scheme == plan.recommended, candidate.exact) {
                (true, _) => SERIES[0],
                (false, true) => SERIES[1],
                (false, false) => INEXACT,
            };
            let name = format!(
                "{} ({:.2}){}",
                candidate.scheme,
                candidate.work,
                if candidate.exact { "" } else { " not exact" }
            );
            text(&canvas, (12, top + 2), 13, &name)?;
            rectangle(&canvas, (left, top), (at(candidate.time_per_job), top + 16), colour)?;
            rectangle(&canvas, (at(candidate.low), top + 7), (at(candidate.high), top + 9), INK)?;
            text(
                &canvas,
                (at(candidate.high.max(candidate.time_per_job)) + 8, top + 2),
                13,
                &format!("{:.4}", candidate.time_per_job),
            )?;
        }
        canvas.present().map_err(failed)?;
    }
    Ok(svg)
}
