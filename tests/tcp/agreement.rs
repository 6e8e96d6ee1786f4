//! What both sides of a run agree on before anything is trained, and what happens where they do
//! not.

use crate::integers::{
    self, Job, Log, Secret, UNIT_SAMPLES, UNITS, WORKERS, Watch, coordinate, join, run_locally,
    secret, train_until,
};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Step;
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::train::{Aggregator, AggregatorError, Coordinator, Outcome, RunClock};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpError, TcpLink, TcpTransport};
use codedgrad::transport::wire::InitialReplica;
use codedgrad::transport::{Link, RunFacts};
use std::thread;
use std::time::Duration;

const JOB: Job = Job { scheme: "groups:s=1", length: 300, steps: 12, exchange: Exchange::Star };

fn listen(secret: &Secret, facts: RunFacts) -> TcpTransport {
    let at = ([127, 0, 0, 1], 0).into();
    let config = RunConfig::new(Shape::new(WORKERS, UNITS), JOB.length, JOB.steps);
    let listen = Listen::new(at, secret.security.clone(), config);
    TcpTransport::listen(Listen { facts, exchange: JOB.exchange, keeps: true, ..listen }).unwrap()
}

fn of_units(unit_samples: usize) -> RunFacts {
    RunFacts { unit_samples: Some(unit_samples), ..RunFacts::default() }
}

fn calling(transport: &TcpTransport, secret: &Secret) -> Join {
    Join::new(transport.address().to_string(), secret.security.clone())
}

/// Two workers that cut a batch into units of different sizes once trained to three models, without
/// an error.
#[test]
fn other_samples_per_unit_are_refused_by_name() {
    let secret = secret();
    let transport = listen(&secret, of_units(UNIT_SAMPLES));
    let says = |facts| {
        TcpLink::join(Join { facts, ..calling(&transport, &secret) }).map(|(_, welcome)| welcome)
    };
    let error = says(of_units(16)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the coordinator refuses: samples per unit: 16 here, 2 in the run"
    );
    assert!(matches!(error, TcpError::Refused { again: false, .. }));
    for (facts, text) in [
        (
            RunFacts { length: Some(301), ..RunFacts::default() },
            "numbers in a gradient: 301 here, 300 in the run",
        ),
        (
            RunFacts { units: Some(4), ..RunFacts::default() },
            "units of a batch: 4 here, 3 in the run",
        ),
        (
            RunFacts { micro_steps: Some(2), ..RunFacts::default() },
            "micro_steps: 2 here, 1 in the run",
        ),
    ] {
        assert!(says(facts).unwrap_err().to_string().ends_with(text), "{text}");
    }
    assert_eq!(says(of_units(UNIT_SAMPLES)).unwrap().facts.unit_samples, Some(UNIT_SAMPLES));
}

#[test]
fn what_the_first_worker_says_holds_for_the_others() {
    let secret = secret();
    let transport = listen(&secret, RunFacts::default());
    let says = |facts| TcpLink::join(Join { facts, ..calling(&transport, &secret) });
    let first = RunFacts {
        dtype: Some("bf16".into()),
        layout: Some(77),
        steps: Some(40),
        models: Some(1),
        ..RunFacts::default()
    };
    let (_link, welcome) = says(first.clone()).unwrap();
    let known = RunFacts { length: Some(300), units: Some(3), micro_steps: Some(1), ..first };
    assert_eq!(welcome.facts, known);
    let error = says(RunFacts { dtype: Some("f32".into()), ..RunFacts::default() }).unwrap_err();
    assert!(
        error.to_string().contains("number format of the parameters: f32 here, bf16 in the run"),
        "{error}"
    );
    let error = says(RunFacts { layout: Some(78), ..RunFacts::default() }).unwrap_err();
    assert!(
        error.to_string().contains("hash of the parameters' layout: 78 here, 77 in the run"),
        "{error}"
    );
}

/// A trainer that says how many samples it has per unit only when it takes the link.
#[test]
fn a_trainer_that_differs_is_sent_away_and_the_run_goes_on() {
    let (expected, parameters) = run_locally(JOB);
    let secret = secret();
    let mut transport = listen(&secret, of_units(UNIT_SAMPLES));
    let address = transport.address().to_string();
    let honest: Vec<_> =
        (0..2).map(|worker| join(JOB, worker, address.clone(), &secret, |_| true)).collect();
    let (link, _) =
        TcpLink::join(Join { worker: Some(2), ..calling(&transport, &secret) }).unwrap();
    let other = thread::spawn(move || {
        let mut aggregator: Aggregator = Aggregator::new(Box::new(link), JOB.length, 16);
        loop {
            match aggregator.next_event() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    });
    let error = other.join().unwrap();
    assert_eq!(
        error,
        Some(AggregatorError::Refused { reason: "samples per unit: 16 here, 2 in the run".into() })
    );
    let mut present = 0;
    for _ in 0..3000 {
        present = transport.gather(Duration::from_millis(10)).present.len();
        if present == honest.len() {
            break;
        }
    }
    assert_eq!(present, honest.len(), "the honest workers join");
    transport.begin(Step(0));
    let mut watch = Watch::new(|_| {});
    assert_eq!(coordinate(JOB, transport, &mut watch).unwrap(), Outcome::Finished);
    assert_eq!(watch.log.gradients, expected.gradients);
    assert!(honest.into_iter().all(|worker| worker.join().unwrap() == parameters));
}

/// A run that begins at a step, with workers that say what they have; who took over a state.
fn begun_at(first: u64, has: [InitialReplica; WORKERS]) -> Vec<u32> {
    let secret = secret();
    let mut transport = listen(&secret, RunFacts::default());
    let workers: Vec<_> = (0..)
        .zip(has)
        .map(|(worker, has)| {
            let join = Join {
                worker: Some(worker),
                has,
                patience: Duration::from_secs(10),
                ..calling(&transport, &secret)
            };
            let link = TcpLink::join(join).unwrap().0;
            thread::spawn(move || integers::work(Box::new(link), JOB.length, |_| true))
        })
        .collect();
    assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
    transport.begin(Step(first));
    let end = first + JOB.steps;
    let scheme =
        JOB.scheme.parse::<SchemeSpec>().unwrap().scheme(WORKERS, UNITS, first..end).unwrap();
    let config = RunConfig {
        limits: Limits { max_wait_seconds: 20.0, ..Limits::default() },
        first: Step(first),
        ..RunConfig::new(Shape::new(WORKERS, UNITS), JOB.length, end)
    };
    let engine = Engine::new(scheme, config, Settings::default()).unwrap();
    let run_clock = RunClock::wall(WORKERS, &Delays::None, end as usize, 0.0);
    let mut watch = Watch::new(|_| {});
    let outcome = Coordinator::new(transport, engine, run_clock).run(&mut watch);
    let Log { faults, .. } = watch.log;
    assert_eq!(outcome.unwrap_or_else(|error| panic!("{error}: {faults:?}")), Outcome::Finished);
    let parameters: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    assert!(parameters.iter().all(|other| *other == parameters[0]), "{faults:?}");
    let mut needy: Vec<u32> = faults
        .iter()
        .filter(|fault| fault.2.starts_with("begins with the state"))
        .map(|fault| fault.1)
        .collect();
    needy.dedup();
    needy
}

/// What a process has that was not in the run before is what it says, not what the run begins with.
#[test]
fn a_fresh_process_is_not_believed_to_have_what_the_run_begins_with() {
    let at = |step| InitialReplica::Below(Step(step));
    assert_eq!(begun_at(0, [InitialReplica::FromJob, at(0), InitialReplica::FromJob]), [0u32; 0]);
    assert_eq!(
        begun_at(0, [InitialReplica::FromJob, InitialReplica::FromJob, InitialReplica::Nothing]),
        [2]
    );
    assert_eq!(begun_at(500, [at(500), at(0), at(500)]), [1]);
    assert_eq!(
        begun_at(500, [at(500), at(500), InitialReplica::FromJob]),
        [2],
        "the job is at step 0"
    );
}

#[test]
fn a_worker_ends_the_run_for_everybody() {
    let secret = secret();
    let mut transport = listen(&secret, RunFacts::default());
    let address = transport.address().to_string();
    let others: Vec<_> = (1..WORKERS as u32)
        .map(|worker| join(JOB, worker, address.clone(), &secret, |_| true))
        .collect();
    let (link, _) =
        TcpLink::join(Join { worker: Some(0), ..calling(&transport, &secret) }).unwrap();
    let link: Box<dyn Link> = Box::new(link);
    let weary = thread::spawn(move || {
        train_until(Aggregator::new(link, JOB.length, UNIT_SAMPLES), |_| true, Some(4))
    });
    assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
    transport.begin(Step(0));
    let mut watch = Watch::new(|_| {});
    let long = Job { steps: 10_000, ..JOB };
    assert_eq!(coordinate(long, transport, &mut watch).unwrap(), Outcome::Finished);
    let steps = watch.log.records.len() as u64;
    assert!((6..10_000).contains(&steps), "{steps}");
    let weary = weary.join().unwrap();
    for worker in others {
        assert_eq!(worker.join().unwrap(), weary, "it is told all that was decided");
    }
}
