//! What is told of the steps of a run, for any trainer: who was late, and how long they took.

use crate::output::{plain, say};
use crate::pool::{ChangeCounts, PoolSummary};
use codedgrad::ids::Worker;
use codedgrad::sim::percentile;
use codedgrad::train::{Incident, IncidentKind, RoundRecord, StepRecord};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How numbers are spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Their mean.
    pub mean: f64,
    /// Half of them are below.
    pub p50: f64,
    /// 19 of 20 are below.
    pub p95: f64,
}

impl Spread {
    /// Of some values, in any order; zeros of none.
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self { mean: 0.0, p50: 0.0, p95: 0.0 };
        }
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self { mean, p50: percentile(&values, 0.5), p95: percentile(&values, 0.95) }
    }
}

/// Something that went wrong with a worker while the run went on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultLine {
    /// The run in which it was.
    pub run: usize,
    /// The step in which it was.
    pub step: u64,
    /// Whose fault it was.
    pub worker: Worker,
    /// What it was, in words.
    pub what: String,
    /// Whether it may be in a step that is decided.
    #[serde(skip)]
    stays: bool,
}

/// What has happened to workers while runs went on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfWorkers {
    /// Faults, as they came.
    pub faults: Vec<FaultLine>,
    /// How many have left, if any, where all workers make the run.
    #[serde(skip_serializing_if = "is_none")]
    pub left: u64,
    /// Where fewer workers than all may make the one run that there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<PoolSummary>,
    /// Whether the last one that left was told to, and is to be started again elsewhere.
    #[serde(skip)]
    pub preempted: bool,
    /// How often workers have come and gone in each run.
    #[serde(skip)]
    changed: BTreeMap<usize, ChangeCounts>,
}

impl OfWorkers {
    /// Something has happened.
    pub fn note(&mut self, run: usize, happened: &Incident) {
        let Incident { step, what, .. } = happened;
        if let Some(worker) = what.worker().filter(|_| what.is_fault()) {
            let stays = matches!(what, IncidentKind::Changed { is_decided: true, .. });
            let what = what.to_string();
            self.faults.push(FaultLine { run, step: step.0, worker, what, stays });
        }
        let changed = self.changed.entry(run).or_default();
        match &happened.what {
            IncidentKind::Joined { .. } => changed.joined += 1,
            IncidentKind::Lost { .. } => changed.lost += 1,
            IncidentKind::Planned { again: true, .. } => changed.rounds_begun_again += 1,
            _ if has_left(happened) => {
                changed.left += 1;
                self.preempted = was_told(happened);
            }
            _ => {}
        }
        self.left = self.changed.values().map(|changed| changed.left).sum();
    }

    /// How often workers have come and gone in a run.
    pub fn changed(&self, run: usize) -> ChangeCounts {
        self.changed.get(&run).copied().unwrap_or_default()
    }

    /// The same where how many have left is told beside the others that have come and gone.
    pub fn in_pool(self, pool: Option<PoolSummary>) -> Self {
        let left = if pool.is_some() { 0 } else { self.left };
        Self { left, pool, ..self }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// Whether a worker has left, as it wanted.
pub fn has_left(happened: &Incident) -> bool {
    matches!(happened.what, IncidentKind::Left { .. } | IncidentKind::LetGo { leaves: true, .. })
}

/// Whether a worker has left since it was told to end.
pub fn was_told(happened: &Incident) -> bool {
    matches!(
        happened.what,
        IncidentKind::Left { told: true, .. } | IncidentKind::LetGo { leaves: true, .. }
    )
}

/// In which steps results counted of workers whose parameters no other had confirmed, in words, if
/// there are any: as records tell, and what has happened since the last of them. A single worker
/// has no other to compare with.
pub fn unverified<'a>(
    records: impl Iterator<Item = &'a StepRecord>,
    faults: &[FaultLine],
) -> Option<String> {
    let alone = |record: &StepRecord| record.rounds.iter().all(|round| round.arrivals.len() == 1);
    let (mut steps, mut of) = (0, 0);
    let mut workers: BTreeSet<Worker> =
        faults.iter().filter(|fault| fault.stays).map(|fault| fault.worker).collect();
    for record in records.filter(|record| !alone(record)) {
        let unverified = &record.doubts.unverified;
        of += 1;
        steps += usize::from(!unverified.is_empty());
        workers.extend(unverified);
    }
    let numbers: Vec<String> = workers.iter().map(|worker| worker.0.to_string()).collect();
    (!numbers.is_empty()).then(|| {
        format!(
            "In {steps} of {of} steps results counted before another worker's parameters confirmed \
             those of workers ({}), as where others are late, or were changed after all: \
             `unverified` in run.jsonl and `changed` in events.jsonl name them. ",
            numbers.join(", ")
        )
    })
}

/// Says what has happened in a scheme's run; what is as it should be only to those who want to know
/// all.
pub fn tell(scheme: &str, happened: &Incident) {
    if matches!(&happened.what, IncidentKind::Planned { members, of, .. } if members.len() == *of) {
        return tracing::info!("{happened}");
    }
    say!("{scheme}: {}", plain(&happened.to_string()));
}

/// A worker is late if it takes so many times as long as the median answer.
const LATE: f64 = 1.5;

/// Who answered later than 1.5 times the median, or had not answered by then when a round closed.
/// A worker that was not needed before that is not late.
pub fn late(record: &RoundRecord) -> Vec<Worker> {
    let mut arrived: Vec<f64> = record.arrivals.iter().flatten().copied().collect();
    if arrived.is_empty() {
        return Vec::new();
    }
    arrived.sort_by(f64::total_cmp);
    let median = arrived[arrived.len() / 2];
    let late = |worker: &Worker| {
        let took = record.arrivals[worker.index()].unwrap_or(record.seconds);
        took > LATE * median && !record.erased.contains(worker)
    };
    Worker::all(record.arrivals.len()).filter(late).collect()
}

/// What is shown of a step that is decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// Under which scheme.
    pub scheme: String,
    /// Which step, of how many.
    pub step: u64,
    /// How many the run has.
    pub steps: u64,
    /// How long it took.
    pub seconds: f64,
    /// What came of it, in a few words.
    pub outcome: String,
    /// Who was late in it.
    pub late: BTreeSet<Worker>,
    /// How many workers had answered before it was decided, and how many there are.
    pub answered: [usize; 2],
}

impl StepSummary {
    /// Of how many steps a record is, who in its rounds counts as late, and what came of it.
    pub fn of(
        scheme: &str,
        (record, steps): (&StepRecord, u64),
        late: fn(&RoundRecord) -> Vec<Worker>,
        outcome: String,
    ) -> Self {
        let workers = record.rounds.iter().map(|round| round.arrivals.len()).max().unwrap_or(0);
        let has_answered =
            |worker: &Worker| record.rounds.iter().any(|round| round.has_answer_of(*worker));
        Self {
            scheme: scheme.into(),
            step: record.step,
            steps,
            seconds: record.seconds,
            outcome,
            late: record.rounds.iter().flat_map(late).collect(),
            answered: [Worker::all(workers).filter(has_answered).count(), workers],
        }
    }

    /// Says it in a line of its own, every tenth of the run.
    pub fn say(&self) {
        let (done, tenth) = (self.step + 1, (self.steps / 10).max(1));
        if done % tenth == 0 || done == self.steps {
            let Self { scheme, steps, seconds, outcome, .. } = self;
            let late = self.who_is_late();
            say!("{scheme}: step {done}/{steps}: {outcome}, {seconds:.2} s, {late}");
        }
    }

    fn who_is_late(&self) -> String {
        let names: Vec<String> = self.late.iter().map(|worker| format!("w{}", worker.0)).collect();
        match (&names[..], self.answered) {
            ([], [answered, workers]) if answered < workers => {
                format!("{answered} of {workers} answered")
            }
            ([], _) => "no worker late".into(),
            (names, _) => format!("{} late", names.join(" ")),
        }
    }
}

/// What is said beside a bar.
impl fmt::Display for StepSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} · {:.2} s · {}", self.outcome, self.seconds, self.who_is_late())
    }
}

#[cfg(test)]
mod tests;
