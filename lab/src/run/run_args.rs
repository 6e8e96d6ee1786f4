//! What `codedgrad-lab train` is told of a run beside its schemes and who is late.

use super::attack::{AttackArgs, LanesArgs};
use super::checkpoint;
use super::limits::{DEVICES, MODELS, PARTS};
use super::plan::{
    ClockKind, GIVE_UP_AFTER, InjectedFaults, LateKind, Plan, Source, Timing, Training, Upkeep,
};
use super::resume::Changes;
use crate::trainer::{Compute, GptConfig, Precision, Processor};
use anyhow::anyhow;
use clap::{Args, Command, Id};
use codedgrad::run::{Jobs, Limits, Shape};
use codedgrad::train::AdamWConfig;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::families::RunScheme;
use codedgrad_shell::limits::LimitArgs;
use codedgrad_shell::output::alert;
use codedgrad_shell::pool::Seats;
use codedgrad_shell::suspicious;
use codedgrad_shell::units::{at_least, count, seconds, size, whole};
use std::path::{Path, PathBuf};

/// Steps where nothing else is said.
const STEPS: u64 = 150;
/// Limits where nothing else is said.
const CHECKPOINT_EVERY: u64 = 50;
const AUDIT_EVERY: u64 = 10;

/// What is trained, how long and on what.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) planned: PlanSettings,
    /// Optimizer steps of each run, and of each model [default: 150]
    ///
    /// A resumed run may be given more, or fewer if it has not made them. The learning rate goes on
    /// as it was first planned: once the steps of the first plan are over, it stays at a tenth of
    /// --learning-rate.
    #[arg(long, value_parser = at_least(1u64))]
    pub(crate) steps: Option<u64>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Extra seconds an approximate scheme waits for more results [default: 0]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        help_heading = "Time and limits",
        hide_short_help = true
    )]
    pub(crate) grace: Option<f64>,
    /// Steps between checkpoints [default: 50]
    #[arg(
        long,
        value_name = "N",
        value_parser = at_least(1u64),
        help_heading = "Run folder",
        hide_short_help = true
    )]
    pub(crate) checkpoint_every: Option<u64>,
    /// Abort (exit 1) after this many consecutive non-finite steps; 0: never [default: 5]
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u64>,
        help_heading = "Time and limits",
        hide_short_help = true
    )]
    pub(crate) give_up_after: Option<u64>,
    /// Steps between checks of the gradient against the whole batch, where no equal run is compared
    /// [default: 10]
    #[arg(
        long,
        value_name = "N",
        value_parser = at_least(1u64),
        help_heading = "Checks and faults",
        hide_short_help = true
    )]
    pub(crate) audit_every: Option<u64>,
    /// Go on with an interrupted run, or, with more --steps, with a finished one
    ///
    /// --steps, --workers (another MIN..MAX), --max-wait, --grace, --settle,
    /// --checkpoint-every, --audit-every and --give-up-after may be given again and replace the
    /// plan's; everything else is as it was.
    #[arg(long, value_name = "DIR", conflicts_with_all = planned(), help_heading = "Run folder")]
    pub(crate) resume: Option<PathBuf>,
    /// Print summary.json to standard output, and nothing else there
    #[arg(long, help_heading = "Run folder")]
    pub(crate) json: bool,
}

/// What a resumed run has from its folder.
#[derive(Debug, Args)]
pub(crate) struct PlanSettings {
    /// Text to train on: a file or a folder of files; embedded text if not given
    #[arg(long, value_name = "FILE|DIR", help_heading = "Data")]
    pub(crate) corpus: Option<PathBuf>,
    /// Hugging Face tokenizer.json; without it, tokens are bytes
    #[arg(long, value_name = "FILE", help_heading = "Data", hide_short_help = true)]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Start from a model saved by an earlier run (a folder with model.safetensors and config.json)
    #[arg(long, value_name = "DIR", help_heading = "Data", hide_short_help = true)]
    pub(crate) init: Option<PathBuf>,
    /// Real time, or modelled time in which no worker waits
    #[arg(long, value_enum, default_value_t = ClockKind::Wall, help_heading = "Time and limits")]
    pub(crate) clock: ClockKind,
    /// Compute time of an uncoded step: the unit of the presets of delays, and the length of a
    /// modelled step [default: 1 under the virtual clock; measured under the wall clock, again at
    /// every turn where schemes take turns]
    #[arg(
        long, value_name = "SECONDS", value_parser = seconds, help_heading = "Time and limits",
        hide_short_help = true
    )]
    pub(crate) step_seconds: Option<f64>,
    /// Interleaved models, one step of each after the other: schemes over T+1 rounds need T+1 of
    /// them
    #[arg(
        long,
        value_name = "M",
        default_value_t = 1,
        value_parser = count::<u64>(MODELS),
        help_heading = "Batches and schemes"
    )]
    pub(crate) models: u64,
    /// Batches whose gradients are accumulated to one step of one model; `queue` over the whole
    /// step (--micro-batches instead) is the alternative to compare with
    #[arg(
        long = "accumulate",
        value_name = "A",
        default_value_t = 1,
        value_parser = count::<u64>(PARTS),
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) micro_steps: u64,
    /// Multi-round schemes wait for stragglers until (1 + mu) x the fastest worker's time
    #[arg(
        long,
        default_value_t = 1.0,
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) mu: f64,
    /// Which step the late units of `defer` count for
    #[arg(
        long,
        value_enum,
        default_value_t = LateKind::SameStep,
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) late: LateKind,
    /// Micro-batches per batch, the units in which batches are cut [default: two per worker]
    #[arg(
        long,
        value_name = "N",
        value_parser = count::<u32>(PARTS),
        help_heading = "Batches and schemes"
    )]
    pub(crate) micro_batches: Option<u32>,
    /// Windows of text per micro-batch
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = count::<u32>(PARTS),
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) micro_batch_rows: u32,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// What all devices together could do at best, in 10^12 floating point operations per second,
    /// to tell which part of that (MFU) the run made
    /// [default: the data sheet's, for known GPUs]
    #[arg(
        long,
        value_name = "TFLOPS",
        value_parser = positive,
        help_heading = "Devices",
        hide_short_help = true
    )]
    pub(crate) peak_tflops: Option<f64>,
    /// Seed of parameters, batches and delays
    #[arg(
        long,
        value_parser = whole::<u64>,
        default_value_t = 1,
        help_heading = "Data",
        hide_short_help = true
    )]
    pub(crate) seed: u64,
    /// Let a worker fail, to see that the run copes: panic@STEP:WORKER or nan@STEP:WORKER; where
    /// schemes take turns, one that panicked is back at the next
    #[arg(long, value_name = "FAULT", help_heading = "Checks and faults", hide_short_help = true)]
    pub(crate) fault: Vec<String>,
    #[command(flatten)]
    pub(crate) attack: AttackArgs,
    #[command(flatten)]
    pub(crate) lanes: LanesArgs,
    /// Folder for the run [default: a new one under runs/]
    #[arg(long, value_name = "DIR", help_heading = "Run folder")]
    pub(crate) out: Option<PathBuf>,
    /// Overwrite the run that --out holds
    #[arg(long, requires = "out", help_heading = "Run folder", hide_short_help = true)]
    pub(crate) force: bool,
}

/// The flags that a resumed run is not given again.
fn planned() -> Vec<Id> {
    let command = PlanSettings::augment_args(Command::new("planned"));
    command.get_arguments().map(|argument| argument.get_id().clone()).collect()
}

/// The model, and how fast it learns.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ModelArgs {
    /// Transformer blocks
    #[arg(
        long,
        value_parser = size,
        default_value_t = 4,
        help_heading = "Model",
        hide_short_help = true
    )]
    pub(crate) layers: usize,
    /// Attention heads
    #[arg(
        long,
        value_parser = size,
        default_value_t = 4,
        help_heading = "Model",
        hide_short_help = true
    )]
    pub(crate) heads: usize,
    /// Width of the residual stream
    #[arg(
        long,
        value_parser = size,
        default_value_t = 128,
        help_heading = "Model",
        hide_short_help = true
    )]
    pub(crate) width: usize,
    /// Tokens per window
    #[arg(
        long,
        value_parser = size,
        default_value_t = 64,
        help_heading = "Model",
        hide_short_help = true
    )]
    pub(crate) context: usize,
    /// Give the head a matrix of its own instead of the embedding's
    #[arg(long, help_heading = "Model", hide_short_help = true)]
    pub(crate) untied_head: bool,
    /// Largest learning rate
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 2e-3,
        help_heading = "Model",
        hide_short_help = true
    )]
    pub(crate) learning_rate: f64,
}

impl ModelArgs {
    /// The model for a text of so many tokens.
    pub(super) fn shape(&self, vocabulary: usize) -> GptConfig {
        let Self { context, layers, heads, width, untied_head, .. } = *self;
        GptConfig { vocabulary, context, layers, heads, width, tied: !untied_head }
    }

    /// The optimizer of a run of so many steps.
    pub(super) fn optimizer(&self, steps: u64) -> AdamWConfig {
        AdamWConfig {
            learning_rate: self.learning_rate,
            warmup_steps: (steps / 5).clamp(1, 100),
            decay_steps: steps,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
        }
    }
}

/// Where it is computed, and how exactly.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Where workers compute the model; cuda needs a program built with feature `candle-cuda`
    #[arg(
        long,
        value_enum,
        default_value_t = DeviceKind::Cpu,
        help_heading = "Devices"
    )]
    pub(crate) device: DeviceKind,
    /// GPUs of each worker, which share the windows of its micro-batches; their gradients are added
    /// up by NCCL (feature `nccl`) or else copied to the first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = count::<u32>(DEVICES),
        help_heading = "Devices",
        hide_short_help = true
    )]
    pub(crate) gpus_per_worker: u32,
    /// Numbers in which matrices are multiplied, f32 or bf16 (tensor cores; slower on CPUs);
    /// parameters, gradients, norms and losses are f32 either way
    #[arg(
        long,
        value_name = "f32|bf16",
        default_value = "f32",
        help_heading = "Devices",
        hide_short_help = true
    )]
    pub(crate) precision: Precision,
}

impl DeviceArgs {
    /// For micro-batches of so many windows.
    pub(super) fn compute(&self, rows: u32) -> Result<Compute, Failure> {
        let gpus = self.gpus_per_worker;
        if gpus > 1 && self.device == DeviceKind::Cpu {
            return Err(Failure::Input(anyhow!(
                "--gpus-per-worker {gpus}: workers have no GPUs without --device cuda"
            )));
        }
        if gpus > rows {
            return Err(Failure::Input(anyhow!(
                "--gpus-per-worker {gpus}: they share the windows of a micro-batch, and \
                 --micro-batch-rows is {rows}"
            )));
        }
        Ok(Compute {
            processor: self.device.processor(),
            precision: self.precision,
            devices_per_worker: gpus as usize,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceKind {
    Cpu,
    Cuda,
}

impl DeviceKind {
    fn processor(self) -> Processor {
        match self {
            Self::Cpu => Processor::Cpu,
            Self::Cuda => Processor::Cuda,
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("{text:?} is not a number above 0"))
}

/// What a command adds to the shared flags.
pub(crate) struct CommandInputs {
    pub(crate) schemes: Vec<RunScheme>,
    pub(crate) seats: Seats,
    pub(crate) delays: Option<String>,
    pub(crate) pool: Option<PathBuf>,
}

impl RunArgs {
    /// The steps of a run that is begun.
    fn all_steps(&self) -> u64 {
        self.steps.unwrap_or(STEPS)
    }

    /// What a resumed run is told again.
    pub(crate) fn changes(&self, seats: Option<Seats>) -> Changes {
        Changes {
            steps: self.steps,
            seats,
            limits: self.limits,
            grace_seconds: self.grace,
            checkpoint_every: self.checkpoint_every,
            audit_every: self.audit_every,
            give_up_after: self.give_up_after,
        }
    }

    /// What the command line asks for; the vocabulary is that of the text.
    pub(crate) fn plan(&self, vocabulary: usize, own: CommandInputs) -> Result<Plan, Failure> {
        let (planned, workers) = (&self.planned, own.seats.most as usize);
        let model = model_of(&planned.model, planned.init.as_deref(), vocabulary)?;
        let injected = InjectedFaults {
            faults: planned.fault.clone(),
            attack: planned.attack.kind(),
            attackers: planned.attack.attackers(&own.schemes, workers, planned.seed)?,
        };
        let plan = Plan {
            schemes: own.schemes,
            steps: self.all_steps(),
            source: Source {
                corpus: absolute(planned.corpus.as_ref())?,
                tokenizer: absolute(planned.tokenizer.as_ref())?,
                init: absolute(planned.init.as_ref())?,
            },
            timing: Timing {
                delays: own.delays,
                pool: own.pool,
                clock: planned.clock,
                step_seconds: planned.step_seconds.unwrap_or(1.0),
            },
            shape: Shape {
                workers,
                units: planned.micro_batches.unwrap_or(2 * own.seats.most),
                unit_samples: planned.micro_batch_rows as usize,
            },
            jobs: Jobs { models: planned.models, micro_steps: planned.micro_steps },
            limits: Limits {
                max_wait_seconds: self.limits.max_wait(),
                // A thread that has ended does not come back.
                return_seconds: 0.0,
                grace_seconds: self.grace.unwrap_or_default(),
                mu: planned.mu,
                min_workers: own.seats.min_workers(),
                settle_seconds: self.limits.settle(),
                ..Limits::default()
            },
            late: planned.late,
            training: Training {
                model,
                compute: planned.devices.compute(planned.micro_batch_rows)?,
                peak_tflops: planned.peak_tflops,
                optimizer: planned.model.optimizer(self.all_steps()),
                seed: planned.seed,
                lanes: planned.lanes.lanes(),
            },
            upkeep: Upkeep {
                checkpoint_every: self.checkpoint_every.unwrap_or(CHECKPOINT_EVERY),
                give_up_after: self.give_up_after.unwrap_or(GIVE_UP_AFTER),
                audit_every: self.audit_every.unwrap_or(AUDIT_EVERY),
            },
            injected,
            made: None,
            turns: None,
        };
        plan.check()?;
        let delays = plan.timing.delays.iter();
        for warning in delays.flat_map(|it| suspicious::warnings(it, workers)) {
            alert!("{warning}");
        }
        Ok(plan)
    }
}

/// The model of the flags, or that of `--init`, for a text of so many tokens.
pub(super) fn model_of(
    told: &ModelArgs,
    init: Option<&Path>,
    vocabulary: usize,
) -> Result<GptConfig, Failure> {
    let model = match init {
        None => told.shape(vocabulary),
        Some(path) => checkpoint::load_model(path)?.0,
    };
    model.check().or_input()?;
    if model.vocabulary != vocabulary {
        return Err(Failure::Input(anyhow!(
            "the model of --init has {} tokens, the text {vocabulary}: use its tokenizer",
            model.vocabulary
        )));
    }
    Ok(model)
}

pub(super) fn absolute(path: Option<&PathBuf>) -> Result<Option<PathBuf>, Failure> {
    path.map(std::path::absolute).transpose().or_input()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::resume::CHANGEABLE;

    /// A flag is either the plan's, or a resumed run may be given it.
    #[test]
    fn a_resumed_run_takes_the_other_flags_from_its_plan() {
        let command = RunArgs::augment_args(Command::new("train"));
        let planned = planned();
        let given = command.get_arguments().filter(|flag| !planned.contains(flag.get_id()));
        let given =
            given.filter_map(|flag| flag.get_long()).filter(|it| !["resume", "json"].contains(it));
        let given: Vec<&str> = given.collect();
        assert!(given.iter().all(|flag| CHANGEABLE.contains(&format!("--{flag}"))), "{given:?}");
        // --workers is the command's own.
        assert_eq!(given.len() + 1, CHANGEABLE.matches("--").count(), "{given:?}");
    }
}
