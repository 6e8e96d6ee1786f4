//! Answers of serverless functions: a floor, a cost per load, and a noise that does not depend on
//! it.

use super::DelayError;
use super::draw::Draw;

/// Fastest that a function without work could answer, in seconds.
const FLOOR_SECONDS: f64 = 0.48;
/// Median of the usual noise on top of the floor.
const NOISE_MEDIAN_SECONDS: f64 = 0.15;
/// Standard deviation of the logarithm of that noise.
const NOISE_LOG_DEVIATION: f64 = 0.4;
/// A straggling answer takes so long at load 0, and an exponential with this mean more.
const STRAGGLER_SECONDS: (f64, f64) = (1.15, 0.125);
/// How often each worker straggles is drawn once, from this beta distribution.
const STRAGGLER_CHANCE: (f64, f64) = (0.35, 7.2);
/// No worker straggles more often than that in an average round.
const STRAGGLER_CHANCE_MAX: f64 = 0.45;
/// Rounds differ in how many straggle by a factor of mean 1: the mean of so many exponentials.
const ROUND_SHAPE: u32 = 5;

/// Delays of serverless workers in seconds, the way they answered on AWS Lambda.
///
/// # Formula
/// ```text
/// d = a + b L + e
/// ```
/// where `a` = 0.48 s is the floor, `b` = [`Serverless::BATCH_SECONDS`] the time of a whole batch,
/// `L` the load of a task as a fraction of the batch, and `e` the noise, whose law is the same at
/// every load. Most often `e` is log-normal with median 0.15 s and log deviation 0.4. With
/// probability `p_i m_r` worker `i` straggles in round `r` and `e` is 0.67 s and an exponential of
/// mean 0.125 s; `p_i` is drawn once per worker from Beta(0.35, 7.2), cut at 0.45, and `m_r` once
/// per round from an Erlang law of shape 5 and mean 1.
///
/// # Source
/// Fitted to the probe of 100 rounds with 256 workers in Canada that Krishnan, Ebrahimi and Khisti
/// ("Sequential Gradient Coding For Straggler Mitigation", ICLR 2023) recorded: at load 0, an
/// answer later than twice the fastest counting as straggling, 4.7 % of the answers straggle, in
/// bursts of 1 to 5 rounds (865, 122, 23, 5 and 1 of them), 12 a round (2 to 34). A few workers
/// straggle far more often than others, and that alone explains the bursts: given a worker, rounds
/// are independent.
///
/// ```
/// use codedgrad::delays::Serverless;
/// let idle = Serverless::at_load(0.0)?.rows(256, 10, 1);
/// let loaded = Serverless::at_load(0.25)?.rows(256, 10, 1);
/// assert!((loaded[3][200] - idle[3][200] - 0.25 * Serverless::BATCH_SECONDS).abs() < 1e-12);
/// assert!(Serverless::at_load(-1.0).is_err());
/// # Ok::<(), codedgrad::delays::DelayError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Serverless {
    pub(super) load: f64,
    pub(super) cold_starts: bool,
}

impl Serverless {
    /// Seconds that one worker takes for a whole batch, `b`: the slope of the recorded delays on
    /// the load (2.2013 s in Canada, 2.2621 s in London; batches of 4,096 images).
    pub const BATCH_SECONDS: f64 = 2.2;
    /// Median answer at load 0, in seconds.
    pub const MEDIAN_SECONDS: f64 = 0.63;
    /// Probability that an answer waits for a cold start, where there are any.
    pub const COLD_START_CHANCE: f64 = 1e-4;
    /// What a cold start adds, in seconds.
    pub const COLD_START_SECONDS: f64 = 20.0;
    /// Workers of the recording.
    pub const WORKERS: usize = 256;

    /// Workers with tasks of `load`, a fraction of the batch; 0 is the load of the recording (one
    /// sample).
    ///
    /// # Errors
    /// [`DelayError::Load`] if `load` is negative or not finite.
    pub fn at_load(load: f64) -> Result<Self, DelayError> {
        if load.is_finite() && load >= 0.0 {
            Ok(Self { load, cold_starts: false })
        } else {
            Err(DelayError::Load { load })
        }
    }

    /// Adds 20 s to one answer in 10,000, as the authors' notebooks do to their recordings.
    #[must_use]
    pub fn with_cold_starts(self) -> Self {
        Self { cold_starts: true, ..self }
    }

    /// Rounds without end.
    #[must_use]
    pub fn stream(self, workers: usize, seed: u64) -> ServerlessRows {
        let mut draw = Draw::new(seed);
        let (alpha, beta) = STRAGGLER_CHANCE;
        let chances =
            (0..workers).map(|_| draw.beta(alpha, beta).min(STRAGGLER_CHANCE_MAX)).collect();
        ServerlessRows { model: self, chances, draw }
    }

    /// The first `rounds` rounds, one number of seconds per worker.
    #[must_use]
    pub fn rows(self, workers: usize, rounds: usize, seed: u64) -> Vec<Vec<f64>> {
        self.stream(workers, seed).take(rounds).collect()
    }
}

/// Rounds of [`Serverless`] workers, without end.
#[derive(Clone, Debug)]
pub struct ServerlessRows {
    model: Serverless,
    /// How often each worker straggles in an average round.
    chances: Vec<f64>,
    draw: Draw,
}

impl Iterator for ServerlessRows {
    type Item = Vec<f64>;

    fn next(&mut self) -> Option<Vec<f64>> {
        let Self { model, chances, draw } = self;
        let round = draw.erlang(ROUND_SHAPE);
        let delay = |chance: &f64| {
            let at_rest = if draw.chance(chance * round) {
                STRAGGLER_SECONDS.0 + STRAGGLER_SECONDS.1 * draw.exponential()
            } else {
                FLOOR_SECONDS + NOISE_MEDIAN_SECONDS * (NOISE_LOG_DEVIATION * draw.normal()).exp()
            };
            let cold = model.cold_starts && draw.chance(Serverless::COLD_START_CHANCE);
            at_rest
                + model.load * Serverless::BATCH_SECONDS
                + if cold { Serverless::COLD_START_SECONDS } else { 0.0 }
        };
        Some(chances.iter().map(delay).collect())
    }
}

#[cfg(test)]
mod tests;
