//! Workers whose parameters differ, where no side is the larger one: how `serve` ends, and from
//! which states it goes on.

use crate::processes::Kept;
use crate::serving;
use codedgrad::ids::Step;
use codedgrad::train::{Aggregator, AggregatorError, Event};
use codedgrad::transport::RunFacts;
use codedgrad::transport::tcp::security::Security;
use codedgrad::transport::wire::InitialReplica;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::thread;

const STEPS: u64 = 12;

/// Trains on zeros, from a step on; its parameters change by themselves after another.
fn work(
    mut worker: Aggregator,
    mut next: u64,
    drifts: Option<u64>,
) -> Result<u64, AggregatorError> {
    let mut parameters = 7;
    while let Some(event) = worker.next_event()? {
        match event {
            Event::Compute(mut task) => {
                while task.next_part().is_some() {
                    task.message().fill(0.0);
                }
                task.submit(vec![])?;
            }
            Event::Apply(step) => {
                next = step.index + 1;
                if drifts == Some(step.index) {
                    parameters = 9;
                }
                step.applied_with(parameters);
            }
            Event::Skip(_) => {}
            Event::Provide(request) => request.reply(vec![vec![parameters as f32; 2]]),
            Event::Resync(state) => parameters = state.vectors[0][0] as u64,
        }
    }
    Ok(next)
}

/// Two workers that begin with a state of this step; which step is their next at the end.
fn both(
    (address, security): (String, Security),
    next: u64,
    drifts: Option<u64>,
) -> Vec<Result<u64, AggregatorError>> {
    let facts = RunFacts {
        length: Some(2),
        units: Some(2),
        steps: Some(STEPS),
        dtype: Some("f32".into()),
        layout: Some(7),
        ..RunFacts::default()
    };
    let begin = |(number, drifts): (u32, Option<u64>)| {
        let joining = Aggregator::join(&address).security(security.clone()).facts(facts.clone());
        let joining = joining.worker(number).unit_samples(1).has(InitialReplica::Below(Step(next)));
        thread::spawn(move || work(joining.connect().unwrap(), next, drifts))
    };
    let workers: Vec<_> = [(0, None), (1, drifts)].into_iter().map(begin).collect();
    workers.into_iter().map(|worker| worker.join().unwrap()).collect()
}

fn plan(home: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(home.join("run/serve.json")).unwrap()).unwrap()
}

fn resumes(home: &Path, next: u64) -> (Kept, Vec<Result<u64, AggregatorError>>) {
    fs::remove_file(home.join("run/address")).unwrap();
    let (mut serving, address, security) = serving::serve_with(
        home,
        "run",
        &["serve", "--resume", "run", "--listen", "127.0.0.1:0", "--token", "run/token"],
    );
    let ended = both((address, security), next, None);
    serving.ends();
    (serving, ended)
}

#[test]
fn a_tie_ends_the_run_which_goes_on_from_a_state_before_it() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let flags = ["--workers", "2", "--scheme", "groups:s=1"];
    let (mut serving, address, security) = serving::serve(home, "run", &flags);
    let ended = both((address, security), 0, Some(6));
    assert_eq!(serving.ends(), Some(1));
    let said = serving.said().split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "error: step 6: parameters differ after it",
        "workers {0} against workers {1}",
        "go on with --resume",
        "first=6 or less",
        "verify=0",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("takes over"), "{said}");
    // Their scripts end with an error, and do not save what they have.
    assert!(
        ended.iter().all(|ended| matches!(ended, Err(AggregatorError::Refused { .. }))),
        "{ended:?}"
    );
    assert_eq!(plan(home)["differs_from"], 6);
    let events = fs::read_to_string(home.join("run/events.jsonl")).unwrap();
    assert!(events.lines().last().unwrap().contains("parameters differ"), "{events}");

    let (later, _) = resumes(home, 8);
    let said = later.said().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("equal only before step 6: load a checkpoint"), "{said}");
    assert_eq!(plan(home)["differs_from"], 6);
    let (serving, ended) = resumes(home, 6);
    assert_eq!(ended, [Ok(STEPS), Ok(STEPS)], "{}", serving.said());
    assert!(plan(home)["differs_from"].is_null() && plan(home)["over"] == true);
}
