//! What clusters do to connections, at every phase of a round: each drill must end with the
//! gradients of a run without faults, every step's, bit for bit.

use super::tcp::{LONG, Settings, Way, settings};
use super::{Log, Over, Prank, Setup, bits, modelled, setup, train};
use codedgrad::delays::Delays;
use codedgrad::ids::Worker;
use codedgrad::train::{Outcome, RunClock};
use codedgrad::transport::tcp::Exchange;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// What happens on the way between a worker and the coordinator, once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// The connection is cut.
    Cut,
    /// Nothing comes through any more, and neither end knows.
    HalfOpen,
    /// A few bytes at a time come through.
    Trickle,
}

/// When it happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    /// Whether it is what the worker sends that counts, or what it receives.
    pub(super) up: bool,
    /// After so many bytes.
    pub(super) bytes: u64,
}

/// Carries bytes between whoever connects and `to`, and makes trouble on the first connection.
pub(super) fn proxy(to: SocketAddr, fault: Fault, when: When) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            let Ok(server) = TcpStream::connect(to) else { continue };
            let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            for up in [true, false] {
                let (from, into) = if up { (&client, &server) } else { (&server, &client) };
                let (mut from, mut into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                let counts = Arc::clone(&counts);
                thread::spawn(move || {
                    carry(
                        &mut from,
                        &mut into,
                        up,
                        (number == 0).then_some((fault, when)),
                        &counts,
                    );
                });
            }
        }
    });
    address
}

fn carry(
    from: &mut TcpStream,
    into: &mut TcpStream,
    up: bool,
    trouble: Option<(Fault, When)>,
    counts: &[AtomicU64; 2],
) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        let seen = counts[usize::from(up)].fetch_add(count as u64, Ordering::SeqCst);
        let due = trouble
            .filter(|(_, when)| counts[usize::from(when.up)].load(Ordering::SeqCst) >= when.bytes);
        if count == 0 {
            break;
        }
        match due.map(|(fault, _)| fault) {
            Some(Fault::Cut) => break,
            Some(Fault::HalfOpen) => thread::sleep(Duration::from_secs(3600)),
            Some(Fault::Trickle) if seen > 0 => thread::sleep(Duration::from_millis(300)),
            _ => {}
        }
        if into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = into.shutdown(Shutdown::Both);
}

const QUICK: [u64; 2] = [2, 1];

fn drill(exchange: Exchange, fault: Fault, when: When, patience: [u64; 2]) -> Log {
    let way = Way { worker: Worker(1), fault, when };
    let over = Over::Tcp(Settings { way: Some(way), patience, ..settings(exchange) });
    let steps = 6;
    let (_, expected, plain) =
        train(Setup { length: LONG, ..setup("groups:s=1", 4, steps, modelled(4, steps, 1)) });
    let (outcome, trained, log) =
        train(Setup { length: LONG, over, ..setup("groups:s=1", 4, steps, modelled(4, steps, 1)) });
    let name = format!("{exchange:?} {fault:?} {when:?}");
    assert_eq!(outcome.unwrap(), Outcome::Finished, "{name}");
    assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{name}");
    for (worker, parameters) in trained.iter().enumerate().filter(|(worker, _)| *worker != 1) {
        assert_eq!(parameters, &expected[0], "{name}: worker {worker}");
    }
    log
}

/// Bytes of one gradient.
const GRADIENT: u64 = 4 * LONG as u64;

/// Where in a round of a star a connection breaks: by the bytes that have gone through.
const PHASES: [When; 6] = [
    // Before the first task, and in it.
    When { up: false, bytes: 700 },
    // After "done", before the vector is sent.
    When { up: true, bytes: 500 },
    // While the vector is sent.
    When { up: true, bytes: GRADIENT / 2 },
    // While the sum comes back.
    When { up: false, bytes: GRADIENT / 3 },
    // Held, not yet applied.
    When { up: false, bytes: GRADIENT + 600 },
    // Some steps later.
    When { up: true, bytes: 2 * GRADIENT + 1000 },
];

#[test]
fn a_cut_connection_costs_no_step() {
    for when in PHASES {
        drill(Exchange::Star, Fault::Cut, when, QUICK);
        drill(Exchange::Hold, Fault::Cut, when, QUICK);
    }
    for when in [PHASES[0], PHASES[1], When { up: false, bytes: 2000 }] {
        drill(Exchange::Sharded, Fault::Cut, when, QUICK);
    }
}

#[test]
fn a_half_open_connection_is_given_up() {
    for when in [PHASES[1], PHASES[2], PHASES[3]] {
        drill(Exchange::Star, Fault::HalfOpen, when, QUICK);
        drill(Exchange::Hold, Fault::HalfOpen, when, QUICK);
    }
    drill(Exchange::Sharded, Fault::HalfOpen, PHASES[1], QUICK);
}

#[test]
fn a_trickling_connection_is_given_up() {
    drill(Exchange::Star, Fault::Trickle, PHASES[2], QUICK);
    drill(Exchange::Sharded, Fault::Trickle, PHASES[1], QUICK);
    drill(Exchange::Hold, Fault::Trickle, PHASES[2], QUICK);
}

/// Who can be spared is not waited for as long as others are.
#[test]
fn a_worker_that_can_be_spared_is_given_up_soon() {
    let log = drill(Exchange::Star, Fault::HalfOpen, PHASES[2], [10, 3600]);
    assert!(
        log.faults.iter().any(|fault| fault.2.contains("its vectors did not come")),
        "{:?}",
        log.faults
    );
}

/// Workers die in their tasks, several at once, and their results with them.
#[test]
fn dead_workers_cost_no_step() {
    for exchange in [Exchange::Star, Exchange::Sharded, Exchange::Hold] {
        for (scheme, dead) in [
            ("groups:s=1", vec![(2, 1)]),
            ("groups:s=3", vec![(0, 1), (1, 2), (2, 2)]),
            ("queue:m=1", vec![(0, 2), (3, 3)]),
        ] {
            // From that step on, and the others take their time: a step that is complete before a
            // worker has its task of it would keep that worker alive.
            let mischief =
                |worker: Worker, step| match dead.iter().find(|(dies, _)| *dies == worker.0) {
                    Some(&(_, from)) if step >= from => Prank::Panic,
                    Some(_) => Prank::None,
                    None => Prank::Unhurried,
                };
            let over = Over::Tcp(settings(exchange));
            let (_, expected, plain) = train(setup(scheme, 4, 8, modelled(4, 8, 1)));
            let (outcome, trained, log) = train(Setup {
                over,
                mischief: &mischief,
                ..setup(scheme, 4, 8, modelled(4, 8, 1))
            });
            assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
            assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{exchange:?} {scheme}");
            assert_eq!(
                log.faults.iter().filter(|fault| fault.2.contains("lost")).count(),
                dead.len(),
                "{:?}",
                log.faults
            );
            let alive = trained.iter().flatten();
            assert_eq!(alive.clone().count(), 4 - dead.len());
            assert!(
                alive.into_iter().all(|parameters| parameters == expected[0].as_ref().unwrap())
            );
        }
    }
}

/// One of two workers dies, and comes back while the other computes some later step: it takes over
/// a state, and from then on both hold every sum.
#[test]
fn a_worker_that_comes_back_late_costs_no_step() {
    let all = [
        (Exchange::Star, true),
        (Exchange::Hold, true),
        (Exchange::Sharded, true),
        (Exchange::Sharded, false),
    ];
    let (_, expected, _) = train(setup("groups:s=1", 2, 60, modelled(2, 60, 1)));
    for (exchange, keeps) in all {
        let left = AtomicU64::new(0);
        let mischief = |worker: Worker, step| {
            let leaves = worker.0 == 1 && step == 20 && left.fetch_add(1, Ordering::SeqCst) == 0;
            if leaves { Prank::Leave } else { Prank::Unhurried }
        };
        let returns = Some(Duration::from_millis(100));
        let over = Over::Tcp(Settings { keeps, returns, ..settings(exchange) });
        let run_clock = RunClock::wall(2, &Delays::None, 0, 0.0);
        let (outcome, trained, log) =
            train(Setup { over, mischief: &mischief, ..setup("groups:s=1", 2, 60, run_clock) });
        let name = format!("{exchange:?}, kept: {keeps}");
        assert_eq!(outcome.unwrap(), Outcome::Finished, "{name}");
        assert_eq!(trained, expected, "{name}: {:?}", log.faults);
        let resynced = log.faults.iter().any(|fault| fault.2.contains("takes over"));
        assert!(resynced && log.stuck.is_empty(), "{name}: {:?} {:?}", log.faults, log.stuck);
    }
}
