//! Which causes are found in times, and what their cures save.

#![cfg(test)]

use super::*;
use crate::delays::{Growth, Preset};

fn replay(rows: Vec<Vec<f64>>) -> Replay {
    let base = 1.0 / rows[0].len() as f64;
    Replay::new(rows, Growth::Proportional { base }, 0.0, 1)
}

fn preset(preset: Preset, rounds: usize) -> Vec<Vec<f64>> {
    preset
        .rows(8, rounds, 1)
        .into_iter()
        .map(|row| row.iter().map(|d| preset.unit().answer_time(*d)).collect())
        .collect()
}

fn found(rows: Vec<Vec<f64>>) -> Vec<Cause> {
    let replay = replay(rows);
    let baseline = replay.run(&super::super::uncoded(), replay.jobs()).unwrap().time_per_job;
    let less = super::super::unequal::settings(&replay).into_iter();
    let less: Vec<Run> = less.filter_map(|it| replay.run(&it, replay.jobs())).collect();
    of_workers(&replay, baseline, &less)
}

/// 2.35 s with the slow worker, and 1.01 s if it is as quick as the others.
#[test]
fn the_constantly_slow_worker_is_named_and_its_price_too() {
    let causes = found(preset(Preset::Static, 60));
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(
        (causes[0].kind, &causes[0].workers[..]),
        (CauseKind::ConstantlySlowWorkers, &[7][..])
    );
    assert!((causes[0].costs - (1.0 - 1.01 / 2.355)).abs() < 0.01, "{causes:?}");
    assert!(causes[0].words.contains("worker 7 always takes 2.3"), "{causes:?}");
}

/// Each cure with what it saves: less work for the slow one, as the planner's own replay has it.
#[test]
fn cures_of_a_slow_worker_are_told_with_what_each_saves() {
    let causes = found(vec![vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.35]; 40]);
    let words = &causes[0].words;
    assert!(words.contains("mend (saves 57.4 %)"), "{words}");
    // 22 of 160 units for each of the quick ones, in 1.1 s.
    assert!(
        words.contains("give less (interval:speeds=1x7+0.426,s=0,units=160 saves 53.2 %, s=1 1"),
        "{words}"
    );
    assert!(words.contains("drain (saves 51.4 %)"), "{words}");
    assert_eq!(causes[0].with_saving(), *words);
}

/// It is slower than the quickest, and no slower than the others, who vary.
#[test]
fn who_is_no_slower_than_the_others_is_no_cause() {
    let row = |round: usize| match round % 2 {
        0 => vec![1.0, 1.3, 3.0, 3.0],
        _ => vec![1.0, 1.3, 1.0, 3.0],
    };
    let causes = found((0..40).map(row).collect());
    assert!(causes.iter().all(|cause| !cause.workers.contains(&1)), "{causes:?}");
}

/// Also where they are most of them.
#[test]
fn how_slow_workers_are_is_told_by_the_quick_ones() {
    for (row, slow) in [
        (vec![1.0, 2.9], vec![1]),
        (vec![1.0, 1.0, 2.9, 2.9], vec![2, 3]),
        (vec![2.9, 2.9, 1.0, 2.9], vec![0, 1, 3]),
    ] {
        let causes = found(vec![row; 60]);
        assert_eq!((causes.len(), &causes[0].workers), (1, &slow));
        assert!((causes[0].times.unwrap() - 2.9).abs() < 1e-9, "{causes:?}");
        assert!((causes[0].costs - (1.0 - 1.0 / 2.9)).abs() < 1e-9, "{causes:?}");
    }
}

#[test]
fn workers_slow_now_and_then_are_no_cause() {
    for kind in [Preset::Hotspot, Preset::Bursts, Preset::Iid, Preset::Calm, Preset::Proportional] {
        assert_eq!(found(preset(kind, 100)), [], "{kind:?}");
    }
}

#[test]
fn a_worker_that_never_answers_again_is_dead() {
    let mut rows = preset(Preset::Calm, 40);
    rows.iter_mut().skip(30).for_each(|row| row[2] = 1e6);
    rows.iter_mut().take(5).for_each(|row| row[3] = 1e6);
    let mut causes = found(rows);
    assert_eq!((causes[0].kind, &causes[0].workers[..]), (CauseKind::DeadWorkers, &[2][..]));
    assert!(causes[0].words.contains("round 30 on"), "{causes:?}");
    let numbers: Vec<u64> = (12_000..12_040).collect();
    causes[0].call_rounds(&numbers);
    assert!(causes[0].words.contains("round 12030 on"), "{causes:?}");
}

#[test]
fn stalls_of_everybody_are_told_from_stragglers() {
    let causes = found(preset(Preset::Stalls, 2000));
    assert_eq!(
        causes.iter().map(|cause| cause.kind).collect::<Vec<_>>(),
        [CauseKind::SlowRounds],
        "{causes:?}"
    );
    assert!(causes[0].words.contains("all workers were slow"));
}

#[test]
fn times_that_follow_costs_are_evened_out() {
    let costs: Vec<Vec<f64>> = Preset::Proportional
        .rows(6, 50, 1)
        .into_iter()
        .map(|row| row.iter().map(|x| 1.0 + x).collect())
        .collect();
    let squared: Vec<Vec<f64>> = costs
        .iter()
        .enumerate()
        .map(|(r, row)| {
            row.iter()
                .enumerate()
                .map(|(i, cost)| (1.0 + r as f64) * (2.0 + i as f64) * cost * cost)
                .collect()
        })
        .collect();
    let (even, explained) = balanced(&squared, &costs).unwrap();
    assert!((explained - 1.0).abs() < 1e-9);
    for (r, row) in even.iter().enumerate() {
        let mean = costs[r].iter().sum::<f64>() / 6.0;
        let expected = |i: usize| (1.0 + r as f64) * (2.0 + i as f64) * mean * mean;
        row.iter()
            .enumerate()
            .for_each(|(i, time)| assert!((time / expected(i) - 1.0).abs() < 1e-9));
    }
    let constant = vec![costs[0].clone(); 50];
    assert!(
        balanced(&squared, &constant).is_none(),
        "a share that is always dear is a slow worker for all one can see"
    );
}

#[test]
fn workers_are_listed_in_runs() {
    assert_eq!(listed(&[0, 2, 3, 4, 9]), "0, 2-4, 9");
}
