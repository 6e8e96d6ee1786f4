//! Training with coded aggregation.
//!
//! [`Coordinator::builder`] is told a run once and makes its coordinator, over threads or over TCP.
//! A trainer sees [`Aggregator`]: it is handed events ("compute these samples with this
//! coefficient", "apply this gradient") and knows nothing of codes. [`Coordinator`] runs the round
//! engine behind it, on a wall clock or a virtual one ([`RunClock`]), and shows every step to an
//! [`Observer`].

mod aggregator;
mod auto;
mod builder;
mod coordinator;
#[cfg(feature = "cuda")]
mod device_adamw;
#[cfg(all(test, feature = "cuda"))]
#[path = "../../tests/devices/training.rs"]
mod on_devices;
mod optimizer;
mod policy;
mod run_clock;
mod sum_tree;

pub use crate::schedulers::VirtualClock;
pub use aggregator::{
    Aggregator, AggregatorError, CommittedStep, ComputeTask, Event, OwnedEvent, ProvideRequest,
    Resync, Samples, SkippedStep,
};
#[cfg(feature = "tcp")]
pub use aggregator::{JoinBuilder, JoinError};
pub use auto::{AUTO, Auto, AutoSteps};
pub use builder::{BuildError, Builder};
#[cfg(feature = "tcp")]
pub use builder::{OpenPort, ServedRun};
pub use coordinator::{
    Coordinator, DecodeRecord, DoubtRecord, Erasure, Flow, Incident, IncidentKind, Judge,
    JudgedGradient, MissingWorker, Observer, Outcome, PlanRecord, Progress, RoundRecord, RunError,
    SpentRecord, StepRecord, Stopper, UnderRecord, WaitingRound,
};
#[cfg(feature = "cuda")]
pub use device_adamw::DeviceAdamW;
pub use optimizer::{AdamW, AdamWConfig};
pub use policy::{Policy, SchemeChoice, SchemeInUse};
pub use run_clock::RunClock;
