//! Checking a code: does every tolerated set of stragglers decode, and how well?

use super::gate::{Gate, GateError};
use super::holders::HolderSets;
use super::judged::{CodeJudge, Rows};
use super::{Choice, Defect, GradientCode, Report};
use crate::ids::{Worker, WorkerSet};
use crate::run::NumberFormat;
use rand::RngExt;
use rand::seq::{SliceRandom, index};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::sync::Arc;

/// Sets up to this number are all tried.
const EXHAUSTIVE_MAX: u64 = 1_000_000;
/// Random sets tried where all are too many, and the most bursts, and the most sets of holders of
/// a share, and of two.
const SAMPLES: u64 = 20_000;
/// The same where a claim is checked in passing.
const CLAIM_EXHAUSTIVE_MAX: u64 = 50_000;
const CLAIM_SAMPLES: u64 = 2_000;
/// Sets of two shares' holders take the place of random ones, but for one in so many of these.
const RANDOM_PART: u64 = 4;
/// Of so many sets one is decoded as a run does it too, which takes the fewest messages first.
const AS_A_RUN: u64 = 8;
/// Where there are no more sets, the answers of each arrive in several orders, and each is decoded
/// in both ways.
const FEW: u64 = 1_000;
const ORDERS: usize = 8;
/// Sets that are looked for by leaving out, one after the other, the workers that count most: for
/// one random set as many.
const GREEDY_PART: u64 = 4;
/// Workers that change places in the order of arrival from one set to the next.
const SWAPS: usize = 8;
/// Failures listed; more are counted.
const LISTED_MAX: usize = 100;

/// What trying the straggler sets of a code has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verification {
    /// Sets tried.
    pub sets: u64,
    /// Whether these were all sets of at most the tolerated number of stragglers.
    pub exhaustive: bool,
    /// Largest residual met, of what was received: a weight of a message that is not there adds
    /// nothing.
    pub worst_residual: f64,
    /// Largest amplification met.
    pub worst_amplification: f64,
    /// Largest normalised error met.
    pub worst_error: f64,
    /// The normalised error on average over the sets.
    pub mean_error: f64,
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
/// million, else the holders of each share and of each two shares, bursts of neighbours, sets that
/// are made by leaving out the worker that counts most of those left (the largest `|a_i| |B_i|`),
/// and random sets drawn from `seed`. Answers arrive in an order that is shuffled, in eight orders
/// where there are at most a thousand sets. Decodes with [`Choice::MinimumNorm`], as a run does now
/// and then (where there are few sets, always), and judges the weights by the rows: a
/// decoder that reports something else has a [`Defect`], which is a failure.
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
) -> Verification {
    let (workers, most) = (code.facts().workers, code.facts().tolerance);
    let all = (0..=most).fold(0u64, |sum, missing| sum.saturating_add(binomial(workers, missing)));
    let mut trial = Trial::new(code, gate, seed, progress);
    trial.found.exhaustive = all <= EXHAUSTIVE_MAX;
    if all <= EXHAUSTIVE_MAX {
        trial.orders = if all <= FEW { ORDERS } else { 1 };
        trial.total = all;
        (0..=most).for_each(|missing| trial.every_set(missing));
    } else {
        trial.sampled(most, SAMPLES);
    }
    (trial.progress)(trial.total, trial.total);
    trial.found.mean_error = trial.errors / trial.found.sets as f64;
    trial.found
}

/// The first set of stragglers that the code claims to tolerate and that does not decode, if one is
/// found: of all sets of as many as it claims where they are few, else as [`verify`] does, with
/// fewer sets. Fewer stragglers are no harder.
pub(super) fn refuted(code: &dyn GradientCode) -> Option<FailedSet> {
    let (gate, most) = (Gate::new(NumberFormat::F32, code.facts()), code.facts().tolerance);
    let every = binomial(code.facts().workers, most) <= CLAIM_EXHAUSTIVE_MAX;
    let mut nobody_looks = |_, _| ();
    let mut trial = Trial::new(code, &gate, 0, &mut nobody_looks);
    trial.first_failure_is_enough = true;
    if every {
        trial.every_set(most);
    } else {
        trial.sampled(most, CLAIM_SAMPLES);
    }
    trial.found.failures.into_iter().next()
}

struct Trial<'a> {
    code: &'a dyn GradientCode,
    decoder: Box<dyn super::Decoder>,
    judge: CodeJudge,
    gate: &'a Gate,
    weights: Vec<f64>,
    /// In which order answers arrive.
    order: Vec<Worker>,
    /// Draws sets.
    random: ChaCha8Rng,
    /// Draws the order of arrivals.
    shuffling: ChaCha8Rng,
    /// In how many orders the answers of each set arrive.
    orders: usize,
    first_failure_is_enough: bool,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    found: Verification,
    /// The sum of all sets' errors.
    errors: f64,
}

impl<'a> Trial<'a> {
    fn new(
        code: &'a dyn GradientCode,
        gate: &'a Gate,
        seed: u64,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        let mut shuffling = ChaCha8Rng::seed_from_u64(!seed);
        let mut order: Vec<Worker> = Worker::all(code.facts().workers).collect();
        order.shuffle(&mut shuffling);
        Self {
            code,
            decoder: code.decoder(),
            judge: CodeJudge::new(Arc::new(Rows::new(code))),
            weights: vec![0.0; order.len()],
            order,
            random: ChaCha8Rng::seed_from_u64(seed),
            shuffling,
            orders: 1,
            first_failure_is_enough: false,
            total: 0,
            gate,
            progress,
            found: Verification::default(),
            errors: 0.0,
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

    fn sampled(&mut self, most: usize, samples: u64) {
        let workers = self.weights.len();
        let step = (workers as u64 * most as u64).div_ceil(samples).max(1) as usize;
        let lengths: Vec<usize> = (1..=most).rev().step_by(step).collect();
        let holders = HolderSets::new(self.code, most, samples as usize, &mut self.shuffling);
        let (of_one, of_two) = holders.counts();
        let drawn = samples.saturating_sub(of_two as u64).max(samples / RANDOM_PART);
        let greedy = (samples / GREEDY_PART) as usize;
        let apart = (workers * most).div_ceil(greedy.max(1)).max(1);
        let starts = workers.div_ceil(apart) * most;
        self.total = 1 + (of_one + of_two + lengths.len() * workers + starts) as u64 + drawn;
        self.attempt([]);
        holders.iter().for_each(|set| self.attempt(set));
        for length in lengths {
            (0..workers)
                .for_each(|start| self.attempt((start..start + length).map(|i| i % workers)));
        }
        let norm = |worker: Worker| {
            self.code.row(worker).iter().map(|(_, entry)| entry * entry).sum::<f64>().sqrt()
        };
        let norms: Vec<f64> = Worker::all(workers).map(norm).collect();
        (0..workers).step_by(apart).take(starts).for_each(|start| self.greedy(start, most, &norms));
        for sample in 0..drawn as usize {
            // Half of the samples as hard as allowed, the other half of every size.
            let size = if sample % 2 == 0 { most } else { 1 + sample / 2 % most };
            let drawn = index::sample(&mut self.random, workers, size);
            self.attempt(drawn);
        }
    }

    /// Leaves out the worker whose message counts most in what the others decode to, and again.
    fn greedy(&mut self, start: usize, most: usize, norms: &[f64]) {
        let mut missing = vec![start];
        loop {
            self.attempt(missing.iter().copied());
            if missing.len() >= most || self.first_failure_is_enough && self.found.failed > 0 {
                return;
            }
            // Who is missing has no weight.
            let counts = |worker: &usize| self.weights[*worker].abs() * norms[*worker];
            let rest = (0..self.weights.len()).filter(|worker| counts(worker) > 0.0);
            let Some(next) = rest.max_by(|a, b| counts(a).total_cmp(&counts(b))) else { return };
            if missing.contains(&next) {
                return;
            }
            missing.push(next);
        }
    }

    fn attempt(&mut self, missing: impl IntoIterator<Item = usize>) {
        if self.first_failure_is_enough && self.found.failed > 0 {
            return;
        }
        let stragglers =
            WorkerSet::of(self.weights.len(), missing.into_iter().map(|i| Worker(i as u32)));
        let as_a_run = self.found.sets.is_multiple_of(AS_A_RUN) || self.orders > 1;
        let (mut worst, mut shortest) = (None, None);
        let mut residual = 0.0f64;
        for _ in 0..self.orders {
            self.arrive(&stragglers);
            let reported = self.decoder.weights(Choice::MinimumNorm, &mut self.weights);
            let judged = self.judge.judge(stragglers.iter(), &self.weights, &reported);
            let received = self.received(&stragglers, &reported, judged);
            residual = residual.max(received.residual);
            shortest = shortest.or(Some(received));
            worst = worst.or_else(|| self.failure(judged));
            if worst.is_none() && as_a_run {
                let judged = self.judge.weigh(&mut *self.decoder, &stragglers.complement());
                worst = self.failure(judged);
                let failed = worst.as_ref().map_or(0.0, |_| judged.0.residual);
                residual = residual.max(failed);
            }
        }
        let found = &mut self.found;
        found.sets += 1;
        found.worst_residual = found.worst_residual.max(residual);
        if let Some(report) = shortest {
            found.worst_amplification = found.worst_amplification.max(report.amplification);
            found.worst_error = found.worst_error.max(report.error);
            self.errors += report.error;
        }
        if let Some((report, refusal)) = worst {
            self.found.failed += 1;
            if self.found.failures.len() < LISTED_MAX {
                self.found.failures.push(FailedSet { stragglers, report, refusal });
            }
        }
        if self.found.sets.is_multiple_of(256) {
            (self.progress)(self.found.sets, self.total);
        }
    }

    /// Shows the decoder who has answered, in another order than before.
    fn arrive(&mut self, stragglers: &WorkerSet) {
        for _ in 0..SWAPS {
            let mut place = || self.shuffling.random_range(0..self.order.len());
            let (one, other) = (place(), place());
            self.order.swap(one, other);
        }
        self.decoder.reset();
        for worker in self.order.iter().filter(|worker| !stragglers.contains(**worker)) {
            self.decoder.arrive(*worker);
        }
    }

    /// How good weights are without those of messages that are not there.
    fn received(
        &mut self,
        stragglers: &WorkerSet,
        reported: &Report,
        (report, defect): (Report, Option<Defect>),
    ) -> Report {
        let Some(Defect::Weight { .. }) = defect else { return report };
        let mut weights = self.weights.clone();
        stragglers.iter().for_each(|worker| weights[worker.index()] = 0.0);
        self.judge.judge(stragglers.iter(), &weights, reported).0
    }

    /// A decode that the gate refuses, and why; None for the code's own rule.
    fn failure(
        &self,
        (report, defect): (Report, Option<Defect>),
    ) -> Option<(Report, Option<GateError>)> {
        let refusal = self.refusal(&report, defect);
        (refusal.is_some() || !report.decodable).then_some((report, refusal))
    }

    fn refusal(&self, report: &Report, defect: Option<Defect>) -> Option<GateError> {
        defect.map(GateError::Defect).or_else(|| self.gate.check(report).err())
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
