//! Formats of vectors, as NCCL numbers them.

use crate::gpu::cuda::{DeviceSource, DeviceTarget};
use std::ffi::c_int;

/// NCCL's numbers of formats.
const F16: c_int = 6;
const F32: c_int = 7;
const BF16: c_int = 9;

pub(super) fn format_of(vector: &DeviceTarget<'_>) -> c_int {
    match vector {
        DeviceTarget::F32(_) => F32,
        DeviceTarget::Bf16(_) => BF16,
        DeviceTarget::F16(_) => F16,
    }
}

pub(super) fn format_of_source(vector: &DeviceSource<'_>) -> c_int {
    match vector {
        DeviceSource::F32(_) => F32,
        DeviceSource::Bf16(_) => BF16,
        DeviceSource::F16(_) => F16,
    }
}

/// Bytes of an element.
pub(super) fn bytes_of(vector: &DeviceTarget<'_>) -> usize {
    if format_of(vector) == F32 { 4 } else { 2 }
}

/// What all vectors have in common with the first: length and format.
pub(super) fn first_of(vectors: &[DeviceTarget<'_>]) -> (usize, c_int) {
    (vectors[0].len(), format_of(&vectors[0]))
}
