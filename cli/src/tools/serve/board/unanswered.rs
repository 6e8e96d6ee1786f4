//! Whether a worker missed the rounds that closed without its answer, or was only not needed.

use codedgrad::train::SpentRecord;
use std::collections::VecDeque;

/// An answer that takes so many times as long as the median one is late.
const LATE: f64 = 1.5;
/// Rounds within which a worker reports what it did for one that closed without it. Who is silent
/// for longer has missed it.
const HEARD_WITHIN: usize = 3;

/// A round that closed without a worker's answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct UnansweredRound {
    round: u64,
    /// The median answer.
    median: f64,
}

/// The rounds that closed without one worker's answer, as long as it is not known why.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DoubtfulRounds {
    rounds: VecDeque<UnansweredRound>,
    /// Whether the worker reports what it does: none does under a virtual clock.
    reports: bool,
}

/// How a round ended for a worker that had not answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    /// Which round.
    pub(super) round: u64,
    /// Whether its answer would have been late, or never came; else the round did not need it.
    pub(super) missed: bool,
}

impl DoubtfulRounds {
    /// A round closed without the worker's answer.
    pub(super) fn push(&mut self, round: u64, median: f64) {
        self.rounds.push_back(UnansweredRound { round, median });
    }

    /// What is known now, by what the worker has reported since; `newest` is the last round that
    /// closed.
    pub(super) fn settle<'a>(
        &mut self,
        reports: impl Iterator<Item = &'a SpentRecord>,
        newest: u64,
    ) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for report in reports {
            self.reports = true;
            // Of rounds before the reported one it reports no more: it had no task in them, since
            // it was still at an older one.
            while let Some(first) = self.rounds.front().copied() {
                if first.round > report.round {
                    break;
                }
                self.rounds.pop_front();
                let missed = first.round < report.round || due(report) > LATE * first.median;
                verdicts.push(Verdict { round: first.round, missed });
            }
        }
        while let Some(first) = self.rounds.front().copied() {
            if newest - first.round < HEARD_WITHIN as u64 {
                break;
            }
            self.rounds.pop_front();
            verdicts.push(Verdict { round: first.round, missed: self.reports });
        }
        verdicts
    }
}

/// When the answer would have come, had the worker gone on.
fn due(report: &SpentRecord) -> f64 {
    let SpentRecord { computed, progress, came, .. } = *report;
    if progress > 0.0 { came + computed / progress - computed } else { came }
}

#[cfg(test)]
mod tests;
