//! A training run looked back on as a trace.

/// The row of a trace that a recorded step amounts to, in seconds, and how many numbers estimate
/// answers that no round waited for.
///
/// A worker's number is the time its answer arrived after the round had opened. Where it had not by
/// the close, the step's own time stands for it: the answer took at least about that long. Where
/// the lateness that was injected is known (`lateness` has a number for every worker), a
/// straggler's answer is due when its computation and its lateness are over, so that the number is
///
/// ```text
/// max(seconds, median_j(arrival_j - lateness_j) + lateness_i)
/// ```
///
/// with the median over those who answered. Under a virtual clock with equal loads that is exact.
///
/// ```
/// use codedgrad::delays::recorded_row;
/// let arrivals = [Some(1.0), Some(1.25), None];
/// assert_eq!(recorded_row(&arrivals, &[0.0, 0.25, 3.0], 1.25), (vec![1.0, 1.25, 4.0], 1));
/// assert_eq!(recorded_row(&arrivals, &[], 1.25), (vec![1.0, 1.25, 1.25], 1));
/// ```
#[must_use]
pub fn recorded_row(arrivals: &[Option<f64>], lateness: &[f64], seconds: f64) -> (Vec<f64>, usize) {
    let known = lateness.len() == arrivals.len();
    let mut computed: Vec<f64> = arrivals
        .iter()
        .zip(lateness)
        .filter_map(|(arrival, late)| Some((*arrival)? - late))
        .collect();
    computed.sort_by(f64::total_cmp);
    let typical = computed.get(computed.len() / 2).copied().unwrap_or(0.0);
    let due = |worker: usize| if known { seconds.max(typical + lateness[worker]) } else { seconds };
    let row = arrivals
        .iter()
        .enumerate()
        .map(|(worker, arrival)| arrival.unwrap_or_else(|| due(worker)))
        .collect();
    (row, arrivals.iter().filter(|arrival| arrival.is_none()).count())
}
