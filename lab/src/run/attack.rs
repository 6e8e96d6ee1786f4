//! Workers that return wrong results on purpose: who they are, and how many of them a step found
//! out.

use crate::trainer::{AttackKind, Lanes};
use anyhow::anyhow;
use clap::{Args, ValueEnum};
use codedgrad::ids::Worker;
use codedgrad::train::StepRecord;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::families::RunScheme;
use codedgrad_shell::units::parse_workers;
use rand::SeedableRng;
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// What Byzantine workers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AttackArg {
    /// Their message times -10
    Flip,
    /// Zeros
    Zeros,
    /// Their message and normal noise of 10 times its rms
    Gauss,
}

/// How the lanes of mixtures are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LanesArg {
    /// Windows with many equal tokens are mixed with each other
    Alike,
    /// As they are drawn
    Drawn,
}

/// Flags about workers that return wrong results.
#[derive(Debug, Args)]
pub(crate) struct AttackArgs {
    /// Let workers return wrong results in every step, to see which are found (`vote`, `sbacc`) and
    /// what the others come to
    #[arg(long, value_enum, help_heading = "Checks and faults", hide_short_help = true)]
    attack: Option<AttackArg>,
    /// Which workers do so, such as 0,5-6 [default of `train`: drawn, as many as the schemes can
    /// find out, at least one]
    #[arg(
        long,
        value_name = "LIST",
        requires = "attack",
        help_heading = "Checks and faults",
        hide_short_help = true
    )]
    attackers: Option<String>,
}

/// A flag about schemes that mix data.
#[derive(Debug, Args)]
pub(crate) struct LanesArgs {
    /// Which windows of text `bacc` and `sbacc` mix
    #[arg(
        long,
        value_enum,
        default_value_t = LanesArg::Alike,
        help_heading = "Checks and faults",
        hide_short_help = true
    )]
    lanes: LanesArg,
}

impl LanesArgs {
    pub(crate) fn lanes(&self) -> Lanes {
        match self.lanes {
            LanesArg::Alike => Lanes::Alike,
            LanesArg::Drawn => Lanes::Drawn,
        }
    }
}

impl AttackArgs {
    pub(crate) fn kind(&self) -> Option<AttackKind> {
        self.attack.map(|attack| match attack {
            AttackArg::Flip => AttackKind::Flip,
            AttackArg::Zeros => AttackKind::Zeros,
            AttackArg::Gauss => AttackKind::Gauss,
        })
    }

    pub(crate) fn names_attackers(&self) -> bool {
        self.attackers.is_some()
    }

    /// The workers that are named, or drawn ones.
    pub(crate) fn attackers(
        &self,
        schemes: &[RunScheme],
        workers: usize,
        seed: u64,
    ) -> Result<Vec<Worker>, Failure> {
        let Some(list) = &self.attackers else {
            let most = schemes.iter().filter_map(|scheme| Some(scheme.fixed()?.byzantine())).max();
            let count =
                if self.attack.is_some() { most.unwrap_or(0).max(1).min(workers) } else { 0 };
            let mut drawn: Vec<Worker> =
                sample(&mut ChaCha8Rng::seed_from_u64(seed), workers, count)
                    .iter()
                    .map(|i| Worker(i as u32))
                    .collect();
            drawn.sort_unstable();
            return Ok(drawn);
        };
        let set = parse_workers(list, workers)
            .map_err(|problem| Failure::Input(anyhow!("--attackers {list}: {problem}")))?;
        Ok(set.iter().collect())
    }
}

/// How Byzantine workers and honest ones were judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DetectionCounts {
    /// Byzantine workers whose results were left out for that.
    pub(crate) located: usize,
    /// Byzantine workers that had answered in time and were not noticed.
    pub(crate) missed: usize,
    /// Honest workers whose results were left out as wrong.
    pub(crate) accused: usize,
}

impl DetectionCounts {
    /// Of one step, where a worker is wrong or looked for.
    pub(crate) fn of(attackers: &[Worker], record: &StepRecord) -> Self {
        let (located, accused): (Vec<Worker>, Vec<Worker>) =
            record.doubts.wrong.iter().partition(|worker| attackers.contains(worker));
        let answered =
            |worker: &&Worker| record.rounds.iter().any(|round| round.has_answer_of(**worker));
        let missed =
            attackers.iter().filter(answered).filter(|worker| !located.contains(worker)).count();
        Self { located: located.len(), missed, accused: accused.len() }
    }
}

impl AddAssign for DetectionCounts {
    fn add_assign(&mut self, other: Self) {
        self.located += other.located;
        self.missed += other.missed;
        self.accused += other.accused;
    }
}
