//! Runs arbitrary closures over worker threads of which some are late and some lie, and decodes
//! their results.
//!
//! `cargo run -p codedgrad --no-default-features --features berrut --example coded_computing`

use codedgrad::codes::berrut::{BerrutCode, Decoder, Encoder, Interpolant, Points, Security};
use codedgrad::ids::Worker;
use ndarray::Array2;
use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const BLOCKS: usize = 4;
const WORKERS: usize = 20;
/// They answer, but too late.
const LATE: [u32; 2] = [2, 13];
/// They answer something else.
const LIARS: [u32; 2] = [6, 11];

/// The results of all blocks, from whatever 18 of 20 workers say first.
fn coded<F>(blocks: &[Array2<f32>], compute: F) -> Result<Vec<Array2<f32>>, Box<dyn Error>>
where
    F: Fn(&Array2<f32>) -> Array2<f32> + Clone + Send + 'static,
{
    let code = BerrutCode::new(BLOCKS, WORKERS, Points::FirstKind, Encoder::Spline)?;
    let shares = code.encode(&blocks.iter().map(|block| block.view()).collect::<Vec<_>>())?;
    let (sender, answers) = mpsc::channel();
    for (worker, share) in Worker::all(WORKERS).zip(shares) {
        let (sender, compute) = (sender.clone(), compute.clone());
        thread::spawn(move || {
            let mut answer = compute(&share);
            if LATE.contains(&worker.0) {
                thread::sleep(Duration::from_secs(2));
            }
            if LIARS.contains(&worker.0) {
                answer.mapv_inplace(|x| 5.0 - 40.0 * x);
            }
            // Nobody may be listening any more.
            let _ = sender.send((worker, answer));
        });
    }
    let security = Security { wrong: 2, ..Security::default() };
    let mut decoder = Decoder::new(&code, Interpolant::SPLINE).secured(security);
    while decoder.arrived() < WORKERS - LATE.len() {
        let (worker, answer) = answers.recv()?;
        decoder.arrive(worker, answer)?;
    }
    // The seed matters for long outputs only: there it must be drawn now, where no worker could
    // foresee it.
    let decoded = decoder.decode(7)?;
    let verdict = decoded.report.verdict.ok_or("nobody was looked for")?;
    println!("  wrong: {:?}, {} more could be located", verdict.trimmed.workers, verdict.capacity);
    Ok(decoded.outputs)
}

fn main() -> Result<(), Box<dyn Error>> {
    let blocks: Vec<Array2<f32>> = (0..BLOCKS)
        .map(|j| {
            Array2::from_shape_fn((6, 6), |(a, b)| ((5 * a + 3 * b + 7 * j) as f32 * 0.7).sin())
        })
        .collect();
    let weights = Array2::from_shape_fn((6, 6), |(a, b)| ((a * b + 1) as f32).cos());
    let product = {
        let weights = weights.clone();
        move |x: &Array2<f32>| x.dot(&weights)
    };
    let sigmoid = |x: &Array2<f32>| x.mapv(|x| 1.0 / (1.0 + (-x).exp()));
    let network = move |x: &Array2<f32>| {
        x.dot(&weights).mapv(|x| x.max(0.0)).dot(&weights.t()).mapv(f32::tanh)
    };
    run("matrix product", &blocks, product)?;
    run("sigmoid", &blocks, sigmoid)?;
    run("a small network", &blocks, network)
}

fn run<F>(name: &str, blocks: &[Array2<f32>], compute: F) -> Result<(), Box<dyn Error>>
where
    F: Fn(&Array2<f32>) -> Array2<f32> + Clone + Send + 'static,
{
    println!("{name}:");
    let found = coded(blocks, compute.clone())?;
    let norm = |x: &Array2<f32>| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (block, found) in blocks.iter().zip(&found) {
        let truth = compute(block);
        let error = norm(&(found - &truth)) / norm(&truth);
        println!("  error {:.2} %", 100.0 * error);
        assert!(error < 0.25);
    }
    Ok(())
}
