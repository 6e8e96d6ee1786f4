//! What becomes of a run whose files cannot be written to the end.

use crate::launched::{Launched, worker};
use serde_json::Value;

const RUN: [(&str, &str); 2] = [("STEPS", "60"), ("PAUSE_MS", "5")];
const FLAGS: &str = "-n 2 --scheme groups:s=1 --out run";

#[test]
fn training_goes_on_without_its_record_and_the_status_tells() {
    let folder = tempfile::tempdir().unwrap();
    let mut launched = Launched::start_limited(folder.path(), 16, FLAGS, &RUN);
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    let (said, steps) = (launched.said(), launched.steps());
    let first = steps.len() as u64;
    assert!((1..60).contains(&first), "{first} steps are recorded: {said}");
    assert_eq!(steps, (0..first).collect::<Vec<u64>>());
    assert!(launched.text("run/run.jsonl").ends_with('\n'), "the last line is whole");
    let words = format!("not recorded from step {first} on");
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(flat.matches(&words).count(), 1, "{said}");
    let summary: Value = serde_json::from_str(&launched.text("run/summary.json")).unwrap();
    assert_eq!(summary["not_recorded_from"], first);
    assert_eq!((&summary["steps"], &summary["complete"]), (&60.into(), &true.into()));
    let end = format!("ends with {}", crate::worker::alone(60));
    assert!(launched.text("run/worker-0.log").contains(&end), "it was trained to its end");
}

#[test]
fn a_summary_that_cannot_be_written_makes_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mkdir -p run/summary.json; exec \"$@\"";
    let program = ["sh", "-c", script, "sh"].map(str::to_owned).into_iter().chain(worker());
    let program: Vec<String> = program.collect();
    let mut launched = Launched::start_program(folder.path(), "it", FLAGS, &program, &RUN);
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    let said = launched.said();
    assert!(said.contains("cannot write") && said.contains("summary.json"), "{said}");
}
