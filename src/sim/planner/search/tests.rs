//! Which schemes the planner tries.

#![cfg(test)]

use super::super::ClosingRules;
use super::super::families::spaces;
use super::*;
use crate::codes::registry::{Family, Registry, SearchLimits};
use crate::delays::Preset;

fn replay(preset: Preset, workers: usize, rounds: usize) -> Replay {
    let answer =
        |row: Vec<f64>| row.into_iter().map(|delay| preset.unit().answer_time(delay)).collect();
    let rows = preset.rows(workers, rounds, 1).into_iter().map(answer).collect();
    Replay::new(rows, preset.growth(workers), preset.pull(), 1)
}

/// Times per job of the best of each family: descended to, and among all parameters.
fn compared(
    preset: Preset,
    workers: usize,
    rounds: usize,
    max_delay: usize,
) -> Vec<(&'static str, Run, Run)> {
    let replay = replay(preset, workers, rounds);
    let limits = SearchLimits { workers, max_delay, cut: 16, accumulate: 1 };
    let rules = ClosingRules::Usual;
    let search = Search { replay: &replay, max_work: f64::INFINITY, tick: &|| () };
    let best = |runs: Vec<Run>| runs.into_iter().min_by(|a, b| search.order(a, b));
    let both = |family: &Family| {
        let spaces = spaces(family, &limits, rules);
        let runs = |of: &dyn Fn(&Space) -> Vec<Run>| spaces.iter().flat_map(of).collect();
        let (found, all) = (
            best(runs(&|space| search.descend(space))),
            best(runs(&|space| search.everything(space))),
        );
        let (found, all) = (found?, all?);
        println!(
            "{} {}: {} {:?} {:.5}, of all {} {:?} {:.5}",
            preset.name(),
            family.name,
            found.setting.scheme,
            found.setting.mu,
            found.time_per_job,
            all.setting.scheme,
            all.setting.mu,
            all.time_per_job
        );
        Some((family.name, found, all))
    };
    Registry::builtin().families().iter().filter_map(both).collect()
}

fn fastest(runs: impl Iterator<Item = Run>) -> Run {
    runs.filter(|run| run.exact && run.coverage == 1.0)
        .min_by(|a, b| a.cost().total_cmp(&b.cost()))
        .unwrap()
}

/// What is found is of the kind that an exhaustive search finds, and within half a per cent of
/// its time: far less than another trace would change.
fn agree(preset: Preset, workers: usize, rounds: usize, max_delay: usize) {
    let found = compared(preset, workers, rounds, max_delay);
    let (descended, all) = (
        fastest(found.iter().map(|found| found.1.clone())),
        fastest(found.iter().map(|found| found.2.clone())),
    );
    let kind = |run: &Run| run.setting.scheme.family().to_owned();
    assert_eq!(
        kind(&descended),
        kind(&all),
        "{preset:?}: {} and {}",
        descended.time_per_job,
        all.time_per_job
    );
    assert!(
        descended.time_per_job <= 1.005 * all.time_per_job,
        "{preset:?}: {} and {}",
        descended.setting.scheme,
        all.setting.scheme
    );
    for (family, descended, all) in found {
        assert!(
            descended.cost() <= 1.01 * all.cost(),
            "{preset:?} {family:?}: {} {}",
            descended.cost(),
            all.cost()
        );
    }
}

#[test]
fn a_descent_finds_what_an_exhaustive_search_finds() {
    agree(Preset::Hotspot, 5, 30, 3);
}

/// `cargo test --release -p codedgrad --no-default-features --lib exhaustive -- --ignored
/// --nocapture`
#[test]
#[ignore = "a minute, even when optimized"]
fn descents_agree_with_exhaustive_searches_of_16_workers() {
    for preset in
        [Preset::Hotspot, Preset::Bursts, Preset::Iid, Preset::Proportional, Preset::Serverless]
    {
        agree(preset, 16, 60, 3);
    }
}

#[test]
#[ignore = "minutes, even when optimized"]
fn descents_agree_with_exhaustive_searches_of_256_workers_one_round_late() {
    agree(Preset::Serverless, 256, 100, 1);
}

#[test]
#[ignore = "many minutes, even when optimized"]
fn descents_agree_with_exhaustive_searches_of_256_workers_three_rounds_late() {
    agree(Preset::Serverless, 256, 100, 3);
}
