//! A memory of vectors that stay where they were computed, as those of a device do, for the unit
//! tests of the library and of the trainer.

use codedgrad::gpu::{
    CombineError, Gradient, GradientError, GradientMut, SumCheck, Vector, WireBuffer, add_into,
};
use std::sync::Arc;

/// Numbers of the host that stay where they are, as those of a device do.
#[derive(Clone, Debug)]
pub(crate) struct NonHostVector(pub(crate) Vec<f32>);

impl Vector for NonHostVector {
    type Place = u32;

    fn new(_: &u32, length: usize) -> Self {
        Self(vec![f32::NAN; length])
    }
    fn fits(&self, _: &u32, length: usize) -> bool {
        self.0.len() == length
    }
    fn length(&self) -> usize {
        self.0.len()
    }
    fn clear(&mut self) {
        Vector::clear(&mut self.0);
    }
    fn scale(&mut self, weight: f32) {
        self.0.scale(weight);
    }
    fn add(&mut self, weight: f32, x: &Self) -> bool {
        add_into(&mut self.0, weight, &x.0)
    }
    fn finite(&self) -> bool {
        self.0.finite()
    }
    fn fold(terms: &[(f32, Arc<Self>)], out: &mut Self) -> Result<SumCheck, CombineError> {
        let terms: Vec<_> =
            terms.iter().map(|(weight, x)| (*weight, Arc::new(x.0.clone()))).collect();
        Vector::fold(&terms, &mut out.0)
    }
}

/// Numbers that are not finite cannot be had, as those of a device that has failed.
impl Gradient for NonHostVector {
    fn length(&self) -> usize {
        self.0.len()
    }
    fn read(&self, start: usize, scale: f32, wire: WireBuffer<'_>) -> Result<(), GradientError> {
        let failed = || GradientError::Device { reason: "as asked".into() };
        if self.finite() { self.0.read(start, scale, wire) } else { Err(failed()) }
    }
}

impl GradientMut for NonHostVector {
    fn length(&self) -> usize {
        self.0.len()
    }
    fn write(&mut self, start: usize, values: &[f32]) -> Result<(), GradientError> {
        self.0.write(start, values)
    }
}
