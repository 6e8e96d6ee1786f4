//! Rounds in which every worker answers once, with all its tasks.

use super::{Close, Played, Rules};
use crate::codes::sequential::Scheme;
use crate::ids::{Run, Worker, WorkerSet};

/// Closes one round and reports the answers that were waited for; None if the scheme accepts
/// nobody's absence, not even none.
pub(super) fn play(
    scheme: &mut dyn Scheme,
    runs: &[Run],
    row: &[f64],
    rules: &Rules,
) -> Option<Played> {
    let (workers, load) = (row.len(), scheme.facts().load);
    let delays: Vec<f64> = row.iter().map(|delay| rules.time(*delay, load)).collect();
    let slowest = delays.iter().copied().fold(0.0, f64::max);
    let (deadline, candidates) = super::deadline(delays.iter().copied(), rules.mu);
    let late = |from: f64| {
        WorkerSet::of(workers, Worker::all(workers).filter(|worker| delays[worker.index()] > from))
    };
    let after_deadline = late(deadline);
    let (seconds, missing, waited_out) =
        if rules.close != Close::Decodable && scheme.admits(&after_deadline) {
            (deadline.min(slowest), after_deadline, false)
        } else if rules.close == Close::All {
            (slowest, WorkerSet::empty(workers), true)
        } else if let Some(instant) = scheme.suffices_at(&delays) {
            (instant, late(instant), rules.close == Close::Incremental)
        } else {
            let mut order: Vec<Worker> = Worker::all(workers).collect();
            order.sort_unstable_by(|a, b| {
                delays[a.index()].total_cmp(&delays[b.index()]).then(a.cmp(b))
            });
            let needed = scheme.answers_needed(&order).max(1);
            let instant = delays[order.get(needed - 1)?.index()];
            (instant, late(instant), rules.close == Close::Incremental)
        };
    for run in runs.iter().filter(|run| !missing.contains(run.worker)) {
        scheme.returned(run.worker, run.first);
    }
    let unfinished = missing.len();
    let units = runs.iter().map(|run| u64::from(run.units)).sum();
    Some(Played { seconds, missing, candidates, waited_out, unfinished, units })
}
