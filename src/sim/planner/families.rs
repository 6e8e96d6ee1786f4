//! Which parameters of which schemes there are to choose from.

use super::super::Close;
use super::replay::Setting;

/// Deadline tolerances that are tried where a scheme needs a deadline.
pub(super) const MUS: [f64; 15] =
    [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];
/// Most copies of what `defer` owes.
const COPIES_MAX: usize = 4;
/// Largest degree of a graph code.
const DEGREE_MAX: usize = 6;
/// Normalised errors, in per cent, that graph codes may have.
const GRAPH_ERRORS: [usize; 2] = [1, 5];

/// A kind of scheme whose parameters the planner chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `groups:l=`.
    Groups,
    /// `min-load:s=`.
    MinLoad,
    /// `queue:m=`.
    Queue,
    /// `ring:reach=`.
    Ring,
    /// `defer:`, one round or more late.
    Defer,
    /// `sr-sgc:`, one round or more late.
    SrSgc,
    /// `m-sgc:`, one round or more late.
    MSgc,
    /// `graph:d=`: approximate.
    Graph,
    /// `drop:b=`: biased.
    Drop,
}

/// What parameters may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    pub(super) workers: usize,
    pub(super) max_delay: usize,
    /// Micro-batches in a share of a round.
    pub(super) cut: usize,
    /// Rounds in a step.
    pub(super) accumulate: usize,
}

/// Values along each parameter, in ascending order; a point is one index per axis.
pub(super) type Axes = Vec<Vec<usize>>;

/// One way to write a family: `rep` variants have axes of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Space {
    pub(super) family: Family,
    clusters: bool,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Groups,
        Self::MinLoad,
        Self::Queue,
        Self::Ring,
        Self::Defer,
        Self::SrSgc,
        Self::MSgc,
        Self::Graph,
        Self::Drop,
    ];

    /// Its name in scheme texts.
    ///
    /// ```
    /// assert_eq!(codedgrad::sim::planner::Family::MinLoad.name(), "min-load");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::MinLoad => "min-load",
            Self::Queue => "queue",
            Self::Ring => "ring",
            Self::Defer => "defer",
            Self::SrSgc => "sr-sgc",
            Self::MSgc => "m-sgc",
            Self::Graph => "graph",
            Self::Drop => "drop",
        }
    }

    pub(super) fn spaces(self) -> Vec<Space> {
        let space = |clusters| Space { family: self, clusters };
        if matches!(self, Self::SrSgc | Self::MSgc) {
            vec![space(false), space(true)]
        } else {
            vec![space(false)]
        }
    }
}

/// 1, 2, 3, 4, 6, 8, 12, .. up to the limit.
fn doublings(limit: usize) -> Vec<usize> {
    let mut values: Vec<usize> =
        (0..usize::BITS - 2).flat_map(|power| [1 << power, 3 << power]).collect();
    values.retain(|value| (1..=limit).contains(value));
    values.sort_unstable();
    values.dedup();
    values
}

/// Sizes of clusters into which the workers can be divided, less one: stragglers that a cluster
/// bears.
fn cluster_stragglers(workers: usize) -> Vec<usize> {
    (1..workers).filter(|s| workers.is_multiple_of(s + 1)).collect()
}

/// `(B, W)` of M-SGC with `W - 2 + B <= T`.
fn shapes(max_delay: usize) -> Vec<(usize, usize)> {
    let windows =
        (2..=max_delay + 1).flat_map(|window| (1..window).map(move |burst| (burst, window)));
    windows.filter(|(burst, window)| window - 2 + burst <= max_delay).collect()
}

impl Space {
    /// The axes of this space; one without values has no points.
    pub(super) fn axes(self, limits: &Limits) -> Axes {
        let Limits { workers, max_delay, cut, accumulate } = *limits;
        if workers < 2 {
            return vec![Vec::new()];
        }
        let mus = || (0..MUS.len()).collect();
        let delays = || (1..=max_delay).collect();
        match self.family {
            Family::Groups => vec![(1..workers).collect()],
            Family::MinLoad | Family::Drop => vec![(1..workers).collect()],
            Family::Queue => vec![doublings(cut.saturating_mul(accumulate))],
            Family::Ring => vec![(2..=workers).collect()],
            Family::Graph => {
                vec![
                    (2..=DEGREE_MAX.min(workers.saturating_sub(1))).collect(),
                    (0..GRAPH_ERRORS.len()).collect(),
                ]
            }
            Family::Defer => {
                vec![delays(), (1..workers).collect(), doublings(cut), (1..=COPIES_MAX).collect()]
            }
            Family::SrSgc if self.clusters => vec![delays(), cluster_stragglers(workers), mus()],
            Family::SrSgc => vec![delays(), (1..=workers / 2).collect(), mus()],
            Family::MSgc => {
                let stragglers = if self.clusters {
                    cluster_stragglers(workers)
                } else {
                    (1..=workers).collect()
                };
                vec![(0..shapes(max_delay).len()).collect(), stragglers, mus()]
            }
        }
    }

    /// What is written for these values, one per axis.
    pub(super) fn setting(self, values: &[usize], limits: &Limits) -> Option<Setting> {
        let over_rounds = |scheme: String, mu: usize| {
            Some(Setting { scheme, close: Close::Incremental, mu: Some(MUS[mu]) })
        };
        match (self.family, values) {
            (Family::Groups, [groups]) => Some(Setting::new(format!("groups:l={groups}"))),
            (Family::MinLoad, [s]) => Some(Setting::new(format!("min-load:s={s}"))),
            (Family::Queue, [m]) => Some(Setting::new(format!("queue:m={m}"))),
            (Family::Ring, [reach]) => Some(Setting::new(format!("ring:reach={reach}"))),
            (Family::Graph, [d, error]) => {
                let hundredths = GRAPH_ERRORS[*error];
                Some(Setting::new(format!("graph:d={d},err={}", hundredths as f64 / 100.0)))
            }
            (Family::Drop, [b]) => Some(Setting::new(format!("drop:b={b}"))),
            (Family::Defer, [delay, cap, cut, copies]) => {
                let legal = delay * copies <= limits.workers;
                legal.then(|| {
                    Setting::new(format!("defer:T={delay},cap={cap},cut={cut},copies={copies}"))
                })
            }
            (Family::SrSgc, [burst, s, mu]) if self.clusters => {
                over_rounds(format!("sr-sgc:B={burst},W={},s={s},rep", burst + 1), *mu)
            }
            // The look-ahead rule knows of B, W and lambda only B and s = ceil(lambda B / (W-1+B)).
            (Family::SrSgc, [burst, s, mu]) => {
                over_rounds(format!("sr-sgc:B={burst},W={},lambda={}", burst + 1, 2 * s), *mu)
            }
            (Family::MSgc, [shape, stragglers, mu]) => {
                let (burst, window) = shapes(limits.max_delay)[*shape];
                let clusters = if self.clusters { ",rep" } else { "" };
                over_rounds(
                    format!("m-sgc:B={burst},W={window},lambda={stragglers}{clusters}"),
                    *mu,
                )
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::SchemeSpec;
    use crate::codes::sequential::{Accept, Horizon};
    use crate::ids::Job;

    #[test]
    fn values_grow_by_half_or_by_a_third() {
        assert_eq!(doublings(20), [1, 2, 3, 4, 6, 8, 12, 16]);
        assert_eq!(doublings(1), [1]);
        assert_eq!(shapes(3), [(1, 2), (1, 3), (2, 3), (1, 4)]);
        assert!(shapes(0).is_empty());
        assert_eq!(cluster_stragglers(12), [1, 2, 3, 5, 11]);
    }

    /// Every point of every space is a scheme, within the delay asked for, unless it is refused
    /// here.
    #[test]
    fn all_points_are_legal_schemes() {
        for (workers, max_delay) in [(2, 1), (3, 3), (6, 2), (8, 3)] {
            let limits = Limits { workers, max_delay, cut: 4, accumulate: 1 };
            for space in Family::ALL.into_iter().flat_map(Family::spaces) {
                let axes = space.axes(&limits);
                let count: usize = axes.iter().map(Vec::len).product();
                for mut number in 0..count {
                    let mut values = Vec::new();
                    for axis in &axes {
                        values.push(axis[number % axis.len()]);
                        number /= axis.len();
                    }
                    let Some(setting) = space.setting(&values, &limits) else { continue };
                    let horizon = Horizon {
                        workers,
                        units: None,
                        jobs: Job(0)..Job(9),
                        accept: Accept::Lookahead,
                    };
                    let scheme =
                        setting.scheme.parse::<SchemeSpec>().and_then(|spec| spec.over(horizon));
                    match scheme {
                        Ok(scheme) => {
                            assert!(scheme.facts().delay <= max_delay, "{}", setting.scheme);
                        }
                        Err(error) => {
                            assert_eq!(space.family, Family::Graph, "{}: {error}", setting.scheme);
                        }
                    }
                }
            }
        }
    }
}
