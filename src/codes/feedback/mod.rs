//! Exact schemes that assign by which workers were fast: redundancy only where a worker is late.
//!
//! They fix nothing in advance. Every worker must be able to read every sample.
//!
//! Such a scheme hands out its tasks one by one. Its outlook says whether a round can still close,
//! and what an erased or dead worker held is offered to the next idle worker. A worker's lateness
//! is charged once per round.

mod claims;
pub(super) mod defer;
pub(super) mod queue;
pub(super) mod ring;

pub use defer::{Defer, DeferParameters};
pub use queue::Queue;
pub use ring::Ring;

use super::ParameterError;
use super::sequential::SchemeFacts;
use crate::ids::{Cut, Part, Share};

/// Pieces of the largest batch.
const PIECES_MAX: usize = 1 << 24;

/// How many pieces there are if every worker has `each`.
fn pieces(scheme: &'static str, workers: usize, each: usize) -> Result<usize, ParameterError> {
    let pieces = workers.saturating_mul(each);
    if pieces > PIECES_MAX {
        let problem = format!(
            "{each} pieces for each of {workers} workers are too many: at most {}",
            PIECES_MAX / workers.max(1)
        );
        return Err(ParameterError::Conditions { scheme, problem });
    }
    Ok(pieces)
}

/// A batch cut into equal pieces, one part each.
fn equal_parts(
    workers: usize,
    pieces: usize,
    units: Option<u32>,
) -> Result<Vec<[Part; 1]>, ParameterError> {
    if workers == 0 {
        return Err(ParameterError::NoWorkers);
    }
    let cut = Cut::new(units.unwrap_or(pieces as u32), pieces as u32)?;
    Ok((0..cut.shares())
        .map(|piece| [Part { units: cut.share(Share(piece)), coefficient: 1.0 }])
        .collect())
}

/// The facts of a feedback scheme whose workers pull their tasks; it bears all but one of them.
fn facts(workers: usize, units: u32, delay: usize, load: f64) -> SchemeFacts {
    SchemeFacts {
        delay,
        tolerance: workers - 1,
        partial: true,
        pulls: true,
        plain: true,
        ..SchemeFacts::new(workers, units, load)
    }
}
