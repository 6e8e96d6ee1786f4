//! The workers that are there: who of them can sum, and what each is told of a sum.

use super::choices::Exchange;
use super::events::{CoordinatorEffect, tell};
use super::excluded::Exclusions;
use super::owners::{cut, loads, prefer, shares, taking_turns};
use super::plan::share_chunks;
use super::suspects::Suspects;
use crate::ids::{Step, Summand, Worker, named};
use crate::sums::{COORDINATOR, Owner, SumCommand, SumPlan, chunks};
use std::collections::{BTreeMap, BTreeSet};

/// Shares are by load once a worker was late in so many steps in a row: a worker that is late now
/// and then costs less than a wrong guess.
const LATE_STEPS: u32 = 4;
/// A vector that becomes final part by part is cut into at most so many stripes, each of which all
/// owners share, of at least so many chunks; where shares differ, of at least so many per owner.
const STRIPES: usize = 32;
const STRIPE_LEAST: usize = 4;
const SHARE_STEPS: usize = 16;

/// The workers that are there, and what is known of them that bears on how much they sum.
///
/// It is told who [comes](Self::comes) and is [lost](Self::forget), who [holds](Self::holds) a sum
/// and who [lacks](Self::lack) one that others have, who [had results](Self::step_begins) when a
/// step's sum was begun, who is [excluded](Self::exclude), and of whom
/// [one lies](Self::suspect). From that it says who sums which chunks: [`Hosts::owners`] of a step
/// that is computed, [`Hosts::of_stripes`] of one that is yet to be.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// Whether workers own anything at all.
    by_workers: bool,
    present: BTreeSet<u32>,
    /// The run has begun: who comes now is late.
    begun: bool,
    /// In how many steps in a row each worker held nothing when the sum was begun.
    late: BTreeMap<u32, u32>,
    /// Workers that lacked the last step's sum when the next one began to be made: their hosts may
    /// not answer.
    unresponsive: BTreeSet<u32>,
    /// Workers to which no other can connect.
    unreachable: BTreeSet<u32>,
    excluded: Exclusions,
    /// Workers one of which has lied about sums, and those that have for certain: they sum nothing,
    /// not after they have come again either.
    suspects: Suspects,
    liars: BTreeSet<u32>,
}

impl Hosts {
    /// The hosts of a run in which no worker is there yet.
    pub(super) fn new(exchange: Exchange) -> Self {
        Self { by_workers: exchange.is_by_workers(), ..Self::default() }
    }

    /// The run begins; these are there in a state of other steps.
    pub(super) fn begin(&mut self, behind: impl IntoIterator<Item = u32>) {
        self.begun = true;
        self.lack(behind);
    }

    /// Whether the run has begun.
    pub(super) fn have_begun(&self) -> bool {
        self.begun
    }

    /// A worker has come. One that comes while the run goes on owns nothing until it holds a sum:
    /// it may have to take over a state first.
    pub(super) fn comes(&mut self, worker: u32, reachable: bool) {
        self.present.insert(worker);
        if self.begun {
            self.unresponsive.insert(worker);
        }
        if !reachable {
            self.unreachable.insert(worker);
        }
    }

    /// A worker is lost, or another process has its number.
    pub(super) fn forget(&mut self, worker: u32) {
        self.present.remove(&worker);
        self.late.remove(&worker);
        self.unresponsive.remove(&worker);
        self.unreachable.remove(&worker);
        self.excluded.clear();
    }

    /// Who is there.
    pub(super) fn present(&self) -> &BTreeSet<u32> {
        &self.present
    }

    /// Who is there, in order of their numbers.
    pub(super) fn list(&self) -> Vec<u32> {
        self.present.iter().copied().collect()
    }

    /// Who is there of those that hold some term.
    pub(super) fn holders(&self, terms: &[Summand]) -> Vec<u32> {
        let pieces = terms.iter().flat_map(|term| &term.holders);
        let holders: BTreeSet<u32> = pieces.map(|piece| piece.worker.0).collect();
        holders.intersection(&self.present).copied().collect()
    }

    /// These lack the sum of a step that others have applied: they own nothing until they have it.
    pub(super) fn lack(&mut self, workers: impl IntoIterator<Item = u32>) {
        self.unresponsive.extend(workers);
    }

    /// The sum of a step stands still since these do not reach each other: others own its chunks.
    /// Gives until which step they own nothing, if that happened several times.
    pub(super) fn exclude(&mut self, workers: &[u32], step: Step) -> Option<Step> {
        self.lack(workers.iter().copied());
        let until = |worker: &u32| self.excluded.exclude(*worker, step);
        workers.iter().filter_map(until).max()
    }

    /// The same for one that does not answer. Where half of the workers are excluded no more are:
    /// pauses that many make now and then cost less than few owners do.
    pub(super) fn exclude_idle(&mut self, worker: u32, step: Step) -> Option<Step> {
        if 2 * (self.excluded.count(step) + 1) <= self.present.len() {
            return self.exclude(&[worker], step);
        }
        self.lack([worker]);
        None
    }

    /// A worker holds a sum.
    pub(super) fn holds(&mut self, worker: u32) {
        self.unresponsive.remove(&worker);
    }

    /// Whether nothing speaks against it that a worker answers.
    fn answers(&self, worker: u32) -> bool {
        !self.unresponsive.contains(&worker) && !self.unreachable.contains(&worker)
    }

    /// Those who are there and answer, as far as is known.
    pub(super) fn able(&self) -> BTreeSet<u32> {
        self.present.iter().copied().filter(|worker| self.answers(*worker)).collect()
    }

    /// Those of them that may own chunks of a step.
    pub(super) fn able_to_own(&self, step: Step) -> BTreeSet<u32> {
        let mut able = self.able();
        able.retain(|worker| !self.excluded.owns_nothing(*worker, step));
        able
    }

    /// Leaves terms those of their holders who are there and answer, if there are some.
    pub(super) fn prefer_able(&self, terms: &mut [Summand]) {
        for term in terms {
            prefer(term, |worker| self.present.contains(&worker.0));
            prefer(term, |worker| self.answers(worker.0));
        }
    }

    /// One of these has lied, as something shows: it is given up, if it can be told which. They sum
    /// nothing any more.
    pub(super) fn suspect(
        &mut self,
        workers: &BTreeSet<u32>,
        shown_by: &str,
    ) -> Option<CoordinatorEffect> {
        let workers: BTreeSet<u32> =
            workers.iter().copied().filter(|worker| *worker != COORDINATOR).collect();
        let found = self.suspects.one_of(&workers);
        self.liars.extend(found);
        let Some(worker) = found else {
            let workers: Vec<Worker> = workers.into_iter().map(Worker).collect();
            let workers = named(&workers, |_| None);
            tracing::warn!("{shown_by}: one of {workers} lies, and it cannot be told which");
            return None;
        };
        let reason = format!("it lies: {shown_by}, and no other worker can have done it");
        Some(CoordinatorEffect::GiveUp { worker, reason })
    }

    fn is_trusted(&self, worker: u32) -> bool {
        !self.suspects.left().contains(&worker) && !self.liars.contains(&worker)
    }

    /// Whether some of these can own something.
    pub(super) fn some_can_own(&self, holders: &[u32]) -> bool {
        self.by_workers && holders.iter().any(|holder| self.is_trusted(*holder))
    }

    /// A step's first sum is begun, of the terms that these hold.
    pub(super) fn step_begins(&mut self, holders: &[u32]) {
        for &worker in &self.present {
            let late = self.late.entry(worker).or_default();
            *late = if holders.contains(&worker) { 0 } else { *late + 1 };
        }
    }

    /// Who sums which chunks of a step's vector of `length` numbers. At least one of the holders
    /// must be present and [able to](Self::some_can_own).
    pub(super) fn owners(&self, step: Step, terms: &[Summand], length: usize) -> Vec<Owner> {
        let count = chunks(length);
        self.share(step, terms, count, count)
    }

    /// The same for a step that is not computed yet: gives the chunks of a stripe, and who sums
    /// which of every stripe. A worker that is always late is taken to hold nothing, if others have
    /// its terms.
    ///
    /// Results become final from one end to the other, and all owners are to have something to sum
    /// from the first part on.
    pub(super) fn of_stripes(
        &self,
        step: Step,
        terms: &[Summand],
        length: usize,
    ) -> (usize, Vec<Owner>) {
        let count = chunks(length);
        let mut by_load = false;
        let mut punctual = |term: &Summand| {
            let mut term = term.clone();
            // Who does not answer owns nothing, though it may come to have a term.
            prefer(&mut term, |worker| self.answers(worker.0));
            by_load |= term.holders.iter().any(|piece| self.is_late(piece.worker.0));
            // Where all are late, the step waits for one of them anyway.
            prefer(&mut term, |worker| !self.is_late(worker.0));
            term
        };
        let terms: Vec<Summand> = terms.iter().map(&mut punctual).collect();
        let workers = self.present.len().max(1);
        if by_load {
            // Shares of different sizes are kept over more chunks, in which all take turns.
            let stripe = (workers * SHARE_STEPS).min(count);
            return (stripe, taking_turns(&self.share(step, &terms, stripe, count)));
        }
        let stripe = count.div_ceil(STRIPES).max(STRIPE_LEAST).max(workers);
        let stripe = stripe.next_multiple_of(workers).min(count);
        (stripe, self.share(step, &terms, stripe, count))
    }

    /// Whether all can be asked by the others for what they have.
    pub(super) fn all_are_reachable(&self) -> bool {
        self.unreachable.is_disjoint(&self.present)
    }

    fn is_late(&self, worker: u32) -> bool {
        self.late.get(&worker).is_some_and(|steps| *steps >= LATE_STEPS)
    }

    /// Cuts so many of the `all` chunks of a vector among those who can sum.
    fn share(&self, step: Step, terms: &[Summand], count: usize, all: usize) -> Vec<Owner> {
        let loads = loads(terms);
        let load_of = |worker: &u32| loads.get(worker).copied().unwrap_or_default();
        let holds_none = |worker: &u32| !loads.contains_key(worker);
        let owns = |worker: &&u32| {
            self.is_trusted(**worker) && (self.answers(**worker) || !holds_none(worker))
        };
        let mut workers: Vec<u32> = self.present.iter().filter(owns).copied().collect();
        let may_own = |worker: &u32| !self.excluded.owns_nothing(*worker, step);
        if workers.iter().any(|worker| may_own(worker) && self.answers(*worker)) {
            workers.retain(may_own);
        }
        // Of a short vector only the first few get a chunk.
        if all < workers.len() {
            workers.sort_by_key(holds_none);
        }
        // A worker that is late only now costs less than wrong shares would in the next step.
        if !workers.iter().any(|worker| holds_none(worker) && self.is_late(*worker)) {
            return share_chunks(&workers, count);
        }
        let loads: Vec<_> = workers.iter().map(load_of).collect();
        cut(&workers, &shares(&loads, terms.len()), count)
    }

    /// Tells all workers the same.
    pub(super) fn tell_all(&self, command: SumCommand, out: &mut Vec<CoordinatorEffect>) {
        tell(self.list(), command, out);
    }

    /// Tells all workers their part in an exchange: those that sum, all of it; others, the terms
    /// they hold.
    pub(super) fn tell_plan(&self, plan: &SumPlan, out: &mut Vec<CoordinatorEffect>) {
        let owners: BTreeSet<u32> = plan.owners.iter().map(|owner| owner.node).collect();
        // With many workers most hold few of the terms: the whole plan would be the larger part of
        // what they are sent.
        let mut parts: BTreeMap<u32, SomeTerms> = BTreeMap::new();
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
        let (summing, others): (Vec<u32>, Vec<u32>) =
            self.present.iter().partition(|worker| owners.contains(worker));
        // Only where a worker sums: a whole plan is not small.
        if !summing.is_empty() {
            tell(summing, SumCommand::Exchange(plan.clone()), out);
        }
        for worker in others {
            let (places, terms) = parts.remove(&worker).unwrap_or_default();
            let part = SumPlan {
                places,
                terms,
                owners: plan.owners.clone(),
                predecessor: plan.predecessor.clone(),
                receivers: Vec::new(),
                ..*plan
            };
            tell(vec![worker], SumCommand::Exchange(part), out);
        }
    }
}

/// Which of all terms a worker is told of, and these.
type SomeTerms = (Vec<u32>, Vec<Summand>);

#[cfg(test)]
mod tests;
