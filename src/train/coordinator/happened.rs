//! What happens in a run beside its steps.

use super::waiting::WaitingRound;
use crate::ids::{Round, Step, Worker};
use std::fmt;

/// Something that happened, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// The current step, or the one that it is about.
    pub step: Step,
    /// The round that was opened last.
    pub round: Round,
    /// What.
    pub what: IncidentKind,
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, what, .. } = self;
        match what.worker() {
            Some(worker) => write!(f, "{step}: {worker}: {what}"),
            None => write!(f, "{step}: {what}"),
        }
    }
}

/// What can happen beside steps.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum IncidentKind {
    /// A worker that was lost is there again, or one that had not come.
    Joined {
        /// Who.
        worker: Worker,
        /// Whether it has been there before.
        again: bool,
    },
    /// A worker is lost.
    Lost {
        /// Who.
        worker: Worker,
        /// Why, as far as is known.
        reason: String,
    },
    /// A worker has left, and does not come back by itself.
    Left {
        /// Who.
        worker: Worker,
        /// Why, in its words.
        reason: String,
        /// Whether it was told to end.
        told: bool,
    },
    /// A worker leaves as soon as it is not needed any more.
    Leaving {
        /// Who.
        worker: Worker,
        /// After so many seconds it ends in any case.
        seconds: f64,
    },
    /// A worker that has said that it leaves, or is to be done without, is not needed any more.
    LetGo {
        /// Who.
        worker: Worker,
        /// Whether it leaves.
        leaves: bool,
    },
    /// A worker is sent away, for no state of the run is any good for it.
    SentAway {
        /// Who.
        worker: Worker,
        /// Why.
        reason: String,
    },
    /// A result does not count.
    Erased {
        /// Whose.
        worker: Worker,
        /// Why.
        why: Erasure,
    },
    /// A step that was decided cannot be had by a worker any more, which takes over a state.
    Missed {
        /// Who.
        worker: Worker,
    },
    /// A worker takes over a state.
    Resynced {
        /// Who.
        worker: Worker,
        /// Whose state; none: that of the observer.
        from: Option<Worker>,
        /// Whether it is the one that the worker begins with.
        begins: bool,
    },
    /// A state that was handed over is of no use.
    BadState {
        /// Who handed it over, or cannot go on from it.
        worker: Worker,
        /// What is wrong with it.
        problem: String,
    },
    /// A worker's parameters differ from the others'; it takes over a state.
    Diverged {
        /// Who.
        worker: Worker,
    },
    /// A worker has changed numbers of its result of a step after it had announced them.
    Changed {
        /// Who.
        worker: Worker,
        /// Whether the step is decided: then it may be made of them.
        is_decided: bool,
    },
    /// The run is planned for other workers than before.
    Planned {
        /// For whom.
        members: Vec<Worker>,
        /// How many seats it has.
        of: usize,
        /// What the scheme for them is called.
        scheme: String,
        /// The scheme that was asked for, where that does not fit so few; told once for each
        /// number of workers.
        misfit: Option<String>,
        /// Whether a round was open, which begins again.
        again: bool,
    },
    /// Workers that are to be done without stay, for the run could not go on.
    DrainRefused {
        /// Who.
        workers: Vec<Worker>,
    },
    /// A worker has ended the run for all workers: the step that this is about is its last one.
    Ended {
        /// Who.
        by: Worker,
    },
    /// A round is open for much longer than rounds usually are.
    Stuck {
        /// For whom it waits.
        waiting: Box<WaitingRound>,
    },
    /// A round that was stuck is closed.
    Unstuck {
        /// How long it was open.
        seconds: f64,
    },
}

/// Why a result does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erasure {
    /// It is not finite, as its worker says.
    NotFinite,
    /// It is not finite, which its worker did not say.
    SaidFinite,
    /// Results are voted on, and it has not come by here.
    NotReceived,
    /// It is wrong; said once for each worker.
    Wrong,
}

impl IncidentKind {
    /// Its name in the list of a run's events.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Joined { .. } => "join",
            Self::Lost { .. } => "lost",
            Self::Left { .. } | Self::LetGo { leaves: true, .. } => "left",
            Self::LetGo { leaves: false, .. } => "drained",
            Self::Leaving { .. } => "leaving",
            Self::DrainRefused { .. } => "drain-refused",
            Self::Erased { .. } => "erased",
            Self::Resynced { begins: true, .. } => "begins",
            Self::Missed { .. }
            | Self::Resynced { .. }
            | Self::BadState { .. }
            | Self::SentAway { .. } => "missed",
            Self::Diverged { .. } => "diverged",
            Self::Changed { .. } => "changed",
            Self::Planned { .. } => "replanned",
            Self::Ended { .. } => "ended",
            Self::Stuck { .. } => "stuck",
            Self::Unstuck { .. } => "unstuck",
        }
    }

    /// Whom it is about, if something is wrong with one worker, or was.
    #[must_use]
    pub fn worker(&self) -> Option<Worker> {
        match self {
            Self::Joined { worker, .. }
            | Self::Lost { worker, .. }
            | Self::Left { worker, .. }
            | Self::LetGo { worker, .. }
            | Self::Leaving { worker, .. }
            | Self::SentAway { worker, .. }
            | Self::Erased { worker, .. }
            | Self::Missed { worker }
            | Self::Resynced { worker, .. }
            | Self::BadState { worker, .. }
            | Self::Diverged { worker }
            | Self::Changed { worker, .. } => Some(*worker),
            Self::Planned { .. }
            | Self::DrainRefused { .. }
            | Self::Ended { .. }
            | Self::Stuck { .. }
            | Self::Unstuck { .. } => None,
        }
    }

    /// Whether something is wrong with a worker, or was. To come for the first time, begin with
    /// another's state, leave, or be done without is no fault.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        let is_meant = matches!(
            self,
            Self::Joined { again: false, .. }
                | Self::Resynced { begins: true, .. }
                | Self::Leaving { .. }
                | Self::LetGo { .. }
        );
        self.worker().is_some() && !is_meant
    }
}

/// What happened, without the worker that it happened to.
impl fmt::Display for IncidentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { again: true, .. } => f.write_str("is there again"),
            Self::Joined { again: false, .. } => f.write_str("is there"),
            Self::Lost { reason, .. } => write!(f, "lost: {reason}"),
            Self::Left { reason, .. } => write!(f, "has left the run: {reason}"),
            Self::Leaving { seconds, .. } => write!(f, "is about to leave, within {seconds} s"),
            Self::DrainRefused { workers } => {
                let names = Worker::listed(workers);
                write!(f, "not taken out, for the run could not go on: {names} of the file `drain`")
            }
            Self::LetGo { leaves: true, .. } => f.write_str("left the run after giving notice"),
            Self::LetGo { leaves: false, .. } => {
                f.write_str("is taken out of the run, as the file `drain` says")
            }
            Self::SentAway { reason, .. } => write!(f, "is sent away: {reason}"),
            Self::Erased { why, .. } => f.write_str(match why {
                Erasure::NotFinite => "its message is not finite and was discarded",
                Erasure::SaidFinite => {
                    "its result is not finite, but it had reported it as finite; the result was \
                     discarded, and the step does without it"
                }
                Erasure::NotReceived => {
                    "its message did not arrive to be voted on and was discarded"
                }
                Erasure::Wrong => {
                    "its result is wrong and was left out (said once; run.jsonl has every step)"
                }
            }),
            Self::Missed { .. } => {
                f.write_str("cannot get a step that was decided; takes over a state")
            }
            Self::Resynced { from: Some(from), begins: true, .. } => {
                write!(f, "begins with the state of {from}")
            }
            Self::Resynced { from: Some(from), .. } => {
                write!(f, "takes over the state of {from}")
            }
            Self::Resynced { from: None, .. } => {
                f.write_str("takes over the state kept beside the workers")
            }
            Self::BadState { problem, .. } => f.write_str(problem),
            Self::Diverged { .. } => {
                f.write_str("its parameters differ from the others'; resynchronised")
            }
            Self::Changed { is_decided: true, .. } => f.write_str(
                "has changed its gradient after announcing it; the step is already committed, \
                 perhaps with the earlier values",
            ),
            Self::Changed { is_decided: false, .. } => f.write_str(
                "has changed its gradient after announcing it; the step is made again without it",
            ),
            Self::Planned { members, of, scheme, misfit, .. } => {
                let count = members.len();
                match count == *of {
                    true => write!(f, "planned for all {of} workers under {scheme}")?,
                    false => {
                        let names = Worker::listed(members);
                        write!(f, "planned for {count} of {of} workers ({names}) under {scheme}")?;
                    }
                }
                // Who asked for a code is told that there is none.
                match misfit {
                    Some(asked) => write!(f, ", since {asked} does not fit {count}"),
                    None => Ok(()),
                }
            }
            Self::Ended { by } => write!(f, "the last one: {by} has ended the run"),
            Self::Stuck { waiting } => waiting.fmt(f),
            Self::Unstuck { seconds } => write!(f, "goes on after {seconds:.1} s"),
        }
    }
}
