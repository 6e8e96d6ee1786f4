//! Times of rounds and workers as they are read, in any order, and which of them make a trace.

pub(crate) mod names;

use anyhow::anyhow;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::output::{Output, plain};
use codedgrad_shell::units::several;
use names::{canonical, natural};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::iter::once;

/// Names and workers that are listed.
const LISTED: usize = 16;
/// Workers there can be.
const WORKERS_MOST: usize = 65_536;
/// Cells kept for each that was told, beside some to begin with: a column that holds no workers
/// would need room for far more.
const SPARE: (usize, usize) = (64, 1 << 20);
/// A round in which a value is missing is left out. Where that is a larger share of the rounds,
const MISSING_MOST: f64 = 0.2;
/// and more than so many of them, the worker with most of the gaps is left out instead.
const MISSING_FEW: usize = 2;
/// Rounds of a worker after which its first one, told again, begins another pass.
const PASS_LEAST: usize = 3;
/// Where so large a part of the rounds have numbers in their names, the others are no rounds.
const NUMBERED_MOST: f64 = 0.8;

/// Names by the order of their coming.
#[derive(Default)]
struct Keys {
    ids: HashMap<Box<str>, u32>,
    names: Vec<Box<str>>,
    last: usize,
    /// Whether their order is that of their coming.
    kept: bool,
    /// Two that were compared last, and whether the second follows: cells of a row ask the same.
    compared: Option<(usize, usize, bool)>,
}

impl Keys {
    /// Whether the second of two comes after the first.
    fn follows(&mut self, first: usize, second: usize) -> bool {
        if let Some((.., follows)) = self.compared.filter(|it| (it.0, it.1) == (first, second)) {
            return follows;
        }
        let number = |place: usize| self.names[place].parse::<f64>().ok();
        let follows = match (number(first), number(second)) {
            (Some(first), Some(second)) => first < second,
            _ => natural(&self.names[first], &self.names[second]).is_lt(),
        };
        self.compared = Some((first, second, follows));
        follows
    }

    fn id(&mut self, text: &str) -> usize {
        // Tables go through rounds and workers in order.
        for guess in [self.last, self.last + 1] {
            if self.names.get(guess).is_some_and(|name| **name == *text) {
                self.last = guess;
                return guess;
            }
        }
        let number = canonical(text);
        let name = number.as_deref().unwrap_or(text);
        self.last = match self.ids.get(name) {
            Some(id) => *id as usize,
            None => {
                let id = self.names.len();
                self.ids.insert(name.into(), id as u32);
                // Names are shown, and nothing of a file reaches a terminal raw.
                self.names.push(plain(name).into());
                id
            }
        };
        self.last
    }

    /// Places in the order of the names: as numbers where all are some.
    fn in_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        if self.kept {
            return order;
        }
        let numbers: Option<Vec<f64>> = self
            .names
            .iter()
            .map(|name| name.parse().ok().filter(|it: &f64| it.is_finite()))
            .collect();
        match numbers {
            Some(numbers) => order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b])),
            None => order.sort_by(|a, b| natural(&self.names[*a], &self.names[*b])),
        }
        order
    }
}

/// The time of every worker in every round, as far as it is told: infinite where an answer was not
/// received, no number where nothing is known.
#[derive(Default)]
pub(crate) struct Times {
    rounds: Keys,
    workers: Keys,
    cells: Vec<Vec<f64>>,
    told: usize,
    room: usize,
    /// Rounds of a pass that were told again, and how many cells of each.
    again: HashMap<(usize, usize), usize>,
    /// Of each worker.
    passes: Vec<Pass>,
    /// Whether some worker's rounds went back without beginning again.
    went_back: bool,
    /// The cells of later passes, by their rounds.
    later: Vec<HashMap<usize, Vec<f64>>>,
}

/// Where a worker is whose rounds may begin again, as those of epochs do.
#[derive(Clone, Default)]
struct Pass {
    /// How many passes it has behind it.
    number: usize,
    /// The last round, and how many there were since the pass began.
    last: Option<usize>,
    told: usize,
}

impl Pass {
    /// Goes on to a round; false if it goes back without beginning again. The first round of all
    /// begins a pass once others lie between.
    fn step(&mut self, round: usize, rounds: &mut Keys) -> bool {
        let Some(last) = self.last.replace(round).filter(|last| *last != round) else {
            self.told = self.told.max(1);
            return true;
        };
        if round == 0 && self.told >= PASS_LEAST {
            (self.number, self.told) = (self.number + 1, 1);
            return true;
        }
        self.told += 1;
        rounds.follows(last, round)
    }
}

/// A worker or a round that gaps cost, and how many rounds.
pub(crate) struct Gap {
    pub(super) worker: String,
    pub(super) rounds: usize,
    /// The first and the last round without it.
    pub(super) missing: (String, String),
    /// The first and the last round with it, if there is one.
    pub(super) there: Option<(String, String)>,
}

/// What of the times makes a trace.
pub(crate) struct TraceTimes {
    pub(crate) rounds: Vec<String>,
    pub(crate) workers: Vec<String>,
    pub(super) all_rounds: usize,
    pub(super) all_workers: usize,
    /// Workers that are left out, those with most gaps first.
    pub(crate) without: Vec<Gap>,
    /// Rounds that are left out, and whose values are missing in them.
    pub(super) incomplete: usize,
    pub(super) gaps: Vec<Gap>,
    /// Answers that were not received, of which workers.
    pub(super) not_received: Vec<(String, usize)>,
    /// Rounds told more than once, and how often the one told most.
    pub(super) again: Option<(usize, usize)>,
    /// How often the rounds of all workers have begun again.
    pub(super) begun_again: usize,
    /// What is named as rounds are and is none.
    pub(super) no_rounds: Vec<String>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    cells: Vec<Vec<f64>>,
}

impl Times {
    /// The columns of a table, before its rows.
    pub(crate) fn of_workers(names: &[String]) -> Self {
        let mut times = Self::default();
        for name in names {
            times.workers.id(name);
        }
        times
    }

    /// Has the workers stay in the order in which they were named.
    pub(crate) fn keep_order(&mut self) {
        self.workers.kept = true;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.workers.names.is_empty()
    }

    pub(super) fn workers(&self) -> usize {
        self.workers.names.len()
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds.names.len()
    }

    /// Takes in what a worker took in a round. What is told again counts; what is no number tells
    /// nothing but that both exist.
    pub(crate) fn insert(&mut self, round: &str, worker: &str, time: f64) -> Result<(), Failure> {
        let (round, worker) = (self.rounds.id(round), self.workers.id(worker));
        self.put(round, worker, time);
        if self.workers.names.len() > WORKERS_MOST || self.room > SPARE.0 * self.told + SPARE.1 {
            return Err(self.too_many());
        }
        Ok(())
    }

    fn put(&mut self, round: usize, worker: usize, time: f64) {
        if round == self.cells.len() {
            let usual = self.workers.names.len();
            self.cells.push(Vec::with_capacity(usual));
            self.room += usual;
        }
        if self.passes.len() <= worker {
            self.passes.resize(worker + 1, Pass::default());
        }
        let pass = &mut self.passes[worker];
        self.went_back |= !pass.step(round, &mut self.rounds);
        let number = pass.number;
        let row = match number.checked_sub(1) {
            None => &mut self.cells[round],
            Some(later) => {
                self.later.resize_with(self.later.len().max(later + 1), HashMap::new);
                self.later[later].entry(round).or_default()
            }
        };
        if row.len() <= worker {
            self.room += (worker + 1).saturating_sub(row.capacity());
            row.resize(worker + 1, f64::NAN);
        }
        if !row[worker].is_nan() && !time.is_nan() {
            *self.again.entry((number, round)).or_insert(0) += 1;
        }
        if !time.is_nan() {
            row[worker] = time;
        }
        self.told += 1;
    }

    /// Takes in a round of all workers.
    pub(crate) fn push(&mut self, round: &str, row: Vec<f64>) {
        let round = self.rounds.id(round);
        row.into_iter().enumerate().for_each(|(worker, time)| self.put(round, worker, time));
    }

    fn push_row(&mut self, round: usize, row: Vec<f64>) {
        if self.cells[round].len() < row.len() {
            self.cells[round].resize(row.len(), f64::NAN);
        }
        let told = self.cells[round].iter_mut().zip(row).filter(|(_, time)| !time.is_nan());
        let known = told.map(|(cell, time)| !std::mem::replace(cell, time).is_nan());
        let again = known.filter(|known| *known).count();
        if again > 0 {
            *self.again.entry((0, round)).or_insert(0) += again;
        }
    }

    fn too_many(&self) -> Failure {
        let (rounds, workers) = (self.rounds(), self.workers());
        let shown = |keys: &Keys| {
            keys.names.iter().take(3).map(|name| &**name).collect::<Vec<_>>().join(", ")
        };
        Failure::Input(anyhow!(
            "{workers} workers ({}, ..) in {rounds} rounds ({}, ..) after {} times: expected most \
             workers to have a time in most rounds; are these the columns of rounds and workers?",
            shown(&self.workers),
            shown(&self.rounds),
            self.told
        ))
    }

    /// Has later passes follow the first, if all workers made them; else what is told again counts.
    fn unfolded(&mut self) -> usize {
        let later = std::mem::take(&mut self.later);
        if later.is_empty() {
            return 0;
        }
        let together = self.passes.iter().all(|pass| pass.number > 0);
        // Rows of one worker below those of another are no passes.
        let known = |(old, new): (&f64, &f64)| !old.is_nan() && !new.is_nan();
        let first = |round: usize| self.cells[round].iter();
        let mut rows = later.iter().flatten();
        let told_again = rows.any(|(round, row)| first(*round).zip(row).any(known));
        if !together || self.went_back || !told_again {
            for (round, row) in later.into_iter().flatten() {
                self.push_row(round, row);
            }
            return 0;
        }
        let (count, order) = (later.len(), self.rounds.in_order());
        let names = std::mem::take(&mut self.rounds).names;
        let mut first = std::mem::take(&mut self.cells);
        self.rounds.kept = true;
        for (pass, mut rows) in (0..).zip(once(None).chain(later.into_iter().map(Some))) {
            for &round in &order {
                let row = match &mut rows {
                    None => Some(std::mem::take(&mut first[round])),
                    Some(rows) => rows.remove(&round),
                };
                if let Some(row) = row {
                    self.rounds.id(&format!("{pass}+{}", names[round]));
                    self.cells.push(row);
                }
            }
        }
        count
    }

    /// Leaves out rounds whose names have no number, among many whose names have.
    fn without_words(&mut self) -> Vec<String> {
        let is_word = |name: &str| !name.contains(|letter: char| letter.is_ascii_digit());
        let all = self.rounds.names.len();
        let words = self.rounds.names.iter().filter(|name| is_word(name)).count();
        if words == 0 || ((all - words) as f64) < NUMBERED_MOST * all as f64 {
            return Vec::new();
        }
        let mut left_out = Vec::with_capacity(words);
        let mut rounds = Keys { kept: self.rounds.kept, ..Keys::default() };
        let names = std::mem::take(&mut self.rounds).names;
        let (mut cells, mut ids) = (std::mem::take(&mut self.cells).into_iter(), HashMap::new());
        for (old, name) in names.iter().enumerate() {
            let row = cells.next().unwrap_or_default();
            if is_word(name) {
                left_out.push(name.to_string());
                continue;
            }
            ids.insert(old, rounds.id(name));
            self.cells.push(row);
        }
        self.rounds = rounds;
        for rows in &mut self.later {
            let kept = std::mem::take(rows).into_iter();
            *rows = kept.filter_map(|(old, row)| Some((*ids.get(&old)?, row))).collect();
        }
        left_out
    }

    /// Leaves out rounds with gaps, or the workers that have most of them where these are too many.
    pub(crate) fn settled(mut self) -> TraceTimes {
        let workers = self.workers();
        let no_rounds = self.without_words();
        let begun_again = self.unfolded();
        for row in &mut self.cells {
            row.resize(workers, f64::NAN);
        }
        let rows = self.rounds.in_order();
        let mut columns = self.workers.in_order();
        let mut gaps = Gaps::of(&self.cells, workers);
        let mut without = Vec::new();
        while let Some(worker) = gaps.too_many(&columns) {
            without.push(self.gap(worker, &rows));
            gaps.leave_out(worker, &self.cells);
            columns.retain(|other| *other != worker);
        }
        let is_whole = |row: &usize| gaps.of_rounds[*row] == 0;
        let whole: Vec<usize> = rows.iter().copied().filter(is_whole).collect();
        let incomplete = rows.len() - whole.len();
        let mut with_gaps: Vec<Gap> = Vec::new();
        let mut not_received = Vec::new();
        for &worker in &columns {
            if gaps.of_workers[worker] > 0 {
                with_gaps.push(self.gap(worker, &rows));
            }
            let never = whole.iter().filter(|row| self.cells[**row][worker].is_infinite()).count();
            if never > 0 {
                not_received.push((self.workers.names[worker].to_string(), never));
            }
        }
        with_gaps.sort_by_key(|gap| std::cmp::Reverse(gap.rounds));
        let times = |cells: &usize| 1 + cells.div_ceil(workers.max(1));
        let name = |keys: &Keys, at: &usize| keys.names[*at].to_string();
        TraceTimes {
            rounds: whole.iter().map(|row| name(&self.rounds, row)).collect(),
            workers: columns.iter().map(|worker| name(&self.workers, worker)).collect(),
            all_rounds: rows.len(),
            all_workers: workers,
            without,
            incomplete,
            gaps: with_gaps,
            not_received,
            again: self.again.values().map(times).max().map(|most| (self.again.len(), most)),
            rows: whole,
            columns,
            cells: self.cells,
            begun_again,
            no_rounds,
        }
    }

    fn gap(&self, worker: usize, rows: &[usize]) -> Gap {
        let is_missing = |row: &&usize| self.cells[**row][worker].is_nan();
        let name = |row: Option<&usize>| row.map(|row| self.rounds.names[*row].to_string());
        let mut missing = rows.iter().filter(is_missing);
        let mut there = rows.iter().filter(|row| !is_missing(row));
        let first = name(missing.next()).unwrap_or_default();
        let last = name(missing.next_back()).unwrap_or_else(|| first.clone());
        let began = name(there.next());
        let ended = name(there.next_back()).or_else(|| began.clone());
        Gap {
            worker: self.workers.names[worker].to_string(),
            rounds: rows.iter().filter(is_missing).count(),
            missing: (first, last),
            there: began.zip(ended),
        }
    }
}

/// The name of a round that several columns number.
pub(super) fn join(parts: &[&str]) -> String {
    let parts = parts.iter().map(|part| canonical(part).unwrap_or_else(|| (*part).to_owned()));
    parts.collect::<Vec<_>>().join("+")
}

/// Values that are missing.
struct Gaps {
    of_rounds: Vec<u32>,
    of_workers: Vec<usize>,
    incomplete: usize,
}

impl Gaps {
    fn of(cells: &[Vec<f64>], workers: usize) -> Self {
        let mut of_workers = vec![0; workers];
        let of_round = |row: &Vec<f64>| {
            let missing = row.iter().enumerate().filter(|(_, time)| time.is_nan());
            missing.map(|(worker, _)| of_workers[worker] += 1).count() as u32
        };
        let of_rounds: Vec<u32> = cells.iter().map(of_round).collect();
        let incomplete = of_rounds.iter().filter(|missing| **missing > 0).count();
        Self { of_rounds, of_workers, incomplete }
    }

    /// The worker to leave out, if more rounds would be lost than may be.
    fn too_many(&self, columns: &[usize]) -> Option<usize> {
        let rounds = self.of_rounds.len();
        let few = self.incomplete <= MISSING_FEW && self.incomplete < rounds;
        if few || self.incomplete as f64 <= MISSING_MOST * rounds as f64 {
            return None;
        }
        let most = |a: &&usize, b: &&usize| -> Ordering {
            // Of those with as many the first.
            self.of_workers[**a].cmp(&self.of_workers[**b]).then(Ordering::Greater)
        };
        columns.iter().max_by(most).copied()
    }

    fn leave_out(&mut self, worker: usize, cells: &[Vec<f64>]) {
        for (missing, row) in self.of_rounds.iter_mut().zip(cells) {
            if row[worker].is_nan() {
                *missing -= 1;
                self.incomplete -= usize::from(*missing == 0);
            }
        }
        self.of_workers[worker] = 0;
    }
}

/// The range of rounds that two names end.
fn range((first, last): &(String, String)) -> String {
    if first == last { format!("round {first}") } else { format!("rounds {first} to {last}") }
}

/// Names in a list of a few.
pub(super) fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > LISTED { format!("{shown}, .. ({} in all)", names.len()) } else { shown }
}

impl TraceTimes {
    /// A worker that is left out.
    fn gone_one(&self, gap: &Gap) -> String {
        let there = gap.there.as_ref().map_or("none".into(), range);
        format!(
            "worker {}: no time in {} of {} rounds (missing in {}; there in {there})",
            gap.worker,
            gap.rounds,
            self.all_rounds,
            range(&gap.missing)
        )
    }

    /// The workers that are left out, and what was told before it was told again, in words.
    pub(crate) fn gone(&self) -> Vec<String> {
        let again = self.again.map(|(rounds, most)| {
            format!(
                "what was told of {} before they were told again, up to {most} times",
                several(rounds, "round")
            )
        });
        let words = (!self.no_rounds.is_empty())
            .then(|| format!("{}, whose names have no number", listed(&self.no_rounds)));
        self.without.iter().map(|gap| self.gone_one(gap)).chain(again).chain(words).collect()
    }

    /// Says which workers and how many rounds are left out, and for whose gaps.
    pub(crate) fn say_gaps(&self, row: &str, why: &str, output: &mut Output<'_>) {
        let gone = self.without.iter().map(|gap| self.gone_one(gap));
        gone.for_each(|it| output.note(format_args!("warning: left out: {it}")));
        if self.incomplete > 0 {
            let gaps = self.gaps.iter().map(|gap| {
                format!("worker {} in {} ({})", gap.worker, gap.rounds, range(&gap.missing))
            });
            output.note(format_args!(
                "left out: {} in which {why}: {}",
                several(self.incomplete, row),
                listed(&gaps.collect::<Vec<_>>())
            ));
        }
    }

    /// The rounds kept, in order, infinite where an answer was not received.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Vec<f64>> {
        self.rows.iter().map(|row| self.columns.iter().map(|at| self.cells[*row][*at]).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.columns.is_empty()
    }
}

#[cfg(test)]
mod tests;
