//! Workers that are there when a run begins, and those that are lost and come back.

use super::super::run_clock::Change;
use super::{Coordinator, Observer, RunError};
use crate::ids::{Step, Worker};
use crate::schedulers::Input;
use crate::transport::{Notice, Transport, UnneededItem};
use std::collections::BTreeSet;
use std::time::Duration;

impl<T: Transport> Coordinator<T> {
    /// A worker that is already known to be missing or in another state is given no task.
    pub(super) fn begin(
        &mut self,
        first: Option<(Worker, Notice)>,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<(), RunError> {
        observer.begins(self.journal.step).map_err(RunError::Observer)?;
        self.journal.planned(self.engine.plan().current());
        let others = std::iter::from_fn(|| self.transport.receive(Some(Duration::ZERO)));
        let came: Vec<(Worker, Notice)> = first.into_iter().chain(others).collect();
        let mut there = BTreeSet::new();
        for (worker, notice) in &came {
            match notice {
                Notice::Joined { .. } => {
                    there.insert(*worker);
                    self.journal.absent.remove(worker);
                    self.journal.new.insert(*worker);
                }
                Notice::Lost { .. } => {
                    there.remove(worker);
                    self.journal.new.remove(worker);
                    self.journal.absent.insert(*worker);
                }
                _ => {}
            }
        }
        for (worker, notice) in came {
            let input = match notice {
                // Who is there without the state that the run begins with is no loss to tell of:
                // it is told whose state it takes over. Nor is a seat that is empty, where fewer
                // may make the run: the plan is told of.
                Notice::Lost { .. }
                    if there.contains(&worker) || self.engine.plan().current().is_some() =>
                {
                    self.gone(worker)
                }
                Notice::Joined { next } => self.back(worker, next),
                notice => self.input(worker, notice, observer),
            };
            self.inbox.add([input]);
        }
        for worker in self.run_clock.absent().collect::<Vec<_>>() {
            self.journal.absent.insert(worker);
            let input = self.gone(worker);
            self.inbox.add([input]);
        }
        self.inbox.begin();
        Ok(())
    }

    /// A worker comes, or is lost, because a pool has it so.
    pub(super) fn changed_by_pool(
        &mut self,
        change: Change,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        let (worker, notice) = match change {
            Change::Comes(worker) => (worker, Notice::Joined { next: None }),
            Change::Lost(worker) => {
                let notice = Notice::Lost { reason: "the pool has taken it away".into() };
                self.account(worker, &notice, self.run_clock.now());
                self.replicas.lost(worker);
                (worker, notice)
            }
        };
        self.input(worker, notice, observer)
    }

    /// A worker is lost, whether that is told of or not.
    pub(super) fn gone(&mut self, worker: Worker) -> Input {
        self.watchdog.lost(worker);
        self.transport.forget(UnneededItem::Worker(worker));
        self.results.lost(worker);
        let made_there = |sum| self.transport.sum(sum).is_some();
        let kept = self.gradients.are_kept(made_there);
        Input::Lost { worker, kept }
    }

    /// A worker is there again.
    pub(super) fn back(&mut self, worker: Worker, next: Option<Step>) -> Input {
        self.replicas.joined(worker);
        self.gradients.back(worker);
        self.hold(worker);
        Input::Joined { worker, next }
    }
}
