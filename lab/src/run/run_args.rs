//! What `codedgrad-lab train` is told of a run beside its schemes and who is late.

use super::attack::{AttackArgs, LanesArgs};
use super::checkpoint;
use super::limits::{DEVICES, MODELS, PARTS};
use super::plan::{
    ClockKind, GIVE_UP_AFTER, Injected, LateKind, Plan, ReduceKind, Source, Timing, Training,
    Upkeep,
};
use super::resume::Changes;
use crate::trainer::{Compute, GptConfig, Precision, Processor};
use anyhow::anyhow;
use clap::Args;
use codedgrad::run::{Jobs, Limits, Shape};
use codedgrad::train::{AdamWConfig, Auto};
use codedgrad_shell::auto::{AutoSteps, probe, replan_every};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::families::RunScheme;
use codedgrad_shell::output::alert;
use codedgrad_shell::pool::{PoolArgs, Seats};
use codedgrad_shell::suspicious;
use codedgrad_shell::units::{at_least, count, seconds, size, whole};
use std::path::{Path, PathBuf};

/// Flags that a resumed run takes from its folder.
const PLANNED: [&str; 31] = [
    "corpus",
    "tokenizer",
    "init",
    "clock",
    "step_seconds",
    "models",
    "micro_steps",
    "mu",
    "reduce",
    "late",
    "micro_batches",
    "micro_batch_rows",
    "layers",
    "heads",
    "width",
    "context",
    "untied_head",
    "device",
    "gpus_per_worker",
    "peak_tflops",
    "precision",
    "learning_rate",
    "seed",
    "out",
    "force",
    "replan_every",
    "probe",
    "fault",
    "attack",
    "attackers",
    "lanes",
];

/// Steps where nothing else is said.
const STEPS: u64 = 150;
/// Limits where nothing else is said.
const CHECKPOINT_EVERY: u64 = 50;
const AUDIT_EVERY: u64 = 10;

/// What is trained, how long and on what.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Text to train on: a file or a folder of files; embedded text if not given
    #[arg(long, value_name = "FILE|DIR", help_heading = "Data")]
    pub(crate) corpus: Option<PathBuf>,
    /// Hugging Face tokenizer.json; without it, tokens are bytes
    #[arg(long, value_name = "FILE", help_heading = "Data", hide_short_help = true)]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Start from a model saved by an earlier run (a folder with model.safetensors and config.json)
    #[arg(long, value_name = "DIR", help_heading = "Data", hide_short_help = true)]
    pub(crate) init: Option<PathBuf>,
    /// Optimizer steps of each run, and of each model [default: 150]
    ///
    /// A resumed run may be given more, or fewer if it has not made them. The learning rate goes on
    /// as it was first planned: once the steps of the first plan are over, it stays at a tenth of
    /// --learning-rate.
    #[arg(long, value_parser = at_least(1u64))]
    pub(crate) steps: Option<u64>,
    /// Real time, or modelled time in which nobody waits
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
    /// Schemes over rounds wait for everybody until (1+mu) times the first answer
    #[arg(
        long,
        default_value_t = 1.0,
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) mu: f64,
    /// Where results are added up
    #[arg(
        long,
        value_enum,
        default_value_t = ReduceKind::Tree,
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) reduce: ReduceKind,
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
    /// Give up on workers that have not answered after so long [default: 60]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        help_heading = "Time and limits",
        hide_short_help = true
    )]
    pub(crate) max_wait: Option<f64>,
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// Let approximate schemes wait so much longer than they must [default: 0]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        help_heading = "Time and limits",
        hide_short_help = true
    )]
    pub(crate) grace: Option<f64>,
    /// Steps after which `--scheme auto` records uncoded ones again
    #[arg(
        long,
        value_name = "N",
        default_value_t = Auto::REPLAN_EVERY,
        value_parser = replan_every(),
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) replan_every: u64,
    /// Uncoded steps of which `--scheme auto` tells the planner; of fewer than 20 little can be
    /// concluded
    #[arg(
        long,
        value_name = "N",
        default_value_t = Auto::PROBE,
        value_parser = probe(),
        help_heading = "Batches and schemes",
        hide_short_help = true
    )]
    pub(crate) probe: u64,
    /// Steps between checkpoints [default: 50]
    #[arg(
        long,
        value_name = "N",
        value_parser = at_least(1u64),
        help_heading = "Run folder",
        hide_short_help = true
    )]
    pub(crate) checkpoint_every: Option<u64>,
    /// Refused steps in a row after which the run has diverged: it ends with exit status 1; 0 for
    /// never [default: 5]
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
    /// Go on with an interrupted run, or, with more --steps, with a finished one
    ///
    /// --steps, --workers (another MIN..MAX), --max-wait, --grace, --min-workers, --settle,
    /// --checkpoint-every, --audit-every and --give-up-after may be given again and replace the
    /// plan's; everything else is as it was.
    #[arg(long, value_name = "DIR", conflicts_with_all = PLANNED, help_heading = "Run folder")]
    pub(crate) resume: Option<PathBuf>,
    /// Print summary.json to standard output, and nothing else there
    #[arg(long, help_heading = "Run folder")]
    pub(crate) json: bool,
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
pub(crate) struct Own {
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

    /// Its limit.
    fn longest_wait(&self) -> f64 {
        self.max_wait.unwrap_or(Limits::default().max_wait_seconds)
    }

    /// What a resumed run is told again.
    pub(crate) fn changes(&self, seats: Option<Seats>) -> Result<Changes, Failure> {
        let min_workers = match seats {
            Some(seats) => self.pool.of(seats)?.min_workers,
            None => self.pool.min_workers.map(|workers| workers as usize),
        };
        Ok(Changes {
            steps: self.steps,
            seats,
            max_wait_seconds: self.max_wait,
            grace_seconds: self.grace,
            min_workers,
            settle_seconds: self.pool.settle,
            checkpoint_every: self.checkpoint_every,
            audit_every: self.audit_every,
            give_up_after: self.give_up_after,
        })
    }

    /// What the command line asks for; the vocabulary is that of the text.
    pub(crate) fn plan(&self, vocabulary: usize, own: Own) -> Result<Plan, Failure> {
        let (step_seconds, usual) = (self.step_seconds.unwrap_or(1.0), Limits::default());
        let (workers, pool) = (own.seats.most as usize, self.pool.of(own.seats)?);
        let model = model_of(&self.model, self.init.as_deref(), vocabulary)?;
        let injected = Injected {
            faults: self.fault.clone(),
            attack: self.attack.kind(),
            attackers: self.attack.attackers(&own.schemes, workers, self.seed)?,
        };
        let plan = Plan {
            schemes: own.schemes,
            steps: self.all_steps(),
            source: Source {
                corpus: absolute(self.corpus.as_ref())?,
                tokenizer: absolute(self.tokenizer.as_ref())?,
                init: absolute(self.init.as_ref())?,
            },
            timing: Timing { delays: own.delays, pool: own.pool, clock: self.clock, step_seconds },
            shape: Shape {
                workers,
                units: self.micro_batches.unwrap_or(2 * own.seats.most),
                unit_samples: self.micro_batch_rows as usize,
            },
            jobs: Jobs { models: self.models, micro_steps: self.micro_steps },
            limits: Limits {
                max_wait_seconds: self.longest_wait(),
                // A thread that has ended does not come back.
                return_seconds: 0.0,
                grace_seconds: self.grace.unwrap_or(usual.grace_seconds),
                mu: self.mu,
                min_workers: pool.min_workers,
                settle_seconds: pool.settle_seconds,
                ..usual
            },
            late: self.late,
            training: Training {
                model,
                compute: self.devices.compute(self.micro_batch_rows)?,
                peak_tflops: self.peak_tflops,
                optimizer: self.model.optimizer(self.all_steps()),
                seed: self.seed,
                lanes: self.lanes.lanes(),
            },
            upkeep: Upkeep {
                checkpoint_every: self.checkpoint_every.unwrap_or(CHECKPOINT_EVERY),
                give_up_after: self.give_up_after.unwrap_or(GIVE_UP_AFTER),
                audit_every: self.audit_every.unwrap_or(AUDIT_EVERY),
            },
            auto: AutoSteps { replan_every: self.replan_every, probe: self.probe },
            injected,
            reduce: self.reduce,
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
    use clap::Command;

    /// A flag is either the plan's, or a resumed run may be given it.
    #[test]
    fn a_resumed_run_takes_the_other_flags_from_its_plan() {
        let command = RunArgs::augment_args(Command::new("train"));
        let anew = |flag: &String| CHANGEABLE.contains(&format!("--{}", flag.replace('_', "-")));
        let flags = command.get_arguments().map(|argument| argument.get_id().to_string());
        let own = ["resume", "json"];
        let flags = flags.filter(|flag| !anew(flag) && !own.contains(&flag.as_str()));
        let mut flags: Vec<String> = flags.collect();
        flags.sort_unstable();
        let mut planned = PLANNED.to_vec();
        planned.sort_unstable();
        assert_eq!(flags, planned);
    }
}
