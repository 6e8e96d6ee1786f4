//! Should I code at all, and with what? The planner tries every scheme on a trace and says.
//!
//! | step | how |
//! |---|---|
//! | screening | every family's parameters, by the same [`simulate`](super::simulate) as everything else: a coarse look, then descents |
//! | whether to code | by the newer half of the trace alone |
//! | how sure | [`GainInterval`]: the older half by blocks, each under what is fastest without it |
//! | cross-check | closed forms for workers that are slow independently |
//! | causes | what no code cures: slow shares, constantly slow or dead workers, rounds in which all workers are slow |

mod causes;
mod families;
mod formulas;
mod judge;
mod question;
mod replay;
mod search;
mod unequal;
mod verdict;

pub use causes::{Cause, CauseKind};
pub(crate) use causes::{DEAD, QuickestWorkers};
pub use judge::GainInterval;
pub(crate) use judge::memory;
pub use question::{ClosingRules, PlanError, Question};

use super::Close;
use crate::codes::SchemeSpec;
use crate::codes::registry::Family;
use crate::delays::{Growth, StragglerStats, Suspicion, after_exchange};
use crate::spelling::several;
use families::spaces;
use formulas::Pool;
use judge::{Judge, ObservedGain, Seconds, TooFew};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use replay::Run;
pub(crate) use replay::{Replay, Setting};
use search::Search;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Fewer rounds (or steps) than that say too little to recommend a code, or how sure anything is.
pub const ROUNDS_MIN: usize = 20;
/// Less gain than that is not worth a code; and what costs time but for one run of rounds is not
/// recommended either.
pub const GAIN_MIN: f64 = 0.03;
/// Orders of the workers in which what is chosen is replayed, to tell how sure it is.
const ORDERS: u64 = 10;
/// Replays of a search, as a first guess for its progress.
const REPLAYS_GUESS: usize = 1500;

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
    /// Share of the uncoded time that it saves on this trace; negative where it costs time. What
    /// is fastest is so partly by luck, and saves less on others: see [`Plan::gain`].
    pub gain: f64,
    /// The same without the rounds that speak most for it, of the whole trace and of its newer
    /// half; none where there are too few rounds.
    #[serde(skip)]
    pub(crate) doubts: Option<Doubts>,
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

/// Gains of a scheme that one run of rounds does not make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Doubts {
    /// Without the block of the trace that speaks most for it.
    pub(crate) whole: f64,
    /// What its newer half says.
    newer: ObservedGain,
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
    /// How times were taken to grow with the load.
    pub growth: Growth,
    /// Time per job without a code.
    pub baseline: f64,
    /// The fastest exact scheme that the newer half of the trace speaks for, or `uncoded` where
    /// none gains [`GAIN_MIN`] there, or none surely gains anything (one-sided, at 95 %). The older
    /// half has no say: a worker may have become slow since.
    pub recommended: String,
    /// Share of the uncoded time that choosing the fastest saves on the rounds that did not choose:
    /// each block of the older half under what is fastest after it. 0 where no code is recommended.
    /// What drops samples is charged for those, as [`Candidate::time_per_job`] is not. The schemes
    /// to choose from were found on the whole trace.
    pub gain: f64,
    /// Between what the gain of choosing so lies on traces like this one, at 95 %; none where
    /// no code is recommended, and where [`Plan::why`] says what the trace has too few of.
    pub interval: Option<GainInterval>,
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

impl Candidate {
    /// Whether the newer half of the trace says that it is worth it, and surely gains.
    fn newer_is_worth_it(&self) -> bool {
        let newer = self.doubts.map(|doubts| doubts.newer);
        newer.is_some_and(|newer| newer.gain >= GAIN_MIN && newer.least > 0.0)
    }

    /// Its gain by the newer half without the rounds that speak most for it.
    fn newer_without_best(&self) -> f64 {
        self.doubts.map_or(f64::NEG_INFINITY, |doubts| doubts.newer.without_best)
    }
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

    /// Calls workers by their names, of which there is one each, wherever words name some.
    pub fn call_workers(&mut self, names: &[String]) {
        self.reword(|cause| cause.call_workers(names));
    }

    /// Calls rounds by the numbers of the trace's rows, wherever words name some.
    pub fn call_rounds(&mut self, numbers: &[u64]) {
        self.reword(|cause| cause.call_rounds(numbers));
    }

    /// Lets every cause say the same in other words; `change` gives back those before.
    fn reword(&mut self, change: impl Fn(&mut Cause) -> String) {
        for cause in &mut self.causes {
            let before = change(cause);
            // A sentence may begin with what a cause says.
            self.why = self.why.replace(&before[1..], &cause.words[1..]);
        }
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
        Ok(pool) => pool.install(|| Ok(Planner::new(question)?.plan(progress))),
        Err(_) => Ok(Planner::new(question)?.plan(progress)),
    }
}

/// What of a trace's slowness no code cures, as far as times alone tell: dead and constantly slow
/// workers, and rounds in which all workers are slow. `rows` hold the seconds of every worker's
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
    causes::of_workers(&replay, baseline, &[])
}

/// What may be chosen of all that was tried, `uncoded` first, and the seconds of its jobs.
struct Eligible<'r> {
    runs: Vec<&'r Run>,
    seconds: Vec<Seconds>,
}

impl Eligible<'_> {
    fn judge(&self) -> Judge<'_> {
        let uncoded = &self.seconds[0];
        Judge::new(uncoded, judge::fastest(&self.seconds).unwrap_or(uncoded))
    }
}

/// A question, its trace made ready.
struct Planner<'a> {
    question: &'a Question<'a>,
    replay: Replay,
    /// How strongly times follow shares, and the uncoded time before shares were evened out.
    shares: Option<(f64, f64)>,
    notes: Vec<String>,
    /// Schemes that give each worker as much as its speed allows, where speeds differ for good.
    less: Vec<Run>,
}

impl<'a> Planner<'a> {
    fn new(question: &'a Question<'a>) -> Result<Self, PlanError> {
        let mut notes = Vec::new();
        let replay =
            |rows| Replay::new(rows, question.growth, question.dispatch, question.accumulate);
        let mut trace = replay(question.rows.to_vec());
        let mut shares = None;
        if let Some(costs) = question.share_costs {
            match causes::balanced(question.rows, costs) {
                Some((even, explained)) => {
                    question.check_evened(&even)?;
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
        let less = unequal::settings(&trace).into_iter();
        let less = less.filter_map(|it| trace.run(&it.under(question.rules), trace.jobs()));
        let less = less.collect();
        Ok(Self { question, replay: trace, shares, notes, less })
    }

    fn plan(mut self, progress: &(dyn Fn(f64) + Sync)) -> Plan {
        let done = AtomicUsize::new(0);
        let tick = || {
            let done = done.fetch_add(1, Relaxed) as f64;
            progress(done / (done + REPLAYS_GUESS as f64));
        };
        let pool = Pool::new(self.replay.rows().iter().flatten().copied());
        let search = Search { replay: &self.replay, max_work: self.question.max_work, tick: &tick };
        let uncoded = uncoded().under(self.question.rules);
        let uncoded = self.replay.run(&uncoded, self.replay.jobs());
        let uncoded = uncoded.unwrap_or_else(|| unreachable!("uncoded suits any workers"));
        let mut best = vec![uncoded.clone()];
        let mut tried = vec![uncoded];
        let found: Vec<Vec<Run>> =
            self.question.families.par_iter().map(|family| self.family(family, &search)).collect();
        for runs in found {
            let allowed = runs.iter().filter(|run| run.work <= self.question.max_work);
            best.extend(allowed.min_by(|a, b| search.order(a, b)).cloned());
            tried.extend(runs);
        }
        if self.question.families.iter().any(|family| family.name == "interval") {
            let allowed = self.less.iter().filter(|run| run.work <= self.question.max_work);
            best.extend(allowed.min_by(|a, b| search.order(a, b)).cloned());
            tried.extend(self.less.iter().cloned());
        }
        for scheme in self.question.also {
            match self.own(scheme, &search) {
                Ok(run) => {
                    let known = best.iter().any(|other| other.setting.scheme == *scheme);
                    best.extend((!known).then(|| run.clone()));
                    tried.push(run);
                }
                Err(why) => self.notes.push(format!("{scheme} is left out: {why}")),
            }
        }
        let eligible = self.eligible(&tried);
        let mut candidates = self.candidates(&best, &pool, eligible.as_ref());
        candidates.sort_by(|a, b| {
            a.time_per_job.total_cmp(&b.time_per_job).then(a.work.total_cmp(&b.work))
        });
        let plan = self.verdict(candidates, &tried, eligible.as_ref());
        progress(1.0);
        plan
    }

    /// What choosing the fastest saves on the rounds that did not choose, and how sure that is
    /// where a code is chosen.
    fn saved(
        &self,
        judged: &Eligible<'_>,
        is_coded: bool,
    ) -> (Option<f64>, Option<Result<GainInterval, TooFew>>) {
        let (judge, schemes) = (judged.judge(), &judged.seconds);
        let walk = judge.walk(schemes);
        let orders = || self.in_other_orders(judged, &walk);
        let sure = || judge.interval(&walk, schemes, orders);
        (Some(judge.gain(&walk, schemes)), is_coded.then(sure))
    }

    /// What of a family was tried on the whole trace.
    fn family(&self, family: &Family, search: &Search<'_>) -> Vec<Run> {
        let spaces = spaces(family, &self.question.limits(), self.question.rules);
        spaces.into_par_iter().flat_map(|space| search.descend(&space)).collect()
    }

    /// A scheme that was asked for by its text, or why it cannot be compared.
    fn own(&self, scheme: &SchemeSpec, search: &Search<'_>) -> Result<Run, String> {
        let whole = |setting: &Setting| self.replay.run(setting, self.replay.jobs());
        let prompt = Setting::new(scheme.clone()).under(self.question.rules);
        let late = || {
            let late = families::MUS.par_iter().map(|mu| Setting {
                close: Close::Incremental,
                mu: Some(*mu),
                ..prompt.clone()
            });
            late.filter_map(|setting| whole(&setting)).min_by(|a, b| search.order(a, b))
        };
        let run = match self.question.rules {
            ClosingRules::Usual => whole(&prompt).filter(|run| run.delay == 0).or_else(late),
            ClosingRules::Paper => whole(&prompt),
        };
        let Question { max_delay, max_work, .. } = *self.question;
        match run {
            None => Err("it cannot be replayed on this trace".into()),
            Some(run) if run.delay > max_delay => {
                let delay = several(run.delay, "round");
                Err(format!("its jobs are up to {delay} late, not {max_delay}"))
            }
            Some(run) if run.work > max_work => {
                Err(format!("it takes {} times the uncoded work, more than {max_work}", run.work))
            }
            Some(run) => Ok(run),
        }
    }

    /// None where the trace is too short to choose.
    fn eligible<'r>(&self, tried: &'r [Run]) -> Option<Eligible<'r>> {
        let Question { max_work, inexact, .. } = *self.question;
        let may_be = |run: &&Run| (run.exact || inexact) && run.work <= max_work;
        let enough = self.replay.jobs() >= ROUNDS_MIN;
        enough.then(|| {
            let runs: Vec<&Run> = tried.iter().filter(may_be).collect();
            Eligible { seconds: runs.iter().map(|run| seconds(run)).collect(), runs }
        })
    }

    /// Seconds of what a walk chooses, by place, with the workers in other orders: as likely as the
    /// trace's own where workers are alike, but for what treats them differently.
    fn in_other_orders(
        &self,
        eligible: &Eligible<'_>,
        walk: &judge::Walk,
    ) -> Vec<BTreeMap<usize, Seconds>> {
        let chosen = walk.all_chosen();
        let in_order = |order| {
            let mut draw = ChaCha8Rng::seed_from_u64(order);
            let mut workers: Vec<usize> = (0..self.replay.workers()).collect();
            workers.sort_by_cached_key(|_| draw.next_u64());
            let replay = self.replay.in_order(&workers);
            let alike = chosen.iter().filter(|place| eligible.runs[**place].alike);
            let timed = alike.filter_map(|place| {
                let run = replay.run(&eligible.runs[*place].setting, replay.jobs())?;
                Some((*place, seconds(&run)))
            });
            timed.collect()
        };
        (0..ORDERS).into_par_iter().map(in_order).collect()
    }

    fn candidates(
        &self,
        best: &[Run],
        pool: &Pool,
        eligible: Option<&Eligible<'_>>,
    ) -> Vec<Candidate> {
        let gain = |time: f64, uncoded: f64| if uncoded > 0.0 { 1.0 - time / uncoded } else { 0.0 };
        let judge = eligible.map(Eligible::judge);
        let candidate = |run: &Run| {
            let formula = formulas::of(
                &run.setting.scheme,
                self.replay.workers(),
                pool,
                self.replay.growth(),
            );
            let doubts = judge.as_ref().map(|judge| {
                let seconds = seconds(run);
                let whole = judge.whole(&seconds).without_best;
                Doubts { whole, newer: judge.deciding(&seconds) }
            });
            Candidate {
                scheme: run.setting.scheme.clone(),
                close: run.setting.close,
                mu: run.setting.mu,
                delay: run.delay,
                load: run.load,
                work: run.work,
                time_per_job: run.time_per_job,
                gain: gain(run.time_per_job, best[0].time_per_job),
                doubts,
                coverage: run.coverage,
                exact: run.exact,
                closed_form: formula.map(|(time, ..)| time),
                reason: String::new(),
            }
        };
        best.iter().map(candidate).collect()
    }

    fn verdict(
        &mut self,
        mut candidates: Vec<Candidate>,
        tried: &[Run],
        judged: Option<&Eligible<'_>>,
    ) -> Plan {
        let uncoded = candidates.iter().find(|candidate| candidate.scheme == "uncoded").cloned();
        let uncoded = uncoded.unwrap_or_else(|| unreachable!("uncoded is always a candidate"));
        let whole = |candidate: &Candidate| {
            candidate.time_per_job / candidate.coverage.max(f64::MIN_POSITIVE)
        };
        let eligible =
            || candidates.iter().filter(|candidate| candidate.exact || self.question.inexact);
        let fastest =
            eligible().min_by(|a, b| whole(a).total_cmp(&whole(b))).unwrap_or(&uncoded).clone();
        // Whether to code at all is for the newer half of the trace to say.
        let is_spoken_for = |candidate: &&Candidate| candidate.newer_without_best() >= 0.0;
        let late = after_exchange(self.question.rows)
            .filter(|it| self.question.taken_anywhere && matches!(it, Suspicion::WaitedFor { .. }));
        let to_code =
            late.is_none() && eligible().filter(is_spoken_for).any(Candidate::newer_is_worth_it);
        let choice = eligible()
            .filter(|candidate| {
                candidate.scheme == "uncoded" || to_code && is_spoken_for(candidate)
            })
            .min_by(|a, b| whole(a).total_cmp(&whole(b)))
            .unwrap_or(&uncoded)
            .clone();
        let is_coded = choice.scheme != "uncoded";
        let (gain, interval) = match judged {
            Some(judged) => self.saved(judged, is_coded),
            None => (None, None),
        };
        for candidate in &mut candidates {
            candidate.reason = verdict::reason(candidate, &choice);
        }
        let mut causes: Vec<Cause> = self
            .shares
            .iter()
            .map(|(part, before)| causes::of_shares(*before, uncoded.time_per_job, *part))
            .collect();
        if late.is_none() {
            causes.extend(causes::of_workers(&self.replay, uncoded.time_per_job, &self.less));
        }
        let mut stats = StragglerStats::new(self.replay.workers());
        self.replay.rows().iter().for_each(|row| stats.push(row));
        let saved = (gain, interval, self.replay.jobs());
        let why = match &late {
            Some(late) => format!("Do not plan from these times: {late}."),
            None => verdict::why(&choice, &fastest, saved, (&causes, &stats.summary())),
        };
        self.notes.extend(verdict::notes(self.question, self.replay.jobs(), &uncoded, &choice));
        let tried: Vec<Point> = tried.iter().map(point).collect();
        Plan {
            workers: self.replay.workers(),
            jobs: self.replay.jobs(),
            growth: self.question.growth,
            baseline: uncoded.time_per_job,
            recommended: choice.scheme.to_string(),
            gain: gain.filter(|_| is_coded).unwrap_or_default(),
            interval: interval.and_then(Result::ok),
            why,
            candidates,
            front: front(&tried, self.question.max_work),
            causes,
            notes: std::mem::take(&mut self.notes),
            tried,
        }
    }
}

/// Seconds of a run's jobs, the newest first, for a whole batch each.
fn seconds(run: &Run) -> Seconds {
    let coverage = run.coverage.max(f64::MIN_POSITIVE);
    Seconds::of(run.seconds.iter().rev().map(|seconds| seconds / coverage))
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
