//! Workers that leave with notice, and those that are done without on purpose.

use super::{Coordinator, IncidentKind, Observer};
use crate::ids::{Worker, WorkerSet};
use crate::schedulers::Input;
use crate::transport::{Dismissal, Order, Transport};

impl<T: Transport> Coordinator<T> {
    /// A worker says that it leaves.
    pub(super) fn leaves(
        &mut self,
        worker: Worker,
        seconds: f64,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        // The engine may not have been told yet of what was said before.
        let by = self.run_clock.now() + seconds;
        if !self.engine.roster().is_lost(worker) && self.watchdog.leaves(worker, by) {
            self.tell(IncidentKind::Leaving { worker, seconds }, observer);
        }
        Input::Leaving { worker }
    }

    /// A worker that leaves, or is done without, is not needed any more.
    pub(super) fn let_go(
        &mut self,
        worker: Worker,
        leaves: bool,
        observer: &mut dyn Observer<T::Vector>,
    ) {
        self.tell(IncidentKind::LetGo { worker, leaves }, observer);
        let why = if leaves { Dismissal::LetGo } else { Dismissal::Drained };
        self.transport.send(worker, Order::Dismiss(why));
        self.replicas.lost(worker);
        // The engine was the first to know.
        self.gone(worker);
    }

    /// After a step: does without those whom the observer names, if it names others than before.
    pub(super) fn look_at_drain(&mut self, observer: &mut dyn Observer<T::Vector>) {
        let Some(named) = observer.drained() else { return };
        let all = self.config().shape.workers;
        let there_is = |worker: &Worker| worker.index() < all;
        let named = WorkerSet::of(all, named.into_iter().filter(there_is));
        let before = self.engine.leaving().drained().clone();
        if let Err(refused) = self.engine.drain(named) {
            let workers = refused.iter().collect();
            self.tell(IncidentKind::DrainRefused { workers }, observer);
        }
        let after = self.engine.leaving().drained().clone();
        for worker in before.iter().filter(|worker| !after.contains(*worker)) {
            self.transport.send(worker, Order::LetIn);
        }
        // Who is there is let go first.
        for worker in after.iter().filter(|worker| !before.contains(*worker)) {
            if self.engine.roster().is_lost(worker) {
                self.transport.send(worker, Order::Dismiss(Dismissal::Drained));
            }
        }
    }
}
