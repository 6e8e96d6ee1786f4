//! How text is laid out: sentences wrap at the width of the terminal, and tables leave out what
//! matters least, so that no line is broken in the middle of a word or a number.

use clap::Command;
use std::borrow::Cow;
use std::env;
use std::fmt::Write as _;
use textwrap::core::display_width;
use textwrap::{Options, WordSplitter};

/// Lines of prose that are longer are hard to read, however wide the terminal is.
const PROSE_MAX: usize = 100;
/// A terminal that is narrower is treated as if it were this wide.
const COLUMNS_MIN: usize = 30;
/// Columns are left out before there is less room than this for names; longer names have a line of
/// their own.
const NAME_SHORT: usize = 16;
/// A label in help is shorter than this.
const LABEL: usize = 12;
/// A text below the flags that has more lines than this is left to `--help`.
const SUMMARY_LINES: usize = 12;
/// Examples that `-h` shows in its place.
const SUMMARY_EXAMPLES: usize = 3;
/// Between two columns of a table.
const GAP: &str = "  ";
/// Before what is said below a row.
const INDENT: &str = "    ";

/// How many columns there are to write to. In a file or a pipe there is no end to a line, unless
/// the environment's `COLUMNS` says so: nothing is wrapped or left out there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width(Option<usize>);

impl Width {
    /// No end to a line.
    pub const ENDLESS: Self = Self(None);

    /// So many columns.
    pub fn of(columns: usize) -> Self {
        Self(Some(columns))
    }

    /// What standard output is written to.
    pub fn of_stdout() -> Self {
        Self::found(terminal_size::terminal_size_of(std::io::stdout()))
    }

    /// What standard error is written to.
    pub fn of_stderr() -> Self {
        Self::found(terminal_size::terminal_size_of(std::io::stderr()))
    }

    fn found(size: Option<(terminal_size::Width, terminal_size::Height)>) -> Self {
        let told = || env::var("COLUMNS").ok()?.parse::<usize>().ok();
        let columns = size.map(|(width, _)| usize::from(width.0)).or_else(told);
        // A terminal that does not know its size has none.
        Self(columns.filter(|columns| *columns > 0).map(|columns| columns.max(COLUMNS_MIN)))
    }

    /// Whether so many columns fit into a line.
    pub fn holds(self, columns: usize) -> bool {
        self.0.is_none_or(|width| columns <= width)
    }

    /// How many things of a width fit into a line behind what it begins with: one at least.
    pub fn fit(self, before: usize, each: usize) -> usize {
        let fit = |width: usize| (width.saturating_sub(before) / each.max(1)).max(1);
        self.0.map_or(usize::MAX, fit)
    }

    /// Sentences, broken between words. Each line is wrapped for itself, as far in as it began.
    pub fn prose(self, text: &str) -> String {
        let Some(width) = self.0 else { return text.into() };
        let mut wrapped = String::with_capacity(text.len() + text.len() / width);
        for line in text.split_inclusive('\n') {
            let (body, end) = match line.strip_suffix('\n') {
                Some(body) => (body, "\n"),
                None => (line, ""),
            };
            let rest = body.trim_start_matches(' ');
            wrapped += &wrap(rest, width, &body[..body.len() - rest.len()]);
            wrapped += end;
        }
        wrapped
    }

    /// Sentences, and the command that they end with, such that it can be copied: on a line of its
    /// own where it does not fit behind them.
    pub fn with_command(self, sentences: &str, command_line: &str) -> String {
        let text = self.prose(sentences);
        let begun = text.lines().next_back().map_or(0, display_width);
        if self.holds(begun + " ".len() + display_width(command_line)) {
            return format!("{text} {command_line}");
        }
        let own = format!("  {command_line}");
        match self.0 {
            // Within quotation marks a line cannot go on in the next.
            Some(width) if !own.contains('\'') => format!("{text}\n{}", command(&own, width)),
            _ => format!("{text}\n{own}"),
        }
    }
}

/// Breaks a line between words, never within one: words are numbers, schemes and paths.
fn wrap(line: &str, width: usize, indent: &str) -> String {
    hanging(&format!("{indent}{line}"), width.min(PROSE_MAX), indent.len())
}

/// Help beyond that of flags, which its source breaks into lines of its own: paragraphs are put
/// together again and wrapped at the terminal's width. Lines two spaces in stay lines, and commands
/// among them such that they can be copied; those further in go on with what is before them.
pub fn help(text: &str) -> String {
    help_at(text, Width::of_stdout().0.unwrap_or(PROSE_MAX).min(PROSE_MAX))
}

/// A command whose `-h` has of a long text the first examples, and `--help` all of it.
pub fn summarised(command: Command) -> Command {
    let Some(text) = command.get_after_help().map(ToString::to_string) else { return command };
    if text.lines().count() <= SUMMARY_LINES {
        return command;
    }
    let (_, examples) = text.split_once("Examples:\n").unwrap_or_default();
    let mut begun = 0;
    // An example may go on in lines that are further in.
    let shown = examples.lines().take_while(|line| {
        begun += usize::from(line.starts_with("  ") && !line.starts_with("   "));
        line.starts_with("  ") && begun <= SUMMARY_EXAMPLES
    });
    let shown: String = shown.map(|line| format!("{line}\n")).collect();
    let summary =
        format!("Examples:\n{shown}\n--help has all flags, more examples, and what they mean.");
    command.after_help(summary).after_long_help(text)
}

fn help_at(text: &str, width: usize) -> String {
    let mut laid_out = String::new();
    let mut paragraph: Option<(String, usize)> = None;
    let mut end = |paragraph: &mut Option<(String, usize)>| {
        if let Some((text, indent)) = paragraph.take() {
            let is_command = text.starts_with("  ") && text.contains("codedgrad ");
            laid_out +=
                &if is_command { command(&text, width) } else { hanging(&text, width, indent) };
            laid_out.push('\n');
        }
    };
    for line in text.lines() {
        let rest = line.trim_start();
        let indent = line.len() - rest.len();
        let goes_on = indent > 2 || indent == 0 && label(rest).is_none();
        match &mut paragraph {
            Some((text, _)) if goes_on && !text.is_empty() && !rest.is_empty() => {
                text.push(' ');
                text.push_str(rest);
            }
            _ => {
                end(&mut paragraph);
                let hang = if indent == 2 { 4 } else { label(rest).unwrap_or(0) };
                paragraph = Some((line.into(), hang));
            }
        }
        if rest.is_empty() || rest.ends_with(':') && indent == 0 {
            end(&mut paragraph);
        }
    }
    end(&mut paragraph);
    laid_out.trim_end().into()
}

/// Where the text begins behind a label such as `Delays:`, if a line has one.
fn label(line: &str) -> Option<usize> {
    let (label, text) = line.split_once(": ")?;
    let room = text.len() - text.trim_start().len();
    let is_label = label.len() < LABEL && label.starts_with(|c: char| c.is_ascii_uppercase());
    (is_label && !label.contains(' ')).then(|| label.len() + ": ".len() + room)
}

/// A command of an example, with what it is for behind it or, where there is no room, above it.
fn command(line: &str, width: usize) -> String {
    if display_width(line) <= width {
        return line.into();
    }
    let (command, purpose) = match line.rsplit_once("  # ") {
        Some((command, purpose)) => (command.trim_end(), Some(purpose)),
        None => (line, None),
    };
    let above =
        purpose.map(|purpose| format!("{}\n", hanging(&format!("  # {purpose}"), width, 4)));
    let end = " \\";
    let whole = display_width(command) <= width;
    let command = if whole { command.into() } else { hanging(command, width - end.len(), 6) };
    above.unwrap_or_default() + &command.replace('\n', &format!("{end}\n"))
}

/// A paragraph whose lines after the first are further in.
fn hanging(text: &str, width: usize, indent: usize) -> String {
    let indent = " ".repeat(indent);
    let options = Options::new(width)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation)
        .subsequent_indent(&indent);
    textwrap::fill(text, options)
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    head: Cow<'static, str>,
    left: bool,
    rank: u8,
}

impl Column {
    /// Numbers, under a heading of one line or several.
    pub fn right(head: impl Into<Cow<'static, str>>) -> Self {
        Self { head: head.into(), left: false, rank: 0 }
    }

    /// Words.
    pub fn left(head: impl Into<Cow<'static, str>>) -> Self {
        Self { left: true, ..Self::right(head) }
    }

    /// Left out where there is too little room: those of the highest rank first, all at once.
    pub fn spare(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    fn aligned(&self, cell: &str, width: usize) -> String {
        let room = " ".repeat(width.saturating_sub(display_width(cell)));
        if self.left { format!("{cell}{room}") } else { format!("{room}{cell}") }
    }
}

/// A table whose first column names its rows.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    /// Heading of what is said of each row, behind it or below.
    remarks: &'static str,
    rows: Vec<(Vec<String>, String)>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self { columns: columns.into(), remarks: "", rows: Vec::new() }
    }

    /// The heading of remarks; they come below their rows where they do not fit behind them.
    pub fn remarks(self, head: &'static str) -> Self {
        Self { remarks: head, ..self }
    }

    /// Adds a row, a cell per column.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.remarked(cells, "");
    }

    /// The same with something said below it.
    pub fn remarked(&mut self, cells: impl Into<Vec<String>>, remark: impl Into<String>) {
        self.rows.push((cells.into(), remark.into()));
    }

    /// The table as it fits a width, each line with its end.
    pub fn laid_out(&self, width: Width) -> String {
        let widths: Vec<usize> = (0..self.columns.len()).map(|at| self.width_of(at)).collect();
        let shown = self.shown(&widths, width);
        let rest: usize = shown[1..].iter().map(|at| GAP.len() + widths[*at]).sum();
        // Where the names are what is too wide, the long ones have lines of their own.
        let name = match width.0 {
            Some(columns) if rest + widths[0] > columns => {
                columns.saturating_sub(rest).clamp(NAME_SHORT.min(widths[0]), widths[0])
            }
            _ => widths[0],
        };
        let remark = self.rows.iter().map(|(_, remark)| display_width(remark)).max().unwrap_or(0);
        let behind = remark > 0 && width.holds(name + rest + GAP.len() + remark);
        let mut text = String::new();
        let heads: Vec<Vec<&str>> =
            shown.iter().map(|at| self.columns[*at].head.lines().collect()).collect();
        let height = heads.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let cell = |head: &Vec<&str>| {
                let from = height - head.len();
                line.checked_sub(from).and_then(|at| head.get(at)).copied().unwrap_or("").to_owned()
            };
            let cells: Vec<String> = heads.iter().map(cell).collect();
            let last = behind && line + 1 == height;
            let remark = if last { self.remarks } else { "" };
            self.line(&mut text, (&shown, &widths, name), &cells, remark);
        }
        for (cells, remark) in &self.rows {
            let cells: Vec<String> = shown.iter().map(|at| cells[*at].clone()).collect();
            let said = if behind { remark } else { "" };
            self.line(&mut text, (&shown, &widths, name), &cells, said);
            if !behind && !remark.is_empty() {
                let below = width.0.unwrap_or(PROSE_MAX);
                let _ = writeln!(text, "{}", wrap(remark, below, INDENT));
            }
        }
        text
    }

    fn width_of(&self, at: usize) -> usize {
        let heads = self.columns[at].head.lines().map(display_width);
        let cells = self.rows.iter().map(|(cells, _)| display_width(&cells[at]));
        heads.chain(cells).max().unwrap_or(0)
    }

    /// The columns there is room for.
    fn shown(&self, widths: &[usize], width: Width) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..widths.len()).collect();
        let mut ranks: Vec<u8> = self.columns.iter().map(|column| column.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        while let Some(rank) = ranks.pop().filter(|rank| *rank > 0) {
            let rest: usize = shown[1..].iter().map(|at| GAP.len() + widths[*at]).sum();
            if width.holds(widths[0].min(NAME_SHORT) + rest) {
                break;
            }
            shown.retain(|at| self.columns[*at].rank < rank);
        }
        shown
    }

    fn line(
        &self,
        text: &mut String,
        (shown, widths, name): (&[usize], &[usize], usize),
        cells: &[String],
        remark: &str,
    ) {
        let mut line = self.columns[shown[0]].aligned(&cells[0], name);
        if display_width(&cells[0]) > name {
            let _ = write!(line, "\n{}", " ".repeat(name));
        }
        for (at, cell) in shown.iter().zip(cells).skip(1) {
            let _ = write!(line, "{GAP}{}", self.columns[*at].aligned(cell, widths[*at]));
        }
        if !remark.is_empty() {
            let _ = write!(line, "{GAP}{remark}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests;
