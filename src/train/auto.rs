//! Which scheme pays, decided from what the run itself shows.
//!
//! [`Auto`] records uncoded steps, asks the planner in a thread of its own, and switches the scheme
//! from the next step that begins. All it knows it takes from records, in which each step says
//! under which scheme it was computed: so a resumed run decides as if it had not been interrupted.

mod chooser;

use super::{Policy, SchemeInUse, StepRecord};
use crate::codes::family::Fields;
use crate::codes::registry::Registry;
use crate::codes::{ParameterError, SchemeSpec, family};
use chooser::{Chooser, StepSample};

/// The scheme text that asks for [`Auto`], in programs that read scheme texts; [`AutoSteps`] reads
/// it and its parameters.
pub const AUTO: &str = family::AUTO;
/// Fewest steps of a block: one that is recorded, and one that gains by it.
const BLOCK_MIN: u64 = 2;

/// Steps of a resumed run that are looked back on, at least.
const HISTORY: usize = 4096;

/// A policy that codes only where that pays: `uncoded` steps are recorded, the
/// [planner](crate::sim::planner) is asked, the run goes on with what it finds fastest, and it is
/// looked again later.
///
/// 1. The run begins uncoded, and the last [`Auto::probe`] uncoded steps are kept. With so many,
///    and again whenever much more could be gained than before, the planner compares all exact
///    schemes without delay that the run's units can be cut for. One that saves more than 5 % of
///    the time of a step is switched to.
/// 2. After as many coded steps it is compared with what was recorded: where it is no faster, the
///    run goes on uncoded, and that scheme must do better by as much before it is tried again.
/// 3. Now and then uncoded steps are recorded again: after [`Auto::replan_every`] steps, and less
///    often the dearer that is and the more often it changed nothing; sooner where steps take a
///    quarter longer or a tenth less than at first, or where no worker is always missing any more.
///    One that is slower than the coded ones ends it.
///
/// Where no worker is late all steps are uncoded, and what that costs is looking at their times.
/// The first steps of a run are not counted, nor are those in which workers were lost or came.
///
/// ```
/// use codedgrad::train::{Auto, Coordinator};
/// let run = Coordinator::builder("uncoded").workers(4).units(8).steps(100).length(3);
/// assert!(run.clone().auto(Auto::default()).local().is_ok());
/// let error = run.auto(Auto::default().probe(0)).local().err().unwrap();
/// assert_eq!(error.to_string(), "probe is 0: it must be from 1 to 199");
/// ```
#[derive(Clone, Debug)]
pub struct Auto {
    steps: AutoSteps,
    waits: bool,
    registry: Registry,
    history: Vec<StepSample>,
}

impl Default for Auto {
    fn default() -> Self {
        AutoSteps::default().auto()
    }
}

/// Which steps [`Auto`] records: what stands behind `auto` in the text of a run's scheme.
///
/// ```
/// use codedgrad::train::AutoSteps;
/// let steps = AutoSteps::parse("auto:probe=40,every=400")?.unwrap();
/// assert_eq!((steps.probe, steps.every), (40, 400));
/// assert_eq!(AutoSteps::parse("auto")?, Some(AutoSteps::default()));
/// assert_eq!(AutoSteps::parse("groups:s=1")?, None);
/// let error = AutoSteps::parse("auto:probe=30,every=30").unwrap_err();
/// assert!(error.to_string().contains("probe=30 is not from 1 to 29"));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoSteps {
    /// Uncoded steps of which the planner is told: [`Auto::probe`].
    pub probe: u64,
    /// Steps after which uncoded ones are recorded again: [`Auto::replan_every`].
    pub every: u64,
}

impl Default for AutoSteps {
    fn default() -> Self {
        Self { probe: Auto::PROBE, every: Auto::REPLAN_EVERY }
    }
}

impl AutoSteps {
    /// What a scheme's text says of it; none where the text is of another scheme.
    ///
    /// # Errors
    /// [`ParameterError::Malformed`] if a parameter is not as it must be.
    pub fn parse(text: &str) -> Result<Option<Self>, ParameterError> {
        if family::name_of(text) != AUTO {
            return Ok(None);
        }
        let mut fields = Fields::read(text, "auto:probe=20,every=200")?;
        let usual = Self::default();
        let probe = fields.take("probe")?.unwrap_or(usual.probe);
        let every = fields.take("every")?.unwrap_or(usual.every);
        if every < BLOCK_MIN {
            return Err(fields.wrong(format!("every={every} is less than {BLOCK_MIN}")));
        }
        if !(1..every).contains(&probe) {
            let most = every - 1;
            let last = "the others are to gain by it";
            return Err(fields.wrong(format!("probe={probe} is not from 1 to {most}: {last}")));
        }
        fields.done()?;
        Ok(Some(Self { probe, every }))
    }

    /// The policy that records these.
    #[must_use]
    pub fn auto(self) -> Auto {
        Auto { steps: self, waits: false, registry: Registry::default(), history: Vec::new() }
    }
}

impl Auto {
    /// Uncoded steps of which the planner is told if nothing else is said.
    pub const PROBE: u64 = 20;
    /// Steps after which uncoded ones are recorded again if nothing else is said.
    pub const REPLAN_EVERY: u64 = 200;

    /// Uncoded steps of which the planner is told, 20 if not told: of fewer little can be
    /// concluded. Less than [`Auto::replan_every`].
    #[must_use]
    pub fn probe(mut self, steps: u64) -> Self {
        self.steps.probe = steps;
        self
    }

    /// Steps after which uncoded ones are recorded again, 200 if not told.
    #[must_use]
    pub fn replan_every(mut self, steps: u64) -> Self {
        self.steps.every = steps;
        self
    }

    /// Families of schemes that may be chosen, ours if not told.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Has the run wait for the planner, so that a run on a modelled clock is the same every time;
    /// else the planner works beside it, and its answer counts when it comes.
    #[must_use]
    pub fn waits(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// The same where a run's clock is modelled.
    pub(super) fn waits_if(self, modelled: bool) -> Self {
        let waits = self.waits || modelled;
        self.waits(waits)
    }

    /// Tells of a step of a run that is resumed, in order: it goes on with what the last one was
    /// computed under.
    pub fn replay(&mut self, record: &StepRecord) {
        self.history.push(StepSample::of(record));
        if self.history.len() >= 2 * HISTORY {
            self.history.drain(..HISTORY);
        }
    }

    /// Forgets steps from one on: they are made again.
    #[cfg(feature = "tcp")]
    pub(super) fn until(&mut self, step: u64) {
        self.history.retain(|seen| seen.step() < step);
    }

    /// What the run goes on with: what the last step of a resumed one was computed under, else
    /// `uncoded`.
    #[must_use]
    pub fn using(&self) -> SchemeInUse {
        self.history.last().map_or_else(SchemeInUse::uncoded, StepSample::using)
    }

    /// The policy of a run of so many workers and units.
    #[must_use]
    pub fn policy(self, workers: usize, units: u32) -> Box<dyn Policy> {
        Box::new(Chooser::new(self, workers, units))
    }

    /// The scheme with which a run goes on.
    pub(super) fn spec(&self) -> Result<SchemeSpec, ParameterError> {
        self.registry.parse(&self.using().scheme)
    }

    /// Most steps that may be recorded, and how many are.
    pub(super) fn limits(&self) -> (u64, u64) {
        (self.steps.every.saturating_sub(1), self.steps.probe)
    }
}
