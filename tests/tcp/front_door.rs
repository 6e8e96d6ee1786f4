//! A run that is told once: it has the bits of one that is put together by hand, whatever is wrong
//! with it is said, and a worker finds its way in, out and around without a panic.

use crate::integers::{
    self, Job, Log, UNIT_SAMPLES, UNITS, WORKERS, Watch, add_gradient, coordinate_at, run_locally,
    train,
};
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::registry::Registry;
use codedgrad::delays::Delays;
use codedgrad::ids::{Job as JobNumber, Step, Task, Worker};
use codedgrad::run::{NumberFormat, RunConfig, Shape};
use codedgrad::train::{
    Aggregator, AggregatorError, Builder, Coordinator, Event, Incident, JoinError, Observer,
    Outcome, OwnedEvent, RunClock, RunError, VirtualClock,
};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{
    Environment, Exchange, Join, Listen, Secrets, TcpLink, TcpTransport,
};
use codedgrad::transport::wire::InitialReplica;
use codedgrad::transport::{Link, Transport, local};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

const JOB: Job = Job { scheme: "groups:s=1", length: 300, steps: 12, exchange: Exchange::Star };
const LONG: Duration = Duration::from_secs(60);

fn plain() -> Security {
    Security::Plain { token: Token::fresh().unwrap() }
}

fn builder(job: Job) -> Builder {
    Coordinator::builder(job.scheme)
        .workers(WORKERS)
        .steps(job.steps)
        .length(job.length)
        .units(UNITS)
        .unit_samples(UNIT_SAMPLES)
        .max_wait(Duration::from_secs(20))
}

/// [`train`] by events that borrow nothing.
fn train_owned(mut worker: Aggregator) -> Result<Vec<f32>, AggregatorError> {
    let mut parameters = vec![0.0f32; worker.length()];
    loop {
        let Some(event) = worker.next_event_within(Duration::from_millis(3))? else { continue };
        match event {
            OwnedEvent::Compute(task) => {
                let mut count = 0.0;
                while let Some(part) = worker.part(task)? {
                    let buffer = worker.buffer(task)?;
                    buffer.fill(0.0);
                    for sample in part.samples {
                        add_gradient(buffer, &parameters, task.job.0, sample, part.coefficient);
                        count += part.coefficient;
                    }
                }
                worker.submit(task, vec![count])?;
            }
            OwnedEvent::Apply(step) => {
                let gradient = worker.gradient(step)?;
                parameters.iter_mut().zip(gradient).for_each(|(p, g)| *p -= g / 64.0);
                assert_eq!(worker.aux(step)?, [f64::from(UNITS) * UNIT_SAMPLES as f64]);
                worker.applied(step, None)?;
            }
            OwnedEvent::Skip { step, .. } => worker.applied(step, None)?,
            OwnedEvent::Provide(request) => request.reply(vec![parameters.clone()]),
            OwnedEvent::Resync(state) => {
                parameters.clone_from(&state.vectors[0]);
                worker.taken(vec![])?;
            }
            OwnedEvent::Over => return Ok(parameters),
        }
    }
}

/// A run by a builder, over threads; what its observer saw, and what every worker ends with.
fn locally(run: Builder, owned: bool) -> (Log, Vec<Vec<f32>>) {
    let (coordinator, workers) = run.local().unwrap();
    let begin = |worker: Aggregator| {
        thread::spawn(move || match owned {
            true => train_owned(worker).unwrap(),
            false => train(worker, |_| true),
        })
    };
    let threads: Vec<_> = workers.into_iter().map(begin).collect();
    let mut watch = Watch::new(|_| {});
    assert_eq!(coordinator.run(&mut watch).unwrap(), Outcome::Finished);
    (watch.log, threads.into_iter().map(|thread| thread.join().unwrap()).collect())
}

#[test]
fn a_local_run_has_the_bits_of_one_put_together_by_hand() {
    let (expected, parameters) = run_locally(JOB);
    for owned in [false, true] {
        let (log, trained) = locally(builder(JOB), owned);
        assert_eq!(log.gradients, expected.gradients, "owned events: {owned}");
        assert_eq!(trained, vec![parameters.clone(); WORKERS]);
        let delays = |log: &Log| log.records[0].rounds[0].delays.clone();
        assert_eq!(delays(&log), delays(&expected));
    }
}

/// Delays and a modelled clock are put on from outside: nothing of the record is another's.
#[test]
fn an_experiment_has_the_record_of_one_put_together_by_hand() {
    let delays = Delays::open("hotspot", WORKERS, 7).unwrap();
    let model = VirtualClock { step_seconds: 0.5 };
    let run_clock = RunClock::modelled(WORKERS, &delays, JOB.steps as usize, model, 0.0);
    let (transport, links) = local::connect(WORKERS);
    let threads = links
        .into_iter()
        .map(|link| thread::spawn(move || integers::work(Box::new(link), JOB.length, |_| true)));
    let threads: Vec<_> = threads.collect();
    let mut watch = Watch::new(|_| {});
    coordinate_at(run_clock, JOB, transport, &mut watch).unwrap();
    let trained: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let run = builder(JOB).delays("hotspot", 7).step_seconds(0.5).modelled();
    let (log, parameters) = locally(run, false);
    assert_eq!((log.records, parameters), (watch.log.records, trained));
    assert!(log.gradients.iter().all(|gradient| gradient.len() == JOB.length));
}

/// Works as long as a saver's part lasts, and says which steps it was told to save.
fn steps_to_save(mut worker: Aggregator, leaves_after: Option<u64>) -> Vec<u64> {
    let (mut saved, own) = (Vec::new(), worker.worker());
    assert_eq!(worker.saver(), None, "no step is decided");
    loop {
        let event = worker.next_event_within(LONG).unwrap().unwrap();
        match event {
            OwnedEvent::Compute(task) => {
                while worker.part(task).unwrap().is_some() {
                    worker.buffer(task).unwrap().fill(1.0);
                }
                worker.submit(task, vec![]).unwrap();
            }
            OwnedEvent::Apply(step) => {
                if worker.saver() == own {
                    saved.push(step.0);
                }
                worker.applied(step, None).unwrap();
                let (sent, received) = worker.traffic();
                assert!(sent > 0 && received > 0);
                if leaves_after == Some(step.0) {
                    return saved;
                }
            }
            OwnedEvent::Over => return saved,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_live_worker_of_the_lowest_number_saves() {
    let security = plain();
    let served = builder(JOB).serve("127.0.0.1:0", security.clone()).unwrap();
    let address = served.address().to_string();
    let workers = (0..WORKERS as u32).map(|number| {
        let joining = Aggregator::join(&address).security(security.clone()).worker(number);
        let worker = joining.connect().unwrap();
        assert_eq!(worker.workers(), Some(WORKERS));
        thread::spawn(move || steps_to_save(worker, (number == 0).then_some(4)))
    });
    let workers: Vec<_> = workers.collect();
    assert_eq!(served.run(&mut ()).unwrap(), Outcome::Finished);
    let saved: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    assert_eq!(saved[0], [0, 1, 2, 3, 4]);
    // No worker saves steps decided before the loss was noticed.
    assert!(saved[1].len() >= 2 && saved[1].ends_with(&[JOB.steps - 1]), "{saved:?}");
    assert!(saved[2..].iter().all(Vec::is_empty));
}

#[test]
fn a_served_run_has_the_same_bits_and_workers_are_told_nothing_twice() {
    let (expected, parameters) = run_locally(JOB);
    for (exchange, owned) in [(Exchange::Star, false), (Exchange::Sharded, true)] {
        let security = plain();
        let run = builder(JOB).exchange(exchange).keeps(true).job("integers");
        let served = run.serve("127.0.0.1:0", security.clone()).unwrap();
        let threads = [0, 1, 2].map(|number| {
            let joining = Aggregator::join(served.address().to_string()).worker(number);
            let worker = joining.security(security.clone()).connect().unwrap();
            assert_eq!((worker.worker(), worker.workers()), (Some(Worker(number)), Some(WORKERS)));
            assert_eq!((worker.unit_samples(), worker.job()), (UNIT_SAMPLES, "integers"));
            thread::spawn(move || match owned {
                true => train_owned(worker).unwrap(),
                false => train(worker, |_| true),
            })
        });
        let mut watch = Watch::new(|_| {});
        assert_eq!(served.run(&mut watch).unwrap(), Outcome::Finished);
        assert_eq!(watch.log.gradients, expected.gradients, "{exchange:?}");
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), parameters));
    }
}

#[test]
fn micro_steps_and_a_first_step_are_told_once() {
    let run = builder(JOB).micro_steps(2).first(10).steps(13);
    let security = plain();
    let served = run.clone().serve("127.0.0.1:0", security.clone()).unwrap();
    let join = || {
        let joining = Aggregator::join(served.address().to_string()).security(security.clone());
        joining.has(InitialReplica::Below(Step(10))).connect().unwrap()
    };
    let threads = [join(), join(), join()].map(|worker| {
        assert_eq!(worker.next_step(), Step(10));
        assert_eq!(worker.step_of(Task { job: JobNumber(21), piece: 0, plan: 0 }), Step(10));
        thread::spawn(move || train(worker, |_| true))
    });
    let mut watch = Watch::new(|_| {});
    served.run(&mut watch).unwrap();
    let trained = threads.map(|thread| thread.join().unwrap());
    assert_eq!(
        watch.log.records.iter().map(|record| record.step).collect::<Vec<_>>(),
        [10, 11, 12]
    );
    let (log, local) = locally(run, false);
    assert_eq!((log.records.len(), &local[0]), (3, &trained[0]));
}

#[test]
fn what_makes_no_run_is_said() {
    let whole = || builder(JOB);
    let bare = |text: &str| Coordinator::builder(text.to_owned());
    for (run, message) in [
        (bare("gruops:s=1").workers(4), "did you mean \"groups:s=1\""),
        (bare("uncoded"), "the number of workers is not told: say .workers(4) for 4 of them"),
        (bare("uncoded").workers(4), "the length of a gradient is not told: say .length(1000)"),
        (bare("uncoded").workers(4).length(1), "the number of steps is not told: say .steps(100)"),
        (whole().workers(0), "workers is 0: it must be from 1 to 4096"),
        (whole().workers(5000), "workers is 5000: it must be from 1 to 4096"),
        (whole().workers(4).units(1), "1 units cannot be cut into 2 shares"),
        (whole().units(0), "units is 0: it must be from 1 to 4194304"),
        (bare("groups:s=3").workers(3).steps(1).length(1), "s must be at most 2"),
        (bare("uncoded").workers(4).units(3).steps(1).length(1), "cannot be cut into 4 shares"),
        (whole().length(0), "length is 0: it must be from 1 to 68719476736"),
        (whole().result_length(0), "result_length is 0"),
        (whole().unit_samples(0), "unit_samples is 0: it must be from 1 to 4294967296"),
        (whole().steps(0), "steps is 0: it must be from 1 to 281474976710656"),
        (whole().first(13), "first is 13: it must be from 0 to 12"),
        (whole().micro_steps(0), "micro_steps is 0: a step is the sum of 1 or more jobs"),
        (whole().models(0), "models is 0: a run trains 1 or more models"),
        (whole().models(2).micro_steps(2), "2 models with 2 batches per step"),
        (whole().log_steps(0), "log_steps is 0: it must be from 1 to 1048576"),
        (whole().mu(f64::NAN), "mu is NaN: it must be a finite number of 0 or more"),
        (whole().max_wait(Duration::ZERO), "max_wait is 0: it must be a finite number"),
        (whole().min_workers(0), "min_workers is 0: it must be from 1 to 3"),
        (whole().min_workers(4), "min_workers is 4: it must be from 1 to 3"),
        (whole().delays("hotspott", 1), "did you mean \"hotspot\""),
        (whole().delays("hotspot", 1), "the compute time of an uncoded step is not told"),
        (whole().modelled(), "the compute time of an uncoded step is not told"),
        (whole().step_seconds(-1.0), "step_seconds is -1: it must be a finite number of 0 or more"),
        (whole().steps(1 << 40).delays("hotspot", 1), "the number of delays is 3298534883328"),
    ] {
        let said = run.clone().local().err().unwrap().to_string();
        assert!(said.contains(message), "{said:?}, not {message:?}");
        let served = run.serve("127.0.0.1:0", plain()).err().unwrap().to_string();
        assert_eq!(served, said);
    }
    let served = |run: Builder, address| run.serve(address, plain()).err().unwrap().to_string();
    assert!(served(whole(), "7000").starts_with("\"7000\" is no address to listen at: write"));
    assert!(
        served(whole(), "0.0.0.0:0").contains("`Security::Tls`"),
        "a token alone stays on the host"
    );
    assert!(served(whole().wire(NumberFormat::F16), "127.0.0.1:0").starts_with("wire is F16"));
    let narrow = whole().wire(NumberFormat::Bf16).exchange(Exchange::Nccl);
    assert!(served(narrow, "127.0.0.1:0").contains("no bf16"));
    let vote = Coordinator::builder("vote:s=0,b=1".parse::<SchemeSpec>().unwrap());
    let vote = vote.workers(3).steps(1).length(1).exchange(Exchange::Sharded);
    assert!(vote.serve("127.0.0.1:0", plain()).is_ok(), "the coordinator sums, whatever was told");
}

/// Numbers as users write them: mostly small, now and then absurd.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0u64..9,
        1 => Just(4096),
        1 => Just(u64::from(u32::MAX)),
        1 => Just(1 << 63),
        1 => Just(u64::MAX)
    ]
}

type Told = (&'static str, Vec<Option<u64>>, Option<f64>);

fn anything() -> impl Strategy<Value = Told> {
    let scheme = prop::sample::select(Registry::builtin().examples().collect::<Vec<_>>());
    let numbers = prop::collection::vec(prop::option::of(number()), 12);
    (scheme, numbers, prop::option::of(any::<f64>()))
}

fn told((scheme, numbers, real): Told) -> Builder {
    let set: [fn(Builder, u64) -> Builder; 12] = [
        |run, n| run.workers(n as usize),
        |run, n| run.steps(n),
        |run, n| run.length(n as usize),
        |run, n| run.units(n as u32),
        |run, n| run.unit_samples(n as usize),
        |run, n| run.first(n),
        |run, n| run.micro_steps(n),
        |run, n| run.models(n),
        |run, n| run.log_steps(n),
        |run, n| run.min_workers(n as usize),
        |run, n| run.max_wait(Duration::from_secs(n)).return_within(Duration::from_millis(n)),
        |run, n| run.delays("hotspot", n).step_seconds(0.1),
    ];
    // Most runs are told what has no default.
    let mut run = Coordinator::builder(scheme).workers(4).steps(5).length(6);
    for (set, number) in set.into_iter().zip(numbers) {
        run = number.into_iter().fold(run, set);
    }
    match real {
        Some(real) => run.mu(real).step_seconds(real),
        None => run,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever numbers it is told, a builder gives a run or an error.
    #[test]
    fn no_number_makes_a_builder_panic(all in anything()) {
        drop(told(all).local());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// The same for a run with a port, which a worker joins and leaves.
    #[test]
    fn no_number_makes_a_port_panic(all in anything(), wait in number()) {
        let (security, wait) = (plain(), Duration::from_secs(wait));
        let run = told(all).silence(wait).stall(wait, wait).gather_within(Duration::ZERO);
        if let Ok(served) = run.serve("127.0.0.1:0", security.clone()) {
            let joining = Aggregator::join(served.address().to_string()).security(security);
            let joined = joining.patience(Duration::ZERO).connect();
            prop_assert!(joined.is_ok(), "{:?}", joined.err());
        }
    }
}

fn environment(set: &[(&str, &str)]) -> Result<Environment, String> {
    let set: BTreeMap<String, OsString> =
        set.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let look = |name: &str| set.get(name).cloned();
    Environment::read(look).map_err(|error| error.to_string())
}

#[test]
fn the_environment_names_a_worker_in_one_order() {
    let order = [
        "CODEDGRAD_WORKER",
        "SLURM_PROCID",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "JOB_COMPLETION_INDEX",
    ];
    let values = ["1", "2", "3", "4", " 5\n"];
    let set: Vec<(&str, &str)> = order.into_iter().zip(values).collect();
    for first in 0..order.len() {
        assert_eq!(environment(&set[first..]).unwrap().worker, Some(first as u32 + 1));
    }
    let torchrun =
        [("RANK", "9"), ("WORLD_SIZE", "10"), ("MASTER_ADDR", "host0"), ("MASTER_PORT", "7000")];
    let unseen = environment(&torchrun).unwrap();
    assert_eq!((unseen.worker, unseen.workers, unseen.address), (None, None, None));
    let both = [&torchrun[..], &set, &[("CODEDGRAD_ADDRESS", "[::1]:80")]].concat();
    let both = environment(&both).unwrap();
    assert_eq!((both.worker, both.address.as_deref()), (Some(1), Some("[::1]:80")));
    let sizes = [("PMI_SIZE", "6"), ("SLURM_NTASKS", "7")];
    assert_eq!(environment(&sizes).unwrap().workers, Some(("SLURM_NTASKS", 7)));
}

#[test]
fn a_wrong_variable_is_named_with_its_value() {
    let says = |name, value| environment(&[(name, value)]).unwrap_err();
    assert_eq!(
        says("SLURM_PROCID", "two"),
        "SLURM_PROCID is \"two\" and not a number from 0 to 4294967294"
    );
    for value in ["", "-1", "1.5", "4294967295"] {
        let said = says("CODEDGRAD_WORKER", value);
        assert!(said.starts_with(&format!("CODEDGRAD_WORKER is {value:?} and not")), "{said}");
    }
    assert!(says("CODEDGRAD_TOKEN", "5a").starts_with("CODEDGRAD_TOKEN: "));
    let two = [("CODEDGRAD_TOKEN", &*"5a".repeat(32)), ("CODEDGRAD_TOKEN_FILE", "token")];
    assert!(environment(&two).unwrap_err().contains("both set"));
    assert!(environment(&[("RANK", "x")]).is_ok(), "it is not looked at");
    let unreadable = Secrets { token_file: Some("no-such-file".into()), ..Secrets::default() };
    assert!(unreadable.security(None).unwrap_err().to_string().contains("no-such-file"));
    let folder = tempfile::tempdir().unwrap();
    let keys = Secrets { keys: Some(folder.path().into()), ..Secrets::default() };
    let error = keys.security(None).unwrap_err().to_string();
    assert!(error.contains("certificates of 0 workers: say which by CODEDGRAD_WORKER"), "{error}");
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        let look = |_: &str| Some(OsString::from_vec(vec![0xff]));
        let error = Environment::read(look).unwrap_err().to_string();
        assert!(error.contains("is not UTF-8") && error.starts_with("CODEDGRAD_"), "{error}");
    }
}

/// A token that is handed to a process as text.
#[test]
fn a_token_as_text_joins() {
    let token = Token::fresh().unwrap();
    let served =
        builder(JOB).serve("127.0.0.1:0", Security::Plain { token: token.clone() }).unwrap();
    let (hex, address) = (token.hex(), served.address().to_string());
    let found = environment(&[
        ("CODEDGRAD_TOKEN", &hex),
        ("CODEDGRAD_ADDRESS", &address),
        ("PMI_RANK", "1"),
    ]);
    let Environment { address, worker, secrets, .. } = found.unwrap();
    let joining = Aggregator::join(address.unwrap()).worker(worker.unwrap());
    let worker = joining.security(secrets.security(worker).unwrap()).connect().unwrap();
    assert_eq!((worker.worker(), worker.length()), (Some(Worker(1)), JOB.length));
    let other = Aggregator::join(served.address().to_string()).security(plain());
    let error = other.patience(Duration::ZERO).connect().err().unwrap().to_string();
    assert!(error.contains("does not know this job's token"), "{error}");
}

/// The worker calls it once: the listener is closed afterwards.
#[test]
fn who_is_no_coordinator_is_not_called_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        drop(listener);
        // It may hang up in the middle of a word.
        drop(stream.read_to_end(&mut Vec::new()));
    });
    let joining = Aggregator::join(address).security(plain());
    let error = joining.patience(Duration::from_secs(2)).connect().err().unwrap().to_string();
    assert!(error.contains("does not talk codedgrad; it began with \"HT\""), "{error}");
    answer.join().unwrap();
}

/// A run of another program, which does not say how many samples a unit has.
#[test]
fn somebody_says_how_many_samples_a_unit_has() {
    let security = plain();
    let listen = Listen::new(
        ([127, 0, 0, 1], 0).into(),
        security.clone(),
        RunConfig::new(Shape::new(2, 2), 5, 1),
    );
    let transport = TcpTransport::listen(listen).unwrap();
    let join = || Aggregator::join(transport.address().to_string()).security(security.clone());
    let error = join().connect().err().unwrap();
    assert!(matches!(error, JoinError::NoUnitSamples) && error.to_string().contains("(8) for 8"));
    let error = join().unit_samples(0).connect().err().unwrap().to_string();
    assert!(error.starts_with("unit_samples is 0: "), "{error}");
    assert_eq!(join().worker(0).unit_samples(4).connect().unwrap().unit_samples(), 4);
    let error = join().worker(1).unit_samples(8).connect().err().unwrap().to_string();
    assert!(error.ends_with("samples per unit: 8 here, 4 in the run"), "{error}");
    assert_eq!(join().worker(1).connect().unwrap().unit_samples(), 4, "as the first one said");
}

/// Waits for an event in a thread of its own; how its wait ends.
fn waiting(mut worker: Aggregator) -> thread::JoinHandle<(Aggregator, AggregatorError)> {
    thread::spawn(move || {
        let error = loop {
            match worker.next_event_within(Duration::MAX) {
                Ok(Some(OwnedEvent::Compute(_))) => {}
                Ok(Some(OwnedEvent::Apply(step))) => worker.applied(step, None).unwrap(),
                Ok(event) => panic!("{event:?}"),
                Err(error) => break error,
            }
        };
        (worker, error)
    })
}

#[test]
fn a_closed_worker_stops_waiting_and_is_lost_to_the_run() {
    let security = plain();
    let served = builder(JOB).serve("127.0.0.1:0", security.clone()).unwrap();
    let worker = Aggregator::join(served.address().to_string()).security(security).connect();
    let worker = worker.unwrap();
    let (closer, status) = (worker.closer(), served.status());
    let connected = || status.lock().unwrap().workers.iter().any(|worker| worker.connected);
    let until = |done: &dyn Fn() -> bool| {
        let waited = (0..60_000).find(|_| {
            thread::sleep(Duration::from_millis(1));
            done()
        });
        assert!(waited.is_some(), "that takes no minute");
    };
    until(&connected);
    let wait = waiting(worker);
    closer.close();
    closer.clone().close();
    // The aggregator is kept: it is not its end that ends the connection.
    let (mut worker, error) = wait.join().unwrap();
    assert_eq!(error, AggregatorError::Closed);
    until(&|| !connected());
    assert!(matches!(worker.next_event(), Err(AggregatorError::Closed)), "from now on");
}

#[test]
fn a_worker_that_calls_a_lost_coordinator_can_be_closed() {
    let security = plain();
    let served = builder(JOB).serve("127.0.0.1:0", security.clone()).unwrap();
    let joining = Aggregator::join(served.address().to_string()).security(security);
    let worker = joining.patience(Duration::MAX).connect().unwrap();
    let closer = worker.closer();
    let wait = waiting(worker);
    drop(served);
    thread::sleep(Duration::from_millis(50));
    closer.close();
    assert_eq!(wait.join().unwrap().1, AggregatorError::Closed);
}

#[test]
fn a_local_run_goes_on_without_a_closed_worker() {
    let (expected, parameters) = run_locally(JOB);
    let (coordinator, mut workers) = builder(JOB).local().unwrap();
    let closed = workers.remove(1);
    let closer = closed.closer();
    let closed = thread::spawn(move || train_owned(closed));
    let threads: Vec<_> =
        workers.into_iter().map(|worker| thread::spawn(|| train(worker, |_| true))).collect();
    let mut watch = Watch::new(|step| {
        if step == 3 {
            closer.close();
        }
    });
    assert_eq!(coordinator.run(&mut watch).unwrap(), Outcome::Finished);
    assert_eq!(watch.log.gradients, expected.gradients);
    assert_eq!(closed.join().unwrap(), Err(AggregatorError::Closed));
    let lost =
        |fault: &(u64, u32, String)| (fault.1, &*fault.2) == (1, "lost: its link was closed");
    assert!(watch.log.faults.iter().any(lost), "{:?}", watch.log.faults);
    threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), parameters));
}

#[test]
fn a_coordinator_that_is_gone_is_told_from_a_closed_link() {
    let (coordinator, mut workers) = builder(JOB).local().unwrap();
    let closer = workers[0].closer();
    drop(coordinator);
    let gone = workers[0].next_event_within(LONG);
    assert!(matches!(gone, Err(AggregatorError::Disconnected)), "{gone:?}");
    closer.close();
    assert!(matches!(workers[0].next_event_within(LONG), Err(AggregatorError::Closed)));
}

/// A worker alone, that is given one task of three parts.
fn at_a_task() -> (Aggregator, Task) {
    let run = Coordinator::builder("uncoded").workers(1).units(3).steps(1).length(2);
    let (coordinator, mut workers) = run.local().unwrap();
    thread::spawn(move || drop(coordinator.run(&mut ())));
    let mut worker = workers.remove(0);
    match worker.next_event_within(LONG) {
        Ok(Some(OwnedEvent::Compute(task))) => (worker, task),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_are_good_for_what_is_at_hand() {
    let (mut worker, task) = at_a_task();
    let other = Task { piece: 7, ..task };
    assert!(matches!(worker.part(other), Err(AggregatorError::NotAtHand { .. })));
    assert!(matches!(worker.applied(Step(0), None), Err(AggregatorError::NotAtHand { .. })));
    assert!(matches!(worker.taken(vec![]), Err(AggregatorError::NotAtHand { .. })));
    assert!(worker.gradient(Step(0)).is_err() && worker.aux(Step(0)).is_err());
    assert_eq!(worker.buffer(task).unwrap_err(), AggregatorError::NoPart { task });
    assert!(matches!(
        worker.submit(task, vec![]),
        Err(AggregatorError::Unfinished { left: 3, .. })
    ));
    for _ in 0..3 {
        assert_eq!(worker.part(task).unwrap().unwrap().samples.len(), 1);
        worker.buffer(task).unwrap().fill(1.0);
    }
    assert!(worker.part(task).unwrap().is_none());
    assert_eq!(worker.buffer(task).unwrap_err(), AggregatorError::NoPart { task });
    worker.submit(task, vec![]).unwrap();
    assert!(matches!(worker.submit(task, vec![]), Err(AggregatorError::NotAtHand { .. })));
    let Ok(Some(OwnedEvent::Apply(step))) = worker.next_event_within(LONG) else { panic!() };
    assert_eq!(worker.gradient(step).unwrap(), &[3.0, 3.0]);
    let error = worker.next_event_within(LONG).unwrap_err();
    assert_eq!(
        error.to_string(),
        "step 0 is still open: say that it is applied before the next event is asked for"
    );
    worker.applied(step, Some(1)).unwrap();
    assert!(worker.gradient(step).is_err());
    for _ in 0..2 {
        assert!(matches!(worker.next_event_within(LONG), Ok(Some(OwnedEvent::Over))));
    }
    assert!(worker.next_event().unwrap().is_none());
}

#[test]
fn a_closed_worker_hands_nothing_in() {
    let (mut worker, task) = at_a_task();
    worker.part(task).unwrap();
    worker.closer().close();
    assert!(worker.part(task).unwrap().is_none(), "no worker wants it");
    worker.submit(task, vec![]).unwrap();
    assert!(matches!(worker.next_event_within(LONG), Err(AggregatorError::Closed)));
}

#[test]
fn an_owned_task_can_be_given_up() {
    let (mut worker, task) = at_a_task();
    worker.part(task).unwrap();
    worker.abandon(task).unwrap();
    assert!(worker.abandon(task).is_err());
}

#[test]
fn a_gradient_of_no_part_or_of_another_length_is_refused_and_nothing_panics() {
    let task = |misuse: fn(&mut codedgrad::train::ComputeTask<'_>)| {
        let run = Coordinator::builder("uncoded").workers(1).units(2).steps(1).length(2);
        let (coordinator, mut workers) = run.local().unwrap();
        thread::spawn(move || drop(coordinator.run(&mut ())));
        let Ok(Some(Event::Compute(mut task))) = workers[0].next_event() else { panic!() };
        misuse(&mut task);
        task.submit(vec![])
    };
    let early = task(|task| {
        task.message().fill(1.0);
        while task.next_part().is_some() {}
    });
    assert!(matches!(early, Err(AggregatorError::NoPart { .. })), "{early:?}");
    let late = task(|task| {
        while task.next_part().is_some() {
            task.message().fill(1.0);
        }
        task.message().fill(2.0);
    });
    let said = late.unwrap_err().to_string();
    assert!(said.contains("no") && said.contains("part of it") || said.contains("parts"), "{said}");
    let longer = task(|task| {
        while task.next_part().is_some() {
            task.vector().push(1.0);
        }
    });
    let said = longer.unwrap_err().to_string();
    assert!(said.ends_with("has 3 numbers, where the run's have 2"), "{said}");
    assert_eq!(task(|task| while task.next_part().is_some() {}), Ok(()));
}

/// What is said of the end of a run.
#[derive(Default)]
struct Ends(Vec<String>);

impl Observer for Ends {
    fn event(&mut self, happened: &Incident) {
        if happened.what.kind() == "ended" {
            self.0.push(happened.to_string());
        }
    }
}

/// Sample `i` of a regression whose solution is -3, -2, .. 4.
fn sample_of_regression(i: usize) -> ([f32; 8], f32) {
    let x = std::array::from_fn(|d| ((i * (2 * d + 3) + d) as f32 * 0.37).sin());
    let y = (0..8).map(|d| (d as f32 - 3.0) * x[d]).sum();
    (x, y)
}

/// The natural loop over samples adds up, and never finds what earlier steps have left.
#[test]
fn a_gradient_is_added_up_sample_by_sample() {
    let run = Coordinator::builder("groups:s=1").workers(4).steps(200).length(8).unit_samples(16);
    let (coordinator, workers) = run.local().unwrap();
    let train = |mut worker: Aggregator| {
        let mut weights = [0.0f32; 8];
        while let Some(event) = worker.next_event().unwrap() {
            match event {
                Event::Compute(mut task) => {
                    while let Some(part) = task.next_part() {
                        let factor = part.coefficient as f32 / 32.0;
                        for (x, y) in part.samples.map(sample_of_regression) {
                            let at: f32 = x.iter().zip(&weights).map(|(x, w)| x * w).sum();
                            let gradient = task.message();
                            (0..8).for_each(|d| gradient[d] += factor * (at - y) * x[d]);
                        }
                    }
                    task.submit(vec![]).unwrap();
                }
                Event::Apply(step) => {
                    let gradient = step.gradient();
                    (0..8).for_each(|d| weights[d] -= 0.5 * gradient[d]);
                }
                Event::Provide(request) => request.reply(vec![weights.to_vec()]),
                Event::Resync(state) => weights.copy_from_slice(&state.vectors[0]),
                Event::Skip(step) => panic!("step {} is not finite", step.index),
            }
        }
        weights
    };
    let begin = |worker| thread::spawn(move || train(worker));
    let threads: Vec<_> = workers.into_iter().map(begin).collect();
    coordinator.run(&mut ()).unwrap();
    for thread in threads {
        let weights = thread.join().unwrap();
        assert!((0..8).all(|d| (weights[d] - (d as f32 - 3.0)).abs() < 0.01), "{weights:?}");
    }
}

#[test]
fn an_owned_step_ends_the_run() {
    let run = Coordinator::builder("uncoded").workers(1).steps(1 << 40).length(1);
    let (coordinator, mut workers) = run.local().unwrap();
    let mut worker = workers.remove(0);
    let weary = thread::spawn(move || {
        let mut steps = 0;
        loop {
            match worker.next_event_within(LONG)?.unwrap() {
                OwnedEvent::Compute(task) => {
                    while worker.part(task)?.is_some() {
                        worker.buffer(task)?.fill(0.0);
                    }
                    worker.submit(task, vec![])?;
                }
                OwnedEvent::Apply(step) => {
                    steps += 1;
                    if step == Step(4) {
                        worker.end_run();
                    }
                    worker.applied(step, None)?;
                }
                OwnedEvent::Over => return Ok::<_, AggregatorError>(steps),
                other => panic!("{other:?}"),
            }
        }
    });
    let mut ends = Ends::default();
    assert_eq!(coordinator.run(&mut ends).unwrap(), Outcome::Finished);
    let steps = weary.join().unwrap().unwrap();
    assert!((5..9).contains(&steps), "{steps}");
    assert_eq!(ends.0, [format!("step {}: the last one: worker 0 has ended the run", steps - 1)]);
}

/// States of bytes: of any length, whatever numbers they would make, handed over by a thread that
/// is not the trainer's.
#[test]
fn states_are_bytes_as_well() {
    let security = plain();
    let run = Coordinator::builder("groups:s=1").workers(2).steps(40).length(3);
    let served = run.serve("127.0.0.1:0", security.clone()).unwrap();
    let join = |number| {
        Aggregator::join(served.address().to_string()).security(security.clone()).worker(number)
    };
    let files = |sum: f32| {
        let signalling = [0x01, 0x00, 0xa0, 0x7f].repeat(70_000);
        vec![sum.to_le_bytes().to_vec(), vec![], b"odd".to_vec(), signalling]
    };
    let threads = [join(0), join(1).has(InitialReplica::Nothing)].map(|joining| {
        let mut worker = joining.connect().unwrap();
        thread::spawn(move || {
            let (mut sum, mut taken) = (0.0f32, 0);
            while let Some(event) = worker.next_event().unwrap() {
                match event {
                    Event::Compute(mut task) => {
                        while task.next_part().is_some() {
                            thread::sleep(Duration::from_millis(1));
                            task.message().fill(1.0);
                        }
                        task.submit(vec![]).unwrap();
                    }
                    Event::Apply(step) => sum += step.gradient()[2],
                    Event::Provide(request) => {
                        let files = files(sum);
                        thread::spawn(move || request.reply_bytes(&files));
                    }
                    Event::Resync(state) => {
                        let bytes = state.bytes().unwrap();
                        sum = f32::from_le_bytes(bytes[0][..].try_into().unwrap());
                        assert!(bytes == files(sum), "to the bit");
                        taken += 1;
                    }
                    Event::Skip(_) => {}
                }
            }
            (sum, taken)
        })
    });
    served.run(&mut ()).unwrap();
    let [first, second] = threads.map(|thread| thread.join().unwrap());
    assert_eq!((first, second.0), ((80.0, 0), 80.0));
    assert!(second.1 > 0);
}

/// A request that is answered long after its link ended holds up nothing.
#[test]
fn a_late_answer_is_dropped() {
    let (mut coordinator, mut links) = local::connect(1);
    let say = links[0].later();
    drop(links.remove(0));
    say(codedgrad::transport::Notice::StepUnavailable);
    let heard = coordinator.receive(Some(Duration::from_millis(50)));
    assert!(matches!(heard, Some((Worker(0), codedgrad::transport::Notice::Lost { .. }))));
    assert!(coordinator.receive(Some(Duration::from_millis(5))).is_none());
    let security = plain();
    let served = builder(JOB).serve("127.0.0.1:0", security.clone()).unwrap();
    let (link, _) = TcpLink::join(Join::new(served.address().to_string(), security)).unwrap();
    let say = link.later();
    drop(link);
    say(codedgrad::transport::Notice::StepUnavailable);
}

#[test]
fn a_run_that_nobody_comes_to_ends() {
    let run = builder(JOB).gather_within(Duration::from_millis(20));
    let error = run.serve(SocketAddr::from(([127, 0, 0, 1], 0)), plain()).unwrap().run(&mut ());
    assert!(
        matches!(error, Err(RunError::NobodyCame { waited_seconds }) if waited_seconds == 0.02)
    );
}

/// A coordinator whose workers never answer, and one whose workers have not come, end when stopped.
#[test]
fn a_waiting_coordinator_can_be_stopped() {
    let run = Coordinator::builder("uncoded").workers(2).steps(9).length(3);
    let (coordinator, workers) = run.clone().local().unwrap();
    let stopper = coordinator.stopper();
    let coordinating = thread::spawn(move || coordinator.run(&mut ()));
    stopper.stop();
    assert_eq!(coordinating.join().unwrap().unwrap(), Outcome::Stopped);
    drop(workers);
    let security = plain();
    let served = run.serve("127.0.0.1:0", security.clone()).unwrap();
    let stopper = served.stopper();
    let joining = Aggregator::join(served.address().to_string()).security(security);
    let mut worker = joining.connect().unwrap();
    let coordinating = thread::spawn(move || served.run(&mut ()));
    stopper.stop();
    assert_eq!(coordinating.join().unwrap().unwrap(), Outcome::Stopped);
    assert!(worker.next_event().unwrap().is_none(), "who had come is told");
}

/// A thread of another runtime may not wait on one of ours, and a trainer may be such a thread.
#[test]
fn a_runtime_around_a_trainer_does_no_harm() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let security = plain();
        let run = Coordinator::builder("uncoded").workers(1).steps(1).length(3);
        let served = run.serve("127.0.0.1:0", security.clone()).unwrap();
        let worker = Aggregator::join(served.address().to_string()).security(security);
        let worker = worker.connect().unwrap();
        served.stopper().stop();
        assert_eq!(served.run(&mut ()).unwrap(), Outcome::Stopped);
        drop(worker);
        // Nor where it cannot begin: without TLS, or at a port that is taken.
        let refused = |address: &str| {
            let run = Coordinator::builder("uncoded").workers(1).steps(1).length(3);
            run.serve(address, plain()).map(drop).unwrap_err().to_string()
        };
        let exposed = refused("0.0.0.0:0");
        assert!(exposed.contains("stay on this host"), "{exposed}");
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = refused(&other.local_addr().unwrap().to_string());
        assert!(taken.contains("cannot listen"), "{taken}");
    });
}

/// The run does not give up what holds wrong workers off for a lost one.
#[test]
fn a_vote_is_not_replaced_by_what_trusts_everybody() {
    let run = |scheme| {
        let run = Coordinator::builder(scheme).workers(3).steps(20).length(3);
        let run = run.units(UNITS).unit_samples(UNIT_SAMPLES).min_workers(1);
        let (coordinator, mut workers) = run.max_wait(Duration::from_secs(5)).local().unwrap();
        workers.truncate(1);
        let threads: Vec<_> =
            workers.into_iter().map(|worker| thread::spawn(move || train_owned(worker))).collect();
        let outcome = coordinator.run(&mut ());
        threads.into_iter().for_each(|thread| drop(thread.join()));
        outcome
    };
    assert_eq!(run("uncoded").unwrap(), Outcome::Finished, "for the one who is left");
    assert!(run("vote:s=0,b=1").is_err());
}
