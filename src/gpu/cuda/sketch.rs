//! Sketches as their kernel wants and gives them.

use crate::gpu::real::Signs;

/// The signs of a sketch as its kernel wants them.
pub(super) struct SignTables {
    pub(super) first: Vec<i8>,
    pub(super) second: Vec<i8>,
    pub(super) places: Vec<u32>,
}

impl SignTables {
    pub(super) fn of(signs: &Signs) -> Self {
        assert!(signs.first.len() < 1 << 32, "buckets fit 31 bits");
        let table =
            |minus: &[bool]| minus.iter().map(|minus| if *minus { -1 } else { 1 }).collect();
        let places = signs.places.iter().flatten().map(|place| *place as u32).collect();
        Self { first: table(&signs.first), second: table(&signs.second), places }
    }
}

/// The sketch, from the sums `[stripes x 2 buckets]` of its kernel.
pub(super) fn add_stripes(sums: &[f32], buckets: usize) -> Vec<f64> {
    let total =
        |slot: usize| sums[slot..].iter().step_by(2 * buckets).map(|x| f64::from(*x)).sum::<f64>();
    (0..buckets).map(|slot| total(slot) + total(slot + buckets)).collect()
}
