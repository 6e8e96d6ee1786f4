//! Tables with a header: a column per worker, or a row per round and worker.

use super::sheet::{Sheet, listed, shortened};
use crate::tools::times::names;
use crate::tools::times::{Times, join};
use codedgrad_shell::failure::Failure;
use codedgrad_shell::output::Output;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Columns that number or date a row, or say what kind of row it is, in small letters.
const INDEX_COLUMNS: [&str; 22] = [
    "round",
    "step",
    "epoch",
    "step_end",
    "iteration",
    "iter",
    "time",
    "timestamp",
    "date",
    "wall time",
    "walltime",
    "wall_time",
    "global_step",
    "global step",
    "trainer/global_step",
    "_step",
    "_runtime",
    "_timestamp",
    "index",
    "unnamed: 0",
    "",
    SAME_EPOCH,
];
/// Those of them that number the rounds, the best first.
const ROUND_COLUMNS: [&str; 11] = [
    "step",
    "round",
    "iteration",
    "iter",
    "global_step",
    "global step",
    "trainer/global_step",
    "_step",
    "index",
    "unnamed: 0",
    "",
];
/// Marks rows in which nothing but training went on (1) against those with an evaluation in them
/// (0).
const SAME_EPOCH: &str = "same_epoch";
/// What W&B has beside each column.
const BESIDE: [&str; 2] = ["__min", "__max"];
/// Headers that would do.
const EXPECTED: &str = "expected a header such as round,w0,w1,... or step,s0d0,s0d1,... or \
    epoch,step_end,same_epoch,w0,w1,..., or names of columns to take";

/// What a table's header shows it to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `round,w0,w1,...`: a row per round, a column per worker.
    Rounds,
    /// `step,s0d0,s0d1,...`: a column per pipeline stage and data-parallel rank.
    Stages,
    /// `epoch,step_end,same_epoch,w0,...`: a column per training instance, rows with evaluations.
    Intervals,
    /// Columns chosen by name.
    Chosen,
}

/// A table with a column per worker.
pub(super) struct WideTable {
    pub(super) times: Times,
    pub(super) format: Format,
    pub(super) columns: Vec<String>,
    /// Rows left out because an evaluation took place in them.
    pub(super) evaluations: u64,
    pub(super) cut: Option<u64>,
}

/// Names of the columns of round, worker and time; several of the round, joined by `+`.
pub(super) struct Fields<'a> {
    pub(super) rounds: Vec<&'a str>,
    pub(super) worker: Option<&'a str>,
    pub(super) time: &'a str,
}

/// Reads a table with a column per worker.
pub(super) fn wide(
    path: &Path,
    choice: Option<&str>,
    output: &mut Output<'_>,
    bar: bool,
) -> Result<WideTable, Failure> {
    let mut sheet = Sheet::open(path)?;
    let small: Vec<String> = sheet.header.iter().map(|name| name.to_lowercase()).collect();
    let found = match choice {
        Some(choice) => chosen(&sheet.header, choice).map(|taken| (Format::Chosen, taken)),
        None => recognised(&sheet.header, &small),
    };
    let (format, taken) =
        found.map_err(|problem| sheet.wrong_header(&format!("{problem}; {EXPECTED}")))?;
    let index = |name: &&str| {
        let column = small.iter().position(|column| column == name)?;
        (!taken.contains(&column)).then_some(column)
    };
    let same_epoch = index(&SAME_EPOCH);
    // Rows of intervals end wherever an interval does.
    let round = ROUND_COLUMNS.iter().find_map(index).filter(|_| same_epoch.is_none());
    let epoch = index(&"epoch");
    let columns: Vec<String> = taken.iter().map(|column| sheet.header[*column].clone()).collect();
    let mut wide = WideTable {
        times: Times::of_workers(&called(&columns)),
        format,
        columns,
        evaluations: 0,
        cut: None,
    };
    if format == Format::Chosen {
        wide.times.keep_order();
    }
    let bar = output.file_bar(path, bar);
    let mut rows: Vec<Vec<f64>> = Vec::new();
    let (mut steps, mut in_epochs) = (Vec::new(), Vec::new());
    while sheet.next()? {
        if same_epoch.is_some_and(|column| sheet.cell(column) != "1") {
            wide.evaluations += 1;
            continue;
        }
        let row = taken.iter().map(|column| sheet.time(*column)).collect::<Result<_, _>>()?;
        rows.push(row);
        if let Some(round) = round {
            let step = sheet.cell(round);
            if let Some(epoch) = epoch {
                in_epochs.push(join(&[&sheet.cell(epoch), &step]));
            }
            steps.push(join(&[&step]));
        }
        if rows.len().is_multiple_of(256) {
            bar.set_position(sheet.bytes_read());
        }
    }
    // Steps that begin again in every epoch are told by both.
    if in_epochs.len() == steps.len() && repeats(&steps) && !repeats(&in_epochs) {
        steps = in_epochs;
    }
    // Rows of one number that follow one another are not a round that was told again.
    let numbered = round.is_some() && steps.windows(2).all(|pair| pair[0] != pair[1]);
    for (number, row) in rows.into_iter().enumerate() {
        match numbered {
            true => wide.times.push(&steps[number], row),
            false => wide.times.push(&number.to_string(), row),
        }
    }
    bar.finish_and_clear();
    wide.cut = sheet.cut;
    Ok(wide)
}

/// Whether some name stands in a list more than once.
fn repeats(names: &[String]) -> bool {
    let set: BTreeSet<&String> = names.iter().collect();
    set.len() < names.len()
}

/// Reads tables with a row per round and worker; without a column of workers each is one worker's.
pub(super) fn long(
    files: &[PathBuf],
    fields: &Fields<'_>,
    output: &mut Output<'_>,
) -> Result<Times, Failure> {
    let mut times = Times::default();
    for (path, own) in files.iter().zip(names::of_files(files)) {
        let mut sheet = Sheet::open(path)?;
        let rounds = fields.rounds.iter().map(|name| sheet.column(name));
        let rounds: Vec<usize> = rounds.collect::<Result<_, _>>()?;
        let worker = fields.worker.map(|name| sheet.column(name)).transpose()?;
        let time = sheet.column(fields.time)?;
        while sheet.next()? {
            let seconds = sheet.time(time)?;
            let worker = worker.map(|column| sheet.cell(column));
            let worker = worker.as_deref().unwrap_or(&own);
            // Sparse tables have rows of other metrics between those of the time.
            if worker.is_empty() || rounds.iter().any(|round| sheet.cell(*round).is_empty()) {
                continue;
            }
            if let [round] = rounds[..] {
                times.insert(&sheet.cell(round), worker, seconds)?;
                continue;
            }
            let parts: Vec<_> = rounds.iter().map(|at| sheet.cell(*at)).collect();
            let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
            times.insert(&join(&parts), worker, seconds)?;
        }
        if let Some(line) = sheet.cut {
            let name = path.display();
            output.note(format_args!("line {line} of {name} was cut off and is left out"));
        }
    }
    Ok(times)
}

/// Whether a name fits a pattern, in which `*` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = &parts[..] else { return name == pattern };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// What W&B has beside a column, if that is there too.
fn is_beside(name: &str, header: &[String]) -> bool {
    BESIDE.iter().any(|end| {
        let start = name.len().saturating_sub(end.len());
        let tail = name.get(start..).unwrap_or_default();
        tail.eq_ignore_ascii_case(end) && header.iter().any(|other| *other == name[..start])
    })
}

/// The columns that a choice names.
fn chosen(header: &[String], choice: &str) -> Result<Vec<usize>, String> {
    let mut taken = Vec::new();
    for pattern in choice.split(',').map(str::trim) {
        let columns = |fits: &dyn Fn(&str) -> bool| -> Vec<usize> {
            (0..header.len()).filter(|&column| fits(&header[column])).collect()
        };
        let mut found = columns(&|name| fits(pattern, name));
        if found.is_empty() {
            let small = pattern.to_lowercase();
            found = columns(&|name| fits(&small, &name.to_lowercase()));
        }
        if found.len() > 1 {
            found.retain(|column| !is_beside(&header[*column], header));
        }
        if found.is_empty() {
            return Err(format!(
                "no column is named {pattern:?}; the columns are {}",
                listed(header)
            ));
        }
        found.retain(|column| !taken.contains(column));
        found.sort_by(|a, b| names::natural(&header[*a], &header[*b]));
        taken.extend(found);
    }
    Ok(taken)
}

/// The format of a header and its workers' columns; `small` is the header in small letters.
fn recognised(header: &[String], small: &[String]) -> Result<(Format, Vec<usize>), String> {
    let mut stages = Vec::new();
    let mut workers = Vec::new();
    let mut others = Vec::new();
    for (column, name) in small.iter().enumerate() {
        if is_stage_and_rank(name) {
            stages.push(column);
        } else if is_worker(name) {
            workers.push(column);
        } else if !INDEX_COLUMNS.contains(&name.as_str()) && !is_beside(&header[column], header) {
            others.push(column);
        }
    }
    let counted = |columns: &[usize]| {
        let own = columns.iter().enumerate().all(|(at, column)| small[*column] == at.to_string());
        own && columns.len() > 1
    };
    // Names that differ by their numbers alone are those of hosts, ranks or runs.
    let pattern = |column: &usize| small[*column].replace(|it: char| it.is_ascii_digit(), "");
    let alike = |columns: &[usize]| {
        let first = columns.first().map(pattern);
        let numbered = |column: &usize| pattern(column) != small[*column];
        columns.len() > 1
            && columns.iter().all(|column| Some(pattern(column)) == first && numbered(column))
            && columns.len() < small.len()
    };
    let number = |column: &usize| small[*column].parse::<f64>().is_ok();
    if workers.is_empty() && stages.is_empty() {
        let names = !others.iter().any(number);
        if counted(&others) || names && alike(&others) {
            workers = std::mem::take(&mut others);
        }
    }
    if let Some(column) = others.first() {
        let name = &header[*column];
        let hint = if number(column) {
            " (the file has no header: it may be a trace already)"
        } else if ["rank", "worker", "node", "device", "host"].contains(&&*small[*column]) {
            " (a table with a row per round and worker is read by its three columns: `codedgrad \
             trace import --long step,rank,ms`)"
        } else {
            ""
        };
        return Err(format!(
            "column {} is named {:?}, which is no worker's name{hint}",
            column + 1,
            shortened(name)
        ));
    }
    match (stages.is_empty(), workers.is_empty()) {
        (true, true) => Err(format!("no column is a worker's among {}", listed(header))),
        (false, false) => Err("some columns are named by worker, others by stage and rank".into()),
        (false, true) => Ok((Format::Stages, stages)),
        (true, false) if small.iter().any(|name| name == SAME_EPOCH) => {
            Ok((Format::Intervals, workers))
        }
        (true, false) => Ok((Format::Rounds, workers)),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `w3`, `worker_3`, `rank 3`.
fn is_worker(name: &str) -> bool {
    ["worker", "rank", "w", "host", "node", "gpu", "device"].iter().any(|start| {
        let rest = name.strip_prefix(start);
        rest.is_some_and(|rest| is_number(rest.trim_start_matches(['_', '-', ' ', '.', ':', '/'])))
    })
}

/// `s0d3`.
fn is_stage_and_rank(name: &str) -> bool {
    let numbers = name.strip_prefix('s').and_then(|rest| rest.split_once('d'));
    numbers.is_some_and(|(stage, rank)| is_number(stage) && is_number(rank))
}

/// What workers are called by the names of their columns: without the metric that W&B puts behind
/// the name of a run.
fn called(columns: &[String]) -> Vec<String> {
    const APART: &str = " - ";
    let metric = columns.first().and_then(|name| name.rfind(APART).map(|at| &name[at..]));
    let short: Option<Vec<String>> = metric.and_then(|metric| {
        columns.iter().map(|name| name.strip_suffix(metric).map(str::to_owned)).collect()
    });
    let unique = |names: &Vec<String>| !repeats(names);
    let names = short.filter(unique).unwrap_or_else(|| columns.to_vec());
    if unique(&names) {
        return names;
    }
    let numbered = names.iter().zip(1..).map(|(name, column)| format!("{name} (column {column})"));
    numbered.collect()
}

#[cfg(test)]
mod tests;
