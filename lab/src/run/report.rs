//! What a training run comes to: `summary.json`, the table, the sentence.

use super::honesty::{self, Honesty};
use super::plan::{ClockKind, Plan};
use super::record::Line;
use super::turns::{self, TurnComparison};
use codedgrad::train::StepRecord;
use codedgrad_shell::layout::{Column, Table, Width};
use codedgrad_shell::legs::{LegSummary, legs};
use codedgrad_shell::pool::{ChangeCounts, PoolSummary};
use codedgrad_shell::steps::{OfWorkers, Spread, unverified};
use codedgrad_shell::units::several;
use serde::Serialize;
use std::fmt::Write as _;

/// Steps whose mean is the final training loss.
const FINAL_STEPS: usize = 10;
/// Legs of a run that are shown, the last ones.
const LEGS_SHOWN: usize = 12;
/// Normalised decoding errors above this are no rounding.
const APPROXIMATE: f64 = 1e-9;

/// Relative gradient errors above this are no rounding of f32.
const APPROXIMATE_GRADIENT: f64 = 1e-2;

/// Samples of a step.
fn batch_samples(plan: &Plan) -> f64 {
    plan.shape.unit_samples as f64 * f64::from(plan.shape.units) * plan.jobs.micro_steps as f64
}

/// Those of them whose gradient was applied.
fn applied_samples(plan: &Plan, record: &StepRecord) -> f64 {
    let coverage = if record.refused.is_empty() { record.decode.coverage } else { 0.0 };
    batch_samples(plan) * coverage
}

/// How fast a run trains, in tokens; null in modelled time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Throughput {
    /// Tokens whose gradient was applied, per second.
    pub(crate) tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation: `tokens_per_second` x FLOPs per token / peak; null where no peak is
    /// known.
    pub(crate) mfu: Option<f64>,
}

impl Throughput {
    /// In words, where time is real.
    pub(crate) fn words(self) -> Option<String> {
        let mfu = self.mfu.map_or(String::new(), |mfu| format!(", MFU {mfu:.3}"));
        Some(format!("{:.0}{mfu}", self.tokens_per_second?))
    }
}

/// How fast a plan's run was that applied the gradients of so many samples in so many seconds.
///
/// MFU is `tokens_per_second` x [`GptConfig::flops_per_token`] / peak.
///
/// [`GptConfig::flops_per_token`]: crate::trainer::GptConfig::flops_per_token
fn throughput(plan: &Plan, samples: f64, seconds: f64) -> Throughput {
    let real = plan.timing.clock == ClockKind::Wall && seconds > 0.0;
    let tokens_per_second = real.then(|| samples * plan.training.model.context as f64 / seconds);
    let flops = |tokens: f64| tokens * plan.training.model.flops_per_token();
    let mfu = tokens_per_second
        .zip(plan.training.peak_tflops)
        .map(|(tokens, peak)| flops(tokens) / (1e12 * peak));
    Throughput { tokens_per_second, mfu }
}

/// One scheme's part of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunSummary {
    pub(crate) scheme: String,
    pub(crate) workers: usize,
    pub(crate) steps: usize,
    pub(crate) seconds_per_step: Spread,
    #[serde(flatten)]
    pub(crate) throughput: Throughput,
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
    #[serde(flatten)]
    pub(crate) course: Course,
}

/// What a run was made under, where that may change in its course.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Course {
    /// Under `auto`: what was predicted and what came.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) legs: Vec<LegSummary>,
    /// Where fewer workers than all may make it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<PoolSummary>,
}

impl RunSummary {
    pub(crate) fn of(
        plan: &Plan,
        run: usize,
        lines: &[Line],
        validation_loss: Option<f64>,
        changed: ChangeCounts,
    ) -> Self {
        let records = || lines.iter().map(|line| &line.record);
        let applied = || lines.iter().filter(|line| line.record.refused.is_empty());
        let last: Vec<f64> = lines
            .iter()
            .rev()
            .filter_map(|line| line.loss)
            .take(FINAL_STEPS * plan.jobs.models as usize)
            .collect();
        let seconds = lines.iter().map(|line| line.record.seconds).sum();
        let samples = lines.iter().map(|line| applied_samples(plan, &line.record)).sum();
        let late = plan.timing.late();
        Self {
            scheme: plan.schemes[run].to_string(),
            workers: plan.shape.workers,
            steps: lines.len(),
            seconds_per_step: Spread::of(lines.iter().map(|line| line.record.seconds).collect()),
            throughput: throughput(plan, samples, seconds),
            final_loss: (!last.is_empty()).then(|| last.iter().sum::<f64>() / last.len() as f64),
            validation_loss,
            samples_lost: (batch_samples(plan) * lines.len() as f64 - samples).round() as u64,
            work: lines.iter().map(|line| line.record.work).sum::<f64>()
                / lines.len().max(1) as f64,
            late_worker_rounds: lines
                .iter()
                .flat_map(|line| &line.record.rounds)
                .map(|round| late(round).len())
                .sum(),
            refused_steps: lines.iter().filter(|line| !line.record.refused.is_empty()).count(),
            max_decode_error: applied().map(|line| line.record.decode.error).fold(0.0, f64::max),
            max_amplification: applied()
                .map(|line| line.record.decode.amplification)
                .fold(0.0, f64::max),
            honesty: Honesty::of(lines),
            course: Course {
                legs: legs(records()),
                pool: plan.bounds().map(|bounds| PoolSummary::of(bounds, records(), changed)),
            },
        }
    }
}

/// What the turns of a comparison say of its `speedup`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SpeedupSpread {
    /// The smallest and the largest `speedup` that one of the turns alone would have given, of
    /// those that all schemes finished; null if there is none. The range of few turns is no
    /// confidence interval, and is wider for more of them.
    pub(crate) speedup_low: Option<f64>,
    pub(crate) speedup_high: Option<f64>,
    /// How many turns those are.
    pub(crate) complete_turns: usize,
}

/// `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) runs: Vec<RunSummary>,
    /// Mean step time of the first run over that of the last; null with a single run, and where a
    /// step of the two was refused. Where schemes take turns, over the turns that all of them
    /// finished without a refused step; null if there is none.
    pub(crate) speedup: Option<f64>,
    /// Where schemes take turns: how far `speedup` can be trusted.
    #[serde(flatten)]
    pub(crate) spread: Option<SpeedupSpread>,
    /// Largest relative difference of a decoded gradient from the whole batch's; null if none was
    /// checked.
    pub(crate) max_gradient_difference: Option<f64>,
    pub(crate) gradients_checked: usize,
    pub(crate) step_seconds: f64,
    #[serde(flatten)]
    pub(crate) of_workers: OfWorkers,
    pub(crate) interrupted: bool,
    /// The workers whose results count unconfirmed, in words.
    #[serde(skip)]
    unverified: Option<String>,
    /// Where schemes take turns: every run compared with the first.
    #[serde(skip)]
    compared: Option<Vec<Option<TurnComparison>>>,
}

impl Summary {
    pub(crate) fn of(
        plan: &Plan,
        runs: Vec<RunSummary>,
        lines: &[Vec<Line>],
        mut of_workers: OfWorkers,
        interrupted: bool,
    ) -> Self {
        if plan.bounds().is_some() {
            // It is told of each run.
            of_workers.left = 0;
        }
        let checked: Vec<f64> =
            lines.iter().flatten().filter_map(|line| line.gradient_difference).collect();
        let mean = |run: &RunSummary| run.seconds_per_step.mean;
        let compared = plan.turns.map(|_| turns::compare(lines));
        let last = compared.as_ref().map(|compared| compared.last().copied().flatten());
        let speedup = match (&last, &runs[..]) {
            (Some(last), _) => last.map(|last| last.speedup),
            // A step that was refused took its time and gave nothing: no run is faster by that.
            (None, [first, .., last])
                if mean(last) > 0.0 && first.refused_steps + last.refused_steps == 0 =>
            {
                Some(mean(first) / mean(last))
            }
            _ => None,
        };
        let spread = last.map(|last| SpeedupSpread {
            speedup_low: last.map(|last| last.low),
            speedup_high: last.map(|last| last.high),
            complete_turns: last.map_or(0, |last| last.turns),
        });
        Self {
            runs,
            speedup,
            spread,
            compared,
            max_gradient_difference: checked.iter().copied().reduce(f64::max),
            gradients_checked: checked.len(),
            step_seconds: plan.timing.step_seconds,
            unverified: unverified(
                lines.iter().flatten().map(|line| &line.record),
                &of_workers.faults,
            ),
            of_workers,
            interrupted,
        }
    }

    /// The table of all runs.
    pub(crate) fn table(&self, width: Width) -> String {
        let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
        let mut table = Table::new([
            Column::left("scheme"),
            Column::right("s/step\nmean"),
            Column::right("p50").spare(3),
            Column::right("p95").spare(1),
            Column::right("loss\ntrain").spare(2),
            Column::right("valid"),
            Column::right("samples\nlost"),
            Column::right("work\npaid"),
            Column::right("late\nanswers").spare(2),
        ]);
        for run in &self.runs {
            let Spread { mean, p50, p95 } = run.seconds_per_step;
            table.row([
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
        table.laid_out(width)
    }

    /// Who was found out, where some run looked for Byzantine workers or had some, or mixed data.
    pub(crate) fn honesty_table(&self, width: Width) -> Option<String> {
        let approximate = |run: &RunSummary| {
            run.honesty.late_gradient_error.is_some_and(|error| error > APPROXIMATE_GRADIENT)
        };
        let shown = self.runs.iter().any(|run| run.honesty.caught.is_some() || approximate(run));
        let rows = self.runs.iter().map(|run| (run.scheme.as_str(), &run.honesty));
        shown.then(|| honesty::table(rows).laid_out(width))
    }

    /// How fast the runs were in tokens, where time was real.
    pub(crate) fn speeds(&self) -> Option<String> {
        let speed = |run: &RunSummary| Some(format!("{} {}", run.scheme, run.throughput.words()?));
        let speeds: Vec<String> = self.runs.iter().filter_map(speed).collect();
        (!speeds.is_empty()).then(|| format!("Tokens per second: {}.", speeds.join("; ")))
    }

    /// What `auto` foresaw and what came, one table per run that it chose for.
    pub(crate) fn legs_tables(&self, width: Width) -> Vec<String> {
        let shown = |run: &RunSummary| {
            let mut table = Table::new([
                Column::left(format!("{}\nsteps", run.scheme)),
                Column::left("scheme"),
                Column::right("s/step\npredicted"),
                Column::right("measured"),
            ]);
            let (earlier, shown) =
                run.course.legs.split_at(run.course.legs.len().saturating_sub(LEGS_SHOWN));
            for leg in shown {
                let predicted = leg
                    .predicted_seconds
                    .map_or("recording".into(), |seconds| format!("{seconds:.3}"));
                table.row([
                    format!("{}-{}", leg.first_step, leg.first_step + leg.steps as u64 - 1),
                    leg.scheme.clone(),
                    predicted,
                    format!("{:.3}", leg.measured_seconds),
                ]);
            }
            let mut text = table.laid_out(width);
            if !earlier.is_empty() {
                let _ = writeln!(text, "{} earlier ones are in summary.json", earlier.len());
            }
            text
        };
        self.runs.iter().filter(|run| !run.course.legs.is_empty()).map(shown).collect()
    }

    /// Why what was trained is worth nothing, if it is.
    pub(crate) fn diverged(&self) -> Option<String> {
        let is_lost = |run: &&RunSummary| run.validation_loss.is_some_and(|loss| !loss.is_finite());
        let lost: Vec<&str> =
            self.runs.iter().filter(is_lost).map(|run| run.scheme.as_str()).collect();
        (!lost.is_empty()).then(|| {
            format!(
                "{} diverged: the validation loss is not a number. A lower --learning-rate may \
                 help",
                lost.join(", ")
            )
        })
    }

    /// How a run's steps compare with those of the first, if they can be compared.
    fn comparison(&self, first: &RunSummary, (other, number): (&RunSummary, usize)) -> String {
        let mut range = String::new();
        let speedup = match &self.compared {
            None => first.seconds_per_step.mean / other.seconds_per_step.mean,
            Some(compared) => {
                let Some(compared) = compared.get(number).copied().flatten() else {
                    return String::new();
                };
                range = compared.range();
                compared.speedup
            }
        };
        let name = &other.scheme;
        let baseline = &first.scheme;
        let times = other.work / first.work;
        if format!("{:.2}", speedup.max(1.0 / speedup)) == "1.00" {
            return format!(
                "{name} made a step as fast as {baseline}{range}, at {times:.2} times the \
                 computing work. "
            );
        }
        if speedup >= 1.0 {
            return format!(
                "{name} made a step {speedup:.2}x{range} faster than {baseline}, at {times:.2} \
                 times the computing work. "
            );
        }
        let why = if first.late_worker_rounds + other.late_worker_rounds > 0 {
            "costs more than the waiting it saves"
        } else {
            "only costs where no worker is late"
        };
        let slower = 1.0 / speedup;
        format!(
            "{name} made a step {slower:.2}x{range} slower than {baseline}: its redundancy {why}. "
        )
    }

    /// What the run shows, in a sentence or two.
    pub(crate) fn sentence(&self, plan: &Plan) -> String {
        let mut text = self.refusals() + &self.checks() + &self.speeds_compared(plan);
        text.extend(self.unverified.as_deref());
        for run in self.runs.iter().filter(|run| run.samples_lost > 0) {
            let lost = several(run.samples_lost, "sample");
            let _ = write!(text, "{} lost {lost}. ", run.scheme);
        }
        for run in self.runs.iter().filter(|run| run.max_decode_error > APPROXIMATE) {
            let _ = write!(
                text,
                "{} is approximate: its largest normalised decoding error was {:.2e}. ",
                run.scheme, run.max_decode_error
            );
        }
        text.trim_end().into()
    }

    fn refusals(&self) -> String {
        let refused = self.runs.iter().filter(|run| run.refused_steps > 0);
        let of_run = |run: &RunSummary| {
            let (were, steps) =
                (if run.refused_steps == 1 { "was" } else { "were" }, several(run.steps, "step"));
            format!("{} of {steps} of {} {were} refused. ", run.refused_steps, run.scheme)
        };
        refused.map(of_run).collect()
    }

    fn checks(&self) -> String {
        let checked = self.gradients_checked;
        match self.max_gradient_difference {
            None => "No gradient was checked. ".into(),
            Some(0.0) if checked == 1 => {
                "The gradient that was checked equals the whole batch's bit for bit. ".into()
            }
            Some(0.0) => {
                format!("All {checked} gradients checked equal the whole batch's bit for bit. ")
            }
            Some(difference) => format!(
                "The largest gradient error of {checked} checked is {difference:.2e} of the \
                 largest entry. "
            ),
        }
    }

    /// How much faster each run was than the first. A step that was refused took its time and gave
    /// nothing: no run is faster by that.
    fn speeds_compared(&self, plan: &Plan) -> String {
        let mut text = String::new();
        let Some((first, others)) =
            self.runs.split_first().filter(|(first, others)| !others.is_empty() && first.steps > 0)
        else {
            return text;
        };
        // Of turns, those with refused steps are not compared.
        let all_count = |run: &&RunSummary| {
            let refused = first.refused_steps + run.refused_steps;
            run.seconds_per_step.mean > 0.0 && (refused == 0 || self.compared.is_some())
        };
        for (other, number) in others.iter().zip(1..).filter(|(run, _)| all_count(run)) {
            text += &self.comparison(first, (other, number));
        }
        if self.spread.is_some_and(|spread| spread.complete_turns == 0) {
            text += "No turn was finished by all schemes without a refused step: there is nothing \
                     to compare yet. ";
        }
        text + match plan.timing.clock {
            ClockKind::Wall => {
                "All workers share this machine's cores, so redundancy is paid in the same cores \
                 here, as it is not in a cluster. "
            }
            ClockKind::Virtual => "Times are modelled: each worker has a machine of its own. ",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(scheme: &str, mean: f64, work: f64) -> RunSummary {
        RunSummary {
            scheme: scheme.into(),
            workers: 8,
            steps: 150,
            seconds_per_step: Spread { mean, p50: 0.98 * mean, p95: 1.2 * mean },
            throughput: Throughput { tokens_per_second: Some(1024.0 / mean), mfu: None },
            final_loss: Some(2.0625),
            validation_loss: Some(2.125),
            samples_lost: 0,
            work,
            late_worker_rounds: 151,
            refused_steps: 0,
            max_decode_error: 0.0,
            max_amplification: 1.0,
            honesty: Honesty::of(&[]),
            course: Course {
                legs: vec![LegSummary {
                    first_step: 0,
                    steps: 20,
                    scheme: "uncoded".into(),
                    predicted_seconds: None,
                    measured_seconds: mean,
                    why: None,
                }],
                pool: None,
            },
        }
    }

    fn summary(runs: Vec<RunSummary>) -> Summary {
        Summary {
            runs,
            spread: None,
            compared: None,
            speedup: Some(1.824),
            max_gradient_difference: Some(0.0),
            gradients_checked: 30,
            step_seconds: 0.1,
            of_workers: OfWorkers::default(),
            interrupted: false,
            unverified: None,
        }
    }

    #[test]
    fn a_difference_that_is_rounded_away_is_none() {
        let compared = |mean: f64| {
            let runs = vec![run("uncoded", 1.0, 1.0), run("groups:s=1", mean, 2.0)];
            let summary = summary(runs);
            summary.comparison(&summary.runs[0], (&summary.runs[1], 1))
        };
        for mean in [0.998, 1.0, 1.002] {
            let said = compared(mean);
            assert!(said.contains("groups:s=1 made a step as fast as uncoded, at 2.00"), "{said}");
        }
        assert!(compared(0.98).contains("1.02x faster"));
        assert!(compared(1.02).contains("1.02x slower"));
    }

    #[test]
    fn tables_fit_the_terminal() {
        let schemes = [("uncoded", 0.456, 1.0), ("defer:T=1,cap=12,cut=16,copies=1", 0.25, 1.13)];
        let summary = summary(schemes.map(|(scheme, mean, work)| run(scheme, mean, work)).into());
        let at = |columns: usize| {
            let width = Width::of(columns);
            let rows = summary.runs.iter().map(|run| (run.scheme.as_str(), &run.honesty));
            let honesty = honesty::table(rows).laid_out(width);
            let tables = [summary.table(width), honesty, summary.legs_tables(width).concat()];
            let text = tables.join("\n");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            format!("{columns} columns:\n{text}")
        };
        insta::assert_snapshot!([60, 80, 120].map(at).join("\n"));
    }
}
