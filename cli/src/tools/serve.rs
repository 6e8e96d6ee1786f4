//! `codedgrad serve`: the coordinator of a run whose workers others start.

mod board;
mod drain;
pub(crate) mod events;
mod follow;
pub(crate) mod port;
mod record;

use super::http::HttpServer;
use anyhow::{Context, anyhow};
use board::Board;
use clap::{Args, Command, Id};
use codedgrad::run::{Limits, NumberFormat, RunConfig};
use codedgrad::schedulers::EngineError;
use codedgrad::train::{self, AUTO, Auto, Builder, Coordinator, OpenPort, RunError, ServedRun};
use codedgrad::transport::RunFacts;
use codedgrad::transport::tcp::security::Security;
use codedgrad::transport::wire::framed_format;
use codedgrad_shell::clock::unix_seconds;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families::{self, RunScheme};
use codedgrad_shell::folder::{RunFolder, SERVED};
use codedgrad_shell::layout::help;
use codedgrad_shell::limits::{self, ANY, LimitArgs, WORKERS};
use codedgrad_shell::output::{Output, alert, say};
use codedgrad_shell::pool::{Bounds, Seats, join_wait, seats};
use codedgrad_shell::signals::EndRequest;
use codedgrad_shell::units::{at_least, count, patience, seconds, whole};
use events::{Event, Outcome};
#[cfg(unix)]
pub(crate) use follow::SAME_ORDER;
use follow::{Follower, Look, Summary};
use port::{ExchangeKind, Port, fresh_id, wire_format};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What `serve` and `run` are told of a run.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    planned: ServeSettings,
    #[command(flatten)]
    out: OutArgs,
    /// Serve http://ADDR/metrics (Prometheus) and /status (JSON), without access control
    #[arg(long, value_name = "ADDR", help_heading = "Run folder")]
    metrics: Option<SocketAddr>,
}

/// Where a new run has its folder.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
struct OutArgs {
    /// Folder for the run [default: a new one under runs/]
    #[arg(long, value_name = "DIR", help_heading = "Run folder")]
    out: Option<PathBuf>,
    /// Overwrite the run that --out holds
    #[arg(long, requires = "out", help_heading = "Run folder", hide_short_help = true)]
    force: bool,
}

/// The flags that a resumed run is not given again.
fn planned() -> Vec<Id> {
    let command = OutArgs::augment_args(ServeSettings::augment_args(Command::new("planned")));
    command.get_arguments().map(|argument| argument.get_id().clone()).collect()
}

/// What a resumed run has from its folder: the flags, as the folder's file has them.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
struct ServeSettings {
    /// Scheme, such as groups:s=1; auto codes only where that pays. auto:probe=20,every=200:
    /// measure 20 uncoded steps before planning (at least 20 recommended), again after 200 steps
    #[arg(
        long, value_name = "TEXT", default_value = AUTO, value_parser = RunScheme::parse,
        help_heading = "Scheme and exchange"
    )]
    scheme: RunScheme,
    /// Seconds to wait for all workers before the run begins without the missing ones
    /// [default: 600, with MIN below MAX 30]
    #[arg(
        long = "join-wait", value_name = "SECONDS", value_parser = seconds,
        help_heading = "Time and limits", hide_short_help = true
    )]
    join_wait_seconds: Option<f64>,
    /// Seconds to wait for lost workers to return where too few are left, and for all of them on
    /// --resume; --max-wait is raised to it
    #[arg(
        long = "return-wait", value_name = "SECONDS", default_value_t = 180.0,
        value_parser = seconds, help_heading = "Time and limits", hide_short_help = true
    )]
    return_wait_seconds: f64,
    #[command(flatten)]
    #[serde(flatten)]
    limits: LimitArgs,
    /// Abort (exit 1) after this many consecutive non-finite steps; 0: never (the default, because
    /// loss scaling starts with a few)
    #[arg(
        long, value_name = "N", value_parser = whole::<u64>, default_value_t = 0,
        help_heading = "Time and limits", hide_short_help = true
    )]
    give_up_after: u64,
    /// Abort when one micro-batch of one step has crashed this many workers; the micro-batch, its
    /// samples and the error are named
    #[arg(
        long, value_name = "N", default_value_t = Limits::UNIT_TRIES, value_parser = at_least(1u32),
        help_heading = "Time and limits", hide_short_help = true
    )]
    unit_tries: u32,
    /// Where gradients are reduced: sharded over the workers (nccl: over their GPUs), or at the
    /// coordinator (star; hold: sent before the round closes) [default: sharded, or what the scheme
    /// needs]
    #[arg(
        long,
        value_name = "sharded|star|hold|nccl",
        value_enum,
        hide_possible_values = true,
        help_heading = "Scheme and exchange",
        hide_short_help = true
    )]
    exchange: Option<ExchangeKind>,
    /// Dtype on the wire: bf16 halves the bytes and rounds every message
    #[arg(
        long, default_value = NumberFormat::F32.name(), value_parser = wire_format(),
        help_heading = "Scheme and exchange", hide_short_help = true
    )]
    #[serde(deserialize_with = "framed_format")]
    wire: NumberFormat,
    /// Recent gradients each worker keeps so that a lagging worker can catch up; one that lags
    /// further copies a peer's state [default: 16, of at most 256 MB together, or what the scheme
    /// needs]
    #[arg(
        long, value_name = "N", value_parser = count::<u64>(RunConfig::LOG_STEPS),
        help_heading = "Time and limits", hide_short_help = true
    )]
    log_steps: Option<u64>,
}

#[cfg(unix)]
impl Options {
    /// What a coordinator is told that the launcher of a run starts.
    pub(crate) fn serving(&self, seats: Seats, port: Port) -> Result<ServeJob, Failure> {
        for (flag, path) in [("--keys", &port.keys), ("--out", &self.out.out)] {
            if let Some(path) = path.as_ref().filter(|path| path.to_str().is_none()) {
                return Err(limits::refused(format!("{flag} {}: not UTF-8", path.display())));
            }
        }
        Ok(ServeJob { begin: self.begin(seats)?, port, metrics: self.metrics })
    }

    pub(crate) fn out(&self) -> Option<&Path> {
        self.out.out.as_deref()
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = help("\
The workers say what is trained: numbers of the gradient, micro-batches of a batch, and steps. The
coordinator compares those that join before the first step. If one differs, the run names it and
trains nothing. It refuses later workers that train something else. `codedgrad run` starts this
command and the workers.

On one host, plain connections and a token are enough: the coordinator makes a token, and prints
the variables that a worker needs in its environment. Between hosts connections are encrypted:
make certificates with `codedgrad keygen`, copy each worker's to its host, and give --keys.

You may restart a worker that dies at any time. If this command dies, start it again with --resume
DIR. The workers keep calling for 30 s (join's patience=), and the run goes on from their step.

Ctrl-C and SIGTERM finish the step and end the run; a second one ends it at once.

Exit status: 0: all steps completed, or a worker finished the run early; 1: the run failed; 2: bad
usage; 130 or 143: ended by Ctrl-C or SIGTERM.

Examples:
  codedgrad serve --workers 4
  codedgrad serve --listen 0.0.0.0:7000 --keys keys --workers 8 --scheme groups:s=1
  codedgrad serve --resume runs/0001")
)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    port: Port,
    /// Number of workers; --resume may change MIN..MAX
    #[arg(
        long, value_name = "N|MIN..MAX", required_unless_present_any = ["resume", "launched"],
        value_parser = seats
    )]
    workers: Option<Seats>,
    #[command(flatten)]
    options: Options,
    /// Continue a run that was interrupted, or whose coordinator died, with its settings
    #[arg(long, value_name = "DIR", conflicts_with_all = planned(), help_heading = "Run folder")]
    resume: Option<PathBuf>,
    /// Print summary.json to standard output, and nothing else there
    #[arg(long, conflicts_with = "launched", help_heading = "Run folder")]
    json: bool,
    /// For `codedgrad run`: a line of standard input says what to do ([`ServeJob`]); tell what
    /// happens on standard output, and end with standard input
    #[arg(long, hide = true)]
    launched: bool,
}

/// What a coordinator is to do, as its command line or the launcher says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServeJob {
    begin: Begin,
    port: Port,
    metrics: Option<SocketAddr>,
}

/// Which run it makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Begin {
    /// A new one, in a folder.
    New { plan: Box<Plan>, out: OutArgs },
    /// One that goes on in its folder, by other numbers of workers if it is told so.
    Again {
        folder: PathBuf,
        #[serde(skip)]
        seats: Option<Seats>,
    },
}

/// All that it takes to go on with a run: `serve.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    /// Number of the run.
    id: u64,
    workers: usize,
    /// With how few workers it is made, if not always with all.
    min_workers: Option<usize>,
    #[serde(flatten)]
    told: ServeSettings,
    /// What is trained, once a worker has said so.
    facts: Option<RunFacts>,
    #[serde(flatten)]
    end: RunEnd,
}

/// How far a run has come to its end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct RunEnd {
    /// Whether all of it is done.
    over: bool,
    /// The first step after which workers are not known to have been equal, where it ended by that.
    #[serde(default)]
    differs_from: Option<u64>,
}

impl Options {
    /// A new run of so many workers.
    fn begin(&self, seats: Seats) -> Result<Begin, Failure> {
        let (workers, min_workers) = (seats.most as usize, seats.min_workers());
        let plan = Plan {
            id: fresh_id(),
            workers,
            min_workers,
            told: self.planned.clone(),
            facts: None,
            end: RunEnd::default(),
        };
        plan.check()?;
        Ok(Begin::New { plan: Box::new(plan), out: self.out.clone() })
    }
}

impl Plan {
    /// Refuses what no run can do, by the names of the flags.
    fn check(&self) -> Result<(), Failure> {
        let told = &self.told;
        limits::count("--workers", self.workers as u64, WORKERS)?;
        limits::count("MIN of --workers", self.min_workers.unwrap_or(1) as u64, ANY)?;
        limits::count("--unit-tries", told.unit_tries.into(), ANY)?;
        limits::positive("--max-wait", told.limits.max_wait())?;
        limits::not_negative("--max-wait", told.limits.max_wait())?;
        limits::not_negative("--join-wait", self.join_wait())?;
        limits::not_negative("--return-wait", told.return_wait_seconds)?;
        limits::not_negative("--settle", told.limits.settle())?;
        if let Some(spec) = told.scheme.fixed() {
            spec.check_claim(self.workers).or_input()?;
        }
        self.check_exchange()
    }

    /// Seconds for which all workers are waited for before the run begins with those there are.
    fn join_wait(&self) -> f64 {
        join_wait(self.told.join_wait_seconds, self.min_workers, self.workers)
    }

    /// Refuses an exchange that does not go with the rest.
    fn check_exchange(&self) -> Result<(), Failure> {
        if self.told.exchange != Some(ExchangeKind::Nccl) {
            return Ok(());
        }
        if self.bounds().is_some() {
            return Err(limits::refused(
                "--exchange nccl is between the GPUs of all workers: it has no --workers MIN..MAX \
                 with MIN below MAX"
                    .into(),
            ));
        }
        if self.told.wire == NumberFormat::Bf16 {
            return Err(limits::refused(
                "--exchange nccl sends vectors as they are, in f32: it has no --wire bf16".into(),
            ));
        }
        Ok(())
    }

    /// With how few workers it may be made and with how many, where these are not the same.
    fn bounds(&self) -> Option<Bounds> {
        Bounds::of(self.min_workers, self.workers)
    }

    /// Says of how many workers the scheme cannot be, once it is known what is trained.
    fn warn(&self) {
        let units = self.facts.as_ref().and_then(|facts| facts.units);
        if let (Some(bounds), Some(spec), Some(units)) =
            (self.bounds(), self.told.scheme.fixed(), units)
        {
            bounds.warning(spec, units).into_iter().for_each(|warning| alert!("{warning}"));
        }
    }

    /// What chooses another scheme than that with which a run begins, if something does.
    fn chooser(&self, folder: &RunFolder) -> Result<Option<Auto>, Failure> {
        let Some(mut auto) = self.told.scheme.auto() else { return Ok(None) };
        for record in follow::recorded(folder)? {
            auto.replay(&record);
        }
        Ok(Some(auto))
    }

    /// The run as far as it is known.
    fn builder(&self, folder: &RunFolder, resumed: bool) -> Result<Builder, Failure> {
        let told = &self.told;
        let waits = if resumed && self.facts.is_some() {
            told.return_wait_seconds
        } else {
            self.join_wait()
        };
        let mut run = Coordinator::builder(told.scheme.first())
            .unmixed()
            .workers(self.workers)
            .run_number(self.id)
            // One that is started again is later than the one before.
            .incarnation(unix_seconds() as u32)
            .job(serde_json::json!({ "scheme": told.scheme }).to_string())
            // A round that waits for a worker to come back is open.
            .max_wait(patience(told.limits.max_wait().max(told.return_wait_seconds)))
            .return_within(patience(told.return_wait_seconds))
            .gather_within(patience(waits))
            .unit_tries(told.unit_tries)
            .wire(told.wire);
        if let Some(auto) = self.chooser(folder)? {
            run = run.auto(auto);
        }
        if let Some(exchange) = told.exchange {
            run = run.exchange(exchange.exchange());
        }
        if let Some(fewest) = self.min_workers {
            run = run.min_workers(fewest).settle_within(patience(told.limits.settle()));
        }
        if let Some(steps) = told.log_steps {
            run = run.log_steps(steps);
        }
        Ok(run)
    }
}

impl ServeJob {
    /// What a command line says, or the launcher that has started it.
    fn of(args: &ServeArgs) -> Result<Self, Failure> {
        if args.launched {
            let mut told = String::new();
            io::stdin().read_line(&mut told).context("the launcher says nothing").or_work()?;
            if told.is_empty() {
                return Err(Failure::Work(anyhow!("the launcher has ended: nothing is begun")));
            }
            return serde_json::from_str(&told)
                .context("the launcher is another version")
                .or_work();
        }
        let begin = match (&args.resume, args.workers) {
            (Some(folder), seats) => Begin::Again { folder: folder.clone(), seats },
            (None, Some(seats)) => args.options.begin(seats)?,
            (None, None) => return Err(Failure::Input(anyhow!("--workers is needed"))),
        };
        Ok(Self { begin, port: args.port.clone(), metrics: args.options.metrics })
    }

    /// The same for the run that it has begun in a folder, where that listened.
    #[cfg(unix)]
    pub(crate) fn again(&self, folder: &Path) -> Self {
        let begin = Begin::Again { folder: folder.into(), seats: None };
        Self { begin, port: Port { listen: None, ..self.port.clone() }, ..self.clone() }
    }

    /// How long a new run waits for workers that are lost, before its first step and after it: in
    /// seconds, each with the flag that says so.
    #[cfg(unix)]
    pub(crate) fn waits(&self, begun: bool) -> Option<(f64, &'static str)> {
        let Begin::New { plan, .. } = &self.begin else { return None };
        Some(match begun {
            true => (plan.told.return_wait_seconds, "--return-wait"),
            false => (plan.join_wait(), "--join-wait"),
        })
    }

    /// The run, in its folder, and where it listens.
    fn begin(&self) -> Result<(Plan, RunFolder, SocketAddr), Failure> {
        let (path, seats) = match &self.begin {
            Begin::New { plan, out: OutArgs { out, force } } => {
                let address = self.port.address(None)?;
                self.port.check(address)?;
                let folder = RunFolder::create(SERVED, out.as_deref(), *force)?;
                return Ok((Plan::clone(plan), folder, address));
            }
            Begin::Again { folder, seats } => (folder, seats),
        };
        let folder = RunFolder::open(SERVED, path)?;
        let fields: serde_json::Value = follow::read(&folder.plan())?;
        if let Some(text) = fields["scheme"].as_str() {
            families::check_known(text, &folder.plan(), None)?;
        }
        let mut plan: Plan = follow::read(&folder.plan())?;
        plan.check().map_err(|failure| failure.asked_by(&folder.plan()))?;
        if plan.end.over {
            return Err(Failure::Input(anyhow!("the run in {} is over", path.display())));
        }
        let recorded = follow::recorded(&folder)?;
        if let Some(seats) = seats {
            seats.again(plan.workers, recorded.iter())?;
            plan.workers = seats.most as usize;
            plan.min_workers = seats.min_workers().or(plan.min_workers);
            plan.check()?;
        }
        // Before the first step it is only what one worker said, who need not have been right.
        if recorded.is_empty() {
            plan.facts = None;
        }
        let address = self.port.address(Some(&folder))?;
        self.port.check(address)?;
        Ok((plan, folder, address))
    }

    /// Says how workers join.
    fn invite(
        &self,
        launched: bool,
        address: SocketAddr,
        folder: &RunFolder,
    ) -> Result<(), Failure> {
        self.port.write_address(address, folder)?;
        if launched {
            let folder = std::path::absolute(folder.path()).or_work()?;
            Event::Listening { address, folder }.tell();
            return Ok(());
        }
        let told = self.port.invitation(address, folder);
        say!(
            "listening on {address}; workers join with {told} in their environment, and \
             CODEDGRAD_WORKER, their number from 0"
        );
        Ok(())
    }

    fn metrics(&self, board: &Arc<Board>) -> Result<Option<HttpServer>, Failure> {
        let Some(address) = self.metrics else { return Ok(None) };
        let server = board.serve(address)?;
        say!("metrics are at http://{}/metrics", server.address());
        Ok(Some(server))
    }
}

pub(crate) fn run(args: &ServeArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let serving = ServeJob::of(args)?;
    let asked = EndRequest::catch(args.launched)?;
    let (mut plan, folder, address) = serving.begin()?;
    let outcome = carry_out((&serving, args.launched), (&mut plan, &folder), address, &asked);
    let outcome = match outcome {
        Ok(summary) if summary.steps > 0 || summary.outcome == Outcome::Finished => Ok(summary),
        Ok(summary) => folder.settle(Err(Failure::Said(asked.ended()))).map(|()| summary),
        Err(failure) => folder.settle(Err(failure)),
    }?;
    let shown = if args.json {
        let json = serde_json::to_string_pretty(&outcome).or_work()?;
        output.print(format_args!("{json}\n")).or_work()
    } else {
        Ok(())
    };
    match outcome.outcome {
        // Why was said when it happened.
        Outcome::Finished if outcome.not_recorded_from.is_some() => {
            shown.and(Err(Failure::Said(1)))
        }
        Outcome::Finished => shown,
        Outcome::Stopped => Err(Failure::Said(asked.ended())),
        Outcome::Failed => Err(Failure::Said(asked.status())),
    }
}

/// A run that has its port.
enum OpenedRun {
    /// What is trained is still to be learned.
    Open(Box<OpenPort>),
    Served(Box<ServedRun>),
}

/// Makes the run, as far as it goes before a request to end.
fn carry_out(
    (serving, launched): (&ServeJob, bool),
    (plan, folder): (&mut Plan, &RunFolder),
    address: SocketAddr,
    asked: &EndRequest,
) -> Result<Summary, Failure> {
    let resumed = matches!(serving.begin, Begin::Again { .. });
    let builder = plan.builder(folder, resumed)?;
    folder.write_plan(&*plan).or_work()?;
    let security: Security = serving.port.security(folder)?;
    let opened = match &plan.facts {
        None => OpenedRun::Open(Box::new(builder.open(address, security).or_input()?)),
        Some(facts) => {
            let run = builder.facts(facts).goes_on(true);
            OpenedRun::Served(Box::new(run.serve(address, security).or_input()?))
        }
    };
    let (address, status, stopper) = match &opened {
        OpenedRun::Open(open) => (open.address(), open.status(), open.stopper()),
        OpenedRun::Served(served) => (served.address(), served.status(), served.stopper()),
    };
    let board = Board::new(plan.told.scheme.text(), plan.workers, Arc::clone(&status));
    board.in_pool(plan.bounds());
    let metrics = serving.metrics(&board)?;
    serving.invite(launched, address, folder)?;
    let look = Look::start(asked.clone(), (stopper, status), plan, launched);
    let mut follower = Follower::new(plan, folder, &board, &look, asked);
    let ended = learned(opened, plan.join_wait()).and_then(|served| match served {
        None => Ok(None),
        Some(served) => {
            plan.facts = Some(served.facts().clone());
            folder.write_plan(&*plan).or_work()?;
            follower.learns(served.facts());
            plan.warn();
            let ended = served.run(&mut follower);
            plan.end.differs_from = follower.differs_from(&ended);
            match ended {
                // Who asks the coordinator to end asks its workers too, and these may be faster.
                Err(RunError::Engine(EngineError::Left { .. })) if asked.status() > 0 => {
                    Ok(Some(train::Outcome::Left))
                }
                Err(RunError::Engine(error @ EngineError::Left { .. })) if follower.preempted() => {
                    say!("{error}; a worker was told to leave");
                    Ok(Some(train::Outcome::Preempted))
                }
                ended => ended.map(Some).or_work(),
            }
        }
    });
    let outcome = match &ended {
        Ok(Some(train::Outcome::Preempted)) => {
            let folder = folder.path().display();
            say!(
                "workers were told to leave, and the run is not made to its end: to go on, start \
                 them again, and the coordinator by --resume {folder}"
            );
            Outcome::Stopped
        }
        // A worker has ended it, not a signal: that counts as its last step.
        Ok(_) if asked.status() == 0 => Outcome::Finished,
        Ok(Some(train::Outcome::Finished)) => Outcome::Finished,
        Ok(_) => Outcome::Stopped,
        Err(_) => Outcome::Failed,
    };
    if plan.end.differs_from.is_some() {
        folder.write_plan(&*plan).or_work()?;
    }
    look.over(outcome);
    asked.hears_again();
    let why = match &ended {
        Err(failure) => failure.to_string(),
        Ok(Some(train::Outcome::Preempted)) => "workers were told to leave".into(),
        Ok(_) => "stopped by a signal".into(),
    };
    let summary = follower.ends(outcome, why);
    drop(metrics);
    // Why the run broke off is told first, whatever else cannot be written.
    ended?;
    let summary = summary?;
    if outcome == Outcome::Finished {
        plan.end.over = true;
        folder.write_plan(&*plan).or_work()?;
    }
    Ok(summary)
}

/// Waits for the first worker, if it has to say what is trained.
fn learned(opened: OpenedRun, join_wait_seconds: f64) -> Result<Option<ServedRun>, Failure> {
    match opened {
        OpenedRun::Served(served) => Ok(Some(*served)),
        OpenedRun::Open(open) => {
            open.learn(patience(join_wait_seconds)).map_err(|error| match error {
                RunError::Build(_) => Failure::Input(error.into()),
                _ => Failure::Work(error.into()),
            })
        }
    }
}

#[cfg(test)]
mod tests;
