//! A worker that ends the run for all workers. What is decided by then counts, and the others say
//! that the run is not made to its end.

use super::bare::{self, Bare};
use super::{PLAN, WORKERS, last_words, lines};
use crate::coordinated::Run;
use codedgrad::sums::Kind;
use serde_json::json;
use std::fs;
use std::thread::{self, JoinHandle};

const ENDER: usize = 3;
/// The step after which it has had enough.
const ENOUGH: u64 = 4;

/// Joins a run, says that it applies every step, computes nothing, and ends the run.
fn ends(run: &Run) -> JoinHandle<()> {
    let token = fs::read_to_string(run.folder.path().join("run/token")).unwrap();
    let mut call = Bare::call(&run.address, &token).unwrap();
    call.tell(&json!({"type": "hello", "worker": ENDER, "identity": "weary", "process": 7,
        "address": null, "offer": null, "supports_collectives": false}));
    assert_eq!(call.hear()["type"], "welcome");
    thread::spawn(move || {
        while let Ok((header, body)) = call.try_next() {
            if header.kind != Kind::Control {
                continue;
            }
            let message = bare::told(&body);
            let said = match message["type"].as_str().unwrap() {
                "apply" | "skip" => {
                    let step = message["step"].as_u64().unwrap();
                    if step == ENOUGH {
                        call.tell(&json!({"type": "finish", "after": step}));
                    }
                    call.try_tell(&json!({"type": "applied", "step": step, "digest": null}))
                }
                "ping" => call.try_tell(&json!({"type": "pong", "number": message["number"]})),
                "stop" => return,
                _ => Ok(()),
            };
            if said.is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_run_that_a_worker_ends_trains_no_further() {
    let flags = format!("{PLAN} --exchange star --max-wait 10");
    let mut run = Run::start("5000", &flags);
    let mut workers: Vec<_> = (0..ENDER).map(|number| run.worker(number, "")).collect();
    assert_eq!(workers.len(), WORKERS - 1);
    run.knows_what_is_trained();
    let ender = ends(&run);
    let summary = run.finishes(&mut []);
    ender.join().unwrap();
    let steps = lines(&run.record()).len();
    assert!((5..5000).contains(&steps), "{steps}");
    let said = run.coordinator.said();
    let last = format!("step {}: the last one: worker {ENDER} has ended the run", steps - 1);
    assert!(said.contains(&last), "{said}");
    assert_eq!((&summary["complete"], &summary["ended_by"]), (&false.into(), &ENDER.into()));
    assert_eq!(summary["steps"], steps);
    for worker in &mut workers {
        assert_eq!(worker.ends(), Some(1), "{}", last_words(worker));
        let made = format!("the run is over with {steps} of 5000 steps");
        assert!(worker.said().contains(&made), "{}", last_words(worker));
    }
}
