//! Medians and quotients.

/// The middle of some numbers, or the mean of the two in the middle; 0 if there are none.
///
/// # Cost
/// O(n) on average.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    median_of(&mut numbers)
}

/// The same, in place: the order of the numbers changes.
pub(super) fn median_of(numbers: &mut [f64]) -> f64 {
    let middle = numbers.len() / 2;
    if numbers.is_empty() {
        return 0.0;
    }
    let odd = !numbers.len().is_multiple_of(2);
    let (below, upper, _) = numbers.select_nth_unstable_by(middle, f64::total_cmp);
    if odd {
        return *upper;
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    f64::midpoint(lower, *upper)
}

/// Room for medians of many short lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch(Vec<f64>);

impl Scratch {
    pub(super) fn median(&mut self, numbers: &[f64]) -> f64 {
        self.0.clear();
        self.0.extend_from_slice(numbers);
        median_of(&mut self.0)
    }
}

/// How many times as long `time` is as `usual`; 1 where both are 0.
pub(super) fn times(time: f64, usual: f64) -> f64 {
    if time == usual { 1.0 } else { time / usual }
}

#[cfg(test)]
mod tests;
