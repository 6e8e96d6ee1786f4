//! The worker processes of a run.

use super::processes::again;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

fn children_of(crew: &Mutex<Vec<Child>>) -> MutexGuard<'_, Vec<Child>> {
    crew.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Worker processes, which all end with it.
pub(crate) struct Crew(pub(crate) Arc<Mutex<Vec<Child>>>, pub(crate) Arc<AtomicBool>);

impl Crew {
    pub(crate) fn children(&self) -> MutexGuard<'_, Vec<Child>> {
        children_of(&self.0)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        for child in self.children().iter_mut() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Waits for the first worker to die, and starts another in its place after a while.
pub(crate) fn replace(crew: &Crew, words: Vec<String>, place: String, after: Duration) {
    let (crew, over) = (Arc::clone(&crew.0), Arc::clone(&crew.1));
    thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
            let mut children = children_of(&crew);
            if let Some(Ok(Some(_))) = children.first_mut().map(Child::try_wait) {
                drop(children);
                thread::sleep(after);
                // The run may have ended meanwhile.
                let mut children = children_of(&crew);
                if !over.load(Ordering::Relaxed) {
                    children.extend(again(&words, "DRILL_WORKER", &place));
                }
                return;
            }
        }
    });
}
