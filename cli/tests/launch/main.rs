//! `codedgrad run`: workers that are started, killed, stopped and started again, as processes.
// Processes are found in `/proc`.
#![cfg(target_os = "linux")]

mod ends;
mod faults;
mod final_ends;
mod hosts;
mod launched;
mod refused;
mod served;
mod unwritten;
mod worker;
