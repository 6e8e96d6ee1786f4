//! The memories in which gradients and the state of replicas lie.

use super::device::{GradientReducer, Place};
use super::{ReplicaError, ReplicaState};
use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};
use codedgrad::gpu::Vector;
use codedgrad::train::{AdamW, AdamWConfig};
use std::borrow::Cow;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;
#[cfg(feature = "candle-cuda")]
use {
    super::device::ELSEWHERE,
    candle_core::{CudaStorage, Error},
    codedgrad::gpu::cuda::{Cuda, DeviceTarget, DeviceVector},
    codedgrad::train::DeviceAdamW,
    std::sync::Arc,
};

#[cfg(all(feature = "candle-cuda", feature = "nccl"))]
use {super::device::one_at_a_time, codedgrad::gpu::GradientError};

/// A memory in which the gradients of replicas can lie: the host's, or with feature `candle-cuda`
/// that of GPUs. Not to be implemented elsewhere.
pub trait Memory: Vector {
    /// Where the worker in turn has its results; workers take turns at the devices there are.
    ///
    /// # Errors
    /// [`ReplicaError`] where there is no such memory.
    fn place(turn: usize) -> Result<Self::Place, ReplicaError>;

    /// Where a device's part of a gradient lies.
    ///
    /// # Errors
    /// [`ReplicaError`] where there is no such memory.
    fn beside(place: &Place) -> Result<Self::Place, ReplicaError>;

    /// Adds the parts of a replica's other devices.
    ///
    /// # Errors
    /// [`ReplicaError`] when they cannot be had.
    fn gather(&mut self, others: Vec<Self>, _: &GradientReducer) -> Result<(), ReplicaError> {
        add_all(self, &others);
        Ok(())
    }

    /// Overwrites the numbers from `start` on with those of a contiguous tensor of f32, computed at
    /// a place.
    ///
    /// # Errors
    /// [`ReplicaError`] when they lie where they cannot be read.
    fn put(&mut self, start: usize, tensor: &Tensor, place: &Place) -> Result<(), ReplicaError>;

    /// Changes the numbers on the host, wherever that takes them.
    ///
    /// # Errors
    /// [`ReplicaError`] when they cannot be had.
    fn change<T>(&mut self, change: impl FnOnce(&mut [f32]) -> T) -> Result<T, ReplicaError>;

    /// The numbers for the host.
    ///
    /// # Errors
    /// [`ReplicaError`] when they cannot be had.
    fn numbers(&self) -> Result<Cow<'_, [f32]>, ReplicaError>;

    /// The numbers on a GPU.
    ///
    /// # Errors
    /// [`ReplicaError`] when they cannot be brought there.
    #[cfg(feature = "candle-cuda")]
    fn on(&self, cuda: &Arc<Cuda>) -> Result<Cow<'_, DeviceVector>, ReplicaError>;
}

/// A part that is not finite makes the sum so.
fn add_all<V: Vector>(sum: &mut V, others: &[V]) {
    for other in others {
        sum.add(1.0, other);
    }
}

impl Memory for Vec<f32> {
    fn place(_: usize) -> Result<(), ReplicaError> {
        Ok(())
    }

    fn beside(_: &Place) -> Result<(), ReplicaError> {
        Ok(())
    }

    fn put(&mut self, start: usize, tensor: &Tensor, place: &Place) -> Result<(), ReplicaError> {
        place.read(tensor, &mut self[start..start + tensor.elem_count()])
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut [f32]) -> T) -> Result<T, ReplicaError> {
        Ok(change(self))
    }

    fn numbers(&self) -> Result<Cow<'_, [f32]>, ReplicaError> {
        Ok(Cow::Borrowed(self))
    }

    #[cfg(feature = "candle-cuda")]
    fn on(&self, cuda: &Arc<Cuda>) -> Result<Cow<'_, DeviceVector>, ReplicaError> {
        Ok(Cow::Owned(DeviceVector::of(cuda, self)?))
    }
}

#[cfg(feature = "candle-cuda")]
impl Memory for DeviceVector {
    fn place(turn: usize) -> Result<Arc<Cuda>, ReplicaError> {
        Ok(Arc::new(Cuda::new(turn % super::Processor::Cuda.devices()?)?))
    }

    fn beside(place: &Place) -> Result<Arc<Cuda>, ReplicaError> {
        place.cuda().cloned().ok_or(ELSEWHERE)
    }

    #[cfg(feature = "nccl")]
    fn gather(
        &mut self,
        mut others: Vec<Self>,
        between: &GradientReducer,
    ) -> Result<(), ReplicaError> {
        let group = between
            .group
            .as_ref()
            .map(|group| group.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let Some(mut group) = group.filter(|group| group.size() == others.len() + 1) else {
            add_all(self, &others);
            return Ok(());
        };
        let mut parts = std::iter::once(self)
            .chain(&mut others)
            .map(Self::target)
            .collect::<Result<Vec<_>, _>>()?;
        let failed = |error: codedgrad::transport::nccl::NcclError| GradientError::Device {
            reason: error.to_string(),
        };
        Ok(one_at_a_time(|| group.reduce(0, &mut parts)).map_err(failed)?)
    }

    fn put(&mut self, start: usize, tensor: &Tensor, place: &Place) -> Result<(), ReplicaError> {
        place.with(tensor, |cuda, source| {
            self.cuda().wait_for(cuda)?;
            Ok(self.copy_part_from(start, &source, 1.0)?)
        })
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut [f32]) -> T) -> Result<T, ReplicaError> {
        let mut numbers = self.to_host()?;
        let changed = change(&mut numbers);
        *self = Self::of(self.cuda(), &numbers)?;
        Ok(changed)
    }

    fn numbers(&self) -> Result<Cow<'_, [f32]>, ReplicaError> {
        Ok(Cow::Owned(self.to_host()?))
    }

    fn on(&self, _: &Arc<Cuda>) -> Result<Cow<'_, DeviceVector>, ReplicaError> {
        Ok(Cow::Borrowed(self))
    }
}

/// Parameters and moments of a replica, where its model is computed, and the optimizer's step on
/// them.
#[derive(Debug)]
pub(super) enum Weights {
    Host {
        parameters: Vec<f32>,
        optimizer: AdamW,
    },
    #[cfg(feature = "candle-cuda")]
    Device(DeviceAdamW),
}

impl Weights {
    pub(super) fn new(
        place: &Place,
        config: AdamWConfig,
        state: &ReplicaState,
    ) -> Result<Self, ReplicaError> {
        let ReplicaState { parameters, first, second } = state;
        #[cfg(feature = "candle-cuda")]
        if let Some(cuda) = place.cuda() {
            return Ok(Self::Device(DeviceAdamW::new(cuda, config, [parameters, first, second])?));
        }
        debug_assert!(place.device.is_cpu(), "other devices keep their weights");
        Ok(Self::Host {
            parameters: parameters.clone(),
            optimizer: AdamW::with_moments(config, first.clone(), second.clone()),
        })
    }

    /// Takes over a state, in the memory there is.
    pub(super) fn load(
        &mut self,
        config: AdamWConfig,
        state: &ReplicaState,
    ) -> Result<(), ReplicaError> {
        let ReplicaState { parameters: new, first, second } = state;
        match self {
            Self::Host { parameters, optimizer } => {
                parameters.copy_from_slice(new);
                *optimizer = AdamW::with_moments(config, first.clone(), second.clone());
            }
            #[cfg(feature = "candle-cuda")]
            Self::Device(optimizer) => optimizer.load([new, first, second])?,
        }
        Ok(())
    }

    /// Takes a step; gives back a digest of the parameters after it.
    pub(super) fn apply(&mut self, gradient: &impl Memory, step: u64) -> Result<u64, ReplicaError> {
        match self {
            Self::Host { parameters, optimizer } => {
                Ok(optimizer.update(parameters, &gradient.numbers()?, step))
            }
            #[cfg(feature = "candle-cuda")]
            Self::Device(optimizer) => {
                let gradient = gradient.on(optimizer.parameters().cuda())?;
                Ok(optimizer.update(&gradient, step)?)
            }
        }
    }

    pub(super) fn parameters(&self) -> Result<Cow<'_, [f32]>, ReplicaError> {
        match self {
            Self::Host { parameters, .. } => parameters.numbers(),
            #[cfg(feature = "candle-cuda")]
            Self::Device(optimizer) => optimizer.parameters().numbers(),
        }
    }

    /// A digest of the parameters: what [`Weights::apply`] gave back when they became what they
    /// are.
    pub(super) fn digest(&self) -> Result<u64, ReplicaError> {
        match self {
            Self::Host { parameters, .. } => Ok(xxh3_64(bytemuck::cast_slice(parameters))),
            #[cfg(feature = "candle-cuda")]
            Self::Device(optimizer) => Ok(optimizer.parameters().digest()?),
        }
    }

    pub(super) fn state(&self) -> Result<ReplicaState, ReplicaError> {
        match self {
            Self::Host { parameters, optimizer } => {
                let (first, second) = optimizer.moments();
                Ok(ReplicaState {
                    parameters: parameters.clone(),
                    first: first.to_vec(),
                    second: second.to_vec(),
                })
            }
            #[cfg(feature = "candle-cuda")]
            Self::Device(optimizer) => Ok(ReplicaState::from_vectors(optimizer.state()?)),
        }
    }

    /// The parameters at one of the replica's devices.
    pub(super) fn at(&self, place: &Place) -> Result<Parameters<'_>, ReplicaError> {
        match self {
            Self::Host { parameters, .. } => {
                debug_assert!(place.device.is_cpu(), "other devices keep their weights");
                Ok(Parameters::Host(parameters))
            }
            #[cfg(feature = "candle-cuda")]
            Self::Device(optimizer) => {
                Ok(Parameters::Device(optimizer.parameters().near(place.cuda().ok_or(ELSEWHERE)?)?))
            }
        }
    }
}

/// Parameters that lie where a model's variables do.
pub(super) enum Parameters<'a> {
    Host(&'a [f32]),
    #[cfg(feature = "candle-cuda")]
    Device(Cow<'a, DeviceVector>),
}

impl Parameters<'_> {
    /// Overwrites a variable of the model with a range of them.
    pub(super) fn publish(
        &self,
        range: Range<usize>,
        variable: &Tensor,
    ) -> Result<(), ReplicaError> {
        Ok(variable.inplace_op1(&Overwrite { parameters: self, range })?)
    }
}

struct Overwrite<'a> {
    parameters: &'a Parameters<'a>,
    range: Range<usize>,
}

impl InplaceOp1 for Overwrite<'_> {
    fn name(&self) -> &'static str {
        "overwrite"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match (self.parameters, storage, layout.contiguous_offsets()) {
            (Parameters::Host(parameters), CpuStorage::F32(values), Some((from, to))) => {
                values[from..to].copy_from_slice(&parameters[self.range.clone()]);
                Ok(())
            }
            _ => candle_core::bail!("parameters are contiguous f32 where they are computed with"),
        }
    }

    #[cfg(feature = "candle-cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        match (self.parameters, layout.contiguous_offsets()) {
            (Parameters::Device(parameters), Some((from, to))) => {
                let mut to =
                    DeviceTarget::F32(storage.as_cuda_slice_mut::<f32>()?.slice_mut(from..to));
                parameters.copy_part_to(self.range.start, &mut to).map_err(Error::wrap)
            }
            _ => candle_core::bail!("parameters are contiguous f32 where they are computed with"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Attack, AttackKind, Batches, Compute, Corpus, Fault, GptConfig, LocalRun, RunStart,
        run_local, run_local_at,
    };
    use super::*;
    use crate::non_host::NonHostVector;
    use codedgrad::delays::Delays;
    use codedgrad::ids::Worker;
    use codedgrad::run::Shape;
    use codedgrad::sums::DecodedSum;
    use codedgrad::train::{Flow, Incident, Observer, RunClock, StepRecord};
    use std::error::Error;

    impl Memory for NonHostVector {
        fn place(turn: usize) -> Result<u32, ReplicaError> {
            Ok(turn as u32 % 2)
        }
        fn beside(_: &Place) -> Result<u32, ReplicaError> {
            Ok(0)
        }
        fn put(
            &mut self,
            start: usize,
            tensor: &Tensor,
            place: &Place,
        ) -> Result<(), ReplicaError> {
            self.0.put(start, tensor, place)
        }
        fn change<T>(&mut self, change: impl FnOnce(&mut [f32]) -> T) -> Result<T, ReplicaError> {
            self.0.change(change)
        }
        fn numbers(&self) -> Result<Cow<'_, [f32]>, ReplicaError> {
            self.0.numbers()
        }
        #[cfg(feature = "candle-cuda")]
        fn on(&self, cuda: &Arc<Cuda>) -> Result<Cow<'_, DeviceVector>, ReplicaError> {
            self.0.on(cuda)
        }
    }

    #[derive(Default)]
    struct Shown(Vec<(String, Vec<f64>, Vec<u32>)>);

    impl<V: Memory> Observer<V> for Shown {
        fn step(
            &mut self,
            record: &StepRecord,
            decoded: Option<&DecodedSum<V>>,
        ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
            let bits = decoded
                .ok_or("every step is seen")?
                .gradient
                .numbers()?
                .iter()
                .map(|x| x.to_bits())
                .collect();
            self.0.push((record.digest.clone(), record.aux.clone(), bits));
            Ok(Flow::Continue)
        }
        fn event(&mut self, _: &Incident) {}
    }

    /// The bundled model ends alike over the host's memory and over one that only its workers and
    /// observers can read. One worker is wrong on purpose, and the gradient of one is NaN.
    #[test]
    fn a_model_is_trained_alike_in_any_memory() {
        let model =
            GptConfig { vocabulary: 256, context: 8, layers: 1, heads: 2, width: 8, tied: true };
        let optimizer = AdamWConfig {
            learning_rate: 0.1,
            warmup_steps: 2,
            decay_steps: 10,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
        };
        let fault: Fault = "nan@2:0".parse().unwrap();
        let run = LocalRun {
            shape: Shape { workers: 4, units: 4, unit_samples: 2 },
            compute: Compute { devices_per_worker: 2, ..Compute::default() },
            faults: vec![fault],
            attack: Some(Attack { kind: AttackKind::Flip, workers: vec![Worker(3)], seed: 1 }),
            ..LocalRun::new("groups:s=1".parse().unwrap(), 4, model, optimizer)
        };
        let batches = Batches::new(Corpus::embedded().byte_tokens(), model.context, 3).unwrap();
        let state = ReplicaState::fresh(&model, 5);
        let start = RunStart { states: std::slice::from_ref(&state), step: 0, round: 0 };
        let run_clock = || {
            RunClock::modelled(
                4,
                &Delays::None,
                5,
                codedgrad::train::VirtualClock { step_seconds: 1.0 },
                0.0,
            )
        };
        let (mut host, mut staying) = (Shown::default(), Shown::default());
        run_local(&run, start, 5, &batches, run_clock(), &mut host).unwrap();
        run_local_at::<NonHostVector>(&run, start, 5, &batches, run_clock(), &mut staying).unwrap();
        assert_eq!(host.0.len(), 5);
        assert!(host.0 == staying.0);
    }
}
