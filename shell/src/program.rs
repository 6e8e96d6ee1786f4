//! How a program reads its command line, runs what it asks for, and ends.

use crate::failure::{CommandFailure, Failure, OrWork as _, is_closed};
use crate::layout;
use crate::output::{self, Notes, Output, Stdout};
use crate::saying::MessageArgs;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::io::{self, Write};
#[cfg(unix)]
use std::sync::Arc;

/// The exit statuses of every command, for the end of a program's help.
pub const EXIT_STATUS: &str = "Exit status: 0 done, 1 failed at work, 2 bad usage or input, 4 \
    another process took this worker's place, 130 and 143 interrupted by Ctrl-C and SIGTERM, \
    after saving.";

/// What a command line of a program asks for.
pub trait Line: CommandFactory + FromArgMatches {
    /// How much is said beside the answer.
    fn saying(&self) -> &MessageArgs;
}

/// Prepares a process that is a program of its own.
pub fn of_its_own() {
    // A file that reaches `ulimit -f` is then an error of that file, not the end without a word.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// All commands, whose `-h` are summaries.
pub fn command_line<L: Line>() -> clap::Command {
    L::command().mut_subcommands(|command| takes_negative(layout::summarised(command)))
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

/// What a command line asks for, the program's name first.
pub fn parse<L: Line>(arguments: impl IntoIterator<Item = OsString>) -> Result<L, clap::Error> {
    let mut command = command_line::<L>();
    let mut found = command.try_get_matches_from_mut(arguments)?;
    L::from_arg_matches_mut(&mut found).map_err(|error| error.format(&mut command))
}

/// An error with what can be done instead, where a flag was given with `--resume` that a resumed
/// run does not take; `changeable` are those that it takes.
pub fn explained(mut error: clap::Error, changeable: Option<&str>) -> clap::Error {
    let names_resume = |kind| {
        error.get(kind).is_some_and(|value| match value {
            ContextValue::String(name) => name.starts_with("--resume"),
            ContextValue::Strings(names) => names.iter().any(|name| name.starts_with("--resume")),
            _ => false,
        })
    };
    let of_resume = [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().any(names_resume);
    if error.kind() == ErrorKind::ArgumentConflict && of_resume {
        let mut tip = "a resumed run keeps the settings in its folder".to_owned();
        if let Some(flags) = changeable {
            tip += &format!("; you can change only {flags}");
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Runs what a command line asks for, and gives back the exit status.
pub fn execute<L: Line>(
    line: Result<L, clap::Error>,
    run: impl FnOnce(L, &mut Output<'_>) -> Result<(), Failure>,
) -> u8 {
    let line = match line {
        Ok(line) => line,
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
    let mut out = Stdout::open();
    let done = line.saying().set_up().and_then(|()| {
        let output = &mut Output { out: &mut out, notes: Notes::Stderr };
        let done = run(line, output);
        // What was found is shown even where the command fails by it.
        let shown = output.out.flush().or_work();
        done.and(shown)
    });
    out.give_up();
    match done {
        Ok(()) => 0,
        Err(Failure::Said(status)) => status,
        // A reader that has left does not ask how it ended.
        Err(Failure::Work(error)) if is_closed(&error) => 0,
        Err(failure) => failed(failure),
    }
}

/// Says why a command has failed, and gives back the exit status.
pub fn failed(failure: Failure) -> u8 {
    let ended = CommandFailure::from(failure);
    output::alert!("error: {}", ended.message);
    ended.status
}

/// How many flags take a value, of a command that is called by these words and of those below it;
/// each of them takes `-1` for one.
///
/// # Panics
/// Where one takes it for a flag.
#[doc(hidden)]
pub fn check_flags<L: Line>(command: &clap::Command, words: &[&str]) -> usize {
    let mut checked = 0;
    let takes_value = |argument: &&clap::Arg| argument.get_action().takes_values();
    for flag in command.get_arguments().filter(takes_value).filter_map(clap::Arg::get_long) {
        let flag = format!("--{flag}");
        let line = words.iter().copied().chain([flag.as_str(), "-1"]);
        if let Err(error) = command_line::<L>().try_get_matches_from(line) {
            assert_ne!(error.kind(), ErrorKind::UnknownArgument, "{words:?} {flag}: {error}");
        }
        checked += 1;
    }
    for below in command.get_subcommands() {
        checked += check_flags::<L>(below, &[words, &[below.get_name()]].concat());
    }
    checked
}
