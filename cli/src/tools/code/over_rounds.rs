//! What there is to say of a scheme that is no matrix: its load, its delay, and what it tolerates.

use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::SchemeFacts;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::output::Output;
use codedgrad_shell::units::several;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Serialize)]
struct ShownScheme<'a> {
    scheme: &'a str,
    workers: usize,
    units: u32,
    load: f64,
    delay: usize,
    stragglers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    guarantee: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    least_load: Option<f64>,
}

pub(super) fn run(
    spec: &SchemeSpec,
    workers: usize,
    as_json: bool,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let facts = spec.natural(workers).or_input()?;
    let guarantee = spec.guarantee(workers);
    if let Some(warning) = spec.warning(workers) {
        output.note(format_args!("warning: {warning}"));
    }
    if as_json {
        let shown = ShownScheme {
            scheme: spec.text(),
            workers,
            units: facts.units,
            load: facts.load,
            delay: facts.delay,
            stragglers: facts.tolerance,
            guarantee: guarantee.as_ref().map(|guarantee| guarantee.words.as_str()),
            least_load: guarantee.as_ref().map(|guarantee| guarantee.least_load),
        };
        return writeln!(output.out, "{}", serde_json::to_string(&shown).or_work()?).or_work();
    }
    let mut text = words(spec, &facts);
    if let Some(guarantee) = guarantee {
        let _ = writeln!(
            text,
            "It tolerates {}; no scheme that does has a load below {:.4}.",
            guarantee.words, guarantee.least_load
        );
    }
    text += "It is no matrix: `codedgrad simulate` shows what it does round by round.\n";
    write!(output.out, "{}", output.width().prose(&text)).or_work()
}

fn words(spec: &SchemeSpec, facts: &SchemeFacts) -> String {
    let SchemeFacts { workers, units, load, delay, tolerance, partial, .. } = facts;
    let complete = match delay {
        0 => "in its own round".into(),
        1 => "at the latest 1 round after its own".into(),
        rounds => format!("at the latest {rounds} rounds after its own"),
    };
    format!(
        "{spec}: {}, batches of {units} units or a multiple. {} {load:.4} of a batch, {:.2} times \
         the uncoded load; a job is complete {complete}. Of one round {} may be missing.\n",
        several(*workers, "worker"),
        match partial {
            true => "A worker takes tasks until the round is over, each of",
            false => "In a round a worker computes at most",
        },
        load * *workers as f64,
        match tolerance {
            0 => "no worker".into(),
            s => format!("any {}", several(*s, "worker")),
        }
    )
}
