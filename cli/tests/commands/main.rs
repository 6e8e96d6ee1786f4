//! The program as its users meet it, by command and subject. One program: what takes long is to
//! link it. `launch` is one of its own, whose file is the worker that is launched; so is
//! `wrong_decoder`, which is a program with a code of its own.

mod berrut;
mod cluster;
mod command;
mod doctor;
mod examples;
mod import;
mod manners;
mod members;
mod mesh;
mod plan;
mod pool;
mod predicted;
mod processes;
mod program;
mod public_files;
mod readers;
mod records;
mod run_folders;
mod serving;
mod tables;
mod tcp;
mod ties;
mod trace;
mod turns;
