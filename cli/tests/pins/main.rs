//! Pins: what the program does today, so that a redesign shows what it changes.
//!
//! A file under `golden/` is what a list of commands gave; its lines that begin with `$` are the
//! commands, which `.ci/pin` runs too. `PINS=update cargo test -p codedgrad-cli --test pins`
//! accepts what the program does now.
//!
//! Numbers are rounded to seven digits (`shown.rs`). The lab's pins have these files too, and pins
//! of their own.

mod golden;
mod refused;
mod schemes;
mod shell;
mod shown;

use schemes::{examples, facts, with_file};

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

/// Every scheme's text.
fn texts() -> impl Iterator<Item = String> {
    examples().chain(MORE_TEXTS.into_iter().map(with_file))
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
    golden::check_help();
}
