//! What goes into the engine and what comes out of it.

use crate::codes::{Dispute, GateError, Report};
use crate::ids::{OrderId, Part, Round, Step, Summand, Task, Units, Worker, WorkerSet};
use crate::spelling::several;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// The run starts.
    Begin,
    /// A worker has finished a task; `finite` is false when its result has NaN or infinite entries.
    /// Whether that still counts, its order tells.
    Done {
        /// Who.
        worker: Worker,
        /// In which order.
        order: OrderId,
        /// Which task.
        task: Task,
        /// Whether all entries of the result are finite.
        finite: bool,
        /// Digest of the result as it was received, where results are told apart.
        digest: Option<u128>,
    },
    /// A worker has dropped what was left of an order, as it was told to. One that drops it unasked
    /// is to be told as lost.
    Idle {
        /// Who.
        worker: Worker,
        /// Of which order.
        order: OrderId,
    },
    /// A worker is lost, and its results with it; `kept` tells whether what was already made of
    /// them survives: the sums that were asked for.
    Lost {
        /// Who.
        worker: Worker,
        /// Whether sums survive it.
        kept: bool,
    },
    /// A worker that is lost, or will be at once, does not come back.
    Left {
        /// Who.
        worker: Worker,
        /// Whether it was told to end: a run that may be made by fewer waits for another in its
        /// place.
        told: bool,
    },
    /// A worker is to leave, and says so in time: its present task counts if it is finished, and
    /// [`Action::LetGo`] tells when it is not needed any more. One that goes before that is lost.
    Leaving {
        /// Who.
        worker: Worker,
    },
    /// Enough workers hold the sum of a step: it can be committed.
    Summed {
        /// Which step.
        step: Step,
        /// Digest of the sum.
        digest: u64,
    },
    /// The sum of a step that was asked for cannot be had.
    SumFailed {
        /// Which step.
        step: Step,
        /// Why.
        why: SumFailure,
    },
    /// A worker has applied a step.
    Applied {
        /// Who.
        worker: Worker,
        /// Which step.
        step: Step,
        /// Digest of its parameters afterwards, if it took one.
        digest: Option<u64>,
    },
    /// A worker has taken over a state in which everything below `next` is applied; steps that were
    /// sent to it before are void.
    Synced {
        /// Who.
        worker: Worker,
        /// First step it has not applied.
        next: Step,
    },
    /// The digest of the parameters of the driver's own replica, after a step.
    Own {
        /// Which step.
        step: Step,
        /// The digest.
        digest: u64,
    },
    /// A worker goes on from the state that it was sent; once per model.
    StateLoaded {
        /// Who.
        worker: Worker,
        /// One of the last steps before the state's first that is not applied.
        step: Step,
        /// Digest of its parameters after it, if one was taken.
        digest: Option<u64>,
    },
    /// A state that was handed over for a worker is of no use to it.
    BadState {
        /// Who needs one.
        worker: Worker,
        /// Whose it was; none = the driver's own.
        from: Option<Worker>,
        /// Whether that is the word of the worker that needs one; else the driver has seen it.
        refused: bool,
    },
    /// A worker waits long for another's state: a third that waits for orders is to hand over its
    /// own.
    StateOverdue {
        /// Who needs one.
        worker: Worker,
        /// Whose is waited for.
        from: Worker,
    },
    /// The run is to end once a step is decided, or the next one if that is later and can be
    /// computed without those who leave.
    Finish {
        /// Which step.
        after: Step,
    },
    /// A worker that was lost is there again, or there for the first time in place of one that was
    /// declared lost before. Nothing counts any more that came of its life before; it must be
    /// offered the sums that wait for holders. Ignored of a worker that is alive.
    Joined {
        /// Who.
        worker: Worker,
        /// First step not applied in the state that it has, which is one of this run; none if it
        /// has none.
        next: Option<Step>,
    },
    /// A worker cannot get a step that it was sent, since no worker that is left has it. It will
    /// apply none of the steps on their way, and do none of the tasks after them, until it has
    /// taken over a state.
    StepUnavailable {
        /// Who.
        worker: Worker,
    },
    /// Time has passed: the deadline of [`Engine::deadline`](super::Engine::deadline) may be due.
    Tick,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Give a worker tasks, to be done in this order.
    Compute {
        /// To whom.
        worker: Worker,
        /// Which order.
        order: OrderId,
        /// In which round.
        round: Round,
        /// Which tasks, and what each consists of.
        tasks: Vec<(Task, Vec<Part>)>,
    },
    /// Tell a worker that the run does not wait for its tasks any more.
    Abandon {
        /// Whom.
        worker: Worker,
        /// What is left of which order.
        order: OrderId,
        /// Whether a result that comes all the same may still count.
        late_counts: bool,
    },
    /// Drop a result that the run does not want.
    Discard {
        /// Whose.
        worker: Worker,
        /// Which.
        task: Task,
    },
    /// The results of a worker that go into a step are not finite, though it said so: forget them
    /// and name it. It does nothing more until the step is decided.
    Erase {
        /// Whose.
        worker: Worker,
        /// Of which step.
        step: Step,
    },
    /// A round is over.
    Close(RoundReport),
    /// Let workers that can begin to sum a step while they compute it: it will be made of these
    /// terms, each with weight 1, unless something comes between. Before their tasks, and once more
    /// where the sum that they have begun has failed.
    Expect {
        /// Which step.
        step: Step,
        /// Its terms, in the order of summation; of those who hold one, any will do.
        terms: Vec<Summand>,
    },
    /// Sum a step's gradient and let workers hold it; a sum of that step that was asked for before
    /// is void.
    Sum {
        /// Which step.
        step: Step,
        /// Its terms, in the order of summation. The result that the scheme has named is the first
        /// of those that hold one, the others hold equal results.
        terms: Vec<Summand>,
        /// How good the decode is.
        decode: Report,
        /// Of these two must hold it before it is committed, or the one that there is: workers that
        /// are there and need no state.
        counted: WorkerSet,
    },
    /// Forget what is held of a step that is not decided: it begins again, as do all that are under
    /// way.
    Restart {
        /// Which step.
        step: Step,
    },
    /// From here on the run is planned for these workers alone: more are gone than the scheme can
    /// do without, some are gone for long, or some have come back.
    Replanned {
        /// Who takes part.
        members: WorkerSet,
        /// What the scheme for them is called.
        scheme: String,
        /// The scheme that was asked for, where that does not fit so few; told once for each
        /// number of workers.
        misfit: Option<String>,
        /// Whether a round was open, which begins again.
        again: bool,
    },
    /// This step and those that follow are computed under the scheme that was chosen last
    /// ([`Engine::switch`](super::Engine::switch)).
    Switched {
        /// Which step.
        step: Step,
    },
    /// The step's gradient is decided: write it down.
    Commit {
        /// Which step.
        step: Step,
        /// Digest of its sum.
        digest: u64,
        /// Workers of whose results something in it was computed with parameters that are not known
        /// to be right; none where workers report no digests of them.
        unverified: Vec<Worker>,
    },
    /// Send a committed step to a worker.
    Apply {
        /// To whom.
        worker: Worker,
        /// Which step.
        step: Step,
    },
    /// Refuse the step everywhere alike: no worker has a finite gradient for these units.
    Skip {
        /// Which step.
        step: Step,
        /// Units of the batch that no finite result covers; all of them if it is the sum that is
        /// not finite.
        units: Vec<Units>,
        /// Which of the two.
        because: Refusal,
    },
    /// Send a worker away: no state is any good for it.
    Dismiss {
        /// Whom.
        worker: Worker,
        /// Why none is.
        why: UnfitReason,
    },
    /// A worker that leaves, or is [drained](super::Engine::drain), is not needed any more: it may
    /// end once it has applied what it was sent. It counts as gone from here on.
    LetGo {
        /// Whom.
        worker: Worker,
        /// Whether it has said that it leaves; else it is drained.
        leaves: bool,
    },
    /// A worker's parameters differ from the others' after a step.
    Diverged {
        /// Who.
        worker: Worker,
        /// After which step.
        step: Step,
    },
    /// Let a worker take over the state of another. Steps sent to it before are void once it has.
    Resync {
        /// Who needs it.
        worker: Worker,
        /// Who provides it.
        from: Worker,
    },
    /// Let a worker take over a state that the driver itself has, such as the last checkpoint: no
    /// worker can provide one. Only where [`restores`](super::Settings::restores) was set.
    Restore {
        /// Who needs it.
        worker: Worker,
    },
    /// All steps are decided.
    Finish,
}

/// Why a step is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The results that are there and finite do not suffice: others are not finite.
    NotFinite,
    /// All results are finite and their sum is not.
    Overflow,
}

/// Why the sum of a step cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumFailure {
    /// A worker that helped to sum is lost, or too few hold the sum in time; all results that it is
    /// made of are there.
    Interrupted,
    /// Too few workers hold it in time, and a worker is lost of whose results it is made.
    ResultLost,
    /// A result of this worker that is in it is not finite, though its worker said so.
    ResultNotFinite(Worker),
    /// All results are finite, and their sum is not.
    NotFinite,
}

/// Why no state is any good for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfitReason {
    /// It has refused the driver's own, or those of several workers.
    RefusesStates,
    /// Three times running its parameters differed from the others', though it had taken over
    /// theirs: it computes other bits.
    Differs,
}

/// How a round went, times in seconds since it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundReport {
    /// Which round.
    pub round: Round,
    /// When it was opened, in the driver's time.
    pub opened_at: f64,
    /// When it was closed, in the driver's time.
    pub closed_at: f64,
    /// When each worker had finished all its tasks; none if it had not by the close, or had none.
    pub arrivals: Vec<Option<f64>>,
    /// Workers whose results had entries that are not finite: treated as missing.
    pub erased: Vec<Worker>,
    /// Load assigned in this round, in batches.
    pub work: f64,
    /// Workers whose results are known to be wrong.
    pub wrong: Vec<Worker>,
}

/// How many stragglers a scheme tolerates, in words.
fn tolerated(stragglers: usize) -> String {
    match stragglers {
        0 => "the scheme tolerates no straggler".into(),
        _ => format!("the scheme tolerates any {}", several(stragglers, "straggler")),
    }
}

/// Who differs from whom, in words.
fn against(sides: &[WorkerSet]) -> String {
    let sides: Vec<String> = sides.iter().map(|side| format!("workers {{{side}}}")).collect();
    sides.join(" against ")
}

/// From which state a run can go on whose parameters were equal last after this step.
fn resumed(agreed: Option<Step>, next: Step) -> String {
    let next = next.0;
    match agreed {
        Some(agreed) => format!(
            "They were equal last after {agreed}: go on with --resume from a checkpoint of that \
             step or an earlier one (first={next} or less)"
        ),
        None => format!(
            "They have not been equal after any step: begin again with what the run began with \
             (first={next} or less)"
        ),
    }
}

/// Why a run cannot go on.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Too many workers are gone for the scheme.
    #[error(
        "{step} cannot be decoded without the dead workers {{{dead}}}: {}",
        tolerated(*tolerance)
    )]
    TooManyLost {
        /// The current step.
        step: Step,
        /// Who is dead.
        dead: WorkerSet,
        /// What the scheme tolerates.
        tolerance: usize,
    },
    /// Workers have left that the scheme needs.
    #[error(
        "{step} cannot be computed: workers {{{left}}} have left the run and do not come back, and \
         {}",
        tolerated(*tolerance)
    )]
    Left {
        /// The current step.
        step: Step,
        /// Who has left.
        left: WorkerSet,
        /// What the scheme tolerates.
        tolerance: usize,
    },
    /// Workers never answered.
    #[error(
        "{step}: waited {waited_seconds:.1} s (max_wait) and workers {{{silent}}} never came; the \
         scheme cannot decode without them"
    )]
    MaxWait {
        /// The current step.
        step: Step,
        /// How long.
        waited_seconds: f64,
        /// Who never came.
        silent: WorkerSet,
    },
    /// The decode must not be applied.
    #[error("{step} must not be applied")]
    Gate {
        /// The current step.
        step: Step,
        /// The numbers.
        source: GateError,
    },
    /// Results differ, and none of them can be accepted.
    #[error("{step}: {dispute}")]
    Disputed {
        /// The current step.
        step: Step,
        /// Who differs.
        dispute: Dispute,
    },
    /// Workers have different parameters after a step, and no side has more of them.
    #[error(
        "{step}: parameters differ after it, and no side has more workers: {}. {}. With three \
         workers or s=2 the larger side goes on next time; verify=0 is for optimizers that are not \
         deterministic",
        against(sides),
        resumed(*agreed, *next)
    )]
    Tied {
        /// After which step.
        step: Step,
        /// Who has come to the same parameters by itself, side by side.
        sides: Vec<WorkerSet>,
        /// The last step before it after which all that were compared were equal.
        agreed: Option<Step>,
        /// First step not applied in the last state that all had, which may be the run's first one.
        next: Step,
    },
    /// All workers hold different bytes for one decoded vector, and none can be told to be right.
    #[error(
        "{step}: {worker} holds other bytes of the decoded gradient than the others, and no two \
         hold the same"
    )]
    DifferentBytes {
        /// The current step.
        step: Step,
        /// Whose bytes differ from the first holder's.
        worker: Worker,
    },
    /// A decoded vector was made twice, and not enough workers took hold of it.
    #[error(
        "{step}: the gradient was reduced twice, but workers {{{silent}}} did not acknowledge it \
         within max_wait ({waited_seconds:.1} s each time)"
    )]
    Unheld {
        /// The current step.
        step: Step,
        /// How long.
        waited_seconds: f64,
        /// Who is there and does not hold it.
        silent: WorkerSet,
    },
    /// A worker is behind, and no other can bring it up to date.
    #[error("{worker} has not the current parameters, and no live worker can hand them over")]
    NoState {
        /// Who is behind.
        worker: Worker,
    },
}
