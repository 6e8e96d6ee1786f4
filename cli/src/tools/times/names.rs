//! What workers are called: the order of their names, and names in those of files.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names in the order in which people count: `rank9` before `rank10`.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(first), Some(second)) = (left.chars().next(), right.chars().next()) {
        if first.is_ascii_digit() && second.is_ascii_digit() {
            let (number, other) = (digits(left), digits(right));
            let (short, long) = (number.trim_start_matches('0'), other.trim_start_matches('0'));
            let order = short.len().cmp(&long.len()).then_with(|| short.cmp(long));
            if order.is_ne() {
                return order;
            }
            (left, right) = (&left[number.len()..], &right[other.len()..]);
            continue;
        }
        if first != second {
            return first.cmp(&second);
        }
        (left, right) = (&left[first.len_utf8()..], &right[second.len_utf8()..]);
    }
    // What is left of equal starts; of equal numbers the shorter one first.
    left.len().cmp(&right.len()).then_with(|| a.len().cmp(&b.len()))
}

/// The digits that a text begins with.
fn digits(text: &str) -> &str {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit());
    &text[..end.unwrap_or(text.len())]
}

/// A whole number as it is usually written, of `07`, `10.0` or `1e3`; none where it is so already.
pub(crate) fn canonical(text: &str) -> Option<String> {
    const EXACT: f64 = 9e15;
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain {
        let number = text.trim_start_matches('0');
        return match (number.len(), text.len()) {
            (0, 1) => None,
            (0, _) => Some("0".into()),
            (short, long) => (short < long).then(|| number.to_owned()),
        };
    }
    if !text.starts_with(|letter: char| letter.is_ascii_digit() || "+-.".contains(letter)) {
        return None;
    }
    let number = text.parse::<f64>().ok()?;
    (number.fract() == 0.0 && number.abs() < EXACT).then(|| format!("{}", number as i64))
}

/// The rank that a file's name or a folder's tells: the number behind the last `rank`.
pub(crate) fn rank(path: &Path) -> Option<String> {
    let text = path.to_str()?.to_lowercase();
    let mut found = None;
    for (at, word) in text.match_indices("rank") {
        let rest = text[at + word.len()..].trim_start_matches(['_', '-', '=', '.', ' ']);
        let number = digits(rest);
        if !number.is_empty() {
            found = Some(canonical(number).unwrap_or_else(|| number.to_owned()));
        }
    }
    found
}

/// What the worker of each file is called: by its rank, or else by what tells the names of the
/// files apart, such as the host.
pub(crate) fn of_files(files: &[PathBuf]) -> Vec<String> {
    let parts: Vec<Vec<String>> = files.iter().map(|file| words(file)).collect();
    let most = parts.iter().map(Vec::len).max().unwrap_or(0);
    let differs = |at: usize| parts.iter().any(|words| words.get(at) != parts[0].get(at));
    let telling: Vec<usize> = (0..most).filter(|at| differs(*at)).collect();
    let name = |words: &Vec<String>, count: usize| -> String {
        let told = telling[..count].iter().filter_map(|at| words.get(*at).cloned());
        told.collect::<Vec<_>>().join("_")
    };
    // As few words as tell all of them apart: what comes behind are process numbers and times.
    let enough = (1..=telling.len()).find(|count| {
        let names: BTreeSet<String> = parts.iter().map(|words| name(words, *count)).collect();
        names.len() == parts.len()
    });
    let each = files.iter().enumerate().map(|(number, file)| {
        let told = enough.map(|count| name(&parts[number], count));
        rank(file).or(told).unwrap_or_else(|| number.to_string())
    });
    each.collect()
}

/// The words of a path: of its folders, and of the name without what is the same of all such files.
fn words(path: &Path) -> Vec<String> {
    let text = path.to_string_lossy().replace('\\', "/");
    let apart = |letter: char| "/._ ".contains(letter);
    text.split(apart).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
