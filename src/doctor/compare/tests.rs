//! How often equal runs are called slower, how often slower ones are, and what is not compared.

#![cfg(test)]

use super::*;
use crate::doctor::{RunContext, examine};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::f64::consts::TAU;

struct Draw(ChaCha8Rng);

impl Draw {
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }
}

/// What the seconds of steps are drawn from; each is stationary from the first step on.
#[derive(Clone, Copy, Debug)]
enum Process {
    /// Steps that hang together with this correlation of neighbours, and deviate by 5 %.
    Autoregressive(f64),
    /// Spells of slow steps: the chance that one begins, its mean length, and how many times as
    /// slow its steps are. Steps deviate by 2 % besides.
    Spells(f64, f64, f64),
}

impl Process {
    fn steps(self, count: usize, draw: &mut Draw) -> Vec<f64> {
        match self {
            Self::Autoregressive(near) => {
                let mut at = draw.normal();
                let next = |_| {
                    at = near * at + (1.0 - near * near).sqrt() * draw.normal();
                    1.0 + 0.05 * at
                };
                (0..count).map(next).collect()
            }
            Self::Spells(begins, lasts, slower) => {
                let mut slow = draw.uniform() < begins * lasts / (1.0 + begins * lasts);
                let next = |_| {
                    let chance = if slow { 1.0 - 1.0 / lasts } else { begins };
                    slow = draw.uniform() < chance;
                    (if slow { slower } else { 1.0 }) * (1.0 + 0.02 * draw.normal())
                };
                (0..count).map(next).collect()
            }
        }
    }
}

const PROCESSES: [Process; 8] = [
    Process::Autoregressive(0.0),
    Process::Autoregressive(0.5),
    Process::Autoregressive(0.8),
    Process::Autoregressive(0.9),
    Process::Spells(0.03, 2.5, 3.0),
    Process::Spells(0.02, 5.0, 2.0),
    Process::Spells(0.02, 10.0, 1.5),
    Process::Spells(0.01, 3.0, 1.7),
];

fn run(seconds: Vec<f64>) -> RunSide {
    RunSide { seconds, workers: 8, scheme: "uncoded".into(), ..RunSide::default() }
}

/// Of these pairs, how many are slower than a limit where the second is slower by a factor.
fn slower(process: Process, seeds: std::ops::Range<u64>, factor: f64, limit: f64) -> usize {
    let is_slower = |seed: &u64| {
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(*seed));
        let count = 200 + 2 * (*seed as usize % 101);
        let a = process.steps(count, &mut draw);
        let b = process.steps(count, &mut draw).into_iter().map(|time| factor * time).collect();
        Comparison::of(&run(a), &run(b)).verdict(limit) == ChangeVerdict::Slower
    };
    seeds.filter(is_slower).count()
}

#[test]
fn of_a_hundred_equal_pairs_at_most_five_are_slower() {
    for process in PROCESSES {
        for (pairs, most) in [(100, 5), (1000, 40)] {
            let found = slower(process, 0..pairs, 1.0, 0.0);
            assert!(found <= most, "{process:?}: {found} of {pairs}");
        }
    }
}

#[test]
fn a_tenth_slower_is_found_where_steps_allow_it() {
    for process in &PROCESSES[..3] {
        let found = slower(*process, 0..100, 1.1, 0.05);
        assert!(found >= 70, "{process:?}: {found} of 100");
    }
}

#[test]
fn near_the_limit_it_is_said_how_many_more_steps_decide() {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(1));
    let process = Process::Autoregressive(0.5);
    let a = process.steps(300, &mut draw);
    let b: Vec<f64> = a.iter().rev().map(|time| 1.055 * time).collect();
    let found = Comparison::of(&run(a.clone()), &run(b.clone()));
    let ChangeVerdict::NotDecided { more: Some(more) } = found.verdict(0.05) else {
        panic!("{:?}", found.verdict(0.05))
    };
    // The same steps again and again are more of the same.
    let longer = |steps: &[f64]| {
        let count = steps.len() + more as usize;
        run(steps.iter().copied().cycle().take(count + count / 5).collect())
    };
    assert_eq!(
        Comparison::of(&longer(&a), &longer(&b)).verdict(0.05),
        ChangeVerdict::Slower,
        "{more}"
    );
    let same = Comparison::of(&run(a.clone()), &run(a));
    assert_eq!(same.mean.change(), 0.0);
    assert_eq!(same.verdict(0.0), ChangeVerdict::NotDecided { more: None });
    assert!(matches!(same.verdict(0.5), ChangeVerdict::NotSlower));
}

#[test]
fn few_steps_and_steps_without_time_have_no_interval() {
    let few = Comparison::of(&run(vec![1.0; 19]), &run(vec![2.0; 40]));
    assert_eq!((few.interval, few.mean.change()), (None, 1.0));
    assert_eq!(few.verdict(0.0), ChangeVerdict::NotDecided { more: None });
    assert!(few.not_compared[0].to_string().contains("19 steps"), "{:?}", few.not_compared);
    let none = Comparison::of(&run(vec![0.0; 40]), &run(vec![1.0; 40]));
    assert_eq!((none.interval, none.mean.change()), (None, f64::INFINITY));
    let empty = Comparison::of(&RunSide::default(), &RunSide::default());
    assert_eq!((empty.mean.change(), empty.interval), (0.0, None));
    // Equal steps leave no doubt.
    let sure = Comparison::of(&run(vec![1.0; 40]), &run(vec![1.125; 60]));
    assert_eq!(sure.interval.map(|it| (it.low, it.high)), Some((0.125, 0.125)));
    assert_eq!(sure.verdict(0.125), ChangeVerdict::NotSlower);
}

#[test]
fn unlike_runs_are_compared_per_sample_where_both_have_samples() {
    let a = RunSide { samples: Some(64.0), work: Some(1.0), ..run(vec![1.0; 40]) };
    let b = RunSide { samples: Some(128.0), workers: 16, ..run(vec![1.5; 40]) };
    let found = Comparison::of(&a, &b);
    assert!(found.per_sample && found.work.is_none());
    assert_eq!((found.mean.a, found.mean.change()), (1.0 / 64.0, -0.25));
    let said: Vec<String> = found.not_compared.iter().map(ToString::to_string).collect();
    assert!(said[0] == "work cannot be compared: B does not show work", "{said:?}");
    let unknown = Comparison::of(&a, &RunSide { samples: None, ..b });
    assert!(!unknown.per_sample && unknown.mean.change() == 0.5);
    let why = unknown.not_compared[0].to_string();
    assert!(why.contains("workers (8 and 16), and B does not show samples"), "{why}");
}

#[test]
fn workers_are_matched_by_name_and_others_are_a_line() {
    let rows = |slow: f64| (0..60).map(move |_| vec![1.0, 1.0, slow]);
    let names = |names: [&str; 3]| names.map(str::to_owned).to_vec();
    let side = |slow: f64, names: &[String]| {
        let record = Record::of_trace(rows(slow)).unwrap().without_first(warm_up([60, 60]));
        let found = examine(&record, &RunContext::default());
        RunSide::of(&record, &found, None, names)
    };
    let (a, b) = (names(["x", "y", "z"]), names(["z", "x", "new"]));
    let found = Comparison::of(&side(1.5, &a), &side(1.25, &b));
    let shared: Vec<(&str, f64, f64)> =
        found.workers.iter().map(|(name, pair)| (name.as_str(), pair.a, pair.b)).collect();
    assert_eq!(shared, [("x", 1.0, 1.0), ("z", 1.5, 1.0)]);
    let said = found.not_compared.last().map(ToString::to_string);
    let expected = "some workers cannot be compared: A alone has y; B alone has new";
    assert_eq!(said.as_deref(), Some(expected));
    assert_eq!(found.parts[0].0, "computing");
    let one = side(1.5, &[]);
    assert_eq!((one.seconds.len(), one.ratios["2"]), (57, 1.5));
}

#[test]
fn a_long_run_is_looked_at_in_groups() {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(3));
    let steps = Process::Spells(0.02, 5.0, 2.0).steps(20_000, &mut draw);
    let (groups, each) = grouped(&steps);
    assert_eq!((groups.len(), each), (4000, 5));
    let found = Comparison::of(&run(steps.clone()), &run(steps)).interval.unwrap();
    assert!(found.low > -0.05 && found.high < 0.05 && found.block[0] >= 15, "{found:?}");
}

#[test]
fn quantiles_are_those_of_student() {
    for (freedom, expected) in [(4.0, 2.776), (9.0, 2.262), (30.0, 2.042), (1e6, 1.960)] {
        assert!((student(freedom) - expected).abs() < 0.01, "{freedom}: {}", student(freedom));
    }
}

#[test]
fn what_was_not_received_is_not_counted_as_fast() {
    let rows = |late: Option<usize>| {
        (0..200).map(move |round| {
            let all = [1.0, 1.1, 1.0, 2.0];
            let last =
                if late.is_some_and(|every| round % every == 0) { f64::INFINITY } else { 2.0 };
            vec![all[0], all[1], all[2], last]
        })
    };
    let side = |late| {
        let record = Record::of_trace(rows(late)).unwrap();
        let found = examine(&record, &RunContext::default());
        RunSide::of(&record, &found, None, &[])
    };
    let (whole, some, none) = (side(None), side(Some(50)), side(Some(1)));
    assert_eq!((whole.open_ended, some.open_ended, none.open_ended), (0, 4, 200));
    assert!(whole.ratios.contains_key("3") && !none.ratios.contains_key("3"));
    let compared = Comparison::of(&whole, &some);
    assert!(compared.interval.is_some());
    let said = compared.not_compared[0].to_string();
    assert!(said.contains("0 of A's steps and 4 of B's have a result that was not"), "{said}");
    let compared = Comparison::of(&whole, &none);
    assert_eq!(compared.verdict(0.05), ChangeVerdict::NotDecided { more: None });
}
