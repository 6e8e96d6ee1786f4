//! How a run's time goes by: by the wall's clock or a modelled one, with delays injected or not.

use super::{BuildError, Builder, not_negative, ranged, told};
use crate::delays::{Delays, Unit};
use crate::run::RunConfig;
use crate::train::{RunClock, VirtualClock};

/// Most injected delays, which are all drawn before the run.
const DELAYS_MAX: u64 = 1 << 26;

/// How a run's time goes by, as it is told.
#[derive(Clone, Debug, Default)]
pub(super) struct Time {
    /// Who is late on purpose, and the seed of it.
    delays: Option<(String, u64)>,
    step_seconds: Option<f64>,
    pub(super) modelled: bool,
}

/// The clock that a run will have.
pub(super) struct Clock {
    delays: Delays,
    rounds: usize,
    step_seconds: f64,
    modelled: bool,
}

impl Clock {
    /// The clock, which runs from now on.
    pub(super) fn start(&self, workers: usize) -> RunClock {
        let Self { delays, rounds, step_seconds, modelled } = self;
        if *modelled {
            let model = VirtualClock { step_seconds: *step_seconds };
            return RunClock::modelled(workers, delays, *rounds, model, 0.0);
        }
        RunClock::wall(workers, delays, *rounds, *step_seconds)
    }
}

/// For experiments: a run in which workers are late on purpose, or on a modelled clock.
impl Builder {
    /// Has workers be late as a preset or a CSV file of seconds says ([`Delays::open`]), presets
    /// as `seed` draws them. Presets count in the compute time of an uncoded step:
    /// [`Builder::step_seconds`].
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.clone().delays("hotspot", 7).step_seconds(0.01).local().is_ok());
    /// let error = run.delays("hotspot", 7).local().err().unwrap();
    /// assert!(error.to_string().contains("say .step_seconds(0.1)"));
    /// ```
    pub fn delays(mut self, text: impl Into<String>, seed: u64) -> Self {
        self.time.delays = Some((text.into(), seed));
        self
    }

    /// Compute time of an uncoded step in seconds, in which preset delays and the modelled clock
    /// count.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let error = run.step_seconds(f64::NAN).local().err().unwrap();
    /// assert!(error.to_string().starts_with("step_seconds is NaN: it must be a finite number"));
    /// ```
    pub fn step_seconds(mut self, seconds: f64) -> Self {
        self.time.step_seconds = Some(seconds);
        self
    }

    /// Has time be modelled ([`VirtualClock`]): no thread sleeps, and the record of a run is the
    /// same every time.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.modelled().step_seconds(1.0).local().is_ok());
    /// ```
    pub fn modelled(mut self) -> Self {
        self.time.modelled = true;
        self
    }

    /// The clock of a run under a scheme of a delay.
    pub(super) fn clock(&self, run: &RunConfig, delay: u64) -> Result<Clock, BuildError> {
        let Time { delays, step_seconds: told_seconds, modelled } = &self.time;
        let step_seconds = told_seconds.unwrap_or(0.0);
        not_negative("step_seconds", step_seconds)?;
        let workers = run.shape.workers;
        let steps = run.end.0 - run.first.0;
        let micro_steps = run.jobs.micro_steps;
        let each = if micro_steps > 1 { micro_steps + delay } else { 1 };
        let rounds = steps.saturating_mul(each).saturating_add(delay);
        let (mut rounds, mut injected) = (rounds as usize, Delays::None);
        if let Some((text, seed)) = delays {
            let drawn = (rounds as u64).saturating_mul(workers as u64);
            ranged("the number of delays", drawn, 1..=DELAYS_MAX)?;
            injected = Delays::for_rounds(text, workers, *seed, rounds)?;
        } else {
            rounds = 0;
        }
        let in_steps = delays.is_some() && injected.unit() == Unit::StepTimes;
        if in_steps || *modelled {
            let what = "the compute time of an uncoded step";
            told(*told_seconds, what, ".step_seconds(0.1) for a tenth of a second")?;
        }
        Ok(Clock { delays: injected, rounds, step_seconds, modelled: *modelled })
    }
}
