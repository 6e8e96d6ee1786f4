//! When a worker's answer counts as arrived: by the wall clock plus an injected delay, or by a
//! model.

use crate::delays::{Delays, Unit};
use crate::ids::{Round, Task, Worker, WorkerSet};
use crate::transport::Notice;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The model of a virtual clock: nobody sleeps, and a run's record is reproducible to the byte.
///
/// # Formula
/// ```text
/// arrival = assigned + c n load + d_i - min(d)
/// ```
/// where `c` is [`VirtualClock::step_seconds`], `n` the number of workers, `load` the fraction of
/// the batch in the task and `d` the round's delays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VirtualClock {
    /// Modelled compute time of an uncoded step, `c`.
    pub step_seconds: f64,
}

/// Time since a run began, as its clock tells it.
struct Elapsed(Box<dyn Fn() -> Duration + Send>);

impl std::fmt::Debug for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Elapsed({:?})", (self.0)())
    }
}

#[derive(Debug)]
enum Clock {
    Wall { elapsed: Elapsed, paused: Duration },
    Virtual { now: f64, model: VirtualClock },
}

/// A task that was ordered, until its answer is delivered.
#[derive(Debug)]
struct Out {
    task: Task,
    /// Tasks ordered together have one number.
    order: u64,
    /// Under a virtual clock: when its computation is over.
    computed: f64,
    /// When the answer counts as arrived; under a wall clock known once it is there.
    due: Option<f64>,
    notice: Option<Notice>,
    state: Wanted,
    /// Later entries have higher numbers.
    number: u64,
}

/// When an answer counts as arrived, as bits (times are not negative, so that their order is that
/// of the bits), whose it is, and the number of its entry.
type Due = (u64, Worker, u64);

/// The places of all answers that are still to be delivered, by when they count as arrived.
#[derive(Debug, Default)]
struct Dues(BTreeSet<Due>);

impl Dues {
    fn place(worker: Worker, out: &Out) -> Option<Due> {
        Some((out.due?.max(0.0).to_bits(), worker, out.number))
    }

    fn add(&mut self, worker: Worker, out: &Out) {
        self.0.extend(Self::place(worker, out));
    }

    fn remove(&mut self, worker: Worker, out: &Out) {
        if let Some(place) = Self::place(worker, out) {
            self.0.remove(&place);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Yes,
    /// Its round is over; it still counts when it comes.
    Late,
    No,
}

/// Clock and injected delays of one run.
#[derive(Debug)]
pub struct Pace {
    clock: Clock,
    delays: Vec<Vec<f64>>,
    /// Of a round beyond them: nobody is late.
    calm: Vec<f64>,
    workers: usize,
    /// Of each worker, in the order in which they were ordered.
    outs: Vec<Vec<Out>>,
    dues: Dues,
    orders: u64,
    entries: u64,
    /// The round whose lateness each worker was charged last, and what its current order is late
    /// by.
    charged: Vec<Option<(Round, f64)>>,
    /// Workers told to drop what they compute and not heard of since.
    leaving: WorkerSet,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// This notice counts as arrived now; `late` if its round is over.
    Arrived { worker: Worker, notice: Notice, late: bool },
    /// The deadline is reached.
    Deadline,
    /// Wait for workers, at most so long.
    Wait(Option<Duration>),
}

/// What follows from a notice at once.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    /// What counts now.
    pub(super) now: Option<Notice>,
    /// A task whose result nobody wants.
    pub(super) unwanted: Option<Task>,
}

/// What becomes of a worker that is told to drop its tasks.
#[derive(Debug)]
pub(super) struct Abandoned {
    /// What counts at once: that it is free, or gone.
    pub(super) now: Option<Notice>,
    /// Its computation can be broken off.
    pub(super) cancel: bool,
    /// Results that are there and that nobody wants.
    pub(super) unwanted: Vec<Task>,
}

impl Pace {
    /// A wall clock that starts now, with delays injected for `rounds` rounds; `step_seconds` is
    /// the calibrated compute time of an uncoded step.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock of a training run")]
    pub fn wall(workers: usize, delays: &Delays, rounds: usize, step_seconds: f64) -> Self {
        let origin = Instant::now();
        Self::by(move || origin.elapsed(), workers, delays, rounds, step_seconds)
    }

    /// The same with another clock for the wall's, such as that of a simulated network; `elapsed`
    /// is the time since the run began.
    #[must_use]
    pub fn by(
        elapsed: impl Fn() -> Duration + Send + 'static,
        workers: usize,
        delays: &Delays,
        rounds: usize,
        step_seconds: f64,
    ) -> Self {
        Self::new(
            Clock::Wall { elapsed: Elapsed(Box::new(elapsed)), paused: Duration::ZERO },
            workers,
            delays,
            rounds,
            step_seconds,
        )
    }

    /// A virtual clock that starts at `now` seconds.
    #[must_use]
    pub fn modelled(
        workers: usize,
        delays: &Delays,
        rounds: usize,
        model: VirtualClock,
        now: f64,
    ) -> Self {
        Self::new(Clock::Virtual { now, model }, workers, delays, rounds, model.step_seconds)
    }

    fn new(
        clock: Clock,
        workers: usize,
        delays: &Delays,
        rounds: usize,
        step_seconds: f64,
    ) -> Self {
        let unit = match delays.unit() {
            Unit::StepTimes => step_seconds,
            Unit::Seconds => 1.0,
        };
        let late = |mut row: Vec<f64>| {
            row.resize(workers, 0.0);
            let least = row.iter().copied().fold(f64::INFINITY, f64::min);
            row.into_iter().map(|d| (d - least) * unit).collect::<Vec<f64>>()
        };
        let delays = delays.rows(rounds).into_iter().map(late).collect();
        let (charged, leaving) = (vec![None; workers], WorkerSet::empty(workers));
        let outs = (0..workers).map(|_| Vec::new()).collect();
        Self {
            clock,
            delays,
            calm: vec![0.0; workers],
            workers,
            outs,
            dues: Dues::default(),
            orders: 0,
            entries: 0,
            charged,
            leaving,
        }
    }

    /// Seconds since the start, pauses left out.
    #[must_use]
    pub fn now(&self) -> f64 {
        match &self.clock {
            Clock::Wall { elapsed, paused } => ((elapsed.0)() - *paused).as_secs_f64(),
            Clock::Virtual { now, .. } => *now,
        }
    }

    /// What is due if nothing is to be done before a time.
    pub(super) fn nothing_until(&self, time: f64) -> Next {
        let left = time - self.now();
        if left > 0.0 {
            Next::Wait(Some(Duration::from_secs_f64(left.clamp(1e-6, 1e9))))
        } else {
            Next::Deadline
        }
    }

    /// A modelled clock goes on to a time.
    pub(super) fn go_on_to(&mut self, time: f64) {
        if let Clock::Virtual { now, .. } = &mut self.clock {
            *now = now.max(time);
        }
    }

    /// Whether time is modelled.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        matches!(self.clock, Clock::Virtual { .. })
    }

    /// Does something that is no part of the run, such as writing its record, with the clock
    /// stopped.
    pub(super) fn pause<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let Clock::Wall { elapsed, paused } = &mut self.clock else { return work() };
        let before = (elapsed.0)();
        let result = work();
        *paused += (elapsed.0)() - before;
        result
    }

    /// Orders whose answers are not delivered.
    pub(super) fn open_entries(&self) -> usize {
        self.outs.iter().map(Vec::len).sum()
    }

    /// Injected lateness of a round in seconds, one number per worker.
    pub(super) fn lateness(&self, round: u64) -> &[f64] {
        self.delays.get(round as usize).unwrap_or(&self.calm)
    }

    /// A worker is given tasks, with the share of the batch each one is. Its lateness is charged
    /// once per round, to the first order: everything in it comes so much later.
    pub(super) fn assigned(
        &mut self,
        worker: Worker,
        round: Round,
        tasks: impl Iterator<Item = (Task, f64)>,
    ) {
        let first = self.charged[worker.index()].is_none_or(|(charged, _)| charged != round);
        let late_by =
            self.lateness(round.0).get(worker.index()).copied().filter(|_| first).unwrap_or(0.0);
        self.charged[worker.index()] = Some((round, late_by));
        self.orders += 1;
        let (mut load, order) = (0.0, self.orders);
        for (task, share) in tasks {
            load += share;
            let (computed, due) = match &self.clock {
                Clock::Wall { .. } => (0.0, None),
                Clock::Virtual { now, model } => {
                    let computed = now + model.step_seconds * self.workers as f64 * load;
                    (computed, Some(computed + late_by))
                }
            };
            self.entries += 1;
            let out = Out {
                task,
                order,
                computed,
                due,
                notice: None,
                state: Wanted::Yes,
                number: self.entries,
            };
            self.dues.add(worker, &out);
            self.outs[worker.index()].push(out);
        }
    }

    /// A worker's tasks are not waited for any more; `late_counts` if a result that comes all the
    /// same still counts.
    pub(super) fn abandoned(&mut self, worker: Worker, late_counts: bool) -> Abandoned {
        let (now, modelled) = (self.now(), self.is_virtual());
        let mut unwanted = Vec::new();
        let (mut busy, mut cancel, mut gone) = (false, true, None);
        let dues = &mut self.dues;
        self.outs[worker.index()].retain_mut(|out| {
            if out.state != Wanted::Yes {
                return true;
            }
            let there = out.notice.is_some();
            busy |= !there;
            let computed = if modelled { out.computed <= now } else { true };
            let lost = matches!(out.notice, Some(Notice::Lost { .. } | Notice::Freed));
            out.state = if late_counts && computed && !lost { Wanted::Late } else { Wanted::No };
            if out.state == Wanted::No {
                dues.remove(worker, out);
            }
            cancel &= !(modelled && out.state == Wanted::Late && !there);
            let dropped = there && out.state == Wanted::No;
            match out.notice.take_if(|_| dropped) {
                Some(Notice::Done { task, finite, .. }) => unwanted.extend(finite.then_some(task)),
                notice => {
                    gone = gone
                        .take()
                        .or(notice.filter(|notice| matches!(notice, Notice::Lost { .. })));
                }
            }
            !dropped
        });
        let now = gone.or((modelled || !busy).then_some(Notice::Freed));
        if now.is_none() {
            self.leaving.insert(worker);
        }
        Abandoned { now, cancel, unwanted }
    }

    /// Whether a worker is still busy with something nobody wants.
    pub(super) fn is_leaving(&self, worker: Worker) -> bool {
        let owed = |out: &Out| out.state != Wanted::Yes && out.notice.is_none();
        self.leaving.contains(worker) || self.outs[worker.index()].iter().any(owed)
    }

    /// Takes in what came from a worker.
    pub(super) fn arrived(&mut self, worker: Worker, notice: Notice) -> Arrival {
        match notice {
            Notice::Done { task, finite, .. } => {
                let mut arrival = self.done(worker, task, notice);
                arrival.unwanted = arrival.unwanted.filter(|_| finite);
                arrival
            }
            Notice::Freed => self.ended(worker, notice, false),
            Notice::Lost { .. } => self.ended(worker, notice, true),
            _ => Arrival { now: Some(notice), unwanted: None },
        }
    }

    /// That a worker is gone, if it is known and the time has not come to say so.
    pub(super) fn withheld_loss(&mut self, worker: Worker) -> Option<Notice> {
        let lost = |out: &Out| matches!(out.notice, Some(Notice::Lost { .. }));
        let at = self.outs[worker.index()].iter().position(lost)?;
        self.remove(worker, at).notice
    }

    fn remove(&mut self, worker: Worker, at: usize) -> Out {
        let out = self.outs[worker.index()].remove(at);
        self.dues.remove(worker, &out);
        out
    }

    /// The first order of a worker that has not been answered in full.
    fn oldest(&self, worker: Worker) -> Option<usize> {
        self.outs[worker.index()].iter().position(|out| out.notice.is_none())
    }

    fn done(&mut self, worker: Worker, task: Task, notice: Notice) -> Arrival {
        let (now, wall) = (self.now(), !self.is_virtual());
        let late_by = self.charged[worker.index()].map_or(0.0, |charged| charged.1);
        let Some(at) = self.oldest(worker).filter(|at| self.outs[worker.index()][*at].task == task)
        else {
            return Arrival { now: None, unwanted: Some(task) };
        };
        let out = &mut self.outs[worker.index()][at];
        let unwanted = (out.state == Wanted::No).then_some(task);
        if unwanted.is_some() {
            self.remove(worker, at);
        } else {
            if wall {
                out.due = Some(now + late_by);
                self.dues.add(worker, out);
            }
            out.notice = Some(notice);
        }
        let free = self.oldest(worker).is_none() && self.leaving.remove(worker);
        Arrival { now: free.then_some(Notice::Freed), unwanted }
    }

    /// A worker has dropped the rest of an order, or is gone. Under a virtual clock that shows when
    /// the first task it leaves was due.
    fn ended(&mut self, worker: Worker, notice: Notice, gone: bool) -> Arrival {
        let wall = !self.is_virtual();
        self.leaving.remove(worker);
        let order = self.oldest(worker).map(|at| self.outs[worker.index()][at].order);
        let (outs, dues) = (&mut self.outs[worker.index()], &mut self.dues);
        let open = |out: &Out| out.notice.is_none() && (gone || Some(out.order) == order);
        let live =
            outs.iter_mut().find(|out| open(out) && out.state == Wanted::Yes).filter(|_| !wall);
        let mut notice = Some(notice);
        if let Some(live) = live {
            live.notice = notice.take();
        }
        outs.retain(|out| {
            let over = open(out) || gone && wall;
            if over {
                dues.remove(worker, out);
            }
            !over
        });
        Arrival { now: notice.filter(|_| gone || wall), unwanted: None }
    }

    /// What happens next, given when the engine wants to be woken at the latest.
    pub(super) fn next(&mut self, deadline: Option<f64>) -> Next {
        let first = self.dues.0.first().and_then(|&(due, worker, number)| {
            let at = self.outs[worker.index()].iter().position(|out| out.number == number)?;
            Some((f64::from_bits(due), worker, at, self.outs[worker.index()][at].notice.is_some()))
        });
        let limit = deadline.unwrap_or(f64::INFINITY);
        let due = first.map_or(f64::INFINITY, |first| first.0);
        let now = match &mut self.clock {
            Clock::Wall { .. } => self.now(),
            Clock::Virtual { .. } if first.is_some_and(|first| !first.3) && due <= limit => {
                return Next::Wait(None);
            }
            Clock::Virtual { now, .. } if due.min(limit).is_finite() => {
                *now = now.max(due.min(limit));
                *now
            }
            Clock::Virtual { now, .. } => *now,
        };
        if let Some((_, worker, at, true)) = first.filter(|_| due <= now && due <= limit) {
            let out = self.remove(worker, at);
            if let Some(notice) = out.notice {
                return Next::Arrived { worker, notice, late: out.state == Wanted::Late };
            }
        }
        if limit <= now {
            return Next::Deadline;
        }
        let wait = due.min(limit) - now;
        Next::Wait(wait.is_finite().then(|| Duration::from_secs_f64(wait.max(1e-6))))
    }
}
