//! What a family of schemes is: its entry in a [`registry`](super::registry), which stands beside
//! its code.

mod fields;
mod recipe;

pub use fields::{Fields, Value};
pub(super) use recipe::within;
pub use recipe::{ClosedForm, Guarantee, Recipe, WaitsFor};

use super::ParameterError;
use std::fmt::Display;

/// What stands for a scheme where a policy chooses it: no family's name.
pub(crate) const AUTO: &str = "auto";

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
    /// What its users should know of it: plain one-round codes say nothing. Help, notes and the
    /// planner go by this; [`Registry::with`](super::registry::Registry::with) compares it with
    /// the examples.
    pub traits: Traits,
    /// Reads the parameters of a text.
    pub parse: fn(&mut Fields<'_>) -> Result<Recipe, ParameterError>,
    /// Which of its texts the planner tries; none if it tries none. Asked for two workers or more.
    pub spaces: Option<fn(&SearchLimits) -> Vec<Space>>,
}

/// What is true of all schemes of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Whether who computes what depends on how fast workers were: any of them must be able to
    /// read any sample.
    pub feedback: bool,
    /// Whether jobs may be complete rounds after their first.
    pub delay: bool,
    /// Whether it finds out workers that return wrong results.
    pub byzantine: bool,
    /// Whether a worker asks for its tasks one at a time: each costs a pull.
    pub pulls: bool,
    /// Whether its gradient is not that of the whole batch, on average.
    pub biased: bool,
    /// Whether its gradient may differ from that of the whole batch by an error that is bounded.
    pub approximate: bool,
    /// Whether workers compute on mixtures of data, instead of sending mixtures of gradients.
    pub mixes: bool,
}

impl Traits {
    /// What is true of plain one-round codes.
    pub const NONE: Self = Self {
        feedback: false,
        delay: false,
        byzantine: false,
        pulls: false,
        biased: false,
        approximate: false,
        mixes: false,
    };

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
    /// Parameters as they are written, such as `s=1`, in an order in which neighbours are alike;
    /// no axis at all is the family's name alone.
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
    pub fn cluster_stragglers(&self) -> impl Iterator<Item = usize> + use<> {
        let workers = self.workers;
        (1..workers).filter(move |stragglers| workers.is_multiple_of(stragglers + 1))
    }
}

/// 1, 2, 3, 4, 6, 8, 12, .. up to the limit.
#[must_use]
pub fn doublings(limit: usize) -> Vec<usize> {
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

    /// How it is written.
    #[must_use]
    pub fn example(&self) -> &'static str {
        self.examples.first().copied().unwrap_or(self.name)
    }

    /// Whether its texts name files, which are read when a text is parsed.
    ///
    /// ```
    /// use codedgrad::codes::registry::Registry;
    /// let family = |text: &str| Registry::builtin().family_of(text);
    /// assert!(family("matrix:b.csv")?.reads_files() && !family("groups:s=1")?.reads_files());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn reads_files(&self) -> bool {
        self.examples.iter().any(|text| text.contains("FILE"))
    }
}

/// Names as one says them: `queue, ring and defer`.
///
/// ```
/// use codedgrad::codes::registry::{Registry, listed};
/// let families = Registry::builtin().families().iter().filter(|family| family.traits.feedback);
/// assert_eq!(listed(families.map(|family| family.name)), "queue, ring and defer");
/// ```
pub fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => "none".into(),
    }
}

/// The name of the family that a text is of.
pub(crate) fn name_of(text: &str) -> &str {
    text.split(':').next().unwrap_or(text)
}
