//! What a simulation comes to.

use super::PlayedRound;
use crate::codes::sequential::SchemeFacts;
use crate::ids::Job;

/// Lengths of rounds, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundTime {
    /// Mean.
    pub mean: f64,
    /// Median; percentiles by linear interpolation.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// The part `p` of values in ascending order, by linear interpolation: 0.5 is the median.
///
/// # Panics
/// Without values, or unless `p` is from 0 to 1.
///
/// ```
/// assert_eq!(codedgrad::sim::percentile(&[1.0, 2.0, 4.0], 0.75), 3.0);
/// ```
#[must_use]
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    let at = p * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

impl RoundTime {
    pub(super) fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_unstable_by(f64::total_cmp);
        let Some(&max) = seconds.last() else { return Self::default() };
        let percentile = |p: f64| percentile(&seconds, p);
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        Self { mean, p50: percentile(0.5), p95: percentile(0.95), p99: percentile(0.99), max }
    }
}

/// What a simulation comes to; times in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationOutcome {
    /// Largest fraction of a batch that one worker touches in a round; for feedback schemes the
    /// mean.
    pub load: f64,
    /// Load computed by all workers over the run, in batches per job; uncoded = 1.
    pub work: f64,
    /// Sum of all rounds.
    pub total_time: f64,
    /// Rounds, free ones included.
    pub rounds: usize,
    /// Lengths of the rounds in which any worker had a task.
    pub round_time: RoundTime,
    /// Rounds that had to be kept open past their deadline.
    pub wait_outs: usize,
    /// Jobs that were completed.
    pub jobs_decoded: usize,
    /// Mean fraction of a batch in its decoded gradient; 1 for exact schemes.
    pub coverage: f64,
    /// When each job was complete; infinite for one that never was.
    pub job_finish_time: Vec<f64>,
    /// Answers later than the deadline, by workers and rounds.
    pub straggler_fraction: f64,
    /// Workers that had not finished their round's work at its close, by workers and jobs.
    pub unfinished_fraction: f64,
}

/// Adds up rounds.
#[derive(Default)]
pub(super) struct Tally {
    workers: usize,
    now: f64,
    rounds: usize,
    seconds: Vec<f64>,
    wait_outs: usize,
    candidates: usize,
    unfinished: usize,
    units: u64,
    coverages: Vec<f64>,
    finish: Vec<f64>,
}

impl Tally {
    pub(super) fn new(jobs: u64, workers: usize) -> Self {
        Self { workers, finish: vec![f64::INFINITY; jobs as usize], ..Self::default() }
    }

    pub(super) fn covered(&mut self, coverage: f64) {
        self.coverages.push(coverage);
    }

    pub(super) fn round(&mut self, played: &PlayedRound, free: bool, own: bool, decoded: &[Job]) {
        self.now += played.seconds;
        self.rounds += 1;
        if !free {
            self.seconds.push(played.seconds);
        }
        self.wait_outs += usize::from(played.waited_out);
        self.candidates += played.candidates;
        self.unfinished += if own { played.unfinished } else { 0 };
        self.units += played.units;
        for job in decoded {
            if let Some(finish) = self.finish.get_mut(job.0 as usize) {
                *finish = self.now;
            }
        }
    }

    /// What a run of so many jobs comes to.
    pub(super) fn finish(self, facts: &SchemeFacts, jobs: u64) -> SimulationOutcome {
        let jobs = jobs.max(1) as f64;
        let work = self.units as f64 / f64::from(facts.units) / jobs;
        let answers = (self.workers * self.seconds.len()).max(1) as f64;
        let covered = self.coverages.iter().sum::<f64>() / self.coverages.len().max(1) as f64;
        SimulationOutcome {
            load: if facts.partial { work / self.workers as f64 } else { facts.load },
            work,
            total_time: self.now,
            rounds: self.rounds,
            wait_outs: self.wait_outs,
            jobs_decoded: self.finish.iter().filter(|finish| finish.is_finite()).count(),
            coverage: if self.coverages.is_empty() { 1.0 } else { covered },
            straggler_fraction: self.candidates as f64 / answers,
            unfinished_fraction: self.unfinished as f64 / (self.workers as f64 * jobs),
            round_time: RoundTime::of(self.seconds),
            job_finish_time: self.finish,
        }
    }
}
