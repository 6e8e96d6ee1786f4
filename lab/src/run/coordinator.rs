//! `codedgrad-lab coordinator`: a training run whose workers are processes of this or other hosts.

use super::network::{self, Team};
use super::plan::{self, ClockKind, Plan, TransportKind};
use super::report::Summary;
use super::resume::Changes;
use super::run_args::{Own, RunArgs};
use super::session::Session;
use super::train;
use crate::trainer::ReplicaState;
use anyhow::anyhow;
use clap::Args;
use codedgrad::delays::Unit;
use codedgrad::ids::Step;
use codedgrad::train::RunError;
use codedgrad::transport::State;
use codedgrad::transport::tcp::TcpTransport;
use codedgrad_cli::board::Board;
use codedgrad_cli::port::{self, ADDRESS, Port, Secret};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::families::RunScheme;
use codedgrad_shell::folder::{PLAN, RunFolder};
use codedgrad_shell::itself;
use codedgrad_shell::layout::help;
use codedgrad_shell::output::{Output, say};
use codedgrad_shell::pool::{Seats, join_wait, seats};
use codedgrad_shell::signals::Asked;
use codedgrad_shell::units::seconds;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a worker may take to hand over its state.
const HAND_OVER: Duration = Duration::from_secs(60);
/// How often it is said who is still missing.
const SAY: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(
    after_help = help("\
On one host, plain connections and a token will do: the token is made afresh, and the command
that starts a worker is printed. Between hosts connections are encrypted: make certificates with
`codedgrad keygen keys --workers N`, copy each worker's to its host, and give --keys everywhere.

The run begins when all workers have joined, or after --join-wait with those that have: the
scheme then counts the others as lost, and they may come later. A worker that dies is replaced
by starting `codedgrad-lab worker` again. If the coordinator dies, `codedgrad-lab coordinator
--resume DIR` goes on: its workers call it for their --patience, and the step they have come to
is where it goes on.

With --device cuda every worker computes on the GPUs of its own host, number W on the W-th of
them (CUDA_VISIBLE_DEVICES gives it others). This host needs none; without one, no gradient is
compared with that of the whole batch. With --exchange nccl besides, GPUs of different workers
sum by NCCL; `codedgrad status` says whether they do.

Schemes and delays are those of `codedgrad-lab train`, --scheme auto included. Nobody is delayed
on purpose unless --delays says so.

Examples:
  codedgrad-lab coordinator --listen 127.0.0.1:0 --workers 4 --scheme groups:s=1 --steps 100
  codedgrad-lab worker --join 127.0.0.1:PORT --token runs/0001/token    # four times, as printed
  codedgrad-lab coordinator --listen 0.0.0.0:7000 --keys keys --workers 8 --scheme queue:m=2
  codedgrad-lab worker --join host0:7000 --keys keys --worker 3    # on each host
  codedgrad-lab coordinator --resume runs/0001 --keys keys")
)]
pub(crate) struct CoordinatorArgs {
    /// Where to listen; port 0 is any free one. A resumed run listens where it did
    #[arg(
        long,
        value_name = "ADDR",
        required_unless_present = "resume",
        help_heading = "Connections"
    )]
    listen: Option<String>,
    /// Number of workers; MIN..MAX where the run may be made by fewer than MAX
    #[arg(
        long, value_name = "N|MIN..MAX", required_unless_present = "resume",
        value_parser = seats
    )]
    workers: Option<Seats>,
    /// Scheme to train with; `codedgrad-lab train --help` lists them
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "resume",
        conflicts_with = "resume"
    )]
    scheme: Option<String>,
    /// Folder with ca.pem, coordinator.pem and coordinator.key, as `codedgrad keygen` makes it
    #[arg(long, value_name = "DIR", help_heading = "Connections")]
    keys: Option<PathBuf>,
    /// File with the job's token [default: a fresh one, written to the run's folder]
    #[arg(
        long,
        value_name = "FILE",
        alias = "token-file",
        help_heading = "Connections",
        hide_short_help = true
    )]
    token: Option<PathBuf>,
    /// How long to wait for all workers before the run begins without those that are missing
    /// [default: 600, with MIN below MAX 30; when resumed, --return-wait]
    #[arg(
        long, value_name = "SECONDS", value_parser = seconds,
        help_heading = "Time and limits", hide_short_help = true
    )]
    join_wait: Option<f64>,
    /// How long lost workers may take to come back when too few are left to go on, at most
    /// --max-wait [default: --max-wait; when resumed, as the run had it]
    #[arg(
        long, value_name = "SECONDS", value_parser = seconds,
        help_heading = "Time and limits", hide_short_help = true
    )]
    return_wait: Option<f64>,
    /// Show metrics at http://ADDR/metrics (Prometheus) and /status (JSON), to everybody who can
    /// reach it
    #[arg(long, value_name = "ADDR", help_heading = "Run folder")]
    metrics: Option<SocketAddr>,
    /// Injected stragglers: a preset or a CSV file [default: none]
    #[arg(long, value_name = "PRESET|FILE", conflicts_with = "resume")]
    delays: Option<String>,
    #[command(flatten)]
    run: RunArgs,
}

impl CoordinatorArgs {
    fn plan(&self, vocabulary: usize) -> Result<Plan, Failure> {
        let (Some(scheme), Some(seats)) = (self.scheme.clone(), self.workers) else {
            return Err(Failure::Input(anyhow!("--scheme and --workers are needed")));
        };
        let own = Own {
            schemes: vec![RunScheme::parse(&scheme).or_input()?],
            seats,
            delays: self.delays.clone(),
            pool: None,
            transport: TransportKind::Tcp,
            return_seconds: self.return_wait.unwrap_or(self.run.longest_wait()),
        };
        let plan = self.run.plan(vocabulary, own)?;
        let in_steps = plan.timing.delays.is_some() && plan.delays()?.unit() == Unit::StepTimes;
        if in_steps && plan.timing.clock == ClockKind::Wall && self.run.step_seconds.is_none() {
            return Err(Failure::Input(anyhow!(
                "these delays count in step times, which the coordinator's host cannot measure for \
                 its workers: give --step-seconds"
            )));
        }
        Ok(plan)
    }

    fn port(&self) -> Port<'_> {
        let Self { listen, keys, token, .. } = self;
        Port { listen: listen.as_deref(), keys: keys.as_deref(), token: token.as_deref() }
    }

    /// Says how workers join.
    fn invite(&self, address: SocketAddr, folder: &RunFolder) -> Result<(), Failure> {
        self.port().write_address(address, folder)?;
        let (host, secret) = self.port().invitation(address, folder);
        let secret = match secret {
            Secret::Keys => "--keys DIR".into(),
            Secret::Token(file) => format!("--token {file}"),
        };
        say!(
            "listening on {address}; workers join with: {} worker --join {host} {secret}",
            itself::lab()
        );
        Ok(())
    }
}

/// Waits for the workers, and says who is missing.
fn gather(
    transport: &TcpTransport,
    (workers, least): (usize, usize),
    patience: Duration,
    interrupted: &AtomicBool,
) -> Result<(), Failure> {
    let (mut there, mut said) = (None, Duration::ZERO);
    network::wait_for(transport, workers, patience, &mut |connected, waited| {
        if there != Some(connected) || waited >= said + SAY {
            say!(
                "{connected} of {workers} workers are there, after {} of {} s",
                waited.as_secs(),
                patience.as_secs()
            );
            (there, said) = (Some(connected), waited);
        }
        Ok(interrupted.load(Ordering::Relaxed))
    })?;
    let there = network::connected(transport);
    if there.len() >= least {
        say!("{} of {workers} workers are there: the run goes on", there.len());
    } else if !interrupted.load(Ordering::Relaxed) {
        return Err(Failure::Work(RunError::few(least, there.complement(), patience).into()));
    }
    Ok(())
}

/// Takes over the state of a worker that has come further than the checkpoint, as far as the record
/// goes.
fn catch_up(session: &mut Session, transport: &mut TcpTransport) -> Result<(), Failure> {
    let recorded = session.recorded()?;
    let offers = transport.gather(Duration::ZERO).present;
    let steps = offers.into_iter().filter_map(|(worker, step)| Some((step?.0, worker)));
    let mut ahead: Vec<_> =
        steps.filter(|(step, _)| (session.next_step() + 1..=recorded).contains(step)).collect();
    ahead.sort_unstable_by_key(|(step, worker)| (std::cmp::Reverse(*step), *worker));
    for (step, worker) in ahead {
        let state = transport.state_of(worker, HAND_OVER).filter(|state| state.next.0 == step);
        let Some(states) = state.and_then(|state| states_of(&state, session.plan())) else {
            tracing::warn!("{worker} has not handed over the state of step {step}");
            continue;
        };
        say!("going on from step {step}, in the state of {worker}");
        return session.move_to(step, states);
    }
    Ok(())
}

/// The replicas in a worker's state, if they are the plan's.
fn states_of(state: &State, plan: &Plan) -> Option<Vec<ReplicaState>> {
    let (replicas, rest) = state.vectors.as_chunks();
    let fits = rest.is_empty() && replicas.len() as u64 == plan.jobs.models;
    let whole = state.vectors.iter().all(|vector| vector.len() == plan.training.model.parameters());
    (fits && whole).then(|| replicas.iter().cloned().map(ReplicaState::from_vectors).collect())
}

fn session(
    args: &CoordinatorArgs,
    interrupted: Arc<AtomicBool>,
) -> Result<(Session, SocketAddr), Failure> {
    if let Some(path) = &args.run.resume {
        let folder = RunFolder::open(PLAN, path)?;
        let plan = Plan::read(&folder.plan())?;
        if plan.sums.transport != TransportKind::Tcp || !folder.file(ADDRESS).exists() {
            return Err(Failure::Input(anyhow!(
                "{} is no coordinator's run; try `codedgrad-lab train --resume`",
                path.display()
            )));
        }
        let changes =
            Changes { return_seconds: args.return_wait, ..args.run.changes(args.workers)? };
        let address = args.port().address(Some(&folder))?;
        args.port().check(address)?;
        return Ok((Session::resume((plan, changes), folder, interrupted)?, address));
    }
    let address = args.port().address(None)?;
    args.port().check(address)?;
    let tokens = plan::tokens(args.run.corpus.as_deref(), args.run.tokenizer.as_deref())?;
    let plan = args.plan(tokens.vocabulary)?;
    let batches = plan.batches(tokens)?;
    Ok((
        Session::begin(
            plan,
            batches,
            (args.run.out.as_deref(), args.run.force),
            false,
            interrupted,
        )?,
        address,
    ))
}

pub(crate) fn run(args: &CoordinatorArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let asked = Asked::catch(false)?;
    let interrupted = train::interruption(&asked);
    let (mut session, address) = session(args, Arc::clone(&interrupted))?;
    let outcome = carry_out(args, &mut session, address, &interrupted, output);
    match session.folder().settle(outcome)? {
        Some(summary) => {
            let shown = train::show(&session, &summary, args.run.json, "coordinator", output);
            train::ended(&summary, &asked)?;
            shown
        }
        None => Err(Failure::Said(asked.status())),
    }
}

/// Makes the run; nothing comes of it if it is interrupted before it begins.
fn carry_out(
    args: &CoordinatorArgs,
    session: &mut Session,
    address: SocketAddr,
    interrupted: &AtomicBool,
    output: &mut Output<'_>,
) -> Result<Option<Summary>, Failure> {
    let mut metrics = None;
    if !session.is_complete() {
        let security = args.port().security(session.folder())?;
        let begin = Step(session.next_step());
        let mut transport = network::listen(
            &session.local()?,
            session.plan(),
            session.batches(),
            (address, security),
            (Step(0), None),
        )?;
        let board = Board::new(
            session.plan().schemes[0].text(),
            session.plan().shape.workers,
            (begin.0, session.plan().all_steps()),
            transport.status(),
        );
        board.in_pool(session.plan().bounds());
        if let Some(address) = args.metrics {
            let server = board.serve(address)?;
            say!("metrics are at http://{}/metrics", server.address());
            metrics = Some(server);
        }
        args.invite(transport.address(), session.folder())?;
        let resumed = args.run.resume.is_some();
        let (limits, workers) = (&session.plan().limits, session.plan().shape.workers);
        let patience = match args.join_wait {
            None if resumed => limits.return_seconds,
            told => join_wait(told, limits.min_workers, workers),
        };
        let seats = (workers, limits.min_workers.unwrap_or(1));
        gather(&transport, seats, port::patience(patience), interrupted)?;
        if interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        catch_up(session, &mut transport)?;
        let first = Step(session.next_step());
        session.with_team(Team::of(transport, first), board);
    }
    session.introduce(args.run.json, output)?;
    session.say_if_finished();
    let summary = session.execute()?;
    drop(metrics);
    Ok(Some(summary))
}
