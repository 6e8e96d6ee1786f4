//! Workers whose connections end and that call again: they are told every step, in order and from
//! the one they offered, whatever the coordinator decides before it hears of their return.

use crate::bare::{self, Bare};
use crate::integers::{Job, RUN, Secret, Watch, coordinate, join, listen, run_locally, secret};
use codedgrad::ids::Step;
use codedgrad::run::NumberFormat;
use codedgrad::sums::{COORDINATOR, Header, Kind};
use codedgrad::train::Outcome;
use codedgrad::transport::tcp::{Exchange, TcpTransport};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

/// The number of the worker that calls again; those below it are honest workers that stay.
const CALLER: u32 = 2;
const STEPS: u64 = 120;
/// Most steps that the caller is behind what is decided: few enough to be sent to it one by one.
const BEHIND_MAX: u64 = 5;

/// A worker that computes nothing, takes every step it is told, and calls again when its connection
/// is cut.
struct Caller {
    address: String,
    token: String,
    call: Bare,
    epoch: u64,
    /// First step that it has not been told.
    next: u64,
    /// What it offered on this connection.
    offered: Option<u64>,
    calls: u64,
}

impl Caller {
    fn begin(address: String, secret: &Secret) -> Self {
        let call = Bare::call(&address, &secret.hex).unwrap();
        let mut caller = Self {
            address,
            token: secret.hex.clone(),
            call,
            epoch: 0,
            next: 0,
            offered: None,
            calls: 0,
        };
        caller.hello();
        caller
    }

    fn hello(&mut self) {
        let offer = self.offered.map(|next| json!({"run": RUN, "epoch": self.epoch, "next": next}));
        self.call.tell(&json!({
            "type": "hello", "worker": CALLER, "identity": "caller", "process": 7, "address": null,
            "offer": offer, "supports_collectives": false
        }));
        let welcome = self.call.hear();
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        let epoch = welcome["epoch"].as_u64().unwrap();
        assert!(epoch > self.epoch, "epochs grow: {epoch} after {}", self.epoch);
        self.epoch = epoch;
    }

    /// The connection ends with whatever is on its way on it, and there is another at once.
    fn calls_again(&mut self) {
        let _ = self.call.0.shutdown(Shutdown::Both);
        self.call = Bare::call(&self.address, &self.token).unwrap();
        (self.offered, self.calls) = (Some(self.next), self.calls + 1);
        self.hello();
    }

    /// Takes one frame.
    fn takes(&mut self) {
        let (header, body) = self.call.next();
        if header.kind != Kind::Control {
            return;
        }
        let message: Value = bare::told(&body);
        // What is marked as meant for an earlier connection is void.
        let meant = message.get("epoch").is_none_or(|epoch| *epoch == self.epoch);
        match message["type"].as_str().unwrap() {
            kind @ ("apply" | "skip") if meant => {
                let step = message["step"].as_u64().unwrap();
                assert_eq!(
                    step, self.next,
                    "call {}: offered {:?}, told to {kind} {step}, due is {}",
                    self.calls, self.offered, self.next
                );
                self.next = step + 1;
                self.call.tell(&json!({"type": "applied", "step": step, "digest": null}));
            }
            "ping" => self.call.tell(&json!({"type": "pong", "number": message["number"]})),
            "load_state" if meant => panic!(
                "call {}: offered {:?}, which is recent, and told to {message}",
                self.calls, self.offered
            ),
            "stop" => panic!("call {}: told to stop before step {}", self.calls, self.next),
            _ => {}
        }
    }

    /// Takes messages until it was told all steps below one.
    fn takes_steps_below(&mut self, end: u64) {
        while self.next < end {
            self.takes();
        }
    }
}

/// A run of which one worker's connection ends again and again, always while the coordinator is
/// about to send a step: the new connection is there before the coordinator hears that the old one
/// is gone.
fn calls_again_and_again(exchange: Exchange, seed: u64) {
    let job = Job { scheme: "groups:s=1", length: 300, steps: STEPS, exchange };
    let (expected, parameters) = run_locally(job);
    let secret = secret();
    let mut transport: TcpTransport = listen(job, &secret);
    let address = transport.address().to_string();
    let honest: Vec<_> =
        (0..CALLER).map(|worker| join(job, worker, address.clone(), &secret, |_| true)).collect();
    let mut caller = Some(Caller::begin(address, &secret));
    assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
    transport.begin(Step(0));
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut last, mut calls) = (None, 0);
    // The coordinator waits in here, with the order to apply the step still to be given.
    let mut watch = Watch::new(|step| {
        let Some(mut calling) = caller.take() else { return };
        if random.random_bool(0.7) {
            let least = calling.next.max(step.saturating_sub(BEHIND_MAX));
            calling.takes_steps_below(random.random_range(least..=step));
            calling.calls_again();
        }
        calls = calling.calls;
        match step + 1 {
            STEPS => last = Some(thread::spawn(move || calling.takes_steps_below(STEPS))),
            _ => caller = Some(calling),
        }
    });
    assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
    let log = std::mem::take(&mut watch.log);
    drop(watch);
    last.unwrap().join().expect("it is told all of them");
    assert!(calls > STEPS / 4, "{calls}");
    assert!(
        log.faults.iter().all(|fault| fault.1 == CALLER),
        "no other worker is lost: {:?}",
        log.faults
    );
    let seen = log.gradients == expected.gradients || exchange == Exchange::Sharded;
    assert!(seen, "{exchange:?}: {:?}", log.faults);
    assert!(honest.into_iter().all(|worker| worker.join().unwrap() == parameters), "{exchange:?}");
}

#[test]
fn whoever_calls_again_is_told_every_step_from_the_one_it_offers() {
    // Most of the time of each is the last words of its connections.
    thread::scope(|scope| {
        for (seed, exchange) in (1..).zip([Exchange::Star, Exchange::Sharded, Exchange::Hold]) {
            scope.spawn(move || calls_again_and_again(exchange, seed));
        }
    });
}

const LENGTH: usize = 4;

/// Sends a worker the sum of a step, and tells it to apply that.
fn decide(worker: &mut Bare, step: u64) {
    let header = Header::chunk(Kind::Sum, NumberFormat::F32, 0, LENGTH);
    let header =
        Header { run: RUN, layout: 77, worker: COORDINATOR, number: step, finite: true, ..header };
    worker.put(&header, &64f32.to_le_bytes().repeat(LENGTH));
    let held = hear(worker, "sum.held");
    assert_eq!(held["step"], step);
    worker.tell(&json!({"type": "apply", "epoch": 1, "step": step, "attempt": 0,
        "digest": held["digest"], "aux": []}));
}

/// The next message of a kind; before it, no step is applied.
fn hear(worker: &mut Bare, kind: &str) -> Value {
    loop {
        let message = worker.hear();
        if message["type"] == kind {
            return message;
        }
        assert_ne!(message["type"], "applied", "{kind} was due: {message}");
    }
}

/// A coordinator that is played by hand leaves out a step, as none should.
#[test]
fn a_worker_that_is_not_told_a_step_applies_none_after_it() {
    let secret = secret();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let job = Job { scheme: "uncoded", length: LENGTH, steps: 4, exchange: Exchange::Star };
    let trained = join(job, 0, address, &secret, |_| true);
    let mut worker = Bare::answer(&listener, &secret.hex);
    hear(&mut worker, "hello");
    worker.tell(&json!({
        "type": "welcome", "worker": 0, "workers": 1, "run": RUN, "epoch": 1, "length": LENGTH,
        "layout": 77, "first": 0,
        "micro_steps": 1, "log_steps": 4, "format": "f32", "eager": false, "silence": 60.0, "job": ""
    }));
    decide(&mut worker, 0);
    assert_eq!(hear(&mut worker, "applied")["step"], 0);
    decide(&mut worker, 2);
    hear(&mut worker, "step_unavailable");
    // What it lacks comes as a state, in which everything below step 3 is applied.
    worker.tell(
        &json!({"type": "load_state", "epoch": 1, "transfer": 1, "next": 3, "lengths": [LENGTH]}),
    );
    let header = Header::chunk(Kind::State, NumberFormat::F32, 0, LENGTH);
    let header = Header { run: RUN, layout: 77, worker: COORDINATOR, number: 1, ..header };
    worker.put(&header, &(-9f32).to_le_bytes().repeat(LENGTH));
    decide(&mut worker, 3);
    assert_eq!(hear(&mut worker, "applied")["step"], 3);
    worker.tell(&json!({"type": "stop"}));
    assert_eq!(trained.join().unwrap(), [-10.0; LENGTH]);
}
