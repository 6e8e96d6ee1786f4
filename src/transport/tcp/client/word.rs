//! What a worker's trainer has said of the steps that it applied, for a coordinator that may not
//! have heard it.

use crate::ids::Step;

/// The digests of a trainer's parameters, after the last step of each model.
///
/// A coordinator lets a result count only if it knows the parameters that it was computed with.
/// What a worker said over a connection that broke may be lost, so over the next one it says again
/// what it said of the steps before the first one that it lacks: [`Word::again`] right after the
/// welcome. What the trainer says of such a step later passes [`Word::is_due`].
#[derive(Debug)]
pub(super) struct Word {
    models: u64,
    /// In the order of the steps, at most one of each model.
    said: Vec<(Step, u64)>,
    /// Steps of which the coordinator waits for a word over this connection though it was not sent
    /// them over it.
    due: Vec<Step>,
}

impl Word {
    pub(super) fn new(models: Option<u64>) -> Self {
        Self { models: models.unwrap_or(1).max(1), said: Vec::new(), due: Vec::new() }
    }

    /// The trainer says that it has applied a step.
    pub(super) fn applied(&mut self, step: Step, digest: Option<u64>) {
        // Without one the step changed nothing, or none is taken; what was said of the step before
        // it still holds.
        if let Some(digest) = digest {
            self.said.retain(|(said, _)| said.0 % self.models != step.0 % self.models);
            self.said.push((step, digest));
        }
    }

    /// The trainer has taken over a state in which all below `next` is applied.
    pub(super) fn taken(&mut self, next: Step, digests: &[u64]) {
        let before = self.before(next);
        // There are fewer steps than models at first, and no digests where none are taken.
        let count = before.len().min(digests.len());
        let last = before[before.len() - count..].iter().zip(&digests[digests.len() - count..]);
        self.said = last.map(|(step, digest)| (*step, *digest)).collect();
        self.due.clear();
    }

    /// The last steps before `next`, one per model.
    fn before(&self, next: Step) -> Vec<Step> {
        (next.0.saturating_sub(self.models)..next.0).map(Step).collect()
    }

    /// There is another connection, over which all below `next` is offered: what is to be said
    /// again.
    pub(super) fn again(&mut self, next: Step) -> Vec<(Step, u64)> {
        let is_said = |step: &Step| self.said.iter().any(|(said, _)| said == step);
        self.due = self.before(next).into_iter().filter(|step| !is_said(step)).collect();
        self.said.clone()
    }

    /// Whether a step of an earlier connection is waited for; once.
    pub(super) fn is_due(&mut self, step: Step) -> bool {
        let at = self.due.iter().position(|due| *due == step);
        at.map(|at| self.due.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests;
