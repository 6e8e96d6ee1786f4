//! What is printed of a run with a fault.

use super::processes::{Outcome, median};
use super::runs::Commits;

/// Seconds between commits, in order of steps.
pub(crate) fn gaps(commits: &Commits) -> Vec<f64> {
    let times: Vec<f64> = commits.values().map(|commit| commit.0).collect();
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// One line of the table; whether every step was committed, with the gradient of the calm run.
pub(crate) fn show(fault: &str, phase: &str, calm: &Commits, found: Outcome<Commits>) -> bool {
    let step = median(gaps(calm));
    match found {
        Err(error) => {
            println!("| {fault} | {phase} | {error} | | | |");
            false
        }
        Ok(found) => {
            let longest = gaps(&found).into_iter().fold(0.0, f64::max);
            let lost = calm.keys().filter(|step| !found.contains_key(step)).count();
            let equal = calm
                .iter()
                .all(|(step, commit)| found.get(step).is_none_or(|other| other.1 == commit.1));
            println!(
                "| {fault} | {phase} | {longest:.3} | {:.1} | {lost} | {} |",
                longest / step,
                if equal { "equal" } else { "NOT EQUAL" }
            );
            equal && lost == 0
        }
    }
}
