//! One model replica: parameters as candle variables and as one flat vector, and its optimizer.

use super::Compute;
use super::device::Place;
use super::gpt::{EMBEDDING, Gpt, GptConfig, Slot};
use super::memory::{Memory, Weights};
use crate::gpu::GradientError;
use crate::train::AdamWConfig;
use candle_core::Tensor;
use candle_core::backprop::GradStore;
use std::borrow::Cow;
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
    /// Numbers cannot be had from their device, or brought there.
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

#[cfg(feature = "candle-cuda")]
impl From<crate::gpu::cuda::CudaError> for ReplicaError {
    fn from(error: crate::gpu::cuda::CudaError) -> Self {
        Self::Gradient(error.into())
    }
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

    /// Whether it is of a model with so many parameters.
    fn check(&self, expected: usize) -> Result<(), ReplicaError> {
        let lengths = [&self.parameters, &self.first, &self.second].map(Vec::len);
        match lengths.into_iter().find(|found| *found != expected) {
            Some(found) => Err(ReplicaError::WrongLength { expected, found }),
            None => Ok(()),
        }
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
    weights: Weights,
    optimizer: AdamWConfig,
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

    /// A replica in the given state that computes on a device, in turn number so and so of those there are. Parameters and
    /// moments lie there too.
    ///
    /// # Errors
    /// [`ReplicaError`] when the state is of another model, or there is no such device.
    pub fn on(
        (compute, turn): (Compute, usize),
        model: &GptConfig,
        optimizer: AdamWConfig,
        state: &ReplicaState,
    ) -> Result<Self, ReplicaError> {
        state.check(model.parameters())?;
        let (slots, place) = (model.slots(), compute.processor.place(turn)?);
        let replica = Self {
            model: Gpt::new(*model, compute.precision, &place.device)?,
            weights: Weights::new(&place, optimizer, state)?,
            place,
            optimizer,
            context: model.context,
            slots,
        };
        replica.publish()?;
        Ok(replica)
    }

    /// Number of parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.slots.iter().map(Slot::len).sum()
    }

    /// Overwrites `out`, which has an element per parameter, with the gradient of `weight` x the summed loss of some windows;
    /// gives back that sum, not weighted, and the number of tokens in it.
    ///
    /// # Errors
    /// [`ReplicaError::NoGradient`] when a parameter gets none, [`ReplicaError::Candle`] when candle fails.
    pub fn gradient<V: Memory>(&self, windows: &[&[u32]], weight: f64, out: &mut V) -> Result<(f64, usize), ReplicaError> {
        let loss = self.model.loss_sum(windows, &self.place.device)?;
        let gradients = (&loss * weight)?.backward()?;
        self.flatten(&gradients, None, |start, gradient| out.put(start, gradient, &self.place))?;
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
        self.flatten(&gradients, Some(EMBEDDING), |start, gradient| {
            self.place.read(gradient, &mut out[start..start + gradient.elem_count()])
        })?;
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

    /// Hands over the gradient of every parameter and where it belongs; zeros for the one that may have none.
    fn flatten(
        &self,
        gradients: &GradStore,
        without: Option<&str>,
        mut put: impl FnMut(usize, &Tensor) -> Result<(), ReplicaError>,
    ) -> Result<(), ReplicaError> {
        for slot in &self.slots {
            let variable = self.model.variable(&slot.name);
            let gradient = match gradients.get(variable) {
                Some(gradient) => gradient.contiguous()?,
                None if without == Some(&slot.name) => variable.zeros_like()?,
                None => return Err(ReplicaError::NoGradient { name: slot.name.clone() }),
            };
            put(slot.offset, &gradient)?;
        }
        Ok(())
    }

    /// Takes one optimizer step; gives back a digest of the parameters after it.
    ///
    /// # Errors
    /// [`ReplicaError`] when candle or the device fails.
    pub fn apply<V: Memory>(&mut self, gradient: &V, step: u64) -> Result<u64, ReplicaError> {
        let digest = self.weights.apply(gradient, step)?;
        self.publish()?;
        Ok(digest)
    }

    /// Copies the flat parameters into candle's variables.
    fn publish(&self) -> Result<(), ReplicaError> {
        self.slots.iter().try_for_each(|slot| self.weights.publish(slot.range(), self.model.variable(&slot.name)))
    }

    /// All parameters, in the order of [`GptConfig::layout`].
    ///
    /// # Errors
    /// [`ReplicaError`] when the device fails.
    pub fn values(&self) -> Result<Cow<'_, [f32]>, ReplicaError> {
        self.weights.parameters()
    }

    /// A copy of the state.
    ///
    /// # Errors
    /// [`ReplicaError`] when the device fails.
    pub fn state(&self) -> Result<ReplicaState, ReplicaError> {
        self.weights.state()
    }

    /// Takes over a state.
    ///
    /// # Errors
    /// [`ReplicaError::WrongLength`] when it is of another model; the replica is then unchanged. [`ReplicaError`] when the device
    /// fails.
    pub fn load(&mut self, state: &ReplicaState) -> Result<(), ReplicaError> {
        state.check(self.parameters())?;
        self.weights.load(self.optimizer, state)?;
        self.publish()
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
            let mut large = replica.state().unwrap();
            large.parameters.iter_mut().filter(|x| **x != 1.0).for_each(|x| *x *= 8.0);
            replica.load(&large).unwrap();
            let mut gradient = vec![f32::NAN; replica.parameters()];
            let (loss, tokens) = replica.gradient(&WINDOWS, 1.0, &mut gradient).unwrap();
            assert_eq!(tokens, 12);
            assert!((loss / 12.0 - 11f64.ln()).abs() < 1.5, "{loss}");
            let state = replica.state().unwrap();
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
            let range = slot.range();
            let difference: Vec<f32> = exact[range.clone()].iter().zip(&narrow[range.clone()]).map(|(a, b)| a - b).collect();
            let relative = norm(&difference) / norm(&exact[range]);
            assert!((1e-4..6e-2).contains(&relative), "{} is off by {relative}", slot.name);
        }
    }

    #[test]
    fn the_future_is_hidden() {
        let replica = replica(&MODEL);
        let loss = |window: &[u32]| replica.model.loss_sum(&[window], &Device::Cpu).unwrap().to_scalar::<f32>().unwrap();
        let one = Replica::new(&GptConfig { context: 3, ..MODEL }, OPTIMIZER, &replica.state().unwrap()).unwrap();
        let short = one.model.loss_sum(&[&[1, 2, 3, 4]], &Device::Cpu).unwrap().to_scalar::<f32>().unwrap();
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
        b.load(&a.state().unwrap()).unwrap();
        assert_eq!(a.apply(&gradient, 30).unwrap(), b.apply(&gradient, 30).unwrap());
        let wrong = ReplicaState { first: vec![0.0], ..a.state().unwrap() };
        assert!(matches!(b.load(&wrong), Err(ReplicaError::WrongLength { found: 1, .. })));
    }
}
