//! Whether one run is slower than another, and how sure that is.

use super::numbers::{median, times};
use super::record::{Record, RecordedRound};
use super::{Caution, Examination, ExaminedWorker, WARM_UP_MOST};
use crate::sim::planner::memory;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// With fewer steps of a run, after its warm-up, there is no interval.
const STEPS_LEAST: usize = 20;
/// A block is this many times as long as steps hang together: blocks side by side are alike else.
const MEMORIES: f64 = 2.5;
/// A block is at most this part of a run, so that there are five.
const BLOCKS_LEAST: usize = 5;
/// Of a larger part of the steps the last result must have been received for an interval.
const WHOLE_LEAST: f64 = 0.95;
/// A longer run is looked at in groups of steps: what hangs together is found pair by pair.
const GROUPS_MOST: usize = 4096;
/// The normal distribution's 97.5 % quantile.
const NORMAL: f64 = 1.959_964;
/// What would take more steps is not promised.
const MORE_MOST: f64 = 1e6;

/// How many of the first steps are left out of both of two runs, which have this many: caches,
/// compilers and connections warm up in them. At least one step of each stays.
///
/// ```
/// use codedgrad::doctor::warm_up;
/// assert_eq!((warm_up([300, 40]), warm_up([300, 2]), warm_up([0, 0])), (3, 1, 0));
/// ```
#[must_use]
pub fn warm_up(steps: [usize; 2]) -> usize {
    WARM_UP_MOST.min(steps[0].min(steps[1]).saturating_sub(1))
}

/// One of two runs, as it is compared. What its record does not show is none or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunSide {
    /// Seconds of each step, in order, without the warm-up.
    pub seconds: Vec<f64>,
    /// Steps that count to the last result that was received, since one was not: of traces alone,
    /// whose steps wait for all results.
    pub open_ended: usize,
    /// The text of its scheme.
    pub scheme: String,
    /// Number of workers.
    pub workers: usize,
    /// Samples of a step.
    pub samples: Option<f64>,
    /// Load of a step in batches; uncoded = 1.
    pub work: Option<f64>,
    /// Mean seconds per step that went into each part of it, by its name.
    pub parts: Vec<(String, f64)>,
    /// How many times the median of its round each worker takes on average, by its name.
    pub ratios: BTreeMap<String, f64>,
}

impl RunSide {
    /// A run by its record without the warm-up, what an examination of that has found, the samples
    /// of a whole batch, and what workers are called; they have numbers where `names` is empty.
    ///
    /// # Formula
    /// ```text
    /// samples = samples of a batch x mean coverage of its steps (1 where the record has none)
    /// work    = mean load of its steps
    /// part    = seconds of TimeSpent / steps
    /// ```
    #[must_use]
    pub fn of(
        record: &Record,
        found: &Examination,
        samples: Option<f64>,
        names: &[String],
    ) -> Self {
        let mean = |values: Vec<f64>| {
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let steps = &record.steps;
        let coverage = mean(steps.iter().filter_map(|step| step.coverage).collect());
        let time = &found.time;
        let mut parts = vec![("computing", time.computing), ("waiting", time.waiting)];
        // The rows of a trace end with their last answers.
        if !record.is_trace() {
            parts.extend([("deciding", time.deciding), ("between", time.between)]);
        }
        let count = steps.len().max(1) as f64;
        let is_open = |round: &&RecordedRound| round.arrivals.contains(&None);
        let hidden = found.cautions.iter().any(Caution::hides_workers);
        let answered = |worker: &&ExaminedWorker| !hidden && worker.unanswered < found.rounds;
        let ratios = found.of_workers.iter().filter(answered).filter_map(|worker| {
            let number = || worker.worker.to_string();
            Some((names.get(worker.worker).cloned().unwrap_or_else(number), worker.ratio?))
        });
        Self {
            seconds: steps.iter().map(|step| step.seconds).collect(),
            open_ended: if record.is_trace() {
                record.closed.iter().filter(is_open).count()
            } else {
                0
            },
            scheme: found.scheme.clone(),
            workers: found.workers,
            samples: samples.map(|samples| samples * coverage.unwrap_or(1.0)),
            work: mean(steps.iter().filter_map(|step| step.work).collect()),
            parts: parts.into_iter().map(|(name, sum)| (name.to_owned(), sum / count)).collect(),
            ratios: ratios.collect(),
        }
    }

    /// Whether nearly all steps have all of their time.
    fn is_whole(&self) -> bool {
        self.open_ended as f64 <= (1.0 - WHOLE_LEAST) * self.seconds.len() as f64
    }

    /// Mean seconds per step, and the variance of that.
    ///
    /// # Formula
    /// That of the circular block bootstrap, for which no resample is drawn: the mean of `n / L`
    /// blocks drawn from the `n` that begin at each step has the variance
    /// ```text
    /// v = L / n . 1/n sum_i (m_i - m)^2 . n / (n - L)
    /// ```
    /// where `m_i` is the mean of the `L` steps from step `i` on, the first steps following the
    /// last, and `n / (n - L)` makes up for blocks of one run sharing its mean `m`.
    fn mean(&self, memory: usize) -> MeanOfRun {
        let (values, group) = grouped(&self.seconds);
        let count = values.len();
        let block = block(memory.div_ceil(group), count);
        let mean = values.iter().sum::<f64>() / count as f64;
        let mut sum: f64 = values[..block].iter().sum();
        let mut squares = 0.0;
        for at in 0..count {
            squares += (sum / block as f64 - mean).powi(2);
            sum += values[(at + block) % count] - values[at];
        }
        let blocks = count as f64 / block as f64;
        let share = (count - block) as f64 / count as f64;
        let variance = squares / count as f64 / blocks / share;
        MeanOfRun { relative: variance / (mean * mean), block: block * group, blocks }
    }
}

/// How sure the mean of a run's steps is.
struct MeanOfRun {
    /// Variance of the mean, over the mean's square.
    relative: f64,
    /// Steps of a block.
    block: usize,
    /// How many blocks the run has.
    blocks: f64,
}

/// Means of as many steps in a row as make no more than [`GROUPS_MOST`], and how many these are;
/// what is left over at the end says nothing of the variance.
fn grouped(seconds: &[f64]) -> (Vec<f64>, usize) {
    let group = seconds.len().div_ceil(GROUPS_MOST).max(1);
    let groups = seconds.chunks_exact(group);
    (groups.map(|steps| steps.iter().sum::<f64>() / group as f64).collect(), group)
}

/// Steps of a block where this many steps in a row hang together.
fn block(memory: usize, steps: usize) -> usize {
    let least = (steps as f64).cbrt().ceil() as usize;
    // A memory of 1 is none.
    let spells = if memory > 1 { (MEMORIES * memory as f64).ceil() as usize } else { 1 };
    spells.max(least).min(steps / BLOCKS_LEAST).max(1)
}

/// Student's 97.5 % quantile, by its expansion about the normal one: good to 0.01 from four
/// degrees of freedom on.
fn student(freedom: f64) -> f64 {
    let z = NORMAL;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    terms.iter().rev().fold(0.0, |rest, term| (rest + term) / freedom) + z
}

/// A number of both runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Of the first run.
    pub a: f64,
    /// Of the second.
    pub b: f64,
}

impl Pair {
    /// By which fraction the second is larger: `b / a - 1`; infinite where `a` alone is 0.
    #[must_use]
    pub fn change(&self) -> f64 {
        times(self.b, self.a) - 1.0
    }
}

impl Serialize for Pair {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            a: f64,
            b: f64,
            change: f64,
        }
        Shown { a: self.a, b: self.b, change: self.change() }.serialize(serializer)
    }
}

/// Between what the change of the mean seconds per step lies, at 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ChangeInterval {
    /// From here, as a fraction of the first run's mean.
    pub low: f64,
    /// To here.
    pub high: f64,
    /// Steps of a block, in each run.
    pub block: [usize; 2],
}

/// What only one of the runs shows, or what neither does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCompared {
    /// What it is.
    pub what: String,
    /// Why not.
    pub why: String,
}

impl fmt::Display for NotCompared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} cannot be compared: {}", self.what, self.why)
    }
}

/// Whether the second run is slower by more than a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeVerdict {
    /// It is: the whole interval is above the limit.
    Slower,
    /// It is not: no part of the interval is above the limit.
    NotSlower,
    /// The interval holds the limit, or there is none.
    NotDecided {
        /// About how many more steps of each run would decide it, if the change stays what it is;
        /// none where that is not known or more than a million.
        more: Option<u64>,
    },
}

/// Two runs beside each other. A positive change is a second run that takes longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Whether seconds are those of a sample, since the runs' workers, schemes or batches differ;
    /// else those of a step.
    pub per_sample: bool,
    /// Median seconds.
    pub median: Pair,
    /// Mean seconds.
    pub mean: Pair,
    /// How sure the change of the mean is; none of too few steps.
    pub interval: Option<ChangeInterval>,
    /// Load of a step in batches.
    pub work: Option<Pair>,
    /// Mean seconds of each part that both runs show.
    pub parts: Vec<(String, Pair)>,
    /// Times of each worker that is in both, over the median of its round.
    pub workers: Vec<(String, Pair)>,
    /// What cannot be compared.
    pub not_compared: Vec<NotCompared>,
    /// Steps of the longer run.
    steps: usize,
}

impl Comparison {
    /// Compares two runs.
    ///
    /// # Formula
    /// ```text
    /// change   = mean_B / mean_A - 1, seconds per sample where both say samples and differ in
    ///            workers, scheme or samples; else seconds per step
    /// interval = (1 + change) exp(-+ t s) - 1,   s^2 = v_A / mean_A^2 + v_B / mean_B^2
    /// L        = max(2.5 m, n^(1/3)), at most n / 5
    /// ```
    /// where `v` is the variance of a run's mean by a circular block bootstrap with blocks of `L`
    /// of its `n` steps, in closed form, with the factor `n / (n - L)`. `m` is the larger memory of
    /// the two runs: the distance from which on the autocorrelation of steps is below two standard
    /// errors, so that a block is longer than a spell of slow steps. `t` is Student's 97.5 %
    /// quantile of `n / L - 1` degrees of freedom, of the run with fewer blocks. A run of fewer
    /// than 20 steps, whose steps take no time, or of whose steps more than 5 % have a result that
    /// was not received, has no interval.
    ///
    /// # Cost
    /// O(steps x memory), of at most 4,096 groups of steps per run.
    ///
    /// ```
    /// use codedgrad::doctor::{Comparison, RunSide, ChangeVerdict};
    /// let run = |slower: f64| {
    ///     let jitter = |step: usize| slower * (1.0 + 0.01 * (step * 7 % 10) as f64);
    ///     RunSide { seconds: (0..200).map(jitter).collect(), workers: 8, ..RunSide::default() }
    /// };
    /// let found = Comparison::of(&run(1.0), &run(1.1));
    /// assert!((found.mean.change() - 0.1).abs() < 1e-9);
    /// assert_eq!(found.verdict(0.05), ChangeVerdict::Slower);
    /// assert_eq!(found.verdict(0.15), ChangeVerdict::NotSlower);
    /// assert!(matches!(found.verdict(0.1), ChangeVerdict::NotDecided { .. }));
    /// ```
    #[must_use]
    pub fn of(a: &RunSide, b: &RunSide) -> Self {
        let sides = [a, b];
        let mut not_compared = Vec::new();
        let mut not = |what: String, why: String| not_compared.push(NotCompared { what, why });
        let unlike = unlike(a, b);
        let samples = a.samples.zip(b.samples).filter(|(a, b)| *a > 0.0 && *b > 0.0);
        if let (Some(unlike), None) = (&unlike, samples) {
            let why = format!("{unlike}, and {}", without(sides, |side| side.samples.is_none()));
            not("seconds per sample".into(), format!("{why} samples; these are per step"));
        }
        let per_sample = samples.filter(|_| unlike.is_some());
        let of_samples = per_sample.unwrap_or((1.0, 1.0));
        let pair = |a: f64, b: f64| Pair { a: a / of_samples.0, b: b / of_samples.1 };
        let mean =
            |side: &RunSide| side.seconds.iter().sum::<f64>() / side.seconds.len().max(1) as f64;
        let mean = pair(mean(a), mean(b));
        let interval = interval(sides, &mean);
        let fewest = a.seconds.len().min(b.seconds.len());
        let open = sides.map(|side| side.open_ended);
        if open != [0, 0] {
            not(
                "all of the time".into(),
                format!(
                    "{} of A's steps and {} of B's have a result that was not received, and count \
                     to the last one that was",
                    open[0], open[1]
                ),
            );
        }
        if fewest < STEPS_LEAST {
            let s = if fewest == 1 { "" } else { "s" };
            not(
                "how sure the change is".into(),
                format!("{fewest} step{s} after the warm-up, where {STEPS_LEAST} are needed"),
            );
        } else if !sides.iter().all(|side| side.is_whole()) {
            not(
                "how sure the change is".into(),
                "too many steps have a result that was not received".into(),
            );
        } else if interval.is_none() {
            not("how sure the change is".into(), "the steps of a run take no time".into());
        }
        if a.work.is_some() != b.work.is_some() {
            not("work".into(), without(sides, |side| side.work.is_none()) + " work");
        }
        let names = |side: &RunSide| side.parts.iter().map(|(name, _)| name.clone()).collect();
        let (parts, apart) = matched(&[names(a), names(b)]);
        if let Some(why) = apart {
            not("parts of steps".into(), why);
        }
        let names = |side: &RunSide| side.ratios.keys().cloned().collect::<Vec<_>>();
        let (workers, apart) = matched(&[names(a), names(b)]);
        if a.ratios.is_empty() || b.ratios.is_empty() {
            not(
                "workers".into(),
                without(sides, |side| side.ratios.is_empty()) + " which workers are slow",
            );
        } else if let Some(why) = apart {
            not("some workers".into(), why);
        }
        let part = |side: &RunSide, name: &str| {
            side.parts.iter().find(|part| part.0 == name).map_or(0.0, |part| part.1)
        };
        let of_part = |name: String| {
            let found = pair(part(a, &name), part(b, &name));
            (name, found)
        };
        let of_worker = |name: String| {
            let found = Pair { a: a.ratios[&name], b: b.ratios[&name] };
            (name, found)
        };
        Self {
            per_sample: per_sample.is_some(),
            median: pair(median(a.seconds.clone()), median(b.seconds.clone())),
            mean,
            interval,
            work: a.work.zip(b.work).map(|(a, b)| Pair { a, b }),
            parts: parts.into_iter().map(of_part).collect(),
            workers: workers.into_iter().map(of_worker).collect(),
            not_compared,
            steps: a.seconds.len().max(b.seconds.len()),
        }
    }

    /// Whether the second run is slower by more than a limit, a fraction such as 0.05.
    ///
    /// # Formula
    /// ```text
    /// more = n ((w / d)^2 - 1),  w = ln((1 + high) / (1 + change)),
    ///                            d = |ln((1 + change) / (1 + limit))|
    /// ```
    /// of the `n` steps of the longer run, since the interval shrinks with `1 / sqrt(n)`; rounded
    /// up to two digits.
    #[must_use]
    pub fn verdict(&self, limit: f64) -> ChangeVerdict {
        let Some(interval) = self.interval else { return ChangeVerdict::NotDecided { more: None } };
        if interval.low > limit {
            return ChangeVerdict::Slower;
        }
        if interval.high <= limit {
            return ChangeVerdict::NotSlower;
        }
        let change = self.mean.change().ln_1p();
        let (width, distance) = (interval.high.ln_1p() - change, (change - limit.ln_1p()).abs());
        let more = self.steps as f64 * ((width / distance).powi(2) - 1.0);
        let digits = 10f64.powf(more.max(10.0).log10().floor() - 1.0);
        let more = (more / digits).ceil().max(1.0) * digits;
        ChangeVerdict::NotDecided { more: (more <= MORE_MOST).then_some(more as u64) }
    }
}

/// How sure the change of a mean is.
fn interval(sides: [&RunSide; 2], mean: &Pair) -> Option<ChangeInterval> {
    let has_enough = |side: &&RunSide| side.seconds.len() >= STEPS_LEAST && side.is_whole();
    if !sides.iter().all(has_enough) || mean.a <= 0.0 || mean.b <= 0.0 {
        return None;
    }
    let memory = sides.map(|side| {
        let (values, group) = grouped(&side.seconds);
        match memory(&values) {
            1 => 1,
            groups => groups * group,
        }
    });
    let [a, b] = sides.map(|side| side.mean(memory[0].max(memory[1])));
    let student = student(a.blocks.min(b.blocks) - 1.0);
    let width = (student * (a.relative + b.relative).sqrt()).exp();
    let ratio = 1.0 + mean.change();
    let block = [a.block, b.block];
    // Times near the smallest numbers have no squares.
    width.is_finite().then(|| ChangeInterval {
        low: ratio / width - 1.0,
        high: ratio * width - 1.0,
        block,
    })
}

/// In what two runs differ that a step's time depends on.
fn unlike(a: &RunSide, b: &RunSide) -> Option<String> {
    let mut found = Vec::new();
    if a.workers != b.workers {
        found.push(format!("workers ({} and {})", a.workers, b.workers));
    }
    if a.scheme != b.scheme {
        found.push(format!("schemes ({} and {})", a.scheme, b.scheme));
    }
    if let Some((a, b)) = a.samples.zip(b.samples).filter(|(a, b)| a != b) {
        found.push(format!("samples of a step ({a} and {b})"));
    }
    (!found.is_empty()).then(|| format!("the runs differ in {}", found.join(", ")))
}

/// Which of the runs does not show something.
fn without(sides: [&RunSide; 2], lacks: impl Fn(&RunSide) -> bool) -> String {
    match sides.map(lacks) {
        [true, true] => "neither run shows".into(),
        [true, false] => "A does not show".into(),
        _ => "B does not show".into(),
    }
}

/// The names in both lists, and where there are others a sentence about them.
fn matched(names: &[Vec<String>; 2]) -> (Vec<String>, Option<String>) {
    const LISTED: usize = 8;
    let [a, b] = names;
    let sets = names.each_ref().map(|names| names.iter().collect::<BTreeSet<_>>());
    let only = |which: &str, some: &[String], others: &BTreeSet<&String>| {
        let alone: Vec<&str> =
            some.iter().filter(|name| !others.contains(name)).map(String::as_str).collect();
        let shown = alone.get(..LISTED).unwrap_or(&alone).join(", ");
        let more = if alone.len() > LISTED { ", .." } else { "" };
        (!alone.is_empty()).then(|| format!("{which} alone has {shown}{more}"))
    };
    let alone = [only("A", a, &sets[1]), only("B", b, &sets[0])];
    let alone: Vec<String> = alone.into_iter().flatten().collect();
    let both = a.iter().filter(|name| sets[1].contains(name)).cloned().collect();
    (both, (!alone.is_empty()).then(|| alone.join("; ")))
}

#[cfg(test)]
mod tests;
