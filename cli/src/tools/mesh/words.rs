//! The answer in words and tables.

use super::Answer;
use super::figures::{Folding, Redundancy};
use super::python::Script;
use codedgrad::mesh::Layout;
use codedgrad_shell::layout::{Column, Table, Width};
use codedgrad_shell::units::several;
use std::fmt::Write as _;

/// A rank that is later than so many step times is not slow: it has stalled, or died.
const SLOW_MOST: f64 = 10.0;
/// With so few workers every scheme that tolerates a straggler computes the batch in each of them.
const FEW: usize = 3;

/// A share with three digits.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        0.0 => "0 %".into(),
        ..0.001 => "< 0.001 %".into(),
        ..1.0 => format!("{percent:.3} %"),
        ..10.0 => format!("{percent:.2} %"),
        _ => format!("{percent:.1} %"),
    }
}

/// Step times with three digits.
fn times(break_even: Option<f64>) -> String {
    match break_even {
        None => "never".into(),
        Some(times) if times >= 100.0 => format!("{times:.0}"),
        Some(times) if times >= 10.0 => format!("{times:.1}"),
        Some(times) => format!("{times:.2}"),
    }
}

fn named(etp: u32, ep: u32) -> String {
    format!("etp {etp}, ep {ep}")
}

/// Whether coding pays, and which folding leaves most to code over.
pub(super) fn advice(answer: &Answer) -> String {
    let workers = answer.workers;
    let mut text = String::new();
    let by_time = |a: &&Redundancy, b: &&Redundancy| {
        let [a, b] = [a, b].map(|found| found.break_even.unwrap_or(f64::INFINITY));
        a.total_cmp(&b)
    };
    let best = answer.redundancy.iter().min_by(by_time);
    if (2..=FEW).contains(&workers) {
        let _ = write!(
            text,
            "With {workers} workers, coding would compute the whole batch in every cell: {workers} \
             times the work. "
        );
    }
    let _ = match best.map(|best| (best, best.break_even)) {
        None => write!(text, "There is nothing to code: every rank waits for every other."),
        Some((_, None)) => {
            write!(text, "Coding saves nothing: steps would be late as often as without it.")
        }
        Some((best, Some(even))) if even <= SLOW_MOST => write!(
            text,
            "Coding pays if a late rank delays a step by more than {} uncoded step times: {}, at \
             {:.2} times the work.",
            times(Some(even)),
            best.scheme,
            best.work
        ),
        Some((best, even)) => write!(
            text,
            "Coding does not pay against slow ranks, only against ranks that stall or die: {} is \
             faster from {} uncoded step times of lateness on.",
            best.scheme,
            times(even)
        ),
    };
    let _ = match answer.foldings.first() {
        Some(best) if best.workers > workers => write!(
            text,
            " The folding {} keeps most workers: {}.",
            named(best.etp, best.ep),
            best.workers
        ),
        _ if workers == 1 => write!(text, " No other folding of these ranks leaves two workers."),
        _ => write!(text, " No other folding of these ranks leaves more workers."),
    };
    text
}

/// What is said of a layout on a terminal.
pub(super) fn all(answer: &Answer, width: Width) -> String {
    let mut text = width.prose(&begin(answer));
    if !answer.redundancy.is_empty() {
        text += &format!("\n{}", redundancies(&answer.redundancy).laid_out(width));
    }
    text += &format!("\n{}", width.prose(&format!("{}\n", answer.advice)));
    text += &format!("\n{}", classes(answer).laid_out(width));
    text += &format!("\n{}", foldings(answer).laid_out(width));
    text += &format!("\n{}", width.prose(&rule(answer)));
    if answer.workers > 1 {
        text += &format!("\n{}", script(&answer.python, width));
    }
    // A command is not broken into lines: it could not be copied.
    if let Some(plan) = &answer.plan {
        let _ = writeln!(text, "To go on: {plan}");
    }
    text
}

/// How many workers are left, and how often one is late.
fn begin(answer: &Answer) -> String {
    let Answer { layout, cell_size, workers, late, .. } = answer;
    let mut text = match workers {
        1 => format!("{} in one cell: 1 worker is left.", several(layout.world, "rank")),
        _ => format!(
            "{} in {workers} cells of {cell_size}: {workers} workers are left to code over.",
            several(layout.world, "rank")
        ),
    };
    if *cell_size > 1 {
        text += " The ranks of a cell wait for each other in every forward and backward, so that \
                 they are late together.";
    }
    let rank = percent(late.rank).replace(" %", "");
    let rank = if rank.contains('.') { rank.trim_end_matches('0') } else { &rank };
    let _ =
        write!(text, "\nIf each rank is late in {} % of the steps, ", rank.trim_end_matches('.'));
    if *workers > 1 {
        let _ = write!(text, "a worker is in {} of them, and ", percent(late.cell));
    }
    let _ = writeln!(text, "{} of all steps are late without redundancy.", percent(late.any));
    text
}

fn redundancies(found: &[Redundancy]) -> Table {
    let mut table = Table::new([
        Column::left("redundancy"),
        Column::right("work"),
        Column::right("late\nsteps"),
        Column::right("faster if a late rank costs\nmore than (in step times)"),
    ]);
    for Redundancy { scheme, work, late, break_even } in found {
        table.row([scheme.clone(), format!("{work:.2}"), percent(*late), times(*break_even)]);
    }
    table
}

fn classes(answer: &Answer) -> Table {
    let mut table = Table::new([
        Column::left("gradients"),
        Column::right("groups"),
        Column::right("ranks in\na group"),
        Column::right("of them\nin a cell"),
    ])
    .remarks("and in a cell then");
    for class in &answer.classes {
        let cells = [
            class.class.to_owned(),
            class.groups.to_string(),
            class.group_size.to_string(),
            class.in_cell.to_string(),
        ];
        let then = match class.class {
            "replicated" => format!("over the {} ranks of a tensor group", answer.layout.tp),
            "tied" => "over the first and the last stage".into(),
            _ => String::new(),
        };
        table.remarked(cells, then);
    }
    table
}

fn foldings(answer: &Answer) -> Table {
    let mut table = Table::new([
        Column::left("folding"),
        Column::right("workers"),
        Column::right("ranks in\na cell"),
        Column::right("worker\nlate").spare(2),
        Column::right("exchange\noff node").spare(1),
        Column::right("groups:s=1\nfaster from"),
    ]);
    for folding in &answer.foldings {
        let Folding { etp, ep, cell_size, workers, cell_late, exchange_off_node, break_even } =
            *folding;
        let is_this = answer.layout.etp == Some(etp) && answer.layout.ep == ep;
        let cells = [
            named(etp, ep),
            workers.to_string(),
            cell_size.to_string(),
            percent(cell_late),
            percent(exchange_off_node),
            times(break_even),
        ];
        table.remarked(cells, if is_this { "this layout" } else { "" });
    }
    table
}

/// What a script for PyTorch is told of a worker's ranks.
fn script(script: &Script, width: Width) -> String {
    match script {
        Script::Refused { refused } => {
            width.prose(&format!("codedgrad.torch does not take this layout: {refused}.\n"))
        }
        Script::Taken(mesh) => {
            let mut text = width.prose("In a script for PyTorch, and how it is started:\n");
            for line in mesh.lines() {
                let _ = writeln!(text, "  {line}");
            }
            text
        }
    }
}

/// Why there are as many workers as there are.
fn rule(answer: &Answer) -> String {
    let Answer { layout, dp, edp, workers, .. } = answer;
    let Layout { tp, cp, pp, ep, .. } = *layout;
    let (dense, expert) = (tp * cp, layout.etp.unwrap_or(tp) * ep);
    let why = match (dense.is_multiple_of(expert), expert.is_multiple_of(dense)) {
        (true, _) => format!("dp = {dp}, since etp x ep = {expert} divides tp x cp = {dense}."),
        (_, true) => format!("edp = {edp}, since tp x cp = {dense} divides etp x ep = {expert}."),
        _ => format!(
            "{} / ({pp} x {}) = {workers}, world by pp x lcm, fewer than dp = {dp} and edp = \
             {edp}, since neither of tp x cp = {dense} and etp x ep = {expert} divides the other.",
            layout.world,
            answer.cell_size / pp as usize
        ),
    };
    format!("Workers: {why}\n")
}
