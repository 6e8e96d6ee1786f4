//! The run's coordinator: a process of its own, so that it dies with no worker.

use super::child::{ChildProcess, Log, Words};
use super::happened::LauncherEvent;
use super::screen::Screen;
use super::supervise::{End, Policy, RestartDecision};
use crate::tools::serve::ServeJob;
use crate::tools::serve::events::Outcome;
use anyhow::Context;
use codedgrad_shell::clock::now;
use codedgrad_shell::failure::{Failure, OrWork};
use codedgrad_shell::folder::COORDINATOR_LOG;
use codedgrad_shell::itself::ProgramCommand;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How often it may die.
const RESTARTS: u32 = 10;
/// Workers that have lost it call it for 30 s.
const PAUSE_MAX: Duration = Duration::from_secs(10);

pub(super) struct Coordinator<'a> {
    itself: &'a ProgramCommand,
    /// What it is told to do.
    serving: ServeJob,
    process: Option<ChildProcess>,
    /// It ends the run when this is closed, as it is when the launcher dies.
    alive: Option<ChildStdin>,
    policy: Policy,
    again: Option<Instant>,
    died: bool,
    /// Where it listens, and its folder, once it does.
    pub(super) place: Option<(SocketAddr, PathBuf)>,
    /// How the run ended, once it has.
    pub(super) outcome: Option<Outcome>,
    events: Sender<LauncherEvent>,
    words: Words,
    kill_at: Option<Instant>,
}

impl<'a> Coordinator<'a> {
    /// Starts it.
    pub(super) fn start(
        itself: &'a ProgramCommand,
        serving: ServeJob,
        events: Sender<LauncherEvent>,
        screen: &Screen,
    ) -> Result<Self, Failure> {
        let voice = Some((screen.voice(), String::new()));
        let mut coordinator = Self {
            itself,
            serving,
            process: None,
            alive: None,
            policy: Policy::new(RESTARTS).pauses_up_to(PAUSE_MAX),
            again: None,
            died: false,
            place: None,
            outcome: None,
            events,
            words: Words { log: Log::later(), voice },
            kill_at: None,
        };
        coordinator.launch().context("cannot start the coordinator").or_work()?;
        Ok(coordinator)
    }

    fn launch(&mut self) -> std::io::Result<()> {
        let mut told = serde_json::to_vec(&self.serving)?;
        told.push(b'\n');
        let mut command = self.itself.command();
        command.args(["serve", "--launched"]).stdin(Stdio::piped());
        let mut process = ChildProcess::start(&mut command, &self.words)?;
        let events = self.events.clone();
        process.read_by(move |pipe| {
            for line in BufReader::new(pipe).lines() {
                let Ok(line) = line else { return };
                match serde_json::from_str(&line) {
                    // At the launcher's end no thread receives it any more.
                    Ok(event) => drop(events.send(LauncherEvent::Told(event))),
                    Err(error) => tracing::warn!("the coordinator said {line:?}: {error}"),
                }
            }
        });
        self.alive = process.stdin();
        if let Some(input) = &mut self.alive {
            // One that has died already is not told anything; how it ended is seen then.
            let _ = input.write_all(&told);
        }
        self.process = Some(process);
        Ok(())
    }

    /// It listens, and its folder is there.
    pub(super) fn listens(&mut self, address: SocketAddr, folder: PathBuf) -> Result<(), Failure> {
        if self.place.is_none() {
            let log = folder.join(COORDINATOR_LOG);
            let opened = self.words.log.open(&log);
            opened.with_context(|| format!("cannot write {}", log.display())).or_work()?;
        }
        self.place = Some((address, folder));
        Ok(())
    }

    /// How its process ended, once it has. What it said before is among the events.
    pub(super) fn reap(&mut self) -> Option<(End, Duration)> {
        let process = self.process.as_mut()?;
        if self.kill_at.is_some_and(|at| at <= now()) {
            process.signal(Signal::KILL);
        }
        let ended = process.ended()?;
        (self.process, self.alive) = (None, None);
        Some(ended)
    }

    /// What comes after its process has ended in a run that goes on: it is started again, or else
    /// that was the end of it.
    pub(super) fn goes_on(&mut self, (end, up): (End, Duration), screen: &Screen) -> bool {
        // What it could not do it has said.
        if self.outcome.is_some() || self.place.is_none() || end == End::Status(1) {
            return false;
        }
        match self.policy.ended(end, up) {
            RestartDecision::Again { after, time } => {
                let wait = after.as_secs();
                screen.note(&format!(
                    "the coordinator {end}: started again in {wait} s ({time} of {RESTARTS})"
                ));
                (self.again, self.died) = (Some(now() + after), true);
                true
            }
            RestartDecision::Over => false,
            RestartDecision::GivenUp(why) => {
                screen.note(&format!("the coordinator {end}, and is given up: {why}"));
                false
            }
        }
    }

    /// Starts it again when that is due.
    pub(super) fn start_due(&mut self) -> Result<(), Failure> {
        if self.again.is_none_or(|at| at > now()) {
            return Ok(());
        }
        self.again = None;
        let Some((_, folder)) = &self.place else { return Ok(()) };
        self.serving = self.serving.again(folder);
        self.launch().context("cannot start the coordinator again").or_work()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let of = self.process.as_ref();
        let kill_at = self.kill_at.filter(|_| of.is_some());
        self.again.into_iter().chain(kill_at).chain(of.and_then(ChildProcess::next_due)).min()
    }

    /// Has it end, by force after a while. One that has said how the run ended has only to write
    /// that down, and is let do so.
    pub(super) fn end(&mut self, signal: Signal, grace: Duration) {
        self.again = None;
        if let Some(process) = &self.process {
            if self.outcome.is_none() || signal == Signal::KILL {
                process.signal(signal);
            }
            self.kill_at = Some(now() + grace);
        }
    }

    /// Whether it has died once, or more often, and was or is to be started again.
    pub(super) fn has_died(&self) -> bool {
        self.died
    }

    /// Whether its end may come from its own death, and not from what became of the run.
    pub(super) fn is_no_witness(&self) -> bool {
        self.outcome.is_none() || self.died
    }

    pub(super) fn is_up(&self) -> bool {
        self.process.is_some() || self.again.is_some()
    }
}
