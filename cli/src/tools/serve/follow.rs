//! What a coordinator of others' trainers does at every step: it writes it down and shows it.

use super::Plan;
use super::board::Board;
use super::drain::DrainFile;
use super::events::{Event, Outcome};
use super::record::RecordFile;
use crate::tools::doctor;
use anyhow::Context;
use codedgrad::doctor::RunEvent;
use codedgrad::files::{self, BoundedReader};
use codedgrad::ids::{Step, Worker};
use codedgrad::schedulers::EngineError;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    self, AUTO, Flow, Incident, IncidentKind, Observer, RunError, StepRecord, Stopper, WaitingRound,
};
use codedgrad::transport::RunFacts;
use codedgrad::transport::tcp::{TcpStatus, WorkerStatus};
use codedgrad_shell::clock::{now, unix_seconds};
use codedgrad_shell::events::EventFile;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::folder::DRAIN;
use codedgrad_shell::folder::{JSON_BYTES_MAX, LineFile, RECORD, RECORD_BYTES_MAX, RunFolder};
use codedgrad_shell::layout::Width;
use codedgrad_shell::legs::{LegSummary, legs};
use codedgrad_shell::output::say;
use codedgrad_shell::pool::PoolSummary;
use codedgrad_shell::progress::Progress;
use codedgrad_shell::shared::lock;
use codedgrad_shell::signals::EndRequest;
use codedgrad_shell::steps::{OfWorkers, Spread, StepSummary, late, tell, unverified};
use codedgrad_shell::units::several;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often a thread looks for new workers and for requests to end.
const LOOK: Duration = Duration::from_millis(50);
/// A signal that comes so soon after another is of the same order: `timeout` sends one to the
/// process and one to its group.
pub(crate) const SAME_ORDER: Duration = Duration::from_millis(200);
/// So many steps may be recorded that no worker has applied, when a coordinator dies.
const AGAIN: usize = 2;
/// A worker that has said nothing for so many seconds, though it is asked every second, may hang.
const SILENT: f64 = 4.0;
/// How often it is said who is missing.
const SAY: Duration = Duration::from_secs(5);

/// One line of `run.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    run: usize,
    scheme: &'a str,
    /// Only the trainers know what it is.
    loss: Option<f64>,
    /// Unix time of its commit.
    at: f64,
    #[serde(flatten)]
    record: &'a StepRecord,
}

/// What is read of such a line.
#[derive(Deserialize)]
struct RecordedLine {
    #[serde(flatten)]
    record: StepRecord,
}

/// A file of JSON in a run's folder.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = files::read_text(path, JSON_BYTES_MAX);
    let text = text.with_context(|| format!("cannot read {}", path.display())).or_input()?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is damaged, or of another version", path.display()))
        .or_input()
}

/// The steps of a run that was begun, up to the first line that is no whole one.
pub(super) fn recorded(folder: &RunFolder) -> Result<Vec<StepRecord>, Failure> {
    let lines = folder.recorded(|_: &RecordedLine, _| true)?;
    Ok(lines.into_iter().map(|line| line.record).collect())
}

/// What a run comes to: `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    pub(super) outcome: Outcome,
    /// Whether all steps that were planned are decided.
    complete: bool,
    /// The worker that has ended it before that, if one has.
    ended_by: Option<Worker>,
    scheme: String,
    workers: usize,
    /// Steps that are decided, those before this start counted.
    pub(super) steps: u64,
    steps_planned: u64,
    seconds_per_step: Spread,
    work: f64,
    /// The first step that `run.jsonl` does not have, where it could not be written to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_recorded_from: Option<u64>,
    refused_steps: usize,
    late_worker_rounds: usize,
    /// What steps were computed under, where that was chosen.
    legs: Vec<LegSummary>,
    #[serde(flatten)]
    of_workers: OfWorkers,
    what: RunFacts,
}

/// Looks on beside the run for new workers and for requests to end.
pub(super) struct Look {
    seen: Mutex<ToldFacts>,
    status: Arc<Mutex<TcpStatus>>,
    events: bool,
    workers: usize,
    /// Whether the run has begun.
    begun: AtomicBool,
    over: AtomicBool,
}

/// What was said already.
#[derive(Debug, Default)]
struct ToldFacts {
    epochs: Vec<u32>,
    refused: Vec<Option<String>>,
    there: Option<usize>,
    said: Duration,
    /// Who was connected at the last step.
    connected: BTreeSet<u32>,
}

impl Look {
    pub(super) fn start(
        asked: EndRequest,
        (stopper, status): (Stopper, Arc<Mutex<TcpStatus>>),
        plan: &Plan,
        events: bool,
    ) -> Arc<Self> {
        let look = Arc::new(Self {
            seen: Mutex::new(ToldFacts::default()),
            status,
            events,
            workers: plan.workers,
            begun: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let (watched, patience) = (Arc::clone(&look), plan.told.limits.max_wait());
        thread::spawn(move || {
            let (began, mut asked_at) = (now(), None);
            while !watched.over.load(Ordering::SeqCst) {
                watched.tell_who_comes(began.elapsed());
                if asked.status() > 0 {
                    // Workers finish the current step while they can.
                    let since = asked_at.get_or_insert_with(now).elapsed();
                    if since >= SAME_ORDER {
                        asked.hears_again();
                    }
                    let begun = watched.begun.load(Ordering::SeqCst);
                    if !begun || watched.there() == 0 || since.as_secs_f64() > patience {
                        stopper.stop();
                    }
                }
                thread::sleep(LOOK);
            }
        });
        look
    }

    fn there(&self) -> usize {
        lock(&self.status).connected().len()
    }

    /// Tells who has joined since it was last told.
    fn tell_who_comes(&self, waited: Duration) {
        let there = self.there();
        let mut seen = lock(&self.seen);
        if self.events {
            let epochs: Vec<u32> =
                lock(&self.status).workers.iter().map(|worker| worker.epoch).collect();
            seen.epochs.resize(epochs.len(), 0);
            for (worker, (before, &epoch)) in (0..).zip(seen.epochs.iter_mut().zip(&epochs)) {
                if *before != epoch {
                    *before = epoch;
                    Event::Joined { worker, epoch }.tell();
                }
            }
            drop(seen);
            self.tell_who_is_refused();
        } else if !self.begun.load(Ordering::SeqCst)
            && (seen.there != Some(there) || waited >= seen.said + SAY)
        {
            (seen.there, seen.said) = (Some(there), waited);
            let (workers, waited) = (self.workers, waited.as_secs());
            say!("{there} of {workers} workers are there, after {waited} s");
        }
    }

    /// Tells the launcher who need not be started again.
    fn tell_who_is_refused(&self) {
        let now: Vec<Option<String>> =
            lock(&self.status).workers.iter().map(|worker| worker.refused.clone()).collect();
        let before = std::mem::replace(&mut lock(&self.seen).refused, now.clone());
        let known = before.into_iter().chain(std::iter::repeat(None));
        for (worker, (reason, before)) in (0..).zip(now.into_iter().zip(known)) {
            if let Some(reason) = reason.filter(|reason| before.as_ref() != Some(reason)) {
                Event::Refused { worker, reason }.tell();
            }
        }
    }

    /// The workers of which something holds.
    fn those(&self, which: impl Fn(&WorkerStatus) -> bool) -> BTreeSet<u32> {
        let status = lock(&self.status);
        let workers = (0..).zip(&status.workers).filter(|(_, worker)| which(worker));
        workers.map(|(worker, _)| worker).collect()
    }

    /// A step is decided.
    fn step(&self) {
        let connected = self.those(|worker| worker.connected);
        lock(&self.seen).connected = connected;
    }

    /// The run is over. Those who have heard it before this are not connected any more.
    pub(super) fn over(&self, outcome: Outcome) {
        self.over.store(true, Ordering::SeqCst);
        if self.events {
            self.tell_who_comes(Duration::ZERO);
            let mut connected = lock(&self.seen).connected.clone();
            connected.extend(self.those(|worker| worker.connected));
            // Of who is not connected any more it is known how it was before.
            let silent = self.those(|worker| worker.silent_seconds >= SILENT);
            let connected = connected.difference(&silent).copied().collect();
            Event::Over { outcome, connected }.tell();
        }
    }
}

/// Follows a run.
pub(super) struct Follower<'a> {
    folder: &'a RunFolder,
    board: &'a Board,
    look: &'a Look,
    asked: EndRequest,
    scheme: String,
    plan: Plan,
    facts: RunFacts,
    /// Open once it is known where the run begins.
    record: Option<RecordFile>,
    events: Option<EventFile>,
    bar: Progress,
    drain: DrainFile,
    of_workers: OfWorkers,
    /// Who has ended the run, if a worker has.
    ended_by: Option<Worker>,
    /// First step that is not decided.
    next: u64,
    refusals: Refusals,
}

/// Refused steps, one after the other.
#[derive(Debug, Default)]
struct Refusals {
    /// After how many the run ends; 0: never.
    most: u64,
    in_a_row: u64,
}

impl Refusals {
    /// Takes in a step, of which it may be that the run ends with it.
    fn take(&mut self, record: &StepRecord) -> anyhow::Result<()> {
        self.in_a_row = if record.refused.is_empty() { 0 } else { self.in_a_row + 1 };
        let Self { most, in_a_row } = *self;
        if most == 0 || in_a_row < most {
            return Ok(());
        }
        let (first, last) = (record.step + 1 - in_a_row, record.step);
        anyhow::bail!(
            "steps {first} to {last} had non-finite gradients: the run was aborted by \
             --give-up-after {most}"
        )
    }

    /// What there is to say at the end of refused steps, if there are any.
    fn words(lines: &[StepRecord]) -> Option<String> {
        let mut refused = lines.iter().filter(|line| !line.refused.is_empty());
        let first = refused.next()?.step;
        let (count, all) = (1 + refused.count(), lines.len());
        let were = if count == 1 { "was" } else { "were" };
        Some(format!("{count} of {} {were} refused (first: step {first})", several(all, "step")))
    }
}

impl<'a> Follower<'a> {
    pub(super) fn new(
        plan: &Plan,
        folder: &'a RunFolder,
        board: &'a Board,
        look: &'a Look,
        asked: &EndRequest,
    ) -> Self {
        Self {
            folder,
            board,
            look,
            asked: asked.clone(),
            scheme: plan.told.scheme.to_string(),
            plan: plan.clone(),
            facts: RunFacts::default(),
            record: None,
            events: None,
            bar: Progress::hidden(),
            drain: DrainFile::at(folder.file(DRAIN)),
            of_workers: OfWorkers::default(),
            ended_by: None,
            next: 0,
            refusals: Refusals { most: plan.told.give_up_after, in_a_row: 0 },
        }
    }

    /// It is known what is trained.
    pub(super) fn learns(&mut self, facts: &RunFacts) {
        self.facts = facts.clone();
        if !self.look.events {
            self.bar = Progress::new(self.steps(), [0]);
            self.bar.begin(0, self.scheme.clone());
        }
    }

    fn steps(&self) -> u64 {
        self.facts.steps.unwrap_or(0)
    }

    /// The first step that no state may have from which the run goes on, once it has ended so.
    pub(super) fn differs_from(&self, ended: &Result<train::Outcome, RunError>) -> Option<u64> {
        match ended {
            Err(RunError::Engine(EngineError::Tied { next, .. })) => Some(next.0),
            _ => self.plan.end.differs_from,
        }
    }

    /// Refuses a state in which steps are applied of which it is not known who was right.
    fn goes_on_from(&mut self, step: u64) -> anyhow::Result<()> {
        let Some(first) = self.plan.end.differs_from else { return Ok(()) };
        anyhow::ensure!(
            step <= first,
            "the workers are at step {step}, but their parameters are known to be equal only \
             before step {first}: load a checkpoint with first={first} or less"
        );
        // Known at once: the coordinator may die before the run's end.
        self.plan.end.differs_from = None;
        self.folder.write_plan(&Plan { facts: Some(self.facts.clone()), ..self.plan.clone() })
    }

    /// Has the record go on with a step.
    fn begin(&mut self, step: u64) -> anyhow::Result<()> {
        self.goes_on_from(step)?;
        self.drain.begins(self.plan.workers);
        let before = recorded(self.folder).map_err(told)?;
        let kept = before.iter().take_while(|record| record.step < step).count();
        let again = before.len() - kept;
        if again > AGAIN {
            let aside = format!("run-until-{}.jsonl", before.len());
            let mut record = BoundedReader::open(&self.folder.file(RECORD), RECORD_BYTES_MAX)?;
            io::copy(&mut record, &mut files::create(&self.folder.file(&aside))?)?;
            say!(
                "the workers have come to step {step}: {again} recorded steps are made again, and \
                 stay in {aside}"
            );
        }
        let opened = LineFile::open(&self.folder.file(RECORD), kept).map_err(told)?;
        (self.record, self.next) = (Some(RecordFile::new(opened)), step);
        let mut events = EventFile::open(self.folder, true).map_err(told)?;
        events.begins((0, step), !before.is_empty(), self.board.seats_taken());
        self.events = Some(events);
        self.board.begins(step, self.steps());
        self.look.begun.store(true, Ordering::SeqCst);
        self.bar.go_on_from(step);
        if step > 0 && step < self.steps() && !self.look.events {
            say!("going on from step {step}");
        }
        Ok(())
    }

    fn follow(&mut self, record: &StepRecord) -> anyhow::Result<Flow> {
        let line = Line { run: 0, scheme: &self.scheme, loss: None, at: unix_seconds(), record };
        let file = self.record.as_mut().context("a step before the run's beginning")?;
        file.push(record.step, &line)?;
        self.next = record.step + 1;
        let units = self.facts.units.unwrap_or(0);
        self.board.step(record, units);
        let using = record.under.using.as_ref();
        if let Some(why) = using.and_then(|using| using.why.as_deref()) {
            let step = record.step;
            say!("{AUTO}: step {step}: {why}");
        }
        let applied = using.map_or("applied", |using| &using.scheme);
        let outcome = if record.refused.is_empty() { applied } else { "refused" };
        let step = (record, self.steps());
        let decided = StepSummary::of(&self.scheme, step, late, outcome.into());
        if self.look.events {
            self.look.step();
            self.look.tell_who_comes(Duration::ZERO);
            Event::Step(decided).tell();
        } else {
            self.bar.show(&decided);
        }
        self.refusals.take(record)?;
        if self.asked.status() > 0 && self.next < self.steps() {
            return Ok(Flow::Stop);
        }
        Ok(Flow::Continue)
    }

    /// Whether the last worker to leave was told to.
    pub(super) fn preempted(&self) -> bool {
        self.of_workers.preempted
    }

    /// Writes down what has come of it, and shows that; `why` tells why it is not made to its end.
    pub(super) fn ends(mut self, outcome: Outcome, why: String) -> Result<Summary, Failure> {
        self.bar.finish();
        if let Some(events) = &mut self.events {
            let how = match (outcome, self.ended_by) {
                (Outcome::Finished, Some(by)) => format!("ended by {by}"),
                (Outcome::Finished, None) => "finished".into(),
                (Outcome::Stopped, _) => why,
                (Outcome::Failed, _) => format!("{}{why}", RunEvent::FAILED),
            };
            events.ends((0, self.next), how);
        }
        if let Some(record) = &self.record {
            record.sync().or_work()?;
        }
        let lines = recorded(self.folder)?;
        let mean = |of: &dyn Fn(&StepRecord) -> f64| {
            lines.iter().map(of).sum::<f64>() / lines.len().max(1) as f64
        };
        let complete = self.next > 0 && self.next == self.steps();
        let pool = self
            .board
            .bounds()
            .map(|bounds| PoolSummary::of(bounds, lines.iter(), self.of_workers.changed(0)));
        let summary = Summary {
            outcome,
            complete,
            ended_by: self.ended_by.filter(|_| !complete),
            scheme: self.scheme.clone(),
            workers: self.plan.workers,
            steps: self.next,
            steps_planned: self.steps(),
            seconds_per_step: Spread::of(lines.iter().map(|line| line.seconds).collect()),
            work: mean(&|line| line.work),
            not_recorded_from: self.record.as_ref().and_then(RecordFile::lost),
            refused_steps: lines.iter().filter(|line| !line.refused.is_empty()).count(),
            late_worker_rounds: lines
                .iter()
                .flat_map(|line| &line.rounds)
                .map(|round| late(round).len())
                .sum(),
            legs: legs(&lines),
            of_workers: self.of_workers.in_pool(pool),
            what: self.facts,
        };
        if summary.steps > 0 {
            self.folder.write_json("summary.json", &summary).or_work()?;
            say!("{}", self.board.table(Width::of_stderr()).trim_end());
            let Spread { mean, p50, p95 } = summary.seconds_per_step;
            let by = summary.ended_by.map(|worker| format!(" ({worker} has ended the run)"));
            say!(
                "{} of {}{}, {mean:.3} s per step (p50 {p50:.3}, p95 {p95:.3}); {} has run.jsonl \
                 and summary.json",
                summary.steps,
                several(summary.steps_planned, "step"),
                by.unwrap_or_default(),
                self.folder.path().display()
            );
            if let Some(refused) = Refusals::words(&lines) {
                say!("{refused}");
            }
            if let Some(unverified) = unverified(lines.iter(), &summary.of_workers.faults) {
                say!("{}", unverified.trim_end());
            }
            let (found, command) = doctor::hint(self.folder.path(), 0);
            say!("{found} {command}");
        }
        Ok(summary)
    }
}

/// The error that a failure is of.
fn told(failure: Failure) -> anyhow::Error {
    match failure {
        Failure::Input(error) | Failure::Work(error) | Failure::Replaced(error) => error,
        Failure::Said(status) => anyhow::anyhow!("exit status {status}"),
    }
}

impl Observer for Follower<'_> {
    fn begins(&mut self, step: Step) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.begin(step.0).map_err(|error| format!("{error:#}").into())
    }

    fn step(
        &mut self,
        record: &StepRecord,
        _decoded: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.follow(record).map_err(|error| format!("{error:#}").into())
    }

    fn event(&mut self, happened: &Incident) {
        if let Some(events) = &mut self.events {
            let event = events.happened(0, happened, self.board.process_of(happened));
            if self.look.events {
                Event::Happened(event.into()).tell();
            }
        }
        self.board.happened(happened);
        if let IncidentKind::Ended { by } = happened.what {
            self.ended_by = Some(by);
        }
        tell(&self.scheme, happened);
        self.of_workers.note(0, happened);
    }

    fn drained(&mut self) -> Option<Vec<Worker>> {
        self.drain.changed()
    }

    fn waiting(&mut self, waiting: &WaitingRound) -> Flow {
        self.board.waiting(waiting);
        if self.look.events && waiting.needs_return {
            let workers = waiting.needed.iter().map(|worker| worker.0).collect();
            Event::Needs { workers }.tell();
        }
        // A user who asks the run to end does not wait for a worker's return.
        let ends = self.asked.status() > 0 && waiting.needs_return;
        if ends { Flow::Stop } else { Flow::Continue }
    }
}
