//! How a coordinator's run is going: kept at the coordinator, shown by it over HTTP, asked for by
//! `codedgrad status`.

use super::http::fetch;
use anyhow::Context;
use clap::Args;
use codedgrad::ids::Worker;
use codedgrad::train::{PlanRecord, WaitingRound};
use codedgrad::transport::tcp;
use codedgrad_shell::failure::{Failure, OrWork};
use codedgrad_shell::layout::{Column, Table, Width, help};
use codedgrad_shell::output::{Output, plain};
use codedgrad_shell::pool::Bounds;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

/// A worker that has said nothing for so many seconds, though it is asked every second, is silent.
const SILENT: f64 = 4.0;
/// A trainer may hang that computes for so many seconds and so many times as long as rounds
/// usually take.
const STALLS: f64 = 5.0;
const TIMES_USUAL: f64 = 10.0;
/// How long `codedgrad status` waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(
    after_help = help("\
ADDR is the coordinator's --metrics address. Prometheus scrapes /metrics; this command shows
/status.

Examples:
  codedgrad run -n 3 --metrics 127.0.0.1:9400 train.py
  codedgrad status 127.0.0.1:9400
  codedgrad status 127.0.0.1:9400 --watch")
)]
pub(crate) struct StatusArgs {
    /// Where the coordinator shows its metrics
    #[arg(value_name = "ADDR", value_parser = address)]
    address: String,
    /// Print the answer as JSON, as it came
    #[arg(long)]
    json: bool,
    /// Ask again every second until the coordinator has ended
    #[arg(long)]
    watch: bool,
}

/// A host and a port, also of a whole URL, as the coordinator prints it.
fn address(text: &str) -> Result<String, String> {
    let place = text.strip_prefix("http://").unwrap_or(text);
    let place = place.split('/').next().unwrap_or_default();
    let port = place.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    if port.is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        return Ok(place.to_owned());
    }
    Err("write HOST:PORT, such as 127.0.0.1:9400".to_owned())
}

/// What happened so far, of one worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OfWorker {
    /// Rounds in which it answered in time, and when it did in the last of them, since the round
    /// opened.
    pub(crate) answers: u64,
    pub(crate) last_arrival: Option<f64>,
    /// Rounds in which it was late or absent, with those that it missed.
    pub(crate) late_rounds: u64,
    /// Rounds that closed without its answer, which would have been late or never came.
    #[serde(default)]
    pub(crate) missed_rounds: u64,
    /// Rounds that closed shortly before its answer: they did not need it.
    #[serde(default)]
    pub(crate) unused_rounds: u64,
    /// Sum of how much later than the first it answered.
    pub(crate) lateness_seconds: f64,
    pub(crate) faults: u64,
    /// Why it is not there, if it was: `lost`, `left` or `drained`.
    #[serde(default)]
    pub(crate) away: Option<String>,
    /// Its last rounds, a letter each; see [`STRIP`].
    #[serde(default)]
    pub(crate) strip: VecDeque<char>,
    /// What it reports to have computed, and what passed elsewhere: network, queues, its host.
    #[serde(default)]
    pub(crate) computing_seconds: f64,
    #[serde(default)]
    pub(crate) elsewhere_seconds: f64,
    /// Rounds that closed without its answer.
    #[serde(default)]
    pub(crate) abandoned: u64,
    /// Its last answers over the median answers of their rounds; see [`RATIOS`].
    #[serde(default)]
    pub(crate) ratios: VecDeque<f64>,
}

/// Rounds of a strip.
pub(crate) const STRIP: usize = 60;
/// Answers of which a worker's ratio is the mean.
const RATIOS: usize = 50;

impl OfWorker {
    /// How many times as long as the median its answer took, if it answered.
    pub(crate) fn took(&mut self, ratio: Option<f64>) {
        self.ratios.extend(ratio);
        if self.ratios.len() > RATIOS {
            self.ratios.pop_front();
        }
    }

    /// The mean of those.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let answers = self.ratios.len();
        (answers > 0).then(|| self.ratios.iter().sum::<f64>() / answers as f64)
    }

    /// It is known now how a round ended for it, after which so many have closed.
    pub(crate) fn ended_before(&mut self, later: u64, letter: char) {
        let place = self.strip.len().checked_sub(later as usize + 1);
        if let Some(found) = place.and_then(|place| self.strip.get_mut(place)) {
            *found = letter;
        }
    }

    /// How a round ended for it.
    pub(crate) fn ended(&mut self, letter: char) {
        self.strip.push_back(letter);
        if self.strip.len() > STRIP {
            self.strip.pop_front();
        }
    }
}

/// How much of the time went into steps, and for whom they are planned.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Upkeep {
    /// When the first step began here and when the last one was decided, in seconds since 1970.
    #[serde(default)]
    pub(crate) began: Option<f64>,
    #[serde(default)]
    pub(crate) decided: f64,
    /// For whom the run is planned, where that may change, and how often it was planned.
    #[serde(default)]
    pub(crate) plan: Option<PlanRecord>,
    #[serde(default)]
    pub(crate) plans: u64,
    #[serde(flatten)]
    pub(crate) bounds: Option<Bounds>,
    /// Workers that have left.
    #[serde(default)]
    pub(crate) left: u64,
}

/// Faults that were survived.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Faults {
    #[serde(rename = "faults")]
    pub(crate) count: u64,
    #[serde(rename = "last_fault")]
    pub(crate) last: Option<String>,
}

/// What happened so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) scheme: String,
    pub(crate) steps: u64,
    pub(crate) steps_planned: u64,
    pub(crate) rounds: u64,
    pub(crate) last_round_seconds: f64,
    pub(crate) round_seconds: f64,
    pub(crate) last_step_seconds: f64,
    pub(crate) step_seconds: f64,
    /// Rounds kept open past `(1+mu)` times the first answer though the scheme tolerates that a
    /// worker is absent.
    pub(crate) wait_outs: u64,
    /// From the close of the last round of a step to its commit: weights, sum, and the sum held.
    pub(crate) last_decode_seconds: f64,
    pub(crate) decode_seconds: f64,
    #[serde(flatten)]
    pub(crate) upkeep: Upkeep,
    #[serde(flatten)]
    pub(crate) faults: Faults,
    pub(crate) workers: Vec<OfWorker>,
}

impl Progress {
    /// The share of the time since the first step that steps took.
    pub(crate) fn effective(&self) -> Option<f64> {
        let passed = self.upkeep.decided - self.upkeep.began?;
        (passed > 0.0).then(|| self.step_seconds / passed)
    }
}

/// All that is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StatusView {
    /// The step that is open, if it is open for a second or more.
    #[serde(default)]
    pub(crate) waiting: Option<WaitingRound>,
    /// Rounds that were open for much longer than usual.
    #[serde(default)]
    pub(crate) stuck: u64,
    pub(crate) progress: Progress,
    pub(crate) network: tcp::TcpStatus,
}

/// What is said of a worker that is not connected.
fn away<'a>(of: &'a OfWorker, status: &tcp::WorkerStatus) -> &'a str {
    match &of.away {
        _ if status.epoch == 0 => "not come yet",
        Some(why) => why,
        // Its connection is known to be closed before anything is made of that.
        None => "lost",
    }
}

/// A worker's name, and its domain where that says more.
fn named(status: &tcp::WorkerStatus) -> String {
    let tcp::WorkerStatus { identity, domain, .. } = status;
    if domain.is_empty() || identity.starts_with(domain) {
        return identity.clone();
    }
    format!("{identity} ({domain})")
}

impl StatusView {
    /// As people read it.
    pub(crate) fn table(&self, width: Width) -> String {
        width.prose(&self.sentences()) + &self.workers().laid_out(width)
    }

    /// The step that is open, in words.
    fn open_step(&self) -> Option<String> {
        let waiting = self.waiting.as_ref()?;
        let known = |worker: Worker| {
            let status = self.network.workers.get(worker.index())?;
            if !status.connected {
                return Some(away(self.progress.workers.get(worker.index())?, status).into());
            }
            if status.silent_seconds >= SILENT {
                return Some(format!("silent {:.1} s", status.silent_seconds));
            }
            let of = waiting.missing.iter().find(|missing| missing.worker == worker)?;
            let seconds = of.order_seconds?;
            let usual = waiting.usual_seconds?;
            (seconds > STALLS.max(TIMES_USUAL * usual)).then(|| {
                format!(
                    "computing for {seconds:.1} s, usually {usual:.1} s, and answers pings: its \
                     trainer may hang"
                )
            })
        };
        Some(waiting.words(known))
    }

    /// The last rounds of each worker, a line each.
    fn strips(&self) -> String {
        let mut text = format!(
            "last {STRIP} rounds (. answered, - not needed, L late, x missed, erased or absent):\n"
        );
        for (number, of) in self.progress.workers.iter().enumerate() {
            let strip: String = of.strip.iter().map(|letter| plain(&letter.to_string())).collect();
            let _ = writeln!(text, "{number:>6} {strip}");
        }
        text
    }

    fn sentences(&self) -> String {
        let Self { progress, network, .. } = self;
        let mean = progress.round_seconds / progress.rounds.max(1) as f64;
        let stalled = self.network.stalled.as_ref().map(ToString::to_string);
        let open = [self.open_step(), stalled];
        let mut text: String = open.into_iter().flatten().map(|words| words + "\n").collect();
        let scheme = plain(&progress.scheme);
        if progress.steps_planned == 0 {
            // What is trained is learned from the first worker.
            let there = network.connected().len();
            let _ = writeln!(
                text,
                "{scheme}: the run has not begun: {there} of {} workers are there",
                network.workers.len()
            );
        } else {
            let _ = writeln!(
                text,
                "{scheme}: step {} of {}, last step {:.3} s, mean round {mean:.3} s, \
                 decode {:.1} ms, {} wait-outs",
                progress.steps,
                progress.steps_planned,
                progress.last_step_seconds,
                1e3 * progress.last_decode_seconds,
                progress.wait_outs
            );
        }
        if let Some(plan) = &progress.upkeep.plan {
            let (members, scheme) = (plan.members.len(), plain(&plan.scheme));
            let (all, plans) = (progress.workers.len(), progress.upkeep.plans);
            let _ = writeln!(
                text,
                "planned for {members} of {all} workers under {scheme} ({plans} plans so far)"
            );
        }
        let _ = writeln!(
            text,
            "sent {:.1} MB, received {:.1} MB, last exchange {:.1} ms, {} calls refused, {} faults",
            network.sent as f64 / 1e6,
            network.received as f64 / 1e6,
            1e3 * network.sums.exchange_seconds,
            network.refused,
            progress.faults.count
        );
        if network.sums.expected > 0 {
            let _ = writeln!(
                text,
                "{} sums begun while computing: {} steps made of them, {} of others",
                network.sums.expected, network.sums.confirmed, network.sums.replaced
            );
        }
        if network.sums.by_collective > 0 || network.sums.group > 0 {
            let _ = writeln!(
                text,
                "{} of {} exchanges by NCCL, {} workers can now",
                network.sums.by_collective, network.sums.exchanges, network.sums.group
            );
        }
        if let Some(fault) = &progress.faults.last {
            let _ = writeln!(text, "last fault: {}", plain(fault));
        }
        text
    }

    fn workers(&self) -> Table {
        let Self { progress, network, .. } = self;
        let mut table = Table::new([
            Column::right("worker"),
            Column::left(""),
            Column::right("silent").spare(2),
            Column::right("joins"),
            Column::right("arrival"),
            Column::right("answers"),
            Column::right("late"),
            Column::right("missed"),
            Column::left("identity").spare(3),
        ]);
        for (number, (of, status)) in progress.workers.iter().zip(&network.workers).enumerate() {
            let arrival = of.last_arrival.map_or("-".into(), |arrival| format!("{arrival:.3} s"));
            let (there, silent) = if status.connected {
                ("connected".into(), format!("{:.1} s", status.silent_seconds))
            } else {
                (plain(away(of, status)), "-".into())
            };
            table.row([
                number.to_string(),
                there,
                silent,
                status.epoch.to_string(),
                arrival,
                of.answers.to_string(),
                of.late_rounds.to_string(),
                of.missed_rounds.to_string(),
                plain(&named(status)),
            ]);
        }
        table
    }
}

pub(crate) fn run(args: &StatusArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let screen = io::stdout().is_terminal();
    loop {
        let body = fetch(&args.address, "/status", PATIENCE)
            .with_context(|| format!("no status from {}", args.address))
            .or_work()?;
        if args.json {
            // What answers there may be no coordinator.
            body.lines().try_for_each(|line| writeln!(output.out, "{}", plain(line))).or_work()?;
        } else {
            let shown: StatusView = serde_json::from_str(&body)
                .context("this is no status of a coordinator of this version")
                .or_work()?;
            // What is read by a program is no screen to be cleared.
            if args.watch && screen {
                io::stdout().write_all(b"\x1b[2J\x1b[H").or_work()?;
            }
            write!(output.out, "{}", shown.table(output.width())).or_work()?;
            if args.watch {
                write!(output.out, "{}", shown.strips()).or_work()?;
            }
        }
        output.out.flush().or_work()?;
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
