//! Why a command ends early, with which status and in what words.

use crate::output;
use anyhow::anyhow;
use std::fmt;

/// What stands for a reason that was told already.
const SAID: &str = "it has said why";

/// What ends a command early.
#[derive(Debug)]
pub enum Failure {
    /// Usage or input that cannot be right: exit status 2.
    Input(anyhow::Error),
    /// Work that could not be done: exit status 1.
    Work(anyhow::Error),
    /// Another process does this one's work: exit status 4.
    Replaced(anyhow::Error),
    /// What it is was said already: this exit status.
    Said(u8),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) | Self::Work(error) | Self::Replaced(error) => {
                write!(f, "{error:#}")
            }
            Self::Said(_) => f.write_str(SAID),
        }
    }
}

/// Marks errors of what the user gave.
pub trait OrInput<T> {
    /// The error as one of what the user gave.
    fn or_input(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrInput<T> for Result<T, E> {
    fn or_input(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Input(error.into()))
    }
}

/// Marks errors of what the program does.
pub trait OrWork<T> {
    /// The error as one of what the program does.
    fn or_work(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrWork<T> for Result<T, E> {
    fn or_work(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Work(error.into()))
    }
}

/// Why a command line gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandFailure {
    /// What the program would have ended with: 1 failed at work, 2 bad usage or input.
    pub status: u8,
    /// The error and its causes, without the name of the program.
    pub message: String,
}

impl From<Failure> for CommandFailure {
    fn from(failure: Failure) -> Self {
        let (error, status) = match failure {
            Failure::Input(error) => (error, 2),
            Failure::Work(error) => (error, 1),
            Failure::Replaced(error) => (error, 4),
            Failure::Said(status) => (anyhow!(SAID), status),
        };
        Self { status, message: told(&error) }
    }
}

impl From<clap::Error> for CommandFailure {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        // Who calls a function reads another manual than the command's.
        let end = ["\n\nUsage:", "\n\nFor more information"].map(|mark| text.find(mark));
        let text = end.into_iter().flatten().min().map_or(&*text, |end| &text[..end]);
        let message = text.strip_prefix("error: ").unwrap_or(text).trim_end().to_owned();
        Self { status: u8::try_from(error.exit_code()).unwrap_or(2), message }
    }
}

/// Whether the reader of the output has left.
pub fn is_closed(error: &anyhow::Error) -> bool {
    // Connections break too, but such an error says of which it is.
    let written = error.chain().next().and_then(|error| error.downcast_ref::<std::io::Error>());
    written.is_some_and(output::is_closed)
}

/// An error with its causes, but those that it already tells of, in the program's words.
pub fn told(error: &anyhow::Error) -> String {
    let text = error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    });
    let text = output::in_flags(&text).into_owned();
    match limit_of_system(&text) {
        Some(limit) if !text.contains(limit) => {
            format!("{text}; `{limit}` says how much is allowed")
        }
        _ => text,
    }
}

/// The command that tells the limit of the system which an error speaks of: too many open files of
/// this process, or a file too large.
fn limit_of_system(error: &str) -> Option<&'static str> {
    let limits = [("(os error 24)", "ulimit -n"), ("(os error 27)", "ulimit -f")];
    let limit = limits.into_iter().find(|(number, _)| cfg!(unix) && error.contains(number));
    limit.map(|(_, command)| command)
}
