//! One sum made by several nodes: what each of them sends, sums and gathers. Chunks in, chunks out;
//! no socket.
//!
//! Every owner sums its chunks of all terms, in the order of the terms, and sends the sums to all
//! receivers. With one owner that is a star; with the workers as owners it is a direct
//! reduce-scatter and all-gather among them.
//!
//! Of results that are expected, owners ask for what is final; of results that are there, one
//! holder of each sends it unasked ([`ExchangePart::join`]). Where a worker is lost while results
//! are expected, another exchange carries that one on ([`ExchangePart::carry_on`]).

use super::adder::{Adder, Content, Node};
use super::announced::Announcements;
use super::assembly::{Assembly, Finiteness};
use super::block::{Block, Blocks};
use super::context::NodeContext;
use super::events::{WorkerEffect, chunk_for};
use super::frame::{Body, Frame};
use super::gathering::{TermAt, TermBuffer, budget};
use crate::gpu::{SumCheck, digest_of_chunk, nonfinite_mask};
use crate::ids::Task;
use crate::run::NumberFormat;
use crate::sums::{COORDINATOR, Header, Kind, Owner, PeerMessage, SumPlan, chunk_range, chunks};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A node's own vectors, as it sums them.
struct OwnTerms<'a> {
    announced: &'a Announcements,
    blocks: &'a Blocks,
    format: NumberFormat,
    length: usize,
}

impl OwnTerms<'_> {
    fn content(&self, own: Task, chunk: usize) -> Option<Content> {
        let Body::Slice(numbers, range) = self.announced.chunk(own, chunk, self.length)? else {
            return None;
        };
        // With a narrow format on the wire, owners use the rounded values of their own terms too.
        if self.format == NumberFormat::Bf16 {
            let mut block = self.blocks.take(range.len(), NumberFormat::Bf16);
            block.fill(&numbers[range]);
            return Some(Content::Came(block));
        }
        Some(Content::Slice(numbers, range))
    }
}

/// One node's part in an exchange: what it sends of its own terms, and what it sums.
///
/// # How to drive it
/// A part is made by a plan ([`ExchangePart::join`]), or by one that carries on another exchange
/// ([`ExchangePart::carry_on`]). It is told what becomes final here ([`ExchangePart::is_final`]),
/// what other nodes say ([`ExchangePart::hear`]) and which chunks of terms come
/// ([`ExchangePart::term`]), and its [`TermBuffer`] who is lost and that time goes by. After each
/// of these, [`ExchangePart::asks`] gives what is asked of others. As long as there is a chunk all
/// of whose terms are here, [`ExchangePart::sum_next`] sums it into the [`Assembly`] of the
/// exchange.
#[derive(Debug)]
pub(super) struct ExchangePart {
    me: u32,
    length: usize,
    format: NumberFormat,
    blocks: Blocks,
    plan: SumPlan,
    /// The terms of the chunks that this node sums.
    pub(super) gathering: TermBuffer,
}

impl ExchangePart {
    fn new(
        context: &NodeContext,
        plan: SumPlan,
        owners: Vec<Owner>,
        gathering: TermBuffer,
    ) -> Self {
        let NodeContext { me, length, format, ref blocks, .. } = *context;
        let plan = SumPlan { owners, ..plan };
        Self { me, length, format, blocks: blocks.clone(), plan, gathering }
    }

    /// Takes part by a plan, with what is final of this node's own vectors.
    ///
    /// What arrived of the sum before the plan is kept.
    pub(super) fn join(
        context: &NodeContext,
        plan: SumPlan,
        sum: &mut Assembly,
        announced: &Announcements,
        out: &mut Vec<WorkerEffect>,
    ) -> Self {
        let (me, count) = (context.me, chunks(context.length));
        let owners = plan.all_owners(count);
        sum.plan(&owners);
        let own = (0..count).filter(|chunk| sum.owns(me, *chunk));
        let terms = TermAt::of(&plan.terms, me);
        let gathering = TermBuffer::new(me, terms, own, budget(count));
        let are_there = plan.is_of_results_that_are_there();
        let mut part = Self::new(context, plan, owners, gathering);
        if are_there {
            part.send_own_terms(announced, out);
        }
        for (term, own) in part.own_terms() {
            let chunks = announced.final_chunks(own);
            // What all know to be there need not be said.
            let known = if are_there { chunks.clone() } else { 0..0 };
            part.is_final(term, (known, chunks), out);
        }
        part
    }

    /// Goes on by a plan that carries on an exchange without a worker that was lost, with the part
    /// in that one, unless its sum was whole here.
    ///
    /// What this node has stays, but for the sums of chunks that have another owner now. No node
    /// knows which others got them of the lost one, and all must have the same bits. Where the new
    /// owner of such a chunk has that sum, it is the one that all get.
    pub(super) fn carry_on(
        context: &NodeContext,
        plan: SumPlan,
        before: Option<Self>,
        sum: &mut Assembly,
        announced: &Announcements,
        out: &mut Vec<WorkerEffect>,
    ) -> Self {
        let (me, count) = (context.me, chunks(context.length));
        let moved = plan.moved(count);
        let owners = plan.all_owners(count);
        sum.plan(&owners);
        // By the new owners, which are set by now.
        let (mine, others): (Vec<usize>, Vec<usize>) =
            moved.into_iter().partition(|chunk| sum.owns(me, *chunk));
        others.into_iter().for_each(|chunk| sum.reopen(chunk));
        let (summed, open): (Vec<usize>, Vec<usize>) =
            mine.into_iter().partition(|chunk| sum.digests()[*chunk].is_some());
        let terms = TermAt::of(&plan.terms, me);
        let before = before.map(|part| part.gathering);
        let gathering = match before.filter(|before| before.own_terms().len() == terms.len()) {
            Some(before) => before.carry_on(terms, &open),
            // It had the whole sum, or was told of other terms.
            None => TermBuffer::new(me, terms, open.into_iter(), budget(count)),
        };
        let mut part = Self::new(context, plan, owners, gathering);
        for (term, own) in part.own_terms() {
            // All owners are told: some may have heard of a part of it only, or of nothing.
            part.is_final(term, (0..0, announced.final_chunks(own)), out);
        }
        for frame in summed.into_iter().map(|chunk| part.sum_frame(chunk, sum)) {
            out.extend(part.to_others(&frame));
        }
        part
    }

    /// Of each term one holder sends every owner its chunks, since all of them are there.
    fn send_own_terms(&mut self, announced: &Announcements, out: &mut Vec<WorkerEffect>) {
        let owners = &self.plan.owners;
        if let Some(place) = owners.iter().position(|owner| owner.node == self.me) {
            for term in 0..self.plan.terms.len() {
                self.gathering.is_sent(term, self.plan.sender(place, term));
            }
        }
        let own = self.own_terms();
        let longest = owners.iter().map(|owner| owner.end - owner.start).max().unwrap_or(0);
        // A chunk for every owner in turn, so that all of them have something to sum from the
        // start.
        for row in 0..longest {
            let others = owners.iter().enumerate().filter(|(_, owner)| owner.node != self.me);
            for (place, owner) in others.filter(|(_, owner)| owner.start + row < owner.end) {
                let mine =
                    own.iter().filter(|(at, _)| self.plan.sender(place, *at) == Some(self.me));
                let frames =
                    mine.filter_map(|own| self.own_chunk(*own, owner.start + row, announced));
                out.extend(frames.map(|frame| chunk_for(owner.node, frame)));
            }
        }
    }

    /// The terms that this node has, or will have.
    pub(super) fn own_terms(&self) -> Vec<(usize, Task)> {
        let terms = self.gathering.own_terms().enumerate();
        terms.filter_map(|(at, own)| Some((at, own?))).collect()
    }

    /// Whether this is a sum of results that may still have to be computed.
    pub(super) fn is_expected(&self) -> bool {
        !self.plan.is_of_results_that_are_there()
    }

    /// These chunks of a term are final here, of which `known` were before: the owners
    /// are told that they can ask for them.
    pub(super) fn is_final(
        &mut self,
        term: usize,
        (known, chunks): (Range<usize>, Range<usize>),
        out: &mut Vec<WorkerEffect>,
    ) {
        self.gathering.is_final(term, chunks.clone());
        // A word that says nothing new would cost every owner a message.
        if chunks != known {
            let to: BTreeSet<u32> = self.plan.owners.iter().map(|owner| owner.node).collect();
            let to = to.into_iter().filter(|node| *node != self.me).collect();
            out.push(WorkerEffect::TellPeers { to, message: self.ready(term, chunks) });
        }
    }

    fn ready(&self, term: usize, chunks: Range<usize>) -> PeerMessage {
        let id = self.plan.sum;
        let term = self.plan.place(term);
        PeerMessage::Ready { sum: id, term, start: chunks.start, end: chunks.end }
    }

    fn own_chunk(
        &self,
        (term, own): (usize, Task),
        chunk: usize,
        announced: &Announcements,
    ) -> Option<Frame> {
        let body = announced.chunk(own, chunk, self.length)?;
        let range = chunk_range(chunk, self.length);
        let id = self.plan.sum;
        let header = Header::chunk(Kind::Term, NumberFormat::F32, range.start, range.len())
            .of_sum(id, self.plan.place(term));
        Some(Frame { header, body })
    }

    /// Another worker says what it has of a term, or asks for it.
    pub(super) fn hear(
        &mut self,
        from: u32,
        message: &PeerMessage,
        sum: &Assembly,
        announced: &Announcements,
        out: &mut Vec<WorkerEffect>,
    ) -> Result<(), String> {
        match *message {
            PeerMessage::Ready { term, start, end, .. } => {
                let count = chunks(self.length);
                if start > end || end > count {
                    return Err(format!("it announces chunks {start}..{end} of {count}"));
                }
                self.gathering.announced(term as usize, from, start..end)
            }
            PeerMessage::Ask { term, chunk, .. } => {
                let frame = self.asked(term, chunk, from, sum, announced)?;
                out.extend(frame.map(|frame| chunk_for(from, frame)));
                Ok(())
            }
            PeerMessage::Peer { .. } => Ok(()),
        }
    }

    /// The chunk of a term that an owner asks for.
    fn asked(
        &self,
        term: u32,
        chunk: usize,
        by: u32,
        sum: &Assembly,
        announced: &Announcements,
    ) -> Result<Option<Frame>, String> {
        let count = self.plan.terms.len();
        // A node that sums nothing knows some of the terms only, under the numbers of all.
        let term = (0..count).find(|at| self.plan.place(*at) == term).unwrap_or(count);
        let Some(own) = self.gathering.own(term).filter(|_| sum.owns(by, chunk)) else {
            return Err(format!(
                "{by} asks for term {term}, chunk {chunk}, which is not its to sum"
            ));
        };
        Ok(self.own_chunk((term, own), chunk, announced))
    }

    /// What this node asks others for now.
    pub(super) fn asks(&mut self, now: Instant, out: &mut Vec<WorkerEffect>) {
        let id = self.plan.sum;
        let ask = |(to, term, chunk): (u32, usize, usize)| {
            let message = PeerMessage::Ask { sum: id, term: term as u32, chunk };
            WorkerEffect::TellPeers { to: vec![to], message }
        };
        out.extend(self.gathering.asks(now).into_iter().map(ask));
    }

    /// What another node is to get of this one, as far as it is here: for one to which it may not
    /// have come through.
    pub(super) fn owed_to(
        &self,
        node: u32,
        sum: &Assembly,
        announced: &Announcements,
    ) -> Vec<WorkerEffect> {
        let owns = self.plan.owners.iter().any(|owner| owner.node == node);
        let mine = self.own_terms().into_iter().filter(|_| owns);
        // Of what it lacks it asks for again, knowing what is here.
        let word = |(term, own)| {
            let chunks = announced.final_chunks(own);
            let message = self.ready(term, chunks.clone());
            (!chunks.is_empty()).then(|| WorkerEffect::TellPeers { to: vec![node], message })
        };
        let is_owed = |chunk: &usize| {
            let receives = self.plan.receivers.contains(&node);
            receives && sum.owns(self.me, *chunk) && sum.digests()[*chunk].is_some()
        };
        let sums = (0..sum.digests().len()).filter(is_owed);
        let sums = sums.map(|chunk| chunk_for(node, self.sum_frame(chunk, sum)));
        mine.filter_map(word).chain(sums).collect()
    }

    /// A frame for all others that get the sum.
    fn to_others(&self, frame: &Frame) -> impl Iterator<Item = WorkerEffect> {
        let others = self.plan.receivers.iter().filter(|node| **node != self.me);
        others.map(|node| chunk_for(*node, frame.clone()))
    }

    /// A chunk of the sum that is here, as it is sent.
    fn sum_frame(&self, chunk: usize, sum: &Assembly) -> Frame {
        let mut block = self.blocks.take(chunk_range(chunk, self.length).len(), self.format);
        let finite = sum.buffer().read(chunk, |sum| {
            block.fill(sum);
            nonfinite_mask(sum) == 0.0
        });
        self.frame_of(chunk, block, SumCheck { digest: 0, finite })
    }

    fn frame_of(&self, chunk: usize, block: Block, SumCheck { digest, finite }: SumCheck) -> Frame {
        let range = chunk_range(chunk, self.length);
        let id = self.plan.sum;
        let header = Header::chunk(Kind::Sum, self.format, range.start, range.len()).of_sum(id, 0);
        let header = Header { finite, digest, ..header };
        Frame { header, body: Body::Block(Arc::new(block)) }
    }

    /// Takes in a chunk of a term, by their numbers, which is to be summed here.
    pub(super) fn term(
        &mut self,
        (chunk, term): (usize, usize),
        from: u32,
        block: Block,
        announced: &Announcements,
        now: Instant,
    ) -> Result<(), String> {
        let came = self.gathering.came((chunk, term), from, block, now)?;
        came.into_iter().for_each(|block| self.blocks.give(block));
        for chunk in self.gathering.to_condense(chunk) {
            let own: Vec<Option<Task>> = self.gathering.own_terms().collect();
            let (range, blocks) = (chunk_range(chunk, self.length), &self.blocks);
            let mine = OwnTerms { announced, blocks, format: self.format, length: self.length };
            let mine = |term: usize| mine.content(own[term]?, chunk);
            self.gathering.condense(chunk, &Adder { mine: &mine, blocks, count: range.len() });
        }
        Ok(())
    }

    /// Sums one chunk that is ready; gives back what is sent of it, none if no chunk is ready.
    pub(super) fn sum_next(
        &mut self,
        sum: &mut Assembly,
        announced: &Announcements,
    ) -> Option<Vec<WorkerEffect>> {
        let (chunk, nodes) = self.gathering.next()?;
        let summed = self.fold(chunk, nodes, &mut sum.finiteness, announced);
        let publish = |(block, folded)| self.publish(chunk, block, folded, sum);
        Some(summed.map(publish).unwrap_or_default())
    }

    /// Sums a chunk of its terms, if it can be: else some are asked of others.
    fn fold(
        &mut self,
        chunk: usize,
        nodes: Vec<Node>,
        finiteness: &mut Finiteness,
        announced: &Announcements,
    ) -> Option<(Block, SumCheck)> {
        let (blocks, count) = (&self.blocks, chunk_range(chunk, self.length).len());
        let mine = OwnTerms { announced, blocks, format: self.format, length: self.length };
        let mine = |term: usize| mine.content(self.gathering.own(term)?, chunk);
        // It is folded into a block and not into its place, since it is sent from there too, while
        // the place may be read by others.
        let mut block = blocks.take(count, NumberFormat::F32);
        let adder = Adder { mine: &mine, blocks, count };
        let mut nodes = match adder.fold(nodes, block.floats_mut())? {
            Ok(folded) => return Some((block, folded)),
            Err(nodes) => nodes,
        };
        // Looked for only now: a second pass over every term would cost as much as the sum.
        let refused = adder.refuse(&mut nodes, self.format);
        finiteness.note_terms_of(refused.iter().map(|(_, holder)| *holder));
        if self.me == COORDINATOR {
            // It asks no other node: it sees that its sum is not finite once the sum is whole.
            adder.spend(nodes);
            block.floats_mut().fill(f32::NAN);
            return Some((block, SumCheck { digest: 0, finite: false }));
        }
        blocks.give(block);
        if refused.is_empty() {
            adder.spend(nodes);
            finiteness.note_sums_of(self.me);
        } else {
            self.gathering.take_back(chunk, nodes, &refused);
        }
        None
    }

    /// Keeps the sum of a chunk; gives what is sent of it.
    fn publish(
        &self,
        chunk: usize,
        mut block: Block,
        mut folded: SumCheck,
        sum: &mut Assembly,
    ) -> Vec<WorkerEffect> {
        // All must hold the same bits, the owner too: it keeps what the others get.
        let narrow = (self.format == NumberFormat::Bf16).then(|| {
            let mut narrow = self.blocks.take(block.count, NumberFormat::Bf16);
            narrow.fill(block.floats_mut());
            narrow.unpack(block.floats_mut());
            folded = SumCheck {
                digest: digest_of_chunk(block.bytes()),
                finite: nonfinite_mask(block.floats_mut()) == 0.0,
            };
            narrow
        });
        // The coordinator sees what it is made of, and says so. No node could tell whether a
        // worker's terms were not finite, or whether it lies.
        if !folded.finite && self.me != COORDINATOR {
            if sum.finiteness.of.terms_of.is_empty() {
                sum.finiteness.note_sums_of(self.me);
            }
            narrow.into_iter().chain([block]).for_each(|block| self.blocks.give(block));
            return Vec::new();
        }
        sum.put(chunk, block.floats_mut(), folded);
        if let Some(narrow) = narrow {
            self.blocks.give(std::mem::replace(&mut block, narrow));
            // Of other bytes than those that go out; the connection takes one of these.
            folded.digest = 0;
        }
        self.to_others(&self.frame_of(chunk, block, folded)).collect()
    }

    /// Whose chunks are missing.
    pub(super) fn waits_for(&self, sum: &Assembly) -> Vec<u32> {
        let mut nodes: Vec<u32> = Vec::new();
        for owner in self.plan.owners.iter().filter(|owner| owner.node != self.me) {
            // One chunk is enough to wait for a node.
            let is_missing = |chunk: usize| sum.digests()[chunk].is_none();
            nodes.extend((owner.start..owner.end).any(is_missing).then_some(owner.node));
        }
        nodes.extend(self.gathering.waits_for());
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}
