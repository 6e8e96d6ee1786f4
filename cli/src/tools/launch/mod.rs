//! `codedgrad run`: one command that starts a run's coordinator and its workers, restarts those
//! that die, and ends everything.

mod child;
mod command;
mod coordinator;
mod crew;
mod echo;
mod happened;
mod joining;
mod knock;
mod last_word;
mod screen;
mod supervise;
mod watch;

use super::serve::{Options, ServeJob};
use crate::tools::serve::port::{Port, TOKEN};
use anyhow::{Context, anyhow};
use clap::Args;
use codedgrad::transport::tcp::security::Keys;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::folder::{RunFolder, SERVED};
use codedgrad_shell::itself::ProgramCommand;
use codedgrad_shell::layout::help;
use codedgrad_shell::limits::WORKERS;
use codedgrad_shell::output::{self, say};
use codedgrad_shell::pool::{Seats, notice, seats};
use codedgrad_shell::units::{count, patience, seconds, whole};
use command::{Place, Secret, Trainer};
use rustix::process::Signal;
use screen::Screen;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

/// How much longer than the notice of its workers a run waits for their end.
const AFTER_NOTICE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(
    after_help = help("\
The program is a Python script that calls codedgrad.torch.join or prepare, or any program that
joins by its environment. Arguments after its name are its own. The launcher starts a program of
several processes (such as torchrun) once per worker. torchrun takes up to 30 s to end its ranks:
give --kill-after 40, or they may outlive it.

The coordinator is a process of its own (`codedgrad serve`); the workers tell it what is trained.
The launcher restarts a worker that dies, after 1, 2, 4 .. 60 s. It does not restart one that
ended with status 0, 2, 4, 130 or 143, or by SIGINT or SIGTERM. It gives up a worker that ends
three times in a row within 10 s of its start, or after --restarts restarts. The restart count
resets after ten minutes without a crash. A worker whose configuration does not match the run, or
whose join raised ValueError or TypeError, is not restarted; before the first step this aborts the
run (exit 1). The run also aborts if every worker has failed twice before the first step, if it
needs a worker that was given up, or if the package reports an error in the script. The launcher
restarts a coordinator that dies, and the run goes on. When the run is over, the launcher ends
workers that are not connected. The others may take as long as they need to save.

Each line that a worker prints is shown behind its number, and is in worker-K.log of the run's
folder; the coordinator's output is in coordinator.log. A bar that is drawn by carriage returns
(tqdm) is shown when its line ends. Ctrl-C and SIGTERM are passed on to all processes. Those left
after --kill-after (after SIGTERM at least 5 s more than --notice) are killed. A second signal
kills them at once. SIGHUP is treated as SIGTERM, unless the launcher was started with nohup.

Each worker has CODEDGRAD_ADDRESS, CODEDGRAD_TOKEN_FILE or CODEDGRAD_KEYS, CODEDGRAD_WORKER,
CODEDGRAD_WORKERS, CODEDGRAD_EPOCH (how often it was started again), CODEDGRAD_LOG (its log),
CODEDGRAD_FINAL (where join says that it would fail again) and CODEDGRAD_NOTICE; where they are not
set, PYTHONUNBUFFERED=1 and OMP_NUM_THREADS, its share of this host's cores. RANK, WORLD_SIZE,
LOCAL_RANK and MASTER_* stay as they are.

Between hosts the same command runs on each, with --node; keys come from `codedgrad keygen`.

Exit status: 0: all steps completed (or a worker finished the run early), and the worker that saves
and at least one worker of this host exited 0; 1: otherwise; 2: bad usage; 130, 143 or 129: ended by
Ctrl-C, SIGTERM or SIGHUP.

Examples:
  codedgrad run -n 4 train.py --lr 3e-4
  codedgrad run -n 4 --scheme groups:s=1 --out runs/first -m mypackage.train
  codedgrad run -n 2 torchrun --standalone --nproc-per-node 8 train.py
  codedgrad run -n 8 --nodes 2 --node 0 --listen 0.0.0.0:7000 --keys keys train.py  # on host0
  codedgrad run -n 8 --nodes 2 --node 1 --join host0:7000 --keys keys train.py  # on the other")
)]
pub(crate) struct LaunchArgs {
    /// Number of workers over all hosts; MIN..MAX: start MAX, and go on with at least MIN
    #[arg(
        short = 'n', long, value_name = "N|MIN..MAX", value_parser = seats
    )]
    workers: Seats,
    /// Program and its arguments: a script that ends in .py, or anything else
    #[arg(
        trailing_var_arg = true,
        value_name = "PROGRAM",
        required_unless_present = "module",
        conflicts_with = "module"
    )]
    program: Vec<OsString>,
    /// Python module to run instead, with its arguments, as in `python -m`
    #[arg(short = 'm', num_args = 1.., allow_hyphen_values = true, value_name = "MODULE")]
    module: Vec<OsString>,
    /// Python for scripts and modules [default: python3, or the one that runs this program]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Most restarts of each worker
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u32>,
        default_value_t = 10,
        help_heading = "Time and limits"
    )]
    restarts: u32,
    /// Seconds that processes have to end before they are killed
    #[arg(
        long, value_name = "SECONDS", default_value_t = 10.0,
        value_parser = seconds,
        help_heading = "Time and limits"
    )]
    kill_after: f64,
    /// Notice period: seconds that workers have to leave after SIGTERM; 0: none
    /// [default: $CODEDGRAD_NOTICE, or 20]
    #[arg(
        long, value_name = "SECONDS", value_parser = seconds,
        help_heading = "Time and limits", hide_short_help = true
    )]
    notice: Option<f64>,
    /// Number of hosts; run this command on each
    #[arg(
        long, value_name = "M", default_value_t = 1, requires = "node",
        value_parser = count::<u32>(WORKERS),
        help_heading = "Several hosts"
    )]
    nodes: u32,
    /// Index of this host, from 0; host 0 runs the coordinator
    #[arg(
        long,
        value_name = "I",
        value_parser = whole::<u32>,
        requires = "nodes",
        help_heading = "Several hosts"
    )]
    node: Option<u32>,
    /// Address at which the coordinator listens [default: 127.0.0.1:0, any free port]
    #[arg(long, value_name = "ADDR", help_heading = "Several hosts")]
    listen: Option<String>,
    /// Address at which workers of this host reach the coordinator [on node 0: where it listens]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Several hosts")]
    join: Option<String>,
    /// Folder with the keys of this host, made by `codedgrad keygen`
    #[arg(long, value_name = "DIR", help_heading = "Several hosts")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// What is to be started here.
struct Job<'a> {
    itself: &'a ProgramCommand,
    trainer: Trainer,
    /// What the coordinator is told; none where it is another host's.
    serving: Option<ServeJob>,
    /// What workers are told, where that is known before the coordinator listens.
    place: Option<Place>,
    /// Of the logs, in that case.
    folder: PathBuf,
    /// The workers of this host.
    workers: Range<u32>,
    all: u32,
    nodes: u32,
    join: Option<&'a str>,
    keys: Option<PathBuf>,
    restarts: u32,
    grace: Duration,
    /// With how much notice workers leave.
    notice: Duration,
    quiet: bool,
}

impl Job<'_> {
    /// What workers of the coordinator's host are told.
    fn place_at(&self, address: SocketAddr, folder: &Path) -> Place {
        let secret = match &self.keys {
            Some(keys) => Secret::Keys(keys.clone()),
            None => Secret::Token(folder.join(TOKEN)),
        };
        self.place(self.join.map_or_else(|| address.to_string(), str::to_owned), secret)
    }

    /// How long the run waits for a worker that is not there, before its first step and after.
    fn waits(&self, begun: bool) -> String {
        let what = if begun { "for its return, " } else { "" };
        match self.serving.as_ref().and_then(|serving| serving.waits(begun)) {
            Some((seconds, flag)) => format!("{what}up to {seconds} s ({flag})"),
            None => format!("{what}as node 0 was told"),
        }
    }

    fn place(&self, address: String, secret: Secret) -> Place {
        let cores = available_parallelism().map_or(1, usize::from);
        let (workers, here) = (self.all, self.workers.len());
        Place { address, secret, workers, here, cores, notice: self.notice }
    }

    /// How long processes may take that are told to end by a signal.
    fn grace(&self, signal: Signal) -> Duration {
        if signal == Signal::TERM && !self.notice.is_zero() {
            return self.grace.max(self.notice + AFTER_NOTICE);
        }
        self.grace
    }
}

impl LaunchArgs {
    fn job<'a>(&'a self, itself: &'a ProgramCommand) -> Result<Job<'a>, Failure> {
        let (node, nodes) = (self.node.unwrap_or(0), self.nodes);
        if node >= nodes {
            let most = nodes - 1;
            return Err(Failure::Input(anyhow!("--node {node}: of {nodes} they are 0 to {most}")));
        }
        if nodes > self.workers.most {
            let workers = self.workers.most;
            return Err(Failure::Input(anyhow!(
                "--nodes {nodes}: there are {workers} workers (-n), at least one for each host is \
                 needed"
            )));
        }
        self.check_hosts(node)?;
        let first =
            |node: u32| (u64::from(node) * u64::from(self.workers.most) / u64::from(nodes)) as u32;
        let keys = self.keys.as_ref().map(std::path::absolute).transpose().or_input()?;
        let mut job = Job {
            itself,
            trainer: Trainer::of(self, itself)?,
            serving: (node == 0).then(|| self.serving(keys.clone())).transpose()?,
            place: None,
            folder: PathBuf::new(),
            workers: first(node)..first(node + 1),
            all: self.workers.most,
            nodes,
            join: self.join.as_deref(),
            keys,
            restarts: self.restarts,
            grace: patience(self.kill_after),
            notice: notice(self.notice)?,
            quiet: output::is_quiet(),
        };
        if let (Some(address), Some(keys)) = (job.join.filter(|_| node > 0), &job.keys) {
            for worker in job.workers.clone() {
                Keys::read(keys, &format!("worker-{worker}")).or_input()?;
            }
            job.place = Some(job.place(address.to_owned(), Secret::Keys(keys.clone())));
            job.folder = self.folder_of_logs()?;
        }
        Ok(job)
    }

    /// Refuses what does not go together where there are several hosts.
    fn check_hosts(&self, node: u32) -> Result<(), Failure> {
        let Self { nodes, listen, join, keys, .. } = self;
        if *nodes == 1 {
            return Ok(());
        }
        let missing = match (node, listen, join, keys) {
            (_, _, _, None) => {
                "--keys DIR, from `codedgrad keygen`: its connections leave this host"
            }
            (0, None, _, _) => "--listen ADDR, such as 0.0.0.0:7000: the others have to reach it",
            (1.., _, None, _) => "--join HOST:PORT: where node 0 listens",
            (1.., Some(_), _, _) => {
                return Err(Failure::Input(anyhow!(
                    "--listen is for node 0, where the coordinator is; node {node} needs --join"
                )));
            }
            _ => return Ok(()),
        };
        Err(Failure::Input(anyhow!("--nodes {nodes} --node {node} needs {missing}")))
    }

    /// What the coordinator is told.
    fn serving(&self, keys: Option<PathBuf>) -> Result<ServeJob, Failure> {
        let port = Port { listen: self.listen.clone(), keys, token: None };
        self.options.serving(self.workers, port)
    }

    /// Where the logs of a host without the coordinator go. Hosts may share a folder.
    fn folder_of_logs(&self) -> Result<PathBuf, Failure> {
        let folder = match self.options.out() {
            Some(out) => {
                std::fs::create_dir_all(out)
                    .with_context(|| format!("cannot make the folder {}", out.display()))
                    .or_input()?;
                out.to_owned()
            }
            None => RunFolder::create(SERVED, None, false)?.path().to_owned(),
        };
        std::path::absolute(folder).or_work()
    }
}

/// Flags of this command that no program is likely to have too.
const OURS: [&str; 10] = [
    "--exchange",
    "--join-wait",
    "--kill-after",
    "--max-wait",
    "--notice",
    "--restarts",
    "--return-wait",
    "--scheme",
    "--settle",
    "--wire",
];

/// Which of these stand behind the program's name, where they are the program's.
fn strayed(words: &[OsString]) -> Vec<&'static str> {
    let mut rest = words.iter().skip(1).filter_map(|word| word.to_str());
    let before_rest: Vec<&str> = rest.by_ref().take_while(|word| *word != "--").collect();
    let given = |flag: &&str| {
        before_rest.iter().any(|word| {
            word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    OURS.into_iter().filter(given).collect()
}

pub(crate) fn run(args: &LaunchArgs, itself: &ProgramCommand) -> Result<(), Failure> {
    let job = args.job(itself)?;
    let words = if args.module.is_empty() { &args.program } else { &args.module };
    for flag in strayed(words) {
        let name = &job.trainer.name;
        say!(
            "note: {flag} stands behind {name}, so it is given to {name}: what is for `codedgrad \
             run` stands before the program"
        );
    }
    let screen = Screen::open();
    let made = watch::run(&job, &screen);
    screen.close();
    made
}

#[cfg(test)]
mod tests;
