//! Runs over sockets, by subject. One program: what takes long is to link it. `strangers` is one of
//! its own, for it opens more files than all of these may together.

mod abuse;
mod agreement;
#[path = "../bare/mod.rs"]
mod bare;
mod front_door;
mod fuzz_corpus;
mod integers;
mod learned;
mod leaving;
mod lies;
mod python_worker;
mod reconnects;
mod tampering;
