//! Where words go: what was asked for to standard output, everything else to standard error, above
//! the bars of what is under way; or to what a caller has instead of the two.

use crate::layout::Width;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::fmt::MakeWriter;

/// What a text of others, such as a column's name, may not do to a terminal: characters that move
/// its cursor, colour it or turn the direction of writing are written as JSON escapes them, so that
/// JSON stays JSON. Lines and tabulators stay.
fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut harmless = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) {
            // All of them are of the first plane.
            let _ = fmt::Write::write_fmt(&mut harmless, format_args!("\\u{:04x}", u32::from(c)));
        } else {
            harmless.push(c);
        }
    }
    Cow::Owned(harmless)
}

/// Whether a character does more on a terminal than to be seen.
fn is_harmful(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

/// Text of others as it may be printed: what would move the cursor, or turn the direction of
/// writing, is escaped.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) || matches!(c, '\n' | '\t') {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// All bars of this process: lines are written above them.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
/// From so many columns on, a bar has room.
const WIDE: usize = 80;
/// The same for a bar that says more.
const WIDER: usize = 100;
/// Whether only results, warnings and errors are wanted.
static QUIET: AtomicBool = AtomicBool::new(false);

/// What a command writes to.
pub struct Output<'a> {
    /// What was asked for.
    pub out: &'a mut dyn Write,
    /// What should be known beside it.
    pub notes: Notes<'a>,
}

/// Where it is said what should be known beside the answer.
pub enum Notes<'a> {
    /// Standard error, where a user may be looking on.
    Stderr,
    /// What a caller has instead.
    Kept(&'a mut dyn Write),
}

impl Notes<'_> {
    /// Says a line, such as a warning.
    pub fn say(&mut self, line: fmt::Arguments<'_>) {
        match self {
            Self::Stderr => alert_args(line),
            // If this fails, there is no other place to say it.
            Self::Kept(notes) => drop(writeln!(notes, "{line}")),
        }
    }

    /// Says a note, which those who want to know little do without.
    pub fn hint(&mut self, note: fmt::Arguments<'_>) {
        if matches!(self, Self::Kept(_)) || !is_quiet() {
            self.say(format_args!("note: {note}"));
        }
    }

    /// Writes lines as they are.
    pub fn write(&mut self, text: &str) {
        match self {
            Self::Stderr => above_bars(harmless(text).as_bytes()),
            Self::Kept(notes) => drop(notes.write_all(text.as_bytes())),
        }
    }
}

impl Output<'_> {
    /// The columns there are now: a terminal may change while a run goes on.
    pub fn width(&self) -> Width {
        match self.notes {
            Notes::Stderr => Width::of_stdout(),
            Notes::Kept(_) => Width::ENDLESS,
        }
    }

    /// Says a line beside the answer.
    pub fn note(&mut self, line: fmt::Arguments<'_>) {
        self.notes.say(line);
    }

    /// A bar for long work; it stays hidden where no user looks.
    pub fn progress_bar(&self, total: u64, name: &str) -> ProgressBar {
        match self.notes {
            Notes::Stderr => progress_bar(total, name),
            Notes::Kept(_) => ProgressBar::hidden(),
        }
    }

    /// A bar over the bytes of a file, if it is wanted.
    pub fn file_bar(&self, path: &Path, wanted: bool) -> ProgressBar {
        let length = fs::metadata(path).map_or(0, |file| file.len());
        let name = path.display().to_string();
        if wanted { self.progress_bar(length, &name) } else { ProgressBar::hidden() }
    }

    /// Writes a text, and has it seen before what comes next.
    pub fn print(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        self.out.write_fmt(text)?;
        self.out.flush()
    }
}

/// Standard output. Its errors say so, as those of files say which file it is.
pub struct Stdout(BufWriter<io::Stdout>);

impl Stdout {
    /// Standard output of this process.
    pub fn open() -> Self {
        Self(BufWriter::new(io::stdout()))
    }

    /// Leaves what could not be written: it would be tried again at the end.
    pub fn give_up(self) {
        drop(self.0.into_parts());
    }
}

/// An error of writing there, in words.
pub fn of_stdout(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match std::str::from_utf8(bytes).map(harmless) {
            Ok(Cow::Owned(text)) => self.0.write_all(text.as_bytes()).map(|()| bytes.len()),
            _ => self.0.write(bytes),
        };
        written.map_err(|error| of_stdout(&error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|error| of_stdout(&error))
    }
}

/// Whether an error says that the reader of standard output has left.
pub fn is_closed(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
}

/// Has all but results, warnings and errors left out from now on, or not.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    BARS.set_draw_target(target);
}

/// Whether only results, warnings and errors are wanted.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes a line of one's own to standard error, above the bars.
pub fn above_bars(line: &[u8]) {
    // If this fails, there is no other place to write it.
    suspend(|| drop(io::stderr().write_all(line)));
}

/// Does something while no bar is in the way.
pub fn suspend(act: impl FnOnce()) {
    BARS.suspend(act);
}

/// Says how things are going, unless that is not wanted.
pub fn say_args(line: fmt::Arguments<'_>) {
    if !is_quiet() {
        alert_args(line);
    }
}

/// Says what should be known even by those who want to know little.
pub fn alert_args(line: fmt::Arguments<'_>) {
    let line = Width::of_stderr().prose(&harmless(&line.to_string()));
    above_bars((line + "\n").as_bytes());
}

/// [`say_args`] with the arguments of `format!`.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::output::say_args(format_args!($($words)*)) };
}
/// [`alert_args`] with the arguments of `format!`.
#[macro_export]
macro_rules! alert {
    ($($words:tt)*) => { $crate::output::alert_args(format_args!($($words)*)) };
}
pub use crate::{alert, say};

/// Where logs go: a line at a time, above the bars.
#[derive(Debug)]
pub struct Logs;

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) => above_bars(in_flags(text).as_bytes()),
            Err(_) => above_bars(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the library says, with the program's flags for its names.
pub fn in_flags(text: &str) -> Cow<'_, str> {
    const TLS: &str = "`Security::Tls`";
    match text.contains(TLS) {
        true => text.replace(TLS, "`--keys DIR` (from `codedgrad keygen DIR --workers N`)").into(),
        false => text.into(),
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

/// A bar for long work; it stays hidden where no user looks. What does not fit into the line is cut
/// off its message.
pub fn progress_bar(total: u64, name: &str) -> ProgressBar {
    bar(total, WIDE, "eta {eta} · {wide_msg}").with_prefix(name.to_owned())
}

/// The same, which is to have a longer name, and whose message says itself how long it still takes.
pub fn plain_bar(total: u64) -> ProgressBar {
    bar(total, WIDER, "{wide_msg}")
}

fn bar(total: u64, wide: usize, rest: &str) -> ProgressBar {
    let columns = if Width::of_stderr().holds(wide) { 24 } else { 10 };
    let template = format!("{{prefix:.bold}} {{bar:{columns}.cyan/dim}} {{pos}}/{{len}} {rest}");
    let style = ProgressStyle::with_template(&template);
    let bar = ProgressBar::new(total);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    BARS.add(bar)
}

/// A sign that something is under way whose length is not known.
pub fn spinner(message: &'static str) -> ProgressBar {
    let spinner = BARS.add(ProgressBar::new_spinner().with_message(message));
    spinner.tick();
    spinner
}

#[cfg(test)]
mod tests;
