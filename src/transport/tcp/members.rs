//! The workers of a run, as their coordinator knows them: who is connected, under which number and
//! name.
//!
//! A connection that ends is the worker's death: its results and orders are void on both sides. Of
//! what a worker says of orders only that counts which it owes for one that it was given over this
//! connection; whether it still counts in the run is the engine's to decide. The worker calls again with an offer
//! (run, first step not applied) and is brought up to date by sums that others keep, at most
//! `log_steps` of them, or else by another worker's state.

use super::pipe::Pipe;
use super::sent::SentRecord;
use super::states::IncomingStates;
use super::unreadable::UnreadableMessages;
use crate::ids::{OrderId, Step, Task};
use crate::sums::Header;
use crate::sums::exchange::{Block, Frame};
use crate::transport::State;
use crate::transport::wire::{Peer, ToWorker};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// A worker that is connected.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) pipe: Pipe,
    pub(super) epoch: u32,
    /// First step that is not applied in the state it came with.
    pub(super) next: Option<Step>,
    /// Number of its process.
    pub(super) process: u64,
    /// Where other workers can reach it.
    pub(super) address: Option<String>,
    pub(super) heard: Instant,
    /// Its last order over this connection, and the tasks that it has not answered of each.
    pub(super) order: OrderId,
    pub(super) unanswered: BTreeMap<OrderId, Vec<Task>>,
    /// The steps and states that it was sent.
    pub(super) sent: SentRecord,
    /// For whom it was asked for its state, and the number of the transfer once it has said that.
    pub(super) asked: Vec<(u32, Option<u64>)>,
    /// What has come of those states. The whole one is sent on to who needs it under a number of
    /// the coordinator's; if this worker is lost before, the engine names another to ask.
    pub(super) arriving: IncomingStates,
}

impl Member {
    /// Asks whether it is there; tells what it must have got, in case that was lost on the way.
    pub(super) fn ping(&self, number: u64) {
        let after = self.sent.due().into_iter().collect();
        let (order, transfer) = (self.order, self.sent.taking());
        self.pipe.tell(&ToWorker::Ping { number, order, transfer, after });
    }

    /// Tells it that the run is over for it.
    pub(super) fn stop(&self, why: &str) {
        let after = self.sent.due().into_iter().collect();
        self.pipe.tell(&ToWorker::Stop { why: why.to_owned(), after });
    }

    /// It says for whom a state will come, and how large it is; false if it was not asked for that
    /// one, or if it has more than `most` numbers.
    pub(super) fn gives(
        &mut self,
        (needy, transfer): (u32, u64),
        (next, lengths): (Step, Vec<usize>),
        most: usize,
    ) -> bool {
        let asked = self.asked.iter_mut().find(|asked| **asked == (needy, None));
        asked.map(|asked| asked.1 = Some(transfer)).is_some()
            && self.arriving.expect(transfer, next, lengths, most)
    }

    /// Takes in a chunk of a state; gives back who needs that and the whole of it, if it was the
    /// last one.
    pub(super) fn state_chunk(&mut self, header: &Header, block: &Block) -> Option<(u32, State)> {
        self.arriving.chunk(header, block)?;
        let place = self.asked.iter().position(|asked| asked.1 == Some(header.number))?;
        Some((self.asked.remove(place).0, self.arriving.take(header.number)?))
    }
}

/// One number of a run.
#[derive(Debug, Default)]
struct Place {
    member: Option<Member>,
    /// Who had it last.
    identity: Option<String>,
    /// Processes whose place others took, the last ones: they are not let in again.
    replaced: VecDeque<u64>,
    /// What it said over any connection that could not be read.
    unreadable: UnreadableMessages,
    epoch: u32,
    /// Whether the run does without it.
    drained: bool,
}

/// Processes that were replaced, remembered per number.
const REPLACED_MAX: usize = 64;

/// Who calls, as far as a place for it is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    /// The number it wants, if it wants a certain one.
    pub(super) worker: Option<u32>,
    pub(super) identity: &'a str,
    pub(super) process: u64,
}

/// After how many seconds a worker that is done without calls again.
const DRAINED_WAIT: u32 = 5;

/// What such a worker is told.
pub(super) fn drained() -> ToWorker {
    ToWorker::Refused { reason: "drained".to_owned(), again: true, wait: DRAINED_WAIT }
}

/// What a worker is told that there is no place for, but may be later.
fn taken(reason: String) -> Box<ToWorker> {
    Box::new(ToWorker::Refused { reason, again: true, wait: 0 })
}

#[derive(Debug)]
pub(super) struct Members {
    places: Vec<Place>,
    /// Whether a worker has come or gone since the others were told.
    changed: bool,
    /// Connections of workers that were sent away with a word, until they are over.
    parting: BTreeSet<(u32, u32)>,
}

impl Members {
    pub(super) fn new(workers: usize) -> Self {
        let places = (0..workers).map(|_| Place::default()).collect();
        Self { places, changed: false, parting: BTreeSet::new() }
    }

    /// The run does without a place from now on, or does not any more.
    pub(super) fn set_drained(&mut self, place: u32, drained: bool) {
        if let Some(place) = self.place(place) {
            place.drained = drained;
        }
    }

    fn place(&mut self, worker: u32) -> Option<&mut Place> {
        self.places.get_mut(worker as usize)
    }

    fn of(&self, worker: u32) -> Option<&Member> {
        self.places.get(worker as usize)?.member.as_ref()
    }

    pub(super) fn connected(&self) -> impl Iterator<Item = (u32, &Member)> {
        (0..).zip(&self.places).filter_map(|(worker, place)| Some((worker, place.member.as_ref()?)))
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        let peer = |(worker, member): (u32, &Member)| {
            Some(Peer { worker, epoch: member.epoch, address: member.address.clone()? })
        };
        self.connected().filter_map(peer).collect()
    }

    pub(super) fn pipe(&self, worker: u32) -> Option<&Pipe> {
        self.of(worker).map(|member| &member.pipe)
    }

    pub(super) fn tell(&self, worker: u32, message: &ToWorker) {
        self.tell_frame(worker, Frame::control(message));
    }

    pub(super) fn tell_frame(&self, worker: u32, frame: Frame) {
        if let Some(pipe) = self.pipe(worker) {
            pipe.tell_frame(frame);
        }
    }

    pub(super) fn tell_all(&self, message: &ToWorker) {
        let frame = Frame::control(message);
        self.connected().for_each(|(_, member)| member.pipe.tell_frame(frame.clone()));
    }

    pub(super) fn epoch(&self, worker: u32) -> u32 {
        self.places.get(worker as usize).map_or(0, |place| place.epoch)
    }

    /// Notes a sign of life; false if it is of a connection that was given up.
    pub(super) fn heard(&mut self, worker: u32, epoch: u32) -> bool {
        let member = self
            .place(worker)
            .and_then(|place| place.member.as_mut())
            .filter(|member| member.epoch == epoch);
        member.map(|member| member.heard = Instant::now()).is_some()
    }

    /// A worker is sent a step.
    pub(super) fn sent(&mut self, worker: u32, step: Step) {
        if let Some(member) = self.member_mut(worker) {
            member.sent.step(step);
        }
    }

    pub(super) fn member_mut(&mut self, worker: u32) -> Option<&mut Member> {
        self.place(worker)?.member.as_mut()
    }

    pub(super) fn silent(&self, now: Instant, silence: Duration) -> Vec<u32> {
        self.connected()
            .filter(|(_, member)| now.saturating_duration_since(member.heard) > silence)
            .map(|(worker, _)| worker)
            .collect()
    }

    /// A worker is given an order; false if it is not there.
    pub(super) fn gave(&mut self, worker: u32, order: OrderId, tasks: Vec<Task>) -> bool {
        let Some(member) = self.member_mut(worker) else { return false };
        member.order = order;
        member.unanswered.insert(order, tasks);
        true
    }

    /// Whether a worker owes an answer to an order that it was given over this connection.
    pub(super) fn owes(&self, worker: u32, order: OrderId) -> bool {
        self.of(worker).is_some_and(|member| member.unanswered.contains_key(&order))
    }

    /// A worker answers a task of an order, or drops all that are left; false if it does not owe
    /// that.
    pub(super) fn answers(&mut self, worker: u32, order: OrderId, task: Option<Task>) -> bool {
        let Some(member) = self.member_mut(worker) else { return false };
        let Some(left) = member.unanswered.get_mut(&order) else { return false };
        let before = left.len();
        left.retain(|open| task.is_some_and(|task| task != *open));
        let owed = left.len() < before;
        if left.is_empty() {
            member.unanswered.remove(&order);
        }
        owed
    }

    /// The number for a worker that calls, or what it is told instead. The newest process of a name
    /// holds the number that it asks for: an older one that hung is replaced by it. Who asks for no
    /// number gets that of its name; while another process of that name is there, two hosts have
    /// given theirs the same name, and neither may throw the other out.
    pub(super) fn member(&self, claim: Claim<'_>) -> Result<u32, Box<ToWorker>> {
        let place = self.place_for(claim)?;
        if self.places[place as usize].drained { Err(Box::new(drained())) } else { Ok(place) }
    }

    fn place_for(&self, claim: Claim<'_>) -> Result<u32, Box<ToWorker>> {
        let Claim { worker, identity, process } = claim;
        let all = || (0u32..).zip(&self.places);
        // First of all: a process that was thought dead and comes back must not throw out its heir.
        if all().any(|(_, place)| place.replaced.contains(&process)) {
            return Err(Box::new(ToWorker::Replaced {}));
        }
        let last = self.places.len().saturating_sub(1);
        if let Some(worker) = worker {
            let place = self.places.get(worker as usize);
            let place = place.ok_or_else(|| {
                let why = format!("there is no worker {worker}: they are 0 to {last}");
                Box::new(ToWorker::refused(why))
            })?;
            return match &place.identity {
                // It may be lost soon, so the caller is told to call again.
                Some(name) if place.member.is_some() && name != identity => {
                    Err(taken(format!("worker {worker} is already there, by the name {name:?}")))
                }
                _ => Ok(worker),
            };
        }
        let known = all().find(|(_, place)| place.identity.as_deref() == Some(identity));
        if known.is_some_and(|(_, place)| {
            place.member.as_ref().is_some_and(|member| member.process != process)
        }) {
            let why = format!(
                "another process is there by the name {identity:?}; give each worker a number or a \
                 name of its own"
            );
            return Err(Box::new(ToWorker::refused(why)));
        }
        // Places that no worker had come first, so that a restarted worker finds its own again.
        let open = || all().filter(|(_, place)| !place.drained);
        let fresh = || open().find(|(_, place)| place.identity.is_none());
        let free = || open().find(|(_, place)| place.member.is_none());
        // One that is done without now is better than none.
        let later = || all().find(|(_, place)| place.member.is_none());
        let found = known.or_else(fresh).or_else(free).or_else(later);
        found
            .map(|(worker, _)| worker)
            .ok_or_else(|| taken(format!("all {} workers are there", self.places.len())))
    }

    /// Whether a worker is there, and its process another than this one.
    pub(super) fn is_other_process(&self, worker: u32, process: u64) -> bool {
        self.of(worker).is_some_and(|member| member.process != process)
    }

    /// The process at a place is not let in again, whatever it asks for.
    pub(super) fn replace(&mut self, worker: u32) {
        let Some(place) = self.place(worker) else { return };
        let Some(member) = &place.member else { return };
        place.replaced.push_back(member.process);
        // A process that restarts for ever would fill the memory.
        if place.replaced.len() > REPLACED_MAX {
            place.replaced.pop_front();
        }
    }

    /// Whether a worker has come or gone since this was asked last.
    pub(super) fn have_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// A message of a worker cannot be read; says so if there were too many of these.
    pub(super) fn cannot_read(&mut self, worker: u32, reason: &str) -> Option<String> {
        self.place(worker)?.unreadable.came(Instant::now(), reason)
    }

    /// Connections over which a last word may still be on its way.
    pub(super) fn parting(&self) -> BTreeSet<(u32, u32)> {
        self.parting.clone()
    }

    /// A connection is over.
    pub(super) fn ended(&mut self, worker: u32, epoch: u32) {
        self.parting.remove(&(worker, epoch));
    }

    /// Whether orders for this connection of a worker reach it.
    pub(super) fn is_current(&self, worker: u32, epoch: u32) -> bool {
        self.of(worker).is_some_and(|member| member.epoch == epoch)
    }

    /// For every number, which connection there is; 0 = none.
    pub(super) fn epochs(&self) -> Vec<u32> {
        self.places
            .iter()
            .map(|place| place.member.as_ref().map_or(0, |member| member.epoch))
            .collect()
    }

    /// A worker of that name is connected.
    pub(super) fn enter(&mut self, worker: u32, member: Member, identity: String) {
        let Some(place) = self.place(worker) else { return };
        (place.epoch, place.identity) = (member.epoch, Some(identity));
        place.member = Some(member);
        self.changed = true;
    }

    /// First step that each number's worker has not applied; none for those that are not there.
    pub(super) fn offers(&self) -> Vec<Option<Option<Step>>> {
        self.places.iter().map(|place| place.member.as_ref().map(|member| member.next)).collect()
    }

    /// A connection ends, after a last word if there is one; false if there was none.
    pub(super) fn leave(&mut self, worker: u32, word: Option<&ToWorker>) -> bool {
        let Some(member) = self.place(worker).and_then(|place| place.member.take()) else {
            return false;
        };
        self.changed = true;
        match word {
            // A pipe that is dropped writes what waits before it ends.
            Some(word) => {
                member.pipe.tell(word);
                self.parting.insert((worker, member.epoch));
            }
            None => member.pipe.close(),
        }
        true
    }
}

#[cfg(test)]
mod tests;
