//! How vectors are cut on their way between nodes, and what is said of each chunk.

use super::SumId;
use crate::ids::{Job, Step, Task};
use crate::run::NumberFormat;

/// Elements of every chunk of a vector but its last; the unit in which vectors are cut, digested
/// and owned.
pub const CHUNK: usize = 1 << 16;
/// The coordinator where a worker's number is expected.
pub const COORDINATOR: u32 = u32::MAX;

/// What is in a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A JSON object.
    Control,
    /// A chunk of one term of an exchange, for the owner of that chunk.
    Term,
    /// A chunk of the sum that an exchange made.
    Sum,
    /// A chunk of a result, before it is known what happens to it.
    Result,
    /// A chunk of one vector of a replica's state.
    State,
}

/// What is said of a chunk: the fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is in the body.
    pub kind: Kind,
    /// Format of the numbers.
    pub format: NumberFormat,
    /// Whether all numbers of the chunk are finite.
    pub finite: bool,
    /// The run.
    pub run: u64,
    /// How many times the sender had joined the run.
    pub epoch: u32,
    /// The sender; [`COORDINATOR`] if it is no worker.
    pub worker: u32,
    /// Step of a term or sum, job of a result, number of a transfer of state.
    pub number: u64,
    /// Attempt at the step.
    pub attempt: u32,
    /// Which term of the exchange, piece of the job, vector of the state.
    pub piece: u32,
    /// First element of the chunk within its vector.
    pub offset: u64,
    /// Hash of what sender and receiver must agree on, in a hash of their own.
    pub layout: u64,
    /// XXH3 (64 bits) of the body, 0 if the sender took none.
    pub digest: u64,
    /// Bytes of the body.
    pub length: u32,
}

impl Header {
    /// The header of a control frame.
    #[must_use]
    pub fn control(length: usize) -> Self {
        Self {
            kind: Kind::Control,
            format: NumberFormat::F32,
            finite: true,
            run: 0,
            epoch: 0,
            worker: COORDINATOR,
            number: 0,
            attempt: 0,
            piece: 0,
            offset: 0,
            layout: 0,
            digest: 0,
            length: length as u32,
        }
    }

    /// The header of a chunk of elements `offset..offset + count`.
    #[must_use]
    pub fn chunk(kind: Kind, format: NumberFormat, offset: usize, count: usize) -> Self {
        Self { kind, format, offset: offset as u64, ..Self::control(count * format.bytes()) }
    }

    /// The same header for a sum, or one of its terms.
    #[must_use]
    pub fn of_sum(self, SumId { step, attempt }: SumId, term: u32) -> Self {
        Self { number: step.0, attempt, piece: term, ..self }
    }

    /// The sum that it is of, or of a term of which.
    #[must_use]
    pub fn sum(&self) -> SumId {
        SumId { step: Step(self.number), attempt: self.attempt }
    }

    /// The same header for a result.
    #[must_use]
    pub fn of_task(self, task: Task) -> Self {
        Self { number: task.job.0, piece: task.piece, ..self }
    }

    /// The result that [`Self::of_task`] named, but for its plan, which the order tells that it
    /// answers.
    #[must_use]
    pub fn task(&self) -> Task {
        Task { job: Job(self.number), piece: self.piece, plan: 0 }
    }

    /// Which chunk of a vector of `length` elements follows.
    pub(crate) fn chunk_of(&self, length: usize) -> Result<usize, String> {
        let chunk = usize::try_from(self.offset).unwrap_or(usize::MAX) / CHUNK;
        // All cut vectors alike, so that a chunk is told by where it begins.
        let is_whole = |chunk: &usize| {
            let range = chunk_range(*chunk, length);
            (self.offset, self.count()) == (range.start as u64, range.len())
        };
        let chunk = Some(chunk).filter(|chunk| *chunk < chunks(length)).filter(is_whole);
        chunk.ok_or_else(|| {
            format!(
                "{} numbers from {} on are no chunk of a vector of {length}",
                self.count(),
                self.offset
            )
        })
    }

    /// Elements of the chunk.
    #[must_use]
    pub fn count(&self) -> usize {
        self.length as usize / self.format.bytes()
    }
}

/// Chunks of a vector of `length` elements.
#[must_use]
pub fn chunks(length: usize) -> usize {
    length.div_ceil(CHUNK)
}

/// Elements of one chunk of a vector of `length` elements.
#[must_use]
pub fn chunk_range(chunk: usize, length: usize) -> std::ops::Range<usize> {
    (chunk * CHUNK).min(length)..((chunk + 1) * CHUNK).min(length)
}

#[cfg(test)]
mod tests;
