//! Which workers sum, and how much each.
//!
//! # Formula
//! With `n` workers, `l` terms and shares `a_i` of the vector that sum to 1, in units of a
//! gradient,
//! ```text
//! a worker that holds k terms, each held by r_j, sends   sum_j 1/r_j + (n - 1 - k) a_i
//! a worker that holds none sends (n - 1) a_i and receives 1 + (l - 1) a_i
//! ```
//! Equal shares are best where all workers hold as much. Where a worker holds nothing, its partner
//! alone sends their vector; the shares by load make the most that a worker sends or receives
//! least.

use crate::ids::{Summand, Worker};
use crate::sums::Owner;
use std::collections::BTreeMap;

/// Leaves a term those of its holders who are of a kind, if there are some.
pub(super) fn prefer(term: &mut Summand, kind: impl Fn(Worker) -> bool) {
    if term.holders.iter().any(|piece| kind(piece.worker)) {
        term.holders.retain(|piece| kind(piece.worker));
    }
}

/// What a worker holds of a sum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    terms: usize,
    /// What it sends of its terms if it sums nothing, in gradients.
    sends: f64,
}

/// The loads of those that hold terms.
pub(super) fn loads(terms: &[Summand]) -> BTreeMap<u32, Load> {
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

/// The shares of least largest traffic, by bisection: they grow with what each worker may send or
/// receive.
pub(super) fn shares(loads: &[Load], terms: usize) -> Vec<f64> {
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
pub(super) fn cut(workers: &[u32], shares: &[f64], count: usize) -> Vec<Owner> {
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
    // Rounding may leave the last chunk to no owner.
    if let Some(last) = owners.last_mut() {
        last.end = count;
    }
    owners
}

/// Gives owners as many chunks as they have, but so that each has its share of the first ones too,
/// as nearly as whole chunks can be.
pub(super) fn taking_turns(owners: &[Owner]) -> Vec<Owner> {
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
