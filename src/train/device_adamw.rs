//! The optimizer of replicas that stay on a device.

use super::AdamWConfig;
use crate::gpu::cuda::{Cuda, CudaError, DeviceVector};
use crate::gpu::{GradientError, GradientMut};
use std::sync::Arc;

/// [`AdamW`](super::AdamW) over parameters and moments on a device, for workers whose gradients
/// stay there too.
///
/// The formula and its roundings are the same. Only the gradient's norm is added up in another
/// order, in f64, so that parameters have the CPU's bits unless that changes the last bit of a
/// gradient that is clipped. All replicas of a kind of device agree. The digest is
/// [`DeviceVector::digest`].
///
/// ```no_run
/// use codedgrad::gpu::cuda::{Cuda, DeviceVector};
/// use codedgrad::train::{AdamWConfig, DeviceAdamW};
/// use std::sync::Arc;
/// # let config: AdamWConfig = todo!();
/// let cuda = Arc::new(Cuda::new(0)?);
/// let mut optimizer = DeviceAdamW::new(&cuda, config, [&[1.0, 2.0], &[0.0; 2], &[0.0; 2]])?;
/// let digest = optimizer.update(&DeviceVector::of(&cuda, &[0.5, -0.5])?, 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceAdamW {
    config: AdamWConfig,
    parameters: DeviceVector,
    first: DeviceVector,
    second: DeviceVector,
}

impl DeviceAdamW {
    /// Parameters, first and second moments, copied to the device.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    ///
    /// # Panics
    /// When they differ in length.
    pub fn new(
        cuda: &Arc<Cuda>,
        config: AdamWConfig,
        state: [&[f32]; 3],
    ) -> Result<Self, CudaError> {
        let [parameters, first, second] = state;
        assert!(
            parameters.len() == first.len() && first.len() == second.len(),
            "one number of each kind per parameter"
        );
        let copy = |numbers| DeviceVector::of(cuda, numbers);
        Ok(Self {
            config,
            parameters: copy(parameters)?,
            first: copy(first)?,
            second: copy(second)?,
        })
    }

    /// Takes over parameters, first and second moments of another replica, in the memory that is
    /// there.
    ///
    /// # Errors
    /// [`GradientError`] when there are more than here, or the device fails, which leaves the state
    /// unknown.
    pub fn load(&mut self, [parameters, first, second]: [&[f32]; 3]) -> Result<(), GradientError> {
        self.parameters.write(0, parameters)?;
        self.first.write(0, first)?;
        self.second.write(0, second)
    }

    /// The parameters, where they lie.
    #[must_use]
    pub fn parameters(&self) -> &DeviceVector {
        &self.parameters
    }

    /// Parameters, first and second moments, for another replica or to be saved. Waits for the
    /// device.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    pub fn state(&self) -> Result<[Vec<f32>; 3], CudaError> {
        Ok([self.parameters.to_host()?, self.first.to_host()?, self.second.to_host()?])
    }

    /// Applies one gradient, as [`AdamW`](super::AdamW)`::update` does, and returns a digest of the
    /// parameters after it. Waits for the device.
    ///
    /// # Errors
    /// [`CudaError`] when the lengths differ, or the driver refuses; what it refused once the step
    /// had begun leaves the state unknown.
    pub fn update(&mut self, gradient: &DeviceVector, step: u64) -> Result<u64, CudaError> {
        let Self { config, parameters, first, second } = self;
        DeviceVector::step([parameters, first, second], gradient, |norm| config.rates(step, norm))?;
        self.parameters.digest()
    }
}

#[cfg(test)]
mod tests;
