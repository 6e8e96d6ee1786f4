//! Schemes that take turns, so that a machine whose load changes is as fair to one as to another.
//!
//! On a wall clock, a comparison of schemes that run one after the other compares the machine's
//! load at different times as well. In turns, all of them meet much the same: each makes a block of
//! steps, the first scheme first, and a new turn begins once all have made theirs.

use super::record::Line;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Fewest steps of a block, unless the run has fewer.
const BLOCK: u64 = 10;
/// Fewest steps of a block for each round of a scheme's delay. A block ends when all its steps are
/// decided, which costs so many rounds more: about a thirtieth of its time.
const BLOCK_PER_DELAY: u64 = 30;

/// How schemes take turns, as the plan says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// Steps of a block, over all models; the last one takes the rest besides.
    pub(crate) block: u64,
    /// Whether the step time is measured at the beginning of every turn; else it is the plan's.
    pub(crate) measured: bool,
}

impl Turns {
    /// Blocks long enough for schemes of so many rounds' delay, and whole rounds of the models.
    pub(crate) fn new(delay: u64, models: u64, measured: bool) -> Self {
        let block = BLOCK.max(BLOCK_PER_DELAY * delay).next_multiple_of(models);
        Self { block, measured }
    }

    /// Where a block ends that begins with a step: no later one may be shorter than a block.
    fn end_of(self, start: u64, all_steps: u64) -> u64 {
        let after = start + self.block;
        if all_steps < after + self.block { all_steps } else { after }
    }

    /// Most blocks that a run of so many steps has.
    pub(crate) fn blocks(self, all_steps: u64) -> u64 {
        (all_steps / self.block).max(1)
    }

    /// How many turns there are, those before one included.
    pub(crate) fn count(self, turn: &Turn, all_steps: u64) -> u64 {
        turn.number + self.blocks(all_steps - turn.steps.start)
    }

    /// The turn that is under way, or comes next, after the steps that each run has made.
    pub(crate) fn current<'a>(
        self,
        runs: impl Iterator<Item = &'a [Line]> + Clone,
        all_steps: u64,
    ) -> Turn {
        let made = runs.clone().map(|lines| lines.len() as u64);
        let (least, most) = (made.clone().min().unwrap_or(0), made.max().unwrap_or(0));
        // The first run is always the first to begin a turn.
        let first = runs.into_iter().next().unwrap_or_default();
        let mut turn = Turn { number: 0, steps: 0..0, step_seconds: None };
        if let Some(last) = first.last().and_then(|line| line.turn) {
            let lines = first.iter().rev().take_while(|line| line.turn == Some(last));
            let start = (first.len() - lines.count()) as u64;
            // A run that was made longer meanwhile may have gone beyond what now is the end.
            turn.steps = start..self.end_of(start, all_steps).max(most);
            turn.number = last;
            turn.step_seconds = first.last().and_then(|line| line.step_seconds);
            if least >= turn.steps.end && least < all_steps {
                turn = Turn { number: last + 1, steps: least..least, step_seconds: None };
            }
        }
        if turn.steps.is_empty() {
            turn.steps.end = self.end_of(turn.steps.start, all_steps);
        }
        turn
    }
}

/// One block of every run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    pub(crate) steps: Range<u64>,
    /// The step time of all its blocks, if it is known.
    pub(crate) step_seconds: Option<f64>,
}

/// What a comparison in turns comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct TurnComparison {
    /// Turns that all schemes finished, no step of which was refused.
    pub(crate) turns: usize,
    /// Mean step time of the first run over that of this one, in those turns alone.
    pub(crate) speedup: f64,
    /// The smallest and the largest ratio of the two means within one of those turns: what the
    /// comparison could have come to, had it been that turn alone. It is no confidence interval;
    /// more turns can only widen it, and `speedup` always lies in it.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl TurnComparison {
    /// The range in words, each number as the factor that is said before it.
    pub(crate) fn range(&self) -> String {
        let Self { turns, speedup, low, high } = *self;
        let (least, most) = if speedup >= 1.0 { (low, high) } else { (1.0 / high, 1.0 / low) };
        match turns {
            1 => " (in one turn)".into(),
            _ => format!(" ({least:.2} to {most:.2} over {turns} turns)"),
        }
    }
}

/// Compares every run with the first over the turns that all of them finished; nothing where there
/// is no such turn. A step that was refused took its time and gave nothing: its turn tells of no
/// speed.
pub(crate) fn compare(runs: &[Vec<Line>]) -> Vec<Option<TurnComparison>> {
    let Some((first, _)) = runs.split_first() else { return Vec::new() };
    let complete: Vec<Range<usize>> = first
        .chunk_by(|a, b| a.turn == b.turn)
        .scan(0, |start, lines| {
            let block = *start..*start + lines.len();
            *start = block.end;
            Some(block)
        })
        .filter(|block| runs.iter().all(|lines| has_finished(lines, first, block)))
        .filter(|block| {
            let is_refused = |line: &Line| !line.record.refused.is_empty();
            !runs.iter().any(|lines| lines[block.clone()].iter().any(is_refused))
        })
        .collect();
    let seconds = |lines: &[Line]| lines.iter().map(|line| line.record.seconds).sum::<f64>();
    let of = |lines: &Vec<Line>| {
        let times: Vec<(f64, f64)> = complete
            .iter()
            .map(|block| (seconds(&first[block.clone()]), seconds(&lines[block.clone()])))
            .filter(|(_, mine)| *mine > 0.0)
            .collect();
        let (theirs, mine) = times.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
        let ratios = || times.iter().map(|(theirs, mine)| theirs / mine);
        (!times.is_empty()).then(|| TurnComparison {
            turns: times.len(),
            speedup: theirs / mine,
            low: ratios().fold(f64::INFINITY, f64::min),
            high: ratios().fold(0.0, f64::max),
        })
    };
    runs.iter().map(of).collect()
}

/// Whether a run has made the steps of a block of the first run's, and that block was its whole
/// turn: a model that is in the middle of one has made fewer or more of it.
fn has_finished(lines: &[Line], first: &[Line], block: &Range<usize>) -> bool {
    let turn = first[block.start].turn;
    let same = lines.get(block.clone()).is_some_and(|lines| lines.iter().all(|l| l.turn == turn));
    same && lines.get(block.end).is_none_or(|line| line.turn != turn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::line_of;

    const TURNS: Turns = Turns { block: 10, measured: true };

    /// Runs that have made so many steps, by the blocks in which they made them.
    fn runs(blocks: &[&[u64]]) -> Vec<Vec<Line>> {
        let of = |(run, blocks): (usize, &&[u64])| {
            let turns = (0..).zip(*blocks).flat_map(|(turn, steps)| (0..*steps).map(move |_| turn));
            (0..)
                .zip(turns)
                .map(|(step, turn)| Line {
                    turn: Some(turn),
                    step_seconds: Some(turn as f64),
                    ..line_of(run, step, (turn + 1) as f64 / (run + 1) as f64)
                })
                .collect()
        };
        blocks.iter().enumerate().map(of).collect()
    }

    fn current(all_steps: u64, blocks: &[&[u64]]) -> (u64, Range<u64>, Option<f64>) {
        let runs = runs(blocks);
        let turn = TURNS.current(runs.iter().map(Vec::as_slice), all_steps);
        (turn.number, turn.steps, turn.step_seconds)
    }

    #[test]
    fn no_block_is_short() {
        for all in 1..200 {
            let (mut start, mut count) = (0, 0);
            while start < all {
                let end = TURNS.end_of(start, all);
                assert!(end - start >= 10.min(all) && end - start < 20, "{start}..{end} of {all}");
                (start, count) = (end, count + 1);
            }
            assert_eq!((start, count), (all, TURNS.blocks(all)));
        }
    }

    #[test]
    fn a_turn_goes_on_until_all_have_made_it() {
        assert_eq!(current(25, &[&[], &[]]), (0, 0..10, None));
        assert_eq!(current(25, &[&[3], &[]]), (0, 0..10, Some(0.0)));
        assert_eq!(current(25, &[&[10], &[]]), (0, 0..10, Some(0.0)));
        assert_eq!(current(25, &[&[10], &[10]]), (1, 10..25, None));
        assert_eq!(current(25, &[&[10, 2], &[10]]), (1, 10..25, Some(1.0)));
        assert_eq!(current(25, &[&[10, 15], &[10, 14]]), (1, 10..25, Some(1.0)));
        assert_eq!(current(25, &[&[10, 15], &[10, 15]]), (1, 10..25, Some(1.0)), "it is over");
        assert_eq!(current(5, &[&[], &[]]), (0, 0..5, None));
    }

    /// A run that is to have other steps than it was begun with.
    #[test]
    fn a_longer_run_has_no_step_of_two_turns() {
        assert_eq!(current(60, &[&[10, 15], &[10, 15]]), (2, 25..35, None));
        assert_eq!(current(30, &[&[10, 15], &[10, 15]]), (2, 25..30, None));
        assert_eq!(current(60, &[&[10, 13], &[10]]), (1, 10..23, Some(1.0)), "beyond 20 already");
        assert_eq!(current(60, &[&[10, 15], &[10, 2]]), (1, 10..25, Some(1.0)));
        assert_eq!(current(60, &[&[10, 7], &[10]]), (1, 10..20, Some(1.0)));
        assert_eq!(current(18, &[&[10, 7], &[10]]), (1, 10..18, Some(1.0)), "a shorter one");
    }

    #[test]
    fn only_whole_turns_are_compared() {
        let compared = |blocks: &[&[u64]]| compare(&runs(blocks));
        assert_eq!(compared(&[&[10], &[9]]), [None, None]);
        assert_eq!(compared(&[&[10], &[10], &[]]), [None, None, None], "the third has not begun");
        let second = compared(&[&[10, 15, 3], &[10, 15]])[1].unwrap();
        assert_eq!((second.turns, second.speedup, second.low, second.high), (2, 2.0, 2.0, 2.0));
        let mut lines = runs(&[&[10, 10], &[10, 10]]);
        lines[1][..10].iter_mut().for_each(|line| line.record.seconds = 0.25);
        let second = compare(&lines)[1].unwrap();
        assert_eq!((second.low, second.high), (2.0, 4.0));
        assert_eq!(second.speedup, 30.0 / 12.5, "the ratio of the means, not the mean ratio");
        assert_eq!(second.range(), " (2.00 to 4.00 over 2 turns)");
        let slower = TurnComparison { turns: 2, speedup: 0.4, low: 0.25, high: 0.5 };
        assert_eq!(slower.range(), " (2.00 to 4.00 over 2 turns)", "how many times slower");
    }
}
