//! How a run ends before its time, and that no process is left then.

use crate::launched::{Launched, wait_for};

const RUN: [(&str, &str); 2] = [("STEPS", "100000"), ("PAUSE_MS", "20")];
const FLAGS: &str = "-n 3 --scheme uncoded --out run";

/// Whether this process was started with SIGHUP ignored, the first bit of the mask.
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn ctrl_c_sigterm_and_sighup_end_everybody() {
    let mut signals = vec![("-INT", 130), ("-TERM", 143)];
    // Where these tests were started by `nohup`, so is all that they start.
    if !hangups_are_ignored() {
        signals.push(("-HUP", 129));
    }
    for (signal, status) in signals {
        let mut launched = Launched::start(FLAGS, &RUN);
        launched.waits_for_steps(3);
        launched.signal(signal);
        assert_eq!(launched.ends(), Some(status), "{}", launched.said());
        // Workers that are told to leave have their notice.
        let grace = if signal == "-INT" { 10 } else { 25 };
        let said = format!("in {grace} s by force");
        assert!(launched.said().contains(&said), "{}", launched.said());
        assert!(!launched.said().contains("started again"), "{}", launched.said());
        let by = match signal {
            "-INT" => "Ctrl-C",
            "-TERM" => "SIGTERM",
            _ => "SIGHUP",
        };
        let said = launched.said();
        let (_, last) = said.split_once(&format!("ended by {by} after step ")).unwrap();
        for word in [" of 100000: ", "/run has the record", "itself saves the model", "first="] {
            assert!(last.contains(word), "{word}: {said}");
        }
    }
}

#[test]
fn who_does_not_end_is_killed() {
    let flags = "-n 2 --scheme uncoded --out run --kill-after 1";
    let mut launched = Launched::start(flags, &RUN);
    launched.waits_for_steps(3);
    // Whoever stands still hears no signal but one.
    launched.worker(1).signal("-STOP");
    launched.signal("-INT");
    assert_eq!(launched.ends(), Some(130), "{}", launched.said());
}

#[test]
fn a_second_signal_ends_at_once() {
    let flags = "-n 2 --scheme uncoded --out run --kill-after 1000";
    let mut launched = Launched::start(flags, &RUN);
    launched.waits_for_steps(3);
    launched.worker(0).signal("-STOP");
    launched.signal("-TERM");
    launched.waits_for_words("in 1000 s by force");
    // One that comes at once would be of the same order.
    std::thread::sleep(std::time::Duration::from_millis(300));
    launched.signal("-TERM");
    assert_eq!(launched.ends(), Some(143), "{}", launched.said());
    assert!(launched.said().contains("ending at once"), "{}", launched.said());
}

#[test]
fn nobody_outlives_a_launcher_that_is_killed() {
    let mut launched = Launched::start(FLAGS, &RUN);
    launched.waits_for_steps(3);
    launched.is_killed();
    wait_for("the end of all its processes", || launched.left().is_empty().then_some(()));
}

#[test]
fn children_of_workers_end_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let program = ["sh", "-c", "sleep 1000 & exec sleep 2000"].map(str::to_owned);
    let mut launched =
        Launched::start_program(folder.path(), "it", "-n 2 --out run", &program, &[]);
    wait_for("two sleepers each", || (launched.left().len() >= 5).then_some(()));
    launched.worker(0).signal("-KILL");
    launched.waits_for_words("worker 0 was killed");
    wait_for("its child to end", || (launched.left().len() <= 3).then_some(()));
    launched.signal("-TERM");
    assert_eq!(launched.ends(), Some(143));
}

#[test]
fn a_program_that_does_not_join_is_named() {
    let ends = |environment: &[(&str, &str)], flags: &str| {
        let mut launched = Launched::start(&format!("-n 2 --out run {flags}"), environment);
        assert_eq!(launched.ends(), Some(1), "{}", launched.said());
        launched.said()
    };
    for status in ["0", "3"] {
        let said = ends(&[("ENDS_WITH", status)], "");
        let words = format!("ended with status {status} without joining the run: does it call");
        assert!(said.contains(&words), "{said}");
        assert!(said.contains("codedgrad.torch.prepare or join"), "{said}");
        let (_, words) = said.split_once("The end of what worker 0 said:\n").unwrap();
        assert!(words.contains("worker 0 of 2"), "{said}");
    }
    let said = ends(&[("NEVER_JOINS", "1")], "--join-wait 1 --kill-after 1");
    assert!(said.contains("no worker has joined within 1 s"), "{said}");
}

#[test]
fn of_workers_that_said_nothing_no_words_are_announced() {
    let folder = tempfile::tempdir().unwrap();
    let program = ["true".to_owned()];
    let mut launched =
        Launched::start_program(folder.path(), "it", "-n 2 --out run", &program, &[]);
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    let said = launched.said();
    assert!(said.contains("ended with status 0 without joining the run"), "{said}");
    assert!(!said.contains("The end of what"), "{said}");
}

/// What helps stands last in a message.
#[test]
fn the_end_of_a_long_line_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let script = "head -c 3000 /dev/zero | tr '\\0' x >&2; echo ': call prepare' >&2; exit 3";
    let program = ["sh", "-c", script].map(str::to_owned);
    let mut launched =
        Launched::start_program(folder.path(), "it", "-n 2 --out run", &program, &[]);
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    let said = launched.said();
    let (_, words) = said.split_once("The end of what worker 0 said:\n").unwrap();
    let line = words.lines().next().unwrap();
    assert!(line.ends_with("xxx: call prepare") && line.len() < 900, "{line}");
    assert!(line.starts_with(&format!("    {} ... x", "x".repeat(400))), "{line}");
}

#[test]
fn who_crashes_at_its_start_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"if [ "$CODEDGRAD_WORKER" = 1 ]; then echo no luck; exit 7; fi; exec "$@""#;
    let program = ["sh", "-c", script, "sh"].map(str::to_owned);
    let program: Vec<String> = program.into_iter().chain(crate::launched::worker()).collect();
    let flags = "-n 4 --scheme groups:s=1 --join-wait 2 --out run";
    let run = [("STEPS", "150"), ("PAUSE_MS", "40")];
    let mut launched = Launched::start_program(folder.path(), "it", flags, &program, &run);
    launched.waits_for_words("worker 1 ended with status 7: started again in 2 s (2 of 10)");
    launched.waits_for_words("and is given up: 3 times in a row within 10 s of its start");
    launched
        .waits_for_words("worker 1 is given up: where the scheme needs it, the run waits for it ");
    assert_eq!(launched.ends(), Some(0), "the others go on: {}", launched.said());
    assert!(launched.said().contains("    no luck\n"), "{}", launched.said());
    assert_eq!(launched.steps(), (0..150).collect::<Vec<u64>>());
}

#[test]
fn a_run_that_fewer_may_make_goes_on_without_who_is_given_up() {
    let run = [("STEPS", "150"), ("PAUSE_MS", "20")];
    let flags = "-n 2..3 --scheme uncoded --out run --restarts 0 --return-wait 60";
    let mut launched = Launched::start(flags, &run);
    launched.waits_for_steps(3);
    launched.worker(1).signal("-KILL");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    let said = launched.said();
    assert!(said.contains("planned for 2 of 3 workers (0, 2) under uncoded"), "{said}");
    assert_eq!(launched.steps(), (0..150).collect::<Vec<u64>>());
}

#[test]
fn where_no_worker_is_left_the_run_is_over() {
    let mut launched = Launched::start("-n 2 --scheme uncoded --out run --restarts 0", &RUN);
    launched.waits_for_steps(3);
    launched.worker(0).signal("-KILL");
    launched.worker(1).signal("-KILL");
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    assert!(launched.said().contains("and is given up: --restarts 0"), "{}", launched.said());
    assert!(launched.said().contains("all workers have ended"), "{}", launched.said());
}

#[test]
fn who_hangs_at_the_end_is_ended() {
    let run = [("STEPS", "150"), ("PAUSE_MS", "60")];
    let mut launched =
        Launched::start("-n 3 --scheme groups:s=1 --out run --kill-after 1 --max-wait 2", &run);
    launched.waits_for_steps(3);
    launched.worker(1).signal("-STOP");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    let said = launched.said();
    assert!(said.contains("worker 1 was not connected when the run was over"), "{said}");
    assert_eq!(launched.steps(), (0..150).collect::<Vec<u64>>());
}

#[test]
fn who_stays_after_the_end_can_be_ended_and_the_run_was_made() {
    let run = [("STEPS", "10"), ("STAYS", "1")];
    let mut launched = Launched::start("-n 2 --scheme uncoded --out run --kill-after 1", &run);
    launched.waits_for_words("the run is over: waiting for worker 1 to end");
    launched.signal("-INT");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    assert!(launched.said().contains("ending what is left of the run"), "{}", launched.said());
}

#[test]
fn one_worker_has_to_end_well_after_the_last_step() {
    for (crash, status) in [("0 1", 1), ("1", 0), ("0", 1)] {
        let run = [("STEPS", "10"), ("CRASHES_LATE", crash)];
        let mut launched = Launched::start("-n 2 --scheme uncoded --out run", &run);
        assert_eq!(launched.ends(), Some(status), "{}", launched.said());
        let said = launched.said();
        assert!(said.contains("the run was made to its end, but"), "{said}");
        let last = crash.split(' ').next_back().unwrap();
        assert!(said.contains(&format!("worker {last} ended with status 1 (see ")), "{said}");
        assert_eq!(said.contains("no worker of this host"), crash == "0 1", "{said}");
        assert_eq!(said.contains("the worker that saves has failed"), crash == "0", "{said}");
    }
}

#[test]
fn what_every_worker_fails_at_is_told_with_their_words() {
    let ends = |run: &[(&str, &str)], wait: &str| {
        let flags = format!("-n 2 --scheme uncoded --out run --return-wait {wait}");
        let mut launched = Launched::start(&flags, run);
        assert_eq!(launched.ends(), Some(1), "{}", launched.said());
        launched.said()
    };
    let said = ends(&[("STEPS", "10"), ("FAILS_AT", "0")], "60");
    assert!(said.contains("every worker has failed 2 times before the first step"), "{said}");
    assert!(!said.contains("(3 of 10)"), "no more often: {said}");
    let (_, words) = said.split_once("The end of what worker 0 said:\n").unwrap();
    assert!(words.contains("bad sample in step 0"), "{said}");
    let said = ends(&[("STEPS", "10"), ("FAILS_AT", "3")], "1");
    assert!(!said.contains("before the first step"), "{said}");
    let (_, words) = said.split_once("The end of what worker 0 said:\n").unwrap();
    assert!(words.contains("bad sample in step 3"), "{said}");
}

#[test]
fn who_is_killed_before_it_joins_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"[ "$CODEDGRAD_EPOCH" = 0 ] && kill -KILL $$; sleep 2; exec "$@""#;
    let program = ["sh", "-c", script, "sh"].map(str::to_owned);
    let program: Vec<String> = program.into_iter().chain(crate::launched::worker()).collect();
    let flags = "-n 2 --scheme uncoded --out run";
    let mut launched =
        Launched::start_program(folder.path(), "it", flags, &program, &[("STEPS", "10")]);
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(2, 10);
    let mut launched = Launched::start_program(
        folder.path(),
        "it",
        "-n 2 --out run --force --restarts 0",
        &program,
        &[("STEPS", "10")],
    );
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    assert!(launched.said().contains("was killed (SIGKILL) before it joined"), "no worker is left");
}

#[test]
fn nohup_is_heeded() {
    let folder = tempfile::tempdir().unwrap();
    let run = [("STEPS", "60"), ("PAUSE_MS", "20")];
    let mut launched = Launched::start_by_nohup(folder.path(), FLAGS, &run);
    launched.waits_for_steps(3);
    launched.signal("-HUP");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    launched.is_whole(3, 60);
}

#[test]
fn who_leaves_a_run_that_goes_on_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"[ "$CODEDGRAD_WORKER" = 1 ] && exit 0; exec "$@""#;
    let program = ["sh", "-c", script, "sh"].map(str::to_owned);
    let program: Vec<String> = program.into_iter().chain(crate::launched::worker()).collect();
    let flags = "-n 3 --scheme groups:s=1 --join-wait 1 --out run";
    let run = [("STEPS", "100"), ("PAUSE_MS", "50")];
    let mut launched = Launched::start_program(folder.path(), "it", flags, &program, &run);
    launched.waits_for_words("worker 1 ended with status 0 while the run goes on (step ");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    assert_eq!(launched.said().matches("ended with status 0").count(), 1, "{}", launched.said());
}
