//! `codedgrad code`: one code, looked at closely.

mod over_rounds;

use anyhow::anyhow;
use clap::Args;
use codedgrad::codes::{
    Choice, Defect, Facts, FailedSet, Gate, GradientCode, JudgedDecode, ParameterError, Report,
    SchemeSpec, Verification, decode_judged, verify,
};
use codedgrad::ids::{Share, Worker, WorkerSet};
use codedgrad::run::NumberFormat;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::layout::help;
use codedgrad_shell::output::Output;
use codedgrad_shell::units::{count, parse_workers, several};
use serde::Serialize;
use std::fmt::Write as _;

/// Rows and columns drawn; a larger matrix is cut.
const DRAWN_MAX: usize = 48;
/// Rounding of a sum of shares' weights.
const COVERAGE_ROUNDING: f64 = 1e-9;
/// Cells of the largest matrix that is printed.
const CELLS_MAX: usize = 1 << 25;
/// Failures listed in words.
const FAILURES_SHOWN: usize = 10;

#[derive(Debug, Args)]
#[command(after_help = help(&format!("\
Examples:
  codedgrad code groups:s=1 --workers 8
  codedgrad code groups:l=3 --workers 7 --survivors 0,3-6
  codedgrad code min-load:s=2 --workers 8 --verify
  codedgrad code graph:d=3,err=0.01 --workers 240 --verify
  codedgrad code matrix:examples/codes/mine.csv --workers 6 --verify --json

What is in a FILE:
  of matrix, a line of coefficients per worker, separated by commas
  of interval:cuts, a line l,r per worker, cut points counted from 0
  of interval:speeds, the workers' speeds, separated by commas or lines

What the codes do:
{codes}
And the schemes that are no matrix, of which this shows load, delay and guarantee:
{others}",
    codes = families::summaries(|family| family.traits.one_round()),
    others = families::summaries(|family| !family.traits.one_round())
)))]
pub(crate) struct CodeArgs {
    #[arg(help = format!("The code: {}", families::forms(|family| family.traits.one_round())))]
    scheme: String,
    /// Number of workers
    #[arg(long, value_parser = count::<u32>(1..=65536))]
    workers: u32,
    /// Workers whose messages arrived, such as 0,2,5-11; all of them if not given
    #[arg(long, value_name = "LIST")]
    survivors: Option<String>,
    /// Try every set of tolerated stragglers (where there are over a million: all holders of a
    /// share, of two shares, bursts and random ones)
    #[arg(long)]
    verify: bool,
    /// Print one JSON object instead of a picture and words
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct ShownCode<'a> {
    scheme: &'a str,
    workers: usize,
    shares: usize,
    share_weights: &'a [f64],
    stragglers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<&'static str>,
    load: f64,
    matrix: Vec<Vec<f64>>,
    survivors: Vec<Worker>,
    #[serde(flatten)]
    decode: ShownDecode<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<ShownVerified>,
}

/// What became of the survivors' results.
#[derive(Debug, Serialize)]
struct ShownDecode<'a> {
    decodable: bool,
    weights: &'a [f64],
    residual: f64,
    amplification: f64,
    coverage: f64,
    error: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    defect: Option<String>,
}

/// What `--verify` found.
#[derive(Debug, Serialize)]
struct ShownVerified {
    sets: u64,
    exhaustive: bool,
    worst_residual: f64,
    worst_amplification: f64,
    worst_error: f64,
    mean_error: f64,
    failed: u64,
    failures: Vec<ShownFailure>,
}

#[derive(Debug, Serialize)]
struct ShownFailure {
    stragglers: Vec<Worker>,
    residual: f64,
    amplification: f64,
    error: f64,
    reason: String,
}

/// Seed of the sets that are sampled.
const VERIFY_SEED: u64 = 7;

pub(crate) fn run(args: &CodeArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let workers = args.workers as usize;
    let spec = families::scheme(&args.scheme).or_input()?;
    let code = spec.code(workers);
    // Without a matrix there is nothing to decode, but still something to say.
    if let (Err(ParameterError::NotOneRound { .. }), None, false) =
        (&code, &args.survivors, args.verify)
    {
        return over_rounds::run(&spec, workers, args.json, output);
    }
    let code = code.or_input()?;
    let survivors = match &args.survivors {
        None => WorkerSet::full(workers),
        Some(list) => parse_workers(list, workers)
            .map_err(|problem| Failure::Input(anyhow!("--survivors {list}: {problem}")))?,
    };
    let judged = decode_judged(&*code, &survivors, Choice::MinimumNorm);
    let JudgedDecode { weights, report, defect } = &judged;
    let verified = args.verify.then(|| verified(&args.scheme, &*code, output));
    if let Some(warning) = spec.warning(workers) {
        output.note(format_args!("warning: {warning}"));
    }
    if args.json {
        let facts = code.facts();
        if workers.saturating_mul(facts.shares()) > CELLS_MAX {
            return Err(Failure::Input(anyhow!(
                "a matrix of {workers} x {} is too large to print; leave out --json, or take fewer \
                 workers",
                facts.shares()
            )));
        }
        let shown = ShownCode {
            scheme: &args.scheme,
            workers,
            shares: facts.shares(),
            share_weights: &facts.share_weights,
            stragglers: facts.tolerance,
            proof: code.proof(),
            load: facts.load,
            matrix: Worker::all(workers).map(|worker| dense_row(&*code, worker)).collect(),
            survivors: survivors.iter().collect(),
            decode: ShownDecode {
                decodable: report.decodable,
                weights,
                residual: report.residual,
                amplification: report.amplification,
                coverage: report.coverage,
                error: report.error,
                defect: defect.map(|defect| defect.to_string()),
            },
            verified: verified.as_ref().map(ShownVerified::from),
        };
        writeln!(output.out, "{}", serde_json::to_string(&shown).or_work()?).or_work()?;
        return holds(&args.scheme, verified.as_ref(), *defect, output);
    }
    let mut text = picture(&*code, &survivors, weights);
    let mut sentences = words(&spec, &*code, verified.as_ref());
    sentences += &outcome(code.facts(), &survivors, report);
    if let Some(verified) = &verified {
        sentences += &verdict(code.facts(), verified);
    }
    text += &output.width().prose(&sentences);
    output.out.write_all(text.as_bytes()).or_work()?;
    holds(&args.scheme, verified.as_ref(), *defect, output)
}

/// A claim that is not true, or a decoder that is wrong, is a failure, for programs that ask.
fn holds(
    scheme: &str,
    found: Option<&Verification>,
    defect: Option<Defect>,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    if let Some(found) = found.filter(|found| found.failed > 0) {
        output.note(format_args!(
            "error: {scheme} does not tolerate what it claims: {} of {} sets of stragglers do not \
             decode",
            found.failed, found.sets
        ));
        return Err(Failure::Said(1));
    }
    if let Some(defect) = defect {
        output.note(format_args!("error: {scheme} has a defect: {defect}"));
        return Err(Failure::Said(1));
    }
    Ok(())
}

fn gate(code: &dyn GradientCode) -> Gate {
    Gate::new(NumberFormat::F32, code.facts())
}

fn verified(scheme: &str, code: &dyn GradientCode, output: &Output<'_>) -> Verification {
    let bar = output.progress_bar(0, scheme);
    let verified = verify(code, &gate(code), VERIFY_SEED, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    verified
}

impl From<&Verification> for ShownVerified {
    fn from(found: &Verification) -> Self {
        let shown = |failure: &FailedSet| ShownFailure {
            stragglers: failure.stragglers.iter().collect(),
            residual: failure.report.residual,
            amplification: failure.report.amplification,
            error: failure.report.error,
            reason: reason(failure),
        };
        Self {
            sets: found.sets,
            exhaustive: found.exhaustive,
            worst_residual: found.worst_residual,
            worst_amplification: found.worst_amplification,
            worst_error: found.worst_error,
            mean_error: found.mean_error,
            failed: found.failed,
            failures: found.failures.iter().map(shown).collect(),
        }
    }
}

fn reason(failure: &FailedSet) -> String {
    failure
        .refusal
        .map_or("the code's own rule is not satisfied".into(), |refusal| refusal.to_string())
}

/// What trying the straggler sets has shown, in words.
fn verdict(facts: &Facts, found: &Verification) -> String {
    let sets = match (found.exhaustive, facts.tolerance) {
        (true, 0) => "the one set without stragglers".into(),
        (true, 1) => format!("all {} sets of at most 1 straggler", found.sets),
        (true, s) => format!("all {} sets of at most {s} stragglers", found.sets),
        (false, s) => {
            format!(
                "{} sets of at most {s} stragglers (all holders of a share or of two, bursts of \
                 neighbours and random ones; there are too many for all)",
                found.sets
            )
        }
    };
    let mut text = format!(
        "Tried {sets}: worst residual {:.1e}, worst amplification {:.3}, normalised error {:.1e} \
         on average and {:.1e} at worst. ",
        found.worst_residual, found.worst_amplification, found.mean_error, found.worst_error
    );
    if found.failed == 0 {
        text.push_str("Every one of them decodes within its gate.\n");
        return text;
    }
    let _ = writeln!(text, "{} FAILED:", found.failed);
    for failure in found.failures.iter().take(FAILURES_SHOWN) {
        let _ = writeln!(text, "  without {}: {}", failure.stragglers, reason(failure));
    }
    if found.failed as usize > FAILURES_SHOWN {
        let _ = writeln!(text, "  ... and {} more", found.failed as usize - FAILURES_SHOWN);
    }
    text
}

fn dense_row(code: &dyn GradientCode, worker: Worker) -> Vec<f64> {
    let mut row = vec![0.0; code.facts().shares()];
    for &(Share(share), coefficient) in code.row(worker) {
        row[share as usize] = coefficient;
    }
    row
}

/// The matrix, one row per worker, with the decode weights beside it.
fn picture(code: &dyn GradientCode, survivors: &WorkerSet, weights: &[f64]) -> String {
    let (workers, shares) = (code.facts().workers, code.facts().shares());
    let columns = shares.min(DRAWN_MAX);
    let mut text = format!("{:>12} {:<columns$}   decode weight\n", "", "shares");
    for worker in Worker::all(workers.min(DRAWN_MAX)) {
        let cell = |coefficient: &f64| match *coefficient {
            0.0 => '·',
            ..0.0 => '-',
            x if x >= 0.75 => '█',
            x if x >= 0.5 => '▓',
            x if x >= 0.25 => '▒',
            _ => '░',
        };
        let row: String = dense_row(code, worker).iter().take(columns).map(cell).collect();
        let weight = match (survivors.contains(worker), weights[worker.index()]) {
            (false, _) => "straggler".into(),
            (true, 0.0) => "0".into(),
            // A rounding error of 0 is no negative weight.
            (true, weight) => format!("{weight:.4}").replace("-0.0000", "0.0000"),
        };
        let _ = writeln!(text, "{:>12} {row}   {weight}", worker.to_string());
    }
    if workers > DRAWN_MAX || shares > DRAWN_MAX {
        let _ = writeln!(
            text,
            "{:>12} (the first {DRAWN_MAX} of {workers} workers and {shares} shares)",
            ""
        );
    }
    text
}

/// What the code is. A tolerance that nothing proves and that was not tried on all sets, or was
/// found wanting, is a claim.
fn words(scheme: &SchemeSpec, code: &dyn GradientCode, verified: Option<&Verification>) -> String {
    let facts = code.facts();
    let Facts { workers, tolerance, load, .. } = facts;
    let mut text = format!(
        "\n{scheme}: {}, {}. ",
        several(*workers, "worker"),
        several(facts.shares(), "share")
    );
    let any = match tolerance {
        0 => "no straggler".to_owned(),
        1 => "any 1 straggler".to_owned(),
        s => format!("any {s} stragglers"),
    };
    let tolerates = match (verified, code.proof()) {
        (Some(found), _) if found.failed > 0 => format!("it claims to tolerate {any}"),
        (Some(Verification { exhaustive: true, .. }), _) | (None, Some(_)) => {
            format!("{any} tolerated")
        }
        (Some(_), Some(proof)) => format!("{any} tolerated, by construction ({proof})"),
        (Some(_), None) => format!("it claims to tolerate {any}, and no failure was found"),
        (None, None) => format!("it claims to tolerate {any}"),
    };
    let _ = writeln!(
        text,
        "Each worker touches {load:.4} of a batch, {:.2} times the uncoded load; {tolerates}.",
        load * *workers as f64
    );
    if facts.error_max > 0.0 {
        let _ = writeln!(
            text,
            "Decodes with a normalised error of at most {:.3} are accepted.",
            facts.error_max
        );
    }
    text
}

/// What became of the survivors' results.
fn outcome(facts: &Facts, survivors: &WorkerSet, report: &Report) -> String {
    let mut text = String::new();
    let missing = survivors.complement();
    if missing.is_empty() {
        text.push_str("All workers have answered: ");
    } else {
        let _ =
            write!(text, "Without {} of {} (workers {missing}): ", missing.len(), facts.workers);
    }
    let exact = Gate::new(NumberFormat::F32, &Facts { error_max: 0.0, ..facts.clone() })
        .check(report)
        .is_ok();
    let _ = match (report.decodable, exact) {
        (true, true) => write!(text, "the exact gradient can be decoded. "),
        (true, false) if report.coverage < 1.0 - COVERAGE_ROUNDING => {
            write!(
                text,
                "accepted, but {:.1} % of the batch is missing: the gradient is biased. ",
                100.0 * (1.0 - report.coverage)
            )
        }
        (true, false) if facts.error_max > 0.0 => {
            write!(
                text,
                "accepted, since its normalised error is at most {:.2e}. ",
                facts.error_max
            )
        }
        (true, false) => write!(
            text,
            "decodable by rule, but beyond the gate of f32 messages: it would be refused. "
        ),
        (false, _) => write!(text, "NOT decodable; of the closest that can be made: "),
    };
    let _ = writeln!(
        text,
        "Residual {:.1e}, normalised error {:.2e}, amplification {:.3} (1 = as uncoded), coverage \
         {:.3}.",
        report.residual, report.error, report.amplification, report.coverage
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_workers() {
        assert_eq!(parse_workers("0,2,5-7", 8).unwrap().to_string(), "0,2,5-7");
        assert!(parse_workers("", 8).unwrap().is_empty());
        for (list, problem) in [
            ("8", "no worker 8"),
            ("1,1", "named twice"),
            ("0-3,2", "worker 2 is named twice"),
            ("5-2", "backwards"),
            ("x", "not a worker"),
        ] {
            assert!(parse_workers(list, 8).unwrap_err().contains(problem), "{list}");
        }
    }

    #[test]
    fn pictures_are_as_they_were() {
        let show = |scheme: &str, workers: usize, list: &str| {
            let scheme = families::scheme(scheme).unwrap();
            let code = scheme.code(workers).unwrap();
            let survivors = parse_workers(list, workers).unwrap();
            let JudgedDecode { weights, report, .. } =
                decode_judged(&*code, &survivors, Choice::MinimumNorm);
            picture(&*code, &survivors, &weights)
                + &words(&scheme, &*code, None)
                + &outcome(code.facts(), &survivors, &report)
        };
        insta::assert_snapshot!("groups", show("groups:s=1", 7, "0,2-6"));
        insta::assert_snapshot!("groups_lost", show("groups:l=3,rescale", 7, "0-4"));
        insta::assert_snapshot!("drop", show("drop:b=2", 6, "0-3"));
        insta::assert_snapshot!("min_load", show("min-load:s=2", 8, "1-4,6,7"));
        insta::assert_snapshot!("cyclic", show("cyclic:s=7,seed=3", 16, "0-8"));
        insta::assert_snapshot!("graph", show("graph:d=3,err=0.1", 12, "0-7,9-11"));
    }
}
