//! What other nodes send of exchanges before this node is told of them: kept, in bounds, until it
//! is.

use super::block::Block;
use crate::ids::Step;
use crate::sums::{CHUNK, Header, PeerMessage, SumId, chunks};
use std::collections::BTreeMap;

/// Attempts at a step beyond the last one that this node was told of, of which something is kept:
/// so many may be begun in vain before it hears of any.
const ATTEMPTS_AHEAD: u32 = 16;

/// What may wait of one node, beside two vectors: some chunks, however short a vector is.
const LEAST_CHUNKS: usize = 64;

/// Something that came too early.
#[derive(Debug)]
pub(super) enum EarlyMessage {
    Word(PeerMessage),
    Chunk(Header, Block),
}

/// What came of exchanges that are not known here, in the order in which it came: it is
/// [put](EarlyBuffer::put) here until its exchange begins or is over, and
/// [taken](EarlyBuffer::take) then.
///
/// Who sends it may be wrong, so it is bounded in steps and attempts ahead, and in bytes per node:
/// what a node can make another one keep does not depend on how many exchanges it names.
#[derive(Debug)]
pub(super) struct EarlyBuffer {
    /// Of which exchange, from whom, and what.
    waiting: Vec<(SumId, u32, EarlyMessage)>,
    /// Bytes that wait, by who sent them.
    bytes: BTreeMap<u32, usize>,
    /// Bytes that may wait of one node.
    most: usize,
    /// Bytes of the memory in which a chunk lies, however short it is.
    of_chunk: usize,
    /// So far ahead of the first step may one be of which something is kept.
    ahead: u64,
}

impl EarlyBuffer {
    /// Nothing has come yet of sums of vectors of `length` numbers, of which `kept` are kept.
    pub(super) fn new(length: usize, kept: usize) -> Self {
        let of_chunk = length.clamp(1, CHUNK) * size_of::<f32>();
        let most = (2 * chunks(length) + LEAST_CHUNKS) * of_chunk;
        // Of short vectors chunks are short, and words are not.
        let most = most.max(LEAST_CHUNKS * CHUNK);
        let ahead = 2 * kept as u64 + 64;
        Self { waiting: Vec::new(), bytes: BTreeMap::new(), most, of_chunk, ahead }
    }

    fn bytes_of(&self, came: &EarlyMessage) -> usize {
        let beside = size_of::<(SumId, u32, EarlyMessage)>();
        match came {
            EarlyMessage::Word(_) => beside,
            EarlyMessage::Chunk(..) => beside + self.of_chunk,
        }
    }

    /// Keeps what came for an exchange, while steps from `first` on are under way and `last` is the
    /// last attempt at that one.
    ///
    /// # Errors
    /// That too much waits of that node already, or that it is too far ahead.
    pub(super) fn put(
        &mut self,
        id: SumId,
        first: Step,
        last: Option<SumId>,
        from: u32,
        came: EarlyMessage,
    ) -> Result<(), String> {
        let step = id.step;
        let last = last.map_or(0, |last| last.attempt);
        if step.0 > first.0 + self.ahead {
            return Err(format!("{step} while steps from {first} on are under way"));
        }
        if id.attempt > last.saturating_add(ATTEMPTS_AHEAD) {
            return Err(format!("{id}, while {last} is the last at that step"));
        }
        let more = self.bytes_of(&came);
        let bytes = self.bytes.entry(from).or_default();
        if *bytes + more > self.most {
            return Err("it sends too much of exchanges that are not under way".into());
        }
        *bytes += more;
        self.waiting.push((id, from, came));
        Ok(())
    }

    /// Takes out what came for some exchanges, and from whom.
    pub(super) fn take(&mut self, is_taken: impl Fn(&SumId) -> bool) -> Vec<(u32, EarlyMessage)> {
        let taken = self.waiting.extract_if(.., |(id, ..)| is_taken(id));
        let taken: Vec<(u32, EarlyMessage)> = taken.map(|(_, from, came)| (from, came)).collect();
        for (from, came) in &taken {
            let less = self.bytes_of(came);
            if let Some(bytes) = self.bytes.get_mut(from) {
                *bytes -= less;
            }
        }
        self.bytes.retain(|_, bytes| *bytes > 0);
        taken
    }
}
