//! Which ranks of which group have not entered a collective, and which called another one.

use super::read::{Call, Dump, Entry, GroupName};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

/// Description of the group of all ranks, and its name.
const DEFAULT: (&str, &str) = ("default_pg", "0");
/// Description of a group that was given none.
const UNDEFINED: &str = "undefined";

/// What the dumps of a job show.
pub(super) struct Diagnosis {
    /// Ranks that have a dump.
    pub(super) ranks: BTreeSet<u64>,
    /// Ranks that must exist, and have none.
    pub(super) without_dump: BTreeSet<u64>,
    pub(super) groups: Vec<Group>,
    /// The likeliest cause first.
    pub(super) problems: Vec<Problem>,
}

/// A process group.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) description: String,
    /// What it is called here.
    pub(super) label: String,
    pub(super) ranks: BTreeSet<u64>,
    /// Whether the dumps tell its ranks; else it has those with entries.
    pub(super) is_told: bool,
    /// The first collective that all dumps still have, and the last that all ranks entered.
    pub(super) first: Option<u64>,
    pub(super) entered_by_all: Option<u64>,
    /// Ranks of which it is not known what they entered last.
    pub(super) unknown: Vec<u64>,
}

/// What is wrong with a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    NotEntered,
    OtherCall,
    WithoutDump,
    /// What they entered is not known: their dumps are cut, or have lost it.
    NotSeen,
    NotCompleted,
}

/// A collective that some ranks are not in as others are.
pub(super) struct Problem {
    pub(super) kind: Kind,
    /// Its place in [`Diagnosis::groups`].
    pub(super) group: usize,
    pub(super) number: u64,
    /// The ranks that are to be looked at.
    pub(super) ranks: Vec<u64>,
    /// What those that entered it called, the most ranks first.
    pub(super) called: Vec<RanksCall>,
    /// Whether all that entered it have not completed it.
    pub(super) is_waited_in: bool,
    /// Where those are that have not entered it.
    pub(super) last: Vec<Last>,
}

/// Ranks that called the same at the same line.
pub(super) struct RanksCall {
    pub(super) ranks: Vec<u64>,
    pub(super) calls: Vec<Rc<Call>>,
}

/// The last that a rank entered.
pub(super) struct Last {
    pub(super) rank: u64,
    /// In the group itself; none if the rank has entered nothing there.
    pub(super) own: Option<(u64, Vec<Rc<Call>>)>,
    /// In another group, if it has not completed that.
    pub(super) elsewhere: Option<(usize, u64, Vec<Rc<Call>>)>,
}

/// A rank's entries of a group.
type Entries = BTreeMap<u64, Entry>;

/// What must be equal in a collective on all ranks: its name, and the sizes and types where they
/// may not differ.
fn compared(calls: &[Rc<Call>]) -> Vec<(&str, &str, &str)> {
    let each = calls.iter().map(|call| {
        let (input, output) = match &*call.name {
            // Ranks may exchange unequal parts.
            name if name.starts_with("all_to_all") || name.starts_with("alltoall") => ("", ""),
            name if name.ends_with("_v") => ("", ""),
            // Only the root has a list of tensors.
            "scatter" => ("", &*call.output),
            "gather" => (&*call.input, ""),
            _ => (&*call.input, &*call.output),
        };
        (&*call.name, input, output)
    });
    each.collect()
}

pub(super) fn diagnosis(dumps: &[Dump]) -> Diagnosis {
    let ranks: BTreeSet<u64> = dumps.iter().map(|dump| dump.rank).collect();
    let told = dumps.iter().flat_map(|dump| dump.members.values().flatten().copied());
    // Ranks are numbered from 0 on, whatever a backend tells.
    let all: BTreeSet<u64> = told.chain(0..=ranks.last().copied().unwrap_or(0)).collect();
    let names: BTreeSet<&GroupName> = dumps.iter().flat_map(|dump| dump.groups.keys()).collect();
    let names: Vec<&GroupName> = names.into_iter().collect();
    let mut groups: Vec<Group> = names.iter().map(|name| group(name, dumps, &all)).collect();
    let labels: Vec<String> = groups.iter().map(|group| group.label.clone()).collect();
    for group in &mut groups {
        if labels.iter().filter(|label| **label == group.label).count() > 1 {
            group.label = format!("{}:{}", group.description, group.name);
        }
    }
    let mut problems: Vec<(u8, Problem)> = Vec::new();
    for (place, group) in groups.iter_mut().enumerate() {
        let case = Case::new(place, &names, group, dumps);
        group.first = case.first();
        let is_known = |rank: &u64| case.lasts().any(|(dump, _)| dump.rank == *rank);
        group.unknown = group.ranks.iter().copied().filter(|rank| !is_known(rank)).collect();
        group.entered_by_all = case.entered_by_all().filter(|_| group.unknown.is_empty());
        problems.extend(case.problems(group));
    }
    problems.sort_by_key(|(class, problem)| (*class, problem.group));
    Diagnosis {
        without_dump: all.difference(&ranks).copied().collect(),
        ranks,
        groups,
        problems: problems.into_iter().map(|(_, problem)| problem).collect(),
    }
}

fn group((name, description): &GroupName, dumps: &[Dump], all: &BTreeSet<u64>) -> Group {
    let told = dumps.iter().filter_map(|dump| dump.members.get(&**name)).flatten();
    let mut ranks: BTreeSet<u64> = told.copied().collect();
    let is_default = &**description == DEFAULT.0 || description.is_empty() && &**name == DEFAULT.1;
    let mut is_told = !ranks.is_empty();
    if is_default && !is_told {
        // Gloo tells no ranks by this name.
        (ranks, is_told) = (all.clone(), true);
    }
    let has = |dump: &&Dump| dump.groups.keys().any(|it| it.0 == *name && it.1 == *description);
    ranks.extend(dumps.iter().filter(has).map(|dump| dump.rank));
    let is_named = !description.is_empty() && &**description != UNDEFINED;
    Group {
        name: name.to_string(),
        description: description.to_string(),
        label: if is_named { description } else { name }.to_string(),
        ranks,
        is_told,
        first: None,
        entered_by_all: None,
        unknown: Vec::new(),
    }
}

/// The dumps of a group's ranks.
struct Case<'a> {
    group: usize,
    names: &'a [&'a GroupName],
    dumps: Vec<(&'a Dump, Option<&'a Entries>)>,
}

impl<'a> Case<'a> {
    fn new(place: usize, names: &'a [&'a GroupName], group: &Group, dumps: &'a [Dump]) -> Self {
        let own = dumps.iter().filter(|dump| group.ranks.contains(&dump.rank));
        let dumps = own.map(|dump| (dump, dump.groups.get(names[place]))).collect();
        Self { group: place, names, dumps }
    }

    /// The first collective that each dump still has which has any.
    fn first(&self) -> Option<u64> {
        let firsts = self.dumps.iter().filter_map(|(_, entries)| entries.as_ref()?.keys().next());
        firsts.copied().max()
    }

    /// The last collective of each rank whose dump tells it: 0 if it entered none.
    fn lasts(&self) -> impl Iterator<Item = (&'a Dump, u64)> + '_ {
        let known = self.dumps.iter().filter(|(dump, entries)| {
            // Behind a cut, and in a ring that has gone round, there may have been others.
            !dump.is_cut && (entries.is_some() || !dump.has_lost)
        });
        known.map(|(dump, entries)| (*dump, entries.and_then(last).map_or(0, |(number, _)| number)))
    }

    fn entered_by_all(&self) -> Option<u64> {
        self.lasts().map(|(_, last)| last).min().filter(|last| *last > 0)
    }

    /// Entries of a collective, with their ranks.
    fn of(&self, number: u64) -> impl Iterator<Item = (u64, &'a Entry)> + '_ {
        self.dumps.iter().filter_map(move |dump| entry(dump, number))
    }

    /// The same without those that may lack what was coalesced with them: the first in a ring that
    /// has gone round.
    fn whole(&self, number: u64) -> impl Iterator<Item = (u64, &'a Entry)> + '_ {
        let is_first = move |entries: &Entries| entries.keys().next() == Some(&number);
        let dumps = self.dumps.iter();
        let whole =
            dumps.filter(move |(dump, entries)| !(dump.has_lost && entries.is_some_and(is_first)));
        whole.filter_map(move |dump| entry(dump, number))
    }

    fn called(&self, number: u64) -> Vec<RanksCall> {
        let mut called: BTreeMap<&[Rc<Call>], Vec<u64>> = BTreeMap::new();
        for (rank, entry) in self.of(number) {
            called.entry(&entry.calls).or_default().push(rank);
        }
        let called = called.into_iter();
        let mut called: Vec<RanksCall> =
            called.map(|(calls, ranks)| RanksCall { ranks, calls: calls.to_vec() }).collect();
        called.sort_by_key(|called| std::cmp::Reverse(called.ranks.len()));
        called
    }

    /// Problems, and how little each is likely to be the cause.
    fn problems(&self, group: &Group) -> Vec<(u8, Problem)> {
        let mut found = Vec::new();
        let numbers: BTreeSet<u64> = self
            .dumps
            .iter()
            .flat_map(|(_, entries)| entries.iter().flat_map(|it| it.keys()))
            .copied()
            .collect();
        let Some(newest) = numbers.last().copied() else { return found };
        let problem = |kind, number, ranks: Vec<u64>| Problem {
            kind,
            group: self.group,
            number,
            called: self.called(number),
            is_waited_in: self.of(number).all(|(_, entry)| !entry.is_completed),
            last: Vec::new(),
            ranks,
        };
        let least = self.lasts().map(|(_, last)| last).min().unwrap_or(newest);
        let open = numbers.range((Bound::Excluded(least), Bound::Unbounded)).next().copied();
        for number in &numbers {
            let Some(others) = self.others(*number) else { continue };
            let is_over = self.of(*number).all(|(_, entry)| entry.is_completed);
            let class = match open {
                _ if is_over => 5,
                Some(open) if open < *number => 2,
                _ => 0,
            };
            found.push((class, problem(Kind::OtherCall, *number, others)));
            // What comes after it is off as well.
            break;
        }
        let without: Vec<u64> = {
            let has = |rank: &&u64| !self.dumps.iter().any(|(dump, _)| dump.rank == **rank);
            group.ranks.iter().filter(has).copied().collect()
        };
        if let Some(open) = open {
            let behind = self.lasts().filter(|(_, last)| *last < open).map(|(dump, _)| dump);
            let last: Vec<Last> = behind.map(|dump| self.last(dump)).collect();
            // A rank that waits in another group is not the cause.
            let is_cause = last.iter().all(|last| last.elsewhere.is_none());
            let ranks = last.iter().map(|last| last.rank).collect();
            let problem = Problem { last, ..problem(Kind::NotEntered, open, ranks) };
            found.push((if is_cause { 1 } else { 2 }, problem));
        } else if without.is_empty() && found.is_empty() {
            let waiting = self.of(newest).filter(|(_, entry)| !entry.is_completed);
            let waiting: Vec<u64> = waiting.map(|(rank, _)| rank).collect();
            let mut missing = group.unknown.clone();
            missing.retain(|rank| self.of(newest).all(|(other, _)| other != *rank));
            let (kind, class, ranks) = match missing.is_empty() {
                true => (Kind::NotCompleted, 4, waiting.clone()),
                false => (Kind::NotSeen, 1, missing),
            };
            if !waiting.is_empty() {
                found.push((class, problem(kind, newest, ranks)));
            }
        }
        if !without.is_empty() {
            found.push((3, problem(Kind::WithoutDump, newest, without)));
        }
        found
    }

    /// Ranks whose collective of this number is another one than most ranks'; none where all are
    /// the same.
    fn others(&self, number: u64) -> Option<Vec<u64>> {
        let mut kinds: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for (rank, entry) in self.whole(number) {
            kinds.entry(compared(&entry.calls)).or_default().push(rank);
        }
        // Of equally many those count as the usual ones that have the lowest rank.
        let usual =
            kinds.values().min_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]))?;
        let mut others: Vec<u64> =
            kinds.values().flatten().filter(|rank| !usual.contains(rank)).copied().collect();
        others.sort_unstable();
        (!others.is_empty()).then_some(others)
    }

    fn last(&self, dump: &Dump) -> Last {
        let own = dump.groups.get(self.names[self.group]).and_then(last);
        let elsewhere = self.names.iter().enumerate().filter(|(place, _)| *place != self.group);
        let open = elsewhere.filter_map(|(place, name)| {
            let (number, entry) = dump.groups.get(*name).and_then(last)?;
            (!entry.is_completed).then_some((place, number, entry))
        });
        let open = open.max_by_key(|(.., entry)| entry.created);
        Last {
            rank: dump.rank,
            own: own.map(|(number, entry)| (number, entry.calls.clone())),
            elsewhere: open.map(|(place, number, entry)| (place, number, entry.calls.clone())),
        }
    }
}

fn entry<'a>(
    (dump, entries): &(&Dump, Option<&'a Entries>),
    number: u64,
) -> Option<(u64, &'a Entry)> {
    Some((dump.rank, (*entries)?.get(&number)?))
}

fn last(entries: &Entries) -> Option<(u64, &Entry)> {
    entries.last_key_value().map(|(number, entry)| (*number, entry))
}
