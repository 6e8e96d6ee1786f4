//! Laws of points, matrices, bounds and the transform: over all small cases, by chance beyond.

use crate::{product, subsets, workers};
use codedgrad::codes::berrut::*;
use codedgrad::ids::Worker;
use proptest::prelude::*;
use std::f64::consts::PI;

const ALL: [Interpolant; 4] = [
    Interpolant::Berrut,
    Interpolant::FloaterHormann { degree: 1 },
    Interpolant::SPLINE,
    Interpolant::Spline { smoothing: 1e-3 },
];
const KINDS: [Points; 2] = [Points::FirstKind, Points::SecondKind];
const ENCODERS: [Encoder; 3] = [Encoder::Berrut, Encoder::Spline, Encoder::Lagrange];

fn sums_to_one(rows: &[Vec<f64>]) -> bool {
    rows.iter().all(|row| {
        let size = row.iter().map(|x| x.abs()).sum::<f64>();
        (row.iter().sum::<f64>() - 1.0).abs() < 1e-12 * (1.0 + size)
    })
}

#[test]
fn rows_sum_to_one_for_all_straggler_sets() {
    for workers in 1..=10 {
        for (points, blocks) in
            KINDS.into_iter().flat_map(|points| (1..=workers).map(move |blocks| (points, blocks)))
        {
            for encoder in ENCODERS {
                assert!(
                    sums_to_one(BerrutCode::new(blocks, workers, points, encoder).unwrap().rows()),
                    "{blocks} {workers}"
                );
            }
            let code = BerrutCode::new(blocks, workers, points, Encoder::Spline).unwrap();
            for survivors in subsets(workers)
                .filter(|set| !set.is_empty() && (blocks == 3 || set.len() + 1 >= workers))
            {
                let least = Interpolant::LeastSquares { dimension: survivors.len().div_ceil(2) };
                for by in
                    ALL.into_iter().chain([least]).filter(|by| survivors.len() > 1 || *by != ALL[1])
                {
                    let rows = code.decode_rows(&survivors, by).unwrap();
                    assert!(
                        sums_to_one(&rows),
                        "{points:?} K={blocks} N={workers} {survivors:?} {by:?}"
                    );
                    let sums: Vec<f64> =
                        (0..survivors.len()).map(|i| rows.iter().map(|row| row[i]).sum()).collect();
                    assert_eq!(code.sum_weights(&survivors, by).unwrap(), sums);
                }
            }
        }
    }
}

/// The denominator of Berrut's interpolant, multiplied by all `|x - z_i|` so that it stays finite.
fn denominator(z: &[f64], signs: &[f64], x: f64) -> f64 {
    (0..z.len())
        .map(|i| signs[i] * (0..z.len()).filter(|j| *j != i).map(|j| x - z[j]).product::<f64>())
        .sum()
}

/// Whether it changes its sign anywhere between the nodes: a pole.
fn has_pole(z: &[f64], signs: &[f64]) -> bool {
    let values: Vec<f64> =
        (0..=400).map(|step| denominator(z, signs, -1.0 + f64::from(step) / 200.0)).collect();
    values.iter().any(|v| *v > 0.0) && values.iter().any(|v| *v < 0.0)
}

/// Berrut 1988; Floater, Hormann 2007, Theorem 1: signs that alternate by position leave no real
/// pole. All straggler sets of up to 12 workers; the negative control are signs by the workers' own
/// numbers.
#[test]
fn no_pole_for_any_straggler_set_of_12_workers() {
    let mut poles_by_number = 0;
    for count in 2..=12 {
        for points in KINDS {
            let z = points.of(count);
            for survivors in subsets(count).filter(|set| set.len() >= 2) {
                let nodes: Vec<f64> = survivors.iter().map(|w| z[w.index()]).collect();
                let sign = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
                let by_position: Vec<f64> = (0..nodes.len()).map(sign).collect();
                assert!(!has_pole(&nodes, &by_position), "{points:?} {survivors:?}");
                let by_number: Vec<f64> = survivors.iter().map(|w| sign(w.index())).collect();
                poles_by_number += usize::from(has_pole(&nodes, &by_number));
                // What the library applies are those signs: weights (t - z_i) d_i alternate.
                let row = &Interpolant::Berrut
                    .rows(&Nodes::new(nodes.clone()).unwrap(), &[0.123])
                    .unwrap()[0];
                let first = row[0] * (0.123 - nodes[0]);
                assert!(
                    row.iter()
                        .zip(&nodes)
                        .enumerate()
                        .all(|(i, (d, z))| (d * (0.123 - z) / first - sign(i)).abs() < 1e-9)
                );
            }
        }
    }
    assert!(
        poles_by_number > 5000,
        "{poles_by_number} sets of 16,000 had poles with signs by number"
    );
}

/// Systematic placements: `z_i = alpha_j` iff the integers say so, and then the row is a unit
/// vector.
#[test]
fn uncoded_workers_are_where_the_integers_say() {
    for (points, count) in
        KINDS.into_iter().flat_map(|points| (1..=40).map(move |count| (points, count)))
    {
        for blocks in 1..=count {
            let code = BerrutCode::new(blocks, count, points, Encoder::Berrut).unwrap();
            let hits = points.uncoded(blocks, count);
            for (i, row) in code.rows().iter().enumerate() {
                let near = code
                    .data_points()
                    .iter()
                    .position(|a| (a - code.worker_points()[i]).abs() < 1e-12);
                let hit = hits
                    .iter()
                    .find(|(worker, _)| worker.index() == i)
                    .map(|(_, block)| block.index());
                assert_eq!(near, hit, "{points:?} K={blocks} N={count} worker {i}");
                if let Some(j) = hit {
                    assert!(
                        row.iter().enumerate().all(|(k, x)| *x == if j == k { 1.0 } else { 0.0 })
                    );
                }
            }
            let next = points.systematic(blocks, count);
            assert!(next >= count && points.uncoded(blocks, next).len() == blocks);
            assert!((count..next).all(|fewer| points.uncoded(blocks, fewer).len() < blocks));
        }
    }
}

/// The bounds as inequalities: Floater and Hormann 2007, Theorem 3, and its closed form for any `s`
/// stragglers.
#[test]
fn error_bounds_hold_for_all_straggler_sets() {
    type Test = (fn(f64) -> f64, Derivatives);
    let tests: [Test; 3] = [
        (|x| (3.0 * x).sin(), Derivatives { first: 3.0, second: 9.0 }),
        (|x| x * x, Derivatives { first: 2.0, second: 2.0 }),
        (|x| (2.0 * x).exp(), Derivatives { first: 2.0 * 2f64.exp(), second: 4.0 * 2f64.exp() }),
    ];
    let mut tightest = f64::INFINITY;
    for (points, count) in
        KINDS.into_iter().flat_map(|points| (4..=11).map(move |count| (points, count)))
    {
        let z = points.of(count);
        for survivors in subsets(count).filter(|set| set.len() >= 4) {
            let nodes = Nodes::new(survivors.iter().map(|w| z[w.index()]).collect()).unwrap();
            let (high, low) = (nodes.as_slice()[0], nodes.as_slice()[survivors.len() - 1]);
            let targets: Vec<f64> =
                (0..=40).map(|step| low + (high - low) * f64::from(step) / 40.0).collect();
            let rows = Interpolant::Berrut.rows(&nodes, &targets).unwrap();
            for (h, derivatives) in tests {
                let values: Vec<Vec<f64>> = nodes.as_slice().iter().map(|z| vec![h(*z)]).collect();
                let found = product(&rows, &values);
                let worst = targets
                    .iter()
                    .zip(&found)
                    .map(|(t, y)| (h(*t) - y[0]).abs())
                    .fold(0.0, f64::max);
                let mesh = mesh_bound(&nodes, derivatives).unwrap();
                let closed =
                    straggler_bound(points, count, count - survivors.len(), derivatives).unwrap();
                assert!(
                    worst <= mesh && mesh <= closed * (1.0 + 1e-12),
                    "{points:?} {survivors:?}: {worst} {mesh} {closed}"
                );
                tightest = tightest.min(mesh / worst);
            }
        }
    }
    assert!(tightest < 20.0, "the mesh bound means something: {tightest} times the error at best");
}

/// Splines and Floater-Hormann of degree 1 reproduce lines, least squares polynomials below their
/// dimension.
#[test]
fn what_interpolants_reproduce() {
    for survivors in subsets(9).filter(|set| set.len() >= 4) {
        let z = Points::FirstKind.of(9);
        let nodes = Nodes::new(survivors.iter().map(|w| z[w.index()]).collect()).unwrap();
        let targets = data_points(5);
        let check = |by: Interpolant, p: &dyn Fn(f64) -> f64| {
            let values: Vec<Vec<f64>> = nodes.as_slice().iter().map(|z| vec![p(*z)]).collect();
            let found = product(&by.rows(&nodes, &targets).unwrap(), &values);
            targets.iter().zip(&found).all(|(t, y)| (p(*t) - y[0]).abs() < 1e-9)
        };
        let line = |x: f64| 2.0 - 3.0 * x;
        for by in &ALL[1..] {
            assert!(check(*by, &line), "{by:?} {survivors:?}");
        }
        assert!(check(Interpolant::LeastSquares { dimension: 4 }, &|x| 1.0 + x * x * (4.0 - x)));
    }
    // At its nodes an interpolant takes their values.
    let nodes = Nodes::new(vec![-1.0, -0.2, 0.4, 1.0]).unwrap();
    for by in [Interpolant::Berrut, Interpolant::FloaterHormann { degree: 2 }, Interpolant::SPLINE]
    {
        let rows = by.rows(&nodes, nodes.as_slice()).unwrap();
        assert!(rows.iter().enumerate().all(|(i, row)| {
            row.iter().enumerate().all(|(j, x)| (x - f64::from(u8::from(i == j))).abs() < 1e-15)
        }));
    }
}

/// The spline is the minimiser: no other choice of values beats it.
#[test]
fn the_smoothing_spline_minimises() {
    let nodes = Nodes::new(vec![-0.9, -0.3, 0.1, 0.5, 0.8]).unwrap();
    let y = [1.0, -0.5, 2.0, 0.3, 0.9];
    let grid: Vec<f64> = (0..=1700).map(|i| -0.9 + f64::from(i) / 1000.0).collect();
    let cost = |smoothing: f64, of: f64| {
        let value = |rows: Vec<Vec<f64>>| {
            rows.iter()
                .map(|row| row.iter().zip(&y).map(|(w, y)| w * y).sum::<f64>())
                .collect::<Vec<f64>>()
        };
        let g = value(Interpolant::Spline { smoothing: of }.rows(&nodes, &grid).unwrap());
        let at =
            value(Interpolant::Spline { smoothing: of }.rows(&nodes, nodes.as_slice()).unwrap());
        let roughness: f64 =
            g.windows(3).map(|g| ((g[0] - 2.0 * g[1] + g[2]) / 1e-6).powi(2) * 1e-3).sum();
        y.iter().zip(&at).map(|(y, g)| (y - g).powi(2)).sum::<f64>() / 5.0 + smoothing * roughness
    };
    for smoothing in [1e-4, 1e-3, 1e-2] {
        let least = cost(smoothing, smoothing);
        assert!(
            [0.0, 0.3, 0.8, 1.25, 3.0]
                .iter()
                .all(|factor| cost(smoothing, smoothing * factor) > least),
            "{smoothing}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_transform_is_the_matrix(
        count in 1usize..70,
        dimension in 0usize..70,
        length in 1usize..140,
        seed: u64,
    ) {
        let dimension = dimension.min(count);
        let value = |i: usize, c: usize| ((seed % 1000) as f64 + (i * 37 + c * 11) as f64).sin();
        let outputs: Vec<Vec<f64>> =
            (0..count).map(|i| (0..length).map(|c| value(i, c)).collect()).collect();
        let parity =
            Dct::new(count).parity(&outputs.iter().map(|y| &y[..]).collect::<Vec<_>>(), dimension);
        prop_assert_eq!(parity.len(), count - dimension);
        for (k, row) in (dimension..).zip(&parity) {
            let scale = (if k == 0 { 1.0 } else { 2.0 } / count as f64).sqrt();
            for (c, s) in row.iter().enumerate() {
                let expected: f64 = (0..count)
                    .map(|i| {
                        value(i, c) * ((k * (2 * i + 1)) as f64 * PI / (2 * count) as f64).cos()
                    })
                    .sum();
                prop_assert!(
                    (s - scale * expected).abs() < 1e-11,
                    "N={count} k={k}: {s} {expected}"
                );
            }
        }
        let mut there_and_back: Vec<f64> = outputs.iter().map(|y| y[0]).collect();
        let dct = Dct::new(count);
        dct.forward(&mut there_and_back);
        dct.inverse(&mut there_and_back);
        prop_assert!(there_and_back.iter().zip(&outputs).all(|(a, y)| (a - y[0]).abs() < 1e-12));
    }

    #[test]
    fn rows_sum_to_one_for_many_workers(count in 13usize..200, keep in 0.3f64..1.0, seed: u64) {
        use rand_chacha::{
            ChaCha8Rng,
            rand_core::{Rng, SeedableRng},
        };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let survivors: Vec<Worker> = Worker::all(count)
            .filter(|_| f64::from(rng.next_u32()) < keep * 2f64.powi(32))
            .collect();
        prop_assume!(survivors.len() >= 4);
        for points in KINDS {
            let code = BerrutCode::new(count / 4, count, points, Encoder::Spline).unwrap();
            for by in ALL
                .into_iter()
                .chain([Interpolant::LeastSquares { dimension: 1 + survivors.len() / 8 }])
            {
                prop_assert!(sums_to_one(&code.decode_rows(&survivors, by).unwrap()), "{:?}", by);
            }
        }
    }
}

#[test]
fn lists_and_parameters_that_are_none() {
    let code = BerrutCode::new(3, 8, Points::FirstKind, Encoder::Spline).unwrap();
    let said = |list: &[u32], by: Interpolant| {
        code.decode_rows(&workers(list), by).unwrap_err().to_string()
    };
    for (list, by, needle) in [
        (&[][..], Interpolant::Berrut, "at least 1"),
        (&[1, 1], Interpolant::Berrut, "worker 1 is there twice"),
        (&[0, 2, 1, 2], Interpolant::Berrut, "worker 1 is listed after worker 2"),
        (&[0, 8], Interpolant::Berrut, "no worker 8: workers are 0 to 7"),
        (&[0, 1], Interpolant::LeastSquares { dimension: 3 }, "m from 1 to 2"),
        (&[0, 1], Interpolant::LeastSquares { dimension: 0 }, "dimension 0"),
        (&[0, 1], Interpolant::FloaterHormann { degree: 2 }, "more than 2 outputs, 2 are there"),
        (&[0, 1], Interpolant::Spline { smoothing: f64::NAN }, "smoothing NaN"),
    ] {
        assert!(said(list, by).contains(needle), "{}", said(list, by));
    }
    assert!(
        BerrutCode::new(9, 8, Points::FirstKind, Encoder::Spline)
            .unwrap_err()
            .to_string()
            .contains("9 data blocks on 8 workers")
    );
    assert!(BerrutCode::new(0, 8, Points::FirstKind, Encoder::Spline).is_err());
    assert!(Tolerance::new(4.0, f64::NAN).unwrap_err().to_string().contains("floor NaN"));
}
