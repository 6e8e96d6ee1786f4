//! Golden vectors, made by two independent models.

use crate::{ROUNDING, dense, shortest, subsets};
use codedgrad::codes::{
    Choice, Cyclic, DenseCode, Gate, GradientCode, Graph, Groups, Interval, MinLoad, decode,
};
use codedgrad::ids::{Worker, WorkerSet};
use codedgrad::run::NumberFormat;
use serde_json::Value;

/// Golden values have 15 digits.
const DIGITS: f64 = 1e-12;

fn golden(section: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../data/gradient_codes.json")).unwrap();
    all[section].clone()
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array().map(|list| list.iter().map(|x| x.as_f64().unwrap()).collect())
}

fn matrix(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(|row| numbers(row).unwrap()).collect()
}

fn count(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn pairs(value: &Value) -> Vec<(u32, u32)> {
    matrix(value).into_iter().map(|pair| (pair[0] as u32, pair[1] as u32)).collect()
}

/// The survivors of a case, which names them (`S`) or the stragglers (`T`).
fn survivors(workers: usize, case: &Value) -> WorkerSet {
    let set = |key: &str| {
        numbers(&case[key])
            .map(|list| WorkerSet::of(workers, list.iter().map(|i| Worker(*i as u32))))
    };
    set("S").unwrap_or_else(|| set("T").unwrap().complement())
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < DIGITS * (1.0 + b.abs()), "{found:?} instead of {expected:?}");
    }
}

#[test]
fn group_replication() {
    let mut checked = 0;
    for case in golden("group_replication").as_array().unwrap() {
        let (workers, groups) = (count(&case["n"]), count(&case["l"]));
        let code = Groups::new(workers, groups).unwrap();
        if let Some(group_of) = numbers(&case["group_of"]) {
            assert_eq!(
                Worker::all(workers).map(|w| f64::from(code.group(w))).collect::<Vec<_>>(),
                group_of
            );
        }
        if !case["s"].is_null() {
            assert_eq!(count(&case["s"]), code.facts().tolerance);
            let of = |j: u32| Worker::all(workers).filter(|w| code.group(*w) == j).count();
            let sizes: Vec<usize> = (0..groups as u32).map(of).collect();
            let expected: Vec<usize> =
                case["sizes"].as_array().unwrap().iter().map(count).collect();
            if workers == 4096 {
                let of_size = |size: usize| sizes.iter().filter(|s| **s == size).count();
                assert_eq!(
                    [expected[2], groups - expected[2]],
                    [of_size(expected[0]), of_size(expected[1])]
                );
            } else {
                assert_eq!(sizes, expected);
            }
        }
        if case["T"].is_null() {
            continue;
        }
        let survivors = survivors(workers, case);
        for (key, code, choice) in [
            ("a_first", code.clone(), Choice::Fewest),
            ("a_mean", code.clone(), Choice::MinimumNorm),
            ("approx_a", code.rescaling(), Choice::Fewest),
        ] {
            if let Some(expected) = numbers(&case[key]) {
                let (weights, report) = decode(&code, &survivors, choice);
                close(&weights, &expected);
                assert_eq!(report.coverage, case["coverage"].as_f64().unwrap_or(1.0));
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 3);
}

#[test]
fn interval() {
    for case in golden("interval").as_array().unwrap() {
        let code = Interval::new(&pairs(&case["intervals"])).unwrap();
        assert_eq!(code.facts().shares(), count(&case["cuts"]));
        let survivors = survivors(code.facts().workers, case);
        let (weights, report) = decode(&code, &survivors, Choice::Fewest);
        assert_eq!(report.decodable, case["exact"].as_bool().unwrap_or(true));
        if let Some(expected) = numbers(&case["a"]) {
            assert_eq!(weights, expected);
            close(&shortest(&code, &survivors).0, &expected);
        }
    }
}

#[test]
fn dense_tandon_example() {
    let golden = golden("tandon_example");
    let code = DenseCode::new(&matrix(&golden["B"])).unwrap();
    assert_eq!(code.facts().tolerance, 1);
    for case in golden["decode"].as_array().unwrap() {
        close(&shortest(&code, &survivors(3, case)).0, &numbers(&case["a"]).unwrap());
    }
}

#[test]
fn cyclic_random_fixed_h() {
    let golden = golden("cyclic_random_fixed_H");
    let (workers, stragglers) = (count(&golden["n"]), count(&golden["s"]));
    let code = Cyclic::from_check_matrix(workers, &matrix(&golden["H"])).unwrap();
    assert_eq!(code.facts().tolerance, stragglers);
    close(dense(&code).transpose().as_slice(), &matrix(&golden["B"]).concat());
    for case in golden["decode"].as_array().unwrap() {
        for choice in [Choice::Fewest, Choice::MinimumNorm] {
            let (weights, report) = decode(&code, &survivors(workers, case), choice);
            close(&weights, &numbers(&case["a"]).unwrap());
            assert!(report.decodable && report.residual < case["residual_below"].as_f64().unwrap());
        }
    }
}

#[test]
fn min_load_inner_codes() {
    let mut checked = 0;
    for case in golden("inner_codes").as_array().unwrap() {
        let (members, stragglers) = (count(&case["c"]), count(&case["s"]));
        if members / (stragglers + 1) != 1 {
            // Not the whole of any code: checked where the inner matrix is made.
            continue;
        }
        let code = MinLoad::new(members, stragglers).unwrap();
        close(dense(&code).transpose().as_slice(), &matrix(&case["B"]).concat());
        for decode in case["decode"].as_array().unwrap() {
            close(&shortest(&code, &survivors(members, decode)).0, &numbers(&decode["a"]).unwrap());
            checked += 1;
        }
    }
    assert_eq!(checked, 10);
}

#[test]
fn min_load_8_2() {
    let golden = golden("min_load_8_2");
    let code = MinLoad::new(8, 2).unwrap();
    assert_eq!(code.facts().load, 3.0 / 8.0);
    let (weights, report) = shortest(&code, &survivors(8, &golden));
    close(&weights, &numbers(&golden["a"]).unwrap());
    assert!(report.residual < ROUNDING);
    let worst = subsets(8)
        .filter(|s| s.len() == 6)
        .map(|s| shortest(&code, &s).1.residual)
        .fold(0.0, f64::max);
    assert!(worst < 10.0 * golden["max_residual_all_28_sets"].as_f64().unwrap(), "{worst:e}");
}

#[test]
fn graph_k4() {
    let golden = golden("graph_K4");
    let code = Graph::from_edges(4, &pairs(&golden["edges"]), 0.0).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let survivors = survivors(6, case);
        let (weights, report) = shortest(&code, &survivors);
        close(&weights, &numbers(&case["a"]).unwrap());
        let alpha = dense(&code).transpose() * nalgebra::DVector::from_column_slice(&weights);
        close(alpha.as_slice(), &numbers(&case["alpha"]).unwrap());
        assert!((report.error - case["err"].as_f64().unwrap()).abs() < DIGITS);
        assert_eq!(report.decodable, case["err"].as_f64().unwrap() < DIGITS);
        assert_eq!(
            Gate::new(NumberFormat::Bf16, code.facts()).check(&report).is_ok(),
            report.decodable
        );
    }
}
