//! Two processes for one worker.

use super::{PLAN, WORKERS, count_faults, last_words};
use crate::coordinated::{Run, uncoded};
use crate::processes::wait_for;
use std::collections::BTreeSet;

const STEPS: &str = "1500";
/// Exit status of a process that another one has replaced.
const REPLACED: i32 = 4;

/// A worker that hangs is replaced by starting its command again, and wakes up.
#[test]
fn a_process_that_is_replaced_ends() {
    let expected = uncoded("4", STEPS);
    for exchange in ["star", "sharded"] {
        let mut run = Run::start(STEPS, &format!("{PLAN} --exchange {exchange}"));
        let mut workers = run.workers(WORKERS, "");
        run.wait_for_steps(10);
        workers[1].signal("-STOP");
        let mut successor = run.process("successor", "", &[("CODEDGRAD_WORKER", "1")]);
        wait_for("the successor", || {
            successor.said().contains("joined again (join 2)").then_some(())
        });
        let steps = super::lines(&run.record()).len();
        run.wait_for_steps(steps + 10);
        workers[1].signal("-CONT");
        assert_eq!(workers[1].ends(), Some(REPLACED), "{exchange}: {}", last_words(&workers[1]));
        assert!(workers[1].said().contains("replaced"), "{exchange}: {}", last_words(&workers[1]));
        let summary = run.finishes(&mut []);
        assert_eq!(successor.ends(), Some(0), "{exchange}: {}", last_words(&successor));
        let others = workers.iter_mut().enumerate().filter(|(number, _)| *number != 1);
        others.for_each(|(number, worker)| {
            assert_eq!(
                worker.ends(),
                Some(0),
                "{exchange}: worker {number}: {}",
                last_words(worker)
            );
        });
        let lost: usize = (0..WORKERS).map(|worker| count_faults(&summary, worker, "lost")).sum();
        assert!((1..=4).contains(&lost), "{exchange}: {lost} losses: {}", summary["faults"]);
        run.has_trained(&expected, exchange);
    }
}

/// Who has asked for no number takes one that is free.
#[test]
fn workers_without_a_number_are_given_one() {
    let mut run = Run::start("20", PLAN);
    let names = ["first", "second", "third"];
    let mut unnumbered = names.map(|name| run.process(name, "", &[]));
    let given = || {
        let number = |name: &str| {
            let said = std::fs::read_to_string(run.folder.path().join(format!("{name}.err")));
            let said = said.ok()?;
            let (_, rest) = said.split_once("worker ")?;
            rest.split_once(" of 4")?.0.parse::<usize>().ok()
        };
        names.iter().map(|name| number(name)).collect::<Option<BTreeSet<usize>>>()
    };
    let taken = wait_for("their numbers", given);
    assert_eq!(taken.len(), 3, "{taken:?}");
    let left = (0..WORKERS).find(|number| !taken.contains(number)).unwrap();
    let mut others = [run.worker(left, "")];
    let summary = run.finishes(&mut others);
    assert!(unnumbered.iter_mut().all(|worker| worker.ends() == Some(0)));
    assert_eq!(summary["faults"], serde_json::json!([]), "no worker is lost");
}
