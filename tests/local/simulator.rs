//! The simulator against whole outputs of two independent models, and the promises of the
//! sequential schemes.

use codedgrad::codes::sequential::{
    Accept, Horizon, MSgc, MSgcParameters, Outlook, ResultUse, RoundEvent, Scheme, SchemeFacts,
    SlotKind,
};
use codedgrad::codes::{Report, SchemeSpec};
use codedgrad::delays::{Growth, Preset};
use codedgrad::ids::{Job, Part, Task, WeightedResult, Worker, WorkerSet};
use codedgrad::sim::{Close, Rules, SimulationOutcome, simulate};
use proptest::prelude::*;
use serde_json::Value;
use std::convert::Infallible;

/// Golden values have nine digits or more.
const DIGITS: f64 = 1e-6;

fn delays() -> Vec<Vec<f64>> {
    let rows = include_str!("../data/simulator/delays.csv").lines();
    rows.map(|line| line.split(',').map(|cell| cell.trim().parse().unwrap()).collect()).collect()
}

fn scheme(text: &str, workers: usize, jobs: u64, accept: Accept) -> Box<dyn Scheme> {
    let spec: SchemeSpec = text.parse().unwrap();
    spec.over(Horizon { workers, units: None, jobs: Job(0)..Job(jobs), accept }).unwrap()
}

/// The outcome, the straggler row and the length of every round.
fn run(
    scheme: &mut dyn Scheme,
    jobs: u64,
    rows: &[Vec<f64>],
    rules: &Rules,
) -> (SimulationOutcome, Vec<String>) {
    let mut next = rows.iter().cycle();
    let mut stragglers = Vec::new();
    let workers = scheme.facts().workers;
    let mut rows = || Ok::<_, Infallible>(next.next().unwrap().clone());
    let outcome = simulate(scheme, jobs, &mut rows, rules, &mut |seen| {
        let mark = |worker| if seen.missing.contains(worker) { 'x' } else { '.' };
        stragglers.push(Worker::all(workers).map(mark).collect());
    });
    (outcome.unwrap(), stragglers)
}

fn close(found: f64, expected: &Value, what: &str) {
    let expected = expected.as_f64().unwrap();
    assert!(
        (found - expected).abs() <= DIGITS * (1.0 + expected.abs()),
        "{what}: {found} instead of {expected}"
    );
}

fn list_close(found: &[f64], expected: &Value, what: &str) {
    let expected = expected.as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    found.iter().zip(expected).for_each(|(found, expected)| close(*found, expected, what));
}

#[test]
fn golden_rounds_of_every_scheme_and_rule() {
    let golden: Value =
        serde_json::from_str(include_str!("../data/simulator/sequential.json")).unwrap();
    let (workers, jobs) =
        (golden["workers"].as_u64().unwrap() as usize, golden["jobs"].as_u64().unwrap());
    let growth = Some(Growth::Additive {
        base: golden["base_load"].as_f64().unwrap(),
        slope: golden["slope"].as_f64().unwrap(),
    });
    let runs = golden["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 72);
    for expected in runs {
        let text = expected["scheme"].as_str().unwrap();
        let accept = if expected["accept"] == "model" { Accept::Model } else { Accept::Lookahead };
        let close_rule = match expected["close"].as_str().unwrap() {
            "all" => Close::All,
            "incremental" => Close::Incremental,
            _ => Close::Decodable,
        };
        let rules =
            Rules { close: close_rule, mu: golden["mu"].as_f64().unwrap(), growth, dispatch: 0.0 };
        let mut scheme = scheme(text, workers, jobs, accept);
        let delay = scheme.facts().delay;
        let (found, stragglers) = run(&mut *scheme, jobs, &delays(), &rules);
        let what = format!("{text} {close_rule:?} {accept:?}");
        let rows: Vec<&str> = expected["stragglers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row.as_str().unwrap())
            .collect();
        assert_eq!(stragglers, rows, "{what}");
        close(found.total_time, &expected["total_time"], &what);
        close(found.load, &expected["load"], &what);
        close(found.straggler_fraction, &expected["straggler_fraction"], &what);
        list_close(&found.job_finish_time, &expected["job_finish_time"], &what);
        let whole = [delay, found.rounds, found.wait_outs, found.jobs_decoded].map(|x| x as u64);
        let keys = ["delay", "rounds", "wait_outs", "jobs_decoded"];
        assert_eq!(whole, keys.map(|key| expected[key].as_u64().unwrap()), "{what}: {keys:?}");
        let time = found.round_time;
        for (key, value) in [
            ("mean", time.mean),
            ("p50", time.p50),
            ("p95", time.p95),
            ("p99", time.p99),
            ("max", time.max),
        ] {
            close(value, &expected["round_time"][key], &what);
        }
    }
}

/// Figures of another implementation, which asks the slot code itself what it decodes: group by
/// group, not by how many have answered.
#[test]
fn schemes_over_rounds_close_by_what_their_slot_code_decodes() {
    let rows: Vec<Vec<f64>> = include_str!("../data/simulator/ge16.csv")
        .lines()
        .map(|line| line.split(',').map(|cell| cell.trim().parse().unwrap()).collect())
        .collect();
    let growth = Some(Growth::Proportional { base: 1.0 / 16.0 });
    for (text, close_rule, expected) in [
        ("sr-sgc:B=1,W=2,lambda=4", Close::Incremental, 3.341),
        ("sr-sgc:B=1,W=2,lambda=4", Close::Decodable, 3.379),
        ("m-sgc:B=1,W=2,lambda=3", Close::Incremental, 2.918),
        ("m-sgc:B=1,W=2,lambda=3", Close::Decodable, 2.822),
    ] {
        let rules = Rules { close: close_rule, mu: 0.05, growth, dispatch: 0.0 };
        let mut scheme = scheme(text, 16, 100, Accept::Lookahead);
        let (found, _) = run(&mut *scheme, 100, &rows, &rules);
        let each = found.total_time / 100.0;
        assert!((each - expected).abs() < 6e-4, "{text} {close_rule:?}: {each}, not {expected}");
        assert_eq!(found.jobs_decoded, 100);
    }
}

/// Each worker is charged what it computes: four of one sixth of the batch, one of a third.
#[test]
fn unequal_loads_take_their_own_times() {
    let rows = vec![vec![1.0, 1.0, 1.0, 1.0, 0.5]; 40];
    let growth = Some(Growth::Proportional { base: 0.2 });
    let rules = Rules { close: Close::Decodable, mu: 1.0, growth, dispatch: 0.0 };
    for close_rule in [Close::Decodable, Close::All, Close::Incremental] {
        let rules = Rules { close: close_rule, ..rules };
        let text = "interval:speeds=1x4+2,s=0,units=60";
        let mut scheme = scheme(text, 5, 40, Accept::Lookahead);
        let (found, _) = run(&mut *scheme, 40, &rows, &rules);
        assert!((found.total_time / 40.0 - 5.0 / 6.0).abs() < 1e-9, "{found:?}");
    }
}

#[test]
fn golden_runs_of_the_feedback_schemes() {
    let golden: Value =
        serde_json::from_str(include_str!("../data/simulator/feedback.json")).unwrap();
    for expected in golden.as_array().unwrap() {
        let text = expected["scheme"].as_str().unwrap();
        let (workers, jobs) =
            (expected["workers"].as_u64().unwrap() as usize, expected["jobs"].as_u64().unwrap());
        let base = expected["base_load"].as_f64().unwrap();
        let growth = match expected["slope"].as_f64() {
            Some(slope) => Some(Growth::Additive { base, slope }),
            None => Some(Growth::Proportional { base }),
        };
        let rules = Rules { close: Close::Decodable, mu: 1.0, growth, dispatch: 0.0 };
        let mut scheme = scheme(text, workers, jobs, Accept::Lookahead);
        let (found, _) = run(&mut *scheme, jobs, &delays(), &rules);
        let what = format!("{text} {growth:?}");
        close(found.total_time, &expected["total_time"], &what);
        close(found.work, &expected["work"], &what);
        for (key, value) in [("job_finish_time", &found.job_finish_time)] {
            if !expected[key].is_null() {
                list_close(value, &expected[key], &what);
            }
        }
        if let Some(deferred) = expected.get("deferred") {
            close(found.unfinished_fraction, deferred, &what);
        }
        assert_eq!(found.jobs_decoded as u64, jobs);
    }
}

/// A few scalars per job and unit, as gradients.
fn gradient(job: Job, unit: u32, e: usize) -> f64 {
    f64::from((job.0 as u32 * 31 + unit * 17 + e as u32 * 101 + unit * unit * 7) % 97) / 48.0 - 1.0
}

/// What a worker sends for a task.
fn message(scheme: &dyn Scheme, worker: Worker, task: Task, e: usize) -> f64 {
    let of = |units: codedgrad::ids::Units| {
        (units.start..units.end).map(|unit| gradient(task.job, unit, e)).sum::<f64>()
    };
    scheme.parts(worker, task).iter().map(|part| part.coefficient * of(part.units)).sum()
}

/// Drives a scheme with answers in random order and rounds closed at random as soon as the scheme
/// lets them, and checks every decoded gradient. Gives the decoded jobs with the round each was
/// ready in.
fn decodes_exactly(
    mut scheme: Box<dyn Scheme>,
    jobs: u64,
    choices: &mut dyn FnMut(usize) -> usize,
) -> Vec<(u64, u64)> {
    let facts = scheme.facts().clone();
    let mut sent: std::collections::HashMap<(Worker, Task), [f64; 3]> =
        std::collections::HashMap::new();
    let mut ready = Vec::new();
    for round in 0..jobs + facts.delay as u64 {
        let mut hands: Vec<Vec<Task>> = vec![Vec::new(); facts.workers];
        let mut missing = WorkerSet::empty(facts.workers);
        scheme.on(RoundEvent::Opened { dead: &missing });
        Worker::all(facts.workers)
            .for_each(|worker| scheme.assign(worker, &mut hands[worker.index()]));
        let mut out: Vec<Worker> =
            Worker::all(facts.workers).filter(|worker| !hands[worker.index()].is_empty()).collect();
        out.iter().for_each(|worker| {
            missing.insert(*worker);
        });
        let mut reluctance = choices(3);
        while !out.is_empty() {
            let late =
                if facts.partial { WorkerSet::empty(facts.workers) } else { missing.clone() };
            if scheme.admits(&late) {
                if reluctance == 0 {
                    break;
                }
                reluctance -= 1;
            }
            let at = choices(out.len());
            let worker = out[at];
            let take = if facts.partial { 1 } else { hands[worker.index()].len() };
            for task in hands[worker.index()].drain(..take) {
                sent.insert((worker, task), [0, 1, 2].map(|e| message(&*scheme, worker, task, e)));
                scheme.returned(worker, task);
            }
            if facts.partial && hands[worker.index()].is_empty() {
                scheme.assign(worker, &mut hands[worker.index()]);
            }
            if hands[worker.index()].is_empty() {
                out.swap_remove(at);
                missing.remove(worker);
            }
        }
        let in_time = |worker| (!missing.contains(worker)).then_some(0.5);
        let late: Vec<_> = Worker::all(facts.workers).map(in_time).collect();
        let mut decoded = Vec::new();
        scheme.close(&missing, &late, &mut decoded);
        for job in decoded {
            let mut results: Vec<WeightedResult> = Vec::new();
            let report = scheme.settle(job, &mut results);
            assert!(report.decodable && report.residual < 1e-9, "{report:?}");
            let terms: Vec<(f64, [f64; 3])> = results
                .iter()
                .map(|result| (result.weight, sent[&(result.worker, result.task)]))
                .collect();
            for e in 0..3 {
                let found: f64 = terms.iter().map(|(weight, message)| weight * message[e]).sum();
                let expected: f64 = (0..facts.units).map(|unit| gradient(job, unit, e)).sum();
                assert!(
                    (found - expected).abs() < 1e-8 * (1.0 + report.amplification),
                    "{job}: {found} instead of {expected}"
                );
            }
            ready.push((job.0, round));
        }
    }
    ready
}

/// Units of the task of a result.
fn units_of(scheme: &dyn Scheme, result: &WeightedResult) -> u32 {
    scheme.facts().units_of(scheme.parts(result.worker, result.task))
}

/// A scheme that is told of every task by itself.
struct TaskByTask(Box<dyn Scheme>);

impl Scheme for TaskByTask {
    fn facts(&self) -> &SchemeFacts {
        self.0.facts()
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        self.0.assign(worker, out);
    }

    fn parts(&self, worker: Worker, task: Task) -> &[Part] {
        self.0.parts(worker, task)
    }

    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse {
        self.0.returned(worker, task)
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        self.0.on(event)
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        self.0.admits(missing)
    }

    fn quality(&mut self) -> Report {
        self.0.quality()
    }

    fn outlook(&self, gone: &WorkerSet) -> Outlook {
        self.0.outlook(gone)
    }

    fn close(&mut self, missing: &WorkerSet, late: &[Option<f64>], decoded: &mut Vec<Job>) {
        self.0.close(missing, late, decoded);
    }

    fn settle(&mut self, job: Job, out: &mut Vec<WeightedResult>) -> Report {
        self.0.settle(job, out)
    }

    fn restart(&mut self, jobs: std::ops::Range<Job>) {
        self.0.restart(jobs);
    }
}

const SCHEMES: [&str; 16] = [
    "m-sgc:B=1,W=2,lambda=2",
    "m-sgc:B=2,W=3,lambda=1,cyclic",
    "m-sgc:B=2,W=4,lambda=3",
    "m-sgc:B=1,W=3,lambda=6",
    "m-sgc:B=2,W=3,lambda=2,rep",
    "sr-sgc:B=1,W=2,lambda=3",
    "sr-sgc:B=2,W=3,lambda=4,cyclic",
    "sr-sgc:B=2,W=5,lambda=5",
    "sr-sgc:B=1,W=2,s=1,rep",
    "queue:m=1",
    "queue:m=3",
    "ring:reach=3",
    "defer:T=1,cap=2,cut=3,copies=1",
    "defer:T=2,cap=3,cut=2,copies=2",
    "defer:T=1,cap=5,cut=1,copies=6",
    "groups:s=1",
];

proptest! {
    /// Every job of every scheme is decoded exactly and in time, whoever is late and in whatever
    /// order answers come; also when the batch has another number of units than the scheme would
    /// cut it into.
    #[test]
    fn every_job_is_decoded_exactly_and_in_time(
        text in prop::sample::select(SCHEMES.to_vec()),
        seed: u64,
        more in 0u32..3,
    ) {
        use rand_chacha::{
            ChaCha8Rng,
            rand_core::{Rng, SeedableRng},
        };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let natural = scheme(text, 6, 1, Accept::Lookahead).facts().units;
        let horizon = Horizon {
            workers: 6,
            units: Some(natural * (more + 1)),
            jobs: Job(0)..Job(9),
            accept: Accept::Lookahead,
        };
        let scheme = text.parse::<SchemeSpec>().unwrap().over(horizon).unwrap();
        let delay = scheme.facts().delay as u64;
        let ready =
            decodes_exactly(scheme, 9, &mut |below| random.next_u32() as usize % below.max(1));
        let mut jobs: Vec<u64> = ready.iter().map(|ready| ready.0).collect();
        jobs.sort_unstable();
        prop_assert_eq!(jobs, (0..9).collect::<Vec<_>>(), "each once");
        prop_assert!(
            ready.iter().all(|(job, round)| *round >= *job && *round <= job + delay),
            "{:?}",
            ready
        );
    }

    /// Deferred shares: whatever the delays, every job is complete after its last round.
    #[test]
    fn every_deferred_job_completes(
        workers in 2usize..9,
        cap in 0usize..8,
        cut in 1usize..5,
        copies in 1usize..4,
        delay in 1usize..4,
        rows in prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec![0.0, 1.0, 1.0, 1.5, 7.0, 1e9]), 9),
            1..12,
        ),
    ) {
        let (delay, cap) = (delay.min(workers), cap % workers);
        let copies = copies.min(workers / delay);
        let text = format!("defer:T={delay},cap={cap},cut={cut},copies={copies}");
        let mut scheme = scheme(&text, workers, 10, Accept::Lookahead);
        let rules = Rules {
            close: Close::Decodable,
            mu: 1.0,
            growth: Some(Growth::Proportional { base: 1.0 / workers as f64 }),
            dispatch: 0.0,
        };
        let rows: Vec<Vec<f64>> = rows.into_iter().map(|row| row[..workers].to_vec()).collect();
        let (found, _) = run(&mut *scheme, 10, &rows, &rules);
        prop_assert_eq!(found.jobs_decoded, 10);
        prop_assert!(found.work >= 1.0 - 1e-12);
        prop_assert!(found.job_finish_time.iter().all(|finish| finish.is_finite()));
    }

    /// Runs of tasks and a close that is worked out at once come to the same as one task after the
    /// other, to the bit.
    #[test]
    fn runs_come_to_the_same_as_their_tasks(
        workers in 1usize..9,
        (cap, cut, copies, delay) in (0usize..8, 1usize..6, 1usize..4, 1usize..4),
        more in prop::option::of(0u32..7),
        growth in 0usize..3,
        dispatch in prop::sample::select(vec![0.0, 0.01]),
        rows in prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec![0.0, 1.0, 1.0, 1.5, 1.7, 7.0, 1e9]), 9),
            1..12,
        ),
    ) {
        let (delay, base) = (delay.min(workers), 1.0 / workers as f64);
        let text = format!(
            "defer:T={delay},cap={},cut={cut},copies={}",
            cap % workers,
            copies.min(workers / delay)
        );
        let growth = [
            None,
            Some(Growth::Proportional { base }),
            Some(Growth::Additive { base, slope: 2.2 }),
        ][growth];
        let rules = Rules { close: Close::Decodable, mu: 1.0, growth, dispatch };
        let least = if growth.is_some() { 2.2 * base } else { 0.0 };
        let rows: Vec<Vec<f64>> = rows
            .iter()
            .map(|row| row[..workers].iter().map(|delay| least + delay).collect())
            .collect();
        let units = more.map(|more| (workers * cut) as u32 + more);
        let horizon = Horizon { workers, units, jobs: Job(0)..Job(10), accept: Accept::Lookahead };
        let scheme = || text.parse::<SchemeSpec>().unwrap().over(horizon.clone()).unwrap();
        prop_assert_eq!(
            run(&mut *scheme(), 10, &rows, &rules),
            run(&mut TaskByTask(scheme()), 10, &rows, &rules)
        );
    }

    /// A worker that dies takes its results with it, also those that had been won: its items are
    /// open again, and the gradient is put together from what the others hold.
    #[test]
    fn lost_results_are_computed_again(
        text in
            prop::sample::select(vec!["queue:m=1", "queue:m=3", "ring:reach=6", "ring:reach=3"]),
        seed: u64,
    ) {
        use rand_chacha::{
            ChaCha8Rng,
            rand_core::{Rng, SeedableRng},
        };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut choose = |below: usize| random.next_u32() as usize % below.max(1);
        let mut scheme = scheme(text, 6, 1, Accept::Lookahead);
        let (mut alive, mut held) = (WorkerSet::full(6), std::collections::HashMap::new());
        let (dies, mut left) = (Worker(choose(6) as u32), choose(12));
        let mut at: Vec<Vec<Task>> = vec![Vec::new(); 6];
        for _ in 0..200 {
            if left == 0 && alive.remove(dies) {
                let mut reopened = Vec::new();
                let from = Some(Job(0));
                scheme.on(RoundEvent::Lost { worker: dies, from, reopened: &mut reopened });
                at[dies.index()].clear();
                let won: Vec<Task> = held
                    .iter()
                    .filter(|(_, holder)| **holder == dies)
                    .map(|(task, _)| *task)
                    .collect();
                prop_assert_eq!(reopened.len(), won.len());
                held.retain(|_, holder| *holder != dies);
            }
            left = left.saturating_sub(1);
            if !alive.contains(dies) && scheme.admits(&WorkerSet::empty(6)) {
                break;
            }
            for worker in alive.iter() {
                scheme.assign(worker, &mut at[worker.index()]);
            }
            let busy: Vec<Worker> =
                alive.iter().filter(|worker| !at[worker.index()].is_empty()).collect();
            if let Some(&worker) = busy.get(choose(busy.len())) {
                let task = at[worker.index()].remove(0);
                if scheme.returned(worker, task) != ResultUse::Unwanted {
                    held.insert(task, worker);
                }
            }
        }
        let mut decoded = Vec::new();
        scheme.close(&WorkerSet::of(6, [dies]), &[None; 6], &mut decoded);
        prop_assert_eq!(&decoded, &[Job(0)], "{} is not complete", text);
        let mut results: Vec<WeightedResult> = Vec::new();
        scheme.settle(Job(0), &mut results);
        let is_held = |result: &WeightedResult| held.get(&result.task) == Some(&result.worker);
        prop_assert!(results.iter().all(|result| is_held(result) && result.weight == 1.0));
        let units: u32 = results.iter().map(|result| units_of(&*scheme, result)).sum();
        prop_assert_eq!(units, scheme.facts().units, "every unit once");
    }

    /// The same for deferred shares, whose results of earlier rounds are lost as well: the round
    /// goes on without the worker, and every job is put together from what the others hold, each
    /// unit once.
    #[test]
    fn lost_shares_are_deferred(
        text in prop::sample::select(vec![
            "defer:cap=1,cut=2",
            "defer:T=2,cap=2,cut=3,copies=2",
            "defer:cap=0",
            "defer:T=1,cap=3,copies=3",
        ]),
        seed: u64,
    ) {
        use rand_chacha::{
            ChaCha8Rng,
            rand_core::{Rng, SeedableRng},
        };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut choose = |below: usize| random.next_u32() as usize % below.max(1);
        let (workers, jobs) = (6, 5u64);
        let mut scheme = scheme(text, workers, jobs, Accept::Lookahead);
        let delay = scheme.facts().delay as u64;
        let (dies, mut left) = (Worker(choose(workers) as u32), choose(80));
        let mut alive = WorkerSet::full(workers);
        let mut held: std::collections::HashMap<Task, Worker> = std::collections::HashMap::new();
        let mut units: std::collections::HashMap<Task, Vec<codedgrad::ids::Units>> =
            std::collections::HashMap::new();
        let mut done = Vec::new();
        for _ in 0..jobs + delay + 2 {
            let mut at: Vec<Vec<Task>> = vec![Vec::new(); workers];
            for step in 0.. {
                prop_assert!(step < 2000, "{} hangs", text);
                if left == 0 && alive.remove(dies) {
                    let reopened = &mut Vec::new();
                    scheme.on(RoundEvent::Lost { worker: dies, from: None, reopened });
                    at[dies.index()].clear();
                    held.retain(|_, holder| *holder != dies);
                }
                left = left.saturating_sub(1);
                if step == 0 {
                    scheme.on(RoundEvent::Opened { dead: &alive.complement() });
                }
                for worker in
                    alive.iter().filter(|worker| at[worker.index()].is_empty()).collect::<Vec<_>>()
                {
                    scheme.assign(worker, &mut at[worker.index()]);
                }
                if !alive.contains(dies) {
                    scheme.on(RoundEvent::Gone(dies));
                }
                if scheme.admits(&WorkerSet::empty(workers)) && choose(3) == 0 {
                    break;
                }
                let busy: Vec<Worker> =
                    alive.iter().filter(|worker| !at[worker.index()].is_empty()).collect();
                let Some(&worker) = busy.get(choose(busy.len())) else {
                    if scheme.admits(&WorkerSet::empty(workers)) { break } else { continue }
                };
                let task = at[worker.index()].remove(0);
                let parts = scheme.parts(worker, task).iter().map(|part| part.units).collect();
                if scheme.returned(worker, task) != ResultUse::Unwanted {
                    held.insert(task, worker);
                    units.insert(task, parts);
                }
            }
            let mut decoded = Vec::new();
            scheme.close(&WorkerSet::empty(workers), &vec![None; workers], &mut decoded);
            for job in decoded {
                let mut results: Vec<WeightedResult> = Vec::new();
                scheme.settle(job, &mut results);
                prop_assert!(
                    results.iter().all(|result| held.get(&result.task) == Some(&result.worker)),
                    "{}",
                    text
                );
                let mut seen = vec![0; scheme.facts().units as usize];
                results.iter().flat_map(|result| &units[&result.task]).for_each(|part| {
                    (part.start..part.end).for_each(|unit| seen[unit as usize] += 1);
                });
                prop_assert!(seen.iter().all(|times| *times == 1), "{} {}: {:?}", text, job, seen);
                done.push(job.0);
            }
        }
        done.sort_unstable();
        // A loss right after a close opens a job again that was complete.
        done.dedup();
        prop_assert_eq!(done, (0..jobs).collect::<Vec<_>>());
    }

    /// Load identity 4.3 and lower bound 5.1 of the sequential scheme, over all parameters.
    #[test]
    fn m_sgc_load_identity_and_bound(
        workers in 1usize..40,
        burst in 1usize..6,
        more in 1usize..8,
        distinct_of: usize,
    ) {
        let (window, distinct) = (burst + more, distinct_of % (workers + 1));
        let n = workers as f64;
        let b = burst as f64;
        let w = window as f64;
        let l = distinct as f64;
        let parameters = MSgcParameters { burst, window, distinct, slots: SlotKind::MinLoad };
        let horizon = Horizon { workers, units: None, jobs: Job(0)..Job(1), accept: Accept::Model };
        let load = MSgc::new(parameters, horizon).unwrap().facts().load;
        let formula = if distinct < workers {
            (l + 1.0) * (w - 1.0 + b) / (n * (b + (w - 1.0) * (l + 1.0)))
        } else {
            (w - 1.0 + b) / (n * (w - 1.0))
        };
        prop_assert!((load - formula).abs() < 1e-12);
        prop_assert!(
            load >= (w - 1.0 + b) / (n * (w - 1.0) + b * (n - l)) - 1e-12
                && load <= 2.0 / n + 1e-12
        );
        if distinct + 1 >= workers {
            prop_assert!(
                (load - (w - 1.0 + b) / (n * (w - 1.0) + b * (n - l))).abs() < 1e-12,
                "met with equality"
            );
        }
    }
}

/// The paper's order under its closing rule, and ours under the best one for each, as in
/// docs/lab/results.md.
#[test]
fn who_wins_on_serverless_workers() {
    let total = |text: &str, jobs: u64, close: Close, mu: f64, slope: f64| {
        let mut scheme = scheme(text, 256, jobs, Accept::Lookahead);
        let mut stream = Preset::Serverless.stream(256, 1);
        let mut rows = || Ok::<_, Infallible>(stream.next().unwrap());
        let rules =
            Rules { close, mu, growth: Some(Growth::Additive { base: 0.0, slope }), dispatch: 0.0 };
        let outcome = simulate(&mut *scheme, jobs, &mut rows, &rules, &mut |_| ()).unwrap();
        (outcome.total_time, outcome.work)
    };
    let authors = |text| total(text, 480, Close::All, 1.0, 2.2).0;
    let order = ["m-sgc:B=1,W=2,lambda=27", "sr-sgc:B=2,W=3,lambda=23", "cyclic:s=15", "uncoded"]
        .map(authors);
    assert!(order.is_sorted(), "{order:?}");
    let (groups, _) = total("groups:l=42", 80, Close::Decodable, 1.0, 2.2);
    let (sequential, _) = total("m-sgc:B=2,W=3,lambda=64", 80, Close::Incremental, 0.5, 2.2);
    let (deferred, work) =
        total("defer:T=2,cap=51,cut=16,copies=2", 80, Close::Decodable, 1.0, 2.2);
    assert!(
        work <= 1.25 && groups < sequential && deferred < sequential && deferred < 1.15 * groups,
        "{groups} {sequential} {deferred} {work}"
    );
    let (groups, _) = total("groups:l=85", 80, Close::Decodable, 1.0, 20.0);
    let (deferred, work) =
        total("defer:T=2,cap=51,cut=16,copies=2", 80, Close::Decodable, 1.0, 20.0);
    assert!(work <= 1.25 && deferred < groups, "{groups} {deferred} {work}");
}

/// Load table of the notes on sequential coding (section 5.4) and the authors' parameters.
#[test]
fn loads_of_the_paper() {
    for (text, workers, load, delay) in [
        ("m-sgc:B=1,W=2,lambda=27", 256, 0.007543, 1),
        ("m-sgc:B=2,W=3,lambda=23", 256, 0.0075, 3),
        ("m-sgc:B=1,W=2,lambda=256", 256, 0.007812, 1),
        ("m-sgc:B=3,W=20,lambda=4", 20, 0.0561, 21),
        ("sr-sgc:B=2,W=3,lambda=23", 256, 0.050781, 2),
        ("sr-sgc:B=1,W=16,lambda=27", 256, 0.0117, 1),
        ("groups:s=15", 256, 0.0625, 0),
    ] {
        let facts = scheme(text, workers, 1, Accept::Model).facts().clone();
        assert!((facts.load - load).abs() < 6e-5 && facts.delay == delay, "{text}: {facts:?}");
    }
}

#[test]
fn parameters_outside_the_conditions_name_the_nearest_legal_ones() {
    for (text, problem) in [
        ("m-sgc:B=2,W=2,lambda=1", "B must be from 1 to W-1; for this B take W=3"),
        ("m-sgc:B=1,W=2,lambda=7", "lambda must be at most 6"),
        (
            "m-sgc:B=1,W=2,lambda=3,rep",
            "clusters of 4 do not divide 6 workers; the nearest that do have 3 members",
        ),
        ("m-sgc:B=1,W=2,lambda=6,rep", "lambda must be at most 5"),
        ("m-sgc:B=1,W=2", "lambda= is missing"),
        ("m-sgc:B=1,W=2,lambda=1,rep,cyclic", "either rep"),
        ("sr-sgc:B=2,W=4,lambda=2", "B must be 1 or more and divide W-1; for this B take W=3"),
        ("sr-sgc:B=1,W=1,lambda=2", "take W=2"),
        ("sr-sgc:B=1,W=2,lambda=9", "lambda must be at most 6"),
        ("sr-sgc:B=1,W=2", "lambda= is needed"),
        ("sr-sgc:B=1,W=2,s=3,rep", "clusters of 4 do not divide 6"),
        ("queue:m=0", "m must be 1 or more"),
        ("ring:reach=7", "reach must be from 1 to 6"),
        ("defer:T=3,cap=1,copies=3", "take T=2 or copies=2"),
        ("defer:cap=6", "cap must be at most 5"),
        ("defer:T=0,cap=1", "each must be 1 or more"),
        ("defer:T=1", "cap= is missing"),
        ("defer:T=4294967296,cap=1,copies=4294967296", "is more than 6 workers"),
        ("defer:cap=1,cut=2147483649", "too many"),
        ("queue:m=9223372036854775809", "too many"),
        ("sr-sgc:B=1,W=1000000000000000000,lambda=4", "both must be at most 100000"),
        ("sr-sgc:B=18446744073709551615,W=2,lambda=1", "both must be at most 100000"),
        ("m-sgc:B=1,W=1000000000000,lambda=4", "both must be at most 100000"),
        ("m-sgc:B=1,W=100000,lambda=6000", "lambda must be at most 6"),
    ] {
        let horizon =
            Horizon { workers: 6, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
        let error = text
            .parse::<SchemeSpec>()
            .and_then(|spec| spec.over(horizon).map(|_| ()))
            .unwrap_err()
            .to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn delays_that_the_load_model_would_make_negative_are_named() {
    let mut scheme = scheme("groups:s=1", 4, 3, Accept::Lookahead);
    let rules = Rules {
        close: Close::Decodable,
        mu: 1.0,
        growth: Some(Growth::Additive { base: 0.25, slope: 4.0 }),
        dispatch: 0.0,
    };
    let mut rows = [vec![2.0; 4], vec![2.0, 2.0, 0.5, 2.0]].into_iter();
    let error = simulate(
        &mut *scheme,
        3,
        &mut || Ok::<_, Infallible>(rows.next().unwrap()),
        &rules,
        &mut |_| (),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("round 2, worker 2: a delay of 0.5 s is less than base load x slope = 1 s"),
        "{error}"
    );
}
