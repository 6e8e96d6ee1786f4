//! The best parameters of a scheme: a coarse look at all of them on a part of the trace, then
//! descents.

use super::families::{Space, combined};
use super::replay::{Replay, Run};
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};

/// Values of the longest axis in the coarse look, where it is the only one and where it is not.
const LONGEST: (usize, usize) = (40, 14);
/// Values of the other axes.
const OTHERS: usize = 4;
/// Spaces up to here are looked at as a whole.
const SMALL: usize = 24;
/// Descents begin at the best for each value of the first axis, and at fewer than that many others.
const STARTS: usize = 4;
/// And where less work is allowed, in uncoded batches per job: so that the cheap end of the front
/// is searched as well.
const LESS_WORK: [f64; 3] = [1.1, 1.25, 1.5];
/// A start that is worse than the best by such a factor is not worth a descent.
const HOPELESS: f64 = 1.25;
/// Points looked at on each side of the best, along the longest axis.
const ALONG: usize = 8;
/// Part of the trace of the coarse look, and the fewest jobs it has.
const COARSE: (usize, usize) = (4, 25);

/// A point of a space: an index on each axis.
type Point = Vec<usize>;

/// Replays of the whole trace, and points that cannot be replayed. In the order of points: of
/// schemes that are equal on a trace the first is judged.
type ReplayCache = BTreeMap<Point, Option<Run>>;

/// What is looked for.
pub(super) struct Search<'a> {
    pub(super) replay: &'a Replay,
    pub(super) max_work: f64,
    /// Told after every replay.
    pub(super) tick: &'a (dyn Fn() + Sync),
}

impl Search<'_> {
    /// The better of two comes first: within the work allowed, fast, at little work.
    pub(super) fn order(&self, a: &Run, b: &Run) -> Ordering {
        Self::order_within(self.max_work, a, b)
    }

    fn order_within(max_work: f64, a: &Run, b: &Run) -> Ordering {
        let excess = |run: &Run| (run.work - max_work).max(0.0);
        let compared = excess(a).total_cmp(&excess(b)).then(a.cost().total_cmp(&b.cost()));
        let compared = compared.then(a.work.total_cmp(&b.work)).then(a.delay.cmp(&b.delay));
        // What is equal must not depend on where it was found first.
        let mu = |run: &Run| run.setting.mu.unwrap_or(0.0);
        compared
            .then_with(|| a.setting.scheme.text().cmp(b.setting.scheme.text()))
            .then_with(|| mu(a).total_cmp(&mu(b)))
    }

    /// Replays of the whole trace that the search came to, the best among them.
    pub(super) fn descend(&self, space: &Space) -> Vec<Run> {
        let sizes = space.sizes();
        if sizes.iter().product::<usize>() <= SMALL {
            return self.everything(space);
        }
        let jobs = self.replay.jobs();
        let kept: Vec<Vec<usize>> = thinned(&sizes);
        let coarse = self.runs(space, combined(&kept), (jobs / COARSE.0).max(COARSE.1).min(jobs));
        let mut seen = ReplayCache::new();
        for start in self.starts(coarse) {
            self.descent((space, &sizes), &kept, start, &mut seen);
        }
        let fastest = |seen: &ReplayCache| {
            let found = seen.iter().filter_map(|(point, run)| Some((point, run.as_ref()?)));
            found
                .min_by(|a, b| self.order(a.1, b.1).then(a.0.cmp(b.0)))
                .map(|(point, _)| point.clone())
        };
        while let Some(best) = fastest(&seen) {
            self.tried(space, crossed(&sizes, &best), &mut seen);
            if let Some(better) = fastest(&seen).filter(|better| *better != best) {
                self.descent((space, &sizes), &kept, (better, self.max_work), &mut seen);
            } else {
                break;
            }
        }
        seen.into_values().flatten().collect()
    }

    /// Replays of the whole trace with all parameters.
    pub(super) fn everything(&self, space: &Space) -> Vec<Run> {
        self.runs(space, space.points(), self.replay.jobs())
            .into_iter()
            .map(|(_, run)| run)
            .collect()
    }

    /// Where descents begin, and the work they are allowed.
    fn starts(&self, mut coarse: Vec<(Point, Run)>) -> Vec<(Point, f64)> {
        coarse.sort_by(|a, b| self.order(&a.1, &b.1));
        let Some(best) = coarse.first().map(|(_, run)| run.cost()) else { return Vec::new() };
        let several = coarse[0].0.len() > 1;
        let cheap = LESS_WORK
            .into_iter()
            .filter(|limit| several && *limit < self.max_work)
            .filter_map(|limit| {
                let (point, run) =
                    coarse.iter().min_by(|a, b| Self::order_within(limit, &a.1, &b.1))?;
                (run.work <= limit).then(|| (point.clone(), limit))
            });
        let cheap: Vec<(Point, f64)> = cheap.collect();
        let (mut firsts, mut others) = (HashSet::new(), STARTS);
        let mut chosen = |(point, run): &(Point, Run)| {
            let first = several && run.cost() <= HOPELESS * best && firsts.insert(point[0]);
            if !first {
                others = others.saturating_sub(1);
            }
            first || others > 0
        };
        let fast: Vec<(Point, f64)> = coarse
            .iter()
            .filter(|start| chosen(start))
            .map(|(point, _)| (point.clone(), self.max_work))
            .collect();
        [fast, cheap].concat()
    }

    fn runs(&self, space: &Space, points: Vec<Point>, jobs: usize) -> Vec<(Point, Run)> {
        let run = |point: Point| {
            let run = self.replay.run(&space.setting(&point)?, jobs);
            (self.tick)();
            run.map(|run| (point, run))
        };
        points.into_par_iter().filter_map(run).collect()
    }

    /// Replays what has not been seen yet on the whole trace; None stays for what cannot be.
    fn tried(&self, space: &Space, mut points: Vec<Point>, seen: &mut ReplayCache) {
        points.retain(|point| !seen.contains_key(point));
        seen.extend(points.iter().cloned().map(|point| (point, None)));
        seen.extend(
            self.runs(space, points, self.replay.jobs())
                .into_iter()
                .map(|(point, run)| (point, Some(run))),
        );
    }

    /// Goes to the best neighbour until there is no better one at any distance, from that of the
    /// coarse look to 1.
    fn descent(
        &self,
        (space, sizes): (&Space, &[usize]),
        kept: &[Vec<usize>],
        (start, max_work): (Point, f64),
        seen: &mut ReplayCache,
    ) {
        let gap = |(axis, at): (&Vec<usize>, &usize)| {
            let place = axis.partition_point(|value| value < at);
            let next = axis.get(place + 1).map_or(1, |next| next - at);
            next.max(place.checked_sub(1).map_or(1, |before| at - axis[before])).div_ceil(2)
        };
        let mut steps: Vec<usize> = kept.iter().zip(&start).map(gap).collect();
        let mut here = start;
        loop {
            let mut around = vec![here.clone()];
            for (axis, step) in steps.iter().enumerate() {
                let at = here[axis];
                let moved = [at.checked_sub(*step), Some(at + step).filter(|at| *at < sizes[axis])];
                around.extend(moved.into_iter().flatten().map(|to| {
                    let mut point = here.clone();
                    point[axis] = to;
                    point
                }));
            }
            self.tried(space, around.clone(), seen);
            let known = |point: &&Point| seen.get(*point).and_then(Option::as_ref);
            let best = around.iter().filter(|point| known(point).is_some()).min_by(|a, b| {
                match (known(a), known(b)) {
                    (Some(a), Some(b)) => Self::order_within(max_work, a, b),
                    _ => Ordering::Equal,
                }
            });
            match best {
                Some(best) if *best != here => here.clone_from(best),
                None => return,
                Some(_) if steps.iter().all(|step| *step == 1) => return,
                Some(_) => steps.iter_mut().for_each(|step| *step = step.div_ceil(2)),
            }
        }
    }
}

/// Indices of the coarse look, closer together where they are small.
fn thinned(sizes: &[usize]) -> Vec<Vec<usize>> {
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let most = if sizes.len() == 1 { LONGEST.0 } else { LONGEST.1 };
    let thin = |length: usize| {
        let count = if length == longest { most } else { OTHERS };
        if length <= count {
            return (0..length).collect();
        }
        let at = |step: usize| {
            (length as f64).powf(step as f64 / (count - 1) as f64).round() as usize - 1
        };
        let mut kept: Vec<usize> = (0..count).map(at).collect();
        kept.dedup();
        kept
    };
    sizes.iter().copied().map(thin).collect()
}

/// Points that differ from this one in all axes but the longest, in any way, or only in the
/// longest, by up to a quarter.
fn crossed(sizes: &[usize], point: &Point) -> Vec<Point> {
    let longest = (0..sizes.len()).max_by_key(|axis| sizes[*axis]).unwrap_or(0);
    let only = |at: usize| vec![at];
    let others =
        sizes.iter().zip(point).enumerate().map(|(axis, (size, at))| {
            if axis == longest { only(*at) } else { (0..*size).collect() }
        });
    let (here, step) = (point[longest], (point[longest] / (4 * ALONG)).max(1));
    let near = (1..=ALONG)
        .flat_map(|k| [here.checked_sub(k * step), Some(here + k * step)])
        .flatten()
        .filter(|at| *at < sizes[longest]);
    let along = point
        .iter()
        .enumerate()
        .map(|(axis, at)| if axis == longest { near.clone().collect() } else { only(*at) });
    [combined(&others.collect::<Vec<_>>()), combined(&along.collect::<Vec<_>>())].concat()
}

#[cfg(test)]
mod tests;
