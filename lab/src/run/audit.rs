//! Gradients that a worker has applied, beside those of the whole batch at the same parameters. It
//! computes these again when the step is over and no other worker waits for it.

use super::observer::{ReferenceReplicas, relative_difference};
use super::plan::Plan;
use crate::trainer::{Batches, Replica, ReplicaError, ReplicaState};
use codedgrad_shell::units::several;

/// Some of the steps of a run, looked at.
pub(super) struct Audit<'a> {
    every: u64,
    plan: &'a Plan,
    reference: ReferenceReplicas<'a>,
    /// The step that is to be looked at, and its gradient.
    taken: Option<(u64, Vec<f32>)>,
    checked: usize,
    worst: f64,
}

impl<'a> Audit<'a> {
    /// Of every so many steps of a run that begins in a state.
    pub(super) fn of(
        every: u64,
        plan: &'a Plan,
        (batches, state): (&'a Batches, &ReplicaState),
        loss_weight: f64,
    ) -> Result<Self, ReplicaError> {
        let training = &plan.training;
        let place = (training.beside(), 0);
        let replica = Replica::on(place, &training.model, training.optimizer, state)?;
        let reference = ReferenceReplicas { replicas: vec![replica], batches, loss_weight };
        Ok(Self { every, plan, reference, taken: None, checked: 0, worst: 0.0 })
    }

    /// A step is about to be applied: its gradient, and the parameters before it, are kept if it is
    /// to be looked at.
    pub(super) fn applies(
        &mut self,
        step: u64,
        replicas: &[Replica],
        gradient: &dyn Fn() -> Result<Vec<f32>, ReplicaError>,
    ) -> Result<(), ReplicaError> {
        if step.is_multiple_of(self.every) {
            self.reference.replicas[0].load(&replicas[0].state()?)?;
            self.taken = Some((step, gradient()?));
        }
        Ok(())
    }

    /// The step is over.
    pub(super) fn done(&mut self) -> Result<(), ReplicaError> {
        if let Some((step, gradient)) = self.taken.take() {
            let whole = self.reference.reference(self.plan, step)?;
            self.worst = self.worst.max(relative_difference(&gradient, &whole));
            self.checked += 1;
        }
        Ok(())
    }

    /// What was found, in a sentence.
    pub(super) fn found(&self) -> String {
        let checked = several(self.checked, "gradient");
        if self.worst == 0.0 {
            format!("{checked} checked: equal to the whole batch's bit for bit")
        } else {
            format!("{checked} checked: up to {:.1e} from the whole batch's", self.worst)
        }
    }
}
