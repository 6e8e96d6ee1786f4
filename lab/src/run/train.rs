//! `codedgrad-lab train`: the main job.

use super::plan::{self, Plan, Training};
use super::report::Summary;
use super::run_args::{CommandInputs, RunArgs, absolute};
use super::session::Session;
use crate::pool_file;
use anyhow::anyhow;
use clap::Args;
use codedgrad::files::BoundedReader;
use codedgrad::train::AUTO;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families::{self, RunScheme};
use codedgrad_shell::folder::{PLAN, RunFolder};
use codedgrad_shell::itself::{self, quoted};
use codedgrad_shell::layout::help;
use codedgrad_shell::output::{Output, say};
use codedgrad_shell::pool::{Seats, seats};
use codedgrad_shell::signals::EndRequest;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Args)]
#[command(after_help = help(&format!("\
Schemes: {schemes}; or auto: steps are recorded uncoded, the planner is asked, and the run goes on
         with what it finds fastest, where that saves more than 5 % (auto:probe=20,every=200
         measures 20 of 200 steps; at least 20 are recommended). Those over several rounds are
         for --models or --accumulate; `codedgrad code --help` says what each does.
Delays:  hotspot | bursts | iid | static | calm | stalls | proportional, in units of the uncoded
         compute time of a step; serverless | serverless-cold, in seconds; or a CSV file of
         seconds: one line per step, one number per worker; `codedgrad trace stats` measures
         them

Examples:
  codedgrad-lab train    # uncoded, groups:s=1 and queue:m=2, 3 to 4 minutes
  codedgrad-lab train --scheme defer:cap=2,cut=2 --models 2 --compare uncoded
  codedgrad-lab train --scheme m-sgc:B=1,W=2,lambda=3 --micro-batches 40 --accumulate 8
  codedgrad-lab train --scheme auto --compare uncoded    # let the planner choose
  codedgrad-lab train --scheme vote:s=1,b=1 --attack flip --compare uncoded --workers 12
  codedgrad-lab train --no-stragglers    # what redundancy costs when nobody is slow
  codedgrad-lab train --scheme groups:s=2 --compare uncoded --workers 9 --corpus docs/
  codedgrad-lab train --clock virtual --json    # modelled time, reproducible to the byte", schemes = families::all_forms())))]
pub(crate) struct TrainArgs {
    /// Scheme to train with; without it, `uncoded` is compared with `groups:s=1` and `queue:m=2`
    #[arg(long, conflicts_with = "resume", value_name = "TEXT")]
    scheme: Option<String>,
    /// Another scheme to compare it with; may be given several times, the first is the baseline. On
    /// the wall clock, schemes over threads take turns of 10 steps or more
    #[arg(long, conflicts_with = "resume", value_name = "TEXT", requires = "scheme")]
    compare: Vec<String>,
    /// Number of workers; MIN..MAX where the run may be made by fewer than MAX
    /// [default: 8, or as --pool has them; a resumed run may be given another MIN..MAX]
    #[arg(long, value_name = "N|MIN..MAX", value_parser = seats)]
    workers: Option<Seats>,
    /// Injected stragglers: a preset or a CSV file
    #[arg(long, conflicts_with = "resume", value_name = "PRESET|FILE", default_value = "hotspot")]
    delays: String,
    /// Inject no delays
    #[arg(long, conflicts_with_all = ["resume", "delays"])]
    no_stragglers: bool,
    /// Workers that come and are lost, from a CSV file as `codedgrad-lab pool` takes it
    ///
    /// A row says how many workers there are from then on, by the run's clock; who is lost is drawn
    /// with --seed. A thread that is lost is ended without notice; one that comes takes over a
    /// state.
    #[arg(long, value_name = "FILE", conflicts_with = "resume", hide_short_help = true)]
    pool: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

impl TrainArgs {
    /// How many workers the run has, as it is told or as its pool has them.
    fn seats(&self) -> Result<Seats, Failure> {
        match (self.workers, &self.pool) {
            (Some(seats), _) => Ok(seats),
            (None, None) => Ok(WORKERS),
            (None, Some(path)) => {
                let pool = pool_file::read(path, BoundedReader::open)?;
                let least = u32::try_from(pool.least()).unwrap_or(u32::MAX);
                Ok(Seats::between(least.max(1), pool.most() as u32))
            }
        }
    }

    /// What the command line asks for; the vocabulary is that of the text.
    fn plan(&self, vocabulary: usize) -> Result<Plan, Failure> {
        let seats = self.seats()?;
        if self.scheme.is_none() && seats.most < 2 {
            return Err(Failure::Input(anyhow!(
                "--workers {seats}: without --scheme, groups:s=1 is compared, which needs 2 or \
                 more; --scheme uncoded trains with one"
            )));
        }
        let several = |text: &&String| {
            let is_scheme = |word: &&str| {
                word.contains(':') || families::registry().family(word).is_some() || *word == AUTO
            };
            text.split(',').filter(is_scheme).count() > 1
        };
        if let Some(text) = self.compare.iter().find(several) {
            return Err(Failure::Input(anyhow!(
                "--compare {text}: give every scheme a --compare of its own"
            )));
        }
        let texts: Vec<&str> = match &self.scheme {
            None => vec!["uncoded", "groups:s=1", "queue:m=2"],
            Some(scheme) => self.compare.iter().chain([scheme]).map(String::as_str).collect(),
        };
        let schemes = texts.into_iter().map(RunScheme::parse);
        let own = CommandInputs {
            schemes: schemes.collect::<Result<_, _>>().or_input()?,
            seats,
            delays: (!self.no_stragglers).then(|| self.delays.clone()),
            pool: absolute(self.pool.as_ref())?,
        };
        let mut plan = self.run.plan(vocabulary, own)?;
        plan.turns = plan.possible_turns(self.run.planned.step_seconds.is_none());
        let Training { compute, peak_tflops, .. } = &mut plan.training;
        let devices = compute.processor.devices().or_input()?;
        let devices = devices.min(seats.most as usize * compute.devices_per_worker);
        *peak_tflops = peak_tflops.or_else(|| Some(devices as f64 * compute.peak_tflops()?));
        Ok(plan)
    }
}

/// The workers of a run that is not told how many.
const WORKERS: Seats = Seats::all(8);

/// Set by the first Ctrl-C or SIGTERM; the second one ends the process at once.
fn interruption(asked: &EndRequest) -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    asked.then(move |_| {
        flag.store(true, Ordering::Relaxed);
        say!("interrupted: finishing the step and saving (again to stop at once)");
    });
    interrupted
}

/// How a run that was shown ends: no caller must take one that was interrupted, or that diverged,
/// for one that is done.
fn ended(summary: &Summary, asked: &EndRequest) -> Result<(), Failure> {
    if let Some(diverged) = summary.diverged() {
        return Err(Failure::Work(anyhow!("{diverged}")));
    }
    if !summary.interrupted {
        return Ok(());
    }
    Err(Failure::Said(asked.ended()))
}

pub(crate) fn run(args: &TrainArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let asked = EndRequest::catch(false)?;
    let interrupted = interruption(&asked);
    let mut session = match &args.run.resume {
        Some(path) => {
            let folder = RunFolder::open(PLAN, path)?;
            let plan = Plan::read(&folder.plan())?;
            plan.training.compute.processor.devices().or_input()?;
            Session::resume((plan, args.run.changes(args.workers)), folder, interrupted)?
        }
        None => {
            let tokens = plan::tokens(
                args.run.planned.corpus.as_deref(),
                args.run.planned.tokenizer.as_deref(),
            )?;
            let plan = args.plan(tokens.vocabulary)?;
            let batches = plan.batches(tokens)?;
            Session::begin(
                plan,
                batches,
                (args.run.planned.out.as_deref(), args.run.planned.force),
                args.run.planned.step_seconds.is_none(),
                interrupted,
            )?
        }
    };
    let introduced = session.introduce(args.run.json, output);
    session.folder().settle(introduced)?;
    session.say_if_finished();
    let outcome = session.execute();
    let summary = session.folder().settle(outcome)?;
    let shown = show(&session, &summary, args.run.json, output);
    // How the run ended counts for more than a failure to show it.
    ended(&summary, &asked)?;
    shown
}

/// Shows what came of a run, and how it can go on.
fn show(
    session: &Session,
    summary: &Summary,
    json: bool,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    if json {
        let json = serde_json::to_string(summary).or_work()?;
        return output.print(format_args!("{json}\n")).or_work();
    }
    let width = output.width();
    let mut text = String::from("\n");
    if let Some(diverged) = summary.diverged() {
        text += &width.prose(&format!("{diverged}.\n\n"));
    }
    text += &(summary.table(width) + "\n");
    if let Some(speeds) = summary.speeds() {
        text += &width.prose(&(speeds + "\n"));
    }
    for table in summary.honesty_table(width).into_iter().chain(summary.legs_tables(width)) {
        text += &(table + "\n");
    }
    if summary.diverged().is_none() {
        text += &width.prose(&(summary.sentence(session.plan()) + "\n"));
    }
    let path = session.folder().path().display();
    text += &if summary.interrupted {
        let command = format!("{} train --resume {}", itself::lab(), quoted(&path.to_string()));
        width.with_command("\nInterrupted. Go on with:", &command)
    } else {
        let last = summary.runs.len().saturating_sub(1);
        let (found, command) = codedgrad_cli::hint(session.folder().path(), last);
        width.prose(&format!(
            "\nThe run is in {path}: summary.json, run.jsonl, loss.svg, steps.svg and the models.\n"
        )) + &width.with_command(&found, &command)
    };
    text.push('\n');
    output.print(format_args!("{text}")).or_work()
}
