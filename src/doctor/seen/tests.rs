//! Which findings times make that no other test has.

#![cfg(test)]

use crate::doctor::{
    Examination, Record, RecordedRound, RecordedStep, RunContext, WorkReport, examine,
};

/// Of a trace of 90 rounds of four workers, of whom one takes so long from round 30 to a later one.
fn of_trace(seconds: f64, until: usize) -> Examination {
    let of_one = |round| if (30..until).contains(&round) { seconds } else { 1.0 };
    let rows = (0..90).map(|round| vec![1.0, of_one(round), 1.0, 1.0]);
    examine(&Record::of_trace(rows).unwrap(), &RunContext::default())
}

fn first(found: &Examination) -> String {
    found.findings.first().map_or_else(String::new, ToString::to_string)
}

#[test]
fn a_worker_that_was_slow_in_some_rounds_is_named_with_them() {
    let found = of_trace(2.0, 60);
    assert_eq!((found.findings.len(), found.findings[0].kind()), (1, "slow-at-times"));
    assert!((found.findings[0].costs.unwrap() - 0.25).abs() < 1e-9);
    assert_eq!(
        first(&found),
        "worker 1 was slow in 30 of 90 rounds, steps 30 to 59, and most of the waiting was for it"
    );
}

#[test]
fn late_answers_are_told_from_those_that_never_came() {
    let late = first(&of_trace(60.0, 90));
    assert!(late.starts_with("worker 1 takes more than 50 times as long since step 30"), "{late}");
    let never = first(&of_trace(f64::INFINITY, 90));
    assert!(never.starts_with("worker 1 has not answered since step 30"), "{never}");
}

/// One worker of four is slow by so much, and computes so many units where others compute one.
fn of_units(times: f64, units: u64) -> Examination {
    let mut record = Record::default();
    for step in 0..30 {
        let seconds = |worker| if worker == 2 { times } else { 1.0 };
        let arrivals = (0..4).map(|worker| Some(seconds(worker))).collect();
        let round = RecordedRound {
            round: step,
            opened: step as f64 * 2.0 * times,
            seconds: times,
            arrivals,
            delays: vec![0.0; 4],
        };
        let spent = |worker| WorkReport {
            round: step,
            worker,
            computed: seconds(worker),
            progress: 1.0,
            came: seconds(worker),
            units: Some(if worker == 2 { units } else { 1 }),
        };
        let line = RecordedStep {
            run: 0,
            scheme: "uncoded".into(),
            step,
            committed: (step as f64 * 2.0 + 1.0) * times,
            seconds: times,
            at: None,
            rounds: vec![round],
            survivors: None,
            spent: (0..4).map(spent).collect(),
            using: None,
            plan: None,
            work: None,
            coverage: None,
        };
        record.push(line).unwrap();
    }
    examine(&record, &RunContext::default())
}

#[test]
fn who_has_more_units_is_not_slow() {
    let kinds = |found: &Examination| -> Vec<&'static str> {
        found.findings.iter().map(|finding| finding.kind()).collect()
    };
    for times in [1.1, 2.0] {
        let more = kinds(&of_units(times, 2));
        assert!(more.contains(&"more-units"), "{more:?}");
        let slow = kinds(&of_units(times, 1));
        assert!(!slow.contains(&"more-units"), "{slow:?}");
        assert!(slow.iter().any(|kind| kind.ends_with("slow-workers")), "{slow:?}");
    }
}

#[test]
fn nothing_is_planned_from_estimates_of_a_worker_that_was_never_seen() {
    let of_run = |delay: f64| {
        let mut record = Record::default();
        for step in 0..12 {
            let round = RecordedRound {
                round: step,
                opened: step as f64,
                seconds: 1.0,
                arrivals: vec![Some(1.0), None, Some(1.0), Some(1.0)],
                delays: vec![0.0, delay, 0.0, 0.0],
            };
            let line = RecordedStep {
                run: 0,
                scheme: "groups:s=1".into(),
                step,
                committed: step as f64 + 1.0,
                seconds: 1.0,
                at: None,
                rounds: vec![round],
                survivors: None,
                spent: Vec::new(),
                using: None,
                plan: None,
                work: None,
                coverage: None,
            };
            record.push(line).unwrap();
        }
        examine(&record, &RunContext::default())
    };
    let found = of_run(0.0);
    assert_eq!((found.findings[0].kind(), found.to_plan()), ("never-in-time", None));
    assert!(first(&found).starts_with("worker 1 was too late in almost all of 12 rounds"));
    assert!(
        found.what_if.reason.unwrap().to_string().starts_with("worker 1 answered in almost no")
    );
    // When it would have come is known where its lateness was injected.
    let found = of_run(3.0);
    assert!(found.findings.iter().all(|finding| finding.kind() != "never-in-time"));
    assert!(found.to_plan().is_some());
}
