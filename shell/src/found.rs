//! What a path holds that was given for something else: runs beside each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// As many names as a user reads.
const NAMED: usize = 6;

/// Folders in a folder that hold one of some files, the newest last by when that was written.
fn holders(path: &Path, files: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(|entry| {
            let file = files.iter().find_map(|file| fs::metadata(entry.path().join(file)).ok())?;
            Some((file.modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Runs in a folder of runs, in words with which a sentence goes on; nothing if there are none.
pub fn runs_in(path: &Path, files: &[&str]) -> Option<String> {
    let runs = holders(path, files);
    let newest = runs.last()?.display().to_string();
    let left_out = runs.len().saturating_sub(NAMED);
    let earlier = if left_out == 0 { String::new() } else { format!("{left_out} older, ") };
    let names: Vec<_> = runs[left_out..].iter().map(|run| run.display().to_string()).collect();
    Some(format!("there are runs in it: {earlier}{}; the newest is {newest}", names.join(", ")))
}
