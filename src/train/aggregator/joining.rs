//! How a trainer gets its aggregator over TCP.

use super::{Aggregator, Membership};
use crate::gpu::Vector;
use crate::transport::tcp::security::Security;
use crate::transport::tcp::{Environment, EnvironmentError, Join, TcpError, TcpLink, Welcome};
use crate::transport::wire::InitialReplica;
use crate::transport::{Link, RunFacts};
use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;

/// Why a worker has not joined a run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// What the environment says.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The coordinator cannot be reached, or does not want this worker.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// Neither side says how many samples a unit has.
    #[error(
        "the run does not say how many samples each unit of a batch has: say .unit_samples(8) for 8"
    )]
    NoUnitSamples,
    /// Units without samples.
    #[error("unit_samples is 0: each unit of a batch has 1 sample or more")]
    EmptyUnits,
}

/// A worker that is about to join a run: what it says of itself. All of it may be left out.
///
/// Without [`JoinBuilder::security`] the environment tells that, and the worker's number if that
/// was not told either, as for [`Aggregator::from_env`].
#[derive(Clone, Debug)]
#[must_use = "nothing is joined before `connect`"]
pub struct JoinBuilder {
    address: Option<String>,
    security: Option<Security>,
    worker: Option<u32>,
    identity: Option<String>,
    unit_samples: Option<usize>,
    has: InitialReplica,
    facts: RunFacts,
    listen: Option<SocketAddr>,
    patience: Option<Duration>,
}

impl Aggregator {
    /// Joins the run whose coordinator listens at `host:port`. Numbers of a gradient, batches per
    /// step and the first step come from the coordinator.
    ///
    /// ```no_run
    /// use codedgrad::train::Aggregator;
    /// // CODEDGRAD_TOKEN_FILE or CODEDGRAD_KEYS says by what they know each other.
    /// let mut aggregator = Aggregator::join("host0:7000").connect()?;
    /// while let Some(event) = aggregator.next_event()? {
    ///     // compute, apply
    /// #   drop(event);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn join(address: impl Into<String>) -> JoinBuilder {
        JoinBuilder::at(Some(address.into()))
    }

    /// Joins the run that the environment names: `CODEDGRAD_ADDRESS` says where its coordinator
    /// listens, `CODEDGRAD_TOKEN_FILE`, `CODEDGRAD_TOKEN` or `CODEDGRAD_KEYS` by what they know
    /// each other, and `CODEDGRAD_WORKER` (or what the launcher sets) which worker this is; see
    /// [`Environment`].
    ///
    /// # Errors
    /// [`JoinError`] names the variable that is missing or wrong, or says why the coordinator does
    /// not answer.
    ///
    /// ```
    /// use codedgrad::train::Aggregator;
    /// // Nothing is set here.
    /// let error = Aggregator::from_env().err().unwrap();
    /// assert!(error.to_string().starts_with("CODEDGRAD_ADDRESS is not set"));
    /// ```
    pub fn from_env() -> Result<Self, JoinError> {
        JoinBuilder::at(None).connect()
    }
}

impl<V: Vector> Aggregator<V> {
    /// A handle over a link that has joined a run, as the coordinator's welcome says; for links
    /// that carry vectors of devices. The samples of a unit are as told, or else those of the run.
    ///
    /// # Errors
    /// [`JoinError::NoUnitSamples`] when neither says how many there are, [`JoinError::EmptyUnits`]
    /// when it is none.
    pub fn joined(
        link: Box<dyn Link<V>>,
        welcome: &Welcome,
        unit_samples: Option<usize>,
    ) -> Result<Self, JoinError> {
        let unit_samples = unit_samples.or(welcome.facts.unit_samples);
        let unit_samples = unit_samples.ok_or(JoinError::NoUnitSamples)?;
        if unit_samples == 0 {
            return Err(JoinError::EmptyUnits);
        }
        let Welcome { worker, workers, .. } = *welcome;
        let membership = Membership { worker, workers, job: welcome.job.clone() };
        Ok(Self::new(link, welcome.length, unit_samples)
            .accumulating(welcome.micro_steps)
            .with_membership(membership))
    }
}

/// What a worker says of itself. The examples say what they lead to without a coordinator.
impl JoinBuilder {
    fn at(address: Option<String>) -> Self {
        Self {
            address,
            security: None,
            worker: None,
            identity: None,
            unit_samples: None,
            has: InitialReplica::FromJob,
            facts: RunFacts::default(),
            listen: None,
            patience: None,
        }
    }

    /// How this worker and the coordinator know each other. The environment is then not read.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// # use codedgrad::transport::tcp::security::{Security, Token};
    /// # use std::time::Duration;
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let joining = Aggregator::join("127.0.0.1:1").security(security).patience(Duration::ZERO);
    /// assert!(joining.connect().err().unwrap().to_string().contains("cannot reach 127.0.0.1:1"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn security(mut self, security: Security) -> Self {
        self.security = Some(security);
        self
    }

    /// The number this worker wants; whichever is free if not told. A worker that is started again
    /// with its number takes its place again.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// let _ = Aggregator::join("host0:7000").worker(3);
    /// ```
    pub fn worker(mut self, number: u32) -> Self {
        self.worker = Some(number);
        self
    }

    /// A name that stays the same when the worker is started again, and that no other has: if not
    /// told, made of its number, or of nothing that comes back.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// let _ = Aggregator::join("host0:7000").identity("host7/gpu1");
    /// ```
    pub fn identity(mut self, name: impl Into<String>) -> Self {
        self.identity = Some(name.into());
        self
    }

    /// Samples of each unit of a batch, for a run that does not say so; if it does, they must be
    /// the same.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// let _ = Aggregator::join("host0:7000").unit_samples(8);
    /// ```
    pub fn unit_samples(mut self, samples: usize) -> Self {
        self.unit_samples = Some(samples);
        self
    }

    /// Which replica this worker has before it joins: one that is fresh if not told, and one read
    /// from a checkpoint is [`InitialReplica::Below`] the first step that is not applied in it.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// use codedgrad::{ids::Step, transport::wire::InitialReplica};
    /// let _ = Aggregator::join("host0:7000").has(InitialReplica::Below(Step(500)));
    /// ```
    pub fn has(mut self, has: InitialReplica) -> Self {
        self.has = has;
        self
    }

    /// What this worker trains, as far as it knows: a difference to the run's is refused by name.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// use codedgrad::transport::RunFacts;
    /// let facts = RunFacts { length: Some(124_439_808), ..RunFacts::default() };
    /// let _ = Aggregator::join("host0:7000").facts(facts);
    /// ```
    pub fn facts(mut self, facts: RunFacts) -> Self {
        self.facts = facts;
        self
    }

    /// Where other workers may connect to this one; on the interface that reaches the coordinator
    /// if not told.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// let _ = Aggregator::join("host0:7000").listen(([10, 0, 0, 3], 7001).into());
    /// ```
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// How long the coordinator is called when it cannot be reached, at first and when it is lost,
    /// at most a year; half a minute if not told.
    ///
    /// ```
    /// # use codedgrad::train::Aggregator;
    /// # use std::time::Duration;
    /// let _ = Aggregator::join("host0:7000").patience(Duration::from_secs(600));
    /// ```
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Joins: calls the coordinator until it answers or patience is over.
    ///
    /// # Errors
    /// [`JoinError`] when the environment says too little, or the coordinator does not answer or
    /// refuses.
    pub fn connect(self) -> Result<Aggregator, JoinError> {
        let Self { unit_samples, has, listen, .. } = self;
        if unit_samples == Some(0) {
            return Err(JoinError::EmptyUnits);
        }
        let mut environment = Environment::default();
        if self.address.is_none() || self.security.is_none() {
            environment = Environment::of_process()?;
        }
        let address = self.address.or(environment.address).ok_or(EnvironmentError::NoAddress)?;
        let worker = self.worker.or(environment.worker);
        let security = match self.security {
            Some(security) => security,
            None => environment.secrets.security(worker)?,
        };
        let usual = Join::new(address, security);
        let numbered = worker.map(|number| format!("worker-{number}"));
        let join = Join {
            worker,
            identity: self.identity.or(numbered).unwrap_or_else(|| usual.identity.clone()),
            has,
            facts: RunFacts {
                unit_samples: unit_samples.or(self.facts.unit_samples),
                ..self.facts
            },
            listen,
            patience: self.patience.unwrap_or(usual.patience),
            ..usual
        };
        let unit_samples = join.facts.unit_samples;
        let (link, welcome) = TcpLink::join(join)?;
        let traffic = Box::new(link.traffic());
        Ok(Aggregator::joined(Box::new(link), &welcome, unit_samples)?.counting(traffic))
    }
}
