//! What a record takes, and what it refuses.

#![cfg(test)]

use super::*;

fn line(step: u64, arrivals: &[Option<f64>]) -> RecordedStep {
    let round = RecordedRound {
        round: step,
        opened: step as f64,
        seconds: 1.0,
        arrivals: arrivals.to_vec(),
        delays: Vec::new(),
    };
    RecordedStep {
        run: 0,
        scheme: "auto".into(),
        step,
        committed: step as f64 + 1.0,
        seconds: 1.0,
        at: None,
        rounds: vec![round],
        survivors: None,
        spent: Vec::new(),
        using: Some(UsedScheme { scheme: "uncoded".into() }),
        plan: None,
        work: None,
        coverage: None,
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut record = Record::default();
    let said = |record: &mut Record, line| record.push(line).unwrap_err().to_string();
    assert!(said(&mut record, line(0, &[])).contains("0 workers, where one or more"));
    record.push(line(0, &[Some(1.0), None])).unwrap();
    let fewer = said(&mut record, line(7, &[Some(1.0)]));
    assert_eq!(fewer, "round 7 has arrivals of 1 workers, where 2 are expected");
    assert!(said(&mut record, line(1, &[Some(-1.0), None])).contains("arrivals: -1 is no time"));
    let endless = RecordedStep { committed: f64::INFINITY, ..line(1, &[None, None]) };
    assert!(said(&mut record, endless).contains("committed: inf is no time"));
    let at = RecordedStep { at: Some(f64::NAN), ..line(1, &[None, None]) };
    assert!(said(&mut record, at).contains("at: NaN"));
    assert_eq!((record.steps(), record.rounds(), record.workers()), (1, 1, 2));
}

#[test]
fn a_run_that_goes_on_takes_up_where_it_was() {
    let mut record = Record::default();
    (0..3).for_each(|step| record.push(line(step, &[Some(1.0), None])).unwrap());
    // Its clock begins again, and it has another seat.
    for step in 3..5 {
        let plan = UsedPlan { members: vec![0, 2], scheme: "uncoded".into() };
        let mut line = line(step, &[Some(1.0), None, Some(1.0)]);
        line.rounds[0].opened -= 2.75;
        line.committed -= 2.75;
        record.push(RecordedStep { plan: (step == 3).then_some(plan), ..line }).unwrap();
    }
    let committed: Vec<f64> = record.steps.iter().map(|step| step.committed).collect();
    assert_eq!(committed, [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(record.closed[4].opened, 4.0);
    assert_eq!((record.workers(), record.closed[0].arrivals.len()), (3, 3));
    let two = record.push(line(5, &[Some(1.0), None])).unwrap_err().to_string();
    assert_eq!(two, "round 5 has arrivals of 2 workers, where 3 are expected");
}

/// Its rounds may be numbered from 0 again, also where its clock tells nothing of that.
#[test]
fn reports_are_of_the_rounds_since_the_run_was_resumed() {
    let report = |round, computed| WorkReport {
        round,
        worker: 0,
        computed,
        progress: 1.0,
        came: computed,
        units: None,
    };
    let mut record = Record::default();
    for (step, round, committed) in [(0, 0, 1.0), (1, 1, 2.0), (2, 0, 2.5), (3, 1, 3.5)] {
        // What is reported of a round may come with a later step.
        let of_last = (round > 0).then(|| report(round - 1, committed));
        let mut line = line(step, &[Some(1.0), None]);
        (line.rounds[0].round, line.committed) = (round, committed);
        record.push(RecordedStep { spent: of_last.into_iter().collect(), ..line }).unwrap();
    }
    let computed = |record: &Record| -> Vec<(usize, f64)> {
        record.reports().map(|(place, report)| (place, report.computed)).collect()
    };
    assert_eq!(computed(&record), [(0, 2.0), (2, 3.5)]);
    assert_eq!(record.closed[2].opened, 2.0);
    assert_eq!(computed(&record.between(Some(2), None).unwrap()), [(0, 3.5)]);
}

#[test]
fn reports_that_cannot_be_true_are_counted() {
    let report = |worker, computed, progress, came| WorkReport {
        round: 0,
        worker,
        computed,
        progress,
        came,
        units: None,
    };
    let spent = vec![
        report(0, 1.0, 1.0, 1.5),
        report(1, 0.0, 0.0, 0.0),
        report(2, 1.0, 1.0, 1.5),
        report(0, 1.0, 1.01, 1.5),
        report(0, 2.6, 1.0, 1.5),
        report(0, f64::NAN, 1.0, 1.5),
        report(0, -1.0, 1.0, 1.5),
    ];
    let mut record = Record::default();
    record.push(RecordedStep { spent, ..line(0, &[Some(1.0), None]) }).unwrap();
    assert_eq!((record.reports.len(), record.unsound_reports()), (2, 5));
    assert_eq!(record.reports[1].1.whole(), None);
}

#[test]
fn a_part_of_a_record_keeps_what_is_known_of_its_rounds() {
    let mut record = Record::default();
    (0..9).for_each(|step| record.push(line(step, &[Some(1.0), None])).unwrap());
    let part = record.clone().between(Some(3), Some(5)).unwrap();
    assert_eq!((part.steps(), part.rounds(), part.closed[0].round), (3, 3, 3));
    assert_eq!(part.steps[2].rounds, 2..3);
    assert_eq!(part.step_of(2).unwrap().step, 5);
    assert!(part.step_of(3).is_none());
    let said = record.clone().between(Some(9), None).unwrap_err().to_string();
    assert_eq!(said, "there is no step from 9 to 8: the record holds steps 0 to 8");
    assert!(record.between(Some(5), Some(4)).is_err());
}

#[test]
fn steps_of_one_scheme_are_told_from_a_change_of_scheme() {
    let mut record = Record::default();
    (0..4).for_each(|step| record.push(line(step, &[None, None])).unwrap());
    assert_eq!((record.scheme(), record.switched()), ("uncoded", None));
    for step in [4, 5] {
        let using = Some(UsedScheme { scheme: "groups:s=1".into() });
        record.push(RecordedStep { using, ..line(step, &[None, None]) }).unwrap();
    }
    assert_eq!((record.scheme(), record.switched()), ("auto", Some((4, 4))));
    assert_eq!(record.between(Some(4), None).unwrap().scheme(), "groups:s=1");
}

#[test]
fn a_change_of_the_workers_is_a_change_of_the_scheme() {
    let alone = |step| RecordedStep { using: None, ..line(step, &[None, None, None]) };
    let plan = |step, members: &[u32]| {
        let plan = UsedPlan { members: members.into(), scheme: "groups:s=1".into() };
        RecordedStep { plan: Some(plan), ..alone(step) }
    };
    let mut record = Record::default();
    record.push(plan(0, &[0, 1, 2])).unwrap();
    record.push(alone(1)).unwrap();
    assert_eq!((record.switched(), record.planned_for()), (None, None));
    record.push(plan(2, &[0, 2])).unwrap();
    record.push(alone(3)).unwrap();
    assert_eq!(record.switched(), Some((2, 2)));
    let part = record.between(Some(2), None).unwrap();
    assert_eq!((part.scheme(), part.planned_for()), ("groups:s=1", Some(2)));
}
