//! Decodes judged by the rows of their code: what a decoder reports of its weights is not believed.

use super::{Choice, Decoder, GradientCode, Report};
use crate::ids::{Share, Worker, WorkerSet};
use std::sync::Arc;
use thiserror::Error;

/// How far a reported number may be from the judged one, by one more than that.
const REPORT_SLACK: f64 = 1e-9;
/// Up to here weights of few messages are not worth exchanging for shorter ones.
const AMPLIFICATION_FINE: f64 = 2.0;

/// A decoder whose weights or report cannot be right, as the rows of its code show.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Defect {
    /// A message is used that is not there.
    #[error("its decoder gives {worker} the weight {weight}, whose message has not arrived")]
    Weight {
        /// Whose message.
        worker: Worker,
        /// The weight.
        weight: f64,
    },
    /// A report that is not what [`judge`](super::judge) says.
    #[error(
        "its decoder reports {what} {reported:e}, but the weights that it gives have {judged:e} by \
         the rows"
    )]
    Report {
        /// Which number of the report.
        what: &'static str,
        /// What the decoder says.
        reported: f64,
        /// What rows and weights give.
        judged: f64,
    },
}

/// A decode, judged by the rows of its code.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedDecode {
    /// The weights, one per worker.
    pub weights: Vec<f64>,
    /// How good they are by the rows, not by the decoder; only whether the code's own rule is
    /// satisfied is its word.
    pub report: Report,
    /// What is wrong with the decoder.
    pub defect: Option<Defect>,
}

/// Decodes one set of survivors from scratch, and says what is wrong with the decoder, if anything
/// is.
///
/// ```
/// use codedgrad::codes::{Choice, Groups, decode_judged};
/// use codedgrad::ids::WorkerSet;
/// let judged = decode_judged(&Groups::new(4, 2)?, &WorkerSet::full(4), Choice::Fewest);
/// assert_eq!((judged.report.error, judged.defect), (0.0, None));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[must_use]
pub fn decode_judged(
    code: &dyn GradientCode,
    survivors: &WorkerSet,
    choice: Choice,
) -> JudgedDecode {
    let mut decoder = code.decoder();
    for worker in survivors.iter() {
        decoder.arrive(worker);
    }
    let mut weights = vec![0.0; code.facts().workers];
    let reported = decoder.weights(choice, &mut weights);
    let shares = &code.facts().share_weights;
    let row = |worker| (code.row(worker), None);
    let report = assess(row, shares, &weights, &mut vec![0.0; shares.len()], reported.decodable);
    let defect = defect(survivors.complement().iter(), &weights, &reported, &report);
    JudgedDecode { weights, report, defect }
}

/// The rows of a code, one after the other: sets are judged by the ten thousand, and asking the
/// code for a row costs as much as reading it.
pub(super) struct Rows {
    share_weights: Vec<f64>,
    entries: Vec<(Share, f64)>,
    /// Where each worker's row ends, and its [`norm`].
    ends: Vec<(usize, f64)>,
}

impl Rows {
    pub(super) fn new(code: &dyn GradientCode) -> Self {
        let mut entries = Vec::new();
        let ends = Worker::all(code.facts().workers).map(|worker| {
            let row = code.row(worker);
            entries.extend_from_slice(row);
            (entries.len(), norm(row))
        });
        let ends = ends.collect();
        Self { share_weights: code.facts().share_weights.clone(), entries, ends }
    }

    fn of(&self, worker: Worker) -> (&[(Share, f64)], Option<f64>) {
        let (end, norm) = self.ends[worker.index()];
        let begin = worker.index().checked_sub(1).map_or(0, |before| self.ends[before].0);
        (&self.entries[begin..end], Some(norm))
    }
}

/// Judges decodes of one code; nothing is allocated for one more.
pub(super) struct CodeJudge {
    rows: Arc<Rows>,
    /// What each share's coefficient is in the decoded gradient.
    alpha: Vec<f64>,
    weights: Vec<f64>,
    shorter: Vec<f64>,
}

impl CodeJudge {
    pub(super) fn new(rows: Arc<Rows>) -> Self {
        let alpha = vec![0.0; rows.share_weights.len()];
        Self { rows, alpha, weights: Vec::new(), shorter: Vec::new() }
    }

    /// How good weights are where some workers have not arrived, and what is wrong with their
    /// decoder. O(n + k + entries of the rows with a weight).
    pub(super) fn judge(
        &mut self,
        missing: impl Iterator<Item = Worker>,
        weights: &[f64],
        reported: &Report,
    ) -> (Report, Option<Defect>) {
        let rows = &*self.rows;
        let (shares, row) = (&rows.share_weights, |worker| rows.of(worker));
        let judged = assess(row, shares, weights, &mut self.alpha, reported.decodable);
        (judged, defect(missing, weights, reported, &judged))
    }

    /// Decodes as a run does: with as few messages as possible, unless that amplifies and the
    /// shortest weights amplify less. [`CodeJudge::weights`] has the weights then.
    pub(super) fn weigh(
        &mut self,
        decoder: &mut dyn Decoder,
        arrived: &WorkerSet,
    ) -> (Report, Option<Defect>) {
        let missing =
            || Worker::all(arrived.capacity()).filter(|worker| !arrived.contains(*worker));
        let mut weights = std::mem::take(&mut self.weights);
        weights.resize(arrived.capacity(), 0.0);
        let reported = decoder.weights(Choice::Fewest, &mut weights);
        let (fewest, defect) = self.judge(missing(), &weights, &reported);
        self.weights = weights;
        if fewest.amplification <= AMPLIFICATION_FINE || defect.is_some() {
            return (fewest, defect);
        }
        let mut shorter = std::mem::take(&mut self.shorter);
        shorter.resize(arrived.capacity(), 0.0);
        let reported = decoder.weights(Choice::MinimumNorm, &mut shorter);
        let (shortest, defect) = self.judge(missing(), &shorter, &reported);
        self.shorter = shorter;
        if shortest.amplification >= fewest.amplification && defect.is_none() {
            return (fewest, None);
        }
        std::mem::swap(&mut self.weights, &mut self.shorter);
        (shortest, defect)
    }

    /// The weights that were decided on last.
    pub(super) fn weights(&self) -> &[f64] {
        &self.weights
    }
}

/// What is wrong with the decoder of some weights, where these workers are missing.
fn defect(
    mut missing: impl Iterator<Item = Worker>,
    weights: &[f64],
    reported: &Report,
    judged: &Report,
) -> Option<Defect> {
    let absent = missing.find_map(|worker| {
        let weight = weights[worker.index()];
        (weight != 0.0).then_some(Defect::Weight { worker, weight })
    });
    absent.or_else(|| difference(reported, judged))
}

/// The first number of a report that is not the judged one.
fn difference(reported: &Report, judged: &Report) -> Option<Defect> {
    let numbers = [
        ("the residual", reported.residual, judged.residual),
        ("the amplification", reported.amplification, judged.amplification),
        ("the coverage", reported.coverage, judged.coverage),
        ("the error", reported.error, judged.error),
    ];
    // What is no number is never within the slack, and infinities are equal.
    let agree = |x: f64, y: f64| x == y || (x - y).abs() <= REPORT_SLACK * (1.0 + y.abs());
    let differs = |(_, reported, judged): &(_, f64, f64)| !agree(*reported, *judged);
    let (what, reported, judged) = numbers.into_iter().find(differs)?;
    Some(Defect::Report { what, reported, judged })
}

/// The workers whose messages are used, and their weights.
fn used(weights: &[f64]) -> impl Iterator<Item = (Worker, f64)> {
    let all = Worker::all(weights.len()).zip(weights);
    all.filter(|(_, weight)| **weight != 0.0).map(|(worker, weight)| (worker, *weight))
}

/// The sum of squares of a row.
fn norm(row: &[(Share, f64)]) -> f64 {
    row.iter().map(|(_, b)| b * b).sum()
}

/// What [`judge`](super::judge) computes; a worker's row, and its [`norm`] if that is known, are
/// asked for where it has a weight, and `alpha` has an element for each share and is overwritten.
pub(super) fn assess<'a>(
    row: impl Fn(Worker) -> (&'a [(Share, f64)], Option<f64>),
    share_weights: &[f64],
    weights: &[f64],
    alpha: &mut [f64],
    decodable: bool,
) -> Report {
    let shares = share_weights.len() as f64;
    alpha.fill(0.0);
    let mut noise = 0.0;
    for (worker, a) in used(weights) {
        let (row, known) = row(worker);
        let mut norm = known.unwrap_or_default();
        for &(share, b) in row {
            alpha[share.index()] += a * b;
            if known.is_none() {
                norm += b * b;
            }
        }
        noise += a * a * norm;
    }
    // What is no number must not pass a gate: `max` and `>` would overlook it.
    let number = |x: f64| if x.is_nan() { f64::INFINITY } else { x };
    let mut residual = 0.0f64;
    let mut coverage = 0.0f64;
    let mut squares = 0.0;
    // Without a branch for each share: sets are judged by the ten thousand.
    for (alpha, weight) in alpha.iter().zip(share_weights) {
        let off = alpha - 1.0;
        residual = if off.abs() > residual { off.abs() } else { residual };
        squares += off * off;
        coverage += if *alpha == 0.0 { 0.0 } else { *weight };
    }
    Report {
        decodable,
        // A share that is no number has made the sum of squares none.
        residual: if squares.is_nan() { f64::INFINITY } else { residual },
        amplification: number((noise / shares).sqrt()),
        coverage: coverage.min(1.0),
        error: number(squares / shares),
    }
}
