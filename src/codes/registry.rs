//! The families of schemes that there are: what each is called, how its texts are read, what the
//! planner may try of it.
//!
//! A [`Family`] stands beside the code or scheme that it makes; [`Registry::builtin`] is the list
//! of ours. Scheme texts, "did you mean", help texts, the planner's families and the table in
//! `docs/schemes.md` are all read off a registry, so that a family of one's own takes part
//! everywhere once it is in one:
//!
//! ```
//! use codedgrad::codes::{Groups, registry::{Family, Recipe, Registry, Space, keyed}};
//! // Groups by another name: workers compute the whole batch in `r` replicas.
//! const REPLICAS: Family = Family {
//!     name: "replicas",
//!     examples: &["replicas:r=2"],
//!     summary: "every sample is computed by r workers or more",
//!     spaces: Some(|limits| vec![Space::of([keyed("r", 2..=limits.workers)])]),
//!     ..Family::new(|fields| {
//!         let replicas = fields.need("r")?;
//!         Ok(Recipe::code(move |workers| Groups::tolerating(workers, replicas.saturating_sub(1))))
//!     })
//! };
//! let registry = Registry::default().with(REPLICAS)?;
//! let spec = registry.parse("replicas:r=3")?;
//! assert_eq!(spec.code(6)?.facts().tolerance, 2);
//! assert!(registry.parse("replica:r=3").unwrap_err().to_string().contains("did you mean"));
//! # Ok::<(), codedgrad::codes::ParameterError>(())
//! ```

pub use super::family::{
    ClosedForm, Family, Fields, Guarantee, Recipe, SearchLimits, Space, Traits, Value, WaitsFor,
    doublings, keyed, listed,
};

use super::family::{AUTO, name_of};
use super::{ParameterError, SchemeSpec};
use crate::spelling::near;
use std::str::FromStr;
use std::sync::LazyLock;

/// Ours, in the order in which they are listed.
const BUILTIN: &[Family] = &[
    super::groups::UNCODED,
    super::groups::FAMILY,
    super::min_load::FAMILY,
    super::interval::FAMILY,
    super::cyclic::FAMILY,
    super::graph::FAMILY,
    super::drop_slowest::FAMILY,
    super::dense::FAMILY,
    super::feedback::queue::FAMILY,
    super::feedback::ring::FAMILY,
    super::feedback::defer::FAMILY,
    super::sequential::sr_sgc::FAMILY,
    super::sequential::m_sgc::FAMILY,
    super::vote::FAMILY,
    super::mixtures::PLAIN,
    super::mixtures::SECURED,
];

/// The families that a program knows.
#[derive(Clone, Debug)]
pub struct Registry {
    families: Vec<Family>,
}

impl Default for Registry {
    /// All of ours.
    fn default() -> Self {
        Self { families: BUILTIN.to_vec() }
    }
}

impl Registry {
    /// All of ours: what [`SchemeSpec`]'s `FromStr` knows.
    ///
    /// ```
    /// use codedgrad::codes::registry::Registry;
    /// let byzantine = Registry::builtin().families().iter().filter(|f| f.traits.byzantine);
    /// assert_eq!(byzantine.map(|family| family.name).collect::<Vec<_>>(), ["vote", "sbacc"]);
    /// ```
    #[must_use]
    pub fn builtin() -> &'static Self {
        static BUILTIN: LazyLock<Registry> = LazyLock::new(Registry::default);
        &BUILTIN
    }

    /// The same with one family more.
    ///
    /// # Errors
    /// [`ParameterError::Family`] if its name is taken or none, or an example is not of it or has
    /// other traits; what its own parser says of its examples.
    ///
    /// ```
    /// use codedgrad::codes::registry::Registry;
    /// let again = Registry::builtin().families()[1];
    /// let error = Registry::default().with(again).unwrap_err();
    /// assert_eq!(error.to_string(), "the family \"groups\" is registered already");
    /// ```
    pub fn with(mut self, family: Family) -> Result<Self, ParameterError> {
        let Family { name, .. } = family;
        let wrong = |problem| Err(ParameterError::Family { name, problem });
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(letters) || name.starts_with('-') || name == AUTO {
            return wrong("has a name that no scheme's text can begin with (a-z, 0-9 and -)");
        }
        if self.family(name).is_some() {
            return wrong("is registered already");
        }
        if family.examples.is_empty() || family.examples.iter().any(|text| name_of(text) != name) {
            return wrong("needs examples, all of which begin with its name");
        }
        // Files of its users' are not there.
        for text in family.examples.iter().filter(|text| !text.contains("FILE")) {
            let spec = family.spec(text)?;
            if spec.is_one_round() != family.traits.one_round() {
                return wrong(
                    "has traits that are not those of its example: its recipe is of the \
                    other kind, a one-round code or a scheme",
                );
            }
            if (spec.byzantine() > 0) != family.traits.byzantine {
                return wrong("has traits that are not those of its example: `byzantine`");
            }
        }
        self.families.push(family);
        Ok(self)
    }

    /// The families, in the order in which they are listed.
    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The family of this name.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// Texts of all families, as examples of how they are written.
    ///
    /// ```
    /// use codedgrad::codes::registry::Registry;
    /// assert_eq!(Registry::builtin().examples().next(), Some("uncoded"));
    /// ```
    pub fn examples(&self) -> impl Iterator<Item = &'static str> {
        self.families.iter().flat_map(|family| family.examples).copied()
    }

    /// The scheme of a text.
    ///
    /// # Errors
    /// [`ParameterError`] that says what is wrong with the text, and what it may have meant.
    pub fn parse(&self, text: &str) -> Result<SchemeSpec, ParameterError> {
        self.family_of(text)?.spec(text)
    }

    /// The family that a text is of, whatever its parameters are.
    ///
    /// # Errors
    /// [`ParameterError::UnknownScheme`] if there is none.
    ///
    /// ```
    /// use codedgrad::codes::registry::Registry;
    /// assert_eq!(Registry::builtin().family_of("matrix:not-there.csv")?.name, "matrix");
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn family_of(&self, text: &str) -> Result<&Family, ParameterError> {
        let name = name_of(text);
        if let Some(family) = self.family(name) {
            return Ok(family);
        }
        // Of `groups s=1`, too, the first word says what is meant.
        let in_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let word = name.trim().split(|c| !in_name(c)).next().unwrap_or(name);
        let nearest = near(word, self.families.iter().map(|family| family.name));
        let nearest = nearest.and_then(|name| self.family(name)).map(Family::example);
        let known = self.families.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
        Err(ParameterError::UnknownScheme { name: name.into(), known, nearest })
    }
}

/// Knows the families of [`Registry::builtin`].
impl FromStr for SchemeSpec {
    type Err = ParameterError;

    fn from_str(text: &str) -> Result<Self, ParameterError> {
        Registry::builtin().parse(text)
    }
}

impl TryFrom<&str> for SchemeSpec {
    type Error = ParameterError;

    fn try_from(text: &str) -> Result<Self, ParameterError> {
        text.parse()
    }
}

impl TryFrom<String> for SchemeSpec {
    type Error = ParameterError;

    fn try_from(text: String) -> Result<Self, ParameterError> {
        text.parse()
    }
}
