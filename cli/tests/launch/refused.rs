//! Command lines that make no run: exit status 2, and what would be right.

use crate::launched::Launched;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// Sees that a command line is refused with such words, and that nothing is left of it.
fn refused(folder: &Path, flags: &str, program: &[&str], needles: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    command.arg("run").args(flags.split_whitespace()).args(program).current_dir(folder);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{flags} {program:?}: {said}");
    for needle in needles {
        assert!(said.contains(needle), "{flags} {program:?} should say {needle:?}: {said}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let of = |flags: &str, needles: &[&str]| refused(folder.path(), flags, &["true"], needles);
    of("-n 0", &["0 is not in 1..=4096"]);
    of("-n 5000", &["5000"]);
    of("", &["--workers"]);
    of("-n 2 --scheem auto", &["--scheem", "--scheme"]);
    of("-n 2 --scheme gruops:s=1", &["did you mean", "groups:s=1"]);
    of("-n 8 --scheme bacc:K=2,s=1", &["mixes the data of several units"]);
    of("-n 2 --nodes 2", &["--node"]);
    of("-n 2 --nodes 2 --node 2 --keys k --join a:1", &["--node 2", "0 to 1"]);
    of("-n 2 --nodes 3 --node 0", &["--nodes 3", "2 workers"]);
    of("-n 2 --nodes 2 --node 1 --join a:1", &["--keys"]);
    of("-n 2 --nodes 2 --node 1 --keys k", &["--join"]);
    of("-n 2 --nodes 2 --node 0 --keys k", &["--listen"]);
    of("-n 2 --nodes 2 --node 1 --keys k --join a:1 --listen a:1", &["--listen is for node 0"]);
    of("-n 2 --nodes 2 --node 1 --keys nowhere --join a:1", &["nowhere"]);
    of("-n 2 --listen 0.0.0.0:0", &["--keys"]);
    of("-n 2 --listen nowhere", &["\"nowhere\" is no address"]);
    of("-n 2..4 --exchange nccl", &["--exchange nccl", "MIN..MAX"]);
    of("-n 2 --exchange nccl --wire bf16", &["--exchange nccl", "--wire bf16"]);
    of("-n 2 --scheme auto:probe=10,every=10", &["probe=10 is not from 1 to 9"]);
    of("-n 2 --python nowhere/python -m module", &["nowhere/python"]);
    let missing = |program: &[&str], needle: &str| {
        refused(folder.path(), "-n 2", program, &[needle]);
    };
    missing(&["train.py"], "train.py is not there");
    missing(&["./train"], "./train is not there");
    missing(&["no-such-program"], "no-such-program is in no folder of PATH");
    missing(&[], "PROGRAM");
    fs::write(folder.path().join("here"), "").unwrap();
    missing(&["here"], "write ./here");
    missing(&["./here"], "./here is not executable (chmod +x, or");
    missing(&["/usr/bin"], "/usr/bin is a folder, and no program: the program cannot be started");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap()).collect();
    let left: Vec<_> = left.iter().map(fs::DirEntry::file_name).filter(|it| it != "runs").collect();
    assert_eq!(left, ["here"]);
}

#[test]
fn a_port_and_a_folder_have_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("-n 2 --listen {}", taken.local_addr().unwrap());
    refused(folder.path(), &listen, &["true"], &["in use"]);
    let metrics = format!("-n 2 --metrics {}", taken.local_addr().unwrap());
    refused(folder.path(), &metrics, &["true"], &["--metrics 127.0.0.1:", "in use"]);
    let run = [("STEPS", "100000"), ("PAUSE_MS", "20")];
    let launched = Launched::start_in(folder.path(), "first", "-n 2 --out run", &run);
    launched.waits_for_steps(2);
    refused(folder.path(), "-n 2 --out run", &["true"], &["run holds a run already", "--force"]);
    refused(folder.path(), "-n 2 --out run --force", &["true"], &["in use by process"]);
    assert!(launched.steps().len() >= 2, "the first goes on");
}

#[test]
fn modules_and_scripts_are_pythons() {
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python.sh");
    fs::write(&python, "#!/bin/sh\necho \"python $*\"\n").unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&python).status().unwrap().success());
    fs::write(folder.path().join("train.py"), "").unwrap();
    let printed = |program: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
        command.args(["run", "-n", "1", "--python", "./python.sh"]).args(program);
        let output = command.current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "no worker joins");
        String::from_utf8(output.stdout).unwrap()
    };
    let script = ["train.py", "--lr", "1", "-n", "7", "--", "--help"];
    assert_eq!(printed(&script), "[0] python train.py --lr 1 -n 7 -- --help\n");
    assert_eq!(printed(&["--", "train.py", "-m"]), "[0] python train.py -m\n");
    let module = ["-m", "some.module", "--scheme", "x", "-n", "7"];
    assert_eq!(printed(&module), "[0] python -m some.module --scheme x -n 7\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    command.args(["run", "-n", "1", "--python", "./python.sh"]).args(module);
    let said = command.current_dir(folder.path()).output().unwrap().stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("note: --scheme stands behind some.module"), "{said}");
}
