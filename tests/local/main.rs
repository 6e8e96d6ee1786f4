//! What needs no feature of the library and no socket, by subject: what is predicted and examined,
//! and runs over threads. One program: what takes long is to link it.

mod auto;
mod coded_kmeans;
mod doctor;
mod drained;
mod folded_moe;
mod hanging;
mod intervals;
mod mesh;
mod over_engine;
mod planner;
mod pool;
mod pool_over_engine;
mod simulator;
mod spent;
