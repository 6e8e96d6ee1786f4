//! The policy of [`Auto`], step by step.

use super::Auto;
use crate::codes::SchemeSpec;
use crate::delays::{Growth, recorded_row};
use crate::ids::Worker;
use crate::sim::planner::{GAIN_MIN, Plan, PlanError, Question, ROUNDS_MIN, plan};
use crate::train::coordinator::median;
use crate::train::{Policy, RoundRecord, SchemeChoice, SchemeInUse, StepRecord};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

/// The first steps of a run only warm up.
const WARM_UP: u64 = 2;
/// Of this many steps or more, the mean leaves the slowest out: a worker was held up once.
const TRIMMED: usize = 10;
/// A scheme is left for another only if that saves more than this share of a step's time.
const GAIN: f64 = 0.05;
/// Half of that is enough to stay with one, so that it is not left and taken again for nothing.
const KEEP: f64 = GAIN / 2.0;
/// Coded steps that take so many times as long as at first are looked at again.
const SLOWER: f64 = 1.25;
/// And those that take so much less: lateness that they suffer from, too, may have ended.
const FASTER: f64 = 0.9;
/// No worker is always missing if each was in time in one of so many rounds.
const IN_TIME: usize = 4;
/// Looks that change nothing come at most so many times rarer than at first.
const RARER_MAX: u64 = 8;
/// A look takes about three uncoded steps: so many coded ones for every one lost to it come first,
/// unless something speaks for a change.
const STEPS_PER_LOST: f64 = 100.0;
/// The share of the coded steps' time that looks may take, by what the last one has cost. Its first
/// step can be many times as long as the others: who is always late is far behind in its tasks.
const LOOKS_MOST: f64 = 0.03;
/// The same where something speaks for a change.
const LOOKS_SOON_MOST: f64 = 0.2;
/// What a scheme was found to fall short of its prediction is held against it for so many times as
/// long as looks are apart; and a choice that has no effect for so long is forgotten.
const REMEMBERED: u64 = 8;

/// What is kept of a step.
#[derive(Clone, Debug)]
pub(super) struct StepSample {
    #[cfg(feature = "tcp")]
    step: u64,
    scheme: String,
    predicted: Option<f64>,
    /// Whether something was decided before it.
    decided: bool,
    /// Whether workers were lost or came meanwhile.
    disturbed: bool,
    seconds: f64,
    /// When each worker answered, one row per round, in seconds.
    rows: Vec<Vec<f64>>,
    /// Whether each worker answered in time in all rounds.
    in_time: Vec<bool>,
}

impl StepSample {
    pub(super) fn of(record: &StepRecord) -> Self {
        let using = record.under.using.as_ref();
        let row =
            |round: &RoundRecord| recorded_row(&round.arrivals, &round.delays, round.seconds).0;
        let workers = record.rounds.first().map_or(0, |round| round.arrivals.len());
        let in_time = |worker| record.rounds.iter().all(|round| round.has_answer_of(worker));
        Self {
            #[cfg(feature = "tcp")]
            step: record.step,
            scheme: using.map_or_else(|| UNCODED.to_owned(), |using| using.scheme.clone()),
            predicted: using.and_then(|using| using.predicted),
            decided: using.is_some_and(|using| using.why.is_some()),
            disturbed: using.is_some_and(|using| using.disturbed),
            seconds: record.seconds,
            rows: record.rounds.iter().map(row).collect(),
            in_time: Worker::all(workers).map(in_time).collect(),
        }
    }

    #[cfg(feature = "tcp")]
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    pub(super) fn using(&self) -> SchemeInUse {
        let (scheme, predicted) = (self.scheme.clone(), self.predicted);
        SchemeInUse { scheme, predicted, ..SchemeInUse::uncoded() }
    }
}

const UNCODED: &str = "uncoded";

/// A coded scheme, as far as it is known.
#[derive(Clone, Debug)]
struct KnownScheme {
    scheme: String,
    predicted: Option<f64>,
    /// Seconds of its last steps, on average.
    measured: f64,
}

/// A question that the planner has not answered yet, and what is to be done with its answer.
struct PlannerQuestion {
    answer: Receiver<Result<Plan, PlanError>>,
    recorded: UncodedStats,
}

/// What was recorded of uncoded steps.
#[derive(Clone, Copy, Debug)]
struct UncodedStats {
    steps: usize,
    /// Rounds of a step.
    rounds: f64,
    /// Seconds of a step, on average.
    seconds: f64,
    /// Seconds of a step outside its rounds, on average.
    between: f64,
    /// Share of a step's time that a scheme could save at most.
    room: f64,
}

/// A policy that looks at what steps take.
///
/// Of every step, [`Chooser::note`] keeps what matters, also of those of a run that is resumed;
/// then, uncoded or coded, it is seen whether to look again, and what comes of it.
pub(super) struct Chooser {
    auto: Auto,
    workers: usize,
    units: u32,
    /// The current scheme, and what was expected of it.
    now: SchemeInUse,
    /// The last steps under it but the first, at most [`Auto::probe`].
    last: VecDeque<StepSample>,
    /// Steps under it that were kept.
    steps: u64,
    /// Steps since something was decided.
    since: u64,
    /// All steps.
    all: u64,
    /// What is gone back to unless something better is found, while uncoded steps are recorded.
    before: Option<KnownScheme>,
    coded: CodedStats,
    /// How many times rarer than at first it is looked, while uncoded.
    rarer: u64,
    /// What could be gained when it was looked last, and at which step much more could.
    room: (f64, Option<u64>),
    asked: Option<PlannerQuestion>,
    /// What was chosen and is not used yet, and since which step.
    chosen: Option<(String, u64)>,
}

/// What is known of coded steps, and of uncoded ones as far as they are compared with them.
#[derive(Debug, Default)]
struct CodedStats {
    /// Whether the scheme tells of every worker that is late: not where tasks are pulled, and who
    /// is late is given fewer.
    tells: bool,
    /// Seconds of the uncoded steps for which it was chosen, on average.
    uncoded: Option<f64>,
    /// Seconds of its first steps, on average.
    reference: Option<f64>,
    /// Steps of the look that goes on, and their seconds.
    looking: (u64, f64),
    /// What the last look has cost: seconds that coded steps would not have taken.
    look: f64,
    /// By how many times rarer than at first it is looked again, less one.
    rarer: u64,
    /// When a scheme was last switched to.
    switched: u64,
    /// How much longer than predicted schemes took, and until when that is remembered.
    short: BTreeMap<String, (f64, u64)>,
}

impl Chooser {
    pub(super) fn new(mut auto: Auto, workers: usize, units: u32) -> Self {
        let history = std::mem::take(&mut auto.history);
        let mut chooser = Self {
            auto,
            workers,
            units,
            now: SchemeInUse::uncoded(),
            last: VecDeque::new(),
            steps: 0,
            since: 0,
            all: 0,
            before: None,
            coded: CodedStats::default(),
            rarer: 1,
            room: (0.0, None),
            asked: None,
            chosen: None,
        };
        history.into_iter().for_each(|seen| chooser.note(seen));
        chooser
    }

    /// For how many steps it is kept what a choice came to.
    fn remembered(&self) -> u64 {
        REMEMBERED.saturating_mul(self.auto.steps.every)
    }

    /// Keeps what matters of a step.
    fn note(&mut self, seen: StepSample) {
        self.all += 1;
        self.since = if seen.decided { 1 } else { self.since + 1 };
        let given_up = self.remembered();
        self.chosen.take_if(|(scheme, at)| {
            *scheme == seen.scheme || self.all > at.saturating_add(given_up)
        });
        if seen.scheme != self.now.scheme {
            // Workers may still be at what is left of the scheme before.
            self.changes(seen.using());
            self.looks(seen.seconds);
            return;
        }
        self.now.predicted = seen.predicted;
        if seen.decided && self.is_uncoded() {
            // That was to stay: it is no look any more, also where the run is resumed after it.
            self.before = None;
        }
        self.looks(seen.seconds);
        // Before it was resumed the run may have had other seats.
        let of_other_seats = !seen.rows.is_empty() && seen.in_time.len() != self.workers;
        if self.all <= WARM_UP || seen.disturbed || of_other_seats {
            return;
        }
        self.steps += 1;
        self.last.push_back(seen);
        if self.last.len() as u64 > self.auto.steps.probe {
            self.last.pop_front();
        }
        if self.steps == self.auto.steps.probe {
            self.coded.reference = Some(self.typical());
        }
    }

    /// Steps are computed under another scheme from now on.
    fn changes(&mut self, to: SchemeInUse) {
        let from = std::mem::replace(&mut self.now, to);
        let measured = self.typical();
        if self.is_uncoded() {
            let SchemeInUse { scheme, predicted, .. } = from;
            self.before = Some(KnownScheme { scheme, predicted, measured });
            self.coded.looking = (0, 0.0);
        } else {
            if let Some(KnownScheme { measured, .. }) = self.before.take() {
                let (steps, seconds) = self.coded.looking;
                self.coded.look = (seconds - steps as f64 * measured).max(0.0);
            }
            // Of a resumed run it is not known what it was chosen for.
            self.coded.uncoded = self.coded.uncoded.or(Some(measured));
            let spec = self.auto.registry.parse(&self.now.scheme);
            let facts = spec.and_then(|spec| spec.natural(self.workers));
            self.coded.tells = facts.is_ok_and(|facts| !facts.partial);
        }
        self.last.clear();
        self.steps = 0;
        self.coded.reference = None;
    }

    /// A step has taken so long; it may be one of a look.
    fn looks(&mut self, took: f64) {
        if self.before.is_some() {
            let (steps, seconds) = &mut self.coded.looking;
            (*steps, *seconds) = (*steps + 1, *seconds + took);
        }
    }

    fn is_uncoded(&self) -> bool {
        self.now.scheme == UNCODED
    }

    /// Seconds of the steps that were seen last, on average but for a single one.
    fn typical(&self) -> f64 {
        let mut seconds: Vec<f64> = self.last.iter().map(|seen| seen.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        if seconds.len() >= TRIMMED {
            seconds.pop();
        }
        mean(seconds.into_iter())
    }

    /// Chooses a scheme, and says why.
    fn choose(
        &mut self,
        scheme: &str,
        predicted: Option<f64>,
        why: Option<String>,
    ) -> Option<SchemeChoice> {
        // Its text was made of a scheme.
        let spec = self.auto.registry.parse(scheme).ok()?;
        self.chosen = (self.now.scheme != scheme).then(|| (spec.to_string(), self.all));
        Some(SchemeChoice { scheme: spec, predicted, why })
    }

    /// What comes of a step that was uncoded.
    fn while_uncoded(&mut self) -> Option<SchemeChoice> {
        if self.steps == 1
            && let Some(choice) = self.back_soon()
        {
            return Some(choice);
        }
        if (self.last.len() as u64) < self.auto.steps.probe {
            return None;
        }
        let recorded = self.recorded();
        let (before, grew) = self.room;
        let grew = (recorded.room > before + GAIN).then(|| grew.unwrap_or(self.all));
        self.room.1 = grew;
        // What the planner sees is then of the kind that was noticed.
        let grown = grew.is_some_and(|grew| self.all - grew + 1 >= self.auto.steps.probe);
        let first = self.steps == self.auto.steps.probe;
        let interval = (self.auto.steps.probe * self.rarer).min(self.auto.steps.every);
        if !first && !grown && self.since < interval {
            return None;
        }
        self.room = (recorded.room, None);
        if recorded.room <= GAIN {
            return self.stay_uncoded(&recorded, "no scheme could");
        }
        self.ask(recorded)
    }

    /// Goes back to what was used before, where an uncoded step is slower.
    fn back_soon(&mut self) -> Option<SchemeChoice> {
        let KnownScheme { scheme, predicted, measured } = self.before.clone()?;
        let uncoded = self.last.back()?.seconds;
        if uncoded <= measured * (1.0 + GAIN) {
            return None;
        }
        let why = format!(
            "an uncoded step took {uncoded:.3} s, steps with {scheme} {measured:.3} s: staying \
             with it"
        );
        self.look_rarer();
        self.coded.uncoded = Some(uncoded);
        self.choose(&scheme, predicted, Some(why))
    }

    fn look_rarer(&mut self) {
        self.coded.rarer = (2 * self.coded.rarer + 1).min(RARER_MAX - 1);
    }

    /// What the last uncoded steps say.
    fn recorded(&self) -> UncodedStats {
        let rows = || self.last.iter().flat_map(|seen| &seen.rows);
        let steps = self.last.len();
        let seconds = mean(self.last.iter().map(|seen| seen.seconds));
        let rounds = rows().count() as f64 / steps as f64;
        let slowest = rounds * mean(rows().map(|row| row.iter().copied().fold(0.0, f64::max)));
        let shared = rounds * mean(rows().map(|row| shared_time(row)));
        UncodedStats {
            steps,
            rounds,
            seconds,
            between: (seconds - slowest).max(0.0),
            room: if seconds > 0.0 { (slowest - shared) / seconds } else { 0.0 },
        }
    }

    /// Stays uncoded, and says so where that is news.
    fn stay_uncoded(&mut self, recorded: &UncodedStats, no_scheme: &str) -> Option<SchemeChoice> {
        let UncodedStats { steps, seconds, .. } = recorded;
        let percent = 100.0 * GAIN;
        self.rarer = (2 * self.rarer).min(RARER_MAX);
        self.since = 0;
        let words = match self.before.take() {
            Some(_) => "back to uncoded",
            None if self.now.predicted.is_none() => "staying uncoded",
            None => return None,
        };
        let why = format!(
            "from {steps} recorded steps, {no_scheme} save {percent:.0} % of their {seconds:.3} s: \
             {words}"
        );
        self.choose(UNCODED, Some(*seconds), Some(why))
    }

    /// Asks the planner for the recorded steps.
    fn ask(&mut self, recorded: UncodedStats) -> Option<SchemeChoice> {
        let mut rows: Vec<Vec<f64>> = self.last.iter().flat_map(|seen| seen.rows.clone()).collect();
        let workers = self.workers as f64;
        // What the fastest answer takes, on the whole, is computing time; what is more does not
        // grow with the load. No worker computes in less.
        let fastest = |row: &Vec<f64>| row.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = median(rows.iter().map(fastest)).unwrap_or(0.0);
        rows.iter_mut().flatten().for_each(|time| *time = time.max(fastest));
        let growth = Growth::Additive { base: 1.0 / workers, slope: fastest * workers };
        let before =
            self.before.iter().filter_map(|before| self.auto.registry.parse(&before.scheme).ok());
        let also: Vec<SchemeSpec> = before.collect();
        let registry = self.auto.registry.clone();
        let cut = (self.units as usize / self.workers).max(1);
        let work = move || {
            let question = Question {
                max_delay: 0,
                cut,
                families: registry.families(),
                also: &also,
                ..Question::new(&rows, growth)
            };
            plan(&question, &|_| ())
        };
        let (sender, answer) = mpsc::channel();
        if self.auto.waits {
            let _ = sender.send(work());
        } else {
            let thread = thread::Builder::new().name("planner".to_owned());
            // No thread waits for the answer once the run is over.
            let begun = thread.spawn(move || drop(sender.send(work())));
            if let Err(error) = begun {
                tracing::warn!("the planner cannot be asked: {error}");
            }
        }
        self.asked = Some(PlannerQuestion { answer, recorded });
        self.answered()
    }

    /// What comes of the planner's answer, once it is there.
    fn answered(&mut self) -> Option<SchemeChoice> {
        let asked = self.asked.as_ref()?;
        let (answer, recorded) = match asked.answer.try_recv() {
            Ok(answer) => (answer, asked.recorded),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                self.asked = None;
                return None;
            }
        };
        self.asked = None;
        match answer {
            Ok(plan) => self.verdict(&plan, &recorded),
            Err(error) => {
                tracing::warn!("the planner has no answer: {error}");
                self.since = 0;
                None
            }
        }
    }

    /// Compares what is in use with what the planner finds best.
    fn verdict(&mut self, plan: &Plan, recorded: &UncodedStats) -> Option<SchemeChoice> {
        let all = self.all;
        self.coded.short.retain(|_, (_, until)| *until > all);
        let short = |scheme: &str| self.coded.short.get(scheme).map_or(1.0, |(factor, _)| *factor);
        let step =
            |scheme: &str, time: f64| recorded.between + recorded.rounds * time * short(scheme);
        let uncoded = recorded.between + recorded.rounds * plan.baseline;
        let suits = plan.candidates.iter().filter(|candidate| {
            // Without the steps that speak most for it, it is not slower by much. Of too few steps
            // that cannot be told: then it is tried.
            let whole = candidate.doubts.map_or(candidate.gain, |doubts| doubts.whole);
            let doubtful = 1.0 - (1.0 - whole) * short(candidate.scheme.text());
            candidate.exact
                && candidate.delay == 0
                && doubtful >= -GAIN_MIN
                && candidate.scheme != UNCODED
                && fits(&candidate.scheme, self.workers, self.units)
        });
        let timed = suits.map(|candidate| {
            let scheme = candidate.scheme.text();
            (scheme.to_owned(), step(scheme, candidate.time_per_job))
        });
        let best = timed.min_by(|a, b| a.1.total_cmp(&b.1));
        let Some(before) = self.before.clone() else {
            return self.switch_or_stay(best, (uncoded, recorded));
        };
        let found = plan.candidates.iter().find(|found| found.scheme.text() == before.scheme);
        let time = found.map_or(before.measured, |found| step(&before.scheme, found.time_per_job));
        let better = best.filter(|(_, best)| *best < time * (1.0 - GAIN));
        if better.is_some() || time >= uncoded * (1.0 - KEEP) {
            return self.switch_or_stay(better, (uncoded, recorded));
        }
        let why = format!(
            "from {} recorded steps, {} should take {time:.3} s per step, uncoded ones \
             {uncoded:.3} s: staying with it",
            recorded.steps, before.scheme
        );
        self.look_rarer();
        self.coded.uncoded = Some(uncoded);
        self.choose(&before.scheme, Some(time), Some(why))
    }

    /// Takes a scheme that saves enough of the uncoded time, if there is one.
    fn switch_or_stay(
        &mut self,
        best: Option<(String, f64)>,
        (uncoded, recorded): (f64, &UncodedStats),
    ) -> Option<SchemeChoice> {
        let Some((scheme, time)) = best.filter(|(_, time)| *time < uncoded * (1.0 - GAIN)) else {
            return self.stay_uncoded(recorded, "no scheme would");
        };
        self.rarer = 1;
        // Who goes back and forth looks rarely.
        if self.all > self.coded.switched.saturating_add(self.remembered()) {
            self.coded.rarer = 0;
        }
        self.coded.switched = self.all;
        self.coded.uncoded = Some(uncoded);
        let rounds = (recorded.steps as f64 * recorded.rounds).round() as usize;
        let few = match rounds < ROUNDS_MIN {
            true => format!(" (of {rounds} rounds alone: how sure that is cannot be said)"),
            false => String::new(),
        };
        let why = format!(
            "from {} recorded steps, {scheme} should take {time:.3} s per step instead of \
             {uncoded:.3} s uncoded{few}: switching",
            recorded.steps
        );
        self.choose(&scheme, Some(time), Some(why))
    }

    /// What comes of a step that was coded.
    fn while_coded(&mut self) -> Option<SchemeChoice> {
        if self.steps < self.auto.steps.probe {
            return None;
        }
        let measured = self.typical();
        if self.steps == self.auto.steps.probe
            && let Some(choice) = self.held_against(measured)
        {
            return Some(choice);
        }
        let rarer = self.coded.rarer + 1;
        let early = (self.auto.steps.probe * rarer).min(self.auto.steps.every);
        let changed = self.coded.reference.is_some_and(|reference| {
            !(FASTER * reference..=SLOWER * reference).contains(&measured)
        });
        // What the last look has cost, in coded steps, as `since` counts.
        let look = self.coded.look / measured;
        let early = early.max((look / LOOKS_SOON_MOST) as u64);
        let soon = self.since >= early && (changed || self.nobody_always_missing());
        // What each uncoded step of a look takes, in coded steps.
        let lost = self.coded.uncoded.map_or(0.0, |uncoded| uncoded / measured);
        let hold = rarer * self.auto.steps.every.saturating_sub(self.auto.steps.probe).max(1);
        let most = (STEPS_PER_LOST * lost).max(look / LOOKS_MOST) as u64;
        if soon || self.since >= hold.max(most) {
            return self.choose(UNCODED, None, None);
        }
        None
    }

    /// Notes how much longer than predicted a scheme's first steps took. Where they were no faster
    /// than uncoded ones, these are gone back to.
    fn held_against(&mut self, measured: f64) -> Option<SchemeChoice> {
        let (scheme, predicted) = (self.now.scheme.clone(), self.now.predicted?);
        let until = self.all.saturating_add(self.remembered());
        let short = self.coded.short.entry(scheme.clone()).or_insert((1.0, until));
        *short = ((short.0 * measured / predicted).max(1.0), until);
        let uncoded = self.coded.uncoded?;
        if measured < uncoded * (1.0 - KEEP) {
            return None;
        }
        let why = format!(
            "{scheme} took {measured:.3} s per step, uncoded steps {uncoded:.3} s: back to uncoded"
        );
        self.look_rarer();
        self.choose(UNCODED, Some(uncoded), Some(why))
    }

    /// Whether every worker was in time now and then.
    fn nobody_always_missing(&self) -> bool {
        let needed = self.last.len().div_ceil(IN_TIME);
        let in_time =
            |seen: &&StepSample, worker: usize| seen.in_time.get(worker).is_some_and(|at| *at);
        let times = |worker: usize| self.last.iter().filter(|seen| in_time(seen, worker)).count();
        self.coded.tells && (0..self.workers).all(|worker| times(worker) >= needed)
    }
}

impl Policy for Chooser {
    fn decided(&mut self, record: &StepRecord) -> Option<SchemeChoice> {
        let kept = self.steps;
        self.note(StepSample::of(record));
        if self.asked.is_some() {
            return self.answered();
        }
        if self.chosen.is_some() || self.steps == kept {
            return None;
        }
        if self.is_uncoded() { self.while_uncoded() } else { self.while_coded() }
    }
}

/// The least time in which the workers of a round could share its work. Each is at it until the
/// end, but for what held it up: what it took beyond the fastest.
fn shared_time(row: &[f64]) -> f64 {
    let mut times = row.to_vec();
    times.sort_by(f64::total_cmp);
    let Some(&fastest) = times.first() else { return 0.0 };
    let all = fastest * times.len() as f64;
    let mut least = f64::INFINITY;
    let mut held_up = 0.0;
    for (count, time) in (1..).zip(&times) {
        held_up += time - fastest;
        least = least.min((all + held_up) / f64::from(count));
    }
    least
}

/// Whether a run's batches can be cut as a scheme needs.
fn fits(scheme: &SchemeSpec, workers: usize, units: u32) -> bool {
    scheme.natural(workers).is_ok_and(|facts| facts.units <= units)
        && scheme.scheme(workers, units, 0..1).is_ok()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

#[cfg(test)]
mod tests;
