//! How far Berrut decoding can be off, for functions whose derivatives are known.

use super::points::{Nodes, Points};
use std::f64::consts::PI;

/// Largest `|h''|` and `|h'|` on [-1, 1] of the function that the outputs are values of,
/// `h = f o u`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Derivatives {
    /// `max |h'|`.
    pub first: f64,
    /// `max |h''|`.
    pub second: f64,
}

/// Bound on the error of Berrut's interpolant between the first and the last node; none below four
/// nodes.
///
/// # Formula
/// ```text
/// |r - h| <= g (1 + b) ( (z_max - z_min) |h''| / 2 + [n odd] |h'| )
/// b = max over inner gaps i of min( gap_i / gap_{i-1}, gap_i / gap_{i+1} )
/// ```
/// where `g` is the largest gap between neighbours and `n` the number of nodes. Source: Floater,
/// Hormann, "Barycentric rational interpolation with no poles and high rates of approximation",
/// 2007, Theorem 3.
///
/// ```
/// use codedgrad::codes::berrut::{Derivatives, Nodes, mesh_bound};
/// let nodes = Nodes::new(vec![-1.0, -0.5, 0.0, 0.5, 1.0])?;
/// assert_eq!(
///     mesh_bound(&nodes, Derivatives { first: 1.0, second: 1.0 }),
///     Some(0.5 * 2.0 * (1.0 + 1.0))
/// );
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
#[must_use]
pub fn mesh_bound(nodes: &Nodes, of: Derivatives) -> Option<f64> {
    let z = nodes.as_slice();
    if z.len() < 4 {
        return None;
    }
    let gaps: Vec<f64> = z.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    let ratio =
        gaps.windows(3).map(|gap| (gap[1] / gap[0]).min(gap[1] / gap[2])).fold(0.0, f64::max);
    let largest = gaps.iter().copied().fold(0.0, f64::max);
    let odd = if z.len() % 2 == 1 { of.first } else { 0.0 };
    Some(largest * (1.0 + ratio) * ((z[0] - z[z.len() - 1]).abs() * of.second / 2.0 + odd))
}

/// Bound on the error of Berrut decoding with any `stragglers` missing, between the first and the
/// last survivor; none below four survivors.
///
/// # Formula
/// ```text
/// |r - h| <= 2 (1 + R) sin((s+1) pi / 2M) ( |h''| + [N - s odd] |h'| )
/// second kind: M = N-1, R = (s+1)(s+3) pi^2 / 4      first kind: M = N, R = (s+1)(s+4) pi^2 / 8
/// ```
/// where `s` is the number of stragglers of `N` workers. Source: the theorem of Jahani-Nezhad,
/// Maddah-Ali, arXiv 2009.08327, as known from summaries, for the second kind; the first kind by
/// the same steps from [`mesh_bound`]. It is loose: hundreds of times the error and more.
///
/// ```
/// use codedgrad::codes::berrut::{straggler_bound, Derivatives, Points};
/// let h = Derivatives { first: 1.0, second: 1.0 };
/// let bound = |s| straggler_bound(Points::FirstKind, 100, s, h).unwrap();
/// assert!(bound(2) < bound(4));
/// assert_eq!(straggler_bound(Points::FirstKind, 6, 3, h), None);
/// ```
#[must_use]
pub fn straggler_bound(
    points: Points,
    workers: usize,
    stragglers: usize,
    of: Derivatives,
) -> Option<f64> {
    let survivors = workers.checked_sub(stragglers).filter(|survivors| *survivors >= 4)?;
    let s = stragglers as f64;
    let (meshes, ratio) = match points {
        Points::FirstKind => (workers, (s + 1.0) * (s + 4.0) * PI * PI / 8.0),
        Points::SecondKind => (workers - 1, (s + 1.0) * (s + 3.0) * PI * PI / 4.0),
    };
    let odd = if survivors % 2 == 1 { of.first } else { 0.0 };
    Some(2.0 * (1.0 + ratio) * ((s + 1.0) * PI / (2 * meshes) as f64).sin() * (of.second + odd))
}
