//! The round engine on virtual time: no thread, no clock, only events.

mod chaos;
mod kept;
mod leaving;
mod members;
mod trust;

use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::Scheme;
use codedgrad::ids::{Job, OrderId, Step, Task, Units, Worker, WorkerSet};
use codedgrad::run::{ConfigError, Jobs, Limits, RunConfig, Shape};
use codedgrad::schedulers::{Action, Engine, EngineError, Input, Refusal, Replan, Settings};
use codedgrad::sums::{StepSums, SumId};
use std::collections::BTreeMap;

/// What an engine is told here beside its scheme and its steps.
#[derive(Clone, Copy)]
struct Config {
    max_wait_seconds: f64,
    return_seconds: f64,
    grace_seconds: f64,
    min_workers: Option<usize>,
    settle_seconds: f64,
    log_steps: u64,
    micro_steps: u64,
    models: u64,
    restores: bool,
}

const CONFIG: Config = Config {
    max_wait_seconds: 50.0,
    return_seconds: 0.0,
    grace_seconds: 0.0,
    min_workers: None,
    settle_seconds: 0.0,
    log_steps: 4,
    micro_steps: 1,
    models: 1,
    restores: false,
};

impl Config {
    fn engine(self, scheme: Box<dyn Scheme>, steps: u64) -> Result<Engine, ConfigError> {
        self.replanned(scheme, steps, None)
    }

    /// An engine that can plan its run again.
    fn replanned(
        self,
        scheme: Box<dyn Scheme>,
        steps: u64,
        replan: Option<Replan>,
    ) -> Result<Engine, ConfigError> {
        let Self { max_wait_seconds, return_seconds, grace_seconds, .. } = self;
        let (workers, units) = (scheme.facts().workers, scheme.facts().units);
        let run = RunConfig {
            jobs: Jobs { models: self.models, micro_steps: self.micro_steps },
            limits: Limits {
                max_wait_seconds,
                return_seconds,
                grace_seconds,
                mu: 1.0,
                min_workers: self.min_workers,
                settle_seconds: self.settle_seconds,
                ..Limits::default()
            },
            log_steps: self.log_steps,
            ..RunConfig::new(Shape::new(workers, units), 1, steps)
        };
        let restores = self.restores;
        Engine::new(scheme, run, Settings { restores, replan, ..Settings::default() })
    }
}

struct Driver {
    engine: Engine,
    sums: StepSums,
    now: f64,
    /// The last order of each worker.
    orders: BTreeMap<u32, OrderId>,
}

impl Driver {
    fn of(engine: Engine) -> Self {
        let sums = StepSums::new(engine.config().limits.max_wait_seconds);
        Self { engine, sums, now: 0.0, orders: BTreeMap::new() }
    }

    fn new(scheme: &str, workers: usize, jobs: u64, config: Config) -> (Self, Vec<Action>) {
        let scheme =
            scheme.parse::<SchemeSpec>().unwrap().scheme(workers, workers as u32, 0..jobs).unwrap();
        let mut driver = Self::of(config.engine(scheme, jobs).unwrap());
        let actions = driver.give(Input::Begin).unwrap();
        (driver, actions)
    }

    fn give(&mut self, input: Input) -> Result<Vec<Action>, EngineError> {
        let mut actions = Vec::new();
        self.sums.handle(&mut self.engine, self.now, input, &mut actions)?;
        self.see(&actions);
        Ok(actions)
    }

    fn see(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Compute { worker, order, .. } = action {
                self.orders.insert(worker.0, *order);
            }
        }
    }

    /// The last order of a worker; none that there is, if it was given none.
    fn order(&self, worker: u32) -> OrderId {
        self.orders.get(&worker).copied().unwrap_or_default()
    }

    /// A worker has dropped its last order.
    fn idle(&self, worker: u32) -> Input {
        Input::Idle { worker: Worker(worker), order: self.order(worker) }
    }

    fn abandons(&self, worker: u32) -> Action {
        Action::Abandon { worker: Worker(worker), order: self.order(worker), late_counts: false }
    }

    /// What follows from what was said of sums.
    fn settle(&mut self) -> Result<Vec<Action>, EngineError> {
        let mut actions = Vec::new();
        self.sums.settle(&mut self.engine, self.now, &mut actions)?;
        self.see(&actions);
        Ok(actions)
    }

    fn at(&mut self, now: f64) -> &mut Self {
        self.now = now;
        self
    }

    fn answer(&mut self, worker: u32, job: u64, finite: bool) -> Result<Vec<Action>, EngineError> {
        let task = Task { job: Job(job), piece: worker, plan: 0 };
        let order = self.order(worker);
        self.give(Input::Done { worker: Worker(worker), order, task, finite, digest: None })
    }

    fn held(&mut self, worker: u32, job: u64, attempt: u32) -> Vec<Action> {
        self.holds(worker, job, attempt, 9).unwrap()
    }

    fn holds(
        &mut self,
        worker: u32,
        job: u64,
        attempt: u32,
        digest: u64,
    ) -> Result<Vec<Action>, EngineError> {
        self.sums.held(Worker(worker), SumId { step: Step(job), attempt }, digest);
        self.settle()
    }

    fn deadline(&self) -> Option<f64> {
        self.sums.deadline(&self.engine)
    }

    fn applied(&mut self, worker: u32, job: u64, digest: u64) -> Vec<Action> {
        self.give(Input::Applied { worker: Worker(worker), step: Step(job), digest: Some(digest) })
            .unwrap()
    }
}

fn assigned(actions: &[Action]) -> Vec<u32> {
    actions
        .iter()
        .filter_map(
            |action| {
                if let Action::Compute { worker, .. } = action { Some(worker.0) } else { None }
            },
        )
        .collect()
}

fn applies(actions: &[Action]) -> Vec<(u32, u64)> {
    actions
        .iter()
        .filter_map(|action| {
            if let Action::Apply { worker, step } = action {
                Some((worker.0, step.0))
            } else {
                None
            }
        })
        .collect()
}

fn folded(actions: &[Action]) -> Option<Vec<u32>> {
    actions.iter().find_map(|action| match action {
        Action::Sum { terms, .. } => {
            Some(terms.iter().map(|term| term.holders[0].worker.0).collect())
        }
        _ => None,
    })
}

#[test]
fn a_round_closes_with_the_first_answer_of_each_group_and_commits_before_it_applies() {
    let (mut driver, actions) = Driver::new("groups:s=1", 4, 2, CONFIG);
    assert_eq!(assigned(&actions), [0, 1, 2, 3]);
    assert!(driver.at(1.0).answer(3, 0, true).unwrap().is_empty());
    let closed = driver.at(2.0).answer(1, 0, true).unwrap();
    assert_eq!(closed[..2], [driver.abandons(0), driver.abandons(2)]);
    assert_eq!(folded(&closed), Some(vec![1, 3]));
    let [Action::Close(report), Action::Sum { decode, .. }] = &closed[2..] else { panic!() };
    assert_eq!(report.arrivals, [None, Some(2.0), None, Some(1.0)]);
    assert_eq!((report.work, decode.residual), (2.0, 0.0));
    assert!(driver.held(3, 0, 0).is_empty(), "one holder is not enough where there are two");
    let committed = driver.held(1, 0, 0);
    assert_eq!(committed[0], Action::Commit { step: Step(0), digest: 9, unverified: vec![] });
    assert_eq!(applies(&committed), [(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(assigned(&committed), [1, 3], "the others have not dropped their tasks yet");
    assert_eq!(assigned(&driver.give(driver.idle(0)).unwrap()), [0]);
    let late = driver.answer(2, 0, true).unwrap();
    assert!(matches!(late[0], Action::Discard { .. }), "a late answer counts for nothing here");
    assert_eq!(assigned(&late), [2], "it has nothing left to drop");
    driver.answer(0, 1, true).unwrap();
    assert_eq!(folded(&driver.answer(2, 1, true).unwrap()), Some(vec![0, 2]));
    driver.held(0, 1, 0);
    assert_eq!(driver.held(2, 1, 0).last(), Some(&Action::Finish));
}

#[test]
fn a_holder_that_dies_before_the_commit_starts_another_attempt() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    assert_eq!(folded(&driver.answer(2, 0, true).unwrap()), Some(vec![0, 2]));
    driver.give(driver.idle(1)).unwrap();
    assert!(driver.engine.plan().spares_one(driver.engine.roster()));
    let reopened = driver.give(Input::Lost { worker: Worker(0), kept: false }).unwrap();
    assert!(!driver.engine.plan().spares_one(driver.engine.roster()));
    assert_eq!(
        assigned(&reopened),
        [1],
        "the other member of the lost worker's group computes again"
    );
    assert!(driver.held(2, 0, 0).is_empty(), "the first attempt is over");
    assert_eq!(folded(&driver.answer(1, 0, true).unwrap()), Some(vec![1, 2]));
    driver.held(2, 0, 1);
    let committed = driver.held(1, 0, 1);
    assert_eq!(committed[0], Action::Commit { step: Step(0), digest: 9, unverified: vec![] });
    assert!(applies(&committed).iter().all(|(worker, _)| *worker != 0), "the dead apply nothing");
}

#[test]
fn a_vector_held_elsewhere_outlives_its_sender() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.answer(2, 0, true).unwrap();
    driver.held(2, 0, 0);
    assert!(
        driver.give(Input::Lost { worker: Worker(0), kept: false }).unwrap().is_empty(),
        "worker 2 holds the whole sum"
    );
    driver.give(driver.idle(1)).unwrap();
    assert!(matches!(driver.held(1, 0, 0)[0], Action::Commit { .. }));
}

#[test]
fn different_bytes_are_never_applied() {
    let (mut driver, _) = Driver::new("uncoded", 2, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.answer(1, 0, true).unwrap();
    driver.held(0, 0, 0);
    assert_eq!(
        driver.holds(1, 0, 0, 8),
        Err(EngineError::DifferentBytes { step: Step(0), worker: Worker(1) })
    );
}

#[test]
fn two_workers_that_hold_the_same_bytes_outvote_a_third() {
    let decoded = || {
        let (mut driver, _) = Driver::new("uncoded", 3, 1, CONFIG);
        for worker in 0..3 {
            driver.answer(worker, 0, true).unwrap();
        }
        driver
    };
    let mut driver = decoded();
    assert!(
        [(0, 8), (1, 9), (1, 9)]
            .into_iter()
            .all(|(worker, digest)| driver.holds(worker, 0, 0, digest).unwrap().is_empty()),
        "one word each"
    );
    let settled = driver.holds(2, 0, 0, 9).unwrap();
    assert!(matches!(settled[0], Action::Commit { digest: 9, .. }), "{settled:?}");
    let mut driver = decoded();
    driver.holds(0, 0, 0, 8).unwrap();
    driver.holds(1, 0, 0, 9).unwrap();
    assert_eq!(
        driver.holds(2, 0, 0, 7),
        Err(EngineError::DifferentBytes { step: Step(0), worker: Worker(1) })
    );
}

#[test]
fn whoever_never_comes_is_named() {
    let (mut driver, _) = Driver::new("groups:s=1", 6, 1, CONFIG);
    assert_eq!(driver.deadline(), Some(50.0));
    for worker in [2, 3, 5] {
        driver.at(1.0).answer(worker, 0, true).unwrap();
    }
    assert!(driver.at(49.0).give(Input::Tick).unwrap().is_empty());
    let error = driver.at(50.5).give(Input::Tick).unwrap_err();
    assert_eq!(
        error,
        EngineError::MaxWait {
            step: Step(0),
            waited_seconds: 50.5,
            silent: WorkerSet::of(6, [0, 1, 4].map(Worker))
        }
    );
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
    let Some(Action::Close(report)) = refused.iter().find(|a| matches!(a, Action::Close(_))) else {
        panic!()
    };
    let Some(Action::Skip { step, units, because }) =
        refused.iter().find(|a| matches!(a, Action::Skip { .. }))
    else {
        panic!()
    };
    assert_eq!(
        (*step, &units[..], &report.erased[..]),
        (Step(0), &[Units { start: 0, end: 2 }][..], &[Worker(0), Worker(1)][..])
    );
    assert_eq!(*because, Refusal::NotFinite);
    assert_eq!(
        applies(&refused),
        [(0, 0), (1, 0), (2, 0), (3, 0)],
        "every worker counts the refused step"
    );
    assert_eq!(assigned(&refused), [0, 1, 2], "the next step goes on");
    let (mut saved, _) = Driver::new("groups:s=1", 4, 2, CONFIG);
    saved.answer(0, 0, false).unwrap();
    saved.answer(1, 0, true).unwrap();
    assert_eq!(
        folded(&saved.answer(2, 0, true).unwrap()),
        Some(vec![1, 2]),
        "one erased message is a straggler"
    );
}

#[test]
fn what_is_not_finite_is_so_for_who_comes_back() {
    let config = Config { return_seconds: 5.0, ..CONFIG };
    let (mut driver, _) = Driver::new("groups:s=1", 2, 2, config);
    driver.give(Input::Lost { worker: Worker(1), kept: true }).unwrap();
    let refused = driver.answer(0, 0, false).unwrap();
    assert!(
        refused.iter().any(|action| matches!(action, Action::Skip { .. })),
        "worker 1 would not find it finite either"
    );
}

#[test]
fn a_scheme_for_others_is_no_engines() {
    let of = |workers, units| {
        let scheme = SchemeSpec::uncoded().scheme(4, 8, 0..9).unwrap();
        Engine::new(scheme, RunConfig::new(Shape::new(workers, units), 1, 9), Settings::default())
            .err()
    };
    assert_eq!(of(4, 8), None);
    assert_eq!(of(5, 8).unwrap().to_string(), "the scheme is made for 4 workers, the run has 5");
    assert!(of(4, 4).unwrap().to_string().contains("8 units of a batch, the run has 4"));
}

/// With one model the tasks of a job would be computed at parameters that lack the steps still
/// open.
#[test]
fn schemes_whose_jobs_overlap_need_as_many_models() {
    let engine = |scheme: &str, models: u64, micro_steps: u64| {
        let (next_step, text) =
            scheme.strip_prefix("next ").map_or((false, scheme), |text| (true, text));
        let mut spec = text.parse::<SchemeSpec>().unwrap();
        if next_step {
            spec = spec.deferring_to_next_step().unwrap();
        }
        let scheme = spec.scheme(4, 24, 0..9 * micro_steps.max(1)).unwrap();
        Config { models, micro_steps, ..CONFIG }.engine(scheme, 9).err()
    };
    let overlapping = [
        "m-sgc:B=1,W=2,lambda=1",
        "m-sgc:B=2,W=3,lambda=2",
        "sr-sgc:B=1,W=2,lambda=2",
        "sr-sgc:B=2,W=3,lambda=2",
    ];
    for (scheme, rounds) in overlapping
        .into_iter()
        .zip([2, 4, 2, 3])
        .chain([("defer:T=1,cap=1,cut=2", 2), ("defer:T=2,cap=1,cut=1", 3)])
    {
        for models in 1..rounds {
            let error = engine(scheme, models, 1).unwrap();
            assert_eq!(error, ConfigError::TooFewModels { rounds, models }, "{scheme}");
            assert!(
                error
                    .to_string()
                    .contains(&format!("{rounds} or more interleaved models, not of {models}")),
                "{error}"
            );
        }
        assert_eq!(
            (engine(scheme, rounds, 1), engine(scheme, rounds + 1, 1), engine(scheme, 1, 2)),
            (None, None, None),
            "{scheme}"
        );
    }
    for scheme in
        ["groups:s=1", "cyclic:s=1", "queue:m=2", "ring:reach=2", "next defer:T=1,cap=1,cut=2"]
    {
        assert_eq!(
            (engine(scheme, 1, 1), engine(scheme, 3, 1), engine(scheme, 1, 3)),
            (None, None, None),
            "{scheme}"
        );
        assert_eq!(
            (engine(scheme, 0, 1), engine(scheme, 1, 0)),
            (Some(ConfigError::NoModels), Some(ConfigError::NoJobs)),
            "{scheme}"
        );
        assert_eq!(
            engine(scheme, 2, 3),
            Some(ConfigError::ModelsAndMicroSteps { models: 2, micro_steps: 3 }),
            "{scheme}"
        );
    }
}

#[test]
fn rescaling_goes_on_only_when_nobody_else_can_come() {
    let (mut driver, _) = Driver::new("groups:l=2,rescale", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.give(Input::Lost { worker: Worker(2), kept: true }).unwrap();
    assert!(
        driver.give(Input::Lost { worker: Worker(3), kept: true }).unwrap().is_empty(),
        "worker 1 is still out"
    );
    let closed = driver.answer(1, 0, true).unwrap();
    let Some(Action::Sum { terms, decode, .. }) = closed.last() else { panic!() };
    assert_eq!((terms[0].weight, decode.coverage), (2.0, 0.5));
    let (mut late, _) = Driver::new("groups:l=2,rescale", 4, 1, CONFIG);
    late.answer(0, 0, true).unwrap();
    assert_eq!(
        folded(&late.at(50.0).give(Input::Tick).unwrap()),
        Some(vec![0]),
        "patience is over"
    );
}

#[test]
fn grace_is_given_only_where_an_arrival_would_change_the_decode() {
    let config = Config { grace_seconds: 2.0, ..CONFIG };
    let (mut exact, _) = Driver::new("groups:s=1", 2, 1, config);
    assert!(folded(&exact.answer(0, 0, true).unwrap()).is_some());
    let (mut biased, _) = Driver::new("drop:b=1", 3, 1, config);
    biased.at(1.0).answer(0, 0, true).unwrap();
    assert!(biased.answer(1, 0, true).unwrap().is_empty());
    assert_eq!(biased.deadline(), Some(3.0));
    assert!(biased.at(2.9).give(Input::Tick).unwrap().is_empty());
    assert_eq!(folded(&biased.at(3.0).give(Input::Tick).unwrap()), Some(vec![0, 1]));
    let (mut all, _) = Driver::new("drop:b=1", 3, 1, config);
    all.answer(0, 0, true).unwrap();
    all.answer(1, 0, true).unwrap();
    assert_eq!(
        folded(&all.answer(2, 0, true).unwrap()),
        Some(vec![0, 1, 2]),
        "no other worker can come"
    );
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
        sent.extend(
            applies(&step_without_worker_1(&mut driver, job))
                .into_iter()
                .filter(|(worker, _)| *worker == 1),
        );
    }
    assert_eq!(
        sent,
        [(1, 0), (1, 1), (1, 2), (1, 3)],
        "no more than the log holds is on its way to a hung worker"
    );
    let freed = driver.give(driver.idle(1)).unwrap();
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
        driver.give(driver.idle(worker)).unwrap();
    }
    driver.applied(0, 0, 5);
    driver.applied(1, 0, 5);
    driver.applied(2, 0, 5);
    let diverged = driver.applied(3, 0, 6);
    assert_eq!(
        diverged[..2],
        [Action::Diverged { worker: Worker(3), step: Step(0) }, driver.abandons(3)]
    );
    let resync = driver.give(driver.idle(3)).unwrap();
    let [Action::Resync { from, .. }] = resync[..] else { panic!("{resync:?}") };
    let again = driver.give(Input::Lost { worker: from, kept: true }).unwrap();
    let Some(Action::Resync { worker: Worker(3), from: other }) = again.first() else {
        panic!("{again:?}")
    };
    assert_ne!(*other, from);
}

#[test]
fn who_comes_back_gets_what_it_missed_and_its_task_of_the_round() {
    let config = Config { return_seconds: 5.0, ..CONFIG };
    let (mut driver, _) = Driver::new("groups:s=1", 4, 3, config);
    driver.give(Input::Lost { worker: Worker(0), kept: true }).unwrap();
    assert!(
        driver.at(1.0).give(Input::Lost { worker: Worker(1), kept: true }).unwrap().is_empty(),
        "one of them may come back"
    );
    assert_eq!(driver.deadline(), Some(6.0));
    driver.answer(2, 0, true).unwrap();
    let joined =
        driver.at(2.0).give(Input::Joined { worker: Worker(1), next: Some(Step(0)) }).unwrap();
    assert_eq!((assigned(&joined), driver.deadline()), (vec![1], Some(50.0)));
    assert_eq!(folded(&driver.answer(1, 0, true).unwrap()), Some(vec![1, 2]));
    // It was expected of others.
    driver.held(2, 0, 1);
    driver.held(1, 0, 1);
    let back = driver.give(Input::Joined { worker: Worker(0), next: Some(Step(0)) }).unwrap();
    assert_eq!((applies(&back), assigned(&back)), (vec![(0, 0)], vec![0]));
    assert!(
        driver.give(Input::Joined { worker: Worker(0), next: None }).unwrap().is_empty(),
        "it is alive"
    );
    for worker in [0, 1] {
        assert!(
            driver.give(Input::Lost { worker: Worker(worker), kept: true }).unwrap().is_empty()
        );
    }
    let error = driver.at(7.0).give(Input::Tick).unwrap_err();
    assert!(matches!(&error, EngineError::TooManyLost { dead, .. } if dead.len() == 2), "{error}");
}

#[test]
fn who_has_no_state_takes_over_one_from_a_peer_or_else_from_the_driver() {
    let config = Config { return_seconds: 5.0, restores: true, ..CONFIG };
    let (mut driver, _) = Driver::new("groups:l=1", 2, 9, config);
    driver.give(Input::Lost { worker: Worker(1), kept: true }).unwrap();
    driver.answer(0, 0, true).unwrap();
    driver.held(0, 0, 0);
    let joined = driver.give(Input::Joined { worker: Worker(1), next: None }).unwrap();
    assert_eq!(joined, [Action::Resync { worker: Worker(1), from: Worker(0) }]);
    let restored = driver.give(Input::Lost { worker: Worker(0), kept: true }).unwrap();
    assert_eq!(restored[0], Action::Restore { worker: Worker(1) });
    let synced = driver.give(Input::Synced { worker: Worker(1), next: Step(0) }).unwrap();
    assert_eq!((applies(&synced), assigned(&synced)), (vec![(1, 0)], vec![1]));
    let missed = driver.give(Input::StepUnavailable { worker: Worker(1) }).unwrap();
    assert_eq!(missed, [driver.abandons(1)]);
    let restored = driver.give(driver.idle(1)).unwrap();
    assert_eq!(restored, [Action::Restore { worker: Worker(1) }]);
    assert!(
        driver.give(Input::Synced { worker: Worker(0), next: Step(1) }).unwrap().is_empty(),
        "the dead take over nothing"
    );
    assert_eq!(
        assigned(&driver.give(Input::Synced { worker: Worker(1), next: Step(1) }).unwrap()),
        [1]
    );
}

/// It is there, and gets the sum once the step is decided, or none where the state has it: of two
/// workers one is then alone.
#[test]
fn who_takes_over_a_state_is_not_waited_for() {
    let config = Config { return_seconds: 5.0, ..CONFIG };
    let (mut driver, _) = Driver::new("groups:s=1", 2, 3, config);
    driver.give(Input::Lost { worker: Worker(1), kept: false }).unwrap();
    let resync = Action::Resync { worker: Worker(1), from: Worker(0) };
    let joined = driver.give(Input::Joined { worker: Worker(1), next: None }).unwrap();
    assert_eq!(joined, std::slice::from_ref(&resync));
    assert_eq!(folded(&driver.answer(0, 0, true).unwrap()), Some(vec![0]));
    let decided = driver.held(0, 0, 0);
    assert!(matches!(decided[0], Action::Commit { .. }), "worker 0 alone can hold it: {decided:?}");
    assert_eq!((applies(&decided), assigned(&decided)), (vec![(0, 0)], vec![0]));
    let synced = driver.give(Input::Synced { worker: Worker(1), next: Step(0) }).unwrap();
    assert_eq!((applies(&synced), assigned(&synced)), (vec![(1, 0)], vec![1]));
    // It has a state, and is asked; then it turns out that it needs another.
    driver.answer(0, 1, true).unwrap();
    assert_eq!(driver.held(0, 1, 0), [], "worker 1 can hold it too");
    let missed = driver.give(Input::StepUnavailable { worker: Worker(1) }).unwrap();
    assert!(matches!(missed[0], Action::Commit { .. }), "{missed:?}");
    assert_eq!((applies(&missed), assigned(&missed)), (vec![(0, 1)], vec![0]));
    assert_eq!(driver.give(driver.idle(1)).unwrap(), [resync]);
}

#[test]
fn a_vector_whose_makers_and_holders_died_one_after_the_other_is_made_again() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.answer(2, 0, true).unwrap();
    driver.give(driver.idle(1)).unwrap();
    driver.give(driver.idle(3)).unwrap();
    driver.held(3, 0, 0);
    assert!(
        driver.give(Input::Lost { worker: Worker(0), kept: false }).unwrap().is_empty(),
        "worker 3 holds it"
    );
    assert_eq!(
        assigned(&driver.give(Input::Lost { worker: Worker(3), kept: false }).unwrap()),
        [1],
        "the first one's result is gone too"
    );
    assert_eq!(folded(&driver.answer(1, 0, true).unwrap()), Some(vec![1, 2]));
}

/// Found by the simulated network: it had come back meanwhile, and its result was thought to be
/// there still.
#[test]
fn a_maker_that_died_and_came_back_has_not_its_result_any_more() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.answer(2, 0, true).unwrap();
    driver.give(driver.idle(1)).unwrap();
    driver.give(driver.idle(3)).unwrap();
    driver.held(3, 0, 0);
    driver.give(Input::Lost { worker: Worker(0), kept: false }).unwrap();
    driver.give(Input::Joined { worker: Worker(0), next: Some(Step(0)) }).unwrap();
    assert_eq!(
        assigned(&driver.give(Input::Lost { worker: Worker(3), kept: false }).unwrap()),
        [0, 1]
    );
    assert_eq!(folded(&driver.answer(1, 0, true).unwrap()), Some(vec![1, 2]));
}

/// Members of a group that return different bytes: the run names the liar when enough others agree,
/// and ends when it can believe no member.
#[test]
fn votes_name_the_wrong_and_end_what_cannot_be_told() {
    let vote = |driver: &mut Driver, worker: u32, digest: u128| {
        let task = Task { job: Job(0), piece: worker, plan: 0 };
        let (order, worker) = (driver.order(worker), Worker(worker));
        driver.give(Input::Done { worker, order, task, finite: true, digest: Some(digest) })
    };
    let (mut driver, _) = Driver::new("vote:s=0,b=1", 3, 1, CONFIG);
    assert_eq!(vote(&mut driver, 1, 6).unwrap(), []);
    assert_eq!(vote(&mut driver, 0, 5).unwrap(), []);
    let actions = vote(&mut driver, 2, 5).unwrap();
    let report = actions
        .iter()
        .find_map(|action| if let Action::Close(report) = action { Some(report) } else { None })
        .unwrap();
    assert_eq!(report.wrong, [Worker(1)]);
    assert_eq!(folded(&actions), Some(vec![0]));
    let (mut driver, _) = Driver::new("vote:s=0,b=1", 3, 1, CONFIG);
    vote(&mut driver, 0, 1).unwrap();
    vote(&mut driver, 1, 2).unwrap();
    let error = vote(&mut driver, 2, 3).unwrap_err().to_string();
    assert!(
        error
            .contains("step 0: group 0 (workers 0-2) returned 3 different results (1, 1, 1 times)"),
        "{error}"
    );
}

/// A vector that no worker says it holds is made once more. Then the run ends with the names of
/// those that did not say so.
#[test]
fn a_vector_that_nobody_holds_is_made_again_once() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 2, CONFIG);
    driver.at(1.0).answer(0, 0, true).unwrap();
    driver.answer(2, 0, true).unwrap();
    assert_eq!(driver.deadline(), Some(51.0));
    assert!(driver.at(50.9).give(Input::Tick).unwrap().is_empty());
    let again = driver.at(51.0).give(Input::Tick).unwrap();
    assert_eq!(folded(&again), Some(vec![0, 2]));
    assert_eq!(driver.deadline(), Some(101.0));
    driver.held(1, 0, 1);
    let error = driver.at(101.0).give(Input::Tick).unwrap_err();
    let silent = WorkerSet::of(4, [0, 2, 3].map(Worker));
    assert_eq!(error, EngineError::Unheld { step: Step(0), waited_seconds: 100.0, silent });
    assert!(error.to_string().contains("workers {0,2,3} did not acknowledge it"), "{error}");
}

/// All who made a vector are lost while it is kept elsewhere, and come back: if they do not hold it
/// in time, it is made of new results.
#[test]
fn a_vector_that_outlived_its_makers_is_computed_again_in_time() {
    let config = Config { return_seconds: 20.0, ..CONFIG };
    let (mut driver, _) = Driver::new("groups:s=1", 2, 2, config);
    driver.answer(0, 0, true).unwrap();
    for worker in [0, 1] {
        driver.at(1.0).give(Input::Lost { worker: Worker(worker), kept: true }).unwrap();
    }
    assert_eq!(driver.deadline(), Some(21.0));
    for worker in [0, 1] {
        driver.at(2.0).give(Input::Joined { worker: Worker(worker), next: Some(Step(0)) }).unwrap();
    }
    assert_eq!(driver.deadline(), Some(52.0));
    let again = driver.at(52.0).give(Input::Tick).unwrap();
    assert_eq!(assigned(&again), [0, 1], "both are asked again");
    assert_eq!(folded(&driver.answer(1, 0, true).unwrap()), Some(vec![1]));
}

/// A result that is not finite, whatever its worker says, is missing: its partner's counts, and it
/// is asked for nothing more before the step is decided.
#[test]
fn a_spoilt_result_is_left_out_and_its_worker_alone() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 2, CONFIG);
    driver.answer(0, 0, true).unwrap();
    driver.answer(2, 0, true).unwrap();
    driver.give(driver.idle(1)).unwrap();
    driver.give(driver.idle(3)).unwrap();
    let nonfinite = |driver: &mut Driver, worker, attempt| {
        let Driver { engine, sums, .. } = driver;
        sums.result_not_finite(engine, Worker(worker), SumId { step: Step(0), attempt });
        driver.settle().unwrap()
    };
    assert!(nonfinite(&mut driver, 0, 7).is_empty(), "of another attempt");
    let open = nonfinite(&mut driver, 0, 0);
    assert_eq!(open[0], Action::Erase { worker: Worker(0), step: Step(0) });
    assert_eq!(
        assigned(&open),
        [1, 3],
        "whoever is idle has its tasks again, and not the one who lied"
    );
    let again = driver.answer(1, 0, true).unwrap();
    assert_eq!(folded(&again), Some(vec![1, 2]));
    driver.give(driver.idle(3)).unwrap();
    let refused = nonfinite(&mut driver, 1, 1);
    let because = refused.iter().find_map(|action| match action {
        Action::Skip { units, because, .. } => Some((units.clone(), *because)),
        _ => None,
    });
    assert_eq!(because, Some((vec![Units { start: 0, end: 2 }], Refusal::NotFinite)));
    let mut next = assigned(&refused);
    next.sort_unstable();
    assert_eq!(next, [0, 1, 2, 3], "the next step is another matter");
}
