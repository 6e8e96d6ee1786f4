//! When a worker's answer counts as arrived: by the wall clock plus an injected delay, or by a
//! model.
//!
//! On the wall clock, worker `i` is late by `d_i - min(d)`, counted from when its message is ready;
//! the delays of presets are multiples of the uncoded step time, which is measured. On a virtual
//! clock answers are delivered in the order of their modelled times; each is waited for in fact
//! before the clock moves on, and so is every apply. A record then depends on delays and seeds
//! only, except for deaths in rounds that did not wait for the dead. A resumed run starts its clock
//! at the last commit, of which the record keeps every bit.

use crate::delays::Delays;
use crate::ids::{OrderId, Round, Task, Worker};
use crate::schedulers::VirtualClock;
use crate::schedulers::orders::{self, Answer, Orders, TaskOutcome};
use crate::sim::PoolChange;
use crate::transport::Notice;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

/// Time since a run began, as its clock tells it.
struct ElapsedTime(Box<dyn Fn() -> Duration + Send>);

impl fmt::Debug for ElapsedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elapsed({:?})", (self.0)())
    }
}

#[derive(Debug)]
enum Clock {
    Wall { elapsed: ElapsedTime, paused: Duration },
    Virtual { now: f64, model: VirtualClock },
}

impl Answer for Notice {
    fn came(&self) -> Option<TaskOutcome> {
        match *self {
            Self::Done { order, task, finite, .. } => {
                Some(TaskOutcome::Done { order, task, finite })
            }
            Self::Idle { order, .. } => Some(TaskOutcome::Idle { order }),
            Self::Lost { .. } => Some(TaskOutcome::Lost),
            _ => None,
        }
    }

    fn freed(order: OrderId) -> Self {
        Self::Idle { order, spent: None }
    }
}

/// What follows from a notice at once.
pub(super) type Arrival = orders::Arrival<Notice>;

/// What happens to a worker that is told to drop its tasks.
pub(super) type Cancellation = orders::Cancellation<Notice>;

/// A worker that comes, or is lost, at a time that is known beforehand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Comes(Worker),
    Lost(Worker),
}

/// Workers that come and are lost by a pool.
#[derive(Default)]
struct Changes {
    /// Who is not there when the run begins.
    absent: BTreeSet<Worker>,
    /// What is left of the pool, with when.
    left: VecDeque<(f64, Change)>,
    /// Puts a thread in a worker's place, or ends the one that is there.
    carry_out: Option<Box<dyn FnMut(Worker, bool) + Send>>,
}

impl Changes {
    fn new(workers: usize, changes: &[PoolChange], now: f64) -> Self {
        let absent = Worker::all(workers).collect();
        let mut all = Self { absent, ..Self::default() };
        for PoolChange { at, come, lost } in changes {
            let at = *at as f64 / 1e3;
            if at <= now {
                all.absent.extend(lost);
                all.absent.retain(|worker| !come.contains(worker));
                continue;
            }
            all.left.extend(lost.iter().map(|worker| (at, Change::Lost(*worker))));
            all.left.extend(come.iter().map(|worker| (at, Change::Comes(*worker))));
        }
        all
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("absent", &self.absent).field("left", &self.left).finish()
    }
}

/// Clock and injected delays of one run, and the workers that come and are lost in it on purpose.
#[derive(Debug)]
pub struct RunClock {
    clock: Clock,
    delays: Vec<Vec<f64>>,
    /// Of a round beyond them: no worker is late.
    calm: Vec<f64>,
    orders: Orders<Notice>,
    changes: Changes,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum ClockMove {
    /// This notice counts as arrived now.
    Arrived { worker: Worker, notice: Notice },
    /// A worker comes, or is lost, now.
    Changed(Change),
    /// The deadline is reached.
    Deadline,
    /// Wait for workers, at most so long.
    Wait(Option<Duration>),
}

impl RunClock {
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
            Clock::Wall { elapsed: ElapsedTime(Box::new(elapsed)), paused: Duration::ZERO },
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
        let unit = delays.unit();
        let late = |row: Vec<f64>| unit.lateness(row, workers, step_seconds);
        let delays = delays.rows(rounds).into_iter().map(late).collect();
        let model = match &clock {
            Clock::Wall { .. } => None,
            Clock::Virtual { model, .. } => Some(*model),
        };
        Self {
            clock,
            delays,
            calm: vec![0.0; workers],
            orders: Orders::new(workers, model),
            changes: Changes::default(),
        }
    }

    /// The same with workers that come and are lost, of whom those are there from now on that are
    /// there by then. `carry_out` is called with a worker and true to have a thread take its place,
    /// with false to end the one that is there; see
    /// [`Replacer`](crate::transport::local::Replacer). A loss is noticed at once; an answer that
    /// is due at the same time comes before it.
    #[must_use]
    pub fn changing(
        self,
        changes: &[PoolChange],
        carry_out: impl FnMut(Worker, bool) + Send + 'static,
    ) -> Self {
        let mut changes = Changes::new(self.calm.len(), changes, self.now());
        changes.carry_out = Some(Box::new(carry_out));
        Self { changes, ..self }
    }

    /// Workers that are not there when the run begins.
    pub fn absent(&self) -> impl Iterator<Item = Worker> {
        self.changes.absent.iter().copied()
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
    pub(super) fn nothing_until(&self, time: f64) -> ClockMove {
        let left = time - self.now();
        if left > 0.0 {
            ClockMove::Wait(Some(Duration::from_secs_f64(left.clamp(1e-6, 1e9))))
        } else {
            ClockMove::Deadline
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
        self.orders.len()
    }

    /// Injected lateness of a round in seconds, one number per worker.
    pub(super) fn lateness(&self, round: u64) -> &[f64] {
        self.delays.get(round as usize).unwrap_or(&self.calm)
    }

    /// A worker is given tasks, with the share of the batch each one is. Its lateness is charged
    /// once per round, to the first order: everything in it comes so much later.
    pub(super) fn assigned(
        &mut self,
        now: f64,
        worker: Worker,
        (order, round): (OrderId, Round),
        tasks: impl Iterator<Item = (Task, f64)>,
    ) {
        let late_by = self.lateness(round.0).get(worker.index()).copied().unwrap_or(0.0);
        self.orders.assigned(now, worker, order, (round, late_by), tasks);
    }

    /// A worker's tasks are not waited for any more; `late_counts` if a result that comes all the
    /// same still counts.
    pub(super) fn abandoned(
        &mut self,
        worker: Worker,
        order: OrderId,
        late_counts: bool,
    ) -> Cancellation {
        self.orders.abandoned(self.now(), worker, order, late_counts)
    }

    /// Whether a worker is still busy with unwanted tasks.
    pub(super) fn is_leaving(&self, worker: Worker) -> bool {
        self.orders.is_leaving(worker)
    }

    /// Takes in what came from a worker.
    pub(super) fn arrived(&mut self, now: f64, worker: Worker, notice: Notice) -> Arrival {
        self.orders.arrived(now, worker, notice)
    }

    /// That a worker is lost, if it is known and the time has not come to say so.
    pub(super) fn withheld_loss(&mut self, worker: Worker) -> Option<Notice> {
        self.orders.withheld_loss(worker)
    }

    /// What happens next, given when the engine wants to be woken at the latest.
    pub(super) fn next(&mut self, deadline: Option<f64>) -> ClockMove {
        let change = self.changes.left.front().map(|(at, _)| *at);
        let by = deadline.into_iter().chain(change).min_by(f64::total_cmp);
        let (then, next) = self.orders.next(self.now(), by);
        if let Clock::Virtual { now, .. } = &mut self.clock {
            *now = then;
        }
        match next {
            orders::NextMove::Arrived { worker, answer, .. } => {
                ClockMove::Arrived { worker, notice: answer }
            }
            orders::NextMove::Deadline if by == change => self.change(),
            orders::NextMove::Deadline => ClockMove::Deadline,
            orders::NextMove::Wait(wait) => {
                ClockMove::Wait(wait.map(|wait| Duration::from_secs_f64(wait.max(1e-6))))
            }
        }
    }

    /// The run is over: no worker comes or is lost any more.
    pub(super) fn no_more_changes(&mut self) {
        self.changes.left.clear();
    }

    /// Carries out the first change that is left.
    fn change(&mut self) -> ClockMove {
        let Some((_, change)) = self.changes.left.pop_front() else { return ClockMove::Deadline };
        let (worker, comes) = match change {
            Change::Comes(worker) => (worker, true),
            Change::Lost(worker) => {
                self.orders.lost(worker);
                (worker, false)
            }
        };
        self.changes.carry_out.iter_mut().for_each(|carry_out| carry_out(worker, comes));
        ClockMove::Changed(change)
    }
}
