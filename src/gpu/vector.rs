//! Results and sums in the memory where they lie, and stay.

use super::{CombineError, Source, SumCheck, Term, add_into, nonfinite_mask, shared};
use crate::passes::{self, PassPlace};
use std::fmt::Debug;
use std::sync::Arc;

/// f32 numbers that workers hand in and that are summed where they lie: in the host's memory, or on
/// a device.
///
/// All memories give the bits of [`super::Plain`]. A vector whose memory fails is not finite, and
/// is treated like one.
pub trait Vector: Clone + Debug + Send + Sync + Sized + 'static {
    /// Where such vectors can lie.
    type Place: Clone + Debug + Send + Sync + 'static;

    /// A new vector, whatever is in it.
    fn new(place: &Self::Place, length: usize) -> Self;
    /// Whether it can be used again for this length at this place.
    fn fits(&self, place: &Self::Place, length: usize) -> bool;
    /// Number of elements.
    fn length(&self) -> usize;
    /// Overwrites it with zeros.
    fn clear(&mut self);
    /// Makes a mistake visible, where that costs little: what is in it must not be used.
    fn poison(&mut self) {}
    /// `self *= weight`.
    fn scale(&mut self, weight: f32);
    /// `self += weight x`, for `x` of the same length; false if a sum is known not to be finite.
    fn add(&mut self, weight: f32, x: &Self) -> bool;
    /// Whether all elements are finite.
    fn finite(&self) -> bool;
    /// Overwrites `out` with the weighted sum of vectors, by the tree of [`super::Combine`].
    ///
    /// # Errors
    /// [`CombineError::Length`] when a vector is not as long as `out`.
    fn fold(terms: &[(f32, Arc<Self>)], out: &mut Self) -> Result<SumCheck, CombineError>;
    /// Its numbers, if they are the host's; else the vector, which stays where it is.
    ///
    /// # Errors
    /// The vector itself.
    fn into_host(self) -> Result<Vec<f32>, Self> {
        Err(self)
    }
    /// The same without giving it up.
    #[must_use]
    fn host(_: &Arc<Self>) -> Option<&Arc<Vec<f32>>> {
        None
    }
    /// Its numbers, to be overwritten, if they are the host's.
    fn host_mut(&mut self) -> Option<&mut [f32]> {
        None
    }
    /// A vector of the host as one of this kind, if it is that.
    #[must_use]
    fn of_host(_: Arc<Vec<f32>>) -> Option<Arc<Self>> {
        None
    }
}

impl Vector for Vec<f32> {
    type Place = ();

    fn new((): &(), length: usize) -> Self {
        vec![0.0; length]
    }

    fn fits(&self, (): &(), length: usize) -> bool {
        self.len() == length
    }

    fn length(&self) -> usize {
        self.len()
    }

    fn clear(&mut self) {
        passes::count(PassPlace::Clear, size_of_val(&self[..]));
        self.fill(0.0);
    }

    fn poison(&mut self) {
        if cfg!(debug_assertions) {
            self.fill(f32::NAN);
        }
    }

    fn scale(&mut self, weight: f32) {
        passes::count(PassPlace::Scale, 2 * size_of_val(&self[..]));
        self.iter_mut().for_each(|x| *x *= weight);
    }

    fn add(&mut self, weight: f32, x: &Self) -> bool {
        add_into(self, weight, x)
    }

    fn finite(&self) -> bool {
        nonfinite_mask(self) == 0.0
    }

    fn fold(terms: &[(f32, Arc<Self>)], out: &mut Self) -> Result<SumCheck, CombineError> {
        let terms: Vec<Term<'_>> = terms
            .iter()
            .map(|(weight, x)| Term { weight: *weight, source: Source::F32(x) })
            .collect();
        shared().combine_and_digest(&terms, out)
    }

    fn into_host(self) -> Result<Vec<f32>, Self> {
        Ok(self)
    }

    fn host(vector: &Arc<Self>) -> Option<&Arc<Vec<f32>>> {
        Some(vector)
    }

    fn host_mut(&mut self) -> Option<&mut [f32]> {
        Some(self)
    }

    fn of_host(numbers: Arc<Vec<f32>>) -> Option<Arc<Self>> {
        Some(numbers)
    }
}
