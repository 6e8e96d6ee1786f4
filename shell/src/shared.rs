//! What threads of the program share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes what a mutex guards, which stays whole here when a thread panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
