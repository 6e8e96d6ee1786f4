//! Arrays of any shape and format, in any order of arrival, and input that is none.

use codedgrad::codes::berrut::*;
use codedgrad::ids::Worker;
use ndarray::{Array, Array1, Array3, ArrayD, Axis, IxDyn, array};
use proptest::prelude::*;

fn block(shape: (usize, usize, usize), seed: usize) -> Array3<f64> {
    Array3::from_shape_fn(shape, |(a, b, c)| ((a * 31 + b * 7 + c * 3 + seed * 13) as f64).sin())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn shares_and_decodes_are_the_matrices(
        a in 1usize..4,
        b in 1usize..5,
        c in 1usize..6,
        k in 1usize..5,
        seed: u64,
    ) {
        let code = BerrutCode::new(k, 3 * k + 2, Points::SecondKind, Encoder::Spline).unwrap();
        let blocks: Vec<Array3<f64>> = (0..k).map(|j| block((a, b, c), j)).collect();
        // A transposed view has another layout in memory and the same meaning.
        let turned: Vec<Array3<f64>> = blocks
            .iter()
            .map(|x| x.view().reversed_axes().as_standard_layout().into_owned())
            .collect();
        let shares = code
            .encode(&turned.iter().map(|x| x.view().reversed_axes()).collect::<Vec<_>>())
            .unwrap();
        let wide = blocks.iter().map(|x| x.mapv(|x| x as f32)).collect::<Vec<_>>();
        let narrow = code.encode(&wide.iter().map(|x| x.view()).collect::<Vec<_>>()).unwrap();
        let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE);
        let mut order: Vec<Worker> = Worker::all(code.workers()).filter(|w| w.0 != 1).collect();
        let rotate = (seed % order.len() as u64) as usize;
        order.rotate_left(rotate);
        for worker in &order {
            let share = &shares[worker.index()];
            for (x, (y, block)) in share.iter().zip(narrow[worker.index()].iter().zip(0..)) {
                let _: i32 = block;
                prop_assert!((x - f64::from(*y)).abs() < 1e-5);
            }
            // Outputs in Fortran order.
            let output = Array::from_shape_vec(
                ndarray::ShapeBuilder::f((a, b, c)),
                share.t().iter().copied().collect(),
            )
            .unwrap();
            prop_assert_eq!(&output, share);
            prop_assert!(decoder.arrive(*worker, output).unwrap());
        }
        let decoded = decoder.decode(7).unwrap();
        order.sort_unstable();
        prop_assert_eq!(&decoded.report.used, &order);
        let mut sum = Array3::zeros((a, b, c));
        for (found, weights) in decoded.outputs.iter().zip(&decoded.report.weights) {
            let mut expected = Array3::zeros((a, b, c));
            weights.iter().zip(&shares).for_each(|(w, share)| expected += &(share * *w));
            prop_assert!((found - &expected).iter().all(|x| x.abs() < 1e-12));
            sum += found;
        }
        let once = decoder.decode_sum(7).unwrap();
        prop_assert_eq!(once.outputs.len(), 1);
        prop_assert!((&once.outputs[0] - &sum).iter().all(|x| x.abs() < 1e-12));
    }
}

#[test]
fn outputs_that_are_not_finite_are_erased_and_named() {
    let code = BerrutCode::new(2, 12, Points::FirstKind, Encoder::Spline).unwrap();
    for security in [None, Some(ByzantineDefence { byzantine: 1, ..ByzantineDefence::default() })] {
        let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE);
        if let Some(security) = security {
            decoder = decoder.secured(security);
        }
        for worker in Worker::all(12) {
            let z = code.worker_points()[worker.index()];
            let output = match worker.0 {
                9 => array![f64::NAN, 0.0],
                2 => array![1.0, f64::INFINITY],
                5 if security.is_some() => array![1e200, 1e200],
                _ => array![z, z.exp()],
            };
            assert_eq!(decoder.arrive(worker, output).unwrap(), !matches!(worker.0, 2 | 9));
        }
        assert_eq!(decoder.arrived(), 10);
        let decoded = decoder.decode(7).unwrap();
        let lost: &[u32] = if security.is_some() { &[2, 5, 9] } else { &[2, 9] };
        assert_eq!(decoded.report.not_finite, lost.iter().copied().map(Worker).collect::<Vec<_>>());
        assert!(lost.iter().all(|i| decoded.report.weights[0][*i as usize] == 0.0));
        assert!(decoded.report.verdict.is_none_or(|verdict| verdict.trimmed.workers.is_empty()));
        assert!(
            (&decoded.outputs[0] - &array![data_points(2)[0], data_points(2)[0].exp()])
                .iter()
                .all(|x| x.abs() < 0.01)
        );
    }
}

/// Long outputs are judged by sketches of them: the same verdict as from all elements.
#[test]
fn long_outputs_are_located_by_sketches() {
    let code = BerrutCode::new(4, 16, Points::FirstKind, Encoder::Spline).unwrap();
    let length = 100_000;
    let blocks: Vec<Array1<f32>> = (0..4)
        .map(|j| Array1::from_shape_fn(length, |e| ((e * (2 * j + 3)) as f32 * 0.37).sin()))
        .collect();
    let shares = code.encode(&blocks.iter().map(|x| x.view()).collect::<Vec<_>>()).unwrap();
    let (pgz, music) = (
        Locator::Dct { dimension: 8, form: Form::Polynomial },
        Locator::Dct { dimension: 8, form: Form::Subspace },
    );
    for (locator, seed) in
        [Locator::default(), pgz, music, Locator::Trimmed { dimension: 8 }].into_iter().zip(3..)
    {
        let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE)
            .secured(ByzantineDefence { byzantine: 2, locator, force: false });
        for worker in Worker::all(16).filter(|w| w.0 != 7) {
            let mut output = shares[worker.index()].mapv(f32::tanh);
            if matches!(worker.0, 3 | 12) {
                output.iter_mut().step_by(3).for_each(|x| *x += 8.0);
            }
            decoder.arrive(worker, output).unwrap();
        }
        let decoded = decoder.decode(seed).unwrap();
        let verdict = decoded.report.verdict.unwrap();
        assert_eq!(verdict.trimmed.workers, [Worker(3), Worker(12)], "{locator:?} seed {seed}");
        let error = (&decoded.outputs[2] - &blocks[2].mapv(f32::tanh)).mapv(|x| x * x).sum()
            / length as f32;
        assert!(error.sqrt() < 0.05, "{error}");
    }
}

#[test]
fn arrays_that_cannot_be_used() {
    let code = BerrutCode::new(2, 4, Points::FirstKind, Encoder::Spline).unwrap();
    let (a, b) = (array![1.0, 2.0], array![1.0]);
    assert_eq!(
        code.encode(&[a.view()]).unwrap_err(),
        BerrutError::BlockCount { expected: 2, found: 1 }
    );
    let error = code.encode(&[a.view(), b.view()]).unwrap_err();
    assert_eq!(error, BerrutError::BlockShape { block: 1, expected: vec![2], found: vec![1] });
    let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE)
        .secured(ByzantineDefence { byzantine: 1, ..ByzantineDefence::default() });
    assert_eq!(
        decoder.decode(7).unwrap_err(),
        BerrutError::Redundancy { wrong: 1, survivors: 0, blocks: 2, needed: 3 }
    );
    assert!(decoder.arrive(Worker(1), a.clone()).unwrap());
    assert_eq!(
        decoder.arrive(Worker(1), a.clone()).unwrap_err(),
        BerrutError::Duplicate { worker: Worker(1) }
    );
    assert_eq!(
        decoder.arrive(Worker(4), a).unwrap_err(),
        BerrutError::UnknownWorker { worker: Worker(4), workers: 4 }
    );
    let error = decoder.arrive(Worker(0), b).unwrap_err();
    assert_eq!(
        error,
        BerrutError::OutputShape { worker: Worker(0), expected: vec![2], found: vec![1] }
    );
    assert!(
        error.to_string().contains("the output of worker 0 has shape [1], those before it [2]")
    );
    let trusting: BerrutDecoder<'_, f32, IxDyn> = BerrutDecoder::new(&code, Interpolant::SPLINE);
    assert_eq!(trusting.decode(7).unwrap_err(), BerrutError::NoSurvivors);
}

/// Arrays without axes, without elements, and from slices.
#[test]
fn odd_shapes() {
    let code = BerrutCode::new(2, 6, Points::FirstKind, Encoder::Berrut).unwrap();
    for shape in [vec![], vec![0], vec![3, 0], vec![1, 1, 1, 2]] {
        let blocks: Vec<ArrayD<f32>> =
            (0..2).map(|j| ArrayD::from_elem(shape.clone(), j as f32)).collect();
        let shares = code.encode(&blocks.iter().map(|x| x.view()).collect::<Vec<_>>()).unwrap();
        let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE)
            .secured(ByzantineDefence { byzantine: 1, ..ByzantineDefence::default() });
        for (worker, share) in Worker::all(6).zip(shares) {
            decoder.arrive(worker, share).unwrap();
        }
        let decoded = decoder.decode(1).unwrap();
        assert!(
            decoded
                .outputs
                .iter()
                .zip(&blocks)
                .all(|(x, y)| x.shape() == &shape[..] && (x - y).iter().all(|d| d.abs() < 1e-6))
        );
    }
    let large = Array::from_shape_fn((4, 3), |(i, j)| (i * 3 + j) as f64);
    let rows: Vec<_> = large.axis_iter(Axis(0)).take(2).collect();
    assert_eq!(code.encode(&rows).unwrap()[1], large.row(0));
}
