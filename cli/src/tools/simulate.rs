//! `codedgrad simulate`: a scheme over recorded or drawn delays, on virtual time.

use super::as_trained::{self, PredictionRequest, TrainerArgs};
use super::source::{self, Source};
use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::{Accept, Horizon, Scheme, SchemeFacts};
use codedgrad::delays::{DelayError, Growth, Preset};
use codedgrad::ids::{Job, Worker};
use codedgrad::sim::planner::ClosingRules;
use codedgrad::sim::{Close, RoundView, Rules, SimulationOutcome, simulate};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::itself::RELEASE;
use codedgrad_shell::layout::{Width, help};
use codedgrad_shell::limits::{SECONDS_MAX, not_negative, positive, refused};
use codedgrad_shell::output::Output;
use codedgrad_shell::pictures;
use codedgrad_shell::suspicious;
use codedgrad_shell::units::{count, seconds, several, whole};
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

const LOAD_MIN: f64 = Growth::PROPORTIONAL_BASE_MIN;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CloseArg {
    All,
    Incremental,
    Decodable,
}

/// By which rules rounds go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RulesArg {
    /// They close as soon as they can be decoded; of schemes with a delay incremental
    Usual,
    /// All wait for the slowest within mu = 1, as the authors of sequential gradient coding do:
    /// --close all --mu 1
    Paper,
    /// Those of the trainer's engine: what `codedgrad-lab train --clock virtual` does with the same
    /// delays, to the last digit; without auto, --wire bf16 and --late next-step, and of mixtures
    /// the times alone
    Trainer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AcceptArg {
    Model,
    Lookahead,
}

#[derive(Debug, Args)]
#[command(
    after_help = help(&format!("\
Schemes: {schemes}; `codedgrad code --help` says what each does

Delays:  a CSV file without header, one line per round, one number of seconds per worker; it
         starts again when it is used up. Or a preset: hotspot | bursts | iid | static | calm |
         stalls | proportional | serverless | serverless-cold.
Load:    as in `codedgrad plan`: a file's delays grow in proportion to the load and were recorded
         at load 1/n. Else a delay d recorded at load X becomes d L / X at load L (--base-load X)
         or d + (L - X) A (--base-load X --slope A), or it stays (--slope 0). Presets take one
         second for an uncoded step; serverless ones are at load 0 and cost 2.2 s
         a batch, as recorded.
Rules:   a late result is thrown away, and every worker starts each round afresh. --rules trainer
         runs the engine of `codedgrad-lab train` on its virtual clock, with the trainer's rounds,
         weights and times. There, a late result counts while its job is open, and only tasks that a
         worker holds take time. The last step ends the run. A load L takes L x --slope (one second
         for an uncoded step, if not given), and a delay beyond the least one comes on top.

Examples:
  codedgrad simulate groups:s=1 --delays hotspot --workers 8 --jobs 100
  codedgrad simulate m-sgc:B=1,W=2,lambda=2 --delays examples/traces/stragglers.csv --jobs 40
  codedgrad simulate m-sgc:B=1,W=2,lambda=2 --delays iid --workers 8 --jobs 40 --mu 0.5 --grid
  codedgrad simulate queue:m=16 --delays serverless --jobs 40 --dispatch 0.6 --json
  codedgrad simulate sr-sgc:B=1,W=2,lambda=4 --rules trainer --models 2 --delays iid --jobs 40",
        schemes = families::all_forms()))
)]
pub(crate) struct SimulateArgs {
    /// The scheme
    scheme: String,
    /// Delays: a CSV file, - for standard input, the folder of a training run, or a preset
    #[arg(long, value_name = "PRESET|FILE")]
    delays: String,
    /// Number of workers; all columns of a file if not given, 8 for a preset, 256 for serverless
    /// ones
    #[arg(long, value_parser = count::<u32>(1..=65536))]
    workers: Option<u32>,
    /// Number of jobs
    #[arg(long, alias = "steps", value_parser = count::<u64>(1..=10_000_000))]
    jobs: u64,
    /// Rounds of the delays to use, which then start again [default: all; a preset has no end]
    #[arg(
        long, value_parser = count::<u32>(1..=1_000_000),
        help_heading = "Rounds", hide_short_help = true
    )]
    rounds: Option<u32>,
    /// Deadline tolerance: an answer later than (1+mu) x the fastest is late [default: 1]
    #[arg(long, help_heading = "Rounds")]
    mu: Option<f64>,
    /// When a round closes [default: decodable without delay, else incremental]
    #[arg(long, value_enum, help_heading = "Rounds")]
    close: Option<CloseArg>,
    /// Rules by which rounds close
    #[arg(long, value_enum, default_value = "usual", help_heading = "Rounds")]
    rules: RulesArg,
    /// Which stragglers a round may close without: by the scheme's model, or the weakest sound rule
    /// [default: lookahead]
    #[arg(long, value_enum, help_heading = "Rounds", hide_short_help = true)]
    accept: Option<AcceptArg>,
    #[command(flatten)]
    load: LoadArgs,
    #[arg(
        long, value_name = "S", value_parser = seconds,
        help = families::dispatch_help(),
        help_heading = "Load", hide_short_help = true
    )]
    dispatch: Option<f64>,
    /// Seed of a preset [default: 1]
    #[arg(long, value_parser = whole::<u64>)]
    seed: Option<u64>,
    /// Draw the tasks of every worker in every round (on standard error with --json)
    ///
    /// `n.3` is a task of job 3, `x4` four of them, `x` alone that its worker was not waited for,
    /// `g(3)` that the gradient of job 3 is complete.
    #[arg(long, help_heading = "Output")]
    grid: bool,
    /// Draw when each job was complete
    #[arg(
        long, value_name = "FILE.svg", value_parser = pictures::svg_file,
        help_heading = "Output", hide_short_help = true
    )]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    trainer: TrainerArgs,
}

impl SimulateArgs {
    fn mu(&self) -> f64 {
        self.mu.unwrap_or(1.0)
    }

    /// Says which options do nothing for this scheme, these delays and this close.
    fn say_without_effect(&self, spec: &SchemeSpec, facts: &SchemeFacts, output: &mut Output<'_>) {
        let close = if has_deadline(self, facts) { None } else { self.mu };
        let accept = self.accept.filter(|_| !has_models(spec));
        let dispatch = self.dispatch.filter(|_| !facts.pulls);
        for (given, why) in [
            (
                close.map(|mu| format!("--mu {mu}")),
                "counts late answers and does nothing else: rounds close without a deadline",
            ),
            (
                accept.map(|_| "--accept".into()),
                "has no effect: only a scheme for bursts (sr-sgc, m-sgc) has a model of stragglers",
            ),
            (
                dispatch.map(|dispatch| format!("--dispatch {dispatch}")),
                "has no effect: workers of this scheme have all of their tasks from the beginning",
            ),
        ] {
            if let Some(given) = given {
                output.note(format_args!("{given} {why}"));
            }
        }
    }
}

/// Whether rounds are held open until a deadline.
fn has_deadline(args: &SimulateArgs, facts: &SchemeFacts) -> bool {
    !facts.partial && close(args, facts) != Close::Decodable
}

/// Whether a round of it may close by a model of stragglers.
fn has_models(spec: &SchemeSpec) -> bool {
    spec.traits().delay && !spec.traits().feedback
}

/// How delays grow with the load.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Load at which the delays were recorded, in batches per worker and round: they grow in
    /// proportion to it, unless --slope is given
    #[arg(long, value_name = "X", help_heading = "Load")]
    base_load: Option<f64>,
    /// Seconds that a whole batch costs one worker; 0: delays stay as recorded under any load
    #[arg(long, value_name = "A", help_heading = "Load")]
    slope: Option<f64>,
}

impl LoadArgs {
    /// Whether an option says how delays grow.
    pub(crate) fn is_given(&self) -> bool {
        self.base_load.is_some() || self.slope.is_some()
    }

    /// As the options say, else what is usual.
    pub(crate) fn growth(&self, usual: Growth) -> Result<Growth, Failure> {
        self.base_load.map_or(Ok(()), |load| not_negative("--base-load", load))?;
        self.slope.map_or(Ok(()), |slope| not_negative("--slope", slope))?;
        match (self.base_load, self.slope) {
            (Some(base), Some(slope)) => Ok(Growth::Additive { base, slope }),
            (Some(base), None) if base >= LOAD_MIN => Ok(Growth::Proportional { base }),
            (Some(base), None) => Err(refused(format!(
                "--base-load {base:?}: delays that grow in proportion to it need {LOAD_MIN:e} or \
                 more, others --slope A"
            ))),
            (None, Some(0.0)) => Ok(Growth::AS_RECORDED),
            (None, Some(slope)) => Err(refused(format!(
                "--slope {slope} needs --base-load X, the load at which the delays were recorded"
            ))),
            (None, None) => Ok(usual),
        }
    }
}

pub(crate) fn run(args: &SimulateArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    if args.rules != RulesArg::Trainer {
        args.trainer.refuse()?;
    }
    let spec = families::scheme(&args.scheme).or_input()?;
    not_negative("--mu", args.mu())?;
    args.dispatch.map_or(Ok(()), |seconds| not_negative("--dispatch", seconds))?;
    let own = args.close.is_some() || args.mu() != ClosingRules::PAPER_MU;
    if args.rules == RulesArg::Paper && own {
        return Err(Failure::Input(anyhow!(
            "--rules paper is --close all --mu 1: leave --close and --mu out"
        )));
    }
    source::say_seed(&args.delays, args.seed, output);
    let delays = Source::open(
        &args.delays,
        args.workers.map(|workers| workers as usize),
        args.seed.unwrap_or(source::SEED),
        !args.load.is_given() && args.rules != RulesArg::Trainer,
        output,
    )?;
    suspicious::say(&args.delays, Some(delays.workers()), output);
    let rounds = args.rounds.map(|rounds| rounds as usize);
    // Those that are played, and some to tell by whose gaps they are.
    let played = rounds.unwrap_or((args.jobs as usize).max(suspicious::ROWS));
    // What is left out was there when the others' times were taken.
    let usual = delays.growth();
    let delays = delays.without_gaps(&args.delays, played, output)?;
    let workers = delays.workers();
    let preset = delays.preset;
    if args.rules == RulesArg::Trainer {
        return predict(args, &spec, delays, output);
    }
    let accept =
        if args.accept == Some(AcceptArg::Model) { Accept::Model } else { Accept::Lookahead };
    let horizon = Horizon { workers, units: None, jobs: Job(0)..Job(args.jobs), accept };
    let mut scheme = spec.over(horizon).or_input()?;
    spec.check_claim(workers).or_input()?;
    let rules = rules(args, preset, usual, &*scheme)?;
    args.say_without_effect(&spec, scheme.facts(), output);
    if let Some(warning) = spec.warning(workers) {
        output.note(format_args!("warning: {warning}"));
    }
    let rounds = args.jobs + scheme.facts().delay as u64;
    let mut delays = delays.endless(args.rounds.map(|rounds| rounds as usize))?;
    let mut longest = 0.0;
    let mut rows = || {
        let row = delays.next().unwrap_or_else(|| unreachable!("delays do not end"))?;
        longest = row.iter().copied().fold(longest, f64::max);
        Ok::<_, DelayError>(row)
    };
    let bar = output.progress_bar(rounds, &args.scheme);
    let mut grid = Grid::default();
    let outcome = simulate(&mut *scheme, args.jobs, &mut rows, &rules, &mut |seen| {
        if args.grid {
            grid.add(&spec, workers, &seen);
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let outcome = outcome.or_input()?;
    if !outcome.total_time.is_finite() {
        return Err(refused(format!(
            "{}: with delays of up to {longest:e} s the jobs take longer than a number can say; \
             {SECONDS_MAX:e} s are always possible",
            &args.delays
        )));
    }
    let json = || shown(args, &rules, (&spec, &*scheme), &outcome);
    let words = || words(args, &rules, &*scheme, &outcome);
    show(args, &grid, &outcome.job_finish_time, (&json, &words), output)
}

/// The same by the rules of the trainer's engine.
fn predict(
    args: &SimulateArgs,
    spec: &SchemeSpec,
    delays: Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let LoadArgs { base_load, slope } = args.load;
    slope.map_or(Ok(()), |slope| positive("--slope", slope))?;
    as_trained::refuse_own_rules(&[
        ("--close", args.close.is_some()),
        ("--accept", args.accept.is_some()),
        ("--dispatch", args.dispatch.is_some()),
        ("--base-load", base_load.is_some()),
    ])?;
    let workers = delays.workers();
    spec.check_claim(workers).or_input()?;
    if let Some(warning) = spec.warning(workers) {
        output.note(format_args!("warning: {warning}"));
    }
    let asked = PredictionRequest {
        scheme: &args.scheme,
        spec,
        jobs: args.jobs,
        mu: args.mu(),
        slope,
        rounds: args.rounds.map(|rounds| rounds as usize),
    };
    let mut grid = Grid::default();
    let predicted = args.trainer.predict(&asked, delays, output, &mut |seen| {
        if args.grid {
            grid.add(spec, workers, seen);
        }
    })?;
    let json = || {
        let mut shown = predicted.shown(&args.scheme);
        shown["close"] = json!("engine");
        shown["mu"] = json!(args.mu());
        name_origin(args, &mut shown);
        shown
    };
    let words = || {
        let closed = format!("as the trainer's engine does, mu {}", args.mu());
        predicted.words(&args.scheme) + &origin(args, &closed)
    };
    show(args, &grid, &predicted.job_finish_time(), (&json, &words), output)
}

/// Shows what came of a run: a picture and a grid, as far as they were asked for, then JSON or
/// words.
fn show(
    args: &SimulateArgs,
    grid: &Grid,
    job_finish_time: &[f64],
    (json, words): (&dyn Fn() -> serde_json::Value, &dyn Fn() -> String),
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        let picture = pictures::finish_times(&args.scheme, job_finish_time).or_work()?;
        std::fs::write(path, picture)
            .with_context(|| format!("cannot write {}", path.display()))
            .or_work()?;
    }
    if args.json {
        output.notes.write(&grid.laid_out(Width::of_stderr()));
        return writeln!(output.out, "{}", json()).or_work();
    }
    let grid = grid.laid_out(output.width());
    write!(output.out, "{grid}{}", output.width().prose(&words())).or_work()
}

fn rules(
    args: &SimulateArgs,
    preset: Option<Preset>,
    usual: Growth,
    scheme: &dyn Scheme,
) -> Result<Rules, Failure> {
    let facts = scheme.facts();
    let growth = Some(args.load.growth(usual)?);
    let dispatch = args.dispatch.unwrap_or(preset.map_or(0.0, Preset::pull));
    Ok(Rules { close: close(args, facts), mu: args.mu(), growth, dispatch })
}

fn close(args: &SimulateArgs, facts: &SchemeFacts) -> Close {
    match (args.close, facts.delay) {
        _ if args.rules == RulesArg::Paper => Close::All,
        (Some(CloseArg::All), _) => Close::All,
        (Some(CloseArg::Incremental), _) => Close::Incremental,
        (Some(CloseArg::Decodable), _) | (None, 0) => Close::Decodable,
        (None, _) => Close::Incremental,
    }
}

fn shown(
    args: &SimulateArgs,
    rules: &Rules,
    (spec, scheme): (&SchemeSpec, &dyn Scheme),
    outcome: &SimulationOutcome,
) -> serde_json::Value {
    let time = outcome.round_time;
    let mut shown = json!({
        "scheme": args.scheme,
        "workers": scheme.facts().workers,
        "jobs": args.jobs,
        "delay": scheme.facts().delay,
        "load": outcome.load,
        "work": outcome.work,
        "growth": rules.growth,
        "close": rules.close,
        "mu": has_deadline(args, scheme.facts()).then_some(rules.mu),
        "total_time": outcome.total_time,
        "time_per_job": outcome.total_time / args.jobs as f64,
        "rounds": outcome.rounds,
        "round_time": {"mean": time.mean, "p50": time.p50, "p95": time.p95, "p99": time.p99,
        "max": time.max},
        "wait_outs": outcome.wait_outs,
        "jobs_decoded": outcome.jobs_decoded,
        "coverage": outcome.coverage,
        "job_finish_time": outcome.job_finish_time,
        "straggler_fraction": outcome.straggler_fraction,
    });
    name_origin(args, &mut shown);
    if !has_models(spec) {
        shown["accept"] = serde_json::Value::Null;
    }
    if families::defers(spec) {
        shown["deferred"] = json!(outcome.unfinished_fraction);
    }
    shown
}

fn words(
    args: &SimulateArgs,
    rules: &Rules,
    scheme: &dyn Scheme,
    outcome: &SimulationOutcome,
) -> String {
    let (facts, time) = (scheme.facts(), outcome.round_time);
    let mut text = format!(
        "{}: {} of {} in {:.3} s, {:.4} s per job.\n",
        args.scheme,
        several(args.jobs, "job"),
        several(facts.workers, "worker"),
        outcome.total_time,
        outcome.total_time / args.jobs as f64
    );
    let _ = writeln!(
        text,
        "Rounds: {} ({} kept open past their deadline), mean {:.4} s, median {:.4}, 95 % {:.4}, 99 \
         % {:.4}, longest {:.4}.",
        outcome.rounds, outcome.wait_outs, time.mean, time.p50, time.p95, time.p99, time.max
    );
    let _ = writeln!(
        text,
        "Load {:.6} of a batch per worker and round, {:.3} times the uncoded work, a job complete \
         at most {} after its first.",
        outcome.load,
        outcome.work,
        several(facts.delay, "round")
    );
    let _ = write!(
        text,
        "{:.2} % of the answers came later than (1+{}) x the fastest.",
        100.0 * outcome.straggler_fraction,
        rules.mu
    );
    if outcome.coverage < 1.0 {
        let _ = write!(
            text,
            " The gradients lack {:.2} % of their batches: they are BIASED.",
            100.0 * (1.0 - outcome.coverage)
        );
    }
    text.push('\n');
    if let Some(growth) = rules.growth {
        let _ = writeln!(text, "Times {growth}.");
    }
    text + &by_rules(args, rules, facts)
}

/// By which rules that is, in a line.
fn by_rules(args: &SimulateArgs, rules: &Rules, facts: &SchemeFacts) -> String {
    let closed = match rules.close {
        _ if facts.partial => "by the scheme's own rule".to_owned(),
        Close::Decodable => "by the rule decodable, without a deadline".to_owned(),
        Close::All => format!("by the rule all, mu {}", rules.mu),
        Close::Incremental => format!("by the rule incremental, mu {}", rules.mu),
    };
    let mut text = origin(args, &closed);
    if facts.delay > 0 && rules.close == Close::Incremental {
        text.push_str(
            "Schemes without a delay are closed by another rule (decodable): --rules paper closes \
             all by one, and codedgrad plan looks for the best mu.\n",
        );
    }
    text
}

/// What a result follows from beside its scheme, in a line.
fn origin(args: &SimulateArgs, closed: &str) -> String {
    let seed = source::seed_of(&args.delays, args.seed);
    let seed = seed.map_or(String::new(), |seed| format!(", seed {seed}"));
    format!(
        "Rounds closed {closed}; accept {}; delays {}{seed}; codedgrad {RELEASE}.\n",
        accept_name(args),
        &args.delays
    )
}

/// The same as fields.
fn name_origin(args: &SimulateArgs, shown: &mut serde_json::Value) {
    shown["accept"] = json!(accept_name(args));
    shown["delays"] = json!(&args.delays);
    shown["seed"] = json!(source::seed_of(&args.delays, args.seed));
    shown["version"] = json!(RELEASE);
}

fn accept_name(args: &SimulateArgs) -> &'static str {
    if args.accept == Some(AcceptArg::Model) { "model" } else { "lookahead" }
}

/// One line per round, one cell per worker: its tasks, and `x` where its answer was not waited for.
#[derive(Default)]
struct Grid {
    rounds: Vec<(Vec<String>, String)>,
}

impl Grid {
    fn add(&mut self, spec: &SchemeSpec, workers: usize, seen: &RoundView<'_>) {
        if seen.free {
            return self.rounds.push((Vec::new(), " nothing left to do".into()));
        }
        let mut cells: Vec<Vec<(String, u32)>> = vec![Vec::new(); workers];
        for run in seen.runs {
            let age = seen.round - 1 - run.first.job.0 as usize;
            let label = spec.label(workers, run.first, age);
            let cell = &mut cells[run.worker.index()];
            match cell.last_mut() {
                Some((last, times)) if *last == label => *times += run.count,
                _ => cell.push((label, run.count)),
            }
        }
        let text = |worker: Worker| {
            let words = cells[worker.index()].iter().map(|(label, times)| {
                if *times > 1 { format!("{label}x{times}") } else { label.clone() }
            });
            let mark = seen.missing.contains(worker).then(|| "x".to_owned());
            words.chain(mark).collect::<Vec<_>>().join(" ")
        };
        let decoded: String =
            seen.decoded.iter().map(|job| format!("  g({})", job.0 + 1)).collect();
        self.rounds.push((Worker::all(workers).map(text).collect(), decoded));
    }

    /// A line per round, or several where the workers of one are too many for a line.
    fn laid_out(&self, line: Width) -> String {
        let width =
            self.rounds.iter().flat_map(|round| &round.0).map(String::len).max().unwrap_or(0);
        let number = self.rounds.len().to_string().len();
        let before = number + "r= |".len();
        let fit = line.fit(before, width + "  |".len());
        let mut text = String::new();
        for (round, (cells, end)) in (1..).zip(&self.rounds) {
            let _ = write!(text, "r={round:<number$} |");
            for (at, cells) in cells.chunks(fit).enumerate() {
                if at > 0 {
                    let _ = write!(text, "\n{:>before$}", "|");
                }
                for cell in cells {
                    let _ = write!(text, " {cell:<width$} |");
                }
            }
            let last = text.lines().next_back().map_or(0, str::len);
            if !line.holds(last + end.len()) {
                let _ = write!(text, "\n{:>before$}", "|");
            }
            let _ = writeln!(text, "{end}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// The worked traces: the given workers miss the given rounds.
    fn trace(text: &str, jobs: u64, missing: &[&[u32]]) -> String {
        let horizon =
            Horizon { workers: 4, units: None, jobs: Job(0)..Job(jobs), accept: Accept::Lookahead };
        let spec = families::scheme(text).unwrap();
        let mut scheme = spec.over(horizon).unwrap();
        let rows = missing.iter().map(|late| {
            (0..4).map(|i| if late.contains(&i) { 9.0 } else { 1.0 }).collect::<Vec<f64>>()
        });
        let mut rows = rows.chain(std::iter::repeat(vec![1.0; 4]));
        let rules = Rules {
            close: Close::All,
            mu: 1.0,
            growth: Some(Growth::Proportional { base: scheme.facts().load }),
            dispatch: 0.0,
        };
        let mut grid = Grid::default();
        let mut next = || Ok::<_, Infallible>(rows.next().unwrap());
        let outcome = simulate(&mut *scheme, jobs, &mut next, &rules, &mut |seen| {
            grid.add(&spec, 4, &seen);
        })
        .unwrap();
        assert_eq!((outcome.jobs_decoded as u64, outcome.wait_outs), (jobs, 0));
        format!("{text}\n{}", grid.laid_out(Width::ENDLESS))
    }

    #[test]
    fn worked_traces_are_as_they_were() {
        let traces = [
            trace("m-sgc:B=2,W=3,lambda=2", 3, &[&[], &[0, 1], &[0], &[], &[], &[2]]),
            trace("m-sgc:B=1,W=2,lambda=1", 3, &[&[1], &[], &[2]]),
            trace("sr-sgc:B=1,W=2,lambda=4", 4, &[&[1, 2, 3], &[], &[0, 1]]),
            trace("sr-sgc:B=2,W=3,lambda=3", 4, &[&[0], &[0, 1, 2]]),
        ];
        insta::assert_snapshot!("worked_traces", traces.join("\n"));
    }

    #[test]
    fn feedback_is_drawn_too() {
        insta::assert_snapshot!("defer_grid", trace("defer:T=1,cap=1,cut=2", 2, &[&[3]]));
    }
}
