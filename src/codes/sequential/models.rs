//! Straggler models: which sequences of straggler sets a sequential code promises to bear.

use crate::ids::WorkerSet;

/// A set of allowed sequences of straggler sets, closed under removing stragglers.
///
/// ```
/// use codedgrad::codes::sequential::StragglerModel;
/// use codedgrad::ids::{Worker, WorkerSet};
/// let model = StragglerModel::Bursty { burst: 1, window: 2, distinct: 1 };
/// let first = WorkerSet::of(4, [Worker(0)]);
/// assert!(model.admits(&[], &first));
/// assert!(!model.admits(&[first.clone()], &first), "no worker twice within 2 rounds");
/// assert!(
///     !model.admits(&[first], &WorkerSet::of(4, [Worker(1)])),
///     "one distinct straggler per 2 rounds"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StragglerModel {
    /// At most `stragglers` in every round.
    PerRound {
        /// `s`.
        stragglers: usize,
    },
    /// In every `window` rounds at most `distinct` workers straggle, and a worker's first and last
    /// straggling rounds among them are less than `burst` apart: `(B, W, lambda)` of Krishnan et
    /// al. 2023.
    Bursty {
        /// `B`, from 1 to `window`.
        burst: usize,
        /// `W`.
        window: usize,
        /// `lambda`.
        distinct: usize,
    },
    /// In every `window` rounds at most `distinct` workers straggle, each in at most `rounds` of
    /// them: `(N, W', lambda')` of Krishnan et al. 2023.
    Arbitrary {
        /// `N`.
        rounds: usize,
        /// `W'`.
        window: usize,
        /// `lambda'`.
        distinct: usize,
    },
}

impl StragglerModel {
    /// Appends a round's stragglers to a history and forgets what no later round is judged by.
    pub(super) fn remember(&self, history: &mut Vec<WorkerSet>, stragglers: &WorkerSet) {
        let (Self::Bursty { window, .. } | Self::Arbitrary { window, .. }) = *self else { return };
        history.push(stragglers.clone());
        let old = (history.len() + 1).saturating_sub(window);
        history.drain(..old);
    }

    /// Whether a round with these stragglers may follow a conforming history, whose last entry is
    /// the round before; rounds before the first count as without stragglers.
    #[must_use]
    pub fn admits(&self, history: &[WorkerSet], stragglers: &WorkerSet) -> bool {
        let last = |rounds: usize| &history[history.len().saturating_sub(rounds)..];
        let union = |earlier: &[WorkerSet]| {
            let mut all = stragglers.clone();
            earlier.iter().for_each(|set| all.unite(set));
            all
        };
        match *self {
            Self::PerRound { stragglers: most } => stragglers.len() <= most,
            Self::Bursty { burst, window, distinct } => {
                let earlier = last(window - 1);
                let apart = earlier.len().saturating_sub(burst - 1);
                union(earlier).len() <= distinct
                    && !earlier[..apart].iter().any(|set| set.intersects(stragglers))
            }
            Self::Arbitrary { rounds, window, distinct } => {
                let earlier = last(window - 1);
                let before = |worker| earlier.iter().filter(|set| set.contains(worker)).count();
                union(earlier).len() <= distinct
                    && stragglers.iter().all(|worker| before(worker) < rounds)
            }
        }
    }
}

/// Which straggler sets a sequential scheme lets a round close without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Accept {
    /// Those after which the scheme's straggler model still holds.
    Model,
    /// Those after which waiting for everybody from now on still completes every job in time: the
    /// weakest sound rule.
    #[default]
    Lookahead,
}
