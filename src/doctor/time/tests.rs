//! Where the time of rounds goes.

#![cfg(test)]

use super::*;
use crate::doctor::{RecordedRound, RecordedStep};

fn step(number: u64, opened: f64, committed: f64, at: Option<f64>) -> RecordedStep {
    RecordedStep {
        run: 0,
        scheme: "uncoded".into(),
        step: number,
        committed,
        seconds: 2.0,
        at,
        rounds: vec![RecordedRound {
            round: number,
            opened,
            seconds: 1.5,
            arrivals: vec![Some(1.0), None],
            delays: Vec::new(),
        }],
        survivors: None,
        spent: Vec::new(),
        using: None,
        plan: None,
        work: None,
        coverage: None,
    }
}

fn record(steps: impl IntoIterator<Item = RecordedStep>) -> Record {
    let mut record = Record::default();
    steps.into_iter().for_each(|step| record.push(step).unwrap());
    record
}

#[test]
fn rounds_nobody_answered_were_computed_in_all_along() {
    let mut silent = step(1, 2.0, 4.0, None);
    silent.rounds[0].arrivals = vec![None, None];
    let found = TimeSpent::of(&record([step(0, 0.25, 2.0, None), silent]));
    let TimeSpent { total, computing, waiting, deciding, between, overlapped } = found;
    assert_eq!((total, computing, waiting), (3.75, 2.5, 0.5));
    assert_eq!((deciding, between, overlapped), (0.75, 0.0, false));
    assert_eq!(found.share(deciding), 0.2);
}

#[test]
fn a_step_that_is_decided_before_its_round_ends_was_decided_in_no_time() {
    let found = TimeSpent::of(&record([step(0, 0.0, 1.0, None), step(1, 0.5, 3.0, None)]));
    assert_eq!((found.deciding, found.between, found.overlapped), (1.0, 0.0, true));
    assert_eq!(TimeSpent::of(&Record::default()), TimeSpent::default());
}

#[test]
fn the_wall_clock_shows_what_the_runs_own_does_not() {
    let event =
        |at, kind: &str| RunEvent { at: Some(at), kind: kind.into(), ..RunEvent::default() };
    let stamped = |stamps: [Option<f64>; 3]| {
        let steps = (0..).zip(stamps).map(|(k, at)| step(k, 2.0 * k as f64, 2.0, at));
        record(steps)
    };
    let events = [event(104.0, "lost"), event(101.0, "join"), event(110.0, "resume")];
    let events: Vec<&RunEvent> = events.iter().collect();
    let found = WallClock::of(&stamped([Some(100.0), Some(102.0), Some(110.0)]), &events);
    assert_eq!((found.effective, found.lost_seconds), (Some(0.5), 6.0));
    let gap = found.gap.unwrap();
    assert_eq!((gap.step, gap.seconds), (2, 6.0));
    assert_eq!(gap.events, BTreeMap::from([("lost".into(), 1), ("resume".into(), 1)]));
    let back = WallClock::of(&stamped([Some(100.0), Some(99.0), Some(110.0)]), &[]);
    assert_eq!((back.effective, back.went_back), (None, Some(1)));
    let without = WallClock::of(&stamped([Some(100.0), None, Some(110.0)]), &[]);
    assert_eq!(without, WallClock::default());
}
