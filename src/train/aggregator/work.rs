//! A current task: the parts that are done, and the sum of them.

use super::{AggregatorError, Samples};
use crate::gpu::{Vector, nonfinite_mask};
use crate::ids::{OrderId, Part, Task};
use crate::passes::{self, PassPlace};
use crate::scalars;
use crate::sums::{SumNotice, TaskSpent};
use crate::train::sum_tree::SumTree;
use crate::transport::{FailedUnit, Link, Notice};
use std::ops::Range;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Where a task gets its buffers, and how long they are.
pub(super) struct Desk<'a, V> {
    pub(super) link: &'a mut dyn Link<V>,
    pub(super) length: usize,
    pub(super) unit_samples: usize,
    /// Numbers in a chunk, if parts of a result are of use before the whole is.
    pub(super) chunk: Option<usize>,
}

impl<V: Vector> Desk<'_, V> {
    pub(super) fn buffer(&mut self) -> V {
        let mut buffer = self.link.buffer(self.length);
        buffer.poison();
        buffer
    }

    fn samples(&self, (unit, coefficient): (u32, f64)) -> Samples {
        Samples { unit, samples: samples_of(unit, self.unit_samples), coefficient }
    }
}

/// The samples of a unit within its batch; of absurd sizes, numbers that no batch has.
fn samples_of(unit: u32, unit_samples: usize) -> Range<usize> {
    let start = (unit as usize).saturating_mul(unit_samples);
    start..start.saturating_add(unit_samples)
}

pub(super) struct Work<V> {
    pub(super) order: OrderId,
    pub(super) task: Task,
    parts: Vec<(u32, f64)>,
    handed_out: usize,
    /// Parts whose gradients are there.
    finished: usize,
    /// When it was taken up.
    since: Instant,
    /// What the trainer says it took, where that knows better than a clock beside it.
    computed: Option<Duration>,
    tree: SumTree<V>,
    /// The current part.
    current: Option<(u32, V)>,
    /// Whether the trainer has not seen the current part's buffer yet.
    unseen: bool,
    /// Whether the trainer has found all numbers of the result finite, if it has looked.
    finite: Option<bool>,
    /// The length of a buffer that is not a gradient's any more.
    misfit: Option<usize>,
    early: EarlyNews,
    again: Again,
}

/// Whether a task that was submitted too early comes again.
#[derive(Default, PartialEq)]
enum Again {
    #[default]
    Never,
    Next,
    Was,
}

/// What was said of a result before it was whole.
#[derive(Default)]
struct EarlyNews {
    /// Numbers that the trainer says are final.
    told: Range<usize>,
    /// Numbers that were announced: whole chunks.
    announced: Range<usize>,
    /// Hashes of what was announced, as the trainer had written it.
    hashes: Vec<(Range<usize>, u64)>,
    /// Some of them are not finite, or cannot be read: nothing more is announced.
    over: bool,
    /// Numbers that the trainer has changed afterwards.
    changed: Option<Range<usize>>,
}

impl EarlyNews {
    /// Takes in that some numbers are final; gives the whole chunks that are new.
    fn tell(&mut self, numbers: Range<usize>, chunk: usize, length: usize) -> Vec<Range<usize>> {
        let Range { start, end } = self.told.clone();
        if start == end {
            self.told = numbers;
        } else if numbers.start <= end && start <= numbers.end {
            self.told = start.min(numbers.start)..end.max(numbers.end);
        }
        let first = self.told.start.next_multiple_of(chunk);
        let last = if self.told.end == length { length } else { self.told.end / chunk * chunk };
        let known = std::mem::replace(&mut self.announced, first..last.max(first));
        if known.start == known.end {
            return vec![self.announced.clone()];
        }
        vec![first..known.start, known.end..last]
    }

    /// Looks whether what was announced is still what is written.
    fn compare(&mut self, numbers: &[f32]) {
        let same = |(range, hash): &&(Range<usize>, u64)| hash_of(&numbers[range.clone()]) == *hash;
        self.changed = self.hashes.iter().find(|told| !same(told)).map(|(range, _)| range.clone());
    }
}

fn hash_of(numbers: &[f32]) -> u64 {
    passes::count(PassPlace::Hash, size_of_val(numbers));
    xxh3_64(bytemuck::cast_slice(numbers))
}

impl<V: Vector> Work<V> {
    pub(super) fn new(order: OrderId, task: Task, parts: &[Part], now: Instant) -> Self {
        let parts = parts.iter().flat_map(|part| {
            (part.units.start..part.units.end).map(|unit| (unit, part.coefficient))
        });
        Self {
            order,
            task,
            parts: parts.collect(),
            handed_out: 0,
            finished: 0,
            since: now,
            computed: None,
            tree: SumTree::new(),
            current: None,
            unseen: false,
            finite: None,
            misfit: None,
            early: EarlyNews::default(),
            again: Again::Never,
        }
    }

    /// Takes in that some numbers of the current part are final. Of the last part, they are those
    /// of the result, and can be summed.
    pub(super) fn ready(
        &mut self,
        numbers: Range<usize>,
        desk: &mut Desk<'_, V>,
    ) -> Result<(), AggregatorError> {
        let Range { start, end } = numbers;
        let (task, length) = (self.task, desk.length);
        if start > end || end > length {
            return Err(AggregatorError::Beyond { task, start, end, length });
        }
        let is_last = self.left() == 0;
        let Some((_, buffer)) = self.current.as_mut().filter(|_| is_last) else { return Ok(()) };
        let Some(chunk) = desk.chunk.filter(|_| !self.early.over) else { return Ok(()) };
        if buffer.length() != length || start == end {
            return Ok(());
        }
        for range in self.early.tell(start..end, chunk, length) {
            if range.start >= range.end {
                continue;
            }
            let hash = buffer.host_mut().map(|numbers| hash_of(&numbers[range.clone()]));
            let sums = self.tree.finish_range(buffer, range.clone());
            let (Some(hash), Some(sums)) = (hash, sums.filter(|sums| nonfinite_mask(sums) == 0.0))
            else {
                self.early.over = true;
                break;
            };
            passes::count(PassPlace::Announce, 2 * size_of_val(sums));
            let (start, numbers) = (range.start, sums.to_vec());
            desk.link.send(Notice::Announced { task, start, numbers });
            self.early.hashes.push((range, hash));
        }
        Ok(())
    }

    /// Takes in the current part and hands out the next one, if it is wanted.
    pub(super) fn part(&mut self, wanted: bool, desk: &mut Desk<'_, V>) -> Option<Samples> {
        self.store(desk);
        let part = *self.parts.get(self.handed_out).filter(|_| wanted)?;
        self.handed_out += 1;
        self.current = Some((part.0, desk.buffer()));
        self.unseen = true;
        Some(desk.samples(part))
    }

    /// Hands out the next part, if it is wanted, of a task whose gradients the trainer adds up: the
    /// last part alone has a buffer, for the sum of all.
    pub(super) fn summed_part(&mut self, wanted: bool, desk: &mut Desk<'_, V>) -> Option<Samples> {
        self.finished = self.handed_out;
        let part = *self.parts.get(self.handed_out).filter(|_| wanted)?;
        self.handed_out += 1;
        if self.left() == 0 {
            self.current = Some((part.0, desk.buffer()));
            self.unseen = true;
        }
        Some(desk.samples(part))
    }

    /// Hands out all parts at once, with one buffer for all.
    pub(super) fn mixture(&mut self, desk: &mut Desk<'_, V>) -> Vec<Samples> {
        self.handed_out = self.parts.len();
        self.current = self.parts.first().map(|(unit, _)| (*unit, desk.buffer()));
        self.unseen = true;
        self.all(desk)
    }

    /// All parts, in the order in which they are handed out.
    pub(super) fn all(&self, desk: &Desk<'_, V>) -> Vec<Samples> {
        self.parts.iter().map(|part| desk.samples(*part)).collect()
    }

    /// The buffer of the current part.
    pub(super) fn buffer(&mut self) -> Option<&mut V> {
        self.unseen = false;
        self.current.as_mut().map(|(_, buffer)| buffer)
    }

    /// Overwrites the current part's buffer with zeros, if the trainer has not seen it yet.
    pub(super) fn clear_unseen(&mut self) {
        if let Some((_, buffer)) = self.current.as_mut().filter(|_| self.unseen) {
            buffer.clear();
        }
        self.unseen = false;
    }

    /// The unit that is being computed, if one is.
    pub(super) fn unit(&self, unit_samples: usize) -> Option<FailedUnit> {
        let unit = self.current.as_ref()?.0;
        let samples = samples_of(unit, unit_samples);
        Some(FailedUnit { job: self.task.job, unit, samples })
    }

    /// Parts that were not handed out.
    pub(super) fn left(&self) -> usize {
        self.parts.len() - self.handed_out
    }

    /// Takes in the current part, and says what is wrong with the task.
    pub(super) fn check(&mut self, desk: &mut Desk<'_, V>) -> Result<(), AggregatorError> {
        self.store(desk);
        let (task, expected) = (self.task, desk.length);
        if let Some(found) = self.misfit {
            return Err(AggregatorError::Length { task, expected, found });
        }
        if let Some(Range { start, end }) = self.early.changed {
            let unit = self.parts.last().map_or(0, |(unit, _)| *unit);
            return Err(AggregatorError::Changed { task, unit, start, end });
        }
        match self.left() {
            0 => Ok(()),
            left => Err(AggregatorError::Unfinished { task, left }),
        }
    }

    /// Has a task that was submitted too early begin again as the next event, once: a trainer that
    /// always does so would be asked for ever. What was written is dropped, since the current part
    /// need not have been.
    pub(super) fn begin_again(&mut self, now: Instant, link: &mut dyn Link<V>) -> bool {
        if self.again != Again::Never {
            return false;
        }
        self.tree.discard(link);
        self.tree = SumTree::new();
        self.early = EarlyNews::default();
        self.finite = None;
        self.misfit = None;
        self.computed = None;
        self.since = now;
        self.handed_out = 0;
        self.finished = 0;
        self.again = Again::Next;
        true
    }

    /// Whether it is the next event once more.
    pub(super) fn comes_again(&mut self) -> bool {
        let next = self.again == Again::Next;
        if next {
            self.again = Again::Was;
        }
        next
    }

    /// The trainer has looked for numbers of the result that are not finite.
    pub(super) fn looked(&mut self, finite: bool) {
        self.finite = Some(finite);
    }

    /// The trainer says how long it has computed.
    pub(super) fn took(&mut self, computed: Duration) {
        self.computed = Some(computed);
    }

    /// What was spent on it until now.
    pub(super) fn spent(&self, now: Instant) -> TaskSpent {
        let computed = self.computed.unwrap_or_else(|| now.duration_since(self.since));
        TaskSpent { computed: computed.as_secs_f64(), units: self.finished as u32 }
    }

    /// Hands the sum of all parts in, which took so much.
    pub(super) fn submit(
        self,
        aux: Vec<f64>,
        alter: impl FnOnce(&mut V),
        spent: TaskSpent,
        desk: &mut Desk<'_, V>,
    ) {
        let known = self.finite;
        let sum = self.tree.finish(desk.link).0;
        let mut message = sum.unwrap_or_else(|| {
            let mut nothing = desk.link.buffer(desk.length);
            nothing.clear();
            nothing
        });
        alter(&mut message);
        let finite = known.unwrap_or_else(|| message.finite());
        let aux = scalars::handed_in(aux);
        if finite {
            desk.link.keep(self.task, message);
        } else {
            desk.link.recycle(message);
        }
        let (order, task) = (self.order, self.task);
        desk.link.send(Notice::Done { order, task, aux, finite, spent: Some(spent) });
    }

    /// Gives all memory back.
    pub(super) fn discard(mut self, link: &mut dyn Link<V>) {
        self.tree.discard(link);
    }

    fn store(&mut self, desk: &mut Desk<'_, V>) {
        let Some((unit, mut buffer)) = self.current.take() else { return };
        self.finished = self.handed_out;
        if buffer.length() != desk.length {
            self.misfit = Some(buffer.length());
            return;
        }
        if let Some(numbers) = buffer.host_mut() {
            self.early.compare(numbers);
        }
        // Others may have summed it: the sooner that is known, the sooner it is made again.
        if self.early.changed.is_some() {
            let (order, task) = (self.order, self.task);
            desk.link.send(Notice::Sum(SumNotice::Changed { order, task }));
        }
        if self.left() == 0 {
            self.tree.push_last(unit, buffer, desk.link);
        } else {
            self.tree.push(unit, buffer, desk.link);
        }
    }
}
