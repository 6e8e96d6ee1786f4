//! Ending a run from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a waiting coordinator looks whether it was stopped.
pub(in crate::train) const LOOK: Duration = Duration::from_millis(50);

/// Ends a run from any thread, also one that waits for workers: within a twentieth of a second no
/// further step is begun, every worker is told, and the run is over with
/// [`Outcome::Stopped`](super::Outcome). What is not committed by then is not applied. Over TCP
/// some seconds more may pass, in which workers take their leave. A run on a modelled clock, which
/// stands still while it waits for a worker, looks for that when something comes.
///
/// ```
/// use codedgrad::train::{Coordinator, Outcome};
/// let (coordinator, workers) =
///     Coordinator::builder("uncoded").workers(2).steps(9).length(3).local()?;
/// let stopper = coordinator.stopper();
/// let run = std::thread::spawn(move || coordinator.run(&mut ()));
/// // The workers never answer.
/// stopper.stop();
/// assert_eq!(run.join().unwrap()?, Outcome::Stopped);
/// drop(workers);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stopper(Arc<AtomicBool>);

impl Stopper {
    /// Ends the run. Does not wait.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether a caller has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
