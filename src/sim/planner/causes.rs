//! Why rounds take long, and what of it no code can cure.

use super::replay::{Replay, Run};
use serde::Serialize;

/// A worker is slow in a round if it takes so many times as long as the quickest quarter.
const SLOW: f64 = 1.15;
/// Constantly slow: in so many of its rounds.
const CONSTANTLY: f64 = 0.9;
/// Fewer rounds show no worker to be constantly slow.
const CONSTANTLY_LEAST: usize = 5;
/// A worker whose answers take so many times as long, to the end of the trace, is as good as dead.
pub(crate) const DEAD: f64 = 50.0;
/// How many times its usual time the quickest quarter takes in a round slow for all workers.
const SLOW_ROUND: f64 = 1.5;
/// Part of the workers that rounds never wait for by chance: where it is slow, all are.
const QUICKEST: f64 = 0.25;
/// Less than that of the time is not worth mentioning.
const WORTH_SAYING: f64 = 0.01;

/// What makes rounds long and is not cured by coding.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Cause {
    /// What it is.
    pub kind: CauseKind,
    /// Which workers, where it is some and not all.
    pub workers: Vec<usize>,
    /// Since which row of the trace, from 0, where it was not so before.
    #[serde(skip)]
    pub since: Option<usize>,
    /// How many times as long as the median of the others the workers take, in the middle of their
    /// rounds, where they are slow all the time.
    #[serde(skip)]
    pub times: Option<f64>,
    /// Share of the uncoded time that its cure would save.
    pub costs: f64,
    /// What it is and what helps, in a sentence.
    pub words: String,
}

/// Kinds of [`Cause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CauseKind {
    /// Workers that stopped answering.
    DeadWorkers,
    /// Workers that are slow all the time.
    ConstantlySlowWorkers,
    /// Shares that take longer than others, no matter who computes them.
    SlowShares,
    /// Rounds in which all workers are slow.
    SlowRounds,
}

/// The value that a part `p` of the numbers keep to.
pub(super) fn quantile(numbers: impl Iterator<Item = f64>, p: f64) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    if sorted.is_empty() { 0.0 } else { super::super::percentile(&sorted, p) }
}

/// The numbers of workers, as in `0, 3-5`.
fn listed(workers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for worker in workers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == *worker => *end = *worker,
            _ => runs.push((*worker, *worker)),
        }
    }
    let run = |(from, to): &(usize, usize)| {
        if from == to { from.to_string() } else { format!("{from}-{to}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

impl Cause {
    /// Calls the round since which it is so by the number of its row; gives back what it said
    /// before.
    pub(super) fn call_rounds(&mut self, numbers: &[u64]) -> String {
        let before = self.words.clone();
        if let Some(since) = self.since
            && let Some(number) = numbers.get(since)
        {
            self.words = before.replacen(&round(since as u64), &round(*number), 1);
        }
        before
    }

    /// Calls its workers by their names, of which each has one; gives back what it said before.
    pub(super) fn call_workers(&mut self, names: &[String]) -> String {
        const SHOWN_MOST: usize = 16;
        let before = self.words.clone();
        if self.workers.is_empty() {
            return before;
        }
        let name = |worker: &usize| names.get(*worker).cloned().unwrap_or(worker.to_string());
        let mut list: Vec<String> = self.workers.iter().take(SHOWN_MOST).map(name).collect();
        if self.workers.len() > SHOWN_MOST {
            list.push(format!("and {} more", self.workers.len() - SHOWN_MOST));
        }
        let plural = if self.workers.len() == 1 { "" } else { "s" };
        let named = format!("worker{plural} {}", list.join(", "));
        self.words = before.replacen(&self::named(&self.workers), &named, 1);
        before
    }

    /// What it is, and what its cure would save: a sentence's end. Where several cures differ, its
    /// words say it of each.
    #[must_use]
    pub fn with_saving(&self) -> String {
        match self.kind {
            CauseKind::ConstantlySlowWorkers => self.words.clone(),
            _ => {
                let saved = 100.0 * self.costs;
                format!("{} (a cure saves {saved:.1} % of the uncoded time)", self.words)
            }
        }
    }
}

fn named(workers: &[usize]) -> String {
    format!("worker{} {}", if workers.len() == 1 { "" } else { "s" }, listed(workers))
}

/// What is wrong with the workers of a trace, whose uncoded job takes `baseline` seconds; `less`
/// are schemes that give slow workers less work.
pub(super) fn of_workers(replay: &Replay, baseline: f64, less: &[Run]) -> Vec<Cause> {
    let rows = replay.rows();
    let quickest = QuickestWorkers::of(rows);
    let ratio = |round: usize, worker: usize| {
        rows[round][worker] / quickest.times[round].max(f64::MIN_POSITIVE)
    };
    let mut causes = Vec::new();
    let dead_since = |worker: usize| {
        let answers =
            (0..rows.len()).rev().take_while(|round| ratio(*round, worker) > DEAD).count();
        (answers >= (rows.len() / 10).max(3)).then(|| rows.len() - answers)
    };
    let everybody = 0..replay.workers();
    let dead: Vec<(usize, usize)> =
        everybody.clone().filter_map(|worker| Some((worker, dead_since(worker)?))).collect();
    let gone: Vec<usize> = dead.iter().map(|(worker, _)| *worker).collect();
    if let Some((_, since)) = dead.first() {
        let (take, have) = if gone.len() == 1 { ("takes", "has") } else { ("take", "have") };
        let words = format!(
            "{} {take} more than {DEAD} times as long as others, or {have} stopped answering \
             ({} on); a code survives it, but a replacement cures it",
            named(&gone),
            round(*since as u64)
        );
        causes.push(Cause {
            kind: CauseKind::DeadWorkers,
            costs: share_saved(replay, without(rows, &gone), baseline),
            workers: gone.clone(),
            since: Some(*since),
            times: None,
            words,
        });
    }
    let constantly = |worker: &usize| {
        let slow = (0..rows.len()).filter(|round| ratio(*round, *worker) > SLOW).count();
        rows.len() >= CONSTANTLY_LEAST && slow as f64 >= CONSTANTLY * rows.len() as f64
    };
    let slow: Vec<usize> =
        everybody.filter(|worker| !gone.contains(worker)).filter(constantly).collect();
    // Slower than the quickest, and no slower than the rest: they vary, and it does not.
    let (slow, usual, times) = slower_than_the_rest(rows, slow, &gone, &quickest);
    if !slow.is_empty() {
        let times = times.iter().sum::<f64>() / slow.len() as f64;
        let known = causes.first().map_or(0.0, |dead| dead.costs);
        let of_slow = |rows| share_saved(replay, rows, baseline) - known;
        let drained = of_slow(without(rows, &[&gone[..], &slow].concat()));
        let mended = of_slow(without(&as_quick(rows, &slow, &usual), &gone));
        let take = if slow.len() == 1 { "takes" } else { "take" };
        let words = format!(
            "{} always {take} {times:.2} times as long: {}",
            named(&slow),
            cures(less, baseline, (mended.max(0.0), drained))
        );
        causes.push(Cause {
            kind: CauseKind::ConstantlySlowWorkers,
            workers: slow,
            since: None,
            times: Some(times),
            costs: mended.max(0.0),
            words,
        });
    }
    causes.extend(slow_rounds(rows, &quickest, baseline));
    causes
}

/// Those of these workers who are slow beside the others, too; the usual times of those others, and
/// how many times as long each of the slow ones takes in the middle of its rounds.
fn slower_than_the_rest(
    rows: &[Vec<f64>],
    mut slow: Vec<usize>,
    gone: &[usize],
    quickest: &QuickestWorkers,
) -> (Vec<usize>, Vec<f64>, Vec<f64>) {
    loop {
        let usual = of_the_rest(rows, &[gone, &slow].concat(), quickest);
        let times = |worker: &usize| times_of(rows, *worker, &usual);
        let all: Vec<f64> = slow.iter().map(times).collect();
        if all.iter().all(|times| *times > SLOW) {
            return (slow, usual, all);
        }
        let slower = slow.into_iter().zip(all).filter(|(_, times)| *times > SLOW);
        slow = slower.map(|(worker, _)| worker).collect();
    }
}

/// How many times as long as usual a worker takes, in the middle of its rounds.
pub(super) fn times_of(rows: &[Vec<f64>], worker: usize, usual: &[f64]) -> f64 {
    let of_row = |(row, usual): (&Vec<f64>, &f64)| row[worker] / usual.max(f64::MIN_POSITIVE);
    quantile(rows.iter().zip(usual).map(of_row), 0.5)
}

/// What helps against workers that are slow for good, and what each cure saves of the uncoded time.
fn cures(less: &[Run], baseline: f64, (mended, drained): (f64, f64)) -> String {
    /// A text of more speeds is told as that of a file.
    const SHOWN_MOST: usize = 48;
    let percent = |saved: f64| format!("{:.1} %", 100.0 * saved);
    let mut cures = vec![format!("mend (saves {})", percent(mended))];
    let less =
        less.iter().map(|run| (run.setting.scheme.to_string(), 1.0 - run.time_per_job / baseline));
    let less: Vec<(String, f64)> = less.filter(|(_, saved)| *saved >= WORTH_SAYING).collect();
    if let Some(((text, saved), others)) = less.split_first() {
        let text = match text.split_once("speeds=").zip(text.split_once(",s=")) {
            Some((_, (_, rest))) if text.len() > SHOWN_MOST => {
                format!("interval:speeds=FILE,s={rest}")
            }
            _ => text.clone(),
        };
        let number =
            |text: &str| text.split(',').find(|key| key.starts_with("s=")).map(String::from);
        let others = others
            .iter()
            .filter_map(|(text, saved)| Some(format!(", {} {}", number(text)?, percent(*saved))));
        let others: String = others.collect();
        cures.push(format!("give less ({text} saves {}{others})", percent(*saved)));
    }
    if drained >= WORTH_SAYING {
        cures.push(format!("drain (saves {})", percent(drained)));
    }
    let cures = cures.join(" or ");
    if drained >= WORTH_SAYING {
        cures
    } else {
        format!("{cures}; to drain costs the others as much")
    }
}

/// The round of a row, which [`Cause::call_rounds`] finds.
fn round(number: u64) -> String {
    format!("round {number}")
}

/// The times of all but these workers, the others doing their shares.
fn without(rows: &[Vec<f64>], gone: &[usize]) -> Vec<Vec<f64>> {
    let mut absent = vec![false; rows.first().map_or(0, Vec::len)];
    gone.iter().for_each(|worker| absent[*worker] = true);
    let stays = |(worker, _): &(usize, &f64)| !absent[*worker];
    let of_row = |row: &Vec<f64>| row.iter().enumerate().filter(stays).map(|it| *it.1).collect();
    rows.iter().map(of_row).collect()
}

/// The median of each round's times of all but these workers, of whom some are slow.
pub(super) fn of_the_rest(
    rows: &[Vec<f64>],
    some: &[usize],
    quickest: &QuickestWorkers,
) -> Vec<f64> {
    let rest = without(rows, some);
    let median = |(row, quick): (Vec<f64>, &f64)| match row.is_empty() {
        true => *quick,
        false => quantile(row.into_iter(), 0.5),
    };
    rest.into_iter().zip(&quickest.times).map(median).collect()
}

/// The times if these workers are never slower than usual in each round.
fn as_quick(rows: &[Vec<f64>], slow: &[usize], usual: &[f64]) -> Vec<Vec<f64>> {
    let mut rows = rows.to_vec();
    for (row, usual) in rows.iter_mut().zip(usual) {
        slow.iter().for_each(|worker| row[*worker] = row[*worker].min(*usual));
    }
    rows
}

/// What an uncoded job would save with these times.
fn share_saved(replay: &Replay, rows: Vec<Vec<f64>>, baseline: f64) -> f64 {
    if rows.iter().all(Vec::is_empty) || baseline <= 0.0 {
        return 0.0;
    }
    let other = Replay::new(rows, replay.growth(), 0.0, 1);
    let time = other.run(&super::uncoded(), other.jobs()).map_or(baseline, |run| run.time_per_job);
    1.0 - time / baseline
}

/// How long the quickest quarter of the workers took in each round, at least one of them. A median
/// would not do: with few workers it is late as often as two of them are, each for a reason of its
/// own.
pub(crate) struct QuickestWorkers {
    pub(crate) times: Vec<f64>,
    /// Their median over the rounds.
    pub(crate) usual: f64,
}

impl QuickestWorkers {
    pub(crate) fn of(rows: &[Vec<f64>]) -> Self {
        let mut sorted = Vec::new();
        let times = rows.iter().map(|row| {
            sorted.clear();
            sorted.extend_from_slice(row);
            let last = ((QUICKEST * row.len() as f64).ceil() as usize).saturating_sub(1);
            match row.is_empty() {
                true => 0.0,
                false => *sorted.select_nth_unstable_by(last, f64::total_cmp).1,
            }
        });
        let times: Vec<f64> = times.collect();
        let usual = quantile(times.iter().copied(), 0.5);
        Self { times, usual }
    }

    /// Rounds in which all workers are slow, in order.
    pub(crate) fn slow_rounds(&self) -> Vec<usize> {
        let slow = |round: &usize| self.times[*round] > SLOW_ROUND * self.usual;
        (0..self.times.len()).filter(slow).collect()
    }
}

fn slow_rounds(rows: &[Vec<f64>], quickest: &QuickestWorkers, baseline: f64) -> Option<Cause> {
    let slow = quickest.slow_rounds();
    let more: f64 = slow.iter().map(|round| quickest.times[*round] - quickest.usual).sum();
    let costs = more / (baseline * rows.len() as f64);
    (costs > WORTH_SAYING && costs.is_finite()).then(|| Cause {
        kind: CauseKind::SlowRounds,
        workers: Vec::new(),
        since: None,
        times: None,
        costs,
        words: format!(
            "in {} of {} rounds all workers were slow (network, file system, a barrier elsewhere)",
            slow.len(),
            rows.len()
        ),
    })
}

/// Answer times as they were if all shares of a round cost the same, and how strongly time follows
/// cost.
///
/// # Formula
/// ```text
/// ln T_ri = a_r + w_i + b ln C_ri + noise;   T'_ri = T_ri (mean_i C_ri / C_ri)^b
/// ```
/// with rounds `r`, workers `i` and costs `C`; `b` by least squares after the means of rounds and
/// workers are taken off. The second number is the part of the variance left within rounds and
/// workers that costs explain. None if no worker's costs vary against the others': then a slow
/// share looks like a slow worker.
pub(super) fn balanced(rows: &[Vec<f64>], costs: &[Vec<f64>]) -> Option<(Vec<Vec<f64>>, f64)> {
    let log = |rows: &[Vec<f64>]| {
        centred(
            rows.iter()
                .map(|row| row.iter().map(|x| x.max(f64::MIN_POSITIVE).ln()).collect())
                .collect(),
        )
    };
    let (times, sizes) = (log(rows), log(costs));
    let product = |a: &[Vec<f64>], b: &[Vec<f64>]| {
        a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| a * b).sum::<f64>()
    };
    let (variance, total) = (product(&sizes, &sizes), product(&times, &times));
    if variance <= 1e-9 * (rows.len() * rows[0].len()) as f64 || total <= 0.0 {
        return None;
    }
    let slope = (product(&sizes, &times) / variance).max(0.0);
    let even = |(row, costs): (&Vec<f64>, &Vec<f64>)| {
        let mean = costs.iter().sum::<f64>() / costs.len() as f64;
        row.iter().zip(costs).map(|(time, cost)| time * (mean / cost).powf(slope)).collect()
    };
    Some((rows.iter().zip(costs).map(even).collect(), slope * slope * variance / total))
}

/// Takes off the means of rows and columns.
fn centred(mut rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let columns = rows[0].len();
    for row in &mut rows {
        let mean = row.iter().sum::<f64>() / columns as f64;
        row.iter_mut().for_each(|x| *x -= mean);
    }
    for column in 0..columns {
        let mean = rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64;
        rows.iter_mut().for_each(|row| row[column] -= mean);
    }
    rows
}

/// What shares of unequal cost take, from uncoded times before and after they are made equal.
pub(super) fn of_shares(before: f64, after: f64, explained: f64) -> Cause {
    let costs = if before > 0.0 { 1.0 - after / before } else { 0.0 };
    let words = format!(
        "unequal shares explain {:.0} % of what varies between answers: cut shares of equal cost; \
         a copy of a slow share is as slow, \
         so what follows is planned on evened-out times",
        100.0 * explained
    );
    let (workers, kind) = (Vec::new(), CauseKind::SlowShares);
    Cause { kind, workers, since: None, times: None, costs, words }
}

#[cfg(test)]
mod tests;
