//! A run whose workers are other processes: its port, and the coordinator behind it.

use super::{BuildError, Builder, Plan, decided};
use crate::ids::{Step, Worker, WorkerSet};
use crate::run::{Limits, NumberFormat};
use crate::train::coordinator::LOOK;
use crate::train::{Coordinator, Observer, Outcome, RunError, Stopper};
use crate::transport::tcp::security::Security;
use crate::transport::tcp::{
    self, Exchange, GatheredWorkers, Listen, TcpError, TcpStatus, TcpTransport,
};
use crate::transport::{Differences, Order, RunFacts, Transport};
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the workers may take to join, unless told.
const GATHER: Duration = Duration::from_secs(600);
/// Where some workers differ, the others are waited for as long as one comes within this time: the
/// more come, the better it is known who is right.
const COMING: Duration = Duration::from_secs(10);

/// What only a run over TCP needs to know.
#[derive(Clone, Debug, Default)]
pub(super) struct Port {
    exchange: Option<Exchange>,
    keeps: bool,
    job: String,
    run: Option<u64>,
    goes_on: bool,
    unmixed: bool,
    silence: Option<Duration>,
    stall: Option<Duration>,
    spare: Option<Duration>,
    gather: Option<Duration>,
}

/// A run over TCP that has its port and has not begun: workers can join.
///
/// ```
/// use codedgrad::train::{Aggregator, Coordinator, Event, Outcome};
/// use codedgrad::transport::tcp::security::{Security, Token};
/// use std::thread;
/// let security = Security::Plain { token: Token::fresh()? };
/// let run = Coordinator::builder("groups:s=1").workers(2).steps(5).length(1);
/// let served = run.serve("127.0.0.1:0", security.clone())?;
/// let address = served.address().to_string();
/// let workers = [0, 1].map(|number| {
///     let joining = Aggregator::join(address.clone()).security(security.clone()).worker(number);
///     thread::spawn(move || {
///         let mut worker = joining.connect().ok()?;
///         let mut steps = 0;
///         while let Some(event) = worker.next_event().ok()? {
///             match event {
///                 Event::Compute(mut task) => {
///                     while task.next_part().is_some() {
///                         task.message().fill(1.0);
///                     }
///                     task.submit(vec![]).ok()?;
///                 }
///                 Event::Apply(_) => steps += 1,
///                 Event::Provide(request) => request.reply(vec![vec![steps as f32]]),
///                 Event::Resync(state) => steps = state.vectors[0][0] as u64,
///                 Event::Skip(_) => {}
///             }
///         }
///         Some(steps)
///     })
/// });
/// assert_eq!(served.run(&mut ())?, Outcome::Finished);
/// assert!(workers.into_iter().all(|worker| worker.join().unwrap() == Some(5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing runs before `run`"]
pub struct ServedRun {
    transport: TcpTransport,
    /// What was told, of which a run can be made.
    told: Builder,
    facts: RunFacts,
    gather: Duration,
    stopper: Stopper,
}

/// What only a run over TCP needs to know; [`Builder::local`] has no use for it.
impl Builder {
    /// Who sums. If not told, the workers among themselves. A scheme that looks at results as they
    /// were received has the coordinator sum what workers send at once, in any case.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use codedgrad::transport::tcp::{Exchange, security::{Security, Token}};
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let run = Coordinator::builder("vote:s=0,b=1").workers(3).steps(100).length(3);
    /// assert!(run.clone().serve("127.0.0.1:0", security.clone()).is_ok());
    /// // A vote looks at results as they were received: they come to the coordinator at once,
    /// // whatever is told here.
    /// assert!(run.exchange(Exchange::Sharded).serve("127.0.0.1:0", security).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exchange(mut self, exchange: Exchange) -> Self {
        self.port.exchange = Some(exchange);
        self
    }

    /// Whether every sum is sent to the coordinator too, for its observer, if it does not sum
    /// itself.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.keeps(true).local().is_ok());
    /// ```
    pub fn keeps(mut self, keeps: bool) -> Self {
        self.port.keeps = keeps;
        self
    }

    /// What is trained, in words that the workers' program understands: `Aggregator::job` there.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.job("{\"model\":\"line\"}").local().is_ok());
    /// ```
    pub fn job(mut self, job: impl Into<String>) -> Self {
        self.port.job = job.into();
        self
    }

    /// The number of the run, which no other has: a coordinator that is started again with it is
    /// the same to its workers, which call for their patience. A random one if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.run_number(0xc0de).local().is_ok());
    /// ```
    pub fn run_number(mut self, number: u64) -> Self {
        self.port.run = Some(number);
        self
    }

    /// Number format of the parameters, such as `f32`, which every worker that says its own must
    /// have too.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.dtype("bf16").local().is_ok());
    /// ```
    pub fn dtype(mut self, dtype: impl Into<String>) -> Self {
        self.facts.dtype = Some(dtype.into());
        self
    }

    /// A hash of the names and shapes of the parameters in the order of the gradient, which every
    /// worker that says its own must have too.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.layout(0x1234).local().is_ok());
    /// ```
    pub fn layout(mut self, hash: u64) -> Self {
        self.facts.layout = Some(hash);
        self
    }

    /// What is known of what is trained, all at once, such as an earlier run's
    /// [`ServedRun::facts`]; what was told before stays.
    ///
    /// ```
    /// # use codedgrad::{train::Coordinator, transport::RunFacts};
    /// let facts = RunFacts { length: Some(3), steps: Some(100), ..RunFacts::default() };
    /// let run = Coordinator::builder("groups:s=1").workers(4).facts(&facts);
    /// assert_eq!(run.local()?.1[0].length(), 3);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    pub fn facts(mut self, facts: &RunFacts) -> Self {
        let told = &mut self.facts;
        told.length = told.length.or(facts.length);
        told.units = told.units.or(facts.units);
        told.steps = told.steps.or(facts.steps);
        told.unit_samples = facts.unit_samples.or(told.unit_samples);
        told.micro_steps = facts.micro_steps.or(told.micro_steps);
        told.models = facts.models.or(told.models);
        told.dtype = told.dtype.take().or_else(|| facts.dtype.clone());
        told.layout = told.layout.or(facts.layout);
        told.frozen = told.frozen.or(facts.frozen);
        told.start = told.start.or(facts.start);
        self
    }

    /// Whether the run begins where the workers that join have come to, the furthest of them,
    /// instead of at [`Builder::first`]: so a coordinator without a replica goes on that was
    /// started again, and one whose workers go on from checkpoints.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.goes_on(true).local().is_ok());
    /// ```
    pub fn goes_on(mut self, goes_on: bool) -> Self {
        self.port.goes_on = goes_on;
        self
    }

    /// For workers that compute gradients of units and cannot mix data: a scheme of mixtures is
    /// refused.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.unmixed().local().is_ok());
    /// ```
    pub fn unmixed(mut self) -> Self {
        self.port.unmixed = true;
        self
    }

    /// How long a worker may say nothing before it is given up, a year at most; 15 s if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use std::time::Duration;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.silence(Duration::from_secs(60)).local().is_ok());
    /// ```
    pub fn silence(mut self, silence: Duration) -> Self {
        self.port.silence = Some(silence.min(Limits::WAIT_MAX));
        self
    }

    /// How long a sum may stand still before it is made without the worker that holds it up, and
    /// how long at least where the scheme can spare a worker; 5 s and half a second if not told.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use std::time::Duration;
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// assert!(run.stall(Duration::from_secs(10), Duration::from_secs(1)).local().is_ok());
    /// ```
    pub fn stall(mut self, stall: Duration, spare: Duration) -> Self {
        self.port.stall = Some(stall.min(Limits::WAIT_MAX));
        self.port.spare = Some(spare.min(Limits::WAIT_MAX));
        self
    }

    /// How long the workers may take to join: the run begins when all have, or after so long with
    /// those that have; the others may come later. Ten minutes if not told.
    ///
    /// ```
    /// # use codedgrad::train::{Coordinator, RunError};
    /// # use codedgrad::transport::tcp::security::{Security, Token};
    /// # use std::time::Duration;
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let served = run.gather_within(Duration::from_millis(5)).serve("127.0.0.1:0", security)?;
    /// assert!(matches!(served.run(&mut ()), Err(RunError::NobodyCame { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gather_within(mut self, patience: Duration) -> Self {
        self.port.gather = Some(patience.min(Limits::WAIT_MAX));
        self
    }

    /// Opens a port at `HOST:PORT`, of which 0 is any free one, and lets in workers that prove
    /// themselves by `security`.
    ///
    /// # Errors
    /// [`BuildError`] with what is wrong and what would be right.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use codedgrad::transport::tcp::security::{Security, Token};
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let served = run.clone().serve("127.0.0.1:0", security.clone())?;
    /// assert_ne!(served.address().port(), 0);
    /// let error = run.serve("localhost", security).err().unwrap();
    /// assert!(error.to_string().starts_with("\"localhost\" is no address to listen at"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(self, address: impl Display, security: Security) -> Result<ServedRun, BuildError> {
        let listen = self.listen(at(&address.to_string())?, security)?;
        let sure = Some(listen.all_facts());
        let listen = Listen { sure, ..listen };
        let workers = listen.config.shape.workers;
        let port = tcp::Port::open(listen.address, listen.security.clone(), workers)?;
        Ok(self.served(port, listen, Stopper::default())?)
    }

    /// Opens a port like [`Builder::serve`], for a run of which not everything is told: the length
    /// of a gradient, units and steps are learned from the first worker, and all that come before
    /// the first step are compared. The run begins where its workers have come to
    /// ([`Builder::goes_on`]).
    ///
    /// ```
    /// use codedgrad::train::{Aggregator, Coordinator};
    /// use codedgrad::transport::RunFacts;
    /// use codedgrad::transport::tcp::security::{Security, Token};
    /// use std::thread;
    /// use std::time::Duration;
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let run = Coordinator::builder("groups:s=1").workers(2);
    /// let open = run.open("127.0.0.1:0", security.clone())?;
    /// let address = open.address().to_string();
    /// let worker = thread::spawn(move || {
    ///     let length = Some(3);
    ///     let units = Some(4);
    ///     let steps = Some(10);
    ///     let facts = RunFacts { length, units, steps, ..RunFacts::default() };
    ///     Aggregator::join(address).security(security).facts(facts).connect()
    /// });
    /// let served = open.learn(Duration::from_secs(60))?.ok_or("stopped")?;
    /// assert_eq!(served.facts().units, Some(4));
    /// assert_eq!(worker.join().unwrap()?.length(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError`] with what is wrong with that which is told.
    pub fn open(self, address: impl Display, security: Security) -> Result<OpenPort, BuildError> {
        let address = at(&address.to_string())?;
        let workers = self.check_before()?;
        let port = tcp::Port::open(address, security.clone(), workers)?;
        Ok(OpenPort { told: self.goes_on(true), port, security, stopper: Stopper::default() })
    }

    /// What is wrong with what is told, whatever is still to be learned; the number of workers.
    fn check_before(&self) -> Result<usize, BuildError> {
        let mut whole = self.clone();
        whole.facts.length = whole.facts.length.or(Some(1));
        whole.facts.steps = whole.facts.steps.or(Some(self.first + 1));
        let plan = whole.plan()?;
        self.check_mixture(&plan)?;
        Ok(plan.engine.config().shape.workers)
    }

    fn check_mixture(&self, plan: &Plan) -> Result<(), BuildError> {
        if self.port.unmixed && plan.engine.plan().facts().mixture {
            return Err(BuildError::Mixture { scheme: self.spec()?.to_string() });
        }
        self.check_judge(plan)
    }

    /// A run at a port that is open.
    fn served(
        self,
        port: tcp::Port,
        listen: Listen,
        stopper: Stopper,
    ) -> Result<ServedRun, TcpError> {
        let gather = self.port.gather.unwrap_or(GATHER);
        let facts = listen.all_facts();
        let transport = port.listen(listen)?;
        Ok(ServedRun { transport, told: self, facts, gather, stopper })
    }

    fn listen(&self, address: SocketAddr, security: Security) -> Result<Listen, BuildError> {
        let plan = self.plan()?;
        self.check_mixture(&plan)?;
        let usual = Listen::new(address, security, *plan.engine.config());
        if self.format == NumberFormat::F16 {
            return Err(BuildError::Wire);
        }
        let exchange = self.port.exchange.unwrap_or_default().for_results_received(plan.judged);
        Ok(Listen {
            run: self.port.run.unwrap_or(usual.run),
            exchange,
            keeps: self.port.keeps,
            // A replica made again has applied nothing, wherever the run begins.
            first: Some(Step(0)),
            job: self.port.job.clone(),
            facts: RunFacts {
                dtype: self.facts.dtype.clone(),
                layout: self.facts.layout,
                frozen: self.facts.frozen,
                start: self.facts.start,
                ..RunFacts::of(plan.engine.config())
            },
            silence: self.port.silence.unwrap_or(usual.silence),
            stall: self.port.stall.unwrap_or(usual.stall),
            spare: self.port.spare.unwrap_or(usual.spare),
            ..usual
        })
    }
}

/// An address to listen at.
fn at(text: &str) -> Result<SocketAddr, BuildError> {
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| BuildError::Address { text: text.to_owned() })
}

/// A port for the workers of a run that they will tell of: see [`Builder::open`].
#[must_use = "nothing runs before `learn`, and then `ServedRun::run`"]
pub struct OpenPort {
    told: Builder,
    port: tcp::Port,
    security: Security,
    stopper: Stopper,
}

impl OpenPort {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// What is known of the connections, also once the run goes on.
    #[must_use]
    pub fn status(&self) -> Arc<Mutex<TcpStatus>> {
        self.port.status()
    }

    /// Ends the run from another thread, also while it waits for the first worker.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for the first worker, at most so long, and learns from it; none if it was stopped. Of
    /// a run that cannot be made of what it says, the worker is told why.
    ///
    /// # Errors
    /// [`RunError::NobodyCame`], or [`RunError::Build`] with what is wrong and what would be right.
    pub fn learn(self, patience: Duration) -> Result<Option<ServedRun>, RunError> {
        let Self { told, mut port, security, stopper } = self;
        let mut left = patience;
        let facts = loop {
            let look = left.min(LOOK);
            match port.first(look) {
                Some(facts) => break facts,
                None if stopper.is_stopped() => return Ok(None),
                None if left.is_zero() => {
                    return Err(RunError::NobodyCame { waited_seconds: patience.as_secs_f64() });
                }
                None => left -= look,
            }
        };
        let sure = told.facts.clone();
        let told = told.facts(&facts);
        match told.listen(port.address(), security) {
            Ok(listen) => {
                // Others may say otherwise than the first.
                let listen = Listen { sure: Some(sure), ..listen };
                Ok(Some(told.served(port, listen, stopper).map_err(BuildError::Tcp)?))
            }
            Err(error) => {
                port.refuse(&error.to_string());
                Err(error.into())
            }
        }
    }
}

impl ServedRun {
    /// What is trained, as far as it was told or learned.
    #[must_use]
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.transport.address()
    }

    /// What is known of the connections; it is kept up to date while the run goes on.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// # use codedgrad::transport::tcp::security::{Security, Token};
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let served = run.serve("127.0.0.1:0", security)?;
    /// assert!(served.status().lock().unwrap().workers.iter().all(|worker| !worker.connected));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> Arc<Mutex<TcpStatus>> {
        self.transport.status()
    }

    /// Ends the run from another thread, also while it waits for the first workers.
    ///
    /// ```
    /// # use codedgrad::train::{Coordinator, Outcome};
    /// # use codedgrad::transport::tcp::security::{Security, Token};
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let run = Coordinator::builder("groups:s=1").workers(4).steps(100).length(3);
    /// let served = run.serve("127.0.0.1:0", security)?;
    /// served.stopper().stop();
    /// assert_eq!(served.run(&mut ())?, Outcome::Stopped);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for the workers ([`Builder::gather_within`]), and runs until all steps are decided and
    /// applied by all workers there, or the observer or a worker ends it.
    ///
    /// # Errors
    /// [`RunError::NobodyCame`] and [`RunError::FewCame`] when there are too few to begin with,
    /// [`RunError::Differ`] when those
    /// that came train different things, and others when the run cannot go on.
    pub fn run(self, observer: &mut dyn Observer) -> Result<Outcome, RunError> {
        let Self { mut transport, mut told, gather, stopper, .. } = self;
        let gathered = gathered(&mut transport, gather, (&stopper, Step(told.first)))?;
        // The coordinator of a run that is stopped tells those who have come.
        let least = told.limits.min_workers.unwrap_or(1).max(1);
        if gathered.present.len() < least && !stopper.is_stopped() {
            let workers = gathered.present.len() + gathered.absent.len();
            let missing = WorkerSet::of(workers, gathered.absent);
            let error = RunError::few(least, missing, gather);
            transport.refuse(&error.to_string());
            return Err(error);
        }
        if told.port.goes_on {
            let reached = gathered.present.iter().filter_map(|(_, next)| *next).max();
            told.first = reached.map_or(told.first, |next| next.0);
            told.auto.iter_mut().for_each(|auto| auto.until(told.first));
        }
        if told.facts.steps.is_some_and(|steps| told.first >= steps) {
            observer.begins(Step(told.first)).map_err(RunError::Observer)?;
            let why: Arc<str> = "all steps are decided".into();
            Worker::all(told.workers.unwrap_or(0))
                .for_each(|worker| transport.send(worker, Order::Stop { why: Arc::clone(&why) }));
            transport.flush();
            return Ok(Outcome::Finished);
        }
        let Plan { engine, clock, judge, policy, .. } = told.plan()?;
        transport.begin(engine.config().first);
        let run_clock = clock.start(engine.config().shape.workers);
        let coordinator = Coordinator::new(transport, engine, run_clock);
        decided(coordinator, judge, policy).stopped_by(stopper).run(observer)
    }
}

/// Waits for the workers, at most so long. Where what they train differs, nothing is trained, and
/// all of them are told why.
fn gathered(
    transport: &mut TcpTransport,
    patience: Duration,
    (stopper, first): (&Stopper, Step),
) -> Result<GatheredWorkers, RunError> {
    let mut left = patience;
    let mut coming = COMING;
    let mut came = 0;
    let mut gathered = transport.gather(Duration::ZERO);
    loop {
        let workers = gathered.present.len() + gathered.absent.len();
        if gathered.told.len() > came {
            came = gathered.told.len();
            coming = COMING;
        }
        if stopper.is_stopped() {
            return Ok(gathered);
        }
        if let Some((worker, word)) = gathered.misuse {
            let error = RunError::Misuse { step: first, worker, word: Box::new(word) };
            transport.refuse(&error.to_string());
            return Err(error);
        }
        if (left.is_zero() || came == workers || coming.is_zero())
            && let Some(differences) = Differences::between(&gathered.told)
        {
            let error = RunError::Differ(differences);
            transport.refuse(&error.to_string());
            return Err(error);
        }
        if left.is_zero() || gathered.absent.is_empty() {
            return Ok(gathered);
        }
        let look = left.min(LOOK);
        gathered = transport.gather(look);
        left -= look;
        coming = coming.saturating_sub(look);
    }
}
