//! `codedgrad trace import`: traces made of what people have.

mod entries;
mod profiler;

use super::to_output;
use crate::layout::help;
use crate::output::Output;
use crate::tools::suspicious;
use crate::{Failure, OrInput, OrWork};
use anyhow::anyhow;
use clap::Args;
use codedgrad::delays::{LongTable, TableFormat, TableReader, write_row};
use entries::Pattern;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = help("\
Known by their headers:
  round,w0,w1,...                     a row per round (Alibaba PAI mini-batch times); rows with
    an empty cell are left out
  step,s0d0,s0d1,...                  a column per pipeline stage and rank (ByteDance traces)
  epoch,step_end,same_epoch,w0,...    MLPerf HPC instances; rows with same_epoch other than 1
    are left out

Long:    --long names the columns of a CSV file, or the fields of JSON lines (a.b is field b of a),
         that have a row's round, worker and time. Two names are those of round and time: then
         every file is a worker's.
Logs:    --pattern is a regular expression with the groups (?<round>..), (?<worker>..) and
         (?<time>..); lines that it does not match are passed over. Without the group worker every
         file is a worker's.
Traces:  --profiler reads what torch.profiler exports, a file per rank. A step (ProfilerStep#N)
         counts without the time in which nothing but communication went on: there, a rank waits
         for others.

A round in which a worker has no time, or several, is left out. What comes out is for `codedgrad
doctor`, `plan`, `simulate` and `train --delays`.

Examples:
  codedgrad trace import examples/traces/long.csv --long step,rank,ms --per-second 1000
  codedgrad trace import examples/traces/steps.jsonl --long step,rank,time.seconds
  codedgrad trace import examples/traces/log?.txt --pattern \
    'step=(?<round>\\d+).*took=(?<time>[\\d.]+)'
  codedgrad trace import examples/traces/profile_rank*.json --profiler"))]
pub(super) struct ImportArgs {
    /// The file; several, where every file is a worker's
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Columns to take, such as w0,w3 or 's0d*'; all workers' columns if not given
    #[arg(long, value_name = "NAMES")]
    columns: Option<String>,
    /// Columns or fields of round, worker and time, of a table with a row per round and worker
    #[arg(long, value_name = "ROUND,WORKER,TIME", conflicts_with = "columns")]
    long: Option<String>,
    /// Regular expression that finds round, worker and time in the lines of a log
    #[arg(long, value_name = "REGEX", conflicts_with_all = ["columns", "long"])]
    pattern: Option<String>,
    /// The files are profiler traces, one of each rank
    #[arg(long, conflicts_with_all = ["columns", "long", "pattern", "per_second"])]
    profiler: bool,
    /// How many of the file's units of time are a second: 1000 for milliseconds
    #[arg(long, value_name = "UNITS", default_value_t = 1.0)]
    per_second: f64,
    /// File to write; standard output if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &ImportArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    if !(args.per_second.is_finite() && args.per_second > 0.0) {
        return Err(Failure::Input(anyhow!(
            "--per-second {}: expected a number above 0",
            args.per_second
        )));
    }
    if args.profiler {
        let table = profiler::read(&args.files, output)?;
        return of_long(args, &table, "profiler traces", output);
    }
    if let Some(pattern) = &args.pattern {
        let pattern = Pattern::new(pattern, args.files.len())?;
        let table = entries::of_logs(&args.files, &pattern, output)?;
        return of_long(args, &table, "the lines of logs", output);
    }
    if let Some(names) = &args.long {
        return long(args, names, output);
    }
    match &args.files[..] {
        [file] if is_json(file) => Err(Failure::Input(anyhow!(
            "{} is JSON: --long step,rank,seconds names the fields of its lines; --profiler reads \
             a profiler's trace",
            file.display()
        ))),
        [file] => wide(args, file, output),
        files => Err(Failure::Input(anyhow!(
            "{} files: one is read at a time, unless --long, --pattern or --profiler says how each \
             is a worker's",
            files.len()
        ))),
    }
}

/// Whether a file begins as JSON does.
fn is_json(path: &Path) -> bool {
    const LOOKED_AT: u64 = 4096;
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    let first = start.iter().find(|byte| !byte.is_ascii_whitespace());
    read.is_ok() && matches!(first, Some(b'{' | b'['))
}

/// A table with a column per worker.
fn wide(args: &ImportArgs, file: &Path, output: &mut Output<'_>) -> Result<(), Failure> {
    let mut table = TableReader::open(file, args.columns.as_deref()).or_input()?;
    let stages = |name: &String| name.split_once('d').map(|(stage, _)| stage.to_owned());
    if table.format() == TableFormat::Stages
        && table.workers().iter().map(stages).any(|stage| stage != stages(&table.workers()[0]))
    {
        output.note(format_args!(
            "warning: the columns are of several pipeline stages, whose times differ by design; \
             --columns 's0d*' takes one of them"
        ));
    }
    let bar = output.file_bar(file, args.out.is_some());
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
                file.display()
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
    suspicious::say_of_rows(&file.display().to_string(), &seen, output);
    if table.workers().len() == 1 {
        output.note(format_args!(
            "warning: that is one worker; a table with a row per round and worker is read by \
             --long ROUND,WORKER,TIME"
        ));
    }
    Ok(())
}

/// A table with a row per round and worker, as CSV or as lines of JSON.
fn long(args: &ImportArgs, names: &str, output: &mut Output<'_>) -> Result<(), Failure> {
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let fields = match names[..] {
        [round, worker, time] => entries::Fields { round, worker: Some(worker), time },
        [round, time] if args.files.len() > 1 => entries::Fields { round, worker: None, time },
        _ => {
            return Err(Failure::Input(anyhow!(
                "--long {}: three columns are needed, such as step,rank,ms; or two and a file \
                 of each worker",
                names.join(",")
            )));
        }
    };
    if args.files.iter().all(|file| is_json(file)) {
        let table = entries::of_json(&args.files, &fields, output)?;
        return of_long(args, &table, "lines of JSON", output);
    }
    let table = match (fields.worker, &args.files[..]) {
        (Some(worker), [file]) => {
            LongTable::open(file, [fields.round, worker, fields.time]).or_input()?
        }
        _ => entries::of_tables(&args.files, &fields)?,
    };
    of_long(args, &table, "a long table", output)
}

/// Writes the rounds of a table in which every worker has one time.
fn of_long(
    args: &ImportArgs,
    table: &LongTable,
    what: &str,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let names: Vec<String> = args.files.iter().map(|file| file.display().to_string()).collect();
    let name = if names.len() == 1 { names[0].clone() } else { format!("{} files", names.len()) };
    let in_seconds = |row: Vec<f64>| row.into_iter().map(|time| time / args.per_second).collect();
    let rows: Vec<Vec<f64>> = table.rows().map(in_seconds).collect();
    if rows.is_empty() {
        return Err(Failure::Input(anyhow!(
            "{name}: no round has one time of each of {} workers",
            table.workers()
        )));
    }
    to_output(args.out.as_deref(), output.out, |output| {
        rows.iter().try_for_each(|row| write_row(output, row)).or_work()
    })?;
    let (count, workers) = (rows.len(), table.workers());
    output.note(format_args!("imported {count} rounds of {workers} workers from {what}"));
    if table.incomplete() > 0 {
        output.note(format_args!(
            "left out: {} rounds in which a worker had no time, or several",
            table.incomplete()
        ));
    }
    let start = &rows[..count.min(suspicious::ROWS)];
    suspicious::say_of_rows(&name, start, output);
    Ok(())
}
