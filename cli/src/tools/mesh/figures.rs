//! How often workers are late, what redundancy makes of it, and what other foldings would.

use codedgrad::ids::Rank;
use codedgrad::mesh::{Axis, Layers, Layout, Mesh};
use serde::Serialize;
use std::cmp::Reverse;

/// Most stragglers for which redundancy is looked at.
const STRAGGLERS_MAX: usize = 3;

/// Shares of the steps in which somebody is late, ranks being late independently of each other.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Late {
    /// One rank.
    pub(super) rank: f64,
    /// One cell: any of its ranks.
    pub(super) cell: f64,
    /// Any rank of all: steps that are late without redundancy.
    pub(super) any: f64,
}

impl Late {
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
fn redundancy(workers: usize, stragglers: usize, late: &Late) -> Redundancy {
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
pub(super) fn redundancies(workers: usize, late: &Late) -> Vec<Redundancy> {
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
            let (late, workers) = (Late::of(&mesh, late_rank), mesh.workers());
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
mod tests {
    use super::*;

    fn mesh(world: u32, [tp, cp, pp, etp, ep]: [u32; 5]) -> Mesh {
        Mesh::new(Layout { world, tp, cp, pp, etp: Some(etp), ep, ..Layout::default() }).unwrap()
    }

    #[test]
    fn the_exchange_is_counted_by_pairs() {
        let folded = mesh(64, [2, 4, 1, 1, 8]);
        assert_eq!((exchange_off_node(&folded, 8), folded.workers()), (0.0, 8));
        let wider = mesh(64, [2, 4, 1, 2, 8]);
        assert_eq!((exchange_off_node(&wider, 8), wider.workers()), (4.0 / 7.0, 4));
        // Without folding, the ranks of an expert group are tp cp = 8 apart.
        let strided: Vec<Vec<Rank>> =
            (0..8).map(|first| (first..64).step_by(8).map(Rank).collect()).collect();
        assert_eq!(off_node(&strided, 8), 1.0);
        assert_eq!(exchange_off_node(&mesh(64, [2, 4, 1, 1, 1]), 8), 0.0);
        assert_eq!(exchange_off_node(&folded, 1), 1.0);
    }

    /// The chances by trying every set of late cells.
    fn tried(workers: usize, stragglers: usize, cell: f64) -> f64 {
        let code = codedgrad::codes::Groups::tolerating(workers, stragglers).unwrap();
        let mut late = 0.0;
        for set in 0..1u32 << workers {
            let is_late = |worker: &codedgrad::ids::Worker| set >> worker.0 & 1 == 1;
            let on_time = codedgrad::ids::Worker::all(workers).filter(|worker| !is_late(worker));
            let survivors = codedgrad::ids::WorkerSet::of(workers, on_time);
            let choice = codedgrad::codes::Choice::Fewest;
            if !codedgrad::codes::decode(&code, &survivors, choice).1.decodable {
                let missing = set.count_ones();
                let there = workers as i32 - missing as i32;
                late += cell.powi(missing as i32) * (1.0 - cell).powi(there);
            }
        }
        late
    }

    #[test]
    fn redundancy_is_late_as_often_as_its_code() {
        for workers in 2..=10 {
            for (stragglers, cell) in [(1, 0.1), (1, 0.7), (2, 0.3), (3, 0.9)] {
                if stragglers >= workers {
                    continue;
                }
                let late = Late { rank: 0.0, cell, any: any(cell, workers) };
                let found = redundancy(workers, stragglers, &late);
                let expected = tried(workers, stragglers, cell);
                assert!((found.late - expected).abs() < 1e-12, "{workers} {stragglers}: {found:?}");
                let load = workers / (stragglers + 1);
                assert_eq!(found.work, workers as f64 / load as f64);
                let even = found.break_even.unwrap();
                // By then, what redundancy costs is what it saves.
                assert!((found.work + expected * even - (1.0 + late.any * even)).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn the_most_stragglers_of_equal_groups_are_listed() {
        let listed = |workers| -> Vec<String> {
            let late = Late { rank: 0.0, cell: 0.1, any: any(0.1, workers) };
            redundancies(workers, &late).into_iter().map(|found| found.scheme).collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(listed(1), none);
        assert_eq!(listed(2), ["groups:s=1"]);
        assert_eq!(listed(3), ["groups:s=2"]);
        assert_eq!(listed(4), ["groups:s=1", "groups:s=3"]);
        assert_eq!(listed(5), ["groups:s=1", "groups:s=3"]);
        assert_eq!(listed(6), ["groups:s=1", "groups:s=2", "groups:s=3"]);
    }

    #[test]
    fn chances_keep_their_digits() {
        assert_eq!((any(0.0, 9), any(1.0, 9), any(0.5, 0)), (0.0, 1.0, 0.0));
        assert!(any(0.0, 9).is_sign_positive());
        assert!((any(1e-18, 1000) / 1e-15 - 1.0).abs() < 1e-12);
        // Nobody is ever late, or everybody is always: redundancy saves nothing.
        for rank in [0.0, 1.0] {
            let late = Late::of(&mesh(8, [1, 1, 1, 1, 1]), rank);
            assert!(redundancies(8, &late).iter().all(|found| found.break_even.is_none()));
        }
    }

    #[test]
    fn foldings_are_sorted_and_each_is_there_once() {
        let base = mesh(64, [2, 2, 2, 1, 4]);
        let pairs = |experts| -> Vec<(u32, u32, usize)> {
            let found = foldings(&base, experts, 8, 0.001);
            found.iter().map(|folding| (folding.etp, folding.ep, folding.workers)).collect()
        };
        let kept = [(1, 4, 8), (1, 2, 8), (2, 2, 8), (1, 1, 8), (2, 1, 8)];
        let lost = [(1, 8, 4), (2, 4, 4), (1, 16, 2), (2, 8, 2), (1, 32, 1), (2, 16, 1)];
        assert_eq!(pairs(None), [&kept[..], &lost[..]].concat());
        // ep divides the experts, and etp ep the ranks of a stage.
        assert_eq!(pairs(Some(12)), [&kept[..], &[(2, 4, 4)]].concat());
        let flat = foldings(&mesh(6, [1; 5]), Some(6), 8, 0.001);
        let flat: Vec<(u32, u32)> = flat.iter().map(|folding| (folding.etp, folding.ep)).collect();
        assert_eq!(flat, [(1, 1), (1, 2), (1, 3), (1, 6)]);
    }
}
