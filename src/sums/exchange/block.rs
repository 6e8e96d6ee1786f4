//! Chunks of vectors in memory, and buffers that go round.

use crate::gpu::Source;
use crate::passes::{self, PassPlace};
use crate::run::NumberFormat;
use crate::sums::{CHUNK, chunks, lock};
use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

// Numbers travel as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "the wire is little-endian");

/// The numbers of one chunk, in the format in which they came.
#[derive(Debug)]
pub(crate) struct Block {
    /// Room for as many f32; bf16 and f16 fill half of it.
    room: Vec<f32>,
    pub(crate) count: usize,
    pub(crate) format: NumberFormat,
    /// Counts it among those in use, while it exists.
    _use: Use,
}

impl Block {
    pub(crate) fn bytes(&self) -> &[u8] {
        &cast_slice(&self.room)[..self.count * self.format.bytes()]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.room)[..self.count * self.format.bytes()]
    }

    /// The numbers, for the fold.
    pub(crate) fn source(&self) -> Source<'_> {
        match self.format {
            NumberFormat::F32 => Source::F32(&self.room[..self.count]),
            NumberFormat::Bf16 => {
                Source::Bf16(cast_slice::<f32, u16>(&self.room)[..self.count].reinterpret_cast())
            }
            NumberFormat::F16 => {
                Source::F16(cast_slice::<f32, u16>(&self.room)[..self.count].reinterpret_cast())
            }
        }
    }

    /// Room for numbers in f32.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        &mut self.room[..self.count]
    }

    /// Overwrites the block with numbers, rounded to its format.
    pub(crate) fn fill(&mut self, values: &[f32]) {
        passes::count(PassPlace::Copy, size_of_val(values) + self.bytes().len());
        match self.format {
            NumberFormat::F32 => self.room[..self.count].copy_from_slice(values),
            NumberFormat::Bf16 => {
                let narrow: &mut [bf16] =
                    cast_slice_mut::<f32, u16>(&mut self.room)[..self.count].reinterpret_cast_mut();
                narrow.convert_from_f32_slice(values);
            }
            NumberFormat::F16 => {
                let narrow: &mut [f16] =
                    cast_slice_mut::<f32, u16>(&mut self.room)[..self.count].reinterpret_cast_mut();
                narrow.convert_from_f32_slice(values);
            }
        }
    }

    /// Copies the numbers of a gradient's chunk out as f32.
    pub(crate) fn unpack(&self, out: &mut [f32]) {
        passes::count(PassPlace::Copy, self.bytes().len() + size_of_val(out));
        self.copy_to(out);
    }

    /// Copies the numbers out as f32.
    pub(crate) fn copy_to(&self, out: &mut [f32]) {
        match self.source() {
            Source::F32(x) => out.copy_from_slice(x),
            Source::Bf16(x) => x.convert_to_f32_slice(out),
            Source::F16(x) => x.convert_to_f32_slice(out),
        }
    }
}

/// How many buffers are in use, and how many were at most.
#[derive(Debug, Default)]
struct InUse {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// One buffer in use.
#[derive(Debug)]
struct Use(Arc<InUse>);

impl Use {
    fn begin(counts: &Arc<InUse>) -> Self {
        let now = counts.now.fetch_add(1, Relaxed) + 1;
        counts.most.fetch_max(now, Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
    }
}

/// Buffers of one chunk each.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    spare: Arc<Mutex<Vec<Vec<f32>>>>,
    in_use: Arc<InUse>,
    spare_max: usize,
    /// Numbers in the longest chunk of a gradient.
    room: usize,
}

impl Blocks {
    /// A pool that keeps as much memory as a gradient of `length` numbers takes, and some more.
    pub(crate) fn new(length: usize) -> Self {
        let room = length.clamp(1, CHUNK);
        let spare_max = (chunks(length) + 64) * CHUNK / room;
        Self { spare: Arc::default(), in_use: Arc::default(), spare_max, room }
    }

    /// Bytes of buffers that were in use at a time, at most.
    pub(crate) fn most_in_use(&self) -> usize {
        self.in_use.most.load(Relaxed) * self.room * size_of::<f32>()
    }

    pub(crate) fn take(&self, count: usize, format: NumberFormat) -> Block {
        let spare = lock(&self.spare).pop().filter(|room| room.len() >= count);
        let room = spare.unwrap_or_else(|| vec![0.0; self.room.max(count)]);
        Block { room, count, format, _use: Use::begin(&self.in_use) }
    }

    pub(crate) fn give(&self, block: Block) {
        let mut spare = lock(&self.spare);
        if spare.len() < self.spare_max {
            spare.push(block.room);
        }
    }

    /// Gives a block back if this is the last reference to it.
    pub(crate) fn give_shared(&self, block: Arc<Block>) {
        if let Some(block) = Arc::into_inner(block) {
            self.give(block);
        }
    }
}

/// Vectors of gradient length to be used again, some of which may still be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vectors(Arc<Mutex<Vec<Arc<Vec<f32>>>>>);

impl Vectors {
    /// Vectors kept for later.
    const SPARE_MAX: usize = 6;

    pub(crate) fn take(&self, length: usize) -> Vec<f32> {
        let mut spare = lock(&self.0);
        let free = spare
            .iter()
            .position(|vector| Arc::strong_count(vector) == 1 && vector.len() == length);
        let free = free.and_then(|at| Arc::into_inner(spare.swap_remove(at)));
        drop(spare);
        free.unwrap_or_else(|| vec![0.0; length])
    }

    pub(crate) fn give(&self, vector: Arc<Vec<f32>>) {
        let mut spare = lock(&self.0);
        if spare.len() >= Self::SPARE_MAX {
            spare.remove(0);
        }
        spare.push(vector);
    }
}
