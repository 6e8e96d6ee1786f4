//! How `--scheme auto` looks at a run: its two numbers, wherever they are told.

use crate::failure::Failure;
use crate::families;
use crate::limits::{ANY, count, refused};
use crate::units::at_least;
use codedgrad::train::Auto;
use serde::{Deserialize, Serialize};

/// Fewest steps of a block: one that is recorded, and one that gains by it.
const BLOCK_MIN: u64 = 2;

/// Steps of a block of `auto`, and how many of them are recorded uncoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoSteps {
    /// After so many steps it records uncoded ones again.
    pub replan_every: u64,
    /// So many of them are recorded.
    pub probe: u64,
}

impl AutoSteps {
    /// Refuses a probe that leaves nothing of its block.
    pub fn check(self) -> Result<(), Failure> {
        let Self { replan_every: block, probe } = self;
        count("--probe", probe, ANY)?;
        count("--replan-every", block, BLOCK_MIN..=u64::MAX)?;
        if probe >= block {
            return Err(refused(format!(
                "--probe {probe}: it must be less than --replan-every {block}, or nothing is left \
                 to gain"
            )));
        }
        Ok(())
    }

    /// What chooses the scheme.
    pub fn auto(self) -> Auto {
        let auto = Auto::default().registry(families::registry().clone());
        auto.probe(self.probe).replan_every(self.replan_every)
    }
}

/// Parses `--probe`.
pub fn probe() -> impl Fn(&str) -> Result<u64, String> + Clone {
    at_least(*ANY.start())
}

/// Parses `--replan-every`.
pub fn replan_every() -> impl Fn(&str) -> Result<u64, String> + Clone {
    at_least(BLOCK_MIN)
}
