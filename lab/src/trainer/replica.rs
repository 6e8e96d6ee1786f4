//! One model replica: parameters as candle variables and as one flat vector, and its optimizer.
//!
//! A reference replica beside the workers checks gradients against the whole batch and writes
//! checkpoints and models. Where a run that is compared with this one is in the same state, equal
//! digests prove equal gradients, and nothing is computed.

use super::Compute;
use super::device::{GradientReducer, Place};
use super::gpt::{EMBEDDING, Gpt, GptConfig, Slot};
use super::memory::{Memory, Weights};
use candle_core::Tensor;
use candle_core::backprop::GradStore;
use codedgrad::gpu::GradientError;
use codedgrad::train::AdamWConfig;
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
    #[error(
        "parameter {name:?} received no gradient; an operation of the model does not pass \
         gradients on"
    )]
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
    /// A state of other vectors than these replicas have.
    #[error(
        "{found} vectors, where {expected} are a state: parameters and two moments of every model"
    )]
    WrongVectors {
        /// Vectors of a state.
        expected: usize,
        /// How many there are.
        found: usize,
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
impl From<codedgrad::gpu::cuda::CudaError> for ReplicaError {
    fn from(error: codedgrad::gpu::cuda::CudaError) -> Self {
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
    ///
    /// # Errors
    /// [`ReplicaError::WrongLength`] when it is not.
    pub fn check(&self, expected: usize) -> Result<(), ReplicaError> {
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

/// The model on one of a replica's devices.
#[derive(Debug)]
struct Member {
    model: Gpt,
    place: Place,
}

impl Member {
    /// Has a gradient computed, and gives back the loss it is of; neither is waited for.
    fn begin(&self, windows: &[&[u32]], weight: f64) -> Result<(Tensor, GradStore), ReplicaError> {
        let loss = self.model.loss_sum(windows, &self.place.device)?;
        let gradients = (&loss * weight)?.backward()?;
        Ok((loss, gradients))
    }

    /// Hands over the gradient of every parameter and where it belongs; zeros for the one that may
    /// have none.
    fn hand_over(
        &self,
        slots: &[Slot],
        gradients: &GradStore,
        without: Option<&str>,
        mut put: impl FnMut(usize, &Tensor) -> Result<(), ReplicaError>,
    ) -> Result<(), ReplicaError> {
        for slot in slots {
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
}

/// A model replica.
#[derive(Debug)]
pub struct Replica {
    /// At least one; the first has the parameters and moments.
    members: Vec<Member>,
    between: GradientReducer,
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
    pub fn new(
        model: &GptConfig,
        optimizer: AdamWConfig,
        state: &ReplicaState,
    ) -> Result<Self, ReplicaError> {
        Self::on((Compute::default(), 0), model, optimizer, state)
    }

    /// A replica in the given state that computes on devices: on those of the host by turns, of
    /// which this is the turn's number. Parameters and moments lie on its first.
    ///
    /// # Errors
    /// [`ReplicaError`] when the state is of another model, or there is no such device.
    ///
    /// # Panics
    /// When it is to have no device.
    pub fn on(
        (compute, turn): (Compute, usize),
        model: &GptConfig,
        optimizer: AdamWConfig,
        state: &ReplicaState,
    ) -> Result<Self, ReplicaError> {
        state.check(model.parameters())?;
        let places = compute.places(turn)?;
        let between = GradientReducer::connect(&places);
        let weights = Weights::new(&places[0], optimizer, state)?;
        let member = |place: Place| {
            Ok(Member { model: Gpt::new(*model, compute.precision, &place.device)?, place })
        };
        let members = places.into_iter().map(member).collect::<Result<_, ReplicaError>>()?;
        let replica = Self {
            members,
            between,
            weights,
            optimizer,
            context: model.context,
            slots: model.slots(),
        };
        replica.publish()?;
        Ok(replica)
    }

    /// Number of parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.slots.iter().map(Slot::len).sum()
    }

    /// Overwrites `out`, which has an element per parameter, with the gradient of `weight` x the
    /// summed loss of some windows; gives back that sum, not weighted, and the number of tokens in
    /// it.
    ///
    /// # Errors
    /// [`ReplicaError::NoGradient`] when a parameter gets none, [`ReplicaError::Candle`] when
    /// candle fails.
    pub fn gradient<V: Memory>(
        &self,
        windows: &[&[u32]],
        weight: f64,
        out: &mut V,
    ) -> Result<(f64, usize), ReplicaError> {
        let count = self.members.len().min(windows.len()).max(1);
        let share =
            |at: usize| &windows[at * windows.len() / count..(at + 1) * windows.len() / count];
        let members = &self.members[..count];
        // All are under way before any is waited for.
        let begun = members.iter().enumerate().map(|(at, member)| member.begin(share(at), weight));
        let begun = begun.collect::<Result<Vec<_>, _>>()?;
        let mut parts = Vec::new();
        for (at, (member, (_, gradients))) in members.iter().zip(&begun).enumerate() {
            let place = &member.place;
            let mut other =
                if at == 0 { None } else { Some(V::new(&V::beside(place)?, self.parameters())) };
            let part = other.as_mut().unwrap_or(out);
            member.hand_over(&self.slots, gradients, None, |start, gradient| {
                part.put(start, gradient, place)
            })?;
            parts.extend(other);
        }
        // Waits for the gradients too: what adds them up has little time, and none to compute.
        let mut losses = 0.0;
        for (loss, _) in begun {
            losses += f64::from(loss.to_scalar::<f32>()?);
        }
        if !parts.is_empty() {
            out.gather(parts, &self.between)?;
        }
        Ok((losses, windows.len() * self.context))
    }

    /// Overwrites `out` with the gradient of `weight` x the summed loss of mixtures of windows,
    /// lane by lane, with respect to everything but the embedded input, and `inputs`
    /// `[lanes x time x width]` with that with respect to the mixed embedded input. Every block is
    /// its coefficient and as many windows as there are lanes. Gives back the loss sum and the
    /// number of tokens, mixed likewise.
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
        let first = &self.members[0];
        let (mixed, loss) = first.model.mixture_loss_sum(blocks, &first.place.device)?;
        let gradients = (&loss * weight)?.backward()?;
        first.hand_over(&self.slots, &gradients, Some(EMBEDDING), |start, gradient| {
            first.place.read(gradient, &mut out[start..start + gradient.elem_count()])
        })?;
        let name = || "the mixed input".to_owned();
        let input =
            gradients.get(&mixed).ok_or_else(|| ReplicaError::NoGradient { name: name() })?;
        inputs.copy_from_slice(&input.flatten_all()?.to_vec1::<f32>()?);
        let tokens = |(coefficient, windows): &(f64, Vec<&[u32]>)| {
            coefficient * (windows.len() * self.context) as f64
        };
        Ok((f64::from(loss.to_scalar::<f32>()?), blocks.iter().map(tokens).sum()))
    }

    /// Mean loss per token of some windows.
    ///
    /// # Errors
    /// [`ReplicaError::Candle`] when candle fails.
    pub fn loss(&self, windows: &[&[u32]]) -> Result<f64, ReplicaError> {
        let mut sum = 0.0;
        for windows in windows.chunks(8) {
            let Member { model, place } = &self.members[0];
            sum += f64::from(model.loss_sum(windows, &place.device)?.to_scalar::<f32>()?);
        }
        Ok(sum / (windows.len() * self.context) as f64)
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
        for Member { model, place } in &self.members {
            let parameters = self.weights.at(place)?;
            self.slots.iter().try_for_each(|slot| {
                parameters.publish(slot.range(), model.variable(&slot.name))
            })?;
        }
        Ok(())
    }

    /// All parameters, in the order of [`GptConfig::layout`].
    ///
    /// # Errors
    /// [`ReplicaError`] when the device fails.
    pub fn values(&self) -> Result<Cow<'_, [f32]>, ReplicaError> {
        self.weights.parameters()
    }

    /// A digest of the parameters, the one that [`Replica::apply`] gave back.
    ///
    /// # Errors
    /// [`ReplicaError`] when the device fails.
    pub fn digest(&self) -> Result<u64, ReplicaError> {
        self.weights.digest()
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
    /// [`ReplicaError::WrongLength`] when it is of another model; the replica is then unchanged.
    /// [`ReplicaError`] when the device fails.
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

    const MODEL: GptConfig =
        GptConfig { vocabulary: 11, context: 6, layers: 2, heads: 2, width: 8, tied: true };
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

    /// Central differences against the gradient, for both kinds of head: an operation that passes
    /// no gradient, or a wrong one, is found here.
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
                    + (0..slot.len())
                        .max_by(|a, b| {
                            gradient[slot.offset + a]
                                .abs()
                                .total_cmp(&gradient[slot.offset + b].abs())
                        })
                        .unwrap();
                let mut loss_at = |shift: f32| {
                    let mut moved = state.clone();
                    moved.parameters[at] += shift;
                    replica.load(&moved).unwrap();
                    replica.loss(&WINDOWS).unwrap() * 12.0
                };
                let slope = (loss_at(5e-3) - loss_at(-5e-3)) / 1e-2;
                let found = f64::from(gradient[at]);
                assert!(
                    (slope - found).abs() < 2e-2 * found.abs() && found.abs() > 0.05,
                    "{} {slope} {found}",
                    slot.name
                );
            }
        }
    }

    /// Products in bf16 leave the gradient as it is but for their rounding, and reach every
    /// parameter.
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
            let difference: Vec<f32> = exact[range.clone()]
                .iter()
                .zip(&narrow[range.clone()])
                .map(|(a, b)| a - b)
                .collect();
            let relative = norm(&difference) / norm(&exact[range]);
            assert!((1e-4..6e-2).contains(&relative), "{} is off by {relative}", slot.name);
        }
    }

    /// A replica of several devices has the gradient of one, but for its rounding, before and after
    /// a step.
    #[test]
    fn several_devices_share_a_micro_batch() {
        let state = ReplicaState::fresh(&MODEL, 3);
        let on = |devices_per_worker| {
            let compute = Compute { devices_per_worker, ..Compute::default() };
            Replica::on((compute, 1), &MODEL, OPTIMIZER, &state).unwrap()
        };
        let windows = [WINDOWS[0], WINDOWS[1], &[3; 7], &[0, 5, 0, 5, 0, 5, 0], WINDOWS[0]];
        let (mut one, mut three) = (on(1), on(3));
        for step in 0..3 {
            let mut gradients =
                [vec![f32::NAN; one.parameters()], vec![f32::NAN; one.parameters()]];
            for count in [1, 2, 5] {
                let [expected, found] = &mut gradients;
                let (loss, tokens) = one.gradient(&windows[..count], 0.1, expected).unwrap();
                let (sum, same) = three.gradient(&windows[..count], 0.1, found).unwrap();
                assert!((loss - sum).abs() <= 1e-5 * loss && tokens == same);
                let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                assert!(
                    expected.iter().zip(found).all(|(a, b)| (*a - *b).abs() <= 1e-5 * largest),
                    "{count} windows"
                );
            }
            assert_eq!(
                one.apply(&gradients[0], step).unwrap(),
                three.apply(&gradients[0], step).unwrap()
            );
        }
    }

    #[test]
    fn the_future_is_hidden() {
        let replica = replica(&MODEL);
        let loss = |window: &[u32]| {
            replica.members[0]
                .model
                .loss_sum(&[window], &Device::Cpu)
                .unwrap()
                .to_scalar::<f32>()
                .unwrap()
        };
        let one =
            Replica::new(&GptConfig { context: 3, ..MODEL }, OPTIMIZER, &replica.state().unwrap())
                .unwrap();
        let short = one.members[0]
            .model
            .loss_sum(&[&[1, 2, 3, 4]], &Device::Cpu)
            .unwrap()
            .to_scalar::<f32>()
            .unwrap();
        let tail = |end: u32| loss(&[1, 2, 3, 4, 5, 6, end]) - loss(&[1, 2, 3, 4, 5, 6, 6]);
        assert!(tail(0).abs() > 0.0);
        assert!(
            short < loss(&[1, 2, 3, 4, 5, 6, 7]),
            "the first three tokens do not depend on the rest"
        );
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
