//! `codedgrad-lab worker`: one worker of a run of `codedgrad run` or `codedgrad serve`.

use super::audit::Audit;
use super::described::{DescribedArgs, SavesAndAudits, TrainingSetup};
use super::notice::Leaver;
use crate::trainer::{INJECTED, RunStart, TrainError, run_worker_in_place};
use anyhow::{Context, anyhow};
use clap::Args;
use codedgrad::ids::Worker;
use codedgrad::train::AggregatorError;
use codedgrad::transport::Link;
use codedgrad::transport::tcp::{
    Environment, EnvironmentError, Join, TcpError, TcpLink, Welcome, host_name,
};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::folder::write_whole;
use codedgrad_shell::layout::help;
use codedgrad_shell::output::{alert, say};
use codedgrad_shell::pool::notice;
use codedgrad_shell::signals::EndRequest;
use codedgrad_shell::units::{patience, seconds};
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

/// Where `codedgrad run` looks for the last word of a worker.
const FINAL: &str = "CODEDGRAD_FINAL";

#[derive(Debug, Args)]
#[command(
    after_help = help("\
Give all workers the same flags: they say what is trained. The worker that the coordinator names
writes checkpoints and the model into --out. `codedgrad run` restarts a worker that dies, and it
copies the state of another. A worker whose number another process has taken ends with exit status
4: do not restart it.

On Ctrl-C or SIGTERM the worker leaves, and the run goes on without it. It finishes its task, stays
until no worker needs what it holds, and ends with status 0. After --notice seconds, or if asked
again a second later, it ends at once. A file that appears at $CODEDGRAD_NOTICE_FILE counts as
SIGTERM. Workers that may fail together have a common CODEDGRAD_DOMAIN, such as a rack's name
(default: the host's).

The environment says which run it joins: the coordinator's address in CODEDGRAD_ADDRESS, the token
in the file that CODEDGRAD_TOKEN_FILE names or in CODEDGRAD_TOKEN, keys in CODEDGRAD_KEYS, and the
worker's number in CODEDGRAD_WORKER, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK or
JOB_COMPLETION_INDEX (Kubernetes). `codedgrad run` sets all of them.

One thread computes, so that several workers of a host do not fight for its cores; set
RAYON_NUM_THREADS to give a worker more.

Examples:
  codedgrad run -n 4 --scheme groups:s=1 codedgrad-lab worker --steps 100 --out gpt
  codedgrad run -n 8 --listen 0.0.0.0:7000 --keys keys codedgrad-lab worker --corpus /data/text
  CODEDGRAD_ADDRESS=host0:7000 CODEDGRAD_KEYS=keys srun codedgrad-lab worker --out gpt")
)]
pub(crate) struct WorkerArgs {
    /// Text to train on: a file or a folder of files; embedded text if not given
    #[arg(long, value_name = "FILE|DIR", help_heading = "Data")]
    corpus: Option<PathBuf>,
    /// Hugging Face tokenizer.json; without it, tokens are bytes
    #[arg(long, value_name = "FILE", help_heading = "Data", hide_short_help = true)]
    tokenizer: Option<PathBuf>,
    /// How long the coordinator is called when it does not answer, at first and when it is lost
    #[arg(
        long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds,
        help_heading = "Joining and leaving"
    )]
    patience: f64,
    /// How long the worker may take to leave when it is asked to; 0 for not at all
    /// [default: $CODEDGRAD_NOTICE, or 20]
    #[arg(
        long, value_name = "SECONDS", value_parser = seconds,
        help_heading = "Joining and leaving"
    )]
    notice: Option<f64>,
    #[command(flatten)]
    described: DescribedArgs,
}

/// How a worker joins, with what its environment says.
fn join(environment: &Environment, patience: Duration) -> Result<Join, Failure> {
    let worker = environment.worker;
    let identity = match worker {
        Some(worker) => format!("{}/{worker}", host_name()),
        None => format!("{}/process-{}", host_name(), std::process::id()),
    };
    let address = environment.address.clone().ok_or(EnvironmentError::NoAddress);
    let address = address
        .context("this worker is started by `codedgrad run`, or joins what `codedgrad serve` says")
        .or_input()?;
    let security = environment.secrets.security(worker).or_input()?;
    Ok(Join { worker, identity, patience, ..Join::new(address, security) })
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

/// A worker's number, and how its loop has ended.
type WorkerEnd = (u32, Result<(), TrainError>);

impl WorkerArgs {
    /// Joins, and trains until the run is over.
    fn trains(&self, environment: &Environment, leaver: &Leaver) -> Result<WorkerEnd, Failure> {
        let (join, size) = (join(environment, patience(self.patience))?, environment.workers);
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
        let TrainingSetup { plan, run, batches, state, saves, .. } = &mut trained;
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
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let environment = Environment::of_process().or_input()?;
    let leaver = Leaver::watch(EndRequest::catch(false)?, notice(args.notice)?);
    let (number, done) = args.trains(&environment, &leaver)?;
    done.map_err(|error| match error {
        TrainError::Aggregator(AggregatorError::Replaced) => Failure::Replaced(error.into()),
        _ => Failure::Work(error.into()),
    })?;
    let how = if leaver.leaves() { "has left the run" } else { "the run is over" };
    say!("worker {number}: {how}");
    Ok(())
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
