#![doc = "codedgrad"]
pub mod codes;
pub mod delays;
pub mod gpu;
pub mod ids;
pub mod schedulers;
pub mod train;
pub mod transport;
