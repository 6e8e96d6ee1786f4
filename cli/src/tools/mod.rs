//! The commands: codes, simulations, plans, layouts, traces, what slows runs down, keys, runs of
//! others' trainers, and how a run is going.

mod as_trained;
mod called;
pub(crate) mod code;
pub(crate) mod doctor;
mod dumps;
mod http;
pub(crate) mod keygen;
#[cfg(unix)]
pub(crate) mod launch;
pub(crate) mod mesh;
#[cfg(feature = "pages")]
pub(crate) mod pages;
pub(crate) mod planner;
mod ranks;
mod recorded;
mod recording;
pub(crate) mod serve;
pub(crate) mod simulate;
mod source;
pub(crate) mod status;
mod times;
pub(crate) mod trace;
