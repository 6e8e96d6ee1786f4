//! Workers that leave a run, or are lost by an error: what they say last, and what follows.

use codedgrad::ids::{Units, Worker};
use codedgrad::schedulers::EngineError;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, AggregatorError, Builder, Coordinator, Event, Flow, Incident, Observer, Outcome,
    OwnedEvent, RunError, StepRecord,
};
use codedgrad::transport::ExitReason;
use codedgrad::transport::tcp::security::{Security, Token};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{sleep, spawn};
use std::time::Duration;

const STEPS: u64 = 6;
/// Nothing here takes long; a run that waits for a worker's return would need more.
const LONG: Duration = Duration::from_secs(120);

/// What happened, step by step.
#[derive(Default)]
struct Seen {
    refused: Vec<Units>,
    rounds: usize,
    gradients: Vec<f32>,
    events: Vec<String>,
}

impl Observer for Seen {
    fn step(
        &mut self,
        record: &StepRecord,
        decoded: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.refused.extend(&record.refused);
        self.rounds += record.rounds.len();
        self.gradients.extend(decoded.and_then(|decoded| decoded.gradient.first().copied()));
        Ok(Flow::Continue)
    }

    fn event(&mut self, happened: &Incident) {
        self.events.push(happened.to_string());
    }
}

impl Seen {
    fn has(&self, text: &str) -> bool {
        self.events.iter().any(|event| event.contains(text))
    }
}

/// What a worker does with a task, and with a step that it is to apply.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Compute,
    Fail,
    Drop,
    Panic,
    Leave,
    /// Say that it leaves, and go on.
    Notice,
    /// Compute it once the other worker has ended.
    Last,
}

/// The worker's part; gives back why the run was over, if it was there then.
fn work(
    mut worker: Aggregator,
    does: impl Fn(u64, &str) -> Does,
    other_ended: &AtomicBool,
) -> Option<String> {
    let (closer, mut steps) = (worker.closer(), worker.next_step().0);
    loop {
        match worker.next_event() {
            Ok(Some(Event::Compute(mut task))) => match does(task.step(), "compute") {
                does @ (Does::Compute | Does::Notice | Does::Last) => {
                    if does == Does::Notice {
                        closer.leave(LONG);
                    }
                    while does == Does::Last && !other_ended.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(1));
                    }
                    while let Some(part) = task.next_part() {
                        let value = part.samples.start as f32 + 10.0 * task.step() as f32;
                        task.message().fill(value);
                    }
                    task.submit(vec![]).unwrap();
                }
                Does::Fail => {
                    task.next_part();
                    task.fail("OSError: no such file\nsecond line");
                }
                Does::Drop => {
                    task.next_part();
                }
                Does::Panic => {
                    task.next_part();
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                Does::Leave => closer.part(ExitReason::for_good("it has enough")),
            },
            Ok(Some(Event::Apply(step))) => {
                if does(step.index, "apply") == Does::Leave {
                    closer.part(ExitReason::for_good("it has enough"));
                }
                steps = step.index + 1;
            }
            Ok(Some(Event::Skip(_))) => {}
            Ok(Some(Event::Provide(request))) => request.reply(vec![vec![steps as f32]]),
            Ok(Some(Event::Resync(state))) => steps = state.vectors[0][0] as u64,
            Ok(None) => break,
            Err(AggregatorError::Closed) => return None,
            Err(error) => panic!("{error}"),
        }
    }
    worker.why_over().map(str::to_owned)
}

/// A worker that is started again as often as it is lost, but not when it has left: what it does
/// depends on its number and its life, from 0.
type Plan = dyn Fn(u32, usize, u64, &str) -> Does + Send + Sync;

fn run_of_two(scheme: &str, of: impl FnOnce(Builder) -> Builder, plan: &Arc<Plan>) -> Ran {
    let security = Security::Plain { token: Token::fresh().unwrap() };
    let run = Coordinator::builder(scheme).workers(2).units(2).steps(STEPS).length(1);
    let run = of(run.return_within(LONG).max_wait(LONG).keeps(true));
    let served = run.serve("127.0.0.1:0", security.clone()).unwrap();
    let address = served.address().to_string();
    let coordinator = spawn(move || {
        let mut seen = Seen::default();
        let outcome = served.run(&mut seen);
        (outcome, seen)
    });
    let ended: Arc<[AtomicBool; 2]> = Arc::default();
    let workers = [0, 1].map(|number| {
        let (plan, address, security) = (Arc::clone(plan), address.clone(), security.clone());
        let ended = Arc::clone(&ended);
        let live = move |ended: &[AtomicBool; 2]| {
            for life in 0.. {
                let joining = Aggregator::join(address.clone()).security(security.clone());
                let joining = joining.worker(number).patience(Duration::from_millis(200));
                let Ok(worker) = joining.connect() else { return None };
                let plan = Arc::clone(&plan);
                let does = move |step, what: &str| plan(number, life, step, what);
                let left = AtomicBool::new(false);
                let told = |step, what: &str| {
                    let does = does(step, what);
                    left.fetch_or(does == Does::Leave, Ordering::Relaxed);
                    does
                };
                let other = &ended[1 - number as usize];
                let why = catch_unwind(AssertUnwindSafe(|| work(worker, told, other)));
                if let Ok(Some(why)) = why {
                    return Some(why);
                }
                if left.load(Ordering::Relaxed) {
                    return None;
                }
            }
            None
        };
        spawn(move || {
            let why = live(&ended);
            ended[number as usize].store(true, Ordering::Relaxed);
            why
        })
    });
    let (outcome, seen) = coordinator.join().unwrap();
    Ran { outcome, seen, why: workers.map(|worker| worker.join().unwrap()) }
}

/// What came of a run.
struct Ran {
    outcome: Result<Outcome, RunError>,
    seen: Seen,
    /// What its workers were told of its end.
    why: [Option<String>; 2],
}

fn right() -> Vec<f32> {
    (0..STEPS).map(|step| 20.0 * step as f32 + 1.0).collect()
}

/// Worker 1 does something else once, with its task of step 3.
fn once(does: Does) -> Arc<Plan> {
    Arc::new(move |worker, life, step, what| {
        let then = (worker, life, step, what) == (1, 0, 3, "compute");
        if then { does } else { Does::Compute }
    })
}

/// Worker 1 does something else with its task of step 3, or once it applies that, and then ends.
/// Both begin that task, and worker 0 goes on alone: were it ahead, it could end the run first.
fn last_act(does: Does, at: &'static str) -> Arc<Plan> {
    let both_begin = Barrier::new(2);
    Arc::new(move |worker, _, step, what| {
        if (step, what) == (3, "compute") {
            both_begin.wait();
        }
        match worker {
            0 if step > 3 && what == "compute" => Does::Last,
            1 if (step, what) == (3, at) => does,
            _ => Does::Compute,
        }
    })
}

/// A worker that leaves in time takes nothing along: its task counts, and no round begins again.
#[test]
fn who_leaves_with_notice_is_missed_by_nobody() {
    let fewer: fn(Builder) -> Builder = |run| run.min_workers(1);
    let all: fn(Builder) -> Builder = |run| run;
    for (scheme, of) in [("uncoded", fewer), ("groups:s=1", fewer), ("groups:s=1", all)] {
        let Ran { outcome, seen, why } = run_of_two(scheme, of, &last_act(Does::Notice, "compute"));
        assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}: {:?}", seen.events);
        assert_eq!((seen.refused.len(), &seen.gradients), (0, &right()), "{scheme}");
        assert_eq!(seen.rounds as u64, STEPS, "{scheme}: no round is begun again");
        assert_eq!(why[0].as_deref(), Some("all steps are decided"));
        assert_eq!(
            why[1].as_deref(),
            Some("this worker left the run after giving notice"),
            "{scheme}"
        );
        assert!(seen.has("worker 1: is about to leave, within 120 s"), "{:?}", seen.events);
        assert!(seen.has("worker 1: left the run after giving notice") && !seen.has("lost"));
    }
}

/// Where no worker can take over its next task the run is over at once, not after a wait.
#[test]
fn who_leaves_with_notice_and_is_needed_ends_the_run() {
    let Ran { outcome, seen, .. } = run_of_two("uncoded", |run| run, &once(Does::Notice));
    let error = outcome.unwrap_err();
    assert!(matches!(error, RunError::Engine(EngineError::Left { .. })), "{error}");
    assert_eq!(seen.gradients, right()[..4], "its last task counted");
}

#[test]
fn an_error_in_a_unit_costs_no_step() {
    for (does, said) in [
        (Does::Fail, "unit 1 of batch 3 (sample 1): OSError: no such file"),
        (Does::Drop, "unit 1 of batch 3 (sample 1): it dropped its task before that was done"),
        (Does::Panic, "unit 1 of batch 3 (sample 1): its thread panicked"),
    ] {
        for scheme in ["uncoded", "groups:s=1"] {
            let Ran { outcome, seen, why } = run_of_two(scheme, |run| run, &once(does));
            assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}: {:?}", seen.events);
            assert_eq!((seen.refused.len(), &seen.gradients), (0, &right()), "{scheme}");
            assert_eq!(why[0].as_deref(), Some("all steps are decided"));
            // Where the other one computes it too, the run may want it no more.
            let told = seen.has(&format!("worker 1: lost: {said}"));
            assert!(told || scheme != "uncoded", "{:?}", seen.events);
        }
    }
}

#[test]
fn a_unit_that_fails_time_after_time_ends_the_run() {
    for (tries, told) in [(1, 1), (3, 3)] {
        let always: Arc<Plan> = Arc::new(|worker, _, step, what| {
            let then = (worker, step, what) == (1, 3, "compute");
            if then { Does::Fail } else { Does::Compute }
        });
        let Ran { outcome, seen, why } =
            run_of_two("uncoded", |run| run.unit_tries(tries), &always);
        let error = outcome.unwrap_err();
        assert!(matches!(error, RunError::UnitFailed { tries: found, .. } if found == told));
        let said = format!(
            "step 3: {told} times a worker was lost while it computed unit 1 of batch 3 \
             (sample 1); worker 1, the last one, said: OSError: no such file"
        );
        assert_eq!(error.to_string(), said);
        assert_eq!(why[0].as_deref(), Some(&said[..]), "and so are workers told");
        assert_eq!(seen.gradients, right()[..3]);
    }
}

#[test]
fn who_leaves_is_not_waited_for() {
    for what in ["compute", "apply"] {
        let leaves = |scheme: &str| run_of_two(scheme, |run| run, &last_act(Does::Leave, what));
        let Ran { outcome, seen, why } = leaves("groups:s=1");
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        assert_eq!((seen.gradients.clone(), &why[1]), (right(), &None));
        assert!(seen.has("worker 1: has left the run: it has enough"), "{:?}", seen.events);
        let Ran { outcome, why, .. } = leaves("uncoded");
        let error = outcome.unwrap_err();
        let left = |error: &RunError| match error {
            RunError::Engine(EngineError::Left { left, .. }) => left.iter().collect(),
            _ => Vec::new(),
        };
        assert_eq!(left(&error), [Worker(1)], "{error}");
        assert!(
            why[0].as_ref().is_some_and(|why| why.contains("workers {1} have left")),
            "{why:?}"
        );
    }
}

#[test]
fn all_who_leave_after_one_step_end_the_run() {
    let plan: Arc<Plan> =
        Arc::new(
            |_, _, step, what| {
                if (step, what) == (3, "apply") { Does::Leave } else { Does::Compute }
            },
        );
    for scheme in ["uncoded", "groups:s=1", "queue:m=1"] {
        let Ran { outcome, seen, .. } = run_of_two(scheme, |run| run, &plan);
        assert_eq!(outcome.unwrap(), Outcome::Left, "{scheme}: {:?}", seen.events);
        assert_eq!(seen.gradients, right()[..4], "{scheme}");
    }
}

#[test]
fn an_abandoned_task_is_left_to_others_for_good() {
    let run = Coordinator::builder("uncoded").workers(2).steps(1).length(1).return_within(LONG);
    let (coordinator, mut workers) = run.max_wait(LONG).local().unwrap();
    let coordinator = spawn(move || coordinator.run(&mut ()));
    let mut leaves = workers.remove(1);
    let Ok(Some(OwnedEvent::Compute(task))) = leaves.next_event_within(LONG) else { panic!() };
    leaves.abandon(task).unwrap();
    assert!(matches!(leaves.next_event(), Err(AggregatorError::Closed)));
    let stays =
        spawn(move || work(workers.remove(0), |_, _| Does::Compute, &AtomicBool::new(true)));
    let error = coordinator.join().unwrap().unwrap_err();
    assert!(matches!(error, RunError::Engine(EngineError::Left { .. })), "{error}");
    assert_eq!(stays.join().unwrap(), Some(error.to_string()));
}
