//! States on their way from one worker over the coordinator to another.
//!
//! # How to drive it
//! A worker that was ordered to send its state says how long it is and for whom:
//! [`Handovers::expect`]. Each chunk goes to [`Handovers::chunk`], which gives the whole state with
//! the last one; it is then sent on under the number that [`Handovers::send`] gives, with which the
//! receiver answers. [`Handovers::forget`] when the worker that gives it is lost: what has come of
//! it is dropped, and the engine names another.

use crate::ids::{Step, Worker};
use crate::sums::Header;
use crate::sums::exchange::Block;
use crate::transport::State;
use crate::transport::tcp::states::Arriving;
use std::collections::BTreeMap;

/// States that come from workers, and the number of those that were sent.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    /// By who gives them: for whom each transfer is, and what has come of it.
    coming: BTreeMap<Worker, (BTreeMap<u64, u32>, Arriving)>,
    sent: u64,
}

impl Handovers {
    /// Entries that are kept of them.
    pub(super) fn len(&self) -> usize {
        self.coming.values().map(|(needy, arriving)| needy.len() + arriving.len()).sum()
    }

    /// The number of a transfer to a worker.
    pub(super) fn send(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// A worker says for whom a state will come, and how large it is; false if it has more than so
    /// many numbers.
    pub(super) fn expect(
        &mut self,
        donor: Worker,
        (transfer, needy): (u64, u32),
        (next, lengths): (Step, Vec<usize>),
        most: usize,
    ) -> bool {
        let (needs, arriving) = self.coming.entry(donor).or_default();
        needs.insert(transfer, needy);
        arriving.expect(transfer, next, lengths, most)
    }

    /// Takes in a chunk; gives back the state and who needs it, if that was its last one.
    pub(super) fn chunk(
        &mut self,
        donor: Worker,
        header: &Header,
        block: &Block,
    ) -> Option<(u32, State)> {
        let (needy, arriving) = self.coming.get_mut(&donor)?;
        arriving.chunk(header, block)?;
        Some((needy.remove(&header.number)?, arriving.take(header.number)?))
    }

    /// A worker is lost.
    pub(super) fn forget(&mut self, donor: Worker) {
        self.coming.remove(&donor);
    }
}
