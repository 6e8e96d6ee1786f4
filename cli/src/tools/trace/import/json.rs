//! Times in JSON: a line per object, an array of them, or objects that take several lines.

use super::sheet::shortened;
use super::tables::Fields;
use crate::tools::times::names;
use crate::tools::times::{Times, join};
use anyhow::{Context, anyhow};
use codedgrad::delays::{Comma, time_in};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::input::Input;
use codedgrad_shell::output::Output;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Lines that are looked at for an object.
const LINES: usize = 50;
/// An object that is longer is none.
const OBJECT_MOST: usize = 64 << 20;

/// Whether a file holds JSON: it begins so, or one of its first lines ends with an object.
pub(super) fn is_json(path: &Path) -> bool {
    // What a pipe gives is given once.
    let Some(mut input) = path.is_file().then(|| Input::open(path).ok()).flatten() else {
        return false;
    };
    let (mut line, mut first) = (Vec::new(), true);
    for _ in 0..LINES {
        if !matches!(input.line(&mut line), Ok(Some(_))) {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if std::mem::take(&mut first) && text.starts_with(['{', '[']) {
            return true;
        }
        if object_in(text).is_some() {
            return true;
        }
        first = text.is_empty();
    }
    false
}

/// The object that a line ends with, behind what a logger puts before it.
fn object_in(line: &str) -> Option<Value> {
    let start = line.find('{')?;
    parsed(line[start..].trim_end_matches(','))
}

/// What a text is in JSON, with the numbers that Python writes and JSON does not know.
fn parsed(text: &str) -> Option<Value> {
    let value: Option<Value> = match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(_) => serde_json::from_str(&with_words(text)).ok(),
    };
    value.filter(Value::is_object)
}

/// Has texts stand for `NaN` and `Infinity` outside of texts.
fn with_words(text: &str) -> String {
    let mut words = String::with_capacity(text.len() + 8);
    let (mut quoted, mut escaped) = (false, false);
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word));
        if let Some(word) = word.filter(|_| !quoted) {
            words.push_str(&format!("\"{word}\""));
            rest = &rest[word.len()..];
            continue;
        }
        if letter == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && letter == '\\' && !escaped;
        words.push(letter);
        rest = &rest[letter.len_utf8()..];
    }
    words
}

/// How deep braces and brackets are open behind a text, outside of texts.
#[derive(Default)]
struct Depth {
    open: i64,
    quoted: bool,
    escaped: bool,
}

impl Depth {
    fn take(&mut self, text: &str) {
        for letter in text.bytes() {
            let escaped = std::mem::take(&mut self.escaped);
            match letter {
                b'"' if !escaped => self.quoted = !self.quoted,
                b'\\' if self.quoted => self.escaped = !escaped,
                b'{' if !self.quoted => self.open += 1,
                b'}' if !self.quoted => self.open -= 1,
                _ => {}
            }
        }
    }
}

/// A reader of objects that knows what to take of them.
struct Objects<'a> {
    fields: &'a Fields<'a>,
    times: Times,
    /// Lines that are no JSON, and objects without the fields.
    no_json: usize,
    without: usize,
}

/// The times of files of JSON.
pub(super) fn read(
    files: &[PathBuf],
    fields: &Fields<'_>,
    output: &mut Output<'_>,
) -> Result<Times, Failure> {
    let mut objects = Objects { fields, times: Times::default(), no_json: 0, without: 0 };
    for (path, own) in files.iter().zip(names::of_files(files)) {
        objects.file(path, &own, output)?;
    }
    let Objects { times, no_json, without, .. } = objects;
    if times.is_empty() {
        let mut names = fields.rounds.clone();
        names.extend(fields.worker);
        names.push(fields.time);
        return Err(Failure::Input(anyhow!("no line has all of the fields {}", names.join(", "))));
    }
    super::say_passed_over(without, "without all of the fields", output);
    super::say_passed_over(no_json, "that holds no object of JSON", output);
    Ok(times)
}

impl Objects<'_> {
    fn file(&mut self, path: &Path, own: &str, output: &mut Output<'_>) -> Result<(), Failure> {
        let cannot = || format!("cannot read {}", path.display());
        let mut input = Input::open(path).with_context(cannot).or_input()?;
        let (mut line, mut number) = (Vec::new(), 0usize);
        // An object under way, where it began, and how deep it is.
        let mut text = String::new();
        let mut began = 0usize;
        let mut depth = Depth::default();
        while let Some(ended) = input.line(&mut line).with_context(cannot).or_input()? {
            number += 1;
            let this = String::from_utf8_lossy(&line);
            let this = this.trim();
            if this.is_empty() {
                continue;
            }
            if text.is_empty() {
                if let Some(value) = object_in(this) {
                    self.object(&value, path, number, own)?;
                    continue;
                }
                let part = this.trim_start_matches(['[', ' ']);
                if !part.starts_with('{') {
                    // Brackets and commas between objects are no lines of their own.
                    let between = this.chars().all(|letter| "[],}".contains(letter));
                    self.no_json += usize::from(!between);
                    continue;
                }
                if !ended && number > 1 {
                    let name = path.display();
                    output
                        .note(format_args!("line {number} of {name} was cut off and is left out"));
                    continue;
                }
                (began, depth) = (number, Depth::default());
                text.push_str(part);
                depth.take(part);
            } else {
                text.push('\n');
                text.push_str(this);
                depth.take(this);
            }
            if depth.open <= 0 || text.len() > OBJECT_MOST {
                self.objects(&text, path, began, own)?;
                text.clear();
            }
        }
        if !text.is_empty() {
            let name = path.display();
            output.note(format_args!("line {began} of {name} was cut off and is left out"));
        }
        Ok(())
    }

    /// Takes objects that stand one behind the other, with commas or nothing between them.
    fn objects(&mut self, text: &str, path: &Path, line: usize, own: &str) -> Result<(), Failure> {
        let mut depth = Depth::default();
        let mut start = None;
        let mut found = false;
        for (at, letter) in text.char_indices() {
            let before = depth.open;
            let mut bytes = [0; 4];
            depth.take(letter.encode_utf8(&mut bytes));
            if before == 0 && depth.open == 1 {
                start = Some(at);
            } else if before == 1 && depth.open == 0 {
                let part = start.take().and_then(|start| parsed(&text[start..=at]));
                if let Some(value) = part {
                    found = true;
                    self.object(&value, path, line, own)?;
                }
            }
        }
        self.no_json += usize::from(!found);
        Ok(())
    }

    /// Takes what an object tells, or what those tell that it holds a list of.
    fn object(
        &mut self,
        value: &Value,
        path: &Path,
        line: usize,
        own: &str,
    ) -> Result<(), Failure> {
        let wrong = |problem: String| {
            let (name, text) = (path.display(), shortened(&value.to_string()));
            Failure::Input(anyhow!("{name}: line {line}: {problem}: {text}"))
        };
        if self.take(value, own).map_err(wrong)? {
            return Ok(());
        }
        let Value::Object(object) = value else { return Ok(()) };
        let mut told = false;
        for entries in object.values().filter_map(Value::as_array) {
            for entry in entries {
                told |= self.take(entry, own).map_err(wrong)?;
            }
        }
        let series = series(value, self.fields).map_err(wrong)?;
        for row in columns(object, self.fields).into_iter().chain(series) {
            told |= self.take(&row, own).map_err(wrong)?;
        }
        self.without += usize::from(!told);
        Ok(())
    }

    /// False: it tells nothing.
    fn take(&mut self, value: &Value, own: &str) -> Result<bool, String> {
        let fields = self.fields;
        let rounds: Option<Vec<&Value>> =
            fields.rounds.iter().map(|name| field(value, name)).collect();
        let own = Value::from(own);
        let worker = fields.worker.map_or(Some(&own), |worker| field(value, worker));
        let (Some(rounds), Some(worker), Some(time)) = (rounds, worker, field(value, fields.time))
        else {
            return Ok(false);
        };
        if [Some(worker), Some(time)].iter().flatten().any(|it| it.is_array() || it.is_object()) {
            return Ok(false);
        }
        let name = |name: &str, value: &Value| {
            key(value).ok_or_else(|| format!("{name} is {value}, not a number or a name"))
        };
        let parts = fields.rounds.iter().zip(rounds).map(|(field, value)| name(field, value));
        let parts: Vec<String> = parts.collect::<Result<_, _>>()?;
        let worker = name(fields.worker.unwrap_or_default(), worker)?;
        let seconds = match time {
            Value::Null => Some(f64::NAN),
            Value::Number(number) => time_in(&number.to_string(), Comma::Decimal),
            Value::String(text) => time_in(text.trim(), Comma::Thousands),
            _ => None,
        };
        let seconds = seconds.ok_or_else(|| {
            format!("{} is {time}, not a time (a number of 0 or more)", fields.time)
        })?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let inserted = self.times.insert(&join(&parts), &worker, seconds);
        inserted.map_err(|failure| match failure {
            Failure::Input(error) => error.to_string(),
            _ => "it does not fit".into(),
        })?;
        Ok(true)
    }
}

/// The rows of a table that is told column by column, in lists or under row numbers.
fn columns(object: &Map<String, Value>, fields: &Fields<'_>) -> Vec<Value> {
    let mut names = fields.rounds.clone();
    names.extend(fields.worker);
    names.push(fields.time);
    let columns: Option<Vec<Vec<&Value>>> = names
        .iter()
        .map(|name| match object.get(*name)? {
            Value::Array(cells) => Some(cells.iter().collect()),
            Value::Object(cells) => Some(cells.values().collect()),
            _ => None,
        })
        .collect();
    let Some(columns) = columns else { return Vec::new() };
    let rows = columns.iter().map(Vec::len).min().unwrap_or(0);
    let row = |at: usize| {
        let cells = names.iter().zip(&columns);
        Value::Object(cells.map(|(name, cells)| ((*name).into(), cells[at].clone())).collect())
    };
    (0..rows).map(row).collect()
}

/// The rows of a range query of Prometheus: `data.result` has a series per worker, which a label
/// names, and its `values` are pairs of a moment and a text.
fn series(answer: &Value, fields: &Fields<'_>) -> Result<Vec<Value>, String> {
    let all = answer.pointer("/data/result").and_then(Value::as_array);
    let is_series = |it: &Value| it.get("metric").is_some() && it.get("values").is_some();
    let Some(all) = all.filter(|all| all.iter().any(is_series)) else { return Ok(Vec::new()) };
    let (Some(label), [round]) = (fields.worker, &fields.rounds[..]) else {
        return Err(
            "a range query has --long time,LABEL,value, with the label of the worker".into()
        );
    };
    let (mut rows, mut workers) = (Vec::new(), Vec::new());
    for series in all {
        let labels = series.get("metric").and_then(Value::as_object);
        let Some(worker) = labels.and_then(|labels| labels.get(label)) else {
            let labels: Vec<&str> =
                labels.into_iter().flat_map(Map::keys).map(|it| &**it).collect();
            return Err(format!("a series has no label {label}; it has {}", labels.join(", ")));
        };
        if workers.contains(&worker) {
            return Err(format!(
                "two series have the label {label} = {worker}: which is a worker's?"
            ));
        }
        workers.push(worker);
        let values = series.get("values").and_then(Value::as_array).into_iter().flatten();
        rows.extend(
            values.map(|pair| json!({ *round: pair[0], label: worker, fields.time: pair[1] })),
        );
    }
    Ok(rows)
}

/// A field of an object, that of an object in it after a point.
fn field<'a>(line: &'a Value, name: &str) -> Option<&'a Value> {
    line.get(name).or_else(|| name.split('.').try_fold(line, |value, part| value.get(part)))
}

/// What numbers or names a round or a worker.
fn key(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
