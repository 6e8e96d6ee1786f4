//! Anything additive can be coded, not only gradients. Here k-means, whose iteration is a sum: for
//! each centre, of the vectors that are nearest to it, and of how many they are. So items get ids
//! of three codes, as recommenders have them: k-means, then k-means on what is left over, twice.
//! In each of eight runs another worker is late in every step, and one dies on the way; ids and
//! centres have the bits of the same iterations in one thread.
//!
//! `cargo run --release --example coded_kmeans`
use codedgrad::ids::Worker;
use codedgrad::train::{Aggregator, Coordinator, Event, Outcome};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use std::{error::Error, ops::Range, thread, time::Duration};

const WIDTH: usize = 32;
pub(crate) const ITEMS: usize = 256;
pub(crate) const LEVELS: usize = 3;
pub(crate) const CODES: usize = 16;
const ITERATIONS: u64 = 20;
const STEPS: u64 = LEVELS as u64 * ITERATIONS;
/// Items of a unit, which is what workers add up by themselves.
const UNIT: usize = 16;
pub(crate) const WORKERS: usize = 8;
/// Of each code the sum of its vectors, and their number.
const SUMS: usize = CODES * (WIDTH + 1);
/// The step in which a worker dies.
const DEATH: u64 = 30;

type Vector = [f32; WIDTH];
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// As [4 topics x 4 subtopics x 16 items]: an item is near those of its subtopic, and these near
/// those of their topic.
pub(crate) fn items(seed: u64) -> Vec<Vector> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || -> Vector { std::array::from_fn(|_| random.sample(StandardNormal)) };
    let (mut topic, mut subtopic) = (draw(), draw());
    let mut items = Vec::new();
    for item in 0..ITEMS {
        if item > 0 && item % 64 == 0 {
            topic = draw();
        }
        if item > 0 && item % 16 == 0 {
            subtopic = draw();
        }
        let own = draw();
        items.push(std::array::from_fn(|i| 4.0 * topic[i] + 2.0 * subtopic[i] + own[i]));
    }
    items
}

fn squared(a: &Vector, b: &Vector) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// A replica: every worker has one, and makes the same of the same sums.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clusters {
    seed: u64,
    steps: u64,
    /// What the levels before have left over of each item.
    pub(crate) rest: Vec<Vector>,
    centres: Vec<Vector>,
    /// The centres and codes of levels that are done.
    pub(crate) books: Vec<Vec<Vector>>,
    pub(crate) codes: Vec<Vec<usize>>,
}

impl Clusters {
    pub(crate) fn new(items: Vec<Vector>, seed: u64) -> Self {
        let (books, codes) = (Vec::new(), Vec::new());
        let mut new = Self { seed, steps: 0, rest: items, centres: Vec::new(), books, codes };
        new.begin_level();
        new
    }

    /// k-means++: each centre is an item, the likelier the farther from those before.
    fn begin_level(&mut self) {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(1 + self.books.len() as u64);
        self.centres = vec![self.rest[random.random_range(0..self.rest.len())]];
        while self.centres.len() < CODES {
            let far: Vec<f64> = self
                .rest
                .iter()
                .map(|x| self.centres.iter().map(|c| squared(x, c)).fold(f32::INFINITY, f32::min))
                .map(f64::from)
                .collect();
            let mut left = random.random::<f64>() * far.iter().sum::<f64>();
            let farther = far.iter().position(|far| {
                left -= far;
                left < 0.0
            });
            self.centres.push(self.rest[farther.unwrap_or(ITEMS - 1)]);
        }
    }

    /// The code of an item; of two that are as near the lower one.
    fn nearest(&self, item: usize) -> usize {
        let far = |code: &usize| squared(&self.rest[item], &self.centres[*code]);
        (1..CODES).fold(0, |best, code| if far(&code) < far(&best) { code } else { best })
    }

    /// What a unit adds to an iteration.
    fn sums(&self, items: Range<usize>, coefficient: f32) -> Vec<f32> {
        let mut sums = vec![0.0; SUMS];
        for item in items {
            let own = &mut sums[self.nearest(item) * (WIDTH + 1)..][..=WIDTH];
            own.iter_mut().zip(&self.rest[item]).for_each(|(sum, x)| *sum += coefficient * x);
            own[WIDTH] += coefficient;
        }
        sums
    }

    /// Ends an iteration: a centre is the mean of its vectors, or stays where it has none.
    fn update(&mut self, sums: &[f32]) {
        for (centre, sums) in self.centres.iter_mut().zip(sums.chunks(WIDTH + 1)) {
            if sums[WIDTH] > 0.0 {
                *centre = std::array::from_fn(|i| sums[i] / sums[WIDTH]);
            }
        }
        self.steps += 1;
        if self.steps.is_multiple_of(ITERATIONS) {
            let codes: Vec<usize> = (0..ITEMS).map(|item| self.nearest(item)).collect();
            for (x, code) in self.rest.iter_mut().zip(&codes) {
                x.iter_mut().zip(&self.centres[*code]).for_each(|(x, centre)| *x -= centre);
            }
            self.codes.push(codes);
            self.books.push(std::mem::take(&mut self.centres));
            if self.steps < STEPS {
                self.begin_level();
            }
        }
    }

    pub(crate) fn mean_square(&self) -> f32 {
        self.rest.iter().flatten().map(|x| x * x).sum::<f32>() / (ITEMS * WIDTH) as f32
    }
}

/// The sum over some units: halves are added, as the library does.
fn sum(clusters: &Clusters, units: Range<usize>) -> Vec<f32> {
    if units.len() == 1 {
        return clusters.sums(units.start * UNIT..units.end * UNIT, 1.0);
    }
    let middle = units.start + units.len() / 2;
    let (left, right) = (sum(clusters, units.start..middle), sum(clusters, middle..units.end));
    left.iter().zip(&right).map(|(left, right)| left + right).collect()
}

/// Plain k-means in this thread. `level` is called when one is done.
pub(crate) fn alone(seed: u64, mut level: impl FnMut(&Clusters)) -> Clusters {
    let mut clusters = Clusters::new(items(seed), seed);
    for _ in 0..STEPS {
        let sums = sum(&clusters, 0..ITEMS / UNIT);
        clusters.update(&sums);
        if clusters.steps.is_multiple_of(ITERATIONS) {
            level(&clusters);
        }
    }
    clusters
}

/// A worker that may be late in every step, or die.
fn work(
    mut aggregator: Aggregator,
    seed: u64,
    late: bool,
    dies: bool,
) -> Result<Clusters, Failure> {
    let mut clusters = Clusters::new(items(seed), seed);
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(task) if dies && task.step() >= DEATH => break,
            Event::Compute(mut task) => {
                // Until the coordinator cancels it: a run that waited would fail.
                while late && !task.cancel().is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                while let Some(part) = task.next_part() {
                    let sums = clusters.sums(part.samples, part.coefficient as f32);
                    task.message().copy_from_slice(&sums);
                }
                task.submit(vec![])?;
            }
            Event::Apply(step) => clusters.update(step.gradient()),
            _ => return Err("every sum is finite, and all steps are kept".into()),
        }
    }
    Ok(clusters)
}

/// The same over eight threads, of which any two in four have the same units. The replicas of all
/// but the one that dies, which is no partner of the late one.
pub(crate) fn coded(seed: u64, late: Worker) -> Result<Vec<Clusters>, Failure> {
    let dies = Worker((late.0 + 3) % WORKERS as u32);
    let run = Coordinator::builder("groups:s=1").workers(WORKERS).steps(STEPS).length(SUMS);
    // Steps are so short that a thread may sleep through many. The run keeps all for it, since no
    // thread here can take over the state of another.
    let run = run.log_steps(STEPS);
    let (coordinator, workers) = run.units((ITEMS / UNIT) as u32).unit_samples(UNIT).local()?;
    let threads: Vec<_> = Worker::all(WORKERS)
        .zip(workers)
        .map(|(worker, aggregator)| {
            thread::spawn(move || work(aggregator, seed, worker == late, worker == dies))
        })
        .collect();
    assert_eq!(coordinator.run(&mut ())?, Outcome::Finished);
    let mut replicas = Vec::new();
    for (worker, thread) in Worker::all(WORKERS).zip(threads) {
        let clusters = thread.join().map_err(|_| "a worker panicked")??;
        if worker != dies {
            replicas.push(clusters);
        }
    }
    Ok(replicas)
}

fn main() -> Result<(), Failure> {
    let start = Clusters::new(items(1), 1).mean_square();
    println!("mean square of the items: {start:.2}");
    let plain = alone(1, |done| {
        println!("after level {}: {:.3}", done.books.len(), done.mean_square());
    });
    for late in Worker::all(WORKERS) {
        assert!(coded(1, late)?.iter().all(|replica| *replica == plain), "{late} late");
    }
    println!("with each of {WORKERS} workers late, and one killed: the same ids and centres");
    Ok(())
}
