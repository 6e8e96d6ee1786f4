//! Balanced group replication, the default code.
//!
//! # Construction
//! `n` workers in `l` groups whose sizes differ by at most one; every member of group `j` computes
//! the plain sum over the `j`-th `l`-th of the batch. No coefficients, weights 0 or 1.
//!
//! # Guarantee
//! Any `s = floor(n/l) - 1` stragglers, for every `n` and `l`; with `n` groups it is uncoded
//! training. Load `1/l` for every worker, which meets the bound `load >= (s+1)/n` in integers.
//!
//! # Cost
//! An arrival is O(1); the weights of all workers are O(n). Nothing is buffered: a message's weight
//! is known when it arrives.
//!
//! # Numerics
//! Residual 0 and amplification at most 1, always. The weights of [`Choice::Fewest`] do not depend
//! on who straggled, so neither do the bits of the decoded gradient.
//!
//! # Source
//! Fractional repetition of Tandon, Lei, Dimakis, Karampatziakis, "Gradient Coding", ICML 2017
//! (arXiv 1612.03301), without its condition that `s+1` divides `n`; compare Charalambides,
//! Pilanci, Hero, arXiv 2109.10484.

use super::family::{ClosedForm, Family, Fields, Recipe, Space, WaitsFor, keyed};
use super::{Choice, Decoder, Facts, GradientCode, ParameterError, Report, Row, Status, judge};
use crate::ids::{Share, Worker};
use std::sync::Arc;

/// No code: each worker computes its own share.
pub(super) const UNCODED: Family = Family {
    name: "uncoded",
    examples: &["uncoded"],
    summary: "plain data parallelism: waits for all workers",
    ..Family::new(|_| Ok(uncoded()))
};

/// The default code.
pub(super) const FAMILY: Family = Family {
    name: "groups",
    examples: &["groups:s=1", "groups:l=4,rescale"],
    summary: "groups of s+1 workers or more (or l groups) compute the same, the first of each is \
        used; with rescale a group that is lost is left out",
    spaces: Some(|limits| vec![Space::of([keyed("l", 1..limits.workers)])]),
    ..Family::new(|fields| {
        let size = Size::read(fields)?;
        let rescale = fields.flag("rescale");
        let make = move |workers| {
            let groups = match size {
                Size::Stragglers(stragglers) => Groups::tolerating(workers, stragglers)?,
                Size::Groups(groups) => Groups::new(workers, groups)?,
            };
            Ok(if rescale { groups.rescaling() } else { groups })
        };
        let form = move |workers| form(&make(workers).ok()?);
        Ok(Recipe::code(make).closed_form(move |workers| form(workers).filter(|_| !rescale)))
    })
};

/// The recipe of plain data parallelism.
pub(super) fn uncoded() -> Recipe {
    Recipe::code(Groups::uncoded).closed_form(|workers| form(&Groups::uncoded(workers).ok()?))
}

fn form(groups: &Groups) -> Option<ClosedForm> {
    let Facts { share_weights, load, .. } = groups.facts();
    let waits_for = WaitsFor::OneOfEach { groups: share_weights.len() };
    Some(ClosedForm { waits_for, load: *load, coverage: 1.0 })
}

/// How large groups are, as texts tell it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size {
    /// By the stragglers that each takes.
    Stragglers(usize),
    /// By how many groups there are.
    Groups(usize),
}

impl Size {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, ParameterError> {
        match (fields.take("s")?, fields.take("l")?) {
            (Some(stragglers), None) => Ok(Self::Stragglers(stragglers)),
            (None, Some(groups)) => Ok(Self::Groups(groups)),
            _ => Err(fields.wrong("give either s= (stragglers) or l= (groups)")),
        }
    }
}

/// Balanced group replication of `n` workers in `l` groups.
///
/// # Formula
/// ```text
/// group(i) = floor(i l / n)     B_ij = 1 iff group(i) = j     s = floor(n/l) - 1     load = 1/l
/// ```
/// where `i` is the worker, `n` the number of workers, `l` the number of groups and of shares.
///
/// ```
/// use codedgrad::codes::{GradientCode, Groups};
/// use codedgrad::ids::Worker;
/// let code = Groups::new(7, 3)?;
/// assert_eq!(code.facts().tolerance, 1);
/// let sizes: Vec<usize> =
///     (0..3).map(|j| (0..7).filter(|&i| code.group(Worker(i)) == j).count()).collect();
/// assert_eq!(sizes, [3, 2, 2]);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Groups {
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    facts: Facts,
    group_of: Vec<u32>,
    rows: Vec<Row>,
    rescale: bool,
}

impl Groups {
    /// `workers` in `groups` groups.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] without workers, [`ParameterError::GroupsOutOfRange`] unless
    /// `1 <= groups <= workers`.
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Groups};
    /// assert_eq!(Groups::new(8, 4)?.facts().load, 0.25);
    /// assert!(Groups::new(8, 9).is_err());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn new(workers: usize, groups: usize) -> Result<Self, ParameterError> {
        if workers == 0 {
            return Err(ParameterError::NoWorkers);
        }
        if groups == 0 || groups > workers {
            return Err(ParameterError::GroupsOutOfRange { groups, workers });
        }
        let group_of = balanced(workers, groups);
        let rows = group_of.iter().map(|&group| vec![(Share(group), 1.0)]).collect();
        let facts = Facts {
            workers,
            share_weights: vec![1.0 / groups as f64; groups],
            tolerance: workers / groups - 1,
            load: 1.0 / groups as f64,
            error_max: 0.0,
        };
        Ok(Self { plan: Arc::new(Plan { facts, group_of, rows, rescale: false }) })
    }

    /// As many groups as any `stragglers` stragglers allow, `l = floor(n/(s+1))`.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] without workers, [`ParameterError::TooManyStragglers`] unless
    /// `stragglers < workers`.
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Groups};
    /// let code = Groups::tolerating(10, 3)?;
    /// assert_eq!((code.facts().shares(), code.facts().tolerance), (2, 4));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn tolerating(workers: usize, stragglers: usize) -> Result<Self, ParameterError> {
        Self::new(workers, count_tolerating(workers, stragglers)?)
    }

    /// One share per worker: plain data parallelism, which waits for all workers.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] without workers.
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Groups};
    /// let facts = Groups::uncoded(8)?.facts().clone();
    /// assert_eq!((facts.tolerance, facts.load), (0, 1.0 / 8.0));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn uncoded(workers: usize) -> Result<Self, ParameterError> {
        Self::new(workers, workers)
    }

    /// The same code, allowed to go on without the groups in which no worker can answer any more.
    /// The other groups' weights become `l/(l - lost)`, and the report's coverage tells what is
    /// missing.
    ///
    /// ```
    /// use codedgrad::codes::{Choice, Groups, decode};
    /// use codedgrad::ids::{Worker, WorkerSet};
    /// let code = Groups::new(6, 2)?.rescaling();
    /// let (weights, report) =
    ///     decode(&code, &WorkerSet::of(6, [3, 4, 5].map(Worker)), Choice::Fewest);
    /// assert_eq!(weights, [0.0, 0.0, 0.0, 2.0, 0.0, 0.0]);
    /// assert_eq!((report.decodable, report.coverage), (false, 0.5));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn rescaling(&self) -> Self {
        let facts =
            Facts { error_max: self.plan.facts.shares() as f64 - 1.0, ..self.plan.facts.clone() };
        let (group_of, rows) = (self.plan.group_of.clone(), self.plan.rows.clone());
        Self { plan: Arc::new(Plan { facts, group_of, rows, rescale: true }) }
    }

    /// The group of a worker.
    ///
    /// # Panics
    /// When the worker is not below `facts().workers`.
    ///
    /// ```
    /// use codedgrad::codes::Groups;
    /// use codedgrad::ids::Worker;
    /// assert_eq!(Groups::new(8, 4)?.group(Worker(5)), 2);
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn group(&self, worker: Worker) -> u32 {
        self.plan.group_of[worker.index()]
    }
}

/// The group of every worker, `floor(i l / n)`.
pub(super) fn balanced(workers: usize, groups: usize) -> Vec<u32> {
    (0..workers).map(|i| (i * groups / workers) as u32).collect()
}

/// How many groups any `stragglers` stragglers allow, `floor(n/(s+1))`.
pub(super) fn count_tolerating(workers: usize, stragglers: usize) -> Result<usize, ParameterError> {
    if workers == 0 {
        return Err(ParameterError::NoWorkers);
    }
    if stragglers >= workers {
        return Err(ParameterError::TooManyStragglers { stragglers, workers });
    }
    Ok(workers / (stragglers + 1))
}

impl GradientCode for Groups {
    fn facts(&self) -> &Facts {
        &self.plan.facts
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.rows[worker.index()]
    }

    fn proof(&self) -> Option<&'static str> {
        Some("every group has more than s members, and any of them will do")
    }

    /// The latest of the groups' first answers; groups are blocks of consecutive workers.
    fn decodable_at(&self, times: &[f64]) -> Option<f64> {
        let (workers, groups) = (self.plan.facts.workers, self.plan.facts.shares());
        let start = |group: usize| (group * workers).div_ceil(groups);
        let first = |group: usize| {
            times[start(group)..start(group + 1)].iter().copied().fold(f64::INFINITY, f64::min)
        };
        Some((0..groups).map(first).fold(0.0, f64::max))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(GroupsDecoder {
            first: vec![None; self.plan.facts.shares()],
            arrived: vec![false; self.plan.facts.workers],
            alive: vec![0; self.plan.facts.shares()],
            covered: 0,
            plan: Arc::clone(&self.plan),
        })
    }
}

struct GroupsDecoder {
    plan: Arc<Plan>,
    first: Vec<Option<Worker>>,
    alive: Vec<u32>,
    arrived: Vec<bool>,
    covered: usize,
}

impl Decoder for GroupsDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        let group = self.plan.group_of[worker.index()] as usize;
        if std::mem::replace(&mut self.arrived[worker.index()], true) {
            return Status::Useless;
        }
        self.alive[group] += 1;
        if self.first[group].is_some() {
            return Status::Useless;
        }
        self.first[group] = Some(worker);
        self.covered += 1;
        if self.covered == self.first.len() { Status::Decodable } else { Status::Pending }
    }

    fn weights(&mut self, choice: Choice, out: &mut [f64]) -> Report {
        let (groups, plan) = (self.first.len(), &self.plan);
        assert_eq!(out.len(), plan.facts.workers, "one weight per worker");
        let decodable = self.covered == groups;
        let scale = if plan.rescale && self.covered > 0 {
            groups as f64 / self.covered as f64
        } else {
            1.0
        };
        out.fill(0.0);
        match choice {
            Choice::Fewest => {
                for worker in self.first.iter().flatten() {
                    out[worker.index()] = scale;
                }
            }
            Choice::MinimumNorm => {
                for (weight, group) in out
                    .iter_mut()
                    .zip(&plan.group_of)
                    .zip(&self.arrived)
                    .filter(|x| *x.1)
                    .map(|x| x.0)
                {
                    *weight = scale / f64::from(self.alive[*group as usize]);
                }
            }
        }
        judge(&plan.rows, &plan.facts.share_weights, out, decodable)
    }

    fn can_degrade(&self) -> bool {
        self.plan.rescale && self.covered > 0
    }

    fn reset(&mut self) {
        self.first.fill(None);
        self.alive.fill(0);
        self.arrived.fill(false);
        self.covered = 0;
    }
}
