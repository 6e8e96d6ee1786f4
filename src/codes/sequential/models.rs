//! Which stragglers a scheme over several rounds does without.

use crate::codes::family::Guarantee;
use crate::ids::WorkerSet;

/// Which straggler sets a sequential scheme lets a round close without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Accept {
    /// Those after which the scheme's straggler model still holds.
    Model,
    /// Those after which waiting for all workers from now on still completes every job in time, by
    /// what the slot code decodes: the weakest sound rule.
    #[default]
    Lookahead,
}

/// A set of allowed sequences of straggler sets, closed under removing stragglers: in every
/// `window` rounds at most `distinct` workers straggle, and a worker's first and last straggling
/// rounds among them are less than `burst` apart. `(B, W, lambda)` of Krishnan et al. 2023.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bursty {
    /// `B`, from 1 to `window`.
    pub(super) burst: usize,
    /// `W`.
    pub(super) window: usize,
    /// `lambda`.
    pub(super) distinct: usize,
}

impl Bursty {
    /// Whether a round with these stragglers may follow a conforming history, whose last entry is
    /// the round before; rounds before the first count as without stragglers.
    pub(super) fn admits(&self, history: &[WorkerSet], stragglers: &WorkerSet) -> bool {
        let earlier = last(history, self.window - 1);
        let apart = earlier.len().saturating_sub(self.burst - 1);
        distinct(earlier, stragglers) <= self.distinct
            && !earlier[..apart].iter().any(|set| set.intersects(stragglers))
    }

    /// What a scheme that completes every job in time under this model tolerates.
    ///
    /// # Formula
    /// ```text
    /// load >= (W-1+B) / (n (W-1) + B (n - lambda))
    /// ```
    /// where `n` is the number of workers. If `lambda` of them straggle in the first `B` of every
    /// `W-1+B` rounds, what the others do, and these in the rounds between, must cover `W-1+B`
    /// batches.
    pub(super) fn guarantee(&self, workers: usize) -> Guarantee {
        let Self { burst, window, distinct } = *self;
        let period = (window + burst).saturating_sub(1) as f64;
        let useful = workers as f64 * period - burst as f64 * distinct.min(workers) as f64;
        let who = if distinct == 1 {
            "1 worker that is".into()
        } else {
            format!("{distinct} workers that are")
        };
        let rounds = if burst == 1 { "1 round".into() } else { format!("{burst} rounds") };
        let words = format!(
            "{who} late within any {window} rounds, each in at most {rounds} from its first to its \
             last"
        );
        Guarantee { words, least_load: period / useful }
    }
}

/// The last rounds of a history, at most so many.
pub(super) fn last(history: &[WorkerSet], rounds: usize) -> &[WorkerSet] {
    &history[history.len().saturating_sub(rounds)..]
}

/// How many workers straggle now or did so earlier.
pub(super) fn distinct(earlier: &[WorkerSet], stragglers: &WorkerSet) -> usize {
    let mut all = stragglers.clone();
    earlier.iter().for_each(|set| all.unite(set));
    all.len()
}

/// By which rule a round may close, and what that has to remember.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    pub(super) accept: Accept,
    pub(super) model: Bursty,
    /// The stragglers of the rounds that later ones are judged by.
    pub(super) history: Vec<WorkerSet>,
}

impl Admission {
    /// What the straggler model says of these, if it decides.
    pub(super) fn by_model(&self, missing: &WorkerSet) -> Option<bool> {
        (self.accept == Accept::Model).then(|| self.model.admits(&self.history, missing))
    }

    /// A round was closed without these.
    pub(super) fn remember(&mut self, missing: &WorkerSet) {
        self.history.push(missing.clone());
        let old = (self.history.len() + 1).saturating_sub(self.model.window);
        self.history.drain(..old);
    }
}

#[cfg(test)]
mod tests;
