//! A lab around the library: a small GPT on candle that trains through injected stragglers, faults
//! and attacks, and what its runs show. [`main`] runs its command line, [`trainer`] is the GPT.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod berrut;
mod pool;
mod pool_file;
mod run;
pub mod trainer;

#[cfg(test)]
#[path = "../../tests/non_host/mod.rs"]
mod non_host;

use clap::{Parser, Subcommand};
use codedgrad::codes::registry::Registry;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::itself::VERSION;
use codedgrad_shell::output::Output;
use codedgrad_shell::program::{self, EXIT_STATUS, Line};
use codedgrad_shell::saying::MessageArgs;
use codedgrad_shell::{families, layout};
use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

/// What the program is and what it does where no command is given.
const LONG_ABOUT: &str = "Experiments with gradient coding: a small GPT trains through \
    stragglers, faults and attacks that are injected.\n\n\
    Without a subcommand, `codedgrad-lab train` runs on its defaults: the GPT on embedded text, \
    uncoded and coded, under the same stragglers. Runs of trainers of your own are started by \
    `codedgrad run`.";

#[derive(Debug, Parser)]
#[command(
    name = "codedgrad-lab",
    bin_name = "codedgrad-lab",
    version = VERSION,
    about = "Experiments with gradient coding: a small GPT through stragglers, faults and attacks",
    long_about = layout::help(LONG_ABOUT),
    after_help = EXIT_STATUS
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    saying: MessageArgs,
}

impl Line for Cli {
    fn saying(&self) -> &MessageArgs {
        &self.saying
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a small GPT through injected stragglers, once uncoded and once coded
    Train(Box<run::train::TrainArgs>),
    /// Be a worker of `codedgrad run` or `codedgrad serve` that trains the GPT
    Worker(Box<run::worker::WorkerArgs>),
    /// Decode any function of coded data through stragglers and Byzantine workers, and measure
    /// the error
    Berrut(Box<berrut::BerrutArgs>),
    /// Count the steps of a run whose workers come and go, without training
    Pool(pool::PoolArgs),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    program::of_its_own();
    ExitCode::from(execute(env::args_os()))
}

/// Runs the command line of this process for a program with schemes of its own: they are listed
/// and trained with like the others.
///
/// ```no_run
/// use codedgrad::codes::{Groups, registry::{Family, Recipe, Registry}};
/// use std::process::ExitCode;
/// # #[allow(clippy::needless_doctest_main)]
/// fn main() -> ExitCode {
///     let pairs = Family {
///         name: "pairs",
///         examples: &["pairs"],
///         summary: "two workers for every share",
///         ..Family::new(|_| Ok(Recipe::code(|workers| Groups::tolerating(workers, 1))))
///     };
///     match Registry::default().with(pairs) {
///         Ok(registry) => codedgrad_lab::main_with(registry),
///         Err(error) => panic!("{error}"),
///     }
/// }
/// ```
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    families::set(registry);
    main()
}

/// Runs a command line, the program's name first, and gives back the exit status: 0 done, 1 failed
/// at work, 2 bad usage or input, 4 another process took this worker's place, 130 and 143 ended by
/// Ctrl-C and SIGTERM.
#[must_use]
pub fn execute(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let line = program::parse::<Cli>(arguments).map_err(|error| {
        let usage = error.get(clap::error::ContextKind::Usage).map(ToString::to_string);
        let trains = usage.is_some_and(|usage| usage.contains("codedgrad-lab train"));
        program::explained(error, trains.then_some(run::resume::CHANGEABLE))
    });
    program::execute(line, |cli, output| {
        let command = cli.command.or_else(|| Cli::parse_from(["codedgrad-lab", "train"]).command);
        command.map_or(Ok(()), |command| run_command(command, output))
    })
}

fn run_command(command: Command, output: &mut Output<'_>) -> Result<(), Failure> {
    match command {
        Command::Worker(args) => run::with_one_thread(|| run::worker::run(&args)),
        Command::Train(args) => run::with_one_thread(|| run::train::run(&args, output)),
        Command::Berrut(args) => berrut::run(&args, output),
        Command::Pool(args) => pool::run(&args, output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_number_is_a_value_and_not_a_flag() {
        let line = program::command_line::<Cli>();
        assert!(program::check_flags::<Cli>(&line, &["codedgrad-lab"]) > 70);
    }
}
