//! How a coordinator's run is going, kept by the coordinator and shown by it over HTTP.

mod unanswered;

use crate::tools::http::{HttpServer, Page};
use crate::tools::status::{OfWorker, Progress, StatusView};
use anyhow::Context;
use codedgrad::doctor::WorkerProcess;
use codedgrad::ids::Worker;
use codedgrad::train::{Incident, IncidentKind, StepRecord, WaitingRound};
use codedgrad::transport::tcp;
use codedgrad_shell::clock::unix_seconds;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::families;
use codedgrad_shell::layout::Width;
use codedgrad_shell::pool::Bounds;
use codedgrad_shell::shared::lock;
use codedgrad_shell::steps::{has_left, late};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use unanswered::DoubtfulRounds;

/// A round that is open for a shorter time, in seconds, is as it should be.
const OPEN_LEAST: f64 = 1.0;

/// A round that is open for longer than so many times its first answer more was held up.
const MU: f64 = 1.0;

/// What is known of the step that is open, and of those that were open for long.
#[derive(Debug, Default)]
struct WaitState {
    waiting: Option<WaitingRound>,
    stuck: u64,
}

/// Whether a scheme can close a round without a worker, worked out once for each.
#[derive(Debug, Default)]
struct Tolerant(Option<(String, bool)>);

impl Tolerant {
    fn is(&mut self, scheme: &str, workers: usize, units: u32) -> bool {
        if let Some((_, tolerant)) = self.0.as_ref().filter(|(known, _)| known == scheme) {
            return *tolerant;
        }
        let found = families::scheme(scheme).and_then(|spec| spec.scheme(workers, units, 0..1));
        let tolerant = found.is_ok_and(|scheme| scheme.facts().tolerance > 0);
        self.0 = Some((scheme.to_owned(), tolerant));
        tolerant
    }
}

/// The state of a run, for those who ask.
#[derive(Debug)]
pub(crate) struct Board {
    tolerant: Mutex<Tolerant>,
    progress: Mutex<Progress>,
    open: Mutex<WaitState>,
    /// Of each worker the rounds that closed without its answer, until it is known why.
    doubtful: Mutex<Vec<DoubtfulRounds>>,
    network: Arc<Mutex<tcp::TcpStatus>>,
}

impl Board {
    pub(crate) fn new(
        scheme: &str,
        workers: usize,
        network: Arc<Mutex<tcp::TcpStatus>>,
    ) -> Arc<Self> {
        let count = workers;
        let workers = vec![OfWorker::default(); count];
        let progress = Progress { scheme: scheme.into(), workers, ..Progress::default() };
        Arc::new(Self {
            tolerant: Mutex::default(),
            progress: Mutex::new(progress),
            open: Mutex::default(),
            doubtful: Mutex::new(vec![DoubtfulRounds::default(); count]),
            network,
        })
    }

    /// Fewer workers than all may make the run.
    pub(crate) fn in_pool(&self, bounds: Option<Bounds>) {
        lock(&self.progress).upkeep.bounds = bounds;
    }

    /// What was said of that.
    pub(crate) fn bounds(&self) -> Option<Bounds> {
        lock(&self.progress).upkeep.bounds
    }

    /// Who is there, if seats are empty and may be.
    pub(crate) fn seats_taken(&self) -> Option<String> {
        self.bounds()?;
        let there = lock(&self.network).connected();
        let (taken, all) = (there.len(), there.capacity());
        let names = || Worker::listed(&there.iter().collect::<Vec<_>>());
        (taken < all).then(|| format!("{taken} of {all} workers: {}", names()))
    }

    /// A step of so many units is decided.
    pub(crate) fn step(&self, record: &StepRecord, units: u32) {
        lock(&self.open).waiting = None;
        let mut progress = lock(&self.progress);
        let scheme = record.under.using.as_ref().map_or(&progress.scheme, |using| &using.scheme);
        let workers = progress.workers.len();
        let can_wait_out = lock(&self.tolerant).is(scheme, workers, units);
        progress.steps = record.step + 1;
        let now = unix_seconds();
        progress.upkeep.began.get_or_insert(now - record.seconds);
        progress.upkeep.decided = now;
        if let Some(plan) = &record.under.plan {
            progress.upkeep.plan = Some(plan.clone());
            progress.upkeep.plans += 1;
        }
        for spent in &record.spent {
            if let Some(of) = progress.workers.get_mut(spent.worker.index()) {
                of.computing_seconds += spent.computed;
                of.elsewhere_seconds += (spent.came - spent.computed).max(0.0);
            }
        }
        progress.last_step_seconds = record.seconds;
        progress.step_seconds += record.seconds;
        progress.last_decode_seconds = record
            .rounds
            .last()
            .map_or(0.0, |round| record.committed - round.opened - round.seconds);
        progress.decode_seconds += progress.last_decode_seconds;
        let mut doubtful = lock(&self.doubtful);
        for round in &record.rounds {
            progress.rounds += 1;
            progress.last_round_seconds = round.seconds;
            progress.round_seconds += round.seconds;
            let first = round.arrivals.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            let median = round.median_arrival().filter(|median| *median > 0.0);
            let kept_open = can_wait_out && round.seconds > (1.0 + MU) * first;
            progress.wait_outs += u64::from(kept_open);
            let late = late(round);
            let workers = Worker::all(round.arrivals.len());
            for (number, (arrival, worker)) in
                workers.zip(round.arrivals.iter().zip(&mut progress.workers))
            {
                let is_late = late.contains(&number) || round.erased.contains(&number);
                worker.answers += u64::from(arrival.is_some());
                worker.last_arrival = arrival.or(worker.last_arrival);
                worker.late_rounds += u64::from(is_late);
                worker.missed_rounds += u64::from(arrival.is_none() && is_late);
                if let (None, false, Some(median)) = (arrival, is_late, median) {
                    doubtful[number.index()].push(round.round, median);
                }
                worker.abandoned += u64::from(arrival.is_none());
                worker.took(arrival.and_then(|arrival| Some(arrival / median?)));
                worker.lateness_seconds += (arrival.unwrap_or(round.seconds) - first).max(0.0);
                worker.ended(match arrival {
                    _ if round.erased.contains(&number) => 'x',
                    Some(_) if is_late => 'L',
                    Some(_) => '.',
                    None if is_late => 'x',
                    None => '-',
                });
            }
        }
        let newest = record.rounds.last().map(|round| round.round);
        for (doubtful, (number, worker)) in
            doubtful.iter_mut().zip((0..).map(Worker).zip(&mut progress.workers))
        {
            let reports = record.spent.iter().filter(|spent| spent.worker == number);
            for verdict in newest.map_or(Vec::new(), |newest| doubtful.settle(reports, newest)) {
                worker.unused_rounds += u64::from(!verdict.missed);
                worker.late_rounds += u64::from(verdict.missed);
                worker.missed_rounds += u64::from(verdict.missed);
                if verdict.missed {
                    worker.ended_before(newest.unwrap_or(0) - verdict.round, 'x');
                }
            }
        }
    }

    fn fault(&self, worker: Worker, what: &str) {
        let mut progress = lock(&self.progress);
        progress.faults.count += 1;
        progress.faults.last = Some(format!("{worker}: {what}"));
        if let Some(of) = progress.workers.get_mut(worker.index()) {
            of.faults += 1;
        }
    }

    /// To which process something has happened, or to which a worker was last.
    pub(crate) fn process_of(&self, happened: &Incident) -> Option<WorkerProcess> {
        let worker = happened.what.worker()?;
        let network = lock(&self.network);
        let told = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let status = network.workers.get(worker.index());
        Some(WorkerProcess {
            identity: status.and_then(|status| told(&status.identity)),
            domain: status.and_then(|status| told(&status.domain)),
        })
    }

    /// A step is open.
    pub(crate) fn waiting(&self, waiting: &WaitingRound) {
        if waiting.open_seconds >= OPEN_LEAST {
            lock(&self.open).waiting = Some(waiting.clone());
        }
    }

    /// Something has happened.
    pub(crate) fn happened(&self, happened: &Incident) {
        let what = &happened.what;
        match what.worker() {
            Some(worker) if what.is_fault() => self.fault(worker, &what.to_string()),
            None if matches!(what, IncidentKind::Stuck { .. }) => lock(&self.open).stuck += 1,
            _ => {}
        }
        let mut progress = lock(&self.progress);
        progress.upkeep.left += u64::from(has_left(happened));
        let kind = happened.what.kind();
        let worker = happened.what.worker().map(Worker::index);
        if let Some(of) = worker.and_then(|worker| progress.workers.get_mut(worker)) {
            match kind {
                "join" => of.away = None,
                // Whoever has left, or is drained, then hangs up.
                "lost" if of.away.is_some() => {}
                "lost" | "left" | "drained" => of.away = Some(kind.into()),
                _ => {}
            }
        }
    }

    /// It is known with which step the run begins, and how many there are.
    pub(crate) fn begins(&self, step: u64, steps: u64) {
        let mut progress = lock(&self.progress);
        (progress.steps, progress.steps_planned) = (step, steps);
    }

    /// As people read it.
    pub(crate) fn table(&self, width: Width) -> String {
        self.shown().table(width)
    }

    fn shown(&self) -> StatusView {
        let open = lock(&self.open);
        StatusView {
            waiting: open.waiting.clone(),
            stuck: open.stuck,
            progress: lock(&self.progress).clone(),
            network: lock(&self.network).clone(),
        }
    }

    /// Shows it at an address.
    pub(crate) fn serve(self: &Arc<Self>, address: SocketAddr) -> Result<HttpServer, Failure> {
        let board = Arc::clone(self);
        let pages = move |path: &str| match path {
            "/metrics" => Some(Page {
                kind: "text/plain; version=0.0.4; charset=utf-8",
                body: board.shown().metrics(),
            }),
            "/status" => Some(Page {
                kind: "application/json",
                body: serde_json::to_string(&board.shown()).ok()? + "\n",
            }),
            "/" => Some(Page {
                kind: "text/plain; charset=utf-8",
                body: board.shown().table(Width::ENDLESS),
            }),
            _ => None,
        };
        HttpServer::serve(address, pages).with_context(|| format!("--metrics {address}")).or_input()
    }
}

impl StatusView {
    /// As Prometheus reads it.
    fn metrics(&self) -> String {
        let mut text = String::new();
        self.metrics_of_rounds(&mut text);
        self.metrics_of_network(&mut text);
        self.metrics_of_workers(&mut text);
        text
    }

    fn metrics_of_rounds(&self, text: &mut String) {
        let progress = &self.progress;
        let mut one = metrics_into(text);
        one("steps_total", "counter", "Steps decided.", progress.steps as f64);
        one("steps_planned", "gauge", "Steps of the whole run.", progress.steps_planned as f64);
        one("rounds_total", "counter", "Rounds closed.", progress.rounds as f64);
        one(
            "round_seconds",
            "gauge",
            "How long the last round was open.",
            progress.last_round_seconds,
        );
        one(
            "round_seconds_total",
            "counter",
            "How long all rounds were open.",
            progress.round_seconds,
        );
        let waiting = self.waiting.as_ref();
        one(
            "round_open_seconds",
            "gauge",
            "How long the round that is open waits, if that is a second or more.",
            waiting.map_or(0.0, |waiting| waiting.open_seconds),
        );
        one(
            "round_missing",
            "gauge",
            "Workers that have not answered in it.",
            waiting.map_or(0.0, |waiting| waiting.missing.len() as f64),
        );
        one(
            "stuck_total",
            "counter",
            "Rounds that were open for much longer than usual.",
            self.stuck as f64,
        );
        if let Some(share) = progress.effective() {
            let help = "Share of the time since the first step that steps took.";
            one("effective_ratio", "gauge", help, share);
        }
        if let Some(plan) = &progress.upkeep.plan {
            let members = plan.members.len() as f64;
            one("members", "gauge", "Workers that the run is planned for.", members);
            let help = "How often the run was planned, for those who were fit then.";
            one("plans_total", "counter", help, progress.upkeep.plans as f64);
        }
        let help = "Workers that have left, or were let go since they were about to.";
        one("left_total", "counter", help, progress.upkeep.left as f64);
        one("step_seconds", "gauge", "How long the last step took.", progress.last_step_seconds);
        one("step_seconds_total", "counter", "How long all steps took.", progress.step_seconds);
        one(
            "wait_outs_total",
            "counter",
            "Rounds kept open though the scheme tolerates an absent worker.",
            progress.wait_outs as f64,
        );
        one(
            "decode_seconds",
            "gauge",
            "From the close of the last round to its step's commit.",
            progress.last_decode_seconds,
        );
        one("decode_seconds_total", "counter", "The same of all steps.", progress.decode_seconds);
        one(
            "faults_total",
            "counter",
            "Faults of workers that were survived.",
            progress.faults.count as f64,
        );
    }

    fn metrics_of_network(&self, text: &mut String) {
        let network = &self.network;
        let connected = network.connected().len();
        let mut one = metrics_into(text);
        one("workers_connected", "gauge", "Workers connected now.", connected as f64);
        one("sent_bytes_total", "counter", "Bytes the coordinator has sent.", network.sent as f64);
        one(
            "received_bytes_total",
            "counter",
            "Bytes the coordinator has received.",
            network.received as f64,
        );
        one(
            "exchanges_total",
            "counter",
            "Exchanges of vectors that ended.",
            network.sums.exchanges as f64,
        );
        one(
            "exchanges_by_collective_total",
            "counter",
            "Those of them that workers made by NCCL.",
            network.sums.by_collective as f64,
        );
        one(
            "exchanges_expected_total",
            "counter",
            "Sums that workers were told to begin while their step was computed.",
            network.sums.expected as f64,
        );
        one(
            "exchanges_confirmed_total",
            "counter",
            "Steps that were made of such a sum.",
            network.sums.confirmed as f64,
        );
        one(
            "exchanges_replaced_total",
            "counter",
            "Steps that were made of another sum than was expected.",
            network.sums.replaced as f64,
        );
        one(
            "group_workers",
            "gauge",
            "Workers whose GPUs can sum by NCCL now.",
            network.sums.group as f64,
        );
        one(
            "exchange_seconds",
            "gauge",
            "How long the last exchange took.",
            network.sums.exchange_seconds,
        );
        one("refused_calls_total", "counter", "Calls that were refused.", network.refused as f64);
    }

    fn metrics_of_workers(&self, text: &mut String) {
        let Self { progress, network, .. } = self;
        let mut each =
            |name: &str,
             kind: &str,
             help: &str,
             value: &dyn Fn(&OfWorker, &tcp::WorkerStatus) -> Option<f64>| {
                let _ = write!(
                    text,
                    "# HELP codedgrad_worker_{name} {help}\n# TYPE codedgrad_worker_{name} {kind}\n"
                );
                for (number, (of, status)) in
                    progress.workers.iter().zip(&network.workers).enumerate()
                {
                    if let Some(value) = value(of, status) {
                        let _ = writeln!(
                            text,
                            "codedgrad_worker_{name}{{worker=\"{number}\"}} {value}"
                        );
                    }
                }
            };
        each("connected", "gauge", "Whether it is connected.", &|_, status| {
            Some(f64::from(u8::from(status.connected)))
        });
        each("silent_seconds", "gauge", "For how long nothing was heard of it.", &|_, status| {
            status.connected.then_some(status.silent_seconds)
        });
        each("joins_total", "counter", "How many times it has joined.", &|_, status| {
            Some(f64::from(status.epoch))
        });
        each("answers_total", "counter", "Rounds in which it answered in time.", &|of, _| {
            Some(of.answers as f64)
        });
        each("arrival_seconds", "gauge", "Its last answer, since the round opened.", &|of, _| {
            of.last_arrival
        });
        each("late_rounds_total", "counter", "Rounds it was late in, or absent.", &|of, _| {
            Some(of.late_rounds as f64)
        });
        each(
            "missed_rounds_total",
            "counter",
            "Rounds that closed without its answer, which was late or never came.",
            &|of, _| Some(of.missed_rounds as f64),
        );
        each(
            "unused_rounds_total",
            "counter",
            "Rounds that closed shortly before its answer, which was not needed.",
            &|of, _| Some(of.unused_rounds as f64),
        );
        each(
            "lateness_seconds_total",
            "counter",
            "How much later than the first it was.",
            &|of, _| Some(of.lateness_seconds),
        );
        each(
            "computing_seconds_total",
            "counter",
            "How long it has computed, as it reports.",
            &|of, _| Some(of.computing_seconds),
        );
        each(
            "elsewhere_seconds_total",
            "counter",
            "How much longer its answers took: network, queues, its host.",
            &|of, _| Some(of.elsewhere_seconds),
        );
        each("abandoned_total", "counter", "Rounds that closed without its answer.", &|of, _| {
            Some(of.abandoned as f64)
        });
        each(
            "ratio",
            "gauge",
            "Its answers over the median answers of their rounds, the mean of the last 50.",
            &|of, _| of.ratio(),
        );
        each("faults_total", "counter", "Its faults.", &|of, _| Some(of.faults as f64));
    }
}

/// Writes metrics that have one value: name, kind, help, value.
fn metrics_into(text: &mut String) -> impl FnMut(&str, &str, &str, f64) {
    |name, kind, help, value| {
        let _ = write!(
            text,
            "# HELP codedgrad_{name} {help}\n# TYPE codedgrad_{name} {kind}\ncodedgrad_{name} \
             {value}\n"
        );
    }
}

#[cfg(test)]
mod tests;
