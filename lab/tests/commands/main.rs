//! The lab's program as its users meet it, by command and subject, and both programs where a test
//! needs both. `wrong_decoder` is a program of its own, with a code of its own.

mod berrut;
mod cluster;
mod command;
mod coordinated;
mod examples;
mod launched;
mod manners;
mod members;
mod pool;
mod predicted;
#[path = "../../../cli/tests/commands/processes.rs"]
mod processes;
#[path = "../../../cli/tests/commands/program.rs"]
mod program;
mod readers;
mod recorded;
mod records;
mod run_folders;
#[path = "../../../cli/tests/commands/serving.rs"]
mod serving;
mod tables;
mod tcp;
mod turns;
