//! Who says that a sum is not finite.
//!
//! The coordinator believes its own eyes only: it has such a sum made once more with itself as the
//! one who sums, and sees whose terms are not finite, if any.

use super::Key;
use crate::ids::{Step, Worker};
use std::collections::{BTreeMap, BTreeSet};

/// Who said of which attempt that it is not finite, by steps that are summed by the coordinator
/// therefore.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeMap<Step, BTreeSet<(u32, u32)>>);

impl Doubts {
    /// Whether the coordinator is to make the sum of a step by itself.
    pub(super) fn of(&self, step: Step) -> bool {
        self.0.contains_key(&step)
    }

    /// The coordinator is to make the sum of a step by itself from now on.
    pub(super) fn raise(&mut self, step: Step) {
        self.0.entry(step).or_default();
    }

    /// A worker says of an attempt that is under way that its sum is not finite.
    pub(super) fn accuse(&mut self, (step, attempt): Key, worker: u32) {
        self.0.entry(step).or_default().insert((attempt, worker));
    }

    /// The same of an attempt that is over: it counts if others said so too.
    pub(super) fn accuse_too(&mut self, (step, attempt): Key, worker: u32) {
        if let Some(accusers) = self.0.get_mut(&step)
            && accusers.iter().any(|accuser| accuser.0 == attempt)
        {
            accusers.insert((attempt, worker));
        }
    }

    /// The sum is not finite: those who said so were right.
    pub(super) fn are_right(&mut self, step: Step) {
        self.0.get_mut(&step).into_iter().for_each(BTreeSet::clear);
    }

    /// The sum is finite: gives those who must have lied.
    ///
    /// Of a sum that others made, one who says so alone is taken at its word; where several do,
    /// those who summed or were summed may have told them what is not so.
    pub(super) fn are_wrong(&mut self, (step, attempt): Key) -> BTreeSet<u32> {
        let accusers = self.0.get_mut(&step).map(std::mem::take).unwrap_or_default();
        let (own, others): (Vec<_>, Vec<_>) =
            accusers.into_iter().partition(|accuser| accuser.0 == attempt);
        let mut liars: BTreeSet<u32> = own.into_iter().map(|(_, worker)| worker).collect();
        match others[..] {
            [(_, worker)] => liars.extend([worker]),
            [] => {}
            _ => {
                let names = others
                    .iter()
                    .map(|(_, worker)| Worker(*worker).to_string())
                    .collect::<Vec<_>>()
                    .join(", ");
                tracing::warn!(
                    "{names} say that the sum of {step} is not finite, and it is; it cannot be \
                     told who is wrong"
                );
            }
        }
        liars
    }

    /// A step is decided.
    pub(super) fn release(&mut self, step: Step) {
        self.0.retain(|doubted, _| *doubted > step);
    }

    /// A worker is lost, whatever it said.
    pub(super) fn forget(&mut self, worker: u32) {
        self.0.values_mut().for_each(|accusers| accusers.retain(|(_, accuser)| *accuser != worker));
    }
}
