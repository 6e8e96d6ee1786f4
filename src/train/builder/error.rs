//! Why no run can be made of what was told.

use crate::codes::ParameterError;
use crate::delays::DelayError;
use crate::run::ConfigError;
#[cfg(feature = "tcp")]
use crate::transport::tcp::TcpError;
use thiserror::Error;

/// What a [`Builder`](super::Builder) was told makes no run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The scheme's text, or its parameters for so many workers or units.
    #[error(transparent)]
    Scheme(#[from] ParameterError),
    /// Jobs, models and batches per step that do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Delays that cannot be had.
    #[error(transparent)]
    Delays(#[from] DelayError),
    /// Something that has no default.
    #[error("{what} is not told: say {example}")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// How it is told.
        example: &'static str,
    },
    /// A number outside its range.
    #[error("{what} is {value}: it must be from {least} to {most}")]
    Number {
        /// Which number.
        what: &'static str,
        /// What was told.
        value: u64,
        /// The smallest that is right.
        least: u64,
        /// The largest that is right.
        most: u64,
    },
    /// A number that is not finite, or not of the right sign.
    #[error("{what} is {value}: it must be a finite number {right}")]
    Real {
        /// Which number.
        what: &'static str,
        /// What was told.
        value: f64,
        /// What is right.
        right: &'static str,
    },
    /// Fewer workers than the run has are to be enough, under a scheme that cannot be planned
    /// again.
    #[error("min_workers is {min_workers}, but {scheme} mixes data and cannot go on with others")]
    NotReplanned {
        /// The scheme.
        scheme: String,
        /// Workers that were to be enough.
        min_workers: usize,
    },
    /// Data are to be mixed, by workers that cannot.
    #[error(
        "{scheme} mixes the data of several units, which only `codedgrad-lab train` can: take a \
         scheme that combines gradients, such as groups:s=1 or vote:s=1,b=1"
    )]
    Mixture {
        /// The scheme.
        scheme: String,
    },
    /// Results are mixtures, and no judge makes a gradient of them.
    #[error(
        "only a judge can make a gradient of the mixed results of {scheme}: say .judged_by(..), or \
         take a scheme that combines gradients, such as groups:s=1"
    )]
    NoJudge {
        /// The scheme.
        scheme: String,
    },
    /// A number format that vectors do not have on the wire.
    #[cfg(feature = "tcp")]
    #[error("wire is F16: over TCP it must be F32 or Bf16")]
    Wire,
    /// Nowhere to listen.
    #[cfg(feature = "tcp")]
    #[error("{text:?} is no address to listen at: write HOST:PORT, for example 127.0.0.1:0")]
    Address {
        /// What was told.
        text: String,
    },
    /// The port.
    #[cfg(feature = "tcp")]
    #[error(transparent)]
    Tcp(#[from] TcpError),
}
