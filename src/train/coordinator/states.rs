//! States on their way from one worker to another: who gave them, and what became of them.

use super::replicas::{Resync, SentState};
use super::{Coordinator, IncidentKind, Observer, RunError};
use crate::ids::{Step, Worker};
use crate::schedulers::{EngineError, Input, UnfitReason};
use crate::transport::{Dismissal, Order, State, Transport};
use std::sync::Arc;

impl<T: Transport> Coordinator<T> {
    fn send_state(&mut self, worker: Worker, from: Option<Worker>, state: State) {
        self.replicas.sent_state(worker, SentState { from, next: state.next });
        self.transport.send(worker, Order::LoadState { state: Arc::new(state) });
    }

    /// Has a worker hand over its state for another.
    pub(super) fn ask_for_state(
        &mut self,
        needy: Worker,
        from: Worker,
        observer: &mut dyn Observer<T::Vector>,
    ) {
        // Who is known to be gone, though the time to say so has not come, hands over nothing:
        // another will be asked.
        if let Some(lost) = self.run_clock.withheld_loss(from) {
            return self.inbox.postpone(from, lost);
        }
        let begins = self.journal.new.remove(&needy);
        self.tell(IncidentKind::Resynced { worker: needy, from: Some(from), begins }, observer);
        let (applied, asked_at) = (self.engine.states().next_of(from), self.run_clock.now());
        self.replicas.asked(Resync { needy, from, applied, asked_at });
        self.transport.send(from, Order::SendState { needy });
    }

    /// Sends a worker the state that the observer has.
    pub(super) fn restore(
        &mut self,
        worker: Worker,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<(), RunError> {
        let state = observer.state().ok_or(EngineError::NoState { worker })?;
        let begins = self.journal.new.remove(&worker);
        self.tell(IncidentKind::Resynced { worker, from: None, begins }, observer);
        self.inbox.add([Input::Synced { worker, next: state.next }]);
        self.send_state(worker, None, state);
        Ok(())
    }

    /// Sends a worker away for which no state is any good.
    pub(super) fn dismiss(
        &mut self,
        worker: Worker,
        why: UnfitReason,
        observer: &mut dyn Observer<T::Vector>,
    ) {
        let reason = match why {
            UnfitReason::RefusesStates => "it can go on from no state of this run",
            UnfitReason::Differs => {
                "its parameters differ from the others' three times running, though it took over \
                 theirs each time: the body of a step does something else on each worker (numbers \
                 drawn by a generator of its own, what depends on the worker's number), or its \
                 hardware, or its versions of libraries, compute other bits"
            }
        };
        let reason = reason.to_owned();
        self.tell(IncidentKind::SentAway { worker, reason: reason.clone() }, observer);
        // It is refused for good: the run does not wait for it.
        self.inbox.add([Input::Left { worker, told: false }]);
        self.ending.failures.sent_away(worker, self.journal.step, &reason);
        self.transport.send(worker, Order::Dismiss(Dismissal::Refused { reason }));
    }

    /// A worker hands over its state for another, which is sent it unless it cannot be right.
    pub(super) fn handed_over(
        &mut self,
        donor: Worker,
        needy: Worker,
        state: State,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        let next = state.next;
        let Some(applied) = self.replicas.answered(needy, donor, next) else {
            return Input::Tick;
        };
        let steps = applied..=self.engine.states().next_of(donor);
        let lengths: Vec<usize> = state.vectors.iter().map(Vec::len).collect();
        let wrong = if !steps.contains(&next) {
            Some(format!(
                "a state in which all before {next} is applied, where that is {} to {}",
                steps.start(),
                steps.end()
            ))
        } else {
            let right = observer.state_lengths().filter(|right| *right != lengths);
            right.map(|right| {
                format!("a state of vectors of {lengths:?} numbers, where {right:?} are right")
            })
        };
        if let Some(what) = wrong {
            let problem = format!("hands over {what}; another's is taken");
            self.tell(IncidentKind::BadState { worker: donor, problem }, observer);
            return Input::BadState { worker: needy, from: Some(donor), refused: false };
        }
        self.send_state(needy, Some(donor), state);
        Input::Synced { worker: needy, next }
    }

    /// A worker has taken over the state in which all before `next` is applied, or cannot.
    pub(super) fn taken(
        &mut self,
        (worker, next): (Worker, Step),
        digests: &[u64],
        unfit: Option<String>,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        let Some(SentState { from, .. }) = self.replicas.taken(worker, next) else {
            return Input::Tick;
        };
        let Some(reason) = unfit else {
            let steps = (0..next.0).rev().map(Step);
            let mut words = steps
                .zip(digests.iter().rev())
                .map(|(step, digest)| Input::StateLoaded { worker, step, digest: Some(*digest) });
            let nothing =
                Input::StateLoaded { worker, step: Step(next.0.saturating_sub(1)), digest: None };
            let last = words.next().unwrap_or(nothing);
            self.inbox.add(words);
            return last;
        };
        let whose =
            from.map_or("kept beside the workers".to_owned(), |donor| format!("of {donor}"));
        let problem = format!("cannot go on from the state {whose}: {reason}");
        self.tell(IncidentKind::BadState { worker, problem }, observer);
        Input::BadState { worker, from, refused: true }
    }
}
