//! Runs in which events come in any order that workers could bring about, and what they hold is known: every unit of
//! every batch is in its step exactly once, and every worker has every step.

use super::{CONFIG, Driver};
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::{Accept, Fold, Horizon, Scheme};
use codedgrad::ids::{Job, Part, Step, Task, Worker, WorkerSet};
use codedgrad::schedulers::{Action, Config, Engine, EngineError, Input, Reduce};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

const STEPS: u64 = 6;

/// What a worker was told and has not done yet.
#[derive(Debug)]
enum Order {
    Apply(Step),
    Compute(Vec<Task>),
    Leave,
}

/// A worker as it is.
#[derive(Default)]
struct Place {
    dead: bool,
    /// First step not in its state; none if it has no state.
    state: Option<u64>,
    /// First step that was not sent to it.
    sent: u64,
    /// Could not get a step, and does nothing before it has taken over a state.
    stuck: bool,
    orders: VecDeque<Order>,
    results: HashMap<Task, u32>,
    vectors: HashSet<(Step, u32)>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Input(Input),
    /// A worker takes over the state of another, or one that is kept elsewhere.
    State {
        needy: Worker,
        from: Option<Worker>,
    },
}

/// A vector on its way to its holders.
struct Waiting {
    attempt: u32,
    made_by: WorkerSet,
    /// Not all who made it are left: it can be had of its holders only.
    broken: bool,
}

/// What may go wrong.
#[derive(Clone, Copy, Debug)]
struct Mishaps {
    /// Tasks may be dropped, results not finite.
    tasks: bool,
    deaths: usize,
    /// Workers may come back, or come for the first time.
    returns: bool,
    /// Decoded vectors survive deaths.
    kept: bool,
    /// With so many workers or more the run must not end for want of them; 0 = it may.
    fewest: usize,
}

/// Makes the scheme for fewer workers.
type Plan = Arc<dyn Fn(usize) -> Option<Box<dyn Scheme>> + Send + Sync>;

struct Chaos<'a> {
    driver: Driver,
    config: Config,
    mishaps: Mishaps,
    /// Rounds a job may take beyond its first: with so many models and one more, each step begins at parameters that
    /// know its model's last one.
    delay: u64,
    units: u32,
    /// What is late counts for the next step.
    next_step: bool,
    pool: Vec<Event>,
    /// What is told right after a death.
    told: Vec<Input>,
    places: Vec<Place>,
    parts: HashMap<(Worker, Task), Vec<Part>>,
    sums: HashMap<(Step, Worker), Vec<(Task, f64)>>,
    waiting: BTreeMap<Step, Waiting>,
    /// Units of every fold, and those that are committed.
    folded: HashMap<(Step, u32), Vec<(Job, u32)>>,
    spent: HashSet<(Job, u32)>,
    attempts: BTreeMap<Step, u32>,
    committed: BTreeMap<Step, u32>,
    refused: HashSet<Step>,
    decided: u64,
    finished: bool,
    replanned: usize,
    plan: Plan,
    choices: &'a [u16],
    turn: usize,
}

impl Chaos<'_> {
    fn choose(&mut self, below: usize) -> usize {
        self.turn += 1;
        let mixed = self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(29);
        (self.choices[self.turn % self.choices.len()] as usize ^ mixed) % below
    }

    fn place(&mut self, worker: Worker) -> &mut Place {
        &mut self.places[worker.index()]
    }

    fn living(&self) -> Vec<Worker> {
        Worker::all(self.places.len()).filter(|worker| !self.places[worker.index()].dead).collect()
    }

    fn dead(&self) -> Vec<Worker> {
        Worker::all(self.places.len()).filter(|worker| self.places[worker.index()].dead).collect()
    }

    fn somebody_has(&self, step: Step, attempt: u32) -> bool {
        self.mishaps.kept || self.places.iter().any(|place| !place.dead && place.vectors.contains(&(step, attempt)))
    }

    fn discard(&mut self, worker: Worker, task: Task) {
        let results = &mut self.place(worker).results;
        if let Some(count) = results.get_mut(&task) {
            *count -= 1;
        }
        results.retain(|_, count| *count > 0);
    }

    fn release(&mut self, step: Step) {
        let end = step.jobs(self.config.micro_steps).end;
        self.places.iter_mut().for_each(|place| place.results.retain(|task, _| task.job >= end));
        self.sums.retain(|(of, _), _| *of != step);
        self.waiting.remove(&step);
    }

    fn check_fold(&mut self, step: Step, attempt: u32, sums: &[Worker], folds: &[Fold]) {
        let summed = sums.iter().flat_map(|worker| self.sums[&(step, *worker)].iter().map(|(task, weight)| (*worker, *task, *weight)));
        let single = folds.iter().map(|fold| (fold.worker, fold.task, fold.weight));
        let there = |fold: &Fold| self.places[fold.worker.index()].results.contains_key(&fold.task);
        assert!(folds.iter().all(there), "what is folded is held");
        let mut counted: HashMap<(Job, u32), f64> = HashMap::new();
        for (worker, task, weight) in summed.chain(single) {
            for part in &self.parts[&(worker, task)] {
                (part.units.start..part.units.end)
                    .for_each(|unit| *counted.entry((task.job, unit)).or_default() += weight * part.coefficient);
            }
        }
        let mut each = 1.0;
        if self.next_step {
            each = f64::from(self.units) / counted.len() as f64;
            assert!(counted.keys().all(|unit| !self.spent.contains(unit)), "{step}: no unit that is in another step");
        } else {
            let jobs = step.jobs(self.config.micro_steps);
            assert!(counted.keys().all(|(job, _)| jobs.contains(job)), "{step} is made of its own jobs");
            assert_eq!(counted.len() as u64, u64::from(self.units) * self.config.micro_steps, "{step}: no unit is missing");
        }
        assert!(counted.values().all(|count| (count - each).abs() < 1e-6 * each), "{step}: every unit once");
        self.folded.insert((step, attempt), counted.into_keys().collect());
    }

    fn fold(&mut self, step: Step, attempt: u32, sums: &[Worker], folds: &[Fold]) {
        self.check_fold(step, attempt, sums, folds);
        let before = self.attempts.insert(step, attempt);
        assert!(before.is_none_or(|before| before < attempt), "{step}: every attempt has its number");
        let made_by = WorkerSet::of(self.places.len(), sums.iter().copied().chain(folds.iter().map(|fold| fold.worker)));
        assert!(made_by.iter().all(|worker| !self.places[worker.index()].dead), "the dead have nothing");
        self.waiting.insert(step, Waiting { attempt, made_by, broken: false });
        for worker in self.living() {
            self.pool.push(Event::Input(held(worker, step, attempt)));
        }
    }

    fn commit(&mut self, step: Step, attempt: u32, digest: u64) {
        assert_eq!(digest, step.0 * 1000 + u64::from(attempt));
        assert!(self.somebody_has(step, attempt), "{step}: a live worker has what is committed");
        let units = &self.folded[&(step, attempt)];
        assert!(units.iter().all(|unit| self.spent.insert(*unit)), "{step}: no unit counts twice");
        self.committed.insert(step, attempt);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Assign { worker, tasks, .. } => {
                let latest = tasks.iter().map(|(task, _)| task.job.0).max().unwrap_or(0);
                let current = self.config.micro_steps > 1 || latest <= self.decided + self.delay;
                assert!(current, "job {latest} begins before the step {} jobs before it is decided", self.delay + 1);
                self.parts.extend(tasks.iter().map(|(task, parts)| ((worker, *task), parts.clone())));
                let decided = self.decided;
                let place = self.place(worker);
                let busy = place.orders.iter().any(|order| !matches!(order, Order::Apply(_)));
                assert!(!busy && !place.dead, "one order at a time, to the living");
                assert!(place.state.is_some() && !place.stuck && place.sent == decided, "{worker} knows all that is decided");
                place.orders.push_back(Order::Compute(tasks.into_iter().map(|task| task.0).collect()));
            }
            Action::Close(_) | Action::Diverged { .. } => {}
            Action::Discard { worker, task } => self.discard(worker, task),
            Action::Reduce { step, fold } => {
                assert!(self.place(fold.worker).results.contains_key(&fold.task), "what is added up is held");
                self.discard(fold.worker, fold.task);
                self.sums.entry((step, fold.worker)).or_default().push((fold.task, fold.weight));
            }
            Action::Abandon { worker, late_counts } => {
                let orders = &mut self.place(worker).orders;
                let order = orders.iter_mut().find(|order| matches!(order, Order::Compute(_))).expect("only the busy are told");
                let Order::Compute(tasks) = std::mem::replace(order, Order::Leave) else { panic!() };
                let late = tasks.first().filter(|_| late_counts).map(|&task| Input::Late { worker, task, finite: true });
                self.pool.extend(late.map(Event::Input));
            }
            Action::Fold { step, attempt, sums, folds, .. } => self.fold(step, attempt, &sums, &folds),
            Action::Commit { step, .. } | Action::Refuse { step, .. } => {
                assert_eq!(step.0, self.decided, "in order");
                if let Action::Commit { attempt, digest, .. } = action {
                    self.commit(step, attempt, digest);
                } else {
                    self.refused.insert(step);
                }
                self.decided += 1;
                self.release(step);
                let (decided, log) = (self.decided, self.config.log_steps);
                self.places.iter_mut().for_each(|place| place.vectors.retain(|vector| vector.0.0 + log >= decided));
            }
            Action::Restart { step } => {
                assert!(step.0 >= self.decided, "what is committed stays");
                self.release(step);
            }
            Action::Apply { worker, step } => {
                assert!(step.0 < self.decided && step.0 + self.config.log_steps >= self.decided, "decided first, and still to be had");
                let place = self.place(worker);
                assert!(!place.dead && place.sent == step.0, "in order, once, to the living");
                place.sent += 1;
                place.orders.push_back(Order::Apply(step));
            }
            Action::Resync { worker, from } => {
                let provider = &self.places[from.index()];
                assert!(!provider.dead && !provider.stuck && provider.state.is_some(), "{from} has a state");
                self.pool.push(Event::State { needy: worker, from: Some(from) });
            }
            Action::Restore { worker } => {
                assert!(self.config.restores);
                self.pool.push(Event::State { needy: worker, from: None });
            }
            Action::Replanned { members } => {
                assert!(members.iter().eq(self.living()) && members.len() >= self.mishaps.fewest.max(1), "for those that are there");
                self.replanned += 1;
            }
            Action::Finish => self.finished = true,
        }
    }

    /// The next event: something that has happened, what a worker does next, a mishap, or a deadline; none when all is
    /// over.
    fn next(&mut self) -> Option<Input> {
        if let Some(told) = self.told.pop() {
            return Some(told);
        }
        if let Some(mishap) = self.mishap() {
            return Some(mishap);
        }
        let busy: Vec<Worker> = self.living().into_iter().filter(|worker| !self.places[worker.index()].orders.is_empty()).collect();
        let deadline = self.driver.engine.deadline().filter(|deadline| *deadline < self.driver.now + 40.0);
        let events = self.pool.len() + busy.len();
        if events == 0 || deadline.is_some() && self.choose(8) == 0 {
            if self.finished {
                return None;
            }
            self.driver.now = deadline.expect("the run is stuck");
            return Some(Input::Tick);
        }
        let choice = self.choose(events);
        Some(match choice.checked_sub(self.pool.len()) {
            None => match self.pool.remove(choice) {
                Event::Input(input) => self.happen(input),
                Event::State { needy, from } => self.take_over(needy, from),
            },
            Some(choice) => self.work(busy[choice]),
        })
    }

    fn mishap(&mut self) -> Option<Input> {
        let (living, dead) = (self.living(), self.dead());
        let patient = self.config.return_seconds > 0.0 && !self.finished;
        if self.mishaps.returns && !dead.is_empty() && self.choose(if patient { 16 } else { 30 }) == 0 {
            let worker = dead[self.choose(dead.len())];
            return Some(self.join(worker));
        }
        if self.finished || living.is_empty() || self.choose(24) > 0 {
            return None;
        }
        let worker = living[self.choose(living.len())];
        if self.choose(2) == 0 && self.mishaps.deaths > 0 {
            self.mishaps.deaths -= 1;
            return Some(self.die(worker));
        }
        let computing = matches!(self.place(worker).orders.front(), Some(Order::Compute(_)));
        if computing && self.mishaps.tasks {
            self.place(worker).orders.clear();
            return Some(Input::Freed { worker });
        }
        None
    }

    fn happen(&mut self, input: Input) -> Input {
        match input {
            Input::Late { worker, task, .. } => *self.place(worker).results.entry(task).or_default() += 1,
            Input::Held { worker, step, attempt, .. } => {
                self.place(worker).vectors.insert((step, attempt));
            }
            _ => {}
        }
        input
    }

    fn work(&mut self, worker: Worker) -> Input {
        let finite = !(self.mishaps.tasks && self.choose(24) == 0);
        match self.place(worker).orders.pop_front().expect("there is an order") {
            Order::Leave => Input::Freed { worker },
            Order::Apply(step) => {
                assert_eq!(self.place(worker).state, Some(step.0), "in order");
                let attempt = self.committed.get(&step).copied();
                if attempt.is_some_and(|attempt| !self.somebody_has(step, attempt)) {
                    let place = self.place(worker);
                    place.stuck = true;
                    place.orders.retain(|order| !matches!(order, Order::Apply(_)));
                    return Input::Missed { worker };
                }
                let place = self.place(worker);
                place.vectors.extend(attempt.map(|attempt| (step, attempt)));
                place.state = Some(step.0 + 1);
                Input::Applied { worker, step, digest: Some(step.0) }
            }
            Order::Compute(mut tasks) => {
                let place = self.place(worker);
                assert!(!place.stuck, "nobody computes at parameters it does not have");
                let task = tasks.remove(0);
                if !tasks.is_empty() {
                    place.orders.push_front(Order::Compute(tasks));
                }
                if finite {
                    *place.results.entry(task).or_default() += 1;
                }
                Input::Done { worker, task, finite, digest: None }
            }
        }
    }

    fn take_over(&mut self, needy: Worker, from: Option<Worker>) -> Input {
        let next = match from {
            Some(from) => self.places[from.index()].state.expect("a provider has a state"),
            None => self.decided.saturating_sub(self.choose(2) as u64),
        };
        let place = self.place(needy);
        place.orders.retain(|order| !matches!(order, Order::Apply(_)));
        assert!(place.orders.is_empty(), "who takes over a state does nothing else");
        (place.state, place.sent, place.stuck) = (Some(next), next, false);
        Input::Synced { worker: needy, next: Step(next) }
    }

    fn die(&mut self, worker: Worker) -> Input {
        let state = self.place(worker).state;
        *self.place(worker) = Place { dead: true, state, ..Place::default() };
        self.sums.retain(|(_, of), _| *of != worker);
        self.pool.retain(|event| match event {
            Event::Input(Input::Late { worker: of, .. } | Input::Held { worker: of, .. }) => *of != worker,
            Event::State { needy, from } => *needy != worker && *from != Some(worker),
            Event::Input(_) => true,
        });
        let steps: Vec<Step> = self.waiting.keys().copied().collect();
        for step in steps {
            let waiting = self.waiting.get_mut(&step).expect("it waits");
            waiting.broken |= waiting.made_by.contains(worker);
            let (attempt, mut broken) = (waiting.attempt, waiting.broken);
            if !broken && !self.mishaps.kept && !self.somebody_has(step, attempt) && self.choose(2) == 0 {
                // It had a part in the summing, though nothing of it is summed.
                broken = true;
                self.waiting.get_mut(&step).expect("it waits").broken = true;
                self.told.push(Input::Unmade { step, attempt });
            } else if self.choose(4) == 0 {
                // So it seems to be, but what it still sent has come.
                self.told.push(Input::Unmade { step, attempt });
            }
            if broken && !self.somebody_has(step, attempt) {
                // Who had it already says so all the same.
                for event in std::mem::take(&mut self.pool) {
                    let of_it = matches!(event, Event::Input(Input::Held { step: s, attempt: a, .. }) if (s, a) == (step, attempt));
                    if !of_it || self.choose(2) == 0 {
                        self.pool.push(event);
                    }
                }
            }
        }
        Input::Lost { worker, kept: self.mishaps.kept }
    }

    fn join(&mut self, worker: Worker) -> Input {
        let (how, back) = (self.choose(4), self.choose(4) as u64);
        let place = self.place(worker);
        place.dead = false;
        place.state = match how {
            0 => None,
            1 => place.state.map(|state| state.saturating_sub(back)),
            _ => place.state,
        };
        place.sent = place.state.unwrap_or(0);
        let next = place.state.map(Step);
        for (&step, waiting) in &self.waiting {
            if !waiting.broken || self.somebody_has(step, waiting.attempt) {
                self.pool.push(Event::Input(held(worker, step, waiting.attempt)));
            }
        }
        Input::Joined { worker, next }
    }

    /// Whether a run may break off so.
    fn may_end(&self, error: &EngineError, input: Input) -> bool {
        let patient = self.config.return_seconds > 0.0;
        match error {
            EngineError::TooManyLost { dead, .. } => {
                let left = self.living().len();
                let may_go_on = self.mishaps.fewest > 0 && left >= self.mishaps.fewest && (self.plan)(left).is_some();
                !may_go_on && !dead.is_empty() && dead.iter().eq(self.dead()) && (!patient || input == Input::Tick)
            }
            EngineError::NoState { worker } => {
                let fit = |place: &Place| !place.dead && !place.stuck && place.state.is_some() && place.sent == self.decided;
                let others = Worker::all(self.places.len()).filter(|other| other != worker);
                let waited = !patient || self.dead().is_empty() || input == Input::Tick;
                !self.config.restores && waited && !others.into_iter().any(|other| fit(&self.places[other.index()]))
            }
            _ => false,
        }
    }

    fn run(&mut self) -> Result<(), EngineError> {
        for _ in 0..100_000 {
            self.driver.now += 1e-3;
            let Some(input) = self.next() else { return Ok(()) };
            match self.driver.give(input) {
                Ok(actions) => actions.into_iter().for_each(|action| self.act(action)),
                Err(error) => {
                    assert!(self.may_end(&error, input), "{error} after {input:?}");
                    return Err(error);
                }
            }
        }
        panic!("the run does not end");
    }
}

fn held(worker: Worker, step: Step, attempt: u32) -> Input {
    Input::Held { worker, step, attempt, digest: step.0 * 1000 + u64::from(attempt) }
}

/// Every order of events leaves every live worker with every step applied once and in order; nothing is applied before
/// it is decided, no unit is lost or counted twice, and nobody waits for ever.
fn random_run(scheme: &str, workers: usize, config: Config, mishaps: Mishaps, choices: &[u16]) {
    let (next_step, scheme) = scheme.strip_prefix("next ").map_or((false, scheme), |scheme| (true, scheme));
    let mut spec = scheme.parse::<SchemeSpec>().unwrap();
    if next_step {
        spec = spec.deferring_to_next_step().unwrap();
    }
    let horizon = Horizon { workers, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
    let Ok(scheme) = spec.over(horizon) else { return };
    let micro_steps = if next_step { 1 } else { config.micro_steps };
    let config = Config { micro_steps, log_steps: config.log_steps.max(scheme.facts().delay as u64 + 1), ..config };
    let delay = scheme.facts().delay as u64;
    let (units, mishaps) = (scheme.facts().units, Mishaps { fewest: if next_step { 0 } else { mishaps.fewest }, ..mishaps });
    let plan: Plan = Arc::new(move |workers| {
        let horizon = || Horizon { workers, units: Some(units), jobs: Job(0)..Job(1), accept: Accept::Lookahead };
        [&spec, &SchemeSpec::uncoded()].into_iter().find_map(|spec| spec.over(horizon()).ok())
    });
    let mut engine = Engine::new(scheme, config, Step(0)..Step(STEPS), 0);
    if mishaps.fewest > 0 {
        let plan = Arc::clone(&plan);
        engine = engine.replanning(mishaps.fewest, Box::new(move |workers| plan(workers)));
    }
    let mut chaos = Chaos {
        units,
        delay,
        driver: Driver { engine, now: 0.0 },
        config,
        mishaps,
        next_step,
        pool: Vec::new(),
        told: Vec::new(),
        places: (0..workers).map(|_| Place { state: Some(0), ..Place::default() }).collect(),
        parts: HashMap::new(),
        sums: HashMap::new(),
        waiting: BTreeMap::new(),
        folded: HashMap::new(),
        spent: HashSet::new(),
        attempts: BTreeMap::new(),
        committed: BTreeMap::new(),
        refused: HashSet::new(),
        decided: 0,
        finished: false,
        replanned: 0,
        plan,
        choices,
        turn: 0,
    };
    let absent = if mishaps.returns && chaos.choose(3) == 0 { chaos.choose(workers) } else { 0 };
    for worker in Worker::all(absent) {
        let lost = chaos.die(worker);
        chaos.place(worker).state = None;
        assert_eq!(chaos.driver.give(lost), Ok(Vec::new()));
    }
    chaos.pool.push(Event::Input(Input::Begin));
    while chaos.choose(2) == 0 && mishaps.returns && !chaos.dead().is_empty() {
        let worker = chaos.dead()[0];
        let joined = chaos.join(worker);
        chaos.driver.give(joined).unwrap().into_iter().for_each(|action| chaos.act(action));
    }
    if chaos.run().is_ok() {
        assert_eq!(chaos.decided, STEPS);
        let has_all = |place: &&Place| place.state == Some(STEPS) && !place.stuck;
        let (with, without): (Vec<&Place>, Vec<&Place>) = chaos.places.iter().filter(|place| !place.dead).partition(has_all);
        let nobody_can = with.is_empty() && !config.restores && config.return_seconds > 0.0;
        assert!(without.is_empty() || nobody_can, "everybody who is left has every step");
        let all = STEPS * chaos.config.micro_steps * u64::from(chaos.units);
        assert!(!chaos.refused.is_empty() || chaos.spent.len() as u64 == all, "every unit is in a step");
    }
}

const SCHEMES: [&str; 17] = [
    "uncoded",
    "groups:s=1",
    "groups:l=1",
    "groups:l=2",
    "min-load:s=1",
    "queue:m=2",
    "ring:reach=2",
    "ring:reach=1",
    "defer:T=1,cap=1,cut=2",
    "defer:T=2,cap=1,cut=2",
    "defer:T=1,cap=0,cut=2",
    "next defer:T=1,cap=1,cut=2",
    "m-sgc:B=1,W=2,lambda=1",
    "m-sgc:B=2,W=3,lambda=2",
    "m-sgc:B=1,W=3,lambda=4",
    "sr-sgc:B=1,W=2,lambda=2",
    "sr-sgc:B=2,W=3,lambda=2",
];

/// So many orders of events that one in a thousand going wrong shows in every run; `PROPTEST_CASES` may ask for more.
fn many_cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.max(10_000), ..usual }
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn any_order_of_events_ends_well(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 2usize..7,
        micro_steps in 1u64..4,
        (tree, tasks) in any::<(bool, bool)>(),
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let reduce = if tree { Reduce::Tree } else { Reduce::Worker };
        let mishaps = Mishaps { tasks, deaths: usize::from(tasks), returns: false, kept: true, fewest: 0 };
        random_run(scheme, workers, Config { micro_steps, reduce, log_steps: 100, ..CONFIG }, mishaps, &choices);
    }

    #[test]
    fn workers_that_die_and_come_back_end_well(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 1usize..7,
        (micro_steps, log_steps, deaths) in (1u64..4, 1u64..6, 1usize..9),
        (tree, tasks, returns, kept, patient, restores) in any::<(bool, bool, bool, bool, bool, bool)>(),
        fewest in 0usize..4,
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let reduce = if tree { Reduce::Tree } else { Reduce::Worker };
        let return_seconds = if patient { 10.0 } else { 0.0 };
        let mishaps = Mishaps { tasks, deaths, returns, kept, fewest };
        random_run(scheme, workers, Config { micro_steps, reduce, log_steps, return_seconds, restores, max_wait_seconds: 1e4, ..CONFIG }, mishaps, &choices);
    }
}
