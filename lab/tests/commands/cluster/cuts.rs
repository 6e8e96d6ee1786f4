//! Workers whose connections are cut again and again, and that only call again.

use super::proxy::Proxy;
use super::{PLAN, WORKERS, count_faults};
use crate::coordinated::{Run, uncoded};
use crate::processes::{Kept, lines, wait_for};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::thread;
use std::time::Duration;

const STEPS: &str = "600";
/// Cuts of one run; there are a few steps between them.
const CUTS: usize = 35;

/// Holds connections up for a while, cuts them, and lets the workers call again; how many were cut.
fn cut_again_and_again(run: &Run, proxies: &[Proxy], random: &mut ChaCha8Rng) -> usize {
    let mut cuts = 0;
    let (record, last) = (run.record(), STEPS.parse::<usize>().unwrap());
    while cuts < CUTS {
        let step = lines(&record).len() + random.random_range(1..5);
        wait_for("the run to go on", || (lines(&record).len() >= step.min(last)).then_some(()));
        if step >= last {
            break;
        }
        let proxy = &proxies[random.random_range(0..WORKERS)];
        // What is sent meanwhile is lost with the connection: some steps of which the worker does
        // not hear.
        proxy.hold();
        thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
        cuts += proxy.cut();
    }
    cuts
}

fn cut(exchange: &str, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut run = Run::start(STEPS, &format!("{PLAN} --exchange {exchange}"));
    let proxies: Vec<Proxy> = (0..WORKERS).map(|_| Proxy::to(&run.address).unwrap()).collect();
    let places = proxies.iter().enumerate();
    let mut workers: Vec<Kept> = places
        .map(|(number, proxy)| run.worker_by(number, "", &[("CODEDGRAD_ADDRESS", proxy.address())]))
        .collect();
    run.wait_for_steps(3);
    let cuts = cut_again_and_again(&run, &proxies, &mut random);
    let summary = run.finishes(&mut workers);
    let differing = (0..WORKERS)
        .map(|worker| count_faults(&summary, worker, "its parameters differ"))
        .sum::<usize>();
    let what = format!("{exchange}, seed {seed}, {cuts} cuts, {differing} times other parameters");
    println!("{what}");
    assert!(cuts > CUTS / 2, "{what}");
    run.has_trained(&uncoded("4", STEPS), &what);
    assert_eq!(differing, 0, "{what}");
}

#[test]
fn cuts_of_a_star_cost_no_bit() {
    cut("star", 1);
}

#[test]
fn cuts_beside_a_sharded_exchange_cost_no_bit() {
    cut("sharded", 2);
}

#[test]
fn cuts_where_results_are_held_cost_no_bit() {
    cut("hold", 3);
}
