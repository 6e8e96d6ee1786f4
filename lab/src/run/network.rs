//! Training runs over TCP: what workers are told, the coordinator's port, and workers that this
//! process starts.

use super::checkpoint;
use super::plan::Plan;
use crate::trainer::{Batches, LocalRun, ReplicaState, RunStart, StepRange, Tokens, run_judged};
use anyhow::{Context, anyhow};
use codedgrad::files;
use codedgrad::ids::{Step, Worker, WorkerSet};
use codedgrad::train::{Observer, Outcome, RunClock};
use codedgrad::transport::RunFacts;
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Listen, TcpError, TcpTransport};
use codedgrad_cli::port::TOKEN;
use codedgrad_shell::clock::now;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families::RunScheme;
use codedgrad_shell::folder::RunFolder;
use codedgrad_shell::shared::lock;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// States from which workers of this host begin.
const START: &str = "start.safetensors";
/// No worker says so much before it joins.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// How often it is looked whether workers have come.
const LOOK: Duration = Duration::from_millis(20);
/// How long workers that this process starts may take to join.
const JOIN: Duration = Duration::from_secs(120);
/// How long, in seconds, they call this process when they cannot reach it, and it waits for them.
pub(crate) const CHILD_PATIENCE: u32 = 5;

/// What a worker is told: the plan, which text it is about, and where to begin if that is not the
/// plan's beginning.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    /// The scheme, for workers whose tasks are mixtures.
    scheme: RunScheme,
    tokens: usize,
    digest: String,
    /// A file of this host with the states at the first step.
    state: Option<PathBuf>,
}

impl Job {
    /// Whether a worker has the run's text.
    pub(crate) fn check(&self, tokens: &Tokens) -> Result<(), Failure> {
        let (here, digest) = (tokens.tokens.len(), digest_of(tokens));
        if (here, &digest) == (self.tokens, &self.digest) {
            return Ok(());
        }
        Err(Failure::Input(anyhow!(
            "the text here has {here} tokens with digest {digest}, the run's has {} with digest \
             {}: \
             give the run's text with --corpus (and its tokenizer with --tokenizer)",
            self.tokens,
            self.digest
        )))
    }

    /// The states in which a worker begins.
    pub(crate) fn states(&self) -> Result<Vec<ReplicaState>, Failure> {
        match &self.state {
            Some(path) => {
                checkpoint::load_from(path, &self.plan.training.model, self.plan.jobs.models)
            }
            None => self.plan.fresh_states(),
        }
    }

    /// The run as far as it is a worker's affair.
    pub(crate) fn run(&self) -> Result<LocalRun, Failure> {
        self.plan.local_run(&self.scheme.first())
    }
}

fn digest_of(tokens: &Tokens) -> String {
    format!("{:016x}", tokens.digest())
}

/// Opens the coordinator's port for a plan. Workers begin at `first`, in the states of the file if
/// there is one.
pub(crate) fn listen(
    run: &LocalRun,
    plan: &Plan,
    batches: &Batches,
    (address, security): (SocketAddr, Security),
    from: (Step, Option<PathBuf>),
) -> Result<TcpTransport, Failure> {
    let (first, state) = from;
    let job = Job {
        plan: plan.of_worker(),
        scheme: RunScheme::Fixed(run.scheme.clone()),
        tokens: batches.tokens().tokens.len(),
        digest: digest_of(batches.tokens()),
        state,
    };
    let range = StepRange { step: 0, end: plan.all_steps(), round: 0 };
    let config = *run.engine(range).or_input()?.config();
    let looked_at = plan.natural(&run.scheme)?.looks_at_results();
    let listen = Listen {
        run: plan.sums.id,
        exchange: plan.sums.exchange.exchange().for_results_received(looked_at),
        keeps: true,
        first: Some(first),
        job: serde_json::to_string(&job).or_work()?,
        facts: RunFacts { dtype: Some("f32".to_owned()), ..RunFacts::of(&config) },
        ..Listen::new(address, security, config)
    };
    TcpTransport::listen(listen).map_err(|error| match error {
        TcpError::Security(_) => Failure::Input(error.into()),
        _ => Failure::Work(error.into()),
    })
}

/// Which of the workers are there.
pub(crate) fn connected(transport: &TcpTransport) -> WorkerSet {
    lock(&transport.status()).connected()
}

/// Waits until all workers have joined, `patience` is over, or `stop` says so: it is told how many
/// there are and how long that took.
pub(crate) fn wait_for(
    transport: &TcpTransport,
    workers: usize,
    patience: Duration,
    stop: &mut dyn FnMut(usize, Duration) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let begun = now();
    loop {
        let (there, waited) = (connected(transport).len(), begun.elapsed());
        if there == workers || waited >= patience || stop(there, waited)? {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

/// A range of a run to be made.
pub(crate) struct Leg<'a> {
    pub(crate) run: &'a LocalRun,
    pub(crate) plan: &'a Plan,
    pub(crate) batches: &'a Batches,
    pub(crate) folder: &'a RunFolder,
    pub(crate) start: RunStart<'a>,
}

/// Workers that have joined, and their processes if this one has started them.
pub(crate) struct Team {
    transport: TcpTransport,
    crew: Option<Crew>,
}

impl Team {
    /// Those that others have started, for a run that begins with a step.
    pub(crate) fn of(mut transport: TcpTransport, step: Step) -> Self {
        transport.begin(step);
        Self { transport, crew: None }
    }

    /// Starts a process per worker on this host; none if that was interrupted.
    pub(crate) fn start(leg: &Leg<'_>, interrupted: &AtomicBool) -> Result<Option<Self>, Failure> {
        let Leg { run, plan, batches, folder, start } = leg;
        let (step, file) = (Step(start.step), std::path::absolute(folder.file(START)).or_work()?);
        checkpoint::save_as(folder, START, start.step, start.states).or_work()?;
        let (token, path) = (Token::fresh().or_work()?, folder.file(TOKEN));
        if path.exists() {
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot replace {}", path.display()))
                .or_work()?;
        }
        token.write(&path).or_work()?;
        let port = ((Ipv4Addr::LOCALHOST, 0).into(), Security::Plain { token });
        let mut transport = listen(run, plan, batches, port, (step, Some(file)))?;
        let mut crew = Crew::start(folder, &transport.address().to_string(), plan.shape.workers)?;
        let mut stop = |_, _| {
            crew.all_there()?;
            Ok(interrupted.load(Ordering::Relaxed))
        };
        wait_for(&transport, plan.shape.workers, JOIN, &mut stop)?;
        if interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        transport.begin(step);
        Ok(Some(Self { transport, crew: Some(crew) }))
    }

    /// Makes the steps of a run.
    pub(crate) fn carry(
        self,
        run: &LocalRun,
        range: StepRange,
        batches: &Batches,
        run_clock: RunClock,
        observer: &mut dyn Observer,
    ) -> anyhow::Result<Outcome> {
        let outcome = run_judged(run, self.transport, range, batches, run_clock, observer);
        // However it ended, they were told so, and what they say last is kept in their logs.
        if let Some(mut crew) = self.crew {
            crew.let_end();
        }
        Ok(outcome?)
    }
}

/// Worker processes of this one; they end with it.
struct Crew(Vec<(PathBuf, Child)>);

impl Crew {
    fn start(folder: &RunFolder, address: &str, workers: usize) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().context("cannot tell where this program is").or_work()?;
        let mut crew = Self(Vec::new());
        for worker in Worker::all(workers) {
            let log = folder.file(&format!("worker-{}.log", worker.0));
            let child = start_worker(&program, &log, folder, (worker, address));
            crew.0.push((log, child.with_context(|| format!("cannot start {worker}")).or_work()?));
        }
        Ok(crew)
    }

    /// Fails if one has ended, with what it said last.
    fn all_there(&mut self) -> Result<(), Failure> {
        for (log, child) in &mut self.0 {
            if let Some(status) = child.try_wait().or_work()? {
                let said = files::read_text(log, LOG_BYTES_MAX).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(Failure::Work(anyhow!(
                    "a worker ended before the run began ({status}): {last}; see {}",
                    log.display()
                )));
            }
        }
        Ok(())
    }

    /// Gives them a moment to end by themselves.
    fn let_end(&mut self) {
        for _ in 0..100 {
            if self.0.iter_mut().all(|(_, child)| matches!(child.try_wait(), Ok(Some(_)))) {
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (log, child) in &mut self.0 {
            if let Ok(None) = child.try_wait()
                && let Err(error) = child.kill()
            {
                tracing::warn!("cannot end the worker of {}: {error}", log.display());
            }
        }
        self.0.iter_mut().for_each(|(_, child)| drop(child.wait()));
    }
}

fn start_worker(
    program: &Path,
    log: &Path,
    folder: &RunFolder,
    (worker, address): (Worker, &str),
) -> anyhow::Result<Child> {
    let said = files::open_regular(log, File::options().create(true).append(true))
        .with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(program);
    command.args([
        "worker",
        "--join",
        address,
        "--patience",
        &CHILD_PATIENCE.to_string(),
        "--worker",
        &worker.0.to_string(),
        "--token",
    ]);
    command.arg(folder.file(TOKEN)).env(super::ONE_THREAD.0, super::ONE_THREAD.1);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    // Ctrl-C is for the coordinator: it finishes the step, and then ends its workers.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Ok(command.spawn()?)
}
