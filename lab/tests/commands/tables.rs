//! Tables of the documents whose rows are what commands print: each row is made again from its
//! first cells. `PAGES=update` writes what has changed.
#![cfg(unix)]

use crate::program::{codedgrad, json, root, text};
use serde_json::Value;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// A row's cells, made from those of the heading and those that stand there.
type Row = fn(&[&str], &[&str]) -> Vec<String>;

/// What a command line prints with `--json`, also where it finds fault.
fn printed(line: &str) -> Value {
    let arguments: Vec<&str> = line.split_whitespace().chain(["--json"]).collect();
    let output = codedgrad(&root(), &arguments);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{line}: {}", text(&output.stderr)))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn percent(share: &Value) -> String {
    format!("{:.1} %", 100.0 * number(share))
}

/// The text of a cell in code.
fn code(cell: &str) -> &str {
    cell.split('`').nth(1).unwrap_or_else(|| panic!("{cell} has no command"))
}

/// Makes the rows below these headings of a page's tables again, each from the heading's cells and
/// its own.
fn page(name: &str, tables: &[(&str, Row)]) {
    let path = root().join("docs").join(name);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut places: Vec<(Row, &str, usize)> = Vec::new();
    for (heading, row) in tables {
        let before = places.len();
        for start in (0..lines.len()).filter(|at| lines[*at].starts_with(heading)) {
            let rows = (start + 2..lines.len()).take_while(|at| lines[*at].starts_with('|'));
            places.extend(rows.map(|at| (*row, lines[start], at)));
        }
        assert!(places.len() > before, "{name} has no table {heading}");
    }
    let made = |(row, head, at): &(Row, &str, usize)| {
        (*at, format!("| {} |", row(&cells(head), &cells(lines[*at])).join(" | ")))
    };
    // Two rows at a time: some take half a minute.
    let next = AtomicUsize::new(0);
    let some = || {
        let places = std::iter::from_fn(|| places.get(next.fetch_add(1, Relaxed)));
        places.map(made).collect::<Vec<_>>()
    };
    let rows = thread::scope(|scope| {
        let threads = [scope.spawn(some), scope.spawn(some)];
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    if std::env::var_os("PAGES").is_some() {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        rows.into_iter().for_each(|(at, row)| lines[at] = row);
        return fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
    for (at, row) in rows {
        assert_eq!(lines[at], row, "{name}: PAGES=update writes it");
    }
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// The first candidate of a plan, the fastest first, that is so.
fn candidate(plan: &Value, is: impl Fn(&Value) -> bool) -> &Value {
    plan["candidates"].as_array().unwrap().iter().find(|it| is(it)).unwrap()
}

fn choice(plan: &Value) -> &Value {
    candidate(plan, |it| it["scheme"] == plan["recommended"])
}

/// What a plan recommends and saves, as a table says it.
fn recommended(plan: &Value) -> [String; 2] {
    let scheme = plan["recommended"].as_str().unwrap();
    if scheme == "uncoded" {
        let best = candidate(plan, |it| it["exact"] == true && it["scheme"] != "uncoded");
        let best = format!("`{}`: {}", best["scheme"].as_str().unwrap(), percent(&best["gain"]));
        return ["**`uncoded`**".into(), best];
    }
    let mu = &choice(plan)["mu"];
    let mu = if mu.is_null() { String::new() } else { format!(" (mu {mu})") };
    let interval = &plan["interval"];
    let interval = match interval.is_null() {
        true => String::new(),
        false => format!(" ({} to {})", percent(&interval["low"]), percent(&interval["high"])),
    };
    [format!("`{scheme}`{mu}"), percent(&plan["gain"]) + &interval]
}

/// A whole plan: what it recommends, and at which work and delay.
fn planned(_: &[&str], own: &[&str]) -> Vec<String> {
    let plan = printed(&format!("plan --delays {}", code(own[0])));
    let [scheme, gain] = recommended(&plan);
    let choice = choice(&plan);
    let baseline = format!("{:.3} s", number(&plan["baseline"]));
    let work = format!("{:.2}", number(&choice["work"]));
    vec![own[0].into(), baseline, scheme, gain, work, choice["delay"].to_string()]
}

/// A plan, and one in which no work moves between workers.
fn planned_fixed(_: &[&str], own: &[&str]) -> Vec<String> {
    let line = format!("plan --delays {}", code(own[0]));
    let [scheme, gain] = recommended(&printed(&line));
    let fixed = printed(&format!("{line} --families groups,min-load,sr-sgc,m-sgc"));
    vec![own[0].into(), own[1].into(), scheme, gain, recommended(&fixed).join(" ")]
}

/// The share of a pool's work that is in the steps, for each `--work` of the heading.
fn pooled(head: &[&str], own: &[&str]) -> Vec<String> {
    let share = |work: &&str| {
        let options = "examples/traces/pool.csv --seconds 7200";
        percent(&printed(&format!("pool {} {} {options}", code(own[0]), code(work)))["goodput"])
    };
    [own[0].to_owned()].into_iter().chain(head[1..].iter().map(share)).collect()
}

#[test]
fn when_to_code() {
    page(
        "when-to-code.md",
        &[
            ("| command | uncoded | recommended |", planned),
            ("| command | what it is like |", planned_fixed),
            ("| command | `--work", pooled),
        ],
    );
}

/// A mean over seeds 1 to 3 of what `simulate` says of serverless workers.
fn serverless(line: &str, key: &str) -> f64 {
    let of_seed = |seed: u32| {
        let line = format!("simulate {line} --delays serverless --workers 256 --seed {seed}");
        number(&printed(&line)[key])
    };
    (1..=3).map(of_seed).sum::<f64>() / 3.0
}

fn rounded(work: f64) -> String {
    if work < 10.0 { format!("{work:.2}") } else { format!("{work:.0}") }
}

/// The authors' closing rule.
fn closed_by_deadline(_: &[&str], own: &[&str]) -> Vec<String> {
    let line = format!("{} --jobs 480 --close all", code(own[0]));
    let mean = |key| serverless(&line, key);
    let waits = format!("{:.0}", mean("wait_outs"));
    vec![own[0].into(), rounded(mean("work")), format!("{:.0} s", mean("total_time")), waits]
}

/// Seconds for each slope of the heading.
fn closed_early(head: &[&str], own: &[&str]) -> Vec<String> {
    let line = |slope: &str| format!("{} --jobs 80 --base-load 0 --slope {slope}", code(own[0]));
    let seconds = |slope: &&str| format!("{:.1}", serverless(&line(slope), "total_time"));
    let slopes = &head[2..];
    let work = rounded(serverless(&line(slopes[0]), "work"));
    [own[0].to_owned(), work].into_iter().chain(slopes.iter().map(seconds)).collect()
}

/// Seconds per job and work, for each scheme of the heading.
fn of_preset(head: &[&str], own: &[&str]) -> Vec<String> {
    let cell = |scheme: &&str| {
        let line = format!("simulate {} --delays {} --workers 8", code(scheme), code(own[0]));
        let found = printed(&format!("{line} --jobs 200 --seed 1"));
        format!("{:.2} ({:.2})", number(&found["time_per_job"]), number(&found["work"]))
    };
    [own[0].to_owned()].into_iter().chain(head[1..].iter().map(cell)).collect()
}

/// What is found of workers that return wrong results, and what training comes to.
fn attacked(_: &[&str], own: &[&str]) -> Vec<String> {
    const RUN: &str = "train --no-stragglers --clock virtual --layers 2 --heads 2 --width 32 \
                       --context 32 --micro-batches 24 --steps 100 --audit-every 5 \
                       --learning-rate 4e-3 --scheme";
    let workers = if own[0].contains("--workers") { "" } else { " --workers 12" };
    let home = tempfile::tempdir().unwrap();
    let line = format!("{RUN} {}{workers} --json", code(own[0]));
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let run = &json(&codedgrad(home.path(), &arguments))["runs"][0];
    let named =
        ["located", "missed", "accused"].map(|key| run[key].to_string().replace("null", "-"));
    let named = named.join(" / ");
    // Below that it is what rounding leaves, which differs from one machine to the next.
    let error = |key| match number(&run[key]) {
        error if error < 1e-6 => "< 1e-6".into(),
        error => format!("{error:.1e}"),
    };
    let [early, late] = ["early_gradient_error", "late_gradient_error"].map(error);
    let [loss, validation] =
        ["final_loss", "validation_loss"].map(|key| format!("{:.2}", number(&run[key])));
    vec![
        own[0].into(),
        named,
        early,
        late,
        loss,
        validation,
        format!("{:.0}", number(&run["work"])),
    ]
}

#[test]
fn results() {
    page(
        "lab/results.md",
        &[
            ("| scheme | work | total |", closed_by_deadline),
            ("| scheme, closing | work |", closed_early),
            ("| preset, 8 workers, 200 jobs, seed 1 |", of_preset),
        ],
    );
}

#[test]
#[ignore = "a minute or two, and how often honest workers are accused differs with the processor"]
fn byzantine_workers() {
    page("lab/results.md", &[("| scheme, attack |", attacked)]);
}

/// The worst growth of rounding errors, for each number of workers and stragglers of the heading.
fn amplified(head: &[&str], own: &[&str]) -> Vec<String> {
    let worst = |column: &&str| {
        let numbers: Vec<&str> = column.split(|it: char| !it.is_ascii_digit()).collect();
        let numbers: Vec<&str> = numbers.into_iter().filter(|it| !it.is_empty()).collect();
        let line =
            format!("code {}:s={} --workers {} --verify", code(own[0]), numbers[1], numbers[0]);
        let worst = number(&printed(&line)["verified"]["worst_amplification"]);
        if worst < 1000.0 { format!("{worst:.2}") } else { format!("{worst:.0e}") }
    };
    [own[0].to_owned()].into_iter().chain(head[1..].iter().map(worst)).collect()
}

#[test]
fn schemes() {
    page("schemes.md", &[("| code | n = 16", amplified)]);
}
