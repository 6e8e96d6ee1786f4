//! Numbers as people write them: `100ms`, `5m`, `1e3`.

use codedgrad::ids::{Worker, WorkerSet};
use codedgrad::run::Limits;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Units of time, in seconds. What has no unit is in seconds.
const TIMES: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];

/// A time in seconds: a finite number of 0 or more, with a unit or without.
pub fn seconds(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let end = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = TIMES.iter().find(|(name, _)| *name == &text[end.len()..]);
    let number = match (end.len() == text.len(), unit) {
        (true, _) => text.parse().ok(),
        (false, Some((_, unit))) => end.trim().parse::<f64>().ok().map(|number| number * unit),
        (false, None) => None,
    };
    let fits = |number: &f64| number.is_finite() && *number >= 0.0;
    number.filter(fits).ok_or_else(|| {
        format!("{text:?} is no time of 0 or more: write seconds, or 100ms, 2.5s, 5m, 1h")
    })
}

/// What counts things: 150, 1e3 or 10_000.
pub trait Count: Copy + Display + FromStr + Into<u64> + PartialOrd + TryFrom<u64> {}

impl Count for u32 {}
impl Count for u64 {}

/// A number of things in a range.
pub fn count<T: Count>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let (least, most) = (range.start(), range.end());
        let number: T = match counted(text) {
            Err(NoCount::TooLarge) => return Err(format!("{text} is not in {least}..={most}")),
            other => other.map_err(|why| why.words(text))?,
        };
        range
            .contains(&number.into())
            .then_some(number)
            .ok_or_else(|| format!("{number} is not in {least}..={most}"))
    }
}

/// A number of things that may be as many as one likes.
pub fn at_least<T: Count>(least: T) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = whole(text)?;
        (number >= least).then_some(number).ok_or_else(|| format!("{least} or more is needed"))
    }
}

/// A number of things in memory.
pub fn size(text: &str) -> Result<usize, String> {
    whole::<u32>(text).map(|number| number as usize)
}

/// A number of things, or what tells one from others, of which none is too small.
pub fn whole<T: Count>(text: &str) -> Result<T, String> {
    counted(text).map_err(|why| why.words(text))
}

/// Why a text is no number of things.
enum NoCount {
    TooLarge,
    NotWhole,
}

impl NoCount {
    fn words(self, text: &str) -> String {
        match self {
            Self::TooLarge => format!("{text} is too large a number"),
            Self::NotWhole => {
                format!("{text:?} is no whole number of 0 or more, such as 150 or 1e3")
            }
        }
    }
}

fn counted<T: Count>(text: &str) -> Result<T, NoCount> {
    let plain = text.trim().replace('_', "");
    if let Ok(number) = plain.parse::<T>() {
        return Ok(number);
    }
    let number = plain.parse::<f64>().ok().filter(|number| number.is_finite());
    let whole = number.filter(|number| number.fract() == 0.0 && *number >= 0.0);
    let whole = whole.ok_or(NoCount::NotWhole)?;
    // 2^53 is where numbers with a fraction stop counting one by one.
    let few = (whole < 9e15).then_some(whole as u64);
    few.and_then(|few| T::try_from(few).ok()).ok_or(NoCount::TooLarge)
}

/// Reads a list such as `0,2,5-11`.
pub fn parse_workers(list: &str, workers: usize) -> Result<WorkerSet, String> {
    let mut set = WorkerSet::empty(workers);
    let number = |text: &str| {
        text.trim().parse::<u32>().map_err(|_| format!("{text:?} is not a worker's number"))
    };
    for item in list.split(',').filter(|_| !list.is_empty()) {
        let (from, to) = match item.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(item)?, number(item)?),
        };
        if from > to {
            return Err(format!("the range {item} runs backwards"));
        }
        if to as usize >= workers {
            return Err(format!("there is no worker {to}: workers are 0 to {}", workers - 1));
        }
        if let Some(twice) = (from..=to).find(|worker| !set.insert(Worker(*worker))) {
            return Err(format!("worker {twice} is named twice"));
        }
    }
    Ok(set)
}

/// A number of things, such as `1 step` or `3 steps`.
pub fn several<T: Copy + Display + PartialEq + From<u8>>(number: T, thing: &str) -> String {
    let end = if number == T::from(1) { "" } else { "s" };
    format!("{number} {thing}{end}")
}

/// How long people are ready to wait.
pub fn patience(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, Limits::WAIT_MAX.as_secs_f64()))
}

#[cfg(test)]
mod tests;
