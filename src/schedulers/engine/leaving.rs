//! Workers that leave for good, and what a run is without them.
//!
//! Nobody waits for who has left: others compute what it had, the run is planned for them, or it
//! ends with an error that names who left. But who leaves first may only be the first of all, whose
//! loops end after the same step: then the run is ended by them, and that is no error. So where a
//! round cannot close without those who have left, the error waits until somebody else is known to
//! go on, and a moment more.

use super::super::events::Action;
use super::super::roster::Roster;
use super::{Engine, Phase};
use crate::ids::Step;

/// How long after somebody has gone on the others may still leave: all may be told to end at once,
/// also those that wait for tasks, and a Python that ends takes its time where a host is busy.
const SETTLE_SECONDS: f64 = 3.0;

/// Whether the open round cannot close without workers that have left, and what that leads to.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    blocked: bool,
    /// All workers have left, and ended the run.
    ended: bool,
    /// When the run ends for it, since somebody has gone on.
    pub(super) ends_at: Option<f64>,
}

impl Leaving {
    /// The open round cannot close; [`Leaving::ends_the_run`] tells what follows.
    pub(super) fn block(&mut self) {
        self.blocked = true;
    }

    /// Whether a round that cannot close without who has left may be looked at.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The round can close after all, or is over.
    pub(super) fn unblock(&mut self) {
        (self.blocked, self.ends_at) = (false, None);
    }

    /// Whether the run is over, since it cannot go on without who has left and the others go on.
    pub(super) fn ends_the_run(&mut self, now: f64, roster: &Roster, next: Step) -> bool {
        // Nobody is there who could still leave as well.
        if roster.is_deserted() {
            return true;
        }
        // Known once, it stays known: who went on may be lost before the moment is over.
        if self.ends_at.is_none() && roster.any_goes_on(next) {
            self.ends_at = Some(now + SETTLE_SECONDS);
        }
        self.ends_at.is_some_and(|ends_at| now >= ends_at)
    }
}

impl Engine {
    /// Whether all workers have left, and ended the run together after its last decided step.
    #[must_use]
    pub fn is_ended_by_workers(&self) -> bool {
        self.leaving.ended
    }

    /// Ends the run if all workers have left after the same step.
    pub(super) fn ends_by_leaving(&mut self, out: &mut Vec<Action>) -> bool {
        // Who was lost before the last step has no part in its end, and is not waited for; who was
        // there may come back and go on.
        let last = self.roster.sent_all(self.steps.next);
        let left = self.roster.gone_for_good();
        let all = !last.is_empty() && last.iter().all(|worker| left.contains(worker));
        self.leaving.ended = self.roster.is_deserted() && self.steps.has_begun() && all;
        if self.leaving.ended {
            self.phase = Phase::Finished;
            out.push(Action::Finish);
        }
        self.leaving.ended
    }
}
