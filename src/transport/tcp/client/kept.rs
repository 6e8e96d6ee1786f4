//! What a worker holds for sums, in the host's memory or where a fabric sums it, and what its
//! fabric is told and says.

use super::super::block::Vectors;
use super::super::lock;
use super::super::part::{Plan, Sum, chunks_of};
use super::Hub;
use crate::gpu::{CombineError, poison_of};
use crate::ids::{Job, Step, Task, Worker};
use crate::transport::What;
use crate::transport::fabric::{Fabric, Holds, Reported, Told, Weave};
use crate::transport::ledger::Ledger;
use crate::transport::wire::Up;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// What there is beside the connections.
enum Beside {
    /// The trainer has not said.
    Unknown {
        asked: Vec<Told>,
    },
    /// Nothing, and why.
    Nothing {
        reason: String,
    },
    Fabric {
        holds: Box<dyn Holds>,
        fabric: Box<dyn Fabric>,
    },
}

/// A fabric and what it sums, or why there is none.
pub(super) type Equipment = Result<(Box<dyn Holds>, Box<dyn Fabric>), String>;

pub(super) struct Kept {
    ledger: Arc<Mutex<Ledger>>,
    vectors: Vectors,
    beside: Beside,
    /// Sums under way in a group.
    under_way: Vec<(Step, u32)>,
    /// Sums that a fabric has made, the last ones, with their digests.
    made: VecDeque<(Step, u32, u64)>,
    most: usize,
    /// How often the fabric has not yet left what another coordinator had asked for: it is not
    /// listened to until then.
    leaving: usize,
    /// Where the fabric reports.
    reports: mpsc::UnboundedSender<Reported>,
}

impl Kept {
    pub(super) fn new(
        ledger: Arc<Mutex<Ledger>>,
        vectors: Vectors,
        most: usize,
        reports: mpsc::UnboundedSender<Reported>,
    ) -> Self {
        let beside = Beside::Unknown { asked: Vec::new() };
        Self {
            ledger,
            vectors,
            beside,
            under_way: Vec::new(),
            made: VecDeque::new(),
            most,
            leaving: 0,
            reports,
        }
    }

    fn holds(&self) -> Option<&dyn Holds> {
        if let Beside::Fabric { holds, .. } = &self.beside { Some(&**holds) } else { None }
    }

    /// A vector that is held.
    pub(super) fn read(&self, step: Step, what: What) -> Option<Arc<Vec<f32>>> {
        match self.holds() {
            Some(holds) => holds.read(step, what),
            None => lock(&self.ledger).get(step, what).cloned(),
        }
    }

    /// The result of a task that is given up to whoever asks.
    pub(super) fn take(&self, task: Task) -> Option<Arc<Vec<f32>>> {
        lock(&self.ledger).discard(task)
    }

    pub(super) fn discard(&self, task: Task) {
        match self.holds() {
            Some(holds) => holds.discard(task),
            None => self.spend(lock(&self.ledger).discard(task)),
        }
    }

    pub(super) fn reduce(&self, step: Step, task: Task, weight: f64) -> Result<(), CombineError> {
        match self.holds() {
            Some(holds) => holds.reduce(step, task, weight),
            None => lock(&self.ledger).reduce(step, task, weight).map(|spent| self.spend(spent)),
        }
    }

    pub(super) fn release(&self, step: Step, end: Job) {
        match self.holds() {
            Some(holds) => holds.release(step, end),
            None => self.spend(lock(&self.ledger).release(step, end)),
        }
    }

    /// Vectors that nobody needs any more.
    pub(super) fn spend(&self, spent: impl IntoIterator<Item = Arc<Vec<f32>>>) {
        spent.into_iter().for_each(|vector| self.vectors.give(vector));
    }

    /// The connection is lost, and whatever the coordinator had asked for.
    pub(super) fn reset(&mut self) {
        *lock(&self.ledger) = Ledger::default();
        self.under_way.clear();
        match &mut self.beside {
            Beside::Unknown { asked } => asked.clear(),
            Beside::Nothing { .. } => {}
            Beside::Fabric { holds, fabric } => {
                holds.clear();
                self.leaving += 1;
                fabric.tell(Told::Leave { group: u64::MAX });
            }
        }
    }

    /// It is known what there is beside the connections; gives what was asked of it before.
    fn equip(&mut self, equipment: Equipment) -> Vec<Told> {
        let beside = match equipment {
            Err(reason) => Beside::Nothing { reason },
            Ok((holds, mut fabric)) => {
                let reports = self.reports.clone();
                fabric.begin(Box::new(move |reported| {
                    let _ = reports.send(reported);
                }));
                Beside::Fabric { holds, fabric }
            }
        };
        match std::mem::replace(&mut self.beside, beside) {
            Beside::Unknown { asked } => asked,
            Beside::Nothing { .. } | Beside::Fabric { .. } => Vec::new(),
        }
    }

    /// Whether a sum with these bytes was made by the fabric.
    pub(super) fn has(&self, step: Step, attempt: u32, digest: u64) -> bool {
        self.made.contains(&(step, attempt, digest))
    }

    /// Whether a sum is under way in a group.
    pub(super) fn is_open(&self, step: Step, attempt: u32) -> bool {
        self.under_way.contains(&(step, attempt))
    }

    /// The fabric has made a sum.
    fn made(&mut self, step: Step, attempt: u32, digest: u64) {
        self.under_way.retain(|under_way| *under_way != (step, attempt));
        self.made.retain(|(of, made, _)| (*of, *made) != (step, attempt));
        self.made.push_back((step, attempt, digest));
        while self.made.len() > self.most {
            self.made.pop_front();
        }
    }
}

impl Hub {
    /// The trainer has said what there is beside the connections.
    pub(super) fn equip(&mut self, equipment: Equipment) {
        for told in self.kept.equip(equipment) {
            self.told(told);
        }
    }

    /// Hands something on to the fabric.
    pub(super) fn told(&mut self, told: Told) {
        match &mut self.kept.beside {
            Beside::Unknown { asked } if matches!(told, Told::Leave { .. }) => asked.clear(),
            Beside::Unknown { asked } => asked.push(told),
            Beside::Nothing { reason } => {
                if let Told::Name { group } | Told::Join { group, .. } = told {
                    self.uplink.tell(&Up::Apart { group, reason: reason.clone() });
                }
            }
            Beside::Fabric { fabric, .. } => {
                if let Told::Leave { .. } = told {
                    self.kept.under_way.clear();
                }
                fabric.tell(told);
            }
        }
    }

    pub(super) fn join_group(&mut self, group: u64, id: String, members: &[u32]) {
        let me = self.welcome.worker.0;
        if let Some(rank) = members.iter().position(|member| *member == me) {
            let members = members.iter().map(|member| Worker(*member)).collect();
            self.told(Told::Join { group, id, members, rank });
        }
    }

    /// Makes a sum with others of a group.
    pub(super) fn weave(&mut self, group: u64, plan: Plan) {
        let Plan { step, attempt, terms, owners, receivers, .. } = plan;
        self.node.supersede(step, attempt);
        self.kept.under_way.push((step, attempt));
        self.kept.made.retain(|(of, made, _)| (*of, *made) != (step, attempt));
        let length = self.welcome.length;
        let shown = receivers
            .into_iter()
            .filter(|node| owners.iter().all(|owner| owner.node != *node))
            .collect();
        let parts =
            owners.iter().map(|owner| (Worker(owner.node), owner.elements(length))).collect();
        self.told(Told::Sum {
            group,
            weave: Weave { me: self.welcome.worker, step, attempt, length, terms, parts, shown },
        });
    }

    /// The fabric says something.
    pub(super) fn reported(&mut self, reported: Reported) {
        if let Reported::Left { group } = reported {
            self.kept.leaving = self.kept.leaving.saturating_sub(usize::from(group == u64::MAX));
        }
        if self.kept.leaving > 0 {
            return;
        }
        match reported {
            Reported::Left { .. } => {}
            Reported::Named { group, id } => self.uplink.tell(&Up::Named { group, id }),
            Reported::Joined { group } => self.uplink.tell(&Up::Together { group }),
            Reported::Apart { group, reason } => {
                self.kept.under_way.clear();
                self.uplink.tell(&Up::Apart { group, reason });
            }
            Reported::Summed { step, attempt, folded } if folded.finite => {
                self.kept.made(step, attempt, folded.digest);
                self.uplink.tell(&Up::Held { step, attempt, digest: Some(folded.digest) });
                self.advance();
            }
            Reported::Summed { step, attempt, .. } => {
                self.kept.under_way.retain(|under_way| *under_way != (step, attempt));
                self.uplink.tell(&Up::Overflowed { step, attempt });
            }
            Reported::Part { step, attempt, start, numbers, to } => {
                let part = Sum {
                    step,
                    attempt,
                    finite: poison_of(&numbers) == 0.0,
                    vector: numbers,
                    digest: 0,
                    spoilt: Default::default(),
                };
                for frame in chunks_of(&part, start, self.welcome.length) {
                    // It is in memory anyway, and nobody would ask for what is dropped.
                    to.iter().for_each(|node| self.send_at_most(*node, frame.clone(), usize::MAX));
                }
            }
        }
    }

    /// Sends a sum to somebody who lacks it.
    pub(super) fn give(&mut self, step: Step, attempt: u32, to: u32) {
        if let Some(frames) = self.node.give(step, attempt) {
            frames.into_iter().for_each(|frame| self.send(to, frame));
        } else if self.kept.made.iter().any(|(of, made, _)| (*of, *made) == (step, attempt)) {
            self.told(Told::Give { step, attempt, to });
        } else {
            tracing::warn!("{step} is asked for and not here");
        }
    }
}
