//! A mixture of experts over eight ranks: two share each sequence, two share the experts, folded
//! over the same ranks, so that four cells of two ranks are left to code over. In each step a cell
//! sleeps until the run no longer wants its result; one dies on the way. Every gradient is still
//! that of the whole batch. Ranks are threads: those of a cell exchange tokens' rows with those
//! that have their experts, and the first collects the cell's gradient and has its aggregator.
//!
//! `cargo run -p codedgrad --no-default-features --example folded_moe`
#[path = "folded_moe/model.rs"]
mod model;

use codedgrad::ids::{Rank, Seat, Worker};
use codedgrad::mesh::{Axis, Class, Layers, Layout, Mesh};
use codedgrad::train::{Aggregator, Coordinator, Event, Outcome};
use model::{DENSE, EXPERT, EXPERTS, Model, Peers, Token, add, dot};
use std::ops::Range;
use std::sync::mpsc::channel;
use std::{error::Error, thread, time::Duration};

const TEXT: &[u8] =
    b"a rank that waits for a rank is as late as the rank it waits for. a cell that \
    waits for nobody is late by itself alone, and a code goes on without it. when it wakes up it \
    has every step that it has missed, and when it never wakes up nobody is any the wiser. ";
/// Tokens of a window, and windows of a batch.
const WINDOW: usize = 16;
pub(crate) const WINDOWS: usize = 8;
pub(crate) const TOKENS: f64 = (WINDOW * WINDOWS) as f64;
const STEPS: u64 = 80;
/// Who dies, and in which step.
const DIES: (Worker, u64) = (Worker(3), 50);
const RATE: f64 = 2.0;
/// Parameters of a cell, and numbers in its vector.
pub(crate) const ALL: usize = DENSE + EXPERTS * EXPERT;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// A class of parameters, the seats that sum its gradient, and where that is in the cell's vector.
type Segment = (Class, Vec<Seat>, Range<usize>);

/// The gradient of a cell as one vector: for each seat, the sums that it is the first of.
fn segments(mesh: &Mesh) -> Vec<Segment> {
    let of = |class| mesh.seats(class).into_iter().map(move |seats| (seats, class));
    let mut sums: Vec<_> = of(Class::Dense).chain(of(Class::Expert)).collect();
    sums.sort_by_key(|(seats, class)| (seats[0], *class));
    let mut placed: Vec<Segment> = Vec::new();
    for (seats, class) in sums {
        let start = placed.last().map_or(0, |(_, _, range)| range.end);
        let experts = EXPERTS / mesh.layout().ep as usize * EXPERT;
        let length = if class == Class::Dense { DENSE } else { experts };
        placed.push((class, seats, start..start + length));
    }
    placed
}

/// The channels of each rank of a group.
fn channels(group: &[Rank]) -> Vec<Peers> {
    let mut sends = vec![Vec::new(); group.len()];
    let mut receives = Vec::new();
    for _ in group {
        let (to, from): (Vec<_>, Vec<_>) = group.iter().map(|_| channel()).unzip();
        sends.iter_mut().zip(to).for_each(|(sends, to)| sends.push(to));
        receives.push(from);
    }
    sends.into_iter().zip(receives).collect()
}

/// A cell, as its first rank has it.
pub(crate) struct Cell {
    segments: Vec<Segment>,
    ranks: Vec<Model>,
}

impl Cell {
    /// The ranks of a worker, with the parameters that a vector of it has.
    pub(crate) fn new(mesh: &Mesh, worker: Worker, vector: &[f64]) -> Result<Self, Failure> {
        let mut ranks = Vec::new();
        let groups = mesh.groups(Layers::Expert, &[Axis::Expert]).into_iter();
        for group in groups.filter(|group| mesh.worker(group[0]) == worker) {
            for (rank, peers) in group.iter().zip(channels(&group)) {
                let local = mesh.local_experts(*rank, EXPERTS as u32)?;
                let local = local.start as usize..local.end as usize;
                let experts = vector[DENSE..][local.start * EXPERT..local.end * EXPERT].to_vec();
                ranks.push(Model { dense: vector[..DENSE].to_vec(), experts, local, peers });
            }
        }
        Ok(Self { segments: segments(mesh), ranks })
    }

    /// The segments that a seat has a part in.
    fn of(&self, seat: usize) -> impl Iterator<Item = (Class, Range<usize>)> + use<> {
        let seat = Seat(seat as u32);
        let mine =
            self.segments.clone().into_iter().filter(move |(_, seats, _)| seats.contains(&seat));
        mine.map(|(class, _, range)| (class, range))
    }

    /// The gradient of `scale` times the loss of some tokens, of which every rank takes as many, as
    /// the cell's vector; then that loss, and how many tokens each expert had.
    pub(crate) fn gradient(&mut self, tokens: &[Token], scale: f64) -> (Vec<f64>, Vec<f64>) {
        let tokens = tokens.chunks(tokens.len() / self.ranks.len());
        let sums: Vec<_> = thread::scope(|scope| {
            let ranks = self.ranks.iter_mut().zip(tokens);
            let threads: Vec<_> =
                ranks.map(|(rank, own)| scope.spawn(move || rank.gradient(own, scale))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
        });
        let (mut vector, mut aux) = (vec![0.0; ALL], vec![0.0; 1 + EXPERTS]);
        for (seat, [dense, experts, more]) in sums.iter().enumerate() {
            for (class, range) in self.of(seat) {
                let sum = if class == Class::Dense { dense } else { experts };
                add(&mut vector[range], sum, 1.0);
            }
            add(&mut aux, more, 1.0);
        }
        (vector, aux)
    }

    /// Hands every rank its pieces of a decoded vector, by which it takes a step.
    fn apply(&mut self, step: &[f32]) {
        for seat in 0..self.ranks.len() {
            for (class, range) in self.of(seat) {
                let Model { dense, experts, .. } = &mut self.ranks[seat];
                let parameters = if class == Class::Dense { dense } else { experts };
                let step: Vec<f64> = step[range].iter().map(|x| f64::from(*x)).collect();
                add(parameters, &step, -RATE);
            }
        }
    }
}

/// The tokens of some windows of a batch.
pub(crate) fn tokens(batch: u64, windows: Range<usize>) -> Vec<Token> {
    let first = batch as usize * WINDOWS * WINDOW;
    let byte = |at: usize| usize::from(TEXT[(first + at) % TEXT.len()]);
    (windows.start * WINDOW..windows.end * WINDOW).map(|at| (byte(at), byte(at + 1))).collect()
}

/// Numbers to begin with, as good as random.
pub(crate) fn parameters() -> Vec<f64> {
    (0..ALL)
        .map(|at| ((at + 1) as f64 * 12.9898).sin() * 43758.5453)
        .map(|x| x.fract() * 0.5)
        .collect()
}

/// Who sleeps in a step: each cell in its turn, as long as another computes the same.
fn sleeper(step: u64) -> Worker {
    Worker((step % if step < DIES.1 { 4 } else { 2 }) as u32)
}

/// Gives back how many steps the cell has taken.
fn train(mut aggregator: Aggregator, mesh: &Mesh) -> Result<u64, Failure> {
    let worker = aggregator.worker().ok_or("no worker's aggregator")?;
    let mut cell = Cell::new(mesh, worker, &parameters())?;
    let mut whole = Cell::new(&Mesh::new(Layout::default())?, Worker(0), &parameters())?;
    let mut steps = 0;
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(task) if worker == DIES.0 && task.step() >= DIES.1 => break,
            Event::Compute(mut task) => {
                // If the run waited for it, it would sleep for ever, and the run would fail.
                while sleeper(task.step()) == worker && !task.cancel().is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                let mut aux = vec![0.0; 1 + EXPERTS];
                while let Some(part) = task.next_part() {
                    let tokens = tokens(task.batch(), part.samples);
                    let (gradient, more) = cell.gradient(&tokens, part.coefficient / TOKENS);
                    task.message().iter_mut().zip(&gradient).for_each(|(to, g)| *to = *g as f32);
                    add(&mut aux, &more, 1.0);
                }
                task.submit(aux)?;
            }
            Event::Apply(step) => {
                let (gradient, aux) = whole.gradient(&tokens(step.index, 0..WINDOWS), 1.0 / TOKENS);
                let apart = step.gradient().iter().zip(&gradient).map(|(x, y)| f64::from(*x) - y);
                let apart: Vec<f64> = apart.collect();
                let apart = (dot(&apart, &apart) / dot(&gradient, &gradient)).sqrt();
                assert!(apart <= 1e-5, "step {}: off by {apart}", step.index);
                assert_eq!(step.aux()[1..], aux[1..], "the tokens of each expert");
                cell.apply(step.gradient());
                whole.apply(step.gradient());
                steps += 1;
                if worker == Worker(0) && step.index % 20 == 19 {
                    println!("step {}: loss {:.3}", step.index + 1, step.aux()[0]);
                }
            }
            _ => return Err("every gradient is finite, and nobody misses so much".into()),
        }
    }
    Ok(steps)
}

fn main() -> Result<(), Failure> {
    let layout = Layout { world: 8, cp: 2, etp: Some(1), ep: 2, ..Layout::default() };
    let mesh = Mesh::new(layout)?;
    let [dense, experts] = [Class::Dense, Class::Expert].map(|class| mesh.seats(class)[0].len());
    assert_eq!((mesh.workers(), dense, experts), (4, 2, 1));
    let run = Coordinator::builder("groups:s=1").workers(mesh.workers()).steps(STEPS);
    let (coordinator, workers) = run.length(ALL).unit_samples(WINDOWS / 4).local()?;
    let begin = |worker| thread::spawn(move || train(worker, &mesh));
    let threads: Vec<_> = workers.into_iter().map(begin).collect();
    assert_eq!(coordinator.run(&mut ())?, Outcome::Finished);
    for (worker, thread) in Worker::all(mesh.workers()).zip(threads) {
        let steps = thread.join().map_err(|_| "a worker panicked")??;
        assert!(steps == STEPS || worker == DIES.0, "{worker} has taken {steps} steps");
    }
    Ok(())
}
