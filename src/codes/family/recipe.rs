//! How a scheme is made, once its text is read.

#[cfg(feature = "berrut")]
use crate::codes::berrut::Mixture;
use crate::codes::sequential::{Horizon, OneRound, Scheme};
use crate::codes::{GradientCode, ParameterError};
use crate::ids::{Cut, Task};
use std::fmt;
use std::fmt::Display;
use std::sync::Arc;

type Make<From, To> = Box<dyn Fn(From) -> To + Send + Sync>;
/// Makes something for a number of workers.
type ForWorkers<T> = Make<usize, T>;
/// Says what kind of task one is, of so many workers, when its job is in its round of that number.
type Label = Box<dyn Fn(usize, Task, usize) -> String + Send + Sync>;

/// A scheme whose text is read, before its number of workers is known: what
/// [`Family::parse`](super::Family::parse) gives.
///
/// A one-round code is told by [`Recipe::code`], everything else by [`Recipe::scheme`]; the other
/// methods add what only some schemes have.
pub struct Recipe {
    source: Source,
    byzantine: usize,
    claim: Option<usize>,
    warning: Option<ForWorkers<Option<String>>>,
    closed_form: Option<ForWorkers<Option<ClosedForm>>>,
    next_step: Option<Arc<Self>>,
    guarantee: Option<ForWorkers<Guarantee>>,
    why_no_code: Option<&'static str>,
    label: Option<Label>,
    #[cfg(feature = "berrut")]
    mixture: Option<ForWorkers<Result<Mixture, ParameterError>>>,
}

enum Source {
    Code(ForWorkers<Result<Box<dyn GradientCode>, ParameterError>>),
    Scheme(Make<Horizon, Result<Box<dyn Scheme>, ParameterError>>),
}

/// What the planner's closed forms know of a scheme's rounds, over workers that are slow
/// independently of one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClosedForm {
    /// Whose answers a round waits for.
    pub waits_for: WaitsFor,
    /// Fraction of the batch that each worker computes.
    pub load: f64,
    /// Fraction of the batch in the gradient, on average.
    pub coverage: f64,
}

/// Which stragglers a scheme over rounds tolerates.
#[derive(Clone, Debug, PartialEq)]
pub struct Guarantee {
    /// Which, as in "it tolerates ..".
    pub words: String,
    /// The lower bound of the load of any scheme that does.
    pub least_load: f64,
}

/// Whose answers a round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The fastest member of each of so many groups of almost equal size.
    OneOfEach {
        /// Number of groups.
        groups: usize,
    },
    /// All workers but any so many.
    AllBut {
        /// Workers that are not waited for.
        stragglers: usize,
    },
}

impl Recipe {
    /// A one-round code, made for a number of workers.
    pub fn code<C: GradientCode + 'static>(
        make: impl Fn(usize) -> Result<C, ParameterError> + Send + Sync + 'static,
    ) -> Self {
        Self::of(Source::Code(Box::new(move |workers| Ok(Box::new(make(workers)?)))))
    }

    /// A one-round code of a file, which fits one number of workers.
    pub fn code_of_file<C: GradientCode + 'static>(
        path: String,
        make: impl Fn() -> Result<C, ParameterError> + Send + Sync + 'static,
    ) -> Self {
        Self::code(move |workers| {
            let code = make()?;
            let found = code.facts().workers;
            if found != workers {
                return Err(ParameterError::Workers { path: path.clone(), found, workers });
            }
            Ok(code)
        })
    }

    /// A scheme that is more than a one-round code, made for a horizon.
    pub fn scheme<S: Scheme + 'static>(
        make: impl Fn(Horizon) -> Result<S, ParameterError> + Send + Sync + 'static,
    ) -> Self {
        Self::of(Source::Scheme(Box::new(move |horizon| Ok(Box::new(make(horizon)?)))))
    }

    /// A scheme of mixtures of data, made for a number of workers.
    #[cfg(feature = "berrut")]
    pub fn mixture(
        make: impl Fn(usize) -> Result<Mixture, ParameterError> + Clone + Send + Sync + 'static,
        byzantine: usize,
    ) -> Self {
        let over = make.clone();
        let scheme = Self::scheme(move |horizon| over(horizon.workers)?.over(horizon, byzantine));
        Self { mixture: Some(Box::new(make)), ..scheme.byzantine(byzantine) }
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            byzantine: 0,
            claim: None,
            warning: None,
            closed_form: None,
            next_step: None,
            guarantee: None,
            why_no_code: None,
            label: None,
            #[cfg(feature = "berrut")]
            mixture: None,
        }
    }

    /// The same, finding out so many workers that return wrong results (of every group, where it
    /// votes).
    #[must_use]
    pub fn byzantine(mut self, workers: usize) -> Self {
        self.byzantine = workers;
        self
    }

    /// The same, whose text claims that any so many stragglers are tolerated: a claim that nothing
    /// proves, and that is therefore checked before a run. Codes that say what they tolerate by
    /// [`DenseCode::claiming`](crate::codes::DenseCode::claiming) claim it.
    #[must_use]
    pub fn claiming(mut self, stragglers: Option<usize>) -> Self {
        self.claim = stragglers;
        self
    }

    /// The same, with what its user should know before using it with a number of workers.
    #[must_use]
    pub fn warning(
        mut self,
        warning: impl Fn(usize) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.warning = Some(Box::new(warning));
        self
    }

    /// The same, with the closed form of its rounds' time for a number of workers, if there is one:
    /// the planner then tries it on short traces too.
    #[must_use]
    pub fn closed_form(
        mut self,
        form: impl Fn(usize) -> Option<ClosedForm> + Send + Sync + 'static,
    ) -> Self {
        self.closed_form = Some(Box::new(form));
        self
    }

    /// The same, with the stragglers over several rounds that it tolerates, for a number of
    /// workers.
    #[must_use]
    pub fn guarantee(
        mut self,
        guarantee: impl Fn(usize) -> Guarantee + Send + Sync + 'static,
    ) -> Self {
        self.guarantee = Some(Box::new(guarantee));
        self
    }

    /// The same, with the scheme of which late units count for the next step.
    #[must_use]
    pub fn deferring_to_next_step(mut self, other: Self) -> Self {
        self.next_step = Some(Arc::new(other));
        self
    }

    /// The same, with the letters that a picture of rounds tells its kinds of tasks by, given the
    /// number of workers, the task, and in which of its rounds its job is (from 0). Else it is `n`.
    #[must_use]
    pub fn label(
        mut self,
        label: impl Fn(usize, Task, usize) -> String + Send + Sync + 'static,
    ) -> Self {
        self.label = Some(Box::new(label));
        self
    }

    /// The same, with the reason why there is no matrix to show, where it is not that the scheme
    /// is over rounds or with feedback.
    #[must_use]
    pub fn without_matrix(mut self, why: &'static str) -> Self {
        self.why_no_code = Some(why);
        self
    }
}

/// What a [`SchemeSpec`](crate::codes::SchemeSpec) asks; `text` is for errors.
impl Recipe {
    pub(in crate::codes) fn make_code(
        &self,
        text: &str,
        workers: usize,
    ) -> Result<Box<dyn GradientCode>, ParameterError> {
        match (&self.source, self.why_no_code) {
            (Source::Code(make), _) => make(workers),
            (_, Some(why)) => Err(ParameterError::NoMatrix { text: text.into(), why }),
            (_, None) => Err(ParameterError::NotOneRound { text: text.into() }),
        }
    }

    pub(in crate::codes) fn make_scheme(
        &self,
        horizon: Horizon,
    ) -> Result<Box<dyn Scheme>, ParameterError> {
        match &self.source {
            Source::Scheme(make) => make(horizon),
            Source::Code(make) => {
                let code = make(horizon.workers)?;
                let shares = code.facts().shares() as u32;
                let cut = Cut::new(horizon.units.unwrap_or(shares), shares)?;
                Ok(Box::new(OneRound::new(code, cut, horizon.jobs)))
            }
        }
    }

    #[cfg(feature = "berrut")]
    pub(in crate::codes) fn make_mixture(
        &self,
        workers: usize,
    ) -> Result<Option<Mixture>, ParameterError> {
        self.mixture.as_ref().map(|make| make(workers)).transpose()
    }

    /// How many Byzantine workers it finds out.
    pub(in crate::codes) fn finds_wrong(&self) -> usize {
        self.byzantine
    }

    /// Whether it is a code of one round.
    pub(in crate::codes) fn is_one_round(&self) -> bool {
        matches!(self.source, Source::Code(_))
    }

    /// Stragglers that its text claims to be tolerated, where nothing proves it.
    pub(in crate::codes) fn claimed(&self) -> Option<usize> {
        self.claim
    }

    pub(in crate::codes) fn warns(&self, workers: usize) -> Option<String> {
        self.warning.as_ref()?(workers)
    }

    pub(in crate::codes) fn form(&self, workers: usize) -> Option<ClosedForm> {
        self.closed_form.as_ref()?(workers)
    }

    pub(in crate::codes) fn guarantees(&self, workers: usize) -> Option<Guarantee> {
        self.guarantee.as_ref().map(|guarantee| guarantee(workers))
    }

    /// What a task is called in a picture of rounds: its kind and its job, counted from 1.
    pub(in crate::codes) fn name_of(&self, workers: usize, task: Task, age: usize) -> String {
        let kind =
            self.label.as_ref().map_or_else(|| "n".into(), |label| label(workers, task, age));
        format!("{kind}.{}", task.job.0 + 1)
    }

    /// What it is when late units count for the next step.
    pub(in crate::codes) fn next_step(&self) -> Option<&Arc<Self>> {
        self.next_step.as_ref()
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipe").field("byzantine", &self.byzantine).finish_non_exhaustive()
    }
}

/// Names the file in an error about what is in it.
pub(in crate::codes) fn within<E: Display>(path: &str) -> impl Fn(E) -> ParameterError {
    move |error| ParameterError::File { path: path.into(), problem: error.to_string() }
}
