//! A matrix product over 20 worker threads of which two are late and two lie, decoded without them.
use codedgrad::codes::berrut::{
    BerrutCode, BerrutDecoder, ByzantineDefence, Encoder, Interpolant, Points,
};
use codedgrad::ids::Worker;
use ndarray::Array2;
use std::{error::Error, sync::mpsc, thread, time::Duration};

const LATE: [Worker; 2] = [Worker(2), Worker(13)];
const LIARS: [Worker; 2] = [Worker(6), Worker(11)];

fn main() -> Result<(), Box<dyn Error>> {
    let entry = |j: usize| move |(a, b)| ((5 * a + 3 * b + 7 * j) as f32 * 0.7).sin();
    let blocks = [0, 1, 2, 3].map(|j| Array2::from_shape_fn((6, 6), entry(j)));
    let weights = Array2::from_shape_fn((6, 6), |(a, b)| ((a * b + 1) as f32).cos());
    let code = BerrutCode::new(4, 20, Points::FirstKind, Encoder::Spline)?;
    let (sender, answers) = mpsc::channel();
    for (worker, share) in Worker::all(20).zip(code.encode(&blocks.each_ref().map(|b| b.view()))?) {
        let (sender, weights) = (sender.clone(), weights.clone());
        thread::spawn(move || {
            let lie = if LIARS.contains(&worker) { -40.0 } else { 1.0 };
            thread::sleep(Duration::from_secs(2 * u64::from(LATE.contains(&worker))));
            sender.send((worker, share.dot(&weights) * lie))
        });
    }
    let security = ByzantineDefence { byzantine: 2, ..ByzantineDefence::default() };
    let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE).secured(security);
    while decoder.arrived() < 18 {
        let (worker, answer) = answers.recv()?;
        decoder.arrive(worker, answer)?;
    }
    let decoded = decoder.decode(7)?;
    let wrong = decoded.report.verdict.ok_or("nobody was looked for")?.trimmed.workers;
    assert_eq!(wrong, LIARS);
    let norm = |x: &Array2<f32>| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (block, found) in blocks.iter().zip(&decoded.outputs) {
        let truth = block.dot(&weights);
        assert!(norm(&(found - &truth)) < 0.25 * norm(&truth));
    }
    Ok(())
}
