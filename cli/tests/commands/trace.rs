//! `codedgrad trace` as its users meet it.

use crate::program::{codedgrad, good, refused, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether a file's name begins so.
fn any_begins(folder: &Path, start: &str) -> bool {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.into_iter().any(|name| name.to_string_lossy().starts_with(start))
}

fn stats(folder: &Path, arguments: &[&str]) -> Value {
    let arguments = [&["trace", "stats"], arguments, &["--json"]].concat();
    serde_json::from_str(&good(folder, &arguments).0)
        .expect("one JSON object on standard output and nothing else")
}

fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces").join(name);
    path.to_str().unwrap().to_owned()
}

fn rows(trace: &str) -> Vec<Vec<f64>> {
    trace.lines().map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect()
}

#[test]
fn records_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, lines: &str| fs::write(folder.path().join(name), lines).unwrap();
    refused(folder.path(), &["trace", "record", "absent"], &["cannot read the record absent"]);
    write("words.jsonl", "{}\nhello\n");
    refused(
        folder.path(),
        &["trace", "record", "words.jsonl"],
        &["words.jsonl: line 1: not a step of a training run"],
    );
    let step = |step: usize, seconds: f64, arrivals: &str| {
        let round = format!("\"round\":{step},\"opened\":0.0,\"seconds\":{seconds}");
        format!(
            "{{\"run\":0,\"scheme\":\"uncoded\",\"step\":{step},\"committed\":{seconds},\
             \"seconds\":{seconds},\"rounds\":[{{{round},\"arrivals\":[{arrivals}]}}]}}\n"
        )
    };
    write("few.jsonl", &(step(0, 1.0, "1.0,null") + &step(1, 1.0, "1.0")));
    refused(
        folder.path(),
        &["trace", "record", "few.jsonl", "--out", "few.csv"],
        &["line 2: round 1 has arrivals of 1 workers, where 2"],
    );
    assert!(!any_begins(folder.path(), "few.csv"), "no half file");
    write("less.jsonl", &step(0, 1.0, "-1.0"));
    refused(
        folder.path(),
        &["trace", "record", "less.jsonl"],
        &["line 1: arrivals: -1 is no time"],
    );
    write("one.jsonl", &(step(0, 2.5, "1.0,null") + "{\"run\":0,\"sch"));
    refused(
        folder.path(),
        &["trace", "record", "one.jsonl", "--run", "3"],
        &["holds the runs 0 (uncoded)"],
    );
    let (trace, said) = good(folder.path(), &["trace", "record", "one.jsonl"]);
    assert_eq!(trace, "1,2.5\n");
    assert!(
        said.contains("line 2 of one.jsonl was cut off")
            && said.contains("censored: 1 answer (50.0 %)"),
        "{said}"
    );
}

#[test]
fn public_tables_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let (alibaba, said) = good(
        folder.path(),
        &["trace", "import", &data("alibaba_pai_job3.csv"), "--per-second", "1000"],
    );
    assert_eq!(
        (rows(&alibaba).len(), rows(&alibaba)[0][..3].to_vec()),
        (7, vec![0.816, 0.764, 0.703])
    );
    assert!(
        said.contains("7 rows of 10 workers from a table of rounds")
            && said.contains("left out: 1 row in which a number"),
        "{said}"
    );
    let (juwels, said) = good(folder.path(), &["trace", "import", &data("mlperf_juwels.csv")]);
    assert_eq!((rows(&juwels).len(), rows(&juwels)[0].len()), (7, 22));
    assert!(said.contains("1 row in which an evaluation"), "{said}");
    let (all, said) = good(folder.path(), &["trace", "import", &data("bytedance_ar.csv")]);
    assert!(
        rows(&all)[0].len() == 16
            && said.contains("warning: the columns are of several pipeline stages"),
        "{said}"
    );
    let stage =
        ["trace", "import", &data("bytedance_ar.csv"), "--columns", "s0d*", "--out", "stage.csv"];
    let (_, said) = good(folder.path(), &stage);
    assert!(
        said.contains("8 rows of 4 workers from the columns chosen") && !said.contains("warning"),
        "{said}"
    );
    // The artificially slowed worker of the job: 2.35 times as slow as the others, always.
    let found = stats(folder.path(), &["stage.csv"]);
    assert!((found["bound_by_median"].as_f64().unwrap() - 2.35).abs() < 0.05, "{found}");
    assert!(found["static_share"].as_f64().unwrap() > 0.99);
    assert_eq!(found["over_median"]["bursts"], serde_json::json!({"8": 1}));
}

#[test]
fn tables_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, lines: &str| fs::write(folder.path().join(name), lines).unwrap();
    write("faults.csv", "node,start_day\n0,1\n");
    refused(
        folder.path(),
        &["trace", "import", "faults.csv"],
        &["\"node\"", "expected a header such as round,w0,w1,..."],
    );
    write("trace.csv", "1,2\n");
    refused(folder.path(), &["trace", "import", "trace.csv"], &["it may be a trace already"]);
    write("bad.csv", "step,w0,w1\n1,2,3\n2,3,-4\n");
    refused(
        folder.path(),
        &["trace", "import", "bad.csv", "--out", "out.csv"],
        &["bad.csv: line 3, column 3: \"-4\""],
    );
    write("ragged.csv", "step,w0,w1\n1,2,3,4\n");
    refused(
        folder.path(),
        &["trace", "import", "ragged.csv"],
        &["line 2, column 4: the line has 4 columns, but the first one has 3"],
    );
    write("holes.csv", "step,w0,w1\n1,,\n");
    refused(
        folder.path(),
        &["trace", "import", "holes.csv", "--out", "out.csv"],
        &["no round has one time of each of 2 workers"],
    );
    refused(
        folder.path(),
        &["trace", "import", "holes.csv", "--columns", "v0"],
        &["no column is named \"v0\"; the columns are step, w0, w1"],
    );
    refused(
        folder.path(),
        &["trace", "import", "holes.csv", "--per-second", "0"],
        &["--per-second 0"],
    );
    refused(folder.path(), &["trace", "import", "absent.csv"], &["absent.csv"]);
    assert!(!any_begins(folder.path(), "out.csv"), "no half file");
}

#[test]
fn stats_of_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("trace.csv"), "1,1,4,9\n1,1,4,9\n1,2.5,1,9\n").unwrap();
    let found = stats(folder.path(), &["trace.csv", "--workers", "3"]);
    assert_eq!((found["mean"].as_f64(), found["median"].as_f64()), (Some(16.5 / 9.0), Some(1.0)));
    assert_eq!(found["over_fastest"]["bursts"], serde_json::json!({"1": 1, "2": 1}));
    assert_eq!(found["over_fastest"]["windows"].as_array().unwrap().len(), 3);
    let endless = stats(folder.path(), &["trace.csv", "--workers", "3", "--rounds", "7"]);
    assert_eq!(endless["rounds"].as_u64(), Some(7));
    let (shown, said) = good(folder.path(), &["trace", "stats", "trace.csv", "--workers", "3"]);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(said.contains(": using the first 3 of 4 columns"), "{said}");
    let lines = [
        "3 rounds of 3 workers; times in seconds",
        "all answers   mean 1.8333, median 1.0000",
        "over 1.5 x    the median: a worker in 100.0 % of rounds, 33.33 % of answers",
        "at most       1.91 times as fast",
        "to be gained  3.50 times",
        "B = 1, W = 2           2       2    50.0 %",
    ];
    assert!(lines.iter().all(|line| shown.contains(line)), "{shown}");
    assert!(shown.contains("static "), "{shown}");
    refused(
        folder.path(),
        &["trace", "stats", "trace.csv", "--workers", "5"],
        &["line 1 has 4 columns, but the run has 5 workers"],
    );
    refused(folder.path(), &["trace", "stats", "trase.csv"], &["neither a preset nor a file"]);
    refused(folder.path(), &["trace", "stats", "serverles"], &["did you mean \"serverless\""]);
    refused(
        folder.path(),
        &["trace", "stats", &data("mlperf_juwels.csv")],
        &["\"epoch\" looks like a header", "trace import"],
    );
    for cell in ["", "NaN"] {
        fs::write(folder.path().join("gap.csv"), format!("1,2\n1,2\n1,{cell}\n")).unwrap();
        let (_, said) = good(folder.path(), &["trace", "stats", "gap.csv"]);
        assert!(said.contains("left out: 1 round in which a value was missing"), "{said}");
    }
    for (cell, named) in [("-3", "\"-3\""), ("x", "\"x\"")] {
        fs::write(folder.path().join("bad.csv"), format!("1,2\n1,2\n1,{cell}\n")).unwrap();
        refused(
            folder.path(),
            &["trace", "stats", "bad.csv", "--json"],
            &["bad.csv: line 3, column 2: ", named],
        );
    }
}

#[test]
fn stats_of_presets_tell_them_apart() {
    let folder = tempfile::tempdir().unwrap();
    let serverless = stats(folder.path(), &["serverless", "--rounds", "100"]);
    assert_eq!(
        (serverless["workers"].as_u64(), serverless["unit"].as_str()),
        (Some(256), Some("seconds"))
    );
    assert!((serverless["over_fastest"]["share"].as_f64().unwrap() - 0.047).abs() < 0.012);
    let hotspot = stats(folder.path(), &["hotspot", "--rounds", "2000"]);
    assert_eq!(
        (hotspot["workers"].as_u64(), hotspot["unit"].as_str()),
        (Some(8), Some("step_times"))
    );
    assert!(
        (hotspot["slowest_mean"].as_f64().unwrap() - 4.0).abs() < 0.01
            && hotspot["over_median"]["per_round_most"] == 1
    );
    let stay = |found: &Value| found["over_median"]["stay"].as_f64().unwrap();
    assert!((stay(&hotspot) - 0.6).abs() < 0.05);
    assert!((stay(&stats(folder.path(), &["iid"])) - 0.08).abs() < 0.02);
    let stalls = stats(folder.path(), &["stalls", "--workers", "256"]);
    assert!(stalls["over_median"]["dispersion"].as_f64().unwrap() > 20.0);
    assert_eq!(
        stats(folder.path(), &["bursts", "--seed", "3"]),
        stats(folder.path(), &["bursts", "--seed", "3"])
    );
}

/// Krishnan, Ebrahimi, Khisti (ICLR 2023), the authors' replay of 80 recorded rounds of 256
/// workers, every round waiting for all that is not admitted: 122.64 s uncoded, 103.73 s for M-SGC
/// with B = 1, W = 2, lambda = 27.
#[test]
fn serverless_rounds_take_as_long_as_the_recorded_ones() {
    let folder = tempfile::tempdir().unwrap();
    for (scheme, recorded) in [("uncoded", 122.64), ("m-sgc:B=1,W=2,lambda=27", 103.73)] {
        let rules = [
            "--delays",
            "serverless",
            "--jobs",
            "80",
            "--close",
            "all",
            "--accept",
            "model",
            "--json",
        ];
        let total = |seed| {
            let (shown, _) =
                good(folder.path(), &[&["simulate", scheme, "--seed", seed], &rules[..]].concat());
            serde_json::from_str::<Value>(&shown).unwrap()["total_time"].as_f64().unwrap()
        };
        let found = ["1", "2", "3", "4"].map(total).iter().sum::<f64>() / 4.0;
        assert!(
            (found / recorded - 1.0).abs() < 0.03,
            "{scheme}: {found} s, recorded {recorded} s"
        );
    }
}

#[test]
fn the_load_counts_as_each_preset_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let mean = |scheme: &str, preset: &str| {
        let (shown, _) = good(
            folder.path(),
            &[
                "simulate",
                scheme,
                "--delays",
                preset,
                "--workers",
                "8",
                "--jobs",
                "400",
                "--close",
                "all",
                "--json",
            ],
        );
        serde_json::from_str::<Value>(&shown).unwrap()["round_time"]["mean"].as_f64().unwrap()
    };
    assert!((mean("uncoded", "calm") - 1.0).abs() < 0.02);
    assert!(
        (mean("groups:s=7", "calm") - 8.0).abs() < 0.02,
        "a step time more for each further share"
    );
    assert!(
        (mean("groups:s=1", "proportional") / mean("uncoded", "proportional") - 2.0).abs() < 0.05
    );
    let slope = mean("groups:s=7", "serverless") - mean("uncoded", "serverless");
    assert!(slope > 1.5 && slope < 2.2, "{slope}: 7/8 of 2.2 s, less what the deadline cuts off");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let table: String = std::iter::once("step,w0,w1\n".to_owned())
        .chain((0..200_000).map(|step| format!("{step},1.5,2.5\n")))
        .collect();
    fs::write(folder.path().join("long.csv"), table).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    command.args(["trace", "import", "long.csv"]).current_dir(folder.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn help_teaches() {
    let folder = tempfile::tempdir().unwrap();
    assert!(good(folder.path(), &["trace", "--help"]).0.contains("Examples"));
    assert!(
        good(folder.path(), &["trace", "import", "--help"]).0.contains("epoch,step_end,same_epoch")
    );
    assert!(good(folder.path(), &["trace", "record", "--help"]).0.contains("had not"));
}

#[test]
fn tables_that_look_like_no_traces_are_told() {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, rows: usize, line: &dyn Fn(usize) -> String| {
        let text: String = (0..rows).map(|row| line(row) + "\n").collect();
        fs::write(home.path().join(name), text).unwrap();
    };
    let plain = |row: usize| format!("0.{},0.5,0.7,0.{}", row * row % 7 + 1, row * row % 11 + 1);
    write("plain.csv", 40, &plain);
    write("numbered.csv", 40, &|row| format!("{row},{}", plain(row)));
    write("long.csv", 40, &|row| format!("{},{},{}", row / 4, row % 4, plain(row)));
    write("wide.csv", 3, &|row| vec![plain(row); 10].join(","));
    write("ms.csv", 40, &|row| plain(row).replace("0.", "1").replace(',', "0,") + "0");
    let cases: &[(&str, &[&str])] = &[
        ("plain.csv", &[]),
        ("numbered.csv", &["column 1 only grows (0, 1, ..)"]),
        ("long.csv", &["column 1 only grows", "column 2 is 0 to 3 again and again"]),
        ("wide.csv", &["3 rounds of 40 workers"]),
    ];
    let said = |arguments: &[&str]| {
        let output = codedgrad(home.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let said = text(&output.stderr);
        said.lines().filter(|line| line.starts_with("warning:")).map(str::to_owned).collect()
    };
    for (file, needles) in cases {
        let commands: [&[&str]; 3] = [
            &["trace", "stats", file],
            &["plan", "--delays", file, "--families", "groups"],
            &["simulate", "groups:s=1", "--delays", file, "--jobs", "3"],
        ];
        for command in commands {
            let said: Vec<String> = said(command);
            assert_eq!(said.len(), needles.len(), "{command:?}: {said:?}");
            for (line, needle) in said.iter().zip(*needles) {
                let start = format!("warning: {file}: {needle}");
                assert!(line.starts_with(&start), "{line} should be {start}");
            }
        }
    }
    let milliseconds: Vec<String> = said(&["trace", "stats", "ms.csv"]);
    assert!(milliseconds[0].contains("if these are milliseconds"), "{milliseconds:?}");
    let noted = text(&codedgrad(home.path(), &["plan", "--delays", "ms.csv"]).stderr);
    assert_eq!(noted.matches("if these are milliseconds").count(), 1, "{noted}");
}

#[test]
fn long_tables_are_imported() {
    let home = tempfile::tempdir().unwrap();
    let rows: String =
        (0..24).map(|row| format!("{},{},{}\n", row / 4, row % 4, 100 + row * row % 7)).collect();
    fs::write(home.path().join("long.csv"), format!("step,rank,ms\n{rows}6,0,5\n")).unwrap();
    let refusal = refused(home.path(), &["trace", "import", "long.csv"], &["--long step,rank,ms"]);
    assert!(refusal.stdout.is_empty());
    let import = |arguments: &[&str]| {
        let output =
            codedgrad(home.path(), &[&["trace", "import", "long.csv"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (made, said) = import(&["--long", "step,rank,ms", "--per-second", "1000"]);
    assert!(
        made.starts_with("0.1,0.101,0.104,0.102\n0.102,") && made.lines().count() == 6,
        "{made}"
    );
    assert!(said.contains("imported 6 rounds of 4 workers from a long table"), "{said}");
    assert!(said.contains("left out: 1 round") && !said.contains("warning"), "{said}");
    // What went by without a word.
    let (_, said) = import(&["--columns", "ms"]);
    assert!(said.contains("warning: that is one worker; "), "{said}");
    let (_, said) = import(&["--columns", "rank,ms"]);
    assert!(said.contains("column 1 is 0 to 3 again and again"), "{said}");
    refused(
        home.path(),
        &["trace", "import", "long.csv", "--long", "step,ms"],
        &["three columns are needed"],
    );
}
