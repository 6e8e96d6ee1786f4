//! The folder that `codedgrad.record` of the Python package writes: how long the steps of another
//! trainer's ranks took, a file for each rank.

use super::called::{Rounds, TraceLabels};
use super::times::Times;
use anyhow::{Context, anyhow};
use codedgrad::files;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::output::{Output, plain};
use csv::{ReaderBuilder, StringRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Its first columns; the first step of a file has no time in `began`.
const COLUMNS: [&str; 6] = ["step", "began", "forward", "first", "last", "ended"];
/// The columns behind them, which older files lack: seconds that are the rank's own, and others'.
const SECONDS: [&str; PARTS + 1] =
    ["loading_s", "forward_s", "between_s", "loss_s", "backward_s", "optimizer_s", "waiting_s"];
/// How many parts of a step are the rank's own, and where they are.
const PARTS: usize = 6;
const PLACES: [&str; PARTS] = [
    "loading",
    "the forward pass",
    "the forward pass, outside of FSDP2's innermost modules",
    "the loss",
    "the backward pass",
    "the optimizer's step",
];
/// The parts of a step for people, in the order of [`Step::told`].
pub(crate) const STEP_PARTS: [&str; 5] = ["loading", "forward", "backward", "optimizer", "wait"];
/// Above so many times the median of all ranks it is said what a rank's time went into,
const SLOW: f64 = 1.1;
/// where that is such a share of the whole step, on hosts that may be busy with other things,
const SHARE: f64 = 0.2;
/// or such a one in nine of ten steps, and as many as these.
const STEADY: (f64, usize) = (0.05, 9);
/// What is not a rank's own, and why.
const BOUNDED: &str = "# bounded: ";

/// Missing ranks that are listed.
const LISTED: usize = 8;
/// No file of a rank is longer: ten million steps.
const RANK_BYTES_MAX: u64 = 1 << 30;

/// Steps of all ranks: what each took itself, without waiting for others.
pub(crate) struct Ranks {
    pub(crate) rows: Vec<Vec<f64>>,
    pub(crate) called: TraceLabels,
    /// The steps of the rows.
    pub(crate) steps: Vec<JointStep>,
}

/// A step of all ranks.
pub(crate) struct JointStep {
    /// Seconds of the rank that took longest, with what it waited for.
    pub(crate) seconds: f64,
    /// Seconds of each of the [`STEP_PARTS`], the mean of the ranks.
    pub(crate) parts: [f64; STEP_PARTS.len()],
}

/// A rank's steps.
#[derive(Default)]
struct Rank {
    /// As many as the job has, if it has said so.
    world: Option<u64>,
    /// Where ranks wait for each other unseen.
    bounds: Vec<String>,
    /// Whether micro-batches are told apart.
    is_old: bool,
    steps: Vec<Step>,
}

/// A rank's step.
struct Step {
    number: u64,
    /// Seconds of each part.
    parts: [f64; PARTS],
    /// Seconds of the whole, with what was waited for.
    whole: f64,
}

impl Step {
    fn own(&self) -> f64 {
        self.parts.iter().sum()
    }

    /// Seconds of each of the [`STEP_PARTS`].
    fn told(&self) -> [f64; STEP_PARTS.len()] {
        let [loading, before, between, loss, backward, optimizer] = self.parts;
        [loading, before + between + loss, backward, optimizer, self.whole - self.own()]
    }
}

/// Of which rank a file is, and of which start of its job.
fn of_name(name: &str) -> Option<(u64, u64)> {
    let name = name.strip_prefix("rank-")?.strip_suffix(".csv")?;
    let (rank, start) = name.split_once(".start-").unwrap_or((name, "0"));
    Some((start.parse().ok()?, rank.parse().ok()?))
}

/// The files of folders, by the start of the job and by rank.
fn files(folders: &[&Path]) -> Result<BTreeMap<u64, BTreeMap<u64, PathBuf>>, Failure> {
    let mut found: BTreeMap<u64, BTreeMap<u64, PathBuf>> = BTreeMap::new();
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    for entry in entries.flatten() {
        if let Some((start, rank)) = entry.file_name().to_str().and_then(of_name) {
            let path = entry.path();
            if let Some(other) = found.entry(start).or_default().insert(rank, path.clone()) {
                return Err(Failure::Input(anyhow!(
                    "{} and {} are of the same rank: give folders of one job, each once",
                    other.display(),
                    path.display()
                )));
            }
        }
    }
    Ok(found)
}

impl Ranks {
    /// Whether a path is such a folder.
    pub(crate) fn is_in(path: &Path) -> bool {
        path.is_dir() && files(&[path]).is_ok_and(|found| !found.is_empty())
    }

    /// Joins the ranks of the job's last start by the numbers of their steps; of several hosts each
    /// may have a folder.
    pub(crate) fn read(folders: &[&Path], output: &mut Output<'_>) -> Result<Self, Failure> {
        if let Some(none) = folders.iter().find(|folder| !Self::is_in(folder)) {
            return Err(Failure::Input(anyhow!("{}: no file of a rank", none.display())));
        }
        let mut starts = files(folders)?;
        let (_, files) = starts.pop_last().unwrap_or_default();
        if !starts.is_empty() {
            output.note(format_args!(
                "the job was started {} times: these are the steps since the last start",
                starts.len() + 1
            ));
        }
        let mut ranks = BTreeMap::new();
        for (number, path) in &files {
            ranks.insert(*number, Rank::read(path)?);
        }
        if let Some(path) = files.values().next()
            && ranks.values().all(|rank| rank.steps.is_empty())
        {
            return Err(Failure::Input(anyhow!(
                "{}: no step with a gradient after the first; did the loop call the model and the \
                 optimizer that `codedgrad.record` was given?",
                path.display()
            )));
        }
        let mut times = Times::default();
        for (number, rank) in &ranks {
            for step in &rank.steps {
                times.insert(&step.number.to_string(), &number.to_string(), step.own())?;
            }
        }
        let settled = times.settled();
        settled.say_gaps("steps", "a rank's time was missing", output);
        let mut not_seen = settled.gone();
        not_seen.extend(missing(&ranks));
        let silent = ranks.iter().filter(|(_, rank)| rank.steps.is_empty());
        not_seen.extend(silent.map(|(number, _)| {
            format!(
                "rank {number}: its file has no step, so that its process may have ended or hung \
                 early; look there first"
            )
        }));
        let bounds: BTreeSet<&String> = ranks.values().flat_map(|rank| &rank.bounds).collect();
        not_seen.extend(bounds.into_iter().map(|bound| {
            format!("who is slow within {bound}; these times are upper bounds there")
        }));
        parts_of_slow(&ranks).iter().for_each(|it| output.note(format_args!("{it}")));
        Ok(Self {
            rows: settled.rows().collect(),
            steps: joint_steps(&ranks, &settled.rounds),
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
        let mut table = ReaderBuilder::new().comment(Some(b'#')).from_reader(whole.as_bytes());
        let header = table.headers().with_context(|| path.display().to_string()).or_input()?;
        let is_old = header.iter().eq(COLUMNS);
        let bounds = whole.lines().filter_map(|line| line.strip_prefix(BOUNDED));
        let mut rank = Self {
            world: world.and_then(|count| count.parse().ok()),
            bounds: bounds.map(plain).collect(),
            is_old,
            steps: Vec::new(),
        };
        // A rank that ended at once may have left nothing, or half a line.
        if header.is_empty() {
            return Ok(rank);
        }
        if !is_old && header.iter().ne(COLUMNS.into_iter().chain(SECONDS)) {
            return Err(Failure::Input(anyhow!(
                "{}: expected the columns {}",
                path.display(),
                COLUMNS.join(",")
            )));
        }
        if is_old && head.starts_with('#') && head.ends_with(", sharded") {
            rank.bounds.push(
                "a forward or backward pass: under FSDP ranks wait for each other there".into(),
            );
        }
        for line in table.records() {
            let line = line.with_context(|| path.display().to_string()).or_input()?;
            rank.steps.extend(if is_old { of_old_line(&line) } else { of_line(&line) });
        }
        Ok(rank)
    }
}

fn number(line: &StringRecord, column: usize) -> Option<f64> {
    line.get(column)?.parse::<f64>().ok().filter(|it| it.is_finite())
}

/// A step; none where it was not all seen.
fn of_line(line: &StringRecord) -> Option<Step> {
    let step = line.get(0)?.parse().ok()?;
    // The first step has no `began`, and without a gradient it is none.
    number(line, 1).and(number(line, 4))?;
    let mut parts = [0.0; PARTS];
    for (column, part) in (COLUMNS.len()..).zip(&mut parts) {
        *part = number(line, column)?;
    }
    let waiting = number(line, COLUMNS.len() + PARTS)?;
    Some(Step { number: step, parts, whole: parts.iter().sum::<f64>() + waiting })
}

/// The same of a file without those columns.
fn of_old_line(line: &StringRecord) -> Option<Step> {
    let step = line.get(0)?.parse().ok()?;
    let began = number(line, 1)?;
    let (first, last) = (number(line, 3)?, number(line, 4)?);
    // A loop may call another model than the one that is wrapped.
    let forward = number(line, 2).unwrap_or(began);
    let parts = [forward - began, first - forward, 0.0, 0.0, last - first, 0.0];
    Some(Step { number: step, parts, whole: number(line, 5).unwrap_or(last) - began })
}

/// Ranks of which there is no file.
fn missing(ranks: &BTreeMap<u64, Rank>) -> Option<String> {
    let world = ranks.values().filter_map(|rank| rank.world).max()?;
    let gone: Vec<String> =
        (0..world).filter(|rank| !ranks.contains_key(rank)).map(|rank| rank.to_string()).collect();
    let shown = gone.get(..LISTED).unwrap_or(&gone).join(", ");
    let more = if gone.len() > LISTED { ", .." } else { "" };
    let count = gone.len();
    (count > 0).then(|| format!("{count} of {world} ranks have no file here: {shown}{more}"))
}

/// The steps of these numbers.
fn joint_steps(ranks: &BTreeMap<u64, Rank>, rounds: &[String]) -> Vec<JointStep> {
    let mut of_steps: BTreeMap<u64, Vec<&Step>> = BTreeMap::new();
    for step in ranks.values().flat_map(|rank| &rank.steps) {
        of_steps.entry(step.number).or_default().push(step);
    }
    let steps = rounds.iter().filter_map(|round| of_steps.get(&round.parse().ok()?));
    let joint = |steps: &Vec<&Step>| {
        let sum = |at: usize| steps.iter().map(|step| step.told()[at]).sum::<f64>();
        JointStep {
            // Older files do not show all that a rank waits for, but the slowest waits for none.
            seconds: steps.iter().map(|step| step.whole).fold(0.0, f64::max),
            parts: std::array::from_fn(|at| sum(at) / steps.len() as f64),
        }
    };
    steps.map(joint).collect()
}

/// What the time of those went into that take longer than most.
fn parts_of_slow(ranks: &BTreeMap<u64, Rank>) -> Vec<String> {
    let middle = |rank: &Rank, of: &dyn Fn(&Step) -> f64| median(rank.steps.iter().map(of));
    let all: Vec<_> = ranks.iter().filter(|(_, rank)| !rank.steps.is_empty()).collect();
    let of_all = |of: &dyn Fn(&Step) -> f64| median(all.iter().map(|(_, rank)| middle(rank, of)));
    let mut of_steps: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for step in all.iter().flat_map(|(_, rank)| &rank.steps) {
        of_steps.entry(step.number).or_default().push(step.own());
    }
    let of_steps: BTreeMap<u64, f64> =
        of_steps.into_iter().map(|(step, times)| (step, median(times))).collect();
    let usual = of_all(&Step::own);
    let mut found = Vec::new();
    for (number, rank) in &all {
        let total = middle(rank, &Step::own);
        let slower = rank.steps.iter().filter(|step| step.own() > of_steps[&step.number]).count();
        let is_steady = slower >= STEADY.1 && 10 * slower >= 9 * rank.steps.len();
        let share = if is_steady { STEADY.0 } else { SHARE };
        if total <= SLOW * usual || total - usual <= share * middle(rank, &|step| step.whole) {
            continue;
        }
        let parts: [f64; PARTS] = std::array::from_fn(|at| middle(rank, &|step| step.parts[at]));
        let excess = |at: usize| parts[at] - of_all(&|step| step.parts[at]);
        let most = (0..PARTS).max_by(|one, other| excess(*one).total_cmp(&excess(*other)));
        let most = most.unwrap_or_default();
        let place = match PLACES[most] {
            "the backward pass" if rank.is_old => {
                "the backward pass and what lies between micro-batches"
            }
            place => place,
        };
        found.push(format!(
            "rank {number}: {total:.3} s a step, of them {:.3} s loading, {:.3} s forward, {:.3} s \
             backward, {:.3} s optimizer; the median rank takes {usual:.3} s. It takes {:.3} s \
             longer for {place}",
            parts[0],
            parts[1..4].iter().sum::<f64>(),
            parts[4],
            parts[5],
            excess(most)
        ));
    }
    found
}

/// Of an even number the lower one: of two ranks the fast one is the measure of the other.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
