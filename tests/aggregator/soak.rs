//! Many rounds in which workers leave and come back at random, over real sockets.

use super::tcp::{Settings, settings};
use super::{Over, Prank, Setup, bits, modelled, setup, train};
use codedgrad::delays::Delays;
use codedgrad::ids::Worker;
use codedgrad::run::NumberFormat;
use codedgrad::train::{Outcome, RunClock};
use codedgrad::transport::tcp::Exchange;
use std::collections::HashSet;
use std::sync::Mutex;

/// A number in 0..1 that depends on its arguments alone.
fn draw(seed: u64, worker: u32, step: u64) -> f64 {
    let mut x = seed ^ (u64::from(worker) << 48) ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3 {
        x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// Every worker but the first leaves now and then, without a word, and comes back with nothing.
fn soak(exchange: Exchange, scheme: &str, steps: u64, seed: u64) {
    // Whoever comes back does the step it left at.
    let left = Mutex::new(HashSet::new());
    let leaves = |worker: Worker, step: u64| {
        let due = worker.0 > 0 && draw(seed, worker.0, step) < 0.02;
        if due && left.lock().unwrap().insert((worker, step)) { Prank::Leave } else { Prank::None }
    };
    let (_, _, plain) = train(setup(scheme, 4, steps, modelled(4, steps, seed)));
    let over =
        Over::Tcp(Settings { returns: Some(std::time::Duration::ZERO), ..settings(exchange) });
    let run_clock = RunClock::wall(4, &Delays::None, steps as usize, 0.0);
    let (outcome, _, log) =
        train(Setup { over, mischief: &leaves, ..setup(scheme, 4, steps, run_clock) });
    let last = &log.faults[log.faults.len().saturating_sub(8)..];
    assert_eq!(
        outcome.as_ref().ok(),
        Some(&Outcome::Finished),
        "{exchange:?} {scheme}, seed {seed}: {outcome:?} after {last:#?}"
    );
    let differs = bits(&log.gradients)
        .iter()
        .zip(bits(&plain.gradients))
        .position(|(found, expected)| *found != expected);
    if let Some(step) = differs {
        let around = log.faults.iter().filter(|fault| fault.0.abs_diff(step as u64) < 4);
        panic!(
            "{exchange:?} {scheme}, seed {seed}, step {step}: {:?}, {:#?}",
            log.records[step].survivors,
            around.collect::<Vec<_>>()
        );
    }
    assert!(log.records.iter().all(|record| record.decode.coverage == 1.0));
    assert!(left.lock().unwrap().len() as u64 > steps / 100, "{left:?} left");
    assert!(log.faults.iter().any(|fault| fault.2.contains("is there again")));
}

#[test]
fn workers_that_come_and_go_cost_no_step() {
    for (exchange, scheme, seed) in [
        (Exchange::Star, "groups:s=1", 1),
        (Exchange::Sharded, "groups:s=1", 2),
        (Exchange::Sharded, "queue:m=1", 3),
        (Exchange::Star, "queue:m=1", 4),
        (Exchange::Hold, "groups:s=1", 5),
    ] {
        soak(exchange, scheme, 1_500, seed);
    }
}

/// A few minutes.
#[test]
#[ignore = "long"]
fn workers_come_and_go_for_long() {
    for seed in 0..10 {
        let exchange = if seed % 2 == 0 { Exchange::Star } else { Exchange::Sharded };
        soak(exchange, "groups:s=1", 5_000, seed);
    }
}

/// Two bytes per number: the gradient is near the wide one, and the same for all.
#[test]
fn narrow_numbers_on_the_wire_keep_replicas_equal() {
    for exchange in [Exchange::Star, Exchange::Sharded, Exchange::Hold] {
        let over = Over::Tcp(Settings { format: NumberFormat::Bf16, ..settings(exchange) });
        let (_, _, plain) = train(setup("groups:s=1", 4, 1, modelled(4, 1, 1)));
        let (outcome, trained, log) =
            train(Setup { over, ..setup("groups:s=1", 4, 5, modelled(4, 5, 1)) });
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        assert!(
            trained.iter().all(|parameters| parameters == &trained[0]),
            "all hold the same bytes"
        );
        let (Some(wide), Some(narrow)) = (&plain.gradients[0], &log.gradients[0]) else { panic!() };
        assert_ne!(wide, narrow);
        let norm =
            |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let difference = norm(&mut wide.iter().zip(narrow).map(|(a, b)| a - b));
        assert!(difference < 2f64.powi(-7) * norm(&mut wide.iter().copied()), "{difference}");
    }
}
