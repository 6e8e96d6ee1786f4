//! Scheme texts such as `groups:s=3`: the same everywhere, on the command line and in records.

#[cfg(feature = "berrut")]
use super::berrut::Mixture;
use super::family::{ClosedForm, Family, Fields, Guarantee, Recipe, Traits, name_of};
use super::sequential::{Accept, Horizon, Scheme, SchemeFacts};
use super::{FailedSet, GateError, GradientCode, ParameterError, groups, verify};
use crate::ids::{Job, Task, Worker};
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A scheme as its user writes it, parameters not yet checked against a number of workers. Files
/// that the text names are read when it is parsed. Equal are those of equal texts.
///
/// `FromStr` knows the families of [`Registry::builtin`]; those of one's own are read by
/// [`Registry::parse`].
///
/// [`Registry::builtin`]: super::registry::Registry::builtin
/// [`Registry::parse`]: super::registry::Registry::parse
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// let spec: SchemeSpec = "groups:s=1".parse()?;
/// assert_eq!(spec.to_string(), "groups:s=1");
/// assert!("gruops:s=1".parse::<SchemeSpec>().unwrap_err().to_string().contains("groups"));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SchemeSpec {
    text: String,
    traits: Traits,
    recipe: Arc<Recipe>,
    /// Late units of `defer` count for the next step.
    next_step: bool,
}

/// As a text.
impl Serialize for SchemeSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// A scheme is the text that names it.
impl PartialEq<&str> for SchemeSpec {
    fn eq(&self, text: &&str) -> bool {
        self.text == *text
    }
}

impl PartialEq for SchemeSpec {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.next_step) == (&other.text, other.next_step)
    }
}

impl SchemeSpec {
    /// A text that has been read.
    pub(super) fn made(text: &str, traits: Traits, recipe: Recipe) -> Self {
        Self { text: text.into(), traits, recipe: Arc::new(recipe), next_step: false }
    }

    /// The scheme that waits for all workers.
    ///
    /// ```
    /// assert_eq!(codedgrad::codes::SchemeSpec::uncoded().to_string(), "uncoded");
    /// ```
    #[must_use]
    pub fn uncoded() -> Self {
        Self::made("uncoded", Traits::NONE, groups::uncoded())
    }

    /// The name of its family: the text before the colon.
    ///
    /// ```
    /// let spec: codedgrad::codes::SchemeSpec = "groups:s=1".parse()?;
    /// assert_eq!(spec.family(), "groups");
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn family(&self) -> &str {
        name_of(&self.text)
    }

    /// The text as it was written.
    ///
    /// ```
    /// assert_eq!(codedgrad::codes::SchemeSpec::uncoded().text(), "uncoded");
    /// ```
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is true of all schemes of its family.
    ///
    /// ```
    /// let spec: codedgrad::codes::SchemeSpec = "queue:m=4".parse()?;
    /// assert!(spec.traits().feedback && !spec.traits().delay);
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn traits(&self) -> Traits {
        self.traits
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
        self.recipe.make_code(&self.text, workers)
    }

    /// What its user should know before using it with so many workers, if anything.
    ///
    /// ```
    /// let spec: codedgrad::codes::SchemeSpec = "cyclic:s=7".parse()?;
    /// assert!(spec.warning(64).unwrap().contains("min-load:s=7"));
    /// assert!(spec.warning(16).is_none());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn warning(&self, workers: usize) -> Option<String> {
        self.recipe.warns(workers)
    }

    /// Whether a matrix tolerates the stragglers that its text claims (`matrix:FILE,s=2`): all sets
    /// of so many are tried where they are few, else a tenth of those that
    /// [`verify`](super::verify()) tries. Everything else claims nothing but what is proven.
    ///
    /// # Errors
    /// [`ParameterError::Claim`] with stragglers that it does not tolerate;
    /// [`ParameterError::Defect`] where its decoder is wrong; whatever [`SchemeSpec::code`]
    /// refuses.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(file.path(), "1,0\n0,1\n1,1\n")?;
    /// let claiming = |stragglers: usize| {
    ///     let text = format!("matrix:{},s={stragglers}", file.path().display());
    ///     text.parse::<SchemeSpec>()?.check_claim(3)
    /// };
    /// assert!(claiming(1).is_ok());
    /// assert!(claiming(2).unwrap_err().to_string().contains("without workers 0, 2"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn check_claim(&self, workers: usize) -> Result<(), ParameterError> {
        let Some(claimed) = self.recipe.claimed() else { return Ok(()) };
        let code = self.code(workers)?;
        let Some(FailedSet { stragglers, refusal, .. }) = verify::refuted(&*code) else {
            return Ok(());
        };
        let text = self.text.clone();
        let stragglers = stragglers.iter().map(Worker::index).collect();
        Err(match refusal {
            Some(GateError::Defect(defect)) => ParameterError::Defect { text, stragglers, defect },
            _ => ParameterError::Claim { text, claimed, stragglers },
        })
    }

    /// How many Byzantine workers it finds out; of every group, where it votes.
    ///
    /// ```
    /// let wrong =
    ///     |text: &str| text.parse::<codedgrad::codes::SchemeSpec>().map(|spec| spec.byzantine());
    /// assert_eq!(
    ///     (wrong("sbacc:K=4,byzantine=2")?, wrong("vote:s=0,b=1")?, wrong("groups:s=2")?),
    ///     (2, 1, 0)
    /// );
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn byzantine(&self) -> usize {
        self.recipe.finds_wrong()
    }

    /// Stragglers that its text claims to be tolerated, where nothing proves it.
    ///
    /// ```
    /// let spec: codedgrad::codes::SchemeSpec = "groups:s=1".parse()?;
    /// assert_eq!(spec.claimed(), None, "that is proven");
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn claimed(&self) -> Option<usize> {
        self.recipe.claimed()
    }

    /// Which stragglers over several rounds it tolerates, where it is made for such.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let spec: SchemeSpec = "m-sgc:B=1,W=2,lambda=27".parse()?;
    /// let guarantee = spec.guarantee(256).unwrap();
    /// assert!((guarantee.least_load - 0.004124).abs() < 1e-6);
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn guarantee(&self, workers: usize) -> Option<Guarantee> {
        self.recipe.guarantees(workers)
    }

    /// Whether it is a code of one round.
    pub(super) fn is_one_round(&self) -> bool {
        self.recipe.is_one_round()
    }

    /// The closed form of its rounds' time, if there is one.
    pub(crate) fn closed_form(&self, workers: usize) -> Option<ClosedForm> {
        self.recipe.form(workers)
    }

    /// The code of mixtures that this text names, if it does.
    ///
    /// # Errors
    /// [`ParameterError`] when the parameters are outside its conditions.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// assert_eq!("bacc:K=4".parse::<SchemeSpec>()?.mixture(12)?.unwrap().code().blocks(), 4);
    /// assert!(SchemeSpec::uncoded().mixture(12)?.is_none());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[cfg(feature = "berrut")]
    pub fn mixture(&self, workers: usize) -> Result<Option<Mixture>, ParameterError> {
        self.recipe.make_mixture(workers)
    }

    /// The same for late units that count for the next step, where there are such: in `defer`.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let spec: SchemeSpec = "defer:T=1,cap=2,cut=2".parse()?;
    /// assert_eq!(spec.deferring_to_next_step().unwrap().scheme(8, 16, 0..9)?.facts().delay, 0);
    /// assert!(SchemeSpec::uncoded().deferring_to_next_step().is_none());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn deferring_to_next_step(self) -> Option<Self> {
        let recipe = Arc::clone(self.recipe.next_step()?);
        Some(Self { recipe, next_step: true, ..self })
    }

    /// The scheme of this text over `jobs`, each a batch of `units` units.
    ///
    /// # Errors
    /// [`ParameterError`] when the parameters are outside the code's conditions or the batch has
    /// fewer units than the code has shares.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let spec: SchemeSpec = "groups:s=1".parse()?;
    /// assert_eq!(spec.scheme(8, 8, 0..100)?.facts().delay, 0);
    /// assert!(spec.scheme(8, 3, 0..100).is_err());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn scheme(
        &self,
        workers: usize,
        units: u32,
        jobs: Range<u64>,
    ) -> Result<Box<dyn Scheme>, ParameterError> {
        let jobs = Job(jobs.start)..Job(jobs.end);
        self.over(Horizon { workers, units: Some(units), jobs, accept: Accept::Lookahead })
    }

    /// What a task is called in a picture of rounds, when its job is in its `age`-th round (from
    /// 0); jobs are counted from 1 there.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// use codedgrad::ids::{Job, Task};
    /// let spec: SchemeSpec = "sr-sgc:B=1,W=2,lambda=4".parse()?;
    /// let task = Task { job: Job(6), piece: 3, plan: 0 };
    /// assert_eq!([0, 1].map(|age| spec.label(8, task, age)), ["n.7", "R.7"]);
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn label(&self, workers: usize, task: Task, age: usize) -> String {
        self.recipe.name_of(workers, task, age)
    }

    /// What is fixed about the scheme where it cuts batches as it likes best.
    ///
    /// # Errors
    /// As [`SchemeSpec::scheme`].
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let facts = "queue:m=3".parse::<SchemeSpec>()?.natural(4)?;
    /// assert_eq!((facts.units, facts.partial, facts.mixture), (12, true, false));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn natural(&self, workers: usize) -> Result<SchemeFacts, ParameterError> {
        let (jobs, accept) = (Job(0)..Job(0), Accept::Lookahead);
        Ok(self.over(Horizon { workers, units: None, jobs, accept })?.facts().clone())
    }

    /// The scheme of this text over a horizon.
    ///
    /// # Errors
    /// As [`SchemeSpec::scheme`].
    ///
    /// ```
    /// use codedgrad::codes::{
    ///     SchemeSpec,
    ///     sequential::{Accept, Horizon},
    /// };
    /// use codedgrad::ids::Job;
    /// let spec: SchemeSpec = "m-sgc:B=1,W=2,lambda=4".parse()?;
    /// let scheme = spec.over(Horizon {
    ///     workers: 8,
    ///     units: None,
    ///     jobs: Job(0)..Job(9),
    ///     accept: Accept::Model,
    /// })?;
    /// assert_eq!((scheme.facts().delay, scheme.facts().units), (1, 48));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn over(&self, horizon: Horizon) -> Result<Box<dyn Scheme>, ParameterError> {
        self.recipe.make_scheme(horizon)
    }
}

impl fmt::Display for SchemeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Family {
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
}

#[cfg(test)]
mod tests;
