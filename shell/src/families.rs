//! The schemes that this program knows, and what is said of them.

use crate::failure::{Failure, OrInput};
use anyhow::anyhow;
use codedgrad::codes::registry::{Family, Registry, listed};
use codedgrad::codes::sequential::Scheme;
use codedgrad::codes::{ParameterError, SchemeSpec};
use codedgrad::run::{ConfigError, Jobs, Shape};
use codedgrad::train::{Auto, AutoSteps};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

/// Those of `main_with`, for all of this process.
static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// The families that this program knows.
pub fn registry() -> &'static Registry {
    REGISTRY.get().unwrap_or_else(|| Registry::builtin())
}

/// From now on this program knows these families, unless it was told already.
pub fn set(registry: Registry) {
    let _ = REGISTRY.set(registry);
}

/// The scheme of a text.
pub fn scheme(text: &str) -> Result<SchemeSpec, ParameterError> {
    registry().parse(text)
}

/// What a run is to be computed under. Its text is read once, where it comes in, since reading it
/// may open the files that it names.
#[derive(Clone, Debug, PartialEq)]
pub enum RunScheme {
    /// Chosen while the run goes on.
    Auto(AutoSteps, String),
    /// Always the same.
    Fixed(SchemeSpec),
}

impl RunScheme {
    /// The scheme of a text, or `auto` with its parameters.
    pub fn parse(text: &str) -> Result<Self, ParameterError> {
        match AutoSteps::parse(text)? {
            Some(steps) => Ok(Self::Auto(steps, text.into())),
            None => scheme(text).map(Self::Fixed),
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        match self {
            Self::Auto(_, text) => text,
            Self::Fixed(spec) => spec.text(),
        }
    }

    /// What chooses the scheme while the run goes on, if something does.
    pub fn auto(&self) -> Option<Auto> {
        match self {
            Self::Auto(steps, _) => Some(steps.auto().registry(registry().clone())),
            Self::Fixed(_) => None,
        }
    }

    /// The scheme with which a run begins: uncoded where another is chosen later.
    pub fn first(&self) -> SchemeSpec {
        self.fixed().cloned().unwrap_or_else(SchemeSpec::uncoded)
    }

    /// The scheme, unless one is chosen later.
    pub fn fixed(&self) -> Option<&SchemeSpec> {
        match self {
            Self::Auto(..) => None,
            Self::Fixed(spec) => Some(spec),
        }
    }
}

impl fmt::Display for RunScheme {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.text())
    }
}

/// As a text.
impl Serialize for RunScheme {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

impl<'de> Deserialize<'de> for RunScheme {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// The scheme of a text that a record has, unless that names a file: who has written the record
/// would say what is opened here.
pub fn scheme_of_record(text: &str) -> Option<SchemeSpec> {
    let family = registry().family_of(text).ok()?;
    if family.reads_files() { None } else { scheme(text).ok() }
}

/// Refuses the scheme of a run that another program began, with a family that this one lacks.
pub fn check_known(text: &str, plan: &Path, program: Option<&str>) -> Result<(), Failure> {
    let found = registry().family_of(text);
    let Some(ParameterError::UnknownScheme { name, nearest, .. }) = found.err() else {
        return Ok(());
    };
    // What is wrong with its numbers is said where it is read.
    if !matches!(AutoSteps::parse(text), Ok(None)) {
        return Ok(());
    }
    let program = program.map_or(String::new(), |program| format!(", {program}"));
    let meant = nearest.map_or(String::new(), |text| format!("; or did you mean {text:?}?"));
    Err(Failure::Input(anyhow!(
        "{} trains with {text}, and this program knows no family {name:?}: go on with the program \
         that began the run{program}{meant}",
        plan.display()
    )))
}

/// The scheme of a run of this shape over some jobs; what does not fit is refused by its flag.
pub fn shaped(
    text: &str,
    spec: &SchemeSpec,
    shape: Shape,
    jobs: &Jobs,
    over: Range<u64>,
) -> Result<Box<dyn Scheme>, Failure> {
    let Shape { workers, units, .. } = shape;
    let natural = spec.natural(workers).or_input()?;
    let scheme = spec.scheme(workers, units, over).map_err(|error| {
        let context = format!(
            "{text} with {workers} workers needs --micro-batches {} or more",
            natural.units
        );
        Failure::Input(anyhow::Error::new(error).context(context))
    })?;
    jobs.check(scheme.facts().delay).map_err(|error| {
        let flags = match error {
            ConfigError::TooFewModels { rounds, .. } => {
                format!("{text} needs --models {rounds} or more, or --accumulate 8")
            }
            _ => text.to_owned(),
        };
        Failure::Input(anyhow::Error::new(error).context(flags))
    })?;
    Ok(scheme)
}

/// Says so where a batch has fewer units than a scheme cuts it into.
pub fn uneven(text: &str, natural: u32, units: u32) -> Option<String> {
    (units < natural).then(|| {
        format!(
            "warning: {text} cuts a batch into {natural} parts; {units} micro-batches make its \
             loads uneven (--micro-batches {natural})"
        )
    })
}

/// Whether a scheme puts what is late off, to its own step or to the next.
pub fn defers(spec: &SchemeSpec) -> bool {
    spec.clone().deferring_to_next_step().is_some()
}

/// The families of which something is true.
fn those(which: impl Fn(&Family) -> bool) -> impl Iterator<Item = &'static Family> {
    registry().families().iter().filter(move |family| which(family))
}

/// How schemes are written of which something is true: `groups:s=1 | min-load:s=2`.
pub fn forms(which: impl Fn(&Family) -> bool) -> String {
    let texts: Vec<&str> = those(which).flat_map(|family| family.examples).copied().collect();
    texts.join(" | ")
}

/// How all schemes are written, by what they need of a run: a paragraph of a help text.
pub fn all_forms() -> String {
    let one_round = forms(|family| family.traits.one_round());
    let others = [
        ("with feedback", forms(|family| family.traits.feedback && !family.traits.delay)),
        ("over several rounds", forms(|family| family.traits.delay)),
        ("against Byzantine workers", forms(|family| family.traits.byzantine)),
        ("on mixtures of data", forms(|family| family.traits.mixes && !family.traits.byzantine)),
    ];
    let others = others.iter().map(|(what, forms)| format!("; {what}: {forms}"));
    format!("{one_round}{}", others.collect::<String>())
}

/// What the schemes do of which something is true, one line of a help text each.
pub fn summaries(which: impl Fn(&Family) -> bool) -> String {
    let line =
        |family: &Family| format!("  {} - {}\n", family.examples.join(" | "), family.summary);
    those(which).map(line).collect()
}

/// The help of `--dispatch`, which costs a worker that asks for tasks one by one.
pub fn dispatch_help() -> String {
    let pulling = names(|family| family.traits.pulls);
    format!(
        "Seconds that pulling one task within a round costs ({pulling}) [default: 0; serverless \
         presets: 0.63]"
    )
}

/// The names of the families whose gradients are not the whole batch's, of those that are tried.
pub fn inexact() -> String {
    names(|family| family.spaces.is_some() && (family.traits.approximate || family.traits.biased))
}

fn names(which: impl Fn(&Family) -> bool) -> String {
    listed(those(which).map(|family| family.name))
}
