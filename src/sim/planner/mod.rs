//! Should I code at all, and with what? The planner tries every scheme on a trace and says.
//!
//! | step | how |
//! |---|---|
//! | screening | every family's parameters, by the same [`simulate`](super::simulate) as everything else: a coarse look, then descents |
//! | how sure | the best of each family on traces drawn again in runs of whole rounds, the same for all |
//! | cross-check | closed forms for workers that are slow independently; where there are fewer than [`ROUNDS_MIN`] rounds, the answer itself |
//! | causes | what no code cures: slow shares, constantly slow or dead workers, rounds in which everybody is slow |

mod bootstrap;
mod causes;
mod families;
mod formulas;
mod question;
mod replay;
mod search;
mod verdict;

pub use bootstrap::Bounds;
pub(crate) use causes::Quickest;
pub use causes::{Cause, CauseKind};
pub use question::{PlanError, Question};

use super::Close;
use crate::codes::SchemeSpec;
use crate::codes::registry::Family;
use crate::delays::{Growth, StragglerStats};
use families::{Space, spaces};
use formulas::Pool;
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use replay::{Replay, Run, Setting};
use search::Search;
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Below so many rounds (or steps) a replay says too little, and closed forms answer.
pub const ROUNDS_MIN: usize = 20;
/// Less gain than that is not worth a code; and what may cost more than that, at 95 %, is not
/// recommended either.
pub const GAIN_MIN: f64 = 0.03;
/// Replays of a search, as a first guess for its progress.
const REPLAYS_GUESS: usize = 1500;

/// How the times of a plan were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Method {
    /// Every scheme was run over the rounds of the trace.
    Replay,
    /// By the formulas for workers that are slow independently, for want of rounds.
    ClosedForms,
}

/// A scheme and what it would do. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Candidate {
    /// Which.
    pub scheme: SchemeSpec,
    /// When its rounds close; schemes with feedback close by their own rule whatever this says.
    pub close: Close,
    /// Deadline tolerance, where the close asks for one.
    pub mu: Option<f64>,
    /// Rounds a job may be late.
    pub delay: usize,
    /// Largest fraction of a batch that one worker touches in a round; for feedback schemes the
    /// mean.
    pub load: f64,
    /// Load of all workers per job; uncoded = 1.
    pub work: f64,
    /// Mean time per job over the trace.
    pub time_per_job: f64,
    /// Share of the uncoded time that it saves; negative where it costs time.
    pub gain: f64,
    /// How sure that is.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Fraction of a batch in its gradient; below 1 it is biased.
    pub coverage: f64,
    /// Whether it gives the gradient of the whole batch.
    pub exact: bool,
    /// Time per job if workers were slow independently of one another, where there is a formula;
    /// for `min-load` a bound from above.
    pub closed_form: Option<f64>,
    /// Why it is recommended or not.
    pub reason: String,
}

/// A scheme that was tried: time against work.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Point {
    /// A scheme text.
    pub scheme: String,
    /// When its rounds close.
    pub close: Close,
    /// Deadline tolerance, where the close asks for one.
    pub mu: Option<f64>,
    /// Rounds a job may be late.
    pub delay: usize,
    /// Load of all workers per job.
    pub work: f64,
    /// Mean time per job over the trace.
    pub time_per_job: f64,
    /// Whether it gives the gradient of the whole batch.
    pub exact: bool,
}

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Workers, `n`.
    pub workers: usize,
    /// Jobs that were looked at: rounds, or steps of several.
    pub jobs: usize,
    /// How times were found.
    pub method: Method,
    /// How times were taken to grow with the load.
    pub growth: Growth,
    /// Time per job without a code.
    pub baseline: f64,
    /// The fastest exact scheme that surely costs nothing, or `uncoded` where none gains
    /// [`GAIN_MIN`].
    pub recommended: String,
    /// Share of the uncoded time that it saves.
    pub gain: f64,
    /// Two sentences.
    pub why: String,
    /// The best of every family within the limits, and `uncoded`; the fastest first.
    pub candidates: Vec<Candidate>,
    /// Of everything tried that is exact, what nothing beats in both work and time; the least work
    /// first.
    pub front: Vec<Point>,
    /// What coding cannot cure.
    pub causes: Vec<Cause>,
    /// What to keep in mind.
    pub notes: Vec<String>,
    /// Everything tried on the whole trace.
    #[serde(skip)]
    pub tried: Vec<Point>,
}

impl Plan {
    /// The candidate that is recommended.
    #[must_use]
    pub fn choice(&self) -> &Candidate {
        let found =
            self.candidates.iter().find(|candidate| candidate.scheme.text() == self.recommended);
        found.unwrap_or_else(|| unreachable!("what is recommended is a candidate"))
    }

    /// The fastest exact candidate whose jobs are never late: what a single model can use.
    #[must_use]
    pub fn choice_without_delay(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.delay == 0 && candidate.exact)
    }
}

/// Answers a [`Question`]; `progress` is told from time to time which part of the work is done,
/// from 0 to 1.
///
/// # Errors
/// [`PlanError`] if the trace or a limit cannot be used.
///
/// ```
/// use codedgrad::delays::{Growth, Preset, Unit};
/// use codedgrad::sim::planner::{Question, plan};
/// let rows = |preset: Preset| {
///     preset
///         .rows(8, 40, 1)
///         .iter()
///         .map(|row| row.iter().map(|d| 1.0 + d).collect())
///         .collect::<Vec<_>>()
/// };
/// let growth = Growth::Additive { base: 0.125, slope: 8.0 };
/// let calm = plan(&Question::new(&rows(Preset::Calm), growth), &|_| ())?;
/// assert_eq!((calm.recommended.as_str(), calm.gain), ("uncoded", 0.0));
/// let hotspot =
///     plan(&Question { max_delay: 0, ..Question::new(&rows(Preset::Hotspot), growth) }, &|_| ())?;
/// assert!(hotspot.recommended.starts_with("queue") && hotspot.gain > 0.6);
/// # Ok::<(), codedgrad::sim::planner::PlanError>(())
/// ```
pub fn plan(question: &Question<'_>, progress: &(dyn Fn(f64) + Sync)) -> Result<Plan, PlanError> {
    question.check()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    match ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => Ok(pool.install(|| Planner::new(question).plan(progress))),
        Err(_) => Ok(Planner::new(question).plan(progress)),
    }
}

/// What of a trace's slowness no code cures, as far as times alone tell: dead and constantly slow
/// workers, and rounds in which everybody is slow. `rows` hold the seconds of every worker's
/// answer, one row per round, all of the same length; `growth` says how they grow with the load.
///
/// ```
/// use codedgrad::delays::Growth;
/// use codedgrad::sim::planner::{CauseKind, lasting_causes};
/// let rows = vec![vec![1.0, 1.0, 2.5, 1.0]; 30];
/// let found = lasting_causes(&rows, Growth::usual(None, 4));
/// assert_eq!(found[0].kind, CauseKind::ConstantlySlowWorkers);
/// assert_eq!(found[0].workers, [2]);
/// ```
#[must_use]
pub fn lasting_causes(rows: &[Vec<f64>], growth: Growth) -> Vec<Cause> {
    if rows.first().is_none_or(Vec::is_empty) {
        return Vec::new();
    }
    let replay = Replay::new(rows.to_vec(), growth, 0.0, 1);
    let baseline = replay.run(&uncoded(), replay.jobs()).map_or(0.0, |run| run.time_per_job);
    causes::of_workers(&replay, baseline)
}

/// A question, its trace made ready.
struct Planner<'a> {
    question: &'a Question<'a>,
    replay: Replay,
    method: Method,
    /// How strongly times follow shares, and the uncoded time before shares were evened out.
    shares: Option<(f64, f64)>,
    notes: Vec<String>,
}

impl<'a> Planner<'a> {
    fn new(question: &'a Question<'a>) -> Self {
        let mut notes = Vec::new();
        let replay =
            |rows| Replay::new(rows, question.growth, question.dispatch, question.accumulate);
        let mut trace = replay(question.rows.to_vec());
        let mut shares = None;
        if let Some(costs) = question.share_costs {
            match causes::balanced(question.rows, costs) {
                Some((even, explained)) => {
                    let before =
                        trace.run(&uncoded(), trace.jobs()).map_or(0.0, |run| run.time_per_job);
                    (trace, shares) = (replay(even), Some((explained, before)));
                }
                None => {
                    notes.push(
                        "every worker's share costs the same in all rounds, so slow shares \
                        cannot be told from slow workers"
                            .into(),
                    );
                }
            }
        }
        let method = if trace.jobs() < ROUNDS_MIN { Method::ClosedForms } else { Method::Replay };
        Self { question, replay: trace, method, shares, notes }
    }

    fn plan(mut self, progress: &(dyn Fn(f64) + Sync)) -> Plan {
        let done = AtomicUsize::new(0);
        let tick = || {
            let done = done.fetch_add(1, Relaxed) as f64;
            progress(done / (done + REPLAYS_GUESS as f64));
        };
        let pool = Pool::new(self.replay.rows().iter().flatten().copied());
        let search = Search { replay: &self.replay, max_work: self.question.max_work, tick: &tick };
        let uncoded = match self.method {
            Method::Replay => self.replay.run(&uncoded(), self.replay.jobs()),
            Method::ClosedForms => self.by_formula(&uncoded(), &pool),
        };
        let uncoded = uncoded.unwrap_or_else(|| unreachable!("uncoded suits any workers"));
        let mut best = vec![uncoded.clone()];
        let mut tried = vec![uncoded];
        let found: Vec<Vec<Run>> = self
            .question
            .families
            .par_iter()
            .map(|family| self.family(family, &search, &pool))
            .collect();
        for runs in found {
            let allowed = runs.iter().filter(|run| run.work <= self.question.max_work);
            best.extend(allowed.min_by(|a, b| search.order(a, b)).cloned());
            tried.extend(runs);
        }
        for scheme in self.question.also {
            match self.own(scheme, &search, &pool) {
                Ok(run) => {
                    let known = best.iter().any(|other| other.setting.scheme == *scheme);
                    best.extend((!known).then(|| run.clone()));
                    tried.push(run);
                }
                Err(why) => self.notes.push(format!("{scheme} is left out: {why}")),
            }
        }
        let mut candidates = self.candidates(&best, &pool, &tick);
        candidates.sort_by(|a, b| {
            a.time_per_job.total_cmp(&b.time_per_job).then(a.work.total_cmp(&b.work))
        });
        progress(1.0);
        self.verdict(candidates, &tried)
    }

    /// What of a family was tried on the whole trace.
    fn family(&self, family: &Family, search: &Search<'_>, pool: &Pool) -> Vec<Run> {
        let spaces = spaces(family, &self.question.limits());
        match self.method {
            Method::Replay => {
                spaces.into_par_iter().flat_map(|space| search.descend(&space)).collect()
            }
            Method::ClosedForms => {
                let workers = self.replay.workers();
                let has_form = |space: &&Space| space.has_closed_form(workers);
                let all = |space: &Space| -> Vec<Setting> {
                    space.points().iter().filter_map(|point| space.setting(point)).collect()
                };
                let settings: Vec<Setting> = spaces.iter().filter(has_form).flat_map(all).collect();
                settings
                    .into_par_iter()
                    .filter_map(|setting| self.by_formula(&setting, pool))
                    .collect()
            }
        }
    }

    /// A scheme that was asked for by its text, or why it cannot be compared.
    fn own(&self, scheme: &SchemeSpec, search: &Search<'_>, pool: &Pool) -> Result<Run, String> {
        let whole = |setting: &Setting| self.replay.run(setting, self.replay.jobs());
        let prompt = Setting::new(scheme.clone());
        let run = match self.method {
            Method::Replay => whole(&prompt).filter(|run| run.delay == 0).or_else(|| {
                let late = families::MUS.par_iter().map(|mu| Setting {
                    close: Close::Incremental,
                    mu: Some(*mu),
                    ..prompt.clone()
                });
                late.filter_map(|setting| whole(&setting)).min_by(|a, b| search.order(a, b))
            }),
            Method::ClosedForms => self.by_formula(&prompt, pool),
        };
        let Question { max_delay, max_work, .. } = *self.question;
        match run {
            None if self.method == Method::ClosedForms => {
                Err(format!("fewer than {ROUNDS_MIN} rounds say nothing of it"))
            }
            None => Err("it cannot be replayed on this trace".into()),
            Some(run) if run.delay > max_delay => {
                Err(format!("its jobs are up to {} rounds late, not {max_delay}", run.delay))
            }
            Some(run) if run.work > max_work => {
                Err(format!("it takes {} times the uncoded work, more than {max_work}", run.work))
            }
            Some(run) => Ok(run),
        }
    }

    /// A scheme by its closed form.
    fn by_formula(&self, setting: &Setting, pool: &Pool) -> Option<Run> {
        let (time_per_job, load, coverage) =
            formulas::of(&setting.scheme, self.replay.workers(), pool, self.replay.growth())?;
        let work = load * self.replay.workers() as f64;
        Some(Run {
            setting: setting.clone(),
            delay: 0,
            load,
            work,
            coverage,
            exact: coverage == 1.0,
            time_per_job,
            seconds: None,
        })
    }

    /// Times per job of a scheme on traces drawn again.
    fn again(&self, run: &Run, orders: &[Vec<usize>]) -> Vec<f64> {
        let drawn = |order: &Vec<usize>| match (&run.seconds, self.method) {
            (Some(seconds), _) => {
                order.iter().map(|job| seconds[*job]).sum::<f64>() / order.len() as f64
            }
            (None, Method::Replay) => {
                self.replay.reordered(&run.setting, order).unwrap_or(run.time_per_job)
            }
            (None, Method::ClosedForms) => {
                let pool = Pool::new(
                    order.iter().flat_map(|job| self.replay.rows()[*job].iter().copied()),
                );
                self.by_formula(&run.setting, &pool)
                    .map_or(run.time_per_job, |run| run.time_per_job)
            }
        };
        orders.par_iter().map(drawn).collect()
    }

    fn candidates(&self, best: &[Run], pool: &Pool, tick: &(dyn Fn() + Sync)) -> Vec<Candidate> {
        let rows = self.replay.rows();
        let orders =
            bootstrap::resamples(rows.len(), bootstrap::run_length(rows), self.question.seed);
        let drawn: Vec<Vec<f64>> =
            best.par_iter().map(|run| self.again(run, &orders)).inspect(|_| tick()).collect();
        let gain = |time: f64, uncoded: f64| if uncoded > 0.0 { 1.0 - time / uncoded } else { 0.0 };
        let candidate = |(run, times): (&Run, &Vec<f64>)| {
            let gains =
                times.iter().zip(&drawn[0]).map(|(time, uncoded)| gain(*time, *uncoded)).collect();
            let formula = formulas::of(
                &run.setting.scheme,
                self.replay.workers(),
                pool,
                self.replay.growth(),
            );
            Candidate {
                scheme: run.setting.scheme.clone(),
                close: run.setting.close,
                mu: run.setting.mu,
                delay: run.delay,
                load: run.load,
                work: run.work,
                time_per_job: run.time_per_job,
                gain: gain(run.time_per_job, best[0].time_per_job),
                bounds: Bounds::of(times.clone(), gains),
                coverage: run.coverage,
                exact: run.exact,
                closed_form: formula.map(|(time, ..)| time),
                reason: String::new(),
            }
        };
        best.iter().zip(&drawn).map(candidate).collect()
    }

    fn verdict(&mut self, mut candidates: Vec<Candidate>, tried: &[Run]) -> Plan {
        let uncoded = candidates.iter().find(|candidate| candidate.scheme == "uncoded").cloned();
        let uncoded = uncoded.unwrap_or_else(|| unreachable!("uncoded is always a candidate"));
        let whole = |candidate: &Candidate| {
            candidate.time_per_job / candidate.coverage.max(f64::MIN_POSITIVE)
        };
        let eligible =
            || candidates.iter().filter(|candidate| candidate.exact || self.question.inexact);
        let fastest =
            eligible().min_by(|a, b| whole(a).total_cmp(&whole(b))).unwrap_or(&uncoded).clone();
        let sound = |candidate: &&Candidate| {
            candidate.bounds.gain_low >= -GAIN_MIN
                && 1.0 - whole(candidate) / uncoded.time_per_job.max(f64::MIN_POSITIVE) >= GAIN_MIN
        };
        let choice = eligible()
            .filter(sound)
            .min_by(|a, b| whole(a).total_cmp(&whole(b)))
            .unwrap_or(&uncoded)
            .clone();
        for candidate in &mut candidates {
            candidate.reason = verdict::reason(candidate, &choice);
        }
        let mut causes: Vec<Cause> = self
            .shares
            .iter()
            .map(|(part, before)| causes::of_shares(*before, uncoded.time_per_job, *part))
            .collect();
        causes.extend(causes::of_workers(&self.replay, uncoded.time_per_job));
        let mut stats = StragglerStats::new(self.replay.workers());
        self.replay.rows().iter().for_each(|row| stats.push(row));
        let why = verdict::why(&choice, &fastest, &causes, &stats.summary());
        self.notes.extend(verdict::notes(self.question, self.replay.jobs(), &uncoded, &choice));
        let tried: Vec<Point> = tried.iter().map(point).collect();
        Plan {
            workers: self.replay.workers(),
            jobs: self.replay.jobs(),
            method: self.method,
            growth: self.question.growth,
            baseline: uncoded.time_per_job,
            recommended: choice.scheme.to_string(),
            gain: choice.gain,
            why,
            candidates,
            front: front(&tried, self.question.max_work),
            causes,
            notes: std::mem::take(&mut self.notes),
            tried,
        }
    }
}

fn uncoded() -> Setting {
    Setting::new(SchemeSpec::uncoded())
}

fn point(run: &Run) -> Point {
    Point {
        scheme: run.setting.scheme.to_string(),
        close: run.setting.close,
        mu: run.setting.mu,
        delay: run.delay,
        work: run.work,
        time_per_job: run.time_per_job,
        exact: run.exact,
    }
}

/// The exact ones that nothing beats in both work and time, the least work first.
fn front(tried: &[Point], max_work: f64) -> Vec<Point> {
    let mut allowed: Vec<&Point> =
        tried.iter().filter(|point| point.exact && point.work <= max_work).collect();
    allowed.sort_by(|a, b| {
        a.work
            .total_cmp(&b.work)
            .then(a.time_per_job.total_cmp(&b.time_per_job))
            .then(a.delay.cmp(&b.delay))
    });
    let mut fastest = f64::INFINITY;
    allowed.retain(|point| {
        let better = point.time_per_job < fastest;
        fastest = fastest.min(point.time_per_job);
        better
    });
    allowed.into_iter().cloned().collect()
}
