//! All exchanges a node takes part in, and the sums it keeps of those that are over.

use super::announced::Announcements;
use super::assembly::Assembly;
use super::block::Block;
use super::context::NodeContext;
use super::early::{EarlyBuffer, EarlyMessage};
use super::events::WorkerEffect;
use super::part::ExchangePart;
use super::reassembly::WriteSlot;
use super::store::{SharedSums, Sum};
use crate::gpu::digest_of_chunk;
use crate::ids::{Piece, Step, Task, Worker};
use crate::passes::{self, PassPlace};
use crate::sums::{
    COORDINATOR, Header, Kind, NotFinite, Owner, PeerMessage, SumId, SumPlan, chunk_range, chunks,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An exchange under way.
#[derive(Debug)]
struct OpenExchange {
    sum: Assembly,
    /// None while nothing but the sum is received, since no plan has been told.
    part: Option<ExchangePart>,
    /// The sum that it began as: what is sent by a node that knows only that one counts too.
    since: SumId,
    /// Not of a sum that is only expected: what does not come of one that is known to be its
    /// step's is waited for.
    confirmed: bool,
    /// When a chunk came last.
    progressed: Instant,
}

/// The exchanges of one node.
///
/// # How to drive it
/// A plan begins an exchange ([`NodeExchanges::begin`]). Chunks and words of other nodes are told
/// when they come, also before the plan ([`NodeExchanges::chunk`], [`NodeExchanges::placed`],
/// [`NodeExchanges::hear`]), and what becomes final here by [`NodeExchanges::announce`].
/// [`NodeExchanges::work`] sums a chunk, and [`NodeExchanges::finished`] gives the sums that have
/// become whole and keeps them: who needs one asks [`SharedSums`]. What is sent to others is
/// appended to `out`. A step takes nothing in any more once it is told that it is
/// [decided](NodeExchanges::decided) or [applied](NodeExchanges::applied).
#[derive(Debug)]
pub(super) struct NodeExchanges {
    context: NodeContext,
    open: BTreeMap<SumId, OpenExchange>,
    /// What came of exchanges that the coordinator has not told of.
    early: EarlyBuffer,
    /// The sums that are whole.
    pub(super) sums: SharedSums,
    /// Steps below this one take no new exchange.
    first: Step,
    /// What is final of the node's own results.
    pub(super) announced: Announcements,
    /// When something happened last.
    latest: Option<Instant>,
}

impl NodeExchanges {
    pub(super) fn new(context: NodeContext) -> Self {
        let NodeContext { length, kept_max, ref vectors, .. } = context;
        let sums = SharedSums::new(kept_max, length, vectors.clone());
        let announced = Announcements::default();
        let early = EarlyBuffer::new(length, kept_max);
        let open = BTreeMap::new();
        Self { context, open, early, sums, first: Step(0), announced, latest: None }
    }

    /// Exchanges under way and sums that are kept.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.sums.len()
    }

    /// An exchange of which nothing but the sum is received, as long as no plan is told.
    fn listen(&mut self, id: SumId, now: Instant) -> &mut OpenExchange {
        let NodeContext { me, length, vectors, buffers, .. } = &self.context;
        self.open.entry(id).or_insert_with(|| {
            let sum = Assembly::new(*me, vectors.take(*length));
            buffers.register(id, sum.buffer());
            OpenExchange { sum, part: None, since: id, confirmed: true, progressed: now }
        })
    }

    /// Takes part in an exchange; older ones of the step are given up.
    pub(super) fn begin(
        &mut self,
        plan: SumPlan,
        held: impl Fn(Task) -> Option<Arc<Vec<f32>>>,
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) -> Vec<String> {
        let id = plan.sum;
        let (mut before, mut counts_from) = (None, id);
        if let Some(attempt) = plan.predecessor.as_ref().map(|before| before.attempt) {
            let last = SumId { attempt, ..id };
            let open = self.open.remove(&last).filter(|open| open.part.is_some());
            counts_from = open.as_ref().map_or(last, |open| open.since);
            let of_sum = || {
                let sum = Assembly::of_sum(self.context.me, self.sums.take(last)?);
                Some((sum?, None))
            };
            before = open.map(|open| (open.sum, open.part)).or_else(of_sum);
        }
        let is_of = |other: &SumId| (counts_from..=id).contains(other);
        let came = self.early.take(is_of);
        self.supersede(id);
        // It came whole from others before the plan did, or is told again over a new connection.
        if self.sums.is_whole(id) {
            return Vec::new();
        }
        self.latest = Some(now);
        // A plan that is told twice is the same plan.
        if self.listen(id, now).part.is_some() {
            return Vec::new();
        }
        let Self { context, open, announced, .. } = self;
        let Some(open) = open.get_mut(&id) else { return Vec::new() };
        open.confirmed = plan.is_of_results_that_are_there();
        open.progressed = now;
        if let Some((mut sum, part)) = before {
            context.buffers.register(id, sum.buffer());
            let part = ExchangePart::carry_on(context, plan, part, &mut sum, announced, out);
            sum.absorb(&open.sum);
            (open.sum, open.part) = (sum, Some(part));
            open.since = counts_from;
        } else {
            let me = Worker(context.me);
            for Piece { task, .. } in plan.terms.iter().filter_map(|term| term.piece_of(me)) {
                if let Some(whole) = held(task) {
                    announced.add(task, 0..chunks(context.length), whole);
                }
            }
            open.part = Some(ExchangePart::join(context, plan, &mut open.sum, announced, out));
        }
        self.take_in(id, came, now, out)
    }

    /// Takes in what came of an exchange before this node was told of it; gives what was wrong.
    fn take_in(
        &mut self,
        id: SumId,
        came: Vec<(u32, EarlyMessage)>,
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) -> Vec<String> {
        // Announcements first: chunks that came early are then asked for no more.
        let (words, chunks): (Vec<_>, Vec<_>) =
            came.into_iter().partition(|(_, came)| matches!(came, EarlyMessage::Word(_)));
        let mut wrong = Vec::new();
        for (from, came) in words.into_iter().chain(chunks) {
            wrong.extend(self.deliver(id, from, came, now, out).err());
        }
        self.ask(id, now, out);
        wrong
    }

    /// Asks others for what an exchange needs of them now.
    fn ask(&mut self, id: SumId, now: Instant, out: &mut Vec<WorkerEffect>) {
        let part = self.open.get_mut(&id).and_then(|open| open.part.as_mut());
        part.into_iter().for_each(|part| part.asks(now, out));
    }

    /// The chunks of a sum come of these nodes too, or of these alone; gives what was wrong with
    /// those that have come.
    pub(super) fn take_sum(
        &mut self,
        id: SumId,
        senders: &[Owner],
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) -> Vec<String> {
        let id = self.current(id);
        if self.is_over(id) {
            return Vec::new();
        }
        self.listen(id, now).sum.come_of(senders);
        let came = self.early.take(|other| *other == id);
        self.take_in(id, came, now, out)
    }

    /// The digests of the chunks of a sum, as far as they are here.
    pub(super) fn digests(&self, id: SumId) -> Vec<Option<u64>> {
        if let Some(open) = self.open.get(&self.current(id)) {
            return open.sum.digests().to_vec();
        }
        let length = self.context.length;
        let vector = self.sums.sum(id).and_then(|sum| sum.vector);
        let digest = |vector: &[f32], chunk| {
            digest_of_chunk(bytemuck::cast_slice(&vector[chunk_range(chunk, length)]))
        };
        let of_chunk = |chunk| vector.as_ref().map(|vector| digest(vector, chunk));
        (0..chunks(length)).map(of_chunk).collect()
    }

    /// The exchange that something is for which is sent for that one: itself, or the one that
    /// carries it on.
    fn current(&self, id: SumId) -> SumId {
        let carries_on = |(other, open): &(&SumId, &OpenExchange)| {
            (open.since..=**other).contains(&id) && open.part.is_some()
        };
        let mut of_step = self.open.range(id.and_later());
        of_step.find(carries_on).map_or(id, |(id, _)| *id)
    }

    /// A step that is summed already is made of what was expected.
    pub(super) fn confirm(&mut self, id: SumId, now: Instant) {
        if let Some(open) = self.open.get_mut(&id) {
            open.confirmed = true;
            open.progressed = now;
        }
        self.sums.confirm(id);
    }

    /// Some chunks of a result of this node's are final, or all of them.
    pub(super) fn announce(
        &mut self,
        task: Task,
        chunks: Range<usize>,
        numbers: Arc<Vec<f32>>,
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) {
        self.latest = Some(now);
        let known = self.announced.final_chunks(task);
        let all = self.announced.add(task, chunks, numbers);
        for part in self.open.values_mut().filter_map(|open| open.part.as_mut()) {
            let own = part.own_terms().into_iter();
            for (term, _) in own.filter(|(_, own)| *own == task) {
                part.is_final(term, (known.clone(), all.clone()), out);
                part.asks(now, out);
            }
        }
    }

    /// Whether a step is summed, while it is computed, of the result of a task.
    pub(super) fn expects(&self, task: Task) -> bool {
        let is_of = |(_, own): &(usize, Task)| *own == task;
        let parts = self.open.values().filter_map(|open| open.part.as_ref());
        let mut expected = parts.filter(|part| part.is_expected());
        expected.any(|part| part.own_terms().iter().any(is_of))
    }

    /// Another worker says what it has of a term, or asks for it.
    pub(super) fn hear(
        &mut self,
        from: u32,
        message: PeerMessage,
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) -> Result<(), String> {
        let id = match &message {
            PeerMessage::Ready { sum, .. } | PeerMessage::Ask { sum, .. } => *sum,
            PeerMessage::Peer { .. } => return Err("it says twice who it is".into()),
        };
        self.latest = Some(now);
        if self.is_over(id) {
            return Ok(());
        }
        let current = self.current(id);
        self.deliver(current, from, EarlyMessage::Word(message), now, out)?;
        self.ask(current, now, out);
        Ok(())
    }

    /// Hands on what has come for an exchange; keeps it where that is not under way, or where the
    /// word of who sends it may still be on its way.
    fn deliver(
        &mut self,
        id: SumId,
        from: u32,
        came: EarlyMessage,
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) -> Result<(), String> {
        let Self { context, open, early, announced, .. } = self;
        match (came, open.get_mut(&id)) {
            (EarlyMessage::Word(message), Some(OpenExchange { sum, part: Some(part), .. })) => {
                part.hear(from, &message, sum, announced, out)
            }
            (EarlyMessage::Chunk(header, block), Some(OpenExchange { sum, progressed, .. }))
                if header.kind == Kind::Sum && sum.comes_of(from, &header) =>
            {
                *progressed = now;
                sum.came(&header, from, block, &context.blocks)
            }
            (
                EarlyMessage::Chunk(header, block),
                Some(OpenExchange { sum, part: Some(part), progressed, .. }),
            ) if header.kind == Kind::Term => {
                *progressed = now;
                let what = (sum.chunk_of_term(&header)?, header.piece as usize);
                part.term(what, from, block, announced, now)?;
                part.asks(now, out);
                Ok(())
            }
            (came, _) => {
                let named = match &came {
                    EarlyMessage::Word(_) => id,
                    EarlyMessage::Chunk(header, _) => header.sum(),
                };
                let mut of_step = open.range(SumId::first(id.step).and_later());
                let last = of_step.next_back().map(|(last, _)| *last);
                early.put(named, self.first, last, from, came)
            }
        }
    }

    /// Whether nothing is taken in for a sum any more: it is here, it is begun again, or its step
    /// is over. One that was made for an earlier coordinator may be made again.
    fn is_over(&self, id: SumId) -> bool {
        let replaces = |(other, open): (&SumId, &OpenExchange)| {
            other.step == id.step && open.part.is_some() && open.since > id
        };
        // Only by a plan: a word of a newer one may come before it, and until then this is the
        // last.
        let newer = self.open.iter().any(replaces);
        newer || id.step < self.first || self.sums.is_current(id)
    }

    /// The connection to a node is over.
    pub(super) fn disconnected(&mut self, node: u32, now: Instant, out: &mut Vec<WorkerEffect>) {
        for part in self.open.values_mut().filter_map(|open| open.part.as_mut()) {
            part.gathering.disconnected(node);
            part.asks(now, out);
        }
    }

    /// Asks others for what was asked for in vain.
    pub(super) fn look(&mut self, now: Instant, out: &mut Vec<WorkerEffect>) {
        for part in self.open.values_mut().filter_map(|open| open.part.as_mut()) {
            part.gathering.look(now);
            part.asks(now, out);
        }
    }

    /// A sum of a step is begun: older ones are given up, and what it was for another coordinator.
    pub(super) fn supersede(&mut self, id: SumId) {
        self.open.retain(|other, _| other.step != id.step || *other >= id);
        self.early.take(|other| other.step == id.step && *other < id);
        if !self.sums.is_current(id) {
            self.sums.forget(id);
        }
    }

    /// Takes in a chunk of a term or a sum.
    pub(super) fn chunk(
        &mut self,
        header: &Header,
        from: u32,
        block: Block,
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) -> Result<(), String> {
        let id = header.sum();
        if self.is_over(id) {
            self.context.blocks.give(block);
            return Ok(());
        }
        if matches!(header.kind, Kind::Control | Kind::State | Kind::Result) {
            return Err(format!("a chunk of kind {:?} belongs to no exchange", header.kind));
        }
        self.latest = Some(now);
        let current = self.current(id);
        // What the coordinator sends of a sum needs no word of it besides.
        if header.kind == Kind::Sum && from == COORDINATOR {
            self.listen(current, now);
        }
        self.deliver(current, from, EarlyMessage::Chunk(*header, block), now, out)
    }

    /// Takes in a chunk of a sum that was read into the place where it belongs.
    pub(super) fn placed(
        &mut self,
        header: &Header,
        from: u32,
        slot: &WriteSlot,
        now: Instant,
        out: &mut Vec<WorkerEffect>,
    ) -> Result<(), String> {
        let id = header.sum();
        let current = self.current(id);
        if let Some(open) = self.open.get_mut(&current)
            && open.sum.comes_of(from, header)
            && open.sum.placed(header, from, slot)
        {
            open.progressed = now;
            return Ok(());
        }
        // The exchange may have been begun again meanwhile.
        let mut block = self.context.blocks.take(header.count(), header.format);
        passes::count(PassPlace::Copy, 2 * block.bytes().len());
        match slot.with(|bytes| block.bytes_mut().copy_from_slice(bytes)) {
            Some(()) => self.chunk(header, from, block, now, out),
            None => {
                self.context.blocks.give(block);
                Ok(())
            }
        }
    }

    /// Sums what can be summed, one chunk; false if there is nothing.
    pub(super) fn work(&mut self, out: &mut Vec<WorkerEffect>) -> bool {
        let Self { open, announced, latest, .. } = self;
        for OpenExchange { sum, part, .. } in open.values_mut() {
            // The oldest step first: it is the one that others wait for.
            if let Some(part) = part
                && let Some(sums) = part.sum_next(sum, announced)
            {
                out.extend(sums);
                // There is room for other terms now.
                // The clock is not asked for every chunk: when something came last is near enough.
                latest.iter().for_each(|now| part.asks(*now, out));
                return true;
            }
        }
        false
    }

    /// Whose numbers have turned out not to be finite, in which exchanges.
    pub(super) fn not_finite(&mut self) -> Vec<(SumId, NotFinite)> {
        let of =
            |(id, open): (&SumId, &mut OpenExchange)| Some((*id, open.sum.finiteness.untold()?));
        self.open.iter_mut().filter_map(of).collect()
    }

    /// The sums that became whole.
    pub(super) fn finished(&mut self) -> Vec<Sum> {
        let whole = |(id, open): (&SumId, &OpenExchange)| open.sum.is_whole().then_some(*id);
        let whole: Vec<SumId> = self.open.iter().filter_map(whole).collect();
        let finish = |id| {
            let OpenExchange { sum, confirmed, .. } = self.open.remove(&id)?;
            let sum = sum.finish(id, confirmed, self.context.of_bits);
            self.sums.push(sum.clone());
            Some(sum)
        };
        whole.into_iter().filter_map(finish).collect()
    }

    /// Whether a sum is under way here.
    pub(super) fn is_open(&self, id: SumId) -> bool {
        self.open.contains_key(&id)
    }

    /// A step is decided: nothing more is taken in for it but its sum, from those who have it.
    pub(super) fn decided(&mut self, step: Step, sum: Option<SumId>) {
        self.open.retain(|id, _| id.step != step || Some(*id) == sum);
        self.early.take(|id| id.step == step && Some(*id) != sum);
        self.sums.decided(step, sum);
    }

    /// Steps below this one are over for this node.
    pub(super) fn applied(&mut self, next: Step) {
        self.first = self.first.max(next);
        self.open.retain(|id, _| id.step >= next);
        self.early.take(|id| id.step < next);
    }

    /// Goes on at another step, whose own exchange may be under way.
    pub(super) fn moved(&mut self, next: Step) {
        self.first = next;
        self.open.retain(|id, _| id.step >= next);
        self.early.take(|id| id.step < next);
    }

    /// What a node is owed of all exchanges under way.
    pub(super) fn owed_to(&self, node: u32) -> Vec<WorkerEffect> {
        let owed = |open: &OpenExchange| {
            open.part.as_ref().map(|part| part.owed_to(node, &open.sum, &self.announced))
        };
        self.open.values().filter_map(owed).flatten().collect()
    }

    /// Gives up everything under way. Sums are kept, for steps that are decided; a coordinator that
    /// was restarted may make some of them again.
    pub(super) fn reset(&mut self) {
        self.open.clear();
        self.early.take(|_| true);
        self.announced.clear();
        // Not forgotten: what is decided is still to be applied, and only a new coordinator knows.
        self.sums.connection_lost();
    }

    /// Exchanges for which nothing has come for so long, and whose chunks are missing.
    pub(super) fn stalled(&self, now: Instant, patience: Duration) -> Vec<(SumId, Vec<u32>)> {
        let waits = |(id, open): (&SumId, &OpenExchange)| {
            let quiet = now.saturating_duration_since(open.progressed);
            let part = open.part.as_ref().filter(|_| open.confirmed && quiet > patience)?;
            Some((*id, part.waits_for(&open.sum)))
        };
        self.open.iter().filter_map(waits).collect()
    }
}

#[cfg(test)]
mod tests;
