//! The laws of the one-round codes, against a dense least-squares oracle and golden values.

use codedgrad::codes::{Choice, DropSlowest, Gate, GradientCode, Groups, SchemeSpec, Status, Wire, decode};
use codedgrad::ids::{Worker, WorkerSet};
use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;

/// Weights and residuals are sums of a few exactly representable numbers.
const TOLERANCE: f64 = 1e-12;

/// The rows of a code as a dense matrix `[n x k]`.
fn dense(code: &dyn GradientCode) -> DMatrix<f64> {
    let facts = code.facts();
    let mut matrix = DMatrix::zeros(facts.workers, facts.shares());
    for worker in Worker::all(facts.workers) {
        for &(share, coefficient) in code.row(worker) {
            matrix[(worker.index(), share.index())] = coefficient;
        }
    }
    matrix
}

/// Minimum-norm least squares: weights `a` on the survivors' rows with `a B` as close to 1 as can be.
fn oracle(code: &dyn GradientCode, survivors: &WorkerSet) -> (Vec<f64>, f64) {
    let matrix = dense(code);
    let rows: Vec<usize> = survivors.iter().map(Worker::index).collect();
    let mut weights = vec![0.0; matrix.nrows()];
    let ones = DVector::from_element(matrix.ncols(), 1.0);
    if rows.is_empty() {
        return (weights, 1.0);
    }
    let transposed = matrix.select_rows(&rows).transpose();
    let solution = transposed.clone().svd(true, true).solve(&ones, 1e-10).unwrap();
    for (row, weight) in rows.iter().zip(solution.iter()) {
        weights[*row] = *weight;
    }
    (weights, (transposed * solution - ones).amax())
}

fn subsets(workers: usize) -> impl Iterator<Item = WorkerSet> {
    (0u32..1 << workers).map(move |bits| WorkerSet::of(workers, Worker::all(workers).filter(|w| bits >> w.0 & 1 == 1)))
}

/// Every law of an exact code, for one set of survivors.
fn exact_code_laws(code: &dyn GradientCode, survivors: &WorkerSet) {
    let facts = code.facts();
    let (best, residual) = oracle(code, survivors);
    let (minimal, report) = decode(code, survivors, Choice::MinimumNorm);
    let (fewest, streaming) = decode(code, survivors, Choice::Fewest);
    assert_eq!(report.decodable, residual < 1e-9, "{survivors}: the rule of groups is the oracle's");
    assert!(facts.workers - survivors.len() > facts.tolerance || report.decodable, "{survivors}: within the tolerance");
    for (ours, theirs) in minimal.iter().zip(&best) {
        assert!((ours - theirs).abs() < 1e-9, "{survivors}: minimum norm");
    }
    for (weights, report) in [(&minimal, report), (&fewest, streaming)] {
        let alpha = dense(code).transpose() * DVector::from_column_slice(weights);
        assert!((alpha.add_scalar(-1.0).amax() - report.residual).abs() < TOLERANCE);
        assert!(weights.iter().enumerate().all(|(i, a)| *a == 0.0 || survivors.contains(Worker(i as u32))));
        assert!(report.amplification <= 1.0 + TOLERANCE, "groups never amplify");
        assert_eq!(report.decodable, report.residual == 0.0 || report.residual < TOLERANCE);
        assert_eq!(Gate::new(Wire::Bf16, facts).check(&report).is_ok(), report.decodable);
    }
    assert!(fewest.iter().all(|a| *a == 0.0 || *a == 1.0));
}

#[test]
fn every_survivor_set_of_every_group_code_up_to_ten_workers() {
    for workers in 1..=10 {
        for groups in 1..=workers {
            let code = Groups::new(workers, groups).unwrap();
            subsets(workers).for_each(|survivors| exact_code_laws(&code, &survivors));
        }
    }
}

#[test]
fn loads_and_tolerances_meet_the_bound_in_integers() {
    for workers in 1..=64usize {
        for groups in 1..=workers {
            let code = Groups::new(workers, groups).unwrap();
            let facts = code.facts();
            // Tandon et al. 2017: any s stragglers need load >= (s+1)/n; here with equality in integers.
            assert_eq!(facts.tolerance + 1, workers / groups);
            assert!(facts.load + TOLERANCE >= (facts.tolerance + 1) as f64 / workers as f64);
            let sizes: Vec<usize> = (0..groups as u32).map(|j| Worker::all(workers).filter(|w| code.group(*w) == j).count()).collect();
            assert!(sizes.iter().all(|size| *size == workers / groups || *size == workers.div_ceil(groups)));
            assert_eq!(sizes.iter().sum::<usize>(), workers);
            // One straggler more than tolerated, all in the smallest group, must fail.
            let smallest = (0..groups as u32).min_by_key(|j| sizes[*j as usize]).unwrap();
            let lost = Worker::all(workers).filter(|w| code.group(*w) == smallest);
            assert!(!decode(&code, &WorkerSet::of(workers, lost).complement(), Choice::Fewest).1.decodable);
        }
        for stragglers in 0..workers {
            assert!(Groups::tolerating(workers, stragglers).unwrap().facts().tolerance >= stragglers);
        }
    }
}

#[test]
fn golden_group_replication() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("data/group_replication.json")).unwrap();
    let numbers = |value: &serde_json::Value| value.as_array().map(|list| list.iter().map(|x| x.as_f64().unwrap()).collect::<Vec<f64>>());
    let mut checked = 0;
    for case in golden.as_array().unwrap() {
        let (workers, groups) = (case["n"].as_u64().unwrap() as usize, case["l"].as_u64().unwrap() as usize);
        let code = Groups::new(workers, groups).unwrap();
        if let Some(group_of) = numbers(&case["group_of"]) {
            assert_eq!(Worker::all(workers).map(|w| f64::from(code.group(w))).collect::<Vec<_>>(), group_of);
            assert_eq!(case["s"].as_u64().unwrap() as usize, code.facts().tolerance);
        }
        let Some(stragglers) = numbers(&case["T"]) else { continue };
        let survivors = WorkerSet::of(workers, stragglers.iter().map(|t| Worker(*t as u32))).complement();
        for (key, code, choice) in [
            ("a_first", code.clone(), Choice::Fewest),
            ("a_mean", code.clone(), Choice::MinimumNorm),
            ("approx_a", code.rescaling(), Choice::Fewest),
        ] {
            if let Some(expected) = numbers(&case[key]) {
                let (weights, report) = decode(&code, &survivors, choice);
                assert_eq!(weights, expected, "{key}");
                assert_eq!(report.coverage, case["coverage"].as_f64().unwrap_or(1.0));
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 3);
    let large = Groups::new(4096, 67).unwrap();
    let sizes: Vec<usize> = (0..67).map(|j| Worker::all(4096).filter(|w| large.group(*w) == j).count()).collect();
    assert_eq!((sizes.iter().filter(|s| **s == 61).count(), sizes.iter().filter(|s| **s == 62).count()), (58, 9));
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
                assert!((weights.iter().sum::<f64>() - workers as f64).abs() < 1e-9, "unbiased if stragglers were random");
                assert!((report.coverage - survivors.len() as f64 / workers as f64).abs() < TOLERANCE);
                let expected = missing as f64 / survivors.len() as f64;
                assert!((report.error - expected).abs() < 1e-9, "normalised error b/(n-b)");
                assert_eq!(Gate::new(Wire::F32, code.facts()).check(&report).is_ok(), missing <= dropped);
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
        assert!((report.coverage - (3 - lost) as f64 / 3.0).abs() < TOLERANCE);
        if lost < 3 {
            assert!((weights.iter().sum::<f64>() - 3.0).abs() < 1e-9);
            assert!(Gate::new(Wire::F32, code.facts()).check(&report).is_ok());
        }
    }
}

proptest! {
    #[test]
    fn larger_group_codes_obey_the_laws(workers in 11usize..64, groups_seed: usize, bits: u64) {
        let code = Groups::new(workers, 1 + groups_seed % workers).unwrap();
        let survivors = WorkerSet::of(workers, Worker::all(workers).filter(|w| bits >> w.0 & 1 == 1));
        exact_code_laws(&code, &survivors);
    }

    #[test]
    fn incremental_status_equals_batch_decode_in_any_order(
        text in prop::sample::select(SchemeSpec::EXAMPLES.to_vec()),
        workers in 4usize..24,
        order in Just((0u32..24).collect::<Vec<u32>>()).prop_shuffle(),
    ) {
        let code = text.parse::<SchemeSpec>().unwrap().code(workers).unwrap();
        let mut decoder = code.decoder();
        let (mut decodable, mut arrived) = (false, WorkerSet::empty(workers));
        for worker in order.into_iter().map(Worker).filter(|worker| worker.index() < workers) {
            let status = decoder.arrive(worker);
            prop_assert_eq!(decoder.arrive(worker), Status::Useless, "twice is as good as once");
            prop_assert!(!(decodable && status == Status::Decodable), "said once");
            decodable |= status == Status::Decodable;
            arrived.insert(worker);
            let (batch, report) = decode(&*code, &arrived, Choice::MinimumNorm);
            prop_assert_eq!(report.decodable, decodable);
            let mut weights = vec![f64::NAN; workers];
            prop_assert_eq!(decoder.weights(Choice::MinimumNorm, &mut weights), report);
            prop_assert_eq!(weights, batch);
        }
        prop_assert!(decodable);
        decoder.reset();
        let mut weights = vec![f64::NAN; workers];
        decoder.weights(Choice::Fewest, &mut weights);
        prop_assert!(weights.iter().all(|weight| *weight == 0.0));
    }
}
