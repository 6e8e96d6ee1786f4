//! Whole arrays of one number format: their weighted sums, their inner products, and sketches of
//! them.

use super::cpu::shared;
use super::{Combine, CombineError, Source, Term};
use crate::passes::{self, PassPlace};
use nalgebra::DMatrix;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use std::ops::{Add, Mul};

/// Elements that one thread works on at a time.
const CHUNK: usize = 1 << 16;
/// Elements of a tile of an f64 sum.
const TILE: usize = 2048;
/// Elements that are added to a sketch at a time.
const LANES: usize = 16;
/// Elements of every message that are widened at a time for inner products.
const GRAM_TILE: usize = 512;
/// Parts into which messages are cut for their inner products, whatever the number of threads.
const GRAM_CHUNKS: usize = 64;

/// The formats of whole arrays: `f32` and `f64`.
pub trait Real:
    Copy
    + Default
    + Send
    + Sync
    + Add<Output = Self>
    + Mul<Output = Self>
    + PartialEq
    + private::Sealed
    + 'static
{
    /// 1.
    const ONE: Self;
    /// -1.
    const MINUS_ONE: Self;

    /// Overwrites `out` with `sum_i w_i x_i`, by the tree of [`Combine`]; weights are rounded to
    /// the format.
    ///
    /// # Errors
    /// [`CombineError::Length`] when a message is not as long as `out`.
    ///
    /// # Panics
    /// When there is not one weight per message.
    ///
    /// ```
    /// use codedgrad::gpu::Real;
    /// let mut out = [0.0f64; 2];
    /// f64::combine(&[0.5, 2.0], &[&[2.0, 4.0], &[1.0, 1.0]], &mut out)?;
    /// assert_eq!(out, [3.0, 4.0]);
    /// # Ok::<(), codedgrad::gpu::CombineError>(())
    /// ```
    fn combine(weights: &[f64], messages: &[&[Self]], out: &mut [Self])
    -> Result<(), CombineError>;

    /// The same number as f64.
    fn wide(self) -> f64;

    /// Whether it is a number of finite size.
    fn finite(self) -> bool;
}

mod private {
    /// Keeps `Real` to the two formats.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Real for f32 {
    const ONE: Self = 1.0;
    const MINUS_ONE: Self = -1.0;

    fn combine(
        weights: &[f64],
        messages: &[&[Self]],
        out: &mut [Self],
    ) -> Result<(), CombineError> {
        assert_eq!(weights.len(), messages.len(), "one weight per message");
        let terms: Vec<Term<'_>> = weights
            .iter()
            .zip(messages)
            .map(|(weight, x)| Term { weight: *weight as f32, source: Source::F32(x) })
            .collect();
        shared().combine(&terms, out)
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn finite(self) -> bool {
        self.is_finite()
    }
}

impl Real for f64 {
    const ONE: Self = 1.0;
    const MINUS_ONE: Self = -1.0;

    fn combine(
        weights: &[f64],
        messages: &[&[Self]],
        out: &mut [Self],
    ) -> Result<(), CombineError> {
        assert_eq!(weights.len(), messages.len(), "one weight per message");
        if let Some(term) = messages.iter().position(|x| x.len() != out.len()) {
            return Err(CombineError::Length {
                term,
                expected: out.len(),
                found: messages[term].len(),
            });
        }
        let chunk = |(chunk, out): (usize, &mut [f64])| {
            for (tile, out) in out.chunks_mut(TILE).enumerate() {
                tree(weights, messages, chunk * CHUNK + tile * TILE, out);
            }
        };
        if out.len() <= CHUNK {
            out.chunks_mut(CHUNK).enumerate().for_each(chunk);
        } else {
            shared().install(|| out.par_chunks_mut(CHUNK).enumerate().for_each(chunk));
        }
        Ok(())
    }

    fn wide(self) -> f64 {
        self
    }

    fn finite(self) -> bool {
        self.is_finite()
    }
}

/// The summation tree of [`Combine`] over one tile of f64 messages.
fn tree(weights: &[f64], messages: &[&[f64]], start: usize, out: &mut [f64]) {
    match (weights, messages) {
        ([], _) => out.fill(0.0),
        ([w], [x]) => out.iter_mut().zip(&x[start..]).for_each(|(out, x)| *out = w * x),
        ([v, w], [x, y]) => out
            .iter_mut()
            .zip(x[start..].iter().zip(&y[start..]))
            .for_each(|(out, (x, y))| *out = v * x + w * y),
        _ => {
            let half = weights.len().next_power_of_two() / 2;
            tree(&weights[..half], &messages[..half], start, out);
            let right = &mut [0.0; TILE][..out.len()];
            tree(&weights[half..], &messages[half..], start, right);
            out.iter_mut().zip(right).for_each(|(out, x)| *out += *x);
        }
    }
}

/// The inner products of all messages, `[n x n]` row by row, in f64, the same bits on any number of
/// threads.
///
/// # Formula
/// ```text
/// G_ij = sum_e x_i[e] x_j[e]
/// ```
/// where `x_i` `[d]` are the `n` messages. Cost: `n^2 d / 2` multiply-adds, one pass over the
/// messages.
///
/// # Panics
/// When the messages are not of one length.
///
/// ```
/// assert_eq!(codedgrad::gpu::gram(&[&[3.0f32, 4.0], &[1.0, 0.0]]), [25.0, 3.0, 3.0, 1.0]);
/// ```
#[must_use]
pub fn gram<T: Real>(messages: &[&[T]]) -> Vec<f64> {
    let (count, length) = (messages.len(), messages.first().map_or(0, |x| x.len()));
    assert!(messages.iter().all(|x| x.len() == length), "messages of one length");
    passes::count(PassPlace::Judge, messages.iter().map(|x| size_of_val(*x)).sum());
    let chunk = length.div_ceil(GRAM_CHUNKS).next_multiple_of(GRAM_TILE);
    let part = |start: usize| {
        let mut products = DMatrix::<f64>::zeros(count, count);
        for start in (start..length.min(start + chunk)).step_by(GRAM_TILE) {
            let range = start..length.min(start + GRAM_TILE);
            let mut tile = Vec::with_capacity(count * range.len());
            messages.iter().for_each(|x| tile.extend(x[range.clone()].iter().map(|x| x.wide())));
            let tile = DMatrix::from_vec(range.len(), count, tile);
            products.gemm(1.0, &tile.transpose(), &tile, 1.0);
        }
        products
    };
    let starts: Vec<usize> = (0..length).step_by(chunk.max(1)).collect();
    let parts: Vec<DMatrix<f64>> = match starts.len() {
        0 | 1 => starts.into_iter().map(part).collect(),
        _ => shared().install(|| starts.into_par_iter().map(part).collect()),
    };
    let sum = parts.into_iter().fold(DMatrix::zeros(count, count), |sum, part| sum + part);
    sum.as_slice().to_vec()
}

/// Short sketches of long messages, `[n x buckets]`, that keep all inner products up to a few per
/// cent: every block of `buckets` elements is added to the sketch at a random rotation with random
/// signs.
///
/// # Formula
/// ```text
/// y[(j + r_b) mod B] += s_b[j] x[b B + j]
/// E[ y . y' ] = x . x'        relative standard deviation about sqrt(2/B) for dense messages
/// ```
/// where `B` is the number of buckets and `r_b`, `s_b` come from the seed. An attacker who knows
/// the seed can make an error that vanishes in the sketch: draw it after the last message has come.
/// Cost: one pass over the messages, on all cores.
///
/// # Panics
/// When there are no buckets.
///
/// ```
/// use codedgrad::gpu::signed_fold;
/// let sketch = signed_fold(&[&[1.0f32; 1000]], 4096, 7);
/// assert_eq!(
///     sketch[0].iter().map(|x| x * x).sum::<f64>(),
///     1000.0,
///     "one block alone loses nothing"
/// );
/// ```
#[must_use]
pub fn signed_fold<T: Real>(messages: &[&[T]], buckets: usize, seed: u64) -> Vec<Vec<f64>> {
    let length = messages.iter().map(|x| x.len()).max().unwrap_or(0);
    passes::count(PassPlace::Judge, messages.iter().map(|x| size_of_val(*x)).sum());
    let Signs { first, second, places } = Signs::draw(buckets, length, seed);
    let signs = |minus: Vec<bool>| {
        minus.into_iter().map(|minus| if minus { T::MINUS_ONE } else { T::ONE }).collect::<Vec<T>>()
    };
    let (first, second) = (signs(first), signs(second));
    let sketch = |x: &&[T]| {
        let mut sums = vec![T::default(); 2 * buckets];
        for (block, [rotation, s, t]) in x.chunks(buckets).zip(&places) {
            add_signed(
                &mut sums[*rotation..rotation + block.len()],
                block,
                &first[*s..],
                &second[*t..],
            );
        }
        let (low, high) = sums.split_at(buckets);
        low.iter().zip(high).map(|(low, high)| low.wide() + high.wide()).collect()
    };
    shared().install(|| messages.par_iter().map(sketch).collect())
}

/// What a seed means for a sketch.
pub(super) struct Signs {
    /// Which signs of the first table `[2 buckets]` are minus.
    pub(super) first: Vec<bool>,
    /// The same for the second. Two tables read at different places: the signs of two blocks are
    /// then unrelated but once in `buckets` squared.
    pub(super) second: Vec<bool>,
    /// Of every block: its rotation, and where its signs begin in the two tables.
    pub(super) places: Vec<[usize; 3]>,
}

impl Signs {
    /// The signs for messages of up to `length` elements.
    pub(super) fn draw(buckets: usize, length: usize, seed: u64) -> Self {
        assert!(buckets > 0, "a sketch needs buckets");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut signs = || (0..2 * buckets).map(|_| rng.next_u32() & 1 == 1).collect();
        let (first, second) = (signs(), signs());
        let mut below = || (rng.next_u64() % buckets as u64) as usize;
        let places = (0..length.div_ceil(buckets)).map(|_| [below(), below(), below()]).collect();
        Self { first, second, places }
    }
}

/// `sums += x s t`, element by element. A function of its own, so that it is vectorised.
#[inline(never)]
fn add_signed<T: Real>(sums: &mut [T], x: &[T], s: &[T], t: &[T]) {
    let x = &x[..sums.len()];
    let s = &s[..sums.len()];
    let t = &t[..sums.len()];
    let (body, tail) = sums.as_chunks_mut::<LANES>();
    let xs = x.as_chunks::<LANES>().0;
    let ss = s.as_chunks::<LANES>().0;
    let ts = t.as_chunks::<LANES>().0;
    for (((sums, x), s), t) in body.iter_mut().zip(xs).zip(ss).zip(ts) {
        *sums = std::array::from_fn(|e| sums[e] + x[e] * (s[e] * t[e]));
    }
    let start = x.len() - tail.len();
    for (e, sum) in (start..).zip(tail) {
        *sum = *sum + x[e] * (s[e] * t[e]);
    }
}

#[cfg(test)]
mod tests;
