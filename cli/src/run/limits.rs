//! What a plan may ask for, wherever it comes from: a command line, or a file that somebody edited.

use super::plan::Plan;
use crate::limits::{WORKERS_MAX, count, not_negative, positive, probe, refused};
use crate::{Failure, OrInput};
use codedgrad_trainer::Fault;

/// Jobs of a step, micro-batches of a batch, and windows of a micro-batch.
const PARTS_MAX: u64 = 65536;
const MODELS_MAX: u64 = 1024;
const DEVICES_MAX: u64 = 64;
/// The delays of all rounds are drawn before the first one: 2 GiB of them.
const DELAYS_MAX: u64 = 1 << 28;

impl Plan {
    /// Refuses what no run can do, by the names of the flags.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.check_numbers()?;
        self.check_times()?;
        self.check_size()?;
        self.check_names()?;
        self.model.check().or_input()
    }

    fn check_numbers(&self) -> Result<(), Failure> {
        count("--workers", self.workers as u64, 1, WORKERS_MAX)?;
        count("--steps", self.steps, 1, DELAYS_MAX)?;
        count("--models", self.models, 1, MODELS_MAX)?;
        count("--micro-steps", self.micro_steps, 1, PARTS_MAX)?;
        count("--micro-batches", self.micro_batches.into(), 1, PARTS_MAX)?;
        count("--micro-batch-rows", self.micro_batch_rows as u64, 1, PARTS_MAX)?;
        count("--gpus-per-worker", self.compute.devices_per_worker as u64, 1, DEVICES_MAX)?;
        count("--checkpoint-every", self.checkpoint_every, 1, u64::MAX)?;
        count("--audit-every", self.audit_every, 1, u64::MAX)?;
        count("turns.block", self.turns.map_or(1, |turns| turns.block), 1, u64::MAX)?;
        count("--min-workers", self.min_workers.unwrap_or(1) as u64, 1, u64::MAX)?;
        probe(self.probe, self.replan_every)
    }

    fn check_times(&self) -> Result<(), Failure> {
        positive("--step-seconds", self.step_seconds)?;
        positive("--learning-rate", self.optimizer.learning_rate)?;
        positive("--max-wait", self.max_wait_seconds)?;
        self.peak_tflops.map_or(Ok(()), |number| positive("--peak-tflops", number))?;
        not_negative("--step-seconds", self.step_seconds)?;
        not_negative("--max-wait", self.max_wait_seconds)?;
        not_negative("--return-wait", self.return_seconds)?;
        not_negative("--grace", self.grace_seconds)?;
        not_negative("--mu", self.mu)
    }

    /// Refuses a run whose rounds nobody could keep the delays of.
    fn check_size(&self) -> Result<(), Failure> {
        // Each factor is bounded, so that the product fits.
        let rounds = u128::from(self.steps) * u128::from(self.models * self.micro_steps);
        let most = DELAYS_MAX / self.workers as u64;
        if rounds > most.into() {
            return Err(refused(format!(
                "{rounds} rounds (--steps times --models times --micro-steps): a run of {} workers \
                 has at most {most}",
                self.workers
            )));
        }
        Ok(())
    }

    /// Refuses faults that never come and workers that are not there.
    fn check_names(&self) -> Result<(), Failure> {
        if self.schemes.is_empty() {
            return Err(refused("no scheme to train with".into()));
        }
        let workers = self.workers;
        for text in &self.faults {
            let fault = text.parse::<Fault>().map_err(refused)?;
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
        match self.attackers.iter().find(|attacker| attacker.index() >= workers) {
            Some(attacker) => Err(refused(format!(
                "--attackers names {attacker}, but workers are 0 to {}",
                workers - 1
            ))),
            None => Ok(()),
        }
    }
}
