//! `codedgrad doctor compare`: whether a second run is slower than a first.

use super::{Case, DoctorArgs, STDIN};
use crate::tools::called::Rounds;
use crate::tools::ranks::{JointStep, Ranks, STEP_PARTS};
use anyhow::anyhow;
use clap::Args;
use codedgrad::doctor::{
    ChangeVerdict, Comparison, NotCompared, Pair, Record, RunContext, RunEvent, RunSide, examine,
    warm_up,
};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::folder::{PLAN, RECORD, SERVED, json_if_there};
use codedgrad_shell::layout::{Column, Table, Width, help};
use codedgrad_shell::output::{Output, plain};
use codedgrad_shell::units::several;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// Workers that the table shows: those whose ratio changed most.
const SHOWN_MOST: usize = 8;

#[derive(Debug, Args)]
#[command(
    after_help = help("\
It compares seconds per step, the load of a step, the parts of a step, and each worker's time over
the median of its round. A positive change means that B takes longer. The first steps of both runs
are left out as warm-up.

Input:   A and B are what `codedgrad doctor` takes: the folder of a run, its run.jsonl, the folder
         that `codedgrad.record` writes, or a CSV file of delays. A folder of several runs counts
         by its first run. ./compare is a folder of that name.
Samples: if workers, scheme or batch differ and both runs show their samples, seconds are per
         sample. A line names each thing that cannot be compared.
Sure:    the 95 % interval of the change comes from a block bootstrap whose blocks are longer than
         spells of slow steps. It needs 20 steps of each run after the warm-up.
Status:  with --fail-above 5% it is 1 if the whole interval is above 5 %, else 0. If the interval
         contains 5 %, the command says how many more steps would decide.

JSON:    {a, b, warm_up, per, median, mean, interval, work, parts, workers, limit, verdict,
         more_steps, not_compared}. a and b have {input, scheme, workers, steps, samples}. median,
         mean and work, and each of parts and workers, have {a, b, change}; changes are fractions.
         interval has {low, high, block}, of which block is in steps of each run, or is null.
         verdict is slower, not-slower or not-decided, or null without --fail-above.

Examples:
  codedgrad doctor compare runs/0001 runs/0002 --fail-above 5%    # a gate for CI
  codedgrad doctor compare examples/traces/stragglers.csv examples/traces/slow_worker.csv
  codedgrad doctor compare examples/steps examples/steps --json")
)]
pub(super) struct CompareArgs {
    /// The run before: a folder, a run.jsonl, or a CSV file of delays
    a: String,
    /// The run after
    b: String,
    /// Exit with status 1 if B is surely slower by more than this, such as 5%
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = percent)]
    fail_above: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A percentage, by its sign: 0.05 could be five hundredths of a percent.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse().ok());
    number.filter(|number: &f64| number.is_finite() && *number >= 0.0).ok_or_else(|| {
        format!("{text:?} is no limit: write a percentage of 0 or more with its sign, such as 5%")
    })
}

/// One of the two, as it was read.
struct Side<'a> {
    input: &'a str,
    record: Record,
    events: Vec<RunEvent>,
    /// What workers are called, if they have more than numbers.
    names: Vec<String>,
    samples: Option<f64>,
    /// What `codedgrad.record` saw of its steps.
    steps: Option<Vec<JointStep>>,
    /// Whether it has the times of answers and nothing else of a step.
    is_trace: bool,
}

impl<'a> Side<'a> {
    fn read(input: &'a str, output: &mut Output<'_>) -> Result<Self, Failure> {
        let path = Path::new(input);
        if Ranks::is_in(path) {
            let Ranks { rows, called, steps } = Ranks::read(&[path], output)?;
            called.not_seen.iter().for_each(|it| output.note(format_args!("not seen: {it}")));
            let numbers = Rounds::all_numbers(&called.rounds).unwrap_or_default();
            let record = Record::of_numbered_trace(numbers.into_iter().zip(rows)).or_input()?;
            return Ok(Self {
                input,
                record,
                events: Vec::new(),
                names: called.workers,
                samples: None,
                steps: Some(steps),
                is_trace: false,
            });
        }
        let args = DoctorArgs { input: input.into(), ..DoctorArgs::default() };
        let Case { number, record, events, mut names, .. } = Case::read(&args, output)?;
        let folder = match path.file_name().is_some_and(|name| name == RECORD) {
            true => path.parent(),
            false => Some(path).filter(|path| path.is_dir()),
        };
        let samples = folder.map(samples).transpose()?.flatten();
        if events.iter().any(|event| event.process.is_some()) {
            names = identities(&events, record.workers());
        }
        let is_trace = number.is_none();
        Ok(Self { input, record, events, names, samples, steps: None, is_trace })
    }

    /// As it is compared, with these names of its workers.
    fn compared(&self, record: &Record, names: &[String], output: &mut Output<'_>) -> RunSide {
        let known = RunContext { registry: families::registry(), events: &self.events };
        let found = examine(record, &known);
        for caution in &found.cautions {
            output.note(format_args!("warning: {}: {caution}", self.input));
        }
        let side = RunSide::of(record, &found, self.samples, names);
        let Some(steps) = &self.steps else { return side };
        let steps = &steps[steps.len() - record.steps().min(steps.len())..];
        let mean = |at: usize| {
            steps.iter().map(|step| step.parts[at]).sum::<f64>() / steps.len().max(1) as f64
        };
        let named = STEP_PARTS.into_iter().enumerate();
        let named = named.map(|(at, name)| (name.to_owned(), mean(at)));
        RunSide {
            // What ranks waited for each other belongs to a step, though to none of its ranks.
            seconds: steps.iter().map(|step| step.seconds).collect(),
            // Older files do not show the optimizer.
            parts: named.filter(|(name, mean)| name != "optimizer" || *mean > 0.0).collect(),
            ..side
        }
    }
}

/// The samples of a step, if a run's plan shows them.
fn samples(folder: &Path) -> Result<Option<f64>, Failure> {
    let product = |plan: &Value, names: [&str; 2]| {
        let steps = plan["micro_steps"].as_f64().unwrap_or(1.0);
        Some(plan[names[0]].as_f64()? * plan[names[1]].as_f64()? * steps)
    };
    let planned = json_if_there::<Value>(&folder.join(PLAN))?;
    let served = json_if_there::<Value>(&folder.join(SERVED))?;
    let planned = planned.and_then(|plan| product(&plan, ["micro_batch_rows", "micro_batches"]));
    let served = || served.and_then(|plan| product(&plan["facts"], ["unit_samples", "units"]));
    Ok(planned.or_else(served))
}

/// The last identity of each worker, else its number; none where two have the same.
fn identities(events: &[RunEvent], workers: usize) -> Vec<String> {
    let mut names: Vec<String> = (0..workers).map(|worker| worker.to_string()).collect();
    for event in events {
        let identity = event.process.as_ref().and_then(|process| process.identity.as_ref());
        let place = event.worker.and_then(|worker| names.get_mut(worker));
        if let (Some(identity), Some(place)) = (identity, place) {
            *place = plain(identity);
        }
    }
    // A process that has moved to another number would stand for two.
    let distinct: BTreeSet<&String> = names.iter().collect();
    if distinct.len() < names.len() { Vec::new() } else { names }
}

/// Runs `codedgrad doctor compare`.
pub(super) fn run(args: &CompareArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    if args.a == STDIN && args.b == STDIN {
        return Err(Failure::Input(anyhow!("-: only one of A and B can be standard input")));
    }
    let sides = [Side::read(&args.a, output)?, Side::read(&args.b, output)?];
    let left_out = warm_up([sides[0].record.steps(), sides[1].record.steps()]);
    // Processes are called otherwise in each run unless they were given names.
    let has_common = sides[0].names.iter().any(|name| sides[1].names.contains(name));
    let compared = sides.each_ref().map(|side| {
        let record = side.record.clone().without_first(left_out);
        side.compared(&record, if has_common { &side.names } else { &[] }, output)
    });
    let mut found = Comparison::of(&compared[0], &compared[1]);
    if sides[0].is_trace != sides[1].is_trace {
        let trace = if sides[0].is_trace { "A" } else { "B" };
        found.not_compared.push(NotCompared {
            what: "the time outside rounds".into(),
            why: format!("{trace} has the times of answers alone"),
        });
    }
    let verdict = args.fail_above.map(|limit| found.verdict(limit / 100.0));
    let shown = Shown { args, runs: &compared, left_out, found: &found, verdict };
    let text = if args.json { shown.json().to_string() + "\n" } else { shown.text(output.width()) };
    output.out.write_all(text.as_bytes()).or_work()?;
    if verdict == Some(ChangeVerdict::Slower) { Err(Failure::Said(1)) } else { Ok(()) }
}

/// What is printed.
struct Shown<'a> {
    args: &'a CompareArgs,
    runs: &'a [RunSide; 2],
    left_out: usize,
    found: &'a Comparison,
    verdict: Option<ChangeVerdict>,
}

impl Shown<'_> {
    fn inputs(&self) -> [(&'static str, &str, &RunSide); 2] {
        let [a, b] = self.runs;
        [("A", self.args.a.as_str(), a), ("B", self.args.b.as_str(), b)]
    }

    fn unit(&self) -> &'static str {
        if self.found.per_sample { "sample" } else { "step" }
    }

    fn json(&self) -> Value {
        let run = |(_, input, run): (&str, &str, &RunSide)| {
            json!({
                "input": input,
                "scheme": run.scheme,
                "workers": run.workers,
                "steps": run.seconds.len(),
                "samples": run.samples,
            })
        };
        let by_name = |pairs: &[(String, Pair)]| {
            pairs.iter().map(|(name, pair)| (name.clone(), json!(pair))).collect::<Map<_, _>>()
        };
        let [a, b] = self.inputs().map(run);
        let found = self.found;
        let (verdict, more) = match self.verdict {
            None => (None, None),
            Some(ChangeVerdict::Slower) => (Some("slower"), None),
            Some(ChangeVerdict::NotSlower) => (Some("not-slower"), None),
            Some(ChangeVerdict::NotDecided { more }) => (Some("not-decided"), more),
        };
        json!({
            "a": a,
            "b": b,
            "warm_up": self.left_out,
            "per": self.unit(),
            "median": found.median,
            "mean": found.mean,
            "interval": found.interval,
            "work": found.work,
            "parts": by_name(&found.parts),
            "workers": by_name(&found.workers),
            "limit": self.args.fail_above.map(|limit| limit / 100.0),
            "verdict": verdict,
            "more_steps": more,
            "not_compared": found.not_compared.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }

    fn text(&self, width: Width) -> String {
        let mut text = String::new();
        for (letter, input, run) in self.inputs() {
            let (steps, workers) =
                (several(run.seconds.len() as u64, "step"), several(run.workers as u64, "worker"));
            let samples = run.samples.map_or(String::new(), |all| format!(", {all} samples each"));
            text += &width.prose(&format!(
                "{letter}: {input}, {}: {steps} of {workers}{samples}\n",
                plain(&run.scheme)
            ));
        }
        let left_out = several(self.left_out as u64, "step");
        text += &width.prose(&format!("Left out as warm-up: the first {left_out} of both.\n\n"));
        text += &self.table(width);
        for it in &self.found.not_compared {
            text += &width.prose(&format!("{}.\n", plain(&sentence(&it.to_string()))));
        }
        text.push('\n');
        text + &width.prose(&self.answer())
    }

    fn table(&self, width: Width) -> String {
        let (found, unit) = (self.found, self.unit());
        let mut table = Table::new([
            Column::left(""),
            Column::right("A"),
            Column::right("B"),
            Column::right("change"),
        ]);
        let mut row = |name: String, pair: &Pair| {
            let change = Some(pair.change()).filter(|change| change.is_finite());
            let change = change.map_or("-".into(), signed);
            table.row([name, digits(pair.a), digits(pair.b), change]);
        };
        row(format!("seconds per {unit}, median"), &found.median);
        row(format!("seconds per {unit}, mean"), &found.mean);
        for (name, pair) in &found.parts {
            row(format!("  {name}"), pair);
        }
        if let Some(work) = &found.work {
            row("load of a step, batches".into(), work);
        }
        let mut workers: Vec<&(String, Pair)> = found.workers.iter().collect();
        let size = |pair: &Pair| pair.change().abs();
        workers.sort_by(|x, y| size(&y.1).total_cmp(&size(&x.1)));
        for (name, pair) in workers.iter().take(SHOWN_MOST) {
            row(format!("worker {}, times median", plain(name)), pair);
        }
        let mut text = table.laid_out(width);
        if let Some(rest) = workers.len().checked_sub(SHOWN_MOST).filter(|rest| *rest > 0) {
            let _ = writeln!(text, "{rest} more workers changed less: --json has them.");
        }
        text
    }

    /// How much slower the second run is, and whether that is too much.
    fn answer(&self) -> String {
        let (found, unit) = (self.found, self.unit());
        let change = found.mean.change();
        let mut text = match change.is_finite() {
            true => format!(
                "B takes {:.1} % {} time per {unit} than A",
                100.0 * change.abs(),
                if change < 0.0 { "less" } else { "more" }
            ),
            false => format!("B takes time per {unit}, and A takes none"),
        };
        match found.interval {
            Some(it) => {
                let (low, high) = (signed(it.low), signed(it.high));
                let _ = writeln!(text, " (95 % interval of the change: {low} to {high}).");
            }
            None => text.push_str(".\n"),
        }
        let Some((limit, verdict)) = self.args.fail_above.zip(self.verdict) else { return text };
        let _ = match verdict {
            ChangeVerdict::Slower => writeln!(text, "B is slower by more than {limit} %."),
            ChangeVerdict::NotSlower => writeln!(text, "B is not slower by more than {limit} %."),
            ChangeVerdict::NotDecided { more: Some(more) } => writeln!(
                text,
                "Whether that is more than {limit} % is not decided: about {more} more steps of \
                 each run would."
            ),
            ChangeVerdict::NotDecided { more: None } if found.interval.is_some() => writeln!(
                text,
                "Whether that is more than {limit} % is not decided: the change is too close to \
                 it."
            ),
            ChangeVerdict::NotDecided { more: None } => writeln!(
                text,
                "Whether that is more than {limit} % is not decided: there is no interval."
            ),
        };
        text
    }
}

/// A change in percent.
fn signed(change: f64) -> String {
    // What rounds to nothing has no sign.
    let tenths = (1000.0 * change).round() / 10.0 + 0.0;
    if tenths == 0.0 { "0.0 %".into() } else { format!("{tenths:+.1} %") }
}

/// A number with four digits: seconds of a sample are few.
fn digits(number: f64) -> String {
    if number <= 0.0 {
        return "0".into();
    }
    let decimals = (3.0 - number.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{number:.decimals$}")
}

/// A sentence begins with a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

#[cfg(test)]
mod tests;
