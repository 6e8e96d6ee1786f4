//! Sums of which workers hold different bytes: they are made again at once, and it is found out who
//! has lied.

use super::{CoordinatorSums, Effects, tell};
use crate::sums::exchange::disputes::Verdict;
use crate::sums::exchange::plan::nodes_of;
use crate::sums::{COORDINATOR, SumCommand, SumId, chunks};
use std::collections::BTreeSet;
use std::time::Instant;

impl CoordinatorSums {
    /// Two nodes hold different bytes of a sum. The coordinator makes it, and all say what has come
    /// to them of it.
    pub(super) fn dispute(&mut self, now: Instant, sum: SumId, out: &mut Effects) {
        let Some(monitor) = self.copies.monitors.get(sum) else { return };
        let owners = nodes_of(&monitor.parts.owners, chunks(self.context.length));
        let asked = self.hosts.list();
        let is_decided = monitor.done;
        let mut words: BTreeSet<u32> = asked.iter().copied().collect();
        let here = self.copies.node.digests(sum);
        let knows = here.iter().any(Option::is_some);
        words.extend(knows.then_some(COORDINATOR));
        if !self.disputes.begin(sum, owners, words, now) {
            return;
        }
        tracing::warn!("{sum}: workers hold different bytes of the sum");
        // Before the next attempt is told of: then they forget what they have of this one.
        tell(asked, SumCommand::TellDigests { sum }, out);
        if knows {
            let verdict = self.disputes.said(sum, COORDINATOR, here);
            self.judge(verdict, out);
        }
        if !is_decided {
            self.doubt(sum, out);
        }
    }

    /// What follows for those who may have lied of sums.
    pub(super) fn judge(&mut self, verdicts: impl IntoIterator<Item = Verdict>, out: &mut Effects) {
        for verdict in verdicts {
            out.extend(self.hosts.suspect(&verdict.workers, &verdict.to_string()));
        }
    }
}
