//! The lab's GPT as a worker of `codedgrad run` and `codedgrad serve`, like any other program.
#![cfg(unix)]

use crate::coordinated::LAB;
use crate::processes::{Kept, lines, wait_for};
use crate::program::{MODEL, codedgrad, command, flags, text};
use crate::serving;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// What is trained, but for how long.
const TRAINED: &str = "--learning-rate 0.01 --micro-batches 8 --seed 3";

/// A run of four workers, whose coordinator writes into `run`, and the saver into `gpt`.
fn line_of(scheme: &'static str, run: &'static str, worker: &'static str) -> Vec<&'static str> {
    let coordinator = flags(&["run -n 4 --scheme", scheme, "--out", run]);
    [&coordinator[..], &[LAB, "worker"], &flags(&[MODEL, TRAINED, worker, "--out gpt"])].concat()
}

fn line(run: &'static str, worker: &'static str) -> Vec<&'static str> {
    line_of("groups:s=1", run, worker)
}

/// The model that uncoded training over threads ends with.
fn expected(home: &Path, steps: &'static str) -> Vec<u8> {
    let train = "train --workers 4 --scheme uncoded --no-stragglers --clock virtual --out plain";
    let output = codedgrad(home, &flags(&[train, MODEL, TRAINED, "--steps", steps]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::read(home.join("plain/model-0-uncoded/model.safetensors")).unwrap()
}

/// A worker that dies is started again, and the model has the bits of uncoded training: where the
/// run waits for its return, and where another stands in.
#[test]
fn a_dead_worker_of_a_launched_run_costs_no_bit() {
    for (scheme, faults) in [
        ("uncoded", "--steps 12 --checkpoint-every 4 --audit 4 --fault panic@3:1"),
        // A step may be complete before a worker has its task of it.
        (
            "groups:s=1",
            "--steps 12 --audit 4 --fault panic@2:1 --fault panic@3:1 --fault panic@4:1",
        ),
    ] {
        let home = tempfile::tempdir().unwrap();
        let output = codedgrad(home.path(), &line_of(scheme, "run", faults));
        let said = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(scheme != "uncoded" || said.contains("panics at step 3"), "{said}");
        assert!(said.contains(" checked: equal to the whole batch's bit for bit"), "{said}");
        let model = fs::read(home.path().join("gpt/model/model.safetensors")).unwrap();
        assert!(model == expected(home.path(), "12"), "{scheme}: the model has other bits");
        // A run that was made to its end has nothing left to do.
        let again = codedgrad(home.path(), &line_of(scheme, "again", "--steps 12"));
        let said = text(&again.stderr) + &text(&again.stdout);
        assert_eq!(again.status.code(), Some(1), "{said}");
        assert!(said.contains("the run in gpt has made 12; nothing is left to do"), "{said}");
    }
}

/// All of it is told to end; started once more, it goes on from what the saver had written.
#[test]
fn a_launched_run_that_was_cut_off_goes_on() {
    let home = tempfile::tempdir().unwrap();
    // So many that the signal comes before the last of them on any machine.
    let worker = "--steps 400 --checkpoint-every 5";
    let mut cut = Kept::start(home.path(), "cut", &line("cut", worker));
    let record = home.path().join("cut/run.jsonl");
    wait_for(&format!("12 steps: {}", cut.said()), || (lines(&record).len() >= 12).then_some(()));
    cut.signal("-TERM");
    assert_eq!(cut.ends(), Some(143), "{}", cut.said());
    let made = lines(&record).len();
    assert!(made < 400, "it was cut off before its end");
    let output = codedgrad(home.path(), &line("on", worker));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let left = lines(&home.path().join("on/run.jsonl")).len();
    assert!((400 - made..400).contains(&left), "{left} steps after {made}");
    let model = fs::read(home.path().join("gpt/model/model.safetensors")).unwrap();
    assert!(model == expected(home.path(), "400"), "the model has other bits");
}

/// Of workers that would not train the same it is said in what they differ, and nothing is trained.
#[test]
fn workers_that_do_not_train_alike_are_refused() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("text"), "to be or not to be, ".repeat(400)).unwrap();
    for (out, from, to, difference) in [
        ("a", "--layers 1", "--layers 2", "numbers in a gradient (7472 and "),
        ("b", "--steps", "--corpus text --steps", "text ("),
        ("c", "--steps", "--precision bf16 --steps", "precision (F32 and Bf16)"),
        ("d", "--steps", "--accumulate 2 --steps", "micro_steps (1 and 2)"),
        ("e", "--heads 2", "--heads 4", "model (GptConfig { "),
        ("f", "--context 16", "--context 8", "model (GptConfig { "),
        ("g", "0.01", "0.02", "optimizer (AdamWConfig { learning_rate: 0.01"),
    ] {
        let two = ["--workers", "2", "--scheme", "uncoded"];
        let (_serving, address, _) = serving::serve(home.path(), out, &two);
        let token = format!("{out}/token");
        let worker = |number: &str, line: &str| {
            let told: Vec<&str> = line.split(' ').collect();
            let variables = [
                ("CODEDGRAD_ADDRESS", address.as_str()),
                ("CODEDGRAD_TOKEN_FILE", token.as_str()),
                ("CODEDGRAD_WORKER", number),
            ];
            Kept::start_with(home.path(), &format!("{out}-{number}"), &told, &variables)
        };
        let line = format!("worker {MODEL} {TRAINED} --steps 50");
        let first = worker("0", &line);
        wait_for("worker 0 to say what is trained", || {
            let plan = fs::read_to_string(home.path().join(out).join("serve.json")).ok()?;
            serde_json::from_str::<Value>(&plan).ok()?["facts"]["length"].as_u64()
        });
        let mut second = worker("1", &line.replace(from, to));
        assert_eq!(second.ends(), Some(2), "{to}: {}", second.said());
        let said = format!("nothing is trained: worker 0 and worker 1 differ in {difference}");
        assert!(second.said().contains(&said), "{to}: {} {}", first.said(), second.said());
    }
}

/// A checkpoint goes on with the flags that it was written under.
#[test]
fn a_checkpoint_of_other_flags_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let output = codedgrad(home.path(), &line("run", "--steps 4"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let other = format!("worker {MODEL} --micro-batches 8 --seed 4 --steps 8 --out gpt");
    for (line, why) in [
        (&*other, "the checkpoint in gpt is of other flags than these"),
        ("worker --steps 9 --micro-batches 8 --fault panic@9:1", "--fault panic@9:1 would never"),
        ("worker --steps 9 --micro-batches 8 --learning-rate 0", "--learning-rate"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = command(&words);
        command.env("CODEDGRAD_ADDRESS", "127.0.0.1:1").env("CODEDGRAD_TOKEN_FILE", "run/token");
        let output = command.current_dir(home.path()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(why), "{line}: {said}");
    }
    // No worker waits for one that could never join.
    let home = tempfile::tempdir().unwrap();
    let output = codedgrad(home.path(), &line("run", "--steps 9 --fault panic@9:1"));
    let said = text(&output.stderr) + &text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing is trained: worker "), "{said}");
    assert!(said.contains("--fault panic@9:1 would never happen: steps are 0 to 8"), "{said}");
}
