//! Times in the lines of logs, found by regular expressions.

use crate::tools::times::Times;
use crate::tools::times::names;
use anyhow::{Context, anyhow};
use codedgrad::delays::{Comma, time_in};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::input::Input;
use codedgrad_shell::output::{Output, plain};
use regex_lite::{Captures, Match, Regex};
use std::collections::HashMap;
use std::path::PathBuf;

/// A line that is shown is cut after so many letters.
const SHOWN_MOST: usize = 60;

/// What finds round, worker and times in a line.
pub(super) struct Pattern {
    regex: Regex,
    has_round: bool,
    /// Groups of the worker's name, which are joined: all whose names begin with `worker`.
    workers: Vec<String>,
    /// Groups of times, which are summed: all whose names begin with `time`.
    times: Vec<String>,
    /// What finds the round of the lines behind it, and their worker.
    rounds: Option<Headline>,
}

/// The line above others.
struct Headline {
    regex: Regex,
    workers: Vec<String>,
}

fn regex(flag: &str, text: &str) -> Result<Regex, Failure> {
    Regex::new(text).with_context(|| format!("{flag} {text}")).or_input()
}

impl Pattern {
    /// Without a worker in it, several files are needed, one of each.
    pub(super) fn new(text: &str, rounds: Option<&str>, files: usize) -> Result<Self, Failure> {
        let lacks = |flag: &str, text: &str, group: &str| {
            Failure::Input(anyhow!("{flag} {text}: it has no group (?<{group}>..)"))
        };
        let found = regex("--pattern", text)?;
        let groups = |regex: &Regex| -> Vec<String> {
            regex.capture_names().flatten().map(str::to_owned).collect()
        };
        let own = groups(&found);
        let of = |groups: &[String], start: &str| -> Vec<String> {
            groups.iter().filter(|name| name.starts_with(start)).cloned().collect()
        };
        let known = |flag: &str, text: &str, groups: &[String], starts: &[&str]| {
            let is_known = |name: &&String| {
                *name == "round" || starts.iter().any(|start| name.starts_with(start))
            };
            match groups.iter().find(|name| !is_known(name)) {
                None => Ok(()),
                Some(name) => Err(Failure::Input(anyhow!(
                    "{flag} {text}: what is the group (?<{name}>..)? There are round, those whose \
                     names begin with worker, which are joined, and with time, which are summed; \
                     (..) is a group without a name"
                ))),
            }
        };
        known("--pattern", text, &own, &["worker", "time"])?;
        let (times, workers) = (of(&own, "time"), of(&own, "worker"));
        if times.is_empty() {
            return Err(lacks("--pattern", text, "time"));
        }
        let rounds = match rounds {
            Some(rounds) => {
                let found = regex("--round-pattern", rounds)?;
                let own = groups(&found);
                known("--round-pattern", rounds, &own, &["worker"])?;
                if !own.iter().any(|name| name == "round") {
                    return Err(lacks("--round-pattern", rounds, "round"));
                }
                Some(Headline { regex: found, workers: of(&own, "worker") })
            }
            None => None,
        };
        let named = rounds.as_ref().is_some_and(|headline| !headline.workers.is_empty());
        if workers.is_empty() && !named && files == 1 {
            return Err(Failure::Input(anyhow!(
                "--pattern {text}: it has no group (?<worker>..); without it a file of each worker \
                 is needed"
            )));
        }
        let has_round = own.iter().any(|name| name == "round");
        Ok(Self { regex: found, has_round, workers, times, rounds })
    }
}

/// Where the lines of a file are at.
#[derive(Default)]
struct Place {
    /// The round and the worker that the last headline told.
    round: Option<String>,
    worker: Option<String>,
    /// Lines of each worker so far.
    counts: HashMap<String, u64>,
}

impl Pattern {
    /// What a line tells: round, worker and time; nothing, if it does not match.
    fn take(
        &self,
        text: &str,
        own: &str,
        place: &mut Place,
    ) -> Result<Option<(String, String, f64)>, String> {
        if let Some(headline) = &self.rounds
            && let Some(found) = headline.regex.captures(text)
        {
            place.round = group(&found, "round", text)?.map(str::to_owned);
            place.worker = joined(&found, &headline.workers, text)?;
        }
        let Some(found) = self.regex.captures(text) else { return Ok(None) };
        let worker = match (&*self.workers, &place.worker) {
            ([], Some(worker)) => worker.clone(),
            ([], None) if self.rounds.as_ref().is_some_and(|it| !it.workers.is_empty()) => {
                return Ok(None);
            }
            ([], None) => own.to_owned(),
            (groups, headline) => {
                match joined(&found, groups, text)?.or_else(|| headline.clone()) {
                    Some(worker) => worker,
                    None => return Ok(None),
                }
            }
        };
        let (mut seconds, mut told) = (0.0, false);
        for name in &self.times {
            let Some(time) = group(&found, name, text)? else { continue };
            told = true;
            let plain = time.trim().trim_end_matches(['.', ',']);
            seconds += time_in(plain, Comma::Thousands).ok_or_else(|| {
                format!("the group {name} is {time:?}, which is no number of 0 or more")
            })?;
        }
        if !told {
            return Ok(None);
        }
        let round = if self.has_round { group(&found, "round", text)? } else { None };
        let round = match (round, &self.rounds) {
            (Some(round), _) => round.to_owned(),
            // Lines before the first headline belong to no round.
            (None, Some(_)) => match &place.round {
                Some(round) => round.clone(),
                None => return Ok(None),
            },
            (None, None) if self.has_round => return Ok(None),
            (None, None) => {
                let count = place.counts.entry(worker.clone()).or_insert(0);
                *count += 1;
                (*count - 1).to_string()
            }
        };
        Ok(Some((round, worker, seconds)))
    }
}

/// The parts of a worker's name, as one; none where no part is there.
fn joined(found: &Captures<'_>, groups: &[String], text: &str) -> Result<Option<String>, String> {
    let parts = groups.iter().map(|name| group(found, name, text));
    let parts: Vec<&str> = parts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    Ok((!parts.is_empty()).then(|| parts.join("-")))
}

/// A group of a match, unless it begins or ends within a number.
fn group<'a>(found: &Captures<'a>, name: &str, text: &'a str) -> Result<Option<&'a str>, String> {
    let Some(matched) = found.name(name) else { return Ok(None) };
    // Marks that the pattern itself has matched stand between its groups.
    let whole = found.get(0).map_or(0..0, |whole| whole.range());
    let (end, start) = (matched.end(), matched.start());
    let marks = if name.starts_with("time") { "," } else { ".," };
    let is_matched = |at: usize| {
        whole.contains(&at) && text.get(at..=at).is_some_and(|mark| marks.contains(mark))
    };
    let ends = Ends { after: !is_matched(end), before: start > 0 && !is_matched(start - 1) };
    match whole_number(&matched, text, &ends) {
        Some(number) => Err(format!(
            "the group {name} is {:?}, which cuts the number {number}: [-+\\d.,eE]+ takes it all",
            matched.as_str()
        )),
        None => Ok(Some(matched.as_str())),
    }
}

/// Whether a mark on either side of a match can belong to its number.
struct Ends {
    before: bool,
    after: bool,
}

/// The number of which a match is but a part.
fn whole_number<'a>(matched: &Match<'_>, text: &'a str, ends: &Ends) -> Option<&'a str> {
    let (start, end) = (matched.start(), matched.end());
    let bytes = text.as_bytes();
    let part = matched.as_str();
    if !part.ends_with(|it: char| it.is_ascii_digit() || it == '.') {
        return None;
    }
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let is = |at: usize, marks: &[u8]| bytes.get(at).is_some_and(|byte| marks.contains(byte));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let numeric = part.starts_with(|it: char| it.is_ascii_digit() || it == '.');
    let signed = is(end + 1, b"+-") && digit(end + 2);
    let exponent = numeric && is(end, b"eE") && (digit(end + 1) || signed);
    // Behind a number with a point a comma begins another one.
    let mark = is(end, b".") || is(end, b",") && is_digits(part);
    let fraction = ends.after && numeric && mark && digit(end + 1);
    let mut cut = digit(end) || exponent || fraction;
    if numeric && start > 0 {
        let point = start > 1 && is(start - 1, b".") && digit(start - 2);
        let whole = part.find('.').map_or(part, |point| &part[..point]);
        let thousands = start > 1 && is(start - 1, b",") && digit(start - 2) && whole.len() == 3;
        cut |= digit(start - 1) || ends.before && (point || thousands);
    }
    if !cut {
        return None;
    }
    let of_number = |byte: &u8| byte.is_ascii_digit() || b".,eE+-".contains(byte);
    let from = bytes[..start].iter().rev().take_while(|byte| of_number(byte)).count();
    let to = bytes[end..].iter().take_while(|byte| of_number(byte)).count();
    text.get(start - from..end + to)
}

/// The times that a pattern finds in logs.
pub(super) fn read(
    files: &[PathBuf],
    pattern: &Pattern,
    output: &mut Output<'_>,
) -> Result<Times, Failure> {
    let mut times = Times::default();
    let mut passed_over = 0;
    let mut first = None;
    for (path, own) in files.iter().zip(names::of_files(files)) {
        let cannot = || format!("cannot read {}", path.display());
        let mut input = Input::open(path).with_context(cannot).or_input()?;
        let mut line = Vec::new();
        let mut number = 0usize;
        let mut place = Place::default();
        while input.line(&mut line).with_context(cannot).or_input()?.is_some() {
            number += 1;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim();
            if text.is_empty() {
                continue;
            }
            match pattern.take(text, &own, &mut place) {
                Ok(Some((round, worker, seconds))) => times.insert(&round, &worker, seconds)?,
                Ok(None) => {
                    passed_over += 1;
                    first.get_or_insert_with(|| cut(text));
                }
                Err(problem) => {
                    let name = path.display();
                    return Err(Failure::Input(anyhow!(
                        "{name}: line {number}: {problem}: {}",
                        plain(&cut(text))
                    )));
                }
            }
        }
    }
    if times.is_empty() {
        let first =
            first.map_or("there is no line".into(), |line| format!("the first is {line:?}"));
        return Err(Failure::Input(anyhow!("the pattern matches no line; {first}")));
    }
    super::say_passed_over(passed_over, "that the pattern does not match", output);
    Ok(times)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests;
