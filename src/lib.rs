#![doc = include_str!("../README.md")]
//!
//! # Symbols
//!
//! | papers | here |
//! |---|---|
//! | `i` of `n` | [`ids::Worker`], the number of workers |
//! | `j` of `k` | [`ids::Share`], the number of shares |
//! | `t`, `g(t)` | [`ids::Round`], [`ids::Job`] |
//! | `B` | the rows of a [`codes::GradientCode`] |
//! | `a` | decode weights, [`codes::Decoder::weights`] |
//! | `s` | stragglers tolerated, [`codes::Facts::tolerance`] |
//! | `L`, `c` | load, [`codes::Facts::load`]; `c = n L` is the redundancy |
//! | `T` | delay, [`codes::sequential::SchemeFacts::delay`] |

// Test helpers that other crates share name this one from outside.
#[cfg(test)]
extern crate self as codedgrad;

pub mod codes;
pub mod delays;
pub mod gpu;
pub mod ids;
pub mod schedulers;
pub mod sim;
mod spelling;
pub mod train;
pub mod transport;
