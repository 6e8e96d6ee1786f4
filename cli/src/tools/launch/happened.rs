//! What the launcher is told: events of its coordinator, and signals.

use crate::tools::serve::events::Event;
use anyhow::Context;
use codedgrad::files;
use codedgrad_shell::failure::{Failure, OrWork};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::mpsc::Sender;
use std::thread;

/// Something that the launcher is told.
#[derive(Clone, Debug)]
pub(super) enum LauncherEvent {
    /// By the coordinator.
    Told(Event),
    /// By the system.
    Signal(i32),
}

/// Has signals come with what else happens, until it is dropped.
pub(super) struct Catch(Handle);

impl Catch {
    pub(super) fn signals(happened: Sender<LauncherEvent>) -> Result<Self, Failure> {
        let mut caught = vec![SIGINT, SIGTERM, SIGCHLD];
        // A user who starts it with `nohup` wants it to outlive the terminal.
        if !is_ignored(SIGHUP) {
            caught.push(SIGHUP);
        }
        let signals = Signals::new(caught);
        let mut signals = signals.context("cannot catch signals").or_work()?;
        let handle = signals.handle();
        thread::spawn(move || {
            for signal in signals.forever() {
                if happened.send(LauncherEvent::Signal(signal)).is_err() {
                    return;
                }
            }
        });
        Ok(Self(handle))
    }
}

impl Drop for Catch {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Whether this process was started with a signal ignored, as far as the system tells.
fn is_ignored(signal: i32) -> bool {
    let status = files::read_text("/proc/self/status".as_ref(), 1 << 20).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
