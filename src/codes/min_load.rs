//! The code of least load, `(s+1)/n` for every `n` and `s`.
//!
//! # Construction
//! The balanced groups of [`super::groups`], `l = floor(n/(s+1))` of them. Group `j` has `c_j`
//! members and owns `c_j` of `n` equal shares; each member holds all but `r_j - 1` of these,
//! `r_j = c_j - s`, with the coefficients of a small real code given in closed form.
//!
//! # Guarantee
//! Any `s` stragglers: any `r_j` members decode group `j`. Load exactly `(s+1)/n` for every worker,
//! the least there can be (Tandon et al. 2017, Theorem 1).
//!
//! # Cost
//! An arrival is O(1). Weights solve one `r_j x r_j` system per group; `r_j` is 1, 2 or 3 unless
//! `s+1` is near `n`.
//!
//! # Numerics
//! Where `r_j = 1`, the group is plain replication. The worst amplification of `r = 2` is about
//! `0.78 c`; it grows quickly with `r` (`r = 8, c = 16`: 98; `c = 32`: 4340). Residuals stay below
//! 1e-11 up to 4096 workers for `r` up to 3.
//!
//! # Source
//! Own construction over the groups of Tandon, Lei, Dimakis, Karampatziakis, "Gradient Coding",
//! ICML 2017 (arXiv 1612.03301). The rows lie in a space of trigonometric polynomials (affine
//! functions for `r = 2`) in which nothing but 0 has `r` zeros at the nodes: a Chebyshev system
//! (Karlin, Studden 1966).

use super::family::{ClosedForm, Family, Recipe, Space, WaitsFor, keyed};
use super::linear::{shortest_solution, thin_factors};
use super::{Choice, Decoder, Facts, GradientCode, ParameterError, Report, Row, Status, judge};
use crate::ids::{Share, Worker, WorkerSet};
use nalgebra::{DMatrix, DVector};
use std::f64::consts::PI;
use std::ops::Range;
use std::sync::Arc;

/// The code of least load.
pub(super) const FAMILY: Family = Family {
    name: "min-load",
    examples: &["min-load:s=2"],
    summary: "any s stragglers at the least load there can be, (s+1)/n for every n",
    spaces: Some(|limits| vec![Space::of([keyed("s", 1..limits.workers)])]),
    ..Family::new(|fields| {
        let stragglers = fields.need("s")?;
        let form = move |workers: usize| {
            let load = (stragglers + 1) as f64 / workers as f64;
            let waits_for = WaitsFor::AllBut { stragglers };
            Some(ClosedForm { waits_for, load, coverage: 1.0 })
        };
        Ok(Recipe::code(move |workers| MinLoad::new(workers, stragglers)).closed_form(form))
    })
};

/// Coefficients of the largest code.
const ENTRIES_MAX: usize = 20_000_000;
/// Members that may be needed to decode a group, `r`; amplification is past every gate long before.
const NEEDED_MAX: usize = 64;

/// The min-load code of `n` workers for `s` stragglers.
///
/// # Formula
/// ```text
/// l = floor(n/(s+1))     group(i) = floor(i l / n)     c = members of the group     r = c - s
/// member q lacks the shares Z_q:  r = 1: none     r = 2: {q+1}     r odd: {q+1 .. q+r-1}
///     r even, at least 4: {q+1+round(t c/(r-1)) : t = 0..r-2} if these are r-1 others, else {q+1 .. q+r-1}
/// r = 1: B_qj = 1        r = 2: B_qj = j - (q+1 mod c)
/// r >= 3: B_qj = prod_{z in Z_q} sin(pi (j-z)/c) / f_j     f_j = 1 (r odd), sin((r-1) pi (2j+1)/(2c)) (r even;
///     sin(pi (2j+1)/(2c)) where the former is nearly 0)
/// ```
/// with `q` and `j` counted from 0 within the group, indices modulo `c`, halves rounded to even,
/// and every row scaled so that its largest entry is 1 in absolute value and `B_qq > 0`.
///
/// ```
/// use codedgrad::codes::{GradientCode, MinLoad};
/// use codedgrad::ids::{Share, Worker};
/// let code = MinLoad::new(8, 2)?;
/// assert_eq!((code.facts().load, code.facts().tolerance), (0.375, 2));
/// assert_eq!(code.row(Worker(1))[..2], [(Share(0), 1.0), (Share(1), 0.5)]);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MinLoad {
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    facts: Facts,
    rows: Vec<Row>,
    groups: Vec<Range<usize>>,
    group_of: Vec<u32>,
    /// One per size of group, which is `shortest + index`.
    inner: Vec<Inner>,
    shortest: usize,
}

/// The code within a group of one size.
#[derive(Debug)]
struct Inner {
    /// How many members decode it, `r`.
    needed: usize,
    /// `C` of the thin factorisation `B = C Q^T`, transposed, `[r x c]`; empty where `r = 1`.
    factor: DMatrix<f64>,
    /// `Q^T 1`, `[r]`.
    target: DVector<f64>,
}

impl MinLoad {
    /// A code for `workers` of which any `stragglers` may be missing.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] without workers, [`ParameterError::TooManyStragglers`] unless
    /// `stragglers < workers`, [`ParameterError::Conditions`] beyond 20 million coefficients or
    /// where a group would need more than 64 members.
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, MinLoad};
    /// assert_eq!(MinLoad::new(10, 3)?.facts().load, 0.4);
    /// assert!(MinLoad::new(4, 4).is_err());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn new(workers: usize, stragglers: usize) -> Result<Self, ParameterError> {
        let count = super::groups::count_tolerating(workers, stragglers)?;
        let most = workers.div_ceil(count) - stragglers;
        if workers.saturating_mul(stragglers + 1) > ENTRIES_MAX || most > NEEDED_MAX {
            let problem = format!(
                "s={stragglers} of {workers} workers makes a matrix of {} entries whose groups \
                 need up to {most} members to decode \
                 (at most {ENTRIES_MAX} and {NEEDED_MAX}); groups:s={stragglers} has no such limits",
                workers.saturating_mul(stragglers + 1)
            );
            return Err(ParameterError::Conditions { scheme: "min-load", problem });
        }
        let group_of = super::groups::balanced(workers, count);
        let mut groups = Vec::with_capacity(count);
        let mut start = 0;
        while start < workers {
            let end = start
                + group_of[start..].iter().take_while(|group| **group == group_of[start]).count();
            groups.push(start..end);
            start = end;
        }
        let (shortest, longest) = (workers / count, workers.div_ceil(count));
        let matrices: Vec<DMatrix<f64>> = (shortest..=longest)
            .map(|members| inner_matrix(members, members - stragglers))
            .collect();
        let mut rows = Vec::with_capacity(workers);
        for group in &groups {
            let matrix = &matrices[group.len() - shortest];
            let entry = |q: usize, j: usize| (Share((group.start + j) as u32), matrix[(q, j)]);
            rows.extend((0..group.len()).map(|q| {
                (0..group.len()).map(|j| entry(q, j)).filter(|x| x.1 != 0.0).collect::<Row>()
            }));
        }
        let facts = Facts {
            workers,
            share_weights: vec![1.0 / workers as f64; workers],
            tolerance: stragglers,
            load: (stragglers + 1) as f64 / workers as f64,
            error_max: 0.0,
        };
        let inner = matrices.iter().map(|matrix| Inner::new(matrix, stragglers)).collect();
        Ok(Self { plan: Arc::new(Plan { facts, rows, groups, group_of, inner, shortest }) })
    }

    /// The workers of each group, of which all but `s` decode it.
    pub(super) fn groups(&self) -> &[Range<usize>] {
        &self.plan.groups
    }
}

impl Inner {
    fn new(matrix: &DMatrix<f64>, stragglers: usize) -> Self {
        let needed = matrix.nrows() - stragglers;
        let (factor, target) = thin_factors(matrix, needed);
        Self { needed, factor, target }
    }

    /// The shortest weights of some members (at least `needed` of them) that decode the group.
    fn weights(&self, members: &[usize]) -> DVector<f64> {
        if self.needed == 1 {
            return DVector::from_element(members.len(), 1.0 / members.len() as f64);
        }
        shortest_solution(self.factor.select_columns(members), &self.target)
    }
}

/// Shares that member `q` of `members` lacks, in ascending order of construction.
fn lacking(q: usize, members: usize, needed: usize) -> Vec<usize> {
    let neighbours = (1..needed).map(|t| (q + t) % members).collect();
    if needed < 4 || needed % 2 == 1 {
        return neighbours;
    }
    let spread = |t: usize| (t * members) as f64 / (needed - 1) as f64;
    let spread: Vec<usize> =
        (0..needed - 1).map(|t| (q + 1 + spread(t).round_ties_even() as usize) % members).collect();
    let distinct = (0..spread.len()).all(|i| spread[i] != q && !spread[..i].contains(&spread[i]));
    if distinct { spread } else { neighbours }
}

/// The matrix of a group, `[c x c]`.
fn inner_matrix(members: usize, needed: usize) -> DMatrix<f64> {
    let c = members as f64;
    let scale = |times: usize| -> Vec<f64> {
        (0..members).map(|j| (times as f64 * PI * (2 * j + 1) as f64 / (2.0 * c)).sin()).collect()
    };
    let mut divisor = if needed % 2 == 1 { vec![1.0; members] } else { scale(needed - 1) };
    if divisor.iter().any(|f| f.abs() < 1e-3 / c) {
        divisor = scale(1);
    }
    // At every distance between two shares, for these are far fewer than the factors below.
    let distance = |to: usize| to as f64 - (members - 1) as f64;
    let sines: Vec<f64> = (0..2 * members - 1).map(|to| (PI * distance(to) / c).sin()).collect();
    let mut matrix = DMatrix::zeros(members, members);
    for q in 0..members {
        let lacking = lacking(q, members, needed);
        let value = |j: usize| match needed {
            1 => 1.0,
            2 => j as f64 - ((q + 1) % members) as f64,
            _ => lacking.iter().map(|&z| sines[j + members - 1 - z]).product::<f64>() / divisor[j],
        };
        let held = |j: usize| if lacking.contains(&j) { 0.0 } else { value(j) };
        let row: Vec<f64> = (0..members).map(held).collect();
        let largest = row.iter().fold(0.0f64, |most, x| most.max(x.abs())).copysign(row[q]);
        (0..members).for_each(|j| matrix[(q, j)] = row[j] / largest);
    }
    matrix
}

impl GradientCode for MinLoad {
    fn facts(&self) -> &Facts {
        &self.plan.facts
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.rows[worker.index()]
    }

    fn proof(&self) -> Option<&'static str> {
        Some("any members of a group but s decode it: a Chebyshev system")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(MinLoadDecoder {
            arrived: WorkerSet::empty(self.plan.facts.workers),
            members: vec![Vec::new(); self.plan.groups.len()],
            decided: 0,
            plan: Arc::clone(&self.plan),
        })
    }
}

struct MinLoadDecoder {
    plan: Arc<Plan>,
    arrived: WorkerSet,
    /// Who has arrived, by group, in that order, counted within the group.
    members: Vec<Vec<usize>>,
    decided: usize,
}

impl Decoder for MinLoadDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        if !self.arrived.insert(worker) {
            return Status::Useless;
        }
        let plan = &self.plan;
        let group = plan.group_of[worker.index()] as usize;
        let range = &plan.groups[group];
        self.members[group].push(worker.index() - range.start);
        match self.members[group].len().cmp(&plan.inner[range.len() - plan.shortest].needed) {
            std::cmp::Ordering::Less => Status::Pending,
            std::cmp::Ordering::Greater => Status::Useless,
            std::cmp::Ordering::Equal => {
                self.decided += 1;
                if self.decided == plan.groups.len() { Status::Decodable } else { Status::Pending }
            }
        }
    }

    fn weights(&mut self, choice: Choice, out: &mut [f64]) -> Report {
        let plan = &self.plan;
        assert_eq!(out.len(), plan.facts.workers, "one weight per worker");
        out.fill(0.0);
        for (range, members) in plan.groups.iter().zip(&self.members) {
            let inner = &plan.inner[range.len() - plan.shortest];
            let used = if choice == Choice::Fewest {
                inner.needed.min(members.len())
            } else {
                members.len()
            };
            if !members.is_empty() {
                let weights = inner.weights(&members[..used]);
                members
                    .iter()
                    .zip(weights.iter())
                    .for_each(|(member, weight)| out[range.start + member] = *weight);
            }
        }
        judge(&plan.rows, &plan.facts.share_weights, out, self.decided == plan.groups.len())
    }

    fn reset(&mut self) {
        self.arrived.clear();
        self.members.iter_mut().for_each(Vec::clear);
        self.decided = 0;
    }
}

#[cfg(test)]
mod tests;
