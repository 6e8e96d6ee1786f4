//! Pictures of a run: loss over time, and who answered when.

use super::plan::stragglers;
use super::record::Line;
use anyhow::anyhow;
use codedgrad::ids::Worker;
use codedgrad::train::RoundRecord;
use codedgrad_shell::pictures::{Canvas, Curve, FRAME, curves, rectangle, text};
use plotters::prelude::*;

/// Rounds drawn side by side; of a longer run, the first and the last ones.
const ROUNDS_MAX: usize = 160;
/// Cells left empty between the first and the last ones.
const GAP: usize = 2;

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
        let in_time = round.has_answer_of(worker);
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

/// Round x worker: the fate of every answer, and under it how long each round took.
pub(crate) fn steps(runs: &[Vec<Line>], workers: usize) -> anyhow::Result<String> {
    let shown = runs.iter().map(|lines| width(rounds(lines).count())).max().unwrap_or(0);
    let cell = 7;
    let left = 80;
    let bars = 46;
    let panel = 44 + workers as i32 * cell + 10 + bars;
    let size = (
        (left + shown as i32 * cell + 24).max(760) as u32,
        (52 + panel * runs.len() as i32) as u32,
    );
    let longest = runs
        .iter()
        .flat_map(|lines| drawn(lines))
        .map(|(_, (_, round))| round.seconds)
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

/// Cells side by side that so many rounds take.
fn width(rounds: usize) -> usize {
    if rounds > ROUNDS_MAX { ROUNDS_MAX + GAP } else { rounds }
}

/// The rounds that are drawn, each with its place.
fn drawn(lines: &[Line]) -> impl Iterator<Item = (usize, (&Line, &RoundRecord))> {
    let left_out = rounds(lines).count().saturating_sub(ROUNDS_MAX);
    let half = ROUNDS_MAX / 2;
    rounds(lines).enumerate().filter_map(move |(number, round)| match number {
        _ if left_out == 0 || number < half => Some((number, round)),
        _ if number < half + left_out => None,
        _ => Some((number - left_out + GAP, round)),
    })
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
        format!("first {half} and last {half} of {all} rounds", half = ROUNDS_MAX / 2)
    } else {
        format!("{all} rounds")
    };
    let mean = lines.iter().map(|line| line.record.seconds).sum::<f64>() / lines.len() as f64;
    text(canvas, (12, top + 10), 14, &format!("{}: {count}, {mean:.3} s per step", first.scheme))?;
    let grid = top + 34;
    let (floor, width) = (grid + workers as i32 * cell + 6 + bars, width(all) as i32 * cell);
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
    for (place, (line, round)) in drawn(lines) {
        let x = left + place as i32 * cell;
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
pub(crate) fn loss(runs: &[Vec<Line>]) -> anyhow::Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::line_of;
    use codedgrad::train::StepRecord;

    fn line(
        run: usize,
        step: u64,
        arrivals: [Option<f64>; 3],
        weights: [f64; 3],
        seconds: f64,
    ) -> Line {
        let erased = if step == 2 { vec![Worker(0)] } else { Vec::new() };
        let rounds = vec![RoundRecord {
            round: step,
            opened: 0.0,
            seconds,
            arrivals: arrivals.to_vec(),
            delays: Vec::new(),
            erased,
            work: 1.0,
        }];
        let line = line_of(run, step, seconds);
        Line {
            scheme: ["uncoded", "groups:s=1"][run].into(),
            loss: Some(3.0 - step as f64),
            record: StepRecord { rounds, weights: weights.to_vec(), ..line.record },
            ..line
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

    #[test]
    fn a_long_run_is_drawn_with_its_last_rounds() {
        let arrivals = [Some(1.0); 3];
        let lines: Vec<Line> =
            (0..600).map(|step| line(0, step, arrivals, [1.0; 3], 1.0)).collect();
        let places = |count: usize| -> Vec<(usize, u64)> {
            drawn(&lines[..count]).map(|(place, (_, round))| (place, round.round)).collect()
        };
        assert!(places(160).into_iter().eq((0..160).map(|at| (at, at as u64))));
        let places = places(600);
        assert_eq!((places.len(), places[79], places[80]), (160, (79, 79), (82, 520)));
        assert_eq!(places[159], (161, 599));
        let picture = steps(&[lines], 3).unwrap();
        assert!(picture.contains("first 80 and last 80 of 600 rounds"));
    }
}
