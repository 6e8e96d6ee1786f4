//! What it costs when a connection drops, swaps, doubles or damages messages: another connection at
//! most, never a gradient at older parameters, and the worker only where it goes on and on.

use crate::bare::{Bare, told, wait_for};
use crate::integers::{Job, Log, UNITS, WORKERS, Watch, join, listen, run_locally, secret};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::{Step, Worker};
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::Header;
use codedgrad::train::{Coordinator, Outcome, RunClock, RunError};
use codedgrad::transport::tcp::{Exchange, Join, TcpLink, TcpTransport};
use codedgrad::transport::wire::{HEADER_BYTES, VERSION};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The worker whose connection is bad, where only one is.
const VICTIM: u32 = 2;
const STEPS: u64 = 8;

/// A frame on its way.
pub(crate) struct Passing {
    /// Of which connection of the worker it is, from 0, and its number there, each way.
    call: usize,
    number: usize,
    /// Whether it goes to the coordinator.
    up: bool,
    bytes: Vec<u8>,
    /// The message, with its name as its type; null for a chunk.
    pub(crate) said: Value,
}

impl Passing {
    pub(crate) fn is(&self, name: &str) -> bool {
        !self.up && self.said["type"] == name
    }

    /// Flips a bit of its body.
    fn flipped(mut self, at: usize, bit: u8) -> Vec<u8> {
        self.bytes[HEADER_BYTES + at] ^= 1 << bit;
        self.bytes
    }
}

pub(crate) type Tamper = dyn FnMut(Passing) -> Vec<Vec<u8>> + Send;

fn exactly(from: &mut TcpStream, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).map(|()| bytes)
}

/// Carries one direction of a connection until it ends.
fn carry(
    (from, to): (&mut TcpStream, &mut TcpStream),
    (call, up): (usize, bool),
    tamper: &Mutex<Box<Tamper>>,
) -> io::Result<()> {
    // What each side says before its first frame.
    for count in if up { [40, 32] } else { [66, 1] } {
        to.write_all(&exactly(from, count)?)?;
    }
    for number in 0.. {
        let mut bytes = exactly(from, HEADER_BYTES)?;
        let length = u32::from_le_bytes(bytes[64..68].try_into().unwrap());
        bytes.extend(exactly(from, length as usize)?);
        let said = if bytes[6] == 0 { told(&bytes[HEADER_BYTES..]) } else { Value::Null };
        let passed = (tamper.lock().unwrap())(Passing { call, number, up, bytes, said });
        to.write_all(&passed.concat())?;
    }
    Ok(())
}

/// An address behind which is the coordinator's, and how often it was called there.
pub(crate) fn proxy(
    coordinator: &str,
    tamper: impl FnMut(Passing) -> Vec<Vec<u8>> + Send + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tamper: Arc<Mutex<Box<Tamper>>> = Arc::new(Mutex::new(Box::new(tamper)));
    let (calls, counted) = (Arc::new(AtomicUsize::new(0)), coordinator.to_owned());
    let (count, coordinator) = (Arc::clone(&calls), counted);
    thread::spawn(move || {
        for caller in listener.incoming() {
            let Ok(called) = TcpStream::connect(&coordinator) else { return };
            let caller = caller.unwrap();
            let call = count.fetch_add(1, Ordering::AcqRel);
            for up in [true, false] {
                let (mut from, mut to) = (caller.try_clone().unwrap(), called.try_clone().unwrap());
                if !up {
                    std::mem::swap(&mut from, &mut to);
                }
                to.set_nodelay(true).unwrap();
                let tamper = Arc::clone(&tamper);
                thread::spawn(move || {
                    let _ = carry((&mut from, &mut to), (call, up), &tamper);
                    [from, to].iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
                });
            }
        }
    });
    (address, calls)
}

/// A run in which a worker that is needed may be away for a while.
fn coordinate(
    job: Job,
    transport: TcpTransport,
    watch: &mut Watch<'_>,
) -> Result<Outcome, RunError> {
    let limits = Limits { max_wait_seconds: 20.0, return_seconds: 10.0, ..Limits::default() };
    let usual = RunConfig::new(Shape::new(WORKERS, UNITS), job.length, job.steps);
    let scheme =
        job.scheme.parse::<SchemeSpec>().unwrap().scheme(WORKERS, UNITS, 0..job.steps).unwrap();
    let engine = Engine::new(scheme, RunConfig { limits, ..usual }, Settings::default()).unwrap();
    let run_clock = RunClock::wall(WORKERS, &Delays::None, job.steps as usize, 0.0);
    Coordinator::new(transport, engine, run_clock).run(watch)
}

/// A run in which the connections of workers go through proxies, to its end; how often each of
/// these workers called. All of them must end with the parameters of a run without.
fn runs(job: Job, what: &str, tampers: Vec<(u32, Box<Tamper>)>) -> (Log, Vec<usize>) {
    let (expected, parameters) = run_locally(job);
    let secret = secret();
    let mut transport = listen(job, &secret);
    let address = transport.address().to_string();
    let mut addresses = vec![(address.clone(), None); 3];
    for (worker, tamper) in tampers {
        let (at, calls) = proxy(&address, tamper);
        addresses[worker as usize] = (at, Some(calls));
    }
    let workers: Vec<_> = (0..)
        .zip(&addresses)
        .map(|(worker, (address, _))| join(job, worker, address.clone(), &secret, |_| true))
        .collect();
    assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
    transport.begin(Step(0));
    let status = transport.status();
    let mut watch = Watch::new(|step| {
        // No run waits at the end for a worker that is about to call again.
        if step + 2 == job.steps {
            wait_for("all of them", || {
                status.lock().unwrap().workers.iter().all(|it| it.connected)
            });
        }
    });
    let outcome = coordinate(job, transport, &mut watch);
    let log = std::mem::take(&mut watch.log);
    drop(watch);
    assert_eq!(
        outcome.unwrap_or_else(|error| panic!("{what}: {error}: {:?}", log.faults)),
        Outcome::Finished
    );
    let seen = log.gradients == expected.gradients || job.exchange == Exchange::Sharded;
    assert!(seen, "{what}: other gradients; {:?}", log.faults);
    let aux = |log: &Log| log.records.iter().map(|record| record.aux.clone()).collect::<Vec<_>>();
    assert_eq!(aux(&log), aux(&expected), "{what}: {:?}", log.faults);
    for (worker, thread) in workers.into_iter().enumerate() {
        assert!(thread.join().unwrap() == parameters, "{what}: worker {worker}: {:?}", log.faults);
    }
    let calls = addresses.into_iter().filter_map(|(_, calls)| calls);
    (log, calls.map(|calls| calls.load(Ordering::Acquire)).collect())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Harm {
    Drop,
    Double,
    /// It comes after the next message with this name, or after the next one of any name.
    After(&'static str),
    AfterNext,
}

/// Does that once, to a message to the worker.
pub(crate) fn once(which: impl Fn(&Passing) -> bool + Send + 'static, harm: Harm) -> Box<Tamper> {
    let (mut done, mut held) = (false, None);
    Box::new(move |passing| {
        let is_control = passing.said != Value::Null && !passing.up;
        if !done && which(&passing) {
            done = true;
            match harm {
                Harm::Drop => return Vec::new(),
                Harm::Double => return vec![passing.bytes.clone(), passing.bytes],
                Harm::After(_) | Harm::AfterNext => held = Some((passing.call, passing.bytes)),
            }
            return Vec::new();
        }
        let is_next = matches!(harm, Harm::After(name) if passing.is(name))
            || harm == Harm::AfterNext && is_control;
        let passed = held.take_if(|(call, _)| *call != passing.call || is_next);
        let after = passed.filter(|(call, _)| *call == passing.call).map(|(_, bytes)| bytes);
        [passing.bytes].into_iter().chain(after).collect()
    })
}

/// The first that a worker must do after step 3.
fn is_of_step_4(passing: &Passing, name: &str) -> bool {
    let step = match name {
        "compute" => &passing.said["tasks"][0]["task"]["job"],
        _ => &passing.said["step"],
    };
    passing.is(name) && step.as_u64().is_some_and(|step| step >= 4)
}

const EXCHANGES: [Exchange; 3] = [Exchange::Star, Exchange::Sharded, Exchange::Hold];

fn job(scheme: &'static str, exchange: Exchange) -> Job {
    Job { scheme, length: 300, steps: STEPS, exchange }
}

/// Every result counts, so that one at other parameters would be seen.
#[test]
fn nothing_is_computed_before_what_it_needs_is_applied() {
    let harms = [
        ("apply", Harm::After("compute")),
        ("apply", Harm::Drop),
        ("apply", Harm::Double),
        ("compute", Harm::AfterNext),
        ("compute", Harm::Drop),
        ("compute", Harm::Double),
    ];
    thread::scope(|scope| {
        for exchange in EXCHANGES {
            scope.spawn(move || {
                for (name, harm) in harms {
                    let what = format!("{exchange:?}, {name}, {harm:?}");
                    let tamper = once(move |passing| is_of_step_4(passing, name), harm);
                    let tampers = vec![(VICTIM, tamper)];
                    let (log, calls) = runs(job("uncoded", exchange), &what, tampers);
                    // A step is sent again, tasks are not.
                    let most = if (name, harm) == ("compute", Harm::Drop) { 2 } else { 1 };
                    assert_eq!(calls, [most], "{what}: {:?}", log.faults);
                }
            });
        }
    });
}

/// Nothing comes after it by which that would be seen but a ping, and the end.
#[test]
fn a_worker_does_not_end_without_the_last_step() {
    for exchange in EXCHANGES {
        let is_last = |passing: &Passing| passing.is("apply") && passing.said["step"] == STEPS - 1;
        let tampers = vec![(VICTIM, once(is_last, Harm::Drop))];
        let (log, calls) = runs(job("groups:s=1", exchange), "the last step", tampers);
        assert_eq!(calls, [1], "{:?}", log.faults);
    }
}

/// A worker that comes late takes over a state: whether the order to do so is lost, comes twice or
/// comes after the next message.
#[test]
fn a_state_that_is_not_told_of_costs_a_connection() {
    for (harm, most) in [(Harm::Drop, 2), (Harm::Double, 1), (Harm::AfterNext, 2)] {
        let job = Job { steps: 120, ..job("groups:s=1", Exchange::Star) };
        let (expected, parameters) = run_locally(job);
        let secret = secret();
        let mut transport = listen(job, &secret);
        let address = transport.address().to_string();
        let (is_there, is_even) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let mut harmed = once(|passing| passing.is("load_state"), harm);
        let (there, even) = (Arc::clone(&is_there), Arc::clone(&is_even));
        let (at, calls) = proxy(&address, move |passing| {
            match passing.said["type"].as_str() {
                Some("welcome") => there.store(true, Ordering::Release),
                Some("applied") => even.store(true, Ordering::Release),
                _ => {}
            }
            harmed(passing)
        });
        // Who is in the middle of a task hands over no state.
        let may = move |step| {
            if step > 25 && !is_even.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(20));
            }
            step < 25 || is_there.load(Ordering::Acquire)
        };
        let honest: Vec<_> = (0..VICTIM)
            .map(|worker| join(job, worker, address.clone(), &secret, may.clone()))
            .collect();
        let status = transport.status();
        wait_for("the others", || {
            let there = status.lock().unwrap().workers.iter().filter(|it| it.connected).count();
            there == VICTIM as usize
        });
        assert_eq!(transport.gather(Duration::ZERO).absent, [Worker(VICTIM)]);
        transport.begin(Step(0));
        let mut victim = None;
        let mut watch = Watch::new(|step| {
            if step == 20 {
                victim = Some(join(job, VICTIM, at.clone(), &secret, |_| true));
            }
        });
        let outcome = coordinate(job, transport, &mut watch).unwrap();
        let log = std::mem::take(&mut watch.log);
        drop(watch);
        let what = format!("{harm:?}: {:?}", log.faults);
        assert_eq!(outcome, Outcome::Finished);
        assert!(log.gradients == expected.gradients, "{what}");
        let all = honest.into_iter().chain(victim);
        assert!(all.map(|worker| worker.join().unwrap()).all(|its| its == parameters), "{what}");
        assert!(calls.load(Ordering::Acquire) <= most, "{what}");
    }
}

/// A damaged digit would be another number, and a damaged name no message: both cost a connection.
#[test]
fn a_damaged_message_costs_a_connection() {
    // What is flipped, and which bit: 1 for 0 and 0 for 1, or a name that is none.
    let harms = [
        (false, "compute", "\"coefficient\":1", 0),
        (false, "compute", "\"end\":3", 1),
        (false, "apply", "\"step\":4", 0),
        (false, "compute", "{\"compute", 0),
        (true, "done", "\"aux\":[2", 0),
        (true, "done", "{\"done", 4),
    ];
    for (up, name, text, bit) in harms {
        for exchange in EXCHANGES {
            let what = format!("{exchange:?}, {text}");
            let mut done = false;
            let tamper: Box<Tamper> = Box::new(move |passing| {
                let body = String::from_utf8_lossy(&passing.bytes[HEADER_BYTES..]).into_owned();
                let found = body.find(text).filter(|_| {
                    !done && passing.up == up && passing.said["type"] == name && passing.number > 6
                });
                let Some(at) = found else { return vec![passing.bytes] };
                done = true;
                vec![passing.flipped(at + text.len() - 1, bit)]
            });
            let (log, calls) = runs(job("uncoded", exchange), &what, vec![(VICTIM, tamper)]);
            assert_eq!(calls, [2], "{what}: {:?}", log.faults);
        }
    }
}

/// Bits of any message of all workers flip, each way.
#[test]
fn damaged_messages_cost_no_worker() {
    for (seed, exchange) in (1..).zip(EXCHANGES) {
        let job = Job { steps: 40, ..job("groups:s=1", exchange) };
        let tampers = (0..3).map(|worker| {
            let mut random = ChaCha8Rng::seed_from_u64(100 * seed + u64::from(worker));
            // As many as a worker may be damaged in a minute, each way.
            let mut left = [3, 3];
            let tamper: Box<Tamper> = Box::new(move |passing| {
                let said = &passing.said;
                let steps = [&said["step"], &said["tasks"][0]["task"]["job"], &said["next"]];
                if steps.iter().any(|step| step.as_u64() > Some(job.steps - 10)) {
                    left = [0, 0];
                }
                let left = &mut left[usize::from(passing.up)];
                let may = passing.said != Value::Null && passing.number > 1 && *left > 0;
                if !may || random.random_bool(0.95) {
                    return vec![passing.bytes];
                }
                *left -= 1;
                let at = random.random_range(0..passing.bytes.len() - HEADER_BYTES);
                vec![passing.flipped(at, random.random_range(0..8))]
            });
            (worker, tamper)
        });
        let what = format!("{exchange:?}");
        let (_, calls) = runs(job, &what, tampers.collect());
        assert!(calls.iter().all(|calls| *calls > 1), "{what}: {calls:?}");
    }
}

/// Where nothing gets through as it was, the worker is lost after the fourth time.
#[test]
fn a_worker_that_is_damaged_again_and_again_is_lost() {
    for up in [false, true] {
        let job = job("groups:s=1", Exchange::Star);
        let (expected, parameters) = run_locally(job);
        let secret = secret();
        let mut transport = listen(job, &secret);
        let address = transport.address().to_string();
        let (at, calls) = proxy(&address, move |passing| {
            let is_harmed = passing.said != Value::Null && passing.number > 1;
            let harmed = is_harmed && passing.up == up;
            vec![if harmed { passing.flipped(3, 0) } else { passing.bytes }]
        });
        let victim = join(job, VICTIM, at, &secret, |_| true);
        let is_lost = Arc::new(AtomicBool::new(false));
        let may =
            |is_lost: Arc<AtomicBool>| move |step| step < 2 || is_lost.load(Ordering::Acquire);
        let honest: Vec<_> = (0..VICTIM)
            .map(|worker| join(job, worker, address.clone(), &secret, may(Arc::clone(&is_lost))))
            .collect();
        let waits = thread::spawn(move || {
            let parameters = victim.join();
            is_lost.store(true, Ordering::Release);
            parameters.unwrap()
        });
        assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
        transport.begin(Step(0));
        let mut watch = Watch::new(|_| {});
        assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
        let log = std::mem::take(&mut watch.log);
        assert!(log.gradients == expected.gradients, "{:?}", log.faults);
        assert!(honest.into_iter().all(|worker| worker.join().unwrap() == parameters));
        waits.join().unwrap();
        assert_eq!(calls.load(Ordering::Acquire), 4, "up: {up}: {:?}", log.faults);
    }
}

/// The same header of a program of another version.
fn of_version(version: u16, header: &Header) -> Vec<u8> {
    let mut bytes = header.encode();
    bytes[4..6].copy_from_slice(&version.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..68]);
    bytes[68..].copy_from_slice(&checksum.to_le_bytes());
    bytes.to_vec()
}

/// Calling again would not help, so the worker says at once what is wrong.
#[test]
fn another_version_is_refused_at_once() {
    let secret = secret();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let joined = {
        let patience = Duration::from_secs(60);
        let join = Join { patience, ..Join::new(address, secret.security.clone()) };
        thread::spawn(move || TcpLink::join(join).map(drop))
    };
    let mut worker = Bare::answer(&listener, &secret.hex);
    worker.hear();
    let body = b"{}";
    let later = of_version(VERSION + 1, &Header::control(body.len()));
    worker.0.write_all(&[&later, &body[..]].concat()).unwrap();
    let error = joined.join().unwrap().unwrap_err().to_string();
    let both = [VERSION + 1, VERSION].map(|version| format!("version {version}"));
    assert!(both.iter().all(|version| error.contains(version)), "{error}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "it has not called again");
}

/// A worker of another version hears why it is hung up on.
#[test]
fn a_worker_of_another_version_is_told_so() {
    let secret = secret();
    let transport = listen(job("uncoded", Exchange::Star), &secret);
    let mut worker = Bare::call(&transport.address().to_string(), &secret.hex).unwrap();
    let hello = json!({"hello": {"from": "an older program"}}).to_string();
    let earlier = of_version(VERSION - 1, &Header::control(hello.len()));
    worker.0.write_all(&[&earlier, hello.as_bytes()].concat()).unwrap();
    let answer = worker.hear();
    assert_eq!(answer["type"], "refused");
    let reason = answer["reason"].as_str().unwrap();
    assert!(reason.contains(&format!("version {}", VERSION - 1)), "{reason}");
    assert!(worker.try_next().is_err(), "it is hung up on");
}
