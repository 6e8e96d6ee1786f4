//! Where replicas compute, and what that could do at best.

use super::ReplicaError;
use candle_core::Device;
use serde::{Deserialize, Serialize};
#[cfg(feature = "candle-cuda")]
use {
    crate::gpu::cuda::{Cuda, DeviceGradient, DeviceSource},
    crate::gpu::{Gradient, Wire},
    candle_core::CudaStorage,
    std::ops::Range,
};

/// Where replicas compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processor {
    /// On the CPU.
    #[default]
    Cpu,
    /// On NVIDIA GPUs, workers taking turns at those there are.
    Cuda,
}

impl Processor {
    /// How many devices there are; 1 CPU.
    ///
    /// # Errors
    /// [`ReplicaError::NoDevice`] when this build or this machine has none.
    pub fn devices(self) -> Result<usize, ReplicaError> {
        match self {
            Processor::Cpu => Ok(1),
            #[cfg(feature = "candle-cuda")]
            Processor::Cuda => match crate::gpu::cuda::devices() {
                0 => Err(ReplicaError::NoDevice { why: "this machine has no NVIDIA GPU, or no driver for it" }),
                devices => Ok(devices),
            },
            #[cfg(not(feature = "candle-cuda"))]
            Processor::Cuda => Err(ReplicaError::NoDevice { why: "this program was built without feature `candle-cuda`" }),
        }
    }

    /// What one of its devices could do at best, in 10^12 floating point operations per second on f32 without tensor cores,
    /// as candle multiplies; none where that is not known.
    #[must_use]
    pub fn peak_tflops(self) -> Option<f64> {
        match self {
            Processor::Cpu => None,
            #[cfg(feature = "candle-cuda")]
            Processor::Cuda => peak_of(&crate::gpu::cuda::name(0)?),
            #[cfg(not(feature = "candle-cuda"))]
            Processor::Cuda => None,
        }
    }

    /// The device of worker or replica number `place`.
    pub(super) fn place(self, place: usize) -> Result<Place, ReplicaError> {
        let devices = self.devices()?;
        Place::new(match self {
            Processor::Cpu => Device::Cpu,
            Processor::Cuda => Device::new_cuda(place % devices)?,
        })
    }
}

/// 10^12 f32 operations per second by NVIDIA's data sheets; of names that begin alike, the longer comes first.
#[cfg(any(test, feature = "candle-cuda"))]
const PEAK_TFLOPS: [(&str, f64); 12] = [
    ("H200", 67.0),
    ("H100 PCIe", 51.2),
    ("H100 NVL", 60.0),
    ("H100", 67.0),
    ("A100", 19.5),
    ("A10G", 35.0),
    ("A10", 31.2),
    ("L40S", 91.6),
    ("L40", 90.5),
    ("L4", 30.3),
    ("RTX 4090", 82.6),
    ("RTX 3090", 35.6),
];

#[cfg(any(test, feature = "candle-cuda"))]
fn peak_of(name: &str) -> Option<f64> {
    PEAK_TFLOPS.iter().find(|(part, _)| name.contains(part)).map(|(_, peak)| *peak)
}

/// A device, and the door through which its gradients leave.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) device: Device,
    #[cfg(feature = "candle-cuda")]
    cuda: Option<Cuda>,
}

#[cfg(not(feature = "candle-cuda"))]
impl Place {
    fn new(device: Device) -> Result<Self, ReplicaError> {
        Ok(Self { device })
    }
}

#[cfg(feature = "candle-cuda")]
impl Place {
    /// Kernels run on candle's own stream, so they see what candle has computed.
    fn new(device: Device) -> Result<Self, ReplicaError> {
        let cuda = match &device {
            Device::Cuda(cuda) => Some(Cuda::on(cuda.cuda_stream()).map_err(|error| ReplicaError::Gradient(error.into()))?),
            _ => None,
        };
        Ok(Self { device, cuda })
    }

    /// Reads a gradient where candle has it.
    pub(super) fn read(&self, storage: &CudaStorage, range: Range<usize>, out: &mut [f32]) -> Result<(), ReplicaError> {
        let cuda = self.cuda.as_ref().ok_or(ReplicaError::NoDevice { why: "the gradient lies on a device of another replica" })?;
        let source = DeviceSource::F32(storage.as_cuda_slice::<f32>()?.slice(range));
        Ok(DeviceGradient::new(cuda, source).read(0, 1.0, Wire::F32(out))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_name() {
        let names =
            ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB", "NVIDIA A10", "NVIDIA L40S", "NVIDIA L4", "Tesla K80"];
        let peaks = [Some(67.0), Some(51.2), Some(19.5), Some(31.2), Some(91.6), Some(30.3), None];
        assert_eq!(names.map(peak_of), peaks);
    }

    #[test]
    fn a_machine_without_a_gpu_says_so() {
        assert_eq!(Processor::Cpu.devices().unwrap(), 1);
        match Processor::Cuda.devices() {
            Ok(devices) => assert!(cfg!(feature = "candle-cuda") && devices > 0),
            Err(error) => assert!(error.to_string().starts_with("--device cuda: this ")),
        }
    }
}
