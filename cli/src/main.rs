//! The `codedgrad` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    codedgrad_cli::main()
}
