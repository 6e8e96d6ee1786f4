//! A bound on strangers.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds how many clients are proving themselves at once, so that strangers cannot use up a listener's memory.
///
/// ```
/// use codedgrad::transport::tcp::security::Gate;
/// let gate = Gate::new(1);
/// let pass = gate.enter();
/// assert!(pass.is_some() && gate.enter().is_none());
/// drop(pass);
/// assert!(gate.enter().is_some());
/// ```
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

/// The right to be among them, until it is dropped: to be kept until [`accept`](super::accept) returns.
#[derive(Debug)]
pub struct Pass {
    _permit: OwnedSemaphorePermit,
}

impl Gate {
    /// At most `clients` at once.
    #[must_use]
    pub fn new(clients: usize) -> Self {
        Self(Arc::new(Semaphore::new(clients)))
    }

    /// A pass if there is one left. Without, the connection should be dropped at once.
    #[must_use]
    pub fn enter(&self) -> Option<Pass> {
        self.0.clone().try_acquire_owned().ok().map(|permit| Pass { _permit: permit })
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(64)
    }
}
