//! What benches have in common that start themselves again as other processes.

use std::env;
use std::error::Error;
use std::io;
use std::process::{Child, Command, Stdio};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A token for one run: it keeps only other runs of this host out.
pub(crate) fn token() -> String {
    std::process::id()
        .to_le_bytes()
        .iter()
        .cycle()
        .take(32)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Starts this program again with the same words, in a part that a variable of its environment
/// tells; what it prints can be read.
pub(crate) fn again(words: &[String], variable: &str, part: &str) -> io::Result<Child> {
    Command::new(env::current_exe()?).args(words).env(variable, part).stdout(Stdio::piped()).spawn()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
