//! Sums of vectors of the host, made on a device.

use super::{Cuda, CudaError, CudaSlice, DeviceSource, DeviceTerm, warn_once};
use crate::gpu::{Combine, CombineError, Source, Term, check, shared};
use half::{bf16, f16};

/// Elements of host vectors that are on the device at a time.
pub(super) const CHUNK: usize = 1 << 22;

impl Cuda {
    /// Vectors of the host, a chunk of all of them at a time.
    fn combine_host(&self, terms: &[Term<'_>], out: &mut [f32]) -> Result<(), CudaError> {
        for start in (0..out.len()).step_by(CHUNK) {
            let range = start..out.len().min(start + CHUNK);
            let mut uploaded = Vec::with_capacity(terms.len());
            for term in terms {
                uploaded.push(match term.source {
                    Source::F32(x) => Uploaded::F32(self.stream.clone_htod(&x[range.clone()])?),
                    Source::Bf16(x) => Uploaded::Bf16(self.stream.clone_htod(&x[range.clone()])?),
                    Source::F16(x) => Uploaded::F16(self.stream.clone_htod(&x[range.clone()])?),
                });
            }
            let terms: Vec<DeviceTerm<'_>> = terms
                .iter()
                .zip(&uploaded)
                .map(|(term, x)| DeviceTerm { weight: term.weight, source: x.source() })
                .collect();
            let mut sum = self.unset::<f32>(range.len())?;
            self.combine_into(&terms, &mut sum.as_view_mut())?;
            self.stream.memcpy_dtoh(&sum, &mut out[range])?;
        }
        Ok(self.stream.synchronize()?)
    }
}

/// A chunk of a host vector on the device.
enum Uploaded {
    F32(CudaSlice<f32>),
    Bf16(CudaSlice<bf16>),
    F16(CudaSlice<f16>),
}

impl Uploaded {
    fn source(&self) -> DeviceSource<'_> {
        match self {
            Uploaded::F32(x) => DeviceSource::F32(x.as_view()),
            Uploaded::Bf16(x) => DeviceSource::Bf16(x.as_view()),
            Uploaded::F16(x) => DeviceSource::F16(x.as_view()),
        }
    }
}

/// For vectors of the host: they are sent to the device and the sum is sent back, which takes
/// longer than to sum them on the CPU. What is on the device already is for [`Cuda::combine_into`].
/// Should the device fail, the CPU sums.
impl Combine for Cuda {
    fn combine(&self, terms: &[Term<'_>], out: &mut [f32]) -> Result<(), CombineError> {
        check(terms, out.len())?;
        self.combine_host(terms, out).or_else(|error| {
            warn_once(&error);
            shared().combine(terms, out)
        })
    }
}
