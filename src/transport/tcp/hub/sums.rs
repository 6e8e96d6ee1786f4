//! Sums as the coordinator's end sees them: who makes and holds them, and what becomes of those
//! that stand still.

use super::super::misses::Miss;
use super::super::monitor::ExchangeMonitor;
use super::super::part::{Plan, Sum, share_out};
use super::super::pipe::Frame;
use super::super::{DATA_WAITING_MAX, Exchange, QUIET};
use super::Hub;
use crate::ids::{Step, Worker};
use crate::transport::wire::{COORDINATOR, Down};
use crate::transport::{Decoded, Notice, Summand};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// The terms that a worker is told of, and which those are of all.
type Told = (Vec<u32>, Vec<Summand>);

impl Hub {
    /// Whether every worker has a sum that is decided: then it is not needed any more.
    pub(super) fn all_hold(&self, step: Step, attempt: u32) -> bool {
        self.exchanges.get(step, attempt).is_none_or(|monitor| {
            monitor.receivers.iter().all(|node| {
                monitor.holders.contains_key(node) || self.members.pipe(*node).is_none()
            })
        })
    }

    /// Has a worker hold a sum that was made on this side, unless it was sent it.
    pub(super) fn hold(&mut self, worker: u32, step: Step, attempt: u32, decoded: &Decoded) {
        let connected = || self.members.connected().map(|(worker, _)| worker).collect();
        let monitor = self.exchanges.get_or_begin(step, attempt, || {
            ExchangeMonitor::new(connected(), BTreeSet::new(), Instant::now())
        });
        if !monitor.given.insert(worker) {
            return;
        }
        self.node.keep(Sum {
            step,
            attempt,
            vector: Arc::clone(&decoded.gradient),
            digest: decoded.digest,
            finite: true,
            spoilt: BTreeSet::new(),
        });
        self.give(step, attempt, worker);
    }

    /// Who is to apply a step, and was at work or away while the others took its sum, is sent it.
    pub(super) fn complete(&mut self, worker: u32, step: Step, attempt: u32, decoded: &Decoded) {
        if self.eager.is_some() {
            self.hold(worker, step, attempt, decoded);
        } else if self
            .exchanges
            .get_mut(step, attempt)
            .is_none_or(|monitor| monitor.given.insert(worker))
        {
            self.give(step, attempt, worker);
        }
    }

    pub(super) fn fold(&mut self, step: Step, attempt: u32, terms: Vec<Summand>) {
        let connected: BTreeSet<u32> = self.members.connected().map(|(worker, _)| worker).collect();
        let holders: BTreeSet<u32> =
            terms.iter().flat_map(|term| &term.holders).map(|piece| piece.worker.0).collect();
        let holders: Vec<u32> = holders.intersection(&connected).copied().collect();
        let doubted = self.exchanges.doubts.of(step);
        let star = self.listen.exchange == Exchange::Star || holders.is_empty() || doubted;
        let takes_part = star || self.listen.keeps;
        let receivers: Vec<u32> =
            connected.iter().copied().chain(takes_part.then_some(COORDINATOR)).collect();
        // Whoever is gone meanwhile cannot be a source; the engine hears of it and folds again.
        let terms: Vec<Summand> = terms
            .into_iter()
            .map(|term| {
                let here = term
                    .holders
                    .iter()
                    .copied()
                    .filter(|piece| connected.contains(&piece.worker.0))
                    .collect::<Vec<_>>();
                Summand { holders: if here.is_empty() { term.holders } else { here }, ..term }
            })
            .collect();
        let here = terms
            .iter()
            .flat_map(|term| term.holders.first())
            .all(|piece| connected.contains(&piece.worker.0));
        let (group, owners) = match self.group_for(&holders).filter(|_| here && !doubted) {
            Some((group, owners)) => (Some(group), owners),
            None if star => (None, share_out(&[COORDINATOR], self.listen.config.length)),
            None => (None, share_out(&holders, self.listen.config.length)),
        };
        let plan = Plan { step, attempt, places: Vec::new(), terms, owners, receivers };
        match group {
            Some(group) => self.tell_group(&plan, group),
            None => self.tell_plan(&plan),
        }
        let sources =
            holders.iter().copied().chain(plan.owners.iter().map(|owner| owner.node)).collect();
        let mut monitor = ExchangeMonitor::new(plan.receivers.clone(), sources, Instant::now());
        (monitor.group, monitor.own) = (group, group.is_none() && star);
        monitor.given.extend(&plan.receivers);
        self.exchanges.begin(step, attempt, monitor);
        self.node.supersede(step, attempt);
        if takes_part && group.is_none() {
            let mut none = Vec::new();
            for reason in self.node.begin(plan, |_| None, Instant::now(), &mut none) {
                tracing::warn!("{step}, attempt {attempt}: {reason}");
            }
        }
    }

    /// A worker is sent a step: whoever holds other bytes of it than these gets them anew.
    pub(super) fn decide(&mut self, step: Step, attempt: u32, digest: u64) {
        self.decisions.decided(step, attempt);
        let wrong = self.exchanges.get_mut(step, attempt).map(|monitor| monitor.decided(digest));
        wrong.into_iter().flatten().for_each(|node| otherwise(Worker(node), step));
    }

    /// Tells those whose vectors are summed in a group; the others get the sum, unasked.
    fn tell_group(&self, plan: &Plan, group: u64) {
        let Plan { step, attempt, terms, owners, receivers, .. } = plan.clone();
        let nodes: Vec<u32> = owners.iter().map(|owner| owner.node).collect();
        let told = Frame::control(&Down::Exchange {
            step,
            attempt,
            places: Vec::new(),
            terms,
            owners,
            receivers,
            group: Some(group),
        });
        nodes.into_iter().for_each(|node| self.members.tell_frame(node, told.clone()));
    }

    /// Tells everybody their part in an exchange: whoever sums, all of it; others, the terms they
    /// hold.
    fn tell_plan(&self, plan: &Plan) {
        let owners: BTreeSet<u32> = plan.owners.iter().map(|owner| owner.node).collect();
        let Plan { step, attempt, .. } = *plan;
        let message = |(places, terms), receivers| {
            let owners = plan.owners.clone();
            Down::Exchange { step, attempt, places, terms, owners, receivers, group: None }
        };
        let whole =
            Frame::control(&message((Vec::new(), plan.terms.clone()), plan.receivers.clone()));
        let mut parts: BTreeMap<u32, Told> = BTreeMap::new();
        for (place, term) in (0..).zip(&plan.terms) {
            for piece in term.holders.iter().filter(|piece| !owners.contains(&piece.worker.0)) {
                let part = parts.entry(piece.worker.0).or_default();
                // A worker may hold a term twice.
                if part.0.last() != Some(&place) {
                    part.0.push(place);
                    part.1.push(term.clone());
                }
            }
        }
        for (worker, seat) in self.members.connected() {
            if owners.contains(&worker) {
                seat.pipe.tell_frame(whole.clone());
            } else {
                seat.pipe.tell(&message(parts.remove(&worker).unwrap_or_default(), Vec::new()));
            }
        }
    }

    /// Whether sums come by here.
    pub(super) fn takes_part(&self) -> bool {
        !self.listen.exchange.is_sharded() || self.listen.keeps
    }

    pub(super) fn held(&mut self, worker: Worker, step: Step, attempt: u32, digest: Option<u64>) {
        let own = self.node.sum(step, attempt);
        if own.is_some_and(|sum| !sum.finite) {
            return self.holds_what_is_not_finite(worker, step, attempt);
        }
        let own = own.map(|sum| sum.digest);
        let waits = self.takes_part() && own.is_none();
        if own.zip(digest).is_some_and(|(own, digest)| own != digest) {
            return self
                .lose(worker.0, &format!("it holds other bytes of {step} than were summed"));
        }
        let Some(monitor) = self.exchanges.get_mut(step, attempt) else { return };
        if !monitor.holds(worker.0, digest) {
            otherwise(worker, step);
        }
        if monitor.holders.len() == 2 && !monitor.done {
            let (took, woven) = (monitor.begun.elapsed(), monitor.group.is_some());
            let mut status = self.watched.status();
            (status.exchanges, status.exchange_seconds) =
                (status.exchanges + 1, took.as_secs_f64());
            if woven {
                status.woven += 1;
                self.groups.went_well();
            } else {
                self.exchanges.took(took);
            }
        }
        // Who takes no digest has checked that of every chunk.
        let Some(digest) = digest.or(own) else { return };
        let notice = Notice::Held { step, attempt, digest };
        match self.exchanges.get_mut(step, attempt).filter(|_| waits) {
            Some(monitor) => monitor.unreported.push((worker, notice)),
            None => self.notify(worker, notice),
        }
    }

    /// A worker is to apply a step whose sum it does not have.
    pub(super) fn missing(&mut self, worker: Worker, step: Step) {
        let Some(seat) = self.members.seat_of(worker.0) else { return };
        match seat.misses.ask(step, Instant::now()) {
            Miss::Wait => return,
            Miss::NeverSent => {
                return self
                    .lose(worker.0, &format!("it says it misses {step}, which it was not sent"));
            }
            Miss::Endless => {
                return self.lose(worker.0, &format!("it misses {step} whatever it is sent"));
            }
            Miss::Answer => {}
        }
        // A step that it was not sent over this connection, though a later one was, is not due
        // there: a state has to come.
        let was_sent = seat.unapplied.contains(&step);
        let attempt = self.decisions.attempt(step).filter(|_| was_sent);
        if attempt.is_some_and(|attempt| self.give(step, attempt, worker.0)) {
            return;
        }
        self.members.seat_of(worker.0).into_iter().for_each(|seat| seat.misses.recall(step));
        self.notify(worker, Notice::Missed);
    }

    /// Gives a sum that is whole to those who came while it was made.
    fn hand_out(&mut self, step: Step, attempt: u32) {
        let monitor = self.exchanges.get_mut(step, attempt).filter(|monitor| !monitor.done);
        let Some(given) = monitor.map(|monitor| &mut monitor.given) else { return };
        let late: Vec<u32> = self
            .members
            .connected()
            .map(|(worker, _)| worker)
            .filter(|worker| given.insert(*worker))
            .collect();
        for worker in late {
            self.give(step, attempt, worker);
        }
    }

    /// Gives whoever has come, in a state that is one of the last, the sums that are whole and wait
    /// for holders.
    pub(super) fn offer_sums(&mut self, worker: u32, next: Option<Step>) {
        let Some(next) = next else { return };
        let recent = |step: Step| step.0.saturating_sub(next.0) <= self.listen.config.log_steps;
        let open = self.exchanges.undecided().map(|(key, _)| key).filter(|key| recent(key.0));
        let whole = |key: &(Step, u32)| self.node.sum(key.0, key.1).is_some_and(|sum| sum.finite);
        let sums: Vec<(Step, u32)> = open.filter(whole).collect();
        for (step, attempt) in sums {
            if let Some(monitor) = self.exchanges.get_mut(step, attempt) {
                monitor.given.insert(worker);
            }
            self.give(step, attempt, worker);
        }
    }

    /// Has a sum sent to a node by somebody who has it; false if there is nobody.
    pub(super) fn give(&mut self, step: Step, attempt: u32, to: u32) -> bool {
        if let Some(frames) = self.node.give(step, attempt) {
            frames.into_iter().for_each(|frame| self.send(to, frame, usize::MAX));
            return true;
        }
        let monitor = self.exchanges.get(step, attempt);
        let found = monitor
            .and_then(|monitor| monitor.giver(to, |holder| self.members.pipe(holder).is_some()));
        if let Some(holder) = found {
            self.members.tell(holder, &Down::Give { step, attempt, to });
        }
        found.is_some()
    }

    /// Sums chunks while nothing else is to be done.
    pub(super) fn work(&mut self) {
        let mut out = Vec::new();
        while self.node.work(&mut out) {
            for (to, frame) in std::mem::take(&mut out) {
                self.send(to, frame, DATA_WAITING_MAX);
            }
        }
        for sum in self.node.finished() {
            let (step, attempt) = (sum.step, sum.attempt);
            if !sum.finite {
                self.not_finite(&sum);
                continue;
            }
            self.watched.sum(step, attempt, &sum.vector);
            let monitor = self.exchanges.get_mut(step, attempt);
            let reports = monitor.map(|monitor| {
                monitor.void = false;
                std::mem::take(&mut monitor.unreported)
            });
            for (worker, notice) in reports.into_iter().flatten() {
                match notice {
                    Notice::Held { digest, .. } if digest != sum.digest => {
                        self.lose(
                            worker.0,
                            &format!("it holds other bytes of {step} than were summed"),
                        );
                    }
                    notice => self.notify(worker, notice),
                }
            }
            self.is_finite(step, attempt);
            self.hand_out(step, attempt);
        }
    }

    /// Gives up whoever holds up an exchange: for whose chunks others wait while nothing else comes
    /// to them, or who is left when it has taken much longer than exchanges take.
    pub(super) fn look_after_exchanges(&mut self, now: Instant) {
        for (step, attempt, on) in self.node.stalled(now, QUIET) {
            if let Some(monitor) = self.exchanges.get_mut(step, attempt) {
                monitor.waits(COORDINATOR, on, now);
            }
        }
        let [patience, longest] = self.exchanges.patience(&self.listen);
        let needed = self.members.connected().count().min(2);
        self.look_after_sums_of_groups(now, [patience, longest], needed);
        let stuck = |monitor: &&ExchangeMonitor| {
            monitor.holders.len() < needed && monitor.is_stuck(now, patience, longest)
        };
        let found = self
            .exchanges
            .iter()
            .map(|(_, monitor)| monitor)
            .filter(stuck)
            .find_map(|monitor| Some((monitor.culprit(now)?, monitor.begun)));
        if let Some((worker, begun)) = found {
            self.lose(
                worker,
                &format!(
                    "its vectors did not come for {:.1} s",
                    now.duration_since(begun).as_secs_f64()
                ),
            );
        }
    }
}

fn otherwise(worker: Worker, step: Step) {
    tracing::warn!("{worker} holds other bytes of {step} than were decided; it gets them anew");
}
