//! Runs over TCP as their users meet them: a coordinator and workers in processes of their own,
//! killed and started again.
#![cfg(unix)]

use crate::coordinated::{LAB, Run, SMALL, VIRTUAL, digests, first_difference};
use crate::processes::{Kept, lines, wait_for};
use crate::program::{codedgrad, json, refused, text};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use tempfile::TempDir;

#[test]
fn training_over_tcp_has_the_record_of_training_over_threads() {
    let folder = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let arguments = [
            &["train", "--workers", "4", "--steps", "6", "--json"],
            &VIRTUAL[..],
            &SMALL[..],
            more,
        ]
        .concat();
        json(&codedgrad(folder.path(), &arguments))
    };
    let plain: &[&str] = &[];
    for (scheme, more) in [
        ("groups:s=1", plain),
        ("queue:m=2", &["--models", "2"]),
        ("groups:s=1", &["--precision", "bf16"]),
    ] {
        let common = [&["--scheme", scheme, "--compare", "uncoded", "--force"], more].concat();
        let summary = train(&[&common[..], &["--out", "threads"]].concat());
        for exchange in ["star", "sharded"] {
            let over = train(
                &[&common[..], &["--out", exchange, "--transport", "tcp", "--exchange", exchange]]
                    .concat(),
            );
            assert_eq!(over["faults"], serde_json::json!([]), "{scheme} {exchange}");
            assert_eq!(over["runs"], summary["runs"], "{scheme} {exchange}");
            let read =
                |out: &str| fs::read_to_string(folder.path().join(out).join("run.jsonl")).unwrap();
            assert_eq!(read("threads"), read(exchange), "{scheme} {exchange}");
        }
    }
    let in_f32 = train(&["--scheme", "groups:s=1", "--compare", "uncoded"]);
    let in_bf16 = fs::read_to_string(folder.path().join("threads/summary.json")).unwrap();
    assert_ne!(
        in_f32["runs"],
        serde_json::from_str::<Value>(&in_bf16).unwrap()["runs"],
        "products are rounded"
    );
    let narrow = train(&[
        "--scheme",
        "groups:s=1",
        "--transport",
        "tcp",
        "--wire",
        "bf16",
        "--audit-every",
        "1",
    ]);
    let difference = narrow["max_gradient_difference"].as_f64().unwrap();
    assert!(difference > 0.0 && difference < 0.02, "{difference}");
    refused(folder.path(), &["train", "--exchange", "star"], &["--transport tcp"]);
    let between = ["train", "--transport", "tcp", "--exchange", "nccl"];
    refused(folder.path(), &between, &["--exchange nccl", "--device cuda"]);
    let narrow = [&between[..], &["--device", "cuda", "--wire", "bf16"]].concat();
    refused(folder.path(), &narrow, &["--exchange nccl", "--wire bf16"]);
}

/// Asks for a page: its head and its body.
fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.into(), body.into())
}

#[test]
fn a_worker_dies_and_another_takes_its_place() {
    let mut run = Run::start(&[
        "--workers",
        "4",
        "--steps",
        "400",
        "--scheme",
        "groups:s=1",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let mut workers = run.workers(4, &[]);
    run.wait_for_steps(10);
    workers[1].signal("-KILL");
    workers[1].ends();
    let seen = lines(&run.record()).len();
    run.wait_for_steps(seen + 10);
    workers[1] = run.worker(1, &[]);
    let said = run.coordinator.said();
    let metrics =
        said.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next()).unwrap();
    wait_for("the worker's return", || {
        let shown = json(&codedgrad(run.folder.path(), &["status", metrics, "--json"]));
        let worker = &shown["network"]["workers"][1];
        (worker["connected"] == true && worker["epoch"] == 2).then_some(())
    });
    let table = codedgrad(run.folder.path(), &["status", metrics]);
    let words = ["groups:s=1: step ", "connected", "silent", " s "];
    assert!(words.iter().all(|word| text(&table.stdout).contains(word)), "{}", text(&table.stdout));
    let (head, body) = get(metrics, "/metrics");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    let sample = |name: &str| {
        body.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
    };
    assert!(sample("codedgrad_steps_total ").unwrap() >= 20.0, "{body}");
    assert_eq!(sample("codedgrad_worker_joins_total{worker=\"1\"} "), Some(2.0), "{body}");
    assert!(
        sample("codedgrad_decode_seconds_total ").is_some_and(|seconds| seconds >= 0.0),
        "{body}"
    );
    assert!(sample("codedgrad_wait_outs_total ").is_some(), "{body}");
    assert!(sample("codedgrad_worker_silent_seconds{worker=\"0\"} ").unwrap() < 20.0, "{body}");
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        assert!(
            line.starts_with("codedgrad_")
                && line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(),
            "{line}"
        );
    }
    assert!(get(metrics, "/nothing").0.starts_with("HTTP/1.1 404 "));
    let summary = run.finishes();
    let faults = summary["faults"].as_array().unwrap();
    assert!(
        faults.iter().any(
            |fault| fault["worker"] == 1 && fault["what"].as_str().unwrap().starts_with("lost")
        ),
        "{faults:?}"
    );
    assert!(
        workers.iter_mut().all(|worker| worker.ends() == Some(0)),
        "they are told that the run is over"
    );
    let expected = run.expected(&["--workers", "4", "--steps", "400", "--scheme", "groups:s=1"]);
    assert_eq!(first_difference(&digests(&run.record()), &expected), None);
}

/// Whoever looks after a run is told whom it waits for, while it waits.
#[test]
fn an_open_round_names_whom_it_waits_for() {
    let flags = "--workers 3 --steps 400 --scheme uncoded --metrics 127.0.0.1:0 \
                 --checkpoint-every 2 --peak-tflops 100";
    let mut run = Run::start_in_real_time(&flags.split(' ').collect::<Vec<_>>());
    let workers = run.workers(3, &[]);
    run.wait_for_steps(10);
    workers[1].signal("-STOP");
    let said = run.coordinator.said();
    let metrics =
        said.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next()).unwrap();
    // It is needed, or its part of the sum is; its number is that of its call.
    let (shown, number) = wait_for("the open round", || {
        let shown = text(&codedgrad(run.folder.path(), &["status", metrics]).stdout);
        let (before, _) = shown.split_once(" (silent ")?;
        let number: u64 = before.rsplit(' ').next()?.parse().unwrap();
        Some((shown, number))
    });
    assert!(shown.starts_with("step "), "it comes first: {shown}");
    let body = get(metrics, "/metrics").1;
    let metric = |name: &str| {
        let value = body.lines().find_map(|line| line.strip_prefix(&format!("codedgrad_{name} ")));
        value.unwrap_or_else(|| panic!("no {name}: {body}")).parse::<f64>().unwrap()
    };
    assert!(metric("round_open_seconds") >= 1.0, "{body}");
    assert!((0.0..1.01).contains(&metric("effective_ratio")), "{body}");
    assert!(metric("tokens_per_second") > 0.0, "{body}");
    assert!((0.0..1.0).contains(&metric("mfu")), "{body}");
    assert_eq!(metric("wait_outs_total"), 0.0, "without a code nothing can close early: {body}");
    assert!(metric("worker_ratio{worker=\"0\"}") > 0.0, "{body}");
    assert!(metric("checkpoint_age_steps") < 20.0, "{body}");
    assert!(metric("checkpoint_blocked_seconds_total") > 0.0, "{body}");
    let status = json(&codedgrad(run.folder.path(), &["status", metrics, "--json"]));
    let missing = status["waiting"]["missing"].as_array().unwrap();
    assert!(missing.iter().any(|missing| missing["worker"] == number), "{status}");
    let events = run.record().with_file_name("events.jsonl");
    let happens = |kind: &str| {
        let line = format!("\"kind\":\"{kind}\"");
        wait_for(kind, || fs::read_to_string(&events).unwrap().contains(&line).then_some(()));
    };
    happens("stuck");
    workers[1].signal("-CONT");
    happens("unstuck");
    let strips = json(&codedgrad(run.folder.path(), &["status", metrics, "--json"]));
    assert!(!strips["progress"]["workers"][0]["strip"].as_array().unwrap().is_empty());
    run.finishes();
}

/// Each worker is started by a process of its own, which starts it again.
#[test]
fn a_worker_that_is_started_again_comes_back() {
    let plan = ["--workers", "3", "--steps", "300", "--scheme", "uncoded"];
    let mut run = Run::start_in_real_time(&plan);
    let mut workers = run.workers(3, &["--restarts", "3"]);
    run.wait_for_steps(5);
    let parent = workers[1].child.id().to_string();
    let killed = Command::new("pkill").args(["-KILL", "-P", &parent]).status().unwrap();
    assert!(killed.success(), "it has a child");
    run.finishes();
    for worker in &mut workers {
        assert_eq!(worker.ends(), Some(0), "{}", worker.said());
    }
    let said = workers[1].said();
    let again = "the worker was killed (SIGKILL): started again in 1 s (1 of 3)";
    assert!(said.contains(again), "{said}");
    assert_eq!(first_difference(&digests(&run.record()), &run.expected(&plan)), None);
    let mut waits = run.worker(0, &["--restarts", "3", "--patience", "600"]);
    wait_for("its child", || {
        let parent = waits.child.id().to_string();
        let found = Command::new("pgrep").args(["-P", &parent]).status().unwrap();
        found.success().then_some(())
    });
    waits.signal("-TERM");
    let status = waits.ends();
    // It may not have come to where it leaves a run on its own terms.
    assert!(matches!(status, Some(0 | 143)), "{status:?}: {}", waits.said());
}

#[test]
fn strangers_are_refused_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        folder.path(),
        &["coordinator", "--listen", "0.0.0.0:0", "--workers", "2", "--scheme", "uncoded"],
        &["codedgrad keygen DIR --workers N", "--keys DIR"],
    );
    refused(folder.path(), &["worker", "--join", "127.0.0.1:1"], &["--token FILE"]);
    let mut run = Run::start(&["--workers", "2", "--steps", "60", "--scheme", "groups:s=1"]);
    let path = run.folder.path().join("wrong");
    fs::write(&path, "ab".repeat(32)).unwrap();
    assert!(Command::new("chmod").args(["600"]).arg(&path).status().unwrap().success());
    let mut stranger = run.worker(0, &["--token", "wrong", "--patience", "1"]);
    assert_eq!(stranger.ends(), Some(2), "{}", stranger.said());
    assert!(stranger.said().contains("does not know this job's token"), "{}", stranger.said());
    fs::write(run.folder.path().join("other.txt"), "another text. ".repeat(1000)).unwrap();
    let mut reader = run.worker(1, &["--corpus", "other.txt"]);
    assert_eq!(reader.ends(), Some(2), "{}", reader.said());
    assert!(reader.said().contains("--corpus"), "{}", reader.said());
    let mut workers = run.workers(2, &[]);
    run.finishes();
    assert!(workers.iter_mut().all(|worker| worker.ends() == Some(0)));
}

#[test]
fn keys_are_made_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let made = codedgrad(folder.path(), &["keygen", "keys", "--workers", "2"]);
    assert!(
        made.status.success() && text(&made.stdout).contains("worker-K.key"),
        "{}",
        text(&made.stderr)
    );
    refused(folder.path(), &["keygen", "keys", "--workers", "2"], &["not overwritten"]);
    let mut run = Run::start_in(
        folder,
        &["--workers", "2", "--steps", "12", "--scheme", "groups:s=1", "--keys", "keys"],
    );
    let mut workers = run.workers(2, &["--keys", "keys"]);
    assert_eq!(run.finishes()["runs"][0]["steps"], 12);
    assert!(workers.iter_mut().all(|worker| worker.ends() == Some(0)));
    let expected = run.expected(&["--workers", "2", "--steps", "12", "--scheme", "groups:s=1"]);
    assert_eq!(first_difference(&digests(&run.record()), &expected), None);
}

/// The workers of a coordinator that is killed call again, and its successor goes on from the step
/// they have come to: long past the only checkpoint.
#[test]
fn a_killed_coordinator_goes_on_where_its_workers_are() {
    let plan = [
        "--workers",
        "3",
        "--steps",
        "300",
        "--scheme",
        "groups:s=1",
        "--checkpoint-every",
        "1000",
    ];
    let mut run = Run::start(&plan);
    let mut workers = run.workers(3, &[]);
    run.wait_for_steps(20);
    run.coordinator.signal("-KILL");
    run.coordinator.ends();
    let before = lines(&run.record());
    run.coordinator = Kept::start(
        run.folder.path(),
        "coordinator-again",
        &["coordinator", "--resume", "run", "--json"],
    );
    let summary = run.finishes();
    assert!(run.coordinator.said().contains("going on from step "), "{}", run.coordinator.said());
    assert_eq!(summary["runs"][0]["steps"], 300);
    let after = lines(&run.record());
    assert!(after.starts_with(&before[..before.len() - 1]), "at most the last step is made again");
    assert!(workers.iter_mut().all(|worker| worker.ends() == Some(0)));
    assert_eq!(first_difference(&digests(&run.record()), &run.expected(&plan[..6])), None);
}

/// Coordinator and workers die; the run goes on from its last checkpoint, whose state none of the
/// new workers has.
#[test]
fn a_run_is_resumed_with_new_workers() {
    let plan =
        ["--workers", "3", "--steps", "200", "--scheme", "groups:s=1", "--checkpoint-every", "10"];
    let mut run = Run::start(&plan);
    let mut workers = run.workers(3, &[]);
    run.wait_for_steps(25);
    for process in workers.iter_mut().chain([&mut run.coordinator]) {
        process.signal("-KILL");
        process.ends();
    }
    run.coordinator = Kept::start(
        run.folder.path(),
        "coordinator-again",
        &["coordinator", "--resume", "run", "--json"],
    );
    let mut workers = run.workers(3, &[]);
    assert_eq!(run.finishes()["runs"][0]["steps"], 200);
    assert!(
        run.coordinator.said().contains("takes over the state kept beside the workers"),
        "{}",
        run.coordinator.said()
    );
    assert!(workers.iter_mut().all(|worker| worker.ends() == Some(0)));
    assert_eq!(first_difference(&digests(&run.record()), &run.expected(&plan[..6])), None);
}

/// A finished run is trained on by new workers; its limits are those it was given last.
#[test]
fn a_finished_run_takes_more_steps() {
    let mut run = Run::start(&["--workers", "2", "--steps", "10", "--scheme", "groups:s=1"]);
    let mut workers = run.workers(2, &[]);
    assert_eq!(run.finishes()["runs"][0]["steps"], 10);
    assert!(workers.iter_mut().all(|worker| worker.ends() == Some(0)));
    let before = digests(&run.record());
    let again = ["coordinator", "--resume", "run", "--json"];
    let finished = codedgrad(run.folder.path(), &again);
    assert!(text(&finished.stderr).contains("already finished: 10 steps"), "{finished:?}");
    let limits = ["--steps", "16", "--max-wait", "50", "--return-wait", "40"];
    refused(run.folder.path(), &[&again[..], &["--seed", "2"]].concat(), &["--return-wait"]);
    run.coordinator =
        Kept::start(run.folder.path(), "coordinator-again", &[&again[..], &limits].concat());
    let mut workers = run.workers(2, &[]);
    assert_eq!(run.finishes()["runs"][0]["steps"], 16);
    assert!(workers.iter_mut().all(|worker| worker.ends() == Some(0)));
    let after = digests(&run.record());
    assert!(after.len() == 16 && after.starts_with(&before), "what is done stays done");
    let plan = fs::read(run.folder.path().join("run/plan.json")).unwrap();
    let plan: Value = serde_json::from_slice(&plan).unwrap();
    let limits = ["steps", "max_wait_seconds", "return_seconds"].map(|key| plan[key].as_f64());
    assert_eq!(limits, [16.0, 50.0, 40.0].map(Some));
}

/// More workers die than the scheme tolerates, at last all of them: the run waits for their
/// successors.
#[test]
fn the_run_waits_for_those_without_whom_it_cannot_go_on() {
    let plan = ["--workers", "4", "--steps", "400", "--scheme", "groups:s=1"];
    let mut run = Run::start_in_real_time(&[&plan[..], &["--return-wait", "50"]].concat());
    let mut workers = run.workers(4, &[]);
    for dead in [&[0, 1][..], &[0, 1, 2, 3]] {
        run.wait_for_steps(lines(&run.record()).len() + 10);
        dead.iter().for_each(|&number| workers[number].signal("-KILL"));
        for &number in dead {
            workers[number].ends();
            workers[number] = run.worker(number, &[]);
        }
    }
    assert_eq!(run.finishes()["runs"][0]["steps"], 400);
    assert!(
        workers.iter_mut().all(|worker| worker.ends() == Some(0)),
        "they are told that the run is over"
    );
    assert_eq!(first_difference(&digests(&run.record()), &run.expected(&plan)), None);
    let mut run = Run::start_in_real_time(&[&plan[..], &["--return-wait", "0"]].concat());
    let workers = run.workers(4, &[]);
    run.wait_for_steps(10);
    workers[..2].iter().for_each(|worker| worker.signal("-KILL"));
    assert_eq!(run.coordinator.ends(), Some(1));
    assert!(
        run.coordinator.said().contains("codedgrad-lab coordinator --resume"),
        "{}",
        run.coordinator.said()
    );
}

/// The processes that a process has started. With uncoded nobody can be done without: two of three
/// die for good, and the last one does the rest alone.
/// One that is told to end does not wait for a worker's return, and no decided step is lost.
#[test]
fn a_coordinator_whose_round_cannot_close_saves_and_ends_at_once() {
    let flags = [
        "--workers",
        "2",
        "--scheme",
        "uncoded",
        "--steps",
        "5000",
        "--checkpoint-every",
        "4000",
        "--max-wait",
        "600",
        "--return-wait",
        "600",
    ];
    let mut run = Run::start_in_real_time(&flags);
    let mut workers = run.workers(2, &[]);
    run.wait_for_steps(7);
    workers[1].signal("-KILL");
    workers[1].ends();
    wait_for("the loss", || run.coordinator.said().contains("worker 1: lost").then_some(()));
    run.coordinator.signal("-TERM");
    assert_eq!(run.coordinator.ends(), Some(143), "{}", run.coordinator.said());
    let decided = lines(&run.record()).len();
    let events = lines(&run.folder.path().join("run/events.jsonl"));
    let saved = format!("\"step\":{},", decided - 1);
    let is_last = |line: &&String| line.contains("\"checkpoint\"") && line.contains(&saved);
    assert!(events.iter().any(|line| is_last(&line)), "{decided} steps: {events:?}");
}

#[test]
fn a_run_goes_on_with_whoever_is_left() {
    let arguments = [
        "--scheme",
        "uncoded",
        "--steps",
        "60",
        "--workers",
        "3",
        "--return-wait",
        "1",
        "--min-workers",
        "1",
        "--audit-every",
        "1",
    ];
    let mut run = Run::start_in_real_time(&arguments);
    let mut workers = run.workers(3, &[]);
    run.wait_for_steps(10);
    workers.pop().unwrap().signal("-KILL");
    run.wait_for_steps(30);
    workers.pop().unwrap().signal("-KILL");
    let summary = run.finishes();
    assert_eq!(
        (&summary["runs"][0]["steps"], &summary["runs"][0]["samples_lost"]),
        (&Value::from(60), &Value::from(0))
    );
    let survivors = |line: &String| {
        serde_json::from_str::<Value>(line).unwrap()["survivors"].as_array().unwrap().len()
    };
    let record = lines(&run.record());
    assert_eq!((survivors(&record[0]), survivors(&record[59])), (3, 1));
    assert!(summary["max_gradient_difference"].as_f64().unwrap() < 1e-5, "{summary}");
}

/// The coordinator's host needs no GPU; a worker whose program has none says so, and the run waits
/// for another.
#[cfg(not(feature = "candle-cuda"))]
#[test]
fn a_worker_without_the_device_says_so() {
    let mut run = Run::start_in_real_time(&[
        "--scheme",
        "uncoded",
        "--steps",
        "3",
        "--workers",
        "1",
        "--device",
        "cuda",
    ]);
    let mut worker = run.worker(0, &[]);
    assert_eq!(worker.ends(), Some(1), "{}", worker.said());
    assert!(
        worker
            .said()
            .contains("--device cuda: this program was built without feature `candle-cuda`"),
        "{}",
        worker.said()
    );
    wait_for("word of the loss", || {
        run.coordinator.said().contains("the connection was closed").then_some(())
    });
    assert!(run.coordinator.child.try_wait().unwrap().is_none(), "{}", run.coordinator.said());
}

/// What is voted on or judged over TCP is what the coordinator received: the bits of threads.
#[test]
fn wrong_workers_are_found_out_over_tcp() {
    // Who sums follows from the scheme, whatever is told.
    for (scheme, workers, tcp) in [
        ("vote:s=0,b=1", "3", &["--transport", "tcp"][..]),
        ("sbacc:K=2,byzantine=1,s=0", "6", &["--transport", "tcp", "--exchange", "sharded"]),
    ] {
        let folder = TempDir::new().unwrap();
        let attack = [
            "--scheme",
            scheme,
            "--workers",
            workers,
            "--attack",
            "flip",
            "--attackers",
            "1",
            "--steps",
            "6",
        ];
        let train = |out: &str, more: &[&str]| {
            let rest = ["--no-stragglers", "--json", "--out", out];
            json(&codedgrad(
                folder.path(),
                &[&["train"], &attack[..], &SMALL[..], &VIRTUAL, &rest, more].concat(),
            ))["runs"][0]
                .clone()
        };
        let (threads, processes) = (train("threads", &[]), train("processes", tcp));
        let of = |out: &str| digests(&folder.path().join(out).join("run.jsonl"));
        assert_eq!(first_difference(&of("processes"), &of("threads")), None, "{scheme}");
        assert_eq!(
            (&processes["located"], &processes["missed"]),
            (&threads["located"], &Value::from(0)),
            "{processes}"
        );
    }
}

fn children(of: u32) -> Vec<u32> {
    let listed =
        Command::new("ps").args(["-o", "pid=", "--ppid", &of.to_string()]).output().unwrap();
    text(&listed.stdout).split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn is_there(pid: u32) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    !text(&output.stdout).trim().is_empty() && !text(&output.stdout).starts_with('Z')
}

#[test]
fn no_worker_outlives_its_run() {
    let folder = tempfile::tempdir().unwrap();
    for (signal, out) in [("-INT", "interrupted"), ("-KILL", "killed")] {
        let arguments = [
            "train",
            "--transport",
            "tcp",
            "--workers",
            "3",
            "--steps",
            "5000",
            "--scheme",
            "groups:s=1",
            "--out",
            out,
        ];
        let mut run =
            Kept::start(folder.path(), out, &[&arguments[..], &VIRTUAL[..], &SMALL[..]].concat());
        let record = folder.path().join(out).join("run.jsonl");
        wait_for("some steps", || (lines(&record).len() > 5).then_some(()));
        let workers = children(run.child.id());
        assert_eq!(workers.len(), 3);
        run.signal(signal);
        assert_eq!(run.ends(), (signal == "-INT").then_some(130), "{}", run.said());
        wait_for("the end of all workers", || {
            workers.iter().all(|pid| !is_there(*pid)).then_some(())
        });
    }
    let resumed = Kept::start(folder.path(), "again", &["train", "--resume", "interrupted"]);
    let record = folder.path().join("interrupted/run.jsonl");
    let before = lines(&record).len();
    wait_for("more steps", || (lines(&record).len() > before + 5).then_some(()));
    resumed.signal("-INT");
}

#[test]
fn a_worker_that_is_asked_to_leaves() {
    for signal in ["-INT", "-TERM"] {
        let mut run = Run::start(&["--workers", "3", "--steps", "300", "--scheme", "groups:s=1"]);
        let mut workers = run.workers(3, &[]);
        run.wait_for_steps(5);
        workers[2].signal(signal);
        assert_eq!(workers[2].ends(), Some(0), "{}", workers[2].said());
        assert_eq!(run.finishes()["runs"][0]["steps"], 300);
    }
}

#[test]
fn launchers_say_who_is_who() {
    let mut run = Run::start(&["--workers", "2", "--steps", "5", "--scheme", "groups:s=1"]);
    let (host, port) = run.address.split_once(':').unwrap();
    let token = run.folder.path().join("run/token");
    let start = |rank: &str| {
        let mut command = Command::new(LAB);
        command
            .arg("worker")
            .env("MASTER_ADDR", host)
            .env("MASTER_PORT", port)
            .env("CODEDGRAD_TOKEN_FILE", &token);
        command.env("RANK", rank).env("WORLD_SIZE", "2").stderr(Stdio::piped()).spawn().unwrap()
    };
    let workers = [start("1"), start("0")];
    run.finishes();
    for (worker, number) in workers.into_iter().zip(["worker 1 of 2", "worker 0 of 2"]) {
        let output = worker.wait_with_output().unwrap();
        assert!(
            output.status.success() && text(&output.stderr).contains(number),
            "{}",
            text(&output.stderr)
        );
    }
    refused(run.folder.path(), &["worker"], &["--join HOST:PORT"]);
}
