//! Vectors on devices: views of any format, and results and sums.

use super::{Cuda, CudaError, DeviceGradient, DeviceGradientMut, DeviceTerm, warn_once};
use crate::gpu::{
    CombineError, Gradient, GradientError, GradientMut, Rates, SumCheck, Vector, WireBuffer,
};
use crate::run::NumberFormat;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut,
    DeviceSlice, SyncOnDrop,
};
use half::{bf16, f16};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Numbers on a device, in the format in which they travel.
#[derive(Debug)]
pub enum DeviceSource<'a> {
    /// 32-bit floats.
    F32(CudaView<'a, f32>),
    /// bfloat16.
    Bf16(CudaView<'a, bf16>),
    /// IEEE half precision.
    F16(CudaView<'a, f16>),
}

/// Numbers on a device that are to be overwritten.
#[derive(Debug)]
pub enum DeviceTarget<'a> {
    /// 32-bit floats.
    F32(CudaViewMut<'a, f32>),
    /// bfloat16.
    Bf16(CudaViewMut<'a, bf16>),
    /// IEEE half precision.
    F16(CudaViewMut<'a, f16>),
}

macro_rules! for_each_format {
    ($self:expr, $kind:ident, $x:ident => $body:expr) => {
        match $self {
            $kind::F32($x) => $body,
            $kind::Bf16($x) => $body,
            $kind::F16($x) => $body,
        }
    };
}

pub(super) use for_each_format;

impl DeviceSource<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        for_each_format!(self, DeviceSource, x => x.len())
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn format(&self) -> NumberFormat {
        match self {
            DeviceSource::F32(_) => NumberFormat::F32,
            DeviceSource::Bf16(_) => NumberFormat::Bf16,
            DeviceSource::F16(_) => NumberFormat::F16,
        }
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        for_each_format!(self, DeviceSource, x => x.stream().context())
    }

    /// Its address, after what is being written there; what keeps it from being overwritten
    /// until it is read.
    pub(crate) fn address<'s>(&'s self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        for_each_format!(self, DeviceSource, x => x.device_ptr(stream))
    }
}

impl DeviceTarget<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        for_each_format!(self, DeviceTarget, x => x.len())
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn format(&self) -> NumberFormat {
        match self {
            DeviceTarget::F32(_) => NumberFormat::F32,
            DeviceTarget::Bf16(_) => NumberFormat::Bf16,
            DeviceTarget::F16(_) => NumberFormat::F16,
        }
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        for_each_format!(self, DeviceTarget, x => x.stream().context())
    }

    pub(crate) fn address<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        for_each_format!(self, DeviceTarget, x => x.device_ptr_mut(stream))
    }
}

/// f32 numbers on a device, for workers of one process whose results stay there: see
/// [`crate::transport::local::connect_at`]. A [`Cuda`] for each worker, or one for several, will
/// do; different streams of a device are kept in order by cudarc's events, which contexts that have
/// made a stream record, as [`Cuda::new`]'s have; what candle's kernels have written, cudarc does
/// not know of ([`Cuda::wait_for`]).
///
/// ```no_run
/// use codedgrad::gpu::Vector;
/// use codedgrad::gpu::cuda::{Cuda, DeviceSource, DeviceVector};
/// use std::sync::Arc;
/// let cuda = Arc::new(Cuda::new(0)?);
/// let gradient = cuda.stream().clone_htod(&[1.0f32, 2.0])?;
/// let mut message = DeviceVector::new(&cuda, 2);
/// message.copy_from(&DeviceSource::F32(gradient.as_view()), 0.5)?;
/// assert_eq!(cuda.stream().clone_dtoh(&message.view()?)?, [0.5, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceVector {
    cuda: Arc<Cuda>,
    length: usize,
    /// None once the device has failed.
    numbers: Option<CudaSlice<f32>>,
}

impl DeviceVector {
    /// Overwrites it with `scale` times a gradient on the same device, in any format. Returns
    /// before the device is done.
    ///
    /// # Errors
    /// [`CudaError`] when the lengths differ, the gradient is elsewhere, or the driver refuses.
    pub fn copy_from(&mut self, gradient: &DeviceSource<'_>, scale: f32) -> Result<(), CudaError> {
        let cuda = Arc::clone(&self.cuda);
        cuda.cast(gradient, scale, &mut self.target()?)
    }

    /// Overwrites the numbers from `start` on with `scale` times a part of a gradient, as
    /// [`Self::copy_from`] does.
    ///
    /// # Errors
    /// [`CudaError`] when there are not so many, the gradient is elsewhere, or the driver refuses.
    pub fn copy_part_from(
        &mut self,
        start: usize,
        gradient: &DeviceSource<'_>,
        scale: f32,
    ) -> Result<(), CudaError> {
        let (length, end) = (self.length, start.saturating_add(gradient.len()));
        let numbers = self.numbers.as_mut().ok_or(CudaError::Gone)?;
        let part =
            numbers.try_slice_mut(start..end).ok_or(CudaError::Range { start, end, length })?;
        self.cuda.cast(gradient, scale, &mut DeviceTarget::F32(part))
    }

    /// Writes the numbers from `start` on to a target on the same device, as many as it has room
    /// for. Returns before the device is done.
    ///
    /// # Errors
    /// [`CudaError`] when there are not so many, the target is elsewhere, or the driver refuses.
    pub fn copy_part_to(&self, start: usize, to: &mut DeviceTarget<'_>) -> Result<(), CudaError> {
        self.cuda.cast(&self.part(start..start.saturating_add(to.len()))?, 1.0, to)
    }

    /// Writes it to where an optimizer wants it, on the device of `cuda`, which may be another:
    /// then it waits.
    ///
    /// # Errors
    /// [`CudaError`] when the lengths differ, or the driver refuses.
    pub fn copy_to(&self, cuda: &Cuda, to: &mut DeviceTarget<'_>) -> Result<(), CudaError> {
        let copy = self.elsewhere(cuda)?;
        let numbers = copy.as_ref().map_or_else(|| self.view(), |copy| Ok(copy.as_view()))?;
        cuda.cast(&DeviceSource::F32(numbers), 1.0, to)?;
        self.read_by(cuda)
    }

    /// A copy of numbers of the host.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    pub fn of(cuda: &Arc<Cuda>, numbers: &[f32]) -> Result<Self, CudaError> {
        let copy = cuda.stream.clone_htod(numbers)?;
        Ok(Self { cuda: Arc::clone(cuda), length: numbers.len(), numbers: Some(copy) })
    }

    /// A copy for the host. Waits for the device.
    ///
    /// # Errors
    /// [`CudaError`] when the device has failed, or the driver refuses.
    pub fn to_host(&self) -> Result<Vec<f32>, CudaError> {
        Ok(self.cuda.stream.clone_dtoh(&self.view()?)?)
    }

    /// [`crate::gpu::digest_of_bits`] of its numbers. Waits for the device.
    ///
    /// # Errors
    /// [`CudaError`] when the device has failed, or the driver refuses.
    pub fn digest(&self) -> Result<u64, CudaError> {
        self.cuda.digest(&self.view()?)
    }

    /// A part of its numbers, to be read by what takes views.
    ///
    /// # Errors
    /// [`CudaError`] when there are not so many, or the device has failed.
    pub fn part(&self, part: Range<usize>) -> Result<DeviceSource<'_>, CudaError> {
        let start = part.start;
        let end = part.end;
        let length = self.length;
        let found = self.numbers.as_ref().ok_or(CudaError::Gone)?.try_slice(part);
        Ok(DeviceSource::F32(found.ok_or(CudaError::Range { start, end, length })?))
    }

    /// Overwrites a part of its numbers with the weighted sum of vectors of this device. Returns
    /// before the device is done.
    ///
    /// # Errors
    /// As [`Cuda::combine_into`]; [`CudaError::Range`] when there are not so many.
    pub fn sum_part(
        &mut self,
        part: Range<usize>,
        terms: &[DeviceTerm<'_>],
    ) -> Result<(), CudaError> {
        let start = part.start;
        let end = part.end;
        let length = self.length;
        let found = self.numbers.as_mut().ok_or(CudaError::Gone)?.try_slice_mut(part);
        self.cuda.combine_into(terms, &mut found.ok_or(CudaError::Range { start, end, length })?)
    }

    /// A step of AdamW on parameters and both moments, of one device, at rates that depend on the
    /// gradient's norm.
    pub(crate) fn step(
        state: [&mut Self; 3],
        gradient: &Self,
        rates: impl FnOnce(f64) -> Rates,
    ) -> Result<(), CudaError> {
        let cuda = Arc::clone(&state[0].cuda);
        let near = gradient.near(&cuda)?;
        let numbers = near.view()?;
        let rates = rates(cuda.norm(&numbers)?);
        let [Some(p), Some(m), Some(v)] = state.map(|vector| vector.numbers.as_mut()) else {
            return Err(CudaError::Gone);
        };
        cuda.adamw([p, m, v], &numbers, rates)?;
        gradient.read_by(&cuda)
    }

    /// Its device.
    #[must_use]
    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// Its numbers, to be read by what takes views. Of several streams that read one slice,
    /// cudarc remembers the last; so a reader of a vector that others read too, as a decoded one,
    /// waits for its own stream before it lets go of the vector.
    ///
    /// # Errors
    /// [`CudaError::Gone`] when the device has failed.
    pub fn view(&self) -> Result<CudaView<'_, f32>, CudaError> {
        Ok(self.numbers.as_ref().ok_or(CudaError::Gone)?.as_view())
    }

    /// Its numbers, to be overwritten or to be added to by what shares them.
    ///
    /// # Errors
    /// [`CudaError::Gone`] when the device has failed.
    pub fn target(&mut self) -> Result<DeviceTarget<'_>, CudaError> {
        Ok(DeviceTarget::F32(self.numbers.as_mut().ok_or(CudaError::Gone)?.as_view_mut()))
    }

    /// A copy on the device of `cuda`, unless it is there already. Waits, since the original may be
    /// gone afterwards.
    fn elsewhere(&self, cuda: &Cuda) -> Result<Option<CudaSlice<f32>>, CudaError> {
        if self.cuda.stream.context() == cuda.stream.context() {
            return Ok(None);
        }
        let copy = cuda.stream.clone_dtod(&self.view()?)?;
        cuda.stream.synchronize()?;
        Ok(Some(copy))
    }

    /// Itself, or a copy for the device of `cuda`: then it waits.
    ///
    /// # Errors
    /// Memory or a copy that the device refuses.
    pub fn near(&self, cuda: &Arc<Cuda>) -> Result<Cow<'_, Self>, CudaError> {
        let copy = self.elsewhere(cuda)?;
        let owned = |copy| {
            Cow::Owned(Self { cuda: Arc::clone(cuda), length: self.length, numbers: Some(copy) })
        };
        Ok(copy.map_or(Cow::Borrowed(self), owned))
    }

    /// Has what changes or frees it later wait for what another stream has been asked to read
    /// of it: of several streams that read one slice, cudarc remembers the last.
    fn read_by(&self, cuda: &Cuda) -> Result<(), CudaError> {
        if self.cuda.stream.context() == cuda.stream.context() {
            self.cuda.wait_for(cuda)
        } else {
            Ok(())
        }
    }

    /// Does something to the numbers; should the device fail, they are gone.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&Arc<Cuda>, &mut CudaSlice<f32>) -> Result<T, CudaError>,
    ) -> Option<T> {
        let numbers = self.numbers.as_mut()?;
        change(&self.cuda, numbers)
            .inspect_err(|error| {
                lost(error);
                self.numbers = None;
            })
            .ok()
    }
}

fn lost(error: &dyn std::error::Error) {
    tracing::warn!("a vector on a device is lost: {error}");
}

/// A copy on the same device.
impl Clone for DeviceVector {
    fn clone(&self) -> Self {
        let copied = self.numbers.as_ref().and_then(|numbers| {
            let copy = self.cuda.stream.clone_dtod(numbers);
            copy.inspect_err(|error| lost(error)).ok()
        });
        Self { cuda: Arc::clone(&self.cuda), length: self.length, numbers: copied }
    }
}

impl Gradient for DeviceVector {
    fn length(&self) -> usize {
        self.length
    }

    fn read(&self, start: usize, scale: f32, wire: WireBuffer<'_>) -> Result<(), GradientError> {
        DeviceGradient::new(&self.cuda, DeviceSource::F32(self.view()?)).read(start, scale, wire)
    }
}

impl GradientMut for DeviceVector {
    fn length(&self) -> usize {
        self.length
    }

    fn write(&mut self, start: usize, values: &[f32]) -> Result<(), GradientError> {
        let cuda = Arc::clone(&self.cuda);
        DeviceGradientMut::new(&cuda, self.target()?).write(start, values)
    }
}

/// Sums are made on the device of the vector that is changed; terms on other devices are copied
/// there first.
impl Vector for DeviceVector {
    type Place = Arc<Cuda>;

    fn new(cuda: &Arc<Cuda>, length: usize) -> Self {
        let numbers = cuda
            .stream
            .alloc_zeros(length)
            .inspect_err(|error| warn_once(&CudaError::from(*error)))
            .ok();
        Self { cuda: Arc::clone(cuda), length, numbers }
    }

    fn fits(&self, cuda: &Arc<Cuda>, length: usize) -> bool {
        self.numbers.is_some()
            && self.length == length
            && self.cuda.stream.context() == cuda.stream.context()
    }

    fn length(&self) -> usize {
        self.length
    }

    fn clear(&mut self) {
        self.change(|cuda, numbers| Ok(cuda.stream.memset_zeros(numbers)?));
    }

    fn scale(&mut self, weight: f32) {
        self.change(|cuda, numbers| {
            let x = cuda.stream.clone_dtod(numbers)?;
            cuda.cast(
                &DeviceSource::F32(x.as_view()),
                weight,
                &mut DeviceTarget::F32(numbers.as_view_mut()),
            )
        });
    }

    fn add(&mut self, weight: f32, x: &Self) -> bool {
        assert_eq!(self.length, x.length, "vectors of one length");
        self.change(|cuda, numbers| {
            let source = x.near(cuda)?;
            cuda.add_into(
                &DeviceTerm { weight, source: DeviceSource::F32(source.view()?) },
                &mut numbers.as_view_mut(),
            )?;
            x.read_by(cuda)
        })
        .is_some()
    }

    fn finite(&self) -> bool {
        let largest =
            self.view().and_then(|numbers| self.cuda.largest(&DeviceSource::F32(numbers)));
        largest.inspect_err(|error| lost(error)).is_ok_and(f32::is_finite)
    }

    fn fold(terms: &[(f32, Arc<Self>)], out: &mut Self) -> Result<SumCheck, CombineError> {
        if let Some(term) = terms.iter().position(|(_, x)| x.length != out.length) {
            return Err(CombineError::Length {
                term,
                expected: out.length,
                found: terms[term].1.length,
            });
        }
        let folded = out.change(|cuda, numbers| {
            let near: Vec<_> = terms.iter().map(|(_, x)| x.near(cuda)).collect::<Result<_, _>>()?;
            let mut here = Vec::with_capacity(terms.len());
            for ((weight, _), x) in terms.iter().zip(&near) {
                here.push(DeviceTerm { weight: *weight, source: DeviceSource::F32(x.view()?) });
            }
            cuda.combine_into(&here, &mut numbers.as_view_mut())?;
            terms.iter().try_for_each(|(_, x)| x.read_by(cuda))?;
            let finite = cuda.largest(&DeviceSource::F32(numbers.as_view()))?.is_finite();
            Ok(SumCheck { digest: cuda.digest(&numbers.as_view())?, finite })
        });
        Ok(folded.unwrap_or(SumCheck { digest: 0, finite: false }))
    }
}
