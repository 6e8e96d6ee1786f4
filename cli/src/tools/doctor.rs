//! `codedgrad doctor`: what slows a run down, and what to try first.

mod advice;
mod compare;
mod page;
mod perfetto;
mod text;

use super::dumps;
use super::ranks::Ranks;
use super::recorded::RecordedRun;
use super::source::{NamedRounds, Source};
use super::trace::to_output;
use advice::Advice;
use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use codedgrad::codes::SchemeSpec;
use codedgrad::doctor::{Examination, Finding, Record, RunContext, RunEvent, examine};
use codedgrad::files::BoundedReader;
use codedgrad::sim::planner::{Plan, Question, plan};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::folder::RECORD;
use codedgrad_shell::itself::{self, quoted};
use codedgrad_shell::layout::help;
use codedgrad_shell::lock::is_taken;
use codedgrad_shell::output::{Notes, Output};
use codedgrad_shell::suspicious;
use codedgrad_shell::units::{size, whole};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::iter::once;
use std::path::{Path, PathBuf};

/// What stands for standard input.
const STDIN: &str = "-";
/// A plan is made for the newest rounds, at most so many.
const ROUNDS_PLANNED: usize = 1000;
/// What costs a smaller share of a run is not told at its end.
const TOLD_LEAST: f64 = 0.05;
/// Marks on the progress bar of a plan.
const MARKS: u64 = 1000;

#[derive(Debug, Default, Args)]
#[command(
    after_help = help("\
It says where the time went, what is wrong (the dearest first, with what it costs and the command
to try first), and which workers are worth naming: how slow each is, since when, and whether its
computation or something else (network, queue, host) takes the time.

Input:   the folder of a run of `run`, `serve` or `codedgrad-lab`, finished or under way, or its
         run.jsonl. Or the folder that `codedgrad.record` of the Python package writes beside
         any training loop, or one such folder of each host. Or delays: a CSV file without header,
         one line per round, one number of seconds per worker (`codedgrad trace import` makes them
         of tables, JSON lines, logs and profiler traces), or - for standard input; those count as
         a run that waits for all workers.
Hangs:   dumps of PyTorch's Flight Recorder, a file of each rank, or a folder of them: it names the
         ranks that have not entered a collective, called another one, or have no dump. As JSON:
         {verdict, ranks, without_dump, groups, problems}.
Costs:   the fraction of all rounds' time that the run would save if a slow worker were never slower
         than the median, by replays of the run's scheme. It is small if the code tolerates the
         slow workers.
Reason:  `computing` and `elsewhere` need workers that report what they computed; older records
         have arrivals alone.
Plan:    with --plan every scheme is tried on these times as well, as `codedgrad plan` does: what
         the fastest worker takes is computation and grows with the load, the rest does not.

Files:   --html writes a page without scripts that needs nothing else: what is printed, and a map
         of workers by steps. --trace writes rounds, results, abandoned tasks and commits for
         ui.perfetto.dev or chrome://tracing. Neither overwrites a file that is not such a file.

JSON:    {run, scheme, workers, rounds, steps, estimated, time, effective, mfu, replayed,
         replay_error, slowdown, worst_workers, slow_rounds, of_workers, changes, checkpoints,
         events, findings, plan, reason, names, not_seen, cautions}; null where the record does not
         show it, and `reason` says why where rounds cannot be replayed. Times are seconds, costs
         and effective shares; workers are places in `names`, where an import has told these.

Examples:
  codedgrad doctor runs/0001
  codedgrad doctor runs/0001 --from 1 --json    # without the first step
  codedgrad doctor examples/traces/slow_worker.csv
  codedgrad doctor runs/0001 --html page.html    # to send by mail
  codedgrad doctor runs/0001 --trace trace.json    # to open in ui.perfetto.dev
  codedgrad doctor examples/traces/stragglers.csv --plan    # would another scheme be faster?
  codedgrad doctor compare runs/0001 runs/0002    # is the second run slower?")
)]
struct DoctorArgs {
    /// Folder of a run, of recorded steps or of dumps, a run.jsonl, or a CSV file of delays
    #[arg(value_name = "RUN|CSV")]
    input: String,
    /// More folders of the same job's recorded steps, where each host has its own; more dumps
    #[arg(value_name = "FOLDER")]
    more: Vec<String>,
    /// Which of the folder's runs, from 0; the first if not given
    #[arg(long = "run", value_name = "N", value_parser = size)]
    number: Option<usize>,
    /// The first step to look at; rounds are the steps of a CSV file
    #[arg(long, value_name = "STEP", value_parser = whole::<u64>)]
    from: Option<u64>,
    /// The last step to look at
    #[arg(long, value_name = "STEP", value_parser = whole::<u64>)]
    to: Option<u64>,
    /// Try every scheme on these times too
    #[arg(long)]
    plan: bool,
    /// Write the answer as a page too: one HTML file to send
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the steps as a trace for Perfetto too (JSON)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One run that is looked at, or two that are compared.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct DoctorLine {
    #[command(subcommand)]
    tool: Option<DoctorTool>,
    #[command(flatten)]
    look: Option<DoctorArgs>,
}

#[derive(Debug, Subcommand)]
enum DoctorTool {
    /// Compare two runs: is the second one slower, and how sure is that
    Compare(compare::CompareArgs),
}

impl DoctorLine {
    pub(crate) fn run(&self, output: &mut Output<'_>) -> Result<(), Failure> {
        match (&self.tool, &self.look) {
            (Some(DoctorTool::Compare(args)), _) => compare::run(args, output),
            (None, look) => run(look.as_ref().unwrap_or(&DoctorArgs::default()), output),
        }
    }
}

/// A run or a trace, as it is looked at.
struct Case {
    /// Which of a folder's runs; none for a trace.
    number: Option<usize>,
    record: Record,
    events: Vec<RunEvent>,
    mfu: Option<f64>,
    /// What workers are called, if they have more than numbers.
    names: Vec<String>,
    /// What was left out of a trace when it was made.
    not_seen: Vec<String>,
}

fn run(args: &DoctorArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from > to
    {
        return Err(Failure::Input(anyhow!("--from {from} is after --to {to}")));
    }
    if let (Some(page), Some(trace)) = (&args.html, &args.trace)
        && place(page) == place(trace)
    {
        return Err(Failure::Input(anyhow!("--html and --trace name the same file")));
    }
    may_write(args.html.as_deref(), page::OPENING, "page")?;
    may_write(args.trace.as_deref(), perfetto::OPENING, "trace")?;
    if dumps::are_in(Path::new(&args.input)) {
        let run = args.number.is_some();
        let steps = args.from.is_some() || args.to.is_some();
        let without = [
            ("--run", run),
            ("--from and --to", steps),
            ("--plan", args.plan),
            ("--html", args.html.is_some()),
            ("--trace", args.trace.is_some()),
        ];
        return dumps::doctor(args.inputs(), &without, args.json, output);
    }
    let case = Case::read(args, output)?;
    let record = case
        .record
        .between(args.from, args.to)
        .map_err(|error| Failure::Input(anyhow::Error::new(error).context("--from and --to")))?;
    let known = RunContext { registry: families::registry(), events: &case.events };
    let mut found = examine(&record, &known);
    found.cautions.iter().for_each(|it| output.note(format_args!("warning: {it}")));
    let plan = if args.plan { planned(&found, output)? } else { None };
    if let Some(plan) = &plan {
        found.compare(plan);
    }
    let folder = Path::new(&args.input);
    let advice = Advice {
        args,
        under_way: is_taken(folder).then_some(folder),
        number: case.number,
        found: &found,
        plan: plan.as_ref(),
        names: &case.names,
        not_seen: &case.not_seen,
    };
    let written = |path: &Option<PathBuf>, out: &mut dyn io::Write, write: Writer<'_>| match path {
        Some(path) => to_output(Some(path), out, |out| write(out).or_work()),
        None => Ok(()),
    };
    written(&args.html, output.out, &|out| {
        out.write_all(page::of(&record, &known, &advice).as_bytes())
    })?;
    written(&args.trace, output.out, &|out| perfetto::write(&record, &known, &advice, out))?;
    let text = if args.json {
        shown(&advice, case.mfu).to_string() + "\n"
    } else {
        text::words(&advice, output.width())
    };
    output.out.write_all(text.as_bytes()).or_work()
}

/// Writes a file.
type Writer<'a> = &'a dyn Fn(&mut dyn io::Write) -> io::Result<()>;

/// The same for all ways to write a path: its folder's own, and its name.
fn place(path: &Path) -> (Option<PathBuf>, Option<&OsStr>) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    (folder.unwrap_or(Path::new(".")).canonicalize().ok(), path.file_name())
}

/// Refuses a file that is there, unless it begins as those do that are written here.
fn may_write(path: Option<&Path>, opening: &str, what: &str) -> Result<(), Failure> {
    let Some(path) = path.filter(|path| path.symlink_metadata().is_ok()) else { return Ok(()) };
    let mut begins = Vec::new();
    BoundedReader::open(path, u64::MAX)
        .and_then(|file| file.take(opening.len() as u64).read_to_end(&mut begins))
        .with_context(|| format!("cannot write {}", path.display()))
        .or_input()?;
    if begins == opening.as_bytes() {
        return Ok(());
    }
    Err(Failure::Input(anyhow!(
        "{} is there and is no {what} that `doctor` wrote: name another file, or remove it",
        path.display()
    )))
}

impl DoctorArgs {
    fn inputs(&self) -> impl Iterator<Item = &String> {
        once(&self.input).chain(&self.more)
    }
}

impl Case {
    fn read(args: &DoctorArgs, output: &mut Output<'_>) -> Result<Self, Failure> {
        let path = Path::new(&args.input);
        if !args.more.is_empty() && args.number.is_none() {
            let folders: Vec<&Path> = args.inputs().map(Path::new).collect();
            return Self::of_source(Source::of_ranks(&folders, None, output)?, output);
        }
        let lines = path.extension().is_some_and(|extension| extension == "jsonl");
        let of_ranks = Ranks::is_in(path);
        if !of_ranks && RecordedRun::is_in(path) || lines && path.is_file() {
            let recorded = RecordedRun::read(path, args.number, true, output)?;
            // Beside a record under another name are other runs' files.
            let own = recorded.path.file_name().is_some_and(|name| name == RECORD);
            let events = if own { recorded.events(&mut output.notes)? } else { Vec::new() };
            let mfu = if own { recorded.mfu()? } else { None };
            let number = Some(recorded.number);
            return Ok(Self {
                number,
                record: recorded.record,
                events,
                mfu,
                names: Vec::new(),
                not_seen: Vec::new(),
            });
        }
        if let Some(number) = args.number {
            return Err(Failure::Input(anyhow!(
                "--run {number}: {} is no record of runs but of delays",
                args.input
            )));
        }
        if args.input != STDIN && !of_ranks && !path.is_file() {
            let what = match path.exists() {
                true if path.is_dir() => "no run is in this folder",
                true => "this is no regular file: - reads standard input",
                false => "no such file",
            };
            return Err(Failure::Input(anyhow!(
                "{}: {what}; expected the folder of a run, its {RECORD}, or a CSV file of \
                 delays",
                args.input
            )));
        }
        if !of_ranks {
            suspicious::say_of_form(&args.input, output);
        }
        Self::of_source(Source::open(&args.input, None, 0, false, output)?, output)
    }

    fn of_source(source: Source, output: &mut Output<'_>) -> Result<Self, Failure> {
        let NamedRounds { rows, numbers, names, not_seen, .. } = source.told(usize::MAX, output)?;
        let record = Record::of_numbered_trace(numbers.into_iter().zip(rows)).or_input()?;
        Ok(Self { number: None, record, events: Vec::new(), mfu: None, names, not_seen })
    }
}

/// What is said of a run at its end: the dearest finding if that costs much, and the command that
/// looks at it, which ends the sentence.
#[must_use]
pub fn hint(folder: &Path, number: usize) -> (String, String) {
    let input = folder.display().to_string();
    let args =
        DoctorArgs { input, number: (number > 0).then_some(number), ..DoctorArgs::default() };
    let run = args.number.map_or(String::new(), |number| format!(" --run {number}"));
    let command = format!("{} doctor {}{run}", itself::name(), quoted(&args.input));
    let (mut out, mut notes) = (io::sink(), io::sink());
    let case = Case::read(&args, &mut Output { out: &mut out, notes: Notes::Kept(&mut notes) });
    let found = case.ok().and_then(|case| {
        let known = RunContext { registry: families::registry(), events: &case.events };
        let findings = examine(&case.record, &known).findings;
        let told = |it: &&Finding| it.costs.is_some_and(|costs| costs >= TOLD_LEAST);
        let dearest = findings.iter().find(told)?;
        Some(format!("{:.1} % of its time: {dearest}. More:", 100.0 * dearest.costs?))
    });
    (found.unwrap_or_else(|| "Where its time went:".into()), command)
}

/// Every scheme on the newest times.
fn planned(found: &Examination, output: &mut Output<'_>) -> Result<Option<Plan>, Failure> {
    let Some((mut rows, growth)) = found.to_plan() else {
        let why = found.what_if.reason.as_ref().map_or(String::new(), ToString::to_string);
        output.note(format_args!("warning: there is nothing to plan with: {why}"));
        return Ok(None);
    };
    if rows.len() > ROUNDS_PLANNED {
        rows.drain(..rows.len() - ROUNDS_PLANNED);
        output.note(format_args!("--plan: of the last {ROUNDS_PLANNED} rounds"));
    }
    let own: Vec<SchemeSpec> = families::scheme_of_record(&found.scheme).into_iter().collect();
    let question = Question {
        max_delay: 0,
        families: families::registry().families(),
        also: &own,
        ..Question::new(&rows, growth)
    };
    let bar = output.progress_bar(MARKS, "plan");
    let plan = plan(&question, &|part| {
        let mark = (part * MARKS as f64) as u64;
        bar.set_position(bar.position().max(mark));
    });
    bar.finish_and_clear();
    plan.map(Some).or_input()
}

/// The examination as JSON.
fn shown(advice: &Advice<'_>, mfu: Option<f64>) -> Value {
    let (found, what_if) = (advice.found, &advice.found.what_if);
    let finding = |finding: &Finding| {
        json!({
            "kind": finding.kind(),
            "workers": finding.workers(),
            "since": finding.since().map(|since| since.round),
            "costs": finding.costs,
            "words": finding.told(advice.names).to_string(),
            "try": advice.command(finding),
        })
    };
    let reason = what_if.reason.as_ref().map(ToString::to_string);
    json!({
        "run": advice.number,
        "scheme": found.scheme,
        "workers": found.workers,
        "rounds": found.rounds,
        "steps": found.steps,
        "estimated": found.estimated,
        "time": found.time,
        "effective": found.effective,
        "mfu": mfu,
        "replayed": what_if.replayed,
        "replay_error": what_if.replay_error,
        "slowdown": what_if.slowdown,
        "worst_workers": what_if.worst_workers,
        "slow_rounds": what_if.slow_rounds,
        "of_workers": found.of_workers,
        "changes": found.changes,
        "checkpoints": found.checkpoints,
        "events": found.events,
        "findings": found.findings.iter().map(finding).collect::<Vec<_>>(),
        "plan": advice.plan,
        "reason": reason,
        "names": (!advice.names.is_empty()).then_some(advice.names),
        "not_seen": advice.not_seen,
        "cautions": found.cautions.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests;
