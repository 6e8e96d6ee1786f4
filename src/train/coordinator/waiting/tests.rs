//! How long a coordinator waits for which workers.

#![cfg(test)]

use super::*;

fn round(seconds: f64, arrivals: &[Option<f64>]) -> RoundRecord {
    RoundRecord {
        round: 0,
        opened: 0.0,
        seconds,
        arrivals: arrivals.to_vec(),
        delays: Vec::new(),
        erased: Vec::new(),
        work: 1.0,
    }
}

fn waiting(missing: &[u32], needed: &[u32], enough: &[u32]) -> WaitingRound {
    let workers = |numbers: &[u32]| numbers.iter().map(|worker| Worker(*worker)).collect();
    let of_missing =
        |worker: &u32| MissingWorker { worker: Worker(*worker), order_seconds: Some(8.0) };
    WaitingRound {
        step: 166,
        round: 170,
        open_seconds: 8.25,
        usual_seconds: Some(1.0),
        workers: 12,
        summing: false,
        missing: missing.iter().map(of_missing).collect(),
        needed: workers(needed),
        enough: workers(enough),
        needs_return: false,
        ends_within_seconds: None,
    }
}

#[test]
fn an_open_round_says_whom_it_needs() {
    let needs = waiting(&[1], &[1], &[1]);
    let known = |worker: Worker| (worker == Worker(1)).then(|| "silent 8.2 s".into());
    assert_eq!(
        needs.words(known),
        "step 166 open for 8.2 s: 11 of 12 answered, needs worker 1 (silent 8.2 s)"
    );
    let lost = WaitingRound { ends_within_seconds: Some(29.6), ..needs };
    let end = "needs worker 1; unless a lost worker comes back, the run ends in 30 s";
    assert!(lost.to_string().ends_with(end), "{lost}");
    let several = waiting(&[4, 5, 6], &[], &[4, 5]).to_string();
    assert!(several.ends_with("9 of 12 answered, any one of workers 4, 5 would do"));
    assert!(waiting(&[3], &[], &[3]).to_string().ends_with("worker 3 would do"));
    let sum = WaitingRound { summing: true, ..waiting(&[0, 1], &[], &[]) };
    assert_eq!(
        sum.words(known),
        "step 166 open for 8.2 s: its sum is not held by workers 0, 1 (silent 8.2 s)"
    );
    let all: Vec<u32> = (0..10).collect();
    let many = waiting(&all, &[], &[]).to_string();
    assert!(many.ends_with("without workers 0, 1, 2, 3, 4, 5, 6, 7, 2 more"), "{many}");
}

#[test]
fn a_round_is_stuck_once_and_a_trainer_hangs_by_what_is_usual() {
    let mut watchdog = Watchdog::new(3);
    assert!(!watchdog.gets_stuck(4.75, 14.75) && watchdog.gets_stuck(5.25, 15.25));
    assert!(!watchdog.gets_stuck(9.0, 19.0), "said once");
    watchdog.closed(&round(9.0, &[Some(9.0), None, None]));
    assert_eq!((watchdog.goes_on(20.0), watchdog.goes_on(21.0)), (Some(10.0), None));
    for _ in 0..USUAL_OF {
        watchdog.closed(&round(4.0, &[Some(3.5), Some(4.0), None]));
    }
    assert!(!watchdog.gets_stuck(39.0, 90.0) && watchdog.gets_stuck(41.0, 92.0));
    watchdog.abandoned(Worker(2), 100.0);
    watchdog.abandoned(Worker(2), 150.0);
    assert_eq!(watchdog.hanging(179.0), None, "20 usual answers of 4 s");
    assert_eq!(watchdog.hanging(181.0), Some((Worker(2), HANGS)));
    watchdog.heard(Worker(2));
    assert_eq!(watchdog.hanging(1e9), None);
}

#[test]
fn a_worker_that_stays_beyond_its_notice_is_given_up() {
    let mut watchdog = Watchdog::new(2);
    assert!(watchdog.leaves(Worker(1), 20.0));
    assert!(!watchdog.leaves(Worker(1), 90.0), "it is said once");
    watchdog.heard(Worker(1));
    assert_eq!(watchdog.hanging(20.0 + OVER_NOTICE), None);
    assert_eq!(watchdog.hanging(20.1 + OVER_NOTICE), Some((Worker(1), STAYS)));
    watchdog.lost(Worker(1));
    assert_eq!(watchdog.hanging(1e9), None);
}
