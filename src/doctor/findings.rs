//! What is wrong, since when, and what it costs.

use super::record::RunEvent;
use super::time::{Stall, TimeGap};
use super::workers::SlowCause;
use crate::sim::planner::DEAD;
use std::collections::BTreeMap;
use std::fmt;

/// Workers that are lost so often are unsteady.
const LOST_OFTEN: usize = 3;
/// Names in a list.
const NAMED_MOST: usize = 16;

/// A point of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Number of the round.
    pub round: u64,
    /// The step in which it closed.
    pub step: u64,
    /// When it opened, in seconds on the run's clock.
    pub seconds: f64,
}

/// `step 60 (1:12)`.
impl fmt::Display for Moment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.seconds as u64;
        let hours = whole / 3600;
        let minutes = whole / 60 % 60;
        let seconds = whole % 60;
        match hours {
            0 => write!(out, "step {} ({minutes}:{seconds:02})", self.step),
            _ => write!(out, "step {} ({hours}:{minutes:02}:{seconds:02})", self.step),
        }
    }
}

/// One thing that is wrong with a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What it is.
    pub problem: Problem,
    /// Share of the time that it costs; none where the rounds cannot be replayed, and of another
    /// scheme where it is less than 5 % by rounds that did not choose it.
    pub costs: Option<f64>,
}

/// What can be wrong with a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// Workers that answer no more.
    DeadWorkers {
        /// Which.
        workers: Vec<usize>,
        /// Since when the first of them does not, where its answers show it.
        since: Option<Moment>,
        /// Whether answers came after all, so late that they are as good as dead.
        answered: bool,
    },
    /// Workers that take longer than others in almost every round.
    ConstantlySlow {
        /// Which.
        workers: Vec<usize>,
        /// How many times as long as the median of the others, in the middle of their rounds.
        times: f64,
        /// Whether the cost is that of an uncoded run, and not this run's.
        coded: bool,
    },
    /// Workers that are there, and whose answers rounds closed without.
    NeverInTime {
        /// Which.
        workers: Vec<usize>,
        /// How many rounds there were.
        of: usize,
    },
    /// A worker that all others wait for, in times that were taken after they had: its own are the
    /// short ones.
    WaitedFor {
        /// Which.
        worker: usize,
    },
    /// A worker that was slow in some rounds, and waited for.
    SlowAtTimes {
        /// Which.
        worker: usize,
        /// In how many rounds.
        rounds: usize,
        /// Of how many.
        of: usize,
        /// The first and the last step in which it was so.
        steps: (u64, u64),
    },
    /// Workers that are slow by a little, but steadily.
    SlightlySlow {
        /// Which, how many times as long they take as the median, and why, if that is known.
        workers: Vec<(usize, f64, Option<SlowCause>)>,
    },
    /// Workers that compute for longer per unit than the quickest, under a scheme whose workers
    /// take tasks until none is left.
    SlowPerUnit {
        /// Which, and how many times as long they take as the quickest quarter.
        workers: Vec<(usize, f64)>,
    },
    /// A worker that became slower.
    SlowerSince {
        /// Which.
        worker: usize,
        /// Since when.
        since: Moment,
        /// How many times as long as before.
        times: f64,
        /// Why, if that is known.
        because: Option<SlowCause>,
    },
    /// All workers became slower.
    EverybodySlowerSince {
        /// Since when.
        since: Moment,
        /// How many times as long as before.
        times: f64,
    },
    /// Rounds in which all workers were slow.
    SlowRounds {
        /// How many.
        rounds: usize,
        /// Of how many.
        of: usize,
        /// The first and the last step of the most such rounds in a row.
        steps: (u64, u64),
    },
    /// A few steps stood still.
    Stalls {
        /// How many.
        steps: usize,
        /// The one that stood still for longest.
        longest: Stall,
    },
    /// Workers that take longer since they compute more units of a round than others.
    MoreUnits {
        /// Which.
        workers: Vec<usize>,
        /// How many units each of them computes at least.
        units: u64,
        /// How many others compute at most.
        others: u64,
    },
    /// Much of the time is spent waiting for answers, now of these workers and now of those.
    Waiting,
    /// It takes long from the last answer to the commit.
    Deciding {
        /// How many seconds per step.
        seconds: f64,
    },
    /// It takes long from a commit to the next round.
    Between {
        /// How many seconds per step.
        seconds: f64,
    },
    /// Time on the wall's clock that went into no step.
    LostTime {
        /// Share that went into steps.
        effective: f64,
        /// The longest time lost in one place.
        gap: TimeGap,
    },
    /// Training waits for checkpoints.
    CheckpointStalls {
        /// How many.
        checkpoints: usize,
        /// For how many seconds.
        blocked: f64,
    },
    /// Workers that were lost, not often, and came back.
    CameBack {
        /// Which.
        workers: Vec<usize>,
    },
    /// A worker that is lost again and again.
    Flapping {
        /// Which.
        worker: usize,
        /// How often.
        times: usize,
    },
    /// Another scheme would have been faster.
    OtherScheme {
        /// Its text.
        scheme: String,
        /// The text of the run's.
        than: String,
    },
}

impl Finding {
    /// Its name, as JSON has it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.problem {
            Problem::DeadWorkers { .. } => "dead-workers",
            Problem::ConstantlySlow { .. } => "constantly-slow-workers",
            Problem::NeverInTime { .. } => "never-in-time",
            Problem::WaitedFor { .. } => "waited-for",
            Problem::SlowAtTimes { .. } => "slow-at-times",
            Problem::SlightlySlow { .. } => "slightly-slow-workers",
            Problem::SlowPerUnit { .. } => "slow-per-unit",
            Problem::SlowerSince { .. } => "slower-since",
            Problem::EverybodySlowerSince { .. } => "everybody-slower-since",
            Problem::SlowRounds { .. } => "slow-rounds",
            Problem::Stalls { .. } => "stalls",
            Problem::MoreUnits { .. } => "more-units",
            Problem::Waiting => "waiting",
            Problem::Deciding { .. } => "deciding",
            Problem::Between { .. } => "between",
            Problem::LostTime { .. } => "lost-time",
            Problem::CheckpointStalls { .. } => "checkpoint-stalls",
            Problem::CameBack { .. } => "came-back",
            Problem::Flapping { .. } => "flapping",
            Problem::OtherScheme { .. } => "other-scheme",
        }
    }

    /// The workers it is about, where it is about some and not all.
    #[must_use]
    pub fn workers(&self) -> Vec<usize> {
        match &self.problem {
            Problem::DeadWorkers { workers, .. }
            | Problem::ConstantlySlow { workers, .. }
            | Problem::MoreUnits { workers, .. }
            | Problem::NeverInTime { workers, .. }
            | Problem::CameBack { workers } => workers.clone(),
            Problem::Stalls { longest, .. } => longest.worker.into_iter().collect(),
            Problem::SlightlySlow { workers } => {
                workers.iter().map(|(worker, ..)| *worker).collect()
            }
            Problem::SlowPerUnit { workers } => workers.iter().map(|(worker, _)| *worker).collect(),
            Problem::SlowerSince { worker, .. }
            | Problem::SlowAtTimes { worker, .. }
            | Problem::WaitedFor { worker }
            | Problem::Flapping { worker, .. } => vec![*worker],
            _ => Vec::new(),
        }
    }

    /// In words, with the workers called by these names; by their numbers where there are none.
    #[must_use]
    pub fn told<'a>(&'a self, names: &'a [String]) -> impl fmt::Display + 'a {
        NamedFinding { problem: &self.problem, names }
    }

    /// Since when it is so, where it was not so before.
    #[must_use]
    pub fn since(&self) -> Option<Moment> {
        match &self.problem {
            Problem::DeadWorkers { since, .. } => *since,
            Problem::SlowerSince { since, .. } | Problem::EverybodySlowerSince { since, .. } => {
                Some(*since)
            }
            _ => None,
        }
    }
}

/// The dearest first; those of unknown cost last, but for workers that answer no more, or never in
/// time.
pub(super) fn sort(findings: &mut [Finding]) {
    let cost = |finding: &Finding| match finding.problem {
        Problem::DeadWorkers { .. } | Problem::NeverInTime { .. } | Problem::WaitedFor { .. } => {
            finding.costs.unwrap_or(f64::INFINITY)
        }
        _ => finding.costs.unwrap_or(f64::NEG_INFINITY),
    };
    findings.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
}

/// In words: a sentence without its end. Workers are called by their numbers.
impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.told(&[]).fmt(out)
    }
}

/// A finding in which workers are called by their names.
struct NamedFinding<'a> {
    problem: &'a Problem,
    names: &'a [String],
}

impl fmt::Display for NamedFinding<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |workers: &[usize]| named(workers, self.names);
        let worker = |worker: usize| named(&[worker]);
        match self.problem {
            Problem::DeadWorkers { workers, since, answered } => {
                dead(workers, *since, *answered, self.names, out)
            }
            Problem::ConstantlySlow { workers, times, coded } => {
                let take = if workers.len() == 1 { "takes" } else { "take" };
                write!(
                    out,
                    "{} {take} {times:.2} times as long in almost every round; repair or replace, \
                     or assign less work (interval:speeds=FILE,s=0,units=N)",
                    named(workers)
                )?;
                if *coded { write!(out, "; the cost is that of an uncoded run") } else { Ok(()) }
            }
            Problem::NeverInTime { workers, of } => {
                let (was, it) = if workers.len() == 1 { ("was", "it") } else { ("were", "them") };
                write!(
                    out,
                    "{} {was} too late in almost all of {of} rounds, and those closed without \
                     {it}; repair or replace",
                    named(workers)
                )
            }
            Problem::WaitedFor { worker: which } => write!(
                out,
                "the others wait for {}: their times agree far better than rounds do, and its are \
                 the short ones, as after an all-reduce; record what each takes before it",
                worker(*which)
            ),
            Problem::SlowAtTimes { worker: which, rounds, of, steps: (first, last) } => {
                let which = worker(*which);
                write!(
                    out,
                    "{which} was slow in {rounds} of {of} rounds, steps {first} to {last}, \
                     and most of the waiting was for it"
                )
            }
            Problem::SlightlySlow { workers } => slightly_slow(workers, self.names, out),
            Problem::SlowPerUnit { workers } => slow_per_unit(workers, self.names, out),
            Problem::SlowerSince { worker: which, since, times, because } => {
                let (has, where_else) = match because {
                    Some(SlowCause::Computing) => ("has computed", ""),
                    Some(SlowCause::Elsewhere) => {
                        ("has taken", ", outside its computation (network, queue, host)")
                    }
                    None => ("has taken", ""),
                };
                let which = worker(*which);
                write!(out, "{which} {has} {times:.2} times as long since {since}{where_else}")
            }
            Problem::EverybodySlowerSince { since, times } => {
                write!(out, "all workers have taken {times:.2} times as long since {since}")
            }
            Problem::SlowRounds { rounds, of, steps: (first, last) } => {
                write!(out, "all workers were slow in {rounds} of {of} rounds, ")?;
                let alone = *rounds as u64 == last - first + 1;
                let most = if alone { "at" } else { "the most in a row at" };
                match first == last {
                    true => write!(out, "{most} step {first}")?,
                    false => write!(out, "{most} steps {first} to {last}")?,
                }
                write!(out, " (network, file system, another job)")
            }
            Problem::Stalls { steps, longest } => stalls(*steps, *longest, self.names, out),
            Problem::MoreUnits { workers, units, others } => {
                let compute = if workers.len() == 1 { "computes" } else { "compute" };
                write!(
                    out,
                    "{} {compute} {units} micro-batches of a round and others {others}; choose a \
                     number of micro-batches divisible by the number of workers, and a scheme \
                     that gives each worker the same number",
                    named(workers)
                )
            }
            Problem::Waiting => write!(
                out,
                "this fraction of the time goes into waiting for late results, of changing \
                 workers; another scheme may save a part of it"
            ),
            Problem::Deciding { seconds } => write!(
                out,
                "from the last answer to the commit it takes {seconds:.3} s per step: exchanging \
                 and summing gradients"
            ),
            Problem::Between { seconds } => write!(
                out,
                "from a commit to the next round it takes {seconds:.3} s per step: the optimizer, \
                 and what workers do between steps"
            ),
            Problem::LostTime { effective, gap } => lost_time(*effective, gap, out),
            Problem::CheckpointStalls { checkpoints, blocked } => {
                let plural = if *checkpoints == 1 { "" } else { "s" };
                write!(out, "{checkpoints} checkpoint{plural} held up training for {blocked:.1} s")
            }
            Problem::CameBack { workers } => {
                let were = if workers.len() == 1 { "was" } else { "were" };
                write!(out, "{} {were} lost, and came back", named(workers))
            }
            Problem::Flapping { worker: which, times } => {
                write!(out, "{} was lost {times} times", worker(*which))
            }
            Problem::OtherScheme { scheme, than } => {
                write!(out, "{scheme} would have been faster than {than} on these rounds")
            }
        }
    }
}

fn dead(
    workers: &[usize],
    since: Option<Moment>,
    answered: bool,
    names: &[String],
    out: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(out, "{} ", named(workers, names))?;
    match (answered, workers.len()) {
        (false, 1) => write!(out, "has not answered")?,
        (false, _) => write!(out, "have not answered")?,
        (true, 1) => write!(out, "takes more than {DEAD} times as long")?,
        (true, _) => write!(out, "take more than {DEAD} times as long")?,
    }
    match since {
        Some(since) => write!(out, " since {since}")?,
        None => write!(out, " since the connection was lost")?,
    }
    write!(out, "; replace what is dead")
}

fn stalls(
    steps: usize,
    Stall { step, seconds, for_answers, worker }: Stall,
    names: &[String],
    out: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match steps {
        1 => write!(out, "step {step} stood still for {seconds:.1} s")?,
        _ => {
            write!(out, "{steps} steps stood still, the longest, step {step}, for {seconds:.1} s")?;
        }
    }
    match worker {
        Some(worker) => write!(out, ": {} was waited for", named(&[worker], names)),
        None if for_answers => write!(out, ", waiting for answers"),
        None => write!(out, ", all answers there: its sum was waited for"),
    }
}

fn lost_time(effective: f64, gap: &TimeGap, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        out,
        "{:.1} % of the wall time went into steps; the longest gap is {:.1} s before step {}",
        100.0 * effective,
        gap.seconds,
        gap.step
    )?;
    let events = gap.events.iter().map(|(kind, count)| match count {
        1 => kind.clone(),
        _ => format!("{kind} x {count}"),
    });
    let events = events.collect::<Vec<_>>().join(", ");
    if events.is_empty() { Ok(()) } else { write!(out, " ({events})") }
}

/// `least`, or `least to most` of several numbers.
fn spread(numbers: &[f64]) -> String {
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let most = numbers.iter().copied().fold(0.0, f64::max);
    if numbers.len() > 1 { format!("{least:.2} to {most:.2}") } else { format!("{least:.2}") }
}

fn slow_per_unit(
    workers: &[(usize, f64)],
    names: &[String],
    out: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (numbers, ratios): (Vec<usize>, Vec<f64>) = workers.iter().copied().unzip();
    let compute = if workers.len() == 1 { "computes" } else { "compute" };
    write!(
        out,
        "{} {compute} {} times as long per unit as the quickest, and others do that work; repair \
         or replace",
        named(&numbers, names),
        spread(&ratios)
    )
}

fn slightly_slow(
    workers: &[(usize, f64, Option<SlowCause>)],
    names: &[String],
    out: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let numbers: Vec<usize> = workers.iter().map(|(worker, ..)| *worker).collect();
    let ratios: Vec<f64> = workers.iter().map(|(_, times, _)| *times).collect();
    let take = if workers.len() == 1 { "takes" } else { "take" };
    let times = spread(&ratios);
    write!(out, "{} {take} {times} times as long as the median", named(&numbers, names))?;
    for (because, why) in [
        (SlowCause::Computing, "computation"),
        (SlowCause::Elsewhere, "network, queue or host, not computation"),
    ] {
        let of = |(worker, _, found): &(usize, f64, Option<SlowCause>)| {
            (*found == Some(because)).then_some(*worker)
        };
        let of: Vec<usize> = workers.iter().filter_map(of).collect();
        match of.len() {
            0 => {}
            all if all == workers.len() => write!(out, " ({why})")?,
            _ => write!(out, "; {}: {why}", named(&of, names))?,
        }
    }
    Ok(())
}

/// Workers by their numbers, as in `workers 0, 3-5`, or by their names where these say more.
pub(super) fn named(workers: &[usize], names: &[String]) -> String {
    let plural = if workers.len() == 1 { "" } else { "s" };
    let is_number = |(number, name): (usize, &String)| *name == number.to_string();
    if !names.iter().enumerate().all(is_number) {
        let name = |worker: &usize| names.get(*worker).cloned().unwrap_or(worker.to_string());
        let list: Vec<String> = workers.iter().take(NAMED_MOST).map(name).collect();
        let rest = workers.len() - list.len();
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        return format!("worker{plural} {}{rest}", list.join(", "));
    }
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for worker in workers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == *worker => *end = *worker,
            _ => runs.push((*worker, *worker)),
        }
    }
    let run = |(from, to): &(usize, usize)| match to - from {
        0 => from.to_string(),
        1 => format!("{from}, {to}"),
        _ => format!("{from}-{to}"),
    };
    let list = runs.iter().map(run).collect::<Vec<_>>().join(", ");
    format!("worker{plural} {list}")
}

/// What events say of a run's workers.
pub(super) struct WorkerEvents {
    /// Workers whose last connection was lost.
    pub(super) lost: Vec<usize>,
    /// Workers that were lost less often, and came back.
    pub(super) came_back: Vec<usize>,
    /// Workers that were lost often, and how often.
    pub(super) flapping: Vec<(usize, usize)>,
}

impl WorkerEvents {
    pub(super) fn of(events: &[&RunEvent], workers: usize) -> Self {
        let mut is_lost: BTreeMap<usize, bool> = BTreeMap::new();
        let mut losses: BTreeMap<usize, usize> = BTreeMap::new();
        for event in events {
            let Some(worker) = event.worker.filter(|worker| *worker < workers) else { continue };
            match &*event.kind {
                "join" => drop(is_lost.insert(worker, false)),
                "lost" => {
                    is_lost.insert(worker, true);
                    *losses.entry(worker).or_insert(0) += 1;
                }
                _ => {}
            }
        }
        let (flapping, seldom): (Vec<_>, Vec<_>) =
            losses.into_iter().partition(|(_, times)| *times >= LOST_OFTEN);
        let back = seldom.into_iter().map(|(worker, _)| worker);
        let came_back = back.filter(|worker| !is_lost[worker]).collect();
        let lost = is_lost.into_iter().filter_map(|(worker, lost)| lost.then_some(worker));
        Self { lost: lost.collect(), came_back, flapping }
    }
}

#[cfg(test)]
mod tests;
