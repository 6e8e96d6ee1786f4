//! Who asks a command to end: Ctrl-C, SIGTERM, or the end of the launcher that has started it.

use crate::failure::{Failure, OrWork};
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What is added to the number of a signal for the exit status of who ends by it.
const BY_SIGNAL: usize = 128;
/// Exit status of who was ended by SIGTERM.
pub const ENDED: u8 = 143;

/// How often [`EndRequest::then`] looks.
const LOOK: Duration = Duration::from_millis(20);

/// The request to end, if one has come.
#[derive(Clone, Debug, Default)]
pub struct EndRequest {
    status: Arc<AtomicUsize>,
    /// Whether another signal ends the process at once.
    again: Arc<AtomicBool>,
}

impl EndRequest {
    /// Takes note of signals from now on, and of the end of standard input if that is the
    /// launcher's life line. Signals after [`EndRequest::hears_again`] end the process at once.
    pub fn catch(by_input: bool) -> Result<Self, Failure> {
        let asked = Self::default();
        for signal in [SIGINT, SIGTERM] {
            let status = BY_SIGNAL as i32 + signal;
            flag::register_conditional_shutdown(signal, status, Arc::clone(&asked.again))
                .and_then(|_| {
                    flag::register_usize(signal, Arc::clone(&asked.status), status as usize)
                })
                .context("cannot catch signals")
                .or_work()?;
        }
        if by_input {
            let asked = asked.clone();
            thread::spawn(move || {
                let mut input = io::stdin().lock();
                while !matches!(input.read(&mut [0; 64]), Ok(0) | Err(_)) {}
                asked.status.store(BY_SIGNAL + SIGTERM as usize, Ordering::SeqCst);
            });
        }
        Ok(asked)
    }

    /// The exit status that the request calls for; 0 if none has come.
    pub fn status(&self) -> u8 {
        self.status.load(Ordering::SeqCst) as u8
    }

    /// The exit status of what was ended before its time, also where no signal has come: a worker
    /// that has asked by a message counts as SIGTERM.
    pub fn ended(&self) -> u8 {
        match self.status() {
            0 => ENDED,
            status => status,
        }
    }

    /// The same since it was last taken.
    pub fn take(&self) -> u8 {
        self.status.swap(0, Ordering::SeqCst) as u8
    }

    /// Takes the next signal for a second one, which is in earnest.
    pub fn hears_again(&self) {
        self.again.store(true, Ordering::SeqCst);
    }

    /// Does something as soon as a request has come; the next signal ends the process at once.
    pub fn then(&self, act: impl FnOnce(u8) + Send + 'static) {
        let asked = self.clone();
        thread::spawn(move || {
            while asked.status() == 0 {
                thread::sleep(LOOK);
            }
            asked.hears_again();
            act(asked.status());
        });
    }
}
