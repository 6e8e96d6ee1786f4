//! How sure a gain is, judged on rounds that had no part in choosing.
//!
//! What is fastest on a trace is so partly by luck, and its time there is too good. The newer half
//! of the trace decides whether to code at all, and the older half judges: each of its blocks is
//! timed under the scheme that is the fastest after it. Time runs backwards here: series are given
//! the newest job first. A code is chosen where the deciding blocks show a gain whose lower bound,
//! one-sided at 95 %, is above 0.
//!
//! # Formula
//! ```text
//! gain = 1 - sum_j c_j / sum_j u_j              over the jobs of the older half
//! x_j  = c_j - (1 - gain) u_j                   and so, with its own gain, in the newer half
//! e_b  = sum of x_j over block b                B blocks in the older half, B' in the newer
//! v    = (sum_b e_b^2 + 1.25 max_j x_j^2) / (B + B' - 2)
//! s    = sqrt(B (1 + 0.4 m / L) V) / sum_j u_j
//! interval = gain -+ t(B - 1) s, at most 1
//! ```
//! where `u_j` and `c_j` are seconds of job `j` uncoded and under what was chosen without it, `m`
//! is the trace's memory in jobs, `L >= 1.5 m` a block's length, and `t` Student's 97.5 % quantile,
//! of at most nine degrees of freedom. `V` is the mean of `v` with the workers in the trace's order
//! and in ten others. A scheme is chosen since few rounds speak against it. That none of these met
//! a group as a whole is partly chance, which other orders of the workers show. The job that
//! deviates most counts more, since rare stalls are rarely seen as often as they come. The newer
//! half has a part in the width alone, for the same reason.

use crate::spelling::several;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Blocks that decide are so many times as long as the memory, since blocks side by side are alike
/// otherwise.
const MEMORIES_DECIDING: f64 = 2.5;
/// Blocks that judge are shorter: that they are alike widens the interval.
const MEMORIES: f64 = 1.5;
/// The shortest block.
const SHORTEST: usize = 3;
/// Blocks are not made shorter for the sake of more than about so many.
const BLOCKS_MOST: usize = 10;
/// With fewer there is none.
const BLOCKS_LEAST: usize = 4;
/// Blocks by which it is decided whether to code, at least.
const DECIDING_LEAST: usize = 3;
/// How much of a block's neighbour is in its variance, by memory over length.
const BESIDE: f64 = 0.4;
/// So many times more counts the square of the job that deviates most.
const LARGEST: f64 = 1.25;
/// An autocorrelation of so many standard errors of none is one.
const CORRELATED: f64 = 2.0;
/// Student's 97.5 % quantiles for 3 to 9 degrees of freedom.
const STUDENT: [f64; 7] = [3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
/// Student's 95 % quantiles for 2 to 9 degrees of freedom.
const STUDENT_ONE_SIDED: [f64; 8] = [2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833];

/// Between what the gain lies of choosing the fastest scheme from a trace like this one, at 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GainInterval {
    /// From here.
    pub low: f64,
    /// To here.
    pub high: f64,
    /// Blocks that judged it.
    pub blocks: usize,
    /// Jobs of a block, at least.
    pub block: usize,
}

/// Why there is no interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the older half of the trace has {}, of {}: too few, {BLOCKS_LEAST} are needed",
    several(*blocks, "independent spell"),
    several(*block, "job")
)]
pub(super) struct TooFew {
    block: usize,
    blocks: usize,
}

/// Seconds of the jobs of a trace under one scheme, newest first, added up: entry `k` is that of
/// the `k` newest.
pub(super) struct Seconds(Vec<f64>);

impl Seconds {
    /// Of jobs, in seconds that count for a whole batch each.
    pub(super) fn of(seconds: impl IntoIterator<Item = f64>) -> Self {
        let mut sums = vec![0.0];
        let mut sum = 0.0;
        sums.extend(seconds.into_iter().map(|seconds| {
            sum += seconds;
            sum
        }));
        Self(sums)
    }

    fn jobs(&self) -> usize {
        self.0.len() - 1
    }

    fn between(&self, from: usize, to: usize) -> f64 {
        self.0[to] - self.0[from]
    }

    fn each(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.windows(2).map(|pair| pair[1] - pair[0])
    }
}

/// Jobs in a row, from one to before another, and their seconds under what is judged.
type Block<'s> = (usize, usize, &'s Seconds);

/// A gain over some blocks, and what is left in each of them.
struct Gain {
    gain: f64,
    /// Squares of what is left in blocks, added up.
    squares: f64,
    /// The largest square of what is left in a job.
    largest: f64,
    uncoded: f64,
    blocks: usize,
}

impl Gain {
    fn over(uncoded: &Seconds, blocks: &[Block<'_>]) -> Self {
        let sum: f64 = blocks.iter().map(|(from, to, _)| uncoded.between(*from, *to)).sum();
        let coded: f64 = blocks.iter().map(|(from, to, coded)| coded.between(*from, *to)).sum();
        let part = if sum > 0.0 { coded / sum } else { 1.0 };
        let left = |from: usize, to: usize, coded: &Seconds| {
            (coded.between(from, to) - part * uncoded.between(from, to)).powi(2)
        };
        let of_jobs = blocks
            .iter()
            .flat_map(|(from, to, coded)| (*from..*to).map(|job| left(job, job + 1, coded)));
        Self {
            gain: 1.0 - part,
            squares: blocks.iter().map(|(from, to, coded)| left(*from, *to, coded)).sum(),
            largest: of_jobs.fold(0.0, f64::max),
            uncoded: sum,
            blocks: blocks.len(),
        }
    }
}

/// What is fastest on the newer jobs, for each block of the older half.
pub(super) struct Walk {
    edges: Vec<usize>,
    chosen: Vec<usize>,
    /// On the whole newer half.
    decided: usize,
    /// Jobs of a block, at least.
    block: usize,
}

impl Walk {
    /// The places of the schemes that are chosen at least once.
    pub(super) fn all_chosen(&self) -> BTreeSet<usize> {
        self.chosen.iter().copied().chain([self.decided]).collect()
    }
}

/// A gain over some jobs, and what is left of it without the block that speaks most for it: what
/// one block says is not enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ObservedGain {
    pub(super) gain: f64,
    /// What it is at least, at 95 %: few blocks that differ much are not enough either.
    pub(super) least: f64,
    pub(super) without_best: f64,
}

/// A trace as it is judged.
pub(super) struct Judge<'a> {
    uncoded: &'a Seconds,
    half: usize,
    memory: usize,
}

impl<'a> Judge<'a> {
    /// With the memory that the seconds under these schemes have.
    pub(super) fn new(uncoded: &'a Seconds, fastest: &Seconds) -> Self {
        let saved = uncoded.each().zip(fastest.each()).map(|(uncoded, fastest)| uncoded - fastest);
        let all: [Vec<f64>; 3] =
            [uncoded.each().collect(), fastest.each().collect(), saved.collect()];
        let memory = all.iter().map(|series| memory(series)).max().unwrap_or(1);
        Self { uncoded, half: uncoded.jobs() / 2, memory }
    }

    /// Jobs of a block, at least, where it is to be so many times as long as the memory.
    fn least(&self, memories: f64) -> usize {
        match self.memory {
            1 => SHORTEST,
            memory => ((memories * memory as f64).ceil() as usize).max(SHORTEST),
        }
    }

    /// What the half that decides says of a scheme.
    pub(super) fn deciding(&self, scheme: &Seconds) -> ObservedGain {
        self.seen(scheme, self.half)
    }

    /// What all jobs say of a scheme, for those who try it and see.
    pub(super) fn whole(&self, scheme: &Seconds) -> ObservedGain {
        self.seen(scheme, self.uncoded.jobs())
    }

    fn seen(&self, scheme: &Seconds, jobs: usize) -> ObservedGain {
        let block = self.least(MEMORIES_DECIDING).max(jobs / BLOCKS_MOST);
        let block = block.min(jobs / DECIDING_LEAST);
        let mut blocks = blocks(&edges(0, jobs, block.max(1)), |_| scheme);
        let Gain { gain, squares, uncoded, blocks: count, .. } = Gain::over(self.uncoded, &blocks);
        let free = count.saturating_sub(1).max(1) as f64;
        let error = (count as f64 * squares / free * self.beside(block)).sqrt()
            / uncoded.max(f64::MIN_POSITIVE);
        let student = count.saturating_sub(DECIDING_LEAST).min(STUDENT_ONE_SIDED.len() - 1);
        let least = gain - STUDENT_ONE_SIDED[student] * error;
        let saved = |block: usize| {
            let (from, to, coded) = blocks[block];
            self.uncoded.between(from, to) - coded.between(from, to)
        };
        let best = (0..blocks.len()).max_by(|a, b| saved(*a).total_cmp(&saved(*b)));
        if let Some(best) = best {
            blocks.swap_remove(best);
        }
        ObservedGain { gain, least, without_best: Gain::over(self.uncoded, &blocks).gain }
    }

    /// By how much blocks of so many jobs that lie side by side widen a variance.
    fn beside(&self, block: usize) -> f64 {
        1.0 + BESIDE * self.memory as f64 / block.max(1) as f64
    }

    /// Which of these schemes is chosen for each block of the older half.
    pub(super) fn walk(&self, schemes: &[Seconds]) -> Walk {
        let jobs = self.uncoded.jobs();
        let block = self.least(MEMORIES).max((jobs - self.half) / BLOCKS_MOST);
        let fastest = |before: usize| {
            let time = |scheme: &usize| schemes[*scheme].0[before];
            (0..schemes.len()).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or_default()
        };
        let edges = edges(self.half, jobs, block);
        let chosen = edges[..edges.len() - 1].iter().map(|from| fastest(*from)).collect();
        Walk { edges, chosen, decided: fastest(self.half), block }
    }

    /// What the choices of a walk gain on the older half, and its variance over `B`.
    fn judged<'s>(&self, walk: &Walk, scheme: impl Fn(usize) -> &'s Seconds) -> (Gain, f64) {
        let judged = blocks(&walk.edges, |block| scheme(walk.chosen[block]));
        let decided = edges(0, self.half, walk.block);
        let decided = blocks(&decided, |_| scheme(walk.decided));
        let (judged, decided) =
            (Gain::over(self.uncoded, &judged), Gain::over(self.uncoded, &decided));
        let free = (judged.blocks + decided.blocks).saturating_sub(2).max(1) as f64;
        let squares =
            judged.squares + decided.squares + LARGEST * judged.largest.max(decided.largest);
        (judged, squares / free)
    }

    /// What the choices of a walk gain on the older half.
    pub(super) fn gain(&self, walk: &Walk, schemes: &[Seconds]) -> f64 {
        self.judged(walk, |scheme| &schemes[scheme]).0.gain
    }

    /// How sure that gain is. `orders` gives the seconds of [`Walk::all_chosen`] with the workers in
    /// other orders, by place; none of a scheme that treats its workers differently. It is asked
    /// only where there are enough blocks.
    pub(super) fn interval(
        &self,
        walk: &Walk,
        schemes: &[Seconds],
        orders: impl FnOnce() -> Vec<BTreeMap<usize, Seconds>>,
    ) -> Result<GainInterval, TooFew> {
        let &Walk { block, .. } = walk;
        let blocks = (self.uncoded.jobs() - self.half) / block;
        if blocks < BLOCKS_LEAST {
            return Err(TooFew { block, blocks });
        }
        let (judged, own) = self.judged(walk, |scheme| &schemes[scheme]);
        let orders = orders();
        let other = |order: &BTreeMap<usize, Seconds>| {
            self.judged(walk, |scheme| order.get(&scheme).unwrap_or(&schemes[scheme])).1
        };
        let variance = (own + orders.iter().map(other).sum::<f64>()) / (1 + orders.len()) as f64;
        let error = (judged.blocks as f64 * variance * self.beside(block)).sqrt()
            / judged.uncoded.max(f64::MIN_POSITIVE);
        let student = STUDENT[(judged.blocks - BLOCKS_LEAST).min(STUDENT.len() - 1)];
        Ok(GainInterval {
            low: judged.gain - student * error,
            high: (judged.gain + student * error).min(1.0),
            blocks: judged.blocks,
            block,
        })
    }
}

/// The fastest of some schemes on the whole trace; none of none.
pub(super) fn fastest(schemes: &[Seconds]) -> Option<&Seconds> {
    let whole = |seconds: &Seconds| seconds.between(0, seconds.jobs());
    schemes.iter().min_by(|a, b| whole(a).total_cmp(&whole(b)))
}

/// The ends of blocks of at least so many jobs, as equal as they can be.
fn edges(from: usize, to: usize, block: usize) -> Vec<usize> {
    let blocks = ((to - from) / block).max(1);
    (0..=blocks).map(|place| from + place * (to - from) / blocks).collect()
}

/// The blocks between these ends, each with what is chosen for it.
fn blocks<'s>(edges: &[usize], chosen: impl Fn(usize) -> &'s Seconds) -> Vec<Block<'s>> {
    let ends = edges.windows(2).enumerate();
    ends.map(|(block, ends)| (ends[0], ends[1], chosen(block))).collect()
}

/// How many jobs in a row hang together: the first distance at which they do not any more.
pub(crate) fn memory(series: &[f64]) -> usize {
    let count = series.len() as f64;
    let mean = series.iter().sum::<f64>() / count;
    let off: Vec<f64> = series.iter().map(|value| value - mean).collect();
    let squares: f64 = off.iter().map(|off| off * off).sum();
    // A constant series has rounding errors only.
    if squares <= count * (1e-9 * mean).powi(2) {
        return 1;
    }
    let correlated = |apart: &usize| {
        let product: f64 = off.iter().zip(&off[*apart..]).map(|(a, b)| a * b).sum();
        product / squares >= CORRELATED / count.sqrt()
    };
    1 + (1..series.len() / 4).take_while(correlated).count()
}

#[cfg(test)]
mod tests;
