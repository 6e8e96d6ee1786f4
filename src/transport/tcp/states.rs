//! States of replicas on their way: vectors of any length, cut in chunks.

use crate::ids::Step;
use crate::run::NumberFormat;
use crate::sums::exchange::{Block, Body, Frame};
use crate::sums::{CHUNK, Header, Kind, chunk_range, chunks};
use crate::transport::State;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The frames that follow the announcement of a state.
pub(super) fn frames(state: &Arc<State>, transfer: u64) -> impl Iterator<Item = Frame> {
    let lengths: Vec<usize> = state.vectors.iter().map(Vec::len).collect();
    let cut = lengths.into_iter().enumerate().flat_map(|(vector, length)| {
        (0..chunks(length)).map(move |chunk| (vector, chunk_range(chunk, length)))
    });
    cut.map(move |(vector, range)| {
        let header = Header::chunk(Kind::State, NumberFormat::F32, range.start, range.len());
        let header = Header { number: transfer, piece: vector as u32, ..header };
        let state: Arc<State> = Arc::clone(state);
        Frame { header, body: Body::Part(state, vector, range) }
    })
}

#[derive(Debug)]
struct Half {
    state: State,
    missing: Vec<Vec<bool>>,
    left: usize,
}

/// States that are coming in, by the number of their transfer.
#[derive(Debug, Default)]
pub(super) struct IncomingStates(BTreeMap<u64, Half>);

impl IncomingStates {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A state is announced; one that is announced again replaces what came of it. False if it has
    /// more than so many numbers.
    pub(super) fn expect(
        &mut self,
        transfer: u64,
        next: Step,
        lengths: Vec<usize>,
        most: usize,
    ) -> bool {
        let numbers = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        if numbers.is_none_or(|numbers| numbers > most) || lengths.len() > most {
            return false;
        }
        let missing: Vec<Vec<bool>> =
            lengths.iter().map(|length| vec![true; chunks(*length)]).collect();
        let left = missing.iter().map(Vec::len).sum();
        let vectors = lengths.into_iter().map(|length| vec![0.0; length]).collect();
        self.0.insert(transfer, Half { state: State { next, vectors }, missing, left });
        true
    }

    /// Takes in a chunk; gives back the state if that was its last one.
    pub(super) fn chunk(&mut self, header: &Header, block: &Block) -> Option<&State> {
        let half = self.0.get_mut(&header.number)?;
        let (vector, chunk) = (header.piece as usize, usize::try_from(header.offset).ok()? / CHUNK);
        let missing = half.missing.get_mut(vector)?.get_mut(chunk)?;
        let range = chunk_range(chunk, half.state.vectors[vector].len());
        if (header.offset, header.count()) != (range.start as u64, range.len())
            || !std::mem::take(missing)
        {
            return None;
        }
        block.copy_to(&mut half.state.vectors[vector][range]);
        half.left -= 1;
        (half.left == 0).then_some(&half.state)
    }

    pub(super) fn is_whole(&self, transfer: u64) -> bool {
        self.0.get(&transfer).is_some_and(|half| half.left == 0)
    }

    /// The state, if it is whole.
    pub(super) fn take(&mut self, transfer: u64) -> Option<State> {
        if !self.is_whole(transfer) {
            return None;
        }
        self.0.remove(&transfer).map(|half| half.state)
    }
}
