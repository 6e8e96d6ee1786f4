//! Intervals of the batch: the general code with coefficients 0 and 1, made for unequal workers.
//!
//! # Construction
//! The batch has `K` equal shares, cut points `0..K`. Worker `i` sums the shares `[l_i, r_i)`.
//!
//! # Guarantee
//! Survivors decode iff their intervals, taken as edges between cut points, connect 0 with `K`. So
//! the tolerance is the minimum cut between the two, less one (Menger's theorem).
//!
//! # Cost
//! An arrival is one union of sets, near O(1). Weights are a breadth-first search, O(n + K), or
//! conjugate gradients for those of smallest norm.
//!
//! # Numerics
//! Weights of [`Choice::Fewest`] are -1, 0 and 1 and the residual is 0. The amplification is
//! `sqrt(shares summed / K)`: 1 unless intervals are subtracted.
//!
//! # Source
//! Own, from prefix sums; generalises fractional repetition (Tandon et al. 2017) and the balanced
//! classes of Charalambides, Pilanci, Hero (arXiv 2001.11698). Loads in proportion to speed as in
//! Wang et al., "Heterogeneity-aware gradient coding for straggler tolerance" (arXiv 1901.09339),
//! without its random coefficients.

use super::disjoint::{JoinOutcome, Sets};
use super::family::{Family, Fields, Recipe, within};
use super::groups::Size;
use super::linear::{cgls, least_squares};
use super::{
    Choice, Decoder, Facts, GradientCode, ParameterError, Report, Row, Status, judge, table,
};
use crate::ids::{Share, Worker, WorkerSet};
use std::collections::VecDeque;
use std::sync::Arc;

/// Intervals of a file, or by the speeds in one.
pub(super) const FAMILY: Family = Family {
    name: "interval",
    examples: &["interval:cuts=FILE", "interval:speeds=FILE,s=1,units=64"],
    summary: "for workers whose speeds differ for good: intervals of the batch, as a file says or \
        by their speeds (a file, or 1x7+0.5 for seven of speed 1 and one of 0.5), for a batch cut \
        into units",
    ..Family::new(|fields| {
        let (cuts, speeds) = (fields.take::<String>("cuts")?, fields.take::<String>("speeds")?);
        match (cuts, speeds) {
            (Some(path), None) => {
                let text = Fields::contents(&path)?;
                let file = path.clone();
                Ok(Recipe::code_of_file(path, move || {
                    Interval::from_csv(&text).map_err(within(&file))
                }))
            }
            (None, Some(path)) => by_speeds(path, fields),
            _ => Err(fields.wrong(
                "give either cuts= (a file of intervals l,r) or speeds= (a file of speeds, or \
                 1x7+0.5)",
            )),
        }
    })
};

fn by_speeds(path: String, fields: &mut Fields<'_>) -> Result<Recipe, ParameterError> {
    let Some(units) = fields.take("units")? else {
        return Err(fields.wrong("units= is missing: into how many units the batch is cut"));
    };
    let speeds = match listed(&path) {
        Some(speeds) if speeds.iter().all(|it| it.is_finite() && *it > 0.0) => speeds,
        Some(_) => return Err(fields.wrong("a speed is a finite number above 0")),
        None => {
            let text = Fields::contents(&path)?;
            let expected = "a speed (a finite number above 0)";
            let table = table::read(&text, expected, |x: &f64| x.is_finite() && *x > 0.0);
            table.map_err(within(&path))?.concat()
        }
    };
    let size = Size::read(fields)?;
    let file = path.clone();
    Ok(Recipe::code_of_file(path, move || {
        let code = match size {
            Size::Stragglers(stragglers) => Interval::layers(&speeds, stragglers, units),
            Size::Groups(groups) => Interval::sorted_groups(&speeds, groups, units),
        };
        code.map_err(within(&file))
    }))
}

/// Speeds that stand in the text itself, as in `1x7+0.43`: seven workers of speed 1, one of 0.43.
fn listed(text: &str) -> Option<Vec<f64>> {
    let mut speeds = Vec::new();
    for part in text.split('+') {
        let (speed, times) = part.split_once('x').unwrap_or((part, "1"));
        let (speed, times): (f64, usize) = (speed.parse().ok()?, times.parse().ok()?);
        let left = WORKERS_MAX - speeds.len();
        speeds.extend(std::iter::repeat_n(speed, times.min(left)));
    }
    (speeds.len() > 1).then_some(speeds)
}

/// Workers whose speeds a text has at most.
const WORKERS_MAX: usize = 65_536;
/// Cut points of the largest code.
const CUTS_MAX: u32 = 1 << 22;
/// Shares in all its intervals.
const SHARES_MAX: u64 = 1 << 25;

/// A code of intervals.
///
/// # Formula
/// ```text
/// B_ij = 1 iff l_i <= j < r_i        w_i = P(r_i) - P(l_i),  P the prefix sums of the shares' gradients
/// path 0 = v_0, v_1 .. v_m = K over the intervals of survivors:
///     a_i = +1 where the path runs from l_i to r_i, -1 where from r_i to l_i
/// s = mincut(0, K) - 1               load = max_i (r_i - l_i) / K
/// ```
///
/// ```
/// use codedgrad::codes::{decode, Choice, Interval};
/// use codedgrad::ids::WorkerSet;
/// let code = Interval::new(&[(0, 4), (2, 4), (2, 6)])?;
/// let (weights, report) = decode(&code, &WorkerSet::full(3), Choice::Fewest);
/// assert_eq!(weights, [1.0, -1.0, 1.0], "the path 0, 4, 2, 6");
/// assert_eq!(report.residual, 0.0);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Interval {
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    facts: Facts,
    rows: Vec<Row>,
    ends: Vec<(u32, u32)>,
    /// Intervals by the cut points they touch.
    at: Vec<Vec<usize>>,
}

impl Interval {
    /// One interval `(l, r)` per worker; the largest `r` is `K`.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] without intervals, [`ParameterError::EmptyInterval`] unless
    /// every `l < r`, [`ParameterError::Conditions`] when they are too large to be held in memory,
    /// [`ParameterError::CutOff`] when not even all intervals together connect 0 with `K`.
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Interval};
    /// assert_eq!(Interval::new(&[(0, 2), (2, 4), (0, 4)])?.facts().tolerance, 1);
    /// assert!(Interval::new(&[(0, 2), (3, 4)]).is_err());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn new(intervals: &[(u32, u32)]) -> Result<Self, ParameterError> {
        let cuts = intervals.iter().map(|ends| ends.1).max().ok_or(ParameterError::NoWorkers)?;
        if let Some(worker) = intervals.iter().position(|(l, r)| l >= r) {
            let (start, end) = intervals[worker];
            return Err(ParameterError::EmptyInterval { worker, start, end });
        }
        let summed: u64 = intervals.iter().map(|(l, r)| u64::from(r - l)).sum();
        if cuts > CUTS_MAX || summed > SHARES_MAX {
            let problem = format!(
                "{cuts} cut points and intervals of {summed} shares in all; at most {CUTS_MAX} and \
                 {SHARES_MAX}"
            );
            return Err(ParameterError::Conditions { scheme: "interval", problem });
        }
        let at = touching(intervals);
        let paths = disjoint_paths(intervals, &at, cuts);
        if paths == 0 {
            return Err(ParameterError::CutOff { reached: reached_from_0(intervals), cuts });
        }
        let rows =
            intervals.iter().map(|&(l, r)| (l..r).map(|j| (Share(j), 1.0)).collect()).collect();
        let longest = intervals.iter().map(|(l, r)| r - l).max().unwrap_or(0);
        let facts = Facts {
            workers: intervals.len(),
            share_weights: vec![1.0 / f64::from(cuts); cuts as usize],
            tolerance: paths - 1,
            load: f64::from(longest) / f64::from(cuts),
            error_max: 0.0,
        };
        Ok(Self { plan: Arc::new(Plan { facts, rows, ends: intervals.to_vec(), at }) })
    }

    /// Intervals from text: one line `l,r` per worker.
    ///
    /// # Errors
    /// [`ParameterError::Table`] naming line and column of what is no cut point, and as
    /// [`Interval::new`].
    ///
    /// ```
    /// use codedgrad::codes::Interval;
    /// assert!(Interval::from_csv("0,2\n2,4\n").is_ok());
    /// assert!(
    ///     Interval::from_csv("0,2\n2,-4\n").unwrap_err().to_string().contains("line 2, column 2")
    /// );
    /// ```
    pub fn from_csv(text: &str) -> Result<Self, ParameterError> {
        let rows = table::read(text, "a cut point (a whole number of 0 or more)", |_: &u32| true)?;
        let mut intervals = Vec::with_capacity(rows.len());
        for (line, row) in (1..).zip(rows) {
            let [l, r] = row[..] else {
                return Err(
                    table::TableError::Ragged { line, found: row.len(), expected: 2 }.into()
                );
            };
            intervals.push((l, r));
        }
        Self::new(&intervals)
    }

    /// The congruence classes of Charalambides et al.: class `i mod (s+1)` tiles the batch, so any
    /// `s` stragglers leave one class whole.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] and [`ParameterError::TooManyStragglers`].
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Interval};
    /// let facts = Interval::charalambides(7, 1)?.facts().clone();
    /// assert_eq!((facts.tolerance, facts.load), (1, 1.0 / 3.0));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn charalambides(workers: usize, stragglers: usize) -> Result<Self, ParameterError> {
        let smaller = super::groups::count_tolerating(workers, stragglers)?;
        let classes = stragglers + 1;
        let cuts = if workers.is_multiple_of(classes) { smaller } else { smaller * (smaller + 1) };
        let interval = |i: usize| {
            let members = workers / classes + usize::from(i % classes < workers % classes);
            let edge = |place: usize| (place * cuts / members) as u32;
            (edge(i / classes), edge(i / classes + 1))
        };
        Self::new(&(0..workers).map(interval).collect::<Vec<_>>())
    }

    /// `s + 1` layers of about equal total speed, each tiling the `cuts` shares of the batch in
    /// proportion to its workers' speeds: any `s` stragglers leave one layer whole.
    ///
    /// # Errors
    /// [`ParameterError::Speed`] for a speed that is not positive, [`ParameterError::TooFewCuts`]
    /// where some worker would get no share, and as [`Interval::charalambides`].
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Interval};
    /// let code = Interval::layers(&[3.0, 1.0, 2.0, 2.0], 1, 8)?;
    /// assert_eq!(
    ///     code.row(codedgrad::ids::Worker(0)).len(),
    ///     6,
    ///     "three quarters of its layer's work"
    /// );
    /// assert!(Interval::layers(&[1.0, 0.0], 0, 8).is_err());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn layers(speeds: &[f64], stragglers: usize, cuts: u32) -> Result<Self, ParameterError> {
        super::groups::count_tolerating(speeds.len(), stragglers)?;
        let mut layers = vec![(0.0f64, Vec::new()); stragglers + 1];
        for worker in fastest_first(speeds)? {
            let lightest = layers.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((speed, members)) = lightest {
                *speed += speeds[worker];
                members.push(worker);
            }
        }
        let mut intervals = vec![(0, 0); speeds.len()];
        for (_, members) in &layers {
            let shares =
                members.iter().map(|&worker| (vec![worker], speeds[worker])).collect::<Vec<_>>();
            tile(&shares, cuts, &mut intervals)?;
        }
        Self::new(&intervals)
    }

    /// `groups` groups of workers of like speed; the members of a group do the same part of the
    /// batch, in proportion to the slowest of them.
    ///
    /// # Errors
    /// [`ParameterError::GroupsOutOfRange`], and as [`Interval::layers`].
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Interval};
    /// let code = Interval::sorted_groups(&[1.0, 3.0, 1.0, 3.0], 2, 8)?;
    /// assert_eq!((code.row(codedgrad::ids::Worker(1)).len(), code.facts().tolerance), (6, 1));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn sorted_groups(speeds: &[f64], groups: usize, cuts: u32) -> Result<Self, ParameterError> {
        let workers = speeds.len();
        let order = fastest_first(speeds)?;
        if groups == 0 || groups > workers {
            return Err(ParameterError::GroupsOutOfRange { groups, workers });
        }
        let mut members = vec![(Vec::new(), 0.0); groups];
        for (worker, group) in order.into_iter().zip(super::groups::balanced(workers, groups)) {
            let group = &mut members[group as usize];
            group.0.push(worker);
            group.1 = speeds[worker];
        }
        let mut intervals = vec![(0, 0); workers];
        tile(&members, cuts, &mut intervals)?;
        Self::new(&intervals)
    }
}

fn fastest_first(speeds: &[f64]) -> Result<Vec<usize>, ParameterError> {
    if let Some(worker) = speeds.iter().position(|speed| !speed.is_finite() || *speed <= 0.0) {
        return Err(ParameterError::Speed { worker, speed: speeds[worker] });
    }
    let mut order: Vec<usize> = (0..speeds.len()).collect();
    order.sort_by(|&a, &b| speeds[b].total_cmp(&speeds[a]));
    Ok(order)
}

/// Cuts the batch among sets of workers in proportion to their speeds, to whole shares.
fn tile(
    sets: &[(Vec<usize>, f64)],
    cuts: u32,
    intervals: &mut [(u32, u32)],
) -> Result<(), ParameterError> {
    let total: f64 = sets.iter().map(|set| set.1).sum();
    let (mut done, mut start) = (0.0, 0);
    for (place, (members, speed)) in sets.iter().enumerate() {
        done += speed;
        let end = if place + 1 == sets.len() {
            cuts
        } else {
            (done / total * f64::from(cuts)).round() as u32
        };
        if end <= start {
            let needed = (total / speed).ceil().min(f64::from(u32::MAX)) as u32;
            return Err(ParameterError::TooFewCuts {
                cuts,
                worker: members[0],
                needed: needed.max(cuts.saturating_add(1)),
            });
        }
        members.iter().for_each(|&worker| intervals[worker] = (start, end));
        start = end;
    }
    Ok(())
}

/// Intervals by the cut points they touch.
fn touching(intervals: &[(u32, u32)]) -> Vec<Vec<usize>> {
    let points = intervals.iter().map(|ends| ends.1 as usize + 1).max().unwrap_or(1);
    let mut at = vec![Vec::new(); points];
    for (i, &(l, r)) in intervals.iter().enumerate() {
        at[l as usize].push(i);
        at[r as usize].push(i);
    }
    at
}

/// The largest cut point that is connected with 0.
fn reached_from_0(intervals: &[(u32, u32)]) -> u32 {
    let points = touching(intervals).len();
    let mut sets = Sets::new(points);
    for &(l, r) in intervals {
        sets.join(l, r, false);
    }
    (0..points as u32).rev().find(|point| sets.root(*point) == sets.root(0)).unwrap_or(0)
}

/// How many paths from 0 to `cuts` share no interval: the minimum cut, by augmenting paths.
fn disjoint_paths(intervals: &[(u32, u32)], at: &[Vec<usize>], cuts: u32) -> usize {
    // +1: a path uses the interval from l to r; -1: from r to l; it can be used only against that.
    let mut flow = vec![0i8; intervals.len()];
    let mut paths = 0;
    while let Some(path) = shortest_path(intervals, at, cuts, |i, forward| {
        flow[i] < 1 && forward || flow[i] > -1 && !forward
    }) {
        path.iter().for_each(|&(i, forward)| flow[i] += if forward { 1 } else { -1 });
        paths += 1;
    }
    paths
}

/// A path from 0 to `cuts` over few intervals, each with its direction, among those that are
/// `open`.
fn shortest_path(
    intervals: &[(u32, u32)],
    at: &[Vec<usize>],
    cuts: u32,
    open: impl Fn(usize, bool) -> bool,
) -> Option<Vec<(usize, bool)>> {
    let mut came_by = vec![None; at.len()];
    let mut queue = VecDeque::from([0u32]);
    while let Some(point) = queue.pop_front().filter(|point| *point != cuts) {
        for &i in &at[point as usize] {
            let (l, r) = intervals[i];
            let (forward, next) = (point == l, if point == l { r } else { l });
            if next != 0 && came_by[next as usize].is_none() && open(i, forward) {
                came_by[next as usize] = Some((i, forward));
                queue.push_back(next);
            }
        }
    }
    let (mut path, mut point) = (Vec::new(), cuts);
    while point != 0 {
        let (i, forward) = came_by[point as usize]?;
        path.push((i, forward));
        point = if forward { intervals[i].0 } else { intervals[i].1 };
    }
    Some(path)
}

impl GradientCode for Interval {
    fn facts(&self) -> &Facts {
        &self.plan.facts
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.rows[worker.index()]
    }

    fn proof(&self) -> Option<&'static str> {
        Some("s+1 paths over different intervals tile the batch: Menger's theorem")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        let facts = &self.plan.facts;
        Box::new(IntervalDecoder {
            arrived: WorkerSet::empty(facts.workers),
            sets: Sets::new(facts.shares() + 1),
            decodable: false,
            plan: Arc::clone(&self.plan),
        })
    }
}

struct IntervalDecoder {
    plan: Arc<Plan>,
    arrived: WorkerSet,
    sets: Sets,
    decodable: bool,
}

impl IntervalDecoder {
    fn here(&self) -> Vec<usize> {
        self.arrived.iter().map(Worker::index).collect()
    }

    /// The shortest weights: the currents of a unit flow from 0 to `K` over equal resistors.
    fn currents(&self, here: &[usize], out: &mut [f64]) {
        let edge =
            |&i: &usize| [(Share(self.plan.ends[i].0), 1.0), (Share(self.plan.ends[i].1), -1.0)];
        let edges: Vec<[(Share, f64); 2]> = here.iter().map(edge).collect();
        let mut flow = vec![0.0; self.plan.facts.shares() + 1];
        flow[0] = 1.0;
        flow[self.plan.facts.shares()] = -1.0;
        here.iter().zip(cgls(&edges, &flow)).for_each(|(&i, current)| out[i] = current);
    }

    /// Intervals that do not overlap and cover as much as can be covered, where nothing better is
    /// left.
    fn cover(&self, here: &[usize], out: &mut [f64]) {
        let mut by_end = here.to_vec();
        by_end.sort_by_key(|&i| self.plan.ends[i].1);
        // best[p]: most shares covered before cut point p, and by which interval last.
        let mut best = vec![(0u32, None); self.plan.facts.shares() + 1];
        let mut next = by_end.into_iter().peekable();
        for point in 1..best.len() {
            best[point] = (best[point - 1].0, None);
            while let Some(i) = next.next_if(|&i| self.plan.ends[i].1 as usize == point) {
                let (l, r) = self.plan.ends[i];
                let covered = best[l as usize].0 + r - l;
                if covered > best[point].0 {
                    best[point] = (covered, Some(i));
                }
            }
        }
        let mut point = best.len() - 1;
        while point > 0 {
            point = match best[point].1 {
                None => point - 1,
                Some(i) => {
                    out[i] = 1.0;
                    self.plan.ends[i].0 as usize
                }
            };
        }
    }
}

impl Decoder for IntervalDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        let (l, r) = self.plan.ends[worker.index()];
        if !self.arrived.insert(worker) || self.decodable {
            return Status::Useless;
        }
        if let JoinOutcome::Within { .. } = self.sets.join(l, r, false) {
            return Status::Useless;
        }
        self.decodable = self.sets.root(0) == self.sets.root(self.plan.facts.shares() as u32);
        if self.decodable { Status::Decodable } else { Status::Pending }
    }

    fn weights(&mut self, choice: Choice, out: &mut [f64]) -> Report {
        let Plan { facts, rows, ends, at } = &*self.plan;
        assert_eq!(out.len(), facts.workers, "one weight per worker");
        let here = self.here();
        out.fill(0.0);
        match (choice, self.decodable) {
            (Choice::Fewest, true) => {
                let path = shortest_path(ends, at, facts.shares() as u32, |i, _| {
                    self.arrived.contains(Worker(i as u32))
                });
                path.into_iter()
                    .flatten()
                    .for_each(|(i, forward)| out[i] = if forward { 1.0 } else { -1.0 });
            }
            (Choice::Fewest, false) => self.cover(&here, out),
            (Choice::MinimumNorm, true) => self.currents(&here, out),
            (Choice::MinimumNorm, false) => {
                let survivors: Vec<&Row> = here.iter().map(|&i| &rows[i]).collect();
                here.iter()
                    .zip(least_squares(&survivors, facts.shares()))
                    .for_each(|(&i, weight)| out[i] = weight);
            }
        }
        judge(rows, &facts.share_weights, out, self.decodable)
    }

    fn reset(&mut self) {
        self.arrived.clear();
        self.sets = Sets::new(self.plan.facts.shares() + 1);
        self.decodable = false;
    }
}
