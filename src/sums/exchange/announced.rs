//! A worker's own vectors that go into sums, final part by part: what it can be asked for, also
//! while it still computes.

use super::frame::Body;
use crate::ids::{Job, Step, Task};
use crate::sums::{TermKind, chunk_range};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A vector of a worker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OwnVector {
    Result(Task),
    /// The sum of its results of a step.
    Sum(Step),
}

impl OwnVector {
    /// What a worker has of a step.
    pub(super) fn of(step: Step, what: TermKind) -> Self {
        match what {
            TermKind::Result(task) => Self::Result(task),
            TermKind::Sum => Self::Sum(step),
        }
    }
}

/// Some chunks of a vector.
#[derive(Debug)]
struct Part {
    chunks: Range<usize>,
    numbers: Arc<Vec<f32>>,
}

/// The final parts of a worker's own vectors, until their step is decided. Others may ask for them
/// also when no node wants the rest any more.
///
/// The parts of a vector are one range of chunks, which grows at either end.
#[derive(Debug, Default)]
pub(super) struct Announcements(BTreeMap<OwnVector, Vec<Part>>);

impl Announcements {
    /// These chunks of a vector are final; gives all that are. What has all that was announced
    /// before takes its place; another part that is not next to that is not taken.
    pub(super) fn add(
        &mut self,
        own: OwnVector,
        chunks: Range<usize>,
        numbers: Arc<Vec<f32>>,
    ) -> Range<usize> {
        let known = self.final_chunks(own);
        let replaces = known.is_empty() || chunks.start <= known.start && known.end <= chunks.end;
        // A hole could not be told by one range; the whole result closes it when it is done.
        let joins = replaces || chunks.end == known.start || chunks.start == known.end;
        if joins && !chunks.is_empty() {
            let parts = self.0.entry(own).or_default();
            parts.truncate(if replaces { 0 } else { parts.len() });
            parts.push(Part { chunks, numbers });
        }
        self.final_chunks(own)
    }

    /// Which chunks of a vector are final.
    pub(super) fn final_chunks(&self, own: OwnVector) -> Range<usize> {
        let parts = self.0.get(&own).map(Vec::as_slice).unwrap_or_default();
        let start = parts.iter().map(|part| part.chunks.start).min();
        let end = parts.iter().map(|part| part.chunks.end).max();
        start.unwrap_or_default()..end.unwrap_or_default()
    }

    /// A chunk of a vector of `length` numbers, if it is final.
    pub(super) fn chunk(&self, own: OwnVector, chunk: usize, length: usize) -> Option<Body> {
        let mut parts = self.0.get(&own)?.iter();
        let part = parts.find(|part| part.chunks.contains(&chunk))?;
        let start = chunk_range(part.chunks.start, length).start;
        let range = chunk_range(chunk, length);
        let range = range.start - start..range.end - start;
        Some(Body::Slice(Arc::clone(&part.numbers), range))
    }

    /// A step is decided, and jobs below `end` are.
    pub(super) fn release(&mut self, step: Step, end: Job) {
        self.0.retain(|own, _| match own {
            OwnVector::Result(task) => task.job >= end,
            OwnVector::Sum(of) => *of > step,
        });
    }

    /// Forgets all parts: no node will ask for one any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
