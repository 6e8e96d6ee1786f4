//! Schemes: who is assigned which task, and when a result's weight is final.
//!
//! [`Scheme`] is the only thing the round engine and the trainer know of a code. A one-round code
//! becomes a scheme by [`Lift`].

mod among;
#[cfg(test)]
mod closure;
mod lift;
pub(super) mod m_sgc;
mod models;
mod slots;
pub(super) mod sr_sgc;

pub use among::Among;
pub use lift::Lift;
pub use m_sgc::{MSgc, MSgcParameters};
pub use models::{Accept, StragglerModel};
pub use slots::SlotKind;
pub use sr_sgc::{SrSgc, SrSgcParameters};

use super::{Choice, Decoder, GradientCode, Report};
use crate::ids::{Job, Part, Run, Share, Task, Units, Worker, WorkerSet};
use std::fmt;
use std::ops::Range;

/// What is fixed about a scheme once its parameters are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemeFacts {
    /// Number of workers, `n`.
    pub workers: usize,
    /// Units of each batch.
    pub units: u32,
    /// Rounds a job may take beyond its first, `T`.
    pub delay: usize,
    /// Largest fraction of a batch that one worker touches in a round.
    pub load: f64,
    /// Any so many stragglers of one round are tolerated.
    pub tolerance: usize,
    /// Largest normalised error a decode may have; 0 for exact schemes.
    pub error_max: f64,
    /// Whether every finished task counts by itself, and not only all of a worker's round together.
    pub partial: bool,
    /// Whether a worker asks for its tasks one at a time, within the round: each costs a pull. Else
    /// the order that opens the round has them all.
    pub pulls: bool,
    /// Whether gradients are plain sums of results that are plain sums: no coefficient and no
    /// weight but 1.
    pub plain: bool,
    /// Any so many wrong workers are found out (of every group, where it votes); 0 = everybody is
    /// trusted.
    pub wrong: usize,
    /// Whether a task's result is the gradient at the mixture of its parts' data, not the mixture
    /// of their gradients.
    pub mixture: bool,
}

impl SchemeFacts {
    /// Whether an answer that comes after its round has closed may still count.
    #[must_use]
    pub fn takes_late(&self) -> bool {
        self.delay > 0 && !self.partial
    }
}

/// Members of a group who cannot be told right from wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispute {
    /// Which group.
    pub group: usize,
    /// Its members.
    pub members: WorkerSet,
    /// How many members returned each of the different results, most first.
    pub votes: Vec<usize>,
    /// How many equal ones were needed.
    pub needed: usize,
}

impl fmt::Display for Dispute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, members, votes, needed } = self;
        let counts: Vec<String> = votes.iter().map(usize::to_string).collect();
        write!(
            f,
            "group {group} (workers {members}) returned {} different results ({} times), ",
            votes.len(),
            counts.join(", ")
        )?;
        write!(
            f,
            "none of them the {needed} times that are needed: more workers are wrong than b={}, or \
             they are not ",
            needed - 1
        )?;
        write!(f, "bitwise deterministic")
    }
}

/// Over what a scheme runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Horizon {
    /// Number of workers, `n`.
    pub workers: usize,
    /// Units of each batch; as many as the scheme itself cuts it into if not given.
    pub units: Option<u32>,
    /// Its jobs.
    pub jobs: Range<Job>,
    /// Which stragglers a round may close without.
    pub accept: Accept,
}

/// Rounds of the longest window, and rows of the largest table of tasks.
const WINDOW_MAX: usize = 100_000;
const ROWS_MAX: usize = 1 << 22;

/// Up to here weights of few messages are not worth exchanging for shorter ones.
const AMPLIFICATION_FINE: f64 = 2.0;

/// The shares that nobody outside `missing` holds.
fn unheld(code: &dyn GradientCode, missing: &WorkerSet) -> impl Iterator<Item = Share> + use<> {
    let mut held = vec![false; code.facts().shares()];
    for worker in missing.complement().iter() {
        code.row(worker).iter().for_each(|(share, _)| held[share.index()] = true);
    }
    (0..).map(Share).zip(held).filter(|(_, held)| !held).map(|(share, _)| share)
}

/// The weights to use: those of as few messages as possible, unless they amplify and the shortest
/// ones amplify less.
fn weigh(decoder: &mut dyn Decoder, weights: &mut [f64]) -> Report {
    let fewest = decoder.weights(Choice::Fewest, weights);
    if fewest.amplification <= AMPLIFICATION_FINE {
        return fewest;
    }
    let mut shortest = vec![0.0; weights.len()];
    let report = decoder.weights(Choice::MinimumNorm, &mut shortest);
    if report.amplification >= fewest.amplification {
        return fewest;
    }
    weights.copy_from_slice(&shortest);
    report
}

/// The report of an uncoded sum.
pub(crate) const UNCODED: Report =
    Report { decodable: true, residual: 0.0, amplification: 1.0, coverage: 1.0, error: 0.0 };

/// The worst of several decodes in every respect; that of an uncoded sum if there are none.
pub(crate) fn worst(reports: impl Iterator<Item = Report>) -> Report {
    reports.fold(UNCODED, |worst, report| Report {
        decodable: worst.decodable && report.decodable,
        residual: worst.residual.max(report.residual),
        amplification: worst.amplification.max(report.amplification),
        coverage: worst.coverage.min(report.coverage),
        error: worst.error.max(report.error),
    })
}

/// One result and its final weight in the gradient of its job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fold {
    /// Whose result.
    pub worker: Worker,
    /// The task it answers.
    pub task: Task,
    /// Its decode weight.
    pub weight: f64,
}

/// Who computes what, when a round may close, and which weights make the gradients.
///
/// The rounds of a scheme are driven like this: every idle worker is asked for tasks ([`assign`]),
/// its results are reported ([`returned`]), and as soon as everybody still out may be missing
/// ([`admits`]) the round is closed ([`close`]) and its weights are fetched ([`settle`]). Asking
/// for tasks after a close begins the next round.
///
/// [`assign`]: Scheme::assign
/// [`returned`]: Scheme::returned
/// [`admits`]: Scheme::admits
/// [`close`]: Scheme::close
/// [`settle`]: Scheme::settle
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::ids::{Worker, WorkerSet};
/// let mut scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(4, 4, 0..1)?;
/// let (mut tasks, mut folds, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
/// for worker in [Worker(1), Worker(2)] {
///     scheme.assign(worker, &mut tasks);
///     assert!(scheme.returned(worker, tasks.pop().unwrap()));
/// }
/// let missing = WorkerSet::of(4, [Worker(0), Worker(3)]);
/// assert!(scheme.admits(&missing));
/// scheme.close(&missing, &mut decoded);
/// assert_eq!(scheme.settle(decoded[0], &mut folds).residual, 0.0);
/// assert_eq!(folds.len(), 2);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub trait Scheme: Send {
    /// Numbers fixed by the parameters.
    fn facts(&self) -> &SchemeFacts;
    /// Begins the next round, as asking for tasks does; nothing if one is open.
    fn open(&mut self);
    /// The tasks an idle worker should do now, none if there is nothing for it in this round.
    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>);
    /// What [`assign`](Scheme::assign) would hand out, as runs of tasks that nobody needs to hear
    /// of one by one: only the last task of a run can let the round close or bring new ones.
    fn assign_runs(&mut self, worker: Worker, out: &mut Vec<Run>) {
        let mut tasks = Vec::new();
        self.assign(worker, &mut tasks);
        out.extend(tasks.into_iter().map(|task| Run::one(worker, task, self.units(worker, task))));
    }
    /// What a task consists of: goes with it to the worker.
    fn parts(&self, worker: Worker, task: Task) -> &[Part];
    /// Units of a task's parts.
    fn units(&self, worker: Worker, task: Task) -> u32 {
        self.parts(worker, task).iter().map(|part| part.units.count()).sum()
    }
    /// The first tasks of a run.
    fn run_start(&self, run: Run, count: u32) -> Run {
        let units = run.tasks().take(count as usize).map(|task| self.units(run.worker, task)).sum();
        Run { count, units, ..run }
    }
    /// What a task is called in a picture of rounds, when its job is in its `age`-th round (from
    /// 0); jobs are counted from 1 there.
    fn label(&self, task: Task, _age: usize) -> String {
        format!("n.{}", task.job.0 + 1)
    }
    /// A result is in. Idempotent; false if it is not wanted (any more).
    fn returned(&mut self, worker: Worker, task: Task) -> bool;
    /// The same, of a result whose bytes have this digest.
    fn returned_as(&mut self, worker: Worker, task: Task, _digest: u128) -> bool {
        self.returned(worker, task)
    }
    /// Workers whose results of this round are known to be wrong.
    fn wrong(&self) -> Vec<Worker> {
        Vec::new()
    }
    /// Where results differ and none of them can be accepted any more.
    fn dispute(&self) -> Option<Dispute> {
        None
    }
    /// The results of whole runs are in, in the order of their tasks.
    fn returned_runs(&mut self, runs: &[Run]) {
        for run in runs {
            run.tasks().for_each(|task| {
                self.returned(run.worker, task);
            });
        }
    }
    /// Whether the round may close without these workers.
    fn admits(&self, missing: &WorkerSet) -> bool;
    /// How many of these workers have to answer, in this order, until the rest of the run's workers
    /// may be missing; more than there are if even all of them do not suffice. Fewer missing are
    /// never harder to do without.
    fn answers_needed(&self, order: &[Worker]) -> usize {
        let mut needed = (0, order.len() + 1);
        while needed.0 < needed.1 {
            let middle = usize::midpoint(needed.0, needed.1);
            let answered = WorkerSet::of(self.facts().workers, order[..middle].iter().copied());
            if self.admits(&answered.complement()) {
                needed.1 = middle;
            } else {
                needed.0 = middle + 1;
            }
        }
        needed.0
    }
    /// When the workers whose answers are in suffice for a close, if everybody's come at these
    /// times; none where only [`answers_needed`](Scheme::answers_needed) can tell.
    fn suffices_at(&self, _times: &[f64]) -> Option<f64> {
        None
    }
    /// When the round will close if the runs handed out end at these times and nobody stops before;
    /// every run that has ended by then may be reported at once, in order of workers. None if the
    /// scheme has to be told of one after the other.
    fn closes_at(&self, _runs: &[Run], _ends: &[f64]) -> Option<f64> {
        None
    }
    /// Whether the round can still come to a close if nobody of `gone` ever answers again.
    fn hopes(&self, gone: &WorkerSet) -> bool {
        self.admits(gone)
    }
    /// A worker will finish none of the tasks it has in this round; what it has returned stays.
    /// Said of dead workers in every round.
    fn gone(&mut self, _worker: Worker) {}
    /// A worker that is said to be gone is there again. Whether it may be asked for tasks in this
    /// round: if not, it does nothing more before the next one.
    fn back(&mut self, _worker: Worker) -> bool {
        true
    }
    /// A worker has dropped the tasks it had and will ask again in this round.
    fn dropped(&mut self, _worker: Worker) {}
    /// Whether it may close without them with a part of the batch lost, once waiting is no use.
    fn salvages(&self, _missing: &WorkerSet) -> bool {
        false
    }
    /// How good the decode would be if the round closed now: asked once [`admits`](Scheme::admits)
    /// says yes, so that a decode beyond its gate can wait for one more answer.
    fn quality(&mut self) -> Report;
    /// How late a worker was with all its tasks of the round: the time it took by the time the
    /// round takes, if it finished by the close. Told before [`close`](Scheme::close), for schemes
    /// that rank workers.
    fn observe(&mut self, _worker: Worker, _ratio: Option<f64>) {}
    /// Ends the round and names the jobs that can be decoded now.
    fn close(&mut self, missing: &WorkerSet, decoded: &mut Vec<Job>);
    /// Whether an accepted result counts with weight 1 for its job whatever else happens, so that
    /// it can be added to the sum of its worker's results at once.
    fn is_final(&self, _task: Task) -> bool {
        self.facts().partial
    }
    /// Results whose weights, which may be 0, became final with the close of the last round,
    /// whether or not their jobs are decoded, and how good those decodes are.
    fn finals(&mut self, _folds: &mut Vec<Fold>) -> Report {
        UNCODED
    }
    /// The weights of all results of a job that can be decoded.
    fn settle(&mut self, job: Job, folds: &mut Vec<Fold>) -> Report;
    /// The results of a worker are gone: those of jobs that are not decoded, and of decoded jobs
    /// from `from` on. Names the tasks that are open again; if a decoded job is among theirs, its
    /// round is open again too. Where that [cannot be](Scheme::undoes), `from` is none.
    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>);
    /// Whether a decoded job can be opened again. If not, all that is undecided is
    /// [begun anew](Scheme::restart).
    fn undoes(&self) -> bool {
        true
    }
    /// The jobs that cannot be completed if nobody of `gone` answers in this round, where that
    /// stops the round.
    fn blocked(&self, gone: &WorkerSet) -> Vec<Job>;
    /// A job is refused: nothing more is done for it.
    fn give_up(&mut self, job: Job);
    /// Goes on with other jobs, all of the earlier ones being decoded or refused, or with the
    /// current ones from the beginning; what was learnt of the workers stays.
    fn restart(&mut self, jobs: Range<Job>);
    /// The batch units that no worker outside `missing` can supply in this round: what a refused
    /// step names.
    fn uncovered(&self, missing: &WorkerSet) -> Vec<Units>;
}
