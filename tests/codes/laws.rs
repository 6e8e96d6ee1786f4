//! What must hold for every code, every set of survivors and every order of arrival.

use crate::{ROUNDING, dense, from_bits, oracle, shortest, subsets};
use codedgrad::codes::ParameterError;
use codedgrad::codes::registry::Registry;
use codedgrad::codes::sequential::{Accept, Horizon};
use codedgrad::codes::{
    Choice, Cyclic, DenseCode, DropSlowest, Gate, GradientCode, Graph, Groups, Interval, MinLoad,
    SchemeSpec, Status, decode, verify,
};
use codedgrad::ids::{Job, Worker, WorkerSet};
use codedgrad::run::NumberFormat;
use nalgebra::DVector;
use proptest::prelude::*;

/// How far weights may be from the oracle's, relative to their size, and a decodable set from
/// exact. Random cyclic codes lose more: their conditioning is what they are a warning for.
fn rounding(code: &dyn GradientCode, cyclic: bool) -> f64 {
    if cyclic && code.facts().workers > 12 { 1e-4 } else { 1e-7 }
}

/// Every law of a code, for one set of survivors. The oracle is one-sided: beyond a code's own rule
/// some sets happen to decode.
fn laws(code: &dyn GradientCode, survivors: &WorkerSet, rounding: f64) {
    let facts = code.facts();
    let (best, left) = oracle(code, survivors);
    let (minimal, report) = shortest(code, survivors);
    let (fewest, streaming) = decode(code, survivors, Choice::Fewest);
    let missing = facts.workers - survivors.len();
    assert!(missing > facts.tolerance || report.decodable, "{survivors}: within the tolerance");
    let within = report.residual <= rounding || report.error <= facts.error_max + ROUNDING;
    assert!(
        !report.decodable || within,
        "{survivors}: decodable means exact, or within the error: {report:?}"
    );
    if facts.error_max == 0.0 {
        assert!(
            !report.decodable || left.amax() <= rounding,
            "{survivors}: the oracle agrees: {:e}",
            left.amax()
        );
    }
    let scale = 1.0 + best.iter().fold(0.0f64, |most, a| most.max(a.abs()));
    for (ours, theirs) in minimal.iter().zip(&best) {
        assert!(
            (ours - theirs).abs() < rounding * scale,
            "{survivors}: minimum norm {minimal:?} against {best:?}"
        );
    }
    assert_eq!(report.decodable, streaming.decodable);
    for (weights, report) in [(&minimal, report), (&fewest, streaming)] {
        let alpha = dense(code).transpose() * DVector::from_column_slice(weights);
        let scale = 1.0 + weights.iter().map(|a| a.abs()).sum::<f64>() * dense(code).amax();
        assert!((alpha.add_scalar(-1.0).amax() - report.residual).abs() < ROUNDING * scale);
        assert!(
            weights
                .iter()
                .enumerate()
                .all(|(i, a)| *a == 0.0 || survivors.contains(Worker(i as u32)))
        );
        let exact = report.residual <= 1e-9 && report.amplification <= 256.0;
        let allowed =
            facts.error_max > 0.0 && report.error <= facts.error_max && report.coverage > 0.0;
        assert_eq!(
            Gate::new(NumberFormat::F32, facts).check(&report).is_ok(),
            exact || allowed && report.amplification <= 256.0
        );
    }
    let used = |weights: &[f64]| weights.iter().filter(|a| **a != 0.0).count();
    assert!(!report.decodable || used(&fewest) <= survivors.len());
}

fn everywhere(code: &dyn GradientCode, cyclic: bool) {
    subsets(code.facts().workers)
        .for_each(|survivors| laws(code, &survivors, rounding(code, cyclic)));
}

/// Whether the stated tolerance is the true one, by trying all sets.
fn tolerance_is_tight(code: &dyn GradientCode) {
    let facts = code.facts();
    let beyond = |survivors: &WorkerSet| facts.workers - survivors.len() == facts.tolerance + 1;
    assert!(
        subsets(facts.workers)
            .filter(beyond)
            .any(|survivors| !shortest(code, &survivors).1.decodable)
    );
}

#[test]
fn every_survivor_set_of_every_group_code_up_to_ten_workers() {
    for workers in 1..=10 {
        for groups in 1..=workers {
            let code = Groups::new(workers, groups).unwrap();
            everywhere(&code, false);
            tolerance_is_tight(&code);
            for survivors in subsets(workers) {
                let (fewest, report) = decode(&code, &survivors, Choice::Fewest);
                assert!(fewest.iter().all(|a| *a == 0.0 || *a == 1.0));
                assert!(
                    report.amplification <= 1.0 && (!report.decodable || report.residual == 0.0)
                );
            }
        }
    }
}

#[test]
fn every_survivor_set_of_every_min_load_code_up_to_ten_workers() {
    for workers in 1..=10 {
        for stragglers in 0..workers {
            let code = MinLoad::new(workers, stragglers).unwrap();
            everywhere(&code, false);
            for survivors in subsets(workers).filter(|s| workers - s.len() <= stragglers) {
                for choice in [Choice::Fewest, Choice::MinimumNorm] {
                    let report = decode(&code, &survivors, choice).1;
                    assert!(
                        Gate::new(NumberFormat::F32, code.facts()).check(&report).is_ok(),
                        "({workers},{stragglers}) {survivors} {report:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_survivor_set_of_every_cyclic_code_up_to_eight_workers() {
    for workers in 1..=8 {
        for stragglers in 0..workers {
            everywhere(&Cyclic::new(workers, stragglers, 7).unwrap(), true);
        }
    }
}

#[test]
fn every_survivor_set_of_interval_codes() {
    for stragglers in 0..4 {
        for workers in stragglers + 1..=9 {
            everywhere(&Interval::charalambides(workers, stragglers).unwrap(), false);
        }
    }
    let speeds = [1.0, 2.0, 1.0, 0.5, 4.0, 1.0, 2.0, 0.5];
    for code in [
        Interval::layers(&speeds, 1, 24).unwrap(),
        Interval::layers(&speeds, 2, 24).unwrap(),
        Interval::sorted_groups(&speeds, 3, 24).unwrap(),
        Interval::new(&[(0, 4), (2, 4), (2, 6), (0, 6), (4, 6), (1, 5), (0, 1), (5, 6)]).unwrap(),
    ] {
        everywhere(&code, false);
        tolerance_is_tight(&code);
    }
}

#[test]
fn every_survivor_set_of_graph_codes_up_to_ten_workers() {
    for workers in 3..=10 {
        for degree in 2..=4 {
            for (seed, error_max) in [(1, 0.0), (2, 0.1), (3, 0.3)] {
                if let Ok(code) = Graph::new(workers, degree, error_max, seed) {
                    everywhere(&code, false);
                    tolerance_is_tight(&code);
                }
            }
        }
    }
}

#[test]
fn a_matrix_decodes_like_the_code_it_was_taken_from() {
    let codes: [Box<dyn GradientCode>; 4] = [
        Box::new(Groups::new(7, 3).unwrap()),
        Box::new(MinLoad::new(8, 2).unwrap()),
        Box::new(Interval::new(&[(0, 4), (2, 4), (2, 6), (0, 6), (4, 6)]).unwrap()),
        Box::new(Cyclic::new(8, 2, 7).unwrap()),
    ];
    for code in codes {
        let rows: Vec<Vec<f64>> =
            dense(&*code).row_iter().map(|row| row.iter().copied().collect()).collect();
        let copy = DenseCode::new(&rows).unwrap();
        assert_eq!(copy.facts().tolerance, code.facts().tolerance);
        assert_eq!(copy.facts().load, code.facts().load);
        everywhere(&copy, false);
        for survivors in subsets(rows.len()) {
            let (theirs, expected) = shortest(&*code, &survivors);
            let (ours, report) = shortest(&copy, &survivors);
            assert!(
                report.decodable || !expected.decodable,
                "{survivors}: the span is the weakest rule"
            );
            assert!(
                !expected.decodable || ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-7),
                "{survivors}"
            );
        }
    }
}

#[test]
fn supports_loads_and_tolerances_are_as_stated() {
    for workers in 1..=64usize {
        for stragglers in 0..workers {
            let groups = Groups::tolerating(workers, stragglers).unwrap();
            assert!(groups.facts().tolerance >= stragglers);
            assert_eq!(groups.facts().tolerance + 1, workers / groups.facts().shares());
            let code = MinLoad::new(workers, stragglers).unwrap();
            assert!(
                Worker::all(workers).all(|w| code.row(w).len() == stragglers + 1),
                "({workers},{stragglers})"
            );
            assert_eq!((code.facts().tolerance, code.facts().shares()), (stragglers, workers));
            assert!(
                Worker::all(workers)
                    .all(|w| code.row(w).iter().any(|&(j, x)| j.0 == w.0 && x > 0.0))
            );
            let largest = dense(&code).amax();
            assert!((largest - 1.0).abs() < ROUNDING);
        }
    }
    let code = Cyclic::new(20, 6, 7).unwrap();
    assert!(Worker::all(20).all(|w| code.row(w).len() == 7) && code.facts().load == 7.0 / 20.0);
    for (workers, degree) in [(12, 3), (16, 4), (40, 5), (50, 4), (14, 4)] {
        let code = Graph::new(workers, degree, 0.2, 3).unwrap();
        let mut holders = vec![0; code.facts().shares()];
        for worker in Worker::all(workers) {
            assert_eq!(code.row(worker).len(), 2);
            code.row(worker).iter().for_each(|(share, _)| holders[share.index()] += 1);
        }
        assert!(
            holders.iter().all(|count| *count == degree || *count == degree + 1),
            "{holders:?}"
        );
        let distinct: std::collections::BTreeSet<_> = Worker::all(workers)
            .map(|w| code.row(w).iter().map(|x| x.0).collect::<Vec<_>>())
            .collect();
        assert_eq!(distinct.len(), workers, "simple");
        assert_eq!(code.facts().load, 2.0 / code.facts().shares() as f64);
    }
}

#[test]
fn dropping_is_biased_and_says_so() {
    for workers in 2..=9 {
        for dropped in 1..workers {
            let code = DropSlowest::new(workers, dropped).unwrap();
            for survivors in subsets(workers) {
                let (weights, report) = decode(&code, &survivors, Choice::Fewest);
                let missing = workers - survivors.len();
                assert_eq!(report.decodable, missing <= dropped);
                if survivors.is_empty() {
                    continue;
                }
                assert!(
                    (weights.iter().sum::<f64>() - workers as f64).abs() < 1e-9,
                    "unbiased if stragglers were random"
                );
                assert!(
                    (report.coverage - survivors.len() as f64 / workers as f64).abs() < ROUNDING
                );
                let expected = missing as f64 / survivors.len() as f64;
                assert!((report.error - expected).abs() < 1e-9, "normalised error b/(n-b)");
                assert_eq!(
                    Gate::new(NumberFormat::F32, code.facts()).check(&report).is_ok(),
                    missing <= dropped
                );
            }
        }
    }
}

#[test]
fn rescaling_covers_what_is_left() {
    for survivors in subsets(7) {
        let code = Groups::new(7, 3).unwrap().rescaling();
        let (weights, report) = decode(&code, &survivors, Choice::Fewest);
        let lost = (0..3).filter(|j| survivors.iter().all(|w| code.group(w) != *j)).count();
        assert!((report.coverage - (3 - lost) as f64 / 3.0).abs() < ROUNDING);
        if lost < 3 {
            assert!((weights.iter().sum::<f64>() - 3.0).abs() < 1e-9);
            assert!(Gate::new(NumberFormat::F32, code.facts()).check(&report).is_ok());
        }
    }
}

#[test]
fn refusals_name_the_numbers_and_a_better_code() {
    let code = Cyclic::new(64, 15, 7).unwrap();
    let burst = WorkerSet::of(64, (0..15).map(Worker)).complement();
    let report = shortest(&code, &burst).1;
    assert!(report.decodable, "by its own rule");
    let refusal =
        Gate::new(NumberFormat::Bf16, code.facts()).check(&report).unwrap_err().to_string();
    assert!(refusal.contains("min-load:s=15") && refusal.contains("at most 8"), "{refusal}");
    let graph = Graph::new(12, 3, 0.01, 7).unwrap();
    let few = shortest(&graph, &WorkerSet::of(12, (0..3).map(Worker))).1;
    let refusal = Gate::new(NumberFormat::F32, graph.facts()).check(&few).unwrap_err().to_string();
    assert!(refusal.contains("normalised error") && refusal.contains("groups:s="), "{refusal}");
}

#[test]
fn what_is_no_number_never_passes_a_gate() {
    let rows = vec![vec![(codedgrad::ids::Share(0), 1.0)], vec![(codedgrad::ids::Share(1), 1.0)]];
    let facts = Groups::uncoded(2).unwrap().facts().clone();
    for weights in [[f64::NAN, 1.0], [f64::INFINITY, 1.0], [f64::NAN, f64::NAN]] {
        let report = codedgrad::codes::judge(&rows, &[0.5, 0.5], &weights, true);
        assert!(Gate::new(NumberFormat::F32, &facts).check(&report).is_err(), "{report:?}");
    }
    assert!(
        DenseCode::new(&[vec![1e200, 0.0], vec![0.0, 1e200]])
            .unwrap_err()
            .to_string()
            .contains("at most 1e100")
    );
}

#[test]
fn what_does_not_fit_into_memory_is_refused() {
    let build = |text: &str, workers: usize| {
        text.parse::<SchemeSpec>().unwrap().code(workers).map(|_| ()).unwrap_err().to_string()
    };
    for (text, workers) in
        [("min-load:s=65535", 65536), ("min-load:s=2048", 4096), ("min-load:s=1200", 2400)]
    {
        let error = build(text, workers);
        assert!(error.contains("groups:s="), "{error}");
    }
    assert!(Interval::new(&[(0, u32::MAX)]).unwrap_err().to_string().contains("cut points"));
    assert!("cyclic:s=2,seed=18446744073709551615".parse::<SchemeSpec>().unwrap().code(8).is_ok());
}

#[test]
fn verification_finds_what_a_false_claim_hides() {
    let check = |code: &dyn GradientCode| {
        verify(code, &Gate::new(NumberFormat::F32, code.facts()), 3, &mut |_, _| ())
    };
    let honest = check(&MinLoad::new(9, 3).unwrap());
    assert!(honest.exhaustive && honest.failed == 0 && honest.sets == 1 + 9 + 36 + 84);
    let rows =
        vec![vec![1.0, 1.0, 0.0], vec![0.0, 1.0, 1.0], vec![1.0, 0.0, 1.0], vec![1.0, 1.0, 1.0]];
    let claimed = DenseCode::new(&rows).unwrap().claiming(2).unwrap();
    let found = check(&claimed);
    let fatal: Vec<WorkerSet> = subsets(4)
        .filter(|s| s.len() >= 2 && !shortest(&claimed, s).1.decodable)
        .map(|s| s.complement())
        .collect();
    assert!(!fatal.is_empty());
    assert_eq!(
        found
            .failures
            .iter()
            .map(|f| f.stragglers.clone())
            .collect::<std::collections::HashSet<_>>(),
        fatal.into_iter().collect()
    );
    let large = Groups::tolerating(64, 15).unwrap();
    let mut calls = Vec::new();
    let sampled =
        verify(&large, &Gate::new(NumberFormat::F32, large.facts()), 3, &mut |done, all| {
            calls.push((done, all));
        });
    assert!(!sampled.exhaustive && sampled.failed == 0 && sampled.sets > 10_000);
    assert!(calls.is_sorted() && calls.last() == Some(&(sampled.sets, sampled.sets)));
}

/// A code of each family for `workers`, parameters drawn from `pick`.
fn any_code(workers: usize, pick: usize, seed: u64) -> (Box<dyn GradientCode>, bool) {
    let s = pick / 8 % workers.div_ceil(2);
    let speeds: Vec<f64> = (0..workers).map(|i| 1.0 + ((i * 7 + pick) % 5) as f64 / 4.0).collect();
    match pick % 7 {
        0 => (Box::new(Groups::new(workers, 1 + pick / 8 % workers).unwrap()), false),
        1 => (Box::new(MinLoad::new(workers, s).unwrap()), false),
        2 => (Box::new(Cyclic::new(workers, s, seed).unwrap()), true),
        3 => (Box::new(Interval::charalambides(workers, s).unwrap()), false),
        4 => (Box::new(Interval::layers(&speeds, s / 2, 4 * workers as u32).unwrap()), false),
        5 => (
            Box::new(
                Interval::sorted_groups(&speeds, workers / (s + 1), 4 * workers as u32).unwrap(),
            ),
            false,
        ),
        _ => (
            Box::new(
                Graph::new(workers, 2 + usize::from(workers > 8) * (pick / 8 % 2), 0.5, seed)
                    .unwrap(),
            ),
            false,
        ),
    }
}

proptest! {
    #[test]
    fn larger_codes_obey_the_laws(
        workers in 11usize..64,
        pick: usize,
        seed: u64,
        bits: u64,
        thin: u64,
    ) {
        let (code, cyclic) = any_code(workers, pick, seed);
        // Few stragglers more often than half of all.
        let survivors = from_bits(workers, bits | thin | bits.rotate_left(17));
        // Worst sets of large r amplify by thousands, which is what the gate is for.
        let rounding = if survivors.is_empty() { 1.0 } else { rounding(&*code, cyclic) };
        let report = shortest(&*code, &survivors).1;
        prop_assume!(report.amplification < 1e4);
        laws(&*code, &survivors, rounding);
    }

    /// What a code says of the moment at which it is decodable is what its decoder says, ties
    /// included.
    #[test]
    fn the_decodable_moment_is_the_decoders(
        workers in 1usize..40,
        groups in 1usize..40,
        times in prop::collection::vec(0u8..20, 40),
    ) {
        let code = Groups::new(workers, groups.min(workers)).unwrap();
        let times: Vec<f64> = times[..workers].iter().map(|time| f64::from(*time)).collect();
        let mut order: Vec<Worker> = Worker::all(workers).collect();
        order.sort_by(|a, b| times[a.index()].total_cmp(&times[b.index()]));
        let mut decoder = code.decoder();
        let last =
            order.into_iter().find(|worker| decoder.arrive(*worker) == Status::Decodable).unwrap();
        prop_assert_eq!(code.decodable_at(&times), Some(times[last.index()]));
    }

    /// Of a gradient that becomes final part by part, in one order everywhere, the last part is
    /// decodable last, and no sooner than the whole: a set of survivors of its own for every part
    /// gains nothing.
    #[test]
    fn the_last_part_is_decodable_with_the_whole(
        workers in 6usize..24,
        pick: usize,
        seed: u64,
        times in prop::collection::vec(prop::collection::vec(0u16..300, 24), 1..5),
    ) {
        let code = any_code(workers, pick, seed).0;
        let decodable = |times: &[u32]| {
            let mut order: Vec<Worker> = Worker::all(workers).collect();
            order.sort_by_key(|worker| times[worker.index()]);
            let mut decoder = code.decoder();
            let last = order.into_iter().find(|worker| decoder.arrive(*worker) == Status::Decodable);
            last.map(|worker| times[worker.index()])
        };
        let mut done = vec![0u32; workers];
        let mut moments = Vec::new();
        for part in &times {
            done.iter_mut().zip(part).for_each(|(done, took)| *done += u32::from(*took));
            moments.push(decodable(&done));
        }
        prop_assert!(moments.is_sorted(), "{:?}", moments);
        prop_assert_eq!(moments.last().copied().flatten(), decodable(&done));
    }

    #[test]
    fn any_matrix_obeys_the_laws(
        rows in prop::collection::vec(prop::collection::vec(-2i8..=2, 4), 1..10),
        bits: u64,
    ) {
        let rows: Vec<Vec<f64>> =
            rows.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect();
        if let Ok(code) = DenseCode::new(&rows) {
            laws(&code, &from_bits(rows.len(), bits), 1e-7);
            tolerance_is_tight(&code);
        }
    }

    #[test]
    fn incremental_status_equals_batch_decode_in_any_order(
        workers in 6usize..24,
        pick: usize,
        seed: u64,
        order in Just((0u32..24).collect::<Vec<u32>>()).prop_shuffle(),
    ) {
        let code = any_code(workers, pick, seed).0;
        let mut decoder = code.decoder();
        let (mut decodable, mut arrived) = (false, WorkerSet::empty(workers));
        for worker in order.into_iter().map(Worker).filter(|worker| worker.index() < workers) {
            let status = decoder.arrive(worker);
            prop_assert_eq!(decoder.arrive(worker), Status::Useless, "twice is as good as once");
            prop_assert!(!(decodable && status == Status::Decodable), "said once");
            decodable |= status == Status::Decodable;
            arrived.insert(worker);
            let (batch, report) = shortest(&*code, &arrived);
            prop_assert_eq!(report.decodable, decodable);
            let mut weights = vec![f64::NAN; workers];
            let incremental = decoder.weights(Choice::MinimumNorm, &mut weights);
            prop_assert_eq!(incremental.decodable, decodable);
            let scale = 1.0 + batch.iter().fold(0.0f64, |most, a| most.max(a.abs()));
            prop_assert!(weights.iter().zip(&batch).all(|(a, b)| (a - b).abs() < 1e-6 * scale));
        }
        prop_assert!(decodable);
        decoder.reset();
        let mut weights = vec![f64::NAN; workers];
        decoder.weights(Choice::Fewest, &mut weights);
        prop_assert!(weights.iter().all(|weight| *weight == 0.0));
    }

    #[test]
    fn texts_give_codes(
        text in prop::sample::select(Registry::builtin().examples().collect::<Vec<_>>()),
        workers in 10usize..24,
    ) {
        prop_assume!(
            !text.contains("FILE") && (cfg!(feature = "berrut") || !text.contains("bacc"))
        );
        let spec: SchemeSpec = text.parse().unwrap();
        let horizon = Horizon { workers, units: None, jobs: Job(0)..Job(3), accept: Accept::Model };
        let scheme = spec.over(horizon).unwrap();
        prop_assert_eq!(scheme.facts().workers, workers);
        match spec.code(workers) {
            Ok(code) => prop_assert!(
                (code.facts().load - scheme.facts().load).abs() < ROUNDING
                    && scheme.facts().delay == 0
            ),
            Err(error) => {
                let refused = matches!(
                    error,
                    ParameterError::NotOneRound { .. } | ParameterError::NoMatrix { .. }
                );
                prop_assert!(refused, "{}", error);
            }
        }
    }
}
