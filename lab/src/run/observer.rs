//! What happens at every step of a run: its gradient is checked, its record written, its state
//! kept.

use super::attack::DetectionCounts;
use super::checkpoint::{Place, SavedCheckpoint, States, Writer};
use super::plan::{ClockKind, LateKind, Plan};
use super::record::Line;
use crate::trainer::{Batches, Memory, Replica, ReplicaError, ReplicaState};
use codedgrad::gpu::Real;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{AUTO, Flow, Incident, Observer, StepRecord, WaitingRound};
use codedgrad_shell::clock::unix_seconds;
use codedgrad_shell::events::EventFile;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::folder::{LineFile, RECORD, RunFolder};
use codedgrad_shell::output::say;
use codedgrad_shell::progress::Progress;
use codedgrad_shell::steps::{OfWorkers, StepSummary, tell};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

/// A replica of each model beside the workers': it checks gradients against the whole batch, and
/// its state is what checkpoints and models are written from. Its time is not counted.
pub(crate) struct ReferenceReplicas<'a> {
    pub(crate) replicas: Vec<Replica>,
    pub(crate) batches: &'a Batches,
    pub(crate) loss_weight: f64,
}

impl ReferenceReplicas<'_> {
    pub(crate) fn states(&self) -> Result<Vec<ReplicaState>, ReplicaError> {
        self.replicas.iter().map(Replica::state).collect()
    }

    /// The gradient of all batches of a step, unit by unit, at the replica's parameters.
    pub(super) fn reference(&self, plan: &Plan, step: u64) -> Result<Vec<f32>, ReplicaError> {
        let model = step % plan.jobs.models;
        let replica = &self.replicas[model as usize];
        let mut units = Vec::new();
        for job in step * plan.jobs.micro_steps..(step + 1) * plan.jobs.micro_steps {
            for unit in 0..plan.shape.units as usize {
                let mut gradient = vec![0.0; replica.parameters()];
                let samples = unit * plan.shape.unit_samples..(unit + 1) * plan.shape.unit_samples;
                let windows = self.batches.rows_of(model, job / plan.jobs.models, samples);
                replica.gradient(&windows, self.loss_weight, &mut gradient)?;
                units.push(gradient);
            }
        }
        let messages: Vec<&[f32]> = units.iter().map(Vec::as_slice).collect();
        let mut sum = vec![0.0; replica.parameters()];
        f32::combine(&vec![1.0; messages.len()], &messages, &mut sum)
            .unwrap_or_else(|error| unreachable!("{error}"));
        Ok(sum)
    }
}

/// Largest difference of `found` from `expected`, relative to the largest entry of `expected`.
pub(super) fn relative_difference(found: &[f32], expected: &[f32]) -> f64 {
    let largest =
        |x: &mut dyn Iterator<Item = f32>| f64::from(x.fold(0.0f32, |a, b| a.max(b.abs())));
    let difference = largest(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    if difference == 0.0 { 0.0 } else { difference / largest(&mut expected.iter().copied()) }
}

/// Length of the difference of `found` from `expected`, relative to that of `expected`.
fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    let difference =
        squares(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    if difference == 0.0 {
        0.0
    } else {
        (difference / squares(&mut expected.iter().map(|x| f64::from(*x)))).sqrt()
    }
}

/// What a run is compared with: the first run of its plan, if it is a later one.
pub(crate) struct Baseline<'a> {
    lines: &'a [Line],
    /// Whether all steps so far had the bytes of the first run's, so that both are in the same
    /// state.
    in_step: bool,
}

impl<'a> Baseline<'a> {
    /// The first run's lines, for a run that has made these.
    pub(crate) fn new(lines: &'a [Line], mine: &[Line]) -> Self {
        let mut baseline = Self { lines, in_step: true };
        mine.iter().enumerate().for_each(|(step, line)| baseline.made(step, &line.record));
        baseline
    }

    /// The first run's step of this number, if it began in the state that this run is in.
    fn counterpart(&self, step: usize) -> Option<&Line> {
        self.lines.get(step).filter(|_| self.in_step)
    }

    /// Takes note of a step that the run has made.
    fn made(&mut self, step: usize, record: &StepRecord) {
        self.in_step &=
            self.lines.get(step).is_some_and(|theirs| same_gradient(&theirs.record, record));
    }
}

/// Whether a step had the same gradient as the first run's: equal digests prove it.
fn same_gradient(theirs: &StepRecord, mine: &StepRecord) -> bool {
    theirs.digest == mine.digest && theirs.refused.is_empty()
}

/// A run's turn, and the other runs meanwhile.
pub(crate) struct TurnState<'a> {
    pub(crate) number: u64,
    pub(crate) step_seconds: f64,
    /// Steps that each run has made, this one included.
    pub(crate) made: Vec<u64>,
    /// The states that the others are in.
    pub(crate) others: Vec<(usize, &'a [ReplicaState])>,
}

/// What runs write while they go on.
pub(crate) struct Files {
    record: LineFile,
    pub(crate) events: EventFile,
    checkpoints: Writer,
    /// Where the runs stand in the checkpoint that was asked for last.
    saved: Option<Place>,
}

impl Files {
    /// Has the record go on after its first lines, and all else where it was; checkpoints say by
    /// its digest of which plan they are.
    pub(crate) fn open(
        (folder, plan): (&RunFolder, String),
        kept: usize,
        timed: bool,
    ) -> Result<Self, Failure> {
        Ok(Self {
            record: LineFile::open(&folder.file(RECORD), kept)?,
            events: EventFile::open(folder, timed)?,
            checkpoints: Writer::new(folder, plan),
            saved: None,
        })
    }

    /// Has states written that are copied by a function.
    pub(crate) fn save(
        &mut self,
        place: &Place,
        copied: impl FnOnce() -> anyhow::Result<States>,
    ) -> anyhow::Result<()> {
        let before = self.checkpoints.save(&self.record, place, copied)?;
        self.saved = Some(place.clone());
        self.tell(before);
        Ok(())
    }

    /// Fails if a checkpoint could not be written.
    fn check(&mut self) -> anyhow::Result<()> {
        let saved = self.checkpoints.poll()?;
        self.tell(saved);
        Ok(())
    }

    /// Waits until what was to be saved is on disk.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        let saved = self.checkpoints.finish()?;
        self.tell(saved);
        Ok(())
    }

    fn tell(&mut self, saved: Option<SavedCheckpoint>) {
        if let Some(SavedCheckpoint { place, took }) = saved {
            self.events.saved(place, took);
        }
    }
}

/// Follows one run, or a block of it.
pub(crate) struct RunObserver<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) run: usize,
    pub(crate) reference: ReferenceReplicas<'a>,
    pub(crate) files: &'a mut Files,
    pub(crate) lines: Vec<Line>,
    pub(crate) baseline: Baseline<'a>,
    /// Where schemes take turns.
    pub(crate) in_turn: Option<TurnState<'a>>,
    pub(crate) of_workers: OfWorkers,
    pub(crate) bar: &'a mut Progress,
    /// Whether the scheme looks for Byzantine workers.
    pub(crate) looks: bool,
    pub(crate) interrupted: &'a AtomicBool,
    /// Why the run was given up, if it was.
    pub(crate) diverged: Option<String>,
}

impl RunObserver<'_> {
    /// How far the decoded gradient is from the uncoded one: nothing if the first run, in the same
    /// state, had the same bytes; else computed every so many steps and whenever bytes first
    /// differ.
    fn difference<V: Memory>(
        &self,
        step: &StepRecord,
        decoded: &DecodedSum<V>,
    ) -> Result<Option<(f64, f64)>, ReplicaError> {
        let counterpart = self.baseline.counterpart(self.lines.len());
        if counterpart.is_some_and(|line| same_gradient(&line.record, step)) {
            return Ok(Some((0.0, 0.0)));
        }
        // A step that took over late samples of another has no whole batch to be compared with.
        let other_samples = self.plan.late == LateKind::NextStep;
        if other_samples
            || counterpart.is_none() && !step.step.is_multiple_of(self.plan.upkeep.audit_every)
        {
            return Ok(None);
        }
        let reference = self.reference.reference(self.plan, step.step)?;
        let gradient = decoded.gradient.numbers()?;
        let errors =
            (relative_difference(&gradient, &reference), relative_error(&gradient, &reference));
        Ok(Some(errors))
    }

    fn follow<V: Memory>(
        &mut self,
        record: &StepRecord,
        decoded: Option<&DecodedSum<V>>,
    ) -> anyhow::Result<Flow> {
        let mut difference = None;
        if let Some(decoded) = decoded {
            difference = self.difference(record, decoded)?;
            let (model, step) =
                (record.step % self.plan.jobs.models, record.step / self.plan.jobs.models);
            self.reference.replicas[model as usize].apply(&*decoded.gradient, step)?;
        } else if record.refused.is_empty() {
            anyhow::bail!("the sum of step {} has not come by here", record.step);
        }
        let loss = match record.aux[..] {
            // Neither is sure to be a number.
            [sum, tokens] if tokens > 0.0 => Some(sum / tokens).filter(|loss| loss.is_finite()),
            _ => None,
        };
        let line = Line {
            run: self.run,
            scheme: self.plan.schemes[self.run].to_string(),
            loss,
            gradient_difference: difference.map(|errors| errors.0),
            gradient_error: difference.map(|errors| errors.1),
            caught: (self.plan.injected.attack.is_some() || self.looks)
                .then(|| DetectionCounts::of(&self.plan.injected.attackers, record)),
            turn: self.in_turn.as_ref().map(|turn| turn.number),
            step_seconds: self.in_turn.as_ref().map(|turn| turn.step_seconds),
            at: (self.plan.timing.clock == ClockKind::Wall).then(unix_seconds),
            record: record.clone(),
        };
        if let Some(why) = record.under.using.as_ref().and_then(|using| using.why.as_ref()) {
            say!("{AUTO}: step {}: {why}", record.step);
        }
        self.files.record.push(&line)?;
        self.files.check()?;
        self.show(&line);
        self.baseline.made(self.lines.len(), record);
        self.lines.push(line);
        self.check_progress()?;
        let interrupted = self.interrupted.load(Ordering::Relaxed);
        let next_step = record.step + 1;
        let place = self.place(next_step);
        // All that may be lost is what the record has after the last checkpoint, whoever made it.
        let steps = if place.made.is_empty() { next_step } else { place.made.iter().sum() };
        if interrupted
            || steps.is_multiple_of(self.plan.upkeep.checkpoint_every)
            || next_step == self.plan.all_steps()
        {
            self.save(&place)?;
        }
        Ok(if interrupted && next_step < self.plan.all_steps() {
            Flow::Stop
        } else {
            Flow::Continue
        })
    }

    /// A run whose steps are all refused learns nothing more: what follows is not worth its time.
    fn check_progress(&mut self) -> anyhow::Result<()> {
        let most = self.plan.upkeep.give_up_after;
        let is_refused = |line: &&Line| !line.record.refused.is_empty();
        let refused = self.lines.iter().rev().take_while(is_refused).count() as u64;
        if most == 0 || refused < most {
            return Ok(());
        }
        let last = self.lines.len() as u64 - 1;
        let why = format!(
            "has diverged: steps {} to {last} were refused, since their gradients are not finite; \
             a lower --learning-rate may help (aborted by --give-up-after {most})",
            last + 1 - refused
        );
        self.diverged = Some(why.clone());
        anyhow::bail!(why)
    }

    fn place(&mut self, next_step: u64) -> Place {
        match &mut self.in_turn {
            None => Place::of(self.run, next_step),
            Some(turn) => {
                turn.made[self.run] = next_step;
                Place::in_turn(self.run, turn.made.clone())
            }
        }
    }

    /// Saves the steps since the last checkpoint of a run that was cut short.
    pub(crate) fn save_rest(&mut self) -> anyhow::Result<()> {
        let place = self.place(self.lines.len() as u64);
        if self.lines.is_empty() || self.files.saved.as_ref() == Some(&place) {
            return Ok(());
        }
        self.save(&place)
    }

    fn save(&mut self, place: &Place) -> anyhow::Result<()> {
        let run = self.run;
        let replicas = &self.reference;
        let in_turn = &self.in_turn;
        self.files.save(place, || {
            let others = in_turn.iter().flat_map(|turn| &turn.others);
            let mut states: States = others.map(|(run, states)| (*run, states.to_vec())).collect();
            states.insert(run, replicas.states()?);
            Ok(states)
        })
    }

    fn show(&mut self, line: &Line) {
        let loss = match line.loss {
            Some(loss) => format!("loss {loss:.3}"),
            None if line.record.refused.is_empty() => "loss nan".into(),
            None => "refused".into(),
        };
        let step = (&line.record, self.plan.all_steps());
        self.bar.show(&StepSummary::of(&line.scheme, step, self.plan.timing.late(), loss));
    }
}

impl<V: Memory> Observer<V> for RunObserver<'_> {
    fn step(
        &mut self,
        record: &StepRecord,
        decoded: Option<&DecodedSum<V>>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.follow(record, decoded).map_err(|error| format!("{error:#}").into())
    }

    fn event(&mut self, happened: &Incident) {
        self.files.events.happened(self.run, happened, None);
        tell(self.plan.schemes[self.run].text(), happened);
        self.of_workers.note(self.run, happened);
    }

    fn waiting(&mut self, waiting: &WaitingRound) -> Flow {
        // A user who asks the run to end does not wait for a worker's return.
        let ends = self.interrupted.load(Ordering::Relaxed) && waiting.needs_return;
        if ends { Flow::Stop } else { Flow::Continue }
    }
}
