//! `codedgrad-lab worker`: one worker of a run over TCP, of `codedgrad run` or of
//! `codedgrad-lab coordinator`.

use super::audit::Audit;
use super::described::{Described, DescribedArgs, SavesAndAudits};
use super::network::Job;
use super::notice::Leaver;
use super::plan;
use crate::trainer::{INJECTED, RunStart, TrainError, run_worker_in_place};
use anyhow::{Context, anyhow};
use clap::Args;
use codedgrad::ids::Worker;
use codedgrad::train::AggregatorError;
use codedgrad::transport::Link;
use codedgrad::transport::tcp::security::Security;
use codedgrad::transport::tcp::{
    Environment, EnvironmentError, Join, Secrets, TcpError, TcpLink, Welcome, host_name,
};
use codedgrad_cli::port::patience;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::folder::write_whole;
use codedgrad_shell::layout::help;
use codedgrad_shell::output::{alert, say};
use codedgrad_shell::pool::notice;
use codedgrad_shell::signals::Asked;
use codedgrad_shell::units::{seconds, whole};
use std::env;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::slice;

/// Where `codedgrad run` looks for the last word of a worker.
const FINAL: &str = "CODEDGRAD_FINAL";

#[derive(Debug, Args)]
#[command(
    after_help = help("\
Under `codedgrad run` and `codedgrad serve` the worker says by its flags what is trained, as any
other program does: the same for all workers. The one that the coordinator names writes
checkpoints and the model into --out; a worker that dies is started again by `codedgrad run`, and
takes over the state of another.

`codedgrad-lab coordinator` tells the worker what to train; only the text must be here as well,
at the same path or at --corpus. A worker that dies is replaced by starting this command again, on
any host, with the same --worker: it takes over the state of another and goes on. If the
coordinator dies, its workers call it for --patience seconds; `codedgrad-lab coordinator --resume`
finds them. A worker whose number another process has taken meanwhile ends with exit status 4: it
must not be started again.

Ctrl-C and SIGTERM leave the run, which goes on without: the worker finishes its task, is let go
when nobody needs what it holds, and ends with status 0; after --notice seconds, or if asked again
a second later, it does so at once. A file that appears where CODEDGRAD_NOTICE_FILE says is as good
as SIGTERM. Workers that may fail together say so by a common CODEDGRAD_DOMAIN, such as a rack's
name (default: the host's).

What is not given comes from the launcher's environment: the worker's number from
CODEDGRAD_WORKER, RANK (torchrun), SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK or
JOB_COMPLETION_INDEX (Kubernetes), the address from CODEDGRAD_ADDRESS or MASTER_ADDR and
MASTER_PORT, the token from the file that CODEDGRAD_TOKEN_FILE names or CODEDGRAD_TOKEN, keys
from CODEDGRAD_KEYS.

One thread computes, so that several workers of a host do not fight for its cores; set
RAYON_NUM_THREADS to give a worker more.

Examples:
  codedgrad run -n 4 --scheme groups:s=1 codedgrad-lab worker --steps 100 --out gpt
  codedgrad-lab worker --join 127.0.0.1:43127 --token runs/0001/token
  codedgrad-lab worker --join host0:7000 --keys keys --worker 3 --corpus /data/text
  srun --kill-on-bad-exit=0 codedgrad-lab worker --join host0:7000 --keys keys")
)]
pub(crate) struct WorkerArgs {
    /// Where the coordinator listens [default: MASTER_ADDR:MASTER_PORT]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Connections")]
    join: Option<String>,
    /// The worker's number, from 0 [default: the launcher's rank, else whichever is free]
    #[arg(long, value_name = "K", value_parser = whole::<u32>)]
    worker: Option<u32>,
    /// A name that stays the same when the worker is started again [default: host and number]
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Folder with ca.pem, worker-K.pem and worker-K.key, as `codedgrad keygen` makes it
    #[arg(long, value_name = "DIR", help_heading = "Connections")]
    keys: Option<PathBuf>,
    /// File with the job's token
    #[arg(long, value_name = "FILE", alias = "token-file", help_heading = "Connections")]
    token: Option<PathBuf>,
    /// Where other workers connect to this one [default: any port, on the interface that reaches
    /// the coordinator]
    #[arg(long, value_name = "ADDR", help_heading = "Connections")]
    listen: Option<SocketAddr>,
    /// The run's text, if it is elsewhere on this host
    #[arg(long, value_name = "FILE|DIR", help_heading = "Data")]
    corpus: Option<PathBuf>,
    /// The run's tokenizer.json, if it is elsewhere on this host
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    tokenizer: Option<PathBuf>,
    /// How long the coordinator is called when it does not answer, at first and when it is lost
    #[arg(
        long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds,
        help_heading = "Connections"
    )]
    patience: f64,
    /// How long the worker may take to leave when it is asked to; 0 for not at all
    /// [default: $CODEDGRAD_NOTICE, or 20]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    notice: Option<f64>,
    /// Start the worker again when it dies, so often, after 1, 2, 4 .. 60 s; not where it ended
    /// with status 0, 2, 4, 130 or 143, by SIGINT or SIGTERM, or three times in a row within 10 s
    /// of its start
    #[arg(long, value_name = "N", value_parser = whole::<u32>, default_value_t = 0)]
    pub(crate) restarts: u32,
    #[command(flatten)]
    described: DescribedArgs,
}

fn environment() -> Result<Environment, Failure> {
    Environment::of_command(|name| env::var_os(name)).or_input()
}

impl WorkerArgs {
    /// What is given here comes before what the environment says.
    fn security(&self, found: Secrets, worker: Option<u32>) -> Result<Security, Failure> {
        let keys = self.keys.clone().or(found.keys);
        let (token, token_file) = match &self.token {
            Some(file) => (None, Some(file.clone())),
            None => (found.token, found.token_file),
        };
        Secrets { keys, token, token_file }.security(worker).map_err(|error| match error {
            EnvironmentError::NoSecret => Failure::Input(anyhow!(
                "the job's secret is needed: --token FILE (or CODEDGRAD_TOKEN_FILE) on one host, \
                 --keys DIR between hosts"
            )),
            EnvironmentError::WhichCertificate { dir, found } => Failure::Input(anyhow!(
                "{} holds the certificates of {found} workers; say which with --worker",
                dir.display()
            )),
            error => Failure::Input(error.into()),
        })
    }

    fn join(&self, environment: Environment) -> Result<Join, Failure> {
        let worker = self.worker.or(environment.worker);
        let identity = self.identity.clone().unwrap_or_else(|| match worker {
            Some(worker) => format!("{}/{worker}", host_name()),
            None => format!("{}/process-{}", host_name(), std::process::id()),
        });
        let address = self.join.clone().or(environment.address).ok_or_else(|| {
            Failure::Input(anyhow!(
                "where is the coordinator? give --join HOST:PORT (or CODEDGRAD_ADDRESS, or \
                 MASTER_ADDR and MASTER_PORT)"
            ))
        })?;
        let security = self.security(environment.secrets, worker)?;
        let patience = patience(self.patience);
        Ok(Join { worker, identity, listen: self.listen, patience, ..Join::new(address, security) })
    }
}

/// Joins a run, and says so.
fn joined(join: Join, size: Option<(&str, u32)>) -> Result<(TcpLink, Welcome), Failure> {
    let (link, welcome) = TcpLink::join(join).map_err(|error| match error {
        TcpError::Refused { .. } | TcpError::Security(_) => Failure::Input(error.into()),
        TcpError::Replaced => Failure::Replaced(error.into()),
        _ => Failure::Work(error.into()),
    })?;
    let Worker(number) = welcome.worker;
    let again = match welcome.epoch {
        1 => String::new(),
        epoch => format!(" again (join {epoch})"),
    };
    say!("worker {number} of {}, run {:016x}: joined{again}", welcome.workers, welcome.run);
    if let Some((name, size)) = size.filter(|(_, size)| *size as usize != welcome.workers) {
        tracing::warn!("{name} is {size}, and the run has {} workers", welcome.workers);
    }
    Ok((link, welcome))
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let environment = environment()?;
    let size = environment.workers;
    let join = args.join(environment)?;
    let leaver = Leaver::watch(Asked::catch(false)?, notice(args.notice)?);
    let (number, done) = if args.described.describes()? {
        args.described(join, size, &leaver)?
    } else {
        args.told(join, size, &leaver)?
    };
    done.map_err(|error| match error {
        TrainError::Aggregator(AggregatorError::Replaced) => Failure::Replaced(error.into()),
        _ => Failure::Work(error.into()),
    })?;
    let how = if leaver.leaves() { "has left the run" } else { "the run is over" };
    say!("worker {number}: {how}");
    Ok(())
}

/// A worker's number, and how its loop has ended.
type Ended = (u32, Result<(), TrainError>);

impl WorkerArgs {
    /// A worker that says what is trained.
    fn described(
        &self,
        join: Join,
        size: Option<(&'static str, u32)>,
        leaver: &Leaver,
    ) -> Result<Ended, Failure> {
        let text = (self.corpus.as_deref(), self.tokenizer.as_deref());
        let trained = self.described.described(text, size.map(|(_, size)| size));
        let mut trained = trained.inspect_err(|failure| say_final("failed", failure))?;
        let join = Join { has: trained.has(), facts: trained.facts.clone(), ..join };
        let joined = joined(join, size).inspect_err(|failure| {
            if matches!(failure, Failure::Input(_)) {
                say_final("refused", failure);
            }
        });
        let (link, welcome) = joined?;
        leaver.joined(link.closer());
        let Described { plan, run, batches, state, saves, .. } = &mut trained;
        let every = self.described.audit.filter(|_| welcome.worker == Worker(0));
        let audit = every.map(|every| Audit::of(every, plan, (batches, state), run.loss_weight()));
        let mut beside = SavesAndAudits { saves, audit: audit.transpose().or_work()? };
        let start =
            RunStart { states: slice::from_ref(state), step: beside.saves.next(), round: 0 };
        let work = || run_worker_in_place(run, &welcome, link, start, batches, &mut beside);
        let done = said(work);
        beside.audit.iter().for_each(|audit| say!("{}", audit.found()));
        let number = welcome.worker.0;
        match trained.saves.left() {
            Some(made) if done.is_ok() && !leaver.leaves() => Err(Failure::Work(anyhow!(
                "worker {number}: the run is over with {made}: its coordinator says why"
            ))),
            _ => Ok((number, done)),
        }
    }

    /// A worker that is told what to train.
    fn told(
        &self,
        join: Join,
        size: Option<(&'static str, u32)>,
        leaver: &Leaver,
    ) -> Result<Ended, Failure> {
        let (link, welcome) = joined(join, size)?;
        leaver.joined(link.closer());
        let job: Job = serde_json::from_str(&welcome.job)
            .context(
                "the coordinator does not say what is trained, as `codedgrad-lab coordinator` of \
                 this version does: give --steps, and what else is trained",
            )
            .or_input()?;
        let source = &job.plan.source;
        let [corpus, tokenizer] =
            [(&self.corpus, &source.corpus), (&self.tokenizer, &source.tokenizer)]
                .map(|(own, theirs)| own.as_ref().or(theirs.as_ref()).map(PathBuf::as_path));
        let tokens = plan::tokens(corpus, tokenizer)?;
        job.check(&tokens)?;
        let batches = job.plan.batches(tokens)?;
        let states = job.states()?;
        let start = RunStart { states: &states, step: welcome.first.0, round: 0 };
        let run = job.run()?;
        let work = || run_worker_in_place(&run, &welcome, link, start, &batches, &mut ());
        Ok((welcome.worker.0, said(work)))
    }
}

/// Says to `codedgrad run` that this worker would end alike if it were started again, so that the
/// others do not wait for it.
fn say_final(how: &str, failure: &Failure) {
    let Some(path) = env::var_os(FINAL) else { return };
    let word = format!("{how}\n{failure}\n");
    if let Err(error) = write_whole(Path::new(&path), word.as_bytes()) {
        tracing::warn!("{error:#}");
    }
}

/// What a worker's loop gives back. A panic that was asked for says nothing itself, and this
/// process's log is all there is: it is said here.
fn said(work: impl FnOnce() -> Result<(), TrainError>) -> Result<(), TrainError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        if let Some(fault) = panic.downcast_ref::<String>().filter(|why| why.starts_with(INJECTED))
        {
            alert!("{fault}");
        }
        resume_unwind(panic)
    })
}
