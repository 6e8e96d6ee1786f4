//! A run whose scheme is chosen while it goes on.

use codedgrad::sums::DecodedSum;
use codedgrad::train::{Auto, Builder, Coordinator, Event, Flow, Observer, Outcome, StepRecord};
use std::error::Error;
use std::fmt::Write as _;
use std::ops::Range;
use std::thread;

const WORKERS: usize = 2;
const UNITS: u32 = 16;
const STEPS: u64 = 400;

/// Keeps what is shown.
#[derive(Default)]
struct Kept {
    records: Vec<StepRecord>,
    stop_after: Option<u64>,
}

impl Observer for Kept {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.records.push(record.clone());
        let stop = self.stop_after == Some(record.step);
        Ok(if stop { Flow::Stop } else { Flow::Continue })
    }
}

/// A file of delays: worker 1 is held up in steps as told, and no worker takes equally long twice.
fn held_up(steps: u64, seconds: impl Fn(u64) -> f64) -> tempfile::NamedTempFile {
    let mut text = String::new();
    let most = (0..steps).map(&seconds).fold(0.0, f64::max);
    for step in 0..steps {
        let noise = |salt: u64| (step * salt % 13) as f64 * most / 1000.0;
        let _ = writeln!(text, "{},{}", noise(5), seconds(step) + noise(7));
    }
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Worker 1 is held up for so long in these steps.
fn late_in(late: Range<u64>, seconds: f64) -> tempfile::NamedTempFile {
    held_up(STEPS, |step| if late.contains(&step) { seconds } else { 0.0 })
}

/// Runs it: every worker's model is two numbers whose gradient depends on them, so that a wrong sum
/// of any step shows at the end.
fn run(run: Builder, observer: &mut Kept) -> Vec<[f32; 2]> {
    let (coordinator, workers) = run.local().unwrap();
    let threads = workers.into_iter().map(|mut worker| {
        thread::spawn(move || {
            let mut model = [1.0f32, 0.5];
            while let Some(event) = worker.next_event().unwrap() {
                match event {
                    Event::Compute(mut task) => {
                        while let Some(part) = task.next_part() {
                            let (unit, factor) =
                                (part.samples.start as f32, part.coefficient as f32);
                            let numbers = task.message();
                            numbers[0] = factor * (model[1] * (1.0 + unit)).sin();
                            numbers[1] = factor * (model[0] - unit).cos();
                        }
                        task.submit(vec![]).unwrap();
                    }
                    Event::Apply(step) => {
                        let gradient = [step.gradient()[0], step.gradient()[1]];
                        (0..2).for_each(|at| model[at] -= 0.01 * gradient[at]);
                    }
                    Event::Provide(request) => request.reply(vec![model.to_vec()]),
                    Event::Resync(state) => model.copy_from_slice(&state.vectors[0]),
                    Event::Skip(_) => {}
                }
            }
            model
        })
    });
    let threads: Vec<_> = threads.collect();
    let outcome = coordinator.run(observer).unwrap();
    assert_eq!(outcome == Outcome::Stopped, observer.stop_after.is_some());
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn told(delays: &tempfile::NamedTempFile) -> Builder {
    Coordinator::builder("uncoded")
        .workers(WORKERS)
        .units(UNITS)
        .steps(STEPS)
        .length(2)
        .delays(delays.path().to_str().unwrap(), 1)
        .modelled()
        .step_seconds(0.25)
}

fn schemes(records: &[StepRecord]) -> Vec<(u64, String)> {
    let using = records.iter().map(|record| {
        (
            record.step,
            record.under.using.as_ref().map_or_else(String::new, |using| using.scheme.clone()),
        )
    });
    let mut changes: Vec<(u64, String)> = using.collect();
    changes.dedup_by(|a, b| a.1 == b.1);
    changes
}

#[test]
fn nothing_is_changed_where_nobody_is_late() {
    let calm = late_in(0..0, 0.0);
    let mut uncoded = Kept::default();
    let expected = run(told(&calm), &mut uncoded);
    let mut kept = Kept::default();
    let models = run(told(&calm).auto(Auto::default()), &mut kept);
    assert_eq!(schemes(&kept.records), [(0, "uncoded".to_owned())]);
    assert_eq!(models, expected);
    let whys: Vec<_> =
        kept.records.iter().filter_map(|record| record.under.using.as_ref()?.why.clone()).collect();
    assert!(whys[0].contains("staying uncoded"), "{whys:?}");
    assert_eq!(ended(&kept).to_bits(), ended(&uncoded).to_bits());
}

#[test]
fn lateness_is_met_and_its_end_is_noticed() {
    let late = late_in(30..230, 1.0);
    let expected = run(told(&late), &mut Kept::default());
    let mut kept = Kept::default();
    let models = run(told(&late).auto(Auto::default()), &mut kept);
    let changes = schemes(&kept.records);
    let (first, scheme) = &changes[1];
    assert!((31..=90).contains(first) && scheme != "uncoded", "{changes:?}");
    let using = kept.records[*first as usize].under.using.clone().unwrap();
    let why = using.why.unwrap();
    assert!(
        why.contains(" s per step instead of 1.25") && why.ends_with(" s uncoded: switching"),
        "{why}"
    );
    let (last, scheme) = changes.last().unwrap();
    assert!((230..=300).contains(last) && scheme == "uncoded", "{changes:?}");
    assert_eq!(models, expected, "whatever the scheme, the sums are the same trees");
}

/// A run that is told of the steps of another goes on with what that had come to, and knows as
/// much.
#[test]
fn a_resumed_run_keeps_its_scheme() {
    let late = late_in(30..STEPS, 1.0);
    let mut whole = Kept::default();
    run(told(&late).auto(Auto::default()), &mut whole);
    let mut kept = Kept { stop_after: Some(99), ..Kept::default() };
    run(told(&late).auto(Auto::default()), &mut kept);
    assert_eq!(kept.records, whole.records[..100]);
    let mut auto = Auto::default();
    kept.records.iter().for_each(|record| auto.replay(record));
    assert_ne!(auto.using().scheme, "uncoded");
    let mut rest = Kept::default();
    // Delays are told by round, so that a run that begins later has those from the first on.
    run(told(&late_in(0..STEPS, 1.0)).first(100).auto(auto), &mut rest);
    assert_eq!(rest.records[0].under.using, whole.records[100].under.using);
    let later: Vec<_> =
        schemes(&whole.records).into_iter().filter(|(step, _)| *step > 100).collect();
    assert_eq!(schemes(&rest.records)[1..], later);
}

fn ended(kept: &Kept) -> f64 {
    kept.records.last().unwrap().committed
}

/// A worker that is held up every 50 steps, as one is that saves, is no reason to go back and
/// forth, nor to pay for it.
#[test]
fn what_comes_now_and_then_changes_little() {
    let steps = 1000;
    let spikes = held_up(steps, |step| if step % 50 == 7 { 1.0 } else { 0.0 });
    let mut uncoded = Kept::default();
    run(told(&spikes).steps(steps), &mut uncoded);
    let mut kept = Kept::default();
    run(told(&spikes).steps(steps).auto(Auto::default()), &mut kept);
    let changes = schemes(&kept.records);
    assert!(changes.len() <= 10, "{changes:?}");
    assert!(ended(&kept) <= 1.02 * ended(&uncoded), "{} {}", ended(&kept), ended(&uncoded));
}

/// However slow a worker is: what is lost by looking whether it still is stays small.
#[test]
fn looking_again_costs_little() {
    let steps = 3000;
    let slow = held_up(steps, |step| if step < 30 { 0.0 } else { 10.0 });
    let mut kept = Kept::default();
    run(told(&slow).steps(steps).auto(Auto::default()), &mut kept);
    let is_coded = |record: &&StepRecord| record.under.using.as_ref().unwrap().scheme != "uncoded";
    let first = kept.records.iter().find(is_coded).unwrap().step as usize;
    let after = &kept.records[first..];
    let seconds = |records: &mut dyn Iterator<Item = &StepRecord>| -> f64 {
        records.map(|record| record.seconds).sum()
    };
    let looked = seconds(&mut after.iter().filter(|record| !is_coded(record)));
    let all = seconds(&mut after.iter());
    assert!(looked > 0.0 && looked < 0.1 * all, "{looked} of {all}");
}
