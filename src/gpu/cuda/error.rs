//! What can go wrong on a device.

use crate::gpu::{CombineError, GradientError};
use thiserror::Error;

/// What a device cannot do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not there.
    #[error("this machine has no CUDA driver (libcuda.so.1)")]
    NoDriver,
    /// The compiler's library is not there, and these kernels were not compiled here before.
    #[error(
        "kernels for {arch} are to be compiled, but libnvrtc.so.12 is not found; `pip install \
         nvidia-cuda-nvrtc-cu12` has it"
    )]
    NoCompiler {
        /// For which architecture.
        arch: String,
    },
    /// The kernels cannot be compiled.
    #[error("kernels for {arch}: {log}")]
    Compile {
        /// For which architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// The driver refused something.
    #[error("CUDA: {reason}")]
    Driver {
        /// Its words.
        reason: String,
    },
    /// A term that lies on another device than the result.
    #[error("term {term} lies on another device")]
    Elsewhere {
        /// Which term.
        term: usize,
    },
    /// A vector whose device failed before.
    #[error("the vector is lost: its device failed before")]
    Gone,
    /// Elements beyond a vector's end.
    #[error("elements {start}..{end} of a vector of {length}")]
    Range {
        /// First element asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements there are.
        length: usize,
    },
    /// Vectors that do not fit together.
    #[error(transparent)]
    Combine(#[from] CombineError),
}

impl From<CudaError> for GradientError {
    fn from(error: CudaError) -> Self {
        Self::Device { reason: error.to_string() }
    }
}
