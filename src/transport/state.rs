//! What one worker hands over for another to go on from.

use crate::ids::Step;
use thiserror::Error;

/// Bytes of the length that stands before bytes.
const LENGTH_BYTES: usize = 8;
const NUMBER_BYTES: usize = size_of::<f32>();

/// Everything a replica needs to go on from a step: the vectors its trainer handed over.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// First step that is not applied in it.
    pub next: Step,
    /// Parameters and optimizer state, in the trainer's own order.
    pub vectors: Vec<Vec<f32>>,
}

/// A state that was not handed over as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "vector {vector} of the state, of {numbers} numbers, was not handed over as bytes: its giver \
     replied with numbers"
)]
pub struct NotBytes {
    /// Which vector, from 0.
    pub vector: usize,
    /// Its length.
    pub numbers: usize,
}

impl AsRef<[Vec<f32>]> for State {
    fn as_ref(&self) -> &[Vec<f32>] {
        &self.vectors
    }
}

impl State {
    /// A state of byte strings of any lengths, such as a trainer's own files. They travel as
    /// vectors of numbers, exactly, whatever numbers they make: each is its length in bytes as a
    /// little-endian `u64`, then the bytes, then zeros up to a multiple of 4.
    ///
    /// ```
    /// use codedgrad::ids::Step;
    /// use codedgrad::transport::State;
    /// let state = State::of_bytes(Step(7), &[b"weights".to_vec(), vec![]]);
    /// assert_eq!(state.vectors.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2]);
    /// assert_eq!(state.bytes()?, [b"weights".to_vec(), vec![]]);
    /// # Ok::<(), codedgrad::transport::NotBytes>(())
    /// ```
    #[must_use]
    pub fn of_bytes(next: Step, bytes: &[Vec<u8>]) -> Self {
        Self { next, vectors: bytes.iter().map(|bytes| numbers_of(bytes)).collect() }
    }

    /// The byte strings that it was made of.
    ///
    /// # Errors
    /// [`NotBytes`] when it was made of numbers.
    ///
    /// ```
    /// use codedgrad::{ids::Step, transport::State};
    /// let state = State { next: Step(0), vectors: vec![vec![0.5; 3]] };
    /// assert_eq!(state.bytes().unwrap_err().numbers, 3);
    /// ```
    pub fn bytes(&self) -> Result<Vec<Vec<u8>>, NotBytes> {
        (0..self.vectors.len()).map(|vector| Ok(self.byte_string(vector)?.to_vec())).collect()
    }

    /// One of the byte strings that it was made of, where it lies.
    ///
    /// # Errors
    /// As [`State::bytes`]; so also where there are no so many vectors.
    ///
    /// ```
    /// use codedgrad::{ids::Step, transport::State};
    /// let state = State::of_bytes(Step(7), &[b"weights".to_vec()]);
    /// assert_eq!(&state.byte_string(0)?[..2], b"we");
    /// assert!(state.byte_string(1).is_err());
    /// # Ok::<(), codedgrad::transport::NotBytes>(())
    /// ```
    pub fn byte_string(&self, vector: usize) -> Result<&[u8], NotBytes> {
        let numbers = self.vectors.get(vector).map_or(&[][..], Vec::as_slice);
        bytes_of(numbers).ok_or(NotBytes { vector, numbers: numbers.len() })
    }
}

/// A byte string of a state, as it travels ([`State::of_bytes`]), whose bytes come piece by piece:
/// so the pieces and the whole are not in memory twice.
///
/// ```
/// use codedgrad::{ids::Step, transport::{ByteVector, State}};
/// let mut vector = ByteVector::new(7);
/// assert_eq!(vector.fill(b"wei"), b"");
/// assert_eq!(vector.fill(b"ghts and more"), b" and more");
/// assert!(vector.is_full());
/// let state = State { next: Step(7), vectors: vec![vector.into_numbers()] };
/// assert_eq!(state.bytes()?, [b"weights".to_vec()]);
/// # Ok::<(), codedgrad::transport::NotBytes>(())
/// ```
#[derive(Clone, Debug)]
pub struct ByteVector {
    numbers: Vec<f32>,
    missing: std::ops::Range<usize>,
}

impl ByteVector {
    /// One of so many bytes, which are zeros until they come.
    #[must_use]
    pub fn new(length: usize) -> Self {
        let end = LENGTH_BYTES + length;
        let mut numbers = vec![0.0f32; end.div_ceil(NUMBER_BYTES)];
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut numbers);
        room[..LENGTH_BYTES].copy_from_slice(&(length as u64).to_le_bytes());
        Self { numbers, missing: LENGTH_BYTES..end }
    }

    /// Takes the next bytes, and gives back those that are beyond the length.
    #[must_use = "what is beyond the length belongs to the next one"]
    pub fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(self.missing.len()));
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut self.numbers);
        room[self.missing.start..][..taken.len()].copy_from_slice(taken);
        self.missing.start += taken.len();
        rest
    }

    /// Whether all bytes have come.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.missing.is_empty()
    }

    /// The numbers that it travels as.
    #[must_use]
    pub fn into_numbers(self) -> Vec<f32> {
        self.numbers
    }
}

fn numbers_of(bytes: &[u8]) -> Vec<f32> {
    let mut vector = ByteVector::new(bytes.len());
    let _nothing = vector.fill(bytes);
    vector.into_numbers()
}

fn bytes_of(numbers: &[f32]) -> Option<&[u8]> {
    let (length, rest) = bytemuck::cast_slice::<f32, u8>(numbers).split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (bytes, padding) = rest.split_at_checked(length)?;
    let whole = padding.len() < NUMBER_BYTES && padding.iter().all(|byte| *byte == 0);
    whole.then_some(bytes)
}

#[cfg(test)]
mod tests;
