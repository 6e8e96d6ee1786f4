//! Files as others write them give the right workers, rounds and times, by the numbers of
//! `tests/data/files`.

use crate::program::{codedgrad, json, refused, text};
use std::path::{Path, PathBuf};

struct Imported {
    rows: Vec<Vec<f64>>,
    said: String,
    home: tempfile::TempDir,
}

fn file(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/files");
    data.join(name).to_str().unwrap().to_owned()
}

/// The files of a folder in the order in which a shell names them.
fn files(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(file(folder)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn import(files: &[String], options: &[&str]) -> Imported {
    let home = tempfile::tempdir().unwrap();
    let mut arguments = vec!["trace", "import"];
    arguments.extend(files.iter().map(String::as_str));
    arguments.extend(options);
    arguments.extend(["--out", "trace.csv"]);
    let output = codedgrad(home.path(), &arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{files:?}: {said}");
    let rows = std::fs::read_to_string(home.path().join("trace.csv")).unwrap();
    let number = |cell: &str| cell.parse::<f64>().unwrap();
    let rows = rows.lines().map(|line| line.split(',').map(number).collect()).collect();
    Imported { rows, said, home }
}

impl Imported {
    fn shape(&self) -> (usize, usize) {
        (self.rows.len(), self.rows[0].len())
    }

    fn says(&self, words: &str) {
        assert!(self.said.contains(words), "{words:?} is not in {}", self.said);
    }

    /// What the doctor says of it, and the same as JSON.
    fn doctor(&self) -> (String, serde_json::Value) {
        doctor(self.home.path(), "trace.csv")
    }
}

fn doctor(home: &Path, trace: &str) -> (String, serde_json::Value) {
    let output = codedgrad(home, &["doctor", trace]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    (text(&output.stdout), json(&codedgrad(home, &["doctor", trace, "--json"])))
}

fn has(said: &str, words: &str) {
    // Lines are broken where they fill the width.
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(words), "{words:?} is not in {said}");
}

const LONG: [&str; 2] = ["--long", "step,rank,s"];

#[test]
fn case_01_files_in_the_order_of_a_shell_keep_their_ranks() {
    let found = import(&files("01-glob-order"), &["--long", "Step,Value"]);
    assert_eq!(found.shape(), (25, 11));
    assert_eq!(found.rows[0][10], 1.5002);
    let (said, found) = found.doctor();
    has(&said, "worker 10 takes 1.50 times as long");
    assert_eq!(found["findings"][0]["workers"], serde_json::json!([10]));
}

#[test]
fn case_02_ranks_that_are_words_are_counted_as_people_do() {
    let found = import(&[file("02-rank-names.csv")], &LONG);
    assert_eq!((found.shape(), found.rows[0][10]), ((25, 11), 1.5217));
    found.says("9 = rank9, 10 = rank10");
    let (said, found) = found.doctor();
    has(&said, "worker rank10 takes 1.5");
    assert_eq!(found["findings"][0]["workers"], serde_json::json!([10]));
    assert_eq!(found["names"][10], "rank10");
}

#[test]
fn case_03_hosts_are_named() {
    let found = import(&[file("03-hosts.csv")], &["--long", "step,host,s"]);
    found.says("workers: 0 = gpu-9, 1 = gpu-12, 2 = gpu-45, 3 = gpu-101");
    let (said, _) = found.doctor();
    has(&said, "worker gpu-9 takes 1.5");
    let output =
        codedgrad(found.home.path(), &["plan", "--delays", "trace.csv", "--families", "groups"]);
    has(&text(&output.stdout), "Worker gpu-9 always takes");
}

#[test]
fn case_04_traces_are_called_by_their_hosts() {
    let found = import(&files("04-kineto-names"), &["--profiler"]);
    found.says("workers: 0 = host0, 1 = host1, 2 = host2, 3 = host3");
    assert!(found.rows.iter().all(|row| row[2] > 0.14 && row[1] < 0.11), "{:?}", found.rows);
}

#[test]
fn case_05_communication_of_other_libraries_is_no_computation() {
    let found = import(&files("05-kineto-oneccl"), &["--profiler"]);
    let rounded = |time: &f64| (time * 20.0).round() / 20.0;
    let rows: Vec<Vec<f64>> =
        found.rows.iter().map(|row| row.iter().map(rounded).collect()).collect();
    assert_eq!(rows, vec![[0.1, 0.1, 0.15, 0.1]; rows.len()]);
    assert!(!found.said.contains("shows no communication"), "{}", found.said);
}

#[test]
fn case_06_rounds_keep_their_numbers() {
    let found = import(&[file("06-begins-at-12000.csv")], &LONG);
    assert_eq!(found.shape(), (120, 4));
    found.says("rounds: 12000 to 12119");
    let (said, found) = found.doctor();
    has(&said, "since step 12060 (");
    assert_eq!(found["findings"][0]["since"], 12060);
}

#[test]
fn case_07_times_taken_after_the_exchange_are_no_health() {
    let trace = file("07-after-allreduce.csv");
    let home = tempfile::tempdir().unwrap();
    let (said, found) = doctor(home.path(), &trace);
    has(&said, "Whether a worker is slow cannot be seen in these times");
    assert!(!said.contains("Nothing is wrong"), "{said}");
    assert!(found["cautions"][0].as_str().unwrap().contains("after the all-reduce"));
    let planned = codedgrad(home.path(), &["plan", "--delays", &trace, "--families", "groups"]);
    has(&text(&planned.stdout), "these look like times taken after the all-reduce");
    let stats = codedgrad(home.path(), &["trace", "stats", &trace]);
    has(&text(&stats.stderr), "these look like times taken after the all-reduce");
}

#[test]
fn case_08_a_rank_that_ends_is_named_and_leaves_the_others() {
    let found = import(&[file("08-rank-dies.csv")], &LONG);
    assert_eq!(found.shape(), (100, 3));
    let gone = "worker 3: no time in 75 of 100 rounds (missing in rounds 25 to 99; there in rounds \
                0 to 24)";
    found.says(&format!("warning: left out: {gone}"));
    let (said, found) = found.doctor();
    has(&said, "worker 2 has taken 1.59 times as long");
    has(&said, "since step 40 (");
    has(&said, &format!("Not seen: {gone}"));
    assert_eq!(found["not_seen"][0], gone);
}

#[test]
fn case_09_rounds_that_are_told_again_count_once() {
    let found = import(&[file("09-crash-loop.csv")], &LONG);
    assert_eq!(found.shape(), (30, 4));
    found.says("told several times: 30 rounds, up to 3 times; the last one counts");
    assert_eq!(found.rows[29][3], 1.0047);
}

#[test]
fn case_10_a_value_that_is_missing_leaves_out_its_round() {
    let found = import(&[file("10-nan-long.csv")], &LONG);
    assert_eq!(found.shape(), (19, 3));
    found.says("left out: 1 round in which a worker had no time: worker 1 in 1 (round 3)");
}

#[test]
fn case_11_numbers_that_only_python_knows_are_read() {
    let found = import(&[file("11-nan.jsonl")], &["--long", "step,rank,t"]);
    assert_eq!(found.shape(), (19, 3));
    found.says("worker 1 in 1 (round 3)");
}

#[test]
fn case_12_answers_that_were_not_received_are_late() {
    let trace = file("12-not-received-minus-one.csv");
    let home = tempfile::tempdir().unwrap();
    let (said, found) = doctor(home.path(), &trace);
    assert_eq!((&found["rounds"], &found["estimated"]), (&20.into(), &0.25.into()));
    for worker in found["of_workers"].as_array().unwrap() {
        assert_eq!((&worker["unanswered"], &worker["late_rounds"]), (&5.into(), &5.into()));
    }
    assert!(!said.contains("Nothing is wrong that the record shows"), "{said}");
    let stats = json(&codedgrad(home.path(), &["trace", "stats", &trace, "--json"]));
    assert_eq!((&stats["rounds"], &stats["not_received"]), (&20.into(), &20.into()));
    assert_eq!(stats["over_median"]["answers"], 20);
    let plan = codedgrad(home.path(), &["plan", "--delays", &trace, "--families", "groups"]);
    has(&text(&plan.stdout), "But 20 answers were not received");
}

#[test]
fn case_13_quoted_cells_are_read() {
    let found = import(&[file("13-quoted.csv")], &LONG);
    assert_eq!((found.shape(), &*found.rows[0]), ((20, 3), &[1.01, 0.9887, 1.0021][..]));
}

#[test]
fn case_14_semicolons_and_decimal_commas_are_read() {
    let found = import(&[file("14-semicolon-decimal-comma.csv")], &LONG);
    assert_eq!((found.shape(), &*found.rows[0]), ((20, 3), &[0.9943, 0.987, 0.9827][..]));
}

#[test]
fn case_15_columns_are_known_however_ranks_are_spelt() {
    let found = import(&[file("15-rank_0-header.csv")], &[]);
    assert_eq!((found.shape(), &*found.rows[0]), ((20, 3), &[1.0027, 1.0102, 1.0001][..]));
}

#[test]
fn case_16_an_array_of_records_is_read() {
    let found = import(&[file("16-records.json")], &["--long", "step,rank,t"]);
    assert_eq!((found.shape(), &*found.rows[0]), ((20, 3), &[0.9962, 1.0032, 0.98][..]));
}

#[test]
fn case_17_ranks_under_a_headline_belong_to_its_round() {
    let patterns = [
        "--pattern",
        r"rank\s+(?<worker>\d+): (?<time>[-+\d.eE]+)",
        "--round-pattern",
        r"iteration\s+(?<round>\d+)/",
        "--per-second",
        "1000",
    ];
    let found = import(&[file("17-megatron-times-across-ranks.log")], &patterns);
    assert_eq!(found.shape(), (20, 4));
    let expected = [0.98596, 1.00815, 1.47449, 1.01274];
    let near = found.rows[0].iter().zip(expected).all(|(time, other)| (time - other).abs() < 1e-12);
    assert!(near, "{:?}", found.rows[0]);
    found.says("rounds: 1 to 20");
}

#[test]
fn case_18_a_number_is_not_cut() {
    let log = file("18-scientific.log");
    let pattern =
        |time: &str| format!(r"step=(?<round>\d+) rank=(?<worker>\d+) took=(?<time>{time})");
    let home = tempfile::tempdir().unwrap();
    let short = pattern(r"[\d.]+");
    let arguments = ["trace", "import", &log, "--pattern", &short];
    refused(home.path(), &arguments, &["line 1", "cuts the number 9.857e-02"]);
    let found = import(&[log], &["--pattern", &pattern(r"[-+\d.eE]+")]);
    assert_eq!((found.shape(), found.rows[0][0]), ((20, 3), 0.09857));
}

#[test]
fn case_19_quotes_in_the_names_of_events_break_no_trace() {
    let found = import(&files("19-kineto-quotes"), &["--profiler"]);
    found.says("are no JSON");
    found.says("the first is on line 1");
    assert!(
        found.rows.iter().flatten().all(|time| (0.09..0.11).contains(time)),
        "{:?}",
        found.rows
    );
    assert_eq!(found.rows[0].len(), 2);
}

#[test]
fn case_20_packed_traces_are_read() {
    let found = import(&files("20-gzip"), &["--profiler"]);
    assert_eq!(found.rows[0].len(), 2);
    assert!(
        found.rows.iter().flatten().all(|time| (0.09..0.16).contains(time)),
        "{:?}",
        found.rows
    );
}

#[test]
fn case_21_windows_of_one_rank_are_joined() {
    let all = ["21-two-windows/iteration_10", "21-two-windows/iteration_20"].map(files).concat();
    let found = import(&all, &["--profiler"]);
    assert_eq!(found.rows[0].len(), 2);
    found.says("rounds: 10 to 2");
}

#[test]
fn rounds_that_are_far_apart_are_not_taken_for_consecutive() {
    let home = tempfile::tempdir().unwrap();
    let row = |step: usize, rank: usize| {
        let slow = if rank == 2 && step >= 600 { 1.5 } else { 1.0 };
        format!("{step},{rank},{}\n", slow + (step * (rank + 3) % 7) as f64 / 100.0)
    };
    let lines: String =
        (0..100).flat_map(|at| (0..4).map(move |rank| row(10 * at, rank))).collect();
    std::fs::write(home.path().join("t.csv"), format!("step,rank,s\n{lines}")).unwrap();
    let out = ["trace", "import", "t.csv", "--long", "step,rank,s", "--out", "trace.csv"];
    has(&text(&codedgrad(home.path(), &out).stderr), "rounds: 0 to 990, every 10 steps");
    has(&doctor(home.path(), "trace.csv").0, "since step 600 (");
    let plan = json(&codedgrad(home.path(), &["plan", "--delays", "trace.csv", "--json"]));
    let delays = plan["candidates"].as_array().unwrap().iter().map(|it| it["delay"].as_u64());
    assert!(delays.max().flatten() == Some(0), "{plan}");
    has(&plan["notes"].to_string(), "rounds are 10 steps apart");
}

#[test]
fn names_are_those_of_the_trace_they_stand_beside() {
    let found = import(&[file("03-hosts.csv")], &["--long", "step,host,s"]);
    let trace = found.home.path().join("trace.csv");
    let text = std::fs::read_to_string(&trace).unwrap();
    std::fs::write(&trace, text.replace("1.5", "1.55")).unwrap();
    let (said, _) = found.doctor();
    has(&said, "worker 0 takes 1.5");
}

#[test]
fn names_in_files_forge_no_lines() {
    let home = tempfile::tempdir().unwrap();
    let evil = "\"a\nwarning: all is well\u{1b}[2J\"";
    let row = |step: usize| {
        let slow = format!("{step},{evil},2.5\n");
        let gap = if step == 3 { String::new() } else { slow };
        format!("{gap}{step},b,1.{step}\n{step},c,1.1\n{step},d,1.2\n")
    };
    let rows: String = (0..20).map(row).collect();
    std::fs::write(home.path().join("t.csv"), format!("step,host,s\n{rows}")).unwrap();
    let out = ["trace", "import", "t.csv", "--long", "step,host,s", "--out", "trace.csv"];
    let imported = text(&codedgrad(home.path(), &out).stderr);
    has(&imported, r"0 = a\nwarning: all is well\u{1b}[2J, 1 = b");
    has(&imported, r"worker a\nwarning: all is well");
    let (said, _) = doctor(home.path(), "trace.csv");
    has(&said, r"worker a\nwarning: all is well");
    // What stands beside a trace may come from elsewhere.
    let beside = home.path().join("trace.csv.names.json");
    let kept = std::fs::read_to_string(&beside).unwrap();
    std::fs::write(&beside, kept.replace(r"a\\n", r"a\n")).unwrap();
    let (altered, _) = doctor(home.path(), "trace.csv");
    for said in [imported, said, altered] {
        let forged = |line: &str| line.starts_with("warning: all is well");
        assert!(!said.lines().any(forged) && !said.contains('\u{1b}'), "{said}");
    }
}
