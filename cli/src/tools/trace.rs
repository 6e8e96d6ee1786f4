//! `codedgrad trace`: delays recorded, imported and measured.

mod record;
mod show;

use super::suspicious;
use crate::units::{at_least, count};
pub(crate) use record::{Recording, Steps};

use crate::layout::help;
use crate::output::Output;
use crate::{Failure, OrInput, OrWork};
use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use codedgrad::delays::{
    DelayError, DelayRows, LongTable, Preset, StragglerStats, TableFormat, TableReader,
    TraceReader, Unit, write_row,
};
use indicatif::ProgressBar;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Rounds of a preset that are measured where no number is given.
const PRESET_ROUNDS: u64 = 5000;
/// Rows between two moves of the progress bar.
const ROWS_PER_MOVE: u64 = 256;

#[derive(Debug, Args)]
#[command(
    after_help = help("\
A trace is a CSV file without a header: one line per round, one number per worker, the seconds
its answer took. `codedgrad train --delays FILE` runs under it.

Examples:
  codedgrad trace record runs/0001 --out mine.csv    # what the workers of a training run did
  codedgrad trace import examples/traces/long.csv --long step,rank,ms --per-second 1000
  codedgrad trace stats examples/traces/stragglers.csv    # who straggles, how long
  codedgrad trace stats serverless --rounds 100 --json")
)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Make a trace of a training run: when each worker's answer arrived, step by step
    Record(RecordArgs),
    /// Make a trace of a table with a header, as public data sets have them
    Import(ImportArgs),
    /// Measure how the workers of a trace or a preset straggle
    Stats(StatsArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = help("\
A worker's number is when its answer arrived, since the round opened. Where it had not arrived
by the close, the step's time is written; where lateness was injected, the time at which the
answer was due, if that is later. How many are such estimates is said on standard error.")
)]
struct RecordArgs {
    /// Folder of a run, or its run.jsonl
    run: PathBuf,
    /// Which of the folder's runs, from 0; the first if not given
    #[arg(long = "run", value_name = "N")]
    number: Option<usize>,
    /// File to write; standard output if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = help("\
Known by their headers:
  round,w0,w1,...                     a row per round (Alibaba PAI mini-batch times); rows with
    an empty cell are left out
  step,s0d0,s0d1,...                  a column per pipeline stage and rank (ByteDance traces)
  epoch,step_end,same_epoch,w0,...    MLPerf HPC instances; rows with same_epoch other than 1
    are left out"))]
struct ImportArgs {
    /// CSV file whose first line names its columns
    file: PathBuf,
    /// Columns to take, such as w0,w3 or 's0d*'; all workers' columns if not given
    #[arg(long, value_name = "NAMES")]
    columns: Option<String>,
    /// Columns of round, worker and time, of a table with a row per round and worker
    #[arg(long, value_name = "ROUND,WORKER,TIME", conflicts_with = "columns")]
    long: Option<String>,
    /// How many of the file's units of time are a second: 1000 for milliseconds
    #[arg(long, value_name = "UNITS", default_value_t = 1.0)]
    per_second: f64,
    /// File to write; standard output if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct StatsArgs {
    /// A trace, or a preset: hotspot | bursts | iid | static | calm | stalls | proportional |
    /// serverless | serverless-cold
    #[arg(value_name = "FILE|PRESET")]
    delays: String,
    /// Number of workers, the first columns of a file; all of them if not given (a preset: 8,
    /// serverless 256)
    #[arg(long, value_parser = count::<u32>(1..=65536))]
    workers: Option<u32>,
    /// Rounds to measure; a file starts again when it is used up [default: a file's, or 5000 of a
    /// preset]
    #[arg(long, value_parser = at_least(1u64))]
    rounds: Option<u64>,
    /// Seed of a preset's draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &TraceArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    match &args.command {
        TraceCommand::Record(args) => record(args, output),
        TraceCommand::Import(args) => import(args, output),
        TraceCommand::Stats(args) => stats(args, output),
    }
}

fn record(args: &RecordArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let steps = Steps::open(&args.run)?;
    let bar = file_bar(&steps.path, args.out.is_some(), output);
    let notes = &mut output.notes;
    let mut made = None;
    to_output(args.out.as_deref(), output.out, |output| {
        let mut write = |row: &[f64]| write_row(output, row).or_work();
        let mut read = |bytes| bar.set_position(bytes);
        made = Some(Recording::make(steps, args.number, notes, &mut read, &mut write)?);
        Ok(())
    })?;
    bar.finish_and_clear();
    if let Some(made) = made {
        made.say(output);
    }
    Ok(())
}

fn import(args: &ImportArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    if !(args.per_second.is_finite() && args.per_second > 0.0) {
        return Err(Failure::Input(anyhow!(
            "--per-second {}: expected a number above 0",
            args.per_second
        )));
    }
    if let Some(names) = &args.long {
        return import_long(args, names, output);
    }
    let mut table = TableReader::open(&args.file, args.columns.as_deref()).or_input()?;
    let stages = |name: &String| name.split_once('d').map(|(stage, _)| stage.to_owned());
    if table.format() == TableFormat::Stages
        && table.workers().iter().map(stages).any(|stage| stage != stages(&table.workers()[0]))
    {
        output.note(format_args!(
            "warning: the columns are of several pipeline stages, whose times differ by design; \
             --columns 's0d*' takes one of them"
        ));
    }
    let bar = file_bar(&args.file, args.out.is_some(), output);
    let (mut rows, mut seen) = (0u64, Vec::new());
    to_output(args.out.as_deref(), output.out, |output| {
        while let Some(row) = table.next() {
            let row: Vec<f64> =
                row.or_input()?.into_iter().map(|delay| delay / args.per_second).collect();
            write_row(output, &row).or_work()?;
            rows += 1;
            if seen.len() < suspicious::ROWS {
                seen.push(row);
            }
            bar.set_position(table.bytes_read());
        }
        if rows == 0 {
            return Err(Failure::Input(anyhow!(
                "{}: no row has a number for every worker",
                args.file.display()
            )));
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let format = match table.format() {
        TableFormat::Rounds => "a table of rounds",
        TableFormat::Stages => "a table of pipeline stages and ranks",
        TableFormat::Intervals => "a table of intervals",
        TableFormat::Chosen => "the columns chosen",
    };
    output.note(format_args!(
        "imported {rows} rows of {} workers from {format}",
        table.workers().len()
    ));
    let left_out = [
        (table.incomplete(), "a number was missing"),
        (table.evaluations(), "an evaluation took place (same_epoch)"),
    ];
    for (count, why) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        output.note(format_args!("left out: {count} rows in which {why}"));
    }
    suspicious::say_of_rows(&args.file.display().to_string(), &seen, output);
    if table.workers().len() == 1 {
        output.note(format_args!(
            "warning: that is one worker; a table with a row per round and worker is read by \
             --long ROUND,WORKER,TIME"
        ));
    }
    Ok(())
}

/// Imports a table with a row per round and worker.
fn import_long(args: &ImportArgs, names: &str, output: &mut Output<'_>) -> Result<(), Failure> {
    let columns: Vec<&str> = names.split(',').map(str::trim).collect();
    let columns = <[&str; 3]>::try_from(columns).map_err(|_| {
        Failure::Input(anyhow!("--long {names}: three columns are needed, such as step,rank,ms"))
    })?;
    let table = LongTable::open(&args.file, columns).or_input()?;
    let in_seconds = |row: Vec<f64>| row.into_iter().map(|time| time / args.per_second).collect();
    let rows: Vec<Vec<f64>> = table.rows().map(in_seconds).collect();
    if rows.is_empty() {
        return Err(Failure::Input(anyhow!(
            "{}: no round has one time of each of {} workers",
            args.file.display(),
            table.workers()
        )));
    }
    to_output(args.out.as_deref(), output.out, |output| {
        rows.iter().try_for_each(|row| write_row(output, row)).or_work()
    })?;
    let (count, workers) = (rows.len(), table.workers());
    output.note(format_args!("imported {count} rounds of {workers} workers from a long table"));
    if table.incomplete() > 0 {
        output.note(format_args!(
            "left out: {} rounds in which a worker had no time, or several",
            table.incomplete()
        ));
    }
    let start = &rows[..count.min(suspicious::ROWS)];
    suspicious::say_of_rows(&args.file.display().to_string(), start, output);
    Ok(())
}

fn stats(args: &StatsArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let workers = args.workers.map(|workers| workers as usize);
    suspicious::say(&args.delays, workers, output);
    let preset = Preset::named(&args.delays);
    let path = Path::new(&args.delays);
    let (found, unit) = if preset.is_none() && args.rounds.is_none() && path.exists() {
        let mut trace = TraceReader::open(path, workers).or_input()?;
        suspicious::say_of_columns(&args.delays, trace.workers(), trace.columns(), output);
        let bar = file_bar(path, true, output);
        let mut stats = StragglerStats::new(trace.workers());
        while let Some(row) = trace.next() {
            stats.push(&row.or_input()?);
            bar.set_position(trace.bytes_read());
        }
        bar.finish_and_clear();
        (stats.summary(), Unit::Seconds)
    } else {
        let rows = DelayRows::open(&args.delays, workers, args.seed).or_input()?;
        let rounds = args.rounds.unwrap_or(PRESET_ROUNDS);
        if let Some(columns) = rows.columns() {
            suspicious::say_of_columns(&args.delays, rows.workers(), columns, output);
        }
        let unit = rows.unit();
        (measured(rows, rounds, &args.delays, output).or_input()?.summary(), unit)
    };
    let shown = show::Shown { delays: &args.delays, unit: show::unit_name(unit), summary: &found };
    let text = if args.json {
        serde_json::to_string(&shown).or_work()? + "\n"
    } else {
        shown.tables(preset)
    };
    output.out.write_all(text.as_bytes()).or_work()
}

/// Measures the first rounds, in answer times.
fn measured(
    rows: DelayRows,
    rounds: u64,
    name: &str,
    output: &Output<'_>,
) -> Result<StragglerStats, DelayError> {
    let unit = rows.unit();
    let bar = output.progress_bar(rounds, name);
    let mut stats = StragglerStats::new(rows.workers());
    for (round, row) in (1..=rounds).zip(rows) {
        stats.push(&row?.into_iter().map(|delay| unit.answer_time(delay)).collect::<Vec<_>>());
        if round.is_multiple_of(ROWS_PER_MOVE) {
            bar.set_position(round);
        }
    }
    bar.finish_and_clear();
    Ok(stats)
}

/// A bar over the bytes of a file.
pub(super) fn file_bar(path: &Path, wanted: bool, output: &Output<'_>) -> ProgressBar {
    let length = fs::metadata(path).map_or(0, |file| file.len());
    let name = path.display().to_string();
    if wanted { output.progress_bar(length, &name) } else { ProgressBar::hidden() }
}

/// Has a file written, or else the output. A file is written under another name and renamed when
/// all is well, so that it is never there by halves.
pub(super) fn to_output(
    out: Option<&Path>,
    output: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(path) = out else {
        // Before anything is said of it.
        return write(output).and_then(|()| output.flush().or_work());
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let half = PathBuf::from(name);
    let file = File::create(&half)
        .with_context(|| format!("cannot write {}", path.display()))
        .or_input()?;
    let mut output = BufWriter::new(file);
    let kept = write(&mut output).and_then(|()| {
        output
            .flush()
            .and_then(|()| fs::rename(&half, path))
            .with_context(|| format!("cannot write {}", path.display()))
            .or_work()
    });
    kept.inspect_err(|_| drop(fs::remove_file(&half)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_all_in_the_help() {
        use clap::Args as _;
        let help =
            StatsArgs::augment_args(clap::Command::new("stats")).render_long_help().to_string();
        assert!(Preset::names().into_iter().all(|name| help.contains(name)), "{help}");
    }
}
