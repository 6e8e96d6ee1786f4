//! How often a plan's interval holds what it is of: the gain of the recommended scheme on rounds
//! that the plan has not seen.

use crate::planner::{families, planned, rows, simulated};
use codedgrad::delays::{Growth, Preset};
use codedgrad::sim::planner::{Candidate, GainInterval, Question};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;

/// How a cell's answers come about. All times but those of presets are 1 s and an exponential of
/// mean 0.05 s, and what is said.
#[derive(Clone, Copy, Debug)]
enum Answers {
    /// A preset's.
    Of(Preset),
    /// Late in spells: so many rounds of all, spells of so many on average, as late as 1 s to so
    /// many seconds in each round, and so many workers always together.
    Spells { late: f64, rounds: f64, most: f64, together: usize },
    /// So late with such a chance, each by itself.
    Stalls { seconds: f64, chance: f64 },
    /// Pareto's with this tail, at least 1 s, and nothing else.
    Pareto { tail: f64 },
}

/// Draws of one seed.
struct Draw(ChaCha8Rng);

impl Draw {
    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn steady(&mut self) -> f64 {
        1.0 - 0.05 * self.uniform().ln()
    }
}

impl Answers {
    fn growth(self, workers: usize) -> Growth {
        match self {
            Self::Of(preset) => preset.growth(workers),
            _ => Growth::usual(None, workers),
        }
    }

    fn rows(self, workers: usize, rounds: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
        match self {
            Self::Of(preset) => rows(preset, workers, rounds, seed),
            Self::Spells { late, rounds: length, most, together } => {
                let begins = late / (1.0 - late) / length;
                let hosts = workers / together;
                let mut is_late: Vec<bool> = (0..hosts).map(|_| draw.uniform() <= late).collect();
                let mut row = || {
                    let mut row = Vec::with_capacity(workers);
                    for is in &mut is_late {
                        for _ in 0..together {
                            let late = if *is { 1.0 + (most - 1.0) * draw.uniform() } else { 0.0 };
                            row.push(draw.steady() + late);
                        }
                        let changes = if *is { 1.0 / length } else { begins };
                        *is ^= draw.uniform() <= changes;
                    }
                    row
                };
                (0..rounds).map(|_| row()).collect()
            }
            Self::Stalls { seconds, chance } => {
                let mut answer =
                    || draw.steady() + if draw.uniform() <= chance { seconds } else { 0.0 };
                (0..rounds).map(|_| (0..workers).map(|_| answer()).collect()).collect()
            }
            Self::Pareto { tail } => {
                let mut answer = || draw.uniform().powf(-1.0 / tail);
                (0..rounds).map(|_| (0..workers).map(|_| answer()).collect()).collect()
            }
        }
    }
}

/// The gains of schemes over rounds that no plan has seen.
struct Truth {
    fresh: Vec<Vec<f64>>,
    growth: Growth,
    known: HashMap<String, f64>,
}

impl Truth {
    fn of(answers: Answers, workers: usize) -> Self {
        let fresh = answers.rows(workers, ANSWERS / workers, 1 << 40);
        Self { fresh, growth: answers.growth(workers), known: HashMap::new() }
    }

    fn time(&mut self, candidate: &Candidate) -> f64 {
        let name = candidate.scheme.to_string();
        let timed = || simulated(candidate, &self.fresh, self.growth);
        *self.known.entry(name).or_insert_with(timed)
    }
}

/// What was said of the traces of a cell for which a code was recommended.
#[derive(Default)]
struct Said {
    /// What is said to be saved, and what is.
    saved: Vec<(f64, f64)>,
    /// Intervals, and what they are of.
    given: Vec<(GainInterval, f64)>,
}

impl Said {
    /// Shares of the recommendations that have an interval, and of the intervals that hold.
    fn shares(&self) -> (f64, f64) {
        let holds =
            |(interval, gain): &&(GainInterval, f64)| (interval.low..=interval.high).contains(gain);
        let (given, all) = (self.given.len() as f64, self.saved.len() as f64);
        (given / all, self.given.iter().filter(holds).count() as f64 / given)
    }

    /// By how much what is said to be saved is too good, and the standard error of that.
    fn too_good(&self) -> (f64, f64) {
        let off = |(said, gain): &(f64, f64)| said - gain;
        let count = self.saved.len() as f64;
        let mean = self.saved.iter().map(off).sum::<f64>() / count;
        let squares: f64 = self.saved.iter().map(|one| (off(one) - mean).powi(2)).sum();
        (mean, (squares / count / count).sqrt())
    }

    fn add(&mut self, other: Self) {
        self.saved.extend(other.saved);
        self.given.extend(other.given);
    }
}

/// Answers of which the true times are the means.
const ANSWERS: usize = 2_400_000;

/// `cargo test --release -p codedgrad --no-default-features --test local intervals_hold --
/// --ignored --nocapture`; traces of a cell until a code is recommended for `SEEDS`, 400 if not
/// told, but at most four times as many, from seed `SEEDS_FROM` on.
#[test]
#[ignore = "minutes, even when optimized"]
fn intervals_hold_what_they_are_of() {
    let told = |name: &str, usual: u64| std::env::var(name).map_or(usual, |it| it.parse().unwrap());
    let (from, seeds) = (told("SEEDS_FROM", 1), told("SEEDS", 400) as usize);
    let all = families(["groups", "queue", "defer"]);
    let (groups, both, late) = (&all[..1], &all[..2], &all[2..]);
    let short = Answers::Spells { late: 0.11, rounds: 2.5, most: 8.0, together: 1 };
    let pairs = Answers::Spells { late: 0.11, rounds: 2.5, most: 8.0, together: 2 };
    let long = Answers::Spells { late: 0.11, rounds: 10.0, most: 12.0, together: 1 };
    let stalls = Answers::Stalls { seconds: 60.0, chance: 0.004 };
    let (light, heavy) = (Answers::Pareto { tail: 2.5 }, Answers::Pareto { tail: 1.5 });
    let [iid, hotspot, bursts, rare] =
        [Preset::Iid, Preset::Hotspot, Preset::Bursts, Preset::Stalls].map(Answers::Of);
    // Cells with a name in front are asked for: how often intervals are given and hold in them.
    let cells = [
        ("presets", iid, 8, 100, groups),
        ("presets", hotspot, 8, 100, groups),
        ("presets", hotspot, 8, 30, groups),
        ("presets", bursts, 8, 100, groups),
        ("presets", bursts, 8, 300, groups),
        ("presets", bursts, 8, 100, both),
        ("presets", rare, 8, 300, both),
        ("long spells", long, 8, 100, groups),
        ("stalls of 60 s", stalls, 8, 100, groups),
        ("64 workers", short, 64, 100, groups),
        ("tail of 1.5", heavy, 8, 100, groups),
        ("", bursts, 8, 100, late),
        ("", iid, 8, 30, groups),
        ("", bursts, 8, 30, groups),
        ("", short, 8, 30, groups),
        ("", short, 8, 100, groups),
        ("", short, 8, 300, groups),
        ("", short, 4, 100, groups),
        ("", short, 16, 100, groups),
        ("", pairs, 16, 100, groups),
        ("", long, 8, 300, groups),
        ("", long, 8, 100, both),
        ("", stalls, 8, 300, groups),
        ("", stalls, 8, 100, both),
        ("", light, 8, 100, groups),
        ("", light, 8, 100, both),
    ];
    let mut named: Vec<(&str, Said)> = Vec::new();
    for (name, answers, workers, rounds, families) in cells {
        let mut truth = Truth::of(answers, workers);
        let mut said = Said::default();
        let mut traces = 0;
        while said.saved.len() < seeds && traces < 4 * seeds as u64 {
            let seed = from + traces;
            traces += 1;
            let trace = answers.rows(workers, rounds, seed);
            let question = Question::new(&trace, truth.growth);
            let max_delay = usize::from(families[0].name == "defer");
            let plan = planned(&Question { max_delay, families, ..question });
            if plan.recommended == "uncoded" {
                continue;
            }
            let uncoded = plan.candidates.iter().find(|one| one.scheme == "uncoded");
            let gain = 1.0 - truth.time(plan.choice()) / truth.time(uncoded.unwrap());
            said.saved.push((plan.gain, gain));
            said.given.extend(plan.interval.map(|interval| (interval, gain)));
        }
        let tried = families.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
        let cell = format!("{answers:?}, {workers} workers, {rounds} rounds, {tried}");
        told_of(&cell, &said, Some(traces));
        match named.last_mut() {
            Some((last, whole)) if *last == name => whole.add(said),
            _ => named.push((name, said)),
        }
    }
    for (name, said) in named.into_iter().filter(|(name, _)| !name.is_empty()) {
        told_of(name, &said, None);
        let ((given, holds), (too_good, error)) = (said.shares(), said.too_good());
        assert!((0.9..=0.99).contains(&holds), "{name}: {holds}");
        assert!(given >= if name == "presets" { 0.8 } else { 0.4 }, "{name}: {given}");
        assert!(too_good <= (2.0 * error).max(0.01), "{name}: {too_good} +- {error}");
    }
}

/// A row of the table of docs/benchmarks.md.
fn told_of(cell: &str, said: &Said, traces: Option<u64>) {
    let ((given, holds), (too_good, error)) = (said.shares(), said.too_good());
    let of = traces.map_or(String::new(), |traces| format!(" of {traces}"));
    println!(
        "| {cell} | {}{of} | {:.0} % | {:.1} % | {:.1} +- {:.1} |",
        said.saved.len(),
        100.0 * given,
        100.0 * holds,
        100.0 * too_good,
        100.0 * error
    );
}
