//! A coordinator that learns from its first worker what is trained.

use codedgrad::ids::Step;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, Coordinator, Event, Flow, JoinError, Observer, OpenPort, Outcome, RunError,
    StepRecord,
};
use codedgrad::transport::RunFacts;
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::wire::InitialReplica;
use std::error::Error;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const STEPS: u64 = 6;

/// What is trained, as a worker tells it.
fn facts(units: u32) -> RunFacts {
    RunFacts { length: Some(2), units: Some(units), steps: Some(STEPS), ..RunFacts::default() }
}

/// Joins, and counts the steps that it applies, from one on.
fn work(
    address: &str,
    security: Security,
    number: u32,
    (facts, from): (RunFacts, u64),
) -> Result<u64, JoinError> {
    let joining = Aggregator::join(address).security(security).worker(number);
    let mut worker = joining.facts(facts).has(InitialReplica::Below(Step(from))).connect()?;
    let mut next = from;
    while let Some(event) = worker.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                while task.next_part().is_some() {
                    task.message().fill(1.0);
                }
                task.submit(vec![]).unwrap();
            }
            Event::Apply(step) => {
                assert_eq!((step.index, step.gradient()), (next, &[8.0, 8.0][..]));
                next += 1;
            }
            Event::Provide(request) => request.reply(vec![vec![next as f32]]),
            Event::Resync(state) => next = state.vectors[0][0] as u64,
            Event::Skip(_) => {}
        }
    }
    Ok(next)
}

fn open(workers: usize) -> (OpenPort, String, Security) {
    let security = Security::Plain { token: Token::fresh().unwrap() };
    let run = Coordinator::builder("uncoded").workers(workers).gather_within(LONG);
    let open = run.open("127.0.0.1:0", security.clone()).unwrap();
    let address = open.address().to_string();
    (open, address, security)
}

/// Keeps where a run began.
#[derive(Default)]
struct Began(Option<Step>);

impl Observer for Began {
    fn begins(&mut self, step: Step) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0 = Some(step);
        Ok(())
    }
}

#[test]
fn a_run_is_what_its_first_worker_says() {
    let (open, address, security) = open(2);
    let silent = {
        let (address, security) = (address.clone(), security.clone());
        let facts = RunFacts { length: Some(2), ..RunFacts::default() };
        thread::spawn(move || work(&address, security, 0, (facts, 0)))
    };
    let first = {
        let (address, security) = (address.clone(), security.clone());
        thread::spawn(move || {
            let error = silent.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("does not say: units, steps"), "{error}");
            work(&address, security, 0, (facts(8), 0))
        })
    };
    let served = open.learn(LONG).unwrap().unwrap();
    assert_eq!((served.facts().units, served.facts().steps), (Some(8), Some(STEPS)));
    let run = thread::spawn(move || served.run(&mut ()));
    assert_eq!(work(&address, security, 1, (facts(8), 0)).unwrap(), STEPS);
    assert_eq!(first.join().unwrap().unwrap(), STEPS);
    assert_eq!(run.join().unwrap().unwrap(), Outcome::Finished);
}

/// What each worker is told, and the coordinator, of a run whose workers say that they have so many
/// units; the first of them comes first.
fn compared(units: &[(u32, u32)]) -> (RunError, Vec<String>) {
    let (open, address, security) = open(units.len());
    let begin = |&(number, units): &(u32, u32)| {
        let (address, security) = (address.clone(), security.clone());
        thread::spawn(move || {
            let joining = Aggregator::join(address).security(security).worker(number);
            let joined = joining.facts(facts(units)).connect();
            // Who was let in is told instead of its first task.
            match joined {
                Ok(mut worker) => worker.next_event().map(drop).unwrap_err().to_string(),
                Err(error) => error.to_string(),
            }
        })
    };
    let first = begin(&units[0]);
    let served = open.learn(LONG).unwrap().unwrap();
    let others: Vec<_> = units[1..].iter().map(begin).collect();
    let error = served.run(&mut ()).unwrap_err();
    let told = std::iter::once(first).chain(others);
    (error, told.map(|worker| worker.join().unwrap()).collect())
}

#[test]
fn who_comes_first_need_not_be_right() {
    for order in [[(2, 8), (0, 4), (1, 4), (3, 4)], [(0, 4), (2, 8), (1, 4), (3, 4)]] {
        let (error, told) = compared(&order);
        assert!(matches!(error, RunError::Differ(_)), "{error}");
        let words = "nothing is trained: worker 2 differs in units of a batch (8, not 4); workers \
                     0, 1, 3 agree";
        assert_eq!(error.to_string(), words);
        assert!(told.iter().all(|told| told.contains(words)), "{told:?}");
    }
}

#[test]
fn where_no_group_is_the_larger_one_all_are_named() {
    let (error, _) = compared(&[(0, 4), (1, 8)]);
    let words = "nothing is trained: worker 0 and worker 1 differ in units of a batch (4 and 8)";
    assert_eq!(error.to_string(), words);
}

/// A worker that comes after the beginning is refused, and disturbs no other.
#[test]
fn who_comes_later_has_to_agree() {
    let security = Security::Plain { token: Token::fresh().unwrap() };
    let run = Coordinator::builder("groups:s=1").workers(2).gather_within(Duration::from_secs(1));
    let open = run.open("127.0.0.1:0", security.clone()).unwrap();
    let (address, status) = (open.address().to_string(), open.status());
    let first = {
        let (address, security) = (address.clone(), security.clone());
        let facts = RunFacts { steps: Some(1_000_000), ..facts(8) };
        thread::spawn(move || {
            let joining = Aggregator::join(address).security(security).worker(0);
            let mut worker = joining.facts(facts).connect().unwrap();
            let mut steps = 0;
            while let Some(event) = worker.next_event().unwrap() {
                match event {
                    Event::Compute(mut task) => {
                        while task.next_part().is_some() {
                            task.message().fill(1.0);
                        }
                        task.submit(vec![]).unwrap();
                    }
                    Event::Apply(_) => steps += 1,
                    _ => {}
                }
            }
            steps
        })
    };
    let served = open.learn(LONG).unwrap().unwrap();
    let (began, waits) = std::sync::mpsc::channel();
    let stopper = served.stopper();
    let run = thread::spawn(move || served.run(&mut Tells(Some(began))));
    waits.recv().unwrap();
    let other = work(&address, security, 1, (facts(8), 0)).unwrap_err().to_string();
    let words = "steps: 6 here, 1000000 in the run";
    assert!(other.ends_with(words), "{other}");
    assert_eq!(status.lock().unwrap().workers[1].refused.as_deref(), Some(words));
    stopper.stop();
    assert_eq!(run.join().unwrap().unwrap(), Outcome::Stopped);
    assert!(first.join().unwrap() > 0);
}

/// Tells that a step is decided, once.
struct Tells(Option<std::sync::mpsc::Sender<()>>);

impl Observer for Tells {
    fn step(
        &mut self,
        _: &StepRecord,
        _: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        if let Some(told) = self.0.take() {
            told.send(()).unwrap();
        }
        Ok(Flow::Continue)
    }
}

#[test]
fn what_makes_no_run_is_told_to_the_worker_too() {
    let (open, address, security) = open(4);
    let worker = thread::spawn(move || work(&address, security, 0, (facts(2), 0)));
    let error = open.learn(LONG).map(drop).unwrap_err();
    assert!(matches!(error, RunError::Build(_)), "{error}");
    let told = worker.join().unwrap().unwrap_err().to_string();
    assert!(told.contains(&error.to_string()), "{told}");
    assert!(told.contains("2 units cannot be cut into 4 shares"), "{told}");
}

#[test]
fn nobody_is_waited_for_longer_than_asked() {
    let (open, ..) = open(2);
    let error = open.learn(Duration::from_millis(20)).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "no worker has joined within 0.02 s");
    let (open, ..) = self::open(2);
    open.stopper().stop();
    assert!(open.learn(LONG).unwrap().is_none());
}

/// It begins where the furthest of its workers is; the other takes over its state.
#[test]
fn a_run_begins_where_its_workers_have_come_to() {
    for (from, applied) in [([4, 0], 2), ([STEPS, 2], 0)] {
        let (open, address, security) = open(2);
        let workers = [0u32, 1].map(|number| {
            let (address, security) = (address.clone(), security.clone());
            let from = from[number as usize];
            thread::spawn(move || work(&address, security, number, (facts(8), from)))
        });
        let mut began = Began::default();
        let served = open.learn(LONG).unwrap().unwrap();
        assert_eq!(served.run(&mut began).unwrap(), Outcome::Finished);
        assert_eq!(began.0, Some(Step(STEPS - applied)));
        let [first, second] = workers.map(|worker| worker.join().unwrap().unwrap());
        assert_eq!(first, STEPS);
        assert!(second == STEPS || applied == 0, "no worker is there to catch up with");
    }
}
