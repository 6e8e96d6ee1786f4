//! One model replica: parameters as candle variables and as one flat vector, and its optimizer.

use super::Compute;
use super::device::Place;
use super::gpt::{EMBEDDING, Gpt, GptConfig, Slot};
use crate::gpu::GradientError;
use crate::train::{AdamW, AdamWConfig};
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, Tensor};
use thiserror::Error;

/// A replica that cannot compute.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A parameter got no gradient: some operation on its way passes none.
    #[error("parameter {name:?} received no gradient; an operation of the model does not pass gradients on")]
    NoGradient {
        /// Which parameter.
        name: String,
    },
    /// A gradient cannot be read from its device.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// There is no device to compute on.
    #[error("--device cuda: {why}")]
    NoDevice {
        /// Why not.
        why: &'static str,
    },
    /// A state of another model.
    #[error("a state with {found} parameters does not fit a model with {expected}")]
    WrongLength {
        /// Parameters of the model.
        expected: usize,
        /// Parameters of the state.
        found: usize,
    },
}

/// What has to be kept to go on with a replica elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaState {
    /// All parameters in order of their names.
    pub parameters: Vec<f32>,
    /// First moments.
    pub first: Vec<f32>,
    /// Second moments.
    pub second: Vec<f32>,
}

impl ReplicaState {
    /// Freshly drawn parameters and zero moments.
    #[must_use]
    pub fn fresh(model: &GptConfig, seed: u64) -> Self {
        let parameters = model.initial(seed);
        let zeros = vec![0.0; parameters.len()];
        Self { parameters, first: zeros.clone(), second: zeros }
    }

    /// Its vectors in the order in which workers hand them over.
    #[must_use]
    pub fn into_vectors(self) -> [Vec<f32>; 3] {
        [self.parameters, self.first, self.second]
    }

    /// The state that [`Self::into_vectors`] took apart.
    #[must_use]
    pub fn from_vectors([parameters, first, second]: [Vec<f32>; 3]) -> Self {
        Self { parameters, first, second }
    }
}

/// A model replica.
#[derive(Debug)]
pub struct Replica {
    model: Gpt,
    place: Place,
    slots: Vec<Slot>,
    parameters: Vec<f32>,
    optimizer: AdamW,
    optimizer_config: AdamWConfig,
    context: usize,
}

impl Replica {
    /// A replica in the given state, on the CPU, in f32.
    ///
    /// # Errors
    /// [`ReplicaError`] when the state is of another model.
    pub fn new(model: &GptConfig, optimizer: AdamWConfig, state: &ReplicaState) -> Result<Self, ReplicaError> {
        Self::on((Compute::default(), 0), model, optimizer, state)
    }

    /// A replica in the given state that computes on a device, in turn number so and so of those there are. Parameters
    /// and the optimizer stay with the CPU.
    ///
    /// # Errors
    /// [`ReplicaError`] when the state is of another model, or there is no such device.
    pub fn on(
        (compute, turn): (Compute, usize),
        model: &GptConfig,
        optimizer: AdamWConfig,
        state: &ReplicaState,
    ) -> Result<Self, ReplicaError> {
        let (slots, place) = (model.slots(), compute.processor.place(turn)?);
        let mut replica = Self {
            model: Gpt::new(*model, compute.precision, &place.device)?,
            place,
            parameters: vec![0.0; slots.iter().map(Slot::len).sum()],
            optimizer: AdamW::new(optimizer, 0),
            optimizer_config: optimizer,
            context: model.context,
            slots,
        };
        replica.load(state)?;
        Ok(replica)
    }

    /// Number of parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.parameters.len()
    }

    /// Overwrites `out` with the gradient of `weight` x the summed loss of some windows; gives back that
    /// sum, not weighted, and the number of tokens in it.
    ///
    /// # Errors
    /// [`ReplicaError::NoGradient`] when a parameter gets none, [`ReplicaError::Candle`] when candle fails.
    pub fn gradient(&self, windows: &[&[u32]], weight: f64, out: &mut [f32]) -> Result<(f64, usize), ReplicaError> {
        let loss = self.model.loss_sum(windows, &self.place.device)?;
        let gradients = (&loss * weight)?.backward()?;
        self.flatten(&gradients, out, None)?;
        Ok((f64::from(loss.to_scalar::<f32>()?), windows.len() * self.context))
    }

    /// Overwrites `out` with the gradient of `weight` x the summed loss of mixtures of windows, lane by lane, with respect
    /// to everything but the embedded input, and `inputs` `[lanes x time x width]` with that with respect to the mixed
    /// embedded input. Every block is its coefficient and as many windows as there are lanes. Gives back the loss sum and
    /// the number of tokens, mixed likewise.
    ///
    /// # Errors
    /// As [`Replica::gradient`].
    ///
    /// # Panics
    /// When `inputs` is not so long.
    pub fn mixture_gradient(
        &self,
        blocks: &[(f64, Vec<&[u32]>)],
        weight: f64,
        out: &mut [f32],
        inputs: &mut [f32],
    ) -> Result<(f64, f64), ReplicaError> {
        let (mixed, loss) = self.model.mixture_loss_sum(blocks, &self.place.device)?;
        let gradients = (&loss * weight)?.backward()?;
        self.flatten(&gradients, out, Some(EMBEDDING))?;
        let name = || "the mixed input".to_owned();
        let input = gradients.get(&mixed).ok_or_else(|| ReplicaError::NoGradient { name: name() })?;
        inputs.copy_from_slice(&input.flatten_all()?.to_vec1::<f32>()?);
        let tokens = |(coefficient, windows): &(f64, Vec<&[u32]>)| coefficient * (windows.len() * self.context) as f64;
        Ok((f64::from(loss.to_scalar::<f32>()?), blocks.iter().map(tokens).sum()))
    }

    /// Mean loss per token of some windows.
    ///
    /// # Errors
    /// [`ReplicaError::Candle`] when candle fails.
    pub fn loss(&self, windows: &[&[u32]]) -> Result<f64, ReplicaError> {
        let mut sum = 0.0;
        for windows in windows.chunks(8) {
            sum += f64::from(self.model.loss_sum(windows, &self.place.device)?.to_scalar::<f32>()?);
        }
        Ok(sum / (windows.len() * self.context) as f64)
    }

    /// Copies the gradients out; zeros for the one that may have none.
    fn flatten(&self, gradients: &GradStore, out: &mut [f32], without: Option<&str>) -> Result<(), ReplicaError> {
        for slot in &self.slots {
            let missing = || ReplicaError::NoGradient { name: slot.name.clone() };
            let Some(gradient) = gradients.get(self.model.variable(&slot.name)) else {
                if without != Some(&slot.name) {
                    return Err(missing());
                }
                out[slot.offset..slot.offset + slot.len()].fill(0.0);
                continue;
            };
            let gradient = gradient.contiguous()?;
            let (storage, layout) = gradient.storage_and_layout();
            let range = layout.start_offset()..layout.start_offset() + slot.len();
            let out = &mut out[slot.offset..slot.offset + slot.len()];
            match &*storage {
                Storage::Cpu(storage) => out.copy_from_slice(&storage.as_slice::<f32>()?[range]),
                #[cfg(feature = "candle-cuda")]
                Storage::Cuda(storage) => self.place.read(storage, range, out)?,
                _ => return Err(missing()),
            }
        }
        Ok(())
    }

    /// Takes one optimizer step; gives back a digest of the parameters after it.
    ///
    /// # Errors
    /// [`ReplicaError::Candle`] when candle fails.
    pub fn apply(&mut self, gradient: &[f32], step: u64) -> Result<u64, ReplicaError> {
        let digest = self.optimizer.update(&mut self.parameters, gradient, step);
        self.publish()?;
        Ok(digest)
    }

    /// Copies the flat parameters into candle's variables.
    fn publish(&self) -> Result<(), ReplicaError> {
        for slot in &self.slots {
            let values = &self.parameters[slot.offset..slot.offset + slot.len()];
            let variable = self.model.variable(&slot.name);
            if self.place.device.is_cpu() {
                variable.inplace_op1(&Overwrite(values))?;
            } else {
                variable.set(&Tensor::from_slice(values, slot.shape.as_slice(), &self.place.device)?)?;
            }
        }
        Ok(())
    }

    /// Names, shapes and values of all parameters.
    #[must_use]
    pub fn tensors(&self) -> Vec<(&str, &[usize], &[f32])> {
        let values = |slot: &Slot| &self.parameters[slot.offset..slot.offset + slot.len()];
        self.slots.iter().map(|slot| (slot.name.as_str(), slot.shape.as_slice(), values(slot))).collect()
    }

    /// A copy of the state.
    #[must_use]
    pub fn state(&self) -> ReplicaState {
        let (first, second) = self.optimizer.moments();
        ReplicaState { parameters: self.parameters.clone(), first: first.to_vec(), second: second.to_vec() }
    }

    /// Takes over a state.
    ///
    /// # Errors
    /// [`ReplicaError::WrongLength`] when it is of another model; the replica is then unchanged.
    pub fn load(&mut self, state: &ReplicaState) -> Result<(), ReplicaError> {
        let expected = self.parameters.len();
        for vector in [&state.parameters, &state.first, &state.second] {
            if vector.len() != expected {
                return Err(ReplicaError::WrongLength { expected, found: vector.len() });
            }
        }
        self.parameters.copy_from_slice(&state.parameters);
        self.optimizer = AdamW::with_moments(self.optimizer_config, state.first.clone(), state.second.clone());
        self.publish()
    }
}

/// Overwrites a variable in place.
struct Overwrite<'a>(&'a [f32]);

impl InplaceOp1 for Overwrite<'_> {
    fn name(&self) -> &'static str {
        "overwrite"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(values), Some((from, to))) => values[from..to].copy_from_slice(self.0),
            _ => candle_core::bail!("parameters are contiguous f32 on the CPU"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Precision;
    use super::*;
    use candle_core::Device;

    const MODEL: GptConfig = GptConfig { vocabulary: 11, context: 6, layers: 2, heads: 2, width: 8, tied: true };
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
    const WINDOWS: [&[u32]; 2] = [&[1, 2, 3, 4, 5, 6, 7], &[10, 9, 8, 7, 6, 5, 4]];

    fn replica(model: &GptConfig) -> Replica {
        Replica::new(model, OPTIMIZER, &ReplicaState::fresh(model, 3)).unwrap()
    }

    /// Central differences against the gradient, for both kinds of head: an operation that passes no
    /// gradient, or a wrong one, is found here.
    #[test]
    fn gradients_equal_finite_differences() {
        for tied in [true, false] {
            let model = GptConfig { tied, ..MODEL };
            let mut replica = replica(&model);
            let mut large = replica.state();
            large.parameters.iter_mut().filter(|x| **x != 1.0).for_each(|x| *x *= 8.0);
            replica.load(&large).unwrap();
            let mut gradient = vec![f32::NAN; replica.parameters()];
            let (loss, tokens) = replica.gradient(&WINDOWS, 1.0, &mut gradient).unwrap();
            assert_eq!(tokens, 12);
            assert!((loss / 12.0 - 11f64.ln()).abs() < 1.5, "{loss}");
            let state = replica.state();
            for slot in model.slots() {
                let at = slot.offset
                    + (0..slot.len()).max_by(|a, b| gradient[slot.offset + a].abs().total_cmp(&gradient[slot.offset + b].abs())).unwrap();
                let mut loss_at = |shift: f32| {
                    let mut moved = state.clone();
                    moved.parameters[at] += shift;
                    replica.load(&moved).unwrap();
                    replica.loss(&WINDOWS).unwrap() * 12.0
                };
                let slope = (loss_at(5e-3) - loss_at(-5e-3)) / 1e-2;
                let found = f64::from(gradient[at]);
                assert!((slope - found).abs() < 2e-2 * found.abs() && found.abs() > 0.05, "{} {slope} {found}", slot.name);
            }
        }
    }

    /// Products in bf16 leave the gradient as it is but for their rounding, and reach every parameter.
    #[test]
    fn gradients_in_bf16_are_those_in_f32_rounded() {
        let model = GptConfig { context: 32, width: 32, vocabulary: 40, ..MODEL };
        let tokens: Vec<u32> = (0..33).map(|at| at * at % 37).collect();
        let (windows, state) = ([&tokens[..]], ReplicaState::fresh(&model, 3));
        let of = |precision| {
            let compute = Compute { precision, ..Compute::default() };
            let replica = Replica::on((compute, 0), &model, OPTIMIZER, &state).unwrap();
            let mut gradient = vec![f32::NAN; replica.parameters()];
            let loss = replica.gradient(&windows, 1.0, &mut gradient).unwrap().0;
            (loss, gradient)
        };
        let ((loss, exact), (narrow_loss, narrow)) = (of(Precision::F32), of(Precision::Bf16));
        assert!((loss - narrow_loss).abs() < 2e-2 * loss, "{loss} {narrow_loss}");
        let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        for slot in model.slots() {
            let range = slot.offset..slot.offset + slot.len();
            let difference: Vec<f32> = exact[range.clone()].iter().zip(&narrow[range.clone()]).map(|(a, b)| a - b).collect();
            let relative = norm(&difference) / norm(&exact[range]);
            assert!((1e-4..6e-2).contains(&relative), "{} is off by {relative}", slot.name);
        }
    }

    #[test]
    fn the_future_is_hidden() {
        let replica = replica(&MODEL);
        let loss = |window: &[u32]| replica.model.loss_sum(&[window], &Device::Cpu).unwrap().to_scalar::<f32>().unwrap();
        let one = Gpt::new(GptConfig { context: 3, ..MODEL }, Precision::F32, &Device::Cpu).unwrap();
        for slot in &replica.slots {
            one.variable(&slot.name).inplace_op1(&Overwrite(&replica.parameters[slot.offset..slot.offset + slot.len()])).unwrap();
        }
        let short = one.loss_sum(&[&[1, 2, 3, 4]], &Device::Cpu).unwrap().to_scalar::<f32>().unwrap();
        let tail = |end: u32| loss(&[1, 2, 3, 4, 5, 6, end]) - loss(&[1, 2, 3, 4, 5, 6, 6]);
        assert!(tail(0).abs() > 0.0);
        assert!(short < loss(&[1, 2, 3, 4, 5, 6, 7]), "the first three tokens do not depend on the rest");
    }

    #[test]
    fn a_state_goes_on_alike_and_training_learns() {
        let (mut a, mut gradient) = (replica(&MODEL), vec![0.0; MODEL.parameters()]);
        let before = a.loss(&WINDOWS).unwrap();
        for step in 0..30 {
            a.gradient(&WINDOWS, 1.0 / 12.0, &mut gradient).unwrap();
            a.apply(&gradient, step).unwrap();
        }
        assert!(a.loss(&WINDOWS).unwrap() < 0.7 * before);
        let mut b = replica(&MODEL);
        b.load(&a.state()).unwrap();
        assert_eq!(a.apply(&gradient, 30).unwrap(), b.apply(&gradient, 30).unwrap());
        let wrong = ReplicaState { first: vec![0.0], ..a.state() };
        assert!(matches!(b.load(&wrong), Err(ReplicaError::WrongLength { found: 1, .. })));
    }
}
