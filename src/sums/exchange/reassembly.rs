//! Vectors of sums while their chunks come: connections read straight into them.

use crate::run::NumberFormat;
use crate::sums::{Header, Kind, SumId, chunk_range, chunks, lock};
use bytemuck::cast_slice_mut;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

/// Whose a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Nothing of it has come.
    Missing,
    /// A connection reads it.
    Reading(u64),
    /// It is there, or made here.
    Done,
}

#[derive(Debug)]
struct Contents {
    vector: Vec<f32>,
    states: Vec<ChunkState>,
    slots: u64,
}

/// The vector of one sum under way.
#[derive(Debug)]
pub(crate) struct ReassemblyBuffer {
    length: usize,
    contents: Mutex<Contents>,
}

impl ReassemblyBuffer {
    pub(crate) fn new(vector: Vec<f32>) -> Self {
        let (length, states) = (vector.len(), vec![ChunkState::Missing; chunks(vector.len())]);
        Self { length, contents: Mutex::new(Contents { vector, states, slots: 0 }) }
    }

    /// Numbers in the vector.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The numbers of a chunk.
    pub(crate) fn range(&self, chunk: usize) -> Range<usize> {
        chunk_range(chunk, self.length)
    }

    /// These chunks do not come from elsewhere.
    pub(crate) fn close(&self, own: Range<usize>) {
        lock(&self.contents).states[own].fill(ChunkState::Done);
    }

    /// A chunk comes from elsewhere, and is not there. What a connection still reads of it goes
    /// nowhere.
    pub(crate) fn reopen(&self, chunk: usize) {
        lock(&self.contents).states[chunk] = ChunkState::Missing;
    }

    /// Overwrites a chunk. What a connection still reads of it goes nowhere.
    pub(crate) fn write(&self, chunk: usize, write: impl FnOnce(&mut [f32])) {
        let contents = &mut *lock(&self.contents);
        contents.states[chunk] = ChunkState::Done;
        write(&mut contents.vector[self.range(chunk)]);
    }

    /// Reads a chunk that is there.
    pub(crate) fn read<T>(&self, chunk: usize, read: impl FnOnce(&[f32]) -> T) -> T {
        read(&lock(&self.contents).vector[self.range(chunk)])
    }

    /// The vector, once it is whole.
    pub(crate) fn take(&self) -> Vec<f32> {
        std::mem::take(&mut lock(&self.contents).vector)
    }
}

/// A chunk that a connection reads into its place; dropping it before it is
/// [complete](WriteSlot::complete) frees the place.
#[derive(Debug)]
pub(crate) struct WriteSlot {
    buffer: Arc<ReassemblyBuffer>,
    chunk: usize,
    number: u64,
}

impl WriteSlot {
    /// Lets something be written to the place, or read; none if it was filled from elsewhere
    /// meanwhile, or given up.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let contents = &mut *lock(&self.buffer.contents);
        let current = contents.states[self.chunk] == ChunkState::Reading(self.number);
        let place = contents.vector.get_mut(self.buffer.range(self.chunk)).filter(|_| current)?;
        Some(act(cast_slice_mut(place)))
    }

    /// Notes that the chunk is there, if it is one of this vector; false if it is not, or came from
    /// elsewhere meanwhile.
    pub(crate) fn complete(&self, buffer: &Arc<ReassemblyBuffer>) -> bool {
        let state = &mut lock(&self.buffer.contents).states[self.chunk];
        let completes =
            Arc::ptr_eq(&self.buffer, buffer) && *state == ChunkState::Reading(self.number);
        if completes {
            *state = ChunkState::Done;
        }
        completes
    }
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        let state = &mut lock(&self.buffer.contents).states[self.chunk];
        if *state == ChunkState::Reading(self.number) {
            *state = ChunkState::Missing;
        }
    }
}

type BufferRegistry = BTreeMap<SumId, Weak<ReassemblyBuffer>>;

/// The vectors of all sums under way at a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReassemblyBuffers(Arc<Mutex<BufferRegistry>>);

impl ReassemblyBuffers {
    /// Lets connections read into a vector as long as a sum under way holds it.
    pub(crate) fn register(&self, id: SumId, buffer: &Arc<ReassemblyBuffer>) {
        let mut registered = lock(&self.0);
        // Sums that are whole have let go of theirs: no caller has to take them out.
        registered.retain(|_, buffer| buffer.strong_count() > 0);
        registered.insert(id, Arc::downgrade(buffer));
    }

    /// The place of a chunk of a sum, if it is free and nothing is to be converted.
    pub(crate) fn slot(&self, header: &Header) -> Option<WriteSlot> {
        if (header.kind, header.format) != (Kind::Sum, NumberFormat::F32) || header.digest == 0 {
            return None;
        }
        let buffer = lock(&self.0).get(&header.sum())?.upgrade()?;
        let chunk = header.chunk_of(buffer.len()).ok()?;
        let contents = &mut *lock(&buffer.contents);
        // Another connection reads it, or it is there: this one is read aside and dropped.
        if contents.states[chunk] != ChunkState::Missing {
            return None;
        }
        // Numbered, so that a slot whose place was freed and taken again is not taken for the new
        // one.
        contents.slots += 1;
        let number = contents.slots;
        contents.states[chunk] = ChunkState::Reading(number);
        Some(WriteSlot { buffer: Arc::clone(&buffer), chunk, number })
    }
}

#[cfg(test)]
mod tests;
