//! Carries out the plan of a training run, its schemes in turns or one after the other, from a
//! checkpoint if there is one.

use super::carry::{run_clock, train};
use super::checkpoint::{self, Place, States};
use super::observer::{Baseline, Files, ReferenceReplicas, RunObserver, TurnState};
use super::pictures;
use super::plan::{ClockKind, Plan, Provenance, Timing};
use super::record::{self, Line};
use super::report::{RunSummary, Summary};
use super::resume::{self, Changes};
use super::turns::Turn;
use crate::trainer::{Batches, LocalRun, Replica, ReplicaState, calibrate};
use anyhow::{Context, anyhow};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::doctor::RunEvent;
use codedgrad::train::Outcome;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::folder::{PLAN, RECORD, RunFolder};
use codedgrad_shell::itself::{self, quoted};
use codedgrad_shell::output::{self, Output, alert, say};
use codedgrad_shell::progress::Progress;
use codedgrad_shell::steps::OfWorkers;
use codedgrad_shell::units::several;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Windows of the validation text on which a model is judged.
const VALIDATION_ROWS: usize = 64;
/// Short enough for a bar of 80 columns.
const TIMES_UNCODED: &str = "timing an uncoded step";

/// A training run under way.
pub(crate) struct Session {
    plan: Plan,
    specs: Vec<SchemeSpec>,
    folder: RunFolder,
    batches: Batches,
    interrupted: Arc<AtomicBool>,
    /// Lines of each scheme's run so far.
    lines: Vec<Vec<Line>>,
    /// What the runs go on from that have begun: where schemes take turns all of them, else the one
    /// that is under way.
    states: States,
}

/// Steps of one run, made one after the other: all that are left, or a block.
struct Block {
    run: usize,
    /// One past its last step.
    until: u64,
    /// Where schemes take turns.
    turn: Option<Turn>,
}

/// What is open while a session trains.
struct Work {
    files: Files,
    /// Runs that have begun, or gone on, since it was opened.
    begun: BTreeSet<usize>,
    of_workers: OfWorkers,
    bar: Progress,
    /// For all rounds, and how many those are.
    delays: (Delays, usize),
    /// Of the runs that have ended.
    validation: Vec<Option<f64>>,
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
            if let Some(warning) = spec.warning(plan.shape.workers) {
                alert!("warning: {spec}: {warning}");
            }
            let bounds = plan.bounds();
            let warning = bounds.and_then(|bounds| bounds.warning(spec, plan.shape.units));
            warning.into_iter().for_each(|warning| alert!("{warning}"));
        }
        let start = plan.fresh_states()?;
        let folder = RunFolder::create(PLAN, out.0, out.1)?;
        let prepared =
            prepare(&mut plan, &specs[0], measure.then_some((&start[0], &batches)), &folder);
        folder.settle(prepared)?;
        let lines = vec![Vec::new(); specs.len()];
        Ok(Self { plan, specs, folder, batches, interrupted, lines, states: States::new() })
    }

    /// A run that was interrupted, as its last checkpoint left it, or one that goes on beyond its
    /// end.
    pub(crate) fn resume(
        (plan, changes): (Plan, Changes),
        folder: RunFolder,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let specs = plan.specs()?;
        let batches = plan.batches(plan.tokens()?)?;
        let loaded = checkpoint::load(folder.path(), &plan.training.model, plan.jobs.models)?;
        let of_plan = loaded.as_ref().and_then(|loaded| loaded.plan.as_deref());
        if let Some(of_plan) = of_plan
            && of_plan != plan.digest().or_work()?
        {
            return Err(Failure::Input(anyhow!(
                "the checkpoint in {} is not of this plan: {} was altered since it was written",
                folder.path().display(),
                folder.plan().display()
            )));
        }
        let (place, states, is_before) = loaded.map_or_else(
            || (Place::default(), States::new(), false),
            |loaded| (loaded.place, loaded.states, loaded.is_before),
        );
        let all_steps = plan.all_steps();
        let in_turns = !place.made.is_empty();
        let other = if in_turns {
            plan.turns.is_none() || place.made.len() != specs.len()
        } else {
            plan.turns.is_some() && !states.is_empty()
        };
        let beyond = (0..specs.len()).any(|run| place.made_by(run, all_steps) > all_steps);
        if other || beyond || place.run >= specs.len() {
            return Err(Failure::Input(anyhow!(
                "the checkpoint in {} is not of this plan",
                folder.path().display()
            )));
        }
        let mut lines = vec![Vec::new(); specs.len()];
        for line in record::read(&folder, &place)? {
            if let Some(lines) = lines.get_mut(line.run) {
                lines.push(line);
            }
        }
        let complete =
            |(run, lines): (usize, &Vec<Line>)| lines.len() as u64 == place.made_by(run, all_steps);
        if !lines.iter().enumerate().all(complete) {
            let (record, there) = (folder.file(RECORD), lines.iter().map(Vec::len).sum::<usize>());
            return Err(Failure::Input(anyhow!(
                "{} has not all the steps its checkpoint counts (whole lines: {there}): put it \
                 back as it was, or remove the checkpoint; the run then goes on from the one \
                 before, or begins again",
                record.display()
            )));
        }
        if is_before {
            checkpoint::put_in_place(folder.path()).or_work()?;
        }
        let mut session = Self { plan, specs, folder, batches, interrupted, lines, states };
        session.change(&changes)?;
        Ok(session)
    }

    /// Goes by another plan from now on, and has the folder know it.
    fn change(&mut self, changes: &Changes) -> Result<(), Failure> {
        let plan = changes.applied(&self.plan);
        plan.check()?;
        if plan == self.plan {
            return Ok(());
        }
        let made = |(run, lines): (usize, &Vec<Line>)| {
            (lines.len() as u64, self.states.contains_key(&run))
        };
        if let Some(seats) = changes.seats {
            let records = self.lines.iter().flatten().map(|line| &line.record);
            seats.again(self.plan.shape.workers, records)?;
        }
        resume::check_steps(&self.plan, plan.steps, self.lines.iter().enumerate().map(made))?;
        self.specs = plan.specs()?;
        if plan.steps > self.plan.steps {
            self.put_models_aside().or_work()?;
        }
        plan.sealed().and_then(|sealed| self.folder.write_plan(&sealed)).or_work()?;
        self.plan = plan;
        Ok(())
    }

    /// Keeps the models that its runs ended with under names of their own, so that none is taken
    /// for what a longer run ends with.
    fn put_models_aside(&self) -> anyhow::Result<()> {
        let models = 0..self.plan.jobs.models;
        for (run, model) in
            (0..self.specs.len()).flat_map(|run| models.clone().map(move |m| (run, m)))
        {
            let name = model_name(&self.plan, run, model);
            let (path, steps) = (self.folder.file(&name), self.plan.steps);
            if path.exists() {
                // Killed in the middle of this, or begun again since: the newer one is the run's.
                let aside = self.folder.file(&format!("{name}-step-{steps}"));
                if aside.exists() {
                    std::fs::remove_dir_all(&aside)
                        .with_context(|| format!("cannot replace {}", aside.display()))?;
                }
                std::fs::rename(&path, aside)
                    .with_context(|| format!("cannot rename {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Whether nothing is left to be trained.
    pub(crate) fn is_complete(&self) -> bool {
        (0..self.specs.len()).all(|run| self.is_done(run))
    }

    /// Says so if nothing is left to be trained.
    pub(crate) fn say_if_finished(&self) {
        if self.is_complete() {
            let steps = self.plan.steps;
            let goes_on = (0..self.specs.len()).all(|run| self.states.contains_key(&run));
            let how = if goes_on { "; --steps M, with M above that, trains on" } else { "" };
            say!("already finished: {}{how}", several(steps, "step"));
        }
    }

    fn is_done(&self, run: usize) -> bool {
        let all = self.lines[run].len() as u64 == self.plan.all_steps();
        all && (0..self.plan.jobs.models).all(|model| self.model_path(run, model).exists())
    }

    /// A run, which goes on with what its last steps were computed under if that was chosen.
    fn local_of(&self, run: usize) -> Result<LocalRun, Failure> {
        let local = self.plan.local_run(&self.specs[run])?;
        let Some(mut auto) = self.plan.auto(run) else { return Ok(local) };
        self.lines[run].iter().for_each(|line| auto.replay(&line.record));
        let using = auto.using().scheme;
        families::check_known(&using, &self.folder.plan(), None)?;
        let scheme = families::scheme(&using).or_input()?;
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
        let Plan { shape, steps, timing: Timing { step_seconds, .. }, training, .. } = &self.plan;
        let (workers, model) = (shape.workers, &training.model);
        let (train, validation) = self.batches.sizes();
        let per_step = if self.plan.jobs.micro_steps > 1 {
            format!("{} x ", self.plan.jobs.micro_steps)
        } else {
            String::new()
        };
        let models = if self.plan.jobs.models > 1 {
            format!("{} interleaved models, each", self.plan.jobs.models)
        } else {
            "model".into()
        };
        let time = match self.plan.timing.clock {
            ClockKind::Virtual => format!("step time c: {step_seconds:.3} s (modelled)"),
            ClockKind::Wall => {
                let how = match self.plan.turns {
                    Some(turns) if turns.measured => ", measured again at every turn",
                    Some(_) => ", given",
                    // Whether it was given or measured before the run began.
                    None => "",
                };
                format!("step time c: {step_seconds:.3} s (uncoded, no worker late{how})")
            }
        };
        let order = self.plan.turns.map_or_else(String::new, |turns| {
            format!("schemes take turns, {} each", several(turns.block, "step"))
        });
        let stragglers =
            self.plan.delays().map_or_else(|_| String::new(), |delays| delays.to_string());
        let lines = [
            format!(
                "{}, {} of {per_step}{} x {}",
                several(workers, "worker"),
                several(*steps, "step"),
                shape.samples(),
                several(model.context, "token")
            ),
            format!(
                "{models}: {:.2} M parameters, {} of width {}",
                model.parameters() as f64 / 1e6,
                several(model.layers, "layer"),
                model.width
            ),
            format!("text: {train} tokens for training, {validation} for validation"),
            format!("stragglers: {stragglers}"),
            time,
            order,
            format!("folder: {}", self.folder.path().display()),
        ];
        let lines: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
        if json {
            lines.iter().for_each(|line| say!("{line}"));
            return Ok(());
        }
        if output::is_quiet() {
            return Ok(());
        }
        match output.print(format_args!("{}\n", output.width().prose(&lines.join("\n")))) {
            // A reader of the beginning only does not want the run to end with it.
            Err(error) if output::is_closed(&error) => Ok(()),
            printed => printed.or_work(),
        }
    }

    /// Runs what is left of the plan and writes everything that comes of it.
    pub(crate) fn execute(&mut self) -> Result<Summary, Failure> {
        let made = self.made();
        let kept = made.iter().sum::<u64>() as usize;
        let timed = self.plan.timing.clock == ClockKind::Wall;
        let mut work = Work {
            files: Files::open((&self.folder, self.plan.digest().or_work()?), kept, timed)?,
            begun: BTreeSet::new(),
            of_workers: OfWorkers::default(),
            bar: Progress::new(self.plan.all_steps(), made),
            delays: self.plan.delay_rows()?,
            validation: vec![None; self.specs.len()],
        };
        let trained = self.train_all(&mut work);
        work.bar.finish();
        trained?;
        let Work { of_workers, mut validation, .. } = work;
        for (run, loss) in validation.iter_mut().enumerate() {
            if loss.is_none() && self.is_done(run) {
                *loss = Some(self.validate_saved(run)?);
            }
        }
        let started = self.lines.iter().take_while(|lines| !lines.is_empty()).count();
        let runs = (0..started)
            .map(|run| {
                let changed = of_workers.changed(run);
                RunSummary::of(&self.plan, run, &self.lines[run], validation[run], changed)
            })
            .collect();
        let summary = Summary::of(&self.plan, runs, &self.lines, of_workers, !self.is_complete());
        self.write_up(&summary, started).or_work()?;
        Ok(summary)
    }

    /// The steps that each run has made.
    fn made(&self) -> Vec<u64> {
        self.lines.iter().map(|lines| lines.len() as u64).collect()
    }

    /// Trains until nothing is left, or a signal interrupts it.
    fn train_all(&mut self, work: &mut Work) -> Result<(), Failure> {
        while let Some(block) = self.next_block() {
            let outcome = self.one_block(&block, work)?;
            if outcome != Outcome::Finished {
                break;
            }
            if block.turn.is_some() && self.interrupted.load(Ordering::Relaxed) {
                // The block's last step was decided before the signal came, and saved nothing.
                self.save_between(&block, work).and_then(|()| work.files.finish()).or_work()?;
                break;
            }
        }
        Ok(())
    }

    /// Saves the states of all runs at the end of a block.
    fn save_between(&self, block: &Block, work: &mut Work) -> anyhow::Result<()> {
        let place = Place::in_turn(block.run, self.made());
        work.files.save(&place, || Ok(self.states.clone()))
    }

    /// What is to be made next.
    fn next_block(&self) -> Option<Block> {
        let (all_steps, runs) = (self.plan.all_steps(), 0..self.specs.len());
        let not_done = |run: &usize| !self.is_done(*run);
        let Some(turns) = self.plan.turns else {
            let run = runs.clone().find(not_done)?;
            return Some(Block { run, until: all_steps, turn: None });
        };
        let turn = turns.current(self.lines.iter().map(Vec::as_slice), all_steps);
        let until = turn.steps.end;
        let behind = |run: &usize| (self.lines[*run].len() as u64) < until;
        // A run that was killed before its models were saved has made all steps.
        let run = runs.clone().find(behind).or_else(|| runs.clone().find(not_done))?;
        Some(Block { run, until, turn: Some(turn) })
    }

    /// The step time by which a block's delays go: where schemes take turns it is measured once per
    /// turn, at its beginning.
    fn step_seconds(&self, block: &Block, bar: &Progress) -> Result<f64, Failure> {
        let measured = self.plan.turns.is_some_and(|turns| turns.measured);
        let states = self.states.get(&0).filter(|_| measured).zip(block.turn.as_ref());
        match states {
            Some((_, Turn { step_seconds: Some(seconds), .. })) => Ok(*seconds),
            Some((states, Turn { number: 1.., .. })) => {
                bar.say(TIMES_UNCODED);
                calibrate(&self.plan.local_run(&self.specs[0])?, &states[0], &self.batches)
                    .or_work()
            }
            _ => Ok(self.plan.timing.step_seconds),
        }
    }

    /// What a bar says of a block.
    fn title(&self, block: &Block) -> String {
        let (scheme, count) = (&self.plan.schemes[block.run], self.specs.len());
        let number = block.run + 1;
        match (&block.turn, self.plan.turns) {
            (Some(turn), Some(turns)) => {
                let all = turns.count(turn, self.plan.all_steps());
                // Which run of how many it is, the steps say: those of a bar are all runs'.
                format!("turn {}/{all} {scheme}", turn.number + 1)
            }
            _ if count > 1 => format!("{scheme} ({number} of {count})"),
            _ => scheme.to_string(),
        }
    }

    fn write_up(&self, summary: &Summary, started: usize) -> anyhow::Result<()> {
        let shown = &self.lines[..started];
        self.folder.write_whole("loss.svg", pictures::loss(shown)?.as_bytes())?;
        self.folder.write_whole(
            "steps.svg",
            pictures::steps(shown, self.plan.shape.workers)?.as_bytes(),
        )?;
        self.folder.write_json("summary.json", summary)
    }

    /// The states that a run goes on from: fresh ones for one that has made no step, and for no
    /// other.
    fn states_of(&mut self, run: usize) -> Result<Vec<ReplicaState>, Failure> {
        let made = self.lines[run].len();
        match self.states.remove(&run) {
            Some(states) => Ok(states),
            None if made == 0 => self.plan.fresh_states(),
            None => Err(Failure::Work(anyhow!(
                "{} has made {}, and the state after that is not kept",
                self.plan.schemes[run],
                several(made, "step")
            ))),
        }
    }

    fn one_block(&mut self, block: &Block, work: &mut Work) -> Result<Outcome, Failure> {
        let run = block.run;
        let local = self.local_of(run)?;
        work.bar.begin(run, self.title(block));
        let step_seconds = self.step_seconds(block, &work.bar)?;
        let states = self.states_of(run)?;
        let lines = std::mem::take(&mut self.lines[run]);
        let replicas = states.iter().map(|state| {
            Replica::on(
                (self.plan.training.beside(), 0),
                &self.plan.training.model,
                self.plan.training.optimizer,
                state,
            )
        });
        let replicas = replicas.collect::<Result<Vec<_>, _>>().or_work()?;
        let first = if run > 0 { &self.lines[0][..] } else { &[] };
        if work.begun.insert(run) {
            work.files.events.begins((run, lines.len() as u64), !lines.is_empty(), None);
        }
        let in_turn = block.turn.as_ref().map(|turn| TurnState {
            number: turn.number,
            step_seconds,
            made: self.made(),
            others: self.states.iter().map(|(run, states)| (*run, &states[..])).collect(),
        });
        let mut observer = RunObserver {
            plan: &self.plan,
            run,
            reference: ReferenceReplicas {
                replicas,
                batches: &self.batches,
                loss_weight: local.loss_weight(),
            },
            files: &mut work.files,
            baseline: Baseline::new(first, &lines),
            lines,
            in_turn,
            of_workers: std::mem::take(&mut work.of_workers),
            bar: &mut work.bar,
            looks: self.specs[run].byzantine() > 0,
            interrupted: &self.interrupted,
            diverged: None,
        };
        // All runs of a plan in one memory, whose digests can be compared.
        let runs = self
            .specs
            .iter()
            .map(|spec| self.plan.local_run(spec)?.stays().or_input())
            .collect::<Result<Vec<_>, _>>()?;
        let stays = runs.into_iter().all(|stays| stays);
        let run_clock = run_clock(&self.plan, &work.delays, step_seconds, observer.lines.last());
        let range = (&states[..], block.until, run_clock);
        let outcome = train((&local, stays), range, &mut observer).map_err(anyhow::Error::new);
        let cut_short = outcome.is_ok() && (observer.lines.len() as u64) < block.until;
        let saved = if cut_short { observer.save_rest() } else { Ok(()) };
        let RunObserver {
            lines,
            of_workers,
            reference: ReferenceReplicas { replicas, .. },
            diverged,
            ..
        } = observer;
        work.of_workers = of_workers;
        let made = lines.len();
        let ended = made as u64 == self.plan.all_steps();
        let goes_on = matches!(outcome, Ok(Outcome::Finished)) && !ended && !cut_short;
        // What is said of the last checkpoint must be true.
        let saved = saved.and_then(|()| if goes_on { Ok(()) } else { work.files.finish() });
        let outcome = outcome.and_then(|outcome| saved.map(|()| outcome));
        let how = match &outcome {
            Ok(Outcome::Finished) if cut_short => Some("ended by a worker".into()),
            Ok(Outcome::Finished) => ended.then(|| "finished".into()),
            Ok(Outcome::Stopped) => Some("stopped by a signal".into()),
            Ok(Outcome::Left) => Some("ended by its workers".into()),
            Ok(Outcome::Preempted) => Some("all workers were told to leave".into()),
            Err(error) => Some(format!("{}{error:#}", RunEvent::FAILED)),
        };
        if let Some(how) = how {
            work.files.events.ends((run, made as u64), how);
        }
        let outcome = outcome.with_context(|| self.broke_off(run, made)).or_work();
        self.lines[run] = lines;
        if let Some(why) = diverged {
            return Err(Failure::Work(anyhow!("{} {why}", self.plan.schemes[run])));
        }
        let outcome = outcome?;
        if cut_short {
            // A worker has ended it, if no signal has: it goes on by --resume alone.
            return Ok(Outcome::Stopped);
        }
        if outcome == Outcome::Finished && ended {
            work.validation[run] = Some(self.save_models(run, &replicas)?);
        }
        if block.turn.is_some() {
            let states = replicas.iter().map(Replica::state).collect::<Result<_, _>>();
            self.states.insert(run, states.or_work()?);
        }
        Ok(outcome)
    }

    /// Says after how many steps a run broke off, and how it can go on.
    fn broke_off(&self, run: usize, made: usize) -> String {
        let (scheme, path) = (&self.plan.schemes[run], self.folder.path().display());
        let after = several(made, "step");
        if self.folder.is_moved() {
            return format!(
                "{scheme} broke off after {after}, since {path} was moved; `codedgrad-lab \
                 train --resume` with its new name goes on from its last checkpoint"
            );
        }
        if !self.folder.outlives_failure() {
            return match made {
                0 => format!("{scheme} broke off before its first step"),
                _ => format!("{scheme} broke off after {after}, of which nothing is left"),
            };
        }
        let kept = checkpoint::last(&self.folder)
            .map_or(0, |place| place.made_by(run, self.plan.all_steps()));
        let panics = self.plan.injected.panics_since(kept);
        let with = if panics.is_empty() {
            String::new()
        } else {
            let panics = panics.join(" --fault ");
            format!(", with --fault {panics} as before; a new run without --fault avoids that")
        };
        format!(
            "{scheme} broke off after {after} (kept up to step {kept}; `{} train \
             --resume {}` goes on from there{with})",
            itself::lab(),
            quoted(&path.to_string())
        )
    }

    /// Saves the models that a run ended with, and judges them: the mean of their losses on the
    /// validation text.
    fn save_models(&self, run: usize, replicas: &[Replica]) -> Result<f64, Failure> {
        let mut losses = 0.0;
        for (model, replica) in replicas.iter().enumerate() {
            losses += validation_loss(replica, &self.batches).or_work()?;
            let folder = self.folder.file(&model_name(&self.plan, run, model as u64));
            checkpoint::save_model(&folder, &self.plan.training.model, replica).or_work()?;
        }
        Ok(losses / self.plan.jobs.models as f64)
    }

    fn model_path(&self, run: usize, model: u64) -> std::path::PathBuf {
        self.folder.file(&model_name(&self.plan, run, model))
    }

    fn validate_saved(&self, run: usize) -> Result<f64, Failure> {
        let mut losses = 0.0;
        for model in 0..self.plan.jobs.models {
            let (config, parameters) = checkpoint::load_model(&self.model_path(run, model))?;
            let state = ReplicaState { parameters, ..ReplicaState::fresh(&config, 0) };
            let replica = Replica::on(
                (self.plan.training.beside(), 0),
                &config,
                self.plan.training.optimizer,
                &state,
            )
            .or_work()?;
            losses += validation_loss(&replica, &self.batches).or_work()?;
        }
        Ok(losses / self.plan.jobs.models as f64)
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
    if let Some((start, batches)) = measured.filter(|_| plan.timing.clock == ClockKind::Wall) {
        let spinner = output::spinner(TIMES_UNCODED);
        plan.timing.step_seconds = calibrate(&plan.local_run(spec)?, start, batches).or_work()?;
        spinner.finish_and_clear();
    }
    // What a virtual clock gives is the same wherever and whenever it runs.
    plan.made = (plan.timing.clock == ClockKind::Wall).then(Provenance::now);
    plan.sealed().and_then(|sealed| folder.write_plan(&sealed)).or_work()
}

fn validation_loss(replica: &Replica, batches: &Batches) -> anyhow::Result<f64> {
    Ok(replica.loss(&batches.validation_rows(VALIDATION_ROWS))?)
}

fn model_name(plan: &Plan, run: usize, model: u64) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name =
        format!("model-{run}-{}", plan.schemes[run].text().chars().map(plain).collect::<String>());
    if plan.jobs.models > 1 { format!("{name}-{model}") } else { name }
}
