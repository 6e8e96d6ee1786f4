//! Two processes for one worker.

use super::{Outcome, WORKERS, count_faults, last_words, plan, write_delays};
use crate::coordinated::Run;
use crate::processes::{Kept, wait_for};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const STEPS: &str = "250";
/// Exit status of a process that another one has replaced.
const REPLACED: i32 = 4;

/// A worker that hangs is replaced by starting its command again, and wakes up.
#[test]
fn a_process_that_is_replaced_ends() {
    let expected = Outcome::without_faults(&plan(STEPS));
    for exchange in ["star", "sharded"] {
        let folder = tempfile::tempdir().unwrap();
        write_delays(folder.path(), [[0.0, 0.008]; WORKERS], &mut ChaCha8Rng::seed_from_u64(1));
        let own = ["--exchange", exchange, "--delays", "delays.csv"];
        let mut run = Run::start_at(folder, &[&plan(STEPS)[..], &own].concat());
        let mut workers = run.workers(WORKERS, &[]);
        run.wait_for_steps(10);
        workers[1].signal("-STOP");
        let again = ["worker", "--join", &run.address, "--worker", "1", "--token", "run/token"];
        let mut successor = Kept::start(run.folder.path(), "successor", &again);
        wait_for("the successor", || {
            successor.said().contains("joined again (join 2)").then_some(())
        });
        let steps = super::lines(&run.record()).len();
        run.wait_for_steps(steps + 10);
        workers[1].signal("-CONT");
        assert_eq!(workers[1].ends(), Some(REPLACED), "{exchange}: {}", last_words(&workers[1]));
        assert!(workers[1].said().contains("replaced"), "{exchange}: {}", last_words(&workers[1]));
        let summary = run.finishes();
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
        expected.check(&run, exchange);
    }
}

/// Nobody has asked for a number, so nothing says that the second one is to replace the first.
#[test]
fn a_name_that_is_taken_is_refused() {
    let mut run = Run::start_in_real_time(&plan("20"));
    let by_name = ["worker", "--join", &run.address, "--identity", "twin", "--token", "run/token"];
    let mut first = Kept::start(run.folder.path(), "first", &by_name);
    wait_for("the first one", || first.said().contains(": joined").then_some(()));
    let mut second = Kept::start(run.folder.path(), "second", &by_name);
    assert_eq!(second.ends(), Some(2), "{}", last_words(&second));
    assert!(
        second.said().contains("the coordinator refuses") && second.said().contains("\"twin\""),
        "{}",
        last_words(&second)
    );
    let mut others: Vec<Kept> = (0..WORKERS)
        .filter(|number| !first.said().contains(&format!("worker {number} of")))
        .map(|number| run.worker(number, &[]))
        .collect();
    let summary = run.finishes();
    assert_eq!(first.ends(), Some(0), "{}", last_words(&first));
    assert!(others.iter_mut().all(|worker| worker.ends() == Some(0)));
    assert_eq!(summary["faults"], serde_json::json!([]), "nobody is lost");
}
