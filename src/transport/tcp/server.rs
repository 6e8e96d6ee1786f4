//! The coordinator's end: the port, the workers behind it, and the exchanges they are told to make.

use super::door::Door;
use super::hub::{Hub, LAST_SUMS, Watched};
use super::mailbox::{Bell, mailbox};
use super::port::{Opened, Port};
use super::security::{Role, Security, Stream};
use super::{Exchange, Listener, Network, TcpError, lock, random, wait};
use crate::gpu::{CombineError, Folded, digest, poison_of};
use crate::ids::{Job, Step, Task, Worker};
use crate::run::{NumberFormat, RunConfig};
use crate::transport::exchange::{SharedSums, Vectors};
use crate::transport::ledger::Ledgers;
use crate::transport::wire::{COORDINATOR, Up};
use crate::transport::{
    Notice, Order, Piece, RunFacts, State, Summand, Summed, Transport, Weighted, What,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{Instrument, info_span};

/// What a coordinator is told about its workers and their run.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Where to listen.
    pub address: SocketAddr,
    /// How peers know each other.
    pub security: Security,
    /// The run: a number that no other run has.
    pub run: u64,
    /// What the run is, as its engine is told.
    pub config: RunConfig,
    /// Who sums.
    pub exchange: Exchange,
    /// Whether every sum is sent to the coordinator too, if it does not sum itself.
    pub keeps: bool,
    /// First step that a replica made anew from the job has not applied; none if the job does not
    /// tell how to make one.
    pub first: Option<Step>,
    /// What is trained, in words that this program and the worker's understand.
    pub job: String,
    /// What workers are told of what is trained beside the length, units and micro-steps of
    /// `config`; [`RunFacts::of`] is all of that. Each worker's own word is compared with it, and
    /// what only a worker knows holds for those that come after it.
    pub facts: RunFacts,
    /// A worker that has said nothing for so long is given up.
    pub silence: Duration,
    /// An exchange in which nothing comes to somebody for so long is made again without whoever
    /// holds it up.
    pub stall: Duration,
    /// Where the scheme can spare a worker, 20 times as long as exchanges take is enough, and at
    /// least so long.
    pub spare: Duration,
}

impl Listen {
    /// A run begun with fresh replicas, everything else as is usual, to be changed field by field.
    #[must_use]
    pub fn new(address: SocketAddr, security: Security, config: RunConfig) -> Self {
        Self {
            address,
            security,
            run: random(),
            config,
            exchange: Exchange::default(),
            keeps: false,
            first: Some(Step(0)),
            job: String::new(),
            facts: RunFacts::default(),
            silence: Duration::from_secs(15),
            stall: Duration::from_secs(5),
            spare: Duration::from_millis(500),
        }
    }

    /// What is known of what is trained.
    pub(crate) fn all_facts(&self) -> RunFacts {
        let RunFacts { length, units, micro_steps, .. } = RunFacts::of(&self.config);
        RunFacts { length, units, micro_steps, ..self.facts.clone() }
    }
}

/// Who was there when a run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// Workers that have joined, and the first step that is not applied in the state of each.
    pub present: Vec<(Worker, Option<Step>)>,
    /// Workers that have not; they may come later.
    pub absent: Vec<Worker>,
}

/// What is known of one worker's connection.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerStatus {
    /// Its name.
    pub identity: String,
    /// Where it called from.
    pub address: String,
    /// Whether it is connected.
    pub connected: bool,
    /// How many times it has joined.
    pub epoch: u32,
    /// For how long nothing was heard of it.
    pub silent_seconds: f64,
}

/// What is known of a coordinator's connections.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TcpStatus {
    /// One entry per worker.
    pub workers: Vec<WorkerStatus>,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Exchanges that came to an end.
    pub exchanges: u64,
    /// How many of them a fabric made.
    #[serde(default)]
    pub woven: u64,
    /// Workers that can sum by a fabric now, among themselves.
    #[serde(default)]
    pub group: usize,
    /// Seconds of the last one, from the plan to the second holder.
    pub exchange_seconds: f64,
    /// Calls that were refused.
    pub refused: u64,
    /// Exchanges, sums and states that are kept.
    pub kept: u64,
}

#[derive(Debug)]
pub(super) enum Command {
    /// For one connection of a worker, which it had when the order was thought of; void on every
    /// other.
    Order(Worker, u32, Order),
    Reduce(u32, Step, Weighted),
    Discard(Worker, u32, Task),
    /// The state of a worker, whichever connection it has, for the coordinator.
    StateOf(Worker),
    Fold(Step, u32, Vec<Summand>),
    Release(Step, Job),
    MayLose(bool),
    Begin(Step, std::sync::mpsc::Sender<()>),
}

/// What the hub tells its transport.
#[derive(Debug)]
pub(super) enum Heard {
    /// The run has begun with these connections, 0 where there is none.
    Began(Vec<u32>),
    /// What came of a worker, and over which of its connections.
    Notice(Worker, u32, Notice),
}

/// For every number, what its worker came with, if it is there.
pub(super) type Offers = Vec<Option<Option<Step>>>;

/// The coordinator's side of a run over TCP.
#[derive(Debug)]
pub struct TcpTransport {
    address: SocketAddr,
    commands: mpsc::UnboundedSender<Vec<Command>>,
    /// Commands that are sent together once there is nothing else to decide.
    decided: Vec<Command>,
    notices: std::sync::mpsc::Receiver<Vec<Heard>>,
    bell: Bell,
    sums: SharedSums,
    /// What was received of results that workers send at once, if they do.
    held: Option<(Ledgers, Vectors)>,
    format: NumberFormat,
    status: Arc<Mutex<TcpStatus>>,
    offers: watch::Receiver<Offers>,
    /// What came with something else, or while something else was waited for.
    early: VecDeque<Heard>,
    /// The connection of each worker that orders are for: the last one of which the coordinator was
    /// told. Until it is told that a worker has called again, what it decides for that worker is
    /// meant for the lost connection.
    epochs: Vec<u32>,
    hub: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// A worker's first words, with what the connection tells of it.
pub(super) struct Caller {
    pub(super) stream: Stream,
    pub(super) from: SocketAddr,
    pub(super) role: Option<Role>,
    pub(super) hello: Up,
    /// Where it called.
    pub(super) door: Arc<Door>,
}

impl TcpTransport {
    /// Opens the port and lets workers in.
    ///
    /// # Errors
    /// [`TcpError`] when the port cannot be opened, or must not be without TLS.
    pub fn listen(listen: Listen) -> Result<Self, TcpError> {
        Port::open(listen.address, listen.security.clone(), listen.config.shape.workers)?
            .listen(listen)
    }

    /// Opens a port of any network, on the caller's runtime. Such a transport never waits:
    /// [`Transport::receive`] gives none when there is no notice yet, and [`TcpTransport::bell`]
    /// tells when to ask again; between [`TcpTransport::begin`] and the first step, its tasks need
    /// a moment.
    ///
    /// # Errors
    /// [`TcpError`] when the port cannot be opened, or must not be without TLS.
    pub async fn listen_over(network: Arc<dyn Network>, listen: Listen) -> Result<Self, TcpError> {
        let place = (listen.address, listen.security.clone());
        Opened::at(network, place, listen.config.shape.workers).await?.listen(listen)
    }

    /// At a port that is open, with those who call there.
    pub(super) fn over(
        listen: Listen,
        status: Arc<Mutex<TcpStatus>>,
        (calls, callers): (JoinHandle<()>, mpsc::Receiver<Caller>),
    ) -> Result<Self, TcpError> {
        let refused = match (listen.exchange, listen.config.format) {
            (_, NumberFormat::F16) => Some(TcpError::Format),
            (Exchange::NCCL, NumberFormat::Bf16) => Some(TcpError::Narrow),
            _ => None,
        };
        if let Some(error) = refused {
            calls.abort();
            return Err(error);
        }
        let (commands, commands_out) = mpsc::unbounded_channel();
        let (notices_in, notices, bell) = mailbox();
        let (offers_in, offers) = watch::channel(Offers::new());
        let (events, events_out) = mpsc::channel(256);
        let (address, format) = (listen.address, listen.config.format);
        let held = (listen.exchange == Exchange::HOLD)
            .then(|| (Ledgers::new(listen.config.shape.workers), Vectors::default()));
        let watched = Watched::new(notices_in, Arc::clone(&status), offers_in);
        let span = info_span!("run", run = listen.run);
        let workers = listen.config.shape.workers;
        let hub = Hub::new(listen, watched, held.clone(), events);
        let sums = hub.sums_here();
        let serving = async move {
            hub.serve(commands_out, events_out, callers).await;
            calls.abort();
        };
        let hub = tokio::spawn(serving.instrument(span));
        Ok(Self {
            address,
            commands,
            decided: Vec::new(),
            notices,
            bell,
            sums,
            held,
            format,
            status,
            offers,
            early: VecDeque::new(),
            epochs: vec![0; workers],
            hub: Some(hub),
            runtime: None,
        })
    }

    /// Keeps the runtime that its tasks are on.
    pub(super) fn keep(&mut self, runtime: Runtime) {
        self.runtime = Some(runtime);
    }

    /// Tells when there are notices; ends with the transport.
    #[must_use]
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all workers have joined, at most so long.
    pub fn gather(&mut self, patience: Duration) -> Gathered {
        if let Some(runtime) = &self.runtime {
            let all = self
                .offers
                .wait_for(|offers| !offers.is_empty() && offers.iter().all(Option::is_some));
            let _ = wait(runtime, async { tokio::time::timeout(patience, all).await.map(|_| ()) });
        }
        let offers = self.offers.borrow().clone();
        let workers = lock(&self.status).workers.len();
        let of = |worker: Worker| offers.get(worker.index()).copied().flatten();
        let present =
            Worker::all(workers).filter_map(|worker| Some((worker, of(worker)?))).collect();
        Gathered {
            present,
            absent: Worker::all(workers).filter(|worker| of(*worker).is_none()).collect(),
        }
    }

    /// The run begins with a step: workers that are not there count as lost until they come, those
    /// in another state are brought up to date first.
    pub fn begin(&mut self, start: Step) {
        let (done, begun) = std::sync::mpsc::channel();
        self.command(Command::Begin(start, done));
        self.flush();
        // What there is to say of the workers comes before their first tasks.
        if self.runtime.is_some() {
            let _ = begun.recv();
        }
    }

    /// The state of a worker's replica, unless it does not come in time.
    pub fn state_of(&mut self, worker: Worker, patience: Duration) -> Option<State> {
        self.command(Command::StateOf(worker));
        self.flush();
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut found = None;
            for heard in self.notices.recv_timeout(left).ok()? {
                match heard {
                    Heard::Notice(_, _, Notice::State { needy: Worker(COORDINATOR), state }) => {
                        found = Some(state);
                    }
                    other => self.early.push_back(other),
                }
            }
            if found.is_some() {
                return found;
            }
        }
    }

    /// What is known of the connections; it is kept up to date while the run goes on.
    #[must_use]
    pub fn status(&self) -> Arc<Mutex<TcpStatus>> {
        Arc::clone(&self.status)
    }

    fn command(&mut self, command: Command) {
        self.decided.push(command);
    }
}

impl Transport for TcpTransport {
    type Vector = Vec<f32>;

    fn send(&mut self, worker: Worker, order: Order) {
        self.command(Command::Order(worker, self.epochs[worker.index()], order));
    }

    fn flush(&mut self) {
        if !self.decided.is_empty()
            && self.commands.send(std::mem::take(&mut self.decided)).is_err()
        {
            tracing::debug!("the transport has ended");
        }
    }

    fn receive(&mut self, patience: Option<Duration>) -> Option<(Worker, Notice)> {
        loop {
            if self.early.is_empty() {
                let mut came = self.notices.try_recv().ok();
                if came.is_none() {
                    self.flush();
                    came = match patience {
                        _ if self.runtime.is_none() => None,
                        None => self.notices.recv().ok(),
                        Some(patience) => self.notices.recv_timeout(patience).ok(),
                    };
                }
                self.early.extend(came.into_iter().flatten());
            }
            match self.early.pop_front()? {
                Heard::Began(epochs) => self.epochs = epochs,
                Heard::Notice(worker, epoch, notice) => {
                    if matches!(notice, Notice::Joined { .. }) {
                        self.epochs[worker.index()] = epoch;
                    }
                    return Some((worker, notice));
                }
            }
        }
    }

    fn received(&mut self, piece: Piece) -> Option<Arc<Vec<f32>>> {
        let What::Result(task) = piece.what else { return None };
        self.held.as_ref()?.0.of(piece.worker).result(task).cloned()
    }

    fn reduce(&mut self, step: Step, result: Weighted) -> Result<(), CombineError> {
        if let Some((ledgers, vectors)) = &self.held {
            let spent = ledgers.of(result.worker).reduce(step, result.task, result.weight)?;
            spent.into_iter().for_each(|vector| vectors.give(vector));
        } else {
            self.command(Command::Reduce(self.epochs[result.worker.index()], step, result));
        }
        Ok(())
    }

    fn discard(&mut self, worker: Worker, task: Task) {
        if let Some((ledgers, vectors)) = &self.held {
            ledgers.of(worker).discard(task).into_iter().for_each(|vector| vectors.give(vector));
        } else {
            self.command(Command::Discard(worker, self.epochs[worker.index()], task));
        }
    }

    fn fold(
        &mut self,
        step: Step,
        attempt: u32,
        summands: &[Summand],
        length: usize,
    ) -> Result<Option<Summed>, CombineError> {
        if let Some((ledgers, vectors)) = &self.held {
            let mut gradient = vectors.take(length);
            let folded = ledgers.fold(step, summands, &mut gradient)?;
            let folded =
                if self.format == NumberFormat::Bf16 { rounded(&mut gradient) } else { folded };
            return Ok(Some(Summed { gradient, folded }));
        }
        self.command(Command::Fold(step, attempt, summands.to_vec()));
        Ok(None)
    }

    fn may_lose(&mut self, one: bool) {
        self.command(Command::MayLose(one));
    }

    fn sum(&self, step: Step, attempt: u32) -> Option<Arc<Vec<f32>>> {
        lock(&self.sums).vector(step, attempt)
    }

    fn release(&mut self, step: Step, end: Job) {
        if let Some((ledgers, vectors)) = &self.held {
            ledgers.release(step, end).into_iter().for_each(|vector| vectors.give(vector));
        }
        self.command(Command::Release(step, end));
    }

    fn forget(&mut self, worker: Worker) {
        self.held.iter().for_each(|(ledgers, _)| ledgers.forget(worker));
    }

    fn recycle(&mut self, vector: Vec<f32>) {
        if let Some((_, vectors)) = &self.held {
            vectors.give(Arc::new(vector));
        }
    }
}

/// Rounds a sum to what workers get of it in bf16: all hold the same bytes.
fn rounded(gradient: &mut [f32]) -> Folded {
    gradient.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
    Folded { digest: digest(gradient), finite: poison_of(gradient) == 0.0 }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.flush();
        let (closed, _) = mpsc::unbounded_channel();
        self.commands = closed;
        if let (Some(runtime), Some(hub)) = (self.runtime.take(), self.hub.take()) {
            // The last orders are still to be sent.
            let _ = wait(&runtime, async { tokio::time::timeout(2 * LAST_SUMS, hub).await });
            runtime.shutdown_background();
        }
    }
}

/// Takes calls, as many at a time as the door has places for.
pub(super) async fn answer(
    listener: Box<dyn Listener>,
    door: Arc<Door>,
    callers: mpsc::Sender<Caller>,
) {
    loop {
        let (stream, from, pass) = door.next(&*listener).await;
        let (door, callers) = (Arc::clone(&door), callers.clone());
        tokio::spawn(async move {
            let met = door.meet::<Up>(stream, &pass).await;
            drop(pass);
            match met {
                Ok((stream, peer, hello)) => {
                    drop(callers.send(Caller { stream, from, role: peer.role, hello, door }).await);
                }
                Err(reason) => door.refuse(from, &reason),
            }
        });
    }
}
