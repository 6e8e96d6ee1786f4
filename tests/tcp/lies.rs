//! A worker that knows the token and lies about what is finite: it says that sums overflow that do
//! not, or that its NaN are numbers; or that changes what it has announced. No step is refused for
//! it, every gradient has the bits of a run without it, and it is named.

use crate::integers::{Log, RUN, Secret, UNIT_SAMPLES, Watch, add_gradient, secret, work};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::{Step, Worker};
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::{CHUNK, Header, Kind, SumId, SumNotice};
use codedgrad::train::{Aggregator, AggregatorError, Coordinator, Event, Outcome, RunClock};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpLink, TcpTransport};
use codedgrad::transport::wire::{CONTROL_BYTES_MAX, HEADER_BYTES};
use codedgrad::transport::{Link, Notice, Order, ReceiveOutcome, State, Transport, local};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const WORKERS: usize = 4;
/// Its group's other member has all it has.
const LIAR: u32 = 3;
const PARTNER: u32 = 2;
const LENGTH: usize = CHUNK + 77;
const STEPS: u64 = 12;

/// The run, as its coordinator is told.
fn config() -> RunConfig {
    let usual = RunConfig::new(Shape::new(WORKERS, WORKERS as u32), LENGTH, STEPS);
    let limits = Limits { max_wait_seconds: 20.0, return_seconds: 20.0, ..usual.limits };
    RunConfig { limits, ..usual }
}

/// What is known of the liar.
#[derive(Default)]
struct Known {
    /// Whether it is found out.
    found_out: AtomicBool,
    /// Steps that are decided.
    decided: AtomicU64,
    /// From this step on its partner goes on only once it is found out, so that the liar's results
    /// must count for their group.
    alone_from: u64,
    /// Whether its partner's first step waits until the liar has announced its own.
    waits: bool,
    announced: AtomicBool,
}

/// Whether a worker may go on.
fn may(worker: u32, known: &Arc<Known>) -> impl Fn(u64) -> bool + Send + use<> {
    let known = Arc::clone(known);
    move |step| {
        let announced = !known.waits || known.announced.load(Ordering::Relaxed);
        let goes_on = announced && step < known.alone_from;
        worker != PARTNER || goes_on || known.found_out.load(Ordering::Relaxed)
    }
}

fn coordinate(transport: impl Transport<Vector = Vec<f32>>, known: &Known) -> Log {
    let scheme = "groups:s=1"
        .parse::<SchemeSpec>()
        .unwrap()
        .scheme(WORKERS, WORKERS as u32, 0..STEPS)
        .unwrap();
    let engine = Engine::new(scheme, config(), Settings::default()).unwrap();
    let run_clock = RunClock::wall(WORKERS, &Delays::None, STEPS as usize, 0.0);
    let at_fault = |worker: u32, what: &str| {
        if worker == LIAR && (what.contains("not finite") || what.contains("changed")) {
            known.found_out.store(true, Ordering::Relaxed);
        }
    };
    let decided = |step| known.decided.store(step + 1, Ordering::Relaxed);
    let mut watch = Watch { at_fault: Box::new(at_fault), ..Watch::new(decided) };
    let ended = Coordinator::new(transport, engine, run_clock).run(&mut watch);
    assert_eq!(
        ended.unwrap_or_else(|error| panic!("{error}: {:?}", watch.log.faults)),
        Outcome::Finished
    );
    watch.log
}

/// The run without lies: its gradients, and the parameters that all end with.
fn undisturbed() -> (Log, Vec<f32>) {
    let (transport, links) = local::connect(WORKERS);
    let begin = |link| thread::spawn(move || work(Box::new(link), LENGTH, |_| true));
    let threads: Vec<_> = links.into_iter().map(begin).collect();
    let log = coordinate(transport, &Known::default());
    let mut parameters: Vec<Vec<f32>> =
        threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    (log, parameters.remove(0))
}

fn join(worker: u32, address: String, secret: &Secret) -> TcpLink {
    let identity = format!("worker {worker}");
    let patience = Duration::from_secs(10);
    let join = Join {
        worker: Some(worker),
        identity,
        patience,
        ..Join::new(address, secret.security.clone())
    };
    TcpLink::join(join).unwrap().0
}

/// A run with three honest workers and one that is begun with the coordinator's address.
fn run(
    exchange: Exchange,
    keeps: bool,
    known: &Arc<Known>,
    liar: impl FnOnce(String, &Secret) -> JoinHandle<()>,
) -> Log {
    let what = format!("{exchange:?}, keeps: {keeps}");
    let (expected, parameters) = undisturbed();
    let secret = secret();
    let at = ([127, 0, 0, 1], 0).into();
    let mut transport = TcpTransport::listen(Listen {
        run: RUN,
        exchange,
        keeps,
        job: format!("{{\"unit_samples\":{UNIT_SAMPLES}}}"),
        stall: Duration::from_secs(10),
        spare: Duration::from_secs(5),
        ..Listen::new(at, secret.security.clone(), config())
    })
    .unwrap();
    let address = transport.address().to_string();
    let honest: Vec<_> = (0..LIAR)
        .map(|worker| {
            let (link, may) = (join(worker, address.clone(), &secret), may(worker, known));
            thread::spawn(move || work(Box::new(link), LENGTH, may))
        })
        .collect();
    let liar = liar(address, &secret);
    assert_eq!(transport.gather(Duration::from_secs(30)).absent, []);
    transport.begin(Step(0));
    let log = coordinate(transport, known);
    liar.join().unwrap();
    let refused: Vec<u64> = log
        .records
        .iter()
        .filter(|record| !record.refused.is_empty())
        .map(|record| record.step)
        .collect();
    assert_eq!(refused, Vec::<u64>::new(), "{what}: {:?}", log.faults);
    assert!(
        log.faults.iter().all(|fault| fault.1 == LIAR),
        "{what}: only the liar is named: {:?}",
        log.faults
    );
    for (seen, expected) in log.gradients.iter().zip(&expected.gradients) {
        assert!(seen == expected || seen.is_empty() && !keeps, "{what}: a gradient has other bits");
    }
    assert_eq!(log.records.len() as u64, STEPS);
    assert!(
        honest.into_iter().all(|worker| worker.join().unwrap() == parameters),
        "{what}: other parameters"
    );
    log
}

const EXCHANGES: [(Exchange, bool); 3] =
    [(Exchange::Star, true), (Exchange::Sharded, false), (Exchange::Sharded, true)];

/// A worker whose results are NaN, and which says that they are finite.
fn nan(mut link: impl Link) {
    let (mut parameters, mut next) = (vec![0.0f32; LENGTH], Step(0));
    while let ReceiveOutcome::Order(order) = link.receive(None) {
        match order {
            Order::Compute { order, tasks, .. } => {
                for (task, _) in tasks {
                    link.keep(task, vec![f32::NAN; LENGTH]);
                    let aux = vec![4.0];
                    link.send(Notice::Done { order, task, aux, finite: true, spent: None });
                }
            }
            Order::Apply { sum: SumId { step, .. }, decoded, .. } => {
                next = step.next();
                parameters.iter_mut().zip(&**decoded.gradient).for_each(|(p, g)| *p -= g / 64.0);
                link.send(Notice::Applied { step, digest: None });
            }
            Order::Skip { step, .. } => {
                next = step.next();
                link.send(Notice::Applied { step, digest: None });
            }
            Order::SendState { needy } => {
                let state = State { next, vectors: vec![parameters.clone()] };
                link.send(Notice::State { needy, state });
            }
            Order::LoadState { state } => {
                (parameters, next) = (state.vectors[0].clone(), state.next);
            }
            Order::Store { sum, decoded } => {
                link.send(Notice::Sum(SumNotice::Held { sum, digest: decoded.digest }));
            }
            Order::Abandon { .. } | Order::LetIn => {}
            Order::Stop { .. } | Order::Dismiss(_) => return,
        }
    }
}

#[test]
fn who_says_that_nan_are_finite_is_erased_and_named() {
    for (exchange, keeps) in EXCHANGES.into_iter().chain([(Exchange::Hold, true)]) {
        let log = run(exchange, keeps, &Arc::default(), |address, secret| {
            let link = join(LIAR, address, secret);
            thread::spawn(move || nan(link))
        });
        let named = log.faults.iter().filter(|fault| fault.2.contains("not finite")).count();
        assert!(named > 0, "{exchange:?}, keeps: {keeps}: {:?}", log.faults);
        // Where workers sum while they compute, they have each chunk of whichever member of a group
        // was ready: a liar that answered first may count, and nothing of it be in the sum.
        assert!(
            exchange == Exchange::Sharded
                || log.records.iter().all(|record| !record.survivors.contains(&Worker(LIAR)))
        );
    }
}

#[test]
fn who_says_so_in_the_same_process_is_named_too() {
    let (expected, _) = undisturbed();
    let (transport, mut links) = local::connect(WORKERS);
    let liar = links.pop().unwrap();
    let liar = thread::spawn(move || nan(liar));
    let known = Arc::default();
    let begin = |(link, worker)| {
        let may = may(worker, &known);
        thread::spawn(move || work(Box::new(link), LENGTH, may))
    };
    let honest: Vec<_> = links.into_iter().zip(0..).map(begin).collect();
    let log = coordinate(transport, &known);
    liar.join().unwrap();
    honest.into_iter().for_each(|worker| drop(worker.join().unwrap()));
    assert!(log.gradients == expected.gradients);
    assert!(
        !log.faults.is_empty()
            && log.faults.iter().all(|fault| fault.1 == LIAR && fault.2.contains("not finite"))
    );
}

/// One frame as it came, and what it says if it is a message.
fn frame(from: &mut TcpStream) -> io::Result<(Vec<u8>, Value)> {
    let mut bytes = vec![0; HEADER_BYTES];
    from.read_exact(&mut bytes)?;
    let header: &[u8; HEADER_BYTES] = bytes[..].try_into().unwrap();
    let header = Header::decode(header, CONTROL_BYTES_MAX).map_err(io::Error::other)?;
    let mut body = vec![0; header.length as usize];
    from.read_exact(&mut body)?;
    let said =
        if header.kind == Kind::Control { serde_json::from_slice(&body)? } else { Value::Null };
    bytes.extend(body);
    Ok((bytes, said))
}

/// Hands on pieces of so many bytes.
fn hand_on(from: &mut TcpStream, to: &Mutex<TcpStream>, counts: [usize; 2]) -> io::Result<()> {
    for count in counts {
        let mut bytes = vec![0; count];
        from.read_exact(&mut bytes)?;
        to.lock().unwrap().write_all(&bytes)?;
    }
    Ok(())
}

/// What goes between a worker and its coordinator, but whenever a sum is to be made the worker says
/// that it is not finite.
fn denying(coordinator: String) -> String {
    // What each side says before its first frame.
    const CALLER: [usize; 2] = [40, 32];
    const LISTENER: [usize; 2] = [66, 1];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for call in listener.incoming() {
            let Ok(other) = TcpStream::connect(&coordinator) else { return };
            let call = call.unwrap();
            let (mut up, mut down) = (call.try_clone().unwrap(), other.try_clone().unwrap());
            let up_to = Arc::new(Mutex::new(other));
            let liar_to = Arc::clone(&up_to);
            thread::spawn(move || {
                let all = || -> io::Result<()> {
                    hand_on(&mut up, &up_to, CALLER)?;
                    loop {
                        let (bytes, _) = frame(&mut up)?;
                        up_to.lock().unwrap().write_all(&bytes)?;
                    }
                };
                let ended = { all }();
                let _ = up_to.lock().unwrap().shutdown(Shutdown::Both);
                ended
            });
            thread::spawn(move || {
                let back = Mutex::new(call);
                let all = || -> io::Result<()> {
                    hand_on(&mut down, &back, LISTENER)?;
                    loop {
                        let (bytes, said) = frame(&mut down)?;
                        if let Some(plan) = said.get("sum").and_then(|sum| sum.get("exchange")) {
                            let of = json!({"step": plan["step"], "attempt": plan["attempt"]});
                            let lie = json!({"sum": {"not_finite": of}}).to_string();
                            let lie =
                                [&Header::control(lie.len()).encode()[..], lie.as_bytes()].concat();
                            liar_to.lock().unwrap().write_all(&lie)?;
                        }
                        back.lock().unwrap().write_all(&bytes)?;
                    }
                };
                let ended = { all }();
                let _ = back.lock().unwrap().shutdown(Shutdown::Both);
                ended
            });
        }
    });
    address
}

#[test]
fn who_says_that_a_finite_sum_is_not_finite_is_named() {
    for (exchange, keeps) in EXCHANGES {
        let free = Arc::new(Known { found_out: true.into(), ..Known::default() });
        let log = run(exchange, keeps, &free, |address, secret| {
            let link = join(LIAR, denying(address), secret);
            thread::spawn(move || drop(work(Box::new(link), LENGTH, |_| true)))
        });
        let named =
            log.faults.iter().filter(|fault| fault.2.contains("is not finite, and it is")).count();
        assert!(named > 0, "{exchange:?}, keeps: {keeps}: {:?}", log.faults);
    }
}

/// A worker that announces its first result with a number that is off by so much, changes that
/// number by 1 when it may, and ends its part when it is told that it must not.
fn changing(link: TcpLink, off: f32, may: impl Fn() -> bool) {
    let mut worker = Aggregator::new(Box::new(link), LENGTH, UNIT_SAMPLES);
    let Ok(Some(Event::Compute(mut task))) = worker.next_event() else { panic!("a task is first") };
    let (batch, mut count) = (task.batch(), 0.0);
    let parameters = vec![0.0; LENGTH];
    while let Some(part) = task.next_part() {
        let is_last = part.unit == 3;
        let message = task.message();
        message.fill(0.0);
        for sample in part.samples {
            add_gradient(message, &parameters, batch, sample, part.coefficient);
            count += part.coefficient;
        }
        if is_last {
            message[0] += off;
            task.ready(0..LENGTH).unwrap();
            while !may() {
                thread::sleep(Duration::from_millis(1));
            }
            task.message()[0] += 1.0;
        }
    }
    let submitted = task.submit(vec![count]);
    assert!(matches!(submitted, Err(AggregatorError::Changed { .. })), "{submitted:?}");
    worker.fail("its gradient was changed");
}

/// While the step is not decided it is made again, of what others have.
#[test]
fn what_was_announced_and_changed_in_time_is_not_in_the_sum() {
    for keeps in [false, true] {
        let log = run(Exchange::Sharded, keeps, &Arc::default(), |address, secret| {
            let link = join(LIAR, address, secret);
            // Others ask for it meanwhile.
            let asked = || {
                thread::sleep(Duration::from_millis(300));
                true
            };
            thread::spawn(move || changing(link, -1.0, asked))
        });
        let said = |fault: &&(u64, u32, String)| fault.2.contains("is made again");
        assert_eq!(log.faults.iter().filter(said).count(), 1, "{:?}", log.faults);
        assert!(log.records.iter().all(|record| record.doubts.unverified.is_empty()));
    }
}

/// Once it is decided, the record says whose numbers they may be.
#[test]
fn what_is_changed_too_late_is_told() {
    let known = Arc::new(Known { alone_from: 5, waits: true, ..Known::default() });
    let log = run(Exchange::Sharded, true, &known, |address, secret| {
        let (link, known) = (join(LIAR, address, secret), Arc::clone(&known));
        let is_decided = move || {
            if !known.announced.load(Ordering::Relaxed) {
                // Others hear of it meanwhile.
                thread::sleep(Duration::from_millis(100));
                known.announced.store(true, Ordering::Relaxed);
            }
            known.decided.load(Ordering::Relaxed) > 0
        };
        thread::spawn(move || changing(link, 0.0, is_decided))
    });
    let said = |fault: &&(u64, u32, String)| fault.0 == 0 && fault.2.contains("already committed");
    assert_eq!(log.faults.iter().filter(said).count(), 1, "{:?}", log.faults);
    let doubted: Vec<_> =
        log.records.iter().flat_map(|record| &record.doubts.unverified).copied().collect();
    assert_eq!(doubted, [Worker(LIAR)]);
}
