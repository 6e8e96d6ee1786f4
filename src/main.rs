//! The `codedgrad` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    codedgrad::cli::main()
}
