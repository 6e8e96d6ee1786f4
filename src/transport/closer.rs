//! A worker's wait for its orders, ended from outside.

use super::Parting;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the connection of a worker to its coordinator, from any thread: a worker that waits for
/// orders wakes, one that computes is told at its next part that nobody wants the result, and the
/// coordinator takes the worker for lost. The run goes on without it.
///
/// ```
/// use codedgrad::transport::{Link, local};
/// let (_coordinator, mut links) = local::connect(1);
/// let closer = links[0].closer();
/// let waiting = std::thread::spawn(move || links[0].receive());
/// closer.close();
/// assert!(waiting.join().unwrap().is_none());
/// ```
#[derive(Clone)]
pub struct Closer(Arc<Inner>);

struct Inner {
    closed: AtomicBool,
    end: End,
}

/// Ends a connection, with a last word if there is one.
type End = Box<dyn Fn(Option<Parting>) + Send + Sync>;

impl Closer {
    /// A closer for a connection that `end` ends, and with it the wait for orders; it is called
    /// once, with the worker's last word if it has one.
    pub fn new(end: impl Fn(Option<Parting>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { closed: AtomicBool::new(false), end: Box::new(end) }))
    }

    /// Ends the connection, unless that was done before. Does not wait.
    pub fn close(&self) {
        self.end(None);
    }

    /// The same with a last word, which tells the coordinator why, and whether the worker is to be
    /// waited for.
    ///
    /// ```
    /// use codedgrad::transport::{Link, Notice, Parting, Transport, local};
    /// let (mut coordinator, links) = local::connect(1);
    /// links[0].closer().part(Parting::for_good("it has learned enough"));
    /// let Some((_, Notice::Parting(word))) = coordinator.receive(None) else { panic!() };
    /// assert!(word.for_good);
    /// assert!(matches!(coordinator.receive(None), Some((_, Notice::Lost { .. }))));
    /// ```
    pub fn part(&self, word: Parting) {
        self.end(Some(word));
    }

    fn end(&self, word: Option<Parting>) {
        if !self.0.closed.swap(true, Ordering::AcqRel) {
            (self.0.end)(word);
        }
    }

    /// Whether somebody has closed it.
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
