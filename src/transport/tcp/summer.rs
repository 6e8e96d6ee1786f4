//! All exchanges a node takes part in, and the sums it keeps of those that are over.

use super::block::{Block, Blocks, Vectors};
use super::canvas::{Canvas, Canvases, Claim};
use super::exchange::{Exchange, Outgoing, Plan, Sum, chunks_of};
use super::pipe::{Frame, Shop};
use super::pushes::{Came, Sent};
use crate::ids::{Step, Task};
use crate::transport::wire::{Format, Header, Kind, chunks};
use crate::transport::{Piece, What};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

type Key = (Step, u32);

/// Results of one worker that may wait for a plan.
const PUSHES_MAX: usize = 8;

/// The results of which a plan makes a sum, whose they are, and which order each answers.
fn results_of(plan: &Plan) -> Vec<(u32, Task, u32)> {
    let of = |(piece, order): (&Piece, &u64)| match piece.what {
        What::Result(task) => Some((piece.worker.0, task.in_header(), *order as u32)),
        What::Sum => None,
    };
    plan.terms
        .iter()
        .zip(&plan.orders)
        .flat_map(|(term, orders)| term.holders.iter().zip(orders).filter_map(of))
        .collect()
}

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
    /// Whether digests are of bits, as a fabric takes them.
    of_bits: bool,
    blocks: Blocks,
    open: BTreeMap<Key, Open>,
    sums: VecDeque<Sum>,
    /// Which of them are from before the present connection to the coordinator.
    before: BTreeSet<Key>,
    kept_max: usize,
    /// Steps below this one take no new exchange.
    first: Step,
    vectors: Vectors,
    canvases: Canvases,
    /// Results that were sent, and have come, before a plan.
    pub(super) sent: Sent,
    pub(super) came: Came,
}

impl Summer {
    pub(super) fn new(shop: &Shop, length: usize, vectors: Vectors, kept_max: usize) -> Self {
        Self {
            me: shop.stamp.worker,
            length,
            format: shop.stamp.format,
            of_bits: shop.of_bits,
            blocks: shop.blocks.clone(),
            open: BTreeMap::new(),
            sums: VecDeque::new(),
            before: BTreeSet::new(),
            kept_max,
            first: Step(0),
            vectors,
            canvases: shop.canvases.clone(),
            sent: Sent::default(),
            came: Came::new(shop.blocks.clone()),
        }
    }

    /// Exchanges under way and sums that are kept.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.sums.len() + self.came.len()
    }

    fn entry(&mut self, key: Key, now: Instant) -> &mut Open {
        let (me, length) = (self.me, self.length);
        let (blocks, vectors, canvases) = (&self.blocks, &self.vectors, &self.canvases);
        self.open.entry(key).or_insert_with(|| {
            let out = Arc::new(Canvas::new(vectors.take(length)));
            canvases.hang(key.0, key.1, &out);
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
        self.supersede(key.0, key.1);
        if self.sum(key.0, key.1).is_some() {
            return Vec::new();
        }
        let results = results_of(&plan);
        self.entry(key, now);
        let Self { me, format, open, sent, came, .. } = self;
        let Some(open) = open.get_mut(&key).filter(|open| !open.planned) else { return Vec::new() };
        (open.planned, open.progressed) = (true, now);
        out.extend(open.exchange.join(plan, *format, held, sent));
        let mut early = std::mem::take(&mut open.early);
        for (node, task, order) in results {
            if node == *me {
                sent.planned(task);
                continue;
            }
            for (header, block) in came.take(node, task, order) {
                match open.exchange.term_of(&header, node) {
                    Some(piece) => early.push((Header { piece, ..header }, node, block)),
                    None => self.blocks.give(block),
                }
            }
        }
        early
            .into_iter()
            .filter_map(|(header, from, block)| open.exchange.term(&header, from, block).err())
            .collect()
    }

    /// An attempt at a step is begun: older ones are given up, and what it was for another
    /// coordinator.
    pub(super) fn supersede(&mut self, step: Step, attempt: u32) {
        self.open.retain(|other, _| other.0 != step || other.1 >= attempt);
        if self.before.remove(&(step, attempt))
            && let Some(at) =
                self.sums.iter().position(|sum| (sum.step, sum.attempt) == (step, attempt))
        {
            self.sums.remove(at).into_iter().for_each(|sum| self.vectors.give(sum.vector));
        }
    }

    /// Takes in a chunk of a result that a worker has sent before it knows of a plan.
    pub(super) fn pushed(
        &mut self,
        header: &Header,
        from: u32,
        block: Block,
        now: Instant,
    ) -> Result<(), String> {
        for open in self.open.values_mut().filter(|open| open.planned) {
            if let Some(piece) = open.exchange.term_of(header, from) {
                open.progressed = now;
                return open.exchange.term(&Header { piece, ..*header }, from, block);
            }
        }
        let most = PUSHES_MAX * chunks(self.length);
        self.came.put(from, *header, block, most);
        Ok(())
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
        let whole = self.sum(key.0, key.1).is_some() && !self.before.contains(&key);
        if newer || key.0 < self.first || whole {
            self.blocks.give(block);
            return Ok(());
        }
        let early_max = 2 * chunks(self.length) + 64;
        let ahead = key.0.0 > self.first.0 + 2 * self.kept_max as u64 + 64;
        if ahead {
            return Err(format!(
                "a chunk of {} while steps from {} on are under way",
                key.0, self.first
            ));
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

    /// Takes in a chunk of a sum that was read into the place where it belongs.
    pub(super) fn landed(
        &mut self,
        header: &Header,
        from: u32,
        claim: &Claim,
        now: Instant,
    ) -> Result<(), String> {
        if let Some(open) = self.open.get_mut(&(Step(header.number), header.attempt))
            && open.exchange.landed(header, claim)
        {
            open.progressed = now;
            return Ok(());
        }
        // The exchange may have been begun anew meanwhile.
        let mut block = self.blocks.take(header.count(), header.format);
        match claim.with(|bytes| block.bytes_mut().copy_from_slice(bytes)) {
            Some(()) => self.chunk(header, from, block, now),
            None => {
                self.blocks.give(block);
                Ok(())
            }
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
        let (whole, open): (BTreeMap<_, _>, _) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(_, open)| open.exchange.is_whole());
        self.open = open;
        let done: Vec<Sum> =
            whole.into_values().map(|open| open.exchange.finish(self.of_bits)).collect();
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
            if let Some(sum) = self.sums.pop_front() {
                self.before.remove(&(sum.step, sum.attempt));
                self.vectors.give(sum.vector);
            }
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
        self.sum(step, attempt).map(|sum| chunks_of(sum, 0, self.length).collect())
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
        planned
            .flat_map(|(key, open)| open.exchange.owed_to(node, |what| held(key.0, what)))
            .collect()
    }

    /// Gives up everything under way. Sums are kept, for steps that are decided; a coordinator that
    /// was restarted may make some of them again.
    pub(super) fn reset(&mut self) {
        self.open.clear();
        (self.sent, self.came) = (Sent::default(), Came::new(self.blocks.clone()));
        self.before = self.sums.iter().map(|sum| (sum.step, sum.attempt)).collect();
    }

    /// Exchanges for which nothing has come for so long, and whose chunks are missing.
    pub(super) fn stalled(&self, now: Instant, patience: Duration) -> Vec<(Step, u32, Vec<u32>)> {
        let old = self.open.iter().filter(|(_, open)| {
            open.planned && now.saturating_duration_since(open.progressed) > patience
        });
        old.map(|((step, attempt), open)| (*step, *attempt, open.exchange.waits_for())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Source;
    use crate::ids::Worker;
    use crate::transport::Summand;
    use crate::transport::tcp::block::Body;
    use crate::transport::wire::{CHUNK, COORDINATOR, Owner, chunk_range};

    /// A worker that takes over a state goes on receiving the sum of the step that comes after it.
    #[test]
    fn a_sum_under_way_outlives_a_state() {
        let length = 2 * CHUNK;
        let shop = Shop::of_tests(1, length);
        let blocks = shop.blocks.clone();
        let mut summer = Summer::new(&shop, length, Vectors::default(), 4);
        let come =
            |summer: &mut Summer, step: u64, chunk: usize| {
                let range = chunk_range(chunk, length);
                let header = Header::chunk(Kind::Sum, Format::F32, range.start, range.len())
                    .of_step(Step(step), 0, 0);
                summer
                    .chunk(&header, 0, blocks.take(range.len(), Format::F32), Instant::now())
                    .unwrap();
            };
        come(&mut summer, 6, 0);
        come(&mut summer, 7, 0);
        summer.moved(Step(7));
        come(&mut summer, 6, 1);
        come(&mut summer, 7, 1);
        assert_eq!(summer.finished().iter().map(|sum| sum.step).collect::<Vec<_>>(), [Step(7)]);
    }

    /// What was sent before the plan is not sent again, and is summed; what answers another order
    /// is not.
    #[test]
    fn results_that_came_before_the_plan_are_its_terms() {
        let length = 2 * CHUNK;
        let task = Task { job: crate::ids::Job(7), piece: 1, plan: 0 };
        let plan = |attempt: u32| {
            let holders = vec![Piece { worker: Worker(1), what: What::Result(task) }];
            let owners =
                vec![Owner { node: 0, start: 0, end: 1 }, Owner { node: 1, start: 1, end: 2 }];
            let terms = vec![Summand { weight: 2.0, holders }];
            Plan {
                step: Step(7),
                attempt,
                places: Vec::new(),
                terms,
                orders: vec![vec![5]],
                owners,
                receivers: vec![0, 1],
            }
        };
        let (shops, now) = ([0, 1].map(|node| Shop::of_tests(node, length)), Instant::now());
        for (order, sent_again) in [(5, 0), (4, 1)] {
            let [mut owner, mut source] =
                [0, 1].map(|node| Summer::new(&shops[node], length, Vectors::default(), 4));
            let vector = Arc::new(vec![1.5; length]);
            let owners = plan(0).owners;
            let frame =
                crate::transport::tcp::landing::frames(&vector, task, order).next().unwrap();
            let mut block = shops[0].blocks.take(CHUNK, Format::F32);
            block.fill(frame.body.floats().unwrap());
            owner.pushed(&frame.header, 1, block, now).unwrap();
            source.sent.note(task, order as u32, owners);
            let mut out = Vec::new();
            assert!(source.begin(plan(0), |_| Some(Arc::clone(&vector)), now, &mut out).is_empty());
            assert_eq!(out.len(), sent_again);
            assert!(owner.begin(plan(0), |_| None, now, &mut Vec::new()).is_empty());
            let mut sums = Vec::new();
            assert_eq!(owner.work(&mut sums), sent_again == 0);
            assert!(
                sums.iter().all(|(_, frame)| matches!(&frame.body, Body::Block(block) if matches!(block.source(), Source::F32([3.0, ..]))))
            );
            out.clear();
            source.begin(plan(1), |_| Some(Arc::clone(&vector)), now, &mut out);
            assert_eq!(out.len(), 1, "another attempt gets all of it");
        }
    }

    /// A coordinator that was restarted can come to a step that was held before, and not applied by
    /// anybody.
    #[test]
    fn a_step_is_summed_again_for_another_coordinator() {
        let mut summer = Summer::new(&Shop::of_tests(0, 3), 3, Vectors::default(), 4);
        let key = (Step(7), 0);
        let sends = |summer: &mut Summer| {
            let holders = vec![Piece { worker: Worker(0), what: What::Sum }];
            let owners = vec![Owner { node: COORDINATOR, start: 0, end: 1 }];
            let terms = vec![Summand { weight: 1.0, holders }];
            let mut out = Vec::new();
            let plan = Plan {
                step: key.0,
                attempt: key.1,
                places: Vec::new(),
                terms,
                orders: Vec::new(),
                owners,
                receivers: vec![0, COORDINATOR],
            };
            let wrong =
                summer.begin(plan, |_| Some(Arc::new(vec![1.0; 3])), Instant::now(), &mut out);
            assert!(wrong.is_empty());
            out.len()
        };
        summer.keep(Sum {
            step: key.0,
            attempt: key.1,
            vector: Arc::new(vec![2.0; 3]),
            digest: 5,
            finite: true,
            spoilt: BTreeSet::new(),
        });
        assert_eq!(sends(&mut summer), 0, "it is whole");
        summer.reset();
        assert!(summer.has(key.0, key.1, 5), "if it is decided, it is applied");
        assert_eq!(sends(&mut summer), 1);
        assert!(!summer.has(key.0, key.1, 5) && summer.is_open(key.0, key.1));
    }
}
