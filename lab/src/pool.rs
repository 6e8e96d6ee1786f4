//! `codedgrad-lab pool`: steps of a run whose workers come and go, counted without training.

use crate::pool_file::{milliseconds, read};
use anyhow::anyhow;
use clap::Args;
use codedgrad::files::BoundedReader;
use codedgrad::sim::{Pool, PoolOutcome, PoolRules, replay};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::itself::RELEASE;
use codedgrad_shell::layout::help;
use codedgrad_shell::output::Output;
use codedgrad_shell::units::{seconds, several, whole};
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(
    after_help = help("\
FILE is a CSV file with the header seconds,workers: a row says how many workers there are from
then on. The workers that are lost are drawn. A worker that comes takes the lowest free slot and
is ready after --sync. Members of a round are those that are ready when it begins. n of them take
--work/n for it, under groups:s=S --work/l in l = n/(S+1) groups; none of them is late. A loss that
leaves a group empty ends the round, --detect later, and it begins again without the lost workers.
With --restart the run cannot go on with others, and every change of the members costs that. For
uncoded and groups:s=S alone.

Examples:
  codedgrad-lab pool uncoded examples/traces/pool.csv --work 80
  codedgrad-lab pool uncoded examples/traces/pool.csv --work 80 --restart 120 --json")
)]
pub(crate) struct PoolArgs {
    /// The scheme: uncoded or groups:s=..
    scheme: String,
    /// How many workers there are, and when that changes
    file: PathBuf,
    /// Time of a whole batch on one worker
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    work: f64,
    /// Seconds until the run notices the loss of a required worker
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value_t = 0.0)]
    detect: f64,
    /// Seconds that a new worker needs to copy a state
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value_t = 30.0)]
    sync: f64,
    /// Restart the run at every change of workers, which costs this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    restart: Option<f64>,
    /// When the replay ends [default: at the last row]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Seed of the draws
    #[arg(long, value_parser = whole::<u64>, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PoolArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let PoolArgs { scheme, file, .. } = args;
    let stragglers = stragglers(scheme)?;
    let pool = read(file, BoundedReader::open_or_wait)?;
    let rules = PoolRules {
        work: milliseconds(args.work),
        stragglers,
        detect: milliseconds(args.detect),
        sync: milliseconds(args.sync),
        restart: args.restart.map(milliseconds),
        end: args.seconds.map_or(pool.last(), milliseconds),
        seed: args.seed,
    };
    let outcome = replay(&pool, &rules).or_input()?;
    if args.json {
        let PoolOutcome { steps, aborted, lost, plans, goodput } = outcome;
        let shown = json!({
            "scheme": scheme,
            "steps": steps,
            "aborted": aborted,
            "lost_seconds": in_seconds(lost),
            "plans": plans,
            "goodput": goodput,
        });
        return output.print(format_args!("{shown}\n")).or_work();
    }
    let text = words(scheme, file, (&pool, &rules), &outcome);
    output.print(format_args!("{}", output.width().prose(&text))).or_work()
}

/// The stragglers that every group of a scheme takes.
fn stragglers(scheme: &str) -> Result<usize, Failure> {
    // Misspelt families are told what was meant.
    families::scheme(scheme).or_input()?;
    let stragglers = match scheme {
        "uncoded" => Some(0),
        _ => scheme.strip_prefix("groups:s=").and_then(|number| number.parse().ok()),
    };
    stragglers.ok_or_else(|| {
        Failure::Input(anyhow!(
            "{scheme}: a pool is replayed under uncoded or groups:s=.., such as groups:s=1"
        ))
    })
}

fn in_seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1e3
}

fn words(
    scheme: &str,
    path: &Path,
    (pool, rules): (&Pool, &PoolRules),
    outcome: &PoolOutcome,
) -> String {
    let PoolOutcome { steps, aborted, lost, plans, goodput } = *outcome;
    let mut text = format!("{scheme}: {} in {} s, ", several(steps, "step"), in_seconds(rules.end));
    let _ = match goodput {
        Some(goodput) => {
            writeln!(text, "{:.1} % of what the workers could have computed.", 100.0 * goodput)
        }
        None => writeln!(text, "for no worker was there."),
    };
    let cost = if rules.restart.is_some() { " in them and in restarts" } else { " in them" };
    let _ = writeln!(
        text,
        "Rounds begun again after a loss: {aborted}. Seconds lost{cost}: {}. Plans: {plans}, the \
         first one and one for every change of the members.",
        in_seconds(lost)
    );
    let _ = write!(
        text,
        "Pool {}: {} to {} workers; a batch takes one of them {} s; a loss is noticed after {} s, \
         and one that comes is ready after {} s",
        path.display(),
        pool.least(),
        pool.most(),
        in_seconds(rules.work),
        in_seconds(rules.detect),
        in_seconds(rules.sync)
    );
    if let Some(restart) = rules.restart {
        let _ = write!(text, "; a restart takes {} s", in_seconds(restart));
    }
    let _ = writeln!(text, "; seed {}; codedgrad {RELEASE}.", rules.seed);
    text
}
