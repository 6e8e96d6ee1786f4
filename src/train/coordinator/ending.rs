//! How a run comes to its end, and how workers leave one that goes on.

use super::failures::Failures;
use super::{Coordinator, IncidentKind, Observer, Outcome, RunError, Stopper};
use crate::ids::Worker;
use crate::schedulers::{EngineError, Input};
use crate::transport::{Dismissal, ExitReason, Order, Transport};
use std::sync::Arc;

/// What may end the run before its last step, and why it is over.
#[derive(Debug, Default)]
pub(super) struct EndState {
    pub(super) stopper: Stopper,
    pub(super) failures: Failures,
    /// Why it is over, for the workers.
    pub(super) over: Option<Arc<str>>,
    /// What workers have is not to be relied on.
    is_void: bool,
}

impl<T: Transport> Coordinator<T> {
    /// Takes note of why the run is over.
    pub(super) fn note_end(&mut self, ended: Result<Outcome, &RunError>) {
        self.ending.is_void = matches!(ended, Err(RunError::Engine(EngineError::Tied { .. })));
        let why = match ended {
            Ok(Outcome::Finished) if self.journal.step < self.config().end => {
                "a worker has finished it".into()
            }
            Ok(Outcome::Finished) => "all steps are decided".into(),
            Ok(Outcome::Left) => "all workers have left".into(),
            Ok(Outcome::Preempted) => "all workers were told to leave".into(),
            Ok(Outcome::Stopped) => "it was told to stop".into(),
            Err(error) => error.to_string().into(),
        };
        self.ending.over = Some(why);
    }

    /// Tells every worker that the run is over, and why.
    pub fn stop(&mut self) {
        let why = self.ending.over.take().unwrap_or_else(|| "it was told to stop".into());
        for worker in Worker::all(self.config().shape.workers) {
            if self.ending.is_void {
                // Told that the run is over, a script would go on and save what it has.
                let dismissal = Dismissal::Refused { reason: why.to_string() };
                self.transport.send(worker, Order::Dismiss(dismissal));
            }
            self.transport.send(worker, Order::Stop { why: Arc::clone(&why) });
        }
        self.transport.flush();
    }

    /// The last word of a worker.
    pub(super) fn parts(&mut self, worker: Worker, word: ExitReason) -> Input {
        if word.for_good {
            return Input::Left { worker, told: word.told };
        }
        // What others can do as well is no reason to end a run before its first step.
        let needed = self.waiting().is_some_and(|open| open.needed.contains(&worker));
        let when = (worker, self.journal.step, self.engine.states().next_of(worker));
        self.ending.failures.heard(when, word, self.engine.config(), needed);
        Input::Tick
    }

    /// A worker is lost, or has left.
    pub(super) fn lost(
        &mut self,
        worker: Worker,
        reason: String,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        self.journal.new.remove(&worker);
        let leaving = self.engine.leaving();
        let told = leaving.was_told(worker);
        let what = if told || leaving.has_left(worker) {
            IncidentKind::Left { worker, reason, told }
        } else {
            IncidentKind::Lost { worker, reason }
        };
        self.tell(what, observer);
        self.gone(worker)
    }

    /// A worker drops what is waited for, unasked: nothing more is to be expected of it.
    pub(super) fn give_up(
        &mut self,
        worker: Worker,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        let reason = "it has dropped its tasks unasked".to_owned();
        let dismissal = Dismissal::GivenUp { reason: reason.clone() };
        self.transport.send(worker, Order::Dismiss(dismissal));
        self.replicas.lost(worker);
        self.lost(worker, reason, observer)
    }
}
