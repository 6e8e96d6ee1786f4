//! Vectors of sums while their chunks come: connections read straight into them.

use super::lock;
use crate::ids::Step;
use crate::run::NumberFormat;
use crate::transport::wire::{Header, Kind, chunk_range, chunks};
use bytemuck::cast_slice_mut;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

/// Whose a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    /// Nothing of it has come.
    Free,
    /// A connection reads it.
    Claimed(u64),
    /// It is there, or made here.
    Closed,
}

#[derive(Debug)]
struct Painted {
    vector: Vec<f32>,
    spots: Vec<Spot>,
    claims: u64,
}

/// The vector of one sum under way.
#[derive(Debug)]
pub(super) struct Canvas {
    length: usize,
    painted: Mutex<Painted>,
}

impl Canvas {
    pub(super) fn new(vector: Vec<f32>) -> Self {
        let (length, spots) = (vector.len(), vec![Spot::Free; chunks(vector.len())]);
        Self { length, painted: Mutex::new(Painted { vector, spots, claims: 0 }) }
    }

    /// Numbers in the vector.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The numbers of a chunk.
    pub(super) fn range(&self, chunk: usize) -> Range<usize> {
        chunk_range(chunk, self.length)
    }

    /// These chunks do not come from elsewhere.
    pub(super) fn close(&self, own: Range<usize>) {
        lock(&self.painted).spots[own].fill(Spot::Closed);
    }

    /// Overwrites a chunk. What a connection still reads of it goes nowhere.
    pub(super) fn paint(&self, chunk: usize, write: impl FnOnce(&mut [f32])) {
        let painted = &mut *lock(&self.painted);
        painted.spots[chunk] = Spot::Closed;
        write(&mut painted.vector[self.range(chunk)]);
    }

    /// Reads a chunk that is there.
    pub(super) fn look<T>(&self, chunk: usize, read: impl FnOnce(&[f32]) -> T) -> T {
        read(&lock(&self.painted).vector[self.range(chunk)])
    }

    /// The vector, once it is whole.
    pub(super) fn take(&self) -> Vec<f32> {
        std::mem::take(&mut lock(&self.painted).vector)
    }
}

/// A chunk that a connection reads into its place; whoever drops it before it is
/// [settled](Claim::settle) frees the place.
#[derive(Debug)]
pub(super) struct Claim {
    canvas: Arc<Canvas>,
    chunk: usize,
    number: u64,
}

impl Claim {
    /// Lets something be written to the place, or read; none if it was filled from elsewhere
    /// meanwhile, or given up.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let painted = &mut *lock(&self.canvas.painted);
        let current = painted.spots[self.chunk] == Spot::Claimed(self.number);
        let place = painted.vector.get_mut(self.canvas.range(self.chunk)).filter(|_| current)?;
        Some(act(cast_slice_mut(place)))
    }

    /// Notes that the chunk is there, if it is one of this vector; false if it is not, or came from
    /// elsewhere meanwhile.
    pub(super) fn settle(&self, canvas: &Arc<Canvas>) -> bool {
        let spot = &mut lock(&self.canvas.painted).spots[self.chunk];
        let settles = Arc::ptr_eq(&self.canvas, canvas) && *spot == Spot::Claimed(self.number);
        if settles {
            *spot = Spot::Closed;
        }
        settles
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let spot = &mut lock(&self.canvas.painted).spots[self.chunk];
        if *spot == Spot::Claimed(self.number) {
            *spot = Spot::Free;
        }
    }
}

type Hung = BTreeMap<(Step, u32), Weak<Canvas>>;

/// The vectors of all sums under way at a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Canvases(Arc<Mutex<Hung>>);

impl Canvases {
    /// Lets connections read into a vector as long as somebody keeps it.
    pub(super) fn hang(&self, step: Step, attempt: u32, canvas: &Arc<Canvas>) {
        let mut hung = lock(&self.0);
        hung.retain(|_, canvas| canvas.strong_count() > 0);
        hung.insert((step, attempt), Arc::downgrade(canvas));
    }

    /// The place of a chunk of a sum, if it is free and nothing is to be converted.
    pub(super) fn claim(&self, header: &Header) -> Option<Claim> {
        if (header.kind, header.format) != (Kind::Sum, NumberFormat::F32) || header.digest == 0 {
            return None;
        }
        let canvas = lock(&self.0).get(&(Step(header.number), header.attempt))?.upgrade()?;
        let chunk = header.chunk_of(canvas.len()).ok()?;
        let painted = &mut *lock(&canvas.painted);
        if painted.spots[chunk] != Spot::Free {
            return None;
        }
        painted.claims += 1;
        let number = painted.claims;
        painted.spots[chunk] = Spot::Claimed(number);
        Some(Claim { canvas: Arc::clone(&canvas), chunk, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::wire::CHUNK;

    const LENGTH: usize = CHUNK + 2;

    fn hung() -> (Canvases, Arc<Canvas>) {
        let (canvases, canvas) = (Canvases::default(), Arc::new(Canvas::new(vec![0.0; LENGTH])));
        canvases.hang(Step(3), 1, &canvas);
        (canvases, canvas)
    }

    fn header(chunk: usize) -> Header {
        let range = chunk_range(chunk, LENGTH);
        Header {
            digest: 1,
            ..Header::chunk(Kind::Sum, NumberFormat::F32, range.start, range.len()).of_step(
                Step(3),
                1,
                0,
            )
        }
    }

    #[test]
    fn a_chunk_is_read_into_its_place_once() {
        let (canvases, canvas) = hung();
        let claim = canvases.claim(&header(1)).unwrap();
        assert!(canvases.claim(&header(1)).is_none(), "somebody reads it");
        assert_eq!(
            claim.with(|bytes| bytes.copy_from_slice(cast_slice_mut(&mut [2.0f32, 3.0]))),
            Some(())
        );
        assert!(claim.settle(&canvas));
        drop(claim);
        assert!(canvases.claim(&header(1)).is_none(), "it is there");
        assert_eq!(canvas.take()[CHUNK - 1..], [0.0, 2.0, 3.0]);
    }

    #[test]
    fn who_is_given_up_writes_nothing_any_more() {
        let (canvases, canvas) = hung();
        drop(canvases.claim(&header(1)).unwrap());
        let claim = canvases.claim(&header(1)).expect("the first has given it up");
        canvas.paint(1, |numbers| numbers.fill(5.0));
        assert_eq!((claim.with(|bytes| bytes.fill(0)), claim.settle(&canvas)), (None, false));
        drop(claim);
        assert!(canvases.claim(&header(1)).is_none());
        let first = canvases.claim(&header(0)).unwrap();
        assert_eq!(canvas.take().last(), Some(&5.0));
        assert_eq!(first.with(|bytes| bytes.fill(0)), None, "the vector is elsewhere");
    }

    #[test]
    fn only_what_is_missing_can_be_claimed() {
        let (canvases, canvas) = hung();
        let wrong = [
            Header { digest: 0, ..header(1) },
            Header { kind: Kind::Term, ..header(1) },
            Header { attempt: 0, ..header(1) },
            Header { length: 4, ..header(1) },
            Header { offset: 2 * CHUNK as u64, ..header(1) },
        ];
        assert!(wrong.iter().all(|header| canvases.claim(header).is_none()));
        canvas.close(0..1);
        assert!(canvases.claim(&header(0)).is_none(), "it is made here");
        assert!(canvases.claim(&header(1)).is_some());
        drop(canvas);
        assert!(canvases.claim(&header(1)).is_none(), "nobody wants the sum any more");
    }
}
