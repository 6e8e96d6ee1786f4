//! The workers of this host: each a process that is started again when it dies.

use super::child::{ChildProcess, Log, Words, last_words};
use super::command::{Place, Start, Trainer};
use super::last_word::{EndKind, Final, LastWord};
use super::screen::{Screen, Voice};
use super::supervise::{End, Policy, RestartDecision};
use codedgrad_shell::clock::now;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One worker.
#[derive(Debug)]
struct Member {
    worker: u32,
    policy: Policy,
    state: State,
    /// How often it was started before.
    epoch: u32,
    /// Whether the process that runs has joined the run.
    joined: bool,
    /// How it ended first, if it did so by itself, and what it had said last.
    ended_first: Option<(End, String)>,
    /// How often it ended by itself with a status that is not 0.
    failed: u32,
    /// How it ended last, and whether it was told to.
    ended_last: Option<(End, bool)>,
    /// Whether it has said that its script is wrong.
    misused: bool,
    /// Whether it is not started again after it has ended too often.
    given_up: bool,
    /// Whether it was there when the run was over, as far as that is known.
    stayed: bool,
    log: PathBuf,
    last_word: LastWord,
    /// Why the run has refused the process that runs, if it has.
    refused: Option<String>,
}

#[derive(Debug)]
enum State {
    Up {
        process: ChildProcess,
        /// When it is killed, since it was told to end.
        kill_at: Option<Instant>,
    },
    /// Until it is started again.
    Waiting(Instant),
    /// For good.
    Over,
}

/// What became of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The run goes on: who dies is started again.
    Running,
    /// The run is over, and its workers may take their time to end.
    Over,
    /// Everything ends.
    Ending,
}

/// What the run has to do without from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// A worker that has ended with status 0.
    Left,
    /// One that is not started again.
    GivenUp,
    /// One that the run has refused for good.
    Refused,
    /// One that has ended the run, since its script is wrong.
    EndsRun,
    /// One that was not able to join, and would not be if it were started again: why.
    CannotJoin(String),
}

pub(super) struct Crew<'a> {
    trainer: &'a Trainer,
    place: Place,
    members: Vec<Member>,
    voice: Voice,
    /// Whether others than the first worker of this host are silent.
    quiet: bool,
    restarts: u32,
    grace: Duration,
    /// The worker that saves at the end of a run that is over, where that is known.
    pub(super) saver: Option<u32>,
}

impl<'a> Crew<'a> {
    /// Workers of these numbers, none of which is started yet.
    pub(super) fn new(
        trainer: &'a Trainer,
        place: Place,
        (workers, folder): (std::ops::Range<u32>, &Path),
        (restarts, grace, quiet): (u32, Duration, bool),
        screen: &Screen,
    ) -> Self {
        let member = |worker: u32| Member {
            worker,
            policy: Policy::new(restarts),
            state: State::Waiting(now()),
            epoch: 0,
            joined: false,
            ended_first: None,
            failed: 0,
            ended_last: None,
            misused: false,
            given_up: false,
            stayed: true,
            log: folder.join(format!("worker-{worker}.log")),
            last_word: LastWord::of(worker, folder),
            refused: None,
        };
        let members = workers.map(member).collect();
        let voice = screen.voice();
        Self { trainer, place, members, voice, quiet, restarts, grace, saver: None }
    }

    /// Starts those that are due.
    pub(super) fn start_due(&mut self, screen: &Screen) {
        for at in 0..self.members.len() {
            let member = &self.members[at];
            if matches!(member.state, State::Waiting(until) if until <= now()) {
                let state = match self.start(member) {
                    Ok(process) => State::Up { process, kill_at: None },
                    Err(error) => {
                        screen
                            .note(&format!("worker {} cannot be started: {error}", member.worker));
                        State::Over
                    }
                };
                let member = &mut self.members[at];
                (member.state, member.joined) = (state, false);
                member.refused = None;
                if matches!(member.state, State::Over) {
                    let end = End::Status(1);
                    member.ended_last = Some((end, false));
                    member.ended_first.get_or_insert((end, String::new()));
                }
            }
        }
    }

    fn start(&self, member: &Member) -> std::io::Result<ChildProcess> {
        let Member { worker, epoch, log, last_word, .. } = member;
        // Of an earlier process, or an earlier run.
        last_word.take();
        let seen = !self.quiet || self.members.first().is_some_and(|first| first.worker == *worker);
        let voice = seen.then(|| (self.voice.clone(), format!("[{worker}] ")));
        let log_of = match epoch {
            0 => Log::at(log)?,
            _ => Log::again(log, &format!("--- worker {worker} is started again ({epoch}) ---"))?,
        };
        let words = Words { log: log_of, voice };
        let mut command = self.trainer.command(
            &self.place,
            *worker,
            Start { epoch: *epoch, log, last_word: last_word.path() },
        );
        Ok(ChildProcess::start(&mut command, &words)?.echoed(&words))
    }

    /// Takes note of who has ended, and decides what comes next for it.
    pub(super) fn look(&mut self, stage: Stage, screen: &Screen) -> Vec<(u32, Fate)> {
        let mut fates = Vec::new();
        for member in &mut self.members {
            let State::Up { process, kill_at } = &mut member.state else { continue };
            if kill_at.is_some_and(|at| at <= now()) {
                process.signal(Signal::KILL);
            }
            let Some((end, up)) = process.ended() else { continue };
            let told = kill_at.is_some();
            member.state = State::Over;
            member.ended_last = Some((end, told));
            let last_word = member.last_word();
            member.misused |= last_word.as_ref().is_some_and(|said| said.how == EndKind::Ends);
            if told || stage == Stage::Ending {
                continue;
            }
            member.ended_first.get_or_insert_with(|| (end, last_words(&member.log)));
            member.failed += u32::from(matches!(end, End::Status(status) if status != 0));
            let (worker, log) = (member.worker, member.log.display());
            if stage == Stage::Over {
                if end != End::Status(0) {
                    screen
                        .note(&format!("worker {worker} {end} after the run was over; see {log}"));
                }
                continue;
            }
            if let Some(Final { how, why }) = last_word.filter(|_| end != End::Status(0)) {
                screen.note(&format!("worker {worker} {end}, and is not started again: {why}"));
                let fate = match how {
                    EndKind::Refused => Fate::Refused,
                    EndKind::Failed => Fate::CannotJoin(why),
                    EndKind::Ends => Fate::EndsRun,
                };
                fates.push((worker, fate));
                continue;
            }
            match member.policy.ended(end, up) {
                RestartDecision::Over if end == End::Status(0) => fates.push((worker, Fate::Left)),
                RestartDecision::Over => {
                    screen.note(&format!("worker {worker} {end}: it is not started again"));
                }
                RestartDecision::Again { after, time } => {
                    member.state = State::Waiting(now() + after);
                    member.epoch += 1;
                    screen.note(&format!(
                        "worker {worker} {end}: started again in {} s ({time} of {})",
                        after.as_secs(),
                        self.restarts
                    ));
                }
                RestartDecision::GivenUp(why) => {
                    member.given_up = true;
                    fates.push((worker, Fate::GivenUp));
                    screen.note(&format!(
                        "worker {worker} {end}, and is given up: {why}. The end of {log}:\n{}",
                        last_words(&member.log)
                    ));
                }
            }
        }
        fates
    }

    /// A worker has joined the run.
    pub(super) fn joined(&mut self, worker: u32) {
        let of = self.members.iter_mut().find(|member| member.worker == worker);
        // Of one that has died since, its next process has not.
        if let Some(member) = of.filter(|member| matches!(member.state, State::Up { .. })) {
            (member.joined, member.refused) = (true, None);
        }
    }

    /// The run has refused a worker for good: it is not started again.
    pub(super) fn refused(&mut self, worker: u32, why: String, screen: &Screen) {
        let Some(member) = self.members.iter_mut().find(|member| member.worker == worker) else {
            return;
        };
        match member.state {
            State::Up { .. } => member.refused = Some(why),
            State::Waiting(_) => {
                member.state = State::Over;
                screen.note(&format!("worker {worker} is not started again: {why}"));
            }
            State::Over => {}
        }
    }

    /// Starts no worker again: the run is over. One that has not joined it comes too late, and one
    /// not connected to its end, where that is known, may never learn of it.
    pub(super) fn let_end(&mut self, connected: &[u32], screen: &Screen) {
        self.cancel();
        let grace = self.grace;
        for member in &mut self.members {
            let lost = !connected.is_empty() && !connected.contains(&member.worker);
            member.stayed = !lost;
            if member.joined && lost && matches!(member.state, State::Up { .. }) {
                screen.note(&format!(
                    "worker {} was not connected when the run was over: it is ended, in {} s by \
                     force",
                    member.worker,
                    grace.as_secs()
                ));
            }
            if lost || !member.joined {
                member.tell(Signal::TERM, grace);
            }
        }
    }

    /// The workers of this host that run.
    pub(super) fn up(&self) -> Vec<u32> {
        let up = self.members.iter().filter(|member| matches!(member.state, State::Up { .. }));
        up.map(|member| member.worker).collect()
    }

    /// Starts no worker again.
    pub(super) fn cancel(&mut self) {
        for member in &mut self.members {
            if matches!(member.state, State::Waiting(_)) {
                member.state = State::Over;
            }
        }
    }

    /// Has all workers end, by force after a while.
    pub(super) fn end(&mut self, signal: Signal, grace: Duration) {
        self.cancel();
        self.members.iter_mut().for_each(|member| member.tell(signal, grace));
    }

    /// Ends all workers at once.
    pub(super) fn kill(&mut self) {
        self.cancel();
        for member in &mut self.members {
            member.tell(Signal::KILL, Duration::ZERO);
        }
    }

    /// When something is to be done next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = |member: &Member| match &member.state {
            State::Up { process, kill_at } => {
                (*kill_at).into_iter().chain(process.next_due()).min()
            }
            State::Waiting(until) => Some(*until),
            State::Over => None,
        };
        self.members.iter().filter_map(due).min()
    }

    /// Whether no worker of this host runs or will.
    pub(super) fn is_over(&self) -> bool {
        self.members.iter().all(|member| matches!(member.state, State::Over))
    }

    /// Whether each worker has ended by itself at least once, with an exit status, and none runs.
    /// One that was killed, because memory was short for example, may do better the next time.
    pub(super) fn all_ended(&self) -> bool {
        let by_itself = |member: &Member| {
            matches!(member.ended_first, Some((End::Status(_), _)))
                && matches!(member.ended_last, Some((End::Status(_), _)))
                && !matches!(member.state, State::Up { .. })
        };
        self.members.iter().all(by_itself)
    }

    /// Whether each worker has failed so often by itself.
    pub(super) fn all_failed(&self, times: u32) -> bool {
        self.members.iter().all(|member| member.failed >= times)
    }

    /// The first of these workers that is given up, if one is, and what it had said last.
    pub(super) fn given_up(&self, of: &BTreeSet<u32>) -> Option<(u32, String)> {
        let is_one = |member: &&Member| member.given_up && of.contains(&member.worker);
        let member = self.members.iter().find(is_one)?;
        Some((member.worker, last_words(&member.log)))
    }

    /// How the first worker of this host ended first, and what it had said last.
    pub(super) fn first_end(&self) -> Option<(u32, End, &str)> {
        let first = self.members.first()?;
        let (end, said) = first.ended_first.as_ref()?;
        Some((first.worker, *end, said))
    }

    /// Whether a worker of this host was started again and runs, or is to be.
    pub(super) fn any_again(&self) -> bool {
        self.members.iter().any(Member::is_again)
    }

    /// Ends workers that were started again, and starts none any more.
    pub(super) fn end_again(&mut self) {
        let grace = self.grace;
        for member in self.members.iter_mut().filter(|member| member.is_again()) {
            member.tell(Signal::TERM, grace);
        }
        self.cancel();
    }

    /// Whether one has ended as it should.
    pub(super) fn any_done(&self) -> bool {
        self.members.iter().any(Member::is_done)
    }

    /// Whether all have.
    pub(super) fn all_done(&self) -> bool {
        self.members.iter().all(Member::is_done)
    }

    /// What became of the workers of a run that was made to its end, by which time all of them have
    /// ended: what they learned they save after it. An error if none of this host has ended well,
    /// or the one that saves has not, or a script is wrong; and words about those that have not
    /// where others have.
    pub(super) fn after_the_end(&self) -> Result<Option<String>, String> {
        let crashed = |member: &&Member| {
            let by_itself = member.ended_last.filter(|(_, by_us)| !by_us);
            by_itself.is_some_and(|(end, _)| end != End::Status(0))
        };
        let words = |member: &Member| {
            let end = member.ended_last.map(|(end, _)| end.to_string()).unwrap_or_default();
            format!("worker {} {end} (see {})", member.worker, member.log.display())
        };
        let crashed: Vec<&Member> = self.members.iter().filter(crashed).collect();
        // What others have come to is no outcome of a script that is wrong.
        if let Some(wrong) = crashed.iter().find(|member| member.misused) {
            return Err(words(wrong));
        }
        let saver = crashed.iter().find(|member| Some(member.worker) == self.saver);
        let saver =
            saver.map(|saver| format!("the worker that saves has failed: {}", words(saver)));
        let crashed: Vec<String> = crashed.into_iter().map(words).collect();
        if !self.members.iter().any(|member| member.stayed && member.is_done()) {
            let why = if crashed.is_empty() { String::new() } else { ": ".to_owned() };
            let none = "no worker of this host has ended with status 0 after it";
            return Err(format!("{none}{why}{}", crashed.join(", ")));
        }
        if let Some(saver) = saver {
            return Err(saver);
        }
        Ok((!crashed.is_empty()).then(|| crashed.join(", ")))
    }
}

impl Member {
    fn is_again(&self) -> bool {
        self.epoch > 0 && !matches!(self.state, State::Over)
    }

    /// Why it is not started again, if it or the run has said so.
    fn last_word(&mut self) -> Option<Final> {
        let of_run = self.refused.take().map(|why| Final { how: EndKind::Refused, why });
        self.last_word.take().or(of_run)
    }

    fn is_done(&self) -> bool {
        self.ended_last.is_some_and(|(end, _)| end == End::Status(0))
    }

    fn tell(&mut self, signal: Signal, grace: Duration) {
        if let State::Up { process, kill_at } = &mut self.state {
            process.signal(signal);
            let at = now() + grace;
            *kill_at = Some(kill_at.map_or(at, |before| before.min(at)));
        }
    }
}
