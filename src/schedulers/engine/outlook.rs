//! Rounds that can come to nothing any more: refused, waited for or given up at once.
//!
//! A round is hopeless if even all workers that may still answer could not save the decode: then
//! nobody waits for them.

use super::super::events::{Action, EngineError, Refusal};
use super::{Engine, Phase};
use crate::codes::sequential::{Outlook, RoundEvent};
use crate::ids::{Units, WorkerSet};

impl Engine {
    /// Whether the round may still come to something if nobody of `gone` answers any more.
    pub(super) fn can_close(&self, gone: &WorkerSet) -> bool {
        !self.roster.is_deserted() && !matches!(self.scheme.outlook(gone), Outlook::Blocked { .. })
    }

    /// Gives up at once when even the best outcome of this round cannot be decoded, unless somebody
    /// may come back.
    pub(super) fn check_outlook(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let dead = self.roster.dead();
        let mut hopeless = dead.clone();
        hopeless.unite(self.round.erased());
        // Who came back in this round can help from the next one on: then begin it now rather than
        // give up.
        if !self.round.resting().is_empty() && self.can_close(&hopeless) {
            hopeless.unite(self.round.resting());
            return if self.can_close(&hopeless) { Ok(()) } else { self.begin_again(now, out) };
        }
        if self.can_close(&hopeless) {
            return Ok(());
        }
        let waits = self.may_return() && !self.has_enough();
        if self.can_close(&dead) || !waits {
            self.await_nobody(now, &hopeless, out);
        }
        while !self.can_close(&hopeless) {
            // What is not finite is so for any worker that computes it.
            if !self.can_close(&dead) {
                if self.narrow(now, out)? || self.gets_enough() {
                    return Ok(());
                }
                let blocked = self.is_blocked_by_leaving();
                if !blocked && self.may_return() {
                    self.await_returns(now);
                    return Ok(());
                }
                // Who has asked for the end and leaves has not stayed for the step that is open.
                if blocked && self.steps.has_begun() && self.steps.end_is_asked {
                    self.phase = Phase::Finished;
                    out.push(Action::Finish);
                    return Ok(());
                }
                // Others may be about to leave too, and end the run by that: it is no error yet.
                if blocked {
                    self.block_by_leaving();
                    return Ok(());
                }
            }
            let Outlook::Blocked { jobs, mut units } = self.scheme.outlook(&hopeless) else {
                return Err(self.too_many_lost());
            };
            if self.round.erased().is_empty() || jobs.is_empty() || self.roster.is_deserted() {
                return Err(self.too_many_lost());
            }
            if units.is_empty() {
                units.push(Units { start: 0, end: self.scheme.facts().units });
            }
            // Where jobs overlap the others go on, and only the step of this job is refused.
            let alone = self.scheme.facts().delay == 0 || self.config.jobs.micro_steps > 1;
            for job in jobs {
                self.scheme.on(RoundEvent::GivenUp(job));
                self.open_steps.refuse(
                    if alone { self.steps.next } else { job.step(1) },
                    units.clone(),
                    Refusal::NotFinite,
                );
            }
            if alone {
                return self.end_refused(now, out);
            }
        }
        Ok(())
    }

    /// Ends a round in which the only step under way was refused.
    fn end_refused(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        // How late anybody was says nothing: the round has come to nothing.
        self.scheme.close(&self.round.missing(&self.roster), &[]);
        self.abandon_all(out);
        out.push(Action::Close(self.report(now)));
        self.go_on(now, out)
    }
}
