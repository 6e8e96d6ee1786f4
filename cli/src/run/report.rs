//! What a training run comes to: `summary.json`, the table, the sentence.

use super::attack::{self, Honesty};
use super::observer::Line;
use super::plan::{ClockKind, Plan};
use crate::legs::{LegSummary, legs};
use crate::steps::{FaultLine, Spread, stragglers};
use serde::Serialize;
use std::fmt::Write as _;

/// Steps whose mean is the final training loss.
const FINAL_STEPS: usize = 10;
/// Legs of a run that are shown, the last ones.
const LEGS_SHOWN: usize = 12;
/// Columns for the names of schemes; a longer name has a line of its own.
const SCHEME_COLUMNS: usize = 16;
/// Normalised decoding errors above this are no rounding.
const APPROXIMATE: f64 = 1e-9;

/// Relative gradient errors above this are no rounding of f32.
const APPROXIMATE_GRADIENT: f64 = 1e-2;

/// One scheme's part of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunSummary {
    pub(crate) scheme: String,
    pub(crate) workers: usize,
    pub(crate) steps: usize,
    pub(crate) seconds_per_step: Spread,
    /// Tokens whose gradient was applied, per second; null in modelled time.
    pub(crate) tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation: `tokens_per_second` x [`GptConfig::flops_per_token`] / peak; null
    /// where no peak is known.
    ///
    /// [`GptConfig::flops_per_token`]: codedgrad_trainer::GptConfig::flops_per_token
    pub(crate) mfu: Option<f64>,
    pub(crate) final_loss: Option<f64>,
    pub(crate) validation_loss: Option<f64>,
    pub(crate) samples_lost: u64,
    pub(crate) work: f64,
    pub(crate) late_worker_rounds: usize,
    pub(crate) refused_steps: usize,
    /// Largest `|aB - 1|^2 / k` of a decode that was applied; 0 up to rounding for exact schemes.
    pub(crate) max_decode_error: f64,
    pub(crate) max_amplification: f64,
    #[serde(flatten)]
    pub(crate) honesty: Honesty,
    /// Under `auto`: what was foreseen and what came.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) legs: Vec<LegSummary>,
}

impl RunSummary {
    pub(crate) fn of(
        plan: &Plan,
        run: usize,
        lines: &[Line],
        validation_loss: Option<f64>,
    ) -> Self {
        let batch =
            plan.micro_batch_rows as f64 * f64::from(plan.micro_batches) * plan.micro_steps as f64;
        let lost = |line: &Line| {
            if line.record.refused.is_empty() {
                batch * (1.0 - line.record.coverage)
            } else {
                batch
            }
        };
        let applied = || lines.iter().filter(|line| line.record.refused.is_empty());
        let last: Vec<f64> = lines
            .iter()
            .rev()
            .filter_map(|line| line.loss)
            .take(FINAL_STEPS * plan.models as usize)
            .collect();
        let (seconds, samples) = lines
            .iter()
            .fold((0.0, 0.0), |(s, n), line| (s + line.record.seconds, n + batch - lost(line)));
        let real = plan.clock == ClockKind::Wall && seconds > 0.0;
        let tokens_per_second = real.then(|| samples * plan.model.context as f64 / seconds);
        let flops = |tokens: f64| tokens * plan.model.flops_per_token();
        Self {
            scheme: plan.schemes[run].clone(),
            workers: plan.workers,
            steps: lines.len(),
            tokens_per_second,
            mfu: tokens_per_second
                .zip(plan.peak_tflops)
                .map(|(tokens, peak)| flops(tokens) / (1e12 * peak)),
            seconds_per_step: Spread::of(lines.iter().map(|line| line.record.seconds).collect()),
            final_loss: (!last.is_empty()).then(|| last.iter().sum::<f64>() / last.len() as f64),
            validation_loss,
            samples_lost: lines.iter().map(lost).sum::<f64>().round() as u64,
            work: lines.iter().map(|line| line.record.work).sum::<f64>()
                / lines.len().max(1) as f64,
            late_worker_rounds: lines
                .iter()
                .flat_map(|line| &line.record.rounds)
                .map(|round| stragglers(round).len())
                .sum(),
            refused_steps: lines.iter().filter(|line| !line.record.refused.is_empty()).count(),
            max_decode_error: applied().map(|line| line.record.error).fold(0.0, f64::max),
            max_amplification: applied().map(|line| line.record.amplification).fold(0.0, f64::max),
            honesty: Honesty::of(lines),
            legs: legs(lines.iter().map(|line| &line.record)),
        }
    }
}

/// `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) runs: Vec<RunSummary>,
    /// Mean step time of the first run over that of the last; null with a single run.
    pub(crate) speedup: Option<f64>,
    /// Largest relative difference of a decoded gradient from the whole batch's; null if none was
    /// checked.
    pub(crate) max_gradient_difference: Option<f64>,
    pub(crate) gradients_checked: usize,
    pub(crate) step_seconds: f64,
    pub(crate) faults: Vec<FaultLine>,
    pub(crate) interrupted: bool,
}

impl Summary {
    pub(crate) fn of(
        plan: &Plan,
        runs: Vec<RunSummary>,
        lines: &[Vec<Line>],
        faults: Vec<FaultLine>,
        interrupted: bool,
    ) -> Self {
        let checked: Vec<f64> =
            lines.iter().flatten().filter_map(|line| line.gradient_difference).collect();
        let mean = |run: &RunSummary| run.seconds_per_step.mean;
        let speedup = match &runs[..] {
            [first, .., last] if mean(last) > 0.0 => Some(mean(first) / mean(last)),
            _ => None,
        };
        Self {
            runs,
            speedup,
            max_gradient_difference: checked.iter().copied().reduce(f64::max),
            gradients_checked: checked.len(),
            step_seconds: plan.step_seconds,
            faults,
            interrupted,
        }
    }

    /// The table of all runs, at most 80 columns wide.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
        let mut row = |cells: [String; 9]| {
            let [scheme, cells @ ..] = cells;
            let widths = [7, 7, 7, 7, 7, 8, 6, 9];
            if scheme.chars().count() > SCHEME_COLUMNS {
                let _ = write!(text, "{scheme}\n{:<SCHEME_COLUMNS$}", "");
            } else {
                let _ = write!(text, "{scheme:<SCHEME_COLUMNS$}");
            }
            for (cell, width) in cells.iter().zip(widths) {
                let _ = write!(text, " {cell:>width$}");
            }
            text.push('\n');
        };
        row(["", "s/step", "", "", "loss", "", "samples", "work", "straggler"].map(String::from));
        row(["scheme", "mean", "p50", "p95", "train", "valid", "lost", "paid", "rounds"]
            .map(String::from));
        for run in &self.runs {
            let Spread { mean, p50, p95 } = run.seconds_per_step;
            row([
                run.scheme.clone(),
                format!("{mean:.3}"),
                format!("{p50:.3}"),
                format!("{p95:.3}"),
                number(run.final_loss),
                number(run.validation_loss),
                run.samples_lost.to_string(),
                format!("{:.2}", run.work),
                run.late_worker_rounds.to_string(),
            ]);
        }
        text
    }

    /// Who was found out, where some run looked for wrong workers or had some, or mixed data.
    pub(crate) fn honesty_table(&self) -> Option<String> {
        let approximate = |run: &RunSummary| {
            run.honesty.late_gradient_error.is_some_and(|error| error > APPROXIMATE_GRADIENT)
        };
        let shown = self.runs.iter().any(|run| run.honesty.caught.is_some() || approximate(run));
        shown
            .then(|| attack::table(self.runs.iter().map(|run| (run.scheme.as_str(), &run.honesty))))
    }

    /// How fast the runs were in tokens, where time was real.
    pub(crate) fn speeds(&self) -> Option<String> {
        let speed = |run: &RunSummary| {
            let mfu = run.mfu.map_or(String::new(), |mfu| format!(", MFU {mfu:.3}"));
            Some(format!("{} {:.0}{mfu}", run.scheme, run.tokens_per_second?))
        };
        let speeds: Vec<String> = self.runs.iter().filter_map(speed).collect();
        (!speeds.is_empty()).then(|| format!("Tokens per second: {}.", speeds.join("; ")))
    }

    /// What `auto` foresaw and what came, one table per run that it chose for.
    pub(crate) fn legs_tables(&self) -> Vec<String> {
        let table = |run: &RunSummary| {
            let mut text = format!(
                "{:<34} {:>12} {:>12}\n",
                format!("{}, s/step", run.scheme),
                "predicted",
                "measured"
            );
            let (earlier, shown) = run.legs.split_at(run.legs.len().saturating_sub(LEGS_SHOWN));
            if !earlier.is_empty() {
                let _ = writeln!(text, "{} earlier ones are in summary.json", earlier.len());
            }
            for leg in shown {
                let steps = format!("{}-{}", leg.first_step, leg.first_step + leg.steps as u64 - 1);
                let predicted = leg
                    .predicted_seconds
                    .map_or("recording".into(), |seconds| format!("{seconds:.3}"));
                let _ = writeln!(
                    text,
                    "{steps:<12} {:<21} {predicted:>12} {:>12.3}",
                    leg.scheme, leg.measured_seconds
                );
            }
            text
        };
        self.runs.iter().filter(|run| !run.legs.is_empty()).map(table).collect()
    }

    /// What the run shows, in a sentence or two.
    pub(crate) fn sentence(&self, plan: &Plan) -> String {
        let mut text = match self.max_gradient_difference {
            None => "No gradient was checked. ".into(),
            Some(0.0) => format!(
                "All {} gradients checked equal the whole batch's bit for bit. ",
                self.gradients_checked
            ),
            Some(difference) => {
                format!(
                    "The largest gradient error of {} checked is {difference:.2e} of the largest \
                     entry. ",
                    self.gradients_checked
                )
            }
        };
        if let Some((first, others)) =
            self.runs.split_first().filter(|(first, others)| !others.is_empty() && first.steps > 0)
        {
            for other in others.iter().filter(|other| other.seconds_per_step.mean > 0.0) {
                let (name, rival, times) = (&other.scheme, &first.scheme, other.work / first.work);
                let speedup = first.seconds_per_step.mean / other.seconds_per_step.mean;
                let _ = if speedup >= 1.0 {
                    write!(
                        text,
                        "{name} made a step {speedup:.2}x faster than {rival}, at {times:.2} times \
                         the computing work. "
                    )
                } else {
                    let late = first.late_worker_rounds > 0;
                    let why = if late {
                        "costs more than the waiting it saves"
                    } else {
                        "only costs where nobody is late"
                    };
                    write!(
                        text,
                        "{name} made a step {:.2}x slower than {rival}: its redundancy {why}. ",
                        1.0 / speedup
                    )
                };
            }
            text += match plan.clock {
                ClockKind::Wall => {
                    "All workers share this machine's cores, so redundancy is paid in the same \
                     cores here, as it is not in a cluster."
                }
                ClockKind::Virtual => "Times are modelled: each worker has a machine of its own.",
            };
        }
        for run in self.runs.iter().filter(|run| run.samples_lost > 0) {
            let _ = write!(text, " {} lost {} samples.", run.scheme, run.samples_lost);
        }
        for run in self.runs.iter().filter(|run| run.max_decode_error > APPROXIMATE) {
            let _ = write!(
                text,
                " {} is approximate: its largest normalised decoding error was {:.2e}.",
                run.scheme, run.max_decode_error
            );
        }
        text
    }
}
