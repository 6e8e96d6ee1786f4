//! The combine on the CPU: the plain reference that defines the result, and the tiled, threaded
//! version.

use super::{Combine, CombineError, Source, Term, check};
use crate::passes::{self, PassPlace};
use half::{bf16, f16};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::ops::Range;
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64;

/// Elements that one thread works on at a time; part of the definition of [`digest`].
const CHUNK: usize = 1 << 16;
/// Elements of a tile: a tile of the result stays in the first-level cache while the terms beyond
/// the first eight are added to it.
const TILE: usize = 4096;
/// Below this size a pass over memory is over before other threads have woken up.
const PARALLEL_MIN: usize = 1 << 18;
/// The same of a pass with less to do than a sum, and only where there are so many threads: two
/// share the memory that one keeps busy, and wait for each other beside a trainer.
const LIGHT_MIN: (usize, usize) = (1 << 20, 4);

/// The reference: element by element, by the recursion of [`Combine`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Combine for Plain {
    fn combine(&self, terms: &[Term<'_>], out: &mut [f32]) -> Result<(), CombineError> {
        check(terms, out.len())?;
        passes::count(PassPlace::Sum, bytes_of_sum(terms, out.len()));
        for (element, out) in out.iter_mut().enumerate() {
            *out = if terms.is_empty() { 0.0 } else { plain_tree(terms, element) };
        }
        Ok(())
    }
}

fn plain_tree(terms: &[Term<'_>], element: usize) -> f32 {
    if let [term] = terms {
        let x = match term.source {
            Source::F32(x) => x[element],
            Source::Bf16(x) => x[element].to_f32(),
            Source::F16(x) => x[element].to_f32(),
        };
        return term.weight * x;
    }
    let (left, right) = terms.split_at(left_half(terms.len()));
    plain_tree(left, element) + plain_tree(right, element)
}

/// The largest power of two below `count`.
fn left_half(count: usize) -> usize {
    count.next_power_of_two() / 2
}

/// What [`Cpu::combine_and_digest`] tells of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumCheck {
    /// The [`digest`] of the result.
    pub digest: u64,
    /// Whether every element of the result is finite.
    pub finite: bool,
}

/// The combine on a thread pool of its own, one pass over memory.
#[derive(Debug)]
pub struct Cpu {
    pool: ThreadPool,
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Cpu {
    /// A pool with one thread per core. It is separate from rayon's global pool, which a trainer
    /// may have limited to one thread.
    ///
    /// # Panics
    /// When the operating system gives no threads.
    #[must_use]
    pub fn new() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }

    fn of(threads: usize) -> Self {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("fold-{i}"))
            .build();
        Self { pool: pool.expect("threads for the fold") }
    }

    /// As [`Combine::combine`], and what there is to know of the result, from the same pass.
    ///
    /// ```
    /// use codedgrad::gpu::{Cpu, Source, Term, digest};
    /// let x = [f32::MAX, 1.0];
    /// let term = Term { weight: 1.0, source: Source::F32(&x) };
    /// let mut out = [0.0; 2];
    /// let folded = Cpu::new().combine_and_digest(&[term], &mut out)?;
    /// assert!(folded.finite && folded.digest == digest(&out));
    /// assert!(!Cpu::new().combine_and_digest(&[term, term], &mut out)?.finite);
    /// # Ok::<(), codedgrad::gpu::CombineError>(())
    /// ```
    ///
    /// # Errors
    /// [`CombineError::Length`] when a term is not as long as `out`.
    pub fn combine_and_digest(
        &self,
        terms: &[Term<'_>],
        out: &mut [f32],
    ) -> Result<SumCheck, CombineError> {
        let mut chunks = vec![(0, 0.0); out.len().div_ceil(CHUNK)];
        self.run(terms, out, &mut chunks, |out| {
            (digest_of_chunk(bytemuck::cast_slice(out)), nonfinite_mask(out))
        })?;
        let (digests, poisons): (Vec<u64>, Vec<f32>) = chunks.into_iter().unzip();
        Ok(SumCheck {
            digest: xxh3_64(bytemuck::cast_slice(&digests)),
            finite: poisons.iter().all(|poison| *poison == 0.0),
        })
    }

    fn add_into(&self, out: &mut [f32], weight: f32, x: &[f32]) -> bool {
        self.install(|| {
            let pieces = out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
            // No short cut where one is not finite: all of them are to be added.
            pieces.map(|(out, x)| add_piece(out, weight, x)).reduce(|| true, |a, b| a & b)
        })
    }

    fn nonfinite_mask(&self, x: &[f32]) -> f32 {
        self.install(|| x.par_chunks(CHUNK).map(mask_of_piece).sum())
    }

    fn piecewise<A, B>(&self, from: &[A], to: &mut [B], work: impl Fn(&[A], &mut [B]) + Sync)
    where
        A: Sync,
        B: Send,
    {
        self.install(|| {
            let pieces = from.par_chunks(CHUNK).zip(to.par_chunks_mut(CHUNK));
            pieces.for_each(|(from, to)| work(from, to));
        });
    }

    /// Runs something on this pool's threads.
    pub(super) fn install<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.pool.install(work)
    }

    fn run<T: Send>(
        &self,
        terms: &[Term<'_>],
        out: &mut [f32],
        slots: &mut [T],
        finish: impl Fn(&mut [f32]) -> T + Sync,
    ) -> Result<(), CombineError> {
        check(terms, out.len())?;
        let work = |(chunk, (out, slot)): (usize, (&mut [f32], &mut T))| {
            combine_chunk(terms, chunk * CHUNK, out);
            *slot = finish(out);
        };
        if out.len() < PARALLEL_MIN {
            out.chunks_mut(CHUNK).zip(slots).enumerate().for_each(work);
        } else {
            self.pool.install(|| {
                out.par_chunks_mut(CHUNK).zip(slots.par_iter_mut()).enumerate().for_each(work);
            });
        }
        Ok(())
    }
}

impl Combine for Cpu {
    fn combine(&self, terms: &[Term<'_>], out: &mut [f32]) -> Result<(), CombineError> {
        let mut slots = vec![(); out.len().div_ceil(CHUNK)];
        self.run(terms, out, &mut slots, |_| ())
    }
}

/// One chunk of a sum, of at most 65,536 elements, on the calling thread; `digest` is the XXH3 of
/// its bytes. All terms are as long as `out`.
pub(crate) fn fold_chunk(terms: &[Term<'_>], out: &mut [f32]) -> SumCheck {
    combine_chunk(terms, 0, out);
    let digest = digest_of_chunk(bytemuck::cast_slice(out));
    SumCheck { digest, finite: nonfinite_mask(out) == 0.0 }
}

/// The XXH3 of a chunk's bytes.
pub(crate) fn digest_of_chunk(bytes: &[u8]) -> u64 {
    passes::count(PassPlace::Digest, bytes.len());
    xxh3_64(bytes)
}

/// A digest of a vector's bytes: XXH3 over the XXH3 digests of chunks of 65,536 elements. It finds
/// accidental differences between replicas; it is no protection against a forger.
///
/// ```
/// use codedgrad::gpu::digest;
/// assert_eq!(digest(&[1.0, 2.0]), digest(&[1.0, 2.0]));
/// assert_ne!(digest(&[0.0]), digest(&[-0.0]));
/// ```
#[must_use]
pub fn digest(vector: &[f32]) -> u64 {
    let of_chunk = |chunk: &[f32]| digest_of_chunk(bytemuck::cast_slice(chunk));
    let digests: Vec<u64> = match shared_for(vector.len()) {
        None => vector.chunks(CHUNK).map(of_chunk).collect(),
        Some(cpu) => cpu.install(|| vector.par_chunks(CHUNK).map(of_chunk).collect()),
    };
    xxh3_64(bytemuck::cast_slice(&digests))
}

/// A digest of a vector's bits that may be taken in any order of its elements, and so on a device;
/// another one than [`digest`].
///
/// # Formula
/// ```text
/// sum_i h(x_i xor i a) mod 2^64,   h(z) = y xor (y >> 32),   y = b (z xor (z >> 32)) mod 2^64
/// ```
/// where `x_i` are the 32 bits of element `i`, `a = 0x9e3779b97f4a7c15` and
/// `b = 0xd6e8feb86659fd93`. Since `h` is one to one, two vectors that differ in one element never
/// have the same.
///
/// ```
/// use codedgrad::gpu::digest_of_bits;
/// assert_eq!(digest_of_bits(&[1.0, 2.0]), digest_of_bits(&[1.0, 2.0]));
/// assert_ne!(digest_of_bits(&[0.0]), digest_of_bits(&[-0.0]));
/// ```
#[must_use]
pub fn digest_of_bits(vector: &[f32]) -> u64 {
    let hash = |(place, x): (u64, &f32)| {
        let mixed = u64::from(x.to_bits()) ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ mixed >> 32
    };
    (0..).zip(vector).map(hash).fold(0, u64::wrapping_add)
}

/// `out += w x`, element by element; true if every sum is finite.
///
/// # Panics
/// When the lengths differ.
pub fn add_into(out: &mut [f32], weight: f32, x: &[f32]) -> bool {
    assert_eq!(out.len(), x.len(), "vectors of one length");
    passes::count(PassPlace::Add, 3 * size_of_val(x));
    match shared_for(out.len()) {
        None => add_piece(out, weight, x),
        Some(cpu) => cpu.add_into(out, weight, x),
    }
}

fn add_piece(out: &mut [f32], weight: f32, x: &[f32]) -> bool {
    let mut poison = 0.0f32;
    for (out, x) in out.chunks_mut(TILE).zip(x.chunks(TILE)) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += weight * x;
        }
        poison += mask_of_piece(out);
    }
    poison == 0.0
}

/// 0 if all entries are finite, NaN otherwise: `x * 0` is NaN for NaN and for infinities.
pub(crate) fn nonfinite_mask(x: &[f32]) -> f32 {
    passes::count(PassPlace::Scan, size_of_val(x));
    match shared_for(x.len()) {
        None => mask_of_piece(x),
        Some(cpu) => cpu.nonfinite_mask(x),
    }
}

fn mask_of_piece(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (body, tail) = x.as_chunks::<16>();
    for x in body {
        for (lane, x) in lanes.iter_mut().zip(x) {
            *lane += x * 0.0;
        }
    }
    lanes.iter().sum::<f32>() + tail.iter().map(|x| x * 0.0).sum::<f32>()
}

/// Has `work` done on the pieces of two slices that lie at the same places: at once if they are
/// short, else on the threads that also sum.
///
/// ```
/// use codedgrad::gpu::piecewise;
/// let mut halves = [0.0; 3];
/// piecewise(&[1u8, 2, 3], &mut halves, |from, to| {
///     to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from(*from) / 2.0);
/// });
/// assert_eq!(halves, [0.5, 1.0, 1.5]);
/// ```
///
/// # Panics
/// When the lengths differ.
pub fn piecewise<A: Sync, B: Send>(from: &[A], to: &mut [B], work: impl Fn(&[A], &mut [B]) + Sync) {
    assert_eq!(from.len(), to.len(), "slices of one length");
    match shared_for(to.len()) {
        None => work(from, to),
        Some(cpu) => cpu.piecewise(from, to, work),
    }
}

/// What a sum of so many elements reads and writes: a tile of it stays in the cache meanwhile.
fn bytes_of_sum(terms: &[Term<'_>], elements: usize) -> usize {
    let each = |term: &Term<'_>| match term.source {
        Source::F32(_) => size_of::<f32>(),
        Source::Bf16(_) | Source::F16(_) => size_of::<u16>(),
    };
    elements * (size_of::<f32>() + terms.iter().map(each).sum::<usize>())
}

/// Combines the elements from `start` on into one chunk of the result.
fn combine_chunk(terms: &[Term<'_>], start: usize, out: &mut [f32]) {
    passes::count(PassPlace::Sum, bytes_of_sum(terms, out.len()));
    if terms.is_empty() {
        return out.fill(0.0);
    }
    for (tile, out) in out.chunks_mut(TILE).enumerate() {
        tile_tree::<false>(terms, start + tile * TILE, out);
    }
}

/// Sets one tile of the result to the tree's value, or with `ADD` adds that value to it.
fn tile_tree<const ADD: bool>(terms: &[Term<'_>], start: usize, out: &mut [f32]) {
    let range = start..start + out.len();
    let done = match terms[0].source {
        Source::F32(_) => leaf::<f32, ADD>(terms, range, out),
        Source::Bf16(_) => leaf::<bf16, ADD>(terms, range, out),
        Source::F16(_) => leaf::<f16, ADD>(terms, range, out),
    };
    if done {
        return;
    }
    if ADD {
        let sum = &mut [0.0; TILE][..out.len()];
        tile_tree::<false>(terms, start, sum);
        out.iter_mut().zip(sum).for_each(|(out, x)| *out += *x);
    } else {
        let (left, right) = terms.split_at(left_half(terms.len()));
        tile_tree::<false>(left, start, out);
        tile_tree::<true>(right, start, out);
    }
}

/// The tree over 1, 2, 4 or 8 terms of format `T`, its inner sums held in registers. False, and
/// nothing done, for any other terms.
fn leaf<T: Element, const ADD: bool>(
    terms: &[Term<'_>],
    range: Range<usize>,
    out: &mut [f32],
) -> bool {
    if let Some((w, x)) = streams::<T, 1>(terms, &range) {
        put::<T, 1, ADD>(w, x, out, |[a]| a);
    } else if let Some((w, x)) = streams::<T, 2>(terms, &range) {
        put::<T, 2, ADD>(w, x, out, |[a, b]| a + b);
    } else if let Some((w, x)) = streams::<T, 4>(terms, &range) {
        put::<T, 4, ADD>(w, x, out, |[a, b, c, d]| (a + b) + (c + d));
    } else if let Some((w, x)) = streams::<T, 8>(terms, &range) {
        put::<T, 8, ADD>(w, x, out, |[a, b, c, d, e, f, g, h]| {
            ((a + b) + (c + d)) + ((e + f) + (g + h))
        });
    } else {
        return false;
    }
    true
}

/// The weights of the terms and their elements within `range`, if the terms are `N` and all of
/// format `T`.
fn streams<'a, T: Element, const N: usize>(
    terms: &[Term<'a>],
    range: &Range<usize>,
) -> Option<([f32; N], [&'a [T]; N])> {
    let terms: &[Term<'a>; N] = terms.try_into().ok()?;
    let mut x = [&[][..]; N];
    for (x, term) in x.iter_mut().zip(terms) {
        *x = &T::all_of(term.source)?[range.clone()];
    }
    Some((terms.map(|term| term.weight), x))
}

/// The loop of every leaf. It stays a function of its own because what the compiler knows of an
/// argument, that `out` overlaps nothing, is what lets it vectorise.
#[inline(never)]
fn put<T: Element, const N: usize, const ADD: bool>(
    weights: [f32; N],
    x: [&[T]; N],
    out: &mut [f32],
    sum: impl Fn([f32; N]) -> f32,
) {
    let x = x.map(|x| &x[..out.len()]);
    for e in 0..out.len() {
        let value = sum(std::array::from_fn(|i| weights[i] * x[i][e].widen()));
        out[e] = if ADD { out[e] + value } else { value };
    }
}

/// A format of messages.
trait Element: Copy + 'static {
    /// Its numbers, if `source` is of this format.
    fn all_of(source: Source<'_>) -> Option<&[Self]>;

    /// The same number as f32. Written so that a compiler vectorises it for any processor; a
    /// signalling NaN may stay one, which no product can tell apart.
    fn widen(self) -> f32;
}

impl Element for f32 {
    fn all_of(source: Source<'_>) -> Option<&[Self]> {
        if let Source::F32(x) = source { Some(x) } else { None }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    fn all_of(source: Source<'_>) -> Option<&[Self]> {
        if let Source::Bf16(x) = source { Some(x) } else { None }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Element for f16 {
    fn all_of(source: Source<'_>) -> Option<&[Self]> {
        if let Source::F16(x) = source { Some(x) } else { None }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = bits & 0x7fff;
        // Exponents are biased by 15 in f16 and by 127 in f32; 31 stands for infinities and NaN, 0
        // for multiples of 2^-24.
        let rebias = if magnitude < 0x7c00 { 127 - 15 } else { 255 - 31 };
        let normal = (magnitude << 13) + (rebias << 23);
        let tiny = (magnitude as i32 as f32 * 2f32.powi(-24)).to_bits();
        f32::from_bits((bits & 0x8000) << 16 | if magnitude < 0x400 { tiny } else { normal })
    }
}

/// That pool, if a light pass over so many elements is the faster for it.
fn shared_for(length: usize) -> Option<&'static Cpu> {
    let (least, threads) = LIGHT_MIN;
    (length >= least).then(shared).filter(|cpu| cpu.pool.current_num_threads() >= threads)
}

/// The pool that the trainer's folds share.
pub(crate) fn shared() -> &'static Cpu {
    static SHARED: OnceLock<Cpu> = OnceLock::new();
    SHARED.get_or_init(Cpu::new)
}

#[cfg(test)]
mod tests;
