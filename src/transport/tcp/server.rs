//! The coordinator's end: the port, the workers behind it, and the exchanges they are told to make.

use super::callers::Caller;
use super::commands::{Command, NodeEvent, Offers};
use super::coordinator::{CoordinatorNode, LAST_SUMS, NodeOutputs};
use super::listen::Listen;
use super::mailbox::{Waker, mailbox};
use super::status::TcpStatus;
use super::{Exchange, TcpError, wait};
use crate::gpu::{CombineError, SumCheck, digest, nonfinite_mask};
use crate::ids::{Piece, Step, Worker};
use crate::passes::{self, PassPlace};
use crate::run::NumberFormat;
use crate::sums::exchange::{CoordinatorEvent, SharedSums, Vectors};
use crate::sums::ledger::Ledgers;
use crate::sums::{SumCommand, SumId, lock};
use crate::transport::{
    CheckedSum, ExitReason, Notice, Order, RunFacts, Stage, SumRequest, Transport, UnneededItem,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{Instrument, info_span};

/// Who was there when a run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatheredWorkers {
    /// Workers that have joined, and the first step that is not applied in the state of each.
    pub present: Vec<(Worker, Option<Step>)>,
    /// Workers that have not; they may come later.
    pub absent: Vec<Worker>,
    /// What all workers that came say that they train, if some of them differ from those before
    /// them, by which they are not let in.
    pub told: Vec<(Worker, RunFacts)>,
    /// A worker whose script is wrong, and its last word: no run can begin.
    pub misuse: Option<(Worker, ExitReason)>,
}

/// The coordinator's side of a run over TCP.
#[derive(Debug)]
pub struct TcpTransport {
    address: SocketAddr,
    commands: mpsc::UnboundedSender<Vec<Command>>,
    /// Commands that are sent together once there is nothing else to decide.
    decided: Vec<Command>,
    notices: std::sync::mpsc::Receiver<Vec<NodeEvent>>,
    waker: Waker,
    sums: SharedSums,
    /// What was received of results that workers send at once, if they do.
    held: Option<(Ledgers, Vectors)>,
    /// Whether workers sum a step while it is computed, where it is known what of.
    overlaps: bool,
    format: NumberFormat,
    status: Arc<Mutex<TcpStatus>>,
    offers: watch::Receiver<Offers>,
    /// What came with something else, or while something else was waited for.
    early: VecDeque<NodeEvent>,
    /// The connection of each worker that orders are for: the last one of which the coordinator was
    /// told. Until it is told that a worker has called again, what it decides for that worker is
    /// meant for the lost connection.
    epochs: Vec<u32>,
    node: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl TcpTransport {
    /// At a port that is open, with those who call there, and the runtime that its tasks are on if
    /// that is its own.
    pub(super) fn over(
        listen: Listen,
        status: Arc<Mutex<TcpStatus>>,
        (calls, callers): (JoinHandle<()>, mpsc::Receiver<Caller>),
        runtime: Option<Runtime>,
    ) -> Result<Self, TcpError> {
        // Before the port lets a worker in: a run that cannot be must not have workers.
        let refused = match (listen.exchange, listen.config.format) {
            // No process reads its frames.
            (_, NumberFormat::F16) => Some(TcpError::Format),
            (Exchange::Nccl, NumberFormat::Bf16) => Some(TcpError::Narrow),
            _ => None,
        };
        if let Some(error) = refused {
            calls.abort();
            // As where a port cannot be opened.
            runtime.into_iter().for_each(Runtime::shutdown_background);
            return Err(error);
        }
        let (commands, commands_out) = mpsc::unbounded_channel();
        let (notices_in, notices, waker) = mailbox();
        let (offers_in, offers) = watch::channel(Offers::default());
        // Bounded, so that workers that send too fast are held up by TCP and not by memory.
        let (events, events_out) = mpsc::channel(256);
        let (address, format) = (listen.address, listen.config.format);
        let overlaps = listen.overlap && listen.exchange == Exchange::Sharded;
        let held = (listen.exchange == Exchange::Hold)
            .then(|| (Ledgers::new(listen.config.shape.workers), Vectors::default()));
        let watched = NodeOutputs::new(notices_in, Arc::clone(&status), offers_in);
        let span = info_span!("run", run = %format_args!("{:016x}", listen.run));
        let workers = listen.config.shape.workers;
        let node = CoordinatorNode::new(listen, watched, held.clone(), events);
        let sums = node.sums_here();
        let serving = async move {
            node.serve(commands_out, events_out, callers).await;
            calls.abort();
        };
        let node = tokio::spawn(serving.instrument(span));
        Ok(Self {
            address,
            commands,
            decided: Vec::new(),
            notices,
            waker,
            sums,
            held,
            overlaps,
            format,
            status,
            offers,
            early: VecDeque::new(),
            epochs: vec![0; workers],
            node: Some(node),
            runtime,
        })
    }

    /// Tells when there are notices; ends with the transport.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all workers have joined, at most so long.
    pub fn gather(&mut self, patience: Duration) -> GatheredWorkers {
        if let Some(runtime) = &self.runtime {
            let all = self.offers.wait_for(|Offers { places, .. }| {
                !places.is_empty() && places.iter().all(Option::is_some)
            });
            let _ = wait(runtime, async { tokio::time::timeout(patience, all).await.map(|_| ()) });
        }
        let offers = self.offers.borrow().clone();
        let workers = lock(&self.status).workers.len();
        let of = |worker: Worker| offers.places.get(worker.index()).copied().flatten();
        let present =
            Worker::all(workers).filter_map(|worker| Some((worker, of(worker)?))).collect();
        GatheredWorkers {
            present,
            absent: Worker::all(workers).filter(|worker| of(*worker).is_none()).collect(),
            told: offers.told,
            misuse: offers.misuse,
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

    /// Instead of [`TcpTransport::begin`]: there is no run, and all workers that have come are told
    /// why.
    pub fn refuse(&mut self, reason: &str) {
        self.command(Command::Refuse(reason.to_owned()));
        self.flush();
    }

    /// What is known of the connections; it is kept up to date while the run goes on.
    #[must_use]
    pub fn status(&self) -> Arc<Mutex<TcpStatus>> {
        Arc::clone(&self.status)
    }

    fn command(&mut self, command: Command) {
        self.decided.push(command);
    }

    fn sum(&mut self, event: CoordinatorEvent) {
        self.command(Command::Sum(event));
    }

    fn tell(&mut self, worker: Worker, command: SumCommand) {
        self.command(Command::Tell(worker, self.epochs[worker.index()], command));
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
                // Before waiting, and only then: decisions of one turn go to the node together,
                // which wakes up once for all of them.
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
                NodeEvent::Began(epochs) => self.epochs = epochs,
                NodeEvent::Notice(worker, epoch, notice) => {
                    // Only now does the engine know of the connection, and its orders can be meant
                    // for it.
                    if matches!(notice, Notice::Joined { .. }) {
                        self.epochs[worker.index()] = epoch;
                    }
                    return Some((worker, notice));
                }
            }
        }
    }

    fn received(&mut self, piece: Piece) -> Option<Arc<Vec<f32>>> {
        self.held.as_ref()?.0.vector(piece)
    }

    fn make_sum(&mut self, request: SumRequest<'_>) -> Result<Option<CheckedSum>, CombineError> {
        let SumRequest { sum, terms, length, spares_one, counted, stage } = request;
        if stage == Stage::Expected {
            if self.overlaps {
                self.sum(CoordinatorEvent::Expect { sum, terms: terms.to_vec() });
            }
            return Ok(None);
        }
        if let Some((ledgers, vectors)) = &self.held {
            let mut gradient = vectors.take(length);
            let folded = ledgers.fold(terms, &mut gradient)?;
            let folded =
                if self.format == NumberFormat::Bf16 { rounded(&mut gradient) } else { folded };
            return Ok(Some(CheckedSum { gradient, folded }));
        }
        let counted = counted.iter().map(|worker| worker.0).collect();
        let terms = terms.to_vec();
        self.sum(CoordinatorEvent::Sum { sum, terms, spares_one, counted });
        Ok(None)
    }

    fn sum(&self, sum: SumId) -> Option<Arc<Vec<f32>>> {
        self.sums.vector(sum)
    }

    fn forget(&mut self, what: UnneededItem) {
        match what {
            UnneededItem::Result { worker, task } if self.held.is_none() => {
                self.tell(worker, SumCommand::Discard { task });
            }
            UnneededItem::Step { step, end } => self.sum(CoordinatorEvent::Released { step, end }),
            _ => {}
        }
        let Some((ledgers, vectors)) = &self.held else { return };
        let spent = match what {
            UnneededItem::Result { worker, task } => {
                ledgers.of(worker).discard(task).into_iter().collect()
            }
            UnneededItem::Step { end, .. } => ledgers.release(end),
            UnneededItem::Worker(worker) => {
                ledgers.forget(worker);
                Vec::new()
            }
            UnneededItem::Vector(vector) => vec![Arc::new(vector)],
        };
        spent.into_iter().for_each(|vector| vectors.give(vector));
    }
}

/// Rounds a sum to what workers get of it in bf16: all hold the same bytes.
fn rounded(gradient: &mut [f32]) -> SumCheck {
    passes::count(PassPlace::Scale, 2 * size_of_val(gradient));
    gradient.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
    SumCheck { digest: digest(gradient), finite: nonfinite_mask(gradient) == 0.0 }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.flush();
        // The node ends when its commands do; a field cannot be dropped by itself.
        let (closed, _) = mpsc::unbounded_channel();
        self.commands = closed;
        if let (Some(runtime), Some(node)) = (self.runtime.take(), self.node.take()) {
            // The last orders are still to be sent.
            let _ = wait(&runtime, async { tokio::time::timeout(2 * LAST_SUMS, node).await });
            runtime.shutdown_background();
        }
    }
}
