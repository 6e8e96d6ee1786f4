//! Which workers sum, and how much each.
//!
//! # Formula
//! With `n` workers, `l` terms and shares `a_i` of the vector that sum to 1, in units of a
//! gradient,
//! ```text
//! a worker that holds k terms, each held by r_j, sends   sum_j 1/r_j + (n - 1 - k) a_i
//! a worker that holds none sends (n - 1) a_i and receives 1 + (l - 1) a_i
//! ```
//! Equal shares are best where everybody holds as much. Where a worker holds nothing, its partner's
//! vector is sent by that partner alone; the shares by load make the most that anybody sends or
//! receives least.

use super::choices::Exchange;
use super::plan::share_chunks;
use crate::ids::Worker;
use crate::sums::{Owner, Summand, chunks};
use std::collections::{BTreeMap, BTreeSet};

/// Shares are by load once a worker was late in so many steps in a row: a worker that is late now
/// and then costs less than a wrong guess.
const LATE_STEPS: u32 = 4;
/// A vector that becomes final part by part is cut into at most so many stripes, each of which all
/// owners share, of at least so many chunks; where shares differ, of at least so many per owner.
const STRIPES: usize = 32;
const STRIPE_LEAST: usize = 4;
const SHARE_STEPS: usize = 16;

/// What is known of workers that bears on how much they sum.
#[derive(Debug, Default)]
pub(super) struct OwnerShares {
    /// Whether workers own anything at all.
    by_workers: bool,
    /// In how many steps in a row each worker held nothing when the sum was begun.
    late: BTreeMap<u32, u32>,
    /// Workers that lacked the last step's sum when the next one began to be made: their hosts may
    /// not answer.
    unresponsive: BTreeSet<u32>,
    /// Workers to which no other can connect.
    unreachable: BTreeSet<u32>,
    /// Workers one of which has lied about sums, and those that have for certain: they sum nothing.
    suspected: BTreeSet<u32>,
    liars: BTreeSet<u32>,
}

impl OwnerShares {
    /// Of workers of which nothing is known yet.
    pub(super) fn new(exchange: Exchange) -> Self {
        Self { by_workers: exchange.is_by_workers(), ..Self::default() }
    }

    /// A worker has come. One that comes while the run goes on owns nothing until it holds a sum:
    /// it may have to take over a state first.
    pub(super) fn comes(&mut self, worker: u32, reachable: bool, late: bool) {
        if late {
            self.unresponsive.insert(worker);
        }
        if !reachable {
            self.unreachable.insert(worker);
        }
    }

    /// These lack the sum of a step that others have applied: they own nothing until they have it.
    pub(super) fn lack(&mut self, workers: impl Iterator<Item = u32>) {
        self.unresponsive.extend(workers);
    }

    /// A worker holds a sum.
    pub(super) fn holds(&mut self, worker: u32) {
        self.unresponsive.remove(&worker);
    }

    /// Whether nothing speaks against it that a worker answers.
    pub(super) fn answers(&self, worker: u32) -> bool {
        !self.unresponsive.contains(&worker) && !self.unreachable.contains(&worker)
    }

    /// One of these has lied about a sum, or this one: they own nothing, not after they have come
    /// again either.
    pub(super) fn distrust(&mut self, suspected: &BTreeSet<u32>, liar: Option<u32>) {
        self.suspected.clone_from(suspected);
        self.liars.extend(liar);
    }

    fn is_trusted(&self, worker: u32) -> bool {
        !self.suspected.contains(&worker) && !self.liars.contains(&worker)
    }

    /// Whether some of these can own something.
    pub(super) fn some_can_own(&self, holders: &[u32]) -> bool {
        self.by_workers && holders.iter().any(|holder| self.is_trusted(*holder))
    }

    /// A worker is lost, or another process has its number.
    pub(super) fn forget(&mut self, worker: u32) {
        self.late.remove(&worker);
        self.unresponsive.remove(&worker);
        self.unreachable.remove(&worker);
    }

    /// A step's first sum is begun, of the terms that these hold.
    pub(super) fn step_begins(&mut self, present: &BTreeSet<u32>, holders: &BTreeSet<u32>) {
        for &worker in present {
            let late = self.late.entry(worker).or_default();
            *late = if holders.contains(&worker) { 0 } else { *late + 1 };
        }
    }

    /// Who sums which chunks of a vector of `length` numbers. At least one of the holders must be
    /// present and [able to](Self::some_can_own).
    pub(super) fn owners(
        &self,
        present: &BTreeSet<u32>,
        terms: &[Summand],
        length: usize,
    ) -> Vec<Owner> {
        let count = chunks(length);
        self.share(present, terms, count, count)
    }

    /// The same for a step that is not computed yet: gives the chunks of a stripe, and who sums
    /// which of every stripe. A worker that is always late is taken to hold nothing, if others have
    /// its terms.
    ///
    /// Results become final from one end to the other, and all owners are to have something to sum
    /// from the first part on.
    pub(super) fn of_stripes(
        &self,
        present: &BTreeSet<u32>,
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
        let workers = present.len().max(1);
        if by_load {
            // Shares of different sizes are kept over more chunks, in which all take turns.
            let stripe = (workers * SHARE_STEPS).min(count);
            return (stripe, taking_turns(&self.share(present, &terms, stripe, count)));
        }
        let stripe = count.div_ceil(STRIPES).max(STRIPE_LEAST).max(workers);
        let stripe = stripe.next_multiple_of(workers).min(count);
        (stripe, self.share(present, &terms, stripe, count))
    }

    /// Whether all can be asked by the others for what they have.
    pub(super) fn all_are_reachable(&self, present: &BTreeSet<u32>) -> bool {
        self.unreachable.is_disjoint(present)
    }

    fn is_late(&self, worker: u32) -> bool {
        self.late.get(&worker).is_some_and(|steps| *steps >= LATE_STEPS)
    }

    /// Cuts so many of the `all` chunks of a vector among those who can sum.
    fn share(
        &self,
        present: &BTreeSet<u32>,
        terms: &[Summand],
        count: usize,
        all: usize,
    ) -> Vec<Owner> {
        let loads = loads(terms);
        let load_of = |worker: &u32| loads.get(worker).copied().unwrap_or_default();
        let holds_none = |worker: &u32| !loads.contains_key(worker);
        let owns = |worker: &&u32| {
            self.is_trusted(**worker) && (self.answers(**worker) || !holds_none(worker))
        };
        let mut workers: Vec<u32> = present.iter().filter(owns).copied().collect();
        // Of a short vector only the first few get a chunk.
        if all < workers.len() {
            workers.sort_by_key(holds_none);
        }
        // A worker that is late only now costs less than wrong shares would in the next step.
        if !workers.iter().any(|worker| holds_none(worker) && self.is_late(*worker)) {
            return share_chunks(&workers, count);
        }
        let loads: Vec<Load> = workers.iter().map(load_of).collect();
        cut(&workers, &shares(&loads, terms.len()), count)
    }
}

/// Leaves a term those of its holders who are of a kind, if there are some.
pub(super) fn prefer(term: &mut Summand, kind: impl Fn(Worker) -> bool) {
    if term.holders.iter().any(|piece| kind(piece.worker)) {
        term.holders.retain(|piece| kind(piece.worker));
    }
}

/// What a worker holds of a sum.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    terms: usize,
    /// What it sends of its terms if it sums nothing, in gradients.
    sends: f64,
}

/// The loads of those that hold terms.
fn loads(terms: &[Summand]) -> BTreeMap<u32, Load> {
    let mut loads: BTreeMap<u32, Load> = BTreeMap::new();
    for term in terms {
        for (place, piece) in term.holders.iter().enumerate() {
            // A worker may hold a term twice.
            if term.holders[..place].iter().any(|other| other.worker == piece.worker) {
                continue;
            }
            let load = loads.entry(piece.worker.0).or_default();
            load.terms += 1;
            load.sends += 1.0 / term.holders.len() as f64;
        }
    }
    loads
}

/// The shares of least largest traffic, by bisection: they grow with what everybody may send or
/// receive.
fn shares(loads: &[Load], terms: usize) -> Vec<f64> {
    let others = loads.len().saturating_sub(1) as f64;
    let share = |load: &Load, most: f64| {
        if load.terms == 0 {
            let sent = most / others;
            let received = (most - 1.0) / (terms.max(2) - 1) as f64;
            sent.min(received).max(0.0)
        } else {
            let each = (others - load.terms as f64).max(1.0);
            ((most - load.sends) / each).max(0.0)
        }
    };
    let (mut low, mut high) = (0.0, 2.0 + (loads.len() + terms) as f64);
    // As often as halving changes a double.
    for _ in 0..60 {
        let most = (low + high) / 2.0;
        let sum: f64 = loads.iter().map(|load| share(load, most)).sum();
        if sum < 1.0 {
            low = most;
        } else {
            high = most;
        }
    }
    loads.iter().map(|load| share(load, high)).collect()
}

/// Cuts so many chunks by shares that sum to about 1; who gets none is left out.
fn cut(workers: &[u32], shares: &[f64], count: usize) -> Vec<Owner> {
    let whole: f64 = shares.iter().sum();
    let mut owners = Vec::new();
    let (mut start, mut sum) = (0, 0.0);
    for (node, share) in workers.iter().zip(shares) {
        sum += share / whole;
        let end = ((sum * count as f64).round() as usize).min(count);
        if end > start {
            owners.push(Owner { node: *node, start, end });
            start = end;
        }
    }
    // Rounding may leave the last chunk to nobody.
    if let Some(last) = owners.last_mut() {
        last.end = count;
    }
    owners
}

/// Gives owners as many chunks as they have, but so that each has its share of the first ones too,
/// as nearly as whole chunks can be.
fn taking_turns(owners: &[Owner]) -> Vec<Owner> {
    let count: usize = owners.iter().map(|owner| owner.end - owner.start).sum();
    let mut given = vec![0; owners.len()];
    let mut turns: Vec<Owner> = Vec::new();
    for chunk in 0..count {
        // The owner furthest behind its share, in chunks of all.
        let behind = |at: usize| {
            let share = owners[at].end - owners[at].start;
            ((chunk + 1) * share) as i64 - (given[at] * count) as i64
        };
        let Some(next) = (0..owners.len()).max_by_key(|at| behind(*at)) else { break };
        given[next] += 1;
        match turns.last_mut().filter(|last| last.node == owners[next].node) {
            Some(last) => last.end += 1,
            None => turns.push(Owner { node: owners[next].node, start: chunk, end: chunk + 1 }),
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::super::plan::share_out;
    use super::*;
    use crate::sums::CHUNK;
    use crate::sums::{Piece, What};

    fn terms(holders: &[&[u32]]) -> Vec<Summand> {
        let piece = |worker: &u32| Piece { worker: Worker(*worker), what: What::Sum };
        let term =
            |held: &&[u32]| Summand { weight: 1.0, holders: held.iter().map(piece).collect() };
        holders.iter().map(term).collect()
    }

    fn counts(owners: &[Owner]) -> Vec<(u32, usize)> {
        owners.iter().map(|owner| (owner.node, owner.end - owner.start)).collect()
    }

    const LENGTH: usize = 100 * CHUNK;

    fn has_vector(term: &Summand, worker: u32) -> bool {
        term.holders.iter().any(|piece| piece.worker.0 == worker)
    }

    /// The most that anybody sends or receives, in gradients, if holders take turns.
    fn most(owners: &[Owner], terms: &[Summand], workers: u32) -> f64 {
        let share = |node: u32| {
            let own = owners.iter().filter(|owner| owner.node == node);
            own.map(|owner| (owner.end - owner.start) as f64).sum::<f64>() / 100.0
        };
        let traffic = |worker: u32| {
            let sums = f64::from(workers - 1) * share(worker);
            let sent = terms.iter().filter(|term| has_vector(term, worker)).map(|term| {
                let own: f64 = term.holders.iter().map(|piece| share(piece.worker.0)).sum();
                (1.0 - own) / term.holders.len() as f64
            });
            let held = terms.iter().filter(|term| has_vector(term, worker)).count();
            let received = 1.0 - share(worker) + share(worker) * (terms.len() - held) as f64;
            (sums + sent.sum::<f64>()).max(received)
        };
        (0..workers).map(traffic).fold(0.0, f64::max)
    }

    #[test]
    fn all_who_answer_own_alike() {
        let mut shares = OwnerShares::new(Exchange::SHARDED);
        let present: BTreeSet<u32> = (0..4).collect();
        let one_late = terms(&[&[0, 1], &[2]]);
        let owners = shares.owners(&present, &one_late, LENGTH);
        assert_eq!(counts(&owners), [(0, 25), (1, 25), (2, 25), (3, 25)]);
        shares.lack([2, 3].into_iter());
        let owners = shares.owners(&present, &one_late, LENGTH);
        let of_those = [(0, 33), (1, 33), (2, 34)];
        assert_eq!(counts(&owners), of_those, "who holds a term has answered");
        shares.holds(3);
        assert_eq!(shares.owners(&present, &one_late, LENGTH).len(), 4);
    }

    #[test]
    fn who_cannot_sum_yet_or_at_all_owns_nothing() {
        let mut shares = OwnerShares::new(Exchange::SHARDED);
        let present: BTreeSet<u32> = (0..4).collect();
        let one_late = terms(&[&[0, 1], &[2]]);
        let owners =
            |shares: &OwnerShares| counts(&shares.owners(&present, &one_late, LENGTH)).len();
        shares.comes(3, false, false);
        assert_eq!(owners(&shares), 3, "nobody reaches it");
        shares.holds(3);
        assert_eq!(owners(&shares), 3);
        shares.forget(3);
        shares.comes(3, true, true);
        assert_eq!(owners(&shares), 3, "it may need a state first");
        shares.holds(3);
        assert_eq!(owners(&shares), 4);
        let short = shares.owners(&present, &terms(&[&[3], &[2]]), 5);
        assert_eq!(counts(&short), [(2, 1)], "a holder has the one chunk");
    }

    #[test]
    fn shares_are_by_load_where_one_is_always_late() {
        let mut shares = OwnerShares::new(Exchange::SHARDED);
        let present: BTreeSet<u32> = (0..4).collect();
        let one_late = terms(&[&[0, 1], &[2]]);
        for step in 1..=4 {
            assert_eq!(counts(&shares.owners(&present, &one_late, LENGTH))[3].1, 25, "step {step}");
            shares.step_begins(&present, &(0..3).collect());
        }
        let owners = shares.owners(&present, &one_late, LENGTH);
        assert_eq!(counts(&owners), [(0, 35), (1, 35), (2, 10), (3, 20)]);
        assert!((most(&owners, &one_late, 4) - 1.2).abs() < 0.02);
        let equal = share_out(&[0, 1, 2, 3], LENGTH);
        assert!((most(&equal, &one_late, 4) - 1.5).abs() < 0.02);
        let only_survivors = share_out(&[0, 2], LENGTH);
        assert!(most(&only_survivors, &terms(&[&[0], &[2]]), 4) > 1.9);
        // It answers in time once: equal shares again.
        shares.step_begins(&present, &present);
        let calm = terms(&[&[0, 1], &[2, 3]]);
        assert_eq!(counts(&shares.owners(&present, &calm, LENGTH)).len(), 4);
    }

    #[test]
    fn chunks_are_cut_without_gaps_whatever_the_shares() {
        for count in 1..40 {
            for workers in 2..7u32 {
                let mut shares = OwnerShares::new(Exchange::SHARDED);
                let present: BTreeSet<u32> = (0..workers).collect();
                let holders: Vec<Vec<u32>> = (0..workers - 1).map(|worker| vec![worker]).collect();
                let held: Vec<&[u32]> = holders.iter().map(Vec::as_slice).collect();
                (0..4).for_each(|_| shares.step_begins(&present, &(0..workers - 1).collect()));
                let owners = shares.owners(&present, &terms(&held), count * CHUNK - 1);
                let edges = owners.windows(2).all(|pair| pair[0].end == pair[1].start);
                assert!(edges && owners[0].start == 0, "{owners:?}");
                assert_eq!(owners.last().unwrap().end, count, "{owners:?}");
            }
        }
    }

    /// Everybody has its share of every stripe, of its beginning too.
    #[test]
    fn owners_take_turns_in_stripes() {
        let held = terms(&[&[0, 1], &[2, 3]]);
        let present = BTreeSet::from([0, 1, 2, 3]);
        let mut shares = OwnerShares::new(Exchange::SHARDED);
        let (stripe, owners) = shares.of_stripes(&present, &held, 256 * CHUNK);
        assert_eq!((stripe, counts(&owners)), (8, vec![(0, 2), (1, 2), (2, 2), (3, 2)]));
        (0..LATE_STEPS).for_each(|_| shares.step_begins(&present, &BTreeSet::from([0, 2, 3])));
        let (stripe, owners) = shares.of_stripes(&present, &held, 256 * CHUNK);
        assert_eq!(stripe, 64);
        let chunks = |node: u32, until: usize| -> usize {
            let own = owners.iter().filter(|owner| owner.node == node);
            own.map(|owner| owner.end.min(until).saturating_sub(owner.start)).sum()
        };
        // 0.1, 0.2, 0.35 and 0.35 of a gradient.
        for until in [16, 32, 64] {
            for (node, share) in [(0, 0.1), (1, 0.2), (2, 0.35), (3, 0.35)] {
                let off = chunks(node, until) as f64 - share * until as f64;
                assert!(off.abs() <= 1.2, "{node} has {} of {until}", chunks(node, until));
            }
        }
        let next = |at: usize, owner: &Owner| (owner.start == at).then_some(owner.end);
        assert_eq!(owners.iter().try_fold(0, next), Some(64), "without gaps");
        assert_eq!(shares.of_stripes(&present, &held, 5 * CHUNK).0, 5, "of a short vector");
    }
}
