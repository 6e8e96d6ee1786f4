//! Training on mixtures of micro-batches (`bacc`, `sbacc`): what a worker computes, and how its
//! results are judged.
//!
//! A message is the gradient of everything but the embedded input, then the gradient with respect
//! to the mixed embedded input `[lanes x time x width]`. The first is decoded by one weighted sum;
//! the second for every block, and added to the embedding's rows of that block's tokens.

use super::gpt::EMBEDDING;
use super::{Batches, LocalRun, Replica, ReplicaError};
use codedgrad::codes::berrut::{
    BerrutError, ByzantineDefence, Evidence, Gram, Interpolant, Locator, Mixture, Tolerance,
};
use codedgrad::gpu::{Real, add_into, gram};
use codedgrad::ids::{Job, Worker};
use codedgrad::train::{Judge, JudgedGradient, Samples};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// Errors up to so many noise variances are tolerated, as by default.
const TAU: f64 = 4.0;
/// And so are those of gradients with respect to inputs up to so many times their rms.
const INPUT_FLOOR: f64 = 3.0;

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
    /// Which sample stands at each place of a batch, blocks one after the other: the lane of place
    /// `p` is `p` modulo the number of lanes.
    ///
    /// # Panics
    /// When the windows do not make `blocks` equal blocks.
    ///
    /// ```
    /// use codedgrad_lab::trainer::Lanes;
    /// let windows: [&[u32]; 4] = [&[1, 1], &[2, 2], &[1, 1], &[2, 2]];
    /// assert_eq!(Lanes::Alike.places(&windows, 2), [0, 1, 2, 3]);
    /// assert_eq!(
    ///     Lanes::Alike.places(&[windows[0], windows[2], windows[1], windows[3]], 2),
    ///     [0, 2, 1, 3]
    /// );
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
        let nearest =
            (0..left.len()).rev().max_by_key(|at| common(last, &tokens[left[*at]])).unwrap_or(0);
        chain.push(left.remove(nearest));
    }
    chain
}

/// How many tokens two sorted lists have in common.
fn common(a: &[u32], b: &[u32]) -> usize {
    let mut i = 0;
    let mut j = 0;
    let mut count = 0;
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
pub(super) struct MixtureBatches {
    run: LocalRun,
    blocks: usize,
}

impl MixtureBatches {
    pub(super) fn new(run: &LocalRun, mixture: &Mixture) -> Self {
        Self { run: run.clone(), blocks: mixture.code().blocks() }
    }

    fn lanes(&self) -> usize {
        self.run.shape.samples() / self.blocks
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
        let step = job.step(self.run.jobs.micro_steps).0;
        let windows = batches.rows_of(
            step % self.run.jobs.models,
            job.0 / self.run.jobs.models,
            0..self.run.shape.samples(),
        );
        self.run
            .lanes
            .places(&windows, self.blocks)
            .into_iter()
            .map(|sample| windows[sample])
            .collect()
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
        let (mut part, mut aux) = (vec![0.0; parameters], [0.0; 2]);
        let units = self.run.shape.units as usize / self.blocks;
        for unit in 0..units {
            if !wanted() {
                return Ok(None);
            }
            let of_unit = parts.iter().filter(|part| part.unit as usize % units == unit);
            let blocks: Vec<(f64, Vec<&[u32]>)> = of_unit
                .map(|part| (part.coefficient, windows[part.samples.clone()].to_vec()))
                .collect();
            let range = unit * self.run.shape.unit_samples * lane
                ..(unit + 1) * self.run.shape.unit_samples * lane;
            let (loss, tokens) = replica.mixture_gradient(
                &blocks,
                self.run.loss_weight(),
                &mut part,
                &mut inputs[range],
            )?;
            add_into(gradient, 1.0, &part);
            aux[0] += loss;
            aux[1] += tokens;
        }
        Ok(Some(aux))
    }
}

/// Locates wrong results of mixtures, leaves them out and decodes the rest.
#[derive(Clone, Debug)]
pub(super) struct MixtureJudge {
    mixed: MixtureBatches,
    mixture: Mixture,
    /// As many Byzantine workers are looked for.
    most_wrong: usize,
    batches: Batches,
    embedding: Range<usize>,
}

impl MixtureJudge {
    pub(super) fn new(run: &LocalRun, mixture: Mixture, batches: &Batches) -> Self {
        let slot = run.model.slots().into_iter().find(|slot| slot.name == EMBEDDING);
        let embedding = slot.map_or(0..0, |slot| slot.range());
        Self {
            mixed: MixtureBatches::new(run, &mixture),
            mixture,
            most_wrong: run.scheme.byzantine(),
            batches: batches.clone(),
            embedding,
        }
    }

    /// Who is wrong. The gradients of the parameters tell; honest gradients with respect to the
    /// inputs differ so much from lane to lane that only gross errors stand out of them, and those
    /// are looked for among the rest.
    fn wrong(&self, survivors: &[Worker], messages: &[&[f32]]) -> Result<Vec<Worker>, BerrutError> {
        let (parameters, gross) =
            (self.mixed.run.model.parameters(), Tolerance::new(TAU, INPUT_FLOOR)?);
        let mut wrong: Vec<Worker> = Vec::new();
        for (section, tolerance) in
            [(0..parameters, Tolerance::default()), (parameters..self.mixed.length(), gross)]
        {
            if wrong.len() == self.most_wrong {
                break;
            }
            let rest = survivors.iter().zip(messages).filter(|(worker, _)| !wrong.contains(worker));
            let (rest, sections): (Vec<Worker>, Vec<&[f32]>) =
                rest.map(|(worker, x)| (*worker, &x[section.clone()])).unzip();
            let evidence =
                Evidence::Products(Gram::new(self.mixture.code(), &rest, &gram(&sections))?);
            let security = ByzantineDefence {
                byzantine: self.most_wrong - wrong.len(),
                locator: Locator::Robust(tolerance),
                force: false,
            };
            wrong.extend(security.judge(self.mixture.code(), &evidence)?.trimmed.workers);
        }
        wrong.sort_unstable();
        Ok(wrong)
    }

    fn decode(
        &self,
        job: Job,
        rows: &[Vec<f64>],
        weights: &[f64],
        messages: &[&[f32]],
    ) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
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
    fn judge(
        &mut self,
        job: Job,
        received: &[(Worker, Arc<Vec<f32>>)],
    ) -> Result<JudgedGradient, Box<dyn Error + Send + Sync>> {
        if let Some((worker, message)) =
            received.iter().find(|(_, message)| message.len() != self.mixed.length())
        {
            return Err(format!(
                "{worker} sent {} numbers instead of {}",
                message.len(),
                self.mixed.length()
            )
            .into());
        }
        let survivors: Vec<Worker> = received.iter().map(|(worker, _)| *worker).collect();
        let messages: Vec<&[f32]> = received.iter().map(|(_, message)| &message[..]).collect();
        let wrong = self.wrong(&survivors, &messages)?;
        let kept: Vec<usize> =
            (0..survivors.len()).filter(|i| !wrong.contains(&survivors[*i])).collect();
        let used: Vec<Worker> = kept.iter().map(|i| survivors[*i]).collect();
        let rows = self.mixture.code().decode_rows(&used, Interpolant::SPLINE)?;
        let weights: Vec<f64> =
            (0..used.len()).map(|i| rows.iter().map(|row| row[i]).sum()).collect();
        let messages: Vec<&[f32]> = kept.iter().map(|i| messages[*i]).collect();
        let gradient = self.decode(job, &rows, &weights, &messages)?;
        let weights: Vec<(Worker, f64)> = used.into_iter().zip(weights).collect();
        let mut all = vec![0.0; self.mixture.code().workers()];
        weights.iter().for_each(|(worker, weight)| all[worker.index()] = *weight);
        Ok(JudgedGradient { gradient, report: self.mixture.report(&all), weights, wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Attack, AttackKind, Corpus, GptConfig, ReplicaState};
    use super::*;
    use codedgrad::ids::Units;
    use codedgrad::train::AdamWConfig;

    type Messages = Vec<(Worker, Arc<Vec<f32>>)>;

    const MODEL: GptConfig =
        GptConfig { vocabulary: 256, context: 12, layers: 1, heads: 2, width: 16, tied: true };
    const OPTIMIZER: AdamWConfig = AdamWConfig {
        learning_rate: 0.01,
        warmup_steps: 1,
        decay_steps: 50,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.0,
        clip_norm: 1.0,
    };

    fn run(scheme: &str, model: GptConfig) -> LocalRun {
        LocalRun::new(scheme.parse().unwrap(), 12, model, OPTIMIZER)
    }

    /// The messages of all workers for the first batch, the judge, and the gradient of the whole
    /// batch.
    fn messages(run: &LocalRun) -> (Messages, MixtureJudge, Vec<f32>) {
        let batches = Batches::new(Corpus::embedded().byte_tokens(), run.model.context, 3).unwrap();
        let replica =
            Replica::new(&run.model, run.optimizer, &ReplicaState::fresh(&run.model, 5)).unwrap();
        let scheme = run.scheme.scheme(run.shape.workers, run.shape.units, 0..1).unwrap();
        let mixture = run.scheme.mixture(run.shape.workers).unwrap().unwrap();
        let mixed = MixtureBatches::new(run, &mixture);
        let windows = mixed.windows(&batches, Job(0));
        let message = |worker: Worker| {
            let unit = |units: Units, coefficient: f64| {
                (units.start..units.end).map(move |unit| Samples {
                    unit,
                    samples: unit as usize..unit as usize + 1,
                    coefficient,
                })
            };
            let task = codedgrad::ids::Task { job: Job(0), piece: worker.0, plan: 0 };
            let parts: Vec<Samples> = scheme
                .parts(worker, task)
                .iter()
                .flat_map(|part| unit(part.units, part.coefficient))
                .collect();
            let mut out = vec![f32::NAN; mixed.length()];
            mixed.compute(&replica, &windows, &parts, &mut out, || true).unwrap().unwrap();
            (worker, Arc::new(out))
        };
        let received = Worker::all(run.shape.workers).map(message).collect();
        let mut whole = vec![0.0; replica.parameters()];
        replica
            .gradient(&batches.rows_of(0, 0, 0..run.shape.samples()), run.loss_weight(), &mut whole)
            .unwrap();
        (received, MixtureJudge::new(run, mixture, &batches), whole)
    }

    fn error(found: &[f32], expected: &[f32]) -> f64 {
        let squares =
            |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        (squares(&mut found.iter().zip(expected).map(|(a, b)| a - b))
            / squares(&mut expected.iter().copied()))
        .sqrt()
    }

    /// With 12 = 3K workers the blocks themselves are among the mixtures: near the uncoded
    /// gradient, for both kinds of head, yet not to its bits. Without some of those, approximate.
    #[test]
    fn the_decoded_gradient_is_near_the_uncoded_one_and_not_its_bits() {
        for tied in [true, false] {
            let (received, mut judge, whole) =
                messages(&run("sbacc:K=4,byzantine=0,s=4", GptConfig { tied, ..MODEL }));
            let all = judge.judge(Job(0), &received).unwrap();
            let near = error(&all.gradient, &whole);
            assert!(near < 1e-5 && all.wrong.is_empty(), "{near:e}");
            assert!(all.gradient.iter().zip(&whole).any(|(a, b)| a.to_bits() != b.to_bits()));
            let few: Vec<_> =
                received.into_iter().filter(|(worker, _)| worker.0 % 3 != 1).collect();
            let far = error(&judge.judge(Job(0), &few).unwrap().gradient, &whole);
            assert!(far > 1e-4 && far < 0.3, "none of the blocks themselves: {far:e}");
        }
    }

    /// Wrong results are located whichever section of a message they are wrong in; honest ones are
    /// not.
    #[test]
    fn wrong_results_are_located_and_left_out() {
        let run = run("sbacc:K=4,byzantine=2", MODEL);
        let (received, mut judge, whole) = messages(&run);
        assert!(judge.judge(Job(0), &received).unwrap().wrong.is_empty());
        let wrong = vec![Worker(3), Worker(8)];
        let sections = [
            0..judge.mixed.length(),
            0..MODEL.parameters(),
            MODEL.parameters()..judge.mixed.length(),
        ];
        for (section, kind) in sections.into_iter().flat_map(|section| {
            [AttackKind::Flip, AttackKind::Gauss].map(|kind| (section.clone(), kind))
        }) {
            let attack = Attack { kind, workers: wrong.clone(), seed: 1 };
            let mut altered = received.clone();
            altered.iter_mut().for_each(|(worker, message)| {
                attack.alter(*worker, 0, &mut Arc::make_mut(message)[section.clone()]);
            });
            let judged = judge.judge(Job(0), &altered).unwrap();
            assert_eq!(judged.wrong, wrong, "{kind:?} in {section:?}");
            let harm = error(&judged.gradient, &whole);
            assert!(harm < 0.1 && judged.weights.len() == 10, "{harm:e}");
        }
        let short = vec![(Worker(0), Arc::new(vec![0.0]))];
        assert!(
            judge
                .judge(Job(0), &short)
                .unwrap_err()
                .to_string()
                .contains("worker 0 sent 1 numbers")
        );
    }

    #[test]
    fn like_windows_share_lanes() {
        let batches = Batches::new(Corpus::embedded().byte_tokens(), 32, 1).unwrap();
        let windows = batches.rows(0, 0..24);
        let shared = |lanes: Lanes| {
            let places = lanes.places(&windows, 4);
            let mut sorted = places.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..24), "every window once");
            let tokens = |place: usize| {
                let mut tokens = windows[places[place]].to_vec();
                tokens.sort_unstable();
                tokens
            };
            (0..6)
                .flat_map(|lane| (0..3).map(move |block| (block * 6 + lane, block * 6 + 6 + lane)))
                .map(|(a, b)| common(&tokens(a), &tokens(b)))
                .sum::<usize>()
        };
        assert!(shared(Lanes::Alike) > shared(Lanes::Drawn));
    }
}
