//! How many threads carry bytes.

use super::TcpError;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::{Builder, Runtime};

/// The environment's word, for processes that are started by others.
const VARIABLE: &str = "CODEDGRAD_IO_THREADS";
/// How many there may be.
pub const IO_THREADS: RangeInclusive<usize> = 1..=256;

/// What this process was told; 0 is nothing.
static TOLD: AtomicUsize = AtomicUsize::new(0);

/// From now on every coordinator and worker of this process that begins has so many threads that
/// carry its bytes; before what `CODEDGRAD_IO_THREADS` says. Without either, they are half of the
/// cores and at most 4, which carry about 10 GB/s: more are of use on faster networks.
///
/// # Errors
/// [`TcpError::IoThreads`] for a number that is not among [`IO_THREADS`].
///
/// ```
/// use codedgrad::transport::tcp::set_io_threads;
/// set_io_threads(2)?;
/// assert!(set_io_threads(0).is_err());
/// # Ok::<(), codedgrad::transport::tcp::TcpError>(())
/// ```
pub fn set_io_threads(threads: usize) -> Result<(), TcpError> {
    if !IO_THREADS.contains(&threads) {
        return Err(TcpError::IoThreads { told: threads.to_string() });
    }
    TOLD.store(threads, Ordering::Relaxed);
    Ok(())
}

/// Those of a transport that begins.
fn io_threads() -> Result<usize, TcpError> {
    let told = TOLD.load(Ordering::Relaxed);
    if told > 0 {
        return Ok(told);
    }
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
        // The other half computes.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return Ok((cores / 2).clamp(1, 4));
    };
    let text = text.to_string_lossy().into_owned();
    let number = text.trim().parse().ok().filter(|number| IO_THREADS.contains(number));
    number.ok_or(TcpError::IoThreads { told: text })
}

/// Threads that carry bytes.
pub(super) fn runtime() -> Result<Runtime, TcpError> {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(io_threads()?)
        .thread_name("codedgrad-io")
        .enable_all()
        .build()
        .map_err(TcpError::Threads)
}
