//! Who calls, and what is said of it. A program of its own: two of these tests open 800 sockets at
//! the same time, and most hosts let a process have 1,024 files.

#[path = "../bare/mod.rs"]
mod bare;
mod callers;
