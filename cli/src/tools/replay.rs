//! `codedgrad simulate --pool`: a run over workers that come and go.

use anyhow::anyhow;
use clap::Args;
use codedgrad::files::Bounded;
use codedgrad::sim::{Pool, PoolOutcome, PoolRules, replay};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::itself::RELEASE;
use codedgrad_shell::output::Output;
use codedgrad_shell::pool_file::{milliseconds, read};
use codedgrad_shell::units::{seconds, several};
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Clap does not ask for a pool, which they require, where one of these is given that a pool is in
/// place of.
const DELAYS: [&str; 2] = ["delays", "jobs"];

/// A pool of workers in place of delays.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Replay workers that come and go: a CSV file with the header seconds,workers and a row for
    /// each change
    ///
    /// A row says how many workers there are from then on; none of them is late.
    #[arg(
        long,
        value_name = "FILE",
        requires = "work",
        conflicts_with_all = [
            "delays", "workers", "jobs", "rounds", "mu", "close", "rules", "accept", "base_load",
            "slope", "proportional", "as_recorded", "dispatch", "grid", "svg"
        ],
        help_heading = "Pool"
    )]
    pub(crate) pool: Option<PathBuf>,
    /// Time of a whole batch on one worker
    #[arg(
        long, value_name = "SECONDS", value_parser = seconds, requires = "pool",
        conflicts_with_all = DELAYS, help_heading = "Pool"
    )]
    work: Option<f64>,
    /// How much later a loss is noticed that the scheme cannot do without [default: 0]
    #[arg(
        long, value_name = "S", value_parser = seconds, requires = "pool",
        conflicts_with_all = DELAYS, help_heading = "Pool", hide_short_help = true
    )]
    detect: Option<f64>,
    /// How much later than it comes a worker is ready, for it takes over a state [default: 30]
    #[arg(
        long, value_name = "S", value_parser = seconds, requires = "pool",
        conflicts_with_all = DELAYS, help_heading = "Pool", hide_short_help = true
    )]
    sync: Option<f64>,
    /// The run cannot go on with other workers: to start it again costs that, at every change
    #[arg(
        long, value_name = "S", value_parser = seconds, requires = "pool",
        conflicts_with_all = DELAYS, help_heading = "Pool", hide_short_help = true
    )]
    restart: Option<f64>,
    /// When the replay ends [default: at the last row]
    #[arg(
        long, value_name = "END", value_parser = seconds, requires = "pool",
        conflicts_with_all = DELAYS, help_heading = "Pool", hide_short_help = true
    )]
    seconds: Option<f64>,
}

impl ReplayArgs {
    pub(crate) fn run(
        &self,
        path: &Path,
        scheme: &str,
        seed: u64,
        as_json: bool,
        output: &mut Output<'_>,
    ) -> Result<(), Failure> {
        let stragglers = stragglers(scheme)?;
        let pool = read(path, Bounded::open_or_wait)?;
        let rules = PoolRules {
            work: milliseconds(self.work.unwrap_or_default()),
            stragglers,
            detect: milliseconds(self.detect.unwrap_or(0.0)),
            sync: milliseconds(self.sync.unwrap_or(30.0)),
            restart: self.restart.map(milliseconds),
            end: self.seconds.map_or(pool.last(), milliseconds),
            seed,
        };
        let outcome = replay(&pool, &rules).or_input()?;
        if as_json {
            let PoolOutcome { steps, aborted, lost, plans, goodput } = outcome;
            let shown = json!({
                "scheme": scheme,
                "steps": steps,
                "aborted": aborted,
                "lost_seconds": in_seconds(lost),
                "plans": plans,
                "goodput": goodput,
            });
            return writeln!(output.out, "{shown}").or_work();
        }
        let text = words(scheme, path, (&pool, &rules), &outcome);
        write!(output.out, "{}", output.width().prose(&text)).or_work()
    }
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
        None => writeln!(text, "for nobody was there."),
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
