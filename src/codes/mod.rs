//! One-round gradient codes: who computes what with which coefficient, and with which weights the
//! messages of the survivors add up to the exact sum.
//!
//! A code is a small `f64` matrix `B` `[n x k]`. Worker `i` sends the message
//! `w_i = sum_j B_ij g_j`, where `g_j` is the gradient summed over share `j`. Decoding finds
//! weights `a`, zero for stragglers, with `sum_i a_i w_i = sum_j g_j`, that is `a B = 1`. Nothing
//! here touches a tensor, a clock, a socket or a random device.
//!
//! | file | code | source |
//! |---|---|---|
//! | [`groups`] | balanced group replication, the default; with `n` groups it is uncoded | Tandon et al. 2017, generalised |
//! | [`min_load`] | load exactly `(s+1)/n` for every `n` and `s` | own, in the groups of Tandon et al. |
//! | [`interval`] | intervals of the batch, for workers of unequal speed | own; Charalambides et al. 2020 |
//! | [`cyclic`] | cyclic repetition with random coefficients, the reference | Tandon et al. 2017, Algorithm 2 |
//! | [`graph`] | approximate, a random regular graph | Glasgow, Wootters 2020 |
//! | [`dense`] | a user's own matrix | |
//! | [`drop_slowest`] | the biased baseline that drops the slowest | backup workers, Chen et al. 2016 |
//! | `vote` | groups whose results are accepted by vote, against Byzantine ones | Chen et al. 2018 |
//! | `berrut` | any function of the data, not only sums (feature `berrut`) | Jahani-Nezhad, Maddah-Ali 2020; Borah, Harshan 2025 |
//! | [`verify()`] | whether every tolerated set of stragglers decodes | |
//! | [`spec`] | the scheme texts of the command line | |
//! | [`registry`] | the families of schemes that there are, and how to add one's own | |
//! | [`gate`] | what a decode must satisfy before it is applied | |
//! | [`sequential`] | the `Scheme` trait: codes as the round engine sees them | |

#[cfg(feature = "berrut")]
pub mod berrut;
pub mod cyclic;
pub mod dense;
mod disjoint;
pub mod drop_slowest;
mod dual;
mod error;
pub(crate) mod family;
pub mod feedback;
pub mod gate;
pub mod graph;
pub mod groups;
mod holders;
pub mod interval;
mod judged;
mod linear;
pub mod min_load;
mod mixtures;
pub mod registry;
pub mod sequential;
pub mod spec;
mod table;
mod verify;
mod vote;

pub use cyclic::Cyclic;
pub use dense::DenseCode;
pub use drop_slowest::DropSlowest;
pub use error::ParameterError;
pub use gate::{Alternative, Gate, GateError};
pub use graph::Graph;
pub use groups::Groups;
pub use interval::Interval;
pub use judged::{Defect, JudgedDecode, decode_judged};
pub use min_load::MinLoad;
pub use spec::SchemeSpec;
pub use table::TableError;
pub use verify::{FailedSet, Verification, verify};
pub use vote::{Dispute, Verifier};

use crate::ids::{Share, Worker, WorkerSet};

/// What is fixed about a one-round code once its parameters are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Number of workers, `n`.
    pub workers: usize,
    /// Fraction of the batch in each share; `k` entries that sum to 1.
    pub share_weights: Vec<f64>,
    /// Any so many stragglers are tolerated, `s`.
    pub tolerance: usize,
    /// Largest fraction of the batch that one worker touches; uncoded = 1/n.
    pub load: f64,
    /// Largest normalised error a decode may have and still be applied; 0 for exact codes.
    pub error_max: f64,
}

impl Facts {
    /// Number of shares, `k`.
    #[must_use]
    pub fn shares(&self) -> usize {
        self.share_weights.len()
    }
}

/// What one more message changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing: the decode is the same with and without it.
    Useless,
    /// It helps, but not enough has arrived yet.
    Pending,
    /// With it the code's own rule is satisfied (only the first such arrival says so).
    Decodable,
}

/// Which of several possible decode weights to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// As few messages as possible, earliest arrivals first: what a streaming fold uses. Exact
    /// codes with 0/1 weights then give the same bits no matter who straggled.
    Fewest,
    /// The weights of smallest Euclidean norm.
    MinimumNorm,
}

/// How good decode weights are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Whether the code's own rule is satisfied by what has arrived.
    pub decodable: bool,
    /// `max_j |(aB)_j - 1|`; 0 is exact.
    pub residual: f64,
    /// `sqrt(sum_i a_i^2 |B_i|^2 / k)`: growth of independent rounding errors; 1 = as uncoded.
    pub amplification: f64,
    /// Fraction of the batch whose coefficient in the decoded gradient is not 0.
    pub coverage: f64,
    /// `|aB - 1|^2 / k`, the normalised decoding error.
    pub error: f64,
}

/// One row of a code matrix: the shares a worker touches and their coefficients.
pub type Row = Vec<(Share, f64)>;

/// A one-round gradient code.
///
/// ```
/// use codedgrad::codes::{Choice, GradientCode, Groups, Status};
/// use codedgrad::ids::Worker;
/// let code = Groups::tolerating(6, 2)?;
/// let mut decoder = code.decoder();
/// assert_eq!(decoder.arrive(Worker(4)), Status::Pending);
/// assert_eq!(decoder.arrive(Worker(5)), Status::Useless);
/// assert_eq!(decoder.arrive(Worker(1)), Status::Decodable);
/// let mut weights = [0.0; 6];
/// let report = decoder.weights(Choice::Fewest, &mut weights);
/// assert_eq!(weights, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
/// assert_eq!((report.residual, report.amplification), (0.0, 1.0));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub trait GradientCode: Send + Sync {
    /// Numbers fixed by the parameters.
    fn facts(&self) -> &Facts;
    /// The row of a worker, shares in ascending order.
    ///
    /// # Panics
    /// When the worker is not below `facts().workers`.
    fn row(&self, worker: Worker) -> &[(Share, f64)];
    /// A decoder with nothing arrived.
    fn decoder(&self) -> Box<dyn Decoder>;
    /// Why any `facts().tolerance` stragglers are tolerated, in a few words; none where that is
    /// only claimed, and has to be tried.
    fn proof(&self) -> Option<&'static str> {
        None
    }
    /// When the answers that are in can be decoded, if all workers' come at these times; none where
    /// only a decoder can tell.
    fn decodable_at(&self, _times: &[f64]) -> Option<f64> {
        None
    }
}

/// Incremental decoding of one round: arrivals in, weights out.
pub trait Decoder: Send {
    /// A message has arrived; a second one of the same worker is [`Status::Useless`].
    fn arrive(&mut self, worker: Worker) -> Status;
    /// Weights for what has arrived, one per worker, 0 for those that have not; best effort where
    /// the code's rule is not satisfied.
    ///
    /// # Panics
    /// When `out` has not one entry per worker.
    fn weights(&mut self, choice: Choice, out: &mut [f64]) -> Report;
    /// Whether a decode may lack a part of the batch once no other answer can come.
    fn can_degrade(&self) -> bool {
        false
    }
    /// Forgets all arrivals.
    fn reset(&mut self);
}

/// Judges decode weights against a code matrix.
///
/// # Formula
/// ```text
/// alpha = a B          residual = max_j |alpha_j - 1|        error = |alpha - 1|^2 / k
/// amplification = sqrt( sum_i a_i^2 |B_i|^2 / k )            coverage = sum_{j: alpha_j != 0} weight_j
/// ```
/// where `a` `[n]` are the weights, `B` `[n x k]` the rows and `weight_j` the shares' fractions of
/// the batch.
///
/// # Panics
/// When there is not one weight per row.
///
/// ```
/// use codedgrad::codes::judge;
/// use codedgrad::ids::Share;
/// let rows = vec![vec![(Share(0), 1.0)], vec![(Share(1), 1.0)]];
/// let report = judge(&rows, &[0.5, 0.5], &[1.0, 0.0], false);
/// assert_eq!((report.residual, report.coverage, report.error), (1.0, 0.5, 0.5));
/// ```
#[must_use]
pub fn judge(rows: &[Row], share_weights: &[f64], weights: &[f64], decodable: bool) -> Report {
    assert_eq!(rows.len(), weights.len(), "one weight per worker");
    let mut alpha = vec![0.0; share_weights.len()];
    let row = |worker: Worker| (rows.get(worker.index()).map_or(&[][..], Vec::as_slice), None);
    judged::assess(row, share_weights, weights, &mut alpha, decodable)
}

/// Decodes one set of survivors from scratch; the report is what [`judge`] says, not the decoder.
/// [`decode_judged`] says too where these differ.
///
/// ```
/// use codedgrad::codes::{Choice, Groups, decode};
/// use codedgrad::ids::{Worker, WorkerSet};
/// let code = Groups::tolerating(4, 1)?;
/// let (weights, report) =
///     decode(&code, &WorkerSet::of(4, [Worker(1), Worker(2), Worker(3)]), Choice::MinimumNorm);
/// assert!(report.decodable);
/// assert_eq!(weights, [0.0, 1.0, 0.5, 0.5]);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[must_use]
pub fn decode(
    code: &dyn GradientCode,
    survivors: &WorkerSet,
    choice: Choice,
) -> (Vec<f64>, Report) {
    let JudgedDecode { weights, report, .. } = decode_judged(code, survivors, choice);
    (weights, report)
}
