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
mod events;
mod families;
mod folder;
mod found;
mod layout;
mod legs;
mod limits;
mod lock;
mod output;
mod pictures;
mod port;
mod progress;
#[cfg(feature = "trainer")]
mod run;
mod shared;
mod signals;
mod steps;
#[cfg(any(unix, feature = "trainer"))]
mod supervise;
mod tools;
mod units;

use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use codedgrad::codes::registry::Registry;
use output::{Logs, Notes, Output, Stdout};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::process::{self, ExitCode};
#[cfg(unix)]
use std::sync::Arc;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

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

/// The version, and of which commit it was built (`build.rs`).
const VERSION: &str = env!("CODEDGRAD_VERSION");
/// The release, as results name it: that of a commit would make every commit's another.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Parser)]
#[command(
    name = "codedgrad",
    bin_name = "codedgrad",
    version = VERSION,
    about = "Gradient coding: data-parallel training at the speed of the fast workers, without \
        losing a sample",
    long_about = layout::help(LONG_ABOUT),
    after_help = "Exit status: 0 done, 1 failed at work, 2 bad usage or input, 4 replaced by \
        another process, 130 and 143 interrupted by Ctrl-C and SIGTERM, after saving."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    saying: Saying,
}

/// Above `--quiet` and `--verbose` in the help of every command.
const MESSAGES: &str = "Messages";

/// How much is said beside what was asked for.
#[derive(Debug, Args)]
struct Saying {
    /// Say less: no progress and no hints, only results, warnings and errors; of `run`, the lines
    /// of one worker alone
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = MESSAGES)]
    quiet: bool,
    /// Log more: what is done (-v), or all of it (-vv); RUST_LOG, such as codedgrad=debug, says it
    /// exactly
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = MESSAGES)]
    verbose: u8,
}

impl Saying {
    /// Sets up what this process logs. It may run several command lines: the first says of which
    /// places logs are kept.
    fn set_up(&self) -> Result<(), Failure> {
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
        .with_ansi(std::io::stderr().is_terminal())
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

/// What ends a command early.
#[derive(Debug)]
enum Failure {
    /// Usage or input that cannot be right: exit status 2.
    Input(anyhow::Error),
    /// Work that could not be done: exit status 1.
    Work(anyhow::Error),
    /// Another process does this one's work: exit status 4.
    #[cfg_attr(not(feature = "trainer"), expect(dead_code, reason = "only workers are replaced"))]
    Replaced(anyhow::Error),
    /// What it is was said already: this exit status.
    Said(u8),
}

/// How the program that runs is started again by itself, for the processes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Itself {
    /// The program and what comes before the arguments of a command line.
    pub program: Vec<OsString>,
    /// The Python that runs the scripts of `codedgrad run`.
    pub python: OsString,
}

impl Itself {
    /// This process's executable, and `python3`.
    fn of_process() -> Self {
        let program = env::current_exe().map_or_else(|_| "codedgrad".into(), Into::into);
        Self { program: vec![program], python: "python3".into() }
    }

    /// A start of this program, to which arguments are to be added.
    #[cfg_attr(
        not(any(unix, feature = "trainer")),
        expect(dead_code, reason = "nothing is started there")
    )]
    fn command(&self) -> process::Command {
        let (program, rest) = self.program.split_first().unzip();
        let mut command = process::Command::new(program.map_or(OsStr::new("codedgrad"), |it| it));
        command.args(rest.unwrap_or_default());
        command
    }
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
/// at work, 2 bad usage or input, 4 replaced by another process, 130 and 143 ended by Ctrl-C and
/// SIGTERM. For programs in other languages that carry the commands; [`main`] is for those that are
/// nothing else.
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
    Cli::command().mut_subcommands(layout::summarised)
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

/// Why a command line gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// What [`execute`] would have given back: 1 failed at work, 2 bad usage or input.
    pub status: u8,
    /// The error and its causes, without the name of the program.
    pub message: String,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        let (error, status) = match failure {
            Failure::Input(error) => (error, 2),
            Failure::Work(error) => (error, 1),
            Failure::Replaced(error) => (error, 4),
            Failure::Said(status) => (anyhow!("it has said why"), status),
        };
        Self { status, message: told(&error) }
    }
}

impl From<clap::Error> for Ended {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        // Who calls a function reads another manual than the command's.
        let end = ["\n\nUsage:", "\n\nFor more information"].map(|mark| text.find(mark));
        let text = end.into_iter().flatten().min().map_or(&*text, |end| &text[..end]);
        let message = text.strip_prefix("error: ").unwrap_or(text).trim_end().to_owned();
        Self { status: u8::try_from(error.exit_code()).unwrap_or(2), message }
    }
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

/// Whether the reader of the output has left.
fn is_closed(error: &anyhow::Error) -> bool {
    // Connections break too, but such an error says of which it is.
    let written = error.chain().next().and_then(|error| error.downcast_ref::<std::io::Error>());
    written.is_some_and(output::is_closed)
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

/// An error with its causes, but those that it already tells of.
fn told(error: &anyhow::Error) -> String {
    let text = error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    });
    match limits::of_system(&text) {
        Some(limit) if !text.contains(limit) => {
            format!("{text}; `{limit}` says how much is allowed")
        }
        _ => text,
    }
}
