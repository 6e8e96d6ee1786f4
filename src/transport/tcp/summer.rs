//! All exchanges a node takes part in, and the sums it keeps of those that are over.

use super::block::{Block, Blocks, Vectors};
use super::exchange::{Exchange, Outgoing, Plan, Sum, chunks_of};
use super::pipe::Frame;
use crate::ids::Step;
use crate::transport::What;
use crate::transport::wire::{Format, Header, Kind, chunks};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

type Key = (Step, u32);

/// An exchange under way.
#[derive(Debug)]
struct Open {
    exchange: Exchange,
    planned: bool,
    /// When a chunk came last.
    progressed: Instant,
    /// Chunks of terms that came before the plan.
    early: Vec<(Header, u32, Block)>,
}

/// The exchanges of one node.
#[derive(Debug)]
pub(super) struct Summer {
    me: u32,
    length: usize,
    format: Format,
    blocks: Blocks,
    open: BTreeMap<Key, Open>,
    sums: VecDeque<Sum>,
    kept_max: usize,
    /// Steps below this one take no new exchange.
    first: Step,
    vectors: Vectors,
}

impl Summer {
    pub(super) fn new(me: u32, length: usize, format: Format, blocks: Blocks, vectors: Vectors, kept_max: usize) -> Self {
        Self { me, length, format, blocks, open: BTreeMap::new(), sums: VecDeque::new(), kept_max, first: Step(0), vectors }
    }

    /// Exchanges under way and sums that are kept.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.sums.len()
    }

    fn entry(&mut self, key: Key, now: Instant) -> &mut Open {
        let (me, length) = (self.me, self.length);
        let (blocks, vectors) = (&self.blocks, &self.vectors);
        self.open.entry(key).or_insert_with(|| {
            let out = vectors.take(length);
            let exchange = Exchange::listening(me, key.0, key.1, out, blocks.clone());
            Open { exchange, planned: false, progressed: now, early: Vec::new() }
        })
    }

    /// Takes part in an exchange; older attempts at the step are given up.
    pub(super) fn begin(
        &mut self,
        plan: Plan,
        held: impl Fn(What) -> Option<Arc<Vec<f32>>>,
        now: Instant,
        out: &mut Vec<Outgoing>,
    ) -> Vec<String> {
        let key = (plan.step, plan.attempt);
        self.open.retain(|other, _| other.0 != key.0 || other.1 >= key.1);
        if self.sum(key.0, key.1).is_some() {
            return Vec::new();
        }
        let format = self.format;
        let open = self.entry(key, now);
        if open.planned {
            return Vec::new();
        }
        (open.planned, open.progressed) = (true, now);
        out.extend(open.exchange.join(plan, format, held));
        let early = std::mem::take(&mut open.early);
        early.into_iter().filter_map(|(header, from, block)| open.exchange.term(&header, from, block).err()).collect()
    }

    /// Takes in a chunk of a term or a sum.
    pub(super) fn chunk(&mut self, header: &Header, from: u32, block: Block, now: Instant) -> Result<(), String> {
        let key = (Step(header.number), header.attempt);
        let newer = self.open.keys().any(|other| other.0 == key.0 && other.1 > key.1);
        if newer || key.0 < self.first || self.sum(key.0, key.1).is_some() {
            self.blocks.give(block);
            return Ok(());
        }
        let early_max = 2 * chunks(self.length) + 64;
        let ahead = key.0.0 > self.first.0 + 2 * self.kept_max as u64 + 64;
        if ahead {
            return Err(format!("a chunk of {} while steps from {} on are under way", key.0, self.first));
        }
        let open = self.entry(key, now);
        open.progressed = now;
        match header.kind {
            Kind::Sum => open.exchange.summed(header, from, block),
            _ if open.planned => open.exchange.term(header, from, block),
            _ if open.early.len() < early_max => {
                open.early.push((*header, from, block));
                Ok(())
            }
            _ => Err("too many chunks came before their exchange was announced".into()),
        }
    }

    /// Sums what can be summed, one chunk; false if there is nothing.
    pub(super) fn work(&mut self, out: &mut Vec<Outgoing>) -> bool {
        let next = self.open.values_mut().find_map(|open| open.exchange.sum_next());
        let worked = next.is_some();
        out.extend(next.into_iter().flatten());
        worked
    }

    /// The sums that became whole.
    pub(super) fn finished(&mut self) -> Vec<Sum> {
        let (whole, open): (BTreeMap<_, _>, _) = std::mem::take(&mut self.open).into_iter().partition(|(_, open)| open.exchange.is_whole());
        self.open = open;
        let done: Vec<Sum> = whole.into_values().map(|open| open.exchange.finish()).collect();
        done.iter().cloned().for_each(|sum| self.push(sum));
        done
    }

    /// Keeps a sum that was made elsewhere.
    pub(super) fn keep(&mut self, sum: Sum) {
        if self.sum(sum.step, sum.attempt).is_none() {
            self.push(sum);
        }
    }

    fn push(&mut self, sum: Sum) {
        self.sums.push_back(sum);
        while self.sums.len() > self.kept_max {
            self.sums.pop_front().into_iter().for_each(|sum| self.vectors.give(sum.vector));
        }
    }

    pub(super) fn sum(&self, step: Step, attempt: u32) -> Option<&Sum> {
        self.sums.iter().find(|sum| (sum.step, sum.attempt) == (step, attempt))
    }

    /// Whether a sum with these bytes is kept; one with other bytes is thrown away.
    pub(super) fn has(&mut self, step: Step, attempt: u32, digest: u64) -> bool {
        self.sums.retain(|sum| (sum.step, sum.attempt) != (step, attempt) || sum.digest == digest);
        self.sum(step, attempt).is_some()
    }

    /// Whether a sum is under way here.
    pub(super) fn is_open(&self, step: Step, attempt: u32) -> bool {
        self.open.contains_key(&(step, attempt))
    }

    /// The chunks of a sum that is kept.
    pub(super) fn give(&self, step: Step, attempt: u32) -> Option<Vec<Frame>> {
        self.sum(step, attempt).map(|sum| chunks_of(sum).collect())
    }

    /// A step is decided: nothing more is taken in for it but its sum, from those who have it.
    pub(super) fn decided(&mut self, step: Step, attempt: Option<u32>) {
        self.open.retain(|key, _| key.0 != step || Some(key.1) == attempt);
    }

    /// Steps below this one are over for this node.
    pub(super) fn applied(&mut self, next: Step) {
        self.first = self.first.max(next);
        self.open.retain(|key, _| key.0 >= next);
    }

    /// Begins at another step.
    pub(super) fn moved(&mut self, next: Step) {
        self.first = next;
        self.open.clear();
    }

    /// Gives up everything under way.
    pub(super) fn reset(&mut self) {
        self.open.clear();
    }

    /// Exchanges for which nothing has come for so long, and whose chunks are missing.
    pub(super) fn stalled(&self, now: Instant, patience: Duration) -> Vec<(Step, u32, Vec<u32>)> {
        let old = self.open.iter().filter(|(_, open)| open.planned && now.saturating_duration_since(open.progressed) > patience);
        old.map(|((step, attempt), open)| (*step, *attempt, open.exchange.waits_for())).collect()
    }
}
