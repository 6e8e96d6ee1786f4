//! Reads the record of a run: its steps, what happened beside them, and what its summary adds.

use anyhow::{Context, anyhow};
use codedgrad::doctor::{Record, RecordedStep, RunEvent};
use codedgrad::files::BoundedReader;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::folder::{
    self, EVENTS, PLAN, RECORD, RECORD_BYTES_MAX, SERVED, SUMMARY, read_line,
};
use codedgrad_shell::found;
use codedgrad_shell::output::{Notes, Output};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

/// Bytes between two moves of the progress bar.
const BYTES_PER_MOVE: u64 = 1 << 20;

/// One of the runs of a record.
pub(crate) struct RecordedRun {
    pub(crate) path: PathBuf,
    /// Which it is, and the schemes of all there are.
    pub(crate) number: usize,
    pub(crate) schemes: BTreeMap<usize, String>,
    pub(crate) record: Record,
}

/// Lines of JSON, one at a time.
struct Lines {
    path: PathBuf,
    input: BufReader<BoundedReader<File>>,
    text: Vec<u8>,
    line: usize,
    read: u64,
}

impl Lines {
    fn open(path: &Path) -> io::Result<Self> {
        let input = BufReader::new(BoundedReader::open(path, RECORD_BYTES_MAX)?);
        Ok(Self { path: path.into(), input, text: Vec::new(), line: 0, read: 0 })
    }

    /// The next line. A last line that was cut off, as a run leaves it that is under way or was
    /// killed, is passed over.
    fn next<T: DeserializeOwned>(
        &mut self,
        what: &str,
        notes: &mut Notes<'_>,
    ) -> Result<Option<T>, Failure> {
        let read = read_line(&mut self.input, &mut self.text);
        let read =
            read.with_context(|| format!("cannot read {}", self.path.display())).or_input()?;
        self.line += 1;
        self.read += read;
        if read == 0 {
            return Ok(None);
        }
        match serde_json::from_slice(&self.text) {
            Ok(found) => Ok(Some(found)),
            Err(_) if self.text.last() != Some(&b'\n') && self.line > 1 => {
                notes.say(format_args!(
                    "line {} of {} was cut off and is left out",
                    self.line,
                    self.path.display()
                ));
                Ok(None)
            }
            Err(error) => Err(self.wrong(&format!("not {what}: {error}"))),
        }
    }

    fn wrong(&self, problem: &str) -> Failure {
        Failure::Input(anyhow!("{}: line {}: {problem}", self.path.display(), self.line))
    }
}

impl RecordedRun {
    /// Whether a path is that of a run's folder or record.
    pub(crate) fn is_in(path: &Path) -> bool {
        path.is_dir() || path.file_name().is_some_and(|name| name == RECORD)
    }

    /// Reads the run of that number, or else the first, from a run's folder or record; `bar` says
    /// whether progress is shown.
    pub(crate) fn read(
        run: &Path,
        number: Option<usize>,
        bar: bool,
        output: &mut Output<'_>,
    ) -> Result<Self, Failure> {
        let path = if run.is_dir() { run.join(RECORD) } else { run.to_owned() };
        let opened = Lines::open(&path)
            .with_context(|| format!("cannot read the record {}", path.display()));
        let mut lines = match found::runs_in(run, &[PLAN, SERVED, RECORD]) {
            Some(runs) if opened.is_err() => {
                let folder = run.display();
                let problem = anyhow!("{folder} is a folder of runs, not of one: {runs}");
                return Err(Failure::Input(problem));
            }
            _ => opened.or_input()?,
        };
        let bar = output.file_bar(&path, bar);
        let mut chosen = number;
        let mut schemes: BTreeMap<usize, String> = BTreeMap::new();
        let (mut record, mut shown) = (Record::default(), 0);
        let mut of_others = false;
        while let Some(mut step) =
            lines.next::<RecordedStep>("a step of a training run", &mut output.notes)?
        {
            schemes.entry(step.run).or_insert_with(|| std::mem::take(&mut step.scheme));
            if *chosen.get_or_insert(step.run) == step.run {
                if record.steps() == 0 {
                    step.scheme.clone_from(&schemes[&step.run]);
                } else if of_others {
                    // Where runs take turns, the time between steps is the others'.
                    step.at = None;
                }
                record.push(step).map_err(|problem| lines.wrong(&problem.to_string()))?;
            } else {
                of_others = record.steps() > 0;
            }
            if lines.read - shown > BYTES_PER_MOVE {
                shown = lines.read;
                bar.set_position(shown);
            }
        }
        bar.finish_and_clear();
        let number = chosen.unwrap_or(0);
        let found = Self { path, number, schemes, record };
        if found.record.rounds() == 0 { Err(found.nothing()) } else { Ok(found) }
    }

    fn nothing(&self) -> Failure {
        let there = self.schemes.iter().map(|(run, scheme)| format!("{run} ({scheme})"));
        let there = there.collect::<Vec<_>>();
        let there = if there.is_empty() {
            "no step at all".into()
        } else {
            format!("the runs {}", there.join(", "))
        };
        let path = self.path.display();
        Failure::Input(anyhow!(
            "run {}: no round of it has closed; {path} holds {there}",
            self.number
        ))
    }

    /// A file of the run's folder.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.path.with_file_name(name)
    }

    /// What happened in the run beside its steps, as far as it is written down.
    pub(crate) fn events(&self, notes: &mut Notes<'_>) -> Result<Vec<RunEvent>, Failure> {
        let path = self.beside(EVENTS);
        let mut lines = match Lines::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            lines => lines.with_context(|| format!("cannot read {}", path.display())).or_input()?,
        };
        let mut events = Vec::new();
        while let Some(event) = lines.next::<RunEvent>("an event of a run", notes)? {
            events.push(event);
        }
        events.retain(|event| event.run == self.number);
        Ok(events)
    }

    /// The model FLOPs utilisation that the run's summary tells.
    pub(crate) fn mfu(&self) -> Result<Option<f64>, Failure> {
        let summary: Option<Summary> = folder::json_if_there(&self.beside(SUMMARY))?;
        Ok(summary.and_then(|summary| summary.runs.get(self.number)?.mfu))
    }
}

/// What is asked of a run's summary.
#[derive(Deserialize)]
struct Summary {
    runs: Vec<SummaryOfRun>,
}

#[derive(Deserialize)]
struct SummaryOfRun {
    mfu: Option<f64>,
}
