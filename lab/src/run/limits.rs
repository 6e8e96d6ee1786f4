//! What a plan may ask for, wherever it comes from: a command line, or a file that a user edited.

use super::plan::Plan;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::limits::{ANY, WORKERS, count, not_negative, positive, refused};
use std::ops::RangeInclusive;

/// Jobs of a step, micro-batches of a batch, and windows of a micro-batch.
pub(crate) const PARTS: RangeInclusive<u64> = 1..=65536;
pub(crate) const MODELS: RangeInclusive<u64> = 1..=1024;
pub(crate) const DEVICES: RangeInclusive<u64> = 1..=64;
/// The delays of all rounds are drawn before the first one: 2 GiB of them.
const DELAYS_MAX: u64 = 1 << 28;

impl Plan {
    /// Refuses what no run can do, by the names of the flags.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.check_numbers()?;
        self.check_times()?;
        self.check_size()?;
        self.check_names()?;
        self.training.model.check().or_input()
    }

    fn check_numbers(&self) -> Result<(), Failure> {
        count("--workers", self.shape.workers as u64, WORKERS)?;
        count("--steps", self.steps, 1..=DELAYS_MAX)?;
        count("--models", self.jobs.models, MODELS)?;
        count("--accumulate", self.jobs.micro_steps, PARTS)?;
        count("--micro-batches", self.shape.units.into(), PARTS)?;
        count("--micro-batch-rows", self.shape.unit_samples as u64, PARTS)?;
        count("--gpus-per-worker", self.training.compute.devices_per_worker as u64, DEVICES)?;
        count("--checkpoint-every", self.upkeep.checkpoint_every, ANY)?;
        count("--audit-every", self.upkeep.audit_every, ANY)?;
        count("turns.block", self.turns.map_or(1, |turns| turns.block), ANY)?;
        count("MIN of --workers", self.limits.min_workers.unwrap_or(1) as u64, ANY)
    }

    fn check_times(&self) -> Result<(), Failure> {
        positive("--step-seconds", self.timing.step_seconds)?;
        positive("--learning-rate", self.training.optimizer.learning_rate)?;
        positive("--max-wait", self.limits.max_wait_seconds)?;
        self.training.peak_tflops.map_or(Ok(()), |number| positive("--peak-tflops", number))?;
        not_negative("--step-seconds", self.timing.step_seconds)?;
        not_negative("--max-wait", self.limits.max_wait_seconds)?;
        not_negative("--return-wait", self.limits.return_seconds)?;
        not_negative("--grace", self.limits.grace_seconds)?;
        not_negative("--settle", self.limits.settle_seconds)?;
        not_negative("--mu", self.limits.mu)
    }

    /// Refuses a run with more delays than memory can keep.
    fn check_size(&self) -> Result<(), Failure> {
        // Each factor is bounded, so that the product fits.
        let rounds = u128::from(self.steps) * u128::from(self.jobs.models * self.jobs.micro_steps);
        let most = DELAYS_MAX / self.shape.workers as u64;
        if rounds > most.into() {
            return Err(refused(format!(
                "{rounds} rounds (--steps times --models times --accumulate): a run of {} workers \
                 has at most {most}",
                self.shape.workers
            )));
        }
        Ok(())
    }

    /// Refuses faults that never come and workers that are not there.
    fn check_names(&self) -> Result<(), Failure> {
        if self.schemes.is_empty() {
            return Err(refused("no scheme to train with".into()));
        }
        let workers = self.shape.workers;
        for (text, fault) in self.injected.faults.iter().zip(self.injected.faults()?) {
            if fault.worker.index() >= workers {
                return Err(refused(format!(
                    "--fault names {}, but workers are 0 to {}",
                    fault.worker,
                    workers - 1
                )));
            }
            if fault.step >= self.all_steps() {
                return Err(refused(format!(
                    "--fault {text} would never happen: steps are 0 to {}",
                    self.all_steps() - 1
                )));
            }
        }
        match self.injected.attackers.iter().find(|attacker| attacker.index() >= workers) {
            Some(attacker) => Err(refused(format!(
                "--attackers names {attacker}, but workers are 0 to {}",
                workers - 1
            ))),
            None => Ok(()),
        }
    }
}
