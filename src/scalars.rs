//! Scalars that are decoded beside gradients, such as a loss, any of which may be no finite number.
//!
//! One that is not finite is [`f64::NAN`] from where it is handed in: then all sums with it are the
//! same, in any order in which they are made. JSON has no such number, so that it is `null` there:
//! the functions `serialize` and `deserialize` are for serde's `with`.

use serde::{Deserialize, Deserializer, Serializer};

/// A scalar, or the one NaN that stands for all that is not finite.
fn settled(scalar: f64) -> f64 {
    if scalar.is_finite() { scalar } else { f64::NAN }
}

/// The scalars that a worker hands in.
pub(crate) fn handed_in(scalars: Vec<f64>) -> Vec<f64> {
    scalars.into_iter().map(settled).collect()
}

/// Adds scalars to a sum, times a weight. Those of weight 0 are not used, and are no part of it.
pub(crate) fn add(sum: &mut Vec<f64>, weight: f64, scalars: &[f64]) {
    sum.resize(sum.len().max(scalars.len()), 0.0);
    if weight == 0.0 {
        return;
    }
    sum.iter_mut().zip(scalars).for_each(|(sum, x)| *sum = settled(*sum + weight * x));
}

pub(crate) fn serialize<S: Serializer>(scalars: &[f64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(scalars.iter().map(|scalar| scalar.is_finite().then_some(*scalar)))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let scalars = Vec::<Option<f64>>::deserialize(from)?;
    Ok(scalars.into_iter().map(|scalar| scalar.unwrap_or(f64::NAN)).collect())
}

#[cfg(test)]
mod tests;
