//! A worker's part in a run, ended from outside.

use super::ExitReason;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ends the connection of a worker to its coordinator, from any thread. A worker that waits for
/// orders wakes, and one that computes learns at its next part that its result is unwanted. The
/// coordinator takes the worker for lost: the run goes on without it.
///
/// ```
/// use codedgrad::transport::{Link, ReceiveOutcome, local};
/// let (_coordinator, mut links) = local::connect(1);
/// let closer = links[0].closer();
/// let waiting = std::thread::spawn(move || links[0].receive(None));
/// closer.close();
/// assert!(matches!(waiting.join().unwrap(), ReceiveOutcome::Gone));
/// ```
#[derive(Clone)]
pub struct Closer(Arc<Inner>);

struct Inner {
    closed: AtomicBool,
    leaves: AtomicBool,
    end: End,
    leave: Leave,
}

/// Ends a connection, with a last word if there is one.
type End = Box<dyn Fn(Option<ExitReason>) + Send + Sync>;
/// Says that the worker leaves.
type Leave = Box<dyn Fn(Duration) + Send + Sync>;

impl Closer {
    /// A closer for a connection that `end` ends, and with it the wait for orders; it is called
    /// once, with the worker's last word if it has one. `leave` says that the worker leaves with so
    /// much notice; it is called once too.
    pub fn new(
        end: impl Fn(Option<ExitReason>) + Send + Sync + 'static,
        leave: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Self {
        let (closed, leaves) = Default::default();
        Self(Arc::new(Inner { closed, leaves, end: Box::new(end), leave: Box::new(leave) }))
    }

    /// Says that the worker leaves the run, and ends in any case after so long. It goes on with
    /// what it is told until it is not needed any more; then the run is over for it, as
    /// [`Aggregator::was_let_go`](crate::train::Aggregator::was_let_go) tells. Does not wait.
    ///
    /// ```
    /// use codedgrad::transport::{Link, Notice, Transport, local};
    /// use std::time::Duration;
    /// let (mut coordinator, links) = local::connect(1);
    /// let closer = links[0].closer();
    /// closer.leave(Duration::from_secs(20));
    /// let heard = coordinator.receive(None);
    /// assert!(matches!(heard, Some((_, Notice::Leaving { seconds: 20.0 }))));
    /// assert!(closer.is_leaving() && !closer.is_closed());
    /// ```
    pub fn leave(&self, notice: Duration) {
        if !self.is_closed() && !self.0.leaves.swap(true, Ordering::AcqRel) {
            (self.0.leave)(notice);
        }
    }

    /// Whether a caller has said that the worker leaves.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.0.leaves.load(Ordering::Acquire)
    }

    /// Ends the connection, unless that was done before. Does not wait.
    pub fn close(&self) {
        self.end(None);
    }

    /// The same with a last word, which tells the coordinator why, and whether the worker is to be
    /// waited for.
    ///
    /// ```
    /// use codedgrad::transport::{ExitReason, Link, Notice, Transport, local};
    /// let (mut coordinator, links) = local::connect(1);
    /// links[0].closer().part(ExitReason::for_good("it has learned enough"));
    /// let Some((_, Notice::Parting(word))) = coordinator.receive(None) else { panic!() };
    /// assert!(word.for_good);
    /// assert!(matches!(coordinator.receive(None), Some((_, Notice::Lost { .. }))));
    /// ```
    pub fn part(&self, word: ExitReason) {
        self.end(Some(word));
    }

    fn end(&self, word: Option<ExitReason>) {
        if !self.0.closed.swap(true, Ordering::AcqRel) {
            (self.0.end)(word);
        }
    }

    /// Whether a caller has closed it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Closer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Closer").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}
