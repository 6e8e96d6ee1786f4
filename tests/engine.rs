//! The round engine on virtual time: no thread, no clock, only events.

use codedgrad::codes::sequential::{Accept, Fold, Horizon};
use codedgrad::codes::{SchemeSpec, Wire};
use codedgrad::ids::{Job, Part, Step, Task, Units, Worker, WorkerSet};
use codedgrad::schedulers::{Action, Config, Engine, EngineError, Input, Reduce};
use proptest::prelude::*;
use std::collections::HashMap;

const CONFIG: Config =
    Config { max_wait_seconds: 50.0, grace_seconds: 0.0, wire: Wire::F32, log_steps: 4, micro_steps: 1, mu: 1.0, reduce: Reduce::Tree };

struct Driver {
    engine: Engine,
    now: f64,
}

impl Driver {
    fn new(scheme: &str, workers: usize, jobs: u64, config: Config) -> (Self, Vec<Action>) {
        let scheme = scheme.parse::<SchemeSpec>().unwrap().scheme(workers, workers as u32, 0..jobs).unwrap();
        let mut driver = Self { engine: Engine::new(scheme, config, Step(0)..Step(jobs), 0), now: 0.0 };
        let actions = driver.give(Input::Begin).unwrap();
        (driver, actions)
    }

    fn give(&mut self, input: Input) -> Result<Vec<Action>, EngineError> {
        let mut actions = Vec::new();
        self.engine.handle(self.now, input, &mut actions)?;
        Ok(actions)
    }

    fn at(&mut self, now: f64) -> &mut Self {
        self.now = now;
        self
    }

    fn answer(&mut self, worker: u32, job: u64, finite: bool) -> Result<Vec<Action>, EngineError> {
        let task = Task { job: Job(job), piece: worker };
        self.give(Input::Done { worker: Worker(worker), task, finite })
    }

    fn held(&mut self, worker: u32, job: u64, attempt: u32) -> Vec<Action> {
        self.give(Input::Held { worker: Worker(worker), step: Step(job), attempt, digest: 9 }).unwrap()
    }

    fn applied(&mut self, worker: u32, job: u64, digest: u64) -> Vec<Action> {
        self.give(Input::Applied { worker: Worker(worker), step: Step(job), digest: Some(digest) }).unwrap()
    }
}

fn abandon(worker: u32) -> Action {
    Action::Abandon { worker: Worker(worker), late_counts: false }
}

fn assigned(actions: &[Action]) -> Vec<u32> {
    actions.iter().filter_map(|action| if let Action::Assign { worker, .. } = action { Some(worker.0) } else { None }).collect()
}

fn applies(actions: &[Action]) -> Vec<(u32, u64)> {
    actions.iter().filter_map(|action| if let Action::Apply { worker, step } = action { Some((worker.0, step.0)) } else { None }).collect()
}

fn folded(actions: &[Action]) -> Option<(u32, Vec<u32>)> {
    actions.iter().find_map(|action| match action {
        Action::Fold { attempt, folds, .. } => Some((*attempt, folds.iter().map(|fold| fold.worker.0).collect())),
        _ => None,
    })
}

#[test]
fn a_round_closes_with_the_first_answer_of_each_group_and_commits_before_it_applies() {
    let (mut driver, actions) = Driver::new("groups:s=1", 4, 2, CONFIG);
    assert_eq!(assigned(&actions), [0, 1, 2, 3]);
    assert!(driver.at(1.0).answer(3, 0, true).unwrap().is_empty());
    let closed = driver.at(2.0).answer(1, 0, true).unwrap();
    assert_eq!(closed[..2], [abandon(0), abandon(2)]);
    assert_eq!(folded(&closed), Some((0, vec![1, 3])));
    let [Action::Close(report), Action::Fold { decode, .. }] = &closed[2..] else { panic!() };
    assert_eq!(report.arrivals, [None, Some(2.0), None, Some(1.0)]);
    assert_eq!((report.work, decode.residual), (2.0, 0.0));
    assert!(driver.held(3, 0, 0).is_empty(), "one holder is not enough where there are two");
    let committed = driver.held(1, 0, 0);
    assert_eq!(committed[0], Action::Commit { step: Step(0), attempt: 0, digest: 9 });
    assert_eq!(applies(&committed), [(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(assigned(&committed), [1, 3], "the others have not dropped their tasks yet");
    assert_eq!(assigned(&driver.give(Input::Freed { worker: Worker(0) }).unwrap()), [0]);
    let late = Input::Late { worker: Worker(2), task: Task { job: Job(0), piece: 2 }, finite: true };
    assert!(matches!(driver.give(late).unwrap()[..], [Action::Discard { .. }]), "a late answer counts for nothing here");
    assert_eq!(assigned(&driver.give(Input::Freed { worker: Worker(2) }).unwrap()), [2]);
    driver.answer(0, 1, true).unwrap();
    assert_eq!(folded(&driver.answer(2, 1, true).unwrap()), Some((0, vec![0, 2])));
    driver.held(0, 1, 0);
    assert_eq!(driver.held(2, 1, 0).last(), Some(&Action::Finish));
}

#[test]
fn a_holder_that_dies_before_the_commit_starts_another_attempt() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    assert_eq!(folded(&driver.answer(2, 0, true).unwrap()), Some((0, vec![0, 2])));
    driver.give(Input::Freed { worker: Worker(1) }).unwrap();
    let reopened = driver.give(Input::Lost { worker: Worker(0), kept: false }).unwrap();
    assert_eq!(assigned(&reopened), [1], "the other member of the lost worker's group computes again");
    assert!(driver.held(2, 0, 0).is_empty(), "the first attempt is over");
    assert_eq!(folded(&driver.answer(1, 0, true).unwrap()), Some((1, vec![1, 2])));
    driver.held(2, 0, 1);
    let committed = driver.held(1, 0, 1);
    assert_eq!(committed[0], Action::Commit { step: Step(0), attempt: 1, digest: 9 });
    assert!(applies(&committed).iter().all(|(worker, _)| *worker != 0), "the dead apply nothing");
}

#[test]
fn a_vector_held_elsewhere_outlives_its_sender() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.answer(2, 0, true).unwrap();
    driver.held(2, 0, 0);
    assert!(driver.give(Input::Lost { worker: Worker(0), kept: false }).unwrap().is_empty(), "worker 2 holds the whole sum");
    driver.give(Input::Freed { worker: Worker(1) }).unwrap();
    assert!(matches!(driver.held(1, 0, 0)[0], Action::Commit { attempt: 0, .. }));
}

#[test]
fn different_bytes_are_never_applied() {
    let (mut driver, _) = Driver::new("uncoded", 2, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.answer(1, 0, true).unwrap();
    driver.held(0, 0, 0);
    let differing = Input::Held { worker: Worker(1), step: Step(0), attempt: 0, digest: 8 };
    assert_eq!(driver.give(differing), Err(EngineError::DifferentBytes { step: Step(0), worker: Worker(1) }));
}

#[test]
fn whoever_never_comes_is_named() {
    let (mut driver, _) = Driver::new("groups:s=1", 6, 1, CONFIG);
    assert_eq!(driver.engine.deadline(), Some(50.0));
    for worker in [2, 3, 5] {
        driver.at(1.0).answer(worker, 0, true).unwrap();
    }
    assert!(driver.at(49.0).give(Input::Tick).unwrap().is_empty());
    let error = driver.at(50.5).give(Input::Tick).unwrap_err();
    assert_eq!(error, EngineError::MaxWait { step: Step(0), waited_seconds: 50.5, silent: WorkerSet::of(6, [0, 1, 4].map(Worker)) });
    assert!(error.to_string().contains("workers {0,1,4} never came"));
}

#[test]
fn too_many_deaths_end_the_run_at_once() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 3, CONFIG);
    driver.give(Input::Lost { worker: Worker(0), kept: true }).unwrap();
    let error = driver.give(Input::Lost { worker: Worker(1), kept: true }).unwrap_err();
    assert!(matches!(&error, EngineError::TooManyLost { tolerance: 1, .. }));
    assert!(error.to_string().contains("dead workers {0,1}"), "{error}");
}

#[test]
fn a_share_without_a_finite_message_refuses_the_step_everywhere() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 2, CONFIG);
    driver.answer(2, 0, true).unwrap();
    assert!(driver.answer(0, 0, false).unwrap().is_empty(), "worker 1 may still save the step");
    let refused = driver.answer(1, 0, false).unwrap();
    let Some(Action::Close(report)) = refused.iter().find(|a| matches!(a, Action::Close(_))) else { panic!() };
    let Some(Action::Refuse { step, units }) = refused.iter().find(|a| matches!(a, Action::Refuse { .. })) else { panic!() };
    assert_eq!((*step, &units[..], &report.erased[..]), (Step(0), &[Units { start: 0, end: 2 }][..], &[Worker(0), Worker(1)][..]));
    assert_eq!(applies(&refused), [(0, 0), (1, 0), (2, 0), (3, 0)], "everybody counts the refused step");
    assert_eq!(assigned(&refused), [0, 1, 2], "the next step goes on");
    let (mut saved, _) = Driver::new("groups:s=1", 4, 2, CONFIG);
    saved.answer(0, 0, false).unwrap();
    saved.answer(1, 0, true).unwrap();
    assert_eq!(folded(&saved.answer(2, 0, true).unwrap()), Some((0, vec![1, 2])), "one erased message is a straggler");
}

#[test]
fn a_task_dropped_unasked_counts_as_missing() {
    let (mut driver, _) = Driver::new("uncoded", 2, 1, CONFIG);
    let refused = driver.give(Input::Freed { worker: Worker(1) }).unwrap();
    assert!(refused.iter().any(|action| matches!(action, Action::Refuse { units, .. } if units[..] == [Units { start: 1, end: 2 }])));
}

#[test]
fn rescaling_goes_on_only_when_nobody_else_can_come() {
    let (mut driver, _) = Driver::new("groups:l=2,rescale", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.give(Input::Lost { worker: Worker(2), kept: true }).unwrap();
    assert!(driver.give(Input::Lost { worker: Worker(3), kept: true }).unwrap().is_empty(), "worker 1 is still out");
    let closed = driver.answer(1, 0, true).unwrap();
    let Some(Action::Fold { folds, decode, .. }) = closed.last() else { panic!() };
    assert_eq!((folds[0].weight, decode.coverage), (2.0, 0.5));
    let (mut late, _) = Driver::new("groups:l=2,rescale", 4, 1, CONFIG);
    late.answer(0, 0, true).unwrap();
    assert_eq!(folded(&late.at(50.0).give(Input::Tick).unwrap()), Some((0, vec![0])), "patience is over");
}

#[test]
fn grace_is_given_only_where_an_arrival_would_change_the_decode() {
    let config = Config { grace_seconds: 2.0, ..CONFIG };
    let (mut exact, _) = Driver::new("groups:s=1", 2, 1, config);
    assert!(folded(&exact.answer(0, 0, true).unwrap()).is_some());
    let (mut biased, _) = Driver::new("drop:b=1", 3, 1, config);
    biased.at(1.0).answer(0, 0, true).unwrap();
    assert!(biased.answer(1, 0, true).unwrap().is_empty());
    assert_eq!(biased.engine.deadline(), Some(3.0));
    assert!(biased.at(2.9).give(Input::Tick).unwrap().is_empty());
    assert_eq!(folded(&biased.at(3.0).give(Input::Tick).unwrap()), Some((0, vec![0, 1])));
    let (mut all, _) = Driver::new("drop:b=1", 3, 1, config);
    all.answer(0, 0, true).unwrap();
    all.answer(1, 0, true).unwrap();
    assert_eq!(folded(&all.answer(2, 0, true).unwrap()), Some((0, vec![0, 1, 2])), "nobody else can come");
}

/// One step of `groups:s=1` over 2 workers in which worker 1 takes no part.
fn step_without_worker_1(driver: &mut Driver, job: u64) -> Vec<Action> {
    driver.answer(0, job, true).unwrap();
    driver.give(Input::Lost { worker: Worker(2), kept: true }).unwrap();
    let mut actions = driver.held(0, job, 0);
    actions.extend(driver.held(1, job, 0));
    actions.extend(driver.applied(0, job, 1));
    actions
}

#[test]
fn who_missed_too_much_takes_over_a_state_and_what_came_since() {
    let (mut driver, _) = Driver::new("groups:l=1", 3, 20, CONFIG);
    let mut sent = Vec::new();
    for job in 0..7 {
        sent.extend(applies(&step_without_worker_1(&mut driver, job)).into_iter().filter(|(worker, _)| *worker == 1));
    }
    assert_eq!(sent, [(1, 0), (1, 1), (1, 2), (1, 3)], "no more than the log holds is on its way to a hung worker");
    let freed = driver.give(Input::Freed { worker: Worker(1) }).unwrap();
    assert_eq!(freed, [Action::Resync { worker: Worker(1), from: Worker(0) }]);
    let meanwhile = step_without_worker_1(&mut driver, 7);
    assert!(applies(&meanwhile).iter().all(|(worker, _)| *worker == 0));
    let synced = driver.give(Input::Synced { worker: Worker(1), next: Step(7) }).unwrap();
    assert_eq!(applies(&synced), [(1, 7)], "what was committed after the state was taken");
    assert_eq!(assigned(&synced), [1]);
}

#[test]
fn a_provider_that_dies_is_replaced() {
    let (mut driver, _) = Driver::new("groups:l=1", 4, 9, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.held(0, 0, 0);
    driver.held(3, 0, 0);
    for worker in [1, 2, 3] {
        driver.give(Input::Freed { worker: Worker(worker) }).unwrap();
    }
    driver.applied(0, 0, 5);
    driver.applied(1, 0, 5);
    driver.applied(2, 0, 5);
    let diverged = driver.applied(3, 0, 6);
    assert_eq!(diverged[..2], [Action::Diverged { worker: Worker(3), step: Step(0) }, abandon(3)]);
    let resync = driver.give(Input::Freed { worker: Worker(3) }).unwrap();
    let [Action::Resync { from, .. }] = resync[..] else { panic!("{resync:?}") };
    let again = driver.give(Input::Lost { worker: from, kept: true }).unwrap();
    let Some(Action::Resync { worker: Worker(3), from: other }) = again.first() else { panic!("{again:?}") };
    assert_ne!(*other, from);
}

/// A run in which events come in any order that workers could bring about, and what they hold is known: every unit of
/// every batch is in its step exactly once.
struct Chaos<'a> {
    driver: Driver,
    micro_steps: u64,
    /// Rounds a job may take beyond its first: with so many models and one more, each step begins at parameters that
    /// know its model's last one.
    delay: u64,
    units: u32,
    pool: Vec<Input>,
    /// What every worker has left of its order.
    at: Vec<Vec<Task>>,
    parts: HashMap<(Worker, Task), Vec<Part>>,
    /// Results of every worker, and what it has added up.
    held: Vec<HashMap<Task, u32>>,
    sums: HashMap<(Step, Worker), Vec<(Task, f64)>>,
    dead: WorkerSet,
    applied: Vec<u64>,
    decided: u64,
    choices: &'a [u16],
    turn: usize,
}

impl Chaos<'_> {
    fn choose(&mut self, below: usize) -> usize {
        self.turn += 1;
        let mixed = self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(29);
        (self.choices[self.turn % self.choices.len()] as usize ^ mixed) % below
    }

    fn discard(&mut self, worker: Worker, task: Task) {
        if let Some(count) = self.held[worker.index()].get_mut(&task) {
            *count -= 1;
        }
        self.held[worker.index()].retain(|_, count| *count > 0);
    }

    fn release(&mut self, step: Step, end: Job) {
        self.held.iter_mut().for_each(|held| held.retain(|task, _| task.job >= end));
        self.sums.retain(|(of, _), _| *of != step);
    }

    fn check_fold(&self, step: Step, sums: &[Worker], folds: &[Fold]) {
        let summed = sums.iter().flat_map(|worker| self.sums[&(step, *worker)].iter().map(|(task, weight)| (*worker, *task, *weight)));
        let single = folds.iter().map(|fold| (fold.worker, fold.task, fold.weight));
        assert!(folds.iter().all(|fold| self.held[fold.worker.index()].contains_key(&fold.task)), "what is folded is held");
        let mut counted: HashMap<(Job, u32), f64> = HashMap::new();
        for (worker, task, weight) in summed.chain(single) {
            for part in &self.parts[&(worker, task)] {
                (part.units.start..part.units.end)
                    .for_each(|unit| *counted.entry((task.job, unit)).or_default() += weight * part.coefficient);
            }
        }
        let jobs = step.jobs(self.micro_steps);
        assert!(counted.keys().all(|(job, _)| jobs.contains(job)), "{step} is made of its own jobs");
        assert_eq!(counted.len() as u64, u64::from(self.units) * self.micro_steps, "{step}: no unit is missing");
        assert!(counted.values().all(|count| (count - 1.0).abs() < 1e-6), "{step}: every unit once");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Assign { worker, tasks, .. } => {
                assert!(self.at[worker.index()].is_empty() && !self.dead.contains(worker), "one order at a time, to the living");
                let latest = tasks.iter().map(|(task, _)| task.job.0).max().unwrap_or(0);
                let current = self.micro_steps > 1 || latest <= self.decided + self.delay;
                assert!(current, "job {latest} begins before the step {} jobs before it is decided", self.delay + 1);
                self.parts.extend(tasks.iter().map(|(task, parts)| ((worker, *task), parts.clone())));
                self.at[worker.index()] = tasks.into_iter().map(|task| task.0).collect();
            }
            Action::Close(_) => {}
            Action::Discard { worker, task } => self.discard(worker, task),
            Action::Reduce { step, fold } => {
                assert!(self.held[fold.worker.index()].contains_key(&fold.task), "what is added up is held");
                self.discard(fold.worker, fold.task);
                self.sums.entry((step, fold.worker)).or_default().push((fold.task, fold.weight));
            }
            Action::Abandon { worker, late_counts } => {
                let late = self.at[worker.index()].drain(..).next().filter(|_| late_counts);
                self.pool.extend(late.map(|task| Input::Late { worker, task, finite: true }));
                self.pool.push(Input::Freed { worker });
            }
            Action::Fold { step, attempt, sums, folds, .. } => {
                self.check_fold(step, &sums, &folds);
                let living = self.dead.complement();
                self.pool.extend(living.iter().map(|worker| Input::Held { worker, step, attempt, digest: step.0 }));
            }
            Action::Commit { step, .. } | Action::Refuse { step, .. } => {
                assert_eq!(step.0, self.decided, "in order");
                self.decided += 1;
                self.release(step, step.jobs(self.micro_steps).end);
            }
            Action::Restart { step } => self.release(step, step.jobs(self.micro_steps).end),
            Action::Apply { worker, step } => {
                assert!(step.0 < self.decided && self.applied[worker.index()] == step.0, "decided first, in order, once");
                self.applied[worker.index()] += 1;
                self.pool.push(Input::Applied { worker, step, digest: Some(step.0) });
            }
            other => panic!("nothing of that kind happens here: {other:?}"),
        }
    }

    /// The next event: something that has happened, a worker's next result, a mishap, or a deadline.
    fn next(&mut self, mishaps: bool) -> Input {
        let busy: Vec<usize> = (0..self.at.len()).filter(|worker| !self.at[*worker].is_empty()).collect();
        if let Some(&worker) = busy.first().filter(|_| mishaps && self.choose(24) == 0) {
            let worker = Worker(worker as u32);
            return if self.choose(2) == 0 && self.dead.is_empty() { self.die(worker) } else { self.drop_tasks(worker) };
        }
        let deadline = self.driver.engine.deadline().filter(|deadline| *deadline < self.driver.now + 40.0);
        let events = self.pool.len() + busy.len();
        if events == 0 || deadline.is_some() && self.choose(8) == 0 {
            self.driver.now = deadline.expect("the run is stuck");
            return Input::Tick;
        }
        let choice = self.choose(events);
        if choice < self.pool.len() {
            let input = self.pool.remove(choice);
            if let Input::Late { worker, task, .. } = input {
                *self.held[worker.index()].entry(task).or_default() += 1;
            }
            return input;
        }
        let worker = busy[choice - self.pool.len()];
        let (task, finite) = (self.at[worker].remove(0), !(mishaps && self.choose(24) == 0));
        if finite {
            *self.held[worker].entry(task).or_default() += 1;
        }
        Input::Done { worker: Worker(worker as u32), task, finite }
    }

    fn die(&mut self, worker: Worker) -> Input {
        self.dead.insert(worker);
        self.at[worker.index()].clear();
        self.held[worker.index()].clear();
        self.sums.retain(|(_, of), _| *of != worker);
        self.pool.retain(|input| match input {
            Input::Late { worker: of, .. }
            | Input::Freed { worker: of }
            | Input::Held { worker: of, .. }
            | Input::Applied { worker: of, .. } => *of != worker,
            _ => true,
        });
        Input::Lost { worker, kept: true }
    }

    fn drop_tasks(&mut self, worker: Worker) -> Input {
        self.at[worker.index()].clear();
        Input::Freed { worker }
    }
}

/// Every order of events leaves every live worker with every step applied once and in order; nothing is applied before
/// it is decided, no unit is lost or counted twice, and nobody waits for ever. With mishaps, workers drop their tasks,
/// send what is not finite, and one dies.
fn random_run(scheme: &str, workers: usize, micro_steps: u64, reduce: Reduce, mishaps: bool, choices: &[u16]) {
    let steps = 6;
    let spec = scheme.parse::<SchemeSpec>().unwrap();
    let horizon = Horizon { workers, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
    let Ok(scheme) = spec.over(horizon) else { return };
    let (units, delay) = (scheme.facts().units, scheme.facts().delay as u64);
    let config = Config { micro_steps, reduce, log_steps: 100, ..CONFIG };
    let mut chaos = Chaos {
        driver: Driver { engine: Engine::new(scheme, config, Step(0)..Step(steps), 0), now: 0.0 },
        micro_steps,
        delay,
        units,
        pool: vec![Input::Begin],
        at: vec![Vec::new(); workers],
        parts: HashMap::new(),
        held: vec![HashMap::new(); workers],
        sums: HashMap::new(),
        dead: WorkerSet::empty(workers),
        applied: vec![0; workers],
        decided: 0,
        choices,
        turn: 0,
    };
    for _ in 0..100_000 {
        chaos.driver.now += 1e-3;
        let input = chaos.next(mishaps);
        let actions = match chaos.driver.give(input) {
            Ok(actions) => actions,
            Err(EngineError::TooManyLost { .. }) if !chaos.dead.is_empty() => return,
            Err(error) => panic!("{error}"),
        };
        for action in actions {
            if action == Action::Finish {
                assert_eq!(chaos.decided, steps);
                return;
            }
            chaos.act(action);
        }
    }
    panic!("the run does not end");
}

proptest! {
    #[test]
    fn any_order_of_events_ends_well(
        scheme in prop::sample::select(vec![
            "uncoded", "groups:s=1", "groups:l=1", "groups:l=2", "min-load:s=1", "queue:m=2", "ring:reach=2", "defer:T=1,cap=1,cut=2",
            "defer:T=2,cap=1,cut=2", "defer:T=1,cap=0,cut=2", "m-sgc:B=1,W=2,lambda=1", "m-sgc:B=2,W=3,lambda=2", "m-sgc:B=1,W=3,lambda=4",
            "sr-sgc:B=1,W=2,lambda=2", "sr-sgc:B=2,W=3,lambda=2",
        ]),
        workers in 2usize..7,
        micro_steps in 1u64..4,
        (tree, mishaps) in any::<(bool, bool)>(),
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let reduce = if tree { Reduce::Tree } else { Reduce::Worker };
        random_run(scheme, workers, micro_steps, reduce, mishaps, &choices);
    }
}
