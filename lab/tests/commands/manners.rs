//! What the programs owe to whoever runs them: exit statuses that tell how they ended, and streams
//! that may close or be full.

use crate::coordinated::LAB;
use crate::program::{
    LAB_COMMANDS, MODEL, check_help, codedgrad, command, flags, json, json_of, program_of, refused,
    text,
};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

/// A small model on a clock on which no worker waits.
static SMALL: LazyLock<Vec<&str>> =
    LazyLock::new(|| flags(&["--clock virtual --workers 4", MODEL]));

fn train(folder: &Path, arguments: &str) -> Output {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    codedgrad(folder, &[&["train"], &SMALL[..], &arguments].concat())
}

#[test]
fn a_run_that_diverges_fails_and_says_so_first() {
    let folder = tempfile::tempdir().unwrap();
    let wild = "--scheme groups:s=1 --compare uncoded --learning-rate 1e9";
    let given_up = train(folder.path(), &format!("{wild} --steps 30 --out given-up"));
    let said = text(&given_up.stderr);
    assert_eq!(given_up.status.code(), Some(1), "{said}");
    let why = "error: uncoded has diverged: steps 1 to 5 were refused";
    assert!(said.contains(why), "{said}");
    assert!(!text(&given_up.stdout).contains("faster"), "{}", text(&given_up.stdout));

    // As many as are asked for, and never where none is.
    let later = train(folder.path(), &format!("{wild} --steps 30 --give-up-after 9 --out later"));
    assert!(text(&later.stderr).contains("steps 1 to 9 were refused"), "{}", text(&later.stderr));
    let wilder = wild.replace("1e9", "1e38");
    let never = train(folder.path(), &format!("{wilder} --steps 9 --give-up-after 0 --out never"));
    let (printed, said) = (text(&never.stdout), text(&never.stderr));
    assert_eq!(never.status.code(), Some(1), "{said}");
    let verdict = "uncoded, groups:s=1 diverged: the validation loss is not a number";
    let table = printed.split_once("\n\n").unwrap().1;
    assert!(table.starts_with(verdict), "{printed}");
    assert!(!printed.contains("faster") && !printed.contains("bit for bit"), "{printed}");
    assert!(said.contains(&format!("error: {verdict}")), "{said}");
}

#[test]
fn nobody_is_faster_by_steps_that_were_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fault = "--scheme uncoded --compare groups:s=1 --steps 6 --fault nan@2:1 --out run";
    let output = train(folder.path(), fault);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(printed.contains("1 of 6 steps of uncoded was refused."), "{printed}");
    let summary = fs::read_to_string(folder.path().join("run/summary.json")).unwrap();
    assert!(summary.contains("\"speedup\": null"), "{summary}");
    assert!(!printed.contains("faster") && !printed.contains("slower"), "{printed}");
}

#[test]
fn three_schemes_are_compared_with_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(
        folder.path(),
        "--scheme groups:s=1 --compare uncoded --compare queue:m=2 --steps 4 --json --out run",
    );
    let summary = json(&output);
    let schemes: Vec<&str> =
        (0..3).filter_map(|run| summary["runs"][run]["scheme"].as_str()).collect();
    assert_eq!(schemes, ["uncoded", "queue:m=2", "groups:s=1"]);
    let both = ["train", "--scheme", "groups:s=1", "--compare", "uncoded,queue:m=2"];
    refused(folder.path(), &both, &["give every scheme a --compare of its own"]);
}

/// A code that claims too much: worker 1 alone holds the second share.
const FALSE_CLAIM: &str = "1,0\n0,1\n1,0\n";

#[test]
fn a_claim_that_does_not_hold_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.csv"), FALSE_CLAIM).unwrap();
    let verify = ["code", "matrix:m.csv,s=1", "--workers", "3", "--verify"];
    let output = codedgrad(folder.path(), &verify);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("it claims to tolerate any 1 straggler"), "{printed}");
    assert!(text(&output.stderr).contains("does not tolerate what it claims"));
    let shown = json_of(&codedgrad(folder.path(), &[&verify[..], &["--json"]].concat()), 1);
    assert_eq!(shown["verified"]["failed"], 1);
    // No command works with it.
    for line in [
        "train --scheme matrix:m.csv,s=1 --workers 3",
        "serve --scheme matrix:m.csv,s=1 --workers 3",
        "simulate matrix:m.csv,s=1 --workers 3 --delays hotspot --jobs 9",
        "plan --also matrix:m.csv,s=1 --workers 3 --delays hotspot",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        refused(folder.path(), &arguments, &["matrix:m.csv,s=1", "without worker"]);
    }
    assert!(!folder.path().join("runs").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let small = SMALL.join(" ");
    let lines = [
        format!("train {small} --steps 2 --json --out json"),
        format!("train {small} --steps 2 --out words"),
        "plan --delays hotspot --rounds 20".into(),
        "simulate groups:s=1 --delays hotspot --jobs 20 --grid".into(),
        "code groups:s=1 --workers 8".into(),
        "trace stats hotspot".into(),
    ];
    for line in lines {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = command(&line.split(' ').collect::<Vec<_>>());
        command.current_dir(folder.path()).stdout(full);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        let why = "error: cannot write to standard output: No space left on device";
        assert!(said.contains(why) && !said.contains("panicked"), "{line}: {said}");
    }
    // A run trained before its output failed is kept; one that was not begun leaves nothing.
    assert!(folder.path().join("json/summary.json").exists());
    assert!(!folder.path().join("words").exists());
}

#[cfg(unix)]
#[test]
fn a_closed_standard_output_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let small = SMALL.join(" ");
    for line in [
        format!("train {small} --steps 2 --out run"),
        "plan --delays hotspot --rounds 20".into(),
        "simulate groups:s=1 --delays hotspot --jobs 3000 --grid".into(),
        "code groups:s=1 --workers 40".into(),
    ] {
        let script = "\"$0\" \"$@\" 2> said; echo $? > status";
        let mut command = Command::new("sh");
        let words: Vec<&str> = line.split(' ').collect();
        command.args(["-c", &format!("{{ {script}; }} | true")]).arg(program_of(&words));
        command.args(words).current_dir(folder.path());
        assert!(command.status().unwrap().success());
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let said = read("said");
        assert_eq!(read("status").trim(), "0", "{line}: {said}");
        assert!(!said.contains("panicked") && !said.contains("error"), "{line}: {said}");
    }
    // Who reads the beginning of a run only does not end it.
    assert!(folder.path().join("run/summary.json").exists());
}

/// How a run ended counts for more than a failure to show it: Ctrl-C ends `tee` as well.
#[cfg(unix)]
#[test]
fn nobody_listening_makes_no_failure_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let status_of = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{{ {script}; }} | true"), LAB]);
        assert!(command.current_dir(folder.path()).status().unwrap().success());
        fs::read_to_string(folder.path().join("status")).unwrap().trim().to_owned()
    };
    let small = SMALL.join(" ");
    let run = format!("\"$0\" train {small} --scheme uncoded 2> said");
    let wild = "--steps 9 --learning-rate 1e38 --give-up-after 0 --out wild";
    assert_eq!(status_of(&format!("{run} {wild}; echo $? > status")), "1");
    let endless = "--steps 100000 --out endless";
    let script = format!(
        "{run} {endless} & until [ -s endless/run.jsonl ]; do sleep 0.1; done; kill -TERM $!; \
         wait $!; echo $? > status"
    );
    assert_eq!(status_of(&script), "143");
    let full =
        Command::new("sh").args(["-c", "\"$0\" --version > /dev/full", LAB]).output().unwrap();
    assert_eq!(full.status.code(), Some(1), "{}", text(&full.stderr));
}

#[test]
fn it_says_as_much_as_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let said = |arguments: &str| {
        let output = train(folder.path(), &format!("--steps 4 --scheme groups:s=1 {arguments}"));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (printed, progress) = said("--out usual");
    assert!(printed.starts_with("4 workers, 4 steps") && progress.contains("step 4/4"));
    let (printed, progress) = said("-q --out quiet");
    assert!(printed.trim_start().starts_with("s/step"), "the table alone: {printed}");
    assert_eq!(progress, "");
    let (_, introduced) = said("--json --out json");
    assert!(introduced.starts_with("4 workers, 4 steps"), "{introduced}");
    assert!(!introduced.contains("INFO"), "{introduced}");
    let (printed, progress) = said("--json --quiet --out silent");
    assert!(printed.starts_with('{'), "{printed}");
    assert_eq!(progress, "");
    let plan = codedgrad(folder.path(), &["plan", "-q", "--delays", "hotspot", "--rounds", "30"]);
    assert_eq!(text(&plan.stderr), "", "notes are no warnings");
    refused(folder.path(), &["train", "-q", "-v"], &["cannot be used with"]);
    let mut command = command(&["code", "groups:s=1", "--workers", "4"]);
    command.env("RUST_LOG", "codedgrad=loud,,");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("RUST_LOG=codedgrad=loud"));
}

#[test]
fn help_fits_the_terminal() {
    check_help(&LAB_COMMANDS);
}
