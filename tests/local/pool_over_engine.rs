//! A replay of a pool does what the engine does, where that waits for no worker. It does not wait
//! for one to come back (`settle` 0), for word of a loss (`detect` 0) or for a state taken over
//! (`sync` 0).

use codedgrad::codes::SchemeSpec;
use codedgrad::ids::{OrderId, Step, Task, Worker};
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Action, Engine, Input, PlannedScheme, Settings};
use codedgrad::sim::{Pool, PoolOutcome, PoolRules, replay};
use std::collections::{BTreeSet, VecDeque};

/// Any number of workers up to 12 has equal shares, of two milliseconds a unit.
const UNITS: u32 = 27_720;
const WORK: u64 = 2 * UNITS as u64;
const STEPS: u64 = 10_000;
/// Rounds of many numbers of workers end at multiples of it.
const GAP: u64 = WORK / 12;

/// SplitMix64, as a number of 0 or more and below `most`.
fn below(state: &mut u64, most: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mixed = (mixed ^ (mixed >> 31)) >> 11;
    (mixed as f64 / 2f64.powi(53) * most as f64) as usize
}

/// When there are how many workers. Of a code, workers are lost one by one, since the engine is
/// told of one after the other and plans in between; and none comes in a round that has lost one,
/// since the engine would give it the lost one's task.
fn rows(state: &mut u64, coded: bool) -> Vec<(u64, usize)> {
    let mut rows = vec![(0, 1 + below(state, 12))];
    for _ in 0..below(state, 25) {
        let (at, workers) = rows[rows.len() - 1];
        let gaps = 1 + below(state, 12) as u64;
        let next = 1 + below(state, 12);
        rows.push(match () {
            () if !coded => (at + gaps * GAP, next),
            () if next > workers => (at + gaps * GAP + WORK, next),
            () => (at + gaps * GAP / 5, workers.max(2) - 1),
        });
    }
    rows
}

/// When tasks are done, and which.
type DueTasks = (u64, Vec<(OrderId, Task)>);

/// An engine whose workers come, compute in no more time than they need, and are lost.
struct Driven {
    engine: Engine,
    now: u64,
    /// When each worker is done with what it has, and with what.
    due: Vec<Option<DueTasks>>,
    /// The first step that each has not applied.
    next: Vec<Step>,
    /// What it is told at once, and what comes after all else that happens at an instant: only
    /// then the next round opens.
    first: VecDeque<Input>,
    held: VecDeque<Input>,
    steps: u64,
    /// When there was another plan: one that is replaced before time goes on is none.
    planned: BTreeSet<u64>,
    sums: u64,
    closes: u64,
}

impl Driven {
    fn new(spec: &SchemeSpec, workers: usize, there: usize) -> Self {
        let scheme = spec.scheme(workers, UNITS, 0..STEPS).unwrap();
        let limits = Limits {
            max_wait_seconds: 1e12,
            min_workers: Some(1),
            settle_seconds: 0.0,
            ..Limits::default()
        };
        let shape = Shape::new(workers, UNITS);
        let config = RunConfig { limits, ..RunConfig::new(shape, 1, STEPS) };
        let replan = Some(PlannedScheme::by(spec.clone(), UNITS, 0..STEPS));
        let settings = Settings { replan, ..Settings::default() };
        let absent = (there..workers).map(|seat| Input::Lost { worker: at(seat), kept: true });
        let mut driven = Self {
            engine: Engine::new(scheme, config, settings).unwrap(),
            now: 0,
            due: vec![None; workers],
            next: vec![Step(0); workers],
            first: absent.chain([Input::Begin]).collect(),
            held: VecDeque::new(),
            steps: 0,
            planned: BTreeSet::from([0]),
            sums: 0,
            closes: 0,
        };
        driven.settle();
        driven
    }

    /// Tells the engine what there is to tell but what opens a round.
    fn settle(&mut self) {
        while let Some(input) = self.first.pop_front() {
            let mut actions = Vec::new();
            self.engine.handle(self.now as f64, input, &mut actions).unwrap();
            actions.into_iter().for_each(|action| self.act(action));
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Compute { worker, order, tasks, .. } => {
                let facts = self.engine.plan().facts();
                let units = tasks.iter().map(|(_, parts)| u64::from(facts.units_of(parts)));
                let done = self.now + 2 * units.sum::<u64>();
                let tasks = tasks.into_iter().map(|(task, _)| (order, task)).collect();
                self.due[worker.index()] = Some((done, tasks));
            }
            Action::Abandon { worker, order, .. } => {
                self.due[worker.index()] = None;
                self.first.push_back(Input::Idle { worker, order });
            }
            // Nor is a round that goes on for no time.
            Action::Close(report) => {
                self.closes += u64::from(report.closed_at > report.opened_at);
            }
            Action::Sum { step, .. } => {
                self.sums += 1;
                self.held.push_back(Input::Summed { step, digest: step.0 });
            }
            Action::Commit { .. } => self.steps += 1,
            Action::Apply { worker, step } => {
                self.next[worker.index()] = Step(step.0 + 1);
                self.first.push_back(Input::Applied { worker, step, digest: None });
            }
            Action::Resync { worker, from } => {
                let next = self.next[from.index()];
                self.next[worker.index()] = next;
                self.first.push_back(Input::Synced { worker, next });
            }
            Action::Replanned { .. } => drop(self.planned.insert(self.now)),
            Action::Expect { .. } | Action::Discard { .. } | Action::Restart { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// All that happens until then, and the answers that are there then.
    fn until(&mut self, then: u64) {
        loop {
            let due = self.due.iter().flatten().map(|(done, _)| *done).min();
            let now = Some(self.now);
            if due == now {
                let is_due = |due: &Option<(u64, _)>| due.as_ref().map(|due| due.0) == now;
                let seat = self.due.iter().position(is_due).unwrap();
                let (_, tasks) = self.due[seat].take().unwrap();
                let worker = at(seat);
                let finite = true;
                let done =
                    |(order, task)| Input::Done { worker, order, task, finite, digest: None };
                self.first.extend(tasks.into_iter().map(done));
                self.settle();
            } else if self.now == then {
                return;
            } else if self.held.is_empty() {
                self.now = due.map_or(then, |due| due.min(then));
            } else {
                self.open();
            }
        }
    }

    /// The next round opens.
    fn open(&mut self) {
        while let Some(held) = self.held.pop_front() {
            self.first.push_back(held);
            self.settle();
        }
    }

    fn lost(&mut self, seat: usize) {
        self.due[seat] = None;
        self.first.push_back(Input::Lost { worker: at(seat), kept: true });
        self.settle();
    }

    fn joined(&mut self, seat: usize) {
        self.first.push_back(Input::Joined { worker: at(seat), next: None });
        self.settle();
    }
}

fn at(seat: usize) -> Worker {
    Worker(seat as u32)
}

/// Steps, rounds begun again and plans.
fn over_engine(spec: &SchemeSpec, rows: &[(u64, usize)], seed: u64, end: u64) -> [u64; 3] {
    // One seat stays empty: a code is not for one worker.
    let most = 1 + rows.iter().map(|(_, workers)| *workers).max().unwrap();
    let mut driven = Driven::new(spec, most, rows[0].1);
    let mut state = seed;
    let mut there: Vec<usize> = (0..rows[0].1).collect();
    for (time, workers) in rows {
        driven.until(*time);
        while there.len() > *workers {
            let seat = there.remove(below(&mut state, there.len()));
            driven.lost(seat);
        }
        while there.len() < *workers {
            let seat = (0..most).find(|seat| !there.contains(seat)).unwrap();
            there.push(seat);
            there.sort_unstable();
            driven.joined(seat);
        }
    }
    driven.until(end);
    [driven.steps, driven.closes - driven.sums, driven.planned.len() as u64]
}

fn agree(scheme: &str, stragglers: usize) {
    let spec = scheme.parse().unwrap();
    let mut together = [0; 3];
    for seed in 0..200 {
        let rows = rows(&mut (1000 + seed), stragglers > 0);
        let mut pool = Pool::default();
        rows.iter().for_each(|(at, workers)| pool.push(*at, *workers).unwrap());
        // No round ends then.
        let end = pool.last() + 100_001;
        let rules =
            PoolRules { work: WORK, stragglers, detect: 0, sync: 0, restart: None, end, seed };
        let PoolOutcome { steps, aborted, plans, .. } = replay(&pool, &rules).unwrap();
        let found = over_engine(&spec, &rows, seed, end);
        assert_eq!(found, [steps, aborted, plans], "seed {seed}: {rows:?}");
        together.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
    }
    assert!(together.iter().all(|sum| *sum > 50), "{together:?}");
}

#[test]
fn the_engine_does_the_same_uncoded() {
    agree("uncoded", 0);
}

#[test]
fn the_engine_does_the_same_under_a_code() {
    agree("groups:s=1", 1);
}
