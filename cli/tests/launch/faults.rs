//! What happens to workers and to the coordinator, and the run goes on.

use crate::launched::{Launched, wait_for};

/// Long enough for something to happen in it.
const STEPS: u64 = 60;
const RUN: [(&str, &str); 2] = [("STEPS", "60"), ("PAUSE_MS", "30")];
const FLAGS: &str = "-n 4 --scheme groups:s=1 --out run";

#[test]
fn a_run_ends_where_one_process_alone_does() {
    let mut launched = Launched::start(FLAGS, &[("STEPS", "20")]);
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(4, 20);
    let printed = launched.printed();
    for worker in 0..4 {
        let line = |text: &str| format!("[{worker}] {text}");
        assert!(printed.contains(&line("joined: {\"scheme\":\"groups:s=1\"}\n")), "{printed}");
        assert!(launched.said().contains(&line("epoch 0\n")), "{}", launched.said());
        let log = launched.text(&format!("run/worker-{worker}.log"));
        assert!(log.contains("\njoined: {\"scheme\":\"groups:s=1\"}\n"), "{log}");
        assert!(log.contains("epoch 0\n"), "{log}");
    }
    assert!(launched.text("run/coordinator.log").contains("20 of 20 steps"), "it says how it went");
    assert!(launched.said().contains("20 of 20 steps"), "{}", launched.said());
    let summary = launched.text("run/summary.json");
    assert!(summary.contains("\"outcome\": \"finished\""), "{summary}");
}

#[test]
fn auto_is_the_default_and_quiet_leaves_worker_0() {
    let mut launched = Launched::start("-n 2 --out run --quiet", &[("STEPS", "30")]);
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(2, 30);
    let printed = launched.printed();
    assert!(printed.contains("[0] joined: {\"scheme\":\"auto\"}\n"), "{printed}");
    assert!(!printed.contains("[1] "), "{printed}");
    assert!(!launched.said().contains("[1] "), "{}", launched.said());
    assert!(launched.text("run/run.jsonl").contains("\"using\":{\"scheme\":\"uncoded\""));
}

#[test]
fn a_worker_that_is_killed_is_started_again() {
    let mut launched = Launched::start(FLAGS, &RUN);
    launched.waits_for_steps(5);
    let worker = launched.worker(2);
    assert_eq!(worker.group, worker.id, "it has a group of its own");
    worker.signal("-KILL");
    launched.waits_for_words("worker 2 was killed (SIGKILL): started again in 1 s (1 of 10)");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(4, STEPS);
    let log = launched.text("run/worker-2.log");
    assert!(log.contains("--- worker 2 is started again (1) ---\n"), "{log}");
    assert!(log.contains("epoch 0\n") && log.contains("epoch 1\n"), "{log}");
}

#[test]
fn a_worker_that_stands_still_is_waited_for_by_nobody() {
    let mut launched = Launched::start(FLAGS, &RUN);
    launched.waits_for_steps(5);
    let worker = launched.worker(1);
    worker.signal("-STOP");
    launched.waits_for_steps(30);
    worker.signal("-CONT");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(4, STEPS);
}

#[test]
fn a_worker_that_is_interrupted_is_left() {
    let mut launched = Launched::start(FLAGS, &RUN);
    launched.waits_for_steps(5);
    launched.worker(3).signal("-INT");
    launched.waits_for_words("worker 3 was interrupted (SIGINT): it is not started again");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    assert_eq!(launched.steps(), (0..STEPS).collect::<Vec<u64>>());
    let digests = launched.digests(4);
    assert!(digests[3].is_empty() && digests[..3].iter().all(|digests| digests.len() == 1));
}

#[test]
fn a_coordinator_that_is_killed_goes_on() {
    let mut launched = Launched::start(FLAGS, &RUN);
    launched.waits_for_steps(5);
    launched.coordinator().signal("-KILL");
    launched.waits_for_words("the coordinator was killed (SIGKILL): started again in 1 s");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(4, STEPS);
}

#[test]
fn a_coordinator_that_is_killed_after_the_last_step_is_not_needed() {
    let run = [("STEPS", "20"), ("PAUSE_MS", "20")];
    let mut launched = Launched::start("-n 3 --scheme groups:s=1 --out run", &run);
    launched.waits_for_steps(5);
    let (hangs, coordinator) = (launched.worker(1), launched.coordinator());
    // It waits a while for one that hangs, before it says that the run is over.
    hangs.signal("-STOP");
    launched.waits_for_steps(20);
    coordinator.signal("-KILL");
    wait_for("its end", || (!launched.children().contains(&coordinator)).then_some(()));
    hangs.signal("-CONT");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    assert_eq!(launched.steps(), (0..20).collect::<Vec<u64>>());
}

#[test]
fn who_has_left_a_workers_group_is_heard_on() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"if [ "$CODEDGRAD_WORKER$CODEDGRAD_EPOCH" = 00 ]; then
        setsid sh -c ": > away; sleep 2; echo later" &
        until [ -e away ]; do sleep 0.1; done; exit 3; fi; exec "$@""#;
    let program = ["sh", "-c", script, "sh"].map(str::to_owned);
    let program: Vec<String> = program.into_iter().chain(crate::launched::worker()).collect();
    let flags = "-n 2 --scheme uncoded --out run";
    let run = [("STEPS", "150"), ("PAUSE_MS", "20")];
    let mut launched = Launched::start_program(folder.path(), "it", flags, &program, &run);
    launched.waits_for_words("worker 0 ended with status 3: started again in 1 s");
    wait_for("its words", || launched.printed().contains("[0] later\n").then_some(()));
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(2, 150);
}
