//! One sum made by several nodes: what each of them sends, sums and gathers. Chunks in, chunks out;
//! no socket.
//!
//! Every owner sums its chunks of all terms, in the order of the terms, and sends the sums to all
//! receivers. With one owner that is a star; with the workers as owners it is a direct
//! reduce-scatter and all-gather among them.
//!
//! By a plan for results that are there, their holders send them at once ([`ExchangePart::join`]);
//! of results that are expected, owners ask for what is final ([`ExchangePart::expect`]). Where a
//! worker is lost meanwhile, another exchange carries that one on ([`ExchangePart::carry_on`]).

use super::announced::Announcements;
use super::block::{Block, Blocks};
use super::frame::{Body, Frame};
use super::gathering::{Adder, Content, ExpectedTerm, Gathering, budget, is_bad};
use super::plan::{Plan, nodes_of};
use super::reassembly::{ReassemblyBuffer, WriteSlot};
use super::senders::Senders;
use super::store::{Finiteness, NotFinite, Sum};
use crate::gpu::{Folded, Source, Term, digest_of_bits, fold_chunk, nonfinite_mask};
use crate::ids::{Step, Task};
use crate::run::NumberFormat;
use crate::transport::What;
use crate::transport::wire::{Across, COORDINATOR, Header, Kind, Owner, chunks};
use std::collections::{BTreeMap, BTreeSet};
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

/// One node's part in an exchange.
#[derive(Debug)]
pub(super) struct ExchangePart {
    me: u32,
    plan: Plan,
    format: NumberFormat,
    blocks: Blocks,
    /// Which chunks this node sums, and its places among the owners.
    own: Vec<(usize, Owner)>,
    senders: Senders,
    /// The terms of own chunks, where they are expected.
    gathering: Option<Gathering>,
    /// The terms this node has, for its own chunks.
    local: Vec<Option<Arc<Vec<f32>>>>,
    /// Chunks of terms that wait for those of other terms.
    waiting: BTreeMap<usize, Vec<Option<Block>>>,
    /// Own chunks that can be summed.
    ready: Vec<usize>,
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
        let plan = Plan {
            step,
            attempt,
            places: Vec::new(),
            terms: Vec::new(),
            owners: Vec::new(),
            stripe: None,
            predecessor: None,
            receivers: vec![me],
        };
        let count = chunks(out.len());
        Self {
            me,
            plan,
            format: NumberFormat::F32,
            blocks,
            own: Vec::new(),
            senders: Senders::new(count),
            gathering: None,
            local: Vec::new(),
            waiting: BTreeMap::new(),
            ready: Vec::new(),
            out,
            digests: vec![None; count],
            left: count,
            finiteness: Finiteness::default(),
        }
    }

    /// Takes part by a plan, with the vectors this node holds; gives back what it sends at once.
    ///
    /// What arrived of the sum before the plan is kept.
    pub(super) fn join(
        &mut self,
        plan: Plan,
        format: NumberFormat,
        held: impl Fn(What) -> Option<Arc<Vec<f32>>>,
    ) -> Vec<Outgoing> {
        let mut sends = Vec::new();
        let longest = plan.owners.iter().map(|owner| owner.end - owner.start).max().unwrap_or(0);
        // A chunk for every owner in turn, so that all of them have something to sum from the
        // start.
        for row in 0..longest {
            for (place, owner) in plan
                .owners
                .iter()
                .enumerate()
                .filter(|(_, owner)| owner.node != self.me && owner.start + row < owner.end)
            {
                for term in 0..plan.terms.len() {
                    if let Some((_, what)) =
                        plan.source(place, term).filter(|source| source.0 == self.me)
                        && let Some(vector) = held(what)
                    {
                        let range = self.out.range(owner.start + row);
                        let body = Body::Slice(vector, range);
                        let frame = self.term_frame(&plan, owner.start + row, term, body);
                        sends.push(Outgoing::Chunk { to: owner.node, frame });
                    }
                }
            }
        }
        self.senders.plan(nodes_of(&plan.owners, self.digests.len()));
        self.own = plan
            .owners
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, owner)| owner.node == self.me)
            .collect();
        if let Some((place, _)) = self.own.first() {
            // A node's own vector comes before others', whatever its place.
            let mine = |term| {
                plan.source(*place, term)
                    .filter(|source| source.0 == self.me)
                    .and_then(|(_, what)| held(what))
            };
            self.local = (0..plan.terms.len()).map(mine).collect();
        }
        // `ready` is taken from its end, so the first chunks are put there last.
        for (_, owner) in self.own.iter().rev() {
            self.out.close(owner.start..owner.end);
            if self.local.iter().all(Option::is_some) {
                self.ready.extend((owner.start..owner.end).rev());
            }
        }
        (self.plan, self.format) = (plan, format);
        sends
    }

    /// Takes part in the sum of a step that is not computed yet.
    pub(super) fn expect(&mut self, plan: Plan, format: NumberFormat) {
        let count = self.digests.len();
        let owners = plan.all_owners(count);
        self.senders.plan(nodes_of(&owners, count));
        self.own =
            owners.iter().copied().enumerate().filter(|(_, owner)| owner.node == self.me).collect();
        self.own.iter().for_each(|(_, owner)| self.out.close(owner.start..owner.end));
        let own = self.own.iter().flat_map(|(_, owner)| owner.start..owner.end);
        let terms = ExpectedTerm::of(&plan.terms, self.me);
        self.gathering = Some(Gathering::new(self.me, terms, own, budget(count)));
        (self.plan, self.format) = (Plan { owners, ..plan }, format);
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
        plan: Plan,
        format: NumberFormat,
        announced: &Announcements,
        out: &mut Vec<Outgoing>,
    ) {
        let count = self.digests.len();
        let moved = plan.moved(count);
        let owners = plan.all_owners(count);
        self.senders.plan(nodes_of(&owners, count));
        let all = owners.iter().copied().enumerate();
        self.own = all.filter(|(_, owner)| owner.node == self.me).collect();
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
        let terms = ExpectedTerm::of(&plan.terms, self.me);
        match &mut self.gathering {
            Some(gathering) if gathering.terms().len() == terms.len() => {
                gathering.carry_on(terms, &open);
            }
            // It had the whole sum, or was told of other terms.
            _ => {
                let open = open.into_iter();
                self.gathering = Some(Gathering::new(self.me, terms, open, budget(count)));
            }
        }
        (self.plan, self.format) = (Plan { owners, ..plan }, format);
        for (term, task) in self.own_tasks() {
            // All owners are told: some may have heard of a part of it only, or of nothing.
            self.is_final(term, (0..0, announced.final_chunks(task)), out);
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

    /// The tasks whose results are expected of this node, with their terms.
    pub(super) fn own_tasks(&self) -> Vec<(usize, Task)> {
        let terms = self.gathering.as_ref().map(Gathering::terms).unwrap_or_default();
        terms.iter().enumerate().filter_map(|(at, term)| Some((at, term.mine?))).collect()
    }

    /// These chunks of an expected term are final here, of which `known` were before: the owners
    /// are told that they can ask for them.
    pub(super) fn is_final(
        &mut self,
        term: usize,
        (known, chunks): (Range<usize>, Range<usize>),
        out: &mut Vec<Outgoing>,
    ) {
        let Some(gathering) = &mut self.gathering else { return };
        gathering.is_final(term, chunks.clone());
        // A word that says nothing new would cost every owner a message.
        if chunks != known {
            let to: BTreeSet<u32> = self.plan.owners.iter().map(|owner| owner.node).collect();
            let to = to.into_iter().filter(|node| *node != self.me).collect();
            out.push(Outgoing::Tell { to, message: self.ready(term, chunks) });
        }
    }

    fn ready(&self, term: usize, chunks: Range<usize>) -> Across {
        let Plan { step, attempt, .. } = self.plan;
        let term = self.plan.place(term);
        Across::Ready { step, attempt, term, start: chunks.start, end: chunks.end }
    }

    fn expected_chunk(
        &self,
        (term, task): (usize, Task),
        chunk: usize,
        announced: &Announcements,
    ) -> Option<Frame> {
        let body = announced.chunk(task, chunk, self.out.len())?;
        Some(self.term_frame(&self.plan, chunk, term, body))
    }

    /// Another worker says what it has of an expected term, or asks for it.
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
        let Some(gathering) = &mut self.gathering else { return Ok(()) };
        gathering.announced(term as usize, holder, chunks)
    }

    /// The chunk of an expected term that an owner asks for.
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
        let task = self.gathering.as_ref().and_then(|gathering| gathering.terms().get(term)?.mine);
        let Some(task) = task.filter(|_| self.senders.owns(by, chunk)) else {
            return Err(format!(
                "{by} asks for term {term}, chunk {chunk}, which is not its to sum"
            ));
        };
        Ok(self.expected_chunk((term, task), chunk, announced))
    }

    /// What this node asks others for now.
    pub(super) fn asks(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let Plan { step, attempt, .. } = self.plan;
        let Some(gathering) = &mut self.gathering else { return };
        let ask = |(to, term, chunk): (u32, usize, usize)| {
            let message = Across::Ask { step, attempt, term: term as u32, chunk };
            Outgoing::Tell { to: vec![to], message }
        };
        out.extend(gathering.asks(now).into_iter().map(ask));
    }

    /// Asks others for what was asked for in vain.
    pub(super) fn look(&mut self, now: Instant) {
        self.gathering.iter_mut().for_each(|gathering| gathering.look(now));
    }

    /// The connection to a node is over.
    pub(super) fn disconnected(&mut self, node: u32) {
        self.gathering.iter_mut().for_each(|gathering| gathering.disconnected(node));
    }

    /// What another node is to get of this one, as far as it is here: for one to which it may not
    /// have come through.
    pub(super) fn owed_to(
        &self,
        node: u32,
        held: impl Fn(What) -> Option<Arc<Vec<f32>>>,
        announced: &Announcements,
    ) -> Vec<Outgoing> {
        let mut owed = match &self.gathering {
            Some(_) => self.announcements_for(node, announced),
            None => self.terms_owed_to(node, held),
        };
        let frame = |frame| Outgoing::Chunk { to: node, frame };
        owed.extend(self.sums_owed_to(node).into_iter().map(frame));
        owed
    }

    /// Word of what a node can ask for, if it sums anything.
    fn announcements_for(&self, node: u32, announced: &Announcements) -> Vec<Outgoing> {
        let owns = self.plan.owners.iter().any(|owner| owner.node == node);
        let mine = self.own_tasks().into_iter().filter(|_| owns);
        let word = |(term, task)| {
            let chunks = announced.final_chunks(task);
            let message = self.ready(term, chunks.clone());
            (!chunks.is_empty()).then(|| Outgoing::Tell { to: vec![node], message })
        };
        mine.filter_map(word).collect()
    }

    fn terms_owed_to(
        &self,
        node: u32,
        held: impl Fn(What) -> Option<Arc<Vec<f32>>>,
    ) -> Vec<Outgoing> {
        let mut owed = Vec::new();
        for (place, owner) in
            self.plan.owners.iter().enumerate().filter(|(_, owner)| owner.node == node)
        {
            for term in 0..self.plan.terms.len() {
                let mine = self.plan.source(place, term).filter(|source| source.0 == self.me);
                let Some(vector) = mine.and_then(|(_, what)| held(what)) else { continue };
                let frame = |chunk| {
                    let body = Body::Slice(Arc::clone(&vector), self.out.range(chunk));
                    self.term_frame(&self.plan, chunk, term, body)
                };
                let frames = (owner.start..owner.end).map(frame);
                owed.extend(frames.map(|frame| Outgoing::Chunk { to: node, frame }));
            }
        }
        owed
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

    fn term_frame(&self, plan: &Plan, chunk: usize, term: usize, body: Body) -> Frame {
        let range = self.out.range(chunk);
        let header = Header::chunk(Kind::Term, NumberFormat::F32, range.start, range.len())
            .of_step(plan.step, plan.attempt, plan.place(term));
        Frame { header, body }
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
        if self.gathering.is_some() {
            return self.expected_term((chunk, term), from, block, announced, now);
        }
        let source = self
            .place_of(chunk)
            .filter(|_| term < self.plan.terms.len())
            .and_then(|place| self.plan.source(place, term));
        if source.is_none_or(|source| source.0 != from) {
            return Err(format!("term {term}, chunk {chunk} is not to come from {from}"));
        }
        let terms = self.plan.terms.len();
        let waiting =
            self.waiting.entry(chunk).or_insert_with(|| (0..terms).map(|_| None).collect());
        if self.digests[chunk].is_some() || waiting[term].is_some() || self.ready.contains(&chunk) {
            self.blocks.give(block);
            return Ok(());
        }
        waiting[term] = Some(block);
        if waiting.iter().zip(&self.local).all(|(came, local)| came.is_some() || local.is_some()) {
            self.ready.push(chunk);
        }
        Ok(())
    }

    fn expected_term(
        &mut self,
        (chunk, term): (usize, usize),
        from: u32,
        block: Block,
        announced: &Announcements,
        now: Instant,
    ) -> Result<(), String> {
        if self.place_of(chunk).is_none() {
            return Err(format!(
                "{from} sends term {term}, chunk {chunk}, which is summed elsewhere"
            ));
        }
        // Taken out, since adding up looks at the announcements and blocks of `self`.
        let Some(mut gathering) = self.gathering.take() else { return Ok(()) };
        let came = gathering.came((chunk, term), from, block, now);
        for chunk in gathering.to_condense(chunk) {
            let mine_of: Vec<Option<Task>> =
                gathering.terms().iter().map(|term| term.mine).collect();
            let mine = |term: usize| self.mine(mine_of[term]?, chunk, announced);
            let (blocks, count) = (&self.blocks, self.out.range(chunk).len());
            gathering.condense(chunk, &Adder { mine: &mine, blocks, count });
        }
        self.gathering = Some(gathering);
        came?.into_iter().for_each(|block| self.blocks.give(block));
        Ok(())
    }

    /// A chunk of this node's own result, as it is summed.
    fn mine(&self, task: Task, chunk: usize, announced: &Announcements) -> Option<Content> {
        let Body::Slice(numbers, range) = announced.chunk(task, chunk, self.out.len())? else {
            return None;
        };
        Some(match self.rounded(&numbers, range.clone()) {
            Some(block) => Content::Came(block),
            None => Content::Slice(numbers, range),
        })
    }

    /// Sums one chunk that is ready; gives back what is sent of it, none if no chunk is ready.
    pub(super) fn sum_next(&mut self, announced: &Announcements) -> Option<Vec<Outgoing>> {
        let summed = match &self.gathering {
            Some(_) => self.fold_expected(announced)?,
            None => Some(self.fold_planned()?),
        };
        let publish = |(chunk, block, folded)| self.publish(chunk, block, folded);
        Some(summed.map(publish).unwrap_or_default())
    }

    /// Whose numbers are not finite, which the coordinator is to be told, once of each.
    pub(super) fn not_finite(&mut self) -> Option<NotFinite> {
        self.finiteness.untold()
    }

    /// Sums a chunk of terms that were asked for, if it can be: none if some are to be asked of
    /// others.
    fn fold_expected(
        &mut self,
        announced: &Announcements,
    ) -> Option<Option<(usize, Block, Folded)>> {
        let mut gathering = self.gathering.take()?;
        let next = gathering.next();
        let tasks: Vec<Option<Task>> = gathering.terms().iter().map(|term| term.mine).collect();
        self.gathering = Some(gathering);
        let (chunk, nodes) = next?;
        let mine = |term: usize| self.mine(tasks[term]?, chunk, announced);
        let (blocks, count) = (&self.blocks, self.out.range(chunk).len());
        // It is folded into a block and not into its place, since it is sent from there too, while
        // the place may be read by others.
        let mut block = self.blocks.take(count, NumberFormat::F32);
        let adder = Adder { mine: &mine, blocks, count };
        let mut nodes = match adder.fold(nodes, block.floats_mut())? {
            Ok(folded) => return Some(Some((chunk, block, folded))),
            Err(nodes) => nodes,
        };
        // Looked for only now: a second pass over every term would cost as much as the sum.
        let refused = adder.refuse(&mut nodes, self.format);
        blocks.give(block);
        if refused.is_empty() {
            adder.spend(nodes);
            self.finiteness.note_sums_of(self.me);
            return Some(None);
        }
        self.finiteness.note_terms_of(refused.iter().map(|(_, holder)| *holder));
        self.gathering.iter_mut().for_each(|gathering| {
            gathering.take_back(chunk, std::mem::take(&mut nodes), &refused);
        });
        Some(None)
    }

    fn fold_planned(&mut self) -> Option<(usize, Block, Folded)> {
        let chunk = self.ready.pop()?;
        let came = self.waiting.remove(&chunk).unwrap_or_default();
        let range = self.out.range(chunk);
        let mut block = self.blocks.take(range.len(), NumberFormat::F32);
        let rounded: Vec<Option<Block>> =
            self.local.iter().map(|local| self.rounded(local.as_ref()?, range.clone())).collect();
        let source = |term: usize| match (
            came.get(term).and_then(Option::as_ref),
            &rounded[term],
            &self.local[term],
        ) {
            (Some(block), ..) | (None, Some(block), _) => block.source(),
            (None, None, Some(vector)) => Source::F32(&vector[range.clone()]),
            (None, None, None) => unreachable!("a chunk is ready when all its terms are here"),
        };
        let weighted = self.plan.terms.iter().enumerate();
        let terms: Vec<Term<'_>> = weighted
            .map(|(at, term)| Term { weight: term.weight as f32, source: source(at) })
            .collect();
        let folded = fold_chunk(&terms, block.floats_mut());
        // Looked for only now: a second pass over every term would cost as much as the sum.
        if !folded.finite {
            let blamed = self.blamed(chunk, &terms);
            self.finiteness.note_terms_of(blamed);
        }
        came.into_iter().chain(rounded).flatten().for_each(|block| self.blocks.give(block));
        Some((chunk, block, folded))
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

    /// Whose terms of a chunk are not finite.
    fn blamed(&self, chunk: usize, terms: &[Term<'_>]) -> BTreeSet<u32> {
        let mut alone = self.blocks.take(self.out.range(chunk).len(), NumberFormat::F32);
        let nonfinite = |(at, term): (usize, &Term<'_>)| {
            let source = self.plan.source(self.place_of(chunk)?, at)?;
            is_bad(term, self.format, &mut alone).then_some(source.0)
        };
        let blamed = terms.iter().enumerate().filter_map(nonfinite).collect();
        self.blocks.give(alone);
        blamed
    }

    /// With a narrow format on the wire, owners use the rounded values of their own terms too.
    fn rounded(&self, vector: &[f32], range: std::ops::Range<usize>) -> Option<Block> {
        (self.format == NumberFormat::Bf16).then(|| {
            let mut block = self.blocks.take(range.len(), NumberFormat::Bf16);
            block.fill(&vector[range]);
            block
        })
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
        let Plan { step, attempt, .. } = self.plan;
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
        for (place, owner) in self.plan.owners.iter().enumerate() {
            // One chunk is enough to wait for a node.
            let open = (owner.start..owner.end).filter(|chunk| self.digests[*chunk].is_none());
            if owner.node != self.me {
                nodes.extend(open.take(1).map(|_| owner.node));
                continue;
            }
            if self.gathering.is_some() {
                continue;
            }
            for chunk in open {
                let came = self.waiting.get(&chunk);
                let lacks = |term: &usize| {
                    self.local[*term].is_none() && came.is_none_or(|came| came[*term].is_none())
                };
                nodes.extend(
                    (0..self.local.len())
                        .filter(lacks)
                        .filter_map(|term| self.plan.source(place, term))
                        .map(|source| source.0),
                );
            }
        }
        nodes.extend(self.gathering.iter().flat_map(Gathering::waits_for));
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}
