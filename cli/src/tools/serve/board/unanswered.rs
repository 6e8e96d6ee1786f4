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
mod tests {
    use super::*;
    use codedgrad::ids::Worker;

    fn report(round: u64, computed: f64, progress: f64, came: f64) -> SpentRecord {
        SpentRecord { round, worker: Worker(2), computed, progress, came, units: 1 }
    }

    fn settled(
        doubtful: &mut DoubtfulRounds,
        reports: &[SpentRecord],
        newest: u64,
    ) -> Vec<(u64, bool)> {
        let found = doubtful.settle(reports.iter(), newest);
        found.into_iter().map(|verdict| (verdict.round, verdict.missed)).collect()
    }

    #[test]
    fn who_was_almost_there_was_not_needed_and_who_is_silent_misses_rounds() {
        let mut doubtful = DoubtfulRounds::default();
        doubtful.push(1, 1.0);
        assert_eq!(settled(&mut doubtful, &[report(1, 0.5, 0.5, 0.6)], 2), [(1, false)]);
        doubtful.push(2, 1.0);
        assert_eq!(settled(&mut doubtful, &[report(2, 0.5, 0.125, 0.6)], 3), [(2, true)]);
        // Frozen: it says nothing, then that it gave up the first of these rounds.
        (3..8).for_each(|round| doubtful.push(round, 1.0));
        assert_eq!(settled(&mut doubtful, &[], 7), [(3, true), (4, true)]);
        assert_eq!(settled(&mut doubtful, &[report(3, 5.0, 0.0, 5.0)], 8), [(5, true)]);
        let again = [report(9, 0.9, 1.0, 1.0)];
        assert_eq!(settled(&mut doubtful, &again, 9), [(6, true), (7, true)]);
    }

    #[test]
    fn where_nobody_reports_rounds_without_an_answer_are_not_held_against_it() {
        let mut doubtful = DoubtfulRounds::default();
        doubtful.push(0, 1.0);
        assert_eq!(settled(&mut doubtful, &[], 2), []);
        assert_eq!(settled(&mut doubtful, &[], 3), [(0, false)]);
    }
}
