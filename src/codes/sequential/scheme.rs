//! The trait of schemes: who computes what, when a round may close, which weights are final.

use super::SchemeFacts;
use crate::codes::Report;
use crate::ids::{Job, Part, Run, Task, Units, WeightedResult, Worker, WorkerSet};
use std::ops::Range;

/// What a scheme has to know beside the results.
#[derive(Debug)]
pub enum RoundEvent<'a> {
    /// A round begins: the first one, the first after a [restart](Scheme::restart), or the next
    /// after one that was closed. It is told once per round.
    Opened {
        /// Workers that will do nothing in it.
        dead: &'a WorkerSet,
    },
    /// A worker will finish none of the tasks it has in this round; what it has returned stays.
    Gone(Worker),
    /// A worker that was said to be gone is there again.
    Back(Worker),
    /// A worker has dropped the tasks it had and will ask again in this round.
    Dropped(Worker),
    /// The results of a worker are lost: those of jobs that are not decoded, and of decoded jobs
    /// from `from` on. If that opens a task of a decoded job again, its round is open again too.
    /// Where that [cannot be](SchemeFacts::reopens), `from` is none.
    Lost {
        /// Whose.
        worker: Worker,
        /// The first decoded job that is to be decoded again.
        from: Option<Job>,
        /// Where the tasks go that are open again.
        reopened: &'a mut Vec<Task>,
    },
    /// A job is refused: nothing more is done for it.
    GivenUp(Job),
    /// The run does not (any longer) wait for lost workers: any worker may take what is kept for
    /// those that come back.
    NoReturns,
}

/// What happens to a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultUse {
    /// The scheme does not want it (any more).
    Unwanted,
    /// It counts; its weight is known once the job is decoded.
    Wanted,
}

/// What a round can still come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// A close, if all other workers answer.
    Open,
    /// A close with a part of the batch lost, once waiting is no use.
    Degradable,
    /// Nothing.
    Blocked {
        /// The jobs that cannot be completed.
        jobs: Vec<Job>,
        /// The units of the batch that no worker can supply: what a refused step names. It may be
        /// none where the scheme cannot tell.
        units: Vec<Units>,
    },
}

/// Who computes what, when a round may close, and which weights make the gradients.
///
/// A scheme is a state machine without clock, I/O and randomness. Its driver does this:
///
/// 1. It opens a round: [`RoundEvent::Opened`].
/// 2. It asks for the tasks of every idle worker ([`assign`]), and again whenever a worker has
///    answered all it had, or an event may have brought work for those who had none.
/// 3. It reports every result ([`returned`]), and what happens to workers ([`on`]).
/// 4. After each of these it asks whether the round may close without those who are still out
///    ([`admits`]), and if so how good the decode would be ([`quality`]): a decode beyond the
///    gate waits for one more answer.
/// 5. It closes the round and learns which jobs can be decoded now ([`close`]).
/// 6. It fetches the weights of these ([`settle`]), as often as it likes until the next round is
///    opened.
/// 7. When workers are gone for good it asks what the round can still come to ([`outlook`]). A
///    round that is blocked is begun again ([`restart`]), or its jobs are refused
///    ([`RoundEvent::GivenUp`]) and it is closed.
/// 8. When results are lost that had counted ([`RoundEvent::Lost`]), a job may be open again: then
///    it goes on at 2, and the same job is settled once more.
///
/// [`assign`]: Scheme::assign
/// [`returned`]: Scheme::returned
/// [`on`]: Scheme::on
/// [`admits`]: Scheme::admits
/// [`quality`]: Scheme::quality
/// [`close`]: Scheme::close
/// [`settle`]: Scheme::settle
/// [`outlook`]: Scheme::outlook
/// [`restart`]: Scheme::restart
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::codes::sequential::{RoundEvent, ResultUse};
/// use codedgrad::ids::{Worker, WorkerSet};
/// let mut scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(4, 4, 0..1)?;
/// let mut tasks = Vec::new();
/// let mut results = Vec::new();
/// let mut decoded = Vec::new();
/// scheme.on(RoundEvent::Opened { dead: &WorkerSet::empty(4) });
/// for worker in [Worker(1), Worker(2)] {
///     scheme.assign(worker, &mut tasks);
///     assert_eq!(scheme.returned(worker, tasks.pop().unwrap()), ResultUse::Wanted);
/// }
/// let missing = WorkerSet::of(4, [Worker(0), Worker(3)]);
/// assert!(scheme.admits(&missing));
/// scheme.close(&missing, &[None, Some(0.5), Some(1.0), None], &mut decoded);
/// assert_eq!(scheme.settle(decoded[0], &mut results).residual, 0.0);
/// assert_eq!(results.len(), 2);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub trait Scheme: Send {
    /// Numbers fixed by the parameters.
    fn facts(&self) -> &SchemeFacts;
    /// The tasks an idle worker should do now, none if there is nothing for it in this round.
    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>);
    /// What a task consists of: goes with it to the worker.
    fn parts(&self, worker: Worker, task: Task) -> &[Part];
    /// A result is in. A second one of the same task is unwanted.
    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse;
    /// Something else has happened. False only of a worker that is back and must not be asked for
    /// tasks in this round.
    fn on(&mut self, event: RoundEvent<'_>) -> bool;
    /// Whether the round may close without these workers. Fewer missing are never harder to do
    /// without.
    fn admits(&self, missing: &WorkerSet) -> bool;
    /// How good the decode would be if the round closed now: asked once [`admits`](Scheme::admits)
    /// says yes.
    fn quality(&mut self) -> Report;
    /// What the round can still come to if no worker of `gone` ever answers in it.
    fn outlook(&self, gone: &WorkerSet) -> Outlook;
    /// Ends the round and names the jobs that can be decoded now. `late` tells of every worker how
    /// late it was with all its tasks: the time it took by the time the round took. It has none for
    /// workers that are missing or had no task, and is empty when the times of a given-up round say
    /// nothing.
    fn close(&mut self, missing: &WorkerSet, late: &[Option<f64>], decoded: &mut Vec<Job>);
    /// The weights of all results of a job that can be decoded, and how good the decode is.
    fn settle(&mut self, job: Job, out: &mut Vec<WeightedResult>) -> Report;
    /// Goes on with other jobs, all of the earlier ones being decoded or refused, or with the
    /// current ones from the beginning; what was learnt of the workers stays.
    fn restart(&mut self, jobs: Range<Job>);
    /// What lets a simulation skip steps, where there is such.
    fn fast_forward(&mut self) -> Option<&mut dyn FastForward> {
        None
    }
}

/// What lets a simulation follow a scheme by more than one task at a time.
pub trait FastForward: Scheme {
    /// What [`Scheme::assign`] would hand out, as runs of tasks that the scheme need not hear of
    /// one by one. Only the last task of a run can let the round close or bring new ones.
    fn runs(&mut self, worker: Worker, out: &mut Vec<Run>);
    /// What [`Scheme::returned`] would be told of each task of a run, in their order. A run is one
    /// task where nothing else is said.
    fn returned_run(&mut self, run: Run) {
        self.returned(run.worker, run.first);
    }
    /// When the round will close if the runs handed out end at these times and no worker stops
    /// before. A caller may report every run that has ended by then at once, in order of workers.
    /// None if the scheme has to be told of one after the other, as where workers that are done go
    /// on with what others have left.
    fn closes_at(&self, _runs: &[Run], _ends: &[f64]) -> Option<f64> {
        None
    }
}
