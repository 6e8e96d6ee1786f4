//! Rounds that can come to nothing any more: refused, waited for or given up at once.
//!
//! A round is hopeless if even all workers that may still answer could not save the decode: then
//! the run does not wait for them.

use super::super::events::{Action, EngineError, Refusal};
use super::Engine;
use crate::codes::sequential::{Outlook, RoundEvent};
use crate::ids::Units;

impl Engine {
    /// Gives up at once when even the best outcome of this round cannot be decoded, unless a worker
    /// may come back.
    pub(super) fn check_outlook(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let dead = self.roster.dead();
        let mut hopeless = dead.clone();
        hopeless.unite(self.round.all_erased());
        // Who came back in this round can help from the next one on: then begin it now rather than
        // give up.
        if !self.round.resting().is_empty() && self.plan.can_close(&hopeless, &self.roster) {
            hopeless.unite(self.round.resting());
            return if self.plan.can_close(&hopeless, &self.roster) {
                Ok(())
            } else {
                self.begin_again(now, out)
            };
        }
        if self.plan.can_close(&hopeless, &self.roster) {
            return Ok(());
        }
        let waits = self.states.may_return(&self.roster, &self.leaving)
            && !self.plan.are_enough(&self.roster.able_to_hold());
        if self.plan.can_close(&dead, &self.roster) || !waits {
            self.await_nobody(now, &hopeless, out);
        }
        while !self.plan.can_close(&hopeless, &self.roster) {
            // What is not finite is so for any worker that computes it.
            if !self.plan.can_close(&dead, &self.roster) {
                if self.narrow(now, out)? || self.plan.gets_enough(&self.roster) {
                    return Ok(());
                }
                let blocked = self.plan.is_blocked_by_leaving(&self.roster, &self.leaving);
                if !blocked && self.states.may_return(&self.roster, &self.leaving) {
                    self.states.await_returns(self.round.at(now));
                    return Ok(());
                }
                // Who has asked for the end and leaves has not stayed for the step that is open.
                if blocked && self.steps.has_begun() && self.steps.end_is_asked {
                    out.push(self.round.finish());
                    return Ok(());
                }
                // Others may be about to leave too, and end the run by that: it is no error yet.
                if blocked {
                    self.leaving.block();
                    return Ok(());
                }
            }
            let Outlook::Blocked { jobs, mut units } = self.plan.scheme.outlook(&hopeless) else {
                return Err(self.plan.too_many_lost(self.steps.next, &self.roster, &self.leaving));
            };
            if self.round.all_erased().is_empty()
                || jobs.is_empty()
                || self.roster.first_alive().is_none()
            {
                return Err(self.plan.too_many_lost(self.steps.next, &self.roster, &self.leaving));
            }
            if units.is_empty() {
                units.push(Units { start: 0, end: self.plan.facts().units });
            }
            // Where jobs overlap the others go on, and only the step of this job is refused.
            let alone = self.plan.facts().delay == 0 || self.config.jobs.micro_steps > 1;
            for job in jobs {
                self.plan.scheme.on(RoundEvent::GivenUp(job));
                self.open_steps.refuse(
                    if alone { self.steps.next } else { job.step(1) },
                    units.clone(),
                    Refusal::NotFinite,
                );
            }
            if alone {
                // How late a worker was says nothing: the round has come to nothing.
                self.plan.scheme.close(&self.round.missing(&self.roster), &[]);
                self.end_round(now, out);
                return self.advance(now, out);
            }
        }
        Ok(())
    }
}
