//! The combine on an NVIDIA GPU, with the CPU's bits.
//!
//! The kernels are text, compiled by NVRTC for the device that is there and kept on disk: a build
//! needs no CUDA, a run needs the driver and, the first time, `libnvrtc`. Where either is missing,
//! [`Cuda::new`] says so.
//!
//! Sums have the bits of [`super::Plain`], whatever the alignment of the arrays: the same tree,
//! every product and sum rounded to f32, no fused multiply-add. Only which NaN stands for "not a
//! number" differs.
//!
//! ```no_run
//! use codedgrad::gpu::cuda::{Cuda, DeviceSource, DeviceTerm};
//! let cuda = Cuda::new(0)?;
//! let stream = cuda.stream();
//! let (x, y) = (stream.clone_htod(&[1.0f32, 2.0])?, stream.clone_htod(&[10.0f32, 20.0])?);
//! let mut out = stream.alloc_zeros::<f32>(2)?;
//! let term = |weight, x| DeviceTerm { weight, source: DeviceSource::F32(x) };
//! cuda.combine_into(&[term(2.0, x.as_view()), term(-1.0, y.as_view())], &mut out.as_view_mut())?;
//! assert_eq!(stream.clone_dtoh(&out)?, [-8.0, -16.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Without a GPU the kernels are checked by `tests/devices/host.h`, which makes C++ of their very
//! text; its results are compared with the CPU's bits. `driver.cpp` and `nccl.cpp` there emulate a
//! driver and an NCCL whose streams run late.
#![allow(unsafe_code)]

mod error;
mod image;
mod passes;
mod sketch;
mod staging;
mod vector;

#[cfg(test)]
#[path = "../../tests/devices/emulated.rs"]
pub(crate) mod emulated;
#[cfg(test)]
#[path = "../../tests/devices/cuda.rs"]
mod tests;

pub use cudarc;
pub use error::CudaError;
pub use staging::{DeviceGradient, DeviceGradientMut};
pub use vector::{DeviceSource, DeviceTarget, DeviceVector};

use super::real::Signs;
use super::{CombineError, Rates};
use crate::run::NumberFormat;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, CudaView, CudaViewMut,
    DevicePtrMut, DeviceRepr, DeviceSlice, DriverError, LaunchConfig, PinnedHostSlice,
    PushKernelArg, ValidAsZeroBits,
};
use cudarc::nvrtc::{Ptx, result as nvrtc, sys as nvrtc_sys};
use passes::{MOST, Pass, Split, passes};
use sketch::{SignTables, add_stripes};
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, Once};

/// Threads of a block, as the kernels' launch bounds say.
const THREADS: u32 = 256;
/// Blocks per multiprocessor; more work than they have threads goes round.
const BLOCKS: u32 = 8;
/// Stripes into which a message is cut for its sketch, so that enough threads have work.
const STRIPES: usize = 64;
/// Sums over which a digest is spread, as its kernel says.
const DIGEST_SUMS: usize = 256;

impl From<DriverError> for CudaError {
    fn from(error: DriverError) -> Self {
        Self::Driver { reason: error.to_string() }
    }
}

/// Devices there are, 0 without a driver. Loads the driver, makes no context.
#[must_use]
pub fn devices() -> usize {
    if !driver_present() {
        return 0;
    }
    CudaContext::device_count().map_or(0, |count| usize::try_from(count).unwrap_or(0))
}

/// What a device is called, if there is such a device.
#[must_use]
pub fn name(ordinal: usize) -> Option<String> {
    (ordinal < devices())
        .then(|| CudaContext::new(ordinal).and_then(|context| context.name()).ok())?
}

fn warn_once(error: &CudaError) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!("a device has no room for a vector, which counts as not finite: {error}");
    });
}

/// With candle's CUDA backend both libraries are linked: the program does not start without them.
#[cfg(feature = "cuda-linked")]
fn driver_present() -> bool {
    true
}

#[cfg(feature = "cuda-linked")]
fn compiler_present() -> bool {
    true
}

#[cfg(not(feature = "cuda-linked"))]
fn driver_present() -> bool {
    // SAFETY: this loads the driver's library, whose initialisers NVIDIA guarantees to be harmless,
    // and calls nothing.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

#[cfg(not(feature = "cuda-linked"))]
fn compiler_present() -> bool {
    // SAFETY: this loads the compiler's library, whose initialisers NVIDIA guarantees to be
    // harmless, and calls nothing.
    unsafe { nvrtc_sys::is_culib_present() }
}

/// The kernels as a cubin for an architecture (`sm_80`, `sm_90`). Needs NVRTC and no driver.
///
/// # Errors
/// [`CudaError::NoCompiler`] without NVRTC; [`CudaError::Compile`] when it does not know the
/// architecture.
pub fn compile(arch: &str) -> Result<Vec<u8>, CudaError> {
    if !compiler_present() {
        return Err(CudaError::NoCompiler { arch: arch.into() });
    }
    let failed = |log: String| CudaError::Compile { arch: arch.into(), log };
    let words = |error: nvrtc::NvrtcError| failed(error.to_string());
    let source = CString::new(image::SOURCE).map_err(|error| failed(error.to_string()))?;
    let program = nvrtc::create_program(&source, Some(c"codedgrad.cu")).map_err(words)?;
    let options: Vec<String> = image::OPTIONS
        .iter()
        .map(ToString::to_string)
        .chain([format!("--gpu-architecture={arch}")])
        .collect();
    // SAFETY: `program` was made above and is destroyed below, once; `source` outlives it; the log
    // NVRTC gives ends with a zero; the cubin's buffer has the size that NVRTC has just named.
    unsafe {
        let compiled = nvrtc::compile_program(program, &options).map_err(|error| {
            let log = nvrtc::get_program_log(program)
                .map(|log| CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned());
            failed(log.unwrap_or_else(|_| error.to_string()))
        });
        let image = compiled.and_then(|()| {
            let mut size = 0;
            nvrtc_sys::nvrtcGetCUBINSize(program, &raw mut size).result().map_err(words)?;
            let mut image = vec![0u8; size];
            nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result().map_err(words)?;
            Ok(image)
        });
        nvrtc::destroy_program(program).map_err(words)?;
        image
    }
}

/// NVRTC's version for the cache's key. Whether it is absent is asked only when something must be
/// compiled.
fn compiler_version() -> String {
    let (mut major, mut minor) = (0, 0);
    if compiler_present() {
        // SAFETY: two pointers to integers that live through the call.
        let _ = unsafe { nvrtc_sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    }
    format!("nvrtc {major}.{minor}")
}

/// One summand on a device.
#[derive(Debug)]
pub struct DeviceTerm<'a> {
    /// Its weight, applied in f32.
    pub weight: f32,
    /// The message.
    pub source: DeviceSource<'a>,
}

/// The terms of one pass as the kernels want them: addresses and weights by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Table {
    x: [u64; MOST],
    w: [f32; MOST],
}

// SAFETY: both are the structs `Terms` and `Split` of the kernels, member by member, without
// padding or references.
unsafe impl DeviceRepr for Table {}
// SAFETY: as above.
unsafe impl DeviceRepr for Split {}
// SAFETY: the struct of the same name of the kernels, seven f32.
unsafe impl DeviceRepr for Rates {}

/// A device with the kernels loaded, and the stream on which they run.
#[derive(Debug)]
pub struct Cuda {
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    blocks: u32,
    staging: Mutex<staging::StagingBuffers>,
}

impl Cuda {
    /// Device number `ordinal`, with a stream of its own.
    ///
    /// # Errors
    /// [`CudaError`] without a driver, such a device, or a compiler for kernels that are not in the
    /// cache.
    pub fn new(ordinal: usize) -> Result<Self, CudaError> {
        if !driver_present() {
            return Err(CudaError::NoDriver);
        }
        Self::on(CudaContext::new(ordinal)?.new_stream()?)
    }

    /// On a stream of the caller's.
    ///
    /// # Errors
    /// [`CudaError`] when the kernels cannot be had.
    pub fn on(stream: Arc<CudaStream>) -> Result<Self, CudaError> {
        let context = stream.context();
        let (major, minor) = context.compute_capability()?;
        let arch = format!("sm_{major}{minor}");
        let image = image::cached(&arch, &compiler_version(), || compile(&arch))?;
        let module = context.load_module(Ptx::from_binary(image))?;
        let multiprocessors =
            u32::try_from(context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?)
                .unwrap_or(1);
        Ok(Self { module, blocks: multiprocessors * BLOCKS, staging: Mutex::default(), stream })
    }

    /// The same device, with a stream of its own.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    pub fn beside(&self) -> Result<Self, CudaError> {
        let stream = self.stream.context().new_stream()?;
        Ok(Self {
            stream,
            module: Arc::clone(&self.module),
            blocks: self.blocks,
            staging: Mutex::default(),
        })
    }

    /// The stream on which everything runs, in the order in which it is asked for.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Has what is asked for from now on wait for all that `other` was asked for so far.
    /// cudarc's events do that where it knows who writes; candle's kernels do not tell it.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    pub fn wait_for(&self, other: &Cuda) -> Result<(), CudaError> {
        if !Arc::ptr_eq(&self.stream, &other.stream) {
            self.stream.join(&other.stream)?;
        }
        Ok(())
    }

    /// Overwrites `out` with the weighted sum of vectors on the same device, by the tree of
    /// [`Combine`](super::Combine); without terms, with zeros. Sixteen terms of one format are one
    /// pass over memory. Returns before the device is done.
    ///
    /// # Errors
    /// [`CombineError::Length`] when a term is not as long as `out`; [`CudaError`] when it is
    /// elsewhere, or the driver refuses.
    pub fn combine_into(
        &self,
        terms: &[DeviceTerm<'_>],
        out: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), CudaError> {
        let expected = out.len();
        self.check_terms(terms, expected)?;
        if expected == 0 {
            return Ok(());
        }
        if terms.is_empty() {
            return Ok(self.stream.memset_zeros(out)?);
        }
        let passes = passes(&terms.iter().map(|term| term.source.format()).collect::<Vec<_>>());
        let mut scratch = Vec::new();
        for _ in 0..passes::scratch(&passes) {
            scratch.push(self.unset::<f32>(expected)?);
        }
        for pass in passes {
            match pass {
                Pass::Sum { terms: range, add, place: 0, .. } => {
                    self.sum(&terms[range], add, out)?;
                }
                Pass::Sum { terms: range, add, place, .. } => {
                    self.sum(&terms[range], add, &mut scratch[place - 1].as_view_mut())?;
                }
                Pass::Fold { scratch: from } => {
                    let (before, x) = scratch.split_at_mut(from - 1);
                    let term =
                        DeviceTerm { weight: 1.0, source: DeviceSource::F32(x[0].as_view()) };
                    match before.last_mut() {
                        Some(to) => self.sum(&[term], true, &mut to.as_view_mut())?,
                        None => self.sum(&[term], true, out)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// `out += w x`, both rounded to f32, on the same device. Returns before the device is done.
    ///
    /// # Errors
    /// As [`Cuda::combine_into`].
    pub fn add_into(
        &self,
        term: &DeviceTerm<'_>,
        out: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), CudaError> {
        self.check_terms(std::slice::from_ref(term), out.len())?;
        if out.is_empty() { Ok(()) } else { self.sum(std::slice::from_ref(term), true, out) }
    }

    fn check_terms(&self, terms: &[DeviceTerm<'_>], expected: usize) -> Result<(), CudaError> {
        for (term, DeviceTerm { source, .. }) in terms.iter().enumerate() {
            if source.len() != expected {
                return Err(CombineError::Length { term, expected, found: source.len() }.into());
            }
            if source.context() != self.stream.context() {
                return Err(CudaError::Elsewhere { term });
            }
        }
        Ok(())
    }

    /// One launch over terms of one format.
    fn sum(
        &self,
        terms: &[DeviceTerm<'_>],
        add: bool,
        out: &mut CudaViewMut<'_, f32>,
    ) -> Result<(), CudaError> {
        let (length, format) = (out.len(), terms[0].source.format());
        let mut table = Table { x: [0; MOST], w: [0.0; MOST] };
        let (to, _written) = out.device_ptr_mut(&self.stream);
        let (mut arrays, mut read) = (vec![(to, NumberFormat::F32)], Vec::new());
        for (i, term) in terms.iter().enumerate() {
            let (address, guard) = term.source.address(&self.stream);
            (table.x[i], table.w[i]) = (address, term.weight);
            arrays.push((address, format));
            read.push(guard);
        }
        let split = Split::of(length, &arrays);
        let function = self.function(&format!(
            "{}_{}_{}",
            if add { "add" } else { "set" },
            format.name(),
            terms.len()
        ))?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&table).arg(&to).arg(&split);
        // SAFETY: the arguments are those of the kernel named. Every array has `length` elements
        // (`check_terms` has compared them), lives on this device and is kept by its guard; `out`
        // is borrowed mutably, so it overlaps no term. The kernel touches no element beyond
        // `length`, and words only where `Split` found all arrays aligned.
        unsafe { launch.launch(self.grid(length))? };
        Ok(())
    }

    /// `out[e] = narrow(round(scale x[e]))` on the device, rounding to nearest with ties to even.
    /// Returns before the device is done.
    ///
    /// # Errors
    /// [`CudaError`] when the lengths differ, something is elsewhere, or the driver refuses.
    pub fn cast(
        &self,
        x: &DeviceSource<'_>,
        scale: f32,
        out: &mut DeviceTarget<'_>,
    ) -> Result<(), CudaError> {
        let length = out.len();
        if x.len() != length {
            return Err(CombineError::Length { term: 0, expected: length, found: x.len() }.into());
        }
        if x.context() != self.stream.context() || out.context() != self.stream.context() {
            return Err(CudaError::Elsewhere { term: 0 });
        }
        if length == 0 {
            return Ok(());
        }
        let formats = (x.format(), out.format());
        let function = self.function(&format!("cast_{}_{}", formats.0.name(), formats.1.name()))?;
        let ((from, _read), (to, _written)) = (x.address(&self.stream), out.address(&self.stream));
        let split = Split::of(length, &[(from, formats.0), (to, formats.1)]);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&to).arg(&scale).arg(&split);
        // SAFETY: as for `sum`: arguments by the kernel's signature, both arrays of `length`
        // elements on this device, the target borrowed mutably, words only where both are aligned.
        unsafe { launch.launch(self.grid(length))? };
        Ok(())
    }

    /// The largest magnitude of a vector, as [`super::largest`]: finite if and only if all its
    /// elements are. Waits for the device.
    ///
    /// # Errors
    /// [`CudaError`] when the vector is elsewhere, or the driver refuses.
    pub fn largest(&self, x: &DeviceSource<'_>) -> Result<f32, CudaError> {
        if x.context() != self.stream.context() {
            return Err(CudaError::Elsewhere { term: 0 });
        }
        if x.is_empty() {
            return Ok(0.0);
        }
        let mut top = self.stream.alloc_zeros::<u32>(1)?;
        let function = self.function(&format!("scan_{}", x.format().name()))?;
        {
            let (from, _read) = x.address(&self.stream);
            let split = Split::of(x.len(), &[(from, x.format())]);
            let mut launch = self.stream.launch_builder(&function);
            launch.arg(&from).arg(&mut top).arg(&split);
            // SAFETY: arguments by the kernel's signature; it reads `x.len()` elements, words only
            // where aligned, and writes the one number of `top`.
            unsafe { launch.launch(self.grid(x.len()))? };
        }
        Ok(f32::from_bits(self.stream.clone_dtoh(&top)?[0]))
    }

    /// Sketches of messages on the device, with the rotations and signs of [`super::signed_fold`]
    /// for the same seed. The sums are rounded less: each is made of 64 that are added up in f64.
    /// Waits for the device.
    ///
    /// # Errors
    /// [`CudaError`] when a message is elsewhere, or the driver refuses.
    ///
    /// # Panics
    /// When there are no buckets, or 2^31 or more.
    pub fn signed_fold(
        &self,
        messages: &[CudaView<'_, f32>],
        buckets: usize,
        seed: u64,
    ) -> Result<Vec<Vec<f64>>, CudaError> {
        if let Some(term) =
            messages.iter().position(|x| x.stream().context() != self.stream.context())
        {
            return Err(CudaError::Elsewhere { term });
        }
        let length = messages.iter().map(|x| x.len()).max().unwrap_or(0);
        let tables = SignTables::of(&Signs::draw(buckets, length, seed));
        let (first, second) =
            (self.stream.clone_htod(&tables.first)?, self.stream.clone_htod(&tables.second)?);
        let places = self.stream.clone_htod(&tables.places)?;
        let function = self.function("signed_fold")?;
        let mut sketches = Vec::with_capacity(messages.len());
        for x in messages {
            let stripes = x.len().div_ceil(buckets).clamp(1, STRIPES);
            let mut sums = self.unset::<f32>(stripes * 2 * buckets)?;
            let work = sums.len();
            let elements = x.len() as u64;
            let width = buckets as u32;
            let cut = stripes as u32;
            let mut launch = self.stream.launch_builder(&function);
            launch
                .arg(x)
                .arg(&elements)
                .arg(&width)
                .arg(&first)
                .arg(&second)
                .arg(&places)
                .arg(&cut)
                .arg(&mut sums);
            // SAFETY: arguments by the kernel's signature. Signs are read below 2 `buckets`, since
            // places and elements of a block are below `buckets`; three places for every block of
            // the longest message; every sum is written.
            unsafe { launch.launch(self.grid(work * 4))? };
            sketches.push(add_stripes(&self.stream.clone_dtoh(&sums)?, buckets));
        }
        Ok(sketches)
    }

    /// The Euclidean norm of a vector of this device, its squares added up in f64. Waits for the
    /// device.
    fn norm(&self, x: &CudaView<'_, f32>) -> Result<f64, CudaError> {
        let (all, few) = (
            self.grid(x.len()),
            LaunchConfig { grid_dim: (4, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 },
        );
        let threads = |launch: LaunchConfig| (launch.grid_dim.0 * launch.block_dim.0) as usize;
        let (mut sums, mut fewer) =
            (self.unset::<f64>(threads(all))?, self.unset::<f64>(threads(few))?);
        let (length, partial) = (x.len() as u64, sums.len() as u64);
        let (squares, add_up) = (self.function("squares")?, self.function("add_up")?);
        // SAFETY: arguments by the kernels' signatures; every thread of a launch writes one sum,
        // and reads below the length.
        unsafe {
            self.stream.launch_builder(&squares).arg(x).arg(&length).arg(&mut sums).launch(all)?;
            self.stream
                .launch_builder(&add_up)
                .arg(&sums)
                .arg(&partial)
                .arg(&mut fewer)
                .launch(few)?;
        }
        Ok(self.stream.clone_dtoh(&fewer)?.iter().sum::<f64>().sqrt())
    }

    /// A digest of a vector of this device: equal for equal bits, whatever the device. Waits for
    /// the device.
    fn digest(&self, x: &CudaView<'_, f32>) -> Result<u64, CudaError> {
        let (mut sums, length) = (self.stream.alloc_zeros::<u64>(DIGEST_SUMS)?, x.len() as u64);
        let function = self.function("digest")?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(x).arg(&length).arg(&mut sums);
        // SAFETY: arguments by the kernel's signature; it reads `length` elements, and adds to
        // `DIGEST_SUMS` sums at most.
        unsafe { launch.launch(self.grid(x.len()))? };
        Ok(self.stream.clone_dtoh(&sums)?.into_iter().fold(0, u64::wrapping_add))
    }

    /// A step of AdamW over vectors of this device: parameters and both moments, and the gradient.
    /// Returns before the device is done.
    fn adamw(
        &self,
        state: [&mut CudaSlice<f32>; 3],
        gradient: &CudaView<'_, f32>,
        rates: Rates,
    ) -> Result<(), CudaError> {
        let expected = gradient.len();
        if let Some(term) = state.iter().position(|x| x.len() != expected) {
            return Err(CombineError::Length { term, expected, found: state[term].len() }.into());
        }
        if expected == 0 {
            return Ok(());
        }
        let ([p, m, v], length) = (state, expected as u64);
        let function = self.function("adamw")?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(p).arg(m).arg(v).arg(gradient).arg(&length).arg(&rates);
        // SAFETY: arguments by the kernel's signature; four vectors of `length` elements, three of
        // them borrowed mutably, so that none overlaps another.
        unsafe { launch.launch(self.grid(expected))? };
        Ok(())
    }

    /// Memory that the next launch writes before anything reads it.
    fn unset<T: DeviceRepr>(&self, length: usize) -> Result<CudaSlice<T>, CudaError> {
        // SAFETY: every caller's next launch on this stream overwrites all of it, and only then is
        // it read.
        Ok(unsafe { self.stream.alloc(length) }?)
    }

    /// Page-locked memory of zeros, cached by the host.
    fn pinned<T: DeviceRepr + ValidAsZeroBits + Copy + Default>(
        &self,
        length: usize,
    ) -> Result<PinnedHostSlice<T>, CudaError> {
        // SAFETY: the memory is overwritten with zeros before anything reads it.
        let mut pinned = unsafe { self.stream.context().alloc_pinned_with_flags::<T>(length, 0) }?;
        pinned.as_mut_slice()?.fill(T::default());
        Ok(pinned)
    }

    fn function(&self, name: &str) -> Result<CudaFunction, CudaError> {
        Ok(self.module.load_function(name)?)
    }

    /// Enough threads for four elements each, as far as the device has room for them.
    fn grid(&self, elements: usize) -> LaunchConfig {
        let wanted = elements.div_ceil(4 * THREADS as usize).max(1);
        let blocks = u32::try_from(wanted).map_or(self.blocks, |wanted| wanted.min(self.blocks));
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../docs/gpu.md")]
mod guide {}
