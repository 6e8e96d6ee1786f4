//! Sums between worker processes, each with a GPU, under a coordinator that is reached otherwise.

use super::{Group, IncomingVector, NcclError, OutgoingVector, Timeouts, UniqueId, unique_id};
use crate::gpu::cuda::{Cuda, DeviceSource, DeviceTerm, DeviceVector};
use crate::gpu::{Gradient, SumCheck, Vector, WireBuffer};
use crate::ids::{Task, Worker};
use crate::sums::SumId;
use crate::sums::collective::{
    Collective, CollectiveCommand, CollectiveEvent, CollectiveSum, DeviceResults, ReportSink,
};
use crate::transport::Cancel;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Why a group is given up, in words that are handed on.
type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// The GPU of a worker among those of others. NCCL runs on a thread and a stream of its own, beside
/// whatever the trainer computes; a group is given up from outside, at any time.
///
/// A sum is a reduce-scatter and an all-gather, both by sends and receives: every member sends the
/// others their parts of its vectors, sums its own part of all terms with [`Cuda::combine_into`],
/// and so with the bits of every other exchange, and sends it to all.
#[derive(Debug)]
pub struct NcclCollective {
    orders: Option<Sender<(CollectiveCommand, Cancel)>>,
    /// The thread, until it is begun: what it needs.
    idle: Option<(CollectiveThread, Receiver<(CollectiveCommand, Cancel)>)>,
    thread: Option<JoinHandle<()>>,
    /// The group that was to be joined last, and what ends it.
    last: Option<(u64, Cancel)>,
}

impl NcclCollective {
    /// The end of a worker whose vectors lie on a device. Makes a stream, and
    /// looks for NCCL.
    ///
    /// # Errors
    /// [`NcclError`] without NCCL, or when the driver refuses.
    pub fn new(
        cuda: &Cuda,
        results: DeviceResults<DeviceVector>,
        limits: Timeouts,
    ) -> Result<Self, NcclError> {
        super::version()?;
        // A stream of its own, so that a collective that waits for others does not hold up the
        // trainer's kernels.
        let cuda = Arc::new(cuda.beside()?);
        let (orders, taken) = channel();
        let summing = CollectiveThread { cuda, results, limits, group: None, spare: Vec::new() };
        Ok(Self { orders: Some(orders), idle: Some((summing, taken)), thread: None, last: None })
    }
}

impl Collective for NcclCollective {
    fn begin(&mut self, report: ReportSink) {
        if let Some((summing, orders)) = self.idle.take() {
            self.thread = Some(std::thread::spawn(move || summing.serve(&orders, &*report)));
        }
    }

    fn tell(&mut self, told: CollectiveCommand) {
        let cancel = Cancel::default();
        let over = match &told {
            CollectiveCommand::Join { group, .. } => self.last.replace((*group, cancel.clone())),
            CollectiveCommand::Leave { group } => self.last.take_if(|(last, _)| *last <= *group),
            _ => None,
        };
        // The thread may be waiting inside the old group, and would not read the order before that.
        over.into_iter().for_each(|(_, over)| over.cancel());
        // A thread that has ended has said why.
        let _ = self.orders.as_ref().map(|orders| orders.send((told, cancel)));
    }
}

impl Drop for NcclCollective {
    fn drop(&mut self) {
        // Else the thread could not be joined: it waits for ranks that may be lost.
        if let Some((_, last)) = self.last.take() {
            last.cancel();
        }
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A group that was joined.
#[derive(Debug)]
struct JoinedGroup {
    number: u64,
    group: Group,
    members: Vec<Worker>,
}

/// What runs on the collective's thread.
#[derive(Debug)]
struct CollectiveThread {
    cuda: Arc<Cuda>,
    results: DeviceResults<DeviceVector>,
    limits: Timeouts,
    group: Option<JoinedGroup>,
    /// Vectors of sums that are over, and of terms.
    spare: Vec<DeviceVector>,
}

impl CollectiveThread {
    fn serve(
        mut self,
        orders: &Receiver<(CollectiveCommand, Cancel)>,
        report: &dyn Fn(CollectiveEvent),
    ) {
        while let Ok((told, cancel)) = orders.recv() {
            let (group, done) = match told {
                CollectiveCommand::Name { group } => (
                    group,
                    unique_id()
                        .map_err(Trouble::from)
                        .map(|id| report(CollectiveEvent::Named { group, id: id.to_string() })),
                ),
                CollectiveCommand::Join { group, id, members, rank } => (
                    group,
                    self.join(group, &id, members, rank, cancel)
                        .map(|()| report(CollectiveEvent::Joined { group })),
                ),
                CollectiveCommand::Sum { group, .. }
                    if self.group.as_ref().is_none_or(|joined| joined.number != group) =>
                {
                    continue;
                }
                CollectiveCommand::Sum { group, collective } => {
                    (group, self.sum(&collective, report))
                }
                CollectiveCommand::Give { sum, to } => {
                    let length = self.results.sum(sum).map_or(0, |sum| Vector::length(&*sum));
                    if let Err(trouble) = self.show(sum, 0..length, &[to], report) {
                        tracing::error!("{sum}: the sum cannot be had: {trouble}");
                    }
                    continue;
                }
                CollectiveCommand::Leave { group } => {
                    self.group.take_if(|joined| joined.number <= group);
                    report(CollectiveEvent::Left { group });
                    continue;
                }
            };
            if let Err(trouble) = done {
                // Others' operations end with this one's.
                self.group = None;
                report(CollectiveEvent::Failed { group, reason: trouble.to_string() });
            }
        }
    }

    /// Finds the others of a group, and sends each of them a number, since NCCL connects two ranks
    /// when they first meet.
    fn join(
        &mut self,
        number: u64,
        id: &str,
        members: Vec<Worker>,
        rank: usize,
        cancel: Cancel,
    ) -> Result<(), Trouble> {
        self.group = None;
        let (id, size): (UniqueId, usize) = (id.parse()?, members.len());
        let member = vec![(rank, Arc::clone(self.cuda.stream()))];
        let group = Group::join_until(id, size, member, self.limits, cancel)?;
        let joined = self.group.insert(JoinedGroup { number, group, members });
        let (own, mut met) = (DeviceVector::of(&self.cuda, &[0.0])?, Vec::new());
        for _ in 0..size {
            met.push(DeviceVector::of(&self.cuda, &[0.0])?);
        }
        let others = (0..size).filter(|other| *other != rank);
        let mut sends = Vec::with_capacity(size);
        for to in others {
            sends.push(OutgoingVector { from: rank, to, vector: own.part(0..1)? });
        }
        let mut receives = Vec::with_capacity(size);
        for (from, vector) in met.iter_mut().enumerate().filter(|(other, _)| *other != rank) {
            receives.push(IncomingVector { at: rank, from, vector: vector.target()? });
        }
        Ok(joined.group.exchange(&sends, &mut receives)?)
    }

    fn vector(&mut self, length: usize) -> DeviceVector {
        let found = self.spare.iter().rposition(|vector| vector.fits(&self.cuda, length));
        found.map_or_else(|| DeviceVector::new(&self.cuda, length), |at| self.spare.swap_remove(at))
    }

    /// Makes a sum with the others and keeps it.
    fn sum(
        &mut self,
        collective: &CollectiveSum,
        report: &dyn Fn(CollectiveEvent),
    ) -> Result<(), Trouble> {
        let id = collective.sum;
        // Put back at the end: a group in which something failed is not used again.
        let Some(mut joined) = self.group.take() else { return Ok(()) };
        let mut sum = self.vector(collective.length);
        self.scatter(&mut joined, collective, &mut sum)?;
        let parts: Vec<_> = collective
            .parts
            .iter()
            .map(|(worker, part)| Ok((joined.rank(*worker)?, part.clone())))
            .collect::<Result<_, Trouble>>()?;
        joined.group.gather(&parts, &mut sum.target()?)?;
        // Looked for in the sum and not in each term: one pass, and the sum is what is applied.
        let finite = self.cuda.largest(&DeviceSource::F32(sum.view()?))?.is_finite();
        let folded = SumCheck { digest: sum.digest()?, finite };
        let spent = if finite { self.results.keep_sum(id, sum) } else { vec![sum] };
        self.spare.extend(spent);
        self.group = Some(joined);
        report(CollectiveEvent::Summed { sum: id, folded });
        let own = collective.parts.iter().filter(|(worker, _)| *worker == collective.me);
        own.map(|(_, part)| part.clone())
            .try_for_each(|part| self.show(id, part, &collective.shown, report))
    }

    /// Gives a part of a sum that is kept to nodes outside the group.
    fn show(
        &self,
        id: SumId,
        part: Range<usize>,
        to: &[u32],
        report: &dyn Fn(CollectiveEvent),
    ) -> Result<(), Trouble> {
        let sum = self.results.sum(id).filter(|_| !to.is_empty() && !part.is_empty());
        let Some(sum) = sum else { return Ok(()) };
        let mut numbers = vec![0.0; part.len()];
        sum.read(part.start, 1.0, WireBuffer::F32(&mut numbers))?;
        report(CollectiveEvent::Part {
            sum: id,
            start: part.start,
            numbers: Arc::new(numbers),
            to: to.to_vec(),
        });
        Ok(())
    }

    /// Sends the others their parts of this worker's vectors, and sums its own part of all.
    fn scatter(
        &mut self,
        joined: &mut JoinedGroup,
        collective: &CollectiveSum,
        sum: &mut DeviceVector,
    ) -> Result<(), Trouble> {
        let rank = joined.rank(collective.me)?;
        let (mut held, mut came) = (Vec::new(), Vec::new());
        for (place, (worker, part)) in
            collective.parts.iter().enumerate().filter(|(_, (_, part))| !part.is_empty())
        {
            for term in &collective.terms {
                let piece = term
                    .source(*worker, place)
                    .ok_or_else(|| Trouble::from("a term that no worker holds"))?;
                match (*worker == collective.me, piece.worker == collective.me) {
                    // Also for its own part, where it is read from and not sent.
                    (_, true) => held.push((
                        joined.rank(*worker)?,
                        self.held(collective, piece.task)?,
                        part.clone(),
                    )),
                    (true, false) => {
                        came.push((joined.rank(piece.worker)?, self.vector(part.len())));
                    }
                    (false, false) => {}
                }
            }
        }
        let mut sends = Vec::with_capacity(held.len());
        for (to, vector, part) in held.iter().filter(|(to, ..)| *to != rank) {
            sends.push(OutgoingVector { from: rank, to: *to, vector: vector.part(part.clone())? });
        }
        let mut receives = Vec::with_capacity(came.len());
        for (from, vector) in &mut came {
            receives.push(IncomingVector { at: rank, from: *from, vector: vector.target()? });
        }
        joined.group.exchange(&sends, &mut receives)?;
        let own = collective
            .parts
            .iter()
            .enumerate()
            .find(|(_, (worker, part))| *worker == collective.me && !part.is_empty());
        if let Some((place, (_, part))) = own {
            let (mut here, mut there) = (held.iter().filter(|(to, ..)| *to == rank), came.iter());
            let mut terms = Vec::with_capacity(collective.terms.len());
            for term in &collective.terms {
                let is_here = term
                    .source(collective.me, place)
                    .is_some_and(|piece| piece.worker == collective.me);
                let source = match is_here {
                    true => here.next().map(|(_, vector, part)| vector.part(part.clone())),
                    false => there.next().map(|(_, vector)| vector.view().map(DeviceSource::F32)),
                };
                let source = source.ok_or_else(|| Trouble::from("a term that did not come"))??;
                terms.push(DeviceTerm { weight: term.weight as f32, source });
            }
            sum.sum_part(part.clone(), &terms)?;
        }
        // Parts of other lengths come of groups of other sizes, and would be kept for ever.
        self.spare.retain(|vector| Vector::length(vector) == collective.length);
        self.spare.extend(came.into_iter().map(|(_, vector)| vector));
        Ok(())
    }

    fn held(&self, collective: &CollectiveSum, task: Task) -> Result<Arc<DeviceVector>, Trouble> {
        let vector = self
            .results
            .result(task)
            .filter(|vector| Vector::length(&**vector) == collective.length);
        let step = collective.sum.step;
        vector.ok_or_else(|| Trouble::from(format!("{step}: the result of {task:?} is not held")))
    }
}

impl JoinedGroup {
    fn rank(&self, worker: Worker) -> Result<usize, Trouble> {
        let rank = self.members.iter().position(|member| *member == worker);
        rank.ok_or_else(|| Trouble::from(format!("{worker} is not in group {}", self.number)))
    }
}
