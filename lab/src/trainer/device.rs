//! Where replicas compute, and what that could do at best.

use super::ReplicaError;
use candle_core::{DType, Device, Storage, Tensor};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
#[cfg(feature = "candle-cuda")]
use {
    codedgrad::gpu::cuda::{Cuda, DeviceGradient, DeviceSource},
    codedgrad::gpu::{Gradient, WireBuffer},
    std::sync::Arc,
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
            Processor::Cuda => match codedgrad::gpu::cuda::devices() {
                0 => Err(ReplicaError::NoDevice {
                    why: "this machine has no NVIDIA GPU, or no driver for it",
                }),
                devices => Ok(devices),
            },
            #[cfg(not(feature = "candle-cuda"))]
            Processor::Cuda => Err(ReplicaError::NoDevice {
                why: "this program was built without feature `candle-cuda`",
            }),
        }
    }

    /// The device in turn.
    fn place(self, place: usize) -> Result<Place, ReplicaError> {
        let devices = self.devices()?;
        Place::new(match self {
            Processor::Cpu => Device::Cpu,
            // Streams of their own, whatever thread uses them: candle's default is a stream of the
            // thread.
            Processor::Cuda => Device::new_cuda_with_stream(place % devices)?,
        })
    }
}

/// 10^12 operations per second by NVIDIA's data sheets, on f32 without tensor cores and on dense
/// bf16 with them; of names that begin alike, the longer comes first.
#[cfg(any(test, feature = "candle-cuda"))]
const PEAK_TFLOPS: [(&str, f64, f64); 12] = [
    ("H200", 67.0, 989.0),
    ("H100 PCIe", 51.2, 756.0),
    ("H100 NVL", 60.0, 835.0),
    ("H100", 67.0, 989.0),
    ("A100", 19.5, 312.0),
    ("A10G", 35.0, 70.0),
    ("A10", 31.2, 125.0),
    ("L40S", 91.6, 362.0),
    ("L40", 90.5, 181.0),
    ("L4", 30.3, 121.0),
    ("RTX 4090", 82.6, 165.2),
    ("RTX 3090", 35.6, 71.0),
];

#[cfg(any(test, feature = "candle-cuda"))]
fn peak_of(name: &str, precision: Precision) -> Option<f64> {
    let (_, full, narrow) = PEAK_TFLOPS.iter().find(|(part, ..)| name.contains(part))?;
    Some(if precision == Precision::Bf16 { *narrow } else { *full })
}

/// In which numbers replicas multiply matrices. Parameters, gradients, moments, norms, softmax and
/// losses are f32 either way, and so is the residual stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// In f32.
    #[default]
    F32,
    /// In bf16, with tensor cores where there are any; what lies between two products is rounded to
    /// 8 bits.
    Bf16,
}

impl Precision {
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            _ => Err(format!("{text:?} is no precision to compute in; it is f32 or bf16")),
        }
    }
}

/// Where replicas compute, and how exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compute {
    /// On which devices.
    #[serde(default)]
    pub processor: Processor,
    /// In which numbers.
    #[serde(default)]
    pub precision: Precision,
    /// Devices of each worker, which share the windows of its micro-batches.
    #[serde(default = "one")]
    pub devices_per_worker: usize,
}

fn one() -> usize {
    1
}

impl Default for Compute {
    fn default() -> Self {
        Self {
            processor: Processor::default(),
            precision: Precision::default(),
            devices_per_worker: one(),
        }
    }
}

impl Compute {
    /// The devices of a worker or replica; workers take turns at those there are: `W` has `N W` to
    /// `N W + N - 1`, modulo their count.
    pub(super) fn places(self, worker: usize) -> Result<Vec<Place>, ReplicaError> {
        if self.processor == Processor::Cuda
            && self.devices_per_worker > self.processor.devices()?
        {
            return Err(ReplicaError::NoDevice {
                why: "this machine has fewer GPUs than a worker is to have (--gpus-per-worker)",
            });
        }
        (0..self.devices_per_worker)
            .map(|device| self.processor.place(self.first_of(worker) + device))
            .collect()
    }

    /// The turn of a worker's first device.
    pub(super) fn first_of(self, worker: usize) -> usize {
        worker * self.devices_per_worker
    }

    /// What one of its devices could do at best, in 10^12 floating point operations per second: on
    /// f32 without tensor cores, as candle multiplies, or on bf16 with them; none where that is not
    /// known.
    #[must_use]
    pub fn peak_tflops(self) -> Option<f64> {
        match self.processor {
            Processor::Cpu => None,
            #[cfg(feature = "candle-cuda")]
            Processor::Cuda => peak_of(&codedgrad::gpu::cuda::name(0)?, self.precision),
            #[cfg(not(feature = "candle-cuda"))]
            Processor::Cuda => None,
        }
    }
}

/// A device, and the door through which its numbers leave.
#[derive(Debug)]
pub struct Place {
    pub(super) device: Device,
    #[cfg(feature = "candle-cuda")]
    cuda: Option<Arc<Cuda>>,
}

impl Place {
    #[cfg(not(feature = "candle-cuda"))]
    fn new(device: Device) -> Result<Self, ReplicaError> {
        Ok(Self { device })
    }

    /// Copies a contiguous tensor of f32 to the host.
    pub(super) fn read(&self, tensor: &Tensor, out: &mut [f32]) -> Result<(), ReplicaError> {
        let (storage, layout) = tensor.storage_and_layout();
        let start = layout.start_offset();
        match &*storage {
            Storage::Cpu(storage) => {
                out.copy_from_slice(&storage.as_slice::<f32>()?[start..start + out.len()]);
            }
            #[cfg(feature = "candle-cuda")]
            Storage::Cuda(_) => self.with(tensor, |cuda, source| {
                Ok(DeviceGradient::new(cuda, source).read(0, 1.0, WireBuffer::F32(out))?)
            })?,
            _ => return Err(ELSEWHERE),
        }
        Ok(())
    }
}

/// What adds up the gradients of a replica's devices: NCCL, or else copies to the first.
#[derive(Debug, Default)]
pub struct GradientReducer {
    #[cfg(all(feature = "candle-cuda", feature = "nccl"))]
    pub(super) group: Option<std::sync::Mutex<codedgrad::transport::nccl::Group>>,
}

impl GradientReducer {
    #[cfg(not(all(feature = "candle-cuda", feature = "nccl")))]
    pub(super) fn connect(_: &[Place]) -> Self {
        Self::default()
    }

    #[cfg(all(feature = "candle-cuda", feature = "nccl"))]
    pub(super) fn connect(places: &[Place]) -> Self {
        use codedgrad::transport::nccl::{Group, Timeouts};
        let streams: Vec<_> =
            places.iter().filter_map(|place| Some(Arc::clone(place.cuda()?.stream()))).collect();
        if streams.len() < 2 {
            return Self::default();
        }
        let group = one_at_a_time(|| Group::within(streams, Timeouts::default()));
        let group = group.inspect_err(|error| {
            tracing::warn!("gradients of a worker's GPUs are copied to its first: {error}")
        });
        Self { group: group.ok().map(std::sync::Mutex::new) }
    }
}

/// Communicators that share GPUs may wait for each other's kernels for ever, unless each has its
/// turn in this process.
#[cfg(all(feature = "candle-cuda", feature = "nccl"))]
pub(super) fn one_at_a_time<T>(then: impl FnOnce() -> T) -> T {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    then()
}

/// Numbers that another kind of device has.
pub(super) const ELSEWHERE: ReplicaError =
    ReplicaError::NoDevice { why: "the gradient lies on a device of another replica" };

#[cfg(feature = "candle-cuda")]
impl Place {
    /// Kernels run on candle's own stream, so they see what candle has computed.
    fn new(device: Device) -> Result<Self, ReplicaError> {
        let cuda = match &device {
            Device::Cuda(cuda) => Some(Arc::new(Cuda::on(cuda.cuda_stream())?)),
            _ => None,
        };
        Ok(Self { device, cuda })
    }

    /// The device, if it is a GPU.
    pub(super) fn cuda(&self) -> Option<&Arc<Cuda>> {
        self.cuda.as_ref()
    }

    /// Does something with a contiguous tensor of f32 where candle has it.
    pub(super) fn with(
        &self,
        tensor: &Tensor,
        then: impl FnOnce(&Cuda, DeviceSource<'_>) -> Result<(), ReplicaError>,
    ) -> Result<(), ReplicaError> {
        let (storage, layout) = tensor.storage_and_layout();
        let (Storage::Cuda(storage), Some(cuda)) = (&*storage, &self.cuda) else {
            return Err(ELSEWHERE);
        };
        let range = layout.start_offset()..layout.start_offset() + tensor.elem_count();
        then(cuda, DeviceSource::F32(storage.as_cuda_slice::<f32>()?.slice(range)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_name() {
        let names = [
            "NVIDIA H100 80GB HBM3",
            "NVIDIA H100 PCIe",
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A10",
            "NVIDIA L40S",
            "NVIDIA L4",
            "Tesla K80",
        ];
        let peaks = [Some(67.0), Some(51.2), Some(19.5), Some(31.2), Some(91.6), Some(30.3), None];
        assert_eq!(names.map(|name| peak_of(name, Precision::F32)), peaks);
        let narrow =
            [Some(989.0), Some(756.0), Some(312.0), Some(125.0), Some(362.0), Some(121.0), None];
        assert_eq!(names.map(|name| peak_of(name, Precision::Bf16)), narrow);
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
