//! The launcher's loop: what happens to the run and its processes, and what is done about it.

use super::Job;
use super::command::{Place, Trainer, reached};
use super::coordinator::Coordinator;
use super::crew::{Crew, Fate, Stage};
use super::happened::{Catch, LauncherEvent};
use super::joining::{JoinProgress, named};
use super::knock::Knock;
use super::screen::Screen;
use super::supervise::End;
use crate::tools::serve::SAME_ORDER;
use crate::tools::serve::events::{Event, Outcome};
use anyhow::anyhow;
use codedgrad_shell::clock::now;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::folder::COORDINATOR_LOG;
use codedgrad_shell::signals::ENDED;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked at the processes where no signal tells of them.
const LOOK: Duration = Duration::from_secs(1);
/// Not more often, whatever is due.
const LOOK_MIN: Duration = Duration::from_millis(5);
/// What a coordinator has to say is heard so long after the last of its workers has ended.
const HEARD: Duration = Duration::from_millis(800);
/// How long after its last worker the coordinator may take to see that the run is over.
const SEEN: Duration = Duration::from_secs(10);
/// How long after its end it is said that a worker has left a run that goes on.
const LEFT: Duration = Duration::from_secs(2);
/// A run of which no step is decided ends when each of its workers has failed so often: what is
/// wrong is wrong in every life of a process. A failure of one may be the other's fault, once.
const FAILED: u32 = 2;
/// After how long it is said for whom a run that is over waits.
const WAITS: Duration = Duration::from_secs(10);

/// Why everything ends, or is over.
#[derive(Clone, Debug)]
enum Close {
    /// A person wants it so.
    Signal(i32),
    /// The run is over.
    Outcome(u8),
    /// It cannot go on, for a reason that was said already.
    Said(u8),
    Because(String),
    /// Its workers were told to leave, all of them.
    Preempted(String),
}

pub(super) struct Watch<'a> {
    job: &'a Job<'a>,
    screen: &'a Screen,
    happened: Receiver<LauncherEvent>,
    coordinator: Option<Coordinator<'a>>,
    crew: Option<Crew<'a>>,
    /// At the coordinator of another host.
    knock: Option<Knock>,
    close: Option<Close>,
    /// Since when a user wants everything to end.
    asked: Option<Instant>,
    /// When it is said who is waited for in a run that is over.
    waits: Option<Instant>,
    joining: JoinProgress,
    /// Workers that have ended with status 0, and when that is said.
    left: Vec<(u32, Instant)>,
    away: AwayWorkers,
    /// Whether it was said what the run does without a worker.
    waits_told: bool,
    /// Since when all workers of this host have ended.
    alone: Option<Instant>,
    /// The last step that is decided, and how many there are.
    decided: Option<(u64, u64)>,
}

/// Workers that are not there, as the coordinator says.
#[derive(Default)]
struct AwayWorkers {
    /// Those that have left the run since they were told to end.
    told: BTreeSet<u32>,
    /// Those whose return the open step waits for.
    needed: BTreeSet<u32>,
}

/// Makes the run.
pub(super) fn run(job: &Job<'_>, screen: &Screen) -> Result<(), Failure> {
    let (sender, happened) = channel();
    let _catch = Catch::signals(sender.clone())?;
    let coordinator = match &job.serving {
        Some(serving) => Some(Coordinator::start(job.itself, serving.clone(), sender, screen)?),
        None => None,
    };
    let mut watch = Watch {
        job,
        screen,
        happened,
        coordinator,
        crew: None,
        knock: job.place.as_ref().map(|place| Knock::at(&place.address)),
        close: None,
        asked: None,
        waits: None,
        joining: JoinProgress::of(job.all),
        left: Vec::new(),
        away: AwayWorkers::default(),
        waits_told: false,
        alone: None,
        decided: None,
    };
    if let Some(place) = job.place.clone() {
        watch.gather(place, &job.folder);
    }
    let looked = watch.look_on();
    if matches!(looked, Err(Failure::Work(_) | Failure::Input(_))) {
        watch.kill();
    }
    looked
}

impl<'a> Watch<'a> {
    /// Has the workers of this host started.
    fn gather(&mut self, place: Place, folder: &std::path::Path) {
        let Job { trainer, workers, restarts, grace, quiet, .. } = self.job;
        let times = (*restarts, *grace, *quiet);
        let of = (workers.clone(), folder);
        self.crew = Some(Crew::new(trainer, place, of, times, self.screen));
        self.joining.begin();
    }

    /// Does what is to be done until all processes have ended.
    fn look_on(&mut self) -> Result<(), Failure> {
        loop {
            self.start_due()?;
            if self.is_done() {
                return self.end();
            }
            let due = self.next_due().map(|at| at.saturating_duration_since(now()));
            let wait = due.map_or(LOOK, |due| due.clamp(LOOK_MIN, LOOK));
            match self.happened.recv_timeout(wait) {
                Ok(happened) => self.take(happened)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(wait),
            }
            self.take_all()?;
            self.look()?;
            self.judge();
            self.tell_who_left();
            if self.coordinator.is_some() && self.crew.is_some() {
                self.tell_who_is_missing();
            }
            self.tell_who_is_left();
        }
    }

    fn take_all(&mut self) -> Result<(), Failure> {
        while let Ok(happened) = self.happened.try_recv() {
            self.take(happened)?;
        }
        Ok(())
    }

    fn take(&mut self, happened: LauncherEvent) -> Result<(), Failure> {
        match happened {
            LauncherEvent::Signal(signal @ (SIGINT | SIGTERM | SIGHUP)) => self.signalled(signal),
            LauncherEvent::Signal(_) => {}
            LauncherEvent::Told(Event::Listening { address, folder }) => {
                let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
                coordinator.listens(address, folder.clone())?;
                if self.crew.is_none() {
                    let place = self.job.place_at(reached(address, self.job.nodes == 1), &folder);
                    self.gather(place, &folder);
                }
            }
            LauncherEvent::Told(Event::Joined { worker, .. }) => {
                self.joining.joined(worker);
                self.away.told.remove(&worker);
                self.away.needed.remove(&worker);
                if let Some(crew) = &mut self.crew {
                    crew.joined(worker);
                }
            }
            LauncherEvent::Told(Event::Refused { worker, reason }) => {
                if let Some(crew) = &mut self.crew {
                    crew.refused(worker, reason, self.screen);
                }
            }
            LauncherEvent::Told(Event::Needs { workers }) => {
                self.away.needed = workers.into_iter().collect();
            }
            LauncherEvent::Told(Event::Happened(event)) => {
                self.away.told.extend(event.worker.filter(|_| event.told).map(|it| it as u32));
            }
            LauncherEvent::Told(Event::Step(step)) => {
                self.decided = Some((step.step + 1, step.steps));
                self.screen.step(step);
            }
            LauncherEvent::Told(Event::Over { outcome, connected }) => {
                self.over(outcome, &connected);
            }
        }
        Ok(())
    }

    /// The coordinator says that the run is over.
    fn over(&mut self, outcome: Outcome, connected: &[u32]) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.outcome = Some(outcome);
        }
        if self.close.is_some() {
            return;
        }
        match outcome {
            Outcome::Finished => self.let_end(0, connected),
            // A user has asked the coordinator alone to end, or all of the workers.
            Outcome::Stopped => self.let_end(ENDED, connected),
            // Its exit status says how.
            Outcome::Failed => {}
        }
    }

    fn let_end(&mut self, status: u8, connected: &[u32]) {
        self.close = Some(Close::Outcome(status));
        self.waits = Some(now() + WAITS);
        if let Some(crew) = &mut self.crew {
            crew.let_end(connected, self.screen);
            // The first of those that were there at the last step.
            crew.saver = connected.iter().min().copied();
        }
    }

    /// Ends everything; the second time at once. A run that is over stays what it was.
    fn signalled(&mut self, signal: i32) {
        if let Some(since) = self.asked {
            if since.elapsed() >= SAME_ORDER {
                self.screen.note("ending at once");
                self.kill();
            }
            return;
        }
        self.asked = Some(now());
        let over = matches!(self.close, Some(Close::Outcome(_)));
        let what = if over { "what is left of the run" } else { "the run" };
        let told = if signal == SIGINT { Signal::INT } else { Signal::TERM };
        let grace = self.job.grace(told).as_secs();
        self.screen
            .note(&format!("ending {what}; in {grace} s by force, and at once if asked again"));
        if over {
            self.end_all(told);
        } else {
            self.close(Close::Signal(signal), told);
        }
    }

    fn close(&mut self, why: Close, signal: Signal) {
        match &why {
            Close::Because(why) => self.screen.note(&format!("error: {why}")),
            Close::Preempted(why) => self.screen.note(why),
            _ => {}
        }
        self.close = Some(why);
        self.end_all(signal);
    }

    fn end_all(&mut self, signal: Signal) {
        // Before the workers: that they leave is then no surprise to it.
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.end(signal, self.job.grace(signal));
        }
        if let Some(crew) = &mut self.crew {
            crew.end(signal, self.job.grace(signal));
        }
    }

    fn kill(&mut self) {
        if let Some(crew) = &mut self.crew {
            crew.kill();
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.end(Signal::KILL, Duration::ZERO);
        }
    }

    fn stage(&self) -> Stage {
        match self.close {
            None => Stage::Running,
            Some(Close::Outcome(_)) => Stage::Over,
            Some(_) => Stage::Ending,
        }
    }

    /// Sees which processes have ended.
    fn look(&mut self) -> Result<(), Failure> {
        let ended = self.coordinator.as_mut().and_then(Coordinator::reap);
        // What it said before its end comes first.
        self.take_all()?;
        if let Some(ended) = ended {
            if let (End::Status(1), Some(Close::Outcome(status))) = (ended.0, &mut self.close) {
                // What it could not write down it has said.
                *status = 1;
            }
            let dead = self.coordinator.as_ref().is_some_and(Coordinator::is_no_witness);
            if self.close.is_none() && dead && self.is_made() {
                // It died where only its own papers were left to be written.
                self.let_end(0, &[]);
            }
            let goes_on = self.close.is_none()
                && self.coordinator.as_mut().is_some_and(|it| it.goes_on(ended, self.screen));
            if self.close.is_none() && !goes_on {
                // It has said why, or the policy has.
                let status = match ended.0 {
                    End::Status(status @ (2 | 130 | 143)) => status as u8,
                    _ => 1,
                };
                self.close(Close::Said(status), Signal::TERM);
            }
        }
        let stage = self.stage();
        if let Some(crew) = &mut self.crew {
            let fates = crew.look(stage, self.screen);
            fates.into_iter().for_each(|(worker, fate)| self.fare(worker, fate));
        }
        Ok(())
    }

    /// Says what an end of a worker means to the run.
    fn fare(&mut self, worker: u32, fate: Fate) {
        match fate {
            // What the run has come to is not known here.
            Fate::Left if self.coordinator.is_none() => {
                self.screen.note(&format!("worker {worker} ended with status 0"));
            }
            // It may be that it was told of the run's end before the launcher.
            Fate::Left => self.left.push((worker, now() + LEFT)),
            // Before the first step a user has to mend that; later the others may do.
            Fate::CannotJoin(why) if self.decided.is_none() && self.coordinator.is_some() => {
                if self.close.is_none() {
                    let why = format!("nothing is trained: worker {worker} cannot join: {why}");
                    self.close(Close::Because(why), Signal::TERM);
                }
            }
            // The coordinator says what that means.
            Fate::EndsRun => {}
            Fate::Refused if self.decided.is_none() => {}
            Fate::GivenUp | Fate::Refused | Fate::CannotJoin(_) => {
                let over = self.crew.as_ref().is_none_or(Crew::is_over);
                if over && self.job.nodes == 1 || std::mem::replace(&mut self.waits_told, true) {
                    return;
                }
                let waits = self.job.waits(self.decided.is_some());
                self.screen.note(&format!(
                    "worker {worker} is given up: where the scheme needs it, the run waits for it \
                     {waits}"
                ));
            }
        }
    }

    /// Says who has left a run that goes on.
    fn tell_who_left(&mut self) {
        let (decided, steps) = self.decided.unwrap_or_default();
        let due = self.left.extract_if(.., |(_, at)| *at <= now());
        for (worker, _) in due.filter(|_| self.close.is_none()) {
            let at = if steps == 0 {
                "before the first step".to_owned()
            } else if decided < steps {
                format!("while the run goes on (step {decided} of {steps})")
            } else {
                continue;
            };
            self.screen.note(&format!("worker {worker} ended with status 0 {at}"));
        }
    }

    /// Says now and then who has not joined a run that has not begun.
    fn tell_who_is_missing(&mut self) {
        if self.decided.is_some() || self.close.is_some() {
            return;
        }
        let Trainer { name, joins_by, .. } = &self.job.trainer;
        if let Some(missing) = self.joining.told(name, joins_by) {
            self.screen.note(&missing);
        }
    }

    /// Says, once, for whom a run waits that is over.
    fn tell_who_is_left(&mut self) {
        if self.waits.is_none_or(|at| at > now()) {
            return;
        }
        self.waits = None;
        let left = self.crew.as_ref().map(Crew::up).unwrap_or_default();
        if !left.is_empty() && self.asked.is_none() {
            let left = named(&left);
            self.screen.note(&format!("the run is over: waiting for {left} to end"));
        }
    }

    /// Whether all steps are decided and a worker has ended as it should, whatever the coordinator
    /// could still say of it.
    fn is_made(&self) -> bool {
        self.decided.is_some_and(|(decided, steps)| steps > 0 && decided == steps)
            && self.crew.as_ref().is_some_and(Crew::any_done)
    }

    /// Ends a run of which all is done but that its coordinator, which has died, says so.
    fn conclude(&mut self) {
        let over = self.crew.as_ref().is_some_and(Crew::is_over) && self.is_made();
        let Some(coordinator) = self.coordinator.as_mut().filter(|it| over && it.has_died()) else {
            return;
        };
        coordinator.end(Signal::TERM, self.job.grace);
        self.let_end(0, &[]);
    }

    /// Sees whether the run can still come to something.
    fn judge(&mut self) {
        if self.close.is_none() {
            self.conclude();
        }
        let Some(crew) = self.crew.as_mut().filter(|_| self.close.is_none()) else { return };
        if self.coordinator.is_none() {
            self.judge_from_afar();
            return;
        }
        let gone = crew.is_over() || self.joining.is_nobody() && crew.all_ended();
        self.alone = self.alone.or_else(now_some).filter(|_| gone);
        let since = self.alone.map_or(Duration::ZERO, |since| since.elapsed());
        let (name, joins_by) = (&self.job.trainer.name, self.job.trainer.joins_by);
        if self.joining.is_nobody() && since >= HEARD {
            let Some((_, end, _)) = crew.first_end() else { return };
            let why = match end {
                End::Status(_) => {
                    format!("{end} without joining the run: does it call {joins_by}?")
                }
                End::Signal(_) => format!("{end} before it joined the run."),
            };
            self.close(Close::Because(format!("{name} {why}")), Signal::TERM);
            self.tell_first_words();
        } else if self.decided.is_none() && self.job.nodes == 1 && crew.all_failed(FAILED) {
            let why = format!(
                "nothing is trained: every worker has failed {FAILED} times before the first step \
                 was decided"
            );
            self.close(Close::Because(why), Signal::TERM);
            self.tell_first_words();
        } else if let Some((worker, said)) = crew
            .given_up(&self.away.needed)
            .filter(|_| self.decided.is_none() && self.job.nodes == 1)
        {
            let why = format!(
                "nothing is trained: the scheme needs worker {worker}, which is given up before \
                 the first step was decided"
            );
            self.close(Close::Because(why), Signal::TERM);
            self.tell_words(worker, &said);
        } else if self.job.nodes == 1 && since >= SEEN {
            let decided = match self.decided {
                None => "no step is".to_owned(),
                Some((decided, steps)) => format!("{decided} of {steps} steps are"),
            };
            let why = format!("all workers have ended, and the run has not: {decided} decided");
            // Of those that came to their end by themselves one may have been told to.
            let why = match crew.all_done() && !self.away.told.is_empty() {
                true => Close::Preempted(format!("{why}; they were told to leave")),
                false => Close::Because(why),
            };
            self.close(why, Signal::TERM);
        }
    }

    /// Says what the first worker of this host had said before it ended first.
    fn tell_first_words(&self) {
        let first = self.crew.as_ref().and_then(Crew::first_end);
        if let Some((worker, _, said)) = first {
            self.tell_words(worker, said);
        }
    }

    fn tell_words(&self, worker: u32, said: &str) {
        if !said.trim().is_empty() {
            self.screen.verbatim(&format!("The end of what worker {worker} said:\n{said}"));
        }
    }

    /// On a host without the coordinator a worker that has ended as it should may have made the run
    /// to its end, or have left it. While others are to join it again, it is asked whether there is
    /// still something to join.
    fn judge_from_afar(&mut self) {
        let (Some(crew), Some(knock)) = (&mut self.crew, &mut self.knock) else { return };
        if !(crew.any_done() && crew.any_again()) {
            knock.rest();
        } else if knock.is_gone() {
            crew.end_again();
            let join = self.job.join.unwrap_or_default();
            self.screen.note(&format!(
                "the run is over, it seems: a worker has ended with status 0, and no coordinator is \
                 at {join} any more"
            ));
            (self.close, self.waits) = (Some(Close::Outcome(0)), Some(now() + WAITS));
        }
    }

    fn start_due(&mut self) -> Result<(), Failure> {
        if self.close.is_some() {
            return Ok(());
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.start_due()?;
        }
        if let Some(crew) = &mut self.crew {
            crew.start_due(self.screen);
        }
        Ok(())
    }

    fn next_due(&self) -> Option<Instant> {
        let crew = self.crew.as_ref().and_then(Crew::next_due);
        let coordinator = self.coordinator.as_ref().and_then(Coordinator::next_due);
        crew.into_iter().chain(coordinator).min()
    }

    fn is_done(&self) -> bool {
        self.crew.as_ref().is_none_or(Crew::is_over)
            && !self.coordinator.as_ref().is_some_and(Coordinator::is_up)
    }

    /// The exit status of a run that was made to its end: workers save what they have learned
    /// after it, and one that does so is enough.
    fn after_the_end(&self) -> u8 {
        let Some(crew) = &self.crew else { return 0 };
        match crew.after_the_end() {
            Ok(None) => 0,
            Ok(Some(crashed)) => {
                self.screen.note(&format!("the run was made to its end, but {crashed}"));
                0
            }
            Err(why) => {
                self.screen.note(&format!("error: the run was made to its end, but {why}"));
                1
            }
        }
    }

    /// Says what there is of a run that a person has ended, and how it goes on.
    fn tell_how_to_go_on(&self, signal: i32) {
        let Some((_, folder)) = self.coordinator.as_ref().and_then(|it| it.place.as_ref()) else {
            return;
        };
        let by = match signal {
            SIGINT => "Ctrl-C",
            SIGTERM => "SIGTERM",
            _ => "SIGHUP",
        };
        let (folder, name) = (folder.display(), &self.job.trainer.name);
        let Some((decided, steps)) = self.decided else {
            self.screen.note(&format!("ended by {by} before the first step"));
            return;
        };
        self.screen.note(&format!(
            "ended by {by} after step {decided} of {steps}: {folder} has the record and the logs, \
             and {name} itself saves the model. To continue, start it again: load its checkpoint, \
             and pass the next step to join as first="
        ));
    }

    /// What the launcher's exit status says.
    fn end(&self) -> Result<(), Failure> {
        let status = match &self.close {
            Some(Close::Outcome(0)) if self.asked.is_none() => self.after_the_end(),
            Some(Close::Outcome(status)) => *status,
            Some(Close::Said(status)) => {
                // Much may have been printed since.
                if let Some((_, folder)) =
                    self.coordinator.as_ref().and_then(|it| it.place.as_ref())
                {
                    let log = folder.join(COORDINATOR_LOG);
                    self.screen.note(&format!("the run has broken off: see {}", log.display()));
                }
                // Where all have failed, their own errors tell more than what the run came to.
                if self.crew.as_ref().is_some_and(|crew| crew.all_failed(1)) {
                    self.tell_first_words();
                }
                *status
            }
            Some(Close::Signal(signal)) => {
                self.tell_how_to_go_on(*signal);
                128 + *signal as u8
            }
            Some(Close::Because(_)) => 1,
            Some(Close::Preempted(_)) => ENDED,
            None if self.crew.as_ref().is_some_and(Crew::any_done) => 0,
            None => {
                return Err(Failure::Work(anyhow!("no worker of this host has come to the end")));
            }
        };
        if status == 0 { Ok(()) } else { Err(Failure::Said(status)) }
    }
}

fn now_some() -> Option<Instant> {
    Some(now())
}
