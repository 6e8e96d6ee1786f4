//! How far a command is that trains, and how long it still takes.

use crate::output;
use crate::steps::StepSummary;
use indicatif::{HumanDuration, ProgressBar};
use std::time::Duration;

/// How fast a run's steps are made.
#[derive(Clone, Debug, Default)]
struct Tempo {
    made: u64,
    /// Of those, the ones this process has seen, and how long they took.
    timed: u64,
    seconds: f64,
}

impl Tempo {
    fn seconds_per_step(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.seconds / self.timed as f64)
    }
}

/// A bar over all steps of all runs of a command. What is left is told from the steps that this
/// process has seen, run by run: those of a checkpoint took it no time, and schemes differ in
/// theirs.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    steps: u64,
    runs: Vec<Tempo>,
    /// The run that is under way.
    run: usize,
    /// When its last step was made, since the bar is there.
    last: Duration,
}

impl Progress {
    /// Of runs of so many steps each, which have made some before.
    pub fn new(steps: u64, made: impl IntoIterator<Item = u64>) -> Self {
        let runs: Vec<Tempo> =
            made.into_iter().map(|made| Tempo { made, ..Tempo::default() }).collect();
        let bar = output::plain_bar(steps * runs.len() as u64);
        let progress = Self { bar, steps, runs, run: 0, last: Duration::ZERO };
        progress.bar.set_position(progress.made());
        progress
    }

    /// One that no user sees.
    pub fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            steps: 0,
            runs: Vec::new(),
            run: 0,
            last: Duration::ZERO,
        }
    }

    fn made(&self) -> u64 {
        self.runs.iter().map(|run| run.made).sum()
    }

    /// The next steps are of this run.
    pub fn begin(&mut self, run: usize, title: String) {
        self.run = run;
        self.bar.set_prefix(title);
        self.bar.tick();
    }

    /// A run goes on from a step.
    pub fn go_on_from(&mut self, step: u64) {
        if let Some(run) = self.runs.get_mut(self.run) {
            run.made = step;
        }
        self.bar.set_position(self.made());
    }

    /// Says what is done that is no step.
    pub fn say(&self, what: &'static str) {
        self.bar.set_message(what);
        self.bar.tick();
    }

    /// Moves the bar, or, where it is hidden, says a line every tenth of the run.
    pub fn show(&mut self, decided: &StepSummary) {
        let now = self.bar.elapsed();
        if let Some(run) = self.runs.get_mut(self.run) {
            run.made = decided.step + 1;
            run.timed += 1;
            run.seconds += (now - self.last).as_secs_f64();
        }
        self.last = now;
        let left = self.seconds_left().map_or(String::new(), |left| {
            format!("eta {:#} · ", HumanDuration(Duration::from_secs_f64(left)))
        });
        self.bar.set_message(format!("{left}{decided}"));
        self.bar.set_position(self.made());
        if self.bar.is_hidden() {
            decided.say();
        }
    }

    /// How long the steps take that are left; those of a run that has made none yet, as long as
    /// others'.
    fn seconds_left(&self) -> Option<f64> {
        let known: Vec<f64> = self.runs.iter().filter_map(Tempo::seconds_per_step).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let left = |run: &Tempo| {
            let steps = self.steps.saturating_sub(run.made) as f64;
            steps * run.seconds_per_step().unwrap_or(mean)
        };
        (!known.is_empty()).then(|| self.runs.iter().map(left).sum::<f64>().min(1e9))
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests;
