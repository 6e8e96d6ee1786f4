//! A worker's own results that go into sums, final part by part: what it can be asked for, also
//! while it still computes.

use super::frame::Body;
use crate::ids::{Job, Task};
use crate::sums::chunk_range;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Some chunks of a result.
#[derive(Debug)]
struct Part {
    chunks: Range<usize>,
    numbers: Arc<Vec<f32>>,
}

/// The final parts of a worker's own results, until their step is decided. Others may ask for them
/// also when no node wants the rest any more.
///
/// The parts of a result are one range of chunks, which grows at either end.
#[derive(Debug, Default)]
pub(super) struct Announcements(BTreeMap<Task, Vec<Part>>);

impl Announcements {
    /// These chunks of a result are final; gives all that are. What has all that was announced
    /// before takes its place; another part that is not next to that is not taken.
    pub(super) fn add(
        &mut self,
        task: Task,
        chunks: Range<usize>,
        numbers: Arc<Vec<f32>>,
    ) -> Range<usize> {
        let known = self.final_chunks(task);
        let replaces = known.is_empty() || chunks.start <= known.start && known.end <= chunks.end;
        // A hole could not be told by one range; the whole result closes it when it is done.
        let joins = replaces || chunks.end == known.start || chunks.start == known.end;
        if joins && !chunks.is_empty() {
            let parts = self.0.entry(task).or_default();
            parts.truncate(if replaces { 0 } else { parts.len() });
            parts.push(Part { chunks, numbers });
        }
        self.final_chunks(task)
    }

    /// Which chunks of a result are final.
    pub(super) fn final_chunks(&self, task: Task) -> Range<usize> {
        let parts = self.0.get(&task).map(Vec::as_slice).unwrap_or_default();
        let start = parts.iter().map(|part| part.chunks.start).min();
        let end = parts.iter().map(|part| part.chunks.end).max();
        start.unwrap_or_default()..end.unwrap_or_default()
    }

    /// A chunk of a result of `length` numbers, if it is final.
    pub(super) fn chunk(&self, task: Task, chunk: usize, length: usize) -> Option<Body> {
        let mut parts = self.0.get(&task)?.iter();
        let part = parts.find(|part| part.chunks.contains(&chunk))?;
        let start = chunk_range(part.chunks.start, length).start;
        let range = chunk_range(chunk, length);
        let range = range.start - start..range.end - start;
        Some(Body::Slice(Arc::clone(&part.numbers), range))
    }

    /// Jobs below `end` are decided.
    pub(super) fn release(&mut self, end: Job) {
        self.0.retain(|task, _| task.job >= end);
    }

    /// Forgets all parts: no node will ask for one any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
