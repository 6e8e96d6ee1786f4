//! Checking a code: does every tolerated set of stragglers decode, and how well?

use super::gate::{Gate, GateError};
use super::{Choice, GradientCode, Report};
use crate::ids::{Worker, WorkerSet};
use crate::run::NumberFormat;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Sets up to this number are all tried.
const EXHAUSTIVE_MAX: u64 = 1_000_000;
/// Random sets tried where all are too many, and the most bursts.
const SAMPLES: u64 = 20_000;
/// The same where a claim is checked in passing.
const CLAIM_EXHAUSTIVE_MAX: u64 = 50_000;
const CLAIM_SAMPLES: u64 = 2_000;
/// Failures listed; more are counted.
const LISTED_MAX: usize = 100;

/// What trying the straggler sets of a code has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verified {
    /// Sets tried.
    pub sets: u64,
    /// Whether these were all sets of at most the tolerated number of stragglers.
    pub exhaustive: bool,
    /// Largest residual met.
    pub worst_residual: f64,
    /// Largest amplification met.
    pub worst_amplification: f64,
    /// Sets that did not decode within the gate.
    pub failed: u64,
    /// The first of those, at most 100.
    pub failures: Vec<FailedSet>,
}

/// A set of stragglers that the code should tolerate and does not.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedSet {
    /// Who was missing.
    pub stragglers: WorkerSet,
    /// How good the decode was.
    pub report: Report,
    /// What the gate says; None where the code's own rule already says no.
    pub refusal: Option<GateError>,
}

/// Tries sets of at most `facts().tolerance` stragglers: all of them where they are at most a
/// million, else random ones drawn from `seed` and bursts of neighbours. Decodes with
/// [`Choice::MinimumNorm`].
///
/// `progress` is called now and then with the sets done and the sets in all.
///
/// ```
/// use codedgrad::codes::{verify, Gate, GradientCode, Groups};
/// use codedgrad::run::NumberFormat;
/// let code = Groups::tolerating(8, 2)?;
/// let verified = verify(&code, &Gate::new(NumberFormat::F32, code.facts()), 7, &mut |_, _| ());
/// assert!(verified.exhaustive && verified.failures.is_empty());
/// assert_eq!(verified.sets, 1 + 8 + 28 + 56, "all sets of at most 3 of 8: tolerance is 3 here");
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub fn verify(
    code: &dyn GradientCode,
    gate: &Gate,
    seed: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Verified {
    let (workers, most) = (code.facts().workers, code.facts().tolerance);
    let all = (0..=most).fold(0u64, |sum, missing| sum.saturating_add(binomial(workers, missing)));
    let mut trial = Trial::new(code, gate, all <= EXHAUSTIVE_MAX, progress);
    if all <= EXHAUSTIVE_MAX {
        trial.total = all;
        (0..=most).for_each(|missing| trial.every_set(missing));
    } else {
        trial.sampled(most, seed, SAMPLES);
    }
    (trial.progress)(trial.total, trial.total);
    trial.found
}

/// The first set of as many stragglers as the code claims to tolerate that does not decode, if one
/// is found: of all such sets where they are few, else of bursts and random ones. Fewer stragglers
/// are no harder.
pub(super) fn refuted(code: &dyn GradientCode) -> Option<WorkerSet> {
    let (gate, most) = (Gate::new(NumberFormat::F32, code.facts()), code.facts().tolerance);
    let every = binomial(code.facts().workers, most) <= CLAIM_EXHAUSTIVE_MAX;
    let mut nobody_looks = |_, _| ();
    let mut trial = Trial::new(code, &gate, every, &mut nobody_looks);
    if every {
        trial.every_set(most);
    } else {
        trial.sampled(most, 0, CLAIM_SAMPLES);
    }
    trial.found.failures.into_iter().next().map(|failed| failed.stragglers)
}

struct Trial<'a> {
    decoder: Box<dyn super::Decoder>,
    gate: &'a Gate,
    weights: Vec<f64>,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    found: Verified,
}

impl<'a> Trial<'a> {
    fn new(
        code: &dyn GradientCode,
        gate: &'a Gate,
        exhaustive: bool,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        Self {
            decoder: code.decoder(),
            weights: vec![0.0; code.facts().workers],
            total: 0,
            gate,
            progress,
            found: Verified { exhaustive, ..Verified::default() },
        }
    }

    fn every_set(&mut self, size: usize) {
        let mut missing: Vec<usize> = (0..size).collect();
        loop {
            self.attempt(missing.iter().copied());
            if !next_combination(&mut missing, self.weights.len()) {
                return;
            }
        }
    }

    fn sampled(&mut self, most: usize, seed: u64, samples: u64) {
        let workers = self.weights.len();
        let step = (workers as u64 * most as u64).div_ceil(samples).max(1) as usize;
        let lengths: Vec<usize> = (1..=most).rev().step_by(step).collect();
        self.total = 1 + samples + (lengths.len() * workers) as u64;
        self.attempt([]);
        for length in lengths {
            (0..workers)
                .for_each(|start| self.attempt((start..start + length).map(|i| i % workers)));
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for sample in 0..samples as usize {
            // Half of the samples as hard as allowed, the other half of every size.
            let size = if sample % 2 == 0 { most } else { 1 + sample / 2 % most };
            self.attempt(index::sample(&mut random, workers, size));
        }
    }

    fn attempt(&mut self, missing: impl IntoIterator<Item = usize>) {
        let stragglers =
            WorkerSet::of(self.weights.len(), missing.into_iter().map(|i| Worker(i as u32)));
        self.decoder.reset();
        for worker in Worker::all(self.weights.len()).filter(|worker| !stragglers.contains(*worker))
        {
            self.decoder.arrive(worker);
        }
        let report = self.decoder.weights(Choice::MinimumNorm, &mut self.weights);
        let refusal = self.gate.check(&report).err();
        self.found.sets += 1;
        self.found.worst_residual = self.found.worst_residual.max(report.residual);
        self.found.worst_amplification = self.found.worst_amplification.max(report.amplification);
        if refusal.is_some() || !report.decodable {
            self.found.failed += 1;
            if self.found.failures.len() < LISTED_MAX {
                self.found.failures.push(FailedSet { stragglers, report, refusal });
            }
        }
        if self.found.sets.is_multiple_of(256) {
            (self.progress)(self.found.sets, self.total);
        }
    }
}

/// The next set of as many numbers below `below`, in lexicographic order; false after the last.
pub(super) fn next_combination(set: &mut [usize], below: usize) -> bool {
    let size = set.len();
    let Some(at) = (0..size).rev().find(|&i| set[i] < below - size + i) else { return false };
    set[at] += 1;
    (at + 1..size).for_each(|i| set[i] = set[i - 1] + 1);
    true
}

/// `n choose k`, capped at the largest `u64`.
pub(super) fn binomial(n: usize, k: usize) -> u64 {
    let k = k.min(n - k);
    let mut ways = 1u128;
    for i in 1..=k {
        ways = ways * (n - k + i) as u128 / i as u128;
        if ways > u128::from(u64::MAX) {
            return u64::MAX;
        }
    }
    ways as u64
}
