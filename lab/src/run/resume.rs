//! What a resumed run may be told again: how long it is, and limits that do not change what is
//! computed.

use super::plan::{Plan, Upkeep};
use anyhow::anyhow;
use codedgrad::run::Limits;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::limits::LimitArgs;
use codedgrad_shell::pool::Seats;
use codedgrad_shell::units::several;

/// The flags that a resumed run takes, for those who give it others.
pub(crate) const CHANGEABLE: &str = "--steps, --workers (MIN..MAX), --max-wait, --grace, \
     --settle, --checkpoint-every, --audit-every and --give-up-after";

/// What the command line of a resumed run says; the rest is as the plan has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes {
    pub(crate) steps: Option<u64>,
    pub(crate) seats: Option<Seats>,
    pub(crate) limits: LimitArgs,
    pub(crate) grace_seconds: Option<f64>,
    pub(crate) checkpoint_every: Option<u64>,
    pub(crate) audit_every: Option<u64>,
    pub(crate) give_up_after: Option<u64>,
}

impl Changes {
    /// The plan with them. The optimizer's schedule stays as it was first planned, whatever
    /// becomes of the steps: those that are made had it already, and a longer run goes on with the
    /// rate it has come down to.
    pub(crate) fn applied(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        let limits = plan.limits;
        let upkeep = plan.upkeep;
        plan.steps = self.steps.unwrap_or(plan.steps);
        plan.shape.workers = self.seats.map_or(plan.shape.workers, |seats| seats.most as usize);
        plan.limits = Limits {
            max_wait_seconds: self.limits.max_wait_seconds.unwrap_or(limits.max_wait_seconds),
            grace_seconds: self.grace_seconds.unwrap_or(limits.grace_seconds),
            min_workers: self.seats.and_then(Seats::min_workers).or(limits.min_workers),
            settle_seconds: self.limits.settle_seconds.unwrap_or(limits.settle_seconds),
            ..limits
        };
        plan.upkeep = Upkeep {
            checkpoint_every: self.checkpoint_every.unwrap_or(upkeep.checkpoint_every),
            audit_every: self.audit_every.unwrap_or(upkeep.audit_every),
            give_up_after: self.give_up_after.unwrap_or(upkeep.give_up_after),
        };
        plan
    }
}

/// Refuses another number of steps where runs have made more, or can make no more: `made` is what
/// each has made over all models, and whether the state it is in is kept.
pub(crate) fn check_steps(
    plan: &Plan,
    steps: u64,
    made: impl Iterator<Item = (u64, bool)>,
) -> Result<(), Failure> {
    for (scheme, (made, kept)) in plan.schemes.iter().zip(made) {
        if made > steps * plan.jobs.models {
            let made = made.div_ceil(plan.jobs.models);
            return Err(anyhow!(
                "--steps {steps}: {scheme} has made {made} already, and what is done stays done"
            ))
            .or_input();
        }
        if steps > plan.steps && made > 0 && !kept {
            return Err(anyhow!(
                "--steps {steps}: {scheme} has ended after {}, and the state of its optimizer is \
                 not kept where schemes run one after the other: begin a new run, or go on \
                 without --steps",
                several(plan.steps, "step")
            ))
            .or_input();
        }
    }
    Ok(())
}
