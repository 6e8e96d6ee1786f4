//! The one operation that touches tensors: `out = sum_i w_i x_i`.
//!
//! [`Plain`] is the reference that states the result bit for bit; [`Cpu`] gives the same bits in
//! one pass over memory, on threads of its own. [`Real`] does the same for whole `f32` and `f64`
//! arrays; [`gram`] and [`signed_fold`] look at messages without changing them. [`Gradient`] is how
//! a trainer's numbers become a message, wherever they lie, and [`Vector`] what lies there until it
//! is summed. With feature `cuda`, `cuda` does all of this on NVIDIA GPUs.

#[cfg(test)]
#[path = "../../tests/devices/conformance.rs"]
mod conformance;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod gradient;
#[cfg(test)]
#[path = "../../tests/non_host/mod.rs"]
pub(crate) mod non_host;
mod real;
mod step;
mod vector;

pub use cpu::{Cpu, Plain, SumCheck, add_into, digest, digest_of_bits, piecewise};
pub(crate) use cpu::{digest_of_chunk, fold_chunk, nonfinite_mask, shared};
pub use gradient::{Gradient, GradientError, GradientMut, WireBuffer, largest};
pub use real::{Real, gram, signed_fold};
pub(crate) use step::{Rates, step};
pub use vector::Vector;

use half::{bf16, f16};
use thiserror::Error;

/// Numbers of one message, in the format in which they travel.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// bfloat16.
    Bf16(&'a [bf16]),
    /// IEEE half precision.
    F16(&'a [f16]),
}

impl Source<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Source::F32(x) => x.len(),
            Source::Bf16(x) => x.len(),
            Source::F16(x) => x.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One summand: a message and its weight.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    /// Its weight, applied in f32.
    pub weight: f32,
    /// The message.
    pub source: Source<'a>,
}

/// A combine that cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CombineError {
    /// A message is not as long as the result.
    #[error("term {term} has {found} elements, the result {expected}")]
    Length {
        /// Which term.
        term: usize,
        /// Length of the result.
        expected: usize,
        /// Length of the term.
        found: usize,
    },
}

/// Weighted sums of messages.
///
/// # Formula
/// ```text
/// out[e] = tree(0, M)      tree(i, i+1) = round(w_i x_i[e])
/// tree(i, j) = round( tree(i, i+h) + tree(i+h, j) ),  h = the largest power of two below j - i
/// ```
/// where `M` is the number of terms and every rounding is to f32. The tree is fixed by `M` alone,
/// so terms that are themselves such sums over aligned blocks of `2^m` smaller terms give the same
/// bits as the smaller terms all at once.
///
/// ```
/// use codedgrad::gpu::{Combine, Cpu, Source, Term};
/// let (a, b) = ([1.0f32, 2.0], [10.0f32, 20.0]);
/// let terms = [
///     Term { weight: 2.0, source: Source::F32(&a) },
///     Term { weight: -1.0, source: Source::F32(&b) },
/// ];
/// let mut out = [f32::NAN; 2];
/// Cpu::new().combine(&terms, &mut out)?;
/// assert_eq!(out, [-8.0, -16.0]);
/// # Ok::<(), codedgrad::gpu::CombineError>(())
/// ```
pub trait Combine: Send + Sync {
    /// Overwrites `out` with the weighted sum; without terms, with zeros.
    ///
    /// # Errors
    /// [`CombineError::Length`] when a term is not as long as `out`, which is then untouched.
    fn combine(&self, terms: &[Term<'_>], out: &mut [f32]) -> Result<(), CombineError>;
}

fn check(terms: &[Term<'_>], expected: usize) -> Result<(), CombineError> {
    match terms.iter().position(|term| term.source.len() != expected) {
        Some(term) => Err(CombineError::Length { term, expected, found: terms[term].source.len() }),
        None => Ok(()),
    }
}
