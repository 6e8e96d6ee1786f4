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
    let found = import(&files("04-kineto-names"), &[]);
    found.says("workers: 0 = host0, 1 = host1, 2 = host2, 3 = host3");
    assert!(found.rows.iter().all(|row| row[2] > 0.14 && row[1] < 0.11), "{:?}", found.rows);
}

#[test]
fn case_05_communication_of_other_libraries_is_no_computation() {
    let found = import(&files("05-kineto-oneccl"), &[]);
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
fn case_09_rounds_that_begin_again_are_a_pass_of_their_own() {
    let found = import(&[file("09-crash-loop.csv")], &LONG);
    assert_eq!(found.shape(), (90, 4));
    found.says("the numbers of the rounds begin again, for all workers, 2 times");
    assert_eq!(found.rows[89][3], 1.0047);
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
    let found = import(&files("19-kineto-quotes"), &[]);
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
    let found = import(&files("20-gzip"), &[]);
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
    let found = import(&all, &[]);
    assert_eq!(found.rows[0].len(), 2);
    found.says("rounds: 12 of those from 10 to 25");
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

fn written(lines: impl Iterator<Item = String>) -> (tempfile::TempDir, String) {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("as-written.csv");
    std::fs::write(&path, lines.map(|line| line + "\n").collect::<String>()).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (home, path)
}

#[test]
fn a_comma_that_may_part_thousands_or_fractions_is_refused() {
    let row = |at: usize| format!("{at};w{};{}", at % 2, ["1,030", "977"][at % 2]);
    let (home, path) = written(["step;rank;ms".into()].into_iter().chain((0..20).map(row)));
    refused(
        home.path(),
        &["trace", "import", &path, "--long", "step,rank,ms"],
        &["column 3: 1,030 may be 1.030 or 1030, and nothing in the column says which"],
    );
    let (home, path) = written((0..20).map(|at| format!("1,03{};1,04{}", at % 10, at % 10)));
    for command in [&["doctor"][..], &["plan", "--delays"], &["trace", "stats"]] {
        refused(home.path(), &[command, &[&path]].concat(), &["1,030 may be 1.030 or 1030"]);
    }
    // One that parts a fraction, wherever it stands, is enough.
    let (home, path) = written((0..20).map(|at| format!("1,03{};0,97{}", at % 10, at % 10)));
    let (_, found) = doctor(home.path(), &path);
    assert_eq!(found["rounds"], 20);
}

#[test]
fn batches_that_begin_again_in_each_epoch_are_kept() {
    let line = |at: usize| {
        let (epoch, batch, rank) = (at / 32, at / 4 % 8 * 25, at % 4);
        let slow = if rank == 1 && epoch < 3 { 1.6 } else { 1.0 };
        let time = slow * (0.4 + 0.001 * (at % 7) as f64);
        format!("METRIC rank={rank} epoch={epoch} batch={batch} iteration_time={time:.6}")
    };
    let (_home, path) = written((0..128).map(line));
    let pattern = r"rank=(?<worker>\d+).* batch=(?<round>\d+) iteration_time=(?<time>[\d.]+)";
    let found = import(&[path], &["--pattern", pattern]);
    assert_eq!(found.shape(), (32, 4));
    found.says("begin again, for all workers, 3 times");
    let (said, _) = found.doctor();
    has(&said, "worker 1 takes 1.");
}

#[test]
fn groups_of_a_pattern_are_known_and_those_of_a_worker_are_joined() {
    let line = |at: usize| {
        let (step, device, node) = (at / 4, at % 2, at / 2 % 2);
        format!("gpu-{node} step {step} cuda:{device} took 1.0{at:02}s")
    };
    let (home, path) = written((0..40).map(line));
    let with = |device: &str| {
        format!(r"(?<worker>gpu-\d) step (?<round>\d+) (?<{device}>cuda:\d) took (?<time>[\d.]+)")
    };
    let found = import(std::slice::from_ref(&path), &["--pattern", &with("worker_device")]);
    assert_eq!(found.shape(), (10, 4));
    found.says("0 = gpu-0-cuda:0, 1 = gpu-0-cuda:1, 2 = gpu-1-cuda:0");
    refused(
        home.path(),
        &["trace", "import", &path, "--pattern", &with("device")],
        &["what is the group (?<device>..)?"],
    );
}

/// A log of torchrun's, in which the rank stands on the headline of what follows.
#[test]
fn a_headline_may_name_the_worker() {
    let line = |at: usize| match at % 2 {
        0 => format!("[Rank {} / 2] Training at iteration {}", at / 2 % 2, at / 4),
        _ => format!(" Avg forward compute time: {}", 40_000_000 + at * 1000),
    };
    let (_home, path) = written((0..80).map(line));
    let head = r"Rank (?<worker>\d+) / \d+\] Training at iteration (?<round>\d+)";
    let found = import(
        &[path],
        &["--pattern", r"forward compute time: (?<time>\d+)", "--round-pattern", head],
    );
    assert_eq!(found.shape(), (20, 2));
}

/// The loader of one worker stalls from round 20 on, and all others wait for it in the all-reduce.
#[test]
fn who_has_the_short_time_after_the_exchange_is_who_is_waited_for() {
    let row = |round: usize| {
        let noise = |worker: usize| 0.001 * (round * 7 % 11 + worker) as f64 % 0.003;
        let usual = 0.83 + 0.01 * (round * 5 % 7) as f64;
        let wait = if round < 20 { 0.0 } else { 1.1 + 0.02 * (round * 3 % 13) as f64 };
        let time = |worker: usize| match worker {
            5 => usual + noise(worker),
            _ => usual + wait + noise(worker),
        };
        (0..8).map(|worker| format!("{:.5}", time(worker))).collect::<Vec<_>>().join(",")
    };
    let (home, path) = written((0..60).map(row));
    let (said, found) = doctor(home.path(), &path);
    has(&said, "the others wait for worker 5");
    assert_eq!(found["findings"][0]["kind"], "waited-for");
    assert_eq!(found["findings"].as_array().unwrap().len(), 1, "{said}");
    let plan = codedgrad(home.path(), &["plan", "--delays", &path, "--families", "groups,queue"]);
    let said = text(&plan.stdout);
    has(&said, "Do not plan from these times: all workers but that of column 6 agree");
    assert!(!said.contains("may save") && !said.contains("always take"), "{said}");
}

#[test]
fn gaps_leave_out_the_same_everywhere() {
    let row = |at: usize| if at.is_multiple_of(2) { "1,2,nan".into() } else { "1,1,1".into() };
    let (home, path) = written((0..24).map(row));
    let simulate = ["simulate", "uncoded", "--delays", &path, "--jobs", "24", "--json"];
    let simulated = codedgrad(home.path(), &simulate);
    assert_eq!(json(&simulated)["workers"], 2);
    has(&text(&simulated.stderr), "left out: worker 2: no time in 12 of 24 rounds");
    let plan = json(&codedgrad(home.path(), &["plan", "--delays", &path, "--json"]));
    assert_eq!(plan["workers"], 2);
    assert_eq!(plan["baseline"], json(&simulated)["time_per_job"]);
}

#[test]
fn a_time_is_at_most_thirty_years_everywhere() {
    let (home, path) = written((0..20).map(|at| format!("1,{},1", ["1", "1e308"][at % 2])));
    for command in [
        &["doctor", &path][..],
        &["plan", "--delays", &path],
        &["trace", "stats", &path],
        &["simulate", "uncoded", "--delays", &path, "--jobs", "3"],
    ] {
        refused(
            home.path(),
            command,
            &["line 2, column 2: \"1e308\" is not a delay in seconds (a number from 0 to 1e9"],
        );
    }
}

#[test]
fn options_without_effect_are_said() {
    let (home, path) = written((0..10).map(|_| "1,1,2,1".into()));
    let simulate = ["simulate", "groups:s=1", "--delays", &path, "--jobs", "4", "--json"];
    let options = ["--seed", "5", "--mu", "0.3", "--accept", "model", "--dispatch", "0.1"];
    let found = codedgrad(home.path(), &[&simulate[..], &options].concat());
    let said = text(&found.stderr);
    has(&said, "--seed 5 has no effect: these delays are recorded");
    has(&said, "--mu 0.3 counts late answers and does nothing else");
    has(&said, "--accept has no effect");
    has(&said, "--dispatch 0.1 has no effect");
    let found = json(&found);
    assert!(found["seed"].is_null() && found["mu"].is_null() && found["accept"].is_null());
    assert_eq!(text(&codedgrad(home.path(), &simulate).stderr), "");
    let plan = ["plan", "--delays", &path, "--seed", "5", "--json"];
    let plan = codedgrad(home.path(), &plan);
    has(&text(&plan.stderr), "--seed 5 has no effect");
    assert!(json(&plan)["seed"].is_null());
}

/// What numpy.savetxt and people write: blanks, tabs, semicolons, comments, a header.
#[test]
fn a_code_is_read_as_traces_are() {
    let (home, _) = written(std::iter::empty());
    for (name, text) in [
        ("blanks.txt", "0.5 1.0 0.0\n0.0 1.0 -1.0\n0.5 0.0 1.0\n"),
        ("tabs.tsv", "0,5\t1\t0\n0\t1\t-1\n0,5\t0\t1\n"),
        ("marks.csv", "\u{feff}# mine\na;b;c\n0.5;1;0\n0;1;-1\n0.5;0;1\n"),
    ] {
        std::fs::write(home.path().join(name), text).unwrap();
        let code = ["code", &format!("matrix:{name}"), "--workers", "3", "--json"];
        assert_eq!(json(&codedgrad(home.path(), &code))["stragglers"], 1, "{name}");
    }
    std::fs::write(home.path().join("speeds.txt"), "# gpus\n66\n33\n").unwrap();
    let code = ["code", "interval:speeds=speeds.txt,s=0,units=6", "--workers", "2", "--json"];
    assert!((json(&codedgrad(home.path(), &code))["load"].as_f64().unwrap() - 2.0 / 3.0) < 1e-9);
    std::fs::write(home.path().join("b.npy"), b"\x93NUMPY\x01\0v\0{'descr': '<f8'}").unwrap();
    refused(
        home.path(),
        &["code", "matrix:b.npy", "--workers", "3"],
        &["a file of NumPy's own: numpy.savetxt(FILE, array, delimiter=\",\") writes one"],
    );
}

#[test]
fn a_range_query_of_prometheus_is_read_by_the_label_of_its_workers() {
    let home = tempfile::tempdir().unwrap();
    let series = |rank: usize| {
        let slow = if rank == 1 { 1.5 } else { 1.0 };
        let values: Vec<serde_json::Value> = (0..30)
            .map(|at| {
                serde_json::json!([
                    1_767_000_000 + 15 * at,
                    format!("{}", slow + 0.001 * f64::from(at % 7))
                ])
            })
            .collect();
        serde_json::json!({"metric": {"rank": rank.to_string(), "job": "t"}, "values": values})
    };
    let result: Vec<_> = (0..3).map(series).collect();
    let data = serde_json::json!({"resultType": "matrix", "result": result});
    let answer = serde_json::json!({"status": "success", "data": data});
    let path = home.path().join("query.json");
    std::fs::write(&path, answer.to_string()).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let found = import(std::slice::from_ref(&path), &["--long", "time,rank,value"]);
    assert_eq!(found.shape(), (30, 3));
    has(&found.doctor().0, "worker 1 takes 1.5");
    refused(
        home.path(),
        &["trace", "import", &path, "--long", "time,host,value"],
        &["a series has no label host; it has job, rank"],
    );
}

#[test]
fn number_22_and_23_are_dumps_of_a_job_in_which_rank_2_stands_still() {
    let home = tempfile::tempdir().unwrap();
    let said = |inputs: &[&str]| {
        let output = codedgrad(home.path(), &[&["doctor"], inputs].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let verdict = "rank 2 has not entered all_reduce number 4 of group default_pg (ranks 0-3): the \
                   other 3 wait in it.\n";
    let (words, _) = said(&[&file("22-flight-recorder")]);
    assert!(words.starts_with(verdict), "{words}");
    for line in [
        "  rank 2: its last was all_reduce number 3 [8, 4] Float, at /job/train.py:9 step\n",
        "  ranks 0-1, 3: all_reduce [8, 4] Float, at /job/train.py:9 step\n",
        "group default_pg (ranks 0-3): all entered number 3; compared from number 1 on\n",
        "4 dumps of version 2.10\n",
    ] {
        assert!(words.contains(line), "{line}: {words}");
    }
    assert!(said(&[&file("23-flight-recorder-json")]).0.starts_with(verdict));
    let dumps = files("22-flight-recorder");
    let of = |ranks: &[usize]| -> Vec<&str> { ranks.iter().map(|rank| &*dumps[*rank]).collect() };
    let (words, _) = said(&of(&[0, 1, 3]));
    assert!(words.starts_with("rank 2 of group default_pg (ranks 0-3) has no dump"), "{words}");
    // Cut within its last entry, and at its first byte but one.
    let cut = |length: usize| {
        let bytes = std::fs::read(&dumps[0]).unwrap();
        let path = home.path().join("nccl_trace_rank_0");
        std::fs::write(&path, &bytes[..length]).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let most = std::fs::read(&dumps[0]).unwrap().len();
    let path = cut(most - 20);
    let (words, notes) = said(&[&[&*path], &of(&[1, 2, 3])[..]].concat());
    assert!(words.starts_with("rank 2 has not entered all_reduce number 4"), "{words}");
    assert!(words.contains("ranks 1, 3 wait in it"), "{words}");
    assert!(notes.contains("nccl_trace_rank_0: the file was cut off after 3 coll"), "{notes}");
    refused(
        home.path(),
        &["doctor", &cut(2)],
        &["cut off after 0 coll", "no entry of a collective"],
    );
    let other = [&[&*path], &["nothing"][..]].concat();
    refused(home.path(), &[&["doctor"], &other[..]].concat(), &["nothing: no dump of Flight"]);
    refused(home.path(), &["doctor", &dumps[0], "--plan"], &["--plan: a dump has collectives"]);
    let imported = import(&dumps, &[]);
    assert_eq!(imported.shape(), (2, 4));
    imported.says("imported 2 rounds of 4 workers from dumps of Flight Recorder");
    imported.says("8 of 8 times begin where the rank entered its previous collective");
}
