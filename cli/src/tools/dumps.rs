//! Dumps of PyTorch's Flight Recorder, one of each rank: what `doctor` says of a job that hangs,
//! and the times between collectives that `trace import` takes from them.

mod diagnosis;
mod pickle;
mod read;
mod text;

use super::ranks::Ranks;
use super::times::Times;
use anyhow::anyhow;
use codedgrad_shell::failure::{Failure, OrWork};
use codedgrad_shell::folder::RECORD;
use codedgrad_shell::output::Output;
use codedgrad_shell::units::several;
pub(crate) use read::is_dump;
use read::{Dump, GroupName};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Nanoseconds, in which the recorder counts, in a second.
const PER_SECOND: f64 = 1e9;

/// Whether a path is a dump, or a folder in which dumps lie and nothing else that is known.
pub(crate) fn are_in(path: &Path) -> bool {
    match path.is_dir() {
        true => !Ranks::is_in(path) && !path.join(RECORD).exists() && !in_folder(path).is_empty(),
        false => is_dump(path),
    }
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| is_dump(file));
    // Folders have no order of their own, and errors name the first of two.
    files.sort();
    files
}

/// Refuses what is no dump beside others.
fn expect(path: &Path, is_one: bool) -> Result<(), Failure> {
    match is_one {
        true => Ok(()),
        false => Err(Failure::Input(anyhow!(
            "{}: no dump of Flight Recorder, as others here are",
            path.display()
        ))),
    }
}

/// Says which ranks hold up a job that hangs. `without` are the flags that say nothing of dumps,
/// and whether each was given.
pub(crate) fn doctor<'a>(
    inputs: impl Iterator<Item = &'a String>,
    without: &[(&str, bool)],
    json: bool,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    if let Some((flag, _)) = without.iter().find(|(_, given)| *given) {
        let why = "a dump has collectives of a job that hangs, and no steps";
        return Err(Failure::Input(anyhow!("{flag}: {why}")));
    }
    let mut files = Vec::new();
    for path in inputs.map(Path::new) {
        expect(path, are_in(path))?;
        match path.is_dir() {
            true => files.extend(in_folder(path)),
            false => files.push(path.to_owned()),
        }
    }
    let dumps = read::all(&files, output)?;
    if dumps.iter().all(|dump| dump.groups.is_empty()) {
        return Err(Failure::Input(anyhow!(
            "{}: no entry of a collective: was the recorder on (TORCH_FR_BUFFER_SIZE above 0)?",
            several(dumps.len(), "dump")
        )));
    }
    if dumps.len() == 1 {
        output.note(format_args!("warning: one dump cannot be compared; give those of all ranks"));
    }
    let found = diagnosis::diagnosis(&dumps);
    let text = match json {
        true => text::object(&found).to_string() + "\n",
        false => text::words(&found, &dumps, output.width()),
    };
    output.out.write_all(text.as_bytes()).or_work()
}

/// The seconds that each rank took from the end of a collective to its entry of the next one, in
/// the group with the most ranks. Only times of one clock are subtracted.
pub(crate) fn times(files: &[PathBuf], output: &mut Output<'_>) -> Result<Times, Failure> {
    files.iter().try_for_each(|path| expect(path, is_dump(path)))?;
    let dumps = read::all(files, output)?;
    let mut sizes: BTreeMap<&GroupName, (usize, usize)> = BTreeMap::new();
    for (name, entries) in dumps.iter().flat_map(|dump| &dump.groups) {
        let size = sizes.entry(name).or_default();
        *size = (size.0 + 1, size.1 + entries.len());
    }
    let Some((group, _)) = sizes.iter().max_by_key(|(_, size)| **size) else {
        return Err(Failure::Input(anyhow!("no dump has an entry of a collective")));
    };
    let own: Vec<&Dump> = dumps.iter().filter(|dump| dump.groups.contains_key(*group)).collect();
    if sizes.len() > 1 {
        let (name, count) = (if group.1.is_empty() { &group.0 } else { &group.1 }, own.len());
        output.note(format_args!(
            "of {} groups, these are the collectives of {name}, which {count} ranks are in",
            sizes.len()
        ));
    }
    let mut times = Times::default();
    let mut all = 0_usize;
    let (mut without_end, mut behind) = (0_usize, 0_usize);
    let completed = |number: &u64| {
        own.iter().all(|dump| dump.groups[*group].get(number).is_some_and(|it| it.is_completed))
    };
    let numbers: BTreeSet<u64> =
        own.iter().flat_map(|it| it.groups[*group].keys()).copied().collect();
    for number in numbers.into_iter().filter(completed) {
        for dump in &own {
            let entries = &dump.groups[*group];
            let before = number.checked_sub(1).and_then(|before| entries.get(&before));
            let (Some(before), Some(entered)) = (before, entries[&number].created) else {
                continue;
            };
            let Some(from) = before.ended.or(before.created) else { continue };
            all += 1;
            without_end += usize::from(before.ended.is_none());
            behind += usize::from(entered < from);
            let time = entered.saturating_sub(from).max(0) as f64 / PER_SECOND;
            times.insert(&number.to_string(), &dump.rank.to_string(), time)?;
        }
    }
    if without_end > 0 {
        output.note(format_args!(
            "warning: {without_end} of {all} times begin where the rank entered its previous \
             collective, since the dump does not tell its end (Gloo never does): what the rank \
             waited for others is in them, and which rank is slow may not be seen"
        ));
    }
    if behind > 0 {
        output.note(format_args!(
            "warning: {behind} of {all} times are 0: the rank entered a collective before the \
             previous one was found to be completed, as with queues of a GPU"
        ));
    }
    Ok(times)
}

#[cfg(test)]
mod tests;
