//! The one-round code inside a sequential scheme.

use super::unheld;
use crate::codes::family::Fields;
use crate::codes::judged::{CodeJudge, Rows};
use crate::codes::{Cyclic, GradientCode, Groups, MinLoad, ParameterError, Report, cyclic};
use crate::ids::{Part, Share, Units, Worker, WorkerSet};
use std::ops::Range;
use std::sync::Arc;

/// Which code a sequential scheme codes its jobs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// [`MinLoad`], the default: small amplification for every number of workers.
    MinLoad,
    /// [`Cyclic`], the papers' random construction, drawn from a seed.
    Cyclic {
        /// Seed of the draw.
        seed: u64,
    },
    /// Clusters of `s+1` consecutive workers that all do the same.
    Clusters,
}

impl SlotKind {
    /// As scheme texts tell it: `rep`, `cyclic[,seed=7]`, or neither.
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, ParameterError> {
        match (fields.flag("rep"), fields.flag("cyclic")) {
            (true, true) => {
                Err(fields.wrong("give either rep (clusters) or cyclic (random coefficients)"))
            }
            (true, false) => Ok(Self::Clusters),
            (false, true) => Ok(Self::Cyclic { seed: fields.seed()? }),
            (false, false) => Ok(Self::MinLoad),
        }
    }

    /// What its user should know before using it with so many workers, if anything.
    pub(super) fn warning(self, workers: usize) -> Option<String> {
        let warning = "random cyclic slot codes amplify rounding errors hundreds to thousands of \
            times; without ,cyclic it is min-load";
        let random = matches!(self, Self::Cyclic { .. });
        (random && workers > cyclic::SOUND_MAX).then(|| warning.into())
    }
}

/// A slot code for `s` stragglers.
#[derive(Clone)]
pub(super) struct SlotCode {
    code: Arc<dyn GradientCode>,
    rows: Arc<Rows>,
    groups: Arc<[Group]>,
    /// By which it is told who repeats: all workers as one, unless they are clusters.
    repeating: Arc<[Group]>,
}

/// Workers in a row, of which any `needed` decode their part of the batch.
struct Group {
    members: Range<usize>,
    needed: usize,
}

impl Group {
    fn members(&self) -> impl Iterator<Item = Worker> {
        self.members.clone().map(|member| Worker(member as u32))
    }

    /// How many more have to answer beside those that pass.
    fn lacks(&self, answers: &impl Fn(Worker) -> bool) -> usize {
        self.needed.saturating_sub(self.members().filter(|worker| answers(*worker)).count())
    }
}

impl SlotCode {
    pub(super) fn new(
        kind: SlotKind,
        workers: usize,
        stragglers: usize,
        scheme: &'static str,
    ) -> Result<Self, ParameterError> {
        if stragglers >= workers {
            return Err(ParameterError::TooManyStragglers { stragglers, workers });
        }
        let size = stragglers + 1;
        let of = |members: Range<usize>| Group { needed: members.len() - stragglers, members };
        let (code, groups): (Arc<dyn GradientCode>, Vec<Group>) = match kind {
            SlotKind::MinLoad => {
                let code = MinLoad::new(workers, stragglers)?;
                let groups = code.groups().iter().cloned().map(of).collect();
                (Arc::new(code), groups)
            }
            SlotKind::Cyclic { seed } => {
                (Arc::new(Cyclic::new(workers, stragglers, seed)?), vec![of(0..workers)])
            }
            SlotKind::Clusters => {
                if stragglers == 0 || !workers.is_multiple_of(size) {
                    let fits = |size: &usize| *size > 1 && workers.is_multiple_of(*size);
                    let nearest = (2..=workers)
                        .filter(fits)
                        .min_by_key(|fit| fit.abs_diff(size))
                        .unwrap_or(workers);
                    let problem = format!(
                        "clusters of {size} do not divide {workers} workers; the nearest that do \
                         have {nearest} members"
                    );
                    return Err(ParameterError::Conditions { scheme, problem });
                }
                let groups = (0..workers).step_by(size).map(|first| of(first..first + size));
                (Arc::new(Groups::new(workers, workers / size)?), groups.collect())
            }
        };
        let rows = Arc::new(Rows::new(&*code));
        let groups: Arc<[Group]> = groups.into();
        let repeating = match kind {
            SlotKind::Clusters => Arc::clone(&groups),
            _ => [of(0..workers)].into(),
        };
        Ok(Self { code, rows, groups, repeating })
    }

    /// Who is to answer in addition to those that pass, so that `n-s` have answered, or one of each
    /// cluster: the first that are `able`.
    pub(super) fn to_complete<'a>(
        &'a self,
        answers: impl Fn(Worker) -> bool + 'a,
        able: impl Fn(Worker) -> bool + 'a,
    ) -> impl Iterator<Item = Worker> + 'a {
        self.repeating.iter().flat_map(move |group| {
            let lacks = group.lacks(&answers);
            let others = group.members().filter(|worker| !answers(*worker) && able(*worker));
            others.take(lacks).collect::<Vec<_>>()
        })
    }

    /// What a worker computes of the part `atoms` of a batch of `units` units, cut into `total`
    /// atoms.
    pub(super) fn parts(
        &self,
        worker: Worker,
        units: u32,
        atoms: &Range<usize>,
        total: usize,
    ) -> Vec<Part> {
        let each = atoms.len() / self.code.facts().shares();
        let part = |&(Share(share), coefficient): &(Share, f64)| {
            let start = atoms.start + share as usize * each;
            Part { units: atoms_to_units(start..start + each, total, units), coefficient }
        };
        self.code.row(worker).iter().map(part).filter(|part| part.units.count() > 0).collect()
    }

    /// Whether the answers of the workers that pass are enough to decode.
    pub(super) fn suffices(&self, answers: impl Fn(Worker) -> bool) -> bool {
        self.groups.iter().all(|group| group.lacks(&answers) == 0)
    }

    /// Units of which no worker outside `missing` holds a part.
    pub(super) fn uncovered(&self, missing: &WorkerSet, units: u32) -> Vec<Units> {
        let shares = self.code.facts().shares();
        unheld(&*self.code, missing)
            .map(|Share(share)| atoms_to_units(share as usize..share as usize + 1, shares, units))
            .collect()
    }

    /// Decodes from the answers of some workers; every answer that is used is shown with its
    /// weight.
    pub(super) fn decode(&self, answered: &WorkerSet, mut used: impl FnMut(Worker, f64)) -> Report {
        let mut decoder = self.code.decoder();
        answered.iter().for_each(|worker| {
            decoder.arrive(worker);
        });
        let mut judge = CodeJudge::new(Arc::clone(&self.rows));
        let (report, _) = judge.weigh(&mut *decoder, answered);
        let weights = judge.weights();
        let weighed = Worker::all(weights.len()).zip(weights).filter(|(_, weight)| **weight != 0.0);
        weighed.for_each(|(worker, weight)| used(worker, *weight));
        report
    }
}

/// Units of atoms of a batch that is cut into `total` atoms.
pub(super) fn atoms_to_units(atoms: Range<usize>, total: usize, units: u32) -> Units {
    let edge = |atom: usize| (u64::from(units) * atom as u64 / total as u64) as u32;
    Units { start: edge(atoms.start), end: edge(atoms.end) }
}
