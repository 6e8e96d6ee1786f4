//! Scheme texts such as `groups:s=3`: the same everywhere, on the command line and in records.

mod fields;

#[cfg(feature = "berrut")]
use super::berrut::{Mixture, MixtureParameters, Points};
use super::feedback::{Defer, DeferParameters, Queue, Ring};
use super::sequential::{
    Accept, Horizon, Lift, MSgc, MSgcParameters, Scheme, SchemeFacts, SlotKind, SrSgc,
    SrSgcParameters,
};
use super::{
    Cyclic, DenseCode, DropSlowest, GradientCode, Graph, Groups, Interval, MinLoad, ParameterError,
    Vote, table, verify,
};
use crate::ids::{Cut, Job, Worker};
use crate::spelling::near;
use fields::Fields;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Seed of whatever is drawn, unless another is given.
const SEED: u64 = 7;
/// Error bound of graph codes, unless another is given.
const ERROR_MAX: f64 = 0.01;
/// Up to so many workers a random cyclic code is the best of several.
const CHOSEN_WORKERS_MAX: usize = 12;
/// How many it is chosen from.
const DRAWS: u64 = 16;
/// Beyond this number of workers random cyclic codes are hardly ever of use.
const CYCLIC_SOUND_MAX: usize = 32;

/// A scheme as its user writes it, parameters not yet checked against a number of workers. Files
/// that the text names are read when it is parsed.
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// let spec: SchemeSpec = "groups:s=1".parse()?;
/// assert_eq!(spec.to_string(), "groups:s=1");
/// assert!("gruops:s=1".parse::<SchemeSpec>().unwrap_err().to_string().contains("groups"));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SchemeSpec {
    text: String,
    kind: Kind,
    /// Late units of `defer` count for the next step.
    next_step: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Uncoded,
    Groups {
        size: GroupSize,
        rescale: bool,
    },
    MinLoad {
        stragglers: usize,
    },
    Cuts {
        path: String,
        text: String,
    },
    Speeds {
        path: String,
        speeds: Vec<f64>,
        size: GroupSize,
        units: u32,
    },
    Cyclic {
        stragglers: usize,
        seed: u64,
    },
    Graph {
        degree: usize,
        error_max: f64,
        seed: u64,
    },
    Drop {
        dropped: usize,
    },
    Matrix {
        path: String,
        text: String,
        claim: Option<usize>,
    },
    SrSgc(SrSgcShape),
    MSgc(MSgcParameters),
    Queue {
        items: usize,
    },
    Ring {
        reach: usize,
    },
    Defer(DeferParameters),
    Vote {
        stragglers: usize,
        wrong: usize,
    },
    /// Berrut codes: `bacc`, or `sbacc` if some are to be found out.
    Mixture {
        blocks: usize,
        stragglers: Option<usize>,
        wrong: usize,
        secured: bool,
    },
}

/// SR-SGC as it is written: `lambda` may be left out where clusters are repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SrSgcShape {
    burst: usize,
    window: usize,
    distinct: Option<usize>,
    stragglers: Option<usize>,
    slots: SlotKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupSize {
    Stragglers(usize),
    Groups(usize),
}

impl SchemeSpec {
    /// One text per scheme, as an example of how it is written.
    pub const EXAMPLES: [&'static str; 18] = [
        "uncoded",
        "groups:s=1",
        "groups:l=4,rescale",
        "min-load:s=2",
        "interval:cuts=FILE",
        "interval:speeds=FILE,s=1,units=64",
        "cyclic:s=2,seed=7",
        "graph:d=3,err=0.01,seed=7",
        "drop:b=1",
        "matrix:FILE",
        "queue:m=4",
        "ring:reach=3",
        "defer:T=1,cap=2,cut=4,copies=1",
        "sr-sgc:B=1,W=2,lambda=4",
        "m-sgc:B=1,W=2,lambda=4",
        "vote:s=1,b=1",
        "bacc:K=4",
        "sbacc:K=4,byzantine=2",
    ];

    /// The scheme that waits for everybody.
    ///
    /// ```
    /// assert_eq!(codedgrad::codes::SchemeSpec::uncoded().to_string(), "uncoded");
    /// ```
    #[must_use]
    pub fn uncoded() -> Self {
        Self { text: "uncoded".into(), kind: Kind::Uncoded, next_step: false }
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
        let code: Box<dyn GradientCode> = match &self.kind {
            Kind::SrSgc(_)
            | Kind::MSgc(_)
            | Kind::Queue { .. }
            | Kind::Ring { .. }
            | Kind::Defer(_) => {
                return Err(ParameterError::NotOneRound { text: self.text.clone() });
            }
            Kind::Vote { .. } => {
                let why = "accepts results by vote, which no weights tell: `codedgrad code \
                    groups:l=...` shows its groups";
                return Err(ParameterError::NoMatrix { text: self.text.clone(), why });
            }
            Kind::Mixture { .. } => {
                let why = "mixes data, not gradients: `codedgrad berrut` shows what that does";
                return Err(ParameterError::NoMatrix { text: self.text.clone(), why });
            }
            Kind::Uncoded => Box::new(Groups::uncoded(workers)?),
            Kind::Drop { dropped } => Box::new(DropSlowest::new(workers, *dropped)?),
            Kind::MinLoad { stragglers } => Box::new(MinLoad::new(workers, *stragglers)?),
            Kind::Cyclic { stragglers, seed } if workers <= CHOSEN_WORKERS_MAX => {
                Box::new(Cyclic::best_of(DRAWS, workers, *stragglers, *seed)?)
            }
            Kind::Cyclic { stragglers, seed } => {
                Box::new(Cyclic::new(workers, *stragglers, *seed)?)
            }
            Kind::Graph { degree, error_max, seed } => {
                Box::new(Graph::new(workers, *degree, *error_max, *seed)?)
            }
            Kind::Groups { size, rescale } => {
                let groups = match size {
                    GroupSize::Stragglers(s) => Groups::tolerating(workers, *s)?,
                    GroupSize::Groups(l) => Groups::new(workers, *l)?,
                };
                Box::new(if *rescale { groups.rescaling() } else { groups })
            }
            Kind::Cuts { path, text } => Box::new(Interval::from_csv(text).map_err(within(path))?),
            Kind::Speeds { path, speeds, size, units } => Box::new(match size {
                GroupSize::Stragglers(s) => {
                    Interval::layers(speeds, *s, *units).map_err(within(path))?
                }
                GroupSize::Groups(l) => {
                    Interval::sorted_groups(speeds, *l, *units).map_err(within(path))?
                }
            }),
            Kind::Matrix { path, text, claim } => {
                let code = DenseCode::from_csv(text).map_err(within(path))?;
                Box::new(match claim {
                    None => code,
                    Some(stragglers) => code.claiming(*stragglers)?,
                })
            }
        };
        match (&self.kind, code.facts().workers) {
            (
                Kind::Cuts { path, .. } | Kind::Speeds { path, .. } | Kind::Matrix { path, .. },
                found,
            ) if found != workers => {
                Err(ParameterError::Workers { path: path.clone(), found, workers })
            }
            _ => Ok(code),
        }
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
        let random = |slots| matches!(slots, SlotKind::Cyclic { .. });
        match self.kind {
            Kind::SrSgc(SrSgcShape { slots, .. }) | Kind::MSgc(MSgcParameters { slots, .. })
                if random(slots) && workers > CYCLIC_SOUND_MAX =>
            {
                Some(
                    "random cyclic slot codes amplify rounding errors hundreds to thousands of \
                     times; without ,cyclic it is min-load"
                        .into(),
                )
            }
            Kind::Cyclic { stragglers, .. } if workers > CYCLIC_SOUND_MAX => Some(format!(
                "random cyclic codes of more than {CYCLIC_SOUND_MAX} workers amplify rounding \
                 errors hundreds to \
                 thousands of times; min-load:s={stragglers} has the same load and tolerance without that"
            )),
            _ => None,
        }
    }

    /// Whether a matrix tolerates the stragglers that its text claims (`matrix:FILE,s=2`): all sets
    /// of so many are tried where they are few, else bursts and random ones. Everything else claims
    /// nothing but what is proven.
    ///
    /// # Errors
    /// [`ParameterError::Claim`] with stragglers that it does not tolerate; whatever
    /// [`SchemeSpec::code`] refuses.
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
        let Kind::Matrix { claim: Some(claimed), .. } = self.kind else { return Ok(()) };
        let code = self.code(workers)?;
        match verify::refuted(&*code) {
            None => Ok(()),
            Some(stragglers) => Err(ParameterError::Claim {
                text: self.text.clone(),
                claimed,
                stragglers: stragglers.iter().map(Worker::index).collect(),
            }),
        }
    }

    /// How many wrong workers it finds out; of every group, where it votes.
    ///
    /// ```
    /// let wrong =
    ///     |text: &str| text.parse::<codedgrad::codes::SchemeSpec>().map(|spec| spec.wrong());
    /// assert_eq!(
    ///     (wrong("sbacc:K=4,byzantine=2")?, wrong("vote:s=0,b=1")?, wrong("groups:s=2")?),
    ///     (2, 1, 0)
    /// );
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn wrong(&self) -> usize {
        match self.kind {
            Kind::Vote { wrong, .. } | Kind::Mixture { wrong, .. } => wrong,
            _ => 0,
        }
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
        let Kind::Mixture { blocks, stragglers, wrong, secured } = self.kind else {
            return Ok(None);
        };
        let points = if secured { Points::FirstKind } else { Points::SecondKind };
        Mixture::new(workers, MixtureParameters { blocks, stragglers, wrong, points }).map(Some)
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
        matches!(self.kind, Kind::Defer(_)).then_some(Self { next_step: true, ..self })
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

    /// The same, or the uncoded one where this does not fit so few workers: what a run goes on with
    /// that has lost some (`schedulers::Engine::replanning`).
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// let spec: SchemeSpec = "groups:s=1".parse()?;
    /// assert_eq!(spec.or_uncoded(2, 8, 0..100).unwrap().facts().tolerance, 1);
    /// assert_eq!(spec.or_uncoded(1, 8, 0..100).unwrap().facts().tolerance, 0);
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn or_uncoded(
        &self,
        workers: usize,
        units: u32,
        jobs: Range<u64>,
    ) -> Option<Box<dyn Scheme>> {
        let own = self.scheme(workers, units, jobs.clone());
        own.or_else(|_| Self::uncoded().scheme(workers, units, jobs)).ok()
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
        #[cfg(feature = "berrut")]
        if let Some(code) = self.mixture(horizon.workers)? {
            return Ok(Box::new(code.over(horizon, self.wrong())?));
        }
        Ok(match &self.kind {
            Kind::SrSgc(SrSgcShape { burst, window, distinct, stragglers, slots }) => {
                let distinct = distinct.unwrap_or(horizon.workers);
                let (burst, window, stragglers, slots) = (*burst, *window, *stragglers, *slots);
                Box::new(SrSgc::new(
                    SrSgcParameters { burst, window, distinct, stragglers, slots },
                    horizon,
                )?)
            }
            Kind::MSgc(parameters) => Box::new(MSgc::new(*parameters, horizon)?),
            Kind::Queue { items } => Box::new(Queue::new(*items, horizon)?),
            Kind::Ring { reach } => Box::new(Ring::new(*reach, horizon)?),
            Kind::Defer(parameters) => {
                let defer = Defer::new(*parameters, horizon)?;
                Box::new(if self.next_step { defer.to_next_step() } else { defer })
            }
            Kind::Vote { stragglers, wrong } => Box::new(Vote::new(*stragglers, *wrong, horizon)?),
            Kind::Mixture { .. } => {
                return Err(ParameterError::NotBuilt { text: self.text.clone() });
            }
            _ => {
                let code = self.code(horizon.workers)?;
                let shares = code.facts().shares() as u32;
                let cut = Cut::new(horizon.units.unwrap_or(shares), shares)?;
                Box::new(Lift::new(code, cut, horizon.jobs))
            }
        })
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
            let nearest = near(name, Self::EXAMPLES.map(family));
            let nearest = nearest
                .and_then(|near| Self::EXAMPLES.into_iter().find(|known| family(known) == near));
            return Err(ParameterError::UnknownScheme { name: name.into(), nearest });
        };
        let mut fields = Fields::read(text, parameters, example)?;
        let kind = match name {
            "uncoded" => Kind::Uncoded,
            "drop" => Kind::Drop { dropped: fields.need("b")? },
            "min-load" => Kind::MinLoad { stragglers: fields.need("s")? },
            "cyclic" => Kind::Cyclic {
                stragglers: fields.need("s")?,
                seed: fields.take("seed")?.unwrap_or(SEED),
            },
            "graph" => Kind::Graph {
                degree: fields.need("d")?,
                error_max: fields.take("err")?.unwrap_or(ERROR_MAX),
                seed: fields.take("seed")?.unwrap_or(SEED),
            },
            "interval" => fields.interval()?,
            "queue" => Kind::Queue { items: fields.need("m")? },
            "ring" => Kind::Ring { reach: fields.need("reach")? },
            "defer" => Kind::Defer(DeferParameters {
                delay: fields.take("T")?.unwrap_or(1),
                cap: fields.need("cap")?,
                cut: fields.take("cut")?.unwrap_or(1),
                copies: fields.take("copies")?.unwrap_or(1),
            }),
            "sr-sgc" => Kind::SrSgc(fields.sr_sgc()?),
            "vote" => Kind::Vote { stragglers: fields.need("s")?, wrong: fields.need("b")? },
            "bacc" => Kind::Mixture {
                blocks: fields.need("K")?,
                stragglers: fields.take("s")?,
                wrong: 0,
                secured: false,
            },
            "sbacc" => {
                let (blocks, wrong) = (fields.need("K")?, fields.need("byzantine")?);
                Kind::Mixture { blocks, stragglers: fields.take("s")?, wrong, secured: true }
            }
            "m-sgc" => {
                let (burst, window, distinct) =
                    (fields.need("B")?, fields.need("W")?, fields.need("lambda")?);
                Kind::MSgc(MSgcParameters { burst, window, distinct, slots: fields.slots()? })
            }
            "matrix" => {
                let claim = fields.take("s")?;
                let path = fields.path()?;
                Kind::Matrix { text: contents(&path)?, path, claim }
            }
            _ => Kind::Groups { size: fields.size()?, rescale: fields.flag("rescale") },
        };
        fields.done()?;
        Ok(Self { text: text.into(), kind, next_step: false })
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

fn contents(path: &str) -> Result<String, ParameterError> {
    std::fs::read_to_string(path)
        .map_err(|error| ParameterError::File { path: path.into(), problem: error.to_string() })
}

/// Names the file in an error about what is in it.
fn within(path: &str) -> impl Fn(ParameterError) -> ParameterError {
    move |error| ParameterError::File { path: path.into(), problem: error.to_string() }
}

fn family(text: &str) -> &str {
    text.split(':').next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_echo_and_errors_teach() {
        for text in SchemeSpec::EXAMPLES.into_iter().filter(|text| !text.contains("FILE")) {
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
        assert!(message("graph:d=3,err=low").contains("err=low is not a number"));
        assert!(message("min-lod:s=1").contains("did you mean \"min-load:s=2\""));
        assert!(message("matrix").contains("the file is missing"));
        assert!(message("matrix:no-such-file").contains("no-such-file: "));
        assert!(message("interval:cuts=a,speeds=b").contains("either cuts="));
        assert!(message("interval:speeds=x,s=1").contains("units= is missing"));
    }

    /// The error of the code of `workers` workers that `text` names, whose `FILE` has the given
    /// content.
    fn with_file(text: &str, content: &str, workers: usize) -> Result<f64, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let text = text.replace("FILE", file.path().to_str().unwrap());
        let code = text.parse::<SchemeSpec>().and_then(|spec| spec.code(workers));
        code.map(|code| code.facts().load).map_err(|error| error.to_string())
    }

    #[test]
    fn files_give_codes_and_their_mistakes_are_named() {
        assert_eq!(with_file("matrix:FILE", "1,1,0\n0,1,1\n1,0,1\n", 3), Ok(2.0 / 3.0));
        assert_eq!(with_file("matrix:FILE,s=1", "1\r\n1\r\n", 2), Ok(1.0));
        assert_eq!(with_file("interval:cuts=FILE", "0,2\n2,4\n0,4", 3), Ok(1.0));
        assert_eq!(with_file("interval:speeds=FILE,s=1,units=8", "3,1,2,2", 4), Ok(0.75));
        assert_eq!(with_file("interval:speeds=FILE,l=2,units=8", "3\n1\n3\n1\n", 4), Ok(0.75));
        for (text, content, problem) in [
            ("matrix:FILE", "1,0\n0\n", "line 2 has 1 columns, expected 2"),
            ("matrix:FILE", "1,0\n\n0,1\n", "line 2 is empty"),
            ("matrix:FILE", "", "the table is empty"),
            ("matrix:FILE", "1,0\n0,NaN\n", "line 2, column 2: \"NaN\" is not a finite number"),
            ("matrix:FILE", "1,0\n1e999,1\n", "line 2, column 1: \"1e999\""),
            ("matrix:FILE", "1,0\n0,1,\n", "line 2, column 3: \"\""),
            ("matrix:FILE", "1,1\n0,0\n", "line 2 is all zero"),
            ("matrix:FILE", "1,0,1\n2,0,1\n", "the coefficient 0.000000 instead of 1"),
            (
                "matrix:FILE",
                "1,0\n0,1\n1,1\n",
                "is for 3 workers, but the run has 2: say --workers 3",
            ),
            ("matrix:FILE,s=2", "1,0\n0,1\n", "s must be at most 1"),
            ("interval:cuts=FILE", "0,1\n2,3\n", "connect 0 only with 1, not with 3"),
            ("interval:cuts=FILE", "0,1\n1,1\n", "worker 1 has the interval [1, 1)"),
            ("interval:cuts=FILE", "0,1\n1,2,3\n", "line 2 has 3 columns, expected 2"),
            ("interval:cuts=FILE", "0,1\n1.5,2\n", "line 2, column 1: \"1.5\" is not a cut point"),
            ("interval:speeds=FILE,s=1,units=8", "1,0", "column 2: \"0\" is not a speed"),
            ("interval:speeds=FILE,s=1,units=8", "1\n-2", "line 2, column 1: \"-2\""),
            ("interval:speeds=FILE,s=0,units=3", "9\n1", "take units="),
        ] {
            let error = with_file(text, content, 2).unwrap_err();
            assert!(error.contains(problem), "{text} {content:?}: {error}");
        }
    }

    #[test]
    fn conditions_name_the_legal_values() {
        let build = |text: &str, n: usize| {
            text.parse::<SchemeSpec>().unwrap().code(n).map(|_| ()).unwrap_err().to_string()
        };
        assert!(build("groups:s=8", 8).contains("at most 7"));
        assert!(build("groups:l=0", 8).contains("from 1 to 8"));
        assert!(build("groups:l=9", 8).contains("from 1 to 8"));
        assert!(build("drop:b=8", 8).contains("from 1 to 7"));
        assert!(build("drop:b=0", 8).contains("uncoded"));
        assert!(build("uncoded", 0).contains("at least 1"));
        assert!(build("min-load:s=8", 8).contains("at most 7"));
        assert!(build("cyclic:s=8", 8).contains("at most 7"));
        assert!(build("cyclic:s=8", 4096).contains("min-load:s=8"));
        assert!(build("graph:d=9", 12).contains("d must be from 2 to 4"));
        assert!(build("graph:d=2", 2).contains("at least 3 workers"));
        assert!(build("graph:d=3,err=1.5", 12).contains("from 0 (exact) to below 1"));
        assert!("uncoded".parse::<SchemeSpec>().unwrap().scheme(8, 7, 0..1).is_err());
    }
}
