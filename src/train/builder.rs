//! A run told once: its workers, steps and numbers, and then its coordinator.

mod error;
#[cfg(feature = "tcp")]
mod served;
mod timing;

pub use error::BuildError;
#[cfg(feature = "tcp")]
pub use served::{OpenPort, ServedRun};

use super::aggregator::{Aggregator, Membership};
use super::{Auto, Coordinator, Judge, Policy, RunClock, SchemeInUse};
use crate::codes::sequential::{Accept, Horizon, Scheme};
use crate::codes::{ParameterError, SchemeSpec};
use crate::ids::{Job, Step, Worker};
use crate::run::{Jobs, Limits, NumberFormat, RunConfig, Shape};
use crate::schedulers::{Engine, PlannedScheme, Settings};
use crate::transport::local::{self, LocalTransport};
use crate::transport::{RunFacts, Transport};
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;
use timing::{Clock, Time};

/// A run as its user tells it: every number once, in any order, and at the end where its workers
/// are, threads of this process ([`Builder::local`]) or processes that join over TCP
/// ([`Builder::serve`]).
///
/// What is not told is as in [`RunConfig::new`]; the clock is the wall's, and no worker is delayed.
/// What cannot be a run is an error of [`Builder::local`] and [`Builder::serve`], never before.
///
/// ```
/// use codedgrad::train::{Coordinator, Event, Outcome};
/// use std::thread;
/// // Two of four workers hold each half of a batch of 4 units, 1 sample each.
/// let run = Coordinator::builder("groups:s=1").workers(4).steps(10).length(1);
/// let (coordinator, workers) = run.local()?;
/// let threads = workers.into_iter().map(|mut worker| {
///     thread::spawn(move || {
///         let mut sum = 0.0;
///         while let Some(event) = worker.next_event().ok()? {
///             match event {
///                 Event::Compute(mut task) => {
///                     while let Some(part) = task.next_part() {
///                         task.message()[0] = part.coefficient as f32 * part.samples.start as f32;
///                     }
///                     task.submit(vec![]).ok()?;
///                 }
///                 Event::Apply(step) => sum += step.gradient()[0],
///                 Event::Provide(request) => request.reply(vec![vec![sum]]),
///                 Event::Resync(state) => sum = state.vectors[0][0],
///                 Event::Skip(_) => {}
///             }
///         }
///         Some(sum)
///     })
/// });
/// let threads: Vec<_> = threads.collect();
/// assert_eq!(coordinator.run(&mut ())?, Outcome::Finished);
/// for thread in threads {
///     assert_eq!(thread.join().unwrap(), Some(10.0 * (0.0 + 1.0 + 2.0 + 3.0)));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs before `local` or `serve`"]
pub struct Builder {
    scheme: Result<SchemeSpec, ParameterError>,
    workers: Option<usize>,
    /// What is told of what is trained, or learned from the first worker.
    facts: RunFacts,
    first: u64,
    /// Number of the first round.
    round: u64,
    incarnation: u32,
    result_length: Option<usize>,
    limits: Limits,
    format: NumberFormat,
    log_steps: Option<u64>,
    restores: bool,
    auto: Option<Auto>,
    judge: Option<JudgeCopies>,
    time: Time,
    #[cfg(feature = "tcp")]
    port: served::Port,
}

/// Makes a copy of a judge for each run.
#[derive(Clone)]
struct JudgeCopies(Arc<dyn Fn() -> Box<dyn Judge> + Send + Sync>);

impl fmt::Debug for JudgeCopies {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JudgeCopies(..)")
    }
}

/// A run that can be made.
struct Plan {
    engine: Engine,
    clock: Clock,
    judge: Option<Box<dyn Judge>>,
    /// What decides under which scheme the run goes on, and under which it begins.
    policy: Option<(Box<dyn Policy>, SchemeInUse)>,
    /// Whether the coordinator looks at results itself.
    #[cfg(feature = "tcp")]
    judged: bool,
}

impl Coordinator<LocalTransport> {
    /// A run under a scheme, given as a text such as `groups:s=1` or as a [`SchemeSpec`]; what is
    /// wrong with a text is said by [`Builder::local`] or [`Builder::serve`].
    ///
    /// ```
    /// use codedgrad::train::Coordinator;
    /// let run = |scheme| Coordinator::builder(scheme).workers(4).steps(10).length(3).local();
    /// assert_eq!(run("groups:s=1")?.1.len(), 4);
    /// let error = run("gruops:s=1").err().unwrap();
    /// assert!(error.to_string().contains("did you mean \"groups:s=1\""));
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn builder<S>(scheme: S) -> Builder
    where
        S: TryInto<SchemeSpec>,
        S::Error: Into<ParameterError>,
    {
        Builder {
            scheme: scheme.try_into().map_err(Into::into),
            workers: None,
            facts: RunFacts::default(),
            first: 0,
            round: 0,
            incarnation: 0,
            result_length: None,
            limits: Limits::default(),
            format: NumberFormat::default(),
            log_steps: None,
            restores: false,
            auto: None,
            judge: None,
            time: Time::default(),
            #[cfg(feature = "tcp")]
            port: served::Port::default(),
        }
    }
}

/// What a run is. The examples of the setters are of one run:
///
/// ```
/// # use codedgrad::train::Coordinator;
/// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
/// assert!(run.local().is_ok());
/// ```
impl Builder {
    /// Number of workers, 1 to 4096.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("uncoded").steps(100).length(3);
    /// assert_eq!(run.clone().workers(5).local()?.1.len(), 5);
    /// let error = run.workers(0).local().err().unwrap();
    /// assert_eq!(error.to_string(), "workers is 0: it must be from 1 to 4096");
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Workers with which the run goes on when its scheme cannot do without those that are lost: it
    /// is planned again for those who are left, and again when they are back. Without it such a run
    /// ends.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.clone().min_workers(2).local().is_ok());
    /// let error = run.min_workers(5).local().err().unwrap();
    /// assert_eq!(error.to_string(), "min_workers is 5: it must be from 1 to 4");
    /// ```
    pub fn min_workers(mut self, fewest: usize) -> Self {
        self.limits.min_workers = Some(fewest);
        self
    }

    /// For how long a lost worker that the scheme can do without keeps its part in the plan of a
    /// run that fewer may make ([`Builder::min_workers`]): it may be started again.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use std::time::Duration;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.min_workers(2).settle_within(Duration::from_secs(1)).local().is_ok());
    /// ```
    pub fn settle_within(mut self, patience: Duration) -> Self {
        self.limits.settle_seconds = patience.as_secs_f64();
        self
    }

    /// How many workers may be lost by errors in one unit of one step before the run ends, and says
    /// which unit that is; 3 if not told. Those that are killed, or lost for another reason, do not
    /// count.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.clone().unit_tries(1).local().is_ok());
    /// let error = run.unit_tries(0).local().err().unwrap();
    /// assert_eq!(error.to_string(), "unit_tries is 0: it must be from 1 to 4294967295");
    /// ```
    pub fn unit_tries(mut self, tries: u32) -> Self {
        self.limits.unit_tries = tries;
        self
    }

    /// Steps of the whole run, over all models, those before [`Builder::first`] counted.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let error = run.steps(0).local().err().unwrap();
    /// assert!(error.to_string().starts_with("steps is 0: it must be from 1 to"));
    /// ```
    pub fn steps(mut self, steps: u64) -> Self {
        self.facts.steps = Some(steps);
        self
    }

    /// The step with which it begins, 0 unless it goes on from a checkpoint; the number of steps if
    /// all of them are in that: such a run ends at once.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.clone().first(99).local().is_ok());
    /// let error = run.first(101).local().err().unwrap();
    /// assert_eq!(error.to_string(), "first is 101: it must be from 0 to 100");
    /// ```
    pub fn first(mut self, step: u64) -> Self {
        self.first = step;
        self
    }

    /// Number of its first round, 0 unless the run continues the record of an earlier one.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.first(50).round(57).local().is_ok());
    /// ```
    pub fn round(mut self, round: u64) -> Self {
        self.round = round;
        self
    }

    /// How many coordinators the run had before this one, at least, 0 if not told: orders of one
    /// that is started again then have higher numbers than all before, and answers to those are
    /// told apart. Where that is not counted, seconds of the time of day do.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.first(50).incarnation(1).local().is_ok());
    /// ```
    pub fn incarnation(mut self, incarnation: u32) -> Self {
        self.incarnation = incarnation;
        self
    }

    /// Numbers of a gradient.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100);
    /// let error = run.local().err().unwrap();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "the length of a gradient is not told: say .length(1000) for 1,000 numbers"
    /// );
    /// ```
    pub fn length(mut self, numbers: usize) -> Self {
        self.facts.length = Some(numbers);
        self
    }

    /// Says who makes a gradient of mixed results (`bacc`, `sbacc`). Each run gets a copy of the
    /// judge.
    ///
    /// ```
    /// use codedgrad::codes::Report;
    /// use codedgrad::ids::{Job, Worker};
    /// use codedgrad::train::{Coordinator, Judge, JudgedGradient};
    /// use std::{error::Error, sync::Arc};
    /// /// Adds up what has come.
    /// #[derive(Clone)]
    /// struct Sum;
    /// impl Judge for Sum {
    ///     fn judge(
    ///         &mut self,
    ///         _: Job,
    ///         received: &[(Worker, Arc<Vec<f32>>)],
    ///     ) -> Result<JudgedGradient, Box<dyn Error + Send + Sync>> {
    ///         let gradient = vec![received.iter().map(|(_, result)| result[0]).sum()];
    ///         let report = Report {
    ///             decodable: true,
    ///             residual: 0.0,
    ///             amplification: 1.0,
    ///             coverage: 1.0,
    ///             error: 0.0,
    ///         };
    ///         let weights = received.iter().map(|(worker, _)| (*worker, 1.0)).collect();
    ///         Ok(JudgedGradient { gradient, weights, wrong: vec![], report })
    ///     }
    /// }
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(1);
    /// assert!(run.judged_by(Sum).local().is_ok(), "whose results are sums, and need no judge");
    /// # #[cfg(feature = "berrut")]
    /// # {
    /// let mixed = Coordinator::builder("bacc:K=2").workers(4).steps(100).length(1);
    /// assert!(mixed.clone().local().is_err() && mixed.judged_by(Sum).local().is_ok());
    /// # }
    /// ```
    pub fn judged_by(mut self, judge: impl Judge + Clone + Sync + 'static) -> Self {
        self.judge = Some(JudgeCopies(Arc::new(move || Box::new(judge.clone()))));
        self
    }

    /// Numbers of a worker's result, where a judge makes a gradient of it
    /// ([`Builder::judged_by`]); else those of a gradient.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert_eq!(run.result_length(7).local()?.1[0].length(), 7);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn result_length(mut self, numbers: usize) -> Self {
        self.result_length = Some(numbers);
        self
    }

    /// Units that a batch is cut into, at least as many as the scheme has shares. If not told, the
    /// least multiple of that number that gives every worker one.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:l=3").workers(4).steps(100).length(3);
    /// assert!(run.clone().units(9).local().is_ok());
    /// let error = run.units(2).local().err().unwrap();
    /// assert!(error.to_string().contains("2 units cannot be cut into 3 shares"));
    /// ```
    pub fn units(mut self, units: u32) -> Self {
        self.facts.units = Some(units);
        self
    }

    /// Consecutive samples that each unit is, 1 if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert_eq!(run.unit_samples(8).local()?.1[0].unit_samples(), 8);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn unit_samples(mut self, samples: usize) -> Self {
        self.facts.unit_samples = Some(samples);
        self
    }

    /// How long the run waits for a worker, all at once; what was told before is forgotten.
    ///
    /// ```
    /// # use codedgrad::{run::Limits, train::Coordinator};
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let limits = Limits { return_seconds: 30.0, ..Limits::default() };
    /// assert_eq!(run.limits(limits).engine()?.config().limits.return_seconds, 30.0);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long a round may stay open before the run gives up on workers that never came, at most a
    /// year; a minute if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use std::time::Duration;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.clone().max_wait(Duration::MAX).local().is_ok());
    /// let error = run.max_wait(Duration::ZERO).local().err().unwrap();
    /// assert!(error.to_string().starts_with("max_wait is 0: it must be a finite number"));
    /// ```
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.limits.max_wait_seconds = seconds(wait);
        self
    }

    /// How long an approximate scheme waits for more answers after it could close a round; exact
    /// ones never do.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use std::time::Duration;
    /// let run = Coordinator::builder("graph:d=2").workers(4).steps(100).length(3);
    /// assert!(run.grace(Duration::from_millis(20)).local().is_ok());
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.limits.grace_seconds = seconds(grace);
        self
    }

    /// How long lost workers may take to come back when too few are left to go on; if not told,
    /// the run ends at once.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use std::time::Duration;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.return_within(Duration::from_secs(30)).local().is_ok());
    /// ```
    pub fn return_within(mut self, wait: Duration) -> Self {
        self.limits.return_seconds = seconds(wait);
        self
    }

    /// Number format of vectors between processes, which is also what the decode may lose; f32 if
    /// not told.
    ///
    /// ```
    /// # use codedgrad::{run::NumberFormat, train::Coordinator};
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.wire(NumberFormat::Bf16).local().is_ok());
    /// ```
    pub fn wire(mut self, format: NumberFormat) -> Self {
        self.format = format;
        self
    }

    /// Decided steps that are kept for workers that missed some, more than the scheme's delay;
    /// [`RunConfig::usual_log_steps`] if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let error = run.log_steps(0).local().err().unwrap();
    /// assert_eq!(error.to_string(), "log_steps is 0: it must be from 1 to 1048576");
    /// ```
    pub fn log_steps(mut self, steps: u64) -> Self {
        self.log_steps = Some(steps);
        self
    }

    /// Jobs, each with a batch of its own, whose sum is one step; 1 if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.clone().micro_steps(4).local().is_ok());
    /// let error = run.micro_steps(0).local().err().unwrap();
    /// assert!(error.to_string().contains("micro_steps is 0"));
    /// ```
    pub fn micro_steps(mut self, jobs: u64) -> Self {
        self.facts.micro_steps = Some(jobs);
        self
    }

    /// Models trained in turn: step `t` is of model `t mod models`; 1 if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("defer:T=1,cap=1,cut=1").workers(4).steps(100).length(3);
    /// assert!(run.clone().models(2).local().is_ok());
    /// let error = run.local().err().unwrap();
    /// assert!(error.to_string().contains("2 jobs overlap"));
    /// ```
    pub fn models(mut self, models: u64) -> Self {
        self.facts.models = Some(models);
        self
    }

    /// Deadline tolerance of schemes over rounds: no round closes while a worker is missing before
    /// `1 + mu` times its first answer. 1 if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let error = run.mu(-1.0).local().err().unwrap();
    /// assert_eq!(error.to_string(), "mu is -1: it must be a finite number of 0 or more");
    /// ```
    pub fn mu(mut self, mu: f64) -> Self {
        self.limits.mu = mu;
        self
    }

    /// Lets a policy choose the scheme while the run goes on: it codes only where that pays, and
    /// begins with `uncoded`, or with what a resumed run had come to, whatever scheme was told
    /// before.
    ///
    /// ```
    /// # use codedgrad::train::{Auto, Coordinator};
    /// let run = Coordinator::builder("uncoded").workers(4).steps(100).length(3);
    /// assert!(run.auto(Auto::default().probe(10)).local().is_ok());
    /// ```
    pub fn auto(mut self, auto: Auto) -> Self {
        self.auto = Some(auto);
        self
    }

    /// Whether the observer can hand out a state where no worker has one
    /// ([`Observer::state`](super::Observer::state)).
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.restores(true).local().is_ok());
    /// ```
    pub fn restores(mut self, restores: bool) -> Self {
        self.restores = restores;
        self
    }
}

impl Builder {
    /// The run over threads of this process: its coordinator, and what every worker's thread takes
    /// to its trainer, worker 0's first.
    ///
    /// # Errors
    /// [`BuildError`] with what is wrong and what would be right.
    ///
    /// ```
    /// use codedgrad::ids::Worker;
    /// use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let (_coordinator, workers) = run.local()?;
    /// assert_eq!(workers[2].worker(), Some(Worker(2)));
    /// assert_eq!((workers[2].length(), workers[2].workers()), (3, Some(4)));
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn local(self) -> Result<(Coordinator<LocalTransport>, Vec<Aggregator>), BuildError> {
        let plan = self.plan()?;
        self.check_judge(&plan)?;
        let Plan { engine, clock, judge, policy, .. } = plan;
        let RunConfig { shape, jobs, result_length, first, .. } = *engine.config();
        let workers = shape.workers;
        let (transport, links) = local::connect(workers);
        let aggregators = Worker::all(workers).zip(links).map(|(worker, link)| {
            Aggregator::new(Box::new(link), result_length, shape.unit_samples)
                .accumulating(jobs.micro_steps)
                .resumed_at(first.0)
                .with_membership(Membership { worker, workers, job: String::new() })
        });
        let aggregators = aggregators.collect();
        let coordinator = Coordinator::new(transport, engine, clock.start(workers));
        Ok((decided(coordinator, judge, policy), aggregators))
    }

    /// The run over workers that are already behind a transport, each with an [`Aggregator`] of its
    /// own, and on a clock of its own: for transports other than threads and TCP.
    ///
    /// # Errors
    /// [`BuildError`] with what is wrong and what would be right.
    ///
    /// ```
    /// use codedgrad::delays::Delays;
    /// use codedgrad::train::{Coordinator, RunClock};
    /// use codedgrad::transport::local;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let (transport, _links) = local::connect(4);
    /// let _coordinator = run.over(transport, RunClock::wall(4, &Delays::None, 0, 0.0))?;
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn over<T: Transport>(
        mut self,
        transport: T,
        clock: RunClock,
    ) -> Result<Coordinator<T>, BuildError> {
        self.auto = self.auto.map(|auto| auto.waits_if(clock.is_virtual()));
        let plan = self.plan()?;
        self.check_judge(&plan)?;
        let Plan { engine, judge, policy, .. } = plan;
        Ok(decided(Coordinator::new(transport, engine, clock), judge, policy))
    }

    /// The engine of the run, for [`over_engine`](crate::sim::over_engine): what it would decide,
    /// without workers.
    ///
    /// # Errors
    /// [`BuildError`] with what is wrong and what would be right.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert_eq!(run.engine()?.plan().facts().tolerance, 1);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn engine(self) -> Result<Engine, BuildError> {
        Ok(self.plan()?.engine)
    }

    /// Checks everything that was told.
    fn plan(&self) -> Result<Plan, BuildError> {
        let spec = self.spec()?;
        let workers =
            told(self.workers, "the number of workers", ".workers(4) for 4 of them")? as u64;
        let workers = ranged("workers", workers, Shape::WORKERS)? as usize;
        let length = "the length of a gradient";
        let length = told(self.facts.length, length, ".length(1000) for 1,000 numbers")?;
        ranged("length", length as u64, RunConfig::LENGTH)?;
        let result_length = self.result_length.unwrap_or(length);
        ranged("result_length", result_length as u64, RunConfig::LENGTH)?;
        let unit_samples = self.facts.unit_samples.unwrap_or(1);
        ranged("unit_samples", unit_samples as u64, Shape::UNIT_SAMPLES)?;
        let (jobs, steps) = self.jobs()?;
        let numbers = jobs.of(steps.clone());
        let scheme = self.cut(&spec, workers, numbers.clone())?;
        let facts = scheme.facts().clone();
        let (units, delay) = (facts.units, facts.delay);
        let config = RunConfig {
            shape: Shape { workers, units, unit_samples },
            jobs,
            limits: self.checked_limits()?,
            format: self.format,
            length,
            result_length,
            log_steps: self.kept(length, delay, jobs.models)?,
            first: Step(steps.start),
            end: Step(steps.end),
        };
        jobs.check(delay)?;
        let clock = self.clock(&config, delay as u64)?;
        ranged("unit_tries", self.limits.unit_tries.into(), 1..=u32::MAX.into())?;
        let mut replan = None;
        if let Some(fewest) = self.limits.min_workers {
            ranged("min_workers", fewest as u64, 1..=workers as u64)?;
            if facts.mixture {
                let scheme = spec.to_string();
                return Err(BuildError::NotReplanned { scheme, min_workers: fewest });
            }
            replan = Some(PlannedScheme::by(spec, units, numbers));
        }
        let Self { round, incarnation, restores, .. } = *self;
        let settings = Settings { round, incarnation, restores, replan };
        let engine = Engine::new(scheme, config, settings)?;
        let policy = self.auto.clone().map(|auto| auto.waits_if(self.time.modelled));
        let policy = policy.map(|auto| {
            let using = auto.using();
            (auto.policy(workers, units), using)
        });
        Ok(Plan {
            engine,
            clock,
            judge: self.judge.as_ref().map(|copies| (copies.0)()),
            policy,
            #[cfg(feature = "tcp")]
            judged: facts.looks_at_results(),
        })
    }

    /// Whether there is the judge that a scheme of mixtures needs, once there are workers.
    fn check_judge(&self, plan: &Plan) -> Result<(), BuildError> {
        if plan.judge.is_none() && plan.engine.plan().facts().mixture {
            return Err(BuildError::NoJudge { scheme: self.spec()?.to_string() });
        }
        Ok(())
    }

    /// The scheme that the run begins with.
    fn spec(&self) -> Result<SchemeSpec, BuildError> {
        let Some(auto) = &self.auto else { return Ok(self.scheme.clone()?) };
        let (most, probe) = auto.limits();
        ranged("probe", probe, 1..=most)?;
        Ok(auto.spec()?)
    }

    /// The jobs of the run's steps, and the steps.
    fn jobs(&self) -> Result<(Jobs, Range<u64>), BuildError> {
        let usual = Jobs::default();
        let models = self.facts.models.unwrap_or(usual.models);
        let micro_steps = self.facts.micro_steps.unwrap_or(usual.micro_steps);
        let steps = told(self.facts.steps, "the number of steps", ".steps(100) for 100 of them")?;
        // How many jobs a step has is looked at with the scheme.
        let most = *Jobs::COUNT.end();
        let each = micro_steps.clamp(1, most);
        ranged("micro_steps", micro_steps, 0..=most)?;
        ranged("models", models, 0..=most)?;
        let steps = ranged("steps", steps, 1..=most / each)?;
        let first = ranged("first", self.first, 0..=steps)?;
        Ok((Jobs { models, micro_steps }, first..steps))
    }

    /// The scheme over its units.
    fn cut(
        &self,
        spec: &SchemeSpec,
        workers: usize,
        jobs: Range<u64>,
    ) -> Result<Box<dyn Scheme>, BuildError> {
        if let Some(units) = self.facts.units {
            let units = ranged("units", u64::from(units), Shape::UNITS)?;
            return Ok(spec.scheme(workers, units as u32, jobs)?);
        }
        let accept = Accept::Lookahead;
        let horizon = Job(jobs.start)..Job(jobs.end);
        let own = spec.over(Horizon { workers, units: None, jobs: horizon, accept })?;
        let least = own.facts().units.max(1);
        let units = least.saturating_mul((workers as u32).div_ceil(least));
        if units == least {
            return Ok(own);
        }
        Ok(spec.scheme(workers, units, jobs).unwrap_or(own))
    }

    fn checked_limits(&self) -> Result<Limits, BuildError> {
        let Limits { max_wait_seconds: value, mu, .. } = self.limits;
        if value <= 0.0 {
            let (what, right) = ("max_wait", "of seconds above 0");
            return Err(BuildError::Real { what, value, right });
        }
        not_negative("mu", mu)?;
        Ok(self.limits)
    }

    /// Decided steps that are kept under a scheme of a delay.
    fn kept(&self, length: usize, delay: usize, models: u64) -> Result<u64, BuildError> {
        let least = delay as u64 + 1;
        match self.log_steps {
            Some(steps) => ranged("log_steps", steps, least..=*RunConfig::LOG_STEPS.end()),
            // The run may change to a scheme whose jobs overlap as far as its models allow.
            None => Ok(RunConfig::usual_log_steps(
                length,
                delay.max((models as usize).saturating_sub(1)),
            )),
        }
    }
}

/// The coordinator with its judge and its policy, where there are any.
fn decided<T: Transport>(
    coordinator: Coordinator<T>,
    judge: Option<Box<dyn Judge>>,
    policy: Option<(Box<dyn Policy>, SchemeInUse)>,
) -> Coordinator<T> {
    let coordinator = match judge {
        Some(judge) => coordinator.judged_by(judge),
        None => coordinator,
    };
    match policy {
        Some((policy, using)) => coordinator.planned_by(policy, using),
        None => coordinator,
    }
}

/// At most a year of seconds.
fn seconds(wait: Duration) -> f64 {
    wait.min(Limits::WAIT_MAX).as_secs_f64()
}

fn told<T>(value: Option<T>, what: &'static str, example: &'static str) -> Result<T, BuildError> {
    value.ok_or(BuildError::Missing { what, example })
}

fn ranged(what: &'static str, value: u64, range: RangeInclusive<u64>) -> Result<u64, BuildError> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(BuildError::Number { what, value, least: *range.start(), most: *range.end() })
}

fn not_negative(what: &'static str, value: f64) -> Result<(), BuildError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(BuildError::Real { what, value, right: "of 0 or more" })
}
