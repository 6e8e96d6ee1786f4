//! Gradients where they lie: read scaled into what travels, written from what was decoded.

use super::Source;
use crate::passes::{self, PassPlace};
use half::{bf16, f16};
use std::ops::Range;
use thiserror::Error;

/// Numbers to be sent, in the format in which they travel.
#[derive(Debug)]
pub enum WireBuffer<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
    /// IEEE half precision.
    F16(&'a mut [f16]),
}

impl WireBuffer<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            WireBuffer::F32(x) => x.len(),
            WireBuffer::Bf16(x) => x.len(),
            WireBuffer::F16(x) => x.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A gradient that cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GradientError {
    /// Elements beyond its end.
    #[error("elements {start}..{end} of a gradient of {length}")]
    Range {
        /// First element asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements there are.
        length: usize,
    },
    /// The device it lies on failed.
    #[error("the gradient's device: {reason}")]
    Device {
        /// What the device's driver said.
        reason: String,
    },
}

/// A flat gradient in any memory. This trait and [`GradientMut`] are the only door
/// between a trainer's numbers and messages.
///
/// ```
/// use codedgrad::gpu::{Gradient, GradientMut, WireBuffer};
/// use half::bf16;
/// let mut gradient = vec![1.0f32, 2.0, 3.0];
/// let mut wire = [bf16::ZERO; 2];
/// gradient.read(1, 0.5, WireBuffer::Bf16(&mut wire))?;
/// assert_eq!(wire.map(bf16::to_f32), [1.0, 1.5]);
/// gradient.write(0, &[9.0])?;
/// assert_eq!(gradient, [9.0, 2.0, 3.0]);
/// # Ok::<(), codedgrad::gpu::GradientError>(())
/// ```
pub trait Gradient {
    /// Number of elements.
    fn length(&self) -> usize;

    /// Overwrites `wire` with the elements from `start` on.
    ///
    /// # Formula
    /// ```text
    /// wire[i] = narrow( round(scale x[start + i]) )
    /// ```
    /// where `round` is to f32 and `narrow` rounds that to the wire's format, to nearest with ties
    /// to even.
    ///
    /// # Errors
    /// [`GradientError`] when there are not so many elements, or the device fails.
    fn read(&self, start: usize, scale: f32, wire: WireBuffer<'_>) -> Result<(), GradientError>;
}

/// A flat gradient to be overwritten, in any memory.
pub trait GradientMut {
    /// Number of elements.
    fn length(&self) -> usize;

    /// Overwrites the elements from `start` on; a gradient in a narrower format rounds them to
    /// nearest.
    ///
    /// # Errors
    /// [`GradientError`] when there are not so many elements, or the device fails.
    fn write(&mut self, start: usize, values: &[f32]) -> Result<(), GradientError>;
}

impl Gradient for [f32] {
    fn length(&self) -> usize {
        self.len()
    }

    fn read(&self, start: usize, scale: f32, wire: WireBuffer<'_>) -> Result<(), GradientError> {
        let range = within(start, wire.len(), self.len())?;
        let numbers = &self[range];
        let narrow = if let WireBuffer::F32(_) = &wire { 1 } else { 2 };
        passes::count(PassPlace::Gather, size_of_val(numbers) + size_of_val(numbers) / narrow);
        convert(Source::F32(numbers), scale, wire);
        Ok(())
    }
}

impl GradientMut for [f32] {
    fn length(&self) -> usize {
        self.len()
    }

    fn write(&mut self, start: usize, values: &[f32]) -> Result<(), GradientError> {
        let range = within(start, values.len(), self.len())?;
        passes::count(PassPlace::Scatter, 2 * size_of_val(values));
        self[range].copy_from_slice(values);
        Ok(())
    }
}

impl Gradient for Vec<f32> {
    fn length(&self) -> usize {
        self.len()
    }

    fn read(&self, start: usize, scale: f32, wire: WireBuffer<'_>) -> Result<(), GradientError> {
        self[..].read(start, scale, wire)
    }
}

impl GradientMut for Vec<f32> {
    fn length(&self) -> usize {
        self.len()
    }

    fn write(&mut self, start: usize, values: &[f32]) -> Result<(), GradientError> {
        self[..].write(start, values)
    }
}

pub(super) fn within(
    start: usize,
    count: usize,
    length: usize,
) -> Result<Range<usize>, GradientError> {
    let end = start.saturating_add(count);
    if end > length {
        return Err(GradientError::Range { start, end, length });
    }
    Ok(start..end)
}

/// `wire[i] = narrow(round(scale x[i]))`, the CPU reference of the device's cast. Both have one
/// length.
pub(super) fn convert(x: Source<'_>, scale: f32, wire: WireBuffer<'_>) {
    match x {
        Source::F32(x) => narrow(x, |x| scale * x, wire),
        Source::Bf16(x) => narrow(x, |x| scale * x.to_f32(), wire),
        Source::F16(x) => narrow(x, |x| scale * x.to_f32(), wire),
    }
}

fn narrow<T: Copy>(x: &[T], scaled: impl Fn(T) -> f32, wire: WireBuffer<'_>) {
    match wire {
        WireBuffer::F32(out) => out.iter_mut().zip(x).for_each(|(out, x)| *out = scaled(*x)),
        WireBuffer::Bf16(out) => {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16::from_f32(scaled(*x)));
        }
        WireBuffer::F16(out) => {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = f16::from_f32(scaled(*x)));
        }
    }
}

/// The largest magnitude of a vector, 0 of an empty one: NaN if any element is NaN, so that it is
/// finite if and only if all elements are.
///
/// ```
/// use codedgrad::gpu::largest;
/// assert_eq!(largest(&[1.0, -3.0, 2.0]), 3.0);
/// assert!(largest(&[f32::INFINITY, f32::NAN, 1.0]).is_nan());
/// ```
#[must_use]
pub fn largest(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

#[cfg(test)]
mod tests;
