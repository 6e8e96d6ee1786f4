//! How an owner comes by the terms of its chunks. Of a step that is computed it asks for them, late
//! and a chunk at a time; of results that are there, one holder of each sends all chunks unasked.
//!
//! # How to drive it
//! [`TermBuffer`] is told which terms are sent unasked ([`TermBuffer::is_sent`]), which chunks of a
//! term are final, here ([`TermBuffer::is_final`]) or at another holder
//! ([`TermBuffer::announced`]), and which chunk has come ([`TermBuffer::came`]). After each of
//! these, and after [`TermBuffer::next`], [`TermBuffer::asks`] tells what to ask for now.
//! [`TermBuffer::next`] gives a chunk all of whose terms are here, once, with what has come of it.
//! [`TermBuffer::look`] is called now and then: what was asked for in vain is asked of another.
//!
//! # Which chunk of whom
//! What is sent unasked is asked for only once its sender's connection has broken, or its numbers
//! were refused. Of every other term in turn, the owner asks for the first chunk that lacks and
//! that a holder announced. It asks the holder that owes it least, at most [`WINDOW`] at a time. So
//! the holders of a term share the sending by themselves, and a late worker sends what it has.
//!
//! A term with one holder is asked for too, though it could be sent at once: then what waits for
//! the terms of a late worker would be a whole gradient in the end. Here no more chunks
//! are begun than `budget` has room for: of `n` terms about `log2 n` blocks of a chunk wait for one
//! that is late, since the others are added up in subtrees of the one tree where it gets tight.

use super::adder::{Adder, Content, Node};
use super::block::Block;
use crate::ids::{Summand, Task, Worker};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Chunks that an owner asks of one holder at a time. More would be asked of the first one, and
/// the holders that come later have nothing left to send.
const WINDOW: usize = 1;
/// An owner asks another holder for a chunk after this many times as long as chunks take, but not
/// before `PATIENCE`.
const PATIENCE_FACTOR: u32 = 8;
const PATIENCE: Duration = Duration::from_millis(75);

/// How much of a vector may wait at an owner for other terms, as a fraction; and chunks that always
/// may.
const WAITING_PART: usize = 4;
const WAITING_LEAST: usize = 8;

/// Chunks of a vector of `count` that may wait at an owner for other terms.
pub(super) fn budget(count: usize) -> usize {
    (count / WAITING_PART).max(WAITING_LEAST)
}

/// What a node must know of a term.
#[derive(Debug)]
pub(super) struct TermAt {
    weight: f32,
    /// Who has it, or will have it.
    holders: Vec<u32>,
    /// What it is here, if this node is one of them.
    mine: Option<Task>,
    /// Which chunks of that are final.
    here: Range<usize>,
    /// Who sends all chunks of it unasked.
    sender: Option<u32>,
}

impl TermAt {
    /// The terms of a step's sum, as this node sees them.
    pub(super) fn of(terms: &[Summand], me: u32) -> Vec<Self> {
        let of = |term: &Summand| {
            let mine = term.piece_of(Worker(me));
            Self {
                weight: term.weight as f32,
                holders: term.holders.iter().map(|piece| piece.worker.0).collect(),
                mine: mine.map(|piece| piece.task),
                here: 0..0,
                sender: None,
            }
        };
        terms.iter().map(of).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct ChunkRequest {
    holder: u32,
    since: Instant,
}

/// The terms of an owner's chunks, until they are summed.
#[derive(Debug)]
pub(super) struct TermBuffer {
    me: u32,
    terms: Vec<TermAt>,
    /// What is here of every chunk that is not summed, in the order of the terms.
    chunks: BTreeMap<usize, Vec<Node>>,
    /// Of every term, which chunks are neither here nor asked for, in order.
    wanted: Vec<VecDeque<usize>>,
    /// Which chunks of a term are final at a holder.
    announced: BTreeMap<(usize, u32), Range<usize>>,
    asked: BTreeMap<(usize, usize), ChunkRequest>,
    /// How many chunks were asked of each holder and have not come.
    outstanding: BTreeMap<u32, usize>,
    /// Holders of a term whose chunks were not finite: nothing of theirs counts any more.
    refused: BTreeSet<(usize, u32)>,
    /// Chunks that were refused by time-out, and of whom.
    avoided: BTreeMap<(usize, usize), u32>,
    /// The terms that are asked for, the one first that is asked for first next time.
    asking: VecDeque<usize>,
    /// Chunks of which some term was asked for, or has come, and that are not summed.
    begun: BTreeSet<usize>,
    /// Chunks that came and wait for others.
    waiting: usize,
    budget: usize,
    complete: VecDeque<usize>,
    /// How long a chunk takes from when it is asked for.
    usual: Duration,
}

/// Adds a chunk to those that are wanted, which are in order.
fn want(wanted: &mut VecDeque<usize>, chunk: usize) {
    let at = wanted.partition_point(|other| *other < chunk);
    wanted.insert(at, chunk);
}

impl TermBuffer {
    /// The terms of these chunks; at most so many chunks of others wait here, if all goes well.
    pub(super) fn new(
        me: u32,
        terms: Vec<TermAt>,
        own: impl Iterator<Item = usize>,
        budget: usize,
    ) -> Self {
        let chunks: BTreeMap<usize, Vec<Node>> = own.map(|chunk| (chunk, Vec::new())).collect();
        let wanted = vec![chunks.keys().copied().collect(); terms.len()];
        let asking = (0..terms.len()).collect();
        let complete =
            if terms.is_empty() { chunks.keys().copied().collect() } else { VecDeque::new() };
        Self {
            me,
            terms,
            chunks,
            wanted,
            announced: BTreeMap::new(),
            asked: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            refused: BTreeSet::new(),
            avoided: BTreeMap::new(),
            asking,
            begun: BTreeSet::new(),
            waiting: 0,
            budget,
            complete,
            usual: Duration::ZERO,
        }
    }

    /// What each of the terms is here, if this node has it or will have it.
    pub(super) fn own_terms(&self) -> impl ExactSizeIterator<Item = Option<Task>> {
        self.terms.iter().map(|term| term.mine)
    }

    /// What one of them is here.
    pub(super) fn own(&self, term: usize) -> Option<Task> {
        self.terms.get(term)?.mine
    }

    /// A term is final at all its holders, one of whom sends the chunks that are summed here,
    /// unasked; none if this node has it.
    pub(super) fn is_sent(&mut self, term: usize, sender: Option<u32>) {
        self.terms[term].sender = sender.filter(|sender| *sender != self.me);
        if self.terms[term].sender.is_some() {
            self.asking.retain(|other| *other != term);
        }
    }

    /// What a holder sends of a term unasked does not come, or does not count: any of its holders
    /// can be asked.
    fn is_sent_no_more(&mut self, term: usize, sender: u32) {
        let TermAt { holders, sender: by, .. } = &mut self.terms[term];
        if by.take_if(|by| *by == sender).is_some() {
            let all = |holder: &u32| ((term, *holder), 0..usize::MAX);
            self.announced.extend(holders.iter().map(all));
            self.asking.push_back(term);
        }
    }

    /// Goes on with fewer holders of the same terms, and with more chunks.
    pub(super) fn carry_on(mut self, terms: Vec<TermAt>, more: &[usize]) -> Self {
        self.terms = terms;
        self.asking = (0..self.terms.len()).collect();
        let holds = |term: usize, holder: u32| self.terms[term].holders.contains(&holder);
        self.announced.retain(|(term, holder), _| holds(*term, *holder));
        let of_lost = |(what, asked): (&(usize, usize), &ChunkRequest)| {
            (!holds(what.1, asked.holder)).then_some((*what, asked.holder))
        };
        let lost: Vec<_> = self.asked.iter().filter_map(of_lost).collect();
        for (what, holder) in lost {
            self.want_again(what, holder);
        }
        self.forget_own();
        for &chunk in more {
            self.chunks.insert(chunk, Vec::new());
            self.wanted.iter_mut().for_each(|wanted| want(wanted, chunk));
        }
        self
    }

    /// Terms that were this node's own, and are not any more, come from others: it may never have
    /// the rest of them.
    fn forget_own(&mut self) {
        for (&chunk, nodes) in &mut self.chunks {
            let is_forgotten = |node: &mut Node| {
                matches!(node.content, Content::Mine) && self.terms[node.start].mine.is_none()
            };
            let forgotten: Vec<Node> = nodes.extract_if(.., is_forgotten).collect();
            if !forgotten.is_empty() {
                self.complete.retain(|other| *other != chunk);
            }
            forgotten.iter().for_each(|node| want(&mut self.wanted[node.start], chunk));
        }
    }

    /// These chunks of a term are final here, and need not come from another node.
    pub(super) fn is_final(&mut self, term: usize, chunks: Range<usize>) {
        let is_here = |chunk: &usize| chunks.contains(chunk);
        let (here, wanted): (Vec<usize>, Vec<usize>) =
            self.wanted[term].iter().copied().partition(is_here);
        self.wanted[term] = wanted.into();
        self.terms[term].here = chunks;
        for chunk in here {
            self.place(chunk, term, Content::Mine, None);
        }
    }

    /// These chunks of a term are final at one of its holders.
    ///
    /// # Errors
    /// That it is none of them.
    pub(super) fn announced(
        &mut self,
        term: usize,
        holder: u32,
        chunks: Range<usize>,
    ) -> Result<(), String> {
        if self.terms.get(term).is_none_or(|term| !term.holders.contains(&holder)) {
            return Err(format!("it announces term {term}, which it does not hold"));
        }
        if self.refused.contains(&(term, holder)) {
            return Ok(());
        }
        // Who says what it has, though it was to send it unasked, may have sent it in vain.
        self.is_sent_no_more(term, holder);
        let known = self.announced.entry((term, holder)).or_default();
        // Parts grow from either end, so two of them make one; messages that are late do no harm.
        *known = if known.start == known.end {
            chunks
        } else {
            known.start.min(chunks.start)..known.end.max(chunks.end)
        };
        Ok(())
    }

    /// A chunk of a term has come; gives it back if it is not needed.
    ///
    /// # Errors
    /// That it is not to come from there.
    pub(super) fn came(
        &mut self,
        (chunk, term): (usize, usize),
        from: u32,
        block: Block,
        now: Instant,
    ) -> Result<Option<Block>, String> {
        if self.terms.get(term).is_none_or(|term| !term.holders.contains(&from)) {
            return Err(format!("term {term}, chunk {chunk} is not to come from {from}"));
        }
        let asked = self.asked.get(&(chunk, term)).copied();
        if let Some(asked) = asked.filter(|asked| asked.holder == from) {
            self.answered((chunk, term), from);
            let took = now.saturating_duration_since(asked.since);
            // Only of whom it was asked of last: who was given up answers late, and says nothing of
            // now.
            self.usual = (self.usual * 3 + took) / 4;
        }
        let nodes = self.chunks.get(&chunk);
        let covers = |node: &Node| (node.start..node.start + node.size).contains(&term);
        let is_refused = self.refused.contains(&(term, from));
        if is_refused || nodes.is_none_or(|nodes| nodes.iter().any(covers)) {
            return Ok(Some(block));
        }
        // It may come from another holder than the one that was asked last.
        if let Some(other) = self.asked.get(&(chunk, term)).map(|asked| asked.holder) {
            self.answered((chunk, term), other);
        }
        if let Ok(at) = self.wanted[term].binary_search(&chunk) {
            self.wanted[term].remove(at);
        }
        self.waiting += 1;
        self.begun.insert(chunk);
        self.place(chunk, term, Content::Came(block), Some(from));
        Ok(None)
    }

    fn answered(&mut self, asked: (usize, usize), holder: u32) {
        self.asked.remove(&asked);
        self.avoided.remove(&asked);
        if let Some(count) = self.outstanding.get_mut(&holder) {
            *count = count.saturating_sub(1);
        }
    }

    fn place(&mut self, chunk: usize, term: usize, content: Content, from: Option<u32>) {
        let Some(nodes) = self.chunks.get_mut(&chunk) else { return };
        let node = Node { start: term, size: 1, weight: self.terms[term].weight, content, from };
        let at = nodes.partition_point(|other| other.start < node.start);
        nodes.insert(at, node);
        if nodes.iter().map(|node| node.size).sum::<usize>() == self.terms.len() {
            self.complete.push_back(chunk);
        }
    }

    /// What is asked for now: chunk and term, and of whom.
    pub(super) fn asks(&mut self, now: Instant) -> Vec<(u32, usize, usize)> {
        let mut asks = Vec::new();
        let count = self.asking.len();
        let mut idle = 0;
        // Term by term, as long as any of them has something to ask for: no term gets all the
        // turns.
        while idle < count {
            let term = self.asking[0];
            self.asking.rotate_left(1);
            match self.ask(term, now) {
                Some(ask) => {
                    asks.push(ask);
                    idle = 0;
                }
                None => idle += 1,
            }
        }
        asks
    }

    fn ask(&mut self, term: usize, now: Instant) -> Option<(u32, usize, usize)> {
        let (chunk, holder) = self.choice(term)?;
        let wanted = &mut self.wanted[term];
        let at = wanted.binary_search(&chunk).ok()?;
        wanted.remove(at);
        self.begun.insert(chunk);
        *self.outstanding.entry(holder).or_default() += 1;
        self.asked.insert((chunk, term), ChunkRequest { holder, since: now });
        Some((holder, term, chunk))
    }

    /// Which chunk of a term is asked for, and of whom.
    ///
    /// Where as many chunks are begun as may wait, only what helps one of those on, or what a chunk
    /// lacks last: it frees memory in the end.
    fn choice(&self, term: usize) -> Option<(usize, u32)> {
        let able = |chunk: usize| Some((chunk, self.holder((chunk, term))?));
        let wanted = &self.wanted[term];
        // Parts of a result grow from either end.
        let mut ends = [wanted.front(), wanted.back()].into_iter().flatten().copied();
        if self.begun.len() * self.blocks_each() < self.budget {
            return ends.find_map(able);
        }
        let helps = |chunk: &usize| {
            let nodes = self.chunks.get(chunk).map(Vec::as_slice).unwrap_or_default();
            let here: usize = nodes.iter().map(|node| node.size).sum();
            here + 1 == self.terms.len() || self.begun.contains(chunk)
        };
        let begun = self.begun.iter().filter(|chunk| wanted.binary_search(chunk).is_ok());
        ends.filter(helps).find_map(able).or_else(|| begun.copied().find_map(able))
    }

    /// Blocks of a chunk that wait, where one of its terms is late and the others are added up in
    /// subtrees.
    fn blocks_each(&self) -> usize {
        self.terms.len().max(2).ilog2() as usize
    }

    /// Of whom a chunk of a term can be asked now.
    fn holder(&self, (chunk, term): (usize, usize)) -> Option<u32> {
        let holders = &self.terms[term].holders;
        // Owners begin with different holders, or all would ask the first one first.
        let place = |holder: u32| {
            let at = holders.iter().position(|other| *other == holder).unwrap_or_default();
            (at + self.me as usize) % holders.len()
        };
        let load = |holder: u32| self.outstanding.get(&holder).copied().unwrap_or_default();
        let avoided = self.avoided.get(&(chunk, term)).copied();
        let has = |holder: &u32| {
            let of = self.announced.get(&(term, *holder));
            of.is_some_and(|chunks| chunks.contains(&chunk)) && load(*holder) < WINDOW
        };
        let able = holders.iter().copied().filter(|holder| *holder != self.me).filter(has);
        able.min_by_key(|holder| (Some(*holder) == avoided, load(*holder), place(*holder)))
    }

    /// Gives up what it asked for in vain for long, and asks another holder for it, if another has
    /// it.
    pub(super) fn look(&mut self, now: Instant) {
        let patience = (self.usual * PATIENCE_FACTOR).max(PATIENCE);
        let late: Vec<((usize, usize), u32)> = self
            .asked
            .iter()
            .filter(|(_, asked)| now.saturating_duration_since(asked.since) > patience)
            .map(|(what, asked)| (*what, asked.holder))
            .collect();
        for (what, holder) in late {
            let others = |other: &u32| *other != holder && *other != self.me;
            // Asked again of the same one it would only be sent twice.
            let term = &self.terms[what.1];
            if term.here.contains(&what.0) || term.holders.iter().any(others) {
                self.want_again(what, holder);
            }
        }
    }

    /// A connection to a node is over: what was asked of it does not come, and what it announced it
    /// announces again.
    pub(super) fn disconnected(&mut self, node: u32) {
        (0..self.terms.len()).for_each(|term| self.is_sent_no_more(term, node));
        self.announced.retain(|(_, holder), _| *holder != node);
        let lost: Vec<(usize, usize)> = self
            .asked
            .iter()
            .filter(|(_, asked)| asked.holder == node)
            .map(|(what, _)| *what)
            .collect();
        for what in lost {
            self.want_again(what, node);
        }
    }

    /// What was asked of a holder does not come of it.
    fn want_again(&mut self, what: (usize, usize), holder: u32) {
        self.answered(what, holder);
        self.want_of_another(what, holder);
    }

    fn want_of_another(&mut self, (chunk, term): (usize, usize), holder: u32) {
        // It may have become final here since it was asked for.
        if self.terms[term].here.contains(&chunk) {
            return self.place(chunk, term, Content::Mine, None);
        }
        self.avoided.insert((chunk, term), holder);
        want(&mut self.wanted[term], chunk);
    }

    /// A chunk all of whose terms are here, and what is here of them; it is summed then.
    pub(super) fn next(&mut self) -> Option<(usize, Vec<Node>)> {
        let chunk = self.complete.pop_front()?;
        let nodes = self.chunks.remove(&chunk)?;
        self.begun.remove(&chunk);
        self.waiting -= nodes.iter().filter(|node| node.has_come()).count();
        Some((chunk, nodes))
    }

    /// A chunk cannot be summed of these terms, others of which its holders have sent as numbers
    /// that are not finite: those are asked of other holders.
    pub(super) fn take_back(&mut self, chunk: usize, nodes: Vec<Node>, refused: &[(usize, u32)]) {
        self.waiting += nodes.iter().filter(|node| node.has_come()).count();
        self.chunks.insert(chunk, nodes);
        self.begun.insert(chunk);
        for &(term, holder) in refused {
            self.refused.insert((term, holder));
            self.is_sent_no_more(term, holder);
            self.announced.remove(&(term, holder));
            let of_holder = |(what, asked): (&(usize, usize), &ChunkRequest)| {
                (what.1 == term && asked.holder == holder).then_some(*what)
            };
            let asked: Vec<(usize, usize)> = self.asked.iter().filter_map(of_holder).collect();
            asked.into_iter().for_each(|what| self.want_again(what, holder));
            // It came, so its holder owes one less already.
            self.want_of_another((chunk, term), holder);
        }
    }

    /// Of which chunks something is to be added up, where more waits than may: the one of which a
    /// term has come, and one that came before it got tight.
    pub(super) fn to_condense(&self, came: usize) -> Vec<usize> {
        // What is sent unasked comes in the same order from all: little of it waits for long.
        let is_sent = self.asking.len() < self.terms.len();
        if is_sent || self.waiting <= self.budget {
            return Vec::new();
        }
        let has_siblings = |chunk: &usize| {
            let nodes = self.chunks.get(chunk).map(Vec::as_slice).unwrap_or_default();
            let both_came = |pair: &[Node]| {
                pair[0].is_sibling_of(&pair[1]) && pair[0].has_come() && pair[1].has_come()
            };
            nodes.windows(2).any(both_came)
        };
        let others = self.begun.iter().copied().filter(|chunk| *chunk != came);
        others.filter(has_siblings).take(1).chain([came]).collect()
    }

    /// Adds up what waits of a chunk in subtrees, unless it is summed next.
    pub(super) fn condense(&mut self, chunk: usize, adder: &Adder<'_>) {
        if self.complete.contains(&chunk) {
            return;
        }
        let Some(nodes) = self.chunks.get_mut(&chunk) else { return };
        let count = |nodes: &[Node]| nodes.iter().filter(|node| node.has_come()).count();
        let before = count(nodes);
        // What cannot be added now is when the chunk is complete.
        let _ = adder.add_siblings(nodes, 1);
        self.waiting = self.waiting + count(nodes) - before;
    }

    /// Whose chunks of terms are missing: of those that have them, or else of all who will.
    pub(super) fn waits_for(&self) -> Vec<u32> {
        let mut nodes: Vec<u32> = self.asked.values().map(|asked| asked.holder).collect();
        for (term, wanted) in self.wanted.iter().enumerate() {
            // The first chunk will do: holders that have it have what comes after it sooner or
            // later.
            let Some(&chunk) = wanted.front() else { continue };
            if let Some(sender) = self.terms[term].sender {
                nodes.push(sender);
                continue;
            }
            let holders = self.terms[term].holders.iter().filter(|holder| **holder != self.me);
            let has = |holder: &&u32| {
                let of = self.announced.get(&(term, **holder));
                of.is_some_and(|chunks| chunks.contains(&chunk))
            };
            let able: Vec<u32> = holders.clone().filter(has).copied().collect();
            if able.is_empty() { nodes.extend(holders) } else { nodes.extend(able) }
        }
        nodes
    }
}

#[cfg(test)]
mod tests;
