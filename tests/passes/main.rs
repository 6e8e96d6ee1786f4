//! How often a gradient passes over the host's memory. The counters are those of the process, so
//! this is one test.

use codedgrad::passes::counted;
use codedgrad::train::{Aggregator, Builder, Coordinator, Event};
use std::collections::BTreeMap;
use std::thread::spawn;

/// Some chunks of 65,536 numbers, and a shorter one.
const LENGTH: usize = 3 * 65_536 + 5;
const STEPS: u64 = 3;

type Passes = BTreeMap<&'static str, f64>;

fn train(mut worker: Aggregator) {
    let mut gradient = vec![0.0; LENGTH];
    while let Some(event) = worker.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                while task.next_part().is_some() {
                    task.message().fill(1.0);
                }
                task.submit(vec![]).unwrap();
            }
            Event::Apply(step) => step.write_gradient(&mut gradient).unwrap(),
            _ => panic!("nothing is lost or refused"),
        }
    }
}

/// The passes of a step by place, of all workers and their coordinator together.
fn passes(run: impl FnOnce()) -> Passes {
    let before: BTreeMap<&str, u64> = counted().into_iter().collect();
    run();
    let whole = (4 * LENGTH as u64 * STEPS) as f64;
    let each = |(place, bytes)| (place, (bytes - before[place]) as f64 / whole);
    counted().into_iter().map(each).filter(|(_, passes)| *passes > 0.0).collect()
}

fn uncoded(workers: usize, units: u32) -> Builder {
    Coordinator::builder("uncoded").workers(workers).units(units).steps(STEPS).length(LENGTH)
}

fn alone(units: u32) -> Passes {
    passes(|| {
        let (coordinator, mut workers) = uncoded(1, units).local().unwrap();
        let worker = spawn(move || train(workers.remove(0)));
        coordinator.run(&mut ()).unwrap();
        worker.join().unwrap();
    })
}

#[test]
fn workers_take_as_many_passes_as_formulas_say() {
    for units in [1, 4, 8] {
        let found = alone(units);
        println!("alone, {units} micro-batches: {found:?}");
        let units = f64::from(units);
        let expected = [
            // Each message begins as zeros.
            ("clear", units),
            // Each addition of the tree reads two vectors and writes one.
            ("add", 3.0 * (units - 1.0)),
            // The worker's sum is read when it is submitted. It is the only term of the step's sum,
            // which is read for its digest, and to see whether it is finite.
            ("scan", 2.0),
            ("sum", 2.0),
            ("digest", 1.0),
            ("scatter", 2.0),
        ];
        let expected = expected.into_iter().filter(|(_, passes)| *passes > 0.0).collect();
        assert_eq!(found, expected, "{units} micro-batches");
    }
    #[cfg(feature = "tcp")]
    over_tcp::two_workers();
}

#[cfg(feature = "tcp")]
mod over_tcp {
    use super::*;
    use codedgrad::transport::tcp::security::{Security, Token};

    /// Two workers that have `units` micro-batches together.
    fn of_two(units: u32) -> Passes {
        let security = Security::Plain { token: Token::fresh().unwrap() };
        passes(|| {
            let served = uncoded(2, units).serve("127.0.0.1:0", security.clone()).unwrap();
            let join = |number| {
                let joining = Aggregator::join(served.address().to_string()).worker(number);
                let joining = joining.security(security.clone());
                spawn(move || train(joining.connect().unwrap()))
            };
            let workers = [0, 1].map(join);
            served.run(&mut ()).unwrap();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        })
    }

    pub(super) fn two_workers() {
        for units in [2, 8, 16] {
            let found = of_two(units);
            println!("two over TCP, {units} micro-batches: {found:?}");
            let each = f64::from(units / 2);
            // Each worker sums some of the chunks, in all one vector. Of each chunk a term goes to
            // the worker that sums it, and the sum to the other.
            let least = [
                ("clear", 2.0 * each),
                ("add", 2.0 * 3.0 * (each - 1.0)),
                ("frame_out", 2.0),
                ("frame_in", 2.0),
                // Submitted by two, summed once, and received once.
                ("scan", 4.0),
                ("sum", 3.0),
                ("digest", 2.0),
                ("copy", 2.0),
                ("scatter", 4.0),
            ];
            // A chunk that is late may be sent again, or be copied once more.
            for (place, least) in least {
                let found = found.get(place).copied().unwrap_or_default();
                assert!(found >= least, "{units} micro-batches: {place} {found}, not {least}");
            }
        }
    }
}
