//! The command line: [`main`] runs it.
//!
//! Tools need nothing but the library: `codedgrad code`, `simulate`, `plan`, `mesh`, `doctor`,
//! `trace`, `berrut`, `keygen` and `status`; so do `serve`, the coordinator of others' trainers,
//! and `run`, which starts them all. With feature `trainer` (the default) there are
//! `codedgrad train`,
//! `coordinator` and `worker` too, which train the bundled GPT.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod auto;
mod board;
mod clock;
mod drain;
mod events;
mod failure;
mod families;
mod folder;
mod found;
mod http;
mod itself;
mod layout;
mod legs;
mod limits;
mod lock;
mod output;
mod pictures;
mod pool;
mod port;
mod progress;
#[cfg(feature = "trainer")]
mod run;
mod saying;
mod shared;
mod signals;
mod steps;
#[cfg(any(unix, feature = "trainer"))]
mod supervise;
mod tools;
mod units;

pub use failure::Ended;
pub use itself::Itself;
pub use saying::log_by_environment;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use codedgrad::codes::registry::Registry;
use failure::{Failure, OrWork as _, is_closed};
use itself::VERSION;
use output::{Notes, Output, Stdout};
use saying::Saying;
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
#[cfg(unix)]
use std::sync::Arc;

/// What the program is and what it does where no command is given.
#[cfg(feature = "trainer")]
const LONG_ABOUT: &str = "Gradient coding: data-parallel training at the speed of the fast \
    workers, without losing a sample.\n\n\
    Each worker computes a little more than its share of a batch, so that the exact gradient can \
    be put together from any fast enough subset of them. Without a subcommand, `codedgrad train` \
    runs on its defaults: a small GPT on embedded text, uncoded and coded, under the same \
    stragglers.";
/// What the program is.
#[cfg(not(feature = "trainer"))]
const LONG_ABOUT: &str = "Gradient coding: data-parallel training at the speed of the fast \
    workers, without losing a sample.\n\n\
    Each worker computes a little more than its share of a batch, so that the exact gradient\n\
    can be put together from any fast enough subset of them.";

#[derive(Debug, Parser)]
#[command(
    name = "codedgrad",
    bin_name = "codedgrad",
    version = VERSION,
    about = "Gradient coding: data-parallel training at the speed of the fast workers, without \
        losing a sample",
    long_about = layout::help(LONG_ABOUT),
    after_help = "Exit status: 0 done, 1 failed at work, 2 bad usage or input, 4 another process \
        took this worker's place, 130 and 143 interrupted by Ctrl-C and SIGTERM, after saving."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    saying: Saying,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a small GPT through injected stragglers, once uncoded and once coded
    #[cfg(feature = "trainer")]
    Train(Box<run::train::TrainArgs>),
    /// Coordinate a training run whose workers are processes of this or other hosts
    #[cfg(feature = "trainer")]
    Coordinator(Box<run::coordinator::CoordinatorArgs>),
    /// Be a worker of a run: join its coordinator, compute what it asks for
    #[cfg(feature = "trainer")]
    Worker(Box<run::worker::WorkerArgs>),
    /// Start a run of a program of yours: its coordinator and its workers, who are started again
    /// when they die
    #[cfg(unix)]
    Run(Box<tools::launch::LaunchArgs>),
    /// Coordinate a run whose workers are programs of others', such as loops of PyTorch
    Serve(tools::serve::ServeArgs),
    #[command(flatten)]
    Tool(Tool),
}

/// Commands that need the library alone.
#[derive(Debug, Subcommand)]
enum Tool {
    /// Make the certificates and the token of a job that spans hosts
    Keygen(tools::keygen::KeygenArgs),
    /// Show how a coordinator's run is going
    Status(tools::status::StatusArgs),
    /// Show a code: its matrix, what it tolerates, and the decode of given survivors
    Code(tools::code::CodeArgs),
    /// Run a scheme over recorded or drawn delays on virtual time
    Simulate(tools::simulate::SimulateArgs),
    /// Should I code at all, and with what? From a trace, every scheme compared
    Plan(tools::planner::PlanArgs),
    /// Which ranks are late together in a folded layout, and what that leaves to code over
    Mesh(tools::mesh::MeshArgs),
    /// What slows a run down: where its time went, who is slow, since when and why
    Doctor(tools::doctor::DoctorArgs),
    /// Record, import and measure delays of workers
    Trace(tools::trace::TraceArgs),
    /// Decode any function of coded data through stragglers and Byzantine workers, and measure
    /// the error
    Berrut(Box<tools::berrut::BerrutArgs>),
    /// Print the completions of a shell
    #[cfg(feature = "pages")]
    Completions(tools::pages::CompletionsArgs),
    /// Write man pages, one for every command
    #[cfg(feature = "pages")]
    Man(tools::pages::ManArgs),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    // A file that reaches `ulimit -f` is then an error of that file, not the end without a word.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    ExitCode::from(execute(env::args_os()))
}

/// Runs the command line of this process for a program with schemes of its own: they are listed,
/// planned with, simulated and trained with like the others.
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
///         Ok(registry) => codedgrad_cli::main_with(registry),
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
/// Ctrl-C and SIGTERM. For programs in other languages that carry the commands; [`main`] is for
/// those that are nothing else.
#[must_use]
pub fn execute(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    execute_as(&Itself::of_process(), arguments)
}

/// The same for a program whose executable is not its own, such as a Python that has loaded it:
/// where a command starts this program again, it does so as it is told.
#[must_use]
pub fn execute_as(itself: &Itself, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match parse(arguments).map_err(explained) {
        Ok(cli) => cli,
        Err(error) => {
            let printed = error.print().and_then(|()| io::stdout().flush());
            return match (error.exit_code(), printed) {
                // Help that was asked for is an answer like others.
                (0, Err(error)) if !output::is_closed(&error) => {
                    output::alert!("error: {}", output::of_stdout(&error));
                    1
                }
                (status, _) => u8::try_from(status).unwrap_or(2),
            };
        }
    };
    let Some(command) = cli.command.or_else(default_command) else {
        let _ = command_line().print_help();
        return 2;
    };
    let mut out = Stdout::open();
    let done = cli.saying.set_up().and_then(|()| {
        let output = &mut Output { out: &mut out, notes: Notes::Stderr };
        let done = run_command(command, itself, output);
        // What was found is shown even where the command fails by it.
        let shown = output.out.flush().or_work();
        done.and(shown)
    });
    out.give_up();
    match done {
        Ok(()) => 0,
        Err(Failure::Said(status)) => status,
        // Nobody listens any more, and a reader that has left does not ask how it ended.
        Err(Failure::Work(error)) if is_closed(&error) => 0,
        Err(failure) => {
            let ended = Ended::from(failure);
            output::alert!("error: {}", ended.message);
            ended.status
        }
    }
}

/// All commands, whose `-h` are summaries.
fn command_line() -> clap::Command {
    Cli::command().mut_subcommands(|command| takes_negative(layout::summarised(command)))
}

/// A command whose flags take a number such as `-1` for their value, and not for a flag: each says
/// itself what is wrong with it.
fn takes_negative(command: clap::Command) -> clap::Command {
    let takes = |argument: clap::Arg| {
        let has_value = !argument.is_positional() && argument.get_action().takes_values();
        argument.allow_negative_numbers(has_value)
    };
    command.mut_args(takes).mut_subcommands(takes_negative)
}

/// What a command line asks for.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = command_line();
    let mut found = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut found).map_err(|error| error.format(&mut command))
}

/// An error with what can be done instead, where a flag was given with `--resume` that a resumed
/// run does not take.
fn explained(mut error: clap::Error) -> clap::Error {
    let names_resume = |kind| {
        error.get(kind).is_some_and(|value| match value {
            ContextValue::String(name) => name.starts_with("--resume"),
            ContextValue::Strings(names) => names.iter().any(|name| name.starts_with("--resume")),
            _ => false,
        })
    };
    let of_resume = [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().any(names_resume);
    if error.kind() == ErrorKind::ArgumentConflict && of_resume {
        let usage = error.get(ContextKind::Usage).map_or(String::new(), ToString::to_string);
        let mut tip = "a resumed run goes on as its folder's plan says, or its steps would not be \
                       of one run"
            .to_owned();
        if let Some(flags) = changeable(&usage) {
            tip += &format!("; what may be given again: {flags}");
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The flags that a resumed run takes again, of the command with this usage.
#[cfg(feature = "trainer")]
fn changeable(usage: &str) -> Option<&'static str> {
    let trains = ["codedgrad train", "codedgrad coordinator"];
    trains.iter().any(|command| usage.contains(command)).then_some(run::resume::CHANGEABLE)
}

/// The flags that a resumed run takes again, of the command with this usage.
#[cfg(not(feature = "trainer"))]
fn changeable(_usage: &str) -> Option<&'static str> {
    None
}

/// Runs the command line of a tool, the program's name first: what the command would print goes to
/// `out`, what it would say on standard error (warnings, notes) to `notes`, and no bar is drawn.
/// It may be called from several threads at once.
///
/// # Errors
/// [`Ended`] where there is no answer, and for commands that are no tools: they print while they
/// run. A claim that [`execute`] ends with 1 for, since it does not hold, is an answer.
///
/// ```
/// let mut out = Vec::new();
/// let line = "codedgrad code groups:s=1 --workers 4 --json".split(' ').map(Into::into);
/// codedgrad_cli::answer(line, &mut out, &mut std::io::sink()).map_err(|ended| ended.message)?;
/// assert!(out.starts_with(br#"{"scheme":"groups:s=1","workers":4"#));
/// # Ok::<(), String>(())
/// ```
pub fn answer(
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), Ended> {
    let mut output = Output { out, notes: Notes::Kept(notes) };
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) if error.exit_code() == 0 => {
            return Ok(write!(output.out, "{error}").or_work()?);
        }
        Err(error) => return Err(error.into()),
    };
    match cli.command {
        Some(Command::Tool(tool)) => match tool.run(&mut output) {
            // The answer is there, and is no.
            Ok(()) | Err(Failure::Said(_)) => Ok(()),
            Err(failure) => Err(failure.into()),
        },
        _ => Err(Ended { status: 2, message: "expected a tool, such as `simulate`".into() }),
    }
}

/// What runs where no command is given.
#[cfg(feature = "trainer")]
fn default_command() -> Option<Command> {
    Cli::parse_from(["codedgrad", "train"]).command
}

/// What runs where no command is given.
#[cfg(not(feature = "trainer"))]
fn default_command() -> Option<Command> {
    None
}

impl Tool {
    fn run(&self, output: &mut Output<'_>) -> Result<(), Failure> {
        let done = match self {
            Self::Berrut(args) => tools::berrut::run(args, output),
            Self::Code(args) => tools::code::run(args, output),
            Self::Doctor(args) => tools::doctor::run(args, output),
            Self::Keygen(args) => tools::keygen::run(args, output),
            Self::Status(args) => tools::status::run(args, output),
            Self::Simulate(args) => tools::simulate::run(args, output),
            Self::Plan(args) => tools::planner::run(args, output),
            Self::Mesh(args) => tools::mesh::run(args, output),
            Self::Trace(args) => tools::trace::run(args, output),
            #[cfg(feature = "pages")]
            Self::Completions(args) => tools::pages::completions(args, output),
            #[cfg(feature = "pages")]
            Self::Man(args) => tools::pages::man(args),
        };
        done.and_then(|()| output.out.flush().or_work())
    }
}

/// Runs the command that a line asks for.
#[cfg_attr(
    not(any(unix, feature = "trainer")),
    expect(unused_variables, reason = "nothing is started there")
)]
fn run_command(command: Command, itself: &Itself, output: &mut Output<'_>) -> Result<(), Failure> {
    match command {
        #[cfg(feature = "trainer")]
        Command::Coordinator(args) => run::with_one_thread(|| run::coordinator::run(&args, output)),
        #[cfg(feature = "trainer")]
        Command::Worker(args) if args.restarts > 0 => run::again::run(args.restarts, itself),
        #[cfg(feature = "trainer")]
        Command::Worker(args) => run::with_one_thread(|| run::worker::run(&args)),
        #[cfg(feature = "trainer")]
        Command::Train(args) => run::with_one_thread(|| run::train::run(&args, output)),
        #[cfg(unix)]
        Command::Run(args) => tools::launch::run(&args, itself),
        Command::Serve(args) => tools::serve::run(&args, output),
        Command::Tool(tool) => tool.run(output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the flags of a command that is called by these words, and of those below it.
    fn check_flags(command: &clap::Command, words: &[&str]) -> usize {
        let mut checked = 0;
        let takes_value = |argument: &&clap::Arg| argument.get_action().takes_values();
        for flag in command.get_arguments().filter(takes_value).filter_map(clap::Arg::get_long) {
            let flag = format!("--{flag}");
            let line = words.iter().copied().chain([flag.as_str(), "-1"]);
            if let Err(error) = command_line().try_get_matches_from(line) {
                assert_ne!(error.kind(), ErrorKind::UnknownArgument, "{words:?} {flag}: {error}");
            }
            checked += 1;
        }
        for below in command.get_subcommands() {
            checked += check_flags(below, &[words, &[below.get_name()]].concat());
        }
        checked
    }

    #[test]
    fn a_negative_number_is_a_value_and_not_a_flag() {
        assert!(check_flags(&command_line(), &["codedgrad"]) > 100);
    }
}
