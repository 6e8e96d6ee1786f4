//! `codedgrad completions` and `codedgrad man`: what shells and `man` know of the commands.

use crate::Cli;
use anyhow::Context;
use clap::Args;
use clap_complete::Shell;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::layout::help;
use codedgrad_shell::output::Output;
use codedgrad_shell::program::command_line;
use std::fs;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = help("\
Where they go: for bash, a file `codedgrad` in ~/.local/share/bash-completion/completions; for
zsh, a file `_codedgrad` in a folder of $fpath; for fish, `codedgrad.fish` in
~/.config/fish/completions.

Examples:
  codedgrad completions bash > codedgrad
  codedgrad completions zsh > _codedgrad"))]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = help("\
`man -l man/codedgrad.1` shows a page where it is; in share/man/man1 of a prefix in the manual's
path, `man codedgrad-run` finds it.

Examples:
  codedgrad man man/"))]
pub(crate) struct ManArgs {
    /// Folder for the pages; it is made if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line::<Cli>(), "codedgrad", &mut script);
    output.out.write_all(&script).or_work()
}

pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let folder = &args.folder;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string()).or_input()?;
    clap_mangen::generate_to(command_line::<Cli>(), folder)
        .with_context(|| folder.display().to_string())
        .or_work()
}
