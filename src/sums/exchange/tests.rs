//! Nodes of one run and what lies between them, twice: a simulation in which chunks come in any
//! order, more than once, and workers are lost; and threads with channels.

#![cfg(test)]

use super::plan::{nodes_of, of_all_stripes};
use super::*;
use crate::ids::{Job, OrderId, Piece, Step, Summand, Task};
use crate::run::NumberFormat;
use crate::sums::collective::ResultStore;
use crate::sums::ledger::Ledger;
use crate::sums::{
    CHUNK, Header, Kind, NotFinite, PeerMessage, SumCommand, SumId, SumNotice, SumPlan, SumReport,
    chunk_range, chunks, lock,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// What goes from one node to another.
#[derive(Clone, Debug)]
enum Packet {
    ToWorker(SumCommand),
    FromWorker(SumReport),
    Changed(Task),
    Across(PeerMessage),
    Chunk(Frame),
}

enum Machine {
    Coordinator(Box<CoordinatorSums>),
    Worker(Box<WorkerSums>),
}

/// How the sum that was expected of a step went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expectation {
    Told,
    Confirmed,
    Replaced,
}

/// A machine with what its driver has beside it.
struct Node {
    me: u32,
    length: usize,
    machine: Machine,
    blocks: Blocks,
    buffers: ReassemblyBuffers,
    reports: Vec<(Worker, SumNotice)>,
    given_up: Vec<(u32, String)>,
    expectations: Vec<Expectation>,
    /// A worker's results.
    ledger: Arc<Mutex<Ledger>>,
}

type Sent = Vec<(u32, Packet)>;

/// Any moment: only differences count.
#[expect(clippy::disallowed_methods, reason = "a machine is told the time, from anywhere on")]
fn some_time() -> Instant {
    Instant::now()
}

impl Node {
    fn new(context: &NodeContext, machine: Machine) -> Self {
        Self {
            me: context.me,
            length: context.length,
            machine,
            blocks: context.blocks.clone(),
            buffers: context.buffers.clone(),
            reports: Vec::new(),
            given_up: Vec::new(),
            expectations: Vec::new(),
            ledger: Arc::default(),
        }
    }

    fn coordinator(workers: u32, length: usize, settings: SumSettings) -> Self {
        let context = NodeContext::of_tests(COORDINATOR, length);
        let mut sums = CoordinatorSums::new(settings, context.clone(), None);
        for worker in 0..workers {
            let connected = CoordinatorEvent::Connected { worker, epoch: 1, reachable: true };
            sums.handle(some_time(), connected, &mut Vec::new());
        }
        Self::new(&context, Machine::Coordinator(Box::new(sums)))
    }

    fn worker(me: u32, vector: Vec<f32>) -> Self {
        let node = Self::at_work(me, vector.len());
        lock(&node.ledger).keep(TASK, vector);
        node
    }

    /// A worker that has no result yet.
    fn at_work(me: u32, length: usize) -> Self {
        let context = NodeContext::of_tests(me, length);
        let ledger: Arc<Mutex<Ledger>> = Arc::default();
        let results = HostResults::new(Arc::clone(&ledger), context.vectors.clone());
        let results: Box<dyn ResultStore> = Box::new(results);
        let sums = WorkerSums::new(context.clone(), results);
        Self { ledger, ..Self::new(&context, Machine::Worker(Box::new(sums))) }
    }

    /// Tells the coordinator's machine something.
    fn coordinate(&mut self, now: Instant, event: CoordinatorEvent) -> Sent {
        let Machine::Coordinator(sums) = &mut self.machine else { unreachable!() };
        let mut effects = Vec::new();
        let before = sums.counts();
        sums.handle(now, event, &mut effects);
        let after = sums.counts();
        for (what, more) in [
            (Expectation::Told, after.expected - before.expected),
            (Expectation::Confirmed, after.confirmed - before.confirmed),
            (Expectation::Replaced, after.replaced - before.replaced),
        ] {
            self.expectations.extend(std::iter::repeat_n(what, more as usize));
        }
        self.carry_out(effects)
    }

    /// Tells a worker's machine something.
    fn work_on(&mut self, now: Instant, event: WorkerEvent) -> Sent {
        let Machine::Worker(sums) = &mut self.machine else { unreachable!() };
        let mut effects = Vec::new();
        sums.handle(now, event, &mut effects);
        sent_by(effects)
    }

    fn carry_out(&mut self, effects: Vec<CoordinatorEffect>) -> Sent {
        let mut sent = Vec::new();
        for effect in effects {
            match effect {
                CoordinatorEffect::Send { to, frame, .. } => {
                    sent.push((to, Packet::Chunk(frame)));
                }
                CoordinatorEffect::Tell { to, command } => {
                    sent.extend(to.into_iter().map(|to| (to, Packet::ToWorker(*command.clone()))));
                }
                CoordinatorEffect::Report { worker, notice } => {
                    self.reports.push((worker, notice));
                }
                CoordinatorEffect::GiveUp { worker, reason } => {
                    self.given_up.push((worker, reason));
                }
                CoordinatorEffect::Answered { .. } => {}
            }
        }
        sent
    }

    /// A chunk as a connection reads it: into its place if there is one, else into a block.
    fn read(&self, from: u32, frame: &Frame) -> (Header, Result<WriteSlot, Block>) {
        let bytes = frame.body.bytes();
        let mut header = Header { worker: from, length: bytes.len() as u32, ..frame.header };
        if header.kind == Kind::Sum && header.digest == 0 {
            header.digest = xxh3_64(bytes);
        }
        if let Some(slot) = self.buffers.slot(&header) {
            slot.with(|place| place.copy_from_slice(bytes)).unwrap();
            header.finite = slot.with(|place| is_finite(place)).unwrap();
            return (header, Ok(slot));
        }
        let mut block = self.blocks.take(header.count(), header.format);
        block.bytes_mut().copy_from_slice(bytes);
        (header, Err(block))
    }

    fn takes(&mut self, now: Instant, from: u32, packet: Packet) -> Sent {
        let mut sent = match packet {
            Packet::ToWorker(command) => self.work_on(now, WorkerEvent::Told(command)),
            Packet::FromWorker(report) => {
                self.coordinate(now, CoordinatorEvent::Said { worker: from, report })
            }
            Packet::Changed(task) => {
                let worker = Worker(from);
                self.coordinate(now, CoordinatorEvent::Changed { worker, order: OrderId(1), task })
            }
            Packet::Across(message) => self.work_on(now, WorkerEvent::Peer { from, message }),
            Packet::Chunk(frame) => {
                let (header, came) = self.read(from, &frame);
                if matches!(self.machine, Machine::Coordinator(_)) {
                    self.coordinate(
                        now,
                        match came {
                            Ok(slot) => CoordinatorEvent::Placed { from, header, slot },
                            Err(block) => CoordinatorEvent::Chunk { from, header, block },
                        },
                    )
                } else {
                    self.work_on(
                        now,
                        match came {
                            Ok(slot) => WorkerEvent::Placed { from, header, slot },
                            Err(block) => WorkerEvent::Chunk { from, header, block },
                        },
                    )
                }
            }
        };
        sent.extend(self.works(now));
        sent
    }

    fn works(&mut self, now: Instant) -> Sent {
        match &mut self.machine {
            Machine::Coordinator(sums) => {
                let mut effects = Vec::new();
                while sums.work(&mut effects) {}
                sums.finish(now, &mut effects);
                self.carry_out(effects)
            }
            Machine::Worker(sums) => {
                let mut effects = Vec::new();
                while sums.work(&mut effects) {}
                sums.finish(&mut effects);
                sent_by(effects)
            }
        }
    }

    fn tick(&mut self, now: Instant) -> Sent {
        let mut sent = match self.machine {
            Machine::Coordinator(_) => self.coordinate(now, CoordinatorEvent::Tick),
            Machine::Worker(_) => self.work_on(now, WorkerEvent::Tick),
        };
        sent.extend(self.works(now));
        sent
    }

    /// The sum, with these bytes, that a worker holds.
    fn sum(&self, id: SumId, digest: u64) -> Option<Vec<f32>> {
        let Machine::Worker(sums) = &self.machine else { unreachable!() };
        let sum = sums.vector(id).filter(|_| sums.has(id, digest))?;
        Some(sum.to_vec())
    }
}

fn sent_by(effects: Vec<WorkerEffect>) -> Sent {
    let packets = |effect| match effect {
        WorkerEffect::Send { to, frame, .. } => vec![(to, Packet::Chunk(frame))],
        WorkerEffect::TellPeers { to, message } => {
            to.into_iter().map(|to| (to, Packet::Across(message.clone()))).collect()
        }
        WorkerEffect::Tell(report) => vec![(COORDINATOR, Packet::FromWorker(report))],
        WorkerEffect::Collective(_) | WorkerEffect::Owing(_) => vec![],
    };
    effects.into_iter().flat_map(packets).collect()
}

const TASK: Task = Task { job: Job(0), piece: 0, plan: 0 };

const SETTINGS: SumSettings = SumSettings {
    exchange: Exchange::Sharded,
    beside: None,
    log_steps: 2,
    stall: Duration::from_secs(5),
    spare: Duration::from_millis(500),
};

/// In every third run all sums come to the coordinator too.
fn beside(seed: u64) -> Option<u32> {
    seed.is_multiple_of(3).then_some(COORDINATOR)
}

/// Numbers whose sum depends on the order in which they are added.
fn vector(group: u32, length: usize) -> Vec<f32> {
    (0..length).map(|at| ((at * 7 + group as usize * 3) % 11) as f32 / 7.0).collect()
}

/// One term per group of two, which either member has.
fn terms(groups: u32, lost: &BTreeSet<u32>) -> Vec<Summand> {
    let piece = |worker| Piece { worker: Worker(worker), task: TASK };
    let holders = |group: u32| {
        let members = [2 * group, 2 * group + 1].into_iter();
        members.filter(|member| !lost.contains(member)).map(piece).collect()
    };
    (0..groups).map(|group| Summand { weight: 1.0, holders: holders(group) }).collect()
}

/// A sum of the one step.
fn of_step(attempt: u32) -> SumId {
    SumId { step: Step(0), attempt }
}

fn sum_of(attempt: u32, terms: Vec<Summand>, counted: BTreeSet<u32>) -> CoordinatorEvent {
    CoordinatorEvent::Sum { sum: of_step(attempt), terms, spares_one: false, counted }
}

fn whole(groups: u32, length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    for group in 0..groups {
        sum.iter_mut().zip(vector(group, length)).for_each(|(sum, x)| *sum += x);
    }
    sum
}

/// What is under way between the nodes of a simulated run, and what has happened to it.
struct World {
    draw: ChaCha8Rng,
    now: Instant,
    coordinator: Node,
    workers: Vec<Node>,
    lost: BTreeSet<u32>,
    under_way: Vec<(u32, u32, Packet)>,
    attempt: u32,
    groups: u32,
    /// What was delivered, in order.
    digest: u64,
    /// Of workers that are still computing, how many of the chunks are final, from the last on.
    computing: BTreeMap<u32, usize>,
    /// No worker is lost, and no connection breaks.
    is_calm: bool,
    /// Members of a group have results with other bits.
    differ: bool,
    /// Chunks of terms that came.
    terms_came: usize,
    /// A worker of whose own sums nothing comes: it sends others.
    liar: Option<u32>,
    /// Whether worker 3 sends no chunks of terms.
    mute: bool,
    /// Why the liar was given up.
    reasons: Vec<String>,
}

impl World {
    fn new(seed: u64, settings: SumSettings) -> Self {
        let mut draw = ChaCha8Rng::seed_from_u64(seed);
        let groups = 1 + draw.next_u32() % 3;
        let length = 1 + draw.next_u32() as usize % (2 * CHUNK);
        Self::of(draw, groups, length, settings)
    }

    fn of(draw: ChaCha8Rng, groups: u32, length: usize, settings: SumSettings) -> Self {
        let workers = 2 * groups;
        Self {
            draw,
            now: some_time(),
            coordinator: Node::coordinator(workers, length, settings),
            workers: (0..workers).map(|me| Node::worker(me, vector(me / 2, length))).collect(),
            lost: BTreeSet::new(),
            under_way: Vec::new(),
            attempt: 0,
            groups,
            digest: 0,
            computing: BTreeMap::new(),
            is_calm: false,
            differ: false,
            terms_came: 0,
            liar: None,
            mute: false,
            reasons: Vec::new(),
        }
    }

    /// What a worker computes.
    fn result(&self, at: u32) -> Vec<f32> {
        let mut vector = vector(at / 2, self.length());
        if self.differ && at % 2 == 1 {
            vector.iter_mut().for_each(|x| *x *= 1.5);
        }
        vector
    }

    /// The same before a worker has computed anything, with what the step will be made of told.
    fn expecting(seed: u64, settings: SumSettings) -> Self {
        let mut draw = ChaCha8Rng::seed_from_u64(seed);
        let groups = 1 + draw.next_u32() % 3;
        let length = 1 + draw.next_u32() as usize % (9 * CHUNK);
        Self::of(draw, groups, length, settings).at_work()
    }

    fn at_work(mut self) -> Self {
        let (workers, length) = (2 * self.groups, self.length());
        self.workers = (0..workers).map(|me| Node::at_work(me, length)).collect();
        self.computing = (0..workers).map(|me| (me, 0)).collect();
        self.expect();
        self
    }

    /// Has the step expected to be made of what those have who are there.
    fn expect(&mut self) {
        let terms = terms(self.groups, &self.lost);
        let expect = CoordinatorEvent::Expect { sum: of_step(self.attempt), terms };
        let sent = self.coordinator.coordinate(self.now, expect);
        self.send(COORDINATOR, sent);
    }

    /// Whether the attempt is to be begun again, by its next number.
    fn has_failed(&mut self) -> bool {
        let current = self.attempt;
        let failed = |(_, said): &(Worker, SumNotice)| match said {
            SumNotice::Failed { sum } => sum.attempt == current,
            _ => false,
        };
        let failed = self.coordinator.reports.iter().any(failed);
        self.attempt += u32::from(failed);
        failed
    }

    /// A worker's result is final in so many parts, the last numbers first; of one that is late
    /// only the first half of them.
    fn compute_in_parts(&mut self, at: u32, parts: usize, is_late: bool) {
        let (count, whole) = (chunks(self.length()), self.result(at));
        let edge = |part: usize| count * part / parts;
        let mut events = Vec::new();
        for part in (if is_late { parts.div_ceil(2) } else { 1 }..parts).rev() {
            let chunks = edge(part)..edge(part + 1);
            if !chunks.is_empty() {
                let start = chunk_range(chunks.start, whole.len()).start;
                let end = chunk_range(chunks.end - 1, whole.len()).end;
                let numbers = Arc::new(whole[start..end].to_vec());
                events.push(WorkerEvent::Announced { task: TASK, chunks, numbers });
            }
        }
        if !is_late {
            self.computing.remove(&at);
            lock(&self.workers[at as usize].ledger).keep(TASK, whole);
            events.push(WorkerEvent::Computed { task: TASK });
        }
        for event in events {
            let sent = self.workers[at as usize].work_on(self.now, event);
            self.send(at, sent);
        }
    }

    /// A worker that is computing has a part more, or all of it.
    fn compute(&mut self) {
        let alive: Vec<u32> =
            self.computing.keys().copied().filter(|at| !self.lost.contains(at)).collect();
        let Some(at) = alive.get(self.draw.next_u32() as usize % alive.len().max(1)).copied()
        else {
            return;
        };
        let length = self.length();
        let (count, known) = (chunks(length), self.computing[&at]);
        let more = 1 + self.draw.next_u32() as usize % 3;
        let whole = self.result(at);
        let node = &mut self.workers[at as usize];
        let event = if known + more > count {
            self.computing.remove(&at);
            lock(&node.ledger).keep(TASK, whole);
            WorkerEvent::Computed { task: TASK }
        } else {
            self.computing.insert(at, known + more);
            let chunks = count - known - more..count - known;
            let start = chunk_range(chunks.start, length).start;
            let end = chunk_range(chunks.end - 1, length).end;
            let numbers = Arc::new(whole[start..end].to_vec());
            WorkerEvent::Announced { task: TASK, chunks, numbers }
        };
        let sent = node.work_on(self.now, event);
        self.send(at, sent);
    }

    /// Whether a worker of every group has computed its result and is there.
    fn is_computed(&self) -> bool {
        let has = |at: &u32| !self.computing.contains_key(at) && !self.lost.contains(at);
        (0..self.groups).all(|group| has(&(2 * group)) || has(&(2 * group + 1)))
    }

    /// Makes a sum while it is computed, through all faults; gives what became of what was
    /// expected.
    fn run_expected(mut self) -> (u64, Vec<Expectation>) {
        let held = |world: &Self| {
            let held = |notice: &SumNotice| matches!(notice, SumNotice::Held { .. });
            world.coordinator.reports.iter().any(|(_, notice)| held(notice))
        };
        while !self.is_computed() {
            assert!(!held(&self), "nothing is said before the sum is asked for");
            if self.chance(2) && self.has_failed() {
                self.expect();
            }
            match self.draw.next_u32() % 4 {
                0 => self.compute(),
                _ if !self.under_way.is_empty() => self.deliver(),
                _ => self.tick(),
            }
            if self.chance(200) {
                self.lose();
            }
            if self.chance(100) {
                self.break_connection();
            }
        }
        self.run()
    }

    fn length(&self) -> usize {
        self.coordinator.length
    }

    fn send(&mut self, from: u32, sent: Sent) {
        let is_lied_about = |packet: &Packet| {
            let is_of = |of: Kind| matches!(packet, Packet::Chunk(it) if it.header.kind == of);
            Some(from) == self.liar && is_of(Kind::Sum)
                || self.mute && from == 3 && is_of(Kind::Term)
        };
        let alive = sent.into_iter().filter(|(to, _)| !self.lost.contains(to));
        let sent = alive.filter(|(_, packet)| !is_lied_about(packet));
        self.under_way.extend(sent.map(|(to, packet)| (from, to, packet)));
    }

    fn begin(&mut self) {
        let gone = self.computing.keys().chain(&self.lost).copied().collect();
        let terms = terms(self.groups, &gone);
        let sum = CoordinatorEvent::Sum {
            sum: of_step(self.attempt),
            terms,
            spares_one: false,
            counted: self.present(),
        };
        let mut sent = self.coordinator.coordinate(self.now, sum);
        sent.extend(self.coordinator.works(self.now));
        self.send(COORDINATOR, sent);
    }

    fn present(&self) -> BTreeSet<u32> {
        (0..self.workers.len() as u32).filter(|at| !self.lost.contains(at)).collect()
    }

    fn chance(&mut self, of: u32) -> bool {
        self.draw.next_u32().is_multiple_of(of)
    }

    /// Delivers a message, in any order.
    fn deliver(&mut self) {
        let mut at = self.draw.next_u32() as usize % self.under_way.len();
        let (from, to, _) = self.under_way[at];
        if !matches!(self.under_way[at].2, Packet::Chunk(_)) {
            // Messages overtake no messages.
            let same = |other: &(u32, u32, Packet)| {
                (other.0, other.1) == (from, to) && !matches!(other.2, Packet::Chunk(_))
            };
            at = self.under_way.iter().position(same).unwrap();
        }
        let again = !self.is_calm && self.chance(20);
        let packet = if matches!(self.under_way[at].2, Packet::Chunk(_)) && again {
            self.under_way[at].2.clone()
        } else {
            self.under_way.remove(at).2
        };
        self.terms_came +=
            usize::from(matches!(&packet, Packet::Chunk(frame) if frame.header.kind == Kind::Term));
        let what = match &packet {
            Packet::Chunk(frame) => format!("{:?}", frame.header),
            message => format!("{message:?}"),
        };
        self.digest = xxh3_64(format!("{} {from} {to} {what}", self.digest).as_bytes());
        let node = match to {
            COORDINATOR => &mut self.coordinator,
            worker => &mut self.workers[worker as usize],
        };
        let sent = node.takes(self.now, from, packet);
        self.send(to, sent);
    }

    /// A worker whose partner is still there is lost.
    fn lose(&mut self) {
        let worker = self.draw.next_u32() % self.workers.len() as u32;
        let is_needed = |at: u32| self.lost.contains(&at) || self.computing.contains_key(&at);
        let begun = !self.coordinator.reports.is_empty() || self.is_computed();
        if self.lost.contains(&worker) || self.lost.contains(&(worker ^ 1)) {
            return;
        }
        if begun && is_needed(worker ^ 1) {
            return;
        }
        self.lose_worker(worker);
    }

    fn lose_worker(&mut self, worker: u32) {
        self.lost.insert(worker);
        self.under_way.retain(|(from, to, _)| *from != worker && *to != worker);
        let sent = self.coordinator.coordinate(self.now, CoordinatorEvent::Lost { worker });
        self.send(COORDINATOR, sent);
        // Some notice it, and some only that nothing comes.
        for at in (0..self.workers.len() as u32).filter(|at| at % 3 != worker % 3) {
            if !self.lost.contains(&at) {
                let over = WorkerEvent::Disconnected { worker };
                let sent = self.workers[at as usize].work_on(self.now, over);
                self.send(at, sent);
            }
        }
    }

    /// A connection between two workers breaks, with what was on it, and there is another.
    fn break_connection(&mut self) {
        let count = self.workers.len() as u32;
        let (one, other) = (self.draw.next_u32() % count, self.draw.next_u32() % count);
        if one == other || self.lost.contains(&one) || self.lost.contains(&other) {
            return;
        }
        self.under_way
            .retain(|(from, to, _)| (*from, *to) != (one, other) && (*from, *to) != (other, one));
        for (at, to) in [(one, other), (other, one)] {
            let over = WorkerEvent::Disconnected { worker: to };
            let sent = self.workers[at as usize].work_on(self.now, over);
            self.send(at, sent);
        }
        self.under_way
            .retain(|(from, to, _)| (*from, *to) != (one, other) && (*from, *to) != (other, one));
        for (at, to) in [(one, other), (other, one)] {
            let again = WorkerEvent::ConnectedAgain { worker: to };
            let sent = self.workers[at as usize].work_on(self.now, again);
            self.send(at, sent);
        }
    }

    /// The digest that all who are there hold, once they do.
    fn agreed(&self) -> Option<u64> {
        let held = |(worker, notice): &(Worker, SumNotice)| match notice {
            SumNotice::Held { sum, digest } if sum.attempt == self.attempt => {
                (!self.lost.contains(&worker.0)).then_some((worker.0, *digest))
            }
            _ => None,
        };
        // The last word counts, of one who says different things.
        let held: BTreeMap<u32, u64> = self.coordinator.reports.iter().filter_map(held).collect();
        let digests: BTreeSet<u64> = held.values().copied().collect();
        assert!(digests.len() <= 1, "all hold the same bytes");
        let all = held.len() + self.lost.len() == self.workers.len();
        digests.first().copied().filter(|_| all)
    }

    fn tick(&mut self) {
        self.now += TICK;
        let sent = self.coordinator.tick(self.now);
        self.send(COORDINATOR, sent);
        for at in 0..self.workers.len() as u32 {
            if !self.lost.contains(&at) {
                let sent = self.workers[at as usize].tick(self.now);
                self.send(at, sent);
            }
        }
    }

    /// Who sums each chunk of what is expected.
    fn expected_owners(&self) -> Vec<Option<u32>> {
        let count = chunks(self.length());
        let owners = |(_, _, packet): &(u32, u32, Packet)| match packet {
            Packet::ToWorker(SumCommand::Exchange(SumPlan {
                owners,
                stripe: Some(stripe),
                ..
            })) => Some(nodes_of(&of_all_stripes(owners, *stripe, count), count)),
            _ => None,
        };
        self.under_way.iter().find_map(owners).unwrap()
    }

    /// A worker sends others these numbers as the sum of a chunk.
    fn lie(&mut self, liar: u32, to: u32, chunk: usize, fill: f32) {
        let range = chunk_range(chunk, self.length());
        let header = Header::chunk(Kind::Sum, NumberFormat::F32, range.start, range.len())
            .of_sum(of_step(0), 0);
        let body = Body::Slice(Arc::new(vec![fill; range.len()]), 0..range.len());
        self.under_way.push((liar, to, Packet::Chunk(Frame { header, body })));
    }

    /// Makes one sum of results that are there though a worker lies; only that one may be lost for
    /// it. Gives why it was.
    fn run_against(self, liar: u32) -> Vec<String> {
        self.run_to_the_end(liar).1
    }

    /// The same; gives the coordinator too.
    fn run_to_the_end(mut self, liar: u32) -> (Node, Vec<String>) {
        let begun = self.now;
        self.begin();
        for _ in 0..20_000 {
            let given_up = std::mem::take(&mut self.coordinator.given_up);
            assert!(given_up.iter().all(|(worker, _)| *worker == liar), "{given_up:?}");
            if !given_up.is_empty() && !self.lost.contains(&liar) {
                self.lose_worker(liar);
            }
            self.reasons.extend(given_up.into_iter().map(|(_, reason)| reason));
            if let Some(digest) = self.agreed()
                && self.under_way.is_empty()
            {
                let there = self.workers.iter().filter(|node| !self.lost.contains(&node.me));
                let id = of_step(self.attempt);
                let right = whole(self.groups, self.length());
                assert!(there.map(|node| node.sum(id, digest).unwrap()).all(|x| x == right));
                assert!(self.now < begun + Duration::from_secs(2), "it is not waited for");
                return (self.coordinator, self.reasons);
            }
            let again = |(_, said): &(Worker, SumNotice)| match said {
                SumNotice::Failed { sum } | SumNotice::ResultNotFinite { sum } => {
                    sum.attempt == self.attempt
                }
                _ => false,
            };
            if self.coordinator.reports.iter().any(again) {
                self.attempt += 1;
                self.begin();
            }
            match self.under_way.is_empty() {
                true => self.tick(),
                false => self.deliver(),
            }
        }
        panic!("the sum is not made: {:?}", self.coordinator.reports);
    }

    /// Two groups of two, all but the liar with their results, before anything is summed.
    fn lied_to(seed: u64, liar: u32) -> Self {
        let draw = ChaCha8Rng::seed_from_u64(seed);
        let mut world = Self::of(draw, 2, 5 * CHUNK + 7, SETTINGS).at_work();
        world.is_calm = true;
        world.liar = Some(liar);
        world
    }

    fn compute_but_of(&mut self, liar: u32) {
        (0..4).for_each(|at| self.compute_in_parts(at, 1, at == liar));
    }

    /// Makes one sum, whatever happens; gives the digest of all that was delivered, and what
    /// became of what was expected.
    fn run(mut self) -> (u64, Vec<Expectation>) {
        self.begin();
        for _ in 0..20_000 {
            if let Some(digest) = self.agreed() {
                let there = self.workers.iter().filter(|node| !self.lost.contains(&node.me));
                let mut sums = there.map(|node| node.sum(of_step(self.attempt), digest).unwrap());
                let first = match self.differ {
                    true => sums.next().unwrap(),
                    false => whole(self.groups, self.length()),
                };
                assert!(sums.all(|sum| sum == first));
                assert!(self.coordinator.given_up.is_empty());
                return (self.digest, self.coordinator.expectations);
            }
            if self.chance(60) && !self.is_calm {
                self.lose();
            }
            if self.chance(30) && !self.is_calm {
                self.break_connection();
            }
            if self.has_failed() {
                self.begin();
            }
            if self.under_way.is_empty() {
                self.tick();
            } else {
                self.deliver();
            }
        }
        panic!("the sum is not made: {:?}", self.coordinator.reports);
    }
}

#[test]
fn a_sum_is_made_whatever_comes_first_and_whoever_is_lost() {
    let exchanges = [Exchange::Sharded, Exchange::Star].into_iter().cycle();
    for (seed, exchange) in (0..24).zip(exchanges) {
        let settings = SumSettings { exchange, beside: beside(seed), ..SETTINGS };
        let first = World::new(seed, settings).run().0;
        assert_eq!(first, World::new(seed, settings).run().0, "seed {seed}");
    }
}

/// A step that is summed while it is computed has the same sum for all who are late or lost.
#[test]
fn a_sum_is_made_while_it_is_computed() {
    let mut became = BTreeMap::new();
    for seed in 0..220 {
        let settings = SumSettings { beside: beside(seed), ..SETTINGS };
        let mut world = World::expecting(seed, settings);
        world.differ = seed % 2 == 0;
        let (_, expectations) = world.run_expected();
        for what in expectations {
            *became.entry(format!("{what:?}")).or_insert(0) += 1;
        }
    }
    let count = |what| became.get(what).copied().unwrap_or(0);
    assert!(count("Confirmed") > 150, "{became:?}");
    assert!(count("Told") > 250, "and some are told again: {became:?}");
}

/// Of a worker that is lost while half of a step is summed, only its own chunks are summed
/// again.
#[test]
fn what_is_summed_outlives_an_owner() {
    for lost in 0..4 {
        let draw = ChaCha8Rng::seed_from_u64(u64::from(lost));
        let count = 16;
        let mut world = World::of(draw, 2, count * CHUNK, SETTINGS).at_work();
        world.is_calm = true;
        let deliver_all = |world: &mut World| {
            while !world.under_way.is_empty() {
                world.deliver();
            }
        };
        (0..4).for_each(|at| world.compute_in_parts(at, 2, true));
        deliver_all(&mut world);
        assert_eq!(world.terms_came, count / 2, "half of all chunks lack a term each");
        world.lose_worker(lost);
        assert!(world.has_failed());
        world.expect();
        deliver_all(&mut world);
        assert!(world.terms_came <= count / 2 + count / 8, "{}", world.terms_came);
        (0..4).filter(|at| *at != lost).for_each(|at| world.compute_in_parts(at, 1, false));
        deliver_all(&mut world);
        assert!(world.terms_came <= count + count / 4, "{}", world.terms_came);
        let (_, expectations) = world.run();
        let told = [Expectation::Told, Expectation::Told, Expectation::Confirmed];
        assert_eq!(expectations, told);
    }
}

/// Whichever of each pair is late, and in however many parts results become final: the bits are
/// those of the one tree, and what was expected is confirmed.
#[test]
fn bits_depend_on_nobody_who_is_late_and_on_no_cut() {
    for (groups, parts) in [1, 2, 3].into_iter().flat_map(|n| [1, 3, 16].map(|b| (n, b))) {
        for straggling in 0..3u32.pow(groups) {
            let draw = ChaCha8Rng::seed_from_u64(u64::from(straggling));
            let mut world = World::of(draw, groups, 5 * CHUNK + 7, SETTINGS).at_work();
            world.is_calm = true;
            for at in 0..2 * groups {
                let of_pair = straggling / 3u32.pow(at / 2) % 3;
                world.compute_in_parts(at, parts, of_pair == 1 + at % 2);
            }
            let (_, expectations) = world.run();
            assert_eq!(expectations, [Expectation::Told, Expectation::Confirmed]);
        }
    }
}

/// What a worker sends of the sums of chunks that others sum counts for nothing.
#[test]
fn a_sum_counts_of_its_owner_alone() {
    for seed in 0..8 {
        let mut world = World::lied_to(seed, 3);
        world.liar = None;
        let owners = world.expected_owners();
        for (chunk, owner) in owners.into_iter().enumerate().filter(|(_, of)| *of != Some(3)) {
            let others = (0..3).filter(|to| Some(*to) != owner);
            others.for_each(|to| world.lie(3, to, chunk, 0.0));
        }
        world.compute_but_of(3);
        assert_eq!(world.run_against(3), Vec::<String>::new(), "no worker minds");
    }
}

/// A worker that sends each node another sum is found, and the sum is made again at once.
#[test]
fn who_sends_different_sums_is_given_up() {
    for seed in 0..8 {
        let mut world = World::lied_to(seed, 3);
        let owners = world.expected_owners();
        assert!(owners.contains(&Some(3)));
        for (chunk, _) in owners.iter().enumerate().filter(|(_, owner)| **owner == Some(3)) {
            (0..3).for_each(|to| world.lie(3, to, chunk, to as f32));
        }
        world.compute_but_of(3);
        let reasons = world.run_against(3);
        assert!(reasons.len() == 1 && reasons[0].contains("different bytes"), "{reasons:?}");
    }
}

/// A sum that is not finite is seen by who gets it, also if its owner denies it, and who sent
/// it is found, since all its terms are.
#[test]
fn who_sends_sums_that_are_not_finite_is_given_up() {
    for seed in 0..8 {
        let mut world = World::lied_to(seed, 3);
        let owners = world.expected_owners();
        for (chunk, _) in owners.iter().enumerate().filter(|(_, owner)| **owner == Some(3)) {
            (0..3).for_each(|to| world.lie(3, to, chunk, f32::NAN));
        }
        world.compute_but_of(3);
        let reasons = world.run_against(3);
        assert!(reasons.len() == 1 && reasons[0].contains("not finite"), "{reasons:?}");
    }
}

/// Of a worker that announces NaN, nothing counts: nodes ask the other holder for its terms, and no
/// worker is lost for what others sent. It is named once two have seen it.
#[test]
fn nan_after_an_announcement_are_their_senders_fault() {
    let mut named = 0;
    for seed in 0..16 {
        let mut world = World::lied_to(seed, 3);
        world.liar = None;
        // Announced as finite, at once.
        let length = world.length();
        let task = TASK;
        let (chunks, numbers) = (0..chunks(length), Arc::new(vec![f32::NAN; length]));
        let event = WorkerEvent::Announced { task, chunks, numbers };
        let sent = world.workers[3].work_on(world.now, event);
        world.send(3, sent);
        (0..6).for_each(|_| world.deliver());
        (0..3).for_each(|at| world.compute_in_parts(at, 1, false));
        let (coordinator, reasons) = world.run_to_the_end(3);
        let blamed = |(worker, notice): &(Worker, SumNotice)| match notice {
            SumNotice::ResultNotFinite { .. } => Some(worker.0),
            _ => None,
        };
        let blamed: BTreeSet<u32> = coordinator.reports.iter().filter_map(blamed).collect();
        assert!(blamed.is_subset(&BTreeSet::from([3])), "{blamed:?}");
        assert_eq!(reasons, Vec::<String>::new());
        named += blamed.len();
    }
    assert!(named > 4, "{named}");
}

/// What was announced and then changed is summed again also where the sum goes on without an owner
/// that is lost: chunks may have been made of it before.
#[test]
fn what_was_changed_counts_for_nothing_in_a_sum_that_is_carried_on() {
    for seed in 0..8 {
        let mut world = World::lied_to(seed, 3);
        world.liar = None;
        let (length, task) = (world.length(), TASK);
        let (chunks, numbers) = (0..chunks(length), Arc::new(vec![5.0; length]));
        let event = WorkerEvent::Announced { task, chunks, numbers };
        let sent = world.workers[3].work_on(world.now, event);
        world.send(3, sent);
        let deliver_all = |world: &mut World| {
            while !world.under_way.is_empty() {
                world.deliver();
            }
        };
        (0..2).for_each(|at| world.compute_in_parts(at, 2, true));
        deliver_all(&mut world);
        world.compute_but_of(3);
        world.begin();
        world.lose_worker(1);
        assert!(world.has_failed());
        world.begin();
        let changed =
            CoordinatorEvent::Changed { worker: Worker(3), order: OrderId(1), task: TASK };
        let sent = world.coordinator.coordinate(world.now, changed);
        world.send(COORDINATOR, sent);
        assert!(world.has_failed(), "seed {seed}");
        assert_eq!(world.run_against(3), Vec::<String>::new());
    }
}

type Lie = fn(&mut World);

const LIAR: u32 = 3;

/// Says something of a term that is expected to all others.
fn say_ready(world: &mut World, attempt: u32, term: u32, (start, end): (usize, usize)) {
    let word = PeerMessage::Ready { sum: of_step(attempt), term, start, end };
    (0..3).for_each(|to| world.under_way.push((LIAR, to, Packet::Across(word.clone()))));
}

/// Sends all others chunks of kinds, steps and attempts that are not its to send.
fn send_chunks(world: &mut World, kind: Kind, sum: SumId, term: u32) {
    let length = world.length();
    for (to, chunk) in (0..3).flat_map(|to| (0..chunks(length)).map(move |at| (to, at))) {
        let range = chunk_range(chunk, length);
        let header =
            Header::chunk(kind, NumberFormat::F32, range.start, range.len()).of_sum(sum, term);
        // Other numbers of its own result would be a lie about its gradient.
        let body = match (kind, term) {
            (Kind::Term, 1) => Body::Slice(Arc::new(world.result(LIAR)), range),
            _ => Body::Slice(Arc::new(vec![5.0; range.len()]), 0..range.len()),
        };
        world.under_way.push((LIAR, to, Packet::Chunk(Frame { header, body })));
    }
}

fn tell_coordinator(world: &mut World, report: SumReport) {
    world.under_way.push((LIAR, COORDINATOR, Packet::FromWorker(report)));
}

fn tell_not_finite(world: &mut World, sums_of: &[u32], terms_of: &[u32]) {
    let set = |nodes: &[u32]| nodes.iter().copied().collect();
    let of = NotFinite { sums_of: set(sums_of), terms_of: set(terms_of) };
    tell_coordinator(world, SumReport::NotFinite { sum: of_step(0), of });
}

/// What a worker that knows the token can say in the exchange behind the backward pass.
const LIES: [(&str, Lie); 22] = [
    ("silent", |_| {}),
    ("ready, and never sent", |world| {
        world.mute = true;
        say_ready(world, 0, 1, (0, 6));
    }),
    ("ready backwards", |world| say_ready(world, 0, 1, (3, 1))),
    ("ready beyond the end", |world| say_ready(world, 0, 1, (0, 7))),
    ("ready of largest numbers", |world| say_ready(world, u32::MAX, u32::MAX, (0, usize::MAX))),
    ("ready in overlapping parts", |world| {
        for part in [(0, 1), (2, 3), (1, 2), (0, 0)] {
            say_ready(world, 0, 1, part);
        }
    }),
    ("ready of another's term", |world| say_ready(world, 0, 0, (0, 6))),
    ("ready of other attempts", |world| {
        (1..2000).for_each(|attempt| say_ready(world, attempt, 1, (0, 6)));
    }),
    ("terms that no worker asked for", |world| send_chunks(world, Kind::Term, of_step(0), 1)),
    ("terms of others", |world| send_chunks(world, Kind::Term, of_step(0), 0)),
    ("terms of an older attempt", |world| send_chunks(world, Kind::Term, of_step(7), 1)),
    ("sums of other attempts", |world| {
        (1..20).for_each(|attempt| send_chunks(world, Kind::Sum, of_step(attempt), 0));
    }),
    ("sums of other steps", |world| {
        (1..60).for_each(|step| send_chunks(world, Kind::Sum, SumId::first(Step(step)), 0));
    }),
    ("sums of all workers", |world| send_chunks(world, Kind::Sum, of_step(0), 0)),
    ("asks for what is not its", |world| {
        for (to, term) in (0..3).flat_map(|to| [0, 1, 9].map(|term| (to, term))) {
            let ask = |chunk| PeerMessage::Ask { sum: of_step(0), term, chunk };
            let asks = [0, 5, usize::MAX].map(|chunk| (LIAR, to, Packet::Across(ask(chunk))));
            world.under_way.extend(asks);
        }
    }),
    ("holds other bytes", |world| {
        let held = SumReport::Held { sum: of_step(0), digest: Some(1) };
        tell_coordinator(world, held);
    }),
    ("holds what it has not got", |world| {
        let held = SumReport::Held { sum: of_step(0), digest: None };
        tell_coordinator(world, held);
    }),
    ("not finite", |world| tell_not_finite(world, &[], &[])),
    ("an owner's sum is not finite", |world| tell_not_finite(world, &[0], &[])),
    ("others' terms are not finite", |world| tell_not_finite(world, &[], &[0, 1, 2])),
    ("announced, then changed", |world| {
        let (length, task) = (world.length(), TASK);
        let (chunks, numbers) = (0..chunks(length), Arc::new(vec![5.0; length]));
        let event = WorkerEvent::Announced { task, chunks, numbers };
        let sent = world.workers[LIAR as usize].work_on(world.now, event);
        world.send(LIAR, sent);
        (0..6).for_each(|_| world.deliver());
        world.under_way.push((LIAR, COORDINATOR, Packet::Changed(task)));
    }),
    ("others' chunks did not come", |world| {
        let digests = vec![Some(7); 6];
        tell_coordinator(world, SumReport::ChunkDigests { sum: of_step(0), digests });
    }),
];

/// A worker says or sends what it must not: the sum has the right bits, in time, and no other is
/// lost or named.
#[test]
fn no_lie_costs_bits_time_or_others() {
    for ((name, lie), seed) in LIES.into_iter().flat_map(|lie| (0..4).map(move |at| (lie, at))) {
        let mut world = World::lied_to(seed, LIAR);
        world.liar = None;
        lie(&mut world);
        world.compute_but_of(LIAR);
        eprintln!("{name}, seed {seed}");
        let (coordinator, reasons) = world.run_to_the_end(LIAR);
        let named = |(worker, notice): &(Worker, SumNotice)| {
            matches!(notice, SumNotice::ResultNotFinite { .. }) && worker.0 != LIAR
        };
        assert!(!coordinator.reports.iter().any(named), "{name}: {reasons:?}");
    }
}

/// A vector that is not finite is found out by the coordinator, also if its worker denies it.
#[test]
fn whose_vector_is_not_finite_is_found_out() {
    let mut world = World::new(3, SETTINGS);
    let mut vector = vector(0, world.length());
    vector[0] = f32::NAN;
    world.workers[0] = Node::worker(0, vector);
    // Its partner's would do as well.
    world.lost.insert(1);
    let sent = world.coordinator.coordinate(world.now, CoordinatorEvent::Lost { worker: 1 });
    world.send(COORDINATOR, sent);
    world.begin();
    let nonfinite = |(worker, notice): &(Worker, SumNotice)| {
        *worker == Worker(0)
            && matches!(notice, SumNotice::ResultNotFinite { sum: SumId { attempt: 1, .. } })
    };
    while !world.coordinator.reports.iter().any(nonfinite) {
        let failed = |(_, notice): &(Worker, SumNotice)| matches!(notice, SumNotice::Failed { .. });
        if world.attempt == 0 && world.coordinator.reports.iter().any(failed) {
            world.attempt = 1;
            world.begin();
        }
        world.deliver();
    }
    assert!(world.coordinator.given_up.is_empty());
}

/// A worker that stops and has what no other has holds all others up until it is given up, and no
/// other is.
#[test]
fn who_stops_is_given_up() {
    let mut world = World::new(3, SETTINGS);
    world.lose_worker(3);
    world.begin();
    let begun = world.now;
    while world.coordinator.given_up.is_empty() {
        assert!(world.now < begun + Duration::from_secs(10));
        world.under_way.retain(|(from, ..)| *from != 2);
        match world.under_way.is_empty() {
            true => world.tick(),
            false => world.deliver(),
        }
    }
    assert!(world.now >= begun + SETTINGS.stall - QUIET);
    assert_eq!(world.coordinator.given_up.len(), 1);
    assert_eq!(world.coordinator.given_up[0].0, 2);
}

/// Nothing is owned by others for a worker that stops and alone has its result: it is given up as
/// soon as ever.
#[test]
fn a_sum_is_not_begun_again_for_who_alone_has_its_result() {
    let draw = ChaCha8Rng::seed_from_u64(5);
    let mut world = World::of(draw, 2, 16 * CHUNK + 7, SETTINGS);
    world.lose_worker(3);
    world.begin();
    let begun = world.now;
    while world.coordinator.given_up.is_empty() {
        assert!(world.now < begun + SETTINGS.stall + QUIET);
        assert!(!world.has_failed());
        world.under_way.retain(|(from, ..)| *from != 2);
        match world.under_way.is_empty() {
            true => world.tick(),
            false => world.deliver(),
        }
    }
    assert_eq!(world.coordinator.given_up[0].0, 2);
}

/// A coordinator that is to have the sum too, and gets it of no worker, gives up the worker it
/// waits for. Before it has the sum it does not report which workers hold it.
#[test]
fn who_does_not_get_through_to_the_coordinator_is_given_up() {
    let mut world = World::new(3, SumSettings { beside: Some(COORDINATOR), ..SETTINGS });
    world.begin();
    let begun = world.now;
    let is_lost =
        |to: u32, packet: &Packet| to == COORDINATOR && matches!(packet, Packet::Chunk(_));
    while world.coordinator.given_up.is_empty() {
        assert!(world.now < begun + Duration::from_secs(10));
        world.under_way.retain(|(_, to, packet)| !is_lost(*to, packet));
        match world.under_way.is_empty() {
            true => world.tick(),
            false => world.deliver(),
        }
    }
    assert!(world.coordinator.reports.is_empty() && world.now >= begun + SETTINGS.stall - QUIET);
}

/// With a worker that stops the others are done soon, if they have what it has: it is not given up,
/// and sums nothing until it holds a sum.
#[test]
fn others_go_on_without_who_stops() {
    for (seed, stops) in (0..12).flat_map(|seed| [0, 1, 2].map(|stops| (seed, stops))) {
        for is_expected in [false, true] {
            let draw = ChaCha8Rng::seed_from_u64(seed);
            let mut world = World::of(draw, 2, 16 * CHUNK + 7, SETTINGS);
            if is_expected {
                world = world.at_work();
                (0..4).for_each(|at| world.compute_in_parts(at, 2, false));
            }
            let begun = world.now;
            world.begin();
            // Something of it may have come before.
            for _ in 0..seed * 8 {
                if !world.under_way.is_empty() {
                    world.deliver();
                }
            }
            let others_hold = |world: &World| {
                let held = |(worker, notice): &(Worker, SumNotice)| match notice {
                    SumNotice::Held { sum, .. } if sum.attempt == world.attempt => Some(worker.0),
                    _ => None,
                };
                let held: BTreeSet<u32> =
                    world.coordinator.reports.iter().filter_map(held).collect();
                (0..4).all(|at| at == stops || held.contains(&at))
            };
            while !others_hold(&world) {
                assert!(world.now < begun + Duration::from_millis(350), "seed {seed}");
                world.under_way.retain(|(from, to, _)| *from != stops && *to != stops);
                if world.has_failed() {
                    world.begin();
                }
                match world.under_way.is_empty() {
                    true => world.tick(),
                    false => world.deliver(),
                }
            }
            let sums = (0..4).filter(|at| *at != stops).map(|at| {
                let Machine::Worker(sums) = &world.workers[at as usize].machine else {
                    unreachable!()
                };
                sums.vector(of_step(world.attempt)).unwrap()
            });
            let right = whole(2, world.length());
            assert!(sums.into_iter().all(|sum| *sum == right), "seed {seed}");
            assert!(world.coordinator.given_up.is_empty());
        }
    }
}

/// Where the connection between the only two workers with results stands still, others own what one
/// of them did. No worker is given up.
#[test]
fn others_own_what_two_cannot_send_each_other() {
    for seed in 0..12 {
        let draw = ChaCha8Rng::seed_from_u64(seed);
        let mut world = World::of(draw, 2, 16 * CHUNK + 7, SETTINGS).at_work();
        world.is_calm = true;
        (0..4).for_each(|at| world.compute_in_parts(at, 2, at % 2 == 1));
        for _ in 0..seed * 8 {
            world.deliver();
        }
        let begun = world.now;
        world.begin();
        while world.agreed().is_none() {
            // A first sum is usual to take half a second.
            assert!(world.now < begun + Duration::from_millis(700), "seed {seed}");
            world.under_way.retain(|(from, to, _)| *from % 2 == 1 || *to % 2 == 1);
            if world.has_failed() {
                world.begin();
            }
            match world.under_way.is_empty() {
                true => world.tick(),
                false => world.deliver(),
            }
            assert!(world.coordinator.given_up.is_empty(), "seed {seed}");
        }
        let (id, digest) = (of_step(world.attempt), world.agreed().unwrap());
        let right = whole(2, world.length());
        assert!(world.workers.iter().all(|node| node.sum(id, digest).unwrap() == right));
    }
}

/// Of two workers one comes back after the other was told what the step will be made of. If it can
/// come to hold the sum, both are told to make it. If it takes over a state, the word of the other
/// is enough, and no worker is given up for what it lacks.
#[test]
fn who_is_counted_is_told_of_the_sum() {
    let come_back = |counted: &[u32]| {
        let mut now = some_time();
        let mut node = Node::coordinator(2, 3 * CHUNK, SETTINGS);
        node.coordinate(now, CoordinatorEvent::Lost { worker: 1 });
        let made_of = || terms(1, &BTreeSet::from([1]));
        node.coordinate(now, CoordinatorEvent::Expect { sum: of_step(0), terms: made_of() });
        let again = CoordinatorEvent::Connected { worker: 1, epoch: 2, reachable: true };
        node.coordinate(now, again);
        let counted: BTreeSet<u32> = counted.iter().copied().collect();
        let mut sent = node.coordinate(now, sum_of(0, made_of(), counted.clone()));
        // The attempt that was expected does not reach all: the step is summed by another.
        if matches!(node.reports.pop(), Some((_, SumNotice::Failed { .. }))) {
            sent = node.coordinate(now, sum_of(1, made_of(), counted));
        }
        let plan = |packet: &Packet| match packet {
            Packet::ToWorker(SumCommand::Exchange(plan)) => plan.stripe.is_none(),
            _ => false,
        };
        let told: Vec<u32> =
            sent.iter().filter(|(_, packet)| plan(packet)).map(|(to, _)| *to).collect();
        let sum = of_step(told.len().min(1) as u32);
        let digest = Some(7);
        let said = |worker, report| CoordinatorEvent::Said { worker, report };
        node.coordinate(now, said(0, SumReport::Held { sum, digest }));
        assert_eq!(node.reports.len(), 1, "worker 0 holds it");
        for _ in 0..400 {
            now += TICK;
            let on = vec![0];
            node.coordinate(now, said(1, SumReport::Waiting { sum, on }));
            node.coordinate(now, CoordinatorEvent::Tick);
        }
        (told, node.expectations, !node.given_up.is_empty())
    };
    use Expectation::{Confirmed, Replaced, Told};
    assert_eq!(come_back(&[0]), (vec![], vec![Told, Confirmed], false));
    assert_eq!(come_back(&[0, 1]), (vec![0, 1], vec![Told, Replaced], true));
}

type Posted = (u32, Packet);

/// A node on a thread of its own. It ends when no node can send to it any more; the coordinator,
/// when all workers hold the sum.
fn spawn(
    mut node: Node,
    inbox: Receiver<Posted>,
    to: Vec<Sender<Posted>>,
) -> thread::JoinHandle<Node> {
    thread::spawn(move || {
        let post = |me: u32, sent: Sent| {
            for (to_node, packet) in sent {
                let at = to.len() - 1;
                let at = if to_node == COORDINATOR { at } else { to_node as usize };
                // A node that has ended needs nothing any more.
                let _ = to[at].send((me, packet));
            }
        };
        if node.me == COORDINATOR {
            let groups = (to.len() as u32 - 1) / 2;
            let terms = terms(groups, &BTreeSet::new());
            let sum = sum_of(0, terms, (0..2 * groups).collect());
            let sent = node.coordinate(some_time(), sum);
            post(node.me, sent);
        }
        let wanted = to.len() - 1;
        while node.me != COORDINATOR || node.reports.len() < wanted {
            let Ok((from, packet)) = inbox.recv() else { break };
            if node.me != COORDINATOR && matches!(packet, Packet::FromWorker(_)) {
                break;
            }
            let sent = node.takes(some_time(), from, packet);
            post(node.me, sent);
        }
        if node.me == COORDINATOR {
            // A report, which no worker is told otherwise, ends it here.
            to.iter().take(wanted).for_each(|to| {
                let end = SumReport::GroupReady { group: 0 };
                let _ = to.send((COORDINATOR, Packet::FromWorker(end)));
            });
        }
        node
    })
}

#[test]
fn threads_make_the_same_sum() {
    let (groups, length) = (2, 3 * CHUNK + 5);
    let workers = 2 * groups;
    let (senders, mut inboxes): (Vec<_>, Vec<_>) = (0..=workers).map(|_| channel()).unzip();
    let inbox = inboxes.pop().unwrap();
    let coordinator = Node::coordinator(workers, length, SETTINGS);
    let coordinator = spawn(coordinator, inbox, senders.clone());
    let threads: Vec<_> = inboxes
        .into_iter()
        .zip(0..)
        .map(|(inbox, me)| spawn(Node::worker(me, vector(me / 2, length)), inbox, senders.clone()))
        .collect();
    drop(senders);
    let coordinator = coordinator.join().unwrap();
    let digests: BTreeSet<u64> = coordinator
        .reports
        .iter()
        .map(|(_, notice)| match notice {
            SumNotice::Held { digest, .. } => *digest,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(digests.len(), 1);
    for thread in threads {
        let worker = thread.join().unwrap();
        let sum = worker.sum(of_step(0), *digests.first().unwrap());
        assert!(sum == Some(whole(groups, length)), "worker {}", worker.me);
    }
}
