//! The sum of each step that is decoded and not decided: which attempt at it counts, who holds it,
//! and when it is asked for again.
//!
//! A step is committed once its sum would outlive the loss of any one worker: two of the workers
//! that can come to hold it do, with the same bytes, or the one that there is. What a sum is made
//! of is the [engine](crate::schedulers::Engine)'s affair, how it is made the transport's; this
//! stands between them. It alone counts attempts: a sum of the same step that was asked for before
//! is void, and what is still said of it is passed over.

use super::SumId;
use crate::ids::{Step, Summand, Worker, WorkerSet};
use crate::schedulers::{Action, Engine, EngineError, Input, OpenRound, SumFailure};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a step that is computed will be made of, if nothing comes between.
#[derive(Clone, Debug)]
struct ExpectedSum {
    terms: Vec<Summand>,
    /// It cannot be made as it was begun: it is to be begun again, by those who are left.
    failed: bool,
}

impl ExpectedSum {
    /// Whether a step is made of one of the holders of each of its terms: any of them has the same
    /// numbers.
    fn is_of(&self, terms: &[Summand]) -> bool {
        let alike = |(expected, term): (&Summand, &Summand)| {
            expected.weight == term.weight && expected.holders.contains(&term.holders[0])
        };
        self.terms.len() == terms.len() && self.terms.iter().zip(terms).all(alike)
    }
}

/// A sum that is not held yet by enough.
#[derive(Clone, Debug)]
struct AwaitedSum {
    /// Workers of whom two must hold it, or the one that there is. Who comes later is not waited
    /// for: it would hold up a step of which it has no part.
    counted: WorkerSet,
    /// Workers of whose results it is made.
    sources: BTreeSet<Worker>,
    /// One of them is lost: if it comes to nothing, it cannot be made again of the same results.
    orphaned: bool,
    /// Workers that hold it, and the digest that each has.
    holders: Vec<(Worker, u64)>,
}

impl AwaitedSum {
    /// The bytes that two workers hold, or one where no two are left of those that are counted.
    fn agreed(&self) -> Option<u64> {
        // Two, since one worker that holds the sum may be lost before another has it; with one
        // worker left there is no second to ask.
        let enough = self.counted.len().clamp(1, 2);
        let alike = |digest: u64| self.holders.iter().filter(|holder| holder.1 == digest).count();
        self.holders.iter().map(|holder| holder.1).find(|digest| alike(*digest) >= enough)
    }

    /// A worker that holds other bytes than the first holder, if no other worker can still settle
    /// which are right.
    fn disputed(&self) -> Option<Worker> {
        // A worker that is still to report may agree with one of those that differ.
        let all =
            self.counted.iter().all(|worker| self.holders.iter().any(|holder| holder.0 == worker));
        let (first, others) =
            self.holders.split_first().filter(|_| all && self.agreed().is_none())?;
        others.iter().find(|holder| holder.1 != first.1).map(|holder| holder.0)
    }

    /// A worker is lost, or what it has is not finite.
    fn forget(&mut self, worker: Worker) {
        self.counted.remove(worker);
        self.holders.retain(|holder| holder.0 != worker);
    }

    /// Whether it is nowhere any more, or cannot be made, without a worker.
    fn is_lost_without(&self, worker: Worker) -> bool {
        // A sum that another worker holds is safe. One that no worker holds can still be made, if
        // no part of it is this worker's.
        let others = self.holders.iter().any(|holder| holder.0 != worker);
        !others && (!self.holders.is_empty() || self.sources.contains(&worker))
    }
}

/// What has become of the last attempt at a sum.
#[derive(Clone, Debug)]
enum Stage {
    /// Its step is computed.
    Expected(ExpectedSum),
    /// It is asked for.
    Asked(AwaitedSum),
    /// It is held by enough, or void.
    Over,
}

/// The last sum of a step.
#[derive(Clone, Debug)]
struct StepSum {
    id: SumId,
    stage: Stage,
}

impl StepSum {
    /// A worker is lost, and with it what it would have had of the step.
    fn forget_holder(&mut self, worker: Worker) {
        let Stage::Expected(expected) = &mut self.stage else { return };
        for term in &mut expected.terms {
            term.holders.retain(|piece| piece.worker != worker);
        }
        if expected.terms.iter().any(|term| term.holders.is_empty()) {
            self.stage = Stage::Over;
        }
    }
}

/// Of these actions, takes out what is expected of a step that begins again after it: the sum of
/// that name is void before anything is done for it.
pub(super) fn drop_void(first: usize, actions: &mut Vec<Action>) {
    for at in (first..actions.len()).rev() {
        let Action::Expect { step, .. } = actions[at] else { continue };
        if actions[at..].contains(&Action::Restart { step }) {
            actions.remove(at);
        }
    }
}

/// The sums of the steps that are not decided. A driver of an [`Engine`] has it beside that:
///
/// 1. It tells the engine everything by [`StepSums::handle`], which keeps up with what the engine
///    decides, and tells it what has become of sums. The actions of all of it come in one list.
/// 2. For [`Action::Sum`] it has the sum made, by the name that [`StepSums::of`] tells. If the step
///    is made of what was [expected](Action::Expect) before, it is the sum of that name which
///    workers may have begun; where that one failed, it is expected once more.
/// 3. What is said of that sum it tells by [`StepSums::held`], [`StepSums::failed`],
///    [`StepSums::result_not_finite`] or [`StepSums::not_finite`], and has it looked at by
///    [`StepSums::settle`], or with the next event.
/// 4. If nothing happens until [`StepSums::deadline`], it sends [`Input::Tick`].
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::ids::{Job, OrderId, Step, Task, Worker};
/// use codedgrad::run::{RunConfig, Shape};
/// use codedgrad::schedulers::{Action, Engine, Input, Settings};
/// use codedgrad::sums::StepSums;
/// let scheme = "uncoded".parse::<SchemeSpec>()?.scheme(2, 2, 0..1)?;
/// let run = RunConfig::new(Shape::new(2, 2), 1000, 1);
/// let mut sums = StepSums::new(run.limits.max_wait_seconds);
/// let (mut engine, mut actions) = (Engine::new(scheme, run, Settings::default())?, Vec::new());
/// sums.handle(&mut engine, 0.0, Input::Begin, &mut actions)?;
/// for worker in [0, 1] {
///     let task = Task { job: Job(0), piece: worker, plan: 0 };
///     let (order, worker) = (OrderId(u64::from(worker) + 1), Worker(worker));
///     let done = Input::Done { worker, order, task, finite: true, digest: None };
///     sums.handle(&mut engine, 1.0, done, &mut actions)?;
/// }
/// assert!(matches!(actions.last(), Some(Action::Sum { step: Step(0), .. })));
/// let sum = sums.of(Step(0));
/// for worker in [0, 1] {
///     actions.clear();
///     sums.held(Worker(worker), sum, 7);
///     sums.settle(&mut engine, 1.5, &mut actions)?;
///     assert_eq!(actions.is_empty(), worker == 0, "one holder is not enough where there are two");
/// }
/// assert!(matches!(actions[0], Action::Commit { step: Step(0), digest: 7, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepSums {
    max_wait_seconds: f64,
    steps: BTreeMap<Step, StepSum>,
    /// Since when it is waited for holders.
    since: f64,
    /// The step whose sum too few workers held in time once, and when that wait began.
    overdue: Option<(Step, f64)>,
    /// What the engine is still to be told.
    reports: VecDeque<Input>,
}

impl StepSums {
    /// Of a run in which it is waited so long for holders
    /// ([`Limits::max_wait_seconds`](crate::run::Limits::max_wait_seconds)).
    #[must_use]
    pub fn new(max_wait_seconds: f64) -> Self {
        Self {
            max_wait_seconds,
            steps: BTreeMap::new(),
            since: 0.0,
            overdue: None,
            reports: VecDeque::new(),
        }
    }

    /// Tells the engine what has happened, and what that makes of sums; appends what is to be done
    /// ([`Engine::handle`]).
    ///
    /// # Errors
    /// [`EngineError`] when the run cannot go on; neither may be used afterwards.
    pub fn handle(
        &mut self,
        engine: &mut Engine,
        now: f64,
        input: Input,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let first = out.len();
        let input = match input {
            Input::Lost { worker, kept } if !engine.roster().is_lost(worker) => {
                Input::Lost { worker, kept: self.lost(worker, kept) }
            }
            input => input,
        };
        self.tell(engine, now, input, out)?;
        self.settle(engine, now, out)?;
        if input == Input::Tick && engine.is_summing() && now >= self.holders_by() {
            self.overdue(engine, now)?;
            self.settle(engine, now, out)?;
        }
        // Before what follows from the input, such as the tasks of other steps.
        if let Some((step, terms)) = self.fails_early() {
            self.expect(step, &terms);
            out.insert(first, Action::Expect { step, terms });
        }
        drop_void(first, out);
        Ok(())
    }

    /// Tells the engine what has become of sums.
    ///
    /// # Errors
    /// As [`StepSums::handle`].
    pub fn settle(
        &mut self,
        engine: &mut Engine,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        while let Some(report) = self.next_report()? {
            self.tell(engine, now, report, out)?;
        }
        Ok(())
    }

    fn tell(
        &mut self,
        engine: &mut Engine,
        now: f64,
        input: Input,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let was_summing = engine.is_summing();
        let before = out.len();
        engine.handle(now, input, out)?;
        for action in &out[before..] {
            self.follow(now, action);
        }
        // While the run waits for a worker to come back, no worker has to hold anything.
        if !was_summing {
            self.since = now;
        }
        if self.asked().next().is_some() {
            // Who takes over a state is told nothing of sums that are not decided.
            let unable = engine.roster().able_to_hold().complement();
            for (_, asked) in self.asked_mut() {
                unable.iter().for_each(|worker| _ = asked.counted.remove(worker));
            }
        }
        Ok(())
    }

    /// What the engine decides of sums.
    fn follow(&mut self, now: f64, action: &Action) {
        match action {
            Action::Expect { step, terms } => self.expect(*step, terms),
            Action::Sum { step, terms, counted, .. } => {
                let asked = AwaitedSum {
                    counted: counted.clone(),
                    sources: terms.iter().map(|term| term.holders[0].worker).collect(),
                    orphaned: false,
                    holders: Vec::new(),
                };
                let is_expected = |sum: &StepSum| match &sum.stage {
                    Stage::Expected(expected) => !expected.failed && expected.is_of(terms),
                    _ => false,
                };
                match self.steps.get_mut(step).filter(|sum| is_expected(sum)) {
                    Some(sum) => sum.stage = Stage::Asked(asked),
                    None => self.begin(*step, Stage::Asked(asked)),
                }
                self.since = now;
            }
            Action::Erase { worker, .. } => {
                self.asked_mut().for_each(|(_, asked)| asked.forget(*worker));
            }
            Action::Restart { step } => {
                // Its results are forgotten, so nothing that is made of them counts.
                self.steps.get_mut(step).into_iter().for_each(|sum| sum.stage = Stage::Over);
            }
            Action::Commit { step, .. } | Action::Skip { step, .. } => {
                self.steps.remove(step);
            }
            _ => {}
        }
    }

    /// Another sum of a step begins.
    fn begin(&mut self, step: Step, stage: Stage) {
        let again = |last: &StepSum| SumId { attempt: last.id.attempt + 1, ..last.id };
        let id = self.steps.get(&step).map_or(SumId::first(step), again);
        self.steps.insert(step, StepSum { id, stage });
    }

    /// A step is computed, and will be made of these terms: workers may begin to sum it.
    pub(super) fn expect(&mut self, step: Step, terms: &[Summand]) {
        let expected = ExpectedSum { terms: terms.to_vec(), failed: false };
        self.begin(step, Stage::Expected(expected));
    }

    /// A step that is computed, and what it will be made of, if it cannot be summed as it was
    /// expected last: it is to be expected once more.
    fn fails_early(&self) -> Option<(Step, Vec<Summand>)> {
        self.steps.iter().find_map(|(step, sum)| match &sum.stage {
            Stage::Expected(expected) if expected.failed => Some((*step, expected.terms.clone())),
            _ => None,
        })
    }

    fn asked(&self) -> impl Iterator<Item = (Step, &AwaitedSum)> {
        self.steps.iter().filter_map(|(step, sum)| match &sum.stage {
            Stage::Asked(asked) => Some((*step, asked)),
            _ => None,
        })
    }

    fn asked_mut(&mut self) -> impl Iterator<Item = (Step, &mut AwaitedSum)> {
        self.steps.iter_mut().filter_map(|(step, sum)| match &mut sum.stage {
            Stage::Asked(asked) => Some((*step, asked)),
            _ => None,
        })
    }

    /// The sum of which something is said, if it counts and is not held by enough.
    fn current(&mut self, id: SumId) -> Option<&mut AwaitedSum> {
        match self.steps.get_mut(&id.step).filter(|sum| sum.id == id)?.stage {
            Stage::Asked(ref mut asked) => Some(asked),
            _ => None,
        }
    }

    /// What was asked for these steps counts no more: the engine asks again, or gives them up.
    fn void(&mut self, steps: impl std::ops::RangeBounds<Step>) {
        let asked = |sum: &&mut StepSum| matches!(sum.stage, Stage::Asked(_));
        let of_steps = self.steps.range_mut(steps).map(|(_, sum)| sum);
        of_steps.filter(asked).for_each(|sum| sum.stage = Stage::Over);
    }

    /// The sum of a step that counts.
    #[must_use]
    pub fn of(&self, step: Step) -> SumId {
        self.steps.get(&step).map_or(SumId::first(step), |sum| sum.id)
    }

    /// A worker holds the whole of a sum, with this digest. Where sums live with the workers, it
    /// can from then on be had of it, no matter who else is lost.
    pub fn held(&mut self, worker: Worker, sum: SumId, digest: u64) {
        if let Some(asked) = self.current(sum) {
            asked.holders.retain(|holder| holder.0 != worker);
            asked.holders.push((worker, digest));
        }
    }

    /// A sum cannot be made as it was begun: who helped to sum is lost, or something in it may be
    /// wrong.
    pub fn failed(&mut self, sum: SumId) {
        let step = sum.step;
        let of_step = self.steps.get_mut(&step).filter(|last| last.id == sum);
        if let Some(StepSum { stage: Stage::Expected(expected), .. }) = of_step {
            expected.failed = true;
        }
        let Some(asked) = self.current(sum) else { return };
        // Where a result is lost too, it cannot be made again of the same.
        if asked.orphaned {
            self.void(step..);
            self.report_failure(step, SumFailure::ResultLost);
        } else {
            self.void(step..=step);
            self.report_failure(step, SumFailure::Interrupted);
        }
    }

    /// A result of a worker that goes into a sum is not finite,
    /// though it said so: the node that sums has seen it. Nothing is made of that if the worker is
    /// lost by now: so are its results.
    pub fn result_not_finite(&mut self, engine: &Engine, worker: Worker, sum: SumId) {
        if !engine.roster().is_lost(worker) && self.current(sum).is_some() {
            self.void(sum.step..);
            self.report_failure(sum.step, SumFailure::ResultNotFinite(worker));
        }
    }

    /// The results of a sum are finite, as the node that sums has seen; the sum is not.
    pub fn not_finite(&mut self, sum: SumId) {
        if self.current(sum).is_some() {
            self.void(sum.step..=sum.step);
            self.report_failure(sum.step, SumFailure::NotFinite);
        }
    }

    fn report_failure(&mut self, step: Step, why: SumFailure) {
        self.reports.push_back(Input::SumFailed { step, why });
    }

    /// A worker is lost; whether all sums that were asked for can still be had.
    fn lost(&mut self, worker: Worker, kept: bool) -> bool {
        for sum in self.steps.values_mut() {
            sum.forget_holder(worker);
        }
        let gone = self.asked().find(|(_, asked)| !kept && asked.is_lost_without(worker));
        let gone = gone.map(|(step, _)| step);
        for (_, asked) in self.asked_mut() {
            asked.forget(worker);
            asked.orphaned |= asked.sources.contains(&worker);
        }
        if let Some(first) = gone {
            self.void(first..);
        }
        gone.is_none()
    }

    /// What the engine is to be told next, if anything: what was said of sums, then that one is
    /// held by enough.
    fn next_report(&mut self) -> Result<Option<Input>, EngineError> {
        if let Some(report) = self.reports.pop_front() {
            return Ok(Some(report));
        }
        let agreed = self.asked().find_map(|(step, asked)| Some((step, asked.agreed()?)));
        if let Some((step, digest)) = agreed {
            self.void(step..=step);
            return Ok(Some(Input::Summed { step, digest }));
        }
        match self.asked().find_map(|(step, asked)| Some((step, asked.disputed()?))) {
            Some((step, worker)) => Err(EngineError::DifferentBytes { step, worker }),
            None => Ok(None),
        }
    }

    fn holders_by(&self) -> f64 {
        self.since + self.max_wait_seconds
    }

    /// When [`Input::Tick`] is due: as the [engine](Engine::deadline) has it, or when the wait for
    /// holders of a sum ends.
    #[must_use]
    pub fn deadline(&self, engine: &Engine) -> Option<f64> {
        if engine.is_summing() { Some(self.holders_by()) } else { engine.deadline() }
    }

    /// Has a sum made once more that too few workers hold in time, of the same results if all are
    /// there. The second time, the run ends.
    fn overdue(&mut self, engine: &Engine, now: f64) -> Result<(), EngineError> {
        let Some((step, _)) = self.asked().next() else { return Ok(()) };
        if let Some((_, since)) = self.overdue.filter(|(overdue, _)| *overdue == step) {
            let silent = self.waits_for(engine).map(|open| open.missing).unwrap_or_default();
            return Err(EngineError::Unheld { step, waited_seconds: now - since, silent });
        }
        self.overdue = Some((step, self.since));
        self.since = now;
        let orphaned = self.asked().find(|(_, asked)| asked.orphaned).map(|(step, _)| step);
        let again: Vec<Step> = match orphaned {
            Some(first) => vec![first],
            None => self.asked().map(|(step, _)| step).collect(),
        };
        let why = match orphaned {
            Some(_) => SumFailure::ResultLost,
            None => SumFailure::Interrupted,
        };
        self.void(again[0]..);
        again.into_iter().for_each(|step| self.report_failure(step, why));
        Ok(())
    }

    /// The round that waits for answers or for its sum, if one does ([`Engine::waits_for`]).
    #[must_use]
    pub fn waits_for(&self, engine: &Engine) -> Option<OpenRound> {
        let mut open = engine.waits_for()?;
        if open.summing {
            let (_, asked) = self.asked().next()?;
            asked.holders.iter().for_each(|holder| _ = open.missing.remove(holder.0));
        }
        Some(open)
    }
}
