//! States on their way from one worker to another: who gave them, and what became of them.

use super::{Coordinator, Observer, RunError};
use crate::ids::{Step, Worker};
use crate::schedulers::{EngineError, Input};
use crate::transport::{Dismissal, Order, State, Transport};
use std::sync::Arc;

/// A worker that waits for another's state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resync {
    pub(super) needy: Worker,
    pub(super) from: Worker,
    /// First step that the other had not applied when it was asked.
    pub(super) applied: Step,
}

/// A state that a worker was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentState {
    /// Whose it is; none = the observer's.
    from: Option<Worker>,
    /// First step not applied in it.
    next: Step,
}

impl<T: Transport> Coordinator<T> {
    fn send_state(&mut self, worker: Worker, from: Option<Worker>, state: State) {
        self.sent_states.insert(worker, SentState { from, next: state.next });
        // What was on its way to it before is void.
        self.unapplied[worker.index()] = 0;
        self.transport.send(worker, Order::Take { state: Arc::new(state) });
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
        if let Some(lost) = self.pace.withheld_loss(from) {
            return self.notices.push_back((from, lost));
        }
        observer.fault(self.step.0, needy, &format!("takes over the state of {from}"));
        self.resyncs.retain(|resync| resync.needy != needy);
        self.resyncs.push(Resync { needy, from, applied: self.engine.next_of(from) });
        self.transport.send(from, Order::Provide { needy });
    }

    /// Sends a worker the state that the observer has.
    pub(super) fn restore(
        &mut self,
        worker: Worker,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<(), RunError> {
        let state = observer.state().ok_or(EngineError::NoState { worker })?;
        observer.fault(self.step.0, worker, "takes over the state kept beside the workers");
        self.inputs.push_back(Input::Synced { worker, next: state.next });
        self.send_state(worker, None, state);
        Ok(())
    }

    /// Sends a worker away for which no state is any good.
    pub(super) fn dismiss(&mut self, worker: Worker, observer: &mut dyn Observer<T::Vector>) {
        let reason = "it can go on from no state of this run".to_owned();
        observer.fault(self.step.0, worker, &format!("is sent away: {reason}"));
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
        // Who was lost and is there again may have been sent another one already, and tasks after
        // it.
        let asked = |resync: &Resync| (resync.needy, resync.from) == (needy, donor);
        let Some(Resync { applied, .. }) = self.resyncs.iter().copied().find(asked) else {
            return Input::Tick;
        };
        // It answers what it was asked before the needy worker was lost and came back; the other
        // answer is on its way.
        let before = self.outdated.iter().position(|asked| *asked == (needy, donor));
        if next < applied
            && let Some(at) = before
        {
            self.outdated.remove(at);
            return Input::Tick;
        }
        self.resyncs.retain(|resync| resync.needy != needy);
        let steps = applied..=self.engine.next_of(donor);
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
            observer.fault(self.step.0, donor, &format!("hands over {what}; another's is taken"));
            return Input::BadState { worker: needy, from: Some(donor), refused: false };
        }
        self.send_state(needy, Some(donor), state);
        Input::Synced { worker: needy, next }
    }

    /// A worker has taken over a state, or cannot.
    pub(super) fn taken(
        &mut self,
        worker: Worker,
        digests: &[u64],
        unfit: Option<String>,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        let sent = self.sent_states.remove(&worker);
        let Some(SentState { from, next }) = sent else { return Input::Tick };
        let Some(reason) = unfit else {
            let steps = (0..next.0).rev().map(Step);
            let mut words = steps.zip(digests.iter().rev()).map(|(step, digest)| Input::Taken {
                worker,
                step,
                digest: Some(*digest),
            });
            let nothing =
                Input::Taken { worker, step: Step(next.0.saturating_sub(1)), digest: None };
            let last = words.next().unwrap_or(nothing);
            self.inputs.extend(words);
            return last;
        };
        let whose =
            from.map_or("kept beside the workers".to_owned(), |donor| format!("of {donor}"));
        observer.fault(
            self.step.0,
            worker,
            &format!("cannot go on from the state {whose}: {reason}"),
        );
        Input::BadState { worker, from, refused: true }
    }
}
