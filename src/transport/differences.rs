//! Who among the workers of a run trains something else than the others.

use super::{Disagreement, RunFacts};
use crate::ids::Worker;
use std::cmp::Reverse;
use std::fmt;

/// So many groups are told beside the largest.
const TOLD: usize = 4;

/// Workers that train different things, in groups that agree: there are at least two.
///
/// ```
/// use codedgrad::ids::Worker;
/// use codedgrad::transport::{Differences, RunFacts};
/// let facts = |units| RunFacts { units: Some(units), ..RunFacts::default() };
/// let told = [(Worker(0), facts(4)), (Worker(1), facts(8)), (Worker(2), facts(4))];
/// assert_eq!(
///     Differences::between(&told).unwrap().to_string(),
///     "worker 1 differs in units of a batch (8, not 4); workers 0, 2 agree"
/// );
/// assert!(Differences::between(&told[..1]).is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences {
    /// The largest group first, of equal ones that of the lowest worker; with what its workers
    /// know.
    groups: Vec<(Vec<Worker>, RunFacts)>,
}

impl Differences {
    /// Compares what workers say that they train; none if all of it goes together.
    #[must_use]
    pub fn between(told: &[(Worker, RunFacts)]) -> Option<Self> {
        let mut groups: Vec<(Vec<Worker>, RunFacts)> = Vec::new();
        for (worker, facts) in told {
            let found = groups.iter().position(|(_, of)| of.clone().agree(facts).is_ok());
            match found.and_then(|at| groups.get_mut(at)) {
                Some((workers, of)) => {
                    workers.push(*worker);
                    // It may know what those before it did not.
                    let _ = of.agree(facts);
                }
                None => groups.push((vec![*worker], facts.clone())),
            }
        }
        // Sorting keeps the order of equal ones.
        groups.sort_by_key(|(workers, _)| Reverse(workers.len()));
        (groups.len() > 1).then_some(Self { groups })
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(((most, known), others)) = self.groups.split_first() else { return Ok(()) };
        let is_majority = others.first().is_some_and(|(other, _)| other.len() < most.len());
        for (at, (workers, facts)) in others.iter().take(TOLD).enumerate() {
            let before = if at > 0 { "; " } else { "" };
            let Err(difference) = known.clone().agree(facts) else { continue };
            let Disagreement { fact, here, run } = difference;
            let named = named(workers);
            if is_majority {
                let s = if workers.len() == 1 { "s" } else { "" };
                write!(out, "{before}{named} differ{s} in {fact} ({here}, not {run})")?;
            } else {
                let first = self::named(most);
                write!(out, "{before}{first} and {named} differ in {fact} ({run} and {here})")?;
            }
        }
        match others.len().saturating_sub(TOLD) {
            0 => {}
            1 => out.write_str("; 1 more group differs")?,
            more => write!(out, "; {more} more groups differ")?,
        }
        if is_majority {
            let agree = if most.len() == 1 { "agrees" } else { "agree" };
            write!(out, "; {} {agree}", named(most))?;
        }
        Ok(())
    }
}

/// Some workers, in words.
fn named(workers: &[Worker]) -> String {
    let numbers: Vec<String> = workers.iter().map(|worker| worker.0.to_string()).collect();
    let s = if numbers.len() == 1 { "" } else { "s" };
    format!("worker{s} {}", numbers.join(", "))
}

#[cfg(test)]
mod tests;
