//! A run replayed over a pool: workers come and go, on virtual time in whole milliseconds.
//!
//! [`simulate`](super::simulate) asks what late workers cost; this asks what lost ones do. Every
//! round is planned for the members, those that are there and ready when it begins. No worker is
//! late: a round ends in time, or begins again because of a loss that the scheme does not tolerate.

use crate::ids::Worker;
use thiserror::Error;

/// The longest time that is replayed, about 31 years: sums of such times are far from overflowing.
const TIME_MAX: u64 = 1_000_000_000_000;
/// The most workers there may be at once.
const WORKERS_MAX: usize = 65_536;

/// How many workers are there, and from when on.
///
/// ```
/// use codedgrad::sim::Pool;
/// let mut pool = Pool::default();
/// pool.push(0, 4)?;
/// pool.push(60_000, 3)?;
/// assert!(pool.push(60_000, 4).is_err(), "a row is later than the one before");
/// assert_eq!((pool.last(), pool.least(), pool.most()), (60_000, 3, 4));
/// # Ok::<(), codedgrad::sim::PoolError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// In milliseconds.
    at: u64,
    workers: usize,
}

impl Pool {
    /// From `at` milliseconds on there are so many workers.
    ///
    /// # Errors
    /// [`PoolError::Order`] unless that is later than the last row, [`PoolError::Time`] after
    /// 10^9 s, [`PoolError::Workers`] with more than 65,536.
    pub fn push(&mut self, at: u64, workers: usize) -> Result<(), PoolError> {
        if let Some(Row { at: last, .. }) = self.rows.last().filter(|last| last.at >= at) {
            return Err(PoolError::Order { last: *last });
        }
        check_time("a row's time", at)?;
        if workers > WORKERS_MAX {
            return Err(PoolError::Workers { workers });
        }
        self.rows.push(Row { at, workers });
        Ok(())
    }

    /// When the first row is, in milliseconds.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.rows.first().map_or(0, |row| row.at)
    }

    /// When the last row is, in milliseconds.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.rows.last().map_or(0, |row| row.at)
    }

    /// The fewest workers that a row has.
    #[must_use]
    pub fn least(&self) -> usize {
        self.rows.iter().map(|row| row.workers).min().unwrap_or(0)
    }

    /// The most workers that a row has.
    #[must_use]
    pub fn most(&self) -> usize {
        self.rows.iter().map(|row| row.workers).max().unwrap_or(0)
    }

    /// Who comes and who is lost, row by row, as [`replay`] draws it with that seed.
    ///
    /// ```
    /// use codedgrad::ids::Worker;
    /// use codedgrad::sim::Pool;
    /// let mut pool = Pool::default();
    /// pool.push(0, 2)?;
    /// pool.push(9_000, 1)?;
    /// pool.push(20_000, 2)?;
    /// let changes = pool.changes(1);
    /// assert_eq!(changes[0].come, [Worker(0), Worker(1)]);
    /// assert_eq!((changes[1].at, changes[1].lost.len()), (9_000, 1));
    /// assert_eq!(changes[2].come, changes[1].lost, "the lowest free seat is the only one");
    /// # Ok::<(), codedgrad::sim::PoolError>(())
    /// ```
    #[must_use]
    pub fn changes(&self, seed: u64) -> Vec<PoolChange> {
        let mut seats = Seats::new(self.most(), seed);
        self.rows.iter().map(|row| seats.take_in(*row, 0)).collect()
    }

    /// What all workers together could compute until then, in milliseconds of one worker.
    fn capacity(&self, end: u64) -> u128 {
        let until = self.rows.iter().skip(1).map(|row| row.at).chain([end]);
        let lasts = |(row, until): (&Row, u64)| {
            u128::from(until.min(end).saturating_sub(row.at)) * row.workers as u128
        };
        self.rows.iter().zip(until).map(lasts).sum()
    }
}

/// Who comes at a row of a pool, and who is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolChange {
    /// When, in milliseconds.
    pub at: u64,
    /// Whose seats are taken: the lowest that were free.
    pub come: Vec<Worker>,
    /// Whose seats get free, in the order in which they were drawn.
    pub lost: Vec<Worker>,
}

/// How a run over a pool is replayed; all times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRules {
    /// What a whole batch takes on one worker.
    pub work: u64,
    /// Stragglers that every group of workers takes, `s` of `groups:s=..`; 0 is uncoded.
    pub stragglers: usize,
    /// How much later than it happens a loss is noticed that the scheme cannot do without.
    pub detect: u64,
    /// How much later than it comes a worker is ready.
    pub sync: u64,
    /// What it costs to start the run again, where it cannot go on with other members.
    pub restart: Option<u64>,
    /// When the replay ends.
    pub end: u64,
    /// Of the draws of who is lost.
    pub seed: u64,
}

impl PoolRules {
    fn check(&self) -> Result<(), PoolError> {
        let restart = self.restart.unwrap_or(0);
        let times = [
            ("work", self.work),
            ("detect", self.detect),
            ("sync", self.sync),
            ("restart", restart),
            ("the end", self.end),
        ];
        for (name, time) in times {
            check_time(name, time)?;
        }
        match times
            .into_iter()
            .find(|(name, time)| *time == 0 && ["work", "the end"].contains(name))
        {
            Some((name, _)) => Err(PoolError::Nothing { name }),
            None => Ok(()),
        }
    }
}

/// A pool that cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A row that is not later than the one before.
    #[error("it must be later than the row before, at {} s", *last as f64 / 1e3)]
    Order {
        /// When that is, in milliseconds.
        last: u64,
    },
    /// A time that is too long.
    #[error("{name} is {} s: at most 1e9 s are replayed", *time as f64 / 1e3)]
    Time {
        /// Which.
        name: &'static str,
        /// As given, in milliseconds.
        time: u64,
    },
    /// More workers than are replayed.
    #[error("{workers} workers: at most {WORKERS_MAX} are replayed")]
    Workers {
        /// As given.
        workers: usize,
    },
    /// A time that must be more than nothing.
    #[error("{name} is 0 s: it must be a millisecond or more")]
    Nothing {
        /// Which.
        name: &'static str,
    },
    /// No row.
    #[error("no rows: no worker is ever there")]
    Empty,
}

fn check_time(name: &'static str, time: u64) -> Result<(), PoolError> {
    if time > TIME_MAX { Err(PoolError::Time { name, time }) } else { Ok(()) }
}

/// What came of a run over a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolOutcome {
    /// Steps until the end.
    pub steps: u64,
    /// Rounds that a loss ended before their time; they begin again.
    pub aborted: u64,
    /// Milliseconds that went by in those rounds, until the loss was noticed, and in restarts.
    pub lost: u64,
    /// How often the members became others, the first ones included.
    pub plans: u64,
    /// The share in the steps of what all workers of the pool could have computed, to six decimals;
    /// none where no worker was ever there.
    pub goodput: Option<f64>,
}

/// Replays a run over a pool.
///
/// # Formula
/// ```text
/// l = max(1, floor(n/(s+1)))     group(k) = floor(k l / n)     round = ceil(work / l)
/// ```
/// where `n` is the number of members and `k` a member's place among them. A loss ends the round
/// if it leaves a group empty; under `restart` any member's does, and every other set of members
/// than the last one costs a restart.
///
/// Who is lost is drawn among those that are there in the order of their seats: the one at
/// `floor(f count)`, `f` from SplitMix64 with `seed` as its state. Those who come take the lowest
/// free seats.
///
/// # Errors
/// [`PoolError`] when there is no row, a time is too long, or `work` or `end` is 0.
///
/// ```
/// use codedgrad::sim::{Pool, PoolRules, replay};
/// let mut pool = Pool::default();
/// pool.push(0, 4)?;
/// // In the third round of a second each.
/// pool.push(2_500, 2)?;
/// let rules = PoolRules {
///     work: 4_000, stragglers: 0, detect: 0, sync: 0, restart: None, end: 6_500, seed: 1
/// };
/// let outcome = replay(&pool, &rules)?;
/// // Two rounds of 1 s; half a second is lost; two rounds of 2 s.
/// assert_eq!((outcome.steps, outcome.aborted, outcome.lost, outcome.plans), (4, 1, 500, 2));
/// assert_eq!(outcome.goodput, Some(0.888889));
/// # Ok::<(), codedgrad::sim::PoolError>(())
/// ```
pub fn replay(pool: &Pool, rules: &PoolRules) -> Result<PoolOutcome, PoolError> {
    if pool.rows.is_empty() {
        return Err(PoolError::Empty);
    }
    rules.check()?;
    let mut run = Run {
        rows: &pool.rows,
        rules,
        seats: Seats::new(pool.most(), rules.seed),
        now: 0,
        members: Vec::new(),
        outcome: PoolOutcome::default(),
    };
    while run.now < rules.end {
        run.go_on();
    }
    let computed = u128::from(run.outcome.steps) * u128::from(rules.work);
    let capacity = pool.capacity(rules.end);
    let goodput = (capacity > 0).then(|| (1e6 * computed as f64 / capacity as f64).round() / 1e6);
    Ok(PoolOutcome { goodput, ..run.outcome })
}

/// Where workers sit.
struct Seats {
    /// When the worker that has the seat can first take part; none where no worker has it.
    ready: Vec<Option<u64>>,
    /// Of SplitMix64.
    state: u64,
}

impl Seats {
    fn new(seats: usize, seed: u64) -> Self {
        Self { ready: vec![None; seats], state: seed }
    }

    /// Takes in a row.
    fn take_in(&mut self, row: Row, sync: u64) -> PoolChange {
        let seats = 0..self.ready.len();
        let (mut present, free): (Vec<usize>, Vec<usize>) =
            seats.partition(|seat| self.ready[*seat].is_some());
        let come = &free[..row.workers.saturating_sub(present.len())];
        // Who is there when the run begins has its first state already.
        let ready = if row.at == 0 { 0 } else { row.at + sync };
        come.iter().for_each(|seat| self.ready[*seat] = Some(ready));
        let mut lost = Vec::new();
        while present.len() > row.workers {
            let seat = present.remove((self.draw() * present.len() as f64) as usize);
            self.ready[seat] = None;
            lost.push(seat);
        }
        let workers = |seats: &[usize]| seats.iter().map(|seat| Worker(*seat as u32)).collect();
        PoolChange { at: row.at, come: workers(come), lost: workers(&lost) }
    }

    /// The next number of 0 or more and below 1.
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }

    fn ready_at(&self, now: u64) -> Vec<usize> {
        let is_ready = |seat: &usize| self.ready[*seat].is_some_and(|ready| ready <= now);
        (0..self.ready.len()).filter(is_ready).collect()
    }

    /// When the next worker is ready.
    fn next_ready(&self, now: u64) -> Option<u64> {
        self.ready.iter().flatten().copied().filter(|ready| *ready > now).min()
    }
}

struct Run<'a> {
    /// Those that are still to come.
    rows: &'a [Row],
    rules: &'a PoolRules,
    seats: Seats,
    now: u64,
    /// The seats of the last plan's members, ascending.
    members: Vec<usize>,
    outcome: PoolOutcome,
}

impl Run<'_> {
    /// The next row, if it is before then.
    fn row_before(&mut self, end: u64) -> Option<Row> {
        let (row, rest) = self.rows.split_first().filter(|(row, _)| row.at < end)?;
        self.rows = rest;
        Some(*row)
    }

    /// When the workers that can take part may become others.
    fn changes(&self) -> u64 {
        let row = self.rows.first().map(|row| row.at);
        let ready = self.seats.next_ready(self.now);
        row.into_iter().chain(ready).min().unwrap_or(self.rules.end)
    }

    /// Waits for a worker, restarts, or plays rounds.
    fn go_on(&mut self) {
        while let Some(row) = self.row_before(self.now + 1) {
            self.seats.take_in(row, self.rules.sync);
        }
        let members = self.seats.ready_at(self.now);
        if members.is_empty() {
            self.now = self.changes();
            return;
        }
        if members != self.members {
            self.members = members;
            self.outcome.plans += 1;
            let restart = self.rules.restart.filter(|_| self.outcome.plans > 1);
            if let Some(restart) = restart {
                self.now += restart;
                self.outcome.lost += restart;
                // Others may have come or be lost meanwhile.
                return;
            }
        }
        self.play();
    }

    /// The round that begins now, or as many as nothing can happen in.
    fn play(&mut self) {
        let count = self.members.len();
        let groups = (count / self.rules.stragglers.saturating_add(1)).max(1);
        let lasts = self.rules.work.div_ceil(groups as u64);
        let undisturbed = self.changes().min(self.rules.end).saturating_sub(self.now) / lasts;
        if undisturbed > 0 {
            self.now += undisturbed * lasts;
            self.outcome.steps += undisturbed;
            return;
        }
        let end = self.now + lasts;
        let group = |place: usize| place * groups / count;
        let mut left = vec![0usize; groups];
        (0..count).for_each(|place| left[group(place)] += 1);
        // One that takes a lost member's seat meanwhile has no part in the round.
        let mut there = vec![true; count];
        while let Some(row) = self.row_before(end) {
            let change = self.seats.take_in(row, self.rules.sync);
            let mut fatal = false;
            for worker in change.lost {
                let place = self.members.binary_search(&worker.index()).ok();
                let Some(place) = place.filter(|place| there[*place]) else { continue };
                there[place] = false;
                left[group(place)] -= 1;
                fatal |= left[group(place)] == 0 || self.rules.restart.is_some();
            }
            if fatal {
                let noticed = row.at + self.rules.detect;
                self.outcome.aborted += 1;
                self.outcome.lost += noticed - self.now;
                self.now = noticed;
                return;
            }
        }
        self.now = end;
        self.outcome.steps += u64::from(end <= self.rules.end);
    }
}
