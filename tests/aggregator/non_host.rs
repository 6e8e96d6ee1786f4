//! Vectors that stay where they were computed, as those of a device do: the trainer of the other
//! tests over a memory that only its own workers and observers can read, beside the same run over
//! the host's.

use super::*;
use codedgrad::gpu::{CombineError, Gradient, GradientError, GradientMut, SumCheck, WireBuffer};
use std::sync::Arc;

/// Numbers in one of two places; whatever is reused is spoilt first.
#[derive(Clone, Debug)]
pub(super) struct NonHostVector {
    place: usize,
    numbers: Vec<f32>,
}

impl Numbers for NonHostVector {
    fn numbers(&self) -> &[f32] {
        &self.numbers
    }
    fn numbers_mut(&mut self) -> &mut [f32] {
        &mut self.numbers
    }
}

impl Vector for NonHostVector {
    type Place = usize;

    fn new(place: &usize, length: usize) -> Self {
        Self { place: *place, numbers: vec![f32::NAN; length] }
    }
    fn fits(&self, place: &usize, length: usize) -> bool {
        (self.place, self.numbers.len()) == (*place, length)
    }
    fn length(&self) -> usize {
        self.numbers.len()
    }
    fn clear(&mut self) {
        Vector::clear(&mut self.numbers);
    }
    fn poison(&mut self) {
        self.numbers.fill(f32::NAN);
    }
    fn scale(&mut self, weight: f32) {
        self.numbers.scale(weight);
    }
    fn add(&mut self, weight: f32, x: &Self) -> bool {
        self.numbers.add(weight, &x.numbers)
    }
    fn finite(&self) -> bool {
        self.numbers.finite()
    }
    fn fold(terms: &[(f32, Arc<Self>)], out: &mut Self) -> Result<SumCheck, CombineError> {
        let terms: Vec<_> =
            terms.iter().map(|(weight, x)| (*weight, Arc::new(x.numbers.clone()))).collect();
        Vector::fold(&terms, &mut out.numbers)
    }
}

impl Gradient for NonHostVector {
    fn length(&self) -> usize {
        self.numbers.len()
    }
    fn read(&self, start: usize, scale: f32, wire: WireBuffer<'_>) -> Result<(), GradientError> {
        self.numbers.read(start, scale, wire)
    }
}

impl GradientMut for NonHostVector {
    fn length(&self) -> usize {
        self.numbers.len()
    }
    fn write(&mut self, start: usize, values: &[f32]) -> Result<(), GradientError> {
        self.numbers.write(start, values)
    }
}

/// A run of 24 steps over both memories, and over links that carry vectors from one to the other,
/// ends alike, in parameters and in what its record says.
fn alike(scheme: &str, change: impl Fn(&mut Setup<'_>)) -> Log {
    let steps = 24;
    let [host, staying, staged] = [Over::Local, Over::Staying, Over::Staged].map(|over| {
        let mut setup = setup(scheme, 4, steps, modelled(4, steps, 7));
        change(&mut setup);
        setup.over = over;
        let (outcome, trained, log) = train(setup);
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        (bits(&trained), log)
    });
    assert!(host.0 == staying.0 && host.0 == staged.0, "{scheme}: the same parameters");
    let told = |log: &Log| -> Vec<_> {
        log.records
            .iter()
            .map(|record| {
                (record.step, record.digest.clone(), record.survivors.clone(), record.aux.clone())
            })
            .collect()
    };
    for other in [&staying.1, &staged.1] {
        assert!(told(&host.1) == told(other), "{scheme}: the same record");
        assert!(
            bits(&host.1.gradients) == bits(&other.gradients),
            "{scheme}: observers see the same gradients"
        );
    }
    staying.1
}

#[test]
fn runs_end_alike_whatever_memory_their_vectors_lie_in() {
    for scheme in ["groups:s=1", "uncoded", "min-load:s=1", "m-sgc:B=1,W=2,lambda=1", "queue:m=1"] {
        alike(scheme, |setup| setup.models = if scheme.starts_with("m-sgc") { 2 } else { 1 });
    }
    let log = alike("groups:s=1", |setup| {
        setup.micro_steps = 3;
        setup.run_clock = modelled(4, 3 * 24, 7);
    });
    assert!(log.peaks.iter().all(|peak| *peak > 0));
}

#[test]
fn faults_end_alike_whatever_memory_their_vectors_lie_in() {
    let dies = alike("groups:s=1", |setup| {
        setup.mischief = &|me, step| if (me.0, step) == (2, 9) { Prank::Panic } else { Prank::None }
    });
    assert!(
        dies.faults.iter().any(|(_, worker, what)| *worker == 2 && what.starts_with("lost")),
        "{:?}",
        dies.faults
    );
    let erased = alike("groups:s=1", |setup| {
        setup.mischief = &|me, step| if me.0 == 1 && step > 4 { Prank::Nan } else { Prank::None }
    });
    assert!(!erased.faults.is_empty());
    let overflows = alike("uncoded", |setup| {
        setup.mischief = &|_, step| if step == 6 { Prank::Huge } else { Prank::None }
    });
    assert!(overflows.records[6].digest.is_empty(), "a sum that is not finite is refused");
    let drifts = alike("groups:s=1", |setup| {
        setup.mischief = &|me, step| if (me.0, step) == (0, 8) { Prank::Drift } else { Prank::None }
    });
    assert!(
        drifts.faults.iter().any(|(_, _, what)| what.contains("takes over")),
        "{:?}",
        drifts.faults
    );
}
