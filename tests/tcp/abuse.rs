//! What strangers and workers gone wrong do to a coordinator while a run is going on: each is
//! refused or loses its own connection, and the run has the gradients it has without them.

use crate::bare::{self, Bare, wait_for};
use crate::integers::{
    Job, Log, RUN, Secret, UNIT_SAMPLES, UNITS, Watch, add_gradient, coordinate, coordinate_at,
    join, listen, run_locally, secret,
};
use codedgrad::delays::{Delays, Preset};
use codedgrad::ids::{Step, Worker};
use codedgrad::sums::{CHUNK, Header, Kind, chunk_range};
use codedgrad::train::{Outcome, RunClock, VirtualClock};
use codedgrad::transport::tcp::{Exchange, TcpStatus, TcpTransport};
use codedgrad::transport::wire::{CONTROL_BYTES_MAX, HELLO_BYTES_MAX};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The number that those who misbehave take; the workers below it are honest.
const EVIL: u32 = 2;
/// Calls that may be proving themselves at once: strangers and workers, and the workers.
#[cfg(target_os = "linux")]
const CONNECTIONS_MAX: usize = 64 + 3 + 3;

/// A run that goes on for as many steps as it is allowed.
struct Scene {
    job: Job,
    secret: Secret,
    address: String,
    allowed: Arc<AtomicU64>,
    decided: Arc<AtomicU64>,
    status: Arc<Mutex<TcpStatus>>,
    layout: u64,
}

type Abuse = (&'static str, fn(&Scene));
type Running = (JoinHandle<Log>, Vec<JoinHandle<Vec<f32>>>);

impl Scene {
    fn new(job: Job) -> (Self, TcpTransport, Vec<JoinHandle<Vec<f32>>>) {
        let secret = secret();
        let transport = listen(job, &secret);
        let address = transport.address().to_string();
        let allowed = Arc::new(AtomicU64::new(0));
        let may = |allowed: Arc<AtomicU64>| move |step| step < allowed.load(Ordering::Acquire);
        let honest = (0..EVIL)
            .map(|worker| join(job, worker, address.clone(), &secret, may(Arc::clone(&allowed))))
            .collect();
        let (decided, status) = (Arc::default(), transport.status());
        (Self { job, secret, address, allowed, decided, status, layout: 0 }, transport, honest)
    }

    /// Begins the run, once all are there.
    fn begin(&self, mut transport: TcpTransport, honest: Vec<JoinHandle<Vec<f32>>>) -> Running {
        assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
        transport.begin(Step(0));
        let (job, decided) = (self.job, Arc::clone(&self.decided));
        let coordinator = thread::spawn(move || {
            let mut watch = Watch::new(move |step| decided.store(step + 1, Ordering::Release));
            assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
            watch.log
        });
        (coordinator, honest)
    }

    /// Lets the run go on by so many steps, and sees that it does.
    fn goes_on(&self, steps: u64, after: &str) {
        let goal = self.allowed.fetch_add(steps, Ordering::AcqRel) + steps;
        wait_for(&format!("the run to go on after: {after}"), || {
            self.decided.load(Ordering::Acquire) >= goal
        });
    }

    fn refused(&self) -> u64 {
        self.status.lock().unwrap().refused
    }

    fn call(&self) -> Bare {
        Bare::call(&self.address, &self.secret.hex).unwrap()
    }

    fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Takes the number of those who misbehave.
    fn seat(&self) -> Bare {
        let mut call = self.call();
        call.tell(&hello(Some(EVIL), "evil"));
        assert_eq!(call.hear()["type"], "welcome");
        call
    }

    fn term(&self, offset: usize, count: usize) -> Header {
        let header = Header::chunk(Kind::Term, Default::default(), offset, count);
        Header { run: RUN, layout: self.layout, worker: EVIL, epoch: 1, ..header }
    }
}

fn hello(worker: Option<u32>, identity: &str) -> Value {
    json!({"type": "hello", "worker": worker, "identity": identity, "process": 7, "address": null,
        "offer": null, "supports_collectives": true})
}

/// Sees that the other side hangs up, whatever it has to say before.
fn ends(stream: &mut TcpStream, what: &str) {
    let mut bytes = [0; 1 << 16];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert!(
                    !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                    "{what}: the connection is still there"
                );
                return;
            }
        }
    }
}

/// Connections that the listener's process has on its port.
#[cfg(target_os = "linux")]
fn connections(address: &str) -> usize {
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let local = format!(":{port:04X} ");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let established = |line: &&str| {
        let mut words = line.split_whitespace();
        let (here, state) = (words.nth(1).unwrap_or_default(), words.nth(1).unwrap_or_default());
        format!("{here} ").ends_with(&local) && state == "01"
    };
    table.lines().filter(established).count()
}

/// Strangers, who do not know the token or do not get as far as to show it.
fn strangers() -> Vec<Abuse> {
    fn say(scene: &Scene, bytes: &[u8], what: &str) {
        let before = scene.refused();
        let mut stream = scene.stranger();
        let _ = stream.write_all(bytes);
        ends(&mut stream, what);
        wait_for("the refusal to be counted", || scene.refused() > before);
    }
    vec![
        ("garbage", |scene| say(scene, &[0xa5; 4096], "garbage")),
        ("another protocol", |scene| say(scene, b"GET / HTTP/1.1\r\n\r\n", "another protocol")),
        ("TLS to a plain port", |scene| {
            say(scene, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS");
        }),
        ("another version", |scene| say(scene, b"CGRAD\0\x09\0", "another version")),
        ("a wrong proof", |scene| {
            say(scene, &[b"CGRAD\0\x01\0", &[7; 64][..]].concat(), "a wrong proof");
        }),
        ("half a handshake, and silence", |scene| {
            say(scene, b"CGRAD\0\x01\0\x07\x07", "half a handshake");
        }),
        ("half a handshake, and gone", |scene| {
            let before = scene.refused();
            scene.stranger().write_all(b"CGRAD\0\x01\0\x07\x07").unwrap();
            wait_for("the refusal", || scene.refused() > before);
        }),
        ("eighty who say nothing", |scene| {
            let mut silent: Vec<TcpStream> = (0..80).map(|_| scene.stranger()).collect();
            scene.goes_on(1, "eighty who say nothing are there");
            #[cfg(target_os = "linux")]
            wait_for("those beyond the limit to be sent away", || {
                connections(&scene.address) <= CONNECTIONS_MAX
            });
            silent.iter_mut().for_each(|stream| ends(stream, "silence"));
        }),
    ]
}

/// Those who know the token, and are no workers of this run.
fn callers() -> Vec<Abuse> {
    fn refused(scene: &Scene, message: &Value, reason: &str) {
        let mut call = scene.call();
        call.tell(message);
        let answer = call.hear();
        assert_eq!(answer["type"], "refused");
        assert!(answer["reason"].as_str().unwrap().contains(reason), "{answer}");
        ends(&mut call.0, reason);
    }
    fn hung_up_on(scene: &Scene, header: &Header, body: &[u8]) {
        let mut call = scene.call();
        call.0.write_all(&[&header.encode(), body].concat()).unwrap();
        ends(&mut call.0, "what is no hello");
    }
    vec![
        ("a number that is taken", |scene| {
            refused(scene, &hello(Some(0), "another worker"), "already there");
        }),
        ("a number that is none", |scene| {
            refused(scene, &hello(Some(3), "the fourth"), "there is no worker 3");
        }),
        ("the coordinator's number", |scene| {
            refused(scene, &hello(Some(u32::MAX), "me"), "there is no worker");
        }),
        ("no hello", |scene| hung_up_on(scene, &Header::control(21), br#"{"pong":{"number":1}}"#)),
        ("no message", |scene| hung_up_on(scene, &Header::control(2), b"{}")),
        ("a chunk first", |scene| hung_up_on(scene, &scene.term(0, 1), &[0; 4])),
        ("a hello that is too long", |scene| {
            hung_up_on(scene, &Header::control(HELLO_BYTES_MAX + 1), &[b' '; 100]);
        }),
        ("half a hello, and silence", |scene| hung_up_on(scene, &Header::control(100), b"{")),
    ]
}

/// Workers of this run that go wrong.
fn workers() -> Vec<Abuse> {
    fn lost(scene: &Scene, bytes: &[u8]) {
        let mut call = scene.seat();
        call.0.write_all(bytes).unwrap();
        ends(&mut call.0, "a worker gone wrong");
        wait_for("the loss to be known", || {
            !scene.status.lock().unwrap().workers[EVIL as usize].connected
        });
    }
    fn frame(header: &Header, body: &[u8]) -> Vec<u8> {
        [&header.encode()[..], body].concat()
    }
    fn message(text: &str) -> Vec<u8> {
        frame(&Header::control(text.len()), text.as_bytes())
    }
    vec![
        ("no frame", |scene| lost(scene, &[0x5a; 200])),
        ("a damaged header", |scene| {
            let mut bytes = frame(&scene.term(0, 1), &[0; 4]);
            bytes[30] ^= 1;
            lost(scene, &bytes);
        }),
        ("a chunk of another run", |scene| {
            lost(scene, &frame(&Header { run: RUN + 1, ..scene.term(0, 1) }, &[0; 4]));
        }),
        ("a chunk of another layout", |scene| {
            lost(scene, &frame(&Header { layout: 1, ..scene.term(0, 1) }, &[0; 4]));
        }),
        ("a chunk in another's name", |scene| {
            lost(scene, &frame(&Header { worker: 0, ..scene.term(0, 1) }, &[0; 4]));
        }),
        ("a damaged chunk", |scene| {
            lost(scene, &frame(&Header { digest: 1, ..scene.term(0, 1) }, &[0; 4]));
        }),
        ("a chunk that is too long", |scene| {
            lost(scene, &Header { length: 4 * CHUNK as u32 + 4, ..scene.term(0, 1) }.encode());
        }),
        ("a chunk of another length", |scene| {
            lost(scene, &frame(&Header { number: next(scene), ..scene.term(CHUNK, 3) }, &[0; 12]));
        }),
        ("a chunk that lies across others", |scene| {
            lost(
                scene,
                &frame(
                    &Header { kind: Kind::Sum, number: next(scene), ..scene.term(1, 1) },
                    &[0; 4],
                ),
            );
        }),
        ("a chunk of a far step", |scene| {
            lost(scene, &frame(&Header { number: 1 << 40, ..scene.term(0, 1) }, &[0; 4]));
        }),
        ("a message of the wrong side", |scene| lost(scene, &message(r#"{"ping":{"number":1}}"#))),
        ("a message among workers", |scene| {
            lost(scene, &message(r#"{"peer":{"worker":2,"run":1,"epoch":1}}"#));
        }),
        ("a message that is none", |scene| lost(scene, &message("[1, 2"))),
        ("a message that is too long", |scene| {
            lost(scene, &Header::control(CONTROL_BYTES_MAX + 1).encode());
        }),
        ("hello twice", |scene| lost(scene, &message(&hello(Some(EVIL), "evil").to_string()))),
        ("half a frame, and gone", |scene| {
            let mut call = scene.seat();
            call.0.write_all(&frame(&scene.term(0, CHUNK), &[0; 100])).unwrap();
        }),
        ("whoever comes back takes its own place", |scene| {
            let mut first = scene.seat();
            let mut second = scene.seat();
            ends(&mut first.0, "the older connection");
            second.tell(&json!({"type": "pong", "number": 0}));
        }),
    ]
}

/// A step that is not decided.
fn next(scene: &Scene) -> u64 {
    scene.decided.load(Ordering::Acquire) + 1
}

/// Takes part in the first step as any worker, alone, and sends its chunks last to first.
fn first_step(scene: &Scene, worker: &mut Bare) {
    let mut gradient = vec![0.0; scene.job.length];
    (0..UNITS as usize * UNIT_SAMPLES).for_each(|sample| {
        add_gradient(&mut gradient, &vec![0.0; scene.job.length], 0, sample, 1.0);
    });
    let bytes: Vec<u8> = gradient.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut sums = 0;
    loop {
        let (header, body) = worker.next();
        if header.kind == Kind::Sum {
            sums += 1;
            if sums == 2 {
                let attempt = header.attempt;
                let held =
                    json!({"type": "sum.held", "step": 0, "attempt": attempt, "digest": null});
                worker.tell(&held);
            }
            continue;
        }
        let message = bare::told(&body);
        match message["type"].as_str().unwrap() {
            "compute" => {
                let task = &message["tasks"][0]["task"];
                let done = json!({"type": "done", "order": message["order"], "task": task,
                    "aux": [6.0], "finite": true});
                worker.tell(&done);
            }
            "sum.exchange" => {
                assert_eq!(message["terms"].as_array().unwrap().len(), 1);
                for range in [chunk_range(1, gradient.len()), chunk_range(0, gradient.len())] {
                    let attempt = message["attempt"].as_u64().unwrap() as u32;
                    let header = Header { attempt, ..scene.term(range.start, range.len()) };
                    worker.put(&header, &bytes[4 * range.start..4 * range.end]);
                }
            }
            "apply" => return,
            _ => {}
        }
    }
}

/// A run of which each of these happens once, whose gradients are those of one without them.
fn goes_on(abuses: Vec<Abuse>) {
    let job = Job {
        scheme: "groups:s=1",
        length: CHUNK + 77,
        steps: abuses.len() as u64 + 4,
        exchange: Exchange::Star,
    };
    let (expected, parameters) = run_locally(job);
    let (mut scene, transport, honest) = Scene::new(job);
    let mut evil = scene.call();
    evil.tell(&hello(Some(EVIL), "evil"));
    scene.layout = evil.hear()["layout"].as_u64().unwrap();
    let (coordinator, honest) = scene.begin(transport, honest);
    first_step(&scene, &mut evil);
    wait_for("the first step", || scene.decided.load(Ordering::Acquire) == 1);
    drop(evil);
    scene.goes_on(2, "a worker is gone");
    for (what, abuse) in abuses {
        abuse(&scene);
        scene.goes_on(1, what);
    }
    #[cfg(target_os = "linux")]
    wait_for("connections to end", || connections(&scene.address) <= 3);
    scene.allowed.store(u64::MAX, Ordering::Release);
    let log = coordinator.join().unwrap();
    assert_eq!(log.records[0].survivors, [Worker(EVIL)], "chunks count in any order");
    assert!(log.gradients == expected.gradients, "{:?}", log.faults);
    assert!(
        log.faults.iter().all(|fault| fault.1 == EVIL),
        "only who does wrong is lost: {:?}",
        log.faults
    );
    assert!(honest.into_iter().all(|worker| worker.join().unwrap() == parameters));
}

// Three runs, for most of their time is what a silent connection is allowed.
#[test]
fn a_run_goes_on_with_strangers_about() {
    goes_on(strangers());
}

#[test]
fn a_run_goes_on_with_callers_about_that_are_no_workers_of_it() {
    goes_on(callers());
}

#[test]
fn a_run_goes_on_with_workers_that_go_wrong() {
    goes_on(workers());
}

/// A run of one chunk per gradient, in which a worker does something at step 1 and is gone at step
/// 3.
fn survives(what: &str, does: impl Fn(&Scene, &mut Bare)) -> Log {
    survives_over(Exchange::Star, what, does)
}

fn survives_over(exchange: Exchange, what: &str, does: impl Fn(&Scene, &mut Bare)) -> Log {
    let job = Job { scheme: "groups:s=1", length: 300, steps: 7, exchange };
    let (expected, parameters) = run_locally(job);
    let (mut scene, transport, honest) = Scene::new(job);
    let mut evil = scene.call();
    evil.tell(&hello(Some(EVIL), "evil"));
    scene.layout = evil.hear()["layout"].as_u64().unwrap();
    let (coordinator, honest) = scene.begin(transport, honest);
    scene.goes_on(1, "its beginning");
    does(&scene, &mut evil);
    scene.goes_on(2, what);
    drop(evil);
    scene.allowed.store(u64::MAX, Ordering::Release);
    let log = coordinator.join().unwrap();
    let seen = log.gradients == expected.gradients || exchange != Exchange::Star;
    assert!(seen, "{what}: {:?}", log.faults);
    assert!(honest.into_iter().all(|worker| worker.join().unwrap() == parameters), "{what}");
    log
}

/// Groups are as those say who are asked, and whoever gives one up costs nothing but the group.
#[test]
fn groups_that_never_meet_cost_no_step() {
    survives_over(Exchange::Nccl, "words of groups", |scene, evil| {
        let mut caller = scene.call();
        caller.tell(&json!({"type": "hello", "worker": EVIL, "identity": "evil", "process": 7,
            "address": null, "offer": null}));
        let refused = caller.hear();
        assert!(
            refused["type"] == "refused" && refused["reason"].as_str().unwrap().contains("groups"),
            "{refused}"
        );
        // The first group, of workers that have joined once; worker 0 is asked for its name, and
        // has none.
        let group = (1u64 << 32) + 1;
        for number in [group, 0, u64::MAX] {
            evil.tell(&json!({"type": "sum.group_named", "group": number, "id": "whatever"}));
            evil.tell(&json!({"type": "sum.group_ready", "group": number}));
        }
        scene.goes_on(1, "names that no worker asked for");
        let mut kind = String::new();
        while kind != "apply" {
            let (header, body) = evil.next();
            kind = if header.kind == Kind::Control {
                bare::told(&body)["type"].as_str().unwrap().to_owned()
            } else {
                kind
            };
            assert_ne!(
                kind, "sum.join_group",
                "no worker is to join a group by a name that was not asked for"
            );
        }
        for number in group..group + 10 {
            evil.tell(&json!({"type": "sum.group_failed", "group": number, "reason": "no"}));
        }
    });
}

/// The next message of a type, whatever comes before; who is told to abandon says that it has.
fn hear(evil: &mut Bare, kind: &str) -> Value {
    loop {
        let (header, body) = evil.next();
        let message: Value =
            if header.kind == Kind::Control { bare::told(&body) } else { Value::Null };
        if message["type"] == "abandon" {
            evil.tell(&json!({"type": "idle", "order": message["order"]}));
        }
        if message["type"] == kind {
            return message;
        }
    }
}

#[test]
fn messages_out_of_place_change_nothing() {
    let task = json!({"job": 1u64 << 60, "piece": 99});
    for message in [
        json!({"type": "sum.not_finite", "step": 2, "attempt": 0}),
        json!({"type": "sum.not_finite", "step": 1u64 << 60, "attempt": 0}),
        json!({"type": "done", "order": 1, "task": task, "aux": [1.0, 2.0, 3.0], "finite": true}),
        json!({"type": "idle", "order": 1}),
        json!({"type": "idle", "order": 1u64 << 60}),
        json!({"type": "sum.held", "step": 2, "attempt": 7, "digest": 1}),
        json!({"type": "step_unavailable", "step": 0}),
        json!({"type": "sum.waiting", "step": 1u64 << 60, "attempt": 0, "on": [0, 1, 999]}),
    ] {
        survives(&message.to_string(), |_, evil| {
            evil.tell(&message);
            evil.tell(&message);
        });
    }
}

/// Those of other workers are next to its own; what it says of these is about none of its tasks.
#[test]
fn a_worker_answers_for_no_other() {
    survives("orders of others", |_, evil| {
        let compute = hear(evil, "compute");
        let (own, task) = (compute["order"].as_u64().unwrap(), &compute["tasks"][0]["task"]);
        for order in [0, own.saturating_sub(1), own + 1, own + 2, u64::MAX] {
            evil.tell(&json!({"type": "done", "order": order, "task": task, "aux": [9.0],
                "finite": true}));
            evil.tell(&json!({"type": "changed", "order": order, "task": task}));
            evil.tell(&json!({"type": "idle", "order": order}));
        }
        // Its own task is computed twice, and the second answer is one too many.
        for _ in 0..2 {
            evil.tell(&json!({"type": "done", "order": own, "task": task, "aux": [],
                "finite": false}));
        }
    });
}

#[test]
fn a_step_that_was_never_sent_is_not_applied() {
    survives("applied", |_, evil| {
        evil.tell(&json!({"type": "applied", "step": 1u64 << 60, "digest": 1}));
    });
}

/// What is missed was sent: who misses anything else is lost, and it is said why.
#[test]
fn a_step_that_was_never_sent_cannot_be_missed() {
    for step in [1u64 << 60, 5] {
        let log = survives("missing", |scene, evil| {
            evil.tell(&json!({"type": "step_unavailable", "step": step}));
            wait_for("the loss", || !scene.status.lock().unwrap().workers[EVIL as usize].connected);
        });
        let of: Vec<&str> =
            log.faults.iter().filter(|fault| fault.1 == EVIL).map(|fault| &fault.2[..]).collect();
        assert!(
            of.len() == 1
                && of[0].contains(&format!("it misses step {step}, which it was not sent")),
            "{of:?}"
        );
    }
}

/// However often a worker says that a step does not come, it is sent it again now and then.
#[test]
fn what_is_missed_is_not_sent_for_every_word() {
    survives("missing again and again", |_, evil| {
        while hear(evil, "apply")["step"] != 0 {}
        (0..500).for_each(|_| evil.tell(&json!({"type": "step_unavailable", "step": 0})));
        // Pings come every second, after all that was to be sent before.
        let (mut sums, mut pings) = (0, 0);
        while pings < 3 {
            let (header, body) = evil.next();
            sums += usize::from(header.kind == Kind::Sum && header.number == 0);
            pings +=
                usize::from(header.kind == Kind::Control && bare::told(&body)["type"] == "ping");
        }
        assert!(sums < 10, "{sums} sums");
    });
}

#[test]
fn a_state_that_nobody_asked_for_goes_nowhere() {
    for needy in [0, 999] {
        survives("a state", |scene, evil| {
            evil.tell(
                &json!({"type": "state", "needy": needy, "transfer": 1, "next": 5, "lengths": [1]}),
            );
            evil.put(&Header { number: 1, kind: Kind::State, ..scene.term(0, 1) }, &[0; 4]);
        });
    }
}

#[test]
fn the_one_who_sums_takes_no_sums() {
    survives("sums", |scene, evil| {
        for number in 1..5 {
            evil.put(&Header { number, kind: Kind::Sum, ..scene.term(0, 300) }, &[0; 1200]);
        }
    });
}

#[test]
fn a_wrong_digest_is_its_senders_fault() {
    survives("held", |scene, evil| {
        scene.allowed.fetch_add(1, Ordering::AcqRel);
        while hear(evil, "sum.exchange")["step"] != 1 {}
        evil.tell(&json!({"type": "sum.held", "step": 1, "attempt": 0, "digest": 1}));
    });
    // Only the workers have the sum: two that agree outvote a third, which gets the bytes again.
    survives_over(Exchange::Sharded, "held elsewhere", |scene, evil| {
        scene.allowed.fetch_add(1, Ordering::AcqRel);
        while hear(evil, "sum.exchange")["step"] != 1 {}
        evil.tell(&json!({"type": "sum.held", "step": 1, "attempt": 0, "digest": 1}));
        let applied = hear(evil, "apply");
        assert!(applied["step"] == 1 && applied["digest"] != 1, "{applied}");
        evil.tell(&json!({"type": "step_unavailable", "step": 1}));
    });
}

#[test]
fn a_chunk_that_comes_twice_counts_once() {
    let gradient = |parameters: &[f32], batch| {
        let mut gradient = vec![0.0; parameters.len()];
        (0..UNITS as usize * UNIT_SAMPLES)
            .for_each(|sample| add_gradient(&mut gradient, parameters, batch, sample, 1.0));
        gradient
    };
    let after: Vec<f32> = gradient(&[0.0; 300], 0).iter().map(|g| -g / 64.0).collect();
    let chunk: Vec<u8> = gradient(&after, 1).iter().flat_map(|x| x.to_le_bytes()).collect();
    survives("a chunk twice", |scene, evil| {
        for _ in 0..2 {
            evil.put(&Header { number: 1, ..scene.term(0, 300) }, &chunk);
        }
        let mut compute = hear(evil, "compute");
        while compute["tasks"][0]["task"]["job"] != 1 {
            compute = hear(evil, "compute");
        }
        let task = &compute["tasks"][0]["task"];
        evil.tell(&json!({"type": "done", "order": compute["order"], "task": task, "aux": [6.0],
            "finite": true}));
        while hear(evil, "sum.exchange")["step"] != 1 {}
    });
}

/// Honest workers only, at a run_clock.
fn finishes(steps: u64, run_clock: impl FnOnce(usize) -> RunClock, slow: Duration) {
    let job = Job { scheme: "groups:s=1", length: 300, steps, exchange: Exchange::Star };
    let (expected, _) = run_locally(job);
    let secret = secret();
    let mut transport = listen(job, &secret);
    let address = transport.address().to_string();
    let may = |worker| {
        move |_| {
            thread::sleep(if worker == EVIL { slow } else { Duration::ZERO });
            true
        }
    };
    let threads: Vec<_> =
        (0..=EVIL).map(|worker| join(job, worker, address.clone(), &secret, may(worker))).collect();
    assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
    transport.begin(Step(0));
    let mut watch = Watch::new(|step| eprintln!("step {step}"));
    assert_eq!(
        coordinate_at(run_clock(steps as usize), job, transport, &mut watch).unwrap(),
        Outcome::Finished
    );
    // On a busy host a thread can fall further behind than steps are kept, which is no fault.
    let catches_up = |what: &str| what.starts_with("takes over the state of");
    let faults = &watch.log.faults;
    assert!(faults.iter().all(|(_, _, what)| catches_up(what)), "{faults:?}");
    assert!(watch.log.gradients == expected.gradients);
    threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
}

#[test]
fn a_star_run_may_be_long() {
    finishes(140, |steps| RunClock::wall(3, &Delays::None, steps, 0.0), Duration::ZERO);
}

#[test]
fn a_slow_worker_is_waited_for_under_a_virtual_clock() {
    let delays = Delays::Preset { preset: Preset::Iid, workers: 3, seed: 1 };
    finishes(
        10,
        |steps| RunClock::modelled(3, &delays, steps, VirtualClock { step_seconds: 1.0 }, 0.0),
        Duration::from_millis(100),
    );
}
