//! What sums are made of, and what is found out about them.

use crate::ids::{OrderId, Step, Task};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a mutex guards here stays whole when a thread panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sum. A newer attempt at the sum of a step makes older ones void: whatever is still said of
/// those is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SumId {
    /// Of which step.
    pub step: Step,
    /// How many attempts at it were begun before this one.
    pub attempt: u32,
}

impl SumId {
    /// The first sum of a step.
    #[must_use]
    pub const fn first(step: Step) -> Self {
        Self { step, attempt: 0 }
    }

    /// It and all later ones of its step.
    pub(crate) fn and_later(self) -> RangeInclusive<Self> {
        self..=Self { attempt: u32::MAX, ..self }
    }
}

impl fmt::Display for SumId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, attempt {}", self.step, self.attempt)
    }
}

/// A decoded gradient and the scalars decoded with the same weights.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedSum<V = Vec<f32>> {
    /// The gradient, summed over the whole batch; empty in orders to workers that keep it among
    /// themselves.
    pub gradient: Arc<V>,
    /// Auxiliary scalars: what workers submitted beside their messages (loss sum, token count,
    /// ...); NaN where some worker's was not finite.
    pub aux: Vec<f64>,
    /// Digest of the gradient's bytes.
    pub digest: u64,
}

/// What a worker has spent on a task, finished or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskSpent {
    /// Seconds from taking the task up to submitting or dropping it, by the worker's own clock.
    pub computed: f64,
    /// Units of it that are finished.
    pub units: u32,
}

/// What was found out about the sum of a step, by a worker that it is said of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumNotice {
    /// Numbers of a task's result are others now than were announced, and it will
    /// not be done; others may have summed it as it was.
    Changed {
        /// In which order.
        order: OrderId,
        /// Which.
        task: Task,
    },
    /// A decoded vector is held.
    Held {
        /// Which sum.
        sum: SumId,
        /// Its digest.
        digest: u64,
    },
    /// The result that the worker has in the sum of a step is not finite, whatever it says: the
    /// node that summed has seen it.
    ResultNotFinite {
        /// Which sum.
        sum: SumId,
    },
    /// The sum of a step is not finite, and all its terms are: the node that summed has seen it,
    /// whichever worker this is said of.
    NotFinite {
        /// Which sum.
        sum: SumId,
    },
    /// The sum of a step cannot be made as it was begun: who helped is lost.
    Failed {
        /// Which sum.
        sum: SumId,
    },
}
