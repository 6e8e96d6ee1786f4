//! The command line of the product: [`main`] runs it.
//!
//! `codedgrad run` starts a run of others' trainers, `serve` coordinates one, `status` tells how it
//! goes; `plan`, `simulate`, `doctor`, `trace`, `code` and `mesh` are tools that need the library
//! alone. The bundled GPT, injected stragglers and attacks are those of the crate `codedgrad-lab`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod tools;

pub use codedgrad_shell::failure::CommandFailure;
pub use codedgrad_shell::itself::ProgramCommand;
pub use codedgrad_shell::saying::log_by_environment;
#[doc(hidden)]
pub use tools::doctor::hint;

use anyhow::anyhow;
use clap::{Parser, Subcommand};
use codedgrad::codes::registry::Registry;
use codedgrad_shell::failure::{Failure, OrWork as _};
use codedgrad_shell::itself::VERSION;
use codedgrad_shell::output::{Notes, Output};
use codedgrad_shell::program::{self, EXIT_STATUS, Line};
use codedgrad_shell::saying::MessageArgs;
use codedgrad_shell::{families, layout};
use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// What the program is.
const LONG_ABOUT: &str = "Gradient coding: data-parallel training at the speed of the fast \
    workers, without losing a sample.\n\n\
    Each worker computes a little more than its share of a batch, so that the exact gradient can \
    be put together from any fast enough subset of them. `codedgrad plan` says from recorded \
    times whether that pays, `codedgrad run` starts a run of a program of yours, `codedgrad \
    doctor` says what slows one down.";

#[derive(Debug, Parser)]
#[command(
    name = "codedgrad",
    bin_name = "codedgrad",
    version = VERSION,
    about = "Gradient coding: data-parallel training at the speed of the fast workers, without \
        losing a sample",
    long_about = layout::help(LONG_ABOUT),
    after_help = EXIT_STATUS,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
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
    /// Launch a coordinator and N workers for your script, and restart workers that crash
    #[cfg(unix)]
    Run(Box<tools::launch::LaunchArgs>),
    /// Run only the coordinator; you start the workers (for example PyTorch scripts)
    Serve(tools::serve::ServeArgs),
    #[command(flatten)]
    Tool(Tool),
}

/// Where a command is that was here once, if a line asks for one, the program's name first.
fn moved(arguments: &[OsString]) -> Result<(), Failure> {
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let command = words.find(|word| !word.starts_with('-')).unwrap_or_default();
    let install = "`cargo install --path lab`, in a clone of the project, installs that program";
    match command {
        "train" | "worker" | "berrut" => Err(Failure::Input(anyhow!(
            "`codedgrad {command}` is `codedgrad-lab {command}` now: {install} (Python's package \
             has none)"
        ))),
        "coordinator" => Err(Failure::Input(anyhow!(
            "there is no `codedgrad coordinator`: `codedgrad run` starts a run of a program of \
             yours with its coordinator, `codedgrad serve` the coordinator alone; the lab's GPT \
             is such a program, `codedgrad-lab worker`: {install}"
        ))),
        _ => Ok(()),
    }
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
    Doctor(tools::doctor::DoctorLine),
    /// Record, import and measure delays of workers
    Trace(tools::trace::TraceArgs),
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
    program::of_its_own();
    ExitCode::from(execute(env::args_os()))
}

/// Runs the command line of this process for a program with schemes of its own: they are listed,
/// planned with, simulated and coordinated like the others.
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
    execute_as(&ProgramCommand::of_process(), arguments)
}

/// The same for a program whose executable is not its own, such as a Python that has loaded it:
/// where a command starts this program again, it does so as it is told.
#[must_use]
pub fn execute_as(itself: &ProgramCommand, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Err(failure) = moved(&arguments) {
        return program::failed(failure);
    }
    let line = program::parse::<Cli>(arguments).map_err(|error| program::explained(error, None));
    program::execute(line, |cli, output| run_command(cli.command, itself, output))
}

/// Runs the command line of a tool, the program's name first: what the command would print goes to
/// `out`, what it would say on standard error (warnings, notes) to `notes`, and no bar is drawn.
/// It may be called from several threads at once.
///
/// # Errors
/// [`CommandFailure`] where there is no answer, and for commands that are no tools: they print
/// while they run. A claim that [`execute`] ends with 1 for, since it does not hold, is an answer.
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
) -> Result<(), CommandFailure> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    moved(&arguments)?;
    let mut output = Output { out, notes: Notes::Kept(notes) };
    let cli = match program::parse::<Cli>(arguments) {
        Ok(cli) => cli,
        Err(error) if error.exit_code() == 0 => {
            return Ok(write!(output.out, "{error}").or_work()?);
        }
        Err(error) => return Err(error.into()),
    };
    match cli.command {
        Command::Tool(tool) => match tool.run(&mut output) {
            // The answer is there, and is no.
            Ok(()) | Err(Failure::Said(_)) => Ok(()),
            Err(failure) => Err(failure.into()),
        },
        _ => Err(Failure::Input(anyhow!("expected a tool, such as `simulate`")).into()),
    }
}

impl Tool {
    fn run(&self, output: &mut Output<'_>) -> Result<(), Failure> {
        let done = match self {
            Self::Code(args) => tools::code::run(args, output),
            Self::Doctor(line) => line.run(output),
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
#[cfg_attr(not(unix), expect(unused_variables, reason = "nothing is started there"))]
fn run_command(
    command: Command,
    itself: &ProgramCommand,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    match command {
        #[cfg(unix)]
        Command::Run(args) => tools::launch::run(&args, itself),
        Command::Serve(args) => tools::serve::run(&args, output),
        Command::Tool(tool) => tool.run(output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_number_is_a_value_and_not_a_flag() {
        let line = program::command_line::<Cli>();
        assert!(program::check_flags::<Cli>(&line, &["codedgrad"]) > 100);
    }
}
