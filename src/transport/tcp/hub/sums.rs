//! Sums as the coordinator's end sees them: who makes and holds them, and what becomes of those that stand still.

use super::super::exchange::{Plan, Sum, share_out};
use super::super::running::Running;
use super::super::{DATA_WAITING_MAX, Exchange, STALL, lock};
use super::{Hub, PATIENCE_FACTOR, SLOWEST};
use crate::ids::{Step, Worker};
use crate::transport::wire::{COORDINATOR, Down, Owner};
use crate::transport::{Decoded, Notice, Summand};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

impl Hub {
    /// Whether every worker has the sums that are decided: then none of them is needed any more.
    pub(super) fn all_hold(&self) -> bool {
        let held = |(step, attempt): (&Step, &u32)| {
            let running = self.running.get(&(*step, *attempt));
            running.is_none_or(|running| {
                running.receivers.iter().all(|node| running.holders.contains(node) || self.members.pipe(*node).is_none())
            })
        };
        self.decided.iter().all(held)
    }

    /// Has a worker hold a sum that was made on this side.
    pub(super) fn hold(&mut self, worker: u32, step: Step, attempt: u32, decoded: &Decoded) {
        let connected = self.members.connected().map(|(worker, _)| worker).collect();
        self.running.entry((step, attempt)).or_insert_with(|| Running::new(connected, Instant::now()));
        self.summer.keep(Sum { step, attempt, vector: Arc::clone(&decoded.gradient), digest: decoded.digest, finite: true });
        self.give(step, attempt, worker);
    }

    pub(super) fn fold(&mut self, step: Step, attempt: u32, terms: Vec<Summand>) {
        let mut receivers: Vec<u32> = self.members.connected().map(|(worker, _)| worker).collect();
        let holders: BTreeSet<u32> = terms.iter().flat_map(|term| &term.holders).map(|piece| piece.worker.0).collect();
        let holders: Vec<u32> = holders.into_iter().filter(|worker| receivers.contains(worker)).collect();
        let star = self.listen.exchange == Exchange::Star || holders.is_empty();
        let owners: Vec<Owner> = share_out(if star { &[COORDINATOR] } else { &holders }, self.listen.length);
        let takes_part = star || self.listen.keeps;
        if takes_part {
            receivers.push(COORDINATOR);
        }
        // Whoever is gone meanwhile cannot be a source; the engine hears of it and folds again.
        let terms: Vec<Summand> = terms
            .into_iter()
            .map(|term| {
                let here = term.holders.iter().copied().filter(|piece| receivers.contains(&piece.worker.0)).collect::<Vec<_>>();
                Summand { holders: if here.is_empty() { term.holders } else { here }, ..term }
            })
            .collect();
        let message = Down::Exchange { step, attempt, terms: terms.clone(), owners: owners.clone(), receivers: receivers.clone() };
        self.members.tell_all(&message);
        let running = Running::new(receivers.clone(), Instant::now());
        self.running.retain(|key, _| key.0 != step || key.1 > attempt);
        self.running.insert((step, attempt), running);
        if takes_part {
            let mut none = Vec::new();
            let plan = Plan { step, attempt, terms, owners, receivers };
            for reason in self.summer.begin(plan, |_| None, Instant::now(), &mut none) {
                tracing::warn!("{step}, attempt {attempt}: {reason}");
            }
        }
    }

    /// Whether sums come by here.
    pub(super) fn takes_part(&self) -> bool {
        self.listen.exchange != Exchange::Sharded || self.listen.keeps
    }

    pub(super) fn held(&mut self, worker: Worker, step: Step, attempt: u32, digest: Option<u64>) {
        let own = self.summer.sum(step, attempt).map(|sum| sum.digest);
        let waits = self.takes_part() && own.is_none();
        if own.zip(digest).is_some_and(|(own, digest)| own != digest) {
            return self.lose(worker.0, &format!("it holds other bytes of {step} than were summed"));
        }
        let Some(running) = self.running.get_mut(&(step, attempt)) else { return };
        running.holds(worker.0);
        if running.holders.len() == 2 && !running.done {
            self.exchange_time = (self.exchange_time + running.begun.elapsed()) / 2;
            let mut status = lock(&self.status);
            (status.exchanges, status.exchange_seconds) = (status.exchanges + 1, running.begun.elapsed().as_secs_f64());
        }
        // Who takes no digest has checked that of every chunk.
        let Some(digest) = digest.or(own) else { return };
        let notice = Notice::Held { step, attempt, digest };
        if waits {
            running.unreported.push((worker, notice));
        } else {
            self.notify(worker, notice);
        }
    }

    /// A worker is to apply a step whose sum it does not have.
    pub(super) fn missing(&mut self, worker: Worker, step: Step) {
        let Some(&attempt) = self.decided.get(&step) else {
            return self.notify(worker, Notice::Missed);
        };
        if !self.give(step, attempt, worker.0) {
            self.notify(worker, Notice::Missed);
        }
    }

    /// Has a sum sent to a node by somebody who has it; false if there is nobody.
    pub(super) fn give(&mut self, step: Step, attempt: u32, to: u32) -> bool {
        if let Some(frames) = self.summer.give(step, attempt) {
            frames.into_iter().for_each(|frame| self.send(to, frame, usize::MAX));
            return true;
        }
        let running = self.running.get(&(step, attempt));
        let holder =
            running.and_then(|running| running.holders.iter().find(|holder| **holder != to && self.members.pipe(**holder).is_some()));
        let found = holder.copied();
        if let Some(holder) = found {
            self.members.tell(holder, &Down::Give { step, attempt, to });
        }
        found.is_some()
    }

    /// Sums chunks while nothing else is to be done.
    pub(super) fn work(&mut self) {
        let mut out = Vec::new();
        while self.summer.work(&mut out) {
            for (to, frame) in std::mem::take(&mut out) {
                self.send(to, frame, DATA_WAITING_MAX);
            }
        }
        for sum in self.summer.finished() {
            let (step, attempt) = (sum.step, sum.attempt);
            let mut sums = lock(&self.sums);
            sums.push_back((step, attempt, Arc::clone(&sum.vector)));
            while sums.len() > 2 {
                sums.pop_front();
            }
            drop(sums);
            let reports = self.running.get_mut(&(step, attempt)).map(|running| std::mem::take(&mut running.unreported));
            for (worker, notice) in reports.into_iter().flatten() {
                match notice {
                    Notice::Held { digest, .. } if digest != sum.digest => {
                        self.lose(worker.0, &format!("it holds other bytes of {step} than were summed"));
                    }
                    notice => self.notify(worker, notice),
                }
            }
        }
    }

    /// Gives up whoever holds up an exchange: for whose chunks others wait while nothing else comes to them, or who is
    /// left when it has taken much longer than exchanges take.
    pub(super) fn look_after_exchanges(&mut self, now: Instant) {
        for (step, attempt, on) in self.summer.stalled(now, STALL) {
            if let Some(running) = self.running.get_mut(&(step, attempt)) {
                running.waits(COORDINATOR, on, now);
            }
        }
        let patience = self.listen.stall;
        let bytes = self.listen.length * self.listen.format.bytes();
        let longest = patience.max(self.exchange_time * PATIENCE_FACTOR) + Duration::from_secs_f64(bytes as f64 / SLOWEST);
        let needed = self.members.connected().count().min(2);
        let stuck = |running: &&Running| running.holders.len() < needed && running.is_stuck(now, patience, longest);
        let found = self.running.values().filter(stuck).find_map(|running| Some((running.culprit(now)?, running.begun)));
        if let Some((worker, begun)) = found {
            self.lose(worker, &format!("its vectors did not come for {:.1} s", now.duration_since(begun).as_secs_f64()));
        }
    }
}
