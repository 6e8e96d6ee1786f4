//! The doctor: a record of 15,625 rounds of 64 workers, a million answers, read and examined.
//!
//! `RAYON_NUM_THREADS=1 cargo bench -p codedgrad --no-default-features --bench doctor`

use codedgrad::doctor::{Record, RunContext, examine};
use criterion::{Criterion, criterion_group, criterion_main};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Normal};
use std::fmt::Write as _;
use std::time::Duration;

const WORKERS: usize = 64;
const ROUNDS: usize = 15_625;

/// Lines of a run whose answers vary by 3 %; worker 5 is slower from the middle on. Under `groups`
/// half of the answers come after the close. All workers report.
fn lines(scheme: &str, rounds: usize) -> String {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let spread = Normal::new(1.0, 0.03).expect("a deviation");
    let (mut text, mut now) = (String::new(), 0.0);
    for round in 0..rounds {
        let time = |worker| {
            let slow = if worker == 5 && round > rounds / 2 { 1.3 } else { 1.0 };
            slow * f64::max(spread.sample(&mut random), 0.5)
        };
        let times: Vec<f64> = (0..WORKERS).map(time).collect();
        let seconds = match scheme {
            "uncoded" => times.iter().copied().fold(0.0, f64::max),
            _ => times.chunks(2).map(|pair| pair[0].min(pair[1])).fold(0.0, f64::max),
        };
        let opened = now;
        now += seconds + 0.01;
        let arrival = |time: &f64| match *time <= seconds {
            true => format!("{time:.6}"),
            false => "null".into(),
        };
        let arrivals = times.iter().map(arrival).collect::<Vec<_>>().join(",");
        let report = |(worker, time): (usize, &f64)| {
            format!("[{round},{worker},{:.6},1.0,{time:.6}]", time - 0.01)
        };
        let spent = times.iter().enumerate().map(report).collect::<Vec<_>>().join(",");
        let _ = writeln!(
            text,
            "{{\"run\":0,\"scheme\":\"{scheme}\",\"step\":{round},\"committed\":{now:.6},\
             \"seconds\":{seconds:.6},\"rounds\":[{{\"round\":{round},\"opened\":{opened:.6},\
             \"seconds\":{seconds:.6},\"arrivals\":[{arrivals}],\"delays\":[],\"erased\":[],\
             \"work\":1.0}}],\"survivors\":[],\"weights\":[],\"spent\":[{spent}]}}"
        );
    }
    text
}

fn read(text: &str) -> Record {
    let mut record = Record::default();
    for line in text.lines() {
        record.push(serde_json::from_str(line).expect("a step")).expect("a step that fits");
    }
    record
}

fn doctor(criterion: &mut Criterion) {
    for (scheme, rounds) in [("uncoded", ROUNDS), ("uncoded", 2 * ROUNDS), ("groups:s=1", ROUNDS)] {
        let text = lines(scheme, rounds);
        let megabytes = text.len() / 1_000_000;
        let name = format!("{scheme}_{rounds}x{WORKERS}_{megabytes}_MB");
        criterion.bench_function(&format!("read_{name}"), |bencher| {
            bencher.iter(|| read(&text).rounds());
        });
        let record = read(&text);
        criterion.bench_function(&format!("examine_{name}"), |bencher| {
            bencher.iter(|| examine(&record, &RunContext::default()).findings.len());
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = doctor
}
criterion_main!(benches);
