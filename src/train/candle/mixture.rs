//! Training on mixtures of micro-batches (`bacc`, `sbacc`): what a worker computes, and how its results are judged.
//!
//! A message is the gradient of everything but the embedded input, then the gradient with respect to the mixed embedded
//! input `[lanes x time x width]`. The first is decoded by one weighted sum; the second for every block, and added to
//! the embedding's rows of that block's tokens.

use super::gpt::EMBEDDING;
use super::{Batches, LocalRun, Replica, ReplicaError};
use crate::codes::berrut::{Evidence, Gram, Interpolant, Mixture, Security};
use crate::gpu::{Real, add_into, gram};
use crate::ids::{Job, Worker};
use crate::train::{Judge, Judged, Samples};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// How windows share the lanes of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lanes {
    /// As they come.
    Drawn,
    /// Windows with many equal tokens share a lane: like is mixed with like.
    #[default]
    Alike,
}

impl Lanes {
    /// Which sample stands at each place of a batch, blocks one after the other: the lane of place `p` is `p` modulo the
    /// number of lanes.
    ///
    /// # Panics
    /// When the windows do not make `blocks` equal blocks.
    ///
    /// ```
    /// use codedgrad::train::candle::Lanes;
    /// let windows: [&[u32]; 4] = [&[1, 1], &[2, 2], &[1, 1], &[2, 2]];
    /// assert_eq!(Lanes::Alike.places(&windows, 2), [0, 1, 2, 3]);
    /// assert_eq!(Lanes::Alike.places(&[windows[0], windows[2], windows[1], windows[3]], 2), [0, 2, 1, 3]);
    /// ```
    #[must_use]
    pub fn places(self, windows: &[&[u32]], blocks: usize) -> Vec<usize> {
        assert!(blocks > 0 && windows.len().is_multiple_of(blocks), "blocks of one size");
        if self == Self::Drawn {
            return (0..windows.len()).collect();
        }
        let (chain, lanes) = (chain(windows), windows.len() / blocks);
        (0..windows.len()).map(|place| chain[place % lanes * blocks + place / lanes]).collect()
    }
}

/// All windows, each followed by the one of those left that has most tokens in common with it.
fn chain(windows: &[&[u32]]) -> Vec<usize> {
    let sorted = |window: &&[u32]| {
        let mut tokens = window.to_vec();
        tokens.sort_unstable();
        tokens
    };
    let tokens: Vec<Vec<u32>> = windows.iter().map(sorted).collect();
    let mut left: Vec<usize> = (1..windows.len()).collect();
    let mut chain: Vec<usize> = (0..windows.len().min(1)).collect();
    while !left.is_empty() {
        let last = &tokens[chain[chain.len() - 1]];
        let nearest = (0..left.len()).rev().max_by_key(|at| common(last, &tokens[left[*at]])).unwrap_or(0);
        chain.push(left.remove(nearest));
    }
    chain
}

/// How many tokens two sorted lists have in common.
fn common(a: &[u32], b: &[u32]) -> usize {
    let (mut i, mut j, mut count) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        count += usize::from(a[i] == b[j]);
        let (x, y) = (a[i], b[j]);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    count
}

/// The batches of a run as mixtures see them.
#[derive(Clone, Debug)]
pub(super) struct Mixed {
    run: LocalRun,
    blocks: usize,
}

impl Mixed {
    pub(super) fn new(run: &LocalRun, mixture: &Mixture) -> Self {
        Self { run: run.clone(), blocks: mixture.code().blocks() }
    }

    fn lanes(&self) -> usize {
        self.run.batch() / self.blocks
    }

    /// Numbers of one lane of embedded input.
    fn lane_length(&self) -> usize {
        self.run.model.context * self.run.model.width
    }

    /// Numbers in a message.
    pub(super) fn length(&self) -> usize {
        self.run.model.parameters() + self.lanes() * self.lane_length()
    }

    /// The windows of a job's batch in the order of blocks and lanes.
    pub(super) fn windows<'a>(&self, batches: &'a Batches, job: Job) -> Vec<&'a [u32]> {
        let step = job.step(self.run.micro_steps).0;
        let windows = batches.rows_of(step % self.run.models, job.0 / self.run.models, 0..self.run.batch());
        self.run.lanes.places(&windows, self.blocks).into_iter().map(|sample| windows[sample]).collect()
    }

    /// Computes a task, micro-batch of lanes by micro-batch; none if it is not wanted any more.
    pub(super) fn compute(
        &self,
        replica: &Replica,
        windows: &[&[u32]],
        parts: &[Samples],
        out: &mut [f32],
        wanted: impl Fn() -> bool,
    ) -> Result<Option<[f64; 2]>, ReplicaError> {
        let (parameters, lane) = (self.run.model.parameters(), self.lane_length());
        let (gradient, inputs) = out.split_at_mut(parameters);
        gradient.fill(0.0);
        let (mut part, mut tail) = (vec![0.0; parameters], [0.0; 2]);
        let units = self.run.units as usize / self.blocks;
        for unit in 0..units {
            if !wanted() {
                return Ok(None);
            }
            let of_unit = parts.iter().filter(|part| part.unit as usize % units == unit);
            let blocks: Vec<(f64, Vec<&[u32]>)> = of_unit.map(|part| (part.coefficient, windows[part.samples.clone()].to_vec())).collect();
            let range = unit * self.run.unit_samples * lane..(unit + 1) * self.run.unit_samples * lane;
            let (loss, tokens) = replica.mixture_gradient(&blocks, self.run.loss_weight(), &mut part, &mut inputs[range])?;
            add_into(gradient, 1.0, &part);
            tail[0] += loss;
            tail[1] += tokens;
        }
        Ok(Some(tail))
    }
}

/// Locates wrong results of mixtures, leaves them out and decodes the rest.
#[derive(Debug)]
pub(super) struct MixtureJudge {
    mixed: Mixed,
    mixture: Mixture,
    security: Security,
    batches: Batches,
    embedding: Range<usize>,
}

impl MixtureJudge {
    pub(super) fn new(run: &LocalRun, mixture: Mixture, batches: &Batches) -> Self {
        let slot = run.model.slots().into_iter().find(|slot| slot.name == EMBEDDING);
        let embedding = slot.map_or(0..0, |slot| slot.offset..slot.offset + slot.len());
        let security = Security { wrong: run.scheme.wrong(), ..Security::default() };
        Self { mixed: Mixed::new(run, &mixture), mixture, security, batches: batches.clone(), embedding }
    }

    /// The inner products of both sections of the messages, each in units of its median: a section that is small beside the
    /// other is looked at as closely.
    fn products(&self, messages: &[&[f32]]) -> Vec<f64> {
        let (count, parameters) = (messages.len(), self.mixed.run.model.parameters());
        let mut sum = vec![0.0; count * count];
        for section in [0..parameters, parameters..self.mixed.length()] {
            let parts: Vec<&[f32]> = messages.iter().map(|x| &x[section.clone()]).collect();
            let products = gram(&parts);
            let mut norms: Vec<f64> = (0..count).map(|i| products[i * count + i]).collect();
            norms.sort_by(f64::total_cmp);
            let median = norms[count / 2];
            let scale = if median > 0.0 { 1.0 / median } else { 1.0 };
            sum.iter_mut().zip(products).for_each(|(sum, x)| *sum += scale * x);
        }
        sum
    }

    fn wrong(&self, survivors: &[Worker], messages: &[&[f32]]) -> Result<Vec<Worker>, Box<dyn Error + Send + Sync>> {
        if self.security.wrong == 0 {
            return Ok(Vec::new());
        }
        let gram = Gram::new(self.mixture.code(), survivors, &self.products(messages))?;
        Ok(self.security.judge(self.mixture.code(), &Evidence::Products(gram))?.trimmed.workers)
    }

    fn decode(&self, job: Job, rows: &[Vec<f64>], weights: &[f64], messages: &[&[f32]]) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
        let model = &self.mixed.run.model;
        let mut gradient = vec![0.0; model.parameters()];
        let first: Vec<&[f32]> = messages.iter().map(|x| &x[..gradient.len()]).collect();
        f32::combine(weights, &first, &mut gradient)?;
        let inputs: Vec<&[f32]> = messages.iter().map(|x| &x[gradient.len()..]).collect();
        let windows = self.mixed.windows(&self.batches, job);
        let mut input = vec![0.0; self.mixed.lanes() * self.mixed.lane_length()];
        let embedding = &mut gradient[self.embedding.clone()];
        for (row, windows) in rows.iter().zip(windows.chunks(self.mixed.lanes())) {
            f32::combine(row, &inputs, &mut input)?;
            let tokens = windows.iter().flat_map(|window| &window[..model.context]);
            for (token, x) in tokens.zip(input.chunks(model.width)) {
                add_into(&mut embedding[*token as usize * model.width..][..model.width], 1.0, x);
            }
        }
        Ok(gradient)
    }
}

impl Judge for MixtureJudge {
    fn judge(&mut self, job: Job, received: &[(Worker, Arc<Vec<f32>>)]) -> Result<Judged, Box<dyn Error + Send + Sync>> {
        if let Some((worker, message)) = received.iter().find(|(_, message)| message.len() != self.mixed.length()) {
            return Err(format!("{worker} sent {} numbers instead of {}", message.len(), self.mixed.length()).into());
        }
        let survivors: Vec<Worker> = received.iter().map(|(worker, _)| *worker).collect();
        let messages: Vec<&[f32]> = received.iter().map(|(_, message)| &message[..]).collect();
        let wrong = self.wrong(&survivors, &messages)?;
        let kept: Vec<usize> = (0..survivors.len()).filter(|i| !wrong.contains(&survivors[*i])).collect();
        let used: Vec<Worker> = kept.iter().map(|i| survivors[*i]).collect();
        let rows = self.mixture.code().decode_rows(&used, Interpolant::SPLINE)?;
        let weights: Vec<f64> = (0..used.len()).map(|i| rows.iter().map(|row| row[i]).sum()).collect();
        let messages: Vec<&[f32]> = kept.iter().map(|i| messages[*i]).collect();
        let gradient = self.decode(job, &rows, &weights, &messages)?;
        let weights: Vec<(Worker, f64)> = used.into_iter().zip(weights).collect();
        let mut all = vec![0.0; self.mixture.code().workers()];
        weights.iter().for_each(|(worker, weight)| all[worker.index()] = *weight);
        Ok(Judged { gradient, report: self.mixture.report(&all), weights, wrong })
    }
}
