//! Commands that train the bundled GPT, and what they share.

mod attack;
mod audit;
mod carry;
mod checkpoint;
mod described;
mod honesty;
mod limits;
mod notice;
mod observer;
mod pictures;
mod plan;
mod record;
mod report;
pub(crate) mod resume;
mod run_args;
mod session;
pub(crate) mod train;
mod turns;
pub(crate) mod worker;

use anyhow::anyhow;
use codedgrad_shell::failure::Failure;
use std::env;
use std::process::Command;

/// candle's thread pool is global and spins; workers that share a process must not have one each.
const ONE_THREAD: (&str, &str) = ("RAYON_NUM_THREADS", "1");

/// Does the work in a process whose pool for candle has one thread: this one, if it was started so;
/// else this program is started again.
pub(crate) fn with_one_thread(work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let program = env::current_exe().ok().filter(|_| env::var_os(ONE_THREAD.0).is_none());
    let Some(program) = program else { return work() };
    let mut again = Command::new(program);
    again.args(env::args_os().skip(1)).env(ONE_THREAD.0, ONE_THREAD.1);
    let error = replace(&mut again);
    let (name, value) = ONE_THREAD;
    Err(Failure::Work(anyhow!("cannot start again with {name}={value}: {error}")))
}

#[cfg(unix)]
fn replace(again: &mut Command) -> std::io::Error {
    std::os::unix::process::CommandExt::exec(again)
}

#[cfg(not(unix))]
fn replace(again: &mut Command) -> std::io::Error {
    match again.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
