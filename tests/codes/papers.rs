//! Theorems, tables and examples of the papers and notes the codes are taken from.

use crate::{ROUNDING, dense, oracle, shortest, subsets};
use codedgrad::codes::{
    Choice, Cyclic, Gate, GradientCode, Graph, Groups, Interval, MinLoad, decode, verify,
};
use codedgrad::ids::{Worker, WorkerSet};
use codedgrad::run::NumberFormat;
use nalgebra::DMatrix;
use std::f64::consts::PI;

fn worst_amplification(code: &dyn GradientCode) -> f64 {
    verify(code, &Gate::new(NumberFormat::F32, code.facts()), 7, &mut |_, _| ()).worst_amplification
}

/// Tandon et al. 2017, Theorem 1: any s stragglers need load >= (s+1)/n. Groups meet it in
/// integers, min-load and cyclic with equality.
#[test]
fn tandon_theorem_1_is_met() {
    for workers in 1..=32usize {
        for stragglers in 0..workers {
            let bound = (stragglers + 1) as f64 / workers as f64;
            let groups = Groups::tolerating(workers, stragglers).unwrap();
            assert!(groups.facts().load + ROUNDING >= bound);
            assert!(
                (MinLoad::new(workers, stragglers).unwrap().facts().load - bound).abs() < ROUNDING
            );
            let smallest =
                WorkerSet::of(workers, Worker::all(workers).filter(|w| groups.group(*w) == 0));
            if smallest.len() == groups.facts().tolerance + 1 {
                assert!(
                    !decode(&groups, &smallest.complement(), Choice::Fewest).1.decodable,
                    "one straggler more is one too many"
                );
            }
        }
    }
}

/// Tandon et al. 2017, Lemma 2 and Algorithm 2: the rows and the all-ones vector lie in the null
/// space of H, of dimension n - s, and any n - s rows span it.
#[test]
fn tandon_algorithm_2() {
    for (workers, stragglers) in [(5, 1), (7, 3), (9, 4)] {
        let matrix = dense(&Cyclic::new(workers, stragglers, 11).unwrap());
        let rank = |matrix: DMatrix<f64>| matrix.rank(1e-8);
        assert_eq!(rank(matrix.clone()), workers - stragglers);
        let with_ones = matrix.clone().insert_row(workers, 1.0);
        assert_eq!(rank(with_ones), workers - stragglers);
        for survivors in subsets(workers).filter(|s| s.len() == workers - stragglers) {
            let rows: Vec<usize> = survivors.iter().map(Worker::index).collect();
            assert_eq!(rank(matrix.select_rows(&rows)), workers - stragglers);
        }
    }
}

/// Charalambides, Pilanci, Hero 2020: congruence classes have loads k/q and k/(q+1), q =
/// floor(n/(s+1)), and a decode needs a whole class; groups have the same maximum load.
#[test]
fn charalambides_classes() {
    for (workers, stragglers) in [(7, 1), (11, 2), (12, 3), (10, 3)] {
        let code = Interval::charalambides(workers, stragglers).unwrap();
        let groups = Groups::tolerating(workers, stragglers).unwrap();
        assert_eq!(code.facts().tolerance, stragglers);
        assert!((code.facts().load - groups.facts().load).abs() < ROUNDING);
        assert!(groups.facts().tolerance >= stragglers);
        let loads: f64 = Worker::all(workers)
            .map(|w| code.row(w).len() as f64 / code.facts().shares() as f64)
            .sum();
        assert!((loads - (stragglers + 1) as f64).abs() < ROUNDING, "mean load (s+1)/n");
        let class = WorkerSet::of(
            workers,
            Worker::all(workers).filter(|w| w.index() % (stragglers + 1) == stragglers),
        );
        assert!(decode(&code, &class, Choice::Fewest).1.decodable);
    }
}

/// Menger's theorem: the tolerance of intervals is the minimum cut less one, so the smallest fatal
/// set is one larger.
#[test]
fn menger_tolerance() {
    let code =
        Interval::new(&[(0, 3), (0, 3), (3, 6), (2, 6), (0, 2), (3, 6), (2, 3), (0, 6)]).unwrap();
    let fatal = |s: &WorkerSet| !shortest(&code, s).1.decodable;
    let smallest = subsets(8).filter(fatal).map(|s| 8 - s.len()).min().unwrap();
    assert_eq!(code.facts().tolerance + 1, smallest);
}

/// Unequal speeds: layers finish together, sorted groups as fast as their slowest members; equal
/// shares wait for the slowest of all.
#[test]
fn interval_codes_follow_the_speeds() {
    let speeds: Vec<f64> = (0..64).map(|i| if i % 4 == 0 { 0.5 } else { 1.0 }).collect();
    let finish = |code: &dyn GradientCode| {
        let part =
            |w: Worker| code.row(w).len() as f64 / code.facts().shares() as f64 / speeds[w.index()];
        Worker::all(64).map(part).fold(0.0, f64::max)
    };
    let ideal = 2.0 / speeds.iter().sum::<f64>();
    let equal = finish(&Groups::tolerating(64, 1).unwrap());
    assert!(
        (equal / ideal - 1.75).abs() < 1e-9,
        "the slow ones take twice as long over a 32nd of the batch"
    );
    for code in [
        Interval::layers(&speeds, 1, 6400).unwrap(),
        Interval::sorted_groups(&speeds, 32, 6400).unwrap(),
    ] {
        assert!(code.facts().tolerance >= 1);
        assert!(finish(&code) < 1.05 * ideal, "{} against {ideal}", finish(&code));
    }
}

/// The rows of min-load are the null-space construction: within an r-dimensional Chebyshev system
/// over the nodes, the one function (up to scale) that vanishes on the shares a member lacks.
#[test]
fn min_load_closed_forms_are_the_null_space_construction() {
    let mut checked = 0;
    for members in 3..=21usize {
        for stragglers in members.div_ceil(2)..members - 1 {
            let r = members - stragglers;
            if r > 7 {
                continue;
            }
            let code = dense(&MinLoad::new(members, stragglers).unwrap());
            let angle = |j: usize| 2.0 * PI * j as f64 / members as f64;
            let system = DMatrix::from_fn(r, members, |t, j| {
                let degree =
                    |t: usize| if r % 2 == 1 { t.div_ceil(2) as f64 } else { (t / 2) as f64 + 0.5 };
                let (degree, sine) =
                    (degree(t), if r % 2 == 1 { t > 0 && t % 2 == 0 } else { t % 2 == 1 });
                match (r, sine) {
                    (2, false) => 1.0,
                    (2, true) => j as f64,
                    (_, false) => (degree * angle(j)).cos(),
                    (_, true) => (degree * angle(j)).sin(),
                }
            });
            for q in 0..members {
                let lacking: Vec<usize> = (0..members).filter(|&j| code[(q, j)] == 0.0).collect();
                assert_eq!(lacking.len(), r - 1);
                let padded = system.select_columns(&lacking).insert_column(r - 1, 0.0);
                let function = padded.col_piv_qr().q().column(r - 1).transpose() * &system;
                // Half-integer systems are divided by a function of theirs, so that they contain
                // the constant.
                let ratio: Vec<f64> = (0..members)
                    .filter(|j| !lacking.contains(j))
                    .map(|j| code[(q, j)] / function[j])
                    .collect();
                let divisor: Vec<f64> = (0..members)
                    .filter(|j| !lacking.contains(j))
                    .map(|j| match r {
                        2 => 1.0,
                        _ if r % 2 == 1 => 1.0,
                        _ => {
                            let sine = |times: usize, j: usize| {
                                (times as f64 * PI * (2 * j + 1) as f64 / (2 * members) as f64)
                                    .sin()
                            };
                            let small =
                                (0..members).any(|j| sine(r - 1, j).abs() < 1e-3 / members as f64);
                            sine(if small { 1 } else { r - 1 }, j)
                        }
                    })
                    .collect();
                let scale = ratio[0] * divisor[0];
                for (ratio, divisor) in ratio.iter().zip(&divisor) {
                    assert!(
                        (ratio * divisor / scale - 1.0).abs() < 1e-6,
                        "c={members} r={r} q={q}"
                    );
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 500);
}

/// The measured worst amplifications of groups of c members of which r decode.
#[test]
fn min_load_worst_amplification_table() {
    for (members, r, worst) in
        [(4, 2, 2.2), (16, 2, 11.9), (5, 3, 1.48), (8, 3, 4.3), (16, 3, 19.0), (8, 4, 9.3)]
    {
        let found = worst_amplification(&MinLoad::new(members, members - r).unwrap());
        assert!(
            (found / worst - 1.0).abs() < 0.03,
            "c={members} r={r}: {found} instead of {worst}"
        );
    }
}

/// Random cyclic codes amplify by orders of magnitude more than min-load at the same load, and
/// groups not at all: why the default is what it is.
#[test]
fn amplification_by_code() {
    let burst = WorkerSet::of(64, (0..7).map(Worker)).complement();
    let of = |code: &dyn GradientCode| shortest(code, &burst).1.amplification;
    let groups = Groups::tolerating(64, 7).unwrap();
    let least = MinLoad::new(64, 7).unwrap();
    let cyclic = Cyclic::new(64, 7, 7).unwrap();
    assert!(of(&groups) <= 1.0 && of(&least) < 10.0 && of(&cyclic) > 100.0);
}

/// Glasgow, Wootters 2020 decode optimally; the error by components is the least-squares error.
#[test]
fn graph_error_is_the_least_squares_error() {
    for (workers, degree) in [(9, 3), (10, 4), (10, 3), (8, 2)] {
        let code = Graph::new(workers, degree, 0.6, 5).unwrap();
        for survivors in subsets(workers) {
            let left = oracle(&code, &survivors).1;
            let error = left.norm_squared() / left.len() as f64;
            let report = shortest(&code, &survivors).1;
            assert!((report.error - error).abs() < 1e-9);
            assert_eq!(report.decodable, error <= 0.6 + ROUNDING, "{survivors}");
        }
    }
}

/// In a regular graph s stragglers leave a normalised error of at most s/n, whoever they are.
#[test]
fn graph_error_is_at_most_the_share_of_stragglers() {
    for (workers, degree) in [(9, 3), (10, 4), (8, 2), (12, 4)] {
        let code = Graph::new(workers, degree, 0.99, 5).unwrap();
        for survivors in subsets(workers) {
            let stragglers = (workers - survivors.len()) as f64;
            let error = shortest(&code, &survivors).1.error;
            assert!(
                error <= stragglers / workers as f64 + ROUNDING,
                "{workers} {degree} {survivors}: {error}"
            );
        }
    }
}
