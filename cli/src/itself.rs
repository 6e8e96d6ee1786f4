//! The program itself: its version, and how it is started again.

use std::env;
use std::ffi::{OsStr, OsString};
use std::process;

/// The version, and of which commit it was built (`build.rs`).
pub(crate) const VERSION: &str = env!("CODEDGRAD_VERSION");
/// The release, as results name it: that of a commit would make every commit's another.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

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
    pub(crate) fn of_process() -> Self {
        let program = env::current_exe().map_or_else(|_| "codedgrad".into(), Into::into);
        Self { program: vec![program], python: "python3".into() }
    }

    /// A start of this program, to which arguments are to be added.
    #[cfg_attr(
        not(any(unix, feature = "trainer")),
        expect(dead_code, reason = "nothing is started there")
    )]
    pub(crate) fn command(&self) -> process::Command {
        let (program, rest) = self.program.split_first().unzip();
        let mut command = process::Command::new(program.map_or(OsStr::new("codedgrad"), |it| it));
        command.args(rest.unwrap_or_default());
        command
    }
}
