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
//! // Everybody computes the whole batch in so many replicas: groups by another name.
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

mod fields;
mod recipe;

pub use fields::{Fields, Value};
pub(super) use recipe::within;
pub use recipe::{ClosedForm, Recipe, WaitsFor};

use super::{
    ParameterError, SchemeSpec, cyclic, dense, drop_slowest, feedback, graph, groups, interval,
    min_load, mixtures, sequential, vote,
};
use crate::spelling::near;
use std::fmt::Display;
use std::sync::LazyLock;

/// Ours, in the order in which they are listed.
const BUILTIN: [Family; 16] = [
    groups::UNCODED,
    groups::FAMILY,
    min_load::FAMILY,
    interval::FAMILY,
    cyclic::FAMILY,
    graph::FAMILY,
    drop_slowest::FAMILY,
    dense::FAMILY,
    feedback::queue::FAMILY,
    feedback::ring::FAMILY,
    feedback::defer::FAMILY,
    sequential::sr_sgc::FAMILY,
    sequential::m_sgc::FAMILY,
    vote::FAMILY,
    mixtures::PLAIN,
    mixtures::SECURED,
];

/// Schemes that are written and made alike: everything before the colon of a scheme's text.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name in scheme texts.
    pub name: &'static str,
    /// Texts that show how it is written, the simplest first; `FILE` stands for a file of the
    /// user's.
    pub examples: &'static [&'static str],
    /// What it does, in a line.
    pub summary: &'static str,
    /// What its users should know of it.
    pub traits: Traits,
    /// Reads the parameters of a text.
    pub parse: fn(&mut Fields<'_>) -> Result<Recipe, ParameterError>,
    /// Which of its texts the planner tries; none if it tries none.
    pub spaces: Option<fn(&SearchLimits) -> Vec<Space>>,
}

/// What is true of all schemes of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// Whether who computes what depends on how fast workers were: any of them must be able to
    /// read any sample.
    pub feedback: bool,
    /// Whether jobs may be complete rounds after their first.
    pub delay: bool,
    /// Whether it finds out workers that return wrong results.
    pub byzantine: bool,
    /// Whether its gradient is not that of the whole batch, on average.
    pub biased: bool,
    /// Whether workers compute on mixtures of data, instead of sending mixtures of gradients.
    pub mixes: bool,
}

impl Traits {
    /// What is true of plain one-round codes.
    pub const NONE: Self =
        Self { feedback: false, delay: false, byzantine: false, biased: false, mixes: false };

    /// Whether such a scheme is a code of one round, told by a matrix.
    #[must_use]
    pub fn one_round(&self) -> bool {
        let Self { feedback, delay, byzantine, mixes, .. } = *self;
        !(feedback || delay || byzantine || mixes)
    }
}

/// Between which limits the planner looks for parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchLimits {
    /// Number of workers.
    pub workers: usize,
    /// Rounds a job may be late.
    pub max_delay: usize,
    /// Micro-batches in a worker's share of a round.
    pub cut: usize,
    /// Rounds in a step.
    pub accumulate: usize,
}

/// Texts of a family, as the planner walks them: one point on each axis, joined by commas. Texts
/// that are no scheme are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Parameters as they are written, such as `s=1`, in an order in which neighbours are alike.
    pub axes: Vec<Vec<String>>,
    /// Whether its rounds are held open until a deadline, of which the planner tries several.
    pub deadline: bool,
}

/// An axis of a parameter's values: `keyed("s", 1..3)` is `s=1`, `s=2`.
pub fn keyed<T: Display>(key: &str, values: impl IntoIterator<Item = T>) -> Vec<String> {
    values.into_iter().map(|value| format!("{key}={value}")).collect()
}

impl Space {
    /// The texts of these axes.
    #[must_use]
    pub fn of(axes: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { axes: axes.into_iter().collect(), deadline: false }
    }

    /// The same of a scheme whose rounds are held open until a deadline.
    #[must_use]
    pub fn with_deadline(axes: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { deadline: true, ..Self::of(axes) }
    }
}

impl SearchLimits {
    /// Sizes of clusters into which the workers can be divided, less one: stragglers that a cluster
    /// takes.
    pub(super) fn cluster_stragglers(&self) -> impl Iterator<Item = usize> + use<> {
        let workers = self.workers;
        (1..workers).filter(move |stragglers| workers.is_multiple_of(stragglers + 1))
    }
}

/// 1, 2, 3, 4, 6, 8, 12, .. up to the limit.
pub(super) fn doublings(limit: usize) -> Vec<usize> {
    let mut values: Vec<usize> =
        (0..usize::BITS - 2).flat_map(|power| [1 << power, 3 << power]).collect();
    values.retain(|value| (1..=limit).contains(value));
    values.sort_unstable();
    values.dedup();
    values
}

impl Family {
    /// A family without a name yet, whose texts are read so; everything else is told field by
    /// field.
    #[must_use]
    pub const fn new(parse: fn(&mut Fields<'_>) -> Result<Recipe, ParameterError>) -> Self {
        Self { name: "", examples: &[], summary: "", traits: Traits::NONE, parse, spaces: None }
    }

    /// The scheme of a text that begins with the family's name.
    ///
    /// # Errors
    /// [`ParameterError`] that says what is wrong with the text.
    pub fn spec(&self, text: &str) -> Result<SchemeSpec, ParameterError> {
        let mut fields = Fields::read(text, self.example())?;
        let recipe = (self.parse)(&mut fields)?;
        fields.done()?;
        Ok(SchemeSpec::made(text, self.traits, recipe))
    }

    /// How it is written.
    #[must_use]
    pub fn example(&self) -> &'static str {
        self.examples.first().copied().unwrap_or(self.name)
    }
}

/// The names of families as one says them: `queue, ring and defer`.
///
/// ```
/// use codedgrad::codes::registry::{Registry, listed};
/// let families = Registry::builtin().families().iter();
/// assert_eq!(listed(families.filter(|family| family.traits.feedback)), "queue, ring and defer");
/// ```
pub fn listed<'a>(families: impl IntoIterator<Item = &'a Family>) -> String {
    let names: Vec<&str> = families.into_iter().map(|family| family.name).collect();
    match names.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => "none".into(),
    }
}

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
    /// [`ParameterError::Family`] if its name is taken or none, or an example is not of it.
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
        if name.is_empty() || name.contains([':', ',', '=', ' ']) || name == "auto" {
            return wrong("has a name that no scheme's text can begin with");
        }
        if self.family(name).is_some() {
            return wrong("is registered already");
        }
        if family.examples.is_empty() || family.examples.iter().any(|text| name_of(text) != name) {
            return wrong("needs examples, all of which begin with its name");
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
        let name = name_of(text);
        if let Some(family) = self.family(name) {
            return family.spec(text);
        }
        let nearest = near(name, self.families.iter().map(|family| family.name));
        let nearest = nearest.and_then(|name| self.family(name)).map(Family::example);
        let known = self.examples().collect::<Vec<_>>().join(", ");
        Err(ParameterError::UnknownScheme { name: name.into(), known, nearest })
    }
}

/// The name of the family that a text is of.
pub(super) fn name_of(text: &str) -> &str {
    text.split(':').next().unwrap_or(text)
}
