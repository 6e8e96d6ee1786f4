//! Gradients on a device, read and written through two page-locked buffers: while one bucket is on
//! its way, the device casts the next and the host copies the last.

use super::vector::for_each_format;
use super::{Cuda, CudaError, DeviceSource, DeviceTarget};
use crate::gpu::gradient::within;
use crate::gpu::{Gradient, GradientError, GradientMut, WireBuffer};
use crate::passes::{self, PassPlace};
use cudarc::driver::{
    CudaEvent, CudaSlice, CudaView, CudaViewMut, DeviceRepr, PinnedHostSlice, ValidAsZeroBits,
};
use half::{bf16, f16};
use std::ops::Range;
use std::sync::PoisonError;

/// Elements of a bucket.
const BUCKET: usize = 1 << 20;

/// One bucket on both sides.
#[derive(Debug)]
pub(super) struct Stage<T> {
    device: CudaSlice<T>,
    host: PinnedHostSlice<T>,
    /// When the last copy between them is done. cudarc's own events are recorded only where a
    /// context has several streams.
    copied: Option<CudaEvent>,
}

impl<T> Stage<T> {
    /// Waits until the host may touch its side.
    fn wait(&mut self) -> Result<(), CudaError> {
        Ok(self.copied.take().map_or(Ok(()), |copied| copied.synchronize())?)
    }
}

/// Two buckets of every format that was asked for.
#[derive(Debug, Default)]
pub(super) struct StagingBuffers {
    f32: Vec<Stage<f32>>,
    bf16: Vec<Stage<bf16>>,
    f16: Vec<Stage<f16>>,
}

/// The formats of a device's numbers.
trait Number: DeviceRepr + ValidAsZeroBits + Copy + Default {
    fn source(x: CudaView<'_, Self>) -> DeviceSource<'_>;
    fn target(x: CudaViewMut<'_, Self>) -> DeviceTarget<'_>;
    fn stages(staging: &mut StagingBuffers) -> &mut Vec<Stage<Self>>;
}

macro_rules! number {
    ($type:ty, $kind:ident, $field:ident) => {
        impl Number for $type {
            fn source(x: CudaView<'_, Self>) -> DeviceSource<'_> {
                DeviceSource::$kind(x)
            }

            fn target(x: CudaViewMut<'_, Self>) -> DeviceTarget<'_> {
                DeviceTarget::$kind(x)
            }

            fn stages(staging: &mut StagingBuffers) -> &mut Vec<Stage<Self>> {
                &mut staging.$field
            }
        }
    };
}
number!(f32, F32, f32);
number!(bf16, Bf16, bf16);
number!(f16, F16, f16);

/// A flat gradient on a device, read in place: scaled and cast there, bucket by bucket.
///
/// ```no_run
/// use codedgrad::gpu::cuda::{Cuda, DeviceGradient, DeviceSource};
/// use codedgrad::gpu::{Gradient, WireBuffer};
/// use half::bf16;
/// let cuda = Cuda::new(0)?;
/// let x = cuda.stream().clone_htod(&[1.0f32, 2.0])?;
/// let mut wire = [bf16::ZERO; 2];
/// let gradient = DeviceGradient::new(&cuda, DeviceSource::F32(x.as_view()));
/// gradient.read(0, 0.5, WireBuffer::Bf16(&mut wire))?;
/// assert_eq!(wire.map(bf16::to_f32), [0.5, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceGradient<'a> {
    cuda: &'a Cuda,
    source: DeviceSource<'a>,
}

impl<'a> DeviceGradient<'a> {
    /// Numbers on the device of `cuda`.
    #[must_use]
    pub fn new(cuda: &'a Cuda, source: DeviceSource<'a>) -> Self {
        Self { cuda, source }
    }
}

impl Gradient for DeviceGradient<'_> {
    fn length(&self) -> usize {
        self.source.len()
    }

    fn read(&self, start: usize, scale: f32, wire: WireBuffer<'_>) -> Result<(), GradientError> {
        let range = within(start, wire.len(), self.source.len())?;
        for_each_format!(wire, WireBuffer, wire => self.cuda.download(&self.source, range, scale, wire)?);
        Ok(())
    }
}

/// A flat gradient on a device, to be overwritten.
#[derive(Debug)]
pub struct DeviceGradientMut<'a> {
    cuda: &'a Cuda,
    target: DeviceTarget<'a>,
}

impl<'a> DeviceGradientMut<'a> {
    /// Numbers on the device of `cuda`.
    #[must_use]
    pub fn new(cuda: &'a Cuda, target: DeviceTarget<'a>) -> Self {
        Self { cuda, target }
    }
}

impl GradientMut for DeviceGradientMut<'_> {
    fn length(&self) -> usize {
        self.target.len()
    }

    fn write(&mut self, start: usize, values: &[f32]) -> Result<(), GradientError> {
        let range = within(start, values.len(), self.target.len())?;
        Ok(self.cuda.upload(values, &mut self.target, range.start)?)
    }
}

impl Cuda {
    /// Numbers of the device, scaled and cast there, bucket by bucket. Waits for the last.
    fn download<T: Number>(
        &self,
        x: &DeviceSource<'_>,
        range: Range<usize>,
        scale: f32,
        wire: &mut [T],
    ) -> Result<(), CudaError> {
        // The device writes the buffer, from which it is copied.
        passes::count(PassPlace::Gather, 3 * size_of_val(wire));
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let stages = self.stages::<T>(&mut staging)?;
        let mut under_way: Option<&mut [T]> = None;
        for (bucket, out) in wire.chunks_mut(BUCKET).enumerate() {
            let start = range.start + bucket * BUCKET;
            let Stage { device, host, copied } = &mut stages[bucket % 2];
            let part = for_each_format!(x, DeviceSource, x => Number::source(x.slice(start..start + out.len())));
            self.cast(&part, scale, &mut T::target(device.slice_mut(0..out.len())))?;
            self.stream.memcpy_dtoh(&device.slice(0..out.len()), host)?;
            *copied = Some(self.stream.record_event(None)?);
            if let Some(last) = under_way.replace(out) {
                stages[(bucket + 1) % 2].wait()?;
                last.copy_from_slice(&stages[(bucket + 1) % 2].host.as_slice()?[..last.len()]);
            }
        }
        if let Some(last) = under_way {
            let stage = &mut stages[(range.len() - 1) / BUCKET % 2];
            stage.wait()?;
            last.copy_from_slice(&stage.host.as_slice()?[..last.len()]);
        }
        Ok(())
    }

    /// Numbers of the host, cast on the device, bucket by bucket. Returns before the device is
    /// done.
    fn upload(
        &self,
        values: &[f32],
        out: &mut DeviceTarget<'_>,
        start: usize,
    ) -> Result<(), CudaError> {
        // It is copied to the buffer, which the device reads.
        passes::count(PassPlace::Scatter, 3 * size_of_val(values));
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let stages = self.stages::<f32>(&mut staging)?;
        for (bucket, values) in values.chunks(BUCKET).enumerate() {
            let start = start + bucket * BUCKET;
            stages[bucket % 2].wait()?;
            let Stage { device, host, copied } = &mut stages[bucket % 2];
            host.as_mut_slice()?[..values.len()].copy_from_slice(values);
            self.stream.memcpy_htod(host, device)?;
            *copied = Some(self.stream.record_event(None)?);
            let x = DeviceSource::F32(device.slice(0..values.len()));
            let mut part = for_each_format!(out, DeviceTarget, out => Number::target(out.slice_mut(start..start + values.len())));
            self.cast(&x, 1.0, &mut part)?;
        }
        Ok(())
    }

    /// The two buckets of a format, made when they are first needed.
    fn stages<'s, T: Number>(
        &self,
        staging: &'s mut StagingBuffers,
    ) -> Result<&'s mut Vec<Stage<T>>, CudaError> {
        let stages = T::stages(staging);
        while stages.len() < 2 {
            stages.push(Stage {
                device: self.stream.alloc_zeros(BUCKET)?,
                host: self.pinned(BUCKET)?,
                copied: None,
            });
        }
        Ok(stages)
    }
}
