//! The preset of functions on demand.

#![cfg(test)]

use super::*;
use crate::delays::{StragglerStats, StragglerSummary};

/// Recordings like the probe: 100 rounds of 256 workers, each with its own workers.
fn probes(load: f64) -> Vec<StragglerSummary> {
    let probe = |seed| {
        let mut stats = StragglerStats::new(Serverless::WORKERS);
        Serverless::at_load(load)
            .unwrap()
            .stream(Serverless::WORKERS, seed)
            .take(100)
            .for_each(|row| stats.push(&row));
        stats.summary()
    };
    (0..24).map(probe).collect()
}

fn mean(probes: &[StragglerSummary], number: impl Fn(&StragglerSummary) -> f64) -> f64 {
    probes.iter().map(number).sum::<f64>() / probes.len() as f64
}

/// The statistics of the Canada probe at load 0, `mu = 1`, and how far the average of 24 probes
/// of the model may be from them.
#[test]
fn the_model_straggles_like_the_recorded_probe() {
    let probes = probes(0.0);
    let near =
        |what: &str, recorded: f64, tolerance: f64, number: &dyn Fn(&StragglerSummary) -> f64| {
            let found = mean(&probes, number);
            println!("{what}: recorded {recorded}, found {found:.3}");
            assert!(
                (found - recorded).abs() <= tolerance,
                "{what}: recorded {recorded}, found {found}"
            );
        };
    near("median delay", 0.63, 0.01, &|p| p.median);
    near("mean delay", 0.67, 0.015, &|p| p.mean);
    near("fastest of a round", 0.53, 0.01, &|p| p.fastest_mean);
    near("slowest of a round", 1.53, 0.04, &|p| p.slowest_mean);
    near("straggling answers", 1203.0, 60.0, &|p| p.over_fastest.answers as f64);
    near("share", 0.047, 0.0025, &|p| p.over_fastest.share);
    near("stragglers of a round", 12.0, 0.6, &|p| p.over_fastest.per_round_mean);
    near("fewest of a round", 2.0, 1.5, &|p| p.over_fastest.per_round_least as f64);
    near("most of a round", 34.0, 5.0, &|p| p.over_fastest.per_round_most as f64);
    near("workers that ever straggle", 162.0, 8.0, &|p| p.over_fastest.workers_ever as f64);
    for (length, recorded, tolerance) in
        [(1, 865.0, 45.0), (2, 122.0, 16.0), (3, 23.0, 6.0), (4, 5.0, 3.0), (5, 1.0, 2.0)]
    {
        let count =
            |p: &StragglerSummary| p.over_fastest.bursts.get(&length).copied().unwrap_or(0) as f64;
        near(&format!("bursts of {length}"), recorded, tolerance, &count);
    }
    for (window, recorded, tolerance) in
        [(2, 22.0, 1.5), (3, 31.0, 2.0), (4, 39.0, 2.0), (8, 61.0, 3.0)]
    {
        let find = move |p: &StragglerSummary| {
            p.over_fastest.windows.iter().find(|found| found.window == window).copied().unwrap()
        };
        near(&format!("different stragglers in {window} rounds"), recorded, tolerance, &|p| {
            find(p).stragglers_mean
        });
    }
    for (window, recorded) in [(2, 44.0), (3, 50.0), (4, 54.0), (8, 73.0)] {
        let find = move |p: &StragglerSummary| {
            p.over_fastest.windows.iter().find(|found| found.window == window).copied().unwrap()
        };
        near(&format!("most in {window} rounds"), recorded, 6.0, &|p| find(p).lambda_all as f64);
    }
    assert!(probes.iter().all(|p| p.over_fastest.worst_worker < 0.65));
}

/// 13 of the 256 workers straggled in more than 20 of the 100 rounds.
#[test]
fn some_workers_straggle_much_more_often_than_others() {
    let often = |seed| {
        let mut times = vec![0; Serverless::WORKERS];
        for row in Serverless::at_load(0.0).unwrap().rows(Serverless::WORKERS, 100, seed) {
            let fastest = row.iter().copied().fold(f64::INFINITY, f64::min);
            row.iter()
                .zip(&mut times)
                .for_each(|(delay, times)| *times += u32::from(*delay > 2.0 * fastest));
        }
        times.iter().filter(|times| **times > 20).count() as f64
    };
    let found = (0..24).map(often).sum::<f64>() / 24.0;
    assert!((found - 13.0).abs() < 3.0, "{found}");
}

/// Recorded: 0.6 to 0.02 % by `mu = 1` at loads of a quarter and more, as all answers take
/// longer there.
#[test]
fn loaded_workers_hardly_straggle() {
    let share = |load| mean(&probes(load), |p| p.over_fastest.share);
    assert!(share(0.25) < 0.006 && share(0.25) > 0.0002, "{}", share(0.25));
    assert!(share(1.0) < 0.0002);
    assert!(
        (mean(&probes(0.5), |p| p.mean) - 1.78).abs() < 0.02,
        "the mean recorded at half a batch"
    );
}

#[test]
fn cold_starts_come_once_in_ten_thousand_answers() {
    let cold = Serverless::at_load(0.0).unwrap().with_cold_starts();
    let late = cold
        .rows(256, 4000, 3)
        .iter()
        .flatten()
        .filter(|delay| **delay > Serverless::COLD_START_SECONDS)
        .count();
    assert!((70..140).contains(&late), "{late} of 1,024,000");
}

#[test]
fn loads_are_finite() {
    for load in [-0.1, f64::NAN, f64::INFINITY] {
        assert!(
            Serverless::at_load(load).unwrap_err().to_string().contains("cannot have a load of")
        );
    }
}
