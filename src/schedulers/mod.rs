//! The round engine: events and the time in, actions out. No I/O, no clock, no randomness.
//!
//! [`engine`] decides when a round closes, what is summed with which weights, and when a step may
//! be applied; [`open_steps`] keeps the steps that are not decided, [`roster`] what is known of
//! each worker, `order_book` which orders it has, `orders` when answers count as arrived. The same
//! engine runs under a wall clock in the trainer, and under a virtual one there and in the
//! simulator ([`over_engine`](crate::sim::over_engine)).

mod agreement;
pub mod engine;
pub mod events;
pub mod open_steps;
mod order_book;
pub(crate) mod orders;
pub mod roster;

pub use engine::{Departures, Engine, OpenRound, PlannedScheme, Replan, RunPlan, Settings, States};
pub use events::{Action, EngineError, Input, Refusal, RoundReport, SumFailure, UnfitReason};
pub(crate) use order_book::OrderState;
pub use orders::VirtualClock;
pub use roster::Roster;
