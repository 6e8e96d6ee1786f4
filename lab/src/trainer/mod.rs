//! A small causal language model on candle, trained through the [`Aggregator`].
//!
//! candle's thread pool is global and spins: with several workers in one process, start the program
//! with `RAYON_NUM_THREADS=1` (the command line does so by itself).

mod attack;
mod corpus;
mod device;
mod fault;
mod gpt;
mod memory;
mod mixture;
mod process;
mod replica;
mod run;

pub use attack::{Attack, AttackKind};
pub use corpus::{Batches, Corpus, CorpusError, Tokens};
pub use device::{Compute, Precision, Processor};
pub use fault::{Fault, FaultKind, INJECTED};
pub use gpt::{GptConfig, GptConfigError};
pub use memory::Memory;
pub use mixture::Lanes;
pub use process::run_worker_in_place;
pub use replica::{Replica, ReplicaError, ReplicaState};
pub use run::{
    LocalRun, ObserverFor, RunStart, StepDone, StepRange, TrainError, WorkerHooks, calibrate,
    run_in_place, run_local, run_local_at, run_worker,
};

#[cfg(doc)]
use codedgrad::train::Aggregator;
