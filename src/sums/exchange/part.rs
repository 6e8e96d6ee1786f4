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
use super::announced::{Announcements, Own};
use super::block::{Block, Blocks};
use super::frame::{Body, Frame};
use super::gathering::{Gathering, TermAt, budget};
use super::plan::nodes_of;
use super::reassembly::{ReassemblyBuffer, WriteSlot};
use super::senders::Senders;
use super::store::{Finiteness, Sum};
use crate::gpu::{Folded, digest_of_bits, nonfinite_mask};
use crate::ids::Step;
use crate::run::NumberFormat;
use crate::sums::{Across, COORDINATOR, Header, Kind, NotFinite, Owner, SumPlan, chunks};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// What other nodes are sent.
#[derive(Debug)]
pub(super) enum Outgoing {
    Chunk { to: u32, frame: Frame },
    Tell { to: Vec<u32>, message: Across },
}

/// A node's own vectors, as it sums them.
struct OwnTerms<'a> {
    announced: &'a Announcements,
    blocks: &'a Blocks,
    format: NumberFormat,
    length: usize,
}

impl OwnTerms<'_> {
    fn content(&self, own: Own, chunk: usize) -> Option<Content> {
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

/// One node's part in an exchange.
#[derive(Debug)]
pub(super) struct ExchangePart {
    me: u32,
    plan: SumPlan,
    format: NumberFormat,
    blocks: Blocks,
    /// Which chunks this node sums, and its places among the owners.
    own: Vec<(usize, Owner)>,
    senders: Senders,
    /// The terms of own chunks.
    gathering: Gathering,
    out: Arc<ReassemblyBuffer>,
    digests: Vec<Option<u64>>,
    left: usize,
    finiteness: Finiteness,
}

impl ExchangePart {
    /// A part in which nothing but the sum is received.
    pub(super) fn listening(
        me: u32,
        step: Step,
        attempt: u32,
        out: Arc<ReassemblyBuffer>,
        blocks: Blocks,
    ) -> Self {
        let plan = SumPlan {
            step,
            attempt,
            places: Vec::new(),
            terms: Vec::new(),
            owners: Vec::new(),
            stripe: None,
            predecessor: None,
            receivers: vec![me],
            group: None,
        };
        let count = chunks(out.len());
        Self {
            me,
            plan,
            format: NumberFormat::F32,
            blocks,
            own: Vec::new(),
            senders: Senders::new(count),
            gathering: Gathering::new(me, Vec::new(), std::iter::empty(), 0),
            out,
            digests: vec![None; count],
            left: count,
            finiteness: Finiteness::default(),
        }
    }

    /// Takes part by a plan, with what is final of this node's own vectors.
    ///
    /// What arrived of the sum before the plan is kept.
    pub(super) fn join(
        &mut self,
        plan: SumPlan,
        format: NumberFormat,
        announced: &Announcements,
        out: &mut Vec<Outgoing>,
    ) {
        let count = self.digests.len();
        let owners = plan.all_owners(count);
        self.share(&owners);
        self.own.iter().for_each(|(_, owner)| self.out.close(owner.start..owner.end));
        let own = self.own.iter().flat_map(|(_, owner)| owner.start..owner.end);
        let terms = TermAt::of(plan.step, &plan.terms, self.me);
        self.gathering = Gathering::new(self.me, terms, own, budget(count));
        let are_there = plan.is_of_results_that_are_there();
        (self.plan, self.format) = (SumPlan { owners, ..plan }, format);
        if are_there {
            self.send_own_terms(announced, out);
        }
        for (term, own) in self.own_terms() {
            let chunks = announced.final_chunks(own);
            // What all know to be there need not be said.
            let known = if are_there { chunks.clone() } else { 0..0 };
            self.is_final(term, (known, chunks), out);
        }
    }

    /// These sum the chunks from now on.
    fn share(&mut self, owners: &[Owner]) {
        self.senders.plan(nodes_of(owners, self.digests.len()));
        let all = owners.iter().copied().enumerate();
        self.own = all.filter(|(_, owner)| owner.node == self.me).collect();
    }

    /// Of each term one holder sends every owner its chunks, since all of them are there.
    fn send_own_terms(&mut self, announced: &Announcements, out: &mut Vec<Outgoing>) {
        if let Some((place, _)) = self.own.first() {
            for term in 0..self.plan.terms.len() {
                self.gathering.is_sent(term, self.plan.sender(*place, term));
            }
        }
        let own = self.own_terms();
        let owners = &self.plan.owners;
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
                out.extend(frames.map(|frame| Outgoing::Chunk { to: owner.node, frame }));
            }
        }
    }

    /// A part in an exchange that was over for this node, since it had the whole sum.
    pub(super) fn of_sum(me: u32, sum: Sum, vector: Vec<f32>, blocks: Blocks) -> Self {
        let out = Arc::new(ReassemblyBuffer::new(vector));
        let mut part = Self::listening(me, sum.step, sum.attempt, out, blocks);
        let count = part.digests.len();
        part.out.close(0..count);
        for chunk in 0..count {
            let digest = part.out.read(chunk, |sum| xxh3_64(bytemuck::cast_slice(sum)));
            part.place(chunk, digest, sum.finite);
        }
        part.finiteness.of = sum.nonfinite;
        part
    }

    /// Goes on by a plan that carries on this part's exchange without a worker that was lost.
    ///
    /// What this node has stays, but for the sums of chunks that have another owner now: nobody
    /// knows who else got them of the one that is lost, and all are to have the same bits. Where
    /// the new owner of such a chunk has that sum, it is the one that all get.
    pub(super) fn carry_on(
        &mut self,
        plan: SumPlan,
        format: NumberFormat,
        announced: &Announcements,
        out: &mut Vec<Outgoing>,
    ) {
        let count = self.digests.len();
        let moved = plan.moved(count);
        let owners = plan.all_owners(count);
        self.share(&owners);
        // By the new owners, which are set by now.
        let (mine, others): (Vec<usize>, Vec<usize>) =
            moved.into_iter().partition(|chunk| self.place_of(*chunk).is_some());
        for chunk in others {
            self.out.reopen(chunk);
            self.left += usize::from(self.digests[chunk].take().is_some());
        }
        mine.iter().for_each(|chunk| self.out.close(*chunk..*chunk + 1));
        let (summed, open): (Vec<usize>, Vec<usize>) =
            mine.into_iter().partition(|chunk| self.digests[*chunk].is_some());
        let terms = TermAt::of(plan.step, &plan.terms, self.me);
        if self.gathering.own_terms().len() == terms.len() {
            self.gathering.carry_on(terms, &open);
        } else {
            // It had the whole sum, or was told of other terms.
            self.gathering = Gathering::new(self.me, terms, open.into_iter(), budget(count));
        }
        (self.plan, self.format) = (SumPlan { owners, ..plan }, format);
        for (term, own) in self.own_terms() {
            // All owners are told: some may have heard of a part of it only, or of nothing.
            self.is_final(term, (0..0, announced.final_chunks(own)), out);
        }
        let others: Vec<u32> =
            self.plan.receivers.iter().copied().filter(|node| *node != self.me).collect();
        for frame in summed.into_iter().map(|chunk| self.sum_frame(chunk)) {
            let send = |to: &u32| Outgoing::Chunk { to: *to, frame: frame.clone() };
            out.extend(others.iter().map(send));
        }
    }

    /// Takes over the chunks of a sum that came for the same exchange before its plan did.
    pub(super) fn absorb(&mut self, came: &Self) {
        for chunk in 0..came.digests.len() {
            let Some(digest) = came.digests[chunk] else { continue };
            if self.place_of(chunk).is_none() && self.digests[chunk].is_none() {
                came.out.read(chunk, |sum| self.out.write(chunk, |out| out.copy_from_slice(sum)));
                self.place(chunk, digest, came.finiteness.finite);
            }
        }
        self.finiteness.of.extend(came.finiteness.of.clone());
    }

    /// The vector that the sum's chunks are read into.
    pub(super) fn buffer(&self) -> &Arc<ReassemblyBuffer> {
        &self.out
    }

    /// The coordinator says who sends chunks of the sum besides their owners.
    pub(super) fn come_of(&mut self, senders: &[Owner]) {
        self.senders.name(nodes_of(senders, self.digests.len()));
    }

    /// Whether a chunk of the sum counts if it comes of this node: of its owner, of one that the
    /// coordinator has named, or of the coordinator itself.
    pub(super) fn comes_of(&self, node: u32, header: &Header) -> bool {
        // What is no chunk at all is refused with its reason.
        header.chunk_of(self.out.len()).map_or(true, |chunk| self.senders.include(node, chunk))
    }

    /// The digests of the chunks that are here.
    pub(super) fn digests(&self) -> &[Option<u64>] {
        &self.digests
    }

    /// The terms that this node has, or will have.
    pub(super) fn own_terms(&self) -> Vec<(usize, Own)> {
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
        out: &mut Vec<Outgoing>,
    ) {
        self.gathering.is_final(term, chunks.clone());
        // A word that says nothing new would cost every owner a message.
        if chunks != known {
            let to: BTreeSet<u32> = self.plan.owners.iter().map(|owner| owner.node).collect();
            let to = to.into_iter().filter(|node| *node != self.me).collect();
            out.push(Outgoing::Tell { to, message: self.ready(term, chunks) });
        }
    }

    fn ready(&self, term: usize, chunks: Range<usize>) -> Across {
        let SumPlan { step, attempt, .. } = self.plan;
        let term = self.plan.place(term);
        Across::Ready { step, attempt, term, start: chunks.start, end: chunks.end }
    }

    fn own_chunk(
        &self,
        (term, own): (usize, Own),
        chunk: usize,
        announced: &Announcements,
    ) -> Option<Frame> {
        let body = announced.chunk(own, chunk, self.out.len())?;
        let range = self.out.range(chunk);
        let SumPlan { step, attempt, .. } = self.plan;
        let header = Header::chunk(Kind::Term, NumberFormat::F32, range.start, range.len())
            .of_step(step, attempt, self.plan.place(term));
        Some(Frame { header, body })
    }

    /// Another worker says what it has of a term, or asks for it.
    pub(super) fn hear(
        &mut self,
        from: u32,
        message: &Across,
        announced: &Announcements,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), String> {
        match *message {
            Across::Ready { term, start, end, .. } => self.announced(term, from, start..end),
            Across::Ask { term, chunk, .. } => {
                let frame = self.asked(term, chunk, from, announced)?;
                out.extend(frame.map(|frame| Outgoing::Chunk { to: from, frame }));
                Ok(())
            }
            Across::Peer { .. } => Ok(()),
        }
    }

    /// Chunks of a term are final at one of its holders.
    fn announced(&mut self, term: u32, holder: u32, chunks: Range<usize>) -> Result<(), String> {
        let count = self.digests.len();
        if chunks.start > chunks.end || chunks.end > count {
            return Err(format!("{holder} announces chunks {chunks:?} of {count}"));
        }
        self.gathering.announced(term as usize, holder, chunks)
    }

    /// The chunk of a term that an owner asks for.
    fn asked(
        &self,
        term: u32,
        chunk: usize,
        by: u32,
        announced: &Announcements,
    ) -> Result<Option<Frame>, String> {
        let count = self.plan.terms.len();
        // A node that sums nothing knows some of the terms only, under the numbers of all.
        let term = (0..count).find(|at| self.plan.place(*at) == term).unwrap_or(count);
        let Some(own) = self.gathering.own(term).filter(|_| self.senders.owns(by, chunk)) else {
            return Err(format!(
                "{by} asks for term {term}, chunk {chunk}, which is not its to sum"
            ));
        };
        Ok(self.own_chunk((term, own), chunk, announced))
    }

    /// What this node asks others for now.
    pub(super) fn asks(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let SumPlan { step, attempt, .. } = self.plan;
        let ask = |(to, term, chunk): (u32, usize, usize)| {
            let message = Across::Ask { step, attempt, term: term as u32, chunk };
            Outgoing::Tell { to: vec![to], message }
        };
        out.extend(self.gathering.asks(now).into_iter().map(ask));
    }

    /// Asks others for what was asked for in vain.
    pub(super) fn look(&mut self, now: Instant) {
        self.gathering.look(now);
    }

    /// The connection to a node is over.
    pub(super) fn disconnected(&mut self, node: u32) {
        self.gathering.disconnected(node);
    }

    /// What another node is to get of this one, as far as it is here: for one to which it may not
    /// have come through.
    pub(super) fn owed_to(&self, node: u32, announced: &Announcements) -> Vec<Outgoing> {
        let owns = self.plan.owners.iter().any(|owner| owner.node == node);
        let mine = self.own_terms().into_iter().filter(|_| owns);
        // Of what it lacks it asks for again, knowing what is here.
        let word = |(term, own)| {
            let chunks = announced.final_chunks(own);
            let message = self.ready(term, chunks.clone());
            (!chunks.is_empty()).then(|| Outgoing::Tell { to: vec![node], message })
        };
        let sums = self.sums_owed_to(node).into_iter();
        let sums = sums.map(|frame| Outgoing::Chunk { to: node, frame });
        mine.filter_map(word).chain(sums).collect()
    }

    fn sums_owed_to(&self, node: u32) -> Vec<Frame> {
        let own = self
            .own
            .iter()
            .filter(|_| self.plan.receivers.contains(&node))
            .flat_map(|(_, owner)| owner.start..owner.end);
        own.filter(|chunk| self.digests[*chunk].is_some())
            .map(|chunk| self.sum_frame(chunk))
            .collect()
    }

    /// A chunk of the sum that is here, as it is sent.
    fn sum_frame(&self, chunk: usize) -> Frame {
        let range = self.out.range(chunk);
        let mut block = self.blocks.take(range.len(), self.format);
        let finite = self.out.read(chunk, |sum| {
            block.fill(sum);
            nonfinite_mask(sum) == 0.0
        });
        let header = Header::chunk(Kind::Sum, self.format, range.start, range.len()).of_step(
            self.plan.step,
            self.plan.attempt,
            0,
        );
        let header = Header { finite, ..header };
        Frame { header, body: Body::Block(Arc::new(block)) }
    }

    /// The place among the owners for which this node sums a chunk.
    fn place_of(&self, chunk: usize) -> Option<usize> {
        self.own
            .iter()
            .find(|(_, owner)| (owner.start..owner.end).contains(&chunk))
            .map(|(place, _)| *place)
    }

    /// Takes in a chunk of a term for which this node is the owner.
    pub(super) fn term(
        &mut self,
        header: &Header,
        from: u32,
        block: Block,
        announced: &Announcements,
        now: Instant,
    ) -> Result<(), String> {
        let chunk = header.chunk_of(self.out.len())?;
        let term = header.piece as usize;
        if self.place_of(chunk).is_none() {
            return Err(format!(
                "{from} sends term {term}, chunk {chunk}, which is summed elsewhere"
            ));
        }
        let came = self.gathering.came((chunk, term), from, block, now)?;
        came.into_iter().for_each(|block| self.blocks.give(block));
        for chunk in self.gathering.to_condense(chunk) {
            let own: Vec<Option<Own>> = self.gathering.own_terms().collect();
            let (range, blocks) = (self.out.range(chunk), &self.blocks);
            let mine = OwnTerms { announced, blocks, format: self.format, length: self.out.len() };
            let mine = |term: usize| mine.content(own[term]?, chunk);
            self.gathering.condense(chunk, &Adder { mine: &mine, blocks, count: range.len() });
        }
        Ok(())
    }

    /// Sums one chunk that is ready; gives back what is sent of it, none if no chunk is ready.
    pub(super) fn sum_next(&mut self, announced: &Announcements) -> Option<Vec<Outgoing>> {
        let (chunk, nodes) = self.gathering.next()?;
        let summed = self.fold(chunk, nodes, announced);
        let publish = |(block, folded)| self.publish(chunk, block, folded);
        Some(summed.map(publish).unwrap_or_default())
    }

    /// Whose numbers are not finite, which the coordinator is to be told, once of each.
    pub(super) fn not_finite(&mut self) -> Option<NotFinite> {
        self.finiteness.untold()
    }

    /// Sums a chunk of its terms, if it can be: else some are asked of others.
    fn fold(
        &mut self,
        chunk: usize,
        nodes: Vec<Node>,
        announced: &Announcements,
    ) -> Option<(Block, Folded)> {
        let (blocks, count) = (&self.blocks, self.out.range(chunk).len());
        let mine = OwnTerms { announced, blocks, format: self.format, length: self.out.len() };
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
        self.finiteness.note_terms_of(refused.iter().map(|(_, holder)| *holder));
        if self.me == COORDINATOR {
            // It asks nobody: that its sum is not finite is seen once the sum is whole.
            adder.spend(nodes);
            block.floats_mut().fill(f32::NAN);
            return Some((block, Folded { digest: 0, finite: false }));
        }
        blocks.give(block);
        if refused.is_empty() {
            adder.spend(nodes);
            self.finiteness.note_sums_of(self.me);
        } else {
            self.gathering.take_back(chunk, nodes, &refused);
        }
        None
    }

    /// Keeps the sum of a chunk; gives what is sent of it.
    fn publish(&mut self, chunk: usize, mut block: Block, mut folded: Folded) -> Vec<Outgoing> {
        let range = self.out.range(chunk);
        // All must hold the same bits, the owner too: it keeps what the others get.
        let narrow = (self.format == NumberFormat::Bf16).then(|| {
            let mut narrow = self.blocks.take(range.len(), NumberFormat::Bf16);
            narrow.fill(block.floats_mut());
            narrow.copy_to(block.floats_mut());
            folded = Folded {
                digest: xxh3_64(block.bytes()),
                finite: nonfinite_mask(block.floats_mut()) == 0.0,
            };
            narrow
        });
        // The coordinator sees what it is made of, and says so. Of a worker nobody could tell
        // whether its terms were not finite, or whether it lies.
        if !folded.finite && self.me != COORDINATOR {
            if self.finiteness.of.terms_of.is_empty() {
                self.finiteness.note_sums_of(self.me);
            }
            narrow.into_iter().chain([block]).for_each(|block| self.blocks.give(block));
            return Vec::new();
        }
        self.out.write(chunk, |out| out.copy_from_slice(block.floats_mut()));
        self.place(chunk, folded.digest, folded.finite);
        // Of other bytes than those that go out; the connection takes one of these.
        let wire_digest = if narrow.is_none() { folded.digest } else { 0 };
        if let Some(narrow) = narrow {
            self.blocks.give(std::mem::replace(&mut block, narrow));
        }
        let header = Header::chunk(Kind::Sum, self.format, range.start, range.len()).of_step(
            self.plan.step,
            self.plan.attempt,
            0,
        );
        let header = Header { finite: folded.finite, digest: wire_digest, ..header };
        let block = Arc::new(block);
        let others = self.plan.receivers.iter().filter(|node| **node != self.me);
        let send = |node: &u32| Outgoing::Chunk {
            to: *node,
            frame: Frame { header, body: Body::Block(Arc::clone(&block)) },
        };
        others.map(send).collect()
    }

    /// Takes in a chunk of the sum.
    pub(super) fn summed(
        &mut self,
        header: &Header,
        from: u32,
        block: Block,
    ) -> Result<(), String> {
        let chunk = header.chunk_of(self.out.len())?;
        if self.place_of(chunk).is_some() {
            return Err(format!("{from} sends a sum of chunk {chunk}, which is summed here"));
        }
        if self.digests[chunk].is_none() {
            let of_wire = Some(header.digest)
                .filter(|digest| header.format == NumberFormat::F32 && *digest != 0);
            let mut folded = Folded { digest: 0, finite: true };
            self.out.write(chunk, |out| {
                block.copy_to(out);
                folded.digest = of_wire.unwrap_or_else(|| xxh3_64(bytemuck::cast_slice(out)));
                folded.finite = nonfinite_mask(out) == 0.0;
            });
            self.came(chunk, folded, from);
        }
        self.blocks.give(block);
        Ok(())
    }

    /// Notes a chunk of the sum that was read into its place; false if it is not in the place of
    /// this sum.
    pub(super) fn placed(&mut self, header: &Header, from: u32, slot: &WriteSlot) -> bool {
        let completed = slot.complete(&self.out);
        if completed && let Ok(chunk) = header.chunk_of(self.out.len()) {
            // The connection has looked at the numbers.
            let Header { digest, finite, .. } = *header;
            self.came(chunk, Folded { digest, finite }, from);
        }
        completed
    }

    /// A chunk of the sum has come.
    fn came(&mut self, chunk: usize, folded: Folded, from: u32) {
        self.place(chunk, folded.digest, folded.finite);
        if !folded.finite {
            // Told at once: another attempt may begin before the sum is whole.
            self.finiteness.note_sums_of(from);
        }
    }

    fn place(&mut self, chunk: usize, digest: u64, finite: bool) {
        self.left -= usize::from(self.digests[chunk].replace(digest).is_none());
        self.finiteness.finite &= finite;
    }

    /// Whether the whole sum is here.
    pub(super) fn is_whole(&self) -> bool {
        self.left == 0
    }

    /// The sum, once it is whole, with the digest of its chunks' digests or of its bits.
    pub(super) fn finish(self, confirmed: bool, of_bits: bool) -> Sum {
        let digests: Vec<u64> = self.digests.into_iter().flatten().collect();
        let SumPlan { step, attempt, .. } = self.plan;
        let vector = self.out.take();
        let digest =
            if of_bits { digest_of_bits(&vector) } else { xxh3_64(bytemuck::cast_slice(&digests)) };
        let vector = Some(Arc::new(vector));
        let Finiteness { finite, of: nonfinite, .. } = self.finiteness;
        Sum { step, attempt, vector, digest, finite, nonfinite, confirmed }
    }

    /// Whose chunks are missing.
    pub(super) fn waits_for(&self) -> Vec<u32> {
        let mut nodes: Vec<u32> = Vec::new();
        for owner in self.plan.owners.iter().filter(|owner| owner.node != self.me) {
            // One chunk is enough to wait for a node.
            let mut open = (owner.start..owner.end).filter(|chunk| self.digests[*chunk].is_none());
            nodes.extend(open.next().map(|_| owner.node));
        }
        nodes.extend(self.gathering.waits_for());
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}
