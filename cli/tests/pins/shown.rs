//! What comes of a command, in lines that are short and can be compared.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::process::Output;

/// Fields that follow from the model's own arithmetic in f32: how losses and gradients are rounded
/// depends on the processor.
const OF_THE_MODEL: [&str; 10] = [
    "loss",
    "tail",
    "digest",
    "gradient_difference",
    "gradient_error",
    "final_loss",
    "validation_loss",
    "max_gradient_difference",
    "early_gradient_error",
    "late_gradient_error",
];
/// Digits after the first that numbers are rounded to.
const DIGITS: usize = 6;
/// Numbers below this are rounding.
const NOTHING: f64 = 1e-9;
/// Equal neighbours in a list that are counted instead of written out.
const REPEATED: usize = 3;

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exit status, what was said on standard error, what was printed, and the record of a run.
pub(crate) fn outcome(output: &Output, record: &str) -> String {
    let mut shown = String::new();
    if let Some(status) = output.status.code().filter(|status| *status != 0) {
        shown += &format!("exit {status}\n");
    }
    for line in text(&output.stderr).lines().filter(|line| is_kept(line)) {
        shown += &format!("! {line}\n");
    }
    let printed = text(&output.stdout);
    match serde_json::from_str(&printed) {
        Ok(Value::Object(object)) => shown += &object_in_lines(object),
        _ => shown += &printed,
    }
    shown + &steps(record)
}

/// How the lines of a run's introduction begin, which name its folder and the sizes of its model.
const INTRODUCTION: [&str; 8] = [
    "folder: ",
    "model: ",
    "schemes take turns, ",
    "step time c: ",
    "stragglers: ",
    "text: ",
    "times are as measured",
    "2 interleaved models, each: ",
];

/// Whether a line on standard error is no progress, whose losses are the model's, no introduction,
/// and does not name a place in the source, as panics do.
fn is_kept(line: &str) -> bool {
    let step = line.split_once(": step ").and_then(|(_, rest)| rest.split(':').next());
    let progress = step.is_some_and(|step| step.contains('/'));
    let introduction = INTRODUCTION.iter().any(|start| line.starts_with(start))
        || line.contains(" workers, ") && line.ends_with(" tokens");
    let panic = ["thread '", "injected fault: ", "note: run with `RUST_BACKTRACE"];
    let panic = panic.iter().any(|start| line.starts_with(start));
    !(line.is_empty() || progress || introduction || panic)
}

/// One line per field, and per row of a field that is a table.
fn object_in_lines(mut object: Map<String, Value>) -> String {
    object.retain(|key, _| !OF_THE_MODEL.contains(&key.as_str()));
    let mut shown = String::new();
    for (key, field) in sorted(&object) {
        match field {
            Value::Array(rows) if rows.iter().any(|row| row.is_array() || row.is_object()) => {
                for (at, row) in rows.iter().enumerate() {
                    shown += &format!("{key}[{at}]: {}\n", value(row));
                }
            }
            _ => shown += &format!("{key}: {}\n", value(field)),
        }
    }
    shown
}

/// One line per round and per step of a record, with what is not as in the line of the round or
/// step before.
fn steps(record: &str) -> String {
    let mut shown = String::new();
    let (mut rounds, mut steps) = (Changes::default(), Changes::default());
    for line in record.lines() {
        let mut step: Map<String, Value> = serde_json::from_str(line).unwrap();
        if let Some(Value::Array(closed)) = step.remove("rounds") {
            for round in &closed {
                shown += &format!("  {}\n", rounds.of(round.as_object().unwrap()));
            }
        }
        shown += &format!("{}\n", steps.of(&step));
    }
    shown
}

/// What changes from one object to the next.
#[derive(Default)]
struct Changes {
    before: BTreeMap<String, String>,
}

impl Changes {
    /// The fields that are not as they were; `-` stands for one that is not there any more.
    fn of(&mut self, object: &Map<String, Value>) -> String {
        let fields: BTreeMap<String, String> = sorted(object)
            .filter(|(key, _)| !OF_THE_MODEL.contains(key))
            .map(|(key, field)| (key.to_owned(), value(field)))
            .collect();
        let before = std::mem::replace(&mut self.before, fields);
        let new = self.before.iter().filter(|(key, field)| before.get(*key) != Some(*field));
        let gone = before.keys().filter(|key| !self.before.contains_key(*key));
        new.map(|(key, field)| format!("{key}={field}"))
            .chain(gone.map(|key| format!("{key}=-")))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn sorted(object: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    object.iter().map(|(key, field)| (key.as_str(), field)).collect::<BTreeMap<_, _>>().into_iter()
}

fn value(shown: &Value) -> String {
    match shown {
        Value::Number(number) if number.is_f64() => rounded(number.as_f64().unwrap_or_default()),
        Value::Array(items) => list(items),
        Value::Object(object) => {
            let fields = sorted(object).filter(|(key, _)| !OF_THE_MODEL.contains(key));
            let fields = fields.map(|(key, field)| format!("{key}:{}", value(field)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(" "))
        }
        plain => plain.to_string(),
    }
}

fn rounded(number: f64) -> String {
    if number.abs() < NOTHING {
        return "0".into();
    }
    let short: f64 = format!("{number:.DIGITS$e}").parse().unwrap_or(number);
    short.to_string()
}

fn list(items: &[Value]) -> String {
    let texts: Vec<String> = items.iter().map(value).collect();
    let groups = texts.chunk_by(|a, b| a == b).flat_map(|equal| {
        if equal.len() < REPEATED {
            equal.to_vec()
        } else {
            vec![format!("{}*{}", equal[0], equal.len())]
        }
    });
    format!("[{}]", groups.collect::<Vec<_>>().join(","))
}

/// The subcommands that a help text lists.
pub(crate) fn subcommands(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help")
}
