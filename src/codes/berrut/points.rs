//! Where data blocks and workers sit in [-1, 1].

use super::error::BerrutError;
use crate::ids::{Share, Worker};
use std::f64::consts::PI;

/// Where the workers' points are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points {
    /// Chebyshev points of the first kind, `z_i = cos((2i+1) pi / 2N)`: SBACC. Outputs are DCT
    /// codewords.
    FirstKind,
    /// Chebyshev points of the second kind, `z_i = cos(i pi / (N-1))`, both ends included: BACC.
    SecondKind,
}

/// The points of the data blocks, Chebyshev points of the first kind, in descending order.
///
/// # Formula
/// ```text
/// alpha_j = cos((2j+1) pi / 2K),  j = 0 .. K-1
/// ```
/// where `K` is the number of blocks. Source: Jahani-Nezhad, Maddah-Ali, arXiv 2009.08327.
///
/// ```
/// let alpha = codedgrad::codes::berrut::data_points(2);
/// assert!((alpha[0] - 0.5f64.sqrt()).abs() < 1e-15 && (alpha[0] + alpha[1]).abs() < 1e-15);
/// ```
#[must_use]
pub fn data_points(blocks: usize) -> Vec<f64> {
    (0..blocks).map(|j| ((2 * j + 1) as f64 * PI / (2 * blocks) as f64).cos()).collect()
}

impl Points {
    /// The points of `workers` workers, in descending order; a single worker sits in the middle.
    ///
    /// ```
    /// use codedgrad::codes::berrut::Points;
    /// let z = Points::SecondKind.of(3);
    /// assert!(z[0] == 1.0 && z[1].abs() < 1e-15 && z[2] == -1.0);
    /// ```
    #[must_use]
    pub fn of(self, workers: usize) -> Vec<f64> {
        match self {
            Self::FirstKind => data_points(workers),
            Self::SecondKind if workers == 1 => vec![0.0],
            Self::SecondKind => {
                (0..workers).map(|i| (i as f64 * PI / (workers - 1) as f64).cos()).collect()
            }
        }
    }

    /// The workers whose point is a data block's: they hold that block as it is.
    ///
    /// # Formula
    /// ```text
    /// first kind:  z_i = alpha_j  iff  K (2i+1) = N (2j+1)
    /// second kind: z_i = alpha_j  iff  2 K i = (2j+1) (N-1)
    /// ```
    /// where `K` is the number of blocks and `N` of workers.
    ///
    /// ```
    /// use codedgrad::codes::berrut::Points;
    /// use codedgrad::ids::Worker;
    /// let uncoded: Vec<Worker> =
    ///     Points::FirstKind.uncoded(4, 12).into_iter().map(|(worker, _)| worker).collect();
    /// assert_eq!(uncoded, [Worker(1), Worker(4), Worker(7), Worker(10)]);
    /// ```
    #[must_use]
    pub fn uncoded(self, blocks: usize, workers: usize) -> Vec<(Worker, Share)> {
        let hit = |i: usize, j: usize| match self {
            Self::FirstKind => blocks * (2 * i + 1) == workers * (2 * j + 1),
            Self::SecondKind if workers == 1 => 2 * j + 1 == blocks,
            Self::SecondKind => 2 * blocks * i == (2 * j + 1) * (workers - 1),
        };
        let pair = |i: usize| {
            (0..blocks).find(|j| hit(i, *j)).map(|j| (Worker(i as u32), Share(j as u32)))
        };
        (0..workers).filter_map(pair).collect()
    }

    /// The smallest number of workers, at least `at_least`, of which `blocks` hold a block as it
    /// is: odd multiples of `K` for the first kind, `2 K t + 1` for the second.
    ///
    /// ```
    /// use codedgrad::codes::berrut::Points;
    /// assert_eq!(Points::FirstKind.systematic(4, 13), 20);
    /// assert_eq!(Points::SecondKind.systematic(4, 13), 17);
    /// ```
    #[must_use]
    pub fn systematic(self, blocks: usize, at_least: usize) -> usize {
        let step = 2 * blocks.max(1);
        // One worker alone sits at the point of one block alone.
        let first = if self == Self::FirstKind || blocks == 1 { blocks } else { step + 1 };
        first + at_least.saturating_sub(first).div_ceil(step) * step
    }
}

/// Interpolation points that all ascend or all descend.
#[derive(Clone, Debug, PartialEq)]
pub struct Nodes(Vec<f64>);

impl Nodes {
    /// Checks the points.
    ///
    /// # Errors
    /// [`BerrutError::NoSurvivors`] for none, [`BerrutError::Node`] for one that is not finite or
    /// breaks the order.
    ///
    /// ```
    /// use codedgrad::codes::berrut::Nodes;
    /// assert!(Nodes::new(vec![1.0, 0.0, -0.5]).is_ok());
    /// assert!(Nodes::new(vec![1.0, 0.0, 0.5]).unwrap_err().to_string().contains("point 2"));
    /// ```
    pub fn new(points: Vec<f64>) -> Result<Self, BerrutError> {
        if points.is_empty() {
            return Err(BerrutError::NoSurvivors);
        }
        let ascends = points.len() > 1 && points[1] > points[0];
        let ordered = |index: usize| {
            index == 0
                || (points[index] != points[index - 1]
                    && (points[index] > points[index - 1]) == ascends)
        };
        match (0..points.len()).find(|index| !points[*index].is_finite() || !ordered(*index)) {
            Some(index) => Err(BerrutError::Node { index, value: points[index] }),
            None => Ok(Self(points)),
        }
    }

    /// The points.
    ///
    /// ```
    /// assert_eq!(codedgrad::codes::berrut::Nodes::new(vec![0.5])?.as_slice(), [0.5]);
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    #[must_use]
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }

    /// The same points in ascending order, and whether they were turned around.
    pub(super) fn ascending(&self) -> (Vec<f64>, bool) {
        let mut points = self.0.clone();
        let turned = points.first() > points.last();
        if turned {
            points.reverse();
        }
        (points, turned)
    }
}
