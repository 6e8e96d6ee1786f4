//! What the programs `codedgrad` and `codedgrad-lab` need of a terminal and of a run's folder.
//!
//! It is made for these two and changes with them: programs of others call the library.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![allow(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "an error is a Failure, which says the exit status and why"
)]

pub mod clock;
pub mod events;
pub mod failure;
pub mod families;
pub mod folder;
pub mod found;
pub mod input;
pub mod itself;
pub mod layout;
pub mod legs;
pub mod limits;
pub mod lock;
pub mod output;
pub mod pictures;
pub mod pool;
pub mod program;
pub mod progress;
pub mod saying;
pub mod shared;
pub mod signals;
pub mod steps;
pub mod suspicious;
pub mod units;
