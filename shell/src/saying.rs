//! How much is said beside what was asked for, and what is logged.

use crate::failure::Failure;
use crate::output::{self, Logs};
use anyhow::anyhow;
use clap::{ArgAction, Args};
use std::env;
use std::io::{self, IsTerminal};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Above `--quiet` and `--verbose` in the help of every command.
const MESSAGES: &str = "Messages";

/// How much is said beside what was asked for.
#[derive(Debug, Args)]
pub struct MessageArgs {
    /// Print results, warnings and errors only; `codedgrad run` shows one worker's output
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = MESSAGES)]
    quiet: bool,
    /// -v: debug, -vv: trace; RUST_LOG overrides
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = MESSAGES)]
    verbose: u8,
}

impl MessageArgs {
    /// Sets up what this process logs. It may run several command lines: the first says of which
    /// places logs are kept.
    pub fn set_up(&self) -> Result<(), Failure> {
        output::set_quiet(self.quiet);
        let usual = match (self.quiet, self.verbose) {
            (true, _) | (false, 0) => LevelFilter::WARN,
            (false, 1) => LevelFilter::DEBUG,
            (false, _) => LevelFilter::TRACE,
        };
        let told = told_by_environment().map_err(|error| Failure::Input(anyhow!(error)))?;
        log(told.unwrap_or_else(|| Targets::new().with_default(usual)), self.verbose > 0);
        Ok(())
    }
}

/// What `RUST_LOG` says is to be logged, if it says anything.
fn told_by_environment() -> Result<Option<Targets>, String> {
    let Ok(text) = env::var("RUST_LOG") else { return Ok(None) };
    if text.is_empty() {
        return Ok(None);
    }
    let targets = text.parse().map_err(|error| format!("RUST_LOG={text}: {error}"))?;
    Ok(Some(targets))
}

/// Logs to standard error from now on, unless this process does so already.
fn log(targets: Targets, with_target: bool) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Logs)
        .with_ansi(io::stderr().is_terminal())
        .with_target(with_target)
        .without_time();
    let _ = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
}

/// Logs what `RUST_LOG` says in a process that runs no command line, such as a worker in Python.
///
/// # Errors
/// What is wrong with the text.
pub fn log_by_environment() -> Result<(), String> {
    if let Some(targets) = told_by_environment()? {
        log(targets, true);
    }
    Ok(())
}
