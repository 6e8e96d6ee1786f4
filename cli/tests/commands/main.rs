//! The program as its users meet it, by command and subject. One program: what takes long is to
//! link it. `launch` is one of its own, whose file is the worker that is launched.

mod code;
mod doctor;
mod doctor_files;
mod import;
mod manners;
mod mesh;
mod plan;
mod processes;
mod program;
mod public_files;
mod serving;
mod ties;
mod trace;
