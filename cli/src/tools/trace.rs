//! `codedgrad trace`: delays recorded, imported and measured.

mod import;
mod show;

use super::called::TraceLabels;
use super::recorded::RecordedRun;
use super::recording::Recording;
use super::source::Source;
use codedgrad_shell::input::text_of;
use codedgrad_shell::suspicious;
use codedgrad_shell::units::{at_least, count, size, whole};

use anyhow::Context;
use clap::{Args, Subcommand};
use codedgrad::delays::{
    DelayError, DelayRows, Preset, StragglerStats, TraceReader, Unit, write_row,
};
use codedgrad::files::{self, BoundedReader};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::layout::help;
use codedgrad_shell::output::Output;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;

/// Rounds of a preset that are measured where no number is given.
const PRESET_ROUNDS: u64 = 5000;
/// Rows between two moves of the progress bar.
const ROWS_PER_MOVE: u64 = 256;

#[derive(Debug, Args)]
#[command(
    after_help = help("\
A trace is a CSV file without a header: one line per round, one number per worker, the seconds
its answer took. `codedgrad-lab train --delays FILE` runs under it.

Examples:
  codedgrad trace record runs/0001 --out mine.csv    # what the workers of a training run did
  codedgrad trace import examples/traces/long.csv --long step,rank,ms --per-second 1000
  codedgrad trace import examples/traces/steps.jsonl --long step,rank,time.seconds
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
    /// Make a trace of a table with a header, of JSON lines, of logs, or of profiler traces
    Import(import::ImportArgs),
    /// Measure how the workers of a trace or a preset straggle
    Stats(StatsArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = help("\
Each number is the time from a round's opening to the arrival of a worker's result. If the result
had not arrived by the close, `record` estimates the time from the worker's report. Without a
report it writes the round's length or, if later, the time at which an injected delay would have
ended; it prints the number of these estimates to standard error.")
)]
struct RecordArgs {
    /// Folder of a run, or its run.jsonl
    run: PathBuf,
    /// Which of the folder's runs, from 0; the first if not given
    #[arg(long = "run", value_name = "N", value_parser = size)]
    number: Option<usize>,
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
    #[arg(long, value_parser = whole::<u64>, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &TraceArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    match &args.command {
        TraceCommand::Record(args) => record(args, output),
        TraceCommand::Import(args) => import::run(args, output),
        TraceCommand::Stats(args) => stats(args, output),
    }
}

fn record(args: &RecordArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let bar = args.out.is_some();
    let made = Recording::of(RecordedRun::read(&args.run, args.number, bar, output)?)?;
    to_output(args.out.as_deref(), output.out, |output| {
        made.rows.iter().try_for_each(|row| write_row(output, row)).or_work()
    })?;
    made.say(output);
    Ok(())
}

fn stats(args: &StatsArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let workers = args.workers.map(|workers| workers as usize);
    suspicious::say(&args.delays, workers, output);
    let preset = Preset::named(&args.delays);
    let path = Path::new(&args.delays);
    let (found, unit) = if preset.is_none() && args.rounds.is_none() && path.exists() {
        (of_file(&args.delays, workers, output)?.summary(), Unit::Seconds)
    } else {
        let rows = DelayRows::open(&args.delays, workers, args.seed).or_input()?;
        let rounds = args.rounds.unwrap_or(PRESET_ROUNDS);
        if let Some(columns) = rows.columns() {
            suspicious::say_of_columns(&args.delays, rows.workers(), columns, output);
        }
        let unit = rows.unit();
        (measured(rows, rounds, &args.delays, output).or_input()?.summary(), unit)
    };
    let shown =
        show::StatsOutput { delays: &args.delays, unit: show::unit_name(unit), summary: &found };
    let text = if args.json {
        serde_json::to_string(&shown).or_work()? + "\n"
    } else {
        shown.tables(preset)
    };
    output.out.write_all(text.as_bytes()).or_work()
}

/// Measures a file to its end, with one round in memory as long as no value is missing.
fn of_file(
    name: &str,
    workers: Option<usize>,
    output: &mut Output<'_>,
) -> Result<StragglerStats, Failure> {
    let path = Path::new(name);
    let bar = output.file_bar(path, true);
    let input = text_of(path, BoundedReader::open_or_wait).or_input()?;
    let mut trace = TraceReader::new(input, path, workers).or_input()?;
    suspicious::say_of_columns(name, trace.workers(), trace.columns(), output);
    let mut stats = StragglerStats::new(trace.workers());
    let mut gaps = false;
    while let Some(row) = trace.next_as_told() {
        let row = row.or_input()?;
        gaps |= row.iter().any(|time| time.is_nan());
        stats.push(&row);
        bar.set_position(trace.bytes_read());
    }
    bar.finish_and_clear();
    if !gaps {
        if let Some(called) = TraceLabels::of(path)? {
            called.not_seen.iter().for_each(|it| output.note(format_args!("not seen: {it}")));
        }
        return Ok(stats);
    }
    // Who has most of the gaps is known at the end.
    let told = Source::open(name, workers, 0, false, output)?.told(usize::MAX, output)?;
    let mut stats = StragglerStats::new(told.rows.first().map_or(0, Vec::len));
    told.rows.iter().for_each(|row| stats.push(row));
    Ok(stats)
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
    name.push(format!(".part-{}", process::id()));
    let half = PathBuf::from(name);
    // Never what is there: it may be another's, or a link.
    let file = files::open_regular(&half, File::options().write(true).create_new(true))
        .with_context(|| format!("cannot write {}", path.display()))
        .or_work()?;
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
mod tests;
