//! `codedgrad run`: workers that are started, killed, stopped and started again, as processes.
#![cfg(unix)]

mod ends;
mod faults;
mod hosts;
mod launched;
mod refused;
mod worker;
