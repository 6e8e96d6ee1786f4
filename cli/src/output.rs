//! Where a tool's words go: a terminal's two streams, or whatever a caller has instead.

use crate::progress_bar;
use indicatif::ProgressBar;
use std::fmt;
use std::io::Write;

/// What a tool writes to.
pub(crate) struct Output<'a> {
    /// What was asked for.
    pub(crate) out: &'a mut dyn Write,
    /// What should be known beside it.
    pub(crate) notes: &'a mut dyn Write,
    /// Whether somebody may be looking on while it works.
    pub(crate) watched: bool,
}

impl Output<'_> {
    /// Says a line beside the answer.
    pub(crate) fn note(&mut self, line: fmt::Arguments<'_>) {
        // Where nobody can read it there is nothing to be done about it.
        let _ = writeln!(self.notes, "{line}");
    }

    /// A bar for long work; it stays hidden where nobody looks.
    pub(crate) fn progress_bar(&self, total: u64, name: &str) -> ProgressBar {
        if self.watched { progress_bar(total, name) } else { ProgressBar::hidden() }
    }
}
