//! A worker that ends the run for everybody: what is decided by then is saved, and nothing begins
//! afresh.

use super::bare::{self, Bare};
use super::{WORKERS, last_words, lines, plan};
use crate::coordinated::Run;
use codedgrad::sums::Kind;
use serde_json::{Value, json};
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
fn a_run_that_a_worker_ends_is_saved_and_trains_no_further() {
    let own = ["--exchange", "star", "--checkpoint-every", "4000", "--max-wait", "10"];
    let mut run = Run::start_in_real_time(&[&plan("5000")[..], &own].concat());
    let ender = ends(&run);
    let mut workers: Vec<_> = (0..ENDER).map(|number| run.worker(number, &[])).collect();
    assert_eq!(workers.len(), WORKERS - 1);
    assert_eq!(run.coordinator.ends(), Some(143), "{}", last_words(&run.coordinator));
    ender.join().unwrap();
    let steps = lines(&run.record()).len();
    assert!((5..5000).contains(&steps), "{steps}");
    let said = run.coordinator.said();
    let last = format!("step {}: the last one: worker {ENDER} has ended the run", steps - 1);
    assert!(said.contains(&last), "{said}");
    let folder = run.folder.path().join("run");
    let summary = fs::read(folder.join("summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["interrupted"], true);
    assert_eq!(summary["runs"][0]["steps"], steps);
    let checkpoint = fs::read(folder.join("checkpoint.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&checkpoint[..checkpoint.len().min(4000)]);
    assert!(header.contains(&format!("next_step\\\":{steps}")), "{header}");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let logs = names.filter(|name| name.to_string_lossy().starts_with("worker-")).count();
    assert_eq!(logs, 0, "it starts no worker");
    for worker in &mut workers {
        assert_eq!(worker.ends(), Some(0), "{}", last_words(worker));
    }
}
