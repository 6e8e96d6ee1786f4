//! How sure a gain is, judged on rounds that had no part in choosing.
//!
//! What is fastest on a trace is so partly by luck, and its time there is too good. The newer half
//! of the trace decides whether to code at all, and the older half judges: each of its blocks is
//! timed under the scheme that is the fastest after it. Time runs backwards here: series are given
//! the newest job first. A code is for a gain whose lower bound by the deciding blocks alone,
//! one-sided at 95 %, is above 0.
//!
//! # Formula
//! ```text
//! gain = 1 - sum_b c_b / sum_b u_b              over the B blocks of the older half
//! e_b  = c_b - (1 - gain) u_b                   and so, with its own gain, in the newer half
//! s    = sqrt(B (1 + 0.4 m / L) sum e_b^2 / (B + B' - 2)) / sum_b u_b
//! interval = gain -+ t(B - 1) s, at most 1       t(2) where B = 5
//! ```
//! where `u_b` and `c_b` are seconds of block `b` uncoded and under what was chosen without it, `m`
//! is the trace's memory in jobs, `L >= 2.5 m` a block's length, `B'` the newer half's blocks, and
//! `t` Student's 97.5 % quantile. The newer half has a part in the width alone: rare stalls that
//! it met may come again, though the older half had none. Five blocks are too few to show the
//! memory that they are to be longer than: of traces of 30 rounds with bursts, 84 % of intervals by
//! `t(4)` hold what they are of.

use crate::spelling::several;
use serde::Serialize;
use thiserror::Error;

/// Blocks are so many times as long as the memory, since blocks side by side are alike otherwise.
const MEMORIES: f64 = 2.5;
/// The shortest block.
const SHORTEST: usize = 3;
/// More blocks than that make no difference to an interval.
const BLOCKS_MOST: usize = 10;
/// With fewer there is none.
const BLOCKS_LEAST: usize = 5;
/// Blocks by which it is decided whether to code, at least.
const DECIDING_LEAST: usize = 3;
/// How much of a block's neighbour is in its variance, by memory over length.
const BESIDE: f64 = 0.4;
/// An autocorrelation of so many standard errors of none is one.
const CORRELATED: f64 = 2.0;
/// Student's 97.5 % quantiles for so many blocks and more: of 2, and of 5 to 9 degrees of freedom.
const STUDENT: [f64; 6] = [4.303, 2.571, 2.447, 2.365, 2.306, 2.262];
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
    /// Jobs of a block.
    pub block: usize,
}

/// Why there is no interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the trace is too short to say how sure that is: its older half must hold {BLOCKS_LEAST} \
     blocks of {}, as its memory is {}, and holds {blocks}",
    several(*block, "job"),
    several(*memory, "job")
)]
pub(super) struct TooShort {
    memory: usize,
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

/// A gain over some blocks, and what is left in each of them.
struct Gain {
    gain: f64,
    squares: f64,
    uncoded: f64,
    blocks: usize,
}

impl Gain {
    /// Of blocks with their seconds uncoded and coded.
    fn over(blocks: &[(f64, f64)]) -> Self {
        let uncoded: f64 = blocks.iter().map(|block| block.0).sum();
        let coded: f64 = blocks.iter().map(|block| block.1).sum();
        let part = if uncoded > 0.0 { coded / uncoded } else { 1.0 };
        let squares = blocks.iter().map(|(uncoded, coded)| (coded - part * uncoded).powi(2)).sum();
        Self { gain: 1.0 - part, squares, uncoded, blocks: blocks.len() }
    }
}

/// A gain over some jobs, and what is left of it without the block that speaks most for it: what
/// one block says is not enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
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
    /// Jobs of a block, at least.
    least: usize,
}

impl<'a> Judge<'a> {
    /// With the memory that the seconds under these schemes have.
    pub(super) fn new(uncoded: &'a Seconds, fastest: &Seconds) -> Self {
        let saved = uncoded.each().zip(fastest.each()).map(|(uncoded, fastest)| uncoded - fastest);
        let all: [Vec<f64>; 3] =
            [uncoded.each().collect(), fastest.each().collect(), saved.collect()];
        let memory = all.iter().map(|series| memory(series)).max().unwrap_or(1);
        let least = match memory {
            1 => SHORTEST,
            memory => (MEMORIES * memory as f64).ceil() as usize,
        };
        Self { uncoded, half: uncoded.jobs() / 2, memory, least }
    }

    /// What the half that decides says of a scheme.
    pub(super) fn deciding(&self, scheme: &Seconds) -> Seen {
        self.seen(scheme, self.half)
    }

    /// What all jobs say of a scheme, for those who try it and see.
    pub(super) fn whole(&self, scheme: &Seconds) -> Seen {
        self.seen(scheme, self.uncoded.jobs())
    }

    fn seen(&self, scheme: &Seconds, jobs: usize) -> Seen {
        let block = self.least.max(jobs / BLOCKS_MOST).min(jobs / DECIDING_LEAST);
        let mut blocks = self.timed(&edges(0, jobs, block.max(1)), |_| scheme);
        let Gain { gain, squares, uncoded, blocks: count } = Gain::over(&blocks);
        let free = count.saturating_sub(1).max(1) as f64;
        let error = (count as f64 * squares / free * self.beside(block)).sqrt()
            / uncoded.max(f64::MIN_POSITIVE);
        let student = count.saturating_sub(DECIDING_LEAST).min(STUDENT_ONE_SIDED.len() - 1);
        let least = gain - STUDENT_ONE_SIDED[student] * error;
        let saved = |block: &(f64, f64)| block.0 - block.1;
        let best =
            (0..blocks.len()).max_by(|a, b| saved(&blocks[*a]).total_cmp(&saved(&blocks[*b])));
        if let Some(best) = best {
            blocks.swap_remove(best);
        }
        Seen { gain, least, without_best: Gain::over(&blocks).gain }
    }

    /// By how much blocks of so many jobs that lie side by side widen a variance.
    fn beside(&self, block: usize) -> f64 {
        1.0 + BESIDE * self.memory as f64 / block.max(1) as f64
    }

    fn timed<'b>(&self, edges: &[usize], chosen: impl Fn(usize) -> &'b Seconds) -> Vec<(f64, f64)> {
        let block = |ends: &[usize]| {
            let (from, to) = (ends[0], ends[1]);
            (self.uncoded.between(from, to), chosen(from).between(from, to))
        };
        edges.windows(2).map(block).collect()
    }

    /// How sure the gain of the fastest of these schemes is, `uncoded` being one of them.
    pub(super) fn interval(&self, schemes: &[Seconds]) -> Result<GainInterval, TooShort> {
        let jobs = self.uncoded.jobs();
        let judging = jobs - self.half;
        let block = self.least.max(judging / BLOCKS_MOST);
        let blocks = judging / block;
        if blocks < BLOCKS_LEAST {
            return Err(TooShort { memory: self.memory, block, blocks });
        }
        let fastest = |before: usize| {
            let fastest = schemes.iter().min_by(|a, b| a.0[before].total_cmp(&b.0[before]));
            fastest.unwrap_or(self.uncoded)
        };
        let judged = Gain::over(&self.timed(&edges(self.half, jobs, block), fastest));
        let decided = fastest(self.half);
        let earlier = Gain::over(&self.timed(&edges(0, self.half, block), |_| decided));
        let count = (judged.blocks + earlier.blocks - 2) as f64;
        let variance = (judged.squares + earlier.squares) / count;
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

/// How many jobs in a row hang together: the first distance at which they do not any more.
fn memory(series: &[f64]) -> usize {
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
