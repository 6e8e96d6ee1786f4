//! A training run's record, made into a trace.

use crate::families;
use crate::folder::{PLAN, RECORD};
use crate::output::{Notes, Output};
use crate::port::ADDRESS;
use crate::{Failure, OrInput, OrWork};
use anyhow::{Context, anyhow};
use codedgrad::delays::{recorded_row, write_row};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Answers not waited for, as a share of all, above which a recording says little about stragglers.
const CENSORED_MAX: f64 = 0.05;

/// What a line of `run.jsonl` says of its rounds.
#[derive(Debug, Deserialize)]
struct Step {
    #[serde(default)]
    run: usize,
    #[serde(default)]
    scheme: String,
    rounds: Vec<Round>,
}

/// The answers of a round.
#[derive(Debug, Deserialize)]
struct Round {
    seconds: f64,
    arrivals: Vec<Option<f64>>,
    #[serde(default)]
    delays: Vec<f64>,
}

impl Round {
    fn check(&self, workers: usize) -> Result<(), String> {
        let times = || self.arrivals.iter().flatten().chain(&self.delays).chain([&self.seconds]);
        if self.arrivals.is_empty() || self.arrivals.len() != workers {
            return Err(format!(
                "arrivals of {} workers, where {workers} are expected",
                self.arrivals.len()
            ));
        }
        match times().find(|time| !(time.is_finite() && **time >= 0.0)) {
            Some(time) => Err(format!("{time} is no time in seconds")),
            None => Ok(()),
        }
    }
}

/// The lines of a run's record, one at a time.
pub(crate) struct Steps {
    pub(super) path: PathBuf,
    input: BufReader<File>,
    line: usize,
    read: u64,
}

impl Steps {
    /// Whether a path is that of a run's folder or record.
    pub(crate) fn are_in(path: &Path) -> bool {
        path.is_dir() || path.file_name().is_some_and(|name| name == RECORD)
    }

    pub(super) fn open(run: &Path) -> Result<Self, Failure> {
        let path = if run.is_dir() { run.join(RECORD) } else { run.to_owned() };
        let file = File::open(&path)
            .with_context(|| format!("cannot read the record {}", path.display()))
            .or_input()?;
        Ok(Self { path, input: BufReader::new(file), line: 0, read: 0 })
    }

    /// The next step. A last line that was cut off, as a killed run leaves it, is passed over.
    fn next(&mut self, notes: &mut Notes<'_>) -> Result<Option<Step>, Failure> {
        let mut text = Vec::new();
        let read = self
            .input
            .read_until(b'\n', &mut text)
            .with_context(|| format!("cannot read {}", self.path.display()))
            .or_input()?;
        self.line += 1;
        self.read += read as u64;
        if read == 0 {
            return Ok(None);
        }
        match serde_json::from_slice(&text) {
            Ok(step) => Ok(Some(step)),
            Err(_) if text.last() != Some(&b'\n') && self.line > 1 => {
                notes.say(format_args!(
                    "line {} of {} was cut off and is left out",
                    self.line,
                    self.path.display()
                ));
                Ok(None)
            }
            Err(error) => Err(self.wrong(&format!("not a step of a training run: {error}"))),
        }
    }

    fn wrong(&self, problem: &str) -> Failure {
        Failure::Input(anyhow!("{}: line {}: {problem}", self.path.display(), self.line))
    }
}

/// What the rows of a recording were made of.
pub(crate) struct Recording {
    rows: u64,
    workers: usize,
    /// Which run, its scheme, and how many there are.
    number: usize,
    scheme: String,
    runs: usize,
    /// Answers that nobody waited for.
    censored: u64,
    one_machine: bool,
}

impl Recording {
    /// Makes rows of the steps of one of a record's runs, the first if no number is given; `read`
    /// is told how many bytes of the record have been.
    pub(super) fn make(
        mut steps: Steps,
        mut number: Option<usize>,
        notes: &mut Notes<'_>,
        read: &mut dyn FnMut(u64),
        write: &mut dyn FnMut(&[f64]) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let (mut workers, mut rows, mut censored) = (None, 0, 0);
        let mut schemes: BTreeMap<usize, String> = BTreeMap::new();
        while let Some(step) = steps.next(notes)? {
            let wanted = *number.get_or_insert(step.run) == step.run;
            for round in step.rounds.iter().filter(|_| wanted) {
                let workers = *workers.get_or_insert(round.arrivals.len());
                round.check(workers).map_err(|problem| steps.wrong(&problem))?;
                let (row, missing) = recorded_row(&round.arrivals, &round.delays, round.seconds);
                write(&row)?;
                (rows, censored) = (rows + 1, censored + missing as u64);
            }
            schemes.entry(step.run).or_insert(step.scheme);
            read(steps.read);
        }
        if rows == 0 {
            return Err(nothing(&steps.path, &schemes));
        }
        let (number, runs) = (number.unwrap_or(0), schemes.len());
        let scheme = schemes.remove(&number).unwrap_or_default();
        let (workers, one_machine) = (workers.unwrap_or(0), on_one_machine(&steps.path));
        Ok(Self { rows, workers, number, scheme, runs, censored, one_machine })
    }

    /// The trace of a run's folder or record, as text.
    pub(crate) fn of(run: &Path, output: &mut Output<'_>) -> Result<Vec<u8>, Failure> {
        let mut csv = Vec::new();
        let mut write = |row: &[f64]| write_row(&mut csv, row).or_work();
        let steps = Steps::open(run)?;
        let made = Self::make(steps, None, &mut output.notes, &mut |_| (), &mut write)?;
        made.say(output);
        made.say_load(output);
        Ok(csv)
    }

    /// Says what it was made of.
    pub(super) fn say(&self, output: &mut Output<'_>) {
        let Self { rows, workers, number, scheme, runs, censored, .. } = self;
        let share = *censored as f64 / (*rows as f64 * *workers as f64).max(1.0);
        output.note(format_args!(
            "recorded {rows} steps of {workers} workers, run {number} ({scheme}) of {runs}"
        ));
        output.note(format_args!(
            "censored: {censored} answers ({:.1} %) had not arrived by the close; they are \
             estimates, and may be too low",
            100.0 * share
        ));
        if share > CENSORED_MAX {
            output.note(format_args!(
                "warning: that is a lot; a run that waits for everybody (uncoded) gives a better \
                 trace"
            ));
        }
        if self.one_machine {
            output.notes.hint(format_args!(
                "the workers shared one machine: those that share cores slow one another \
                 down, so what takes more work may take longer than a replay says"
            ));
        }
    }

    /// Warns where workers computed something else than an uncoded share.
    fn say_load(&self, output: &mut Output<'_>) {
        let facts = families::scheme(&self.scheme).and_then(|spec| spec.natural(self.workers));
        let Ok(facts) = facts else { return };
        if self.scheme != "uncoded" {
            output.note(format_args!(
                "warning: run {} is {}, whose workers compute up to {} of a batch and not 1/{}: \
                 give --base-load, or record an uncoded run",
                self.number, self.scheme, facts.load, self.workers
            ));
        }
    }
}

fn nothing(path: &Path, schemes: &BTreeMap<usize, String>) -> Failure {
    let there = schemes.iter().map(|(run, scheme)| format!("{run} ({scheme})")).collect::<Vec<_>>();
    let there = if there.is_empty() {
        "no step at all".into()
    } else {
        format!("the runs {}", there.join(", "))
    };
    Failure::Input(anyhow!("no step to record: {} holds {there}", path.display()))
}

/// Whether the workers of a record's run were threads or children of one process and measured by
/// the wall's clock; a coordinator that others call writes its address.
fn on_one_machine(record: &Path) -> bool {
    let beside = |name: &str| record.with_file_name(name);
    let plan: Option<Plan> =
        fs::read(beside(PLAN)).ok().and_then(|plan| serde_json::from_slice(&plan).ok());
    plan.is_some_and(|plan| plan.clock == "wall") && !beside(ADDRESS).exists()
}

/// What is asked of a run's plan.
#[derive(Deserialize)]
struct Plan {
    clock: String,
}
