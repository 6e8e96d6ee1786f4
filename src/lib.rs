//! Gradient coding: data-parallel training at the speed of its fast workers, without losing a
//! single sample of the gradient.
//!
//! In synchronous training one slow worker makes every GPU wait, and one that dies restarts the
//! job. Here each worker does a little redundant work, combined by a linear code, so that the
//! *exact* sum of all partial gradients can be decoded from any fast enough subset of them. A
//! trainer replaces "all-reduce the gradients" by a loop over events, and knows nothing of codes:
//!
//! ```
//! use codedgrad::train::{Aggregator, AggregatorError, Coordinator, Event};
//!
//! fn train(mut aggregator: Aggregator) -> Result<f32, AggregatorError> {
//!     let mut model = 0.0f32;
//!     while let Some(event) = aggregator.next_event()? {
//!         match event {
//!             Event::Compute(mut task) => {
//!                 while let Some(part) = task.next_part() {
//!                     // coefficient x the gradient of these samples; the message begins as zeros
//!                     let gradient: f32 = part.samples.map(|sample| model - sample as f32).sum();
//!                     task.message()[0] = part.coefficient as f32 * gradient;
//!                 }
//!                 task.submit(vec![])?;
//!             }
//!             Event::Apply(step) => model -= 0.01 * step.gradient()[0],
//!             Event::Skip(refused) => eprintln!("step {} had no finite gradient", refused.index),
//!             Event::Provide(request) => request.reply(vec![vec![model]]),
//!             Event::Resync(state) => model = state.vectors[0][0],
//!         }
//!     }
//!     Ok(model)
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // two of four workers hold each half of a batch of 4 units of 8 samples: one may be late
//!     let run = Coordinator::builder("groups:s=1").workers(4).steps(100);
//!     let run = run.length(1).unit_samples(8);
//!     let (coordinator, workers) = run.local()?;
//!     let begin = |worker| std::thread::spawn(|| train(worker));
//!     let threads: Vec<_> = workers.into_iter().map(begin).collect();
//!     coordinator.run(&mut ())?;
//!     for thread in threads {
//!         assert!((thread.join().unwrap()? - 15.5).abs() < 0.01); // the mean of 0 to 31
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Over TCP, `run.serve(address, security)?.run(&mut ())` is the coordinator, and each worker's
//! process has its aggregator by [`train::Aggregator::join`] or [`train::Aggregator::from_env`].
//!
//! | to | begin with |
//! |---|---|
//! | train, over threads or TCP | [`train`]: [`train::Coordinator`], [`train::Aggregator`] |
//! | write a scheme as a text, such as `groups:s=1` | [`codes::SchemeSpec`] |
//! | look at a code, or make one of your own | [`codes::GradientCode`], [`codes::verify`] |
//! | see what a scheme does on delays of yours | [`sim`], [`delays`] |
//! | ask whether coding pays, and with what | [`sim::planner`] |
//! | know what is left to code over where models are parallel too | [`mesh`] |
//! | keep gradients on GPUs | [`gpu`] |
//! | write a worker in another language | [`transport::wire`] |
//!
//! The repository's README.md tells of the command line, of all schemes and of when *not* to code;
//! its folder `docs/` of measurements, launchers, GPUs and the protocol.
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

mod cells;
pub mod codes;
pub mod delays;
pub mod doctor;
pub mod files;
pub mod gpu;
pub mod ids;
pub mod mesh;
pub mod passes;
pub mod run;
mod scalars;
pub mod schedulers;
pub mod sim;
mod spelling;
pub mod sums;
pub mod train;
pub mod transport;
