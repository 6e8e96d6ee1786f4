//! Times of a round and worker each, from JSON lines, from the lines of logs, and from one table
//! per worker.

use crate::output::Output;
use crate::{Failure, OrInput};
use anyhow::{Context, anyhow};
use codedgrad::delays::{LongTable, TableReader};
use regex_lite::Regex;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// A line that is shown is cut after so many letters.
const SHOWN_MOST: usize = 60;

/// Names of what holds the round, the worker and the time. Without a worker, every file is one's.
pub(super) struct Fields<'a> {
    pub(super) round: &'a str,
    pub(super) worker: Option<&'a str>,
    pub(super) time: &'a str,
}

/// What finds the same in a line of a log.
pub(super) struct Pattern {
    regex: Regex,
    has_worker: bool,
}

impl Pattern {
    /// Without a worker in it, several files are needed, one of each.
    pub(super) fn new(text: &str, files: usize) -> Result<Self, Failure> {
        let regex = Regex::new(text).with_context(|| format!("--pattern {text}")).or_input()?;
        let has = |group: &str| regex.capture_names().flatten().any(|name| name == group);
        for group in ["round", "time"] {
            if !has(group) {
                return Err(Failure::Input(anyhow!(
                    "--pattern {text}: it has no group (?<{group}>..)"
                )));
            }
        }
        if !has("worker") && files == 1 {
            return Err(Failure::Input(anyhow!(
                "--pattern {text}: it has no group (?<worker>..); without it a file of each worker \
                 is needed"
            )));
        }
        Ok(Self { has_worker: has("worker"), regex })
    }
}

/// Why a line cannot be used.
enum WrongLine {
    /// It is no JSON: perhaps it is not finished.
    NoJson,
    /// What is wrong with it.
    Because(String),
}

/// Puts what a line of a file, given by its place, tells into the table. False: it tells nothing.
type Take<'a> = &'a mut dyn FnMut(&mut LongTable, &str, usize) -> Result<bool, WrongLine>;

/// Reads the lines of files; gives back how many tell nothing.
fn read_lines(
    files: &[PathBuf],
    take: Take<'_>,
    output: &mut Output<'_>,
) -> Result<(LongTable, usize), Failure> {
    let (mut table, mut passed_over) = (LongTable::default(), 0);
    for (number, path) in files.iter().enumerate() {
        let name = path.display();
        let unreadable = || format!("cannot read {name}");
        let file = File::open(path).with_context(unreadable).or_input()?;
        let mut input = BufReader::new(file);
        let mut bytes = Vec::new();
        let mut line = 0usize;
        loop {
            bytes.clear();
            let read = input.read_until(b'\n', &mut bytes).with_context(unreadable).or_input()?;
            if read == 0 {
                break;
            }
            line += 1;
            let text = String::from_utf8_lossy(&bytes);
            if text.trim().is_empty() {
                continue;
            }
            match take(&mut table, text.trim(), number) {
                Ok(told) => passed_over += usize::from(!told),
                // A program that still writes has not finished its last line.
                Err(WrongLine::NoJson) if bytes.last() != Some(&b'\n') && line > 1 => {
                    output.note(format_args!("line {line} of {name} was cut off and is left out"));
                }
                Err(problem) => {
                    let problem = match problem {
                        WrongLine::NoJson => "not JSON".into(),
                        WrongLine::Because(problem) => problem,
                    };
                    let text = shortened(text.trim());
                    return Err(Failure::Input(anyhow!("{name}: line {line}: {problem}: {text}")));
                }
            }
        }
    }
    Ok((table, passed_over))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// A time that is a finite number of 0 or more.
fn legal(time: f64) -> Option<f64> {
    (time.is_finite() && time >= 0.0).then_some(time)
}

/// The times of lines of JSON. Lines without one of the fields are passed over.
pub(super) fn of_json(
    files: &[PathBuf],
    fields: &Fields<'_>,
    output: &mut Output<'_>,
) -> Result<LongTable, Failure> {
    let mut take = |table: &mut LongTable, text: &str, number: usize| {
        let line: Value = serde_json::from_str(text).map_err(|_| WrongLine::NoJson)?;
        if !line.is_object() {
            return Err(WrongLine::Because("not an object of JSON".into()));
        }
        let own = Value::from(number);
        let worker = fields.worker.map_or(Some(&own), |worker| field(&line, worker));
        let (Some(round), Some(worker), Some(time)) =
            (field(&line, fields.round), worker, field(&line, fields.time))
        else {
            return Ok(false);
        };
        let wrong = |name: &str, value: &Value, expected: &str| {
            WrongLine::Because(format!("{name} is {value}, not {expected}"))
        };
        let name = |name: &str, value: &Value| {
            key(value).ok_or_else(|| wrong(name, value, "a number or a name"))
        };
        let seconds = time.as_f64().and_then(legal);
        let seconds =
            seconds.ok_or_else(|| wrong(fields.time, time, "a time (a number of 0 or more)"))?;
        let round = name(fields.round, round)?;
        table.insert(&round, &name(fields.worker.unwrap_or_default(), worker)?, seconds);
        Ok(true)
    };
    let (table, passed_over) = read_lines(files, &mut take, output)?;
    if table.workers() == 0 {
        let names = [fields.round].into_iter().chain(fields.worker).chain([fields.time]);
        return Err(Failure::Input(anyhow!(
            "no line has all of the fields {}",
            names.collect::<Vec<_>>().join(", ")
        )));
    }
    say_passed_over(passed_over, "without all of the fields", output);
    Ok(table)
}

/// A field of an object, that of an object in it after a point.
fn field<'a>(line: &'a Value, name: &str) -> Option<&'a Value> {
    line.get(name).or_else(|| name.split('.').try_fold(line, |value, part| value.get(part)))
}

/// What numbers or names a round or a worker.
fn key(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The times that a pattern finds in logs.
pub(super) fn of_logs(
    files: &[PathBuf],
    pattern: &Pattern,
    output: &mut Output<'_>,
) -> Result<LongTable, Failure> {
    let mut first = None;
    let mut take = |table: &mut LongTable, text: &str, number: usize| {
        let found = pattern.regex.captures(text);
        let group = |name: &str| found.as_ref()?.name(name).map(|found| found.as_str());
        let own = number.to_string();
        let worker = if pattern.has_worker { group("worker") } else { Some(&*own) };
        let (Some(round), Some(worker), Some(time)) = (group("round"), worker, group("time"))
        else {
            first.get_or_insert_with(|| shortened(text));
            return Ok(false);
        };
        let seconds = time.parse().ok().and_then(legal).ok_or_else(|| {
            WrongLine::Because(format!(
                "the group time is {time:?}, which is no number of 0 or more"
            ))
        })?;
        table.insert(round, worker, seconds);
        Ok(true)
    };
    let (table, passed_over) = read_lines(files, &mut take, output)?;
    if table.workers() == 0 {
        let first =
            first.map_or("there is no line".into(), |line| format!("the first is {line:?}"));
        return Err(Failure::Input(anyhow!("the pattern matches no line; {first}")));
    }
    say_passed_over(passed_over, "that the pattern does not match", output);
    Ok(table)
}

fn say_passed_over(count: usize, which: &str, output: &mut Output<'_>) {
    if count > 0 {
        let plural = if count == 1 { "" } else { "s" };
        output.note(format_args!("passed over: {count} line{plural} {which}"));
    }
}

/// The times of several tables with a header, each of one worker or with a column of workers.
pub(super) fn of_tables(files: &[PathBuf], fields: &Fields<'_>) -> Result<LongTable, Failure> {
    let mut table = LongTable::default();
    for (number, path) in files.iter().enumerate() {
        add_table(&mut table, path, &number.to_string(), fields)?;
    }
    Ok(table)
}

/// All cells of such a table are numbers.
fn add_table(
    table: &mut LongTable,
    path: &Path,
    own: &str,
    fields: &Fields<'_>,
) -> Result<(), Failure> {
    let names = [Some(fields.round), fields.worker, Some(fields.time)];
    let names: Vec<&str> = names.into_iter().flatten().collect();
    for row in TableReader::open(path, Some(&names.join(","))).or_input()? {
        let row = row.or_input()?;
        let worker = if row.len() == 3 { row[1].to_string() } else { own.to_owned() };
        table.insert(&row[0].to_string(), &worker, row[row.len() - 1]);
    }
    Ok(())
}
