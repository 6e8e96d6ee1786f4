//! All exchanges a node takes part in, and the sums it keeps of those that are over.

use super::Key;
use super::block::{Block, Blocks, Vectors};
use super::frame::Frame;
use super::part::{ExchangePart, Outgoing, chunks_of};
use super::plan::Plan;
use super::reassembly::{ReassemblyBuffer, ReassemblyBuffers, WriteSlot};
use super::store::{SharedSums, Sum, SumStore};
use crate::ids::Step;
use crate::run::NumberFormat;
use crate::transport::wire::{Header, Kind, chunks};
use crate::transport::{What, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An exchange under way.
#[derive(Debug)]
struct Open {
    part: ExchangePart,
    planned: bool,
    /// When a chunk came last.
    progressed: Instant,
    /// Chunks of terms that came before the plan.
    early: Vec<(Header, u32, Block)>,
}

/// What the exchanges of a node have in common with its connections.
#[derive(Clone, Debug)]
pub(in crate::transport) struct NodeContext {
    /// A worker, or the coordinator.
    pub(in crate::transport) me: u32,
    /// Numbers in a vector.
    pub(in crate::transport) length: usize,
    /// The format of numbers on the wire.
    pub(in crate::transport) format: NumberFormat,
    /// Whether digests are of bits, as a collective takes them.
    pub(in crate::transport) of_bits: bool,
    pub(in crate::transport) blocks: Blocks,
    pub(in crate::transport) vectors: Vectors,
    pub(in crate::transport) buffers: ReassemblyBuffers,
    /// How many sums are kept, for those who lack them.
    pub(in crate::transport) kept_max: usize,
}

#[cfg(test)]
impl NodeContext {
    pub(super) fn of_tests(me: u32, length: usize) -> Self {
        Self {
            me,
            length,
            format: NumberFormat::F32,
            of_bits: false,
            blocks: Blocks::new(length),
            vectors: Vectors::default(),
            buffers: ReassemblyBuffers::default(),
            kept_max: 4,
        }
    }
}

/// The exchanges of one node.
#[derive(Debug)]
pub(super) struct NodeExchanges {
    context: NodeContext,
    open: BTreeMap<Key, Open>,
    sums: SharedSums,
    /// Steps below this one take no new exchange.
    first: Step,
}

impl NodeExchanges {
    pub(super) fn new(context: NodeContext) -> Self {
        let sums = Arc::new(Mutex::new(SumStore::new(context.kept_max)));
        Self { context, open: BTreeMap::new(), sums, first: Step(0) }
    }

    /// The sums that are kept, for others to look at.
    pub(super) fn sums(&self) -> SharedSums {
        Arc::clone(&self.sums)
    }

    /// Exchanges under way and sums that are kept.
    pub(super) fn len(&self) -> usize {
        self.open.len() + lock(&self.sums).len()
    }

    fn entry(&mut self, key: Key, now: Instant) -> &mut Open {
        let NodeContext { me, length, blocks, vectors, buffers, .. } = &self.context;
        self.open.entry(key).or_insert_with(|| {
            let out = Arc::new(ReassemblyBuffer::new(vectors.take(*length)));
            buffers.register(key.0, key.1, &out);
            let part = ExchangePart::listening(*me, key.0, key.1, out, blocks.clone());
            Open { part, planned: false, progressed: now, early: Vec::new() }
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
        self.supersede(key.0, key.1);
        if self.sum(key.0, key.1).is_some() {
            return Vec::new();
        }
        self.entry(key, now);
        let Self { context, open, .. } = self;
        let Some(open) = open.get_mut(&key).filter(|open| !open.planned) else { return Vec::new() };
        (open.planned, open.progressed) = (true, now);
        out.extend(open.part.join(plan, context.format, held));
        std::mem::take(&mut open.early)
            .into_iter()
            .filter_map(|(header, from, block)| open.part.term(&header, from, block).err())
            .collect()
    }

    /// An attempt at a step is begun: older ones are given up, and what it was for another
    /// coordinator.
    pub(super) fn supersede(&mut self, step: Step, attempt: u32) {
        self.open.retain(|other, _| other.0 != step || other.1 >= attempt);
        let mut sums = lock(&self.sums);
        if sums.is_from_before((step, attempt)) {
            sums.remove((step, attempt)).into_iter().for_each(|sum| self.context.vectors.give(sum));
        }
    }

    /// Takes in a chunk of a term or a sum.
    pub(super) fn chunk(
        &mut self,
        header: &Header,
        from: u32,
        block: Block,
        now: Instant,
    ) -> Result<(), String> {
        let key = (Step(header.number), header.attempt);
        let newer = self.open.keys().any(|other| other.0 == key.0 && other.1 > key.1);
        let whole = {
            let sums = lock(&self.sums);
            sums.get(key).is_some() && !sums.is_from_before(key)
        };
        if newer || key.0 < self.first || whole {
            self.context.blocks.give(block);
            return Ok(());
        }
        let early_max = 2 * chunks(self.context.length) + 64;
        // Whoever takes over a state meanwhile may have been told its part already.
        let planned = self.open.get(&key).is_some_and(|open| open.planned);
        let most = self.first.0 + 2 * self.context.kept_max as u64 + 64;
        let ahead = !planned && key.0.0 > most;
        if ahead {
            return Err(format!(
                "a chunk of {} while steps from {} on are under way",
                key.0, self.first
            ));
        }
        let open = self.entry(key, now);
        open.progressed = now;
        match header.kind {
            Kind::Sum => open.part.summed(header, from, block),
            Kind::Control | Kind::State | Kind::Result => {
                Err(format!("a chunk of kind {:?} belongs to no exchange", header.kind))
            }
            _ if open.planned => open.part.term(header, from, block),
            _ if open.early.len() < early_max => {
                open.early.push((*header, from, block));
                Ok(())
            }
            _ => Err("too many chunks came before their exchange was announced".into()),
        }
    }

    /// Takes in a chunk of a sum that was read into the place where it belongs.
    pub(super) fn placed(
        &mut self,
        header: &Header,
        from: u32,
        slot: &WriteSlot,
        now: Instant,
    ) -> Result<(), String> {
        if let Some(open) = self.open.get_mut(&(Step(header.number), header.attempt))
            && open.part.placed(header, slot)
        {
            open.progressed = now;
            return Ok(());
        }
        // The exchange may have been begun anew meanwhile.
        let mut block = self.context.blocks.take(header.count(), header.format);
        match slot.with(|bytes| block.bytes_mut().copy_from_slice(bytes)) {
            Some(()) => self.chunk(header, from, block, now),
            None => {
                self.context.blocks.give(block);
                Ok(())
            }
        }
    }

    /// Sums what can be summed, one chunk; false if there is nothing.
    pub(super) fn work(&mut self, out: &mut Vec<Outgoing>) -> bool {
        let next = self.open.values_mut().find_map(|open| open.part.sum_next());
        let worked = next.is_some();
        out.extend(next.into_iter().flatten());
        worked
    }

    /// The sums that became whole.
    pub(super) fn finished(&mut self) -> Vec<Sum> {
        let (whole, open): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.open).into_iter().partition(|(_, open)| open.part.is_whole());
        self.open = open;
        let done: Vec<Sum> =
            whole.into_values().map(|open| open.part.finish(self.context.of_bits)).collect();
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
        let spent = lock(&self.sums).insert(sum);
        spent.into_iter().for_each(|vector| self.context.vectors.give(vector));
    }

    pub(super) fn sum(&self, step: Step, attempt: u32) -> Option<Sum> {
        lock(&self.sums).get((step, attempt)).cloned()
    }

    /// Whether a sum is whole here.
    pub(super) fn is_whole(&self, key: Key) -> bool {
        lock(&self.sums).get(key).is_some()
    }

    /// Whether a sum with these bytes is kept; one with other bytes is thrown away.
    pub(super) fn has(&self, step: Step, attempt: u32, digest: u64) -> bool {
        lock(&self.sums).has((step, attempt), digest)
    }

    /// Forgets a sum that is to be made again.
    pub(super) fn forget_sum(&self, step: Step, attempt: u32) {
        let spent = lock(&self.sums).remove((step, attempt));
        spent.into_iter().for_each(|vector| self.context.vectors.give(vector));
    }

    /// Whether a sum is under way here.
    pub(super) fn is_open(&self, step: Step, attempt: u32) -> bool {
        self.open.contains_key(&(step, attempt))
    }

    /// The chunks of a sum that is kept.
    pub(super) fn give(&self, step: Step, attempt: u32) -> Option<Vec<Frame>> {
        let sum = self.sum(step, attempt)?;
        let vector = sum.vector.as_ref()?;
        Some(chunks_of(&sum, vector, 0, self.context.length).collect())
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

    /// Goes on at another step, whose own exchange may be under way.
    pub(super) fn moved(&mut self, next: Step) {
        self.first = next;
        self.open.retain(|key, _| key.0 >= next);
    }

    /// What a node is owed of all exchanges under way.
    pub(super) fn owed_to(
        &self,
        node: u32,
        held: impl Fn(Step, What) -> Option<Arc<Vec<f32>>>,
    ) -> Vec<Frame> {
        let planned = self.open.iter().filter(|(_, open)| open.planned);
        planned.flat_map(|(key, open)| open.part.owed_to(node, |what| held(key.0, what))).collect()
    }

    /// Gives up everything under way. Sums are kept, for steps that are decided; a coordinator that
    /// was restarted may make some of them again.
    pub(super) fn reset(&mut self) {
        self.open.clear();
        lock(&self.sums).connection_lost();
    }

    /// Exchanges for which nothing has come for so long, and whose chunks are missing.
    pub(super) fn stalled(&self, now: Instant, patience: Duration) -> Vec<(Step, u32, Vec<u32>)> {
        let old = self.open.iter().filter(|(_, open)| {
            open.planned && now.saturating_duration_since(open.progressed) > patience
        });
        old.map(|((step, attempt), open)| (*step, *attempt, open.part.waits_for())).collect()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do: only differences count")]
mod tests {
    use super::*;
    use crate::ids::Worker;
    use crate::transport::wire::{CHUNK, COORDINATOR, Owner, chunk_range};
    use crate::transport::{Piece, Summand};
    use std::collections::BTreeSet;

    /// A worker that takes over a state goes on receiving the sum of the step that comes after it.
    #[test]
    fn a_sum_under_way_outlives_a_state() {
        let length = 2 * CHUNK;
        let mut node = NodeExchanges::new(NodeContext::of_tests(1, length));
        let blocks = node.context.blocks.clone();
        let come = |node: &mut NodeExchanges, step: u64, chunk: usize| {
            let range = chunk_range(chunk, length);
            let header = Header::chunk(Kind::Sum, NumberFormat::F32, range.start, range.len())
                .of_step(Step(step), 0, 0);
            node.chunk(&header, 0, blocks.take(range.len(), NumberFormat::F32), Instant::now())
                .unwrap();
        };
        come(&mut node, 6, 0);
        come(&mut node, 7, 0);
        node.moved(Step(7));
        come(&mut node, 6, 1);
        come(&mut node, 7, 1);
        assert_eq!(node.finished().iter().map(|sum| sum.step).collect::<Vec<_>>(), [Step(7)]);
    }

    /// A coordinator that was restarted can come to a step that was held before, and not applied by
    /// anybody.
    #[test]
    fn a_step_is_summed_again_for_another_coordinator() {
        let mut node = NodeExchanges::new(NodeContext::of_tests(0, 3));
        let key = (Step(7), 0);
        let sends = |node: &mut NodeExchanges| {
            let holders = vec![Piece { worker: Worker(0), what: What::Sum }];
            let owners = vec![Owner { node: COORDINATOR, start: 0, end: 1 }];
            let terms = vec![Summand { weight: 1.0, holders }];
            let mut out = Vec::new();
            let plan = Plan {
                step: key.0,
                attempt: key.1,
                places: Vec::new(),
                terms,
                owners,
                receivers: vec![0, COORDINATOR],
            };
            let wrong =
                node.begin(plan, |_| Some(Arc::new(vec![1.0; 3])), Instant::now(), &mut out);
            assert!(wrong.is_empty());
            out.len()
        };
        node.keep(Sum {
            step: key.0,
            attempt: key.1,
            vector: Some(Arc::new(vec![2.0; 3])),
            digest: 5,
            finite: true,
            spoilt: BTreeSet::new(),
        });
        assert_eq!(sends(&mut node), 0, "it is whole");
        node.reset();
        assert!(node.has(key.0, key.1, 5), "if it is decided, it is applied");
        assert_eq!(sends(&mut node), 1);
        assert!(!node.has(key.0, key.1, 5) && node.is_open(key.0, key.1));
    }
}
