//! Workers in processes of their own, killed and started again, under `codedgrad serve`.
#![cfg(unix)]

use crate::coordinated::{LAB, Run, SMALL, over_threads, uncoded};
use crate::processes::{lines, wait_for};
use crate::program::{codedgrad, flags, json, refused, text};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

/// What worker 0 says it has found, and the model, of a run that `codedgrad run` makes.
fn launched(
    out: &'static str,
    coordinator: &'static str,
    worker: &'static str,
) -> (String, Vec<u8>) {
    let home = tempfile::tempdir().unwrap();
    let started = flags(&["run -n 4", coordinator, "--out", out]);
    let trains = flags(&["--steps 6 --audit 1 --out gpt", worker]);
    let output =
        codedgrad(home.path(), &[&started[..], &[LAB, "worker"], &SMALL, &trains].concat());
    let said = text(&output.stderr) + &text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{coordinator} {worker}: {said}");
    let plan = fs::read(home.path().join(out).join("serve.json")).unwrap();
    let plan: Value = serde_json::from_slice(&plan).unwrap();
    let told = coordinator.split_once("--exchange ").map(|(_, exchange)| exchange);
    assert_eq!(plan["exchange"].as_str(), told, "{plan}");
    let checked = said.lines().find(|line| line.contains(" checked: ")).unwrap_or_default();
    (checked.to_owned(), fs::read(home.path().join("gpt/model/model.safetensors")).unwrap())
}

#[test]
fn training_over_tcp_has_the_bits_of_training_over_threads() {
    let over_threads = |worker: &'static str| {
        let home = tempfile::tempdir().unwrap();
        let own = flags(&["train --workers 4 --steps 6 --no-stragglers --clock virtual", worker]);
        let rest = flags(&["--scheme uncoded --out threads"]);
        let output = codedgrad(home.path(), &[&own[..], &rest, &SMALL].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        fs::read(home.path().join("threads/model-0-uncoded/model.safetensors")).unwrap()
    };
    let of_threads = ["--accumulate 1", "--accumulate 2", "--precision bf16"].map(over_threads);
    assert!(of_threads[0] != of_threads[2], "products are rounded");
    for (coordinator, worker, expected) in [
        ("--scheme groups:s=1 --exchange star", "--accumulate 1", &of_threads[0]),
        ("--scheme groups:s=1 --exchange sharded", "--accumulate 1", &of_threads[0]),
        ("--scheme groups:s=1 --exchange hold", "--accumulate 1", &of_threads[0]),
        // They have no NCCL: what it would sum goes by connections.
        ("--scheme groups:s=1 --exchange nccl", "--accumulate 1", &of_threads[0]),
        ("--scheme queue:m=2 --exchange star", "--accumulate 2", &of_threads[1]),
        ("--scheme queue:m=2 --exchange sharded", "--accumulate 2", &of_threads[1]),
        ("--scheme groups:s=1", "--precision bf16", &of_threads[2]),
    ] {
        let (checked, model) = launched("run", coordinator, worker);
        assert!(checked.contains("equal to the whole batch's bit for bit"), "{checked}");
        assert!(model == *expected, "{coordinator} {worker}: the model has other bits");
    }
    let (checked, narrow) = launched("run", "--scheme groups:s=1 --wire bf16", "--accumulate 1");
    let difference = checked.split_whitespace().rev().find_map(|word| word.parse::<f64>().ok());
    assert!(difference.is_some_and(|it| it > 0.0 && it < 0.02), "{checked}");
    assert!(narrow != of_threads[0], "messages are rounded");
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
    let mut run = Run::start("1500", "--workers 4 --scheme groups:s=1 --metrics 127.0.0.1:0");
    let mut workers = run.workers(4, "");
    run.wait_for_steps(10);
    workers[1].signal("-KILL");
    workers[1].ends();
    let seen = lines(&run.record()).len();
    run.wait_for_steps(seen + 10);
    workers[1] = run.worker(1, "");
    let metrics = &run.metrics();
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
    let summary = run.finishes(&mut workers);
    let is_lost =
        |fault: &Value| fault["worker"] == 1 && fault["what"].as_str().unwrap().starts_with("lost");
    assert!(summary["faults"].as_array().unwrap().iter().any(is_lost), "{summary}");
    run.has_trained(&uncoded("4", "1500"), "after a worker's death");
}

/// Whoever looks after a run is told whom it waits for, while it waits.
#[test]
fn an_open_round_names_whom_it_waits_for() {
    let mut run = Run::start("400", "--workers 3 --scheme uncoded --metrics 127.0.0.1:0");
    let mut workers = run.workers(3, "");
    run.wait_for_steps(10);
    workers[1].signal("-STOP");
    let metrics = &run.metrics();
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
    assert_eq!(metric("wait_outs_total"), 0.0, "without a code nothing can close early: {body}");
    assert!(metric("worker_ratio{worker=\"0\"}") > 0.0, "{body}");
    let status = json(&codedgrad(run.folder.path(), &["status", metrics, "--json"]));
    let missing = status["waiting"]["missing"].as_array().unwrap();
    assert!(missing.iter().any(|missing| missing["worker"] == number), "{status}");
    let happens = |kind: &str| {
        wait_for(kind, || run.events().iter().any(|event| event["kind"] == kind).then_some(()));
    };
    happens("stuck");
    workers[1].signal("-CONT");
    happens("unstuck");
    let strips = json(&codedgrad(run.folder.path(), &["status", metrics, "--json"]));
    assert!(!strips["progress"]["workers"][0]["strip"].as_array().unwrap().is_empty());
    run.finishes(&mut workers);
}

#[test]
fn strangers_are_refused_and_the_run_goes_on() {
    let home = tempfile::tempdir().unwrap();
    refused(
        home.path(),
        &["serve", "--listen", "0.0.0.0:0", "--workers", "2"],
        &["codedgrad keygen DIR --workers N", "--keys DIR"],
    );
    refused(home.path(), &["worker"], &["CODEDGRAD_ADDRESS is not set", "codedgrad run"]);
    let mut run = Run::start("60", "--workers 2 --scheme groups:s=1");
    let number = [("CODEDGRAD_WORKER", "0")];
    let mut unsecret = run.started("unsecret", &["worker", "--micro-batches", "8"], &number);
    assert_eq!(unsecret.ends(), Some(2), "{}", unsecret.said());
    assert!(unsecret.said().contains("the job's secret is needed"), "{}", unsecret.said());
    let path = run.folder.path().join("wrong");
    fs::write(&path, "ab".repeat(32)).unwrap();
    assert!(Command::new("chmod").args(["600"]).arg(&path).status().unwrap().success());
    let mut stranger = run.worker_by(0, "--patience 1", &[("CODEDGRAD_TOKEN_FILE", "wrong")]);
    assert_eq!(stranger.ends(), Some(2), "{}", stranger.said());
    assert!(stranger.said().contains("does not know this job's token"), "{}", stranger.said());
    let mut workers = run.workers(2, "");
    run.wait_for_steps(1);
    fs::write(run.folder.path().join("other.txt"), "another text. ".repeat(1000)).unwrap();
    let line = ["worker", "--steps", "60", "--corpus", "other.txt"];
    let told = [("CODEDGRAD_TOKEN_FILE", "run/token"), ("CODEDGRAD_WORKER", "1")];
    let mut reader = run.started("reader", &[&line, &SMALL[..]].concat(), &told);
    assert_eq!(reader.ends(), Some(2), "{}", reader.said());
    assert!(reader.said().contains("the coordinator refuses: text: "), "{}", reader.said());
    run.finishes(&mut workers);
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
    let mut run = Run::start_in(folder, "12", "--workers 2 --scheme groups:s=1 --keys keys");
    let keys = [("CODEDGRAD_KEYS", "keys")];
    let mut workers = [0, 1].map(|number| run.worker_by(number, "", &keys));
    assert_eq!(run.finishes(&mut workers)["steps"], 12);
    run.has_trained(&uncoded("2", "12"), "over encrypted connections");
}

/// The workers of a coordinator that is killed call again, and its successor goes on from the step
/// they have come to: long past the only checkpoint.
#[test]
fn a_killed_coordinator_goes_on_where_its_workers_are() {
    let mut run = Run::start("300", "--workers 4 --scheme groups:s=1");
    let mut workers = run.workers(4, "--checkpoint-every 1000");
    run.wait_for_steps(20);
    run.coordinator.signal("-KILL");
    run.coordinator.ends();
    let before = lines(&run.record());
    run.resume("");
    let summary = run.finishes(&mut workers);
    assert!(run.coordinator.said().contains("going on from step "), "{}", run.coordinator.said());
    assert_eq!(summary["steps"], 300);
    let after = lines(&run.record());
    assert!(after.starts_with(&before[..before.len() - 1]), "at most the last step is made again");
    run.has_trained(&uncoded("4", "300"), "under a second coordinator");
}

/// Coordinator and workers die; the run goes on from the last checkpoint of the workers.
#[test]
fn a_run_is_resumed_with_new_workers() {
    let mut run = Run::start("200", "--workers 4 --scheme groups:s=1");
    let mut workers = run.workers(4, "--checkpoint-every 10");
    run.wait_for_steps(25);
    for process in workers.iter_mut().chain([&mut run.coordinator]) {
        process.signal("-KILL");
        process.ends();
    }
    run.resume("");
    let mut workers = run.workers(4, "--checkpoint-every 10");
    assert_eq!(run.finishes(&mut workers)["steps"], 200);
    run.has_trained(&uncoded("4", "200"), "from a checkpoint");
}

/// More workers die than the scheme tolerates, at last all but one: the run waits for their
/// successors, who take over its state.
#[test]
fn the_run_waits_for_those_without_whom_it_cannot_go_on() {
    let mut run = Run::start("400", "--workers 4 --scheme groups:s=1 --return-wait 50");
    let mut workers = run.workers(4, "");
    for dead in [&[0, 1][..], &[1, 2, 3]] {
        run.wait_for_steps(lines(&run.record()).len() + 10);
        dead.iter().for_each(|&number| workers[number].signal("-KILL"));
        for &number in dead {
            workers[number].ends();
            workers[number] = run.worker(number, "");
        }
    }
    assert_eq!(run.finishes(&mut workers)["steps"], 400);
    run.has_trained(&uncoded("4", "400"), "after many deaths");
    let flags = "--workers 4 --scheme groups:s=1 --return-wait 0 --max-wait 1";
    let mut run = Run::start("400", flags);
    let workers = run.workers(4, "");
    run.wait_for_steps(10);
    workers[..2].iter().for_each(|worker| worker.signal("-KILL"));
    assert_eq!(run.coordinator.ends(), Some(1));
    let why = "cannot be decoded without the dead workers {0,1}";
    assert!(run.coordinator.said().contains(why), "{}", run.coordinator.said());
}

/// With uncoded a run needs all workers. A coordinator asked to end does not wait for a worker's
/// return, and loses no decided step.
#[test]
fn a_coordinator_whose_round_cannot_close_ends_at_once() {
    let flags = "--workers 2 --scheme uncoded --max-wait 600 --return-wait 600";
    let mut run = Run::start("5000", flags);
    let mut workers = run.workers(2, "");
    run.wait_for_steps(7);
    workers[1].signal("-KILL");
    workers[1].ends();
    wait_for("the loss", || run.coordinator.said().contains("worker 1: lost").then_some(()));
    run.is_stopped();
    assert_eq!(run.summary()["steps"], lines(&run.record()).len());
    assert_eq!(workers[0].ends(), Some(1), "{}", workers[0].said());
    let left = " of 5000 steps: its coordinator says why";
    assert!(workers[0].said().contains(left), "{}", workers[0].said());
}

/// Two of three die for good, and the last one does the rest alone.
#[test]
fn a_run_goes_on_with_whoever_is_left() {
    let flags = "--workers 1..3 --scheme uncoded --return-wait 1";
    let mut run = Run::start("300", flags);
    let mut workers = run.workers(3, "--audit 1");
    run.wait_for_steps(10);
    workers.pop().unwrap().signal("-KILL");
    run.wait_for_steps(30);
    workers.pop().unwrap().signal("-KILL");
    assert_eq!(run.finishes(&mut workers)["steps"], 300);
    let record = run.steps();
    assert!(record.iter().all(|step| step["coverage"] == 1.0), "no sample is lost");
    let survivors = |step: &Value| step["survivors"].as_array().unwrap().len();
    assert_eq!((survivors(&record[0]), survivors(&record[299])), (3, 1));
    let said = workers[0].said();
    let difference = said
        .lines()
        .find(|line| line.contains(" checked: "))
        .and_then(|line| line.split_whitespace().rev().find_map(|word| word.parse::<f64>().ok()));
    assert!(difference.is_none_or(|difference| difference < 1e-5), "{said}");
    assert!(said.contains("300 gradients checked"), "{said}");
}

/// A worker whose program has no GPU says so before it joins, and the run waits for another.
#[cfg(not(feature = "candle-cuda"))]
#[test]
fn a_worker_without_the_device_says_so() {
    let mut run = Run::start("3", "--workers 1 --scheme uncoded");
    let mut worker = run.worker(0, "--device cuda");
    assert_eq!(worker.ends(), Some(2), "{}", worker.said());
    let why = "--device cuda: this program was built without feature `candle-cuda`";
    assert!(worker.said().contains(why), "{}", worker.said());
    assert!(run.coordinator.child.try_wait().unwrap().is_none(), "{}", run.coordinator.said());
    let mut workers = run.workers(1, "");
    assert_eq!(run.finishes(&mut workers)["steps"], 3);
}

/// What is voted on over TCP is what the coordinator received: the bits of threads that are honest.
#[test]
fn wrong_workers_are_found_out_over_tcp() {
    // Who sums follows from the scheme.
    let scheme = "vote:s=0,b=1";
    let mut run = Run::start("6", &format!("--scheme {scheme} --workers 3"));
    let mut workers = run.workers(3, "--attack flip --attackers 1");
    assert_eq!(run.finishes(&mut workers)["steps"], 6);
    let mut found = 0;
    for step in run.steps() {
        // It may not have answered before the others agreed.
        let wrong = step["wrong"].as_array().into_iter().flatten();
        assert!(wrong.clone().all(|worker| *worker == 1), "{step}");
        found += wrong.count();
    }
    assert!(found > 0, "nothing wrong was found");
    run.has_trained(&over_threads(scheme, "3", "6"), "beside a worker that lies");
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

fn steps_of(record: &Path) -> usize {
    lines(record).len()
}

/// The launcher's end is that of all that it has started, and the same line goes on.
#[test]
fn no_worker_outlives_its_run() {
    let home = tempfile::tempdir().unwrap();
    let line = |out: &'static str| {
        let launcher = flags(&["run -n 3 --scheme groups:s=1 --out", out]);
        let worker = flags(&["--steps 5000 --checkpoint-every 5 --out gpt"]);
        [&launcher[..], &[LAB, "worker"], &SMALL, &worker].concat()
    };
    let start = |out: &'static str| {
        let run = crate::processes::Kept::start(home.path(), out, &line(out));
        let record = home.path().join(out).join("run.jsonl");
        wait_for("some steps", || (steps_of(&record) > 10).then_some(()));
        run
    };
    for (signal, out) in [("-INT", "interrupted"), ("-KILL", "killed")] {
        let mut run = start(out);
        let workers = children(run.child.id());
        // The coordinator is one of them.
        assert_eq!(workers.len(), 4);
        run.signal(signal);
        assert_eq!(run.ends(), (signal == "-INT").then_some(130), "{}", run.said());
        wait_for("the end of all workers", || {
            workers.iter().all(|pid| !is_there(*pid)).then_some(())
        });
    }
    let on = start("on");
    let first = fs::read_to_string(home.path().join("on/run.jsonl")).unwrap();
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert!(first["step"].as_u64().unwrap() > 10, "it goes on from the checkpoint");
    on.signal("-INT");
}

#[test]
fn a_worker_that_is_asked_to_leaves() {
    for signal in ["-INT", "-TERM"] {
        let mut run = Run::start("300", "--workers 3 --scheme groups:s=1");
        let mut workers = run.workers(3, "");
        run.wait_for_steps(5);
        workers[2].signal(signal);
        assert_eq!(workers[2].ends(), Some(0), "{}", workers[2].said());
        assert!(workers[2].said().contains("has left the run"), "{}", workers[2].said());
        assert_eq!(run.finishes(&mut workers)["steps"], 300);
    }
}

/// Slurm's tasks know their numbers; batches are cut for as many as there are.
#[test]
fn launchers_say_who_is_who() {
    let mut run = Run::start("5", "--workers 2 --scheme groups:s=1");
    let start = |rank: &str| {
        let variables = [("SLURM_PROCID", rank), ("SLURM_NTASKS", "2")];
        run.process(&format!("task-{rank}"), "", &variables)
    };
    let mut workers = [start("1"), start("0")];
    assert_eq!(run.finishes(&mut workers)["steps"], 5);
    for (worker, number) in workers.iter().zip(["worker 1 of 2", "worker 0 of 2"]) {
        assert!(worker.said().contains(number), "{}", worker.said());
    }
    let few = run.process("few", "", &[("CODEDGRAD_WORKER", "0"), ("CODEDGRAD_WORKERS", "x")]);
    wait_for("its words", || few.said().contains("CODEDGRAD_WORKERS is \"x\"").then_some(()));
}
