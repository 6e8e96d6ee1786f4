//! Rounds of an uncoded step do not wait for one another, and more.

#![cfg(test)]

use super::*;

fn prompt(text: &str) -> Setting {
    Setting::new(text.parse().unwrap())
}

fn replay(accumulate: usize) -> Replay {
    let rounds = vec![vec![1.0, 3.0], vec![3.0, 1.0], vec![1.0, 1.0], vec![1.0, 2.0]];
    Replay::new(rounds, Growth::Additive { base: 0.5, slope: 1.0 }, 0.0, accumulate)
}

#[test]
fn rounds_of_an_uncoded_step_do_not_wait_for_one_another() {
    let alone = replay(1).run(&prompt("uncoded"), 4).unwrap();
    assert_eq!((alone.time_per_job, alone.seconds), (9.0 / 4.0, vec![3.0, 3.0, 1.0, 2.0]));
    let steps = replay(2).run(&prompt("uncoded"), 2).unwrap();
    assert_eq!(steps.seconds, [4.0, 3.0]);
    // Whole batches twice: each round is half a batch longer.
    let both = replay(2).run(&prompt("groups:l=1"), 2).unwrap();
    assert_eq!(both.seconds, [5.0, 3.0]);
}

#[test]
fn steps_end_with_what_their_rounds_left() {
    let setting = prompt("defer:T=1,cap=1");
    let steps = replay(2).run(&setting, 2).unwrap();
    assert_eq!((steps.delay, steps.seconds.len()), (1, 2));
    let mean = steps.seconds.iter().sum::<f64>() / 2.0;
    assert_eq!(steps.time_per_job, mean);
}

#[test]
fn jobs_of_several_rounds_take_what_their_own_rounds_do() {
    let setting = Setting {
        scheme: "sr-sgc:B=1,W=2,lambda=2".parse().unwrap(),
        close: Close::Incremental,
        mu: Some(0.5),
    };
    let replay = replay(1);
    let run = replay.run(&setting, 4).unwrap();
    assert_eq!((run.delay, run.seconds.len()), (1, 4));
    let own: f64 = run.seconds.iter().sum();
    assert!(own <= 4.0 * run.time_per_job && run.seconds.iter().all(|time| *time > 0.0));
    assert!(replay.run(&prompt("groups:l=3"), 4).is_none());
}
