//! Workers whose speeds differ for good, and the intervals of the batch that are cut for them.

use super::causes::{QuickestWorkers, of_the_rest, quantile, times_of};
use super::replay::{Replay, Setting};
use crate::codes::SchemeSpec;
use crate::delays::Growth;

/// A worker that differs from the median of its rounds by less is like the others.
const APART: f64 = 1.15;
/// It differs for good if it does so, to the same side, in that part of the rounds.
const STEADILY: f64 = 0.9;
/// Fewer rounds show no difference for good.
const ROUNDS_LEAST: usize = 5;
/// Shares of the batch, by workers: enough for speeds to be kept to within some percent.
const UNITS_EACH: usize = 20;
/// How many stragglers such a code is tried for.
const STRAGGLERS_MOST: usize = 2;
/// A worker that can do less than that part of what others do is not helped by less work.
const LEAST: f64 = 0.05;

/// Schemes that give each worker as much as it can do, for 0, 1 .. stragglers; none where workers
/// are alike, or are not so for good.
///
/// # Formula
/// ```text
/// T = time(d_i, L_i) of every worker i,  sum_i L_i = 1:  the loads L_i, by that of a usual worker
/// ```
/// where `d_i` is the time of a worker at the load of the trace: that of a usual one, times the
/// median over the rounds of how much longer it takes than the median of the usual ones.
pub(super) fn settings(replay: &Replay) -> Vec<Setting> {
    let Some(text) = speeds(replay) else { return Vec::new() };
    let units = UNITS_EACH * replay.workers();
    let scheme = |stragglers: usize| {
        format!("interval:speeds={text},s={stragglers},units={units}").parse::<SchemeSpec>().ok()
    };
    let most = STRAGGLERS_MOST.min(replay.workers() - 1);
    (0..=most).filter_map(scheme).map(Setting::new).collect()
}

/// How fast workers are, as scheme texts tell it.
fn speeds(replay: &Replay) -> Option<String> {
    let (rows, workers) = (replay.rows(), replay.workers());
    if rows.len() < ROUNDS_LEAST || workers < 2 {
        return None;
    }
    let mut sides = vec![(0, 0); workers];
    for row in rows {
        let median = quantile(row.iter().copied(), 0.5);
        for (time, (slower, faster)) in row.iter().zip(&mut sides) {
            *slower += usize::from(*time > APART * median);
            *faster += usize::from(*time * APART < median);
        }
    }
    let least = STEADILY * rows.len() as f64;
    let apart = |(slower, faster): &(usize, usize)| (*slower).max(*faster) as f64 >= least;
    let others: Vec<usize> = (0..workers).filter(|worker| apart(&sides[*worker])).collect();
    if others.is_empty() {
        return None;
    }
    let usual = of_the_rest(rows, &others, &QuickestWorkers::of(rows));
    let time = quantile(usual.iter().copied(), 0.5);
    let mut times = vec![1.0; workers];
    others.iter().for_each(|worker| times[*worker] = times_of(rows, *worker, &usual));
    let speeds: Vec<f64> = match replay.growth() {
        Growth::Proportional { .. } => times.iter().map(|times| 1.0 / times).collect(),
        Growth::Additive { slope: 0.0, .. } => return None,
        Growth::Additive { base, slope } => loads(&times, time, base, slope)?,
    };
    speeds.iter().all(|speed| speed.is_finite() && *speed >= LEAST).then(|| written(&speeds))
}

/// Loads at which all are done at the same time, by that of a usual worker.
fn loads(times: &[f64], usual: f64, base: f64, slope: f64) -> Option<Vec<f64>> {
    let workers = times.len() as f64;
    let sum = usual * times.iter().sum::<f64>();
    let end = (slope * (1.0 - workers * base) + sum) / workers;
    let load = |times: f64| base + (end - times * usual) / slope;
    let of_usual = load(1.0);
    (of_usual > 0.0).then(|| times.iter().map(|times| load(*times) / of_usual).collect())
}

/// `1x7+0.43`: numbers that repeat are written once.
fn written(speeds: &[f64]) -> String {
    let shown = |speed: &f64| ((1000.0 * speed).round() / 1000.0).to_string();
    let speeds: Vec<String> = speeds.iter().map(shown).collect();
    let run = |run: &[String]| match run.len() {
        1 => run[0].clone(),
        count => format!("{}x{count}", run[0]),
    };
    speeds.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests;
