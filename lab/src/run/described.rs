//! What a worker of `codedgrad run` trains: it says so itself, by its flags, as any other program
//! does, and saves it where it is the one that does.

use super::checkpoint;
use super::limits::PARTS;
use super::plan;
use super::run_args::{DeviceArgs, ModelArgs, model_of};
use crate::trainer::{
    Batches, Fault, GptConfig, LocalRun, Replica, ReplicaState, StepDone, StepRange, TrainError,
};
use anyhow::anyhow;
use clap::Args;
use codedgrad::codes::SchemeSpec;
use codedgrad::ids::Step;
use codedgrad::run::{Jobs, Shape};
use codedgrad::transport::wire::Has;
use codedgrad::transport::{RunFacts, Start};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::limits::refused;
use codedgrad_shell::output::say;
use codedgrad_shell::units::{at_least, count, whole};
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// What `codedgrad run` tells a worker: how often it was started again.
const EPOCH: &str = "CODEDGRAD_EPOCH";
/// Where nothing else is said.
const STEPS: u64 = 150;
const CHECKPOINT_EVERY: u64 = 50;
/// The folder of the model in that of a run.
const MODEL: &str = "model";

/// What is trained, where `codedgrad run` or `codedgrad serve` coordinates.
#[derive(Debug, Args)]
pub(crate) struct DescribedArgs {
    /// Optimizer steps of the run that `codedgrad run` or `codedgrad serve` coordinates: all that
    /// is trained is then said here, the same for all workers [default under `codedgrad run`: 150]
    #[arg(
        long, value_parser = at_least(1u64), conflicts_with = "join",
        help_heading = "What is trained"
    )]
    pub(super) steps: Option<u64>,
    /// Micro-batches per batch, the units in which batches are cut [default: two per worker]
    #[arg(
        long, value_name = "N", value_parser = count::<u32>(PARTS),
        help_heading = "What is trained"
    )]
    micro_batches: Option<u32>,
    /// Windows of text per micro-batch
    #[arg(
        long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(PARTS),
        help_heading = "What is trained", hide_short_help = true
    )]
    micro_batch_rows: u32,
    /// Batches whose gradients are accumulated to one step
    #[arg(
        long, value_name = "A", default_value_t = 1,
        value_parser = count::<u64>(PARTS), help_heading = "What is trained",
        hide_short_help = true
    )]
    accumulate: u64,
    /// Start from a model saved by an earlier run (a folder with model.safetensors and config.json)
    #[arg(long, value_name = "DIR", help_heading = "Data", hide_short_help = true)]
    init: Option<PathBuf>,
    /// Seed of parameters and batches
    #[arg(
        long, value_parser = whole::<u64>, default_value_t = 1, help_heading = "Data",
        hide_short_help = true
    )]
    seed: u64,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Let a worker fail, to see that the run copes: panic@STEP:WORKER or nan@STEP:WORKER
    #[arg(long, value_name = "FAULT", help_heading = "What is trained", hide_short_help = true)]
    fault: Vec<String>,
    /// Folder for checkpoints and the model, which one worker writes; a run that was cut off goes
    /// on from there
    #[arg(long, value_name = "DIR", help_heading = "What is trained")]
    out: Option<PathBuf>,
    /// Steps between checkpoints
    #[arg(
        long, value_name = "N", default_value_t = CHECKPOINT_EVERY, value_parser = at_least(1u64),
        help_heading = "What is trained", hide_short_help = true
    )]
    checkpoint_every: u64,
}

impl DescribedArgs {
    /// Whether this worker says what is trained: it is started by `codedgrad run`, or told.
    pub(super) fn describes(&self) -> bool {
        self.steps.is_some() || env::var_os(EPOCH).is_some()
    }

    /// What it trains, of a run of so many workers, as far as that is known.
    pub(super) fn described(
        &self,
        (corpus, tokenizer): (Option<&Path>, Option<&Path>),
        workers: Option<u32>,
    ) -> Result<Described, Failure> {
        let steps = self.steps.unwrap_or(STEPS);
        let Some(units) = self.micro_batches.or(workers.map(|workers| 2 * workers)) else {
            return Err(Failure::Input(anyhow!(
                "into how many micro-batches is a batch cut? give --micro-batches, or \
                 CODEDGRAD_WORKERS, of which there are two per worker"
            )));
        };
        let tokens = plan::tokens(corpus, tokenizer)?;
        let text = tokens.digest();
        let model = model_of(&self.model, self.init.as_deref(), tokens.vocabulary)?;
        let started_again = env::var(EPOCH).is_ok_and(|epoch| epoch != "0");
        let faults = self.fault.iter().map(|text| text.parse::<Fault>().map_err(refused));
        let run = LocalRun {
            shape: Shape {
                unit_samples: self.micro_batch_rows as usize,
                ..Shape::new(workers.unwrap_or(1) as usize, units)
            },
            jobs: Jobs { micro_steps: self.accumulate, ..Jobs::default() },
            compute: self.devices.compute(self.micro_batch_rows)?,
            // One that was asked for has happened.
            faults: match started_again {
                true => Vec::new(),
                false => faults.collect::<Result<_, _>>()?,
            },
            ..LocalRun::new(SchemeSpec::uncoded(), 1, model, self.model.optimizer(steps))
        };
        let told = self.told(&run, text);
        let cut = (units, run.shape.unit_samples, run.jobs);
        let all = format!("{told:?} {model:?} {cut:?} {:?}", run.optimizer);
        let digest = format!("{:016x}", xxh3_64(all.as_bytes()));
        let found = self.found(&model, &digest)?;
        let (first, state) = match found {
            Some((first, state)) if first < steps => (first, state),
            Some((first, _)) => {
                return Err(Failure::Input(anyhow!(
                    "--steps {steps}: the run in {} has made {first}; nothing is left to do",
                    self.out.as_deref().unwrap_or(Path::new("")).display()
                )));
            }
            None => (0, self.fresh(&model)?),
        };
        let range = StepRange { step: 0, end: steps, round: 0 };
        let facts = RunFacts {
            dtype: Some("f32".into()),
            layout: Some(xxh3_64(format!("{:?}", model.layout()).as_bytes()) >> 1),
            start: Some(Start {
                step: Step(first),
                digest: xxh3_64(bytemuck::cast_slice(&state.parameters)),
            }),
            settings: told,
            ..RunFacts::of(run.engine(range).or_input()?.config())
        };
        let batches = Batches::new(tokens, model.context, self.seed).or_input()?;
        let (out, every) = (self.out.clone(), self.checkpoint_every);
        let saves = Saves { out, every, steps, digest, model, next: first };
        Ok(Described { run, batches, facts, state, saves })
    }

    /// What must be the same for all workers beside what a run compares by itself.
    fn told(&self, run: &LocalRun, text: u64) -> BTreeMap<String, String> {
        let told = [
            ("seed", self.seed.to_string()),
            ("learning_rate", self.model.learning_rate.to_string()),
            ("precision", format!("{:?}", run.compute.precision)),
            ("text", format!("{text:016x}")),
        ];
        told.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn fresh(&self, model: &GptConfig) -> Result<ReplicaState, Failure> {
        let fresh = ReplicaState::fresh(model, self.seed);
        Ok(match &self.init {
            None => fresh,
            Some(path) => ReplicaState { parameters: checkpoint::load_model(path)?.1, ..fresh },
        })
    }

    /// Where an earlier start has come to, and in which state.
    fn found(
        &self,
        model: &GptConfig,
        digest: &str,
    ) -> Result<Option<(u64, ReplicaState)>, Failure> {
        let Some(out) = &self.out else { return Ok(None) };
        let Some(mut loaded) = checkpoint::load(out, model, 1)? else { return Ok(None) };
        if loaded.plan.as_deref() != Some(digest) {
            return Err(Failure::Input(anyhow!(
                "the checkpoint in {} is of other flags than these, or of another text; another \
                 --out keeps it",
                out.display()
            )));
        }
        let states = loaded.states.remove(&0).and_then(|mut states| states.pop());
        Ok(states.map(|state| (loaded.place.next_step, state)))
    }
}

/// What a worker trains.
pub(super) struct Described {
    pub(super) run: LocalRun,
    pub(super) batches: Batches,
    pub(super) facts: RunFacts,
    /// In which it begins.
    pub(super) state: ReplicaState,
    pub(super) saves: Saves,
}

impl Described {
    /// Which replica this worker has before it joins.
    pub(super) fn has(&self) -> Has {
        // Also of a fresh one: a run may have begun with another, which this worker lacks.
        Has::Below(Step(self.saves.next))
    }
}

/// What is saved of a run, by the worker that does.
pub(super) struct Saves {
    out: Option<PathBuf>,
    every: u64,
    steps: u64,
    /// Of what is trained.
    digest: String,
    model: GptConfig,
    next: u64,
}

impl Saves {
    /// The first step that is not over for this worker.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// A step is over.
    pub(super) fn after(&mut self, done: StepDone<'_>) -> Result<(), TrainError> {
        self.next = done.next;
        let is_last = self.next == self.steps;
        if !done.saves || !(is_last || self.next.is_multiple_of(self.every)) {
            return Ok(());
        }
        self.save(done.replicas, is_last).map_err(|error| TrainError::After(error.into()))
    }

    fn save(&self, replicas: &[Replica], is_last: bool) -> anyhow::Result<()> {
        let Some(out) = &self.out else { return Ok(()) };
        let states = replicas.iter().map(Replica::state).collect::<Result<Vec<_>, _>>()?;
        checkpoint::save_at(out, self.next, &self.digest, &states)?;
        if let (true, Some(replica)) = (is_last, replicas.first()) {
            let folder = out.join(MODEL);
            checkpoint::save_model(&folder, &self.model, replica)?;
            say!("the model is in {}", folder.display());
        }
        Ok(())
    }
}
