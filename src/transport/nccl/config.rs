//! NCCL's numbers and structs.

use std::ffi::{c_char, c_int};
use std::ptr::null;

/// NCCL's numbers, as in `nccl.h`. Results are numbers here, since newer libraries have more of
/// them.
pub(super) const SUCCESS: c_int = 0;
pub(super) const INVALID_ARGUMENT: c_int = 4;
pub(super) const IN_PROGRESS: c_int = 7;
pub(super) const SUM: c_int = 0;

/// `ncclUniqueId`.
#[repr(C)]
pub(super) struct Id(pub(super) [u8; 128]);

/// `ncclConfig_t` of 2.17, which is the beginning of all later ones; `size` and `version` tell NCCL
/// so. What is its padding has a value, since it is a number in later ones.
#[repr(C)]
pub(super) struct Config {
    pub(super) size: usize,
    magic: u32,
    version: u32,
    pub(super) blocking: c_int,
    undefined: [c_int; 3],
    network: *const c_char,
    share: [c_int; 2],
}

impl Config {
    /// Calls return at once, so that they can be given up.
    pub(super) fn nonblocking() -> Self {
        let undefined = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21700,
            blocking: 0,
            undefined: [undefined; 3],
            network: null(),
            share: [undefined; 2],
        }
    }
}
