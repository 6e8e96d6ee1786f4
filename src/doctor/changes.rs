//! Since when: shifts of the level of a series, found value by value.

use super::numbers::{Scratch, median};
use serde::Serialize;

/// Most values before a possible shift that the level is taken of.
const BEFORE_MOST: usize = 40;
/// With fewer there is no level.
const BEFORE_LEAST: usize = 20;
/// Values after a possible shift that are looked at, the fewest first.
const AFTER: [usize; 3] = [10, 20, 40];
/// A smaller change is none, relative to the level before.
const CHANGE_LEAST: f64 = 0.10;
/// A change is so many standard errors of the difference of two medians.
const ERRORS: f64 = 5.0;
/// Standard deviation of a normal distribution over its median absolute deviation.
const DEVIATION_OF_MAD: f64 = 1.4826;
/// A change is at least so many values after the one before it, and the search for its place
/// begins so many values earlier.
const APART: usize = 5;
/// After so many further values it is known whether a change is one of the level.
const SURE_AFTER: usize = 19;

/// A change of the level of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LevelShift {
    /// Where the new level begins: a round, or a place in the series, from 0.
    pub round: u64,
    /// The level before.
    pub from: f64,
    /// The level after, as it was when the change was seen.
    pub to: f64,
    /// With which value it was seen.
    pub seen: u64,
    /// Whether 20 values have confirmed it. What goes back earlier is a burst and is taken back.
    pub sure: bool,
}

impl LevelShift {
    /// Whether it is confirmed, and to a higher level.
    #[must_use]
    pub fn is_rise(&self) -> bool {
        self.sure && self.to > self.from
    }
}

/// Finds level shifts in a series as its values come.
///
/// # Formula
/// At value `t`, for the last `w = 10, 20, 40` values and the `M = min(40, ..) >= 20` before them,
/// back to the last shift:
/// ```text
/// |b - a| >= max(0.10 a, 5 s sqrt(pi/2 (1/w + 1/M)))
/// ```
/// where `a`, `b` are the medians before and after and `s = 1.4826` times the median absolute
/// deviation before. The shift is where the sum of absolute deviations from `a` before it and from
/// `b` from it on is least. It is taken back if, 20 values on, the level is nearer to the old one.
///
/// # Cost
/// O(1) per value, of which at most 40 times 40 additions where a shift is seen.
///
/// ```
/// use codedgrad::doctor::LevelShifts;
/// let mut shifts = LevelShifts::default();
/// let series = (0..100).map(|at| if at < 60 { 1.0 } else { 1.5 });
/// series.for_each(|value| shifts.push(value));
/// let found = shifts.found();
/// assert_eq!((found.len(), found[0].round, found[0].seen, found[0].sure), (1, 60, 64, true));
/// ```
#[derive(Clone, Debug, Default)]
pub struct LevelShifts {
    values: Vec<f64>,
    /// Medians of the 40 values before each place, from the 40th on.
    levels: Vec<f64>,
    found: Vec<LevelShift>,
    /// Where the last shift is, and where the one before it was.
    last: usize,
    earlier: usize,
    scratch: Scratch,
}

impl LevelShifts {
    /// The shifts of a whole series.
    #[must_use]
    pub fn of(series: &[f64]) -> Vec<LevelShift> {
        let mut shifts = Self::default();
        series.iter().for_each(|value| shifts.push(*value));
        shifts.found
    }

    /// Takes in the next value: a number of 0 or more.
    pub fn push(&mut self, value: f64) {
        self.values.push(value);
        if let Some(start) = self.values.len().checked_sub(BEFORE_MOST) {
            let level = self.scratch.median(&self.values[start..]);
            self.levels.push(level);
        }
        self.confirm();
        for after in AFTER {
            let Some(at) = self.values.len().checked_sub(after) else { return };
            let before = BEFORE_MOST.min(at.saturating_sub(self.last));
            if before < BEFORE_LEAST {
                return;
            }
            if let Some(shift) = self.shift(at, before) {
                self.earlier = std::mem::replace(&mut self.last, shift.round as usize);
                self.found.push(shift);
                return;
            }
        }
    }

    /// The shifts so far, the earliest first.
    #[must_use]
    pub fn found(&self) -> &[LevelShift] {
        &self.found
    }

    /// Settles whether the newest shift is one, if it is time.
    fn confirm(&mut self) {
        let newest = self.values.len() - 1;
        let Some(shift) = self.found.last_mut().filter(|shift| !shift.sure) else { return };
        let place = shift.round as usize;
        if newest - place != SURE_AFTER {
            return;
        }
        let level = self.scratch.median(&self.values[place..]);
        shift.sure = (level - shift.from).abs() >= (shift.to - shift.from).abs() / 2.0;
        if !shift.sure {
            self.found.pop();
            self.last = self.earlier;
        }
    }

    /// The median of some values, of which that of 40 may be known.
    fn level(&mut self, from: usize, to: usize) -> f64 {
        if to - from == BEFORE_MOST {
            return self.levels[to - BEFORE_MOST];
        }
        self.scratch.median(&self.values[from..to])
    }

    /// The shift between the `before` values before `at` and those from there on, if there is one.
    fn shift(&mut self, at: usize, before: usize) -> Option<LevelShift> {
        let newest = self.values.len() - 1;
        let (from, to) = (self.level(at - before, at), self.level(at, self.values.len()));
        let change = (to - from).abs();
        // What is no number is no change either.
        if change < CHANGE_LEAST * from || !change.is_finite() {
            return None;
        }
        let after = (newest + 1 - at) as f64;
        let deviations = self.values[at - before..at].iter().map(|value| (value - from).abs());
        let spread = DEVIATION_OF_MAD * median(deviations.collect());
        let error =
            spread * (std::f64::consts::FRAC_PI_2 * (1.0 / after + 1.0 / before as f64)).sqrt();
        if change < ERRORS * error || error.is_nan() {
            return None;
        }
        let place = self.place(at, newest, (from, to));
        let level = self.scratch.median(&self.values[place..]);
        Some(LevelShift {
            round: place as u64,
            from,
            to: level,
            seen: newest as u64,
            sure: newest - place >= SURE_AFTER,
        })
    }

    /// Where the values before fit one level best and those from there on another; the first such
    /// place.
    fn place(&self, at: usize, newest: usize, (from, to): (f64, f64)) -> usize {
        let after = newest + 1 - at;
        let low = (self.last + APART).max(at.saturating_sub(after));
        let first = self.last.max(low.saturating_sub(APART));
        let misfit = |place: usize| {
            let before = self.values[first..place].iter().map(|value| (value - from).abs());
            let behind = self.values[place..=newest].iter().map(|value| (value - to).abs());
            before.chain(behind).sum::<f64>()
        };
        let misfits = (low..newest).map(|place| (place, misfit(place)));
        misfits.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(at, |(place, _)| place)
    }
}
