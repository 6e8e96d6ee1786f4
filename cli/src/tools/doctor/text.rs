//! What `codedgrad doctor` prints: 40 lines at most.

use super::STDIN;
use super::advice::Advice;
use crate::tools::planner::table_of;
use codedgrad::doctor::{
    Caution, Examination, ExaminedWorker, Finding, NoReplay, Problem, SlowCause, TimeSpent,
};
use codedgrad::sim::planner::{Candidate, Plan};
use codedgrad_shell::layout::{Column, Table, Width};
use codedgrad_shell::output::plain;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// No user reads more lines at night.
const LINES_MOST: usize = 40;
/// Findings, workers and schemes that are shown where there is room.
const SHOWN_MOST: usize = 8;
/// With less there is nothing to explain.
const SLOWDOWN_LEAST: f64 = 1.01;
/// The worst workers are not worth a word where they explain less.
const EXPLAINS_LEAST: f64 = 0.1;
/// A larger share of estimates is worth a word.
const ESTIMATED_MOST: f64 = 0.05;

/// The columns of the table of workers, and which are left out first where there is little room.
pub(super) const WORKER_COLUMNS: [(&str, u8); 9] = [
    ("worker", 0),
    ("times\nmedian", 0),
    ("rounds\nlate", 0),
    ("rounds\nlast in", 1),
    ("no\nanswer", 1),
    ("computes\ns", 2),
    ("elsewhere\ns", 2),
    ("alone\nsaves", 0),
    ("why", 0),
];

/// As much as fits.
pub(super) fn words(advice: &Advice<'_>, width: Width) -> String {
    let all = |shown| text(advice, width, shown);
    // What is cut first are the least findings, workers and schemes, all alike.
    let fits = |text: &String| text.lines().count() <= LINES_MOST;
    (1..=SHOWN_MOST).rev().map(all).find(fits).unwrap_or_else(|| all(1))
}

/// With so many findings, workers and schemes at most.
fn text(advice: &Advice<'_>, width: Width, shown: usize) -> String {
    let found = advice.found;
    let mut text = width.prose(&format!("{}\n", heading(advice)));
    text.push('\n');
    findings(advice, width, shown, &mut text);
    text.push('\n');
    text += &time(found, width);
    text += &width.prose(&summary(advice));
    let named = named(found, shown);
    if !named.is_empty() {
        text.push('\n');
        text += &workers(&named, advice).laid_out(width);
    }
    if let Some(plan) = advice.plan {
        text += &format!("\n{}", schemes(advice, plan, shown).laid_out(width));
        text += &width.prose(&format!("{}\n", plan.why));
    }
    text
}

/// The best schemes of a plan, and the run's own.
pub(super) fn schemes(advice: &Advice<'_>, plan: &Plan, shown: usize) -> Table {
    // The run's own scheme is what the others are compared with, wherever it stands.
    let own = |candidate: &Candidate| candidate.scheme.text() == advice.found.scheme;
    let best = plan.candidates.iter().enumerate();
    let best = best.filter(|(place, candidate)| *place < shown || own(candidate));
    let best: Vec<Candidate> = best.map(|(_, candidate)| candidate.clone()).collect();
    table_of(&best)
}

/// What was looked at.
pub(super) fn heading(advice: &Advice<'_>) -> String {
    let Examination { scheme, workers, rounds, steps, time, .. } = advice.found;
    let inputs: Vec<&str> = advice.args.inputs().map(String::as_str).collect();
    let name = if inputs == [STDIN] { "standard input".into() } else { inputs.join(", ") };
    let run = advice.number.map_or("as".into(), |number| format!("run {number},"));
    let rounds = if rounds == steps { String::new() } else { format!(" in {rounds} rounds") };
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    format!(
        "{name}, {run} {}: {steps} step{}{rounds} of {workers} worker{} in {:.1} s",
        plain(scheme),
        plural(*steps),
        plural(*workers),
        time.total
    )
}

fn findings(advice: &Advice<'_>, width: Width, shown: usize, text: &mut String) {
    let all = &advice.found.findings;
    if all.is_empty() {
        *text += &width.prose(&nothing(advice));
    }
    for gone in advice.not_seen {
        *text += &width.prose(&format!("Not seen: {gone}.\n"));
    }
    for finding in &all[..all.len().min(shown)] {
        let (cost, told) = priced(finding, advice);
        *text += &width.prose(&format!("{cost}: {told}.\n"));
        // A command is not broken into lines: it could not be copied.
        if let Some(command) = advice.command(finding) {
            let _ = writeln!(text, "  try: {command}");
        }
    }
    if all.len() > shown {
        let rest = all.len() - shown;
        let _ = writeln!(text, "And {rest} more: --json has them all.");
    }
}

/// What a finding costs, and its words.
pub(super) fn priced(finding: &Finding, advice: &Advice<'_>) -> (String, String) {
    let unknown = match finding.problem {
        Problem::OtherScheme { .. } => "not sure on other rounds",
        _ => "cost unknown",
    };
    // Schemes and events are named by the record.
    let told = plain(&finding.told(advice.names).to_string());
    (finding.costs.map_or(unknown.into(), percent), told)
}

/// What is said where nothing was found: that is no health where little can be seen.
pub(super) fn nothing(advice: &Advice<'_>) -> String {
    let found = advice.found;
    if found.cautions.iter().any(Caution::hides_workers) {
        return "Whether a worker is slow cannot be seen in these times: they look as if they were \
                taken after the all-reduce, where all workers show the slowest one's. Measure \
                before it.\n"
            .into();
    }
    let compared = found.of_workers.iter().any(|worker| worker.ratio.is_some());
    if !compared && found.workers > 1 {
        return not_known(found);
    }
    let estimated = found.estimated.filter(|estimated| *estimated > ESTIMATED_MOST);
    let unseen = estimated.is_some() || !advice.not_seen.is_empty();
    match unseen {
        true => "Nothing is wrong with what was received, which is not all.\n".into(),
        false => "Nothing is wrong that the record shows.\n".into(),
    }
}

/// What is said where workers could not be compared.
fn not_known(found: &Examination) -> String {
    let under = plain(found.scheme.split(':').next().unwrap_or_default());
    match found.what_if.reason {
        Some(NoReplay::Feedback { .. } | NoReplay::Delayed { .. }) => format!(
            "Which workers are slow is not known under {under}: the record does not tell what \
             they computed. Nothing else is wrong that it shows.\n"
        ),
        _ => "Which workers are slow is not known. Nothing else is wrong that the record \
              shows.\n"
            .into(),
    }
}

/// The parts of the time: their names, seconds and limits.
pub(super) fn parts(time: &TimeSpent) -> [(&'static str, f64, &'static str); 4] {
    [
        ("computing", time.computing, "until a round's first answer"),
        ("waiting", time.waiting, "for the others that it needs"),
        ("deciding", time.deciding, "from the last answer to the commit"),
        ("between", time.between, "from a commit to the next round"),
    ]
}

fn time(found: &Examination, width: Width) -> String {
    let time = &found.time;
    let mut table = Table::new([
        Column::left("where the time went"),
        Column::right("seconds"),
        Column::right("share"),
    ])
    .remarks(" ");
    for (name, seconds, what) in parts(time) {
        let cells = [name.into(), format!("{seconds:.3}"), percent(time.share(seconds))];
        table.remarked(cells, what);
    }
    table.laid_out(width)
}

/// What the whole comes to.
pub(super) fn summary(advice: &Advice<'_>) -> String {
    let found = advice.found;
    let mut text = String::new();
    let what_if = &found.what_if;
    if let Some(slowdown) = what_if.slowdown {
        let _ = write!(text, "Rounds took {slowdown:.2} times as long as their median answers");
        let worst = what_if.worst_workers.as_ref().filter(|worst| worst.explain >= EXPLAINS_LEAST);
        if let Some(worst) = worst.filter(|_| slowdown >= SLOWDOWN_LEAST) {
            let first = worst.workers.iter().take(SHOWN_MOST);
            let mut workers: Vec<String> = first.map(|worker| advice.name(*worker)).collect();
            if worst.workers.len() > SHOWN_MOST {
                workers.push(format!("{} more", worst.workers.len() - SHOWN_MOST));
            }
            let plural = if workers.len() == 1 { "" } else { "s" };
            let explain = percent(worst.explain);
            let _ = write!(
                text,
                "; worker{plural} {} explain{} {explain} of that",
                workers.join(", "),
                if workers.len() == 1 { "s" } else { "" }
            );
        }
        text.push_str(".\n");
    }
    if let Some(estimated) = found.estimated.filter(|estimated| *estimated > ESTIMATED_MOST) {
        let _ = writeln!(
            text,
            "{} of the answers had not come by the close and were not reported: their times are \
             estimates, and slow workers may look better than they are.",
            percent(estimated)
        );
    }
    if let Some(reason) = &what_if.reason {
        let _ = writeln!(text, "What workers cost is not known: {}.", plain(&reason.to_string()));
    }
    text
}

/// The workers worth naming: those of findings, the dearest first, then the worst.
pub(super) fn named(found: &Examination, shown: usize) -> Vec<&ExaminedWorker> {
    let of_findings = found.findings.iter().flat_map(Finding::workers);
    let worst = found.what_if.worst_workers.iter().filter(|worst| worst.explain > 0.0);
    let worst = worst.flat_map(|worst| worst.workers.clone());
    let mut seen = BTreeSet::new();
    let named = of_findings.chain(worst).filter(|worker| seen.insert(*worker));
    named.filter_map(|worker| found.of_workers.get(worker)).take(shown).collect()
}

fn workers(named: &[&ExaminedWorker], advice: &Advice<'_>) -> Table {
    let columns = WORKER_COLUMNS.map(|(head, rank)| match head {
        "worker" | "why" => Column::left(head),
        _ => Column::right(head).spare(rank),
    });
    let mut table = Table::new(columns);
    named.iter().for_each(|worker| table.row(cells(worker, advice)));
    table
}

/// A worker's row, under [`WORKER_COLUMNS`].
pub(super) fn cells(worker: &ExaminedWorker, advice: &Advice<'_>) -> [String; 9] {
    let number = |number: Option<f64>| number.map_or("-".into(), |number| format!("{number:.3}"));
    let why = match worker.because {
        Some(SlowCause::Computing) => "computing",
        Some(SlowCause::Elsewhere) => "elsewhere",
        None => "",
    };
    [
        advice.name(worker.worker),
        number(worker.ratio),
        worker.late_rounds.map_or("-".into(), |rounds| rounds.to_string()),
        worker.closed_rounds.to_string(),
        worker.unanswered.to_string(),
        number(worker.computing),
        number(worker.elsewhere),
        worker.saves.map_or("-".into(), percent),
        why.into(),
    ]
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
