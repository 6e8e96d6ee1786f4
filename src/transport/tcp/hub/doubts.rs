//! Sums that somebody says are not finite. The coordinator believes its own eyes only: it has such
//! a sum made once more with itself as the one who sums, and sees whose terms are not finite, if
//! any.

use super::super::Exchange;
use super::super::part::Sum;
use super::Hub;
use crate::ids::{Step, Worker};
use crate::transport::Notice;
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

    /// A step is decided.
    pub(super) fn release(&mut self, step: Step) {
        self.0.retain(|doubted, _| *doubted > step);
    }

    /// A worker is gone, whatever it said.
    pub(super) fn forget(&mut self, worker: u32) {
        self.0.values_mut().for_each(|accusers| accusers.retain(|(_, accuser)| *accuser != worker));
    }
}

impl Hub {
    /// Whether the coordinator itself makes a sum.
    fn sees(&self, step: Step, attempt: u32) -> bool {
        let alone = self.listen.exchange == Exchange::Star || self.eager.is_some();
        alone || self.exchanges.get(step, attempt).is_some_and(|monitor| monitor.own)
    }

    /// A worker says that a sum is not finite.
    pub(super) fn overflowed(&mut self, worker: Worker, step: Step, attempt: u32) {
        let sees = self.sees(step, attempt);
        match self.node.sum(step, attempt).filter(|_| sees).map(|sum| sum.finite) {
            Some(true) => return self.lose(worker.0, &denies(step)),
            Some(false) => return,
            None => {}
        }
        let Some(monitor) = self.exchanges.get_mut(step, attempt).filter(|monitor| !monitor.done)
        else {
            // The others who say so of an attempt that is given up for it.
            let of_it = |accusers: &&mut BTreeSet<(u32, u32)>| {
                accusers.iter().any(|accuser| accuser.0 == attempt)
            };
            if let Some(accusers) = self.exchanges.doubts.0.get_mut(&step).filter(of_it) {
                accusers.insert((attempt, worker.0));
            }
            return;
        };
        monitor.overflowed = true;
        self.exchanges.doubts.0.entry(step).or_default().insert((attempt, worker.0));
        if !sees {
            self.doubt(step, attempt);
        }
    }

    /// The coordinator is to make a sum by itself that others have made, or begun.
    fn doubt(&mut self, step: Step, attempt: u32) {
        self.exchanges.doubts.0.entry(step).or_default();
        let Some(monitor) = self.exchanges.get_mut(step, attempt) else { return };
        let first = monitor.receivers.first().copied().unwrap_or_default();
        if !std::mem::replace(&mut monitor.void, true) {
            self.notify(Worker(first), Notice::Unmade { step, attempt });
        }
    }

    /// A sum that is whole here is not finite, or so those say who summed it.
    pub(super) fn not_finite(&mut self, sum: &Sum) {
        let Sum { step, attempt, .. } = *sum;
        if !self.sees(step, attempt) {
            return self.doubt(step, attempt);
        }
        let of = self
            .exchanges
            .get(step, attempt)
            .and_then(|monitor| monitor.receivers.first().copied());
        if sum.spoilt.is_empty() {
            self.notify(Worker(of.unwrap_or_default()), Notice::Overflowed { step, attempt });
        }
        for &culprit in &sum.spoilt {
            self.notify(Worker(culprit), Notice::Spoilt { step, attempt });
        }
        // Whoever said so was right.
        self.exchanges.doubts.0.get_mut(&step).into_iter().for_each(BTreeSet::clear);
    }

    /// A sum that was made here is finite: whoever said of it that it is not is lost. Of a sum that
    /// others made, one who says so alone is taken at its word; where several do, whoever summed or
    /// was summed may have told them what is not so.
    pub(super) fn is_finite(&mut self, step: Step, attempt: u32) {
        if !self.sees(step, attempt) {
            return;
        }
        let accusers =
            self.exchanges.doubts.0.get_mut(&step).map(std::mem::take).unwrap_or_default();
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
        for worker in liars {
            self.lose(worker, &denies(step));
        }
    }

    /// A worker says that it holds a sum which is not finite.
    pub(super) fn holds_what_is_not_finite(&mut self, worker: Worker, step: Step, attempt: u32) {
        if self.sees(step, attempt) {
            self.lose(
                worker.0,
                &format!("it says that it holds the sum of {step}, which is not finite"),
            );
        }
    }
}

fn denies(step: Step) -> String {
    format!("it says that the sum of {step} is not finite, and it is")
}
