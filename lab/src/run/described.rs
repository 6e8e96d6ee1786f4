//! What a worker of `codedgrad run` trains: it says so itself, by its flags, as any other program
//! does, and saves it where it is the one that does.

use super::attack::AttackArgs;
use super::audit::Audit;
use super::checkpoint;
use super::limits::PARTS;
use super::plan::{
    self, ClockKind, GIVE_UP_AFTER, InjectedFaults, LateKind, Plan, Source, Timing, Training,
    Upkeep,
};
use super::run_args::{DeviceArgs, ModelArgs, model_of};
use crate::trainer::{
    Batches, Fault, FaultKind, GptConfig, Lanes, LocalRun, Replica, ReplicaError, ReplicaState,
    StepDone, StepRange, TrainError, WorkerHooks,
};
use clap::Args;
use codedgrad::codes::SchemeSpec;
use codedgrad::ids::{Step, Worker};
use codedgrad::run::{Jobs, Limits, Shape};
use codedgrad::transport::wire::InitialReplica;
use codedgrad::transport::{RunFacts, Start};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::families::RunScheme;
use codedgrad_shell::limits::{WORKERS, refused};
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

/// What is trained.
#[derive(Debug, Args)]
pub(crate) struct DescribedArgs {
    /// Optimizer steps
    #[arg(
        long, value_parser = at_least(1u64), default_value_t = STEPS,
        help_heading = "What is trained"
    )]
    steps: u64,
    /// Micro-batches per batch, the units in which batches are cut [default: two per worker]
    #[arg(
        long, value_name = "N", value_parser = count::<u32>(PARTS),
        help_heading = "What is trained", hide_short_help = true
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
    #[arg(long, value_name = "FAULT", help_heading = "Checks and faults", hide_short_help = true)]
    fault: Vec<String>,
    #[command(flatten)]
    attack: AttackArgs,
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
    /// Let worker 0 compute the whole batch of every N-th step again, once it has applied it, and
    /// say how far the gradients were from that
    #[arg(
        long, value_name = "N", value_parser = at_least(1u64),
        help_heading = "Checks and faults", hide_short_help = true
    )]
    pub(super) audit: Option<u64>,
}

impl DescribedArgs {
    /// What it trains, of a run of so many workers, as far as that is known.
    pub(super) fn described(
        &self,
        (corpus, tokenizer): (Option<&Path>, Option<&Path>),
        workers: Option<u32>,
    ) -> Result<TrainingSetup, Failure> {
        let Some(units) = self.micro_batches.or(workers.map(|workers| workers.saturating_mul(2)))
        else {
            return Err(refused(
                "into how many micro-batches is a batch cut? give --micro-batches, or \
                 CODEDGRAD_WORKERS, of which there are two per worker"
                    .into(),
            ));
        };
        self.devices.compute(self.micro_batch_rows)?.processor.devices().or_input()?;
        let tokens = plan::tokens(corpus, tokenizer)?;
        let text = tokens.digest();
        let model = model_of(&self.model, self.init.as_deref(), tokens.vocabulary)?;
        let plan = self.plan(model, units, workers)?;
        plan.check()?;
        let fresh = plan.fresh_states()?.remove(0);
        let batches = plan.batches(tokens)?;
        let mut run = plan.local_run(&SchemeSpec::uncoded())?;
        run.faults = still_to_come(&run.faults);
        // How many workers there are is the coordinator's affair, and so is the scheme.
        run.shape.workers = 1;
        let begins = xxh3_64(bytemuck::cast_slice(&fresh.parameters));
        let told = told(&plan, text);
        let cut = (run.shape, run.jobs);
        let digest = format!("{:016x}", xxh3_64(format!("{told:?} {cut:?} {begins}").as_bytes()));
        let mut saves = Saves {
            out: self.out.clone(),
            every: self.checkpoint_every,
            steps: plan.steps,
            digest,
            model,
            next: 0,
            repairs: false,
        };
        let state = saves.found()?.unwrap_or(fresh);
        let range = StepRange { step: 0, end: plan.steps, round: 0 };
        let facts = RunFacts {
            dtype: Some("f32".into()),
            layout: Some(xxh3_64(format!("{:?}", model.layout()).as_bytes()) >> 1),
            start: Some(Start {
                step: Step(saves.next),
                digest: xxh3_64(bytemuck::cast_slice(&state.parameters)),
            }),
            settings: told,
            ..RunFacts::of(run.engine(range).or_input()?.config())
        };
        Ok(TrainingSetup { plan, run, batches, facts, state, saves })
    }

    /// As a plan of the lab's own has it, by whose rules it is looked at.
    fn plan(&self, model: GptConfig, units: u32, workers: Option<u32>) -> Result<Plan, Failure> {
        let steps = self.steps;
        if self.attack.kind().is_some() && !self.attack.names_attackers() {
            return Err(refused("--attack: which workers do so? give --attackers too".into()));
        }
        let seats = workers.map_or(*WORKERS.end() as usize, |workers| workers as usize);
        let attackers = self.attack.attackers(&[], seats, self.seed)?;
        let faults = self.fault.iter().filter_map(|text| Some(text.parse::<Fault>().ok()?.worker));
        // How many there are it may not know: at least those that are named.
        let named =
            faults.chain(attackers.iter().copied()).max().map_or(1, |last| last.index() + 1);
        let workers = workers.map_or(named, |workers| workers as usize);
        Ok(Plan {
            schemes: vec![RunScheme::Fixed(SchemeSpec::uncoded())],
            steps,
            source: Source { corpus: None, tokenizer: None, init: self.init.clone() },
            timing: Timing { delays: None, pool: None, clock: ClockKind::Wall, step_seconds: 1.0 },
            shape: Shape { workers, units, unit_samples: self.micro_batch_rows as usize },
            jobs: Jobs { micro_steps: self.accumulate, ..Jobs::default() },
            limits: Limits::default(),
            late: LateKind::SameStep,
            training: Training {
                model,
                compute: self.devices.compute(self.micro_batch_rows)?,
                peak_tflops: None,
                optimizer: self.model.optimizer(steps),
                seed: self.seed,
                lanes: Lanes::default(),
            },
            upkeep: Upkeep {
                checkpoint_every: self.checkpoint_every,
                give_up_after: GIVE_UP_AFTER,
                audit_every: 1,
            },
            injected: InjectedFaults {
                faults: self.fault.clone(),
                attack: self.attack.kind(),
                attackers,
            },
            made: None,
            turns: None,
        })
    }
}

/// What must be the same for all workers beside what a run compares by itself.
fn told(plan: &Plan, text: u64) -> BTreeMap<String, String> {
    let Training { model, compute, optimizer, seed, .. } = &plan.training;
    let told = [
        ("seed", seed.to_string()),
        ("precision", format!("{:?}", compute.precision)),
        ("text", format!("{text:016x}")),
        ("model", format!("{model:?}")),
        ("optimizer", format!("{optimizer:?}")),
    ];
    told.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Faults that were not yet: each start of a worker is for a panic that has come.
fn still_to_come(faults: &[Fault]) -> Vec<Fault> {
    let started = env::var(EPOCH).ok().and_then(|epoch| epoch.parse::<usize>().ok());
    let mut come: BTreeMap<Worker, usize> = BTreeMap::new();
    let mut faults = faults.to_vec();
    faults.sort_by_key(|fault| fault.step);
    faults.retain(|fault| {
        let count = come.entry(fault.worker).or_default();
        *count += usize::from(fault.kind == FaultKind::Panic);
        fault.kind == FaultKind::Nan || *count > started.unwrap_or(0)
    });
    faults
}

/// What a worker trains.
pub(super) struct TrainingSetup {
    pub(super) plan: Plan,
    pub(super) run: LocalRun,
    pub(super) batches: Batches,
    pub(super) facts: RunFacts,
    /// In which it begins.
    pub(super) state: ReplicaState,
    pub(super) saves: Saves,
}

impl TrainingSetup {
    /// Which replica this worker has before it joins.
    pub(super) fn has(&self) -> InitialReplica {
        // Also of a fresh one: a run may have begun with another, which this worker lacks.
        InitialReplica::Below(Step(self.saves.next))
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
    /// Whether the checkpoint that was found is the one before the last, which is damaged.
    repairs: bool,
}

impl Saves {
    /// The first step that is not over for this worker.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// How far the run is, where it is not made to its end.
    pub(super) fn left(&self) -> Option<String> {
        let Self { next, steps, .. } = self;
        (next < steps).then(|| format!("{next} of {steps} steps"))
    }

    /// The state in which an earlier start was, and from now on where it was.
    fn found(&mut self) -> Result<Option<ReplicaState>, Failure> {
        let Some(out) = self.out.clone() else { return Ok(None) };
        let Some(mut loaded) = checkpoint::load(&out, &self.model, 1)? else { return Ok(None) };
        let name = out.display();
        if loaded.plan.as_deref() != Some(&*self.digest) {
            return Err(refused(format!(
                "the checkpoint in {name} is of other flags than these (--micro-batches and -n \
                 among them), or of another text; another --out keeps it"
            )));
        }
        self.repairs = loaded.is_before;
        self.next = loaded.place.next_step;
        if self.next >= self.steps {
            return Err(refused(format!(
                "--steps {}: the run in {name} has made {}; nothing is left to do",
                self.steps, self.next
            )));
        }
        Ok(loaded.states.remove(&0).and_then(|mut states| states.pop()))
    }

    /// A step is over.
    fn after(&mut self, done: StepDone<'_>) -> Result<(), TrainError> {
        self.next = done.next;
        let is_last = self.next == self.steps;
        if !done.saves || !(is_last || self.next.is_multiple_of(self.every)) {
            return Ok(());
        }
        self.save(done.replicas, is_last).map_err(|error| TrainError::Beside(error.into()))
    }

    fn save(&mut self, replicas: &[Replica], is_last: bool) -> anyhow::Result<()> {
        let Some(out) = &self.out else { return Ok(()) };
        // Before the checkpoint, after which nothing is left to do.
        if let (true, Some(replica)) = (is_last, replicas.first()) {
            let folder = out.join(MODEL);
            checkpoint::save_model(&folder, &self.model, replica)?;
            say!("the model is in {}", folder.display());
        }
        if std::mem::take(&mut self.repairs) {
            checkpoint::put_in_place(out)?;
        }
        let states = replicas.iter().map(Replica::state).collect::<Result<Vec<_>, _>>()?;
        checkpoint::save_at(out, self.next, &self.digest, &states)
    }
}

/// What a worker does beside its steps: it saves them, and looks at some.
pub(super) struct SavesAndAudits<'a> {
    pub(super) saves: &'a mut Saves,
    pub(super) audit: Option<Audit<'a>>,
}

impl WorkerHooks for SavesAndAudits<'_> {
    fn applies(
        &mut self,
        step: u64,
        replicas: &[Replica],
        gradient: &dyn Fn() -> Result<Vec<f32>, ReplicaError>,
    ) -> Result<(), TrainError> {
        self.audit.iter_mut().try_for_each(|audit| audit.applies(step, replicas, gradient))?;
        Ok(())
    }

    fn done(&mut self, done: StepDone<'_>) -> Result<(), TrainError> {
        self.saves.after(done)?;
        self.audit.iter_mut().try_for_each(Audit::done)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_comes_once() {
        let fault = |text: &str| text.parse::<Fault>().unwrap();
        let all = ["nan@9:1", "panic@3:1", "panic@20:1", "panic@5:0"].map(fault);
        // No run is in this process's environment: none has come.
        assert_eq!(still_to_come(&all).len(), 4);
        assert_eq!(still_to_come(&all)[0], fault("panic@3:1"));
    }
}
