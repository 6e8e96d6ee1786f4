//! `codedgrad-lab worker --restarts`: a process that starts the worker, and starts it again when it
//! dies.

use anyhow::Context;
use codedgrad_cli::supervise::{End, Next, Policy};
use codedgrad_shell::clock::now;
use codedgrad_shell::failure::{Failure, OrWork};
use codedgrad_shell::itself::Itself;
use codedgrad_shell::output::say;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::env;
use std::ffi::OsString;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The flag that asks for this.
const FLAG: &str = "--restarts";
/// How often it is looked whether the worker lives, and whether somebody asks to end.
const LOOK: Duration = Duration::from_millis(50);

/// Signals that are passed on, and whether each has come.
struct Asked([(i32, Arc<AtomicBool>); 2]);

impl Asked {
    fn catch() -> Result<Self, Failure> {
        let asked = Self([SIGINT, SIGTERM].map(|signal| (signal, Arc::default())));
        for (signal, come) in &asked.0 {
            let caught = flag::register(*signal, Arc::clone(come));
            caught.context("cannot catch signals").or_work()?;
        }
        Ok(asked)
    }

    /// Passes on what has come since it was last asked; whether something has.
    fn pass_on(&self, worker: Option<&Child>) -> bool {
        let mut any = false;
        for (signal, come) in &self.0 {
            if come.swap(false, Ordering::SeqCst) {
                any = true;
                worker.inspect(|worker| send(worker, *signal));
            }
        }
        any
    }
}

#[cfg(unix)]
fn send(worker: &Child, signal: i32) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = if signal == SIGINT { Signal::INT } else { Signal::TERM };
    // Who has just ended needs none.
    let _ = kill_process(Pid::from_child(worker), signal);
}

/// Elsewhere the console tells everybody.
#[cfg(not(unix))]
fn send(_worker: &Child, _signal: i32) {}

/// A command line, the program's name first, without what asks for this.
fn without_flag(line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut rest = line.skip(1);
    let mut kept = Vec::new();
    while let Some(argument) = rest.next() {
        if argument == FLAG {
            rest.next();
        } else if !argument.to_string_lossy().starts_with(&format!("{FLAG}=")) {
            kept.push(argument);
        }
    }
    kept
}

/// Runs the same command line without `--restarts`, again and again while that is of use, and ends
/// as its last start did.
pub(crate) fn run(restarts: u32, itself: &Itself) -> Result<(), Failure> {
    let (asked, mut policy) = (Asked::catch()?, Policy::new(restarts));
    let line = without_flag(env::args_os());
    loop {
        let mut worker =
            itself.command().args(&line).spawn().context("cannot start the worker").or_work()?;
        let (since, mut told) = (now(), false);
        let end = loop {
            told |= asked.pass_on(Some(&worker));
            if let Some(status) = worker.try_wait().or_work()? {
                break End::of(status);
            }
            thread::sleep(LOOK);
        };
        let next = if told { Next::Over } else { policy.ended(end, since.elapsed()) };
        let status = end.status() as u8;
        match next {
            Next::Over if status == 0 => return Ok(()),
            Next::Over => return Err(Failure::Said(status)),
            Next::GivenUp(why) => {
                say!("the worker {end}, and is given up: {why}");
                return Err(Failure::Said(status));
            }
            Next::Again { after, time } => {
                let wait = after.as_secs();
                say!("the worker {end}: started again in {wait} s ({time} of {restarts})");
                let paused = now();
                while paused.elapsed() < after {
                    if asked.pass_on(None) {
                        return Err(Failure::Said(status));
                    }
                    thread::sleep(LOOK);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_line_stays() {
        let line = |text: &'static str| text.split(' ').map(OsString::from);
        let kept: Vec<_> = line("worker --join host:7000 --worker 3").collect();
        for text in [
            "codedgrad-lab worker --restarts 5 --join host:7000 --worker 3",
            "codedgrad-lab worker --join host:7000 --restarts=5 --worker 3",
            "codedgrad-lab worker --join host:7000 --worker 3 --restarts 5",
        ] {
            assert_eq!(without_flag(line(text)), kept, "{text}");
        }
    }
}
