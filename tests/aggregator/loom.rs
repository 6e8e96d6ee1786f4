//! A fabric between workers of one thread: everybody's vectors are at hand, so a sum is made as
//! soon as all who take part are at it. What goes wrong with it is drawn from a seed: somebody
//! stops in the middle, or gives the group up before or after the others have their sum.

use super::Numbers;
use super::staying::Stays;
use codedgrad::gpu::{Folded, Vector, digest_of_bits};
use codedgrad::ids::{Step, Worker};
use codedgrad::transport::fabric::{Fabric, ReportSink, Reported, Shelf, Told, Weave};
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
    shelf: Shelf<Stays>,
    /// What it says, each after a while.
    says: Option<UnboundedSender<(Reported, Duration)>>,
    /// What it was told and has not done.
    orders: VecDeque<Told>,
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
pub(super) struct Loom(Arc<Mutex<World>>);

pub(super) struct Thread {
    loom: Loom,
    number: u64,
}

impl Loom {
    pub(super) fn new(seed: u64, faults: f64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed ^ 0x100_0000);
        Self(Arc::new(Mutex::new(World { random, ends: BTreeMap::new(), count: 0, faults })))
    }

    /// From now on nothing goes wrong.
    pub(super) fn calm(&self) {
        self.0.lock().unwrap().faults = 0.0;
    }

    /// A worker's end, until it is dropped.
    pub(super) fn end(&self, worker: Worker, shelf: Shelf<Stays>) -> Thread {
        let world = &mut *self.0.lock().unwrap();
        world.count += 1;
        let end =
            End { worker, shelf, says: None, orders: VecDeque::new(), hangs: false, group: None };
        world.ends.insert(world.count, end);
        Thread { loom: self.clone(), number: world.count }
    }
}

impl Fabric for Thread {
    fn begin(&mut self, report: ReportSink) {
        let (says, mut said) = unbounded_channel();
        self.loom.0.lock().unwrap().ends.get_mut(&self.number).unwrap().says = Some(says);
        let report = Mutex::new(report);
        tokio::spawn(async move {
            while let Some((reported, after)) = said.recv().await {
                sleep(after).await;
                report.lock().unwrap()(reported);
            }
        });
    }

    fn tell(&mut self, told: Told) {
        let world = &mut *self.loom.0.lock().unwrap();
        let fault = world.random.random_bool(world.faults / 1000.0);
        let end = world.ends.get_mut(&self.number).unwrap();
        if let Told::Leave { group: left } = told {
            let of = |told: &Told| match told {
                Told::Name { group }
                | Told::Join { group, .. }
                | Told::Sum { group, .. }
                | Told::Leave { group } => *group,
                Told::Give { .. } => u64::MAX,
            };
            end.orders.retain(|order| of(order) > left || matches!(order, Told::Give { .. }));
            end.group.take_if(|(group, _)| *group <= left);
            end.hangs = false;
            end.say(Reported::Left { group: left }, Duration::from_micros(100));
        } else {
            end.hangs |= fault;
            end.orders.push_back(told);
        }
        world.go_on();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let world = &mut *self.loom.0.lock().unwrap();
        world.ends.remove(&self.number);
    }
}

impl End {
    fn say(&self, reported: Reported, after: Duration) {
        self.says.as_ref().unwrap().send((reported, after)).unwrap();
    }

    /// Gives a part of a sum to nodes outside the group.
    fn show(&self, step: Step, attempt: u32, part: Range<usize>, to: &[u32]) {
        if let Some(sum) =
            self.shelf.sum(step, attempt).filter(|_| !to.is_empty() && !part.is_empty())
        {
            let numbers = Arc::new(sum.numbers()[part.clone()].to_vec());
            self.say(
                Reported::Part { step, attempt, start: part.start, numbers, to: to.to_vec() },
                Duration::from_millis(1),
            );
        }
    }

    /// The sum it is at, if it is at one.
    fn sum(&self) -> Option<(&str, &Weave)> {
        let Some(Told::Sum { group, weave }) = self.orders.front().filter(|_| !self.hangs) else {
            return None;
        };
        self.group
            .as_ref()
            .filter(|(joined, _)| joined == group)
            .map(|(_, id)| (id.as_str(), weave))
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
                Some(Told::Name { group }) => {
                    end.say(Reported::Named { group: *group, id: format!("{name:x}") }, pause);
                    true
                }
                Some(Told::Give { step, attempt, to }) => {
                    let length =
                        end.shelf.sum(*step, *attempt).map_or(0, |sum| sum.numbers().len());
                    end.show(*step, *attempt, 0..length, &[*to]);
                    true
                }
                Some(Told::Sum { group, .. }) => {
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
            Some(Told::Join { id, members, group, .. }) => {
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
                end.say(Reported::Joined { group: asked.2 }, pause);
            }
            return true;
        }
        false
    }

    /// All who take part in a sum are at it.
    fn sum(&mut self) -> bool {
        let at = |end: &End| end.sum().map(|(id, weave)| (id.to_owned(), weave.clone()));
        let all: Vec<_> = self
            .ends
            .iter()
            .filter_map(|(number, end)| Some((*number, end.worker, at(end)?)))
            .collect();
        for (_, _, (id, weave)) in &all {
            let same = |other: &(String, Weave)| {
                (&other.0, other.1.step, other.1.attempt) == (id, weave.step, weave.attempt)
            };
            let found = weave.parts.iter().map(|(member, _)| {
                all.iter().find(|(_, worker, other)| worker == member && same(other))
            });
            let Some(found) = found.collect::<Option<Vec<_>>>() else { continue };
            let members: BTreeMap<Worker, u64> =
                found.iter().map(|(number, worker, _)| (*worker, *number)).collect();
            self.weave(weave, &members);
            return true;
        }
        false
    }

    fn weave(&mut self, weave: &Weave, members: &BTreeMap<Worker, u64>) {
        let mut sum = Stays::new(&0, weave.length);
        let term = |place: usize, worker: Worker| {
            let held = |term: &codedgrad::transport::Summand| {
                let piece = term.source(worker, place).unwrap();
                let vector =
                    self.ends[&members[&piece.worker]].shelf.vector(weave.step, piece.what);
                (term.weight as f32, vector.expect("what counts is held"))
            };
            weave.terms.iter().map(held).collect::<Vec<_>>()
        };
        // Whoever sums a part, the bits are the same.
        let (first, last) = (&weave.parts[0], &weave.parts[weave.parts.len() - 1]);
        let mut other = Stays::new(&0, weave.length);
        Stays::fold(&term(weave.parts.len() - 1, last.0), &mut other).unwrap();
        let finite = Stays::fold(&term(0, first.0), &mut sum).unwrap().finite;
        let digest = digest_of_bits(sum.numbers());
        assert_eq!(digest, digest_of_bits(other.numbers()));
        let folded = Folded { digest, finite };
        let (step, attempt) = (weave.step, weave.attempt);
        for number in members.values() {
            let (fails, pause) = (self.random.random_bool(self.faults / 1000.0), self.pause());
            let end = self.ends.get_mut(number).unwrap();
            let Some(Told::Sum { group, weave }) = end.orders.pop_front() else {
                unreachable!("it is at a sum")
            };
            if fails {
                end.group = None;
                end.say(Reported::Apart { group, reason: "as drawn".into() }, pause);
                continue;
            }
            if finite {
                end.shelf.keep_sum(step, attempt, sum.clone());
            }
            end.say(Reported::Summed { step, attempt, folded }, pause);
            for (_, part) in weave.parts.iter().filter(|(worker, _)| *worker == weave.me) {
                end.show(step, attempt, part.clone(), &weave.shown);
            }
        }
    }
}
