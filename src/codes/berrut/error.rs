//! What can be wrong with a Berrut code's parameters, lists and arrays.

use crate::ids::Worker;
use thiserror::Error;

/// Parameters, workers or arrays that a Berrut code cannot take.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum BerrutError {
    /// There is nothing to encode.
    #[error("0 data blocks: a code needs at least 1")]
    NoBlocks,
    /// `K` must not exceed `N`.
    #[error("{blocks} data blocks on {workers} workers: K must be from 1 to {workers}")]
    TooManyBlocks {
        /// Data blocks, `K`.
        blocks: usize,
        /// Workers, `N`.
        workers: usize,
    },
    /// A worker that the code does not have.
    #[error("there is no {worker}: workers are 0 to {}", workers - 1)]
    UnknownWorker {
        /// Who was named.
        worker: Worker,
        /// Workers of the code.
        workers: usize,
    },
    /// A worker that is listed or has answered already.
    #[error("{worker} is there twice: every worker counts once")]
    Duplicate {
        /// Who.
        worker: Worker,
    },
    /// A list of workers that is not in ascending order.
    #[error("{after} is listed after {before}: lists of workers ascend")]
    Unsorted {
        /// The larger number, which comes first.
        before: Worker,
        /// The smaller one, behind it.
        after: Worker,
    },
    /// No worker has answered.
    #[error("no finite output has arrived: a decode needs at least 1")]
    NoSurvivors,
    /// Points that do not ascend or descend.
    #[error(
        "point {index} is {value}: interpolation points are finite and all ascend or all descend"
    )]
    Node {
        /// Which point.
        index: usize,
        /// Its value.
        value: f64,
    },
    /// A dimension that is 0 or larger than the number of outputs.
    #[error(
        "dimension {dimension} with {survivors} outputs: a fit of degree below m needs m from 1 to \
         {survivors}"
    )]
    Dimension {
        /// Asked for, `m`.
        dimension: usize,
        /// Outputs that there are.
        survivors: usize,
    },
    /// A blending degree that needs more outputs.
    #[error(
        "Floater-Hormann of degree {degree} needs more than {degree} outputs, {survivors} are there"
    )]
    Degree {
        /// Asked for, `d`.
        degree: usize,
        /// Outputs that there are.
        survivors: usize,
    },
    /// A smoothing parameter that is none.
    #[error("smoothing {smoothing}: must be finite and 0 or more")]
    Smoothing {
        /// What was given.
        smoothing: f64,
    },
    /// Thresholds that are none.
    #[error("{name} {value}: must be a number of 0 or more")]
    Threshold {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// The decoding radius of a DCT code is exceeded.
    #[error(
        "A={wrong} Byzantine workers and s={stragglers} stragglers of N={workers} with dimension \
         m={dimension}: \
         2A + s = {} is more than N - m = {}; at most A={} can be located",
        2 * wrong + stragglers, workers.saturating_sub(*dimension), workers.saturating_sub(dimension + stragglers) / 2
    )]
    Radius {
        /// Byzantine workers to be located, `A`.
        wrong: usize,
        /// Missing outputs, `s`.
        stragglers: usize,
        /// Workers of the code, `N`.
        workers: usize,
        /// Dimension of the code, `m`.
        dimension: usize,
    },
    /// Too few honest outputs would be left to tell who is wrong.
    #[error(
        "A={wrong} Byzantine workers among n={survivors} outputs: n - 2A must be at least 1.5 K = \
         {needed} for K={blocks} data blocks; \
         at most A={} can be located, or the limit be overridden (--force)",
        survivors.saturating_sub(*needed) / 2
    )]
    Redundancy {
        /// Byzantine workers to be located, `A`.
        wrong: usize,
        /// Outputs that there are, `n`.
        survivors: usize,
        /// Data blocks, `K`.
        blocks: usize,
        /// `ceil(1.5 K)`.
        needed: usize,
    },
    /// More Byzantine workers than can be left out at all.
    #[error("A={wrong} Byzantine workers among {survivors} outputs: at least \
        {needed} must be left; at most A={} is possible", survivors.saturating_sub(*needed))]
    NothingLeft {
        /// Byzantine workers to be located, `A`.
        wrong: usize,
        /// Outputs that there are.
        survivors: usize,
        /// Outputs that must be left.
        needed: usize,
    },
    /// DCT codes live on points of the first kind.
    #[error(
        "outputs at Chebyshev points of the second kind are no DCT codeword: securing needs points \
         of the first kind"
    )]
    NotACodeword,
    /// A wrong number of data blocks.
    #[error("{found} data blocks for a code of {expected}")]
    BlockCount {
        /// Blocks of the code.
        expected: usize,
        /// Blocks given.
        found: usize,
    },
    /// Data blocks of different shapes.
    #[error(
        "data block {block} has shape {found:?}, block 0 has {expected:?}: all blocks need one \
         shape"
    )]
    BlockShape {
        /// Which block.
        block: usize,
        /// Shape of the first.
        expected: Vec<usize>,
        /// Its shape.
        found: Vec<usize>,
    },
    /// Outputs of different shapes.
    #[error("the output of {worker} has shape {found:?}, those before it {expected:?}")]
    OutputShape {
        /// Whose output.
        worker: Worker,
        /// Shape of the outputs before it.
        expected: Vec<usize>,
        /// Its shape.
        found: Vec<usize>,
    },
}
