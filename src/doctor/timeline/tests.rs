//! What pictures are made of.

#![cfg(test)]

use super::*;
use crate::doctor::RecordedStep;

/// A record whose rounds last a second and have these answers; one line of JSON per step.
fn record(scheme: &str, lines: &[&str]) -> Record {
    let mut record = Record::default();
    for (step, line) in lines.iter().enumerate() {
        let text = format!(
            r#"{{"scheme": "{scheme}", "step": {step}, "committed": {}, "seconds": 1.0, {line}}}"#,
            step + 1
        );
        let line: RecordedStep = serde_json::from_str(&text).unwrap();
        record.push(line).unwrap();
    }
    record
}

fn round(number: usize, arrivals: &str) -> String {
    format!(r#"{{"round": {number}, "opened": {number}, "seconds": 1, "arrivals": [{arrivals}]}}"#)
}

#[test]
fn a_result_counts_if_the_record_says_so_or_does_not_tell() {
    let first = round(0, "1, 1, null");
    let two = format!("\"rounds\": [{}, {}], \"survivors\": [1]", round(3, "1,1,1"), &first);
    let lines = [
        format!("\"rounds\": [{}], \"survivors\": [2, 0]", round(0, "1,1,1")),
        format!("\"rounds\": [{}]", round(1, "1,1,1")),
        // A refused step: nothing of it is used.
        format!("\"rounds\": [{}], \"survivors\": []", round(2, "1,1,1")),
        two.replace("\"round\": 0", "\"round\": 4"),
    ];
    let record = record("uncoded", &lines.each_ref().map(String::as_str));
    let counts = |step: TimelineStep<'_>| [0, 1, 2].map(|worker| step.counts(worker));
    let expected = [[true, false, true], [true; 3], [false; 3], [true; 3]];
    assert_eq!(record.timeline().map(counts).collect::<Vec<_>>(), expected);
    assert_eq!(record.timeline().map(|step| step.rounds.len()).collect::<Vec<_>>(), [1, 1, 1, 2]);
}

#[test]
fn a_worker_that_is_not_planned_for_has_no_task() {
    let plan = r#""plan": {"members": [0, 2], "scheme": "uncoded"}"#;
    let lines = [0, 1, 2].map(|step| {
        let plan = if step == 1 { format!(", {plan}") } else { String::new() };
        format!("\"rounds\": [{}]{plan}", round(step, "1, null, 1"))
    });
    let record = record("uncoded", &lines.each_ref().map(String::as_str));
    let tasks = record.timeline().map(|step| [0, 1, 2].map(|worker| step.has_task(worker)));
    let planned = [true, false, true];
    assert_eq!(tasks.collect::<Vec<_>>(), [[true; 3], planned, planned]);
}

#[test]
fn bins_hold_rounds_in_a_row_and_estimates_are_not_values() {
    let rows = (0..10).map(|round| {
        let late = if round < 5 { f64::INFINITY } else { 2.0 };
        vec![1.0, 1.0, late, 1.0 + f64::from(round % 2) / 2.0]
    });
    let record = Record::of_trace(rows).unwrap();
    let map = HeatMap::of(&record, Registry::builtin(), 64, 3);
    let steps: Vec<_> = map.bins.iter().map(|bin| bin.steps).collect();
    assert_eq!(steps, [(0, 2), (3, 5), (6, 9)]);
    let workers: Vec<usize> = map.rows.iter().map(|row| row.worker).collect();
    assert_eq!(workers, [0, 1, 2, 3]);
    let late = &map.rows[2].cells;
    assert_eq!((late[0], late[1].is_some()), (None, true), "{late:?}");
    let slowest = HeatMap::of(&record, Registry::builtin(), 2, 400);
    let workers: Vec<usize> = slowest.rows.iter().map(|row| row.worker).collect();
    assert_eq!((workers, slowest.bins.len()), (vec![2, 3], 10));
    assert_eq!(slowest.bins[9].seconds, 2.0);
    let none = HeatMap::of(&Record::default(), Registry::builtin(), 2, 400);
    assert!(none.bins.is_empty() && none.rows.is_empty());
}

#[test]
fn one_round_has_a_map_and_tasks_until_none_is_left_have_no_rows() {
    let line = format!("\"rounds\": [{}]", round(0, "1, 1, 2"));
    let one = record("uncoded", &[&line]);
    let map = HeatMap::of(&one, Registry::builtin(), 64, 400);
    assert_eq!(map.rows[2].cells, [Some(2.0)]);
    let lines = [0, 1].map(|step| format!("\"rounds\": [{}]", round(step, "1, 1, 2")));
    let queue = record("queue:m=4", &lines.each_ref().map(String::as_str));
    let map = HeatMap::of(&queue, Registry::builtin(), 64, 400);
    assert_eq!((map.rows.len(), map.bins.len()), (0, 2));
}
