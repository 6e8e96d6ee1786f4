//! Pins: what the lab's program does today, so that a redesign shows what it changes.
//!
//! A file under `golden/` is what a list of commands gave; its lines that begin with `$` are the
//! commands, which `.ci/pin` runs too. `PINS=update cargo test -p codedgrad-lab --test pins`
//! accepts what the program does now.
//!
//! Numbers are rounded to seven digits, and what follows from the model's own arithmetic is left
//! out (`shown.rs` says which fields): both may differ from one processor to another.

#[path = "../../../cli/tests/pins/golden.rs"]
mod golden;
mod refused;
#[path = "../../../cli/tests/pins/schemes.rs"]
mod schemes;
#[path = "../../../cli/tests/pins/shell.rs"]
mod shell;
#[path = "../../../cli/tests/pins/shown.rs"]
mod shown;

use schemes::{examples, facts};

/// Units of a batch: the least multiple of what the scheme cuts it into that is not below.
const UNITS: u32 = 16;
/// Steps of a record, over all its models.
const STEPS: usize = 12;
/// Batches of a step that has several.
const MICRO_STEPS: usize = 4;

/// The smallest model, on a clock on which no worker waits.
const SMALL: &str = "--clock virtual --layers 1 --heads 1 --width 8 --context 8 \
    --audit-every 1000 --out run --json";

/// Workers die whose answers would have been the first of their rounds. Of a later one it is not
/// settled, even on a virtual clock, whether its round closes before its death is known.
const DEATHS: &str = "--delays deaths.csv --fault panic@2:0 --fault panic@5:5";

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
    let one_more = format!("{DEATHS} --fault panic@9:6");
    let fewer = |command: String| command.replacen("--workers ", "--workers 4..", 1);
    golden::check(
        "min_workers",
        examples().map(|text| fewer(train(&text, Turns::AsNeeded, &one_more))),
    );
}

#[test]
fn auto() {
    let auto = |delays: &str, more: &str| {
        let run = "train --scheme auto:probe=6,every=12";
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
fn refused_texts() {
    golden::check("refused", refused::commands());
}

#[test]
fn help() {
    golden::check_help();
}
