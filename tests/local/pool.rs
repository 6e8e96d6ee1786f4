//! A run replayed over workers that come and go, against whole outputs of two independent models
//! and rounds counted by hand.

use codedgrad::sim::{Pool, PoolError, PoolOutcome, PoolRules, replay};

/// Times in milliseconds.
fn pool(rows: &[(u64, usize)]) -> Pool {
    let mut pool = Pool::default();
    rows.iter().for_each(|(at, workers)| pool.push(*at, *workers).unwrap());
    pool
}

/// Uncoded, one worker takes two seconds.
fn rules(sync: u64, end: u64) -> PoolRules {
    PoolRules { work: 2000, stragglers: 0, detect: 0, sync, restart: None, end, seed: 1 }
}

/// Steps, rounds begun again, milliseconds lost, plans.
fn counts(rows: &[(u64, usize)], rules: PoolRules) -> [u64; 4] {
    let PoolOutcome { steps, aborted, lost, plans, .. } = replay(&pool(rows), &rules).unwrap();
    [steps, aborted, lost, plans]
}

#[test]
fn two_independent_models_agree() {
    let rows = include_str!("../../examples/traces/pool.csv").lines().skip(1);
    let rows: Vec<(u64, usize)> = rows
        .map(|row| row.split_once(',').unwrap())
        .map(|(at, workers)| (1000 * at.parse::<u64>().unwrap(), workers.parse().unwrap()))
        .collect();
    let runs = include_str!("../data/simulator/pool.csv").lines().skip(1);
    for run in runs.clone() {
        let mut cells = run.split(',');
        let mut next = || cells.next().unwrap();
        let rules = PoolRules {
            work: next().parse().unwrap(),
            stragglers: next().parse().unwrap(),
            detect: next().parse().unwrap(),
            sync: 30_000,
            restart: next().parse().ok(),
            end: 7_200_000,
            seed: 1,
        };
        let expected = PoolOutcome {
            steps: next().parse().unwrap(),
            aborted: next().parse().unwrap(),
            lost: next().parse().unwrap(),
            plans: next().parse().unwrap(),
            goodput: Some(next().parse().unwrap()),
        };
        assert_eq!(replay(&pool(&rows), &rules).unwrap(), expected, "{run}");
    }
    assert_eq!(runs.count(), 12);
}

#[test]
fn a_pool_may_be_empty_for_a_while() {
    // Two rounds; the third is lost after half a second; both are ready again at 11 s.
    let rows = [(0, 2), (2500, 0), (10_000, 2)];
    assert_eq!(counts(&rows, rules(1000, 13_000)), [4, 1, 500, 1]);
    let found = replay(&pool(&rows), &rules(1000, 13_000)).unwrap();
    assert_eq!(found.goodput, Some(0.727273), "8 s of 11 s");
    // They are the members of before: nothing is planned, and nothing started again.
    let restart = PoolRules { restart: Some(5000), ..rules(1000, 13_000) };
    assert_eq!(counts(&rows, restart), [4, 1, 500, 1]);
    // No worker comes back, or none is there yet.
    assert_eq!(counts(&[(0, 2), (2500, 0)], rules(0, 9000)), [2, 1, 500, 1]);
    let late = replay(&pool(&[(5000, 2)]), &rules(0, 4000)).unwrap();
    assert_eq!(late, PoolOutcome::default(), "without a goodput");
    assert_eq!(counts(&[(5000, 2)], rules(1000, 8000)), [2, 0, 0, 1]);
}

#[test]
fn a_row_at_the_end_of_a_round_belongs_to_the_next() {
    assert_eq!(counts(&[(0, 2), (1000, 1)], rules(0, 4000)), [2, 0, 0, 2]);
    assert_eq!(counts(&[(0, 2), (999, 1)], rules(0, 4000)), [1, 1, 999, 2]);
    assert_eq!(counts(&[(0, 2), (1000, 4)], rules(0, 2000)), [3, 0, 0, 2]);
}

#[test]
fn a_replay_may_end_before_the_last_row() {
    assert_eq!(counts(&[(0, 2), (3000, 1), (9000, 4)], rules(0, 2500)), [2, 0, 0, 1]);
    // The round that is under way at the end is followed to its own.
    assert_eq!(counts(&[(0, 2), (2800, 1), (9000, 4)], rules(0, 2500)), [2, 1, 800, 1]);
    let found = replay(&pool(&[(0, 2), (2800, 1)]), &rules(0, 2500)).unwrap();
    assert_eq!(found.goodput, Some(0.8), "4 s of 5 s");
}

#[test]
fn who_comes_has_no_part_in_the_round() {
    // Ready at 1.5 s, taken in at 2 s.
    let slow = PoolRules { work: 1000, ..rules(1000, 3000) };
    assert_eq!(counts(&[(0, 1), (500, 2)], slow), [4, 0, 0, 2]);
    // One of two holders is lost, another takes its seat: the other holder's loss ends the round.
    let coded = PoolRules { stragglers: 1, ..rules(0, 3000) };
    assert_eq!(counts(&[(0, 2), (500, 1), (600, 2), (700, 0)], coded), [0, 1, 700, 1]);
    assert_eq!(counts(&[(0, 2), (500, 1), (600, 2)], coded), [1, 0, 0, 1]);
    // A scheme for more stragglers than there are workers has one group.
    let beyond = PoolRules { stragglers: usize::MAX, ..coded };
    assert_eq!(counts(&[(0, 2), (500, 1)], beyond), [1, 0, 0, 2]);
}

#[test]
fn a_restart_that_others_disturb_is_begun_again() {
    let restart = PoolRules { restart: Some(1000), ..rules(0, 5000) };
    assert_eq!(counts(&[(0, 2), (1000, 3), (1500, 2)], restart), [3, 0, 2000, 3]);
    // A code that tolerates the loss waits for no worker, unless all is started again.
    let coded = PoolRules { stragglers: 1, ..rules(0, 6000) };
    assert_eq!(counts(&[(0, 2), (500, 1)], coded), [3, 0, 0, 2]);
    let both = PoolRules { restart: Some(1000), ..coded };
    assert_eq!(counts(&[(0, 2), (500, 1)], both), [2, 1, 1500, 2]);
    // A loss is noticed later.
    let detect = PoolRules { detect: 300, ..rules(0, 4800) };
    assert_eq!(counts(&[(0, 2), (500, 1)], detect), [2, 1, 800, 2]);
}

#[test]
fn times_without_end_and_none_are_refused() {
    let here = pool(&[(0, 2)]);
    let refused = |rules: PoolRules| replay(&here, &rules).unwrap_err().to_string();
    assert_eq!(replay(&Pool::default(), &rules(0, 1)), Err(PoolError::Empty));
    assert!(refused(PoolRules { work: 0, ..rules(0, 1) }).starts_with("work is 0 s"));
    assert!(refused(rules(0, 0)).starts_with("the end is 0 s"));
    assert!(refused(rules(u64::MAX, 1)).starts_with("sync is "));
    let mut here = pool(&[(5, 2)]);
    assert_eq!(here.push(5, 3), Err(PoolError::Order { last: 5 }));
    assert!(matches!(here.push(u64::MAX, 3), Err(PoolError::Time { .. })));
    assert!(matches!(here.push(6, 1 << 20), Err(PoolError::Workers { .. })));
    // The longest times there are, in rounds of a millisecond, take no time.
    let longest = 1_000_000_000_000;
    let rules = PoolRules { work: 1, ..rules(longest, longest) };
    assert_eq!(counts(&[(0, 3)], rules)[0], longest);
}
