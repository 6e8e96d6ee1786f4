//! Events of profiler traces that are no JSON: with quotes in names, cut off, with `nan` in them.

use super::{DistributedInfo, Events, ProfilerTrace, TraceEvent};
use codedgrad_shell::output::plain;
use serde_json::{Deserializer, Value};
use std::fmt;

/// Keys with which events begin, as profilers write them.
const FIRST_KEYS: [&str; 5] = ["\"ph\"", "\"name\"", "\"cat\"", "\"pid\"", "\"ts\""];
/// How much of a broken event is shown.
const SHOWN_MOST: usize = 60;

/// What is wrong with a trace that was read in spite of it.
pub(super) struct BrokenEvents {
    events: usize,
    all: usize,
    /// The line and the start of the first broken event.
    first: Option<(usize, String)>,
    /// Whether the file ends before its list of events does.
    pub(super) cut: bool,
}

impl fmt::Display for BrokenEvents {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, all, first, cut } = self;
        if *cut {
            write!(out, "the file was cut off after {all} events; its last step is left out")?;
        }
        if let Some((line, start)) = first {
            let and = if *cut { "; " } else { "" };
            write!(
                out,
                "{and}{events} of {all} events are no JSON (profilers that run with_stack leave \
                 quotes in names as they are) and were read as far as they go; the first is on \
                 line {line}: {start}"
            )?;
        }
        if !*cut && first.is_none() {
            write!(out, "what stands around its {all} events is no JSON")?;
        }
        Ok(())
    }
}

/// Where events begin.
fn starts(text: &str, from: usize) -> Vec<usize> {
    let begins = |at: &usize| {
        let rest = text[at + 1..].trim_start();
        FIRST_KEYS.iter().any(|key| {
            rest.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
        })
    };
    text[from..].match_indices('{').map(|(at, _)| from + at).filter(begins).collect()
}

/// What can be read of a trace event by event, whether it was cut off or is broken; none if it is
/// no trace.
pub(super) fn rescued(text: &str, cut: bool) -> Option<(ProfilerTrace, BrokenEvents)> {
    let list = text.find("\"traceEvents\"").and_then(|at| Some(at + text[at..].find('[')?));
    let from = list.or_else(|| text.trim_start().starts_with('[').then_some(0))?;
    let starts = starts(text, from);
    let mut events = Events::default();
    let mut broken = BrokenEvents { events: 0, all: 0, first: None, cut };
    let mut end = from;
    for (place, &start) in starts.iter().enumerate() {
        // An event that stands in the arguments of one before it.
        if start < end {
            continue;
        }
        let next = starts.get(place + 1).copied();
        let own = &text[start..next.unwrap_or(text.len())];
        let mut values = Deserializer::from_str(&text[start..]).into_iter::<TraceEvent<'_>>();
        if let Some(Ok(event)) = values.next() {
            end = start + values.byte_offset();
            broken.all += 1;
            events.add(&event);
            continue;
        }
        let last = next.is_none() && !own.contains('}');
        if last {
            broken.cut = true;
            break;
        }
        broken.all += 1;
        broken.events += 1;
        if broken.first.is_none() {
            let line = 1 + text[..start].matches('\n').count();
            let shown: String = own.chars().take(SHOWN_MOST).collect();
            broken.first = Some((line, plain(&shown)));
        }
        if let Some(event) = by_its_fields(own) {
            events.add(&event);
        }
        end = start + 1;
    }
    let rank = rank(text);
    let tail = text.trim_end();
    broken.cut |= !tail.ends_with('}') && !tail.ends_with(']');
    (broken.all > 0).then_some((ProfilerTrace { events, distributed: rank }, broken))
}

/// An event of which only the fields are looked for.
fn by_its_fields(text: &str) -> Option<TraceEvent<'_>> {
    let number = |key: &str| -> Option<f64> {
        let at = text.rfind(&format!("\"{key}\""))? + key.len() + 2;
        let rest = text[at..].trim_start().strip_prefix(':')?.trim_start().trim_start_matches('"');
        let end = rest.find(|it: char| !(it.is_ascii_digit() || ".eE+-".contains(it)));
        rest[..end.unwrap_or(rest.len())].parse().ok()
    };
    let word = |key: &str| -> Option<&str> {
        let at = text.find(&format!("\"{key}\""))? + key.len() + 2;
        let rest = text[at..].trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        // A name with quotes in it ends where the next key begins.
        let end = rest.find("\", \"").or_else(|| rest.find("\",\"")).or_else(|| rest.find("\",\n"));
        Some(&rest[..end.or_else(|| rest.find('"'))?])
    };
    Some(TraceEvent {
        ph: word("ph")?.into(),
        name: word("name").unwrap_or_default().into(),
        cat: word("cat").unwrap_or_default().into(),
        ts: number("ts")?,
        dur: number("dur")?,
    })
}

/// The rank that a trace tells.
fn rank(text: &str) -> Option<DistributedInfo> {
    let at = text.find("\"distributedInfo\"")?;
    let object = &text[at + text[at..].find('{')?..];
    let mut values = Deserializer::from_str(object).into_iter::<Value>();
    let rank = values.next()?.ok()?.get("rank")?.as_u64();
    Some(DistributedInfo { rank })
}

#[cfg(test)]
mod tests;
