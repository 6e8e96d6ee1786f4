//! Scheme texts such as `groups:s=3`: the same everywhere, on the command line and in records.

use super::sequential::{Lift, Scheme};
use super::{DropSlowest, GradientCode, Groups};
use crate::ids::{Cut, CutError, Job};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use thiserror::Error;

/// Parameters outside a code's conditions, or a text that names no scheme.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// A run needs at least one worker.
    #[error("0 workers: a run needs at least 1")]
    NoWorkers,
    /// `s` must be below `n`.
    #[error("s={stragglers} stragglers of {workers} workers cannot be tolerated: s must be at most {}", workers - 1)]
    TooManyStragglers {
        /// Stragglers asked for.
        stragglers: usize,
        /// Workers of the run.
        workers: usize,
    },
    /// `l` must be between 1 and `n`.
    #[error("l={groups} groups of {workers} workers: l must be from 1 to {workers}")]
    GroupsOutOfRange {
        /// Groups asked for.
        groups: usize,
        /// Workers of the run.
        workers: usize,
    },
    /// `b` must be between 1 and `n - 1`.
    #[error("drop:b={dropped} of {workers} workers: b must be from 1 to {}{}", workers.saturating_sub(1), if *dropped == 0 { "; b=0 is uncoded" } else { "" })]
    DropOutOfRange {
        /// Workers that may be dropped.
        dropped: usize,
        /// Workers of the run.
        workers: usize,
    },
    /// No scheme of that name.
    #[error("unknown scheme {name:?}; did you mean {nearest:?}? Known: {}", SchemeSpec::EXAMPLES.join(", "))]
    UnknownScheme {
        /// What was written.
        name: String,
        /// The known scheme closest to it.
        nearest: &'static str,
    },
    /// A parameter that is missing, unknown or given twice.
    #[error("scheme {text:?}: {problem}; write it like {example}")]
    Malformed {
        /// The whole text.
        text: String,
        /// What is wrong with it.
        problem: String,
        /// A text that is right.
        example: &'static str,
    },
    /// The batch is too small for the scheme's shares.
    #[error(transparent)]
    Cut(#[from] CutError),
}

/// A scheme as its user writes it, parameters not yet checked against a number of workers.
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// let spec: SchemeSpec = "groups:s=1".parse()?;
/// assert_eq!(spec.to_string(), "groups:s=1");
/// assert!("gruops:s=1".parse::<SchemeSpec>().unwrap_err().to_string().contains("groups"));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemeSpec {
    text: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Uncoded,
    Groups { size: GroupSize, rescale: bool },
    Drop { dropped: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupSize {
    Stragglers(usize),
    Groups(usize),
}

impl SchemeSpec {
    /// One text per scheme, as an example of how it is written.
    pub const EXAMPLES: [&'static str; 4] = ["uncoded", "groups:s=1", "groups:l=4,rescale", "drop:b=1"];

    /// The scheme that waits for everybody.
    ///
    /// ```
    /// assert_eq!(codedgrad::codes::SchemeSpec::uncoded().to_string(), "uncoded");
    /// ```
    #[must_use]
    pub fn uncoded() -> Self {
        Self { text: "uncoded".into(), kind: Kind::Uncoded }
    }

    /// The one-round code of this text for `workers` workers.
    ///
    /// # Errors
    /// [`ParameterError`] when the parameters are outside the code's conditions.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let spec: SchemeSpec = "groups:s=3".parse()?;
    /// assert_eq!(spec.code(8)?.facts().load, 0.5);
    /// assert!(spec.code(3).is_err());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn code(&self, workers: usize) -> Result<Box<dyn GradientCode>, ParameterError> {
        Ok(match self.kind {
            Kind::Uncoded => Box::new(Groups::uncoded(workers)?),
            Kind::Drop { dropped } => Box::new(DropSlowest::new(workers, dropped)?),
            Kind::Groups { size, rescale } => {
                let groups = match size {
                    GroupSize::Stragglers(s) => Groups::tolerating(workers, s)?,
                    GroupSize::Groups(l) => Groups::new(workers, l)?,
                };
                Box::new(if rescale { groups.rescaling() } else { groups })
            }
        })
    }

    /// The scheme of this text over `jobs`, each a batch of `units` units.
    ///
    /// # Errors
    /// [`ParameterError`] when the parameters are outside the code's conditions or the batch has fewer
    /// units than the code has shares.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let spec: SchemeSpec = "groups:s=1".parse()?;
    /// assert_eq!(spec.scheme(8, 8, 0..100)?.facts().delay, 0);
    /// assert!(spec.scheme(8, 3, 0..100).is_err());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn scheme(&self, workers: usize, units: u32, jobs: Range<u64>) -> Result<Box<dyn Scheme>, ParameterError> {
        let code = self.code(workers)?;
        let cut = Cut::new(units, code.facts().shares() as u32)?;
        Ok(Box::new(Lift::new(code, cut, Job(jobs.start)..Job(jobs.end))))
    }
}

impl fmt::Display for SchemeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for SchemeSpec {
    type Err = ParameterError;

    fn from_str(text: &str) -> Result<Self, ParameterError> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let Some(example) = Self::EXAMPLES.into_iter().find(|known| family(known) == name) else {
            let nearest = nearest(name, Self::EXAMPLES);
            return Err(ParameterError::UnknownScheme { name: name.into(), nearest });
        };
        let mut fields = Fields::read(text, parameters, example)?;
        let kind = match name {
            "uncoded" => Kind::Uncoded,
            "drop" => Kind::Drop { dropped: fields.need("b")? },
            _ => {
                let size = match (fields.number("s")?, fields.number("l")?) {
                    (Some(s), None) => GroupSize::Stragglers(s),
                    (None, Some(l)) => GroupSize::Groups(l),
                    _ => return Err(fields.wrong("give either s= (stragglers) or l= (groups)".into())),
                };
                Kind::Groups { size, rescale: fields.flag("rescale") }
            }
        };
        fields.done()?;
        Ok(Self { text: text.into(), kind })
    }
}

fn family(text: &str) -> &str {
    text.split(':').next().unwrap_or(text)
}

/// The candidate whose family name is closest to `name` by edit distance.
fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> &'a str {
    candidates.into_iter().min_by_key(|known| strsim::damerau_levenshtein(family(known), name)).unwrap_or_default()
}

/// The `key=value` and flag fields of a scheme text, taken out one by one.
struct Fields<'a> {
    text: &'a str,
    example: &'static str,
    left: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Fields<'a> {
    fn read(text: &'a str, parameters: &'a str, example: &'static str) -> Result<Self, ParameterError> {
        let mut fields = Self { text, example, left: Vec::new() };
        for field in parameters.split(',').filter(|_| !parameters.is_empty()) {
            let (key, value) = field.split_once('=').map_or((field, None), |(key, value)| (key, Some(value)));
            if key.is_empty() {
                return Err(fields.wrong("an empty parameter".into()));
            }
            if fields.left.iter().any(|(known, _)| *known == key) {
                return Err(fields.wrong(format!("{key} is given twice")));
            }
            fields.left.push((key, value));
        }
        Ok(fields)
    }

    fn wrong(&self, problem: String) -> ParameterError {
        ParameterError::Malformed { text: self.text.into(), problem, example: self.example }
    }

    fn take(&mut self, key: &str) -> Option<Option<&'a str>> {
        let at = self.left.iter().position(|(known, _)| *known == key)?;
        Some(self.left.remove(at).1)
    }

    fn number(&mut self, key: &str) -> Result<Option<usize>, ParameterError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => match value.unwrap_or_default().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.wrong(format!("{key}={} is not a whole number of 0 or more", value.unwrap_or_default()))),
            },
        }
    }

    fn need(&mut self, key: &str) -> Result<usize, ParameterError> {
        self.number(key)?.ok_or_else(|| self.wrong(format!("{key}= is missing")))
    }

    fn flag(&mut self, key: &str) -> bool {
        let at = self.left.iter().position(|field| *field == (key, None));
        at.map(|at| self.left.remove(at)).is_some()
    }

    fn done(self) -> Result<(), ParameterError> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => Err(self.wrong(format!("{key:?} is not a parameter of {}", family(self.text)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_echo_and_errors_teach() {
        for text in SchemeSpec::EXAMPLES {
            assert_eq!(text.parse::<SchemeSpec>().unwrap().to_string(), text);
        }
        let message = |text: &str| text.parse::<SchemeSpec>().unwrap_err().to_string();
        assert!(message("grups:s=1").contains("did you mean \"groups:s=1\""));
        assert!(message("groups").contains("give either s= (stragglers) or l= (groups)"));
        assert!(message("groups:s=1,l=2").contains("either"));
        assert!(message("groups:s=-1").contains("s=-1 is not a whole number"));
        assert!(message("groups:s=1,s=2").contains("given twice"));
        assert!(message("groups:s=1,rescue").contains("\"rescue\" is not a parameter of groups"));
        assert!(message("drop").contains("b= is missing"));
        assert!(message("drop:b=1,").contains("empty parameter"));
        assert!(message("uncoded:s=1").contains("not a parameter of uncoded"));
    }

    #[test]
    fn conditions_name_the_legal_values() {
        let build = |text: &str, n: usize| text.parse::<SchemeSpec>().unwrap().code(n).map(|_| ()).unwrap_err().to_string();
        assert!(build("groups:s=8", 8).contains("at most 7"));
        assert!(build("groups:l=0", 8).contains("from 1 to 8"));
        assert!(build("groups:l=9", 8).contains("from 1 to 8"));
        assert!(build("drop:b=8", 8).contains("from 1 to 7"));
        assert!(build("drop:b=0", 8).contains("uncoded"));
        assert!(build("uncoded", 0).contains("at least 1"));
        assert!("uncoded".parse::<SchemeSpec>().unwrap().scheme(8, 7, 0..1).is_err());
    }
}
