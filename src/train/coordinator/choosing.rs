//! What comes of a policy's choices.

use super::Coordinator;
use crate::codes::SchemeSpec;
use crate::ids::Step;
use crate::train::StepRecord;
use crate::train::policy::{Policy, SchemeInUse};
use crate::transport::{Notice, Transport};

/// A policy, what steps are computed under, and what they will be.
///
/// Of every step, [`PolicyState::note`] gives what is written down; with the record,
/// [`PolicyState::decided`] gives the scheme that the engine is to switch to, if any; when the
/// engine has, [`PolicyState::switched`] is to be called.
pub(super) struct PolicyState {
    policy: Box<dyn Policy>,
    using: SchemeInUse,
    /// What was chosen and is not used yet.
    next: Option<SchemeInUse>,
    /// The last step that is disturbed.
    disturbed: Option<u64>,
}

impl PolicyState {
    /// For a run that begins with something.
    pub(super) fn new(policy: Box<dyn Policy>, using: SchemeInUse) -> Self {
        Self { policy, using, next: None, disturbed: None }
    }

    /// What the step that is decided now was computed under.
    pub(super) fn note(&mut self, step: Step) -> SchemeInUse {
        let disturbed = self.disturbed.is_some_and(|last| step.0 <= last);
        let using = SchemeInUse { disturbed, ..self.using.clone() };
        self.using.why = None;
        using
    }

    /// A worker was lost, came or took over a state while a step was made.
    fn disturbed(&mut self, step: Step) {
        self.disturbed = Some(step.0 + 1);
    }

    /// A step is decided.
    pub(super) fn decided(&mut self, record: &StepRecord) -> Option<SchemeSpec> {
        let choice = self.policy.decided(record)?;
        let (scheme, using) = (choice.scheme.clone(), SchemeInUse::from(choice));
        if self.next.is_none() && using.scheme == self.using.scheme {
            self.using = using;
            return None;
        }
        self.next = Some(using);
        Some(scheme)
    }

    /// Steps are computed under what was chosen last from now on.
    pub(super) fn switched(&mut self) {
        if let Some(next) = self.next.take() {
            self.using = next;
        }
    }
}

impl<T: Transport> Coordinator<T> {
    /// The same, with a policy that decides under which scheme the run goes on; it begins under
    /// that of `using`, of which the engine was made.
    #[must_use]
    pub fn planned_by(mut self, policy: Box<dyn Policy>, using: SchemeInUse) -> Self {
        self.choosing = Some(PolicyState::new(policy, using));
        self
    }

    /// What has come of a worker may say that what the step takes says nothing.
    pub(super) fn watch(&mut self, notice: &Notice) {
        let disturbs = matches!(
            notice,
            Notice::Lost { .. }
                | Notice::Joined { .. }
                | Notice::StepUnavailable
                | Notice::StateLoaded { .. }
        );
        if let Some(choosing) = self.choosing.as_mut().filter(|_| disturbs) {
            choosing.disturbed(self.journal.step);
        }
    }

    /// Asks the policy, now that a step is decided.
    pub(super) fn choose(&mut self, record: &StepRecord) {
        if let Some(choosing) = &mut self.choosing
            && let Some(scheme) = self.run_clock.pause(|| choosing.decided(record))
        {
            self.engine.switch(scheme);
        }
    }
}
