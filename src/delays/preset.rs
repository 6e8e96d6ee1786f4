//! Named delay models, seeded and reproducible.

use super::Unit;
use super::draw::Draw;
use super::serverless::{Serverless, ServerlessRows};
use serde::Serialize;
use std::fmt;

/// Lateness of a slow worker, in uncoded step times, where a preset has only one kind of slowness.
const SLOW_STEPS: f64 = 3.0;
/// Mean of the jitter of the presets that were there first.
const JITTER_STEPS: f64 = 0.004;
/// Probability that a stall of the whole system begins, per step.
const STALL_BEGINS: f64 = 0.01;
/// Probability that a stall goes on for another step: it lasts 3 on average.
const STALL_GOES_ON: f64 = 2.0 / 3.0;
/// What a stall costs each worker.
const STALL_STEPS: f64 = 0.7;
/// Probability that a stall hits a worker harder, in any of its steps.
const STALL_HITS: f64 = 0.174;
/// What it then costs the worker, and the mean of an exponential on top.
const HIT_STEPS: (f64, f64) = (1.0, 1.2);
/// Mean of the proportional noise and the shape of its gamma law.
const PROPORTIONAL: (f64, u32) = (0.317, 3);

/// A delay model by name.
///
/// Most presets are in units of the uncoded compute time of a step: a number is what an answer
/// comes late by, over and above that time. Those of the serverless kind are in seconds, and a
/// number is all the time an answer takes. [`Preset::unit`] tells which, and [`Unit::answer_time`]
/// makes one out of both.
///
/// ```
/// use codedgrad::delays::{Preset, Unit};
/// let rows = Preset::Hotspot.rows(8, 50, 7);
/// assert!(rows.iter().all(|row| row.iter().filter(|d| **d > 1.0).count() == 1));
/// assert_eq!(rows, Preset::Hotspot.rows(8, 50, 7));
/// assert_eq!(
///     (Preset::Hotspot.unit(), Preset::Serverless.unit()),
///     (Unit::StepTimes, Unit::Seconds)
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// One worker at a time is late by 3 step times; the slowness stays with it for 2.5 steps on
    /// average, then moves on. Burst length as measured on the shared GPU jobs of Alibaba PAI 2020
    /// (cluster-trace-gpu-v2020, jobs 1 to 3: mean 2.3 to 3.3 steps).
    Hotspot,
    /// Every worker by itself falls into slow spells (Gilbert-Elliott): it enters one with
    /// probability 0.03 per step and stays with probability 0.6, late by 3 step times.
    Bursts,
    /// Every answer by itself is late by 3 step times with probability 0.08, the share of slow
    /// answers of the serverless recordings of Krishnan, Ebrahimi, Khisti, ICLR 2023.
    Iid,
    /// The last worker is always 1.35 step times late: the artificially slowed worker of job AR in
    /// ByteDance's straggler traces (OSDI 2025), 2.35 times slower than the others.
    Static,
    /// No worker is late; answers jitter by 0.4 % of a step, as the healthy workers of that job do.
    Calm,
    /// Rare stalls of the whole system (network, file system): one begins with probability 0.01 per
    /// step and lasts 3 steps on average. It makes all workers 0.7 step times late, and each with
    /// probability 0.174 by another step time and an exponential of mean 1.2 step times. Length,
    /// width and lateness are those of the one stall in 8,430 steps of 256 concurrent DeepCAM
    /// trainings on NVIDIA Selene (MLPerf HPC v1.0, weak scaling, 2021): three intervals in which
    /// 45, 34 and 55 workers were over 1.1 times the median. How often it comes is not measured: it
    /// is raised so that runs of usual length meet one.
    Stalls,
    /// Time proportional to the work of a task, which differs from task to task and not from worker
    /// to worker: an answer takes `1 + g` step times, `g` of a gamma law of shape 3 and mean 0.317.
    /// Fitted to the first pipeline stage of job SE in ByteDance's straggler traces (OSDI 2025; 32
    /// workers, documents of unequal length; variation 0.139, 10.8 % of the answers over 1.2 times
    /// the median).
    Proportional,
    /// Serverless functions at load 0, in seconds: see [`Serverless`].
    Serverless,
    /// The same with cold starts: one answer in 10,000 takes 20 s longer.
    ServerlessCold,
}

/// How the time of an answer grows with the load of its task, a fraction of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Growth {
    /// `d + slope (L - base)`: the delay at load `base`, and so many units of time per whole batch
    /// more.
    Additive {
        /// The load of the delays as they are.
        #[serde(rename = "base_load")]
        base: f64,
        /// Time of a whole batch.
        slope: f64,
    },
    /// `d L / base`.
    Proportional {
        /// The load of the delays as they are.
        #[serde(rename = "base_load")]
        base: f64,
    },
}

impl Growth {
    /// No growth at all: whatever it computes, a worker takes as long as it was recorded with.
    pub const AS_RECORDED: Self = Self::Additive { base: 0.0, slope: 0.0 };

    /// Delays that were recorded at a smaller load are not taken to grow in proportion to the load:
    /// times would be no numbers.
    pub const PROPORTIONAL_BASE_MIN: f64 = 1e-9;

    /// The growth where a caller gives none. A preset grows as it was made. A file's delays grow in
    /// proportion to the load, recorded at that of an uncoded worker (computing takes all the
    /// time).
    ///
    /// ```
    /// use codedgrad::delays::{Growth, Preset};
    /// assert_eq!(Growth::usual(None, 8), Growth::Proportional { base: 0.125 });
    /// assert_eq!(Growth::usual(Some(Preset::Hotspot), 8), Preset::Hotspot.growth(8));
    /// ```
    #[must_use]
    pub fn usual(preset: Option<Preset>, workers: usize) -> Self {
        let share = 1.0 / workers.max(1) as f64;
        preset.map_or(Self::Proportional { base: share }, |preset| preset.growth(workers))
    }

    /// The time for `load` of an answer that was recorded with `delay`.
    ///
    /// ```
    /// use codedgrad::delays::Growth;
    /// assert_eq!(Growth::Additive { base: 0.25, slope: 4.0 }.time(3.0, 0.5), 4.0);
    /// assert_eq!(Growth::Proportional { base: 0.25 }.time(3.0, 0.5), 6.0);
    /// ```
    #[must_use]
    pub fn time(self, delay: f64, load: f64) -> f64 {
        match self {
            Self::Additive { base, slope } => delay + (load - base) * slope,
            Self::Proportional { base } => delay * load / base,
        }
    }

    /// Whether a delay does not come out negative at any load. What was divided and multiplied
    /// again may be off in the last digit.
    pub(crate) fn allows(self, delay: f64) -> bool {
        delay >= self.least() * (1.0 - 1e-12)
    }

    /// The least delay that does not come out negative at any load.
    pub(crate) fn least(self) -> f64 {
        match self {
            Self::Additive { base, slope } => base * slope,
            Self::Proportional { .. } => 0.0,
        }
    }
}

/// In words, of "times" that do so.
///
/// ```
/// use codedgrad::delays::Growth;
/// assert_eq!(
///     Growth::Proportional { base: 0.125 }.to_string(),
///     "grow in proportion to the load, recorded at load 1/8"
/// );
/// ```
impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |base: f64| {
            let shares = (1.0 / base).round();
            if base > 0.0 && 1.0 / shares == base {
                format!("1/{shares}")
            } else {
                base.to_string()
            }
        };
        match *self {
            Self::Additive { slope: 0.0, .. } => write!(f, "stay as recorded under any load"),
            Self::Additive { base, slope } => {
                // A measured slope has more digits than a reader wants.
                let slope = (slope * 1e6).round() / 1e6;
                write!(f, "grow by {slope} s per batch, recorded at load {}", part(base))
            }
            Self::Proportional { base } => {
                write!(f, "grow in proportion to the load, recorded at load {}", part(base))
            }
        }
    }
}

impl Preset {
    const ALL: [Self; 9] = [
        Self::Hotspot,
        Self::Bursts,
        Self::Iid,
        Self::Static,
        Self::Calm,
        Self::Stalls,
        Self::Proportional,
        Self::Serverless,
        Self::ServerlessCold,
    ];

    /// The names of all presets.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        Self::ALL.into_iter().map(Self::name).collect()
    }

    /// The preset of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hotspot => "hotspot",
            Self::Bursts => "bursts",
            Self::Iid => "iid",
            Self::Static => "static",
            Self::Calm => "calm",
            Self::Stalls => "stalls",
            Self::Proportional => "proportional",
            Self::Serverless => "serverless",
            Self::ServerlessCold => "serverless-cold",
        }
    }

    /// What it does, in a few words.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Hotspot => "one worker at a time is 3 step times late, for 2.5 steps on average",
            Self::Bursts => "each worker falls into slow spells of 2.5 steps, 3 step times late",
            Self::Iid => "each answer is 3 step times late with probability 0.08",
            Self::Static => "the last worker is always 1.35 step times late",
            Self::Calm => "no worker is late",
            Self::Stalls => {
                "every 100 steps a stall of 3 steps: all workers 0.7 step times late, one in six 1 \
                 to 5"
            }
            Self::Proportional => "each answer takes 1.3 step times on average, 0.18 more or less",
            Self::Serverless => "AWS Lambda in seconds: 0.63 on average, one in twenty 0.6 later",
            Self::ServerlessCold => "AWS Lambda in seconds, one answer in 10,000 another 20 later",
        }
    }

    /// What its rows are measured in.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::Serverless | Self::ServerlessCold => Unit::Seconds,
            _ => Unit::StepTimes,
        }
    }

    /// How its answer times (see [`Unit::answer_time`]) grow with the load among so many workers.
    ///
    /// ```
    /// use codedgrad::delays::{Growth, Preset};
    /// assert_eq!(Preset::Hotspot.growth(8), Growth::Additive { base: 0.125, slope: 8.0 });
    /// assert_eq!(Preset::Serverless.growth(8), Growth::Additive { base: 0.0, slope: 2.2 });
    /// ```
    #[must_use]
    pub fn growth(self, workers: usize) -> Growth {
        let share = 1.0 / workers as f64;
        match self {
            Self::Serverless | Self::ServerlessCold => {
                Growth::Additive { base: 0.0, slope: Serverless::BATCH_SECONDS }
            }
            Self::Proportional => Growth::Proportional { base: share },
            _ => Growth::Additive { base: share, slope: workers as f64 },
        }
    }

    /// Seconds that pulling a task costs among such workers, once a round is under way: another
    /// invocation of serverless functions, whose median answer at load 0 takes so long; next to
    /// nothing elsewhere.
    ///
    /// ```
    /// use codedgrad::delays::Preset;
    /// assert_eq!((Preset::Hotspot.pull(), Preset::Serverless.pull()), (0.0, 0.63));
    /// ```
    #[must_use]
    pub fn pull(self) -> f64 {
        if self.unit() == Unit::Seconds { Serverless::MEDIAN_SECONDS } else { 0.0 }
    }

    /// The number of workers it is looked at with where none is given: 8, and 256 for the
    /// serverless kind, as recorded.
    #[must_use]
    pub fn usual_workers(self) -> usize {
        if self.unit() == Unit::Seconds { Serverless::WORKERS } else { 8 }
    }

    /// The first `rounds` rows of delays for `workers` workers, in units of [`Preset::unit`].
    #[must_use]
    pub fn rows(self, workers: usize, rounds: usize, seed: u64) -> Vec<Vec<f64>> {
        self.stream(workers, seed).take(rounds).collect()
    }

    /// The same rows, one by one and without end.
    ///
    /// ```
    /// use codedgrad::delays::Preset;
    /// let third = Preset::Stalls.stream(4, 1).nth(2);
    /// assert_eq!(third.as_ref(), Preset::Stalls.rows(4, 9, 1).get(2));
    /// ```
    #[must_use]
    pub fn stream(self, workers: usize, seed: u64) -> PresetRows {
        let serverless = Serverless { load: 0.0, cold_starts: self == Self::ServerlessCold };
        let rows = match self {
            Self::Serverless | Self::ServerlessCold => {
                Rows::Serverless(serverless.stream(workers, seed))
            }
            _ => Rows::Late(LateRows::new(self, workers, seed)),
        };
        PresetRows(rows)
    }
}

/// Rows of a [`Preset`], without end.
#[derive(Clone, Debug)]
pub struct PresetRows(Rows);

#[derive(Clone, Debug)]
enum Rows {
    Late(LateRows),
    Serverless(ServerlessRows),
}

impl Iterator for PresetRows {
    type Item = Vec<f64>;

    fn next(&mut self) -> Option<Vec<f64>> {
        match &mut self.0 {
            Rows::Late(late) => Some(late.row()),
            Rows::Serverless(rows) => rows.next(),
        }
    }
}

/// State of the presets in step times.
#[derive(Clone, Debug)]
struct LateRows {
    preset: Preset,
    draw: Draw,
    /// Who is slow in this round.
    slow: Vec<bool>,
    hot: usize,
    stalled: bool,
}

impl LateRows {
    fn new(preset: Preset, workers: usize, seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let hot = draw.below(workers);
        Self { preset, draw, slow: vec![false; workers], hot, stalled: false }
    }

    fn row(&mut self) -> Vec<f64> {
        let Self { preset, draw, slow, hot, stalled } = self;
        let workers = slow.len();
        match preset {
            Preset::Hotspot => {
                slow.iter_mut().enumerate().for_each(|(i, slow)| *slow = i == *hot);
                if draw.chance(0.4) && workers > 1 {
                    *hot = (*hot + 1 + draw.below(workers - 1)) % workers;
                }
            }
            Preset::Bursts => {
                slow.iter_mut()
                    .for_each(|slow| *slow = draw.chance(if *slow { 0.6 } else { 0.03 }));
            }
            Preset::Iid => slow.iter_mut().for_each(|slow| *slow = draw.chance(0.08)),
            Preset::Stalls => {
                *stalled = draw.chance(if *stalled { STALL_GOES_ON } else { STALL_BEGINS });
                slow.iter_mut().for_each(|slow| *slow = *stalled && draw.chance(STALL_HITS));
            }
            _ => {}
        }
        let everybody = if *stalled { STALL_STEPS } else { 0.0 };
        let late = |(i, slow): (usize, &bool)| match preset {
            Preset::Proportional => PROPORTIONAL.0 * draw.erlang(PROPORTIONAL.1),
            Preset::Static if i + 1 == workers => 1.35 + JITTER_STEPS * draw.exponential(),
            Preset::Stalls if *slow => everybody + HIT_STEPS.0 + HIT_STEPS.1 * draw.exponential(),
            Preset::Stalls => everybody + JITTER_STEPS * draw.exponential(),
            _ => f64::from(u8::from(*slow)) * SLOW_STEPS + JITTER_STEPS * draw.exponential(),
        };
        slow.iter().enumerate().map(late).collect()
    }
}

#[cfg(test)]
mod tests;
