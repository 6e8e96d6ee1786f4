//! Workers that come back at any moment of a step, and for how long the others wait for that.

use super::{COORDINATOR, Death, PAUSE, Shared, Voyage, expected_of, simulate, voyage};
use codedgrad::sums::CHUNK;
use codedgrad::transport::tcp::Exchange;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// A worker that can be missed, and is back by the next time, dies or is cut off, again and again.
pub(super) async fn one_by_one(
    shared: &Shared,
    deaths: &[watch::Sender<Death>],
    faults: &AtomicU64,
    mut random: ChaCha8Rng,
) {
    let end = shared.voyage.steps - shared.voyage.calm;
    loop {
        sleep(PAUSE.mul_f64(random.random_range(1.0..2.0))).await;
        if shared.decided.load(Ordering::Relaxed) >= end {
            return;
        }
        faults.fetch_add(1, Ordering::Relaxed);
        let worker = random.random_range(0..shared.voyage.workers);
        if random.random_bool(0.3) {
            shared.net.note(&format!("worker {worker} is cut off"));
            shared.net.cut_short(worker, COORDINATOR);
        } else {
            deaths[usize::from(worker)].send_modify(|death| *death = (death.0 + 1, true));
        }
    }
}

/// All that a round may wait for: that a sum is seen to stand still, 1 s at most here; that a state
/// is handed over; and two steps, each a dozen units of 6 ms at most and what lies on the way. A
/// wait for a sum that no worker sends takes 120 s.
const LONGEST: Duration = Duration::from_secs(2);

/// Rounds that once lasted until `max_wait` where two workers were there, one with the state of the
/// other. That one was asked for a sum that none sent it.
fn nobody_waits_for_who_comes_back(steps: u64, seeds: std::ops::Range<u64>) {
    let all = [
        (Exchange::Star, true, "groups:s=1"),
        (Exchange::Sharded, true, "groups:s=1"),
        (Exchange::Sharded, false, "groups:s=1"),
        (Exchange::Hold, true, "groups:s=1"),
        (Exchange::Sharded, false, "uncoded"),
    ];
    for workers in 2..6 {
        // Two groups of five workers would not cut five units into subtrees: other bits.
        let group =
            |scheme| if workers == 5 && scheme != "uncoded" { "groups:s=4" } else { scheme };
        // A sum of several chunks takes longer to simulate.
        let (length, steps) = if workers == 3 { (2 * CHUNK + 77, steps / 6) } else { (300, steps) };
        let expected = expected_of(workers, length, steps);
        for (seed, (exchange, keeps, scheme)) in
            seeds.clone().flat_map(|seed| all.map(|case| (seed, case)))
        {
            let scheme = group(scheme);
            let found = simulate(
                &Voyage {
                    workers,
                    keeps,
                    returns: true,
                    away: 0.1,
                    calm: 40,
                    steps,
                    length,
                    ..voyage(exchange, scheme, seed)
                },
                &expected,
            );
            let name = format!("{workers} workers, {exchange:?} {keeps} {scheme}, seed {seed}");
            println!("{name}: {found:?}");
            assert!(
                found.faults > steps / 100 && 2 * found.lost > found.faults,
                "{name}: {found:?}"
            );
            assert!(found.longest < LONGEST, "{name}: a round of {:?}", found.longest);
        }
    }
}

#[test]
fn nobody_waits_for_a_worker_that_comes_back() {
    nobody_waits_for_who_comes_back(400, 0..1);
}

/// Whether a unit ends every worker that computes it for the first time.
pub(super) fn is_bad(step: u64, unit: usize) -> bool {
    step % 20 == 7 && unit == 1
}

/// A queue gives an item on that has cost a worker, and its last ones to two at once: three are lost
/// at a bad one before it is kept for one of them, and never all four.
#[test]
fn an_item_does_not_cost_one_worker_after_the_other() {
    let (steps, length) = (400, 300);
    let expected = expected_of(4, length, steps);
    for (seed, exchange) in (0..6).zip([Exchange::Star, Exchange::Sharded].into_iter().cycle()) {
        let voyage = Voyage {
            poison: true,
            // All workers are back before the end.
            away: 0.2,
            calm: steps,
            steps,
            length,
            ..voyage(exchange, "queue:m=1", seed)
        };
        let found = simulate(&voyage, &expected);
        println!("{exchange:?}, seed {seed}: {found:?}");
        assert_eq!(found.faults, steps / 20);
        assert!(found.lost > found.faults, "{found:?}");
        assert!(found.longest < LONGEST, "a round of {:?}", found.longest);
    }
}

/// Minutes.
#[test]
#[ignore = "long"]
fn nobody_waits_for_a_worker_that_comes_back_for_long() {
    nobody_waits_for_who_comes_back(4_000, 100..110);
}
