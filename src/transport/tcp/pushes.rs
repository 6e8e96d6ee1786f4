//! Results that go to those who will sum them before it is known which of them count.
//!
//! Whoever has sent a result's chunks does not send them again when a sum is planned, and whoever
//! was sent them takes them then. Both go by the order that the result answers, which the plan
//! names too: a result of another order, or over a connection that is gone, is as if it had not
//! been sent.

use super::block::{Block, Blocks};
use crate::ids::{Job, Task};
use crate::transport::wire::{Header, Owner};
use std::collections::BTreeMap;

/// What a node has sent of its own results.
#[derive(Debug, Default)]
pub(super) struct Sent(BTreeMap<Task, (u32, Vec<Owner>)>);

impl Sent {
    pub(super) fn note(&mut self, task: Task, order: u32, owners: Vec<Owner>) {
        self.0.insert(task, (order, owners));
    }

    /// Whether a node was sent a chunk of the result that answers an order.
    pub(super) fn covers(&self, task: Task, order: u32, node: u32, chunk: usize) -> bool {
        let owner = |owner: &Owner| owner.node == node && (owner.start..owner.end).contains(&chunk);
        self.0.get(&task).is_some_and(|(of, owners)| *of == order && owners.iter().any(owner))
    }

    /// What a node was sent may not have come through.
    pub(super) fn lost(&mut self, node: u32) {
        self.0.values_mut().for_each(|(_, owners)| owners.retain(|owner| owner.node != node));
    }

    /// A sum is planned of the result: what it takes of it now may be used up.
    pub(super) fn planned(&mut self, task: Task) {
        self.0.remove(&task);
    }

    pub(super) fn release(&mut self, end: Job) {
        self.0.retain(|task, _| task.job >= end);
    }
}

/// The order that a result answers, and its chunks.
type Kept = (u32, Vec<(Header, Block)>);

/// Chunks of other nodes' results, with the order that each result answers.
#[derive(Debug)]
pub(super) struct Came {
    results: BTreeMap<(u32, Task), Kept>,
    /// Jobs below this one are over.
    first: u64,
    blocks: Blocks,
}

impl Came {
    pub(super) fn new(blocks: Blocks) -> Self {
        Self { results: BTreeMap::new(), first: 0, blocks }
    }

    /// Chunks that are kept.
    pub(super) fn len(&self) -> usize {
        self.results.values().map(|(_, chunks)| chunks.len()).sum()
    }

    /// Keeps a chunk of a result, unless nobody can want it, or its sender has sent too much;
    /// whether it was kept.
    pub(super) fn put(&mut self, from: u32, header: Header, block: Block, most: usize) -> bool {
        let task = header.task();
        let theirs = self
            .results
            .iter()
            .filter(|(key, _)| key.0 == from)
            .map(|(_, (_, chunks))| chunks.len())
            .sum::<usize>();
        let keeps = task.job.0 >= self.first && theirs < most;
        if keeps {
            if self.results.get(&(from, task)).is_some_and(|kept| kept.0 != header.attempt) {
                self.drop_those(|key| *key == (from, task));
            }
            self.results
                .entry((from, task))
                .or_insert((header.attempt, Vec::new()))
                .1
                .push((header, block));
        } else {
            self.blocks.give(block);
        }
        keeps
    }

    /// Takes the chunks of a result that answers an order.
    pub(super) fn take(&mut self, from: u32, task: Task, order: u32) -> Vec<(Header, Block)> {
        let right = self.results.get(&(from, task)).is_some_and(|kept| kept.0 == order);
        if right {
            self.results.remove(&(from, task)).map_or(Vec::new(), |kept| kept.1)
        } else {
            Vec::new()
        }
    }

    /// The connection to a node is gone.
    pub(super) fn forget(&mut self, from: u32) {
        self.drop_those(|key| key.0 == from);
    }

    pub(super) fn release(&mut self, end: Job) {
        self.first = self.first.max(end.0);
        self.drop_those(|key| key.1.job < end);
    }

    fn drop_those(&mut self, which: impl Fn(&(u32, Task)) -> bool) {
        let Self { results, blocks, .. } = self;
        results.retain(|key, (_, chunks)| {
            let stays = !which(key);
            chunks
                .drain(if stays { 0..0 } else { 0..chunks.len() })
                .for_each(|(_, block)| blocks.give(block));
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::wire::{CHUNK, Format, Kind};

    const TASK: Task = Task { job: Job(4), piece: 2, plan: 0 };

    #[test]
    fn a_node_is_not_sent_twice_what_has_come_through() {
        let mut sent = Sent::default();
        let owners =
            || vec![Owner { node: 1, start: 0, end: 2 }, Owner { node: 3, start: 2, end: 3 }];
        sent.note(TASK, 7, owners());
        assert!(sent.covers(TASK, 7, 1, 1) && sent.covers(TASK, 7, 3, 2));
        assert!(
            !sent.covers(TASK, 7, 1, 2)
                && !sent.covers(TASK, 8, 1, 1)
                && !sent.covers(Task { piece: 1, ..TASK }, 7, 1, 1)
        );
        sent.lost(1);
        assert!(!sent.covers(TASK, 7, 1, 1) && sent.covers(TASK, 7, 3, 2));
        sent.planned(TASK);
        assert!(!sent.covers(TASK, 7, 3, 2), "another attempt needs it anew");
        sent.note(TASK, 9, owners());
        sent.release(Job(5));
        assert!(!sent.covers(TASK, 9, 1, 0));
    }

    #[test]
    fn only_the_result_of_the_order_that_counts_is_taken() {
        let (blocks, mut came) = (Blocks::new(CHUNK), Came::new(Blocks::new(CHUNK)));
        let chunk = |order: u32| Header {
            attempt: order,
            ..Header::chunk(Kind::Result, Format::F32, 0, CHUNK).of_task(TASK)
        };
        let put = |came: &mut Came, from, order| {
            came.put(from, chunk(order), blocks.take(CHUNK, Format::F32), 2)
        };
        assert!(
            put(&mut came, 1, 7) && put(&mut came, 1, 7) && !put(&mut came, 1, 7),
            "no more than it may"
        );
        assert!(put(&mut came, 2, 7));
        assert!(came.take(1, TASK, 8).is_empty());
        assert_eq!(
            (came.take(1, TASK, 7).len(), came.take(1, TASK, 7).len(), came.len()),
            (2, 0, 1)
        );
        assert!(
            put(&mut came, 2, 8) && came.take(2, TASK, 7).is_empty(),
            "a later one takes its place"
        );
        came.forget(2);
        assert!(came.take(2, TASK, 8).is_empty() && put(&mut came, 1, 9));
        came.release(Job(5));
        assert!(came.len() == 0 && !put(&mut came, 1, 9), "its job is over");
    }
}
