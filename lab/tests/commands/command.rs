//! The program as its users meet it: real processes, files and signals.

use crate::coordinated::LAB;
use crate::processes;
use crate::program::{self, MODEL, codedgrad, flags, json, json_of, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A model small enough for a debug build, on a virtual clock.
static SMALL: LazyLock<Vec<&str>> =
    LazyLock::new(|| flags(&["--clock virtual", MODEL, "--learning-rate 0.01"]));

fn train(folder: &Path, arguments: &[&str]) -> Output {
    codedgrad(folder, &[&["train"], &SMALL[..], arguments].concat())
}

/// The same, with nothing on standard output.
fn refused(folder: &Path, arguments: &[&str], needles: &[&str]) {
    assert!(program::refused(folder, arguments, needles).stdout.is_empty(), "{arguments:?}");
}

/// Votes give the uncoded bits despite wrong workers, mixtures are judged, and nothing defends
/// `uncoded`.
#[test]
fn wrong_workers_are_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let common = [
        "--steps",
        "6",
        "--workers",
        "12",
        "--micro-batches",
        "12",
        "--no-stragglers",
        "--audit-every",
        "1",
        "--json",
    ];
    let run = |arguments: &[&str]| json(&train(folder.path(), &[&common, arguments].concat()));
    let summary = run(&[
        "--scheme",
        "vote:s=1,b=1",
        "--compare",
        "uncoded",
        "--attack",
        "flip",
        "--attackers",
        "2,7",
    ]);
    let (uncoded, vote) = (&summary["runs"][0], &summary["runs"][1]);
    assert_eq!(
        (uncoded["missed"].as_u64(), vote["located"].as_u64(), vote["missed"].as_u64()),
        (Some(12), Some(12), Some(0))
    );
    assert!(uncoded["early_gradient_error"].as_f64().unwrap() > 0.5);
    assert_eq!(
        (vote["accused"].as_u64(), vote["late_gradient_error"].as_f64()),
        (Some(0), Some(0.0))
    );
    let summary = run(&["--scheme", "sbacc:K=4,byzantine=2,s=0", "--attack", "gauss"]);
    let judged = &summary["runs"][0];
    assert_eq!((judged["located"].as_u64(), judged["work"].as_f64()), (Some(12), Some(3.0)));
    assert!(judged["late_gradient_error"].as_f64().unwrap() < 0.2, "{judged}");
    assert!(summary["faults"].as_array().unwrap().len() == 2, "each is named once");
    let shown = codedgrad(folder.path(), &["code", "vote:s=1,b=1", "--workers", "8"]);
    assert!(
        text(&shown.stderr).contains("`codedgrad simulate` and `codedgrad-lab train` can use it")
    );
}

#[test]
fn every_code_trains_and_reports_its_error() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cuts.csv"), "0,4\n4,8\n0,2\n2,8\n0,8\n4,6\n6,8\n0,4\n").unwrap();
    fs::write(folder.path().join("speeds.csv"), "1,1,2,2\n1,1,2,2\n").unwrap();
    fs::write(
        folder.path().join("mine.csv"),
        "1,1,0\n0,1,1\n1,0,1\n1,1,0\n0,1,1\n1,0,1\n1,1,1\n2,2,2\n",
    )
    .unwrap();
    for (scheme, exact) in [
        ("groups:s=2", true),
        ("min-load:s=2", true),
        ("interval:cuts=cuts.csv", true),
        ("interval:speeds=speeds.csv,s=1,units=8", true),
        ("cyclic:s=2", true),
        ("matrix:mine.csv", true),
        ("graph:d=2,err=0.2", false),
    ] {
        let arguments = [
            "--steps",
            "6",
            "--scheme",
            scheme,
            "--delays",
            "bursts",
            "--audit-every",
            "1",
            "--json",
        ];
        let summary = json(&train(folder.path(), &arguments));
        assert_eq!(summary["gradients_checked"].as_u64(), Some(6), "{scheme}");
        let (run, difference) =
            (&summary["runs"][0], summary["max_gradient_difference"].as_f64().unwrap());
        let number = |key: &str| run[key].as_f64().unwrap();
        assert_eq!(run["scheme"].as_str(), Some(scheme));
        if exact {
            assert_eq!(number("samples_lost"), 0.0, "{scheme}");
            let bound = 4.0 * 2f64.powi(-24) * number("max_amplification").max(1.0) * 8f64.sqrt();
            assert!(
                difference < 10.0 * bound && number("max_decode_error") < 1e-15,
                "{scheme}: {difference:e} against {bound:e}"
            );
        } else {
            assert!(
                number("max_decode_error") <= 0.2
                    && number("max_decode_error") > 0.01
                    && difference > 1e-4,
                "{run}"
            );
        }
    }
}

#[test]
fn the_queue_trains_to_the_bytes_of_uncoded_training() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "--steps",
        "8",
        "--micro-batches",
        "16",
        "--scheme",
        "queue:m=2",
        "--compare",
        "uncoded",
        "--json",
    ];
    let summary = json(&train(folder.path(), &arguments));
    assert_eq!(summary["max_gradient_difference"].as_f64(), Some(0.0));
    let work = summary["runs"][1]["work"].as_f64().unwrap();
    assert!(summary["speedup"].as_f64().unwrap() > 1.5 && work < 1.8, "{summary}");
}

#[test]
fn bad_codes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, needles) in [
        (vec!["code", "groups:s=8", "--workers", "8"], vec!["at most 7"]),
        (vec!["code", "groups:l=0", "--workers", "8"], vec!["from 1 to 8"]),
        (vec!["code", "uncoded", "--workers", "0"], vec!["0"]),
        (vec!["code", "grups:s=1", "--workers", "8"], vec!["did you mean", "groups"]),
        (
            vec!["code", "uncoded", "--workers", "4", "--survivors", "9"],
            vec!["no worker 9", "0 to 3"],
        ),
        (vec!["code", "uncoded", "--workers", "4", "--survivors", "1,1"], vec!["named twice"]),
        (vec!["code", "uncoded"], vec!["--workers"]),
        (vec!["code", "uncoded", "--workers", "65536", "--json"], vec!["too large to print"]),
        (vec!["code", "matrix:absent.csv", "--workers", "4"], vec!["absent.csv: "]),
        (vec!["train", "--scheme", "graph:d=9", "--workers", "12"], vec!["d must be from 2 to 4"]),
        (vec!["train", "--scheme", "cyclic:s=8"], vec!["at most 7"]),
        (vec!["train", "--scheme", "queue:m=4"], vec!["--micro-batches 32 or more"]),
        (vec!["train", "--scheme", "m-sgc:B=1,W=2,lambda=2"], vec!["--models 2", "--accumulate"]),
        (
            vec!["train", "--scheme", "m-sgc:B=2,W=3,lambda=2", "--models", "3"],
            vec!["--models 4 or more", "not of 3"],
        ),
        (
            vec!["train", "--scheme", "uncoded", "--models", "2", "--accumulate", "2"],
            vec!["either", "or"],
        ),
        (
            vec!["train", "--scheme", "queue:m=2", "--late", "next-step"],
            vec!["for defer", "queue:m=2"],
        ),
        (
            vec!["train", "--scheme", "defer:cap=2,cut=2", "--late", "next-step", "--models", "2"],
            vec!["one model"],
        ),
        (vec!["train", "--mu=-1"], vec!["--mu -1", "0 or more"]),
        (
            vec!["train", "--scheme", "auto:probe=30,every=30"],
            vec!["auto:probe=30,every=30", "probe=30 is not from 1 to 29"],
        ),
    ] {
        refused(folder.path(), &arguments, &needles);
    }
}

#[test]
fn the_comparison_finds_equal_gradients_and_writes_everything() {
    let folder = tempfile::tempdir().unwrap();
    let summary = json(&train(folder.path(), &["--steps", "12", "--json"]));
    assert_eq!(summary["max_gradient_difference"].as_f64(), Some(0.0));
    assert!(summary["gradients_checked"].as_u64().unwrap() >= 12);
    assert!(summary["speedup"].as_f64().unwrap() > 1.9);
    assert_eq!(summary["interrupted"].as_bool(), Some(false));
    let runs = summary["runs"].as_array().unwrap();
    assert_eq!(
        (runs[0]["scheme"].as_str(), runs[1]["scheme"].as_str()),
        (Some("uncoded"), Some("groups:s=1"))
    );
    assert_eq!((runs.len(), runs[2]["scheme"].as_str()), (3, Some("queue:m=2")));
    for (run, work) in runs.iter().zip([1.0..=1.0, 2.0..=2.0, 1.0..=1.8]) {
        assert_eq!(
            (run["workers"].as_u64(), run["steps"].as_u64(), run["samples_lost"].as_u64()),
            (Some(8), Some(12), Some(0))
        );
        assert!(work.contains(&run["work"].as_f64().unwrap()), "{run}");
        for key in ["mean", "p50", "p95"] {
            assert!(run["seconds_per_step"][key].as_f64().unwrap() > 0.0);
        }
    }
    assert_eq!(runs[0]["final_loss"], runs[1]["final_loss"]);
    assert_eq!(runs[0]["validation_loss"], runs[1]["validation_loss"]);
    let run = folder.path().join("runs/0001");
    let on_disk: Value =
        serde_json::from_slice(&fs::read(run.join("summary.json")).unwrap()).unwrap();
    assert_eq!(on_disk, summary);
    for picture in ["loss.svg", "steps.svg"] {
        assert!(fs::read_to_string(run.join(picture)).unwrap().starts_with("<svg"));
    }
    let record = fs::read_to_string(run.join("run.jsonl")).unwrap();
    let lines: Vec<Value> =
        record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 36);
    for key in ["survivors", "weights", "residual", "amplification", "loss"] {
        assert!(!lines[23][key].is_null(), "{key}");
    }
    for key in ["round", "opened", "seconds", "arrivals", "delays", "erased", "work"] {
        assert!(!lines[23]["rounds"][0][key].is_null(), "{key}");
    }
    let bytes = |name: &str| fs::read(run.join(name)).unwrap();
    assert_eq!(
        bytes("model-0-uncoded/model.safetensors"),
        bytes("model-1-groups-s-1/model.safetensors")
    );
    let further = train(
        folder.path(),
        &[
            "--steps",
            "3",
            "--scheme",
            "groups:s=3",
            "--init",
            "runs/0001/model-1-groups-s-1",
            "--json",
        ],
    );
    let further = json(&further);
    assert!(further["speedup"].is_null());
    assert!(folder.path().join("runs/0002").is_dir(), "every run gets a new folder");
    let first_loss = |run: &str| {
        serde_json::from_str::<Value>(
            fs::read_to_string(folder.path().join(run)).unwrap().lines().next().unwrap(),
        )
        .unwrap()["loss"]
            .as_f64()
            .unwrap()
    };
    assert!(
        first_loss("runs/0002/run.jsonl") < first_loss("runs/0001/run.jsonl") - 0.5,
        "it goes on from the saved model"
    );
}

/// Models in turn and micro-steps of one model, under schemes that need them: the gradients are the
/// uncoded ones, and each model ends as if it had been trained alone.
#[test]
fn schemes_over_rounds_train_models_in_turn_and_micro_steps() {
    let folder = tempfile::tempdir().unwrap();
    for (scheme, batches, models, micro_steps, exact) in [
        ("m-sgc:B=1,W=2,lambda=3", "40", "2", "1", false),
        ("m-sgc:B=1,W=2,lambda=8", "8", "2", "1", true),
        ("sr-sgc:B=1,W=2,lambda=4", "8", "3", "1", false),
        ("defer:T=1,cap=2,cut=2", "16", "2", "1", true),
        ("defer:T=1,cap=3,cut=1", "8", "1", "4", true),
        ("queue:m=2", "16", "2", "1", true),
        ("ring:reach=4", "8", "1", "3", true),
    ] {
        let mut arguments = vec![
            "--scheme",
            scheme,
            "--micro-batches",
            batches,
            "--models",
            models,
            "--accumulate",
            micro_steps,
        ];
        arguments.extend([
            "--compare",
            "uncoded",
            "--steps",
            "6",
            "--audit-every",
            "1",
            "--delays",
            "hotspot",
            "--json",
        ]);
        let summary = json(&train(folder.path(), &arguments));
        let (runs, difference) =
            (&summary["runs"], summary["max_gradient_difference"].as_f64().unwrap());
        assert_eq!(runs[1]["samples_lost"].as_u64(), Some(0), "{scheme}");
        assert_eq!(runs[1]["steps"].as_u64(), Some(6 * models.parse::<u64>().unwrap()), "{scheme}");
        let bound = if exact { 0.0 } else { 1e-5 * runs[1]["max_amplification"].as_f64().unwrap() };
        assert!(difference <= bound, "{scheme}: {difference:e}");
        assert!(
            summary["speedup"].as_f64().unwrap() > 1.0 || scheme.starts_with("sr-sgc"),
            "{scheme}: {summary}"
        );
    }
    json(&train(
        folder.path(),
        &[
            "--scheme", "uncoded", "--steps", "6", "--models", "2", "--seed", "5", "--out", "two",
            "--json",
        ],
    ));
    json(&train(
        folder.path(),
        &["--scheme", "uncoded", "--steps", "6", "--seed", "6", "--out", "alone", "--json"],
    ));
    let model = |name: &str| fs::read(folder.path().join(name).join("model.safetensors")).unwrap();
    assert!(
        model("two/model-0-uncoded-1") == model("alone/model-0-uncoded"),
        "model 1 of seed 5 is the model of seed 6"
    );
}

/// The planner is asked after some recorded steps: it switches where that pays and stays where it
/// does not, and what it foresees comes true within 5 %.
#[test]
fn auto_switches_where_it_pays() {
    let folder = tempfile::tempdir().unwrap();
    let auto = |delays: &'static str, more: &[&str]| {
        let arguments =
            ["--scheme", "auto:every=70", "--steps", "140", "--delays", delays, "--json"];
        json(&train(folder.path(), &[&arguments, more].concat()))
    };
    let summary = auto("hotspot", &["--compare", "uncoded", "--out", "whole"]);
    assert_eq!(summary["max_gradient_difference"].as_f64(), Some(0.0));
    let legs = summary["runs"][1]["legs"].as_array().unwrap();
    let schemes: Vec<&str> = legs.iter().map(|leg| leg["scheme"].as_str().unwrap()).collect();
    // To look again costs steps that take nearly three times as long: not within these.
    assert_eq!((schemes.len(), schemes[0]), (2, "uncoded"), "{legs:?}");
    let leg = &legs[1];
    assert_ne!(leg["scheme"].as_str(), Some("uncoded"), "{leg}");
    let (predicted, measured) =
        (leg["predicted_seconds"].as_f64().unwrap(), leg["measured_seconds"].as_f64().unwrap());
    assert!((measured / predicted - 1.0).abs() < 0.05, "{leg}");
    assert!(legs[1]["why"].as_str().unwrap().contains("instead of"), "{legs:?}");
    assert!(summary["speedup"].as_f64().unwrap() > 1.5);
    let calm = auto("calm", &[]);
    let legs = calm["runs"][0]["legs"].as_array().unwrap();
    assert!(legs.iter().all(|leg| leg["scheme"] == "uncoded"), "{legs:?}");
    assert!(legs[1]["why"].as_str().unwrap().contains("staying uncoded"));
}

/// Late units may count for the next step instead: no sample is lost, and what each step has is
/// reported.
#[test]
fn late_units_may_count_for_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "--scheme",
        "defer:T=1,cap=2,cut=2",
        "--late",
        "next-step",
        "--steps",
        "12",
        "--delays",
        "hotspot",
        "--out",
        "run",
        "--json",
    ];
    let summary = json(&train(folder.path(), &arguments));
    let run = &summary["runs"][0];
    assert_eq!((run["samples_lost"].as_u64(), run["steps"].as_u64()), (Some(0), Some(12)));
    let record = fs::read_to_string(folder.path().join("run/run.jsonl")).unwrap();
    let coverage: Vec<f64> = record
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["coverage"].as_f64().unwrap())
        .collect();
    assert!(
        (coverage.iter().sum::<f64>() - 12.0).abs() < 1e-9,
        "every sample counts once: {coverage:?}"
    );
    assert!(coverage.iter().any(|c| *c < 1.0) && coverage.iter().any(|c| *c > 1.0), "{coverage:?}");
}

#[test]
fn a_virtual_run_is_reproducible_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    for out in ["a", "b"] {
        json(&train(
            folder.path(),
            &[
                "--steps",
                "15",
                "--delays",
                "bursts",
                "--scheme",
                "groups:s=1",
                "--out",
                out,
                "--json",
            ],
        ));
    }
    for file in ["run.jsonl", "summary.json", "steps.svg", "loss.svg", "checkpoint.safetensors"] {
        let read = |out: &str| fs::read(folder.path().join(out).join(file)).unwrap();
        assert!(read("a") == read("b"), "{file} differs");
    }
}

#[test]
fn approximate_schemes_report_their_error_honestly() {
    let folder = tempfile::tempdir().unwrap();
    let summary = json(&train(
        folder.path(),
        &["--steps", "6", "--scheme", "drop:b=2", "--audit-every", "1", "--json"],
    ));
    assert!(summary["max_gradient_difference"].as_f64().unwrap() > 1e-3);
    assert_eq!(summary["runs"][0]["samples_lost"].as_u64(), Some(6 * 4));
    assert_eq!(summary["gradients_checked"].as_u64(), Some(6));
}

#[test]
fn faults_are_named_and_survived() {
    let folder = tempfile::tempdir().unwrap();
    // The other member of either group is late in every step, so that the one that fails is waited
    // for: else its task could be dropped before it begins, and the fault would not happen.
    fs::write(folder.path().join("late.csv"), "1,1,1,9,1,1,9,1\n").unwrap();
    let output = train(
        folder.path(),
        &[
            "--steps",
            "10",
            "--scheme",
            "groups:s=1",
            "--fault",
            "panic@3:2",
            "--fault",
            "nan@5:7",
            "--delays",
            "late.csv",
            "--json",
        ],
    );
    let summary = json(&output);
    let faults = summary["faults"].as_array().unwrap();
    for (worker, step, what) in [(2, 3, "panicked"), (7, 5, "not finite")] {
        let named = |fault: &Value| {
            let said = fault["what"].as_str().unwrap();
            fault["worker"] == worker && fault["step"] == step && said.contains(what)
        };
        assert!(faults.iter().any(named), "{worker} {what}: {faults:?}");
    }
    assert_eq!(
        (summary["runs"][0]["steps"].as_u64(), summary["max_gradient_difference"].as_f64()),
        (Some(10), Some(0.0))
    );
    let fatal =
        train(folder.path(), &["--steps", "10", "--scheme", "uncoded", "--fault", "panic@3:2"]);
    assert_eq!(fatal.status.code(), Some(1));
    assert!(text(&fatal.stderr).contains("dead workers {2}"), "{}", text(&fatal.stderr));
    let refused_step = json(&train(
        folder.path(),
        &["--steps", "6", "--scheme", "uncoded", "--fault", "nan@3:2", "--json"],
    ));
    assert_eq!(refused_step["runs"][0]["refused_steps"].as_u64(), Some(1));
    assert_eq!(refused_step["runs"][0]["samples_lost"].as_u64(), Some(16));
}

/// Waits until a file has at least so many lines.
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn wait_for_lines(path: &Path, lines: usize) {
    let begin = Instant::now();
    while fs::read_to_string(path).unwrap_or_default().lines().count() < lines {
        assert!(begin.elapsed() < Duration::from_secs(120), "no progress in {}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(unix)]
fn interrupt(
    folder: &Path,
    arguments: &[&str],
    signal: &str,
    after_lines: usize,
    record: &str,
) -> Output {
    let mut command = Command::new(LAB);
    command
        .args(["train"])
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_for_lines(&folder.join(record), after_lines);
    processes::signal(&child, signal);
    child.wait_with_output().unwrap()
}

/// Ctrl-C in the first scheme's run, then `kill -9` in the second's: the record ends as if nothing
/// had happened.
#[cfg(unix)]
#[test]
fn an_interrupted_run_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let plan = ["--steps", "300", "--checkpoint-every", "7", "--audit-every", "5"];
    json(&train(folder.path(), &[&plan[..], &["--out", "whole", "--json"]].concat()));
    let begin = [&SMALL[..], &plan[..], &["--out", "cut", "--json"]].concat();
    let stopped = interrupt(folder.path(), &begin, "-INT", 20, "cut/run.jsonl");
    let summary = json_of(&stopped, 130);
    assert_eq!(summary["interrupted"].as_bool(), Some(true));
    let done = summary["runs"][0]["steps"].as_u64().unwrap();
    assert!((20..300).contains(&done), "{done}");
    let killed =
        interrupt(folder.path(), &["--resume", "cut", "--json"], "-KILL", 320, "cut/run.jsonl");
    assert!(!killed.status.success());
    let finished = json(&codedgrad(folder.path(), &["train", "--resume", "cut", "--json"]));
    assert_eq!(finished["interrupted"].as_bool(), Some(false));
    for file in [
        "run.jsonl",
        "summary.json",
        "steps.svg",
        "loss.svg",
        "model-0-uncoded/model.safetensors",
        "model-2-queue-m-2/model.safetensors",
    ] {
        let read = |out: &str| fs::read(folder.path().join(out).join(file)).unwrap();
        assert!(read("whole") == read("cut"), "{file} differs");
    }
    let again = json(&codedgrad(folder.path(), &["train", "--resume", "cut", "--json"]));
    assert_eq!(again, finished, "a finished run stays as it is");
}

/// A file-size limit stands in for a full disk: the write fails in the same place.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_last_checkpoint_whole() {
    let folder = tempfile::tempdir().unwrap();
    let run = |limit: &str, out: &str| {
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, LAB, "train"]).args(SMALL.iter());
        command.args([
            "--steps",
            "4000",
            "--scheme",
            "uncoded",
            "--checkpoint-every",
            "5",
            "--out",
            out,
        ]);
        command.current_dir(folder.path()).output().unwrap()
    };
    let output = run("200", "full");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("run.jsonl") && said.contains("--resume full"), "{said}");
    let out = folder.path().join("full");
    let leftovers = fs::read_dir(&out)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "part"))
        .count();
    assert_eq!(leftovers, 0);
    let lines = fs::read_to_string(out.join("run.jsonl")).unwrap().lines().count() as u64;
    let resumed = interrupt(
        folder.path(),
        &["--resume", "full", "--json"],
        "-TERM",
        lines as usize + 30,
        "full/run.jsonl",
    );
    let summary = json_of(&resumed, 143);
    assert!(
        summary["runs"][0]["steps"].as_u64().unwrap() > lines,
        "it goes on once there is room again"
    );
}

#[test]
fn bad_input_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("empty.txt"), "").unwrap();
    fs::write(path("short.txt"), "too short").unwrap();
    fs::write(path("bad.csv"), "1,2,3,4,5,6,7,8\n1,2,x,4,5,6,7,8\n").unwrap();
    fs::write(path("narrow.csv"), "1,2,3\n").unwrap();
    fs::write(path("bytes.bin"), [0xff; 4000]).unwrap();
    let before = fs::read_dir(folder.path()).unwrap().count();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--scheme", "groups:s=8"], &["at most 7"]),
        (&["--scheme", "groups:l=0"], &["from 1 to 8"]),
        (
            &["--scheme", "rings:reach=4"],
            &["unknown scheme \"rings\"", "did you mean \"ring:reach=3\""],
        ),
        (&["--workers", "0"], &["--workers"]),
        (&["--workers", "1"], &["--workers 1: without --scheme"]),
        (&["--micro-batches", "7"], &["--micro-batches 8 or more"]),
        (&["--corpus", "empty.txt"], &["empty.txt is empty"]),
        (&["--corpus", "short.txt"], &["9 tokens, but 170 are needed"]),
        (&["--corpus", "missing.txt"], &["cannot read the corpus missing.txt", "No such file"]),
        (&["--tokenizer", "bytes.bin"], &["tokenizer bytes.bin: it is not text"]),
        (&["--delays", "hotspt"], &["neither a preset nor a file", "did you mean \"hotspot\""]),
        (&["--delays", "bad.csv"], &["bad.csv: line 2, column 3: \"x\""]),
        (&["--delays", "narrow.csv"], &["line 1 has 3 columns, but the run has 8 workers"]),
        (&["--width", "18"], &["the nearest that does is 20"]),
        (&["--learning-rate", "0"], &["--learning-rate 0"]),
        (&["--learning-rate", "-1"], &["--learning-rate -1: a number above 0 is needed"]),
        (&["--steps", "-1"], &["--steps", "\"-1\" is no whole number of 0 or more"]),
        (&["--layers", "-1"], &["--layers", "\"-1\" is no whole number of 0 or more"]),
        (&["--max-wait", "NaN"], &["--max-wait", "\"NaN\" is no time of 0 or more"]),
        (
            &["--gpus-per-worker", "2", "--micro-batch-rows", "2"],
            &["no GPUs without --device cuda"],
        ),
        (
            &["--gpus-per-worker", "4", "--device", "cuda", "--micro-batch-rows", "3"],
            &["--micro-batch-rows is 3"],
        ),
        (&["--fault", "nan@1:8"], &["workers are 0 to 7"]),
        (&["--init", "nowhere"], &["model nowhere"]),
        (&["--out", "short.txt"], &["not a folder"]),
    ];
    let small = |arguments: &[&str]| {
        let given = |flag: &str| arguments.contains(&flag);
        let mut all = vec!["train".to_owned()];
        all.extend(
            SMALL.chunks(2).filter(|pair| !given(pair[0])).flatten().map(|x| (*x).to_owned()),
        );
        all.extend(arguments.iter().map(|x| (*x).to_owned()));
        all
    };
    for (arguments, needles) in cases {
        let all = small(arguments);
        refused(folder.path(), &all.iter().map(String::as_str).collect::<Vec<_>>(), needles);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before, "nothing was made");
    json(&train(
        folder.path(),
        &[
            "--steps",
            "2",
            "--scheme",
            "uncoded",
            "--corpus",
            "bytes.bin",
            "--out",
            "taken",
            "--json",
        ],
    ));
    let record = fs::read(path("taken/run.jsonl")).unwrap();
    refused(
        folder.path(),
        &["train", "--out", "taken", "--clock", "virtual"],
        &["holds a run already", "--force"],
    );
    assert_eq!(fs::read(path("taken/run.jsonl")).unwrap(), record, "the other run is as it was");
    json(&train(
        folder.path(),
        &["--steps", "3", "--scheme", "uncoded", "--out", "taken", "--force", "--json"],
    ));
    fs::create_dir(path("found")).unwrap();
    fs::write(path("found/plan.json"), r#"{"recommended": "uncoded"}"#).unwrap();
    refused(
        folder.path(),
        &["train", "--out", "found", "--clock", "virtual"],
        &["found holds what `codedgrad plan` has found", "--force overwrites it"],
    );
    refused(folder.path(), &["train", "--resume", "nothing-here"], &["no run to resume"]);
    fs::write(path("taken/checkpoint.safetensors"), "garbage").unwrap();
    refused(folder.path(), &["train", "--resume", "taken"], &["checkpoint"]);
}

#[test]
fn a_tokenizer_file_gives_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["to", "be", "or", "not", "[UNK]"];
    let vocabulary: Value = words.iter().enumerate().map(|(id, word)| (*word, id)).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.path().join("words.txt"), "to be or not to be ".repeat(200)).unwrap();
    let given = ["--steps", "2", "--scheme", "uncoded", "--corpus", "words.txt"];
    json(&train(
        folder.path(),
        &[&given[..], &["--tokenizer", "tokenizer.json", "--out", "run", "--json"]].concat(),
    ));
    let config = fs::read_to_string(folder.path().join("run/model-0-uncoded/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["vocabulary"], words.len());
}

#[test]
fn a_trace_file_gives_the_delays() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("trace.csv"), "0,0,0,5\n0,0,0,0\n").unwrap();
    let summary = json(&train(
        folder.path(),
        &[
            "--workers",
            "4",
            "--steps",
            "4",
            "--scheme",
            "uncoded",
            "--delays",
            "trace.csv",
            "--out",
            "run",
            "--json",
        ],
    ));
    assert_eq!(
        summary["runs"][0]["seconds_per_step"]["mean"].as_f64(),
        Some((6.0 + 1.0 + 6.0 + 1.0) / 4.0)
    );
    assert_eq!(summary["runs"][0]["late_worker_rounds"].as_u64(), Some(2));
}

#[test]
fn help_teaches() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, needles) in [
        (vec!["--help"], vec!["train", "code", "Exit status"]),
        (vec!["train", "--help"], vec!["groups:s=1", "hotspot", "Examples"]),
        (vec!["code", "--help"], vec!["--survivors", "Examples"]),
    ] {
        let output = codedgrad(folder.path(), &arguments);
        assert!(output.status.success());
        assert!(
            needles.iter().all(|needle| text(&output.stdout).contains(needle)),
            "{arguments:?}"
        );
    }
}

#[test]
fn only_near_misses_are_asked_about() {
    let home = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| text(&program::refused(home.path(), arguments, &[]).stderr);
    let simulate = |scheme: &'static str, delays: &'static str| {
        said(&["simulate", scheme, "--delays", delays, "--workers", "4", "--jobs", "2"])
    };
    for (scheme, delays, meant) in [
        ("group", "hotspot", "groups:s=1"),
        ("quue:m=2", "hotspot", "queue:m=4"),
        ("uncoded", "hot", "hotspot"),
        ("uncoded", "burst", "bursts"),
    ] {
        let said = simulate(scheme, delays);
        assert!(said.contains(&format!("did you mean {meant:?}?")), "{said}");
    }
    for (scheme, delays) in
        [("auto", "hotspot"), ("mds", "hotspot"), ("uncoded", "missing.csv"), ("uncoded", "-")]
    {
        let said = simulate(scheme, delays);
        assert!(!said.contains("did you mean"), "{said}");
    }
    for command in [&["simulate", "auto", "--delays", "iid", "--jobs", "2"][..], &["code", "auto"]]
    {
        let said = said(&[command, &["--workers", "4"]].concat());
        assert!(said.contains("(auto chooses among them while a run goes on"), "{said}");
    }
    let said = said(&["code", "m-sgc:B=1,W=2,lambda=3", "--workers", "8", "--verify"]);
    assert!(said.contains("and `codedgrad run` runs it"), "{said}");
}

#[test]
fn flags_that_would_be_taken_amiss_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let simulate = ["simulate", "uncoded", "--delays", "hotspot", "--workers", "4", "--jobs", "2"];
    refused(home.path(), &[&simulate[..], &["--svg", "x.png"]].concat(), &["write FILE.svg"]);
    assert!(!home.path().join("x.png").exists());
    refused(home.path(), &["train", "--workers", "1"], &["--workers 1: without --scheme"]);
    refused(
        home.path(),
        &["train", "--steps", "4", "--fault", "nan@4:0"],
        &["--fault nan@4:0 would never happen: steps are 0 to 3"],
    );
}

/// Files of delays may be packed, or in UTF-16, as for every other command.
#[test]
fn delays_may_be_packed_or_in_utf_16() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "1.0,1.1,1.0,1.0\n1.0,1.0,9.0,1.0\n1.2,1.0,1.0,1.0\n";
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, rows.as_bytes()).unwrap();
    let wide: Vec<u8> =
        format!("\u{feff}{rows}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let files = [
        ("plain.csv", rows.into()),
        ("packed.csv.gz", packed.finish().unwrap()),
        ("wide.csv", wide),
    ];
    let took = files.map(|(name, bytes)| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let arguments = [
            "--steps",
            "5",
            "--workers",
            "4",
            "--scheme",
            "groups:s=1",
            "--delays",
            name,
            "--json",
        ];
        json(&train(folder.path(), &arguments))["runs"][0]["seconds_per_step"]["mean"]
            .as_f64()
            .unwrap()
    });
    assert!(took[0] > 0.0 && took.iter().all(|seconds| *seconds == took[0]), "{took:?}");
}
