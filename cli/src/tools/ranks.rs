//! The folder that `codedgrad.record` of the Python package writes: how long the steps of another
//! trainer's ranks took, a file for each rank.

use super::called::{Rounds, TraceLabels};
use super::times::Times;
use anyhow::{Context, anyhow};
use codedgrad::files;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::output::Output;
use csv::{ReaderBuilder, StringRecord};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Its columns; the first step of a file has no time in `began`.
const COLUMNS: [&str; 6] = ["step", "began", "forward", "first", "last", "ended"];
/// Above so many times the median of all ranks it is said what a rank's time went into.
const SLOW: f64 = 1.1;

/// No file of a rank is longer: ten million steps.
const RANK_BYTES_MAX: u64 = 1 << 30;

/// Steps of all ranks: how long each took until its last gradient, when others are waited for.
pub(crate) struct Ranks {
    pub(crate) rows: Vec<Vec<f64>>,
    pub(crate) called: TraceLabels,
}

/// A rank's steps.
#[derive(Default)]
struct Rank {
    /// As many as the job has, if it has said so.
    world: Option<u64>,
    /// Whether ranks wait for each other within a pass, too.
    is_sharded: bool,
    /// Number of the step, and the seconds of loading, forward and backward pass.
    steps: Vec<(u64, [f64; 3])>,
}

/// Of which rank a file is, and of which start of its job.
fn of_name(name: &str) -> Option<(u64, u64)> {
    let name = name.strip_prefix("rank-")?.strip_suffix(".csv")?;
    let (rank, start) = name.split_once(".start-").unwrap_or((name, "0"));
    Some((start.parse().ok()?, rank.parse().ok()?))
}

/// The files of a folder, by the start of the job and by rank.
fn files(folder: &Path) -> BTreeMap<u64, BTreeMap<u64, PathBuf>> {
    let mut found: BTreeMap<u64, BTreeMap<u64, PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if let Some((start, rank)) = entry.file_name().to_str().and_then(of_name) {
            found.entry(start).or_default().insert(rank, entry.path());
        }
    }
    found
}

impl Ranks {
    /// Whether a path is such a folder.
    pub(crate) fn is_in(path: &Path) -> bool {
        path.is_dir() && !files(path).is_empty()
    }

    /// Joins the ranks of the job's last start by the numbers of their steps.
    pub(crate) fn read(folder: &Path, output: &mut Output<'_>) -> Result<Self, Failure> {
        let mut starts = files(folder);
        let Some((_, files)) = starts.pop_last() else {
            return Err(Failure::Input(anyhow!("{}: no file of a rank", folder.display())));
        };
        if !starts.is_empty() {
            output.note(format_args!(
                "the job was started {} times: these are the steps since the last start",
                starts.len() + 1
            ));
        }
        let mut ranks = BTreeMap::new();
        for (number, path) in files {
            ranks.insert(number, Rank::read(&path)?);
        }
        let mut times = Times::default();
        for (number, rank) in &ranks {
            for (step, parts) in &rank.steps {
                times.insert(&step.to_string(), &number.to_string(), parts.iter().sum())?;
            }
        }
        let settled = times.settled();
        settled.say_gaps("steps", "a rank's time was missing", output);
        let mut not_seen = settled.gone();
        not_seen.extend(missing(&ranks));
        if ranks.values().any(|rank| rank.is_sharded) {
            not_seen.push(
                "who is slow within a forward or backward pass: under FSDP ranks wait for each \
                 other there, and these times are upper bounds"
                    .to_owned(),
            );
        }
        parts_of_slow(&ranks).iter().for_each(|it| output.note(format_args!("{it}")));
        Ok(Self {
            rows: settled.rows().collect(),
            called: TraceLabels {
                rounds: Rounds::of(&settled.rounds),
                workers: settled.workers,
                not_seen,
                bytes: 0,
            },
        })
    }
}

impl Rank {
    fn read(path: &Path) -> Result<Self, Failure> {
        let text = files::read_text(path, RANK_BYTES_MAX)
            .with_context(|| format!("cannot read {}", path.display()))
            .or_input()?;
        // A job that was killed, or a full disk, leaves a line that is cut.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let head = whole.lines().next().unwrap_or_default();
        let world = head.split(" of ").nth(1).and_then(|rest| rest.split(',').next());
        let mut rank = Self {
            world: world.and_then(|count| count.parse().ok()),
            is_sharded: head.starts_with('#') && head.ends_with(", sharded"),
            steps: Vec::new(),
        };
        let mut table = ReaderBuilder::new().comment(Some(b'#')).from_reader(whole.as_bytes());
        let header = table.headers().with_context(|| path.display().to_string()).or_input()?;
        if header.iter().ne(COLUMNS) {
            return Err(Failure::Input(anyhow!(
                "{}: expected the columns {}",
                path.display(),
                COLUMNS.join(",")
            )));
        }
        for line in table.records() {
            let line = line.with_context(|| path.display().to_string()).or_input()?;
            rank.steps.extend(of_line(&line));
        }
        if rank.steps.is_empty() {
            return Err(Failure::Input(anyhow!(
                "{}: no step with a gradient after the first; did the loop call the model and the \
                 optimizer that `codedgrad.record` was given?",
                path.display()
            )));
        }
        Ok(rank)
    }
}

/// A step and what its time went into; none where a moment was not stamped.
fn of_line(line: &StringRecord) -> Option<(u64, [f64; 3])> {
    let moment = |at: usize| line.get(at)?.parse::<f64>().ok().filter(|it| it.is_finite());
    let step = line.get(0)?.parse().ok()?;
    let began = moment(1)?;
    let (first, last) = (moment(3)?, moment(4)?);
    // A loop may call another model than the one that is wrapped.
    let forward = moment(2).unwrap_or(began);
    Some((step, [forward - began, first - forward, last - first]))
}

/// Ranks of which there is no file.
fn missing(ranks: &BTreeMap<u64, Rank>) -> Option<String> {
    let world = ranks.values().filter_map(|rank| rank.world).max()?;
    let count = world.saturating_sub(ranks.len() as u64);
    let first = (0..world).find(|rank| !ranks.contains_key(rank))?;
    Some(format!("{count} of {world} ranks have no file here, rank {first} among them"))
}

/// What the time of those went into who take longer than most.
fn parts_of_slow(ranks: &BTreeMap<u64, Rank>) -> Vec<String> {
    let of_rank = |rank: &Rank| {
        [0, 1, 2].map(|part| median(rank.steps.iter().map(|(_, parts)| parts[part]).collect()))
    };
    let parts: Vec<(u64, [f64; 3])> =
        ranks.iter().map(|(number, rank)| (*number, of_rank(rank))).collect();
    let total = |parts: &[f64; 3]| parts.iter().sum::<f64>();
    let usual = median(parts.iter().map(|(_, parts)| total(parts)).collect());
    let slow = parts.iter().filter(|(_, parts)| total(parts) > SLOW * usual);
    slow.map(|(number, parts)| {
        let [loading, forward, backward] = parts;
        format!(
            "rank {number}: {:.3} s a step, of them {loading:.3} s loading, {forward:.3} s \
             forward, {backward:.3} s backward; the median rank takes {usual:.3} s",
            total(parts)
        )
    })
    .collect()
}

/// Of an even number the lower one: of two ranks the fast one is the measure of the other.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
