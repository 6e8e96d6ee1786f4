//! `codedgrad plan`: should I code at all, and with what?

mod pictures;

use super::simulate::LoadArgs;
use super::source::{self, NamedRounds, Source};
use anyhow::{Context, anyhow};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::registry::Family;
use codedgrad::delays::{Growth, Preset, Suspicion, TraceReader, after_exchange};
use codedgrad::files;
use codedgrad::sim::Close;
use codedgrad::sim::planner::{Candidate, CauseKind, ClosingRules, Plan, Question, plan};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::folder::holds_no_run;
use codedgrad_shell::itself::{self, RELEASE, quoted};
use codedgrad_shell::layout::{Column, Table, Width, help};
use codedgrad_shell::limits::WORKERS;
use codedgrad_shell::output::Output;
use codedgrad_shell::suspicious;
use codedgrad_shell::units::{count, seconds, several, whole};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Rounds of a preset, and the most of a file, that are looked at unless a number is given.
const ROUNDS: (usize, usize) = (100, 1000);
/// A front point is worth mentioning if it saves so much of the work and costs at most so much more
/// time.
const THRIFT: (f64, f64) = (0.9, 1.1);
/// Marks on the progress bar.
const MARKS: u64 = 1000;

fn family() -> impl TypedValueParser<Value = Family> {
    let tried = families::registry().families().iter().filter(|family| family.spaces.is_some());
    PossibleValuesParser::new(tried.map(|family| family.name)).map(|name| {
        let family = families::registry().family(&name).copied();
        family.unwrap_or_else(|| unreachable!("{name} is checked"))
    })
}

/// When rounds close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RulesArg {
    /// As soon as they can be decoded; of schemes with a delay incremental
    Usual,
    /// All wait for the slowest within mu = 1, as the authors of sequential gradient coding do
    Paper,
}

#[derive(Debug, Args)]
#[command(
    after_help = help("\
It runs every scheme with all its parameters over the trace and recommends the fastest that loses
no sample, if by the newer half of the rounds a code saves 3 % or more; else `uncoded`. `gain here`
is optimistic: it is measured on the rounds that chose the scheme. The reported saving and its 95 %
interval come from the older half. Each block of that half is replayed with the scheme that is
fastest on the rounds after it. Fewer than 20 rounds recommend nothing. Causes that no code cures
are named.

Trace:   a CSV file without header, one line per round, one number of seconds per worker, as an
         UNCODED run had them (`codedgrad trace record` and `import` make such files), or a
         preset: hotspot | bursts | iid | static | calm | stalls | proportional | serverless |
         serverless-cold. A file's times grow in proportion to the load and were recorded at load
         1/n (computing takes all the time), unless --base-load X --slope A says that a fixed
         part does not grow. A run's times were recorded at its scheme's load. The fastest result's
         time grows with the load; the rest grows only for workers that are slow at computing.
         `codedgrad simulate` assumes the same.
Delay:   --max-delay 0 if the next step needs the gradient of this one (one model). A scheme of
         delay T needs T+1 jobs in flight, such as T+1 interleaved models.

Rules:   those of `codedgrad simulate`, which are the safe side: a late result is thrown away,
         where in training it may still count (`codedgrad simulate --rules trainer`). Schemes with a
         delay are closed with the deadline that suits them best, others as soon as they can be
         decoded; --rules paper closes all as the authors of sequential gradient coding do.

One model with gradient accumulation: --accumulate R. Only the sum of R rounds counts, so the
whole step is one job, and uncoded workers do not wait for one another within it.

JSON:    {baseline, recommended, gain, interval, why, candidates, front, causes, notes, rules,
         accept, delays, seed, version, ...}; baseline = seconds per job uncoded, gain = share of
         it that is saved, interval = {low, high, blocks, block} or null. Each candidate has its
         gain on this very trace, and the close and the mu of its rounds.

Examples:
  codedgrad plan --delays hotspot --workers 8 --max-delay 0
  codedgrad plan --delays serverless --workers 256 --max-work 1.5
  codedgrad plan --delays examples/traces/stragglers.csv --base-load 0.125 --slope 1.2 --out plan/
  codedgrad plan --delays examples/traces/stragglers.csv --accumulate 8 --families queue")
)]
pub(crate) struct PlanArgs {
    /// Delays: a CSV file, - for standard input, the folder of a training run, or a preset
    #[arg(long, value_name = "PRESET|FILE")]
    delays: String,
    /// Number of workers; all columns of a file if not given, 8 for a preset, 256 for serverless
    /// ones
    #[arg(long, value_parser = count::<u32>(WORKERS))]
    workers: Option<u32>,
    /// Rounds to look at [default: a file's, up to 1000; 100 of a preset]
    #[arg(long, value_parser = count::<u32>(1..=1_000_000))]
    rounds: Option<u32>,
    /// Rounds a job may be late
    #[arg(
        long, value_name = "T", default_value_t = 3,
        value_parser = count::<u32>(0..=16),
        help_heading = "Limits"
    )]
    max_delay: u32,
    /// Work allowed, in uncoded batches per job [default: any]
    #[arg(long, value_name = "W", help_heading = "Limits")]
    max_work: Option<f64>,
    #[command(flatten)]
    load: LoadArgs,
    #[arg(
        long, value_name = "S", value_parser = seconds,
        help = families::dispatch_help(),
        help_heading = "Load", hide_short_help = true
    )]
    dispatch: Option<f64>,
    /// Micro-batches in a worker's share of a round: how finely schemes with feedback may cut it
    #[arg(
        long, value_name = "M", default_value_t = 16,
        value_parser = count::<u32>(1..=1024),
        help_heading = "Candidates", hide_short_help = true
    )]
    cut: u32,
    /// Rounds that make up one optimizer step of one model: the step is the job
    #[arg(
        long, value_name = "R", default_value_t = 1,
        value_parser = count::<u32>(1..=1024),
        help_heading = "Limits"
    )]
    accumulate: u32,
    /// Which kinds of schemes to try besides uncoded [default: all]
    #[arg(
        long, value_name = "LIST", value_delimiter = ',', value_parser = family(),
        help_heading = "Candidates"
    )]
    families: Vec<Family>,
    /// A scheme of one's own to compare with them, such as matrix:FILE; may be given several times
    #[arg(long, value_name = "SCHEME", help_heading = "Candidates", hide_short_help = true)]
    also: Vec<String>,
    #[arg(
        long,
        help = format!(
        "Recommend {} too, whose gradients are not the whole batch's", families::inexact()
        ),
        help_heading = "Candidates", hide_short_help = true
    )]
    allow_inexact: bool,
    /// What each share cost (tokens, bytes): a CSV file like the trace; tells slow shares from slow
    /// workers
    #[arg(long, value_name = "FILE", help_heading = "Load", hide_short_help = true)]
    share_costs: Option<PathBuf>,
    /// Seed of a preset [default: 1]
    #[arg(long, value_parser = whole::<u64>)]
    seed: Option<u64>,
    /// When rounds close: as is best for each scheme, or all by the authors' rule of sequential
    /// gradient coding
    #[arg(long, value_enum, default_value = "usual", help_heading = "Rounds")]
    rules: RulesArg,
    /// Folder for plan.json, time-work.svg and schemes.svg
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(crate) fn run(args: &PlanArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    if let Some(work) = args.max_work.filter(|work| !(work.is_finite() && *work >= 1.0)) {
        return Err(Failure::Input(anyhow!(
            "--max-work {work}: must be 1 or more, in uncoded batches per job (uncoded work is 1)"
        )));
    }
    args.out.as_deref().map_or(Ok(()), holds_no_run)?;
    let preset = Preset::named(&args.delays);
    suspicious::say_of_shape(&args.delays, args.workers.map(|workers| workers as usize), output);
    let Trace {
        rows,
        cut,
        lacks_workers,
        growth: usual,
        names,
        numbers,
        distance,
        beside,
        taken_anywhere,
    } = trace(args, output)?;
    let workers = rows.first().map_or(0, Vec::len);
    let growth = args.load.growth(usual)?;
    let costs =
        args.share_costs.as_deref().map(|path| costs_in(path, workers, rows.len())).transpose()?;
    let also = args.also.iter().map(|text| families::scheme(text));
    let also: Vec<SchemeSpec> = also.collect::<Result<_, _>>().or_input()?;
    let question = Question {
        dispatch: args.dispatch.unwrap_or(preset.map_or(0.0, Preset::pull)),
        // A job that spans rounds needs rounds that follow one another.
        max_delay: if distance == 1 { args.max_delay as usize } else { 0 },
        max_work: args.max_work.unwrap_or(f64::INFINITY),
        cut: args.cut as usize,
        accumulate: args.accumulate as usize,
        inexact: args.allow_inexact,
        share_costs: costs.as_deref(),
        families: if args.families.is_empty() {
            families::registry().families()
        } else {
            &args.families
        },
        also: &also,
        rules: args.rules.into(),
        taken_anywhere,
        ..Question::new(&rows, growth)
    };
    let bar = output.progress_bar(MARKS, &args.delays);
    let found = plan(&question, &|part| {
        let mark = (part * MARKS as f64) as u64;
        bar.set_position(bar.position().max(mark));
    });
    bar.finish_and_clear();
    let mut found = found.or_input()?;
    if names.iter().enumerate().any(|(number, name)| *name != number.to_string()) {
        found.call_workers(&names);
    }
    found.call_rounds(&numbers);
    found.notes.iter().for_each(|note| output.notes.hint(format_args!("{note}")));
    found.notes.extend(beside.iter().cloned());
    let json = shown(args, &found)?.to_string();
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))
            .or_work()?;
        write(folder, "plan.json", &(json.clone() + "\n"))?;
        write(folder, "time-work.svg", &pictures::time_against_work(&found).or_work()?)?;
        write(folder, "schemes.svg", &pictures::by_scheme(&found).or_work()?)?;
    }
    if args.json {
        return writeln!(output.out, "{json}").or_work();
    }
    let known = AnswerNotes { cut, lacks_workers, usual, width: output.width(), beside: &beside };
    let said = words(args, &question, &found, &known);
    output.out.write_all(said.as_bytes()).or_work()
}

impl From<RulesArg> for ClosingRules {
    fn from(rules: RulesArg) -> Self {
        match rules {
            RulesArg::Usual => Self::Usual,
            RulesArg::Paper => Self::Paper,
        }
    }
}

/// The answer and all that it follows from.
fn shown(args: &PlanArgs, found: &Plan) -> Result<Value, Failure> {
    let mut shown = serde_json::to_value(found).or_work()?;
    shown["rules"] = json!(ClosingRules::from(args.rules));
    shown["accept"] = json!("lookahead");
    shown["delays"] = json!(args.delays);
    shown["seed"] = json!(source::seed_of(&args.delays, args.seed));
    shown["version"] = json!(RELEASE);
    Ok(shown)
}

/// By which rules the schemes of a plan were timed, in a line.
fn rules(args: &PlanArgs, found: &Plan) -> String {
    let has = |close: Close| found.candidates.iter().any(|candidate| candidate.close == close);
    let said = match (has(Close::All), has(Close::Incremental)) {
        (true, _) => "all schemes by the rule all, mu 1".to_owned(),
        (false, false) => "all schemes by the rule decodable".to_owned(),
        (false, true) => "schemes by different rules: decodable, those with a mu incremental with \
                          the mu that suits each best (--rules paper: all by one)"
            .to_owned(),
    };
    let seed = source::seed_of(&args.delays, args.seed);
    let seed = seed.map_or(String::new(), |seed| format!(", seed {seed}"));
    format!("Rounds closed for {said}; accept lookahead{seed}; codedgrad {RELEASE}.")
}

/// Delays to plan with.
struct Trace {
    /// In answer times.
    rows: Vec<Vec<f64>>,
    /// Whether the trace goes on after these rounds.
    cut: bool,
    /// Whether some workers were left out.
    lacks_workers: bool,
    /// How they grow, unless an option says otherwise.
    growth: Growth,
    /// What workers are called, if they have more than numbers.
    names: Vec<String>,
    /// What rounds are numbered.
    numbers: Vec<u64>,
    /// How far rounds are apart.
    distance: u64,
    /// What an answer cannot be without.
    beside: Vec<String>,
    /// Whether all of the times are measured, and may have been anywhere.
    taken_anywhere: bool,
}

fn trace(args: &PlanArgs, output: &mut Output<'_>) -> Result<Trace, Failure> {
    let workers = args.workers.map(|workers| workers as usize);
    let wanted = args.rounds.map(|rounds| rounds as usize);
    let grown = !args.load.is_given();
    source::say_seed(&args.delays, args.seed, output);
    let seed = args.seed.unwrap_or(source::SEED);
    let source = Source::open(&args.delays, workers, seed, grown, output)?;
    // As --workers has it; the time that a plan takes grows with their square.
    if !WORKERS.contains(&(source.workers() as u64)) {
        return Err(Failure::Input(anyhow!(
            "{} has {} columns, and a plan is for {} workers at most: is the table transposed? \
             --workers N takes its first N columns",
            args.delays,
            source.workers(),
            WORKERS.end()
        )));
    }
    let (preset, growth) = (source.preset, source.growth());
    let most = wanted.unwrap_or(if preset.is_some() { ROUNDS.0 } else { ROUNDS.1 });
    let workers = source.workers();
    let mut told = source.told(most, output)?;
    let cut = told.more;
    let not_received = told.at_least();
    let beside = beside(&told, not_received);
    let taken_anywhere = told.is_trace && not_received == 0;
    let NamedRounds { rows, names, numbers, distance, .. } = told;
    let lacks_workers = rows.first().is_some_and(|row| row.len() < workers);
    if wanted.is_none() && cut && preset.is_none() {
        output.note(format_args!(
            "{}: using the first {}; --rounds takes more",
            args.delays,
            several(most, "round")
        ));
    } else if let Some(wanted) = wanted.filter(|wanted| *wanted > rows.len()) {
        output.note(format_args!(
            "{}: has {}, not {wanted}; a plan uses each only once",
            args.delays,
            several(rows.len(), "round")
        ));
    }
    Ok(Trace { rows, cut, lacks_workers, growth, names, numbers, distance, beside, taken_anywhere })
}

/// What is to be kept in mind about a trace.
fn beside(told: &NamedRounds, not_received: usize) -> Vec<String> {
    // Who is waited for is what the answer itself says.
    let late = after_exchange(&told.rows)
        .filter(|it| told.is_trace && !matches!(it, Suspicion::WaitedFor { .. }))
        .map(|it| it.to_string());
    let not_received = (not_received > 0).then(|| {
        format!(
            "{} {} as the largest time of its round, so times and savings are lower bounds",
            several(not_received, "answer"),
            if not_received == 1 {
                "was not received: it counts"
            } else {
                "were not received: each counts"
            }
        )
    });
    let apart = (told.distance != 1).then(|| {
        format!(
            "rounds are {} steps apart: schemes in which a job spans rounds are not tried",
            told.distance
        )
    });
    let not_seen = told.not_seen.iter().map(|gone| format!("not seen: {gone}"));
    [late, not_received, apart].into_iter().flatten().chain(not_seen).collect()
}

/// The first rounds of another table for the same workers.
fn costs_in(path: &Path, workers: usize, rounds: usize) -> Result<Vec<Vec<f64>>, Failure> {
    TraceReader::open(path, Some(workers))
        .or_input()?
        .of_any_size()
        .take(rounds)
        .collect::<Result<_, _>>()
        .or_input()
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = folder.join(name);
    let written = files::write(&path, text.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display())).or_work()
}

/// What the words of an answer need beside it.
struct AnswerNotes<'a> {
    /// Whether the trace goes on after the rounds that were looked at.
    cut: bool,
    /// Whether some of its workers were left out.
    lacks_workers: bool,
    /// How delays grow where no option says it.
    usual: Growth,
    width: Width,
    /// What an answer cannot be without.
    beside: &'a [String],
}

/// The answer in words.
fn words(
    args: &PlanArgs,
    question: &Question<'_>,
    found: &Plan,
    known: &AnswerNotes<'_>,
) -> String {
    let width = known.width;
    let unit = if args.accumulate > 1 { "step" } else { "round" };
    let mut text = format!(
        "{}: {} of {}, {:.4} s per job uncoded",
        args.delays,
        several(found.jobs, unit),
        several(found.workers, "worker"),
        found.baseline
    );
    text.push_str("\n\n");
    let table = table_of(&found.candidates).laid_out(width);
    let begun = width.prose(&text);
    let mut text = String::new();
    let _ = writeln!(text, "\nTimes {}.\n{}\n{}", found.growth, rules(args, found), found.why);
    let choice = found.choice();
    if let Some(prompt) =
        found.choice_without_delay().filter(|prompt| choice.delay > 0 && prompt.scheme != "uncoded")
    {
        let _ = writeln!(
            text,
            "With no delay (one model, no jobs to fill in with): {} with {:.4} s per job.",
            prompt.scheme, prompt.time_per_job
        );
    }
    let thrifty = |point: &&codedgrad::sim::planner::Point| {
        point.work <= THRIFT.0 * choice.work
            && point.time_per_job <= THRIFT.1 * choice.time_per_job
            && choice.scheme != "uncoded"
    };
    if let Some(point) = found.front.iter().find(thrifty) {
        let slower = 100.0 * (point.time_per_job / choice.time_per_job - 1.0);
        let _ = writeln!(
            text,
            "With less work: {} at {:.2}, {slower:.1} % slower.",
            point.scheme, point.work
        );
    }
    for cause in found.causes.iter().filter(|cause| !found.why.contains(&cause.words[1..])) {
        let begun = match cause.kind {
            // A scheme may well work around them.
            CauseKind::ConstantlySlowWorkers => "Beside any code",
            _ => "No code cures this",
        };
        let _ = writeln!(text, "{begun}: {}.", cause.with_saving());
    }
    for note in known.beside {
        let _ = writeln!(text, "But {note}.");
    }
    let mut text = begun + &table + &width.prose(&text);
    if args.accumulate == 1 && args.share_costs.is_none() {
        let begun = match known.lacks_workers {
            true => {
                "To check, on a file from which `codedgrad trace import` has left out the same:"
            }
            false => "To check:",
        };
        text += &width.with_command(begun, &check(args, question, found, known));
        text.push('\n');
    }
    text
}

/// Schemes and what they would do.
pub(crate) fn table_of(candidates: &[Candidate]) -> Table {
    let mut table = Table::new([
        Column::left("scheme"),
        Column::right("delay").spare(1),
        Column::right("work"),
        Column::right("s/job"),
        Column::right("gain here"),
    ])
    .remarks("why");
    for candidate in candidates {
        let Candidate { scheme, delay, work, time_per_job, gain, reason, mu, .. } = candidate;
        let mu = mu.map_or(String::new(), |mu| format!(" (mu {mu})"));
        let cells = [
            scheme.to_string(),
            delay.to_string(),
            format!("{work:.2}"),
            format!("{time_per_job:.4}"),
            format!("{:.1} %", 100.0 * gain),
        ];
        table.remarked(cells, format!("{reason}{mu}"));
    }
    table
}

/// The command that replays what is recommended.
fn check(
    args: &PlanArgs,
    question: &Question<'_>,
    found: &Plan,
    known: &AnswerNotes<'_>,
) -> String {
    let (choice, preset) = (found.choice(), Preset::named(&args.delays));
    let mut command = format!(
        "{} simulate {} --delays {} --workers {} --jobs {}",
        itself::name(),
        quoted(choice.scheme.text()),
        // What came by standard input is used up: it is for its user to say where it was from.
        if args.delays == "-" || known.lacks_workers {
            "FILE".into()
        } else {
            quoted(&args.delays)
        },
        found.workers,
        found.jobs
    );
    // Rounds after the last job are the first ones again.
    if known.cut && choice.delay > 0 {
        let _ = write!(command, " --rounds {}", found.jobs);
    }
    match (choice.close, choice.mu) {
        (Close::All, _) => command.push_str(" --rules paper"),
        (Close::Incremental, Some(mu)) => {
            let _ = write!(command, " --close incremental --mu {mu}");
        }
        _ => {}
    }
    let _ = match question.growth {
        // What is usual depends on how many workers there are.
        usual if usual == known.usual && !known.lacks_workers => Ok(()),
        Growth::AS_RECORDED => write!(command, " --slope 0"),
        Growth::Additive { base, slope } => write!(command, " --base-load {base} --slope {slope}"),
        Growth::Proportional { base } => write!(command, " --base-load {base}"),
    };
    if question.dispatch != preset.map_or(0.0, Preset::pull) {
        let _ = write!(command, " --dispatch {}", question.dispatch);
    }
    if let Some(seed) = source::seed_of(&args.delays, args.seed) {
        let _ = write!(command, " --seed {seed}");
    }
    command
}
