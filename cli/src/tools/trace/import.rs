//! `codedgrad trace import`: traces made of what people have.

mod json;
mod logs;
mod profiler;
mod sheet;
mod tables;

use super::to_output;
use crate::tools::called::{Rounds, TraceLabels};
use crate::tools::dumps;
use crate::tools::times::{Times, TraceTimes, listed};
use anyhow::anyhow;
use clap::Args;
use codedgrad::delays::{at_least, write_row};
use codedgrad_shell::failure::{Failure, OrWork};
use codedgrad_shell::layout::help;
use codedgrad_shell::output::Output;
use codedgrad_shell::suspicious;
use codedgrad_shell::units::several;
use logs::Pattern;
use std::path::{Path, PathBuf};
use tables::{Fields, Format};

#[derive(Debug, Args)]
#[command(after_help = help("\
Known by their headers, in small letters or capitals:
  round,w0,w1,...                     a row per round, a column per worker; step,rank_0,rank_1
    too, or names that differ by a number alone, such as hosts
  step,s0d0,s0d1,...                  a column per pipeline stage and rank (ByteDance traces)
  epoch,step_end,same_epoch,w0,...    MLPerf HPC instances; rows with same_epoch other than 1
    are left out

Long:    --long names the columns of a CSV file, or the fields of JSON (a.b is field b of a), that
         have a row's round, worker and time; epoch+step are two columns that number the rounds.
         Two names are those of round and time: then every file is a worker's.
Logs:    --pattern is a regular expression with the groups (?<round>..), (?<worker>..) and
         (?<time>..); lines that it does not match are passed over. Several groups whose names
         begin with `time` are summed, and those that begin with `worker` are joined. Without such
         a group every file is a worker's; without the group round, --round-pattern finds it in a
         line before, or lines are counted. A group worker there is that of the lines that follow.
Traces:  regular files that torch.profiler exports, of every rank, are recognised. A step
         (ProfilerStep#N) counts without the time in which nothing but communication went on:
         there, a rank waits for others. Dumps of PyTorch's Flight Recorder give a row per
         collective: what each rank took from the end of the previous one to its entry of this one.
Files:   may be packed by gzip, in UTF-8 or UTF-16, with commas, semicolons, tabs, bars or blanks
         between cells. A file's worker is called by the rank in its name, or by what tells the
         names apart.

A value that is missing (empty, nan, null) leaves out its round; where that would be more than 20 %
of the rounds, the worker with most of the gaps is left out. An answer that was not received (-1,
inf) is written as inf: it took at least as long as the round's last. Of a round that is told
several times the last counts; numbers that begin again for all workers are another pass. With
--out, the names of workers and rounds go to FILE.names.json,
where `codedgrad doctor`, `plan` and `trace stats` find them. The trace is for these, for `simulate`
and for `codedgrad-lab train --delays`.

Examples:
  codedgrad trace import examples/traces/long.csv --long step,rank,ms --per-second 1000
  codedgrad trace import examples/traces/steps.jsonl --long step,rank,time.seconds
  codedgrad trace import examples/traces/log?.txt --pattern \
    'step=(?<round>\\d+).*took=(?<time>[-+\\d.eE]+)'
  codedgrad trace import examples/traces/profile_rank*.json"))]
pub(super) struct ImportArgs {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Columns to take, such as w0,w3 or '*_time'; all workers' columns if not given
    #[arg(long, value_name = "NAMES")]
    columns: Option<String>,
    /// Columns or fields of round, worker and time, of a table with a row per round and worker
    #[arg(long, value_name = "ROUND,WORKER,TIME", conflicts_with = "columns")]
    long: Option<String>,
    /// Regular expression that finds round, worker and time in the lines of a log
    #[arg(long, value_name = "REGEX", conflicts_with_all = ["columns", "long"])]
    pattern: Option<String>,
    /// Regular expression that finds the round of the lines that follow
    #[arg(long, value_name = "REGEX", requires = "pattern")]
    round_pattern: Option<String>,
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
    if let Some(pattern) = &args.pattern {
        let pattern = Pattern::new(pattern, args.round_pattern.as_deref(), args.files.len())?;
        let times = logs::read(&args.files, &pattern, output)?;
        return of_times(args, times, "the lines of logs", output);
    }
    if let Some(names) = &args.long {
        return long(args, names, output);
    }
    let of_dumps = args.files.iter().any(|file| dumps::is_dump(file));
    if of_dumps || args.files.iter().any(|file| profiler::is_trace(file)) {
        for (flag, given) in
            [("--columns", args.columns.is_some()), ("--per-second", args.per_second != 1.0)]
        {
            if given {
                let why = match of_dumps {
                    true => "a dump has times in nanoseconds, and no columns",
                    false => "a profiler's trace has steps in microseconds, and no columns",
                };
                return Err(Failure::Input(anyhow!("{flag}: {why}")));
            }
        }
        let (times, kind) = match of_dumps {
            true => (dumps::times(&args.files, output)?, "dumps of Flight Recorder"),
            false => (profiler::read(&args.files, output)?, "profiler traces"),
        };
        return of_times(args, times, kind, output);
    }
    match &args.files[..] {
        [file] if json::is_json(file) => Err(Failure::Input(anyhow!(
            "{} is JSON and no profiler's trace: --long step,rank,seconds names the fields of its \
             lines",
            file.display()
        ))),
        [file] => wide(args, file, output),
        files => Err(Failure::Input(anyhow!(
            "{} files: one is read at a time, unless --long or --pattern says how each is a \
             worker's, or they are profiler traces",
            files.len()
        ))),
    }
}

/// A table with a column per worker.
fn wide(args: &ImportArgs, file: &Path, output: &mut Output<'_>) -> Result<(), Failure> {
    let table = tables::wide(file, args.columns.as_deref(), output, args.out.is_some())?;
    let stage = |name: &String| name.split_once('d').map(|(stage, _)| stage.to_owned());
    let stages: Vec<_> = table.columns.iter().map(stage).collect();
    if table.format == Format::Stages && stages.iter().any(|stage| *stage != stages[0]) {
        output.note(format_args!(
            "warning: the columns are of several pipeline stages, whose times differ by design; \
             --columns 's0d*' takes one of them"
        ));
    }
    let format = match table.format {
        Format::Rounds => "a table of rounds",
        Format::Stages => "a table of pipeline stages and ranks",
        Format::Intervals => "a table of intervals",
        Format::Chosen => "the columns chosen",
    };
    let made = ImportedTrace {
        settled: table.times.settled(),
        kind: format,
        row: "row",
        why: "a number was missing",
    };
    if made.settled.is_empty() {
        return Err(made.nothing(&file.display().to_string()));
    }
    made.write(args, output)?;
    if table.evaluations > 0 {
        output.note(format_args!(
            "left out: {} in which an evaluation took place (same_epoch)",
            several(table.evaluations, "row")
        ));
    }
    if let Some(line) = table.cut {
        let name = file.display();
        output.note(format_args!("line {line} of {name} was cut off and is left out"));
    }
    if table.columns.len() == 1 {
        output.note(format_args!(
            "warning: that is one worker; a table with a row per round and worker is read by \
             --long ROUND,WORKER,TIME"
        ));
    }
    Ok(())
}

/// A table with a row per round and worker, as CSV or as JSON.
fn long(args: &ImportArgs, names: &str, output: &mut Output<'_>) -> Result<(), Failure> {
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let rounds = |name: &'_ str| name.split('+').map(str::trim).map(str::to_owned).collect();
    let (round, worker, time): (Vec<String>, _, _) = match names[..] {
        [round, worker, time] => (rounds(round), Some(worker), time),
        [round, time] if args.files.len() > 1 => (rounds(round), None, time),
        _ => {
            return Err(Failure::Input(anyhow!(
                "--long {}: three columns are needed, such as step,rank,ms; or two and a file \
                 of each worker",
                names.join(",")
            )));
        }
    };
    let rounds = round.iter().map(String::as_str).collect();
    let fields = Fields { rounds, worker, time };
    if args.files.iter().all(|file| json::is_json(file)) {
        let times = json::read(&args.files, &fields, output)?;
        return of_times(args, times, "lines of JSON", output);
    }
    let times = tables::long(&args.files, &fields, output)?;
    of_times(args, times, "a long table", output)
}

fn say_passed_over(count: usize, which: &str, output: &mut Output<'_>) {
    if count > 0 {
        output.note(format_args!("passed over: {} {which}", several(count, "line")));
    }
}

/// Writes what of some times makes a trace.
fn of_times(
    args: &ImportArgs,
    times: Times,
    kind: &'static str,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let names: Vec<String> = args.files.iter().map(|file| file.display().to_string()).collect();
    let name = if names.len() == 1 { names[0].clone() } else { format!("{} files", names.len()) };
    let made =
        ImportedTrace { settled: times.settled(), kind, row: "round", why: "a worker had no time" };
    if made.settled.is_empty() {
        return Err(made.nothing(&name));
    }
    made.write(args, output)
}

/// A trace that was made, and of what.
struct ImportedTrace {
    settled: TraceTimes,
    kind: &'static str,
    /// What its rows are called, and why some are left out.
    row: &'static str,
    why: &'static str,
}

impl ImportedTrace {
    fn nothing(&self, name: &str) -> Failure {
        let found = &self.settled;
        let gaps = found.gone();
        let why = if gaps.is_empty() { String::new() } else { format!(": {}", listed(&gaps)) };
        Failure::Input(anyhow!(
            "{name}: no round has one time of each of {} ({}){why}",
            several(found.all_workers, "worker"),
            several(found.all_rounds, "round")
        ))
    }

    fn write(&self, args: &ImportArgs, output: &mut Output<'_>) -> Result<(), Failure> {
        let found = &self.settled;
        let mut seen: Vec<Vec<f64>> = Vec::new();
        to_output(args.out.as_deref(), output.out, |output| {
            for mut row in found.rows() {
                row.iter_mut().for_each(|time| *time /= args.per_second);
                write_row(output, &row).or_work()?;
                if seen.len() < suspicious::ROWS && at_least(&mut row).is_some() {
                    seen.push(row);
                }
            }
            Ok(())
        })?;
        let (rounds, workers) = (found.rounds.len(), found.workers.len());
        output.note(format_args!(
            "imported {} of {} from {}",
            several(rounds, self.row),
            several(workers, "worker"),
            self.kind
        ));
        let called = TraceLabels {
            workers: found.workers.clone(),
            rounds: Rounds::of(&found.rounds),
            not_seen: found.gone(),
            bytes: 0,
        };
        self.say(&called, output);
        if let Some(out) = &args.out {
            called.write(out).or_work()?;
        }
        let names: Vec<String> = args.files.iter().map(|file| file.display().to_string()).collect();
        let name =
            if names.len() == 1 { names[0].clone() } else { format!("{} files", names.len()) };
        suspicious::say_of_rows(&name, &seen, output);
        Ok(())
    }

    fn say(&self, called: &TraceLabels, output: &mut Output<'_>) {
        let found = &self.settled;
        if !called.are_numbers() {
            let numbered = found.workers.iter().enumerate();
            let numbered: Vec<String> =
                numbered.map(|(number, name)| format!("{number} = {name}")).collect();
            output.note(format_args!("workers: {}", listed(&numbered)));
        }
        if let Some(rounds) = called.rounds.words() {
            output.note(format_args!("rounds: {rounds}"));
        }
        found.say_gaps(self.row, self.why, output);
        if found.begun_again > 0 {
            output.note(format_args!(
                "the numbers of the rounds begin again, for all workers, {}: each time is a pass \
                 of its own, named PASS+ROUND",
                several(found.begun_again, "time")
            ));
        }
        if !found.no_rounds.is_empty() {
            output.note(format_args!(
                "warning: left out: {} ({}): names without a number among rounds that have one",
                several(found.no_rounds.len(), "name"),
                listed(&found.no_rounds)
            ));
        }
        if !found.not_received.is_empty() {
            let all: usize = found.not_received.iter().map(|(_, count)| count).sum();
            let of = found.not_received.iter();
            let of: Vec<String> = of
                .map(|(worker, count)| format!("worker {worker} {}", several(*count, "time")))
                .collect();
            output.note(format_args!("not received: {} ({})", several(all, "answer"), listed(&of)));
        }
        if let Some((rounds, most)) = found.again {
            output.note(format_args!(
                "told several times: {}, up to {most} times; the last one counts",
                several(rounds, "round")
            ));
        }
    }
}
