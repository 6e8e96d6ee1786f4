//! Orders to workers, and when their answers count as arrived: by the model of a virtual clock, or
//! once they are there plus an injected lateness.
//!
//! The rules of the virtual clock are here alone: the trainer's `RunClock` and the simulator
//! [`over_engine`](crate::sim::over_engine) both keep their orders in [`Orders`]. It reads no
//! clock: `now` is an argument.

use crate::ids::{OrderId, Round, Task, Worker, WorkerSet};
use std::collections::BTreeSet;

/// The model of a virtual clock: no thread sleeps, and a run's record is reproducible to the byte.
///
/// # Formula
/// ```text
/// arrival = assigned + c n load + d_i - min(d)
/// ```
/// where `c` is [`VirtualClock::step_seconds`], `n` the number of workers, `load` the fraction of
/// the batch in the task and those its worker was given with it before, and `d` the round's delays,
/// whose `d_i - min(d)` is charged once per round, to a worker's first order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VirtualClock {
    /// Modelled compute time of an uncoded step, `c`.
    pub step_seconds: f64,
}

/// What came of an ordered task, as far as its time is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskOutcome {
    /// Its result, which may have entries that are not finite.
    Done { order: OrderId, task: Task, finite: bool },
    /// The worker has dropped what was left of an order.
    Idle { order: OrderId },
    /// The worker is lost.
    Lost,
}

/// Something that comes from a worker.
pub(crate) trait Answer {
    /// What it means for the worker's orders; none if it is about something else.
    fn came(&self) -> Option<TaskOutcome>;
    /// That a worker has dropped what was left of an order.
    fn freed(order: OrderId) -> Self;
}

/// Where results are modelled too, there is no more to come than this.
impl Answer for TaskOutcome {
    fn came(&self) -> Option<TaskOutcome> {
        Some(*self)
    }

    fn freed(order: OrderId) -> Self {
        Self::Idle { order }
    }
}

/// A task that was ordered, until its answer is delivered.
#[derive(Debug)]
struct OutstandingTask<A> {
    task: Task,
    order: OrderId,
    /// Under a virtual clock: when its computation is over.
    computed: f64,
    /// When the answer counts as arrived; under a wall clock known once it is there.
    due: Option<f64>,
    answer: Option<A>,
    state: ResultDemand,
    /// Later entries have higher numbers.
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultDemand {
    Yes,
    /// Its round is over; it still counts when it comes.
    Late,
    /// It is void. Under a model its computation was broken off, and an answer never came to be;
    /// else an answer is told at once, so that it is known that nothing more comes.
    No,
}

/// When an answer counts as arrived, as bits (times are not negative, so that their order is that
/// of the bits), whose it is, and the number of its entry.
type DueTime = (u64, Worker, u64);

/// The places of all answers that are still to be delivered, by when they count as arrived.
#[derive(Debug, Default)]
struct Dues(BTreeSet<DueTime>);

impl Dues {
    fn place<A>(worker: Worker, out: &OutstandingTask<A>) -> Option<DueTime> {
        Some((out.due?.max(0.0).to_bits(), worker, out.number))
    }

    fn add<A>(&mut self, worker: Worker, out: &OutstandingTask<A>) {
        self.0.extend(Self::place(worker, out));
    }

    fn remove<A>(&mut self, worker: Worker, out: &OutstandingTask<A>) {
        if let Some(place) = Self::place(worker, out) {
            self.0.remove(&place);
        }
    }
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum NextMove<A> {
    /// This answer counts as arrived now; `late` if its round is over.
    Arrived { worker: Worker, answer: A, late: bool },
    /// The deadline is reached.
    Deadline,
    /// Wait for workers, at most so many seconds.
    Wait(Option<f64>),
}

/// What follows at once from something that came.
#[derive(Debug)]
pub(crate) struct Arrival<A> {
    /// What counts now.
    pub(crate) now: Option<A>,
    /// A task whose result the run does not want.
    pub(crate) unwanted: Option<Task>,
}

/// What happens to a worker that is told to drop its tasks.
#[derive(Debug)]
pub(crate) struct Cancellation<A> {
    /// What is to be told at once: answers that were withheld, and that it is free, or gone.
    pub(crate) now: Vec<A>,
    /// Its computation can be broken off.
    pub(crate) cancel: bool,
    /// Results that are there, of computations that the model has broken off.
    pub(crate) unwanted: Vec<Task>,
}

/// All orders of a run whose answers are not delivered. Who keeps one
///
/// 1. tells it of every order ([`Orders::assigned`]) and of every order that is taken back
///    ([`Orders::abandoned`]), and does at once what the latter gives back;
/// 2. tells it of everything that comes from workers ([`Orders::arrived`]); what that gives back
///    counts now, the rest is kept until it is due;
/// 3. asks [`Orders::next`] what to do, sets its clock to the time that this gives, and asks again
///    after each answer, deadline or wait.
#[derive(Debug)]
pub(crate) struct Orders<A> {
    /// None where computing takes the time that it takes.
    model: Option<VirtualClock>,
    workers: usize,
    /// Of each worker, in the order in which they were ordered.
    outs: Vec<Vec<OutstandingTask<A>>>,
    dues: Dues,
    entries: u64,
    /// The round whose lateness each worker was charged last, and what its current order is late
    /// by.
    charged: Vec<Option<(Round, f64)>>,
    /// Workers told to drop what they compute and not heard of since.
    leaving: WorkerSet,
}

impl<A: Answer> Orders<A> {
    pub(crate) fn new(workers: usize, model: Option<VirtualClock>) -> Self {
        Self {
            model,
            workers,
            outs: (0..workers).map(|_| Vec::new()).collect(),
            dues: Dues::default(),
            entries: 0,
            charged: vec![None; workers],
            leaving: WorkerSet::empty(workers),
        }
    }

    /// Orders whose answers are not delivered.
    pub(crate) fn len(&self) -> usize {
        self.outs.iter().map(Vec::len).sum()
    }

    /// A worker is given tasks, with the share of the batch each one is. Its lateness in this round
    /// is charged once, to the first order: everything in it comes so much later.
    pub(crate) fn assigned(
        &mut self,
        now: f64,
        worker: Worker,
        order: OrderId,
        (round, lateness): (Round, f64),
        tasks: impl Iterator<Item = (Task, f64)>,
    ) {
        // Feedback schemes give several orders in a round; a worker that is late is so once, not
        // with each of them.
        let first = self.charged[worker.index()].is_none_or(|(charged, _)| charged != round);
        let late_by = if first { lateness } else { 0.0 };
        self.charged[worker.index()] = Some((round, late_by));
        let mut load = 0.0;
        for (task, share) in tasks {
            // Tasks of one order are computed one after the other.
            load += share;
            let (computed, due) = match self.model {
                None => (0.0, None),
                Some(model) => {
                    let computed = now + model.step_seconds * self.workers as f64 * load;
                    (computed, Some(computed + late_by))
                }
            };
            self.entries += 1;
            let out = OutstandingTask {
                task,
                order,
                computed,
                due,
                answer: None,
                state: ResultDemand::Yes,
                number: self.entries,
            };
            self.dues.add(worker, &out);
            self.outs[worker.index()].push(out);
        }
    }

    /// A worker's tasks are not waited for any more; `late_counts` if a result that comes all the
    /// same still counts. Under a virtual clock that is so where its computation is over.
    pub(crate) fn abandoned(
        &mut self,
        now: f64,
        worker: Worker,
        order: OrderId,
        late_counts: bool,
    ) -> Cancellation<A> {
        let modelled = self.model.is_some();
        let (mut now_told, mut unwanted) = (Vec::new(), Vec::new());
        let mut busy = false;
        let mut cancel = true;
        let mut gone = None;
        let dues = &mut self.dues;
        self.outs[worker.index()].retain_mut(|out| {
            if out.state != ResultDemand::Yes {
                return true;
            }
            let came = out.answer.as_ref().and_then(Answer::came);
            let there = out.answer.is_some();
            busy |= !there;
            // Under a model a computation that is not over at this instant is broken off; on a wall
            // clock only the worker knows how far it is, and its answer tells.
            let computed = if modelled { out.computed <= now } else { true };
            let lost = matches!(came, Some(TaskOutcome::Lost | TaskOutcome::Idle { .. }));
            out.state = if late_counts && computed && !lost {
                ResultDemand::Late
            } else {
                ResultDemand::No
            };
            if out.state == ResultDemand::No {
                dues.remove(worker, out);
            }
            // Its modelled computation is over, the real one is not: it must be let finish.
            cancel &= !(modelled && out.state == ResultDemand::Late && !there);
            let dropped = there && out.state == ResultDemand::No;
            match (out.answer.take_if(|_| dropped), came) {
                (Some(_), Some(TaskOutcome::Done { task, finite, .. })) if modelled => {
                    unwanted.extend(finite.then_some(task));
                }
                // Whoever is told of the others must know that this one is answered too.
                (Some(answer), Some(TaskOutcome::Done { .. })) => now_told.push(answer),
                (answer, Some(TaskOutcome::Lost)) => gone = gone.take().or(answer),
                _ => {}
            }
            !dropped
        });
        // A model knows that it is free; on a wall clock a worker in the middle of a task says so
        // itself.
        let free = gone.or((modelled || !busy).then(|| A::freed(order)));
        if free.is_none() {
            self.leaving.insert(worker);
        }
        now_told.extend(free);
        Cancellation { now: now_told, cancel, unwanted }
    }

    /// Whether a worker is still busy with something that the run does not want.
    pub(crate) fn is_leaving(&self, worker: Worker) -> bool {
        let owed =
            |out: &OutstandingTask<A>| out.state != ResultDemand::Yes && out.answer.is_none();
        self.leaving.contains(worker) || self.outs[worker.index()].iter().any(owed)
    }

    /// Takes in what came from a worker.
    pub(crate) fn arrived(&mut self, now: f64, worker: Worker, answer: A) -> Arrival<A> {
        match answer.came() {
            Some(TaskOutcome::Done { order, task, finite }) => {
                let mut arrival = self.done(now, worker, (order, task), answer);
                arrival.unwanted = arrival.unwanted.filter(|_| finite);
                arrival
            }
            Some(TaskOutcome::Idle { order }) => self.ended(worker, answer, Some(order)),
            Some(TaskOutcome::Lost) => self.ended(worker, answer, None),
            None => Arrival { now: Some(answer), unwanted: None },
        }
    }

    /// That a worker is lost, if it is known and the time has not come to say so.
    pub(crate) fn withheld_loss(&mut self, worker: Worker) -> Option<A> {
        let lost = |out: &OutstandingTask<A>| {
            out.answer.as_ref().and_then(Answer::came) == Some(TaskOutcome::Lost)
        };
        let at = self.outs[worker.index()].iter().position(lost)?;
        self.remove(worker, at).answer
    }

    /// A worker is lost at this instant, with all that it was still to answer: under a virtual
    /// clock too, to which a loss is not known before then.
    pub(crate) fn lost(&mut self, worker: Worker) {
        self.leaving.remove(worker);
        for out in std::mem::take(&mut self.outs[worker.index()]) {
            self.dues.remove(worker, &out);
        }
    }

    fn remove(&mut self, worker: Worker, at: usize) -> OutstandingTask<A> {
        let out = self.outs[worker.index()].remove(at);
        self.dues.remove(worker, &out);
        out
    }

    /// The first order of a worker that has not been answered in full.
    fn oldest(&self, worker: Worker) -> Option<usize> {
        self.outs[worker.index()].iter().position(|out| out.answer.is_none())
    }

    fn done(
        &mut self,
        now: f64,
        worker: Worker,
        (order, task): (OrderId, Task),
        answer: A,
    ) -> Arrival<A> {
        let wall = self.model.is_none();
        let late_by = self.charged[worker.index()].map_or(0.0, |charged| charged.1);
        let is_it = |out: &OutstandingTask<A>| {
            (out.order, out.task) == (order, task) && out.answer.is_none()
        };
        let Some(at) = self.outs[worker.index()].iter().position(is_it) else {
            // The engine knows what to make of it.
            return Arrival { now: Some(answer), unwanted: None };
        };
        let out = &mut self.outs[worker.index()][at];
        let broken_off = out.state == ResultDemand::No;
        if broken_off && wall {
            self.remove(worker, at);
            if self.oldest(worker).is_none() {
                self.leaving.remove(worker);
            }
            return Arrival { now: Some(answer), unwanted: None };
        }
        if broken_off {
            self.remove(worker, at);
        } else {
            if wall {
                out.due = Some(now + late_by);
                self.dues.add(worker, out);
            }
            out.answer = Some(answer);
        }
        let free = self.oldest(worker).is_none() && self.leaving.remove(worker);
        Arrival { now: free.then(|| A::freed(order)), unwanted: broken_off.then_some(task) }
    }

    /// A worker has dropped the rest of an order, or is lost. Under a virtual clock that shows when
    /// the first task it leaves was due.
    fn ended(&mut self, worker: Worker, answer: A, order: Option<OrderId>) -> Arrival<A> {
        let (wall, gone) = (self.model.is_none(), order.is_none());
        self.leaving.remove(worker);
        let (outs, dues) = (&mut self.outs[worker.index()], &mut self.dues);
        let open =
            |out: &OutstandingTask<A>| out.answer.is_none() && (gone || Some(out.order) == order);
        let live = outs
            .iter_mut()
            .find(|out| open(out) && out.state == ResultDemand::Yes)
            .filter(|_| !wall);
        let mut answer = Some(answer);
        if let Some(live) = live {
            live.answer = answer.take();
        }
        outs.retain(|out| {
            let over = open(out) || gone && wall;
            if over {
                dues.remove(worker, out);
            }
            !over
        });
        Arrival { now: answer.filter(|_| gone || wall), unwanted: None }
    }

    /// What happens next, given when the engine wants to be woken at the latest, and what time it
    /// is then: a virtual clock goes on to the next answer or the deadline, but not beyond an
    /// answer that counts as arrived before it is there.
    pub(crate) fn next(&mut self, now: f64, deadline: Option<f64>) -> (f64, NextMove<A>) {
        let first = self.dues.0.first().and_then(|&(due, worker, number)| {
            let at = self.outs[worker.index()].iter().position(|out| out.number == number)?;
            Some((f64::from_bits(due), worker, at, self.outs[worker.index()][at].answer.is_some()))
        });
        let limit = deadline.unwrap_or(f64::INFINITY);
        let due = first.map_or(f64::INFINITY, |first| first.0);
        let mut now = now;
        if self.model.is_some() {
            // The clock must not pass an answer that is due and not there yet, or the record would
            // depend on how long the computation took in fact.
            if first.is_some_and(|first| !first.3) && due <= limit {
                return (now, NextMove::Wait(None));
            }
            if due.min(limit).is_finite() {
                now = now.max(due.min(limit));
            }
        }
        // An answer that is due at the deadline comes before it.
        if let Some((_, worker, at, true)) = first.filter(|_| due <= now && due <= limit) {
            let out = self.remove(worker, at);
            if let Some(answer) = out.answer {
                let late = out.state == ResultDemand::Late;
                return (now, NextMove::Arrived { worker, answer, late });
            }
        }
        if limit <= now {
            return (now, NextMove::Deadline);
        }
        let wait = due.min(limit) - now;
        (now, NextMove::Wait(wait.is_finite().then_some(wait)))
    }
}

#[cfg(test)]
mod tests;
