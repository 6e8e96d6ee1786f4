//! `codedgrad train`: the main job.

use super::checkpoint;
use super::folder::RunFolder;
use super::plan::{self, ClockKind, LateKind, Plan, ReduceKind};
use super::session::Session;
use super::{Failure, OrInput, OrWork};
use crate::train::AdamWConfig;
use crate::train::candle::GptConfig;
use anyhow::{Context, anyhow};
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flags that a resumed run takes from its folder.
const PLANNED: [&str; 34] = [
    "replan_every",
    "probe",
    "models",
    "micro_steps",
    "mu",
    "reduce",
    "late",
    "checkpoint_every",
    "audit_every",
    "fault",
    "scheme",
    "compare",
    "corpus",
    "tokenizer",
    "init",
    "workers",
    "steps",
    "delays",
    "no_stragglers",
    "clock",
    "step_seconds",
    "micro_batches",
    "micro_batch_rows",
    "layers",
    "heads",
    "width",
    "context",
    "untied_head",
    "learning_rate",
    "seed",
    "max_wait",
    "grace",
    "out",
    "force",
];

#[derive(Debug, Args)]
#[command(after_help = "Schemes: uncoded | groups:s=1 | groups:l=4[,rescale] | min-load:s=2 | interval:cuts=FILE |
         interval:speeds=FILE,s=1,units=64 | cyclic:s=2[,seed=7] | graph:d=3[,err=0.01][,seed=7] |
         drop:b=1 | matrix:FILE[,s=1]; `codedgrad code` shows what each is;
         with feedback: queue:m=2 | ring:reach=3; over several rounds, for --models or
         --micro-steps: m-sgc:B=1,W=2,lambda=3[,rep|,cyclic] | sr-sgc:B=1,W=2,lambda=4 |
         defer:T=1,cap=2,cut=4[,copies=1]; or auto: steps are recorded uncoded, the planner is
         asked, and the run goes on with what it finds fastest, where that saves more than 5 %
Delays:  hotspot | bursts | iid | static | calm | stalls | proportional, in units of the uncoded
         compute time of a step; serverless | serverless-cold, in seconds; or a CSV file of
         seconds: one line per step, one number per worker; `codedgrad trace stats` measures them

Examples:
  codedgrad train                                    uncoded, groups:s=1 and queue:m=2, about 2 minutes
  codedgrad train --scheme defer:cap=2,cut=2 --models 2 --compare uncoded
  codedgrad train --scheme m-sgc:B=1,W=2,lambda=3 --micro-batches 40 --micro-steps 8
  codedgrad train --scheme auto --compare uncoded    let the planner choose, and see if it was right
  codedgrad train --no-stragglers                    what redundancy costs when nobody is slow
  codedgrad train --scheme groups:s=2 --compare uncoded --workers 9 --corpus notes/
  codedgrad train --clock virtual --json             modelled time, reproducible to the byte")]
pub(super) struct TrainArgs {
    /// Scheme to train with; without it, `uncoded` is compared with `groups:s=1` and `queue:m=2`
    #[arg(long, value_name = "TEXT")]
    scheme: Option<String>,
    /// Another scheme to run first, for comparison
    #[arg(long, value_name = "TEXT", requires = "scheme")]
    compare: Option<String>,
    /// Text to train on: a file or a folder of files; embedded text if not given
    #[arg(long, value_name = "FILE|DIR")]
    corpus: Option<PathBuf>,
    /// Hugging Face tokenizer.json (needs feature `tokenizers`); without it, tokens are bytes
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Start from a model saved by an earlier run (a folder with model.safetensors and config.json)
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,
    /// Number of workers
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Optimizer steps of each run, and of each model
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Injected stragglers: a preset or a CSV file
    #[arg(long, value_name = "PRESET|FILE", default_value = "hotspot")]
    delays: String,
    /// Delay nobody
    #[arg(long, conflicts_with = "delays")]
    no_stragglers: bool,
    /// Real time, or modelled time in which nobody waits
    #[arg(long, value_enum, default_value_t = ClockKind::Wall)]
    clock: ClockKind,
    /// Uncoded compute time of a step under the virtual clock (measured under the wall clock)
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    step_seconds: f64,
    /// Models trained in turn, one step of each after the other: schemes over T+1 rounds need T+1 of them
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    models: u64,
    /// Batches added up to one step of one model; for one model, `queue` over the whole step
    /// (--micro-batches instead of --micro-steps) is the rival to beat
    #[arg(long, value_name = "A", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65536))]
    micro_steps: u64,
    /// Schemes over rounds wait for everybody until (1+mu) times the first answer
    #[arg(long, default_value_t = 1.0)]
    mu: f64,
    /// Where results are added up
    #[arg(long, value_enum, default_value_t = ReduceKind::Auto)]
    reduce: ReduceKind,
    /// Which step the late units of `defer` count for
    #[arg(long, value_enum, default_value_t = LateKind::SameStep)]
    late: LateKind,
    /// Micro-batches per batch, the units in which batches are cut [default: two per worker]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    micro_batches: Option<u32>,
    /// Windows of text per micro-batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    micro_batch_rows: u32,
    /// Transformer blocks
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Attention heads
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Width of the residual stream
    #[arg(long, default_value_t = 128)]
    width: usize,
    /// Tokens per window
    #[arg(long, default_value_t = 64)]
    context: usize,
    /// Give the head a matrix of its own instead of the embedding's
    #[arg(long)]
    untied_head: bool,
    /// Largest learning rate
    #[arg(long, value_name = "RATE", default_value_t = 2e-3)]
    learning_rate: f64,
    /// Seed of parameters, batches and delays
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Give up on workers that have not answered after so long
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    max_wait: f64,
    /// Let approximate schemes wait so much longer than they must
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    grace: f64,
    /// Folder for the run [default: a new one under runs/]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Overwrite the run that --out holds
    #[arg(long, requires = "out")]
    force: bool,
    /// Go on with an interrupted run; everything else is as it was
    #[arg(long, value_name = "DIR", conflicts_with_all = PLANNED)]
    resume: Option<PathBuf>,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
    /// Steps between checks of the gradient against the whole batch, where no equal run is at hand
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    audit_every: u64,
    /// Steps after which `--scheme auto` asks the planner again
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(2..))]
    replan_every: u64,
    /// Uncoded steps that `--scheme auto` records each time; of fewer than 20 little can be concluded
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    probe: u64,
    /// Let a worker fail, to see that the run copes: panic@STEP:WORKER or nan@STEP:WORKER
    #[arg(long, value_name = "FAULT")]
    fault: Vec<String>,
    /// Print summary.json to standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

impl TrainArgs {
    /// What the command line asks for; the vocabulary is that of the text.
    fn plan(&self, vocabulary: usize) -> Result<Plan, Failure> {
        let positive = [("--step-seconds", self.step_seconds), ("--learning-rate", self.learning_rate), ("--max-wait", self.max_wait)];
        if let Some((flag, value)) = positive.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            return Err(Failure::Input(anyhow!("{flag} {value}: a number above 0 is needed")));
        }
        let not_negative = [("--grace", self.grace), ("--mu", self.mu)];
        if let Some((flag, value)) = not_negative.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            return Err(Failure::Input(anyhow!("{flag} {value}: a number of 0 or more is needed")));
        }
        if self.probe >= self.replan_every {
            let (probe, block) = (self.probe, self.replan_every);
            return Err(Failure::Input(anyhow!(
                "--probe {probe}: it must be less than --replan-every {block}, or nothing is left to gain"
            )));
        }
        let GptConfig { context, layers, heads, width, .. } = self.shape(vocabulary);
        let model = match &self.init {
            None => GptConfig { vocabulary, context, layers, heads, width, tied: !self.untied_head },
            Some(path) => checkpoint::load_model(path)?.0,
        };
        model.check().or_input()?;
        if model.vocabulary != vocabulary {
            return Err(Failure::Input(anyhow!(
                "the model of --init has {} tokens, the text {vocabulary}: use its tokenizer",
                model.vocabulary
            )));
        }
        let schemes = match (&self.scheme, &self.compare) {
            (None, _) => vec!["uncoded".into(), "groups:s=1".into(), "queue:m=2".into()],
            (Some(scheme), None) => vec![scheme.clone()],
            (Some(scheme), Some(rival)) => vec![rival.clone(), scheme.clone()],
        };
        Ok(Plan {
            schemes,
            workers: self.workers as usize,
            steps: self.steps,
            corpus: absolute(self.corpus.as_ref())?,
            tokenizer: absolute(self.tokenizer.as_ref())?,
            init: absolute(self.init.as_ref())?,
            delays: (!self.no_stragglers).then(|| self.delays.clone()),
            clock: self.clock,
            step_seconds: self.step_seconds,
            micro_batch_rows: self.micro_batch_rows as usize,
            micro_batches: self.micro_batches.unwrap_or(2 * self.workers),
            models: self.models,
            micro_steps: self.micro_steps,
            mu: self.mu,
            reduce: self.reduce,
            late: self.late,
            model,
            optimizer: self.optimizer(),
            seed: self.seed,
            max_wait_seconds: self.max_wait,
            grace_seconds: self.grace,
            checkpoint_every: self.checkpoint_every,
            audit_every: self.audit_every,
            replan_every: self.replan_every,
            probe: self.probe,
            faults: self.fault.clone(),
        })
    }

    fn shape(&self, vocabulary: usize) -> GptConfig {
        let Self { context, layers, heads, width, untied_head, .. } = *self;
        GptConfig { vocabulary, context, layers, heads, width, tied: !untied_head }
    }

    fn optimizer(&self) -> AdamWConfig {
        AdamWConfig {
            learning_rate: self.learning_rate,
            warmup_steps: (self.steps / 5).clamp(1, 100),
            decay_steps: self.steps,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
        }
    }
}

fn absolute(path: Option<&PathBuf>) -> Result<Option<PathBuf>, Failure> {
    path.map(std::path::absolute).transpose().or_input()
}

/// Set by the first Ctrl-C (or a polite termination); the second one ends the process at once.
fn interruption() -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\ninterrupted: finishing the step and saving (again to stop at once)");
    };
    ctrlc::set_handler(handler).context("cannot catch Ctrl-C").or_work()?;
    Ok(interrupted)
}

pub(super) fn run(args: &TrainArgs) -> Result<(), Failure> {
    let mut session = match &args.resume {
        Some(path) => {
            let folder = RunFolder::open(path)?;
            let plan = Plan::read(&folder.plan())?;
            Session::resume(plan, folder, interruption()?)?
        }
        None => {
            let tokens = plan::tokens(args.corpus.as_deref(), args.tokenizer.as_deref())?;
            let plan = args.plan(tokens.vocabulary)?;
            let batches = plan.batches(tokens)?;
            Session::begin(plan, batches, (args.out.as_deref(), args.force), interruption()?)?
        }
    };
    session.introduce(args.json);
    let summary = session.execute()?;
    if args.json {
        println!("{}", serde_json::to_string(&summary).or_work()?);
        return Ok(());
    }
    println!("\n{}", summary.table());
    for table in summary.legs_tables() {
        println!("{table}");
    }
    println!("{}", wrapped(&summary.sentence(session.plan())));
    let path = session.folder().path().display();
    if summary.interrupted {
        println!("\nInterrupted. Go on with: codedgrad train --resume {path}");
    } else {
        println!("\nThe run is in {path}: summary.json, run.jsonl, loss.svg, steps.svg and the models.");
    }
    Ok(())
}

/// Breaks a text into lines of at most 80 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 80 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines.join("\n")
}
