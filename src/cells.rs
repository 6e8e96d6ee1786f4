//! Lines of tables as people have them: what stands between cells, and what a comma in a number is.

use std::str::{Split, SplitWhitespace};

/// What a comment begins with.
const COMMENT: char = '#';
/// What a file of NumPy's own begins with.
const NUMPY: &[u8] = b"\x93NUMPY";

/// Why bytes are no table, where they are those of another kind of file that holds one.
pub(crate) fn no_text(bytes: &[u8]) -> Option<&'static str> {
    bytes.starts_with(NUMPY).then_some(
        "a file of NumPy's own: numpy.savetxt(FILE, array, delimiter=\",\") writes one that is \
         read",
    )
}

/// A line without what some editors begin a file with, and without its end.
pub(crate) fn plain_line(line: &str) -> &str {
    line.strip_prefix('\u{feff}').unwrap_or(line).trim_end_matches(['\n', '\r'])
}

/// Whether a line is a comment.
pub(crate) fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with(COMMENT)
}

/// What stands between cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Separator {
    Mark(char),
    Blanks,
}

impl Separator {
    /// That of a line: numbers with a decimal comma are apart by something else.
    pub(crate) fn of(line: &str) -> Self {
        let marks = [';', '\t', '|', ','];
        // Behind a comma a tab is a blank.
        let parts = |mark: &char| {
            let mut cells = line.split(*mark).rev().skip(1);
            *mark == ',' || !cells.all(|cell| cell.trim_end().ends_with(','))
        };
        let mark = marks.into_iter().find(|mark| line.contains(*mark) && parts(mark));
        match mark {
            Some(mark) => Self::Mark(mark),
            None if line.trim().contains(' ') => Self::Blanks,
            None => Self::Mark(','),
        }
    }

    /// The cells of a line, without blanks around them.
    pub(crate) fn cells(self, line: &str) -> impl Iterator<Item = &str> {
        match self {
            Self::Mark(mark) => Cells::Marked(line.split(mark)),
            Self::Blanks => Cells::Blank(line.split_whitespace()),
        }
    }

    /// What a comma in a cell can be.
    pub(crate) fn comma(self) -> Comma {
        if self == Self::Mark(',') { Comma::Thousands } else { Comma::Decimal }
    }
}

/// The cells of a line.
enum Cells<'a> {
    Marked(Split<'a, char>),
    Blank(SplitWhitespace<'a>),
}

impl<'a> Iterator for Cells<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        match self {
            Self::Marked(cells) => cells.next().map(str::trim),
            Self::Blank(cells) => cells.next(),
        }
    }
}

/// What a comma in a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comma {
    /// What parts whole numbers from fractions.
    Decimal,
    /// What parts thousands, where the digits are in threes; a decimal comma where they are not.
    Thousands,
}

/// A number with a comma in it, as it is read by machines; none where it has no comma, or where
/// its commas fit nothing.
pub(crate) fn plain(text: &str, comma: Comma) -> Option<String> {
    let last = text.rfind(',')?;
    let point = text.rfind('.');
    match point {
        // 1,013.9 and 1.013,9: what comes last parts the fraction.
        Some(point) if point > last => grouped(',', &text[..point]).then(|| text.replace(',', "")),
        Some(_) => {
            let whole = &text[..last];
            let fraction = &text[last + 1..];
            grouped('.', whole).then(|| format!("{}.{fraction}", whole.replace('.', "")))
        }
        None if text.matches(',').count() > 1 => grouped(',', text).then(|| text.replace(',', "")),
        None if comma == Comma::Thousands && grouped(',', text) => Some(text.replace(',', "")),
        None => Some(text.replace(',', ".")),
    }
}

/// Whether the digits of a whole number are in threes.
fn grouped(mark: char, whole: &str) -> bool {
    let mut groups = whole.trim_start_matches(['+', '-']).split(mark);
    let first = groups.next().unwrap_or_default();
    let digits = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    (1..=3).contains(&first.len())
        && first != "0"
        && digits(first)
        && groups.all(|group| group.len() == 3 && digits(group))
}

/// Whether the commas of a table part fractions, where its cells are apart by something else:
/// `1,013` alone may be 1.013 or 1013.
///
/// ```
/// use codedgrad::delays::Commas;
/// let mut commas = Commas::default();
/// commas.see("1,013");
/// commas.see("977");
/// assert_eq!(commas.doubtful(), Some("1,013"));
/// commas.see("0,977");
/// assert_eq!(commas.doubtful(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Commas {
    doubtful: Option<String>,
    decided: bool,
}

impl Commas {
    /// Looks at one more cell.
    pub fn see(&mut self, cell: &str) {
        let cell = cell.trim().trim_matches(['"', '\'']).trim();
        if self.decided || cell.matches(',').count() != 1 || cell.contains('.') {
            return;
        }
        if cell.replace(',', ".").parse::<f64>().is_err() {
            return;
        }
        if !grouped(',', cell) {
            self.decided = true;
        } else if self.doubtful.is_none() {
            self.doubtful = Some(cell.into());
        }
    }

    /// What a cell with such a comma may be.
    ///
    /// ```
    /// use codedgrad::delays::Commas;
    /// assert_eq!(Commas::readings("1,013"), "1,013 may be 1.013 or 1013");
    /// ```
    #[must_use]
    pub fn readings(cell: &str) -> String {
        format!("{cell} may be {} or {}", cell.replace(',', "."), cell.replace(',', ""))
    }

    /// The first cell that may be two numbers, where no other has said which.
    #[must_use]
    pub fn doubtful(&self) -> Option<&str> {
        self.doubtful.as_deref().filter(|_| !self.decided)
    }
}
