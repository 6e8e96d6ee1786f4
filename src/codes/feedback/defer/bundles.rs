//! Bundles: what is left is cut, dealt to the workers with the best scores, and dealt again where
//! they fail.

use super::{Bundle, Defer, Open};
use crate::ids::{Task, Worker};
use std::ops::Range;

impl Defer {
    /// Cuts what is left into bundles and gives them to the workers with the best scores.
    pub(super) fn deal(&mut self) {
        let (counts, slots) = (self.bundle_counts(), self.slots());
        self.bundles.clear();
        for (at, (open, (count, due))) in self.open.iter_mut().zip(counts).enumerate() {
            let age = (self.round.0 - open.job.0) as usize;
            let first_piece = self.own.len() + (age - 1) * slots;
            let (size, longer) = (open.left.len() / count, open.left.len() % count);
            let mut start = open.dealt.len();
            open.dealt.extend(&open.left);
            open.parts.extend(open.left.iter().map(|unit| self.own[*unit as usize][0]));
            for place in 0..count {
                let end = start + size + usize::from(place < longer);
                let task = Task { job: open.job, piece: (first_piece + place) as u32, plan: 0 };
                let units = open.parts[start..end].iter().map(|part| part.units.count()).sum();
                self.bundles.push(Bundle {
                    task,
                    open: at,
                    range: start..end,
                    units,
                    due,
                    finished: false,
                });
                start = end;
            }
        }
        let due = self.bundles.iter().filter(|bundle| bundle.due).count();
        let copies = (1..self.parameters.copies).flat_map(|_| 0..due);
        self.bundle_of.fill(None);
        self.at_bundle.clear();
        let helpers = self.bundles.len() + (self.parameters.copies - 1) * due;
        for (worker, q) in
            rank(&mut self.ranked, &self.score, helpers).zip((0..self.bundles.len()).chain(copies))
        {
            self.bundle_of[worker.index()] = Some(q);
            self.at_bundle.insert(worker);
        }
        self.orphans.clear();
        self.orphans.extend(self.facts.workers..self.bundles.len());
        self.due_open = due;
    }

    /// How many bundles each open job's units go into, and whether it is due.
    fn bundle_counts(&self) -> Vec<(usize, bool)> {
        let total: usize = self.open.iter().map(|open| open.left.len()).sum();
        let slots = self.slots();
        let due = |open: &Open| {
            !self.has_own()
                || self.is_last()
                || self.round.0 - open.job.0 >= self.parameters.delay as u64
        };
        let copies = |due: bool| if due { self.parameters.copies } else { 1 };
        let count = |open: &Open| {
            let (left, due) = (open.left.len(), due(open));
            (left.min((slots * left / total / copies(due)).max(1)), due)
        };
        let mut counts: Vec<(usize, bool)> = self.open.iter().map(count).collect();
        while counts.iter().map(|&(count, due)| count * copies(due)).sum::<usize>() > slots {
            let most = counts.iter().map(|count| count.0).max().unwrap_or(0);
            // Only after losses is there more due than fits: then there are fewer copies.
            let Some(largest) = counts.iter_mut().find(|count| count.0 == most && most > 1) else {
                break;
            };
            largest.0 -= 1;
        }
        counts
    }

    /// Due bundles that nobody is at or has finished go to whoever is idle next.
    pub(super) fn find_orphans(&mut self) {
        let mut held = vec![false; self.bundles.len()];
        for worker in self.at_bundle.iter() {
            self.bundle_of[worker.index()].into_iter().for_each(|q| held[q] = true);
        }
        let open = |q: &usize| {
            self.bundles[*q].due
                && !self.bundles[*q].finished
                && !held[*q]
                && !self.orphans.contains(q)
        };
        let found: Vec<usize> = (0..self.bundles.len()).filter(open).collect();
        self.orphans.extend(found);
    }

    /// Makes a bundle of units that a worker which is gone should have had in its own share of the
    /// last job.
    pub(super) fn pass_on(&mut self, units: Range<u32>) {
        let at = self.open.len() - 1;
        let open = &mut self.open[at];
        let start = open.dealt.len();
        open.dealt.extend(units);
        open.parts.extend(open.dealt[start..].iter().map(|unit| self.own[*unit as usize][0]));
        let range = start..open.dealt.len();
        if !range.is_empty() {
            let units = open.parts[range.clone()].iter().map(|part| part.units.count()).sum();
            let task =
                Task { job: open.job, piece: u32::MAX - 1 - self.bundles.len() as u32, plan: 0 };
            self.orphans.push(self.bundles.len());
            self.bundles.push(Bundle { task, open: at, range, units, due: true, finished: false });
            self.due_open += 1;
        }
    }
}

/// The `first` workers with the lowest scores, lowest first, ties by number. Scores are not
/// negative, so their bits are ordered as they are.
fn rank<'a>(
    ranked: &'a mut Vec<u128>,
    score: &[f64],
    first: usize,
) -> impl Iterator<Item = Worker> + use<'a> {
    ranked.clear();
    ranked.extend(
        score.iter().zip(0..).map(|(score, worker)| u128::from(score.to_bits()) << 32 | worker),
    );
    let first = first.min(ranked.len());
    if first > ranked.len() / 2 {
        ranked.sort_unstable();
    } else if first > 0 {
        ranked.select_nth_unstable(first - 1).0.sort_unstable();
    }
    ranked[..first].iter().map(|ranked| Worker(*ranked as u32))
}
