//! The command line: `codedgrad train`, `codedgrad coordinator`, `codedgrad worker`,
//! `codedgrad keygen`, `codedgrad status`, `codedgrad code`, `codedgrad simulate`,
//! `codedgrad plan`, `codedgrad trace`, `codedgrad berrut`.

mod attack;
mod auto;
mod berrut;
mod berrut_sweep;
mod checkpoint;
mod code;
mod coordinator;
mod folder;
mod keygen;
mod lock;
mod network;
mod observer;
mod pictures;
mod plan;
mod planner;
mod report;
mod run_args;
mod session;
mod simulate;
mod status;
mod trace;
mod train;
mod worker;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::env;
use std::io::IsTerminal;
use std::process::{Command as Process, ExitCode};

/// candle's thread pool is global and spins; workers that share a process must not have one each.
const ONE_THREAD: (&str, &str) = ("RAYON_NUM_THREADS", "1");

#[derive(Debug, Parser)]
#[command(
    name = "codedgrad",
    version,
    about = "Gradient coding: data-parallel training at the speed of the fast workers, without \
        losing a sample",
    long_about = "Gradient coding: data-parallel training at the speed of the fast workers, \
        without losing a sample.\n\n\
        Each worker computes a little more than its share of a batch, so that the exact gradient can be put\n\
        together from any fast enough subset of them. Without a subcommand, `codedgrad train` runs on its\n\
        defaults: a small GPT on embedded text, once uncoded and once coded, under the same stragglers.",
    after_help = "Exit status: 0 good, 2 bad usage or input, 1 failed at work. Ctrl-C saves and \
        exits with 0."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a small GPT through injected stragglers, once uncoded and once coded
    Train(Box<train::TrainArgs>),
    /// Coordinate a training run whose workers are processes of this or other hosts
    Coordinator(Box<coordinator::CoordinatorArgs>),
    /// Be a worker of a run: join its coordinator, compute what it asks for
    Worker(worker::WorkerArgs),
    /// Make the certificates and the token of a job that spans hosts
    Keygen(keygen::KeygenArgs),
    /// Show how a coordinator's run is going
    Status(status::StatusArgs),
    /// Show a code: its matrix, what it tolerates, and the decode of given survivors
    Code(code::CodeArgs),
    /// Run a scheme over recorded or drawn delays on virtual time
    Simulate(simulate::SimulateArgs),
    /// Should I code at all, and with what? From a trace, every scheme compared
    Plan(planner::PlanArgs),
    /// Record, import and measure delays of workers
    Trace(trace::TraceArgs),
    /// Decode any function of coded data through stragglers and wrong workers, and measure the
    /// error
    Berrut(Box<berrut::BerrutArgs>),
}

/// What ends a command early.
#[derive(Debug)]
enum Failure {
    /// Usage or input that cannot be right: exit status 2.
    Input(anyhow::Error),
    /// Work that could not be done: exit status 1.
    Work(anyhow::Error),
    /// Another process does this one's work: exit status 4.
    Replaced(anyhow::Error),
}

/// Marks errors of what the user gave.
trait OrInput<T> {
    fn or_input(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrInput<T> for Result<T, E> {
    fn or_input(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Input(error.into()))
    }
}

/// Marks errors of what the program does.
trait OrWork<T> {
    fn or_work(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrWork<T> for Result<T, E> {
    fn or_work(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Work(error.into()))
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let mut cli = Cli::parse();
    if cli.command.is_none() {
        cli = Cli::parse_from(["codedgrad", "train"]);
    }
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
    let result = match cli.command {
        Some(Command::Berrut(args)) => berrut::run(&args),
        Some(Command::Code(args)) => code::run(&args),
        Some(Command::Coordinator(args)) => {
            with_one_thread().unwrap_or_else(|| coordinator::run(&args))
        }
        Some(Command::Worker(args)) => with_one_thread().unwrap_or_else(|| worker::run(&args)),
        Some(Command::Keygen(args)) => keygen::run(&args),
        Some(Command::Status(args)) => status::run(&args),
        Some(Command::Simulate(args)) => simulate::run(&args),
        Some(Command::Plan(args)) => planner::run(&args),
        Some(Command::Trace(args)) => trace::run(&args),
        Some(Command::Train(args)) => with_one_thread().unwrap_or_else(|| train::run(&args)),
        None => unreachable!("without a subcommand, train runs"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Input(error)) => {
            eprintln!("error: {}", told(&error));
            ExitCode::from(2)
        }
        Err(Failure::Work(error)) => {
            eprintln!("error: {}", told(&error));
            ExitCode::FAILURE
        }
        Err(Failure::Replaced(error)) => {
            eprintln!("error: {}", told(&error));
            ExitCode::from(4)
        }
    }
}

/// An error with its causes, but those that it already tells of.
fn told(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

/// Starts this program again with candle's pool limited to one thread, unless it already is. Comes
/// back only if there is nothing to do (none) or the start fails.
fn with_one_thread() -> Option<Result<(), Failure>> {
    if env::var_os(ONE_THREAD.0).is_some() {
        return None;
    }
    let mut again = Process::new(env::current_exe().ok()?);
    again.args(env::args_os().skip(1)).env(ONE_THREAD.0, ONE_THREAD.1);
    Some(Err(Failure::Work(anyhow::anyhow!(
        "cannot start again with {}=1: {}",
        ONE_THREAD.0,
        replace(&mut again)
    ))))
}

#[cfg(unix)]
fn replace(again: &mut Process) -> std::io::Error {
    std::os::unix::process::CommandExt::exec(again)
}

#[cfg(not(unix))]
fn replace(again: &mut Process) -> std::io::Error {
    match again.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

/// A bar for long work; it stays hidden where nobody looks.
fn progress_bar(total: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_prefix(name.to_owned());
    let style = ProgressStyle::with_template(
        "{prefix:.bold} {bar:24.cyan/dim} {pos}/{len} {msg} (eta {eta})",
    );
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
