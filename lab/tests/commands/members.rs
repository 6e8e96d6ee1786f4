//! Workers that come and go: `--workers MIN..MAX`.

use crate::coordinated::{LAB, Run, uncoded};
use crate::processes::{Kept, lines, wait_for};
use crate::program::command;
use serde_json::Value;
use std::fs;
use std::process::{Child, Command};

/// What the events of a kind say.
fn said(run: &Run, kind: &str) -> Vec<String> {
    let of_kind = |event: &Value| (event["kind"] == kind).then(|| event["what"].clone());
    let said = run.events().iter().filter_map(of_kind).collect::<Vec<_>>();
    said.iter().map(|what| what.as_str().unwrap().to_owned()).collect()
}

fn is_planned(run: &Run, plan: &str) {
    wait_for(plan, || said(run, "replanned").last().is_some_and(|last| last == plan).then_some(()));
}

/// What `codedgrad status` shows of it.
fn shown(run: &Run, flags: &[&str]) -> String {
    let shown = command(&["status", &run.metrics()]).args(flags).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

fn status(run: &Run) -> String {
    shown(run, &[])
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&shown(run, &["--json"])).unwrap()
}

#[test]
fn a_run_begins_with_some_takes_in_others_and_goes_on_without_them() {
    let flags = "--scheme groups:s=1 --workers 2..4 --join-wait 2 --settle 0 --metrics 127.0.0.1:0";
    let mut run = Run::start("100000", flags);
    let mut workers = run.workers(3, "");
    run.wait_for_steps(5);
    assert_eq!(said(&run, "lost"), [""; 0], "no worker waits for a seat that is empty");
    assert_eq!(said(&run, "begin"), ["the run begins with 3 of 4 workers: 0-2"]);
    is_planned(&run, "planned for 3 of 4 workers (0-2) under groups:s=1");
    workers.push(run.worker(3, ""));
    is_planned(&run, "planned for all 4 workers under groups:s=1");
    // The scheme could do without the first of them, and not without its partner.
    workers[0].signal("-KILL");
    is_planned(&run, "planned for 3 of 4 workers (1-3) under groups:s=1");
    workers[1].signal("-KILL");
    is_planned(&run, "planned for 2 of 4 workers (2-3) under groups:s=1");
    let before = lines(&run.record()).len();
    run.wait_for_steps(before + 5);
    let shown = "planned for 2 of 4 workers under groups:s=1 (4 plans so far)";
    assert!(status(&run).contains(shown), "{}", status(&run));
    let shown = json(&run);
    assert_eq!(
        (&shown["progress"]["least"], &shown["progress"]["most"]),
        (&2.into(), &4.into()),
        "{shown}"
    );
    workers.push(run.worker(1, ""));
    is_planned(&run, "planned for 3 of 4 workers (1-3) under groups:s=1");
    run.is_stopped();
    let record = run.steps();
    let members = |step: &Value| step["plan"]["members"].as_array().map(Vec::len);
    let plans: Vec<usize> = record.iter().filter_map(members).collect();
    assert_eq!(plans, [3, 4, 3, 2, 3], "written down where they change");
    assert_eq!(said(&run, "join"), ["is there", "is there again"]);
    assert_eq!(record[0]["plan"]["members"], serde_json::json!([0, 1, 2]));
    assert!(record.iter().all(|step| step["coverage"] == 1.0), "no sample is lost");
    let mut pool = run.summary()["pool"].clone();
    let (mut planned, mut all) = (0, 0);
    for step in &record {
        planned = members(step).unwrap_or(planned);
        all += planned;
    }
    let mean = pool.as_object_mut().unwrap().remove("members_mean").unwrap().as_f64().unwrap();
    assert!((mean - all as f64 / record.len() as f64).abs() < 1e-9, "{mean}");
    // Whether a round was open when the second was lost, it does not tell.
    let again = pool.as_object_mut().unwrap().remove("rounds_begun_again");
    assert!(again.unwrap().as_u64().unwrap() <= 1);
    let lost = said(&run, "lost").len();
    let told = serde_json::json!({
        "least": 2, "most": 4, "plans": 5, "joined": 2, "left": 0, "lost": lost
    });
    assert_eq!(pool, told);
}

#[test]
fn a_round_that_begins_again_for_others_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "train --scheme uncoded --workers 2..4 --steps 2 --no-stragglers --clock \
                     virtual --layers 1 --heads 1 --width 8 --context 8 --json --fault panic@1:2";
    let ended = Command::new(LAB)
        .args(arguments.split_whitespace())
        .current_dir(folder.path())
        .output()
        .unwrap();
    let summary: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let pool = serde_json::json!({
        "least": 2, "most": 4, "plans": 2, "joined": 0, "left": 0, "lost": 1, "members_mean": 3.5,
        "rounds_begun_again": 1
    });
    assert_eq!(summary["runs"][0]["pool"], pool);
    assert_eq!(summary["left"], Value::Null, "it is told of each run");
}

/// Shares of four workers are pairs of the shares of eight, which are summed in the same order.
#[test]
fn half_of_the_workers_make_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let digests = |scheme: &str, out: &str, faults: &str| {
        let arguments = format!(
            "train --scheme {scheme} --workers 2..8 --micro-batches 32 --steps 8 --no-stragglers \
             --clock virtual --layers 1 --heads 1 --width 8 --context 8 --audit-every 1000 --json \
             --settle 0 --out {out} {faults}"
        );
        let ended = Command::new(LAB)
            .args(arguments.split_whitespace())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        lines(&folder.path().join(out).join("run.jsonl"))
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|step| (step["digest"].clone(), step["plan"]["members"].clone()))
            .unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let losses: String = (4..8).map(|worker| format!("--fault panic@2:{worker} ")).collect();
    for scheme in ["uncoded", "groups:s=1", "queue:m=4"] {
        let (all, _) = digests(scheme, "all", "--force");
        let (half, plans) = digests(scheme, "half", &format!("--force {losses}"));
        assert_eq!(all, half, "{scheme}");
        assert!(plans.contains(&serde_json::json!([0, 1, 2, 3])), "{scheme}: {plans:?}");
    }
}

/// A run that is gone on with may be given other seats, in each of its forms.
#[test]
fn a_resumed_run_takes_other_numbers_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let train = |arguments: &str| {
        let ended = Command::new(LAB)
            .arg("train")
            .args(arguments.split_whitespace())
            .current_dir(folder.path())
            .output()
            .unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let begun = train(
        "--scheme uncoded --workers 2..4 --micro-batches 8 --steps 4 --no-stragglers \
         --clock virtual --layers 1 --heads 1 --width 8 --context 8 --out run",
    );
    assert_eq!(begun.0, Some(0), "{}", begun.1);
    let resume = |more: &str| train(&format!("--resume run {more}"));
    for (more, why) in [
        ("--workers 2..3", "--workers 2..3: worker 3 has taken part: MAX is 4 or more"),
        ("--workers 6", "the run has 4 workers; say MIN..6, such as --workers 4..6"),
    ] {
        let (status, said) = resume(more);
        assert_eq!(status, Some(2), "{said}");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(why), "{said}");
    }
    let gone_on = resume("--workers 3..6 --steps 8");
    assert_eq!(gone_on.0, Some(0), "{}", gone_on.1);
    let record = lines(&folder.path().join("run/run.jsonl"));
    let members = |line: &String| {
        serde_json::from_str::<Value>(line).unwrap()["plan"]["members"].as_array().map(Vec::len)
    };
    let members: Vec<Option<usize>> = record.iter().map(members).collect();
    assert_eq!(members[4..], [Some(6), None, None, None], "{members:?}");
    let whole = |line: &String| {
        let coverage = serde_json::from_str::<Value>(line).unwrap()["coverage"].as_f64();
        (coverage.unwrap() - 1.0).abs() < 1e-9
    };
    assert!(record.len() == 8 && record.iter().all(whole));
    let doctor = command(&["doctor", "run"]).current_dir(folder.path()).output().unwrap();
    assert!(doctor.status.success(), "{}", String::from_utf8_lossy(&doctor.stderr));
}

/// Workers that wait for the coordinator stay, and let those in that have the new seats.
#[test]
fn a_coordinator_that_goes_on_has_seats_for_others() {
    let flags = "--scheme groups:s=1 --workers 2..3 --settle 0 --return-wait 5";
    let mut run = Run::start("100000", flags);
    let mut workers = run.workers(3, "");
    run.wait_for_steps(20);
    run.coordinator.signal("-KILL");
    run.coordinator.ends();
    let before = lines(&run.record()).len();
    run.resume(" --workers 2..5");
    // Of a run that all five begin no other plan would be told.
    run.wait_for_steps(before + 1);
    workers.extend([3, 4].map(|number| run.worker(number, "")));
    is_planned(&run, "planned for all 5 workers under groups:s=1");
    let before = lines(&run.record()).len();
    run.wait_for_steps(before + 10);
    workers[0].signal("-TERM");
    assert_eq!(workers[0].ends(), Some(0), "{}", workers[0].said());
    is_planned(&run, "planned for 4 of 5 workers (1-4) under groups:s=1");
    run.is_stopped();
    let said = workers.iter().map(Kept::said).collect::<String>();
    assert!(!said.contains("is not who it says"), "{said}");
}

/// With no return to wait for a second loss would stop an uncoded run for `--return-wait`.
#[test]
fn what_does_not_fit_those_that_are_left_is_said() {
    let mut run = Run::start("300", "--scheme groups:l=3 --workers 2..3");
    let mut workers = run.workers(3, "");
    run.wait_for_steps(5);
    workers[2].signal("-KILL");
    is_planned(
        &run,
        "planned for 2 of 3 workers (0-1) under uncoded, since groups:l=3 does not fit 2",
    );
    let warning = "warning: groups:l=3 does not fit 2 workers: uncoded until others are back";
    assert_eq!(run.coordinator.said().matches(warning).count(), 1, "{}", run.coordinator.said());
    workers.truncate(2);
    assert_eq!(run.finishes(&mut workers)["steps"], 300);
    assert!(run.steps().iter().all(|step| step["coverage"] == 1.0), "no sample is lost");
}

#[test]
fn fewer_than_the_least_end_the_run() {
    let mut run = Run::start("9", "--scheme uncoded --workers 2..4 --join-wait 1");
    let _worker = run.worker(1, "");
    assert_eq!(run.coordinator.ends(), Some(1), "{}", run.coordinator.said());
    let why = "1 of 4 workers have joined within 1 s, and 2 are needed; missing are {0,2,3}";
    assert!(run.coordinator.said().contains(why), "{}", run.coordinator.said());
}

#[test]
fn what_no_number_of_workers_can_be_is_refused() {
    for (arguments, why) in [
        (&["train", "--workers", "5..4"][..], "MIN is 5, more than MAX, which is 4"),
        (&["train", "--workers", "0..4"], "MIN of MIN..MAX: 0 is not in 1..=4096"),
        (&["run", "-n", "2..x", "true"], "MAX of MIN..MAX"),
        (
            &["serve", "--workers", "2..4", "--exchange", "nccl"],
            "--exchange nccl is between the GPUs of all workers: it has no --workers MIN..MAX",
        ),
        (
            &["train", "--workers", "2..4", "--scheme", "bacc:K=2"],
            "--workers MIN..MAX continues with the workers that are left, which bacc:K=2 cannot do",
        ),
    ] {
        let ended = command(arguments).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.split_whitespace().collect::<Vec<_>>().join(" ").contains(why), "{said}");
    }
}

/// A run of more steps than it makes before the test ends it.
fn endless() -> Run {
    Run::start("100000", "--scheme uncoded --workers 2..4 --join-wait 2")
}

/// Whether every step took one round: none was begun again.
fn no_round_is_begun_again(run: &Run) -> bool {
    run.steps().iter().all(|step| step["rounds"].as_array().unwrap().len() == 1)
}

/// The last event of a kind.
fn last(run: &Run, kind: &str) -> Value {
    let found = run.events().into_iter().rfind(|event| event["kind"] == kind);
    found.unwrap_or_else(|| panic!("no event {kind}"))
}

#[test]
fn a_worker_that_is_told_to_end_leaves_and_is_missed_by_nobody() {
    let mut run = endless();
    let mut workers = run.workers(3, "");
    run.wait_for_steps(5);
    workers[1].signal("-TERM");
    // The same order once more: it is no second one.
    workers[1].signal("-TERM");
    assert_eq!(workers[1].ends(), Some(0), "{}", workers[1].said());
    assert!(workers[1].said().contains("has left the run"), "{}", workers[1].said());
    is_planned(&run, "planned for 2 of 4 workers (0, 2) under uncoded");
    let before = lines(&run.record()).len();
    run.wait_for_steps(before + 5);
    assert_eq!(said(&run, "left"), ["left the run after giving notice"]);
    assert_eq!(said(&run, "lost"), [""; 0]);
    let leaving = last(&run, "leaving");
    assert_eq!((&leaving["worker"], &leaving["seconds"]), (&1.into(), &20.0.into()));
    assert!(leaving["identity"].as_str().unwrap().ends_with("/1"), "{leaving}");
    run.is_stopped();
    assert!(no_round_is_begun_again(&run));
    let summary = run.summary();
    let pool = &summary["pool"];
    assert_eq!((&pool["left"], &pool["rounds_begun_again"]), (&1.into(), &0.into()), "{pool}");
    assert_eq!(summary["faults"], serde_json::json!([]));
}

/// As a scheduler preempts a job: all of it is told, and it is queued again.
#[test]
fn a_job_of_which_all_are_told_to_end_goes_on_where_it_was() {
    let mut run = Run::start("600", "--scheme uncoded --workers 3");
    let mut workers = run.workers(3, "--checkpoint-every 1");
    run.wait_for_steps(20);
    workers.iter().for_each(|worker| worker.signal("-TERM"));
    run.is_stopped();
    for worker in &mut workers {
        assert_eq!(worker.ends(), Some(0), "{}", worker.said());
    }
    assert_eq!(said(&run, "lost"), [""; 0]);
    let made = lines(&run.record()).len();
    assert!(made < 600, "it was told in the middle");
    run.resume("");
    let mut workers = run.workers(3, "--checkpoint-every 1");
    assert_eq!(run.finishes(&mut workers)["steps"], 600);
    run.has_trained(&uncoded("3", "600"), &format!("interrupted after {made} steps"));
}

/// Without notice it is gone at once, as one that is killed; so it is when its notice is over,
/// where the run cannot go on without it.
#[test]
fn a_worker_without_notice_is_lost() {
    let run = endless();
    let mut workers = run.workers(3, "--notice 0");
    run.wait_for_steps(5);
    workers[1].signal("-TERM");
    assert_eq!(workers[1].ends(), Some(0));
    is_planned(&run, "planned for 2 of 4 workers (0, 2) under uncoded");
    assert_eq!((said(&run, "lost").len(), said(&run, "left").len()), (1, 0));
    let mut late = run.worker(3, "--notice 2");
    is_planned(&run, "planned for 3 of 4 workers (0, 2-3) under uncoded");
    workers[0].signal("-KILL");
    workers[2].signal("-KILL");
    wait_for("two losses", || (said(&run, "lost").len() == 3).then_some(()));
    late.signal("-INT");
    assert_eq!(late.ends(), Some(0), "{}", late.said());
    assert!(late.said().contains("at once"), "{}", late.said());
}

#[test]
fn a_file_that_appears_is_a_notice_too() {
    let run = endless();
    let _others = run.workers(2, "");
    let file = run.folder.path().join("terminates");
    let variables =
        [("CODEDGRAD_NOTICE_FILE", file.to_str().unwrap()), ("CODEDGRAD_DOMAIN", "rack-7")];
    let mut worker = run.worker_by(2, "", &variables);
    is_planned(&run, "planned for 3 of 4 workers (0-2) under uncoded");
    fs::write(&file, "in 2 minutes").unwrap();
    assert_eq!(worker.ends(), Some(0), "{}", worker.said());
    is_planned(&run, "planned for 2 of 4 workers (0-1) under uncoded");
    assert_eq!(last(&run, "left")["domain"], "rack-7");
}

/// Has a process stand still and go on, again and again, until it ends.
fn is_slow(worker: u32) -> Child {
    let script = "while kill -STOP $0; do sleep .1; kill -CONT $0; sleep .02; done 2>/dev/null";
    Command::new("sh").args(["-c", script, &worker.to_string()]).spawn().unwrap()
}

/// P-10: the slow worker of a run is done without, and is back when its line is deleted.
#[test]
fn a_slow_worker_is_drained_and_let_in_again() {
    let run = Run::start("100000", "--scheme uncoded --workers 3..4");
    // It waits for longer than that, which it needs no patience for.
    let mut workers = run.workers(4, "--patience 1");
    run.wait_for_steps(1);
    let mut slow = is_slow(workers[3].child.id());
    let before = lines(&run.record()).len();
    run.wait_for_steps(before + 8);
    let drain = run.folder.path().join("run/drain");
    fs::write(&drain, "3 # slow\nx\n9\n").unwrap();
    is_planned(&run, "planned for 3 of 4 workers (0-2) under uncoded");
    wait_for("the word", || (!said(&run, "drained").is_empty()).then_some(()));
    let drained = lines(&run.record()).len();
    run.wait_for_steps(drained + 30);
    let seconds = |step: &Value| step["seconds"].as_f64().unwrap();
    let times: Vec<f64> = run.steps().iter().map(seconds).collect();
    assert!(times[before..drained].iter().any(|time| *time >= 0.1), "{times:?}");
    assert!(times[drained..].iter().any(|time| *time < 0.1), "{times:?}");
    for strange in ["\"x\"", "\"9\""] {
        let said = run.coordinator.said();
        assert_eq!(said.matches(strange).count(), 1, "{said}");
    }
    slow.kill().unwrap();
    slow.wait().unwrap();
    workers[3].signal("-CONT");
    // One more cannot be done without.
    fs::write(&drain, "3\n2\n").unwrap();
    let refused = "not taken out, for the run could not go on: 2 of the file `drain`";
    wait_for(refused, || {
        said(&run, "drain-refused").last().is_some_and(|it| it == refused).then_some(())
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    fs::remove_file(&drain).unwrap();
    is_planned(&run, "planned for all 4 workers under uncoded");
    let of_others = run.events();
    let of_others = of_others.iter().filter(|event| event["kind"] != "replanned");
    let of_others: Vec<&Value> = of_others.collect();
    assert_eq!(said(&run, "lost"), [""; 0], "{of_others:#?}");
    assert_eq!(said(&run, "join"), ["is there again"], "{of_others:#?}");
    assert!(no_round_is_begun_again(&run));
    assert!(workers[3].child.try_wait().unwrap().is_none(), "it was there all the time");
}
