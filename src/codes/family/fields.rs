//! The parameters in a scheme's text, read one by one.

use super::recipe::within;
use crate::codes::ParameterError;
use crate::files;
use std::str::FromStr;

/// No file of a scheme is longer: 4096 workers with 4096 numbers of 15 characters.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Seed of what is drawn, unless another is given.
const SEED: u64 = 7;

/// What may stand behind a `key=`.
pub trait Value: FromStr {
    /// What it is, for errors.
    const EXPECTED: &'static str = "a whole number of 0 or more";
}

impl Value for usize {}
impl Value for u32 {}
impl Value for u64 {}
impl Value for f64 {
    const EXPECTED: &'static str = "a number";
}
impl Value for String {
    const EXPECTED: &'static str = "a path";
}

/// The `key=value` fields and flags of a scheme's text. [`Family::parse`](super::Family::parse)
/// takes them out one by one; what it leaves is refused as no parameter of the family.
///
/// ```
/// use codedgrad::codes::{Groups, registry::{Family, Recipe}};
/// let replicas = Family {
///     name: "replicas",
///     examples: &["replicas:r=2,rescale"],
///     ..Family::new(|fields| {
///         let replicas = fields.need("r")?;
///         let rescale = fields.flag("rescale");
///         Ok(Recipe::code(move |workers| {
///             let groups = Groups::tolerating(workers, replicas - 1)?;
///             Ok(if rescale { groups.rescaling() } else { groups })
///         }))
///     })
/// };
/// assert_eq!(replicas.spec("replicas:r=2")?.code(8)?.facts().tolerance, 1);
/// let error = replicas.spec("replicas:r=2,s=1").err().unwrap();
/// assert!(error.to_string().contains("\"s\" is not a parameter of replicas"));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Debug)]
pub struct Fields<'a> {
    text: &'a str,
    example: &'static str,
    left: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Fields<'a> {
    /// The fields after the colon of a text.
    pub(crate) fn read(text: &'a str, example: &'static str) -> Result<Self, ParameterError> {
        let parameters = text.split_once(':').map_or("", |(_, parameters)| parameters);
        let mut fields = Self { text, example, left: Vec::new() };
        for field in parameters.split(',').filter(|_| !parameters.is_empty()) {
            let (key, value) =
                field.split_once('=').map_or((field, None), |(key, value)| (key, Some(value)));
            if key.is_empty() {
                return Err(fields.wrong("an empty parameter"));
            }
            if key != key.trim() {
                return Err(fields.wrong(format!("a blank beside {}", key.trim())));
            }
            if fields.left.iter().any(|(known, _)| *known == key) {
                return Err(fields.wrong(format!("{key} is given twice")));
            }
            fields.left.push((key, value));
        }
        Ok(fields)
    }

    /// The whole text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text
    }

    /// The error that names the whole text, says what is wrong with it and how it is written.
    pub fn wrong(&self, problem: impl Into<String>) -> ParameterError {
        ParameterError::Malformed {
            text: self.text.into(),
            problem: problem.into(),
            example: self.example,
        }
    }

    /// The value of `key=`, if it is given.
    ///
    /// # Errors
    /// [`ParameterError::Malformed`] if it is none of the type.
    pub fn take<T: Value>(&mut self, key: &str) -> Result<Option<T>, ParameterError> {
        let Some(at) = self.left.iter().position(|(known, _)| *known == key) else {
            return Ok(None);
        };
        let value = self.left.remove(at).1.unwrap_or_default();
        value
            .parse()
            .map(Some)
            .map_err(|_| self.wrong(format!("{key}={value} is not {}", T::EXPECTED)))
    }

    /// The whole number of `key=`, which must be given.
    ///
    /// # Errors
    /// [`ParameterError::Malformed`] if it is missing or no whole number.
    pub fn need(&mut self, key: &str) -> Result<usize, ParameterError> {
        self.value(key)
    }

    /// The value of `key=`, which must be given.
    ///
    /// ```
    /// use codedgrad::codes::registry::{Family, Recipe};
    /// use codedgrad::codes::{Graph, ParameterError};
    /// let ring = Family {
    ///     name: "ring-graph",
    ///     examples: &["ring-graph:err=0.1"],
    ///     ..Family::new(|fields| {
    ///         let error_max = fields.value::<f64>("err")?;
    ///         Ok(Recipe::code(move |n| {
    ///             let edges: Vec<_> = (0..n as u32).map(|i| (i, (i + 1) % n as u32)).collect();
    ///             Graph::from_edges(n, &edges, error_max)
    ///         }))
    ///     })
    /// };
    /// assert_eq!(ring.spec("ring-graph:err=0.2")?.code(5)?.facts().error_max, 0.2);
    /// assert!(ring.spec("ring-graph").unwrap_err().to_string().contains("err= is missing"));
    /// # Ok::<(), ParameterError>(())
    /// ```
    ///
    /// # Errors
    /// [`ParameterError::Malformed`] if it is missing or none of the type.
    pub fn value<T: Value>(&mut self, key: &str) -> Result<T, ParameterError> {
        self.take(key)?.ok_or_else(|| self.wrong(format!("{key}= is missing")))
    }

    /// The seed of what is drawn: `seed=`, or 7.
    ///
    /// # Errors
    /// [`ParameterError::Malformed`] if it is no whole number.
    pub fn seed(&mut self) -> Result<u64, ParameterError> {
        Ok(self.take("seed")?.unwrap_or(SEED))
    }

    /// Whether `key` stands there without a value.
    pub fn flag(&mut self, key: &str) -> bool {
        let at = self.left.iter().position(|field| *field == (key, None));
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// The path that stands alone, without a key, once all other fields are taken; it may contain
    /// `=`.
    ///
    /// # Errors
    /// [`ParameterError::Malformed`] if there is none.
    pub fn path(&mut self) -> Result<String, ParameterError> {
        if self.left.is_empty() {
            return Err(self.wrong("the file is missing"));
        }
        Ok(match self.left.remove(0) {
            (path, None) => path.into(),
            (start, Some(rest)) => format!("{start}={rest}"),
        })
    }

    /// What is in a file that the text names.
    ///
    /// # Errors
    /// [`ParameterError::File`] if it is no regular file, too long, or no text.
    pub fn contents(path: &str) -> Result<String, ParameterError> {
        files::read_text(path.as_ref(), FILE_BYTES_MAX).map_err(within(path))
    }

    pub(crate) fn done(self) -> Result<(), ParameterError> {
        let Some((key, _)) = self.left.first() else { return Ok(()) };
        let family = self.text.split(':').next().unwrap_or(self.text);
        Err(self.wrong(format!("{key:?} is not a parameter of {family}")))
    }
}
