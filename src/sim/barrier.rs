//! Rounds in which every worker answers once, with all its tasks.

use super::{Close, PlayedRound, Rules};
use crate::codes::sequential::{Scheme, lateness};
use crate::ids::{Run, Worker, WorkerSet};

/// Whether a round of a scheme may close without some workers.
type Admits<'a> = &'a dyn Fn(&dyn Scheme, &WorkerSet) -> bool;

/// Closes one round and reports the answers it waited for; None if the scheme cannot close it even
/// with every answer.
pub(super) fn play(
    scheme: &mut dyn Scheme,
    runs: &[Run],
    row: &[f64],
    rules: &Rules,
    admits: Admits<'_>,
) -> Option<PlayedRound> {
    let workers = row.len();
    let (times, facts) = (row.iter().zip(Worker::all(workers)), scheme.facts());
    let delays: Vec<f64> =
        times.map(|(delay, worker)| rules.time(*delay, facts.load_of_worker(worker))).collect();
    let slowest = delays.iter().copied().fold(0.0, f64::max);
    let (deadline, candidates) = super::deadline(delays.iter().copied(), rules.mu);
    let later = |from: f64| {
        WorkerSet::of(workers, Worker::all(workers).filter(|worker| delays[worker.index()] > from))
    };
    let after_deadline = later(deadline);
    // Who has not answered by the last of these instants is missing.
    let (seconds, by, missing, waited_out) =
        if rules.close != Close::Decodable && admits(scheme, &after_deadline) {
            (deadline.min(slowest), deadline, after_deadline, false)
        } else if rules.close == Close::All {
            (slowest, slowest, WorkerSet::empty(workers), true)
        } else {
            let ends: Vec<f64> = runs.iter().map(|run| delays[run.worker.index()]).collect();
            let fast = scheme.fast_forward().and_then(|fast| fast.closes_at(runs, &ends));
            let instant = match fast {
                Some(instant) => instant,
                None => enough_at(scheme, &delays, admits)?,
            };
            (instant, instant, later(instant), rules.close == Close::Incremental)
        };
    super::report(scheme, runs.iter().copied().filter(|run| !missing.contains(run.worker)));
    // For all workers at once, which is one pass over the delays without a branch: a worker seldom
    // has no task.
    let in_time = |delay: &f64| (*delay <= by).then(|| lateness(*delay, seconds));
    let mut late: Vec<Option<f64>> = delays.iter().map(in_time).collect();
    if runs.len() < workers {
        let worked = WorkerSet::of(workers, runs.iter().map(|run| run.worker));
        worked.complement().iter().for_each(|idle| late[idle.index()] = None);
    }
    Some(PlayedRound {
        seconds,
        candidates,
        waited_out,
        unfinished: missing.len(),
        units: runs.iter().map(|run| u64::from(run.units)).sum(),
        late,
        missing,
    })
}

/// When enough workers have answered, fastest first, to do without the others; none if even all of
/// them do not suffice.
fn enough_at(scheme: &dyn Scheme, delays: &[f64], admits: Admits<'_>) -> Option<f64> {
    let mut order: Vec<Worker> = Worker::all(delays.len()).collect();
    order.sort_unstable_by(|a, b| delays[a.index()].total_cmp(&delays[b.index()]).then(a.cmp(b)));
    let mut fewest = 0;
    let mut most = order.len() + 1;
    while fewest < most {
        let middle = usize::midpoint(fewest, most);
        let answered = WorkerSet::of(delays.len(), order.iter().copied().take(middle));
        if admits(scheme, &answered.complement()) {
            most = middle;
        } else {
            fewest = middle + 1;
        }
    }
    order.get(fewest.max(1) - 1).map(|last| delays[last.index()])
}
