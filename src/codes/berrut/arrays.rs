//! Encoding and decoding of arrays: the matrices of the code, applied by the one combine operation.

use super::code::{BerrutCode, column_sums};
use super::error::BerrutError;
use super::interpolate::Interpolant;
use super::received::{Gram, ReceivedOutputs};
use super::secure::{ByzantineDefence, Evidence, Locator, Verdict};
use crate::gpu::{Real, gram, signed_fold};
use crate::ids::Worker;
use ndarray::{Array, ArrayView, Dimension};
use std::collections::BTreeMap;

/// Up to so many elements the exact inner products are taken; beyond, those of sketches.
const EXACT_MAX: usize = 1 << 16;
/// Elements of the sketches behind inner products.
const BUCKETS: usize = 4096;
/// Columns that the DCT locators look at: elements where there are so few, else sketches.
const COLUMNS: usize = 64;
/// An accusation from sketches within this factor of its thresholds is confirmed on the exact
/// products.
const BORDERLINE: f64 = 1.5;

impl BerrutCode {
    /// The shares of all workers, one per worker.
    ///
    /// # Formula
    /// ```text
    /// share_i = sum_j E_ij X_j
    /// ```
    /// where `X_j` are `K` arrays of one shape. Cost: N K multiply-adds per element.
    ///
    /// # Errors
    /// [`BerrutError::BlockCount`] unless there are `K` blocks, [`BerrutError::BlockShape`] when
    /// their shapes differ.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Points};
    /// use ndarray::array;
    /// let code = BerrutCode::new(2, 6, Points::FirstKind, Encoder::Berrut)?;
    /// let (a, b) = (array![[1.0f32, 2.0]], array![[3.0, 4.0]]);
    /// let shares = code.encode(&[a.view(), b.view()])?;
    /// assert_eq!(shares[1], a, "worker 1 sits at the point of block 0");
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn encode<T: Real, D: Dimension>(
        &self,
        blocks: &[ArrayView<'_, T, D>],
    ) -> Result<Vec<Array<T, D>>, BerrutError> {
        let Some(first) = blocks.first().filter(|_| blocks.len() == self.blocks()) else {
            return Err(BerrutError::BlockCount { expected: self.blocks(), found: blocks.len() });
        };
        if let Some(block) = blocks.iter().position(|block| block.shape() != first.shape()) {
            let (expected, found) = (first.shape().to_vec(), blocks[block].shape().to_vec());
            return Err(BerrutError::BlockShape { block, expected, found });
        }
        let owned: Vec<_> = blocks.iter().map(|block| block.as_standard_layout()).collect();
        let slices: Vec<&[T]> = owned.iter().map(|block| block.as_slice().unwrap_or(&[])).collect();
        Ok(self.rows().iter().map(|row| combined(row, &slices, first.raw_dim())).collect())
    }
}

/// `sum_i w_i x_i` as a new array; what has weight 0 is not read.
fn combined<T: Real, D: Dimension>(weights: &[f64], slices: &[&[T]], shape: D) -> Array<T, D> {
    let (weights, slices): (Vec<f64>, Vec<&[T]>) =
        weights.iter().zip(slices).filter(|(w, _)| **w != 0.0).unzip();
    let mut out = Array::from_elem(shape, T::default());
    let combined = out.as_slice_mut().map(|out| T::combine(&weights, &slices, out));
    assert_eq!(
        combined,
        Some(Ok(())),
        "a new array is contiguous and as long as those it is made of"
    );
    out
}

/// What became of a decode besides its outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct BerrutReport {
    /// Whose outputs were used, ascending.
    pub used: Vec<Worker>,
    /// Whose outputs were not finite, or too large to be squared: erased.
    pub not_finite: Vec<Worker>,
    /// The decoder's matrix `[K x N]`, 0 for those that were not used.
    pub weights: Vec<Vec<f64>>,
    /// What the decoder found out about Byzantine workers; none if it looked for none.
    pub verdict: Option<Verdict>,
}

/// Decoded outputs, and how they came about.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedOutputs<T, D: Dimension> {
    /// One array for each data block, or their sum alone.
    pub outputs: Vec<Array<T, D>>,
    /// How they came about.
    pub report: BerrutReport,
}

/// Gathers outputs as they arrive, in any order, and decodes what has come.
///
/// ```
/// use codedgrad::codes::berrut::{
///     BerrutCode, BerrutDecoder, ByzantineDefence, Encoder, Interpolant, Points,
/// };
/// use codedgrad::ids::Worker;
/// use ndarray::{Array1, array};
/// let code = BerrutCode::new(2, 14, Points::FirstKind, Encoder::Spline)?;
/// let blocks: [Array1<f64>; 2] = [array![0.1, 0.9], array![-0.4, 0.3]];
/// let shares = code.encode(&[blocks[0].view(), blocks[1].view()])?;
/// let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE)
///     .secured(ByzantineDefence { byzantine: 1, ..ByzantineDefence::default() });
/// for (worker, share) in Worker::all(14).zip(&shares).filter(|(worker, _)| worker.0 != 3) {
///     let output = if worker.0 == 8 { array![100.0, -100.0] } else { share.mapv(f64::tanh) };
///     decoder.arrive(worker, output)?;
/// }
/// let decoded = decoder.decode(7)?;
/// assert_eq!(decoded.report.verdict.unwrap().trimmed.workers, [Worker(8)]);
/// assert!((decoded.outputs[1][0] - f64::tanh(-0.4)).abs() < 0.01);
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BerrutDecoder<'a, T, D: Dimension> {
    code: &'a BerrutCode,
    by: Interpolant,
    security: Option<ByzantineDefence>,
    outputs: BTreeMap<Worker, Array<T, D>>,
    not_finite: Vec<Worker>,
}

impl<'a, T: Real, D: Dimension> BerrutDecoder<'a, T, D> {
    /// An empty decoder that trusts all workers.
    #[must_use]
    pub fn new(code: &'a BerrutCode, by: Interpolant) -> Self {
        Self { code, by, security: None, outputs: BTreeMap::new(), not_finite: Vec::new() }
    }

    /// The same, looking for Byzantine workers before it decodes.
    #[must_use]
    pub fn secured(self, security: ByzantineDefence) -> Self {
        Self { security: Some(security), ..self }
    }

    /// An output has arrived; true if it can be used, false if it is not finite and so counts as a
    /// straggler's. Keeps the output.
    ///
    /// # Errors
    /// [`BerrutError::UnknownWorker`], [`BerrutError::Duplicate`] for a second output of one
    /// worker, and [`BerrutError::OutputShape`] for another shape than those before it.
    pub fn arrive(&mut self, worker: Worker, output: Array<T, D>) -> Result<bool, BerrutError> {
        let workers = self.code.workers();
        if worker.index() >= workers {
            return Err(BerrutError::UnknownWorker { worker, workers });
        }
        if self.outputs.contains_key(&worker) || self.not_finite.contains(&worker) {
            return Err(BerrutError::Duplicate { worker });
        }
        if let Some(first) =
            self.outputs.values().next().filter(|first| first.shape() != output.shape())
        {
            let (expected, found) = (first.shape().to_vec(), output.shape().to_vec());
            return Err(BerrutError::OutputShape { worker, expected, found });
        }
        let finite = output.iter().all(|x| x.finite());
        if finite {
            let output = if output.is_standard_layout() {
                output
            } else {
                output.as_standard_layout().into_owned()
            };
            self.outputs.insert(worker, output);
        } else {
            self.not_finite.push(worker);
        }
        Ok(finite)
    }

    /// How many usable outputs have arrived.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.outputs.len()
    }

    /// The outputs of all data blocks from what has arrived so far, best effort without security.
    ///
    /// # Formula
    /// ```text
    /// f(X_j) ~ sum_i D_ji y_i,  i over the survivors that were not located as wrong
    /// ```
    /// `seed` drives the sketches of outputs of more than 65,536 elements: draw it after the last
    /// answer, from a source the workers cannot foresee, or a wrong one can hide. Accusations near
    /// a threshold are confirmed on the outputs themselves. Cost: the locator, then K passes over
    /// the used outputs.
    ///
    /// # Errors
    /// [`BerrutError::NoSurvivors`] when nothing usable has arrived, the refusals of
    /// [`ByzantineDefence::capacity`], and those of the interpolant when too few outputs are left
    /// for it.
    pub fn decode(&self, seed: u64) -> Result<DecodedOutputs<T, D>, BerrutError> {
        let (rows, report) = self.plan(seed)?;
        Ok(self.applied(&rows, report))
    }

    /// The sum of all decoded outputs, from one pass over what has arrived instead of `K`.
    ///
    /// # Errors
    /// As [`BerrutDecoder::decode`].
    pub fn decode_sum(&self, seed: u64) -> Result<DecodedOutputs<T, D>, BerrutError> {
        let (rows, report) = self.plan(seed)?;
        Ok(self.applied(&[column_sums(&rows)], report))
    }

    fn applied(&self, rows: &[Vec<f64>], report: BerrutReport) -> DecodedOutputs<T, D> {
        let slices = self.slices(&report.used);
        let shape = self.outputs[&report.used[0]].raw_dim();
        DecodedOutputs {
            outputs: rows.iter().map(|row| combined(row, &slices, shape.clone())).collect(),
            report,
        }
    }

    fn slices(&self, workers: &[Worker]) -> Vec<&[T]> {
        workers.iter().map(|worker| self.outputs[worker].as_slice().unwrap_or(&[])).collect()
    }

    /// Who is used, and with which weights `[K x used]`.
    fn plan(&self, seed: u64) -> Result<(Vec<Vec<f64>>, BerrutReport), BerrutError> {
        let mut survivors: Vec<Worker> = self.outputs.keys().copied().collect();
        let mut not_finite = self.not_finite.clone();
        let verdict = match &self.security {
            None => None,
            Some(security) => {
                // What cannot be squared is found on the way.
                security.capacity(self.code, survivors.len())?;
                Some(self.verdict(security, &mut survivors, &mut not_finite, seed)?)
            }
        };
        not_finite.sort_unstable();
        let wrong = verdict.as_ref().map_or(&[][..], |verdict| &verdict.trimmed.workers);
        let used: Vec<Worker> =
            survivors.into_iter().filter(|worker| !wrong.contains(worker)).collect();
        let rows = self.code.decode_rows(&used, self.by)?;
        let spread = |row: &Vec<f64>| {
            let mut all = vec![0.0; self.code.workers()];
            used.iter().zip(row).for_each(|(worker, weight)| all[worker.index()] = *weight);
            all
        };
        let weights = rows.iter().map(spread).collect();
        Ok((rows, BerrutReport { used, not_finite, weights, verdict }))
    }

    fn verdict(
        &self,
        security: &ByzantineDefence,
        survivors: &mut Vec<Worker>,
        not_finite: &mut Vec<Worker>,
        seed: u64,
    ) -> Result<Verdict, BerrutError> {
        let length = self.outputs.values().next().map_or(0, Array::len);
        if matches!(security.locator, Locator::Dct { .. }) {
            let columns: Vec<Vec<f64>> = if length <= COLUMNS {
                self.slices(survivors)
                    .iter()
                    .map(|x| x.iter().map(|x| x.wide()).collect())
                    .collect()
            } else {
                signed_fold(&self.slices(survivors), COLUMNS, seed)
            };
            let squares = |x: &Vec<f64>| x.iter().map(|x| x * x).sum::<f64>();
            let columns: Vec<Vec<f64>> =
                erase(survivors, not_finite, columns, |x| squares(x).is_finite());
            security.capacity(self.code, survivors.len())?;
            let outputs: Vec<&[f64]> = columns.iter().map(|x| &x[..]).collect();
            return security.judge(
                self.code,
                &Evidence::Outputs(ReceivedOutputs::new(self.code, survivors, &outputs)?),
            );
        }
        let sketched = length > EXACT_MAX;
        let products = if sketched {
            let sketches = signed_fold(&self.slices(survivors), BUCKETS, seed);
            gram(&sketches.iter().map(|x| &x[..]).collect::<Vec<_>>())
        } else {
            gram(&self.slices(survivors))
        };
        let verdict =
            security.judge(self.code, &self.products(survivors, not_finite, &products)?)?;
        if sketched && borderline(security, &verdict) {
            let products = gram(&self.slices(survivors));
            return security.judge(self.code, &self.products(survivors, not_finite, &products)?);
        }
        Ok(verdict)
    }

    /// The Gram matrix of those whose norm is finite; the others are erased.
    fn products(
        &self,
        survivors: &mut Vec<Worker>,
        not_finite: &mut Vec<Worker>,
        products: &[f64],
    ) -> Result<Evidence, BerrutError> {
        let count = survivors.len();
        let finite: Vec<usize> =
            (0..count).filter(|i| products[i * count + i].is_finite()).collect();
        let entries: Vec<f64> = finite
            .iter()
            .flat_map(|i| finite.iter().map(|j| (*i, *j)))
            .map(|(i, j)| products[i * count + j])
            .collect();
        erase(survivors, not_finite, (0..count).collect(), |i| finite.contains(i));
        Ok(Evidence::Products(Gram::new(self.code, survivors, &entries)?))
    }
}

/// Keeps the survivors whose item is fit; the others are named as not finite.
fn erase<X>(
    survivors: &mut Vec<Worker>,
    not_finite: &mut Vec<Worker>,
    items: Vec<X>,
    fit: impl Fn(&X) -> bool,
) -> Vec<X> {
    let (kept, lost): (Vec<_>, Vec<_>) =
        survivors.iter().copied().zip(items).partition(|(_, item)| fit(item));
    not_finite.extend(lost.into_iter().map(|(worker, _)| worker));
    let (workers, items) = kept.into_iter().unzip();
    *survivors = workers;
    items
}

/// Whether the noise of sketches alone may have accused a worker.
fn borderline(security: &ByzantineDefence, verdict: &Verdict) -> bool {
    let Locator::Robust(tolerance) = security.locator else { return false };
    let found = &verdict.trimmed;
    found.scores.iter().any(|score| *score < BORDERLINE * tolerance.tau)
        || found.sizes.iter().any(|size| *size < BORDERLINE * tolerance.floor)
}
