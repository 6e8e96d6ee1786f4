//! A worker that is written in Python beside workers in Rust. docs/protocol.md is what it was
//! written from.

use crate::bare::Bare;
use crate::integers::{Job, RUN, Secret, Watch, coordinate, join, listen, run_locally, secret};
use crate::tampering::{Harm, Passing, once, proxy};
use codedgrad::ids::{Step, Worker};
use codedgrad::run::NumberFormat;
use codedgrad::sums::{CHUNK, Header, Kind};
use codedgrad::train::Outcome;
use codedgrad::transport::tcp::{Exchange, TcpTransport};
use codedgrad::transport::wire::VERSION;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const PYTHON: u32 = 2;

/// A Python worker that is killed when it is no longer needed.
struct Python {
    child: Child,
    _token: TempDir,
}

impl Python {
    /// None if there is no Python here and that is allowed.
    fn start(address: &str, secret: &Secret) -> Option<Self> {
        if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(
                std::env::var_os("CODEDGRAD_NO_PYTHON").is_some(),
                "there is no python3 here, so the worker in Python cannot be tried; set \
                 CODEDGRAD_NO_PYTHON=1 to do without"
            );
            eprintln!("skipped: there is no python3 here");
            return None;
        }
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/python_worker.py");
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, &secret.hex).unwrap();
        let mut command = Command::new("python3");
        command.arg(script).arg(address).arg(&token).arg("python").arg(PYTHON.to_string());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Some(Self { child, _token: folder })
    }

    /// What it says at its end: the first step it has not applied, and a checksum of its
    /// parameters.
    fn ends_with(mut self) -> (u64, u64) {
        let (mut text, mut errors) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(self.child.wait().unwrap().success(), "{errors}");
        let end: Value = serde_json::from_str(&text).unwrap();
        (end["next"].as_u64().unwrap(), end["crc"].as_u64().unwrap())
    }

    /// Ends it as `kill -9` does.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Begins a run whose other workers are threads, each of which computes the steps that it `may`.
fn begin<F: Fn(u64) -> bool + Send + 'static>(
    job: Job,
    transport: &mut TcpTransport,
    secret: &Secret,
    may: impl Fn() -> F,
) -> Vec<JoinHandle<Vec<f32>>> {
    let address = transport.address().to_string();
    let threads = (0..PYTHON).map(|worker| join(job, worker, address.clone(), secret, may()));
    let threads = threads.collect();
    assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
    transport.begin(Step(0));
    threads
}

fn crc(parameters: &[f32]) -> u64 {
    let bytes: Vec<u8> = parameters.iter().flat_map(|p| p.to_le_bytes()).collect();
    u64::from(crc32fast::hash(&bytes))
}

const JOBS: [Job; 2] = [
    Job { scheme: "groups:s=1", length: CHUNK + 77, steps: 8, exchange: Exchange::Star },
    Job { scheme: "queue:m=1", length: 300, steps: 12, exchange: Exchange::Star },
];

#[test]
fn python_and_rust_train_with_the_same_bits() {
    for job in JOBS {
        let (expected, parameters) = run_locally(job);
        let secret = secret();
        let mut transport = listen(job, &secret);
        let address = transport.address().to_string();
        let Some(python) = Python::start(&address, &secret) else { return };
        let decided = Arc::new(AtomicU64::new(0));
        // One step is the Python worker's alone.
        let may =
            |decided: Arc<AtomicU64>| move |step| step != 2 || decided.load(Ordering::Acquire) > 2;
        let threads = begin(job, &mut transport, &secret, || may(Arc::clone(&decided)));
        let mut watch = Watch::new(|step| decided.store(step + 1, Ordering::Release));
        assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
        assert!(watch.log.faults.is_empty(), "{:?}", watch.log.faults);
        let mut spent = watch.log.records.iter().flat_map(|record| &record.spent);
        let all_of_python = spent.any(|it| it.worker.0 == PYTHON && it.progress == 1.0);
        assert!(all_of_python, "it says what it has computed");
        assert_eq!(watch.log.gradients, expected.gradients, "{}", job.scheme);
        let tails = |records: &[codedgrad::train::StepRecord]| {
            records.iter().map(|record| record.aux.clone()).collect::<Vec<_>>()
        };
        assert_eq!(tails(&watch.log.records), tails(&expected.records));
        assert_eq!(watch.log.records[2].survivors, [Worker(PYTHON)], "its results counted");
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == parameters));
        assert_eq!(python.ends_with(), (job.steps, crc(&parameters)), "it has applied every step");
    }
}

#[test]
fn a_run_goes_on_without_a_python_worker_that_is_killed() {
    for job in JOBS {
        let (expected, parameters) = run_locally(job);
        let secret = secret();
        let mut transport = listen(job, &secret);
        let address = transport.address().to_string();
        let Some(python) = Python::start(&address, &secret) else { return };
        let python = RefCell::new(python);
        let threads = begin(job, &mut transport, &secret, || |_| true);
        let status = transport.status();
        let mut watch = Watch::new(|step| {
            if step == 3 {
                python.borrow_mut().kill();
                while status.lock().unwrap().workers[PYTHON as usize].connected {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
        assert!(
            watch.log.faults.iter().any(|fault| fault.1 == PYTHON && fault.2.starts_with("lost")),
            "{:?}",
            watch.log.faults
        );
        assert_eq!(watch.log.gradients, expected.gradients, "{}", job.scheme);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == parameters));
    }
}

#[test]
fn a_python_worker_that_is_told_to_end_leaves() {
    let job = JOBS[0];
    let (expected, parameters) = run_locally(job);
    let secret = secret();
    let mut transport = listen(job, &secret);
    let address = transport.address().to_string();
    let Some(python) = Python::start(&address, &secret) else { return };
    let threads = begin(job, &mut transport, &secret, || |_| true);
    let number = python.child.id().to_string();
    let mut watch = Watch::new(move |step| {
        if step == 1 {
            let told = Command::new("kill").arg(&number).status();
            assert!(told.unwrap().success());
            // It says so while it waits, twice a second.
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
    let said: Vec<&str> = watch.log.faults.iter().map(|fault| fault.2.as_str()).collect();
    assert_eq!(said, ["is about to leave, within 20 s", "left the run after giving notice"]);
    assert_eq!(watch.log.gradients, expected.gradients);
    assert!(threads.into_iter().all(|thread| thread.join().unwrap() == parameters));
    let (next, _) = python.ends_with();
    assert!(next < job.steps, "it had left before the last step: {next}");
}

#[test]
fn a_python_worker_whose_connection_loses_a_step_is_sent_it_again() {
    let job = JOBS[0];
    let (expected, parameters) = run_locally(job);
    let secret = secret();
    let mut transport = listen(job, &secret);
    let address = transport.address().to_string();
    let is_step_3 = |passing: &Passing| passing.is("apply") && passing.said["step"] == 3;
    let (proxy, calls) = proxy(&address, once(is_step_3, Harm::Drop));
    let Some(python) = Python::start(&proxy, &secret) else { return };
    let threads = begin(job, &mut transport, &secret, || |_| true);
    let mut watch = Watch::new(|_| {});
    assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
    assert_eq!(watch.log.gradients, expected.gradients);
    assert!(threads.into_iter().all(|thread| thread.join().unwrap() == parameters));
    assert_eq!(python.ends_with(), (job.steps, crc(&parameters)));
    assert_eq!(calls.load(Ordering::Acquire), 1, "{:?}", watch.log.faults);
}

const LENGTH: usize = CHUNK + 2;

fn numbers(value: f32, count: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(count)
}

/// Sends a vector that is the same everywhere, last chunk first.
fn send(worker: &mut Bare, kind: Kind, number: u64, attempt: u32, value: f32) {
    for (offset, count) in [(CHUNK, LENGTH - CHUNK), (0, CHUNK)] {
        let header = Header::chunk(kind, NumberFormat::F32, offset, count);
        let header =
            Header { run: RUN, layout: 77, number, attempt, finite: value.is_finite(), ..header };
        worker.put(&header, &numbers(value, count));
    }
}

fn expect_state(worker: &mut Bare, needy: u32, transfer: u64, next: u64, value: f32) {
    assert_eq!(
        worker.hear(),
        json!({"type": "state", "needy": needy, "transfer": transfer, "next": next,
            "lengths": [LENGTH]})
    );
    for offset in [0, CHUNK] {
        let (header, body) = worker.next();
        assert_eq!(
            (header.kind, header.number, header.offset, header.piece),
            (Kind::State, transfer, offset as u64, 0)
        );
        assert_eq!(body, numbers(value, header.count()));
    }
}

/// Plays the coordinator by hand, frame by frame, where a run would need luck to have everything
/// happen.
#[test]
fn the_python_worker_does_what_the_protocol_says() {
    let secret = secret();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let Some(python) = Python::start(&listener.local_addr().unwrap().to_string(), &secret) else {
        return;
    };
    let mut worker = Bare::answer(&listener, &secret.hex);
    let mut hello = worker.hear();
    assert!(hello["process"].is_u64(), "{hello}");
    hello["process"] = Value::Null;
    let expected = json!({"type": "hello", "worker": PYTHON, "identity": "python", "process": null,
        "address": null, "offer": null});
    assert_eq!(hello, expected);
    worker.tell(&json!({
        "type": "welcome", "worker": PYTHON, "workers": 3, "run": RUN, "epoch": 1, "length": LENGTH,
        "layout": 77, "first": 0,
        "micro_steps": 1, "log_steps": 4, "format": "f32", "job": "{\"unit_samples\":1}"
    }));
    assert_eq!(
        worker.hear(),
        json!({"type": "facts", "facts": {"length": LENGTH, "unit_samples": 1}})
    );
    // A ping is answered whatever else is going on.
    worker.tell(&json!({"type": "peers", "peers": []}));
    worker.tell(&json!({"type": "ping", "number": 9}));
    assert_eq!(worker.hear(), json!({"type": "pong", "number": 9}));
    computes_and_contributes(&mut worker);
    applies_and_hands_over(&mut worker);
    waits_for_a_state_where_a_step_was_left_out(&mut worker);
    computes_nothing_before_the_step_that_it_needs(&mut worker);
    worker.tell(&json!({"type": "stop", "after": [10]}));
    worker.tell(&json!({"type": "skip", "step": 10, "units": []}));
    assert_eq!(worker.hear(), json!({"type": "applied", "step": 10, "digest": null}));
    assert_eq!(python.ends_with(), (11, crc(&[0.75; LENGTH])));
    assert_eq!(VERSION, 10, "the worker in Python speaks this version");
}

/// A message without what a task took, and the units of it that were finished.
fn spent(mut message: Value) -> (Value, u64) {
    let fields = message.as_object_mut().unwrap();
    let computed = fields.remove("computed").unwrap().as_f64().unwrap();
    assert!(computed >= 0.0, "{computed}");
    let units = fields.remove("units").unwrap().as_u64().unwrap();
    (message, units)
}

fn computes_and_contributes(worker: &mut Bare) {
    // Two tasks with other coefficients than 1. At parameters 0 the gradient of sample 0 of batch 0
    // begins with 50, 43.
    let task = |piece: u32, start: u32, end: u32, coefficient: f64| {
        json!({"task": {"job": 0,
        "piece": piece}, "parts": [{"units": {"start": start, "end": end},
        "coefficient": coefficient}]})
    };
    let done = |order: u64, piece: u32, aux: f64| {
        json!({"type": "done", "order": order,
        "task": {"job": 0, "piece": piece}, "aux": [aux], "finite": true})
    };
    let compute = json!({"type": "compute", "order": 1, "tasks": [task(0, 0, 1, 2.0), task(1, 0, 2,
        -0.5), task(2, 0, 1, 1.0)]});
    worker.tell(&compute);
    for (piece, aux, units) in [(0, 2.0, 1), (1, -1.0, 2), (2, 1.0, 1)] {
        assert_eq!(spent(worker.hear()), (done(1, piece, aux), units));
    }
    // An order of very many units is dropped between two of them.
    worker.tell(&json!({"type": "compute", "order": 2, "tasks": [task(3, 0, 100_000, 1.0)]}));
    // The word to drop the order before has crossed its last answer.
    worker.tell(&json!({"type": "abandon", "order": 1}));
    worker.tell(&json!({"type": "abandon", "order": 2}));
    let (idle, units) = spent(worker.hear());
    assert_eq!(idle, json!({"type": "idle", "order": 2}));
    assert!(units < 100_000, "{units}");
    // Tasks 1 and 2 go into the exchange, and task 2 is discarded then.
    let holder =
        |worker: u32, piece: u32| json!({"worker": worker, "task": {"job": 0, "piece": piece}});
    let mut exchange = json!({"type": "sum.exchange", "step": 0, "attempt": 2, "terms": [
        {"weight": 4.0, "holders": [holder(PYTHON, 1)]},
        {"weight": 1.0, "holders": [holder(1, 2), holder(PYTHON, 2)]},
        {"weight": 0.5, "holders": [holder(PYTHON, 2), holder(1, 2)]},
    ], "owners": [{"node": u32::MAX, "start": 0, "end": 2}], "receivers": [0, 1, PYTHON, u32::MAX]});
    sends_terms(worker, &exchange, 2, [0, 2]);
    // CollectiveCommand of what it holds only.
    exchange["attempt"] = json!(3);
    (exchange["places"], exchange["receivers"]) = (json!([1, 4, 7]), json!([]));
    sends_terms(worker, &exchange, 3, [1, 7]);
    worker.tell(&json!({"type": "sum.discard", "task": {"job": 0, "piece": 2}}));
}

/// Two terms are its to send.
fn sends_terms(worker: &mut Bare, exchange: &Value, attempt: u32, pieces: [u32; 2]) {
    worker.tell(exchange);
    // Element 0: -0.5 * (50 + 37) = -43.5 in task 1, 50 in task 2.
    for (piece, first) in pieces.into_iter().zip([-43.5f32, 50.0]) {
        for (offset, count) in [(0, CHUNK), (CHUNK, 2)] {
            let (header, body) = worker.next();
            assert_eq!(
                (header.kind, header.number, header.attempt, header.piece),
                (Kind::Term, 0, attempt, piece)
            );
            assert_eq!(
                (header.offset, header.count(), header.run, header.layout),
                (offset as u64, count, RUN, 77)
            );
            assert!(offset > 0 || body[..4] == first.to_le_bytes(), "piece {piece}");
        }
    }
}

fn applies_and_hands_over(worker: &mut Bare) {
    // The sum comes, in any order; it is applied when that is decided.
    send(worker, Kind::Sum, 0, 3, 64.0);
    assert_eq!(worker.hear(), json!({"type": "sum.held", "step": 0, "attempt": 3, "digest": null}));
    worker.tell(&json!({"type": "sum.release", "step": 0, "end": 1}));
    worker.tell(&json!({"type": "apply", "step": 0, "attempt": 3, "digest": 5, "aux": [1.0]}));
    assert_eq!(worker.hear(), json!({"type": "applied", "step": 0, "digest": null}));
    // A sum that is not finite is never applied; its step is refused.
    send(worker, Kind::Sum, 1, 0, f32::INFINITY);
    assert_eq!(worker.hear(), json!({"type": "sum.not_finite", "step": 1, "attempt": 0}));
    // What is decided later waits for what was decided before, and asks for what does not come.
    worker.tell(&json!({"type": "skip", "step": 1, "units": [{"start": 0, "end": 3}]}));
    worker.tell(&json!({"type": "apply", "step": 2, "attempt": 0, "digest": 5, "aux": []}));
    worker.tell(&json!({"type": "send_state", "needy": 1}));
    assert_eq!(worker.hear(), json!({"type": "applied", "step": 1, "digest": null}));
    assert_eq!(worker.hear(), json!({"type": "step_unavailable", "step": 2}));
    send(worker, Kind::Sum, 2, 0, 32.0);
    assert_eq!(worker.hear(), json!({"type": "sum.held", "step": 2, "attempt": 0, "digest": null}));
    assert_eq!(worker.hear(), json!({"type": "applied", "step": 2, "digest": null}));
    expect_state(worker, 1, 1, 3, -1.5);
    // It takes over a state instead of a step that it cannot get, and skips what that has applied.
    worker.tell(&json!({"type": "apply", "step": 3, "attempt": 0, "digest": 5, "aux": []}));
    assert_eq!(worker.hear(), json!({"type": "step_unavailable", "step": 3}));
    worker.tell(&json!({"type": "load_state", "transfer": 12, "next": 7, "lengths": [LENGTH]}));
    send(worker, Kind::State, 12, 0, 0.25);
    assert_eq!(worker.hear(), json!({"type": "state_loaded", "transfer": 12, "digests": []}));
    worker.tell(&json!({"type": "apply", "step": 6, "attempt": 0, "digest": 5, "aux": []}));
    worker.tell(&json!({"type": "skip", "step": 5, "units": []}));
    worker.tell(&json!({"type": "send_state", "needy": 0}));
    expect_state(worker, 0, 2, 7, 0.25);
}

/// Its first step that is not applied is 7: one after it is not applied, and nothing is computed
/// that comes after that.
fn waits_for_a_state_where_a_step_was_left_out(worker: &mut Bare) {
    worker.tell(
        &json!({"type": "apply", "epoch": 2, "step": 7, "attempt": 0, "digest": 5, "aux": []}),
    );
    worker.tell(&json!({"type": "skip", "epoch": 1, "step": 8, "units": []}));
    worker.tell(&json!({"type": "compute", "epoch": 1, "order": 3, "tasks": []}));
    worker.tell(&json!({"type": "send_state", "epoch": 1, "needy": 0}));
    assert_eq!(
        worker.hear(),
        json!({"type": "step_unavailable", "step": 7}),
        "what is for another connection is void"
    );
    assert_eq!(worker.hear(), json!({"type": "step_unavailable", "step": 7}));
    worker.tell(
        &json!({"type": "load_state", "epoch": 1, "transfer": 13, "next": 9, "lengths": [LENGTH]}),
    );
    send(worker, Kind::State, 13, 0, 0.75);
    // Said once more while the state was on its way, or not.
    let mut said = worker.hear();
    while said == json!({"type": "step_unavailable", "step": 7}) {
        said = worker.hear();
    }
    assert_eq!(said, json!({"type": "state_loaded", "transfer": 13, "digests": []}));
}

/// What overtook a step on its way is computed after it.
fn computes_nothing_before_the_step_that_it_needs(worker: &mut Bare) {
    let task = json!({"job": 10, "piece": 0});
    let tasks = json!([{"task": task, "parts": []}]);
    worker
        .tell(&json!({"type": "compute", "epoch": 1, "order": 4, "after": [8, 9], "tasks": tasks}));
    assert_eq!(worker.hear(), json!({"type": "step_unavailable", "step": 9}));
    worker
        .tell(&json!({"type": "compute", "epoch": 1, "order": 4, "after": [8, 9], "tasks": tasks}));
    worker.tell(&json!({"type": "skip", "step": 9, "units": []}));
    assert_eq!(worker.hear(), json!({"type": "applied", "step": 9, "digest": null}));
    let done = json!({"type": "done", "order": 4, "task": task, "aux": [0.0], "finite": true});
    assert_eq!(spent(worker.hear()), (done, 0));
}
