//! What a training run is to do, as kept in its folder: enough to do it again or to go on with it.

use super::checkpoint;
use super::turns::Turns;
use crate::pool_file;
use crate::trainer::{
    Attack, AttackKind, Batches, Compute, Corpus, Fault, FaultKind, GptConfig, Lanes, LocalRun,
    ReplicaState, Tokens,
};
use anyhow::{Context, anyhow};
use clap::ValueEnum;
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::SchemeFacts;
use codedgrad::delays::{Delays, Preset, Trace, TraceReader};
use codedgrad::files::{self, BoundedReader};
use codedgrad::ids::Worker;
use codedgrad::run::{Jobs, Limits, Shape};
use codedgrad::sim::PoolChange;
use codedgrad::train::{AdamWConfig, Auto, RoundRecord};
use codedgrad_shell::clock::time_of_day;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::families::{self, RunScheme};
use codedgrad_shell::folder::JSON_BYTES_MAX;
use codedgrad_shell::input::text_of;
use codedgrad_shell::limits::refused;
use codedgrad_shell::output::alert;
use codedgrad_shell::pool::Bounds;
use codedgrad_shell::steps::late;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Rounds beyond the plan's that have delays of their own, for steps that are begun again.
const SPARE_ROUNDS: u64 = 64;

/// Refused steps in a row after which a run has diverged.
pub(crate) const GIVE_UP_AFTER: u64 = 5;

/// The same of runs that were planned before it could be told.
fn give_up_after() -> u64 {
    GIVE_UP_AFTER
}

/// Where a plan's digest stands in `plan.json`.
const DIGEST: &str = "digest";
/// Fields that it leaves out: what a resumed run may be told again, what has made the plan, and
/// faults on purpose, which are taken out by hand once they have happened.
const NOT_DIGESTED: [&str; 15] = [
    "steps",
    "workers",
    "max_wait_seconds",
    "return_seconds",
    "grace_seconds",
    "min_workers",
    "settle_seconds",
    "checkpoint_every",
    "audit_every",
    "give_up_after",
    "faults",
    "version",
    "command",
    "started",
    DIGEST,
];

/// The digest of those fields of a plan, as they are read from its text, that stay as they are for
/// as long as the run goes on; in hexadecimal digits.
fn digest_of(mut fields: Map<String, Value>) -> serde_json::Result<String> {
    fields.retain(|name, _| !NOT_DIGESTED.contains(&name.as_str()));
    // A field that is not there and one that is null are read alike.
    fields.retain(|_, value| !value.is_null());
    // Their order in the text is none of their content.
    let sorted: BTreeMap<String, Value> = fields.into_iter().collect();
    Ok(format!("{:016x}", xxh3_64(&serde_json::to_vec(&sorted)?)))
}

/// A plan as it is written down.
#[derive(Serialize)]
pub(crate) struct SealedPlan<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    digest: String,
}

/// What time a run goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClockKind {
    /// Real time; injected delays are waited for.
    Wall,
    /// Modelled time; no worker waits, and the record is reproducible to the byte.
    Virtual,
}

/// Where units go that were late in `defer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LateKind {
    /// Into their own step, which is complete some rounds later.
    SameStep,
    /// Into the next step, at its parameters: steps differ in how many samples they have.
    NextStep,
}

/// A training run. In `plan.json` its parts lie flat, beside each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) schemes: Vec<RunScheme>,
    /// Optimizer steps of each run, and of each model.
    pub(crate) steps: u64,
    #[serde(flatten)]
    pub(crate) source: Source,
    #[serde(flatten)]
    pub(crate) timing: Timing,
    #[serde(flatten, with = "ShapeKeys")]
    pub(crate) shape: Shape,
    #[serde(flatten)]
    pub(crate) jobs: Jobs,
    #[serde(flatten)]
    pub(crate) limits: Limits,
    pub(crate) late: LateKind,
    #[serde(flatten)]
    pub(crate) training: Training,
    #[serde(flatten)]
    pub(crate) upkeep: Upkeep,
    #[serde(flatten)]
    pub(crate) injected: InjectedFaults,
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub(crate) made: Option<Provenance>,
    /// How its schemes take turns; else they run one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) turns: Option<Turns>,
}

/// The names that `plan.json` has for a run's shape: its units are micro-batches, of rows of text.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Shape")]
struct ShapeKeys {
    workers: usize,
    #[serde(rename = "micro_batches")]
    units: u32,
    #[serde(rename = "micro_batch_rows")]
    unit_samples: usize,
}

/// The text that is trained on, and the model that is begun with, if not fresh ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Source {
    pub(crate) corpus: Option<PathBuf>,
    pub(crate) tokenizer: Option<PathBuf>,
    pub(crate) init: Option<PathBuf>,
}

impl Source {
    fn tokens(&self) -> Result<Tokens, Failure> {
        tokens(self.corpus.as_deref(), self.tokenizer.as_deref())
    }
}

/// What time a run goes by, and who is late on purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) delays: Option<String>,
    /// The file that says how many workers there are when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<PathBuf>,
    pub(crate) clock: ClockKind,
    /// Uncoded compute time of a step: calibrated under a wall clock, given under a virtual one.
    pub(crate) step_seconds: f64,
}

impl Timing {
    /// Who counts as late in a round: by the delays that are injected, as all are in modelled time,
    /// or else by the answers.
    pub(crate) fn late(&self) -> fn(&RoundRecord) -> Vec<Worker> {
        let injected = self.delays.is_some() || self.clock == ClockKind::Virtual;
        if injected { stragglers } else { late }
    }
}

/// The stragglers of a round in which delays were injected: workers that were held up for more than
/// half the fastest answer's time. Where none are, see [`late`].
pub(super) fn stragglers(record: &RoundRecord) -> Vec<Worker> {
    let fastest = record.arrivals.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    if record.delays.is_empty() || fastest == f64::INFINITY {
        return late(record);
    }
    let held_up = |worker: &Worker| record.delays[worker.index()] > 0.5 * fastest;
    Worker::all(record.arrivals.len()).filter(held_up).collect()
}

/// What is trained, and where that is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Training {
    pub(crate) model: GptConfig,
    /// Where it is computed, how exactly, and what that could do at best.
    #[serde(flatten)]
    pub(crate) compute: Compute,
    #[serde(default)]
    pub(crate) peak_tflops: Option<f64>,
    pub(crate) optimizer: AdamWConfig,
    /// Of parameters, batches and delays.
    pub(crate) seed: u64,
    #[serde(default)]
    pub(crate) lanes: Lanes,
}

impl Training {
    /// Where the replica beside the workers computes: as they do, on one device.
    pub(crate) fn beside(&self) -> Compute {
        Compute { devices_per_worker: 1, ..self.compute }
    }
}

/// How often what is done beside the steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Upkeep {
    pub(crate) checkpoint_every: u64,
    /// Refused steps in a row after which a run ends; 0: never.
    #[serde(default = "give_up_after")]
    pub(crate) give_up_after: u64,
    pub(crate) audit_every: u64,
}

/// What goes wrong on purpose: faults, and what Byzantine workers send and who they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct InjectedFaults {
    pub(crate) faults: Vec<String>,
    #[serde(default)]
    pub(crate) attack: Option<AttackKind>,
    #[serde(default)]
    pub(crate) attackers: Vec<Worker>,
}

impl InjectedFaults {
    pub(crate) fn faults(&self) -> Result<Vec<Fault>, Failure> {
        let fault = |text: &String| text.parse::<Fault>().map_err(refused);
        self.faults.iter().map(fault).collect()
    }

    /// The faults that end a worker in a step or after it, as they were given.
    pub(crate) fn panics_since(&self, step: u64) -> Vec<&str> {
        let panics = |text: &&String| {
            let fault = text.parse::<Fault>();
            fault.is_ok_and(|it| it.kind == FaultKind::Panic && it.step >= step)
        };
        self.faults.iter().filter(panics).map(String::as_str).collect()
    }

    fn attack(&self, seed: u64) -> Option<Attack> {
        let workers = self.attackers.clone();
        self.attack.map(|kind| Attack { kind, workers, seed })
    }
}

/// What has made a plan, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    pub(crate) version: String,
    /// The command line, the program first.
    pub(crate) command: Vec<String>,
    /// In UTC, as RFC 3339 has it.
    pub(crate) started: String,
}

impl Provenance {
    pub(crate) fn now() -> Self {
        let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            command: words.collect(),
            started: humantime::format_rfc3339_seconds(time_of_day()).to_string(),
        }
    }
}

impl Plan {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = files::read_text(path, JSON_BYTES_MAX)
            .with_context(|| format!("cannot read {}", path.display()))
            .or_input()?;
        let not_a_plan = || format!("{} is not a plan of this version", path.display());
        let fields: Map<String, Value> =
            serde_json::from_str(&text).with_context(not_a_plan).or_input()?;
        // Earlier versions told how threads are reached, or had the numbers of `auto` beside its
        // name: their digests are others.
        if ["transport", "replan_every"].iter().any(|old| fields.contains_key(*old)) {
            return Err(Failure::Input(anyhow!("{}: begin a new run", not_a_plan())));
        }
        let program = fields.get("command").and_then(|words| words.get(0)?.as_str());
        for scheme in fields.get("schemes").and_then(Value::as_array).into_iter().flatten() {
            if let Some(text) = scheme.as_str() {
                families::check_known(text, path, program)?;
            }
        }
        let plan: Self = serde_json::from_str(&text).with_context(not_a_plan).or_input()?;
        plan.check().map_err(|failure| failure.asked_by(path))?;
        // Plans of earlier versions have none.
        let written = fields.get(DIGEST).cloned();
        let found = digest_of(fields).or_input()?;
        if written.is_some_and(|digest| digest != found) {
            return Err(Failure::Input(anyhow!(
                "{} was altered since the run began: the digest of what --resume does not change \
                 is {found}, not as when it was written; put it back as it was",
                path.display()
            )));
        }
        Ok(plan)
    }

    /// The digest of what stays as it is for as long as the run goes on.
    pub(crate) fn digest(&self) -> anyhow::Result<String> {
        Ok(digest_of(serde_json::from_str(&serde_json::to_string(self)?)?)?)
    }

    /// The plan with that, as it is written down.
    pub(crate) fn sealed(&self) -> anyhow::Result<SealedPlan<'_>> {
        Ok(SealedPlan { plan: self, digest: self.digest()? })
    }

    pub(crate) fn specs(&self) -> Result<Vec<SchemeSpec>, Failure> {
        let spec = |scheme: &RunScheme| -> Result<SchemeSpec, Failure> {
            let RunScheme::Fixed(spec) = scheme else { return Ok(SchemeSpec::uncoded()) };
            let (mut spec, text) = (spec.clone(), spec.text());
            spec.check_claim(self.shape.workers).or_input()?;
            let natural = self.natural(&spec)?;
            if natural.mixture && self.training.compute.devices_per_worker > 1 {
                return Err(Failure::Input(anyhow!(
                    "{text} computes mixtures on one GPU; leave out --gpus-per-worker"
                )));
            }
            if self.limits.min_workers.is_some()
                && (natural.mixture || self.late == LateKind::NextStep)
            {
                return Err(Failure::Input(anyhow!(
                    "--workers MIN..MAX continues with the workers that are left, which {text} \
                     cannot do in the middle of a run{}",
                    if natural.mixture { "" } else { " with --late next-step" }
                )));
            }
            if self.late == LateKind::NextStep {
                spec = match spec.clone().deferring_to_next_step() {
                    Some(spec) if self.jobs.models * self.jobs.micro_steps == 1 => spec,
                    Some(_) => {
                        return Err(Failure::Input(anyhow!(
                            "--late next-step is for one model without --accumulate"
                        )));
                    }
                    None => spec,
                };
            }
            families::shaped(text, &spec, self.shape, &self.jobs, 0..self.steps)?;
            if let Some(warning) = families::uneven(text, natural.units, self.shape.units) {
                alert!("{warning}");
            }
            Ok(spec)
        };
        let specs = self.schemes.iter().map(spec).collect::<Result<Vec<_>, _>>()?;
        if self.late == LateKind::NextStep && !self.fixed().any(families::defers) {
            let texts: Vec<&str> = self.schemes.iter().map(RunScheme::text).collect();
            return Err(Failure::Input(anyhow!(
                "--late next-step is for defer schemes, and {} is none",
                texts.join(", ")
            )));
        }
        Ok(specs)
    }

    /// Its schemes, without those that are chosen later.
    fn fixed(&self) -> impl Iterator<Item = &SchemeSpec> {
        self.schemes.iter().filter_map(RunScheme::fixed)
    }

    /// With how few workers it may be made and with how many, where these are not the same.
    pub(crate) fn bounds(&self) -> Option<Bounds> {
        Bounds::of(self.limits.min_workers, self.shape.workers)
    }

    /// What chooses the scheme of a run, if something does.
    pub(crate) fn auto(&self, run: usize) -> Option<Auto> {
        let auto = self.schemes[run].auto()?;
        Some(auto.waits(self.timing.clock == ClockKind::Virtual))
    }

    /// Steps of each run, over all models.
    pub(crate) fn all_steps(&self) -> u64 {
        self.steps * self.jobs.models
    }

    /// The first rounds of a run, at least as many as its longest scheme takes if nothing goes
    /// wrong.
    fn rounds(&self) -> u64 {
        // The last steps of a block wait for a scheme's delay, as those of a run do.
        let blocks = self.turns.map_or(1, |turns| turns.blocks(self.all_steps()));
        let more = (blocks - 1) * self.longest_delay() as u64;
        let longest = |spec: &SchemeSpec| {
            let facts = self.natural(spec).ok()?;
            Some(self.local_run(spec).ok()?.rounds(self.all_steps(), &facts))
        };
        self.fixed().filter_map(longest).max().unwrap_or_else(|| self.all_steps())
            + more
            + SPARE_ROUNDS
    }

    /// The longest delay of its schemes, as far as it can be known.
    pub(crate) fn longest_delay(&self) -> usize {
        let delay = |spec: &SchemeSpec| Some(self.natural(spec).ok()?.delay);
        self.fixed().filter_map(delay).max().unwrap_or(0)
    }

    /// How its schemes may take turns: where time is real, and there is
    /// something to compare. `auto` has legs of its own.
    pub(crate) fn possible_turns(&self, measured: bool) -> Option<Turns> {
        let alone = self.schemes.len() < 2 || self.fixed().count() < self.schemes.len();
        if alone || self.timing.clock == ClockKind::Virtual || self.timing.pool.is_some() {
            return None;
        }
        // Several batches of one step are drained at every step anyway.
        let delay = if self.jobs.micro_steps > 1 { 0 } else { self.longest_delay() as u64 };
        Some(Turns::new(delay, self.jobs.models, measured))
    }

    /// The facts of a scheme that cuts batches as it likes best.
    pub(crate) fn natural(&self, spec: &SchemeSpec) -> Result<SchemeFacts, Failure> {
        spec.natural(self.shape.workers).or_input()
    }

    /// Delays for all its rounds, and how many those are.
    pub(crate) fn delay_rows(&self) -> Result<(Delays, usize), Failure> {
        Ok((self.delays()?, self.rounds() as usize))
    }

    /// The workers that come and are lost, if a pool says that.
    fn changes(&self) -> Result<Vec<PoolChange>, Failure> {
        let Some(path) = &self.timing.pool else { return Ok(Vec::new()) };
        let pool = pool_file::read(path, BoundedReader::open)?;
        let (least, most) = (self.limits.min_workers.unwrap_or(1), self.shape.workers);
        if pool.first() > 0 {
            return Err(Failure::Input(anyhow!(
                "{}: the first row is at {} s, where a run begins at 0",
                path.display(),
                pool.first() as f64 / 1e3
            )));
        }
        if pool.least() < least || pool.most() > most {
            return Err(Failure::Input(anyhow!(
                "{}: {} to {} workers, where the run is made by {least} to {most}; say \
                 --workers {}..{}",
                path.display(),
                pool.least(),
                pool.most(),
                pool.least().max(1),
                pool.most().max(most)
            )));
        }
        Ok(pool.changes(self.training.seed))
    }

    pub(crate) fn delays(&self) -> Result<Delays, Failure> {
        let (workers, rounds) = (self.shape.workers, self.rounds() as usize);
        let Some(name) = &self.timing.delays else { return Ok(Delays::None) };
        let path = Path::new(name);
        if Preset::named(name).is_some() || !path.exists() {
            return Delays::for_rounds(name, workers, self.training.seed, rounds).or_input();
        }
        // It is read several times, and again where the run goes on: no pipe is.
        let text = text_of(path, BoundedReader::open).or_input()?;
        let reader = TraceReader::new(text, path, Some(workers)).or_input()?;
        Ok(Delays::Trace(Trace::of(reader, rounds).or_input()?))
    }

    /// Parameters to start from: those of `--init`, else freshly drawn ones; model `m` draws with a
    /// seed higher by `m`.
    pub(crate) fn fresh_states(&self) -> Result<Vec<ReplicaState>, Failure> {
        let fresh = (0..self.jobs.models).map(|model| {
            ReplicaState::fresh(&self.training.model, self.training.seed.wrapping_add(model))
        });
        match &self.source.init {
            None => Ok(fresh.collect()),
            Some(path) => {
                let parameters = checkpoint::load_model(path)?.1;
                Ok(fresh
                    .map(|fresh| ReplicaState { parameters: parameters.clone(), ..fresh })
                    .collect())
            }
        }
    }

    pub(crate) fn tokens(&self) -> Result<Tokens, Failure> {
        self.source.tokens()
    }

    pub(crate) fn batches(&self, tokens: Tokens) -> Result<Batches, Failure> {
        if tokens.vocabulary != self.training.model.vocabulary {
            return Err(Failure::Input(anyhow!(
                "the model has {} tokens, the text {}: use its tokenizer",
                self.training.model.vocabulary,
                tokens.vocabulary
            )));
        }
        let batches =
            Batches::new(tokens, self.training.model.context, self.training.seed).or_input()?;
        let (rows, batch) =
            (batches.sizes().0 / (self.training.model.context + 1), self.shape.samples());
        if rows < batch {
            return Err(Failure::Input(anyhow!(
                "the corpus has {rows} windows of {} tokens for training, fewer than one batch of \
                 {batch}",
                self.training.model.context + 1
            )));
        }
        Ok(batches)
    }

    pub(crate) fn local_run(&self, scheme: &SchemeSpec) -> Result<LocalRun, Failure> {
        Ok(LocalRun {
            scheme: scheme.clone(),
            auto: None,
            shape: self.shape,
            jobs: self.jobs,
            limits: self.limits,
            model: self.training.model,
            compute: self.training.compute,
            optimizer: self.training.optimizer,
            faults: self.injected.faults()?,
            pool: self.changes()?,
            attack: self.injected.attack(self.training.seed),
            lanes: self.training.lanes,
        })
    }
}

/// The tokens of a corpus: the embedded one if none is named, bytes if no tokenizer is.
pub(crate) fn tokens(corpus: Option<&Path>, tokenizer: Option<&Path>) -> Result<Tokens, Failure> {
    let corpus = match corpus {
        None => Corpus::embedded(),
        Some(path) => Corpus::read(path).or_input()?,
    };
    match tokenizer {
        None => Ok(corpus.byte_tokens()),
        Some(path) => corpus.tokens_by(path).or_input(),
    }
}
