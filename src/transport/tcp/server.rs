//! The coordinator's end: the port, the workers behind it, and the exchanges they are told to make.

use super::block::Blocks;
use super::exchange::{Plan, share_out};
use super::members::{Members, Seat};
use super::pipe::{Frame, Incoming, Pipe, Shop, Stamp, Traffic, read_hello, run, write_first};
use super::security::{self, Gate, Role, Security, Stream};
use super::states::Arriving;
use super::summer::Summer;
use super::{DATA_WAITING_MAX, Exchange, HANDSHAKE, TcpError, runtime};
use crate::gpu::CombineError;
use crate::ids::{Job, Step, Task, Worker};
use crate::transport::wire::{self, COORDINATOR, Down, Format, Kind, Owner, TaskOrder, Up};
use crate::transport::{Notice, Order, State, Summand, Summed, Transport, Weighted};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

const TICK: Duration = Duration::from_millis(200);
const PING: Duration = Duration::from_secs(1);
/// An exchange may last so many times as long as the last ones before somebody is given up for it.
const PATIENCE_FACTOR: u32 = 20;

/// What a coordinator is told about its workers and their run.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Where to listen.
    pub address: SocketAddr,
    /// How peers know each other.
    pub security: Security,
    /// Number of workers.
    pub workers: usize,
    /// The run: a number that no other run has.
    pub run: u64,
    /// Numbers in a gradient.
    pub length: usize,
    /// Units of a batch.
    pub units: u32,
    /// Jobs whose sum is one step.
    pub micro_steps: u64,
    /// Decoded vectors that are kept for those who missed some.
    pub log_steps: u64,
    /// Format of vectors on the wire.
    pub format: Format,
    /// Who sums.
    pub exchange: Exchange,
    /// Whether every sum is sent to the coordinator too, if it does not sum itself.
    pub keeps: bool,
    /// First step that a replica made anew from the job has not applied; none if the job does not tell how to make one.
    pub first: Option<Step>,
    /// What is trained, in words that this program and the worker's understand.
    pub job: String,
    /// A worker that has said nothing for so long is given up.
    pub silence: Duration,
    /// An exchange that takes longer, and much longer than the last ones, is made again without whoever holds it up.
    pub stall: Duration,
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
}

/// What is known of a coordinator's connections.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Status {
    /// One entry per worker.
    pub workers: Vec<WorkerStatus>,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Exchanges that came to an end.
    pub exchanges: u64,
    /// Seconds of the last one, from the plan to the second holder.
    pub exchange_seconds: f64,
    /// Calls that were refused.
    pub refused: u64,
}

enum Command {
    Order(Worker, Order),
    Reduce(Step, Weighted),
    Discard(Worker, Task),
    Fold(Step, u32, Vec<Summand>),
    Release(Step, Job),
    Begin(Step),
}

/// For every number, what its worker came with, if it is there.
type Offers = Vec<Option<Option<Step>>>;

/// Sums that have come by, for [`Transport::sum`].
type Sums = Arc<Mutex<VecDeque<(Step, u32, Arc<Vec<f32>>)>>>;

/// The coordinator's side of a run over TCP.
#[derive(Debug)]
pub struct TcpTransport {
    address: SocketAddr,
    commands: mpsc::UnboundedSender<Command>,
    notices: std::sync::mpsc::Receiver<(Worker, Notice)>,
    sums: Sums,
    status: Arc<Mutex<Status>>,
    offers: watch::Receiver<Offers>,
    /// Notices that came while something else was waited for.
    early: VecDeque<(Worker, Notice)>,
    hub: Option<tokio::task::JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// A worker's first words, with what the connection tells of it.
struct Caller {
    stream: Stream,
    from: SocketAddr,
    role: Option<Role>,
    hello: Up,
}

/// An exchange that is not decided.
#[derive(Debug)]
struct Running {
    begun: Instant,
    holders: BTreeSet<u32>,
    /// Who says that it waits for whom.
    waiting: HashMap<u32, Vec<u32>>,
    /// Holders not reported yet, since the sum has not come by here.
    unreported: Vec<(Worker, Notice)>,
    done: bool,
}

struct Hub {
    listen: Listen,
    layout: u64,
    shop: Shop,
    members: Members,
    summer: Summer,
    running: BTreeMap<(Step, u32), Running>,
    /// Attempts at steps that are decided, and who holds them.
    decided: BTreeMap<Step, u32>,
    states: BTreeMap<Worker, (u32, Arriving)>,
    transfers: u64,
    exchange_time: Duration,
    pings: u64,
    pinged: Instant,
    begun: bool,
    notices: std::sync::mpsc::Sender<(Worker, Notice)>,
    sums: Sums,
    status: Arc<Mutex<Status>>,
    offers: watch::Sender<Offers>,
    events: mpsc::Sender<((u32, u32), Incoming)>,
}

impl TcpTransport {
    /// Opens the port and lets workers in.
    ///
    /// # Errors
    /// [`TcpError`] when the port cannot be opened, or must not be without TLS.
    pub fn listen(listen: Listen) -> Result<Self, TcpError> {
        security::check_address(listen.address, &listen.security)?;
        let runtime = runtime()?;
        let (commands, commands_out) = mpsc::unbounded_channel();
        let (notices_in, notices) = std::sync::mpsc::channel();
        let (offers_in, offers) = watch::channel(Offers::new());
        let sums = Sums::default();
        let status = Arc::new(Mutex::new(Status { workers: vec![WorkerStatus::default(); listen.workers], ..Status::default() }));
        let (sums_in, status_in) = (Arc::clone(&sums), Arc::clone(&status));
        let (address, hub) = runtime.block_on(async move {
            let refused = |source| TcpError::Listen { address: listen.address.to_string(), source };
            let listener = TcpListener::bind(listen.address).await.map_err(refused)?;
            let address = listener.local_addr().map_err(refused)?;
            let (events, events_out) = mpsc::channel(256);
            let (callers_in, callers) = mpsc::channel(16);
            tokio::spawn(answer(listener, listen.security.clone(), callers_in, Arc::clone(&status_in)));
            let layout = wire::layout(listen.length, listen.units, &listen.job);
            let stamp = Stamp { run: listen.run, epoch: 0, worker: COORDINATOR, layout, format: listen.format };
            let shop = Shop { stamp, blocks: Blocks::default(), traffic: Arc::new(Traffic::default()) };
            let kept = listen.log_steps as usize + 1;
            let hub = Hub {
                layout,
                members: Members::new(listen.workers),
                summer: Summer::new(COORDINATOR, listen.length, listen.format, shop.blocks.clone(), kept, Step(0)),
                shop,
                running: BTreeMap::new(),
                decided: BTreeMap::new(),
                states: BTreeMap::new(),
                transfers: 0,
                exchange_time: Duration::ZERO,
                pings: 0,
                pinged: Instant::now(),
                begun: false,
                notices: notices_in,
                sums: sums_in,
                status: status_in,
                offers: offers_in,
                events,
                listen,
            };
            Ok::<_, TcpError>((address, tokio::spawn(hub.serve(commands_out, events_out, callers))))
        })?;
        let early = VecDeque::new();
        Ok(Self { address, commands, notices, sums, status, offers, early, hub: Some(hub), runtime: Some(runtime) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all workers have joined, at most so long.
    pub fn gather(&mut self, patience: Duration) -> Gathered {
        if let Some(runtime) = &self.runtime {
            let all = self.offers.wait_for(|offers| !offers.is_empty() && offers.iter().all(Option::is_some));
            let _ = runtime.block_on(async { tokio::time::timeout(patience, all).await.map(|_| ()) });
        }
        let offers = self.offers.borrow().clone();
        let workers = lock(&self.status).workers.len();
        let of = |worker: Worker| offers.get(worker.index()).copied().flatten();
        let present = Worker::all(workers).filter_map(|worker| Some((worker, of(worker)?))).collect();
        Gathered { present, absent: Worker::all(workers).filter(|worker| of(*worker).is_none()).collect() }
    }

    /// The run begins with a step: workers that are not there count as lost until they come, those in another state are
    /// brought up to date first.
    pub fn begin(&mut self, start: Step) {
        self.command(Command::Begin(start));
    }

    /// The state of a worker's replica, unless it does not come in time.
    pub fn state_of(&mut self, worker: Worker, patience: Duration) -> Option<State> {
        self.send(worker, Order::Provide { needy: Worker(COORDINATOR) });
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.notices.recv_timeout(left).ok()? {
                (_, Notice::State { needy: Worker(COORDINATOR), state }) => return Some(state),
                other => self.early.push_back(other),
            }
        }
    }

    /// What is known of the connections; it is kept up to date while the run goes on.
    #[must_use]
    pub fn status(&self) -> Arc<Mutex<Status>> {
        Arc::clone(&self.status)
    }

    fn command(&self, command: Command) {
        if self.commands.send(command).is_err() {
            tracing::debug!("the transport has ended");
        }
    }
}

impl Transport for TcpTransport {
    fn send(&mut self, worker: Worker, order: Order) {
        self.command(Command::Order(worker, order));
    }

    fn receive(&mut self, patience: Option<Duration>) -> Option<(Worker, Notice)> {
        if let Some(early) = self.early.pop_front() {
            return Some(early);
        }
        match patience {
            None => self.notices.recv().ok(),
            Some(patience) => self.notices.recv_timeout(patience).ok(),
        }
    }

    fn reduce(&mut self, step: Step, result: Weighted) -> Result<(), CombineError> {
        self.command(Command::Reduce(step, result));
        Ok(())
    }

    fn discard(&mut self, worker: Worker, task: Task) {
        self.command(Command::Discard(worker, task));
    }

    fn fold(&mut self, step: Step, attempt: u32, summands: &[Summand], _: usize) -> Result<Option<Summed>, CombineError> {
        self.command(Command::Fold(step, attempt, summands.to_vec()));
        Ok(None)
    }

    fn sum(&self, step: Step, attempt: u32) -> Option<Arc<Vec<f32>>> {
        lock(&self.sums).iter().find(|sum| (sum.0, sum.1) == (step, attempt)).map(|sum| Arc::clone(&sum.2))
    }

    fn release(&mut self, step: Step, end: Job) {
        self.command(Command::Release(step, end));
    }

    fn forget(&mut self, _: Worker) {}

    fn recycle(&mut self, _: Vec<f32>) {}
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        let (closed, _) = mpsc::unbounded_channel();
        self.commands = closed;
        if let (Some(runtime), Some(hub)) = (self.runtime.take(), self.hub.take()) {
            // The last orders are still to be sent.
            let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(3), hub).await });
            runtime.shutdown_background();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes calls, as many strangers at a time as the gate lets in.
async fn answer(listener: TcpListener, security: Security, callers: mpsc::Sender<Caller>, status: Arc<Mutex<Status>>) {
    let gate = Gate::default();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(call) => call,
            Err(error) => {
                tracing::warn!("cannot take a call: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(pass) = gate.enter() else {
            lock(&status).refused += 1;
            continue;
        };
        let (security, callers, status) = (security.clone(), callers.clone(), Arc::clone(&status));
        tokio::spawn(async move {
            let _pass = pass;
            let checked = async {
                stream.set_nodelay(true).map_err(|error| error.to_string())?;
                let (mut stream, peer) = security::accept(stream, &security, HANDSHAKE).await.map_err(|error| error.to_string())?;
                let body = tokio::time::timeout(HANDSHAKE, read_hello(&mut stream)).await;
                let body = body.map_err(|_| "it says nothing".to_owned())?.map_err(|error| error.to_string())?;
                let hello = wire::decode::<Up>(&body)?;
                Ok::<_, String>(Caller { stream, from, role: peer.role, hello })
            };
            match checked.await {
                Ok(caller) => drop(callers.send(caller).await),
                Err(error) => {
                    lock(&status).refused += 1;
                    tracing::warn!("refused a call from {from}: {error}");
                }
            }
        });
    }
}

impl Hub {
    async fn serve(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut events: mpsc::Receiver<((u32, u32), Incoming)>,
        mut callers: mpsc::Receiver<Caller>,
    ) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                Some(((worker, epoch), incoming)) = events.recv() => self.incoming(worker, epoch, incoming),
                Some(caller) = callers.recv() => self.call(caller).await,
                _ = tick.tick() => self.tick(),
            }
            self.work();
        }
        // The writers send what waits before they end.
        let mut left: BTreeSet<(u32, u32)> = self.members.connected().map(|(worker, seat)| (worker, seat.epoch)).collect();
        let Self { members, events: own, .. } = self;
        drop((members, own));
        while let (false, Some((name, incoming))) = (left.is_empty(), events.recv().await) {
            if matches!(incoming, Incoming::Ended(_)) {
                left.remove(&name);
            }
        }
    }

    fn notify(&self, worker: Worker, notice: Notice) {
        let _ = self.notices.send((worker, notice));
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Order(worker, order) => self.order(worker, order),
            Command::Reduce(step, Weighted { worker, task, weight }) => self.members.tell(worker.0, &Down::Reduce { step, task, weight }),
            Command::Discard(worker, task) => self.members.tell(worker.0, &Down::Discard { task }),
            Command::Fold(step, attempt, summands) => self.fold(step, attempt, summands),
            Command::Release(step, end) => {
                self.members.tell_all(&Down::Release { step, end });
                self.running.iter_mut().filter(|(key, _)| key.0 == step).for_each(|(_, running)| running.done = true);
                let oldest = Step(step.0.saturating_sub(self.listen.log_steps + 1));
                self.running.retain(|key, _| key.0 >= oldest);
                self.decided.retain(|step, _| *step >= oldest);
            }
            Command::Begin(start) => {
                self.begun = true;
                self.summer.moved(start);
                for (worker, offer) in Worker::all(self.listen.workers).zip(self.members.offers()) {
                    match offer {
                        None => self.notify(worker, Notice::Lost { reason: "it has not come".into() }),
                        Some(next) if next == Some(start) => {}
                        Some(next) => {
                            self.notify(worker, Notice::Lost { reason: format!("it begins without the state of {start}") });
                            self.notify(worker, Notice::Joined { next });
                        }
                    }
                }
            }
        }
    }

    fn order(&mut self, worker: Worker, order: Order) {
        let down = match order {
            Order::Compute { tasks, .. } => {
                let tasks = tasks.into_iter().map(|(task, parts)| TaskOrder { task, parts }).collect();
                let Some(order) = self.members.next_order(worker.0) else { return };
                Down::Compute { order, tasks }
            }
            Order::Abandon => Down::Abandon,
            Order::Apply { step, attempt, decoded } => {
                self.decided.insert(step, attempt);
                self.summer.applied(step.next());
                Down::Apply { step, attempt, digest: decoded.digest, tail: decoded.tail.clone() }
            }
            Order::Skip { step, units } => Down::Skip { step, units: units.to_vec() },
            Order::Provide { needy } => Down::Provide { needy: needy.0 },
            Order::Take { state } => {
                self.transfers += 1;
                let lengths = state.vectors.iter().map(Vec::len).collect();
                self.members.tell(worker.0, &Down::Take { transfer: self.transfers, next: state.next, lengths });
                for frame in super::states::frames(&state, self.transfers) {
                    self.send(worker.0, frame, usize::MAX);
                }
                return;
            }
            Order::Stop => Down::Stop,
            Order::Hold { .. } => unreachable!("sums are held where they are made"),
        };
        self.members.tell(worker.0, &down);
    }

    fn send(&self, to: u32, frame: Frame, most: usize) {
        if !self.members.pipe(to).is_some_and(|pipe| pipe.send(frame, most)) {
            tracing::debug!("a chunk for {} is dropped", Worker(to));
        }
    }

    fn fold(&mut self, step: Step, attempt: u32, terms: Vec<Summand>) {
        let mut receivers: Vec<u32> = self.members.connected().map(|(worker, _)| worker).collect();
        let holders: BTreeSet<u32> = terms.iter().flat_map(|term| &term.holders).map(|piece| piece.worker.0).collect();
        let holders: Vec<u32> = holders.into_iter().filter(|worker| receivers.contains(worker)).collect();
        let star = self.listen.exchange == Exchange::Star || holders.is_empty();
        let owners: Vec<Owner> = share_out(if star { &[COORDINATOR] } else { &holders }, self.listen.length);
        let takes_part = star || self.listen.keeps;
        if takes_part {
            receivers.push(COORDINATOR);
        }
        // Whoever is gone meanwhile cannot be a source; the engine hears of it and folds again.
        let terms: Vec<Summand> = terms
            .into_iter()
            .map(|term| {
                let here = term.holders.iter().copied().filter(|piece| receivers.contains(&piece.worker.0)).collect::<Vec<_>>();
                Summand { holders: if here.is_empty() { term.holders } else { here }, ..term }
            })
            .collect();
        let message = Down::Exchange { step, attempt, terms: terms.clone(), owners: owners.clone(), receivers: receivers.clone() };
        self.members.tell_all(&message);
        let running =
            Running { begun: Instant::now(), holders: BTreeSet::new(), waiting: HashMap::new(), unreported: Vec::new(), done: false };
        self.running.insert((step, attempt), running);
        if takes_part {
            let mut none = Vec::new();
            let plan = Plan { step, attempt, terms, owners, receivers };
            for reason in self.summer.begin(plan, |_| None, Instant::now(), &mut none) {
                tracing::warn!("{step}, attempt {attempt}: {reason}");
            }
        }
    }

    /// Whether sums come by here.
    fn takes_part(&self) -> bool {
        self.listen.exchange == Exchange::Star || self.listen.keeps
    }

    fn incoming(&mut self, worker: u32, epoch: u32, incoming: Incoming) {
        if !self.members.heard(worker, epoch) {
            return;
        }
        match incoming {
            Incoming::Control(body) => match wire::decode::<Up>(&body) {
                Ok(message) => self.up(Worker(worker), message),
                Err(reason) => self.lose(worker, &reason),
            },
            Incoming::Chunk(header, block) if header.kind == Kind::State => {
                let state = self.states.get_mut(&Worker(worker)).and_then(|(needy, arriving)| {
                    arriving.chunk(&header, &block)?;
                    Some((*needy, arriving.take(header.number)?))
                });
                self.shop.blocks.give(block);
                if let Some((needy, state)) = state {
                    self.notify(Worker(worker), Notice::State { needy: Worker(needy), state });
                }
            }
            Incoming::Chunk(header, block) => {
                if let Err(reason) = self.summer.chunk(&header, worker, block, Instant::now()) {
                    self.lose(worker, &reason);
                }
            }
            Incoming::Ended(reason) => self.lose(worker, &reason),
        }
    }

    fn up(&mut self, worker: Worker, message: Up) {
        match message {
            Up::Done { order, task, tail, finite } if self.members.is_order(worker.0, order) => {
                self.notify(worker, Notice::Done { task, tail, finite });
            }
            Up::Freed { order } if self.members.is_order(worker.0, order) => self.notify(worker, Notice::Freed),
            Up::Done { .. } | Up::Freed { .. } | Up::Pong { .. } => {}
            Up::Held { step, attempt, digest } => self.held(worker, step, attempt, digest),
            Up::Overflowed { step, attempt } => self.notify(worker, Notice::Overflowed { step, attempt }),
            Up::Applied { step, digest } => self.notify(worker, Notice::Applied { step, digest }),
            Up::State { needy, transfer, next, lengths } => {
                let entry = self.states.entry(worker).or_default();
                entry.0 = needy;
                entry.1.expect(transfer, next, lengths);
            }
            Up::Missing { step } => self.missing(worker, step),
            Up::Waiting { step, attempt, on } => {
                if let Some(running) = self.running.get_mut(&(step, attempt)) {
                    running.waiting.insert(worker.0, on);
                }
            }
            Up::Hello { .. } => self.lose(worker.0, "it says hello twice"),
        }
    }

    fn held(&mut self, worker: Worker, step: Step, attempt: u32, digest: Option<u64>) {
        let own = self.summer.sum(step, attempt).map(|sum| sum.digest);
        let waits = self.takes_part() && own.is_none();
        let Some(running) = self.running.get_mut(&(step, attempt)) else { return };
        running.holders.insert(worker.0);
        running.waiting.remove(&worker.0);
        if running.holders.len() == 2 && !running.done {
            self.exchange_time = (self.exchange_time + running.begun.elapsed()) / 2;
            let mut status = lock(&self.status);
            (status.exchanges, status.exchange_seconds) = (status.exchanges + 1, running.begun.elapsed().as_secs_f64());
        }
        // Who takes no digest has checked that of every chunk.
        let Some(digest) = digest.or(own) else { return };
        let notice = Notice::Held { step, attempt, digest };
        if waits {
            running.unreported.push((worker, notice));
        } else {
            self.notify(worker, notice);
        }
    }

    /// A worker is to apply a step whose sum it does not have.
    fn missing(&mut self, worker: Worker, step: Step) {
        let Some(&attempt) = self.decided.get(&step) else {
            return self.notify(worker, Notice::Missed);
        };
        if !self.give(step, attempt, worker.0) {
            self.notify(worker, Notice::Missed);
        }
    }

    /// Has a sum sent to a node by somebody who has it; false if there is nobody.
    fn give(&mut self, step: Step, attempt: u32, to: u32) -> bool {
        if let Some(frames) = self.summer.give(step, attempt) {
            frames.into_iter().for_each(|frame| self.send(to, frame, usize::MAX));
            return true;
        }
        let running = self.running.get(&(step, attempt));
        let holder =
            running.and_then(|running| running.holders.iter().find(|holder| **holder != to && self.members.pipe(**holder).is_some()));
        let found = holder.copied();
        if let Some(holder) = found {
            self.members.tell(holder, &Down::Give { step, attempt, to });
        }
        found.is_some()
    }

    /// Sums chunks while nothing else is to be done.
    fn work(&mut self) {
        let mut out = Vec::new();
        while self.summer.work(&mut out) {
            for (to, frame) in std::mem::take(&mut out) {
                self.send(to, frame, DATA_WAITING_MAX);
            }
        }
        for (sum, _) in self.summer.finished(Instant::now()) {
            let (step, attempt) = (sum.step, sum.attempt);
            {
                let mut sums = lock(&self.sums);
                sums.push_back((step, attempt, Arc::clone(&sum.vector)));
                while sums.len() > 2 {
                    sums.pop_front();
                }
            }
            let reports = self.running.get_mut(&(step, attempt)).map(|running| std::mem::take(&mut running.unreported));
            for (worker, notice) in reports.into_iter().flatten() {
                self.notify(worker, notice);
            }
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.pinged) >= PING {
            self.pings += 1;
            self.pinged = now;
            self.members.tell_all(&Down::Ping { number: self.pings });
        }
        for worker in self.members.silent(now, self.listen.silence) {
            self.lose(worker, &format!("nothing was heard of it for {:.0} s", self.listen.silence.as_secs_f64()));
        }
        self.look_after_exchanges(now);
        let mut status = lock(&self.status);
        let traffic = &self.shop.traffic;
        (status.sent, status.received) = (traffic.sent.load(Relaxed), traffic.received.load(Relaxed));
    }

    /// Gives up whoever holds up an exchange for much longer than exchanges take.
    fn look_after_exchanges(&mut self, now: Instant) {
        let patience = self.listen.stall.max(self.exchange_time * PATIENCE_FACTOR);
        for (step, attempt, on) in self.summer.stalled(now, Duration::ZERO) {
            if let Some(running) = self.running.get_mut(&(step, attempt)) {
                running.waiting.insert(COORDINATOR, on);
            }
        }
        let needed = self.members.connected().count().min(2);
        let stuck = |running: &Running| !running.done && running.holders.len() < needed && now.duration_since(running.begun) > patience;
        let Some((_, running)) = self.running.iter().find(|(_, running)| stuck(running)) else { return };
        let mut blames: BTreeMap<u32, usize> = BTreeMap::new();
        running.waiting.values().flatten().for_each(|node| *blames.entry(*node).or_default() += 1);
        // Who waits itself is a victim, unless everybody waits.
        let culprit = blames
            .iter()
            .filter(|(node, _)| **node != COORDINATOR)
            .max_by_key(|(node, blames)| (!running.waiting.contains_key(node), **blames, std::cmp::Reverse(**node)));
        if let Some(worker) = culprit.map(|(worker, _)| *worker) {
            self.lose(worker, &format!("its vectors did not come for {:.1} s", patience.as_secs_f64()));
        }
    }

    /// A connection is given up, and the worker with it.
    fn lose(&mut self, worker: u32, reason: &str) {
        let Some(was_counted) = self.members.leave(worker) else { return };
        lock(&self.status).workers[worker as usize].connected = false;
        self.states.remove(&Worker(worker));
        self.announce();
        if was_counted && self.begun {
            self.notify(Worker(worker), Notice::Lost { reason: reason.into() });
        } else {
            tracing::warn!("{}: {reason}", Worker(worker));
        }
        // What it would still have sent of a sum that others have comes from them.
        let open: Vec<(Step, u32)> = self.running.iter().filter(|(_, running)| !running.done).map(|(key, _)| *key).collect();
        for (step, attempt) in open {
            let holders = self.running.get(&(step, attempt)).map(|running| running.holders.clone()).unwrap_or_default();
            let mut lacking: Vec<u32> =
                self.members.connected().map(|(worker, _)| worker).filter(|worker| !holders.contains(worker)).collect();
            if self.takes_part() && self.summer.sum(step, attempt).is_none() {
                lacking.push(COORDINATOR);
            }
            for node in lacking {
                self.give(step, attempt, node);
            }
        }
    }

    fn announce(&self) {
        self.offers.send_replace(self.members.offers());
        if self.listen.exchange == Exchange::Sharded {
            self.members.tell_all(&Down::Peers { peers: self.members.peers() });
        }
    }

    async fn call(&mut self, caller: Caller) {
        let Caller { mut stream, from, role, hello } = caller;
        let Up::Hello { worker, identity, address, offer } = hello else {
            tracing::warn!("refused a call from {from}: no hello");
            return;
        };
        let seat = match role {
            Some(Role::Coordinator) => Err("its certificate is the coordinator's".to_owned()),
            Some(Role::Worker(Worker(named))) if worker.is_some_and(|worker| worker != named) => {
                Err(format!("its certificate is worker {named}'s, it says it is worker {}", worker.unwrap_or_default()))
            }
            Some(Role::Worker(Worker(named))) => self.members.seat(Some(named), &identity),
            None => self.members.seat(worker, &identity),
        };
        let worker = match seat {
            Ok(worker) => worker,
            Err(reason) => {
                lock(&self.status).refused += 1;
                tracing::warn!("refused a call from {from} ({identity:?}): {reason}");
                let refusal = Down::Refused { reason };
                let _ = tokio::time::timeout(HANDSHAKE, write_first(&mut stream, &refusal)).await;
                return;
            }
        };
        self.lose(worker, "it has called again");
        let epoch = self.members.epoch(worker) + 1;
        let Listen { workers, run: id, length, micro_steps, log_steps, format, first, job, .. } = &self.listen;
        let welcome = Down::Welcome {
            worker,
            workers: *workers as u32,
            run: *id,
            epoch,
            length: *length,
            layout: self.layout,
            first: first.unwrap_or(Step(0)),
            micro_steps: *micro_steps,
            log_steps: *log_steps,
            format: *format,
            job: job.clone(),
        };
        if tokio::time::timeout(HANDSHAKE, write_first(&mut stream, &welcome)).await.is_err() {
            return;
        }
        let (pipe, queues) = Pipe::new();
        tokio::spawn(run(stream, queues, self.shop.clone(), (worker, epoch), self.events.clone()));
        let next = offer.filter(|offer| offer.run == *id).map(|offer| offer.next).or(*first);
        let seat = Seat { pipe, epoch, identity: identity.clone(), address, heard: Instant::now(), order: 0 };
        self.members.enter(worker, seat, next);
        lock(&self.status).workers[worker as usize] = WorkerStatus { identity, address: from.to_string(), connected: true, epoch };
        if self.begun {
            self.notify(Worker(worker), Notice::Joined { next });
        }
        self.announce();
    }
}
