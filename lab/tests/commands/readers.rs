//! What is no file to read where a file is named: every command looks first, says which file it is
//! and what is wrong with it, and waits for nothing.
#![cfg(unix)]

use crate::coordinated::Run;
use crate::processes::{lines, wait_for};
use crate::program::{MODEL, codedgrad, flags, json, program_of, text};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What stands at a file's path.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    /// No process writes to it.
    Pipe,
    Folder,
    /// By a link.
    Endless,
    /// Of 4 GiB, none of which takes room on the disk.
    Sparse,
}

impl Found {
    fn put(self, path: &Path) {
        let _ = fs::remove_file(path);
        match self {
            Self::Pipe => pipe(path),
            Self::Folder => fs::create_dir(path).unwrap(),
            Self::Endless => symlink("/dev/zero", path).unwrap(),
            Self::Sparse => File::create(path).unwrap().set_len(4 << 30).unwrap(),
        }
    }

    /// What an error says of it.
    fn words(self) -> &'static str {
        match self {
            Self::Pipe => "it is a pipe, where a regular file is needed",
            Self::Folder => "it is a folder, where a regular file is needed",
            Self::Endless => "it is a device or a socket, where a regular file is needed",
            Self::Sparse => " bytes",
        }
    }
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Starts a command with 3 GB of addresses: what reads without end fails, and leaves others theirs.
fn start(folder: &Path, line: &str) -> Child {
    let mut command = Command::new("sh");
    let (mut variables, words): (Vec<&str>, Vec<&str>) =
        line.split(' ').partition(|word| word.starts_with("CODEDGRAD_"));
    variables.extend(["CODEDGRAD_ADDRESS=127.0.0.1:1", "CODEDGRAD_WORKER=0"]);
    command.args(["-c", "ulimit -v 3000000; exec \"$0\" \"$@\""]).arg(program_of(&words));
    command.args(words).current_dir(folder).env("RUST_BACKTRACE", "0");
    command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
    let file = |name: &str| File::create(folder.join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(file("said.out")).stderr(file("said.err"));
    command.spawn().unwrap()
}

/// Its exit status, and what it said. One that does not end is ended, and fails the test.
fn ended(mut child: Child, folder: &Path, line: &str) -> (Option<i32>, String) {
    let mut looks = 0;
    let status = wait_for(line, || {
        looks += 1;
        // Half a minute or more, as `wait_for` looks.
        let late = looks > 6000;
        if late {
            child.kill().unwrap();
        }
        let status = child.try_wait().unwrap();
        assert!(!late, "`{line}` does not end");
        status
    });
    (status.code(), fs::read_to_string(folder.join("said.err")).unwrap())
}

/// A folder with all that the commands below read.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let run = "--clock virtual --workers 2 --steps 2 --scheme uncoded --json --out run";
    let arguments = [&["train"], &flags(&[MODEL, run])[..]].concat();
    json(&codedgrad(home.path(), &arguments));
    let output = codedgrad(home.path(), &["keygen", "keys", "--workers", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::create_dir(at("steps")).unwrap();
    let rows = "step,began,forward,first,last,ended\n1,1.0,1.1,1.2,1.3,1.4\n2,2,2.1,2.2,2.3,2.4\n";
    for rank in 0..2 {
        fs::write(at(&format!("steps/rank-{rank}.csv")), format!("# rank {rank} of 2\n{rows}"))
            .unwrap();
    }
    fs::write(at("trace.csv"), "0.1,0.2\n".to_owned() + &"0.3,0.2\n".repeat(29)).unwrap();
    fs::rename(at("run/model-0-uncoded"), at("model")).unwrap();
    home
}

/// Has a command meet each kind of file at a path, in a folder of its own.
fn meets(home: &Path, file: &str, line: &str, kinds: &[Found], words: Option<&str>) {
    let name = Path::new(file).file_name().unwrap().to_str().unwrap();
    let tried = kinds.iter().map(|found| {
        let folder = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-r").arg(home.join(".")).arg(folder.path()).status();
        assert!(copied.unwrap().success());
        found.put(&folder.path().join(file));
        (found, start(folder.path(), line), folder)
    });
    for (found, child, folder) in tried.collect::<Vec<_>>() {
        let (status, said) = ended(child, folder.path(), line);
        // Long lines are wrapped.
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(status, Some(2), "{line}: {found:?}: {said}");
        let words = words.map_or_else(|| vec![name, found.words()], |words| vec![words]);
        assert!(words.iter().all(|it| said.contains(it)), "{line}: {found:?}: {said}");
    }
}

const ALL: [Found; 4] = [Found::Pipe, Found::Folder, Found::Endless, Found::Sparse];

#[test]
fn inputs_are_regular_files_of_a_bounded_length() {
    let home = home();
    for (file, line) in [
        ("bad.csv", "code matrix:bad.csv --workers 2"),
        ("bad.csv", "code interval:speeds=bad.csv,s=0,units=6 --workers 2"),
        ("bad.csv", "train --pool bad.csv"),
        ("bad.csv", "train --pool bad.csv --workers 1..2"),
        ("bad.json", "train --tokenizer bad.json"),
        ("model/config.json", "train --init model"),
        ("bad", "serve --token bad --listen 127.0.0.1:0 --workers 1 --out served"),
        ("bad", "CODEDGRAD_TOKEN_FILE=bad worker --micro-batches 2"),
        ("keys/coordinator.pem", "serve --keys keys --listen 127.0.0.1:0 --workers 1 --out served"),
        ("keys/worker-0.key", "CODEDGRAD_KEYS=keys worker --micro-batches 2"),
        ("steps/rank-0.csv", "doctor steps"),
        ("steps/rank-0.csv", "plan --delays steps"),
    ] {
        meets(home.path(), file, line, &ALL, None);
    }
    // A folder is a corpus too.
    for kind in [Found::Pipe, Found::Endless, Found::Sparse] {
        meets(home.path(), "bad.txt", "train --corpus bad.txt", &[kind], None);
        meets(home.path(), "model/bad.txt", "train --corpus model", &[kind], None);
    }
    let kinds = [Found::Pipe, Found::Folder, Found::Endless];
    meets(home.path(), "model/model.safetensors", "train --init model", &kinds, None);
    let cut = Some("model.safetensors");
    meets(home.path(), "model/model.safetensors", "train --init model", &[Found::Sparse], cut);
}

#[test]
fn what_lies_in_a_runs_folder_or_beside_a_trace_is_looked_at() {
    let home = home();
    let commands = [
        ("run/run.jsonl", &["doctor run", "plan --delays run", "trace record run"][..]),
        ("run/events.jsonl", &["doctor run"]),
        ("run/summary.json", &["doctor run"]),
        ("run/plan.json", &["plan --delays run", "trace record run"]),
        ("trace.csv.names.json", &["doctor trace.csv", "plan --delays trace.csv"]),
        ("trace.csv.names.json", &["trace stats trace.csv"]),
    ];
    for (file, lines) in commands {
        lines.iter().for_each(|line| meets(home.path(), file, line, &ALL, None));
    }
}

#[test]
fn a_run_that_goes_on_looks_at_its_files() {
    let home = home();
    let on = "train --resume run --steps 4 --json";
    meets(home.path(), "run/run.jsonl", on, &ALL, None);
    meets(home.path(), "run/lock", on, &ALL[..3], None);
    meets(home.path(), "run/plan.json", on, &[Found::Sparse], None);
    meets(home.path(), "run/plan.json", on, &ALL[..3], Some("holds no run to resume"));
    // There is no checkpoint before the only one.
    let _ = fs::remove_file(home.path().join("run/checkpoint.before.safetensors"));
    meets(home.path(), "run/checkpoint.safetensors", on, &ALL[..3], None);
    let cut = Some("it is cut or altered");
    meets(home.path(), "run/checkpoint.safetensors", on, &[Found::Sparse], cut);
    // What it adds to cannot be written: status 1.
    for found in &ALL[..3] {
        let folder = tempfile::tempdir().unwrap();
        let copied =
            Command::new("cp").arg("-r").arg(home.path().join(".")).arg(folder.path()).status();
        assert!(copied.unwrap().success());
        found.put(&folder.path().join("run/events.jsonl"));
        let (status, said) = ended(start(folder.path(), on), folder.path(), on);
        assert_eq!(status, Some(1), "{found:?}: {said}");
        assert!(said.contains("cannot open run/events.jsonl") && said.contains(found.words()));
    }
}

/// Commands that read a trace or a table once take it from a pipe too.
#[test]
fn delays_have_a_bound_and_may_come_through_a_pipe() {
    let home = home();
    let rest = &ALL[1..];
    meets(home.path(), "bad.csv", "trace stats bad.csv", rest, None);
    meets(home.path(), "bad.csv", "train --workers 2 --delays bad.csv", &ALL, None);
    meets(home.path(), "bad.csv", "pool uncoded bad.csv --work 8", rest, None);
    meets(home.path(), "bad.csv", "doctor bad.csv", &[Found::Endless], Some("no regular file"));
    meets(home.path(), "bad.csv", "doctor bad.csv", &[Found::Pipe], Some("no regular file"));
    meets(home.path(), "bad.csv", "doctor bad.csv", &[Found::Sparse], None);
    for line in [
        "plan --workers 2 --delays bad.csv",
        "simulate uncoded --jobs 1 --delays bad.csv",
        "mesh --world 2 --delays bad.csv --out cells.csv",
    ] {
        meets(home.path(), "bad.csv", line, &[Found::Endless, Found::Sparse], None);
        meets(home.path(), "bad.csv", line, &[Found::Folder], Some("cannot read"));
    }
    for how in ["", " --long step,rank,ms", " --columns a,b"] {
        meets(home.path(), "bad.csv", &format!("trace import bad.csv{how}"), rest, None);
    }
    let by_pattern = r"trace import bad.csv --pattern (?<round>\d+):(?<worker>\d+):(?<time>\d+)";
    meets(home.path(), "bad.csv", by_pattern, rest, None);

    let table = fs::read(home.path().join("trace.csv")).unwrap();
    for line in [
        "trace stats bad.csv --json",
        "simulate uncoded --jobs 9 --json --delays bad.csv",
        "trace import bad.csv --columns 0.1,0.2",
    ] {
        let by_file = line.replace("bad.csv", "trace.csv");
        let by_file = codedgrad(home.path(), &by_file.split(' ').collect::<Vec<_>>());
        let bad = home.path().join("bad.csv");
        Found::Pipe.put(&bad);
        let child = start(home.path(), line);
        fs::write(&bad, &table).unwrap();
        let (status, said) = ended(child, home.path(), line);
        assert_eq!(status, Some(0), "{line}: {said}");
        let printed = fs::read_to_string(home.path().join("said.out")).unwrap();
        assert_eq!(printed.replace("bad.csv", "trace.csv"), text(&by_file.stdout), "{line}");
    }
    // One that is waited for ends by the first signal.
    Found::Pipe.put(&home.path().join("bad.csv"));
    let child = start(home.path(), "plan --delays bad.csv");
    crate::processes::signal(&child, "-TERM");
    assert_eq!(ended(child, home.path(), "plan").0, None);
}

/// A coordinator never waits for what it reads while it runs.
#[test]
fn a_drain_file_that_is_none_is_ignored_once() {
    let run = Run::start("100000", "--scheme uncoded --workers 3..4");
    let mut workers = run.workers(4, "--patience 1");
    run.wait_for_steps(3);
    let drain = run.folder.path().join("run/drain");
    let goes_on = |found: Found, times: usize| {
        let before = lines(&run.record()).len();
        run.wait_for_steps(before + 10);
        let said = run.coordinator.said();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let ignored = format!("run/drain: this file is ignored: {}", found.words());
        assert_eq!(said.matches(&ignored).count(), times, "{said}");
    };
    Found::Pipe.put(&drain);
    goes_on(Found::Pipe, 1);
    goes_on(Found::Pipe, 1);
    Found::Endless.put(&drain);
    goes_on(Found::Endless, 1);
    fs::remove_file(&drain).unwrap();
    File::create(&drain).unwrap().set_len(4 << 30).unwrap();
    wait_for("the word", || run.coordinator.said().contains("bytes").then_some(()));
    fs::write(&drain, "3\n").unwrap();
    let record = run.folder.path().join("run/events.jsonl");
    wait_for("the drain", || {
        lines(&record).iter().any(|line| line.contains("\"drained\"")).then_some(())
    });
    run.coordinator.signal("-TERM");
    workers.iter_mut().for_each(|worker| assert!(worker.ends().is_some()));
}
