//! Runs in which events come in any order that workers could bring about, and what they hold is
//! known: every unit of every batch is in its step exactly once, and every worker has every step.

use super::{CONFIG, Config, Driver};
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::{Accept, Horizon, Scheme};
use codedgrad::ids::{
    Job, OrderId, Part, Piece, Step, Summand, Task, WeightedResult, Worker, WorkerSet,
};
use codedgrad::schedulers::{
    Action, EngineError, Input, PlannedScheme, Refusal, Replan, UnfitReason,
};
use codedgrad::sums::SumId;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

const STEPS: u64 = 6;

/// What a worker was told and has not done yet.
#[derive(Debug)]
enum Order {
    Apply(Step),
    Compute(OrderId, Vec<Task>),
    Leave(OrderId),
    /// Say again which digest its parameters had after a step, before it was lost.
    Say(Step),
    /// Say which they have in the state that it took over.
    Taken(Step),
}

/// A worker as it is.
#[derive(Debug, Default)]
struct Place {
    dead: bool,
    /// First step not in its state; none if it has no state.
    state: Option<u64>,
    /// First step that was not sent to it.
    sent: u64,
    /// Could not get a step, and does nothing before it has taken over a state.
    stuck: bool,
    /// Has said that it leaves.
    departs: bool,
    /// What is wrong with its parameters, by model; nothing where that is not told.
    drift: BTreeMap<u64, u64>,
    orders: VecDeque<Order>,
    results: HashMap<Task, u32>,
    vectors: HashSet<SumId>,
}

/// What is said of a sum.
#[derive(Clone, Copy, Debug)]
enum Said {
    Held { worker: Worker, sum: SumId },
    ResultNotFinite { worker: Worker, sum: SumId },
    NotFinite { sum: SumId },
    Failed { sum: SumId },
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Input(Input),
    Said(Said),
    /// A worker takes over the state of another, or one that is kept elsewhere.
    State {
        needy: Worker,
        from: Option<Worker>,
    },
}

/// A vector on its way to its holders.
struct Waiting {
    sum: SumId,
    made_by: WorkerSet,
    /// Not all who made it are left: it can be had of its holders only.
    broken: bool,
    /// It is not finite, and no worker holds it.
    nonfinite: bool,
}

/// What may go wrong.
#[derive(Clone, Copy, Debug)]
struct Mishaps {
    /// Results may not be finite.
    tasks: bool,
    deaths: usize,
    /// Workers may come back, or come for the first time.
    returns: bool,
    /// Decoded vectors survive deaths.
    kept: bool,
    /// With so many workers or more the run must not end for want of them; 0 = it may.
    fewest: usize,
    /// So many workers, the first ones, say at times that NaN are finite, or that a sum is not
    /// finite that is.
    liars: u32,
    /// Once for every step it may be that no worker says that it holds its vector.
    mute: bool,
    /// Parameters may go wrong when a step is applied.
    drifts: bool,
    /// The driver has a replica of its own, whose parameters never do.
    own: bool,
    /// After so many events nothing happens any more but that time passes.
    silent_after: Option<usize>,
    /// Another scheme may be chosen at any time.
    switches: bool,
    /// So many say that they leave.
    leaves: usize,
    /// Workers are drained, and let in again.
    drains: bool,
}

impl Mishaps {
    const NONE: Self = Self {
        tasks: false,
        deaths: 0,
        returns: false,
        kept: true,
        fewest: 0,
        liars: 0,
        mute: false,
        drifts: false,
        own: false,
        silent_after: None,
        switches: false,
        leaves: 0,
        drains: false,
    };
}

/// Makes the scheme for fewer workers.
type Plan = Arc<dyn Fn(usize) -> Option<Box<dyn Scheme>> + Send + Sync>;

struct Chaos<'a> {
    driver: Driver,
    config: Config,
    mishaps: Mishaps,
    /// Rounds a job may take beyond its first: with so many models and one more, each step begins
    /// at parameters that know its model's last one.
    delay: u64,
    units: u32,
    /// What is late counts for the next step.
    next_step: bool,
    pool: Vec<Event>,
    /// What is told right after a death.
    told: Vec<Event>,
    places: Vec<Place>,
    parts: HashMap<(Worker, Task), Vec<Part>>,
    /// Orders whose last result comes all the same.
    crossed: HashSet<OrderId>,
    waiting: BTreeMap<Step, Waiting>,
    /// Units of every fold, and those that are committed.
    folded: HashMap<SumId, Vec<(Job, u32)>>,
    spent: HashSet<(Job, u32)>,
    /// The last sum of each step, and the one that is committed.
    asked: BTreeMap<Step, SumId>,
    committed: BTreeMap<Step, SumId>,
    refused: HashSet<Step>,
    /// Results that are not finite, though their workers say so.
    nonfinite: HashSet<(Worker, Task)>,
    /// Sums that are not finite.
    not_finite: HashSet<SumId>,
    /// Results that were computed with wrong parameters, and sums that are made of such.
    astray: HashSet<(Worker, Task)>,
    made_astray: HashSet<SumId>,
    /// How often parameters went wrong.
    drifted: u64,
    /// Steps whose finite results have a sum that is not.
    overflowed: HashSet<Step>,
    /// Who does nothing until which step is decided.
    erased: HashSet<(Step, Worker)>,
    /// Workers that the current step has cost at each item of a queue, since the run last ended a
    /// wait; and the workers lost meanwhile.
    costs: HashMap<Task, u32>,
    renewed: HashSet<Worker>,
    /// Whether it is known for whom an item is kept: who is back is not left out for anything else.
    keeps: bool,
    /// Sums of which no worker said that it holds them, one of each step.
    muted: HashMap<Step, SumId>,
    decided: u64,
    /// Events so far.
    happened: usize,
    finished: bool,
    replanned: usize,
    drained: WorkerSet,
    /// A round is open.
    in_round: bool,
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

    fn somebody_has(&self, sum: SumId) -> bool {
        self.mishaps.kept
            || self.places.iter().any(|place| !place.dead && place.vectors.contains(&sum))
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
        self.waiting.remove(&step);
    }

    /// Any of those who hold a term can be asked for it.
    fn check_holders(&self, term: &Summand) {
        let parts = |piece: &Piece| &self.parts[&(piece.worker, piece.task)];
        for piece in &term.holders {
            assert_eq!(parts(piece), parts(&term.holders[0]), "{piece:?} is equal");
            let results = &self.places[piece.worker.index()].results;
            assert!(results.contains_key(&piece.task), "{piece:?} is held");
        }
    }

    fn check_fold(&mut self, sum: SumId, results: &[WeightedResult]) {
        let step = sum.step;
        let mut counted: HashMap<(Job, u32), f64> = HashMap::new();
        for &WeightedResult { worker, task, weight } in results {
            for part in &self.parts[&(worker, task)] {
                (part.units.start..part.units.end).for_each(|unit| {
                    *counted.entry((task.job, unit)).or_default() += weight * part.coefficient;
                });
            }
        }
        let mut each = 1.0;
        if self.next_step {
            each = f64::from(self.units) / counted.len() as f64;
            assert!(
                counted.keys().all(|unit| !self.spent.contains(unit)),
                "{step}: no unit that is in another step"
            );
        } else {
            let jobs = step.jobs(self.config.micro_steps);
            assert!(
                counted.keys().all(|(job, _)| jobs.contains(job)),
                "{step} is made of its own jobs"
            );
            assert_eq!(
                counted.len() as u64,
                u64::from(self.units) * self.config.micro_steps,
                "{step}: no unit is missing"
            );
        }
        assert!(
            counted.values().all(|count| (count - each).abs() < 1e-6 * each),
            "{step}: every unit once"
        );
        self.folded.insert(sum, counted.into_keys().collect());
    }

    /// Only those are waited for who can come to hold a sum.
    fn check_counted(&self, step: Step, counted: &WorkerSet) {
        let able = |worker: &Worker| !self.places[worker.index()].dead && !self.takes_over(*worker);
        let unable = counted.iter().find(|worker| !able(worker));
        let place = unable.map(|worker| &self.places[worker.index()]);
        assert!(
            place.is_none(),
            "{step}: {unable:?} of {counted:?} cannot hold it: {place:?} {:?}",
            self.pool
        );
    }

    fn fold(&mut self, sum: SumId, results: &[WeightedResult]) {
        self.check_fold(sum, results);
        let step = sum.step;
        let before = self.asked.insert(step, sum);
        assert!(before.is_none_or(|before| before < sum), "{sum}: every sum has its number");
        let made_by = WorkerSet::of(self.places.len(), results.iter().map(|result| result.worker));
        assert!(
            made_by.iter().all(|worker| !self.places[worker.index()].dead),
            "the dead have nothing"
        );
        if results.iter().any(|result| self.astray.contains(&(result.worker, result.task))) {
            self.made_astray.insert(sum);
        }
        let culprits = self.culprits(results);
        let nonfinite = !culprits.is_empty();
        self.waiting.insert(step, Waiting { sum, made_by, broken: false, nonfinite });
        if nonfinite {
            self.not_finite.insert(sum);
            let events = culprits
                .into_iter()
                .map(|worker| Event::Said(Said::ResultNotFinite { worker, sum }));
            return self.pool.extend(events);
        }
        let lies = self.mishaps.liars > 0;
        if lies && self.choose(60) == 0 {
            self.overflowed.insert(step);
            self.not_finite.insert(sum);
            self.waiting.get_mut(&step).expect("it waits").nonfinite = true;
            return self.pool.push(Event::Said(Said::NotFinite { sum }));
        }
        if lies && self.choose(4) == 0 {
            // A worker says that it is not finite: it is made once more.
            self.pool.push(Event::Said(Said::Failed { sum }));
        }
        if self.mishaps.mute && self.choose(12) == 0 && !self.muted.contains_key(&step) {
            self.muted.insert(step, sum);
            return;
        }
        let mut told = self.living();
        told.retain(|worker| !self.takes_over(*worker));
        for worker in told {
            self.pool.push(Event::Said(Said::Held { worker, sum }));
        }
    }

    /// Whether a worker has no state to go on from, or is to give it up for another. No node sends
    /// it an undecided sum.
    fn takes_over(&self, worker: Worker) -> bool {
        let place = &self.places[worker.index()];
        let awaits =
            |event: &Event| matches!(event, Event::State { needy, .. } if *needy == worker);
        place.state.is_none() || place.stuck || self.pool.iter().any(awaits)
    }

    /// Whose results in a sum are not finite.
    fn culprits(&self, results: &[WeightedResult]) -> Vec<Worker> {
        let of_it =
            |result: &&WeightedResult| self.nonfinite.contains(&(result.worker, result.task));
        let mut culprits: Vec<Worker> =
            results.iter().filter(of_it).map(|result| result.worker).collect();
        culprits.sort();
        culprits.dedup();
        culprits
    }

    /// A worker's results of a step are forgotten, and it does nothing until the step is decided.
    fn erase(&mut self, worker: Worker, step: Step) {
        let sum = self.asked[&step];
        assert!(self.not_finite.contains(&sum), "{step}: only what is not finite is erased");
        let jobs = step.jobs(self.config.micro_steps);
        let lied = self.nonfinite.iter().any(|(of, _)| *of == worker);
        assert!(lied && !self.place(worker).dead, "{worker} has lied");
        self.place(worker).results.retain(|task, _| !jobs.contains(&task.job));
        self.waiting.remove(&step);
        self.erased.insert((step, worker));
    }

    fn commit(&mut self, step: Step, digest: u64) {
        let sum = self.asked[&step];
        assert_eq!(digest, digest_of(sum), "the last one that was asked for");
        assert!(self.somebody_has(sum), "{step}: a live worker has what is committed");
        assert!(!self.not_finite.contains(&sum), "{step}: what is committed is finite");
        if self.mishaps.own {
            assert!(
                !self.made_astray.contains(&sum),
                "{step}: no part of it was computed with wrong parameters"
            );
            self.told.push(Event::Input(Input::Own { step, digest: step.0 }));
        }
        let units = &self.folded[&sum];
        assert!(units.iter().all(|unit| self.spent.insert(*unit)), "{step}: no unit counts twice");
        self.committed.insert(step, sum);
    }

    fn decide(&mut self, step: Step, action: &Action) {
        assert_eq!(step.0, self.decided, "in order");
        if let Action::Commit { digest, .. } = *action {
            self.commit(step, digest);
        } else if let Action::Skip { because, .. } = *action {
            let told = self.mishaps.tasks || self.mishaps.liars > 0;
            assert!(
                told && (because == Refusal::NotFinite || self.overflowed.contains(&step)),
                "{step}: {because:?}"
            );
            self.refused.insert(step);
        }
        self.decided += 1;
        self.costs.clear();
        self.renewed = self.dead().into_iter().collect();
        let (decided, log) = (self.decided, self.config.log_steps);
        self.erased.retain(|(until, _)| until.0 >= decided);
        self.release(step);
        self.places
            .iter_mut()
            .for_each(|place| place.vectors.retain(|vector| vector.step.0 + log >= decided));
    }

    fn assign(&mut self, worker: Worker, order: OrderId, tasks: Vec<(Task, Vec<Part>)>) {
        let kept =
            |(task, _): &(Task, Vec<Part>)| self.costs.get(task).is_some_and(|cost| *cost >= 2);
        assert!(
            !self.keeps || self.renewed.contains(&worker) || !tasks.iter().any(kept),
            "{worker} is the next that an item may cost: {:?}",
            self.costs
        );
        let latest = tasks.iter().map(|(task, _)| task.job.0).max().unwrap_or(0);
        let current = self.config.micro_steps > 1 || latest <= self.decided + self.delay;
        assert!(
            self.erased.iter().all(|(_, erased)| *erased != worker),
            "{worker} would say so again"
        );
        assert!(
            current,
            "job {latest} begins before the step {} jobs before it is decided",
            self.delay + 1
        );
        self.parts.extend(tasks.iter().map(|(task, parts)| ((worker, *task), parts.clone())));
        let decided = self.decided;
        let place = self.place(worker);
        let busy =
            place.orders.iter().any(|order| matches!(order, Order::Compute(..) | Order::Leave(_)));
        assert!(!busy && !place.dead, "one order at a time, to the living");
        assert!(
            place.state.is_some() && !place.stuck && place.sent == decided,
            "{worker} knows all that is decided"
        );
        let tasks = tasks.into_iter().map(|task| task.0).collect();
        place.orders.push_back(Order::Compute(order, tasks));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Compute { worker, order, tasks, .. } => self.assign(worker, order, tasks),
            Action::Close(_) => {
                // Items of the jobs before are forgotten.
                if self.config.micro_steps > 1 {
                    self.costs.clear();
                }
            }
            Action::Diverged { worker, .. } => {
                assert!(
                    self.mishaps.drifts
                        && !(self.mishaps.own && self.place(worker).drift.is_empty()),
                    "{worker} is right"
                );
            }
            Action::Discard { worker, task } => self.discard(worker, task),
            Action::Erase { worker, step } => self.erase(worker, step),
            Action::Abandon { worker, order: of, late_counts } => {
                let drifts = self.mishaps.drifts;
                let orders = &mut self.place(worker).orders;
                // Otherwise it has to apply something first, and say which parameters it has then.
                let has_begun = matches!(orders.front(), Some(Order::Compute(..)));
                let Some(order) =
                    orders.iter_mut().find(|order| matches!(order, Order::Compute(..)))
                else {
                    // It is done, and is not believed: its results waited for a word on its
                    // parameters, which are wrong.
                    assert!(drifts, "only the busy are told");
                    let idle = Input::Idle { worker, order: of };
                    return self.told.insert(0, Event::Input(idle));
                };
                let Order::Compute(order, tasks) = std::mem::replace(order, Order::Leave(of))
                else {
                    panic!()
                };
                assert_eq!(order, of, "what it is at is dropped");
                // What does not count may have crossed the word to drop it.
                let comes = has_begun && (late_counts || self.choose(4) == 0);
                if let Some(&task) = tasks.first().filter(|_| comes) {
                    if tasks.len() == 1 {
                        self.crossed.insert(of);
                    }
                    // It is computed before the worker applies anything more, whenever it comes.
                    self.note_parameters(worker, task);
                    let done = Input::Done { worker, order, task, finite: true, digest: None };
                    self.pool.push(Event::Input(done));
                }
            }
            Action::Expect { .. } => {}
            Action::Sum { step, terms, counted, .. } => {
                self.check_counted(step, &counted);
                terms.iter().for_each(|term| self.check_holders(term));
                let results: Vec<WeightedResult> =
                    terms.iter().map(Summand::first_result).collect();
                let sum = self.driver.sums.of(step);
                self.fold(sum, &results);
            }
            Action::Commit { step, .. } | Action::Skip { step, .. } => self.decide(step, &action),
            Action::Restart { step } => {
                assert!(step.0 >= self.decided, "what is committed stays");
                self.release(step);
            }
            Action::Apply { worker, step } => {
                assert!(
                    step.0 < self.decided && step.0 + self.config.log_steps >= self.decided,
                    "decided first, and still to be had"
                );
                let place = self.place(worker);
                assert!(!place.dead && place.sent == step.0, "in order, once, to the living");
                place.sent += 1;
                place.orders.push_back(Order::Apply(step));
            }
            Action::Resync { worker, from } => {
                let provider = &self.places[from.index()];
                assert!(
                    !provider.dead && !provider.stuck && provider.state.is_some(),
                    "{from} has a state"
                );
                self.begins_to_take_over(worker);
                self.pool.push(Event::State { needy: worker, from: Some(from) });
            }
            Action::Restore { worker } => {
                assert!(self.config.restores);
                self.begins_to_take_over(worker);
                self.pool.push(Event::State { needy: worker, from: None });
            }
            Action::Replanned { members, .. } => self.check_plan(&members),
            Action::Switched { step } => self.check_switch(step),
            Action::LetGo { worker, leaves } => self.let_go(worker, leaves),
            // It may stay for a while: whoever sends it away hears later that it is lost.
            Action::Dismiss { worker, why } => {
                assert_eq!(why, UnfitReason::Differs, "{worker} has refused no state");
                assert!(self.mishaps.drifts, "{worker} is right");
            }
            Action::Finish => self.finished = true,
        }
    }

    fn check_plan(&mut self, members: &WorkerSet) {
        let living = self.living();
        assert!(members.iter().all(|member| living.contains(&member)), "for who is there");
        assert!(members.len() >= self.mishaps.fewest.max(1), "for enough of them");
        // Who is there and left out has not got the run's state yet, or goes.
        let goes =
            |worker: Worker| self.places[worker.index()].departs || self.drained.contains(worker);
        let left_out =
            living.iter().filter(|worker| !members.contains(**worker) && !goes(**worker));
        for place in left_out.map(|worker| &self.places[worker.index()]) {
            assert!(place.stuck || place.state != Some(self.decided), "fit, and left out");
        }
        let stays = |worker: &&Worker| !goes(**worker) && self.is_fit(&self.places[worker.index()]);
        let enough = living.iter().filter(stays).count() >= self.mishaps.fewest;
        assert!(!enough || !members.iter().any(goes), "{members:?} without those that go");
        self.replanned += 1;
    }

    /// The plan changes between rounds, and where one cannot close.
    fn check_when(&mut self, event: Event, actions: &[Action]) {
        let may_block = matches!(
            event,
            Event::Said(Said::ResultNotFinite { .. })
                | Event::Input(
                    Input::Lost { .. }
                        | Input::Joined { .. }
                        | Input::Synced { .. }
                        | Input::Done { finite: false, .. }
                        | Input::Tick
                )
        );
        let mut may_change = may_block || !self.in_round;
        for action in actions {
            match action {
                Action::Compute { .. } => self.in_round = true,
                // Those that are left may not be enough for the round that opens next.
                Action::Close(_) => (self.in_round, may_change) = (false, true),
                Action::Replanned { .. } => assert!(may_change, "{event:?}: {actions:?}"),
                _ => {}
            }
        }
    }

    /// Nothing undecided needs what it has, and no worker takes over its state.
    fn let_go(&mut self, worker: Worker, leaves: bool) {
        let place = &self.places[worker.index()];
        if place.dead {
            // It is not known yet.
            let is_lost = self.told.iter().any(|told| match told {
                Event::Input(Input::Lost { worker: of, .. }) => *of == worker,
                _ => false,
            });
            return assert!(is_lost, "{worker} is there");
        }
        assert!(place.departs == leaves, "{worker} leaves");
        assert!(leaves || self.drained.contains(worker), "{worker} is drained");
        let gives =
            |event: &Event| matches!(event, Event::State { from, .. } if *from == Some(worker));
        assert!(!self.pool.iter().any(gives), "no worker takes over the state of {worker}");
        let is_of_it = |sum: &Waiting| !sum.broken && sum.made_by.contains(worker);
        assert!(!self.waiting.values().any(is_of_it), "no sum of its results waits for holders");
        self.pool.retain(|event| match event {
            Event::Input(Input::Done { worker: of, .. })
            | Event::Said(Said::Held { worker: of, .. }) => *of != worker,
            Event::State { needy, .. } => *needy != worker,
            Event::Input(_) | Event::Said(_) => true,
        });
        let place = self.place(worker);
        let (state, drift) = (place.state, place.drift.clone());
        *place = Place { dead: true, state, drift, ..Place::default() };
        self.renewed.insert(worker);
        // It hangs up.
        self.told.push(Event::Input(Input::Lost { worker, kept: true }));
    }

    /// Some are to be done without from now on, and others no more.
    fn drain(&mut self) {
        let all = self.places.len();
        let mut asked = WorkerSet::empty(all);
        for _ in 0..self.choose(3) {
            asked.insert(Worker(self.choose(all) as u32));
        }
        match self.driver.engine.drain(asked.clone()) {
            Ok(()) => self.drained = asked,
            Err(refused) => {
                let new = |worker: &Worker| !self.drained.contains(*worker);
                assert!(refused.iter().eq(asked.iter().filter(new)), "those alone are refused");
                let before = &self.drained;
                let still = asked.iter().filter(|worker| before.contains(*worker));
                self.drained = WorkerSet::of(all, still);
            }
        }
    }

    fn check_switch(&self, step: Step) {
        assert!(self.mishaps.switches && step.0 == self.decided, "between steps");
        assert_eq!(self.driver.engine.plan().facts().units, self.units);
    }

    /// The next event: something that has happened, what a worker does next, a mishap, or a
    /// deadline; none when all is over.
    fn next(&mut self) -> Option<Event> {
        let begun = self.turn > 0
            && !self.pool.iter().any(|event| matches!(event, Event::Input(Input::Begin)));
        let deadline = self.driver.deadline();
        assert!(!begun || self.finished || deadline.is_some(), "nothing is waited for without end");
        // Before all else: nothing comes between a worker's last word and its loss.
        if let Some(told) = self.told.pop() {
            return Some(told);
        }
        if self.mishaps.silent_after.is_some_and(|events| begun && self.happened > events) {
            if self.finished {
                return None;
            }
            self.driver.now = self.driver.now.max(deadline?);
            return Some(Event::Input(Input::Tick));
        }
        if let Some(mishap) = self.mishap() {
            return Some(Event::Input(mishap));
        }
        let busy: Vec<Worker> = self
            .living()
            .into_iter()
            .filter(|worker| !self.places[worker.index()].orders.is_empty())
            .collect();
        let near = deadline.is_some_and(|deadline| deadline < self.driver.now + 40.0);
        let events = self.pool.len() + busy.len();
        if events == 0 || near && self.choose(8) == 0 {
            if self.finished {
                return None;
            }
            let deadline = deadline.expect("the run is stuck");
            // The run hangs only where no worker says that it holds something.
            assert!(near || !self.muted.is_empty(), "the run waits until {deadline}");
            self.driver.now = self.driver.now.max(deadline);
            return Some(Event::Input(Input::Tick));
        }
        let choice = self.choose(events);
        Some(match choice.checked_sub(self.pool.len()) {
            None => match self.pool.remove(choice) {
                Event::State { needy, from } => Event::Input(self.take_over(needy, from)),
                event => self.happen(event),
            },
            Some(choice) => Event::Input(self.work(busy[choice])),
        })
    }

    fn mishap(&mut self) -> Option<Input> {
        let (living, dead) = (self.living(), self.dead());
        let patient = self.config.return_seconds > 0.0 && !self.finished;
        if self.mishaps.returns
            && !dead.is_empty()
            && self.choose(if patient { 16 } else { 30 }) == 0
        {
            let worker = dead[self.choose(dead.len())];
            return Some(self.join(worker));
        }
        let state = self.pool.iter().find_map(|event| match event {
            Event::State { needy, from: Some(from) } => Some((*needy, *from)),
            _ => None,
        });
        if let Some((worker, from)) = state
            && self.choose(8) == 0
        {
            return Some(Input::StateOverdue { worker, from });
        }
        if self.mishaps.leaves > 0 && !living.is_empty() && self.choose(24) == 0 {
            self.mishaps.leaves -= 1;
            let worker = living[self.choose(living.len())];
            self.place(worker).departs = true;
            return Some(Input::Leaving { worker });
        }
        if self.finished || living.is_empty() || self.choose(24) > 0 {
            return None;
        }
        let worker = living[self.choose(living.len())];
        if self.choose(2) == 0 && self.mishaps.deaths > 0 {
            self.mishaps.deaths -= 1;
            return Some(self.die(worker));
        }
        if self.mishaps.deaths > 0 && self.choose(2) == 0 {
            self.mishaps.deaths -= 1;
            let lost = self.die(worker);
            // What the loss leads to comes after it.
            self.told.push(Event::Input(lost));
            return Some(Input::Left { worker, told: false });
        }
        None
    }

    fn happen(&mut self, event: Event) -> Event {
        match event {
            // It comes when it is told, since its worker was to drop it.
            Event::Input(Input::Done { worker, order, task, .. }) => {
                let crossed = self.crossed.remove(&order);
                let place = self.place(worker);
                *place.results.entry(task).or_default() += 1;
                // It has nothing left to drop, and does not say that it has.
                let leaves = |it: &Order| matches!(it, Order::Leave(of) if *of == order);
                place.orders.retain(|it| !(crossed && leaves(it)));
            }
            Event::Said(Said::Held { worker, sum }) => {
                self.place(worker).vectors.insert(sum);
            }
            _ => {}
        }
        event
    }

    /// Tells of what has happened; gives what follows.
    fn tell(&mut self, event: Event, actions: &mut Vec<Action>) -> Result<(), EngineError> {
        let Driver { engine, sums, now, .. } = &mut self.driver;
        match event {
            Event::Input(input) => return sums.handle(engine, *now, input, actions),
            Event::Said(Said::Held { worker, sum }) => {
                sums.held(worker, sum, digest_of(sum));
            }
            Event::Said(Said::ResultNotFinite { worker, sum }) => {
                sums.result_not_finite(engine, worker, sum);
            }
            Event::Said(Said::NotFinite { sum }) => sums.not_finite(sum),
            Event::Said(Said::Failed { sum }) => sums.failed(sum),
            Event::State { .. } => unreachable!("what is taken over is told as an input"),
        }
        sums.settle(engine, *now, actions)
    }

    fn work(&mut self, worker: Worker) -> Input {
        let finite = !(self.mishaps.tasks && self.choose(24) == 0);
        match self.place(worker).orders.pop_front().expect("there is an order") {
            Order::Leave(order) => Input::Idle { worker, order },
            Order::Apply(step) => {
                assert_eq!(self.place(worker).state, Some(step.0), "in order");
                let sum = self.committed.get(&step).copied();
                if sum.is_some_and(|sum| !self.somebody_has(sum)) {
                    let place = self.place(worker);
                    place.stuck = true;
                    place.orders.retain(|order| !matches!(order, Order::Apply(_)));
                    return Input::StepUnavailable { worker };
                }
                let place = self.place(worker);
                place.vectors.extend(sum);
                place.state = Some(step.0 + 1);
                if sum.is_none() {
                    return Input::Applied { worker, step, digest: None };
                }
                if self.mishaps.drifts && self.choose(20) == 0 {
                    self.drifted += 1;
                    let (model, drift) = (step.0 % self.config.models, self.drifted);
                    self.place(worker).drift.insert(model, drift);
                }
                Input::Applied { worker, step, digest: Some(self.digest(worker, step)) }
            }
            Order::Say(step) => {
                Input::Applied { worker, step, digest: Some(self.digest(worker, step)) }
            }
            Order::Taken(step) => {
                Input::StateLoaded { worker, step, digest: Some(self.digest(worker, step)) }
            }
            Order::Compute(order, mut tasks) => {
                let place = self.place(worker);
                assert!(!place.stuck, "no worker computes at parameters it does not have");
                let task = tasks.remove(0);
                if !tasks.is_empty() {
                    place.orders.push_front(Order::Compute(order, tasks));
                }
                if finite {
                    *place.results.entry(task).or_default() += 1;
                }
                self.nonfinite.remove(&(worker, task));
                self.note_parameters(worker, task);
                if finite && worker.0 < self.mishaps.liars && self.choose(4) == 0 {
                    self.nonfinite.insert((worker, task));
                }
                Input::Done { worker, order, task, finite, digest: None }
            }
        }
    }

    /// A result is computed with whatever parameters its worker has.
    fn note_parameters(&mut self, worker: Worker, task: Task) {
        let model = task.job.step(self.config.micro_steps).0 % self.config.models;
        if self.place(worker).drift.contains_key(&model) {
            self.astray.insert((worker, task));
        } else {
            self.astray.remove(&(worker, task));
        }
    }

    /// A state that was on its way to a worker is not what it takes over, and sums that were come
    /// to nothing. It hands over none that it was asked for before.
    fn begins_to_take_over(&mut self, worker: Worker) {
        self.pool.retain(|event| match event {
            Event::State { needy, from } => *needy != worker && *from != Some(worker),
            Event::Said(Said::Held { worker: of, .. }) => *of != worker,
            Event::Input(_) | Event::Said(_) => true,
        });
    }

    /// The digest of a worker's parameters after a step.
    fn digest(&self, worker: Worker, step: Step) -> u64 {
        let drift = self.places[worker.index()].drift.get(&(step.0 % self.config.models));
        step.0 + drift.map_or(0, |drift| drift << 32)
    }

    /// The last steps before one that were not refused, one per model: what a worker says its
    /// digests of again.
    fn last_words(&self, next: u64) -> Vec<Step> {
        let applied = (0..next).map(Step).filter(|step| !self.refused.contains(step));
        let mut last: BTreeMap<u64, Step> = BTreeMap::new();
        last.extend(applied.map(|step| (step.0 % self.config.models, step)));
        last.into_values().collect()
    }

    fn take_over(&mut self, needy: Worker, from: Option<Worker>) -> Input {
        let drift = from.map(|from| self.places[from.index()].drift.clone()).unwrap_or_default();
        let next = match from {
            Some(from) => self.places[from.index()].state.expect("a provider has a state"),
            None => self.decided.saturating_sub(self.choose(2) as u64),
        };
        let place = self.place(needy);
        place
            .orders
            .retain(|order| !matches!(order, Order::Apply(_) | Order::Say(_) | Order::Taken(_)));
        assert!(place.orders.is_empty(), "who takes over a state does nothing else");
        place.state = Some(next);
        place.sent = next;
        place.stuck = false;
        place.drift = drift;
        let taken: Vec<Order> = self.last_words(next).into_iter().map(Order::Taken).collect();
        self.place(needy).orders.extend(taken);
        self.is_given_sums(needy);
        Input::Synced { worker: needy, next: Step(next) }
    }

    fn die(&mut self, worker: Worker) -> Input {
        let (state, drift) = (self.place(worker).state, self.place(worker).drift.clone());
        if let Some(Order::Compute(_, tasks)) = self.places[worker.index()]
            .orders
            .iter()
            .find(|order| matches!(order, Order::Compute(..)))
        {
            *self.costs.entry(tasks[0]).or_default() += 1;
        }
        self.renewed.insert(worker);
        *self.place(worker) = Place { dead: true, state, drift, ..Place::default() };
        self.pool.retain(|event| match event {
            Event::Input(Input::Done { worker: of, .. })
            | Event::Said(Said::Held { worker: of, .. }) => *of != worker,
            Event::State { needy, from } => *needy != worker && *from != Some(worker),
            Event::Input(_) | Event::Said(_) => true,
        });
        let steps: Vec<Step> = self.waiting.keys().copied().collect();
        for step in steps {
            let waiting = self.waiting.get_mut(&step).expect("it waits");
            waiting.broken |= waiting.made_by.contains(worker);
            let (sum, mut broken) = (waiting.sum, waiting.broken);
            if !broken && !self.mishaps.kept && !self.somebody_has(sum) && self.choose(2) == 0 {
                // It had a part in the summing, though nothing of it is summed.
                broken = true;
                self.waiting.get_mut(&step).expect("it waits").broken = true;
                self.told.push(Event::Said(Said::Failed { sum }));
            } else if self.choose(4) == 0 {
                // So it seems to be, but what it still sent has come.
                self.told.push(Event::Said(Said::Failed { sum }));
            }
            if broken && !self.somebody_has(sum) {
                // Who had it already says so all the same.
                for event in std::mem::take(&mut self.pool) {
                    let of_it =
                        matches!(event, Event::Said(Said::Held { sum: of, .. }) if of == sum);
                    if !of_it || self.choose(2) == 0 {
                        self.pool.push(event);
                    }
                }
            }
        }
        // A sum that is not finite is nowhere.
        let kept = self.mishaps.kept && self.waiting.values().all(|waiting| !waiting.nonfinite);
        Input::Lost { worker, kept }
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
        let words: Vec<Order> =
            self.last_words(self.places[worker.index()].sent).into_iter().map(Order::Say).collect();
        let place = self.place(worker);
        place.orders.extend(words);
        let next = place.state.map(Step);
        if next.is_some() {
            self.is_given_sums(worker);
        }
        Input::Joined { worker, next }
    }

    /// A worker that has come, or taken over a state, gets the sums that wait for holders.
    fn is_given_sums(&mut self, worker: Worker) {
        for (&step, waiting) in &self.waiting {
            let mute = self.muted.get(&step) == Some(&waiting.sum);
            if !waiting.nonfinite && !mute && (!waiting.broken || self.somebody_has(waiting.sum)) {
                let sum = waiting.sum;
                self.pool.push(Event::Said(Said::Held { worker, sum }));
            }
        }
    }

    /// A worker is not there when the run begins.
    fn never_came(&mut self, worker: Worker) {
        let lost = self.die(worker);
        self.place(worker).state = None;
        assert_eq!(self.driver.give(lost), Ok(Vec::new()));
    }

    /// Whether a run may break off so.
    fn is_fit(&self, place: &Place) -> bool {
        !place.dead && !place.stuck && place.state.is_some() && place.sent == self.decided
    }

    /// How many of those that are there have the run's state, or can take it over.
    fn with_a_state(&self) -> usize {
        let has_one = self.config.restores || self.places.iter().any(|place| self.is_fit(place));
        if has_one { self.living().len() } else { 0 }
    }

    fn may_end(&self, error: &EngineError, is_tick: bool) -> bool {
        let patient = self.config.return_seconds > 0.0;
        let silent = self.mishaps.silent_after.is_some_and(|events| self.happened > events);
        match error {
            EngineError::MaxWait { step, silent: who, .. }
            | EngineError::Unheld { step, silent: who, .. }
                if silent =>
            {
                step.0 >= self.decided && !who.is_empty()
            }
            EngineError::TooManyLost { dead, .. } => {
                let left = self.with_a_state();
                let may_go_on = self.mishaps.fewest > 0
                    && left >= self.mishaps.fewest
                    && (self.plan)(left).is_some();
                !may_go_on
                    && !dead.is_empty()
                    && dead.iter().eq(self.dead())
                    && (!patient || is_tick)
            }
            EngineError::Left { left, .. } => {
                let there = self.with_a_state();
                let fewest = self.mishaps.fewest;
                let dead = self.dead();
                let goes_on = fewest > 0 && there >= fewest && (self.plan)(there).is_some();
                let has_left = |worker: Worker| dead.contains(&worker);
                !goes_on && !left.is_empty() && left.iter().all(has_left)
            }
            EngineError::NoState { worker } => {
                let others = Worker::all(self.places.len()).filter(|other| other != worker);
                // Who has left is not waited for.
                let returns =
                    self.dead().iter().any(|dead| !self.driver.engine.leaving().has_left(*dead));
                let waited = !patient || !returns || is_tick;
                !self.config.restores
                    && waited
                    && !others.into_iter().any(|other| self.is_fit(&self.places[other.index()]))
            }
            // As many may have gone wrong as not.
            EngineError::Tied { .. } => self.drifted > 0 && !self.mishaps.own,
            _ => false,
        }
    }

    fn run(&mut self) -> Result<(), EngineError> {
        for _ in 0..100_000 {
            self.happened += 1;
            let silent =
                self.mishaps.silent_after.is_some_and(|events| self.happened > events + 50);
            assert!(!silent || self.finished, "nothing happens, and it does not end");
            self.driver.now += 1e-3;
            if self.mishaps.switches && self.choose(10) == 0 {
                let text = SWITCHED_TO[self.choose(SWITCHED_TO.len())];
                self.driver.engine.switch(text.parse().unwrap());
            }
            if self.mishaps.drains && self.choose(20) == 0 {
                self.drain();
            }
            let Some(event) = self.next() else { return Ok(()) };
            // The run may wait for no worker after it.
            if matches!(event, Event::Input(Input::Tick | Input::Left { .. })) {
                self.costs.clear();
            }
            let mut actions = Vec::new();
            let handled = self.tell(event, &mut actions);
            self.check_when(event, &actions);
            // Of a run that has ended nothing is done any more; but who was let go is not there.
            actions.retain(|action| handled.is_ok() || matches!(action, Action::LetGo { .. }));
            let is_over = handled.is_err();
            for action in actions {
                match action {
                    Action::LetGo { worker, .. } if is_over => self.place(worker).dead = true,
                    action => self.act(action),
                }
            }
            match handled {
                Ok(()) => {}
                Err(error) => {
                    let dead = self.dead();
                    let may = self.may_end(&error, matches!(event, Event::Input(Input::Tick)));
                    assert!(may, "{error} after {event:?}, and {dead:?} are dead");
                    return Err(error);
                }
            }
        }
        panic!("the run does not end");
    }
}

impl Chaos<'_> {
    fn check_end(&self) {
        if self.driver.engine.leaving().ended_the_run() {
            return assert!(self.decided > 0, "all have left after a step");
        }
        assert_eq!(self.decided, STEPS);
        let has_all = |place: &&Place| place.state == Some(STEPS) && !place.stuck;
        let (with, without): (Vec<&Place>, Vec<&Place>) =
            self.places.iter().filter(|place| !place.dead).partition(has_all);
        let nobody_can =
            with.is_empty() && !self.config.restores && self.config.return_seconds > 0.0;
        assert!(without.is_empty() || nobody_can, "all workers who is left has every step");
        let all = STEPS * self.config.micro_steps * u64::from(self.units);
        assert!(
            !self.refused.is_empty() || self.spent.len() as u64 == all,
            "every unit is in a step"
        );
    }
}

fn digest_of(sum: SumId) -> u64 {
    sum.step.0 * 1000 + u64::from(sum.attempt)
}

/// The same scheme for fewer workers, or none at all.
fn plan_of(spec: SchemeSpec, units: u32) -> Plan {
    Arc::new(move |workers| {
        let horizon = || Horizon {
            workers,
            units: Some(units),
            jobs: Job(0)..Job(1),
            accept: Accept::Lookahead,
        };
        [&spec, &SchemeSpec::uncoded()].into_iter().find_map(|spec| spec.over(horizon()).ok())
    })
}

/// Every order of events leaves every live worker with every step applied once and in order. No
/// worker applies an undecided step or waits for ever, and no unit is lost or counted twice.
fn random_run(scheme: &str, workers: usize, config: Config, mishaps: Mishaps, choices: &[u16]) {
    let (next_step, text) =
        scheme.strip_prefix("next ").map_or((false, scheme), |scheme| (true, scheme));
    let mut spec = text.parse::<SchemeSpec>().unwrap();
    if next_step {
        spec = spec.deferring_to_next_step().unwrap();
    }
    let horizon = Horizon { workers, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
    let Ok(scheme) = spec.over(horizon) else { return };
    let micro_steps = if next_step { 1 } else { config.micro_steps };
    let (delay, tolerance) = (scheme.facts().delay as u64, scheme.facts().tolerance);
    let models = if micro_steps > 1 { 1 } else { delay + 1 };
    let fewest = if next_step { 0 } else { mishaps.fewest };
    let config = Config {
        micro_steps,
        models,
        log_steps: config.log_steps.max(delay + 1),
        min_workers: (fewest > 0).then_some(fewest),
        ..config
    };
    let (units, mishaps) = (
        scheme.facts().units,
        Mishaps { fewest, switches: mishaps.switches && !next_step, ..mishaps },
    );
    // Where those that are left may be planned for, what costs workers is given to them at once.
    let keeps = text.starts_with("queue")
        && config.return_seconds > 0.0
        && fewest == 0
        && !(mishaps.tasks || mishaps.switches || mishaps.drifts || mishaps.liars > 0);
    let plan = plan_of(spec, units);
    let replan = (mishaps.fewest > 0).then(|| -> Replan {
        let plan = Arc::clone(&plan);
        Box::new(move |workers| {
            let (scheme, text) = (plan(workers)?, String::new());
            Some(PlannedScheme { scheme, text, misfit: None })
        })
    });
    let engine = config.replanned(scheme, STEPS, replan).unwrap();
    let mut chaos = Chaos {
        units,
        delay,
        driver: Driver::of(engine),
        config,
        mishaps,
        next_step,
        pool: Vec::new(),
        told: Vec::new(),
        places: (0..workers).map(|_| Place { state: Some(0), ..Place::default() }).collect(),
        parts: HashMap::new(),
        crossed: HashSet::new(),
        waiting: BTreeMap::new(),
        folded: HashMap::new(),
        spent: HashSet::new(),
        asked: BTreeMap::new(),
        committed: BTreeMap::new(),
        refused: HashSet::new(),
        nonfinite: HashSet::new(),
        not_finite: HashSet::new(),
        astray: HashSet::new(),
        made_astray: HashSet::new(),
        drifted: 0,
        overflowed: HashSet::new(),
        erased: HashSet::new(),
        costs: HashMap::new(),
        renewed: HashSet::new(),
        keeps,
        muted: HashMap::new(),
        decided: 0,
        happened: 0,
        finished: false,
        replanned: 0,
        drained: WorkerSet::empty(workers),
        in_round: false,
        plan,
        choices,
        turn: 0,
    };
    let absent = if mishaps.returns && chaos.choose(3) == 0 { chaos.choose(workers) } else { 0 };
    Worker::all(absent).for_each(|worker| chaos.never_came(worker));
    chaos.pool.push(Event::Input(Input::Begin));
    while chaos.choose(2) == 0 && mishaps.returns && !chaos.dead().is_empty() {
        let worker = chaos.dead()[0];
        let joined = chaos.join(worker);
        chaos.driver.give(joined).unwrap().into_iter().for_each(|action| chaos.act(action));
    }
    if chaos.run().is_ok() && mishaps.silent_after.is_none() {
        chaos.check_end();
        let spares = workers > 1 && delay == 0 && (tolerance > 0 || text.starts_with("queue"));
        let only_lies = mishaps.liars <= 1 && !mishaps.tasks && mishaps.deaths == 0 && absent == 0;
        let without = chaos.refused.difference(&chaos.overflowed).count();
        assert!(!only_lies || !spares || without == 0, "a lie costs a step");
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

/// What may be chosen in the middle of a run.
const SWITCHED_TO: [&str; 7] = [
    "uncoded",
    "groups:s=1",
    "groups:l=1",
    "min-load:s=1",
    "queue:m=2",
    "ring:reach=2",
    "m-sgc:B=1,W=2,lambda=1",
];

/// For how long a lost worker is kept in the plan: not at all, some rounds, the whole run.
const SETTLES: [f64; 3] = [0.0, 5.0, 1e6];

/// So many orders of events that one in a thousand going wrong shows in every run; `PROPTEST_CASES`
/// may ask for more.
fn many_cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.max(10_000), ..usual }
}

/// A run that waits for as long as it takes, with what these tests draw alike.
fn drawn((micro_steps, log_steps): (u64, u64), patient: bool) -> Config {
    Config {
        micro_steps,
        log_steps,
        return_seconds: if patient { 10.0 } else { 0.0 },
        max_wait_seconds: 1e4,
        ..CONFIG
    }
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn any_order_of_events_ends_well(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 2usize..7,
        micro_steps in 1u64..4,
        tasks: bool,
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let mishaps = Mishaps { tasks, deaths: usize::from(tasks), ..Mishaps::NONE };
        random_run(
            scheme,
            workers,
            Config { micro_steps, log_steps: 100, ..CONFIG },
            mishaps,
            &choices,
        );
    }

    #[test]
    fn workers_that_die_and_come_back_end_well(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 1usize..7,
        (micro_steps, log_steps, deaths) in (1u64..4, 1u64..6, 1usize..9),
        (tasks, returns, kept, patient, restores) in
            any::<(bool, bool, bool, bool, bool)>(),
        (fewest, settle_seconds) in (0usize..4, prop::sample::select(&SETTLES[..])),
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let drawn = drawn((micro_steps, log_steps), patient);
        let mishaps = Mishaps { tasks, deaths, returns, kept, fewest, ..Mishaps::NONE };
        random_run(
            scheme,
            workers,
            Config { settle_seconds, restores, ..drawn },
            mishaps,
            &choices,
        );
    }

    /// Who leaves with notice, or is drained, takes nothing along that is needed.
    #[test]
    fn workers_that_leave_and_are_drained_end_well(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 1usize..7,
        (micro_steps, log_steps, deaths, leaves) in (1u64..4, 1u64..6, 0usize..4, 0usize..6),
        (tasks, returns, kept, patient, restores, drains) in
            any::<(bool, bool, bool, bool, bool, bool)>(),
        (fewest, settle_seconds) in (0usize..4, prop::sample::select(&SETTLES[..])),
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let drawn = drawn((micro_steps, log_steps), patient);
        let mishaps =
            Mishaps { tasks, deaths, returns, kept, fewest, leaves, drains, ..Mishaps::NONE };
        let config = Config { settle_seconds, restores, ..drawn };
        random_run(scheme, workers, config, mishaps, &choices);
    }

    /// Whatever scheme is chosen whenever: it is taken between steps, and nothing goes wrong with
    /// those that die and come back meanwhile.
    #[test]
    fn switching_schemes_ends_well(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 1usize..7,
        (micro_steps, log_steps, deaths) in (1u64..4, 1u64..6, 0usize..6),
        (tasks, returns, kept) in any::<(bool, bool, bool)>(),
        (fewest, settle_seconds) in (0usize..4, prop::sample::select(&SETTLES[..])),
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let mishaps =
            Mishaps { tasks, deaths, returns, kept, fewest, switches: true, ..Mishaps::NONE };
        let drawn = drawn((micro_steps, log_steps), returns);
        let config = Config { settle_seconds, restores: true, ..drawn };
        random_run(scheme, workers, config, mishaps, &choices);
    }

    #[test]
    fn lies_about_what_is_finite_end_well(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 1usize..7,
        (micro_steps, log_steps, deaths) in (1u64..4, 1u64..6, 0usize..5),
        (tasks, returns, kept, mute) in any::<(bool, bool, bool, bool)>(),
        (liars, silent_after) in (0u32..4, prop::option::of(1usize..200)),
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let drawn = drawn((micro_steps, log_steps), returns);
        let mishaps =
            Mishaps { tasks, deaths, returns, kept, liars, mute, silent_after, ..Mishaps::NONE };
        let config = Config { restores: true, ..drawn };
        random_run(scheme, workers, config, mishaps, &choices);
    }

    /// What is computed with wrong parameters is in no step, where the driver has right ones.
    #[test]
    fn wrong_parameters_are_in_no_step(
        scheme in prop::sample::select(&SCHEMES[..]),
        workers in 1usize..7,
        (micro_steps, log_steps, deaths) in (1u64..4, 1u64..6, 0usize..5),
        (tasks, returns, kept, own) in any::<(bool, bool, bool, bool)>(),
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let drawn = drawn((micro_steps, log_steps), returns);
        let mishaps = Mishaps { tasks, deaths, returns, kept, drifts: true, own, ..Mishaps::NONE };
        let config = Config { restores: true, ..drawn };
        random_run(scheme, workers, config, mishaps, &choices);
    }

    /// One who lies is one whose results do not come: where another has what it has, its lies cost
    /// no step.
    #[test]
    fn one_liar_costs_no_step(
        scheme in
            prop::sample::select(&["groups:s=1", "min-load:s=1", "queue:m=2", "ring:reach=2"][..]),
        workers in 2usize..7,
        micro_steps in 1u64..4,
        mute: bool,
        choices in prop::collection::vec(0u16..1000, 1..200),
    ) {
        let mishaps = Mishaps { liars: 1, mute, ..Mishaps::NONE };
        random_run(
            scheme,
            workers,
            Config { micro_steps, log_steps: 100, ..CONFIG },
            mishaps,
            &choices,
        );
    }
}
