//! Since when: shifts of the level of a series, found value by value.

use super::numbers::{Scratch, median, times};
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

/// A rise of the level of a series that has lasted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rise {
    /// Where the higher level begins.
    pub(super) at: usize,
    /// How many times as high the level is in the end.
    pub(super) times: f64,
}

/// The largest rise that has lasted: a worker that got slow is slow still if it got a little
/// slower, or quicker, afterwards.
///
/// # Formula
/// With `l_i` the median of the values from confirmed shift `i` to the next one, `l_0` of those
/// before the first, and `b_i` the larger of `l_{i-1}` and the median of all values before shift
/// `i` (a spell in which it was quick is no level to rise from): of the shifts with
/// `m_i = min_{j >= i} l_j` of 1.1 `b_i` or more, the one with the largest `m_i / b_i`; of some
/// within a tenth the earliest. It rose by `l_last / b_i`.
pub(super) fn lasting_rise(series: &[f64]) -> Option<Rise> {
    let shifts = LevelShifts::of(series).into_iter().filter(|shift| shift.sure);
    let shifts: Vec<usize> = shifts.map(|shift| shift.round as usize).collect();
    let bounds: Vec<usize> =
        [&[0], &shifts[..], &[series.len()]].into_iter().flatten().copied().collect();
    let levels: Vec<f64> =
        bounds.windows(2).map(|ends| median(series[ends[0]..ends[1]].to_vec())).collect();
    let mut largest: Option<(f64, Rise)> = None;
    for (before, at) in shifts.iter().copied().enumerate() {
        let from = levels[before].max(median(series[..at].to_vec()));
        let least = levels[before + 1..].iter().copied().fold(f64::INFINITY, f64::min);
        let most = largest.map_or(1.0, |(most, _)| most);
        if least > from && least >= (1.0 + CHANGE_LEAST) * most * from {
            let to = levels.last().copied().unwrap_or(least);
            largest = Some((least / from, Rise { at, times: times(to, from) }));
        }
    }
    largest.map(|(_, rise)| rise)
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
/// O(1) per value: places in the last 10, 20 and 40 values in order, and where a shift is seen two
/// passes over at most 80 of them.
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
    /// The last values, as many as are looked at after a possible shift.
    windows: Windows,
    /// Medians of the 40 values before each place, from the 40th on, and their median absolute
    /// deviations.
    levels: Vec<(f64, f64)>,
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
        self.windows.slide(&self.values);
        if self.values.len() >= BEFORE_MOST {
            self.levels.push((self.windows.median(BEFORE_MOST), self.windows.deviation()));
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

    /// The median of the values before a place, and their median absolute deviation.
    fn level(&mut self, from: usize, to: usize) -> (f64, f64) {
        if to - from == BEFORE_MOST {
            return self.levels[from];
        }
        let values = &self.values[from..to];
        let level = self.scratch.median(values);
        (level, median(values.iter().map(|value| (value - level).abs()).collect()))
    }

    /// The shift between the `before` values before `at` and those from there on, if there is one.
    fn shift(&mut self, at: usize, before: usize) -> Option<LevelShift> {
        let newest = self.values.len() - 1;
        let after = newest + 1 - at;
        let ((from, deviation), to) = (self.level(at - before, at), self.windows.median(after));
        let change = (to - from).abs();
        // What is no number is no change either.
        if change < CHANGE_LEAST * from || !change.is_finite() {
            return None;
        }
        let spread = DEVIATION_OF_MAD * deviation;
        let both = 1.0 / after as f64 + 1.0 / before as f64;
        let error = spread * (std::f64::consts::FRAC_PI_2 * both).sqrt();
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
        let grow = |sum: &mut f64, misfit: f64| {
            *sum += misfit;
            Some(*sum)
        };
        let misfits = self.values[first..newest].iter().map(|value| (value - from).abs());
        // Before each place from `first` on, and from each place on, the last one first.
        let before: Vec<f64> = std::iter::once(0.0).chain(misfits).scan(0.0, grow).collect();
        let misfits = self.values[low..=newest].iter().rev().map(|value| (value - to).abs());
        let behind: Vec<f64> = misfits.scan(0.0, grow).collect();
        let misfits =
            (low..newest).map(|place| (place, before[place - first] + behind[newest - place]));
        misfits.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(at, |(place, _)| place)
    }
}

/// The last values of a series in order, once for each length that is looked at.
#[derive(Clone, Debug, Default)]
struct Windows {
    sorted: [Vec<f64>; AFTER.len()],
}

impl Windows {
    /// Takes in the last value of a series, and lets go of those that are too far back.
    fn slide(&mut self, values: &[f64]) {
        let Some((newest, before)) = values.split_last() else { return };
        for (sorted, length) in self.sorted.iter_mut().zip(AFTER) {
            let place = |sorted: &[f64], value: &f64| {
                sorted.partition_point(|other| other.total_cmp(value).is_lt())
            };
            if let Some(oldest) = before.len().checked_sub(length) {
                sorted.remove(place(sorted, &before[oldest]));
            }
            sorted.insert(place(sorted, newest), *newest);
        }
    }

    /// The median of the last `length` values, one of [`AFTER`].
    fn median(&self, length: usize) -> f64 {
        let sorted = self.sorted.iter().find(|sorted| sorted.len() == length);
        sorted.map_or(0.0, |sorted| f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]))
    }

    /// The median absolute deviation of the longest.
    fn deviation(&self) -> f64 {
        let [.., sorted] = &self.sorted;
        let level = self.median(sorted.len());
        // Deviations grow to both sides of the level: the least are next to it.
        let mut right = sorted.partition_point(|value| *value < level);
        let mut left = right;
        let mut last = [0.0; 2];
        for _ in 0..=sorted.len() / 2 {
            let below = left.checked_sub(1).map(|place| level - sorted[place]);
            let above = sorted.get(right).map(|value| value - level);
            let next = match (below, above) {
                (Some(below), above) if above.is_none_or(|above| below <= above) => {
                    left -= 1;
                    below
                }
                (_, above) => {
                    right += 1;
                    above.unwrap_or(f64::NAN)
                }
            };
            last = [last[1], next];
        }
        f64::midpoint(last[0], last[1])
    }
}

#[cfg(test)]
mod tests;
