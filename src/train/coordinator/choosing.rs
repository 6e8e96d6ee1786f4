//! What comes of a policy's choices.

use super::Coordinator;
use crate::codes::SchemeSpec;
use crate::train::StepRecord;
use crate::train::policy::{Policy, Using};
use crate::transport::Transport;

/// A policy, what steps are computed under, and what they will be.
///
/// Of every step, [`Choosing::note`] gives what is written down; with the record,
/// [`Choosing::decided`] gives the scheme that the engine is to switch to, if any; when the engine
/// has, [`Choosing::switched`] is to be called.
pub(super) struct Choosing {
    policy: Box<dyn Policy>,
    using: Using,
    /// What was chosen and is not used yet.
    next: Option<Using>,
}

impl Choosing {
    /// For a run that begins with something.
    pub(super) fn new(policy: Box<dyn Policy>, using: Using) -> Self {
        Self { policy, using, next: None }
    }

    /// What the step that is decided now was computed under.
    pub(super) fn note(&mut self) -> Using {
        let using = self.using.clone();
        self.using.why = None;
        using
    }

    /// A step is decided.
    pub(super) fn decided(&mut self, record: &StepRecord) -> Option<SchemeSpec> {
        let choice = self.policy.decided(record)?;
        let (scheme, using) = (choice.scheme.clone(), Using::from(choice));
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
    pub fn planned_by(mut self, policy: Box<dyn Policy>, using: Using) -> Self {
        self.choosing = Some(Choosing::new(policy, using));
        self
    }

    /// Asks the policy, now that a step is decided.
    pub(super) fn choose(&mut self, record: &StepRecord) {
        if let Some(choosing) = &mut self.choosing
            && let Some(scheme) = self.pace.pause(|| choosing.decided(record))
        {
            self.engine.switch(scheme);
        }
    }
}
