//! `codedgrad serve`: a coordinator alone, whose workers are started by hand.

use crate::launched::{Launched, wait_for};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const FLAGS: &str = "--workers 2 --scheme groups:s=1 --out run";
const RUN: [(&str, &str); 2] = [("STEPS", "60"), ("PAUSE_MS", "20")];

fn workers(folder: &Path) -> [Launched; 2] {
    [0, 1].map(|number| Launched::hand(folder, number, &RUN))
}

/// What another command of the program prints, which goes well.
fn printed(folder: &Path, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    let output = command.args(line.split(' ')).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{line}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_is_learned_from_its_workers_and_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let flags = format!("{FLAGS} --metrics 127.0.0.1:0 --json");
    let mut serve = Launched::serve(folder.path(), "serve", &flags);
    let token = folder.path().canonicalize().unwrap().join("run/token");
    serve.waits_for_words(&format!("CODEDGRAD_TOKEN_FILE={}", token.display()));
    let metrics = wait_for("its metrics", || {
        let said = serve.said();
        Some(said.split_once("metrics are at http://")?.1.split_once("/metrics")?.0.to_owned())
    });
    let before = printed(folder.path(), &format!("status {metrics}"));
    assert!(before.contains("groups:s=1: the run has not begun: 0 of 2 workers"), "{before}");
    assert!(before.contains("not come yet") && !before.contains("gone"), "{before}");
    let first = Launched::hand(folder.path(), 0, &RUN);
    wait_for("its facts", || serve.text("run/serve.json").contains("\"facts\": {").then_some(()));
    let second = Launched::hand(folder.path(), 1, &RUN);
    serve.waits_for_steps(3);
    let shown = printed(folder.path(), &format!("status {metrics}"));
    assert!(shown.contains(" of 60, ") && shown.contains("connected"), "{shown}");
    assert_eq!(serve.ends_itself(), Some(0), "{}", serve.said());
    for mut worker in [first, second] {
        assert_eq!(worker.ends_itself(), Some(0), "{}", worker.said());
        let end = format!("ends with {}\n", crate::worker::alone(60));
        assert!(worker.printed().contains(&end), "{}", worker.printed());
    }
    let summary: Value = serde_json::from_str(&serve.printed()).unwrap();
    assert_eq!((&summary["steps"], &summary["outcome"]), (&60.into(), &"finished".into()));
    let trace = printed(folder.path(), "trace record run");
    assert_eq!(trace.lines().count(), 60, "{trace}");
    let mut again = Launched::serve(folder.path(), "again", "--resume run");
    assert_eq!(again.ends_itself(), Some(2));
    assert!(again.said().contains("the run in run is over"), "{}", again.said());
}

/// No coordinator knows which of two is right.
#[test]
fn workers_that_differ_make_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = Launched::serve(folder.path(), "serve", FLAGS);
    let wrong = Launched::hand(folder.path(), 0, &[("STEPS", "61")]);
    wait_for("its facts", || serve.text("run/serve.json").contains("\"facts\": {").then_some(()));
    let right = Launched::hand(folder.path(), 1, &RUN);
    assert_eq!(serve.ends_itself(), Some(1), "{}", serve.said());
    let why = "nothing is trained: worker 0 and worker 1 differ in steps (61 and 60)";
    assert!(serve.said().contains(why), "{}", serve.said());
    for mut worker in [wrong, right] {
        assert_eq!(worker.ends_itself(), Some(101), "{}", worker.said());
        assert!(worker.said().contains(why) || worker.printed().contains(why), "it is told, too");
    }
    assert!(!folder.path().join("run").exists(), "nothing is left of it");
}

/// What the first worker said of a run without a step binds no worker.
#[test]
fn before_the_first_step_a_resumed_run_is_learned_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = Launched::serve(folder.path(), "serve", FLAGS);
    let mut wrong = Launched::hand(folder.path(), 0, &[("STEPS", "61")]);
    wait_for("its facts", || serve.text("run/serve.json").contains("\"facts\": {").then_some(()));
    serve.is_killed();
    wrong.is_killed();
    let mut resumed = Launched::serve(folder.path(), "resumed", "--resume run");
    resumed.waits_for_words("0 of 2 workers are there");
    let hands = workers(folder.path());
    assert_eq!(resumed.ends_itself(), Some(0), "{}", resumed.said());
    assert!(hands.into_iter().all(|mut worker| worker.ends_itself() == Some(0)));
    assert_eq!(resumed.steps(), (0..60).collect::<Vec<u64>>());
}

/// Who comes later has to train what is trained already.
#[test]
fn who_comes_later_and_differs_is_refused_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = Launched::serve(folder.path(), "serve", &format!("{FLAGS} --join-wait 1"));
    let mut first = Launched::hand(folder.path(), 0, &[("STEPS", "300"), ("PAUSE_MS", "20")]);
    serve.waits_for_steps(1);
    let mut other = Launched::hand(folder.path(), 1, &RUN);
    assert_eq!(other.ends_itself(), Some(101), "it is refused");
    let why = "60 here, 300 in the run";
    assert!(other.said().contains(why) || other.printed().contains(why), "{}", other.said());
    assert_eq!(serve.ends_itself(), Some(0), "{}", serve.said());
    assert_eq!(first.ends_itself(), Some(0), "{}", first.said());
}

#[test]
fn what_was_interrupted_goes_on() {
    for (signal, status) in [("-INT", 130), ("-TERM", 143), ("-KILL", 137)] {
        let folder = tempfile::tempdir().unwrap();
        let mut serve = Launched::serve(folder.path(), "serve", FLAGS);
        let hands = workers(folder.path());
        serve.waits_for_steps(5);
        serve.signal(signal);
        let ended = serve.ends_itself();
        assert_eq!(ended, (signal != "-KILL").then_some(status), "{}", serve.said());
        let before = serve.steps();
        assert_eq!(before, (0..before.len() as u64).collect::<Vec<u64>>());
        let mut resumed = Launched::serve(folder.path(), "resumed", "--resume run");
        // Whom the coordinator has told that the run is over has ended; who has lost it calls.
        let hands = if signal == "-KILL" { hands } else { workers(folder.path()) };
        assert_eq!(resumed.ends_itself(), Some(0), "{}", resumed.said());
        for mut worker in hands {
            assert_eq!(worker.ends_itself(), Some(0), "{}", worker.said());
            let end = format!("ends with {}\n", crate::worker::alone(60));
            assert!(worker.printed().contains(&end), "{}", worker.printed());
        }
        assert_eq!(resumed.steps(), (0..60).collect::<Vec<u64>>());
    }
}

#[test]
fn a_run_that_a_worker_ends_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "-n 2 --scheme groups:s=1 --out run";
    let run = [("STEPS", "100000"), ("ENDS_AFTER", "7"), ("PAUSE_MS", "5")];
    let mut launched = Launched::start_in(folder.path(), "it", flags, &run);
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    let summary: Value = serde_json::from_str(&launched.text("run/summary.json")).unwrap();
    let steps = summary["steps"].as_u64().unwrap();
    assert!((8..100_000).contains(&steps), "{summary}");
    assert_eq!(steps, launched.steps().len() as u64);
    assert_eq!((&summary["complete"], &summary["ended_by"]), (&false.into(), &1.into()));
    let said = launched.said();
    let last = format!("step {}: the last one: worker 1 has ended the run", steps - 1);
    assert!(said.contains(&last), "{said}");
    assert!(
        said.contains(&format!("{steps} of 100000 steps (worker 1 has ended the run)")),
        "{said}"
    );
    let ends = launched.text("run/events.jsonl");
    assert!(ends.contains("\"kind\":\"ended\"") && ends.contains("ended by worker 1"), "{ends}");
}

/// One that is told to end does not wait for a worker's return, which may never be.
#[test]
fn one_whose_round_cannot_close_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--workers 2 --scheme uncoded --out run --return-wait 600 --max-wait 600";
    let mut serve = Launched::serve(folder.path(), "serve", flags);
    let run = [("STEPS", "100000"), ("PAUSE_MS", "5")];
    let [_first, mut second] = [0, 1].map(|number| Launched::hand(folder.path(), number, &run));
    serve.waits_for_steps(5);
    second.is_killed();
    serve.waits_for_words("worker 1: lost");
    serve.signal("-TERM");
    assert_eq!(serve.ends_itself(), Some(143), "{}", serve.said());
    let summary: Value = serde_json::from_str(&serve.text("run/summary.json")).unwrap();
    assert_eq!(summary["steps"], serve.steps().len());
    assert_eq!((&summary["outcome"], &summary["complete"]), (&"stopped".into(), &false.into()));
}

#[test]
fn one_that_waits_can_be_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = Launched::serve(folder.path(), "serve", FLAGS);
    serve.waits_for_words("0 of 2 workers are there");
    serve.signal("-INT");
    assert_eq!(serve.ends_itself(), Some(130), "{}", serve.said());
    assert!(!folder.path().join("run").exists(), "nothing is left of it");
    let mut serve = Launched::serve(folder.path(), "serve", &format!("{FLAGS} --join-wait 1"));
    assert_eq!(serve.ends_itself(), Some(1), "{}", serve.said());
    assert!(serve.said().contains("no worker has joined within 1 s"), "{}", serve.said());
}

#[test]
fn what_the_first_worker_trains_must_fit() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--workers 16 --scheme uncoded --out run";
    let mut serve = Launched::serve(folder.path(), "serve", flags);
    let mut worker = Launched::hand(folder.path(), 0, &RUN);
    assert_eq!(serve.ends_itself(), Some(2), "{}", serve.said());
    assert!(serve.said().contains("8 units cannot be cut into 16 shares"), "{}", serve.said());
    assert_eq!(worker.ends_itself(), Some(101));
    let why = "8 units cannot be cut into 16 shares";
    assert!(worker.said().contains(why) || worker.printed().contains(why), "it is told, too");
}
