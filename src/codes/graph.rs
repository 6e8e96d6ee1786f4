//! The approximate code on a random regular graph: a worker is an edge, a share is a vertex.
//!
//! # Construction
//! A random simple graph with `n` edges on `v = floor(2n/d)` vertices, whose degrees are `d` (or
//! differ by one where `d` does not divide `2n`). The worker of edge `{x, y}` sends `g_x + g_y`.
//!
//! # Guarantee
//! The decode with the smallest normalised error is known before any vector moves: every connected
//! component of surviving edges that is not bipartite is exact, one that is, with `p` and `q`
//! vertices on its sides, adds `(p-q)^2/(p+q)`. Messages are accepted as soon as the error is at
//! most the bound given.
//!
//! In a regular graph `s` stragglers leave an error of at most `s/n`, in any set of them: in a
//! bipartite component `d |p-q|` is at most the number of edge ends removed there,
//! `(p-q)^2/(p+q) <= |p-q|`, and there are `2s` removed ends and `v = 2n/d` vertices. So the
//! tolerance is at least `floor(err n)`; what it is beyond that is found by trying the straggler
//! sets as long as they are few enough.
//!
//! # Cost
//! An arrival is O(log n), by disjoint sets with sides. Weights are conjugate gradients, some 25 to
//! 105 steps of O(n).
//!
//! # Numerics
//! Weights of smallest norm have amplification below 1 in every case tried (`n` to 4096, `d` 3 to
//! 8).
//!
//! # Source
//! Glasgow, Wootters, "Approximate gradient coding with optimal decoding" (arXiv 2006.09638). The
//! error by components is our own derivation.

use super::disjoint::{JoinOutcome, Sets};
use super::family::{Family, Recipe, Space, Traits, keyed};
use super::linear::cgls;
use super::verify::{binomial, next_combination};
use super::{Choice, Decoder, Facts, GradientCode, ParameterError, Report, Row, Status, judge};
use crate::ids::{Share, Worker, WorkerSet};
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

/// Error bound, unless another is given.
const ERROR_MAX: f64 = 0.01;
/// Largest degree that the planner tries.
const DEGREE_TRIED_MAX: usize = 6;

/// The approximate code.
pub(super) const FAMILY: Family = Family {
    name: "graph",
    examples: &["graph:d=3,err=0.01,seed=7"],
    summary: "approximate: each worker computes two shares and each share is computed by d \
        workers; a step is applied at a normalised error of err or less (err=0.01, seed=7 if not \
        given)",
    traits: Traits { approximate: true, ..Traits::NONE },
    spaces: Some(|limits| {
        let degrees = 2..=DEGREE_TRIED_MAX.min(limits.workers.saturating_sub(1));
        vec![Space::of([keyed("d", degrees), keyed("err", [0.01, 0.05])])]
    }),
    ..Family::new(|fields| {
        let degree = fields.need("d")?;
        let error_max = fields.take("err")?.unwrap_or(ERROR_MAX);
        let seed = fields.seed()?;
        Ok(Recipe::code(move |workers| Graph::new(workers, degree, error_max, seed)))
    })
};

/// Edges looked at to prove a tolerance, over all straggler sets tried.
const EDGES_TRIED_MAX: u64 = 20_000_000;
/// Attempted switches per edge when a graph is drawn.
const SWITCHES_PER_EDGE: usize = 20;
/// Slack on error bounds, for rounding.
const SLACK: f64 = 1e-12;

/// The graph code of `n` workers.
///
/// # Formula
/// ```text
/// B_ix = B_iy = 1 for worker i = {x, y}      load = 2/v
/// error = (1/v) sum over bipartite components of surviving edges  (p - q)^2 / (p + q)
/// ```
/// where an isolated vertex is a component with `p = 1, q = 0`.
///
/// ```
/// use codedgrad::codes::{decode, Choice, Graph, GradientCode};
/// use codedgrad::ids::{Worker, WorkerSet};
/// let code = Graph::new(12, 3, 0.05, 7)?;
/// assert_eq!((code.facts().shares(), code.facts().load), (8, 0.25));
/// let (_, report) = decode(&code, &WorkerSet::full(12), Choice::MinimumNorm);
/// assert!(report.decodable && report.error < 1e-12);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Graph {
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    facts: Facts,
    rows: Vec<Row>,
    edges: Vec<(u32, u32)>,
}

impl Graph {
    /// A random graph in which every share has about `degree` holders, whose decodes are accepted
    /// up to the normalised error `error_max`.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`], [`ParameterError::DegreeOutOfRange`] unless the graph can be
    /// simple, and as [`Graph::from_edges`].
    ///
    /// ```
    /// use codedgrad::codes::Graph;
    /// assert!(Graph::new(16, 4, 0.01, 7).is_ok());
    /// assert!(Graph::new(6, 4, 0.01, 7).unwrap_err().to_string().contains("from 2 to 3"));
    /// ```
    pub fn new(
        workers: usize,
        degree: usize,
        error_max: f64,
        seed: u64,
    ) -> Result<Self, ParameterError> {
        if workers == 0 {
            return Err(ParameterError::NoWorkers);
        }
        let simple = |d: &usize| (2 * workers).div_ceil(2 * workers / d) < 2 * workers / d;
        let most = (2..=workers).take_while(simple).last().unwrap_or(1);
        if degree < 2 || degree > most {
            return Err(ParameterError::DegreeOutOfRange { degree, workers, most });
        }
        let vertices = 2 * workers / degree;
        Self::from_edges(vertices, &random_edges(workers, vertices, seed), error_max)
    }

    /// The code of a given graph on `vertices`; edges may repeat.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] without edges, [`ParameterError::Edge`] for a loop or an end
    /// that is no vertex, [`ParameterError::ErrorOutOfRange`] unless `0 <= error_max < 1`,
    /// [`ParameterError::Unbalanced`] when the error is larger even with all workers alive.
    ///
    /// ```
    /// use codedgrad::codes::{GradientCode, Graph};
    /// let triangle = Graph::from_edges(3, &[(0, 1), (1, 2), (0, 2)], 0.0)?;
    /// assert_eq!(triangle.facts().tolerance, 0);
    /// assert!(
    ///     Graph::from_edges(3, &[(0, 1), (1, 2)], 0.0).is_err(),
    ///     "1 against 2: bipartite, unbalanced"
    /// );
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn from_edges(
        vertices: usize,
        edges: &[(u32, u32)],
        error_max: f64,
    ) -> Result<Self, ParameterError> {
        if edges.is_empty() {
            return Err(ParameterError::NoWorkers);
        }
        if let Some(&(x, y)) =
            edges.iter().find(|(x, y)| x == y || (*x).max(*y) as usize >= vertices)
        {
            return Err(ParameterError::Edge { x, y, vertices });
        }
        if !(0.0..1.0).contains(&error_max) {
            return Err(ParameterError::ErrorOutOfRange { error_max });
        }
        let error = Components::over(vertices, edges.iter().copied()).error();
        if error > error_max + SLACK {
            return Err(ParameterError::Unbalanced { error, error_max });
        }
        let row = |&(x, y): &(u32, u32)| vec![(Share(x.min(y)), 1.0), (Share(x.max(y)), 1.0)];
        let facts = Facts {
            workers: edges.len(),
            share_weights: vec![1.0 / vertices as f64; vertices],
            tolerance: proven_tolerance(vertices, edges, error_max),
            load: 2.0 / vertices as f64,
            error_max,
        };
        Ok(Self {
            plan: Arc::new(Plan {
                facts,
                rows: edges.iter().map(row).collect(),
                edges: edges.to_vec(),
            }),
        })
    }
}

/// A random simple graph with degrees as equal as can be: one of them by Havel and Hakimi, then
/// many random switches of two edges' ends.
fn random_edges(count: usize, vertices: usize, seed: u64) -> Vec<(u32, u32)> {
    let (least, more) = (2 * count / vertices, 2 * count % vertices);
    let mut open: BinaryHeap<(usize, u32)> =
        (0..vertices).map(|x| (least + usize::from(x < more), x as u32)).collect();
    let mut edges = Vec::with_capacity(count);
    while let Some((degree, x)) = open.pop() {
        let others: Vec<(usize, u32)> = (0..degree).filter_map(|_| open.pop()).collect();
        edges.extend(others.iter().map(|&(_, y)| (x, y)));
        open.extend(others.into_iter().map(|(degree, y)| (degree - 1, y)));
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let sorted = |x: u32, y: u32| (x.min(y), x.max(y));
    let mut taken: HashSet<(u32, u32)> = edges.iter().map(|&(x, y)| sorted(x, y)).collect();
    for _ in 0..SWITCHES_PER_EDGE * count {
        let (e, f) = (random.random_range(0..count), random.random_range(0..count));
        let ((a, b), (c, d)) =
            (edges[e], if random.random() { edges[f] } else { (edges[f].1, edges[f].0) });
        let (first, second) = (sorted(a, d), sorted(c, b));
        if a == d || c == b || first == second || taken.contains(&first) || taken.contains(&second)
        {
            continue;
        }
        taken.remove(&sorted(a, b));
        taken.remove(&sorted(c, d));
        taken.extend([first, second]);
        edges[e] = (a, d);
        edges[f] = (c, b);
    }
    edges.shuffle(&mut random);
    edges
}

/// The largest `s` for which no set of `s` stragglers exceeds the error: by theorem in a regular
/// graph, beyond that by trying all sets.
fn proven_tolerance(vertices: usize, edges: &[(u32, u32)], error_max: f64) -> usize {
    let mut degrees = vec![0usize; vertices];
    edges.iter().for_each(|&(x, y)| [x, y].into_iter().for_each(|end| degrees[end as usize] += 1));
    let regular = degrees.iter().all(|degree| *degree == degrees[0]);
    let by_theorem =
        if regular { (error_max * edges.len() as f64 * (1.0 + SLACK)) as usize } else { 0 };
    for stragglers in by_theorem + 1..edges.len() {
        if binomial(edges.len(), stragglers).saturating_mul(edges.len() as u64) > EDGES_TRIED_MAX {
            return stragglers - 1;
        }
        let mut missing: Vec<usize> = (0..stragglers).collect();
        loop {
            let alive = edges
                .iter()
                .enumerate()
                .filter(|(i, _)| !missing.contains(i))
                .map(|(_, edge)| *edge);
            if Components::over(vertices, alive).error() > error_max + SLACK {
                return stragglers - 1;
            }
            if !next_combination(&mut missing, edges.len()) {
                break;
            }
        }
    }
    edges.len() - 1
}

/// The components of the surviving edges and what they add to the error.
#[derive(Clone, Debug)]
struct Components {
    sets: Sets,
    /// Vertices on the root's side and on the other; of no meaning once there is an odd cycle.
    sides: Vec<[u32; 2]>,
    odd_cycle: Vec<bool>,
    squared_error: f64,
}

impl Components {
    fn new(vertices: usize) -> Self {
        Self {
            sets: Sets::new(vertices),
            sides: vec![[1, 0]; vertices],
            odd_cycle: vec![false; vertices],
            squared_error: vertices as f64,
        }
    }

    fn over(vertices: usize, edges: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut components = Self::new(vertices);
        edges.for_each(|(x, y)| {
            components.add(x, y);
        });
        components
    }

    fn part(&self, root: u32) -> f64 {
        let [p, q] = self.sides[root as usize].map(f64::from);
        if self.odd_cycle[root as usize] { 0.0 } else { (p - q).powi(2) / (p + q) }
    }

    /// Adds an edge; true if the error may have changed.
    fn add(&mut self, x: u32, y: u32) -> bool {
        match self.sets.join(x, y, true) {
            JoinOutcome::Within { root, agrees } => {
                let new = !agrees && !self.odd_cycle[root as usize];
                if new {
                    self.squared_error -= self.part(root);
                    self.odd_cycle[root as usize] = true;
                }
                new
            }
            JoinOutcome::Merged { into, absorbed, swapped } => {
                self.squared_error -= self.part(into) + self.part(absorbed);
                let [p, q] = self.sides[absorbed as usize];
                let [first, second] = if swapped { [q, p] } else { [p, q] };
                let sides = &mut self.sides[into as usize];
                *sides = [sides[0] + first, sides[1] + second];
                self.odd_cycle[into as usize] |= self.odd_cycle[absorbed as usize];
                self.squared_error += self.part(into);
                true
            }
        }
    }

    /// Normalised error of the best decode.
    fn error(&self) -> f64 {
        self.squared_error.max(0.0) / self.sides.len() as f64
    }
}

impl GradientCode for Graph {
    fn facts(&self) -> &Facts {
        &self.plan.facts
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.rows[worker.index()]
    }

    fn proof(&self) -> Option<&'static str> {
        Some("an error of at most s/n where the graph is regular, else all sets were tried")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        let facts = &self.plan.facts;
        Box::new(GraphDecoder {
            arrived: WorkerSet::empty(facts.workers),
            components: Components::new(facts.shares()),
            decodable: false,
            plan: Arc::clone(&self.plan),
        })
    }
}

struct GraphDecoder {
    plan: Arc<Plan>,
    arrived: WorkerSet,
    components: Components,
    decodable: bool,
}

impl Decoder for GraphDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        let (x, y) = self.plan.edges[worker.index()];
        if !self.arrived.insert(worker) || !self.components.add(x, y) {
            return Status::Useless;
        }
        if self.decodable || self.components.error() > self.plan.facts.error_max + SLACK {
            return Status::Pending;
        }
        self.decodable = true;
        Status::Decodable
    }

    /// All arrivals are used in any case: every one of them makes the decode better.
    fn weights(&mut self, _: Choice, out: &mut [f64]) -> Report {
        let Plan { facts, rows, .. } = &*self.plan;
        assert_eq!(out.len(), facts.workers, "one weight per worker");
        let here: Vec<usize> = self.arrived.iter().map(Worker::index).collect();
        let survivors: Vec<&Row> = here.iter().map(|&i| &rows[i]).collect();
        out.fill(0.0);
        here.iter()
            .zip(cgls(&survivors, &vec![1.0; facts.shares()]))
            .for_each(|(&i, weight)| out[i] = weight);
        judge(rows, &facts.share_weights, out, self.decodable)
    }

    fn reset(&mut self) {
        self.arrived.clear();
        self.components = Components::new(self.plan.facts.shares());
        self.decodable = false;
    }
}
