//! Times that other tools have written, as they are read.

#![cfg(test)]

use super::*;

fn rows(found: &TraceTimes) -> Vec<Vec<f64>> {
    found.rows().collect()
}

#[test]
fn rounds_and_workers_are_put_in_order_and_keep_their_names() {
    let mut times = Times::default();
    for (round, worker, time) in
        [("10.0", "gpu-12", 1.0), ("10", "gpu-9", 2.0), ("9", "gpu-12", 3.0), ("09", "gpu-9", 4.0)]
    {
        times.insert(round, worker, time).unwrap();
    }
    let found = times.settled();
    assert_eq!(rows(&found), [[4.0, 3.0], [2.0, 1.0]]);
    assert_eq!(
        (&*found.workers, &*found.rounds),
        (&["gpu-9".to_owned(), "gpu-12".to_owned()][..], &["9".to_owned(), "10".to_owned()][..],)
    );
}

#[test]
fn who_has_most_gaps_is_left_out_where_too_many_rounds_would_be() {
    let mut times = Times::default();
    for round in 0..20 {
        for worker in 0..4 {
            let known = match worker {
                3 => round < 5,
                2 => round != 7,
                _ => true,
            };
            if known {
                times.insert(&round.to_string(), &worker.to_string(), 1.0).unwrap();
            }
        }
    }
    let found = times.settled();
    assert_eq!((found.workers.len(), found.rounds.len(), found.incomplete), (3, 19, 1));
    let without = &found.without[0];
    assert_eq!((&*without.worker, without.rounds), ("3", 15));
    let ends = |(first, last): &(String, String)| (first.clone(), last.clone());
    assert_eq!(ends(&without.missing), ("5".into(), "19".into()));
    assert_eq!(without.there.as_ref().map(ends), Some(("0".into(), "4".into())));
    assert_eq!((&*found.gaps[0].worker, found.gaps[0].rounds), ("2", 1));
}

#[test]
fn what_is_told_again_counts_and_what_never_came_is_kept() {
    let mut times = Times::default();
    for (time, never) in [(1.0, 5.0), (2.0, f64::INFINITY)] {
        times.insert("0", "a", time).unwrap();
        times.insert("0", "b", never).unwrap();
    }
    times.insert(&join(&["1", "00"]), "a", 3.0).unwrap();
    times.insert(&join(&["1", "00"]), "b", f64::NAN).unwrap();
    let found = times.settled();
    assert_eq!((rows(&found), found.again), (vec![vec![2.0, f64::INFINITY]], Some((1, 2))));
    assert_eq!((found.not_received, found.incomplete), (vec![("b".into(), 1)], 1));
}

#[test]
fn rounds_of_all_workers_that_begin_again_are_those_of_another_pass() {
    let told = |passes: &dyn Fn(&str) -> usize| {
        let mut times = Times::default();
        for pass in 0..3 {
            for batch in ["0", "25", "50", "75"] {
                for worker in ["0", "1"].into_iter().filter(|it| pass < passes(it)) {
                    times.insert(batch, worker, pass as f64).unwrap();
                }
            }
        }
        times.settled()
    };
    let found = told(&|_| 3);
    assert_eq!((found.rounds.len(), found.again, found.begun_again), (12, None, 2));
    assert_eq!((&*found.rounds[0], &*found.rounds[11]), ("0+0", "2+75"));
    assert_eq!(rows(&found)[5], [1.0, 1.0]);
    let corrected = told(&|worker| if worker == "0" { 1 } else { 2 });
    assert_eq!((corrected.rounds.len(), corrected.again), (4, Some((4, 2))));
    assert!(corrected.gone()[0].contains("4 rounds before they were told again"));
    assert_eq!(rows(&corrected)[1], [0.0, 1.0]);
}

/// The same of a table with a column per worker, and its corrections.
#[test]
fn rows_that_begin_again_are_those_of_another_pass() {
    let told = |order: &[usize]| {
        let mut times = Times::of_workers(&["a".into(), "b".into()]);
        for (row, round) in order.iter().enumerate() {
            times.push(&round.to_string(), vec![row as f64, 1.0]);
        }
        times.settled()
    };
    let found = told(&[0, 1, 2, 3, 0, 1, 2, 3, 0]);
    assert_eq!((found.rounds.len(), found.again, found.begun_again), (9, None, 2));
    assert_eq!(&*found.rounds[8], "2+0");
    let corrected = told(&[0, 1, 2, 3, 2, 3]);
    assert_eq!((corrected.rounds.len(), corrected.begun_again), (4, 0));
    assert_eq!(corrected.again, Some((2, 2)));
    assert_eq!(rows(&corrected)[2], [4.0, 1.0]);
    let mut blocks = Times::of_workers(&["a".into(), "b".into()]);
    for worker in 0..2 {
        for round in 0..5 {
            let cell = |of: usize| if of == worker { 1.0 } else { f64::NAN };
            blocks.push(&round.to_string(), vec![cell(0), cell(1)]);
        }
    }
    let found = blocks.settled();
    assert_eq!((rows(&found), found.again, found.incomplete), (vec![vec![1.0; 2]; 5], None, 0));
}

/// Lines of one round (micro-batches), a worker that came late, and a log that was cut.
#[test]
fn passes_begin_where_all_rounds_begin_again() {
    let told = |lines: &[(usize, usize)]| {
        let mut times = Times::default();
        for (round, worker) in lines {
            times.insert(&round.to_string(), &worker.to_string(), 1.0).unwrap();
        }
        times.settled()
    };
    let lines = |rounds: std::ops::Range<usize>, workers: std::ops::Range<usize>| {
        rounds.flat_map(move |round| workers.clone().map(move |worker| (round, worker)))
    };
    let of_four: Vec<_> = lines(0..5, 0..2).flat_map(|line| [line; 4]).collect();
    let found = told(&of_four);
    assert_eq!((found.rounds.len(), found.again, found.begun_again), (5, Some((5, 4)), 0));
    let both = || lines(0..6, 0..2);
    let late: Vec<_> = [(0, 0)].into_iter().chain(lines(1..6, 0..2)).chain(both()).collect();
    let found = told(&late);
    assert_eq!((found.rounds.len(), found.incomplete, found.begun_again), (11, 1, 1));
    let cut: Vec<_> = both().chain(both()).chain([(0, 0)]).collect();
    let found = told(&cut);
    assert_eq!((found.rounds.len(), found.begun_again), (12, 2));
    // The order of these is unknown.
    let middle: Vec<_> = lines(2..5, 0..2).chain(both()).chain(both()).collect();
    assert_eq!(told(&middle).rounds.len(), 6);
}

#[test]
fn words_among_numbered_rounds_are_none() {
    let mut times = Times::default();
    for round in (0..10).map(|step| format!(":step {step}")).chain([":forward".into()]) {
        times.insert(&round, "0", 1.0).unwrap();
    }
    let found = times.settled();
    assert_eq!((found.rounds.len(), &*found.no_rounds), (10, &[":forward".to_owned()][..]));
}

#[test]
fn columns_that_are_no_workers_are_refused_before_they_fill_the_memory() {
    let mut times = Times::default();
    let refused = (0..100_000)
        .find_map(|line| times.insert(&line.to_string(), &format!("{line}.5"), 1.0).err());
    assert!(refused.is_some());
}
