//! Sums of which workers hold different bytes: they are made again at once, and it is found out who
//! has lied.

use super::{CoordinatorSums, Effects, tell};
use crate::ids::{Worker, named};
use crate::sums::exchange::Key;
use crate::sums::exchange::disputes::Verdict;
use crate::sums::exchange::events::CoordinatorEffect;
use crate::sums::exchange::plan::nodes_of;
use crate::sums::{COORDINATOR, SumCommand, chunks};
use std::collections::BTreeSet;
use std::time::Instant;

impl CoordinatorSums {
    /// Two nodes hold different bytes of a sum. The coordinator makes it, and all say what has come
    /// to them of it.
    pub(super) fn dispute(&mut self, now: Instant, key: Key, out: &mut Effects) {
        let Some(monitor) = self.monitors.get(key) else { return };
        let (step, attempt) = key;
        let owners = nodes_of(&monitor.parts.owners, chunks(self.context.length));
        let asked: Vec<u32> = self.present.iter().copied().collect();
        let is_decided = monitor.done;
        let mut words: BTreeSet<u32> = asked.iter().copied().collect();
        let here = self.node.digests(key);
        let knows = here.iter().any(Option::is_some);
        words.extend(knows.then_some(COORDINATOR));
        if !self.disputes.begin(key, owners, words, now) {
            return;
        }
        tracing::warn!("{step}, attempt {attempt}: workers hold different bytes of the sum");
        // Before the next attempt is told of: then they forget what they have of this one.
        tell(asked, SumCommand::TellDigests { step, attempt }, out);
        if knows {
            let verdict = self.disputes.said(key, COORDINATOR, here);
            verdict.into_iter().for_each(|verdict| self.judge(key, verdict, out));
        }
        if !is_decided {
            self.doubt(key, out);
        }
    }

    /// A worker says what it has of a sum.
    pub(super) fn told_digests(
        &mut self,
        worker: u32,
        key: Key,
        digests: Vec<Option<u64>>,
        out: &mut Effects,
    ) {
        let verdict = self.disputes.said(key, worker, digests);
        verdict.into_iter().for_each(|verdict| self.judge(key, verdict, out));
    }

    /// One of these has lied of a sum.
    pub(super) fn judge(&mut self, key: Key, verdict: Verdict, out: &mut Effects) {
        let (step, Verdict { chunk, workers }) = (key.0, verdict);
        let what = format!("different bytes of the sum of {step} were sent, of chunk {chunk}");
        self.suspect(&workers, &what, out);
    }

    /// One of these has lied, as something shows: it is given up, if it can be told which. They sum
    /// nothing any more.
    pub(super) fn suspect(&mut self, workers: &BTreeSet<u32>, shown_by: &str, out: &mut Effects) {
        let workers: BTreeSet<u32> =
            workers.iter().copied().filter(|worker| *worker != COORDINATOR).collect();
        let found = self.suspects.one_of(&workers);
        self.shares.distrust(self.suspects.left(), found);
        match found {
            Some(worker) => {
                let reason = format!("it lies: {shown_by}, and nobody else can have done it");
                out.push(CoordinatorEffect::GiveUp { worker, reason });
            }
            None => {
                let workers: Vec<Worker> = workers.into_iter().map(Worker).collect();
                let workers = named(&workers, |_| None);
                tracing::warn!("{shown_by}: one of {workers} lies, and it cannot be told which");
            }
        }
    }

    /// Those who say nothing of a sum are not waited for any longer.
    pub(super) fn end_disputes(&mut self, now: Instant, out: &mut Effects) {
        let over = self.disputes.overdue(now);
        over.into_iter().for_each(|(key, verdict)| self.judge(key, verdict, out));
    }
}
