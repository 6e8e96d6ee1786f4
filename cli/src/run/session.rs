//! Carries out the plan of a training run: its schemes one after the other, from a checkpoint if
//! there is one.

use super::checkpoint::{self, Place};
use super::network::{Leg, Team, TransportKind};
use super::observer::{Keeper, Line, RunObserver, in_step};
use super::pictures;
use super::plan::{ClockKind, Made, Plan};
use super::report::{RunSummary, Summary};
use crate::board::Board;
use crate::folder::{LineFile, PLAN, RECORD, RunFolder};
use crate::output::{self, Output, alert};
use crate::steps::FaultLine;
use crate::{Failure, OrInput, OrWork};
use anyhow::{Context, anyhow};
use codedgrad::codes::SchemeSpec;
use codedgrad::train::{AUTO, Outcome, Pace, VirtualClock};
use codedgrad_trainer::{
    Batches, LocalRun, Replica, ReplicaState, Start, Stretch, calibrate, run_in_place,
};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Windows of the validation text on which a model is judged.
const VALIDATION_ROWS: usize = 64;

/// A training run under way.
pub(crate) struct Session {
    plan: Plan,
    specs: Vec<SchemeSpec>,
    folder: RunFolder,
    batches: Batches,
    interrupted: Arc<AtomicBool>,
    /// Lines of each scheme's run so far.
    lines: Vec<Vec<Line>>,
    place: Place,
    /// State at `place`, if it is in the middle of a run.
    state: Option<Vec<ReplicaState>>,
    /// Workers that have joined already.
    team: Option<Team>,
    board: Option<Arc<Board>>,
}

impl Session {
    /// A new run, its folder made and its plan written. Under a wall clock, a step is measured here
    /// if asked.
    pub(crate) fn begin(
        mut plan: Plan,
        batches: Batches,
        out: (Option<&Path>, bool),
        measure: bool,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let specs = plan.specs()?;
        plan.delays()?;
        for spec in &specs {
            plan.local_run(spec)?;
            if let Some(warning) = spec.warning(plan.workers) {
                alert!("warning: {spec}: {warning}");
            }
        }
        let start = plan.fresh_states()?;
        let folder = RunFolder::create(PLAN, out.0, out.1)?;
        let prepared =
            prepare(&mut plan, &specs[0], measure.then_some((&start[0], &batches)), &folder);
        folder.settle(prepared)?;
        let lines = vec![Vec::new(); specs.len()];
        let place = Place { run: 0, next_step: 0 };
        Ok(Self {
            plan,
            specs,
            folder,
            batches,
            interrupted,
            lines,
            place,
            state: None,
            team: None,
            board: None,
        })
    }

    /// A run that was interrupted, as its last checkpoint left it.
    pub(crate) fn resume(
        plan: Plan,
        folder: RunFolder,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let specs = plan.specs()?;
        let batches = plan.batches(plan.tokens()?)?;
        let loaded = checkpoint::load(&folder, &plan.model, plan.models)?;
        let place = loaded.as_ref().map_or(Place { run: 0, next_step: 0 }, |loaded| loaded.place);
        if place.run >= specs.len() || place.next_step > plan.all_steps() {
            return Err(Failure::Input(anyhow!(
                "the checkpoint in {} is not of this plan",
                folder.path().display()
            )));
        }
        let mut lines = vec![Vec::new(); specs.len()];
        for line in read_record(&folder, place)? {
            lines[line.run].push(line);
        }
        let complete = |(run, lines): (usize, &Vec<Line>)| {
            let expected = if run < place.run {
                plan.all_steps()
            } else if run == place.run {
                place.next_step
            } else {
                0
            };
            lines.len() as u64 == expected
        };
        if !lines.iter().enumerate().all(complete) {
            return Err(Failure::Input(anyhow!(
                "{} has not all the steps its checkpoint counts",
                folder.file(RECORD).display()
            )));
        }
        if loaded.as_ref().is_some_and(|loaded| loaded.is_before) {
            checkpoint::put_in_place(&folder).or_work()?;
        }
        let state = loaded.map(|loaded| loaded.states);
        Ok(Self {
            plan,
            specs,
            folder,
            batches,
            interrupted,
            lines,
            place,
            state,
            team: None,
            board: None,
        })
    }

    /// How many steps of the only run are in the record, those after the checkpoint too.
    pub(crate) fn recorded(&self) -> Result<u64, Failure> {
        Ok(read_record(&self.folder, Place { run: 0, next_step: u64::MAX })?.len() as u64)
    }

    /// Goes on from a later step of the only run, in the states of a worker that has come so far.
    pub(crate) fn move_to(
        &mut self,
        next_step: u64,
        states: Vec<ReplicaState>,
    ) -> Result<(), Failure> {
        let place = Place { run: 0, next_step };
        self.lines[0] = read_record(&self.folder, place)?;
        (self.place, self.state) = (place, Some(states));
        Ok(())
    }

    /// Has the only run made by workers that have joined, and shown on a board.
    pub(crate) fn with_team(&mut self, team: Team, board: Arc<Board>) {
        (self.team, self.board) = (Some(team), Some(board));
    }

    pub(crate) fn next_step(&self) -> u64 {
        self.place.next_step
    }

    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }

    /// Whether nothing is left to be trained.
    pub(crate) fn is_complete(&self) -> bool {
        (0..self.specs.len()).all(|run| self.is_done(run))
    }

    fn is_done(&self, run: usize) -> bool {
        let all = self.lines[run].len() as u64 == self.plan.all_steps();
        all && (0..self.plan.models).all(|model| self.model_path(run, model).exists())
    }

    /// The first of its runs.
    pub(crate) fn local(&self) -> Result<LocalRun, Failure> {
        self.local_of(0)
    }

    /// A run, which goes on with what its last steps were computed under if that was chosen.
    fn local_of(&self, run: usize) -> Result<LocalRun, Failure> {
        let local = self.plan.local_run(&self.specs[run])?;
        if self.plan.schemes[run] != AUTO {
            return Ok(local);
        }
        let mut auto = self.plan.auto();
        self.lines[run].iter().for_each(|line| auto.replay(&line.record));
        let scheme = auto.using().scheme.parse().or_input()?;
        Ok(LocalRun { scheme, auto: Some(auto), ..local })
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Says what is going to happen.
    pub(crate) fn introduce(&self, json: bool, output: &mut Output<'_>) -> Result<(), Failure> {
        let Plan { workers, model, micro_batch_rows, micro_batches, steps, step_seconds, .. } =
            &self.plan;
        let (train, validation) = self.batches.sizes();
        let per_step = if self.plan.micro_steps > 1 {
            format!("{} x ", self.plan.micro_steps)
        } else {
            String::new()
        };
        let models = if self.plan.models > 1 {
            format!("{} models in turn, each", self.plan.models)
        } else {
            "model".into()
        };
        let time = match (self.plan.clock, &self.board) {
            (ClockKind::Virtual, _) => format!("step time c: {step_seconds:.3} s (modelled)"),
            (ClockKind::Wall, None) => {
                format!("step time c: {step_seconds:.3} s (uncoded, nobody late, measured)")
            }
            (ClockKind::Wall, _) if self.plan.delays.is_some() => {
                format!("step time c: {step_seconds:.3} s (given)")
            }
            (ClockKind::Wall, _) => "times are as measured, nobody is delayed on purpose".into(),
        };
        let stragglers =
            self.plan.delays().map_or_else(|_| String::new(), |delays| delays.to_string());
        let lines = [
            format!(
                "{workers} workers, {steps} steps of {per_step}{} x {} tokens",
                micro_batch_rows * *micro_batches as usize,
                model.context
            ),
            format!(
                "{models}: {:.2} M parameters, {} layers of width {}",
                model.parameters() as f64 / 1e6,
                model.layers,
                model.width
            ),
            format!("text: {train} tokens for training, {validation} for validation"),
            format!("stragglers: {stragglers}"),
            time,
            format!("folder: {}", self.folder.path().display()),
        ];
        if json {
            lines.iter().for_each(|line| tracing::info!("{line}"));
            return Ok(());
        }
        if output::is_quiet() {
            return Ok(());
        }
        match output.print(format_args!("{}\n", output.width().prose(&lines.join("\n")))) {
            // Whoever reads the beginning only does not want the run to end with it.
            Err(error) if output::is_closed(&error) => Ok(()),
            printed => printed.or_work(),
        }
    }

    /// Runs what is left of the plan and writes everything that comes of it.
    pub(crate) fn execute(&mut self) -> Result<Summary, Failure> {
        let kept = self.lines.iter().map(Vec::len).sum();
        let mut record = LineFile::open(&self.folder.file(RECORD), kept)?;
        let mut validation: Vec<Option<f64>> = Vec::new();
        let mut faults = Vec::new();
        let mut finished = true;
        for run in 0..self.specs.len() {
            let done = self.is_done(run);
            if !finished || done {
                validation.push(if done { Some(self.validate_saved(run)?) } else { None });
                continue;
            }
            let (outcome, loss) = self.one_run(run, &mut record, &mut faults)?;
            finished = outcome == Outcome::Finished;
            validation.push(loss);
        }
        let started = self.lines.iter().take_while(|lines| !lines.is_empty()).count();
        let runs = (0..started)
            .map(|run| RunSummary::of(&self.plan, run, &self.lines[run], validation[run]))
            .collect();
        let summary = Summary::of(&self.plan, runs, &self.lines[..started], faults, !finished);
        self.write_up(&summary, started).or_work()?;
        Ok(summary)
    }

    fn write_up(&self, summary: &Summary, started: usize) -> anyhow::Result<()> {
        let shown = &self.lines[..started];
        self.folder.write_whole("loss.svg", pictures::loss(shown)?.as_bytes())?;
        self.folder
            .write_whole("steps.svg", pictures::steps(shown, self.plan.workers)?.as_bytes())?;
        self.folder.write_json("summary.json", summary)
    }

    fn one_run(
        &mut self,
        run: usize,
        record: &mut LineFile,
        faults: &mut Vec<FaultLine>,
    ) -> Result<(Outcome, Option<f64>), Failure> {
        let local = self.local_of(run)?;
        let team = self.team.take();
        let resumed = if self.place.run == run { self.state.take() } else { None };
        let first = if resumed.is_some() { self.place.next_step } else { 0 };
        let state = match resumed {
            Some(state) => state,
            None => self.plan.fresh_states()?,
        };
        let (earlier, rest) = self.lines.split_at_mut(run);
        let lines = std::mem::take(&mut rest[0]);
        let bar = output::progress_bar(self.plan.all_steps(), &self.plan.schemes[run])
            .with_position(first);
        let replicas = state.iter().map(|state| {
            Replica::on((self.plan.beside(), 0), &self.plan.model, self.plan.optimizer, state)
        });
        let replicas = replicas.collect::<Result<Vec<_>, _>>().or_work()?;
        let baseline = earlier.first().map_or(&[][..], Vec::as_slice);
        let mut observer = RunObserver {
            plan: &self.plan,
            run,
            keeper: Keeper { replicas, batches: &self.batches, loss_weight: local.loss_weight() },
            folder: &self.folder,
            record,
            in_step: in_step(&lines, baseline),
            lines,
            baseline,
            faults: std::mem::take(faults),
            bar,
            looks: self.specs[run].wrong() > 0,
            interrupted: &self.interrupted,
            board: self.board.clone(),
            diverged: None,
            digest: None,
        };
        // All runs of a plan in one memory, whose digests can be compared.
        let runs = self
            .specs
            .iter()
            .map(|spec| self.plan.local_run(spec)?.stays().or_input())
            .collect::<Result<Vec<_>, _>>()?;
        let stays = runs.into_iter().all(|stays| stays);
        let outcome = train((&local, stays), &state, team, &mut observer)?;
        observer.bar.finish_and_clear();
        let RunObserver { lines, faults: met, keeper: Keeper { replicas, .. }, diverged, .. } =
            observer;
        *faults = met;
        let made = lines.len();
        rest[0] = lines;
        if let Some(why) = diverged {
            return Err(Failure::Work(anyhow!("{} {why}", self.plan.schemes[run])));
        }
        let outcome = outcome.with_context(|| self.broke_off(run, made)).or_work()?;
        let loss = if outcome == Outcome::Finished {
            Some(self.save_models(run, &replicas)?)
        } else {
            None
        };
        Ok((outcome, loss))
    }

    /// Says after how many steps a run broke off, and how it can go on.
    fn broke_off(&self, run: usize, made: usize) -> String {
        let (scheme, path) = (&self.plan.schemes[run], self.folder.path().display());
        if !self.folder.outlives_failure() {
            return format!("{scheme} broke off before its first step");
        }
        let kept = checkpoint::last(&self.folder)
            .filter(|place| place.run == run)
            .map_or(0, |place| place.next_step);
        let command = if self.board.is_some() { "coordinator" } else { "train" };
        format!(
            "{scheme} broke off after {made} steps (kept up to step {kept}; `codedgrad {command} \
             --resume {path}` goes on from there)"
        )
    }

    /// Saves the models that a run ended with, and judges them: the mean of their losses on the
    /// validation text.
    fn save_models(&self, run: usize, replicas: &[Replica]) -> Result<f64, Failure> {
        let mut losses = 0.0;
        for (model, replica) in replicas.iter().enumerate() {
            losses += validation_loss(replica, &self.batches).or_work()?;
            checkpoint::save_model(
                &self.folder,
                &model_name(&self.plan, run, model as u64),
                &self.plan.model,
                replica,
            )
            .or_work()?;
        }
        Ok(losses / self.plan.models as f64)
    }

    fn model_path(&self, run: usize, model: u64) -> std::path::PathBuf {
        self.folder.file(&model_name(&self.plan, run, model))
    }

    fn validate_saved(&self, run: usize) -> Result<f64, Failure> {
        let mut losses = 0.0;
        for model in 0..self.plan.models {
            let (config, parameters) = checkpoint::load_model(&self.model_path(run, model))?;
            let state = ReplicaState { parameters, ..ReplicaState::fresh(&config, 0) };
            let replica =
                Replica::on((self.plan.beside(), 0), &config, self.plan.optimizer, &state)
                    .or_work()?;
            losses += validation_loss(&replica, &self.batches).or_work()?;
        }
        Ok(losses / self.plan.models as f64)
    }
}

/// Writes the plan into its folder. Under a wall clock, a step is measured before, in a state if
/// there is one.
fn prepare(
    plan: &mut Plan,
    spec: &SchemeSpec,
    measured: Option<(&ReplicaState, &Batches)>,
    folder: &RunFolder,
) -> Result<(), Failure> {
    if let Some((start, batches)) = measured.filter(|_| plan.clock == ClockKind::Wall) {
        let spinner = output::spinner("measuring the compute time of an uncoded step");
        plan.step_seconds = calibrate(&plan.local_run(spec)?, start, batches).or_work()?;
        spinner.finish_and_clear();
    }
    // What a virtual clock gives is the same wherever and whenever it runs.
    plan.made = (plan.clock == ClockKind::Wall).then(Made::now);
    folder.write_plan(plan).or_work()
}

/// Makes a run, or what is left of it, by workers that have joined or by some of its own; how it
/// went, unless it could not be tried.
fn train(
    (local, stays): (&LocalRun, bool),
    states: &[ReplicaState],
    team: Option<Team>,
    observer: &mut RunObserver<'_>,
) -> Result<anyhow::Result<Outcome>, Failure> {
    let (plan, batches) = (observer.plan, observer.keeper.batches);
    let until = plan.all_steps();
    let rounds = observer.lines.iter().rev().find_map(|line| line.record.rounds.last());
    let start = Start {
        states,
        step: observer.lines.len() as u64,
        round: rounds.map_or(0, |round| round.round + 1),
    };
    let pace = pace(plan, observer.lines.last())?;
    if plan.transport == TransportKind::Local {
        let done = run_in_place((local, stays), start, until, batches, pace, observer);
        return Ok(done.map_err(anyhow::Error::new));
    }
    let leg = Leg { run: local, plan, batches, folder: observer.folder, start };
    let team = match team {
        Some(team) => Some(team),
        None => Team::start(&leg, observer.interrupted)?,
    };
    let Some(team) = team else { return Ok(Ok(Outcome::Stopped)) };
    let stretch = Stretch { step: start.step, end: until, round: start.round };
    Ok(team.carry(local, stretch, batches, pace, observer))
}

fn validation_loss(replica: &Replica, batches: &Batches) -> anyhow::Result<f64> {
    Ok(replica.loss(&batches.validation_rows(VALIDATION_ROWS))?)
}

fn model_name(plan: &Plan, run: usize, model: u64) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name = format!("model-{run}-{}", plan.schemes[run].chars().map(plain).collect::<String>());
    if plan.models > 1 { format!("{name}-{model}") } else { name }
}

fn pace(plan: &Plan, last: Option<&Line>) -> Result<Pace, Failure> {
    let (delays, rounds) = plan.delay_rows()?;
    Ok(match plan.clock {
        ClockKind::Wall => Pace::wall(plan.workers, &delays, rounds, plan.step_seconds),
        ClockKind::Virtual => {
            let now = last.map_or(0.0, |line| line.record.committed);
            Pace::modelled(
                plan.workers,
                &delays,
                rounds,
                VirtualClock { step_seconds: plan.step_seconds },
                now,
            )
        }
    })
}

/// The lines of a record up to a place; whatever comes after, or was cut off, is left out.
fn read_record(folder: &RunFolder, place: Place) -> Result<Vec<Line>, Failure> {
    let path = folder.file(RECORD);
    let Ok(file) = std::fs::File::open(&path) else { return Ok(Vec::new()) };
    let mut lines = Vec::new();
    for text in BufReader::new(file).lines() {
        let text = text.with_context(|| format!("cannot read {}", path.display())).or_input()?;
        let Ok(line) = serde_json::from_str::<Line>(&text) else { break };
        if (line.run, line.record.step) >= (place.run, place.next_step) {
            break;
        }
        lines.push(line);
    }
    Ok(lines)
}
