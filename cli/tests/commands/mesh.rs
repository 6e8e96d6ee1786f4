//! `codedgrad mesh` as its users meet it.

use crate::program::{codedgrad, json, refused, text};
use serde_json::{Value, json as value};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn mesh(folder: &Path, line: &str) -> Value {
    let arguments: Vec<&str> = ["mesh", "--json"].into_iter().chain(line.split(' ')).collect();
    json(&codedgrad(folder, &arguments))
}

/// What a terminal of 80 columns shows.
fn words(line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    command.arg("mesh").args(line.split(' ')).env("COLUMNS", "80");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{line}");
    let printed = text(&output.stdout);
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
    printed
}

fn refused_by(folder: &Path, line: &str, needles: &[&str]) {
    let arguments: Vec<&str> = ["mesh"].into_iter().chain(line.split(' ')).collect();
    refused(folder, &arguments, needles);
}

#[test]
fn the_answer_is_in_words() {
    for (name, line, needle) in [
        ("one_worker", "--world 16 --tp 2 --ep 8 --etp 2", "nothing to code: every rank waits"),
        ("two_workers", "--world 16 --tp 2 --ep 8 --etp 1", "the whole batch in every cell"),
        ("three_workers", "--world 48 --cp 2 --ep 8 --pp 2", "the whole batch in every cell"),
        ("pays", "--world 1024 --tp 2 --pp 4 --etp 1 --ep 8 --late-rank 0.002", "Coding pays if"),
        ("does_not_pay", "--world 64 --tp 2 --cp 2 --pp 2 --etp 1 --ep 8", "does not pay against"),
    ] {
        let printed = words(line);
        assert!(printed.replace('\n', " ").contains(needle), "{name}: {printed}");
        insta::assert_snapshot!(name, format!("$ codedgrad mesh {line}\n{printed}"));
    }
}

#[test]
fn other_truths_are_told_too() {
    let printed = words("--world 1").replace('\n', " ");
    assert!(printed.contains("1 rank in one cell") && printed.contains("nothing to code"));
    let never = words("--world 8 --late-rank 0").replace('\n', " ");
    assert!(never.contains("Coding saves nothing: steps would be late as often"), "{never}");
    let neither = words("--world 24 --cp 4 --ep 6").replace('\n', " ");
    let rule = "Workers: 24 / (1 x 12) = 2, world by pp x lcm, fewer than dp = 6 and edp = 4, \
                since neither of tp x cp = 4 and etp x ep = 6 divides the other.";
    assert!(neither.contains(rule), "{neither}");
}

#[test]
fn json_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let shown = mesh(folder.path(), "--world 16 --tp 2 --pp 2 --etp 1 --ep 4 --late-rank 0.01");
    let keys: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "layout",
        "dp",
        "edp",
        "cell_size",
        "workers",
        "cells",
        "classes",
        "exchange_off_node",
        "late",
        "redundancy",
        "foldings",
        "advice",
        "python",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(
        shown["layout"],
        value!({"world": 16, "tp": 2, "cp": 1, "pp": 2, "etp": 1, "ep": 4,
            "order": "tp-cp-ep-dp-pp"})
    );
    assert_eq!([&shown["dp"], &shown["edp"]], [4, 2]);
    assert_eq!([&shown["cell_size"], &shown["workers"]], [8, 2]);
    assert_eq!(shown["cells"], value!([[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]));
    let classes = shown["classes"].as_array().unwrap();
    let names: Vec<&str> = classes.iter().map(|class| class["class"].as_str().unwrap()).collect();
    assert_eq!(names, ["dense", "replicated", "tied", "expert"]);
    assert_eq!(
        classes[1],
        value!({"class": "replicated", "group_size": 4, "in_cell": 2, "groups": 4, "scale": [1, 4],
            "seats": [[0, 2], [1, 3], [4, 6], [5, 7]], "then": [[0, 1], [2, 3], [4, 5], [6, 7]]})
    );
    assert_eq!(classes[2]["then"], value!([[0, 4], [1, 5], [2, 6], [3, 7]]));
    let expert = &classes[3];
    assert_eq!([&expert["group_size"], &expert["in_cell"], &expert["groups"]], [2, 1, 8]);
    assert_eq!([&expert["scale"], &expert["then"]], [&value!([1, 4]), &value!([])]);

    let close = |found: &Value, expected: f64| {
        assert!((found.as_f64().unwrap() / expected - 1.0).abs() < 1e-12, "{found} {expected}");
    };
    let cell = 1.0 - 0.99f64.powi(8);
    let any = 1.0 - 0.99f64.powi(16);
    assert_eq!(shown["late"]["rank"], 0.01);
    close(&shown["late"]["cell"], cell);
    close(&shown["late"]["any"], any);
    let redundancy = &shown["redundancy"];
    assert_eq!(redundancy.as_array().unwrap().len(), 1);
    assert_eq!(
        [&redundancy[0]["scheme"], &redundancy[0]["work"]],
        [&value!("groups:s=1"), &value!(2.0)]
    );
    close(&redundancy[0]["late"], cell * cell);
    close(&redundancy[0]["break_even"], 1.0 / (any - cell * cell));

    let best = &shown["foldings"][0];
    assert_eq!([&best["etp"], &best["ep"], &best["workers"]], [1, 2, 4]);
    let last = shown["foldings"].as_array().unwrap().last().unwrap();
    assert_eq!([&last["workers"], &last["break_even"]], [&value!(1), &Value::Null]);
    let advice = shown["advice"].as_str().unwrap();
    assert!(advice.contains("The folding etp 1, ep 2 keeps most workers: 4."), "{advice}");
}

/// Which ranks form a worker, in the words of `codedgrad.torch`.
#[test]
fn a_script_is_told_the_mesh_of_a_worker() {
    let folder = tempfile::tempdir().unwrap();
    let python = |line: &str| mesh(folder.path(), line)["python"].clone();
    let mesh_of = |names: &[&str], sizes: &[u32]| value!({"names": names, "sizes": sizes});
    for (line, names, sizes, data, experts, launch) in [
        ("--world 4", &[][..], &[][..], &[][..], None, "-n 4 train.py"),
        ("--world 8 --tp 2", &["dp", "tp"], &[1, 2], &["dp"], None, "-n 4 torchrun 2"),
        ("--world 8 --ep 4", &["ep"], &[4], &["ep"], None, "-n 2 torchrun 4"),
        (
            "--world 8 --etp 2 --ep 2",
            &["ep", "etp"],
            &[2, 2],
            &["ep", "etp"],
            None,
            "-n 2 torchrun 4",
        ),
        (
            "--world 16 --tp 2 --etp 1 --ep 4",
            &["dp", "tp"],
            &[2, 2],
            &["dp"],
            Some(mesh_of(&["ep"], &[4])),
            "-n 4 torchrun 4",
        ),
    ] {
        let launch = launch.replace("torchrun", "torchrun --standalone --nproc-per-node");
        let script = if launch.ends_with(".py") { "" } else { " train.py" };
        let expected = value!({"names": names, "sizes": sizes, "data": data, "experts": experts,
            "launch": format!("codedgrad run {launch}{script}")});
        assert_eq!(python(line), expected, "{line}");
    }
    for (line, refused) in [
        ("--world 8 --pp 2", "it has no pipeline parallelism, and pp is 2"),
        ("--world 8 --cp 2", "it has no context parallelism, and cp is 2"),
        ("--world 32 --ep 16", "a worker's ranks are on one host, and a cell has 16 of nodes of 8"),
        (
            "--world 12 --tp 2 --etp 1 --ep 3",
            "groups of 3 that have all experts are no whole groups of tp = 2",
        ),
        (
            "--world 8 --tp 4 --etp 1 --ep 2",
            "groups of 2 that have all experts are no whole groups of tp = 4",
        ),
    ] {
        assert_eq!(python(line), value!({"refused": refused}), "{line}");
    }
    let said = words("--world 16 --tp 2 --etp 1 --ep 4");
    let told = "
In a script for PyTorch, and how it is started:
  mesh = init_device_mesh(\"cuda\", (2, 2), mesh_dim_names=(\"dp\", \"tp\"))
  experts = init_device_mesh(\"cuda\", (4,), mesh_dim_names=(\"ep\",))
  run = codedgrad.torch.join(.., mesh=mesh, data=\"dp\")
  codedgrad run -n 4 torchrun --standalone --nproc-per-node 4 train.py
";
    assert!(said.ends_with(told), "{said}");
    // One cell has all ranks: there is nothing to join.
    assert!(!words("--world 2 --tp 2").contains("init_device_mesh"));
}

#[test]
fn exchanges_that_leave_their_node_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let off_node = |line: &str| mesh(folder.path(), line)["exchange_off_node"].as_f64().unwrap();
    let base = "--world 64 --tp 2 --cp 4 --ep 8";
    assert_eq!(off_node(&format!("{base} --etp 1")), 0.0);
    assert_eq!(off_node(&format!("{base} --etp 2")), 4.0 / 7.0);
    assert_eq!(off_node(&format!("{base} --etp 1 --node 4")), 4.0 / 7.0);
    assert_eq!(mesh(folder.path(), &format!("{base} --etp 2"))["workers"], 4);
}

#[test]
fn only_foldings_that_divide_the_experts_are_tried() {
    let folder = tempfile::tempdir().unwrap();
    let shown = mesh(folder.path(), "--world 24 --ep 3 --experts 6");
    let eps: Vec<u64> = shown["foldings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|folding| folding["ep"].as_u64().unwrap())
        .collect();
    assert_eq!(eps, [1, 2, 3, 6]);
}

/// Ranks 0 and 2 of a pipeline are one cell, and so are 1 and 3, 4 and 6, 5 and 7, in other cells.
const RANKS: &str = "1,2,3,4,5,6,7,8\n0.5,0.25,0.125,9,1e-9,0,0,0\n2,2,2,2,8,7,6,5.5\n";

#[test]
fn delays_of_ranks_become_delays_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("ranks.csv"), RANKS).unwrap();
    let layout = ["mesh", "--world", "8", "--pp", "2"];
    let files = ["--delays", "ranks.csv", "--out", "my cells.csv"];
    let output = codedgrad(folder.path(), &[&layout[..], &files].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Stage 0 is ranks 0 to 3, stage 1 ranks 4 to 7.
    let cells = fs::read_to_string(path("my cells.csv")).unwrap();
    assert_eq!(cells, "5,6,7,8\n0.5,0.25,0.125,9\n8,7,6,5.5\n");
    let plan = "codedgrad plan --delays 'my cells.csv' --workers 4";
    assert!(text(&output.stdout).ends_with(&format!("\nTo go on: {plan}\n")));
    let shown = json(&codedgrad(folder.path(), &[&layout[..], &files, &["--json"]].concat()));
    assert_eq!(shown["plan"], plan);
    let planned = ["plan", "--delays", "my cells.csv", "--workers", "4", "--json"];
    assert_eq!(json(&codedgrad(folder.path(), &planned))["workers"], 4);

    // Tensor groups of two make neighbours one cell.
    let pairs =
        ["mesh", "--world", "8", "--tp", "2", "--delays", "ranks.csv", "--out", "pairs.csv"];
    assert_eq!(codedgrad(folder.path(), &pairs).status.code(), Some(0));
    let pairs = fs::read_to_string(path("pairs.csv")).unwrap();
    assert_eq!(pairs, "2,4,6,8\n0.5,9,1e-9,0\n2,2,8,6\n");

    // One cell has a file, and nothing to plan.
    let all = "mesh --world 8 --ep 8 --delays ranks.csv --out all.csv --json";
    let one = json(&codedgrad(folder.path(), &all.split(' ').collect::<Vec<_>>()));
    assert_eq!(one.get("plan"), None);
    assert_eq!(fs::read_to_string(path("all.csv")).unwrap(), "8\n9\n8\n");
}

#[test]
fn delays_may_come_by_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    command.args("mesh --world 8 --pp 2 --delays - --out cells.csv".split(' '));
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(RANKS.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let cells = fs::read_to_string(folder.path().join("cells.csv")).unwrap();
    assert!(cells.starts_with("5,6,7,8\n"), "{cells}");
}

#[test]
fn a_cell_is_not_known_if_one_of_its_ranks_is_not() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("ranks.csv"), "1,2,NaN,4\n5,6,7,8\n-1,2,3,\n").unwrap();
    let line = "mesh --world 4 --tp 2 --delays ranks.csv --out cells.csv";
    let output = codedgrad(folder.path(), &line.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let cells = fs::read_to_string(folder.path().join("cells.csv")).unwrap();
    assert_eq!(cells, "2,NaN\n6,8\ninf,NaN\n");
}

#[test]
fn what_is_wrong_with_delays_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let line = "--world 4 --tp 2 --delays ranks.csv --out cells.csv";
    for (csv, needles) in [
        ("r0,r1,r2,r3\n1,2,3,4\n", ["line 1, column 1", "\"r0\" looks like a header"]),
        ("1,2,3,4\n\n1,2,3,4\n", ["line 2, column 1", "the line is empty"]),
        ("\n1,2,3,4\n", ["line 1, column 1", "the line is empty"]),
        ("1,2,3\n", ["line 1, column 4", "has 3 columns, but the world has 4 ranks"]),
        ("1,2,3,4,5\n", ["line 1, column 5", "has 5 columns, but the world has 4 ranks"]),
        ("1,2,3,4\n1,2,3\n", ["line 2, column 4", "the line has 3 columns"]),
        ("1,2,3,4\n1,2,-3,4\n", ["line 2, column 3", "\"-3\" is not a delay in seconds"]),
        ("1,2,3,4\n1,late,3,4\n", ["line 2, column 2", "\"late\" is not a delay"]),
        ("", ["ranks.csv", "no rounds"]),
    ] {
        fs::write(folder.path().join("ranks.csv"), csv).unwrap();
        refused_by(folder.path(), line, &needles);
        // Nothing is left of what was begun.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{csv:?}");
    }
    // A file may end in an empty line.
    fs::write(folder.path().join("ranks.csv"), "1,2,3,4\n\n").unwrap();
    let arguments: Vec<&str> = ["mesh"].into_iter().chain(line.split(' ')).collect();
    assert_eq!(codedgrad(folder.path(), &arguments).status.code(), Some(0));
    let absent = line.replace("ranks.csv", "absent.csv");
    refused_by(folder.path(), &absent, &["absent.csv", "No such file"]);
    let preset = line.replace("ranks.csv", "hotspot");
    refused_by(folder.path(), &preset, &["a preset has no ranks", "--delays hotspot --workers 2"]);
    let nowhere = line.replace("cells.csv", "absent/cells.csv");
    let arguments: Vec<&str> = ["mesh"].into_iter().chain(nowhere.split(' ')).collect();
    let output = codedgrad(folder.path(), &arguments);
    // As of every file that cannot be written.
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write absent/cells.csv"));
}

#[test]
fn layouts_that_do_not_fit_are_refused_with_what_would() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (line, needles) in [
        ("--world 100 --tp 2 --pp 8", &["tp x cp x pp = 16", "96 and 112"][..]),
        (
            "--order tp-cp-ep-pp-dp --tp 2 --pp 2 --ep 8 --etp 1 --world 16",
            &["[0, 2]", "[0, 8]", "take order tp-cp-ep-dp-pp"],
        ),
        ("--world 12 --ep 3 --experts 8", &["8 experts", "ep = 3", "6 and 9"]),
        ("--world 8 --node 0", &["--node", "0 is not in 1..="]),
        ("--world 0", &["--world", "0 is not in 1..="]),
        ("--world 2e6", &["2000000 is not in 1..=1048576"]),
        ("--world eight", &["\"eight\" is no whole number"]),
        ("--world 8 --late-rank 2", &["\"2\" is no share of the steps"]),
        ("--world 8 --late-rank -0.1", &["a number from 0 to 1 is needed"]),
        ("--world 8 --late-rank nan", &["a number from 0 to 1 is needed"]),
        ("--world 8 --order dp-tp", &["no order of axes", "tp-cp-ep-dp-pp or tp-cp-ep-pp-dp"]),
        ("--world 8 --out cells.csv", &["--delays <FILE>"]),
        ("--world 8 --delays ranks.csv", &["--out <FILE>"]),
        ("--tp 2", &["--world <RANKS>"]),
    ] {
        refused_by(folder, line, needles);
    }
}

/// A million lines stream: they are not held.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "writes 23 MB: cargo test -p codedgrad-cli --test commands mesh -- --ignored"]
fn a_million_lines_do_not_fill_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = File::create(folder.path().join("ranks.csv")).unwrap();
    let lines = "0.125,0.25,1,2\n".repeat(1000);
    for _ in 0..1000 {
        file.write_all(lines.as_bytes()).unwrap();
    }
    // In KiB, of address space.
    let line = "ulimit -v 300000; exec \"$0\" mesh --world 4 --tp 2 --delays ranks.csv --out c.csv";
    let output = Command::new("sh")
        .args(["-c", line, env!("CARGO_BIN_EXE_codedgrad")])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let cells = fs::read_to_string(folder.path().join("c.csv")).unwrap();
    assert_eq!((cells.lines().count(), cells.lines().last()), (1_000_000, Some("0.25,2")));
}
