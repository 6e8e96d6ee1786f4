//! Least trimmed squares: the set of workers without whom the rest fits best, under a smoothness
//! prior (the default) or a code of fixed dimension, and the re-admission of those who were accused
//! for nothing.

use super::error::BerrutError;
use super::received::Gram;
use super::search::Trim;
use crate::ids::Worker;
use nalgebra::{Cholesky, DMatrix, DVector, Dyn};

/// Exponents of the prior that are tried.
const EXPONENTS: [f64; 9] = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0];
/// Variance that every output has of its own.
const NUGGET: f64 = 1e-10;
/// Residuals below this count as this.
const TINY: f64 = 1e-300;
/// Outputs whose squared norm is this many times the median are left out before the search:
/// differences of numbers so unlike would lose the digits that tell the others apart.
const GIANT: f64 = 1e6;
/// Relative rounding of squared outputs.
const ROUNDING: f64 = 1e-30;
/// What is below this part of a whole residual is rounding of its downdate.
const DOWNDATE_ROUNDING: f64 = 1e-13;
/// Twice the log-likelihood of every coordinate that an accusation must gain.
const EVIDENCE: f64 = 1.0;

/// When an accused worker is taken back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub(super) tau: f64,
    pub(super) floor: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { tau: 4.0, floor: 0.5 }
    }
}

impl Tolerance {
    /// Errors of at most `tau` noise variances, or of at most `floor` times the outputs' rms, are
    /// tolerated. The default is 4 and 0.5: lower the floor to 0.2 for functions known to be rough.
    ///
    /// # Errors
    /// [`BerrutError::Threshold`] for numbers below 0 or none.
    ///
    /// ```
    /// use codedgrad::codes::berrut::Tolerance;
    /// assert_eq!(Tolerance::new(4.0, 0.5)?, Tolerance::default());
    /// assert!(Tolerance::new(-1.0, 0.5).is_err());
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn new(tau: f64, floor: f64) -> Result<Self, BerrutError> {
        for (name, value) in [("tau", tau), ("floor", floor)] {
            if value.is_nan() || value < 0.0 {
                return Err(BerrutError::Threshold { name, value });
            }
        }
        Ok(Self { tau, floor })
    }
}

/// Who is left out, and how well the rest fits.
#[derive(Clone, Debug, PartialEq)]
pub struct TrimmedFit {
    /// The workers left out, ascending.
    pub workers: Vec<Worker>,
    /// The residual of each, in noise variances: `t_j`.
    pub scores: Vec<f64>,
    /// The error of each, in units of the outputs' median rms.
    pub sizes: Vec<f64>,
    /// The exponent of the prior; none for a code of fixed dimension.
    pub exponent: Option<f64>,
    /// The residual of the rest, `J`.
    pub residual: f64,
    /// Noise variance of the rest, `J / (n - a)`, or `J / (n - a - m)` for a code of dimension `m`.
    pub variance: f64,
}

/// The covariance of outputs at the survivors' points for one exponent.
fn covariance(basis: &DMatrix<f64>, blocks: usize, exponent: f64) -> DMatrix<f64> {
    let mut scaled = basis.clone();
    for (k, mut column) in scaled.column_iter_mut().enumerate() {
        column *= (1.0 + (k as f64 / blocks as f64).powi(2)).powf(-exponent);
    }
    scaled * basis.transpose() + DMatrix::identity(basis.nrows(), basis.nrows()) * NUGGET
}

fn selected(matrix: &DMatrix<f64>, positions: &[usize]) -> DMatrix<f64> {
    matrix.select_rows(positions).select_columns(positions)
}

/// The factor of a covariance. The nugget keeps it positive; should rounding win after all, more of
/// it does.
fn factor(mut covariance: DMatrix<f64>) -> Cholesky<f64, Dyn> {
    let mut more = NUGGET;
    loop {
        if let Some(factor) = covariance.clone().cholesky() {
            return factor;
        }
        for i in 0..covariance.nrows() {
            covariance[(i, i)] += more;
        }
        more *= 10.0;
    }
}

fn others(count: usize, positions: &[usize]) -> Vec<usize> {
    (0..count).filter(|i| !positions.contains(i)).collect()
}

/// The best set of one exponent: positions, residual of the rest, and the profile likelihood
/// (smaller is better).
struct Fit {
    positions: Vec<usize>,
    exponent: f64,
    covariance: DMatrix<f64>,
    residual: f64,
    likelihood: f64,
    trim: Trim,
    log_determinant: f64,
}

/// The fits of all exponents, over the positions that are not beyond all proportion.
struct Profile {
    rest: Vec<usize>,
    fits: Vec<Fit>,
}

impl Profile {
    /// Minus twice the log-likelihood, per coordinate and less constants, of the outputs with free
    /// errors at these positions, the exponent fitted again. Positions beyond all proportion always
    /// have theirs.
    fn cost(&self, bad: &[usize]) -> f64 {
        let set: Vec<usize> =
            (0..self.rest.len()).filter(|i| bad.contains(&self.rest[*i])).collect();
        self.fits.iter().map(|fit| fit.cost(&set)).fold(f64::INFINITY, f64::min)
    }

    /// What taking back `j` costs in likelihood.
    fn evidence(&self, bad: &[usize], j: usize) -> f64 {
        if !self.rest.contains(&j) {
            return f64::INFINITY;
        }
        let without: Vec<usize> = bad.iter().copied().filter(|i| *i != j).collect();
        self.cost(&without) - self.cost(bad)
    }
}

impl Fit {
    fn cost(&self, set: &[usize]) -> f64 {
        let Some(left) = self.trim.left_out(set) else { return f64::INFINITY };
        let free = (self.trim.count() - set.len()) as f64;
        let residual = left.residual.max(DOWNDATE_ROUNDING * self.trim.total()).max(TINY);
        let errors: f64 = left.errors.iter().map(|error| error.max(TINY).ln()).sum();
        free * (residual / free).ln() + self.log_determinant + left.log_determinant + errors
    }
}

/// The best set for every exponent.
fn profile(gram: &Gram, wrong: usize) -> Profile {
    let (basis, count) = (gram.at.basis(gram.at.workers), gram.at.count());
    let giants = giants(gram, wrong);
    let rest = others(count, &giants);
    let rest_gram = selected(&gram.entries, &rest);
    let fit = |exponent: f64| {
        let covariance = covariance(&basis, gram.at.blocks, exponent);
        let whole = factor(selected(&covariance, &rest));
        let trim = Trim::of_gram(whole.inverse(), &rest_gram);
        let found = trim.best(wrong - giants.len());
        let mut positions: Vec<usize> =
            found.into_iter().map(|i| rest[i]).chain(giants.iter().copied()).collect();
        positions.sort_unstable();
        // Again on the outputs that are kept: differences lose all digits of a small residual
        // beside a large attack.
        let keep = others(count, &positions);
        let kept = factor(selected(&covariance, &keep));
        let residual = kept.solve(&selected(&gram.entries, &keep)).trace().max(TINY);
        let free = keep.len() as f64;
        let likelihood = free * (residual / free).ln() + kept.ln_determinant();
        Fit {
            positions,
            exponent,
            covariance,
            residual,
            likelihood,
            trim,
            log_determinant: whole.ln_determinant(),
        }
    };
    let fits = EXPONENTS.into_iter().map(fit).collect();
    Profile { rest, fits }
}

/// Positions of outputs beyond all proportion, at most `most`, the largest first.
fn giants(gram: &Gram, most: usize) -> Vec<usize> {
    let limit = GIANT * median(gram.entries.diagonal().as_slice());
    let norm = |i: &usize| gram.entries[(*i, *i)];
    let mut giants: Vec<usize> =
        (0..gram.at.count()).filter(|i| limit > 0.0 && norm(i) > limit).collect();
    giants.sort_by(|a, b| norm(b).total_cmp(&norm(a)));
    giants.truncate(most);
    giants
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) }
}

/// The residuals of the best sets, one for each exponent tried, for those who want to see the
/// choice.
///
/// ```
/// use codedgrad::codes::berrut::{residuals_by_exponent, BerrutCode, Encoder, Gram, Points};
/// use codedgrad::ids::Worker;
/// let code = BerrutCode::new(1, 2, Points::FirstKind, Encoder::Spline)?;
/// let gram = Gram::new(&code, &[Worker(0), Worker(1)], &[1.0, 1.0, 1.0, 1.0])?;
/// assert_eq!(residuals_by_exponent(&gram, 0)?.len(), 9);
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
///
/// # Errors
/// [`BerrutError::NothingLeft`] unless there are more outputs than `wrong`.
pub fn residuals_by_exponent(gram: &Gram, wrong: usize) -> Result<Vec<(f64, f64)>, BerrutError> {
    enough(gram, wrong, 1)?;
    Ok(profile(gram, wrong).fits.into_iter().map(|fit| (fit.exponent, fit.residual)).collect())
}

fn enough(gram: &Gram, wrong: usize, needed: usize) -> Result<(), BerrutError> {
    let survivors = gram.at.count();
    if wrong + needed > survivors {
        Err(BerrutError::NothingLeft { wrong, survivors, needed })
    } else {
        Ok(())
    }
}

/// The default locator: exactly `wrong` workers by least trimmed squares under a smoothness prior,
/// then those taken back whose error is within the tolerance.
///
/// # Formula
/// ```text
/// Sigma_q = V diag( (1 + (k/K)^2)^-q ) V^T + 1e-10 I,  V = [T_k(z_i)], k < N
/// E_q     = argmin over |E| = A of J = tr( Sigma_KK^-1 G_KK ),  K the outputs not in E
/// q       = argmin (n-A) ln(J / (n-A)) + ln det Sigma_KK        over q = 1, 1.5, 2, 3, 4, 6, 8,
/// 12, 16 worker j of E is taken back, the smallest t_j first, while  t_j <= tau  or  rel_j <=
/// floor  or  gain_j <= 1: t_j = e_j / L_jj / (J / (n-A))    rel_j = sqrt( e_j / L_jj^2 / med_i
/// G_ii )    e_j = L_j G L_j^T
/// ```
/// where `G` is the Gram matrix of the `n` survivors, and `L` the inverse of `Sigma` over the
/// outputs kept and `j`: `t` is the error in noise variances, `rel` in units of the outputs' rms.
/// `gain` is how much less likely the outputs are without a free error for `j`, `q` fitted again:
/// twice the log-likelihood of every coordinate. It alone notices that a set was only accused
/// because `q` is too smooth for honest workers. Taking back is not optional: with `A` larger than
/// the truth, trimming alone throws away the roughest honest workers and with them the accuracy.
/// Cost: O(n^3 + C(n, A)) for each q, at most 200,000 sets; greedy with exchanges beyond.
///
/// Source: our own; least trimmed squares are Rousseeuw's (JASA 1984).
///
/// # Errors
/// [`BerrutError::NothingLeft`] unless there are more outputs than `wrong`.
///
/// ```
/// use codedgrad::codes::berrut::{
///     BerrutCode, Encoder, Points, ReceivedOutputs, Tolerance, robust_locate,
/// };
/// use codedgrad::ids::Worker;
/// let code = BerrutCode::new(2, 12, Points::FirstKind, Encoder::Spline)?;
/// let workers: Vec<Worker> = Worker::all(12).collect();
/// let mut outputs: Vec<[f64; 1]> =
///     code.worker_points().iter().map(|z| [(1.0 + z).sqrt()]).collect();
/// outputs[7][0] += 5.0;
/// let outputs: Vec<&[f64]> = outputs.iter().map(|y| &y[..]).collect();
/// let received = ReceivedOutputs::new(&code, &workers, &outputs)?;
/// let found = robust_locate(&received.gram(), 2, Tolerance::default())?;
/// assert_eq!(found.workers, [Worker(7)], "two may be wrong, one is");
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
pub fn robust_locate(
    gram: &Gram,
    wrong: usize,
    tolerance: Tolerance,
) -> Result<TrimmedFit, BerrutError> {
    enough(gram, wrong, 1)?;
    let profile = profile(gram, wrong);
    let Some(fit) = profile.fits.iter().min_by(|a, b| a.likelihood.total_cmp(&b.likelihood)) else {
        unreachable!("some exponents are tried")
    };
    let count = gram.at.count();
    let variance = fit.residual / (count - wrong) as f64;
    let typical = median(gram.entries.diagonal().as_slice());
    let mut bad = fit.positions.clone();
    loop {
        let keep = others(count, &bad);
        let judged: Vec<(f64, f64)> =
            bad.iter().map(|j| judged(gram, &fit.covariance, &keep, *j)).collect();
        let score = |(error, own): (f64, f64)| error / own / variance;
        let size = |(error, own): (f64, f64)| {
            if error == 0.0 { 0.0 } else { (error / own / own / typical).sqrt() }
        };
        let tolerated = |i: &usize| {
            let judged = judged[*i];
            score(judged) <= tolerance.tau
                || size(judged) <= tolerance.floor
                || profile.evidence(&bad, bad[*i]) <= EVIDENCE
        };
        let back = (0..bad.len())
            .filter(tolerated)
            .min_by(|a, b| score(judged[*a]).total_cmp(&score(judged[*b])));
        match back {
            Some(position) => drop(bad.remove(position)),
            None => {
                return Ok(TrimmedFit {
                    workers: gram.at.workers_at(&bad),
                    scores: judged.iter().copied().map(score).collect(),
                    sizes: judged.into_iter().map(size).collect(),
                    exponent: Some(fit.exponent),
                    residual: fit.residual,
                    variance,
                });
            }
        }
    }
}

/// `L_j G L_j^T` and `L_jj` over the outputs kept and `j`.
fn judged(gram: &Gram, covariance: &DMatrix<f64>, keep: &[usize], j: usize) -> (f64, f64) {
    let mut with = keep.to_vec();
    with.push(j);
    let mut unit = DVector::zeros(with.len());
    unit[keep.len()] = 1.0;
    let row = factor(selected(covariance, &with)).solve(&unit);
    let error = (row.transpose() * selected(&gram.entries, &with) * &row)[(0, 0)];
    (error.max(0.0), row[keep.len()])
}

/// Least trimmed squares on a code of dimension `dimension`: the `wrong` workers, taken as known in
/// number, without whom the outputs come nearest to the code.
///
/// # Formula
/// ```text
/// E = argmin over |E| = A of J = tr( P_KK G_KK ),  P_KK = I - V_K V_K^+,  V = [T_k(z_i)], k < m
/// ```
/// where `K` are the outputs not in `E`. Cost: as [`robust_locate`] for one exponent.
///
/// # Errors
/// [`BerrutError::Dimension`] for a dimension of 0, [`BerrutError::NothingLeft`] unless more than
/// `m` outputs are left.
///
/// ```
/// use codedgrad::codes::berrut::{trimmed_locate, BerrutCode, Encoder, Points, ReceivedOutputs};
/// use codedgrad::ids::Worker;
/// let code = BerrutCode::new(2, 8, Points::FirstKind, Encoder::Lagrange)?;
/// let workers: Vec<Worker> = Worker::all(8).collect();
/// let mut outputs: Vec<[f64; 1]> = code.worker_points().iter().map(|z| [1.0 + z]).collect();
/// outputs[3][0] = 0.0;
/// let outputs: Vec<&[f64]> = outputs.iter().map(|y| &y[..]).collect();
/// let found = trimmed_locate(&ReceivedOutputs::new(&code, &workers, &outputs)?.gram(), 2, 1)?;
/// assert_eq!(found.workers, [Worker(3)]);
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
pub fn trimmed_locate(
    gram: &Gram,
    dimension: usize,
    wrong: usize,
) -> Result<TrimmedFit, BerrutError> {
    let count = gram.at.count();
    if dimension == 0 {
        return Err(BerrutError::Dimension { dimension, survivors: count });
    }
    enough(gram, wrong, dimension + 1)?;
    let giants = giants(gram, wrong);
    let rest = others(count, &giants);
    let projection = parity(gram, &rest, dimension);
    let found =
        Trim::of_gram(projection, &selected(&gram.entries, &rest)).best(wrong - giants.len());
    let positions: Vec<usize> = found.into_iter().map(|i| rest[i]).chain(giants).collect();
    Ok(of_dimension(gram, dimension, &positions))
}

/// The projection on the parity of the code, over some of the positions.
fn parity(gram: &Gram, positions: &[usize], dimension: usize) -> DMatrix<f64> {
    let q = gram.at.basis(dimension).select_rows(positions).qr().q();
    DMatrix::identity(positions.len(), positions.len()) - &q * q.transpose()
}

/// What to say of workers found on a code of fixed dimension.
pub(super) fn of_dimension(gram: &Gram, dimension: usize, positions: &[usize]) -> TrimmedFit {
    let mut positions = positions.to_vec();
    positions.sort_unstable();
    let keep = others(gram.at.count(), &positions);
    let floor = ROUNDING * median(gram.entries.diagonal().as_slice()) + TINY;
    let typical = median(gram.entries.diagonal().as_slice());
    let rest = |projection: &DMatrix<f64>, keep: &[usize]| {
        (projection * selected(&gram.entries, keep)).trace()
    };
    let residual = rest(&parity(gram, &keep, dimension), &keep).max(floor);
    let variance = residual / (keep.len().saturating_sub(dimension)).max(1) as f64;
    let judged = |j: &usize| {
        let mut with = keep.clone();
        with.push(*j);
        let projection = parity(gram, &with, dimension);
        let error = (rest(&projection, &with) - residual).max(0.0);
        (error / variance, (error / projection[(keep.len(), keep.len())] / typical).sqrt())
    };
    let (scores, sizes) = positions.iter().map(judged).unzip();
    TrimmedFit {
        workers: gram.at.workers_at(&positions),
        scores,
        sizes,
        exponent: None,
        residual,
        variance,
    }
}
