//! A training run's record, made into a trace.

use super::recorded::RecordedRun;
use codedgrad::delays::{Growth, write_row};
use codedgrad::doctor::{AnswerRows, RunContext, examine};
use codedgrad_shell::failure::{Failure, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::folder::{self, ADDRESS, PLAN};
use codedgrad_shell::output::Output;
use codedgrad_shell::units::several;
use serde::Deserialize;
use std::path::Path;

/// Answers not waited for, as a share of all, above which a recording says little about stragglers.
const CENSORED_MAX: f64 = 0.05;

/// A recorded run as a trace.
pub(crate) struct Recording {
    pub(crate) rows: Vec<Vec<f64>>,
    workers: usize,
    /// Which run, its scheme, and how many there are.
    number: usize,
    scheme: String,
    runs: usize,
    /// Answers that no round waited for and no worker reported of.
    censored: usize,
    one_machine: bool,
}

impl Recording {
    pub(super) fn of(mut recorded: RecordedRun) -> Result<Self, Failure> {
        let AnswerRows { rows, estimated } = AnswerRows::of(&recorded.record);
        Ok(Self {
            rows,
            workers: recorded.record.workers(),
            number: recorded.number,
            runs: recorded.schemes.len(),
            scheme: recorded.schemes.remove(&recorded.number).unwrap_or_default(),
            censored: estimated,
            one_machine: on_one_machine(&recorded)?,
        })
    }

    /// The trace of a run's folder or record, as text; with `grown`, that of the times to plan
    /// with, and how they grow, where that can be told.
    pub(crate) fn as_text(
        run: &Path,
        grown: bool,
        output: &mut Output<'_>,
    ) -> Result<(Vec<u8>, Option<Growth>), Failure> {
        let recorded = RecordedRun::read(run, None, false, output)?;
        let known = RunContext { registry: families::registry(), events: &[] };
        let found = grown.then(|| examine(&recorded.record, &known).to_plan()).flatten();
        let made = Self::of(recorded)?;
        made.say(output);
        if grown && found.is_none() {
            made.say_load(output);
        }
        let (rows, growth) = found.map_or((made.rows, None), |(rows, growth)| (rows, Some(growth)));
        let mut csv = Vec::new();
        rows.iter().try_for_each(|row| write_row(&mut csv, row)).or_work()?;
        Ok((csv, growth))
    }

    /// Says what it was made of.
    pub(super) fn say(&self, output: &mut Output<'_>) {
        let Self { rows, workers, number, scheme, runs, censored, .. } = self;
        let rows = rows.len();
        let share = *censored as f64 / (rows as f64 * *workers as f64).max(1.0);
        output.note(format_args!(
            "recorded {} of {}, run {number} ({scheme}) of {runs}",
            several(rows, "step"),
            several(*workers, "worker")
        ));
        output.note(format_args!(
            "censored: {} ({:.1} %) had not arrived by the close; what stands there is estimated, \
             and may be too low",
            several(*censored, "answer"),
            100.0 * share
        ));
        if share > CENSORED_MAX {
            output.note(format_args!(
                "warning: that is a lot; a run that waits for all workers (uncoded) gives a better \
                 trace"
            ));
        }
        if self.one_machine {
            output.notes.hint(format_args!(
                "the workers shared one machine: those that share cores slow one another \
                 down, so what takes more work may take longer than a replay says"
            ));
        }
    }

    /// Warns where workers computed something else than an uncoded share.
    fn say_load(&self, output: &mut Output<'_>) {
        let spec = families::scheme_of_record(&self.scheme);
        let Some(Ok(facts)) = spec.map(|spec| spec.natural(self.workers)) else { return };
        if self.scheme != "uncoded" {
            output.note(format_args!(
                "warning: run {} is {}, whose workers compute up to {} of a batch and not 1/{}: \
                 give --base-load, or record an uncoded run",
                self.number, self.scheme, facts.load, self.workers
            ));
        }
    }
}

/// Whether the workers of a record's run were threads or children of one process and measured by
/// the wall's clock; a coordinator that others call writes its address.
fn on_one_machine(recorded: &RecordedRun) -> Result<bool, Failure> {
    let plan: Option<Plan> = folder::json_if_there(&recorded.beside(PLAN))?;
    Ok(plan.is_some_and(|plan| plan.clock == "wall") && !recorded.beside(ADDRESS).exists())
}

/// What is asked of a run's plan.
#[derive(Deserialize)]
struct Plan {
    clock: String,
}
