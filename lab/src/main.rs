//! The `codedgrad-lab` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    codedgrad_lab::main()
}
