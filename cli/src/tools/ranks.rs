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
mod tests {
    use super::*;
    use codedgrad_shell::output::Notes;
    use tempfile::TempDir;

    /// Steps of 0.3 s from the second on, of which `forward` are the forward pass.
    fn rank(world: u32, kind: &str, forward: f64, steps: u64) -> String {
        let mut text = format!(
            "# host h, rank 0 of {world}, torch 2.9.0, cpu, {kind}\n{}\n",
            COLUMNS.join(",")
        );
        for step in 0..steps {
            let began = step as f64;
            let shown = if step == 0 { String::new() } else { format!("{began:.6}") };
            let first = began + 0.1 + forward;
            text += &format!(
                "{step},{shown},{:.6},{first:.6},{:.6},{:.6}\n",
                began + 0.1,
                first + 0.1,
                first + 0.2
            );
        }
        text
    }

    fn read(files: &[(&str, String)]) -> (Result<Ranks, Failure>, String) {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(Ranks::is_in(folder.path()), !files.is_empty());
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut output = Output { out: &mut out, notes: Notes::Kept(&mut notes) };
        let found = Ranks::read(folder.path(), &mut output);
        (found, String::from_utf8(notes).unwrap())
    }

    #[test]
    fn ranks_are_joined_by_steps_and_the_slow_ones_part_is_named() {
        let cut = rank(3, "replicated", 0.1, 4) + "4,4.0,4.1";
        let (found, notes) = read(&[
            ("rank-0.csv", cut),
            ("rank-1.csv", rank(3, "replicated", 0.1, 4)),
            ("rank-2.csv", rank(3, "replicated", 0.3, 4)),
        ]);
        let Ranks { rows, called } = found.unwrap();
        assert_eq!(called.workers, ["0", "1", "2"]);
        assert_eq!(called.rounds.all_numbers(), Some(vec![1, 2, 3]));
        assert!(called.not_seen.is_empty(), "{:?}", called.not_seen);
        for row in rows {
            let rounded: Vec<f64> = row.iter().map(|time| (time * 1e6).round() / 1e6).collect();
            assert_eq!(rounded, [0.3, 0.3, 0.5]);
        }
        assert_eq!(
            notes,
            "rank 2: 0.500 s a step, of them 0.100 s loading, 0.300 s forward, 0.100 s backward; \
             the median rank takes 0.300 s\n"
        );
    }

    #[test]
    fn of_two_ranks_the_slow_ones_part_is_named() {
        let files = [0.1, 0.3].map(|forward| rank(2, "replicated", forward, 4));
        let [fast, slow] = files;
        let (_, notes) = read(&[("rank-0.csv", fast), ("rank-1.csv", slow)]);
        assert!(notes.starts_with("rank 1: 0.500 s a step"), "{notes}");
    }

    #[test]
    fn what_was_not_recorded_is_said() {
        let sharded = || rank(4, "sharded", 0.1, 3);
        let (found, notes) = read(&[
            ("rank-0.csv", rank(4, "replicated", 0.1, 9)),
            ("rank-0.start-1.csv", sharded()),
            ("rank-3.start-1.csv", sharded()),
        ]);
        let called = found.unwrap().called;
        assert_eq!(called.workers, ["0", "3"]);
        let [missing, bound] = &called.not_seen[..] else { panic!("{:?}", called.not_seen) };
        assert_eq!(missing, "2 of 4 ranks have no file here, rank 1 among them");
        assert!(bound.contains("upper bounds"), "{bound}");
        assert!(notes.starts_with("the job was started 2 times"), "{notes}");
    }

    #[test]
    fn what_holds_no_steps_is_refused() {
        let refused = |text: &str| match read(&[("rank-0.csv", text.to_owned())]).0.err() {
            Some(Failure::Input(error)) => format!("{error:#}"),
            other => panic!("{other:?}"),
        };
        assert!(refused(&rank(1, "replicated", 0.1, 1)).contains("no step with a gradient"));
        assert!(refused("a,b\n1,2\n").contains("expected the columns step,began,forward"));
        assert!(refused("").contains("expected the columns"));
    }
}
