//! What is said of dumps: a verdict first, then each collective that is not the same on all ranks.

use super::diagnosis::{Diagnosis, Group, Kind, Last, Problem, RanksCall};
use super::read::{Call, Dump};
use codedgrad_shell::layout::Width;
use codedgrad_shell::units::several;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Problems, groups, ranks and runs of ranks that are listed.
const LISTED: usize = 8;

/// `rank 2`, `ranks 0-3, 7`.
fn ranks(of: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for rank in of {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == *rank => *end = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let run = |(first, end): &(u64, u64)| match first == end {
        true => first.to_string(),
        false => format!("{first}-{end}"),
    };
    let shown: Vec<String> = runs.iter().take(LISTED).map(run).collect();
    let more = if runs.len() > LISTED { format!(", .. ({} in all)", of.len()) } else { "".into() };
    format!("rank{} {}{more}", if of.len() == 1 { "" } else { "s" }, shown.join(", "))
}

fn has(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

fn group(group: &Group) -> String {
    let all: Vec<u64> = group.ranks.iter().copied().collect();
    format!("group {} ({})", group.label, ranks(&all))
}

/// Names of what was called: `all_reduce`, or several that are coalesced.
fn name(calls: &[Rc<Call>]) -> String {
    let mut names: Vec<&str> = calls.iter().map(|call| &*call.name).collect();
    names.dedup();
    names.join("+")
}

/// The sizes and types, the output's only where they differ.
fn tensors(calls: &[Rc<Call>]) -> String {
    let each = calls.iter().take(LISTED).map(|call| match call.input == call.output {
        true => call.input.clone(),
        false => format!("{} to {}", call.input, call.output),
    });
    each.collect::<Vec<_>>().join("; ")
}

fn at(calls: &[Rc<Call>]) -> String {
    let place = calls.iter().find_map(|call| call.place.as_ref());
    place.map_or(String::new(), |place| format!(", at {place}"))
}

/// What most ranks called, or no name where they do not agree.
fn usual(problem: &Problem) -> String {
    let names: BTreeSet<String> = problem.called.iter().map(|it| name(&it.calls)).collect();
    match problem.called.first() {
        Some(called) if names.len() == 1 => name(&called.calls),
        _ => "collective".into(),
    }
}

/// What a problem comes to, in a sentence without its end.
fn sentence(problem: &Problem, found: &Diagnosis) -> String {
    let own = &found.groups[problem.group];
    let (named, number) = (ranks(&problem.ranks), problem.number);
    let (of, usual) = (group(own), usual(problem));
    let has_named = has(problem.ranks.len());
    let is_named = |rank: &&u64| problem.ranks.contains(rank);
    let entered: BTreeSet<u64> =
        problem.called.iter().flat_map(|called| &called.ranks).copied().collect();
    let others: Vec<u64> = entered.iter().filter(|rank| !is_named(rank)).copied().collect();
    let count = others.len();
    // Of some the dump is cut, or has lost that entry.
    let the_others = match problem.ranks.len() + count == own.ranks.len() {
        true => format!("the other {count}"),
        false => ranks(&others),
    };
    match problem.kind {
        Kind::NotEntered => {
            let doing = match (problem.is_waited_in, count) {
                (true, 1) => "waits in it".into(),
                (true, _) => "wait in it".into(),
                (false, _) => format!("{} entered it", has(count)),
            };
            let mut text = format!(
                "{named} {has_named} not entered {usual} number {number} of {of}: {the_others} \
                 {doing}"
            );
            let is_elsewhere = problem.last.iter().all(|last| last.elsewhere.is_some());
            if let Some(Last { rank, elsewhere: Some((place, number, calls)), .. }) =
                problem.last.first().filter(|_| is_elsewhere)
            {
                let (what, other) = (name(calls), &found.groups[*place].label);
                text +=
                    &format!("; rank {rank} is still in {what} number {number} of group {other}");
            }
            text
        }
        Kind::OtherCall => {
            let is_other = |called: &&RanksCall| is_named(&&called.ranks[0]);
            let other = problem.called.iter().find(is_other);
            let most = problem.called.iter().find(|called| !is_other(called));
            let (Some(other), Some(most)) = (other, most) else { return String::new() };
            let (one, two) = (name(&other.calls), name(&most.calls));
            let others = ranks(&others);
            if one != two {
                return format!(
                    "{named} {has_named} called {one} as number {number} of {of}, where {others} \
                     called {two}"
                );
            }
            format!(
                "{named} {has_named} called {one} number {number} of {of} with {}, where {others} \
                 gave {}",
                tensors(&other.calls),
                tensors(&most.calls)
            )
        }
        Kind::WithoutDump => format!(
            "{named} of {of} {has_named} no dump, as after a kill: {the_others} {} entered {usual} \
             number {number}",
            has(count)
        ),
        Kind::NotSeen => format!(
            "{named} may not have entered {usual} number {number} of {of}: dumps that are cut, or \
             kept too few entries, do not show it; {the_others} {} in it",
            if count == 1 { "waits" } else { "wait" }
        ),
        Kind::NotCompleted => format!(
            "all ranks of {of} have entered {usual} number {number}, and {named} {has_named} not \
             completed it"
        ),
    }
}

/// The verdict, in a sentence.
fn verdict(found: &Diagnosis) -> String {
    if let Some(problem) = found.problems.first() {
        return sentence(problem, found);
    }
    let all: Vec<u64> = found.ranks.iter().copied().collect();
    let largest = found.groups.iter().max_by_key(|group| group.ranks.len());
    let last = largest.and_then(|group| Some((group.entered_by_all?, &group.label)));
    let last = last.map_or(String::new(), |(number, label)| {
        format!(", up to number {number} of group {label}")
    });
    let seen = match found.groups.iter().all(|group| group.unknown.is_empty()) {
        true => "",
        false => ", as far as their dumps go",
    };
    format!("{} {} entered the same collectives{last}{seen}", ranks(&all), has(all.len()))
}

fn detail(problem: &Problem, found: &Diagnosis) -> Vec<String> {
    let mut lines = Vec::new();
    for last in problem.last.iter().take(LISTED) {
        lines.push(match &last.own {
            Some((number, calls)) => {
                format!(
                    "rank {}: its last was {} number {number} {}{}",
                    last.rank,
                    name(calls),
                    tensors(calls),
                    at(calls)
                )
            }
            None => format!("rank {}: it has entered none", last.rank),
        });
        if let Some((place, number, calls)) = &last.elsewhere {
            lines.push(format!(
                "rank {}: it is still in {} number {number} of group {}{}",
                last.rank,
                name(calls),
                found.groups[*place].label,
                at(calls)
            ));
        }
    }
    if problem.last.len() > LISTED {
        lines.push(format!("and {}", several(problem.last.len() - LISTED, "other rank")));
    }
    for called in problem.called.iter().take(LISTED) {
        let (who, what) = (ranks(&called.ranks), name(&called.calls));
        lines.push(format!("{who}: {what} {}{}", tensors(&called.calls), at(&called.calls)));
    }
    if problem.called.len() > LISTED {
        lines.push(format!("and {}", several(problem.called.len() - LISTED, "other call")));
    }
    lines
}

/// What is shown on a terminal.
pub(super) fn words(found: &Diagnosis, dumps: &[Dump], width: Width) -> String {
    let mut text = String::new();
    if found.problems.is_empty() {
        text += &width.prose(&format!("{}.\n\n", verdict(found)));
    }
    for problem in found.problems.iter().take(LISTED) {
        text += &width.prose(&format!("{}.\n", sentence(problem, found)));
        for line in detail(problem, found) {
            text += &format!("  {}\n", line.trim_end());
        }
        text.push('\n');
    }
    if found.problems.len() > LISTED {
        let more = several(found.problems.len() - LISTED, "more problem");
        text += &format!("and {more}; --json lists all\n\n");
    }
    for own in found.groups.iter().take(LISTED) {
        let entered = match (own.first, own.entered_by_all) {
            (Some(first), Some(last)) if first > last => {
                format!("all entered number {last}, which not all dumps still have")
            }
            (Some(first), Some(last)) => {
                format!("all entered number {last}; compared from number {first} on")
            }
            _ if !own.unknown.is_empty() => {
                format!("what {} entered last is not known", ranks(&own.unknown))
            }
            _ => "no collective was entered by all".into(),
        };
        let told = if own.is_told { "" } else { "; its ranks are those with entries" };
        text += &width.prose(&format!("{}: {entered}{told}\n", group(own)));
    }
    if found.groups.len() > LISTED {
        let more = several(found.groups.len() - LISTED, "more group");
        text += &format!("and {more}; --json lists all\n");
    }
    let versions: BTreeSet<&str> = dumps.iter().map(|dump| &*dump.version).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    let count = several(dumps.len(), "dump");
    text += &width.prose(&format!("{count} of version {}\n", versions.join(", ")));
    if !found.without_dump.is_empty() {
        let without: Vec<u64> = found.without_dump.iter().copied().collect();
        text += &width.prose(&format!("no dump: {}\n", ranks(&without)));
    }
    text
}

/// The same as one JSON object.
pub(super) fn object(found: &Diagnosis) -> Value {
    let calls = |calls: &[Rc<Call>]| -> Vec<Value> {
        let each = calls.iter();
        each.map(
            |it| json!({"name": it.name, "input": it.input, "output": it.output, "at": it.place}),
        )
        .collect()
    };
    let label = |place: usize| (&found.groups[place].name, &found.groups[place].description);
    let last = |last: &Last| {
        json!({
            "rank": last.rank,
            "number": last.own.as_ref().map(|(number, _)| number),
            "calls": last.own.as_ref().map(|(_, own)| calls(own)),
            "still_in": last.elsewhere.as_ref().map(|(place, number, own)| json!({
                "group": label(*place).0, "number": number, "calls": calls(own),
            })),
        })
    };
    let problem = |problem: &Problem| {
        let kind = match problem.kind {
            Kind::NotEntered => "not-entered",
            Kind::OtherCall => "other-call",
            Kind::WithoutDump => "without-dump",
            Kind::NotSeen => "not-seen",
            Kind::NotCompleted => "not-completed",
        };
        let called = problem.called.iter();
        let called = called.map(|it| json!({"ranks": it.ranks, "calls": calls(&it.calls)}));
        json!({
            "kind": kind,
            "group": label(problem.group).0,
            "description": label(problem.group).1,
            "number": problem.number,
            "ranks": problem.ranks,
            "called": called.collect::<Vec<_>>(),
            "last": problem.last.iter().map(last).collect::<Vec<_>>(),
            "words": sentence(problem, found),
        })
    };
    let group = |group: &Group| {
        json!({
            "group": group.name,
            "description": group.description,
            "ranks": group.ranks,
            "ranks_told": group.is_told,
            "first": group.first,
            "entered_by_all": group.entered_by_all,
            "unknown": group.unknown,
        })
    };
    json!({
        "verdict": verdict(found),
        "ranks": found.ranks,
        "without_dump": found.without_dump,
        "groups": found.groups.iter().map(group).collect::<Vec<_>>(),
        "problems": found.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}
