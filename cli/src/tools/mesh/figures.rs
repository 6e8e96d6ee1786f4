//! How often workers are late, what redundancy makes of it, and what other foldings would.

use codedgrad::ids::Rank;
use codedgrad::mesh::{Axis, Layers, Layout, Mesh};
use serde::Serialize;
use std::cmp::Reverse;

/// Most stragglers for which redundancy is looked at.
const STRAGGLERS_MAX: usize = 3;

/// Shares of the steps with a late rank, if ranks are late independently of each other.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct LateShares {
    /// One rank.
    pub(super) rank: f64,
    /// One cell: any of its ranks.
    pub(super) cell: f64,
    /// Any rank of all: steps that are late without redundancy.
    pub(super) any: f64,
}

impl LateShares {
    pub(super) fn of(mesh: &Mesh, rank: f64) -> Self {
        Self {
            rank,
            cell: any(rank, mesh.cell_size()),
            any: any(rank, mesh.layout().world as usize),
        }
    }
}

/// What redundancy costs, and how often a step is still late with it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Redundancy {
    pub(super) scheme: String,
    /// Computing, in uncoded batches.
    pub(super) work: f64,
    pub(super) late: f64,
    /// Uncoded step times by which a late rank must be late for the scheme to be faster.
    pub(super) break_even: Option<f64>,
}

/// A folding of the same ranks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Folding {
    pub(super) etp: u32,
    pub(super) ep: u32,
    pub(super) cell_size: usize,
    pub(super) workers: usize,
    pub(super) cell_late: f64,
    pub(super) exchange_off_node: f64,
    pub(super) break_even: Option<f64>,
}

/// The chance that any of so many is late, each with the same chance: `1 - (1 - p)^n`, without
/// losing the digits of a small `p`.
fn any(each: f64, count: usize) -> f64 {
    if count == 0 {
        return 0.0;
    }
    0.0 - f64::exp_m1(count as f64 * f64::ln_1p(-each))
}

/// Groups of `s + 1` workers or more, each of which computes its part of a batch as a whole.
fn redundancy(workers: usize, stragglers: usize, late: &LateShares) -> Redundancy {
    let groups = workers / (stragglers + 1);
    // A group is late when all of its members are.
    let (size, larger) = (workers / groups, workers % groups);
    let all_of = |members: usize| late.cell.powf(members as f64);
    let (some, other) = (any(all_of(size + 1), larger), any(all_of(size), groups - larger));
    let still = some + other - some * other;
    let work = workers as f64 / groups as f64;
    let saved = late.any - still;
    Redundancy {
        scheme: format!("groups:s={stragglers}"),
        work,
        late: still,
        break_even: (saved > 0.0).then(|| (work - 1.0) / saved),
    }
}

/// What one to three stragglers would cost; of those that come to the same groups the most.
pub(super) fn redundancies(workers: usize, late: &LateShares) -> Vec<Redundancy> {
    let most = STRAGGLERS_MAX.min(workers - 1);
    let groups = |stragglers: usize| workers / (stragglers + 1);
    (1..=most)
        .filter(|s| *s == most || groups(*s) != groups(s + 1))
        .map(|s| redundancy(workers, s, late))
        .collect()
}

/// The share of ordered pairs within groups that lie on different nodes of so many consecutive
/// ranks; 0 where no group has two ranks.
fn off_node(groups: &[Vec<Rank>], node: u32) -> f64 {
    let pairs = |ranks: &[Rank]| ranks.len() as u64 * (ranks.len() as u64 - 1);
    let all: u64 = groups.iter().map(|group| pairs(group)).sum();
    let within = groups.iter().flat_map(|group| group.chunk_by(|a, b| a.0 / node == b.0 / node));
    let on_node: u64 = within.map(pairs).sum();
    if all == 0 { 0.0 } else { (all - on_node) as f64 / all as f64 }
}

/// How much of the exchange between experts leaves its node.
pub(super) fn exchange_off_node(mesh: &Mesh, node: u32) -> f64 {
    off_node(&mesh.groups(Layers::Expert, &[Axis::Expert]), node)
}

/// All foldings of the experts over the same ranks, those that keep most workers first.
pub(super) fn foldings(
    mesh: &Mesh,
    experts: Option<u32>,
    node: u32,
    late_rank: f64,
) -> Vec<Folding> {
    let layout = mesh.layout();
    let stage = layout.world / layout.pp;
    let mut etps = vec![1, layout.tp];
    etps.dedup();
    let divides = |ep: &u32| match experts {
        Some(experts) => experts.is_multiple_of(*ep),
        None => ep.is_power_of_two(),
    };
    let mut found = Vec::new();
    for etp in etps {
        for ep in (1..=stage / etp).filter(divides) {
            let Ok(mesh) = Mesh::new(Layout { etp: Some(etp), ep, ..*layout }) else { continue };
            let (late, workers) = (LateShares::of(&mesh, late_rank), mesh.workers());
            found.push(Folding {
                etp,
                ep,
                cell_size: mesh.cell_size(),
                workers,
                cell_late: late.cell,
                exchange_off_node: exchange_off_node(&mesh, node),
                break_even: (workers > 1)
                    .then(|| redundancy(workers, 1, &late).break_even)
                    .flatten(),
            });
        }
    }
    found.sort_by(|a, b| {
        let rest = |folding: &Folding| (Reverse(folding.ep), folding.etp);
        let off_node = || a.exchange_off_node.total_cmp(&b.exchange_off_node);
        b.workers.cmp(&a.workers).then_with(off_node).then_with(|| rest(a).cmp(&rest(b)))
    });
    found
}

#[cfg(test)]
mod tests;
