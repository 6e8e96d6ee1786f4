//! What cannot be mended by starting workers again, and runs of which steps were refused.

use crate::launched::{Launched, worker};
use serde_json::Value;

const RUN: [(&str, &str); 2] = [("STEPS", "20"), ("PAUSE_MS", "5")];

/// How often the worker of this number was started.
fn lives(launched: &Launched, number: u32) -> usize {
    launched.text(&format!("run/worker-{number}.log")).matches("epoch ").count()
}

#[test]
fn where_one_worker_differs_the_run_ends_at_once_and_names_it() {
    let run = [RUN[0], RUN[1], ("DIFFERS", "2")];
    for scheme in ["uncoded", "groups:s=1"] {
        let flags = format!("-n 4 --scheme {scheme} --out run");
        let mut launched = Launched::start(&flags, &run);
        assert_eq!(launched.ends(), Some(1), "{}", launched.said());
        let words =
            "nothing is trained: worker 2 differs in steps (21, not 20); workers 0, 1, 3 agree";
        assert!(launched.said().contains(words), "{}", launched.said());
        assert!((0..4).all(|number| lives(&launched, number) <= 1), "no worker is started again");
    }
}

#[test]
fn who_says_that_it_cannot_join_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"if [ "$CODEDGRAD_WORKER" = 1 ]; then
            echo "epoch $CODEDGRAD_EPOCH"
            printf 'failed\nunits is 0: it must be 1 or more\n' > "$CODEDGRAD_FINAL"
            exit 1
        fi
        exec "$@""#;
    let program = ["sh", "-c", script, "sh"].map(str::to_owned);
    let program: Vec<String> = program.into_iter().chain(worker()).collect();
    let flags = "-n 3 --scheme groups:s=1 --out run";
    let mut launched = Launched::start_program(folder.path(), "it", flags, &program, &RUN);
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    let said = launched.said();
    let words = "error: nothing is trained: worker 1 cannot join: units is 0: it must be 1 or more";
    assert!(said.contains(words), "{said}");
    assert!(said.contains("worker 1 ended with status 1, and is not started again: "), "{said}");
    assert_eq!(lives(&launched, 1), 1);
}

#[test]
fn a_run_says_at_its_end_which_steps_were_refused() {
    let run = [RUN[0], RUN[1], ("NAN_FROM", "15")];
    let mut launched = Launched::start("-n 2 --scheme uncoded --out run", &run);
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    let words = "5 of 20 steps were refused (first: step 15)";
    assert!(launched.said().contains(words), "{}", launched.said());
    let plan: Value = serde_json::from_str(&launched.text("run/serve.json")).unwrap();
    assert_eq!(plan["give_up_after"], 0);
    let mut launched = Launched::start("-n 2 --scheme uncoded --out run --give-up-after 3", &run);
    assert_eq!(launched.ends(), Some(1), "{}", launched.said());
    let said = launched.said();
    let why = "steps 15 to 17 had non-finite gradients: the run was aborted by --give-up-after 3";
    assert!(said.contains(why), "{said}");
    assert!(said.contains("3 of 18 steps were refused (first: step 15)"), "{said}");
    assert_eq!(launched.steps(), (0..18).collect::<Vec<u64>>());
}
