//! What the workers and rounds of an imported trace were called where it came from.

use codedgrad::files;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::folder::json_if_there;
use codedgrad_shell::output::plain;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the name of the file beside a trace ends with.
const BESIDE: &str = ".names.json";

/// What stands beside a trace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TraceLabels {
    /// The name of each column's worker.
    pub(crate) workers: Vec<String>,
    pub(crate) rounds: Rounds,
    /// What was left out of the trace, in words.
    #[serde(default)]
    pub(crate) not_seen: Vec<String>,
    /// Bytes of the trace: another one under its name is another trace.
    pub(crate) bytes: u64,
}

/// What rounds are numbered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Rounds {
    /// Spans of `[first, distance, count]`.
    Numbers(Vec<(u64, u64, u64)>),
    /// Names that are no whole numbers.
    Names(Vec<String>),
}

impl Default for Rounds {
    fn default() -> Self {
        Self::Numbers(Vec::new())
    }
}

impl Rounds {
    pub(crate) fn of(names: &[String]) -> Self {
        let numbers: Option<Vec<u64>> = names.iter().map(|name| name.parse().ok()).collect();
        let Some(numbers) = numbers.filter(|all| all.windows(2).all(|pair| pair[0] < pair[1]))
        else {
            return Self::Names(names.to_vec());
        };
        let mut spans: Vec<(u64, u64, u64)> = Vec::new();
        for number in numbers {
            match spans.last_mut() {
                Some((first, distance, count)) if *count == 1 => {
                    (*distance, *count) = (number - *first, 2);
                }
                Some((first, distance, count)) if number == *first + *distance * *count => {
                    *count += 1;
                }
                _ => spans.push((number, 1, 1)),
            }
        }
        Self::Numbers(spans)
    }

    /// The numbers of all rounds, if they have some.
    pub(crate) fn all_numbers(&self) -> Option<Vec<u64>> {
        let Self::Numbers(spans) = self else { return None };
        let of = |&(first, distance, count): &(u64, u64, u64)| {
            (0..count).map(move |at| first + at * distance)
        };
        Some(spans.iter().flat_map(of).collect())
    }

    /// How far most rounds are apart.
    pub(crate) fn distance(&self) -> u64 {
        let Self::Numbers(spans) = self else { return 1 };
        let longest = spans.iter().max_by_key(|(_, _, count)| *count);
        longest.filter(|(_, _, count)| *count > 1).map_or(1, |(_, distance, _)| *distance)
    }

    /// What is worth saying of them.
    pub(crate) fn words(&self) -> Option<String> {
        match self {
            Self::Numbers(spans) => {
                let (first, last) = (spans.first()?, spans.last()?);
                let last = last.0 + last.1 * (last.2 - 1);
                let distance = self.distance();
                let evenly = match (spans.len(), distance) {
                    (1, 1) => String::new(),
                    (1, _) => format!(", every {distance} steps: they do not follow one another"),
                    _ => {
                        let count: u64 = spans.iter().map(|(_, _, count)| count).sum();
                        return Some(format!(
                            "{count} of those from {} to {last}, at unequal distances",
                            first.0
                        ));
                    }
                };
                let plain = first.0 == 0 && distance == 1;
                (!plain).then(|| format!("{} to {last}{evenly}", first.0))
            }
            Self::Names(names) => {
                let (first, last) = (names.first()?, names.last()?);
                Some(format!("{first} to {last}; by their order, since these are no numbers"))
            }
        }
    }
}

impl TraceLabels {
    fn beside(trace: &Path) -> PathBuf {
        let mut name = trace.as_os_str().to_owned();
        name.push(BESIDE);
        name.into()
    }

    /// Whether workers are called by their numbers.
    pub(crate) fn are_numbers(&self) -> bool {
        self.workers.iter().enumerate().all(|(number, name)| *name == number.to_string())
    }

    /// Writes it beside a trace that has been written.
    pub(crate) fn write(mut self, trace: &Path) -> io::Result<()> {
        let path = Self::beside(trace);
        let Ok(file) = fs::metadata(trace).map_err(drop).and_then(|file| {
            // Beside a device or a pipe nothing can stand.
            if file.is_file() { Ok(file) } else { Err(()) }
        }) else {
            return Ok(());
        };
        self.bytes = file.len();
        let text = serde_json::to_string(&self)? + "\n";
        files::write(&path, text.as_bytes()).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
        })
    }

    /// What stands beside a trace, if it is of this one.
    pub(crate) fn of(trace: &Path) -> Result<Option<Self>, Failure> {
        let Some(mut called) = json_if_there::<Self>(&Self::beside(trace))? else {
            return Ok(None);
        };
        if !fs::metadata(trace).is_ok_and(|file| file.len() == called.bytes) {
            return Ok(None);
        }
        // The file may be of others, and its words are shown.
        let made_plain = |words: &mut Vec<String>| {
            words.iter_mut().for_each(|word| *word = plain(word));
        };
        made_plain(&mut called.workers);
        made_plain(&mut called.not_seen);
        if let Rounds::Names(names) = &mut called.rounds {
            made_plain(names);
        }
        Ok(Some(called))
    }
}

#[cfg(test)]
mod tests;
