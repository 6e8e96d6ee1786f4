//! What is wrong with a run: where its time went, which workers are slow, since when, why, and what
//! each of that costs.
//!
//! A [`Record`] holds the steps of one run, as lines of `run.jsonl` tell them, or the rows of a
//! trace; [`examine`] looks at it. Nothing here reads files or clocks.
//!
//! | to know | see |
//! |---|---|
//! | where the time went | [`TimeSpent`] |
//! | how long each worker took, also where no round waited for it | [`AnswerRows`] |
//! | what slow workers cost | [`WhatIf`], by replays of the run's own scheme |
//! | who is slow, and why | [`ExaminedWorker`] |
//! | since when | [`LevelShifts`] |
//! | all of it in words, the dearest first | [`Finding`] |
//! | all of it in pictures | [`HeatMap`], and [`Record::timeline`] |
//! | whether a second run is slower | [`Comparison`] |

mod changes;
mod compare;
mod findings;
mod numbers;
mod record;
mod rows;
mod seen;
mod time;
mod timeline;
mod what_if;
mod workers;

pub use changes::{LevelShift, LevelShifts};
pub use compare::{ChangeInterval, ChangeVerdict, Comparison, NotCompared, Pair, RunSide, warm_up};
pub use findings::{Finding, Moment, Problem};
pub use record::{
    CheckpointCost, Record, RecordError, RecordedRound, RecordedStep, RunEvent, UsedPlan,
    UsedScheme, WorkReport, WorkerProcess,
};
pub use rows::AnswerRows;
pub use time::{Stall, TimeGap, TimeSpent};
pub use timeline::{HeatMap, HeatRow, RoundBin, TimelineStep};
pub use what_if::{REPLAY_ERROR_MAX, SlowRounds, WorstWorkers};
pub use workers::{ExaminedWorker, SlowCause};

use crate::codes::registry::{Family, Registry};
use crate::codes::sequential::SchemeFacts;
use crate::codes::{ParameterError, SchemeSpec};
use crate::delays::{Growth, Suspicion, after_exchange};
use crate::ids::Worker;
use crate::sim::planner::{Candidate, Plan};
use findings::WorkerEvents;
use rows::{Reports, Times};
use seen::{Observations, of_events, unseen};
use std::collections::BTreeMap;
use thiserror::Error;
use time::{Stalls, WallClock};
use what_if::{OfWorker, Replay};
use workers::PerUnit;

/// With fewer rounds nothing but the time can be told.
const ROUNDS_LEAST: usize = 2;
/// A larger share of the time outside rounds is worth a word.
const OUTSIDE_MOST: f64 = 0.10;
/// Below that, time on the wall's clock is lost.
const EFFECTIVE_LEAST: f64 = 0.90;
/// That is not worth a word if it is fewer seconds: a run of a few short steps.
const LOST_LEAST: f64 = 1.0;
/// A larger share of the time in which checkpoints block is worth a word.
const BLOCKED_MOST: f64 = 0.02;
/// So many slow rounds at the beginning are the warm-up of a run: caches, compilers, connections.
const WARM_UP_MOST: usize = 3;
/// A larger share of the time in which a few steps stood still is worth a word.
const STALLED_MOST: f64 = 0.05;
/// A larger share of the time spent waiting for answers calls for a plan.
const WAITING_MOST: f64 = 0.4;
/// Another scheme that saves less is none.
const OTHER_SCHEME_LEAST: f64 = 0.05;

/// Why rounds cannot be replayed with other times.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum NoReplay {
    /// Too few rounds.
    #[error("too few rounds to compare workers: {rounds}, and at least {ROUNDS_LEAST} are needed")]
    FewRounds {
        /// How many there are.
        rounds: usize,
    },
    /// The scheme changed on the way.
    #[error(
        "the scheme or its workers changed while the run went on, at step {first} for the first \
         time and at step {last} for the last: --from {last} looks at one scheme"
    )]
    SchemeChanged {
        /// The first step under another scheme than the step before.
        first: u64,
        /// The last such step.
        last: u64,
    },
    /// The scheme was for some of the workers.
    #[error("these steps were planned for {members} of the {workers} workers")]
    SomeWorkers {
        /// For how many.
        members: usize,
        /// How many seats the run has.
        workers: usize,
    },
    /// The scheme is unknown, or does not fit the workers.
    #[error("the scheme {text:?} cannot be replayed: {problem}")]
    Scheme {
        /// Its text.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Workers ask for work as they go.
    #[error(
        "with {text} workers take tasks until none is left: an answer says when that was, not how \
         fast a worker is"
    )]
    Feedback {
        /// The scheme.
        text: String,
    },
    /// Nothing is known of some workers' times.
    #[error(
        "{} answered in almost no round before it closed, and reported no work: how slow they are \
         is not known", findings::named(workers, &[])
    )]
    Unseen {
        /// Which workers.
        workers: Vec<usize>,
    },
    /// The times are those after the workers had waited for one of them.
    #[error(
        "these times were taken after the all-reduce, where workers have waited for one another"
    )]
    AfterExchange,
    /// Rounds depend on those before.
    #[error("with {text} a round depends on the rounds before it")]
    Delayed {
        /// The scheme.
        text: String,
    },
    /// The replay is not what was recorded.
    #[error(
        "replayed, the rounds take {seconds:.3} s, which is {:.1} % away from the record: too far \
         to tell what anything costs",
        100.0 * error
    )]
    FarOff {
        /// Seconds of the replay.
        seconds: f64,
        /// How far that is from the record, relative to it.
        error: f64,
    },
}

/// What an examination knows beside the record.
#[derive(Clone, Copy, Debug)]
pub struct RunContext<'a> {
    /// The schemes.
    pub registry: &'a Registry,
    /// What happened in this run beside its steps, in order.
    pub events: &'a [RunEvent],
}

impl Default for RunContext<'_> {
    fn default() -> Self {
        Self { registry: Registry::builtin(), events: &[] }
    }
}

/// How long the run would have taken with other answers. What a record does not show is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WhatIf {
    /// Seconds of all rounds, replayed as they were.
    pub replayed: Option<f64>,
    /// How far that is from the record, relative to it.
    pub replay_error: Option<f64>,
    /// How many times as long the rounds took as if every worker answered with the median.
    pub slowdown: Option<f64>,
    /// The slowest workers.
    pub worst_workers: Option<WorstWorkers>,
    /// Rounds in which all workers are slow.
    pub slow_rounds: Option<SlowRounds>,
    /// Why something of this is not known.
    pub reason: Option<NoReplay>,
}

/// Checkpoints that events tell of.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Checkpoints {
    /// How many.
    pub count: usize,
    /// For how many seconds they held up training.
    pub blocked: f64,
}

/// What is to be kept in mind about an examination.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Caution {
    /// Reports were left out.
    #[error(
        "{count} reports of work are left out: of unknown workers, with progress beyond 0 to 1, or \
         with more computation than time"
    )]
    UnsoundReports {
        /// How many.
        count: usize,
    },
    /// Time stamps decrease.
    #[error(
        "the time stamp of step {step} is before that of the step before it: how much of the wall \
         time went into steps is not known"
    )]
    ClockWentBack {
        /// The first such step.
        step: u64,
    },
    /// The run has ended before all of its steps were made.
    #[error("the run broke off in step {step}, of which nothing is recorded: {why}")]
    BrokeOff {
        /// In which step.
        step: u64,
        /// Why.
        why: String,
    },
    /// Lines of the record are missing.
    #[error("{count} of the steps before step {step} are not recorded: lines are missing")]
    StepsMissing {
        /// How many.
        count: u64,
        /// The step that follows the last of them.
        step: u64,
    },
    /// Rounds overlap.
    #[error("rounds overlapped what was decided before them, so that no time was between them")]
    Overlapped,
    /// The times cannot show who is slow.
    #[error("{0}")]
    AfterExchange(Suspicion),
}

impl Caution {
    /// Whether times cannot tell who is slow, so that no finding means nothing.
    #[must_use]
    pub fn hides_workers(&self) -> bool {
        matches!(self, Self::AfterExchange(_))
    }
}

/// What is known of a run.
#[derive(Clone, Debug)]
pub struct Examination {
    /// The text of its scheme.
    pub scheme: String,
    /// Workers.
    pub workers: usize,
    /// Rounds.
    pub rounds: usize,
    /// Steps.
    pub steps: usize,
    /// Share of the answers that are estimates; none where answers do not tell times.
    pub estimated: Option<f64>,
    /// Where the time went.
    pub time: TimeSpent,
    /// Share of the time on the wall's clock that went into steps.
    pub effective: Option<f64>,
    /// What other answers would have changed.
    pub what_if: WhatIf,
    /// Every worker.
    pub of_workers: Vec<ExaminedWorker>,
    /// When the times of the quickest quarter of the workers changed, and so all workers'.
    pub changes: Vec<LevelShift>,
    /// Checkpoints.
    pub checkpoints: Checkpoints,
    /// How many events of each kind there were.
    pub events: BTreeMap<String, usize>,
    /// What is wrong, the dearest first.
    pub findings: Vec<Finding>,
    /// What is to be kept in mind.
    pub cautions: Vec<Caution>,
    /// The times of answers and the load they were recorded at, if they can be planned with.
    pub planned_on: Option<(Vec<Vec<f64>>, f64)>,
}

/// Looks at a record. Where the rounds are too few or the scheme cannot be replayed, what follows
/// from that is none.
///
/// # Cost
/// O(rounds x workers) for uncoded runs and groups; other codes are replayed twice per worker.
///
/// ```
/// use codedgrad::doctor::{Problem, Record, RunContext, examine};
/// let slow = |round| if round < 60 { 1.0 } else { 1.5 };
/// let rows = (0..120).map(|round| vec![1.0, slow(round), 1.0, 1.0]);
/// let found = examine(&Record::of_trace(rows)?, &RunContext::default());
/// assert_eq!((found.what_if.slowdown, found.findings.len()), (Some(1.25), 1));
/// let finding = &found.findings[0];
/// assert_eq!(finding.to_string(), "worker 1 has taken 1.50 times as long since step 60 (1:00)");
/// assert!((finding.costs.unwrap() - 0.2).abs() < 1e-12);
/// # Ok::<(), codedgrad::doctor::RecordError>(())
/// ```
#[must_use]
pub fn examine(record: &Record, known: &RunContext<'_>) -> Examination {
    let events = in_record(record, known.events);
    let time = TimeSpent::of(record);
    let wall = WallClock::of(record, &events);
    let checkpoints = events.iter().filter(|event| event.kind == "checkpoint");
    let checkpoints = checkpoints.fold(Checkpoints::default(), |all, event| {
        let blocked = event.checkpoint.and_then(|took| took.blocked).unwrap_or(0.0);
        Checkpoints { count: all.count + 1, blocked: all.blocked + blocked.max(0.0) }
    });
    let mut found = Examination {
        scheme: record.scheme().into(),
        workers: record.workers(),
        rounds: record.rounds(),
        steps: record.steps(),
        estimated: None,
        time,
        effective: wall.effective,
        what_if: WhatIf::default(),
        of_workers: Vec::new(),
        changes: Vec::new(),
        checkpoints,
        events: time::counted(events.iter().copied()),
        findings: Vec::new(),
        cautions: cautions(record, known.events, &time, &wall),
        planned_on: None,
    };
    let stalls = Stalls::of(record);
    found.findings.extend(of_the_time(&found, &stalls, wall));
    found.look_at_workers(record, known.registry, &WorkerEvents::of(&events, record.workers()));
    let waiting = found.waiting(&stalls);
    found.findings.extend(waiting);
    findings::sort(&mut found.findings);
    found
}

/// The events of the steps that are looked at.
fn in_record<'a>(record: &Record, events: &'a [RunEvent]) -> Vec<&'a RunEvent> {
    let ends = record.steps.first().zip(record.steps.last());
    let ends = ends.map(|(first, last)| first.step..=last.step);
    let within = |event: &&RunEvent| match (event.step, &ends) {
        (Some(step), Some(ends)) => ends.contains(&step),
        _ => true,
    };
    events.iter().filter(within).collect()
}

/// That the run broke off right after the steps that are looked at, and does not go on.
fn broke_off(record: &Record, events: &[RunEvent]) -> Option<Caution> {
    let legs = ["begin", "resume", "end"];
    let end = events.iter().rfind(|event| legs.contains(&event.kind.as_str()))?;
    let next = record.steps.last()?.step + 1;
    let step = end.step.filter(|step| *step == next)?;
    Some(Caution::BrokeOff { step, why: end.failure()?.into() })
}

/// That lines are missing between others; the rounds of a trace may have any numbers.
fn steps_missing(record: &Record) -> Option<Caution> {
    if record.is_trace() {
        return None;
    }
    let steps = record.steps.windows(2).map(|pair| (pair[0].step + 1, pair[1].step));
    let gaps = steps.filter(|(expected, step)| expected < step);
    gaps.fold(None, |missing, (expected, step)| match missing {
        Some((count, _)) => Some((count + step - expected, step)),
        None => Some((step - expected, step)),
    })
    .map(|(count, step)| Caution::StepsMissing { count, step })
}

fn cautions(
    record: &Record,
    events: &[RunEvent],
    time: &TimeSpent,
    wall: &WallClock,
) -> Vec<Caution> {
    let unsound = record.unsound_reports();
    let reports = (unsound > 0).then_some(Caution::UnsoundReports { count: unsound });
    let clock = wall.went_back.map(|step| Caution::ClockWentBack { step });
    let overlapped = time.overlapped.then_some(Caution::Overlapped);
    let cautions = [broke_off(record, events), steps_missing(record), reports, clock, overlapped];
    cautions.into_iter().flatten().collect()
}

/// What is wrong outside rounds.
fn of_the_time(found: &Examination, stalls: &Stalls, wall: WallClock) -> Vec<Finding> {
    let time = &found.time;
    let per_step = |seconds: f64| seconds / found.steps.max(1) as f64;
    let finding = |problem, share| Finding { problem, costs: Some(share) };
    let mut findings = Vec::new();
    let stalled = time.share(stalls.seconds());
    if let Some(longest) = stalls.longest.filter(|_| stalled > STALLED_MOST) {
        findings.push(finding(Problem::Stalls { steps: stalls.steps, longest }, stalled));
    }
    let usually = time.deciding - stalls.deciding;
    let (deciding, between) = (time.share(usually), time.share(time.between));
    if deciding > OUTSIDE_MOST {
        findings.push(finding(Problem::Deciding { seconds: per_step(usually) }, deciding));
    }
    if between > OUTSIDE_MOST {
        findings.push(finding(Problem::Between { seconds: per_step(time.between) }, between));
    }
    let lost = wall.effective.filter(|effective| *effective < EFFECTIVE_LEAST);
    let lost = lost.filter(|_| wall.lost_seconds >= LOST_LEAST);
    if let Some((effective, gap)) = lost.zip(wall.gap) {
        findings.push(finding(Problem::LostTime { effective, gap }, 1.0 - effective));
    }
    let Checkpoints { count, blocked } = found.checkpoints;
    if time.share(blocked) > BLOCKED_MOST {
        let problem = Problem::CheckpointStalls { checkpoints: count, blocked };
        findings.push(finding(problem, time.share(blocked)));
    }
    findings
}

/// The scheme of a record and what is fixed about it.
fn scheme(record: &Record, registry: &Registry) -> Result<(SchemeSpec, SchemeFacts), NoReplay> {
    if record.rounds() < ROUNDS_LEAST {
        return Err(NoReplay::FewRounds { rounds: record.rounds() });
    }
    if let Some((first, last)) = record.switched() {
        return Err(NoReplay::SchemeChanged { first, last });
    }
    if let Some(members) = record.planned_for() {
        return Err(NoReplay::SomeWorkers { members, workers: record.workers() });
    }
    let text = record.scheme();
    let unknown =
        |error: ParameterError| NoReplay::Scheme { text: text.into(), problem: error.to_string() };
    // Its writer would say what is opened here.
    if registry.family_of(text).is_ok_and(Family::reads_files) {
        let problem = "its file is not opened because a record names it".to_owned();
        return Err(NoReplay::Scheme { text: text.into(), problem });
    }
    let spec = registry.parse(text).map_err(unknown)?;
    let facts = spec.natural(record.workers()).map_err(unknown)?;
    Ok((spec, facts))
}

/// Whether a code assigns all workers as much; of what is no code of one round nothing else is
/// known.
fn loads_are_equal(spec: &SchemeSpec, workers: usize) -> bool {
    let Ok(code) = spec.code(workers) else { return true };
    let weights = &code.facts().share_weights;
    let load = |worker| {
        let shares = code.row(worker).iter().map(|(share, _)| weights[share.index()]);
        shares.sum::<f64>()
    };
    let first = load(Worker(0));
    Worker::all(workers).all(|worker| (load(worker) - first).abs() <= 1e-9 * first)
}

impl Examination {
    /// What answers and reports tell of workers.
    fn look_at_workers(&mut self, record: &Record, registry: &Registry, events: &WorkerEvents) {
        let reports = Reports::of(record);
        let (times, replay, spec) = match scheme(record, registry) {
            Err(reason) => return self.without_times(record, &reports, reason, events),
            Ok((spec, facts)) if facts.partial => {
                let reason = NoReplay::Feedback { text: spec.text().into() };
                return self.without_times(record, &reports, reason, events);
            }
            Ok((spec, facts)) if facts.delay > 0 => {
                let reason = NoReplay::Delayed { text: spec.text().into() };
                let times = Times::of_computing(record, &reports);
                if times.rows.len() < ROUNDS_LEAST {
                    return self.without_times(record, &reports, reason, events);
                }
                self.what_if.reason = Some(reason);
                (times, false, spec)
            }
            Ok((spec, facts)) => {
                let AnswerRows { rows, estimated } = AnswerRows::of(record);
                let answers = (rows.len() * record.workers()) as f64;
                let late = if record.is_trace() { after_exchange(&rows) } else { None };
                // Estimates agree as closely as times after an exchange.
                let is_one = |it: &Suspicion| !matches!(it, Suspicion::WaitedFor { .. });
                let late = late.filter(|it| estimated == 0 || is_one(it));
                self.cautions.extend(late.map(Caution::AfterExchange));
                if let Some(Suspicion::WaitedFor { worker, .. }) = late {
                    self.findings
                        .push(Finding { problem: Problem::WaitedFor { worker }, costs: None });
                    let reason = NoReplay::AfterExchange;
                    return self.without_times(record, &reports, reason, events);
                }
                self.estimated = Some(estimated as f64 / answers);
                self.planned_on = Some((rows.clone(), facts.load));
                (Times::of_answers(rows), true, spec)
            }
        };
        let unseen = unseen(record, &reports, &events.lost);
        if !unseen.is_empty() {
            // Estimates of all their times would pass for measurements.
            self.planned_on = None;
            let (workers, of) = (unseen.clone(), record.closed.len());
            let problem = Problem::NeverInTime { workers, of };
            self.findings.push(Finding { problem, costs: None });
            self.what_if.reason = Some(NoReplay::Unseen { workers: unseen });
        }
        let equal_loads = loads_are_equal(&spec, record.workers());
        let replay = if replay { self.replay(record, &spec, &times) } else { None };
        let what_ifs = replay.as_ref().and_then(Replay::of_workers);
        self.what_if.worst_workers = self.worst(replay.as_ref(), what_ifs.as_deref(), &times);
        self.what_if.slow_rounds = Some(SlowRounds {
            rounds: times.quickest.slow_rounds().len(),
            saves: replay.as_ref().and_then(Replay::slow_rounds),
        });
        self.of_workers =
            workers::examined(record, &reports, Some(&times), what_ifs.as_deref(), equal_loads);
        self.changes = times.changes(&times.quickest.times, record);
        let seen = Observations { record, reports: &reports, times: &times, replay, equal_loads };
        let found = seen.findings(self, events, spec.family() != "uncoded");
        self.findings.extend(found);
    }

    /// Much of the time is spent waiting, and workers that are named do not explain half of that.
    fn waiting(&self, stalls: &Stalls) -> Option<Finding> {
        let share = self.time.share(self.time.waiting - stalls.waiting);
        let names_workers = |finding: &&Finding| {
            let is_stall = matches!(finding.problem, Problem::Stalls { .. });
            !is_stall && !finding.workers().is_empty()
        };
        let named = self.findings.iter().filter(names_workers);
        let explained: f64 = named.filter_map(|finding| finding.costs).sum();
        let is_one = share > WAITING_MOST && self.planned_on.is_some() && explained < share / 2.0;
        is_one.then_some(Finding { problem: Problem::Waiting, costs: Some(share) })
    }

    /// What is known of workers without their times.
    fn without_times(
        &mut self,
        record: &Record,
        reports: &Reports<'_>,
        reason: NoReplay,
        events: &WorkerEvents,
    ) {
        if !matches!(reason, NoReplay::FewRounds { .. }) {
            self.of_workers = workers::examined(record, reports, None, None, false);
        }
        if let NoReplay::Feedback { .. } = reason
            && let Some(found) = PerUnit::of(record, reports)
        {
            self.look_at_units(&found);
        }
        self.what_if.reason = Some(reason);
        self.findings.extend(of_events(&events.lost, None, events));
    }

    /// What workers take per unit.
    fn look_at_units(&mut self, found: &PerUnit) {
        let mut slow = Vec::new();
        let ratios = found.ratios.iter().zip(&found.slow);
        for (worker, (ratio, is_slow)) in self.of_workers.iter_mut().zip(ratios) {
            (worker.ratio, worker.slow) = (*ratio, *is_slow);
            if let (Some(true), Some(ratio)) = (is_slow, ratio) {
                // What is compared is computation alone.
                worker.because = Some(SlowCause::Computing);
                slow.push((worker.worker, *ratio));
            }
        }
        if !slow.is_empty() {
            let problem = Problem::SlowPerUnit { workers: slow };
            self.findings.push(Finding { problem, costs: None });
        }
    }

    /// The rounds replayed, if that is close enough to what was recorded.
    fn replay<'a>(
        &mut self,
        record: &Record,
        spec: &SchemeSpec,
        times: &'a Times,
    ) -> Option<Replay<'a>> {
        let Some(replay) = Replay::new(spec, times) else {
            let problem = "a round would never close".into();
            self.what_if.reason = Some(NoReplay::Scheme { text: spec.text().into(), problem });
            return None;
        };
        let recorded: f64 = record.closed.iter().map(|round| round.seconds).sum();
        let error = if recorded > 0.0 { (replay.total / recorded - 1.0).abs() } else { 0.0 };
        self.what_if.replayed = Some(replay.total);
        self.what_if.replay_error = Some(error);
        if error > REPLAY_ERROR_MAX || error.is_nan() {
            self.what_if.reason = Some(NoReplay::FarOff { seconds: replay.total, error });
            return None;
        }
        self.what_if.slowdown = replay.slowdown();
        Some(replay)
    }

    fn worst(
        &self,
        replay: Option<&Replay<'_>>,
        what_ifs: Option<&[OfWorker]>,
        times: &Times,
    ) -> Option<WorstWorkers> {
        let ratios: Vec<f64> =
            (0..times.workers()).map(|worker| workers::mean_ratio(times, worker)).collect();
        replay?.worst(what_ifs?, &ratios)
    }

    /// The times of answers to plan with, and how they grow with the load. Where reports show that
    /// a worker is slow because of computing, times are proportional to the load: that worker is
    /// slow with any task. Else what the fastest answer takes on the whole is computation, and the
    /// rest, which comes and goes, does not grow.
    #[must_use]
    pub fn to_plan(&self) -> Option<(Vec<Vec<f64>>, Growth)> {
        let (rows, load) = self.planned_on.as_ref()?;
        let computing = Some(SlowCause::Computing);
        if self.of_workers.iter().any(|worker| worker.because == computing) {
            return Some((rows.clone(), Growth::Proportional { base: *load }));
        }
        let fastest = |row: &Vec<f64>| row.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = numbers::median(rows.iter().map(fastest).collect());
        let floored = |row: &Vec<f64>| row.iter().map(|time| time.max(fastest)).collect();
        let growth = Growth::Additive { base: *load, slope: fastest / load };
        Some((rows.iter().map(floored).collect(), growth))
    }

    /// Adds what a plan on [these times](Examination::to_plan) says against the run's scheme, which
    /// must be among its candidates.
    pub fn compare(&mut self, plan: &Plan) {
        let choice = plan.choice();
        // Of too few rounds nothing is recommended.
        if choice.doubts.is_none() {
            return;
        }
        let own = |candidate: &&Candidate| candidate.scheme.text() == self.scheme;
        let Some(now) = plan.candidates.iter().find(own) else { return };
        let here = 1.0 - numbers::times(choice.time_per_job, now.time_per_job);
        if here >= OTHER_SCHEME_LEAST {
            let (scheme, than) = (choice.scheme.to_string(), self.scheme.clone());
            let problem = Problem::OtherScheme { scheme, than };
            // How much is told by rounds that did not choose it.
            let gain = 1.0 - numbers::times(1.0 - plan.gain, 1.0 - now.gain);
            let costs = Some(gain).filter(|gain| *gain >= OTHER_SCHEME_LEAST);
            self.findings.push(Finding { problem, costs });
            findings::sort(&mut self.findings);
        }
    }
}
