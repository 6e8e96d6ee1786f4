//! Golden vectors, made by an independent numpy model.

use crate::{product, received, workers};
use codedgrad::codes::berrut::*;
use codedgrad::ids::Worker;
use serde_json::Value;

/// Relative, for matrices.
const MATRIX: f64 = 1e-12;
/// Relative, for decoded values.
const DECODED: f64 = 1e-9;

fn golden(section: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../data/berrut_codes.json")).unwrap();
    all[section].clone()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn matrix(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

fn count(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn ids(value: &Value) -> Vec<Worker> {
    workers(&numbers(value).into_iter().map(|i| i as u32).collect::<Vec<_>>())
}

fn close(found: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64) {
    let largest = expected.iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert_eq!(a.len(), b.len());
        assert!(
            a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * largest),
            "{a:?} instead of {b:?}"
        );
    }
}

fn code(golden: &Value, points: Points, encoder: Encoder) -> BerrutCode {
    let code = BerrutCode::new(count(&golden["K"]), count(&golden["N"]), points, encoder).unwrap();
    close(&[code.data_points().to_vec()], &[numbers(&golden["alpha"])], MATRIX);
    close(&[code.worker_points().to_vec()], &[numbers(&golden["z"])], MATRIX);
    close(code.rows(), &matrix(&golden["encoder"]), MATRIX);
    code
}

#[test]
fn bacc_k4_n9_s2() {
    let golden = golden("bacc_k4_n9_s2");
    let code = code(&golden, Points::SecondKind, Encoder::Berrut);
    close(&product(code.rows(), &matrix(&golden["X"])), &matrix(&golden["shares"]), MATRIX);
    let survivors = ids(&golden["survivors"]);
    let rows = code.decode_rows(&survivors, Interpolant::Berrut).unwrap();
    close(&rows, &matrix(&golden["decoder_position_signs"]), MATRIX);
    let outputs: Vec<Vec<f64>> =
        survivors.iter().map(|w| matrix(&golden["outputs"])[w.index()].clone()).collect();
    close(&product(&rows, &outputs), &matrix(&golden["decoded"]), DECODED);
    // The negative control: signs by the workers' own numbers give another matrix, and a worse
    // decode.
    let wrong = matrix(&golden["decoder_index_signs"]);
    let truth = matrix(&golden["truth"]);
    let off = |rows: &[Vec<f64>]| {
        product(rows, &outputs)
            .concat()
            .iter()
            .zip(truth.concat())
            .map(|(a, b)| (a - b).powi(2))
            .sum::<f64>()
    };
    assert!(off(&wrong) > 2.0 * off(&rows), "{} and {}", off(&wrong), off(&rows));
}

#[test]
fn sbacc_k4_n12_s2() {
    let golden = golden("sbacc_k4_n12_s2");
    let code = code(&golden, Points::FirstKind, Encoder::Berrut);
    close(&product(code.rows(), &matrix(&golden["X"])), &matrix(&golden["shares"]), MATRIX);
    let survivors = ids(&golden["survivors"]);
    let outputs: Vec<Vec<f64>> =
        survivors.iter().map(|w| matrix(&golden["outputs"])[w.index()].clone()).collect();
    for (name, by) in [
        ("berrut", Interpolant::Berrut),
        ("fh1", Interpolant::FloaterHormann { degree: 1 }),
        ("spline", Interpolant::SPLINE),
    ] {
        let rows = code.decode_rows(&survivors, by).unwrap();
        close(&rows, &matrix(&golden[format!("decoder_{name}")]), MATRIX);
        close(&product(&rows, &outputs), &matrix(&golden[format!("decoded_{name}")]), DECODED);
    }
    close(
        &[code.sum_weights(&survivors, Interpolant::SPLINE).unwrap()],
        &[numbers(&golden["sum_weights_spline"])],
        MATRIX,
    );
}

#[test]
fn smoothing_spline_n7() {
    let golden = golden("smoothing_spline_n7");
    let nodes = Nodes::new(numbers(&golden["nodes"])).unwrap();
    let targets = numbers(&golden["targets"]);
    for (key, smoothing) in [("lam0", 0.0), ("lam1e_3", 1e-3)] {
        close(
            &Interpolant::Spline { smoothing }.rows(&nodes, &targets).unwrap(),
            &matrix(&golden[key]),
            MATRIX,
        );
    }
    for degree in [0, 1, 3] {
        let expected = numbers(&golden[format!("fh_weights_d{degree}")]);
        close(&[floater_hormann_weights(&nodes, degree).unwrap()], &[expected], MATRIX);
    }
}

#[test]
fn dct_matrix_n8() {
    let golden = golden("dct_matrix_n8");
    let (dct, expected) = (Dct::new(8), matrix(&golden["C"]));
    for i in 0..8 {
        let mut unit = vec![0.0; 8];
        unit[i] = 1.0;
        dct.forward(&mut unit);
        close(&[unit.clone()], &[expected.iter().map(|row| row[i]).collect()], MATRIX);
        let mut back = expected[i].clone();
        dct.forward(&mut back);
        let mut row: Vec<f64> = (0..8).map(|k| if k == i { 1.0 } else { 0.0 }).collect();
        close(&[back], &[row.clone()], MATRIX);
        dct.inverse(&mut row);
        close(&[row], &[expected[i].clone()], MATRIX);
    }
    let units: Vec<Vec<f64>> =
        (0..8).map(|i| (0..8).map(|j| if i == j { 1.0 } else { 0.0 }).collect()).collect();
    let parity = dct.parity(&units.iter().map(|x| &x[..]).collect::<Vec<_>>(), 5);
    close(&parity, &matrix(&golden["parity_check_m5"]), MATRIX);
    let generator: Vec<Vec<f64>> =
        (0..8).map(|i| (0..5).map(|k| expected[k][i]).collect()).collect();
    close(&generator, &matrix(&golden["generator_m5"]), MATRIX);
}

#[test]
fn dct_pgz_k4_n16_s3_a3() {
    let golden = golden("dct_pgz_k4_n16_s3_a3");
    let code = code(&golden, Points::FirstKind, Encoder::Lagrange);
    let (dimension, erased) = (count(&golden["m"]), ids(&golden["erased"]));
    let survivors: Vec<Worker> = Worker::all(16).filter(|w| !erased.contains(w)).collect();
    let all = matrix(&golden["received"]);
    let outputs: Vec<Vec<f64>> = survivors.iter().map(|w| all[w.index()].clone()).collect();
    let everybody: Vec<Worker> = Worker::all(16).collect();
    let syndromes = extended_syndromes(&received(&code, &everybody, &all), dimension);
    close(&syndromes, &matrix(&golden["syndromes_k_m_to_2N_minus_m_of_received"]), DECODED);
    let received = received(&code, &survivors, &outputs);
    let truth = ids(&golden["true_errors"]);
    assert_eq!(truth, ids(&golden["located"]));
    for form in [Form::Polynomial, Form::Subspace] {
        assert_eq!(dct_locate(&received, dimension, 3, form).unwrap(), truth, "{form:?}");
    }
    let clean = matrix(&golden["clean_outputs"]);
    let errors: Vec<Vec<f64>> = truth
        .iter()
        .map(|w| all[w.index()].iter().zip(&clean[w.index()]).map(|(a, b)| a - b).collect())
        .collect();
    close(&received.errors_of(&truth, dimension).unwrap(), &errors, DECODED);
    let kept: Vec<Worker> = survivors.iter().copied().filter(|w| !truth.contains(w)).collect();
    let rows = code.decode_rows(&kept, Interpolant::LeastSquares { dimension }).unwrap();
    let outputs: Vec<Vec<f64>> = kept.iter().map(|w| all[w.index()].clone()).collect();
    close(&product(&rows, &outputs), &matrix(&golden["decoded"]), DECODED);
    close(&product(&rows, &outputs), &matrix(&golden["truth"]), DECODED);
}

#[test]
fn gp_lts_k4_n16_s2_a2() {
    let golden = golden("gp_lts_k4_n16_s2_a2");
    let code = code(&golden, Points::FirstKind, Encoder::Spline);
    let survivors = ids(&golden["survivors"]);
    let received = received(&code, &survivors, &matrix(&golden["received"]));
    let gram = received.gram();
    close(&gram.rows(), &matrix(&golden["gram"]), MATRIX);
    for (exponent, residual) in residuals_by_exponent(&gram, 2).unwrap() {
        let expected = golden["residual_by_q"][exponent.to_string()].as_f64().unwrap();
        let tolerance = if exponent >= 12.0 { 1e-5 } else { 1e-6 };
        assert!(
            (residual - expected).abs() <= tolerance * expected,
            "q={exponent}: {residual} instead of {expected}"
        );
    }
    let found = robust_locate(&gram, 2, Tolerance::default()).unwrap();
    assert_eq!(found.workers, ids(&golden["located_workers"]));
    assert_eq!(found.exponent, golden["q"].as_f64());
    let expected = golden["sigma2"].as_f64().unwrap();
    assert!((found.variance - expected).abs() <= 1e-6 * expected);
    let kept: Vec<Worker> =
        survivors.iter().copied().filter(|w| !found.workers.contains(w)).collect();
    let rows = code.decode_rows(&kept, Interpolant::SPLINE).unwrap();
    close(&rows, &matrix(&golden["decoder"]), MATRIX);
    close(
        &[code.sum_weights(&kept, Interpolant::SPLINE).unwrap()],
        &[numbers(&golden["sum_weights"])],
        MATRIX,
    );
    let all = matrix(&golden["received"]);
    let outputs: Vec<Vec<f64>> = survivors
        .iter()
        .zip(all)
        .filter(|(w, _)| !found.workers.contains(w))
        .map(|(_, output)| output)
        .collect();
    close(&product(&rows, &outputs), &matrix(&golden["decoded"]), DECODED);
}
