//! A collective between workers of one thread: all their vectors are there, so a sum is made as
//! soon as all members are at it. A seed draws what goes wrong: a worker stops in the middle, or
//! gives the group up before or after the others have their sum.

use super::Numbers;
use super::non_host::NonHostVector;
use codedgrad::gpu::{SumCheck, Vector, digest_of_bits};
use codedgrad::ids::Worker;
use codedgrad::sums::SumId;
use codedgrad::sums::collective::{
    Collective, CollectiveCommand, CollectiveEvent, CollectiveSum, DeviceResults, ReportSink,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::sleep;

/// What a worker has of it.
struct End {
    worker: Worker,
    results: DeviceResults<NonHostVector>,
    /// What it says, each after a while.
    says: Option<UnboundedSender<(CollectiveEvent, Duration)>>,
    /// What it was told and has not done.
    orders: VecDeque<CollectiveCommand>,
    /// It does nothing more until it leaves.
    hangs: bool,
    /// The group that it has joined, and its name.
    group: Option<(u64, String)>,
}

struct World {
    random: ChaCha8Rng,
    ends: BTreeMap<u64, End>,
    count: u64,
    /// How often of a thousand times something goes wrong.
    faults: f64,
}

#[derive(Clone)]
pub(super) struct SimulatedCollective(Arc<Mutex<World>>);

pub(super) struct Thread {
    collective: SimulatedCollective,
    number: u64,
}

impl SimulatedCollective {
    pub(super) fn new(seed: u64, faults: f64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed ^ 0x100_0000);
        Self(Arc::new(Mutex::new(World { random, ends: BTreeMap::new(), count: 0, faults })))
    }

    /// From now on nothing goes wrong.
    pub(super) fn calm(&self) {
        self.0.lock().unwrap().faults = 0.0;
    }

    /// A worker's end, until it is dropped.
    pub(super) fn end(&self, worker: Worker, results: DeviceResults<NonHostVector>) -> Thread {
        let world = &mut *self.0.lock().unwrap();
        world.count += 1;
        let end =
            End { worker, results, says: None, orders: VecDeque::new(), hangs: false, group: None };
        world.ends.insert(world.count, end);
        Thread { collective: self.clone(), number: world.count }
    }
}

impl Collective for Thread {
    fn begin(&mut self, report: ReportSink) {
        let (says, mut said) = unbounded_channel();
        self.collective.0.lock().unwrap().ends.get_mut(&self.number).unwrap().says = Some(says);
        let report = Mutex::new(report);
        tokio::spawn(async move {
            while let Some((reported, after)) = said.recv().await {
                sleep(after).await;
                report.lock().unwrap()(reported);
            }
        });
    }

    fn tell(&mut self, told: CollectiveCommand) {
        let world = &mut *self.collective.0.lock().unwrap();
        let fault = world.random.random_bool(world.faults / 1000.0);
        let end = world.ends.get_mut(&self.number).unwrap();
        if let CollectiveCommand::Leave { group: left } = told {
            let of = |told: &CollectiveCommand| match told {
                CollectiveCommand::Name { group }
                | CollectiveCommand::Join { group, .. }
                | CollectiveCommand::Sum { group, .. }
                | CollectiveCommand::Leave { group } => *group,
                CollectiveCommand::Give { .. } => u64::MAX,
            };
            end.orders.retain(|order| {
                of(order) > left || matches!(order, CollectiveCommand::Give { .. })
            });
            end.group.take_if(|(group, _)| *group <= left);
            end.hangs = false;
            end.say(CollectiveEvent::Left { group: left }, Duration::from_micros(100));
        } else {
            end.hangs |= fault;
            end.orders.push_back(told);
        }
        world.go_on();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let world = &mut *self.collective.0.lock().unwrap();
        world.ends.remove(&self.number);
    }
}

impl End {
    fn say(&self, reported: CollectiveEvent, after: Duration) {
        self.says.as_ref().unwrap().send((reported, after)).unwrap();
    }

    /// Gives a part of a sum to nodes outside the group.
    fn show(&self, id: SumId, part: Range<usize>, to: &[u32]) {
        if let Some(sum) = self.results.sum(id).filter(|_| !to.is_empty() && !part.is_empty()) {
            let numbers = Arc::new(sum.numbers()[part.clone()].to_vec());
            self.say(
                CollectiveEvent::Part { sum: id, start: part.start, numbers, to: to.to_vec() },
                Duration::from_millis(1),
            );
        }
    }

    /// The sum it is at, if it is at one.
    fn sum(&self) -> Option<(&str, &CollectiveSum)> {
        let Some(CollectiveCommand::Sum { group, collective }) =
            self.orders.front().filter(|_| !self.hangs)
        else {
            return None;
        };
        self.group
            .as_ref()
            .filter(|(joined, _)| joined == group)
            .map(|(_, id)| (id.as_str(), collective))
    }
}

impl World {
    fn pause(&mut self) -> Duration {
        Duration::from_micros(self.random.random_range(50..3000))
    }

    /// Does all that can be done.
    fn go_on(&mut self) {
        while self.one() || self.join() || self.sum() {}
    }

    /// What an end does alone.
    fn one(&mut self) -> bool {
        let numbers: Vec<u64> = self.ends.keys().copied().collect();
        for number in numbers {
            let (name, pause): (u64, _) = (self.random.random(), self.pause());
            let end = self.ends.get_mut(&number).unwrap();
            let done = match end.orders.front().filter(|_| !end.hangs) {
                Some(CollectiveCommand::Name { group }) => {
                    end.say(
                        CollectiveEvent::Named { group: *group, id: format!("{name:x}") },
                        pause,
                    );
                    true
                }
                Some(CollectiveCommand::Give { sum, to }) => {
                    let length = end.results.sum(*sum).map_or(0, |sum| sum.numbers().len());
                    end.show(*sum, 0..length, &[*to]);
                    true
                }
                Some(CollectiveCommand::Sum { group, .. }) => {
                    end.group.as_ref().is_none_or(|(joined, _)| joined != group)
                }
                _ => false,
            };
            if done {
                end.orders.pop_front();
                return true;
            }
        }
        false
    }

    /// Members of a group find each other.
    fn join(&mut self) -> bool {
        let asks = |end: &End| match end.orders.front().filter(|_| !end.hangs) {
            Some(CollectiveCommand::Join { id, members, group, .. }) => {
                Some((id.clone(), members.clone(), *group))
            }
            _ => None,
        };
        let all: Vec<_> = self
            .ends
            .iter()
            .filter_map(|(number, end)| Some((*number, end.worker, asks(end)?)))
            .collect();
        for (_, _, asked) in &all {
            let found = asked.1.iter().map(|member| {
                all.iter().find(|(_, worker, other)| worker == member && other == asked)
            });
            let Some(found) = found.collect::<Option<Vec<_>>>() else { continue };
            for (number, ..) in found {
                let pause = self.pause();
                let end = self.ends.get_mut(number).unwrap();
                end.orders.pop_front();
                end.group = Some((asked.2, asked.0.clone()));
                end.say(CollectiveEvent::Joined { group: asked.2 }, pause);
            }
            return true;
        }
        false
    }

    /// All who take part in a sum are at it.
    fn sum(&mut self) -> bool {
        let at = |end: &End| end.sum().map(|(id, collective)| (id.to_owned(), collective.clone()));
        let all: Vec<_> = self
            .ends
            .iter()
            .filter_map(|(number, end)| Some((*number, end.worker, at(end)?)))
            .collect();
        for (_, _, (id, collective)) in &all {
            let same =
                |other: &(String, CollectiveSum)| (&other.0, other.1.sum) == (id, collective.sum);
            let found = collective.parts.iter().map(|(member, _)| {
                all.iter().find(|(_, worker, other)| worker == member && same(other))
            });
            let Some(found) = found.collect::<Option<Vec<_>>>() else { continue };
            let members: BTreeMap<Worker, u64> =
                found.iter().map(|(number, worker, _)| (*worker, *number)).collect();
            self.collective(collective, &members);
            return true;
        }
        false
    }

    fn collective(&mut self, collective: &CollectiveSum, members: &BTreeMap<Worker, u64>) {
        let mut sum = NonHostVector::new(&0, collective.length);
        let term = |place: usize, worker: Worker| {
            let held = |term: &codedgrad::ids::Summand| {
                let piece = term.source(worker, place).unwrap();
                let vector = self.ends[&members[&piece.worker]].results.result(piece.task);
                (term.weight as f32, vector.expect("what counts is held"))
            };
            collective.terms.iter().map(held).collect::<Vec<_>>()
        };
        // Whoever sums a part, the bits are the same.
        let (first, last) = (&collective.parts[0], &collective.parts[collective.parts.len() - 1]);
        let mut other = NonHostVector::new(&0, collective.length);
        NonHostVector::fold(&term(collective.parts.len() - 1, last.0), &mut other).unwrap();
        let finite = NonHostVector::fold(&term(0, first.0), &mut sum).unwrap().finite;
        let digest = digest_of_bits(sum.numbers());
        assert_eq!(digest, digest_of_bits(other.numbers()));
        let folded = SumCheck { digest, finite };
        let sum_id = collective.sum;
        for number in members.values() {
            let (fails, pause) = (self.random.random_bool(self.faults / 1000.0), self.pause());
            let end = self.ends.get_mut(number).unwrap();
            let Some(CollectiveCommand::Sum { group, collective }) = end.orders.pop_front() else {
                unreachable!("it is at a sum")
            };
            if fails {
                end.group = None;
                end.say(CollectiveEvent::Failed { group, reason: "as drawn".into() }, pause);
                continue;
            }
            if finite {
                end.results.keep_sum(sum_id, sum.clone());
            }
            end.say(CollectiveEvent::Summed { sum: sum_id, folded }, pause);
            for (_, part) in collective.parts.iter().filter(|(worker, _)| *worker == collective.me)
            {
                end.show(sum_id, part.clone(), &collective.shown);
            }
        }
    }
}
