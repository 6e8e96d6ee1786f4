//! Pins: what the program does today, so that a redesign shows what it changes.
//!
//! A file under `golden/` is what a list of commands gave; its lines that begin with `$` are the
//! commands, which `.ci/pin` runs too. `PINS=update cargo test --test pins` accepts what the
//! program does now.
//!
//! Numbers are rounded to seven digits, and what follows from the model's own arithmetic is left
//! out (`shown.rs` says which fields): both may differ from one processor to another.
#![cfg(feature = "trainer")]

mod golden;
mod refused;
mod shell;
mod shown;

use codedgrad::codes::SchemeSpec;
use codedgrad::codes::registry::Registry;
use codedgrad::codes::sequential::{Accept, Horizon, SchemeFacts};
use codedgrad::ids::Job;
use shell::{Shell, files};

/// Workers of a scheme: the first of these numbers that it takes.
const WORKERS: [usize; 3] = [8, 12, 16];
/// Units of a batch: the least multiple of what the scheme cuts it into that is not below.
const UNITS: u32 = 16;
/// Steps of a record, over all its models.
const STEPS: usize = 12;
/// Batches of a step that has several.
const MICRO_STEPS: usize = 4;

/// The smallest model, on a clock on which nobody waits.
const SMALL: &str = "--clock virtual --layers 1 --heads 1 --width 8 --context 8 \
    --audit-every 1000 --out run --json";

/// Workers die whose answers would have been the first of their rounds. Of a later one it is not
/// settled, even on a virtual clock, whether its round closes before its death is known.
const DEATHS: &str = "--delays deaths.csv --fault panic@2:0 --fault panic@5:5";

/// Parameters that the examples leave out or have otherwise.
const MORE_TEXTS: [&str; 15] = [
    "groups:s=3",
    "groups:l=3",
    "interval:speeds=FILE,l=2,units=8",
    "cyclic:s=1",
    "graph:d=2,err=0.2",
    "drop:b=3",
    "matrix:FILE,s=1",
    "matrix:FILE,err=0.2",
    "defer:cap=2,cut=2",
    "sr-sgc:B=2,W=3,lambda=3",
    "sr-sgc:B=1,W=2,rep,s=3",
    "m-sgc:B=2,W=3,lambda=2,cyclic",
    "m-sgc:B=1,W=2,lambda=3,rep",
    "vote:s=0,b=1",
    "bacc:K=2,s=1",
];

/// The text with the name of a file in the place of `FILE`: `cuts=FILE` is `cuts=cuts.csv`.
fn with_file(text: &str) -> String {
    let Some((before, after)) = text.split_once("FILE") else { return text.into() };
    let name = before.trim_end_matches(['=', ':']).rsplit([':', ',']).next().unwrap_or_default();
    format!("{before}{name}.csv{after}")
}

fn examples() -> impl Iterator<Item = String> {
    Registry::builtin().examples().map(with_file)
}

/// Every scheme's text.
fn texts() -> impl Iterator<Item = String> {
    examples().chain(MORE_TEXTS.into_iter().map(with_file))
}

/// The facts of a scheme for the first number of workers that it takes.
fn facts(text: &str) -> SchemeFacts {
    let spec: SchemeSpec = in_files(text).parse().unwrap();
    let horizon =
        |workers| Horizon { workers, units: None, jobs: Job(0)..Job(0), accept: Accept::Lookahead };
    let scheme = WORKERS.into_iter().find_map(|workers| spec.over(horizon(workers)).ok());
    scheme.unwrap_or_else(|| panic!("{text} takes none of {WORKERS:?} workers")).facts().clone()
}

/// The text with the path of its file, if it has one.
fn in_files(text: &str) -> String {
    let Some(end) = text.find(".csv") else { return text.into() };
    let start = text[..end].rfind(['=', ':']).map_or(0, |mark| mark + 1);
    format!("{}{}/{}", &text[..start], files().display(), &text[start..])
}

/// How many models are trained, and of how many batches a step is.
#[derive(Clone, Copy)]
enum Turns {
    /// As many models as the scheme needs.
    AsNeeded,
    /// One model more.
    OneMore,
    MicroSteps,
}

/// The command that trains with a scheme under some condition.
fn train(text: &str, turns: Turns, condition: &str) -> String {
    let facts = facts(text);
    let (models, micro_steps) = match turns {
        Turns::AsNeeded => (facts.delay + 1, 1),
        Turns::OneMore => (facts.delay + 2, 1),
        Turns::MicroSteps => (1, MICRO_STEPS),
    };
    let units = UNITS.next_multiple_of(facts.units);
    let steps = STEPS.div_ceil(models * micro_steps);
    let mut command = format!(
        "train --scheme {text} --workers {} --micro-batches {units} --steps {steps}",
        facts.workers
    );
    for (flag, count) in [("models", models), ("accumulate", micro_steps)] {
        if count > 1 {
            command += &format!(" --{flag} {count}");
        }
    }
    format!("{command} {condition} {SMALL}")
}

/// The records of every scheme under some condition.
fn records(name: &str, turns: Turns, condition: &str) {
    golden::check(name, examples().map(|text| train(&text, turns, condition)));
}

#[test]
fn no_delay() {
    records("no_delay", Turns::AsNeeded, "--no-stragglers");
}

#[test]
fn bursts() {
    records("bursts", Turns::AsNeeded, "--delays bursts --seed 3");
}

#[test]
fn deaths() {
    records("deaths", Turns::AsNeeded, DEATHS);
}

#[test]
fn nan() {
    records("nan", Turns::AsNeeded, "--delays late.csv --fault nan@3:2 --fault nan@7:5");
}

#[test]
fn models() {
    records("models", Turns::OneMore, "--delays late.csv");
}

#[test]
fn micro_steps() {
    records("micro_steps", Turns::MicroSteps, "--delays late.csv");
}

#[test]
fn min_workers() {
    let one_more = format!("{DEATHS} --fault panic@9:6 --min-workers 4");
    records("min_workers", Turns::AsNeeded, &one_more);
}

#[test]
fn auto() {
    let auto = |delays: &str, more: &str| {
        let run = "train --scheme auto --replan-every 12 --probe 6";
        format!("{run} --delays {delays} {more} {SMALL}")
    };
    golden::check(
        "auto",
        [
            auto("late.csv", "--steps 24"),
            auto("hotspot", "--steps 18"),
            auto("hotspot", "--steps 9 --accumulate 2"),
        ],
    );
}

#[test]
fn simulate() {
    let simulated = |text: String| {
        let workers = facts(&text).workers;
        let start = format!("simulate {text} --workers {workers} --json --jobs 16 --delays");
        [
            format!("{start} bursts --seed 3"),
            format!("{start} times.csv --base-load 0.125 --slope 4 --mu 0.5 --accept model"),
        ]
    };
    golden::check("simulate", texts().flat_map(simulated));
}

#[test]
fn code() {
    let shown = |text: String| {
        let start = format!("code {text} --workers {} --json", facts(&text).workers);
        [format!("{start} --verify"), format!("{start} --survivors 1-7")]
    };
    golden::check("code", texts().flat_map(shown));
}

#[test]
fn plan() {
    let presets = ["hotspot", "bursts", "static", "stalls", "serverless --workers 32"];
    golden::check(
        "plan",
        presets.map(|preset| format!("plan --rounds 40 --json --delays {preset}")),
    );
}

#[test]
fn refused_texts() {
    golden::check("refused", refused::commands());
}

#[test]
fn help() {
    let shell = Shell::new();
    let mut commands = Vec::new();
    let mut open = vec![String::new()];
    while let Some(command) = open.pop() {
        let found = shell.run(&format!("{command}--help"));
        open.extend(shown::subcommands(&found).map(|name| format!("{command}{name} ")));
        commands.extend([format!("{command}-h"), format!("{command}--help")]);
    }
    commands.sort();
    golden::check("help", commands);
}
