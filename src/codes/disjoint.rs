//! Disjoint sets of points, each point on one of two sides of its set.

/// A union-find by size that knows on which of two sides every point lies.
#[derive(Clone, Debug)]
pub(super) struct Sets {
    /// The point above, or the point itself, and whether it lies on the other side.
    above: Vec<(u32, bool)>,
    size: Vec<u32>,
}

/// What joining two points has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinOutcome {
    /// They were in two sets; those of `absorbed` are in `into` now, sides swapped if `swapped`.
    Merged { into: u32, absorbed: u32, swapped: bool },
    /// They were in one set already, on sides that do or do not agree with the join.
    Within { root: u32, agrees: bool },
}

impl Sets {
    pub(super) fn new(points: usize) -> Self {
        Self {
            above: (0..points as u32).map(|point| (point, false)).collect(),
            size: vec![1; points],
        }
    }

    /// The set a point is in, and whether it lies on the other side than the set's root.
    pub(super) fn root(&self, mut point: u32) -> (u32, bool) {
        let mut other = false;
        loop {
            let (above, side) = self.above[point as usize];
            if above == point {
                return (point, other);
            }
            other ^= side;
            point = above;
        }
    }

    /// Joins two points, which lie on opposite sides or on the same.
    pub(super) fn join(&mut self, a: u32, b: u32, opposite: bool) -> JoinOutcome {
        let ((a, a_side), (b, b_side)) = (self.root(a), self.root(b));
        let swapped = a_side ^ b_side ^ opposite;
        if a == b {
            return JoinOutcome::Within { root: a, agrees: !swapped };
        }
        let (into, absorbed) =
            if self.size[a as usize] >= self.size[b as usize] { (a, b) } else { (b, a) };
        self.above[absorbed as usize] = (into, swapped);
        self.size[into as usize] += self.size[absorbed as usize];
        JoinOutcome::Merged { into, absorbed, swapped }
    }
}
