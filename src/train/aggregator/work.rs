//! A task at hand: the parts that are done, and the sum of them.

use super::{AggregatorError, Samples};
use crate::gpu::Vector;
use crate::ids::{Part, Task};
use crate::train::sum_tree::SumTree;
use crate::transport::{Link, Notice, TaskSpent};
use std::time::{Duration, Instant};

/// Where a task gets its buffers, and how long they are.
pub(super) struct Desk<'a, V> {
    pub(super) link: &'a mut dyn Link<V>,
    pub(super) length: usize,
    pub(super) unit_samples: usize,
}

impl<V: Vector> Desk<'_, V> {
    pub(super) fn buffer(&mut self) -> V {
        let mut buffer = self.link.buffer(self.length);
        buffer.spoil();
        buffer
    }

    fn samples(&self, (unit, coefficient): (u32, f64)) -> Samples {
        // Of absurd sizes, numbers that no batch has.
        let start = (unit as usize).saturating_mul(self.unit_samples);
        Samples { unit, samples: start..start.saturating_add(self.unit_samples), coefficient }
    }
}

pub(super) struct Work<V> {
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
    /// The part at hand.
    current: Option<(u32, V)>,
    /// The length of a buffer that is not a gradient's any more.
    misfit: Option<usize>,
}

impl<V: Vector> Work<V> {
    pub(super) fn new(task: Task, parts: &[Part], now: Instant) -> Self {
        let parts = parts.iter().flat_map(|part| {
            (part.units.start..part.units.end).map(|unit| (unit, part.coefficient))
        });
        Self {
            task,
            parts: parts.collect(),
            handed_out: 0,
            finished: 0,
            since: now,
            computed: None,
            tree: SumTree::new(),
            current: None,
            misfit: None,
        }
    }

    /// Takes in the part at hand and hands out the next one, if it is wanted.
    pub(super) fn part(&mut self, wanted: bool, desk: &mut Desk<'_, V>) -> Option<Samples> {
        self.store(desk);
        let part = *self.parts.get(self.handed_out).filter(|_| wanted)?;
        self.handed_out += 1;
        self.current = Some((part.0, desk.buffer()));
        Some(desk.samples(part))
    }

    /// Hands out all parts at once, with one buffer for all.
    pub(super) fn mixture(&mut self, desk: &mut Desk<'_, V>) -> Vec<Samples> {
        self.handed_out = self.parts.len();
        self.current = self.parts.first().map(|(unit, _)| (*unit, desk.buffer()));
        self.parts.iter().map(|part| desk.samples(*part)).collect()
    }

    /// The buffer of the part at hand.
    pub(super) fn buffer(&mut self) -> Option<&mut V> {
        self.current.as_mut().map(|(_, buffer)| buffer)
    }

    /// Parts that were not handed out.
    pub(super) fn left(&self) -> usize {
        self.parts.len() - self.handed_out
    }

    /// Takes in the part at hand, and says what is wrong with the task.
    pub(super) fn check(&mut self, desk: &mut Desk<'_, V>) -> Result<(), AggregatorError> {
        self.store(desk);
        let (task, expected) = (self.task, desk.length);
        if let Some(found) = self.misfit {
            return Err(AggregatorError::Length { task, expected, found });
        }
        match self.left() {
            0 => Ok(()),
            left => Err(AggregatorError::Unfinished { task, left }),
        }
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
        let sum = self.tree.finish(desk.link).0;
        let mut message = sum.unwrap_or_else(|| {
            let mut nothing = desk.link.buffer(desk.length);
            nothing.clear();
            nothing
        });
        alter(&mut message);
        let finite = message.finite() && aux.iter().all(|x| x.is_finite());
        if finite {
            desk.link.keep(self.task, message);
        } else {
            desk.link.recycle(message);
        }
        desk.link.send(Notice::Done { task: self.task, aux, finite, spent: Some(spent) });
    }

    /// Gives all memory back.
    pub(super) fn discard(mut self, link: &mut dyn Link<V>) {
        self.tree.discard(link);
    }

    fn store(&mut self, desk: &mut Desk<'_, V>) {
        let Some((unit, buffer)) = self.current.take() else { return };
        self.finished = self.handed_out;
        if buffer.length() == desk.length {
            self.tree.push(unit, buffer, desk.link);
        } else {
            self.misfit = Some(buffer.length());
        }
    }
}
